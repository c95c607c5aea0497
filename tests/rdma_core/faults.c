/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verbs provider on the stand-in of benches/verbs when something goes wrong there, or another thread
 * comes in between. */
#include "common.h"

#include <dat2/dat_ib_extensions.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How long a call of the stand-in gives another thread that may have to wait for the caller. */
enum { WINDOW = 300 * 1000 };

/* Something of the stand-in, which the library has loaded. */
static void *stand_in(const char *name)
{
	bool is_cm = !strncmp(name, "rdma_", 5);
	void *library =
		dlopen(is_cm ? "librdmacm.so.1" : "libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *found = library ? dlsym(library, name) : NULL;

	REQUIRE(found);
	return found;
}

/* Has the stand-in call a function at its points. */
static void at_points(int (*function)(const char *point))
{
	int (*_Atomic *at)(const char *) = stand_in("ibv_standin_at");

	*at = function;
}

static unsigned long long used_us(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return used.tv_sec * 1000000ull + used.tv_nsec / 1000;
}

/* --- a failure of the device -------------------------------------------------------------- */

enum { ENDPOINTS = 10 };

/* So many receives were flushed. */
static void expect_flushed(DAT_EVD_HANDLE evd, int count)
{
	while (count--) {
		DAT_EVENT event = EXPECT(evd, DAT_DTO_COMPLETION_EVENT);

		CHECK(event.event_data.dto_completion_event_data.status == DAT_DTO_ERR_FLUSHED);
	}
	EXPECT_NOTHING(evd);
}

static DAT_EP_HANDLE make_datagram_ep(const struct rig *rig)
{
	DAT_EP_ATTR attr = ep_attr(rig);

	attr.service_type = (DAT_SERVICE_TYPE)DAT_IB_SERVICE_TYPE_UD;
	attr.max_message_size = 1000;
	attr.max_rdma_read_in = 0;
	attr.max_rdma_read_out = 0;
	return make_ep(rig, &attr);
}

/* Each of two IAs has told the program, in the EVDs of both, that it cannot be used any more, and before that, that
 * `drained` takes no more buffers of its shared receive queue, if that is not NULL. */
static void expect_catastrophe(const struct rig *a, const struct rig *b, DAT_EP_HANDLE drained)
{
	for (int i = 0; i < 2; i++) {
		const struct rig *at = i ? b : a;
		bool failed_a = false, failed_b = false, is_drained = !drained;

		for (int left = drained ? 3 : 2; left--;) {
			DAT_EVENT event;
			DAT_COUNT more;
			DAT_ASYNCH_ERROR_EVENT_DATA error;

			OK(dat_evd_wait(at->async_evd, SOON, 1, &event, &more));
			error = event.event_data.asynch_error_event_data;
			if (event.event_number == DAT_ASYNC_ERROR_EP_BROKEN) {
				CHECK(!is_drained && error.dat_handle == drained);
				CHECK_EQ(error.reason, DAT_EP_TRANSFER_TO_ERROR);
				is_drained = true;
				continue;
			}
			CHECK_EQ(event.event_number, DAT_ASYNC_ERROR_IA_CATASTROPHIC);
			CHECK_EQ(error.reason, DAT_IA_CATASTROPHIC_ERROR);
			failed_a |= error.dat_handle == a->ia;
			failed_b |= error.dat_handle == b->ia;
			/* The endpoint is one of the second IA. */
			CHECK(!failed_b || is_drained);
		}
		CHECK(failed_a && failed_b && is_drained);
		EXPECT_NOTHING(at->async_evd);
	}
}

static void fail_device(void)
{
	((void (*)(void))stand_in("ibv_standin_fail"))();
}

/* Each connection is broken at once, although the device flushes nothing, and attempts end. The library
 * sleeps afterwards. */
static void device__fails(void)
{
	unsigned long long start, used;
	DAT_EP_HANDLE eps[2 * ENDPOINTS], last, other;
	DAT_CONN_QUAL qualifier;
	DAT_CR_HANDLE request;
	struct pair pair;

	pair_up(&pair, NULL);
	for (int i = 0; i < ENDPOINTS; i++) {
		eps[2 * i] = make_ep(&pair.a, NULL);
		eps[2 * i + 1] = make_ep(&pair.b, NULL);
		OK(recv_nothing(eps[2 * i], 1));
		OK(recv_nothing(eps[2 * i + 1], 1));
		connect_eps(&pair.a, eps[2 * i], &pair.b, eps[2 * i + 1]);
	}
	listen_any(&pair.b, &qualifier);
	last = make_ep(&pair.a, NULL);
	OK(try_connect(last, &pair.b, qualifier, SOON));
	request = await_request(&pair.b);
	other = make_ep(&pair.b, NULL);
	OK(recv_nothing(make_datagram_ep(&pair.a), 1));

	start = now_us();
	fail_device();
	for (int i = 0; i < ENDPOINTS + 2; i++) {
		DAT_EVENT_NUMBER number = await_end(&pair.a);

		if (number != DAT_CONNECTION_EVENT_BROKEN)
			CHECK(number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	}
	for (int i = 0; i < ENDPOINTS + 1; i++)
		EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	/* The device has half a second to flush what is outstanding, unless it is known to do nothing more. */
	CHECK(now_us() - start < ENDPOINTS * 500000 / 2);
	/* Those of the endpoint for datagrams too. */
	expect_flushed(pair.a.recv_evd, ENDPOINTS + 1);
	expect_flushed(pair.b.recv_evd, ENDPOINTS);
	CHECK(ep_state(last) == DAT_EP_STATE_DISCONNECTED);
	expect_catastrophe(&pair.a, &pair.b, NULL);

	used = used_us();
	pause_us(500 * 1000);
	CHECK(used_us() - used < 100 * 1000);

	CHECK_RET(dat_cr_accept(request, other, 0, NULL), DAT_INSUFFICIENT_RESOURCES);
	CHECK(ep_state(other) == DAT_EP_STATE_UNCONNECTED);
	OK(dat_ep_reset(last));
	CHECK_RET(try_connect(last, &pair.b, qualifier, SOON), DAT_INSUFFICIENT_RESOURCES);
	CHECK(ep_state(last) == DAT_EP_STATE_UNCONNECTED);
	pair_down(&pair);
}

/* --- two threads at a time ---------------------------------------------------------------- */

static _Atomic enum { GO_ON, REFUSE, TAKE_TIME } creations;
static atomic_bool entered;

static int at_creation(const char *point)
{
	if (strcmp(point, "create_qp") || creations == GO_ON)
		return 0;
	if (creations == REFUSE)
		return ENOMEM;
	entered = true;
	pause_us(WINDOW);
	return 0;
}

struct connect {
	DAT_EP_HANDLE ep;
	const struct rig *to;
	DAT_CONN_QUAL qualifier;
};

static void *connect_in_a_thread(void *argument)
{
	struct connect *connect = argument;

	try_connect(connect->ep, connect->to, connect->qualifier, SOON);
	return NULL;
}

/* An endpoint is freed while a connect makes the queue pair of the device that a reset could not make. */
static void ep_free__beside_connect(void)
{
	int (*queue_pairs)(void);
	struct connect connect;
	struct pair pair;
	pthread_t thread;

	pair_up(&pair, NULL);
	at_points(at_creation);
	queue_pairs = (int (*)(void))stand_in("ibv_standin_queue_pairs");
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	creations = REFUSE;
	OK(dat_ep_reset(pair.ep_a));
	creations = TAKE_TIME;
	connect = (struct connect){ .ep = pair.ep_a, .to = &pair.b };
	listen_any(&pair.b, &connect.qualifier);
	REQUIRE(pthread_create(&thread, NULL, connect_in_a_thread, &connect) == 0);
	while (!entered)
		pause_us(100);
	OK(dat_ep_free(pair.ep_a));
	pthread_join(thread, NULL);
	creations = GO_ON;
	pair_down(&pair);
	for (int i = 0; queue_pairs() > 0 && i < 100; i++)
		pause_us(20 * 1000);
	CHECK(queue_pairs() == 0);
}

static atomic_bool posted;

/* The first receive that is posted to the device waits for another one to be posted. */
static int at_receive(const char *point)
{
	if (!strcmp(point, "post_recv") && !atomic_exchange(&entered, true))
		for (unsigned waited = 0; !posted && waited < WINDOW; waited += 100)
			pause_us(100);
	return 0;
}

static void *post_in_a_thread(void *ep)
{
	while (!entered)
		pause_us(100);
	CHECK_RET(recv_nothing(ep, 2), DAT_SUCCESS);
	posted = true;
	return NULL;
}

/* A receive is posted while a change of the endpoint posts those that are there to another queue pair of
 * the device. */
static void ep_modify__beside_a_post(void)
{
	DAT_EP_PARAM param = { .ep_attr.max_recv_dtos = 8 };
	DAT_EP_HANDLE ep_a, ep_b;
	struct rig a, b;
	pthread_t thread;

	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	OK(recv_nothing(ep_a, 1));
	at_points(at_receive);
	REQUIRE(pthread_create(&thread, NULL, post_in_a_thread, ep_a) == 0);
	OK(dat_ep_modify(ep_a, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &param));
	pthread_join(thread, NULL);
	CHECK(entered);
	connect_eps(&a, ep_a, &b, ep_b);
	for (int i = 1; i <= 2; i++) {
		OK(send_nothing(ep_b, i, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(a.recv_evd, i, DAT_DTO_SUCCESS);
	}
	rig_down(&a);
	rig_down(&b);
}

static DAT_EP_HANDLE ep_with_srq(const struct rig *rig, DAT_SRQ_HANDLE srq)
{
	DAT_EP_ATTR attr = ep_attr(rig);
	DAT_EP_HANDLE ep;

	OK(dat_ep_create_with_srq(rig->ia, rig->pz, rig->recv_evd, rig->request_evd,
				  rig->connect_evd, srq, &attr, &ep));
	return ep;
}

static atomic_bool created;

/* The queue pair is gone, and its number free. */
static int at_destruction(const char *point)
{
	if (!strcmp(point, "destroyed_qp") && !atomic_exchange(&entered, true))
		for (unsigned waited = 0; !created && waited < WINDOW; waited += 100)
			pause_us(100);
	return 0;
}

struct creation {
	const struct rig *rig;
	DAT_SRQ_HANDLE srq;
	DAT_EP_HANDLE ep;
};

static void *create_in_a_thread(void *argument)
{
	struct creation *creation = argument;

	while (!entered)
		pause_us(100);
	creation->ep = ep_with_srq(creation->rig, creation->srq);
	created = true;
	return NULL;
}

/* An endpoint of a shared receive queue is freed, and another one is created, whose queue pair gets
 * the number of the one that was destroyed: it receives all the same. */
static void ep_free__beside_another_endpoint_of_its_srq(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	struct creation creation;
	DAT_EP_HANDLE ep_a, old;
	struct rig a, b;
	pthread_t thread;

	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	OK(dat_srq_create(b.ia, b.pz, &srq_attr, &creation.srq));
	creation.rig = &b;
	old = ep_with_srq(&b, creation.srq);
	OK(dat_srq_post_recv(creation.srq, 0, NULL, cookie(1)));
	at_points(at_destruction);
	REQUIRE(pthread_create(&thread, NULL, create_in_a_thread, &creation) == 0);
	OK(dat_ep_free(old));
	pthread_join(thread, NULL);
	connect_eps(&a, ep_a, &b, creation.ep);
	OK(send_nothing(ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	rig_down(&a);
	rig_down(&b);
}

static int at_route(const char *point)
{
	if (!strcmp(point, "resolve_route"))
		pause_us(5 * 1000);
	return 0;
}

static void connect_once(void)
{
	struct pair pair;

	pair_up(&pair, NULL);
	pair_down(&pair);
}

static atomic_bool over;

static void *connects_often(void *unused)
{
	while (!over)
		connect_once();
	return unused;
}

/* A child is forked while another thread connects: rdma-core has a lock for the whole process there. */
static void fork__beside_connects(void)
{
	pthread_t thread;

	connect_once();
	at_points(at_route);
	REQUIRE(pthread_create(&thread, NULL, connects_often, NULL) == 0);
	for (int i = 0; i < 20; i++) {
		int status;
		pid_t child = fork();

		REQUIRE(child >= 0);
		if (child == 0) {
			alarm(15);
			connect_once();
			_exit(tap_status());
		}
		REQUIRE(waitpid(child, &status, 0) == child);
		CHECK_EQ(status, 0);
		pause_us(1000);
	}
	over = true;
	pthread_join(thread, NULL);
}

/* --- requests without an answer ------------------------------------------------------------- */

static atomic_int requests, blocked;

static int at_request(const char *point)
{
	blocked += !strcmp(point, "blocks");
	if (strcmp(point, "connect"))
		return 0;
	requests++;
	return 1;
}

static void await_queue_pairs(int count)
{
	int (*queue_pairs)(void) = (int (*)(void))stand_in("ibv_standin_queue_pairs");

	for (int i = 0; queue_pairs() != count && i < 1000; i++)
		pause_us(10 * 1000);
	CHECK_EQ(queue_pairs(), count);
}

/* The kernel keeps the identifier and the queue pair of an iWARP request until the peer has answered, and blocks who
 * destroys one of them. They are destroyed afterwards, also when the IA is closed, and nobody waits for that. */
static void ep_free__of_a_request_without_an_answer(void)
{
	void (*time_out)(void);
	DAT_CONN_QUAL qualifier;
	struct rig a, b;

	setenv("STANDIN_DEVICE", "siw", 1);
	rig_up(&b);
	listen_any(&b, &qualifier);
	time_out = (void (*)(void))stand_in("rdma_standin_time_out");
	at_points(at_request);
	for (int closes = 0; closes < 2; closes++) {
		DAT_EP_HANDLE freed, again;

		rig_up(&a);
		freed = make_ep(&a, NULL);
		again = make_ep(&a, NULL);
		requests = 0;
		OK(try_connect(freed, &b, qualifier, SOON));
		OK(try_connect(again, &b, qualifier, SOON));
		for (int i = 0; requests < 2 && i < 1000; i++)
			pause_us(10 * 1000);
		OK(dat_ep_free(freed));
		OK(dat_ep_disconnect(again, DAT_CLOSE_ABRUPT_FLAG));
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_ep_reset(again));
		/* Those of the two requests, and that of the endpoint since the reset. */
		await_queue_pairs(3);
		if (closes) {
			rig_down(&a);
			await_queue_pairs(2);
			time_out();
		} else {
			time_out();
			await_queue_pairs(1);
			EXPECT_NOTHING(a.connect_evd);
			rig_down(&a);
		}
		await_queue_pairs(0);
	}
	CHECK_EQ(blocked, 0);
	rig_down(&b);
}

/* --- a message of the handshake that is lost ---------------------------------------------- */

static int at_establish(const char *point)
{
	return !strcmp(point, "establish");
}

/* A message arrives before the passive end is told of the connection, and takes a buffer of a shared
 * receive queue: when the accept is given up, the consumer gets it back. */
static void ep_disconnect__of_an_accept_with_an_srq(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_CONN_QUAL qualifier;
	DAT_SRQ_HANDLE srq;
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	OK(dat_srq_create(b.ia, b.pz, &srq_attr, &srq));
	ep_b = ep_with_srq(&b, srq);
	OK(dat_srq_post_recv(srq, 0, NULL, cookie(1)));
	listen_any(&b, &qualifier);
	at_points(at_establish);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	OK(send_nothing(ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 2, DAT_DTO_SUCCESS);
	/* Nobody has polled at this end. */
	OK(dat_ep_disconnect(ep_b, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	rig_down(&a);
	rig_down(&b);
}

/* --- buffers of a shared receive queue ------------------------------------------------------ */

static DAT_COUNT outstanding(DAT_SRQ_HANDLE srq)
{
	DAT_SRQ_PARAM param;

	OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
	return param.outstanding_dto_count;
}

/* A device fails that holds buffers of a shared receive queue: what had completed is not lost, each endpoint is told
 * that it takes no more buffers, nothing waits for the device to flush them, and all can be freed. */
static void srq__of_a_device_that_fails(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_EP_HANDLE ep_a, ep_b, unconnected;
	unsigned long long start;
	DAT_SRQ_HANDLE srq;
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	OK(dat_srq_create(b.ia, b.pz, &srq_attr, &srq));
	ep_b = ep_with_srq(&b, srq);
	unconnected = ep_with_srq(&b, srq);
	for (int i = 1; i <= 3; i++)
		OK(dat_srq_post_recv(srq, 0, NULL, cookie(i)));
	connect_eps(&a, ep_a, &b, ep_b);
	OK(send_nothing(ep_a, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 4, DAT_DTO_SUCCESS);
	start = now_us();
	fail_device();
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	/* The device has half a second to say that it has flushed the last buffer, unless it has failed. */
	CHECK(now_us() - start < 500000 / 2);
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(b.recv_evd);
	expect_catastrophe(&a, &b, ep_b);
	CHECK_EQ(outstanding(srq), 2);
	/* There is room for as many as before. */
	OK(dat_srq_post_recv(srq, 0, NULL, cookie(5)));
	OK(dat_srq_post_recv(srq, 0, NULL, cookie(6)));
	CHECK_RET(dat_srq_post_recv(srq, 0, NULL, cookie(7)), DAT_INSUFFICIENT_RESOURCES);
	OK(dat_ep_reset(ep_b));
	OK(dat_ep_free(ep_b));
	OK(dat_ep_free(unconnected));
	OK(dat_srq_free(srq));
	OK(dat_ep_free(ep_a));
	RIG_DOWN_UNUSED(&a);
	RIG_DOWN_UNUSED(&b);
}

static void srq__that_fails(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_ASYNCH_ERROR_EVENT_DATA error;
	DAT_CONN_QUAL qualifier;
	DAT_SRQ_HANDLE srq;
	struct rig rig;

	rig_up(&rig);
	OK(dat_srq_create(rig.ia, rig.pz, &srq_attr, &srq));
	OK(dat_srq_post_recv(srq, 0, NULL, cookie(1)));
	listen_any(&rig, &qualifier);
	((void (*)(void))stand_in("ibv_standin_fail_srq"))();
	error = EXPECT(rig.async_evd, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR)
			.event_data.asynch_error_event_data;
	CHECK(error.dat_handle == srq);
	CHECK_EQ(error.reason, DAT_SRQ_TRANSFER_TO_ERROR);
	OK(dat_srq_free(srq));
	rig_down(&rig);
}

static int at_flush(const char *point)
{
	return !strcmp(point, "flush_srq");
}

/* The device takes its time to flush the buffer that a queue pair has taken: the consumer gets it back, whether
 * the end of the connection is the peer's or its own, or the endpoint is freed, and there is room for another one. */
static void srq__buffers_that_are_flushed_late(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 1, .max_recv_iov = 1 };
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	for (int round = 0; round < 3; round++) {
		DAT_EP_HANDLE ep_a = make_ep(&a, NULL), ep_b;
		DAT_SRQ_HANDLE srq;

		at_points(NULL);
		OK(dat_srq_create(b.ia, b.pz, &srq_attr, &srq));
		ep_b = ep_with_srq(&b, srq);
		OK(dat_srq_post_recv(srq, 0, NULL, cookie(1)));
		connect_eps(&a, ep_a, &b, ep_b);
		at_points(at_flush);
		if (round == 2) {
			OK(dat_ep_free(ep_b));
		} else {
			OK(dat_ep_disconnect(round ? ep_a : ep_b, DAT_CLOSE_ABRUPT_FLAG));
			EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
			EXPECT_DTO(b.recv_evd, 1, DAT_DTO_ERR_FLUSHED);
		}
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_srq_post_recv(srq, 0, NULL, cookie(2)));
		if (round < 2)
			OK(dat_ep_free(ep_b));
		OK(dat_ep_free(ep_a));
		OK(dat_srq_free(srq));
	}
	rig_down(&a);
	rig_down(&b);
}

/* --- requests of which the device reports no success -------------------------------------- */

static atomic_int markers;
static atomic_bool marker_fails, marker_refused;

static int at_marker(const char *point)
{
	if (!strcmp(point, "write_refused"))
		return marker_refused;
	if (strcmp(point, "write_nothing"))
		return 0;
	markers++;
	return marker_fails || marker_refused;
}

/* Ends a connection in order behind a request with a suppressed completion: a send, or a write to `remote`, if
 * that is not NULL. With both the write has completed before the send. */
static void end_behind(const struct rig *a, const struct rig *b, const struct mem *local,
		       const struct mem *remote, bool send)
{
	DAT_EP_HANDLE ep_a = make_ep(a, NULL), ep_b = make_ep(b, NULL);
	DAT_EVENT event;

	connect_eps(a, ep_a, b, ep_b);
	if (remote) {
		DAT_LMR_TRIPLET from = dx_local(local->local, local->at, 8);
		DAT_RMR_TRIPLET to = dx_remote(remote->remote, remote->at, 8);

		OK(dat_ep_post_rdma_write(ep_a, 1, &from, cookie(1), &to,
					  send ? DAT_COMPLETION_DEFAULT_FLAG :
						 DAT_COMPLETION_SUPPRESS_FLAG));
		if (send)
			EXPECT_DTO(a->request_evd, 1, DAT_DTO_SUCCESS);
	}
	if (send)
		OK(send_nothing(ep_a, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	/* The program may be the first that sees what the device has completed. */
	CHECK_RET(dat_evd_dequeue(a->request_evd, &event), DAT_QUEUE_EMPTY);
	EXPECT(a->connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b->connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_NOTHING(a->request_evd);
	OK(dat_ep_free(ep_a));
	OK(dat_ep_free(ep_b));
}

/* A request of the library tells that those before it are done; the consumer does not see it, also if it fails, or
 * if the peer permits no RDMA writes and refuses it. */
static void ep_disconnect__behind_suppressed_requests(void)
{
	enum { CONNECTIONS = 10 };
	struct rig a, b;
	struct mem from, to;
	unsigned long long start;

	rig_up(&a);
	rig_up(&b);
	from = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	to = make_mem(&b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	at_points(at_marker);
	start = now_us();
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, &to, false);
	CHECK(markers == CONNECTIONS);
	/* Without it each takes half a second. */
	CHECK(now_us() - start < CONNECTIONS * 500000 / 2);
	/* Behind a send: with a write before it, and with none. */
	start = now_us();
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, &to, true);
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, NULL, true);
	CHECK(markers == 3 * CONNECTIONS);
	marker_refused = true;
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, NULL, true);
	CHECK(markers == 4 * CONNECTIONS);
	CHECK(now_us() - start < 3 * CONNECTIONS * 500000 / 2);
	marker_refused = false;
	marker_fails = true;
	end_behind(&a, &b, &from, &to, false);
	CHECK(markers == 4 * CONNECTIONS + 1);
	rig_down(&a);
	rig_down(&b);
}

/* The same on software iWARP, whose completions the library puts into order. */
static void ep_disconnect__behind_suppressed_requests_over_iwarp(void)
{
	enum { CONNECTIONS = 10 };
	struct rig a, b;
	struct mem from, to;
	unsigned long long start;

	setenv("STANDIN_DEVICE", "siw", 1);
	rig_up(&a);
	rig_up(&b);
	from = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	to = make_mem(&b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	at_points(at_marker);
	start = now_us();
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, NULL, true);
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, &to, true);
	for (int i = 0; i < CONNECTIONS; i++)
		end_behind(&a, &b, &from, &to, false);
	CHECK(markers == 3 * CONNECTIONS);
	CHECK(now_us() - start < 3 * CONNECTIONS * 500000 / 2);
	marker_fails = true;
	end_behind(&a, &b, &from, NULL, true);
	CHECK(markers == 3 * CONNECTIONS + 1);
	rig_down(&a);
	rig_down(&b);
}

/* --- reads that the peer does not answer --------------------------------------------------- */

/* Some devices never complete a read on a queue pair that may have none outstanding. */
static void ep_post_rdma_read__that_the_peer_answers_none_of(void)
{
	DAT_EP_HANDLE ep_a, ep_b;
	struct mem from, to;
	DAT_EP_ATTR attr;
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	to = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	from = make_mem(&b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	/* At the end that connects, then at the one that accepts. */
	for (int passive = 0; passive < 2; passive++) {
		DAT_LMR_TRIPLET local = dx_local(to.local, to.at, 8);
		DAT_RMR_TRIPLET remote = dx_remote(from.remote, from.at, 8);

		ep_a = make_ep(&a, NULL);
		attr = ep_attr(&b);
		attr.max_rdma_read_in = 0;
		ep_b = make_ep(&b, &attr);
		if (passive)
			connect_eps(&b, ep_b, &a, ep_a);
		else
			connect_eps(&a, ep_a, &b, ep_b);
		OK(dat_ep_post_rdma_read(ep_a, 1, &local, cookie(1), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(a.request_evd, 1, DAT_DTO_ERR_LOCAL_EP);
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
		await_end(&b);
		OK(dat_ep_free(ep_a));
		OK(dat_ep_free(ep_b));
	}
	rig_down(&a);
	rig_down(&b);
}

static const struct tap_test tests[] = {
	T(device, fails),
	T(ep_free, beside_connect),
	T(ep_free, beside_another_endpoint_of_its_srq),
	T(ep_modify, beside_a_post),
	T(fork, beside_connects),
	T(ep_free, of_a_request_without_an_answer),
	T(ep_disconnect, of_an_accept_with_an_srq),
	T(srq, of_a_device_that_fails),
	T(srq, that_fails),
	T(srq, buffers_that_are_flushed_late),
	T(ep_disconnect, behind_suppressed_requests),
	T(ep_disconnect, behind_suppressed_requests_over_iwarp),
	T(ep_post_rdma_read, that_the_peer_answers_none_of),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
