/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "cno.h"

#include <string.h>
#include <unistd.h>

DAT_IA_HANDLE ia;
DAT_CNO_HANDLE cno;
DAT_EVD_HANDLE evd;

void cno_up(void)
{
	ia = open_ia(NULL);
	OK(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &evd));
}

void cno_down(void)
{
	CHECK_RET(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

static void *wait_thread(void *arg)
{
	struct waiter *w = arg;

	w->evd = (DAT_EVD_HANDLE)(uintptr_t)0x1230;
	w->tid = gettid();
	w->ret = dat_cno_wait(cno, SOON, &w->evd);
	w->over = true;
	return NULL;
}

void start_waiter(struct waiter *w)
{
	w->tid = 0;
	w->over = false;
	REQUIRE(pthread_create(&w->thread, NULL, wait_thread, w) == 0);
	await_asleep(&w->tid);
}

void finish_waiter(struct waiter *w)
{
	REQUIRE(pthread_join(w->thread, NULL) == 0);
}
