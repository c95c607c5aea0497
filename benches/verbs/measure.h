/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the two programs have in common: the operations, the arguments, the clock.
 *
 *     program [OPERATION [ITERATIONS]]
 *
 * Without arguments every operation is measured; a line for each says how many nanoseconds one
 * iteration takes, as the median of several rounds. With an operation it runs once, untimed:
 * for a tool that counts instructions.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Bytes of a request, and of the memory it is in. */
enum { SIZE = 8, MEMORY = 4096 };
/* Requests that a queue has room for. */
enum { DEPTH = 64 };

struct operation {
	const char *name;
	void (*run)(long iterations);
};

/* "write": RDMA write posted and its completion taken. "send": receive and send posted, both
 * completions taken. "empty": nothing to take. "wait": as "write", but the completion, which
 * is there already, is waited for. */
extern const struct operation operations[4];

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static inline int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static inline int measure(int argc, char **argv)
{
	enum { ROUNDS = 21, ITERATIONS = 20000 };
	size_t count = sizeof operations / sizeof *operations;

	for (size_t i = 0; i < count; i++) {
		double ns[ROUNDS];

		if (argc > 1) {
			if (strcmp(argv[1], operations[i].name) == 0)
				operations[i].run(argc > 2 ? atol(argv[2]) : 1);
			continue;
		}
		operations[i].run(ITERATIONS);
		for (int round = 0; round < ROUNDS; round++) {
			double start = now();

			operations[i].run(ITERATIONS);
			ns[round] = (now() - start) / ITERATIONS;
		}
		qsort(ns, ROUNDS, sizeof *ns, compare);
		printf("%s %.2f\n", operations[i].name, ns[ROUNDS / 2]);
	}
	return 0;
}

#define CHECK(what)                                                                \
	do {                                                                       \
		if (__builtin_expect(!(what), 0)) {                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
			exit(1);                                                   \
		}                                                                  \
	} while (0)

#endif
