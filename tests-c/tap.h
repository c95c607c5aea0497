/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A small TAP producer. A test is a function without arguments; every test runs in a process
 * of its own, so that a crash, a hang or a leaked object of one test is that test's failure
 * alone, and so that every test meets a library that has not been used yet.
 *
 *   static void evd_wait__timeout_zero(void) { CHECK(...); }
 *   static const struct tap_test tests[] = { T(evd_wait, timeout_zero), TAP_END };
 *   int main(int argc, char **argv) { return tap_main(argc, argv, tests); }
 *
 * On an IA that moves registered memory (moved.h), where the kernel lets none be moved, every test
 * is skipped.
 *
 * Command line of each program: [IA name[:that of a second process]] [test name]...   without names: all tests.
 */
#ifndef TAP_H
#define TAP_H

#include <stdbool.h>

struct tap_test {
	const char *name;
	void (*run)(void);
};

/* The function OBJECT__CASE as the test "OBJECT.CASE". */
/* clang-format off */
#define T(object, case_) { #object "." #case_, object##__##case_ }
#define TAP_END { 0, 0 }
/* clang-format on */

/* The IA under test: the first argument of the program, "soft" without one. */
extern const char *tap_ia;

/* The IA of a second process: the same, or what stands behind a colon. */
extern const char *tap_peer_ia;

/* The path of the running program, for tests that start it once more. */
extern const char *tap_self;

/* Runs the tests and returns the exit status: 0 if none failed. */
int tap_main(int argc, char **argv, const struct tap_test *tests);
/* The same on the IA with "-programs" behind the name, which has the default rules (tests-c/dat.conf). */
int tap_main_programs(int argc, char **argv, const struct tap_test *tests);

/* For a process that a test starts: what tap_main does before a test, and the exit status. */
void tap_begin(const char *ia);
int tap_status(void);

/* Marks the running test as failed and says why. */
void tap_fail(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Ends the running test (in a helper thread: the thread). */
void tap_bail(void) __attribute__((noreturn));

/* Ends the running test as one that cannot be run here, by this user or on this machine. */
void tap_skip(const char *why) __attribute__((noreturn));

/* Ends the running test as one of what this provider does not offer. Our soft provider offers all
 * that there are tests of, so on its IAs the test fails. */
void tap_unsupported(const char *why) __attribute__((noreturn));

/* Notes a failure and goes on. */
#define CHECK(cond)                                                \
	do {                                                       \
		if (!(cond))                                       \
			tap_fail(__FILE__, __LINE__, "%s", #cond); \
	} while (0)

/* Notes a failure and ends the test: for what the rest of the test depends on. */
#define REQUIRE(cond)                                              \
	do {                                                       \
		if (!(cond)) {                                     \
			tap_fail(__FILE__, __LINE__, "%s", #cond); \
			tap_bail();                                \
		}                                                  \
	} while (0)

/* Two integers are equal; prints both if not. */
#define CHECK_EQ(got, want)                                                                  \
	do {                                                                                 \
		unsigned long long got_ = (unsigned long long)(got);                         \
		unsigned long long want_ = (unsigned long long)(want);                       \
		if (got_ != want_)                                                           \
			tap_fail(__FILE__, __LINE__, "%s is 0x%llx, not 0x%llx", #got, got_, \
				 want_);                                                     \
	} while (0)

#endif
