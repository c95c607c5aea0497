/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A consumer notification object for its tests. */
#ifndef CNO_H
#define CNO_H

#include "common.h"

#include <pthread.h>
#include <stdatomic.h>

/* A CNO and an EVD for software events that triggers it. */
extern DAT_IA_HANDLE ia;
extern DAT_CNO_HANDLE cno;
extern DAT_EVD_HANDLE evd;

void cno_up(void);
void cno_down(void);

/* A thread in dat_cno_wait. */
struct waiter {
	pthread_t thread;
	_Atomic pid_t tid;
	DAT_EVD_HANDLE evd;
	DAT_RETURN ret;
	atomic_bool over;
};

/* Starts the thread, and waits until it sleeps. */
void start_waiter(struct waiter *w);
/* Waits for its end. */
void finish_waiter(struct waiter *w);

#endif
