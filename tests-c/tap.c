/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "tap.h"

#include "moved.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STATUS_FAIL = 1, STATUS_SKIP = 77 };

/* Why the running test is skipped: memory that the processes share. */
static char *skip_reason;
enum { REASON_SIZE = 256 };

const char *tap_ia = "soft";
const char *tap_peer_ia = "soft";
const char *tap_self;

static atomic_bool failed;
static pthread_t main_thread;

void tap_fail(const char *file, int line, const char *fmt, ...)
{
	char text[512];
	va_list args;

	atomic_store(&failed, true);
	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	printf("# %s:%d: %s\n", file, line, text);
	fflush(stdout);
}

void tap_bail(void)
{
	if (!pthread_equal(pthread_self(), main_thread))
		pthread_exit(NULL);
	/* Threads of the test may still use what destructors would tear down. */
	fflush(stdout);
	_exit(STATUS_FAIL);
}

void tap_skip(const char *why)
{
	snprintf(skip_reason, REASON_SIZE, "%s", why);
	fflush(stdout);
	_exit(STATUS_SKIP);
}

void tap_unsupported(const char *why)
{
	if (strncmp(tap_ia, "soft", 4) != 0)
		tap_skip(why);
	tap_fail(__FILE__, __LINE__, "%s", why);
	tap_bail();
}

void tap_begin(const char *ia)
{
	tap_ia = ia;
	main_thread = pthread_self();
}

int tap_status(void)
{
	return atomic_load(&failed) ? STATUS_FAIL : 0;
}

/* Seconds a test may take; a memory checker needs more of them. */
static unsigned limit(void)
{
	const char *text = getenv("TAP_TIMEOUT");
	long value = text ? strtol(text, NULL, 10) : 0;

	return value > 0 ? (unsigned)value : 30;
}

/* Prints a file of a thread, after its name. */
static void print_of(const char *thread, const char *name)
{
	char path[128], text[128];
	ssize_t length = -1;
	int fd;

	snprintf(path, sizeof path, "/proc/self/task/%s/%s", thread, name);
	if ((fd = open(path, O_RDONLY)) >= 0) {
		length = read(fd, text, sizeof text);
		close(fd);
	}
	while (length > 0 && text[length - 1] == '\n')
		length--;
	dprintf(1, " %s %.*s", name, length < 0 ? 0 : (int)length, text);
}

/* The test takes too long: says what each thread waits for, and how long it has run and waited for a processor
 * (nanoseconds), and dies. */
static void late(int signal)
{
	struct dirent *entry;
	DIR *threads;

	/* If this cannot go on either. */
	alarm(2);
	if ((threads = opendir("/proc/self/task")) != NULL) {
		while ((entry = readdir(threads)) != NULL) {
			if (entry->d_name[0] == '.')
				continue;
			dprintf(1, "# thread %s:", entry->d_name);
			print_of(entry->d_name, "comm");
			print_of(entry->d_name, "wchan");
			print_of(entry->d_name, "syscall");
			print_of(entry->d_name, "schedstat");
			dprintf(1, "\n");
		}
		closedir(threads);
	}
	raise(signal);
}

static void limit_time(void)
{
	/* With SA_RESTART, as waits end with a signal in programs that have a handler without it. */
	struct sigaction action = { .sa_handler = late,
				    .sa_flags = SA_RESTART | SA_RESETHAND | SA_NODEFER };

	sigaction(SIGALRM, &action, NULL);
	alarm(limit());
}

static int run_one(const struct tap_test *test)
{
	pid_t parent = getpid();
	pid_t child;
	int status;

	fflush(stdout);
	child = fork();
	if (child < 0) {
		printf("# fork: %s\n", strerror(errno));
		return STATUS_FAIL;
	}
	if (child == 0) {
		/* A group of its own: the end of the test is the end of what it started. */
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(STATUS_FAIL);
		tap_begin(tap_ia);
		limit_time();
		test->run();
		exit(tap_status());
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	kill(-child, SIGKILL);
	if (WIFEXITED(status)) {
		if (WEXITSTATUS(status) > STATUS_FAIL && WEXITSTATUS(status) != STATUS_SKIP)
			printf("# exit status %d\n", WEXITSTATUS(status));
		return WEXITSTATUS(status);
	}
	if (WTERMSIG(status) == SIGALRM)
		printf("# still running after %u s\n", limit());
	else
		printf("# killed by signal %d (%s)\n", WTERMSIG(status),
		       strsignal(WTERMSIG(status)));
	return STATUS_FAIL;
}

static bool selected(const char *name, int argc, char **argv)
{
	if (argc <= 2)
		return true;
	for (int i = 2; i < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return true;
	return false;
}

int tap_main(int argc, char **argv, const struct tap_test *tests)
{
	const char *unfit;
	int count = 0, bad = 0;

	tap_self = argv[0];
	if (argc > 1) {
		char *colon = strchr(argv[1], ':');

		tap_ia = tap_peer_ia = argv[1];
		if (colon) {
			*colon = 0;
			tap_peer_ia = colon + 1;
		}
	}
	skip_reason =
		mmap(NULL, REASON_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (skip_reason == MAP_FAILED) {
		printf("# mmap: %s\n", strerror(errno));
		return 2;
	}
	unfit = moves_memory(tap_ia) || moves_memory(tap_peer_ia) ? why_none_moves() : NULL;
	for (const struct tap_test *test = tests; test->name; test++)
		count += selected(test->name, argc, argv);
	printf("1..%d\n", count);
	if (count == 0)
		return 2;
	count = 0;
	for (const struct tap_test *test = tests; test->name; test++) {
		int status;

		if (!selected(test->name, argc, argv))
			continue;
		skip_reason[0] = 0;
		if (unfit)
			snprintf(skip_reason, REASON_SIZE, "%s", unfit);
		status = unfit ? STATUS_SKIP : run_one(test);
		printf("%s %d - %s%s%s\n", status == 0 || status == STATUS_SKIP ? "ok" : "not ok",
		       ++count, test->name, status == STATUS_SKIP ? " # SKIP " : "",
		       status == STATUS_SKIP ? skip_reason : "");
		bad += status != 0 && status != STATUS_SKIP;
	}
	fflush(stdout);
	return bad ? 1 : 0;
}

int tap_main_programs(int argc, char **argv, const struct tap_test *tests)
{
	char name[64];

	snprintf(name, sizeof name, "%s-programs", argc > 1 ? argv[1] : tap_ia);
	tap_ia = name;
	if (argc > 1)
		argv[1] = name;
	return tap_main(argc, argv, tests);
}
