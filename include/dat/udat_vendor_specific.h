/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Reserved for user-level constants of one vendor. This implementation has none.
 */

#ifndef DAT_UDAT_VENDOR_SPECIFIC_H
#define DAT_UDAT_VENDOR_SPECIFIC_H

/* Nothing here. */

#endif
