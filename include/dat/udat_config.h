/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The version of the API that a program was compiled for (DAT 1.2). dat_ia_open passes it on.
 */

#ifndef DAT_UDAT_CONFIG_H
#define DAT_UDAT_CONFIG_H

#define DAT_VERSION_MAJOR 1
#define DAT_VERSION_MINOR 2
#define DAT_THREADSAFE DAT_FALSE

#endif
