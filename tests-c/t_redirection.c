/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls through the table of the provider, by the macros of <dat/udat_redirection.h>, from stacks of each alignment
 * that the ABI of the processor allows (32-bit x86: four bytes). For the library under test as the registry and the
 * provider at once: where the provider is a library of its own, the handle of an IA leads to no table. */
#include "srq.h"

#ifdef DAT2
#include <dat2/udat_redirection.h>
#else
#include <dat/udat_redirection.h>
#endif

#include <alloca.h>
#include <netinet/in.h>
#include <string.h>

/* Runs a test with the stack in four places, each a word behind the one before. */
static void on_each_stack(void (*test)(void))
{
	for (size_t words = 0; words < 4; words++) {
		volatile char *gap = alloca(4 * words + 4);

		gap[0] = 0;
		test();
	}
}

static DAT_EVD_HANDLE new_evd(DAT_IA_HANDLE ia, DAT_EVD_FLAGS flags)
{
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	OK(DAT_EVD_CREATE(ia, 10, DAT_HANDLE_NULL, flags, &evd));
	return evd;
}

static void of_an_ia(void)
{
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL, asked = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia = open_ia(&async_evd);
	DAT_CONTEXT context = cookie(77), kept = cookie(0);
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_EP;
	DAT_PROVIDER_ATTR provider;
	DAT_PZ_HANDLE pz = DAT_HANDLE_NULL;
	DAT_PZ_PARAM param;
	DAT_IA_ATTR attr;

	OK(DAT_IA_QUERY(ia, &asked, DAT_IA_FIELD_ALL, &attr, DAT_PROVIDER_FIELD_ALL, &provider));
	CHECK(asked == async_evd);
	OK(DAT_GET_HANDLE_TYPE(ia, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_IA);
	OK(DAT_SET_CONSUMER_CONTEXT(ia, context));
	OK(DAT_GET_CONSUMER_CONTEXT(ia, &kept));
	CHECK_EQ(kept.as_64, 77);
	OK(DAT_PZ_CREATE(ia, &pz));
	OK(DAT_PZ_QUERY(pz, DAT_PZ_FIELD_ALL, &param));
	CHECK(param.ia_handle == ia);
	OK(DAT_PZ_FREE(pz));
	OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

static void of_evds_and_cnos(void)
{
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL, evd, triggered = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia = open_ia(&async_evd);
	DAT_EVENT event = software_event(5);
	DAT_CNO_HANDLE cno = DAT_HANDLE_NULL;
	DAT_CNO_PARAM cno_param;
	DAT_EVD_PARAM param;
	DAT_COUNT more = -1;

	OK(DAT_CNO_CREATE(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(DAT_CNO_MODIFY_AGENT(cno, DAT_OS_WAIT_PROXY_AGENT_NULL));
	OK(DAT_CNO_QUERY(cno, DAT_CNO_FIELD_ALL, &cno_param));
	CHECK(cno_param.ia_handle == ia);
	CHECK_RET(DAT_CNO_WAIT(cno, 1000, &triggered), DAT_QUEUE_EMPTY);
	evd = new_evd(ia, DAT_EVD_SOFTWARE_FLAG);
	OK(DAT_EVD_MODIFY_CNO(evd, cno));
	OK(DAT_EVD_DISABLE(evd));
	OK(DAT_EVD_ENABLE(evd));
	OK(DAT_EVD_RESIZE(evd, 20));
	OK(DAT_EVD_QUERY(evd, DAT_EVD_FIELD_ALL, &param));
	CHECK(param.cno_handle == cno);
	CHECK(param.evd_qlen >= 20);
	OK(DAT_EVD_POST_SE(evd, &event));
	OK(DAT_CNO_WAIT(cno, SOON, &triggered));
	CHECK(triggered == evd);
	memset(&event, 0, sizeof event);
	OK(DAT_EVD_DEQUEUE(evd, &event));
	CHECK_EQ(event.event_number, DAT_SOFTWARE_EVENT);
	OK(DAT_EVD_MODIFY_CNO(evd, DAT_HANDLE_NULL));
	event = software_event(6);
	OK(DAT_EVD_POST_SE(evd, &event));
	OK(DAT_EVD_SET_UNWAITABLE(evd));
	CHECK_RET(DAT_EVD_WAIT(evd, 0, 1, &event, &more), DAT_INVALID_STATE);
	OK(DAT_EVD_CLEAR_UNWAITABLE(evd));
	OK(DAT_EVD_WAIT(evd, SOON, 1, &event, &more));
	CHECK_EQ(event.event_number, DAT_SOFTWARE_EVENT);
	CHECK_EQ(more, 0);
	OK(DAT_EVD_FREE(evd));
	OK(DAT_CNO_FREE(cno));
	OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

/* The macros evaluate a handle twice: it is in a variable here. */
static void reject(DAT_CR_HANDLE cr)
{
#ifdef DAT2
	OK(DAT_CR_REJECT(cr, 0, NULL));
#else
	OK(DAT_CR_REJECT(cr));
#endif
}

static void of_service_points(void)
{
	DAT_CONN_QUAL first, second;
	DAT_PSP_HANDLE psp = DAT_HANDLE_NULL, next = DAT_HANDLE_NULL;
	DAT_RSP_HANDLE rsp = DAT_HANDLE_NULL;
	DAT_PSP_PARAM psp_param;
	DAT_RSP_PARAM rsp_param;
	DAT_EP_PARAM ep_param;
	struct rig a, b;
	DAT_EP_HANDLE ep_a, ep_b, reserved = DAT_HANDLE_NULL;
	DAT_CR_PARAM request;
	DAT_CR_HANDLE cr;
	DAT_EP_ATTR attr;

	rig_up(&a);
	rig_up(&b);
	attr = ep_attr(&b);
	OK(DAT_EP_CREATE(a.ia, a.pz, a.recv_evd, a.request_evd, a.connect_evd, &attr, &ep_a));
	OK(DAT_EP_CREATE(b.ia, b.pz, b.recv_evd, b.request_evd, b.connect_evd, &attr, &ep_b));
	OK(DAT_EP_CREATE(b.ia, b.pz, b.recv_evd, b.request_evd, b.connect_evd, &attr, &reserved));
	OK(DAT_PSP_CREATE_ANY(b.ia, &first, b.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	OK(DAT_PSP_QUERY(psp, DAT_PSP_FIELD_ALL, &psp_param));
	CHECK_EQ(psp_param.conn_qual, first);
	second = free_qualifier(&b);
	OK(DAT_RSP_CREATE(b.ia, second, reserved, b.cr_evd, &rsp));
	OK(DAT_RSP_QUERY(rsp, DAT_RSP_FIELD_ALL, &rsp_param));
	CHECK(rsp_param.ep_handle == reserved);
	OK(DAT_RSP_FREE(rsp));

	OK(DAT_EP_CONNECT(ep_a, b.attr.ia_address_ptr, first, SOON, 0, NULL, DAT_QOS_BEST_EFFORT,
			  DAT_CONNECT_DEFAULT_FLAG));
	cr = await_request(&b);
	OK(DAT_CR_QUERY(cr, DAT_CR_FIELD_ALL, &request));
	CHECK(request.local_ep_handle == DAT_HANDLE_NULL);
	reject(cr);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	OK(DAT_EP_RESET(ep_a));

	/* From one service point to the next. */
	OK(DAT_PSP_FREE(psp));
	OK(DAT_PSP_CREATE_ANY(b.ia, &first, b.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	OK(DAT_PSP_CREATE(b.ia, second, b.cr_evd, DAT_PSP_CONSUMER_FLAG, &next));
	OK(DAT_EP_CONNECT(ep_a, b.attr.ia_address_ptr, first, SOON, 0, NULL, DAT_QOS_BEST_EFFORT,
			  DAT_CONNECT_DEFAULT_FLAG));
	cr = await_request(&b);
	OK(DAT_CR_HANDOFF(cr, second));
	cr = await_request(&b);
	OK(DAT_CR_ACCEPT(cr, ep_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	OK(DAT_EP_QUERY(ep_b, DAT_EP_FIELD_ALL, &ep_param));
	CHECK_EQ(ep_param.ep_state, DAT_EP_STATE_CONNECTED);

	OK(DAT_EP_FREE(reserved));
	OK(DAT_EP_CREATE(a.ia, a.pz, a.recv_evd, a.request_evd, a.connect_evd, &attr, &reserved));
	OK(DAT_EP_DUP_CONNECT(reserved, ep_a, SOON, 0, NULL, DAT_QOS_BEST_EFFORT));
	reject(await_request(&b));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	OK(DAT_EP_DISCONNECT(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	OK(DAT_EP_FREE(reserved));
	OK(DAT_EP_FREE(ep_a));
	OK(DAT_EP_FREE(ep_b));
	rig_down(&a);
	rig_down(&b);
}

/* Receives in a queue of b; messages and RDMA. */
static void of_data(void)
{
	DAT_COUNT allocated = 0, span = 0;
	DAT_REGION_DESCRIPTION region;
	DAT_BOOLEAN idle = DAT_FALSE;
	DAT_LMR_HANDLE lmr = DAT_HANDLE_NULL;
	DAT_EP_STATE state = DAT_EP_STATE_UNCONNECTED;
	DAT_LMR_TRIPLET from, to;
	DAT_RMR_TRIPLET target;
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4,
				  .max_recv_iov = 1,
				  .low_watermark = DAT_SRQ_LW_DEFAULT };
	DAT_SRQ_PARAM srq_param;
	DAT_LMR_PARAM lmr_param;
	DAT_EP_PARAM ep_param;
	DAT_EP_ATTR attr;

	rigs_up();
	attr = ep_attr(&p.b);
	OK(DAT_SRQ_CREATE(p.b.ia, p.b.pz, &srq_attr, &srq));
	/* Not every RDMA device can. */
	CHECK_EITHER(DAT_SRQ_RESIZE(srq, 8), DAT_SUCCESS, DAT_INSUFFICIENT_RESOURCES);
	OK(DAT_SRQ_SET_LW(srq, 1));
	OK(DAT_EP_CREATE_WITH_SRQ(p.b.ia, p.b.pz, p.b.recv_evd, p.b.request_evd, p.b.connect_evd,
				  srq, &attr, &p.ep_b));
	OK(DAT_EP_CREATE(p.a.ia, p.a.pz, p.a.recv_evd, p.a.request_evd, p.a.connect_evd, NULL,
			 &p.ep_a));
	ep_param.ep_attr.max_message_size = 4096;
	OK(DAT_EP_MODIFY(p.ep_a, DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, &ep_param));
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);

	region.for_va = mb.at;
#ifdef DAT2
	OK(DAT_LMR_CREATE(p.b.ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, p.b.pz, DAT_MEM_PRIV_ALL_FLAG,
			  DAT_VA_TYPE_VA, &lmr, &local, &remote, NULL, NULL));
#else
	OK(DAT_LMR_CREATE(p.b.ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, p.b.pz, DAT_MEM_PRIV_ALL_FLAG,
			  &lmr, &local, &remote, NULL, NULL));
#endif
	OK(DAT_LMR_QUERY(lmr, DAT_LMR_FIELD_ALL, &lmr_param));
	CHECK_EQ(lmr_param.rmr_context, remote);
	from = dx_local(ma.local, ma.at, 100);
	to = dx_local(local, mb.at + 1000, 100);
	fill(ma.at, 100, 3);
	OK(DAT_SRQ_POST_RECV(srq, 1, &to, cookie(1)));
	OK(DAT_SRQ_QUERY(srq, DAT_SRQ_FIELD_ALL, &srq_param));
	CHECK(srq_param.max_recv_dtos >= 4);
	OK(DAT_EP_POST_SEND(p.ep_a, 1, &from, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at + 1000, 100, 3));
	OK(DAT_EP_POST_RECV(p.ep_a, 1, &from, cookie(3), DAT_COMPLETION_DEFAULT_FLAG));
	OK(DAT_EP_GET_STATUS(p.ep_a, &state, &idle, NULL));
	CHECK_EQ(state, DAT_EP_STATE_CONNECTED);
	CHECK_EQ(idle, DAT_FALSE);
	CHECK_EITHER(DAT_EP_RECV_QUERY(p.ep_b, &allocated, &span), DAT_SUCCESS,
		     DAT_MODEL_NOT_SUPPORTED);
	CHECK_EITHER(DAT_EP_SET_WATERMARK(p.ep_b, 7, DAT_WATERMARK_INFINITE), DAT_SUCCESS,
		     DAT_MODEL_NOT_SUPPORTED);

	target = dx_remote(remote, mb.at + 2000, 100);
	fill(ma.at, 100, 4);
	OK(DAT_EP_POST_RDMA_WRITE(p.ep_a, 1, &from, cookie(5), &target,
				  DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 5, DAT_DTO_SUCCESS);
	memset(ma.at, 0, 100);
	to = dx_local(local, mb.at + 2000, 100);
	OK(DAT_LMR_SYNC_RDMA_READ(p.b.ia, &to, 1));
	OK(DAT_EP_POST_RDMA_READ(p.ep_a, 1, &from, cookie(6), &target,
				 DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 6, DAT_DTO_SUCCESS);
	OK(DAT_LMR_SYNC_RDMA_WRITE(p.b.ia, &to, 1));
	CHECK(filled(ma.at, 100, 4));
	OK(DAT_EP_DISCONNECT(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	OK(DAT_EP_FREE(p.ep_b));
	OK(DAT_SRQ_FREE(srq));
	OK(DAT_LMR_FREE(lmr));
	free_mem(&ma);
	free_mem(&mb);
	down();
}

static void of_windows(void)
{
	DAT_RMR_HANDLE rmr = DAT_HANDLE_NULL;
	DAT_RMR_CONTEXT key = 0;
	DAT_RMR_TRIPLET target;
	DAT_LMR_TRIPLET from, to;
	DAT_RMR_PARAM param;

	OK(dat_rmr_free(up_to_bind()));
	OK(DAT_RMR_CREATE(p.b.pz, &rmr));
	to = dx_local(mb.local, mb.at + 1000, 100);
#ifdef DAT2
	OK(DAT_RMR_BIND(rmr, mb.lmr, &to, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, DAT_VA_TYPE_VA, p.ep_b,
			cookie(4), DAT_COMPLETION_DEFAULT_FLAG, &key));
#else
	OK(DAT_RMR_BIND(rmr, &to, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, p.ep_b, cookie(4),
			DAT_COMPLETION_DEFAULT_FLAG, &key));
#endif
	EXPECT(p.b.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	OK(DAT_RMR_QUERY(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK_EQ(param.rmr_context, key);
	from = dx_local(ma.local, ma.at, 100);
	target = dx_remote(key, mb.at + 1000, 100);
	OK(DAT_EP_POST_RDMA_WRITE(p.ep_a, 1, &from, cookie(5), &target,
				  DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 5, DAT_DTO_SUCCESS);
	OK(DAT_RMR_FREE(rmr));
	free_mem(&ma);
	free_mem(&mb);
	down();
}

#ifdef DAT2
static DAT_RETURN extended(DAT_HANDLE handle, DAT_EXTENDED_OP op, ...)
{
	va_list arguments;
	DAT_RETURN ret;

	va_start(arguments, op);
	ret = DAT_HANDLE_EXTENDEDOP(handle, op, arguments);
	va_end(arguments);
	return ret;
}

static void of_dat_2_0(void)
{
	DAT_EVD_HANDLE triggered = DAT_HANDLE_NULL;
	DAT_CNO_HANDLE cno = DAT_HANDLE_NULL;
	DAT_CSP_HANDLE csp = DAT_HANDLE_NULL;
	DAT_RMR_HANDLE rmr = DAT_HANDLE_NULL;
	DAT_BOOLEAN answer = DAT_TRUE;
	struct rig a, b;
	DAT_CSP_PARAM param;
	DAT_EP_HANDLE ep;
	DAT_CR_HANDLE cr;
	DAT_COMM comm;
	DAT_FD fd = -1;

	rig_up(&a);
	rig_up(&b);
	OK(DAT_CNO_FD_CREATE(a.ia, &fd, &cno));
	CHECK(fd >= 0);
	CHECK_RET(DAT_CNO_TRIGGER(cno, &triggered), DAT_QUEUE_EMPTY);
	OK(DAT_CNO_FREE(cno));
	CHECK_RET(DAT_IA_HA_RELATED(a.ia, "no such name", &answer), DAT_MODEL_NOT_SUPPORTED);
	CHECK_RET(extended(a.ia, 0x7fff), DAT_NOT_IMPLEMENTED);
	/* iWARP devices have no such windows. */
	CHECK_EITHER(DAT_RMR_CREATE_FOR_EP(a.pz, &rmr), DAT_SUCCESS, DAT_MODEL_NOT_SUPPORTED);
	if (rmr != DAT_HANDLE_NULL)
		OK(DAT_RMR_FREE(rmr));

	ep = make_ep(&a, NULL);
	comm = (DAT_COMM){ b.attr.ia_address_ptr->sa_family, SOCK_STREAM, IPPROTO_TCP };
	OK(DAT_CSP_CREATE(b.ia, &comm, b.attr.ia_address_ptr, b.cr_evd, &csp));
	OK(DAT_CSP_QUERY(csp, DAT_CSP_FIELD_ALL, &param));
	OK(DAT_EP_COMMON_CONNECT(ep, param.address_ptr, SOON, 0, NULL));
	cr = await_request(&b);
	reject(cr);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	OK(DAT_CSP_FREE(csp));
	/* What fills a window is tried in t_rmr_ep. */
	CHECK_EITHER(DAT_EP_POST_RDMA_READ_TO_RMR(ep, NULL, cookie(1), NULL,
						  DAT_COMPLETION_DEFAULT_FLAG),
		     DAT_INVALID_PARAMETER, DAT_MODEL_NOT_SUPPORTED);
	rig_down(&a);
	rig_down(&b);
}

static void redirection__of_dat_2_0(void)
{
	on_each_stack(of_dat_2_0);
}
#endif

static void redirection__of_an_ia(void)
{
	on_each_stack(of_an_ia);
}

static void redirection__of_evds_and_cnos(void)
{
	on_each_stack(of_evds_and_cnos);
}

static void redirection__of_service_points(void)
{
	on_each_stack(of_service_points);
}

static void redirection__of_data(void)
{
	on_each_stack(of_data);
}

static void redirection__of_windows(void)
{
	on_each_stack(of_windows);
}

static const struct tap_test tests[] = {
	T(redirection, of_an_ia),
	T(redirection, of_evds_and_cnos),
	T(redirection, of_service_points),
	T(redirection, of_data),
	T(redirection, of_windows),
#ifdef DAT2
	T(redirection, of_dat_2_0),
#endif
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
