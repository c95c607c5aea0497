/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The order of what a program sees of one connection: its events, its state, its completions, and
 * the calls that end it. docs/event-order.md has the rules. Here nothing is delayed; make order runs
 * the same on a library that delays each step in turn. */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* ROUNDS is how often each order is tried. */
enum { ROUNDS = 12, FEW = 4 };

static struct rig a, b;
static DAT_EP_HANDLE ep_a, ep_b;
static DAT_CONN_QUAL qualifier;
static DAT_PSP_HANDLE psp;

static void up(void)
{
	rig_up(&a);
	rig_up(&b);
	if (!a.provider.is_thread_safe)
		tap_unsupported("the provider is not thread safe");
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	psp = listen_any(&b, &qualifier);
}

static void down(void)
{
	rig_down(&a);
	rig_down(&b);
}

/* Connects, with both ends in the same thread. */
static void join(void)
{
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
}

/* Takes an event that has to be there already. */
static DAT_EVENT take(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;

	OK(dat_evd_dequeue(evd, &event));
	return event;
}

/* No event is there. */
static void nothing(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;

	CHECK_RET(dat_evd_dequeue(evd, &event), DAT_QUEUE_EMPTY);
}

/* Nothing of an endpoint is there, and nothing comes. */
static void silent(const struct rig *rig)
{
	pause_us(20 * 1000);
	nothing(rig->connect_evd);
	nothing(rig->recv_evd);
	nothing(rig->request_evd);
}

static void flushed(DAT_EVD_HANDLE evd, DAT_UINT64 value)
{
	DAT_DTO_COMPLETION_EVENT_DATA data = take(evd).event_data.dto_completion_event_data;

	CHECK_EQ(data.user_cookie.as_64, value);
	CHECK_EQ(data.status, DAT_DTO_ERR_FLUSHED);
}

/* --- the state and the event of a connection -------------------------------------------------- */

static void order__established_then_connected(void)
{
	up();
	for (int i = 0; i < ROUNDS; i++) {
		OK(recv_nothing(ep_a, 1));
		OK(recv_nothing(ep_b, 2));
		OK(try_connect(ep_a, &b, qualifier, SOON));
		OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_CONNECTED);
		OK(send_nothing(ep_a, 3, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_CONNECTED);
		OK(send_nothing(ep_b, 4, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(a.recv_evd, 1, DAT_DTO_SUCCESS);
		EXPECT_DTO(b.recv_evd, 2, DAT_DTO_SUCCESS);
		OK(dat_ep_free(ep_a));
		OK(dat_ep_free(ep_b));
		ep_a = make_ep(&a, NULL);
		ep_b = make_ep(&b, NULL);
		while (dat_evd_dequeue(a.request_evd, &(DAT_EVENT){ 0 }) == DAT_SUCCESS)
			;
		while (dat_evd_dequeue(b.request_evd, &(DAT_EVENT){ 0 }) == DAT_SUCCESS)
			;
	}
	down();
}

/* Who finds the state before the event can use the connection, and gets the event once. */
static void order__connected_then_established(void)
{
	up();
	for (int i = 0; i < ROUNDS; i++) {
		OK(recv_nothing(ep_a, 1));
		OK(recv_nothing(ep_b, 2));
		OK(try_connect(ep_a, &b, qualifier, SOON));
		OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
		await_state(ep_a, DAT_EP_STATE_CONNECTED);
		OK(send_nothing(ep_a, 3, DAT_COMPLETION_DEFAULT_FLAG));
		await_state(ep_b, DAT_EP_STATE_CONNECTED);
		OK(send_nothing(ep_b, 4, DAT_COMPLETION_DEFAULT_FLAG));
		/* A message is not received before its connection. */
		EXPECT_DTO(a.recv_evd, 1, DAT_DTO_SUCCESS);
		CHECK_EQ(take(a.connect_evd).event_number, DAT_CONNECTION_EVENT_ESTABLISHED);
		EXPECT_DTO(b.recv_evd, 2, DAT_DTO_SUCCESS);
		CHECK_EQ(take(b.connect_evd).event_number, DAT_CONNECTION_EVENT_ESTABLISHED);
		EXPECT_DTO(a.request_evd, 3, DAT_DTO_SUCCESS);
		EXPECT_DTO(b.request_evd, 4, DAT_DTO_SUCCESS);
		OK(dat_ep_free(ep_a));
		OK(dat_ep_free(ep_b));
		ep_a = make_ep(&a, NULL);
		ep_b = make_ep(&b, NULL);
	}
	silent(&a);
	silent(&b);
	down();
}

/* The end of a connection: what was outstanding is there, then the event, and the state with it. */
static void ended(const struct rig *rig, DAT_EP_HANDLE ep, DAT_EVENT_NUMBER number)
{
	DAT_BOOLEAN recv_idle = DAT_FALSE, request_idle = DAT_FALSE;
	DAT_EP_STATE state;

	EXPECT(rig->connect_evd, number);
	for (DAT_UINT64 i = 0; i < FEW; i++)
		flushed(rig->recv_evd, i);
	OK(dat_ep_get_status(ep, &state, &recv_idle, &request_idle));
	CHECK_EQ(state, DAT_EP_STATE_DISCONNECTED);
	CHECK(recv_idle && request_idle);
	/* A marker is flushed at once, and is the last. */
	OK(recv_nothing(ep, 90));
	flushed(rig->recv_evd, 90);
	OK(send_nothing(ep, 91, DAT_COMPLETION_SUPPRESS_FLAG));
	flushed(rig->request_evd, 91);
	nothing(rig->recv_evd);
	nothing(rig->request_evd);
	OK(dat_ep_reset(ep));
}

static void ends(DAT_CLOSE_FLAGS flags)
{
	up();
	for (int i = 0; i < ROUNDS; i++) {
		for (DAT_UINT64 j = 0; j < FEW; j++) {
			OK(recv_nothing(ep_a, j));
			OK(recv_nothing(ep_b, j));
		}
		join();
		OK(dat_ep_disconnect(i % 2 ? ep_a : ep_b, flags));
		ended(&a, ep_a, DAT_CONNECTION_EVENT_DISCONNECTED);
		ended(&b, ep_b, DAT_CONNECTION_EVENT_DISCONNECTED);
	}
	silent(&a);
	silent(&b);
	down();
}

static void order__flushed_then_disconnected(void)
{
	ends(DAT_CLOSE_ABRUPT_FLAG);
}

static void order__flushed_then_disconnected_gracefully(void)
{
	ends(DAT_CLOSE_GRACEFUL_FLAG);
}

/* A request that fails: its completion, the flushes, then BROKEN. */
static void fails(bool polled)
{
	struct mem mem;

	up();
	mem = make_mem(&a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	for (int i = 0; i < ROUNDS; i++) {
		DAT_LMR_TRIPLET iov = dx_local(mem.local, mem.at, 8);
		DAT_RMR_TRIPLET remote = dx_remote(mem.remote + 1, mem.at, 8);
		DAT_DTO_COMPLETION_EVENT_DATA data;

		for (DAT_UINT64 j = 0; j < FEW; j++) {
			OK(recv_nothing(ep_a, j));
			OK(recv_nothing(ep_b, j));
		}
		join();
		OK(dat_ep_post_rdma_read(ep_a, 1, &iov, cookie(7), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG));
		if (polled)
			EXPECT_DTO(a.request_evd, 7, DAT_DTO_ERR_REMOTE_ACCESS);
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
		CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
		if (!polled) {
			data = take(a.request_evd).event_data.dto_completion_event_data;
			CHECK_EQ(data.user_cookie.as_64, 7);
			CHECK_EQ(data.status, DAT_DTO_ERR_REMOTE_ACCESS);
		}
		for (DAT_UINT64 j = 0; j < FEW; j++)
			flushed(a.recv_evd, j);
		OK(dat_ep_reset(ep_a));
		ended(&b, ep_b, DAT_CONNECTION_EVENT_BROKEN);
	}
	free_mem(&mem);
	down();
}

static void order__failed_then_broken(void)
{
	fails(false);
}

static void order__failed_and_polled_then_broken(void)
{
	fails(true);
}

/* One EVD for all: nothing of the connection comes behind its end. */
static void order__completions_before_the_end_on_one_evd(void)
{
	enum { DEPTH = 8 };
	DAT_EVD_FLAGS flags = DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG;

	up();
	b.recv_evd = b.request_evd = b.connect_evd = make_evd(b.ia, 64, flags);
	for (int i = 0; i < ROUNDS; i++) {
		int recvs = 0, requests = 0;
		DAT_EVENT event;

		OK(dat_ep_free(ep_b));
		ep_b = make_ep(&b, NULL);
		for (DAT_UINT64 j = 0; j < DEPTH; j++) {
			OK(recv_nothing(ep_b, j));
			OK(recv_nothing(ep_a, j));
		}
		join();
		for (DAT_UINT64 j = 0; j < DEPTH / 2; j++) {
			OK(send_nothing(ep_a, j, DAT_COMPLETION_SUPPRESS_FLAG));
			OK(send_nothing(ep_b, 100 + j, DAT_COMPLETION_DEFAULT_FLAG));
		}
		OK(dat_ep_disconnect(i % 2 ? ep_a : ep_b, DAT_CLOSE_ABRUPT_FLAG));
		for (;;) {
			DAT_COUNT more;

			OK(dat_evd_wait(b.recv_evd, SOON, 1, &event, &more));
			if (event.event_number != DAT_DTO_COMPLETION_EVENT)
				break;
			if (event.event_data.dto_completion_event_data.user_cookie.as_64 < 100)
				recvs++;
			else
				requests++;
		}
		CHECK_EQ(event.event_number, DAT_CONNECTION_EVENT_DISCONNECTED);
		CHECK_EQ(recvs, DEPTH);
		CHECK_EQ(requests, DEPTH / 2);
		nothing(b.recv_evd);
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_ep_reset(ep_a));
	}
	down();
}

/* --- what the program ends --------------------------------------------------------------------- */

static void *disconnect_b(void *arg)
{
	OK(dat_ep_disconnect(ep_b, *(DAT_CLOSE_FLAGS *)arg));
	return NULL;
}

/* The peer disconnects; as soon as the state shows that, `end` is called. */
static void end_as_soon_as_disconnected(void (*end)(void))
{
	up();
	for (int i = 0; i < ROUNDS; i++) {
		DAT_CLOSE_FLAGS flags = i % 2 ? DAT_CLOSE_ABRUPT_FLAG : DAT_CLOSE_GRACEFUL_FLAG;
		pthread_t peer;

		OK(recv_nothing(ep_a, 1));
		join();
		REQUIRE(pthread_create(&peer, NULL, disconnect_b, &flags) == 0);
		while (ep_state(ep_a) != DAT_EP_STATE_DISCONNECTED)
			sched_yield();
		end();
		silent(&a);
		REQUIRE(pthread_join(peer, NULL) == 0);
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_ep_reset(ep_b));
	}
	join();
	down();
}

static void reset_a(void)
{
	OK(dat_ep_reset(ep_a));
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
}

static void replace_a(void)
{
	OK(dat_ep_free(ep_a));
	ep_a = make_ep(&a, NULL);
}

static void order__nothing_after_reset(void)
{
	end_as_soon_as_disconnected(reset_a);
}

static void order__nothing_after_free(void)
{
	end_as_soon_as_disconnected(replace_a);
}

static atomic_bool over;

/* Posts receives, and has the EVD take over what has completed. */
static void *post_receives(void *arg)
{
	(void)arg;
	for (int i = 0; !atomic_load(&over) && i < 16; i++) {
		OK(recv_nothing(ep_a, 9));
		OK(dat_evd_resize(a.recv_evd, 64));
		pause_us(300);
	}
	return NULL;
}

/* What is posted while another thread resets the endpoint is flushed and gone, or there for the next
 * connection. */
static void order__nothing_after_reset_beside_posts(void)
{
	up();
	for (int i = 0; i < ROUNDS; i++) {
		pthread_t poster;

		join();
		OK(dat_ep_disconnect(ep_b, DAT_CLOSE_ABRUPT_FLAG));
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		atomic_store(&over, false);
		REQUIRE(pthread_create(&poster, NULL, post_receives, NULL) == 0);
		pause_us((unsigned long)i * 50);
		OK(dat_ep_reset(ep_a));
		nothing(a.recv_evd);
		atomic_store(&over, true);
		REQUIRE(pthread_join(poster, NULL) == 0);
		nothing(a.recv_evd);
		replace_a();
		OK(dat_ep_reset(ep_b));
	}
	down();
}

/* Freed at any moment of an attempt, of a connection, and of its end. */
static void order__nothing_after_free_in_any_state(void)
{
	up();
	for (int i = 0; i < 3 * ROUNDS; i++) {
		DAT_CR_HANDLE cr;
		DAT_RETURN ret;
		DAT_EVENT event;

		OK(recv_nothing(ep_a, 1));
		OK(try_connect(ep_a, &b, qualifier, SOON));
		cr = await_request(&b);
		if (i % 3 == 0)
			OK(dat_ep_free(ep_a));
		ret = dat_cr_accept(cr, ep_b, 0, NULL);
		if (i % 3 == 2)
			pause_us(i * 50);
		if (i % 3 != 0)
			OK(dat_ep_free(ep_a));
		silent(&a);
		ep_a = make_ep(&a, NULL);
		/* The other end: one event of the attempt, and the end of what it led to. */
		if (ret == DAT_SUCCESS) {
			DAT_COUNT more;

			OK(dat_evd_wait(b.connect_evd, SOON, 1, &event, &more));
			if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED)
				OK(dat_evd_wait(b.connect_evd, SOON, 1, &event, &more));
			CHECK(event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED ||
			      event.event_number == DAT_CONNECTION_EVENT_BROKEN ||
			      event.event_number == DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
			OK(dat_ep_reset(ep_b));
		}
		nothing(b.connect_evd);
	}
	down();
}

/* Two threads and the peer disconnect at once. */
static void order__one_end_of_many_disconnects(void)
{
	up();
	for (int i = 0; i < ROUNDS; i++) {
		DAT_CLOSE_FLAGS flags = i % 2 ? DAT_CLOSE_ABRUPT_FLAG : DAT_CLOSE_GRACEFUL_FLAG;
		pthread_t other, same;
		DAT_EP_STATE state;

		join();
		REQUIRE(pthread_create(&other, NULL, disconnect_b, &flags) == 0);
		REQUIRE(pthread_create(&same, NULL, disconnect_b, &flags) == 0);
		OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
		state = ep_state(ep_a);
		CHECK(state == DAT_EP_STATE_DISCONNECT_PENDING ||
		      state == DAT_EP_STATE_DISCONNECTED);
		OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		REQUIRE(pthread_join(other, NULL) == 0 && pthread_join(same, NULL) == 0);
		OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
		nothing(a.connect_evd);
		nothing(b.connect_evd);
		OK(dat_ep_reset(ep_a));
		OK(dat_ep_reset(ep_b));
	}
	silent(&a);
	silent(&b);
	down();
}

/* --- requests for connections ------------------------------------------------------------------ */

static void *disconnect_a(void *arg)
{
	pause_us(*(int *)arg * 100);
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	return NULL;
}

/* The active end gives up while the passive one answers. */
static void given_up(void (*answer)(DAT_CR_HANDLE))
{
	up();
	for (int i = 0; i < ROUNDS; i++) {
		DAT_CR_HANDLE cr;
		DAT_EVENT event;
		DAT_COUNT more;
		pthread_t active;

		OK(try_connect(ep_a, &b, qualifier, SOON));
		cr = await_request(&b);
		REQUIRE(pthread_create(&active, NULL, disconnect_a, &i) == 0);
		answer(cr);
		OK(dat_evd_wait(a.connect_evd, SOON, 1, &event, &more));
		if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED)
			OK(dat_evd_wait(a.connect_evd, SOON, 1, &event, &more));
		CHECK(event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED ||
		      event.event_number == DAT_CONNECTION_EVENT_PEER_REJECTED);
		CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
		REQUIRE(pthread_join(active, NULL) == 0);
		nothing(a.connect_evd);
		OK(dat_ep_reset(ep_a));
	}
	silent(&a);
	silent(&b);
	nothing(b.cr_evd);
	join();
	down();
}

static void accept_it(DAT_CR_HANDLE cr)
{
	DAT_EVENT event;
	DAT_COUNT more;

	if (dat_cr_accept(cr, ep_b, 0, NULL) != DAT_SUCCESS)
		return;
	OK(dat_evd_wait(b.connect_evd, SOON, 1, &event, &more));
	if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED) {
		OK(dat_evd_wait(b.connect_evd, SOON, 1, &event, &more));
		CHECK(event.event_number == DAT_CONNECTION_EVENT_DISCONNECTED ||
		      event.event_number == DAT_CONNECTION_EVENT_BROKEN);
	} else {
		CHECK_EQ(event.event_number, DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
	}
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_DISCONNECTED);
	OK(dat_ep_reset(ep_b));
}

static void reject_it(DAT_CR_HANDLE cr)
{
	OK(dx_cr_reject(cr));
}

static void order__accepted_and_given_up(void)
{
	given_up(accept_it);
}

static void order__rejected_and_given_up(void)
{
	given_up(reject_it);
}

static void *connect_a(void *arg)
{
	(void)arg;
	OK(try_connect(ep_a, &b, qualifier, SOON));
	return NULL;
}

/* A request is there when its service point has been freed, or never comes; the peer hears of
 * either. */
static void order__no_request_after_psp_free(void)
{
	up();
	for (int i = 0; i < 2 * ROUNDS; i++) {
		DAT_EVENT_NUMBER expected = DAT_CONNECTION_EVENT_NON_PEER_REJECTED;
		pthread_t active;
		DAT_EVENT event;

		REQUIRE(pthread_create(&active, NULL, connect_a, NULL) == 0);
		pause_us(i * 100);
		OK(dat_psp_free(psp));
		if (dat_evd_dequeue(b.cr_evd, &event) == DAT_SUCCESS) {
			OK(dx_cr_reject(event.event_data.cr_arrival_event_data.cr_handle));
			expected = DAT_CONNECTION_EVENT_PEER_REJECTED;
		}
		EXPECT(a.connect_evd, expected);
		REQUIRE(pthread_join(active, NULL) == 0);
		nothing(b.cr_evd);
		OK(dat_ep_reset(ep_a));
		psp = listen_any(&b, &qualifier);
	}
	join();
	down();
}

/* The same of a reserved service point: the request has the endpoint, or the program. */
static void order__no_request_after_rsp_free(void)
{
	DAT_RSP_HANDLE rsp;

	up();
	OK(dat_psp_free(psp));
	for (int i = 0; i < 2 * ROUNDS; i++) {
		DAT_EVENT_NUMBER expected = DAT_CONNECTION_EVENT_NON_PEER_REJECTED;
		pthread_t active;
		DAT_EVENT event;

		OK(dat_rsp_create(b.ia, qualifier, ep_b, b.cr_evd, &rsp));
		REQUIRE(pthread_create(&active, NULL, connect_a, NULL) == 0);
		pause_us(i * 100);
		OK(dat_rsp_free(rsp));
		if (dat_evd_dequeue(b.cr_evd, &event) == DAT_SUCCESS) {
			CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
			OK(dx_cr_reject(event.event_data.cr_arrival_event_data.cr_handle));
			expected = DAT_CONNECTION_EVENT_PEER_REJECTED;
		}
		CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
		EXPECT(a.connect_evd, expected);
		REQUIRE(pthread_join(active, NULL) == 0);
		nothing(b.cr_evd);
		OK(dat_ep_reset(ep_a));
	}
	down();
}

static const struct tap_test tests[] = {
	T(order, established_then_connected),
	T(order, connected_then_established),
	T(order, flushed_then_disconnected),
	T(order, flushed_then_disconnected_gracefully),
	T(order, failed_then_broken),
	T(order, failed_and_polled_then_broken),
	T(order, completions_before_the_end_on_one_evd),
	T(order, nothing_after_reset),
	T(order, nothing_after_reset_beside_posts),
	T(order, nothing_after_free),
	T(order, nothing_after_free_in_any_state),
	T(order, one_end_of_many_disconnects),
	T(order, accepted_and_given_up),
	T(order, rejected_and_given_up),
	T(order, no_request_after_psp_free),
	T(order, no_request_after_rsp_free),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
