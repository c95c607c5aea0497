/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a process has, and whether that is as much as before. */
#ifndef LEFT_H
#define LEFT_H

#include <stddef.h>

struct having {
	/* Shared mappings are those of the library. */
	unsigned descriptors, threads, shared, mappings;
	/* Memory of the C library in use, if keep_nothing_freed() was first. */
	size_t bytes;
};

/* Lets the program begin anew with one heap, and without the C library's caches of freed memory and
 * of the stacks of threads that ended: then what it says to be in use, or has mapped, is in use.
 * Called first in main(). */
void keep_nothing_freed(char **argv);
struct having what_is(void);
/* The same, after what other threads still free has gone. */
struct having what_stays(void);
/* Checks that there is not more than `before`, but for `growth` bytes; prints both. */
void nothing_left(const struct having *before, size_t growth);

#endif
