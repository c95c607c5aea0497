/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory, windows, shared receive queues and endpoints, without a connection. */
#include "behaviour.h"

#include <string.h>

/* --- memory ------------------------------------------------------------------------------- */

static DAT_RETURN create_lmr(void *at, DAT_VLEN length, DAT_MEM_PRIV_FLAGS privileges,
			     DAT_LMR_HANDLE *lmr)
{
	DAT_REGION_DESCRIPTION region = { .for_va = at };
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
	DAT_VLEN registered;
	DAT_VADDR address;

	return dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, length, pz, privileges,
			      DAT_VA_TYPE_VA, lmr, &local, &remote, &registered, &address);
}

static void regions(void)
{
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
	DAT_VLEN registered = 0;
	DAT_VADDR address = 0;
	DAT_LMR_PARAM param;

	open_sides(NULL);
	region.for_va = a.memory + 100;
	CALL(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, 1000, pz, DAT_MEM_PRIV_ALL_FLAG,
			    DAT_VA_TYPE_VA, &lmr, &local, &remote, &registered, &address));
	print("offset %d, %d bytes, contexts %s", (int)(address - (uintptr_t)a.memory),
	      (int)registered, local == remote ? "equal" : "differ");
	memset(&param, 0, sizeof param);
	CALL(dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, &param));
	print("ia %s, type %d, offset %d, length %d, pz %s, privileges %#x, va_type %d",
	      handle_name(param.ia_handle), param.mem_type,
	      (int)((char *)param.region_desc.for_va - a.memory), (int)param.length,
	      handle_name(param.pz_handle), param.mem_priv, param.va_type);
	print("contexts as created: %d %d, registered %d at offset %d", param.lmr_context == local,
	      param.rmr_context == remote, (int)param.registered_size,
	      (int)(param.registered_address - (uintptr_t)a.memory));
	CALL(dat_lmr_free(lmr));
	CALL(create_lmr(a.memory, 0, DAT_MEM_PRIV_ALL_FLAG, &lmr));
	CALL(create_lmr(NULL, 4096, DAT_MEM_PRIV_ALL_FLAG, &lmr));
	CALL(create_lmr(a.memory, 4096, DAT_MEM_PRIV_NONE_FLAG, &lmr));
	CALL(create_lmr(a.memory, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG, &lmr));
	CALL(create_lmr(a.memory, 4096, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, &lmr));
	CALL(create_lmr(a.memory, 4096, DAT_MEM_PRIV_REMOTE_READ_FLAG, &lmr));
	CALL(create_lmr(a.memory, 4096, (DAT_MEM_PRIV_FLAGS)0x400, &lmr));
	CALL(dat_lmr_free(DAT_HANDLE_NULL));
}

static DAT_RETURN create_region(DAT_IA_HANDLE of, DAT_MEM_TYPE type, DAT_REGION_DESCRIPTION region,
				DAT_PZ_HANDLE zone)
{
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
	DAT_VLEN registered;
	DAT_VADDR address;

	return dat_lmr_create(of, type, region, 4096, zone, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA,
			      &lmr, &local, &remote, &registered, &address);
}

static void region_types(void)
{
	DAT_REGION_DESCRIPTION region;

	open_sides(NULL);
	region.for_lmr_handle = a.lmr;
	CALL(create_region(ia, DAT_MEM_TYPE_LMR, region, pz));
	region.for_va = a.memory;
	CALL(create_region(ia, (DAT_MEM_TYPE)99, region, pz));
	CALL(create_region(ia, DAT_MEM_TYPE_VIRTUAL, region, a.ep));
	CALL(create_region(a.ep, DAT_MEM_TYPE_VIRTUAL, region, pz));
}

static void region_syncs(void)
{
	DAT_LMR_TRIPLET part;

	open_sides(NULL);
	part = local_part(&a, 0, 100);
	CALL(dat_lmr_sync_rdma_read(ia, &part, 1));
	CALL(dat_lmr_sync_rdma_write(ia, &part, 1));
	CALL(dat_lmr_sync_rdma_write(ia, &part, 0));
	CALL(dat_lmr_sync_rdma_write(DAT_HANDLE_NULL, &part, 1));
}

static void windows(void)
{
	DAT_RMR_HANDLE rmr;
	DAT_RMR_PARAM param;

	open_sides(NULL);
	if (CALL(dat_rmr_create(pz, &rmr)) != DAT_SUCCESS)
		return;
	name_handle("rmr", rmr);
	memset(&param, 0, sizeof param);
	CALL(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	print("ia %s, pz %s, privileges %#x", handle_name(param.ia_handle),
	      handle_name(param.pz_handle), param.mem_priv);
	CALL(dat_rmr_free(rmr));
	CALL(dat_rmr_create(DAT_HANDLE_NULL, &rmr));
}

/* --- shared receive queues ---------------------------------------------------------------- */

static void shared_queues(void)
{
	DAT_SRQ_ATTR attr = usual_srq_attributes();
	DAT_SRQ_PARAM param;
	DAT_SRQ_HANDLE srq;
	DAT_EP_ATTR ep_attr = usual_attributes();
	DAT_EP_HANDLE ep;
	DAT_LMR_TRIPLET part;

	open_sides(NULL);
	CALL(dat_srq_create(ia, pz, &attr, &srq));
	name_handle("srq", srq);
	memset(&param, 0, sizeof param);
	CALL(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
	print("ia %s, pz %s, state %d, enough receives %d, available %d, outstanding %d",
	      handle_name(param.ia_handle), handle_name(param.pz_handle), param.srq_state,
	      param.max_recv_dtos >= 8, param.available_dto_count, param.outstanding_dto_count);
	part = local_part(&a, 0, 100);
	CALL(dat_srq_post_recv(srq, 1, &part, cookie(1)));
	CALL(dat_srq_post_recv(srq, 2, &part, cookie(2)));
	CALL(dat_ep_create_with_srq(ia, pz, a.recv, a.request, a.connect, srq, &ep_attr, &ep));
	name_handle("ep", ep);
	CALL(dat_ep_post_recv(ep, 1, &part, cookie(3), DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_srq_free(srq));
	CALL(dat_srq_resize(srq, 16));
	CALL(dat_srq_set_lw(srq, 1));
	CALL(dat_ep_free(ep));
	CALL(dat_srq_free(srq));
	attr.max_recv_dtos = 0;
	CALL(dat_srq_create(ia, pz, &attr, &srq));
}

/* --- endpoints ---------------------------------------------------------------------------- */

static void print_attributes(const DAT_EP_ATTR *attr)
{
	print("service %d, max_message_size %#llx, max_rdma_size %#llx, qos %d", attr->service_type,
	      (unsigned long long)attr->max_message_size, (unsigned long long)attr->max_rdma_size,
	      attr->qos);
	print("completion flags %#x %#x, dtos %d %d, segments %d %d", attr->recv_completion_flags,
	      attr->request_completion_flags, attr->max_recv_dtos, attr->max_request_dtos,
	      attr->max_recv_iov, attr->max_request_iov);
	print("reads %d %d, srq_soft_hw %d, segments of reads %d, of writes %d",
	      attr->max_rdma_read_in, attr->max_rdma_read_out, attr->srq_soft_hw,
	      attr->max_rdma_read_iov, attr->max_rdma_write_iov);
}

static void print_endpoint(DAT_EP_HANDLE ep)
{
	DAT_EP_PARAM param;

	memset(&param, 0, sizeof param);
	CALL(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	print("ia %s, %s, pz %s, recv %s, request %s, connect %s, srq %s",
	      handle_name(param.ia_handle), state_name(param.ep_state),
	      handle_name(param.pz_handle), handle_name(param.recv_evd_handle),
	      handle_name(param.request_evd_handle), handle_name(param.connect_evd_handle),
	      handle_name(param.srq_handle));
	print_attributes(&param.ep_attr);
}

static void ep_query(void)
{
	DAT_EP_HANDLE ep;

	open_sides(NULL);
	print_endpoint(a.ep);
	CALL(dat_ep_create(ia, pz, a.recv, a.request, a.connect, NULL, &ep));
	name_handle("default", ep);
	print_endpoint(ep);
	CALL(dat_ep_query(a.ep, DAT_EP_FIELD_ALL, NULL));
	CALL(dat_ep_query(a.ep, DAT_EP_FIELD_EP_STATE, NULL));
}

static void ep_create(void)
{
	DAT_EP_ATTR attr = usual_attributes();
	DAT_EP_HANDLE ep;

	open_sides(NULL);
	CALL(dat_ep_create(ia, pz, DAT_HANDLE_NULL, DAT_HANDLE_NULL, DAT_HANDLE_NULL, &attr, &ep));
	CALL(dat_ep_create(ia, pz, DAT_HANDLE_NULL, a.request, a.connect, &attr, &ep));
	CALL(dat_ep_create(ia, pz, a.recv, DAT_HANDLE_NULL, a.connect, &attr, &ep));
	CALL(dat_ep_create(ia, pz, a.recv, a.recv, a.connect, &attr, &ep));
	CALL(dat_ep_create(ia, pz, a.connect, a.request, a.connect, &attr, &ep));
	CALL(dat_ep_create(ia, pz, a.recv, a.request, a.recv, &attr, &ep));
	CALL(dat_ep_create(ia, pz, a.recv, a.request, requests, &attr, &ep));
	CALL(dat_ep_create(ia, DAT_HANDLE_NULL, a.recv, a.request, a.connect, &attr, &ep));
	CALL(dat_ep_create(DAT_HANDLE_NULL, pz, a.recv, a.request, a.connect, &attr, &ep));
	CALL(dat_ep_free(DAT_HANDLE_NULL));
}

/* dat_ep_create with one attribute changed. */
#define WITH(member, value)                                                                        \
	do {                                                                                       \
		DAT_EP_ATTR attr = usual_attributes();                                             \
		DAT_EP_HANDLE ep;                                                                  \
		attr.member = (value);                                                             \
		(void)print_call("dat_ep_create with " #member " " #value,                         \
				 dat_ep_create(ia, pz, a.recv, a.request, a.connect, &attr, &ep)); \
	} while (0)

static void ep_create_attributes(void)
{
	DAT_IA_ATTR limits;

	open_sides(NULL);
	NEED(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &limits, 0, NULL));
	WITH(service_type, (DAT_SERVICE_TYPE)0);
	WITH(service_type, (DAT_SERVICE_TYPE)9);
	WITH(max_message_size, 0);
	WITH(max_message_size, limits.max_message_size);
	WITH(max_rdma_size, 0);
	WITH(max_rdma_size, limits.max_rdma_size);
	WITH(qos, DAT_QOS_LOW_LATENCY);
	WITH(qos, (DAT_QOS)0x4000);
	WITH(recv_completion_flags, DAT_COMPLETION_UNSIGNALLED_FLAG);
	WITH(recv_completion_flags, DAT_COMPLETION_SOLICITED_WAIT_FLAG);
	WITH(recv_completion_flags, DAT_COMPLETION_EVD_THRESHOLD_FLAG);
	WITH(recv_completion_flags, DAT_COMPLETION_SUPPRESS_FLAG);
	WITH(request_completion_flags, DAT_COMPLETION_UNSIGNALLED_FLAG);
	WITH(request_completion_flags, DAT_COMPLETION_SUPPRESS_FLAG);
	WITH(request_completion_flags, DAT_COMPLETION_EVD_THRESHOLD_FLAG);
	WITH(request_completion_flags, (DAT_COMPLETION_FLAGS)0x4000);
	WITH(max_recv_dtos, 0);
	WITH(max_recv_dtos, -1);
	WITH(max_recv_dtos, limits.max_dto_per_ep + 1);
	WITH(max_request_dtos, 0);
	WITH(max_request_dtos, limits.max_dto_per_ep + 1);
	WITH(max_recv_iov, 0);
	WITH(max_recv_iov, limits.max_iov_segments_per_dto + 1);
	WITH(max_request_iov, 0);
	WITH(max_request_iov, limits.max_iov_segments_per_dto + 1);
	WITH(max_rdma_read_in, 0);
	WITH(max_rdma_read_in, limits.max_rdma_read_per_ep_in + 1);
	WITH(max_rdma_read_out, 0);
	WITH(max_rdma_read_out, limits.max_rdma_read_per_ep_out + 1);
	WITH(max_rdma_read_iov, 0);
	WITH(max_rdma_write_iov, 0);
	WITH(srq_soft_hw, 5);
	WITH(ep_transport_specific_count, 1);
}

static void ep_modify(void)
{
	DAT_EP_PARAM param;

	open_sides(NULL);
	memset(&param, 0, sizeof param);
	param.ep_attr = usual_attributes();
	param.ep_attr.max_message_size = 4096;
	CALL(dat_ep_modify(a.ep, DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, &param));
	print_endpoint(a.ep);
	param.ep_attr.max_recv_dtos = 16;
	CALL(dat_ep_modify(a.ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &param));
	param.pz_handle = pz;
	CALL(dat_ep_modify(a.ep, DAT_EP_FIELD_PZ_HANDLE, &param));
	CALL(dat_ep_modify(a.ep, DAT_EP_FIELD_IA_HANDLE, &param));
	CALL(dat_ep_modify(a.ep, DAT_EP_FIELD_EP_STATE, &param));
	CALL(dat_ep_modify(a.ep, (DAT_EP_PARAM_MASK)0, &param));
	CALL(dat_ep_modify(a.ep, DAT_EP_FIELD_PZ_HANDLE, NULL));
	param.recv_evd_handle = b.recv;
	CALL(dat_ep_modify(a.ep, DAT_EP_FIELD_RECV_EVD_HANDLE, &param));
	param.request_evd_handle = b.request;
	CALL(dat_ep_modify(a.ep, DAT_EP_FIELD_REQUEST_EVD_HANDLE, &param));
	param.connect_evd_handle = b.connect;
	CALL(dat_ep_modify(a.ep, DAT_EP_FIELD_CONNECT_EVD_HANDLE, &param));
	print_endpoint(a.ep);
}

static void ep_without_a_connection(void)
{
	open_sides(NULL);
	STATE(a);
	CALL(post_recv(&a, 0, 100, 1));
	STATE(a);
	CALL(post_send(&a, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(post_write(&a, &b, 100, 3, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(post_read(&a, &b, 100, 4, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_GRACEFUL_FLAG));
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	NO_EVENT(a.connect);
	CALL(dat_ep_reset(a.ep));
	STATE(a);
	CALL(dat_ep_get_status(a.ep, NULL, NULL, NULL));
	CALL(dat_ep_free(a.ep));
	NO_EVENT(a.recv);
}

static void post_arguments(void)
{
	DAT_LMR_TRIPLET parts[4];
	DAT_RMR_TRIPLET there;

	open_connection(NULL);
	for (int i = 0; i < 4; i++)
		parts[i] = local_part(&a, (size_t)i * 100, 100);
	there = remote_part(&b, 0, 300);
	CALL(dat_ep_post_recv(a.ep, 3, parts, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_post_recv(a.ep, -1, parts, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_post_recv(a.ep, 1, parts, cookie(1), (DAT_COMPLETION_FLAGS)0x4000));
	CALL(dat_ep_post_send(a.ep, 3, parts, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_post_rdma_write(a.ep, 3, parts, cookie(1), &there,
				    DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_post_rdma_read(a.ep, 3, parts, cookie(1), &there, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_post_recv(DAT_HANDLE_NULL, 1, parts, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_post_rdma_write(a.ep, 1, parts, cookie(1), NULL, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_post_rdma_read(a.ep, 1, parts, cookie(1), NULL, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_post_send(a.ep, 1, NULL, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_post_recv(a.ep, 1, NULL, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	STATE(a);
	NO_EVENT(a.request);
}

const struct scenario endpoints[] = {
	{ "regions", regions },
	{ "region_types", region_types },
	{ "region_syncs", region_syncs },
	{ "windows", windows },
	{ "shared_queues", shared_queues },
	{ "ep_query", ep_query },
	{ "ep_create", ep_create },
	{ "ep_create_attributes", ep_create_attributes },
	{ "ep_modify", ep_modify },
	{ "ep_without_a_connection", ep_without_a_connection },
	{ "post_arguments", post_arguments },
	{ NULL, NULL },
};
