/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_pz_create(3DAT), dat_pz_free(3DAT), dat_pz_query(3DAT). */
#include "common.h"

static void pz_create__gives_a_zone(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_PZ_HANDLE pz = DAT_HANDLE_NULL, other = DAT_HANDLE_NULL;
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;

	OK(dat_pz_create(ia, &pz));
	OK(dat_pz_create(ia, &other));
	CHECK(pz != DAT_HANDLE_NULL);
	CHECK(other != DAT_HANDLE_NULL);
	CHECK(pz != other);
	OK(dat_get_handle_type(pz, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_PZ);
	CHECK_RET(dat_pz_free(pz), DAT_SUCCESS);
	CHECK_RET(dat_pz_free(other), DAT_SUCCESS);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void pz_create__pointer_null(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);

	CHECK_RET(dat_pz_create(ia, NULL), DAT_INVALID_PARAMETER);
	/* Nothing was created. */
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void pz_create__ia_invalid(void)
{
	DAT_PZ_HANDLE pz = (DAT_PZ_HANDLE)(uintptr_t)0x1230;

	CHECK_CODE(dat_pz_create(DAT_HANDLE_NULL, &pz), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
	CHECK_EQ((uintptr_t)pz, 0x1230);
}

static void pz_free__twice(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_PZ_HANDLE pz;

	OK(dat_pz_create(ia, &pz));
	CHECK_RET(dat_pz_free(pz), DAT_SUCCESS);
	CHECK_RET(dat_pz_free(pz), DAT_INVALID_HANDLE);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void pz_free__used_by_lmr(void)
{
	struct rig rig;
	struct mem mem;

	rig_up(&rig);
	mem = make_mem(&rig, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG);
	CHECK_RET(dat_pz_free(rig.pz), DAT_INVALID_STATE);
	free_mem(&mem);
	CHECK_RET(dat_pz_free(rig.pz), DAT_SUCCESS);
	rig_down(&rig);
}

static void pz_free__used_by_ep(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	CHECK_RET(dat_pz_free(rig.pz), DAT_INVALID_STATE);
	OK(dat_ep_free(ep));
	CHECK_RET(dat_pz_free(rig.pz), DAT_SUCCESS);
	rig_down(&rig);
}

static void pz_free__used_by_rmr(void)
{
	struct rig rig;
	DAT_RMR_HANDLE rmr;
	DAT_RETURN ret;

	rig_up(&rig);
	ret = dat_rmr_create(rig.pz, &rmr);
	if (rig.attr.max_rmrs == 0) {
		CHECK(ret != DAT_SUCCESS);
		rig_down(&rig);
		return;
	}
	OK(ret);
	CHECK_RET(dat_pz_free(rig.pz), DAT_INVALID_STATE);
	OK(dat_rmr_free(rmr));
	CHECK_RET(dat_pz_free(rig.pz), DAT_SUCCESS);
	rig_down(&rig);
}

static void pz_query__names_its_ia(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_PZ_HANDLE pz;
	DAT_PZ_PARAM param = { DAT_HANDLE_NULL };

	OK(dat_pz_create(ia, &pz));
	OK(dat_pz_query(pz, DAT_PZ_FIELD_ALL, &param));
	CHECK(param.ia_handle == ia);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static void pz_query__arguments(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_PZ_HANDLE pz;
	DAT_PZ_PARAM param;

	OK(dat_pz_create(ia, &pz));
	CHECK_RET(dat_pz_query(pz, DAT_PZ_FIELD_ALL, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_pz_query(pz, (DAT_PZ_PARAM_MASK)0x40000, &param), DAT_INVALID_PARAMETER);
	CHECK_CODE(dat_pz_query(DAT_HANDLE_NULL, DAT_PZ_FIELD_ALL, &param), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_PZ);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static const struct tap_test tests[] = {
	T(pz_create, gives_a_zone), T(pz_create, pointer_null),
	T(pz_create, ia_invalid),   T(pz_free, twice),
	T(pz_free, used_by_lmr),    T(pz_free, used_by_ep),
	T(pz_free, used_by_rmr),    T(pz_query, names_its_ia),
	T(pz_query, arguments),	    TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
