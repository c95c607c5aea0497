/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The descriptors of the library beside those of the program: a daemon may have closed its standard streams, and
 * opens others in their place when it likes. */
#include "descriptors.h"
#include "left.h"
#include "transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	STREAMS = 3,
	/* More than the library opens for an IA that listens. */
	DESCRIPTORS = 256,
	/* Microseconds in which nothing happens, and most of the processor time that may be used meanwhile. */
	QUIET = 400 * 1000,
	LITTLE = 20 * 1000,
	/* How often that is tried: what the threads do at first takes longer where the processor is slow. */
	TRIES = 10
};

/* Closes the standard streams, and gives copies of them. */
static void close_streams(int kept[STREAMS])
{
	for (int fd = 0; fd < STREAMS; fd++) {
		kept[fd] = fcntl(fd, F_DUPFD, 64);
		REQUIRE(kept[fd] >= 0);
	}
	for (int fd = 0; fd < STREAMS; fd++)
		close(fd);
}

/* Which of the streams are open again. */
static int open_streams(void)
{
	int open = 0;

	for (int fd = 0; fd < STREAMS; fd++)
		open |= (fcntl(fd, F_GETFD) >= 0) << fd;
	return open;
}

static void restore_streams(const int kept[STREAMS])
{
	for (int fd = 0; fd < STREAMS; fd++) {
		dup2(kept[fd], fd);
		close(kept[fd]);
	}
}

/* What the program prints, and what is logged, goes into no connection: nothing of the library has the numbers of the
 * streams, whatever it opens. */
static void descriptors__none_is_a_standard_stream(void)
{
	int kept[STREAMS], opened, connected;
	struct pair pair;

	close_streams(kept);
	pair_up(&pair, NULL);
	connected = open_streams();
	pair_down(&pair);
	opened = open_streams();
	restore_streams(kept);
	CHECK_EQ(connected, 0);
	CHECK_EQ(opened, 0);
}

/* Microseconds of processor time that the process has used. */
static long long used_us(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return 1000000LL * (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

/* Stops this process for a moment: system calls that sleep end, and begin anew. */
static void be_stopped(void)
{
	pid_t child = fork();

	REQUIRE(child >= 0);
	if (child == 0) {
		kill(getppid(), SIGSTOP);
		pause_us(NEVER);
		kill(getppid(), SIGCONT);
		_exit(0);
	}
	REQUIRE(waitpid(child, NULL, 0) == child);
}

/* The threads of the process take no processor. */
static void check_that_threads_sleep(void)
{
	long long used = LITTLE;

	for (int i = 0; i < TRIES && used >= LITTLE; i++) {
		used = -used_us();
		pause_us(QUIET);
		used += used_us();
	}
	CHECK_EQ(used < LITTLE ? 0 : used, 0);
}

/* Closes all descriptors but the standard streams; the threads of the process sleep after that. */
static void close_all(void)
{
	for (int fd = STREAMS; fd < DESCRIPTORS; fd++)
		close(fd);
	be_stopped();
	check_that_threads_sleep();
}

/* The IA is of no use any more then, but the threads of the library sleep, and it can be closed. */
static void descriptors__all_closed_by_the_program(void)
{
	DAT_CONN_QUAL qualifier;
	struct rig rig;

	rig_up(&rig);
	listen_any(&rig, &qualifier);
	close_all();
	rig_down(&rig);
}

static void *wait_for_an_event(void *arg)
{
	DAT_COUNT more;
	DAT_EVENT event;

	OK(dat_evd_wait(*(DAT_EVD_HANDLE *)arg, DAT_TIMEOUT_INFINITE, 1, &event, &more));
	return NULL;
}

/* Threads that wait for events sleep as well: the one that would be woken by what arrives, too. Each still gets the events
 * that this process makes. */
static void descriptors__all_closed_beside_waiters(void)
{
	enum { WAITERS = 2 };
	DAT_EVD_HANDLE evds[WAITERS];
	pthread_t threads[WAITERS];
	DAT_CONN_QUAL qualifier;
	struct rig rig;

	rig_up(&rig);
	listen_any(&rig, &qualifier);
	for (int i = 0; i < WAITERS; i++) {
		evds[i] = make_evd(rig.ia, 8, DAT_EVD_SOFTWARE_FLAG);
		REQUIRE(pthread_create(&threads[i], NULL, wait_for_an_event, &evds[i]) == 0);
		await_waiter(evds[i]);
	}
	pause_us(NEVER);
	close_all();
	for (int i = 0; i < WAITERS; i++) {
		OK(post_software_event(evds[i], 1));
		REQUIRE(pthread_join(threads[i], NULL) == 0);
	}
	rig_down(&rig);
}

/* A program may close what wakes the threads of an IA, and leave what they sleep in. A thread that waits still gets the
 * events that this process makes, and the threads end with the IA. */
static void descriptors__what_wakes_a_thread(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_EVD_HANDLE evd;
	unsigned threads;
	pthread_t thread;
	struct rig rig;

	threads = what_is().threads;
	rig_up(&rig);
	listen_any(&rig, &qualifier);
	evd = make_evd(rig.ia, 8, DAT_EVD_SOFTWARE_FLAG);
	REQUIRE(pthread_create(&thread, NULL, wait_for_an_event, &evd) == 0);
	await_waiter(evd);
	pause_us(NEVER);
	close_kind("anon_inode:[eventfd]");
	OK(post_software_event(evd, 1));
	REQUIRE(pthread_join(thread, NULL) == 0);
	rig_down(&rig);
	/* What was joined may take a moment to go. */
	for (int i = 0; i < SOON / NEVER && what_is().threads != threads; i++)
		pause_us(NEVER);
	CHECK_EQ(what_is().threads, threads);
}

/* A message from a to b, and the end of the connection; the threads sleep after it. */
static void use_up(DAT_EP_HANDLE from, DAT_EP_HANDLE to)
{
	OK(recv_nothing(to, 1));
	OK(send_nothing(from, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	OK(dat_ep_disconnect(from, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	check_that_threads_sleep();
}

/* A program that needs no more files may lower its limit, down to none at all, as some do against intruders. The
 * connections that there are serve it as before. */
static void descriptors__none_allowed_any_more(void)
{
	DAT_EP_HANDLE other_a, other_b;
	struct rlimit limit;

	pair_up(&p, NULL);
	other_a = make_ep(&p.a, NULL);
	other_b = make_ep(&p.b, NULL);
	connect_eps(&p.a, other_a, &p.b, other_b);
	REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = 0;
	REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	use_up(p.ep_a, p.ep_b);
	use_up(other_a, other_b);
	pair_down(&p);
}

static const struct tap_test tests[] = {
	T(descriptors, none_is_a_standard_stream), T(descriptors, all_closed_by_the_program),
	T(descriptors, all_closed_beside_waiters), T(descriptors, what_wakes_a_thread),
	T(descriptors, none_allowed_any_more),	   TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
