/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * dat_registry_list_providers(3DAT), dat_registry_add_provider(3DAT),
 * dat_registry_remove_provider(3DAT), dat_strerror(3DAT), and what the configuration file does.
 * A library may read its configuration when it is loaded, so the tests of the file start this
 * program once more, with DAT_OVERRIDE set: "t_registry --open NAME" prints what dat_ia_open
 * returns, "t_registry --list" the names of the registered adapters.
 */
#include "common.h"

#ifdef DAT2
#include <dat2/dat_registry.h>
#else
#include <dat/dat_registry.h>
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

static void list_providers__arguments(void)
{
	DAT_COUNT count = -1;

	make_list();
	CHECK_CODE(dat_registry_list_providers(LIST, NULL, list), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
	CHECK_CODE(dat_registry_list_providers(LIST, &count, NULL), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG3);
	list[0] = NULL;
	CHECK_CODE(dat_registry_list_providers(LIST, &count, list), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG3);
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

/* An IA of a provider that can be opened and closed. */
static struct {
	DAT_PROVIDER *provider;
} toy_ia;

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
	(void)ia;
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

static void remove_provider__in_use(void)
{
	static DAT_PROVIDER provider;
	static char name[] = "toy-adapter";
	DAT_PROVIDER_INFO info = { .ia_name = "toy-adapter",
				   .dapl_version_major = DX_MAJOR,
				   .dapl_version_minor = DX_MINOR,
				   .is_thread_safe = DAT_FALSE };
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	toy_ia.provider = &provider;
	provider.device_name = name;
	provider.ia_open_func = (DAT_IA_OPEN_FUNC)toy_open;
	provider.ia_query_func = (DAT_IA_QUERY_FUNC)toy_query;
	provider.ia_close_func = (DAT_IA_CLOSE_FUNC)toy_close;
	OK(dat_registry_add_provider(&provider, &info));
	OK(dat_ia_open(name, 8, &evd, &ia));
	CHECK_RET(dat_registry_remove_provider(&provider, &info), DAT_PROVIDER_IN_USE);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	CHECK_RET(dat_registry_remove_provider(&provider, &info), DAT_SUCCESS);
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

/* --- dat_strerror --------------------------------------------------------------------------- */

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

/* --- the configuration file ----------------------------------------------------------------- */

struct output {
	char out[4096], err[4096];
	int status;
};

static char conf_path[] = "/tmp/libdat-test-XXXXXX";

static void write_conf(const char *text)
{
	int fd = mkstemp(conf_path);

	REQUIRE(fd >= 0);
	REQUIRE(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

static void slurp(int fd, char *to, size_t size)
{
	size_t have = 0;
	ssize_t got;

	lseek(fd, 0, SEEK_SET);
	while (have + 1 < size && (got = read(fd, to + have, size - 1 - have)) > 0)
		have += (size_t)got;
	to[have] = 0;
	close(fd);
}

/* Runs this program once more with this configuration file. */
static struct output again(const char *conf, const char *option, const char *name)
{
	struct output o;
	FILE *out = tmpfile(), *err = tmpfile();
	pid_t child;
	int status;

	REQUIRE(out != NULL && err != NULL);
	child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		dup2(fileno(out), 1);
		dup2(fileno(err), 2);
		setenv("DAT_OVERRIDE", conf, 1);
		execl(tap_self, tap_self, option, name, (char *)NULL);
		_exit(127);
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	o.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
	slurp(dup(fileno(out)), o.out, sizeof o.out);
	slurp(dup(fileno(err)), o.err, sizeof o.err);
	fclose(out);
	fclose(err);
	return o;
}

/* The type of the code with which the second run opened an adapter of this name. */
static DAT_RETURN open_with(const char *conf, const char *name, struct output *o)
{
	unsigned code = 0xffffffff;

	*o = again(conf, "--open", name);
	CHECK_EQ(o->status, 0);
	/* And nothing else is on standard output. */
	CHECK(sscanf(o->out, "0x%x\n", &code) == 1);
	CHECK_EQ(strlen(o->out), strlen("0x00000000\n"));
	return code;
}

static int run_again(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--open") == 0) {
		DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
		DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
		DAT_RETURN ret = dat_ia_open(argv[2], 8, &evd, &ia);

		printf("0x%08x\n", (unsigned)ret);
		return ret == DAT_SUCCESS &&
		       (ia == DAT_HANDLE_NULL ||
			dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG) != DAT_SUCCESS);
	}
	if (argc >= 2 && strcmp(argv[1], "--list") == 0) {
		DAT_COUNT count = 0;

		make_list();
		if (dat_registry_list_providers(LIST, &count, list) != DAT_SUCCESS)
			return 1;
		for (DAT_COUNT i = 0; i < count; i++)
			printf("%s\n", infos[i].ia_name);
		return 0;
	}
	return -1;
}

#ifdef DAT2
#define VERSION "2.0"
#define OTHER_API "u1.2"
#else
#define VERSION "1.2"
#define OTHER_API "u2.0"
#endif
#define API "u" VERSION
#define ENTRY(name) name " " API " nonthreadsafe default builtin:soft libdat.1.0 \"lo\" \"\""

static void conf__bad_lines_are_named_and_skipped(void)
{
	struct output o;
	char where[64];

	write_conf("# line 1 is a comment\n" ENTRY(
		"first") "\n"
			 "broken " API " nonthreadsafe default builtin:soft\n"
			 "strange x9.9 nonthreadsafe default builtin:soft libdat.1.0 \"lo\" \"\"\n"
			 "unsafe " API " maybesafe default builtin:soft libdat.1.0 \"lo\" \"\"\n"
			 "open " API " nonthreadsafe default builtin:soft libdat.1.0 \"lo\n"
			 "lone " API " nonthreadsafe default builtin:soft libdat.1.0 \"lo\" \"\n"
			 "nodot u12 nonthreadsafe default builtin:soft libdat.1.0 \"lo\" \"\"\n" ENTRY(
				 "last") " # a comment\n");
	CHECK_RET(open_with(conf_path, "first", &o), DAT_SUCCESS);
	CHECK_RET(open_with(conf_path, "last", &o), DAT_SUCCESS);
	for (int line = 3; line <= 8; line++) {
		snprintf(where, sizeof where, "%s:%d:", conf_path, line);
		CHECK(strstr(o.err, where) != NULL);
	}
	snprintf(where, sizeof where, "%s:9:", conf_path);
	CHECK(strstr(o.err, where) == NULL);
	CHECK_RET(open_with(conf_path, "broken", &o), DAT_PROVIDER_NOT_FOUND);
	CHECK_RET(open_with(conf_path, "lone", &o), DAT_PROVIDER_NOT_FOUND);
	unlink(conf_path);
}

static void conf__override_is_strict(void)
{
	struct output o;

	CHECK_RET(open_with("/no/such/file", "soft", &o), DAT_PROVIDER_NOT_FOUND);
	CHECK(strstr(o.err, "/no/such/file") != NULL);
	write_conf("");
	CHECK_RET(open_with(conf_path, "soft", &o), DAT_PROVIDER_NOT_FOUND);
	CHECK_EQ(strlen(o.err), 0);
	unlink(conf_path);
}

static void conf__crlf_and_no_newline_at_the_end(void)
{
	struct output o;

	write_conf(ENTRY("one") "\r\n" ENTRY("two"));
	CHECK_RET(open_with(conf_path, "one", &o), DAT_SUCCESS);
	CHECK_RET(open_with(conf_path, "two", &o), DAT_SUCCESS);
	CHECK_EQ(strlen(o.err), 0);
	unlink(conf_path);
}

static void conf__only_entries_for_this_api(void)
{
	struct output o;

	write_conf("other " OTHER_API " nonthreadsafe default builtin:soft libdat.1.0 \"lo\" \"\"\n"
		   "kernel k" VERSION " nonthreadsafe default builtin:soft libdat.1.0 \"lo\" \"\"\n"
		   "hidden " API " nonthreadsafe nondefault builtin:soft libdat.1.0 \"lo\" \"\"\n");
	CHECK_RET(open_with(conf_path, "other", &o), DAT_PROVIDER_NOT_FOUND);
	CHECK_RET(open_with(conf_path, "kernel", &o), DAT_PROVIDER_NOT_FOUND);
	CHECK_RET(open_with(conf_path, "hidden", &o), DAT_PROVIDER_NOT_FOUND);
	CHECK_EQ(strlen(o.err), 0);
	unlink(conf_path);
}

static void conf__library_that_does_not_load(void)
{
	struct output o;

	/* The next entry of the same key is tried. */
	write_conf("ia " API " nonthreadsafe default /no/such/library.so x.1.0 \"\" \"\"\n" ENTRY(
		"ia") "\n"
		      "gone " API " nonthreadsafe default /no/such/library.so x.1.0 \"\" \"\"\n");
	CHECK_RET(open_with(conf_path, "ia", &o), DAT_SUCCESS);
	CHECK_RET(open_with(conf_path, "gone", &o), DAT_PROVIDER_NOT_FOUND);
	CHECK(strstr(o.err, "/no/such/library.so") != NULL);
	unlink(conf_path);
}

static void conf__listed_in_file_order(void)
{
	struct output o;

	write_conf(ENTRY("b") "\n" ENTRY("a") "\n" ENTRY("c") "\n" ENTRY("a") "\n");
	o = again(conf_path, "--list", NULL);
	CHECK_EQ(o.status, 0);
	CHECK(strcmp(o.out, "b\na\nc\n") == 0);
	unlink(conf_path);
}

static const struct tap_test tests[] = {
	T(list_providers, names_the_ia),
	T(list_providers, truncated),
	T(list_providers, how_many),
	T(list_providers, without_what_was_added),
	T(list_providers, arguments),
	T(add_provider, and_remove),
	T(remove_provider, in_use),
	T(add_provider, arguments),
	T(strerror, every_type),
	T(strerror, subtype),
	T(strerror, undefined),
	T(strerror, any_value_is_safe),
	T(conf, bad_lines_are_named_and_skipped),
	T(conf, override_is_strict),
	T(conf, crlf_and_no_newline_at_the_end),
	T(conf, only_entries_for_this_api),
	T(conf, library_that_does_not_load),
	T(conf, listed_in_file_order),
	TAP_END,
};

int main(int argc, char **argv)
{
	int status = run_again(argc, argv);

	return status >= 0 ? status : tap_main(argc, argv, tests);
}
