/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which completions notify: they trigger the CNO, and wake a thread that waits. */
#include "flags.h"
#include "transfer.h"

#include <errno.h>
#include <pthread.h>

/* A CNO that hears of what side b receives. */
static DAT_CNO_HANDLE watch_receives(void)
{
	DAT_CNO_HANDLE cno;

	OK(dat_cno_create(p.b.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(p.b.recv_evd, cno));
	return cno;
}

static void notify__unsignalled_receive(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_LMR_TRIPLET none = { 0 };
	DAT_CNO_HANDLE cno;
	DAT_EVD_HANDLE from;

	attr.recv_completion_flags = UNSIGNALLED;
	up_with(&attr);
	cno = watch_receives();
	OK(dat_ep_post_recv(p.ep_b, 0, &none, cookie(1), UNSIGNALLED));
	OK(dat_ep_post_recv(p.ep_b, 0, &none, cookie(2), DEFAULT));
	OK(a_sends(0, 0, 3, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	OK(a_sends(0, 0, 4, DEFAULT));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == p.b.recv_evd);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_SUCCESS);
	down();
}

/* A receive of 8 bytes where only solicited ones notify, and the CNO. */
static DAT_CNO_HANDLE up_solicited(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_CNO_HANDLE cno;

	attr.recv_completion_flags = SOLICITED;
	up_with(&attr);
	cno = watch_receives();
	OK(b_receives(0, 8, 1));
	return cno;
}

static void notify__errors_where_only_solicited_receives_do(void)
{
	DAT_CNO_HANDLE cno = up_solicited();
	DAT_EVD_HANDLE from;

	OK(a_sends(0, 9, 2, DEFAULT));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == p.b.recv_evd);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_ERR_LOCAL_LENGTH);
	down();
}

static void notify__flushes_where_only_solicited_receives_do(void)
{
	DAT_CNO_HANDLE cno = up_solicited();
	DAT_EVD_HANDLE from;

	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == p.b.recv_evd);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_ERR_FLUSHED);
	down();
}

/* A CNO that is notified of the completions of requests of end a. */
static DAT_CNO_HANDLE watch_requests(void)
{
	DAT_CNO_HANDLE cno;

	OK(dat_cno_create(p.a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(p.a.request_evd, cno));
	return cno;
}

/* One request of each kind, which succeeds without a completion. */
static void succeed_suppressed(void)
{
	OK(b_receives(0, 8, 100));
	OK(a_sends(0, 8, 1, SUPPRESS));
	OK(a_writes(0, 0, 8, 2, SUPPRESS));
	OK(a_reads(0, 0, 8, 3, SUPPRESS));
	EXPECT_DTO(p.b.recv_evd, 100, DAT_DTO_SUCCESS);
}

static void notify__suppressed_success(void)
{
	DAT_EVD_HANDLE from;
	DAT_CNO_HANDLE cno;

	up();
	cno = watch_requests();
	succeed_suppressed();
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	OK(a_writes(0, 0, 8, 4, DEFAULT));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	down();
}

/* A request that fails notifies whatever its flags, and so does one that is flushed. */
static void notify__unsignalled_errors(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_EVD_HANDLE from;
	DAT_CNO_HANDLE cno;

	attr.request_completion_flags = UNSIGNALLED;
	up_with(&attr);
	cno = watch_requests();
	OK(a_reads(0, SIZE, 8, 1, UNSIGNALLED));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == p.a.request_evd);
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_ERR_REMOTE_ACCESS);
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	while (dat_cno_wait(cno, 0, &from) == DAT_SUCCESS)
		;
	OK(a_reads(0, 0, 8, 2, UNSIGNALLED));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_ERR_FLUSHED);
	OK(a_reads(0, 0, 8, 3, (DAT_COMPLETION_FLAGS)(UNSIGNALLED | SUPPRESS)));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_ERR_FLUSHED);
	down();
}

static void *wait_for_two(void *arg)
{
	DAT_EVENT event;
	DAT_COUNT more = -1;

	(void)arg;
	OK(dat_evd_wait(p.a.request_evd, SOON, 2, &event, &more));
	CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, 4);
	CHECK_EQ(more, 1);
	return NULL;
}

/* What is suppressed counts for no threshold. */
static void notify__suppressed_success_and_a_waiter(void)
{
	pthread_t waiter;
	DAT_EVENT event;
	DAT_COUNT more = -1;

	up();
	succeed_suppressed();
	CHECK_RET(dat_evd_wait(p.a.request_evd, NEVER, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
	CHECK_EQ(more, 0);
	REQUIRE(pthread_create(&waiter, NULL, wait_for_two, NULL) == 0);
	await_waiter(p.a.request_evd);
	succeed_suppressed();
	OK(a_writes(0, 0, 8, 4, DEFAULT));
	succeed_suppressed();
	pause_us(NEVER);
	CHECK(pthread_tryjoin_np(waiter, NULL) != 0);
	OK(a_writes(0, 0, 8, 5, DEFAULT));
	REQUIRE(pthread_join(waiter, NULL) == 0);
	EXPECT_DTO(p.a.request_evd, 5, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(p.a.request_evd);
	down();
}

static void notify__suppressed_write_that_is_refused(void)
{
	DAT_CNO_HANDLE cno;
	DAT_EVD_HANDLE from;

	up();
	cno = watch_requests();
	OK(a_writes(0, SIZE, 8, 1, SUPPRESS));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	/* Otherwise it may have succeeded, without a completion. */
	if (!writes_end_when_sent()) {
		CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
		EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_ERR_REMOTE_ACCESS);
	}
	down();
}

static void notify__suppressed_error(void)
{
	DAT_LMR_TRIPLET iov;
	DAT_RMR_TRIPLET remote;
	DAT_EVD_HANDLE from;
	DAT_CNO_HANDLE cno;

	up();
	cno = watch_requests();
	iov = dx_local(ma.local, ma.at, 8);
	remote = dx_remote(mb.remote, mb.at + SIZE, 8);
	OK(dat_ep_post_rdma_read(p.ep_a, 1, &iov, cookie(1), &remote, SUPPRESS));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == p.a.request_evd);
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_ERR_REMOTE_ACCESS);
	down();
}

/* --- what wakes a thread in dat_evd_wait -------------------------------------------------------- */

/* A thread that waits for one event of this EVD, and what it gets. */
struct waiter {
	pthread_t thread;
	DAT_EVD_HANDLE evd;
	DAT_RETURN ret;
	DAT_EVENT event;
	DAT_COUNT more;
};

static void *wait_for_one(void *arg)
{
	struct waiter *w = arg;

	w->ret = dat_evd_wait(w->evd, SOON, 1, &w->event, &w->more);
	return NULL;
}

static void start(struct waiter *w, DAT_EVD_HANDLE evd)
{
	*w = (struct waiter){ .evd = evd, .more = -1 };
	REQUIRE(pthread_create(&w->thread, NULL, wait_for_one, w) == 0);
	await_waiter(evd);
}

/* The thread waits still, although what has happened takes less time than this. */
#define STILL_WAITS(w)                                                 \
	do {                                                           \
		pause_us(NEVER);                                       \
		CHECK(pthread_tryjoin_np((w)->thread, NULL) == EBUSY); \
	} while (0)

/* The thread gets the completion of this cookie, and there are so many more. */
static void woken_with(struct waiter *w, DAT_UINT64 value, DAT_COUNT more)
{
	REQUIRE(pthread_join(w->thread, NULL) == 0);
	CHECK_RET(w->ret, DAT_SUCCESS);
	CHECK_EQ(w->event.event_data.dto_completion_event_data.user_cookie.as_64, value);
	CHECK_EQ(w->more, more);
}

/* Unsignalled completions are in the queue with the one that wakes, before it. */
static void notify__unsignalled_requests_and_a_waiter(void)
{
	DAT_EP_ATTR attr = usual_attr();
	struct waiter w;
	DAT_EVENT event;
	DAT_COUNT more;

	attr.request_completion_flags = UNSIGNALLED;
	up_with(&attr);
	start(&w, p.a.request_evd);
	OK(b_receives(0, 8, 100));
	OK(a_sends(0, 8, 1, UNSIGNALLED));
	OK(a_writes(0, 0, 8, 2, UNSIGNALLED));
	OK(a_reads(0, 0, 8, 3, UNSIGNALLED));
	EXPECT_DTO(p.b.recv_evd, 100, DAT_DTO_SUCCESS);
	await_idle(p.ep_a);
	STILL_WAITS(&w);
	/* They are the waiter's. */
	CHECK_RET(dat_evd_wait(p.a.request_evd, 0, 1, &event, &more), DAT_INVALID_STATE);
	CHECK_RET(dat_evd_dequeue(p.a.request_evd, &event), DAT_INVALID_STATE);
	OK(a_writes(0, 0, 8, 4, DEFAULT));
	woken_with(&w, 1, 3);
	for (DAT_UINT64 i = 2; i <= 4; i++)
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
	down();
}

static void notify__unsignalled_receives_and_a_waiter(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_LMR_TRIPLET none = { 0 };
	struct waiter w;

	attr.recv_completion_flags = UNSIGNALLED;
	up_with(&attr);
	OK(dat_ep_post_recv(p.ep_b, 0, &none, cookie(1), UNSIGNALLED));
	OK(dat_ep_post_recv(p.ep_b, 0, &none, cookie(2), DEFAULT));
	start(&w, p.b.recv_evd);
	OK(a_sends(0, 0, 3, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	STILL_WAITS(&w);
	OK(a_sends(0, 0, 4, DEFAULT));
	woken_with(&w, 1, 1);
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_SUCCESS);
	down();
}

static void notify__receives_that_are_not_solicited_and_a_waiter(void)
{
	struct waiter w;

	up_solicited();
	OK(b_receives(0, 8, 2));
	start(&w, p.b.recv_evd);
	OK(a_sends(0, 8, 3, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	STILL_WAITS(&w);
	OK(a_sends(0, 8, 4, SOLICITED));
	woken_with(&w, 1, 1);
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_SUCCESS);
	down();
}

/* A failure wakes, whatever the flags of the request. */
static void notify__unsignalled_errors_and_a_waiter(void)
{
	DAT_EP_ATTR attr = usual_attr();
	struct waiter w;

	attr.request_completion_flags = UNSIGNALLED;
	up_with(&attr);
	start(&w, p.a.request_evd);
	OK(a_reads(0, SIZE, 8, 1, UNSIGNALLED | SUPPRESS));
	woken_with(&w, 1, 0);
	CHECK_EQ(w.event.event_data.dto_completion_event_data.status, DAT_DTO_ERR_REMOTE_ACCESS);
	down();
}

static const struct tap_test tests[] = {
	T(notify, unsignalled_receive),
	T(notify, errors_where_only_solicited_receives_do),
	T(notify, flushes_where_only_solicited_receives_do),
	T(notify, unsignalled_errors),
	T(notify, suppressed_success),
	T(notify, suppressed_success_and_a_waiter),
	T(notify, suppressed_error),
	T(notify, suppressed_write_that_is_refused),
	T(notify, unsignalled_requests_and_a_waiter),
	T(notify, unsignalled_receives_and_a_waiter),
	T(notify, receives_that_are_not_solicited_and_a_waiter),
	T(notify, unsignalled_errors_and_a_waiter),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
