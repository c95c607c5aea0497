/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The objects that random calls use: those that such calls have made, and what they are made with. */
#ifndef RANDOM_OBJECTS_H
#define RANDOM_OBJECTS_H

#include "common.h"

/* Bytes of the memory that is registered, sent and received. */
enum { MEMORY = 1 << 16 };

enum kind { IA, PZ, EVD, CNO, EP, LMR, RMR, PSP, RSP, CR, SRQ, KINDS };

extern const struct rig *random_rig;
extern char *random_memory;

/* From now on the objects are those of this rig, with service points of its IA. */
void begin_objects(const struct rig *rig);

/* A handle that was made, now and then of another kind, freed long ago, or no handle at all. */
DAT_HANDLE any_handle(enum kind kind);
/* An EVD or a PZ that fits, if no call has freed it; sometimes any. */
DAT_EVD_HANDLE any_evd(DAT_EVD_HANDLE fitting);
DAT_PZ_HANDLE any_pz(void);
/* The context of an LMR or RMR. */
uint32_t any_context(void);
/* A qualifier that a service point may have; never the port of another program. */
DAT_CONN_QUAL any_qualifier(void);

/* Remembers what a call has made, if that was a success. */
void remember(enum kind kind, DAT_RETURN ret, DAT_HANDLE made);
void remember_context(DAT_RETURN ret, uint32_t context);

#endif
