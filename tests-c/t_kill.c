/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * kill -9 of either end of a connection at random points of a running transfer (traffic.h), in
 * some rounds after it was stopped (SIGSTOP), and perhaps continued, a few times. One of them, in
 * turns who connected and who accepted, is a process of its own, "t_kill IA --peer ROLE
 * ARGUMENT", and dies. The other end, this process, lives through all rounds.
 *
 * KILL_ROUNDS and KILL_SEED are how often and with which random numbers; make kill does it a
 * thousand times. SOAK_SECONDS is how long instead; make soak does that.
 */
#include "left.h"
#include "random.h"
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
	/* Microseconds that a victim lives at most, and those of a stop. */
	LIFE = 5000,
	STOP = 20000,
	/* How often it is stopped at most. */
	STOPS = 3,
	/* Microseconds that the registration of other memory takes at most while the peer is
	 * stopped. */
	PROMPT = SOON,
	/* Keys that a provider may let rest before it uses them again. */
	RESTING = 1100,
	/* Bytes that the process may have more of after many rounds, and after a few: each of the two
	 * threads that send over TCP, this one and that of the library, makes a buffer of its own when
	 * it first needs it, of no more than a call of 512 KiB and an FPDU of 64 KiB. */
	MANY = 500,
	GROWTH_MANY = 8 * 1024,
	GROWTH_FEW = 2 * (512 + 64 + 8) * 1024,
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
	/* Microseconds before each stop, of each stop, and before the end. */
	uint64_t before[STOPS], stopped[STOPS], life;
	unsigned stops;
	/* It is killed while it is stopped. */
	bool dies_stopped;
	/* When it did; 0 before. */
	_Atomic unsigned long long at;
};

/* Memory that the peer does not use is registered and freed at once, whatever the peer does. */
static void use_other_memory(void)
{
	unsigned long long begun = now_us();
	struct traffic other;

	register_memory(&other, 4096);
	OK(dat_lmr_free(other.lmr));
	CHECK(now_us() - begun < PROMPT);
}

static void *be_killer(void *arg)
{
	struct killer *k = arg;

	for (unsigned i = 0; i < k->stops; i++) {
		pause_us(k->before[i]);
		kill(k->victim, SIGSTOP);
		use_other_memory();
		pause_us(k->stopped[i]);
		if (i + 1 < k->stops || !k->dies_stopped)
			kill(k->victim, SIGCONT);
	}
	if (k->life)
		pause_us(k->life);
	atomic_store(&k->at, now_us());
	kill(k->victim, SIGKILL);
	return NULL;
}

/* --- the survivor --------------------------------------------------------------------------- */

static struct {
	uint64_t moved, flushed, verified, broken, kills, stops;
	unsigned long long longest;
} sum;

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
	if (below(4) == 0) {
		killer.stops = 1 + (unsigned)below(STOPS);
		killer.dies_stopped = below(2);
		for (unsigned i = 0; i < killer.stops; i++) {
			killer.before[i] = 1 + below(LIFE);
			killer.stopped[i] = 1 + below(STOP);
		}
	}
	sum.kills++;
	sum.stops += killer.stops;
	REQUIRE(pthread_create(&killer.thread, NULL, be_killer, &killer) == 0);

	run_until_flushed(&t);
	CHECK(killer.at != 0);
	while (t.done < t.requested || t.received < t.offered)
		take_one(&t);
	sum.moved += t.moved;
	sum.flushed += t.done + t.received - t.moved;
	sum.verified += t.verified;
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
	verify_target();
	CHECK_RET(dat_evd_dequeue(dto_evd, &event), DAT_QUEUE_EMPTY);
}

static void kill__either_side_amid_transfers(void)
{
	unsigned rounds = (unsigned)setting("KILL_ROUNDS", ROUNDS), round = 0;
	uint64_t soak = setting("SOAK_SECONDS", 0);
	unsigned long long begun = now_us();
	uint64_t seed = setting("KILL_SEED", now_us() ^ (uint64_t)getpid() << 32);
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
	for (unsigned i = 0; i < 8 + rounds / 10; i++)
		live_through(i);
	before = what_stays();
	memset(&sum, 0, sizeof sum);
	while (soak ? now_us() - begun < soak * 1000 * 1000 : round < rounds)
		live_through(round++);
	/* Every operation has completed, once and in its order: see take_one. */
	printf("# %u rounds: %" PRIu64 " operations, then %" PRIu64
	       " more flushed, 0 lost; %" PRIu64 " bytes verified; faults: %" PRIu64
	       " kills, %" PRIu64 " stops; %" PRIu64 " times broken, noticed within %llu us\n",
	       round, sum.moved, sum.flushed, sum.verified, sum.kills, sum.stops, sum.broken,
	       sum.longest);
	nothing_left(&before, round < MANY ? GROWTH_FEW : GROWTH_MANY);
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(kill, either_side_amid_transfers),
	TAP_END,
};

int main(int argc, char **argv)
{
	keep_nothing_freed(argv);
	return peer_main(argc, argv, tests, be_victim);
}
