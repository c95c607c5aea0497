/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verbs provider on the stand-in of benches/verbs when the device reports something by itself. */
#include "stand_in.h"

#include <dat2/dat_ib_extensions.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The numbers of the queue pairs, which the stand-in gives in the order in which they are made. */
enum { FIRST_QP = 2, SECOND_QP };

static void report(enum ibv_event_type type, int number)
{
	void (*event)(enum ibv_event_type, int) = stand_in("ibv_standin_event");

	event(type, number);
}

/* --- ports ---------------------------------------------------------------------------------- */

/* Has standard error go to a file. */
static FILE *catch_log(void)
{
	FILE *log = tmpfile();
	char path[64];
	int end;

	REQUIRE(log);
	/* With a position of its own, at the end. */
	snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(log));
	end = open(path, O_WRONLY | O_APPEND);
	REQUIRE(end >= 0 && dup2(end, STDERR_FILENO) >= 0);
	return log;
}

/* How often a text is in the log. */
static int logged(FILE *log, const char *text)
{
	char line[512];
	int count = 0;

	rewind(log);
	while (fgets(line, sizeof line, log))
		count += strstr(line, text) != NULL;
	return count;
}

static void await_logged(FILE *log, const char *text, int count)
{
	for (int i = 0; logged(log, text) < count && i < 1000; i++)
		pause_us(10 * 1000);
	CHECK_EQ(logged(log, text), count);
}

/* A port that is down for a while ends nothing by itself, and no event of DAT tells of it: the log does. */
static void port__events_are_logged(void)
{
	struct pair pair;
	FILE *log;

	setenv("DAT_DBG_TYPE", "0x40", 1);
	log = catch_log();
	pair_up(&pair, NULL);
	report(IBV_EVENT_PORT_ERR, 1);
	/* Of each IA. */
	await_logged(log, "RDMA device standin0: IBV_EVENT_PORT_ERR of port 1", 2);
	/* No IA is on this one. */
	report(IBV_EVENT_PORT_ERR, 2);
	report(IBV_EVENT_GID_CHANGE, 1);
	await_logged(log, "IBV_EVENT_GID_CHANGE of port 1", 2);
	report(IBV_EVENT_PORT_ACTIVE, 1);
	await_logged(log, "IBV_EVENT_PORT_ACTIVE of port 1", 2);
	report(99, 1);
	await_logged(log, "RDMA device standin0: event 99", 2);
	CHECK_EQ(logged(log, "port 2"), 0);
	report(IBV_EVENT_PATH_MIG, FIRST_QP);
	await_logged(log, "RDMA device standin0: IBV_EVENT_PATH_MIG", 1);
	expect_connected(&pair.a, pair.ep_a, &pair.b, pair.ep_b);
	EXPECT_NOTHING(pair.a.async_evd);
	EXPECT_NOTHING(pair.a.connect_evd);
	EXPECT_NOTHING(pair.b.connect_evd);
	pair_down(&pair);
}

/* Without the bit nothing is logged. */
static void port__events_are_no_errors(void)
{
	struct pair pair;
	FILE *log;

	setenv("DAT_DBG_TYPE", "0x3", 1);
	log = catch_log();
	pair_up(&pair, NULL);
	report(IBV_EVENT_PORT_ERR, 1);
	report(IBV_EVENT_QP_FATAL, FIRST_QP);
	EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	CHECK_EQ(logged(log, "fatal error of the endpoint"), 1);
	CHECK_EQ(logged(log, "PORT_ERR"), 0);
	pair_down(&pair);
}

/* --- queue pairs ---------------------------------------------------------------------------- */

/* The connection is broken, and what was outstanding is flushed; others go on. */
static void ep__whose_queue_pair_fails(void)
{
	static const enum ibv_event_type types[] = { IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
						     IBV_EVENT_QP_ACCESS_ERR };
	DAT_EP_HANDLE ep_a, ep_b;
	struct pair pair;

	pair_up(&pair, NULL);
	ep_a = make_ep(&pair.a, NULL);
	ep_b = make_ep(&pair.b, NULL);
	connect_eps(&pair.a, ep_a, &pair.b, ep_b);
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		if (i > 0) {
			OK(dat_ep_reset(pair.ep_a));
			OK(dat_ep_reset(pair.ep_b));
			connect_eps(&pair.a, pair.ep_a, &pair.b, pair.ep_b);
		}
		OK(recv_nothing(pair.ep_a, 1));
		OK(recv_nothing(pair.ep_b, 2));
		report(types[i], FIRST_QP);
		EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
		EXPECT_DTO(pair.a.recv_evd, 1, DAT_DTO_ERR_FLUSHED);
		EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		EXPECT_DTO(pair.b.recv_evd, 2, DAT_DTO_ERR_FLUSHED);
		CHECK(ep_state(pair.ep_a) == DAT_EP_STATE_DISCONNECTED);
		expect_connected(&pair.a, ep_a, &pair.b, ep_b);
	}
	EXPECT_NOTHING(pair.a.async_evd);
	pair_down(&pair);
}

/* What has not been established cannot break: each end gets the event for an attempt that has failed. */
static void ep__whose_queue_pair_fails_while_it_connects(void)
{
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_CONN_QUAL qualifier;
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	listen_any(&b, &qualifier);
	ep_a = make_ep(&a, NULL);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	await_request(&b);
	report(IBV_EVENT_QP_FATAL, FIRST_QP);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	OK(dat_ep_reset(ep_a));

	ep_b = make_ep(&b, NULL);
	connect_one_end(&a, ep_a, &b, ep_b, qualifier);
	CHECK(ep_state(ep_b) == DAT_EP_STATE_COMPLETION_PENDING);
	report(IBV_EVENT_QP_FATAL, SECOND_QP);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
	CHECK(ep_state(ep_b) == DAT_EP_STATE_DISCONNECTED);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	rig_down(&a);
	rig_down(&b);
}

/* Posts receives until one stays: while the library takes the queue pair through its states they are flushed. */
static void await_receiving(const struct rig *rig, DAT_EP_HANDLE ep)
{
	for (int i = 0; i < 1000; i++) {
		DAT_EVENT event;
		DAT_COUNT more;

		OK(recv_nothing(ep, i));
		if (dat_evd_wait(rig->recv_evd, NEVER, 1, &event, &more) != DAT_SUCCESS)
			return;
		CHECK(event.event_data.dto_completion_event_data.status == DAT_DTO_ERR_FLUSHED);
		pause_us(10 * 1000);
	}
	tap_fail(__FILE__, __LINE__, "receives are flushed");
}

/* An endpoint for datagrams has no connection that could break: it gets back what was outstanding, and goes on. */
static void ep__for_datagrams_whose_queue_pair_fails(void)
{
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE ep;
	struct rig rig;

	rig_up(&rig);
	attr = ep_attr(&rig);
	attr.service_type = (DAT_SERVICE_TYPE)DAT_IB_SERVICE_TYPE_UD;
	attr.max_message_size = 1000;
	attr.max_rdma_read_in = 0;
	attr.max_rdma_read_out = 0;
	ep = make_ep(&rig, &attr);
	for (int i = 0; i < 2; i++) {
		await_receiving(&rig, ep);
		report(IBV_EVENT_QP_FATAL, FIRST_QP);
		EXPECT(rig.recv_evd, DAT_DTO_COMPLETION_EVENT);
	}
	await_receiving(&rig, ep);
	EXPECT_NOTHING(rig.async_evd);
	rig_down(&rig);
}

/* The last message of the handshake is lost, and data arrive: the connection is established. Its receives complete
 * when the consumer knows of it. */
static void ep__that_receives_before_it_is_connected(void)
{
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_CONN_QUAL qualifier;
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	listen_any(&b, &qualifier);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	OK(recv_nothing(ep_b, 1));
	connect_one_end(&a, ep_a, &b, ep_b, qualifier);
	OK(send_nothing(ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(b.recv_evd);
	CHECK(ep_state(ep_b) == DAT_EP_STATE_COMPLETION_PENDING);
	report(IBV_EVENT_COMM_EST, SECOND_QP);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	/* As devices do that report it for every connection. */
	report(IBV_EVENT_COMM_EST, SECOND_QP);
	report(IBV_EVENT_COMM_EST, FIRST_QP);
	expect_connected(&a, ep_a, &b, ep_b);
	expect_connected(&b, ep_b, &a, ep_a);
	EXPECT_NOTHING(b.connect_evd);
	rig_down(&a);
	rig_down(&b);
}

/* --- completion queues ---------------------------------------------------------------------- */

/* Completions are lost: the EVD is named in the asynchronous EVD. */
static void evd__whose_completion_queue_overflows(void)
{
	DAT_ASYNCH_ERROR_EVENT_DATA error;
	struct pair pair;

	pair_up(&pair, NULL);
	report(IBV_EVENT_CQ_ERR, SECOND_QP);
	error = EXPECT(pair.b.async_evd, DAT_ASYNC_ERROR_EVD_OVERFLOW)
			.event_data.asynch_error_event_data;
	CHECK(error.dat_handle == pair.b.recv_evd);
	CHECK_EQ(error.reason, DAT_EVD_OVERFLOW_ERROR);
	EXPECT_NOTHING(pair.b.async_evd);
	pair_down(&pair);
}

/* --- requests that fail --------------------------------------------------------------------- */

static _Atomic int send_status;

static int at_send(const char *point)
{
	return strcmp(point, "send") ? 0 : atomic_exchange(&send_status, IBV_WC_SUCCESS);
}

/* The retries of a request are used up: its status says of what, those behind it are flushed, and the connection is
 * broken. A request whose success nobody hears of is no different. */
static void ep_post_send__whose_retries_are_used_up(void)
{
	static const struct {
		enum ibv_wc_status is;
		DAT_DTO_COMPLETION_STATUS wanted;
	} failures[] = {
		{ IBV_WC_RNR_RETRY_EXC_ERR, DAT_DTO_ERR_RECEIVER_NOT_READY },
		{ IBV_WC_RETRY_EXC_ERR, DAT_DTO_ERR_TRANSPORT },
	};
	struct pair pair;

	pair_up(&pair, NULL);
	at_points(at_send);
	for (int i = 0; i < 4; i++) {
		DAT_COMPLETION_FLAGS flags =
			i & 1 ? DAT_COMPLETION_SUPPRESS_FLAG : DAT_COMPLETION_DEFAULT_FLAG;

		if (i > 0) {
			OK(dat_ep_reset(pair.ep_a));
			OK(dat_ep_reset(pair.ep_b));
			connect_eps(&pair.a, pair.ep_a, &pair.b, pair.ep_b);
		}
		OK(recv_nothing(pair.ep_a, 10));
		OK(send_nothing(pair.ep_a, 1, DAT_COMPLETION_DEFAULT_FLAG));
		send_status = failures[i / 2].is;
		OK(send_nothing(pair.ep_a, 2, flags));
		OK(send_nothing(pair.ep_a, 3, flags));
		EXPECT_DTO(pair.a.request_evd, 1, DAT_DTO_SUCCESS);
		EXPECT_DTO(pair.a.request_evd, 2, failures[i / 2].wanted);
		EXPECT_DTO(pair.a.request_evd, 3, DAT_DTO_ERR_FLUSHED);
		EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
		EXPECT_DTO(pair.a.recv_evd, 10, DAT_DTO_ERR_FLUSHED);
		OK(send_nothing(pair.ep_a, 4, flags));
		EXPECT_DTO(pair.a.request_evd, 4, DAT_DTO_ERR_FLUSHED);
		EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		EXPECT_NOTHING(pair.a.request_evd);
		EXPECT_NOTHING(pair.a.recv_evd);
	}
	pair_down(&pair);
}

/* The same where the consumer sees no completion of requests at all. */
static void ep_post_send__that_fails_without_an_evd(void)
{
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_EP_ATTR attr;
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	attr = ep_attr(&a);
	OK(dat_ep_create(a.ia, a.pz, a.recv_evd, DAT_HANDLE_NULL, a.connect_evd, &attr, &ep_a));
	ep_b = make_ep(&b, NULL);
	connect_eps(&a, ep_a, &b, ep_b);
	at_points(at_send);
	send_status = IBV_WC_RNR_RETRY_EXC_ERR;
	OK(send_nothing(ep_a, 1, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	rig_down(&a);
	rig_down(&b);
}

static const struct tap_test tests[] = {
	T(port, events_are_logged),
	T(port, events_are_no_errors),
	T(ep, whose_queue_pair_fails),
	T(ep, whose_queue_pair_fails_while_it_connects),
	T(ep, for_datagrams_whose_queue_pair_fails),
	T(ep, that_receives_before_it_is_connected),
	T(evd, whose_completion_queue_overflows),
	T(ep_post_send, whose_retries_are_used_up),
	T(ep_post_send, that_fails_without_an_evd),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
