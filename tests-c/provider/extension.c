/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * dat_extension_op (DAT 2.0): a loaded provider reads with va_arg what the consumer passed, and
 * what the library answers itself: bad handles, the two operations that need no IA.
 */
#include <errno.h>
#include <stdint.h>

#include "common.h"

/* Values that tell their place in the list, and all their bytes. */
static int number(int i)
{
	return -1000 - i;
}

static DAT_UINT64 wide(int i)
{
	return 0xfedcba9876543210u + (DAT_UINT64)i;
}

static void *pointer(int i)
{
	return (void *)(uintptr_t)(0x7000111122223000u + (uintptr_t)i);
}

static double real(int i)
{
	return 0.5 + i;
}

static void check_arg(int at, const void *value, size_t size)
{
	CHECK_EQ(fake->arg[at].size, size);
	CHECK(!memcmp(fake->arg[at].bytes, value, size));
}

static void check_call(void *handle, DAT_EXTENDED_OP op)
{
	CHECK(!strcmp(fake->name, "handle_extendedop"));
	check_arg(0, &handle, sizeof handle);
	check_arg(1, &op, sizeof op);
}

/* Integers and pointers, four in registers and the rest on the stack. */
#define INTEGERS(i) number(i), wide(i), pointer(i)

static DAT_RETURN call_integers(DAT_HANDLE handle, DAT_EXTENDED_OP op)
{
	return dat_extension_op(handle, op, INTEGERS(0), INTEGERS(1), INTEGERS(2), INTEGERS(3),
				INTEGERS(4), INTEGERS(5), INTEGERS(6));
}

static void extension_op__integers_and_pointers(void)
{
	DAT_IA_HANDLE ia = open_fake("fake_extensions");

	errno = EXDEV;
	CHECK_EQ(call_integers(fake->object, 6), FAKE_RESULT);
	CHECK_EQ(errno, EXDEV);
	check_call(fake->object, 6);
	CHECK_EQ(fake->args, 2 + 7 * 3);
	for (int i = 0; i < 7; i++) {
		int n = number(i);
		DAT_UINT64 w = wide(i);
		void *p = pointer(i);

		check_arg(2 + 3 * i, &n, sizeof n);
		check_arg(3 + 3 * i, &w, sizeof w);
		check_arg(4 + 3 * i, &p, sizeof p);
	}
	dat_ia_close(ia, DAT_CLOSE_DEFAULT);
}

/* Floating-point numbers, eight in registers and two on the stack, between integers. */
#define REALS(i) number(i), real(i)

static void extension_op__floating_point(void)
{
	DAT_IA_HANDLE ia = open_fake("fake_extensions");

	CHECK_EQ(dat_extension_op(fake->object, 7, REALS(0), REALS(1), REALS(2), REALS(3), REALS(4),
				  REALS(5), REALS(6), REALS(7), REALS(8), REALS(9)),
		 FAKE_RESULT);
	check_call(fake->object, 7);
	CHECK_EQ(fake->args, 2 + 10 * 2);
	for (int i = 0; i < 10; i++) {
		int n = number(i);
		double r = real(i);

		check_arg(2 + 2 * i, &n, sizeof n);
		check_arg(3 + 2 * i, &r, sizeof r);
	}
	dat_ia_close(ia, DAT_CLOSE_DEFAULT);
}

/* The index of an IA is turned into the provider's own handle. */
static void extension_op__ia_handle(void)
{
	DAT_IA_HANDLE ia = open_fake("fake_extensions");

	CHECK_EQ(call_integers(ia, 6), FAKE_RESULT);
	check_call(fake->ia, 6);
	dat_ia_close(ia, DAT_CLOSE_DEFAULT);
}

static void extension_op__bad_handle(void)
{
	DAT_IA_HANDLE ia = open_fake("fake_extensions");
	char *object = fake->object;

	CHECK_EQ(call_integers(DAT_HANDLE_NULL, 6), INVALID_HANDLE(1));
	CHECK_EQ(call_integers((void *)63, 6), INVALID_HANDLE(1));
	CHECK_EQ(call_integers(object + 1, 6), INVALID_HANDLE(1));
	CHECK_EQ(fake->calls, 0);
	CHECK_EQ(call_integers(fake->empty_object, 6), NOT_IMPLEMENTED);
	dat_ia_close(ia, DAT_CLOSE_DEFAULT);
	CHECK_EQ(call_integers(object, 6), INVALID_HANDLE(1));
}

/* While no IA with extensions was ever open there are none, whatever the handle. */
static void extension_op__none_supported(void)
{
	DAT_IA_HANDLE ia;
	int on_stack;

	CHECK_EQ(call_integers(&on_stack, 6), NOT_IMPLEMENTED);
	CHECK_EQ(call_integers(DAT_HANDLE_NULL, 6), INVALID_HANDLE(1));
	ia = open_fake("fake");
	CHECK_EQ(call_integers(fake->object, 6), NOT_IMPLEMENTED);
	CHECK_EQ(call_integers(ia, 6), NOT_IMPLEMENTED);
	CHECK_EQ(fake->calls, 0);
	dat_ia_close(ia, DAT_CLOSE_DEFAULT);
}

/* A query names an IA that nobody has open; its library is there until the query ends. */
static void extension_op__query(void)
{
	const DAT_EXTENDED_OP begin = DAT_OPEN_EXTENSION_BASE, end = DAT_CLOSE_EXTENSION_BASE;
	DAT_HANDLE provider = DAT_HANDLE_NULL;

	CHECK(!dlsym(RTLD_DEFAULT, FAKE_SYMBOL));
	CHECK_EQ(dat_extension_op(DAT_HANDLE_NULL, begin, "fake", &provider), DAT_SUCCESS);
	fake = dlsym(RTLD_DEFAULT, FAKE_SYMBOL);
	REQUIRE(fake);
	CHECK(!strcmp(fake->name, "dapl_extensions"));
	check_arg(0, "fake", sizeof "fake");
	check_arg(1, &begin, sizeof begin);
	CHECK(provider == fake->object);
	CHECK_EQ(fake->opens, 0);

	/* One that the library refuses leaves nothing behind. */
	fake->result = FAKE_RESULT;
	CHECK_EQ(dat_extension_op(DAT_HANDLE_NULL, begin, "fake", &provider), FAKE_RESULT);

	CHECK_EQ(dat_extension_op(DAT_HANDLE_NULL, end), INVALID_HANDLE(_IA));
	CHECK_EQ(dat_extension_op((void *)1, end), INVALID_HANDLE(_IA));
	CHECK_EQ(dat_extension_op(provider, end), FAKE_RESULT);
	check_call(provider, end);
	CHECK_EQ(fake->finis, 0);
	fake->result = DAT_SUCCESS;
	CHECK_EQ(dat_extension_op(provider, end), DAT_SUCCESS);
	CHECK_EQ(fake->finis, 1);
	CHECK_EQ(dat_extension_op(provider, end), INVALID_HANDLE(_IA));
}

static void extension_op__query_bad_name(void)
{
	const DAT_EXTENDED_OP begin = DAT_OPEN_EXTENSION_BASE;
	DAT_HANDLE provider = DAT_HANDLE_NULL;
	char name[DAT_NAME_MAX_LENGTH + 1];

	memset(name, 'x', sizeof name - 1);
	name[sizeof name - 1] = '\0';
	CHECK_EQ(dat_extension_op(DAT_HANDLE_NULL, begin, NULL, &provider),
		 (DAT_RETURN)DAT_CLASS_ERROR | DAT_INVALID_HANDLE | DAT_INVALID_ARG3);
	CHECK_EQ(dat_extension_op(DAT_HANDLE_NULL, begin, name, &provider),
		 (DAT_RETURN)DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | DAT_INVALID_ARG1);
	CHECK_EQ(dat_extension_op(DAT_HANDLE_NULL, begin, name + 1, &provider),
		 (DAT_RETURN)DAT_CLASS_ERROR | DAT_PROVIDER_NOT_FOUND | DAT_NAME_NOT_REGISTERED);
	CHECK(!provider);
}

static const struct tap_test tests[] = {
	T(extension_op, integers_and_pointers),
	T(extension_op, floating_point),
	T(extension_op, ia_handle),
	T(extension_op, bad_handle),
	T(extension_op, none_supported),
	T(extension_op, query),
	T(extension_op, query_bad_name),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
