/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The IAs of dat.conf with memory=eager, which move registered memory to a file that peers map. */
#ifndef MOVED_H
#define MOVED_H

#include <stdbool.h>

/* Whether this is such an IA: its name says so. */
bool moves_memory(const char *ia);

/* Why such an IA moves nothing in this process, or NULL if it must. */
const char *why_none_moves(void);

/* Whether the page at this address is in the file that peers map, as the kernel reports it. */
bool is_moved(const void *at);

#endif
