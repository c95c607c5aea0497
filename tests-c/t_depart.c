/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A peer that ends a connection and exits at once, as soon as it has the event of the connection: the
 * other end has that event too, then the messages, then the end. The test starts this program once more
 * as its peer, "t_depart IA --peer ROLE QUALIFIER"; a role has letters for what the peer does:
 *
 *   a or p   connects to the qualifier, or accepts
 *   m        sends MESSAGES and waits until they are sent
 *   g or q   disconnects gracefully or abruptly
 *   w        waits for the event of the end
 */
#include "common.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGES = 4, ROUNDS = 10 };

static bool does(const char *role, char what)
{
	return strchr(role, what) != NULL;
}

/* The process of the peer. */
static void be_peer(const char *role, const char *argument)
{
	DAT_UINT64 messages = does(role, 'm') ? MESSAGES : 0;
	DAT_CONN_QUAL qualifier;
	struct rig rig;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	if (does(role, 'a')) {
		puts("up");
		fflush(stdout);
		OK(try_connect(ep, &rig, strtoull(argument, NULL, 10), SOON));
	} else {
		listen_any(&rig, &qualifier);
		printf("%" PRIu64 "\n", (uint64_t)qualifier);
		fflush(stdout);
		OK(dat_cr_accept(await_request(&rig), ep, 0, NULL));
	}
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	for (DAT_UINT64 i = 0; i < messages; i++)
		OK(send_nothing(ep, i, DAT_COMPLETION_DEFAULT_FLAG));
	for (DAT_UINT64 i = 0; i < messages; i++)
		EXPECT_DTO(rig.request_evd, i, DAT_DTO_SUCCESS);
	OK(dat_ep_disconnect(ep,
			     does(role, 'g') ? DAT_CLOSE_GRACEFUL_FLAG : DAT_CLOSE_ABRUPT_FLAG));
	if (does(role, 'w'))
		EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	/* Nothing of the library runs at the exit. */
	_exit(tap_status());
}

static void depart_once(const char *role)
{
	DAT_UINT64 messages = does(role, 'm') ? MESSAGES : 0;
	DAT_CONN_QUAL qualifier;
	struct peer peer;
	struct rig rig;
	DAT_EP_HANDLE ep;
	char text[32];

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	for (DAT_UINT64 i = 0; i <= messages; i++)
		OK(recv_nothing(ep, i));
	if (does(role, 'a')) {
		listen_any(&rig, &qualifier);
		snprintf(text, sizeof text, "%" PRIu64, (uint64_t)qualifier);
		peer = start_peer(role, text);
		OK(dat_cr_accept(await_request(&rig), ep, 0, NULL));
	} else {
		peer = start_peer(role, NULL);
		OK(try_connect(ep, &rig, peer_qualifier(&peer), SOON));
	}
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	for (DAT_UINT64 i = 0; i <= messages; i++)
		EXPECT_DTO(rig.recv_evd, i, i < messages ? DAT_DTO_SUCCESS : DAT_DTO_ERR_FLUSHED);
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_NOTHING(rig.connect_evd);
	end_peer(&peer);
	rig_down(&rig);
}

static void depart(const char *role)
{
	for (int i = 0; i < ROUNDS; i++)
		depart_once(role);
}

static void depart__connects_and_leaves(void)
{
	depart("ag");
	depart("aq");
}

static void depart__connects_sends_and_leaves(void)
{
	depart("amg");
	depart("amq");
}

static void depart__connects_sends_and_waits(void)
{
	depart("amgw");
	depart("amqw");
}

static void depart__accepts_and_leaves(void)
{
	depart("pg");
	depart("pq");
}

static void depart__accepts_sends_and_leaves(void)
{
	depart("pmg");
	depart("pmq");
}

static const struct tap_test tests[] = {
	T(depart, connects_and_leaves),	     T(depart, connects_sends_and_leaves),
	T(depart, connects_sends_and_waits), T(depart, accepts_and_leaves),
	T(depart, accepts_sends_and_leaves), TAP_END,
};

int main(int argc, char **argv)
{
	return peer_main(argc, argv, tests, be_peer);
}
