/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "service.h"

#include <string.h>

DAT_RSP_HANDLE reserve(DAT_CONN_QUAL where, DAT_EP_HANDLE ep)
{
	DAT_RSP_HANDLE rsp = DAT_HANDLE_NULL;

	OK(dat_rsp_create(b.ia, where, ep, b.cr_evd, &rsp));
	return rsp;
}

DAT_PSP_HANDLE listen_for(DAT_PSP_FLAGS flags, DAT_CONN_QUAL *where)
{
	DAT_PSP_HANDLE point = DAT_HANDLE_NULL;

	OK(dat_psp_create_any(b.ia, where, b.cr_evd, flags, &point));
	return point;
}

DAT_EP_HANDLE endpoint_of(DAT_CR_HANDLE cr)
{
	DAT_CR_PARAM param;

	memset(&param, 0xff, sizeof param);
	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	return param.local_ep_handle;
}

void talk(DAT_EP_HANDLE ep)
{
	struct mem ma = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	struct mem mb = make_mem(&b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	DAT_LMR_TRIPLET from = dx_local(ma.local, ma.at, 100);
	DAT_LMR_TRIPLET to = dx_local(mb.local, mb.at, 100);

	fill(ma.at, 100, 6);
	OK(dat_ep_post_recv(ep, 1, &to, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_send(ep_a, 1, &from, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, 100, 6));
}

static DAT_CR_ARRIVAL_EVENT_DATA next_request(DAT_CONN_QUAL where)
{
	DAT_CR_ARRIVAL_EVENT_DATA request;

	request = EXPECT(b.cr_evd, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data;
	CHECK_EQ(request.conn_qual, where);
	return request;
}

DAT_CR_HANDLE request_at(DAT_PSP_HANDLE point, DAT_CONN_QUAL where)
{
	DAT_CR_ARRIVAL_EVENT_DATA request = next_request(where);

	CHECK(request.sp_handle.psp_handle == point);
	return request.cr_handle;
}

DAT_CR_HANDLE request_reserved(DAT_RSP_HANDLE rsp, DAT_CONN_QUAL where)
{
	DAT_CR_ARRIVAL_EVENT_DATA request = next_request(where);

	CHECK(request.sp_handle.rsp_handle == rsp);
	return request.cr_handle;
}

void connect_with_data(DAT_CONN_QUAL asked)
{
	char data[] = "private";
	DAT_CONNECTION_EVENT_DATA event;
	DAT_CR_PARAM request;
	DAT_CR_HANDLE cr;

	OK(dat_ep_connect(ep_a, b.attr.ia_address_ptr, asked, SOON, sizeof data, data,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	cr = request_at(psp, qualifier);
	/* What was in front of the private data of requests to another qualifier is not there. */
	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &request));
	CHECK((size_t)request.private_data_size >= sizeof data);
	CHECK(!memcmp(request.private_data, data, sizeof data));
	OK(dat_cr_accept(cr, ep_b, sizeof data, data));
	event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			.event_data.connect_event_data;
	CHECK((size_t)event.private_data_size >= sizeof data);
	CHECK(!memcmp(event.private_data, data, sizeof data));
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	talk(ep_b);
}
