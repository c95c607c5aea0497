/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ep_create(3DAT), dat_ep_create_with_srq(3DAT). Wrong arguments are in t_ep_create_wrong. */
#include "common.h"

#include <string.h>

static DAT_RETURN create(const struct rig *rig, const DAT_EP_ATTR *attr, DAT_EP_HANDLE *ep)
{
	return dat_ep_create(rig->ia, rig->pz, rig->recv_evd, rig->request_evd, rig->connect_evd,
			     attr, ep);
}

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

/* What is filled in for a program that gives no attributes is within what the IA has, and enough for
 * every kind of operation. */
static void ep_create__default_attributes_are_usable(void)
{
	struct rig a, b;
	struct mem from, to;
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_EP_PARAM param;
	DAT_LMR_TRIPLET iov;
	DAT_RMR_TRIPLET remote;

	rig_up(&a);
	rig_up(&b);
	OK(create(&a, NULL, &ep_a));
	OK(create(&b, NULL, &ep_b));
	OK(dat_ep_query(ep_b, DAT_EP_FIELD_ALL, &param));
	CHECK_EQ(param.ep_attr.recv_completion_flags, DAT_COMPLETION_DEFAULT_FLAG);
	CHECK_EQ(param.ep_attr.request_completion_flags, DAT_COMPLETION_DEFAULT_FLAG);
	CHECK_EQ(param.ep_attr.qos, DAT_QOS_BEST_EFFORT);
	CHECK(param.ep_attr.max_message_size <= b.attr.max_message_size);
	CHECK(param.ep_attr.max_rdma_size <= b.attr.max_rdma_size);
	CHECK(param.ep_attr.max_recv_dtos <= b.attr.max_dto_per_ep);
	CHECK(param.ep_attr.max_request_dtos <= b.attr.max_dto_per_ep);
	CHECK(param.ep_attr.max_rdma_read_in > 0);
	CHECK(param.ep_attr.max_rdma_read_in <= b.attr.max_rdma_read_per_ep_in);
	CHECK(param.ep_attr.max_rdma_read_out > 0);
	CHECK(param.ep_attr.max_rdma_read_out <= b.attr.max_rdma_read_per_ep_out);
	CHECK(param.ep_attr.max_rdma_read_iov > 0);
	CHECK(param.ep_attr.max_rdma_write_iov > 0);
	connect_eps(&a, ep_a, &b, ep_b);
	from = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	to = make_mem(&b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	fill(from.at, 1000, 1);
	/* As many receives as the attribute says. */
	OK(dat_evd_resize(b.recv_evd, param.ep_attr.max_recv_dtos));
	iov = dx_local(to.local, to.at, 1000);
	for (DAT_COUNT i = 0; i < param.ep_attr.max_recv_dtos; i++)
		OK(dat_ep_post_recv(ep_b, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_RET(dat_ep_post_recv(ep_b, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INSUFFICIENT_RESOURCES);
	iov = dx_local(from.local, from.at, 1000);
	OK(dat_ep_post_send(ep_a, 1, &iov, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	CHECK(filled(to.at, 1000, 1));
	remote = dx_remote(to.remote, to.at + 2000, 1000);
	OK(dat_ep_post_rdma_write(ep_a, 1, &iov, cookie(3), &remote, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 3, DAT_DTO_SUCCESS);
	iov = dx_local(from.local, from.at + 2000, 1000);
	OK(dat_ep_post_rdma_read(ep_a, 1, &iov, cookie(4), &remote, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 4, DAT_DTO_SUCCESS);
	CHECK(filled(from.at + 2000, 1000, 1));
	rig_down(&a);
	rig_down(&b);
}

/* An endpoint that has nothing at first is created all the same, and gets the rest when it is known whom
 * it is for. Until then it can be queried, changed and freed, and is for no connection. */
static void ep_create__the_rest_is_given_later(void)
{
	const DAT_EP_PARAM_MASK rest = DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE |
				       DAT_EP_FIELD_REQUEST_EVD_HANDLE |
				       DAT_EP_FIELD_CONNECT_EVD_HANDLE |
				       DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS;
	struct rig a, b;
	DAT_EP_HANDLE ep_a, ep_b, unused;
	DAT_CONN_QUAL qualifier;
	DAT_EP_PARAM param;
	DAT_CR_HANDLE cr;

	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	OK(dat_ep_create(b.ia, DAT_HANDLE_NULL, DAT_HANDLE_NULL, DAT_HANDLE_NULL, DAT_HANDLE_NULL,
			 NULL, &ep_b));
	OK(dat_ep_create(b.ia, DAT_HANDLE_NULL, DAT_HANDLE_NULL, DAT_HANDLE_NULL, DAT_HANDLE_NULL,
			 NULL, &unused));
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	memset(&param, 0xff, sizeof param);
	OK(dat_ep_query(ep_b, DAT_EP_FIELD_ALL, &param));
	CHECK(param.ia_handle == b.ia);
	CHECK(param.pz_handle == DAT_HANDLE_NULL);
	CHECK(param.recv_evd_handle == DAT_HANDLE_NULL);
	CHECK(param.request_evd_handle == DAT_HANDLE_NULL);
	CHECK(param.connect_evd_handle == DAT_HANDLE_NULL);
	CHECK(param.srq_handle == DAT_HANDLE_NULL);
	(void)listen_any(&b, &qualifier);
	CHECK_RET(try_connect(ep_b, &b, qualifier, SOON), DAT_INVALID_HANDLE);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	CHECK_RET(dat_cr_accept(cr, ep_b, 0, NULL), DAT_INVALID_HANDLE);
	memset(&param, 0, sizeof param);
	param.pz_handle = b.pz;
	param.recv_evd_handle = b.recv_evd;
	param.request_evd_handle = b.request_evd;
	param.connect_evd_handle = b.connect_evd;
	param.ep_attr.max_recv_dtos = 2;
	OK(dat_ep_modify(ep_b, rest, &param));
	OK(recv_nothing(ep_b, 1));
	OK(dat_cr_accept(cr, ep_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	OK(send_nothing(ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	OK(recv_nothing(ep_a, 3));
	OK(send_nothing(ep_b, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(b.request_evd, 4, DAT_DTO_SUCCESS);
	OK(dat_ep_free(unused));
	OK(dat_ep_free(ep_b));
	OK(dat_evd_free(b.recv_evd));
	rig_down(&a);
	rig_down(&b);
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
#define SAME(field) CHECK_EQ(second_param.ep_attr.field, first_param.ep_attr.field)
	SAME(service_type);
	SAME(max_message_size);
	SAME(max_rdma_size);
	SAME(qos);
	SAME(recv_completion_flags);
	SAME(request_completion_flags);
	SAME(max_recv_dtos);
	SAME(max_request_dtos);
	SAME(max_recv_iov);
	SAME(max_request_iov);
	SAME(max_rdma_read_in);
	SAME(max_rdma_read_out);
	SAME(srq_soft_hw);
	SAME(max_rdma_read_iov);
	SAME(max_rdma_write_iov);
#undef SAME
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

static void ep_create_with_srq__quality_not_offered(void)
{
	struct rig rig;
	DAT_SRQ_ATTR srq_attr = { 8, 1, DAT_SRQ_LW_DEFAULT };
	DAT_EP_ATTR attr;
	DAT_SRQ_HANDLE srq;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	if (!rig.provider.srq_supported)
		tap_unsupported("no shared receive queues");
	OK(dat_srq_create(rig.ia, rig.pz, &srq_attr, &srq));
	attr = ep_attr(&rig);
	attr.qos = DAT_QOS_PREMIUM;
	CHECK_RET(dat_ep_create_with_srq(rig.ia, rig.pz, rig.recv_evd, rig.request_evd,
					 rig.connect_evd, srq, &attr, &ep),
		  rig.provider.dat_qos_supported & DAT_QOS_PREMIUM ? DAT_SUCCESS :
								     DAT_MODEL_NOT_SUPPORTED);
	rig_down(&rig);
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

/* An attribute of 0 is a watermark: the first buffer exceeds it. Devices that do not count the
 * buffers of an endpoint refuse it. */
static void ep_create_with_srq__mark_of_zero(void)
{
	struct rig a, b;
	struct mem to;
	DAT_EP_ATTR attr;
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_SRQ_HANDLE srq;
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_LMR_TRIPLET iov;
	DAT_RETURN ret;
	DAT_ASYNCH_ERROR_EVENT_DATA error;

	rig_up(&a);
	rig_up(&b);
	if (!b.provider.srq_supported)
		tap_unsupported("no SRQ");
	attr = ep_attr(&b);
	attr.srq_soft_hw = 0;
	OK(dat_srq_create(b.ia, b.pz, &srq_attr, &srq));
	ret = dat_ep_create_with_srq(b.ia, b.pz, b.recv_evd, b.request_evd, b.connect_evd, srq,
				     &attr, &ep_b);
	if (DAT_GET_TYPE(ret) == DAT_MODEL_NOT_SUPPORTED)
		tap_unsupported("no watermarks");
	OK(ret);
	ep_a = make_ep(&a, NULL);
	connect_eps(&a, ep_a, &b, ep_b);
	to = make_mem(&b, 64, DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
	iov = dx_local(to.local, to.at, 64);
	OK(dat_srq_post_recv(srq, 1, &iov, cookie(1)));
	OK(send_nothing(ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	error = EXPECT(b.async_evd, DAT_ASYNC_ERROR_EP_BROKEN).event_data.asynch_error_event_data;
	CHECK(error.dat_handle == ep_b);
	CHECK_EQ(error.reason, DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT);
	rig_down(&a);
	rig_down(&b);
}

/* How many receives such an endpoint holds is the queue's matter. */
static void ep_create_with_srq__receives_as_the_queue_has(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_SRQ_HANDLE srq;
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE ep;
	struct rig rig;

	rig_up(&rig);
	if (!rig.provider.srq_supported)
		tap_unsupported("no SRQ");
	OK(dat_srq_create(rig.ia, rig.pz, &srq_attr, &srq));
	attr = ep_attr(&rig);
	attr.max_recv_dtos = DAT_HW_DEFAULT;
	CHECK_RET(dat_ep_create_with_srq(rig.ia, rig.pz, rig.recv_evd, rig.request_evd,
					 rig.connect_evd, srq, &attr, &ep),
		  DAT_SUCCESS);
	CHECK_RET(create(&rig, &attr, &ep), DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(ep_create, unconnected),
	T(ep_create, default_attributes),
	T(ep_create, default_attributes_are_usable),
	T(ep_create, the_rest_is_given_later),
	T(ep_create, queried_attributes_make_an_equal_endpoint),
	T(ep_create, limits_of_the_ia),
	T(ep_create_with_srq, quality_not_offered),
	T(ep_create, connect_evd_of_another_open),
	T(ep_create_with_srq, mark_of_zero),
	T(ep_create_with_srq, receives_as_the_queue_has),
	T(ep_create, large_queues),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
