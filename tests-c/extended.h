/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* For the tests of dat_extension_op (DAT 2.0 only). */
#ifndef EXTENDED_H
#define EXTENDED_H

#ifdef DAT2
#include "transfer.h"

#include <dat2/dat_ib_extensions.h>

/* Whether the provider of side a has an attribute of this name. */
bool has(const char *name);
/* A connection of a device that has the operations of this name; NULL for the attributes of ep_attr(). */
void up_for(const char *name, const DAT_EP_ATTR *attr);

/* The next event, which is the completion of an extended operation. */
#define EXPECT_EXTENDED(evd, value, op, type) \
	expect_extended(__FILE__, __LINE__, (evd), (value), (op), (type))
DAT_EVENT expect_extended(const char *file, int line, DAT_EVD_HANDLE evd, DAT_UINT64 value,
			  DAT_UINT32 op, DAT_IB_EXT_TYPE type);

/* Of the event of a data transfer. */
DAT_DTO_COMPLETION_STATUS status_of(const DAT_EVENT *event);
DAT_VLEN length_of(const DAT_EVENT *event);
/* The immediate data of an event. */
DAT_UINT32 immed_of(const DAT_EVENT *event);
#endif

#endif
