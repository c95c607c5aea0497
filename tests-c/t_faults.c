/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The program's own handling of SIGSEGV and SIGBUS beside that of the library, which handles the
 * faults of its copies of registered memory: a real fault of the program reaches the handler of
 * the program as if the library had none, and a transfer of memory that is not there never does.
 */
#include "transfer.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* What the handler has found. */
static struct {
	volatile sig_atomic_t calls, on_alternate_stack, signal_blocked, other_blocked, has_context;
	void *volatile address;
	sigjmp_buf back;
} seen;

/* The page that cannot be accessed, which a fault of the program is about. */
static char *page;

static void note(int signal)
{
	sigset_t mask;
	stack_t stack;

	seen.calls++;
	sigprocmask(SIG_SETMASK, NULL, &mask);
	seen.signal_blocked = sigismember(&mask, signal);
	seen.other_blocked = sigismember(&mask, SIGUSR1);
	sigaltstack(NULL, &stack);
	seen.on_alternate_stack = (stack.ss_flags & SS_ONSTACK) != 0;
}

static void plain_handler(int signal)
{
	note(signal);
	siglongjmp(seen.back, 1);
}

static void full_handler(int signal, siginfo_t *info, void *context)
{
	note(signal);
	seen.address = info->si_addr;
	seen.has_context = context != NULL;
	siglongjmp(seen.back, 1);
}

/* Makes the page accessible: the instruction is executed again. */
static void repairing_handler(int signal, siginfo_t *info, void *context)
{
	(void)context;
	note(signal);
	seen.address = info->si_addr;
	mprotect(page, PAGE, PROT_READ | PROT_WRITE);
}

static struct sigaction action(int flags)
{
	struct sigaction act;

	memset(&act, 0, sizeof act);
	act.sa_flags = flags;
	if (flags & SA_SIGINFO)
		act.sa_sigaction = full_handler;
	else
		act.sa_handler = plain_handler;
	sigemptyset(&act.sa_mask);
	sigaddset(&act.sa_mask, SIGUSR1);
	return act;
}

static void handle(int signal, int flags)
{
	struct sigaction act = action(flags);

	REQUIRE(sigaction(signal, &act, NULL) == 0);
}

static void make_page(void)
{
	page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(page != MAP_FAILED);
}

/* The access of the program that faults. */
static void touch(volatile char *at, char value)
{
	*at = value;
}

/* A fault of the program, which its handler has to get. */
static void fault(void)
{
	seen.calls = 0;
	if (sigsetjmp(seen.back, 1) == 0)
		touch(page + 7, 1);
	CHECK_EQ(seen.calls, 1);
}

/* A transfer of each kind from and to memory that is not there, each on a connection of its own.
 * No handler of the program is called. A device has the pages pinned; the driver copies what is short. */
static void transfers_fail(void)
{
	int calls = seen.calls;

	for (int kind = 0; kind < 3; kind++) {
		DAT_LMR_TRIPLET segment;
		DAT_EVD_HANDLE evd;

		up();
		REQUIRE(mprotect(ma.at, SIZE, PROT_NONE) == 0);
		segment = dx_local(mb.local, mb.at, SIZE);
		OK(dat_ep_post_recv(p.ep_b, 1, &segment, cookie(9), DAT_COMPLETION_DEFAULT_FLAG));
		if (kind == 0) {
			OK(a_sends(10, 50, 1, DAT_COMPLETION_DEFAULT_FLAG));
		} else if (kind == 1) {
			OK(a_writes(0, 0, 100000, 1, DAT_COMPLETION_DEFAULT_FLAG));
		} else {
			OK(a_reads(8, 0, 8, 1, DAT_COMPLETION_DEFAULT_FLAG));
		}
		evd = p.a.request_evd;
		if (is_exact()) {
			EXPECT_DTO(evd, 1, DAT_DTO_ERR_LOCAL_PROTECTION);
			EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
			EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
		} else {
			EXPECT_DTO(evd, 1, DAT_DTO_SUCCESS);
		}
		REQUIRE(mprotect(ma.at, SIZE, PROT_READ | PROT_WRITE) == 0);
		down();
	}
	CHECK_EQ(seen.calls, calls);
}

/* The signal that ends a child which does this; 0 if the child exits and has found nothing wrong,
 * and -1 if it has. */
static int end_of_child(void (*act)(void))
{
	int status = 0;
	pid_t child;

	fflush(NULL);
	child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		alarm(20);
		act();
		fflush(NULL);
		_exit(tap_status());
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	if (WIFSIGNALED(status))
		return WTERMSIG(status);
	return WEXITSTATUS(status) ? -1 : 0;
}

static void touch_the_page(void)
{
	touch(page, 1);
}

static void raise_it(void)
{
	raise(SIGSEGV);
}

static void be_killed(void)
{
	kill(getpid(), SIGSEGV);
	pause_us(NEVER);
}

/* --- the handlers of programs --------------------------------------------------------------- */

static void handler__installed_before(void)
{
	make_page();
	handle(SIGSEGV, SA_SIGINFO);
	transfers_fail();
	fault();
	CHECK(seen.address == page + 7);
	CHECK(seen.has_context);
	CHECK(seen.signal_blocked);
	CHECK(seen.other_blocked);
	CHECK(!seen.on_alternate_stack);
	/* Once more, and after the fault a transfer. */
	fault();
	transfers_fail();
}

static void handler__installed_after(void)
{
	make_page();
	up();
	down();
	handle(SIGSEGV, SA_SIGINFO);
	/* The next registration notices. */
	transfers_fail();
	fault();
	CHECK(seen.address == page + 7);
	CHECK(seen.other_blocked);
}

static void handler__with_one_argument(void)
{
	make_page();
	handle(SIGSEGV, SA_NODEFER);
	transfers_fail();
	fault();
	CHECK(!seen.signal_blocked);
	transfers_fail();
}

static void handler__on_alternate_stack(void)
{
	static char memory[64 * 1024];
	stack_t stack = { .ss_sp = memory, .ss_size = sizeof memory };

	make_page();
	REQUIRE(sigaltstack(&stack, NULL) == 0);
	handle(SIGSEGV, SA_SIGINFO | SA_ONSTACK);
	transfers_fail();
	fault();
	CHECK(seen.on_alternate_stack);
	handle(SIGSEGV, SA_SIGINFO);
	transfers_fail();
	fault();
	CHECK(!seen.on_alternate_stack);
}

static void handler__repairs(void)
{
	struct sigaction act;

	make_page();
	memset(&act, 0, sizeof act);
	act.sa_flags = SA_SIGINFO;
	act.sa_sigaction = repairing_handler;
	REQUIRE(sigaction(SIGSEGV, &act, NULL) == 0);
	transfers_fail();
	touch(page + 9, 3);
	CHECK_EQ(seen.calls, 1);
	CHECK(seen.address == page + 9);
	CHECK_EQ(page[9], 3);
}

static void handler__for_one_time(void)
{
	make_page();
	handle(SIGSEGV, SA_SIGINFO | (int)SA_RESETHAND);
	transfers_fail();
	fault();
	CHECK_EQ(end_of_child(touch_the_page), SIGSEGV);
	transfers_fail();
}

static void handler__replaced_again_and_again(void)
{
	static const int flags[] = { SA_SIGINFO, 0, SA_SIGINFO | SA_NODEFER, SA_NODEFER };

	make_page();
	for (int i = 0; i < 4; i++) {
		handle(SIGSEGV, flags[i]);
		transfers_fail();
		fault();
		CHECK_EQ(seen.signal_blocked, (flags[i] & SA_NODEFER) == 0);
	}
}

/* The action that this program has replaced, as those do that pass on what is not theirs. */
static struct sigaction replaced;

static void passing_handler(int signal, siginfo_t *info, void *context)
{
	seen.calls++;
	if (seen.calls > 100)
		_exit(3);
	if (replaced.sa_flags & SA_SIGINFO) {
		replaced.sa_sigaction(signal, info, context);
	} else {
		/* There was none. */
		CHECK(replaced.sa_handler == SIG_DFL);
		_exit(4);
	}
}

static void pass_on(void)
{
	struct sigaction act;

	memset(&act, 0, sizeof act);
	act.sa_flags = SA_SIGINFO;
	act.sa_sigaction = passing_handler;
	REQUIRE(sigaction(SIGSEGV, &act, &replaced) == 0);
}

static void handler__passes_on(void)
{
	/* Ours, then one of the program that calls ours, then ours again: a fault that is of neither
	 * ends the process, and does not go round. */
	make_page();
	transfers_fail();
	pass_on();
	transfers_fail();
	CHECK_EQ(end_of_child(touch_the_page), SIGSEGV);
	/* The program does so once more: it calls ours, which has the program's behind it. */
	pass_on();
	CHECK_EQ(end_of_child(touch_the_page), SIGSEGV);
	transfers_fail();
	CHECK_EQ(end_of_child(touch_the_page), SIGSEGV);
	transfers_fail();
}

static void handler__put_back(void)
{
	struct sigaction act = action(SA_SIGINFO), before;

	make_page();
	handle(SIGSEGV, SA_SIGINFO | SA_NODEFER);
	transfers_fail();
	for (int i = 0; i < 20; i++) {
		REQUIRE(sigaction(SIGSEGV, &act, &before) == 0);
		fault();
		CHECK(seen.signal_blocked);
		REQUIRE(sigaction(SIGSEGV, &before, NULL) == 0);
		fault();
		CHECK(!seen.signal_blocked);
	}
	transfers_fail();
}

/* --- without handlers ----------------------------------------------------------------------- */

static void none__ends_the_process(void)
{
	make_page();
	transfers_fail();
	CHECK_EQ(end_of_child(touch_the_page), SIGSEGV);
	CHECK_EQ(end_of_child(raise_it), SIGSEGV);
	CHECK_EQ(end_of_child(be_killed), SIGSEGV);
	transfers_fail();
}

static void none__ignored(void)
{
	make_page();
	signal(SIGSEGV, SIG_IGN);
	transfers_fail();
	/* A signal that is sent is ignored. A fault cannot be. */
	CHECK_EQ(end_of_child(raise_it), 0);
	CHECK_EQ(end_of_child(touch_the_page), SIGSEGV);
}

/* --- other circumstances -------------------------------------------------------------------- */

static void fork__child_has_the_handlers(void)
{
	make_page();
	handle(SIGSEGV, SA_SIGINFO);
	transfers_fail();
	CHECK_EQ(end_of_child(fault), 0);
	CHECK_EQ(end_of_child(transfers_fail), 0);
	fault();
}

static void bus__truncated_file(void)
{
	FILE *file = tmpfile();
	char *at;

	/* SIGBUS as SIGSEGV; t_unmapped has the transfers. */
	REQUIRE(file && ftruncate(fileno(file), PAGE) == 0);
	at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	REQUIRE(at != MAP_FAILED);
	REQUIRE(ftruncate(fileno(file), 0) == 0);
	page = at;
	handle(SIGBUS, SA_SIGINFO);
	transfers_fail();
	fault();
	CHECK(seen.address == at + 7);
	signal(SIGBUS, SIG_DFL);
	transfers_fail();
	CHECK_EQ(end_of_child(touch_the_page), SIGBUS);
	fclose(file);
}

/* A program that blocks every signal that it can in its own threads. */
static void *wait_blocked(void *arg)
{
	sigset_t all;

	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	transfers_fail();
	return arg;
}

static void threads__with_blocked_signals(void)
{
	pthread_t thread;

	REQUIRE(pthread_create(&thread, NULL, wait_blocked, NULL) == 0);
	REQUIRE(pthread_join(thread, NULL) == 0);
}

static struct tap_test tests[] = {
	T(handler, installed_before),
	T(handler, installed_after),
	T(handler, with_one_argument),
	T(handler, on_alternate_stack),
	T(handler, repairs),
	T(handler, for_one_time),
	T(handler, replaced_again_and_again),
	T(handler, passes_on),
	T(handler, put_back),
	T(none, ends_the_process),
	T(none, ignored),
	T(fork, child_has_the_handlers),
	T(bus, truncated_file),
	T(threads, with_blocked_signals),
	TAP_END,
};

static void skip(void)
{
	tap_skip("valgrind reports the faults that this is about, and repeats no instruction");
}

int main(int argc, char **argv)
{
	const char *valgrind = getenv("VALGRIND");

	if (valgrind && *valgrind)
		for (struct tap_test *test = tests; test->name; test++)
			test->run = skip;
	return tap_main(argc, argv, tests);
}
