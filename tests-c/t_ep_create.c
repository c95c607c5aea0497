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
