/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a process has, and whether that is as much as before. */
#ifndef LEFT_H
#define LEFT_H

#include <stddef.h>

struct having {
	/* Shared mappings are those of the library. */
	unsigned descriptors, threads, shared, mappings;
	/* Memory of the C library in use, if count_heap() was first. */
	size_t bytes;
};

/* Lets the program begin anew with one heap without caches: then what the C library says to be
 * in use is in use. Called first in main(). */
void count_heap(char **argv);
struct having what_is(void);
/* Checks that there is not more than `before`, but for `growth` bytes; prints both. */
void nothing_left(const struct having *before, size_t growth);

#endif
