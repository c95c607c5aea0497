/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What memory keys allow: bounds, privileges and protection zones, at the end that posts and at
 * the target of RDMA operations. The man pages let a provider refuse a bad local segment in the
 * call or in the completion; a bad remote range shows in the completion or breaks the
 * connection. In no case is memory touched that is not allowed. */
#include "transfer.h"

#include <stdlib.h>
#include <string.h>

static const DAT_MEM_PRIV_FLAGS LOCAL_READ = DAT_MEM_PRIV_LOCAL_READ_FLAG;
static const DAT_MEM_PRIV_FLAGS LOCAL_WRITE = DAT_MEM_PRIV_LOCAL_WRITE_FLAG;

/* A local segment was bad: the call refuses it with this code, or the completion has failed. */
static void refused(DAT_RETURN ret, DAT_RETURN type, DAT_RETURN subtype, DAT_EVD_HANDLE evd,
		    DAT_UINT64 value)
{
	if (ret == DAT_SUCCESS) {
		EXPECT_DTO(evd, value, DAT_DTO_ERR_LOCAL_PROTECTION);
		return;
	}
	CHECK_CODE(ret, type, subtype);
	EXPECT_NOTHING(evd);
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
}

static DAT_RETURN send_from(DAT_LMR_TRIPLET iov)
{
	return dat_ep_post_send(p.ep_a, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG);
}

static DAT_RETURN recv_into(DAT_LMR_TRIPLET iov)
{
	return dat_ep_post_recv(p.ep_a, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG);
}

static DAT_RETURN read_into(DAT_LMR_TRIPLET iov)
{
	DAT_RMR_TRIPLET remote = dx_remote(mb.remote, mb.at, 8);

	return dat_ep_post_rdma_read(p.ep_a, 1, &iov, cookie(1), &remote,
				     DAT_COMPLETION_DEFAULT_FLAG);
}

static DAT_RETURN write_from(DAT_LMR_TRIPLET iov)
{
	DAT_RMR_TRIPLET remote = dx_remote(mb.remote, mb.at, 8);

	return dat_ep_post_rdma_write(p.ep_a, 1, &iov, cookie(1), &remote,
				      DAT_COMPLETION_DEFAULT_FLAG);
}

/* --- local segments ------------------------------------------------------------------------- */

static void local__outside_the_region(void)
{
	up();
	refused(send_from(dx_local(ma.local, ma.at + SIZE - 7, 8)), DAT_INVALID_PARAMETER,
		DAT_INVALID_ARG3, p.a.request_evd, 1);
	down();
}

static void local__before_the_region(void)
{
	up();
	refused(write_from(dx_local(ma.local, ma.at - 8192, 8)), DAT_INVALID_PARAMETER,
		DAT_INVALID_ARG3, p.a.request_evd, 1);
	down();
}

static void local__range_wraps_around(void)
{
	up();
	refused(send_from(dx_local(ma.local, (void *)(uintptr_t)-8, 16)), DAT_INVALID_PARAMETER,
		DAT_INVALID_ARG3, p.a.request_evd, 1);
	down();
}

static void local__key_unknown(void)
{
	DAT_RETURN ret;

	up();
	ret = send_from(dx_local(ma.local ^ 0x5a5a5a00, ma.at, 8));
	/* PRIVILEGES_VIOLATION is the code for an invalid LMR; the range is in no LMR either. */
	if (DAT_GET_TYPE(ret) == DAT_INVALID_PARAMETER)
		CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
	else
		refused(ret, DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_READ, p.a.request_evd, 1);
	down();
}

static void local__region_freed(void)
{
	struct mem mem;
	DAT_RETURN ret;

	up();
	mem = make_mem(&p.a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	OK(dat_lmr_free(mem.lmr));
	ret = send_from(dx_local(mem.local, mem.at, 8));
	if (DAT_GET_TYPE(ret) == DAT_INVALID_PARAMETER)
		CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
	else
		refused(ret, DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_READ, p.a.request_evd, 1);
	free(mem.at);
	down();
}

static void local__send_needs_local_read(void)
{
	struct mem mem;

	up();
	mem = make_mem(&p.a, 4096, LOCAL_WRITE);
	OK(b_receives(100, 8, 2));
	refused(send_from(dx_local(mem.local, mem.at, 8)), DAT_PRIVILEGES_VIOLATION,
		DAT_PRIVILEGES_READ, p.a.request_evd, 1);
	down();
}

static void local__write_needs_local_read(void)
{
	struct mem mem;

	up();
	mem = make_mem(&p.a, 4096, LOCAL_WRITE);
	fill(mem.at, 8, 1);
	refused(write_from(dx_local(mem.local, mem.at, 8)), DAT_PRIVILEGES_VIOLATION,
		DAT_PRIVILEGES_READ, p.a.request_evd, 1);
	for (int i = 0; i < 8; i++)
		CHECK_EQ(mb.at[i], 0);
	down();
}

static void local__recv_needs_local_write(void)
{
	struct mem mem;
	DAT_RETURN ret;

	up();
	mem = make_mem(&p.a, 4096, LOCAL_READ);
	ret = recv_into(dx_local(mem.local, mem.at, 8));
	if (ret == DAT_SUCCESS) {
		DAT_LMR_TRIPLET iov = dx_local(mb.local, mb.at, 8);

		fill(mb.at, 8, 1);
		OK(dat_ep_post_send(p.ep_b, 1, &iov, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.a.recv_evd, 1, DAT_DTO_ERR_LOCAL_PROTECTION);
		for (int i = 0; i < 8; i++)
			CHECK_EQ(mem.at[i], 0);
	} else {
		CHECK_CODE(ret, DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_WRITE);
	}
	down();
}

static void local__read_needs_local_write(void)
{
	struct mem mem;

	up();
	mem = make_mem(&p.a, 4096, LOCAL_READ);
	fill(mb.at, 8, 1);
	refused(read_into(dx_local(mem.local, mem.at, 8)), DAT_PRIVILEGES_VIOLATION,
		DAT_PRIVILEGES_WRITE, p.a.request_evd, 1);
	for (int i = 0; i < 8; i++)
		CHECK_EQ(mem.at[i], 0);
	down();
}

static void local__other_zone(void)
{
	struct mem mem;
	DAT_PZ_HANDLE pz;

	up();
	OK(dat_pz_create(p.a.ia, &pz));
	mem = make_mem_in(p.a.ia, pz, 4096, DAT_MEM_PRIV_ALL_FLAG);
	refused(send_from(dx_local(mem.local, mem.at, 8)), DAT_PROTECTION_VIOLATION,
		DAT_PROTECTION_READ, p.a.request_evd, 1);
	down();
}

/* Frees a region, and registers the same memory. */
static struct mem register_again(const struct rig *rig, const struct mem *before)
{
	DAT_REGION_DESCRIPTION region = { .for_va = before->at };
	struct mem again = *before;

	OK(dat_lmr_free(before->lmr));
	OK(dx_lmr_create(rig->ia, DAT_MEM_TYPE_VIRTUAL, region, before->size, rig->pz,
			 DAT_MEM_PRIV_ALL_FLAG, &again.lmr, &again.local, &again.remote, NULL,
			 NULL));
	return again;
}

/* What each post makes of a segment; a receive shows it when a message arrives. The subtypes are those
 * of operations that read the segment, and of those that write there. */
static void refused_by_every_post(DAT_LMR_TRIPLET (*bad)(void), DAT_RETURN type, DAT_RETURN reads,
				  DAT_RETURN writes)
{
	typedef DAT_RETURN post(DAT_LMR_TRIPLET);
	static post *const posts[] = { send_from, recv_into, write_from, read_into };

	for (int i = 0; i < 4; i++) {
		DAT_LMR_TRIPLET good;
		DAT_EVD_HANDLE evd;
		DAT_RETURN ret;

		up();
		evd = posts[i] == recv_into ? p.a.recv_evd : p.a.request_evd;
		ret = posts[i](bad());
		if (ret == DAT_SUCCESS && posts[i] == recv_into) {
			good = dx_local(mb.local, mb.at, 8);
			OK(dat_ep_post_send(p.ep_b, 1, &good, cookie(2),
					    DAT_COMPLETION_DEFAULT_FLAG));
		}
		refused(ret, type, i % 2 == 0 ? reads : writes, evd, 1);
		down();
	}
}

static DAT_LMR_TRIPLET one_byte_too_far(void)
{
	return dx_local(ma.local, ma.at + SIZE - 7, 8);
}

static DAT_LMR_TRIPLET of_another_zone(void)
{
	DAT_PZ_HANDLE pz;
	struct mem mem;

	OK(dat_pz_create(p.a.ia, &pz));
	mem = make_mem_in(p.a.ia, pz, 4096, DAT_MEM_PRIV_ALL_FLAG);
	return dx_local(mem.local, mem.at, 8);
}

static DAT_LMR_TRIPLET of_a_freed_region(void)
{
	struct mem mem = make_mem(&p.a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	DAT_LMR_TRIPLET segment = dx_local(mem.local, mem.at, 8);

	free_mem(&mem);
	return segment;
}

/* The key of a region whose memory is registered again. */
static DAT_LMR_TRIPLET of_the_region_before(void)
{
	struct mem before = make_mem(&p.a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	struct mem again = register_again(&p.a, &before);

	return dx_local(before.local, again.at, 8);
}

static void local__every_post_checks_the_key_of_before(void)
{
	refused_by_every_post(of_the_region_before, DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_READ,
			      DAT_PRIVILEGES_WRITE);
}

static void local__every_post_checks_the_range(void)
{
	refused_by_every_post(one_byte_too_far, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3,
			      DAT_INVALID_ARG3);
}

static void local__every_post_checks_the_zone(void)
{
	refused_by_every_post(of_another_zone, DAT_PROTECTION_VIOLATION, DAT_PROTECTION_READ,
			      DAT_PROTECTION_WRITE);
}

static void local__every_post_checks_the_key(void)
{
	refused_by_every_post(of_a_freed_region, DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_READ,
			      DAT_PRIVILEGES_WRITE);
}

static DAT_LMR_TRIPLET without_any_privilege(void)
{
	struct mem mem = make_mem(&p.a, 4096, DAT_MEM_PRIV_NONE_FLAG);

	return dx_local(mem.local, mem.at, 8);
}

static void local__every_post_checks_the_privilege(void)
{
	refused_by_every_post(without_any_privilege, DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_READ,
			      DAT_PRIVILEGES_WRITE);
}

static void local__region_freed_under_a_receive(void)
{
	struct mem mem;
	DAT_LMR_TRIPLET iov;

	up();
	mem = make_mem(&p.b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	iov = dx_local(mem.local, mem.at, 8);
	OK(dat_ep_post_recv(p.ep_b, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_lmr_free(mem.lmr));
	fill(ma.at, 8, 1);
	OK(a_sends(0, 8, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_ERR_LOCAL_PROTECTION);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	for (int i = 0; i < 8; i++)
		CHECK_EQ(mem.at[i], 0);
	free(mem.at);
	down();
}

static void local__every_segment_is_checked(void)
{
	DAT_LMR_TRIPLET iov[3];

	up();
	REQUIRE(p.a.attr.max_iov_segments_per_dto >= 3);
	iov[0] = dx_local(ma.local, ma.at, 8);
	iov[1] = iov[0];
	iov[2] = one_byte_too_far();
	refused(dat_ep_post_send(p.ep_a, 3, iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		DAT_INVALID_PARAMETER, DAT_INVALID_ARG3, p.a.request_evd, 1);
	down();
}

static void local__refusal_leaves_the_connection(void)
{
	/* Where the call refuses, the endpoint goes on as if nothing had been posted. */
	up();
	if (send_from(dx_local(ma.local, ma.at + SIZE - 7, 8)) != DAT_SUCCESS) {
		fill(ma.at, 100, 1);
		OK(b_receives(0, 100, 1));
		OK(a_sends(0, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
		CHECK(filled(mb.at, 100, 1));
	}
	down();
}

/* --- remote ranges -------------------------------------------------------------------------- */

/* An RDMA write that the target does not allow. */
static void write_denied(DAT_RMR_CONTEXT key, void *at)
{
	DAT_LMR_TRIPLET iov = dx_local(ma.local, ma.at, 8);
	DAT_RMR_TRIPLET remote = dx_remote(key, at, 8);

	memset(ma.at, 0x77, 8);
	OK(dat_ep_post_rdma_write(p.ep_a, 1, &iov, cookie(1), &remote,
				  DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_WRITE_REFUSED(p.a.request_evd, 1);
	both_broken();
}

/* An RDMA read that the target does not allow: the answer tells. */
static void read_denied(DAT_RMR_CONTEXT key, void *at)
{
	DAT_LMR_TRIPLET iov = dx_local(ma.local, ma.at, 8);
	DAT_RMR_TRIPLET remote = dx_remote(key, at, 8);

	memset(ma.at, 0, 8);
	OK(dat_ep_post_rdma_read(p.ep_a, 1, &iov, cookie(1), &remote, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_ERR_REMOTE_ACCESS);
	both_broken();
	for (int i = 0; i < 8; i++)
		CHECK_EQ(ma.at[i], 0);
}

static void untouched(const char *at, size_t size)
{
	for (size_t i = 0; i < size; i++)
		CHECK_EQ(at[i], 0);
}

static void remote__write_beyond_the_region(void)
{
	up();
	write_denied(mb.remote, mb.at + SIZE - 7);
	untouched(mb.at + SIZE - 7, 7);
	down();
}

static void remote__write_that_wraps_around(void)
{
	up();
	write_denied(mb.remote, (char *)(uintptr_t)-4);
	untouched(mb.at, 8);
	down();
}

static void remote__read_that_wraps_around(void)
{
	up();
	read_denied(mb.remote, (char *)(uintptr_t)-4);
	down();
}

static void remote__write_with_an_unknown_key(void)
{
	up();
	write_denied(mb.remote ^ 0x5a5a5a00, mb.at);
	untouched(mb.at, 8);
	down();
}

static void remote__write_without_privilege(void)
{
	struct mem mem;

	up();
	mem = make_mem(&p.b, 4096, LOCAL_READ | LOCAL_WRITE | DAT_MEM_PRIV_REMOTE_READ_FLAG);
	write_denied(mem.remote, mem.at);
	untouched(mem.at, 8);
	down();
}

static void remote__write_to_a_freed_region(void)
{
	struct mem mem;

	up();
	mem = make_mem(&p.b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	OK(dat_lmr_free(mem.lmr));
	write_denied(mem.remote, mem.at);
	untouched(mem.at, 8);
	free(mem.at);
	down();
}

/* The memory is registered again: the new key opens it, the old one does not. Returns the old one. */
static DAT_RMR_CONTEXT key_of_before(struct mem *again)
{
	struct mem before = make_mem(&p.b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	DAT_LMR_TRIPLET iov = dx_local(ma.local, ma.at, 8);
	DAT_RMR_TRIPLET remote;

	*again = register_again(&p.b, &before);
	remote = dx_remote(again->remote, again->at + 8, 8);
	OK(dat_ep_post_rdma_write(p.ep_a, 1, &iov, cookie(2), &remote,
				  DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	return before.remote;
}

static void remote__write_with_the_key_of_before(void)
{
	struct mem again;
	DAT_RMR_CONTEXT key;

	up();
	key = key_of_before(&again);
	write_denied(key, again.at);
	untouched(again.at, 8);
	down();
}

static void remote__read_with_the_key_of_before(void)
{
	struct mem again;
	DAT_RMR_CONTEXT key;

	up();
	key = key_of_before(&again);
	read_denied(key, again.at);
	down();
}

static void remote__write_to_another_zone(void)
{
	struct mem mem;
	DAT_PZ_HANDLE pz;

	up();
	OK(dat_pz_create(p.b.ia, &pz));
	mem = make_mem_in(p.b.ia, pz, 4096, DAT_MEM_PRIV_ALL_FLAG);
	write_denied(mem.remote, mem.at);
	untouched(mem.at, 8);
	down();
}

static void remote__read_beyond_the_region(void)
{
	up();
	read_denied(mb.remote, mb.at + SIZE - 7);
	down();
}

static void remote__read_with_an_unknown_key(void)
{
	up();
	read_denied(mb.remote ^ 0x5a5a5a00, mb.at);
	down();
}

static void remote__read_without_privilege(void)
{
	struct mem mem;

	up();
	mem = make_mem(&p.b, 4096, LOCAL_READ | LOCAL_WRITE | DAT_MEM_PRIV_REMOTE_WRITE_FLAG);
	fill(mem.at, 8, 1);
	read_denied(mem.remote, mem.at);
	down();
}

static void remote__read_from_a_freed_region(void)
{
	struct mem mem;

	up();
	mem = make_mem(&p.b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	fill(mem.at, 8, 1);
	OK(dat_lmr_free(mem.lmr));
	read_denied(mem.remote, mem.at);
	free(mem.at);
	down();
}

static void remote__read_from_another_zone(void)
{
	struct mem mem;
	DAT_PZ_HANDLE pz;

	up();
	OK(dat_pz_create(p.b.ia, &pz));
	mem = make_mem_in(p.b.ia, pz, 4096, DAT_MEM_PRIV_ALL_FLAG);
	fill(mem.at, 8, 1);
	read_denied(mem.remote, mem.at);
	down();
}

static void remote__failure_flushes_the_rest(void)
{
	DAT_LMR_TRIPLET iov, none = { 0 };
	DAT_RMR_TRIPLET remote;

	up();
	OK(dat_ep_post_recv(p.ep_a, 0, &none, cookie(50), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_recv(p.ep_b, 0, &none, cookie(60), DAT_COMPLETION_DEFAULT_FLAG));
	iov = dx_local(ma.local, ma.at, 8);
	remote = dx_remote(mb.remote, mb.at + SIZE, 8);
	OK(dat_ep_post_rdma_read(p.ep_a, 1, &iov, cookie(1), &remote,
				 DAT_COMPLETION_SUPPRESS_FLAG));
	/* The fence holds this one back until the read has ended. */
	OK(dat_ep_post_send(p.ep_a, 0, &none, cookie(2), DAT_COMPLETION_BARRIER_FENCE_FLAG));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_ERR_REMOTE_ACCESS);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_ERR_FLUSHED);
	both_broken();
	EXPECT_DTO(p.a.recv_evd, 50, DAT_DTO_ERR_FLUSHED);
	EXPECT_DTO(p.b.recv_evd, 60, DAT_DTO_ERR_FLUSHED);
	down();
}

static const struct tap_test tests[] = {
	T(local, outside_the_region),
	T(local, before_the_region),
	T(local, range_wraps_around),
	T(local, key_unknown),
	T(local, region_freed),
	T(local, send_needs_local_read),
	T(local, write_needs_local_read),
	T(local, recv_needs_local_write),
	T(local, read_needs_local_write),
	T(local, other_zone),
	T(local, every_post_checks_the_range),
	T(local, every_post_checks_the_zone),
	T(local, every_post_checks_the_key),
	T(local, every_post_checks_the_key_of_before),
	T(local, every_post_checks_the_privilege),
	T(local, every_segment_is_checked),
	T(local, region_freed_under_a_receive),
	T(local, refusal_leaves_the_connection),
	T(remote, write_beyond_the_region),
	T(remote, write_that_wraps_around),
	T(remote, read_that_wraps_around),
	T(remote, write_with_an_unknown_key),
	T(remote, write_without_privilege),
	T(remote, write_to_a_freed_region),
	T(remote, write_with_the_key_of_before),
	T(remote, read_with_the_key_of_before),
	T(remote, write_to_another_zone),
	T(remote, read_beyond_the_region),
	T(remote, read_with_an_unknown_key),
	T(remote, read_without_privilege),
	T(remote, read_from_a_freed_region),
	T(remote, read_from_another_zone),
	T(remote, failure_flushes_the_rest),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
