/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ep_disconnect(3DAT), and the flushes that the end of a connection brings. */
#include "two_ends.h"

static void up_connected(void)
{
	ends_up();
	connect_eps(&a, ep_a, &b, ep_b);
}

static void ep_disconnect__unconnected(void)
{
	ends_up();
	CHECK_RET(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_STATE);
	CHECK_RET(dat_ep_disconnect(ep_a, DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_STATE);
	EXPECT_NOTHING(a.connect_evd);
	ends_down();
}

static void ep_disconnect__flags_unknown(void)
{
	up_connected();
	CHECK_RET(dat_ep_disconnect(ep_a, (DAT_CLOSE_FLAGS)4), DAT_INVALID_PARAMETER);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_CONNECTED);
	ends_down();
}

static void end_both(DAT_CLOSE_FLAGS flags)
{
	DAT_CONNECTION_EVENT_DATA event;

	OK(dat_ep_disconnect(ep_a, flags));
	event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED)
			.event_data.connect_event_data;
	CHECK(event.ep_handle == ep_a);
	event = EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED)
			.event_data.connect_event_data;
	CHECK(event.ep_handle == ep_b);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_DISCONNECTED);
	/* Once more is no error and brings no event. */
	CHECK_RET(dat_ep_disconnect(ep_a, flags), DAT_SUCCESS);
	CHECK_RET(dat_ep_disconnect(ep_b, flags), DAT_SUCCESS);
	EXPECT_NOTHING(a.connect_evd);
	EXPECT_NOTHING(b.connect_evd);
	/* An end that was asked for is no error. */
	EXPECT_NOTHING(a.async_evd);
	EXPECT_NOTHING(b.async_evd);
}

static void ep_disconnect__abrupt(void)
{
	up_connected();
	end_both(DAT_CLOSE_ABRUPT_FLAG);
	ends_down();
}

static void ep_disconnect__graceful(void)
{
	up_connected();
	end_both(DAT_CLOSE_GRACEFUL_FLAG);
	ends_down();
}

static void ep_disconnect__both_sides_at_once(void)
{
	up_connected();
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	OK(dat_ep_disconnect(ep_b, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_NOTHING(a.connect_evd);
	EXPECT_NOTHING(b.connect_evd);
	ends_down();
}

static void ep_disconnect__gives_up_establishment(void)
{
	DAT_CR_HANDLE cr;

	ends_up();
	OK(recv_nothing(ep_a, 1));
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	CHECK_RET(dat_ep_disconnect(ep_a, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
	EXPECT_DTO(a.recv_evd, 1, DAT_DTO_ERR_FLUSHED);
	if (dat_cr_accept(cr, ep_b, 0, NULL) == DAT_SUCCESS)
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
	EXPECT_NOTHING(a.connect_evd);
	ends_down();
}

/* A device may keep what it has of the attempt until the peer answers. */
static void ep_disconnect__waits_for_nobody(void)
{
	unsigned long long begin;
	DAT_EP_HANDLE other_a, other_b;

	ends_up();
	other_a = make_ep(&a, NULL);
	other_b = make_ep(&b, NULL);
	OK(recv_nothing(ep_a, 1));
	OK(try_connect(ep_a, &b, qualifier, SOON));
	await_request(&b);
	begin = now_us();
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_DTO(a.recv_evd, 1, DAT_DTO_ERR_FLUSHED);
	/* Neither others with the same queues nor the endpoint itself have to wait. */
	connect_eps(&a, other_a, &b, other_b);
	OK(dat_ep_reset(ep_a));
	connect_eps(&a, ep_a, &b, ep_b);
	CHECK(now_us() - begin < AT_ONCE);
	ends_down();
}

static void ep_disconnect__graceful_finishes_requests(void)
{
	enum { COUNT = 10 };
	struct mem from, to;

	ends_up();
	from = make_mem(&a, COUNT * 65536, DAT_MEM_PRIV_ALL_FLAG);
	to = make_mem(&b, COUNT * 65536, DAT_MEM_PRIV_ALL_FLAG);
	connect_eps(&a, ep_a, &b, ep_b);
	fill(from.at, from.size, 3);
	for (DAT_UINT64 i = 0; i < COUNT; i++) {
		DAT_LMR_TRIPLET recv = dx_local(to.local, to.at + i * 65536, 65536);
		DAT_LMR_TRIPLET send = dx_local(from.local, from.at + i * 65536, 65536);

		OK(dat_ep_post_recv(ep_b, 1, &recv, cookie(i), DAT_COMPLETION_DEFAULT_FLAG));
		OK(dat_ep_post_send(ep_a, 1, &send, cookie(100 + i), DAT_COMPLETION_DEFAULT_FLAG));
	}
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	for (DAT_UINT64 i = 0; i < COUNT; i++) {
		EXPECT_DTO(a.request_evd, 100 + i, DAT_DTO_SUCCESS);
		EXPECT_DTO(b.recv_evd, i, DAT_DTO_SUCCESS);
	}
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK(filled(to.at, to.size, 3));
	ends_down();
}

/* Messages that are under way when the sender ends the connection: none has a receive. */
enum { UNDER_WAY = 3 };

static void up_with_messages_under_way(void)
{
	up_connected();
	for (DAT_UINT64 i = 0; i < UNDER_WAY; i++)
		OK(send_nothing(ep_a, 100 + i, DAT_COMPLETION_DEFAULT_FLAG));
}

/* A receiver may take longer than any time limit of a network. */
static void ep_disconnect__graceful_waits_for_the_receiver(void)
{
	up_with_messages_under_way();
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	/* Once more changes nothing. */
	CHECK_RET(dat_ep_disconnect(ep_a, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	pause_us(1500 * 1000);
	EXPECT_NOTHING(a.connect_evd);
	EXPECT_NOTHING(b.connect_evd);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECT_PENDING);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_CONNECTED);
	for (DAT_UINT64 i = 0; i < UNDER_WAY; i++) {
		OK(recv_nothing(ep_b, i));
		EXPECT_DTO(b.recv_evd, i, DAT_DTO_SUCCESS);
		EXPECT_DTO(a.request_evd, 100 + i, DAT_DTO_SUCCESS);
	}
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	ends_down();
}

static void ep_disconnect__abrupt_waits_for_nobody(void)
{
	up_with_messages_under_way();
	end_both(DAT_CLOSE_ABRUPT_FLAG);
	ends_down();
}

/* The abrupt one ends at once what the graceful one waits for. */
static void ep_disconnect__abrupt_after_graceful_with_messages(void)
{
	up_with_messages_under_way();
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT_NOTHING(a.connect_evd);
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	ends_down();
}

static void ep_disconnect__flushes_in_order(void)
{
	up_connected();
	for (DAT_UINT64 i = 0; i < 8; i++) {
		OK(recv_nothing(ep_a, i));
		OK(recv_nothing(ep_b, 50 + i));
	}
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	for (DAT_UINT64 i = 0; i < 8; i++) {
		DAT_DTO_COMPLETION_EVENT_DATA dto;

		dto = EXPECT_DTO(a.recv_evd, i, DAT_DTO_ERR_FLUSHED);
		CHECK(dto.ep_handle == ep_a);
		dto = EXPECT_DTO(b.recv_evd, 50 + i, DAT_DTO_ERR_FLUSHED);
		CHECK(dto.ep_handle == ep_b);
	}
	EXPECT_NOTHING(a.recv_evd);
	EXPECT_NOTHING(b.recv_evd);
	ends_down();
}

enum { PIECE = 1 << 20, DEPTH = 15 };

/* End a posts requests of every kind, with the cookies 0 to DEPTH - 1. The first is a send that finds
 * no receive, and together they are more than what can be under way. */
static void post_more_than_can_be_under_way(struct mem *from, struct mem *to)
{
	*from = make_mem(&a, PIECE, DAT_MEM_PRIV_ALL_FLAG);
	*to = make_mem(&b, PIECE, DAT_MEM_PRIV_ALL_FLAG);
	for (DAT_UINT64 i = 0; i < DEPTH; i++) {
		DAT_LMR_TRIPLET local = dx_local(from->local, from->at, PIECE);
		DAT_RMR_TRIPLET remote = dx_remote(to->remote, to->at, PIECE);
		/* Suppression hides success only. */
		DAT_COMPLETION_FLAGS flags =
			i % 4 == 3 ? DAT_COMPLETION_SUPPRESS_FLAG : DAT_COMPLETION_DEFAULT_FLAG;

		if (i % 3 == 0)
			OK(dat_ep_post_send(ep_a, 1, &local, cookie(i), flags));
		else if (i % 3 == 1)
			OK(dat_ep_post_rdma_write(ep_a, 1, &local, cookie(i), &remote, flags));
		else
			OK(dat_ep_post_rdma_read(ep_a, 1, &local, cookie(i), &remote, flags));
	}
}

/* The requests complete in the order of posting. The first read waits for the receive of the send:
 * what is before it may be done, and the others are flushed. */
static void flushed_in_order(void)
{
	bool flushed = false;

	for (DAT_UINT64 i = 0; i < DEPTH; i++) {
		DAT_DTO_COMPLETION_EVENT_DATA dto;

		dto = EXPECT(a.request_evd, DAT_DTO_COMPLETION_EVENT)
			      .event_data.dto_completion_event_data;
		CHECK(dto.ep_handle == ep_a);
		REQUIRE(dto.user_cookie.as_64 == i);
		flushed = flushed || i >= 2 || dto.status != DAT_DTO_SUCCESS;
		CHECK_EQ(dto.status, flushed ? DAT_DTO_ERR_FLUSHED : DAT_DTO_SUCCESS);
	}
	EXPECT_NOTHING(a.request_evd);
}

static void requests_are_flushed(DAT_EP_HANDLE *of_whom)
{
	struct mem from, to;

	up_connected();
	post_more_than_can_be_under_way(&from, &to);
	OK(dat_ep_disconnect(*of_whom, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	flushed_in_order();
	ends_down();
}

static void ep_disconnect__flushes_requests_in_order(void)
{
	requests_are_flushed(&ep_a);
}

static void ep_disconnect__of_the_peer_flushes_requests_in_order(void)
{
	requests_are_flushed(&ep_b);
}

static void ep_disconnect__posts_are_flushed_at_once(void)
{
	struct mem mem;
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;

	up_connected();
	mem = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	local = dx_local(mem.local, mem.at, 64);
	remote = dx_remote(mem.remote, mem.at, 64);
	end_both(DAT_CLOSE_ABRUPT_FLAG);
	OK(recv_nothing(ep_a, 1));
	EXPECT_DTO(a.recv_evd, 1, DAT_DTO_ERR_FLUSHED);
	OK(send_nothing(ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 2, DAT_DTO_ERR_FLUSHED);
	/* Suppression hides success only. */
	OK(send_nothing(ep_a, 3, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_DTO(a.request_evd, 3, DAT_DTO_ERR_FLUSHED);
	OK(dat_ep_post_rdma_write(ep_a, 1, &local, cookie(4), &remote,
				  DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 4, DAT_DTO_ERR_FLUSHED);
	OK(dat_ep_post_rdma_read(ep_a, 1, &local, cookie(5), &remote, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 5, DAT_DTO_ERR_FLUSHED);
	ends_down();
}

static void ep_disconnect__nothing_of_the_past_after_reset(void)
{
	up_connected();
	for (DAT_UINT64 i = 0; i < 4; i++)
		OK(recv_nothing(ep_a, i));
	end_both(DAT_CLOSE_ABRUPT_FLAG);
	/* The marker comes behind all others. */
	OK(recv_nothing(ep_a, 99));
	for (DAT_UINT64 i = 0; i < 4; i++)
		EXPECT_DTO(a.recv_evd, i, DAT_DTO_ERR_FLUSHED);
	EXPECT_DTO(a.recv_evd, 99, DAT_DTO_ERR_FLUSHED);
	OK(dat_ep_reset(ep_a));
	OK(dat_ep_reset(ep_b));
	connect_eps(&a, ep_a, &b, ep_b);
	EXPECT_NOTHING(a.recv_evd);
	ends_down();
}

static const struct tap_test tests[] = {
	T(ep_disconnect, unconnected),
	T(ep_disconnect, flags_unknown),
	T(ep_disconnect, abrupt),
	T(ep_disconnect, graceful),
	T(ep_disconnect, both_sides_at_once),
	T(ep_disconnect, gives_up_establishment),
	T(ep_disconnect, waits_for_nobody),
	T(ep_disconnect, graceful_finishes_requests),
	T(ep_disconnect, graceful_waits_for_the_receiver),
	T(ep_disconnect, abrupt_waits_for_nobody),
	T(ep_disconnect, abrupt_after_graceful_with_messages),
	T(ep_disconnect, flushes_in_order),
	T(ep_disconnect, flushes_requests_in_order),
	T(ep_disconnect, of_the_peer_flushes_requests_in_order),
	T(ep_disconnect, posts_are_flushed_at_once),
	T(ep_disconnect, nothing_of_the_past_after_reset),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
