/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Remote memory regions: dat_rmr_create(3DAT), dat_rmr_bind(3DAT), dat_rmr_query(3DAT),
 * dat_rmr_free(3DAT). Side b binds, side a is the peer who uses the keys. */
#include "windows.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* For tests that begin anew. */
static void rmr_down(void)
{
	down();
	free(ma.at);
	free(mb.at);
}

/* --- dat_rmr_create, dat_rmr_query, dat_rmr_free ---------------------------------------------- */

static void rmr_create__and_query(void)
{
	struct rig rig;
	DAT_RMR_PARAM param;
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;
	DAT_RMR_HANDLE other = DAT_HANDLE_NULL;

	rig_up(&rig);
	CHECK(rig.attr.max_rmrs > 0);
	OK(dat_rmr_create(rig.pz, &other));
	OK(dat_get_handle_type(other, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_RMR);
	memset(&param, 0xff, sizeof param);
	OK(dat_rmr_query(other, DAT_RMR_FIELD_ALL, &param));
	CHECK(param.ia_handle == rig.ia);
	CHECK(param.pz_handle == rig.pz);
#ifdef DAT2
	CHECK_EQ(param.rmr_scope, DAT_RMR_SCOPE_PZ);
#endif
	CHECK_RET(dat_rmr_query(other, DAT_RMR_FIELD_ALL, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_rmr_query(other, (DAT_RMR_PARAM_MASK)0x40000, &param), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_pz_free(rig.pz), DAT_INVALID_STATE);
	CHECK_RET(dat_rmr_free(other), DAT_SUCCESS);
	CHECK_CODE(dat_rmr_free(other), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_RMR);
	CHECK_CODE(dat_rmr_query(other, DAT_RMR_FIELD_ALL, &param), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_RMR);
	CHECK_RET(dat_pz_free(rig.pz), DAT_SUCCESS);
	rig_down(&rig);
}

static void rmr_create__arguments(void)
{
	struct rig rig;
	DAT_RMR_HANDLE other;

	rig_up(&rig);
	CHECK_CODE(dat_rmr_create(DAT_HANDLE_NULL, &other), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_PZ);
	CHECK_CODE(dat_rmr_create(rig.recv_evd, &other), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
	CHECK_RET(dat_rmr_create(rig.pz, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_rmr_free(DAT_HANDLE_NULL), DAT_INVALID_HANDLE);
	CHECK_RET(dat_rmr_free(rig.pz), DAT_INVALID_HANDLE);
	rig_down(&rig);
}

static void rmr_query__what_is_bound(void)
{
	DAT_RMR_PARAM param;
	DAT_RMR_CONTEXT key;

	rmr_up();
	key = bound(100, 50, READ);
	memset(&param, 0xff, sizeof param);
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK_EQ(param.rmr_context, key);
	CHECK_EQ(param.mem_priv, READ);
	CHECK_EQ(param.lmr_triplet.lmr_context, mb.local);
	CHECK_EQ(param.lmr_triplet.virtual_address, (uintptr_t)(mb.at + 100));
	CHECK_EQ(param.lmr_triplet.segment_length, 50);
	down();
}

static void rmr_free__ends_the_binding(void)
{
	DAT_RMR_CONTEXT key;

	rmr_up();
	key = bound(0, 100, BOTH);
	CHECK_RET(dat_lmr_free(mb.lmr), DAT_INVALID_STATE);
	OK(read_with(key, 0, 100, 1));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	CHECK_RET(dat_rmr_free(rmr), DAT_SUCCESS);
	refused(key, 0, 100);
	CHECK_RET(dat_lmr_free(mb.lmr), DAT_SUCCESS);
	down();
}

/* --- dat_rmr_bind ------------------------------------------------------------------------------ */

static void rmr_bind__opens_a_range(void)
{
	DAT_RMR_CONTEXT key;

	rmr_up();
	key = bound(100, 5000, BOTH);
	fill(ma.at, 5000, 3);
	OK(write_with(key, 100, 5000, 1));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	OK(read_with(key, 101, 4999, 2));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at + 100, 5000, 3));
	CHECK(memcmp(ma.at + SIZE / 2, ma.at + 1, 4999) == 0);
	down();
}

static void rmr_bind__and_no_more(void)
{
	rmr_up();
	refused(bound(100, 50, BOTH), 99, 10);
	rmr_down();
	rmr_up();
	refused(bound(100, 50, BOTH), 100, 51);
	rmr_down();
	rmr_up();
	refused(bound(100, 50, WRITE), 100, 50);
	rmr_down();
}

static void rmr_bind__a_new_key_each_time(void)
{
	DAT_RMR_CONTEXT first, second;

	rmr_up();
	first = bound(0, 100, BOTH);
	second = bound(0, 100, BOTH);
	CHECK(first != second);
	OK(read_with(second, 0, 100, 1));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	refused(first, 0, 100);
	down();
}

static void rmr_bind__of_nothing_unbinds(void)
{
	DAT_RMR_CONTEXT key, none = 0;
	DAT_LMR_TRIPLET nothing = { 0 };

	rmr_up();
	key = bound(0, 100, BOTH);
	CHECK_RET(dat_lmr_free(mb.lmr), DAT_INVALID_STATE);
	OK(dx_rmr_bind(rmr, mb.lmr, &nothing, BOTH, p.ep_b, cookie(8), DAT_COMPLETION_DEFAULT_FLAG,
		       &none));
	expect_bind(8, DAT_RMR_BIND_SUCCESS);
	refused(key, 0, 100);
	CHECK_RET(dat_lmr_free(mb.lmr), DAT_SUCCESS);
	down();
}

/* The peer that gets the key in the next message can use it. */
static void rmr_bind__later_requests_wait(void)
{
	DAT_RMR_CONTEXT key = 0;
	DAT_LMR_TRIPLET in, out;

	rmr_up();
	for (DAT_UINT64 i = 0; i < 20; i++) {
		in = dx_local(ma.local, ma.at, sizeof key);
		OK(dat_ep_post_recv(p.ep_a, 1, &in, cookie(i), DAT_COMPLETION_DEFAULT_FLAG));
		OK(bind_mem(&mb, 200, 100, BOTH, i, DAT_COMPLETION_DEFAULT_FLAG, &key));
		memcpy(mb.at, &key, sizeof key);
		out = dx_local(mb.local, mb.at, sizeof key);
		OK(dat_ep_post_send(p.ep_b, 1, &out, cookie(i), DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.a.recv_evd, i, DAT_DTO_SUCCESS);
		memcpy(&key, ma.at, sizeof key);
		OK(write_with(key, 200, 100, i));
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		OK(read_with(key, 200, 100, i));
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		expect_bind(i, DAT_RMR_BIND_SUCCESS);
		EXPECT_DTO(p.b.request_evd, i, DAT_DTO_SUCCESS);
	}
	down();
}

static void rmr_bind__suppressed(void)
{
	DAT_RMR_CONTEXT key = 0;

	rmr_up();
	OK(bind_mem(&mb, 0, 100, BOTH, 1, DAT_COMPLETION_SUPPRESS_FLAG, &key));
	OK(bind_mem(&mb, 0, 100, BOTH, 2, DAT_COMPLETION_BARRIER_FENCE_FLAG, &key));
	expect_bind(2, DAT_RMR_BIND_SUCCESS);
	EXPECT_NOTHING(p.b.request_evd);
	OK(read_with(key, 0, 100, 3));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	down();
}

static void rmr_bind__arguments(void)
{
	DAT_RMR_CONTEXT key;
	DAT_LMR_TRIPLET range;
	struct mem other;
	DAT_PZ_HANDLE pz;
	DAT_COMPLETION_FLAGS usual = DAT_COMPLETION_DEFAULT_FLAG;

	rmr_up();
	range = dx_local(mb.local, mb.at, 10);
	CHECK_CODE(dx_rmr_bind(DAT_HANDLE_NULL, mb.lmr, &range, BOTH, p.ep_b, cookie(1), usual,
			       &key),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_RMR);
	CHECK_CODE(dx_rmr_bind(rmr, mb.lmr, &range, BOTH, DAT_HANDLE_NULL, cookie(1), usual, &key),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
	CHECK_RET(dx_rmr_bind(rmr, mb.lmr, NULL, BOTH, p.ep_b, cookie(1), usual, &key),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(bind_mem(&mb, SIZE - 5, 10, BOTH, 1, usual, &key), DAT_INVALID_PARAMETER);
	CHECK_RET(bind_mem(&mb, 0, 10, (DAT_MEM_PRIV_FLAGS)0x4000, 1, usual, &key),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(bind_mem(&mb, 0, 10, BOTH, 1, (DAT_COMPLETION_FLAGS)0x4000, &key),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(bind_mem(&mb, 0, 10, BOTH, 1, DAT_COMPLETION_UNSIGNALLED_FLAG, &key),
		  DAT_INVALID_PARAMETER);
	/* Rights that the LMR does not have itself. */
	other = make_mem(&p.b, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG);
	CHECK_RET(bind_mem(&other, 0, 10, WRITE, 1, usual, &key), DAT_PRIVILEGES_VIOLATION);
	CHECK_RET(bind_mem(&other, 0, 10, READ, 1, usual, &key), DAT_SUCCESS);
	expect_bind(1, DAT_RMR_BIND_SUCCESS);
	/* Three objects, one protection zone. */
	OK(dat_pz_create(p.b.ia, &pz));
	other = make_mem_in(p.b.ia, pz, 4096, DAT_MEM_PRIV_ALL_FLAG);
	CHECK_RET(bind_mem(&other, 0, 10, BOTH, 1, usual, &key), DAT_PROTECTION_VIOLATION);
	CHECK_RET(dat_rmr_free(rmr), DAT_SUCCESS);
	OK(dat_rmr_create(pz, &rmr));
	CHECK_RET(bind_mem(&other, 0, 10, BOTH, 1, usual, &key), DAT_PROTECTION_VIOLATION);
	CHECK_RET(bind_mem(&mb, 0, 10, BOTH, 1, usual, &key), DAT_PROTECTION_VIOLATION);
	EXPECT_NOTHING(p.b.request_evd);
	/* The context is optional for those who do not want it. */
	CHECK_RET(dat_rmr_free(rmr), DAT_SUCCESS);
	OK(dat_rmr_create(p.b.pz, &rmr));
	CHECK_RET(bind_mem(&mb, 0, 10, BOTH, 2, usual, NULL), DAT_SUCCESS);
	expect_bind(2, DAT_RMR_BIND_SUCCESS);
	down();
}

#ifdef DAT2
#define RANGE_ARG DAT_INVALID_ARG3
#else
#define RANGE_ARG DAT_INVALID_ARG2
#endif

/* A range has to be inside of its region, and to name it. */
static void rmr_bind__range_of_the_region(void)
{
	static const struct {
		long at;
		size_t size;
	} outside[] = { { -1, 10 },  { SIZE - 9, 10 }, { 0, SIZE + 1 },	   { -1, SIZE + 1 },
			{ SIZE, 1 }, { -4096, 10 },    { SIZE + 4096, 10 } };
	struct mem freed;
	DAT_RMR_CONTEXT key;
	DAT_LMR_TRIPLET range;

	rmr_up();
	for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
		CHECK_CODE(bind_mem(&mb, (size_t)outside[i].at, outside[i].size, BOTH, 1,
				    DAT_COMPLETION_DEFAULT_FLAG, &key),
			   DAT_INVALID_PARAMETER, RANGE_ARG);
	freed = make_mem(&p.b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	OK(dat_lmr_free(freed.lmr));
	range = dx_local(freed.local, mb.at, 10);
	CHECK_CODE(dx_rmr_bind(rmr, mb.lmr, &range, BOTH, p.ep_b, cookie(1),
			       DAT_COMPLETION_DEFAULT_FLAG, &key),
		   DAT_INVALID_PARAMETER, RANGE_ARG);
#ifdef DAT2
	range = dx_local(freed.local, freed.at, 10);
	CHECK_CODE(dx_rmr_bind(rmr, freed.lmr, &range, BOTH, p.ep_b, cookie(1),
			       DAT_COMPLETION_DEFAULT_FLAG, &key),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR);
#endif
	EXPECT_NOTHING(p.b.request_evd);
	/* All of it, its first byte and its last. */
	bound(0, SIZE, BOTH);
	bound(0, 1, BOTH);
	bound(SIZE - 1, 1, BOTH);
	free(freed.at);
	down();
}

static void rmr_bind__states(void)
{
	DAT_RMR_CONTEXT key, late;
	DAT_RMR_PARAM param;
	DAT_EP_HANDLE connected;

	rmr_up();
	connected = p.ep_b;
	p.ep_b = make_ep(&p.b, NULL);
	CHECK_RET(bind_mem(&mb, 0, 10, BOTH, 1, DAT_COMPLETION_DEFAULT_FLAG, &key),
		  DAT_INVALID_STATE);
	p.ep_b = connected;
	key = bound(0, 10, BOTH);
	OK(dat_ep_disconnect(p.ep_b, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	/* Flushed, and nothing has changed. */
	OK(bind_mem(&mb, 20, 10, READ, 2, DAT_COMPLETION_SUPPRESS_FLAG, &late));
	expect_bind(2, DAT_DTO_ERR_FLUSHED);
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK_EQ(param.rmr_context, key);
	CHECK_EQ(param.mem_priv, BOTH);
	down();
}

static void rmr_bind__needs_the_local_privilege(void)
{
	DAT_RMR_CONTEXT key;
	struct mem none, read;

	rmr_up();
	none = make_mem(&p.b, 4096, DAT_MEM_PRIV_NONE_FLAG);
	read = make_mem(&p.b, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG);
	CHECK_CODE(bind_mem(&none, 0, 10, READ, 1, DAT_COMPLETION_DEFAULT_FLAG, &key),
		   DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_RDMA_READ);
	CHECK_CODE(bind_mem(&none, 0, 10, WRITE, 1, DAT_COMPLETION_DEFAULT_FLAG, &key),
		   DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_RDMA_WRITE);
	CHECK_CODE(bind_mem(&read, 0, 10, WRITE, 1, DAT_COMPLETION_DEFAULT_FLAG, &key),
		   DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_RDMA_WRITE);
	CHECK_CODE(bind_mem(&read, 0, 10, BOTH, 1, DAT_COMPLETION_DEFAULT_FLAG, &key),
		   DAT_PRIVILEGES_VIOLATION, DAT_PRIVILEGES_RDMA_WRITE);
	CHECK_RET(bind_mem(&read, 0, 10, READ, 2, DAT_COMPLETION_DEFAULT_FLAG, &key), DAT_SUCCESS);
	expect_bind(2, DAT_RMR_BIND_SUCCESS);
	down();
}

/* A bind that was to be executed when the connection ended leaves the window as it was. */
static void rmr_bind__that_is_flushed(void)
{
	DAT_LMR_TRIPLET all;
	DAT_RMR_PARAM param;
	DAT_RMR_CONTEXT key, other = 0;
	struct mem mem;

	rmr_up();
	mem = make_mem(&p.b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	key = bound(100, 50, READ);
	all = dx_local(mb.local, mb.at, SIZE);
	/* Nobody receives it, so the bind waits behind it. */
	OK(dat_ep_post_send(p.ep_b, 1, &all, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	OK(bind_mem(&mem, 0, 10, BOTH, 2, DAT_COMPLETION_DEFAULT_FLAG, &other));
	OK(dat_ep_disconnect(p.ep_b, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_DTO(p.b.request_evd, 1, DAT_DTO_ERR_FLUSHED);
	expect_bind(2, DAT_DTO_ERR_FLUSHED);
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK_EQ(param.rmr_context, key);
	CHECK_EQ(param.mem_priv, READ);
	CHECK_EQ(param.lmr_triplet.lmr_context, mb.local);
	CHECK_EQ(param.lmr_triplet.segment_length, 50);
	free_mem(&mem);
	CHECK_CODE(dat_lmr_free(mb.lmr), DAT_INVALID_STATE, DAT_INVALID_STATE_LMR_IN_USE);
	down();
}

/* Large messages that nobody receives take all room there is, the sockets' too. */
static void rmr_bind__queue_full(void)
{
	DAT_RMR_CONTEXT key;
	DAT_LMR_TRIPLET all;
	DAT_COUNT taken = 0;
	DAT_RETURN ret;

	rmr_up();
	all = dx_local(mb.local, mb.at, SIZE);
	/* What has left makes room once more, until the peer takes nothing either. */
	do {
		while (dat_ep_post_send(p.ep_b, 1, &all, cookie(1), DAT_COMPLETION_SUPPRESS_FLAG) ==
		       DAT_SUCCESS)
			;
		ret = bind_mem(&mb, 0, 10, BOTH, 2, DAT_COMPLETION_SUPPRESS_FLAG, &key);
		taken += ret == DAT_SUCCESS;
	} while (ret == DAT_SUCCESS && taken < 1000);
	CHECK_RET(ret, DAT_INSUFFICIENT_RESOURCES);
	down();
}

static void rmr_bind__unsignalled(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_RMR_CONTEXT key;
	DAT_EVD_HANDLE from;
	DAT_CNO_HANDLE cno;

	attr.request_completion_flags = DAT_COMPLETION_UNSIGNALLED_FLAG;
	rigs_up();
	p.b.request_evd = make_evd(p.b.ia, 64, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG);
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, &attr);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	OK(dat_rmr_create(p.b.pz, &rmr));
	OK(dat_cno_create(p.b.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(p.b.request_evd, cno));
	OK(bind_mem(&mb, 0, 10, BOTH, 1, DAT_COMPLETION_UNSIGNALLED_FLAG, &key));
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	OK(bind_mem(&mb, 0, 10, BOTH, 2, DAT_COMPLETION_DEFAULT_FLAG, &key));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	expect_bind(1, DAT_RMR_BIND_SUCCESS);
	expect_bind(2, DAT_RMR_BIND_SUCCESS);
	CHECK_RET(bind_mem(&mb, 0, 10, BOTH, 3, DAT_COMPLETION_SOLICITED_WAIT_FLAG, &key),
		  DAT_INVALID_PARAMETER);
	down();
}

#ifdef DAT2
static void rmr_bind__zero_based(void)
{
	DAT_RMR_CONTEXT key;
	DAT_LMR_TRIPLET range;
	DAT_RETURN ret;

	rmr_up();
	range = dx_local(mb.local, mb.at, 10);
	ret = dat_rmr_bind(rmr, mb.lmr, &range, BOTH, DAT_VA_TYPE_ZB, p.ep_b, cookie(1),
			   DAT_COMPLETION_DEFAULT_FLAG, &key);
	if (p.b.attr.zb_supported) {
		CHECK_RET(ret, DAT_SUCCESS);
		expect_bind(1, DAT_RMR_BIND_SUCCESS);
	} else {
		CHECK_RET(ret, DAT_MODEL_NOT_SUPPORTED);
		EXPECT_NOTHING(p.b.request_evd);
	}
	down();
}
#endif

/* Programs keep triplets in structures that are packed, and have keys written into those. */
static void rmr_bind__triplet_that_is_not_aligned(void)
{
	struct __attribute__((packed)) message {
		char before;
		DAT_LMR_TRIPLET range;
		DAT_RMR_CONTEXT key, remote;
		DAT_LMR_CONTEXT local;
		DAT_VLEN length;
		DAT_VADDR address;
	} packed;
	char *const base = (char *)&packed;
	DAT_LMR_TRIPLET *const range = (void *)(base + offsetof(struct message, range));
	DAT_RMR_CONTEXT *const key = (void *)(base + offsetof(struct message, key));
	DAT_RMR_CONTEXT *const remote = (void *)(base + offsetof(struct message, remote));
	DAT_LMR_CONTEXT *const local = (void *)(base + offsetof(struct message, local));
	DAT_VLEN *const length = (void *)(base + offsetof(struct message, length));
	DAT_VADDR *const address = (void *)(base + offsetof(struct message, address));
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE lmr;

	rmr_up();
	memset(&region, 0, sizeof region);
	region.for_va = mb.at;
	OK(dx_lmr_create(p.b.ia, DAT_MEM_TYPE_VIRTUAL, region, SIZE, p.b.pz, DAT_MEM_PRIV_ALL_FLAG,
			 &lmr, local, remote, length, address));
	CHECK_EQ(packed.length, SIZE);
	CHECK_EQ(packed.address, (uintptr_t)mb.at);
	packed.range = dx_local(packed.local, mb.at, 100);
	OK(dat_lmr_sync_rdma_read(p.b.ia, range, 1));
	OK(dat_lmr_sync_rdma_write(p.b.ia, range, 1));
	OK(dx_rmr_bind(rmr, lmr, range, BOTH, p.ep_b, cookie(1), DAT_COMPLETION_DEFAULT_FLAG, key));
	expect_bind(1, DAT_RMR_BIND_SUCCESS);
	fill(ma.at, 100, 1);
	OK(write_with(packed.key, 0, 100, 2));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	OK(read_with(packed.key, 0, 100, 3));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	CHECK(filled(ma.at + SIZE / 2, 100, 1));
	down();
}

static const struct tap_test tests[] = {
	T(rmr_create, and_query),
	T(rmr_create, arguments),
	T(rmr_query, what_is_bound),
	T(rmr_free, ends_the_binding),
	T(rmr_bind, opens_a_range),
	T(rmr_bind, triplet_that_is_not_aligned),
	T(rmr_bind, and_no_more),
	T(rmr_bind, a_new_key_each_time),
	T(rmr_bind, of_nothing_unbinds),
	T(rmr_bind, later_requests_wait),
	T(rmr_bind, suppressed),
	T(rmr_bind, arguments),
	T(rmr_bind, range_of_the_region),
	T(rmr_bind, states),
	T(rmr_bind, needs_the_local_privilege),
	T(rmr_bind, that_is_flushed),
	T(rmr_bind, queue_full),
	T(rmr_bind, unsignalled),
#ifdef DAT2
	T(rmr_bind, zero_based),
#endif
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
