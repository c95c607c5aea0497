/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The order of the events, the state and the completions of one connection. */
#include "order.h"

/* How many receives are outstanding at the end of a connection. */
enum { FEW = 4 };

static void flushed(DAT_EVD_HANDLE evd, DAT_UINT64 value)
{
	DAT_DTO_COMPLETION_EVENT_DATA data = take(evd).event_data.dto_completion_event_data;

	CHECK_EQ(data.user_cookie.as_64, value);
	CHECK_EQ(data.status, DAT_DTO_ERR_FLUSHED);
}

/* Each end has a receive, and the connection is being made. */
static void begin(void)
{
	OK(recv_nothing(ep_a, 1));
	OK(recv_nothing(ep_b, 2));
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
}

static void replace_both(void)
{
	OK(dat_ep_free(ep_a));
	OK(dat_ep_free(ep_b));
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
}

static void order__established_then_connected(void)
{
	order_up();
	for (int i = 0; i < ROUNDS; i++) {
		begin();
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_CONNECTED);
		OK(send_nothing(ep_a, 3, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_CONNECTED);
		OK(send_nothing(ep_b, 4, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(a.recv_evd, 1, DAT_DTO_SUCCESS);
		EXPECT_DTO(b.recv_evd, 2, DAT_DTO_SUCCESS);
		replace_both();
		while (dat_evd_dequeue(a.request_evd, &(DAT_EVENT){ 0 }) == DAT_SUCCESS)
			;
		while (dat_evd_dequeue(b.request_evd, &(DAT_EVENT){ 0 }) == DAT_SUCCESS)
			;
	}
	ends_down();
}

/* Who finds the state before the event can use the connection, and gets the event once. */
static void order__connected_then_established(void)
{
	order_up();
	for (int i = 0; i < ROUNDS; i++) {
		begin();
		await_state(ep_a, DAT_EP_STATE_CONNECTED);
		OK(send_nothing(ep_a, 3, DAT_COMPLETION_DEFAULT_FLAG));
		await_state(ep_b, DAT_EP_STATE_CONNECTED);
		OK(send_nothing(ep_b, 4, DAT_COMPLETION_DEFAULT_FLAG));
		/* A message is not received before its connection. */
		EXPECT_DTO(a.recv_evd, 1, DAT_DTO_SUCCESS);
		CHECK_EQ(take(a.connect_evd).event_number, DAT_CONNECTION_EVENT_ESTABLISHED);
		EXPECT_DTO(b.recv_evd, 2, DAT_DTO_SUCCESS);
		CHECK_EQ(take(b.connect_evd).event_number, DAT_CONNECTION_EVENT_ESTABLISHED);
		EXPECT_DTO(a.request_evd, 3, DAT_DTO_SUCCESS);
		EXPECT_DTO(b.request_evd, 4, DAT_DTO_SUCCESS);
		replace_both();
	}
	silent(&a);
	silent(&b);
	ends_down();
}

/* The end of a connection: what was outstanding is there, then the event, and the state with it. */
static void ended(const struct rig *rig, DAT_EP_HANDLE ep, DAT_EVENT_NUMBER number)
{
	DAT_BOOLEAN recv_idle = DAT_FALSE, request_idle = DAT_FALSE;
	DAT_EP_STATE state;

	EXPECT(rig->connect_evd, number);
	for (DAT_UINT64 i = 0; i < FEW; i++)
		flushed(rig->recv_evd, i);
	OK(dat_ep_get_status(ep, &state, &recv_idle, &request_idle));
	CHECK_EQ(state, DAT_EP_STATE_DISCONNECTED);
	CHECK(recv_idle && request_idle);
	/* A marker is flushed at once, and is the last. */
	OK(recv_nothing(ep, 90));
	flushed(rig->recv_evd, 90);
	OK(send_nothing(ep, 91, DAT_COMPLETION_SUPPRESS_FLAG));
	flushed(rig->request_evd, 91);
	nothing(rig->recv_evd);
	nothing(rig->request_evd);
	OK(dat_ep_reset(ep));
}

static void ends(DAT_CLOSE_FLAGS flags)
{
	order_up();
	for (int i = 0; i < ROUNDS; i++) {
		for (DAT_UINT64 j = 0; j < FEW; j++) {
			OK(recv_nothing(ep_a, j));
			OK(recv_nothing(ep_b, j));
		}
		join();
		OK(dat_ep_disconnect(i % 2 ? ep_a : ep_b, flags));
		ended(&a, ep_a, DAT_CONNECTION_EVENT_DISCONNECTED);
		ended(&b, ep_b, DAT_CONNECTION_EVENT_DISCONNECTED);
	}
	silent(&a);
	silent(&b);
	ends_down();
}

static void order__flushed_then_disconnected(void)
{
	ends(DAT_CLOSE_ABRUPT_FLAG);
}

static void order__flushed_then_disconnected_gracefully(void)
{
	ends(DAT_CLOSE_GRACEFUL_FLAG);
}

/* A request that fails: its completion, the flushes, then BROKEN. */
static void fails(bool polled)
{
	struct mem mem;

	order_up();
	mem = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	for (int i = 0; i < ROUNDS; i++) {
		DAT_LMR_TRIPLET iov = dx_local(mem.local, mem.at, 8);
		DAT_RMR_TRIPLET remote = dx_remote(mem.remote + 1, mem.at, 8);
		DAT_DTO_COMPLETION_EVENT_DATA data;

		for (DAT_UINT64 j = 0; j < FEW; j++) {
			OK(recv_nothing(ep_a, j));
			OK(recv_nothing(ep_b, j));
		}
		join();
		OK(dat_ep_post_rdma_read(ep_a, 1, &iov, cookie(7), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG));
		if (polled)
			EXPECT_DTO(a.request_evd, 7, DAT_DTO_ERR_REMOTE_ACCESS);
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
		CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
		if (!polled) {
			data = take(a.request_evd).event_data.dto_completion_event_data;
			CHECK_EQ(data.user_cookie.as_64, 7);
			CHECK_EQ(data.status, DAT_DTO_ERR_REMOTE_ACCESS);
		}
		for (DAT_UINT64 j = 0; j < FEW; j++)
			flushed(a.recv_evd, j);
		OK(dat_ep_reset(ep_a));
		ended(&b, ep_b, DAT_CONNECTION_EVENT_BROKEN);
	}
	free_mem(&mem);
	ends_down();
}

static void order__failed_then_broken(void)
{
	fails(false);
}

static void order__failed_and_polled_then_broken(void)
{
	fails(true);
}

/* One EVD for all: nothing of the connection comes behind its end. */
static void order__completions_before_the_end_on_one_evd(void)
{
	enum { DEPTH = 8 };
	DAT_EVD_FLAGS flags = DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG;

	order_up();
	b.recv_evd = b.request_evd = b.connect_evd = make_evd(b.ia, 64, flags);
	for (int i = 0; i < ROUNDS; i++) {
		int recvs = 0, requests = 0;
		DAT_EVENT event;

		OK(dat_ep_free(ep_b));
		ep_b = make_ep(&b, NULL);
		for (DAT_UINT64 j = 0; j < DEPTH; j++) {
			OK(recv_nothing(ep_b, j));
			OK(recv_nothing(ep_a, j));
		}
		join();
		for (DAT_UINT64 j = 0; j < DEPTH / 2; j++) {
			OK(send_nothing(ep_a, j, DAT_COMPLETION_SUPPRESS_FLAG));
			OK(send_nothing(ep_b, 100 + j, DAT_COMPLETION_DEFAULT_FLAG));
		}
		OK(dat_ep_disconnect(i % 2 ? ep_a : ep_b, DAT_CLOSE_ABRUPT_FLAG));
		for (;;) {
			DAT_COUNT more;

			OK(dat_evd_wait(b.recv_evd, SOON, 1, &event, &more));
			if (event.event_number != DAT_DTO_COMPLETION_EVENT)
				break;
			if (event.event_data.dto_completion_event_data.user_cookie.as_64 < 100)
				recvs++;
			else
				requests++;
		}
		CHECK_EQ(event.event_number, DAT_CONNECTION_EVENT_DISCONNECTED);
		CHECK_EQ(recvs, DEPTH);
		CHECK_EQ(requests, DEPTH / 2);
		nothing(b.recv_evd);
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_ep_reset(ep_a));
	}
	ends_down();
}

static const struct tap_test tests[] = {
	T(order, established_then_connected),
	T(order, connected_then_established),
	T(order, flushed_then_disconnected),
	T(order, flushed_then_disconnected_gracefully),
	T(order, failed_then_broken),
	T(order, failed_and_polled_then_broken),
	T(order, completions_before_the_end_on_one_evd),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
