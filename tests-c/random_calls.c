/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "random_calls.h"
#include "random.h"
#include "random_objects.h"

#include <stdatomic.h>
#include <string.h>

enum {
	SEGMENTS = 3,
	/* Microseconds of the time-outs. */
	BRIEF = 2000,
	CONNECT = 2 * 1000 * 1000,
};

static atomic_ulong established, transfers;

/* --- numbers -------------------------------------------------------------------------------- */

/* Up to `most`, rarely anything. */
static DAT_COUNT count(DAT_COUNT most)
{
	return rarely(64) ? (DAT_COUNT)any() : (DAT_COUNT)below((uint64_t)most + 1);
}

static DAT_TIMEOUT brief(void)
{
	return (DAT_TIMEOUT)below(BRIEF);
}

/* --- arguments ------------------------------------------------------------------------------ */

static DAT_LMR_TRIPLET local(void)
{
	size_t from = below(MEMORY), len = below(MEMORY - from) >> below(16);

	return dx_local(any_context(),
			rarely(100) ? (void *)(uintptr_t)any() : random_memory + from, len);
}

static DAT_RMR_TRIPLET remote(void)
{
	size_t from = below(MEMORY), len = below(MEMORY - from) >> below(16);

	return dx_remote(any_context(),
			 rarely(50) ? (void *)(uintptr_t)any() : random_memory + from, len);
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
		*attr = ep_attr(random_rig);
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

static DAT_MEM_PRIV_FLAGS privileges(void)
{
	return rarely(4) ? (DAT_MEM_PRIV_FLAGS)below(64) : DAT_MEM_PRIV_ALL_FLAG;
}

static DAT_CONTEXT number(void)
{
	return cookie(any());
}

/* --- calls ---------------------------------------------------------------------------------- */

static DAT_RETURN make_object(void)
{
	DAT_HANDLE made = DAT_HANDLE_NULL;
	DAT_CONN_QUAL qual = any_qualifier();
	enum kind kind;
	DAT_EP_ATTR attr;
	DAT_SRQ_ATTR srq_attr;
	DAT_RETURN ret;

	switch (below(11)) {
	case 0:
		kind = PZ;
		ret = dat_pz_create(any_handle(IA), &made);
		break;
	case 1:
		kind = EVD;
		ret = dat_evd_create(any_handle(IA), count(40),
				     below(2) ? any_handle(CNO) : DAT_HANDLE_NULL, evd_flags(),
				     &made);
		break;
	case 2:
		kind = CNO;
		ret = dat_cno_create(any_handle(IA), DAT_OS_WAIT_PROXY_AGENT_NULL, &made);
		break;
	case 3:
	case 4:
		kind = EP;
		ret = dat_ep_create(any_handle(IA), any_pz(), any_evd(random_rig->recv_evd),
				    any_evd(random_rig->request_evd),
				    any_evd(random_rig->connect_evd), attributes(&attr), &made);
		break;
	case 5:
		kind = EP;
		ret = dat_ep_create_with_srq(any_handle(IA), any_pz(),
					     any_evd(random_rig->recv_evd),
					     any_evd(random_rig->request_evd),
					     any_evd(random_rig->connect_evd), any_handle(SRQ),
					     attributes(&attr), &made);
		break;
	case 6:
		kind = RMR;
		ret = dat_rmr_create(any_pz(), &made);
		break;
	case 7:
		kind = PSP;
		ret = dat_psp_create(any_handle(IA), qual, any_evd(random_rig->cr_evd),
				     rarely(4) ? DAT_PSP_PROVIDER_FLAG : DAT_PSP_CONSUMER_FLAG,
				     &made);
		break;
	case 8:
		kind = PSP;
		ret = dat_psp_create_any(any_handle(IA), &qual, any_evd(random_rig->cr_evd),
					 DAT_PSP_CONSUMER_FLAG, &made);
		break;
	case 9:
		kind = RSP;
		ret = dat_rsp_create(any_handle(IA), qual, any_handle(EP),
				     any_evd(random_rig->cr_evd), &made);
		break;
	default:
		kind = SRQ;
		srq_attr.max_recv_dtos = count(20);
		srq_attr.max_recv_iov = count(SEGMENTS);
		srq_attr.low_watermark = rarely(3) ? count(20) : DAT_SRQ_LW_DEFAULT;
		ret = dat_srq_create(any_handle(IA), any_pz(), &srq_attr, &made);
	}
	remember(kind, ret, made);
	return ret;
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
	region.for_va = random_memory + (rarely(2) ? 0 : below(MEMORY));
	ret = dx_lmr_create(any_handle(IA), DAT_MEM_TYPE_VIRTUAL, region,
			    (DAT_VLEN)(random_memory + MEMORY - (char *)region.for_va), any_pz(),
			    privileges(), &made, &lmr_context, &rmr_context, &len, &at);
	remember(LMR, ret, made);
	remember_context(ret, lmr_context);
	return ret;
}

/* Calls that take a handle alone. */
static DAT_RETURN use_handle(void)
{
	static const struct {
		enum kind kind;
		DAT_RETURN (*call)(DAT_HANDLE);
	} uses[] = {
		{ PZ, dat_pz_free },
		{ EVD, dat_evd_free },
		{ CNO, dat_cno_free },
		{ EP, dat_ep_free },
		{ LMR, dat_lmr_free },
		{ RMR, dat_rmr_free },
		{ PSP, dat_psp_free },
		{ RSP, dat_rsp_free },
		{ SRQ, dat_srq_free },
		{ CR, dx_cr_reject },
		{ EP, dat_ep_reset },
		{ EVD, dat_evd_enable },
		{ EVD, dat_evd_disable },
		{ EVD, dat_evd_set_unwaitable },
		{ EVD, dat_evd_clear_unwaitable },
	};
	uint64_t i = below(sizeof uses / sizeof *uses);

	return uses[i].call(any_handle(uses[i].kind));
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
	const DAT_EVD_HANDLE fitting[] = { random_rig->cr_evd, random_rig->connect_evd,
					   random_rig->recv_evd, random_rig->request_evd };
	DAT_EVD_HANDLE from = any_evd(fitting[below(4)]), woken;
	DAT_EVENT event;
	DAT_COUNT more;
	DAT_RETURN ret;

	switch (below(4)) {
	case 0:
		ret = dat_evd_wait(from, brief(), rarely(4) ? count(5) : 1, &event, &more);
		break;
	case 1:
		return dat_cno_wait(any_handle(CNO), brief(), &woken);
	default:
		ret = dat_evd_dequeue(from, &event);
	}
	use_event(ret, &event);
	return ret;
}

static DAT_RETURN change_evd(void)
{
	DAT_EVENT event;

	switch (below(4)) {
	case 0:
		return dat_evd_resize(any_handle(EVD), count(60));
	case 1:
		return dat_evd_modify_cno(any_handle(EVD),
					  below(2) ? any_handle(CNO) : DAT_HANDLE_NULL);
	case 2:
		return dat_cno_modify_agent(any_handle(CNO), DAT_OS_WAIT_PROXY_AGENT_NULL);
	default:
		memset(&event, 0, sizeof event);
		event.event_number = rarely(4) ? (DAT_EVENT_NUMBER)any() : DAT_SOFTWARE_EVENT;
		return dat_evd_post_se(any_handle(EVD), &event);
	}
}

static DAT_RETURN use_connection(void)
{
	char private_data[64] = { 0 };
	DAT_COUNT size = rarely(50) ? (DAT_COUNT)any() : (DAT_COUNT)below(sizeof private_data);

	/* A size that is too large is an error before anything of it is read. */
	if (size > (DAT_COUNT)sizeof private_data && size < (1 << 20))
		size = 0;
	switch (below(8)) {
	case 0:
	case 1:
	case 2:
		return dat_ep_connect(any_handle(EP), random_rig->attr.ia_address_ptr,
				      any_qualifier(), CONNECT, size, private_data,
				      DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG);
	case 3:
		return dat_ep_dup_connect(any_handle(EP), any_handle(EP), CONNECT, size,
					  private_data, DAT_QOS_BEST_EFFORT);
	case 4:
	case 5:
		return dat_cr_accept(any_handle(CR), below(4) ? any_handle(EP) : DAT_HANDLE_NULL,
				     size, private_data);
	case 6:
		return dat_cr_handoff(any_handle(CR), any_qualifier());
	default:
		return dat_ep_disconnect(any_handle(EP), close_flags());
	}
}

static DAT_RETURN change_ep(void)
{
	DAT_EP_PARAM param;

	switch (below(5)) {
	case 0:
		return dat_ep_set_watermark(any_handle(EP), count(10), count(10));
	case 1:
		return dat_srq_resize(any_handle(SRQ), count(30));
	case 2:
		return dat_srq_set_lw(any_handle(SRQ), count(10));
	default:
		memset(&param, 0, sizeof param);
		param.pz_handle = any_handle(PZ);
		param.recv_evd_handle = any_handle(EVD);
		param.request_evd_handle = any_handle(EVD);
		param.connect_evd_handle = any_handle(EVD);
		attributes(&param.ep_attr);
		return dat_ep_modify(any_handle(EP),
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
		return dat_ep_post_send(any_handle(EP), segments, iov, number(),
					completion_flags());
	case 2:
	case 3:
	case 4:
		return dat_ep_post_recv(any_handle(EP), segments, iov, number(),
					completion_flags());
	case 5:
		return dat_ep_post_rdma_write(any_handle(EP), segments, iov, number(), &to,
					      completion_flags());
	case 6:
		return dat_ep_post_rdma_read(any_handle(EP), segments, iov, number(), &to,
					     completion_flags());
	case 7:
		return dat_srq_post_recv(any_handle(SRQ), segments, iov, number());
	default:
		ret = dx_rmr_bind(any_handle(RMR), any_handle(LMR), iov, privileges(),
				  any_handle(EP), number(), completion_flags(), &bound);
		remember_context(ret, bound);
		return ret;
	}
}

/* A query of an object of this kind, which writes to `param`. */
#define QUERY(KIND, name) \
	case KIND:        \
		return dat_##name##_query(any_handle(KIND), DAT_##KIND##_FIELD_ALL, &param.name)

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
	enum kind kind = (enum kind)below(KINDS);
	DAT_EP_STATE ep_state;
	DAT_BOOLEAN idle[2];
	DAT_COUNT counts[2];
	DAT_HANDLE_TYPE type;
	DAT_CONTEXT context;

	switch (below(3)) {
	case 0:
		switch (below(5)) {
		case 0:
			return dat_ep_get_status(any_handle(EP), &ep_state, &idle[0], &idle[1]);
		case 1:
			return dat_ep_recv_query(any_handle(EP), &counts[0], &counts[1]);
		case 2:
			return dat_get_handle_type(any_handle(kind), &type);
		case 3:
			return dat_set_consumer_context(any_handle(kind), number());
		default:
			return dat_get_consumer_context(any_handle(kind), &context);
		}
	default:
		switch (kind) {
			QUERY(EP, ep);
			QUERY(EVD, evd);
			QUERY(CNO, cno);
			QUERY(LMR, lmr);
			QUERY(RMR, rmr);
			QUERY(PSP, psp);
			QUERY(RSP, rsp);
			QUERY(CR, cr);
			QUERY(SRQ, srq);
		default:
			return dat_pz_query(any_handle(PZ), DAT_PZ_FIELD_ALL, &param.pz);
		}
	}
}

static DAT_RETURN (*const calls[])(void) = {
	make_object, make_lmr,	     use_handle, take_event,  take_event,     take_event,
	change_evd,  post,	     post,	 post,	      post,	      post,
	query,	     use_connection, change_ep,	 make_object, use_connection,
};

DAT_RETURN call_any(unsigned *which)
{
	*which = (unsigned)below(sizeof calls / sizeof *calls);
	return calls[*which]();
}

unsigned long count_established(void)
{
	return atomic_load(&established);
}

unsigned long count_transfers(void)
{
	return atomic_load(&transfers);
}
