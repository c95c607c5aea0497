/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Eight threads on the same objects: some create and free, others use, connect, post and wait
 * at the same time. Every call may give any code that its man page has for the state another
 * thread may have left behind; none may crash, hang or lose anything. What is created is freed
 * once, what is posted completes once.
 *
 * The number of operations is fixed and the choices come from fixed seeds; only the order in
 * which threads run is not ours.
 */
#include "common.h"
#include "random.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8 };

static struct rig a, b;

/* How many of so many operations: a memory checker, for which tests get more time, is slow. */
static int rounds(int plain)
{
	return getenv("TAP_TIMEOUT") ? plain / 20 : plain;
}

/* --- codes -------------------------------------------------------------------------------- */

#define BIT(type) (1u << ((type) >> 16))
/* What a call may give beside success: another thread has freed the object, uses it, has
 * changed its state. */
#define GONE BIT(DAT_INVALID_HANDLE)
#define BUSY BIT(DAT_INVALID_STATE)
#define FULL BIT(DAT_INSUFFICIENT_RESOURCES)
#define ARGUMENT BIT(DAT_INVALID_PARAMETER)
#define EMPTY BIT(DAT_QUEUE_EMPTY)
#define TIMEOUT BIT(DAT_TIMEOUT_EXPIRED)
#define ABORTED BIT(DAT_ABORT)
#define NOT_ALLOWED (BIT(DAT_PROTECTION_VIOLATION) | BIT(DAT_PRIVILEGES_VIOLATION))

/* True for success; a failure of the test for a code that is not in `others`. */
#define MAY(call, others) may(__LINE__, #call, (call), (others))

static bool may(int line, const char *call, DAT_RETURN ret, unsigned others)
{
	uint32_t type = (uint32_t)DAT_GET_TYPE(ret) >> 16;

	if (ret == DAT_SUCCESS)
		return true;
	if (type >= 32 || !(others & 1u << type))
		check_ret(__FILE__, line, call, ret, DAT_SUCCESS);
	return false;
}

/* --- threads ------------------------------------------------------------------------------ */

struct worker {
	pthread_t thread;
	uint32_t seed;
	void (*work)(uint32_t number);
};

static void *begin(void *arg)
{
	struct worker *worker = arg;

	seed_with(worker->seed);
	worker->work(worker->seed - 1);
	return NULL;
}

/* Runs it in all threads, with their numbers, and waits for the last. */
static void in_threads(void (*work)(uint32_t number))
{
	struct worker workers[THREADS];

	for (uint32_t i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ .seed = i + 1, .work = work };
		REQUIRE(pthread_create(&workers[i].thread, NULL, begin, &workers[i]) == 0);
	}
	for (int i = 0; i < THREADS; i++)
		REQUIRE(pthread_join(workers[i].thread, NULL) == 0);
}

/* --- objects that everybody creates, uses and frees --------------------------------------- */

/* In the order in which they can be freed. */
enum kind { EP, SRQ, PSP, LMR, EVD, CNO, PZ, KINDS };
enum { SLOTS = 3, MOST = 1 << 15 };

static struct {
	/* The handles everybody uses; freed ones stay until another takes their place. */
	_Atomic(DAT_HANDLE) slot[SLOTS];
	/* All there ever were. */
	_Atomic(DAT_HANDLE) all[MOST];
	atomic_int created, freed;
} objects[KINDS];

static _Alignas(4096) char memory[4096];

static DAT_HANDLE pick(enum kind kind)
{
	return objects[kind].slot[below(SLOTS)];
}

static void let_go(enum kind kind, DAT_HANDLE handle, unsigned others)
{
	typedef DAT_RETURN destructor(DAT_HANDLE);
	static destructor *const release[KINDS] = {
		dat_ep_free,  dat_srq_free, dat_psp_free, dat_lmr_free,
		dat_evd_free, dat_cno_free, dat_pz_free,
	};

	if (MAY(release[kind](handle), others))
		objects[kind].freed++;
}

/* Makes one out of those that are there, and puts it where others find it. */
static void make(enum kind kind)
{
	const DAT_OS_WAIT_PROXY_AGENT no_agent = { NULL, NULL };
	DAT_SRQ_ATTR srq = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_EP_ATTR attr = ep_attr(&a);
	DAT_REGION_DESCRIPTION region = { .for_va = memory };
	DAT_HANDLE made = DAT_HANDLE_NULL, old;
	DAT_CONN_QUAL qual = 0;
	bool ok = false;

	switch (kind) {
	case PZ:
		ok = MAY(dat_pz_create(a.ia, &made), FULL);
		break;
	case CNO:
		ok = MAY(dat_cno_create(a.ia, no_agent, &made), FULL);
		break;
	case EVD:
		ok = MAY(dat_evd_create(a.ia, 8, below(2) ? pick(CNO) : DAT_HANDLE_NULL,
					DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG |
						DAT_EVD_CR_FLAG | DAT_EVD_SOFTWARE_FLAG,
					&made),
			 FULL | GONE);
		break;
	case LMR:
		ok = MAY(dx_lmr_create(a.ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, pick(PZ),
				       DAT_MEM_PRIV_ALL_FLAG, &made, NULL, NULL, NULL, NULL),
			 FULL | GONE);
		break;
	case PSP:
		ok = MAY(dat_psp_create_any(a.ia, &qual, pick(EVD), DAT_PSP_CONSUMER_FLAG, &made),
			 FULL | GONE);
		break;
	case SRQ:
		ok = MAY(dat_srq_create(a.ia, pick(PZ), &srq, &made), FULL | GONE);
		break;
	case EP:
		if (below(2))
			ok = MAY(dat_ep_create(a.ia, pick(PZ), pick(EVD), pick(EVD), pick(EVD),
					       &attr, &made),
				 FULL | GONE);
		else
			ok = MAY(dat_ep_create_with_srq(a.ia, pick(PZ), pick(EVD), pick(EVD),
							pick(EVD), pick(SRQ), &attr, &made),
				 /* A zone that is not the SRQ's. */
				 FULL | GONE | ARGUMENT | BIT(DAT_MODEL_NOT_SUPPORTED));
		break;
	default:
		break;
	}
	if (!ok)
		return;
	objects[kind].all[objects[kind].created++] = made;
	old = atomic_exchange(&objects[kind].slot[below(SLOTS)], made);
	if (old != DAT_HANDLE_NULL)
		let_go(kind, old, GONE | BUSY);
}

static void use(enum kind kind, DAT_HANDLE handle)
{
	DAT_LMR_TRIPLET iov = dx_local(0, memory, 8);
	DAT_HANDLE_TYPE type;
	DAT_CONTEXT context;
	DAT_EVD_PARAM evd;
	DAT_CNO_PARAM cno;
	DAT_LMR_PARAM lmr;
	DAT_PSP_PARAM psp;
	DAT_SRQ_PARAM srq;
	DAT_PZ_PARAM pz;
	DAT_EP_PARAM ep;
	DAT_EP_STATE state;
	DAT_EVD_HANDLE from;
	DAT_EVENT event;
	DAT_COUNT more;

	MAY(dat_get_handle_type(handle, &type), GONE);
	MAY(dat_set_consumer_context(handle, cookie(1)), GONE);
	MAY(dat_get_consumer_context(handle, &context), GONE);
	switch (kind) {
	case PZ:
		MAY(dat_pz_query(handle, DAT_PZ_FIELD_ALL, &pz), GONE);
		break;
	case CNO:
		MAY(dat_cno_query(handle, DAT_CNO_FIELD_ALL, &cno), GONE);
		MAY(dat_cno_wait(handle, 0, &from), GONE | EMPTY | TIMEOUT);
		break;
	case EVD:
		MAY(post_software_event(handle, 0), GONE | BIT(DAT_QUEUE_FULL));
		MAY(dat_evd_wait(handle, 10, 1, &event, &more), GONE | BUSY | TIMEOUT | ABORTED);
		MAY(dat_evd_dequeue(handle, &event), GONE | BUSY | EMPTY);
		MAY(dat_evd_resize(handle, 8 + (DAT_COUNT)below(8)), GONE | BUSY | FULL);
		MAY(dat_evd_disable(handle), GONE);
		MAY(dat_evd_modify_cno(handle, below(2) ? pick(CNO) : DAT_HANDLE_NULL), GONE);
		MAY(dat_evd_enable(handle), GONE);
		MAY(dat_evd_set_unwaitable(handle), GONE);
		MAY(dat_evd_clear_unwaitable(handle), GONE);
		MAY(dat_evd_query(handle, DAT_EVD_FIELD_ALL, &evd), GONE);
		break;
	case LMR:
		MAY(dat_lmr_query(handle, DAT_LMR_FIELD_ALL, &lmr), GONE);
		break;
	case PSP:
		MAY(dat_psp_query(handle, DAT_PSP_FIELD_ALL, &psp), GONE);
		break;
	case SRQ:
		MAY(dat_srq_query(handle, DAT_SRQ_FIELD_ALL, &srq), GONE);
		MAY(dat_srq_resize(handle, 4 + (DAT_COUNT)below(4)), GONE | BUSY | FULL);
		MAY(dat_srq_set_lw(handle, (DAT_COUNT)below(4)), GONE);
		break;
	case EP:
		if (MAY(dat_lmr_query(pick(LMR), DAT_LMR_FIELD_ALL, &lmr), GONE))
			iov.lmr_context = lmr.lmr_context;
		/* An endpoint with an SRQ takes no buffers of its own. */
		MAY(dat_ep_post_recv(handle, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		    GONE | BUSY | FULL | ARGUMENT | NOT_ALLOWED);
		MAY(dat_ep_post_send(handle, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		    GONE | BUSY | FULL | ARGUMENT | NOT_ALLOWED);
		MAY(dat_ep_disconnect(handle, DAT_CLOSE_ABRUPT_FLAG), GONE | BUSY);
		MAY(dat_ep_reset(handle), GONE | BUSY);
		MAY(dat_ep_get_status(handle, &state, NULL, NULL), GONE);
		MAY(dat_ep_query(handle, DAT_EP_FIELD_ALL, &ep), GONE);
		break;
	default:
		break;
	}
}

static void create_use_free(uint32_t number)
{
	(void)number;
	for (int i = rounds(1500); i > 0; i--) {
		enum kind kind = (enum kind)below(KINDS);

		switch (below(4)) {
		case 0:
			let_go(kind, pick(kind), GONE | BUSY);
			break;
		case 1:
			use(kind, pick(kind));
			break;
		default:
			make(kind);
			break;
		}
	}
}

static void stress__create_use_free(void)
{
	rig_up(&a);
	in_threads(create_use_free);
	for (enum kind kind = EP; kind < KINDS; kind++) {
		/* What a freed handle was stays invalid; the rest is in nobody's use any more. */
		for (int i = 0; i < objects[kind].created; i++)
			let_go(kind, objects[kind].all[i], GONE);
		CHECK(objects[kind].created > 0);
		CHECK_EQ(objects[kind].created, objects[kind].freed);
	}
	OK(dat_evd_free(a.recv_evd));
	OK(dat_evd_free(a.request_evd));
	OK(dat_evd_free(a.connect_evd));
	OK(dat_evd_free(a.cr_evd));
	OK(dat_pz_free(a.pz));
	CHECK_RET(dat_ia_close(a.ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

/* --- one connection that everybody posts to ----------------------------------------------- */

/* Threads by what they do: 0 to 2 send, 3 writes, 4 reads, 5 to 7 receive; all take events. */
enum { MESSAGES = 600, SENDERS = 3, REQUESTS = (SENDERS + 2) * MESSAGES };

static DAT_EP_HANDLE ep_a, ep_b;
static struct mem mem_a, mem_b;
static int messages;
/* How often each request and each receive has completed; what the receives brought. */
static atomic_uchar requested[REQUESTS], received[SENDERS * MESSAGES];
static atomic_uchar arrived[SENDERS * MESSAGES];
static atomic_int request_count, receive_count;

static void take_request(const DAT_DTO_COMPLETION_EVENT_DATA *dto)
{
	CHECK_EQ(dto->status, DAT_DTO_SUCCESS);
	REQUIRE(dto->user_cookie.as_64 < REQUESTS);
	CHECK_EQ(requested[dto->user_cookie.as_64]++, 0);
	request_count++;
}

static void take_receive(const DAT_DTO_COMPLETION_EVENT_DATA *dto)
{
	uint64_t number;

	CHECK_EQ(dto->status, DAT_DTO_SUCCESS);
	CHECK_EQ(dto->transfered_length, 8);
	REQUIRE(dto->user_cookie.as_64 < SENDERS * MESSAGES);
	CHECK_EQ(received[dto->user_cookie.as_64]++, 0);
	memcpy(&number, mem_b.at + 8 * dto->user_cookie.as_64, 8);
	REQUIRE(number < SENDERS * MESSAGES);
	CHECK_EQ(arrived[number]++, 0);
	receive_count++;
}

/* Takes what is there from both queues. */
static void take_all(void)
{
	DAT_EVENT event;

	while (MAY(dat_evd_dequeue(a.request_evd, &event), EMPTY))
		take_request(&event.event_data.dto_completion_event_data);
	while (MAY(dat_evd_dequeue(b.recv_evd, &event), EMPTY))
		take_receive(&event.event_data.dto_completion_event_data);
}

/* Posts operation `number` of thread `who`. */
static DAT_RETURN post_one(uint32_t who, uint64_t number)
{
	DAT_LMR_TRIPLET iov;
	DAT_RMR_TRIPLET remote = dx_remote(mem_b.remote, mem_b.at + mem_b.size / 2, 64);

	if (who > SENDERS + 1) {
		iov = dx_local(mem_b.local, mem_b.at + 8 * number, 8);
		return dat_ep_post_recv(ep_b, 1, &iov, cookie(number), DAT_COMPLETION_DEFAULT_FLAG);
	}
	if (who < SENDERS) {
		iov = dx_local(mem_a.local, mem_a.at + 8 * number, 8);
		memcpy(mem_a.at + 8 * number, &number, 8);
		return dat_ep_post_send(ep_a, 1, &iov, cookie(number), DAT_COMPLETION_DEFAULT_FLAG);
	}
	iov = dx_local(mem_a.local, mem_a.at + mem_a.size / 2 + 64 * who, 64);
	if (who == SENDERS)
		return dat_ep_post_rdma_write(ep_a, 1, &iov, cookie(number), &remote,
					      DAT_COMPLETION_DEFAULT_FLAG);
	return dat_ep_post_rdma_read(ep_a, 1, &iov, cookie(number), &remote,
				     DAT_COMPLETION_DEFAULT_FLAG);
}

static void post_and_take(uint32_t who)
{
	uint64_t first = (who > SENDERS + 1 ? who - SENDERS - 2 : who) * (uint64_t)messages;

	for (int i = 0; i < messages;) {
		if (MAY(post_one(who, first + (uint64_t)i), FULL))
			i++;
		else
			sched_yield();
		take_all();
	}
}

static void stress__post_and_take(void)
{
	unsigned long long end;

	messages = rounds(MESSAGES);
	rig_up(&a);
	rig_up(&b);
	/* Room for all: whether events are taken in time is not the point. Not every device can
	 * resize a queue that is in use. */
	OK(dat_evd_resize(a.request_evd, REQUESTS));
	OK(dat_evd_resize(b.recv_evd, REQUESTS));
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	connect_eps(&a, ep_a, &b, ep_b);
	mem_a = make_mem(&a, 1 << 16, DAT_MEM_PRIV_ALL_FLAG);
	mem_b = make_mem(&b, 1 << 16, DAT_MEM_PRIV_ALL_FLAG);
	in_threads(post_and_take);
	end = now_us() + SOON;
	while ((request_count < (SENDERS + 2) * messages || receive_count < SENDERS * messages) &&
	       now_us() < end) {
		take_all();
		pause_us(100);
	}
	CHECK_EQ(request_count, (SENDERS + 2) * messages);
	CHECK_EQ(receive_count, SENDERS * messages);
	EXPECT_NOTHING(a.async_evd);
	EXPECT_NOTHING(b.async_evd);
	rig_down(&a);
	rig_down(&b);
}

/* --- connections that everybody makes and breaks ------------------------------------------ */

enum { EPS = 3 };

static DAT_EP_HANDLE eps_a[EPS], eps_b[EPS];
static DAT_CONN_QUAL qualifier;

static void answer(DAT_CR_HANDLE cr)
{
	/* The endpoint may be in use; the request is still there then. */
	if (below(4) == 0 ||
	    !MAY(dat_cr_accept(cr, eps_b[below(EPS)], 0, NULL), GONE | BUSY | ARGUMENT | FULL))
		MAY(dx_cr_reject(cr), GONE);
}

static void connect_and_break(uint32_t number)
{
	DAT_EVENT event;

	(void)number;
	for (int i = rounds(400); i > 0; i--) {
		DAT_EP_HANDLE ep = below(2) ? eps_a[below(EPS)] : eps_b[below(EPS)];
		DAT_LMR_TRIPLET iov = dx_local(mem_a.local, mem_a.at, 8);

		MAY(try_connect(eps_a[below(EPS)], &b, qualifier, SOON), BUSY | FULL);
		if (MAY(dat_evd_dequeue(b.cr_evd, &event), EMPTY))
			answer(event.event_data.cr_arrival_event_data.cr_handle);
		while (MAY(dat_evd_dequeue(a.connect_evd, &event), EMPTY))
			;
		MAY(dat_ep_post_send(eps_a[below(EPS)], 1, &iov, cookie(1),
				     DAT_COMPLETION_DEFAULT_FLAG),
		    BUSY | FULL);
		while (MAY(dat_evd_dequeue(a.request_evd, &event), EMPTY))
			;
		while (MAY(dat_evd_dequeue(b.connect_evd, &event), EMPTY))
			;
		switch (below(4)) {
		case 0:
			MAY(dat_ep_disconnect(ep, below(2) ? DAT_CLOSE_ABRUPT_FLAG :
							     DAT_CLOSE_GRACEFUL_FLAG),
			    BUSY);
			break;
		case 1:
			MAY(dat_ep_reset(ep), BUSY);
			break;
		default:
			/* A connection gets its chance. */
			sched_yield();
			break;
		}
	}
}

/* Ends whatever it is in the midst of. */
static void come_to_rest(DAT_EP_HANDLE ep)
{
	unsigned long long end = now_us() + SOON;
	DAT_EP_STATE state;

	do {
		MAY(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG), BUSY);
		state = ep_state(ep);
		if (state == DAT_EP_STATE_UNCONNECTED || state == DAT_EP_STATE_DISCONNECTED) {
			CHECK_RET(dat_ep_free(ep), DAT_SUCCESS);
			return;
		}
		pause_us(100);
	} while (now_us() < end);
	tap_fail(__FILE__, __LINE__, "the endpoint stays in state %d", (int)state);
}

static void stress__connect_and_break(void)
{
	DAT_PSP_HANDLE psp;
	DAT_EVENT event;

	rig_up(&a);
	rig_up(&b);
	mem_a = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	OK(dat_evd_resize(a.connect_evd, 1024));
	OK(dat_evd_resize(b.connect_evd, 1024));
	psp = listen_any(&b, &qualifier);
	for (int i = 0; i < EPS; i++) {
		eps_a[i] = make_ep(&a, NULL);
		eps_b[i] = make_ep(&b, NULL);
	}
	in_threads(connect_and_break);
	OK(dat_psp_free(psp));
	for (int i = 0; i < EPS; i++) {
		come_to_rest(eps_a[i]);
		come_to_rest(eps_b[i]);
	}
	while (MAY(dat_evd_dequeue(b.cr_evd, &event), EMPTY))
		MAY(dx_cr_reject(event.event_data.cr_arrival_event_data.cr_handle), GONE);
	free_mem(&mem_a);
	for (struct rig *rig = &a; rig; rig = rig == &a ? &b : NULL) {
		OK(dat_evd_free(rig->recv_evd));
		OK(dat_evd_free(rig->request_evd));
		OK(dat_evd_free(rig->connect_evd));
		OK(dat_evd_free(rig->cr_evd));
		OK(dat_pz_free(rig->pz));
		/* No request, no endpoint and no connection is left behind. */
		CHECK_RET(dat_ia_close(rig->ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	}
}

/* --- the IA closes under everybody -------------------------------------------------------- */

static atomic_bool closed;

/* Thread 0 closes the IA in the midst of what the others do, some of them waiting. */
static void work_until_closed(uint32_t number)
{
	DAT_EVENT event;
	DAT_COUNT more;
	DAT_HANDLE made;

	if (number == 0) {
		pause_us(below(1000));
		CHECK_RET(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
		closed = true;
		return;
	}
	if (number == 1) {
		/* Woken by the close, or late. */
		MAY(dat_evd_wait(a.cr_evd, DAT_TIMEOUT_INFINITE, 1, &event, &more), GONE | ABORTED);
		return;
	}
	while (!closed) {
		if (MAY(dat_evd_create(a.ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &made), GONE))
			MAY(dat_evd_free(made), GONE);
		if (MAY(dat_ep_create(a.ia, a.pz, a.recv_evd, a.request_evd, a.connect_evd, NULL,
				      &made),
			GONE)) {
			MAY(try_connect(made, &a, qualifier, SOON), GONE);
			MAY(dat_ep_free(made), GONE | BUSY);
		}
		MAY(dat_evd_dequeue(a.recv_evd, &event), GONE | EMPTY);
	}
}

static void stress__close_under_all(void)
{
	for (int i = rounds(40); i >= 0; i--) {
		DAT_EVD_PARAM param;

		closed = false;
		rig_up(&a);
		(void)listen_any(&a, &qualifier);
		in_threads(work_until_closed);
		CHECK_RET(dat_evd_query(a.recv_evd, DAT_EVD_FIELD_ALL, &param), DAT_INVALID_HANDLE);
		CHECK_RET(dat_ia_close(a.ia, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE);
	}
}

static const struct tap_test tests[] = {
	T(stress, create_use_free),
	T(stress, post_and_take),
	T(stress, connect_and_break),
	T(stress, close_under_all),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
