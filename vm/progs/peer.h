/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a scenario (scenario.c) needs of an RDMA API. rdma_peer.c gives it on librdmacm, dat_peer.c
 * on uDAPL, so that either can be the other end of either. One connection a process; whatever
 * fails and must not, ends the process with a message and status 1. */
#ifndef PEER_H
#define PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	PATIENCE = 20000, /* milliseconds to wait for what must come */
	DEPTH = 32, /* receives and requests that may be under way */
	READ_DEPTH = 4, /* RDMA reads that may be under way */
};

enum kind { SEND, RECEIVE, WRITE, READ, KINDS };
enum outcome { DONE, FLUSHED, FAILED };
enum answer { ACCEPTED, REJECTED, UNREACHABLE };

struct completion {
	enum kind kind;
	enum outcome outcome;
	uint32_t length; /* of a message received */
};

/* Memory of a peer, as it tells the other. */
struct window {
	uint64_t address;
	uint32_t key;
	uint32_t length;
};

/* Opens the device: an IA name, or the local address. */
void open_device(const char *where);

/* The server: listens, has one request, answers it. */
void listen_on(uint16_t port);
size_t get_request(void *private_data, size_t room);
void accept_request(const void *private_data, size_t length);
void reject_request(const void *private_data, size_t length);
/* The client, after make_endpoint. The private data of the answer is at most room bytes. */
enum answer connect_endpoint(const void *private_data, size_t length, void *answer, size_t room,
			     size_t *answer_length);
/* Makes the endpoint for the request, or to connect to host and port, and registers the memory,
 * for both ends and all operations. From now on receives may be posted. */
struct window make_endpoint(const char *host, uint16_t port, void *memory, size_t length);

void post_receive(void *at, uint32_t length);
/* In two segments if split. */
void post_send(const void *from, uint32_t length, bool split);
void post_write(const void *from, uint32_t length, uint64_t to, uint32_t key, bool split);
void post_read(void *at, uint32_t length, uint64_t from, uint32_t key);

/* The next completion of any kind; false if none came in so many milliseconds. */
bool next_completion(struct completion *completion, int milliseconds);
/* Ends the connection from this side; no harm if it has ended. */
void disconnect(void);
/* Waits until it has ended. */
bool disconnected(int milliseconds);
/* Whether the library sees to it that every receive comes back. siw loses one that is posted in
 * the moment in which the connection ends. */
bool flushes_all(void);
void close_device(void);

void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
