/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Windows with zero-based addresses, and windows of regions that have them: dat_rmr_bind with DAT_VA_TYPE_ZB.
 * DAT 2.0 only. Side b binds, side a is the peer who uses the keys. */
#include "zero_based.h"

#include <string.h>

#define READ DAT_MEM_PRIV_REMOTE_READ_FLAG
#define WRITE DAT_MEM_PRIV_REMOTE_WRITE_FLAG
#define BOTH ((DAT_MEM_PRIV_FLAGS)(READ | WRITE))
#define USUAL DAT_COMPLETION_DEFAULT_FLAG

enum {
	/* Where a window begins in its region, and its bytes. */
	START = 3000,
	LENGTH = 70000,
};

static DAT_RMR_HANDLE rmr;

/* The region of side b with addresses of this type, and the address of a byte of it. */
static const struct mem *region(DAT_VA_TYPE type)
{
	return type == DAT_VA_TYPE_ZB ? &zb : &mb;
}

static DAT_VADDR address(DAT_VA_TYPE type, size_t at)
{
	return type == DAT_VA_TYPE_ZB ? at : (uintptr_t)(mb.at + at);
}

static DAT_RETURN binds(DAT_VA_TYPE of_region, DAT_VADDR at, size_t size, DAT_VA_TYPE type,
			DAT_MEM_PRIV_FLAGS privileges, DAT_RMR_CONTEXT *key)
{
	DAT_LMR_TRIPLET range = local_at(region(of_region)->local, at, size);

	return dat_rmr_bind(rmr, region(of_region)->lmr, &range, privileges, type, p.ep_b,
			    cookie(7), USUAL, key);
}

/* Binds the window to LENGTH bytes from START on. */
static DAT_RMR_CONTEXT bound(DAT_VA_TYPE of_region, DAT_VA_TYPE type)
{
	DAT_RMR_CONTEXT key = 0;

	OK(binds(of_region, address(of_region, START), LENGTH, type, BOTH, &key));
	EXPECT(p.b.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	return key;
}

/* Writes, and reads what is written to the middle of za. */
static DAT_RETURN writes(DAT_RMR_CONTEXT key, DAT_VADDR to, size_t size)
{
	DAT_LMR_TRIPLET local = local_at(za.local, 0, size);
	DAT_RMR_TRIPLET remote = remote_at(key, to, size);

	return dat_ep_post_rdma_write(p.ep_a, 1, &local, cookie(1), &remote, USUAL);
}

static DAT_RETURN reads(DAT_RMR_CONTEXT key, DAT_VADDR from, size_t size)
{
	DAT_LMR_TRIPLET local = local_at(za.local, SIZE / 2, size);
	DAT_RMR_TRIPLET remote = remote_at(key, from, size);

	return dat_ep_post_rdma_read(p.ep_a, 1, &local, cookie(2), &remote, USUAL);
}

/* The peer writes and reads by the key, at so many bytes of the window, whose first address is this. */
static void used(DAT_RMR_CONTEXT key, const struct mem *mem, DAT_VADDR first, size_t at,
		 size_t size)
{
	fill(za.at, size, (unsigned)(at + size));
	OK(writes(key, first + at, size));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	CHECK(filled(mem->at + START + at, size, (unsigned)(at + size)));
	OK(reads(key, first + at, size));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK(filled(za.at + SIZE / 2, size, (unsigned)(at + size)));
}

/* All of a window, and its ends. */
static void used_everywhere(DAT_VA_TYPE of_region, DAT_VA_TYPE type)
{
	DAT_RMR_CONTEXT key;
	DAT_VADDR first;

	rmr = zero_based_up_to_bind();
	key = bound(of_region, type);
	first = type == DAT_VA_TYPE_ZB ? 0 : address(of_region, START);
	used(key, region(of_region), first, 0, LENGTH);
	used(key, region(of_region), first, 0, 8);
	used(key, region(of_region), first, LENGTH / 2, 1000);
	used(key, region(of_region), first, LENGTH - 1, 1);
	CHECK(!region(of_region)->at[START - 1] && !region(of_region)->at[START + LENGTH]);
	down();
}

static void zero_based_window__of_a_region(void)
{
	used_everywhere(DAT_VA_TYPE_VA, DAT_VA_TYPE_ZB);
}

static void zero_based_window__of_a_zero_based_region(void)
{
	used_everywhere(DAT_VA_TYPE_ZB, DAT_VA_TYPE_ZB);
}

/* Its addresses are those of the region. */
static void zero_based_window__with_those_of_its_region(void)
{
	used_everywhere(DAT_VA_TYPE_ZB, DAT_VA_TYPE_VA);
}

static void zero_based_window__query(void)
{
	DAT_RMR_CONTEXT key, next;
	DAT_RMR_PARAM param;

	rmr = zero_based_up_to_bind();
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK_EQ(param.va_type, DAT_VA_TYPE_VA);
	key = bound(DAT_VA_TYPE_VA, DAT_VA_TYPE_ZB);
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK_EQ(param.va_type, DAT_VA_TYPE_ZB);
	CHECK_EQ(param.rmr_context, key);
	/* The range is one of the region, by its addresses. */
	CHECK_EQ(param.lmr_triplet.virtual_address, address(DAT_VA_TYPE_VA, START));
	CHECK_EQ(param.lmr_triplet.segment_length, LENGTH);
	next = bound(DAT_VA_TYPE_ZB, DAT_VA_TYPE_VA);
	CHECK(next != key);
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK_EQ(param.va_type, DAT_VA_TYPE_VA);
	CHECK_EQ(param.lmr_triplet.virtual_address, START);
	OK(binds(DAT_VA_TYPE_ZB, 0, 0, DAT_VA_TYPE_ZB, BOTH, NULL));
	EXPECT(p.b.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK_EQ(param.va_type, DAT_VA_TYPE_VA);
	CHECK_EQ(param.rmr_context, 0);
	down();
}

static void zero_based_window__arguments(void)
{
	static const unsigned types[] = { 2, 7, 0x80000000, 0xffffffff };

	rmr = zero_based_up_to_bind();
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		CHECK_RET(binds(DAT_VA_TYPE_VA, address(DAT_VA_TYPE_VA, 0), 16,
				(DAT_VA_TYPE)types[i], BOTH, NULL),
			  DAT_INVALID_PARAMETER);
	for (int i = 0; i < WRONG_ADDRESSES; i++) {
		DAT_VADDR wrong = wrong_address(i, (uintptr_t)zb.at, SIZE);

		CHECK_RET(binds(DAT_VA_TYPE_ZB, wrong, 16, DAT_VA_TYPE_ZB, BOTH, NULL),
			  DAT_INVALID_PARAMETER);
		CHECK_RET(binds(DAT_VA_TYPE_ZB, wrong, 16, DAT_VA_TYPE_VA, BOTH, NULL),
			  DAT_INVALID_PARAMETER);
	}
	/* The range of a region with addresses of memory. */
	CHECK_RET(binds(DAT_VA_TYPE_VA, 0, 16, DAT_VA_TYPE_ZB, BOTH, NULL), DAT_INVALID_PARAMETER);
	EXPECT_NOTHING(p.b.request_evd);
	down();
}

/* --- what is refused --------------------------------------------------------------------------- */

/* Side a uses a wrong address of the window. */
static void refused(DAT_VA_TYPE of_region, DAT_VA_TYPE type, DAT_VADDR wrong, bool by_read)
{
	DAT_RMR_CONTEXT key = bound(of_region, type);
	const struct mem *mem = region(of_region);

	fill(za.at, 16, 3);
	if (by_read) {
		OK(reads(key, wrong, 16));
		EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_ERR_REMOTE_ACCESS);
	} else {
		OK(writes(key, wrong, 16));
		EXPECT_WRITE_REFUSED(p.a.request_evd, 1);
	}
	both_broken();
	for (size_t at = 0; at < SIZE; at++)
		REQUIRE(!mem->at[at]);
	for (size_t at = 0; at < 16; at++)
		CHECK_EQ(za.at[SIZE / 2 + at], 0);
	down();
}

static void refused_outside(DAT_VA_TYPE of_region)
{
	for (int i = 0; i < WRONG_ADDRESSES; i++)
		for (int by_read = 0; by_read < 2; by_read++) {
			rmr = zero_based_up_to_bind();
			refused(of_region, DAT_VA_TYPE_ZB,
				wrong_address(i, (uintptr_t)region(of_region)->at + START, LENGTH),
				by_read);
		}
}

static void zero_based_window__and_no_more(void)
{
	refused_outside(DAT_VA_TYPE_VA);
}

static void zero_based_window__and_no_more_of_a_zero_based_region(void)
{
	refused_outside(DAT_VA_TYPE_ZB);
}

/* Of a window with the addresses of its region: in front of it, behind it, in memory, around the end. */
static void zero_based_window__and_no_more_with_those_of_its_region(void)
{
	for (int i = 0; i < 5; i++)
		for (int by_read = 0; by_read < 2; by_read++) {
			DAT_VADDR wrong[5] = { START - 1, START + LENGTH - 15, 0, 0,
					       (DAT_VADDR)-8 };

			rmr = zero_based_up_to_bind();
			wrong[3] = (uintptr_t)zb.at + START;
			refused(DAT_VA_TYPE_ZB, DAT_VA_TYPE_VA, wrong[i], by_read);
		}
}

/* The window is closed, and its region is free. */
static void zero_based_window__closed(void)
{
	DAT_RMR_CONTEXT key;

	rmr = zero_based_up_to_bind();
	key = bound(DAT_VA_TYPE_ZB, DAT_VA_TYPE_VA);
	CHECK_RET(dat_lmr_free(zb.lmr), DAT_INVALID_STATE);
	OK(dat_rmr_free(rmr));
	OK(dat_lmr_free(zb.lmr));
	OK(reads(key, START, 16));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_ERR_REMOTE_ACCESS);
	both_broken();
	down();
}

/* --- other operations -------------------------------------------------------------------------- */

/* Side b reads from side a into a range of its window. */
static DAT_RETURN reads_to(DAT_RMR_CONTEXT key, DAT_VADDR to, size_t size)
{
	DAT_RMR_TRIPLET local = remote_at(key, to, size);
	DAT_RMR_TRIPLET remote = remote_at(za.remote, 100, size);

	return dat_ep_post_rdma_read_to_rmr(p.ep_b, &local, cookie(9), &remote, USUAL);
}

static void zero_based_window__as_the_sink_of_reads(void)
{
	static const struct {
		DAT_VA_TYPE of_region, type;
	} kinds[] = { { DAT_VA_TYPE_VA, DAT_VA_TYPE_ZB },
		      { DAT_VA_TYPE_ZB, DAT_VA_TYPE_ZB },
		      { DAT_VA_TYPE_ZB, DAT_VA_TYPE_VA } };

	rmr = zero_based_up_to_bind();
	for (unsigned i = 0; i < 3; i++) {
		DAT_RMR_CONTEXT key = bound(kinds[i].of_region, kinds[i].type);
		DAT_VADDR first = kinds[i].type == DAT_VA_TYPE_ZB ? 0 : START;
		const struct mem *mem = region(kinds[i].of_region);

		fill(za.at + 100, 1000, i);
		OK(reads_to(key, first + LENGTH - 1000, 1000));
		EXPECT_DTO(p.b.request_evd, 9, DAT_DTO_SUCCESS);
		CHECK(filled(mem->at + START + LENGTH - 1000, 1000, i));
		CHECK_RET(reads_to(key, first + LENGTH - 1000, 1001), DAT_INVALID_PARAMETER);
		CHECK_RET(reads_to(key, first - 1, 16), DAT_INVALID_PARAMETER);
		CHECK_RET(reads_to(key, (uintptr_t)mem->at + START, 16), DAT_INVALID_PARAMETER);
	}
	down();
}

static void zero_based_window__invalidated_by_the_peer(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_CONTEXT key;

	rmr = zero_based_up_to_bind();
	key = bound(DAT_VA_TYPE_ZB, DAT_VA_TYPE_ZB);
	local = local_at(zb.local, 0, 10);
	OK(dat_ep_post_recv(p.ep_b, 1, &local, cookie(3), USUAL));
	local = local_at(za.local, 0, 10);
	OK(dat_ep_post_send_with_invalidate(p.ep_a, 1, &local, cookie(4), USUAL, DAT_TRUE, key));
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 3, DAT_DTO_SUCCESS);
	OK(reads(key, 0, 16));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_ERR_REMOTE_ACCESS);
	both_broken();
	down();
}

static const struct tap_test tests[] = {
	T(zero_based_window, of_a_region),
	T(zero_based_window, of_a_zero_based_region),
	T(zero_based_window, with_those_of_its_region),
	T(zero_based_window, query),
	T(zero_based_window, arguments),
	T(zero_based_window, and_no_more),
	T(zero_based_window, and_no_more_of_a_zero_based_region),
	T(zero_based_window, and_no_more_with_those_of_its_region),
	T(zero_based_window, closed),
	T(zero_based_window, as_the_sink_of_reads),
	T(zero_based_window, invalidated_by_the_peer),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
