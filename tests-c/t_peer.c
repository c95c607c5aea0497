/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Two processes. The test starts this program once more as its peer, "t_peer IA --peer ROLE":
 *
 *   echo     accepts one connection and sends back every message
 *   idle     accepts one connection and then makes no call any more
 *   leave    accepts one connection, sends MESSAGES, disconnects gracefully, and exits
 *   listen   listens, and never looks at the requests
 *   connect  connects to the qualifier given as the next argument and then makes no call
 *
 * The peer writes its qualifier, or "up" once it is connected, as a line to standard output;
 * it ends when its standard input does.
 */
#include "common.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WINDOW_SIZE = 1 << 20, MESSAGE = 10000, DEPTH = 8, MESSAGES = 4 };

/* Private data: where the peer's memory is. Same host, same byte order. */
struct window {
	uint64_t at;
	uint32_t key;
	uint32_t pad;
};

/* --- the peer ------------------------------------------------------------------------------- */

static void post_echo_recv(DAT_EP_HANDLE ep, const struct mem *mem, DAT_UINT64 slot)
{
	DAT_LMR_TRIPLET iov = dx_local(mem->local, mem->at + slot * MESSAGE, MESSAGE);

	OK(dat_ep_post_recv(ep, 1, &iov, cookie(slot), DAT_COMPLETION_DEFAULT_FLAG));
}

static void echo(const struct rig *rig, DAT_EP_HANDLE ep, const struct mem *mem)
{
	for (;;) {
		DAT_EVENT event;
		DAT_COUNT more;
		DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;
		DAT_LMR_TRIPLET iov;

		OK(dat_evd_wait(rig->recv_evd, DAT_TIMEOUT_INFINITE, 1, &event, &more));
		if (dto->status != DAT_DTO_SUCCESS)
			return;
		iov = dx_local(mem->local, mem->at + dto->user_cookie.as_64 * MESSAGE,
			       dto->transfered_length);
		OK(dat_ep_post_send(ep, 1, &iov, cookie(0), DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(rig->request_evd, 0, DAT_DTO_SUCCESS);
		post_echo_recv(ep, mem, dto->user_cookie.as_64);
	}
}

/* A program in a hurry waits for nothing but its requests. */
static void leave(const struct rig *rig, DAT_EP_HANDLE ep)
{
	for (DAT_UINT64 i = 0; i < MESSAGES; i++) {
		OK(send_nothing(ep, i, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(rig->request_evd, i, DAT_DTO_SUCCESS);
	}
	OK(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG));
	exit(tap_status());
}

/* The process of the peer; role and its argument from the command line. */
static void be_peer(const char *role, const char *argument)
{
	struct rig rig;
	struct mem mem;
	struct window window;
	DAT_CONN_QUAL qualifier;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	mem = make_mem(&rig, WINDOW_SIZE, DAT_MEM_PRIV_ALL_FLAG);
	window = (struct window){ (uintptr_t)mem.at, mem.remote, 0 };
	ep = make_ep(&rig, NULL);
	if (strcmp(role, "echo") == 0)
		for (DAT_UINT64 i = 0; i < DEPTH; i++)
			post_echo_recv(ep, &mem, i);
	if (strcmp(role, "connect") == 0) {
		OK(try_connect(ep, &rig, strtoull(argument, NULL, 10), SOON));
		puts("up");
	} else {
		listen_any(&rig, &qualifier);
		printf("%" PRIu64 "\n", (uint64_t)qualifier);
		fflush(stdout);
		if (strcmp(role, "listen") != 0) {
			OK(dat_cr_accept(await_request(&rig), ep, sizeof window, &window));
			EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		}
	}
	fflush(stdout);
	if (strcmp(role, "echo") == 0)
		echo(&rig, ep, &mem);
	else if (strcmp(role, "leave") == 0)
		leave(&rig, ep);
	else
		await_end_of_input();
	rig_down(&rig);
}

/* --- the test's side ------------------------------------------------------------------------ */

static struct rig rig;
static struct mem mem;
static struct window window;
static DAT_EP_HANDLE ep;

static void prepare(void)
{
	rig_up(&rig);
	mem = make_mem(&rig, WINDOW_SIZE, DAT_MEM_PRIV_ALL_FLAG);
	ep = make_ep(&rig, NULL);
}

static void connect_to(const struct peer *peer)
{
	DAT_CONNECTION_EVENT_DATA event;

	OK(try_connect(ep, &rig, peer_qualifier(peer), SOON));
	event = EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			.event_data.connect_event_data;
	REQUIRE(event.private_data_size >= (DAT_COUNT)sizeof window);
	memcpy(&window, event.private_data, sizeof window);
}

static DAT_RETURN write_to_peer(size_t size, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET iov = dx_local(mem.local, mem.at, size);
	DAT_RMR_TRIPLET remote = dx_remote(window.key, (void *)(uintptr_t)window.at, size);

	return dat_ep_post_rdma_write(ep, 1, &iov, cookie(value), &remote,
				      DAT_COMPLETION_DEFAULT_FLAG);
}

static DAT_RETURN read_from_peer(size_t to, size_t size, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET iov = dx_local(mem.local, mem.at + to, size);
	DAT_RMR_TRIPLET remote = dx_remote(window.key, (void *)(uintptr_t)window.at, size);

	return dat_ep_post_rdma_read(ep, 1, &iov, cookie(value), &remote,
				     DAT_COMPLETION_DEFAULT_FLAG);
}

/* The end of the connection, as its survivor sees it: with our soft provider this event, whatever the
 * path. */
static void lost(DAT_EVENT_NUMBER number)
{
	DAT_EVENT event;
	DAT_COUNT more;

	OK(dat_evd_wait(rig.connect_evd, SOON, 1, &event, &more));
	if (is_exact())
		CHECK_EQ(event.event_number, number);
	CHECK(event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED ||
	      event.event_number == DAT_CONNECTION_EVENT_BROKEN);
	CHECK(event.event_data.connect_event_data.ep_handle == ep);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_DISCONNECTED);
	EXPECT_NOTHING(rig.connect_evd);
}

static void peer__messages_both_ways(void)
{
	enum { OFFSET = 500000 };
	struct peer peer = start_peer("echo", NULL);

	prepare();
	connect_to(&peer);
	for (unsigned i = 0; i < 200; i++) {
		size_t size = 1 + i * 50;
		DAT_LMR_TRIPLET out = dx_local(mem.local, mem.at, size);
		DAT_LMR_TRIPLET in = dx_local(mem.local, mem.at + OFFSET, MESSAGE);

		fill(mem.at, size, i);
		OK(dat_ep_post_recv(ep, 1, &in, cookie(i), DAT_COMPLETION_DEFAULT_FLAG));
		OK(dat_ep_post_send(ep, 1, &out, cookie(i), DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(rig.request_evd, i, DAT_DTO_SUCCESS);
		REQUIRE(EXPECT_DTO(rig.recv_evd, i, DAT_DTO_SUCCESS).transfered_length == size);
		REQUIRE(filled(mem.at + OFFSET, size, i));
	}
	OK(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	end_peer(&peer);
	rig_down(&rig);
}

static void peer__one_sided_operations_need_no_call_of_the_target(void)
{
	enum { HALF = WINDOW_SIZE / 2 };
	struct peer peer = start_peer("idle", NULL);

	prepare();
	connect_to(&peer);
	for (unsigned i = 0; i < 20; i++) {
		fill(mem.at, HALF, i);
		OK(write_to_peer(HALF, 1));
		OK(read_from_peer(HALF, HALF, 2));
		EXPECT_DTO(rig.request_evd, 1, DAT_DTO_SUCCESS);
		EXPECT_DTO(rig.request_evd, 2, DAT_DTO_SUCCESS);
		REQUIRE(filled(mem.at + HALF, HALF, i));
	}
	OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	end_peer(&peer);
	rig_down(&rig);
}

static void peer__ends(void)
{
	struct peer peer = start_peer("idle", NULL);

	prepare();
	OK(recv_nothing(ep, 5));
	connect_to(&peer);
	end_peer(&peer);
	lost(DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_DTO(rig.recv_evd, 5, DAT_DTO_ERR_FLUSHED);
	rig_down(&rig);
}

/* What its requests have said to be done arrives, however late it is received. */
static void peer__leaves_messages_behind(void)
{
	struct peer peer = start_peer("leave", NULL);
	bool left;

	prepare();
	connect_to(&peer);
	/* Over TCP a send is done when its message has a receive. */
	left = strcmp(tap_ia, "soft-tcp") != 0 && strcmp(tap_peer_ia, "soft-tcp") != 0;
	if (left)
		end_peer(&peer);
	for (DAT_UINT64 i = 0; i < MESSAGES; i++) {
		OK(recv_nothing(ep, i));
		EXPECT_DTO(rig.recv_evd, i, DAT_DTO_SUCCESS);
	}
	if (!left)
		end_peer(&peer);
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	rig_down(&rig);
}

static void peer__killed(void)
{
	struct peer peer = start_peer("idle", NULL);

	prepare();
	for (DAT_UINT64 i = 0; i < 4; i++)
		OK(recv_nothing(ep, i));
	connect_to(&peer);
	kill_peer(&peer);
	lost(DAT_CONNECTION_EVENT_BROKEN);
	for (DAT_UINT64 i = 0; i < 4; i++)
		EXPECT_DTO(rig.recv_evd, i, DAT_DTO_ERR_FLUSHED);
	OK(read_from_peer(0, 100, 9));
	EXPECT_DTO(rig.request_evd, 9, DAT_DTO_ERR_FLUSHED);
	/* The survivor lives on, with the same endpoint. */
	OK(dat_ep_reset(ep));
	peer = start_peer("idle", NULL);
	connect_to(&peer);
	fill(mem.at, 1000, 1);
	OK(write_to_peer(1000, 1));
	EXPECT_DTO(rig.request_evd, 1, DAT_DTO_SUCCESS);
	kill_peer(&peer);
	lost(DAT_CONNECTION_EVENT_BROKEN);
	rig_down(&rig);
}

static void peer__killed_amid_transfers(void)
{
	struct peer peer = start_peer("idle", NULL);
	DAT_UINT64 posted = 0, done = 0;
	bool killed = false, over = false;

	/* Writes and reads of a mebibyte without end; the peer dies under them. */
	prepare();
	connect_to(&peer);
	while (!over || done < posted) {
		DAT_EVENT event;
		DAT_COUNT more;
		DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;

		while (!over && posted - done < 8) {
			OK(posted % 2 ? read_from_peer(0, WINDOW_SIZE, posted) :
					write_to_peer(WINDOW_SIZE, posted));
			posted++;
		}
		OK(dat_evd_wait(rig.request_evd, SOON, 1, &event, &more));
		REQUIRE(dto->user_cookie.as_64 == done);
		done++;
		if (dto->status != DAT_DTO_SUCCESS) {
			CHECK(killed);
			over = true;
		}
		if (done == 20) {
			kill_peer(&peer);
			killed = true;
		}
	}
	lost(DAT_CONNECTION_EVENT_BROKEN);
	EXPECT_NOTHING(rig.request_evd);
	rig_down(&rig);
}

static void peer__killed_before_it_accepts(void)
{
	struct peer peer = start_peer("listen", NULL);
	DAT_EVENT event;
	DAT_COUNT more;

	prepare();
	OK(try_connect(ep, &rig, peer_qualifier(&peer), 2 * SOON));
	EXPECT_NOTHING(rig.connect_evd);
	kill_peer(&peer);
	OK(dat_evd_wait(rig.connect_evd, SOON, 1, &event, &more));
	CHECK(event.event_number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED ||
	      event.event_number == DAT_CONNECTION_EVENT_UNREACHABLE);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_DISCONNECTED);
	/* Nobody listens there now. */
	OK(dat_ep_reset(ep));
	OK(try_connect(ep, &rig, peer_qualifier(&peer), SOON));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	rig_down(&rig);
}

static void peer__client_killed_before_the_accept(void)
{
	DAT_CONN_QUAL qualifier;
	struct peer peer;
	DAT_CR_HANDLE cr;
	char text[32];

	prepare();
	listen_any(&rig, &qualifier);
	snprintf(text, sizeof text, "%" PRIu64, (uint64_t)qualifier);
	peer = start_peer("connect", text);
	cr = await_request(&rig);
	kill_peer(&peer);
	if (dat_cr_accept(cr, ep, 0, NULL) == DAT_SUCCESS) {
		/* A reply may still be sent into the void; then the end shows. */
		DAT_EVENT_NUMBER end = await_end(&rig);

		CHECK(end == DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR ||
		      end == DAT_CONNECTION_EVENT_DISCONNECTED ||
		      end == DAT_CONNECTION_EVENT_BROKEN);
		CHECK_EQ(ep_state(ep), DAT_EP_STATE_DISCONNECTED);
	} else {
		CHECK_EQ(ep_state(ep), DAT_EP_STATE_UNCONNECTED);
	}
	rig_down(&rig);
}

static void peer__client_killed(void)
{
	DAT_CONN_QUAL qualifier;
	struct peer peer;
	char text[32];

	prepare();
	listen_any(&rig, &qualifier);
	snprintf(text, sizeof text, "%" PRIu64, (uint64_t)qualifier);
	OK(recv_nothing(ep, 3));
	peer = start_peer("connect", text);
	OK(dat_cr_accept(await_request(&rig), ep, 0, NULL));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	kill_peer(&peer);
	lost(DAT_CONNECTION_EVENT_BROKEN);
	EXPECT_DTO(rig.recv_evd, 3, DAT_DTO_ERR_FLUSHED);
	rig_down(&rig);
}

static void peer__qualifier_in_use_by_another_process(void)
{
	struct peer peer = start_peer("listen", NULL);
	DAT_PSP_HANDLE psp;

	prepare();
	CHECK_EQ(dat_psp_create(rig.ia, peer_qualifier(&peer), rig.cr_evd, DAT_PSP_CONSUMER_FLAG,
				&psp),
		 DAT_CONN_QUAL_IN_USE);
	end_peer(&peer);
	CHECK_RET(dat_psp_create(rig.ia, peer_qualifier(&peer), rig.cr_evd, DAT_PSP_CONSUMER_FLAG,
				 &psp),
		  DAT_SUCCESS);
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(peer, messages_both_ways),
	T(peer, one_sided_operations_need_no_call_of_the_target),
	T(peer, ends),
	T(peer, leaves_messages_behind),
	T(peer, killed),
	T(peer, killed_amid_transfers),
	T(peer, killed_before_it_accepts),
	T(peer, client_killed_before_the_accept),
	T(peer, client_killed),
	T(peer, qualifier_in_use_by_another_process),
	TAP_END,
};

int main(int argc, char **argv)
{
	return peer_main(argc, argv, tests, be_peer);
}
