/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_evd_wait(3DAT): thresholds, waiters. How long a wait takes is in t_timeouts. */
#include "common.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static DAT_IA_HANDLE ia;
static DAT_EVD_HANDLE evd;

static void up(void)
{
	ia = open_ia(NULL);
	evd = make_evd(ia, 16, DAT_EVD_SOFTWARE_FLAG);
}

static void down(void)
{
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static void post(unsigned number)
{
	OK(post_software_event(evd, number));
}

/* A wait in a thread of its own, and how it ended. */
struct waiter {
	pthread_t thread;
	DAT_TIMEOUT timeout;
	DAT_COUNT threshold, more;
	DAT_EVENT event;
	DAT_RETURN ret;
};

static void *wait_thread(void *arg)
{
	struct waiter *w = arg;

	w->ret = dat_evd_wait(evd, w->timeout, w->threshold, &w->event, &w->more);
	return NULL;
}

static void start(struct waiter *w, DAT_TIMEOUT timeout, DAT_COUNT threshold)
{
	memset(w, 0, sizeof *w);
	w->timeout = timeout;
	w->threshold = threshold;
	REQUIRE(pthread_create(&w->thread, NULL, wait_thread, w) == 0);
}

static void finish(struct waiter *w)
{
	REQUIRE(pthread_join(w->thread, NULL) == 0);
}

static void evd_wait__event_is_there(void)
{
	DAT_EVENT event;
	DAT_COUNT more = -1;

	up();
	post(1);
	post(2);
	post(3);
	CHECK_RET(dat_evd_wait(evd, 0, 1, &event, &more), DAT_SUCCESS);
	CHECK_EQ(event.event_number, DAT_SOFTWARE_EVENT);
	CHECK(event.evd_handle == evd);
	CHECK_EQ((uintptr_t)event.event_data.software_event_data.pointer, 1);
	CHECK_EQ(more, 2);
	CHECK_RET(dat_evd_wait(evd, DAT_TIMEOUT_INFINITE, 1, &event, &more), DAT_SUCCESS);
	CHECK_EQ((uintptr_t)event.event_data.software_event_data.pointer, 2);
	CHECK_EQ(more, 1);
	down();
}

static void evd_wait__timeout_zero(void)
{
	DAT_EVENT event;
	DAT_COUNT more = -1;

	up();
	CHECK_RET(dat_evd_wait(evd, 0, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
	CHECK_EQ(more, 0);
	down();
}

static void evd_wait__woken_by_an_event(void)
{
	struct waiter w;

	up();
	start(&w, DAT_TIMEOUT_INFINITE, 1);
	await_waiter(evd);
	post(9);
	finish(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	CHECK_EQ((uintptr_t)w.event.event_data.software_event_data.pointer, 9);
	CHECK_EQ(w.more, 0);
	down();
}

static void evd_wait__threshold(void)
{
	DAT_EVENT event;
	DAT_COUNT more = -1;
	struct waiter w;

	up();
	post(1);
	post(2);
	/* Too few: none is taken. */
	CHECK_RET(dat_evd_wait(evd, NEVER, 3, &event, &more), DAT_TIMEOUT_EXPIRED);
	CHECK_EQ(more, 2);
	start(&w, DAT_TIMEOUT_INFINITE, 4);
	/* dat_evd_dequeue would take an event before the waiter is there. */
	pause_us(NEVER);
	post(3);
	post(4);
	finish(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	CHECK_EQ((uintptr_t)w.event.event_data.software_event_data.pointer, 1);
	CHECK_EQ(w.more, 3);
	CHECK_RET(dat_evd_wait(evd, 0, 3, &event, &more), DAT_SUCCESS);
	CHECK_EQ((uintptr_t)event.event_data.software_event_data.pointer, 2);
	CHECK_EQ(more, 2);
	down();
}

/* Completions count as other events do. All of them are there with the end of their connection. */
static void evd_wait__counts_completions(void)
{
	enum { COUNT = 6 };
	DAT_EVENT event;
	DAT_COUNT more = -1;
	struct pair pair;

	pair_up(&pair, NULL);
	for (DAT_UINT64 i = 0; i < COUNT; i++)
		OK(recv_nothing(pair.ep_b, i));
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	for (DAT_COUNT i = 0; i < COUNT; i++) {
		CHECK_RET(dat_evd_wait(pair.b.recv_evd, 0, 1, &event, &more), DAT_SUCCESS);
		CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, i);
		CHECK_EQ(more, COUNT - 1 - i);
	}
	CHECK_RET(dat_evd_wait(pair.b.recv_evd, 0, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
	CHECK_EQ(more, 0);
	/* Flushed at once. */
	for (DAT_UINT64 i = 0; i < COUNT; i++)
		OK(recv_nothing(pair.ep_b, i));
	CHECK_RET(dat_evd_wait(pair.b.recv_evd, NEVER, COUNT + 1, &event, &more),
		  DAT_TIMEOUT_EXPIRED);
	CHECK_EQ(more, COUNT);
	CHECK_RET(dat_evd_wait(pair.b.recv_evd, SOON, COUNT, &event, &more), DAT_SUCCESS);
	CHECK_EQ(more, COUNT - 1);
	pair_down(&pair);
}

/* An EVD that is full counts no more events than it holds, although more completions have arrived. */
static void evd_wait__counts_no_more_than_the_evd_holds(void)
{
	DAT_EVENT event;
	DAT_EVD_PARAM param;
	DAT_COUNT more = -1;
	DAT_UINT64 posted = 0;
	struct pair pair;

	pair_up(&pair, NULL);
	OK(dat_evd_query(pair.b.recv_evd, DAT_EVD_FIELD_EVD_QLEN, &param));
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	/* Flushed at once. */
	while (posted < (DAT_UINT64)param.evd_qlen)
		OK(recv_nothing(pair.ep_b, posted++));
	OK(dat_evd_wait(pair.b.recv_evd, SOON, param.evd_qlen, &event, &more));
	CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, 0);
	CHECK_EQ(more, param.evd_qlen - 1);
	for (int i = 0; i < 3; i++)
		OK(recv_nothing(pair.ep_b, posted++));
	OK(dat_evd_wait(pair.b.recv_evd, SOON, param.evd_qlen, &event, &more));
	CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, 1);
	CHECK_EQ(more, param.evd_qlen - 1);
	for (DAT_UINT64 i = 2; i < posted; i++)
		EXPECT_DTO(pair.b.recv_evd, i, DAT_DTO_ERR_FLUSHED);
	EXPECT_NOTHING(pair.b.recv_evd);
	pair_down(&pair);
}

static void evd_wait__threshold_out_of_range(void)
{
	DAT_EVD_PARAM param;
	DAT_EVENT event;
	DAT_COUNT more;

	up();
	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	CHECK_RET(dat_evd_wait(evd, 0, 0, &event, &more), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_evd_wait(evd, 0, -1, &event, &more), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_evd_wait(evd, 0, param.evd_qlen + 1, &event, &more), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_evd_wait(evd, 0, param.evd_qlen, &event, &more), DAT_TIMEOUT_EXPIRED);
	down();
}

static void evd_wait__threshold_needs_threshold_completions(void)
{
	struct rig rig;
	DAT_EP_ATTR attr;
	DAT_EVENT event;
	DAT_COUNT more;

	/* Notification that the consumer controls and thresholds exclude each other. */
	rig_up(&rig);
	attr = ep_attr(&rig);
	attr.request_completion_flags = DAT_COMPLETION_UNSIGNALLED_FLAG;
	make_ep(&rig, &attr);
	CHECK_RET(dat_evd_wait(rig.request_evd, 0, 2, &event, &more), DAT_INVALID_STATE);
	CHECK_RET(dat_evd_wait(rig.request_evd, 0, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
	CHECK_RET(dat_evd_wait(rig.recv_evd, 0, 2, &event, &more), DAT_TIMEOUT_EXPIRED);
	rig_down(&rig);
}

static void evd_wait__pointers_null(void)
{
	DAT_EVENT event;
	DAT_COUNT more;

	up();
	post(1);
	CHECK_RET(dat_evd_wait(evd, 0, 1, NULL, &more), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_evd_wait(evd, 0, 1, &event, NULL), DAT_INVALID_PARAMETER);
	/* The event was not taken. */
	CHECK_RET(dat_evd_wait(evd, 0, 1, &event, &more), DAT_SUCCESS);
	down();
}

static void evd_wait__one_waiter_only(void)
{
	struct waiter w;
	DAT_EVENT event;
	DAT_COUNT more;

	up();
	start(&w, DAT_TIMEOUT_INFINITE, 1);
	await_waiter(evd);
	CHECK_RET(dat_evd_wait(evd, 0, 1, &event, &more), DAT_INVALID_STATE);
	CHECK_RET(dat_evd_dequeue(evd, &event), DAT_INVALID_STATE);
	CHECK_CODE(dat_evd_free(evd), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
	post(1);
	finish(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	CHECK_RET(dat_evd_wait(evd, 0, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
	down();
}

static void evd_wait__unwaitable(void)
{
	DAT_EVENT event;
	DAT_COUNT more;

	up();
	post(1);
	OK(dat_evd_set_unwaitable(evd));
	CHECK_RET(dat_evd_wait(evd, 0, 1, &event, &more), DAT_INVALID_STATE);
	OK(dat_evd_clear_unwaitable(evd));
	CHECK_RET(dat_evd_wait(evd, 0, 1, &event, &more), DAT_SUCCESS);
	down();
}

static void evd_wait__unwaitable_with_a_completion(void)
{
	struct pair pair;
	DAT_EVENT event;
	DAT_COUNT more;

	pair_up(&pair, NULL);
	evd = pair.b.recv_evd;
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	/* Flushed at once. */
	OK(recv_nothing(pair.ep_b, 1));
	OK(dat_evd_set_unwaitable(evd));
	CHECK_RET(dat_evd_wait(evd, 0, 1, &event, &more), DAT_INVALID_STATE);
	OK(dat_evd_clear_unwaitable(evd));
	EXPECT_DTO(evd, 1, DAT_DTO_ERR_FLUSHED);
	pair_down(&pair);
}

static void evd_wait__released_by_set_unwaitable(void)
{
	struct waiter w;

	up();
	start(&w, DAT_TIMEOUT_INFINITE, 1);
	await_waiter(evd);
	CHECK_RET(dat_evd_set_unwaitable(evd), DAT_SUCCESS);
	finish(&w);
	CHECK_RET(w.ret, DAT_INVALID_STATE);
	down();
}

/* The events are for dat_evd_dequeue from then on, wherever the thread is that has waited. */
static void evd_wait__dequeue_after_set_unwaitable(void)
{
	struct waiter w;

	up();
	for (int i = 0; i < 50; i++) {
		DAT_EVENT event;

		start(&w, DAT_TIMEOUT_INFINITE, 2);
		await_waiter(evd);
		post(1);
		CHECK_RET(dat_evd_dequeue(evd, &event), DAT_INVALID_STATE);
		CHECK_RET(dat_evd_set_unwaitable(evd), DAT_SUCCESS);
		CHECK_RET(dat_evd_dequeue(evd, &event), DAT_SUCCESS);
		CHECK_RET(dat_evd_dequeue(evd, &event), DAT_QUEUE_EMPTY);
		finish(&w);
		CHECK_RET(w.ret, DAT_INVALID_STATE);
		CHECK_RET(dat_evd_clear_unwaitable(evd), DAT_SUCCESS);
	}
	down();
}

/* However soon the EVD is waitable again, and another thread waits. */
static void evd_wait__released_by_set_unwaitable_for_a_moment(void)
{
	struct waiter w;

	up();
	for (int i = 0; i < 20; i++) {
		DAT_EVENT event;
		DAT_COUNT more;

		start(&w, DAT_TIMEOUT_INFINITE, 1);
		await_waiter(evd);
		/* Asleep, or still polling. */
		pause_us((unsigned long)i % 2 * 2000);
		CHECK_RET(dat_evd_set_unwaitable(evd), DAT_SUCCESS);
		CHECK_RET(dat_evd_clear_unwaitable(evd), DAT_SUCCESS);
		CHECK_RET(dat_evd_wait(evd, 100, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
		finish(&w);
		CHECK_RET(w.ret, DAT_INVALID_STATE);
	}
	/* The next one waits. */
	start(&w, DAT_TIMEOUT_INFINITE, 1);
	await_waiter(evd);
	post(1);
	finish(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	down();
}

/* An EVD always has room for what its waiter waits for. */
static void evd_resize__below_the_threshold_of_a_waiter(void)
{
	struct waiter w;

	up();
	start(&w, DAT_TIMEOUT_INFINITE, 10);
	await_waiter(evd);
	CHECK_RET(dat_evd_resize(evd, 9), DAT_INVALID_STATE);
	CHECK_RET(dat_evd_resize(evd, 10), DAT_SUCCESS);
	for (unsigned i = 0; i < 10; i++)
		post(i);
	finish(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	CHECK_EQ(w.more, 9);
	CHECK_RET(dat_evd_resize(evd, 9), DAT_SUCCESS);
	down();
}

static void evd_wait__on_a_disabled_evd(void)
{
	struct waiter w;

	/* Disabling concerns the CNO alone. */
	up();
	OK(dat_evd_disable(evd));
	start(&w, DAT_TIMEOUT_INFINITE, 1);
	await_waiter(evd);
	post(1);
	finish(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	down();
}

static void on_signal(int number)
{
	(void)number;
}

static void evd_wait__interrupted_by_a_signal(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct waiter w;

	up();
	REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
	start(&w, SOON, 1);
	await_waiter(evd);
	/* The waiter may be a moment away from sleeping still. */
	while (pthread_tryjoin_np(w.thread, NULL) != 0) {
		pthread_kill(w.thread, SIGUSR1);
		pause_us(10000);
	}
	CHECK_RET(w.ret, DAT_INTERRUPTED_CALL);
	CHECK_EQ(w.more, 0);
	down();
}

/* A debugger or the shell stops the program and lets it go on. Handlers that the library may have
 * of its own, for faults in registered memory, make no difference. */
static void evd_wait__goes_on_after_a_stop(void)
{
	struct waiter w;
	pid_t parent = getpid(), child;
	DAT_PZ_HANDLE pz;

	up();
	OK(dat_pz_create(ia, &pz));
	make_mem_in(ia, pz, 4096, DAT_MEM_PRIV_ALL_FLAG);
	start(&w, DAT_TIMEOUT_INFINITE, 1);
	await_waiter(evd);
	pause_us(20000);
	child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		for (int i = 0; i < 3; i++) {
			kill(parent, SIGSTOP);
			pause_us(20000);
			kill(parent, SIGCONT);
			pause_us(20000);
		}
		_exit(0);
	}
	REQUIRE(waitpid(child, NULL, 0) == child);
	CHECK(pthread_tryjoin_np(w.thread, NULL) != 0);
	post(1);
	finish(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	down();
}

/* As with system calls, the handler may ask for that if there is no timeout. */
static void evd_wait__goes_on_after_a_handler(void)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct waiter w;

	up();
	REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
	start(&w, DAT_TIMEOUT_INFINITE, 1);
	await_waiter(evd);
	for (int i = 0; i < 5; i++) {
		pause_us(10000);
		CHECK(pthread_kill(w.thread, SIGUSR1) == 0);
	}
	pause_us(10000);
	CHECK(pthread_tryjoin_np(w.thread, NULL) != 0);
	post(1);
	finish(&w);
	CHECK_RET(w.ret, DAT_SUCCESS);
	down();
}

enum { EVENTS = 2000 };

static void *poster(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < EVENTS;)
		if (post_software_event(evd, i) == DAT_SUCCESS)
			i++;
	return NULL;
}

static void evd_wait__each_event_once_and_in_order(void)
{
	pthread_t thread;

	up();
	REQUIRE(pthread_create(&thread, NULL, poster, NULL) == 0);
	for (unsigned i = 0; i < EVENTS; i++) {
		DAT_EVENT event;
		DAT_COUNT more;

		OK(dat_evd_wait(evd, SOON, 1, &event, &more));
		REQUIRE((uintptr_t)event.event_data.software_event_data.pointer == i);
	}
	REQUIRE(pthread_join(thread, NULL) == 0);
	down();
}

static const struct tap_test tests[] = {
	T(evd_wait, event_is_there),
	T(evd_wait, timeout_zero),
	T(evd_wait, woken_by_an_event),
	T(evd_wait, threshold),
	T(evd_wait, counts_completions),
	T(evd_wait, counts_no_more_than_the_evd_holds),
	T(evd_wait, threshold_out_of_range),
	T(evd_wait, threshold_needs_threshold_completions),
	T(evd_wait, pointers_null),
	T(evd_wait, one_waiter_only),
	T(evd_wait, unwaitable),
	T(evd_wait, unwaitable_with_a_completion),
	T(evd_wait, released_by_set_unwaitable),
	T(evd_wait, dequeue_after_set_unwaitable),
	T(evd_wait, released_by_set_unwaitable_for_a_moment),
	T(evd_resize, below_the_threshold_of_a_waiter),
	T(evd_wait, on_a_disabled_evd),
	T(evd_wait, interrupted_by_a_signal),
	T(evd_wait, goes_on_after_a_stop),
	T(evd_wait, goes_on_after_a_handler),
	T(evd_wait, each_event_once_and_in_order),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
