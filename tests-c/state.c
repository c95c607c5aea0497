/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "state.h"

/* dat_ep_modify with each of the fields alone that go together, with the values that they have. */
static void check_modify(DAT_EP_HANDLE ep, DAT_RETURN subtype, int allowed)
{
	static const struct {
		DAT_EP_PARAM_MASK field;
		int needs;
	} fields[] = {
		{ DAT_EP_FIELD_PZ_HANDLE, ZONE },
		{ DAT_EP_FIELD_RECV_EVD_HANDLE, MODIFY },
		{ DAT_EP_FIELD_REQUEST_EVD_HANDLE, MODIFY },
		{ DAT_EP_FIELD_CONNECT_EVD_HANDLE, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_QOS, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV, MODIFY },
		{ DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV, MODIFY },
	};
	DAT_EP_PARAM param;

	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		if (allowed & fields[i].needs)
			CHECK_RET(dat_ep_modify(ep, fields[i].field, &param), DAT_SUCCESS);
		else
			CHECK_CODE(dat_ep_modify(ep, fields[i].field, &param), DAT_INVALID_STATE,
				   subtype);
}

/* Each kind of request is refused. */
static void check_no_requests(DAT_EP_HANDLE ep, DAT_RETURN subtype)
{
	struct mem mem = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	DAT_LMR_TRIPLET local = dx_local(mem.local, mem.at, 8);
	DAT_RMR_TRIPLET remote = dx_remote(mem.remote, mem.at, 8);
	DAT_RMR_HANDLE rmr;

	CHECK_CODE(send_nothing(ep, 1, DAT_COMPLETION_DEFAULT_FLAG), DAT_INVALID_STATE, subtype);
	CHECK_CODE(dat_ep_post_rdma_write(ep, 1, &local, cookie(1), &remote,
					  DAT_COMPLETION_DEFAULT_FLAG),
		   DAT_INVALID_STATE, subtype);
	CHECK_CODE(dat_ep_post_rdma_read(ep, 1, &local, cookie(1), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG),
		   DAT_INVALID_STATE, subtype);
	if (a.attr.max_rmrs > 0) {
		OK(dat_rmr_create(a.pz, &rmr));
		CHECK_CODE(dx_rmr_bind(rmr, mem.lmr, &local, DAT_MEM_PRIV_REMOTE_READ_FLAG, ep,
				       cookie(1), DAT_COMPLETION_DEFAULT_FLAG, NULL),
			   DAT_INVALID_STATE, subtype);
		/* It is not bound. */
		CHECK_RET(dat_lmr_free(mem.lmr), DAT_SUCCESS);
		OK(dat_rmr_free(rmr));
	}
}

void check_state(DAT_EP_HANDLE ep, DAT_EP_STATE state, DAT_RETURN subtype, int allowed)
{
	DAT_EP_PARAM param;
	DAT_CONN_QUAL unused;
	DAT_RSP_HANDLE rsp;
	DAT_COUNT count, span;

	CHECK_EQ(ep_state(ep), state);
	unused = free_qualifier(&a);
	if (!(allowed & RESERVE))
		CHECK_CODE(dat_rsp_create(a.ia, unused, ep, a.cr_evd, &rsp), DAT_INVALID_STATE,
			   subtype);
	if (!(allowed & FREE))
		CHECK_CODE(dat_ep_free(ep), DAT_INVALID_STATE, subtype);
	check_modify(ep, subtype, allowed);
	if (!(allowed & CONNECT))
		CHECK_CODE(try_connect(ep, &b, qualifier, SOON), DAT_INVALID_STATE, subtype);
	if (!(allowed & DISCONNECT)) {
		CHECK_CODE(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_STATE,
			   subtype);
		CHECK_CODE(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_STATE,
			   subtype);
	}
	if (!(allowed & RESET))
		CHECK_CODE(dat_ep_reset(ep), DAT_INVALID_STATE, subtype);
	if (!(allowed & REQUESTS))
		check_no_requests(ep, subtype);
	CHECK_RET(recv_nothing(ep, 70), DAT_SUCCESS);
	CHECK_RET(dat_ep_recv_query(ep, &count, &span), DAT_SUCCESS);
	/* Without a shared receive queue there are no marks, whatever the state. */
	CHECK_RET(dat_ep_set_watermark(ep, 1, 1), DAT_MODEL_NOT_SUPPORTED);
	CHECK_RET(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param), DAT_SUCCESS);
	CHECK_EQ(param.ep_state, state);
	CHECK_EQ(ep_state(ep), state);
}
