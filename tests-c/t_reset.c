/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What dat_ep_reset leaves in the EVDs without rules=pages: all that was there, as existing libraries do
 * (dat.conf(5)). dapltest resets an endpoint whose connection was rejected, and then takes what was flushed, to
 * know which receives it has to post again. The IA is that of the test with "-programs" behind its name. */
#include "srq.h"

/* Side b listens, and rejects the next request of side a. */
static void reject_one(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp = listen_any(&p.b, &qualifier);

	OK(try_connect(p.ep_a, &p.b, qualifier, SOON));
	OK(dx_cr_reject(await_request(&p.b)));
	await_state(p.ep_a, DAT_EP_STATE_DISCONNECTED);
	OK(dat_psp_free(psp));
}

/* A message of side a that arrives, and nothing else. */
static void works(DAT_UINT64 value)
{
	OK(recv_nothing(p.ep_b, value));
	OK(send_nothing(p.ep_a, value + 1, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, value, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, value + 1, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(p.a.connect_evd);
	EXPECT_NOTHING(p.b.connect_evd);
	EXPECT_NOTHING(p.a.recv_evd);
}

static void reset__keeps_what_was_flushed(void)
{
	up();
	for (DAT_UINT64 i = 0; i < 3; i++)
		OK(recv_nothing(p.ep_a, i));
	OK(send_nothing(p.ep_b, 10, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.request_evd, 10, DAT_DTO_SUCCESS);
	OK(dat_ep_disconnect(p.ep_b, DAT_CLOSE_GRACEFUL_FLAG));
	await_state(p.ep_a, DAT_EP_STATE_DISCONNECTED);
	await_state(p.ep_b, DAT_EP_STATE_DISCONNECTED);
	OK(dat_ep_reset(p.ep_a));
	OK(dat_ep_reset(p.ep_b));
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_UNCONNECTED);
	EXPECT_DTO(p.a.recv_evd, 0, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.recv_evd, 1, DAT_DTO_ERR_FLUSHED);
	EXPECT_DTO(p.a.recv_evd, 2, DAT_DTO_ERR_FLUSHED);
	EXPECT_NOTHING(p.a.recv_evd);
	CHECK(EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED)
		      .event_data.connect_event_data.ep_handle == p.ep_a);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	works(20);
	down();
}

/* In front of what the next connection brings. */
static void reset__keeps_the_order(void)
{
	up();
	OK(recv_nothing(p.ep_b, 1));
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	OK(dat_ep_reset(p.ep_a));
	OK(dat_ep_reset(p.ep_b));
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	OK(recv_nothing(p.ep_b, 2));
	OK(send_nothing(p.ep_a, 3, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_ERR_FLUSHED);
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_SUCCESS);
	down();
}

static void reset__after_a_rejection(void)
{
	DAT_CONNECTION_EVENT_DATA data;

	rig_up(&p.a);
	rig_up(&p.b);
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, NULL);
	for (DAT_UINT64 round = 0; round < 3; round++) {
		OK(recv_nothing(p.ep_a, round));
		reject_one();
		OK(dat_ep_reset(p.ep_a));
		EXPECT_DTO(p.a.recv_evd, round, DAT_DTO_ERR_FLUSHED);
		EXPECT_NOTHING(p.a.recv_evd);
		data = EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED)
			       .event_data.connect_event_data;
		/* The private data were the endpoint's; who reads them nevertheless finds memory. */
		CHECK_EQ(data.private_data_size, 0);
		CHECK(no_private_data(data.private_data));
	}
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	works(20);
	pair_down(&p);
}

/* What dat_ep_free takes is gone all the same. */
static void reset__then_free(void)
{
	up();
	OK(recv_nothing(p.ep_b, 1));
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	await_state(p.ep_b, DAT_EP_STATE_DISCONNECTED);
	OK(dat_ep_reset(p.ep_b));
	OK(dat_ep_free(p.ep_b));
	EXPECT_NOTHING(p.b.recv_evd);
	EXPECT_NOTHING(p.b.connect_evd);
	p.ep_b = make_ep(&p.b, NULL);
	down();
}

/* Buffers of a shared queue are outstanding until their completions are taken, reset or not. */
static void reset__counts_buffers_of_a_shared_queue(void)
{
	srq_up();
	OK(post_srq(0));
	OK(post_srq(1));
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	await_available(1);
	OK(dat_ep_disconnect(p.ep_b, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	expect_async(&p.b, DAT_ASYNC_ERROR_EP_BROKEN, p.ep_b, DAT_EP_TRANSFER_TO_ERROR);
	OK(dat_ep_reset(p.ep_b));
	check_counts(1, 2);
	EXPECT_DTO(p.b.recv_evd, 0, DAT_DTO_SUCCESS);
	check_counts(1, 1);
	down();
}

static const struct tap_test tests[] = {
	T(reset, keeps_what_was_flushed),
	T(reset, keeps_the_order),
	T(reset, after_a_rejection),
	T(reset, then_free),
	T(reset, counts_buffers_of_a_shared_queue),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main_programs(argc, argv, tests);
}
