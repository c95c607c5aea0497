/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The order of completions and of what they permit: the next request, the free of memory, the use of
 * a window, the watermarks of a shared receive queue. */
#include "order.h"
#include "transfer.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* How many requests an endpoint holds. */
enum { DEPTH = 4 };

/* Attributes of an endpoint that holds DEPTH of each. */
static DAT_EP_ATTR shallow(void)
{
	DAT_EP_ATTR attr = usual_attr();

	attr.max_request_dtos = attr.max_recv_dtos = DEPTH;
	return attr;
}

/* The next event of an EVD that another thread fills. */
static void poll(DAT_EVD_HANDLE evd, DAT_EVENT *event)
{
	DAT_RETURN ret;

	while (DAT_GET_TYPE(ret = dat_evd_dequeue(evd, event)) == DAT_QUEUE_EMPTY)
		sched_yield();
	OK(ret);
}

/* The next completion of such an EVD. */
static DAT_DTO_COMPLETION_EVENT_DATA poll_for(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;

	poll(evd, &event);
	return event.event_data.dto_completion_event_data;
}

/* --- room for requests ------------------------------------------------------------------------- */

/* Receives and posts again as soon as a completion is there, which finds room. */
static void *receive(void *arg)
{
	int messages = *(int *)arg;

	for (int i = 0; i < messages; i++) {
		DAT_DTO_COMPLETION_EVENT_DATA data = poll_for(p.b.recv_evd);

		CHECK_EQ(data.status, DAT_DTO_SUCCESS);
		CHECK_RET(recv_nothing(p.ep_b, data.user_cookie.as_64), DAT_SUCCESS);
	}
	return NULL;
}

static void full_of_receives(void)
{
	DAT_EP_ATTR attr = shallow();

	up_with(&attr);
	need_threads(&p.a);
	for (DAT_UINT64 i = 0; i < DEPTH; i++)
		OK(recv_nothing(p.ep_b, i));
}

static void order__a_completion_makes_room(void)
{
	int messages = 10 * ROUNDS + DEPTH;
	pthread_t receiver;

	full_of_receives();
	REQUIRE(pthread_create(&receiver, NULL, receive, &messages) == 0);
	for (DAT_UINT64 i = 0; i < DEPTH; i++)
		OK(send_nothing(p.ep_a, i, DAT_COMPLETION_DEFAULT_FLAG));
	for (int i = DEPTH; i < messages; i++) {
		CHECK_EQ(poll_for(p.a.request_evd).status, DAT_DTO_SUCCESS);
		CHECK_RET(send_nothing(p.ep_a, 1, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
	}
	for (int i = 0; i < DEPTH; i++)
		CHECK_EQ(poll_for(p.a.request_evd).status, DAT_DTO_SUCCESS);
	REQUIRE(pthread_join(receiver, NULL) == 0);
	down();
}

/* A completion makes room for the suppressed requests before it, too. */
static void order__a_completion_makes_room_for_suppressed_ones(void)
{
	int messages = 4 * ROUNDS * DEPTH;
	pthread_t receiver;

	full_of_receives();
	REQUIRE(pthread_create(&receiver, NULL, receive, &messages) == 0);
	for (int i = 0; i < 4 * ROUNDS; i++) {
		for (int j = 1; j < DEPTH; j++)
			CHECK_RET(send_nothing(p.ep_a, 1, DAT_COMPLETION_SUPPRESS_FLAG),
				  DAT_SUCCESS);
		CHECK_RET(send_nothing(p.ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
		CHECK_EQ(poll_for(p.a.request_evd).user_cookie.as_64, 2);
	}
	REQUIRE(pthread_join(receiver, NULL) == 0);
	down();
}

/* --- memory ------------------------------------------------------------------------------------ */

/* Takes long messages of any length, each into memory that has the next one's number so far. */
static void *receive_long(void *arg)
{
	int messages = *(int *)arg;

	for (int i = 0; i < messages; i++) {
		DAT_DTO_COMPLETION_EVENT_DATA data = poll_for(p.b.recv_evd);

		CHECK_EQ(data.status, DAT_DTO_SUCCESS);
		CHECK_EQ(data.user_cookie.as_64, i);
		CHECK(filled(mb.at, data.transfered_length, i));
		fill(mb.at, SIZE, i + 1);
		if (i + 1 < messages)
			OK(b_receives(0, SIZE, i + 1));
	}
	return NULL;
}

/* While both ends poll, each may copy a part of a message. Its bytes are there when the receive
 * completes, and the memory of the sender is not read after the send has completed. */
static void order__a_long_message_is_whole(void)
{
	int messages = 10 * ROUNDS;
	pthread_t receiver;

	up();
	need_threads(&p.a);
	fill(mb.at, SIZE, 77);
	OK(b_receives(0, SIZE, 0));
	REQUIRE(pthread_create(&receiver, NULL, receive_long, &messages) == 0);
	for (int i = 0; i < messages; i++) {
		size_t size = 16 * 1024 + (size_t)i * 7919 % (SIZE - 16 * 1024);

		fill(ma.at, size, i);
		OK(a_sends(0, size, i, DAT_COMPLETION_DEFAULT_FLAG));
		CHECK_EQ(poll_for(p.a.request_evd).status, DAT_DTO_SUCCESS);
		memset(ma.at, 0xee, size);
	}
	REQUIRE(pthread_join(receiver, NULL) == 0);
	down();
}

/* Also one that is sent as soon as the event of the connection is there. */
static void order__a_first_long_message_waits_for_its_receive(void)
{
	enum { LONG = 16 * 1024 };
	DAT_EVENT event;

	rigs_up();
	listen_any(&p.b, &qualifier);
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, NULL);
	fill(ma.at, LONG, 3);
	OK(try_connect(p.ep_a, &p.b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&p.b), p.ep_b, 0, NULL));
	poll(p.a.connect_evd, &event);
	CHECK_EQ(event.event_number, DAT_CONNECTION_EVENT_ESTABLISHED);
	OK(a_sends(0, LONG, 1, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_NOTHING(p.a.request_evd);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	OK(b_receives(0, LONG, 2));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, LONG, 3));
	down();
}

/* Whichever way the library chooses for it. */
static void order__every_long_message_waits_for_its_receive(void)
{
	enum { LONG = 20 * 1024, MESSAGES = 12 };

	up();
	for (unsigned i = 0; i < MESSAGES; i++) {
		fill(ma.at, LONG, i);
		OK(a_sends(0, LONG, i, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_NOTHING(p.a.request_evd);
		OK(b_receives(0, LONG, i));
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
		CHECK(filled(mb.at, LONG, i));
	}
	down();
}

/* When the last completion is there, the memory is the program's: it is freed and unmapped. */
static void order__memory_is_free_with_the_last_completion(void)
{
	enum { BYTES = 256 * 1024 };

	up();
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct mem from = make_mem(&p.a, BYTES, DAT_MEM_PRIV_ALL_FLAG);
		struct mem to = make_mem(&p.b, BYTES, DAT_MEM_PRIV_ALL_FLAG);
		DAT_LMR_TRIPLET local = dx_local(from.local, from.at, BYTES);
		DAT_LMR_TRIPLET recv = dx_local(to.local, to.at, BYTES);
		DAT_RMR_TRIPLET remote = dx_remote(to.remote, to.at, BYTES);

		fill(from.at, BYTES, i);
		OK(dat_ep_post_recv(p.ep_b, 1, &recv, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
		OK(dat_ep_post_rdma_write(p.ep_a, 1, &local, cookie(2), &remote,
					  DAT_COMPLETION_DEFAULT_FLAG));
		OK(dat_ep_post_rdma_read(p.ep_a, 1, &local, cookie(3), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG));
		OK(dat_ep_post_send(p.ep_a, 1, &local, cookie(4), DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
		CHECK(filled(to.at, BYTES, i));
		CHECK_RET(dat_lmr_free(to.lmr), DAT_SUCCESS);
		free(to.at);
		EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
		CHECK_RET(dat_lmr_free(from.lmr), DAT_SUCCESS);
		free(from.at);
	}
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
	CHECK_EQ(ep_state(p.ep_b), DAT_EP_STATE_CONNECTED);
	EXPECT_NOTHING(p.a.connect_evd);
	EXPECT_NOTHING(p.b.connect_evd);
	down();
}

/* The peer may use a key when its bind has completed, or when a later message arrives. */
static void order__a_window_is_open_with_its_completion(void)
{
	DAT_RMR_HANDLE rmr;

	rmr = up_to_bind();
	for (unsigned i = 0; i < 2 * ROUNDS; i++) {
		DAT_LMR_TRIPLET range = dx_local(mb.local, mb.at, SIZE);
		DAT_LMR_TRIPLET local = dx_local(ma.local, ma.at, 4096);
		bool quiet = i % 2;
		DAT_RMR_CONTEXT key;
		DAT_RMR_TRIPLET remote;

		fill(ma.at, 4096, i);
		OK(recv_nothing(p.ep_b, 6));
		OK(dx_rmr_bind(
			rmr, mb.lmr, &range, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, p.ep_b, cookie(1),
			quiet ? DAT_COMPLETION_SUPPRESS_FLAG : DAT_COMPLETION_DEFAULT_FLAG, &key));
		if (quiet) {
			OK(recv_nothing(p.ep_a, 3));
			OK(send_nothing(p.ep_b, 2, DAT_COMPLETION_SUPPRESS_FLAG));
			EXPECT_DTO(p.a.recv_evd, 3, DAT_DTO_SUCCESS);
		} else {
			EXPECT(p.b.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
		}
		remote = dx_remote(key, mb.at, 4096);
		OK(dat_ep_post_rdma_write(p.ep_a, 1, &local, cookie(4), &remote,
					  DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
		/* A message behind the write: then the key is no longer in use. */
		OK(send_nothing(p.ep_a, 5, DAT_COMPLETION_SUPPRESS_FLAG));
		EXPECT_DTO(p.b.recv_evd, 6, DAT_DTO_SUCCESS);
		CHECK(filled(mb.at, 4096, i));
	}
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
	EXPECT_NOTHING(p.a.connect_evd);
	down();
}

/* --- events of other EVDs ---------------------------------------------------------------------- */

/* Completions that find no room: as many events say so, and what had room is there. In every second round
 * another endpoint of the EVD is freed while completions are there. */
static void order__an_overflow_loses_only_what_has_no_room(void)
{
	enum { LENGTH = 7, LOST = 2 };
	DAT_EVD_PARAM param;
	DAT_EVENT event;
	DAT_COUNT length;

	rig_up(&p.a);
	rig_up(&p.b);
	need_threads(&p.a);
	p.b.recv_evd = make_evd(p.b.ia, LENGTH, DAT_EVD_DTO_FLAG);
	OK(dat_evd_query(p.b.recv_evd, DAT_EVD_FIELD_ALL, &param));
	length = param.evd_qlen;
	if (length > LENGTH)
		tap_unsupported("EVDs of this provider are longer than asked for");
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, NULL);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	for (int round = 0; round < ROUNDS; round++) {
		for (DAT_UINT64 i = 0; i < LENGTH + LOST; i++)
			OK(recv_nothing(p.ep_b, i));
		for (DAT_UINT64 i = 0; i < LENGTH + LOST; i++) {
			OK(send_nothing(p.ep_a, i, DAT_COMPLETION_DEFAULT_FLAG));
			EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
			if (i == LENGTH - 2 && round % 2)
				OK(dat_ep_free(make_ep(&p.b, NULL)));
		}
		for (int i = 0; i < LOST; i++) {
			DAT_ASYNCH_ERROR_EVENT_DATA data =
				EXPECT(p.b.async_evd, DAT_ASYNC_ERROR_EVD_OVERFLOW)
					.event_data.asynch_error_event_data;
			CHECK(data.dat_handle == p.b.recv_evd);
		}
		for (DAT_UINT64 i = 0; i < LENGTH; i++) {
			OK(dat_evd_dequeue(p.b.recv_evd, &event));
			CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, i);
		}
		CHECK_RET(dat_evd_dequeue(p.b.recv_evd, &event), DAT_QUEUE_EMPTY);
	}
	EXPECT_NOTHING(p.b.async_evd);
	down();
}

static DAT_SRQ_HANDLE srq;

static void srq_up(void)
{
	DAT_SRQ_ATTR queue = { 4 * DEPTH, 1, DAT_SRQ_LW_DEFAULT };
	DAT_EP_ATTR attr = usual_attr();

	attr.srq_soft_hw = DAT_WATERMARK_INFINITE;
	rig_up(&p.a);
	rig_up(&p.b);
	need_threads(&p.a);
	if (p.b.attr.max_srqs == 0)
		tap_unsupported("there are no SRQs");
	OK(dat_srq_create(p.b.ia, p.b.pz, &queue, &srq));
	p.ep_a = make_ep(&p.a, NULL);
	OK(dat_ep_create_with_srq(p.b.ia, p.b.pz, p.b.recv_evd, p.b.request_evd, p.b.connect_evd,
				  srq, &attr, &p.ep_b));
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
}

static DAT_SRQ_PARAM query(void)
{
	DAT_SRQ_PARAM param;

	OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
	return param;
}

static void expect_low(void)
{
	DAT_EVENT event;
	DAT_COUNT more;

	OK(dat_evd_wait(p.b.async_evd, SOON, 1, &event, &more));
	CHECK(event.event_data.asynch_error_event_data.dat_handle == srq);
	CHECK_EQ(event.event_data.asynch_error_event_data.reason, DAT_SRQ_LOW_WATERMARK_EVENT);
	CHECK_EQ(more, 0);
}

/* When the event of the low watermark is there, fewer buffers are; once for each call. */
static void order__low_watermark(void)
{
	srq_up();
	for (int round = 0; round < ROUNDS; round++) {
		for (DAT_UINT64 i = 0; i < DEPTH; i++)
			OK(dat_srq_post_recv(srq, 0, NULL, cookie(i)));
		OK(dat_srq_set_lw(srq, DEPTH - 1));
		EXPECT_NOTHING(p.b.async_evd);
		for (DAT_UINT64 i = 0; i < DEPTH; i++)
			OK(send_nothing(p.ep_a, i, DAT_COMPLETION_DEFAULT_FLAG));
		for (DAT_UINT64 i = 0; i < DEPTH; i++)
			EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		expect_low();
		CHECK(query().available_dto_count < DEPTH - 1 ||
		      query().available_dto_count == DAT_VALUE_UNKNOWN);
		for (DAT_UINT64 i = 0; i < DEPTH; i++)
			CHECK_EQ(poll_for(p.b.recv_evd).user_cookie.as_64, i);
		CHECK_EQ(query().outstanding_dto_count, 0);
	}
	down();
}

/* --- the memory of a message that arrives ------------------------------------------------------- */

/* Lengths of messages that a program polls for: those of short copies and their borders, and longer ones. */
static const size_t polled[] = { 1,  2,	 3,  4,	 5,   8,   9,	 16,   17,   24,
				 32, 33, 64, 65, 128, 200, 1000, 9000, 40000 };

/* A long one, which does not go through the buffers of a connection. */
static const size_t polled_long[] = { 6 << 20 };

enum { POLLED = sizeof(polled) / sizeof(polled[0]), SEEN = 0xff };

/* The lengths in turn, so many of them, and how many messages there are in all. */
struct polling {
	const size_t *lengths;
	int count;
	int messages;
};

static atomic_int rounds_seen;

/* Waits for each message at its last byte, as programs do that know how long it is, uses all of it at once, and
 * writes there before its completion is taken. */
static void *poll_memory(void *arg)
{
	volatile unsigned char *at = (volatile unsigned char *)mb.at;
	const struct polling *polling = arg;

	for (int i = 0; i < polling->messages; i++) {
		size_t len = polling->lengths[i % polling->count];

		while (at[len - 1] != (unsigned char)(i % SEEN))
			sched_yield();
		CHECK_EQ(at[0], i % SEEN);
		CHECK_EQ(at[len / 2], i % SEEN);
		at[len - 1] = SEEN;
		CHECK_EQ(poll_for(p.b.recv_evd).transfered_length, len);
		CHECK_EQ(at[len - 1], SEEN);
		if (i + 1 < polling->messages) {
			size_t next = polling->lengths[(i + 1) % polling->count];

			memset(mb.at, SEEN, next);
			OK(b_receives(0, next, 0));
		}
		atomic_store(&rounds_seen, i + 1);
	}
	return NULL;
}

static void poll_for_messages(struct polling polling)
{
	pthread_t poller;

	need_threads(&p.a);
	memset(mb.at, SEEN, polling.lengths[0]);
	OK(b_receives(0, polling.lengths[0], 0));
	REQUIRE(pthread_create(&poller, NULL, poll_memory, &polling) == 0);
	for (int i = 0; i < polling.messages; i++) {
		size_t len = polling.lengths[i % polling.count];

		memset(ma.at, i % SEEN, len);
		OK(a_sends(0, len, 0, DAT_COMPLETION_DEFAULT_FLAG));
		CHECK_EQ(poll_for(p.a.request_evd).status, DAT_DTO_SUCCESS);
		while (atomic_load(&rounds_seen) <= i)
			sched_yield();
	}
	REQUIRE(pthread_join(poller, NULL) == 0);
}

/* What is placed is placed once, the last byte after all others. */
static void order__the_last_byte_of_a_message_is_the_last(void)
{
	up();
	poll_for_messages((struct polling){ polled, POLLED, POLLED * ROUNDS });
	down();
}

static void order__the_last_byte_of_a_long_message_is_the_last(void)
{
	DAT_EP_ATTR attr = usual_attr();

	attr.max_message_size = polled_long[0];
	up_with(&attr);
	free_mem(&ma);
	free_mem(&mb);
	ma = make_mem(&p.a, polled_long[0], DAT_MEM_PRIV_ALL_FLAG);
	mb = make_mem(&p.b, polled_long[0], DAT_MEM_PRIV_ALL_FLAG);
	poll_for_messages((struct polling){ polled_long, 1, ROUNDS });
	down();
}

static const struct tap_test tests[] = {
	T(order, the_last_byte_of_a_message_is_the_last),
	T(order, the_last_byte_of_a_long_message_is_the_last),
	T(order, a_completion_makes_room),
	T(order, a_completion_makes_room_for_suppressed_ones),
	T(order, a_long_message_is_whole),
	T(order, a_first_long_message_waits_for_its_receive),
	T(order, every_long_message_waits_for_its_receive),
	T(order, memory_is_free_with_the_last_completion),
	T(order, a_window_is_open_with_its_completion),
	T(order, an_overflow_loses_only_what_has_no_room),
	T(order, low_watermark),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
