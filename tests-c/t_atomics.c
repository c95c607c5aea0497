/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ib_post_fetch_and_add, dat_ib_post_cmp_and_swap. DAT 2.0 only. */
#include "extended.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define ATOMIC ((DAT_MEM_PRIV_FLAGS)(DAT_MEM_PRIV_ALL_FLAG | DAT_IB_MEM_PRIV_REMOTE_ATOMIC))
#define DEFAULT DAT_COMPLETION_DEFAULT_FLAG

enum {
	/* Where side a has the results. */
	RESULT = 64,
};

/* Memory of side b that peers may change by atomic operations. */
static struct mem words;

static void atomics_up(void)
{
	up_for(DAT_IB_ATTR_FETCH_AND_ADD, NULL);
	words = make_mem(&p.b, 4096, ATOMIC);
}

static DAT_UINT64 *word_at(size_t offset)
{
	return (DAT_UINT64 *)(void *)(words.at + offset);
}

static DAT_UINT64 result(void)
{
	DAT_UINT64 value;

	memcpy(&value, ma.at + RESULT, sizeof value);
	return value;
}

static DAT_RETURN fetch_add(size_t offset, DAT_UINT64 add, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET local = dx_local(ma.local, ma.at + RESULT, 8);
	DAT_RMR_TRIPLET remote = dx_remote(words.remote, words.at + offset, 8);

	return dat_ib_post_fetch_and_add(p.ep_a, add, &local, cookie(value), &remote, DEFAULT);
}

static DAT_RETURN cmp_swap(size_t offset, DAT_UINT64 compare, DAT_UINT64 swap, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET local = dx_local(ma.local, ma.at + RESULT, 8);
	DAT_RMR_TRIPLET remote = dx_remote(words.remote, words.at + offset, 8);

	return dat_ib_post_cmp_and_swap(p.ep_a, compare, swap, &local, cookie(value), &remote,
					DEFAULT);
}

static DAT_DTO_COMPLETION_STATUS added(DAT_UINT64 value)
{
	DAT_EVENT event =
		EXPECT_EXTENDED(p.a.request_evd, value, DAT_IB_DTO_FETCH_ADD, DAT_IB_FETCH_AND_ADD);

	return status_of(&event);
}

static DAT_DTO_COMPLETION_STATUS swapped(DAT_UINT64 value)
{
	DAT_EVENT event =
		EXPECT_EXTENDED(p.a.request_evd, value, DAT_IB_DTO_CMP_SWAP, DAT_IB_CMP_AND_SWAP);

	return status_of(&event);
}

static void fetch_and_add__adds(void)
{
	atomics_up();
	*word_at(0) = 0x10;
	OK(fetch_add(0, 0x100, 1));
	CHECK_EQ(added(1), DAT_DTO_SUCCESS);
	CHECK_EQ(result(), 0x10);
	CHECK_EQ(*word_at(0), 0x110);
	/* Modulo 2^64. */
	OK(fetch_add(0, ~(DAT_UINT64)0, 2));
	CHECK_EQ(added(2), DAT_DTO_SUCCESS);
	CHECK_EQ(result(), 0x110);
	CHECK_EQ(*word_at(0), 0x10f);
	CHECK_EQ(*word_at(8), 0);
	down();
}

static void cmp_and_swap__swaps_what_is_equal(void)
{
	atomics_up();
	*word_at(8) = 0x12345;
	OK(cmp_swap(8, 0x654321, 0x6789a, 1));
	CHECK_EQ(swapped(1), DAT_DTO_SUCCESS);
	CHECK_EQ(result(), 0x12345);
	CHECK_EQ(*word_at(8), 0x12345);
	OK(cmp_swap(8, 0x12345, 0x9876500000000, 2));
	CHECK_EQ(swapped(2), DAT_DTO_SUCCESS);
	CHECK_EQ(result(), 0x12345);
	CHECK_EQ(*word_at(8), 0x9876500000000);
	down();
}

static void atomics__transfer_eight_bytes(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;
	DAT_EVENT event;

	/* Longer segments are no error: the word is at their beginning. */
	atomics_up();
	memset(ma.at + RESULT, 0xee, 64);
	local = dx_local(ma.local, ma.at + RESULT, 64);
	remote = dx_remote(words.remote, words.at, 4096);
	OK(dat_ib_post_fetch_and_add(p.ep_a, 1, &local, cookie(1), &remote, DEFAULT));
	event = EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_FETCH_ADD, DAT_IB_FETCH_AND_ADD);
	CHECK_EQ(length_of(&event), 8);
	CHECK(event.event_data.dto_completion_event_data.ep_handle == p.ep_a);
	CHECK_EQ(result(), 0);
	CHECK_EQ((unsigned char)ma.at[RESULT + 8], 0xee);
	CHECK_EQ(*word_at(0), 1);
	down();
}

static void atomics__arguments(void)
{
	DAT_LMR_TRIPLET local, strange;
	DAT_RMR_TRIPLET remote;
	DAT_EP_HANDLE ep;

	atomics_up();
	local = dx_local(ma.local, ma.at, 8);
	remote = dx_remote(words.remote, words.at, 8);
	CHECK_CODE(dat_ib_post_fetch_and_add(p.ep_a, 1, NULL, cookie(1), &remote, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
	CHECK_CODE(dat_ib_post_fetch_and_add(p.ep_a, 1, &local, cookie(1), NULL, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
	CHECK_CODE(dat_ib_post_cmp_and_swap(p.ep_a, 1, 2, NULL, cookie(1), &remote, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
	CHECK_CODE(dat_ib_post_cmp_and_swap(p.ep_a, 1, 2, &local, cookie(1), NULL, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG6);
	strange = dx_local(ma.local, ma.at, 7);
	CHECK_RET(dat_ib_post_fetch_and_add(p.ep_a, 1, &strange, cookie(1), &remote, DEFAULT),
		  DAT_LENGTH_ERROR);
	remote = dx_remote(words.remote, words.at, 7);
	CHECK_RET(dat_ib_post_fetch_and_add(p.ep_a, 1, &local, cookie(1), &remote, DEFAULT),
		  DAT_LENGTH_ERROR);
	remote = dx_remote(words.remote, words.at, 8);
	strange = dx_local(ma.local + 0x10000, ma.at, 8);
	CHECK_RET(dat_ib_post_fetch_and_add(p.ep_a, 1, &strange, cookie(1), &remote, DEFAULT),
		  DAT_PRIVILEGES_VIOLATION);
	CHECK_RET(dat_ib_post_fetch_and_add(p.a.pz, 1, &local, cookie(1), &remote, DEFAULT),
		  DAT_INVALID_HANDLE);
	ep = make_ep(&p.a, NULL);
	CHECK_RET(dat_ib_post_fetch_and_add(ep, 1, &local, cookie(1), &remote, DEFAULT),
		  DAT_INVALID_STATE);
	OK(dat_ep_free(ep));
	EXPECT_NOTHING(p.a.request_evd);
	CHECK_EQ(*word_at(0), 0);
	down();
}

static void atomics__flags(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;

	atomics_up();
	local = dx_local(ma.local, ma.at + RESULT, 8);
	remote = dx_remote(words.remote, words.at, 8);
	for (DAT_UINT64 i = 1; i <= 3; i++)
		OK(dat_ib_post_fetch_and_add(p.ep_a, 1, &local, cookie(i), &remote,
					     DAT_COMPLETION_SUPPRESS_FLAG));
	/* The fence waits for them. */
	OK(dat_ib_post_cmp_and_swap(p.ep_a, 3, 40, &local, cookie(4), &remote,
				    DAT_COMPLETION_BARRIER_FENCE_FLAG));
	CHECK_EQ(swapped(4), DAT_DTO_SUCCESS);
	CHECK_EQ(result(), 3);
	CHECK_EQ(*word_at(0), 40);
	EXPECT_NOTHING(p.a.request_evd);
	down();
}

/* What the target refuses: the connection ends. */
static void refused(void (*spoil)(DAT_RMR_TRIPLET *), DAT_DTO_COMPLETION_STATUS status)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;
	DAT_RETURN ret;

	atomics_up();
	local = dx_local(ma.local, ma.at + RESULT, 8);
	remote = dx_remote(words.remote, words.at, 8);
	spoil(&remote);
	ret = dat_ib_post_fetch_and_add(p.ep_a, 1, &local, cookie(1), &remote, DEFAULT);
	/* A device may notice an address that is not aligned at once. */
	if (!is_exact() && status == DAT_DTO_ERR_REMOTE_RESPONDER && ret != DAT_SUCCESS) {
		CHECK_RET(ret, DAT_INVALID_PARAMETER);
		down();
		return;
	}
	OK(ret);
	CHECK_EQ(added(1), status);
	both_broken();
	CHECK_EQ(*word_at(0), 0);
	down();
}

static void other_key(DAT_RMR_TRIPLET *remote)
{
	remote->rmr_context ^= 0x100;
}

/* Memory that is open to all but atomic operations. */
static void other_privileges(DAT_RMR_TRIPLET *remote)
{
	*remote = dx_remote(mb.remote, mb.at, 8);
}

static void behind(DAT_RMR_TRIPLET *remote)
{
	remote->virtual_address += 4096;
}

static void misaligned(DAT_RMR_TRIPLET *remote)
{
	remote->virtual_address += 4;
}

static void atomics__wrong_key(void)
{
	refused(other_key, DAT_DTO_ERR_REMOTE_ACCESS);
}

static void atomics__without_the_privilege(void)
{
	refused(other_privileges, DAT_DTO_ERR_REMOTE_ACCESS);
}

static void atomics__outside_of_the_region(void)
{
	refused(behind, DAT_DTO_ERR_REMOTE_ACCESS);
}

static void atomics__misaligned(void)
{
	refused(misaligned, DAT_DTO_ERR_REMOTE_RESPONDER);
}

/* Additions by the peer and by the program itself. */
enum { ADDITIONS = 2000 };

static void *add_locally(void *argument)
{
	_Atomic DAT_UINT64 *word = argument;

	for (int i = 0; i < ADDITIONS; i++)
		atomic_fetch_add(word, 1);
	return NULL;
}

static void atomics__and_those_of_the_processor(void)
{
	pthread_t thread;

	atomics_up();
	/* An adapter is atomic for itself alone. */
	if (!is_exact())
		tap_skip("a promise of the soft provider");
	REQUIRE(!pthread_create(&thread, NULL, add_locally, word_at(0)));
	for (DAT_UINT64 i = 0; i < ADDITIONS; i++) {
		OK(fetch_add(0, 1, i));
		REQUIRE(added(i) == DAT_DTO_SUCCESS);
	}
	pthread_join(thread, NULL);
	CHECK_EQ(*word_at(0), 2 * ADDITIONS);
	down();
}

static void atomics__after_the_end(void)
{
	atomics_up();
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	await_state(p.ep_a, DAT_EP_STATE_DISCONNECTED);
	OK(fetch_add(0, 1, 1));
	CHECK_EQ(added(1), DAT_DTO_ERR_FLUSHED);
	OK(cmp_swap(0, 1, 2, 2));
	CHECK_EQ(swapped(2), DAT_DTO_ERR_FLUSHED);
	down();
}

/* A window cannot open more than the region itself may do: atomic operations change its memory. */
static void atomics__by_a_window_of_memory_that_is_read_only(void)
{
	const DAT_MEM_PRIV_FLAGS changes = (DAT_MEM_PRIV_FLAGS)(DAT_IB_MEM_PRIV_REMOTE_ATOMIC);
	DAT_LMR_TRIPLET range;
	DAT_RMR_CONTEXT key;
	DAT_RMR_HANDLE rmr;
	struct mem read;

	atomics_up();
	read = make_mem(&p.b, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG);
	OK(dat_rmr_create(p.b.pz, &rmr));
	range = dx_local(read.local, read.at, 8);
	CHECK_CODE(dx_rmr_bind(rmr, read.lmr, &range, changes, p.ep_b, cookie(1), DEFAULT, &key),
		   DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_RDMA_WRITE);
	down();
}

static const struct tap_test tests[] = {
	T(fetch_and_add, adds),
	T(cmp_and_swap, swaps_what_is_equal),
	T(atomics, transfer_eight_bytes),
	T(atomics, arguments),
	T(atomics, flags),
	T(atomics, wrong_key),
	T(atomics, without_the_privilege),
	T(atomics, outside_of_the_region),
	T(atomics, misaligned),
	T(atomics, and_those_of_the_processor),
	T(atomics, after_the_end),
	T(atomics, by_a_window_of_memory_that_is_read_only),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
