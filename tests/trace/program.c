/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * program WHAT: makes calls on the IA "a" whose trace is known, for the tests of dat-trace. Compiled for both
 * versions of the API (-DDAT2). Prints what the trace has to show, a line "name value" for each.
 */
#include "dat_compat.h"
#ifdef DAT2
#include <dat2/dat_ib_extensions.h>
#endif

#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call)                                                              \
	do {                                                                  \
		DAT_RETURN code_ = (call);                                    \
		if (code_ != DAT_SUCCESS) {                                   \
			fprintf(stderr, "%s: %#x\n", #call, (unsigned)code_); \
			exit(1);                                              \
		}                                                             \
	} while (0)

#define UNREADABLE ((void *)16)

static DAT_IA_HANDLE ia;
static DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;

static void tell(const char *name, const void *handle)
{
	printf("%s 0x%" PRIxPTR "\n", name, (uintptr_t)handle);
	fflush(stdout);
}

static DAT_EVD_HANDLE new_evd(DAT_EVD_FLAGS flags)
{
	DAT_EVD_HANDLE evd;

	OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, flags, &evd));
	return evd;
}

static DAT_EVENT wait_for(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number)
{
	DAT_EVENT event;
	DAT_COUNT more;

	OK(dat_evd_wait(evd, 20000000, 1, &event, &more));
	if (event.event_number != number) {
		fprintf(stderr, "event %#x\n", (unsigned)event.event_number);
		exit(1);
	}
	return event;
}

/* A connection inside the process, and a message. */
static void connection(void)
{
	static char buffer[256];
	DAT_EVD_HANDLE cr_evd = new_evd(DAT_EVD_CR_FLAG);
	DAT_EVD_HANDLE conn_evd = new_evd(DAT_EVD_CONNECTION_FLAG);
	DAT_EVD_HANDLE peer_conn_evd = new_evd(DAT_EVD_CONNECTION_FLAG);
	DAT_EVD_HANDLE dto_evd = new_evd(DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG);
	DAT_EVD_HANDLE recv_evd = new_evd(DAT_EVD_DTO_FLAG);
	DAT_REGION_DESCRIPTION region = { .for_va = buffer };
	struct sockaddr_in address = { .sin_family = AF_INET };
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp;
	DAT_PZ_HANDLE pz;
	DAT_EP_HANDLE ep, peer;
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT lmr_context;
	DAT_RMR_CONTEXT rmr_context;
	DAT_VLEN length;
	DAT_VADDR at;
	DAT_DTO_COOKIE cookie;
	DAT_LMR_TRIPLET iov[2];
	DAT_EP_STATE state;
	DAT_BOOLEAN recv_idle, request_idle;
	DAT_CR_PARAM cr_param;
	DAT_EVD_PARAM evd_param;
	DAT_EVENT event;
	char private_data[] = "ping, by private data";

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	OK(dat_pz_create(ia, &pz));
	OK(dx_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof buffer, pz,
			 DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &lmr,
			 &lmr_context, &rmr_context, &length, &at));
	OK(dat_psp_create_any(ia, &qualifier, cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	OK(dat_ep_create(ia, pz, recv_evd, dto_evd, conn_evd, NULL, &ep));
	OK(dat_ep_create(ia, pz, recv_evd, dto_evd, peer_conn_evd, NULL, &peer));
	OK(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&address, qualifier, 20000000,
			  sizeof private_data, private_data, DAT_QOS_BEST_EFFORT,
			  DAT_CONNECT_DEFAULT_FLAG));
	event = wait_for(cr_evd, DAT_CONNECTION_REQUEST_EVENT);
	tell("cr", event.event_data.cr_arrival_event_data.cr_handle);
	OK(dat_cr_query(event.event_data.cr_arrival_event_data.cr_handle, DAT_CR_FIELD_ALL,
			&cr_param));
	OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, peer, 4, "pong"));
	wait_for(conn_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	wait_for(peer_conn_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	OK(dat_ep_get_status(ep, &state, &recv_idle, &request_idle));
	OK(dat_evd_query(dto_evd, DAT_EVD_FIELD_EVD_QLEN | DAT_EVD_FIELD_EVD_FLAGS, &evd_param));

	iov[0] = dx_local(lmr_context, buffer, 128);
	cookie.as_64 = 0x1234;
	OK(dat_ep_post_recv(peer, 1, iov, cookie, DAT_COMPLETION_DEFAULT_FLAG));
	iov[0] = dx_local(lmr_context, buffer + 128, 16);
	iov[1] = dx_local(lmr_context, buffer + 192, 8);
	cookie.as_64 = 0x5678;
	OK(dat_ep_post_send(ep, 2, iov, cookie,
			    DAT_COMPLETION_SOLICITED_WAIT_FLAG |
				    DAT_COMPLETION_BARRIER_FENCE_FLAG));
	wait_for(recv_evd, DAT_DTO_COMPLETION_EVENT);
	wait_for(dto_evd, DAT_DTO_COMPLETION_EVENT);

	tell("psp", psp);
	tell("pz", pz);
	tell("ep", ep);
	tell("peer", peer);
	tell("lmr", lmr);
	tell("cr_evd", cr_evd);
	tell("conn_evd", conn_evd);
	tell("dto_evd", dto_evd);
	tell("recv_evd", recv_evd);
	tell("buffer", buffer);
	printf("qualifier %" PRIu64 "\n", (uint64_t)qualifier);
	printf("lmr_context 0x%x\n", (unsigned)lmr_context);
	printf("rmr_context 0x%x\n", (unsigned)rmr_context);
	OK(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG));
	wait_for(conn_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
}

/* Calls that fail, with pointers to nowhere, which the library does not follow. */
static void wrong(void)
{
	DAT_DTO_COOKIE cookie = { .as_64 = 7 };
	DAT_EVENT event;

	dat_ep_post_send(DAT_HANDLE_NULL, 3, UNREADABLE, cookie, 0x100);
	dat_evd_dequeue(UNREADABLE, UNREADABLE);
	dat_ep_connect(DAT_HANDLE_NULL, UNREADABLE, 1, DAT_TIMEOUT_INFINITE, 9, UNREADABLE,
		       DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG);
	dat_ep_modify(DAT_HANDLE_NULL, DAT_EP_FIELD_PZ_HANDLE, UNREADABLE);
	memset(&event, 0, sizeof event);
	event.event_number = DAT_SOFTWARE_EVENT;
	event.event_data.software_event_data.pointer = UNREADABLE;
	dat_evd_post_se(DAT_HANDLE_NULL, &event);
#ifdef DAT2
	dat_extension_op(DAT_HANDLE_NULL, DAT_IB_FETCH_AND_ADD_OP, (DAT_UINT64)5,
			 (DAT_LMR_TRIPLET *)UNREADABLE, cookie, (DAT_RMR_TRIPLET *)NULL,
			 DAT_COMPLETION_SUPPRESS_FLAG);
#endif
}

static void polls(void)
{
	DAT_EVD_HANDLE evd = new_evd(DAT_EVD_SOFTWARE_FLAG);
	DAT_EVENT event;

	for (int i = 0; i < 100; i++)
		dat_evd_dequeue(evd, &event);
	memset(&event, 0, sizeof event);
	event.event_number = DAT_SOFTWARE_EVENT;
	OK(dat_evd_post_se(evd, &event));
	OK(dat_evd_dequeue(evd, &event));
	dat_evd_dequeue(evd, &event);
}

static DAT_EVD_HANDLE waited_for;

static void *waits(void *unused)
{
	DAT_EVENT event;
	DAT_COUNT more;

	(void)unused;
	/* To write is a point of cancellation. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	printf("thread %ld\n", (long)gettid());
	fflush(stdout);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	dat_evd_wait(waited_for, DAT_TIMEOUT_INFINITE, 1, &event, &more);
	return NULL;
}

/* A thread that is cancelled while it waits. */
static void cancelled(void)
{
	pthread_t thread;
	void *result;

	waited_for = new_evd(DAT_EVD_SOFTWARE_FLAG);
	if (pthread_create(&thread, NULL, waits, NULL) || pthread_cancel(thread) ||
	    pthread_join(thread, &result) || result != PTHREAD_CANCELED)
		exit(1);
	printf("cancelled\n");
}

/* Two threads that call at the same time, and the end of each. */
static void *creates(void *unused)
{
	(void)unused;
	printf("thread %ld\n", (long)gettid());
	fflush(stdout);
	for (int i = 0; i < 100; i++)
		OK(dat_evd_free(new_evd(DAT_EVD_SOFTWARE_FLAG)));
	return NULL;
}

static void threads(void)
{
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, creates, NULL))
			exit(1);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}

static void open_ia(void)
{
	async_evd = DAT_HANDLE_NULL;
	OK(dat_ia_open("a", 8, &async_evd, &ia));
}

/* A child with an IA of its own. */
static void forks(void)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		dat_evd_free(async_evd);
		open_ia();
		OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
		exit(0);
	}
	printf("child %ld\n", (long)child);
	if (waitpid(child, &status, 0) != child || status != 0)
		exit(1);
}

static void at_the_end(void)
{
	OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	signal(SIGPIPE, SIG_DFL);
	printf("process %ld\n", (long)getpid());
	fflush(stdout);
	open_ia();
	tell("ia", ia);
	if (strcmp(what, "connection") == 0)
		connection();
	else if (strcmp(what, "wrong") == 0)
		wrong();
	else if (strcmp(what, "polls") == 0)
		polls();
	else if (strcmp(what, "cancelled") == 0)
		cancelled();
	else if (strcmp(what, "threads") == 0)
		threads();
	else if (strcmp(what, "forks") == 0)
		forks();
	else if (strcmp(what, "nothing") != 0)
		return 2;
	atexit(at_the_end);
	return 0;
}
