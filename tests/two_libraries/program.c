/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Both libraries in one process, each with a copy of all that a process has once otherwise: the handlers of
 * SIGSEGV. Those of both stay in front of those of the program, however often each looks.
 */
#include "end.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sigjmp_buf back;
static volatile sig_atomic_t faults, passed;
static struct sigaction before;

static void say(const char *text)
{
	if (write(2, text, strlen(text)) < 0)
		_exit(2);
}

/* Handlers of the program: one that ends the matter, and one that leaves it to what was before. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	if (info->si_addr != NULL) {
		say("a fault of a library has reached the program\n");
		_exit(1);
	}
	faults++;
	siglongjmp(back, 1);
}

static void pass_on(int signal, siginfo_t *info, void *context)
{
	if (++passed > 3) {
		say("handlers call each other without end\n");
		_exit(1);
	}
	before.sa_sigaction(signal, info, context);
}

static void install(void (*handler)(int, siginfo_t *, void *))
{
	struct sigaction action = { .sa_flags = SA_SIGINFO };

	action.sa_sigaction = handler;
	if (sigaction(SIGSEGV, &action, &before))
		exit(1);
}

static void register_with_both(void)
{
	end_1.register_memory();
	end_2.register_memory();
}

/* Faults of the libraries stay in these, and one of the program reaches the program. */
static void check(int expected_faults, int expected_passed)
{
	int *volatile nowhere = NULL;
	struct sigaction now;

	register_with_both();
	if (sigaction(SIGSEGV, NULL, &now))
		exit(1);
	if (now.sa_sigaction == on_fault || now.sa_sigaction == pass_on) {
		say("a handler of the program is in front\n");
		exit(1);
	}
	end_1.send_unmapped();
	end_2.send_unmapped();
	if (sigsetjmp(back, 1) == 0)
		*nowhere = 1;
	if (faults != expected_faults || passed != expected_passed) {
		fprintf(stderr, "%d faults, %d passed on\n", (int)faults, (int)passed);
		exit(1);
	}
}

int main(void)
{
	end_1.up();
	end_2.up();
	for (int i = 0; i < 20; i++)
		register_with_both();
	install(on_fault);
	check(1, 0);
	for (int i = 0; i < 20; i++)
		register_with_both();
	install(pass_on);
	check(2, 1);
	return 0;
}
