/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Random numbers, of each thread its own: the same ones for the same seed. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdbool.h>
#include <stdint.h>

/* Begins the numbers of this thread. */
void seed_with(uint64_t seed);
uint64_t any(void);
uint64_t below(uint64_t limit);
/* One time in n. */
bool rarely(uint64_t n);
/* The number in a variable of the environment; `otherwise` if that is not set. */
uint64_t setting(const char *name, uint64_t otherwise);

#endif
