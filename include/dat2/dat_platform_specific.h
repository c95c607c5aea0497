/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * What the types of DAT are on Linux.
 */

#ifndef DAT2_DAT_PLATFORM_SPECIFIC_H
#define DAT2_DAT_PLATFORM_SPECIFIC_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* glibc before 2.18 has it in C++ for those alone who ask. */
#ifndef UINT64_C
#ifdef __UINT64_C
#define UINT64_C(c) __UINT64_C(c)
#else
#define UINT64_C(c) c##ULL
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Direction of a parameter; for the reader only. */
#ifndef IN
#define IN
#endif
#ifndef OUT
#define OUT
#endif
#ifndef INOUT
#define INOUT
#endif

/* Linkage of the functions below. */
#define DAT_EXPORT extern

/* Calling convention, for programs that spell it; Linux has one. */
#ifndef DAT_API
#define DAT_API
#endif

#define DAT_OPTIMAL_ALIGNMENT 256
#define DAT_AF_INET AF_INET
#define DAT_AF_INET6 AF_INET6

typedef uint32_t DAT_UINT32;              /* Unsigned 32-bit integer. */
typedef uint64_t DAT_UINT64;              /* Unsigned 64-bit integer. */
typedef void *DAT_PVOID;                  /* Untyped pointer. */
typedef int DAT_COUNT;                    /* Signed count of things. */
typedef DAT_UINT64 DAT_PADDR;             /* Physical address, unused by uDAPL consumers. */
typedef int DAT_FD;                       /* File descriptor of a CNO. */

/* The widest unsigned integer of the platform, which C90 and C++98 do not have. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wlong-long"
typedef unsigned long long DAT_UVERYLONG;
#pragma GCC diagnostic pop

typedef struct sockaddr DAT_SOCK_ADDR; /* Socket address, either family. */
typedef struct sockaddr_in6 DAT_SOCK_ADDR6; /* IPv6 socket address. */

/* Socket triple that names a communication domain of a common service point. */
typedef struct dat_comm {
    int domain;
    int type;
    int protocol;
} DAT_COMM;

/* IA handles as numbers. */
#define DAT_IA_HANDLE_TO_UL(a) ((unsigned long)(a))
#define DAT_UL_TO_IA_HANDLE(a) ((DAT_IA_HANDLE)(a))

#ifdef __cplusplus
}
#endif

#endif
