/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the completion of a request means: dat_ep_post_send(3DAT), dat_ep_post_rdma_write(3DAT),
 * dat_ep_disconnect(3DAT). The table of dat.conf(5) has it for each path and device. */
#include "transfer.h"

#include <string.h>

static void needs_exact(void)
{
	if (!is_exact())
		tap_skip("a device completes requests by its own rules");
}

static void needs_delivery(void)
{
	if (!sends_are_delivered())
		tap_skip("a send completes before its receive");
}

static DAT_RETURN a_writes_wrongly(DAT_UINT64 value, DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET iov = dx_local(ma.local, ma.at, 100);
	DAT_RMR_TRIPLET remote = dx_remote(mb.remote, mb.at + SIZE - 99, 100);

	return dat_ep_post_rdma_write(p.ep_a, 1, &iov, cookie(value), &remote, flags);
}

/* Those before it succeed, it fails, those behind it are flushed; all in the order of posting. */
static void write_refused(DAT_COMPLETION_FLAGS flags)
{
	needs_exact();
	up();
	for (DAT_UINT64 i = 0; i < 4; i++)
		OK(b_receives(0, 100, i));
	OK(a_sends(0, 100, 1, DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_writes(0, 0, 100000, 2, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(a_reads(0, 0, 100000, 3, DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_writes(0, 0, 100, 4, DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_writes_wrongly(5, flags));
	/* Where the connection has ended already they are flushed, too. */
	OK(a_sends(0, 100, 6, DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_writes(0, 0, 100, 7, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 5, DAT_DTO_ERR_REMOTE_ACCESS);
	EXPECT_DTO(p.a.request_evd, 6, DAT_DTO_ERR_FLUSHED);
	EXPECT_DTO(p.a.request_evd, 7, DAT_DTO_ERR_FLUSHED);
	EXPECT_DTO(p.b.recv_evd, 0, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_ERR_FLUSHED);
	both_broken();
	down();
}

static void write__refused(void)
{
	write_refused(DAT_COMPLETION_DEFAULT_FLAG);
}

static void write__refused_and_suppressed(void)
{
	write_refused(DAT_COMPLETION_SUPPRESS_FLAG);
}

/* The second of three messages has that size, and its receive 100 bytes. */
static void send_too_long(size_t size)
{
	up();
	OK(b_receives(0, 100, 1));
	OK(b_receives(0, 100, 2));
	OK(b_receives(0, 100, 3));
	OK(a_sends(0, 100, 4, DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_sends(0, size, 5, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(a_sends(0, 10, 6, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 5, DAT_DTO_ERR_REMOTE_RESPONDER);
	EXPECT_DTO(p.a.request_evd, 6, DAT_DTO_ERR_FLUSHED);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_ERR_LOCAL_LENGTH);
	EXPECT_DTO(p.b.recv_evd, 3, DAT_DTO_ERR_FLUSHED);
	both_broken();
	down();
}

static void send__too_long(void)
{
	needs_delivery();
	send_too_long(101);
	send_too_long(5000);
}

/* A message of so many bytes is in its receive when it completes, on each path. */
enum { LONG = 16 * 1024 };

static void send__of_many_bytes_too_long(void)
{
	needs_exact();
	send_too_long(LONG);
	send_too_long(300000);
}

/* Those behind it wait for it; writes as well. */
static void send_waits_for_its_receive(size_t size)
{
	up();
	fill(ma.at, size, 3);
	OK(a_sends(0, size, 1, DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_writes(0, SIZE / 2, 8, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_NOTHING(p.a.request_evd);
	OK(b_receives(0, size, 9));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 9, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, size, 3));
	down();
}

static void send__waits_for_its_receive(void)
{
	needs_delivery();
	send_waits_for_its_receive(8);
}

static void send__of_many_bytes_waits_for_its_receive(void)
{
	needs_exact();
	send_waits_for_its_receive(LONG);
	send_waits_for_its_receive(300000);
}

/* A message without a receive when either end ends the connection at once: it was not sent, and its
 * memory is the program's again. */
static void send__of_many_bytes_is_flushed(void)
{
	needs_exact();
	for (int at_target = 0; at_target < 2; at_target++) {
		up();
		fill(ma.at, LONG, 3);
		fill(mb.at, LONG, 4);
		OK(a_sends(0, LONG, 1, DAT_COMPLETION_DEFAULT_FLAG));
		OK(dat_ep_disconnect(at_target ? p.ep_b : p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
		EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_ERR_FLUSHED);
		EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(b_receives(0, LONG, 9));
		EXPECT_DTO(p.b.recv_evd, 9, DAT_DTO_ERR_FLUSHED);
		CHECK(filled(mb.at, LONG, 4));
		down();
	}
}

/* After a graceful end it is received, if there is a receive in time. */
static void send__of_many_bytes_before_a_graceful_end(void)
{
	needs_exact();
	up();
	fill(ma.at, LONG, 3);
	OK(a_sends(0, LONG, 1, DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT_NOTHING(p.a.request_evd);
	OK(b_receives(0, LONG, 9));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 9, DAT_DTO_SUCCESS);
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK(filled(mb.at, LONG, 3));
	down();
}

/* Suppressed requests leave their places in the queue, although no completion says so. */
static void send__suppressed_without_end(void)
{
	DAT_EVENT event;

	up();
	for (DAT_UINT64 i = 0; i < 400; i++) {
		unsigned long long end = now_us() + SOON;
		DAT_RETURN ret;

		OK(b_receives(0, 8, i));
		while ((ret = a_sends(0, 8, i, DAT_COMPLETION_SUPPRESS_FLAG)) != DAT_SUCCESS &&
		       now_us() < end)
			CHECK_RET(dat_evd_dequeue(p.a.request_evd, &event), DAT_QUEUE_EMPTY);
		REQUIRE(ret == DAT_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
	}
	EXPECT_NOTHING(p.a.request_evd);
	down();
}

/* A graceful end of the sender is the end of what it has sent before, whatever the target does. */
static void disconnect__after_a_refused_write(void)
{
	needs_exact();
	up();
	OK(a_writes_wrongly(1, DAT_COMPLETION_SUPPRESS_FLAG));
	/* Where the write has been refused already, the endpoint is disconnected. */
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_ERR_REMOTE_ACCESS);
	both_broken();
	down();
}

/* What completed in either direction has arrived, when both end gracefully at once. */
static void disconnect__of_both_ends(void)
{
	enum { COUNT = 8 };

	up();
	for (DAT_UINT64 i = 0; i < COUNT; i++) {
		OK(b_receives(i * 1000, 1000, i));
		OK(recv_nothing(p.ep_a, i));
	}
	for (DAT_UINT64 i = 0; i < COUNT; i++) {
		OK(a_sends(0, 1000, i, DAT_COMPLETION_DEFAULT_FLAG));
		OK(send_nothing(p.ep_b, i, DAT_COMPLETION_DEFAULT_FLAG));
	}
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	(void)dat_ep_disconnect(p.ep_b, DAT_CLOSE_GRACEFUL_FLAG);
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	for (DAT_UINT64 i = 0; i < COUNT; i++) {
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
		if (is_exact()) {
			EXPECT_DTO(p.b.request_evd, i, DAT_DTO_SUCCESS);
			EXPECT_DTO(p.a.recv_evd, i, DAT_DTO_SUCCESS);
		}
	}
	down();
}

static const struct tap_test tests[] = {
	T(write, refused),
	T(write, refused_and_suppressed),
	T(send, too_long),
	T(send, of_many_bytes_too_long),
	T(send, waits_for_its_receive),
	T(send, of_many_bytes_waits_for_its_receive),
	T(send, of_many_bytes_is_flushed),
	T(send, of_many_bytes_before_a_graceful_end),
	T(send, suppressed_without_end),
	T(disconnect, after_a_refused_write),
	T(disconnect, of_both_ends),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
