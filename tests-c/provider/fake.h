/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the provider library fake.c shows to the tests: the last call that reached it. */
#ifndef FAKE_H
#define FAKE_H

#include <stdbool.h>
#include <stddef.h>

enum { FAKE_MAX_ARGS = 24, FAKE_MAX_SIZE = 16 };

struct fake_arg {
	size_t size;
	unsigned char bytes[FAKE_MAX_SIZE];
};

struct fake {
	/* Objects as a provider has them: the first word leads to the table. */
	void *ia;
	void *object;
	/* An object whose provider has left every slot of its table empty. */
	void *empty_object;

	/* Calls dats_get_ia_handle, as a provider does that shows IA handles to its consumer. */
	unsigned int (*translate)(void *handle, void **out);

	/* What the next recorded call returns. */
	unsigned int result;
	/* Queries of the IA are recorded like any call instead of answered. */
	bool record_queries;

	/* How often the library was set up, an IA was opened and closed, the library put away. */
	int inits, opens, closes, finis;
	char instance_data[64];

	/* The recorded calls: how many, and the last one. */
	int calls;
	char name[40];
	int args;
	struct fake_arg arg[FAKE_MAX_ARGS];
};

/* The symbol that the library exports for this. */
#define FAKE_SYMBOL "fake_provider"

#endif
