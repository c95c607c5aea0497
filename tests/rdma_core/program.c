/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verbs provider on the stand-in of benches/verbs. The environment variable BY_LIBRARY is the
 * event, as a number, that ends an attempt to connect which no consumer has answered. */
#include "stand_in.h"

#include "descriptors.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Asks for a connection and takes the request. */
static DAT_CR_HANDLE ask(struct rig *a, struct rig *b)
{
	DAT_CONN_QUAL qualifier = 4711;
	DAT_PSP_HANDLE psp;

	rig_up(a);
	rig_up(b);
	OK(dat_psp_create(b->ia, qualifier, b->cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	OK(try_connect(make_ep(a, NULL), b, qualifier, SOON));
	return await_request(b);
}

static void connect__data(void)
{
	struct pair pair;

	pair_up(&pair, NULL);
	expect_connected(&pair.a, pair.ep_a, &pair.b, pair.ep_b);
	pair_down(&pair);
}

static void reject__by_the_consumer(void)
{
	struct rig a, b;

	OK(dx_cr_reject(ask(&a, &b)));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	rig_down(&a);
	rig_down(&b);
}

static void reject__by_the_library(void)
{
	struct rig a, b;

	ask(&a, &b);
	rig_down(&b);
	EXPECT(a.connect_evd, strtoul(getenv("BY_LIBRARY"), NULL, 0));
	rig_down(&a);
}

/* Asks for a qualifier that is no port. */
static DAT_CR_HANDLE ask_for_a_wide_qualifier(const struct rig *a, DAT_EP_HANDLE ep,
					      const struct rig *b)
{
	DAT_CONN_QUAL qualifier = 0x1234567;
	DAT_PSP_HANDLE psp;
	DAT_CR_HANDLE cr;

	OK(dat_psp_create(b->ia, qualifier, b->cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	OK(try_connect(ep, b, qualifier, SOON));
	cr = await_request(b);
	OK(dat_psp_free(psp));
	EXPECT_NOTHING(a->connect_evd);
	return cr;
}

/* An answer has all of the private data that the provider attribute names, whatever the qualifier is. */
static void answer__with_as_many_private_data_as_there_may_be(void)
{
	DAT_CONNECTION_EVENT_DATA answer;
	DAT_EP_HANDLE ep;
	struct rig a, b;
	DAT_COUNT size;
	char data[256];

	rig_up(&a);
	rig_up(&b);
	size = b.provider.max_private_data_size;
	REQUIRE(size <= (DAT_COUNT)sizeof data);
	fill(data, (size_t)size, 1);
	ep = make_ep(&a, NULL);
	OK(dat_cr_reject(ask_for_a_wide_qualifier(&a, ep, &b), size, data));
	answer = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED)
			 .event_data.connect_event_data;
	CHECK(answer.private_data_size >= size && filled(answer.private_data, (size_t)size, 1));
	OK(dat_ep_reset(ep));
	OK(dat_cr_accept(ask_for_a_wide_qualifier(&a, ep, &b), make_ep(&b, NULL), size, data));
	answer = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			 .event_data.connect_event_data;
	CHECK(answer.private_data_size >= size && filled(answer.private_data, (size_t)size, 1));
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	rig_down(&a);
	rig_down(&b);
}

/* The device reports nothing of the last request: the connection ends all the same, and in order. */
static void disconnect__behind_a_suppressed_request(void)
{
	struct pair pair;

	pair_up(&pair, NULL);
	OK(recv_nothing(pair.ep_b, 1));
	OK(send_nothing(pair.ep_a, 2, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_DTO(pair.b.recv_evd, 1, DAT_DTO_SUCCESS);
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_NOTHING(pair.a.request_evd);
	pair_down(&pair);
}

/* Registers a page with a protection, and binds a window that peers may read to it. */
static DAT_RETURN bind_to_page(const struct pair *pair, int protection,
			       DAT_MEM_PRIV_FLAGS privileges)
{
	enum { SIZE = 4096 };
	void *at = mmap(NULL, SIZE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	DAT_REGION_DESCRIPTION region = { .for_va = at };
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote, key;
	DAT_LMR_TRIPLET range;
	DAT_LMR_HANDLE lmr;
	DAT_RMR_HANDLE rmr;
	DAT_VADDR address;
	DAT_VLEN length;
	DAT_RETURN result;

	REQUIRE(at != MAP_FAILED);
	OK(dx_lmr_create(pair->a.ia, DAT_MEM_TYPE_VIRTUAL, region, SIZE, pair->a.pz, privileges,
			 &lmr, &local, &remote, &length, &address));
	OK(dat_rmr_create(pair->a.pz, &rmr));
	range = dx_local(local, at, SIZE);
	result = dx_rmr_bind(rmr, lmr, &range, DAT_MEM_PRIV_REMOTE_READ_FLAG, pair->ep_a, cookie(1),
			     DAT_COMPLETION_DEFAULT_FLAG, &key);
	if (result == DAT_SUCCESS)
		EXPECT(pair->a.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	OK(dat_rmr_free(rmr));
	OK(dat_lmr_free(lmr));
	munmap(at, SIZE);
	return result;
}

static void windows__memory_that_cannot_be_written(void)
{
	DAT_MEM_PRIV_FLAGS read = DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG;
	struct pair pair;

	pair_up(&pair, NULL);
	CHECK_RET(bind_to_page(&pair, PROT_READ | PROT_WRITE, read), DAT_SUCCESS);
	CHECK_RET(bind_to_page(&pair, PROT_READ, read), DAT_PRIVILEGES_VIOLATION);
	pair_down(&pair);
}

/* What a window is bound to. */
static DAT_RMR_CONTEXT key_of(DAT_RMR_HANDLE rmr)
{
	DAT_RMR_PARAM param;

	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK(!param.rmr_context == !param.lmr_triplet.segment_length);
	return param.rmr_context;
}

static DAT_RETURN bind_window(const struct pair *pair, DAT_RMR_HANDLE rmr, const struct mem *mem,
			      DAT_LMR_TRIPLET *range, DAT_RMR_CONTEXT *key)
{
	return dx_rmr_bind(rmr, mem->lmr, range, DAT_MEM_PRIV_REMOTE_READ_FLAG, pair->ep_a,
			   cookie(1), DAT_COMPLETION_DEFAULT_FLAG, key);
}

/* A message of the peer invalidates the key of a window: the window is bound to nothing, and its region can be
 * freed. A key that the window has no more has no effect, and the end of the connection none on what is told. */
static void windows__closed_by_the_peer(void)
{
	struct pair pair;

	pair_up(&pair, NULL);
	for (int round = 0; round < 3; round++) {
		struct mem mem = make_mem(&pair.a, 4096, DAT_MEM_PRIV_ALL_FLAG);
		DAT_LMR_TRIPLET range = dx_local(mem.local, mem.at, 100);
		DAT_RMR_CONTEXT old = 0, key = 0;
		DAT_RMR_HANDLE rmr;

		OK(dat_rmr_create(pair.a.pz, &rmr));
		CHECK(key_of(rmr) == 0);
		for (int i = 0; i < 2; i++) {
			old = key;
			OK(bind_window(&pair, rmr, &mem, &range, &key));
			CHECK(key_of(rmr) == key);
			EXPECT(pair.a.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
			CHECK(key_of(rmr) == key);
		}
		CHECK(old != key);
		if (round == 2) {
			OK(dat_ep_disconnect(pair.ep_b, DAT_CLOSE_ABRUPT_FLAG));
			EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		} else {
			OK(recv_nothing(pair.ep_a, 2));
			OK(dat_ep_post_send_with_invalidate(pair.ep_b, 0, NULL, cookie(3),
							    DAT_COMPLETION_DEFAULT_FLAG, DAT_TRUE,
							    round ? old : key));
			EXPECT_DTO(pair.a.recv_evd, 2, DAT_DTO_SUCCESS);
			EXPECT_DTO(pair.b.request_evd, 3, DAT_DTO_SUCCESS);
		}
		CHECK(key_of(rmr) == (round == 0 ? 0 : key));
		if (round > 0)
			OK(dat_rmr_free(rmr));
		free_mem(&mem);
		if (round == 0)
			OK(dat_rmr_free(rmr));
	}
	pair_down(&pair);
}

/* A window of type 1 stays one of the device: each bind gives it another key, and one behind the end of the
 * connection is flushed and changes nothing. */
static void windows__of_type_1(void)
{
	DAT_RMR_CONTEXT first, second, none, late;
	DAT_EVENT event;
	DAT_LMR_TRIPLET range;
	DAT_RMR_HANDLE rmr;
	struct pair pair;
	struct mem mem;

	setenv("STANDIN_DEVICE", "type 1", 1);
	pair_up(&pair, NULL);
	mem = make_mem(&pair.a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	range = dx_local(mem.local, mem.at, 100);
	OK(dat_rmr_create(pair.a.pz, &rmr));
	OK(bind_window(&pair, rmr, &mem, &range, &first));
	EXPECT(pair.a.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	OK(bind_window(&pair, rmr, &mem, &range, &second));
	EXPECT(pair.a.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	CHECK(first != second);
	CHECK(key_of(rmr) == second);
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_RET(bind_window(&pair, rmr, &mem, &range, &late), DAT_SUCCESS);
	event = EXPECT(pair.a.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	CHECK(event.event_data.rmr_completion_event_data.status == DAT_DTO_ERR_FLUSHED);
	CHECK(late == second);
	CHECK(key_of(rmr) == second);
	range.segment_length = 0;
	CHECK_RET(bind_window(&pair, rmr, &mem, &range, &none), DAT_SUCCESS);
	EXPECT(pair.a.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	OK(dat_rmr_free(rmr));
	pair_down(&pair);
}

/* How many ends of pipes to be read this process has: of the stand-in all that events come from. */
static int pipes(void)
{
	struct stat is;
	int count = 0;

	for (int fd = 3; fd < 1024; fd++)
		count += fstat(fd, &is) == 0 && S_ISFIFO(is.st_mode) &&
			 (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
	return count;
}

/* That of the context which the connection manager has for itself. */
enum { MANAGER = 1 };

/* Whether nothing is left of IAs that were closed: the thread of one ends a little later. */
static bool are_closed(void)
{
	for (int i = 0; i < 1000 && pipes() != MANAGER; i++)
		pause_us(10 * 1000);
	return pipes() == MANAGER;
}

/* A child has copies of no descriptor that rdma-core has opened for the IAs of its parent, which go on. */
static void fork__a_child_keeps_no_descriptor(void)
{
	struct pair pair;
	struct rig rig;
	int status;
	pid_t child;

	/* The connection manager opens that now. */
	rig_up(&rig);
	rig_down(&rig);
	CHECK(are_closed());
	pair_up(&pair, NULL);
	CHECK(pipes() >= MANAGER + 3);
	child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		bool none = pipes() == MANAGER;

		alarm(20);
		rig_up(&rig);
		rig_down(&rig);
		_exit(none && are_closed() ? tap_status() : 7);
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK_EQ(status, 0);
	OK(recv_nothing(pair.ep_b, 1));
	OK(send_nothing(pair.ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(pair.b.recv_evd, 1, DAT_DTO_SUCCESS);
	pair_down(&pair);
	CHECK(are_closed());
}

/* A program that closes descriptors which are not its own may leave what a thread sleeps on, and close what wakes the
 * thread. The thread gets its work all the same, and ends with the IA. */
static void descriptors__what_wakes_the_thread(void)
{
	struct pair pair;

	pair_up(&pair, NULL);
	CHECK_EQ(close_kind("anon_inode:[eventfd]"), 2);
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	pair_down(&pair);
	CHECK(are_closed());
}

static const struct tap_test tests[] = {
	T(connect, data),
	T(reject, by_the_consumer),
	T(reject, by_the_library),
	T(answer, with_as_many_private_data_as_there_may_be),
	T(disconnect, behind_a_suppressed_request),
	T(windows, memory_that_cannot_be_written),
	T(windows, closed_by_the_peer),
	T(windows, of_type_1),
	T(fork, a_child_keeps_no_descriptor),
	T(descriptors, what_wakes_the_thread),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
