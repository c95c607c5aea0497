/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The IAs of a provider that the program has registered itself: dat_registry_add_provider(3DAT),
 * dat_registry_remove_provider(3DAT), and dats_get_ia_handle, which has no page. */
#include "common.h"

#ifdef DAT2
#include <dat2/dat_registry.h>
#else
#include <dat/dat_registry.h>
#endif

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* An IA of a provider that can be opened and closed, and another object of it. */
static struct {
	DAT_PROVIDER *provider;
} toy_ia, toy_pz;

/* The handle that the provider was called with last. */
static void *toy_called_with;

static DAT_RETURN toy_open(const DAT_NAME_PTR name, DAT_COUNT length, DAT_EVD_HANDLE *evd,
			   DAT_IA_HANDLE *ia)
{
	(void)name;
	(void)length;
	(void)evd;
	*ia = (DAT_IA_HANDLE)(void *)&toy_ia;
	return DAT_SUCCESS;
}

static DAT_RETURN toy_query(DAT_IA_HANDLE ia, DAT_EVD_HANDLE *evd, DAT_IA_ATTR_MASK ia_mask,
			    DAT_IA_ATTR *ia_attr, DAT_PROVIDER_ATTR_MASK provider_mask,
			    DAT_PROVIDER_ATTR *provider_attr)
{
	toy_called_with = ia;
	(void)evd;
	if (ia_mask != 0 && ia_attr != NULL)
		memset(ia_attr, 0, sizeof *ia_attr);
	if (provider_mask != 0 && provider_attr != NULL)
		memset(provider_attr, 0, sizeof *provider_attr);
	return DAT_SUCCESS;
}

static DAT_RETURN toy_close(DAT_IA_HANDLE ia, DAT_CLOSE_FLAGS flags)
{
	(void)ia;
	(void)flags;
	return DAT_SUCCESS;
}

static DAT_RETURN toy_pz_free(DAT_PZ_HANDLE pz)
{
	toy_called_with = pz;
	return DAT_SUCCESS;
}

static DAT_PROVIDER toy = {
	.device_name = "toy-adapter",
	.ia_open_func = (DAT_IA_OPEN_FUNC)toy_open,
	.ia_query_func = (DAT_IA_QUERY_FUNC)toy_query,
	.ia_close_func = (DAT_IA_CLOSE_FUNC)toy_close,
	.pz_free_func = (DAT_PZ_FREE_FUNC)toy_pz_free,
};
static DAT_PROVIDER_INFO toy_info = { .ia_name = "toy-adapter",
				      .dapl_version_major = DX_MAJOR,
				      .dapl_version_minor = DX_MINOR,
				      .is_thread_safe = DAT_FALSE };

/* Registers the provider, and opens its IA. */
static DAT_IA_HANDLE open_toy(void)
{
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;

	toy_ia.provider = toy_pz.provider = &toy;
	OK(dat_registry_add_provider(&toy, &toy_info));
	OK(dat_ia_open(toy_info.ia_name, 8, &evd, &ia));
	return ia;
}

static void remove_provider__in_use(void)
{
	DAT_IA_HANDLE ia = open_toy(), second = DAT_HANDLE_NULL;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	CHECK_RET(dat_registry_remove_provider(&toy, &toy_info), DAT_PROVIDER_IN_USE);
	/* It is as it was: another one can be opened, and is counted. */
	OK(dat_ia_open(toy_info.ia_name, 8, &evd, &second));
	CHECK_RET(dat_ia_close(second, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	CHECK_RET(dat_registry_remove_provider(&toy, &toy_info), DAT_PROVIDER_IN_USE);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	CHECK_RET(dat_registry_remove_provider(&toy, &toy_info), DAT_SUCCESS);
}

/* A call reaches the provider with its own handle of the IA or of another object, while an IA of it is
 * open. */
static void add_provider__handles(void)
{
	DAT_PZ_HANDLE pz = (DAT_PZ_HANDLE)(void *)&toy_pz;
	DAT_IA_HANDLE ia = open_toy();

	toy_called_with = NULL;
	CHECK_RET(dat_ia_query(ia, NULL, 0, NULL, 0, NULL), DAT_SUCCESS);
	CHECK(toy_called_with == &toy_ia);
	CHECK_RET(dat_pz_free(pz), DAT_SUCCESS);
	CHECK(toy_called_with == &toy_pz);
	OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
	toy_called_with = NULL;
	CHECK_CODE(dat_ia_query(ia, NULL, 0, NULL, 0, NULL), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_IA);
	CHECK_CODE(dat_pz_free(pz), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
	CHECK(toy_called_with == NULL);
	OK(dat_registry_remove_provider(&toy, &toy_info));
}

/* Exported for provider libraries, declared in no header. */
DAT_RETURN dats_get_ia_handle(DAT_IA_HANDLE handle, DAT_IA_HANDLE *other);

/* dats_get_ia_handle gives the provider's handle for that of the program, and the other way round; a
 * handle of our providers is the same for both. */
static void get_ia_handle__both_ways(void)
{
	DAT_IA_HANDLE own = (DAT_IA_HANDLE)(void *)&toy_ia, other = DAT_HANDLE_NULL;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia = open_toy(), ours = open_ia(&evd);

	CHECK_RET(dats_get_ia_handle(ia, &other), DAT_SUCCESS);
	CHECK(other == own);
	CHECK_RET(dats_get_ia_handle(own, &other), DAT_SUCCESS);
	CHECK(other == ia);
	CHECK_RET(dats_get_ia_handle(ours, &other), DAT_SUCCESS);
	CHECK(other == ours);
	CHECK_CODE(dats_get_ia_handle(ia, NULL), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	OK(dat_ia_close(ours, DAT_CLOSE_GRACEFUL_FLAG));
	OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
	CHECK_CODE(dats_get_ia_handle(ia, &other), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
	CHECK_CODE(dats_get_ia_handle(own, &other), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
	OK(dat_registry_remove_provider(&toy, &toy_info));
}

/* A child takes over what the program has registered, with its open IAs; those of our providers, which
 * begin anew, are unknown to it. */
static void fork__child_has_what_was_added(void)
{
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia = open_toy(), ours = open_ia(&evd), other = DAT_HANDLE_NULL;
	pid_t child;
	int status;

	fflush(stdout);
	child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		/* A child that hangs dies of the signal. */
		alarm(20);
		tap_begin(tap_ia);
		CHECK_CODE(dats_get_ia_handle(ours, &other), DAT_INVALID_HANDLE,
			   DAT_INVALID_HANDLE_IA);
		CHECK_RET(dats_get_ia_handle(ia, &other), DAT_SUCCESS);
		CHECK(other == (DAT_IA_HANDLE)(void *)&toy_ia);
		CHECK_RET(dat_registry_remove_provider(&toy, &toy_info), DAT_PROVIDER_IN_USE);
		ours = open_ia(&evd);
		CHECK_RET(dat_ia_close(ours, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	}
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	CHECK_RET(dat_registry_remove_provider(&toy, &toy_info), DAT_SUCCESS);
	if (child == 0)
		exit(tap_status());
	OK(dat_ia_close(ours, DAT_CLOSE_GRACEFUL_FLAG));
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK_EQ(status, 0);
}

static const struct tap_test tests[] = {
	T(remove_provider, in_use),
	T(add_provider, handles),
	T(get_ia_handle, both_ways),
	T(fork, child_has_what_was_added),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
