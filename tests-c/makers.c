/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "makers.h"

#include <string.h>

struct rig made_in;
static char memory[100];

DAT_RETURN a_pz(DAT_HANDLE *made)
{
	return dat_pz_create(made_in.ia, (DAT_PZ_HANDLE *)made);
}

DAT_RETURN a_cno(DAT_HANDLE *made)
{
	return dat_cno_create(made_in.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, (DAT_CNO_HANDLE *)made);
}

DAT_RETURN an_evd_of(DAT_COUNT length, DAT_HANDLE *made)
{
	return dat_evd_create(made_in.ia, length, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG,
			      (DAT_EVD_HANDLE *)made);
}

DAT_RETURN an_evd(DAT_HANDLE *made)
{
	return an_evd_of(4, made);
}

DAT_RETURN a_long_evd(DAT_HANDLE *made)
{
	return an_evd_of(LONG_QUEUE, made);
}

DAT_RETURN an_ep_of(DAT_COUNT dtos, DAT_HANDLE *made)
{
	DAT_EP_ATTR attr = ep_attr(&made_in);

	attr.max_recv_dtos = attr.max_request_dtos = dtos;
	return dat_ep_create(made_in.ia, made_in.pz, made_in.recv_evd, made_in.request_evd,
			     made_in.connect_evd, &attr, (DAT_EP_HANDLE *)made);
}

DAT_RETURN an_ep(DAT_HANDLE *made)
{
	return an_ep_of(4, made);
}

DAT_RETURN an_srq_of(DAT_COUNT dtos, DAT_HANDLE *made)
{
	DAT_SRQ_ATTR attr = { dtos, 4, DAT_SRQ_LW_DEFAULT };

	return dat_srq_create(made_in.ia, made_in.pz, &attr, (DAT_SRQ_HANDLE *)made);
}

DAT_RETURN an_srq(DAT_HANDLE *made)
{
	return an_srq_of(4, made);
}

DAT_RETURN an_lmr(DAT_HANDLE *made)
{
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_CONTEXT context;

	memset(&region, 0, sizeof region);
	region.for_va = memory;
	return dx_lmr_create(made_in.ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, made_in.pz,
			     DAT_MEM_PRIV_ALL_FLAG, (DAT_LMR_HANDLE *)made, &context, NULL, NULL,
			     NULL);
}

DAT_RETURN an_rmr(DAT_HANDLE *made)
{
	return dat_rmr_create(made_in.pz, (DAT_RMR_HANDLE *)made);
}

DAT_RETURN a_psp(DAT_HANDLE *made)
{
	DAT_CONN_QUAL qualifier = 0;

	return dat_psp_create_any(made_in.ia, &qualifier, made_in.cr_evd, DAT_PSP_CONSUMER_FLAG,
				  (DAT_PSP_HANDLE *)made);
}
