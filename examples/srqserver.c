/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A server for many clients with one shared receive queue (SRQ): the buffers for messages are posted to the
 * queue and not to each connection, so that their number follows the load and not the number of clients.
 * The server sends each message back in capital letters.
 *
 * Build:  cc -Wall -Wextra -o srqserver srqserver.c $(pkg-config --cflags --libs dat2)
 * Server: ./srqserver [-i IA] -q 4711 -c CLIENTS      ends after that many clients
 * Client: ./srqserver [-i IA] -q 4711 -n MESSAGES HOST
 *
 * -q is the connection qualifier, which both ends agree on; with builtin:soft it is a TCP port.
 */
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dat2/udat.h>

#define SECOND 1000000u /* time-outs are in microseconds */
#define PATIENCE (30 * SECOND) /* how long the server waits for something to happen */
#define TIMEOUT (5 * SECOND) /* how long a client waits for the server */
#define BUFFERS 64 /* of the SRQ, for all clients together */
#define MAX_CLIENTS 1024
#define BYTES 128 /* of a message */

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE evd; /* of the client: connections and messages */
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT key;
static char buffers[BUFFERS][BYTES];
static DAT_SRQ_HANDLE srq;

static void die(const char *what, const char *why)
{
	fflush(stdout);
	fprintf(stderr, "srqserver: %s: %s\n", what, why);
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

static DAT_EVENT next(DAT_EVD_HANDLE from, DAT_TIMEOUT timeout, const char *what)
{
	DAT_EVENT event;
	DAT_COUNT more;

	check(dat_evd_wait(from, timeout, 1, &event, &more), what);
	return event;
}

static DAT_LMR_TRIPLET segment(uint64_t buffer, size_t length)
{
	DAT_LMR_TRIPLET triplet = { .virtual_address = (uintptr_t)buffers[buffer],
				    .segment_length = (DAT_SEG_LENGTH)length,
				    .lmr_context = key };
	return triplet;
}

static void post_send(DAT_EP_HANDLE ep, uint64_t buffer, size_t length)
{
	DAT_LMR_TRIPLET triplet = segment(buffer, length);
	DAT_DTO_COOKIE cookie = { .as_64 = buffer };

	check(dat_ep_post_send(ep, 1, &triplet, cookie, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_send");
}

/* --- the server ----------------------------------------------------------------------------- */

static void post_to_srq(uint64_t buffer)
{
	DAT_LMR_TRIPLET triplet = segment(buffer, BYTES);
	DAT_DTO_COOKIE cookie = { .as_64 = buffer };

	check(dat_srq_post_recv(srq, 1, &triplet, cookie), "dat_srq_post_recv");
}

/* A message has arrived, or an answer was sent. The event says which connection that was, and the cookie
 * which buffer. */
static void completed(const DAT_DTO_COMPLETION_EVENT_DATA *dto, uint64_t *messages)
{
	uint64_t buffer = dto->user_cookie.as_64;

	/* The connection of this buffer has ended; others go on. The buffer is free for them. */
	if (dto->status != DAT_DTO_SUCCESS) {
		post_to_srq(buffer);
		return;
	}
	if (dto->operation == DAT_DTO_SEND) {
		post_to_srq(buffer);
		return;
	}
	for (size_t i = 0; i < dto->transfered_length; i++)
		buffers[buffer][i] = (char)toupper((unsigned char)buffers[buffer][i]);
	post_send(dto->ep_handle, buffer, dto->transfered_length);
	++*messages;
}

static void serve(DAT_CONN_QUAL qualifier, uint32_t clients)
{
	static DAT_EP_HANDLE eps[MAX_CLIENTS];
	DAT_SRQ_ATTR attr = { .max_recv_dtos = BUFFERS,
			      .max_recv_iov = 1,
			      .low_watermark = DAT_SRQ_LW_DEFAULT };
	/* With an SRQ the attributes may not be NULL. */
	DAT_EP_ATTR ep_attr = { .service_type = DAT_SERVICE_TYPE_RC,
				.max_message_size = BYTES,
				.qos = DAT_QOS_BEST_EFFORT,
				.max_recv_dtos = DAT_HW_DEFAULT,
				.max_request_dtos = BUFFERS,
				.max_recv_iov = 1,
				.max_request_iov = 1,
				.srq_soft_hw = DAT_HW_DEFAULT };
	DAT_EVD_HANDLE all;
	DAT_PSP_HANDLE psp;
	uint32_t accepted = 0, ended = 0;
	uint64_t messages = 0;

	check(dat_srq_create(ia, pz, &attr, &srq), "dat_srq_create");
	for (uint64_t i = 0; i < BUFFERS; i++)
		post_to_srq(i);
	/* One EVD for everything. Each buffer has one completion at a time; a client has three events. */
	check(dat_evd_create(ia, BUFFERS + (DAT_COUNT)clients * 3, DAT_HANDLE_NULL,
			     DAT_EVD_DTO_FLAG | DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG, &all),
	      "dat_evd_create");
	check(dat_psp_create(ia, qualifier, all, DAT_PSP_CONSUMER_FLAG, &psp), "dat_psp_create");
	printf("waiting for %u clients\n", (unsigned)clients);
	fflush(stdout);
	while (ended < clients) {
		DAT_EVENT event = next(all, PATIENCE, "waiting for clients");
		DAT_CR_HANDLE cr = event.event_data.cr_arrival_event_data.cr_handle;

		switch ((int)event.event_number) {
		case DAT_CONNECTION_REQUEST_EVENT:
			if (accepted == clients) {
				check(dat_cr_reject(cr, 0, NULL), "dat_cr_reject");
				break;
			}
			check(dat_ep_create_with_srq(ia, pz, all, all, all, srq, &ep_attr,
						     &eps[accepted]),
			      "dat_ep_create_with_srq");
			check(dat_cr_accept(cr, eps[accepted], 0, NULL), "dat_cr_accept");
			accepted++;
			printf("client %u\n", (unsigned)accepted);
			fflush(stdout);
			break;
		case DAT_CONNECTION_EVENT_ESTABLISHED:
			break;
		case DAT_CONNECTION_EVENT_DISCONNECTED:
		case DAT_CONNECTION_EVENT_BROKEN:
		case DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR:
			ended++;
			break;
		case DAT_DTO_COMPLETION_EVENT:
			completed(&event.event_data.dto_completion_event_data, &messages);
			break;
		default:
			die("waiting for clients", "unexpected event");
		}
	}
	printf("%llu messages of %u clients\n", (unsigned long long)messages, (unsigned)clients);
	for (uint32_t i = 0; i < accepted; i++)
		check(dat_ep_free(eps[i]), "dat_ep_free");
	check(dat_psp_free(psp), "dat_psp_free");
	check(dat_evd_free(all), "dat_evd_free");
	check(dat_srq_free(srq), "dat_srq_free");
}

/* --- the client ----------------------------------------------------------------------------- */

static void client(DAT_CONN_QUAL qualifier, const char *host, uint32_t messages)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *address;
	DAT_EP_HANDLE ep;
	DAT_EVENT event;
	int error = getaddrinfo(host, NULL, &hints, &address);

	if (error != 0)
		die(host, gai_strerror(error));
	check(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG,
			     &evd),
	      "dat_evd_create");
	check(dat_ep_create(ia, pz, evd, evd, evd, NULL, &ep), "dat_ep_create");
	check(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)address->ai_addr, qualifier, TIMEOUT, 0, NULL,
			     DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
	      "dat_ep_connect");
	freeaddrinfo(address);
	event = next(evd, TIMEOUT, host);
	if (event.event_number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED)
		die(host, "no server listens there");
	if (event.event_number == DAT_CONNECTION_EVENT_PEER_REJECTED)
		die(host, "the server has as many clients as it takes");
	if (event.event_number != DAT_CONNECTION_EVENT_ESTABLISHED)
		die(host, "no connection");
	for (uint32_t i = 0; i < messages; i++) {
		DAT_LMR_TRIPLET answer = segment(1, BYTES);
		DAT_DTO_COOKIE cookie = { .as_64 = 1 };
		char want[BYTES];

		snprintf(buffers[0], BYTES, "message %u of process %d", (unsigned)i, (int)getpid());
		for (size_t c = 0; c < BYTES; c++)
			want[c] = (char)toupper((unsigned char)buffers[0][c]);
		check(dat_ep_post_recv(ep, 1, &answer, cookie, DAT_COMPLETION_DEFAULT_FLAG),
		      "dat_ep_post_recv");
		post_send(ep, 0, BYTES);
		/* The completions of the send and of the answer. */
		for (int completions = 0; completions < 2; completions++) {
			event = next(evd, TIMEOUT, "answer");
			if (event.event_number != DAT_DTO_COMPLETION_EVENT ||
			    event.event_data.dto_completion_event_data.status != DAT_DTO_SUCCESS)
				die("answer", "the server is gone");
		}
		if (memcmp(buffers[1], want, BYTES) != 0)
			die("answer", "not the message in capital letters");
	}
	printf("%u answers\n", (unsigned)messages);
	check(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG), "dat_ep_disconnect");
	next(evd, TIMEOUT, "end of the connection");
	check(dat_ep_free(ep), "dat_ep_free");
	check(dat_evd_free(evd), "dat_evd_free");
}

static uint32_t number(const char *text, uint32_t max, const char *what)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno != 0 || end == text || *end != 0 || value == 0 || value > max)
		die(what, "not a number that is allowed here");
	return (uint32_t)value;
}

int main(int argc, char **argv)
{
	char soft[] = "soft", *name = soft;
	DAT_REGION_DESCRIPTION region = { .for_va = buffers };
	DAT_CONN_QUAL qualifier = 0;
	DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
	uint32_t clients = 0, messages = 100;
	int option;

	while ((option = getopt(argc, argv, "i:q:c:n:")) != -1) {
		switch (option) {
		case 'i':
			name = optarg;
			break;
		case 'q':
			qualifier = number(optarg, 65535, "-q");
			break;
		case 'c':
			clients = number(optarg, MAX_CLIENTS, "-c");
			break;
		case 'n':
			messages = number(optarg, 100000000, "-n");
			break;
		default:
			qualifier = 0;
			optind = argc;
			break;
		}
	}
	if (qualifier == 0 || (clients > 0) != (optind == argc) || argc - optind > 1) {
		fprintf(stderr, "usage: srqserver [-i IA] -q QUALIFIER -c CLIENTS\n"
				"       srqserver [-i IA] -q QUALIFIER [-n MESSAGES] HOST\n");
		return 2;
	}
	check(dat_ia_open(name, 8, &async, &ia), name);
	check(dat_pz_create(ia, &pz), "dat_pz_create");
	check(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof buffers, pz,
			     DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG,
			     DAT_VA_TYPE_VA, &lmr, &key, NULL, NULL, NULL),
	      "dat_lmr_create");
	if (clients > 0)
		serve(qualifier, clients);
	else
		client(qualifier, argv[optind], messages);
	check(dat_lmr_free(lmr), "dat_lmr_free");
	check(dat_pz_free(pz), "dat_pz_free");
	check(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), "dat_ia_close");
	return 0;
}
