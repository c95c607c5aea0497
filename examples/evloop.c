/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * DAT events in an event loop: epoll waits for a CNO's descriptor beside another one, here a timer, as it
 * could be a socket. The program sends itself a message at each tick of the timer.
 *
 * Build: cc -Wall -Wextra -pthread -o evloop evloop.c $(pkg-config --cflags --libs dat2)
 * Run:   ./evloop [IA] [TICKS]
 *
 * dat_cno_fd_create, which gives that descriptor, is part of DAT 2.0, but few libraries have it. Where the
 * header (LIBDAT_HAS_CNO_FD), the library or the provider of the IA lacks it, the program says so, and a
 * thread that waits for the CNO writes to an eventfd instead.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <dat2/udat.h>

#define SECOND 1000000u
#define TICK_MS 20
#define PATIENCE_MS 5000 /* of the loop */

static DAT_IA_HANDLE ia;
static DAT_CNO_HANDLE cno;
static DAT_EVD_HANDLE evd; /* of both endpoints, for everything */
static int fd = -1; /* readable when the EVD has events */

static void die(const char *what, const char *why)
{
	fflush(stdout);
	fprintf(stderr, "evloop: %s: %s\n", what, why);
	exit(1);
}

static void check(DAT_RETURN ret, const char *what)
{
	const char *major = "?", *minor = "";
	char why[128];

	if (ret == DAT_SUCCESS)
		return;
	dat_strerror(ret, &major, &minor);
	snprintf(why, sizeof why, "%s %s", major, minor);
	die(what, why);
}

static void check_errno(int result, const char *what)
{
	if (result < 0)
		die(what, strerror(errno));
}

/* --- the descriptor ------------------------------------------------------------------------- */

static pthread_t thread;
static int is_by_thread; /* the thread below feeds the descriptor */
static volatile int is_over;

/* Waits for the CNO, and makes the eventfd readable each time it is triggered. */
static void *wait_for_cno(void *unused)
{
	DAT_EVD_HANDLE which;

	(void)unused;
	while (!is_over) {
		DAT_RETURN ret = dat_cno_wait(cno, SECOND / 10, &which);

		/* Which of the two says that nothing has happened depends on the library. */
		if (DAT_GET_TYPE(ret) == DAT_TIMEOUT_EXPIRED ||
		    DAT_GET_TYPE(ret) == DAT_QUEUE_EMPTY)
			continue;
		check(ret, "dat_cno_wait");
		check_errno(eventfd_write(fd, 1), "eventfd_write");
	}
	return NULL;
}

#ifdef LIBDAT_HAS_CNO_FD
/* Looked up when the program runs, so that it also starts with a library that does not have the two. */
static DAT_RETURN (*fd_create)(DAT_IA_HANDLE, DAT_FD *, DAT_CNO_HANDLE *);
static DAT_RETURN (*trigger)(DAT_CNO_HANDLE, DAT_EVD_HANDLE *);
#endif

static void make_descriptor(void)
{
#ifdef LIBDAT_HAS_CNO_FD
	*(void **)&fd_create = dlsym(RTLD_DEFAULT, "dat_cno_fd_create");
	*(void **)&trigger = dlsym(RTLD_DEFAULT, "dat_cno_trigger");
	if (fd_create != NULL && trigger != NULL) {
		DAT_RETURN ret = fd_create(ia, &fd, &cno);

		if (ret == DAT_SUCCESS)
			return;
		if (DAT_GET_TYPE(ret) != DAT_NOT_IMPLEMENTED &&
		    DAT_GET_TYPE(ret) != DAT_MODEL_NOT_SUPPORTED)
			check(ret, "dat_cno_fd_create");
	}
#endif
	printf("no dat_cno_fd_create here: a thread waits for the CNO\n");
	is_by_thread = 1;
	check(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno), "dat_cno_create");
	fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	check_errno(fd, "eventfd");
	errno = pthread_create(&thread, NULL, wait_for_cno, NULL);
	if (errno != 0)
		die("pthread_create", strerror(errno));
}

/* Before the events are taken: what comes later makes the descriptor readable again. */
static void acknowledge(void)
{
	eventfd_t count;
	DAT_EVD_HANDLE which;

	if (is_by_thread) {
		if (eventfd_read(fd, &count) < 0 && errno != EAGAIN)
			die("eventfd_read", strerror(errno));
		return;
	}
#ifdef LIBDAT_HAS_CNO_FD
	while (trigger(cno, &which) == DAT_SUCCESS)
		;
#else
	(void)which;
#endif
}

static void free_descriptor(void)
{
	if (is_by_thread) {
		is_over = 1;
		pthread_join(thread, NULL);
		close(fd);
	}
	check(dat_cno_free(cno), "dat_cno_free");
}

/* --- two endpoints of this program ---------------------------------------------------------- */

static DAT_EP_HANDLE sender, receiver;
static DAT_LMR_CONTEXT key;
static uint64_t numbers[2]; /* what is sent, and where it arrives */
static int established, disconnected, arrived, sent;
static int is_ending; /* what is left of the connection is flushed */

static DAT_LMR_TRIPLET segment(int which)
{
	DAT_LMR_TRIPLET triplet = { .virtual_address = (uintptr_t)&numbers[which],
				    .segment_length = sizeof numbers[which],
				    .lmr_context = key };
	return triplet;
}

static void post_recv(void)
{
	DAT_LMR_TRIPLET triplet = segment(1);
	DAT_DTO_COOKIE cookie = { .as_64 = 1 };

	check(dat_ep_post_recv(receiver, 1, &triplet, cookie, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_recv");
}

static void tick(void)
{
	DAT_LMR_TRIPLET triplet = segment(0);
	DAT_DTO_COOKIE cookie = { .as_64 = 0 };

	/* The message before has not arrived yet: its number must stay. */
	if (!established || sent > arrived)
		return;
	numbers[0]++;
	sent++;
	check(dat_ep_post_send(sender, 1, &triplet, cookie, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_send");
}

static void handle(const DAT_EVENT *event)
{
	switch ((int)event->event_number) {
	case DAT_CONNECTION_REQUEST_EVENT:
		check(dat_cr_accept(event->event_data.cr_arrival_event_data.cr_handle, receiver, 0,
				    NULL),
		      "dat_cr_accept");
		break;
	case DAT_CONNECTION_EVENT_ESTABLISHED:
		established += event->event_data.connect_event_data.ep_handle == sender;
		break;
	case DAT_CONNECTION_EVENT_DISCONNECTED:
		disconnected++;
		break;
	case DAT_DTO_COMPLETION_EVENT:
		if (is_ending)
			break;
		if (event->event_data.dto_completion_event_data.status != DAT_DTO_SUCCESS)
			die("message", "failed");
		if (event->event_data.dto_completion_event_data.user_cookie.as_64 == 0)
			break;
		if (numbers[1] != (uint64_t)++arrived)
			die("message", "another number than was sent");
		post_recv();
		break;
	default:
		die("event loop", "unexpected event");
	}
}

/* Runs the loop until a counter has reached a number. */
static void run(int epoll, int timer, const int *counter, int wanted)
{
	while (*counter < wanted) {
		struct epoll_event ready;
		int count = epoll_wait(epoll, &ready, 1, PATIENCE_MS);
		DAT_EVENT event;
		uint64_t ticks;

		check_errno(count, "epoll_wait");
		if (count == 0)
			die("event loop", "nothing happens");
		if (ready.data.fd == timer) {
			if (read(timer, &ticks, sizeof ticks) == (ssize_t)sizeof ticks)
				tick();
			continue;
		}
		acknowledge();
		while (dat_evd_dequeue(evd, &event) == DAT_SUCCESS)
			handle(&event);
	}
}

int main(int argc, char **argv)
{
	char soft[] = "soft", *name = argc > 1 ? argv[1] : soft, *end = NULL;
	long ticks = argc > 2 ? strtol(argv[2], &end, 10) : 10;
	struct itimerspec interval = { .it_interval.tv_nsec = TICK_MS * 1000000,
				       .it_value.tv_nsec = TICK_MS * 1000000 };
	struct epoll_event wanted = { .events = EPOLLIN };
	DAT_REGION_DESCRIPTION region = { .for_va = numbers };
	DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
	DAT_CONN_QUAL qualifier;
	DAT_IA_ATTR attr;
	DAT_PSP_HANDLE psp;
	DAT_PZ_HANDLE pz;
	DAT_LMR_HANDLE lmr;
	int epoll, timer;

	if (argc > 3 || (end != NULL && *end != 0) || ticks < 1 || ticks > 1000000) {
		fprintf(stderr, "usage: evloop [IA] [TICKS]\n");
		return 2;
	}
	check(dat_ia_open(name, 8, &async, &ia), name);
	check(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attr, 0, NULL), "dat_ia_query");
	check(dat_pz_create(ia, &pz), "dat_pz_create");
	check(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof numbers, pz,
			     DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG,
			     DAT_VA_TYPE_VA, &lmr, &key, NULL, NULL, NULL),
	      "dat_lmr_create");

	make_descriptor();
	check(dat_evd_create(ia, 64, cno,
			     DAT_EVD_DTO_FLAG | DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG, &evd),
	      "dat_evd_create");
	timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	check_errno(timer, "timerfd_create");
	check_errno(timerfd_settime(timer, 0, &interval, NULL), "timerfd_settime");
	epoll = epoll_create1(EPOLL_CLOEXEC);
	check_errno(epoll, "epoll_create1");
	wanted.data.fd = timer;
	check_errno(epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &wanted), "epoll_ctl");
	wanted.data.fd = fd;
	check_errno(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &wanted), "epoll_ctl");

	check(dat_ep_create(ia, pz, evd, evd, evd, NULL, &sender), "dat_ep_create");
	check(dat_ep_create(ia, pz, evd, evd, evd, NULL, &receiver), "dat_ep_create");
	check(dat_psp_create_any(ia, &qualifier, evd, DAT_PSP_CONSUMER_FLAG, &psp),
	      "dat_psp_create_any");
	post_recv();
	check(dat_ep_connect(sender, attr.ia_address_ptr, qualifier, 5 * SECOND, 0, NULL,
			     DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
	      "dat_ep_connect");

	run(epoll, timer, &arrived, (int)ticks);
	printf("%d messages, one at each tick\n", arrived);
	is_ending = 1;
	check(dat_ep_disconnect(sender, DAT_CLOSE_GRACEFUL_FLAG), "dat_ep_disconnect");
	check_errno(epoll_ctl(epoll, EPOLL_CTL_DEL, timer, NULL), "epoll_ctl");
	run(epoll, timer, &disconnected, 2);

	check(dat_psp_free(psp), "dat_psp_free");
	check(dat_ep_free(sender), "dat_ep_free");
	check(dat_ep_free(receiver), "dat_ep_free");
	check(dat_evd_free(evd), "dat_evd_free");
	free_descriptor();
	close(epoll);
	close(timer);
	check(dat_lmr_free(lmr), "dat_lmr_free");
	check(dat_pz_free(pz), "dat_pz_free");
	check(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), "dat_ia_close");
	return 0;
}
