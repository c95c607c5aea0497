/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The demo's dealings with DAT: what dat_demo.c measures with. */
#ifndef DEMO_H
#define DEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <dat/udat.h>

enum {
	WINDOW = 8, /* operations in flight when bandwidth is measured */
	MAX_SIZE = 1 << 20, /* bytes of the largest operation */
	QUEUE = 2 * WINDOW, /* room of the queues */
	READS = 4, /* RDMA reads in flight */
	SECONDS = 1000000,
};

/* Orders and answers, big-endian in messages. */
struct order {
	uint32_t what;
	uint32_t size;
	uint32_t count;
	uint32_t failed; /* in answers */
};

/* Where the peer may write and read; travels as private data, big-endian. */
struct window {
	uint64_t landing;
	uint64_t source;
	uint32_t key;
	uint32_t pad;
};

/* Registered memory. All messages, orders too, arrive in the slots of `inbox`, one after the
 * other; a slot is posted again as soon as its message was looked at. */
struct memory {
	char source[WINDOW][MAX_SIZE]; /* what we send and write, and what the peer reads */
	char landing[WINDOW][MAX_SIZE]; /* what the peer writes, and what we read */
	char inbox[WINDOW][MAX_SIZE];
	struct order order;
};

extern struct memory *mem;
extern struct window peer;
extern DAT_IA_HANDLE ia;
extern DAT_EP_HANDLE ep;
extern DAT_EVD_HANDLE recv_evd, request_evd, connect_evd, request_in_evd;
/* Wait for completions; otherwise they are polled for. */
extern bool blocking;

/* Prints a message and ends the program. */
void die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* Ends the program, with the names of the code, if the call failed. */
void check(DAT_RETURN ret, const char *call);
const char *event_name(DAT_EVENT_NUMBER number);
/* Microseconds. */
double now(void);
/* Takes the next completion of an EVD and returns its cookie; `what` says in an error message
 * what ended. */
uint64_t completion(DAT_EVD_HANDLE evd, const char *what, uint32_t *length);

void post_recv(uint64_t slot);
void post_send(const void *addr, size_t length);
void post_write(const void *addr, size_t length, uint64_t target);
void post_read(void *addr, size_t length, uint64_t from);

/* Opens the IA and makes everything up to an endpoint with its receives posted. */
void set_up(char *ia_name);
/* What a connection needs to know of the other side. */
struct window our_window(void);
void learn_window(const void *data, DAT_COUNT size);
void await_connection(DAT_EVENT *event);
/* Disconnects and closes the IA. */
void tear_down(void);

#endif
