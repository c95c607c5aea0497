/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sizes and watermarks of shared receive queues: dat_srq_resize(3DAT), dat_srq_set_lw(3DAT),
 * dat_ep_set_watermark(3DAT), dat_ep_recv_query(3DAT). End b has the queue. */
#include "srq.h"

static void srq_resize__keeps_what_is_there(void)
{
	queue_up();
	for (DAT_UINT64 i = 0; i < ROOM; i++)
		OK(post_srq(i));
	CHECK_RET(dat_srq_resize(srq, ROOM - 1), DAT_INVALID_STATE);
	CHECK_RET(dat_srq_resize(srq, 2 * ROOM), DAT_SUCCESS);
	CHECK(query_srq().max_recv_dtos >= 2 * ROOM);
	for (DAT_UINT64 i = ROOM; i < 2 * ROOM; i++)
		CHECK_RET(post_srq(i), DAT_SUCCESS);
	check_counts(2 * ROOM, 2 * ROOM);
	CHECK_RET(dat_srq_resize(srq, 0), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_srq_resize(srq, -1), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_srq_resize(srq, p.b.attr.max_recv_per_srq + 1), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_srq_resize(DAT_HANDLE_NULL, ROOM), DAT_INVALID_HANDLE);
	down();
}

/* Messages arrive before and after, and those that wait for a buffer stay. */
static void srq_resize__while_messages_arrive(void)
{
	srq_up();
	for (DAT_UINT64 i = 0; i < ROOM; i++)
		OK(post_srq(i));
	for (DAT_UINT64 i = 0; i < ROOM + 5; i++) {
		fill(ma.at + 100 * i, 100, (unsigned)i);
		OK(a_sends(100 * i, 100, i, DAT_COMPLETION_SUPPRESS_FLAG));
		if (i == 3)
			CHECK_RET(dat_srq_resize(srq, 2 * ROOM), DAT_SUCCESS);
	}
	for (DAT_UINT64 i = ROOM; i < ROOM + 5; i++)
		OK(post_srq(i));
	for (DAT_UINT64 i = 0; i < ROOM + 5; i++) {
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
		CHECK(filled(mb.at + 100 * i, 100, (unsigned)i));
	}
	CHECK_RET(dat_srq_resize(srq, 1), DAT_SUCCESS);
	OK(post_srq(0));
	OK(a_sends(0, 100, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_DTO(p.b.recv_evd, 0, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(p.b.recv_evd);
	down();
}

/* A completion that was not taken still counts. */
static void srq_resize__counts_what_was_not_dequeued(void)
{
	srq_up();
	OK(post_srq(0));
	OK(post_srq(1));
	OK(a_sends(0, 10, 1, DAT_COMPLETION_DEFAULT_FLAG));
	await_available(1);
	CHECK_RET(dat_srq_resize(srq, 1), DAT_INVALID_STATE);
	EXPECT_DTO(p.b.recv_evd, 0, DAT_DTO_SUCCESS);
	CHECK_RET(dat_srq_resize(srq, 1), DAT_SUCCESS);
	down();
}

static void expect_low_watermark(void)
{
	expect_async(&p.b, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR, srq,
		     DAT_SRQ_LOW_WATERMARK_EVENT);
}

static void srq_set_lw__tells_once(void)
{
	srq_up();
	for (DAT_UINT64 i = 0; i < 4; i++)
		OK(post_srq(i));
	CHECK_RET(dat_srq_set_lw(srq, 3), DAT_SUCCESS);
	CHECK_EQ(query_srq().low_watermark, 3);
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_DTO(p.b.recv_evd, 0, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(p.b.async_evd);
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_SUCCESS);
	expect_low_watermark();
	EXPECT_NOTHING(p.b.async_evd);
	/* At once. */
	CHECK_RET(dat_srq_set_lw(srq, 2), DAT_SUCCESS);
	expect_low_watermark();
	CHECK_RET(dat_srq_set_lw(srq, 0), DAT_SUCCESS);
	EXPECT_NOTHING(p.b.async_evd);
	down();
}

/* The messages that have taken the buffers may be in the EVD still. */
static void srq_set_lw__below_before_a_dequeue(void)
{
	srq_up();
	for (DAT_UINT64 i = 0; i < 4; i++)
		OK(post_srq(i));
	for (DAT_UINT64 i = 0; i < 4; i++) {
		OK(a_sends(0, 10, i, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
	}
	OK(dat_srq_set_lw(srq, 2));
	expect_low_watermark();
	for (DAT_UINT64 i = 0; i < 4; i++)
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(p.b.async_evd);
	down();
}

static void srq_set_lw__arguments(void)
{
	queue_up();
	CHECK_RET(dat_srq_set_lw(srq, query_srq().max_recv_dtos + 1), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_srq_set_lw(srq, -1), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_srq_set_lw(DAT_HANDLE_NULL, 1), DAT_INVALID_HANDLE);
	/* As many as the queue holds: all of them are missing. */
	CHECK_RET(dat_srq_set_lw(srq, query_srq().max_recv_dtos), DAT_SUCCESS);
	expect_low_watermark();
	for (DAT_UINT64 i = 0; i < 5; i++)
		OK(post_srq(i));
	CHECK_RET(dat_srq_set_lw(srq, 5), DAT_SUCCESS);
	EXPECT_NOTHING(p.b.async_evd);
	down();
}

/* The mark is a bound of its own: there are fewer buffers than it says. */
static void srq_set_lw__limits_the_size(void)
{
	queue_up();
	OK(post_srq(0));
	OK(post_srq(1));
	OK(dat_srq_set_lw(srq, 2));
	CHECK_RET(dat_srq_resize(srq, 2), DAT_SUCCESS);
	OK(dat_srq_resize(srq, ROOM));
	OK(dat_srq_set_lw(srq, 5));
	CHECK_RET(dat_srq_resize(srq, 4), DAT_INVALID_STATE);
	CHECK(query_srq().max_recv_dtos >= ROOM);
	CHECK_EQ(query_srq().low_watermark, 5);
	CHECK_RET(dat_srq_resize(srq, 5), DAT_SUCCESS);
	OK(dat_srq_set_lw(srq, 0));
	CHECK_RET(dat_srq_resize(srq, 4), DAT_SUCCESS);
	down();
}

/* A mark whose event has not been raised yet is replaced: only the new one counts. */
static void srq_set_lw__replaced(void)
{
	srq_up();
	for (DAT_UINT64 i = 0; i < 4; i++)
		OK(post_srq(i));
	OK(dat_srq_set_lw(srq, 4));
	OK(dat_srq_set_lw(srq, 2));
	CHECK_EQ(query_srq().low_watermark, 2);
	for (DAT_UINT64 i = 0; i < 2; i++) {
		OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
	}
	EXPECT_NOTHING(p.b.async_evd);
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_SUCCESS);
	expect_low_watermark();
	EXPECT_NOTHING(p.b.async_evd);
	down();
}

static void ep_set_watermark__soft_and_hard(void)
{
	srq_up();
	for (DAT_UINT64 i = 0; i < 4; i++)
		OK(post_srq(i));
	CHECK_RET(dat_ep_set_watermark(p.ep_b, 0, DAT_WATERMARK_INFINITE), DAT_SUCCESS);
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_DTO(p.b.recv_evd, 0, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	expect_async(&p.b, DAT_ASYNC_ERROR_EP_BROKEN, p.ep_b, DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT);
	EXPECT_NOTHING(p.b.async_evd);
	CHECK_RET(dat_ep_set_watermark(p.ep_b, DAT_WATERMARK_INFINITE, 0), DAT_SUCCESS);
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_ERR_FLUSHED);
	check_counts(1, 1);
	down();
}

/* Skips the test where the device does not count the buffers of an endpoint. */
static void set_marks(DAT_COUNT soft, DAT_COUNT hard)
{
	DAT_RETURN ret = dat_ep_set_watermark(p.ep_b, soft, hard);

	if (DAT_GET_TYPE(ret) == DAT_MODEL_NOT_SUPPORTED)
		tap_unsupported("no watermarks");
	OK(ret);
}

static DAT_COUNT soft_mark(void)
{
	DAT_EP_PARAM param;

	OK(dat_ep_query(p.ep_b, DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW, &param));
	return param.ep_attr.srq_soft_hw;
}

/* One message, which takes one buffer of the queue. */
static void receive_one(DAT_UINT64 number)
{
	OK(post_srq(number));
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_DTO(p.b.recv_evd, number, DAT_DTO_SUCCESS);
}

/* In any state: what is set before the connection holds in it, and after it for the next one. Each call
 * arms the soft mark anew, and an infinite one disarms it. */
static void ep_set_watermark__in_any_state(void)
{
	queue_up();
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_srq_ep(&p.b, NULL);
	CHECK_EQ(soft_mark(), DAT_WATERMARK_INFINITE);
	set_marks(0, DAT_WATERMARK_INFINITE);
	CHECK_EQ(soft_mark(), 0);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	EXPECT_NOTHING(p.b.async_evd);
	receive_one(0);
	expect_async(&p.b, DAT_ASYNC_ERROR_EP_BROKEN, p.ep_b, DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT);
	receive_one(1);
	EXPECT_NOTHING(p.b.async_evd);
	/* Again, after its event. */
	set_marks(0, DAT_WATERMARK_INFINITE);
	receive_one(2);
	expect_async(&p.b, DAT_ASYNC_ERROR_EP_BROKEN, p.ep_b, DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT);
	/* Replaced before its event: by a mark that is not exceeded, and by none. */
	set_marks(0, DAT_WATERMARK_INFINITE);
	set_marks(3, 3);
	CHECK_EQ(soft_mark(), 3);
	receive_one(3);
	set_marks(0, 0);
	set_marks(DAT_WATERMARK_INFINITE, DAT_WATERMARK_INFINITE);
	CHECK_EQ(soft_mark(), DAT_WATERMARK_INFINITE);
	receive_one(4);
	EXPECT_NOTHING(p.b.async_evd);
	EXPECT_NOTHING(p.b.connect_evd);
	OK(dat_ep_disconnect(p.ep_b, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	expect_async(&p.b, DAT_ASYNC_ERROR_EP_BROKEN, p.ep_b, DAT_EP_TRANSFER_TO_ERROR);
	set_marks(0, DAT_WATERMARK_INFINITE);
	OK(dat_ep_reset(p.ep_a));
	OK(dat_ep_reset(p.ep_b));
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	receive_one(5);
	expect_async(&p.b, DAT_ASYNC_ERROR_EP_BROKEN, p.ep_b, DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT);
	down();
}

static void ep_modify__soft_high_watermark(void)
{
	DAT_EP_PARAM param = { 0 };
	DAT_RETURN ret;

	queue_up();
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_srq_ep(&p.b, NULL);
	param.ep_attr.srq_soft_hw = 0;
	ret = dat_ep_modify(p.ep_b, DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW, &param);
	if (DAT_GET_TYPE(ret) == DAT_MODEL_NOT_SUPPORTED)
		tap_unsupported("no watermarks");
	OK(ret);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	for (DAT_UINT64 i = 0; i < 3; i++)
		OK(post_srq(i));
	EXPECT_NOTHING(p.b.async_evd);
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	expect_async(&p.b, DAT_ASYNC_ERROR_EP_BROKEN, p.ep_b, DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT);
	EXPECT_DTO(p.b.recv_evd, 0, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	down();
}

static void ep_set_watermark__arguments(void)
{
	srq_up();
	CHECK_RET(dat_ep_set_watermark(p.ep_b, -7, 1), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_set_watermark(p.ep_b, 1, -7), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_set_watermark(DAT_HANDLE_NULL, 1, 1), DAT_INVALID_HANDLE);
	CHECK_RET(dat_ep_set_watermark(p.ep_a, 1, 1), DAT_MODEL_NOT_SUPPORTED);
	CHECK_RET(dat_ep_set_watermark(p.ep_b, 1, 1), DAT_SUCCESS);
	down();
}

static void ep_recv_query__counts(void)
{
	DAT_COUNT count = -9, span = -9;

	srq_up();
	/* Without an SRQ buffers are the endpoint's from the post on. */
	CHECK_RET(dat_ep_recv_query(p.ep_a, &count, &span), DAT_SUCCESS);
	CHECK_EQ(count, 0);
	CHECK_EQ(span, 0);
	for (DAT_UINT64 i = 0; i < 3; i++) {
		DAT_LMR_TRIPLET iov = dx_local(ma.local, ma.at, 10);

		OK(dat_ep_post_recv(p.ep_a, 1, &iov, cookie(i), DAT_COMPLETION_DEFAULT_FLAG));
	}
	CHECK_RET(dat_ep_recv_query(p.ep_a, &count, &span), DAT_SUCCESS);
	CHECK_EQ(count, 3);
	CHECK(span >= count);
	/* With one only those it has taken. */
	OK(post_srq(0));
	CHECK_RET(dat_ep_recv_query(p.ep_b, &count, NULL), DAT_SUCCESS);
	CHECK_EQ(count, 0);
	CHECK_RET(dat_ep_recv_query(p.ep_b, NULL, &span), DAT_SUCCESS);
	CHECK_EQ(span, 0);
	CHECK_RET(dat_ep_recv_query(DAT_HANDLE_NULL, &count, &span), DAT_INVALID_HANDLE);
	down();
}

static const struct tap_test tests[] = {
	T(srq_resize, keeps_what_is_there),
	T(srq_resize, while_messages_arrive),
	T(srq_resize, counts_what_was_not_dequeued),
	T(srq_set_lw, tells_once),
	T(srq_set_lw, below_before_a_dequeue),
	T(srq_set_lw, arguments),
	T(srq_set_lw, limits_the_size),
	T(srq_set_lw, replaced),
	T(ep_set_watermark, soft_and_hard),
	T(ep_set_watermark, in_any_state),
	T(ep_modify, soft_high_watermark),
	T(ep_set_watermark, arguments),
	T(ep_recv_query, counts),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
