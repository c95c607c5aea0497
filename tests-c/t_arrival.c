/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* When completions can be taken: not before their connection, and those of several endpoints in
 * about the order in which messages were sent. */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static struct rig a, b;

/* --- not before the connection ---------------------------------------------------------------- */

enum { CONNECTIONS = 200 };

/* The next completion of a receive of side b, which succeeds. */
static DAT_DTO_COMPLETION_EVENT_DATA poll_receive(void)
{
	DAT_EVENT event;
	DAT_RETURN ret;

	while (DAT_GET_TYPE(ret = dat_evd_dequeue(b.recv_evd, &event)) == DAT_QUEUE_EMPTY)
		sched_yield();
	OK(ret);
	CHECK_EQ(event.event_data.dto_completion_event_data.status, DAT_DTO_SUCCESS);
	return event.event_data.dto_completion_event_data;
}

/* Answers each request as soon as it can be taken, without a look at the connection events. */
static void *answer(void *arg)
{
	(void)arg;
	for (int i = 0; i < CONNECTIONS; i++) {
		DAT_EP_HANDLE ep = poll_receive().ep_handle;

		CHECK_RET(send_nothing(ep, 2, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
	}
	return NULL;
}

static void arrival__a_request_is_answered_at_once(void)
{
	DAT_CONN_QUAL qualifier;
	pthread_t server;

	rig_up(&a);
	rig_up(&b);
	if (!b.provider.is_thread_safe)
		tap_unsupported("the provider is not thread safe");
	listen_any(&b, &qualifier);
	REQUIRE(pthread_create(&server, NULL, answer, NULL) == 0);
	for (int i = 0; i < CONNECTIONS; i++) {
		DAT_EP_HANDLE ep_a = make_ep(&a, NULL), ep_b = make_ep(&b, NULL);

		OK(recv_nothing(ep_b, 1));
		OK(recv_nothing(ep_a, 3));
		OK(try_connect(ep_a, &b, qualifier, SOON));
		OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		OK(send_nothing(ep_a, 4, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(a.request_evd, 4, DAT_DTO_SUCCESS);
		EXPECT_DTO(a.recv_evd, 3, DAT_DTO_SUCCESS);
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		EXPECT_DTO(b.request_evd, 2, DAT_DTO_SUCCESS);
		OK(dat_ep_free(ep_a));
		OK(dat_ep_free(ep_b));
	}
	REQUIRE(pthread_join(server, NULL) == 0);
	rig_down(&a);
	rig_down(&b);
}

/* --- several endpoints on one EVD ------------------------------------------------------------- */

enum { FEW = 8, MANY = 24, DEPTH = 16, STEPS = 200 };

static int endpoints;
static DAT_EP_HANDLE ep_a[MANY], ep_b[MANY];
/* Steps of which all messages have arrived. */
static atomic_ullong arrived;

/* In each step one message to each endpoint, and the next step when all have completed. Each
 * finds a receive. */
static void *send_in_steps(void *arg)
{
	(void)arg;
	for (DAT_UINT64 step = 0; step < STEPS; step++) {
		while (step >= atomic_load(&arrived) + DEPTH)
			sched_yield();
		for (int i = 0; i < endpoints; i++)
			OK(send_nothing(ep_a[i], step, DAT_COMPLETION_DEFAULT_FLAG));
		for (int i = 0; i < endpoints; i++)
			EXPECT(a.request_evd, DAT_DTO_COMPLETION_EVENT);
	}
	return NULL;
}

static DAT_UINT64 next_by_poll(void)
{
	return poll_receive().user_cookie.as_64;
}

static DAT_UINT64 next_by_wait(void)
{
	return EXPECT(b.recv_evd, DAT_DTO_COMPLETION_EVENT)
		.event_data.dto_completion_event_data.user_cookie.as_64;
}

/* Waits, then sees what there is, as programs do. */
static DAT_UINT64 next_by_both(void)
{
	static unsigned calls;

	return ++calls % 5 ? next_by_poll() : next_by_wait();
}

/* No message arrives before one that had completed when it was sent. */
static void steps_arrive_in_order(int count, DAT_UINT64 (*next)(void))
{
	DAT_UINT64 step[MANY] = { 0 };
	DAT_CONN_QUAL qualifier;
	pthread_t sender;

	endpoints = count;
	rig_up(&a);
	rig_up(&b);
	if (!b.provider.is_thread_safe)
		tap_unsupported("the provider is not thread safe");
	a.request_evd = make_evd(a.ia, MANY * DEPTH, DAT_EVD_DTO_FLAG);
	b.recv_evd = make_evd(b.ia, MANY * DEPTH, DAT_EVD_DTO_FLAG);
	listen_any(&b, &qualifier);
	for (int i = 0; i < count; i++) {
		ep_a[i] = make_ep(&a, NULL);
		ep_b[i] = make_ep(&b, NULL);
		for (int j = 0; j < DEPTH; j++)
			OK(recv_nothing(ep_b[i], i));
		OK(try_connect(ep_a[i], &b, qualifier, SOON));
		OK(dat_cr_accept(await_request(&b), ep_b[i], 0, NULL));
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	}
	REQUIRE(pthread_create(&sender, NULL, send_in_steps, NULL) == 0);
	for (int n = 0; n < STEPS * count; n++) {
		DAT_UINT64 i = next();

		REQUIRE(i < (DAT_UINT64)count);
		for (int j = 0; j < count; j++)
			if (step[j] < step[i])
				tap_fail(__FILE__, __LINE__,
					 "step %llu of endpoint %llu before step %llu of %d",
					 (unsigned long long)step[i], (unsigned long long)i,
					 (unsigned long long)step[j], j);
		step[i]++;
		OK(recv_nothing(ep_b[i], i));
		atomic_store(&arrived, (unsigned long long)((n + 1) / count));
	}
	REQUIRE(pthread_join(sender, NULL) == 0);
	rig_down(&a);
	rig_down(&b);
}

static void arrival__in_the_order_of_the_sends_polling(void)
{
	steps_arrive_in_order(FEW, next_by_poll);
}

static void arrival__in_the_order_of_the_sends_waiting(void)
{
	steps_arrive_in_order(FEW, next_by_wait);
}

static void arrival__in_the_order_of_the_sends_both(void)
{
	steps_arrive_in_order(FEW, next_by_both);
}

static void arrival__in_the_order_of_the_sends_of_many(void)
{
	steps_arrive_in_order(MANY, next_by_both);
}

static const struct tap_test tests[] = {
	T(arrival, a_request_is_answered_at_once),
	T(arrival, in_the_order_of_the_sends_polling),
	T(arrival, in_the_order_of_the_sends_waiting),
	T(arrival, in_the_order_of_the_sends_both),
	T(arrival, in_the_order_of_the_sends_of_many),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
