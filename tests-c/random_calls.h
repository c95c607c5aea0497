/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Random calls of the whole API, by any number of threads, on the objects of random_objects.h.
 * Numbers are mostly in their ranges, and sometimes not.
 */
#ifndef RANDOM_CALLS_H
#define RANDOM_CALLS_H

#include "common.h"

/* Makes a call. `which` becomes the number of the function that has made it, for messages. */
DAT_RETURN call_any(unsigned *which);
/* Connections that were established so far, and transfers that completed with success. */
unsigned long count_established(void);
unsigned long count_transfers(void);

#endif
