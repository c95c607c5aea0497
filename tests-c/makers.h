/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Makers of objects, one for each kind, for the programs that let calls fail. */
#ifndef MAKERS_H
#define MAKERS_H

#include "common.h"

/* Events of an EVD, or posts of an endpoint, whose queue is larger than the largest block that the
 * library has in reserve. */
enum { LONG_QUEUE = 8000 };

/* What the objects are made in. */
extern struct rig made_in;

DAT_RETURN a_pz(DAT_HANDLE *made);
DAT_RETURN a_cno(DAT_HANDLE *made);
DAT_RETURN an_evd_of(DAT_COUNT length, DAT_HANDLE *made);
DAT_RETURN an_evd(DAT_HANDLE *made);
DAT_RETURN a_long_evd(DAT_HANDLE *made);
DAT_RETURN an_ep_of(DAT_COUNT dtos, DAT_HANDLE *made);
DAT_RETURN an_ep(DAT_HANDLE *made);
DAT_RETURN an_srq_of(DAT_COUNT dtos, DAT_HANDLE *made);
DAT_RETURN an_srq(DAT_HANDLE *made);
DAT_RETURN an_lmr(DAT_HANDLE *made);
DAT_RETURN an_rmr(DAT_HANDLE *made);
DAT_RETURN a_psp(DAT_HANDLE *made);

#endif
