/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "random.h"

#include <stdlib.h>

static _Thread_local uint64_t state;

uint64_t any(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

uint64_t below(uint64_t limit)
{
	return (any() >> 16) % limit;
}

bool rarely(uint64_t n)
{
	return below(n) == 0;
}

void seed_with(uint64_t seed)
{
	state = seed * 0x9e3779b97f4a7c15u | 1;
	for (int i = 0; i < 8; i++)
		any();
}

uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}
