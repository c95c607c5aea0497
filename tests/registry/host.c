/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Stands for libdat2.so.2: it has the registry functions that provider libraries import from
 * the global scope, and hands them to the test. It also keeps the test's notes, because it
 * stays when a provider is unloaded. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef unsigned (*registration)(const void *table, const void *info);

registration host_add, host_remove;
static char notes[4096];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

unsigned dat_registry_add_provider(const void *table, const void *info)
{
	return host_add(table, info);
}

unsigned dat_registry_remove_provider(const void *table, const void *info)
{
	return host_remove(table, info);
}

void host_note(const char *what, const char *name, const char *more)
{
	size_t used;

	pthread_mutex_lock(&lock);
	used = strlen(notes);
	snprintf(notes + used, sizeof notes - used, "%s %s %s;", what, name, more);
	pthread_mutex_unlock(&lock);
}

/* The notes since the last call. */
const char *host_notes(void)
{
	static char last[sizeof notes];

	pthread_mutex_lock(&lock);
	memcpy(last, notes, sizeof notes);
	notes[0] = 0;
	pthread_mutex_unlock(&lock);
	return last;
}
