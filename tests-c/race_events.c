/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Cases of race.c: software events, the context of an object, CNOs and agents. */
#include "race.h"

#include <poll.h>
#include <stdatomic.h>

/* --- software events ---------------------------------------------------------------------- */

static struct rig rig;
DAT_EVD_HANDLE evd;

void evd_for_software(void)
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

void end_rig(void)
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

/* --- the context of the program -------------------------------------------------------------- */

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

/* --- notification ------------------------------------------------------------------------- */

static DAT_CNO_HANDLE cno;

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

/* The agent has used the structure. */
static atomic_bool over;

/* The agent is the one that uses the structure, in whatever thread. */
static void agent(void *data, DAT_EVD_HANDLE triggered)
{
	(void)data;
	if (triggered == DAT_HANDLE_NULL || agent_is_over())
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

void await_agent(void)
{
	while (!atomic_load_explicit(&over, memory_order_acquire))
		pause_us(100);
}

bool agent_is_over(void)
{
	return atomic_load_explicit(&over, memory_order_relaxed);
}

void begin_agent(void)
{
	atomic_store(&over, false);
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

/* --- the cases ---------------------------------------------------------------------------- */

#define EACH_COMMON(X)                                                                       \
	X(software_wait, evd_for_software, post_work, end_rig, await_software, ALL)          \
	X(software_poll, evd_for_software, post_work, end_rig, poll_software, ALL)           \
	X(software_other, post_another_before, post_work, end_rig, await_the_other_software, \
	  LATE | OTHER)                                                                      \
	X(unwaitable, evd_for_software, set_unwaitable, end_rig, await_unwaitable, ALL)      \
	X(cno_software, cno_for_software, post_work, end_rig, await_notification, ALL)       \
	X(cno_message, cno_for_messages, send_work, end_pair, await_notification, ALL)       \
	X(agent_message, agent_for_messages, send_work, end_pair, await_agent, ALL)          \
	X(context, evd_for_software, set_context, end_rig, poll_context, ALL)
#ifdef DAT2
#define EACH(X)        \
	EACH_COMMON(X) \
	X(cno_descriptor, descriptor_for_messages, send_work, end_pair, poll_descriptor, ALL)
#else
#define EACH(X) EACH_COMMON(X)
#endif

EACH(RACE_FUNCTIONS)
const struct race event_races[] = { EACH(RACE){ 0 } };
