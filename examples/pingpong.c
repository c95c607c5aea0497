/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Ping-pong: the latency of messages between two processes, on one host or two. The client sends, the
 * server sends back what it got, and the client checks it and prints half the time of a round.
 *
 * Build:  cc -Wall -Wextra -o pingpong pingpong.c $(pkg-config --cflags --libs dat2)
 * Server: ./pingpong -q 4711 [-i IA]
 * Client: ./pingpong -q 4711 [-i IA] [-s BYTES] [-n ROUNDS] HOST
 *
 * -q is the connection qualifier, which both ends agree on; with builtin:soft it is a TCP port.
 */
#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <dat2/udat.h>

#define SECOND 1000000u /* time-outs are in microseconds */
#define PATIENCE (30 * SECOND) /* how long the server waits for a client */
#define TIMEOUT (5 * SECOND) /* how long each side waits for the other */
#define MAX_BYTES (16u << 20)
#define WARMUP 100u /* rounds that do not count */

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT key;
static DAT_EP_HANDLE ep;
static DAT_EVD_HANDLE request_evd, recv_evd, connect_evd;
static unsigned char *buffer; /* what is sent, then what arrives */
static uint32_t size = 8, rounds = 10000;

/* What the client asks of the server; travels as private data, in network byte order. */
struct job {
	uint32_t size;
	uint32_t rounds;
};

static void die(const char *what, const char *why)
{
	fflush(stdout);
	fprintf(stderr, "pingpong: %s: %s\n", what, why);
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

/* The next event of an EVD. */
static DAT_EVENT next(DAT_EVD_HANDLE evd, DAT_TIMEOUT timeout, const char *what)
{
	DAT_EVENT event;
	DAT_COUNT more;

	check(dat_evd_wait(evd, timeout, 1, &event, &more), what);
	return event;
}

static void await_connection(DAT_EVENT_NUMBER number, const char *what)
{
	switch ((int)next(connect_evd, TIMEOUT, what).event_number) {
	case DAT_CONNECTION_EVENT_ESTABLISHED:
		if (number == DAT_CONNECTION_EVENT_ESTABLISHED)
			return;
		break;
	case DAT_CONNECTION_EVENT_DISCONNECTED:
		if (number == DAT_CONNECTION_EVENT_DISCONNECTED)
			return;
		die(what, "the peer has disconnected");
		break;
	case DAT_CONNECTION_EVENT_NON_PEER_REJECTED:
		die(what, "no server listens there");
		break;
	case DAT_CONNECTION_EVENT_PEER_REJECTED:
		die(what, "the server has rejected the connection");
		break;
	case DAT_CONNECTION_EVENT_UNREACHABLE:
		die(what, "the host cannot be reached");
		break;
	case DAT_CONNECTION_EVENT_TIMED_OUT:
		die(what, "no answer in time");
		break;
	case DAT_CONNECTION_EVENT_BROKEN:
		die(what, "the connection is broken");
		break;
	}
	die(what, "unexpected event");
}

static void await_completion(DAT_EVD_HANDLE evd, const char *what)
{
	DAT_EVENT event = next(evd, TIMEOUT, what);
	DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;

	if (event.event_number != DAT_DTO_COMPLETION_EVENT)
		die(what, "unexpected event");
	/* What is left of a connection that has ended is flushed. */
	if (dto->status == DAT_DTO_ERR_FLUSHED)
		die(what, "the peer is gone");
	if (dto->status != DAT_DTO_SUCCESS)
		die(what, "failed");
	if (evd == recv_evd && dto->transfered_length != size)
		die(what, "of another length");
}

static DAT_LMR_TRIPLET segment(unsigned char *at)
{
	DAT_LMR_TRIPLET triplet = { .virtual_address = (uintptr_t)at,
				    .segment_length = size,
				    .lmr_context = key };
	return triplet;
}

static void post_recv(void)
{
	DAT_LMR_TRIPLET triplet = segment(buffer + size);
	DAT_DTO_COOKIE cookie = { .as_64 = 0 };

	check(dat_ep_post_recv(ep, 1, &triplet, cookie, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_recv");
}

static void post_send(void)
{
	DAT_LMR_TRIPLET triplet = segment(buffer);
	DAT_DTO_COOKIE cookie = { .as_64 = 0 };

	check(dat_ep_post_send(ep, 1, &triplet, cookie, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_send");
}

/* The buffer for `size`, registered, and the endpoint with the first receive. */
static void make_endpoint(void)
{
	DAT_REGION_DESCRIPTION region;

	buffer = calloc(2, size);
	if (buffer == NULL)
		die("buffer", strerror(errno));
	region.for_va = buffer;
	check(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 2 * (DAT_VLEN)size, pz,
			     DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG,
			     DAT_VA_TYPE_VA, &lmr, &key, NULL, NULL, NULL),
	      "dat_lmr_create");
	check(dat_ep_create(ia, pz, recv_evd, request_evd, connect_evd, NULL, &ep),
	      "dat_ep_create");
	post_recv();
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void measure(void)
{
	double *took = calloc(rounds, sizeof *took);

	if (took == NULL)
		die("times", strerror(errno));
	for (uint32_t round = 0; round < WARMUP + rounds; round++) {
		double start;

		memset(buffer, (int)(round & 0xff), size);
		start = now();
		post_send();
		await_completion(recv_evd, "answer");
		if (round >= WARMUP)
			took[round - WARMUP] = (now() - start) / 2;
		await_completion(request_evd, "send");
		if (memcmp(buffer, buffer + size, size) != 0)
			die("answer", "other bytes than were sent");
		if (round + 1 < WARMUP + rounds)
			post_recv();
	}
	qsort(took, rounds, sizeof *took, compare);
	printf("%u bytes, %u rounds: %.2f us least, %.2f us median, %.2f us at 99 %%\n",
	       (unsigned)size, (unsigned)rounds, took[0], took[rounds / 2],
	       took[(uint64_t)rounds * 99 / 100]);
	free(took);
}

static void client(const char *host, DAT_CONN_QUAL qualifier)
{
	struct job job = { .size = htonl(size), .rounds = htonl(rounds) };
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *address;
	int error = getaddrinfo(host, NULL, &hints, &address);

	if (error != 0)
		die(host, gai_strerror(error));
	make_endpoint();
	check(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)address->ai_addr, qualifier, TIMEOUT,
			     sizeof job, &job, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
	      "dat_ep_connect");
	freeaddrinfo(address);
	await_connection(DAT_CONNECTION_EVENT_ESTABLISHED, host);
	measure();
	check(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG), "dat_ep_disconnect");
	await_connection(DAT_CONNECTION_EVENT_DISCONNECTED, "end of the connection");
}

static void server(DAT_CONN_QUAL qualifier)
{
	DAT_EVD_HANDLE cr_evd;
	DAT_PSP_HANDLE psp;
	DAT_CR_HANDLE cr;
	DAT_CR_PARAM param;
	struct job job;

	check(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &cr_evd), "dat_evd_create");
	check(dat_psp_create(ia, qualifier, cr_evd, DAT_PSP_CONSUMER_FLAG, &psp), "dat_psp_create");
	printf("waiting for a client\n");
	fflush(stdout);
	cr = next(cr_evd, PATIENCE, "waiting for a client")
		     .event_data.cr_arrival_event_data.cr_handle;
	check(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param), "dat_cr_query");
	/* Some transports pad private data. */
	if (param.private_data_size < (DAT_COUNT)sizeof job)
		die("client", "it is none of this program");
	memcpy(&job, param.private_data, sizeof job);
	size = ntohl(job.size);
	rounds = ntohl(job.rounds);
	if (size == 0 || size > MAX_BYTES) {
		check(dat_cr_reject(cr, 0, NULL), "dat_cr_reject");
		die("client", "it asks for messages of another size than 1 to 16777216");
	}
	make_endpoint();
	check(dat_cr_accept(cr, ep, 0, NULL), "dat_cr_accept");
	await_connection(DAT_CONNECTION_EVENT_ESTABLISHED, "client");
	printf("%u bytes, %u rounds\n", (unsigned)size, (unsigned)rounds);
	fflush(stdout);
	for (uint64_t round = 0; round < (uint64_t)WARMUP + rounds; round++) {
		await_completion(recv_evd, "message");
		/* The buffer is free again when the answer before has been sent. */
		if (round > 0)
			await_completion(request_evd, "send");
		memcpy(buffer, buffer + size, size);
		/* The next message may come as soon as this one is answered. */
		if (round + 1 < (uint64_t)WARMUP + rounds)
			post_recv();
		post_send();
	}
	await_completion(request_evd, "send");
	await_connection(DAT_CONNECTION_EVENT_DISCONNECTED, "end of the connection");
	check(dat_psp_free(psp), "dat_psp_free");
	check(dat_evd_free(cr_evd), "dat_evd_free");
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
	DAT_CONN_QUAL qualifier = 0;
	DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
	int option;

	while ((option = getopt(argc, argv, "i:q:s:n:")) != -1) {
		switch (option) {
		case 'i':
			name = optarg;
			break;
		case 'q':
			qualifier = number(optarg, 65535, "-q");
			break;
		case 's':
			size = number(optarg, MAX_BYTES, "-s");
			break;
		case 'n':
			rounds = number(optarg, 100000000, "-n");
			break;
		default:
			qualifier = 0;
			optind = argc;
			break;
		}
	}
	if (qualifier == 0 || argc - optind > 1) {
		fprintf(stderr,
			"usage: pingpong -q QUALIFIER [-i IA]                            server\n"
			"       pingpong -q QUALIFIER [-i IA] [-s BYTES] [-n ROUNDS] HOST client\n");
		return 2;
	}
	check(dat_ia_open(name, 8, &async, &ia), name);
	check(dat_pz_create(ia, &pz), "dat_pz_create");
	check(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &recv_evd), "EVD");
	check(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &request_evd), "EVD");
	check(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connect_evd), "EVD");
	if (optind < argc)
		client(argv[optind], qualifier);
	else
		server(qualifier);
	check(dat_ep_free(ep), "dat_ep_free");
	check(dat_lmr_free(lmr), "dat_lmr_free");
	free(buffer);
	check(dat_evd_free(recv_evd), "dat_evd_free");
	check(dat_evd_free(request_evd), "dat_evd_free");
	check(dat_evd_free(connect_evd), "dat_evd_free");
	check(dat_pz_free(pz), "dat_pz_free");
	check(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), "dat_ia_close");
	return 0;
}
