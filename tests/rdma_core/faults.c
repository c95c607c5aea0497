/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verbs provider on the stand-in of benches/verbs when something goes wrong there. */
#include "stand_in.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* --- requests without an answer ------------------------------------------------------------- */

static atomic_int requests, blocked;

static int at_request(const char *point)
{
	blocked += !strcmp(point, "blocks");
	if (strcmp(point, "connect"))
		return 0;
	requests++;
	return 1;
}

static void await_queue_pairs(int count)
{
	int (*queue_pairs)(void) = (int (*)(void))stand_in("ibv_standin_queue_pairs");

	for (int i = 0; queue_pairs() != count && i < 1000; i++)
		pause_us(10 * 1000);
	CHECK_EQ(queue_pairs(), count);
}

/* The kernel keeps the identifier and the queue pair of an iWARP request until the peer has answered, and blocks who
 * destroys one of them. They are destroyed afterwards, also when the IA is closed, and nobody waits for that. */
static void ep_free__of_a_request_without_an_answer(void)
{
	void (*time_out)(void);
	DAT_CONN_QUAL qualifier;
	struct rig a, b;

	setenv("STANDIN_DEVICE", "siw", 1);
	rig_up(&b);
	listen_any(&b, &qualifier);
	time_out = (void (*)(void))stand_in("rdma_standin_time_out");
	at_points(at_request);
	for (int closes = 0; closes < 2; closes++) {
		DAT_EP_HANDLE freed, again;

		rig_up(&a);
		freed = make_ep(&a, NULL);
		again = make_ep(&a, NULL);
		requests = 0;
		OK(try_connect(freed, &b, qualifier, SOON));
		OK(try_connect(again, &b, qualifier, SOON));
		for (int i = 0; requests < 2 && i < 1000; i++)
			pause_us(10 * 1000);
		OK(dat_ep_free(freed));
		OK(dat_ep_disconnect(again, DAT_CLOSE_ABRUPT_FLAG));
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_ep_reset(again));
		/* Those of the two requests, and that of the endpoint since the reset. */
		await_queue_pairs(3);
		if (closes) {
			rig_down(&a);
			await_queue_pairs(2);
			time_out();
		} else {
			time_out();
			await_queue_pairs(1);
			EXPECT_NOTHING(a.connect_evd);
			rig_down(&a);
		}
		await_queue_pairs(0);
	}
	CHECK_EQ(blocked, 0);
	rig_down(&b);
}

/* --- a message of the handshake that is lost ---------------------------------------------- */

/* A message arrives before the passive end is told of the connection, and takes a buffer of a shared
 * receive queue: when the accept is given up, the consumer gets it back. */
static void ep_disconnect__of_an_accept_with_an_srq(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_CONN_QUAL qualifier;
	DAT_SRQ_HANDLE srq;
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	OK(dat_srq_create(b.ia, b.pz, &srq_attr, &srq));
	ep_b = ep_with_srq(&b, srq);
	OK(dat_srq_post_recv(srq, 0, NULL, cookie(1)));
	listen_any(&b, &qualifier);
	connect_one_end(&a, ep_a, &b, ep_b, qualifier);
	OK(send_nothing(ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 2, DAT_DTO_SUCCESS);
	/* Nobody has polled at this end. */
	OK(dat_ep_disconnect(ep_b, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	rig_down(&a);
	rig_down(&b);
}

/* --- buffers of a shared receive queue ------------------------------------------------------ */

static int at_flush(const char *point)
{
	return !strcmp(point, "flush_srq");
}

/* The device takes its time to flush the buffer that a queue pair has taken: the consumer gets it back, whether
 * the end of the connection is the peer's or its own, or the endpoint is freed, and there is room for another one. */
static void srq__buffers_that_are_flushed_late(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 1, .max_recv_iov = 1 };
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	for (int round = 0; round < 3; round++) {
		DAT_EP_HANDLE ep_a = make_ep(&a, NULL), ep_b;
		DAT_SRQ_HANDLE srq;

		at_points(NULL);
		OK(dat_srq_create(b.ia, b.pz, &srq_attr, &srq));
		ep_b = ep_with_srq(&b, srq);
		OK(dat_srq_post_recv(srq, 0, NULL, cookie(1)));
		connect_eps(&a, ep_a, &b, ep_b);
		at_points(at_flush);
		if (round == 2) {
			OK(dat_ep_free(ep_b));
		} else {
			OK(dat_ep_disconnect(round ? ep_a : ep_b, DAT_CLOSE_ABRUPT_FLAG));
			EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
			EXPECT_DTO(b.recv_evd, 1, DAT_DTO_ERR_FLUSHED);
		}
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_srq_post_recv(srq, 0, NULL, cookie(2)));
		if (round < 2)
			OK(dat_ep_free(ep_b));
		OK(dat_ep_free(ep_a));
		OK(dat_srq_free(srq));
	}
	rig_down(&a);
	rig_down(&b);
}

/* --- requests of which the device reports no success -------------------------------------- */

static atomic_int markers;
static atomic_bool marker_fails, marker_refused;

static int at_marker(const char *point)
{
	if (!strcmp(point, "write_refused"))
		return marker_refused;
	if (strcmp(point, "write_nothing"))
		return 0;
	markers++;
	return marker_fails || marker_refused;
}

/* Ends a connection in order behind a request with a suppressed completion: a send, or a write to `remote`, if
 * that is not NULL. With both the write has completed before the send. */
static void end_behind(const struct rig *a, const struct rig *b, const struct mem *local,
		       const struct mem *remote, bool send)
{
	DAT_EP_HANDLE ep_a = make_ep(a, NULL), ep_b = make_ep(b, NULL);
	DAT_EVENT event;

	connect_eps(a, ep_a, b, ep_b);
	if (remote) {
		DAT_LMR_TRIPLET from = dx_local(local->local, local->at, 8);
		DAT_RMR_TRIPLET to = dx_remote(remote->remote, remote->at, 8);

		OK(dat_ep_post_rdma_write(ep_a, 1, &from, cookie(1), &to,
					  send ? DAT_COMPLETION_DEFAULT_FLAG :
						 DAT_COMPLETION_SUPPRESS_FLAG));
		if (send)
			EXPECT_DTO(a->request_evd, 1, DAT_DTO_SUCCESS);
	}
	if (send)
		OK(send_nothing(ep_a, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	/* The program may be the first that sees what the device has completed. */
	CHECK_RET(dat_evd_dequeue(a->request_evd, &event), DAT_QUEUE_EMPTY);
	EXPECT(a->connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b->connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_NOTHING(a->request_evd);
	OK(dat_ep_free(ep_a));
	OK(dat_ep_free(ep_b));
}

/* A request of the library tells that those before it are done; the consumer does not see it, also if it fails, or
 * if the peer permits no RDMA writes and refuses it. */
static void ep_disconnect__behind_suppressed_requests(void)
{
	enum { CONNECTIONS = 10 };
	struct rig a, b;
	struct mem from, to;
	unsigned long long start;

	rig_up(&a);
	rig_up(&b);
	from = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	to = make_mem(&b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	at_points(at_marker);
	start = now_us();
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, &to, false);
	CHECK(markers == CONNECTIONS);
	/* Without it each takes half a second. */
	CHECK(now_us() - start < CONNECTIONS * 500000 / 2);
	/* Behind a send: with a write before it, and with none. */
	start = now_us();
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, &to, true);
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, NULL, true);
	CHECK(markers == 3 * CONNECTIONS);
	marker_refused = true;
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, NULL, true);
	CHECK(markers == 4 * CONNECTIONS);
	CHECK(now_us() - start < 3 * CONNECTIONS * 500000 / 2);
	marker_refused = false;
	marker_fails = true;
	end_behind(&a, &b, &from, &to, false);
	CHECK(markers == 4 * CONNECTIONS + 1);
	rig_down(&a);
	rig_down(&b);
}

/* The same on software iWARP, whose completions the library puts into order. */
static void ep_disconnect__behind_suppressed_requests_over_iwarp(void)
{
	enum { CONNECTIONS = 10 };
	struct rig a, b;
	struct mem from, to;
	unsigned long long start;

	setenv("STANDIN_DEVICE", "siw", 1);
	rig_up(&a);
	rig_up(&b);
	from = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	to = make_mem(&b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	at_points(at_marker);
	start = now_us();
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, NULL, true);
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, &to, true);
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, &to, false);
	CHECK(markers == 3 * CONNECTIONS);
	CHECK(now_us() - start < 3 * CONNECTIONS * 500000 / 2);
	marker_fails = true;
	end_behind(&a, &b, &from, NULL, true);
	CHECK(markers == 3 * CONNECTIONS + 1);
	rig_down(&a);
	rig_down(&b);
}

/* --- requests that take long ----------------------------------------------------------------- */

static atomic_bool keeps;

static int at_keep(const char *point)
{
	return !strcmp(point, "keep") && atomic_exchange(&keeps, false);
}

/* How often the threads of the library for devices have slept. */
static unsigned long sleeps(void)
{
	DIR *tasks = opendir("/proc/self/task");
	unsigned long count = 0;
	struct dirent *task;

	REQUIRE(tasks);
	while ((task = readdir(tasks)) != NULL) {
		char path[300], line[128];
		unsigned long switches;
		bool ours = false;
		FILE *status;

		snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
		if ((status = fopen(path, "r")) == NULL)
			continue;
		while (fgets(line, sizeof line, status)) {
			ours |= !strcmp(line, "Name:\tdat-verbs\n");
			if (ours && sscanf(line, "voluntary_ctxt_switches: %lu", &switches) == 1)
				count += switches;
		}
		fclose(status);
	}
	closedir(tasks);
	return count;
}

/* A graceful disconnect waits for a request that takes long, as one whose peer posts no receive: the longer it has
 * waited, the less often the library looks. It ends soon after the request. */
static void ep_disconnect__that_waits_for_a_request(void)
{
	unsigned long before;
	struct pair pair;

	pair_up(&pair, NULL);
	at_points(at_keep);
	keeps = true;
	OK(send_nothing(pair.ep_a, 1, DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	pause_us(1000 * 1000);
	before = sleeps();
	pause_us(1000 * 1000);
	CHECK(sleeps() - before < 100);
	CHECK(ep_state(pair.ep_a) == DAT_EP_STATE_DISCONNECT_PENDING);
	((void (*)(void))stand_in("ibv_standin_complete_kept"))();
	EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_DTO(pair.a.request_evd, 1, DAT_DTO_SUCCESS);
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	pair_down(&pair);
}

/* --- reads that the peer does not answer --------------------------------------------------- */

/* Some devices never complete a read on a queue pair that may have none outstanding. */
static void ep_post_rdma_read__that_the_peer_answers_none_of(void)
{
	DAT_EP_HANDLE ep_a, ep_b;
	struct mem from, to;
	DAT_EP_ATTR attr;
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	to = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	from = make_mem(&b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	/* At the end that connects, then at the one that accepts. */
	for (int passive = 0; passive < 2; passive++) {
		DAT_LMR_TRIPLET local = dx_local(to.local, to.at, 8);
		DAT_RMR_TRIPLET remote = dx_remote(from.remote, from.at, 8);

		ep_a = make_ep(&a, NULL);
		attr = ep_attr(&b);
		attr.max_rdma_read_in = 0;
		ep_b = make_ep(&b, &attr);
		if (passive)
			connect_eps(&b, ep_b, &a, ep_a);
		else
			connect_eps(&a, ep_a, &b, ep_b);
		OK(dat_ep_post_rdma_read(ep_a, 1, &local, cookie(1), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(a.request_evd, 1, DAT_DTO_ERR_LOCAL_EP);
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
		await_end(&b);
		OK(dat_ep_free(ep_a));
		OK(dat_ep_free(ep_b));
	}
	rig_down(&a);
	rig_down(&b);
}

static const struct tap_test tests[] = {
	T(ep_free, of_a_request_without_an_answer),
	T(ep_disconnect, of_an_accept_with_an_srq),
	T(srq, buffers_that_are_flushed_late),
	T(ep_disconnect, behind_suppressed_requests),
	T(ep_disconnect, behind_suppressed_requests_over_iwarp),
	T(ep_disconnect, that_waits_for_a_request),
	T(ep_post_rdma_read, that_the_peer_answers_none_of),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
