/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * pthread_cancel(3) of a thread whose wait ends at that moment, since its IA is closed.
 */
#include "common.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A thread that waits in an IA. */
struct leaver {
	/* What the thread waits for. NULL: the EVD. */
	DAT_CNO_HANDLE cno;
	DAT_EVD_HANDLE software;
	_Atomic pid_t tid;
	/* The cleanup handler has run; the wait has returned. */
	atomic_bool cleaned, returned;
};

static void clean_up(void *arg)
{
	struct leaver *leaver = arg;

	leaver->cleaned = true;
}

/* The IA is closed, and then the thread is cancelled that waits in it. What the IA had goes with the last reference,
 * which is that thread's. */
static void *waits_for_the_end(void *arg)
{
	struct leaver *leaver = arg;
	DAT_EVD_HANDLE on_cno;
	DAT_EVENT event;
	DAT_COUNT more;

	pthread_cleanup_push(clean_up, leaver);
	leaver->tid = gettid();
	if (leaver->cno)
		CHECK_RET(dat_cno_wait(leaver->cno, DAT_TIMEOUT_INFINITE, &on_cno), DAT_SUCCESS);
	else
		CHECK_RET(dat_evd_wait(leaver->software, DAT_TIMEOUT_INFINITE, 1, &event, &more),
			  DAT_ABORT);
	pthread_testcancel();
	leaver->returned = true;
	pthread_cleanup_pop(0);
	return NULL;
}

/* Cancels a thread that leaves its wait in an IA that was closed. Before the close "begin" is called, if there is
 * one, and "cancel_thread" after it. */
static void cancel_as_the_ia_closes(void (*begin)(pthread_t), void (*cancel_thread)(pthread_t))
{
	for (int i = 0; i < 40; i++) {
		struct leaver leaver = { .cno = DAT_HANDLE_NULL };
		DAT_CONN_QUAL where;
		DAT_CNO_HANDLE cno;
		pthread_t thread;
		void *result;
		struct rig rig;

		rig_up(&rig);
		/* The library has a thread for the listener. */
		listen_any(&rig, &where);
		leaver.software = make_evd(rig.ia, 8, DAT_EVD_SOFTWARE_FLAG);
		OK(dat_cno_create(rig.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
		if (i % 2)
			leaver.cno = cno;
		REQUIRE(pthread_create(&thread, NULL, waits_for_the_end, &leaver) == 0);
		await_asleep(&leaver.tid);
		if (begin)
			begin(thread);
		OK(dat_ia_close(rig.ia, DAT_CLOSE_ABRUPT_FLAG));
		pause_us((unsigned long)(rand() % 40));
		cancel_thread(thread);
		REQUIRE(pthread_join(thread, &result) == 0);
		/* Of a thread that has returned glibc gives that result as well, if the signal came then. */
		CHECK(leaver.returned || (result == PTHREAD_CANCELED && leaver.cleaned));
	}
}

static void cancel_now(pthread_t thread)
{
	pthread_cancel(thread);
}

static void cancel_close__at_that_moment(void)
{
	cancel_as_the_ia_closes(NULL, cancel_now);
}

/*
 * pthread_cancel marks a thread that sleeps, and then sends a signal of the C library. Its caller may lose the processor
 * between the two. The handler of glibc before 2.41 acts if the thread is in any point of cancellation, and were
 * cancellation disabled; and a point of cancellation of a thread that is marked waits for the signal.
 */
#define SIGNAL_OF_CANCELLATION 32

/* Cancels a thread, and is stopped by a filter of system calls as it sends the signal. */
static struct {
	pthread_t thread;
	/* Reports the stop. -1: the filter is not there yet. */
	atomic_int reports;
	/* There is none. */
	atomic_bool refused;
	struct seccomp_notif stop;
} canceller;

static void *marks(void *thread)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SIGNAL_OF_CANCELLATION, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof code / sizeof *code, code };
	long reports = -1;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
		reports = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
				  SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
	if (reports < 0) {
		canceller.refused = true;
		return NULL;
	}
	canceller.reports = (int)reports;
	pthread_cancel(*(pthread_t *)thread);
	return NULL;
}

static void mark(pthread_t thread)
{
	canceller.reports = -1;
	REQUIRE(pthread_create(&canceller.thread, NULL, marks, &thread) == 0);
	while (canceller.reports < 0) {
		if (canceller.refused)
			tap_skip("the kernel stops no system calls for another thread");
		pause_us(100);
	}
	memset(&canceller.stop, 0, sizeof canceller.stop);
	REQUIRE(ioctl(canceller.reports, SECCOMP_IOCTL_NOTIF_RECV, &canceller.stop) == 0);
}

static void send_the_signal(pthread_t thread)
{
	struct seccomp_notif_resp go_on = { .id = canceller.stop.id,
					    .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };

	(void)thread;
	REQUIRE(ioctl(canceller.reports, SECCOMP_IOCTL_NOTIF_SEND, &go_on) == 0);
	REQUIRE(pthread_join(canceller.thread, NULL) == 0);
	close(canceller.reports);
}

static void cancel_close__by_a_signal_that_is_late(void)
{
#ifndef __GLIBC__
	tap_skip("this C library sends its signal by another call, and does not wait for it");
#endif
	cancel_as_the_ia_closes(mark, send_the_signal);
}

static const struct tap_test tests[] = {
	T(cancel_close, at_that_moment),
	T(cancel_close, by_a_signal_that_is_late),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
