/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "left.h"

#include "common.h"

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	/* Microseconds without a change after which there is no more to go. */
	QUIET = 100 * 1000,
};

void keep_nothing_freed(char **argv)
{
	const char *name = "GLIBC_TUNABLES";

	if (getenv(name))
		return;
	setenv(name,
	       "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0:"
	       "glibc.pthread.stack_cache_size=0",
	       1);
	execv(argv[0], argv);
}

static unsigned entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned count = 0;

	REQUIRE(dir != NULL);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* How many bytes the program has from malloc; 0 where the C library does not tell. */
static size_t heap_bytes(void)
{
#ifndef __GLIBC__
	return 0;
#else
#if __GLIBC_PREREQ(2, 33)
	struct mallinfo2 heap = mallinfo2();
#else
	struct mallinfo heap = mallinfo();
#endif

	return (size_t)heap.uordblks + (size_t)heap.hblkhd;
#endif
}

struct having what_is(void)
{
	struct having h = { 0 };
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	REQUIRE(maps != NULL);
	while (fgets(line, sizeof line, maps)) {
		h.mappings++;
		h.shared += strstr(line, "memfd:libdat") != NULL;
	}
	fclose(maps);
	h.descriptors = entries("/proc/self/fd");
	h.threads = entries("/proc/self/task");
	h.bytes = heap_bytes();
	return h;
}

static bool same(const struct having *a, const struct having *b)
{
	return a->descriptors == b->descriptors && a->threads == b->threads &&
	       a->shared == b->shared && a->mappings == b->mappings;
}

struct having what_stays(void)
{
	unsigned long long end = now_us() + SOON, changed = now_us();
	struct having h = what_is();

	while (now_us() - changed < QUIET && now_us() < end) {
		struct having now = what_is();

		if (!same(&now, &h))
			changed = now_us();
		h = now;
		pause_us(1000);
	}
	return h;
}

void nothing_left(const struct having *before, size_t growth)
{
	unsigned long long end = now_us() + SOON;
	struct having h = what_is();

	/* A thread that was joined may take a moment to go, and its memory with it. */
	while ((h.descriptors != before->descriptors || h.threads != before->threads ||
		h.shared != before->shared || h.mappings > before->mappings + 4 ||
		h.bytes > before->bytes + growth) &&
	       now_us() < end) {
		pause_us(1000);
		h = what_is();
	}
	printf("# now: %u descriptors, %u threads, %u shared mappings of %u, %zu bytes\n",
	       h.descriptors, h.threads, h.shared, h.mappings, h.bytes);
	printf("# was: %u descriptors, %u threads, %u shared mappings of %u, %zu bytes\n",
	       before->descriptors, before->threads, before->shared, before->mappings,
	       before->bytes);
	CHECK_EQ(h.descriptors, before->descriptors);
	CHECK_EQ(h.threads, before->threads);
	CHECK_EQ(h.shared, before->shared);
#ifndef __SANITIZE_ADDRESS__ /* whose heap keeps what was freed */
	/* Neighbours may have become one, or two. */
	CHECK(h.mappings <= before->mappings + 4);
#endif
	CHECK(h.bytes <= before->bytes + growth);
}
