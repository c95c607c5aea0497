/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Reserved for constants of one vendor. This implementation has none.
 */

#ifndef DAT_DAT_VENDOR_SPECIFIC_H
#define DAT_DAT_VENDOR_SPECIFIC_H

/* Nothing here. */

#endif
