/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two endpoints that are not connected: a is to connect, b to accept, each on an IA instance of its
 * own. b listens. */
#ifndef TWO_ENDS_H
#define TWO_ENDS_H

#include "common.h"

extern struct rig a, b;
extern DAT_EP_HANDLE ep_a, ep_b;
/* What b listens on, and its listener. After points_up() they are the test's to set. */
extern DAT_CONN_QUAL qualifier;
extern DAT_PSP_HANDLE psp;

void ends_up(void);
/* The same without the listener. */
void points_up(void);
void ends_down(void);
/* The connection is there at both ends. */
void established(void);

#endif
