/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Endpoints without and around a connection: dat_ep_create(3DAT), _query, _get_status,
 * _reset, _free, _recv_query, _set_watermark. Connecting is in t_connect, dat_ep_modify
 * in t_modify. */
#include "common.h"

#include <string.h>

static DAT_RETURN create(const struct rig *rig, const DAT_EP_ATTR *attr, DAT_EP_HANDLE *ep)
{
	return dat_ep_create(rig->ia, rig->pz, rig->recv_evd, rig->request_evd,
			     rig->connect_evd, attr, ep);
}

/* --- dat_ep_create -------------------------------------------------------------------------- */

static void ep_create__unconnected(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EP_STATE state = DAT_EP_STATE_ERROR;
	DAT_BOOLEAN recv_idle = DAT_FALSE, request_idle = DAT_FALSE;
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	CHECK(ep != DAT_HANDLE_NULL);
	OK(dat_ep_get_status(ep, &state, &recv_idle, &request_idle));
	CHECK_EQ(state, DAT_EP_STATE_UNCONNECTED);
	CHECK_EQ(recv_idle, DAT_TRUE);
	CHECK_EQ(request_idle, DAT_TRUE);
	OK(dat_get_handle_type(ep, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_EP);
	CHECK_RET(dat_ep_free(ep), DAT_SUCCESS);
	rig_down(&rig);
}

static void ep_create__default_attributes(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;

	rig_up(&rig);
	OK(create(&rig, NULL, &ep));
	memset(&param, 0, sizeof param);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	CHECK_EQ(param.ep_attr.service_type, DAT_SERVICE_TYPE_RC);
	CHECK(param.ep_attr.max_recv_dtos > 0);
	CHECK(param.ep_attr.max_request_dtos > 0);
	CHECK(param.ep_attr.max_recv_iov > 0);
	CHECK(param.ep_attr.max_request_iov > 0);
	CHECK(param.ep_attr.max_message_size > 0);
	CHECK(param.ep_attr.max_rdma_size > 0);
	rig_down(&rig);
}

static void ep_create__queried_attributes_make_an_equal_endpoint(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep, second;
	DAT_EP_PARAM first_param, second_param;

	rig_up(&rig);
	OK(create(&rig, NULL, &ep));
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &first_param));
	OK(create(&rig, &first_param.ep_attr, &second));
	OK(dat_ep_query(second, DAT_EP_FIELD_ALL, &second_param));
	CHECK_EQ(second_param.ep_attr.max_recv_dtos, first_param.ep_attr.max_recv_dtos);
	CHECK_EQ(second_param.ep_attr.max_request_iov, first_param.ep_attr.max_request_iov);
	CHECK_EQ(second_param.ep_attr.max_message_size, first_param.ep_attr.max_message_size);
	rig_down(&rig);
}

static void ep_create__limits_of_the_ia(void)
{
	struct rig rig;
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE ep;

	/* What dat_ia_query told is accepted as it is. */
	rig_up(&rig);
	attr = ep_attr(&rig);
	attr.max_message_size = rig.attr.max_message_size;
	attr.max_rdma_size = rig.attr.max_rdma_size;
	attr.max_recv_iov = rig.attr.max_iov_segments_per_dto;
	attr.max_request_iov = rig.attr.max_iov_segments_per_dto;
	attr.max_rdma_read_in = rig.attr.max_rdma_read_per_ep_in;
	attr.max_rdma_read_out = rig.attr.max_rdma_read_per_ep_out;
	attr.max_rdma_read_iov = rig.attr.max_iov_segments_per_rdma_read;
	attr.max_rdma_write_iov = rig.attr.max_iov_segments_per_rdma_write;
	CHECK_RET(create(&rig, &attr, &ep), DAT_SUCCESS);
	rig_down(&rig);
}

/* One attribute beyond its limit. */
#define BEYOND(field, limit)                                                                  \
	do {                                                                                  \
		DAT_EP_ATTR attr_ = ep_attr(&rig);                                            \
		DAT_EP_HANDLE ep_;                                                            \
		attr_.field = (limit) + 1;                                                    \
		if (attr_.field > (limit))                                                    \
			CHECK_EITHER(create(&rig, &attr_, &ep_), DAT_INVALID_PARAMETER,       \
				     DAT_INSUFFICIENT_RESOURCES);                             \
	} while (0)

static void ep_create__beyond_the_limits(void)
{
	struct rig rig;

	rig_up(&rig);
	BEYOND(max_message_size, rig.attr.max_message_size);
	BEYOND(max_rdma_size, rig.attr.max_rdma_size);
	BEYOND(max_recv_dtos, rig.attr.max_dto_per_ep);
	BEYOND(max_request_dtos, rig.attr.max_dto_per_ep);
	BEYOND(max_recv_iov, rig.attr.max_iov_segments_per_dto);
	BEYOND(max_request_iov, rig.attr.max_iov_segments_per_dto);
	BEYOND(max_rdma_read_in, rig.attr.max_rdma_read_per_ep_in);
	BEYOND(max_rdma_read_out, rig.attr.max_rdma_read_per_ep_out);
	BEYOND(max_rdma_read_iov, rig.attr.max_iov_segments_per_rdma_read);
	BEYOND(max_rdma_write_iov, rig.attr.max_iov_segments_per_rdma_write);
	rig_down(&rig);
}

static void ep_create__attributes_without_sense(void)
{
	struct rig rig;
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	attr = ep_attr(&rig);
	attr.max_recv_dtos = -1;
	CHECK_RET(create(&rig, &attr, &ep), DAT_INVALID_PARAMETER);
	attr = ep_attr(&rig);
	attr.max_request_iov = -1;
	CHECK_RET(create(&rig, &attr, &ep), DAT_INVALID_PARAMETER);
	attr = ep_attr(&rig);
	attr.service_type = (DAT_SERVICE_TYPE)77;
	CHECK_EITHER(create(&rig, &attr, &ep), DAT_INVALID_PARAMETER, DAT_MODEL_NOT_SUPPORTED);
	attr = ep_attr(&rig);
	attr.recv_completion_flags = (DAT_COMPLETION_FLAGS)0x4000;
	CHECK_RET(create(&rig, &attr, &ep), DAT_INVALID_PARAMETER);
	attr = ep_attr(&rig);
	attr.recv_completion_flags = DAT_COMPLETION_SUPPRESS_FLAG;
	CHECK_RET(create(&rig, &attr, &ep), DAT_INVALID_PARAMETER);
	attr = ep_attr(&rig);
	attr.request_completion_flags = (DAT_COMPLETION_FLAGS)0x4000;
	CHECK_RET(create(&rig, &attr, &ep), DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static void ep_create__quality_not_offered(void)
{
	struct rig rig;
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	attr = ep_attr(&rig);
	attr.qos = DAT_QOS_PREMIUM;
	CHECK_RET(create(&rig, &attr, &ep),
		  rig.provider.dat_qos_supported & DAT_QOS_PREMIUM ? DAT_SUCCESS :
								     DAT_MODEL_NOT_SUPPORTED);
	rig_down(&rig);
}

static void ep_create_with_srq__quality_not_offered(void)
{
	struct rig rig;
	DAT_SRQ_ATTR srq_attr = { 8, 1, DAT_SRQ_LW_DEFAULT };
	DAT_EP_ATTR attr;
	DAT_SRQ_HANDLE srq;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	if (!rig.provider.srq_supported)
		tap_skip("no shared receive queues");
	OK(dat_srq_create(rig.ia, rig.pz, &srq_attr, &srq));
	attr = ep_attr(&rig);
	attr.qos = DAT_QOS_PREMIUM;
	CHECK_RET(dat_ep_create_with_srq(rig.ia, rig.pz, rig.recv_evd, rig.request_evd,
					 rig.connect_evd, srq, &attr, &ep),
		  rig.provider.dat_qos_supported & DAT_QOS_PREMIUM ? DAT_SUCCESS :
								     DAT_MODEL_NOT_SUPPORTED);
	rig_down(&rig);
}

static void ep_create__handles(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep = DAT_HANDLE_NULL;

	rig_up(&rig);
	CHECK_CODE(dat_ep_create(DAT_HANDLE_NULL, rig.pz, rig.recv_evd, rig.request_evd,
				 rig.connect_evd, NULL, &ep),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
	CHECK_RET(dat_ep_create(rig.ia, rig.recv_evd, rig.recv_evd, rig.request_evd,
				rig.connect_evd, NULL, &ep),
		  DAT_INVALID_HANDLE);
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.pz, rig.request_evd, rig.connect_evd, NULL,
				&ep),
		  DAT_INVALID_HANDLE);
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.pz, rig.connect_evd, NULL,
				&ep),
		  DAT_INVALID_HANDLE);
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.request_evd, rig.pz, NULL,
				&ep),
		  DAT_INVALID_HANDLE);
	/* EVDs of the wrong kind. */
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.cr_evd, rig.request_evd, rig.connect_evd,
				NULL, &ep),
		  DAT_INVALID_HANDLE);
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.cr_evd, rig.connect_evd, NULL,
				&ep),
		  DAT_INVALID_HANDLE);
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.request_evd, rig.cr_evd, NULL,
				&ep),
		  DAT_INVALID_HANDLE);
	CHECK(ep == DAT_HANDLE_NULL);
	CHECK_RET(create(&rig, NULL, NULL), DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static void ep_create__objects_of_another_ia(void)
{
	struct rig rig, other;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	rig_up(&other);
	CHECK(dat_ep_create(rig.ia, other.pz, rig.recv_evd, rig.request_evd, rig.connect_evd,
			    NULL, &ep) != DAT_SUCCESS);
	CHECK(dat_ep_create(rig.ia, rig.pz, other.recv_evd, rig.request_evd, rig.connect_evd,
			    NULL, &ep) != DAT_SUCCESS);
	rig_down(&rig);
	rig_down(&other);
}

/* An IA can be open several times; one EVD may take the connection events of all. */
static void ep_create__connect_evd_of_another_open(void)
{
	struct rig a, b;
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_CONN_QUAL qualifier;
	DAT_EVENT first, second;

	rig_up(&a);
	rig_up(&b);
	OK(dat_ep_create(a.ia, a.pz, a.recv_evd, a.request_evd, b.connect_evd, NULL, &ep_a));
	CHECK_CODE(dat_evd_free(b.connect_evd), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE);
	ep_b = make_ep(&b, NULL);
	(void)listen_any(&b, &qualifier);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	first = EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	second = EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	CHECK(first.event_data.connect_event_data.ep_handle !=
	      second.event_data.connect_event_data.ep_handle);
	EXPECT_NOTHING(a.connect_evd);
	/* The owner of the EVD goes; the user stays. */
	rig_down(&b);
	await_state(ep_a, DAT_EP_STATE_DISCONNECTED);
	OK(dat_ep_free(ep_a));
	rig_down(&a);
}

static void ep_create__large_queues(void)
{
	struct rig rig;
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	REQUIRE(rig.attr.max_dto_per_ep >= 20000);
	attr = ep_attr(&rig);
	attr.max_recv_dtos = 20000;
	attr.max_request_dtos = 20000;
	OK(dat_evd_resize(rig.recv_evd, 20000));
	OK(dat_evd_resize(rig.request_evd, 20000));
	CHECK_RET(create(&rig, &attr, &ep), DAT_SUCCESS);
	rig_down(&rig);
}

/* An attribute of 0, as programs leave what they do not know of, is no watermark. */
static void ep_create_with_srq__no_mark_given(void)
{
	struct rig a, b;
	struct mem from, to;
	DAT_EP_ATTR attr;
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_SRQ_HANDLE srq;
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_LMR_TRIPLET iov;

	rig_up(&a);
	rig_up(&b);
	if (!b.provider.srq_supported)
		tap_skip("no SRQ");
	attr = ep_attr(&b);
	attr.srq_soft_hw = 0;
	OK(dat_srq_create(b.ia, b.pz, &srq_attr, &srq));
	OK(dat_ep_create_with_srq(b.ia, b.pz, b.recv_evd, b.request_evd, b.connect_evd, srq,
				  &attr, &ep_b));
	ep_a = make_ep(&a, NULL);
	connect_eps(&a, ep_a, &b, ep_b);
	from = make_mem(&a, 64, DAT_MEM_PRIV_LOCAL_READ_FLAG);
	to = make_mem(&b, 64, DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
	iov = dx_local(to.local, to.at, 64);
	OK(dat_srq_post_recv(srq, 1, &iov, cookie(1)));
	iov = dx_local(from.local, from.at, 64);
	OK(dat_ep_post_send(ep_a, 1, &iov, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(b.async_evd);
	rig_down(&a);
	rig_down(&b);
}

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

static void ep_query__addresses_of_a_connection(void)
{
	struct pair pair;
	DAT_EP_PARAM param;

	pair_up(&pair, NULL);
	memset(&param, 0, sizeof param);
	OK(dat_ep_query(pair.ep_a, DAT_EP_FIELD_ALL, &param));
	CHECK_EQ(param.ep_state, DAT_EP_STATE_CONNECTED);
	REQUIRE(param.remote_ia_address_ptr != NULL);
	REQUIRE(param.local_ia_address_ptr != NULL);
	CHECK_EQ(param.remote_ia_address_ptr->sa_family,
		 pair.b.attr.ia_address_ptr->sa_family);
	CHECK_EQ(param.local_ia_address_ptr->sa_family, pair.a.attr.ia_address_ptr->sa_family);
	memset(&param, 0, sizeof param);
	OK(dat_ep_query(pair.ep_b, DAT_EP_FIELD_ALL, &param));
	CHECK_EQ(param.ep_state, DAT_EP_STATE_CONNECTED);
	REQUIRE(param.remote_ia_address_ptr != NULL);
	CHECK_EQ(param.remote_ia_address_ptr->sa_family,
		 pair.a.attr.ia_address_ptr->sa_family);
	pair_down(&pair);
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

/* --- dat_ep_free ---------------------------------------------------------------------------- */

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
	T(ep_create, unconnected),
	T(ep_create, default_attributes),
	T(ep_create, queried_attributes_make_an_equal_endpoint),
	T(ep_create, limits_of_the_ia),
	T(ep_create, beyond_the_limits),
	T(ep_create, attributes_without_sense),
	T(ep_create, quality_not_offered),
	T(ep_create_with_srq, quality_not_offered),
	T(ep_create, handles),
	T(ep_create, objects_of_another_ia),
	T(ep_create, connect_evd_of_another_open),
	T(ep_create_with_srq, no_mark_given),
	T(ep_create, large_queues),
	T(ep_query, all_fields),
	T(ep_query, addresses_of_a_connection),
	T(ep_get_status, pointers_are_optional),
	T(ep_get_status, not_idle_with_a_receive),
	T(ep_reset, unconnected_keeps_receives),
	T(ep_reset, connected),
	T(ep_reset, connects_again),
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
