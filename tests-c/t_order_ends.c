/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The order of what a program sees when it resets, frees or disconnects an endpoint. */
#include "order.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static void *disconnect_b(void *arg)
{
	OK(dat_ep_disconnect(ep_b, *(DAT_CLOSE_FLAGS *)arg));
	return NULL;
}

/* The peer disconnects; as soon as the state shows that, `end` is called. */
static void end_as_soon_as_disconnected(void (*end)(void))
{
	order_up();
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
	ends_down();
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
	order_up();
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
	ends_down();
}

/* Freed at any moment of an attempt, of a connection, and of its end. */
static void order__nothing_after_free_in_any_state(void)
{
	order_up();
	for (int i = 0; i < 3 * ROUNDS; i++) {
		DAT_CR_HANDLE cr;
		DAT_RETURN ret;

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
			DAT_EVENT_NUMBER end = await_end(&b);

			CHECK(end == DAT_CONNECTION_EVENT_DISCONNECTED ||
			      end == DAT_CONNECTION_EVENT_BROKEN ||
			      end == DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR);
			OK(dat_ep_reset(ep_b));
		}
		nothing(b.connect_evd);
	}
	ends_down();
}

/* Two threads and the peer disconnect at once. */
static void order__one_end_of_many_disconnects(void)
{
	order_up();
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
	ends_down();
}

/* The connection ends, and both ends can be connected again. */
static void end_and_reset(void)
{
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	OK(dat_ep_reset(ep_a));
	OK(dat_ep_reset(ep_b));
}

/* A thread in dat_ep_disconnect while the peer ends the connection, and another thread takes the event,
 * resets the endpoint and connects it again: the new connection stays. */
static void order__late_disconnect(void)
{
	order_up();
	for (int i = 0; i < ROUNDS; i++) {
		DAT_CLOSE_FLAGS flags = i % 2 ? DAT_CLOSE_ABRUPT_FLAG : DAT_CLOSE_GRACEFUL_FLAG;
		pthread_t late;

		join();
		REQUIRE(pthread_create(&late, NULL, disconnect_b, &flags) == 0);
		while (ep_state(ep_b) == DAT_EP_STATE_CONNECTED)
			sched_yield();
		end_and_reset();
		join();
		REQUIRE(pthread_join(late, NULL) == 0);
		silent(&a);
		silent(&b);
		CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_CONNECTED);
		CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_CONNECTED);
		end_and_reset();
	}
	ends_down();
}

enum { SEVERAL = 4 };

static void *disconnect_several(void *arg)
{
	for (int i = 0; i < SEVERAL; i++)
		OK(dat_ep_disconnect(((DAT_EP_HANDLE *)arg)[i], DAT_CLOSE_ABRUPT_FLAG));
	return NULL;
}

/* The peer ends several connections at once. Their endpoints leave the SRQ in the order of the events
 * of their connections: a program takes one of each stream in turn. */
static void order__ends_of_an_srq(void)
{
	DAT_SRQ_ATTR queue = { SEVERAL, 1, DAT_SRQ_LW_DEFAULT };
	DAT_EP_HANDLE active[SEVERAL];
	DAT_EP_HANDLE passive[SEVERAL];
	DAT_SRQ_HANDLE srq;
	DAT_EP_ATTR attr;

	order_up();
	if (b.attr.max_srqs == 0)
		tap_skip("the device has no SRQ");
	OK(dat_srq_create(b.ia, b.pz, &queue, &srq));
	attr = ep_attr(&b);
	for (int i = 0; i < SEVERAL; i++) {
		active[i] = make_ep(&a, NULL);
		OK(dat_ep_create_with_srq(b.ia, b.pz, b.recv_evd, b.request_evd, b.connect_evd, srq,
					  &attr, &passive[i]));
	}
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t peer;

		for (int i = 0; i < SEVERAL; i++)
			connect_eps(&a, active[i], &b, passive[i]);
		REQUIRE(pthread_create(&peer, NULL, disconnect_several, active) == 0);
		for (int i = 0; i < SEVERAL; i++) {
			DAT_EVENT end = EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
			DAT_EVENT left = EXPECT(b.async_evd, DAT_ASYNC_ERROR_EP_BROKEN);

			CHECK(left.event_data.asynch_error_event_data.dat_handle ==
			      end.event_data.connect_event_data.ep_handle);
		}
		REQUIRE(pthread_join(peer, NULL) == 0);
		for (int i = 0; i < SEVERAL; i++)
			EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		for (int i = 0; i < SEVERAL; i++) {
			OK(dat_ep_reset(active[i]));
			OK(dat_ep_reset(passive[i]));
		}
	}
	for (int i = 0; i < SEVERAL; i++) {
		OK(dat_ep_free(active[i]));
		OK(dat_ep_free(passive[i]));
	}
	OK(dat_srq_free(srq));
	ends_down();
}

static const struct tap_test tests[] = {
	T(order, nothing_after_reset),
	T(order, nothing_after_free),
	T(order, nothing_after_reset_beside_posts),
	T(order, nothing_after_free_in_any_state),
	T(order, one_end_of_many_disconnects),
	T(order, ends_of_an_srq),
	T(order, late_disconnect),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
