/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fork(2): what a child inherits is dead in the child, whatever the threads of the parent did at
 * that moment; the child opens IAs of its own, which work; the parent does not notice.
 */
#include "transfer.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds that a child may take. */
enum { LIMIT = 20 };

/* Runs a function in a child, which then exits as programs do. */
static pid_t start_child(void (*run)(void))
{
	pid_t child;

	fflush(stdout);
	child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		alarm(LIMIT);
		tap_begin(tap_ia);
		run();
		exit(tap_status());
	}
	return child;
}

/* Waits for the end of a child, which found nothing wrong. */
static bool child_ends_well(pid_t child)
{
	int status;

	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK_EQ(status, 0);
	return status == 0;
}

static void in_child(void (*run)(void))
{
	child_ends_well(start_child(run));
}

/* The pair of the test sends and receives a message, or ten. */
static void pair_works(int messages)
{
	for (int i = 0; i < messages; i++) {
		size_t size = i % 2 ? 8 : 40000;

		fill(ma.at, size, (unsigned)(i + getpid()));
		OK(b_receives(0, size, 1));
		OK(a_sends(0, size, 2, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
		CHECK(filled(mb.at, size, (unsigned)(i + getpid())));
	}
}

/* A pair of the child's own moves data and is closed. */
static void moves_data(void)
{
	up();
	pair_works(10);
	OK(a_writes(0, 4096, 4096, 3, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	OK(a_reads(8192, 0, 4096, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	down();
}

/* --- what is inherited -------------------------------------------------------------------- */

static DAT_PSP_HANDLE psp;
static DAT_CONN_QUAL qualifier;
static DAT_CNO_HANDLE cno;

static void uses_all_handles(void)
{
	DAT_LMR_TRIPLET iov = dx_local(ma.local, ma.at, 8);
	DAT_EP_STATE state;
	DAT_BOOLEAN idle;
	DAT_COUNT more;
	DAT_EVENT event;
	DAT_EVD_HANDLE evd;
	DAT_IA_HANDLE ias[] = { p.a.ia, p.b.ia };

	CHECK_RET(dat_ep_post_send(p.ep_a, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_HANDLE);
	CHECK_RET(dat_ep_post_recv(p.ep_b, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_HANDLE);
	CHECK_RET(dat_ep_get_status(p.ep_a, &state, &idle, &idle), DAT_INVALID_HANDLE);
	CHECK_RET(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE);
	CHECK_RET(dat_ep_free(p.ep_b), DAT_INVALID_HANDLE);
	CHECK_RET(dat_evd_dequeue(p.a.request_evd, &event), DAT_INVALID_HANDLE);
	CHECK_RET(dat_evd_wait(p.b.recv_evd, 0, 1, &event, &more), DAT_INVALID_HANDLE);
	CHECK_RET(dat_evd_free(p.a.connect_evd), DAT_INVALID_HANDLE);
	CHECK_RET(dat_cno_wait(cno, 0, &evd), DAT_INVALID_HANDLE);
	CHECK_RET(dat_cno_free(cno), DAT_INVALID_HANDLE);
	CHECK_RET(dat_psp_free(psp), DAT_INVALID_HANDLE);
	CHECK_RET(dat_lmr_free(ma.lmr), DAT_INVALID_HANDLE);
	CHECK_RET(dat_pz_free(p.a.pz), DAT_INVALID_HANDLE);
	for (int i = 0; i < 2; i++) {
		CHECK_RET(dat_ia_query(ias[i], &evd, DAT_IA_FIELD_ALL, &p.a.attr, 0, NULL),
			  DAT_INVALID_HANDLE);
		CHECK_RET(dat_ia_close(ias[i], DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_HANDLE);
		CHECK_RET(dat_ia_close(ias[i], DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE);
	}
}

/* New handles are not those of the parent. */
static void uses_all_handles_and_new_ones(void)
{
	DAT_IA_HANDLE ias[] = { p.a.ia, p.b.ia }, new_ia;
	DAT_EVD_HANDLE async_evd;

	uses_all_handles();
	new_ia = open_ia(&async_evd);
	CHECK(new_ia != ias[0] && new_ia != ias[1]);
	uses_all_handles();
	OK(dat_ia_close(new_ia, DAT_CLOSE_ABRUPT_FLAG));
	CHECK_RET(dat_ia_close(new_ia, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE);
}

static void fork__inherited_handles_are_dead(void)
{
	up();
	psp = listen_any(&p.b, &qualifier);
	OK(dat_cno_create(p.a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	pair_works(4);
	in_child(uses_all_handles);
	pair_works(4);
	in_child(uses_all_handles_and_new_ones);
	pair_works(4);
	EXPECT_NOTHING(p.a.connect_evd);
	EXPECT_NOTHING(p.b.connect_evd);
	OK(dat_psp_free(psp));
	down();
}

static void exits_at_once(void)
{
}

static void fork__child_that_does_nothing(void)
{
	up();
	pair_works(4);
	in_child(exits_at_once);
	pair_works(4);
	EXPECT_NOTHING(p.a.connect_evd);
	down();
}

/* --- IAs of the child --------------------------------------------------------------------- */

static void fork__child_moves_data(void)
{
	up();
	pair_works(4);
	in_child(moves_data);
	pair_works(4);
	in_child(moves_data);
	down();
	in_child(moves_data);
}

static void has_a_child_too(void)
{
	moves_data();
	up();
	in_child(moves_data);
	pair_works(4);
	down();
}

static void fork__child_of_a_child(void)
{
	up();
	in_child(has_a_child_too);
	pair_works(4);
	down();
}

/* The messages of a connection between two processes. An iWARP peer ends the connection that sends one before there
 * is a receive for it. */
enum { BYTES = 30000, MESSAGES = 20 };

/* Memory for the messages of both ends, and the receive for the first one. */
static struct mem receive_first(const struct rig *rig, DAT_EP_HANDLE ep)
{
	struct mem mem = make_mem(rig, 1 << 16, DAT_MEM_PRIV_ALL_FLAG);
	DAT_LMR_TRIPLET in = dx_local(mem.local, mem.at, BYTES);

	OK(dat_ep_post_recv(ep, 1, &in, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	return mem;
}

static void send_message(struct rig *rig, DAT_EP_HANDLE ep, const struct mem *mem, unsigned number)
{
	DAT_LMR_TRIPLET out = dx_local(mem->local, mem->at + 32768, BYTES);

	fill(mem->at + 32768, BYTES, number);
	OK(dat_ep_post_send(ep, 1, &out, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(rig->request_evd, 2, DAT_DTO_SUCCESS);
}

/* One end: messages of both. */
static void ping_pong(struct rig *rig, DAT_EP_HANDLE ep, const struct mem *mem, bool first)
{
	DAT_LMR_TRIPLET in = dx_local(mem->local, mem->at, BYTES);

	for (unsigned i = 0; i < MESSAGES; i++) {
		if (first)
			send_message(rig, ep, mem, i);
		EXPECT_DTO(rig->recv_evd, 1, DAT_DTO_SUCCESS);
		CHECK(filled(mem->at, BYTES, i));
		if (i + 1 < MESSAGES)
			OK(dat_ep_post_recv(ep, 1, &in, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
		if (!first)
			send_message(rig, ep, mem, i);
	}
}

static void connects(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	struct mem mem;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	mem = receive_first(&rig, ep);
	OK(try_connect(ep, &rig, qualifier, SOON));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	ping_pong(&rig, ep, &mem, true);
	OK(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	rig_down(&rig);
}

static void accepts(struct rig *rig)
{
	DAT_EP_HANDLE ep = make_ep(rig, NULL);
	struct mem mem = receive_first(rig, ep);

	OK(dat_cr_accept(await_request(rig), ep, 0, NULL));
	EXPECT(rig->connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	ping_pong(rig, ep, &mem, false);
	EXPECT(rig->connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	OK(dat_ep_free(ep));
}

static void fork__child_with_its_parent(void)
{
	pid_t child;

	up();
	pair_works(4);
	psp = listen_any(&p.b, &qualifier);
	for (int i = 0; i < 3; i++) {
		child = start_child(connects);
		accepts(&p.b);
		child_ends_well(child);
	}
	pair_works(4);
	OK(dat_psp_free(psp));
	down();
}

static int ready[2];

static void listens(void)
{
	struct rig rig;

	rig_up(&rig);
	psp = listen_any(&rig, &qualifier);
	REQUIRE(write(ready[1], &qualifier, sizeof qualifier) == sizeof qualifier);
	accepts(&rig);
	rig_down(&rig);
}

static void fork__children_with_each_other(void)
{
	pid_t one, other;

	up();
	pair_works(4);
	REQUIRE(pipe(ready) == 0);
	one = start_child(listens);
	REQUIRE(read(ready[0], &qualifier, sizeof qualifier) == sizeof qualifier);
	other = start_child(connects);
	child_ends_well(other);
	child_ends_well(one);
	pair_works(4);
	down();
}

/* --- what a child holds of its parent ----------------------------------------------------- */

static void sleeps(void)
{
	REQUIRE(write(ready[1], "", 1) == 1);
	pause_us(100ul * 1000 * 1000);
}

/* A child that sleeps keeps neither the port of its parent nor its connections. */
static void fork__child_holds_nothing(void)
{
	struct rig rig;
	DAT_CONN_QUAL taken;
	DAT_PSP_HANDLE again;
	pid_t child;
	char c;

	REQUIRE(pipe(ready) == 0);
	up();
	psp = listen_any(&p.b, &taken);
	child = start_child(sleeps);
	REQUIRE(read(ready[0], &c, 1) == 1);
	OK(dat_psp_free(psp));
	CHECK_RET(dat_psp_create(p.b.ia, taken, p.b.cr_evd, DAT_PSP_CONSUMER_FLAG, &again),
		  DAT_SUCCESS);
	rig_up(&rig);
	rig_down(&rig);
	down();
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static int go_on[2];

static void connects_and_has_a_child(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	char c;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	OK(try_connect(ep, &rig, qualifier, SOON));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	close(go_on[1]);
	start_child(sleeps);
	REQUIRE(read(ready[0], &c, 1) == 1);
	REQUIRE(read(go_on[0], &c, 1) == 0);
	/* The process ends without notice to its peer, and its child goes on. */
	_exit(tap_status());
}

/* The peer of a process that dies notices that while a child of the process lives. */
static void fork__death_of_a_parent_is_noticed(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EVENT event;
	DAT_COUNT more;
	pid_t child;
	struct pollfd its_child;

	REQUIRE(pipe(go_on) == 0 && pipe(ready) == 0);
	rig_up(&rig);
	psp = listen_any(&rig, &qualifier);
	child = start_child(connects_and_has_a_child);
	ep = make_ep(&rig, NULL);
	OK(dat_cr_accept(await_request(&rig), ep, 0, NULL));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	close(go_on[0]);
	close(go_on[1]);
	close(ready[1]);
	child_ends_well(child);
	OK(dat_evd_wait(rig.connect_evd, SOON, 1, &event, &more));
	CHECK(event.event_number == DAT_CONNECTION_EVENT_BROKEN ||
	      event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED);
	/* The other end of the pipe is that child's. */
	its_child = (struct pollfd){ .fd = ready[0], .events = POLLIN };
	CHECK_EQ(poll(&its_child, 1, 0), 0);
	close(ready[0]);
	rig_down(&rig);
}

/* --- other threads ------------------------------------------------------------------------ */

static atomic_bool stop;

static void *posts(void *arg)
{
	DAT_EVENT event;

	(void)arg;
	while (!stop) {
		size_t size = rand() % 3 ? 64 : 100000;

		OK(b_receives(0, size, 1));
		OK(a_sends(0, size, 2, DAT_COMPLETION_DEFAULT_FLAG));
		while (dat_evd_dequeue(p.a.request_evd, &event) != DAT_SUCCESS)
			;
		while (dat_evd_dequeue(p.b.recv_evd, &event) != DAT_SUCCESS)
			;
	}
	return NULL;
}

static void *waits(void *arg)
{
	DAT_EVD_HANDLE evd = make_evd(p.a.ia, 8, DAT_EVD_SOFTWARE_FLAG);
	DAT_EVENT event;
	DAT_COUNT more;

	(void)arg;
	while (!stop)
		CHECK_RET(dat_evd_wait(evd, 300, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
	return NULL;
}

static void *waits_for_a_cno(void *arg)
{
	DAT_CNO_HANDLE own;
	DAT_EVD_HANDLE evd;

	(void)arg;
	OK(dat_cno_create(p.b.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &own));
	while (!stop)
		CHECK_RET(dat_cno_wait(own, 300, &evd), DAT_QUEUE_EMPTY);
	return NULL;
}

static void *registers(void *arg)
{
	(void)arg;
	while (!stop) {
		struct mem mem = make_mem(&p.a, 1 << 16, DAT_MEM_PRIV_ALL_FLAG);

		free_mem(&mem);
	}
	return NULL;
}

static void *opens(void *arg)
{
	(void)arg;
	while (!stop) {
		DAT_EVD_HANDLE async_evd;
		DAT_IA_HANDLE ia = open_ia(&async_evd);

		OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
	}
	return NULL;
}

static void *connects_often(void *arg)
{
	struct pair pair;

	(void)arg;
	while (!stop) {
		pair_up(&pair, NULL);
		pair_down(&pair);
	}
	return NULL;
}

static void *queries(void *arg)
{
	DAT_PROVIDER_INFO infos[64], *list[64];
	DAT_COUNT count;

	(void)arg;
	for (int i = 0; i < 64; i++)
		list[i] = &infos[i];
	while (!stop)
		CHECK_RET(dat_registry_list_providers(64, &count, list), DAT_SUCCESS);
	return NULL;
}

static void forks_beside(void *(*call)(void *), int times)
{
	pthread_t threads[2];

#ifdef __SANITIZE_ADDRESS__
	tap_skip("AddressSanitizer's allocator may be locked after a fork beside other threads");
#endif
	up();
	pair_works(2);
	for (int i = 0; i < 2; i++)
		REQUIRE(pthread_create(&threads[i], NULL, call, NULL) == 0);
	for (int i = 0; i < times; i++) {
		pause_us(200 + rand() % 2000);
		if (!child_ends_well(start_child(moves_data)))
			break;
	}
	stop = true;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	if (call != posts)
		pair_works(4);
	down();
}

/* Posts of two threads on one pair would take each other's completions: one thread posts. */
static void fork__beside_posts(void)
{
	pthread_t thread;

	up();
	REQUIRE(pthread_create(&thread, NULL, posts, NULL) == 0);
	for (int i = 0; i < 40; i++) {
		pause_us(200 + rand() % 2000);
		if (!child_ends_well(start_child(moves_data)))
			break;
	}
	stop = true;
	pthread_join(thread, NULL);
	down();
}

static void fork__beside_waits(void)
{
	forks_beside(waits, 30);
}

static void fork__beside_waits_for_a_cno(void)
{
	forks_beside(waits_for_a_cno, 30);
}

static void fork__beside_registrations(void)
{
	forks_beside(registers, 40);
}

static void fork__beside_opens(void)
{
	forks_beside(opens, 40);
}

static void fork__beside_connects(void)
{
	forks_beside(connects_often, 40);
}

static void fork__beside_queries(void)
{
	forks_beside(queries, 20);
}

static const struct tap_test tests[] = {
	T(fork, inherited_handles_are_dead),
	T(fork, child_that_does_nothing),
	T(fork, child_moves_data),
	T(fork, child_of_a_child),
	T(fork, child_with_its_parent),
	T(fork, children_with_each_other),
	T(fork, child_holds_nothing),
	T(fork, death_of_a_parent_is_noticed),
	T(fork, beside_posts),
	T(fork, beside_waits),
	T(fork, beside_waits_for_a_cno),
	T(fork, beside_registrations),
	T(fork, beside_opens),
	T(fork, beside_connects),
	T(fork, beside_queries),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
