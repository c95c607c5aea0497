/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_lmr_query(3DAT), dat_lmr_sync_rdma_read(3DAT), dat_lmr_sync_rdma_write(3DAT). */
#include "common.h"

#include <string.h>

static void lmr_query__all_fields(void)
{
	struct rig rig;
	struct mem mem;
	DAT_LMR_PARAM param;

	rig_up(&rig);
	mem = make_mem(&rig, 5000, DAT_MEM_PRIV_ALL_FLAG);
	memset(&param, 0xff, sizeof param);
	OK(dat_lmr_query(mem.lmr, DAT_LMR_FIELD_ALL, &param));
	CHECK(param.ia_handle == rig.ia);
	CHECK_EQ(param.mem_type, DAT_MEM_TYPE_VIRTUAL);
	CHECK(param.region_desc.for_va == mem.at);
	CHECK_EQ(param.length, 5000);
	CHECK(param.pz_handle == rig.pz);
	CHECK_EQ(param.mem_priv, DAT_MEM_PRIV_ALL_FLAG);
	CHECK_EQ(param.lmr_context, mem.local);
	CHECK_EQ(param.rmr_context, mem.remote);
	CHECK(param.registered_address <= (uintptr_t)mem.at);
	CHECK(param.registered_address + param.registered_size >= (uintptr_t)mem.at + 5000);
	free_mem(&mem);
	rig_down(&rig);
}

static void lmr_query__arguments(void)
{
	struct rig rig;
	struct mem mem;
	DAT_LMR_PARAM param;

	rig_up(&rig);
	mem = make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG);
	CHECK_RET(dat_lmr_query(mem.lmr, DAT_LMR_FIELD_ALL, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_lmr_query(mem.lmr, (DAT_LMR_PARAM_MASK)0x40000, &param),
		  DAT_INVALID_PARAMETER);
	CHECK_CODE(dat_lmr_query(DAT_HANDLE_NULL, DAT_LMR_FIELD_ALL, &param), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_LMR);
	free_mem(&mem);
	rig_down(&rig);
}

/* --- dat_lmr_sync_rdma_read, dat_lmr_sync_rdma_write ---------------------------------------- */

static void lmr_sync__ranges(void)
{
	struct rig rig;
	struct mem one, two;
	DAT_LMR_TRIPLET segments[2];

	rig_up(&rig);
	one = make_mem(&rig, 8192, DAT_MEM_PRIV_ALL_FLAG);
	two = make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG);
	segments[0] = dx_local(one.local, one.at + 100, 8000);
	segments[1] = dx_local(two.local, two.at, 4096);
	CHECK_RET(dat_lmr_sync_rdma_read(rig.ia, segments, 2), DAT_SUCCESS);
	CHECK_RET(dat_lmr_sync_rdma_write(rig.ia, segments, 2), DAT_SUCCESS);
	segments[1] = dx_local(two.local, two.at + 1, 1 << 20);
	CHECK_RET(dat_lmr_sync_rdma_read(rig.ia, segments, 2), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_lmr_sync_rdma_write(rig.ia, segments, 2), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_lmr_sync_rdma_read(rig.ia, NULL, 2), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_lmr_sync_rdma_write(rig.ia, NULL, 2), DAT_INVALID_PARAMETER);
	segments[0] = dx_local(two.local, two.at, 4096);
	free_mem(&two);
	CHECK_RET(dat_lmr_sync_rdma_read(rig.ia, segments, 1), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_lmr_sync_rdma_write(rig.ia, segments, 1), DAT_INVALID_PARAMETER);
	free_mem(&one);
	rig_down(&rig);
}

/* Ranges of several regions and zones in one call; none at all, with or without a list. */
static void lmr_sync__of_several_zones(void)
{
	DAT_LMR_TRIPLET segments[3];
	struct mem one, two;
	DAT_PZ_HANDLE pz;
	struct rig rig;

	rig_up(&rig);
	OK(dat_pz_create(rig.ia, &pz));
	one = make_mem(&rig, 8192, DAT_MEM_PRIV_ALL_FLAG);
	two = make_mem_in(rig.ia, pz, 4096, DAT_MEM_PRIV_ALL_FLAG);
	segments[0] = dx_local(one.local, one.at, 8192);
	segments[1] = dx_local(two.local, two.at + 4095, 1);
	segments[2] = dx_local(one.local, one.at + 5000, 10);
	fill(one.at, one.size, 3);
	CHECK_RET(dat_lmr_sync_rdma_read(rig.ia, segments, 3), DAT_SUCCESS);
	CHECK_RET(dat_lmr_sync_rdma_write(rig.ia, segments, 3), DAT_SUCCESS);
	CHECK(filled(one.at, one.size, 3));
	/* One that is wrong, wherever it is. */
	for (int wrong = 0; wrong < 3; wrong++) {
		DAT_LMR_TRIPLET list[3] = { segments[0], segments[1], segments[2] };

		list[wrong].virtual_address -= 8192;
		CHECK_RET(dat_lmr_sync_rdma_read(rig.ia, list, 3), DAT_INVALID_PARAMETER);
		CHECK_RET(dat_lmr_sync_rdma_write(rig.ia, list, 3), DAT_INVALID_PARAMETER);
	}
	CHECK_RET(dat_lmr_sync_rdma_read(rig.ia, NULL, 0), DAT_SUCCESS);
	CHECK_RET(dat_lmr_sync_rdma_write(rig.ia, NULL, 0), DAT_SUCCESS);
	CHECK_RET(dat_lmr_sync_rdma_read(rig.ia, segments, 0), DAT_SUCCESS);
	CHECK_RET(dat_lmr_sync_rdma_write(rig.ia, segments, 0), DAT_SUCCESS);
	free_mem(&two);
	free_mem(&one);
	rig_down(&rig);
}

/* Regions are those of the instance that is named. */
static void lmr_sync__of_another_instance(void)
{
	DAT_IA_HANDLE other = open_ia(NULL);
	DAT_LMR_TRIPLET segment;
	struct rig rig;
	struct mem mem;

	rig_up(&rig);
	mem = make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG);
	segment = dx_local(mem.local, mem.at, 4096);
	CHECK_RET(dat_lmr_sync_rdma_read(rig.ia, &segment, 1), DAT_SUCCESS);
	CHECK_RET(dat_lmr_sync_rdma_read(other, &segment, 1), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_lmr_sync_rdma_write(other, &segment, 1), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ia_close(other, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	free_mem(&mem);
	rig_down(&rig);
}

/* A region of another one: what it was made from, its own zone, rights and keys. */
static void lmr_query__of_a_region_of_a_region(void)
{
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
	DAT_LMR_PARAM param;
	DAT_PZ_HANDLE pz;
	struct rig rig;
	struct mem mem;

	rig_up(&rig);
	OK(dat_pz_create(rig.ia, &pz));
	mem = make_mem(&rig, 5000, DAT_MEM_PRIV_ALL_FLAG);
	memset(&region, 0, sizeof region);
	region.for_lmr_handle = mem.lmr;
	OK(dx_lmr_create(rig.ia, DAT_MEM_TYPE_LMR, region, 0, pz, DAT_MEM_PRIV_REMOTE_READ_FLAG,
			 &lmr, &local, &remote, NULL, NULL));
	memset(&param, 0xff, sizeof param);
	OK(dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, &param));
	CHECK_EQ(param.mem_type, DAT_MEM_TYPE_LMR);
	CHECK(param.region_desc.for_lmr_handle == mem.lmr);
	CHECK_EQ(param.length, 5000);
	CHECK(param.pz_handle == pz);
	CHECK_EQ(param.mem_priv, DAT_MEM_PRIV_REMOTE_READ_FLAG);
	CHECK_EQ(param.lmr_context, local);
	CHECK_EQ(param.rmr_context, remote);
	CHECK(param.registered_address <= (uintptr_t)mem.at);
	CHECK(param.registered_address + param.registered_size >= (uintptr_t)mem.at + 5000);
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(lmr_query, all_fields),
	T(lmr_query, arguments),
	T(lmr_sync, ranges),
	T(lmr_sync, of_several_zones),
	T(lmr_sync, of_another_instance),
	T(lmr_query, of_a_region_of_a_region),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
