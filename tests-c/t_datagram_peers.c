/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Datagrams between two processes. DAT 2.0 only. */
#include "datagrams.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define DEFAULT DAT_COMPLETION_DEFAULT_FLAG

/* Where a's endpoint finds b's, and the reverse. */
static struct outcome to_b, to_a;

/* Connections, and pairs of IAs with datagrams, for which this process shares memory with others. */
static unsigned memories(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned count = 0;
	char line[512];

	REQUIRE(maps != NULL);
	while (fgets(line, sizeof line, maps))
		count += strstr(line, "memfd:libdat-wire") != NULL;
	fclose(maps);
	return count;
}

/* Whether datagrams between the two processes go through memory that both have. */
static bool in_shared_memory(void)
{
	return strncmp(tap_ia, "soft", 4) == 0 && !strstr(tap_ia, "tcp") &&
	       !strstr(tap_peer_ia, "tcp");
}

/* In a second process: answers each datagram of the first with one of the same length, so many times.
 * "limited": with files of 4096 bytes at most. "forks": has a child when it knows the first, whose number
 * is the answer to its first datagram. */
static void be_peer(const char *role, const char *argument)
{
	struct outcome back;
	DAT_UINT64 count = 20;
	bool forks = !strcmp(role, "forks");

	if (!strcmp(role, "limited")) {
		struct rlimit limit = { 4096, 4096 };

		REQUIRE(!setrlimit(RLIMIT_FSIZE, &limit));
	} else if (!strcmp(role, "echo") || forks) {
		if (*argument)
			count = strtoull(argument, NULL, 10);
	} else {
		tap_bail();
	}
	datagrams_up();
	OK(receive_at(&db, 0, 1000, 0));
	printf("%llu\n", (unsigned long long)datagrams_qual);
	fflush(stdout);
	OK(dat_cr_accept(EXPECT(db.rig.cr_evd, (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_REQUEST_EVENT)
				 .event_data.cr_arrival_event_data.cr_handle,
			 db.ep, 0, NULL));
	back = EXPECT_OUTCOME(db.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
			      DAT_IB_UD_PASSIVE_REMOTE_AH);
	for (DAT_UINT64 i = 0; i < count; i++) {
		DAT_EVENT event = EXPECT(db.rig.recv_evd, (DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT);
		size_t size = event.event_data.dto_completion_event_data.transfered_length - HEADER;

		memcpy(db.mem.at + 4000, db.mem.at + HEADER, size);
		if (forks) {
			pid_t child = fork();

			REQUIRE(child >= 0);
			if (child == 0) {
				/* Longer than anything is waited for. */
				alarm(60);
				pause();
				_exit(0);
			}
			memcpy(db.mem.at + 4000, &child, sizeof child);
		}
		OK(receive_at(&db, 0, 1000, i + 1));
		OK(send_from(&db, 4000, size, i, &back, DEFAULT));
		EXPECT_SENT(db.rig.request_evd, i);
	}
	await_end_of_input();
	datagrams_down();
}

/* Starts a peer that answers; where it receives. */
static struct peer start_echo(const char *role, const char *count, struct outcome *to)
{
	struct peer peer = start_peer(role, count);

	OK(ask(da.ep, peer_qualifier(&peer), "", SOON));
	*to = EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
			     DAT_IB_UD_REMOTE_AH);
	return peer;
}

/* Sends datagrams of many sizes, and gets answers. */
static void converse(void)
{
	for (DAT_UINT64 i = 0; i < 20; i++) {
		size_t size = (size_t)i * 50;

		fill(da.mem.at, size, (unsigned)i);
		OK(receive_at(&da, 4000, 1000, i));
		OK(send_from(&da, 0, size, i, &to_b, DEFAULT));
		EXPECT_SENT(da.rig.request_evd, i);
		EXPECT_RECEIVED(da.rig.recv_evd, i, size);
		CHECK(filled(da.mem.at + 4000 + HEADER, size, (unsigned)i));
	}
}

static void peer__answers(void)
{
	struct peer peer;
	unsigned before;

	datagrams_up();
	before = memories();
	peer = start_echo("echo", NULL, &to_b);
	CHECK_EQ(memories() - before, in_shared_memory() ? 1u : 0u);
	converse();
	end_peer(&peer);
	datagrams_down();
}

/* A process that cannot share memory has its datagrams over UDP, where that is allowed. */
static void peer__has_small_files(void)
{
	struct peer peer;
	unsigned before;

	datagrams_up();
	before = memories();
	if (in_shared_memory() && strcmp(tap_ia, "soft")) {
		peer = start_peer("limited", NULL);
		OK(ask(da.ep, peer_qualifier(&peer), "", SOON));
		EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_ERROR_EVENT,
			       DAT_IB_UD_CONNECT_ERROR);
		kill_peer(&peer);
	} else {
		peer = start_echo("limited", NULL, &to_b);
		CHECK_EQ(memories() - before, 0);
		converse();
		end_peer(&peer);
	}
	datagrams_down();
}

/* Several processes send to one endpoint at a time. */
static void peer__is_one_of_many(void)
{
	enum { PEERS = 4, ROUNDS = 25 };
	struct peer peers[PEERS];
	struct outcome to[PEERS];
	DAT_UINT64 done = 0;

	datagrams_up();
	for (int i = 0; i < PEERS; i++)
		peers[i] = start_echo("echo", "25", &to[i]);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned seen = 0;

		for (int i = 0; i < PEERS; i++) {
			OK(receive_at(&da, 4000 + 2000 * (size_t)i, 1000, done + (DAT_UINT64)i));
			OK(send_from(&da, 0, 100 + (size_t)i, (DAT_UINT64)i, &to[i], DEFAULT));
			EXPECT_SENT(da.rig.request_evd, (DAT_UINT64)i);
		}
		for (int i = 0; i < PEERS; i++) {
			DAT_EVENT event =
				EXPECT(da.rig.recv_evd, (DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT);
			DAT_DTO_COMPLETION_EVENT_DATA dto =
				event.event_data.dto_completion_event_data;

			CHECK_EQ(dto.status, DAT_DTO_SUCCESS);
			seen |= 1u << (dto.transfered_length - HEADER - 100);
		}
		CHECK_EQ(seen, (1u << PEERS) - 1);
		done += PEERS;
	}
	/* The later ones have the ends of the pipes of the earlier ones. */
	for (int i = PEERS; i-- > 0;)
		end_peer(&peers[i]);
	datagrams_down();
}

/* What is sent to a process that is gone is lost, and sending goes on. */
static void peer__is_killed(void)
{
	struct peer peer;
	unsigned before;
	unsigned long long end = now_us() + SOON;

	datagrams_up();
	exchange(da.ep, db.ep, &to_b, &to_a);
	before = memories();
	peer = start_echo("echo", NULL, &to_b);
	kill_peer(&peer);
	for (DAT_UINT64 i = 0; i < 5; i++) {
		OK(send_from(&da, 0, 100, i, &to_b, DEFAULT));
		EXPECT_SENT(da.rig.request_evd, i);
		pause_us(1000);
	}
	OK(receive_at(&da, 0, 100, 9));
	OK(send_from(&db, 0, 100, 8, &to_a, DEFAULT));
	EXPECT_RECEIVED(da.rig.recv_evd, 9, 100);
	while (memories() != before && now_us() < end)
		pause_us(1000);
	CHECK_EQ(memories(), before);
	datagrams_down();
}

/* A child has nothing of the memory: its parent is gone although the child lives. */
static void peer__is_killed_and_has_a_child(void)
{
	struct peer peer;
	unsigned before;
	unsigned long long end;
	pid_t child;

	datagrams_up();
	before = memories();
	peer = start_echo("forks", NULL, &to_b);
	OK(receive_at(&da, 0, 100, 1));
	OK(send_from(&da, 4000, sizeof child, 2, &to_b, DEFAULT));
	EXPECT_SENT(da.rig.request_evd, 2);
	EXPECT_RECEIVED(da.rig.recv_evd, 1, sizeof child);
	memcpy(&child, da.mem.at + HEADER, sizeof child);
	kill_peer(&peer);
	end = now_us() + SOON;
	while (memories() != before && now_us() < end)
		pause_us(1000);
	CHECK_EQ(memories(), before);
	CHECK_EQ(kill(child, SIGKILL), 0);
	datagrams_down();
}

/* A process that makes no step loses datagrams, and delays nobody; then it goes on. */
static void peer__is_stopped(void)
{
	struct peer peer;
	unsigned long long begin;

	datagrams_up();
	exchange(da.ep, db.ep, &to_b, &to_a);
	peer = start_echo("echo", NULL, &to_b);
	/* Answers. */
	OK(receive_at(&da, 0, 100, 1));
	OK(send_from(&da, 0, 64, 2, &to_b, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_RECEIVED(da.rig.recv_evd, 1, 64);
	OK(receive_at(&da, 0, 100, 3));
	stop_peer(&peer);
	begin = now_us();
	for (DAT_UINT64 i = 0; i < 5000; i++)
		if (send_from(&da, 0, 64, i, &to_b, DEFAULT) == DAT_SUCCESS)
			EXPECT_SENT(da.rig.request_evd, i);
	/* One that waited for room each time would take 25 seconds. */
	CHECK(now_us() - begin < SOON);
	OK(receive_at(&da, 200, 100, 4));
	OK(send_from(&db, 0, 70, 5, &to_a, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_RECEIVED(da.rig.recv_evd, 3, 70);
	continue_peer(&peer);
	EXPECT_RECEIVED(da.rig.recv_evd, 4, 64);
	kill_peer(&peer);
	datagrams_down();
}

static const struct tap_test tests[] = {
	T(peer, answers),
	T(peer, has_small_files),
	T(peer, is_one_of_many),
	T(peer, is_killed),
	T(peer, is_killed_and_has_a_child),
	T(peer, is_stopped),
	TAP_END,
};

int main(int argc, char **argv)
{
	return peer_main(argc, argv, tests, be_peer);
}
