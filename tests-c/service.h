/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Service points for their tests. End a connects, end b listens. */
#ifndef SERVICE_H
#define SERVICE_H

#include "common.h"

/* Those of two_ends.h, here without a listener. */
extern struct rig a, b;
extern DAT_EP_HANDLE ep_a, ep_b;

void points_up(void);
void points_down(void);
/* A qualifier that was free a moment ago. */
DAT_CONN_QUAL free_qualifier(void);
DAT_RSP_HANDLE reserve(DAT_CONN_QUAL qualifier, DAT_EP_HANDLE ep);
DAT_PSP_HANDLE listen_for(DAT_PSP_FLAGS flags, DAT_CONN_QUAL *qualifier);
DAT_EP_HANDLE endpoint_of(DAT_CR_HANDLE cr);
/* The connection is there at both ends. */
void established(void);
/* Gives an endpoint of the provider's making what it needs. */
void configure(DAT_EP_HANDLE ep);
/* A message from a to this endpoint of b. */
void talk(DAT_EP_HANDLE ep);

#endif
