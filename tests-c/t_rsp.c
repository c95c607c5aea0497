/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reserved service points: dat_rsp_create(3DAT), _query, _free; endpoints that the provider
 * makes for a request; dat_cr_handoff(3DAT). Side a connects, side b listens. */
#include "common.h"

#include <string.h>

static struct rig a, b;
static DAT_EP_HANDLE ep_a, ep_b;

static void up(void)
{
	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
}

static void down(void)
{
	rig_down(&a);
	rig_down(&b);
}

/* A qualifier that was free a moment ago. */
static DAT_CONN_QUAL free_qualifier(void)
{
	DAT_CONN_QUAL qualifier;

	OK(dat_psp_free(listen_any(&b, &qualifier)));
	return qualifier;
}

static DAT_RSP_HANDLE reserve(DAT_CONN_QUAL qualifier, DAT_EP_HANDLE ep)
{
	DAT_RSP_HANDLE rsp = DAT_HANDLE_NULL;

	OK(dat_rsp_create(b.ia, qualifier, ep, b.cr_evd, &rsp));
	return rsp;
}

static DAT_PSP_HANDLE listen_for(DAT_PSP_FLAGS flags, DAT_CONN_QUAL *qualifier)
{
	DAT_PSP_HANDLE psp = DAT_HANDLE_NULL;

	OK(dat_psp_create_any(b.ia, qualifier, b.cr_evd, flags, &psp));
	return psp;
}

static DAT_EP_HANDLE endpoint_of(DAT_CR_HANDLE cr)
{
	DAT_CR_PARAM param;

	memset(&param, 0xff, sizeof param);
	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	return param.local_ep_handle;
}

static void established(void)
{
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
}

/* Gives an endpoint of the provider's making what it needs. */
static void configure(DAT_EP_HANDLE ep)
{
	DAT_EP_PARAM param;

	memset(&param, 0, sizeof param);
	param.pz_handle = b.pz;
	param.recv_evd_handle = b.recv_evd;
	param.request_evd_handle = b.request_evd;
	param.connect_evd_handle = b.connect_evd;
	OK(dat_ep_modify(ep,
			 DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE |
				 DAT_EP_FIELD_REQUEST_EVD_HANDLE | DAT_EP_FIELD_CONNECT_EVD_HANDLE,
			 &param));
}

/* A message from a to this endpoint of b. */
static void talk(DAT_EP_HANDLE ep)
{
	struct mem ma = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	struct mem mb = make_mem(&b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	DAT_LMR_TRIPLET from = dx_local(ma.local, ma.at, 100);
	DAT_LMR_TRIPLET to = dx_local(mb.local, mb.at, 100);

	fill(ma.at, 100, 6);
	OK(dat_ep_post_recv(ep, 1, &to, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_send(ep_a, 1, &from, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, 100, 6));
}

/* --- dat_rsp_create, dat_rsp_query, dat_rsp_free ------------------------------------------------ */

static void rsp_create__reserves_the_endpoint(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_RSP_HANDLE rsp;
	DAT_RSP_PARAM param;
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;

	up();
	qualifier = free_qualifier();
	rsp = reserve(qualifier, ep_b);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_RESERVED);
	OK(dat_get_handle_type(rsp, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_RSP);
	memset(&param, 0xff, sizeof param);
	OK(dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, &param));
	CHECK(param.ia_handle == b.ia);
	CHECK_EQ(param.conn_qual, qualifier);
	CHECK(param.evd_handle == b.cr_evd);
	CHECK(param.ep_handle == ep_b);
	CHECK_RET(dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_rsp_query(rsp, (DAT_RSP_PARAM_MASK)0x40000, &param), DAT_INVALID_PARAMETER);
	/* It is not the consumer's for the time being. */
	CHECK_RET(dat_ep_free(ep_b), DAT_INVALID_STATE);
	CHECK_RET(try_connect(ep_b, &a, qualifier, SOON), DAT_INVALID_STATE);
	CHECK_RET(dat_evd_free(b.cr_evd), DAT_INVALID_STATE);
	CHECK_RET(dat_rsp_free(rsp), DAT_SUCCESS);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	CHECK_CODE(dat_rsp_free(rsp), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_RSP);
	CHECK_RET(dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, &param), DAT_INVALID_HANDLE);
	CHECK_RET(dat_evd_free(b.cr_evd), DAT_SUCCESS);
	down();
}

static void rsp_create__arguments(void)
{
	DAT_CONN_QUAL qualifier, used;
	DAT_RSP_HANDLE rsp;

	up();
	qualifier = free_qualifier();
	CHECK_CODE(dat_rsp_create(DAT_HANDLE_NULL, qualifier, ep_b, b.cr_evd, &rsp),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
	CHECK_CODE(dat_rsp_create(b.ia, qualifier, b.pz, b.cr_evd, &rsp), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_EP);
	CHECK_CODE(dat_rsp_create(b.ia, qualifier, ep_b, b.recv_evd, &rsp), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_EVD_CR);
	CHECK_RET(dat_rsp_create(b.ia, qualifier, ep_a, b.cr_evd, &rsp), DAT_INVALID_HANDLE);
	CHECK_RET(dat_rsp_create(b.ia, qualifier, ep_b, b.cr_evd, NULL), DAT_INVALID_PARAMETER);
	CHECK_CODE(dat_rsp_create(b.ia, 0, ep_b, b.cr_evd, &rsp), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
	listen_any(&b, &used);
	CHECK_RET(dat_rsp_create(b.ia, used, ep_b, b.cr_evd, &rsp), DAT_CONN_QUAL_IN_USE);
	/* After all that the endpoint is as it was. */
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	rsp = reserve(qualifier, ep_b);
	CHECK_RET(dat_rsp_create(b.ia, qualifier + 1, ep_b, b.cr_evd, &rsp), DAT_INVALID_STATE);
	down();
}

/* --- requests ------------------------------------------------------------------------------------ */

static void rsp__request_takes_the_endpoint(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_RSP_HANDLE rsp;
	DAT_CR_ARRIVAL_EVENT_DATA data;

	up();
	qualifier = free_qualifier();
	rsp = reserve(qualifier, ep_b);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	data = EXPECT(b.cr_evd, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data;
	CHECK(data.sp_handle.rsp_handle == rsp);
	CHECK_EQ(data.conn_qual, qualifier);
	CHECK(endpoint_of(data.cr_handle) == ep_b);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
	CHECK_RET(dat_ep_free(ep_b), DAT_INVALID_STATE);
	/* The request has its endpoint: another one cannot be named. */
	CHECK_CODE(dat_cr_accept(data.cr_handle, make_ep(&b, NULL), 0, NULL), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_EP);
	OK(dat_cr_accept(data.cr_handle, DAT_HANDLE_NULL, 0, NULL));
	established();
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_CONNECTED);
	/* The end of the service point is nothing to the connection. */
	CHECK_RET(dat_rsp_free(rsp), DAT_SUCCESS);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_CONNECTED);
	talk(ep_b);
	down();
}

static void rsp__one_request_only(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_EP_HANDLE second;
	DAT_CR_HANDLE cr;

	up();
	second = make_ep(&a, NULL);
	qualifier = free_qualifier();
	reserve(qualifier, ep_b);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	OK(try_connect(second, &b, qualifier, SOON));
	CHECK(EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED)
		      .event_data.connect_event_data.ep_handle == second);
	EXPECT_NOTHING(b.cr_evd);
	OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	established();
	down();
}

static void rsp__rejected(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_RSP_HANDLE rsp;

	up();
	qualifier = free_qualifier();
	rsp = reserve(qualifier, ep_b);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dx_cr_reject(await_request(&b)));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	OK(dat_rsp_free(rsp));
	CHECK_RET(dat_ep_free(ep_b), DAT_SUCCESS);
	down();
}

/* The request that has come keeps the endpoint. */
static void rsp_free__after_the_request(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_RSP_HANDLE rsp;
	DAT_CR_HANDLE cr;

	up();
	qualifier = free_qualifier();
	rsp = reserve(qualifier, ep_b);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	CHECK_RET(dat_rsp_free(rsp), DAT_SUCCESS);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
	OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	established();
	talk(ep_b);
	down();
}

static void rsp_free__frees_the_qualifier(void)
{
	DAT_CONN_QUAL qualifier;

	up();
	qualifier = free_qualifier();
	OK(dat_rsp_free(reserve(qualifier, ep_b)));
	OK(dat_rsp_free(reserve(qualifier, ep_b)));
	OK(try_connect(ep_a, &b, qualifier, SOON));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	down();
}

/* --- endpoints that the provider makes ------------------------------------------------------------ */

/* An endpoint that came with a request, used. */
static void accept_with_what_it_brings(DAT_CONN_QUAL qualifier)
{
	DAT_CR_HANDLE cr;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;

	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	ep = endpoint_of(cr);
	REQUIRE(ep != DAT_HANDLE_NULL);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	CHECK(param.pz_handle == DAT_HANDLE_NULL);
	CHECK(param.recv_evd_handle == DAT_HANDLE_NULL);
	CHECK(param.request_evd_handle == DAT_HANDLE_NULL);
	CHECK(param.connect_evd_handle == DAT_HANDLE_NULL);
	CHECK_RET(dat_ep_free(ep), DAT_INVALID_STATE);
	configure(ep);
	OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	established();
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_CONNECTED);
	talk(ep);
	OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_RET(dat_ep_free(ep), DAT_SUCCESS);
}

static void provider_ep__of_an_rsp(void)
{
	DAT_CONN_QUAL qualifier;

	up();
	qualifier = free_qualifier();
	reserve(qualifier, DAT_HANDLE_NULL);
	accept_with_what_it_brings(qualifier);
	down();
}

static void provider_ep__of_a_psp(void)
{
	DAT_CONN_QUAL qualifier;

	up();
	listen_for(DAT_PSP_PROVIDER_FLAG, &qualifier);
	for (int i = 0; i < 3; i++) {
		accept_with_what_it_brings(qualifier);
		OK(dat_ep_reset(ep_a));
	}
	down();
}

static void provider_ep__goes_when_rejected(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_CR_HANDLE cr;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;

	up();
	listen_for(DAT_PSP_PROVIDER_FLAG, &qualifier);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	ep = endpoint_of(cr);
	OK(dx_cr_reject(cr));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	CHECK_RET(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param), DAT_INVALID_HANDLE);
	down();
}

/* --- dat_cr_handoff --------------------------------------------------------------------------------- */

static void cr_handoff__to_another_point(void)
{
	DAT_CONN_QUAL first, second;
	DAT_PSP_HANDLE psp;
	DAT_CR_HANDLE cr;
	DAT_CR_PARAM param;
	DAT_CR_ARRIVAL_EVENT_DATA data;
	char text[] = "take me there";

	up();
	listen_any(&b, &first);
	psp = listen_any(&b, &second);
	OK(dat_ep_connect(ep_a, b.attr.ia_address_ptr, first, SOON, sizeof text, text,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	cr = await_request(&b);
	CHECK_RET(dat_cr_handoff(cr, second), DAT_SUCCESS);
	CHECK_CODE(dat_cr_handoff(cr, second), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CR);
	CHECK_RET(dat_cr_accept(cr, ep_b, 0, NULL), DAT_INVALID_HANDLE);
	data = EXPECT(b.cr_evd, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data;
	CHECK(data.sp_handle.psp_handle == psp);
	CHECK_EQ(data.conn_qual, second);
	OK(dat_cr_query(data.cr_handle, DAT_CR_FIELD_ALL, &param));
	REQUIRE(param.private_data_size >= (DAT_COUNT)sizeof text);
	CHECK(memcmp(param.private_data, text, sizeof text) == 0);
	OK(dat_cr_accept(data.cr_handle, ep_b, 0, NULL));
	established();
	talk(ep_b);
	down();
}

static void cr_handoff__to_a_reserved_point(void)
{
	DAT_CONN_QUAL first, second;
	DAT_CR_HANDLE cr;

	up();
	listen_any(&b, &first);
	second = free_qualifier();
	reserve(second, ep_b);
	OK(try_connect(ep_a, &b, first, SOON));
	OK(dat_cr_handoff(await_request(&b), second));
	cr = await_request(&b);
	CHECK(endpoint_of(cr) == ep_b);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
	OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	established();
	talk(ep_b);
	down();
}

/* The endpoint of the first point is free again. */
static void cr_handoff__from_a_reserved_point(void)
{
	DAT_CONN_QUAL first, second;
	DAT_CR_HANDLE cr;

	up();
	first = free_qualifier();
	reserve(first, ep_b);
	listen_any(&b, &second);
	OK(try_connect(ep_a, &b, first, SOON));
	OK(dat_cr_handoff(await_request(&b), second));
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	cr = await_request(&b);
	CHECK(endpoint_of(cr) == DAT_HANDLE_NULL);
	OK(dat_cr_accept(cr, ep_b, 0, NULL));
	established();
	down();
}

static void cr_handoff__arguments(void)
{
	DAT_CONN_QUAL qualifier, nobody;
	DAT_CR_HANDLE cr;

	up();
	nobody = free_qualifier();
	listen_any(&b, &qualifier);
	CHECK_CODE(dat_cr_handoff(DAT_HANDLE_NULL, qualifier), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_CR);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	if (nobody != qualifier)
		CHECK_RET(dat_cr_handoff(cr, nobody), DAT_INVALID_PARAMETER);
	CHECK_CODE(dat_cr_handoff(cr, 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	/* Refused, so the request is still here. */
	OK(dat_cr_accept(cr, ep_b, 0, NULL));
	established();
	down();
}

/* A reserved service point that had its request takes no other. The call is refused, and the request
 * stays with its consumer. */
static void cr_handoff__to_a_reserved_point_that_had_its_request(void)
{
	DAT_CONN_QUAL qualifier, reserved;
	DAT_EP_HANDLE second;
	DAT_CR_HANDLE cr, first;
	DAT_CR_PARAM param;

	up();
	listen_any(&b, &qualifier);
	reserved = free_qualifier();
	reserve(reserved, ep_b);
	second = make_ep(&a, NULL);
	OK(try_connect(second, &b, reserved, SOON));
	first = await_request(&b);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	CHECK_CODE(dat_cr_handoff(cr, reserved), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	/* That of the point itself, too. */
	CHECK_CODE(dat_cr_handoff(first, reserved), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	EXPECT_NOTHING(a.connect_evd);
	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
	OK(dat_cr_accept(first, DAT_HANDLE_NULL, 0, NULL));
	established();
	/* After its connection as well. */
	CHECK_CODE(dat_cr_handoff(cr, reserved), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	OK(dat_cr_accept(cr, make_ep(&b, NULL), 0, NULL));
	established();
	down();
}

static const struct tap_test tests[] = {
	T(rsp_create, reserves_the_endpoint),
	T(rsp_create, arguments),
	T(rsp, request_takes_the_endpoint),
	T(rsp, one_request_only),
	T(rsp, rejected),
	T(rsp_free, after_the_request),
	T(rsp_free, frees_the_qualifier),
	T(provider_ep, of_an_rsp),
	T(provider_ep, of_a_psp),
	T(provider_ep, goes_when_rejected),
	T(cr_handoff, to_another_point),
	T(cr_handoff, to_a_reserved_point),
	T(cr_handoff, from_a_reserved_point),
	T(cr_handoff, arguments),
	T(cr_handoff, to_a_reserved_point_that_had_its_request),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
