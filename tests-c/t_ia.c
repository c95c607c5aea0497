/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ia_open(3DAT), dat_ia_close(3DAT), and the consumer context and type
 * of an IA. */
#include "makers.h"

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* dat_ia_open takes a pointer to non-const characters. */
static char *name(void)
{
	return (char *)(uintptr_t)tap_ia;
}

/* --- dat_ia_open --------------------------------------------------------------------------- */

static void ia_open__gives_ia_and_async_evd(void)
{
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_EVD_PARAM param;

	OK(dat_ia_open(name(), 8, &evd, &ia));
	CHECK(ia != DAT_HANDLE_NULL);
	CHECK(evd != DAT_HANDLE_NULL);
	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	CHECK_EQ(param.evd_flags, DAT_EVD_ASYNC_FLAG);
	CHECK(param.evd_qlen >= 8);
	CHECK(param.cno_handle == DAT_HANDLE_NULL);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void ia_open__name_null(void)
{
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	CHECK_CODE(dat_ia_open(NULL, 8, &evd, &ia), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
}

static void ia_open__name_too_long(void)
{
	char longest[DAT_NAME_MAX_LENGTH + 1];
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	memset(longest, 'x', sizeof longest);
	longest[DAT_NAME_MAX_LENGTH] = 0;
	CHECK_CODE(dat_ia_open(longest, 8, &evd, &ia), DAT_INVALID_PARAMETER, DAT_INVALID_ARG1);
	longest[DAT_NAME_MAX_LENGTH - 1] = 0;
	CHECK_RET(dat_ia_open(longest, 8, &evd, &ia), DAT_PROVIDER_NOT_FOUND);
}

static void ia_open__name_unknown(void)
{
	char unknown[] = "no-such-adapter", empty[] = "";
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	CHECK_CODE(dat_ia_open(unknown, 8, &evd, &ia), DAT_PROVIDER_NOT_FOUND,
		   DAT_NAME_NOT_REGISTERED);
	CHECK_RET(dat_ia_open(empty, 8, &evd, &ia), DAT_PROVIDER_NOT_FOUND);
}

static void ia_open__ia_handle_null(void)
{
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	CHECK_CODE(dat_ia_open(name(), 8, &evd, NULL), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
}

static void ia_open__async_evd_pointer_null(void)
{
	DAT_IA_HANDLE ia;

	CHECK_RET(dat_ia_open(name(), 8, NULL, &ia), DAT_INVALID_PARAMETER);
}

static void ia_open__queue_length_not_positive(void)
{
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	CHECK_RET(dat_ia_open(name(), 0, &evd, &ia), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ia_open(name(), -1, &evd, &ia), DAT_INVALID_PARAMETER);
}

/* Long queues, too: the EVD holds what was asked for. */
static void ia_open__queue_length_as_asked(void)
{
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;
	DAT_EVD_PARAM param;
	DAT_IA_HANDLE ia;

	OK(dat_ia_open(name(), 5000, &evd, &ia));
	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	CHECK(param.evd_qlen >= 5000);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void ia_open__queue_length_excessive(void)
{
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	CHECK_RET(dat_ia_open(name(), INT_MAX, &evd, &ia), DAT_INSUFFICIENT_RESOURCES);
}

static void ia_open__async_evd_garbage(void)
{
	long on_stack[8] = { 0 };
	DAT_EVD_HANDLE evd = (DAT_EVD_HANDLE)on_stack;
	DAT_IA_HANDLE ia;

	CHECK_RET(dat_ia_open(name(), 8, &evd, &ia), DAT_INVALID_HANDLE);
}

static void ia_open__async_evd_of_other_kind(void)
{
	DAT_IA_HANDLE ia, other;
	DAT_EVD_HANDLE evd;

	ia = open_ia(NULL);
	evd = make_evd(ia, 8, DAT_EVD_DTO_FLAG);
	CHECK_RET(dat_ia_open(name(), 8, &evd, &other), DAT_INVALID_HANDLE);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static void ia_open__async_evd_shared(void)
{
	DAT_EVD_HANDLE evd, given, queried = DAT_HANDLE_NULL;
	DAT_IA_HANDLE first = open_ia(&evd), second = DAT_HANDLE_NULL;

	/* No EVD is made, so the length is not looked at. */
	given = evd;
	OK(dat_ia_open(name(), -1, &given, &second));
	CHECK(given == evd);
	OK(dat_ia_query(second, &queried, 0, NULL, 0, NULL));
	CHECK(queried == evd);
	/* The EVD belongs to the first instance and outlives the second. */
	CHECK_RET(dat_ia_close(second, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	EXPECT_NOTHING(evd);
	CHECK_RET(dat_ia_close(first, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void ia_open__instances_are_independent(void)
{
	DAT_IA_HANDLE first = open_ia(NULL), second = open_ia(NULL);
	DAT_PZ_HANDLE pz;

	CHECK(first != second);
	CHECK_RET(dat_ia_close(first, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	CHECK_RET(dat_pz_create(second, &pz), DAT_SUCCESS);
	CHECK_RET(dat_ia_close(second, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static void ia_open__failure_writes_nothing(void)
{
	char unknown[] = "no-such-adapter";
	DAT_IA_HANDLE ia = (DAT_IA_HANDLE)(uintptr_t)0x1230;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	CHECK_RET(dat_ia_open(unknown, 8, &evd, &ia), DAT_PROVIDER_NOT_FOUND);
	CHECK_EQ((uintptr_t)ia, 0x1230);
	CHECK(evd == DAT_HANDLE_NULL);
}

static void ia_openv__version_unknown(void)
{
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	CHECK_RET(dat_ia_openv(name(), 8, &evd, &ia, 9, 9, DAT_FALSE), DAT_PROVIDER_NOT_FOUND);
	CHECK_RET(dat_ia_openv(name(), 8, &evd, &ia, DX_MAJOR, DX_MINOR + 7, DAT_FALSE),
		  DAT_PROVIDER_NOT_FOUND);
}

static void ia_openv__thread_safe(void)
{
	DAT_PROVIDER_ATTR attr;
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	OK(dat_ia_openv(name(), 8, &evd, &ia, DX_MAJOR, DX_MINOR, DAT_TRUE));
	CHECK(ia != DAT_HANDLE_NULL && evd != DAT_HANDLE_NULL);
	OK(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_IS_THREAD_SAFE, &attr));
	CHECK_EQ(attr.is_thread_safe, DAT_TRUE);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

/* --- dat_ia_close -------------------------------------------------------------------------- */

static void ia_close__handle_null(void)
{
	CHECK_CODE(dat_ia_close(DAT_HANDLE_NULL, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_IA);
}

static void ia_close__flags_unknown(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);

	CHECK_RET(dat_ia_close(ia, (DAT_CLOSE_FLAGS)2), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static void ia_close__graceful_with_objects(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_PZ_HANDLE pz;

	OK(dat_pz_create(ia, &pz));
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_STATE);
	CHECK_RET(dat_pz_free(pz), DAT_SUCCESS);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void ia_close__graceful_refused_for_each_kind(void)
{
	struct rig rig;
	struct mem mem;
	DAT_CONN_QUAL qualifier;
	DAT_CNO_HANDLE cno;
	DAT_EP_HANDLE ep;
	DAT_PSP_HANDLE psp;

	/* Objects go in an order in which each may; the IA must refuse until the last. */
	rig_up(&rig);
	mem = make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG);
	ep = make_ep(&rig, NULL);
	psp = listen_any(&rig, &qualifier);
	OK(dat_cno_create(rig.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
#define STILL_REFUSED() CHECK_RET(dat_ia_close(rig.ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_STATE)
	STILL_REFUSED();
	OK(dat_ep_free(ep));
	STILL_REFUSED();
	OK(dat_psp_free(psp));
	STILL_REFUSED();
	free_mem(&mem);
	STILL_REFUSED();
	OK(dat_cno_free(cno));
	STILL_REFUSED();
	OK(dat_evd_free(rig.recv_evd));
	OK(dat_evd_free(rig.request_evd));
	OK(dat_evd_free(rig.connect_evd));
	STILL_REFUSED();
	OK(dat_evd_free(rig.cr_evd));
	STILL_REFUSED();
	OK(dat_pz_free(rig.pz));
#undef STILL_REFUSED
	CHECK_RET(dat_ia_close(rig.ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void ia_close__async_evd_that_was_given(void)
{
	DAT_IA_HANDLE first = open_ia(NULL), second = DAT_HANDLE_NULL;
	DAT_EVD_HANDLE given = make_evd(first, 8, DAT_EVD_ASYNC_FLAG);

	OK(dat_ia_open(name(), 8, &given, &second));
	CHECK_RET(dat_evd_free(given), DAT_INVALID_STATE);
	/* The EVD stays, and is in no use any more. */
	CHECK_RET(dat_ia_close(second, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
	CHECK_RET(dat_evd_free(given), DAT_SUCCESS);
	CHECK_RET(dat_ia_close(first, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void ia_close__abrupt_destroys_everything(void)
{
	struct pair pair;
	struct mem mem;
	DAT_CONN_QUAL qualifier;
	DAT_CNO_HANDLE cno;
	DAT_PSP_HANDLE psp;
	DAT_HANDLE_TYPE type;

	pair_up(&pair, NULL);
	mem = make_mem(&pair.a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	psp = listen_any(&pair.a, &qualifier);
	OK(dat_cno_create(pair.a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	CHECK_RET(dat_ia_close(pair.a.ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);

	CHECK_RET(dat_get_handle_type(pair.a.ia, &type), DAT_INVALID_HANDLE);
	CHECK_RET(dat_get_handle_type(pair.a.pz, &type), DAT_INVALID_HANDLE);
	CHECK_RET(dat_get_handle_type(pair.a.recv_evd, &type), DAT_INVALID_HANDLE);
	CHECK_RET(dat_get_handle_type(pair.a.async_evd, &type), DAT_INVALID_HANDLE);
	CHECK_RET(dat_get_handle_type(pair.ep_a, &type), DAT_INVALID_HANDLE);
	CHECK_RET(dat_get_handle_type(mem.lmr, &type), DAT_INVALID_HANDLE);
	CHECK_RET(dat_get_handle_type(psp, &type), DAT_INVALID_HANDLE);
	CHECK_RET(dat_get_handle_type(cno, &type), DAT_INVALID_HANDLE);
	/* The connection ended for the peer. */
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	rig_down(&pair.b);
	free(mem.at);
}

static DAT_RETURN an_rsp(DAT_HANDLE *made)
{
	return dat_rsp_create(made_in.ia, free_qualifier(&made_in), make_ep(&made_in, NULL),
			      made_in.cr_evd, (DAT_RSP_HANDLE *)made);
}

static DAT_RETURN a_cr(DAT_HANDLE *made)
{
	DAT_CONN_QUAL qualifier;

	listen_any(&made_in, &qualifier);
	OK(try_connect(make_ep(&made_in, NULL), &made_in, qualifier, SOON));
	*made = await_request(&made_in);
	return DAT_SUCCESS;
}

static void ia_close__abrupt_destroys_each_kind(void)
{
	static DAT_RETURN (*const makers[])(DAT_HANDLE *) = {
		a_pz, a_cno, an_evd, an_ep, an_srq, an_lmr, an_rmr, a_psp, an_rsp, a_cr,
	};
	enum { KINDS = sizeof makers / sizeof *makers };
	DAT_HANDLE made[KINDS];
	DAT_HANDLE_TYPE type;

	rig_up(&made_in);
	for (int i = 0; i < KINDS; i++) {
		made[i] = DAT_HANDLE_NULL;
		/* Not every adapter has windows. */
		CHECK_EITHER(makers[i](&made[i]), DAT_SUCCESS, DAT_MODEL_NOT_SUPPORTED);
	}
	CHECK_RET(dat_ia_close(made_in.ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	for (int i = 0; i < KINDS; i++)
		CHECK_RET(dat_get_handle_type(made[i], &type), DAT_INVALID_HANDLE);
}

static void ia_close__twice(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);

	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE);
}

static void *wait_for_event(void *evd)
{
	DAT_EVENT event;
	DAT_COUNT more;

	return (void *)(uintptr_t)dat_evd_wait(evd, DAT_TIMEOUT_INFINITE, 1, &event, &more);
}

static void ia_close__evd_waiter_gets_abort(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 8, DAT_EVD_SOFTWARE_FLAG);
	pthread_t thread;
	void *ret;

	REQUIRE(pthread_create(&thread, NULL, wait_for_event, evd) == 0);
	await_waiter(evd);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
	REQUIRE(pthread_join(thread, &ret) == 0);
	CHECK_RET((DAT_RETURN)(uintptr_t)ret, DAT_ABORT);
}

static int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	REQUIRE(dir != NULL);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static void ia_close__keeps_no_descriptors(void)
{
	struct pair pair;
	int before;

	pair_up(&pair, NULL);
	pair_down(&pair);
	before = open_descriptors();
	for (int i = 0; i < 10; i++) {
		pair_up(&pair, NULL);
		pair_down(&pair);
	}
	/* What a connection needed may go a moment after the call: that of the first, too. */
	for (int i = 0; i < SOON / 20000 && open_descriptors() > before; i++)
		pause_us(20000);
	CHECK(open_descriptors() <= before);
}

/* --- consumer context and handle type ------------------------------------------------------- */

static void consumer_context__of_an_ia(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_CONTEXT context = cookie(1);
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;

	OK(dat_get_consumer_context(ia, &context));
	CHECK_EQ(context.as_64, 0);
	OK(dat_set_consumer_context(ia, cookie(0x1122334455667788)));
	OK(dat_get_consumer_context(ia, &context));
	CHECK_EQ(context.as_64, 0x1122334455667788);
	OK(dat_set_consumer_context(ia, cookie(0)));
	OK(dat_get_consumer_context(ia, &context));
	CHECK_EQ(context.as_64, 0);
	CHECK_RET(dat_get_consumer_context(ia, NULL), DAT_INVALID_PARAMETER);
	OK(dat_get_handle_type(ia, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_IA);
	CHECK_RET(dat_get_handle_type(ia, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static const struct tap_test tests[] = {
	T(ia_open, gives_ia_and_async_evd),
	T(ia_open, name_null),
	T(ia_open, name_too_long),
	T(ia_open, name_unknown),
	T(ia_open, ia_handle_null),
	T(ia_open, async_evd_pointer_null),
	T(ia_open, queue_length_not_positive),
	T(ia_open, queue_length_excessive),
	T(ia_open, async_evd_garbage),
	T(ia_open, async_evd_of_other_kind),
	T(ia_open, async_evd_shared),
	T(ia_open, instances_are_independent),
	T(ia_open, failure_writes_nothing),
	T(ia_openv, version_unknown),
	T(ia_openv, thread_safe),
	T(ia_close, handle_null),
	T(ia_close, flags_unknown),
	T(ia_close, graceful_with_objects),
	T(ia_close, graceful_refused_for_each_kind),
	T(ia_close, async_evd_that_was_given),
	T(ia_close, abrupt_destroys_everything),
	T(ia_close, abrupt_destroys_each_kind),
	T(ia_close, twice),
	T(ia_close, evd_waiter_gets_abort),
	T(ia_close, keeps_no_descriptors),
	T(consumer_context, of_an_ia),
	T(ia_open, queue_length_as_asked),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
