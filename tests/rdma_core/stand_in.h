/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the programs of this directory ask of the stand-in for rdma-core. */
#ifndef STAND_IN_H
#define STAND_IN_H

#include "common.h"

/* Something of the stand-in, which the library has loaded. */
void *stand_in(const char *name);
/* Has the stand-in call a function at its points. */
void at_points(int (*function)(const char *point));
DAT_EP_HANDLE ep_with_srq(const struct rig *rig, DAT_SRQ_HANDLE srq);
/* Connects ep_a with ep_b, which is not told that the connection is established. */
void connect_one_end(const struct rig *a, DAT_EP_HANDLE ep_a, const struct rig *b,
		     DAT_EP_HANDLE ep_b, DAT_CONN_QUAL qualifier);
/* Both ends of a connection are there: a message arrives. */
void expect_connected(const struct rig *a, DAT_EP_HANDLE ep_a, const struct rig *b,
		      DAT_EP_HANDLE ep_b);

#endif
