/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Each call that makes something, without memory: it gives DAT_INSUFFICIENT_RESOURCES, nothing has
 * changed, and the same call succeeds when there is memory. What ends something needs no memory. What
 * may be of any size is in t_memory_many.
 */
#include "makers.h"
#include "no_memory.h"

#ifdef DAT2
#include <dat2/dat_registry.h>
#else
#include <dat/dat_registry.h>
#endif

#include <string.h>
#include <unistd.h>

/* --- one call --------------------------------------------------------------------------------- */

enum { PZS = 1000 };

static DAT_PZ_HANDLE pzs[PZS];
static int pz_count;

/* No allocation of the library succeeds from now on, in no thread, and its reserve is not complete: nothing
 * new is begun. */
static void take_all_memory(void)
{
	DAT_RETURN ret = DAT_SUCCESS;

	fail_allocations((struct failing){ .first = 1, .and_later = true, .any_thread = true });
	while (pz_count < PZS && (ret = dat_pz_create(made_in.ia, &pzs[pz_count])) == DAT_SUCCESS)
		pz_count++;
	REQUIRE(is_refused(ret));
}

/* There is memory again, and what take_all_memory() has made is gone. */
static void give_memory_back(void)
{
	stop_failing();
	while (pz_count > 0)
		OK(dat_pz_free(pzs[--pz_count]));
}

/* The call fails for an allocation that has failed. */
#define REFUSED(call) refused(__LINE__, #call, (call))

static void refused(int line, const char *call, DAT_RETURN ret)
{
	check_ret(__FILE__, line, call, ret, DAT_INSUFFICIENT_RESOURCES);
	CHECK(allocations_failed() > 0);
}

/* An object is made with memory, and not without. */
static void made_with_memory(DAT_RETURN (*make)(DAT_HANDLE *), DAT_RETURN (*unmake)(DAT_HANDLE))
{
	DAT_HANDLE made = DAT_HANDLE_NULL;

	need_our_malloc();
	rig_up(&made_in);
	take_all_memory();
	REFUSED(make(&made));
	CHECK(made == DAT_HANDLE_NULL);
	give_memory_back();
	OK(make(&made));
	OK(unmake(made));
	RIG_DOWN_UNUSED(&made_in);
}

static void pz_create__no_memory(void)
{
	made_with_memory(a_pz, dat_pz_free);
}

static void cno_create__no_memory(void)
{
	made_with_memory(a_cno, dat_cno_free);
}

static void evd_create__no_memory(void)
{
	made_with_memory(an_evd, dat_evd_free);
}

static void ep_create__no_memory(void)
{
	made_with_memory(an_ep, dat_ep_free);
}

static void srq_create__no_memory(void)
{
	made_with_memory(an_srq, dat_srq_free);
}

static void lmr_create__no_memory(void)
{
	made_with_memory(an_lmr, dat_lmr_free);
}

static void rmr_create__no_memory(void)
{
	made_with_memory(an_rmr, dat_rmr_free);
}

static void psp_create_any__no_memory(void)
{
	made_with_memory(a_psp, dat_psp_free);
}

/* The qualifier is free after the refusal. */
static DAT_CONN_QUAL qualifier;

static DAT_RETURN a_psp_of(DAT_HANDLE *made)
{
	return dat_psp_create(made_in.ia, qualifier, made_in.cr_evd, DAT_PSP_CONSUMER_FLAG,
			      (DAT_PSP_HANDLE *)made);
}

static void psp_create__no_memory(void)
{
	qualifier = (DAT_CONN_QUAL)getpid() << 32 | 1;
	made_with_memory(a_psp_of, dat_psp_free);
}

/* Objects that are made of others. */
static void rsp_create__no_memory(void)
{
	DAT_HANDLE ep;
	DAT_RSP_HANDLE rsp = DAT_HANDLE_NULL;

	need_our_malloc();
	rig_up(&made_in);
	qualifier = (DAT_CONN_QUAL)getpid() << 32 | 2;
	OK(an_ep(&ep));
	take_all_memory();
	REFUSED(dat_rsp_create(made_in.ia, qualifier, ep, made_in.cr_evd, &rsp));
	CHECK(rsp == DAT_HANDLE_NULL);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_UNCONNECTED);
	give_memory_back();
	OK(dat_rsp_create(made_in.ia, qualifier, ep, made_in.cr_evd, &rsp));
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_RESERVED);
	OK(dat_rsp_free(rsp));
	OK(dat_ep_free(ep));
	RIG_DOWN_UNUSED(&made_in);
}

static void ep_create_with_srq__no_memory(void)
{
	DAT_EP_HANDLE ep = DAT_HANDLE_NULL;
	DAT_HANDLE srq;
	DAT_EP_ATTR attr;

	need_our_malloc();
	rig_up(&made_in);
	OK(an_srq(&srq));
	attr = ep_attr(&made_in);
	take_all_memory();
	REFUSED(dat_ep_create_with_srq(made_in.ia, made_in.pz, made_in.recv_evd,
				       made_in.request_evd, made_in.connect_evd, srq, &attr, &ep));
	CHECK(ep == DAT_HANDLE_NULL);
	give_memory_back();
	OK(dat_ep_create_with_srq(made_in.ia, made_in.pz, made_in.recv_evd, made_in.request_evd,
				  made_in.connect_evd, srq, &attr, &ep));
	OK(dat_ep_free(ep));
	OK(dat_srq_free(srq));
	RIG_DOWN_UNUSED(&made_in);
}

static void ia_open__no_memory(void)
{
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;

	need_our_malloc();
	rig_up(&made_in);
	take_all_memory();
	REFUSED(dat_ia_open((DAT_NAME_PTR)(uintptr_t)tap_ia, 8, &evd, &ia));
	CHECK(evd == DAT_HANDLE_NULL);
	CHECK(ia == DAT_HANDLE_NULL);
	give_memory_back();
	OK(dat_ia_open((DAT_NAME_PTR)(uintptr_t)tap_ia, 8, &evd, &ia));
	OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
	RIG_DOWN_UNUSED(&made_in);
}

static void registry_add_provider__no_memory(void)
{
	static DAT_PROVIDER provider;
	static char name[] = "memory-adapter";
	DAT_PROVIDER_INFO info = { .dapl_version_major = DX_MAJOR, .dapl_version_minor = DX_MINOR };

	need_our_malloc();
	rig_up(&made_in);
	strcpy(info.ia_name, name);
	provider.device_name = name;
	take_all_memory();
	REFUSED(dat_registry_add_provider(&provider, &info));
	give_memory_back();
	/* It is not there. */
	OK(dat_registry_add_provider(&provider, &info));
	OK(dat_registry_remove_provider(&provider, &info));
	RIG_DOWN_UNUSED(&made_in);
}

static DAT_COUNT length_of(DAT_EVD_HANDLE evd)
{
	DAT_EVD_PARAM param;

	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	return param.evd_qlen;
}

static void evd_resize__no_memory(void)
{
	DAT_EVENT event = { .event_number = DAT_SOFTWARE_EVENT };
	DAT_EVD_HANDLE evd;
	DAT_COUNT before;

	need_our_malloc();
	rig_up(&made_in);
	evd = make_evd(made_in.ia, 8, DAT_EVD_SOFTWARE_FLAG);
	before = length_of(evd);
	OK(dat_evd_post_se(evd, &event));
	take_all_memory();
	REFUSED(dat_evd_resize(evd, before + 100));
	CHECK_EQ(length_of(evd), before);
	give_memory_back();
	OK(dat_evd_resize(evd, before + 100));
	CHECK(length_of(evd) >= before + 100);
	/* No event is lost. */
	EXPECT(evd, DAT_SOFTWARE_EVENT);
	OK(dat_evd_free(evd));
	RIG_DOWN_UNUSED(&made_in);
}

static void srq_resize__no_memory(void)
{
	DAT_SRQ_PARAM param;
	DAT_HANDLE srq;

	need_our_malloc();
	rig_up(&made_in);
	OK(an_srq(&srq));
	OK(dat_srq_post_recv(srq, 0, NULL, cookie(1)));
	take_all_memory();
	REFUSED(dat_srq_resize(srq, 400));
	OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
	CHECK(param.max_recv_dtos < 400);
	CHECK_EQ(param.available_dto_count, 1);
	give_memory_back();
	OK(dat_srq_resize(srq, 400));
	OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
	CHECK(param.max_recv_dtos >= 400);
	CHECK_EQ(param.available_dto_count, 1);
	OK(dat_srq_free(srq));
	RIG_DOWN_UNUSED(&made_in);
}

/* --- connections ------------------------------------------------------------------------------ */

/* A connection of two endpoints of the rig, and a third endpoint. */
static void connect_one(DAT_HANDLE *first, DAT_HANDLE *second, DAT_HANDLE *third)
{
	need_our_malloc();
	rig_up(&made_in);
	OK(an_ep(first));
	OK(an_ep(second));
	OK(an_ep(third));
	qualifier = free_qualifier(&made_in);
	connect_eps(&made_in, *first, &made_in, *second);
}

/* Frees what connect_one() has made. */
static void end_one(DAT_HANDLE first, DAT_HANDLE second, DAT_HANDLE third)
{
	OK(dat_ep_free(first));
	OK(dat_ep_free(second));
	OK(dat_ep_free(third));
	RIG_DOWN_UNUSED(&made_in);
}

/* The third endpoint is as before, although there was no memory to connect it. */
static void check_unconnected(DAT_EP_HANDLE ep)
{
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_UNCONNECTED);
	EXPECT_NOTHING(made_in.connect_evd);
}

/* No one listens: that shows that the attempt has begun. */
static void expect_no_listener(void)
{
	EXPECT(made_in.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
}

static void ep_connect__no_memory(void)
{
	DAT_HANDLE first, second, third;

	connect_one(&first, &second, &third);
	take_all_memory();
	REFUSED(try_connect(third, &made_in, qualifier, SOON));
	check_unconnected(third);
	give_memory_back();
	OK(try_connect(third, &made_in, qualifier, SOON));
	expect_no_listener();
	end_one(first, second, third);
}

static void ep_dup_connect__no_memory(void)
{
	DAT_HANDLE first, second, third;

	connect_one(&first, &second, &third);
	take_all_memory();
	REFUSED(dat_ep_dup_connect(third, first, SOON, 0, NULL, DAT_QOS_BEST_EFFORT));
	check_unconnected(third);
	give_memory_back();
	OK(dat_ep_dup_connect(third, first, SOON, 0, NULL, DAT_QOS_BEST_EFFORT));
	expect_no_listener();
	end_one(first, second, third);
}

/* Whether the next completion is a success of this cookie. A connection that finds no memory may break:
 * what was posted is flushed then. */
static bool done(DAT_EVD_HANDLE evd, DAT_UINT64 value)
{
	DAT_DTO_COMPLETION_EVENT_DATA dto =
		EXPECT(evd, DAT_DTO_COMPLETION_EVENT).event_data.dto_completion_event_data;

	CHECK_EQ(dto.user_cookie.as_64, value);
	if (dto.status != DAT_DTO_SUCCESS)
		CHECK_EQ(dto.status, DAT_DTO_ERR_FLUSHED);
	return dto.status == DAT_DTO_SUCCESS;
}

/* Posts need no memory, so that they never wait and can be made in an upcall. */
static void post__needs_no_memory(void)
{
	enum { SIZE = 4096, ROUNDS = 50 };
	const DAT_COMPLETION_FLAGS flags = DAT_COMPLETION_DEFAULT_FLAG;
	DAT_HANDLE first, second, third;
	DAT_LMR_TRIPLET from, to;
	DAT_RMR_TRIPLET remote;
	bool goes_on = true;
	struct mem mem;

	connect_one(&first, &second, &third);
	mem = make_mem(&made_in, 2 * SIZE, DAT_MEM_PRIV_ALL_FLAG);
	from = dx_local(mem.local, mem.at, SIZE);
	to = dx_local(mem.local, mem.at + SIZE, SIZE);
	remote = dx_remote(mem.remote, mem.at + SIZE, SIZE);
	take_all_memory();
	for (unsigned i = 0; i < ROUNDS && goes_on; i++) {
		fill(mem.at, SIZE, i);
		OK(dat_ep_post_recv(second, 1, &to, cookie(1), flags));
		OK(dat_ep_post_send(first, 1, &from, cookie(2), flags));
		goes_on = done(made_in.request_evd, 2) && goes_on;
		goes_on = done(made_in.recv_evd, 1) && goes_on;
		CHECK(!goes_on || filled(mem.at + SIZE, SIZE, i));
		OK(dat_ep_post_rdma_write(first, 1, &from, cookie(3), &remote, flags));
		goes_on = done(made_in.request_evd, 3) && goes_on;
		OK(dat_ep_post_rdma_read(first, 1, &from, cookie(4), &remote, flags));
		goes_on = done(made_in.request_evd, 4) && goes_on;
		CHECK(!goes_on || filled(mem.at, SIZE, i));
	}
	if (!goes_on)
		EXPECT(made_in.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	give_memory_back();
	OK(dat_lmr_free(mem.lmr));
	end_one(first, second, third);
}

/* What ends something needs nothing. */
static void ep_disconnect__needs_no_memory(void)
{
	DAT_HANDLE first, second, third;

	connect_one(&first, &second, &third);
	take_all_memory();
	CHECK_RET(dat_ep_disconnect(first, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	await_state(first, DAT_EP_STATE_DISCONNECTED);
	await_state(second, DAT_EP_STATE_DISCONNECTED);
	EXPECT(made_in.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(made_in.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_RET(dat_ep_reset(first), DAT_SUCCESS);
	give_memory_back();
	end_one(first, second, third);
}

static void close_without_memory(DAT_CLOSE_FLAGS flags)
{
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia;

	need_our_malloc();
	rig_up(&made_in);
	OK(dat_ia_open((DAT_NAME_PTR)(uintptr_t)tap_ia, 8, &evd, &ia));
	if (flags == DAT_CLOSE_ABRUPT_FLAG)
		make_evd(ia, 8, DAT_EVD_DTO_FLAG);
	take_all_memory();
	CHECK_RET(dat_ia_close(ia, flags), DAT_SUCCESS);
	CHECK_RET(dat_ia_close(ia, flags), DAT_INVALID_HANDLE);
	give_memory_back();
	RIG_DOWN_UNUSED(&made_in);
}

static void ia_close__needs_no_memory(void)
{
	close_without_memory(DAT_CLOSE_GRACEFUL_FLAG);
	close_without_memory(DAT_CLOSE_ABRUPT_FLAG);
}

static const struct tap_test tests[] = {
	T(pz_create, no_memory),
	T(cno_create, no_memory),
	T(evd_create, no_memory),
	T(ep_create, no_memory),
	T(srq_create, no_memory),
	T(lmr_create, no_memory),
	T(rmr_create, no_memory),
	T(psp_create, no_memory),
	T(psp_create_any, no_memory),
	T(rsp_create, no_memory),
	T(ep_create_with_srq, no_memory),
	T(ia_open, no_memory),
	T(registry_add_provider, no_memory),
	T(evd_resize, no_memory),
	T(srq_resize, no_memory),
	T(ep_connect, no_memory),
	T(ep_dup_connect, no_memory),
	T(post, needs_no_memory),
	T(ep_disconnect, needs_no_memory),
	T(ia_close, needs_no_memory),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
