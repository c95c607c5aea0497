/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * pthread_cancel(3): the two calls that wait are points of cancellation, which leave their objects to
 * other threads; in all other calls a cancellation stays pending.
 */
#include "transfer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int steps;
static atomic_bool cleaned, returned;
static DAT_CNO_HANDLE cno;
static DAT_EVD_HANDLE software;
/* The thread that waits. */
static _Atomic pid_t waiter;

static void clean_up(void *arg)
{
	(void)arg;
	cleaned = true;
}

static pthread_t start(void *(*run)(void *))
{
	pthread_t thread;

	cleaned = returned = false;
	steps = 0;
	waiter = 0;
	REQUIRE(pthread_create(&thread, NULL, run, NULL) == 0);
	return thread;
}

static void await_steps(int number)
{
	while (steps < number)
		pause_us(100);
}

/* Cancels the thread, which ends of that, after its cleanup handlers. */
static void cancel(pthread_t thread)
{
	void *result = NULL;

	REQUIRE(pthread_cancel(thread) == 0);
	REQUIRE(pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
	CHECK(cleaned);
}

static void pair_works(void)
{
	OK(b_receives(0, 64, 1));
	OK(a_sends(0, 64, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
}

static DAT_RETURN post_software(void)
{
	DAT_EVENT event;

	memset(&event, 0, sizeof event);
	event.event_number = DAT_SOFTWARE_EVENT;
	event.evd_handle = software;
	return dat_evd_post_se(software, &event);
}

/* --- calls that do not wait --------------------------------------------------------------- */

static void *posts(void *arg)
{
	DAT_EVENT event;

	pthread_cleanup_push(clean_up, arg);
	for (;; steps++) {
		size_t size = steps % 3 ? 64 : 200000;

		OK(b_receives(0, size, 1));
		OK(a_sends(0, size, 2, DAT_COMPLETION_DEFAULT_FLAG));
		OK(a_writes(0, 300000, 8, 3, DAT_COMPLETION_DEFAULT_FLAG));
		OK(a_reads(400000, 0, 70000, 4, DAT_COMPLETION_DEFAULT_FLAG));
		for (int i = 0; i < 3; i++)
			while (dat_evd_dequeue(p.a.request_evd, &event) != DAT_SUCCESS)
				;
		while (dat_evd_dequeue(p.b.recv_evd, &event) != DAT_SUCCESS)
			;
		pthread_testcancel();
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel__posts(void)
{
	up();
	for (int i = 0; i < 60; i++) {
		pthread_t thread = start(posts);

		await_steps(1 + i % 3);
		pause_us((unsigned long)(rand() % 400));
		cancel(thread);
		pair_works();
	}
	down();
}

static void *manages(void *arg)
{
	struct pair pair;

	pthread_cleanup_push(clean_up, arg);
	for (;; steps++) {
		struct mem mem = make_mem(&p.a, 1 << 16, DAT_MEM_PRIV_ALL_FLAG);

		/* The wait for the events of this is done with cancellation disabled. */
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
		pair_up(&pair, NULL);
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
		OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_ABRUPT_FLAG));
		pair_down(&pair);
		free_mem(&mem);
		pthread_testcancel();
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel__other_calls(void)
{
	up();
	for (int i = 0; i < 20; i++) {
		pthread_t thread = start(manages);

		await_steps(1);
		pause_us((unsigned long)(rand() % 5000));
		cancel(thread);
		pair_works();
	}
	down();
}

static atomic_int agent_calls;

/* Calls a point of cancellation, as most functions do that write somewhere. */
static void agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
	(void)data;
	(void)evd;
	pthread_testcancel();
	agent_calls++;
}

/* Whether the agent runs in the post, in a dequeue or in a thread of the library. */
static void *runs_the_agent(void *arg)
{
	int before = agent_calls;
	DAT_EVENT event;

	pthread_cleanup_push(clean_up, arg);
	pthread_cancel(pthread_self());
	/* An RDMA device has room again after suppressed requests when their EVD is polled. */
	while (a_sends(0, 64, 2, DAT_COMPLETION_SUPPRESS_FLAG) != DAT_SUCCESS)
		dat_evd_dequeue(p.a.request_evd, &event);
	/* Polls of another EVD make progress too. */
	while (agent_calls == before)
		dat_evd_dequeue(p.b.connect_evd, &event);
	returned = true;
	pthread_testcancel();
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel__agents(void)
{
	DAT_OS_WAIT_PROXY_AGENT with = { NULL, agent };

	up();
	OK(dat_cno_create(p.b.ia, with, &cno));
	OK(dat_evd_modify_cno(p.b.recv_evd, cno));
	for (int i = 0; i < 50; i++) {
		pthread_t thread;
		void *result;

		OK(b_receives(0, 64, 1));
		thread = start(runs_the_agent);
		REQUIRE(pthread_join(thread, &result) == 0);
		CHECK(result == PTHREAD_CANCELED);
		CHECK(cleaned && returned);
		EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	}
	OK(dat_evd_modify_cno(p.b.recv_evd, DAT_HANDLE_NULL));
	OK(dat_cno_free(cno));
	down();
}

/* --- dat_evd_wait ------------------------------------------------------------------------- */

static void *waits(void *arg)
{
	DAT_EVENT event;
	DAT_COUNT more;

	pthread_cleanup_push(clean_up, arg);
	for (;;) {
		waiter = gettid();
		steps++;
		CHECK_RET(dat_evd_wait(software, DAT_TIMEOUT_INFINITE, 1, &event, &more),
			  DAT_SUCCESS);
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void *waits_with_the_asynchronous_type(void *arg)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	return waits(arg);
}

/* The EVD has no waiter, and works. */
static void evd_works(void)
{
	DAT_EVENT event;
	DAT_COUNT more;

	CHECK_RET(dat_evd_wait(software, 1000, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
	OK(post_software());
	CHECK_RET(dat_evd_wait(software, SOON, 1, &event, &more), DAT_SUCCESS);
	OK(post_software());
	CHECK_RET(dat_evd_dequeue(software, &event), DAT_SUCCESS);
}

static void evd_wait_is_cancelled(void *(*run)(void *), bool asleep)
{
	up();
	for (int i = 0; i < 30; i++) {
		pthread_t thread;

		software = make_evd(p.a.ia, 64, DAT_EVD_SOFTWARE_FLAG);
		thread = start(run);
		await_steps(1);
		if (asleep)
			await_asleep(&waiter);
		else
			pause_us((unsigned long)(rand() % 100));
		cancel(thread);
		evd_works();
		OK(dat_evd_free(software));
		pair_works();
	}
	down();
}

/* At any moment: it may poll. */
static void cancel__evd_wait(void)
{
	evd_wait_is_cancelled(waits, false);
}

static void cancel__evd_wait_asleep(void)
{
	evd_wait_is_cancelled(waits, true);
}

/* Not before: what the library does until it has disabled cancellation cannot be unwound. */
static void cancel__evd_wait_asynchronously(void)
{
	evd_wait_is_cancelled(waits_with_the_asynchronous_type, true);
}

/* Without a timeout there is nothing to sleep for. */
static void *polls(void *arg)
{
	DAT_EVENT event;
	DAT_COUNT more;

	pthread_cleanup_push(clean_up, arg);
	for (;; steps++)
		CHECK_RET(dat_evd_wait(software, 0, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel__evd_wait_that_polls(void)
{
	evd_wait_is_cancelled(polls, false);
}

/* Two threads wait: one leads, the other sleeps elsewhere. Either is cancelled. */
static void *waits_for_the_other(void *arg)
{
	DAT_EVD_HANDLE own = arg;
	DAT_EVENT event;
	DAT_COUNT more;

	steps++;
	CHECK_RET(dat_evd_wait(own, DAT_TIMEOUT_INFINITE, 1, &event, &more), DAT_SUCCESS);
	return NULL;
}

static void cancel__one_of_two_waiters(void)
{
	up();
	for (int i = 0; i < 20; i++) {
		DAT_EVD_HANDLE evds[2];
		pthread_t threads[2];
		void *result;

		steps = 0;
		for (int t = 0; t < 2; t++) {
			evds[t] = make_evd(p.a.ia, 8, DAT_EVD_SOFTWARE_FLAG);
			REQUIRE(pthread_create(&threads[t], NULL, waits_for_the_other, evds[t]) ==
				0);
			await_steps(t + 1);
			pause_us(3000);
		}
		REQUIRE(pthread_cancel(threads[i % 2]) == 0);
		REQUIRE(pthread_join(threads[i % 2], &result) == 0);
		CHECK(result == PTHREAD_CANCELED);
		pair_works();
		software = evds[1 - i % 2];
		OK(post_software());
		REQUIRE(pthread_join(threads[1 - i % 2], &result) == 0);
		CHECK(result == NULL);
		OK(dat_evd_free(evds[0]));
		OK(dat_evd_free(evds[1]));
	}
	down();
}

/* Data arrives while the waiter is cancelled: nothing is lost. */
static void *waits_for_data(void *arg)
{
	DAT_EVENT event;
	DAT_COUNT more;

	pthread_cleanup_push(clean_up, arg);
	steps++;
	CHECK_RET(dat_evd_wait(p.b.recv_evd, DAT_TIMEOUT_INFINITE, 1, &event, &more), DAT_SUCCESS);
	returned = true;
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel__evd_wait_as_data_arrives(void)
{
	up();
	for (int i = 0; i < 200; i++) {
		pthread_t thread;

		OK(b_receives(0, 64, 1));
		thread = start(waits_for_data);
		await_steps(1);
		pause_us((unsigned long)(rand() % 1000));
		OK(a_sends(0, 64, 2, DAT_COMPLETION_DEFAULT_FLAG));
		if (i % 2)
			pause_us((unsigned long)(rand() % 60));
		pthread_cancel(thread);
		pthread_join(thread, NULL);
		EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
		if (!returned)
			EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	}
	pair_works();
	down();
}

static void *waits_without_cancellation(void *arg)
{
	DAT_EVENT event;

	pthread_cleanup_push(clean_up, arg);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	steps++;
	CHECK_RET(wait_uncancelled(software, &event), DAT_SUCCESS);
	returned = true;
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	pthread_testcancel();
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel__disabled_by_the_program(void)
{
	pthread_t thread;

	up();
	software = make_evd(p.a.ia, 8, DAT_EVD_SOFTWARE_FLAG);
	thread = start(waits_without_cancellation);
	await_steps(1);
	pause_us(5000);
	REQUIRE(pthread_cancel(thread) == 0);
	pause_us(5000);
	CHECK(!returned);
	OK(post_software());
	REQUIRE(pthread_join(thread, NULL) == 0);
	CHECK(returned && cleaned);
	down();
}

/* --- dat_cno_wait ------------------------------------------------------------------------- */

static void *waits_for_the_cno(void *arg)
{
	DAT_EVD_HANDLE evd;

	pthread_cleanup_push(clean_up, arg);
	steps++;
	CHECK_RET(dat_cno_wait(cno, DAT_TIMEOUT_INFINITE, &evd), DAT_SUCCESS);
	CHECK(evd == software);
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel__cno_wait(void)
{
	DAT_EVD_HANDLE evd;
	DAT_EVENT event;

	up();
	for (int i = 0; i < 30; i++) {
		pthread_t thread, other;
		void *result;

		OK(dat_cno_create(p.a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
		OK(dat_evd_create(p.a.ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &software));
		thread = start(waits_for_the_cno);
		await_steps(1);
		if (i % 2)
			pause_us(3000);
		REQUIRE(pthread_create(&other, NULL, waits_for_the_cno, NULL) == 0);
		await_steps(2);
		pause_us((unsigned long)(rand() % 3000));
		cancel(thread);
		OK(post_software());
		REQUIRE(pthread_join(other, &result) == 0);
		CHECK(result == NULL);
		CHECK_RET(dat_evd_dequeue(software, &event), DAT_SUCCESS);
		OK(post_software());
		CHECK_RET(dat_cno_wait(cno, SOON, &evd), DAT_SUCCESS);
		OK(dat_evd_free(software));
		OK(dat_cno_free(cno));
	}
	down();
}

/* --- after main --------------------------------------------------------------------------- */

static void at_exit(void)
{
	/* Thread-local memory of the libraries is destroyed. */
	pair_works();
	OK(a_writes(0, 300000, 200000, 3, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	down();
	up();
	pair_works();
	down();
	_exit(tap_status());
}

static void cancel__calls_at_exit(void)
{
	up();
	pair_works();
	REQUIRE(atexit(at_exit) == 0);
}

static const struct tap_test tests[] = {
	T(cancel, posts),
	T(cancel, other_calls),
	T(cancel, agents),
	T(cancel, evd_wait),
	T(cancel, evd_wait_asleep),
	T(cancel, evd_wait_asynchronously),
	T(cancel, evd_wait_that_polls),
	T(cancel, one_of_two_waiters),
	T(cancel, evd_wait_as_data_arrives),
	T(cancel, disabled_by_the_program),
	T(cancel, cno_wait),
	T(cancel, calls_at_exit),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
