/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * For ThreadSanitizer: one thread prepares a structure and gives it to another one by a call of DAT, which takes it by
 * an event and uses it. scripts/tsan-programs.sh has this compiled with -fsanitize=thread.
 *
 *   race IA ordered [CASE]...   the thread that uses the structure has the event: nothing may be reported
 *   race IA early [CASE]...     it has not yet: a race in each case
 *   race IA late [CASE]...      the other one changes the structure afterwards: a race in each case
 *   race IA list MODE           the cases of a mode
 *
 * In a report a case has the name of the function that uses its structure.
 */
#include "race.h"

#include <pthread.h>
#include <stdatomic.h>

const struct race *current;
struct work *work;
struct pair p;
static enum mode mode;
/* Shown and seen without any order. */
static atomic_bool given;

void await_given(void)
{
	while (!atomic_load_explicit(&given, memory_order_relaxed))
		pause_us(100);
}

DAT_CONTEXT this_work(void)
{
	DAT_CONTEXT context = { 0 };

	context.as_ptr = work;
	return context;
}

DAT_EVENT next(DAT_EVD_HANDLE from)
{
	DAT_EVENT event = { 0 };
	DAT_COUNT more;

	OK(dat_evd_wait(from, SOON, 1, &event, &more));
	return event;
}

static bool by_agent(void)
{
	return current->take == await_agent;
}

/* In `early` the structure is used before there is the event, unless the event is another one's. */
static void *second(void *arg)
{
	bool other = !(current->modes & ORDERED);

	(void)arg;
	if (mode == EARLY && !other) {
		await_given();
		current->use(work);
		current->take();
		return NULL;
	}
	current->take();
	/* The checker may overlook what two processors do at the same moment. */
	if (mode == LATE)
		await_given();
	if (!by_agent())
		current->use(work);
	return NULL;
}

static void run(const struct race *race)
{
	pthread_t thread;

	current = race;
	work = calloc(1, sizeof *work);
	atomic_store(&given, false);
	begin_agent();
	race->up();
	REQUIRE(pthread_create(&thread, NULL, second, NULL) == 0);
	race->prepare(work);
	race->give();
	if (mode == LATE) {
		while (by_agent() && !agent_is_over())
			pause_us(100);
		race->prepare(work);
	}
	atomic_store_explicit(&given, true, memory_order_relaxed);
	REQUIRE(pthread_join(thread, NULL) == 0);
	CHECK(work->used == 1 || mode != ORDERED);
	race->down();
	/* Never again at the same address, of which the checker knows. */
	work = NULL;
}

static bool is_wanted(const char *name, char **names)
{
	bool wanted = *names == NULL;

	for (; *names; names++)
		wanted |= strcmp(name, *names) == 0;
	return wanted;
}

static enum mode mode_of(const char *word)
{
	if (strcmp(word, "ordered") == 0)
		return ORDERED;
	if (strcmp(word, "early") == 0)
		return EARLY;
	REQUIRE(strcmp(word, "late") == 0);
	return LATE;
}

/* Whether a case is to run, or to be listed. */
static bool is_meant(const struct race *race, char **names)
{
	/* Within a process the agent is called by the thread that sends. */
	if (mode == LATE && race->take == await_agent && strcmp(tap_ia, "soft") == 0)
		return false;
	return (race->modes & mode) && is_wanted(race->name, names);
}

int main(int argc, char **argv)
{
	const struct race *const kinds[] = { message_races, event_races, connection_races };
	char **names = argv + 3;
	bool list;

	if (argc < 3)
		return 2;
	tap_begin(argv[1]);
	list = strcmp(argv[2], "list") == 0;
	if (list && argc < 4)
		return 2;
	mode = mode_of(argv[list ? 3 : 2]);
	names += list;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		for (const struct race *race = kinds[i]; race->name; race++) {
			if (!is_meant(race, names))
				continue;
			if (list)
				printf("%s\n", race->name);
			else
				run(race);
		}
	}
	return tap_status();
}
