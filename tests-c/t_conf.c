/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Parameters of an entry of dat.conf(5) that no IA can be opened with: what dat_ia_open gives, and what
 * is logged on standard error. */
#include "common.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char file[] = "/tmp/libdat-conf-XXXXXX";

/* Makes the file with an entry "here" in its third line the configuration of this process, which has
 * made no call yet. */
static void configure(const char *parameters)
{
	int fd = mkstemp(file);

	REQUIRE(fd >= 0);
	dprintf(fd,
		"# a comment\n\nhere u%d.%d threadsafe default builtin:soft libdat.1.0 \"%s\" \"\"\n",
		DX_MAJOR, DX_MINOR, parameters);
	close(fd);
	REQUIRE(setenv("DAT_OVERRIDE", file, 1) == 0);
}

/* What is written to standard error while the IA "here" is opened. */
static DAT_RETURN open_here(DAT_IA_HANDLE *ia, char *logged, size_t size)
{
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	char name[] = "here";
	FILE *to = tmpfile();
	int before = dup(STDERR_FILENO);
	DAT_RETURN ret;

	REQUIRE(to != NULL && before >= 0);
	REQUIRE(dup2(fileno(to), STDERR_FILENO) >= 0);
	ret = dat_ia_open(name, 8, &evd, ia);
	REQUIRE(dup2(before, STDERR_FILENO) >= 0);
	close(before);
	rewind(to);
	logged[fread(logged, 1, size - 1, to)] = 0;
	fclose(to);
	unlink(file);
	return ret;
}

/* The IA cannot be opened: the line and the reason are logged. */
static void check_refused(const char *parameters, const char *why)
{
	char logged[1024], want[256];
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;

	configure(parameters);
	CHECK_RET(open_here(&ia, logged, sizeof logged), DAT_INSUFFICIENT_RESOURCES);
	CHECK(ia == DAT_HANDLE_NULL);
	snprintf(want, sizeof want, "libdat: %s:3: here: %s", file, why);
	if (strncmp(logged, want, strlen(want)) != 0)
		tap_fail(__FILE__, __LINE__, "logged is \"%s\", not \"%s\"", logged, want);
}

static void check_opened(const char *parameters)
{
	char logged[1024];
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;

	configure(parameters);
	OK(open_here(&ia, logged, sizeof logged));
	CHECK_EQ(strlen(logged), 0);
	OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

/* An address that documentation has (RFC 5737), and no machine. */
static void conf__address_of_another_machine(void)
{
	check_refused("192.0.2.1", "192.0.2.1 is no address of this machine");
}

/* The same of RFC 3849. */
static void conf__address_of_another_machine_ipv6(void)
{
	check_refused("2001:db8::1 path=tcp", "2001:db8::1 is no address of this machine");
}

/* All addresses are none, and neither is one of many machines. */
static void conf__address_of_no_machine(void)
{
	check_refused("0.0.0.0", "0.0.0.0 is no address of this machine");
}

static void conf__address_of_many_machines(void)
{
	check_refused("224.0.0.1", "224.0.0.1 is no address of this machine");
}

static void conf__interface_that_is_not_there(void)
{
	check_refused("nosuchdev_0", "no network interface, address or host \"nosuchdev_0\"");
}

static void conf__parameter_unknown(void)
{
	check_refused("lo speed=9", "");
}

static void conf__address_of_this_machine(void)
{
	check_opened("127.0.0.1");
}

/* Every address of the block is of the machine, although no interface lists it. */
static void conf__address_that_no_interface_lists(void)
{
	check_opened("127.1.2.3");
}

static const struct tap_test tests[] = {
	T(conf, address_of_another_machine),
	T(conf, address_of_another_machine_ipv6),
	T(conf, address_of_no_machine),
	T(conf, address_of_many_machines),
	T(conf, interface_that_is_not_there),
	T(conf, parameter_unknown),
	T(conf, address_of_this_machine),
	T(conf, address_that_no_interface_lists),
	TAP_END,
};

int main(int argc, char **argv)
{
	/* With it the lines have a time in front. */
	unsetenv("DAT_DBG_TYPE");
	return tap_main(argc, argv, tests);
}
