/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Connection requests: dat_cr_query(3DAT), dat_cr_accept(3DAT), dat_cr_reject(3DAT). */
#include "two_ends.h"

#include <string.h>

static DAT_CR_HANDLE request(void)
{
	OK(try_connect(ep_a, &b, qualifier, SOON));
	return await_request(&b);
}

static void cr_event__contents(void)
{
	DAT_CR_ARRIVAL_EVENT_DATA data;
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_EP;

	ends_up();
	OK(try_connect(ep_a, &b, qualifier, SOON));
	data = EXPECT(b.cr_evd, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data;
	CHECK(data.sp_handle.psp_handle == psp);
	CHECK_EQ(data.conn_qual, qualifier);
	REQUIRE(data.local_ia_address_ptr != NULL);
	CHECK(same_host(data.local_ia_address_ptr, b.attr.ia_address_ptr));
	OK(dat_get_handle_type(data.cr_handle, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_CR);
	ends_down();
}

static void cr_query__private_data_and_address(void)
{
	DAT_CR_HANDLE cr;
	DAT_CR_PARAM param;
	char data[48];

	ends_up();
	fill(data, sizeof data, 5);
	OK(dat_ep_connect(ep_a, b.attr.ia_address_ptr, qualifier, SOON, sizeof data, data,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	/* The library has its copy. */
	memset(data, 0, sizeof data);
	cr = await_request(&b);
	memset(&param, 0xff, sizeof param);
	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	/* Transports may pad. */
	REQUIRE(param.private_data_size >= (DAT_COUNT)sizeof data);
	REQUIRE(param.private_data != NULL);
	CHECK(filled(param.private_data, sizeof data, 5));
	REQUIRE(param.remote_ia_address_ptr != NULL);
	CHECK_EQ(param.remote_ia_address_ptr->sa_family, a.attr.ia_address_ptr->sa_family);
	CHECK(param.local_ep_handle == DAT_HANDLE_NULL);
	CHECK_RET(dat_cr_query(cr, DAT_CR_FIELD_ALL, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_cr_query(cr, (DAT_CR_PARAM_MASK)0x40000, &param), DAT_INVALID_PARAMETER);
	ends_down();
}

static void cr_query__no_private_data(void)
{
	DAT_CR_PARAM param;

	ends_up();
	memset(&param, 0xff, sizeof param);
	OK(dat_cr_query(request(), DAT_CR_FIELD_ALL, &param));
	CHECK(param.private_data_size >= 0);
	CHECK(param.private_data_size <= a.provider.max_private_data_size);
	CHECK(no_private_data(param.private_data));
	ends_down();
}

static void cr_query__largest_private_data(void)
{
	DAT_CR_PARAM param;
	char data[4096];
	DAT_COUNT most;

	ends_up();
	most = a.provider.max_private_data_size;
	REQUIRE(most >= 48);
	REQUIRE(most < (DAT_COUNT)sizeof data);
	fill(data, (size_t)most, 11);
	CHECK_RET(dat_ep_connect(ep_a, b.attr.ia_address_ptr, qualifier, SOON, most + 1, data,
				 DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	OK(dat_ep_connect(ep_a, b.attr.ia_address_ptr, qualifier, SOON, most, data,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	OK(dat_cr_query(await_request(&b), DAT_CR_FIELD_ALL, &param));
	REQUIRE(param.private_data_size >= most);
	CHECK(filled(param.private_data, (size_t)most, 11));
	ends_down();
}

static void cr_accept__private_data(void)
{
	DAT_CR_HANDLE cr;
	DAT_CONNECTION_EVENT_DATA event;
	DAT_EP_STATE state;
	char data[4096];
	DAT_COUNT most;

	ends_up();
	most = b.provider.max_private_data_size;
	REQUIRE(most < (DAT_COUNT)sizeof data);
	cr = request();
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
	fill(data, (size_t)most, 6);
	/* Refusals leave the request as it is. */
	CHECK_RET(dat_cr_accept(cr, ep_b, most + 1, data), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_cr_accept(cr, ep_b, -1, data), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_cr_accept(cr, ep_b, 4, NULL), DAT_INVALID_PARAMETER);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	OK(dat_cr_accept(cr, ep_b, most, data));
	state = ep_state(ep_b);
	CHECK(state == DAT_EP_STATE_COMPLETION_PENDING || state == DAT_EP_STATE_CONNECTED);

	event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			.event_data.connect_event_data;
	CHECK(event.ep_handle == ep_a);
	REQUIRE(event.private_data_size >= most);
	CHECK(filled(event.private_data, (size_t)most, 6));
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_CONNECTED);
	event = EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			.event_data.connect_event_data;
	CHECK(event.ep_handle == ep_b);
	CHECK_EQ(event.private_data_size, 0);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_CONNECTED);
	ends_down();
}

static void cr_accept__destroys_the_request(void)
{
	DAT_CR_HANDLE cr;
	DAT_CR_PARAM param;

	ends_up();
	cr = request();
	OK(dat_cr_accept(cr, ep_b, 0, NULL));
	CHECK_RET(dat_cr_accept(cr, ep_b, 0, NULL), DAT_INVALID_HANDLE);
	CHECK_RET(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param), DAT_INVALID_HANDLE);
	CHECK_RET(dx_cr_reject(cr), DAT_INVALID_HANDLE);
	established();
	ends_down();
}

static void cr_accept__private_data_of_the_request_passed_on(void)
{
	DAT_CR_HANDLE cr;
	DAT_CR_PARAM param;
	DAT_CONNECTION_EVENT_DATA event;
	char data[48];

	ends_up();
	fill(data, sizeof data, 8);
	OK(dat_ep_connect(ep_a, b.attr.ia_address_ptr, qualifier, SOON, sizeof data, data,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	cr = await_request(&b);
	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	OK(dat_cr_accept(cr, ep_b, param.private_data_size, param.private_data));
	event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			.event_data.connect_event_data;
	REQUIRE(event.private_data_size >= (DAT_COUNT)sizeof data);
	CHECK(filled(event.private_data, sizeof data, 8));
	ends_down();
}

static void cr_accept__endpoint_needed(void)
{
	DAT_CR_HANDLE cr;

	ends_up();
	cr = request();
	CHECK_CODE(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_EP);
	CHECK_RET(dat_cr_accept(cr, b.pz, 0, NULL), DAT_INVALID_HANDLE);
	CHECK_RET(dat_cr_accept(cr, ep_b, 0, NULL), DAT_SUCCESS);
	established();
	ends_down();
}

static void cr_accept__endpoint_in_another_state(void)
{
	DAT_CR_HANDLE cr;
	DAT_EP_HANDLE other_a, other_b;

	ends_up();
	other_a = make_ep(&a, NULL);
	other_b = make_ep(&b, NULL);
	connect_eps(&a, other_a, &b, other_b);
	cr = request();
	CHECK_RET(dat_cr_accept(cr, other_b, 0, NULL), DAT_INVALID_STATE);
	/* Neither was touched. */
	CHECK_EQ(ep_state(other_b), DAT_EP_STATE_CONNECTED);
	CHECK_RET(dat_cr_accept(cr, ep_b, 0, NULL), DAT_SUCCESS);
	established();
	ends_down();
}

/* The endpoint cannot be accepted with: the call is refused, the endpoint is as it was, and so is the
 * request. */
#define UNSUITABLE(cr, ep, type, subtype) unsuitable(__LINE__, (cr), (ep), (type), (subtype))

static void unsuitable(int line, DAT_CR_HANDLE cr, DAT_EP_HANDLE ep, DAT_RETURN type,
		       DAT_RETURN subtype)
{
	DAT_EP_STATE before = ep_state(ep);
	DAT_CR_PARAM param;

	check_code(__FILE__, line, "dat_cr_accept", dat_cr_accept(cr, ep, 0, NULL), type, subtype);
	CHECK_EQ(ep_state(ep), before);
	CHECK_RET(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param), DAT_SUCCESS);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
}

static void cr_accept__unsuitable_endpoints(void)
{
	DAT_EP_HANDLE elsewhere, deaf, homeless, reserved, pending;
	DAT_CONN_QUAL other;
	DAT_RSP_HANDLE rsp;
	DAT_CR_HANDLE cr;

	ends_up();
	elsewhere = make_ep(&a, NULL);
	OK(dat_ep_create(b.ia, b.pz, b.recv_evd, b.request_evd, DAT_HANDLE_NULL, NULL, &deaf));
	OK(dat_ep_create(b.ia, DAT_HANDLE_NULL, b.recv_evd, b.request_evd, b.connect_evd, NULL,
			 &homeless));
	other = free_qualifier(&b);
	reserved = make_ep(&b, NULL);
	OK(dat_rsp_create(b.ia, other, reserved, b.cr_evd, &rsp));
	pending = make_ep(&b, NULL);
	cr = request();
	UNSUITABLE(cr, elsewhere, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
	UNSUITABLE(cr, deaf, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
	UNSUITABLE(cr, homeless, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
	UNSUITABLE(cr, reserved, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_RESERVED);
	OK(try_connect(pending, &b, qualifier, SOON));
	UNSUITABLE(cr, pending, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_ACTCONNPENDING);
	EXPECT_NOTHING(b.connect_evd);
	OK(dx_cr_reject(await_request(&b)));
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	OK(dat_cr_accept(cr, ep_b, 0, NULL));
	established();
	/* Those that were refused are as good as before. */
	OK(dat_ep_free(elsewhere));
	OK(dat_ep_free(deaf));
	OK(dat_ep_free(homeless));
	OK(dat_rsp_free(rsp));
	CHECK_EQ(ep_state(reserved), DAT_EP_STATE_UNCONNECTED);
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	OK(dat_ep_reset(ep_a));
	connect_eps(&a, ep_a, &b, reserved);
	ends_down();
}

/* A request whose client has given up. The first clients may do so before there is a request, if the machine is
 * busy. */
static DAT_CR_HANDLE abandoned_request(void)
{
	DAT_EVENT event;

	for (DAT_TIMEOUT time = SHORTLY;; time *= 2) {
		OK(try_connect(ep_a, &b, qualifier, time));
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_TIMED_OUT);
		if (dat_evd_dequeue(b.cr_evd, &event) == DAT_SUCCESS)
			break;
		OK(dat_ep_reset(ep_a));
	}
	CHECK_EQ(event.event_number, DAT_CONNECTION_REQUEST_EVENT);
	return event.event_data.cr_arrival_event_data.cr_handle;
}

static void cr_accept__client_gave_up(void)
{
	DAT_CR_HANDLE cr;
	DAT_RETURN ret;

	ends_up();
	cr = abandoned_request();
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
	/* The accept is too late: the passive side hears it, if it does not know already. */
	ret = dat_cr_accept(cr, ep_b, 0, NULL);
	if (ret == DAT_SUCCESS) {
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
		CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_DISCONNECTED);
	}
	EXPECT_NOTHING(a.connect_evd);
	ends_down();
}

static void cr_accept__flushes_receives_of_a_lost_connection(void)
{
	DAT_LMR_TRIPLET none = { 0 };
	DAT_CR_HANDLE cr;

	ends_up();
	OK(dat_ep_post_recv(ep_b, 0, &none, cookie(77), DAT_COMPLETION_DEFAULT_FLAG));
	cr = abandoned_request();
	if (dat_cr_accept(cr, ep_b, 0, NULL) == DAT_SUCCESS) {
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
		EXPECT_DTO(b.recv_evd, 77, DAT_DTO_ERR_FLUSHED);
	} else {
		EXPECT_NOTHING(b.recv_evd);
	}
	ends_down();
}

static void cr_reject__seen_by_the_peer(void)
{
	DAT_CR_HANDLE cr;
	DAT_CR_PARAM param;
	DAT_CONNECTION_EVENT_DATA event;

	ends_up();
	cr = request();
	CHECK_RET(dx_cr_reject(cr), DAT_SUCCESS);
	CHECK_RET(dx_cr_reject(cr), DAT_INVALID_HANDLE);
	CHECK_RET(dat_cr_accept(cr, ep_b, 0, NULL), DAT_INVALID_HANDLE);
	CHECK_RET(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param), DAT_INVALID_HANDLE);
	CHECK_RET(dat_cr_handoff(cr, qualifier), DAT_INVALID_HANDLE);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED)
			.event_data.connect_event_data;
	CHECK(event.ep_handle == ep_a);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
	/* After a reset the same endpoint may try again. */
	OK(dat_ep_reset(ep_a));
	OK(dat_cr_accept(request(), ep_b, 0, NULL));
	established();
	ends_down();
}

#ifdef DAT2
static void cr_reject__private_data(void)
{
	DAT_CR_HANDLE cr;
	DAT_CR_PARAM param;
	DAT_CONNECTION_EVENT_DATA event;
	char data[48];

	ends_up();
	fill(data, sizeof data, 9);
	cr = request();
	CHECK_CODE(dat_cr_reject(cr, b.provider.max_private_data_size + 1, data),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_cr_reject(cr, -1, data), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_cr_reject(cr, 1, NULL), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
	/* It is there still, and the peer waits. */
	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	EXPECT_NOTHING(a.connect_evd);
	CHECK_RET(dat_cr_reject(cr, sizeof data, data), DAT_SUCCESS);
	/* The library has its copy. */
	memset(data, 0, sizeof data);
	event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED)
			.event_data.connect_event_data;
	REQUIRE(event.private_data_size >= (DAT_COUNT)sizeof data);
	CHECK(filled(event.private_data, sizeof data, 9));
	ends_down();
}
#endif

static void cr_order__requests_can_wait(void)
{
	enum { COUNT = 5 };
	DAT_EP_HANDLE active[COUNT], passive[COUNT];
	DAT_CR_HANDLE cr[COUNT];

	/* All requests arrive before the first is answered; answered last to first. */
	ends_up();
	for (int i = 0; i < COUNT; i++) {
		char number = (char)i;

		active[i] = make_ep(&a, NULL);
		passive[i] = make_ep(&b, NULL);
		OK(dat_ep_connect(active[i], b.attr.ia_address_ptr, qualifier, SOON, 1, &number,
				  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	}
	for (int i = 0; i < COUNT; i++) {
		DAT_CR_PARAM param;
		DAT_CR_HANDLE next = await_request(&b);

		OK(dat_cr_query(next, DAT_CR_FIELD_ALL, &param));
		cr[*(unsigned char *)param.private_data] = next;
	}
	for (int i = COUNT - 1; i >= 0; i--) {
		DAT_CONNECTION_EVENT_DATA event;

		OK(dat_cr_accept(cr[i], passive[i], 0, NULL));
		event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
				.event_data.connect_event_data;
		CHECK(event.ep_handle == active[i]);
		event = EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
				.event_data.connect_event_data;
		CHECK(event.ep_handle == passive[i]);
	}
	ends_down();
}

/* --- the EVD of requests goes ----------------------------------------------------------------- */

/* A request that was not read by the time that its EVD is freed is refused, whichever kind of
 * service point it arrived at; one that was read can still be answered. */
static void evd_free__refuses_unread_requests(void)
{
	DAT_CONN_QUAL to_rsp, to_provider;
	DAT_PSP_HANDLE provider;
	DAT_RSP_HANDLE rsp;
	DAT_CR_HANDLE cr;
	DAT_EVENT event;
	DAT_COUNT more = 0;
	int refused = 0;

	ends_up();
	to_rsp = free_qualifier(&b);
	OK(dat_rsp_create(b.ia, to_rsp, ep_b, b.cr_evd, &rsp));
	OK(dat_psp_create_any(b.ia, &to_provider, b.cr_evd, DAT_PSP_PROVIDER_FLAG, &provider));
	OK(try_connect(ep_a, &b, qualifier, DAT_TIMEOUT_INFINITE));
	OK(dat_evd_wait(b.cr_evd, SOON, 1, &event, &more));
	cr = event.event_data.cr_arrival_event_data.cr_handle;
	OK(try_connect(make_ep(&a, NULL), &b, qualifier, DAT_TIMEOUT_INFINITE));
	OK(try_connect(make_ep(&a, NULL), &b, to_rsp, DAT_TIMEOUT_INFINITE));
	OK(try_connect(make_ep(&a, NULL), &b, to_provider, DAT_TIMEOUT_INFINITE));
	/* They are there, and none is taken. */
	CHECK_RET(dat_evd_wait(b.cr_evd, NEVER, 4, &event, &more), DAT_TIMEOUT_EXPIRED);
	await_state(ep_b, DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
	for (int i = 0; i < 400 && more < 3; i++)
		CHECK_RET(dat_evd_wait(b.cr_evd, NEVER, 4, &event, &more), DAT_TIMEOUT_EXPIRED);
	REQUIRE(more == 3);
	OK(dat_psp_free(psp));
	OK(dat_psp_free(provider));
	OK(dat_rsp_free(rsp));
	EXPECT_NOTHING(a.connect_evd);
	CHECK_RET(dat_evd_free(b.cr_evd), DAT_SUCCESS);
	/* A transport may have one way to refuse a request. */
	for (; refused < 3; refused++) {
		DAT_EVENT_NUMBER number = await_end(&a);

		CHECK(number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED ||
		      number == DAT_CONNECTION_EVENT_PEER_REJECTED);
	}
	/* The endpoint is the consumer's again. */
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	OK(dat_cr_accept(cr, ep_b, 0, NULL));
	established();
	/* Nothing is left of the requests, nor the endpoint of the provider. */
	OK(dat_ep_free(ep_b));
	OK(dat_evd_free(b.connect_evd));
	OK(dat_evd_free(b.recv_evd));
	OK(dat_evd_free(b.request_evd));
	OK(dat_pz_free(b.pz));
	CHECK_RET(dat_ia_close(b.ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	rig_down(&a);
}

static const struct tap_test tests[] = {
	T(cr_event, contents),
	T(cr_query, private_data_and_address),
	T(cr_query, no_private_data),
	T(cr_query, largest_private_data),
	T(cr_accept, private_data),
	T(cr_accept, destroys_the_request),
	T(cr_accept, private_data_of_the_request_passed_on),
	T(cr_accept, endpoint_needed),
	T(cr_accept, endpoint_in_another_state),
	T(cr_accept, unsuitable_endpoints),
	T(cr_accept, client_gave_up),
	T(cr_accept, flushes_receives_of_a_lost_connection),
	T(cr_reject, seen_by_the_peer),
#ifdef DAT2
	T(cr_reject, private_data),
#endif
	T(cr_order, requests_can_wait),
	T(evd_free, refuses_unread_requests),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
