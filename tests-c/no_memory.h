/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the programs share whose allocations fail. */
#ifndef NO_MEMORY_H
#define NO_MEMORY_H

#include "common.h"
#include "failing_malloc.h"

#include <stdlib.h>

/* Whether a call has failed for an allocation that failed. */
static inline bool is_refused(DAT_RETURN ret)
{
	return DAT_GET_TYPE(ret) == DAT_INSUFFICIENT_RESOURCES && allocations_failed() > 0;
}

/* A memory checker has a malloc of its own. */
static inline void need_our_malloc(void)
{
#ifdef __SANITIZE_ADDRESS__
	tap_skip("the allocator is that of a memory checker");
#endif
	if (getenv("TAP_TIMEOUT"))
		tap_skip("the allocator is that of a memory checker");
}

#endif
