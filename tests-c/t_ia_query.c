/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ia_query(3DAT): the attributes of adapters and providers. */
#include "common.h"

#include <stdlib.h>
#include <string.h>

static void ia_query__adapter_attributes(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_IA_ATTR attr;

	memset(&attr, 0xff, sizeof attr);
	OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attr, 0, NULL));
	CHECK(memchr(attr.adapter_name, 0, sizeof attr.adapter_name) != NULL);
	/* The name that the IA is opened by. */
	CHECK(strcmp(attr.adapter_name, tap_ia) == 0);
	CHECK(memchr(attr.vendor_name, 0, sizeof attr.vendor_name) != NULL);
	REQUIRE(attr.ia_address_ptr != NULL);
	CHECK(attr.ia_address_ptr->sa_family == AF_INET ||
	      attr.ia_address_ptr->sa_family == AF_INET6);
	CHECK(attr.max_eps > 0);
	CHECK(attr.max_dto_per_ep > 0);
	CHECK(attr.max_evds > 0);
	CHECK(attr.max_evd_qlen > 0);
	CHECK(attr.max_lmrs > 0);
	CHECK(attr.max_lmr_block_size > 0);
	/* The stack is among the highest memory that a program has. */
	CHECK(attr.max_lmr_virtual_address > (uintptr_t)&attr);
	if (attr.max_rmrs > 0)
		CHECK(attr.max_rmr_target_address > (uintptr_t)&attr);
	CHECK(attr.max_pzs > 0);
	CHECK(attr.max_iov_segments_per_dto > 0);
	CHECK(attr.max_iov_segments_per_rdma_read > 0);
	CHECK(attr.max_iov_segments_per_rdma_write > 0);
	CHECK(attr.max_message_size >= 1 << 20);
	CHECK(attr.max_rdma_size >= 1 << 20);
	CHECK(attr.num_transport_attr >= 0);
	CHECK(attr.num_vendor_attr >= 0);
	for (int i = 0; i < attr.num_transport_attr; i++)
		CHECK(attr.transport_attr[i].name && attr.transport_attr[i].value);
	for (int i = 0; i < attr.num_vendor_attr; i++)
		CHECK(attr.vendor_attr[i].name && attr.vendor_attr[i].value);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

/* The flags of posts that every program may count on. */
#define ALL_FLAGS                                                         \
	(DAT_COMPLETION_SUPPRESS_FLAG | DAT_COMPLETION_UNSIGNALLED_FLAG | \
	 DAT_COMPLETION_SOLICITED_WAIT_FLAG | DAT_COMPLETION_BARRIER_FENCE_FLAG)

static void ia_query__provider_attributes(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_PROVIDER_ATTR attr;

	memset(&attr, 0xff, sizeof attr);
	OK(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
	CHECK(memchr(attr.provider_name, 0, sizeof attr.provider_name) != NULL);
	CHECK_EQ(attr.dapl_version_major, DX_MAJOR);
	CHECK_EQ(attr.dapl_version_minor, DX_MINOR);
	/* The connection manager of InfiniBand leaves a consumer 56 bytes. */
	CHECK(attr.max_private_data_size >= 56);
	/* All kinds of memory that there have to be; VIRTUAL has no bit. */
	CHECK(attr.lmr_mem_types_supported & DAT_MEM_TYPE_LMR);
	CHECK(attr.lmr_mem_types_supported & DAT_MEM_TYPE_SHARED_VIRTUAL);
	CHECK(attr.optimal_buffer_alignment > 0);
	CHECK(attr.optimal_buffer_alignment <= DAT_OPTIMAL_ALIGNMENT);
	CHECK(DAT_OPTIMAL_ALIGNMENT % attr.optimal_buffer_alignment == 0);
	for (int i = 0; i < 6; i++)
		for (int j = 0; j < 6; j++) {
			CHECK(attr.evd_stream_merging_supported[i][j] <= DAT_TRUE);
			CHECK_EQ(attr.evd_stream_merging_supported[i][j],
				 attr.evd_stream_merging_supported[j][i]);
		}
	CHECK(attr.iov_ownership_on_return == DAT_IOV_CONSUMER ||
	      attr.iov_ownership_on_return == DAT_IOV_PROVIDER_NOMOD ||
	      attr.iov_ownership_on_return == DAT_IOV_PROVIDER_MOD);
	/* What a connection without wishes has, whose value is no bit. */
	CHECK_EQ(attr.dat_qos_supported & ~0xfu, DAT_QOS_BEST_EFFORT);
	CHECK_EQ(attr.completion_flags_supported & ALL_FLAGS, ALL_FLAGS);
	CHECK(attr.is_thread_safe == DAT_TRUE || attr.is_thread_safe == DAT_FALSE);
	CHECK(attr.supports_multipath == DAT_TRUE || attr.supports_multipath == DAT_FALSE);
	CHECK(attr.ep_creator == DAT_PSP_CREATES_EP_NEVER ||
	      attr.ep_creator == DAT_PSP_CREATES_EP_IFASKED ||
	      attr.ep_creator == DAT_PSP_CREATES_EP_ALWAYS);
	CHECK(attr.pz_support == DAT_PZ_UNIQUE || attr.pz_support == DAT_PZ_SHAREABLE);
	CHECK(attr.lmr_sync_req == DAT_TRUE || attr.lmr_sync_req == DAT_FALSE);
	CHECK(attr.num_provider_specific_attr >= 0);
	for (int i = 0; i < attr.num_provider_specific_attr; i++)
		CHECK(attr.provider_specific_attr[i].name && attr.provider_specific_attr[i].value);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

/* Programs written to OpenFabrics' providers size their buffers by this attribute. */
static void ia_query__transport_mtu(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_PROVIDER_ATTR attr;
	long mtu = 0;

	OK(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
	for (int i = 0; i < attr.num_provider_specific_attr; i++)
		if (!strcmp(attr.provider_specific_attr[i].name, "DAT_IB_TRANSPORT_MTU"))
			mtu = strtol(attr.provider_specific_attr[i].value, NULL, 10);
	CHECK(mtu >= 256);
	CHECK(mtu <= 65536);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

/* Reads what the kernel says of an RDMA device; false if it knows no such device. */
static bool read_device(const char *device, const char *what, char *line, int size)
{
	char path[300];
	FILE *file;
	bool has;

	snprintf(path, sizeof path, "/sys/class/infiniband/%s/%s", device, what);
	file = fopen(path, "r");
	if (!file)
		return false;
	has = fgets(line, size, file) != NULL;
	fclose(file);
	line[strcspn(line, "\n")] = '\0';
	return has;
}

/* Programs written to OpenFabrics' providers find what these have by its place or by its name, also
 * what is FALSE. */
static void ia_query__named_attributes_of_the_provider(void)
{
	static const char *const names[] = {
		"DAT_IB_PROVIDER_NAME",	   "DAT_IB_DEVICE_NAME",   "DAT_IB_CONNECTIVITY_MODE",
		"DAT_IB_RDMA_READ",	   "DAT_IB_NODE_GUID",	   "DAT_IB_GID",
		"DAT_IB_TRANSPORT_MTU",	   "DAT_IB_PORT_STATUS",   "DAT_IB_PORT_NUMBER",
		"DAT_EXTENSION_INTERFACE", "DAT_IB_FETCH_AND_ADD", "DAT_IB_CMP_AND_SWAP",
		"DAT_IB_IMMED_DATA",
	};
	const int count = sizeof names / sizeof *names;
	char guid[64] = "0000:0000:0000:0000";
	char gid[64] = "0000:0000:0000:0000:0000:0000:0000:0000";
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_PROVIDER_ATTR attr;
	DAT_NAMED_ATTR *named;

	OK(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
	REQUIRE(attr.num_provider_specific_attr >= count);
	named = attr.provider_specific_attr;
	for (int i = 0; i < count; i++)
		CHECK(!strcmp(named[i].name, names[i]));
	CHECK(*named[0].value && *named[1].value);
	CHECK(!strcmp(named[2].value, "DIRECT"));
	CHECK(!strcmp(named[3].value, "TRUE"));
	/* The kernel writes both as OpenFabrics' providers do; the soft device has none. */
	if (read_device(named[1].value, "node_guid", guid, sizeof guid))
		CHECK(read_device(named[1].value, "ports/1/gids/0", gid, sizeof gid));
	CHECK(!strcmp(named[4].value, guid));
	CHECK(!strcmp(named[5].value, gid));
	CHECK(!strcmp(named[7].value, "ACTIVE"));
	CHECK(!strcmp(named[8].value, "1"));
	for (int i = 9; i < count; i++)
		CHECK(!strcmp(named[i].value, "TRUE") || !strcmp(named[i].value, "FALSE"));
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void ia_query__async_evd(void)
{
	DAT_EVD_HANDLE evd, queried = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia = open_ia(&evd);

	CHECK_RET(dat_ia_query(ia, &queried, 0, NULL, 0, NULL), DAT_SUCCESS);
	CHECK(queried == evd);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void ia_query__nothing_asked(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);

	CHECK_RET(dat_ia_query(ia, NULL, 0, NULL, 0, NULL), DAT_SUCCESS);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void ia_query__mask_without_structure(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);

	CHECK_RET(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, NULL, 0, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, NULL),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void ia_query__mask_unknown(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_IA_ATTR attr;

	CHECK_RET(dat_ia_query(ia, NULL, (DAT_IA_ATTR_MASK)1 << 62, &attr, 0, NULL),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static const struct tap_test tests[] = {
	T(ia_query, adapter_attributes),
	T(ia_query, provider_attributes),
	T(ia_query, transport_mtu),
	T(ia_query, named_attributes_of_the_provider),
	T(ia_query, async_evd),
	T(ia_query, nothing_asked),
	T(ia_query, mask_without_structure),
	T(ia_query, mask_unknown),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
