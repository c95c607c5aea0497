/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "service.h"

#include <string.h>

void points_up(void)
{
	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
}

void points_down(void)
{
	rig_down(&a);
	rig_down(&b);
}

DAT_CONN_QUAL free_qualifier(void)
{
	DAT_CONN_QUAL qualifier;

	OK(dat_psp_free(listen_any(&b, &qualifier)));
	return qualifier;
}

DAT_RSP_HANDLE reserve(DAT_CONN_QUAL qualifier, DAT_EP_HANDLE ep)
{
	DAT_RSP_HANDLE rsp = DAT_HANDLE_NULL;

	OK(dat_rsp_create(b.ia, qualifier, ep, b.cr_evd, &rsp));
	return rsp;
}

DAT_PSP_HANDLE listen_for(DAT_PSP_FLAGS flags, DAT_CONN_QUAL *qualifier)
{
	DAT_PSP_HANDLE psp = DAT_HANDLE_NULL;

	OK(dat_psp_create_any(b.ia, qualifier, b.cr_evd, flags, &psp));
	return psp;
}

DAT_EP_HANDLE endpoint_of(DAT_CR_HANDLE cr)
{
	DAT_CR_PARAM param;

	memset(&param, 0xff, sizeof param);
	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	return param.local_ep_handle;
}

void established(void)
{
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
}

void configure(DAT_EP_HANDLE ep)
{
	DAT_EP_PARAM param;

	memset(&param, 0, sizeof param);
	param.pz_handle = b.pz;
	param.recv_evd_handle = b.recv_evd;
	param.request_evd_handle = b.request_evd;
	param.connect_evd_handle = b.connect_evd;
	OK(dat_ep_modify(ep,
			 DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE |
				 DAT_EP_FIELD_REQUEST_EVD_HANDLE | DAT_EP_FIELD_CONNECT_EVD_HANDLE,
			 &param));
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
