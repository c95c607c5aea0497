/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* EVDs and CNOs, with software events. */
#include "behaviour.h"

#include <string.h>

/* --- EVDs --------------------------------------------------------------------------------- */

static void print_evd(DAT_EVD_HANDLE evd)
{
	DAT_EVD_PARAM param;

	memset(&param, 0, sizeof param);
	CALL(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	print("ia_handle %s, as long as asked for %d, state %#x, cno %s, flags %#x",
	      handle_name(param.ia_handle), param.evd_qlen >= 5, param.evd_state,
	      handle_name(param.cno_handle), param.evd_flags);
}

static void evd_create(void)
{
	DAT_EVD_HANDLE evd;

	open_all();
	CALL(dat_evd_create(ia, 5, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd));
	print_evd(evd);
	CALL(dat_evd_free(evd));
	CALL(dat_evd_create(ia, 5, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &evd));
	CALL(dat_evd_create(ia, 5, DAT_HANDLE_NULL, DAT_EVD_DEFAULT_FLAG, &evd));
	CALL(dat_evd_create(ia, 5, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG | DAT_EVD_CR_FLAG, &evd));
	CALL(dat_evd_create(ia, 5, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG,
			    &evd));
	CALL(dat_evd_create(ia, 5, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG,
			    &evd));
	CALL(dat_evd_create(ia, 5, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_CR_FLAG, &evd));
	CALL(dat_evd_create(ia, 5, DAT_HANDLE_NULL, DAT_EVD_ASYNC_FLAG, &evd));
	CALL(dat_evd_create(ia, 5, DAT_HANDLE_NULL, (DAT_EVD_FLAGS)0, &evd));
	CALL(dat_evd_create(ia, 5, DAT_HANDLE_NULL, (DAT_EVD_FLAGS)0x4000, &evd));
	CALL(dat_evd_create(ia, 0, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd));
	CALL(dat_evd_create(ia, -1, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd));
	CALL(dat_evd_create(ia, 5, pz, DAT_EVD_DTO_FLAG, &evd));
	CALL(dat_evd_create(DAT_HANDLE_NULL, 5, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd));
}

static void post_number(DAT_EVD_HANDLE evd, unsigned number)
{
	DAT_EVENT event;

	memset(&event, 0, sizeof event);
	event.event_number = DAT_SOFTWARE_EVENT;
	event.event_data.software_event_data.pointer = (DAT_PVOID)(uintptr_t)number;
	CALL(dat_evd_post_se(evd, &event));
}

static void software_events(void)
{
	DAT_EVD_HANDLE evd;
	DAT_EVENT event;
	DAT_COUNT more = -1;

	open_all();
	evd = make_evd("evd", 4, DAT_EVD_SOFTWARE_FLAG);
	CALL(dat_evd_dequeue(evd, &event));
	post_number(evd, 1);
	post_number(evd, 2);
	post_number(evd, 3);
	EVENT(evd);
	CALL(dat_evd_wait(evd, DAT_TIMEOUT_INFINITE, 1, &event, &more));
	print("pointer %u, %d more",
	      (unsigned)(uintptr_t)event.event_data.software_event_data.pointer, (int)more);
	CALL(dat_evd_wait(evd, 10000, 2, &event, &more));
	print("%d more", (int)more);
	CALL(dat_evd_wait(evd, 0, 1, &event, &more));
	print("pointer %u, %d more",
	      (unsigned)(uintptr_t)event.event_data.software_event_data.pointer, (int)more);
	CALL(dat_evd_wait(evd, 0, 1, &event, &more));
	CALL(dat_evd_wait(evd, 10000, 1, &event, &more));
	/* Another number, and an EVD of another kind. */
	memset(&event, 0, sizeof event);
	event.event_number = DAT_DTO_COMPLETION_EVENT;
	CALL(dat_evd_post_se(evd, &event));
	event.event_number = DAT_SOFTWARE_EVENT;
	CALL(dat_evd_post_se(requests, &event));
	CALL(dat_evd_free(evd));
}

static void software_events_beyond_the_length(void)
{
	DAT_EVD_HANDLE evd;
	DAT_EVENT event;
	DAT_RETURN code = DAT_SUCCESS;
	int posted;

	open_all();
	evd = make_evd("evd", 4, DAT_EVD_SOFTWARE_FLAG);
	memset(&event, 0, sizeof event);
	event.event_number = DAT_SOFTWARE_EVENT;
	for (posted = 0; posted < 5000 && code == DAT_SUCCESS; posted++)
		code = dat_evd_post_se(evd, &event);
	print("refused after at least four: %d", posted > 4);
	(void)print_call("dat_evd_post_se", code);
	NO_EVENT(async);
}

static void evd_wait_arguments(void)
{
	DAT_EVD_HANDLE evd;
	DAT_EVENT event;
	DAT_COUNT more;

	open_all();
	evd = make_evd("evd", 4, DAT_EVD_SOFTWARE_FLAG);
	CALL(dat_evd_wait(evd, 1000, 0, &event, &more));
	CALL(dat_evd_wait(evd, 1000, -1, &event, &more));
	CALL(dat_evd_wait(evd, 1000, 100000, &event, &more));
	CALL(dat_evd_wait(evd, 1000, 1, NULL, &more));
	CALL(dat_evd_wait(evd, 1000, 1, &event, NULL));
	CALL(dat_evd_wait(DAT_HANDLE_NULL, 1000, 1, &event, &more));
	CALL(dat_evd_dequeue(evd, NULL));
	CALL(dat_evd_dequeue(DAT_HANDLE_NULL, &event));
}

static void evd_unwaitable(void)
{
	DAT_EVD_HANDLE evd;
	DAT_EVENT event;
	DAT_COUNT more;

	open_all();
	evd = make_evd("evd", 5, DAT_EVD_SOFTWARE_FLAG);
	CALL(dat_evd_set_unwaitable(evd));
	print_evd(evd);
	CALL(dat_evd_wait(evd, 1000, 1, &event, &more));
	post_number(evd, 1);
	EVENT(evd);
	CALL(dat_evd_clear_unwaitable(evd));
	print_evd(evd);
	CALL(dat_evd_wait(evd, 1000, 1, &event, &more));
	CALL(dat_evd_disable(evd));
	print_evd(evd);
	CALL(dat_evd_enable(evd));
	print_evd(evd);
}

static void evd_resize(void)
{
	DAT_EVD_HANDLE evd;
	DAT_EVD_PARAM param;

	open_all();
	evd = make_evd("evd", 4, DAT_EVD_SOFTWARE_FLAG);
	CALL(dat_evd_resize(evd, 64));
	memset(&param, 0, sizeof param);
	CALL(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	print("as long as asked for: %d", param.evd_qlen >= 64);
	post_number(evd, 1);
	post_number(evd, 2);
	EVENT(evd);
	EVENT(evd);
	CALL(dat_evd_resize(requests, 32));
	CALL(dat_evd_resize(evd, 0));
	CALL(dat_evd_resize(evd, -1));
	CALL(dat_evd_resize(evd, 64));
	CALL(dat_evd_resize(evd, 8));
}

static void evd_in_use(void)
{
	open_listener(NULL);
	CALL(dat_evd_free(a.recv));
	CALL(dat_evd_free(a.request));
	CALL(dat_evd_free(a.connect));
	CALL(dat_evd_free(requests));
	CALL(dat_evd_free(async));
	CALL(dat_ep_free(a.ep));
	CALL(dat_psp_free(psp));
	CALL(dat_evd_free(a.recv));
	CALL(dat_evd_free(a.request));
	CALL(dat_evd_free(a.connect));
	CALL(dat_evd_free(requests));
}

/* --- CNOs --------------------------------------------------------------------------------- */

static void cnos(void)
{
	DAT_CNO_HANDLE cno, other;
	DAT_CNO_PARAM param;
	DAT_EVD_HANDLE evd, triggered = DAT_HANDLE_NULL;

	open_all();
	CALL(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	name_handle("cno", cno);
	NEED(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &other));
	name_handle("other", other);
	memset(&param, 0, sizeof param);
	CALL(dat_cno_query(cno, DAT_CNO_FIELD_ALL, &param));
	print("ia_handle %s, proxy_type %d", handle_name(param.ia_handle), param.proxy_type);
	CALL(dat_cno_wait(cno, 1000, &triggered));
	print("evd %s", handle_name(triggered));
	CALL(dat_evd_create(ia, 5, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
	name_handle("evd", evd);
	print_evd(evd);
	post_number(evd, 1);
	CALL(dat_cno_wait(cno, DAT_TIMEOUT_INFINITE, &triggered));
	print("evd %s", handle_name(triggered));
	CALL(dat_cno_wait(cno, 1000, &triggered));
	EVENT(evd);
	CALL(dat_cno_free(cno));
	CALL(dat_evd_modify_cno(evd, other));
	print_evd(evd);
	CALL(dat_cno_free(cno));
	CALL(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
	print_evd(evd);
	CALL(dat_cno_free(other));
}

static void cno_triggered_twice(void)
{
	DAT_CNO_HANDLE cno;
	DAT_EVD_HANDLE evd, second, triggered = DAT_HANDLE_NULL;

	open_all();
	NEED(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	NEED(dat_evd_create(ia, 5, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
	NEED(dat_evd_create(ia, 5, cno, DAT_EVD_SOFTWARE_FLAG, &second));
	name_handle("evd", evd);
	name_handle("second", second);
	post_number(evd, 1);
	post_number(evd, 2);
	post_number(second, 3);
	CALL(dat_cno_wait(cno, 100000, &triggered));
	print("evd %s", handle_name(triggered));
	CALL(dat_cno_wait(cno, 100000, &triggered));
	CALL(dat_cno_wait(cno, 100000, &triggered));
	EVENT(evd);
	EVENT(evd);
	EVENT(second);
	/* An EVD that has an event when it gets the CNO. */
	NEED(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
	post_number(evd, 4);
	CALL(dat_evd_modify_cno(evd, cno));
	CALL(dat_cno_wait(cno, 100000, &triggered));
}

const struct scenario evds[] = {
	{ "evd_create", evd_create },
	{ "software_events", software_events },
	{ "software_events_beyond_the_length", software_events_beyond_the_length },
	{ "evd_wait_arguments", evd_wait_arguments },
	{ "evd_unwaitable", evd_unwaitable },
	{ "evd_resize", evd_resize },
	{ "evd_in_use", evd_in_use },
	{ "cnos", cnos },
	{ "cno_triggered_twice", cno_triggered_twice },
	{ NULL, NULL },
};
