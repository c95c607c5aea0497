/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verbs provider on the stand-in of benches/verbs when that does as drivers of adapters do, and those of
 * rdma_rxe and siw do not. */
#include "stand_in.h"

#include <dat2/dat_ib_extensions.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* --- requests without segments --------------------------------------------------------------- */

static int at_first_segment(const char *point)
{
	return !strcmp(point, "first_segment");
}

/* What is left on the stack is no segment. */
static void post_two_segments(const struct pair *pair, const struct mem *mem)
{
	DAT_LMR_TRIPLET local[2] = { dx_local(mem->local, mem->at, 100),
				     dx_local(mem->local, mem->at + 100, 100) };

	OK(recv_nothing(pair->ep_b, 1));
	OK(dat_ep_post_send(pair->ep_a, 2, local, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(pair->b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(pair->a.request_evd, 2, DAT_DTO_SUCCESS);
}

/* The drivers of irdma, cxgb4 and erdma look at the first segment of a request that has none. */
static void ep_post__without_segments(void)
{
	DAT_RMR_TRIPLET remote;
	struct pair pair;
	struct mem mem;

	pair_up(&pair, NULL);
	mem = make_mem(&pair.a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	remote = dx_remote(mem.remote, mem.at, 0);
	at_points(at_first_segment);
	for (DAT_UINT64 i = 10; i < 20; i++) {
		post_two_segments(&pair, &mem);
		OK(recv_nothing(pair.ep_b, i));
		OK(send_nothing(pair.ep_a, i, DAT_COMPLETION_DEFAULT_FLAG));
		CHECK_EQ(EXPECT_DTO(pair.b.recv_evd, i, DAT_DTO_SUCCESS).transfered_length, 0);
		EXPECT_DTO(pair.a.request_evd, i, DAT_DTO_SUCCESS);
	}
	OK(dat_ep_post_rdma_write(pair.ep_a, 0, NULL, cookie(30), &remote,
				  DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(pair.a.request_evd, 30, DAT_DTO_SUCCESS);
	OK(dat_ep_post_rdma_read(pair.ep_a, 0, NULL, cookie(31), &remote,
				 DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(pair.a.request_evd, 31, DAT_DTO_SUCCESS);
	/* The library itself posts a write of nothing behind these. */
	OK(send_nothing(pair.ep_a, 32, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_NOTHING(pair.a.request_evd);
	free_mem(&mem);
	pair_down(&pair);
}

/* --- completions that the program does not ask for ----------------------------------------------- */

static atomic_int completions;

static int at_completion(const char *point)
{
	completions += !strcmp(point, "complete");
	return 0;
}

/* A program that suppresses all completions but one in each queue has a queue for events that holds just those, for
 * many endpoints: the device has no others to report either. */
static void ep_post__mostly_suppressed(void)
{
	struct pair pair;
	DAT_EP_ATTR attr;
	DAT_EVENT event;

	rig_up(&pair.a);
	rig_up(&pair.b);
	attr = ep_attr(&pair.a);
	pair.ep_a = make_ep(&pair.a, &attr);
	pair.ep_b = make_ep(&pair.b, NULL);
	connect_eps(&pair.a, pair.ep_a, &pair.b, pair.ep_b);
	at_points(at_completion);
	for (int round = 1; round <= 3; round++) {
		for (int i = 1; i < attr.max_request_dtos; i++)
			OK(send_nothing(pair.ep_a, 1, DAT_COMPLETION_SUPPRESS_FLAG));
		OK(send_nothing(pair.ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
		CHECK_EQ(completions, round);
		EXPECT_DTO(pair.a.request_evd, 2, DAT_DTO_SUCCESS);
	}
	/* Where all are suppressed one is reported to the library. */
	for (int i = 0; i < 3 * attr.max_request_dtos; i++) {
		OK(send_nothing(pair.ep_a, 1, DAT_COMPLETION_SUPPRESS_FLAG));
		CHECK_RET(dat_evd_dequeue(pair.a.request_evd, &event), DAT_QUEUE_EMPTY);
	}
	CHECK_EQ(completions, 6);
	at_points(NULL);
	pair_down(&pair);
}

/* --- a queue pair for datagrams that stops sending ---------------------------------------------- */

static atomic_bool fails;

static int at_send(const char *point)
{
	return !strcmp(point, "send") && atomic_exchange(&fails, false) ?
		       4 /* IBV_WC_LOC_PROT_ERR */ :
		       0;
}

static DAT_DTO_COMPLETION_EVENT_DATA send_datagram(const struct rig *rig, DAT_EP_HANDLE ep,
						   DAT_IB_ADDR_HANDLE to)
{
	DAT_EVENT event;

	OK(dat_ib_post_send_ud(ep, 0, NULL, &to, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	event = EXPECT(rig->request_evd, (DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT);
	return event.event_data.dto_completion_event_data;
}

/* After a datagram that cannot be sent the device of hardware flushes all others (the state SQE) until it is told to go
 * on. It does not flush what is to be received. */
static void ep_post_send_ud__after_a_failure(void)
{
	unsigned long long end = now_us() + SOON;
	DAT_IB_EXTENSION_EVENT_DATA extension;
	DAT_EP_HANDLE ep;
	DAT_EP_ATTR attr;
	DAT_EVENT event;
	struct rig rig;

	rig_up(&rig);
	attr = ep_attr(&rig);
	attr.service_type = (DAT_SERVICE_TYPE)DAT_IB_SERVICE_TYPE_UD;
	attr.max_rdma_read_in = attr.max_rdma_read_out = 0;
	ep = make_ep(&rig, &attr);
	OK(recv_nothing(ep, 100));
	OK(try_connect(ep, &rig, 4711, SOON));
	event = EXPECT(rig.connect_evd, (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED);
	memcpy(&extension, event.event_extension_data, sizeof extension);
	at_points(at_send);
	fails = true;
	CHECK_EQ(send_datagram(&rig, ep, extension.remote_ah).status, DAT_DTO_ERR_LOCAL_PROTECTION);
	while (send_datagram(&rig, ep, extension.remote_ah).status != DAT_DTO_SUCCESS &&
	       now_us() < end)
		pause_us(1000);
	CHECK(now_us() < end);
	event = EXPECT(rig.recv_evd, (DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT);
	CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, 100);
	CHECK_EQ(event.event_data.dto_completion_event_data.status, DAT_DTO_SUCCESS);
	rig_down(&rig);
}

/* --- windows that the driver does not make ------------------------------------------------------- */

static int at_no_windows(const char *point)
{
	return strcmp(point, "alloc_mw") ? 0 : EOPNOTSUPP;
}

/* The kernel says of cxgb4 that it has windows, but its driver for programs makes none. */
static void rmr_create__of_a_driver_without_windows(void)
{
	DAT_RMR_HANDLE rmr;
	struct rig rig;
	struct mem mem;

	/* Until then the library has not loaded the stand-in. */
	rig_up(&rig);
	CHECK(rig.attr.max_rmrs > 0);
	rig_down(&rig);
	at_points(at_no_windows);
	rig_up(&rig);
	CHECK_EQ(rig.attr.max_rmrs, 0);
	CHECK_RET(dat_rmr_create(rig.pz, &rmr), DAT_MODEL_NOT_SUPPORTED);
	mem = make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG);
	free_mem(&mem);
	rig_down(&rig);
}

/* --- points of cancellation ----------------------------------------------------------------------- */

static atomic_int reached;

static int at_window(const char *point)
{
	if (strcmp(point, "alloc_mw") && strcmp(point, "dealloc_mw"))
		return 0;
	reached++;
	pthread_testcancel();
	return 0;
}

struct binder {
	struct pair pair;
	struct mem mem;
	DAT_RMR_HANDLE rmr;
	bool done;
};

static void *bind_in_a_thread(void *argument)
{
	struct binder *binder = argument;
	const struct pair *pair = &binder->pair;
	DAT_LMR_TRIPLET range = dx_local(binder->mem.local, binder->mem.at, 100);
	DAT_RMR_CONTEXT context;
	DAT_EVENT event;

	pthread_cancel(pthread_self());
	/* With the completion of the second bind the window of the first is given back to the device. */
	for (DAT_UINT64 i = 1; i <= 2; i++) {
		CHECK_RET(dx_rmr_bind(binder->rmr, binder->mem.lmr, &range,
				      DAT_MEM_PRIV_REMOTE_READ_FLAG, pair->ep_a, cookie(i),
				      DAT_COMPLETION_DEFAULT_FLAG, &context),
			  DAT_SUCCESS);
		CHECK_RET(dat_evd_dequeue(pair->a.request_evd, &event), DAT_SUCCESS);
		CHECK_EQ(event.event_number, DAT_RMR_BIND_COMPLETION_EVENT);
	}
	binder->done = true;
	pthread_testcancel();
	CHECK(!"the thread is cancelled");
	return NULL;
}

/* Where the kernel has no other way, libibverbs makes system calls by write(2), which is a point of cancellation. The
 * thread is cancelled after the call. */
static void rmr_bind__in_a_thread_that_was_cancelled(void)
{
	static struct binder binder;
	pthread_t thread;
	void *result;

	pair_up(&binder.pair, NULL);
	binder.mem = make_mem(&binder.pair.a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	OK(dat_rmr_create(binder.pair.a.pz, &binder.rmr));
	at_points(at_window);
	REQUIRE(pthread_create(&thread, NULL, bind_in_a_thread, &binder) == 0);
	pthread_join(thread, &result);
	CHECK(result == PTHREAD_CANCELED && binder.done);
	CHECK_EQ(reached, 3);
	at_points(NULL);
	pair_down(&binder.pair);
}

static const struct tap_test tests[] = {
	T(ep_post, without_segments),
	T(ep_post, mostly_suppressed),
	T(ep_post_send_ud, after_a_failure),
	T(rmr_create, of_a_driver_without_windows),
	T(rmr_bind, in_a_thread_that_was_cancelled),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
