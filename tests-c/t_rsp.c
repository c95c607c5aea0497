/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reserved service points: dat_rsp_create(3DAT), _query, _free; endpoints that the provider
 * makes for a request. End a connects, end b listens. */
#include "service.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* --- dat_rsp_create, dat_rsp_query, dat_rsp_free ------------------------------------------------ */

static void rsp_create__reserves_the_endpoint(void)
{
	DAT_RSP_HANDLE rsp;
	DAT_RSP_PARAM param;
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;

	points_up();
	qualifier = free_qualifier(&b);
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
	ends_down();
}

static void rsp_create__arguments(void)
{
	DAT_CONN_QUAL used;
	DAT_RSP_HANDLE rsp;

	points_up();
	qualifier = free_qualifier(&b);
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
	ends_down();
}

/* --- requests ------------------------------------------------------------------------------------ */

static void rsp__request_takes_the_endpoint(void)
{
	DAT_RSP_HANDLE rsp;
	DAT_CR_ARRIVAL_EVENT_DATA data;

	points_up();
	qualifier = free_qualifier(&b);
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
	ends_down();
}

static void rsp__one_request_only(void)
{
	DAT_EP_HANDLE second;
	DAT_CR_HANDLE cr;

	points_up();
	second = make_ep(&a, NULL);
	qualifier = free_qualifier(&b);
	reserve(qualifier, ep_b);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	OK(try_connect(second, &b, qualifier, SOON));
	CHECK(EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED)
		      .event_data.connect_event_data.ep_handle == second);
	EXPECT_NOTHING(b.cr_evd);
	OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	established();
	ends_down();
}

/* There was no room for the event of the first request, which was refused: the next one gets the endpoint. */
static void rsp__after_a_request_without_an_event(void)
{
	DAT_EVD_HANDLE evd;
	DAT_RSP_HANDLE rsp;
	DAT_RETURN full;
	DAT_EVENT event;
	int tries = 0;

	points_up();
	qualifier = free_qualifier(&b);
	evd = make_evd(b.ia, 1, DAT_EVD_CR_FLAG | DAT_EVD_SOFTWARE_FLAG);
	OK(dat_rsp_create(b.ia, qualifier, ep_b, evd, &rsp));
	while ((full = post_software_event(evd, 1)) == DAT_SUCCESS)
		;
	CHECK_CODE(full, DAT_QUEUE_FULL, DAT_NO_SUBTYPE);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	EXPECT(b.async_evd, DAT_ASYNC_ERROR_EVD_OVERFLOW);
	while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS)
		CHECK_EQ(event.event_number, DAT_SOFTWARE_EVENT);
	/* The peer knows that it was refused a moment before the endpoint is reserved again. */
	do {
		OK(dat_ep_reset(ep_a));
		OK(try_connect(ep_a, &b, qualifier, SOON));
		pause_us(NEVER);
	} while (dat_evd_dequeue(a.connect_evd, &event) == DAT_SUCCESS && ++tries < 20);
	event = EXPECT(evd, DAT_CONNECTION_REQUEST_EVENT);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
	OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, DAT_HANDLE_NULL, 0,
			 NULL));
	established();
	talk(ep_b);
	OK(dat_rsp_free(rsp));
	ends_down();
}

static void rsp__rejected(void)
{
	DAT_RSP_HANDLE rsp;

	points_up();
	qualifier = free_qualifier(&b);
	rsp = reserve(qualifier, ep_b);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dx_cr_reject(await_request(&b)));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	OK(dat_rsp_free(rsp));
	CHECK_RET(dat_ep_free(ep_b), DAT_SUCCESS);
	ends_down();
}

/* The request that has come keeps the endpoint. */
static void rsp_free__after_the_request(void)
{
	DAT_RSP_HANDLE rsp;
	DAT_CR_HANDLE cr;

	points_up();
	qualifier = free_qualifier(&b);
	rsp = reserve(qualifier, ep_b);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	CHECK_RET(dat_rsp_free(rsp), DAT_SUCCESS);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
	OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	established();
	talk(ep_b);
	ends_down();
}

/* Nor does its end touch an endpoint that another service point has reserved since. */
static void rsp_free__of_an_endpoint_that_is_reserved_again(void)
{
	DAT_CONN_QUAL other;
	DAT_RSP_HANDLE rsp;

	points_up();
	qualifier = free_qualifier(&b);
	rsp = reserve(qualifier, ep_b);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dx_cr_reject(await_request(&b)));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	OK(dat_ep_reset(ep_a));
	other = free_qualifier(&b);
	reserve(other, ep_b);
	CHECK_RET(dat_rsp_free(rsp), DAT_SUCCESS);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_RESERVED);
	OK(try_connect(ep_a, &b, other, SOON));
	OK(dat_cr_accept(await_request(&b), DAT_HANDLE_NULL, 0, NULL));
	established();
	talk(ep_b);
	ends_down();
}

static pthread_barrier_t both;
static DAT_RETURN freed;

static void *frees(void *arg)
{
	pthread_barrier_wait(&both);
	freed = dat_ep_free(ep_b);
	return arg;
}

/* An endpoint is reserved or freed, never both. */
static void rsp_create__beside_ep_free(void)
{
	enum { ROUNDS = 300 };

	points_up();
	if (!b.provider.is_thread_safe)
		tap_unsupported("the provider is not thread safe");
	qualifier = free_qualifier(&b);
	REQUIRE(pthread_barrier_init(&both, NULL, 2) == 0);
	for (int i = 0; i < ROUNDS; i++) {
		DAT_RETURN reserved;
		DAT_RSP_HANDLE rsp;
		pthread_t thread;

		REQUIRE(pthread_create(&thread, NULL, frees, NULL) == 0);
		pthread_barrier_wait(&both);
		for (int spin = rand() % 2000; spin > 0; spin--)
			atomic_signal_fence(memory_order_seq_cst);
		reserved = dat_rsp_create(b.ia, qualifier, ep_b, b.cr_evd, &rsp);
		REQUIRE(pthread_join(thread, NULL) == 0);
		if (reserved == DAT_SUCCESS) {
			CHECK_RET(freed, DAT_INVALID_STATE);
			OK(dat_rsp_free(rsp));
			OK(dat_ep_free(ep_b));
		} else {
			CHECK_CODE(reserved, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP);
			CHECK_RET(freed, DAT_SUCCESS);
		}
		ep_b = make_ep(&b, NULL);
	}
	pthread_barrier_destroy(&both);
	ends_down();
}

static void rsp_free__frees_the_qualifier(void)
{
	points_up();
	qualifier = free_qualifier(&b);
	OK(dat_rsp_free(reserve(qualifier, ep_b)));
	OK(dat_rsp_free(reserve(qualifier, ep_b)));
	OK(try_connect(ep_a, &b, qualifier, SOON));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	ends_down();
}

/* --- endpoints that the provider makes ------------------------------------------------------------ */

/* An endpoint that came with a request, used. */
static void accept_with_what_it_brings(void)
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
	configure_ep(&b, ep);
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
	points_up();
	qualifier = free_qualifier(&b);
	reserve(qualifier, DAT_HANDLE_NULL);
	accept_with_what_it_brings();
	ends_down();
}

static void provider_ep__of_a_psp(void)
{
	points_up();
	listen_for(DAT_PSP_PROVIDER_FLAG, &qualifier);
	for (int i = 0; i < 3; i++) {
		accept_with_what_it_brings();
		OK(dat_ep_reset(ep_a));
	}
	ends_down();
}

static void provider_ep__goes_when_rejected(void)
{
	DAT_CR_HANDLE cr;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;

	points_up();
	listen_for(DAT_PSP_PROVIDER_FLAG, &qualifier);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	ep = endpoint_of(cr);
	OK(dx_cr_reject(cr));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	CHECK_RET(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param), DAT_INVALID_HANDLE);
	ends_down();
}

/* --- what a query gives ------------------------------------------------------------------------------- */

/* No endpoint is reserved where the provider makes that of the request. */
static void rsp_query__endpoint(void)
{
	DAT_CONN_QUAL to;
	DAT_RSP_HANDLE rsp;
	DAT_RSP_PARAM param;

	points_up();
	to = free_qualifier(&b);
	rsp = reserve(to, DAT_HANDLE_NULL);
	memset(&param, 0xff, sizeof param);
	OK(dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, &param));
	CHECK(param.ia_handle == b.ia);
	CHECK_EQ(param.conn_qual, to);
	CHECK(param.evd_handle == b.cr_evd);
	CHECK(param.ep_handle == DAT_HANDLE_NULL);
	OK(dat_rsp_free(rsp));
	ends_down();
}

/* --- the end of a service point ---------------------------------------------------------------------- */

/* The requests that are there stay, and so do the endpoints that the provider has made for them. */
static void psp_free__endpoints_of_requests_stay(void)
{
	DAT_CONN_QUAL to;
	DAT_PSP_HANDLE point;
	DAT_CR_HANDLE cr;
	DAT_EP_HANDLE ep;

	points_up();
	point = listen_for(DAT_PSP_PROVIDER_FLAG, &to);
	OK(try_connect(ep_a, &b, to, SOON));
	cr = await_request(&b);
	ep = endpoint_of(cr);
	CHECK_RET(dat_psp_free(point), DAT_SUCCESS);
	CHECK(endpoint_of(cr) == ep);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING);
	configure_ep(&b, ep);
	OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	established();
	talk(ep);
	ends_down();
}

static const struct tap_test tests[] = {
	T(rsp_create, reserves_the_endpoint),
	T(rsp_create, arguments),
	T(rsp, request_takes_the_endpoint),
	T(rsp, one_request_only),
	T(rsp, after_a_request_without_an_event),
	T(rsp, rejected),
	T(rsp_free, after_the_request),
	T(rsp_free, of_an_endpoint_that_is_reserved_again),
	T(rsp_create, beside_ep_free),
	T(rsp_free, frees_the_qualifier),
	T(provider_ep, of_an_rsp),
	T(provider_ep, of_a_psp),
	T(provider_ep, goes_when_rejected),
	T(rsp_query, endpoint),
	T(psp_free, endpoints_of_requests_stay),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
