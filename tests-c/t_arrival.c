/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* When completions can be taken: not before their connection, and those of several endpoints in
 * about the order in which messages were sent. */
#include "common.h"

#include <pthread.h>

static struct rig a, b;

/* --- not before the connection ---------------------------------------------------------------- */

enum { CONNECTIONS = 200 };

/* Answers each request as soon as it can be taken, without a look at the connection events. */
static void *answer(void *arg)
{
	(void)arg;
	for (int i = 0; i < CONNECTIONS; i++) {
		DAT_EVENT event;
		DAT_RETURN ret;

		do
			ret = dat_evd_dequeue(b.recv_evd, &event);
		while (DAT_GET_TYPE(ret) == DAT_QUEUE_EMPTY);
		OK(ret);
		CHECK_EQ(event.event_data.dto_completion_event_data.status, DAT_DTO_SUCCESS);
		CHECK_RET(send_nothing(event.event_data.dto_completion_event_data.ep_handle, 2,
				       DAT_COMPLETION_DEFAULT_FLAG),
			  DAT_SUCCESS);
	}
	return NULL;
}

static void arrival__a_request_is_answered_at_once(void)
{
	DAT_CONN_QUAL qualifier;
	pthread_t server;

	rig_up(&a);
	rig_up(&b);
	if (!b.provider.is_thread_safe)
		tap_skip("the provider is not thread safe");
	listen_any(&b, &qualifier);
	REQUIRE(pthread_create(&server, NULL, answer, NULL) == 0);
	for (int i = 0; i < CONNECTIONS; i++) {
		DAT_EP_HANDLE ep_a = make_ep(&a, NULL), ep_b = make_ep(&b, NULL);

		OK(recv_nothing(ep_b, 1));
		OK(recv_nothing(ep_a, 3));
		OK(try_connect(ep_a, &b, qualifier, SOON));
		OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		OK(send_nothing(ep_a, 4, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(a.request_evd, 4, DAT_DTO_SUCCESS);
		EXPECT_DTO(a.recv_evd, 3, DAT_DTO_SUCCESS);
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		EXPECT_DTO(b.request_evd, 2, DAT_DTO_SUCCESS);
		OK(dat_ep_free(ep_a));
		OK(dat_ep_free(ep_b));
	}
	REQUIRE(pthread_join(server, NULL) == 0);
	rig_down(&a);
	rig_down(&b);
}

static const struct tap_test tests[] = {
	T(arrival, a_request_is_answered_at_once),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
