/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Cases of race.c: the beginning and the end of a connection. */
#include "race.h"

/* --- connections -------------------------------------------------------------------------- */

static DAT_CONN_QUAL qualifier;
static DAT_PSP_HANDLE psp;
static DAT_CR_HANDLE request;

static void ends_to_connect(void)
{
	rig_up(&p.a);
	rig_up(&p.b);
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, NULL);
	psp = listen_any(&p.b, &qualifier);
}

static void connect_work(void)
{
	OK(try_connect(p.ep_a, &p.b, qualifier, DAT_TIMEOUT_INFINITE));
}

static void await_connection_request(void)
{
	DAT_EVENT event = next(p.b.cr_evd);

	CHECK_EQ(event.event_number, DAT_CONNECTION_REQUEST_EVENT);
}

static void end_ends(void)
{
	rig_down(&p.a);
	rig_down(&p.b);
}

static void ends_with_a_request(void)
{
	ends_to_connect();
	connect_work();
	request = await_request(&p.b);
}

static void accept_work(void)
{
	OK(dat_cr_accept(request, p.ep_b, 0, NULL));
}

static void reject_work(void)
{
	OK(dx_cr_reject(request));
}

static void await_connection_event(void)
{
	next(p.a.connect_evd);
}

static void disconnect_work(void)
{
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
}

static void await_disconnection(void)
{
	next(p.b.connect_evd);
}

static void await_flush(void)
{
	DAT_EVENT event = next(p.b.recv_evd);

	CHECK_EQ(event.event_data.dto_completion_event_data.status, DAT_DTO_ERR_FLUSHED);
}

static void await_disconnected_state(void)
{
	await_state(p.ep_b, DAT_EP_STATE_DISCONNECTED);
}

/* --- the cases ---------------------------------------------------------------------------- */

#define EACH(X)                                                                                    \
	X(connect_request, ends_to_connect, connect_work, end_ends, await_connection_request, ALL) \
	X(connect_accept, ends_with_a_request, accept_work, end_ends, await_connection_event, ALL) \
	X(connect_reject, ends_with_a_request, reject_work, end_ends, await_connection_event, ALL) \
	X(disconnect_event, pair_for_messages, disconnect_work, end_pair, await_disconnection,     \
	  ALL)                                                                                     \
	X(disconnect_flush, pair_for_messages, disconnect_work, end_pair, await_flush, ALL)        \
	X(disconnect_state, pair_for_messages, disconnect_work, end_pair,                          \
	  await_disconnected_state, ALL)

EACH(RACE_FUNCTIONS)
const struct race connection_races[] = { EACH(RACE){ 0 } };
