/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Consumer notification objects: dat_cno_create(3DAT), _wait, _query, _free. Their agents are in
 * t_agent. */
#include "cno.h"

#include <signal.h>
#include <string.h>

static void cno_create__and_query(void)
{
	DAT_CNO_PARAM param;
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;

	cno_up();
	memset(&param, 0xff, sizeof param);
	CHECK_RET(dat_cno_query(cno, DAT_CNO_FIELD_ALL, &param), DAT_SUCCESS);
	CHECK(param.ia_handle == ia);
	CHECK(dx_agent(&param).proxy_agent_func == (DAT_AGENT_FUNC)NULL);
	OK(dat_get_handle_type(cno, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_CNO);
	CHECK_RET(dat_cno_query(cno, DAT_CNO_FIELD_ALL, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_cno_query(cno, (DAT_CNO_PARAM_MASK)0x40000, &param), DAT_INVALID_PARAMETER);
	cno_down();
}

static void cno_create__arguments(void)
{
	cno_up();
	CHECK_RET(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, NULL), DAT_INVALID_PARAMETER);
	CHECK_CODE(dat_cno_create(DAT_HANDLE_NULL, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
	cno_down();
}

static void cno_free__in_use(void)
{
	cno_up();
	CHECK_RET(dat_cno_free(cno), DAT_INVALID_STATE);
	OK(dat_evd_free(evd));
	CHECK_RET(dat_cno_free(cno), DAT_SUCCESS);
	CHECK_RET(dat_cno_free(cno), DAT_INVALID_HANDLE);
	cno_down();
}

static void cno_free__with_a_waiter(void)
{
	struct waiter w;

	cno_up();
	OK(dat_evd_free(evd));
	start_waiter(&w);
	CHECK_RET(dat_cno_free(cno), DAT_INVALID_STATE);
	/* The way out: an EVD that triggers. */
	OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
	OK(post_software_event(evd, 0));
	finish_waiter(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	CHECK(w.evd == evd);
	OK(dat_evd_free(evd));
	CHECK_RET(dat_cno_free(cno), DAT_SUCCESS);
	cno_down();
}

static void cno_wait__timeout(void)
{
	DAT_EVD_HANDLE from = (DAT_EVD_HANDLE)(uintptr_t)0x1230;
	unsigned long long begin;

	cno_up();
	CHECK_RET(dat_cno_wait(cno, 0, &from), DAT_QUEUE_EMPTY);
	CHECK(from == DAT_HANDLE_NULL);
	begin = now_us();
	CHECK_RET(dat_cno_wait(cno, 30000, &from), DAT_QUEUE_EMPTY);
	CHECK(now_us() - begin >= 30000);
	CHECK_RET(dat_cno_wait(cno, 0, NULL), DAT_INVALID_PARAMETER);
	cno_down();
}

static void cno_wait__trigger_is_remembered(void)
{
	DAT_EVD_HANDLE from = DAT_HANDLE_NULL;
	DAT_EVENT event;

	cno_up();
	OK(post_software_event(evd, 0));
	CHECK_RET(dat_cno_wait(cno, 0, &from), DAT_SUCCESS);
	CHECK(from == evd);
	/* The hint takes no event, and is given once. */
	CHECK_RET(dat_evd_dequeue(evd, &event), DAT_SUCCESS);
	CHECK_RET(dat_cno_wait(cno, 0, &from), DAT_QUEUE_EMPTY);
	cno_down();
}

/* So is one that came before dat_evd_modify_cno names the same CNO. */
static void evd_modify_cno__to_the_same(void)
{
	DAT_EVD_HANDLE from = DAT_HANDLE_NULL;
	struct waiter w;

	cno_up();
	OK(post_software_event(evd, 0));
	CHECK_RET(dat_evd_modify_cno(evd, cno), DAT_SUCCESS);
	CHECK_RET(dat_cno_wait(cno, 0, &from), DAT_SUCCESS);
	CHECK(from == evd);
	start_waiter(&w);
	CHECK_RET(dat_evd_modify_cno(evd, cno), DAT_SUCCESS);
	OK(post_software_event(evd, 0));
	finish_waiter(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	CHECK(w.evd == evd);
	/* The EVD counts once. */
	CHECK_RET(dat_evd_modify_cno(evd, DAT_HANDLE_NULL), DAT_SUCCESS);
	CHECK_RET(dat_evd_modify_cno(evd, DAT_HANDLE_NULL), DAT_SUCCESS);
	CHECK_RET(dat_cno_free(cno), DAT_SUCCESS);
	cno_down();
}

/* A trigger that nobody was told of goes with the EVD, unless its events were dequeued. */
static void evd_modify_cno__takes_the_trigger_along(void)
{
	DAT_CNO_HANDLE other;
	DAT_EVD_HANDLE second, from = DAT_HANDLE_NULL;
	DAT_EVENT event;

	cno_up();
	OK(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &other));
	OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &second));
	OK(post_software_event(evd, 0));
	CHECK_RET(dat_evd_modify_cno(evd, other), DAT_SUCCESS);
	CHECK_RET(dat_cno_wait(other, 0, &from), DAT_SUCCESS);
	CHECK(from == evd);
	CHECK_RET(dat_cno_wait(cno, 0, &from), DAT_QUEUE_EMPTY);
	/* It was told, so nothing is left to go along. */
	CHECK_RET(dat_evd_modify_cno(evd, cno), DAT_SUCCESS);
	CHECK_RET(dat_cno_wait(cno, 0, &from), DAT_QUEUE_EMPTY);
	OK(dat_evd_dequeue(evd, &event));
	OK(post_software_event(evd, 0));
	OK(dat_evd_dequeue(evd, &event));
	CHECK_RET(dat_evd_modify_cno(evd, other), DAT_SUCCESS);
	CHECK_RET(dat_cno_wait(other, 0, &from), DAT_QUEUE_EMPTY);
	CHECK_RET(dat_cno_wait(cno, 0, &from), DAT_QUEUE_EMPTY);
	cno_down();
}

static void cno_wait__woken(void)
{
	struct waiter w;

	cno_up();
	start_waiter(&w);
	OK(post_software_event(evd, 0));
	finish_waiter(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	CHECK(w.evd == evd);
	cno_down();
}

static void cno_wait__several_waiters(void)
{
	enum { COUNT = 3 };
	struct waiter w[COUNT];
	DAT_EVENT event;

	/* Each trigger releases one of them. */
	cno_up();
	for (int i = 0; i < COUNT; i++)
		start_waiter(&w[i]);
	for (int released = 1; released <= COUNT; released++) {
		unsigned long long end = now_us() + SOON;
		int over = 0;

		OK(post_software_event(evd, 0));
		while (over < released && now_us() < end) {
			over = 0;
			for (int i = 0; i < COUNT; i++)
				over += w[i].over;
			pause_us(1000);
		}
		pause_us(5000);
		over = 0;
		for (int i = 0; i < COUNT; i++)
			over += w[i].over;
		CHECK_EQ(over, released);
		OK(dat_evd_dequeue(evd, &event));
	}
	for (int i = 0; i < COUNT; i++) {
		finish_waiter(&w[i]);
		CHECK_RET(w[i].ret, DAT_SUCCESS);
		CHECK(w[i].evd == evd);
	}
	cno_down();
}

static void on_signal(int number)
{
	(void)number;
}

static void cno_wait__interrupted_by_a_signal(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct waiter w;

	cno_up();
	REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
	start_waiter(&w);
	/* The waiter may be a moment away from sleeping still. */
	while (pthread_tryjoin_np(w.thread, NULL) != 0) {
		pthread_kill(w.thread, SIGUSR1);
		pause_us(10000);
	}
	CHECK_RET(w.ret, DAT_INTERRUPTED_CALL);
	/* It took no trigger with it. */
	OK(post_software_event(evd, 0));
	CHECK_RET(dat_cno_wait(cno, SOON, &w.evd), DAT_SUCCESS);
	cno_down();
}

static void cno_wait__several_evds(void)
{
	DAT_EVD_HANDLE other, from;
	DAT_EVENT event;

	cno_up();
	OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &other));
	OK(post_software_event(other, 0));
	OK(dat_cno_wait(cno, SOON, &from));
	CHECK(from == other);
	OK(dat_evd_dequeue(other, &event));
	OK(post_software_event(evd, 0));
	OK(dat_cno_wait(cno, SOON, &from));
	CHECK(from == evd);
	OK(dat_evd_dequeue(evd, &event));
	cno_down();
}

static void cno_wait__every_kind_of_event(void)
{
	struct rig a, b;
	DAT_EVD_HANDLE from;
	DAT_EVENT event;
	DAT_CONN_QUAL qualifier;
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_PSP_HANDLE psp;
	DAT_LMR_TRIPLET nothing = { 0 };

	/* Request, connection, DTO: one CNO for all, as consumers have it. */
	rig_up(&a);
	rig_up(&b);
	OK(dat_cno_create(b.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(b.cr_evd, cno));
	OK(dat_evd_modify_cno(b.connect_evd, cno));
	OK(dat_evd_modify_cno(b.recv_evd, cno));
	OK(dat_evd_modify_cno(b.request_evd, cno));
	OK(dat_evd_modify_cno(b.async_evd, cno));
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	psp = listen_any(&b, &qualifier);

	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cno_wait(cno, SOON, &from));
	CHECK(from == b.cr_evd);
	OK(dat_evd_dequeue(b.cr_evd, &event));

	OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, ep_b, 0, NULL));
	OK(dat_cno_wait(cno, SOON, &from));
	CHECK(from == b.connect_evd);
	OK(dat_evd_dequeue(b.connect_evd, &event));
	CHECK_EQ(event.event_number, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);

	OK(dat_ep_post_recv(ep_b, 0, &nothing, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_send(ep_a, 0, &nothing, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_cno_wait(cno, SOON, &from));
	CHECK(from == b.recv_evd);
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);

	OK(dat_ep_post_recv(ep_a, 0, &nothing, cookie(3), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_send(ep_b, 0, &nothing, cookie(4), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_cno_wait(cno, SOON, &from));
	CHECK(from == b.request_evd);
	EXPECT_DTO(b.request_evd, 4, DAT_DTO_SUCCESS);

	OK(dat_psp_free(psp));
	rig_down(&a);
	rig_down(&b);
}

static void cno_wait__not_for_disabled_evds(void)
{
	DAT_EVD_HANDLE from;

	cno_up();
	OK(dat_evd_disable(evd));
	OK(post_software_event(evd, 0));
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	/* Enabling does not make up for it; the next event triggers. */
	OK(dat_evd_enable(evd));
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	OK(post_software_event(evd, 0));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == evd);
	cno_down();
}

static void *wait_on_evd(void *arg)
{
	DAT_EVENT event;
	DAT_COUNT more;

	(void)arg;
	return (void *)(uintptr_t)dat_evd_wait(evd, SOON, 1, &event, &more);
}

static void cno_wait__not_while_a_thread_waits_on_the_evd(void)
{
	DAT_EVD_HANDLE from;
	pthread_t thread;
	void *ret;

	cno_up();
	REQUIRE(pthread_create(&thread, NULL, wait_on_evd, NULL) == 0);
	await_waiter(evd);
	OK(post_software_event(evd, 0));
	REQUIRE(pthread_join(thread, &ret) == 0);
	CHECK_RET((DAT_RETURN)(uintptr_t)ret, DAT_SUCCESS);
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	cno_down();
}

static void cno_wait__after_the_last_evd_is_gone(void)
{
	struct waiter w;

	cno_up();
	start_waiter(&w);
	OK(dat_evd_free(evd));
	finish_waiter(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	CHECK(w.evd == DAT_HANDLE_NULL);
	cno_down();
}

/* All that waited then, however soon another thread asks. */
static void cno_wait__all_are_released(void)
{
	enum { COUNT = 3 };
	struct waiter w[COUNT];
	DAT_EVD_HANDLE from;

	cno_up();
	for (int i = 0; i < COUNT; i++)
		start_waiter(&w[i]);
	OK(dat_evd_free(evd));
	for (int i = 0; i < COUNT; i++)
		CHECK_RET(dat_cno_wait(cno, 0, &from), DAT_QUEUE_EMPTY);
	for (int i = 0; i < COUNT; i++) {
		finish_waiter(&w[i]);
		CHECK_RET(w[i].ret, DAT_SUCCESS);
		CHECK(w[i].evd == DAT_HANDLE_NULL);
	}
	cno_down();
}

/* A waiter stays as long as there is an EVD that can trigger the CNO. */
static void cno_wait__after_one_of_two_evds_is_gone(void)
{
	struct waiter w;
	DAT_EVD_HANDLE second;

	cno_up();
	OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &second));
	start_waiter(&w);
	OK(dat_evd_free(second));
	pause_us(NEVER);
	CHECK(!w.over);
	OK(post_software_event(evd, 1));
	finish_waiter(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	CHECK(w.evd == evd);
	cno_down();
}

static void cno_wait__ia_closed(void)
{
	struct waiter w;

	cno_up();
	start_waiter(&w);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	finish_waiter(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	CHECK(w.evd == DAT_HANDLE_NULL);
}

/* Whether threads may wait on an EVD is nothing to its CNO: events trigger it, and can be dequeued. */
static void cno_wait__unwaitable_evds_trigger(void)
{
	DAT_EVD_HANDLE from = DAT_HANDLE_NULL;
	DAT_EVD_PARAM param;
	DAT_EVENT event;

	cno_up();
	for (int i = 0; i < 2; i++) {
		if (i == 0)
			OK(dat_evd_set_unwaitable(evd));
		else
			OK(dat_evd_clear_unwaitable(evd));
		OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
		CHECK(param.cno_handle == cno);
		CHECK_RET(dat_cno_wait(cno, 0, &from), DAT_QUEUE_EMPTY);
		OK(post_software_event(evd, 0));
		CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
		CHECK(from == evd);
		CHECK_RET(dat_evd_dequeue(evd, &event), DAT_SUCCESS);
	}
	cno_down();
}

/* Also while the thread that waited is on its way out. */
static void cno_wait__evds_that_become_unwaitable_trigger(void)
{
	DAT_EVD_HANDLE from = DAT_HANDLE_NULL;
	pthread_t thread;
	DAT_EVENT event;
	void *ret;

	cno_up();
	for (int i = 0; i < 10; i++) {
		REQUIRE(pthread_create(&thread, NULL, wait_on_evd, NULL) == 0);
		await_waiter(evd);
		/* Asleep, or still polling. */
		pause_us((unsigned long)i % 2 * 2000);
		OK(dat_evd_set_unwaitable(evd));
		OK(post_software_event(evd, 0));
		CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
		CHECK(from == evd);
		REQUIRE(pthread_join(thread, &ret) == 0);
		CHECK_RET((DAT_RETURN)(uintptr_t)ret, DAT_INVALID_STATE);
		CHECK_RET(dat_evd_dequeue(evd, &event), DAT_SUCCESS);
		OK(dat_evd_clear_unwaitable(evd));
	}
	cno_down();
}

/* The EVD is the waiter's: its events trigger no CNO, enabled or not. */
static void *wait_for_two(void *arg)
{
	DAT_EVENT event;
	DAT_COUNT more;

	(void)arg;
	return (void *)(uintptr_t)dat_evd_wait(evd, SOON, 2, &event, &more);
}

static void evd_enable__leaves_a_waiter_alone(void)
{
	DAT_EVD_HANDLE from;
	pthread_t thread;
	DAT_EVENT event;
	void *ret;

	cno_up();
	REQUIRE(pthread_create(&thread, NULL, wait_for_two, NULL) == 0);
	await_waiter(evd);
	OK(dat_evd_disable(evd));
	OK(post_software_event(evd, 0));
	OK(dat_evd_enable(evd));
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	OK(post_software_event(evd, 0));
	REQUIRE(pthread_join(thread, &ret) == 0);
	CHECK_RET((DAT_RETURN)(uintptr_t)ret, DAT_SUCCESS);
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	/* After the wait the next event does. */
	OK(dat_evd_dequeue(evd, &event));
	OK(post_software_event(evd, 0));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == evd);
	cno_down();
}

/* A completion that has arrived on a disabled EVD does not keep those behind it from triggering. */
static void evd_enable__completions_trigger_again(void)
{
	DAT_EVD_HANDLE from;
	struct pair pair;

	pair_up(&pair, NULL);
	evd = pair.b.recv_evd;
	OK(dat_cno_create(pair.b.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(evd, cno));
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	OK(dat_evd_disable(evd));
	/* Flushed at once. */
	OK(recv_nothing(pair.ep_b, 1));
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	OK(dat_evd_enable(evd));
	OK(recv_nothing(pair.ep_b, 2));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == evd);
	EXPECT_DTO(evd, 1, DAT_DTO_ERR_FLUSHED);
	EXPECT_DTO(evd, 2, DAT_DTO_ERR_FLUSHED);
	pair_down(&pair);
}

static const struct tap_test tests[] = {
	T(cno_create, and_query),
	T(cno_create, arguments),
	T(cno_free, in_use),
	T(cno_free, with_a_waiter),
	T(cno_wait, timeout),
	T(cno_wait, trigger_is_remembered),
	T(evd_modify_cno, to_the_same),
	T(evd_modify_cno, takes_the_trigger_along),
	T(cno_wait, woken),
	T(cno_wait, several_waiters),
	T(cno_wait, interrupted_by_a_signal),
	T(cno_wait, several_evds),
	T(cno_wait, every_kind_of_event),
	T(cno_wait, not_for_disabled_evds),
	T(cno_wait, not_while_a_thread_waits_on_the_evd),
	T(cno_wait, after_the_last_evd_is_gone),
	T(cno_wait, all_are_released),
	T(cno_wait, after_one_of_two_evds_is_gone),
	T(cno_wait, ia_closed),
	T(cno_wait, unwaitable_evds_trigger),
	T(cno_wait, evds_that_become_unwaitable_trigger),
	T(evd_enable, leaves_a_waiter_alone),
	T(evd_enable, completions_trigger_again),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
