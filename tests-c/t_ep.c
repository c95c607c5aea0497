/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Endpoints without and around a connection: dat_ep_query(3DAT), _get_status, _reset, _free,
 * _recv_query, _set_watermark. Creating is in t_ep_create, connecting in t_connect,
 * dat_ep_modify in t_modify. */
#include "common.h"

#include <string.h>

/* --- dat_ep_query --------------------------------------------------------------------------- */

static void ep_query__all_fields(void)
{
	struct rig rig;
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;

	rig_up(&rig);
	attr = ep_attr(&rig);
	ep = make_ep(&rig, &attr);
	memset(&param, 0xff, sizeof param);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	CHECK(param.ia_handle == rig.ia);
	CHECK_EQ(param.ep_state, DAT_EP_STATE_UNCONNECTED);
	CHECK(param.pz_handle == rig.pz);
	CHECK(param.recv_evd_handle == rig.recv_evd);
	CHECK(param.request_evd_handle == rig.request_evd);
	CHECK(param.connect_evd_handle == rig.connect_evd);
	CHECK(param.srq_handle == DAT_HANDLE_NULL);
	CHECK_EQ(param.ep_attr.service_type, DAT_SERVICE_TYPE_RC);
	CHECK(param.ep_attr.max_message_size >= attr.max_message_size);
	CHECK(param.ep_attr.max_rdma_size >= attr.max_rdma_size);
	CHECK_EQ(param.ep_attr.qos, DAT_QOS_BEST_EFFORT);
	CHECK_EQ(param.ep_attr.recv_completion_flags, DAT_COMPLETION_DEFAULT_FLAG);
	CHECK_EQ(param.ep_attr.request_completion_flags, DAT_COMPLETION_DEFAULT_FLAG);
	CHECK(param.ep_attr.max_recv_dtos >= attr.max_recv_dtos);
	CHECK(param.ep_attr.max_request_dtos >= attr.max_request_dtos);
	CHECK(param.ep_attr.max_recv_iov >= attr.max_recv_iov);
	CHECK(param.ep_attr.max_request_iov >= attr.max_request_iov);
	CHECK_RET(dat_ep_query(ep, DAT_EP_FIELD_ALL, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_query(ep, (DAT_EP_PARAM_MASK)1 << 62, &param), DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static DAT_EP_PARAM query(DAT_EP_HANDLE ep)
{
	DAT_EP_PARAM param;

	memset(&param, 0xff, sizeof param);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	return param;
}

/* The addresses are those of the two IAs, whatever their ports. */
static void check_addresses(const DAT_EP_PARAM *param, const struct rig *own,
			    const struct rig *remote)
{
	CHECK(same_host(param->local_ia_address_ptr, own->attr.ia_address_ptr));
	CHECK(same_host(param->remote_ia_address_ptr, remote->attr.ia_address_ptr));
}

static void ep_query__addresses_of_a_connection(void)
{
	DAT_EP_PARAM of_a, of_b;
	DAT_CONN_QUAL qualifier;
	DAT_EP_HANDLE ep_a, ep_b;
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	(void)listen_any(&b, &qualifier);
	of_a = query(ep_a);
	CHECK(same_host(of_a.local_ia_address_ptr, a.attr.ia_address_ptr));
	OK(try_connect(ep_a, &b, qualifier, SOON));
	of_a = query(ep_a);
	CHECK_EQ(of_a.ep_state, DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
	check_addresses(&of_a, &a, &b);
	CHECK_EQ(of_a.remote_port_qual, qualifier);
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	of_a = query(ep_a);
	of_b = query(ep_b);
	CHECK_EQ(of_a.ep_state, DAT_EP_STATE_CONNECTED);
	CHECK_EQ(of_b.ep_state, DAT_EP_STATE_CONNECTED);
	check_addresses(&of_a, &a, &b);
	check_addresses(&of_b, &b, &a);
	/* Where no socket is in between, the end that has connected has no port. */
	CHECK_EQ(of_a.remote_port_qual, qualifier);
	CHECK_EQ(of_b.local_port_qual, qualifier);
	CHECK_EQ(of_a.local_port_qual, of_b.remote_port_qual);
	rig_down(&a);
	rig_down(&b);
}

/* --- dat_ep_get_status ---------------------------------------------------------------------- */

static void ep_get_status__pointers_are_optional(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_BOOLEAN idle = DAT_FALSE;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	CHECK_RET(dat_ep_get_status(ep, NULL, NULL, NULL), DAT_SUCCESS);
	CHECK_RET(dat_ep_get_status(ep, NULL, &idle, NULL), DAT_SUCCESS);
	CHECK_EQ(idle, DAT_TRUE);
	rig_down(&rig);
}

static void ep_get_status__not_idle_with_a_receive(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_BOOLEAN recv_idle = DAT_TRUE, request_idle = DAT_FALSE;
	DAT_LMR_TRIPLET none = { 0 };

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	OK(dat_ep_post_recv(ep, 0, &none, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_get_status(ep, NULL, &recv_idle, &request_idle));
	CHECK_EQ(recv_idle, DAT_FALSE);
	CHECK_EQ(request_idle, DAT_TRUE);
	rig_down(&rig);
}

/* --- dat_ep_reset --------------------------------------------------------------------------- */

static void ep_reset__unconnected_keeps_receives(void)
{
	struct rig a, b;
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_LMR_TRIPLET none = { 0 };

	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	OK(dat_ep_post_recv(ep_b, 0, &none, cookie(5), DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_RET(dat_ep_reset(ep_b), DAT_SUCCESS);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	connect_eps(&a, ep_a, &b, ep_b);
	OK(dat_ep_post_send(ep_a, 0, &none, cookie(6), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(b.recv_evd, 5, DAT_DTO_SUCCESS);
	rig_down(&a);
	rig_down(&b);
}

static void ep_reset__connected(void)
{
	struct pair pair;

	pair_up(&pair, NULL);
	CHECK_RET(dat_ep_reset(pair.ep_a), DAT_INVALID_STATE);
	CHECK_EQ(ep_state(pair.ep_a), DAT_EP_STATE_CONNECTED);
	pair_down(&pair);
}

static void ep_reset__connects_again(void)
{
	struct pair pair;
	DAT_LMR_TRIPLET none = { 0 };

	pair_up(&pair, NULL);
	for (DAT_UINT64 round = 1; round <= 5; round++) {
		OK(dat_ep_post_recv(pair.ep_b, 0, &none, cookie(round),
				    DAT_COMPLETION_DEFAULT_FLAG));
		OK(dat_ep_post_send(pair.ep_a, 0, &none, cookie(round + 100),
				    DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(pair.a.request_evd, round + 100, DAT_DTO_SUCCESS);
		EXPECT_DTO(pair.b.recv_evd, round, DAT_DTO_SUCCESS);
		OK(dat_ep_disconnect(round % 2 ? pair.ep_a : pair.ep_b, DAT_CLOSE_ABRUPT_FLAG));
		EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_ep_reset(pair.ep_a));
		OK(dat_ep_reset(pair.ep_b));
		CHECK_EQ(ep_state(pair.ep_a), DAT_EP_STATE_UNCONNECTED);
		connect_eps(&pair.a, pair.ep_a, &pair.b, pair.ep_b);
	}
	pair_down(&pair);
}

/* Two connections of end b have ended, and their events are not taken: both endpoints have the same EVDs. Some of the
 * completions have gone from the queue of the device to that of the EVD, which has been resized. */
static DAT_EP_HANDLE up_with_events(struct pair *pair)
{
	DAT_EP_HANDLE other;

	pair_up(pair, NULL);
	other = make_ep(&pair->b, NULL);
	for (DAT_UINT64 i = 0; i < 2; i++) {
		OK(recv_nothing(pair->ep_b, 1 + i));
		OK(recv_nothing(other, 11 + i));
	}
	connect_eps(&pair->a, make_ep(&pair->a, NULL), &pair->b, other);
	OK(dat_ep_disconnect(pair->ep_b, DAT_CLOSE_ABRUPT_FLAG));
	OK(dat_ep_disconnect(other, DAT_CLOSE_ABRUPT_FLAG));
	await_state(pair->ep_b, DAT_EP_STATE_DISCONNECTED);
	await_state(other, DAT_EP_STATE_DISCONNECTED);
	OK(send_nothing(pair->ep_b, 3, DAT_COMPLETION_DEFAULT_FLAG));
	OK(send_nothing(other, 13, DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_evd_resize(pair->b.recv_evd, 64));
	OK(dat_evd_resize(pair->b.request_evd, 64));
	OK(recv_nothing(pair->ep_b, 4));
	OK(recv_nothing(other, 14));
	OK(send_nothing(pair->ep_b, 5, DAT_COMPLETION_DEFAULT_FLAG));
	OK(send_nothing(other, 15, DAT_COMPLETION_DEFAULT_FLAG));
	return other;
}

/* The events of the other endpoint are there, in their order, and no others. */
static void events_of_the_other(const struct pair *pair, DAT_EP_HANDLE other)
{
	static const DAT_UINT64 receives[] = { 11, 12, 14 }, requests[] = { 13, 15 };
	DAT_CONNECTION_EVENT_DATA event;

	for (int i = 0; i < 3; i++)
		CHECK(EXPECT_DTO(pair->b.recv_evd, receives[i], DAT_DTO_ERR_FLUSHED).ep_handle ==
		      other);
	for (int i = 0; i < 2; i++)
		CHECK(EXPECT_DTO(pair->b.request_evd, requests[i], DAT_DTO_ERR_FLUSHED).ep_handle ==
		      other);
	event = EXPECT(pair->b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED)
			.event_data.connect_event_data;
	CHECK(event.ep_handle == other);
	EXPECT_NOTHING(pair->b.recv_evd);
	EXPECT_NOTHING(pair->b.request_evd);
	EXPECT_NOTHING(pair->b.connect_evd);
}

static void ep_reset__takes_its_events(void)
{
	DAT_EP_HANDLE other;
	struct pair pair;

	other = up_with_events(&pair);
	OK(dat_ep_reset(pair.ep_b));
	events_of_the_other(&pair, other);
	pair_down(&pair);
}

/* --- dat_ep_free ---------------------------------------------------------------------------- */

static void ep_free__takes_its_events(void)
{
	DAT_EP_HANDLE other;
	struct pair pair;

	other = up_with_events(&pair);
	OK(dat_ep_free(pair.ep_b));
	events_of_the_other(&pair, other);
	pair_down(&pair);
}

static void ep_free__connected(void)
{
	struct pair pair;
	DAT_LMR_TRIPLET none = { 0 };

	pair_up(&pair, NULL);
	OK(dat_ep_post_recv(pair.ep_b, 0, &none, cookie(8), DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_RET(dat_ep_free(pair.ep_a), DAT_SUCCESS);
	CHECK_RET(dat_ep_free(pair.ep_a), DAT_INVALID_HANDLE);
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_DTO(pair.b.recv_evd, 8, DAT_DTO_ERR_FLUSHED);
	CHECK_EQ(ep_state(pair.ep_b), DAT_EP_STATE_DISCONNECTED);
	CHECK_RET(dat_ep_free(pair.ep_b), DAT_SUCCESS);
	/* Nothing holds the EVDs any more, read or not. */
	CHECK_RET(dat_evd_free(pair.a.recv_evd), DAT_SUCCESS);
	CHECK_RET(dat_evd_free(pair.a.request_evd), DAT_SUCCESS);
	CHECK_RET(dat_evd_free(pair.a.connect_evd), DAT_SUCCESS);
	CHECK_RET(dat_pz_free(pair.a.pz), DAT_SUCCESS);
	pair_down(&pair);
}

static void ep_free__while_connecting(void)
{
	struct rig a, b;
	DAT_CONN_QUAL qualifier;
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_CR_HANDLE cr;

	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	listen_any(&b, &qualifier);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	CHECK_RET(dat_ep_free(ep_a), DAT_SUCCESS);
	if (dat_cr_accept(cr, ep_b, 0, NULL) == DAT_SUCCESS)
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
	rig_down(&a);
	rig_down(&b);
}

/* A device may keep what it has of the attempt until the peer answers. */
static void ep_free__waits_for_nobody(void)
{
	unsigned long long begin;
	DAT_CONN_QUAL qualifier;
	struct rig a, b;
	DAT_EP_HANDLE ep;

	rig_up(&a);
	rig_up(&b);
	ep = make_ep(&a, NULL);
	listen_any(&b, &qualifier);
	OK(try_connect(ep, &b, qualifier, SOON));
	await_request(&b);
	begin = now_us();
	CHECK_RET(dat_ep_free(ep), DAT_SUCCESS);
	connect_eps(&a, make_ep(&a, NULL), &b, make_ep(&b, NULL));
	rig_down(&a);
	CHECK(now_us() - begin < AT_ONCE);
	rig_down(&b);
}

/* --- what a provider need not have ---------------------------------------------------------- */

static void ep_recv_query__as_the_provider_says(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_COUNT allocated = -77, span = -77;
	DAT_LMR_TRIPLET none = { 0 };
	DAT_RETURN ret;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	OK(dat_ep_post_recv(ep, 0, &none, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_recv(ep, 0, &none, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	ret = dat_ep_recv_query(ep, &allocated, &span);
	if (rig.provider.ep_recv_info_supported == 0) {
		CHECK_EITHER(ret, DAT_MODEL_NOT_SUPPORTED, DAT_NOT_IMPLEMENTED);
	} else {
		CHECK_RET(ret, DAT_SUCCESS);
		CHECK(allocated == 2 || allocated == DAT_VALUE_UNKNOWN);
		CHECK(span == 2 || span == DAT_VALUE_UNKNOWN);
	}
	rig_down(&rig);
}

static void consumer_context__of_an_endpoint(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_CONTEXT context = cookie(1);

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	OK(dat_get_consumer_context(ep, &context));
	CHECK_EQ(context.as_64, 0);
	OK(dat_set_consumer_context(ep, cookie(0xabcdef)));
	OK(dat_get_consumer_context(ep, &context));
	CHECK_EQ(context.as_64, 0xabcdef);
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(ep_query, all_fields),
	T(ep_query, addresses_of_a_connection),
	T(ep_get_status, pointers_are_optional),
	T(ep_get_status, not_idle_with_a_receive),
	T(ep_reset, unconnected_keeps_receives),
	T(ep_reset, connected),
	T(ep_reset, connects_again),
	T(ep_reset, takes_its_events),
	T(ep_free, takes_its_events),
	T(ep_free, connected),
	T(ep_free, while_connecting),
	T(ep_free, waits_for_nobody),
	T(ep_recv_query, as_the_provider_says),
	T(consumer_context, of_an_endpoint),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
