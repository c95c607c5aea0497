/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * For ThreadSanitizer: one thread prepares a structure and gives it to another one by a call of DAT, which takes it by
 * an event and uses it. scripts/tsan-programs.sh has this compiled with -fsanitize=thread.
 *
 *   race IA ordered [CASE]...   the thread that uses the structure has the event: nothing may be reported
 *   race IA early [CASE]...     it has not yet: a race in each case
 *   race IA late [CASE]...      the other one changes the structure afterwards: a race in each case
 *   race IA list MODE           the cases of a mode
 *
 * In a report a case has the name of the function that uses its structure.
 */
#include "common.h"

#ifdef DAT2
#include <dat2/dat_ib_extensions.h>
#endif
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The checker remembers four accesses of each eight bytes. */
struct work {
	uint64_t prepared;
	uint64_t used;
};

enum mode { ORDERED = 1, EARLY = 2, LATE = 4 };

static enum mode mode;
/* Shown and seen without any order. */
static atomic_bool given;
/* The agent has used the structure. */
static atomic_bool over;

static void await_given(void)
{
	while (!atomic_load_explicit(&given, memory_order_relaxed))
		pause_us(100);
}

static struct pair p;
static struct work *work;
static DAT_CNO_HANDLE cno;
static DAT_EVD_HANDLE evd;

struct race {
	const char *name;
	/* In the first thread: what is there before, what gives the structure, and what goes afterwards. */
	void (*up)(void);
	void (*give)(void);
	void (*down)(void);
	/* In the second thread: gets the event. */
	void (*take)(void);
	/* Each the same: prepares and uses. In a report they name the case. */
	void (*prepare)(struct work *);
	void (*use)(struct work *);
	/* The modes in which there is something to be seen. */
	unsigned modes;
};

static const struct race *current;

static DAT_CONTEXT this_work(void)
{
	DAT_CONTEXT context = { 0 };

	context.as_ptr = work;
	return context;
}

static DAT_EVENT next(DAT_EVD_HANDLE from)
{
	DAT_EVENT event = { 0 };
	DAT_COUNT more;

	OK(dat_evd_wait(from, SOON, 1, &event, &more));
	return event;
}

/* --- requests and messages ---------------------------------------------------------------- */

static void pair_for_messages(void)
{
	pair_up(&p, NULL);
	OK(recv_nothing(p.ep_b, 1));
	OK(recv_nothing(p.ep_b, 2));
}

static void end_pair(void)
{
	pair_down(&p);
}

static void send_work(void)
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

/* --- software events ---------------------------------------------------------------------- */

static struct rig rig;

static void evd_for_software(void)
{
	rig_up(&rig);
	evd = make_evd(rig.ia, 8, DAT_EVD_SOFTWARE_FLAG);
}

static void post_work(void)
{
	DAT_EVENT event = { 0 };

	event.event_number = DAT_SOFTWARE_EVENT;
	event.event_data.software_event_data.pointer = work;
	OK(dat_evd_post_se(evd, &event));
}

static void await_software(void)
{
	DAT_EVENT event = next(evd);

	CHECK(event.event_data.software_event_data.pointer == work);
}

static void poll_software(void)
{
	DAT_EVENT event;

	while (DAT_GET_TYPE(dat_evd_dequeue(evd, &event)) == DAT_QUEUE_EMPTY)
		;
}

static void end_rig(void)
{
	rig_down(&rig);
}

static void post_another_before(void)
{
	evd_for_software();
	OK(post_software_event(evd, 1));
}

static void await_the_other_software(void)
{
	await_given();
	next(evd);
}

static void set_unwaitable(void)
{
	/* The other thread may not wait yet, and gets the same then. */
	OK(dat_evd_set_unwaitable(evd));
}

static void await_unwaitable(void)
{
	DAT_EVENT event;
	DAT_COUNT more;

	CHECK_RET(dat_evd_wait(evd, SOON, 1, &event, &more), DAT_INVALID_STATE);
}

/* --- notification ------------------------------------------------------------------------- */

static void cno_for_software(void)
{
	evd_for_software();
	OK(dat_cno_create(rig.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(evd, cno));
}

static void cno_for_messages(void)
{
	pair_for_messages();
	OK(dat_cno_create(p.b.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(p.b.recv_evd, cno));
}

static void await_notification(void)
{
	DAT_EVD_HANDLE triggered;

	OK(dat_cno_wait(cno, SOON, &triggered));
}

/* The agent is the one that uses the structure, in whatever thread. */
static void agent(void *data, DAT_EVD_HANDLE triggered)
{
	(void)data;
	if (triggered == DAT_HANDLE_NULL || atomic_load_explicit(&over, memory_order_relaxed))
		return;
	current->use(work);
	atomic_store_explicit(&over, true, memory_order_release);
}

static void agent_for_messages(void)
{
	DAT_OS_WAIT_PROXY_AGENT calls = { NULL, (DAT_AGENT_FUNC)agent };

	pair_for_messages();
	OK(dat_cno_create(p.b.ia, calls, &cno));
	OK(dat_evd_modify_cno(p.b.recv_evd, cno));
}

static void await_agent(void)
{
	while (!atomic_load_explicit(&over, memory_order_acquire))
		pause_us(100);
}

#ifdef DAT2
static DAT_FD descriptor;

static void descriptor_for_messages(void)
{
	pair_for_messages();
	OK(dat_cno_fd_create(p.b.ia, &descriptor, &cno));
	OK(dat_evd_modify_cno(p.b.recv_evd, cno));
}

static void poll_descriptor(void)
{
	struct pollfd readable = { .fd = descriptor, .events = POLLIN };
	DAT_EVD_HANDLE triggered;

	REQUIRE(poll(&readable, 1, SOON / 1000) == 1);
	OK(dat_cno_trigger(cno, &triggered));
}
#endif

/* --- connections -------------------------------------------------------------------------- */

static DAT_CONN_QUAL qualifier;
static DAT_PSP_HANDLE psp;
static DAT_CR_HANDLE request;

static void ends_to_connect(void)
{
	rig_up(&p.a);
	rig_up(&p.b);
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, NULL);
	psp = listen_any(&p.b, &qualifier);
}

static void connect_work(void)
{
	OK(try_connect(p.ep_a, &p.b, qualifier, DAT_TIMEOUT_INFINITE));
}

static void await_connection_request(void)
{
	DAT_EVENT event = next(p.b.cr_evd);

	CHECK_EQ(event.event_number, DAT_CONNECTION_REQUEST_EVENT);
}

static void end_ends(void)
{
	rig_down(&p.a);
	rig_down(&p.b);
}

static void ends_with_a_request(void)
{
	ends_to_connect();
	connect_work();
	request = await_request(&p.b);
}

static void accept_work(void)
{
	OK(dat_cr_accept(request, p.ep_b, 0, NULL));
}

static void reject_work(void)
{
	OK(dx_cr_reject(request));
}

static void await_connection_event(void)
{
	next(p.a.connect_evd);
}

static void disconnect_work(void)
{
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
}

static void await_disconnection(void)
{
	next(p.b.connect_evd);
}

static void await_flush(void)
{
	DAT_EVENT event = next(p.b.recv_evd);

	CHECK_EQ(event.event_data.dto_completion_event_data.status, DAT_DTO_ERR_FLUSHED);
}

static void await_disconnected_state(void)
{
	await_state(p.ep_b, DAT_EP_STATE_DISCONNECTED);
}

static void set_context(void)
{
	OK(dat_set_consumer_context(evd, this_work()));
}

static void poll_context(void)
{
	DAT_CONTEXT context;

	do
		OK(dat_get_consumer_context(evd, &context));
	while (context.as_ptr != work);
}

/* --- the cases ---------------------------------------------------------------------------- */

/* X(name, up, give, down, take, modes) */
#define EACH_COMMON(X)                                                                             \
	X(request_wait, pair_for_messages, send_work, end_pair, await_request_end, ALL)            \
	X(request_poll, pair_for_messages, send_work, end_pair, poll_request_end, ALL)             \
	X(request_of_two, send_another_before, send_work, end_pair, await_both, ALL)               \
	X(request_other, send_another_before, send_work, end_pair, await_the_other, LATE | OTHER)  \
	X(message_wait, pair_for_messages, send_work, end_pair, await_message, ALL)                \
	X(message_poll, pair_for_messages, send_work, end_pair, poll_message, ALL)                 \
	X(message_receive, pair_for_messages, receive_work, end_pair, await_receive, ORDERED)      \
	X(message_answer, pair_that_answers, send_work, end_answering, await_answer, ALL)          \
	X(memory_read, two_pairs, write_flag, end_two_pairs, read_until_flag, ALL)                 \
	X(software_wait, evd_for_software, post_work, end_rig, await_software, ALL)                \
	X(software_poll, evd_for_software, post_work, end_rig, poll_software, ALL)                 \
	X(software_other, post_another_before, post_work, end_rig, await_the_other_software,       \
	  LATE | OTHER)                                                                            \
	X(nothing_polled, pair_for_messages, send_work, end_pair, poll_nothing, LATE | OTHER)      \
	X(nothing_awaited, pair_for_messages, send_work, end_pair, await_nothing, LATE | OTHER)    \
	X(unwaitable, evd_for_software, set_unwaitable, end_rig, await_unwaitable, ALL)            \
	X(cno_software, cno_for_software, post_work, end_rig, await_notification, ALL)             \
	X(cno_message, cno_for_messages, send_work, end_pair, await_notification, ALL)             \
	X(agent_message, agent_for_messages, send_work, end_pair, await_agent, ALL)                \
	X(connect_request, ends_to_connect, connect_work, end_ends, await_connection_request, ALL) \
	X(connect_accept, ends_with_a_request, accept_work, end_ends, await_connection_event, ALL) \
	X(connect_reject, ends_with_a_request, reject_work, end_ends, await_connection_event, ALL) \
	X(disconnect_event, pair_for_messages, disconnect_work, end_pair, await_disconnection,     \
	  ALL)                                                                                     \
	X(disconnect_flush, pair_for_messages, disconnect_work, end_pair, await_flush, ALL)        \
	X(disconnect_state, pair_for_messages, disconnect_work, end_pair,                          \
	  await_disconnected_state, ALL)                                                           \
	X(context, evd_for_software, set_context, end_rig, poll_context, ALL)
#ifdef DAT2
#define EACH(X)                                                                   \
	EACH_COMMON(X)                                                            \
	X(request_extended, two_pairs, add_work, end_two_pairs, await_added, ALL) \
	X(cno_descriptor, descriptor_for_messages, send_work, end_pair, poll_descriptor, ALL)
#else
#define EACH(X) EACH_COMMON(X)
#endif

/* OTHER: no event that is taken is that of the structure, which is a race in the mode `early` as well. */
enum { ALL = ORDERED | EARLY | LATE, OTHER = EARLY };

#define FUNCTIONS(name, up, give, down, take, modes)                         \
	static __attribute__((noinline)) void prepare_##name(struct work *w) \
	{                                                                    \
		w->prepared = 1;                                             \
	}                                                                    \
	static __attribute__((noinline)) void use_##name(struct work *w)     \
	{                                                                    \
		w->used = w->prepared;                                       \
	}
EACH(FUNCTIONS)

#define ROW(name, up, give, down, take, modes) \
	{ #name, up, give, down, take, prepare_##name, use_##name, modes },
static const struct race races[] = { EACH(ROW) };

static bool by_agent(void)
{
	return strncmp(current->name, "agent", 5) == 0;
}

/* In `early` the structure is used before there is the event, unless the event is another one's. */
static void *second(void *arg)
{
	bool other = !(current->modes & ORDERED);

	(void)arg;
	if (mode == EARLY && !other) {
		await_given();
		current->use(work);
		current->take();
		return NULL;
	}
	current->take();
	/* The checker may overlook what two processors do at the same moment. */
	if (mode == LATE)
		await_given();
	if (!by_agent())
		current->use(work);
	return NULL;
}

static void run(const struct race *race)
{
	pthread_t thread;

	current = race;
	work = calloc(1, sizeof *work);
	atomic_store(&given, false);
	atomic_store(&over, false);
	race->up();
	REQUIRE(pthread_create(&thread, NULL, second, NULL) == 0);
	race->prepare(work);
	race->give();
	if (mode == LATE) {
		while (by_agent() && !atomic_load_explicit(&over, memory_order_relaxed))
			pause_us(100);
		race->prepare(work);
	}
	atomic_store_explicit(&given, true, memory_order_relaxed);
	REQUIRE(pthread_join(thread, NULL) == 0);
	CHECK(work->used == 1 || mode != ORDERED);
	race->down();
	/* Never again at the same address, of which the checker knows. */
	work = NULL;
}

static bool is_wanted(const char *name, char **names)
{
	bool wanted = *names == NULL;

	for (; *names; names++)
		wanted |= strcmp(name, *names) == 0;
	return wanted;
}

static enum mode mode_of(const char *word)
{
	if (strcmp(word, "ordered") == 0)
		return ORDERED;
	if (strcmp(word, "early") == 0)
		return EARLY;
	REQUIRE(strcmp(word, "late") == 0);
	return LATE;
}

int main(int argc, char **argv)
{
	bool list;

	if (argc < 3)
		return 2;
	tap_begin(argv[1]);
	list = strcmp(argv[2], "list") == 0;
	if (list && argc < 4)
		return 2;
	mode = mode_of(argv[list ? 3 : 2]);
	for (size_t i = 0; i < sizeof races / sizeof *races; i++) {
		const struct race *race = &races[i];

		if (!(race->modes & mode) || !is_wanted(race->name, argv + (list ? 4 : 3)))
			continue;
		/* Within a process the agent is called by the thread that sends. */
		if (mode == LATE && race->take == await_agent && strcmp(tap_ia, "soft") == 0)
			continue;
		if (list)
			printf("%s\n", race->name);
		else
			run(race);
	}
	return tap_status();
}
