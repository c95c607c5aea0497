/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Every function that goes to a provider: reaches the slot of its name with every argument as it
 * was given, returns what the slot returned, leaves errno alone, and answers a bad handle with
 * the code of its kind. One test a function, made from functions.def.
 *
 * Not tested here: our own providers, and values that look like pointers while a loaded provider
 * has an IA open (they are followed, as by every libdat).
 */
#include <errno.h>
#include <stdint.h>

#include "common.h"

#define INVALID_IA INVALID_HANDLE(_IA)
#define INVALID_ANY INVALID_HANDLE(1)
#define INVALID_EP INVALID_HANDLE(_EP)
#define INVALID_LMR INVALID_HANDLE(_LMR)
#define INVALID_RMR INVALID_HANDLE(_RMR)
#define INVALID_PZ INVALID_HANDLE(_PZ)
#define INVALID_PSP INVALID_HANDLE(_PSP)
#define INVALID_RSP INVALID_HANDLE(_RSP)
#define INVALID_CR INVALID_HANDLE(_CR)
#define INVALID_CNO INVALID_HANDLE(_CNO)
#define INVALID_EVD_REQUEST INVALID_HANDLE(_EVD_REQUEST)
#define INVALID_SRQ INVALID_HANDLE(_SRQ)

enum kind {
	KIND_IA,
	KIND_ANY,
	KIND_EP,
	KIND_LMR,
	KIND_RMR,
	KIND_PZ,
	KIND_PSP,
	KIND_RSP,
	KIND_CR,
	KIND_CNO,
	KIND_EVD_REQUEST,
	KIND_SRQ
};

/* Calls one function with distinct bytes in every argument but the handle. */
typedef DAT_RETURN (*call_func)(void *handle);

/* Compares the recorded arguments behind the handle with those of the last call. */
typedef void (*compare_func)(void);

static unsigned char next_byte;

static void fill(void *arguments, size_t size)
{
	unsigned char *bytes = arguments;

	for (size_t i = 0; i < size; i++)
		bytes[i] = next_byte += 7;
}

static int compared;

static void compare(const void *value, size_t size)
{
	const struct fake_arg *arg = &fake->arg[++compared];

	CHECK_EQ(arg->size, size);
	CHECK(!memcmp(arg->bytes, value, size));
}

/* Values that are no handle at all, whatever is open: NULL, small numbers, odd addresses. */
static void refuses_what_is_no_handle(call_func call, DAT_RETURN code)
{
	static struct {
		void *first_word, *second_word;
	} object;
	char *address = (char *)&object;
	void *const values[] = { NULL,	      (void *)2,   (void *)3,	 (void *)63,
				 (void *)64,  (void *)100, (void *)4095, address + 1,
				 address + 2, address + 4, address + 7,	 (void *)UINTPTR_MAX };

	for (size_t i = 0; i < sizeof values / sizeof *values; i++)
		CHECK_EQ(call(values[i]), code);
	/* A pointer, but its first word leads nowhere. */
	CHECK_EQ(call(&object), code);
}

/* Without a loaded provider nothing is followed, so any bit pattern will do. */
static void refuses_any_pattern(call_func call, DAT_RETURN code)
{
	int on_stack;
	uint64_t pattern = 0x9e3779b97f4a7c15u;

	CHECK_EQ(call(&on_stack), code);
	CHECK_EQ(call((void *)(uintptr_t)refuses_any_pattern), code);
	CHECK_EQ(call((void *)1), code);
	for (int i = 0; i < 4096; i++) {
		pattern ^= pattern << 13;
		pattern ^= pattern >> 7;
		pattern ^= pattern << 17;
		CHECK_EQ(call((void *)(uintptr_t)pattern), code);
		CHECK_EQ(call((void *)(uintptr_t)(pattern >> 17 << 4)), code);
	}
}

static void reaches_slot(const char *name, call_func call, compare_func compare_args, void *handle,
			 void *expected)
{
	int calls = fake->calls;

	errno = EXDEV;
	CHECK_EQ(call(handle), FAKE_RESULT);
	CHECK_EQ(errno, EXDEV);
	CHECK_EQ(fake->calls, calls + 1);
	if (strcmp(fake->name, name))
		tap_fail(__FILE__, __LINE__, "%s arrived in slot %s_func", name, fake->name);
	CHECK_EQ(fake->arg[0].size, sizeof expected);
	CHECK(!memcmp(fake->arg[0].bytes, &expected, sizeof expected));
	compared = 0;
	compare_args();
	CHECK_EQ(fake->args, compared + 1);
}

static void test(const char *name, enum kind kind, DAT_RETURN code, call_func call,
		 compare_func compare_args)
{
	DAT_IA_HANDLE ia;

	refuses_any_pattern(call, code);
	refuses_what_is_no_handle(call, code);

	ia = open_fake("fake");
	fake->record_queries = true;
	refuses_what_is_no_handle(call, code);
	CHECK_EQ(fake->calls, 0);
	if (kind == KIND_IA || kind == KIND_ANY)
		reaches_slot(name, call, compare_args, ia, fake->ia);
	else
		CHECK_EQ(call(ia), code);
	if (kind == KIND_IA) {
		/* An IA is known to its consumer by its index alone. */
		CHECK_EQ(call(fake->ia), code);
	} else {
		reaches_slot(name, call, compare_args, fake->object, fake->object);
		CHECK_EQ(call(fake->empty_object), NOT_IMPLEMENTED);
	}
	fake->record_queries = false;
	CHECK_EQ(dat_ia_close(ia, DAT_CLOSE_DEFAULT), DAT_SUCCESS);
	refuses_any_pattern(call, code);
}

/* What the registry does with the IA handles of a loaded provider. */
static void ia_handle__index(void)
{
	DAT_IA_HANDLE ia = open_fake("fake"), again = DAT_HANDLE_NULL;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	char name[] = "fake";
	void *other = NULL;

	CHECK_EQ((uintptr_t)ia, 1);
	CHECK_EQ(fake->translate(ia, &other), DAT_SUCCESS);
	CHECK(other == fake->ia);
	CHECK_EQ(fake->translate(fake->ia, &other), DAT_SUCCESS);
	CHECK(other == ia);
	CHECK_EQ(fake->translate(fake->object, &other), INVALID_IA);
	CHECK_EQ(fake->translate(NULL, &other), INVALID_IA);
	CHECK_EQ(fake->translate((void *)2, &other), INVALID_IA);

	CHECK_EQ(dat_ia_open(name, 8, &evd, &again), DAT_SUCCESS);
	CHECK_EQ((uintptr_t)again, 2);
	CHECK_EQ(fake->inits, 1);
	CHECK_EQ(dat_ia_close(ia, DAT_CLOSE_DEFAULT), DAT_SUCCESS);
	CHECK_EQ(dat_ia_close(ia, DAT_CLOSE_DEFAULT), INVALID_IA);
	CHECK_EQ(fake->closes, 1);
	CHECK_EQ(fake->finis, 0);
	CHECK_EQ(dat_ia_close(again, DAT_CLOSE_DEFAULT), DAT_SUCCESS);
	CHECK_EQ(fake->closes, 2);
	CHECK_EQ(fake->finis, 1);
}

/* The functions that no provider answers leave errno alone too. */
static void registry__errno(void)
{
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	char name[] = "there is none";
	const char *kind = NULL, *subtype = NULL;
	DAT_COUNT count = 0;

	errno = EXDEV;
	CHECK_EQ(dat_ia_open(name, 8, &evd, &ia),
		 (DAT_RETURN)DAT_CLASS_ERROR | DAT_PROVIDER_NOT_FOUND | DAT_NAME_NOT_REGISTERED);
	CHECK_EQ(errno, EXDEV);
	CHECK(!ia);
	CHECK_EQ(dat_ia_close(ia, DAT_CLOSE_DEFAULT), INVALID_IA);
	CHECK_EQ(errno, EXDEV);
	CHECK_EQ(dat_registry_list_providers(0, &count, NULL),
		 (DAT_RETURN)DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | DAT_INVALID_ARG1);
	CHECK_EQ(count, 2);
	CHECK_EQ(errno, EXDEV);
	CHECK_EQ(dat_strerror(INVALID_IA, &kind, &subtype), DAT_SUCCESS);
	REQUIRE(kind && subtype);
	CHECK(!strcmp(kind, "DAT_INVALID_HANDLE"));
	CHECK(!strcmp(subtype, "DAT_INVALID_HANDLE_IA"));
	CHECK_EQ(errno, EXDEV);
}

#define E(x) compare(&v.x, sizeof v.x);
/* Parameters that are lists of declarations. */
/* clang-format off */
#define FUNCTION(n, k, members, args, compares)                                       \
	static struct {                                                               \
		members                                                               \
	} n##_args;                                                                   \
	static DAT_RETURN n##_call(void *handle)                                      \
	{                                                                             \
		fill(&n##_args, sizeof n##_args);                                     \
		memcpy(&n##_args, &handle, sizeof handle);                            \
		__typeof__(n##_args) v = n##_args;                                    \
		return dat_##n args;                                                  \
	}                                                                             \
	static void n##_compare(void)                                                 \
	{                                                                             \
		__typeof__(n##_args) v = n##_args;                                    \
		(void)v;                                                              \
		compares                                                              \
	}                                                                             \
	static void n##__dispatch(void)                                               \
	{                                                                             \
		test(#n, KIND_##k, INVALID_##k, n##_call, n##_compare);               \
	}

#define F1(n, k, A) FUNCTION(n, k, A a;, (v.a), )
#define F2(n, k, A, B) FUNCTION(n, k, A a; B b;, (v.a, v.b), E(b))
#define F3(n, k, A, B, C) FUNCTION(n, k, A a; B b; C c;, (v.a, v.b, v.c), E(b) E(c))
#define F4(n, k, A, B, C, D) \
	FUNCTION(n, k, A a; B b; C c; D d;, (v.a, v.b, v.c, v.d), E(b) E(c) E(d))
#define F5(n, k, A, B, C, D, E_)                                                      \
	FUNCTION(n, k, A a; B b; C c; D d; E_ e;, (v.a, v.b, v.c, v.d, v.e),          \
		 E(b) E(c) E(d) E(e))
#define F6(n, k, A, B, C, D, E_, F)                                                   \
	FUNCTION(n, k, A a; B b; C c; D d; E_ e; F f;, (v.a, v.b, v.c, v.d, v.e, v.f), \
		 E(b) E(c) E(d) E(e) E(f))
#define F7(n, k, A, B, C, D, E_, F, G)                                                \
	FUNCTION(n, k, A a; B b; C c; D d; E_ e; F f; G g;,                           \
		 (v.a, v.b, v.c, v.d, v.e, v.f, v.g), E(b) E(c) E(d) E(e) E(f) E(g))
#define F8(n, k, A, B, C, D, E_, F, G, H)                                             \
	FUNCTION(n, k, A a; B b; C c; D d; E_ e; F f; G g; H h;,                      \
		 (v.a, v.b, v.c, v.d, v.e, v.f, v.g, v.h),                            \
		 E(b) E(c) E(d) E(e) E(f) E(g) E(h))
#define F9(n, k, A, B, C, D, E_, F, G, H, I)                                          \
	FUNCTION(n, k, A a; B b; C c; D d; E_ e; F f; G g; H h; I i;,                 \
		 (v.a, v.b, v.c, v.d, v.e, v.f, v.g, v.h, v.i),                       \
		 E(b) E(c) E(d) E(e) E(f) E(g) E(h) E(i))
#define F11(n, k, A, B, C, D, E_, F, G, H, I, J, K)                                   \
	FUNCTION(n, k, A a; B b; C c; D d; E_ e; F f; G g; H h; I i; J j; K l;,       \
		 (v.a, v.b, v.c, v.d, v.e, v.f, v.g, v.h, v.i, v.j, v.l),             \
		 E(b) E(c) E(d) E(e) E(f) E(g) E(h) E(i) E(j) E(l))
#define F12(n, k, A, B, C, D, E_, F, G, H, I, J, K, L)                                \
	FUNCTION(n, k, A a; B b; C c; D d; E_ e; F f; G g; H h; I i; J j; K l; L m;,  \
		 (v.a, v.b, v.c, v.d, v.e, v.f, v.g, v.h, v.i, v.j, v.l, v.m),        \
		 E(b) E(c) E(d) E(e) E(f) E(g) E(h) E(i) E(j) E(l) E(m))
/* clang-format on */
#include "functions.def"

static const struct tap_test tests[] = {
#define F1(n, k, A) T(n, dispatch),
#define F2(n, k, A, B) T(n, dispatch),
#define F3(n, k, A, B, C) T(n, dispatch),
#define F4(n, k, A, B, C, D) T(n, dispatch),
#define F5(n, k, A, B, C, D, E_) T(n, dispatch),
#define F6(n, k, A, B, C, D, E_, F) T(n, dispatch),
#define F7(n, k, A, B, C, D, E_, F, G) T(n, dispatch),
#define F8(n, k, A, B, C, D, E_, F, G, H) T(n, dispatch),
#define F9(n, k, A, B, C, D, E_, F, G, H, I) T(n, dispatch),
#define F11(n, k, A, B, C, D, E_, F, G, H, I, J, K) T(n, dispatch),
#define F12(n, k, A, B, C, D, E_, F, G, H, I, J, K, L) T(n, dispatch),
#include "functions.def"
	T(ia_handle, index),
	T(registry, errno),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
