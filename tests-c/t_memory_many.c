/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * No memory for what may be of any size: queues, tables and configurations. The call gives
 * DAT_INSUFFICIENT_RESOURCES, nothing has changed, and the same call succeeds when there is memory.
 */
#include "makers.h"
#include "no_memory.h"
#include "transfer.h"

#include <string.h>
#include <unistd.h>

/* No allocation of more than the largest block of the reserve succeeds from now on. */
static void allow_no_large_one(void)
{
	fail_allocations((struct failing){
		.first = 1, .and_later = true, .any_thread = true, .larger_than = 16 * 1024 });
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
	rig_up(&made_in);
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
	CHECK_RET(dat_evd_resize(made_in.request_evd, LONG_QUEUE), DAT_INSUFFICIENT_RESOURCES);
	stop_failing();
	OK(dat_evd_resize(made_in.request_evd, LONG_QUEUE));
	rig_down(&made_in);
}

/* The queues of an endpoint take memory when work is posted. */
static void many__receives(void)
{
	const DAT_COUNT most = LONG_QUEUE / 2;
	DAT_RETURN ret = DAT_SUCCESS;
	DAT_COUNT posted = 0;
	DAT_HANDLE ep;

	need_our_malloc();
	rig_up(&made_in);
	OK(dat_evd_resize(made_in.recv_evd, LONG_QUEUE));
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
	rig_down(&made_in);
}

/* The events of an endpoint go without memory, however many there are: those that the EVD holds, and those
 * that have arrived since it was full. */
static void many__events_that_go(void)
{
	DAT_EVD_PARAM param;
	DAT_EVENT event;
	DAT_COUNT more;
	struct pair pair;

	need_our_malloc();
	pair_up(&pair, NULL);
	OK(dat_evd_resize(pair.b.recv_evd, LONG_QUEUE));
	OK(dat_evd_query(pair.b.recv_evd, DAT_EVD_FIELD_EVD_QLEN, &param));
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	/* Flushed at once. */
	for (DAT_COUNT i = 0; i < param.evd_qlen; i++)
		OK(recv_nothing(pair.ep_b, 1));
	OK(dat_evd_wait(pair.b.recv_evd, SOON, param.evd_qlen, &event, &more));
	for (int i = 0; i < 100; i++)
		OK(recv_nothing(pair.ep_b, 2));
	allow_no_large_one();
	CHECK_RET(dat_ep_reset(pair.ep_b), DAT_SUCCESS);
	stop_failing();
	EXPECT_NOTHING(pair.b.recv_evd);
	pair_down(&pair);
}

/* A message that is longer than any allocation which succeeds: the connection goes on, in shorter
 * segments. */
static void many__bytes_of_a_message(void)
{
	need_our_malloc();
	up();
	memset(ma.at, 'm', SIZE);
	OK(b_receives(0, SIZE, 1));
	allow_no_large_one();
	OK(a_sends(0, SIZE, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	OK(a_reads(0, 0, SIZE, 3, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	stop_failing();
	CHECK(memcmp(ma.at, mb.at, SIZE) == 0 && mb.at[SIZE - 1] == 'm');
	down();
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
	T(many, events_that_go),
	T(many, bytes_of_a_message),
	T(many, lines_of_a_configuration),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
