/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Shared receive queues for their tests. End b has the queue. */
#ifndef SRQ_H
#define SRQ_H

#include "transfer.h"

/* Buffers of the queue. */
enum { ROOM = 10 };

extern DAT_SRQ_HANDLE srq;

DAT_RETURN create_srq(const struct rig *rig, DAT_COUNT dtos, DAT_COUNT iov, DAT_COUNT mark,
		      DAT_SRQ_HANDLE *handle);
/* An endpoint with the queue; NULL for the attributes of ep_attr(). */
DAT_EP_HANDLE make_srq_ep(const struct rig *rig, const DAT_EP_ATTR *attr);
/* The rigs, and a shared receive queue at end b. */
void queue_up(void);
/* A connection whose end b has a shared receive queue, and these completion flags for receives. */
void srq_up_with(DAT_COMPLETION_FLAGS flags);
void srq_up(void);
/* Posts a buffer of 100 bytes at 100 times its number. */
DAT_RETURN post_srq(DAT_UINT64 number);
DAT_SRQ_PARAM query_srq(void);
/* The buffers of the queue that an endpoint can take, and those that are not the consumer's yet. */
void check_counts(DAT_COUNT available, DAT_COUNT outstanding);
void await_available(DAT_COUNT count);
/* The asynchronous event of this object with this reason. */
void expect_async(const struct rig *rig, DAT_EVENT_NUMBER number, DAT_HANDLE object,
		  DAT_COUNT reason);

#endif
