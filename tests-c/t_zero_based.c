/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Regions with zero-based addresses: dat_lmr_create with DAT_VA_TYPE_ZB. DAT 2.0 only. The addresses of
 * their bytes, in local segments and for peers, count from 0. Windows are in t_zero_based_rmr. */
#include "zero_based.h"

#include "datagrams.h"
#include "srq.h"

#include <string.h>

#define DEFAULT DAT_COMPLETION_DEFAULT_FLAG
#define ATOMIC ((DAT_MEM_PRIV_FLAGS)(DAT_MEM_PRIV_ALL_FLAG | DAT_IB_MEM_PRIV_REMOTE_ATOMIC))

/* The lengths of transfers: by each of the ways that a provider has. */
static const size_t sizes[] = { 1, 8, 100, 5000, 70000, SIZE };

#define SIZES (sizeof sizes / sizeof *sizes)

/* The first, the middle and the last place for so many bytes. */
static size_t place(size_t size, int which)
{
	return (SIZE - size) / 2 * (size_t)which;
}

static DAT_RETURN sends(DAT_VADDR at, size_t size, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET local = local_at(za.local, at, size);

	return dat_ep_post_send(p.ep_a, 1, &local, cookie(value), DEFAULT);
}

static DAT_RETURN receives(DAT_VADDR at, size_t size, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET local = local_at(zb.local, at, size);

	return dat_ep_post_recv(p.ep_b, 1, &local, cookie(value), DEFAULT);
}

static DAT_RETURN writes(DAT_VADDR from, DAT_VADDR to, size_t size, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET local = local_at(za.local, from, size);
	DAT_RMR_TRIPLET remote = remote_at(zb.remote, to, size);

	return dat_ep_post_rdma_write(p.ep_a, 1, &local, cookie(value), &remote, DEFAULT);
}

static DAT_RETURN reads(DAT_VADDR to, DAT_VADDR from, size_t size, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET local = local_at(za.local, to, size);
	DAT_RMR_TRIPLET remote = remote_at(zb.remote, from, size);

	return dat_ep_post_rdma_read(p.ep_a, 1, &local, cookie(value), &remote, DEFAULT);
}

/* --- dat_lmr_create, dat_lmr_query, dat_lmr_sync_* --------------------------------------------- */

static void zero_based__query(void)
{
	DAT_VADDR address = 77;
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_PARAM param;
	DAT_LMR_HANDLE lmr;
	DAT_VLEN length = 0;

	zero_based_up();
	memset(&param, 0xff, sizeof param);
	OK(dat_lmr_query(za.lmr, DAT_LMR_FIELD_ALL, &param));
	CHECK_EQ(param.va_type, DAT_VA_TYPE_ZB);
	CHECK_EQ(param.registered_address, 0);
	CHECK_EQ(param.registered_size, SIZE);
	CHECK_EQ(param.length, SIZE);
	CHECK(param.region_desc.for_va == za.at);
	CHECK_EQ(param.lmr_context, za.local);
	CHECK_EQ(param.rmr_context, za.remote);
	OK(dat_lmr_query(ma.lmr, DAT_LMR_FIELD_ALL, &param));
	CHECK_EQ(param.va_type, DAT_VA_TYPE_VA);
	CHECK_EQ(param.registered_address, (uintptr_t)ma.at);
	/* From a region with other addresses; the results of the call. */
	memset(&region, 0, sizeof region);
	region.for_lmr_handle = ma.lmr;
	OK(dat_lmr_create(p.a.ia, DAT_MEM_TYPE_LMR, region, 0, p.a.pz, DAT_MEM_PRIV_ALL_FLAG,
			  DAT_VA_TYPE_ZB, &lmr, NULL, NULL, &length, &address));
	CHECK_EQ(address, 0);
	CHECK_EQ(length, SIZE);
	region.for_lmr_handle = lmr;
	OK(dat_lmr_create(p.a.ia, DAT_MEM_TYPE_LMR, region, 0, p.a.pz, DAT_MEM_PRIV_ALL_FLAG,
			  DAT_VA_TYPE_VA, &lmr, NULL, NULL, &length, &address));
	CHECK_EQ(address, (uintptr_t)ma.at);
	CHECK_EQ(length, SIZE);
	down();
}

static void zero_based__types(void)
{
	static const unsigned wrong[] = { 2, 3, 7, 0x100, 0x80000000, 0xffffffff };
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE lmr;
	struct rig rig;

	rig_up(&rig);
	memset(&region, 0, sizeof region);
	region.for_va = &region;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		CHECK_RET(dat_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, region, 8, rig.pz,
					 DAT_MEM_PRIV_ALL_FLAG, (DAT_VA_TYPE)wrong[i], &lmr, NULL,
					 NULL, NULL, NULL),
			  DAT_INVALID_PARAMETER);
	/* What is wrong with ordinary addresses is wrong with these. */
	CHECK_RET(dat_lmr_create(DAT_HANDLE_NULL, DAT_MEM_TYPE_VIRTUAL, region, 8, rig.pz,
				 DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_ZB, &lmr, NULL, NULL, NULL,
				 NULL),
		  DAT_INVALID_HANDLE);
	if (!rig.attr.zb_supported)
		tap_unsupported("zero-based addresses");
	CHECK_RET(dat_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, region, 0, rig.pz,
				 DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_ZB, &lmr, NULL, NULL, NULL,
				 NULL),
		  DAT_LENGTH_ERROR);
	region.for_va = (DAT_PVOID)(uintptr_t)-4096;
	CHECK_RET(dat_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, region, 8192, rig.pz,
				 DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_ZB, &lmr, NULL, NULL, NULL,
				 NULL),
		  DAT_INVALID_PARAMETER);
	/* No memory is at 0. */
	region.for_va = NULL;
	CHECK_RET(dat_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, rig.pz,
				 DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_ZB, &lmr, NULL, NULL, NULL,
				 NULL),
		  DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static void zero_based__sync(void)
{
	DAT_LMR_TRIPLET both[2];

	zero_based_up();
	both[0] = local_at(za.local, 0, SIZE);
	both[1] = dx_local(ma.local, ma.at, SIZE);
	OK(dat_lmr_sync_rdma_read(p.a.ia, both, 2));
	OK(dat_lmr_sync_rdma_write(p.a.ia, both, 2));
	both[0] = local_at(za.local, SIZE - 1, 1);
	OK(dat_lmr_sync_rdma_read(p.a.ia, both, 2));
	for (int i = 0; i < WRONG_ADDRESSES; i++) {
		both[0] = local_at(za.local, wrong_address(i, (uintptr_t)za.at, SIZE), 16);
		CHECK_RET(dat_lmr_sync_rdma_read(p.a.ia, both, 2), DAT_INVALID_PARAMETER);
		CHECK_RET(dat_lmr_sync_rdma_write(p.a.ia, both, 2), DAT_INVALID_PARAMETER);
	}
	down();
}

/* --- transfers --------------------------------------------------------------------------------- */

static void zero_based__messages(void)
{
	zero_based_up();
	for (size_t i = 0; i < SIZES; i++)
		for (int which = 0; which < 3; which++) {
			size_t at = place(sizes[i], which), to = place(sizes[i], 2 - which);

			memset(zb.at, 0, SIZE);
			fill(za.at + at, sizes[i], (unsigned)i);
			OK(receives(to, sizes[i], 1));
			OK(sends(at, sizes[i], 2));
			EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
			EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
			CHECK(filled(zb.at + to, sizes[i], (unsigned)i));
		}
	CHECK(is_untouched_around(&za) && is_untouched_around(&zb));
	down();
}

/* Requests wait for receives, and receives for messages. */
static void zero_based__messages_that_wait(void)
{
	zero_based_up();
	for (DAT_UINT64 i = 0; i < 5; i++) {
		fill(za.at + 100000 * i, 100000, (unsigned)i);
		OK(sends(100000 * i, i % 2 ? 100000 : 1000, i));
	}
	EXPECT_NOTHING(p.b.recv_evd);
	for (DAT_UINT64 i = 0; i < 5; i++)
		OK(receives(100000 * (9 - i), 100000, i));
	for (DAT_UINT64 i = 0; i < 5; i++) {
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		CHECK(filled(zb.at + 100000 * (9 - i), i % 2 ? 100000 : 1000, (unsigned)i));
	}
	down();
}

/* Both kinds of addresses, and segments of no bytes, at addresses that are none. */
static void zero_based__segments(void)
{
	DAT_LMR_TRIPLET from[4], to[4];

	zero_based_up();
	if (p.a.attr.max_iov_segments_per_dto < 4)
		tap_unsupported("four segments");
	fill(za.at, 3000, 1);
	from[0] = local_at(za.local, 0, 1000);
	from[1] = local_at(za.local, ~(DAT_VADDR)0, 0);
	memcpy(ma.at, za.at + 1000, 1000);
	from[2] = dx_local(ma.local, ma.at, 1000);
	from[3] = local_at(za.local, 2000, 1000);
	to[0] = dx_local(mb.local, mb.at, 500);
	to[1] = local_at(zb.local, SIZE - 2400, 2400);
	to[2] = local_at(zb.local, (uintptr_t)zb.at, 0);
	to[3] = local_at(zb.local, 7, 100);
	OK(dat_ep_post_recv(p.ep_b, 4, to, cookie(1), DEFAULT));
	OK(dat_ep_post_send(p.ep_a, 4, from, cookie(2), DEFAULT));
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS).transfered_length, 3000);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK(!memcmp(mb.at, za.at, 500));
	CHECK(!memcmp(zb.at + SIZE - 2400, za.at + 500, 2400));
	CHECK(!memcmp(zb.at + 7, za.at + 2900, 100));
	CHECK_EQ(zb.at[107], 0);
	down();
}

static void zero_based__writes_and_reads(void)
{
	zero_based_up();
	for (size_t i = 0; i < SIZES; i++)
		for (int which = 0; which < 3; which++) {
			size_t at = place(sizes[i], which), to = place(sizes[i], 2 - which);

			memset(zb.at, 0, SIZE);
			fill(za.at + at, sizes[i], (unsigned)i);
			OK(writes(at, to, sizes[i], 1));
			EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
			memset(za.at, 0, SIZE);
			OK(reads(to, to, sizes[i], 2));
			EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
			CHECK(filled(zb.at + to, sizes[i], (unsigned)i));
			CHECK(filled(za.at + to, sizes[i], (unsigned)i));
		}
	CHECK(is_untouched_around(&za) && is_untouched_around(&zb));
	down();
}

/* Short ones, of which a provider may make several together. */
static void zero_based__many_writes(void)
{
	enum { ROUNDS = 100, AT_A_TIME = 10, LENGTH = 24 };

	zero_based_up();
	fill(za.at, ROUNDS * AT_A_TIME * LENGTH, 9);
	for (DAT_UINT64 i = 0; i < ROUNDS; i++) {
		for (DAT_UINT64 n = 0; n < AT_A_TIME; n++) {
			DAT_VADDR at = (i * AT_A_TIME + n) * LENGTH;

			OK(writes(at, at, LENGTH, n));
		}
		for (DAT_UINT64 n = 0; n < AT_A_TIME; n++)
			EXPECT_DTO(p.a.request_evd, n, DAT_DTO_SUCCESS);
	}
	CHECK(filled(zb.at, ROUNDS * AT_A_TIME * LENGTH, 9));
	down();
}

static void zero_based__of_no_bytes(void)
{
	zero_based_up();
	OK(receives((uintptr_t)zb.at, 0, 1));
	OK(sends(~(DAT_VADDR)0, 0, 2));
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	OK(writes(SIZE, SIZE, 0, 3));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	down();
}

/* The same memory by both kinds of addresses. */
static void zero_based__beside_others(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;
	struct mem again;

	zero_based_up();
	OK(register_zero_based(&p.b, mb.at, SIZE, DAT_MEM_PRIV_ALL_FLAG, &again));
	fill(za.at, 1000, 1);
	fill(ma.at, 1000, 2);
	local = local_at(za.local, 0, 1000);
	remote = remote_at(again.remote, 5000, 1000);
	OK(dat_ep_post_rdma_write(p.ep_a, 1, &local, cookie(1), &remote, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	OK(a_writes(0, 7000, 1000, 2, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at + 5000, 1000, 1));
	CHECK(filled(mb.at + 7000, 1000, 2));
	/* The one does not end with the other. */
	OK(dat_lmr_free(again.lmr));
	OK(a_reads(2000, 5000, 1000, 3, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	CHECK(filled(ma.at + 2000, 1000, 1));
	OK(dat_ep_post_rdma_write(p.ep_a, 1, &local, cookie(4), &remote, DEFAULT));
	EXPECT_WRITE_REFUSED(p.a.request_evd, 4);
	both_broken();
	down();
}

static void zero_based__immediate(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;
	DAT_EVENT event;

	zero_based_up();
	if (!has(DAT_IB_ATTR_IMMED_DATA))
		tap_unsupported(DAT_IB_ATTR_IMMED_DATA);
	fill(za.at + 100, 1000, 4);
	local = local_at(za.local, 100, 1000);
	remote = remote_at(zb.remote, SIZE - 1000, 1000);
	OK(receives(0, 100, 1));
	OK(dat_ib_post_rdma_write_immed(p.ep_a, 1, &local, cookie(2), &remote, 77, DEFAULT));
	event = EXPECT_EXTENDED(p.b.recv_evd, 1, DAT_IB_DTO_RECV_IMMED,
				DAT_IB_RDMA_WRITE_IMMED_DATA);
	CHECK_EQ(status_of(&event), DAT_DTO_SUCCESS);
	CHECK_EQ(immed_of(&event), 77);
	CHECK(filled(zb.at + SIZE - 1000, 1000, 4));
	CHECK_EQ(zb.at[0], 0);
	down();
}

/* --- atomic operations ------------------------------------------------------------------------- */

static DAT_UINT64 word_at(const char *at)
{
	DAT_UINT64 word;

	memcpy(&word, at, sizeof word);
	return word;
}

/* Adds to a word of a region, and gives the status. */
static DAT_DTO_COMPLETION_STATUS adds(const struct mem *mem, DAT_VADDR to, DAT_UINT64 number)
{
	DAT_LMR_TRIPLET local = local_at(za.local, SIZE - 8, 8);
	DAT_RMR_TRIPLET remote = remote_at(mem->remote, to, 8);
	DAT_EVENT event;

	OK(dat_ib_post_fetch_and_add(p.ep_a, number, &local, cookie(1), &remote, DEFAULT));
	event = EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_FETCH_ADD, DAT_IB_FETCH_AND_ADD);
	return status_of(&event);
}

/* Words of side b that begin so many bytes behind the beginning of a page. */
static struct mem words_up(size_t skew)
{
	zero_based_up();
	if (!has(DAT_IB_ATTR_FETCH_AND_ADD))
		tap_unsupported(DAT_IB_ATTR_FETCH_AND_ADD);
	return make_zero_based(&p.b, skew, 4096, ATOMIC);
}

static void zero_based__atomics(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;
	struct mem words = words_up(usual_skew());
	DAT_EVENT event;

	for (DAT_VADDR at = 0; at < 4096; at += 4088) {
		CHECK_EQ(adds(&words, at, 5), DAT_DTO_SUCCESS);
		CHECK_EQ(adds(&words, at, 6), DAT_DTO_SUCCESS);
		CHECK_EQ(word_at(words.at + at), 11);
		CHECK_EQ(word_at(za.at + SIZE - 8), 5);
	}
	local = local_at(za.local, 0, 8);
	remote = remote_at(words.remote, 4088, 8);
	OK(dat_ib_post_cmp_and_swap(p.ep_a, 11, 12, &local, cookie(1), &remote, DEFAULT));
	event = EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_CMP_SWAP, DAT_IB_CMP_AND_SWAP);
	CHECK_EQ(status_of(&event), DAT_DTO_SUCCESS);
	CHECK_EQ(word_at(za.at), 11);
	CHECK_EQ(word_at(words.at + 4088), 12);
	CHECK(is_untouched_around(&words));
	down();
}

/* It is the address in memory that has to be a multiple of 8. */
static void zero_based__atomics_aligned_in_memory(void)
{
	struct mem words;

	if (!is_exact())
		tap_skip("regions of adapters begin at the beginning of a page");
	words = words_up(4);
	CHECK_EQ(adds(&words, 4, 3), DAT_DTO_SUCCESS);
	CHECK_EQ(word_at(words.at + 4), 3);
	CHECK_EQ(adds(&words, 8, 3), DAT_DTO_ERR_REMOTE_RESPONDER);
	both_broken();
	CHECK_EQ(word_at(words.at + 8), 0);
	down();
}

/* --- what is refused --------------------------------------------------------------------------- */

/* A wrong local segment: at once, or by the completion. */
static void refused_here(DAT_RETURN ret, DAT_EVD_HANDLE evd)
{
	if (ret == DAT_SUCCESS) {
		EXPECT_DTO(evd, 1, DAT_DTO_ERR_LOCAL_PROTECTION);
		tap_bail();
	}
	CHECK_CODE(ret, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

static void zero_based__wrong_local_segments(void)
{
	DAT_RMR_TRIPLET remote;
	DAT_LMR_TRIPLET local;

	for (int i = 0; i < WRONG_ADDRESSES; i++) {
		DAT_VADDR wrong;

		zero_based_up();
		wrong = wrong_address(i, (uintptr_t)za.at, SIZE);
		refused_here(sends(wrong, 16, 1), p.a.request_evd);
		refused_here(writes(wrong, 0, 16, 1), p.a.request_evd);
		refused_here(reads(wrong, 0, 16, 1), p.a.request_evd);
		/* An adapter may say so by the completion, as above. */
		if (is_exact()) {
			local = local_at(za.local, wrong, 16);
			remote = remote_at(zb.remote, 0, 8);
			CHECK_RET(dat_ib_post_fetch_and_add(p.ep_a, 1, &local, cookie(1), &remote,
							    DEFAULT),
				  DAT_INVALID_PARAMETER);
		}
		wrong = wrong_address(i, (uintptr_t)zb.at, SIZE);
		refused_here(receives(wrong, 16, 1), p.b.recv_evd);
		EXPECT_NOTHING(p.a.request_evd);
		CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
		down();
	}
}

/* The addresses of a region that has other ones. */
static void zero_based__other_region(void)
{
	DAT_LMR_TRIPLET local;

	zero_based_up();
	local = local_at(ma.local, 0, 16);
	CHECK_RET(dat_ep_post_send(p.ep_a, 1, &local, cookie(1), DEFAULT), DAT_INVALID_PARAMETER);
	/* The rights of a region are asked for all the same. */
	za = make_zero_based(&p.a, usual_skew(), 4096, DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
	if (is_exact())
		CHECK_RET(sends(0, 16, 1), DAT_PRIVILEGES_VIOLATION);
	down();
}

enum operation { WRITE, READ, ATOMIC_OPERATION };

/* A wrong remote range ends the connection. */
static void refused_there(enum operation operation)
{
	for (int i = 0; i < WRONG_ADDRESSES; i++) {
		struct mem words = operation == ATOMIC_OPERATION ? words_up(usual_skew()) :
								   (struct mem){ .at = NULL };
		DAT_VADDR wrong;

		switch (operation) {
		case WRITE:
			zero_based_up();
			fill(za.at, 16, 3);
			wrong = wrong_address(i, (uintptr_t)zb.at, SIZE);
			OK(writes(0, wrong, 16, 1));
			EXPECT_WRITE_REFUSED(p.a.request_evd, 1);
			break;
		case READ:
			zero_based_up();
			wrong = wrong_address(i, (uintptr_t)zb.at, SIZE);
			OK(reads(0, wrong, 16, 1));
			EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_ERR_REMOTE_ACCESS);
			break;
		default:
			/* Of 8 bytes. */
			wrong = i ? wrong_address(i, (uintptr_t)words.at, 4096) : 4096 - 7;
			CHECK_EQ(adds(&words, wrong, 1), DAT_DTO_ERR_REMOTE_ACCESS);
			for (size_t at = 0; at < 4096; at += 8)
				CHECK_EQ(word_at(words.at + at), 0);
			CHECK(is_untouched_around(&words));
		}
		both_broken();
		for (size_t at = 0; at < SIZE; at++)
			REQUIRE(!zb.at[at]);
		CHECK(is_untouched_around(&zb));
		down();
	}
}

static void zero_based__wrong_writes(void)
{
	refused_there(WRITE);
}

static void zero_based__wrong_reads(void)
{
	refused_there(READ);
}

static void zero_based__wrong_atomics(void)
{
	if (!is_exact())
		tap_skip("a device may notice an address that is not aligned at once");
	refused_there(ATOMIC_OPERATION);
}

/* --- other receives ---------------------------------------------------------------------------- */

static void zero_based__shared_receives(void)
{
	DAT_LMR_TRIPLET buffer;

	srq_up();
	if (!p.a.attr.zb_supported)
		tap_unsupported("zero-based addresses");
	za = make_zero_based(&p.a, usual_skew(), SIZE, DAT_MEM_PRIV_ALL_FLAG);
	zb = make_zero_based(&p.b, usual_skew(), SIZE, DAT_MEM_PRIV_ALL_FLAG);
	for (int i = 0; i < 3; i++) {
		buffer = local_at(zb.local, place(70000, i), 70000);
		OK(dat_srq_post_recv(srq, 1, &buffer, cookie((DAT_UINT64)i)));
	}
	for (int i = 0; i < WRONG_ADDRESSES; i++) {
		buffer = local_at(zb.local, wrong_address(i, (uintptr_t)zb.at, SIZE), 16);
		CHECK_RET(dat_srq_post_recv(srq, 1, &buffer, cookie(9)), DAT_INVALID_PARAMETER);
	}
	for (int i = 0; i < 3; i++) {
		size_t size = i ? 70000 : 10;

		fill(za.at, size, (unsigned)i);
		OK(sends(0, size, 1));
		EXPECT_DTO(p.b.recv_evd, (DAT_UINT64)i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
		CHECK(filled(zb.at + place(70000, i), size, (unsigned)i));
	}
	down();
}

static void zero_based__datagrams(void)
{
	struct outcome to_b, to_a;
	DAT_LMR_TRIPLET local;
	struct mem from, to;

	datagrams_up();
	if (!da.rig.attr.zb_supported)
		tap_unsupported("zero-based addresses");
	exchange(da.ep, db.ep, &to_b, &to_a);
	from = make_zero_based(&da.rig, usual_skew(), 4096, DAT_MEM_PRIV_ALL_FLAG);
	to = make_zero_based(&db.rig, usual_skew(), 4096, DAT_MEM_PRIV_ALL_FLAG);
	fill(from.at + 3996, 100, 6);
	local = local_at(to.local, 4096 - 100 - HEADER, 100 + HEADER);
	OK(dat_ep_post_recv(db.ep, 1, &local, cookie(1), DEFAULT));
	local = local_at(from.local, 3996, 100);
	OK(dat_ib_post_send_ud(da.ep, 1, &local, &to_b.to, cookie(2), DEFAULT));
	EXPECT_SENT(da.rig.request_evd, 2);
	EXPECT_RECEIVED(db.rig.recv_evd, 1, 100);
	CHECK(filled(to.at + 3996, 100, 6));
	for (int i = 0; i < WRONG_ADDRESSES; i++) {
		local = local_at(from.local, wrong_address(i, (uintptr_t)from.at, 4096), 16);
		CHECK_RET(dat_ib_post_send_ud(da.ep, 1, &local, &to_b.to, cookie(2), DEFAULT),
			  DAT_INVALID_PARAMETER);
	}
	datagrams_down();
}

static const struct tap_test tests[] = {
	T(zero_based, query),
	T(zero_based, types),
	T(zero_based, sync),
	T(zero_based, messages),
	T(zero_based, messages_that_wait),
	T(zero_based, segments),
	T(zero_based, writes_and_reads),
	T(zero_based, many_writes),
	T(zero_based, of_no_bytes),
	T(zero_based, beside_others),
	T(zero_based, immediate),
	T(zero_based, atomics),
	T(zero_based, atomics_aligned_in_memory),
	T(zero_based, wrong_local_segments),
	T(zero_based, other_region),
	T(zero_based, wrong_writes),
	T(zero_based, wrong_reads),
	T(zero_based, wrong_atomics),
	T(zero_based, shared_receives),
	T(zero_based, datagrams),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
