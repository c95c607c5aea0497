/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * No memory left, at each point of a program in turn. The program opens two IAs, makes an object of
 * each kind, connects, transfers by each operation and frees everything; each test runs that as
 * often as the library allocates memory, each time in a new process in which another allocation
 * fails. Whatever fails: the process lives, a call succeeds or gives DAT_INSUFFICIENT_RESOURCES, a
 * call that has failed succeeds when it is repeated with memory, a connection that could not be made
 * or went on is reported by an event, frees succeed without memory, and at the end nothing is left.
 *
 * MEMORY_STEP=n lets one allocation of n fail, 1 every one. The default is a part that is quick.
 */
#include "common.h"
#include "failing_malloc.h"
#include "left.h"
#include "no_memory.h"
#include "random.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	/* Bytes of the memory of each end, of a message that is large, and of one that is small. */
	MEMORY = 1 << 19,
	LARGE = 1 << 17,
	SMALL = 64,
	/* Bytes of the heap that may be in use in addition: a block of the reserve is larger than
	 * what was to be allocated. */
	GROWTH = 24 * 1024,
	/* Seconds of one process. */
	LIMIT = 20,
	/* How often a connection is made anew. */
	TRIES = 4,
	/* Of how many allocations one fails. */
	STEP = 41,
	/* Processes whose end is reported in full. */
	REPORTED = 5,
};

/* The program under test. */

struct end {
	struct rig rig;
	char *memory;
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
	DAT_RMR_HANDLE rmr;
	DAT_CNO_HANDLE cno;
	DAT_EVD_HANDLE noted_evd;
	DAT_SRQ_HANDLE srq;
	DAT_EP_HANDLE ep, srq_ep, reserved_ep;
	DAT_PSP_HANDLE psp;
	DAT_RSP_HANDLE rsp;
	DAT_CR_HANDLE cr;
	DAT_CONN_QUAL qualifier;
};

static struct end a, b;
/* There is no memory to the end: the program stops with the first call that fails, and frees. */
static bool starves;

/* A call succeeds. If it has no memory, it is repeated with memory, or the program ends. */
#define TRY(call)                               \
	do {                                    \
		DAT_RETURN ret_ = (call);       \
		if (is_refused(ret_)) {         \
			if (starves)            \
				return false;   \
			stop_failing();         \
			ret_ = (call);          \
		}                               \
		REQUIRE_RET(ret_, DAT_SUCCESS); \
	} while (0)

static bool make_an_evd(struct end *e, DAT_EVD_FLAGS flags, DAT_CNO_HANDLE cno, DAT_EVD_HANDLE *evd)
{
	TRY(dat_evd_create(e->rig.ia, 64, cno, flags, evd));
	return true;
}

static bool register_memory(struct end *e, DAT_LMR_HANDLE *lmr)
{
	DAT_REGION_DESCRIPTION region;
	DAT_VADDR address;
	DAT_VLEN length;

	memset(&region, 0, sizeof region);
	region.for_va = e->memory;
	TRY(dx_lmr_create(e->rig.ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, e->rig.pz,
			  DAT_MEM_PRIV_ALL_FLAG, lmr, &e->local, &e->remote, &length, &address));
	return true;
}

static bool set_up(struct end *e)
{
	struct rig *rig = &e->rig;
	DAT_SRQ_ATTR srq_attr = { 4, 1, DAT_SRQ_LW_DEFAULT };
	DAT_EP_ATTR attr;

	TRY(dat_ia_open((DAT_NAME_PTR)(uintptr_t)tap_ia, 8, &rig->async_evd, &rig->ia));
	TRY(dat_ia_query(rig->ia, NULL, DAT_IA_FIELD_ALL, &rig->attr, DAT_PROVIDER_FIELD_ALL,
			 &rig->provider));
	TRY(dat_pz_create(rig->ia, &rig->pz));
	TRY(dat_cno_create(rig->ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &e->cno));
	if (!make_an_evd(e, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG, DAT_HANDLE_NULL,
			 &rig->request_evd) ||
	    !make_an_evd(e, DAT_EVD_DTO_FLAG, DAT_HANDLE_NULL, &rig->recv_evd) ||
	    !make_an_evd(e, DAT_EVD_CONNECTION_FLAG, DAT_HANDLE_NULL, &rig->connect_evd) ||
	    !make_an_evd(e, DAT_EVD_CR_FLAG, DAT_HANDLE_NULL, &rig->cr_evd) ||
	    !make_an_evd(e, DAT_EVD_SOFTWARE_FLAG, e->cno, &e->noted_evd) ||
	    !register_memory(e, &e->lmr))
		return false;
	TRY(dat_rmr_create(rig->pz, &e->rmr));
	TRY(dat_srq_create(rig->ia, rig->pz, &srq_attr, &e->srq));
	TRY(dat_srq_resize(e->srq, 4096));
	TRY(dat_evd_resize(rig->recv_evd, 4096));
	attr = ep_attr(rig);
	TRY(dat_ep_create(rig->ia, rig->pz, rig->recv_evd, rig->request_evd, rig->connect_evd,
			  &attr, &e->ep));
	TRY(dat_ep_create_with_srq(rig->ia, rig->pz, rig->recv_evd, rig->request_evd,
				   rig->connect_evd, e->srq, &attr, &e->srq_ep));
	TRY(dat_ep_create(rig->ia, rig->pz, rig->recv_evd, rig->request_evd, rig->connect_evd,
			  &attr, &e->reserved_ep));
	attr.max_recv_dtos = 2048;
	TRY(dat_ep_modify(e->ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS,
			  &(DAT_EP_PARAM){ .ep_attr = attr }));
	TRY(dat_psp_create_any(rig->ia, &e->qualifier, rig->cr_evd, DAT_PSP_CONSUMER_FLAG,
			       &e->psp));
	TRY(dat_rsp_create(rig->ia, e->qualifier + ((DAT_CONN_QUAL)1 << 40), e->reserved_ep,
			   rig->cr_evd, &e->rsp));
	return true;
}

static bool query(struct end *e)
{
	DAT_PROVIDER_INFO info[16], *list[16];
	DAT_COUNT count;
	DAT_EP_PARAM ep;
	DAT_EVD_PARAM evd;
	DAT_LMR_PARAM lmr;
	DAT_SRQ_PARAM srq;
	DAT_PSP_PARAM psp;

	for (int i = 0; i < 16; i++)
		list[i] = &info[i];
	TRY(dat_registry_list_providers(16, &count, list));
	TRY(dat_ep_query(e->ep, DAT_EP_FIELD_ALL, &ep));
	TRY(dat_evd_query(e->rig.recv_evd, DAT_EVD_FIELD_ALL, &evd));
	TRY(dat_lmr_query(e->lmr, DAT_LMR_FIELD_ALL, &lmr));
	TRY(dat_srq_query(e->srq, DAT_SRQ_FIELD_ALL, &srq));
	TRY(dat_psp_query(e->psp, DAT_PSP_FIELD_ALL, &psp));
	return true;
}

/* The next event of either EVD, and of which. */
static DAT_EVENT next(DAT_EVD_HANDLE first, DAT_EVD_HANDLE second)
{
	unsigned long long begun = now_us(), end = begun + SOON / 2;
	DAT_EVENT event;

	memset(&event, 0, sizeof event);
	for (;;) {
		if (dat_evd_dequeue(first, &event) == DAT_SUCCESS ||
		    dat_evd_dequeue(second, &event) == DAT_SUCCESS)
			return event;
		/* A peer that connects waits until there is memory. */
		if (first != a.rig.request_evd && allocations_failed() > 0 &&
		    now_us() > begun + SHORTLY) {
			if (starves)
				return event;
			stop_failing();
		}
		if (now_us() > end) {
			tap_fail(__FILE__, __LINE__, "no event");
			tap_bail();
		}
		sched_yield();
	}
}

/* How a connection or a transfer has ended. */
enum outcome { DONE, REFUSED, BROKEN };

/* Something else than success is due to memory, which there is from now on. */
static enum outcome broken(const char *what, unsigned number)
{
	if (allocations_failed() == 0) {
		tap_fail(__FILE__, __LINE__, "%s: 0x%x", what, number);
		tap_bail();
	}
	if (starves)
		return REFUSED;
	stop_failing();
	return BROKEN;
}

static bool ask(void)
{
	TRY(dat_ep_connect(a.ep, b.rig.attr.ia_address_ptr, b.qualifier, SOON, 4, "data",
			   DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	return true;
}

static bool accept_it(void)
{
	DAT_CR_PARAM param;

	TRY(dat_cr_query(b.cr, DAT_CR_FIELD_ALL, &param));
	CHECK_EQ(param.private_data_size, 4);
	TRY(dat_cr_accept(b.cr, b.ep, 4, "tada"));
	b.cr = DAT_HANDLE_NULL;
	return true;
}

static enum outcome connect_them(void)
{
	DAT_EVENT event;

	if (!ask())
		return REFUSED;
	event = next(b.rig.cr_evd, a.rig.connect_evd);
	if (event.event_number != DAT_CONNECTION_REQUEST_EVENT)
		return broken("instead of a request", event.event_number);
	b.cr = event.event_data.cr_arrival_event_data.cr_handle;
	if (!accept_it())
		return REFUSED;
	for (int ends = 0; ends < 2; ends++) {
		event = next(a.rig.connect_evd, b.rig.connect_evd);
		if (event.event_number != DAT_CONNECTION_EVENT_ESTABLISHED)
			return broken("instead of a connection", event.event_number);
	}
	return DONE;
}

static bool post_receive(size_t size)
{
	DAT_LMR_TRIPLET iov = dx_local(b.local, b.memory, size);

	TRY(dat_ep_post_recv(b.ep, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	return true;
}

static bool post_request(int kind, size_t size)
{
	DAT_LMR_TRIPLET iov = dx_local(a.local, a.memory, size);
	DAT_RMR_TRIPLET remote = dx_remote(b.remote, b.memory, size);
	DAT_COMPLETION_FLAGS flags = DAT_COMPLETION_DEFAULT_FLAG;

	if (kind == 0)
		TRY(dat_ep_post_send(a.ep, 1, &iov, cookie(2), flags));
	else if (kind == 1)
		TRY(dat_ep_post_rdma_write(a.ep, 1, &iov, cookie(2), &remote, flags));
	else
		TRY(dat_ep_post_rdma_read(a.ep, 1, &iov, cookie(2), &remote, flags));
	return true;
}

static bool post_bind(void)
{
	DAT_LMR_TRIPLET range = dx_local(a.local, a.memory, SMALL);
	DAT_RMR_CONTEXT key;

	TRY(dx_rmr_bind(a.rmr, a.lmr, &range, DAT_MEM_PRIV_REMOTE_READ_FLAG, a.ep, cookie(3),
			DAT_COMPLETION_DEFAULT_FLAG, &key));
	return true;
}

/* Completions of this many requests. */
static enum outcome complete(int requests)
{
	while (requests-- > 0) {
		DAT_EVENT event = next(a.rig.request_evd, b.rig.recv_evd);
		unsigned status = event.event_number == DAT_DTO_COMPLETION_EVENT ?
					  event.event_data.dto_completion_event_data.status :
					  event.event_data.rmr_completion_event_data.status;

		if (status != 0)
			return broken("completion with status", status);
	}
	return DONE;
}

static enum outcome transfer(void)
{
	static const size_t sizes[] = { SMALL, LARGE };
	enum outcome outcome = DONE;

	for (int i = 0; i < 2; i++)
		for (int kind = 0; kind < 3; kind++) {
			fill(a.memory, sizes[i], (unsigned)kind);
			if (kind == 0 && !post_receive(sizes[i]))
				return REFUSED;
			if (!post_request(kind, sizes[i]))
				return REFUSED;
			outcome = complete(kind == 0 ? 2 : 1);
			if (outcome != DONE)
				return outcome;
			/* What was written is there when a later read has ended. */
			if (kind == 0)
				CHECK(filled(b.memory, sizes[i], 0));
			if (kind == 2)
				CHECK(filled(b.memory, sizes[i], 1) &&
				      filled(a.memory, sizes[i], 1));
		}
	if (!post_bind())
		return REFUSED;
	return complete(1);
}

static void drain(const struct rig *rig)
{
	const DAT_EVD_HANDLE evds[] = { rig->recv_evd, rig->request_evd, rig->connect_evd,
					rig->cr_evd };
	DAT_EVENT event;

	for (size_t i = 0; i < sizeof evds / sizeof evds[0]; i++)
		while (dat_evd_dequeue(evds[i], &event) == DAT_SUCCESS)
			;
}

/* Ends what there is of a connection. */
static void end_connection(void)
{
	if (b.cr != DAT_HANDLE_NULL)
		OK(dx_cr_reject(b.cr));
	b.cr = DAT_HANDLE_NULL;
	for (int i = 0; i < 2; i++) {
		DAT_EP_HANDLE ep = i ? b.ep : a.ep;

		if (ep == DAT_HANDLE_NULL || ep_state(ep) == DAT_EP_STATE_UNCONNECTED)
			continue;
		OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
		await_state(ep, DAT_EP_STATE_DISCONNECTED);
		OK(dat_ep_reset(ep));
	}
	drain(&a.rig);
	drain(&b.rig);
}

static bool run(void)
{
	enum outcome outcome = BROKEN;

	if (!set_up(&a) || !set_up(&b) || !query(&a))
		return false;
	for (int tries = 0; outcome == BROKEN && tries < TRIES; tries++) {
		if (tries > 0)
			end_connection();
		outcome = connect_them();
		if (outcome == DONE)
			outcome = transfer();
	}
	CHECK(outcome != BROKEN);
	return outcome == DONE;
}

/* Frees succeed, also without memory. */
#define FREE(function, handle)                   \
	do {                                     \
		if ((handle) != DAT_HANDLE_NULL) \
			OK(function(handle));    \
	} while (0)

static void tear_down(struct end *e)
{
	struct rig *rig = &e->rig;

	if (rig->ia == DAT_HANDLE_NULL)
		return;
	FREE(dat_rsp_free, e->rsp);
	FREE(dat_psp_free, e->psp);
	FREE(dat_ep_free, e->reserved_ep);
	FREE(dat_ep_free, e->srq_ep);
	FREE(dat_ep_free, e->ep);
	FREE(dat_srq_free, e->srq);
	FREE(dat_rmr_free, e->rmr);
	FREE(dat_lmr_free, e->lmr);
	FREE(dat_evd_free, e->noted_evd);
	FREE(dat_evd_free, rig->cr_evd);
	FREE(dat_evd_free, rig->connect_evd);
	FREE(dat_evd_free, rig->recv_evd);
	FREE(dat_evd_free, rig->request_evd);
	FREE(dat_cno_free, e->cno);
	FREE(dat_pz_free, rig->pz);
	/* Refused if there were any object left. */
	OK(dat_ia_close(rig->ia, DAT_CLOSE_GRACEFUL_FLAG));
}

/* --- a process per allocation --------------------------------------------------------------- */

/* What the processes share with the test. */
struct result {
	/* The program has freed everything. */
	bool ended;
	unsigned long seen, failed;
	struct having left;
};

/* What a process has at its end in which no allocation fails; zeros in that one. */
static struct having usual;

static bool is_more(const struct having *now, const struct having *than)
{
	return now->descriptors > than->descriptors || now->threads > than->threads ||
	       now->shared > than->shared || now->bytes > than->bytes + GROWTH;
}

static void one_process(struct result *result, const struct failing *failing)
{
	static char memory[2][MEMORY] __attribute__((aligned(4096)));
	unsigned long long end;

	alarm(LIMIT);
	a.memory = memory[0];
	b.memory = memory[1];
	if (failing->first > 0)
		fail_allocations(*failing);
	run();
	end_connection();
	tear_down(&a);
	tear_down(&b);
	result->seen = allocations_seen();
	result->failed = allocations_failed();
	stop_failing();
	/* A thread that was joined may take a moment to go. */
	end = now_us() + AT_ONCE;
	do
		result->left = what_is();
	while (usual.threads != 0 && is_more(&result->left, &usual) && now_us() < end);
	result->ended = true;
}

/* Runs the program in a process; gives what waitpid() does. */
static int run_process(struct result *result, const struct failing *failing)
{
	pid_t child;
	int status;

	memset(result, 0, sizeof *result);
	fflush(stdout);
	child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		one_process(result, failing);
		fflush(stdout);
		_exit(tap_status());
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	return status;
}

static void each_in_turn(struct failing failing)
{
	struct result *result = mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned long step = (unsigned long)setting("MEMORY_STEP", STEP);
	unsigned long died = 0, wrong = 0, runs = 0;

	need_our_malloc();
	REQUIRE(step > 0);
	/* Each process has a limit of its own. */
	alarm(0);
	REQUIRE(result != MAP_FAILED);
	failing.first = 0;
	memset(&usual, 0, sizeof usual);
	REQUIRE(run_process(result, &failing) == 0 && result->ended);
	usual = result->left;
	for (failing.first = 1;; failing.first += step) {
		int status = run_process(result, &failing);

		runs++;
		if (WIFSIGNALED(status))
			died++;
		else if (status != 0 || !result->ended)
			wrong++;
		else if (is_more(&result->left, &usual)) {
			printf("# %u descriptors, %u threads, %u shared mappings, %zu bytes, not "
			       "%u, %u, %u, %zu\n",
			       result->left.descriptors, result->left.threads, result->left.shared,
			       result->left.bytes, usual.descriptors, usual.threads, usual.shared,
			       usual.bytes);
			wrong++;
			status = -1;
		}
		if (status != 0 && died + wrong <= REPORTED)
			printf("# allocation %lu of the program: %s %d\n", failing.first,
			       WIFSIGNALED(status) ? "signal" : "status",
			       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
		/* The program has ended before that allocation. */
		if (status == 0 && result->failed == 0)
			break;
	}
	printf("# %lu of %lu processes died, %lu did something wrong\n", died, runs, wrong);
	CHECK_EQ(died, 0);
	CHECK_EQ(wrong, 0);
	munmap(result, sizeof *result);
}

/* --- tests ---------------------------------------------------------------------------------- */

static void calls__one_allocation_fails(void)
{
	each_in_turn((struct failing){ 0 });
}

static void calls__all_fail_until_a_call_does(void)
{
	each_in_turn((struct failing){ .and_later = true });
}

static void calls__memory_is_gone(void)
{
	starves = true;
	each_in_turn((struct failing){ .and_later = true });
}

static void any_thread__one_allocation_fails(void)
{
	each_in_turn((struct failing){ .any_thread = true });
}

static void any_thread__all_fail_until_a_call_does(void)
{
	each_in_turn((struct failing){ .and_later = true, .any_thread = true });
}

static void any_thread__memory_is_gone(void)
{
	starves = true;
	each_in_turn((struct failing){ .and_later = true, .any_thread = true });
}

static const struct tap_test tests[] = {
	T(calls, one_allocation_fails),
	T(calls, all_fail_until_a_call_does),
	T(calls, memory_is_gone),
	T(any_thread, one_allocation_fails),
	T(any_thread, all_fail_until_a_call_does),
	T(any_thread, memory_is_gone),
	TAP_END,
};

int main(int argc, char **argv)
{
	keep_nothing_freed(argv);
	return tap_main(argc, argv, tests);
}
