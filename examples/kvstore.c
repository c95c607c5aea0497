/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A key-value store over RDMA read: the server registers a table and gives its address and key to each
 * client that connects, as private data. The clients look keys up by RDMA reads; the server's processor
 * has no part in that. Each slot of the table has a checksum, which the client verifies.
 *
 * Build:  cc -Wall -Wextra -o kvstore kvstore.c $(pkg-config --cflags --libs dat2)
 * Server: ./kvstore [-i IA] -q 4711 -c CLIENTS serve ENTRIES     key-0 to key-N; ends after its clients
 * Client: ./kvstore [-i IA] -q 4711 get HOST KEY...
 *
 * -q is the connection qualifier, which both ends agree on; with builtin:soft it is a TCP port.
 */
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dat2/udat.h>

#define SECOND 1000000u /* time-outs are in microseconds */
#define PATIENCE (30 * SECOND) /* how long the server waits for its clients */
#define TIMEOUT (5 * SECOND) /* how long a client waits for the server */
#define MAX_SLOTS (1u << 20)

/* A slot of the table; numbers are in network byte order. A key is in the slot of its hash, or in one of
 * those behind it, before the first free one. */
struct slot {
	char key[56]; /* "" if the slot is free */
	char value[192];
	uint64_t checksum; /* of key and value */
};

/* Where the table is; private data of the connection, in network byte order. */
struct table {
	uint64_t address;
	uint32_t rmr_context;
	uint32_t slots; /* a power of two */
};

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE dto_evd, connect_evd;

static void die(const char *what, const char *why)
{
	fflush(stdout);
	fprintf(stderr, "kvstore: %s: %s\n", what, why);
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

static DAT_EVENT next(DAT_EVD_HANDLE evd, DAT_TIMEOUT timeout, const char *what)
{
	DAT_EVENT event;
	DAT_COUNT more;

	check(dat_evd_wait(evd, timeout, 1, &event, &more), what);
	return event;
}

static void established(const DAT_EVENT *event, const char *peer)
{
	if (event->event_number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED)
		die(peer, "no server listens there");
	if (event->event_number == DAT_CONNECTION_EVENT_UNREACHABLE)
		die(peer, "the host cannot be reached");
	if (event->event_number != DAT_CONNECTION_EVENT_ESTABLISHED)
		die(peer, "no connection");
}

/* FNV-1a, over both strings with their ends. */
static uint64_t hash(const char *key, const char *value)
{
	uint64_t h = 0xcbf29ce484222325;
	const char *part[2] = { key, value };

	for (int i = 0; i < 2; i++) {
		for (const char *p = part[i];; p++) {
			h = (h ^ (unsigned char)*p) * 0x100000001b3;
			if (*p == 0)
				break;
		}
	}
	return h;
}

/* Registers memory that this side alone, or also its peers, may read. */
static DAT_LMR_HANDLE add_memory(void *at, size_t length, DAT_MEM_PRIV_FLAGS privileges,
				 DAT_LMR_CONTEXT *local, DAT_RMR_CONTEXT *remote)
{
	DAT_REGION_DESCRIPTION region = { .for_va = at };
	DAT_LMR_HANDLE lmr;

	check(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, length, pz, privileges,
			     DAT_VA_TYPE_VA, &lmr, local, remote, NULL, NULL),
	      "dat_lmr_create");
	return lmr;
}

static DAT_EP_HANDLE make_endpoint(void)
{
	DAT_EP_HANDLE ep;

	check(dat_ep_create(ia, pz, dto_evd, dto_evd, connect_evd, NULL, &ep), "dat_ep_create");
	return ep;
}

/* --- the server ----------------------------------------------------------------------------- */

static void put(struct slot *slots, uint32_t count, const char *key, const char *value)
{
	uint32_t at = (uint32_t)hash(key, "") & (count - 1);

	while (slots[at].key[0] != 0)
		at = (at + 1) & (count - 1);
	snprintf(slots[at].key, sizeof slots[at].key, "%s", key);
	snprintf(slots[at].value, sizeof slots[at].value, "%s", value);
	slots[at].checksum = htobe64(hash(slots[at].key, slots[at].value));
}

static void serve(DAT_CONN_QUAL qualifier, uint32_t entries, uint32_t clients)
{
	uint32_t count = 2;
	struct slot *slots;
	struct table table;
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
	DAT_LMR_HANDLE lmr;
	DAT_EVD_HANDLE cr_evd;
	DAT_PSP_HANDLE psp;

	/* Half of the slots stay free, so that most keys are in the slot of their hash. */
	while (count < 2 * entries)
		count *= 2;
	slots = calloc(count, sizeof *slots);
	if (slots == NULL)
		die("table", strerror(errno));
	for (uint32_t i = 0; i < entries; i++) {
		char key[32], value[64];

		snprintf(key, sizeof key, "key-%u", (unsigned)i);
		snprintf(value, sizeof value, "the value of number %u", (unsigned)i);
		put(slots, count, key, value);
	}
	lmr = add_memory(slots, count * sizeof *slots, DAT_MEM_PRIV_REMOTE_READ_FLAG, &local,
			 &remote);
	table.address = htobe64((uintptr_t)slots);
	table.rmr_context = htobe32(remote);
	table.slots = htobe32(count);

	check(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &cr_evd), "dat_evd_create");
	check(dat_psp_create(ia, qualifier, cr_evd, DAT_PSP_CONSUMER_FLAG, &psp), "dat_psp_create");
	printf("%u entries in %u slots\n", (unsigned)entries, (unsigned)count);
	fflush(stdout);
	for (uint32_t served = 0; served < clients; served++) {
		DAT_EVENT event = next(cr_evd, PATIENCE, "waiting for a client");
		DAT_CR_HANDLE cr = event.event_data.cr_arrival_event_data.cr_handle;
		DAT_EP_HANDLE ep = make_endpoint();

		check(dat_cr_accept(cr, ep, sizeof table, &table), "dat_cr_accept");
		event = next(connect_evd, TIMEOUT, "client");
		/* A client may have given up: that is no reason for the server to end. */
		if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED)
			next(connect_evd, PATIENCE, "end of the connection");
		check(dat_ep_free(ep), "dat_ep_free");
	}
	check(dat_psp_free(psp), "dat_psp_free");
	check(dat_evd_free(cr_evd), "dat_evd_free");
	check(dat_lmr_free(lmr), "dat_lmr_free");
	free(slots);
}

/* --- the client ----------------------------------------------------------------------------- */

/* Reads slot number `at` of the table. */
static void read_slot(DAT_EP_HANDLE ep, const struct table *table, uint32_t at, struct slot *slot,
		      DAT_LMR_CONTEXT key)
{
	DAT_LMR_TRIPLET to = { .virtual_address = (uintptr_t)slot,
			       .segment_length = sizeof *slot,
			       .lmr_context = key };
	DAT_RMR_TRIPLET from = { .virtual_address = table->address + at * sizeof *slot,
				 .segment_length = sizeof *slot,
				 .rmr_context = table->rmr_context };
	DAT_DTO_COOKIE cookie = { .as_64 = at };
	DAT_EVENT event;

	check(dat_ep_post_rdma_read(ep, 1, &to, cookie, &from, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_rdma_read");
	event = next(dto_evd, TIMEOUT, "RDMA read");
	switch (event.event_data.dto_completion_event_data.status) {
	case DAT_DTO_SUCCESS:
		return;
	case DAT_DTO_ERR_FLUSHED:
		die("RDMA read", "the server is gone");
		break;
	case DAT_DTO_ERR_REMOTE_ACCESS:
		die("RDMA read", "the server does not allow it");
		break;
	default:
		die("RDMA read", "failed");
	}
}

/* Looks a key up; false if it is not in the table. */
static int get(DAT_EP_HANDLE ep, const struct table *table, struct slot *slot, DAT_LMR_CONTEXT key,
	       const char *wanted)
{
	uint32_t at = (uint32_t)hash(wanted, "") & (table->slots - 1);

	for (uint32_t tries = 0; tries < table->slots; tries++) {
		read_slot(ep, table, at, slot, key);
		if (slot->key[0] == 0)
			return 0;
		slot->key[sizeof slot->key - 1] = 0;
		slot->value[sizeof slot->value - 1] = 0;
		if (be64toh(slot->checksum) != hash(slot->key, slot->value))
			die(wanted, "a slot with a wrong checksum");
		if (strcmp(slot->key, wanted) == 0)
			return 1;
		at = (at + 1) & (table->slots - 1);
	}
	return 0;
}

static int client(DAT_CONN_QUAL qualifier, const char *host, char **keys)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *address;
	struct table table;
	static struct slot slot;
	DAT_LMR_CONTEXT key;
	DAT_LMR_HANDLE lmr;
	DAT_EP_HANDLE ep = make_endpoint();
	DAT_EVENT event;
	int missing = 0, error = getaddrinfo(host, NULL, &hints, &address);

	if (error != 0)
		die(host, gai_strerror(error));
	lmr = add_memory(&slot, sizeof slot,
			 DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &key, NULL);
	check(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)address->ai_addr, qualifier, TIMEOUT, 0, NULL,
			     DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
	      "dat_ep_connect");
	freeaddrinfo(address);
	event = next(connect_evd, TIMEOUT, host);
	established(&event, host);
	/* Some transports pad private data. */
	if (event.event_data.connect_event_data.private_data_size < (DAT_COUNT)sizeof table)
		die(host, "the server is none of this program");
	memcpy(&table, event.event_data.connect_event_data.private_data, sizeof table);
	table.address = be64toh(table.address);
	table.rmr_context = be32toh(table.rmr_context);
	table.slots = be32toh(table.slots);
	if (table.slots == 0 || table.slots > MAX_SLOTS || (table.slots & (table.slots - 1)) != 0)
		die(host, "the server is none of this program");

	for (; *keys != NULL; keys++) {
		if (get(ep, &table, &slot, key, *keys)) {
			printf("%s: %s\n", *keys, slot.value);
		} else {
			printf("%s: not found\n", *keys);
			missing = 1;
		}
	}
	check(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG), "dat_ep_disconnect");
	next(connect_evd, TIMEOUT, "end of the connection");
	check(dat_ep_free(ep), "dat_ep_free");
	check(dat_lmr_free(lmr), "dat_lmr_free");
	return missing;
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
	uint32_t clients = 1, entries = 0;
	int option, status = 0, serves;

	while ((option = getopt(argc, argv, "i:q:c:")) != -1) {
		switch (option) {
		case 'i':
			name = optarg;
			break;
		case 'q':
			qualifier = number(optarg, 65535, "-q");
			break;
		case 'c':
			clients = number(optarg, 1000000, "-c");
			break;
		default:
			optind = argc;
			break;
		}
	}
	argv += optind;
	argc -= optind;
	serves = argc == 2 && strcmp(argv[0], "serve") == 0;
	if (qualifier == 0 || !(serves || (argc >= 3 && strcmp(argv[0], "get") == 0))) {
		fprintf(stderr, "usage: kvstore [-i IA] -q QUALIFIER [-c CLIENTS] serve ENTRIES\n"
				"       kvstore [-i IA] -q QUALIFIER get HOST KEY...\n");
		return 2;
	}
	if (serves)
		entries = number(argv[1], MAX_SLOTS / 2, "ENTRIES");
	check(dat_ia_open(name, 8, &async, &ia), name);
	check(dat_pz_create(ia, &pz), "dat_pz_create");
	check(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &dto_evd),
	      "dat_evd_create");
	check(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &connect_evd),
	      "dat_evd_create");
	if (serves)
		serve(qualifier, entries, clients);
	else
		status = client(qualifier, argv[1], argv + 2);
	check(dat_evd_free(dto_evd), "dat_evd_free");
	check(dat_evd_free(connect_evd), "dat_evd_free");
	check(dat_pz_free(pz), "dat_pz_free");
	check(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), "dat_ia_close");
	return status;
}
