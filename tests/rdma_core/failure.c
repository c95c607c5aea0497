/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verbs provider on the stand-in of benches/verbs, whose device fails. */
#include "stand_in.h"

#include <dat2/dat_ib_extensions.h>
#include <time.h>

static unsigned long long used_us(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return used.tv_sec * 1000000ull + used.tv_nsec / 1000;
}

enum { ENDPOINTS = 10 };

/* So many receives were flushed. */
static void expect_flushed(DAT_EVD_HANDLE evd, int count)
{
	while (count--) {
		DAT_EVENT event = EXPECT(evd, DAT_DTO_COMPLETION_EVENT);

		CHECK(event.event_data.dto_completion_event_data.status == DAT_DTO_ERR_FLUSHED);
	}
	EXPECT_NOTHING(evd);
}

static DAT_EP_HANDLE make_datagram_ep(const struct rig *rig)
{
	DAT_EP_ATTR attr = ep_attr(rig);

	attr.service_type = (DAT_SERVICE_TYPE)DAT_IB_SERVICE_TYPE_UD;
	attr.max_message_size = 1000;
	attr.max_rdma_read_in = 0;
	attr.max_rdma_read_out = 0;
	return make_ep(rig, &attr);
}

/* Each of two IAs has told the program, in the EVDs of both, that it cannot be used any more, and the second one before
 * that, that so many endpoints take no more buffers of its shared receive queue. */
static void expect_catastrophe(const struct rig *a, const struct rig *b, int endpoints)
{
	for (int i = 0; i < 2; i++) {
		const struct rig *at = i ? b : a;
		bool failed_a = false, failed_b = false;
		int drained = 0;

		for (int left = endpoints + 2; left--;) {
			DAT_ASYNCH_ERROR_EVENT_DATA error;
			DAT_EVENT event;
			DAT_COUNT more;

			OK(dat_evd_wait(at->async_evd, SOON, 1, &event, &more));
			error = event.event_data.asynch_error_event_data;
			if (event.event_number == DAT_ASYNC_ERROR_EP_BROKEN) {
				CHECK_EQ(error.reason, DAT_EP_TRANSFER_TO_ERROR);
				drained++;
				continue;
			}
			CHECK_EQ(event.event_number, DAT_ASYNC_ERROR_IA_CATASTROPHIC);
			CHECK_EQ(error.reason, DAT_IA_CATASTROPHIC_ERROR);
			failed_a |= error.dat_handle == a->ia;
			failed_b |= error.dat_handle == b->ia;
			CHECK(!failed_b || drained == endpoints);
		}
		CHECK(failed_a && failed_b && drained == endpoints);
		EXPECT_NOTHING(at->async_evd);
	}
}

static void fail_device(void)
{
	((void (*)(void))stand_in("ibv_standin_fail"))();
}

/* Each connection is broken at once, although the device flushes nothing, and attempts end. The library
 * sleeps afterwards. */
static void device__fails(void)
{
	unsigned long long start, used;
	DAT_EP_HANDLE eps[2 * ENDPOINTS], last, other;
	DAT_CONN_QUAL qualifier;
	DAT_CR_HANDLE request;
	struct pair pair;

	pair_up(&pair, NULL);
	for (int i = 0; i < ENDPOINTS; i++) {
		eps[2 * i] = make_ep(&pair.a, NULL);
		eps[2 * i + 1] = make_ep(&pair.b, NULL);
		OK(recv_nothing(eps[2 * i], 1));
		OK(recv_nothing(eps[2 * i + 1], 1));
		connect_eps(&pair.a, eps[2 * i], &pair.b, eps[2 * i + 1]);
	}
	listen_any(&pair.b, &qualifier);
	last = make_ep(&pair.a, NULL);
	OK(try_connect(last, &pair.b, qualifier, SOON));
	request = await_request(&pair.b);
	other = make_ep(&pair.b, NULL);
	OK(recv_nothing(make_datagram_ep(&pair.a), 1));

	start = now_us();
	fail_device();
	for (int i = 0; i < ENDPOINTS + 2; i++) {
		DAT_EVENT_NUMBER number = await_end(&pair.a);

		if (number != DAT_CONNECTION_EVENT_BROKEN)
			CHECK(number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	}
	for (int i = 0; i < ENDPOINTS + 1; i++)
		EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	/* The device has half a second to flush what is outstanding, unless it is known to do nothing more. */
	CHECK(now_us() - start < ENDPOINTS * 500000 / 2);
	/* Those of the endpoint for datagrams too. */
	expect_flushed(pair.a.recv_evd, ENDPOINTS + 1);
	expect_flushed(pair.b.recv_evd, ENDPOINTS);
	CHECK(ep_state(last) == DAT_EP_STATE_DISCONNECTED);
	expect_catastrophe(&pair.a, &pair.b, 0);

	used = used_us();
	pause_us(500 * 1000);
	CHECK(used_us() - used < 100 * 1000);

	CHECK_RET(dat_cr_accept(request, other, 0, NULL), DAT_INSUFFICIENT_RESOURCES);
	CHECK(ep_state(other) == DAT_EP_STATE_UNCONNECTED);
	OK(dat_ep_reset(last));
	CHECK_RET(try_connect(last, &pair.b, qualifier, SOON), DAT_INSUFFICIENT_RESOURCES);
	CHECK(ep_state(last) == DAT_EP_STATE_UNCONNECTED);
	pair_down(&pair);
}

/* An IA that has no connection, and listens for none, hears of it as well. */
static void device__fails_that_connects_nothing(void)
{
	DAT_ASYNCH_ERROR_EVENT_DATA error;
	DAT_EVD_HANDLE async_evd;
	DAT_IA_HANDLE ia;

	ia = open_ia(&async_evd);
	fail_device();
	error = EXPECT(async_evd, DAT_ASYNC_ERROR_IA_CATASTROPHIC)
			.event_data.asynch_error_event_data;
	CHECK(error.dat_handle == ia);
	EXPECT_NOTHING(async_evd);
	OK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
}

static DAT_COUNT outstanding(DAT_SRQ_HANDLE srq)
{
	DAT_SRQ_PARAM param;

	OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
	return param.outstanding_dto_count;
}

/* A device fails that holds buffers of a shared receive queue: what had completed is not lost, each endpoint is told
 * that it takes no more buffers, nothing waits for the device to flush them, and all can be freed. */
static void srq__of_a_device_that_fails(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_EP_HANDLE eps[2 * ENDPOINTS], unconnected;
	unsigned long long start;
	DAT_SRQ_HANDLE srq;
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	OK(dat_srq_create(b.ia, b.pz, &srq_attr, &srq));
	unconnected = ep_with_srq(&b, srq);
	for (int i = 1; i <= 3; i++)
		OK(dat_srq_post_recv(srq, 0, NULL, cookie(i)));
	for (int i = 0; i < ENDPOINTS; i++) {
		eps[2 * i] = make_ep(&a, NULL);
		eps[2 * i + 1] = ep_with_srq(&b, srq);
		connect_eps(&a, eps[2 * i], &b, eps[2 * i + 1]);
	}
	OK(send_nothing(eps[0], 4, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.request_evd, 4, DAT_DTO_SUCCESS);
	start = now_us();
	fail_device();
	for (int i = 0; i < ENDPOINTS; i++) {
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	}
	/* For each the device has half a second to say that it has flushed the last buffer, unless it has failed. */
	CHECK(now_us() - start < ENDPOINTS * 500000 / 2);
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(b.recv_evd);
	expect_catastrophe(&a, &b, ENDPOINTS);
	CHECK_EQ(outstanding(srq), 2);
	/* There is room for as many as before. */
	OK(dat_srq_post_recv(srq, 0, NULL, cookie(5)));
	OK(dat_srq_post_recv(srq, 0, NULL, cookie(6)));
	CHECK_RET(dat_srq_post_recv(srq, 0, NULL, cookie(7)), DAT_INSUFFICIENT_RESOURCES);
	OK(dat_ep_reset(eps[1]));
	for (int i = 0; i < 2 * ENDPOINTS; i++)
		OK(dat_ep_free(eps[i]));
	OK(dat_ep_free(unconnected));
	OK(dat_srq_free(srq));
	RIG_DOWN_UNUSED(&a);
	RIG_DOWN_UNUSED(&b);
}

static void srq__that_fails(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_ASYNCH_ERROR_EVENT_DATA error;
	DAT_CONN_QUAL qualifier;
	DAT_SRQ_HANDLE srq;
	struct rig rig;

	rig_up(&rig);
	OK(dat_srq_create(rig.ia, rig.pz, &srq_attr, &srq));
	OK(dat_srq_post_recv(srq, 0, NULL, cookie(1)));
	listen_any(&rig, &qualifier);
	((void (*)(void))stand_in("ibv_standin_fail_srq"))();
	error = EXPECT(rig.async_evd, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR)
			.event_data.asynch_error_event_data;
	CHECK(error.dat_handle == srq);
	CHECK_EQ(error.reason, DAT_SRQ_TRANSFER_TO_ERROR);
	OK(dat_srq_free(srq));
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(device, fails),
	T(device, fails_that_connects_nothing),
	T(srq, of_a_device_that_fails),
	T(srq, that_fails),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
