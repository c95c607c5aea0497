/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Several threads at once, where the provider says that it is thread safe. */
#include "common.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 100 };

static struct rig rig;

static void up(void)
{
	rig_up(&rig);
	if (!rig.provider.is_thread_safe)
		tap_unsupported("the provider is not thread safe");
}

/* Runs it in every thread, with the number of the thread. */
static void in_threads(void *(*run)(void *))
{
	pthread_t thread[THREADS];

	for (uintptr_t i = 0; i < THREADS; i++)
		REQUIRE(pthread_create(&thread[i], NULL, run, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		REQUIRE(pthread_join(thread[i], NULL) == 0);
}

static void *make_and_free(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		struct mem mem = make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG);
		DAT_EVD_HANDLE evd = make_evd(rig.ia, 8, DAT_EVD_SOFTWARE_FLAG);
		DAT_EP_HANDLE ep = make_ep(&rig, NULL);
		DAT_PZ_HANDLE pz;
		DAT_EP_PARAM param;

		OK(dat_pz_create(rig.ia, &pz));
		OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
		OK(dat_pz_free(pz));
		OK(dat_ep_free(ep));
		OK(dat_evd_free(evd));
		free_mem(&mem);
	}
	return NULL;
}

static void threads__make_and_free_objects(void)
{
	up();
	in_threads(make_and_free);
	OK(dat_evd_free(rig.recv_evd));
	OK(dat_evd_free(rig.request_evd));
	OK(dat_evd_free(rig.connect_evd));
	OK(dat_evd_free(rig.cr_evd));
	OK(dat_pz_free(rig.pz));
	/* Nothing is left behind. */
	CHECK_RET(dat_ia_close(rig.ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_SUCCESS);
}

static DAT_HANDLE _Atomic current;
static atomic_bool over;

/* Free or not, or another thread waits. */
static void check_use(DAT_RETURN ret, DAT_RETURN when_alive)
{
	if (DAT_GET_TYPE(ret) != DAT_INVALID_STATE)
		CHECK_EITHER(ret, when_alive, DAT_INVALID_HANDLE);
}

/* Uses whatever EVD is current, which may be gone at any moment. */
static void *use(void *arg)
{
	(void)arg;
	while (!atomic_load(&over)) {
		DAT_EVD_HANDLE evd = (DAT_EVD_HANDLE)atomic_load(&current);
		DAT_EVD_PARAM param;
		DAT_EVENT event;
		DAT_COUNT more;

		check_use(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param), DAT_SUCCESS);
		check_use(dat_evd_dequeue(evd, &event), DAT_QUEUE_EMPTY);
		check_use(dat_evd_disable(evd), DAT_SUCCESS);
		check_use(dat_evd_wait(evd, 0, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
	}
	return NULL;
}

static void threads__use_what_another_frees(void)
{
	pthread_t thread[2];

	up();
	current = make_evd(rig.ia, 8, DAT_EVD_SOFTWARE_FLAG);
	for (int i = 0; i < 2; i++)
		REQUIRE(pthread_create(&thread[i], NULL, use, NULL) == 0);
	for (int i = 0; i < 10 * ROUNDS; i++) {
		DAT_EVD_HANDLE old = (DAT_EVD_HANDLE)atomic_load(&current);

		atomic_store(&current, (DAT_HANDLE)make_evd(rig.ia, 8, DAT_EVD_SOFTWARE_FLAG));
		/* Refused while a thread is in dat_evd_wait. */
		while (DAT_GET_TYPE(dat_evd_free(old)) == DAT_INVALID_STATE)
			;
	}
	atomic_store(&over, true);
	for (int i = 0; i < 2; i++)
		REQUIRE(pthread_join(thread[i], NULL) == 0);
	rig_down(&rig);
}

enum kind { PZ, EVD, CNO, LMR, RMR, EP, PSP, KINDS };

static char memory[64];

static DAT_HANDLE make_object(enum kind kind)
{
	DAT_REGION_DESCRIPTION region = { .for_va = memory };
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
	DAT_CONN_QUAL qualifier;
	DAT_VADDR address;
	DAT_VLEN length;
	DAT_HANDLE made = DAT_HANDLE_NULL;

	switch (kind) {
	case PZ:
		OK(dat_pz_create(rig.ia, &made));
		break;
	case EVD:
		return make_evd(rig.ia, 8, DAT_EVD_SOFTWARE_FLAG);
	case CNO:
		OK(dat_cno_create(rig.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &made));
		break;
	case LMR:
		OK(dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, rig.pz,
				 DAT_MEM_PRIV_ALL_FLAG, &made, &local, &remote, &length, &address));
		break;
	case RMR:
		OK(dat_rmr_create(rig.pz, &made));
		break;
	case EP:
		return make_ep(&rig, NULL);
	case PSP:
		return listen_any(&rig, &qualifier);
	case KINDS:
		break;
	}
	return made;
}

static DAT_RETURN free_object(enum kind kind, DAT_HANDLE handle)
{
	switch (kind) {
	case PZ:
		return dat_pz_free(handle);
	case EVD:
		return dat_evd_free(handle);
	case CNO:
		return dat_cno_free(handle);
	case LMR:
		return dat_lmr_free(handle);
	case RMR:
		return dat_rmr_free(handle);
	case EP:
		return dat_ep_free(handle);
	case PSP:
		return dat_psp_free(handle);
	case KINDS:
		break;
	}
	return DAT_INTERNAL_ERROR;
}

static enum kind freed_kind;
static DAT_RETURN freed_with;
static atomic_int turn, turn_over;

static void await_turn(atomic_int *turns, int number)
{
	for (int i = 0; atomic_load(turns) != number; i++)
		if (i > 10000)
			sched_yield();
}

static void *free_current(void *unused)
{
	(void)unused;
	for (int i = 1; i <= KINDS * ROUNDS; i++) {
		await_turn(&turn, i);
		freed_with = free_object(freed_kind, atomic_load(&current));
		atomic_store(&turn_over, i);
	}
	return NULL;
}

/* Of two threads that free an object at the same time one does, and the other's handle is not valid. */
static void threads__free_one_object_at_the_same_time(void)
{
	pthread_t thread;

	up();
	REQUIRE(pthread_create(&thread, NULL, free_current, NULL) == 0);
	for (int i = 1; i <= KINDS * ROUNDS; i++) {
		DAT_RETURN ours;

		freed_kind = (enum kind)(i % KINDS);
		atomic_store(&current, make_object(freed_kind));
		atomic_store(&turn, i);
		ours = free_object(freed_kind, atomic_load(&current));
		await_turn(&turn_over, i);
		CHECK_EITHER(ours, DAT_SUCCESS, DAT_INVALID_HANDLE);
		CHECK_EITHER(freed_with, DAT_SUCCESS, DAT_INVALID_HANDLE);
		CHECK((ours == DAT_SUCCESS) != (freed_with == DAT_SUCCESS));
	}
	REQUIRE(pthread_join(thread, NULL) == 0);
	RIG_DOWN_UNUSED(&rig);
}

static struct pair pair;
static DAT_EP_HANDLE active[THREADS], passive[THREADS];
static DAT_EVD_HANDLE sent[THREADS], received[THREADS];

static void *talk(void *arg)
{
	uintptr_t i = (uintptr_t)arg;
	DAT_LMR_TRIPLET none = { 0 };

	for (DAT_UINT64 round = 0; round < ROUNDS; round++) {
		OK(dat_ep_post_recv(passive[i], 0, &none, cookie(round),
				    DAT_COMPLETION_DEFAULT_FLAG));
		OK(dat_ep_post_send(active[i], 0, &none, cookie(round),
				    DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(sent[i], round, DAT_DTO_SUCCESS);
		EXPECT_DTO(received[i], round, DAT_DTO_SUCCESS);
	}
	return NULL;
}

static void threads__each_with_a_connection(void)
{
	up();
	rig_down(&rig);
	rig_up(&pair.a);
	rig_up(&pair.b);
	for (int i = 0; i < THREADS; i++) {
		struct rig a = pair.a, b = pair.b;

		sent[i] = a.request_evd = make_evd(a.ia, 16, DAT_EVD_DTO_FLAG);
		received[i] = b.recv_evd = make_evd(b.ia, 16, DAT_EVD_DTO_FLAG);
		active[i] = make_ep(&a, NULL);
		passive[i] = make_ep(&b, NULL);
		connect_eps(&a, active[i], &b, passive[i]);
	}
	in_threads(talk);
	pair_down(&pair);
}

static volatile sig_atomic_t handled;

static void on_signal(int number)
{
	(void)number;
	handled++;
}

/* What is for the program is not taken by a thread that it does not know. */
static void threads__leave_signals_to_the_program(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct timespec second = { .tv_sec = 1 };
	sigset_t set;

	pair_up(&pair, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
	REQUIRE(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	REQUIRE(kill(getpid(), SIGUSR1) == 0);
	pause_us(NEVER);
	CHECK_EQ(handled, 0);
	CHECK_EQ(sigtimedwait(&set, NULL, &second), SIGUSR1);
	pair_down(&pair);
}

/* How threads are scheduled is for the program to say, of those that it does not know too. */
static void threads__keep_the_policy_of_the_program(void)
{
	struct sched_param none = { 0 };
	struct dirent *task;
	int threads = 0;
	DIR *tasks;

	/* musl has a function that always fails. */
	REQUIRE(syscall(SYS_sched_setscheduler, 0, SCHED_BATCH, &none) == 0);
	pair_up(&pair, NULL);
	/* A thread that has just been made may not have run yet. */
	pause_us(NEVER);
	REQUIRE((tasks = opendir("/proc/self/task")) != NULL);
	while ((task = readdir(tasks))) {
		int policy;

		if (task->d_name[0] == '.')
			continue;
		policy = (int)syscall(SYS_sched_getscheduler, atoi(task->d_name));
		/* -1: a thread that has ended. */
		CHECK(policy == SCHED_BATCH || policy == -1);
		threads++;
	}
	closedir(tasks);
	CHECK(threads > 0);
	pair_down(&pair);
}

/* More than the stacks of the library's threads were once, as `threadprivate` variables of OpenMP may be: the C
 * library takes it from the stack of each thread. */
static _Thread_local volatile char variables[3 << 20];

static void threads__beside_large_thread_local_variables(void)
{
	variables[sizeof(variables) - 1] = 1;
	pair_up(&pair, NULL);
	EXPECT_NOTHING(pair.a.async_evd);
	pair_down(&pair);
}

/* Seconds that the date is put back, and threads that were left to themselves. */
static _Atomic long long put_back;
static _Atomic int detached;

/* The library reads the clocks here. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
	long result = syscall(SYS_clock_gettime, clock, now);

	if (clock == CLOCK_REALTIME && result == 0)
		now->tv_sec -= (time_t)atomic_load(&put_back);
	return (int)result;
}

int pthread_detach(pthread_t thread)
{
	int (*detach)(pthread_t);

	atomic_fetch_add(&detached, 1);
	*(void **)&detach = dlsym(RTLD_NEXT, "pthread_detach");
	REQUIRE(detach != NULL);
	return detach(thread);
}

/* dat_ia_close waits for the ends of the threads, whatever happens to the date: to the C library, which goes by the
 * kernel, the end of a wait by the date of the library is long ago. */
static void threads__end_with_the_ia_at_any_date(void)
{
	DAT_CONN_QUAL qualifier;
	struct rig other;

	atomic_store(&put_back, 3600);
	for (int i = 0; i < ROUNDS; i++) {
		rig_up(&other);
		listen_any(&other, &qualifier);
		rig_down(&other);
	}
	atomic_store(&put_back, 0);
	CHECK_EQ(atomic_load(&detached), 0);
}

static const struct tap_test tests[] = {
	T(threads, make_and_free_objects),
	T(threads, use_what_another_frees),
	T(threads, free_one_object_at_the_same_time),
	T(threads, each_with_a_connection),
	T(threads, leave_signals_to_the_program),
	T(threads, keep_the_policy_of_the_program),
	T(threads, beside_large_thread_local_variables),
	T(threads, end_with_the_ia_at_any_date),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
