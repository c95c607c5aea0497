/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the programs share that hold the order of events (docs/event-order.md). Nothing is delayed in
 * them; make order runs them on a library that delays each step in turn. */
#ifndef ORDER_H
#define ORDER_H

#include "two_ends.h"

/* ROUNDS is how often each order is tried. */
enum { ROUNDS = 12 };

/* The provider has to be thread safe. */
void need_threads(const struct rig *rig);
/* ends_up() for such a provider. */
void order_up(void);
/* Connects, with both ends in the same thread. */
void join(void);
/* Takes an event that has to be there already. */
DAT_EVENT take(DAT_EVD_HANDLE evd);
/* No event is there. */
void nothing(DAT_EVD_HANDLE evd);
/* Nothing of an endpoint is there, and nothing comes. */
void silent(const struct rig *rig);

#endif
