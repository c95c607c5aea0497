/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* For the tests of endpoints for datagrams (DAT 2.0 only): two of them, each on an IA instance of its
 * own. db listens. */
#ifndef DATAGRAMS_H
#define DATAGRAMS_H

#include "common.h"

#include <dat2/dat_ib_extensions.h>

/* Bytes in front of each datagram in its receive. */
enum { HEADER = 40 };

/* The two ends: an IA, an endpoint and memory each. */
struct end {
	struct rig rig;
	DAT_EP_HANDLE ep;
	struct mem mem;
};

extern struct end da, db;
extern DAT_PSP_HANDLE datagrams_psp;
extern DAT_CONN_QUAL datagrams_qual;

/* Makes the two ends, on a device that has datagrams. */
void datagrams_up(void);
void datagrams_down(void);
/* Attributes of an endpoint for datagrams, and an endpoint with them. */
DAT_EP_ATTR datagram_attr(const struct rig *rig);
DAT_EP_HANDLE make_datagram_ep(const struct rig *rig);

/* What an event of an exchange has: its private data as a string, and its extension. */
struct outcome {
	DAT_EP_HANDLE ep;
	char data[64];
	DAT_COUNT size;
	DAT_IB_ADDR_HANDLE to;
	DAT_PVOID cm;
};

/* Asks the listener of db, with this private data. */
DAT_RETURN ask(DAT_EP_HANDLE ep, DAT_CONN_QUAL qual, const char *data, DAT_TIMEOUT timeout);
/* The request that arrives at db, which has this private data. */
DAT_CR_HANDLE await_question(const char *data);
/* The next event of this EVD, which is one of an exchange. */
#define EXPECT_OUTCOME(evd, number, type) \
	expect_outcome(__FILE__, __LINE__, (evd), (DAT_EVENT_NUMBER)(number), (type))
struct outcome expect_outcome(const char *file, int line, DAT_EVD_HANDLE evd,
			      DAT_EVENT_NUMBER number, DAT_IB_EXT_TYPE type);
/* An endpoint of da learns where one of db receives datagrams, and the reverse. */
void exchange(DAT_EP_HANDLE of_a, DAT_EP_HANDLE of_b, struct outcome *at_a, struct outcome *at_b);
/* Gives back what an outcome holds. */
void give_back(const struct outcome *outcome);

/* Posts a receive of so many bytes behind the header, at this place of the memory. */
DAT_RETURN receive_at(const struct end *end, size_t at, size_t size, DAT_UINT64 value);
/* Sends a datagram from this place. */
DAT_RETURN send_from(const struct end *end, size_t at, size_t size, DAT_UINT64 value,
		     const struct outcome *to, DAT_COMPLETION_FLAGS flags);
/* The next event is the completion of a datagram that was sent, or received. */
#define EXPECT_SENT(evd, value) expect_sent(__FILE__, __LINE__, (evd), (value))
#define EXPECT_RECEIVED(evd, value, size) \
	expect_received(__FILE__, __LINE__, (evd), (value), (size))
void expect_sent(const char *file, int line, DAT_EVD_HANDLE evd, DAT_UINT64 value);
DAT_EP_HANDLE expect_received(const char *file, int line, DAT_EVD_HANDLE evd, DAT_UINT64 value,
			      size_t size);
/* A datagram of 100 bytes from da, with this outcome of its exchange, arrives in this receive of db. */
void datagram_arrives(const struct outcome *to, DAT_UINT64 receive);

/* All that da has sent to db has arrived there, or is lost. Nothing else arrives meanwhile. */
void settle_datagrams(void);

#endif
