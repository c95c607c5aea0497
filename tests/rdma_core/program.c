/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verbs provider on the stand-in of benches/verbs. The environment variable BY_LIBRARY is the
 * event, as a number, that ends an attempt to connect which no consumer has answered. */
#include "common.h"

#include <stdlib.h>

/* Asks for a connection and takes the request. */
static DAT_CR_HANDLE ask(struct rig *a, struct rig *b)
{
	DAT_CONN_QUAL qualifier = 4711;
	DAT_PSP_HANDLE psp;

	rig_up(a);
	rig_up(b);
	OK(dat_psp_create(b->ia, qualifier, b->cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	OK(try_connect(make_ep(a, NULL), b, qualifier, SOON));
	return await_request(b);
}

static void connect__data(void)
{
	struct pair pair;

	pair_up(&pair, NULL);
	OK(recv_nothing(pair.ep_b, 1));
	OK(send_nothing(pair.ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(pair.a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(pair.b.recv_evd, 1, DAT_DTO_SUCCESS);
	pair_down(&pair);
}

static void reject__by_the_consumer(void)
{
	struct rig a, b;

	OK(dx_cr_reject(ask(&a, &b)));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	rig_down(&a);
	rig_down(&b);
}

static void reject__by_the_library(void)
{
	struct rig a, b;

	ask(&a, &b);
	rig_down(&b);
	EXPECT(a.connect_evd, strtoul(getenv("BY_LIBRARY"), NULL, 0));
	rig_down(&a);
}

static const struct tap_test tests[] = {
	T(connect, data),
	T(reject, by_the_consumer),
	T(reject, by_the_library),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
