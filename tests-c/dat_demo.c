/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A server and a client that measure the three ways DAT moves data: send/receive, RDMA write
 * and RDMA read, and check what arrives. An ordinary uDAPL 1.2 program: it uses nothing but
 * <dat/udat.h> and is linked with -ldat.
 *
 * The client leads. Before each measurement it sends the server an order (struct order) and
 * gets an answer when the server is ready, and one more when the measurement is over.
 */
#include "demo.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netdb.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the client asks for. */
enum {
	PING_SEND = 1,
	STREAM_SEND,
	PING_WRITE,
	STREAM_WRITE,
	READ,
	BYE,
};

/* --- data --------------------------------------------------------------------------------- */

/* What slot `slot` of the side `salt` holds, big-endian: no two eight-byte words alike. */
static uint64_t word(uint32_t salt, uint32_t slot, size_t index)
{
	uint64_t x = ((uint64_t)salt << 56 | (uint64_t)slot << 48 | index) + 1;

	x *= 0x9e3779b97f4a7c15u;
	return htobe64(x ^ x >> 32);
}

static void fill(char *to, size_t size, uint32_t salt, uint32_t slot)
{
	for (size_t i = 0; i < size / 8; i++) {
		uint64_t w = word(salt, slot, i);
		memcpy(to + 8 * i, &w, 8);
	}
}

/* True if `at` holds the pattern; its last word may be a stamp instead. */
static bool intact(const char *at, size_t size, uint32_t salt, uint32_t slot, bool stamped)
{
	for (size_t i = 0; i + stamped < size / 8; i++) {
		uint64_t w = word(salt, slot, i);
		if (memcmp(at + 8 * i, &w, 8) != 0)
			return false;
	}
	return true;
}

static uint64_t *last_word(char *slot, size_t size)
{
	return (uint64_t *)(void *)(slot + size - 8);
}

enum { CLIENT = 1, SERVER = 2 };

/* --- orders ------------------------------------------------------------------------------- */

static void tell(const struct order *order)
{
	mem->order.what = htonl(order->what);
	mem->order.size = htonl(order->size);
	mem->order.count = htonl(order->count);
	mem->order.failed = htonl(order->failed);
	post_send(&mem->order, sizeof mem->order);
	completion(request_evd, "send of an order", NULL);
}

static struct order told(void)
{
	struct order order;
	uint32_t length;
	uint64_t slot = completion(recv_evd, "receive of an order", &length);

	if (length != sizeof order)
		die("a message of %u bytes where an order was due", (unsigned)length);
	memcpy(&order, mem->inbox[slot], sizeof order);
	post_recv(slot);
	order.what = ntohl(order.what);
	order.size = ntohl(order.size);
	order.count = ntohl(order.count);
	order.failed = ntohl(order.failed);
	return order;
}

/* --- measurements: one function for both sides, they are nearly alike ---------------------- */

/* Messages to and fro, one at a time. Returns the number of bad ones. */
static uint32_t ping_send(const struct order *o, bool client, double *took)
{
	uint32_t bad = 0, length;
	double start = now();

	for (uint64_t i = 1; i <= o->count; i++) {
		uint64_t slot;

		if (client) {
			*last_word(mem->source[0], o->size) = htobe64(i);
			post_send(mem->source[0], o->size);
		}
		slot = completion(recv_evd, "receive", &length);
		bad += length != o->size || *last_word(mem->inbox[slot], o->size) != htobe64(i);
		if (i == o->count)
			bad += !intact(mem->inbox[slot], o->size, client ? SERVER : CLIENT, 0,
				       true);
		post_recv(slot);
		if (!client) {
			*last_word(mem->source[0], o->size) = htobe64(i);
			post_send(mem->source[0], o->size);
		}
		completion(request_evd, "send", NULL);
	}
	*took = now() - start;
	return bad;
}

/* RDMA writes to and fro; their arrival is seen in memory alone. */
static uint32_t ping_write(const struct order *o, bool client, double *took)
{
	_Atomic uint64_t *arrived = (_Atomic uint64_t *)last_word(mem->landing[0], o->size);
	double start = now();

	for (uint64_t i = 1; i <= o->count; i++) {
		unsigned spins = 0;

		if (client) {
			*last_word(mem->source[0], o->size) = htobe64(i);
			post_write(mem->source[0], o->size, peer.landing);
		}
		while (*arrived != htobe64(i))
			if (blocking || ++spins % 10000 == 0) {
				DAT_EVENT event;

				if (dat_evd_dequeue(connect_evd, &event) == DAT_SUCCESS)
					die("connection %s", event_name(event.event_number));
				sched_yield();
			}
		if (!client) {
			*last_word(mem->source[0], o->size) = htobe64(i);
			post_write(mem->source[0], o->size, peer.landing);
		}
		completion(request_evd, "RDMA write", NULL);
	}
	*took = now() - start;
	return !intact(mem->landing[0], o->size, client ? SERVER : CLIENT, 0, true);
}

static uint32_t check_landing(const struct order *o, uint32_t salt)
{
	uint32_t bad = 0;

	for (uint32_t slot = 0; slot < WINDOW && slot < o->count; slot++)
		bad += !intact(mem->landing[slot], o->size, salt, slot, false);
	return bad;
}

/* The client posts `count` operations, never more than `window` of them at a time. */
static void stream(const struct order *o, uint32_t window)
{
	uint32_t posted = 0, done = 0;

	while (done < o->count) {
		while (posted < o->count && posted - done < window) {
			uint32_t slot = posted % WINDOW;
			uint64_t offset = (uint64_t)slot * MAX_SIZE;

			if (o->what == STREAM_SEND)
				post_send(mem->source[slot], o->size);
			else if (o->what == STREAM_WRITE)
				post_write(mem->source[slot], o->size, peer.landing + offset);
			else
				post_read(mem->landing[slot], o->size, peer.source + offset);
			posted++;
		}
		completion(request_evd, "streamed operation", NULL);
		done++;
	}
}

/* The server's side of STREAM_SEND: a look at both ends of each message, and at all of the
 * last ones. */
static uint32_t absorb(const struct order *o)
{
	uint32_t bad = 0, length;

	for (uint32_t i = 0; i < o->count; i++) {
		uint64_t slot = completion(recv_evd, "receive", &length);
		uint64_t want = word(CLIENT, i % WINDOW, o->size / 8 - 1);

		bad += length != o->size || *last_word(mem->inbox[slot], o->size) != want ||
		       !intact(mem->inbox[slot], i + WINDOW < o->count ? 8 : o->size, CLIENT,
			       i % WINDOW, false);
		post_recv(slot);
	}
	return bad;
}

/* Source slots filled, landing slots empty: both sides, before each order. */
static void prepare(const struct order *o, bool client)
{
	for (uint32_t slot = 0; slot < WINDOW && slot < o->count; slot++) {
		fill(mem->source[slot], o->size, client ? CLIENT : SERVER, slot);
		memset(mem->landing[slot], 0, o->size);
	}
}

/* Carries one order out with the server; returns microseconds, dies on bad data. */
static double measure(uint32_t what, uint32_t size, uint32_t count, uint32_t window)
{
	struct order o = { .what = what, .size = size, .count = count, .failed = 0 };
	struct order answer;
	uint32_t bad = 0;
	double took, start;

	prepare(&o, true);
	tell(&o);
	told();
	start = now();
	switch (what) {
	case PING_SEND:
		bad = ping_send(&o, true, &took);
		break;
	case PING_WRITE:
		bad = ping_write(&o, true, &took);
		break;
	default:
		stream(&o, window);
		took = now() - start;
		if (what == READ)
			bad = check_landing(&o, SERVER);
	}
	tell(&o);
	answer = told();
	if (bad || answer.failed)
		die("wrong data: %u at the client, %u at the server (operation %u, %u bytes)", bad,
		    answer.failed, what, size);
	return took;
}

static void serve(void)
{
	for (;;) {
		struct order o = told();
		double unused;

		o.failed = 0;
		if (o.what == BYE)
			return;
		if (o.what > BYE || o.size < 8 || o.size > MAX_SIZE || o.size % 8)
			die("an order that makes no sense: %u, %u bytes", o.what, o.size);
		prepare(&o, false);
		tell(&o);
		if (o.what == PING_SEND)
			o.failed = ping_send(&o, false, &unused);
		else if (o.what == PING_WRITE)
			o.failed = ping_write(&o, false, &unused);
		else if (o.what == STREAM_SEND)
			o.failed = absorb(&o);
		/* The client's word that it is done comes behind its writes. */
		told();
		if (o.what == STREAM_WRITE)
			o.failed += check_landing(&o, CLIENT);
		tell(&o);
	}
}

/* --- server ------------------------------------------------------------------------------- */

static int run_server(char *ia_name, DAT_CONN_QUAL qualifier)
{
	struct window w;
	DAT_PSP_HANDLE psp;
	DAT_CR_HANDLE cr;
	DAT_CR_PARAM param;
	DAT_EVENT event;
	DAT_COUNT more;

	set_up(ia_name);
	w = our_window();
	if (qualifier != 0)
		check(dat_psp_create(ia, qualifier, request_in_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		      "dat_psp_create");
	else
		check(dat_psp_create_any(ia, &qualifier, request_in_evd, DAT_PSP_CONSUMER_FLAG,
					 &psp),
		      "dat_psp_create_any");
	printf("server: IA %s, qualifier %" PRIu64 "\n", ia_name, (uint64_t)qualifier);
	fflush(stdout);

	check(dat_evd_wait(request_in_evd, DAT_TIMEOUT_INFINITE, 1, &event, &more), "dat_evd_wait");
	cr = event.event_data.cr_arrival_event_data.cr_handle;
	check(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param), "dat_cr_query");
	learn_window(param.private_data, param.private_data_size);
	check(dat_cr_accept(cr, ep, sizeof w, &w), "dat_cr_accept");
	await_connection(&event);
	check(dat_psp_free(psp), "dat_psp_free");

	serve();
	tear_down();
	puts("server: done");
	return 0;
}

/* --- client ------------------------------------------------------------------------------- */

static const char *size_text(uint32_t size)
{
	static char text[16];

	if (size >= 1 << 20)
		snprintf(text, sizeof text, "%u MiB", size >> 20);
	else if (size >= 1 << 10)
		snprintf(text, sizeof text, "%u KiB", size >> 10);
	else
		snprintf(text, sizeof text, "%u B", size);
	return text;
}

static void table(bool quick)
{
	static const uint32_t sizes[] = { 8, 64, 512, 4 << 10, 32 << 10, 256 << 10, MAX_SIZE };
	static const struct {
		const char *name;
		uint32_t ping, stream;
	} rows[] = {
		{ "send/receive", PING_SEND, STREAM_SEND },
		{ "RDMA write", PING_WRITE, STREAM_WRITE },
		{ "RDMA read", READ, READ },
	};
	uint32_t less = quick ? 10 : 1;

	printf("%-14s %8s %14s %18s   %s\n", "operation", "size", "latency [us]",
	       "bandwidth [MB/s]", "data");
	for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
		for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
			uint32_t size = sizes[i];
			uint32_t most = size <= 4096 ? 2000 : size <= 65536 ? 500 : 100;
			uint32_t pings = most / less;
			uint32_t streamed = (size <= 65536 ? 4000 : (256 << 20) / size) / less;
			double latency, took;

			measure(rows[row].ping, size, pings / 10 + 1, 1); /* warm up */
			latency = measure(rows[row].ping, size, pings, 1) / pings;
			/* Half a round trip; a read is one already. */
			if (rows[row].ping != READ)
				latency /= 2;
			took = measure(rows[row].stream, size, streamed, WINDOW);
			printf("%-14s %8s %14.2f %18.1f   ok\n", rows[row].name, size_text(size),
			       latency, (double)size * streamed / took);
			fflush(stdout);
		}
	}
}

static int run_client(char *ia_name, DAT_CONN_QUAL qualifier, const char *host, bool quick)
{
	struct order bye = { .what = BYE, .size = 0, .count = 0, .failed = 0 };
	struct addrinfo *address, hints = { 0 };
	struct window w;
	DAT_EVENT event;
	int error;

	hints.ai_socktype = SOCK_STREAM;
	error = getaddrinfo(host, NULL, &hints, &address);
	if (error != 0)
		die("%s: %s", host, gai_strerror(error));

	set_up(ia_name);
	w = our_window();
	check(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)address->ai_addr, qualifier, 10 * SECONDS,
			     sizeof w, &w, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
	      "dat_ep_connect");
	await_connection(&event);
	learn_window(event.event_data.connect_event_data.private_data,
		     event.event_data.connect_event_data.private_data_size);
	freeaddrinfo(address);

	printf("client: IA %s, connected to %s qualifier %" PRIu64 "; completions are %s for\n\n",
	       ia_name, host, (uint64_t)qualifier, blocking ? "waited" : "polled");
	table(quick);
	tell(&bye);
	tear_down();
	puts("\nclient: all data arrived intact");
	return 0;
}

static void usage(FILE *to)
{
	fputs("usage: dat_demo server [-i IA] [-q QUALIFIER] [-w]\n"
	      "       dat_demo client [-i IA] -q QUALIFIER [-w] [--quick] HOST\n"
	      "\n"
	      "Measures send/receive, RDMA write and RDMA read between two processes and checks\n"
	      "all data. The server serves one client.\n"
	      "\n"
	      "  -i IA          interface adapter (default: soft; dat-info lists them)\n"
	      "  -q QUALIFIER   connection qualifier (server: default any free one)\n"
	      "  -w             wait for completions instead of polling; default on one CPU\n"
	      "  --quick        a tenth of the operations\n"
	      "  --help         this text\n",
	      to);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "quick", no_argument, NULL, 'Q' },
		{ "help", no_argument, NULL, 'H' },
		{ NULL, 0, NULL, 0 },
	};
	static char soft[] = "soft";
	char *ia_name = soft, *end;
	unsigned long long qualifier = 0;
	bool quick = false;
	int option;

	blocking = sysconf(_SC_NPROCESSORS_ONLN) < 2;
	while ((option = getopt_long(argc, argv, "i:q:w", longs, NULL)) != -1) {
		switch (option) {
		case 'i':
			ia_name = optarg;
			break;
		case 'q':
			errno = 0;
			qualifier = strtoull(optarg, &end, 0);
			if (errno || *end || end == optarg || qualifier == 0)
				die("not a connection qualifier: %s", optarg);
			break;
		case 'w':
			blocking = true;
			break;
		case 'Q':
			quick = true;
			break;
		case 'H':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	}
	if (optind + 1 == argc && strcmp(argv[optind], "server") == 0)
		return run_server(ia_name, qualifier);
	if (optind + 2 == argc && strcmp(argv[optind], "client") == 0 && qualifier != 0)
		return run_client(ia_name, qualifier, argv[optind + 1], quick);
	usage(stderr);
	return 2;
}
