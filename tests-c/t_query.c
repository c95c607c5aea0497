/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The masks and structures of all queries: dat_ia_query(3DAT), dat_pz_query(3DAT), and those of the
 * other objects. What the values have to be is in the programs of the objects. */
#include "common.h"

#include <stddef.h>
#include <string.h>

/* A value that a bit of the mask asks for. */
struct field {
	const char *name;
	DAT_UINT64 bit;
	size_t at, size;
};

#define FIELD(type, bit, member)                                                          \
	{                                                                                 \
#member, bit, offsetof(type, member), sizeof(((type *)(void *)0)->member) \
	}

typedef DAT_RETURN (*query_fn)(DAT_HANDLE handle, DAT_UINT64 mask, void *to);

struct query {
	query_fn call;
	size_t size;
	DAT_UINT64 all;
	/* Bits that the type of the mask has. */
	int bits;
	const struct field *fields;
	size_t count;
};

enum { LARGEST = 2048 };

static bool only(const unsigned char *bytes, size_t size, unsigned char value)
{
	for (size_t i = 0; i < size; i++)
		if (bytes[i] != value)
			return false;
	return true;
}

/* Each bit of the mask gets its value, alone or with all others; a mask with another bit is refused,
 * whatever else it asks for, and so is a structure that is not there; a refused query writes nothing. */
static void check_query(const struct query *q, DAT_HANDLE handle)
{
	_Alignas(16) unsigned char whole[LARGEST], again[LARGEST], one[LARGEST];

	REQUIRE(q->size <= LARGEST);
	memset(whole, 0x5a, sizeof whole);
	memset(again, 0xa5, sizeof again);
	CHECK_RET(q->call(handle, q->all, whole), DAT_SUCCESS);
	CHECK_RET(q->call(handle, q->all, again), DAT_SUCCESS);
	/* Nothing beside the structure. */
	CHECK(only(whole + q->size, sizeof whole - q->size, 0x5a));
	for (size_t i = 0; i < q->count; i++) {
		const struct field *f = &q->fields[i];

		if (memcmp(whole + f->at, again + f->at, f->size) != 0)
			tap_fail(__FILE__, __LINE__, "all: %s is not written", f->name);
		memset(one, 0xa5, sizeof one);
		CHECK_RET(q->call(handle, f->bit, one), DAT_SUCCESS);
		if (memcmp(whole + f->at, one + f->at, f->size) != 0)
			tap_fail(__FILE__, __LINE__, "its bit alone: %s is another", f->name);
		CHECK_RET(q->call(handle, f->bit, NULL), DAT_INVALID_PARAMETER);
	}
	CHECK_RET(q->call(handle, q->all, NULL), DAT_INVALID_PARAMETER);
	for (int bit = 0; bit < q->bits; bit++) {
		DAT_UINT64 other = (DAT_UINT64)1 << bit;

		if (q->all & other)
			continue;
		memset(one, 0xa5, sizeof one);
		CHECK_RET(q->call(handle, other, one), DAT_INVALID_PARAMETER);
		CHECK_RET(q->call(handle, q->all | other, one), DAT_INVALID_PARAMETER);
		CHECK(only(one, sizeof one, 0xa5));
	}
	memset(one, 0xa5, sizeof one);
	CHECK_RET(q->call(DAT_HANDLE_NULL, q->all, one), DAT_INVALID_HANDLE);
	CHECK(only(one, sizeof one, 0xa5));
}

/* --- the queries ------------------------------------------------------------------------------- */

#define QUERY(name, NAME, all_bits, ...)                                              \
	static DAT_RETURN call_##name(DAT_HANDLE handle, DAT_UINT64 mask, void *to)   \
	{                                                                             \
		return dat_##name##_query(handle, (DAT_##NAME##_PARAM_MASK)mask, to); \
	}                                                                             \
	static const struct field name##_fields[] = { __VA_ARGS__ };                  \
	static const struct query name##_query = {                                    \
		call_##name,   sizeof(DAT_##NAME##_PARAM),                            \
		all_bits,      8 * sizeof(DAT_##NAME##_PARAM_MASK),                   \
		name##_fields, sizeof name##_fields / sizeof *name##_fields,          \
	};

/* clang-format off */
#define PZ(bit, member) FIELD(DAT_PZ_PARAM, DAT_PZ_FIELD_##bit, member)
QUERY(pz, PZ, DAT_PZ_FIELD_ALL,
	PZ(IA_HANDLE, ia_handle))

#define EVD(bit, member) FIELD(DAT_EVD_PARAM, DAT_EVD_FIELD_##bit, member)
QUERY(evd, EVD, DAT_EVD_FIELD_ALL,
	EVD(IA_HANDLE, ia_handle), EVD(EVD_QLEN, evd_qlen), EVD(EVD_STATE, evd_state),
	EVD(CNO, cno_handle), EVD(EVD_FLAGS, evd_flags))

#define CNO(bit, member) FIELD(DAT_CNO_PARAM, DAT_CNO_FIELD_##bit, member)
#ifdef DAT2
/* The values of this mask are no bits: PROXY is 3, and ALL is 4. */
QUERY(cno, CNO, 7,
	CNO(IA_HANDLE, ia_handle), CNO(PROXY_TYPE, proxy_type), CNO(PROXY, proxy),
	CNO(ALL, ia_handle), CNO(ALL, proxy_type), CNO(ALL, proxy))
#else
QUERY(cno, CNO, DAT_CNO_FIELD_ALL,
	CNO(IA_HANDLE, ia_handle), CNO(AGENT, agent))
#endif

#define LMR(bit, member) FIELD(DAT_LMR_PARAM, DAT_LMR_FIELD_##bit, member)
QUERY(lmr, LMR, DAT_LMR_FIELD_ALL,
	LMR(IA_HANDLE, ia_handle), LMR(MEM_TYPE, mem_type), LMR(REGION_DESC, region_desc.for_va),
	LMR(LENGTH, length), LMR(PZ_HANDLE, pz_handle), LMR(MEM_PRIV, mem_priv),
#ifdef DAT2
	LMR(VA_TYPE, va_type),
#endif
	LMR(LMR_CONTEXT, lmr_context), LMR(RMR_CONTEXT, rmr_context),
	LMR(REGISTERED_SIZE, registered_size), LMR(REGISTERED_ADDRESS, registered_address))

#define RMR(bit, member) FIELD(DAT_RMR_PARAM, DAT_RMR_FIELD_##bit, member)
QUERY(rmr, RMR, DAT_RMR_FIELD_ALL,
#ifdef DAT2
	RMR(RMR_SCOPE, rmr_scope), RMR(VA_TYPE, va_type),
#endif
	RMR(IA_HANDLE, ia_handle), RMR(PZ_HANDLE, pz_handle))

#define PSP(bit, member) FIELD(DAT_PSP_PARAM, DAT_PSP_FIELD_##bit, member)
QUERY(psp, PSP, DAT_PSP_FIELD_ALL,
	PSP(IA_HANDLE, ia_handle), PSP(CONN_QUAL, conn_qual), PSP(EVD_HANDLE, evd_handle),
	PSP(PSP_FLAGS, psp_flags))

#define RSP(bit, member) FIELD(DAT_RSP_PARAM, DAT_RSP_FIELD_##bit, member)
QUERY(rsp, RSP, DAT_RSP_FIELD_ALL,
	RSP(IA_HANDLE, ia_handle), RSP(CONN_QUAL, conn_qual), RSP(EVD_HANDLE, evd_handle),
	RSP(EP_HANDLE, ep_handle))

#define CR(bit, member) FIELD(DAT_CR_PARAM, DAT_CR_FIELD_##bit, member)
QUERY(cr, CR, DAT_CR_FIELD_ALL,
	CR(REMOTE_IA_ADDRESS_PTR, remote_ia_address_ptr), CR(REMOTE_PORT_QUAL, remote_port_qual),
	CR(PRIVATE_DATA_SIZE, private_data_size), CR(PRIVATE_DATA, private_data),
	CR(LOCAL_EP_HANDLE, local_ep_handle))

#define SRQ(bit, member) FIELD(DAT_SRQ_PARAM, DAT_SRQ_FIELD_##bit, member)
QUERY(srq, SRQ, DAT_SRQ_FIELD_ALL,
	SRQ(IA_HANDLE, ia_handle), SRQ(SRQ_STATE, srq_state), SRQ(PZ_HANDLE, pz_handle),
	SRQ(MAX_RECV_DTO, max_recv_dtos), SRQ(MAX_RECV_IOV, max_recv_iov),
	SRQ(LOW_WATERMARK, low_watermark), SRQ(AVAILABLE_DTO_COUNT, available_dto_count),
	SRQ(OUTSTANDING_DTO_COUNT, outstanding_dto_count))

#define EP(bit, member) FIELD(DAT_EP_PARAM, DAT_EP_FIELD_##bit, member)
#define EP_ATTR(bit, member) EP(EP_ATTR_##bit, ep_attr.member)
QUERY(ep, EP, DAT_EP_FIELD_ALL,
	EP(IA_HANDLE, ia_handle), EP(EP_STATE, ep_state),
	EP(LOCAL_IA_ADDRESS_PTR, local_ia_address_ptr), EP(LOCAL_PORT_QUAL, local_port_qual),
	EP(REMOTE_IA_ADDRESS_PTR, remote_ia_address_ptr), EP(REMOTE_PORT_QUAL, remote_port_qual),
	EP(PZ_HANDLE, pz_handle), EP(RECV_EVD_HANDLE, recv_evd_handle),
	EP(REQUEST_EVD_HANDLE, request_evd_handle), EP(CONNECT_EVD_HANDLE, connect_evd_handle),
	EP(SRQ_HANDLE, srq_handle), EP_ATTR(SERVICE_TYPE, service_type),
	EP_ATTR(MAX_MESSAGE_SIZE, max_message_size), EP_ATTR(MAX_RDMA_SIZE, max_rdma_size),
	EP_ATTR(QOS, qos), EP_ATTR(RECV_COMPLETION_FLAGS, recv_completion_flags),
	EP_ATTR(REQUEST_COMPLETION_FLAGS, request_completion_flags),
	EP_ATTR(MAX_RECV_DTOS, max_recv_dtos), EP_ATTR(MAX_REQUEST_DTOS, max_request_dtos),
	EP_ATTR(MAX_RECV_IOV, max_recv_iov), EP_ATTR(MAX_REQUEST_IOV, max_request_iov),
	EP_ATTR(MAX_RDMA_READ_IN, max_rdma_read_in), EP_ATTR(MAX_RDMA_READ_OUT, max_rdma_read_out),
	EP_ATTR(SRQ_SOFT_HW, srq_soft_hw), EP_ATTR(MAX_RDMA_READ_IOV, max_rdma_read_iov),
	EP_ATTR(MAX_RDMA_WRITE_IOV, max_rdma_write_iov),
	EP_ATTR(NUM_TRANSPORT_ATTR, ep_transport_specific_count),
	EP_ATTR(TRANSPORT_SPECIFIC_ATTR, ep_transport_specific),
	EP_ATTR(NUM_PROVIDER_ATTR, ep_provider_specific_count),
	EP_ATTR(PROVIDER_SPECIFIC_ATTR, ep_provider_specific))

#define IA(bit, member) FIELD(DAT_IA_ATTR, DAT_IA_FIELD_IA_##bit, member)
static const struct field ia_fields[] = {
	IA(ADAPTER_NAME, adapter_name), IA(VENDOR_NAME, vendor_name),
	IA(HARDWARE_MAJOR_VERSION, hardware_version_major),
	IA(HARDWARE_MINOR_VERSION, hardware_version_minor),
	IA(FIRMWARE_MAJOR_VERSION, firmware_version_major),
	IA(FIRMWARE_MINOR_VERSION, firmware_version_minor), IA(ADDRESS_PTR, ia_address_ptr),
	IA(MAX_EPS, max_eps), IA(MAX_DTO_PER_EP, max_dto_per_ep),
	IA(MAX_RDMA_READ_PER_EP_IN, max_rdma_read_per_ep_in),
	IA(MAX_RDMA_READ_PER_EP_OUT, max_rdma_read_per_ep_out), IA(MAX_EVDS, max_evds),
	IA(MAX_EVD_QLEN, max_evd_qlen), IA(MAX_IOV_SEGMENTS_PER_DTO, max_iov_segments_per_dto),
	IA(MAX_LMRS, max_lmrs), IA(MAX_LMR_BLOCK_SIZE, max_lmr_block_size),
	IA(MAX_LMR_VIRTUAL_ADDRESS, max_lmr_virtual_address), IA(MAX_PZS, max_pzs),
	IA(MAX_MESSAGE_SIZE, max_message_size), IA(MAX_RDMA_SIZE, max_rdma_size),
	IA(MAX_RMRS, max_rmrs), IA(MAX_RMR_TARGET_ADDRESS, max_rmr_target_address),
	IA(MAX_SRQS, max_srqs), IA(MAX_EP_PER_SRQ, max_ep_per_srq),
	IA(MAX_RECV_PER_SRQ, max_recv_per_srq),
	IA(MAX_IOV_SEGMENTS_PER_RDMA_READ, max_iov_segments_per_rdma_read),
	IA(MAX_IOV_SEGMENTS_PER_RDMA_WRITE, max_iov_segments_per_rdma_write),
	IA(MAX_RDMA_READ_IN, max_rdma_read_in), IA(MAX_RDMA_READ_OUT, max_rdma_read_out),
	IA(MAX_RDMA_READ_PER_EP_IN_GUARANTEED, max_rdma_read_per_ep_in_guaranteed),
	IA(MAX_RDMA_READ_PER_EP_OUT_GUARANTEED, max_rdma_read_per_ep_out_guaranteed),
#ifdef DAT2
	IA(ZB_SUPPORTED, zb_supported), IA(EXTENSION, extension_supported),
	IA(EXTENSION_VERSION, extension_version),
#endif
	IA(NUM_TRANSPORT_ATTR, num_transport_attr), IA(TRANSPORT_ATTR, transport_attr),
	IA(NUM_VENDOR_ATTR, num_vendor_attr), IA(VENDOR_ATTR, vendor_attr),
};

#define PROVIDER(bit, member) FIELD(DAT_PROVIDER_ATTR, DAT_PROVIDER_FIELD_##bit, member)
static const struct field provider_fields[] = {
	PROVIDER(PROVIDER_NAME, provider_name),
	PROVIDER(PROVIDER_VERSION_MAJOR, provider_version_major),
	PROVIDER(PROVIDER_VERSION_MINOR, provider_version_minor),
	PROVIDER(DAPL_VERSION_MAJOR, dapl_version_major),
	PROVIDER(DAPL_VERSION_MINOR, dapl_version_minor),
	PROVIDER(LMR_MEM_TYPE_SUPPORTED, lmr_mem_types_supported),
	PROVIDER(IOV_OWNERSHIP, iov_ownership_on_return),
	PROVIDER(DAT_QOS_SUPPORTED, dat_qos_supported),
	PROVIDER(COMPLETION_FLAGS_SUPPORTED, completion_flags_supported),
	PROVIDER(IS_THREAD_SAFE, is_thread_safe),
	PROVIDER(MAX_PRIVATE_DATA_SIZE, max_private_data_size),
	PROVIDER(SUPPORTS_MULTIPATH, supports_multipath), PROVIDER(EP_CREATOR, ep_creator),
	PROVIDER(PZ_SUPPORT, pz_support),
	PROVIDER(OPTIMAL_BUFFER_ALIGNMENT, optimal_buffer_alignment),
	PROVIDER(EVD_STREAM_MERGING_SUPPORTED, evd_stream_merging_supported),
	PROVIDER(SRQ_SUPPORTED, srq_supported),
	PROVIDER(SRQ_WATERMARKS_SUPPORTED, srq_watermarks_supported),
	PROVIDER(SRQ_EP_PZ_DIFFERENCE_SUPPORTED, srq_ep_pz_difference_supported),
	PROVIDER(SRQ_INFO_SUPPORTED, srq_info_supported),
	PROVIDER(EP_RECV_INFO_SUPPORTED, ep_recv_info_supported),
	PROVIDER(LMR_SYNC_REQ, lmr_sync_req),
	PROVIDER(DTO_ASYNC_RETURN_GUARANTEED, dto_async_return_guaranteed),
	PROVIDER(RDMA_WRITE_FOR_RDMA_READ_REQ, rdma_write_for_rdma_read_req),
	PROVIDER(NUM_PROVIDER_SPECIFIC_ATTR, num_provider_specific_attr),
	PROVIDER(PROVIDER_SPECIFIC_ATTR, provider_specific_attr),
};
/* clang-format on */

static DAT_RETURN call_ia(DAT_HANDLE handle, DAT_UINT64 mask, void *to)
{
	return dat_ia_query(handle, NULL, mask, to, 0, NULL);
}

static DAT_RETURN call_provider(DAT_HANDLE handle, DAT_UINT64 mask, void *to)
{
	return dat_ia_query(handle, NULL, 0, NULL, mask, to);
}

static const struct query ia_query = {
	call_ia, sizeof(DAT_IA_ATTR), DAT_IA_FIELD_ALL,
	64,	 ia_fields,	      sizeof ia_fields / sizeof *ia_fields,
};

/* Existing providers take any bits of this mask, and so does ours. */
static const struct query provider_query = {
	call_provider,		sizeof(DAT_PROVIDER_ATTR),
	DAT_PROVIDER_FIELD_ALL, 0,
	provider_fields,	sizeof provider_fields / sizeof *provider_fields,
};

/* --- the tests ---------------------------------------------------------------------------------- */

static struct rig rig;

static void query__ia(void)
{
	rig_up(&rig);
	check_query(&ia_query, rig.ia);
	rig_down(&rig);
}

static void query__provider(void)
{
	rig_up(&rig);
	check_query(&provider_query, rig.ia);
	rig_down(&rig);
}

/* Both structures and the EVD in one call. */
static void query__ia_all_at_once(void)
{
	DAT_PROVIDER_ATTR provider;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_ATTR attr;

	rig_up(&rig);
	memset(&attr, 0xa5, sizeof attr);
	memset(&provider, 0xa5, sizeof provider);
	OK(dat_ia_query(rig.ia, &evd, DAT_IA_FIELD_IA_MAX_EPS, &attr,
			DAT_PROVIDER_FIELD_SRQ_SUPPORTED, &provider));
	CHECK(evd == rig.async_evd);
	CHECK_EQ(attr.max_eps, rig.attr.max_eps);
	CHECK_EQ(provider.srq_supported, rig.provider.srq_supported);
	rig_down(&rig);
}

/* The attributes are those of the adapter, whoever has opened it. */
static void query__ia_alike_for_all_instances(void)
{
	DAT_IA_HANDLE other;
	DAT_IA_ATTR attr;

	rig_up(&rig);
	other = open_ia(NULL);
	OK(dat_ia_query(other, NULL, DAT_IA_FIELD_ALL, &attr, 0, NULL));
	for (size_t i = 0; i < ia_query.count; i++) {
		const struct field *f = &ia_fields[i];

		if (f->bit & (DAT_IA_FIELD_IA_ADDRESS_PTR | DAT_IA_FIELD_IA_TRANSPORT_ATTR |
			      DAT_IA_FIELD_IA_VENDOR_ATTR))
			continue;
		if (memcmp((char *)&attr + f->at, (char *)&rig.attr + f->at, f->size) != 0)
			tap_fail(__FILE__, __LINE__, "%s is another", f->name);
	}
	CHECK(same_host(attr.ia_address_ptr, rig.attr.ia_address_ptr));
	for (int i = 0; i < attr.num_transport_attr; i++) {
		CHECK(strcmp(attr.transport_attr[i].name, rig.attr.transport_attr[i].name) == 0);
		CHECK(strcmp(attr.transport_attr[i].value, rig.attr.transport_attr[i].value) == 0);
	}
	OK(dat_ia_close(other, DAT_CLOSE_GRACEFUL_FLAG));
	rig_down(&rig);
}

static void query__pz(void)
{
	rig_up(&rig);
	check_query(&pz_query, rig.pz);
	rig_down(&rig);
}

static void query__evd(void)
{
	rig_up(&rig);
	check_query(&evd_query, rig.recv_evd);
	rig_down(&rig);
}

static void agent(DAT_PVOID data, DAT_EVD_HANDLE from)
{
	(void)data;
	(void)from;
}

static void query__cno(void)
{
	DAT_OS_WAIT_PROXY_AGENT with = { &rig, agent };
	DAT_CNO_HANDLE cno;

	rig_up(&rig);
	OK(dat_cno_create(rig.ia, with, &cno));
	check_query(&cno_query, cno);
	rig_down(&rig);
}

static void query__lmr(void)
{
	rig_up(&rig);
	check_query(&lmr_query, make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG).lmr);
	rig_down(&rig);
}

static void query__rmr(void)
{
	DAT_RMR_HANDLE rmr;

	rig_up(&rig);
	if (rig.attr.max_rmrs == 0)
		tap_unsupported("no windows");
	OK(dat_rmr_create(rig.pz, &rmr));
	check_query(&rmr_query, rmr);
	rig_down(&rig);
}

static void query__psp(void)
{
	DAT_CONN_QUAL qualifier;

	rig_up(&rig);
	check_query(&psp_query, listen_any(&rig, &qualifier));
	rig_down(&rig);
}

static void query__rsp(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_RSP_HANDLE rsp;

	rig_up(&rig);
	qualifier = free_qualifier(&rig);
	OK(dat_rsp_create(rig.ia, qualifier, make_ep(&rig, NULL), rig.cr_evd, &rsp));
	check_query(&rsp_query, rsp);
	rig_down(&rig);
}

static void query__cr(void)
{
	DAT_CONN_QUAL qualifier;
	char data[] = "hello";

	rig_up(&rig);
	(void)listen_any(&rig, &qualifier);
	OK(dat_ep_connect(make_ep(&rig, NULL), rig.attr.ia_address_ptr, qualifier, SOON,
			  sizeof data, data, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	check_query(&cr_query, await_request(&rig));
	rig_down(&rig);
}

static void query__srq(void)
{
	DAT_SRQ_ATTR attr = { 8, 1, DAT_SRQ_LW_DEFAULT };
	DAT_SRQ_HANDLE srq;

	rig_up(&rig);
	if (!rig.provider.srq_supported)
		tap_unsupported("no shared receive queues");
	OK(dat_srq_create(rig.ia, rig.pz, &attr, &srq));
	check_query(&srq_query, srq);
	rig_down(&rig);
}

static void query__ep(void)
{
	rig_up(&rig);
	check_query(&ep_query, make_ep(&rig, NULL));
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(query, ia),
	T(query, provider),
	T(query, ia_all_at_once),
	T(query, ia_alike_for_all_instances),
	T(query, pz),
	T(query, evd),
	T(query, cno),
	T(query, lmr),
	T(query, rmr),
	T(query, psp),
	T(query, rsp),
	T(query, cr),
	T(query, srq),
	T(query, ep),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
