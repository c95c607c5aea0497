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
