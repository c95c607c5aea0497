/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Cases of race.c: requests, messages, memory that is written and read, and calls that take nothing up. */
#include "race.h"

#ifdef DAT2
#include <dat2/dat_ib_extensions.h>
#endif
#include <pthread.h>

/* --- requests and messages ---------------------------------------------------------------- */

void pair_for_messages(void)
{
	pair_up(&p, NULL);
	OK(recv_nothing(p.ep_b, 1));
	OK(recv_nothing(p.ep_b, 2));
}

void end_pair(void)
{
	pair_down(&p);
}

void send_work(void)
{
	DAT_LMR_TRIPLET none = { 0 };

	OK(dat_ep_post_send(p.ep_a, 0, &none, this_work(), DAT_COMPLETION_DEFAULT_FLAG));
}

static void await_request_end(void)
{
	DAT_EVENT event = next(p.a.request_evd);

	CHECK(event.event_data.dto_completion_event_data.user_cookie.as_ptr == work);
}

static void poll_request_end(void)
{
	DAT_EVENT event;

	while (DAT_GET_TYPE(dat_evd_dequeue(p.a.request_evd, &event)) == DAT_QUEUE_EMPTY)
		;
	CHECK(event.event_data.dto_completion_event_data.user_cookie.as_ptr == work);
}

static void await_message(void)
{
	next(p.b.recv_evd);
}

static void poll_message(void)
{
	DAT_EVENT event;

	while (DAT_GET_TYPE(dat_evd_dequeue(p.b.recv_evd, &event)) == DAT_QUEUE_EMPTY)
		;
}

/* The structure belongs to a receive. */
static void receive_work(void)
{
	DAT_LMR_TRIPLET none = { 0 };

	OK(dat_ep_post_recv(p.ep_b, 0, &none, this_work(), DAT_COMPLETION_DEFAULT_FLAG));
	for (int i = 0; i < 3; i++)
		OK(send_nothing(p.ep_a, 7, DAT_COMPLETION_DEFAULT_FLAG));
}

static void await_receive(void)
{
	DAT_EVENT event;

	do
		event = next(p.b.recv_evd);
	while (event.event_data.dto_completion_event_data.user_cookie.as_ptr != work);
}

/* One request before has no structure, and the number of the request is its cookie. */
static void send_another_before(void)
{
	pair_for_messages();
	OK(send_nothing(p.ep_a, 1, DAT_COMPLETION_DEFAULT_FLAG));
}

/* The event of that request says nothing of the structure. */
static void await_the_other(void)
{
	await_given();
	next(p.a.request_evd);
}

static void await_both(void)
{
	DAT_EVENT event;
	DAT_COUNT more;

	OK(dat_evd_wait(p.a.request_evd, SOON, 2, &event, &more));
	CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, 1);
}

/* Neither does a look at an EVD that has none. */
static void poll_nothing(void)
{
	DAT_EVENT event;

	await_given();
	for (int i = 0; i < 20; i++)
		CHECK_RET(dat_evd_dequeue(p.a.connect_evd, &event), DAT_QUEUE_EMPTY);
}

static void await_nothing(void)
{
	DAT_EVENT event;
	DAT_COUNT more;

	await_given();
	CHECK_RET(dat_evd_wait(p.a.connect_evd, NEVER, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
}

/* --- an answer ---------------------------------------------------------------------------- */

static pthread_t answering;

static void *answer(void *arg)
{
	(void)arg;
	next(p.b.recv_evd);
	OK(send_nothing(p.ep_b, 1, DAT_COMPLETION_DEFAULT_FLAG));
	return NULL;
}

static void pair_that_answers(void)
{
	pair_for_messages();
	OK(recv_nothing(p.ep_a, 3));
	REQUIRE(pthread_create(&answering, NULL, answer, NULL) == 0);
}

static void await_answer(void)
{
	next(p.a.recv_evd);
}

static void end_answering(void)
{
	REQUIRE(pthread_join(answering, NULL) == 0);
	pair_down(&p);
}

/* --- memory that one connection writes and another one reads --------------------------------- */

static struct pair reading;
static struct mem written, written_too, from, to;

static void two_pairs(void)
{
	DAT_REGION_DESCRIPTION region = { 0 };
	DAT_VLEN length;
	DAT_VADDR address;

	pair_up(&p, NULL);
	pair_up(&reading, NULL);
	from = make_mem(&p.a, 64, DAT_MEM_PRIV_ALL_FLAG);
	written = make_mem(&p.b, 64, DAT_MEM_PRIV_ALL_FLAG);
	to = make_mem(&reading.a, 64, DAT_MEM_PRIV_ALL_FLAG);
	written_too = written;
	region.for_va = written.at;
	OK(dx_lmr_create(reading.b.ia, DAT_MEM_TYPE_VIRTUAL, region, 64, reading.b.pz,
			 DAT_MEM_PRIV_ALL_FLAG, &written_too.lmr, &written_too.local,
			 &written_too.remote, &length, &address));
	from.at[0] = 1;
}

static void write_flag(void)
{
	DAT_LMR_TRIPLET local = dx_local(from.local, from.at, 1);
	DAT_RMR_TRIPLET remote = dx_remote(written.remote, written.at, 1);

	OK(dat_ep_post_rdma_write(p.ep_a, 1, &local, cookie(5), &remote,
				  DAT_COMPLETION_DEFAULT_FLAG));
}

static void read_until_flag(void)
{
	DAT_LMR_TRIPLET local = dx_local(to.local, to.at, 1);
	DAT_RMR_TRIPLET remote = dx_remote(written_too.remote, written.at, 1);

	do {
		OK(dat_ep_post_rdma_read(reading.ep_a, 1, &local, cookie(6), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG));
		next(reading.a.request_evd);
	} while (*(volatile char *)to.at != 1);
}

static void end_two_pairs(void)
{
	OK(dat_lmr_free(written_too.lmr));
	free_mem(&from);
	free_mem(&written);
	free_mem(&to);
	pair_down(&reading);
	pair_down(&p);
}

#ifdef DAT2
/* As an extended operation. */
static void add_work(void)
{
	DAT_LMR_TRIPLET local = dx_local(from.local, from.at, 8);
	DAT_RMR_TRIPLET remote = dx_remote(written.remote, written.at, 8);

	OK(dat_ib_post_fetch_and_add(p.ep_a, 1, &local, this_work(), &remote,
				     DAT_COMPLETION_DEFAULT_FLAG));
}

static void await_added(void)
{
	next(p.a.request_evd);
}
#endif

/* --- the cases ---------------------------------------------------------------------------- */

#define EACH_COMMON(X)                                                                            \
	X(request_wait, pair_for_messages, send_work, end_pair, await_request_end, ALL)           \
	X(request_poll, pair_for_messages, send_work, end_pair, poll_request_end, ALL)            \
	X(request_of_two, send_another_before, send_work, end_pair, await_both, ALL)              \
	X(request_other, send_another_before, send_work, end_pair, await_the_other, LATE | OTHER) \
	X(message_wait, pair_for_messages, send_work, end_pair, await_message, ALL)               \
	X(message_poll, pair_for_messages, send_work, end_pair, poll_message, ALL)                \
	X(message_receive, pair_for_messages, receive_work, end_pair, await_receive, ORDERED)     \
	X(message_answer, pair_that_answers, send_work, end_answering, await_answer, ALL)         \
	X(memory_read, two_pairs, write_flag, end_two_pairs, read_until_flag, ALL)                \
	X(nothing_polled, pair_for_messages, send_work, end_pair, poll_nothing, LATE | OTHER)     \
	X(nothing_awaited, pair_for_messages, send_work, end_pair, await_nothing, LATE | OTHER)
#ifdef DAT2
#define EACH(X)        \
	EACH_COMMON(X) \
	X(request_extended, two_pairs, add_work, end_two_pairs, await_added, ALL)
#else
#define EACH(X) EACH_COMMON(X)
#endif

EACH(RACE_FUNCTIONS)
const struct race message_races[] = { EACH(RACE){ 0 } };
