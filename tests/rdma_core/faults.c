/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verbs provider on the stand-in of benches/verbs when something goes wrong there, or another thread
 * comes in between. */
#include "common.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* How long a call of the stand-in gives another thread that may have to wait for the caller. */
enum { WINDOW = 300 * 1000 };

/* Something of the stand-in, which the library has loaded. */
static void *stand_in(const char *name)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
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
	await_end(&pair.b);
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

static const struct tap_test tests[] = {
	T(ep_free, beside_connect),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
