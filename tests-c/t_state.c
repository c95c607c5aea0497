/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The state machine of endpoints: what each state allows and how it refuses the rest, and the
 * transitions that need an endpoint held in a state.
 *
 * COMPLETION_PENDING is held by a peer whose process is stopped: the handshake needs it once
 * more after the accept. DISCONNECT_PENDING is held by a send that finds no receive.
 */
#include "state.h"

#include <inttypes.h>
#include <stdlib.h>

static struct peer peer;

/* The two ends; what a requests may be binds. */
static void up(void)
{
	rig_up(&a);
	rig_up(&b);
	a.request_evd = make_evd(a.ia, 64, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	psp = listen_any(&b, &qualifier);
}

static void down(void)
{
	rig_down(&a);
	rig_down(&b);
}

static void up_connected(void)
{
	up();
	connect_eps(&a, ep_a, &b, ep_b);
}

static void ep_state__unconnected(void)
{
	up();
	check_state(ep_a, DAT_EP_STATE_UNCONNECTED, DAT_INVALID_STATE_EP_UNCONNECTED,
		    CONNECT | RESET | RESERVE | FREE | MODIFY | ZONE);
	EXPECT_NOTHING(a.connect_evd);
	CHECK_RET(dat_ep_free(ep_a), DAT_SUCCESS);
	down();
}

static void ep_state__active_connection_pending(void)
{
	up();
	OK(try_connect(ep_a, &b, qualifier, SOON));
	await_request(&b);
	check_state(ep_a, DAT_EP_STATE_ACTIVE_CONNECTION_PENDING,
		    DAT_INVALID_STATE_EP_ACTCONNPENDING, DISCONNECT | FREE);
	CHECK_RET(dat_ep_free(ep_a), DAT_SUCCESS);
	down();
}

static void ep_state__connected(void)
{
	up_connected();
	check_state(ep_a, DAT_EP_STATE_CONNECTED, DAT_INVALID_STATE_EP_CONNECTED,
		    DISCONNECT | REQUESTS | FREE);
	CHECK_RET(dat_ep_free(ep_a), DAT_SUCCESS);
	down();
}

static void ep_state__disconnected(void)
{
	up_connected();
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	check_state(ep_a, DAT_EP_STATE_DISCONNECTED, DAT_INVALID_STATE_EP_DISCONNECTED,
		    DISCONNECT | RESET | REQUESTS | FREE);
	EXPECT_DTO(a.recv_evd, 70, DAT_DTO_ERR_FLUSHED);
	CHECK_RET(dat_ep_free(ep_a), DAT_SUCCESS);
	down();
}

/* --- DISCONNECT_PENDING ----------------------------------------------------------------------- */

/* A graceful disconnect that has to wait for a send. */
static void up_draining(void)
{
	up_connected();
	OK(send_nothing(ep_a, 5, DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECT_PENDING);
}

/* The send is received, and the disconnect goes on. */
static void drain(void)
{
	OK(recv_nothing(ep_b, 6));
	EXPECT_DTO(b.recv_evd, 6, DAT_DTO_SUCCESS);
	EXPECT_DTO(a.request_evd, 5, DAT_DTO_SUCCESS);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
}

static void ep_state__disconnect_pending(void)
{
	up_draining();
	check_state(ep_a, DAT_EP_STATE_DISCONNECT_PENDING, DAT_INVALID_STATE_EP_DISCPENDING,
		    DISCONNECT | FREE);
	drain();
	EXPECT_DTO(a.recv_evd, 70, DAT_DTO_ERR_FLUSHED);
	down();
}

static void ep_disconnect__graceful_twice(void)
{
	up_draining();
	CHECK_RET(dat_ep_disconnect(ep_a, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECT_PENDING);
	EXPECT_NOTHING(a.connect_evd);
	drain();
	/* One event for both. */
	EXPECT_NOTHING(a.connect_evd);
	down();
}

static void ep_disconnect__abrupt_after_graceful(void)
{
	DAT_DTO_COMPLETION_EVENT_DATA dto;

	up_draining();
	CHECK_RET(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	dto = EXPECT(a.request_evd, DAT_DTO_COMPLETION_EVENT).event_data.dto_completion_event_data;
	CHECK_EQ(dto.user_cookie.as_64, 5);
	/* Elsewhere a send may be done when it has left. */
	if (sends_are_delivered() || dto.status != DAT_DTO_SUCCESS)
		CHECK_EQ(dto.status, DAT_DTO_ERR_FLUSHED);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
	EXPECT_NOTHING(a.connect_evd);
	down();
}

static void ep_free__while_draining(void)
{
	up_draining();
	CHECK_RET(dat_ep_free(ep_a), DAT_SUCCESS);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_DISCONNECTED);
	EXPECT_NOTHING(a.connect_evd);
	EXPECT_NOTHING(a.request_evd);
	down();
}

/* --- ACTIVE_CONNECTION_PENDING ---------------------------------------------------------------- */

static void give_up(DAT_CLOSE_FLAGS flags)
{
	up();
	OK(recv_nothing(ep_a, 3));
	OK(try_connect(ep_a, &b, qualifier, SOON));
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
	CHECK_RET(dat_ep_disconnect(ep_a, flags), DAT_SUCCESS);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
	EXPECT_DTO(a.recv_evd, 3, DAT_DTO_ERR_FLUSHED);
	EXPECT_NOTHING(a.connect_evd);
	down();
}

static void ep_disconnect__gives_up_abruptly(void)
{
	give_up(DAT_CLOSE_ABRUPT_FLAG);
}

static void ep_disconnect__gives_up_gracefully(void)
{
	give_up(DAT_CLOSE_GRACEFUL_FLAG);
}

/* --- COMPLETION_PENDING ----------------------------------------------------------------------- */

/* The peer: connects to the qualifier and makes no call any more. */
static void be_peer(const char *role, const char *argument)
{
	struct rig rig;
	DAT_EP_HANDLE ep;

	(void)role;
	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	OK(try_connect(ep, &rig, strtoull(argument, NULL, 10), SOON));
	puts("up");
	fflush(stdout);
	await_end_of_input();
	rig_down(&rig);
}

/* The request of a peer that is stopped then. */
static DAT_CR_HANDLE stopped_request(DAT_CONN_QUAL to)
{
	DAT_CR_HANDLE cr;
	char text[32];

	snprintf(text, sizeof text, "%" PRIu64, (uint64_t)to);
	peer = start_peer("connect", text);
	cr = await_request(&a);
	stop_peer(&peer);
	return cr;
}

/* ep_a has accepted such a request. */
static void up_accepted(void)
{
	DAT_CONN_QUAL own;
	DAT_CR_HANDLE cr;

	up();
	listen_any(&a, &own);
	cr = stopped_request(own);
	OK(recv_nothing(ep_a, 8));
	OK(dat_cr_accept(cr, ep_a, 0, NULL));
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_COMPLETION_PENDING);
}

/* The peer goes on and the connection of this endpoint comes up. */
static void complete(DAT_EP_HANDLE ep)
{
	DAT_CONNECTION_EVENT_DATA event;

	CHECK_EQ(ep_state(ep), DAT_EP_STATE_COMPLETION_PENDING);
	continue_peer(&peer);
	event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			.event_data.connect_event_data;
	CHECK(event.ep_handle == ep);
	CHECK_EQ(event.private_data_size, 0);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_CONNECTED);
	end_peer(&peer);
}

static void ep_state__completion_pending(void)
{
	up_accepted();
	check_state(ep_a, DAT_EP_STATE_COMPLETION_PENDING, DAT_INVALID_STATE_EP_COMPLPENDING,
		    DISCONNECT | FREE);
	EXPECT_NOTHING(a.connect_evd);
	complete(ep_a);
	down();
}

static void give_up_accept(DAT_CLOSE_FLAGS flags)
{
	up_accepted();
	CHECK_RET(dat_ep_disconnect(ep_a, flags), DAT_SUCCESS);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
	EXPECT_DTO(a.recv_evd, 8, DAT_DTO_ERR_FLUSHED);
	continue_peer(&peer);
	EXPECT_NOTHING(a.connect_evd);
	end_peer(&peer);
	down();
}

static void ep_disconnect__gives_up_an_accept_abruptly(void)
{
	give_up_accept(DAT_CLOSE_ABRUPT_FLAG);
}

static void ep_disconnect__gives_up_an_accept_gracefully(void)
{
	give_up_accept(DAT_CLOSE_GRACEFUL_FLAG);
}

static void ep_free__accepted(void)
{
	up_accepted();
	CHECK_RET(dat_ep_free(ep_a), DAT_SUCCESS);
	continue_peer(&peer);
	end_peer(&peer);
	EXPECT_NOTHING(a.connect_evd);
	EXPECT_NOTHING(a.recv_evd);
	down();
}

static void cr_accept__cannot_be_completed(void)
{
	up_accepted();
	kill_peer(&peer);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
	EXPECT_DTO(a.recv_evd, 8, DAT_DTO_ERR_FLUSHED);
	EXPECT_NOTHING(a.connect_evd);
	/* The endpoint is as good as new after a reset. */
	OK(dat_ep_reset(ep_a));
	connect_eps(&a, ep_a, &b, ep_b);
	down();
}

/* --- RESERVED and PASSIVE_CONNECTION_PENDING ---------------------------------------------------- */

static DAT_RSP_HANDLE reserve(DAT_CONN_QUAL *own)
{
	DAT_RSP_HANDLE rsp = DAT_HANDLE_NULL;

	*own = free_qualifier(&a);
	OK(dat_rsp_create(a.ia, *own, ep_a, a.cr_evd, &rsp));
	return rsp;
}

static void ep_state__reserved(void)
{
	DAT_CONN_QUAL own;
	DAT_RSP_HANDLE rsp;

	up();
	rsp = reserve(&own);
	check_state(ep_a, DAT_EP_STATE_RESERVED, DAT_INVALID_STATE_EP_RESERVED, MODIFY);
	OK(dat_rsp_free(rsp));
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
	CHECK_RET(dat_ep_free(ep_a), DAT_SUCCESS);
	down();
}

static void ep_state__passive_connection_pending(void)
{
	DAT_CONN_QUAL own;
	DAT_CR_HANDLE cr;

	up();
	reserve(&own);
	OK(try_connect(ep_b, &a, own, SOON));
	cr = await_request(&a);
	check_state(ep_a, DAT_EP_STATE_PASSIVE_CONNECTION_PENDING,
		    DAT_INVALID_STATE_EP_PASSCONNPENDING, MODIFY);
	/* Rejected: the endpoint is the consumer's again. */
	OK(dx_cr_reject(cr));
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
	EXPECT_NOTHING(a.connect_evd);
	OK(dat_ep_reset(ep_b));
	connect_eps(&a, ep_a, &b, ep_b);
	down();
}

static void cr_accept__of_a_reserved_endpoint(void)
{
	DAT_CONN_QUAL own;
	DAT_CR_HANDLE cr;

	up();
	reserve(&own);
	cr = stopped_request(own);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
	OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	complete(ep_a);
	down();
}

/* --- TENTATIVE_CONNECTION_PENDING --------------------------------------------------------------- */

/* A listener whose requests bring endpoints. */
static DAT_PSP_HANDLE listen_with_endpoints(DAT_CONN_QUAL *own)
{
	DAT_PSP_HANDLE point = DAT_HANDLE_NULL;

	if (a.provider.ep_creator == DAT_PSP_CREATES_EP_NEVER)
		tap_unsupported("the provider makes no endpoints");
	OK(dat_psp_create_any(a.ia, own, a.cr_evd, DAT_PSP_PROVIDER_FLAG, &point));
	return point;
}

/* The endpoint of a request, made ready. */
static DAT_EP_HANDLE endpoint_of(DAT_CR_HANDLE cr)
{
	DAT_CR_PARAM request;
	DAT_EP_PARAM param;

	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &request));
	REQUIRE(request.local_ep_handle != DAT_HANDLE_NULL);
	OK(dat_ep_query(request.local_ep_handle, DAT_EP_FIELD_ALL, &param));
	CHECK_EQ(param.ep_state, DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING);
	CHECK(param.pz_handle == DAT_HANDLE_NULL);
	CHECK(param.recv_evd_handle == DAT_HANDLE_NULL);
	CHECK(param.request_evd_handle == DAT_HANDLE_NULL);
	CHECK(param.connect_evd_handle == DAT_HANDLE_NULL);
	configure_ep(&a, request.local_ep_handle);
	return request.local_ep_handle;
}

static void ep_state__tentative_connection_pending(void)
{
	DAT_CONN_QUAL own;
	DAT_CR_HANDLE cr;
	DAT_EP_HANDLE ep;
	DAT_EP_STATE state;

	up();
	listen_with_endpoints(&own);
	OK(try_connect(ep_b, &a, own, SOON));
	cr = await_request(&a);
	ep = endpoint_of(cr);
	check_state(ep, DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING,
		    DAT_INVALID_STATE_EP_TENTCONNPENDING, MODIFY | ZONE);
	/* Rejected: it is the provider's again. */
	OK(dx_cr_reject(cr));
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	CHECK_RET(dat_ep_get_status(ep, &state, NULL, NULL), DAT_INVALID_HANDLE);
	EXPECT_NOTHING(a.connect_evd);
	down();
}

static void cr_accept__of_an_endpoint_of_the_provider(void)
{
	DAT_CONN_QUAL own;
	DAT_CR_HANDLE cr;
	DAT_EP_HANDLE ep;

	up();
	listen_with_endpoints(&own);
	cr = stopped_request(own);
	ep = endpoint_of(cr);
	OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	complete(ep);
	/* From now on it is as any other. */
	CHECK_RET(dat_ep_free(ep), DAT_SUCCESS);
	down();
}

static void cr_accept__of_an_endpoint_that_is_not_ready(void)
{
	DAT_CONN_QUAL own;
	DAT_CR_HANDLE cr;
	DAT_EP_HANDLE ep;

	/* Without EVDs and zone it cannot be accepted; then it can. */
	up();
	listen_with_endpoints(&own);
	OK(try_connect(ep_b, &a, own, SOON));
	cr = await_request(&a);
	CHECK_CODE(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_EP);
	/* Nor with another one. */
	CHECK_RET(dat_cr_accept(cr, ep_a, 0, NULL), DAT_INVALID_HANDLE);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
	ep = endpoint_of(cr);
	CHECK_RET(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL), DAT_SUCCESS);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_CONNECTED);
	down();
}

static const struct tap_test tests[] = {
	T(ep_state, unconnected),
	T(ep_state, active_connection_pending),
	T(ep_state, completion_pending),
	T(ep_state, connected),
	T(ep_state, disconnect_pending),
	T(ep_state, disconnected),
	T(ep_state, reserved),
	T(ep_state, passive_connection_pending),
	T(ep_state, tentative_connection_pending),
	T(ep_disconnect, graceful_twice),
	T(ep_disconnect, abrupt_after_graceful),
	T(ep_disconnect, gives_up_abruptly),
	T(ep_disconnect, gives_up_gracefully),
	T(ep_disconnect, gives_up_an_accept_abruptly),
	T(ep_disconnect, gives_up_an_accept_gracefully),
	T(ep_free, while_draining),
	T(ep_free, accepted),
	T(cr_accept, cannot_be_completed),
	T(cr_accept, of_a_reserved_endpoint),
	T(cr_accept, of_an_endpoint_of_the_provider),
	T(cr_accept, of_an_endpoint_that_is_not_ready),
	TAP_END,
};

int main(int argc, char **argv)
{
	return peer_main(argc, argv, tests, be_peer);
}
