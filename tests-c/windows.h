/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A window for the tests of dat_rmr_*: side b binds, side a is the peer who uses the keys. */
#ifndef WINDOWS_H
#define WINDOWS_H

#include "transfer.h"

#define READ DAT_MEM_PRIV_REMOTE_READ_FLAG
#define WRITE DAT_MEM_PRIV_REMOTE_WRITE_FLAG
#define BOTH (READ | WRITE)

extern DAT_RMR_HANDLE rmr;

/* A connection, and the window of side b. */
void rmr_up(void);
/* Binds a range of memory of side b. */
DAT_RETURN bind_mem(const struct mem *mem, size_t at, size_t size, DAT_MEM_PRIV_FLAGS privileges,
		    DAT_UINT64 value, DAT_COMPLETION_FLAGS flags, DAT_RMR_CONTEXT *key);
void expect_bind(DAT_UINT64 value, DAT_RMR_BIND_COMPLETION_STATUS status);
/* Binds a range of mb and waits for it. */
DAT_RMR_CONTEXT bound(size_t at, size_t size, DAT_MEM_PRIV_FLAGS privileges);
/* What side a posts with a key; offsets are those in mb. */
DAT_RETURN write_with(DAT_RMR_CONTEXT key, size_t to, size_t size, DAT_UINT64 value);
DAT_RETURN read_with(DAT_RMR_CONTEXT key, size_t from, size_t size, DAT_UINT64 value);
/* A read that the target refuses: the end of the connection. */
void refused(DAT_RMR_CONTEXT key, size_t from, size_t size);

#endif
