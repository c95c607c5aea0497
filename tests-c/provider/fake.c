/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A provider library that does nothing but remember the call it got. Every slot of its table is
 * filled; functions.def is the list. Like the providers that are out there it is not linked
 * with libdat and takes dat_registry_* from whoever has loaded it.
 */
#ifdef DAT2
#include <dat2/dat_registry.h>
#else
#include <dat/dat_registry.h>
#endif

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fake.h"

#define EXPORT __attribute__((visibility("default")))

struct object {
	DAT_PROVIDER *provider;
};

static DAT_PROVIDER table, empty_table;
static struct object ia = { &table }, object = { &table }, empty_object = { &empty_table };

/* Exported for providers, declared in no header. */
DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE handle, DAT_IA_HANDLE *out);

static unsigned int translate(void *handle, void **out)
{
	return dats_get_ia_handle(handle, out);
}

EXPORT struct fake fake_provider = {
	.translate = translate,
	.ia = &ia,
	.object = &object,
	.empty_object = &empty_object,
};

static void begin(const char *name)
{
	fake_provider.calls++;
	fake_provider.args = 0;
	snprintf(fake_provider.name, sizeof fake_provider.name, "%s", name);
}

static void record(const void *value, size_t size)
{
	struct fake_arg *arg = &fake_provider.arg[fake_provider.args++];

	arg->size = size;
	memcpy(arg->bytes, value, size < FAKE_MAX_SIZE ? size : FAKE_MAX_SIZE);
}

/* Every call leaves something in errno, which its caller must not see. */
static DAT_RETURN end(void)
{
	errno = EDOM;
	return fake_provider.result;
}

#define R(x) record(&x, sizeof x);
/* Parameters that are lists of statements. */
/* clang-format off */
#define SLOT(n, params, records)                   \
	static DAT_RETURN n##_slot params          \
	{                                          \
		begin(#n);                         \
		records                            \
		return end();                      \
	}

#define F1(n, k, A) SLOT(n, (A a), R(a))
#define F2(n, k, A, B) SLOT(n, (A a, B b), R(a) R(b))
#define F3(n, k, A, B, C) SLOT(n, (A a, B b, C c), R(a) R(b) R(c))
#define F4(n, k, A, B, C, D) SLOT(n, (A a, B b, C c, D d), R(a) R(b) R(c) R(d))
#define F5(n, k, A, B, C, D, E) \
	SLOT(n, (A a, B b, C c, D d, E e), R(a) R(b) R(c) R(d) R(e))
#define F6(n, k, A, B, C, D, E, F) \
	SLOT(n, (A a, B b, C c, D d, E e, F f), R(a) R(b) R(c) R(d) R(e) R(f))
#define F7(n, k, A, B, C, D, E, F, G) \
	SLOT(n, (A a, B b, C c, D d, E e, F f, G g), R(a) R(b) R(c) R(d) R(e) R(f) R(g))
#define F8(n, k, A, B, C, D, E, F, G, H)                            \
	SLOT(n, (A a, B b, C c, D d, E e, F f, G g, H h),           \
	     R(a) R(b) R(c) R(d) R(e) R(f) R(g) R(h))
#define F9(n, k, A, B, C, D, E, F, G, H, I)                         \
	SLOT(n, (A a, B b, C c, D d, E e, F f, G g, H h, I i),      \
	     R(a) R(b) R(c) R(d) R(e) R(f) R(g) R(h) R(i))
#define F11(n, k, A, B, C, D, E, F, G, H, I, J, K)                            \
	SLOT(n, (A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K l),      \
	     R(a) R(b) R(c) R(d) R(e) R(f) R(g) R(h) R(i) R(j) R(l))
#define F12(n, k, A, B, C, D, E, F, G, H, I, J, K, L)                              \
	SLOT(n, (A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K l, L m),      \
	     R(a) R(b) R(c) R(d) R(e) R(f) R(g) R(h) R(i) R(j) R(l) R(m))
/* clang-format on */
#include "functions.def"

static DAT_RETURN ia_open(const DAT_NAME_PTR name, DAT_COUNT qlen, DAT_EVD_HANDLE *evd,
			  DAT_IA_HANDLE *out)
{
	(void)name;
	(void)qlen;
	(void)evd;
	fake_provider.opens++;
	*out = (DAT_IA_HANDLE)&ia;
	return DAT_SUCCESS;
}

static DAT_RETURN ia_close(DAT_IA_HANDLE handle, DAT_CLOSE_FLAGS flags)
{
	(void)handle;
	(void)flags;
	fake_provider.closes++;
	return DAT_SUCCESS;
}

/* The registry asks for the attributes when it opens and closes an IA. */
static DAT_RETURN ia_query(DAT_IA_HANDLE handle, DAT_EVD_HANDLE *evd, DAT_IA_ATTR_MASK ia_mask,
			   DAT_IA_ATTR *ia_attr, DAT_PROVIDER_ATTR_MASK provider_mask,
			   DAT_PROVIDER_ATTR *provider_attr)
{
	if (fake_provider.record_queries)
		return ia_query_slot(handle, evd, ia_mask, ia_attr, provider_mask, provider_attr);
	if (ia_mask && ia_attr) {
		memset(ia_attr, 0, sizeof *ia_attr);
#ifdef DAT2
		if (!strcmp(fake_provider.instance_data, "extensions"))
			ia_attr->extension_supported = DAT_EXTENSION_IB;
#endif
	}
	if (provider_mask && provider_attr) {
		memset(provider_attr, 0, sizeof *provider_attr);
		provider_attr->dapl_version_major = DAT_VERSION_MAJOR;
		provider_attr->dapl_version_minor = DAT_VERSION_MINOR;
		provider_attr->is_thread_safe = DAT_FALSE;
	}
	return DAT_SUCCESS;
}

#ifdef DAT2
/*
 * Reads what extension.c passes: more integers and more floating-point numbers than there are
 * registers for them.
 */
static void record_list(va_list list)
{
	for (int i = 0; i < 7; i++) {
		int number = va_arg(list, int);
		DAT_UINT64 wide = va_arg(list, DAT_UINT64);
		void *pointer = va_arg(list, void *);

		R(number);
		R(wide);
		R(pointer);
	}
}

static void record_doubles(va_list list)
{
	for (int i = 0; i < 10; i++) {
		int number = va_arg(list, int);
		double real = va_arg(list, double);

		R(number);
		R(real);
	}
}

static DAT_RETURN extended_op(DAT_HANDLE handle, DAT_EXTENDED_OP op, va_list list)
{
	begin("handle_extendedop");
	R(handle);
	R(op);
	if (op & 1)
		record_doubles(list);
	else
		record_list(list);
	return end();
}

/* Takes the address of a handle and gives the provider back through it, as a query would. */
EXPORT DAT_RETURN dapl_extensions(const DAT_NAME_PTR name, DAT_EXTENDED_OP op, va_list list)
{
	void **out = va_arg(list, void **);

	begin("dapl_extensions");
	record(name, strlen(name) + 1);
	R(op);
	*out = &object;
	return end();
}
#endif

EXPORT void dat_provider_init(const DAT_PROVIDER_INFO *info, const char *instance_data)
{
	static char name[DAT_NAME_MAX_LENGTH];

	fake_provider.inits++;
	snprintf(fake_provider.instance_data, sizeof fake_provider.instance_data, "%s",
		 instance_data);
	memcpy(name, info->ia_name, sizeof name);

#define FILL(n) table.n##_func = n##_slot;
#define F1(n, k, A) FILL(n)
#define F2(n, k, A, B) FILL(n)
#define F3(n, k, A, B, C) FILL(n)
#define F4(n, k, A, B, C, D) FILL(n)
#define F5(n, k, A, B, C, D, E) FILL(n)
#define F6(n, k, A, B, C, D, E, F) FILL(n)
#define F7(n, k, A, B, C, D, E, F, G) FILL(n)
#define F8(n, k, A, B, C, D, E, F, G, H) FILL(n)
#define F9(n, k, A, B, C, D, E, F, G, H, I) FILL(n)
#define F11(n, k, A, B, C, D, E, F, G, H, I, J, K) FILL(n)
#define F12(n, k, A, B, C, D, E, F, G, H, I, J, K, L) FILL(n)
#include "functions.def"

	table.device_name = name;
	table.ia_open_func = ia_open;
	table.ia_query_func = ia_query;
	table.ia_close_func = ia_close;
#ifdef DAT2
	table.handle_extendedop_func = extended_op;
#endif
	dat_registry_add_provider(&table, info);
}

EXPORT void dat_provider_fini(const DAT_PROVIDER_INFO *info)
{
	fake_provider.finis++;
	dat_registry_remove_provider(&table, info);
}
