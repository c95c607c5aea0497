/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Proxy agents of consumer notification objects: dat_cno_create(3DAT), dat_cno_modify_agent(3DAT). */
#include "cno.h"

static atomic_int calls;
static void *_Atomic instance;
static void *_Atomic agent_evd;

static void agent(DAT_PVOID data, DAT_EVD_HANDLE from)
{
	instance = data;
	agent_evd = from;
	atomic_fetch_add(&calls, 1);
}

static void await_calls(int count)
{
	unsigned long long end = now_us() + SOON;

	while (atomic_load(&calls) < count && now_us() < end)
		pause_us(1000);
	CHECK_EQ(atomic_load(&calls), count);
}

static void cno_modify_agent__called_for_each_trigger(void)
{
	DAT_OS_WAIT_PROXY_AGENT with = { &calls, agent };
	DAT_CNO_PARAM param;
	DAT_EVENT event;

	cno_up();
	OK(dat_cno_modify_agent(cno, with));
	OK(dat_cno_query(cno, DAT_CNO_FIELD_ALL, &param));
	CHECK(dx_agent(&param).proxy_agent_func == agent);
	CHECK(dx_agent(&param).instance_data == &calls);
	for (int i = 1; i <= 3; i++) {
		OK(post_software_event(evd, 0));
		await_calls(i);
		CHECK(instance == &calls);
		CHECK(agent_evd == evd);
		OK(dat_evd_dequeue(evd, &event));
	}
	OK(dat_cno_modify_agent(cno, DAT_OS_WAIT_PROXY_AGENT_NULL));
	OK(post_software_event(evd, 0));
	pause_us(NEVER);
	CHECK_EQ(atomic_load(&calls), 3);
	cno_down();
}

static void *post_once(void *unused)
{
	(void)unused;
	OK(post_software_event(evd, 0));
	return NULL;
}

/* dat_cno_modify_agent waits for calls of the agent that other threads are in, and for no others. */
static void cno_modify_agent__after_the_calls_of_other_threads(void)
{
	enum { ROUNDS = 20 };
	DAT_OS_WAIT_PROXY_AGENT with = { &calls, agent };
	unsigned long long start = now_us();
	DAT_EVENT event;

	cno_up();
	for (int i = 1; i <= ROUNDS; i++) {
		pthread_t thread;

		OK(dat_cno_modify_agent(cno, with));
		REQUIRE(pthread_create(&thread, NULL, post_once, NULL) == 0);
		pthread_join(thread, NULL);
		await_calls(i);
		OK(dat_evd_dequeue(evd, &event));
		OK(dat_cno_modify_agent(cno, DAT_OS_WAIT_PROXY_AGENT_NULL));
	}
	/* A call that is believed to go on is awaited for a second. */
	CHECK(now_us() - start < ROUNDS / 2 * 1000000ull);
	cno_down();
}

static atomic_bool entered, left;

static void slow_agent(DAT_PVOID data, DAT_EVD_HANDLE from)
{
	(void)data;
	(void)from;
	entered = true;
	pause_us(NEVER);
	left = true;
}

/* What the agent uses can go when dat_cno_modify_agent has returned. */
static void cno_modify_agent__waits_for_a_call_that_is_under_way(void)
{
	DAT_OS_WAIT_PROXY_AGENT with = { NULL, slow_agent };
	unsigned long long start;
	pthread_t thread;

	cno_up();
	OK(dat_cno_modify_agent(cno, with));
	REQUIRE(pthread_create(&thread, NULL, post_once, NULL) == 0);
	while (!entered)
		pause_us(1000);
	start = now_us();
	CHECK_RET(dat_cno_modify_agent(cno, DAT_OS_WAIT_PROXY_AGENT_NULL), DAT_SUCCESS);
	/* It gives up after a second. */
	CHECK(left || now_us() - start >= 1000000ull);
	pthread_join(thread, NULL);
	cno_down();
}

static void replacing_agent(DAT_PVOID data, DAT_EVD_HANDLE from)
{
	DAT_OS_WAIT_PROXY_AGENT again = { data, replacing_agent };

	(void)from;
	CHECK_RET(dat_cno_modify_agent(cno, again), DAT_SUCCESS);
	atomic_fetch_add(&calls, 1);
}

/* An agent that calls dat_cno_modify_agent does not wait for itself. */
static void cno_modify_agent__in_the_agent(void)
{
	enum { ROUNDS = 20 };
	DAT_OS_WAIT_PROXY_AGENT with = { &calls, replacing_agent };
	unsigned long long start;

	cno_up();
	OK(dat_cno_modify_agent(cno, with));
	start = now_us();
	for (int i = 1; i <= ROUNDS; i++) {
		DAT_EVENT event;

		OK(post_software_event(evd, 0));
		await_calls(i);
		OK(dat_evd_dequeue(evd, &event));
	}
	CHECK(now_us() - start < ROUNDS / 2 * 1000000ull);
	OK(dat_cno_modify_agent(cno, DAT_OS_WAIT_PROXY_AGENT_NULL));
	cno_down();
}

/* Another agent, with other data, takes the place of the first. */
static void *_Atomic second_instance;
static atomic_int second_calls;

static void second_agent(DAT_PVOID data, DAT_EVD_HANDLE from)
{
	second_instance = data;
	(void)from;
	atomic_fetch_add(&second_calls, 1);
}

static void cno_modify_agent__another_agent(void)
{
	DAT_OS_WAIT_PROXY_AGENT first = { &calls, agent };
	DAT_OS_WAIT_PROXY_AGENT second = { &second_calls, second_agent };
	DAT_OS_WAIT_PROXY_AGENT other_data = { &instance, second_agent };
	DAT_CNO_PARAM param;
	DAT_EVENT event;

	cno_up();
	OK(dat_cno_modify_agent(cno, first));
	CHECK_RET(dat_cno_modify_agent(cno, second), DAT_SUCCESS);
	OK(dat_cno_query(cno, DAT_CNO_FIELD_ALL, &param));
	CHECK(dx_agent(&param).proxy_agent_func == second_agent);
	CHECK(dx_agent(&param).instance_data == &second_calls);
	OK(post_software_event(evd, 0));
	while (second_calls < 1)
		pause_us(1000);
	CHECK(second_instance == &second_calls);
	OK(dat_evd_dequeue(evd, &event));
	CHECK_RET(dat_cno_modify_agent(cno, other_data), DAT_SUCCESS);
	OK(post_software_event(evd, 0));
	while (second_calls < 2)
		pause_us(1000);
	CHECK(second_instance == &instance);
	CHECK_EQ(atomic_load(&calls), 0);
	/* An EVD still refers to the CNO, whatever its agent. */
	CHECK_RET(dat_cno_free(cno), DAT_INVALID_STATE);
	OK(dat_cno_modify_agent(cno, DAT_OS_WAIT_PROXY_AGENT_NULL));
	OK(dat_cno_query(cno, DAT_CNO_FIELD_ALL, &param));
	CHECK(dx_agent(&param).proxy_agent_func == (DAT_AGENT_FUNC)NULL);
	cno_down();
}

static void cno_create__with_an_agent(void)
{
	DAT_OS_WAIT_PROXY_AGENT with = { &instance, agent };

	ia = open_ia(NULL);
	OK(dat_cno_create(ia, with, &cno));
	OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
	OK(post_software_event(evd, 0));
	await_calls(1);
	CHECK(instance == &instance);
	CHECK(agent_evd == evd);
	OK(dat_evd_free(evd));
	CHECK_RET(dat_cno_free(cno), DAT_SUCCESS);
	cno_down();
}

static void cno_wait__and_agent_both(void)
{
	DAT_OS_WAIT_PROXY_AGENT with = { &calls, agent };
	struct waiter w;

	cno_up();
	OK(dat_cno_modify_agent(cno, with));
	start_waiter(&w);
	OK(post_software_event(evd, 0));
	finish_waiter(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	CHECK(w.evd == evd);
	await_calls(1);
	cno_down();
}

static void cno_agent__told_of_the_end(void)
{
	DAT_OS_WAIT_PROXY_AGENT with = { &calls, agent };

	/* No EVD is left, then no IA. */
	cno_up();
	OK(dat_cno_modify_agent(cno, with));
	agent_evd = evd;
	OK(dat_evd_free(evd));
	await_calls(1);
	CHECK(agent_evd == NULL);
	agent_evd = evd;
	cno_down();
	await_calls(2);
	CHECK(agent_evd == NULL);
	CHECK(instance == &calls);
}

static void cno_agent__told_once_of_the_close(void)
{
	DAT_OS_WAIT_PROXY_AGENT with = { &calls, agent };

	cno_up();
	OK(dat_cno_modify_agent(cno, with));
	agent_evd = evd;
	cno_down();
	await_calls(1);
	CHECK(agent_evd == NULL);
}

static const struct tap_test tests[] = {
	T(cno_create, with_an_agent),
	T(cno_wait, and_agent_both),
	T(cno_modify_agent, called_for_each_trigger),
	T(cno_modify_agent, after_the_calls_of_other_threads),
	T(cno_modify_agent, waits_for_a_call_that_is_under_way),
	T(cno_modify_agent, in_the_agent),
	T(cno_modify_agent, another_agent),
	T(cno_agent, told_of_the_end),
	T(cno_agent, told_once_of_the_close),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
