/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "failing_malloc.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The functions of the C library behind those that this file replaces. */
#ifdef __GLIBC__
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *at, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
#else
#define __libc_malloc ((void *(*)(size_t))dlsym(RTLD_NEXT, "malloc"))
#define __libc_calloc ((void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc"))
#define __libc_realloc ((void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc"))
#define __libc_memalign ((void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc"))
#endif

enum which { NONE, ONE, AND_LATER, EVERY };

static _Atomic enum which which;
/* The number of the first one, or every which one. */
static atomic_ulong number;
static atomic_bool any_thread;
static _Thread_local bool armed_here;
static atomic_ulong seen, failed;
static atomic_size_t larger_than;

/* The code of the library under test: addresses, at most one range for each of the two. */
static struct {
	uintptr_t from, to;
} code[2];
static atomic_uint ranges;

static int note_code(struct dl_phdr_info *info, size_t size, void *unused)
{
	const char *name = strrchr(info->dlpi_name, '/');

	(void)size;
	(void)unused;
	if (!name ||
	    (strncmp(name, "/libdat.so", 10) != 0 && strncmp(name, "/libdat2.so", 11) != 0))
		return 0;
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		unsigned next = atomic_load(&ranges);

		if (part->p_type != PT_LOAD || !(part->p_flags & PF_X) || next == 2)
			continue;
		code[next].from = info->dlpi_addr + part->p_vaddr;
		code[next].to = code[next].from + part->p_memsz;
		atomic_store(&ranges, next + 1);
	}
	return 0;
}

__attribute__((constructor)) static void begin(void)
{
	const char *every = getenv("FAILING_MALLOC_EVERY");

	dl_iterate_phdr(note_code, NULL);
	if (!every)
		return;
	atomic_store(&number, strtoul(every, NULL, 10));
	atomic_store(&any_thread, true);
	if (atomic_load(&number) > 0)
		atomic_store(&which, EVERY);
}

static bool is_ours(const void *caller)
{
	for (unsigned i = 0; i < atomic_load(&ranges); i++)
		if ((uintptr_t)caller >= code[i].from && (uintptr_t)caller < code[i].to)
			return true;
	return false;
}

__attribute__((unused)) static bool fails(const void *caller, size_t size)
{
	enum which now = atomic_load(&which);
	unsigned long nth;
	bool fail;

	if (now == NONE || size <= atomic_load(&larger_than) ||
	    !(atomic_load(&any_thread) || armed_here) || !is_ours(caller))
		return false;
	nth = atomic_fetch_add(&seen, 1) + 1;
	fail = now == ONE	? nth == atomic_load(&number) :
	       now == AND_LATER ? nth >= atomic_load(&number) :
				  nth % atomic_load(&number) == 0;
	if (fail) {
		atomic_fetch_add(&failed, 1);
		errno = ENOMEM;
	}
	return fail;
}

void fail_allocations(struct failing failing)
{
	atomic_store(&which, NONE);
	atomic_store(&seen, 0);
	atomic_store(&failed, 0);
	atomic_store(&number, failing.first);
	atomic_store(&any_thread, failing.any_thread);
	atomic_store(&larger_than, failing.larger_than);
	armed_here = true;
	atomic_store(&which, failing.and_later ? AND_LATER : ONE);
}

void stop_failing(void)
{
	atomic_store(&which, NONE);
}

unsigned long allocations_failed(void)
{
	return atomic_load(&failed);
}

unsigned long allocations_seen(void)
{
	return atomic_load(&seen);
}

#ifndef __SANITIZE_ADDRESS__ /* whose malloc it has to be */

void *malloc(size_t size)
{
	return fails(__builtin_return_address(0), size) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	return fails(__builtin_return_address(0), count * size) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *at, size_t size)
{
	return fails(__builtin_return_address(0), size) ? NULL : __libc_realloc(at, size);
}

int posix_memalign(void **at, size_t alignment, size_t size)
{
	void *got =
		fails(__builtin_return_address(0), size) ? NULL : __libc_memalign(alignment, size);

	if (!got)
		return ENOMEM;
	*at = got;
	return 0;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return fails(__builtin_return_address(0), size) ? NULL : __libc_memalign(alignment, size);
}

#endif
