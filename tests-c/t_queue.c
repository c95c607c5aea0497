/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The queue of an EVD: what happens when it is full, and in which order events come. Full
 * queues of software events are in t_evd, of completions in t_post. */
#include "transfer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static DAT_COUNT length_of(DAT_EVD_HANDLE evd)
{
	DAT_EVD_PARAM param;

	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	return param.evd_qlen;
}

/* --- overflow --------------------------------------------------------------------------------- */

/* The asynchronous event that tells of a lost event. */
static void expect_overflow(DAT_EVD_HANDLE async_evd, DAT_EVD_HANDLE of)
{
	DAT_ASYNCH_ERROR_EVENT_DATA error;

	error = EXPECT(async_evd, DAT_ASYNC_ERROR_EVD_OVERFLOW).event_data.asynch_error_event_data;
	CHECK(error.dat_handle == of);
	CHECK_EQ(error.reason, DAT_EVD_OVERFLOW_ERROR);
}

static void overflow__connection_events(void)
{
	struct rig rig;
	DAT_CONN_QUAL unused;
	DAT_EVD_HANDLE evd;
	DAT_COUNT length;

	/* Attempts that nobody answers, one more than the EVD has room for. */
	rig_up(&rig);
	unused = free_qualifier(&rig);
	evd = make_evd(rig.ia, 1, DAT_EVD_CONNECTION_FLAG);
	length = length_of(evd);
	rig.connect_evd = evd;
	for (DAT_COUNT i = 0; i <= length; i++)
		OK(try_connect(make_ep(&rig, NULL), &rig, unused, SOON));
	expect_overflow(rig.async_evd, evd);
	for (DAT_COUNT i = 0; i < length; i++)
		EXPECT(evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	EXPECT_NOTHING(evd);
	rig_down(&rig);
}

static void overflow__backlog_of_requests(void)
{
	struct rig a, b;
	DAT_CONN_QUAL qualifier;
	DAT_COUNT length;

	/* The queue of the EVD is the backlog: the request that finds no place is refused. */
	rig_up(&a);
	rig_up(&b);
	b.cr_evd = make_evd(b.ia, 2, DAT_EVD_CR_FLAG);
	length = length_of(b.cr_evd);
	listen_any(&b, &qualifier);
	for (DAT_COUNT i = 0; i <= length; i++)
		OK(try_connect(make_ep(&a, NULL), &b, qualifier, SOON));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	EXPECT_NOTHING(a.connect_evd);
	for (DAT_COUNT i = 0; i < length; i++) {
		OK(dat_cr_accept(await_request(&b), make_ep(&b, NULL), 0, NULL));
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	}
	/* There is room again. */
	OK(try_connect(make_ep(&a, NULL), &b, qualifier, SOON));
	await_request(&b);
	rig_down(&a);
	rig_down(&b);
}

/* More than a provider is sent at once. */
enum { MANY = 500, PART = 100 };

/* Side a of the pair loses this many completions. */
static void lose_completions(DAT_COUNT count)
{
	unsigned long long end = now_us() + SOON;

	count += length_of(p.a.request_evd);
	while (count > 0) {
		DAT_COUNT part = count < PART ? count : PART;
		DAT_BOOLEAN idle = DAT_FALSE;

		for (DAT_COUNT i = 0; i < part; i++)
			OK(a_writes(0, 0, 1, 1, DAT_COMPLETION_DEFAULT_FLAG));
		/* The reports of these may follow a little later. */
		while (!idle && now_us() < end)
			OK(dat_ep_get_status(p.ep_a, NULL, NULL, &idle));
		REQUIRE(idle);
		count -= part;
	}
}

/* An EVD may be longer than asked for; nothing is lost up to the length that dat_evd_query gives, and the order is
 * kept, wherever in its memory the queue begins. */
static void overflow__none_up_to_the_length(void)
{
	static const DAT_COUNT asked[] = { 1, 4, 5, 7, 64, 100 };
	DAT_EP_ATTR attr = usual_attr();

	attr.max_request_dtos = 1000;
	for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
		DAT_COUNT length;

		rigs_up();
		p.a.request_evd = make_evd(p.a.ia, asked[i], DAT_EVD_DTO_FLAG);
		length = length_of(p.a.request_evd);
		REQUIRE(length >= asked[i]);
		p.ep_a = make_ep(&p.a, &attr);
		p.ep_b = make_ep(&p.b, NULL);
		connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
		for (DAT_COUNT round = 0; round < 3 && length < attr.max_request_dtos; round++) {
			for (DAT_COUNT j = 0; j < length; j++)
				OK(a_writes(0, 0, 1, (DAT_UINT64)j, DAT_COMPLETION_DEFAULT_FLAG));
			for (DAT_COUNT j = 0; j < length; j++)
				EXPECT_DTO(p.a.request_evd, (DAT_UINT64)j, DAT_DTO_SUCCESS);
			/* The next round begins at another place. */
			OK(a_writes(0, 0, 1, 7, DAT_COMPLETION_DEFAULT_FLAG));
			EXPECT_DTO(p.a.request_evd, 7, DAT_DTO_SUCCESS);
		}
		EXPECT_NOTHING(p.a.async_evd);
		free_mem(&ma);
		free_mem(&mb);
		down();
	}
}

/* That no thread may wait keeps no event away. */
static void overflow__of_an_unwaitable_evd(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_COUNT length;

	attr.max_request_dtos = 1000;
	up_with(&attr);
	length = length_of(p.a.request_evd);
	REQUIRE(length < 1000);
	OK(dat_evd_set_unwaitable(p.a.request_evd));
	for (DAT_COUNT i = 0; i <= length; i++)
		OK(a_writes(0, 0, 1, 1, DAT_COMPLETION_DEFAULT_FLAG));
	expect_overflow(p.a.async_evd, p.a.request_evd);
	down();
}

static void overflow__of_the_async_evd(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_EVENT event;
	DAT_COUNT more, length;
	DAT_RETURN ret = DAT_SUCCESS;
	unsigned long long end = now_us() + SOON;

	attr.max_request_dtos = 5000;
	up_with(&attr);
	length = length_of(p.a.async_evd);
	REQUIRE(length + MANY + length_of(p.a.request_evd) < attr.max_request_dtos);
	/* Reports of the last ones may still be on their way, and find room when others are taken. */
	lose_completions(length + MANY);
	/* What it holds can be taken; then it says that reports were lost. */
	for (DAT_COUNT i = 0; i < length; i++)
		expect_overflow(p.a.async_evd, p.a.request_evd);
	do {
		ret = dat_evd_dequeue(p.a.async_evd, &event);
		if (DAT_GET_TYPE(ret) == DAT_QUEUE_EMPTY)
			pause_us(1000);
	} while (now_us() < end && DAT_GET_TYPE(ret) != DAT_INVALID_STATE);
	CHECK_RET(ret, DAT_INVALID_STATE);
	CHECK_RET(dat_evd_wait(p.a.async_evd, 0, 1, &event, &more), DAT_INVALID_STATE);
	down();
}

/* An EVD of this instance that has lost an event: attempts to connect to a qualifier without a
 * listener, one more than it has room for. */
static DAT_EVD_HANDLE overflow_in(DAT_IA_HANDLE ia, const struct rig *to, DAT_CONN_QUAL unused)
{
	struct rig rig = *to;
	DAT_EVD_HANDLE evd = make_evd(ia, 1, DAT_EVD_CONNECTION_FLAG);

	rig.ia = ia;
	OK(dat_pz_create(ia, &rig.pz));
	rig.recv_evd = make_evd(ia, 16, DAT_EVD_DTO_FLAG);
	rig.request_evd = make_evd(ia, 16, DAT_EVD_DTO_FLAG);
	rig.connect_evd = evd;
	for (DAT_COUNT left = length_of(evd); left >= 0; left--)
		OK(try_connect(make_ep(&rig, NULL), to, unused, SOON));
	return evd;
}

/* Another instance of this IA. */
static DAT_IA_HANDLE open_named(const char *name, DAT_EVD_HANDLE *async_evd)
{
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;

	OK(dat_ia_open((DAT_NAME_PTR)(uintptr_t)name, 8, async_evd, &ia));
	return ia;
}

static void overflow__of_two_instances_in_one_async_evd(void)
{
	DAT_IA_HANDLE second;
	DAT_EVD_HANDLE async_evd;
	struct rig rig;
	DAT_CONN_QUAL unused;

	rig_up(&rig);
	async_evd = rig.async_evd;
	second = open_named(tap_ia, &async_evd);
	CHECK(async_evd == rig.async_evd);
	unused = free_qualifier(&rig);
	expect_overflow(rig.async_evd, overflow_in(rig.ia, &rig, unused));
	expect_overflow(rig.async_evd, overflow_in(second, &rig, unused));
	/* Once, although two instances report there. */
	EXPECT_NOTHING(rig.async_evd);
	CHECK_RET(dat_ia_close(second, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	rig_down(&rig);
}

/* Every instance of the IA in this process gets the errors of all of them in its own EVD; the errors of
 * one without an EVD are reported in those of the others. */
static void async__reaches_every_instance(void)
{
	DAT_IA_HANDLE second, third, last;
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL, elsewhere = DAT_EVD_ASYNC_EXISTS, evd;
	struct rig rig;
	DAT_CONN_QUAL unused;

	rig_up(&rig);
	unused = free_qualifier(&rig);
	second = open_named(tap_ia, &async_evd);
	third = open_named(tap_ia, &async_evd);
	last = open_named(tap_ia, &elsewhere);
	CHECK(elsewhere == DAT_EVD_ASYNC_EXISTS);
	REQUIRE(async_evd != rig.async_evd);
	for (int i = 0; i < 4; i++) {
		DAT_IA_HANDLE ias[] = { rig.ia, second, third, last };

		evd = overflow_in(ias[i], &rig, unused);
		expect_overflow(rig.async_evd, evd);
		expect_overflow(async_evd, evd);
	}
	EXPECT_NOTHING(rig.async_evd);
	EXPECT_NOTHING(async_evd);
	/* An EVD is notified until the last of its instances is closed. */
	CHECK_RET(dat_ia_close(third, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	evd = overflow_in(rig.ia, &rig, unused);
	expect_overflow(async_evd, evd);
	expect_overflow(rig.async_evd, evd);
	CHECK_RET(dat_ia_close(second, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	expect_overflow(rig.async_evd, overflow_in(last, &rig, unused));
	CHECK_RET(dat_ia_close(last, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	EXPECT_NOTHING(rig.async_evd);
	rig_down(&rig);
}

/* An IA of another name is another IA, on whatever device. */
static void async__is_of_one_ia(void)
{
	char name[DAT_NAME_MAX_LENGTH];
	DAT_IA_HANDLE other;
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL, evd;
	struct rig rig;
	DAT_CONN_QUAL unused;

	rig_up(&rig);
	unused = free_qualifier(&rig);
	snprintf(name, sizeof name, "%s-programs", tap_ia);
	other = open_named(name, &async_evd);
	evd = overflow_in(other, &rig, unused);
	expect_overflow(async_evd, evd);
	EXPECT_NOTHING(rig.async_evd);
	expect_overflow(rig.async_evd, overflow_in(rig.ia, &rig, unused));
	EXPECT_NOTHING(async_evd);
	CHECK_RET(dat_ia_close(other, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	rig_down(&rig);
}

/* An EVD of the program's that is both the async EVD of an instance and too small: its own overflow is
 * reported in no EVD, as for that which dat_ia_open makes. */
static void async__overflow_of_an_evd_that_was_given(void)
{
	unsigned long long end = now_us() + SOON;
	DAT_IA_HANDLE second;
	DAT_EVD_HANDLE given;
	DAT_EVENT event;
	DAT_COUNT length;
	DAT_RETURN ret;
	struct rig rig;
	DAT_CONN_QUAL unused;

	rig_up(&rig);
	unused = free_qualifier(&rig);
	given = make_evd(rig.ia, 1, DAT_EVD_ASYNC_FLAG);
	length = length_of(given);
	second = open_named(tap_ia, &given);
	for (DAT_COUNT i = 0; i <= length; i++)
		expect_overflow(rig.async_evd, overflow_in(rig.ia, &rig, unused));
	EXPECT_NOTHING(rig.async_evd);
	/* The reports of an event go to one EVD after the other. */
	for (DAT_COUNT i = 0; i < length; i++)
		EXPECT(given, DAT_ASYNC_ERROR_EVD_OVERFLOW);
	do
		ret = dat_evd_dequeue(given, &event);
	while (DAT_GET_TYPE(ret) == DAT_QUEUE_EMPTY && now_us() < end);
	CHECK_RET(ret, DAT_INVALID_STATE);
	CHECK_RET(dat_ia_close(second, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	rig_down(&rig);
}

/* --- order ------------------------------------------------------------------------------------- */

static void order__successes_before_the_end_of_the_connection(void)
{
	struct rig a, b;
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_LMR_TRIPLET none = { 0 };

	/* Receives and connection events of b in one EVD. */
	rig_up(&a);
	rig_up(&b);
	REQUIRE(b.provider.evd_stream_merging_supported[2][3]);
	b.recv_evd = make_evd(b.ia, 64, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG);
	b.connect_evd = b.recv_evd;
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	connect_eps(&a, ep_a, &b, ep_b);
	for (DAT_UINT64 i = 0; i < 6; i++)
		OK(dat_ep_post_recv(ep_b, 0, &none, cookie(i), DAT_COMPLETION_DEFAULT_FLAG));
	for (DAT_UINT64 i = 0; i < 4; i++)
		OK(dat_ep_post_send(ep_a, 0, &none, cookie(i), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	for (DAT_UINT64 i = 0; i < 4; i++)
		EXPECT_DTO(b.recv_evd, i, DAT_DTO_SUCCESS);
	/* The flushes are completions of this endpoint too. */
	EXPECT_DTO(b.recv_evd, 4, DAT_DTO_ERR_FLUSHED);
	EXPECT_DTO(b.recv_evd, 5, DAT_DTO_ERR_FLUSHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	rig_down(&a);
	rig_down(&b);
}

enum { EVENTS = 4000, CONSUMERS = 3 };

static DAT_EVD_HANDLE shared_evd;
static atomic_int seen[EVENTS];
static atomic_int taken;

static void *consumer(void *arg)
{
	unsigned long long end = now_us() + SOON;
	int last = -1;

	(void)arg;
	while (atomic_load(&taken) < EVENTS && now_us() < end) {
		DAT_EVENT event;
		DAT_RETURN ret = dat_evd_dequeue(shared_evd, &event);
		int number;

		if (DAT_GET_TYPE(ret) == DAT_QUEUE_EMPTY)
			continue;
		REQUIRE_RET(ret, DAT_SUCCESS);
		number = (int)(uintptr_t)event.event_data.software_event_data.pointer;
		REQUIRE(number >= 0 && number < EVENTS);
		/* What one consumer takes keeps its order. */
		CHECK(number > last);
		last = number;
		atomic_fetch_add(&seen[number], 1);
		atomic_fetch_add(&taken, 1);
	}
	return NULL;
}

static void order__concurrent_consumers(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	pthread_t thread[CONSUMERS];

	shared_evd = make_evd(ia, 64, DAT_EVD_SOFTWARE_FLAG);
	for (int i = 0; i < CONSUMERS; i++)
		REQUIRE(pthread_create(&thread[i], NULL, consumer, NULL) == 0);
	for (unsigned i = 0; i < EVENTS;) {
		if (post_software_event(shared_evd, i) == DAT_SUCCESS)
			i++;
		else
			pause_us(50);
	}
	for (int i = 0; i < CONSUMERS; i++)
		REQUIRE(pthread_join(thread[i], NULL) == 0);
	for (int i = 0; i < EVENTS; i++)
		CHECK_EQ(atomic_load(&seen[i]), 1);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static const struct tap_test tests[] = {
	T(overflow, connection_events),
	T(overflow, backlog_of_requests),
	T(overflow, of_the_async_evd),
	T(overflow, of_two_instances_in_one_async_evd),
	T(async, reaches_every_instance),
	T(async, is_of_one_ia),
	T(async, overflow_of_an_evd_that_was_given),
	T(order, successes_before_the_end_of_the_connection),
	T(order, concurrent_consumers),
	T(overflow, none_up_to_the_length),
	T(overflow, of_an_unwaitable_evd),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
