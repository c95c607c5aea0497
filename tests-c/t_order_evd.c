/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The order of events and of what takes them: waits, CNOs and their agents, frees. */
#include "order.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* Microseconds that cno_wait may take for an event that has arrived, with all delays. */
enum { WOKEN = SOON };

static DAT_CNO_HANDLE cno;

static void up(void)
{
	order_up();
	/* Each connection has another one. */
	OK(dat_ep_free(ep_b));
	OK(dat_cno_create(b.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
}

/* An EVD for completions on side b, which triggers the CNO. */
static DAT_EVD_HANDLE make_fed(void)
{
	DAT_EVD_HANDLE evd;

	OK(dat_evd_create(b.ia, 64, cno, DAT_EVD_DTO_FLAG | DAT_EVD_SOFTWARE_FLAG, &evd));
	return evd;
}

/* A connection whose side b receives on this EVD. */
static void join_on(DAT_EVD_HANDLE recv_evd)
{
	b.recv_evd = recv_evd;
	ep_b = make_ep(&b, NULL);
	connect_eps(&a, ep_a, &b, ep_b);
}

/* Ends it, with the endpoint of side b. */
static void part(void)
{
	DAT_EVENT event;

	OK(dat_ep_free(ep_b));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	OK(dat_ep_reset(ep_a));
	while (dat_evd_dequeue(a.request_evd, &event) == DAT_SUCCESS)
		;
}

/* --- waits, and events that arrive meanwhile --------------------------------------------------- */

/* Makes an event on the EVD. */
static void (*cause)(DAT_EVD_HANDLE);
static DAT_EVD_HANDLE caused_on;
static atomic_int round_begun;
static int gap;

static void cause_message(DAT_EVD_HANDLE evd)
{
	(void)evd;
	OK(send_nothing(ep_a, 1, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 1, DAT_DTO_SUCCESS);
}

static void cause_software_event(DAT_EVD_HANDLE evd)
{
	OK(post_software_event(evd, 0));
}

static void *cause_pairs(void *arg)
{
	(void)arg;
	for (int i = 1; i <= 4 * ROUNDS; i++) {
		while (atomic_load(&round_begun) < i)
			sched_yield();
		cause(caused_on);
		pause_us((unsigned long)gap * 50);
		cause(caused_on);
	}
	return NULL;
}

/* Two events arrive while a thread waits for one: dat_evd_wait counts the second, or the CNO is
 * triggered by it. */
static void counted_or_triggered(DAT_EVD_HANDLE evd)
{
	pthread_t thread;

	caused_on = evd;
	REQUIRE(pthread_create(&thread, NULL, cause_pairs, NULL) == 0);
	for (int i = 1; i <= 4 * ROUNDS; i++) {
		int taken = 0;
		DAT_COUNT more;
		DAT_EVENT event;

		if (cause == cause_message) {
			OK(recv_nothing(ep_b, 1));
			OK(recv_nothing(ep_b, 2));
		}
		gap = i % 16;
		atomic_store(&round_begun, i);
		OK(dat_evd_wait(evd, SOON, 1, &event, &more));
		for (taken = 1; more > 0; more--, taken++)
			take(evd);
		while (taken < 2) {
			DAT_EVD_HANDLE hint;

			OK(dat_cno_wait(cno, WOKEN, &hint));
			CHECK(hint == evd);
			while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS)
				taken++;
		}
		CHECK_EQ(taken, 2);
		/* A trigger by an event that was taken meanwhile. */
		while (dat_cno_wait(cno, 0, &evd) == DAT_SUCCESS)
			;
		evd = caused_on;
	}
	REQUIRE(pthread_join(thread, NULL) == 0);
}

static void order__completion_counted_or_triggered(void)
{
	DAT_EVD_HANDLE evd;

	up();
	evd = make_fed();
	join_on(evd);
	cause = cause_message;
	counted_or_triggered(evd);
	ends_down();
}

static void order__event_counted_or_triggered(void)
{
	up();
	cause = cause_software_event;
	counted_or_triggered(make_fed());
	ends_down();
}

static atomic_long posted, read_events;

static void *post_one_by_one(void *arg)
{
	DAT_EVD_HANDLE evd = arg;

	for (int i = 0; i < 16 * ROUNDS; i++) {
		OK(post_software_event(evd, 0));
		atomic_fetch_add(&posted, 1);
		while (atomic_load(&read_events) < atomic_load(&posted))
			sched_yield();
		pause_us((unsigned long)i % 4 * 20);
	}
	return NULL;
}

/* A wait in vain leaves no event behind that does not trigger the CNO. */
static void order__event_in_time_or_triggered(void)
{
	DAT_EVD_HANDLE evd, hint;
	DAT_COUNT more;
	DAT_EVENT event;
	pthread_t thread;

	up();
	evd = make_fed();
	atomic_store(&posted, 0);
	atomic_store(&read_events, 0);
	REQUIRE(pthread_create(&thread, NULL, post_one_by_one, evd) == 0);
	for (DAT_TIMEOUT timeout = 0; atomic_load(&read_events) < 16 * ROUNDS;
	     timeout = (timeout + 7) % 50) {
		DAT_RETURN ret = dat_evd_wait(evd, timeout, 1, &event, &more);

		if (ret == DAT_SUCCESS) {
			atomic_fetch_add(&read_events, 1);
			continue;
		}
		CHECK_RET(ret, DAT_TIMEOUT_EXPIRED);
		CHECK_EQ(more, 0);
		OK(dat_cno_wait(cno, WOKEN, &hint));
		CHECK(hint == evd);
	}
	REQUIRE(pthread_join(thread, NULL) == 0);
	ends_down();
}

/* No code of a call. */
static const DAT_RETURN UNRETURNED = (DAT_RETURN)-1;

struct waiter {
	pthread_t thread;
	DAT_EVD_HANDLE evd;
	DAT_RETURN ret; /* UNRETURNED if dat_evd_wait did not return */
};

static void *wait_for_evd(void *arg)
{
	struct waiter *w = arg;
	DAT_EVENT event;
	DAT_COUNT more;

	w->ret = dat_evd_wait(w->evd, SOON, 1, &event, &more);
	return NULL;
}

static void start(struct waiter *w, DAT_EVD_HANDLE evd)
{
	w->evd = evd;
	w->ret = UNRETURNED;
	REQUIRE(pthread_create(&w->thread, NULL, wait_for_evd, w) == 0);
}

static DAT_RETURN join_waiter(struct waiter *w)
{
	REQUIRE(pthread_join(w->thread, NULL) == 0);
	return DAT_GET_TYPE(w->ret);
}

/* An EVD is freed, or has a waiter, who then gets the event. */
static void order__free_or_wait(void)
{
	up();
	for (int i = 0; i < ROUNDS; i++) {
		DAT_EVD_HANDLE evd = make_fed();
		struct waiter w;
		DAT_RETURN ret;

		start(&w, evd);
		pause_us((unsigned long)i * 20);
		ret = DAT_GET_TYPE(dat_evd_free(evd));
		if (ret == DAT_SUCCESS) {
			CHECK_EQ(join_waiter(&w), DAT_INVALID_HANDLE);
			continue;
		}
		CHECK_EQ(ret, DAT_INVALID_STATE);
		OK(post_software_event(evd, 0));
		CHECK_EQ(join_waiter(&w), DAT_SUCCESS);
		OK(dat_evd_free(evd));
	}
	ends_down();
}

/* A waiter that is cancelled has the event, or leaves it to those who wait for the CNO. */
static void order__cancelled_or_event(void)
{
	DAT_EVD_HANDLE evd;

	up();
	evd = make_fed();
	for (int i = 0; i < 4 * ROUNDS; i++) {
		DAT_EVD_HANDLE hint;
		struct waiter w;
		void *result;
		int error;

		start(&w, evd);
		if (i % 4)
			await_waiter(evd);
		if (i % 2)
			OK(post_software_event(evd, 0));
		error = pthread_cancel(w.thread);
		/* Of glibc before 2.34, for a thread that has returned. */
		REQUIRE(error == 0 || error == ESRCH);
		if (i % 2 == 0)
			OK(post_software_event(evd, 0));
		REQUIRE(pthread_join(w.thread, &result) == 0);
		/* The C library may say of a thread that has returned that it was cancelled. */
		if (w.ret == UNRETURNED) {
			CHECK(result == PTHREAD_CANCELED);
			OK(dat_cno_wait(cno, WOKEN, &hint));
			CHECK(hint == evd);
			take(evd);
		}
		while (dat_cno_wait(cno, 0, &hint) == DAT_SUCCESS)
			;
	}
	ends_down();
}

/* dat_evd_set_unwaitable releases the waiter, or the waiter has the event. */
static void order__unwaitable_or_event(void)
{
	DAT_EVD_HANDLE evd;

	up();
	evd = make_fed();
	for (int i = 0; i < ROUNDS; i++) {
		struct waiter w;
		DAT_EVENT event;
		DAT_RETURN ret;

		start(&w, evd);
		pause_us((unsigned long)i * 20);
		if (i % 2)
			OK(post_software_event(evd, 0));
		OK(dat_evd_set_unwaitable(evd));
		if (i % 2 == 0)
			OK(post_software_event(evd, 0));
		ret = join_waiter(&w);
		if (ret == DAT_SUCCESS) {
			CHECK_RET(dat_evd_dequeue(evd, &event), DAT_QUEUE_EMPTY);
		} else {
			CHECK_EQ(ret, DAT_INVALID_STATE);
			take(evd);
		}
		OK(dat_evd_clear_unwaitable(evd));
	}
	ends_down();
}

/* --- frees, and notifications that are under way ----------------------------------------------- */

static void *send_two(void *arg)
{
	(void)arg;
	OK(send_nothing(ep_a, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(send_nothing(ep_a, 2, DAT_COMPLETION_SUPPRESS_FLAG));
	return NULL;
}

/* Waits until the first of two messages is there, which the peer sends meanwhile; the notification of
 * either may still be under way. */
static void one_of_two_arrives(DAT_EVD_HANDLE evd, pthread_t *peer)
{
	DAT_EVENT event;

	OK(recv_nothing(ep_b, 1));
	OK(recv_nothing(ep_b, 2));
	REQUIRE(pthread_create(peer, NULL, send_two, NULL) == 0);
	while (DAT_GET_TYPE(dat_evd_dequeue(evd, &event)) == DAT_QUEUE_EMPTY)
		sched_yield();
}

/* dat_cno_wait names no EVD that is freed. */
static void order__no_hint_of_a_freed_evd(void)
{
	up();
	/* The CNO has another EVD all the time. */
	make_fed();
	for (int i = 0; i < ROUNDS; i++) {
		DAT_EVD_HANDLE evd = make_fed(), hint;
		pthread_t peer;

		join_on(evd);
		one_of_two_arrives(evd, &peer);
		OK(dat_ep_free(ep_b));
		OK(dat_evd_free(evd));
		while (dat_cno_wait(cno, 10 * 1000, &hint) == DAT_SUCCESS)
			CHECK(hint != evd);
		REQUIRE(pthread_join(peer, NULL) == 0);
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_ep_free(ep_a));
		ep_a = make_ep(&a, NULL);
	}
	ends_down();
}

/* When the CNO of an EVD has changed, a late notification of the old one has its event. */
static void *post_one(void *arg)
{
	OK(post_software_event(*(DAT_EVD_HANDLE *)arg, 0));
	return NULL;
}

static void order__late_hint_has_its_event(void)
{
	DAT_EVD_HANDLE evd;

	up();
	make_fed();
	evd = make_fed();
	for (int i = 0; i < ROUNDS; i++) {
		DAT_EVD_HANDLE hint;
		DAT_RETURN ret;
		pthread_t poster;

		REQUIRE(pthread_create(&poster, NULL, post_one, &evd) == 0);
		pause_us((unsigned long)i * 20);
		if (i % 2)
			OK(dat_evd_disable(evd));
		OK(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
		ret = dat_cno_wait(cno, 10 * 1000, &hint);
		if (ret == DAT_SUCCESS) {
			CHECK(hint == evd);
			take(evd);
			REQUIRE(pthread_join(poster, NULL) == 0);
		} else {
			REQUIRE(pthread_join(poster, NULL) == 0);
			take(evd);
		}
		CHECK_RET(dat_cno_wait(cno, 1000, &hint), DAT_QUEUE_EMPTY);
		OK(dat_evd_enable(evd));
		OK(dat_evd_modify_cno(evd, cno));
	}
	ends_down();
}

/* --- the agent of a CNO ------------------------------------------------------------------------ */

struct agent {
	atomic_bool over;
	atomic_int calls, late;
};

static void call(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
	struct agent *agent = data;

	(void)evd;
	atomic_fetch_add(&agent->calls, 1);
	if (atomic_load(&agent->over))
		atomic_fetch_add(&agent->late, 1);
}

static DAT_OS_WAIT_PROXY_AGENT agent_of(struct agent *agent)
{
	return (DAT_OS_WAIT_PROXY_AGENT){ agent, call };
}

/* When this returns, the program may give the memory of its agent back. */
static void end_agent(struct agent *agent)
{
	atomic_store(&agent->over, true);
	pause_us(10 * 1000);
	CHECK_EQ(atomic_load(&agent->late), 0);
	CHECK(atomic_load(&agent->calls) > 0);
}

static void order__no_call_after_cno_free(void)
{
	up();
	for (int i = 0; i < ROUNDS; i++) {
		struct agent agent = { 0 };
		DAT_EVD_HANDLE evd;
		pthread_t peer;

		OK(dat_cno_create(b.ia, agent_of(&agent), &cno));
		evd = make_fed();
		join_on(evd);
		one_of_two_arrives(evd, &peer);
		OK(dat_ep_free(ep_b));
		OK(dat_evd_free(evd));
		OK(dat_cno_free(cno));
		end_agent(&agent);
		REQUIRE(pthread_join(peer, NULL) == 0);
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_ep_free(ep_a));
		ep_a = make_ep(&a, NULL);
	}
	ends_down();
}

static void order__no_call_after_modify_agent(void)
{
	DAT_EVD_HANDLE evd;

	up();
	evd = make_fed();
	for (int i = 0; i < ROUNDS; i++) {
		struct agent agent = { 0 };
		pthread_t peer;

		OK(dat_cno_modify_agent(cno, agent_of(&agent)));
		join_on(evd);
		one_of_two_arrives(evd, &peer);
		while (atomic_load(&agent.calls) == 0)
			sched_yield();
		OK(dat_cno_modify_agent(cno, DAT_OS_WAIT_PROXY_AGENT_NULL));
		end_agent(&agent);
		REQUIRE(pthread_join(peer, NULL) == 0);
		part();
	}
	ends_down();
}

/* --- the end of everything --------------------------------------------------------------------- */

static void *wait_for_cno(void *arg)
{
	struct waiter *w = arg;

	w->ret = dat_cno_wait(cno, SOON, &w->evd);
	return NULL;
}

/* An abrupt close while messages arrive, a thread waits on an EVD and one on the CNO: both return,
 * the peer is notified, and the agent is not called any more. */
static void order__abrupt_close_of_all(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct waiter on_evd, on_cno;
		struct agent agent = { 0 };
		pthread_t peer;
		DAT_EVENT event;
		DAT_COUNT more;

		up();
		OK(dat_cno_create(b.ia, agent_of(&agent), &cno));
		join_on(make_fed());
		OK(recv_nothing(ep_b, 1));
		OK(recv_nothing(ep_b, 2));
		start(&on_evd, b.connect_evd);
		await_waiter(b.connect_evd);
		REQUIRE(pthread_create(&on_cno.thread, NULL, wait_for_cno, &on_cno) == 0);
		REQUIRE(pthread_create(&peer, NULL, send_two, NULL) == 0);
		pause_us((unsigned long)i * 50);
		OK(dat_ia_close(b.ia, DAT_CLOSE_ABRUPT_FLAG));
		end_agent(&agent);
		CHECK_EQ(join_waiter(&on_evd), DAT_ABORT);
		/* Too late to begin to wait, it is no CNO any more. */
		if (join_waiter(&on_cno) != DAT_INVALID_HANDLE)
			CHECK_EQ(DAT_GET_TYPE(on_cno.ret), DAT_SUCCESS);
		REQUIRE(pthread_join(peer, NULL) == 0);
		OK(dat_evd_wait(a.connect_evd, SOON, 1, &event, &more));
		CHECK(event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED ||
		      event.event_number == DAT_CONNECTION_EVENT_BROKEN);
		rig_down(&a);
	}
}

static const struct tap_test tests[] = {
	T(order, completion_counted_or_triggered),
	T(order, event_counted_or_triggered),
	T(order, event_in_time_or_triggered),
	T(order, free_or_wait),
	T(order, cancelled_or_event),
	T(order, unwaitable_or_event),
	T(order, no_hint_of_a_freed_evd),
	T(order, late_hint_has_its_event),
	T(order, no_call_after_cno_free),
	T(order, no_call_after_modify_agent),
	T(order, abrupt_close_of_all),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
