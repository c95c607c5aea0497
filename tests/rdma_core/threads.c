/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verbs provider on the stand-in of benches/verbs when another thread comes in between. */
#include "stand_in.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* How long a call of the stand-in gives another thread that may have to wait for the caller. */
enum { WINDOW = 300 * 1000 };

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

static const struct tap_test tests[] = {
	T(ep_free, beside_connect),
	T(ep_free, beside_another_endpoint_of_its_srq),
	T(ep_modify, beside_a_post),
	T(fork, beside_connects),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
