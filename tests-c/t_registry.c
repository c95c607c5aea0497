/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_registry_list_providers(3DAT), dat_registry_add_provider(3DAT),
 * dat_registry_remove_provider(3DAT). What becomes of open IAs is in t_provider.c. */
#include "common.h"

#ifdef DAT2
#include <dat2/dat_registry.h>
#else
#include <dat/dat_registry.h>
#endif

#include <string.h>

/* --- dat_registry_list_providers ------------------------------------------------------------ */

enum { LIST = 512 };

static DAT_PROVIDER_INFO infos[LIST];
static DAT_PROVIDER_INFO *list[LIST];

static void make_list(void)
{
	for (int i = 0; i < LIST; i++)
		list[i] = &infos[i];
}

static bool listed(const char *name, DAT_COUNT count)
{
	for (DAT_COUNT i = 0; i < count; i++)
		if (strcmp(infos[i].ia_name, name) == 0)
			return true;
	return false;
}

static void list_providers__names_the_ia(void)
{
	DAT_COUNT count = -1;

	make_list();
	CHECK_RET(dat_registry_list_providers(LIST, &count, list), DAT_SUCCESS);
	REQUIRE(count > 0 && count <= LIST);
	CHECK(listed(tap_ia, count));
	for (DAT_COUNT i = 0; i < count; i++) {
		CHECK(memchr(infos[i].ia_name, 0, sizeof infos[i].ia_name) != NULL);
		CHECK(infos[i].is_thread_safe == DAT_TRUE || infos[i].is_thread_safe == DAT_FALSE);
	}
}

static void list_providers__truncated(void)
{
	DAT_COUNT all = 0, count = -1;

	make_list();
	OK(dat_registry_list_providers(LIST, &all, list));
	REQUIRE(all > 1);
	memset(infos, 0x55, sizeof infos);
	CHECK_RET(dat_registry_list_providers(1, &count, list), DAT_SUCCESS);
	CHECK_EQ(count, 1);
	CHECK_EQ((unsigned char)infos[1].ia_name[0], 0x55);
}

static void list_providers__how_many(void)
{
	DAT_COUNT all = 0, count = -1;

	make_list();
	OK(dat_registry_list_providers(LIST, &all, list));
	CHECK_CODE(dat_registry_list_providers(0, &count, NULL), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG1);
	CHECK_EQ(count, all);
}

/* The list is that of the configuration: what a provider has added is not in it. */
static void list_providers__without_what_was_added(void)
{
	static DAT_PROVIDER provider;
	static char name[] = "unlisted-adapter";
	DAT_PROVIDER_INFO info = { .dapl_version_major = DX_MAJOR, .dapl_version_minor = DX_MINOR };
	DAT_COUNT before = -1, count = -2;

	make_list();
	OK(dat_registry_list_providers(LIST, &before, list));
	strcpy(info.ia_name, name);
	provider.device_name = name;
	OK(dat_registry_add_provider(&provider, &info));
	OK(dat_registry_list_providers(LIST, &count, list));
	CHECK_EQ(count, before);
	for (DAT_COUNT i = 0; i < count; i++)
		CHECK(strcmp(list[i]->ia_name, name) != 0);
	OK(dat_registry_remove_provider(&provider, &info));
}

/* Whatever is wrong, the count is that of the entries, so that the caller can make room for them. */
static void list_providers__arguments(void)
{
	DAT_COUNT all = 0, count = -1;

	make_list();
	OK(dat_registry_list_providers(LIST, &all, list));
	CHECK_CODE(dat_registry_list_providers(LIST, NULL, list), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
	CHECK_CODE(dat_registry_list_providers(LIST, &count, NULL), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG3);
	CHECK_EQ(count, all);
	count = -1;
	CHECK_CODE(dat_registry_list_providers(-1, &count, list), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG1);
	CHECK_EQ(count, all);
	count = -1;
	list[0] = NULL;
	CHECK_CODE(dat_registry_list_providers(LIST, &count, list), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG3);
	CHECK_EQ(count, all);
}

/* What is listed can be opened by its key, and the list is the same each time. */
static void list_providers__can_be_opened(void)
{
	static DAT_PROVIDER_INFO again[LIST];
	DAT_COUNT all = 0, count = 0;
	bool found = false;

	make_list();
	memset(infos, 0xff, sizeof infos);
	OK(dat_registry_list_providers(LIST, &all, list));
	for (DAT_COUNT i = 0; i < all; i++) {
		DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
		DAT_IA_HANDLE ia;

		if (strcmp(infos[i].ia_name, tap_ia) != 0 ||
		    infos[i].dapl_version_major != DX_MAJOR)
			continue;
		found = true;
		OK(dat_ia_openv(infos[i].ia_name, 8, &evd, &ia, infos[i].dapl_version_major,
				infos[i].dapl_version_minor, infos[i].is_thread_safe));
		OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
	}
	CHECK(found);
	for (int i = 0; i < LIST; i++)
		list[i] = &again[i];
	OK(dat_registry_list_providers(all, &count, list));
	CHECK_EQ(count, all);
	for (DAT_COUNT i = 0; i < all; i++) {
		CHECK(strcmp(again[i].ia_name, infos[i].ia_name) == 0);
		CHECK_EQ(again[i].dapl_version_major, infos[i].dapl_version_major);
		CHECK_EQ(again[i].dapl_version_minor, infos[i].dapl_version_minor);
		CHECK_EQ(again[i].is_thread_safe, infos[i].is_thread_safe);
	}
}

/* --- dat_registry_add_provider, dat_registry_remove_provider ---------------------------------- */

static DAT_RETURN open_calls(const DAT_NAME_PTR name, DAT_COUNT length, DAT_EVD_HANDLE *evd,
			     DAT_IA_HANDLE *ia)
{
	(void)name;
	(void)length;
	(void)evd;
	(void)ia;
	return DAT_CLASS_ERROR | DAT_MODEL_NOT_SUPPORTED;
}

static void add_provider__and_remove(void)
{
	static DAT_PROVIDER provider;
	static char name[] = "test-adapter";
	DAT_PROVIDER_INFO info = { .dapl_version_major = DX_MAJOR,
				   .dapl_version_minor = DX_MINOR,
				   .is_thread_safe = DAT_FALSE };
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	strcpy(info.ia_name, name);
	provider.device_name = name;
	provider.ia_open_func = (DAT_IA_OPEN_FUNC)open_calls;
	CHECK_RET(dat_ia_open(name, 8, &evd, &ia), DAT_PROVIDER_NOT_FOUND);
	CHECK_RET(dat_registry_add_provider(&provider, &info), DAT_SUCCESS);
	CHECK_RET(dat_registry_add_provider(&provider, &info), DAT_PROVIDER_ALREADY_REGISTERED);
	/* The provider's own answer. */
	CHECK_RET(dat_ia_open(name, 8, &evd, &ia), DAT_MODEL_NOT_SUPPORTED);
	CHECK_RET(dat_registry_remove_provider(&provider, &info), DAT_SUCCESS);
	CHECK_RET(dat_ia_open(name, 8, &evd, &ia), DAT_PROVIDER_NOT_FOUND);
	CHECK_CODE(dat_registry_remove_provider(&provider, &info), DAT_PROVIDER_NOT_FOUND,
		   DAT_NAME_NOT_REGISTERED);
}

static void add_provider__arguments(void)
{
	static DAT_PROVIDER provider;
	DAT_PROVIDER_INFO info = { .ia_name = "test-adapter" };

	CHECK_CODE(dat_registry_add_provider(NULL, &info), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
	CHECK_CODE(dat_registry_add_provider(&provider, NULL), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
	CHECK_CODE(dat_registry_remove_provider(NULL, &info), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG1);
	CHECK_CODE(dat_registry_remove_provider(&provider, NULL), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
}

/* One provider, with one table, under several names; each is an adapter of its own. */
static void add_provider__several_names(void)
{
	static DAT_PROVIDER provider;
	static char name[] = "port";
	DAT_PROVIDER_INFO info[2] = {
		{ .ia_name = "port-1",
		  .dapl_version_major = DX_MAJOR,
		  .dapl_version_minor = DX_MINOR },
		{ .ia_name = "port-2",
		  .dapl_version_major = DX_MAJOR,
		  .dapl_version_minor = DX_MINOR },
	};
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia;

	provider.device_name = name;
	provider.ia_open_func = (DAT_IA_OPEN_FUNC)open_calls;
	for (int i = 0; i < 2; i++) {
		CHECK_RET(dat_registry_add_provider(&provider, &info[i]), DAT_SUCCESS);
		CHECK_RET(dat_ia_open(info[i].ia_name, 8, &evd, &ia), DAT_MODEL_NOT_SUPPORTED);
	}
	CHECK_RET(dat_registry_remove_provider(&provider, &info[0]), DAT_SUCCESS);
	CHECK_RET(dat_ia_open(info[0].ia_name, 8, &evd, &ia), DAT_PROVIDER_NOT_FOUND);
	CHECK_RET(dat_ia_open(info[1].ia_name, 8, &evd, &ia), DAT_MODEL_NOT_SUPPORTED);
	CHECK_RET(dat_registry_remove_provider(&provider, &info[1]), DAT_SUCCESS);
}

static DAT_RETURN other_open_calls(const DAT_NAME_PTR name, DAT_COUNT length, DAT_EVD_HANDLE *evd,
				   DAT_IA_HANDLE *ia)
{
	(void)name;
	(void)length;
	(void)evd;
	(void)ia;
	return DAT_CLASS_ERROR | DAT_QUEUE_FULL;
}

/* Name, version and thread safety are the key together; an open finds the table of its key. What is
 * registered is a copy of the key, and the table itself. */
static void add_provider__parts_of_the_key(void)
{
	static DAT_PROVIDER one, other;
	static char name[] = "key-adapter";
	DAT_PROVIDER_INFO info = { .ia_name = "key-adapter",
				   .dapl_version_major = DX_MAJOR,
				   .dapl_version_minor = DX_MINOR,
				   .is_thread_safe = DAT_FALSE };
	DAT_PROVIDER_INFO newer = info, changed = info, safe = info;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia;

	one.device_name = other.device_name = name;
	one.ia_open_func = (DAT_IA_OPEN_FUNC)open_calls;
	other.ia_open_func = (DAT_IA_OPEN_FUNC)other_open_calls;
	newer.dapl_version_minor = DX_MINOR + 3;
	OK(dat_registry_add_provider(&one, &changed));
	strcpy(changed.ia_name, "overwritten");
	CHECK_RET(dat_registry_add_provider(&other, &info), DAT_PROVIDER_ALREADY_REGISTERED);
	CHECK_RET(dat_registry_add_provider(&other, &newer), DAT_SUCCESS);
	CHECK_RET(dat_ia_openv(name, 8, &evd, &ia, DX_MAJOR, DX_MINOR, DAT_FALSE),
		  DAT_MODEL_NOT_SUPPORTED);
	CHECK_RET(dat_ia_openv(name, 8, &evd, &ia, DX_MAJOR, DX_MINOR + 3, DAT_FALSE),
		  DAT_QUEUE_FULL);
	CHECK_RET(dat_ia_openv(name, 8, &evd, &ia, DX_MAJOR, DX_MINOR + 1, DAT_FALSE),
		  DAT_PROVIDER_NOT_FOUND);
	CHECK_RET(dat_ia_openv(name, 8, &evd, &ia, DX_MAJOR + 1, DX_MINOR, DAT_FALSE),
		  DAT_PROVIDER_NOT_FOUND);
	safe.is_thread_safe = DAT_TRUE;
	CHECK_RET(dat_registry_add_provider(&other, &safe), DAT_SUCCESS);
	CHECK_RET(dat_ia_openv(name, 8, &evd, &ia, DX_MAJOR, DX_MINOR, DAT_TRUE), DAT_QUEUE_FULL);
	CHECK_RET(dat_ia_openv(name, 8, &evd, &ia, DX_MAJOR, DX_MINOR, DAT_FALSE),
		  DAT_MODEL_NOT_SUPPORTED);
	CHECK_RET(dat_registry_remove_provider(&other, &safe), DAT_SUCCESS);
	/* The table may change still. */
	one.ia_open_func = (DAT_IA_OPEN_FUNC)other_open_calls;
	CHECK_RET(dat_ia_openv(name, 8, &evd, &ia, DX_MAJOR, DX_MINOR, DAT_FALSE), DAT_QUEUE_FULL);
	CHECK_RET(dat_registry_remove_provider(&one, &changed), DAT_PROVIDER_NOT_FOUND);
	CHECK_RET(dat_registry_remove_provider(&other, &newer), DAT_SUCCESS);
	CHECK_RET(dat_ia_openv(name, 8, &evd, &ia, DX_MAJOR, DX_MINOR, DAT_FALSE), DAT_QUEUE_FULL);
	/* The key says which: any table will do. */
	CHECK_RET(dat_registry_remove_provider(&other, &info), DAT_SUCCESS);
	CHECK_RET(dat_ia_openv(name, 8, &evd, &ia, DX_MAJOR, DX_MINOR, DAT_FALSE),
		  DAT_PROVIDER_NOT_FOUND);
}

/* The name has 255 characters at most, with its end in the field. */
static void add_provider__length_of_the_name(void)
{
	static DAT_PROVIDER provider;
	static char name[DAT_NAME_MAX_LENGTH];
	DAT_PROVIDER_INFO info = { .dapl_version_major = DX_MAJOR, .dapl_version_minor = DX_MINOR };
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia;

	memset(name, 'n', sizeof name - 1);
	provider.device_name = name;
	provider.ia_open_func = (DAT_IA_OPEN_FUNC)open_calls;
	memset(info.ia_name, 'n', sizeof info.ia_name);
	CHECK_CODE(dat_registry_add_provider(&provider, &info), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
	CHECK_CODE(dat_registry_remove_provider(&provider, &info), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
	info.ia_name[sizeof info.ia_name - 1] = 0;
	CHECK_RET(dat_registry_add_provider(&provider, &info), DAT_SUCCESS);
	CHECK_RET(dat_ia_open(name, 8, &evd, &ia), DAT_MODEL_NOT_SUPPORTED);
	CHECK_RET(dat_registry_remove_provider(&provider, &info), DAT_SUCCESS);
}

/* --- dat_registry_providers_related (2.0) ---------------------------------------------------- */

#ifdef LIBDAT_HAS_PROVIDERS_RELATED
static void providers_related__asked(void)
{
	static DAT_PROVIDER provider;
	static char other[] = "of-another-vendor", nobody[] = "nobody";
	DAT_PROVIDER_INFO info = { .dapl_version_major = DX_MAJOR,
				   .dapl_version_minor = DX_MINOR,
				   .is_thread_safe = DAT_TRUE };
	DAT_NAME_PTR ours = (DAT_NAME_PTR)(uintptr_t)tap_ia;
	DAT_HA_RELATIONSHIP answer = DAT_HA_EXTENSION_BASE;

	/* No IA of ours backs up another one. */
	OK(dat_registry_providers_related(ours, ours, &answer));
	CHECK_EQ(answer, DAT_HA_FALSE);
	CHECK_RET(dat_registry_providers_related(ours, other, &answer), DAT_PROVIDER_NOT_FOUND);
	strcpy(info.ia_name, other);
	provider.device_name = other;
	OK(dat_registry_add_provider(&provider, &info));
	OK(dat_registry_providers_related(ours, other, &answer));
	CHECK_EQ(answer, DAT_HA_UNKNOWN);
	OK(dat_registry_remove_provider(&provider, &info));
	CHECK_CODE(dat_registry_providers_related(NULL, ours, &answer), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG1);
	CHECK_CODE(dat_registry_providers_related(ours, NULL, &answer), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
	CHECK_CODE(dat_registry_providers_related(ours, ours, NULL), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG3);
	CHECK_RET(dat_registry_providers_related(nobody, ours, &answer), DAT_PROVIDER_NOT_FOUND);
}
#endif

static const struct tap_test tests[] = {
	T(list_providers, names_the_ia),
	T(list_providers, truncated),
	T(list_providers, how_many),
	T(list_providers, without_what_was_added),
	T(list_providers, arguments),
	T(list_providers, can_be_opened),
	T(add_provider, and_remove),
	T(add_provider, arguments),
	T(add_provider, several_names),
	T(add_provider, parts_of_the_key),
	T(add_provider, length_of_the_name),
#ifdef LIBDAT_HAS_PROVIDERS_RELATED
	T(providers_related, asked),
#endif
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
