/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* For the tests of regions and windows with zero-based addresses (DAT 2.0 only). */
#ifndef ZERO_BASED_H
#define ZERO_BASED_H

#ifdef DAT2
#include "extended.h"

/* Zero-based memory of each side, SIZE bytes. */
extern struct mem za, zb;

/* A connection of a device that has such memory, and the memory. */
void zero_based_up(void);
/* The same where side b may bind; zb is open to peers by windows only. Gives a window. */
DAT_RMR_HANDLE zero_based_up_to_bind(void);
/* Zero-based memory that begins so many bytes behind the beginning of a page. There is a page around it
 * that does not belong to it. */
struct mem make_zero_based(const struct rig *rig, size_t skew, size_t size,
			   DAT_MEM_PRIV_FLAGS privileges);
/* Registers memory that is there. */
DAT_RETURN register_zero_based(const struct rig *rig, void *at, size_t size,
			       DAT_MEM_PRIV_FLAGS privileges, struct mem *mem);
/* Whether nothing was written around it. */
bool is_untouched_around(const struct mem *mem);
/* Bytes behind the beginning of a page where regions of this device may begin. */
size_t usual_skew(void);

/* Segments and ranges by an address that is none of memory. */
DAT_LMR_TRIPLET local_at(DAT_LMR_CONTEXT context, DAT_VADDR address, size_t size);
DAT_RMR_TRIPLET remote_at(DAT_RMR_CONTEXT context, DAT_VADDR address, size_t size);

/* Addresses for which 16 bytes are not inside of a range of `size` bytes which begins at 0, and which is at
 * `at` in memory. */
enum { WRONG_ADDRESSES = 7 };
DAT_VADDR wrong_address(int which, DAT_VADDR at, DAT_VADDR size);
#endif

#endif
