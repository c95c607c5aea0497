/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The event dispatcher: dat_evd_create, _query, _modify_cno, _enable, _disable, _set_unwaitable,
 * _clear_unwaitable, _resize, _post_se, _dequeue and _free. dat_evd_wait is in t_evd_wait. */
#include "common.h"

#include <limits.h>
#include <string.h>

/* The next event is the software event with this number. */
static void take(DAT_EVD_HANDLE evd, unsigned number)
{
	DAT_EVENT event;

	memset(&event, 0xff, sizeof event);
	OK(dat_evd_dequeue(evd, &event));
	CHECK_EQ(event.event_number, DAT_SOFTWARE_EVENT);
	CHECK(event.evd_handle == evd);
	CHECK_EQ((uintptr_t)event.event_data.software_event_data.pointer, number);
}

static void check_empty(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;

	CHECK_RET(dat_evd_dequeue(evd, &event), DAT_QUEUE_EMPTY);
}

static DAT_EVD_STATE state_of(DAT_EVD_HANDLE evd)
{
	DAT_EVD_PARAM param;

	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	/* The CONFIG bits are another matter. */
	return (DAT_EVD_STATE)(param.evd_state & 0xf);
}

static DAT_COUNT length_of(DAT_EVD_HANDLE evd)
{
	DAT_EVD_PARAM param;

	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	return param.evd_qlen;
}

/* --- dat_evd_create ------------------------------------------------------------------------ */

static void evd_create__each_kind(void)
{
	static const DAT_EVD_FLAGS kinds[] = {
		DAT_EVD_SOFTWARE_FLAG,	DAT_EVD_CR_FLAG,
		DAT_EVD_DTO_FLAG,	DAT_EVD_CONNECTION_FLAG,
		DAT_EVD_RMR_BIND_FLAG,	DAT_EVD_ASYNC_FLAG,
#ifdef DAT2
		DAT_EVD_EXTENSION_BASE, DAT_EVD_EXTENSION_BASE | DAT_EVD_DTO_FLAG,
#endif
	};
	DAT_IA_HANDLE ia = open_ia(NULL);

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		DAT_EVD_HANDLE evd = make_evd(ia, 10, kinds[i]);
		DAT_EVD_PARAM param;
		DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;

		memset(&param, 0xff, sizeof param);
		OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
		CHECK(param.ia_handle == ia);
		CHECK(param.evd_qlen >= 10);
		CHECK(param.cno_handle == DAT_HANDLE_NULL);
		CHECK_EQ(param.evd_flags, kinds[i]);
		CHECK_EQ(param.evd_state & 0xf, DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_WAITABLE);
		OK(dat_get_handle_type(evd, &type));
		CHECK_EQ(type, DAT_HANDLE_TYPE_EVD);
		check_empty(evd);
		CHECK_RET(dat_evd_free(evd), DAT_SUCCESS);
	}
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void evd_create__merged_kinds_as_the_matrix_says(void)
{
	static const DAT_EVD_FLAGS kinds[6] = {
		DAT_EVD_SOFTWARE_FLAG,	 DAT_EVD_CR_FLAG,	DAT_EVD_DTO_FLAG,
		DAT_EVD_CONNECTION_FLAG, DAT_EVD_RMR_BIND_FLAG, DAT_EVD_ASYNC_FLAG,
	};
	struct rig rig;

	rig_up(&rig);
	for (int i = 0; i < 6; i++)
		for (int j = i + 1; j < 6; j++) {
			DAT_EVD_HANDLE evd;
			DAT_RETURN ret = dat_evd_create(rig.ia, 8, DAT_HANDLE_NULL,
							kinds[i] | kinds[j], &evd);

			if (rig.provider.evd_stream_merging_supported[i][j])
				CHECK_RET(ret, DAT_SUCCESS);
			else
				CHECK_EITHER(ret, DAT_INVALID_PARAMETER, DAT_MODEL_NOT_SUPPORTED);
		}
	rig_down(&rig);
}

static void evd_create__length(void)
{
	struct rig rig;
	DAT_EVD_HANDLE evd;

	rig_up(&rig);
	CHECK_RET(dat_evd_create(rig.ia, 0, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_evd_create(rig.ia, -1, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd),
		  DAT_INVALID_PARAMETER);
	if (rig.attr.max_evd_qlen < INT_MAX)
		CHECK_RET(dat_evd_create(rig.ia, rig.attr.max_evd_qlen + 1, DAT_HANDLE_NULL,
					 DAT_EVD_DTO_FLAG, &evd),
			  DAT_INSUFFICIENT_RESOURCES);
	/* As long as an MPI library has asked for. */
	REQUIRE(rig.attr.max_evd_qlen >= 51200);
	CHECK_RET(dat_evd_create(rig.ia, 51200, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd),
		  DAT_SUCCESS);
	rig_down(&rig);
}

static void evd_create__arguments(void)
{
	struct rig rig;
	DAT_EVD_HANDLE evd;

	rig_up(&rig);
	CHECK_RET(dat_evd_create(rig.ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, NULL),
		  DAT_INVALID_PARAMETER);
	/* The lowest flag that the version has not. */
#ifdef DAT2
	CHECK_RET(dat_evd_create(rig.ia, 8, DAT_HANDLE_NULL, (DAT_EVD_FLAGS)0x400, &evd),
#else
	CHECK_RET(dat_evd_create(rig.ia, 8, DAT_HANDLE_NULL, (DAT_EVD_FLAGS)0x200, &evd),
#endif
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_evd_create(rig.ia, 8, DAT_HANDLE_NULL, (DAT_EVD_FLAGS)0, &evd),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_evd_create(rig.ia, 8, rig.recv_evd, DAT_EVD_DTO_FLAG, &evd),
		  DAT_INVALID_HANDLE);
	CHECK_CODE(dat_evd_create(DAT_HANDLE_NULL, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
	rig_down(&rig);
}

/* --- dat_evd_query ------------------------------------------------------------------------- */

static void evd_query__arguments(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 8, DAT_EVD_SOFTWARE_FLAG);
	DAT_EVD_PARAM param;

	CHECK_RET(dat_evd_query(evd, DAT_EVD_FIELD_ALL, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_evd_query(evd, (DAT_EVD_PARAM_MASK)0x40000, &param), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

/* --- dat_evd_post_se, dat_evd_dequeue ------------------------------------------------------- */

static void evd_post_se__in_order(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 16, DAT_EVD_SOFTWARE_FLAG);

	for (unsigned round = 0; round < 10; round++) {
		for (unsigned i = 0; i < 11; i++)
			OK(post_software_event(evd, 100 * round + i));
		for (unsigned i = 0; i < 11; i++)
			take(evd, 100 * round + i);
		check_empty(evd);
	}
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static void evd_post_se__queue_full(void)
{
	DAT_EVD_HANDLE async_evd;
	DAT_IA_HANDLE ia = open_ia(&async_evd);
	DAT_EVD_HANDLE evd = make_evd(ia, 5, DAT_EVD_SOFTWARE_FLAG);
	unsigned length = (unsigned)length_of(evd);

	for (unsigned i = 0; i < length; i++)
		OK(post_software_event(evd, i));
	CHECK_RET(post_software_event(evd, 999), DAT_QUEUE_FULL);
	/* That is no overflow. */
	EXPECT_NOTHING(async_evd);
	take(evd, 0);
	OK(post_software_event(evd, length));
	for (unsigned i = 1; i <= length; i++)
		take(evd, i);
	check_empty(evd);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static void evd_post_se__arguments(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 8, DAT_EVD_SOFTWARE_FLAG);
	DAT_EVD_HANDLE other = make_evd(ia, 8, DAT_EVD_DTO_FLAG);
	DAT_EVENT event = software_event(1);

	CHECK_RET(dat_evd_post_se(evd, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_evd_post_se(other, &event), DAT_INVALID_PARAMETER);
	event.event_number = DAT_DTO_COMPLETION_EVENT;
	CHECK_RET(dat_evd_post_se(evd, &event), DAT_INVALID_PARAMETER);
	check_empty(evd);
	check_empty(other);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static void evd_dequeue__event_null(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 8, DAT_EVD_SOFTWARE_FLAG);

	OK(post_software_event(evd, 3));
	CHECK_RET(dat_evd_dequeue(evd, NULL), DAT_INVALID_PARAMETER);
	take(evd, 3);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static void evd_dequeue__unwaitable_and_disabled(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 8, DAT_EVD_SOFTWARE_FLAG);

	OK(dat_evd_set_unwaitable(evd));
	OK(dat_evd_disable(evd));
	OK(post_software_event(evd, 1));
	take(evd, 1);
	check_empty(evd);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

/* --- states -------------------------------------------------------------------------------- */

static void evd_enable__state_bits(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 8, DAT_EVD_SOFTWARE_FLAG);

	for (int twice = 0; twice < 2; twice++) {
		CHECK_RET(dat_evd_disable(evd), DAT_SUCCESS);
		CHECK_EQ(state_of(evd), DAT_EVD_STATE_DISABLED | DAT_EVD_STATE_WAITABLE);
	}
	for (int twice = 0; twice < 2; twice++) {
		CHECK_RET(dat_evd_set_unwaitable(evd), DAT_SUCCESS);
		CHECK_EQ(state_of(evd), DAT_EVD_STATE_DISABLED | DAT_EVD_STATE_UNWAITABLE);
	}
	for (int twice = 0; twice < 2; twice++) {
		CHECK_RET(dat_evd_enable(evd), DAT_SUCCESS);
		CHECK_EQ(state_of(evd), DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_UNWAITABLE);
	}
	for (int twice = 0; twice < 2; twice++) {
		CHECK_RET(dat_evd_clear_unwaitable(evd), DAT_SUCCESS);
		CHECK_EQ(state_of(evd), DAT_EVD_STATE_ENABLED | DAT_EVD_STATE_WAITABLE);
	}
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

/* --- dat_evd_modify_cno --------------------------------------------------------------------- */

static void evd_modify_cno__to_another_and_none(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 8, DAT_EVD_SOFTWARE_FLAG);
	DAT_CNO_HANDLE first, second;
	DAT_EVD_PARAM param;

	OK(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &first));
	OK(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &second));
	CHECK_RET(dat_evd_modify_cno(evd, first), DAT_SUCCESS);
	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	CHECK(param.cno_handle == first);
	CHECK_RET(dat_evd_modify_cno(evd, second), DAT_SUCCESS);
	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	CHECK(param.cno_handle == second);
	/* The first is free to go, the second not yet. */
	CHECK_RET(dat_cno_free(first), DAT_SUCCESS);
	CHECK_RET(dat_cno_free(second), DAT_INVALID_STATE);
	CHECK_RET(dat_evd_modify_cno(evd, first), DAT_INVALID_HANDLE);
	CHECK_RET(dat_evd_modify_cno(evd, DAT_HANDLE_NULL), DAT_SUCCESS);
	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	CHECK(param.cno_handle == DAT_HANDLE_NULL);
	CHECK_RET(dat_cno_free(second), DAT_SUCCESS);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

/* --- dat_evd_resize ------------------------------------------------------------------------- */

static void evd_resize__keeps_events(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 4, DAT_EVD_SOFTWARE_FLAG);

	OK(post_software_event(evd, 1));
	OK(post_software_event(evd, 2));
	OK(post_software_event(evd, 3));
	take(evd, 1);
	CHECK_RET(dat_evd_resize(evd, 1000), DAT_SUCCESS);
	CHECK(length_of(evd) >= 1000);
	for (unsigned i = 4; i < 1000; i++)
		OK(post_software_event(evd, i));
	for (unsigned i = 2; i < 990; i++)
		take(evd, i);
	CHECK_RET(dat_evd_resize(evd, 10), DAT_SUCCESS);
	CHECK(length_of(evd) >= 10);
	for (unsigned i = 990; i < 1000; i++)
		take(evd, i);
	check_empty(evd);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static void evd_resize__below_what_is_queued(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 1000, DAT_EVD_SOFTWARE_FLAG);

	for (unsigned i = 0; i < 500; i++)
		OK(post_software_event(evd, i));
	CHECK_RET(dat_evd_resize(evd, 10), DAT_INVALID_STATE);
	CHECK(length_of(evd) >= 1000);
	for (unsigned i = 0; i < 500; i++)
		take(evd, i);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

/* Those count that were moved before an event of another kind, and those that came after it. */
static void evd_resize__below_the_completions(void)
{
	struct rig a, b;
	DAT_EP_HANDLE ep_a, ep_b;

	rig_up(&a);
	rig_up(&b);
	b.recv_evd = make_evd(b.ia, 64, DAT_EVD_DTO_FLAG | DAT_EVD_SOFTWARE_FLAG);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	connect_eps(&a, ep_a, &b, ep_b);
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	/* Flushed at once. */
	for (DAT_UINT64 i = 0; i < 4; i++)
		OK(recv_nothing(ep_b, i));
	OK(post_software_event(b.recv_evd, 4));
	for (DAT_UINT64 i = 5; i < 9; i++)
		OK(recv_nothing(ep_b, i));
	CHECK_RET(dat_evd_resize(b.recv_evd, 8), DAT_INVALID_STATE);
	CHECK_RET(dat_evd_resize(b.recv_evd, 9), DAT_SUCCESS);
	for (DAT_UINT64 i = 0; i < 4; i++)
		EXPECT_DTO(b.recv_evd, i, DAT_DTO_ERR_FLUSHED);
	take(b.recv_evd, 4);
	for (DAT_UINT64 i = 5; i < 9; i++)
		EXPECT_DTO(b.recv_evd, i, DAT_DTO_ERR_FLUSHED);
	rig_down(&a);
	rig_down(&b);
}

static void evd_resize__length(void)
{
	struct rig rig;

	rig_up(&rig);
	CHECK_RET(dat_evd_resize(rig.recv_evd, 0), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_evd_resize(rig.recv_evd, -1), DAT_INVALID_PARAMETER);
	if (rig.attr.max_evd_qlen < INT_MAX)
		CHECK_RET(dat_evd_resize(rig.recv_evd, rig.attr.max_evd_qlen + 1),
			  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_evd_resize(rig.recv_evd, length_of(rig.recv_evd)), DAT_SUCCESS);
	CHECK_RET(dat_evd_resize(rig.async_evd, 100), DAT_SUCCESS);
	CHECK(length_of(rig.async_evd) >= 100);
	rig_down(&rig);
}

/* --- dat_evd_free --------------------------------------------------------------------------- */

static void evd_free__with_events(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 8, DAT_EVD_SOFTWARE_FLAG);
	DAT_EVENT event;

	OK(post_software_event(evd, 1));
	CHECK_RET(dat_evd_free(evd), DAT_SUCCESS);
	CHECK_RET(dat_evd_free(evd), DAT_INVALID_HANDLE);
	CHECK_RET(dat_evd_dequeue(evd, &event), DAT_INVALID_HANDLE);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static void evd_free__fed_by_an_endpoint(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	CHECK_RET(dat_evd_free(rig.recv_evd), DAT_INVALID_STATE);
	CHECK_RET(dat_evd_free(rig.request_evd), DAT_INVALID_STATE);
	CHECK_RET(dat_evd_free(rig.connect_evd), DAT_INVALID_STATE);
	OK(dat_ep_free(ep));
	CHECK_RET(dat_evd_free(rig.recv_evd), DAT_SUCCESS);
	CHECK_RET(dat_evd_free(rig.request_evd), DAT_SUCCESS);
	CHECK_RET(dat_evd_free(rig.connect_evd), DAT_SUCCESS);
	rig_down(&rig);
}

static void evd_free__fed_by_a_listener(void)
{
	struct rig rig;
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp;

	rig_up(&rig);
	psp = listen_any(&rig, &qualifier);
	CHECK_RET(dat_evd_free(rig.cr_evd), DAT_INVALID_STATE);
	OK(dat_psp_free(psp));
	CHECK_RET(dat_evd_free(rig.cr_evd), DAT_SUCCESS);
	rig_down(&rig);
}

static void evd_free__the_async_evd(void)
{
	DAT_EVD_HANDLE async_evd, own;
	DAT_IA_HANDLE ia = open_ia(&async_evd);

	/* Programs do this; whatever the answer, the IA closes. */
	CHECK_EITHER(dat_evd_free(async_evd), DAT_SUCCESS, DAT_INVALID_STATE);
	own = make_evd(ia, 8, DAT_EVD_ASYNC_FLAG);
	CHECK_RET(dat_evd_free(own), DAT_SUCCESS);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

/* --- consumer context ----------------------------------------------------------------------- */

static void consumer_context__of_an_evd(void)
{
	DAT_IA_HANDLE ia = open_ia(NULL);
	DAT_EVD_HANDLE evd = make_evd(ia, 8, DAT_EVD_SOFTWARE_FLAG);
	DAT_CONTEXT context = cookie(1);

	OK(dat_get_consumer_context(evd, &context));
	CHECK_EQ(context.as_64, 0);
	OK(dat_set_consumer_context(evd, cookie(~0ull)));
	OK(dat_get_consumer_context(evd, &context));
	CHECK_EQ(context.as_64, ~0ull);
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static const struct tap_test tests[] = {
	T(evd_create, each_kind),
	T(evd_create, merged_kinds_as_the_matrix_says),
	T(evd_create, length),
	T(evd_create, arguments),
	T(evd_query, arguments),
	T(evd_post_se, in_order),
	T(evd_post_se, queue_full),
	T(evd_post_se, arguments),
	T(evd_dequeue, event_null),
	T(evd_dequeue, unwaitable_and_disabled),
	T(evd_enable, state_bits),
	T(evd_modify_cno, to_another_and_none),
	T(evd_resize, keeps_events),
	T(evd_resize, below_what_is_queued),
	T(evd_resize, below_the_completions),
	T(evd_resize, length),
	T(evd_free, with_events),
	T(evd_free, fed_by_an_endpoint),
	T(evd_free, fed_by_a_listener),
	T(evd_free, the_async_evd),
	T(consumer_context, of_an_evd),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
