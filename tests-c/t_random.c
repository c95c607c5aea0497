/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Random calls of the whole API by several threads at once (random_calls.h). Whatever is called: the
 * process lives, no call fails with DAT_INTERNAL_ERROR, none takes longer than its time-out, and at
 * the end the IA closes and nothing is left.
 *
 * RANDOM_CALLS is the number of calls of each thread, RANDOM_SEED what the random numbers begin
 * with. With one thread (RANDOM_THREADS=1) the calls of a seed are always the same.
 */
#include "left.h"
#include "random.h"
#include "random_calls.h"
#include "random_objects.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
	CALLS = 6000,
	THREADS = 3,
	ROUNDS = 4,
	/* Microseconds that a call may take on a busy machine. */
	BOUND = 5 * 1000 * 1000,
	GROWTH = 4 * 1024 * 1024,
};

static uint64_t calls;
static atomic_ulong successes;

static void *run(void *seed)
{
	seed_with((uint64_t)(uintptr_t)seed);
	for (uint64_t i = 0; i < calls; i++) {
		unsigned long long begun = now_us();
		unsigned which;
		DAT_RETURN ret = call_any(&which);

		if (ret == DAT_SUCCESS)
			atomic_fetch_add(&successes, 1);
		if (DAT_GET_TYPE(ret) == DAT_INTERNAL_ERROR ||
		    DAT_GET_TYPE(ret) == DAT_NOT_IMPLEMENTED)
			tap_fail(__FILE__, __LINE__, "call %" PRIu64 " of a thread (%u): 0x%x", i,
				 which, ret);
		if (now_us() - begun > BOUND)
			tap_fail(__FILE__, __LINE__,
				 "call %" PRIu64 " of a thread (%u) took %llu us", i, which,
				 now_us() - begun);
	}
	return NULL;
}

/* An IA, and all that the threads make of it. */
static void live_once(uint64_t seed, unsigned threads)
{
	pthread_t thread[THREADS];
	struct rig rig;

	rig_up(&rig);
	begin_objects(&rig);
	for (unsigned i = 0; i < threads; i++)
		REQUIRE(pthread_create(&thread[i], NULL, run, (void *)(uintptr_t)(seed + i)) == 0);
	for (unsigned i = 0; i < threads; i++)
		REQUIRE(pthread_join(thread[i], NULL) == 0);
	OK(dat_ia_close(rig.ia, DAT_CLOSE_ABRUPT_FLAG));
}

static void random__calls(void)
{
	uint64_t seed = setting("RANDOM_SEED", now_us() & 0xffffffff);
	unsigned threads = (unsigned)setting("RANDOM_THREADS", THREADS);
	struct having before, after;

	calls = setting("RANDOM_CALLS", CALLS);
	REQUIRE(threads >= 1 && threads <= THREADS);
	printf("# RANDOM_SEED=%" PRIu64 "\n", seed);
	fflush(stdout);
	/* What is made once for the process is made when a round first needs it. A leak grows in
	 * every round. */
	live_once(seed, threads);
	before = what_stays();
	for (int round = 1; round < ROUNDS; round++) {
		live_once(seed + (uint64_t)(round * THREADS), threads);
		after = what_stays();
		if (after.descriptors == before.descriptors && after.mappings <= before.mappings)
			break;
		if (round + 1 < ROUNDS)
			before = after;
	}
	printf("# %lu calls succeeded, %lu times established, %lu transfers\n",
	       atomic_load(&successes), count_established(), count_transfers());
	nothing_left(&before, GROWTH);
}

static const struct tap_test tests[] = {
	T(random, calls),
	TAP_END,
};

int main(int argc, char **argv)
{
	keep_nothing_freed(argv);
	return tap_main(argc, argv, tests);
}
