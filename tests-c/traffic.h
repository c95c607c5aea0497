/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Both ends of a connection send, write and read at full speed, 8 bytes to a mebibyte at a
 * time. Every byte that arrives is verified: those of a message follow from its number, what is
 * read never changes, and what is written depends on its place alone.
 */
#ifndef TRAFFIC_H
#define TRAFFIC_H

#include "common.h"

enum {
	/* The longest operation, and what is outstanding. */
	MOST = 1 << 20,
	REQUESTS = 8,
	RECEIVES = 4,
	/* Microseconds until something has to complete. */
	BOUND = 15 * 1000 * 1000,
};

enum kind { SEND, WRITE, READ, KINDS };

struct request {
	enum kind kind;
	size_t size;
	/* Of a read: from where, in words. */
	size_t from;
};

/* Private data: where the memory of the peer is. Same host, same byte order. */
struct window {
	uint64_t at;
	uint32_t key;
	uint32_t pad;
};

/* One connection and what is under way on it. */
struct traffic {
	DAT_EP_HANDLE ep;
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT local;
	struct window ours, theirs;
	/* Its consumer polls; otherwise it blocks. */
	bool polls;
	struct request requests[REQUESTS];
	/* Requests and receives, posted and completed. */
	uint64_t requested, done, offered, received;
	/* Messages sent, and what was completed with success. */
	uint64_t sent, moved;
	/* Bytes received and read that were verified. */
	uint64_t verified;
	/* Something was flushed: nothing else comes. */
	bool over;
};

extern struct rig rig;
/* Of all requests and receives. */
extern DAT_EVD_HANDLE dto_evd;

/* Makes the rig and the memory of this process. */
void begin_traffic(void);
/* Registers the first bytes of that memory. */
void register_memory(struct traffic *t, size_t size);
/* Registers all of it, makes an endpoint and posts its receives. */
void set_up(struct traffic *t, bool polls);
void connect_to(struct traffic *t, DAT_CONN_QUAL qualifier);
/* Accepts the next request. */
void accept_one(struct traffic *t);
/* Verifies what the peers have written so far: every byte is what belongs there, or was never
 * written. No connection may be up. */
void verify_target(void);
/* Goes on until something is flushed. */
void run_until_flushed(struct traffic *t);
/* Takes the next completion, which has to come in time, once and in its order: with success,
 * and from some point on flushed. */
void take_one(struct traffic *t);

#endif
