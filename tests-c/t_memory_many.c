/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * No memory for what may be of any size: queues, tables and configurations. The call gives
 * DAT_INSUFFICIENT_RESOURCES, nothing has changed, and the same call succeeds when there is memory.
 */
#include "no_memory.h"

#include <string.h>
#include <unistd.h>

/* No allocation of more than the largest block of the reserve succeeds from now on. */
static void allow_no_large_one(void)
{
	fail_allocations((struct failing){
		.first = 1, .and_later = true, .any_thread = true, .larger_than = 16 * 1024 });
}

static struct rig rig;
static char memory[100];
static const DAT_COUNT long_queue = 8000;

static DAT_RETURN a_pz(DAT_HANDLE *made)
{
	return dat_pz_create(rig.ia, (DAT_PZ_HANDLE *)made);
}

static DAT_RETURN a_cno(DAT_HANDLE *made)
{
	return dat_cno_create(rig.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, (DAT_CNO_HANDLE *)made);
}

static DAT_RETURN an_evd_of(DAT_COUNT length, DAT_HANDLE *made)
{
	return dat_evd_create(rig.ia, length, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG,
			      (DAT_EVD_HANDLE *)made);
}

static DAT_RETURN an_evd(DAT_HANDLE *made)
{
	return an_evd_of(4, made);
}

static DAT_RETURN a_long_evd(DAT_HANDLE *made)
{
	return an_evd_of(long_queue, made);
}

static DAT_RETURN an_ep_of(DAT_COUNT dtos, DAT_HANDLE *made)
{
	DAT_EP_ATTR attr = ep_attr(&rig);

	attr.max_recv_dtos = attr.max_request_dtos = dtos;
	return dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.request_evd, rig.connect_evd, &attr,
			     (DAT_EP_HANDLE *)made);
}

static DAT_RETURN an_ep(DAT_HANDLE *made)
{
	return an_ep_of(4, made);
}

static DAT_RETURN an_srq_of(DAT_COUNT dtos, DAT_HANDLE *made)
{
	DAT_SRQ_ATTR attr = { dtos, 4, DAT_SRQ_LW_DEFAULT };

	return dat_srq_create(rig.ia, rig.pz, &attr, (DAT_SRQ_HANDLE *)made);
}

static DAT_RETURN an_srq(DAT_HANDLE *made)
{
	return an_srq_of(4, made);
}

static DAT_RETURN an_lmr(DAT_HANDLE *made)
{
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_CONTEXT context;

	memset(&region, 0, sizeof region);
	region.for_va = memory;
	return dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, rig.pz,
			     DAT_MEM_PRIV_ALL_FLAG, (DAT_LMR_HANDLE *)made, &context, NULL, NULL,
			     NULL);
}

static DAT_RETURN an_rmr(DAT_HANDLE *made)
{
	return dat_rmr_create(rig.pz, (DAT_RMR_HANDLE *)made);
}

static DAT_RETURN a_psp(DAT_HANDLE *made)
{
	DAT_CONN_QUAL qualifier = 0;

	return dat_psp_create_any(rig.ia, &qualifier, rig.cr_evd, DAT_PSP_CONSUMER_FLAG,
				  (DAT_PSP_HANDLE *)made);
}

/* What can be made, how many of them, and whether even one needs a large allocation. */
static const struct kind {
	const char *name;
	DAT_RETURN (*make)(DAT_HANDLE *);
	DAT_RETURN (*unmake)(DAT_HANDLE);
	int many;
	bool is_large;
} kinds[] = {
	{ "PZ", a_pz, dat_pz_free, 3000, false },
	{ "CNO", a_cno, dat_cno_free, 3000, false },
	{ "EVD", an_evd, dat_evd_free, 5000, false },
	{ "long EVD", a_long_evd, dat_evd_free, 2, true },
	{ "EP", an_ep, dat_ep_free, 3000, false },
	{ "SRQ", an_srq, dat_srq_free, 3000, false },
	{ "LMR", an_lmr, dat_lmr_free, 20000, false },
	{ "RMR", an_rmr, dat_rmr_free, 3000, false },
	{ "PSP", a_psp, dat_psp_free, 400, false },
};
enum { KINDS = sizeof kinds / sizeof kinds[0], MOST = 20000 };

static void many__objects(void)
{
	static DAT_HANDLE made[MOST];

	need_our_malloc();
	rig_up(&rig);
	for (const struct kind *kind = kinds; kind < kinds + KINDS; kind++) {
		DAT_RETURN ret = DAT_SUCCESS;
		int count = 0;

		allow_no_large_one();
		while (count < kind->many && (ret = kind->make(&made[count])) == DAT_SUCCESS)
			count++;
		printf("# %d of %s\n", count, kind->name);
		CHECK(count < kind->many || !kind->is_large);
		CHECK(count > 0 || kind->is_large);
		if (count < kind->many) {
			CHECK(is_refused(ret));
			stop_failing();
			OK(kind->make(&made[count++]));
			allow_no_large_one();
		}
		while (count > 0)
			OK(kind->unmake(made[--count]));
		stop_failing();
	}
	/* What could not grow is as it was. */
	allow_no_large_one();
	CHECK_RET(dat_evd_resize(rig.request_evd, long_queue), DAT_INSUFFICIENT_RESOURCES);
	stop_failing();
	OK(dat_evd_resize(rig.request_evd, long_queue));
	rig_down(&rig);
}

/* The queues of an endpoint take memory when work is posted. */
static void many__receives(void)
{
	const DAT_COUNT most = long_queue / 2;
	DAT_RETURN ret = DAT_SUCCESS;
	DAT_COUNT posted = 0;
	DAT_HANDLE ep;

	need_our_malloc();
	rig_up(&rig);
	OK(dat_evd_resize(rig.recv_evd, long_queue));
	OK(an_ep_of(most, &ep));
	allow_no_large_one();
	while (posted < most && (ret = recv_nothing(ep, 1)) == DAT_SUCCESS)
		posted++;
	CHECK(posted < most);
	CHECK(is_refused(ret));
	stop_failing();
	for (; posted < most; posted++)
		OK(recv_nothing(ep, 1));
	CHECK_RET(recv_nothing(ep, 1), DAT_INSUFFICIENT_RESOURCES);
	OK(dat_ep_free(ep));
	rig_down(&rig);
}

/* A configuration of many lines: either all of it counts, or nothing. */
static void many__lines_of_a_configuration(void)
{
	char path[] = "/tmp/libdat-memory-XXXXXX";
	int fd = mkstemp(path);
	FILE *file = fdopen(fd, "w");
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_IA_HANDLE ia;
	DAT_RETURN ret;

	need_our_malloc();
	REQUIRE(file != NULL);
	for (int i = 0; i < 4000; i++)
		fprintf(file, "many%d u%d.%d threadsafe default builtin:soft v.1.0 lo \"\"\n", i,
			DX_MAJOR, DX_MINOR);
	fclose(file);
	setenv("DAT_OVERRIDE", path, 1);
	allow_no_large_one();
	ret = dat_ia_open((DAT_NAME_PTR)(uintptr_t) "many3999", 8, &evd, &ia);
	CHECK(is_refused(ret));
	stop_failing();
	OK(dat_ia_open((DAT_NAME_PTR)(uintptr_t) "many3999", 8, &evd, &ia));
	OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
	unlink(path);
}

static const struct tap_test tests[] = {
	T(many, objects),
	T(many, receives),
	T(many, lines_of_a_configuration),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
