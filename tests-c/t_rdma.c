/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ep_post_rdma_write(3DAT), dat_ep_post_rdma_read(3DAT). What keys and protection zones
 * refuse is in t_access. */
#include "transfer.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* --- RDMA write ----------------------------------------------------------------------------- */

static void rdma_write__arrives(void)
{
	DAT_DTO_COMPLETION_EVENT_DATA dto;
	DAT_LMR_TRIPLET none = { 0 };

	up();
	fill(ma.at, 100000, 1);
	OK(dat_ep_post_recv(p.ep_b, 0, &none, cookie(9), DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_writes(0, 3, 100000, 1, DAT_COMPLETION_DEFAULT_FLAG));
	dto = EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	CHECK_EQ(dto.transfered_length, 100000);
	CHECK(dto.ep_handle == p.ep_a);
#ifdef DAT2
	CHECK_EQ(dto.operation, DAT_DTO_RDMA_WRITE);
#endif
	/* The peer learns of it only through a message behind it. */
	EXPECT_NOTHING(p.b.recv_evd);
	OK(a_sends(0, 0, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 9, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at + 3, 100000, 1));
	CHECK_EQ(mb.at[2], 0);
	CHECK_EQ(mb.at[100003], 0);
	down();
}

static void rdma_write__last_byte_is_last(void)
{
	/* The target polls the end of its buffer; all before it must be there then. */
	up();
	for (unsigned round = 1; round <= 200; round++) {
		size_t size = 64 + round * 61;
		volatile char *last = mb.at + size - 1;
		unsigned long long end = now_us() + SOON;

		fill(ma.at, size - 1, round);
		ma.at[size - 1] = (char)0xa5;
		*last = 0;
		OK(a_writes(0, 0, size, round, DAT_COMPLETION_DEFAULT_FLAG));
		while (*last != (char)0xa5 && now_us() < end)
			sched_yield();
		atomic_thread_fence(memory_order_acquire);
		REQUIRE(*last == (char)0xa5);
		REQUIRE(filled(mb.at, size - 1, round));
		EXPECT_DTO(p.a.request_evd, round, DAT_DTO_SUCCESS);
	}
	down();
}

static void rdma_write__gather(void)
{
	DAT_LMR_TRIPLET iov[3];
	DAT_RMR_TRIPLET remote;
	DAT_LMR_TRIPLET none = { 0 };

	up();
	REQUIRE(p.a.attr.max_iov_segments_per_rdma_write >= 3);
	fill(ma.at + 9000, 6000, 7);
	iov[0] = dx_local(ma.local, ma.at + 9000, 1);
	iov[1] = dx_local(ma.local, ma.at + 9001, 5000);
	iov[2] = dx_local(ma.local, ma.at + 14001, 999);
	remote = dx_remote(mb.remote, mb.at + 77, 6000);
	OK(dat_ep_post_recv(p.ep_b, 0, &none, cookie(9), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_rdma_write(p.ep_a, 3, iov, cookie(1), &remote, DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_sends(0, 0, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 9, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at + 77, 6000, 7));
	down();
}

static void rdma_write__shorter_than_the_range(void)
{
	DAT_LMR_TRIPLET iov, none = { 0 };
	DAT_RMR_TRIPLET remote;

	/* The local data decides; a range smaller than them is a length error. */
	up();
	fill(ma.at, 100, 1);
	OK(dat_ep_post_recv(p.ep_b, 0, &none, cookie(9), DAT_COMPLETION_DEFAULT_FLAG));
	iov = dx_local(ma.local, ma.at, 100);
	remote = dx_remote(mb.remote, mb.at, 1000);
	OK(dat_ep_post_rdma_write(p.ep_a, 1, &iov, cookie(1), &remote,
				  DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_EQ(EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS).transfered_length, 100);
	OK(a_sends(0, 0, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 9, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, 100, 1));
	CHECK_EQ(mb.at[100], 0);
	remote = dx_remote(mb.remote, mb.at, 99);
	CHECK_RET(dat_ep_post_rdma_write(p.ep_a, 1, &iov, cookie(1), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_LENGTH_ERROR);
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
	down();
}

/* --- RDMA read ------------------------------------------------------------------------------ */

static void rdma_read__fetches(void)
{
	DAT_DTO_COMPLETION_EVENT_DATA dto;

	up();
	fill(mb.at + 5, 100000, 1);
	OK(a_reads(9, 5, 100000, 1, DAT_COMPLETION_DEFAULT_FLAG));
	dto = EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	CHECK_EQ(dto.transfered_length, 100000);
	CHECK(dto.ep_handle == p.ep_a);
#ifdef DAT2
	CHECK_EQ(dto.operation, DAT_DTO_RDMA_READ);
#endif
	CHECK(filled(ma.at + 9, 100000, 1));
	CHECK_EQ(ma.at[8], 0);
	CHECK_EQ(ma.at[100009], 0);
	EXPECT_NOTHING(p.b.request_evd);
	down();
}

static void rdma_read__scatter(void)
{
	DAT_LMR_TRIPLET iov[3];
	DAT_RMR_TRIPLET remote;
	DAT_COUNT count;

	up();
	count = p.a.attr.max_iov_segments_per_rdma_read < 3 ?
			p.a.attr.max_iov_segments_per_rdma_read :
			3;
	fill(mb.at, 3000, 3);
	iov[0] = dx_local(ma.local, ma.at, 1000);
	iov[1] = dx_local(ma.local, ma.at + 1000, 1);
	iov[2] = dx_local(ma.local, ma.at + 1001, 4000);
	remote = dx_remote(mb.remote, mb.at, count == 3 ? 3000 : 1000);
	OK(dat_ep_post_rdma_read(p.ep_a, count == 3 ? 3 : 1, iov, cookie(1), &remote,
				 DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	CHECK(filled(ma.at, count == 3 ? 3000 : 1000, 3));
	CHECK_EQ(ma.at[3000], 0);
	down();
}

static void rdma_read__local_buffer_too_small(void)
{
	DAT_LMR_TRIPLET iov;
	DAT_RMR_TRIPLET remote;

	up();
	iov = dx_local(ma.local, ma.at, 99);
	remote = dx_remote(mb.remote, mb.at, 100);
	CHECK_RET(dat_ep_post_rdma_read(p.ep_a, 1, &iov, cookie(1), &remote,
					DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_LENGTH_ERROR);
	EXPECT_NOTHING(p.a.request_evd);
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
	down();
}

static void rdma_read__zero_bytes(void)
{
	up();
	OK(a_reads(0, 0, 0, 1, DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_EQ(EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS).transfered_length, 0);
	OK(a_writes(0, 0, 0, 2, DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_EQ(EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS).transfered_length, 0);
	down();
}

static void rdma_read__more_than_the_read_depth(void)
{
	enum { COUNT = 16 };

	/* Reads beyond the credits wait; nothing breaks. */
	up();
	fill(mb.at, COUNT * 20000, 6);
	for (DAT_UINT64 i = 0; i < COUNT; i++)
		OK(a_reads(i * 20000, i * 20000, 20000, i, DAT_COMPLETION_DEFAULT_FLAG));
	for (DAT_UINT64 i = 0; i < COUNT; i++)
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
	CHECK(filled(ma.at, COUNT * 20000, 6));
	down();
}

static void rdma_read__without_a_read_depth(void)
{
	DAT_EP_ATTR attr = usual_attr();

	/* An endpoint that may have no reads outstanding cannot have one. */
	attr.max_rdma_read_out = 0;
	attr.max_rdma_read_in = 0;
	up_with(&attr);
	fill(mb.at, 8, 1);
	OK(a_reads(0, 0, 8, 1, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_ERR_LOCAL_EP);
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	for (int i = 0; i < 8; i++)
		CHECK_EQ(ma.at[i], 0);
	down();
}

static void rdma_read__fence(void)
{
	/* What was read goes out behind the fence, from the buffer the read fills. */
	up();
	for (unsigned round = 1; round <= 50; round++) {
		fill(mb.at, 50000, round);
		memset(ma.at, 0, 50000);
		OK(b_receives(500000, 50000, 9));
		OK(a_reads(0, 0, 50000, 1, DAT_COMPLETION_DEFAULT_FLAG));
		OK(a_sends(0, 50000, 2, DAT_COMPLETION_BARRIER_FENCE_FLAG));
		EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, 9, DAT_DTO_SUCCESS);
		REQUIRE(filled(mb.at + 500000, 50000, round));
	}
	down();
}

/* --- one-sided operations need nobody at the target ------------------------------------------- */

static void rdma__all_kinds_complete_in_posting_order(void)
{
	up();
	for (DAT_UINT64 i = 0; i < 12; i += 3) {
		OK(b_receives(900000, 1000, i));
		OK(a_reads(0, 0, 100000, i, DAT_COMPLETION_DEFAULT_FLAG));
		OK(a_writes(200000, 200000, 10, i + 1, DAT_COMPLETION_DEFAULT_FLAG));
		OK(a_sends(300000, 10, i + 2, DAT_COMPLETION_DEFAULT_FLAG));
	}
	for (DAT_UINT64 i = 0; i < 12; i++)
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
	down();
}

static const struct tap_test tests[] = {
	T(rdma_write, arrives),
	T(rdma_write, last_byte_is_last),
	T(rdma_write, gather),
	T(rdma_write, shorter_than_the_range),
	T(rdma_read, fetches),
	T(rdma_read, scatter),
	T(rdma_read, local_buffer_too_small),
	T(rdma_read, zero_bytes),
	T(rdma_read, more_than_the_read_depth),
	T(rdma_read, without_a_read_depth),
	T(rdma_read, fence),
	T(rdma, all_kinds_complete_in_posting_order),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
