/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The version of the API that a program was compiled for (DAT 2.0). dat_ia_open passes it on.
 */

#ifndef DAT2_UDAT_CONFIG_H
#define DAT2_UDAT_CONFIG_H

#define DAT_VERSION_MAJOR 2
#define DAT_VERSION_MINOR 0
#define DAT_THREADSAFE DAT_FALSE
#define DAT_EXTENSIONS 1

#endif
