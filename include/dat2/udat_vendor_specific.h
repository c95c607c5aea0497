/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Reserved for user-level constants of one vendor. This implementation has none.
 */

#ifndef DAT2_UDAT_VENDOR_SPECIFIC_H
#define DAT2_UDAT_VENDOR_SPECIFIC_H

/* Nothing here. */

#endif
