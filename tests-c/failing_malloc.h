/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The allocator of the C library, made to fail for the library under test: malloc, calloc, realloc,
 * posix_memalign and aligned_alloc, where libdat.so.1 or libdat2.so.2 itself calls them. What the
 * program and other libraries allocate never fails.
 *
 * Linked into a program, the functions below say what fails. As a library that is preloaded
 * (LD_PRELOAD), the environment does: FAILING_MALLOC_EVERY=n lets every nth allocation fail.
 */
#ifndef FAILING_MALLOC_H
#define FAILING_MALLOC_H

#include <stdbool.h>
#include <stddef.h>

/* Which allocations fail, counted from the call of fail_allocations(). */
struct failing {
	/* The number of the first one, from 1 on; 0: none. */
	unsigned long first;
	/* All that follow, too. */
	bool and_later;
	/* Those of every thread, and not of the calling one alone. */
	bool any_thread;
	/* Only those of more bytes than this count. */
	size_t larger_than;
};

void fail_allocations(struct failing failing);
void stop_failing(void);
/* How many have failed since the last fail_allocations(). */
unsigned long allocations_failed(void);
/* How many there were since then, whether they failed or not. */
unsigned long allocations_seen(void);

#endif
