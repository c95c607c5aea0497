/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Service points for their tests. End a connects, end b listens; points_up() has made them. */
#ifndef SERVICE_H
#define SERVICE_H

#include "two_ends.h"

DAT_RSP_HANDLE reserve(DAT_CONN_QUAL where, DAT_EP_HANDLE ep);
DAT_PSP_HANDLE listen_for(DAT_PSP_FLAGS flags, DAT_CONN_QUAL *where);
DAT_EP_HANDLE endpoint_of(DAT_CR_HANDLE cr);
/* The next request is at this service point, and its event names the qualifier of that. */
DAT_CR_HANDLE request_at(DAT_PSP_HANDLE point, DAT_CONN_QUAL where);
DAT_CR_HANDLE request_reserved(DAT_RSP_HANDLE rsp, DAT_CONN_QUAL where);
/* Connects ep_a to `asked`, which leads to psp, and ep_b, with private data both ways and a message. */
void connect_with_data(DAT_CONN_QUAL asked);
/* A message from a to this endpoint of b. */
void talk(DAT_EP_HANDLE ep);

#endif
