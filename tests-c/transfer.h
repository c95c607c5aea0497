/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A connection with memory at both ends, for the tests of data transfer: side a sends, writes
 * and reads, side b receives and is the target. */
#ifndef TRANSFER_H
#define TRANSFER_H

#include "common.h"

/* Bytes registered on each side. */
enum { SIZE = 1 << 20 };

extern struct pair p;
extern struct mem ma, mb;

/* Connects two endpoints with these attributes; NULL for those of ep_attr(). */
void up_with(const DAT_EP_ATTR *attr);
void up(void);
/* Both IAs and their memory, without endpoints. */
void rigs_up(void);
/* A connection whose side b may bind, with memory that peers reach by windows only. Gives a window. */
DAT_RMR_HANDLE up_to_bind(void);
void down(void);
/* The connection ends as broken, at both ends. */
void both_broken(void);
/* The attributes of ep_attr() before there is a rig. */
DAT_EP_ATTR usual_attr(void);

/* Each posts one operation with one segment; offsets are those in ma and mb. */
DAT_RETURN a_sends(size_t at, size_t size, DAT_UINT64 value, DAT_COMPLETION_FLAGS flags);
DAT_RETURN b_receives(size_t at, size_t size, DAT_UINT64 value);
DAT_RETURN a_writes(size_t from, size_t to, size_t size, DAT_UINT64 value,
		    DAT_COMPLETION_FLAGS flags);
DAT_RETURN a_reads(size_t to, size_t from, size_t size, DAT_UINT64 value,
		   DAT_COMPLETION_FLAGS flags);

/* Side a sends all its memory until its queue is full, and gives how often: side b does not receive,
 * and messages are large, so that at some point nothing more fits. */
DAT_COUNT a_sends_all_it_can(DAT_UINT64 value);

#endif
