/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the configuration file does. A library may read its configuration when it is loaded, so the
 * tests start this program once more, with DAT_OVERRIDE set: "t_conf_file --open NAME" prints what
 * dat_ia_open returns, "t_conf_file --list" the names of the registered adapters. What the parameters
 * of an entry do is in t_conf.
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

/* Runs this program once more, in this directory, with this configuration file. */
static struct output again_in(const char *directory, const char *conf, const char *option,
			      const char *name)
{
	char *self = realpath(tap_self, NULL);
	struct output o;
	FILE *out = tmpfile(), *err = tmpfile();
	pid_t child;
	int status;

	REQUIRE(self != NULL && out != NULL && err != NULL);
	child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		dup2(fileno(out), 1);
		dup2(fileno(err), 2);
		setenv("DAT_OVERRIDE", conf, 1);
		if (chdir(directory) == 0)
			execl(self, self, option, name, (char *)NULL);
		_exit(127);
	}
	free(self);
	REQUIRE(waitpid(child, &status, 0) == child);
	o.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
	slurp(dup(fileno(out)), o.out, sizeof o.out);
	slurp(dup(fileno(err)), o.err, sizeof o.err);
	fclose(out);
	fclose(err);
	return o;
}

static struct output again(const char *conf, const char *option, const char *name)
{
	return again_in(".", conf, option, name);
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
	/* As a daemon does. */
	if (argc == 3 && strcmp(argv[1], "--open-at-root") == 0 && chdir("/") == 0)
		argv[1] = "--open";
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
		enum { LIST = 16 };
		static DAT_PROVIDER_INFO infos[LIST];
		DAT_PROVIDER_INFO *list[LIST];
		DAT_COUNT count = 0;

		for (int i = 0; i < LIST; i++)
			list[i] = &infos[i];
		if (dat_registry_list_providers(LIST, &count, list) != DAT_SUCCESS)
			return 1;
		for (DAT_COUNT i = 0; i < count; i++)
			printf("%s u%u.%u %d\n", infos[i].ia_name, infos[i].dapl_version_major,
			       infos[i].dapl_version_minor, infos[i].is_thread_safe);
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

/* The path is that of the directory in which the program was started. */
static void conf__override_of_a_program_that_goes_elsewhere(void)
{
	struct output o;

	write_conf(ENTRY("here") "\n");
	o = again_in("/tmp", strrchr(conf_path, '/') + 1, "--open-at-root", "here");
	CHECK_EQ(o.status, 0);
	CHECK(strcmp(o.out, "0x00000000\n") == 0);
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
	CHECK(strcmp(o.out, "b " API " 0\na " API " 0\nc " API " 0\n") == 0);
	unlink(conf_path);
}

/* All of the key: entries that differ in a part of it are two. */
static void conf__listed_with_version_and_thread_safety(void)
{
	struct output o;

	write_conf(ENTRY(
		"one") "\n"
		       "one " API " threadsafe default builtin:soft libdat.1.0 \"lo\" \"\"\n"
		       "one u7.5 nonthreadsafe default builtin:soft libdat.1.0 \"lo\" \"\"\n");
	o = again(conf_path, "--list", NULL);
	CHECK_EQ(o.status, 0);
	CHECK(strcmp(o.out, "one " API " 0\none " API " 1\none u7.5 0\n") == 0);
	unlink(conf_path);
}

static const struct tap_test tests[] = {
	T(conf, bad_lines_are_named_and_skipped),
	T(conf, override_is_strict),
	T(conf, override_of_a_program_that_goes_elsewhere),
	T(conf, crlf_and_no_newline_at_the_end),
	T(conf, only_entries_for_this_api),
	T(conf, library_that_does_not_load),
	T(conf, listed_in_file_order),
	T(conf, listed_with_version_and_thread_safety),
	TAP_END,
};

int main(int argc, char **argv)
{
	int status = run_again(argc, argv);

	return status >= 0 ? status : tap_main(argc, argv, tests);
}
