/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Several threads at once, where the provider says that it is thread safe. */
#include "common.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
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

static const struct tap_test tests[] = {
	T(threads, make_and_free_objects),
	T(threads, use_what_another_frees),
	T(threads, each_with_a_connection),
	T(threads, leave_signals_to_the_program),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
