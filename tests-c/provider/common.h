/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the tests with a loaded provider begin with. */
#ifndef COMMON_H
#define COMMON_H

#ifdef DAT2
#include <dat2/udat.h>
#else
#include <dat/udat.h>
#endif

#include <dlfcn.h>
#include <string.h>

#include "../tap.h"
#include "fake.h"

#define INVALID_HANDLE(kind) \
	((DAT_RETURN)DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE##kind)
#define NOT_IMPLEMENTED ((DAT_RETURN)DAT_CLASS_ERROR | DAT_NOT_IMPLEMENTED)

/* A code that no library makes up by itself. */
#define FAKE_RESULT 0x40123456u

static struct fake *fake;

/*
 * Opens an IA of the provider library and finds what that shows to tests, through the global
 * scope into which provider libraries are loaded. (What dlsym has found there stays mapped, so
 * the counters can be read after the library was put away.)
 */
static inline DAT_IA_HANDLE open_fake(const char *name)
{
	char writable[DAT_NAME_MAX_LENGTH];
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;

	strncpy(writable, name, sizeof writable - 1);
	writable[sizeof writable - 1] = '\0';
	REQUIRE(!dlsym(RTLD_DEFAULT, FAKE_SYMBOL));
	CHECK_EQ(dat_ia_open(writable, 8, &evd, &ia), DAT_SUCCESS);
	fake = dlsym(RTLD_DEFAULT, FAKE_SYMBOL);
	REQUIRE(fake);
	CHECK_EQ(fake->inits, 1);
	CHECK_EQ(fake->opens, 1);
	fake->result = FAKE_RESULT;
	return ia;
}

#endif
