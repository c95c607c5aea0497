/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DAT_INSUFFICIENT_RESOURCES: what an adapter says it has is used up, or the process may open
 * no more descriptors. Queues that are full are in t_post, lengths beyond a limit in t_evd. */
#include "common.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* What an adapter must not have more of for a test to use it up. */
enum { MOST = 1 << 17 };

/* --- as many as there are ------------------------------------------------------------------- */

static void pz_create__as_many_as_there_are(void)
{
	struct rig rig;
	DAT_RETURN ret = DAT_SUCCESS;
	DAT_PZ_HANDLE pz, last = DAT_HANDLE_NULL;
	DAT_COUNT made = 0;

	rig_up(&rig);
	if (rig.attr.max_pzs > MOST)
		tap_skip("too many protection zones to use them up");
	while (made <= rig.attr.max_pzs &&
	       (ret = dat_pz_create(rig.ia, &pz)) == DAT_SUCCESS) {
		last = pz;
		made++;
	}
	CHECK_RET(ret, DAT_INSUFFICIENT_RESOURCES);
	/* One of them is the rig's. */
	CHECK_EQ(made, rig.attr.max_pzs - 1);
	OK(dat_pz_free(last));
	CHECK_RET(dat_pz_create(rig.ia, &pz), DAT_SUCCESS);
	rig_down(&rig);
}

static void ep_create__as_many_as_there_are(void)
{
	struct rig rig;
	DAT_EP_ATTR attr;
	DAT_RETURN ret = DAT_SUCCESS;
	DAT_EP_HANDLE ep, last = DAT_HANDLE_NULL;
	DAT_COUNT made = 0;

	rig_up(&rig);
	if (rig.attr.max_eps > MOST)
		tap_skip("too many endpoints to use them up");
	attr = ep_attr(&rig);
	attr.max_recv_dtos = 1;
	attr.max_request_dtos = 1;
	attr.max_recv_iov = 1;
	attr.max_request_iov = 1;
	while (made <= rig.attr.max_eps &&
	       (ret = dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.request_evd,
				    rig.connect_evd, &attr, &ep)) == DAT_SUCCESS) {
		last = ep;
		made++;
	}
	CHECK_RET(ret, DAT_INSUFFICIENT_RESOURCES);
	CHECK_EQ(made, rig.attr.max_eps);
	OK(dat_ep_free(last));
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.request_evd, rig.connect_evd,
				&attr, &ep),
		  DAT_SUCCESS);
	rig_down(&rig);
}

static void lmr_create__longer_than_a_region_may_be(void)
{
	struct rig rig;
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE lmr;
	static char byte;

	rig_up(&rig);
	memset(&region, 0, sizeof region);
	region.for_va = &byte;
	REQUIRE(rig.attr.max_lmr_block_size < ~(DAT_VLEN)0 - (uintptr_t)&byte);
	CHECK_EITHER(dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, region,
				   rig.attr.max_lmr_block_size + 1, rig.pz,
				   DAT_MEM_PRIV_LOCAL_READ_FLAG, &lmr, NULL, NULL, NULL, NULL),
		     DAT_INSUFFICIENT_RESOURCES, DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

/* --- no more descriptors ---------------------------------------------------------------------- */

static struct rlimit before;

/* From here on nothing can be opened. */
static void no_descriptors(void)
{
	struct rlimit limit;
	int lowest = dup(0);

	REQUIRE(lowest >= 0 && close(lowest) == 0);
	REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
	limit = before;
	limit.rlim_cur = (rlim_t)lowest;
	REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void descriptors_again(void)
{
	REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

static void ia_open__no_descriptors(void)
{
	DAT_IA_HANDLE first = open_ia(NULL), second;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	no_descriptors();
	CHECK_RET(dat_ia_open((DAT_NAME_PTR)(uintptr_t)tap_ia, 8, &evd, &second),
		  DAT_INSUFFICIENT_RESOURCES);
	CHECK(evd == DAT_HANDLE_NULL);
	descriptors_again();
	OK(dat_ia_open((DAT_NAME_PTR)(uintptr_t)tap_ia, 8, &evd, &second));
	CHECK_RET(dat_ia_close(second, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	CHECK_RET(dat_ia_close(first, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void psp_create__no_descriptors(void)
{
	struct rig rig;
	DAT_CONN_QUAL qualifier, other;
	DAT_PSP_HANDLE psp;

	rig_up(&rig);
	OK(dat_psp_free(listen_any(&rig, &qualifier)));
	no_descriptors();
	CHECK_RET(dat_psp_create(rig.ia, qualifier, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		  DAT_INSUFFICIENT_RESOURCES);
	CHECK_RET(dat_psp_create_any(rig.ia, &other, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		  DAT_INSUFFICIENT_RESOURCES);
	descriptors_again();
	CHECK_RET(dat_psp_create(rig.ia, qualifier, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		  DAT_SUCCESS);
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(pz_create, as_many_as_there_are),
	T(ep_create, as_many_as_there_are),
	T(lmr_create, longer_than_a_region_may_be),
	T(ia_open, no_descriptors),
	T(psp_create, no_descriptors),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
