/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The smallest whole program for DAT 2.0: a server and a client in one program, which connect and send
 * one message. hello1.c is the same for DAT 1.2, hello.cpp in C++.
 *
 * Build: cc -Wall -Wextra -o hello2 hello2.c $(pkg-config --cflags --libs dat2)
 * Run:   ./hello2 [IA]          the interface adapter is "soft" by default; dat-info lists them
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dat2/udat.h>

#define TIMEOUT (10 * 1000 * 1000) /* of every wait, in microseconds */

/* Ends the program with the words for a code. */
static void check(DAT_RETURN ret, const char *what)
{
	const char *major = "?", *minor = "";

	if (ret == DAT_SUCCESS)
		return;
	dat_strerror(ret, &major, &minor);
	fprintf(stderr, "hello2: %s: %s %s\n", what, major, minor);
	exit(1);
}

/* The next event of an EVD, which has to be this one. */
static DAT_EVENT wait_for(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number, const char *what)
{
	DAT_EVENT event;
	DAT_COUNT more;

	check(dat_evd_wait(evd, TIMEOUT, 1, &event, &more), what);
	if (event.event_number != number) {
		fprintf(stderr, "hello2: %s: event 0x%x\n", what, (unsigned)event.event_number);
		exit(1);
	}
	return event;
}

/* The completion of a request or receive: its number of bytes. */
static size_t completion(DAT_EVD_HANDLE evd, const char *what)
{
	DAT_EVENT event = wait_for(evd, DAT_DTO_COMPLETION_EVENT, what);

	if (event.event_data.dto_completion_event_data.status != DAT_DTO_SUCCESS) {
		fprintf(stderr, "hello2: %s: status %d\n", what,
			(int)event.event_data.dto_completion_event_data.status);
		exit(1);
	}
	return event.event_data.dto_completion_event_data.transfered_length;
}

int main(int argc, char **argv)
{
	static char buffer[2][64] = { "hello from the client" }; /* the client's, the server's */
	char soft[] = "soft", *name = argc > 1 ? argv[1] : soft;
	DAT_IA_HANDLE ia;
	DAT_IA_ATTR attr;
	DAT_EVD_HANDLE async = DAT_HANDLE_NULL, requests, data[2], connection[2];
	DAT_PZ_HANDLE pz;
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT key;
	DAT_REGION_DESCRIPTION region = { .for_va = buffer };
	DAT_EP_HANDLE ep[2]; /* the client's, the server's */
	DAT_PSP_HANDLE psp;
	DAT_CONN_QUAL qualifier;
	DAT_CR_HANDLE cr;
	DAT_DTO_COOKIE cookie = { .as_64 = 0 };
	DAT_LMR_TRIPLET segment[2];

	/* An open interface adapter, a protection zone, registered memory. */
	check(dat_ia_open(name, 8, &async, &ia), name);
	check(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attr, 0, NULL), "dat_ia_query");
	check(dat_pz_create(ia, &pz), "dat_pz_create");
	check(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof buffer, pz,
			     DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG,
			     DAT_VA_TYPE_VA, &lmr, &key, NULL, NULL, NULL),
	      "dat_lmr_create");

	/* An endpoint for each side, with queues for its events. */
	for (int i = 0; i < 2; i++) {
		check(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &data[i]), "EVD");
		check(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG,
				     &connection[i]),
		      "EVD");
		check(dat_ep_create(ia, pz, data[i], data[i], connection[i], NULL, &ep[i]), "EP");
		segment[i].lmr_context = key;
		segment[i].virtual_address = (uintptr_t)buffer[i];
		segment[i].segment_length = sizeof buffer[i];
	}

	/* The server listens, and has a receive for the message; the client connects. */
	check(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &requests), "EVD");
	check(dat_psp_create_any(ia, &qualifier, requests, DAT_PSP_CONSUMER_FLAG, &psp), "PSP");
	check(dat_ep_post_recv(ep[1], 1, &segment[1], cookie, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_recv");
	check(dat_ep_connect(ep[0], attr.ia_address_ptr, qualifier, TIMEOUT, 0, NULL,
			     DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
	      "dat_ep_connect");
	cr = wait_for(requests, DAT_CONNECTION_REQUEST_EVENT, "connection request")
		     .event_data.cr_arrival_event_data.cr_handle;
	check(dat_cr_accept(cr, ep[1], 0, NULL), "dat_cr_accept");
	wait_for(connection[0], DAT_CONNECTION_EVENT_ESTABLISHED, "connection of the client");
	wait_for(connection[1], DAT_CONNECTION_EVENT_ESTABLISHED, "connection of the server");

	/* One message. */
	segment[0].segment_length = strlen(buffer[0]) + 1;
	check(dat_ep_post_send(ep[0], 1, &segment[0], cookie, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_send");
	completion(data[0], "send");
	printf("%zu bytes have arrived", completion(data[1], "receive"));
	printf(": %s\n", buffer[1]);

	/* Everything is freed: a closed connection first, last the adapter with its own EVD. */
	check(dat_ep_disconnect(ep[0], DAT_CLOSE_GRACEFUL_FLAG), "dat_ep_disconnect");
	wait_for(connection[0], DAT_CONNECTION_EVENT_DISCONNECTED, "end of the connection");
	wait_for(connection[1], DAT_CONNECTION_EVENT_DISCONNECTED, "end of the connection");
	check(dat_psp_free(psp), "dat_psp_free");
	check(dat_evd_free(requests), "dat_evd_free");
	for (int i = 0; i < 2; i++) {
		check(dat_ep_free(ep[i]), "dat_ep_free");
		check(dat_evd_free(connection[i]), "dat_evd_free");
		check(dat_evd_free(data[i]), "dat_evd_free");
	}
	check(dat_lmr_free(lmr), "dat_lmr_free");
	check(dat_pz_free(pz), "dat_pz_free");
	check(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), "dat_ia_close");
	return 0;
}
