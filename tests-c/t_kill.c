/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * kill -9 of either side of a connection at random points of a running transfer (traffic.h).
 * One of them, in turns who connected and who accepted, is a process of its own, "t_kill IA
 * --peer ROLE ARGUMENT", and dies. The other side, this process, lives through all rounds.
 *
 * KILL_ROUNDS and KILL_SEED say how often and with which random numbers; make kill does it a
 * thousand times.
 */
#include "left.h"
#include "traffic.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	ROUNDS = 40,
	/* Microseconds that a victim lives at most. */
	LIFE = 5000,
	/* Keys that a provider may let rest before it uses them again. */
	RESTING = 1100,
	/* Bytes that the process may have more of after many rounds, and after a few: a thread
	 * makes a buffer of its own when it first needs it. */
	MANY = 500,
	GROWTH_MANY = 8 * 1024,
	GROWTH_FEW = 1024 * 1024,
};

/* --- the victim ----------------------------------------------------------------------------- */

/* ARGUMENT: qualifier (or 0), seed, whether it polls. */
static void be_victim(const char *role, const char *argument)
{
	struct traffic t;
	DAT_CONN_QUAL qualifier;
	char *rest;
	bool polls;

	qualifier = strtoull(argument, &rest, 10);
	seed_with(strtoull(rest, &rest, 10));
	polls = strtoull(rest, NULL, 10);
	begin_traffic();
	set_up(&t, polls);
	if (strcmp(role, "connect") == 0) {
		puts("up");
		fflush(stdout);
		connect_to(&t, qualifier);
	} else {
		listen_any(&rig, &qualifier);
		printf("%" PRIu64 "\n", (uint64_t)qualifier);
		fflush(stdout);
		accept_one(&t);
	}
	run_until_flushed(&t);
	tap_fail(__FILE__, __LINE__, "the connection ended before this process did");
}

/* --- who kills it --------------------------------------------------------------------------- */

struct killer {
	pthread_t thread;
	pid_t victim;
	uint64_t life;
	/* When it did; 0 before. */
	_Atomic unsigned long long at;
};

static void *be_killer(void *arg)
{
	struct killer *k = arg;

	if (k->life)
		pause_us(k->life);
	atomic_store(&k->at, now_us());
	kill(k->victim, SIGKILL);
	return NULL;
}

/* --- the survivor --------------------------------------------------------------------------- */

static struct {
	uint64_t moved, flushed, broken;
	unsigned long long longest;
} sum;

static uint64_t number_of(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* Starts the victim and connects with it. */
static struct peer meet(struct traffic *t, bool accepts)
{
	char argument[64];
	struct peer peer;
	DAT_PSP_HANDLE psp = DAT_HANDLE_NULL;
	DAT_CONN_QUAL qualifier = 0;
	uint64_t seed = any();

	if (accepts)
		psp = listen_any(&rig, &qualifier);
	snprintf(argument, sizeof argument, "%" PRIu64 " %" PRIu64 " %d", (uint64_t)qualifier, seed,
		 (int)below(2));
	peer = start_peer(accepts ? "connect" : "accept", argument);
	if (accepts) {
		accept_one(t);
		OK(dat_psp_free(psp));
	} else {
		connect_to(t, peer_qualifier(&peer));
	}
	return peer;
}

/* The victim was killed, and did not end for another reason. */
static void bury(struct peer *peer)
{
	char line[256];
	int status;

	while (fgets(line, sizeof line, peer->output))
		printf("# victim: %s", line);
	REQUIRE(waitpid(peer->pid, &status, 0) == peer->pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	close(peer->input);
	fclose(peer->output);
}

static void live_through(unsigned round)
{
	struct killer killer = { 0 };
	struct traffic t;
	struct peer peer;
	DAT_EVENT event;
	DAT_COUNT more;
	unsigned long long now;

	set_up(&t, round & 2);
	peer = meet(&t, round & 1);
	killer.victim = peer.pid;
	/* The beginning of a connection is worth as many tries as the rest of it. */
	killer.life = below(below(2) ? LIFE : LIFE / 20);
	REQUIRE(pthread_create(&killer.thread, NULL, be_killer, &killer) == 0);

	run_until_flushed(&t);
	CHECK(killer.at != 0);
	while (t.done < t.requested || t.received < t.offered)
		take_one(&t);
	sum.moved += t.moved;
	sum.flushed += t.done + t.received - t.moved;
	OK(dat_evd_wait(rig.connect_evd, BOUND, 1, &event, &more));
	now = now_us();
	REQUIRE(pthread_join(killer.thread, NULL) == 0);
	CHECK(event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED ||
	      event.event_number == DAT_CONNECTION_EVENT_BROKEN);
	sum.broken += event.event_number == DAT_CONNECTION_EVENT_BROKEN;
	CHECK(event.event_data.connect_event_data.ep_handle == t.ep);
	CHECK_EQ(ep_state(t.ep), DAT_EP_STATE_DISCONNECTED);
	CHECK(now - killer.at < BOUND);
	if (now - killer.at > sum.longest)
		sum.longest = now - killer.at;

	CHECK_RET(dat_evd_dequeue(dto_evd, &event), DAT_QUEUE_EMPTY);
	CHECK_RET(dat_evd_dequeue(rig.connect_evd, &event), DAT_QUEUE_EMPTY);
	OK(dat_ep_free(t.ep));
	OK(dat_lmr_free(t.lmr));
	bury(&peer);
	CHECK_RET(dat_evd_dequeue(dto_evd, &event), DAT_QUEUE_EMPTY);
}

static void kill__either_side_amid_transfers(void)
{
	unsigned rounds = (unsigned)number_of("KILL_ROUNDS", ROUNDS);
	uint64_t seed = number_of("KILL_SEED", now_us() ^ (uint64_t)getpid() << 32);
	struct having before;

	printf("# KILL_SEED=%" PRIu64 "\n", seed);
	fflush(stdout);
	seed_with(seed);
	begin_traffic();
	for (unsigned i = 0; i < RESTING; i++) {
		struct traffic t;

		register_memory(&t, 4096);
		OK(dat_lmr_free(t.lmr));
	}
	for (unsigned round = 0; round < 8 + rounds / 10; round++)
		live_through(round);
	before = what_is();
	memset(&sum, 0, sizeof sum);
	for (unsigned round = 0; round < rounds; round++)
		live_through(round);
	printf("# %u rounds: %" PRIu64 " transfers, then %" PRIu64 " more flushed; %" PRIu64
	       " times broken; seen within %llu us\n",
	       rounds, sum.moved, sum.flushed, sum.broken, sum.longest);
	nothing_left(&before, rounds < MANY ? GROWTH_FEW : GROWTH_MANY);
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(kill, either_side_amid_transfers),
	TAP_END,
};

int main(int argc, char **argv)
{
	count_heap(argv);
	return peer_main(argc, argv, tests, be_victim);
}
