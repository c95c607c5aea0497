/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Cases of race.c: ways to give a structure to another thread, in a file for each kind. */
#ifndef RACE_H
#define RACE_H

#include "common.h"

#include <stdlib.h>
#include <string.h>

/* The checker remembers four accesses of each eight bytes. */
struct work {
	uint64_t prepared;
	uint64_t used;
};

enum mode { ORDERED = 1, EARLY = 2, LATE = 4 };

/* The modes of a case. OTHER: no event that is taken is that of the structure, which is a race in the mode `early` as
 * well. */
enum { ALL = ORDERED | EARLY | LATE, OTHER = EARLY };

struct race {
	const char *name;
	/* In the first thread: what is there before, what gives the structure, and what goes afterwards. */
	void (*up)(void);
	void (*give)(void);
	void (*down)(void);
	/* In the second thread: gets the event. */
	void (*take)(void);
	/* Each the same: prepares and uses. In a report they name the case. */
	void (*prepare)(struct work *);
	void (*use)(struct work *);
	/* The modes in which there is something to be seen. */
	unsigned modes;
};

/* Of cases X(name, up, give, down, take, modes): the functions of each, and its place in an array. */
#define RACE_FUNCTIONS(name, up, give, down, take, modes)                    \
	static __attribute__((noinline)) void prepare_##name(struct work *w) \
	{                                                                    \
		w->prepared = 1;                                             \
	}                                                                    \
	static __attribute__((noinline)) void use_##name(struct work *w)     \
	{                                                                    \
		w->used = w->prepared;                                       \
	}
#define RACE(name, up, give, down, take, modes) \
	{ #name, up, give, down, take, prepare_##name, use_##name, modes },

/* The cases of each kind; behind the last one is one without a name. */
extern const struct race message_races[], event_races[], connection_races[];

/* The case that runs, and its structure. */
extern const struct race *current;
extern struct work *work;
extern struct pair p;

DAT_CONTEXT this_work(void);
DAT_EVENT next(DAT_EVD_HANDLE from);
/* Waits until the structure was given, without any order. */
void await_given(void);

/* A pair that receives two messages, of which the structure's is one; its end. */
void pair_for_messages(void);
void send_work(void);
void end_pair(void);
/* An EVD for software events, and the IA with it; its end. */
extern DAT_EVD_HANDLE evd;
void evd_for_software(void);
void end_rig(void);
/* The agent of a CNO, which uses the structure in whatever thread, has done that. */
void await_agent(void);
bool agent_is_over(void);
void begin_agent(void);

#endif
