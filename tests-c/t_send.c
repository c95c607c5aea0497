/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ep_post_send(3DAT), dat_ep_post_recv(3DAT). */
#include "transfer.h"

#include <string.h>

static void post_send__message_arrives(void)
{
	DAT_DTO_COMPLETION_EVENT_DATA dto;

	up();
	fill(ma.at, 5000, 1);
	OK(b_receives(100, 8192, 0x1111222233334444));
	OK(a_sends(0, 5000, 0x5555666677778888, DAT_COMPLETION_DEFAULT_FLAG));
	dto = EXPECT_DTO(p.a.request_evd, 0x5555666677778888, DAT_DTO_SUCCESS);
	CHECK(dto.ep_handle == p.ep_a);
	CHECK_EQ(dto.transfered_length, 5000);
#ifdef DAT2
	CHECK_EQ(dto.operation, DAT_DTO_SEND);
#endif
	dto = EXPECT_DTO(p.b.recv_evd, 0x1111222233334444, DAT_DTO_SUCCESS);
	CHECK(dto.ep_handle == p.ep_b);
	CHECK_EQ(dto.transfered_length, 5000);
#ifdef DAT2
	CHECK_EQ(dto.operation, DAT_DTO_RECEIVE);
#endif
	CHECK(filled(mb.at + 100, 5000, 1));
	/* Nothing beside the message was touched. */
	for (int i = 0; i < 100; i++)
		CHECK_EQ(mb.at[i], 0);
	for (int i = 5100; i < 8292; i++)
		CHECK_EQ(mb.at[i], 0);
	down();
}

static void post_send__gather_and_scatter(void)
{
	static const size_t out[4] = { 1, 700, 3, 5000 }, in[4] = { 13, 1, 4090, 2000 };
	DAT_LMR_TRIPLET gather[4], scatter[4];
	char message[5704], *at;
	DAT_COUNT count;

	up();
	count = 4;
	REQUIRE(p.a.attr.max_iov_segments_per_dto >= count);
	fill(message, sizeof message, 2);
	at = message;
	for (int i = 0; i < count; i++) {
		memcpy(ma.at + 10000 * i, at, out[i]);
		at += out[i];
		gather[i] = dx_local(ma.local, ma.at + 10000 * i, out[i]);
		scatter[i] = dx_local(mb.local, mb.at + 20000 * (3 - i) + 1, in[i]);
	}
	OK(dat_ep_post_recv(p.ep_b, count, scatter, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_send(p.ep_a, count, gather, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	/* The segment lists are the library's copy. */
	memset(gather, 0xff, sizeof gather);
	memset(scatter, 0xff, sizeof scatter);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS).transfered_length, 5704);
	/* Front segments are filled completely. */
	at = message;
	for (int i = 0; i < count; i++) {
		size_t part = in[i], left = (size_t)(message + sizeof message - at);

		if (part > left)
			part = left;
		CHECK(memcmp(mb.at + 20000 * (3 - i) + 1, at, part) == 0);
		at += part;
	}
	down();
}

static void post_send__nothing(void)
{
	DAT_LMR_TRIPLET none = { 0 };

	/* Zero segments, and a segment of zero bytes. */
	up();
	OK(b_receives(0, 100, 1));
	OK(b_receives(0, 100, 2));
	OK(dat_ep_post_recv(p.ep_b, 0, &none, cookie(3), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_send(p.ep_a, 0, &none, cookie(4), DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_sends(0, 0, 5, DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_send(p.ep_a, 0, NULL, cookie(6), DAT_COMPLETION_DEFAULT_FLAG));
	for (DAT_UINT64 i = 1; i <= 3; i++) {
		CHECK_EQ(EXPECT_DTO(p.a.request_evd, i + 3, DAT_DTO_SUCCESS).transfered_length, 0);
		CHECK_EQ(EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS).transfered_length, 0);
	}
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
	down();
}

static void post_send__in_order(void)
{
	enum { COUNT = 1000, DEPTH = 16 };

	up();
	for (DAT_UINT64 i = 0; i < DEPTH; i++)
		OK(b_receives(i * 1024, 1024, i));
	for (DAT_UINT64 i = 0; i < COUNT; i++) {
		size_t slot = i % DEPTH * 1024, size = i % 1000 + 1;
		DAT_DTO_COMPLETION_EVENT_DATA dto;

		fill(ma.at + slot, size, (unsigned)i);
		OK(a_sends(slot, size, i, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		dto = EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
		REQUIRE(dto.transfered_length == size);
		REQUIRE(filled(mb.at + slot, size, (unsigned)i));
		OK(b_receives(slot, 1024, i + DEPTH));
	}
	down();
}

static void post_send__one_mebibyte(void)
{
	up();
	fill(ma.at, SIZE, 4);
	OK(b_receives(0, SIZE, 1));
	OK(a_sends(0, SIZE, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS).transfered_length, SIZE);
	CHECK(filled(mb.at, SIZE, 4));
	down();
}

static void post_send__before_the_receive(void)
{
	/* The receiver is not ready: waited for, not an error. */
	up();
	fill(ma.at, 10000, 5);
	for (DAT_UINT64 i = 0; i < 10; i++)
		OK(a_sends(i * 1000, 1000, i, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_NOTHING(p.b.recv_evd);
	CHECK_EQ(ep_state(p.ep_b), DAT_EP_STATE_CONNECTED);
	for (DAT_UINT64 i = 0; i < 10; i++)
		OK(b_receives(i * 1000, 1000, 100 + i));
	for (DAT_UINT64 i = 0; i < 10; i++) {
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, 100 + i, DAT_DTO_SUCCESS);
	}
	CHECK(filled(mb.at, 10000, 5));
	down();
}

static void post_send__both_ways_at_once(void)
{
	DAT_LMR_TRIPLET iov;

	up();
	fill(ma.at, 100000, 1);
	fill(mb.at + 500000, 100000, 2);
	OK(b_receives(0, 100000, 1));
	iov = dx_local(ma.local, ma.at + 500000, 100000);
	OK(dat_ep_post_recv(p.ep_a, 1, &iov, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_sends(0, 100000, 3, DAT_COMPLETION_DEFAULT_FLAG));
	iov = dx_local(mb.local, mb.at + 500000, 100000);
	OK(dat_ep_post_send(p.ep_b, 1, &iov, cookie(4), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.request_evd, 4, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.recv_evd, 2, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, 100000, 1));
	CHECK(filled(ma.at + 500000, 100000, 2));
	down();
}

static void post_recv__buffer_too_small(void)
{
	DAT_LMR_TRIPLET none = { 0 };

	up();
	OK(b_receives(0, 100, 1));
	OK(b_receives(0, 100, 2));
	OK(dat_ep_post_recv(p.ep_a, 0, &none, cookie(3), DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_sends(0, 101, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_ERR_LOCAL_LENGTH);
	/* The connection is over for both. */
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_ERR_FLUSHED);
	EXPECT_DTO(p.a.recv_evd, 3, DAT_DTO_ERR_FLUSHED);
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_DISCONNECTED);
	CHECK_EQ(ep_state(p.ep_b), DAT_EP_STATE_DISCONNECTED);
	CHECK_EQ(mb.at[100], 0);
	down();
}

static const struct tap_test tests[] = {
	T(post_send, message_arrives),
	T(post_send, gather_and_scatter),
	T(post_send, nothing),
	T(post_send, in_order),
	T(post_send, one_mebibyte),
	T(post_send, before_the_receive),
	T(post_send, both_ways_at_once),
	T(post_recv, buffer_too_small),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
