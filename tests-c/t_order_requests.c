/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The order of what both ends see of a request for a connection: one end gives up while the other
 * answers, or the service point is freed. */
#include "order.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static void *disconnect_a(void *arg)
{
	pause_us(*(int *)arg * 100);
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	return NULL;
}

/* The active end gives up while the passive one answers. */
static void given_up(void (*answer)(DAT_CR_HANDLE))
{
	order_up();
	for (int i = 0; i < ROUNDS; i++) {
		DAT_CR_HANDLE cr;
		DAT_EVENT_NUMBER end;
		pthread_t active;

		OK(try_connect(ep_a, &b, qualifier, SOON));
		cr = await_request(&b);
		REQUIRE(pthread_create(&active, NULL, disconnect_a, &i) == 0);
		answer(cr);
		end = await_end(&a);
		CHECK(end == DAT_CONNECTION_EVENT_DISCONNECTED ||
		      end == DAT_CONNECTION_EVENT_PEER_REJECTED);
		CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
		REQUIRE(pthread_join(active, NULL) == 0);
		nothing(a.connect_evd);
		OK(dat_ep_reset(ep_a));
	}
	silent(&a);
	silent(&b);
	nothing(b.cr_evd);
	join();
	ends_down();
}

static void accept_it(DAT_CR_HANDLE cr)
{
	DAT_EVENT event;
	DAT_COUNT more;

	if (dat_cr_accept(cr, ep_b, 0, NULL) != DAT_SUCCESS)
		return;
	OK(dat_evd_wait(b.connect_evd, SOON, 1, &event, &more));
	if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED) {
		OK(dat_evd_wait(b.connect_evd, SOON, 1, &event, &more));
		CHECK(event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED ||
		      event.event_number == DAT_CONNECTION_EVENT_BROKEN);
	} else {
		CHECK_EQ(event.event_number, DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
	}
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_DISCONNECTED);
	OK(dat_ep_reset(ep_b));
}

static void reject_it(DAT_CR_HANDLE cr)
{
	OK(dx_cr_reject(cr));
}

static void order__accepted_and_given_up(void)
{
	given_up(accept_it);
}

static void order__rejected_and_given_up(void)
{
	given_up(reject_it);
}

/* Who accepts a request, and with what result. */
struct acceptor {
	DAT_CR_HANDLE cr;
	DAT_EP_HANDLE ep;
	DAT_RETURN ret;
};

/* Threads that have begun. */
static atomic_int begun;

static void *accept_with(void *arg)
{
	struct acceptor *acceptor = arg;

	/* Both at once. */
	atomic_fetch_add(&begun, 1);
	while (atomic_load(&begun) < 2)
		sched_yield();
	acceptor->ret = dat_cr_accept(acceptor->cr, acceptor->ep, 0, NULL);
	return NULL;
}

/* Two threads accept the same request with an endpoint each: one of them does, and the endpoint of the
 * other is as it was. */
static void order__accepted_twice(void)
{
	order_up();
	for (int i = 0; i < 10 * ROUNDS; i++) {
		DAT_EP_HANDLE second = make_ep(&b, NULL);
		struct acceptor one, other;
		bool first;
		pthread_t thread;

		OK(try_connect(ep_a, &b, qualifier, SOON));
		one = (struct acceptor){ .cr = await_request(&b), .ep = ep_b };
		other = (struct acceptor){ .cr = one.cr, .ep = second };
		atomic_store(&begun, 0);
		REQUIRE(pthread_create(&thread, NULL, accept_with, &other) == 0);
		accept_with(&one);
		REQUIRE(pthread_join(thread, NULL) == 0);
		first = one.ret == DAT_SUCCESS;
		CHECK_CODE(first ? other.ret : one.ret, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CR);
		CHECK_RET(first ? one.ret : other.ret, DAT_SUCCESS);
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		CHECK_EQ(ep_state(first ? ep_b : second), DAT_EP_STATE_CONNECTED);
		CHECK_EQ(ep_state(first ? second : ep_b), DAT_EP_STATE_UNCONNECTED);
		OK(dat_ep_free(first ? ep_b : second));
		if (first)
			ep_b = second;
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_ep_reset(ep_a));
		nothing(b.connect_evd);
	}
	ends_down();
}

static void *connect_a(void *arg)
{
	(void)arg;
	OK(try_connect(ep_a, &b, qualifier, SOON));
	return NULL;
}

/* A request is there when its service point has been freed, or never comes; the peer hears of
 * either. */
static void order__no_request_after_psp_free(void)
{
	order_up();
	for (int i = 0; i < 2 * ROUNDS; i++) {
		DAT_EVENT_NUMBER expected = DAT_CONNECTION_EVENT_NON_PEER_REJECTED;
		pthread_t active;
		DAT_EVENT event;

		REQUIRE(pthread_create(&active, NULL, connect_a, NULL) == 0);
		pause_us(i * 100);
		OK(dat_psp_free(psp));
		if (dat_evd_dequeue(b.cr_evd, &event) == DAT_SUCCESS) {
			OK(dx_cr_reject(event.event_data.cr_arrival_event_data.cr_handle));
			expected = DAT_CONNECTION_EVENT_PEER_REJECTED;
		}
		EXPECT(a.connect_evd, expected);
		REQUIRE(pthread_join(active, NULL) == 0);
		nothing(b.cr_evd);
		OK(dat_ep_reset(ep_a));
		psp = listen_any(&b, &qualifier);
	}
	join();
	ends_down();
}

/* The same of a reserved service point: the request has the endpoint, or the program. */
static void order__no_request_after_rsp_free(void)
{
	DAT_RSP_HANDLE rsp;

	order_up();
	OK(dat_psp_free(psp));
	for (int i = 0; i < 2 * ROUNDS; i++) {
		DAT_EVENT_NUMBER expected = DAT_CONNECTION_EVENT_NON_PEER_REJECTED;
		pthread_t active;
		DAT_EVENT event;

		OK(dat_rsp_create(b.ia, qualifier, ep_b, b.cr_evd, &rsp));
		REQUIRE(pthread_create(&active, NULL, connect_a, NULL) == 0);
		pause_us(i * 100);
		OK(dat_rsp_free(rsp));
		if (dat_evd_dequeue(b.cr_evd, &event) == DAT_SUCCESS) {
			CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
			OK(dx_cr_reject(event.event_data.cr_arrival_event_data.cr_handle));
			expected = DAT_CONNECTION_EVENT_PEER_REJECTED;
		}
		CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
		EXPECT(a.connect_evd, expected);
		REQUIRE(pthread_join(active, NULL) == 0);
		nothing(b.cr_evd);
		OK(dat_ep_reset(ep_a));
	}
	ends_down();
}

/* The request of ep_a; or how its attempt has ended without one. */
static DAT_CR_HANDLE await_request_or_end(DAT_EVENT_NUMBER *ended)
{
	unsigned long long end = now_us() + SOON;
	DAT_EVENT event;

	do {
		if (dat_evd_dequeue(b.cr_evd, &event) == DAT_SUCCESS)
			return event.event_data.cr_arrival_event_data.cr_handle;
		if (dat_evd_dequeue(a.connect_evd, &event) == DAT_SUCCESS) {
			*ended = event.event_number;
			return DAT_HANDLE_NULL;
		}
		pause_us(100);
	} while (now_us() < end);
	REQUIRE(!"neither a request nor the end of the attempt");
	return DAT_HANDLE_NULL;
}

/* A client that is there a moment before the service point: no request is refused that arrives while
 * the service point is being made. */
static void order__a_request_in_dat_psp_create(void)
{
	/* Microseconds in which our soft provider waits for the listener at least. */
	enum { PATIENT = 200 * 1000 };
	unsigned long long end = now_us() + SOON;

	order_up();
	if (!is_exact())
		tap_unsupported("a wait for the listener");
	for (int i = 0; i < ROUNDS && now_us() < end;) {
		unsigned long long made, begin = now_us();
		DAT_CONN_QUAL unused = free_qualifier(&b);
		DAT_EVENT_NUMBER ended = 0;
		DAT_PSP_HANDLE late;
		DAT_CR_HANDLE cr;

		OK(try_connect(ep_a, &b, unused, SOON));
		OK(dat_psp_create(b.ia, unused, b.cr_evd, DAT_PSP_CONSUMER_FLAG, &late));
		made = now_us();
		cr = await_request_or_end(&ended);
		if (cr != DAT_HANDLE_NULL) {
			OK(dat_cr_accept(cr, ep_b, 0, NULL));
			EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
			EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
			OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
			EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
			EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
			OK(dat_ep_reset(ep_b));
			i++;
		} else {
			CHECK_EQ(ended, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
			/* There was no service point in time. */
			CHECK(made > begin + PATIENT);
		}
		OK(dat_ep_reset(ep_a));
		OK(dat_psp_free(late));
	}
	ends_down();
}

static const struct tap_test tests[] = {
	T(order, accepted_and_given_up),
	T(order, rejected_and_given_up),
	T(order, accepted_twice),
	T(order, no_request_after_psp_free),
	T(order, no_request_after_rsp_free),
	T(order, a_request_in_dat_psp_create),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
