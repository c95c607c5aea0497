/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Random calls of the whole API by several threads at once. Handles are those of any object that
 * was made, now and then of another kind, freed long ago, or no handle at all; numbers are mostly
 * in their ranges, and sometimes not. Whatever is called: the process lives, no call fails with
 * DAT_INTERNAL_ERROR, none takes longer than its time-out, and at the end the IA closes and
 * nothing is left.
 *
 * RANDOM_CALLS is the number of calls of each thread, RANDOM_SEED what the random numbers begin
 * with. With one thread (RANDOM_THREADS=1) the calls of a seed are always the same.
 */
#include "common.h"
#include "left.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	CALLS = 6000,
	THREADS = 3,
	ROUNDS = 4,
	/* Handles of each kind that are remembered; more take the places of others. */
	REMEMBERED = 24,
	/* Bytes of the memory that is registered, sent and received. */
	MEMORY = 1 << 16,
	SEGMENTS = 3,
	QUALIFIERS = 8,
	/* Microseconds of the time-outs, and what a call may take on a busy machine. */
	BRIEF = 2000,
	CONNECT = 2 * 1000 * 1000,
	BOUND = 5 * 1000 * 1000,
	GROWTH = 4 * 1024 * 1024,
};

enum kind { IA, PZ, EVD, CNO, EP, LMR, RMR, PSP, RSP, CR, SRQ, KINDS };

static DAT_HANDLE _Atomic handles[KINDS][REMEMBERED];
/* Contexts of LMRs and RMRs, and qualifiers that somebody may listen on. */
static atomic_uint contexts[REMEMBERED];
static DAT_CONN_QUAL qualifiers[QUALIFIERS];
static DAT_IA_ADDRESS_PTR address;
static char *memory;
static struct rig rig;
/* Calls that succeeded, connections that were established, transfers that completed so. */
static atomic_ulong successes, established, transfers;

/* --- random numbers, of each thread --------------------------------------------------------- */

static _Thread_local uint64_t state;

static uint64_t any(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t below(uint64_t limit)
{
	return (any() >> 16) % limit;
}

/* One time in n. */
static bool rarely(uint64_t n)
{
	return below(n) == 0;
}

/* Up to `most`, rarely anything. */
static DAT_COUNT count(DAT_COUNT most)
{
	return rarely(64) ? (DAT_COUNT)any() : (DAT_COUNT)below((uint64_t)most + 1);
}

static DAT_TIMEOUT brief(void)
{
	return (DAT_TIMEOUT)below(BRIEF);
}

/* --- handles -------------------------------------------------------------------------------- */

static DAT_HANDLE handle(enum kind kind)
{
	if (rarely(40))
		kind = (enum kind)below(KINDS);
	if (rarely(100))
		return (DAT_HANDLE)(uintptr_t)any();
	if (rarely(60))
		return DAT_HANDLE_NULL;
	return atomic_load(&handles[kind][below(REMEMBERED)]);
}

static void remember(enum kind kind, DAT_RETURN ret, DAT_HANDLE made)
{
	if (ret == DAT_SUCCESS)
		atomic_store(&handles[kind][below(REMEMBERED)], made);
}

static void remember_context(DAT_RETURN ret, uint32_t context)
{
	if (ret == DAT_SUCCESS)
		atomic_store(&contexts[below(REMEMBERED)], context);
}

static uint32_t context(void)
{
	return rarely(30) ? (uint32_t)any() : atomic_load(&contexts[below(REMEMBERED)]);
}

/* An EVD or a PZ that fits, if nobody has freed it; sometimes any. */
static DAT_EVD_HANDLE evd(DAT_EVD_HANDLE fitting)
{
	return rarely(6) ? handle(EVD) : fitting;
}

static DAT_PZ_HANDLE pz(void)
{
	return rarely(8) ? handle(PZ) : rig.pz;
}

/* Never the port of another program. */
static DAT_CONN_QUAL qualifier(void)
{
	return rarely(40) ? (DAT_CONN_QUAL)any() | (DAT_CONN_QUAL)1 << 40 :
			    qualifiers[below(QUALIFIERS)];
}

/* --- arguments ------------------------------------------------------------------------------ */

static DAT_LMR_TRIPLET local(void)
{
	size_t from = below(MEMORY), len = below(MEMORY - from) >> below(16);

	return dx_local(context(), rarely(100) ? (void *)(uintptr_t)any() : memory + from, len);
}

static DAT_RMR_TRIPLET remote(void)
{
	size_t from = below(MEMORY), len = below(MEMORY - from) >> below(16);

	return dx_remote(context(), rarely(50) ? (void *)(uintptr_t)any() : memory + from, len);
}

static DAT_COMPLETION_FLAGS completion_flags(void)
{
	return rarely(3) ? (DAT_COMPLETION_FLAGS)below(32) : DAT_COMPLETION_DEFAULT_FLAG;
}

static DAT_CLOSE_FLAGS close_flags(void)
{
	return below(2) ? DAT_CLOSE_ABRUPT_FLAG : DAT_CLOSE_GRACEFUL_FLAG;
}

static DAT_EVD_FLAGS evd_flags(void)
{
	return rarely(8) ? (DAT_EVD_FLAGS)any() : (DAT_EVD_FLAGS)(below(0x80) | DAT_EVD_DTO_FLAG);
}

static DAT_EP_ATTR *attributes(DAT_EP_ATTR *attr)
{
	if (!rarely(4)) {
		*attr = ep_attr(&rig);
		return attr;
	}
	memset(attr, 0, sizeof *attr);
	attr->service_type = DAT_SERVICE_TYPE_RC;
	attr->max_message_size = below(MEMORY + 1);
	attr->max_rdma_size = below(MEMORY + 1);
	attr->recv_completion_flags = rarely(4) ? completion_flags() : DAT_COMPLETION_DEFAULT_FLAG;
	attr->request_completion_flags =
		rarely(4) ? completion_flags() : DAT_COMPLETION_DEFAULT_FLAG;
	attr->max_recv_dtos = count(20);
	attr->max_request_dtos = count(20);
	attr->max_recv_iov = count(SEGMENTS + 1);
	attr->max_request_iov = count(SEGMENTS + 1);
	attr->max_rdma_read_in = count(8);
	attr->max_rdma_read_out = count(8);
	return rarely(4) ? NULL : attr;
}

static DAT_CONTEXT number(void)
{
	return cookie(any());
}

/* --- calls ---------------------------------------------------------------------------------- */

static DAT_RETURN make_object(void)
{
	DAT_HANDLE made = DAT_HANDLE_NULL;
	DAT_EP_ATTR attr;
	DAT_SRQ_ATTR srq_attr;
	DAT_CONN_QUAL qual = qualifier();
	DAT_RETURN ret;

	switch (below(9)) {
	case 0:
		ret = dat_pz_create(handle(IA), &made);
		remember(PZ, ret, made);
		return ret;
	case 1:
		ret = dat_evd_create(handle(IA), count(40),
				     below(2) ? handle(CNO) : DAT_HANDLE_NULL, evd_flags(), &made);
		remember(EVD, ret, made);
		return ret;
	case 2:
		ret = dat_cno_create(handle(IA), DAT_OS_WAIT_PROXY_AGENT_NULL, &made);
		remember(CNO, ret, made);
		return ret;
	case 3:
	case 4:
		ret = dat_ep_create(handle(IA), pz(), evd(rig.recv_evd), evd(rig.request_evd),
				    evd(rig.connect_evd), attributes(&attr), &made);
		remember(EP, ret, made);
		return ret;
	case 5:
		ret = dat_rmr_create(pz(), &made);
		remember(RMR, ret, made);
		return ret;
	case 6:
		ret = below(2) ? dat_psp_create(handle(IA), qual, evd(rig.cr_evd),
						rarely(4) ? DAT_PSP_PROVIDER_FLAG :
							    DAT_PSP_CONSUMER_FLAG,
						&made) :
				 dat_psp_create_any(handle(IA), &qual, evd(rig.cr_evd),
						    DAT_PSP_CONSUMER_FLAG, &made);
		remember(PSP, ret, made);
		return ret;
	case 7:
		ret = dat_rsp_create(handle(IA), qual, handle(EP), evd(rig.cr_evd), &made);
		remember(RSP, ret, made);
		return ret;
	default:
		srq_attr.max_recv_dtos = count(20);
		srq_attr.max_recv_iov = count(SEGMENTS);
		srq_attr.low_watermark = rarely(3) ? count(20) : DAT_SRQ_LW_DEFAULT;
		ret = dat_srq_create(handle(IA), pz(), &srq_attr, &made);
		remember(SRQ, ret, made);
		return ret;
	}
}

static DAT_RETURN make_lmr(void)
{
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE made = DAT_HANDLE_NULL;
	DAT_LMR_CONTEXT lmr_context = 0;
	DAT_RMR_CONTEXT rmr_context = 0;
	DAT_VLEN len;
	DAT_VADDR at;
	DAT_RETURN ret;

	memset(&region, 0, sizeof region);
	region.for_va = memory + (rarely(2) ? 0 : below(MEMORY));
	ret = dx_lmr_create(handle(IA), DAT_MEM_TYPE_VIRTUAL, region,
			    (DAT_VLEN)(memory + MEMORY - (char *)region.for_va), pz(),
			    rarely(4) ? (DAT_MEM_PRIV_FLAGS)below(64) : DAT_MEM_PRIV_ALL_FLAG,
			    &made, &lmr_context, &rmr_context, &len, &at);
	remember(LMR, ret, made);
	remember_context(ret, lmr_context);
	return ret;
}

static DAT_RETURN free_object(void)
{
	switch (below(10)) {
	case 0:
		return dat_pz_free(handle(PZ));
	case 1:
		return dat_evd_free(handle(EVD));
	case 2:
		return dat_cno_free(handle(CNO));
	case 3:
		return dat_ep_free(handle(EP));
	case 4:
		return dat_lmr_free(handle(LMR));
	case 5:
		return dat_rmr_free(handle(RMR));
	case 6:
		return dat_psp_free(handle(PSP));
	case 7:
		return dat_rsp_free(handle(RSP));
	case 8:
		return dat_srq_free(handle(SRQ));
	default:
		return dx_cr_reject(handle(CR));
	}
}

/* What an event brings is remembered, too. */
static void use_event(DAT_RETURN ret, const DAT_EVENT *event)
{
	if (ret != DAT_SUCCESS)
		return;
	switch (event->event_number) {
	case DAT_CONNECTION_REQUEST_EVENT:
		remember(CR, ret, event->event_data.cr_arrival_event_data.cr_handle);
		break;
	case DAT_CONNECTION_EVENT_ESTABLISHED:
		atomic_fetch_add(&established, 1);
		break;
	case DAT_DTO_COMPLETION_EVENT:
		if (event->event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS)
			atomic_fetch_add(&transfers, 1);
		break;
	default:
		break;
	}
}

static DAT_RETURN take_event(void)
{
	const DAT_EVD_HANDLE fitting[] = { rig.cr_evd, rig.connect_evd, rig.recv_evd,
					   rig.request_evd };
	DAT_EVD_HANDLE from = evd(fitting[below(4)]), woken;
	DAT_EVENT event;
	DAT_COUNT more;
	DAT_RETURN ret;

	switch (below(4)) {
	case 0:
		ret = dat_evd_wait(from, brief(), rarely(4) ? count(5) : 1, &event, &more);
		break;
	case 1:
		return dat_cno_wait(handle(CNO), brief(), &woken);
	default:
		ret = dat_evd_dequeue(from, &event);
	}
	use_event(ret, &event);
	return ret;
}

static DAT_RETURN change_evd(void)
{
	DAT_EVENT event;

	switch (below(8)) {
	case 0:
		return dat_evd_resize(handle(EVD), count(60));
	case 1:
		return dat_evd_modify_cno(handle(EVD), below(2) ? handle(CNO) : DAT_HANDLE_NULL);
	case 2:
		return dat_evd_enable(handle(EVD));
	case 3:
		return dat_evd_disable(handle(EVD));
	case 4:
		return dat_evd_set_unwaitable(handle(EVD));
	case 5:
		return dat_evd_clear_unwaitable(handle(EVD));
	case 6:
		return dat_cno_modify_agent(handle(CNO), DAT_OS_WAIT_PROXY_AGENT_NULL);
	default:
		memset(&event, 0, sizeof event);
		event.event_number = rarely(4) ? (DAT_EVENT_NUMBER)any() : DAT_SOFTWARE_EVENT;
		return dat_evd_post_se(handle(EVD), &event);
	}
}

static DAT_RETURN use_connection(void)
{
	char private_data[64] = { 0 };
	DAT_COUNT size = rarely(50) ? (DAT_COUNT)any() : (DAT_COUNT)below(sizeof private_data);
	DAT_EP_ATTR attr;
	DAT_HANDLE made = DAT_HANDLE_NULL;
	DAT_RETURN ret;

	/* A size that is too large is an error before anything of it is read. */
	if (size > (DAT_COUNT)sizeof private_data && size < (1 << 20))
		size = 0;
	switch (below(10)) {
	case 0:
	case 1:
	case 2:
		return dat_ep_connect(handle(EP), address, qualifier(), CONNECT, size, private_data,
				      DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG);
	case 3:
		return dat_ep_dup_connect(handle(EP), handle(EP), CONNECT, size, private_data,
					  DAT_QOS_BEST_EFFORT);
	case 4:
	case 5:
		return dat_cr_accept(handle(CR), below(4) ? handle(EP) : DAT_HANDLE_NULL, size,
				     private_data);
	case 6:
		return dat_cr_handoff(handle(CR), qualifier());
	case 7:
		return dat_ep_reset(handle(EP));
	case 8:
		ret = dat_ep_create_with_srq(handle(IA), pz(), evd(rig.recv_evd),
					     evd(rig.request_evd), evd(rig.connect_evd),
					     handle(SRQ), attributes(&attr), &made);
		remember(EP, ret, made);
		return ret;
	default:
		return dat_ep_disconnect(handle(EP), close_flags());
	}
}

static DAT_RETURN change_ep(void)
{
	DAT_EP_PARAM param;

	switch (below(5)) {
	case 0:
		return dat_ep_set_watermark(handle(EP), count(10), count(10));
	case 1:
		return dat_srq_resize(handle(SRQ), count(30));
	case 2:
		return dat_srq_set_lw(handle(SRQ), count(10));
	default:
		memset(&param, 0, sizeof param);
		param.pz_handle = handle(PZ);
		param.recv_evd_handle = handle(EVD);
		param.request_evd_handle = handle(EVD);
		param.connect_evd_handle = handle(EVD);
		attributes(&param.ep_attr);
		return dat_ep_modify(handle(EP),
				     (DAT_EP_PARAM_MASK)(any() & DAT_EP_FIELD_ALL &
							 ((uint64_t)1 << below(40))),
				     &param);
	}
}

static DAT_RETURN post(void)
{
	DAT_LMR_TRIPLET iov[SEGMENTS];
	DAT_RMR_TRIPLET to = remote();
	DAT_COUNT segments = rarely(100) ? -1 : (DAT_COUNT)below(SEGMENTS + 1);
	DAT_RMR_CONTEXT bound = 0;
	DAT_RETURN ret;

	for (int i = 0; i < SEGMENTS; i++)
		iov[i] = local();
	switch (below(9)) {
	case 0:
	case 1:
		return dat_ep_post_send(handle(EP), segments, iov, number(), completion_flags());
	case 2:
	case 3:
	case 4:
		return dat_ep_post_recv(handle(EP), segments, iov, number(), completion_flags());
	case 5:
		return dat_ep_post_rdma_write(handle(EP), segments, iov, number(), &to,
					      completion_flags());
	case 6:
		return dat_ep_post_rdma_read(handle(EP), segments, iov, number(), &to,
					     completion_flags());
	case 7:
		return dat_srq_post_recv(handle(SRQ), segments, iov, number());
	default:
		ret = dx_rmr_bind(handle(RMR), handle(LMR), iov,
				  rarely(4) ? (DAT_MEM_PRIV_FLAGS)below(64) : DAT_MEM_PRIV_ALL_FLAG,
				  handle(EP), number(), completion_flags(), &bound);
		remember_context(ret, bound);
		return ret;
	}
}

static DAT_RETURN query(void)
{
	/* As large as any, so that nothing is written beyond it. */
	union {
		DAT_EP_PARAM ep;
		DAT_EVD_PARAM evd;
		DAT_CNO_PARAM cno;
		DAT_LMR_PARAM lmr;
		DAT_RMR_PARAM rmr;
		DAT_PSP_PARAM psp;
		DAT_RSP_PARAM rsp;
		DAT_CR_PARAM cr;
		DAT_SRQ_PARAM srq;
		DAT_PZ_PARAM pz;
	} param;
	DAT_EP_STATE ep_state;
	DAT_BOOLEAN idle[2];
	DAT_COUNT counts[2];
	DAT_HANDLE_TYPE type;
	DAT_CONTEXT context;

	switch (below(15)) {
	case 0:
		return dat_ep_query(handle(EP), DAT_EP_FIELD_ALL, &param.ep);
	case 1:
		return dat_evd_query(handle(EVD), DAT_EVD_FIELD_ALL, &param.evd);
	case 2:
		return dat_cno_query(handle(CNO), DAT_CNO_FIELD_ALL, &param.cno);
	case 3:
		return dat_lmr_query(handle(LMR), DAT_LMR_FIELD_ALL, &param.lmr);
	case 4:
		return dat_rmr_query(handle(RMR), DAT_RMR_FIELD_ALL, &param.rmr);
	case 5:
		return dat_psp_query(handle(PSP), DAT_PSP_FIELD_ALL, &param.psp);
	case 6:
		return dat_rsp_query(handle(RSP), DAT_RSP_FIELD_ALL, &param.rsp);
	case 7:
		return dat_cr_query(handle(CR), DAT_CR_FIELD_ALL, &param.cr);
	case 8:
		return dat_srq_query(handle(SRQ), DAT_SRQ_FIELD_ALL, &param.srq);
	case 9:
		return dat_pz_query(handle(PZ), DAT_PZ_FIELD_ALL, &param.pz);
	case 10:
		return dat_ep_get_status(handle(EP), &ep_state, &idle[0], &idle[1]);
	case 11:
		return dat_ep_recv_query(handle(EP), &counts[0], &counts[1]);
	case 12:
		return dat_get_handle_type(handle((enum kind)below(KINDS)), &type);
	case 13:
		return dat_set_consumer_context(handle((enum kind)below(KINDS)), number());
	default:
		return dat_get_consumer_context(handle((enum kind)below(KINDS)), &context);
	}
}

static DAT_RETURN (*const calls[])(void) = {
	make_object, make_lmr,	     free_object, take_event,  take_event,     take_event,
	change_evd,  post,	     post,	  post,	       post,	       post,
	query,	     use_connection, change_ep,	  make_object, use_connection,
};

static void *run(void *seed)
{
	uint64_t n = (uint64_t)(uintptr_t)seed;
	const char *text = getenv("RANDOM_CALLS");
	unsigned long rounds = text && *text ? strtoul(text, NULL, 0) : CALLS;

	state = (n + 1) * 0x9e3779b97f4a7c15u | 1;
	for (unsigned long i = 0; i < rounds; i++) {
		uint64_t call = below(sizeof calls / sizeof *calls);
		unsigned long long begun = now_us();
		DAT_RETURN ret = calls[call]();

		if (ret == DAT_SUCCESS)
			atomic_fetch_add(&successes, 1);
		if (DAT_GET_TYPE(ret) == DAT_INTERNAL_ERROR ||
		    DAT_GET_TYPE(ret) == DAT_NOT_IMPLEMENTED)
			tap_fail(__FILE__, __LINE__, "call %lu of a thread (%lu): 0x%x", i,
				 (unsigned long)call, ret);
		if (now_us() - begun > BOUND)
			tap_fail(__FILE__, __LINE__, "call %lu of a thread (%lu) took %llu us", i,
				 (unsigned long)call, now_us() - begun);
	}
	return NULL;
}

/* An IA with some objects, and all that the threads make of it. */
static void live_once(uint64_t seed, unsigned threads)
{
	pthread_t thread[THREADS];

	rig_up(&rig);
	address = rig.attr.ia_address_ptr;
	memset((void *)handles, 0, sizeof handles);
	for (int i = 0; i < REMEMBERED; i++) {
		atomic_store(&handles[IA][i], rig.ia);
		atomic_store(&handles[PZ][i], rig.pz);
		if (i % 4 == 0)
			atomic_store(&handles[EVD][i], i % 8 ? rig.connect_evd : rig.cr_evd);
		if (i % 4 == 1)
			atomic_store(&handles[EVD][i], i % 8 == 1 ? rig.recv_evd : rig.request_evd);
	}
	for (int i = 0; i < QUALIFIERS; i++) {
		DAT_PSP_HANDLE psp = listen_any(&rig, &qualifiers[i]);

		if (i % 2)
			OK(dat_psp_free(psp));
		else
			remember(PSP, DAT_SUCCESS, psp);
	}
	for (unsigned i = 0; i < threads; i++)
		REQUIRE(pthread_create(&thread[i], NULL, run, (void *)(uintptr_t)(seed + i)) == 0);
	for (unsigned i = 0; i < threads; i++)
		REQUIRE(pthread_join(thread[i], NULL) == 0);
	OK(dat_ia_close(rig.ia, DAT_CLOSE_ABRUPT_FLAG));
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void random__calls(void)
{
	uint64_t seed = setting("RANDOM_SEED", now_us() & 0xffffffff);
	unsigned threads = (unsigned)setting("RANDOM_THREADS", THREADS);
	struct having before, after;

	REQUIRE(threads >= 1 && threads <= THREADS);
	printf("# RANDOM_SEED=%" PRIu64 "\n", seed);
	fflush(stdout);
	memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(memory != MAP_FAILED);
	/* What is made once for the process is made when a round first needs it. A leak grows in
	 * every round. */
	live_once(seed, threads);
	before = what_is();
	for (int round = 1; round < ROUNDS; round++) {
		live_once(seed + (uint64_t)(round * THREADS), threads);
		after = what_is();
		if (after.descriptors == before.descriptors && after.mappings <= before.mappings)
			break;
		if (round + 1 < ROUNDS)
			before = after;
	}
	printf("# %lu calls succeeded, %lu times established, %lu transfers\n",
	       atomic_load(&successes), atomic_load(&established), atomic_load(&transfers));
	nothing_left(&before, GROWTH);
}

static const struct tap_test tests[] = {
	T(random, calls),
	TAP_END,
};

int main(int argc, char **argv)
{
	count_heap(argv);
	return tap_main(argc, argv, tests);
}
