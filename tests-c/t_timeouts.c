/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Time-outs: the unit is the microsecond in every call that has one, and the time is that of the whole
 * call, however often the thread wakes meanwhile. */
#include "two_ends.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* Microseconds to wait, and what a wait may take on a machine that is busy in one of so many tries. */
enum { TIME = 200 * 1000, BUSY = 5 * TIME, TRIES = 5 };

static DAT_EVD_HANDLE evd;
static DAT_CNO_HANDLE cno;

/* When the wait began that is measured. */
static unsigned long long begin;

/* What `wait` does ends after TIME: never before, and soon afterwards in one of the tries. */
static void takes_its_time(void (*wait)(void))
{
	unsigned long long least = ~0ull;

	for (int i = 0; i < TRIES && least >= BUSY; i++) {
		unsigned long long took;

		begin = now_us();
		wait();
		took = now_us() - begin;
		CHECK(took >= TIME);
		least = took < least ? took : least;
	}
	CHECK(least < BUSY);
}

static void wait_for_event(void)
{
	DAT_COUNT more = -1;
	DAT_EVENT event;

	CHECK_RET(dat_evd_wait(evd, TIME, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
	CHECK_EQ(more, 0);
}

static void evd_wait__unit(void)
{
	ends_up();
	evd = a.recv_evd;
	takes_its_time(wait_for_event);
	evd = make_evd(a.ia, 8, DAT_EVD_SOFTWARE_FLAG);
	takes_its_time(wait_for_event);
	ends_down();
}

static void wait_for_trigger(void)
{
	DAT_EVD_HANDLE from;

	CHECK_RET(dat_cno_wait(cno, TIME, &from), DAT_QUEUE_EMPTY);
}

static void cno_wait__unit(void)
{
	ends_up();
	OK(dat_cno_create(a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(a.recv_evd, cno));
	takes_its_time(wait_for_trigger);
	ends_down();
}

/* An attempt whose request is not answered. On a machine that is busy the peer may not even have it by then. */
static void attempt(DAT_RETURN (*try)(DAT_EP_HANDLE))
{
	DAT_EP_HANDLE ep = make_ep(&a, NULL);

	OK(try(ep));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_TIMED_OUT);
	OK(dat_ep_free(ep));
}

static DAT_RETURN connects(DAT_EP_HANDLE ep)
{
	return try_connect(ep, &b, qualifier, TIME);
}

static DAT_RETURN connects_as_the_other(DAT_EP_HANDLE ep)
{
	return dat_ep_dup_connect(ep, ep_a, TIME, 0, NULL, DAT_QOS_BEST_EFFORT);
}

static void attempt_to_connect(void)
{
	attempt(connects);
}

static void attempt_to_dup_connect(void)
{
	attempt(connects_as_the_other);
}

static void ep_connect__unit(void)
{
	ends_up();
	takes_its_time(attempt_to_connect);
	ends_down();
}

static void ep_dup_connect__unit(void)
{
	ends_up();
	connect_by(&a, ep_a, &b, ep_b, qualifier);
	takes_its_time(attempt_to_dup_connect);
	ends_down();
}

/* --- threads that wake too early -------------------------------------------------------------- */

enum { EVENTS = 1000 };

static atomic_bool over, begun;

/* An event every few milliseconds, for so long that a wait which began anew with each of them would
 * take more than BUSY. */
static void *trickle(void *arg)
{
	unsigned long long end = now_us() + 2 * BUSY;

	(void)arg;
	for (int i = 0; i < EVENTS - 1 && !atomic_load(&over) && now_us() < end; i++) {
		OK(post_software_event(evd, 0));
		atomic_store(&begun, true);
		pause_us(5000);
	}
	return NULL;
}

static void wait_for_many(void)
{
	DAT_COUNT more = -1;
	pthread_t thread;
	DAT_EVENT event;

	evd = make_evd(a.ia, EVENTS, DAT_EVD_SOFTWARE_FLAG);
	atomic_store(&over, false);
	atomic_store(&begun, false);
	REQUIRE(pthread_create(&thread, NULL, trickle, NULL) == 0);
	while (!atomic_load(&begun))
		pause_us(100);
	begin = now_us();
	CHECK_RET(dat_evd_wait(evd, TIME, EVENTS, &event, &more), DAT_TIMEOUT_EXPIRED);
	CHECK(more > 0 && more < EVENTS);
	atomic_store(&over, true);
	REQUIRE(pthread_join(thread, NULL) == 0);
	OK(dat_evd_free(evd));
}

static void evd_wait__events_that_are_too_few(void)
{
	ends_up();
	takes_its_time(wait_for_many);
	ends_down();
}

/* Triggers the CNO again and again, and takes each trigger back at once: mostly before the thread that
 * wakes for it has taken it. */
static void *steal(void *arg)
{
	unsigned long long end = now_us() + 2 * BUSY;
	DAT_EVENT event;

	(void)arg;
	while (!atomic_load(&over) && now_us() < end) {
		OK(post_software_event(evd, 0));
		OK(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
		OK(dat_evd_dequeue(evd, &event));
		OK(dat_evd_modify_cno(evd, cno));
		pause_us(5000);
	}
	return NULL;
}

static void wait_beside_a_thief(void)
{
	DAT_EVD_HANDLE from;
	pthread_t thread;
	DAT_RETURN ret;

	atomic_store(&over, false);
	REQUIRE(pthread_create(&thread, NULL, steal, NULL) == 0);
	do {
		begin = now_us();
		ret = dat_cno_wait(cno, TIME, &from);
	} while (ret == DAT_SUCCESS);
	CHECK_RET(ret, DAT_QUEUE_EMPTY);
	atomic_store(&over, true);
	REQUIRE(pthread_join(thread, NULL) == 0);
}

static void cno_wait__triggers_that_are_taken_back(void)
{
	ends_up();
	evd = make_evd(a.ia, 8, DAT_EVD_SOFTWARE_FLAG);
	OK(dat_cno_create(a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(evd, cno));
	/* The CNO has an EVD always. */
	OK(dat_evd_modify_cno(a.recv_evd, cno));
	takes_its_time(wait_beside_a_thief);
	ends_down();
}

static const struct tap_test tests[] = {
	T(evd_wait, unit),
	T(cno_wait, unit),
	T(ep_connect, unit),
	T(ep_dup_connect, unit),
	T(evd_wait, events_that_are_too_few),
	T(cno_wait, triggers_that_are_taken_back),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
