/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_strerror(3DAT). */
#include "common.h"

#include <string.h>

/* clang-format off */
#define TYPE(name) { name, #name }
/* clang-format on */

static void strerror__every_type(void)
{
	static const struct {
		DAT_RETURN code;
		const char *name;
	} types[] = {
		TYPE(DAT_SUCCESS),
		TYPE(DAT_ABORT),
		TYPE(DAT_CONN_QUAL_IN_USE),
		TYPE(DAT_INSUFFICIENT_RESOURCES),
		TYPE(DAT_INTERNAL_ERROR),
		TYPE(DAT_INVALID_HANDLE),
		TYPE(DAT_INVALID_PARAMETER),
		TYPE(DAT_INVALID_STATE),
		TYPE(DAT_LENGTH_ERROR),
		TYPE(DAT_MODEL_NOT_SUPPORTED),
		TYPE(DAT_PROVIDER_NOT_FOUND),
		TYPE(DAT_PRIVILEGES_VIOLATION),
		TYPE(DAT_PROTECTION_VIOLATION),
		TYPE(DAT_QUEUE_EMPTY),
		TYPE(DAT_QUEUE_FULL),
		TYPE(DAT_TIMEOUT_EXPIRED),
		TYPE(DAT_PROVIDER_ALREADY_REGISTERED),
		TYPE(DAT_PROVIDER_IN_USE),
		TYPE(DAT_INVALID_ADDRESS),
		TYPE(DAT_INTERRUPTED_CALL),
		TYPE(DAT_CONN_QUAL_UNAVAILABLE),
		TYPE(DAT_NOT_IMPLEMENTED),
	};
#undef TYPE

	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		const char *major = NULL, *minor = NULL;

		CHECK_RET(dat_strerror(types[i].code, &major, &minor), DAT_SUCCESS);
		REQUIRE(major != NULL && minor != NULL);
		CHECK(strcmp(major, types[i].name) == 0);
		/* Class bits make no difference. */
		CHECK_RET(dat_strerror(DAT_CLASS_ERROR | types[i].code, &major, &minor),
			  DAT_SUCCESS);
		CHECK(strcmp(major, types[i].name) == 0);
		CHECK_RET(dat_strerror(DAT_CLASS_WARNING | types[i].code, &major, &minor),
			  DAT_SUCCESS);
		CHECK(strcmp(major, types[i].name) == 0);
	}
}

static void strerror__subtype(void)
{
	const char *major = NULL, *minor = NULL;

	OK(dat_strerror(DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_HANDLE_EP, &major,
			&minor));
	CHECK(strcmp(major, "DAT_INVALID_HANDLE") == 0);
	CHECK(strcmp(minor, "DAT_INVALID_HANDLE_EP") == 0);
	OK(dat_strerror(DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | DAT_INVALID_ARG7, &major,
			&minor));
	CHECK(strcmp(minor, "DAT_INVALID_ARG7") == 0);
	OK(dat_strerror(DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_EP_DISCONNECTED,
			&major, &minor));
	CHECK(strcmp(minor, "DAT_INVALID_STATE_EP_DISCONNECTED") == 0);
}

static void strerror__undefined(void)
{
	const char *major = NULL, *minor = NULL;

	CHECK_RET(dat_strerror(DAT_CLASS_ERROR | 0x00ab0000, &major, &minor),
		  DAT_INVALID_PARAMETER);
}

/* A subtype that no header has may be that of a provider: it has a text, and the type has its own. */
static void strerror__subtype_of_a_provider(void)
{
	const char *major = NULL, *minor = NULL;

	CHECK_RET(dat_strerror(DAT_CLASS_ERROR | DAT_INVALID_HANDLE | 0x7777, &major, &minor),
		  DAT_SUCCESS);
	REQUIRE(major != NULL && minor != NULL);
	CHECK(strcmp(major, "DAT_INVALID_HANDLE") == 0);
	CHECK(strcmp(minor, "unknown DAT return subtype") == 0);
}

/* A code without a subtype has no second text; who wants one text alone asks for it alone. */
static void strerror__one_text(void)
{
	const char *major = NULL, *minor = NULL;

	OK(dat_strerror(DAT_SUCCESS, &major, &minor));
	CHECK(strcmp(major, "DAT_SUCCESS") == 0);
	CHECK(strcmp(minor, "") == 0);
	major = minor = NULL;
	CHECK_RET(dat_strerror(DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | DAT_INVALID_ARG2, &major,
			       NULL),
		  DAT_SUCCESS);
	REQUIRE(major != NULL);
	CHECK(strcmp(major, "DAT_INVALID_PARAMETER") == 0);
	CHECK_RET(dat_strerror(DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | DAT_INVALID_ARG2, NULL,
			       &minor),
		  DAT_SUCCESS);
	REQUIRE(minor != NULL);
	CHECK(strcmp(minor, "DAT_INVALID_ARG2") == 0);
}

static void strerror__any_value_is_safe(void)
{
	uint32_t code = 1;

	for (int i = 0; i < 20000; i++) {
		const char *major = "", *minor = "";

		code = code * 1664525u + 1013904223u;
		(void)dat_strerror(code, &major, &minor);
		REQUIRE(major != NULL && minor != NULL);
		REQUIRE(strlen(major) < 200 && strlen(minor) < 200);
	}
	(void)dat_strerror(DAT_SUCCESS, NULL, NULL);
}

static const struct tap_test tests[] = {
	T(strerror, every_type),
	T(strerror, subtype),
	T(strerror, undefined),
	T(strerror, any_value_is_safe),
	T(strerror, subtype_of_a_provider),
	T(strerror, one_text),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
