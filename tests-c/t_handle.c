/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Handles that are none: NULL, odd, small, wild, freed, pointers into other memory, and handles
 * of other objects. Every function must answer DAT_INVALID_HANDLE and must not touch what the
 * value points to. One test for each function and handle argument.
 */
#include "common.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* One object of each type, to be taken for others. */
static struct rig rig;
static struct mem mem;
static DAT_EP_HANDLE ep;
static DAT_PSP_HANDLE psp;
static DAT_CR_HANDLE cr;
static DAT_CNO_HANDLE cno;
static DAT_CONN_QUAL qualifier;

static struct {
	DAT_HANDLE handle;
	DAT_HANDLE_TYPE type;
} live[16];
static int live_count;

static void alive(DAT_HANDLE handle, DAT_HANDLE_TYPE type)
{
	live[live_count].handle = handle;
	live[live_count++].type = type;
}

static void up(void)
{
	DAT_EP_HANDLE active;

	rig_up(&rig);
	mem = make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG);
	ep = make_ep(&rig, NULL);
	active = make_ep(&rig, NULL);
	psp = listen_any(&rig, &qualifier);
	OK(dat_cno_create(rig.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(try_connect(active, &rig, qualifier, SOON));
	cr = await_request(&rig);
	alive(rig.ia, DAT_HANDLE_TYPE_IA);
	alive(rig.pz, DAT_HANDLE_TYPE_PZ);
	alive(rig.recv_evd, DAT_HANDLE_TYPE_EVD);
	alive(mem.lmr, DAT_HANDLE_TYPE_LMR);
	alive(ep, DAT_HANDLE_TYPE_EP);
	alive(psp, DAT_HANDLE_TYPE_PSP);
	alive(cr, DAT_HANDLE_TYPE_CR);
	alive(cno, DAT_HANDLE_TYPE_CNO);
}

/* A handle that was one of this type. */
static DAT_HANDLE freed(DAT_HANDLE_TYPE type)
{
	DAT_PZ_HANDLE pz;
	DAT_EVD_HANDLE evd;
	DAT_CNO_HANDLE other_cno;
	DAT_CONN_QUAL other_qualifier;
	DAT_PSP_HANDLE other_psp;
	DAT_EP_HANDLE other_ep;
	DAT_IA_HANDLE ia;
	struct mem other_mem;

	switch (type) {
	case DAT_HANDLE_TYPE_IA:
		ia = open_ia(NULL);
		OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
		return ia;
	case DAT_HANDLE_TYPE_PZ:
		OK(dat_pz_create(rig.ia, &pz));
		OK(dat_pz_free(pz));
		return pz;
	case DAT_HANDLE_TYPE_EVD:
		evd = make_evd(rig.ia, 8, DAT_EVD_SOFTWARE_FLAG);
		OK(dat_evd_free(evd));
		return evd;
	case DAT_HANDLE_TYPE_CNO:
		OK(dat_cno_create(rig.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &other_cno));
		OK(dat_cno_free(other_cno));
		return other_cno;
	case DAT_HANDLE_TYPE_PSP:
		other_psp = listen_any(&rig, &other_qualifier);
		OK(dat_psp_free(other_psp));
		return other_psp;
	case DAT_HANDLE_TYPE_EP:
		other_ep = make_ep(&rig, NULL);
		OK(dat_ep_free(other_ep));
		return other_ep;
	case DAT_HANDLE_TYPE_LMR: {
		DAT_LMR_HANDLE lmr;

		other_mem = make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG);
		lmr = other_mem.lmr;
		free_mem(&other_mem);
		return lmr;
	}
	default:
		return DAT_HANDLE_NULL;
	}
}

typedef DAT_RETURN (*call_fn)(DAT_HANDLE handle);

static void check_one(const char *what, call_fn call, DAT_HANDLE handle)
{
	DAT_RETURN ret = call(handle);

	if (DAT_GET_TYPE(ret) != DAT_INVALID_HANDLE)
		tap_fail(__FILE__, __LINE__, "%s (%p) gives 0x%08x", what, (void *)handle,
			 (unsigned)ret);
}

/* A living object of another type. A function that a provider has not got says just that. */
static void check_other_type(call_fn call, DAT_HANDLE handle)
{
	if (DAT_GET_TYPE(call(handle)) != DAT_GET_TYPE(DAT_NOT_IMPLEMENTED))
		check_one("an object of another type", call, handle);
}

/* A handle of `type` is wanted; any: every living object will do. */
static void check_call(call_fn call, DAT_HANDLE_TYPE type, bool any)
{
	static const uint64_t wild[] = {
		1,
		2,
		3,
		4,
		7,
		8,
		16,
		63,
		64,
		255,
		256,
		4096,
		0x7fffffff,
		0x80000000,
		0xffffffff,
		0x100000000,
		0x7fffffffffff,
		0x800000000000,
		0x8000000000000000,
		0xdeadbeefdeadbeef,
		0xfffffffffffffff8,
		0xffffffffffffffff,
	};
	char on_stack[256];
	void *on_heap = calloc(1, 4096);
	void *forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t random = 88172645463325252u;

	up();
	REQUIRE(on_heap != NULL && forbidden != MAP_FAILED);
	memset(on_stack, 0x5a, sizeof on_stack);
	check_one("NULL", call, DAT_HANDLE_NULL);
	for (size_t i = 0; i < sizeof wild / sizeof *wild; i++)
		check_one("a wild value", call, (DAT_HANDLE)(uintptr_t)wild[i]);
	check_one("the stack", call, (DAT_HANDLE)on_stack);
	check_one("the heap", call, (DAT_HANDLE)on_heap);
	check_one("code", call, (DAT_HANDLE)(uintptr_t)check_call);
	check_one("memory that cannot be read", call, (DAT_HANDLE)forbidden);
	for (int i = 0; i < 1000; i++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		check_one("a random value", call, (DAT_HANDLE)(uintptr_t)random);
	}
	for (int i = 0; i < live_count; i++) {
		uintptr_t value = (uintptr_t)live[i].handle;

		/* Around a handle that is valid, but not on it. */
		for (uintptr_t off = 1; off <= 7; off++) {
			check_one("beside a handle", call, (DAT_HANDLE)(value + off));
			check_one("beside a handle", call, (DAT_HANDLE)(value - off));
		}
		check_one("far from a handle", call, (DAT_HANDLE)(value + (1 << 20)));
		check_one("a handle and a high bit", call,
			  (DAT_HANDLE)(value ^ (uintptr_t)1 << (8 * sizeof value - 2)));
		if (!any && live[i].type != type)
			check_other_type(call, live[i].handle);
	}
	/* CRs die in a connection of their own; see t_cr. */
	if (type != DAT_HANDLE_TYPE_CR)
		check_one("a freed handle", call, freed(type));
	/* None of this hurt the living. */
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_UNCONNECTED);
	rig_down(&rig);
	free(on_heap);
}

/* --- the calls: everything else in them is in order ------------------------------------------ */

static DAT_LMR_TRIPLET segment(void)
{
	return dx_local(mem.local, mem.at, 8);
}

static DAT_RMR_TRIPLET range(void)
{
	return dx_remote(mem.remote, mem.at, 8);
}

static DAT_REGION_DESCRIPTION region(void)
{
	DAT_REGION_DESCRIPTION r;

	memset(&r, 0, sizeof r);
	r.for_va = mem.at;
	return r;
}

#define CALLS(X)                                                                                   \
	X(ia_close, IA, , dat_ia_close(h, DAT_CLOSE_ABRUPT_FLAG))                                  \
	X(ia_query, IA, DAT_EVD_HANDLE o, dat_ia_query(h, &o, 0, NULL, 0, NULL))                   \
	X(pz_create, IA, DAT_PZ_HANDLE o, dat_pz_create(h, &o))                                    \
	X(pz_query, PZ, DAT_PZ_PARAM o, dat_pz_query(h, DAT_PZ_FIELD_ALL, &o))                     \
	X(pz_free, PZ, , dat_pz_free(h))                                                           \
	X(lmr_create_ia, IA, DAT_LMR_HANDLE o,                                                     \
	  dx_lmr_create(h, DAT_MEM_TYPE_VIRTUAL, region(), 8, rig.pz, DAT_MEM_PRIV_ALL_FLAG, &o,   \
			NULL, NULL, NULL, NULL))                                                   \
	X(lmr_create_pz, PZ, DAT_LMR_HANDLE o,                                                     \
	  dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, region(), 8, h, DAT_MEM_PRIV_ALL_FLAG, &o,   \
			NULL, NULL, NULL, NULL))                                                   \
	X(lmr_query, LMR, DAT_LMR_PARAM o, dat_lmr_query(h, DAT_LMR_FIELD_ALL, &o))                \
	X(lmr_free, LMR, , dat_lmr_free(h))                                                        \
	X(lmr_sync_rdma_read, IA, DAT_LMR_TRIPLET t = segment(), dat_lmr_sync_rdma_read(h, &t, 1)) \
	X(lmr_sync_rdma_write, IA, DAT_LMR_TRIPLET t = segment(),                                  \
	  dat_lmr_sync_rdma_write(h, &t, 1))                                                       \
	X(evd_create, IA, DAT_EVD_HANDLE o,                                                        \
	  dat_evd_create(h, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &o))                             \
	X(evd_query, EVD, DAT_EVD_PARAM o, dat_evd_query(h, DAT_EVD_FIELD_ALL, &o))                \
	X(evd_modify_cno, EVD, , dat_evd_modify_cno(h, DAT_HANDLE_NULL))                           \
	X(evd_enable, EVD, , dat_evd_enable(h))                                                    \
	X(evd_disable, EVD, , dat_evd_disable(h))                                                  \
	X(evd_set_unwaitable, EVD, , dat_evd_set_unwaitable(h))                                    \
	X(evd_clear_unwaitable, EVD, , dat_evd_clear_unwaitable(h))                                \
	X(evd_resize, EVD, , dat_evd_resize(h, 100))                                               \
	X(evd_wait, EVD, DAT_EVENT o; DAT_COUNT more, dat_evd_wait(h, 0, 1, &o, &more))            \
	X(evd_dequeue, EVD, DAT_EVENT o, dat_evd_dequeue(h, &o))                                   \
	X(evd_post_se, EVD, DAT_EVENT e = software_event(0), dat_evd_post_se(h, &e))               \
	X(evd_free, EVD, , dat_evd_free(h))                                                        \
	X(cno_create, IA, DAT_CNO_HANDLE o, dat_cno_create(h, DAT_OS_WAIT_PROXY_AGENT_NULL, &o))   \
	X(cno_query, CNO, DAT_CNO_PARAM o, dat_cno_query(h, DAT_CNO_FIELD_ALL, &o))                \
	X(cno_modify_agent, CNO, , dat_cno_modify_agent(h, DAT_OS_WAIT_PROXY_AGENT_NULL))          \
	X(cno_wait, CNO, DAT_EVD_HANDLE o, dat_cno_wait(h, 0, &o))                                 \
	X(cno_free, CNO, , dat_cno_free(h))                                                        \
	X(psp_create_ia, IA, DAT_PSP_HANDLE o,                                                     \
	  dat_psp_create(h, 7, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &o))                             \
	X(psp_create_evd, EVD, DAT_PSP_HANDLE o,                                                   \
	  dat_psp_create(rig.ia, 7, h, DAT_PSP_CONSUMER_FLAG, &o))                                 \
	X(psp_create_any_ia, IA, DAT_PSP_HANDLE o;                                                 \
	  DAT_CONN_QUAL q, dat_psp_create_any(h, &q, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &o))       \
	X(psp_create_any_evd, EVD, DAT_PSP_HANDLE o;                                               \
	  DAT_CONN_QUAL q, dat_psp_create_any(rig.ia, &q, h, DAT_PSP_CONSUMER_FLAG, &o))           \
	X(psp_query, PSP, DAT_PSP_PARAM o, dat_psp_query(h, DAT_PSP_FIELD_ALL, &o))                \
	X(psp_free, PSP, , dat_psp_free(h))                                                        \
	X(cr_query, CR, DAT_CR_PARAM o, dat_cr_query(h, DAT_CR_FIELD_ALL, &o))                     \
	X(cr_accept_cr, CR, , dat_cr_accept(h, ep, 0, NULL))                                       \
	X(cr_accept_ep, EP, , dat_cr_accept(cr, h, 0, NULL))                                       \
	X(cr_reject, CR, , dx_cr_reject(h))                                                        \
	X(cr_handoff, CR, , dat_cr_handoff(h, 7))                                                  \
	X(ep_create_ia, IA, DAT_EP_HANDLE o,                                                       \
	  dat_ep_create(h, rig.pz, rig.recv_evd, rig.request_evd, rig.connect_evd, NULL, &o))      \
	X(ep_query, EP, DAT_EP_PARAM o, dat_ep_query(h, DAT_EP_FIELD_ALL, &o))                     \
	X(ep_modify, EP, DAT_EP_PARAM o = { 0 },                                                   \
	  dat_ep_modify(h, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &o))                                \
	X(ep_get_status, EP, DAT_EP_STATE o, dat_ep_get_status(h, &o, NULL, NULL))                 \
	X(ep_connect, EP, , try_connect(h, &rig, qualifier, SOON))                                 \
	X(ep_dup_connect, EP, , dat_ep_dup_connect(h, ep, SOON, 0, NULL, DAT_QOS_BEST_EFFORT))     \
	X(ep_disconnect, EP, , dat_ep_disconnect(h, DAT_CLOSE_ABRUPT_FLAG))                        \
	X(ep_reset, EP, , dat_ep_reset(h))                                                         \
	X(ep_free, EP, , dat_ep_free(h))                                                           \
	X(ep_recv_query, EP, DAT_COUNT n; DAT_COUNT span, dat_ep_recv_query(h, &n, &span))         \
	X(ep_set_watermark, EP, , dat_ep_set_watermark(h, 5, 5))                                   \
	X(ep_post_send, EP, DAT_LMR_TRIPLET t = segment(),                                         \
	  dat_ep_post_send(h, 1, &t, cookie(1), DAT_COMPLETION_DEFAULT_FLAG))                      \
	X(ep_post_recv, EP, DAT_LMR_TRIPLET t = segment(),                                         \
	  dat_ep_post_recv(h, 1, &t, cookie(1), DAT_COMPLETION_DEFAULT_FLAG))                      \
	X(ep_post_rdma_write, EP, DAT_LMR_TRIPLET t = segment();                                   \
	  DAT_RMR_TRIPLET r = range(),                                                             \
	  dat_ep_post_rdma_write(h, 1, &t, cookie(1), &r, DAT_COMPLETION_DEFAULT_FLAG))            \
	X(ep_post_rdma_read, EP, DAT_LMR_TRIPLET t = segment();                                    \
	  DAT_RMR_TRIPLET r = range(),                                                             \
	  dat_ep_post_rdma_read(h, 1, &t, cookie(1), &r, DAT_COMPLETION_DEFAULT_FLAG))             \
	X(rmr_create, PZ, DAT_RMR_HANDLE o, dat_rmr_create(h, &o))                                 \
	X(rmr_query, RMR, DAT_RMR_PARAM o, dat_rmr_query(h, DAT_RMR_FIELD_ALL, &o))                \
	X(rmr_bind, RMR, DAT_LMR_TRIPLET t = segment();                                            \
	  DAT_RMR_CONTEXT o, dx_rmr_bind(h, mem.lmr, &t, DAT_MEM_PRIV_ALL_FLAG, ep, cookie(1),     \
					 DAT_COMPLETION_DEFAULT_FLAG, &o))                         \
	X(rmr_free, RMR, , dat_rmr_free(h))                                                        \
	X(rsp_create, IA, DAT_RSP_HANDLE o, dat_rsp_create(h, 7, ep, rig.cr_evd, &o))              \
	X(rsp_query, RSP, DAT_RSP_PARAM o, dat_rsp_query(h, DAT_RSP_FIELD_ALL, &o))                \
	X(rsp_free, RSP, , dat_rsp_free(h))                                                        \
	X(srq_create, IA, DAT_SRQ_HANDLE o;                                                        \
	  DAT_SRQ_ATTR a = { 0 }, dat_srq_create(h, rig.pz, &a, &o))                               \
	X(srq_query, SRQ, DAT_SRQ_PARAM o, dat_srq_query(h, DAT_SRQ_FIELD_ALL, &o))                \
	X(srq_post_recv, SRQ, DAT_LMR_TRIPLET t = segment(),                                       \
	  dat_srq_post_recv(h, 1, &t, cookie(1)))                                                  \
	X(srq_resize, SRQ, , dat_srq_resize(h, 100))                                               \
	X(srq_set_lw, SRQ, , dat_srq_set_lw(h, 1))                                                 \
	X(srq_free, SRQ, , dat_srq_free(h))

/* Functions that take a handle of any type. */
#define GENERIC_CALLS(X)                                                        \
	X(get_consumer_context, DAT_CONTEXT o, dat_get_consumer_context(h, &o)) \
	X(set_consumer_context, , dat_set_consumer_context(h, cookie(1)))       \
	X(get_handle_type, DAT_HANDLE_TYPE o, dat_get_handle_type(h, &o))

#define DEFINE(name, kind, variables, call)                             \
	static DAT_RETURN call_##name(DAT_HANDLE h)                     \
	{                                                               \
		variables;                                              \
		return call;                                            \
	}                                                               \
	static void handle__##name(void)                                \
	{                                                               \
		check_call(call_##name, DAT_HANDLE_TYPE_##kind, false); \
	}
CALLS(DEFINE)

#define DEFINE_GENERIC(name, variables, call)                      \
	static DAT_RETURN call_##name(DAT_HANDLE h)                \
	{                                                          \
		variables;                                         \
		return call;                                       \
	}                                                          \
	static void handle__##name(void)                           \
	{                                                          \
		check_call(call_##name, DAT_HANDLE_TYPE_PZ, true); \
	}
GENERIC_CALLS(DEFINE_GENERIC)

#define LIST(name, kind, variables, call) T(handle, name),
#define LIST_GENERIC(name, variables, call) T(handle, name),
static const struct tap_test tests[] = {
	CALLS(LIST) GENERIC_CALLS(LIST_GENERIC) TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
