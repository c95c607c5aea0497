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

#endif
