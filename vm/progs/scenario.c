/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two programs, perhaps on different APIs, connect and go through a scenario together:
 *
 *   PROGRAM WHERE serve PORT SCENARIO
 *   PROGRAM WHERE connect HOST PORT SCENARIO
 *
 * The client is the first to send, as MPA requires of the initiator. */
#include "peer.h"

#include <arpa/inet.h>
#include <endian.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	SLOT = 65536,
	PART = 1 << 20,
	/* The parts of the memory: written to by the peer, read by the peer, and our own. */
	INBOX = 0,
	OUTBOX = PART,
	SOURCE = 2 * PART,
	SINK = 3 * PART,
	SLOTS = 4 * PART,
	TOKENS = SLOTS + DEPTH * SLOT,
	MEMORY = TOKENS + 4096,
};

/* Both sides of one segment (1460 and 8960 bytes less headers and marker), of one FPDU, ... */
static const uint32_t sizes[] = { 1, 3, 4, 100, 1400, 1440, 1460, 4096, 8900, 8960, SLOT };
static const uint32_t large[] = { 1, 5, 1459, 4096, 65535, 65537, 300001, PART };
#define COUNT(a) (sizeof(a) / sizeof *(a))

static bool server;
static unsigned char *memory;
static struct window own, peer;
static unsigned finished[KINDS]; /* completions that nobody has waited for yet */
static unsigned first_slot; /* the receive that completes next */
static unsigned messages;
static uint32_t message_length[DEPTH];

void die(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "error: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

/* --- data --------------------------------------------------------------------------------- */

/* What transfer n of this side (mine) or of the other holds at byte i. */
static unsigned char content(bool mine, unsigned n, size_t i)
{
	return (unsigned char)(i * 31 + (i >> 8) * 7 + n * 13 + (mine == server ? 101 : 0));
}

static void *fill(size_t at, uint32_t length, unsigned n)
{
	for (uint32_t i = 0; i < length; i++)
		memory[at + i] = content(true, n, i);
	return memory + at;
}

static void verify(const char *what, size_t at, uint32_t length, unsigned n)
{
	for (uint32_t i = 0; i < length; i++)
		if (memory[at + i] != content(false, n, i))
			die("%s %u: byte %u of %u is %#x, not %#x", what, n, i, length,
			    memory[at + i], content(false, n, i));
	memset(memory + at, 0xee, length);
}

/* --- completions -------------------------------------------------------------------------- */

static unsigned char *slot(unsigned n)
{
	return memory + SLOTS + (size_t)(n % DEPTH) * SLOT;
}

/* Receives that came back flushed before anybody asked for the end: the peer may have caused it
 * before the completion of our last message was there. */
static unsigned flushed_early;

/* A receive that failed before then, for the same reason; and whether there was one. */
static struct completion failed;
static bool failed_early;

static void one_completion(void)
{
	static const char *const name[] = { "send", "receive", "write", "read" };
	struct completion got;

	if (!next_completion(&got, PATIENCE))
		die("no completion");
	if (got.kind == RECEIVE && got.outcome == FLUSHED) {
		flushed_early++;
		return;
	}
	if (got.kind == RECEIVE && got.outcome == FAILED && !failed_early) {
		failed = got;
		failed_early = true;
		return;
	}
	/* It takes what the peer has got already with it. */
	if (got.kind == SEND && got.outcome == FLUSHED && failed_early)
		got.outcome = DONE;
	if (got.outcome != DONE)
		die("a %s is %s", name[got.kind], got.outcome == FLUSHED ? "flushed" : "refused");
	if (got.kind == RECEIVE)
		message_length[(first_slot + messages++) % DEPTH] = got.length;
	else
		finished[got.kind]++;
}

static void await(enum kind kind, unsigned count)
{
	while (finished[kind] < count)
		one_completion();
	finished[kind] -= count;
}

/* Waits for a message and copies it into the sink. */
static uint32_t receive(void)
{
	uint32_t length;

	while (messages == 0)
		one_completion();
	length = message_length[first_slot % DEPTH];
	memcpy(memory + SINK, slot(first_slot), length);
	post_receive(slot(first_slot), SLOT);
	first_slot++;
	messages--;
	return length;
}

/* A message that says how far we are; the other side waits for it. */
static void tell(unsigned step)
{
	uint32_t word = htonl(step);

	memcpy(memory + TOKENS, &word, sizeof word);
	post_send(memory + TOKENS, sizeof word, false);
	await(SEND, 1);
}

static void hear(unsigned step)
{
	uint32_t length = receive(), word;

	memcpy(&word, memory + SINK, sizeof word);
	if (length != sizeof word || ntohl(word) != step)
		die("heard %u of %u bytes instead of step %u", ntohl(word), length, step);
}

static void tell_window(void)
{
	struct window wire = { htobe64(own.address), htonl(own.key), htonl(own.length) };

	memcpy(memory + TOKENS, &wire, sizeof wire);
	post_send(memory + TOKENS, sizeof wire, false);
	await(SEND, 1);
}

static void hear_window(void)
{
	struct window wire;

	if (receive() != sizeof wire)
		die("not a window");
	memcpy(&wire, memory + SINK, sizeof wire);
	peer = (struct window){ be64toh(wire.address), ntohl(wire.key), ntohl(wire.length) };
}

static void exchange_windows(void)
{
	if (!server)
		tell_window();
	hear_window();
	if (server)
		tell_window();
}

/* --- scenarios: data ---------------------------------------------------------------------- */

static void writes(bool active)
{
	for (unsigned n = 0; n < COUNT(large); n++) {
		if (active) {
			post_write(fill(SOURCE, large[n], n), large[n], peer.address + INBOX,
				   peer.key, n % 2);
			/* The message must not overtake the data. */
			tell(n);
			await(WRITE, 1);
			hear(n);
		} else {
			hear(n);
			verify("write", INBOX, large[n], n);
			tell(n);
		}
	}
}

static void reads(bool active)
{
	for (unsigned n = 0; n < COUNT(large); n++) {
		if (active) {
			hear(n);
			post_read(memory + SINK, large[n], peer.address + OUTBOX, peer.key);
			await(READ, 1);
			verify("read", SINK, large[n], n);
			tell(n);
		} else {
			fill(OUTBOX, large[n], n);
			tell(n);
			hear(n);
		}
	}
}

static void sends(bool active)
{
	for (unsigned n = 0; n < COUNT(sizes); n++) {
		if (active) {
			post_send(fill(SOURCE, sizes[n], n), sizes[n], n % 2);
			await(SEND, 1);
			hear(n);
		} else {
			uint32_t length = receive();

			if (length != sizes[n])
				die("a message of %u bytes is %u long", sizes[n], length);
			verify("send", SINK, length, n);
			tell(n);
		}
	}
}

/* Many at once, of all kinds, both sides at the same time. */
static void crowd(void)
{
	enum { ROUNDS = 8, EACH = 4, BIT = 20000 };

	for (unsigned round = 0; round < ROUNDS; round++) {
		fill(OUTBOX, EACH * BIT, round);
		tell(round);
		hear(round);
		fill(SOURCE, EACH * BIT, round);
		for (unsigned i = 0; i < EACH; i++) {
			size_t at = (size_t)i * BIT;

			post_write(memory + SOURCE + at, BIT, peer.address + INBOX + at, peer.key,
				   i % 2);
			post_read(memory + SINK + SLOT + at, BIT, peer.address + OUTBOX + at,
				  peer.key);
			post_send(memory + SOURCE, i * 1000 + 1, false);
		}
		await(WRITE, EACH);
		await(READ, EACH);
		await(SEND, EACH);
		verify("read", SINK + SLOT, EACH * BIT, round);
		for (unsigned i = 0; i < EACH; i++) {
			uint32_t length = receive();

			if (length != i * 1000 + 1)
				die("message %u is %u bytes long", i, length);
			verify("send", SINK, length, round);
		}
		verify("write", INBOX, EACH * BIT, round);
		tell(100 + round);
		hear(100 + round);
	}
}

/* --- scenarios: endings ------------------------------------------------------------------- */

/* Waits for the end of the connection, and that every receive comes back. */
static void expect_end(unsigned receives)
{
	struct completion got;

	if (!disconnected(PATIENCE))
		die("the connection does not end");
	if (failed_early)
		die("a receive is refused");
	receives -= flushed_early;
	while (receives > 0 && next_completion(&got, PATIENCE)) {
		if (got.kind == RECEIVE && got.outcome == FLUSHED)
			receives--;
	}
	if (receives > 1 || (receives == 1 && flushes_all()))
		die("%u receives are not flushed", receives);
}

/* Waits for the one request of a kind, which must not succeed; or may, if the transport has no
 * answer to it. The connection ends. */
static void expect_refusal(enum kind kind, bool may_succeed)
{
	struct completion got;
	unsigned flushed = 0;

	do {
		if (!next_completion(&got, PATIENCE))
			die("no completion");
		if (got.kind == RECEIVE && got.outcome == FLUSHED)
			flushed++;
		else if (got.kind != kind)
			die("completion of kind %d, outcome %d", got.kind, got.outcome);
	} while (got.kind != kind);
	if (got.outcome == DONE && !may_succeed)
		die("a request that must be refused succeeds");
	printf("outcome %d\n", got.outcome);
	/* InfiniBand leaves it to the program to end the connection. */
	if (got.outcome == FAILED)
		disconnect();
	expect_end(DEPTH - flushed);
}

static void transfers(bool active)
{
	exchange_windows();
	for (int turn = 0; turn < 2; turn++) {
		writes(active == turn);
		reads(active == turn);
		sends(active == turn);
	}
	crowd();
	if (active)
		disconnect();
	expect_end(DEPTH);
}

static atomic_bool racing;

static void *scribble(void *unused)
{
	unsigned char value = 0;

	while (atomic_load(&racing))
		memset(memory + OUTBOX, value++, PART);
	return unused;
}

/* The memory changes while the peer reads it and while it is written to the peer: what arrives
 * may be of any moment, but it arrives. */
static void moving(bool active)
{
	pthread_t thread;

	exchange_windows();
	atomic_store(&racing, true);
	if (pthread_create(&thread, NULL, scribble, NULL))
		die("no thread");
	for (unsigned n = 0; n < 20; n++) {
		post_read(memory + SINK + SLOT, 300000, peer.address + OUTBOX, peer.key);
		post_write(memory + OUTBOX, 300000, peer.address + INBOX, peer.key, false);
		await(READ, 1);
		await(WRITE, 1);
	}
	tell(1);
	hear(1);
	atomic_store(&racing, false);
	pthread_join(thread, NULL);
	if (active)
		disconnect();
	expect_end(DEPTH);
}

/* One side asks for what the other has to refuse. */
static void refused(bool active, enum kind kind, uint64_t offset, uint32_t length,
		    uint32_t key_change)
{
	uint64_t there;
	uint32_t key;

	exchange_windows();
	if (!active) {
		expect_end(DEPTH);
		return;
	}
	there = peer.address + offset;
	key = peer.key ^ key_change;
	if (kind == READ)
		post_read(memory + SINK, length, there, key);
	else
		post_write(memory + SOURCE, length, there, key, false);
	/* iWARP has no acknowledgement of a write. */
	expect_refusal(kind, kind == WRITE);
}

static void write_key(bool active)
{
	refused(active, WRITE, 0, 100, 0x5a5a5a00);
}

static void read_key(bool active)
{
	refused(active, READ, 0, 100, 0x5a5a5a00);
}

static void write_bounds(bool active)
{
	refused(active, WRITE, MEMORY - 99, 100, 0);
}

static void read_bounds(bool active)
{
	refused(active, READ, MEMORY - 99, 100, 0);
}

/* A message longer than the receive that waits for it. */
static void long_message(bool active)
{
	struct completion got;

	exchange_windows();
	if (active) {
		post_send(memory + SOURCE, SLOT + 1, false);
		expect_refusal(SEND, true);
		return;
	}
	if (failed_early) {
		got = failed;
		failed_early = false;
	} else if (!next_completion(&got, PATIENCE)) {
		die("no completion");
	}
	if (got.kind != RECEIVE || got.outcome == DONE)
		die("completion of kind %d, outcome %d", got.kind, got.outcome);
	expect_end(DEPTH - 1);
}

static void closing(bool active)
{
	exchange_windows();
	/* The last message must have arrived before one side ends. */
	if (active) {
		hear(1);
		disconnect();
	} else {
		tell(1);
	}
	expect_end(DEPTH);
}

static void crash(bool active)
{
	exchange_windows();
	if (active) {
		hear(1);
		printf("PASSED\n");
		fflush(stdout);
		_exit(0);
	}
	tell(1);
	expect_end(DEPTH);
}

/* --- connecting --------------------------------------------------------------------------- */

enum wish { CONNECTION, REJECTION, NOBODY };

/* The scenarios by name; after "server-" it is the server that does what must go wrong. */
static const struct scenario {
	const char *name;
	enum wish wish;
	void (*run)(bool active);
} scenarios[] = {
	{ "transfers", CONNECTION, transfers },
	{ "moving", CONNECTION, moving },
	{ "write-key", CONNECTION, write_key },
	{ "write-bounds", CONNECTION, write_bounds },
	{ "read-key", CONNECTION, read_key },
	{ "read-bounds", CONNECTION, read_bounds },
	{ "long-message", CONNECTION, long_message },
	{ "close", CONNECTION, closing },
	{ "crash", CONNECTION, crash },
	{ "reject", REJECTION, NULL },
	{ "nobody", NOBODY, NULL },
};

/* The private data of the client, or of the server's answer. */
static void check_private_data(const char *what, size_t got, size_t wanted)
{
	/* InfiniBand's has a fixed size, and zeros behind. */
	if (got < wanted)
		die("%s: %zu bytes of private data instead of %zu", what, got, wanted);
	verify(what, SINK, (uint32_t)wanted, 77);
}

static void post_receives(void)
{
	for (unsigned i = 0; i < DEPTH; i++)
		post_receive(slot(i), SLOT);
}

static void serve(uint16_t port, enum wish wish, size_t length)
{
	size_t got;

	listen_on(port);
	printf("listening\n");
	got = get_request(memory + SINK, SLOT);
	check_private_data("request", got, length);
	fill(SOURCE, (uint32_t)length, 77);
	if (wish == REJECTION) {
		reject_request(memory + SOURCE, length);
		return;
	}
	own = make_endpoint(NULL, 0, memory, MEMORY);
	post_receives();
	accept_request(memory + SOURCE, length);
}

static void call(const char *host, uint16_t port, enum wish wish, size_t length)
{
	static const char *const name[] = { "accepted", "rejected", "unreachable" };
	size_t got = 0;
	enum answer answer;

	fill(SOURCE, (uint32_t)length, 77);
	own = make_endpoint(host, port, memory, MEMORY);
	post_receives();
	answer = connect_endpoint(memory + SOURCE, length, memory + SINK, SLOT, &got);
	printf("%s\n", name[answer]);
	if (wish == NOBODY ? answer == ACCEPTED :
			     answer != (wish == REJECTION ? REJECTED : ACCEPTED))
		die("the request is %s", name[answer]);
	if (wish != NOBODY)
		check_private_data("answer", got, length);
}

int main(int argc, char **argv)
{
	const struct scenario *scenario = NULL;
	const char *name;
	size_t private_data = 16;
	bool by_server;
	int i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc >= 5 && !strcmp(argv[2], "serve"))
		server = true;
	else if (argc < 6 || strcmp(argv[2], "connect"))
		die("usage: %s WHERE serve|connect [HOST] PORT SCENARIO [BYTES]", argv[0]);
	i = server ? 3 : 4;
	name = argv[i + 1];
	by_server = !strncmp(name, "server-", 7);
	if (by_server)
		name += 7;
	for (size_t n = 0; n < COUNT(scenarios); n++)
		if (!strcmp(scenarios[n].name, name))
			scenario = &scenarios[n];
	if (!scenario)
		die("no scenario %s", name);
	if (argc > i + 2)
		private_data = strtoul(argv[i + 2], NULL, 10);
	if (private_data > SLOT || posix_memalign((void **)&memory, 4096, MEMORY))
		die("no memory");
	memset(memory, 0, MEMORY);

	open_device(argv[1]);
	if (server)
		serve((uint16_t)atoi(argv[i]), scenario->wish, private_data);
	else
		call(argv[3], (uint16_t)atoi(argv[i]), scenario->wish, private_data);
	if (scenario->run)
		scenario->run(server == by_server);
	close_device();
	printf("PASSED\n");
	return 0;
}
