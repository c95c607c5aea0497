/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The registry, IAs, zones, handles and service points. */
#include "behaviour.h"

#include <string.h>

/* --- the registry and the IA -------------------------------------------------------------- */

static void strerror_of_each(void)
{
	static const DAT_RETURN others[] = { 0x3fff0000, 0x7fff0000, 0x00060000 | 0xffff };
	const char *major, *minor;
	DAT_RETURN code;

	for (unsigned type = 0; type <= 0x19; type++) {
		major = minor = "(not set)";
		code = dat_strerror((DAT_RETURN)(type << 16), &major, &minor);
		print("%#x = %#x %s \"%s\"", type << 16, (unsigned)code, major, minor);
	}
	for (unsigned subtype = 0; subtype <= 0x60; subtype++) {
		major = minor = "(not set)";
		code = dat_strerror((DAT_RETURN)(0x60000 | subtype), &major, &minor);
		print("%#x = %#x %s \"%s\"", 0x60000 | subtype, (unsigned)code, major, minor);
	}
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		major = minor = "(not set)";
		code = dat_strerror(others[i], &major, &minor);
		print("%#x = %#x %s \"%s\"", (unsigned)others[i], (unsigned)code, major, minor);
	}
}

static void ia_open(void)
{
	DAT_EVD_HANDLE second = DAT_HANDLE_NULL;
	DAT_IA_HANDLE other;

	CALL(dat_ia_open((DAT_NAME_PTR) "no such IA", 8, &async, &ia));
	CALL(dat_ia_open(ia_name, -1, &async, &ia));
	async = DAT_HANDLE_NULL;
	CALL(dat_ia_open(ia_name, 0, &async, &ia));
	CALL(dat_ia_open(ia_name, 8, &second, &other));
	print("the same IA: %d, the same EVD: %d", ia == other, async == second);
	CALL(dat_ia_close(other, DAT_CLOSE_GRACEFUL_FLAG));
	CALL(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
}

static void ia_close_busy(void)
{
	open_all();
	CALL(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
	CALL(dat_pz_free(pz));
	CALL(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
	CALL(dat_evd_free(requests));
	CALL(dat_ia_close(ia, (DAT_CLOSE_FLAGS)77));
	CALL(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

static void ia_query(void)
{
	DAT_IA_ATTR attr;
	DAT_PROVIDER_ATTR provider;
	DAT_EVD_HANDLE evd;

	open_all();
	memset(&attr, 0, sizeof attr);
	memset((void *)&provider, 0, sizeof provider);
	CALL(dat_ia_query(ia, &evd, DAT_IA_FIELD_ALL, &attr, DAT_PROVIDER_FIELD_ALL, &provider));
	print("async_evd %s, adapter_name %s, address family %d", handle_name(evd),
	      attr.adapter_name, attr.ia_address_ptr->sa_family);
	print("max_eps %d, max_dto_per_ep %d, reads per endpoint in %d out %d", attr.max_eps,
	      attr.max_dto_per_ep, attr.max_rdma_read_per_ep_in, attr.max_rdma_read_per_ep_out);
	print("max_evds %d, max_evd_qlen %d, max_iov_segments_per_dto %d, read %d, write %d",
	      attr.max_evds, attr.max_evd_qlen, attr.max_iov_segments_per_dto,
	      attr.max_iov_segments_per_rdma_read, attr.max_iov_segments_per_rdma_write);
	print("max_lmrs %d, max_lmr_block_size %#llx, max_lmr_virtual_address %#llx", attr.max_lmrs,
	      (unsigned long long)attr.max_lmr_block_size,
	      (unsigned long long)attr.max_lmr_virtual_address);
	print("max_pzs %d, max_message_size %#llx, max_rdma_size %#llx", attr.max_pzs,
	      (unsigned long long)attr.max_message_size, (unsigned long long)attr.max_rdma_size);
	print("max_rmrs %d, max_rmr_target_address %#llx", attr.max_rmrs,
	      (unsigned long long)attr.max_rmr_target_address);
	print("max_srqs %d, max_ep_per_srq %d, max_recv_per_srq %d", attr.max_srqs,
	      attr.max_ep_per_srq, attr.max_recv_per_srq);
	print("reads of the IA in %d out %d, guaranteed %d %d, zero-based %d",
	      attr.max_rdma_read_in, attr.max_rdma_read_out,
	      attr.max_rdma_read_per_ep_in_guaranteed, attr.max_rdma_read_per_ep_out_guaranteed,
	      attr.zb_supported);
	print("extension %d, version %d", attr.extension_supported, attr.extension_version);
	print("lmr_mem_types_supported %#x, iov_ownership %d, qos %#x, completion flags %#x",
	      provider.lmr_mem_types_supported, provider.iov_ownership_on_return,
	      provider.dat_qos_supported, provider.completion_flags_supported);
	print("dapl version %u.%u, thread-safe %d, max_private_data_size %d, multipath %d",
	      provider.dapl_version_major, provider.dapl_version_minor, provider.is_thread_safe,
	      provider.max_private_data_size, provider.supports_multipath);
	print("ep_creator %d, pz_support %d, optimal_buffer_alignment %u", provider.ep_creator,
	      provider.pz_support, provider.optimal_buffer_alignment);
	print("srq %d, watermarks %d, zones differ %d, srq_info %d, ep_recv_info %d",
	      provider.srq_supported, provider.srq_watermarks_supported,
	      provider.srq_ep_pz_difference_supported, provider.srq_info_supported,
	      provider.ep_recv_info_supported);
	print("lmr_sync_req %d, dto_async_return_guaranteed %d, write for read %d, exposure %d",
	      provider.lmr_sync_req, provider.dto_async_return_guaranteed,
	      provider.rdma_write_for_rdma_read_req, provider.rdma_read_lmr_rmr_context_exposure);
	print("rmr_scope %d, signal-safe %d, ha %d %d", provider.rmr_scope_supported,
	      provider.is_signal_safe, provider.ha_supported, provider.ha_loadbalancing);
	for (int kind = 0; kind < 6; kind++)
		print("kind of event %d merges with %d %d %d %d %d %d", kind,
		      provider.evd_stream_merging_supported[kind][0],
		      provider.evd_stream_merging_supported[kind][1],
		      provider.evd_stream_merging_supported[kind][2],
		      provider.evd_stream_merging_supported[kind][3],
		      provider.evd_stream_merging_supported[kind][4],
		      provider.evd_stream_merging_supported[kind][5]);
}

static void ia_named_attributes(void)
{
	DAT_IA_ATTR attr;
	DAT_PROVIDER_ATTR provider;

	open_all();
	memset(&attr, 0, sizeof attr);
	memset((void *)&provider, 0, sizeof provider);
	CALL(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attr, DAT_PROVIDER_FIELD_ALL, &provider));
	for (int i = 0; i < attr.num_transport_attr; i++)
		print("transport: %s = %s", attr.transport_attr[i].name,
		      attr.transport_attr[i].value);
	for (int i = 0; i < attr.num_vendor_attr; i++)
		print("vendor: %s", attr.vendor_attr[i].name);
	for (int i = 0; i < provider.num_provider_specific_attr; i++)
		print("provider: %s = %s", provider.provider_specific_attr[i].name,
		      provider.provider_specific_attr[i].value);
}

static void ia_query_arguments(void)
{
	DAT_IA_ATTR attr;
	DAT_PROVIDER_ATTR provider;

	open_all();
	CALL(dat_ia_query(ia, NULL, 0, NULL, 0, NULL));
	CALL(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, NULL, 0, NULL));
	CALL(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, NULL));
	CALL(dat_ia_query(ia, NULL, 0, &attr, 0, &provider));
	CALL(dat_ia_query(DAT_HANDLE_NULL, NULL, 0, NULL, 0, NULL));
}

/* --- zones, contexts and handles ---------------------------------------------------------- */

static void zones(void)
{
	DAT_PZ_PARAM param;
	DAT_PZ_HANDLE zone;

	open_all();
	CALL(dat_pz_create(ia, &zone));
	memset(&param, 0, sizeof param);
	CALL(dat_pz_query(zone, DAT_PZ_FIELD_ALL, &param));
	print("ia_handle %s", handle_name(param.ia_handle));
	CALL(dat_pz_query(zone, DAT_PZ_FIELD_ALL, NULL));
	CALL(dat_pz_free(zone));
	CALL(dat_pz_free(DAT_HANDLE_NULL));
	CALL(dat_pz_create(DAT_HANDLE_NULL, &zone));
}

static void zone_in_use(void)
{
	open_sides(NULL);
	CALL(dat_pz_free(pz));
	CALL(dat_lmr_free(a.lmr));
	CALL(dat_lmr_free(b.lmr));
	CALL(dat_pz_free(pz));
	CALL(dat_ep_free(a.ep));
	CALL(dat_ep_free(b.ep));
	CALL(dat_pz_free(pz));
}

static void consumer_contexts(void)
{
	DAT_CONTEXT context = { .as_64 = 12 };

	open_sides(NULL);
	CALL(dat_get_consumer_context(a.ep, &context));
	print("context %llu", (unsigned long long)context.as_64);
	context.as_64 = 77;
	CALL(dat_set_consumer_context(a.ep, context));
	context.as_64 = 0;
	CALL(dat_get_consumer_context(a.ep, &context));
	print("context %llu", (unsigned long long)context.as_64);
	CALL(dat_set_consumer_context(ia, context));
	CALL(dat_set_consumer_context(DAT_HANDLE_NULL, context));
	CALL(dat_get_consumer_context(a.ep, NULL));
}

static void handle_types(void)
{
	DAT_HANDLE_TYPE type = (DAT_HANDLE_TYPE)99;

	open_listener(NULL);
	CALL(dat_get_handle_type(ia, &type));
	print("%d", type);
	CALL(dat_get_handle_type(async, &type));
	print("%d", type);
	CALL(dat_get_handle_type(a.ep, &type));
	print("%d", type);
	CALL(dat_get_handle_type(a.lmr, &type));
	print("%d", type);
	CALL(dat_get_handle_type(pz, &type));
	print("%d", type);
	CALL(dat_get_handle_type(psp, &type));
	print("%d", type);
	CALL(dat_get_handle_type(a.ep, NULL));
	CALL(dat_get_handle_type(DAT_HANDLE_NULL, &type));
}

static void handles_of_other_objects(void)
{
	DAT_EP_STATE state;
	DAT_EVENT event;

	open_listener(NULL);
	CALL(dat_ep_get_status(pz, &state, NULL, NULL));
	CALL(dat_evd_dequeue(a.ep, &event));
	CALL(dat_lmr_free(a.ep));
	CALL(dat_psp_free(a.ep));
	CALL(dat_ep_free(psp));
	CALL(dat_pz_create(a.ep, &pz));
	CALL(dat_ep_disconnect(a.lmr, DAT_CLOSE_ABRUPT_FLAG));
}

/* --- service points ----------------------------------------------------------------------- */

static void service_points(void)
{
	DAT_PSP_HANDLE second;
	DAT_PSP_PARAM param;
	DAT_CONN_QUAL any = 0;

	open_listener(NULL);
	CALL(dat_psp_create(ia, qualifier, requests, DAT_PSP_CONSUMER_FLAG, &second));
	memset(&param, 0, sizeof param);
	CALL(dat_psp_query(psp, DAT_PSP_FIELD_ALL, &param));
	print("ia %s, qualifier %s, evd %s, flags %d", handle_name(param.ia_handle),
	      param.conn_qual == qualifier ? "the same" : "another", handle_name(param.evd_handle),
	      param.psp_flags);
	CALL(dat_psp_free(psp));
	CALL(dat_psp_create(ia, qualifier, requests, DAT_PSP_CONSUMER_FLAG, &psp));
	CALL(dat_psp_create_any(ia, &any, requests, DAT_PSP_CONSUMER_FLAG, &second));
	print("between 1 and 65535: %d", any >= 1 && any <= 65535);
	CALL(dat_psp_free(second));
	CALL(dat_psp_create(ia, 0, requests, DAT_PSP_CONSUMER_FLAG, &second));
	CALL(dat_psp_create(ia, 30000, async, DAT_PSP_CONSUMER_FLAG, &second));
	CALL(dat_psp_create(ia, 30001, a.recv, DAT_PSP_CONSUMER_FLAG, &second));
	CALL(dat_psp_create(ia, 30002, requests, (DAT_PSP_FLAGS)5, &second));
	CALL(dat_psp_create(ia, 30003, DAT_HANDLE_NULL, DAT_PSP_CONSUMER_FLAG, &second));
	CALL(dat_psp_create(ia, 30004, requests, DAT_PSP_PROVIDER_FLAG, &second));
	CALL(dat_psp_free(DAT_HANDLE_NULL));
}

static void reserved_service_points(void)
{
	DAT_RSP_HANDLE rsp;
	DAT_RSP_PARAM param;

	open_sides(NULL);
	CALL(dat_rsp_create(ia, 30010, b.ep, requests, &rsp));
	STATE(b);
	memset(&param, 0, sizeof param);
	CALL(dat_rsp_query(rsp, DAT_RSP_FIELD_ALL, &param));
	print("ep %s", handle_name(param.ep_handle));
	CALL(dat_rsp_free(rsp));
	STATE(b);
}

const struct scenario objects[] = {
	{ "strerror", strerror_of_each },
	{ "ia_open", ia_open },
	{ "ia_close_busy", ia_close_busy },
	{ "ia_query", ia_query },
	{ "ia_named_attributes", ia_named_attributes },
	{ "ia_query_arguments", ia_query_arguments },
	{ "zones", zones },
	{ "zone_in_use", zone_in_use },
	{ "consumer_contexts", consumer_contexts },
	{ "handle_types", handle_types },
	{ "handles_of_other_objects", handles_of_other_objects },
	{ "service_points", service_points },
	{ "reserved_service_points", reserved_service_points },
	{ NULL, NULL },
};
