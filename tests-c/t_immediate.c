/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ib_post_rdma_write_immed. DAT 2.0 only. */
#include "extended.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define DEFAULT DAT_COMPLETION_DEFAULT_FLAG

static DAT_RETURN write_immed(size_t from, size_t to, size_t size, DAT_UINT64 value,
			      DAT_UINT32 data, DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET local = dx_local(ma.local, ma.at + from, size);
	DAT_RMR_TRIPLET remote = dx_remote(mb.remote, mb.at + to, size);

	return dat_ib_post_rdma_write_immed(p.ep_a, 1, &local, cookie(value), &remote, data, flags);
}

static void write_immed__takes_a_receive(void)
{
	DAT_EVENT event;

	up_for(DAT_IB_ATTR_IMMED_DATA, NULL);
	fill(ma.at, 1000, 3);
	memset(mb.at + 8000, 0x77, 100);
	OK(b_receives(8000, 100, 9));
	OK(write_immed(0, 10, 1000, 1, 0x11223344, DEFAULT));
	event = EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_RDMA_WRITE_IMMED,
				DAT_IB_RDMA_WRITE_IMMED);
	CHECK_EQ(status_of(&event), DAT_DTO_SUCCESS);
	CHECK_EQ(length_of(&event), 1000);
	event = EXPECT_EXTENDED(p.b.recv_evd, 9, DAT_IB_DTO_RECV_IMMED,
				DAT_IB_RDMA_WRITE_IMMED_DATA);
	CHECK_EQ(status_of(&event), DAT_DTO_SUCCESS);
	CHECK_EQ(length_of(&event), 1000);
	CHECK_EQ(immed_of(&event), 0x11223344);
	CHECK(event.event_data.dto_completion_event_data.ep_handle == p.ep_b);
	CHECK(filled(mb.at + 10, 1000, 3));
	/* Nothing is in the receive. */
	for (int i = 0; i < 100; i++)
		CHECK_EQ(mb.at[8000 + i], 0x77);
	down();
}

static void write_immed__in_order_with_sends(void)
{
	DAT_EVENT event;

	up_for(DAT_IB_ATTR_IMMED_DATA, NULL);
	for (DAT_UINT64 i = 1; i <= 3; i++)
		OK(b_receives(8000, 100, i));
	OK(a_sends(0, 50, 1, DEFAULT));
	OK(write_immed(0, 0, 0, 2, ~(DAT_UINT32)0, DEFAULT));
	OK(a_sends(0, 60, 3, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_EXTENDED(p.a.request_evd, 2, DAT_IB_DTO_RDMA_WRITE_IMMED, DAT_IB_RDMA_WRITE_IMMED);
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS).transfered_length, 50);
	event = EXPECT_EXTENDED(p.b.recv_evd, 2, DAT_IB_DTO_RECV_IMMED,
				DAT_IB_RDMA_WRITE_IMMED_DATA);
	CHECK_EQ(length_of(&event), 0);
	CHECK_EQ(immed_of(&event), ~(DAT_UINT32)0);
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 3, DAT_DTO_SUCCESS).transfered_length, 60);
	down();
}

static void write_immed__waits_for_a_receive(void)
{
	DAT_EVENT event;

	up_for(DAT_IB_ATTR_IMMED_DATA, NULL);
	fill(ma.at, 100000, 5);
	OK(write_immed(0, 1, 100000, 1, 5, DEFAULT));
	EXPECT_NOTHING(p.b.recv_evd);
	OK(recv_nothing(p.ep_b, 9));
	event = EXPECT_EXTENDED(p.b.recv_evd, 9, DAT_IB_DTO_RECV_IMMED,
				DAT_IB_RDMA_WRITE_IMMED_DATA);
	CHECK_EQ(length_of(&event), 100000);
	CHECK(filled(mb.at + 1, 100000, 5));
	event = EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_RDMA_WRITE_IMMED,
				DAT_IB_RDMA_WRITE_IMMED);
	CHECK_EQ(status_of(&event), DAT_DTO_SUCCESS);
	down();
}

/* A thread that waits for an event of side b. */
static atomic_bool woken;

static void *wait_for_one(void *argument)
{
	DAT_EVENT *event = argument;
	DAT_COUNT more;

	CHECK_RET(dat_evd_wait(p.b.recv_evd, SOON, 1, event, &more), DAT_SUCCESS);
	woken = true;
	return NULL;
}

static void write_immed__solicited(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_EVENT event;
	pthread_t thread;

	/* Only a solicited one wakes. */
	attr.recv_completion_flags = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
	up_for(DAT_IB_ATTR_IMMED_DATA, &attr);
	OK(recv_nothing(p.ep_b, 1));
	OK(recv_nothing(p.ep_b, 2));
	REQUIRE(!pthread_create(&thread, NULL, wait_for_one, &event));
	await_waiter(p.b.recv_evd);
	OK(write_immed(0, 0, 8, 1, 1, DEFAULT));
	EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_RDMA_WRITE_IMMED, DAT_IB_RDMA_WRITE_IMMED);
	pause_us(NEVER);
	CHECK(!woken);
	OK(write_immed(0, 0, 8, 2, 2, DAT_COMPLETION_SOLICITED_WAIT_FLAG));
	pthread_join(thread, NULL);
	CHECK_EQ(event.event_number, (DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT);
	CHECK_EQ(immed_of(&event), 1);
	EXPECT_EXTENDED(p.b.recv_evd, 2, DAT_IB_DTO_RECV_IMMED, DAT_IB_RDMA_WRITE_IMMED_DATA);
	EXPECT_EXTENDED(p.a.request_evd, 2, DAT_IB_DTO_RDMA_WRITE_IMMED, DAT_IB_RDMA_WRITE_IMMED);
	down();
}

static void write_immed__arguments(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;

	up_for(DAT_IB_ATTR_IMMED_DATA, NULL);
	local = dx_local(ma.local, ma.at, 8);
	remote = dx_remote(mb.remote, mb.at, 7);
	CHECK_CODE(dat_ib_post_rdma_write_immed(p.ep_a, -1, &local, cookie(1), &remote, 5, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_ib_post_rdma_write_immed(p.ep_a, 1, NULL, cookie(1), &remote, 5, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
	CHECK_CODE(dat_ib_post_rdma_write_immed(p.ep_a, 1, &local, cookie(1), NULL, 5, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
	CHECK_RET(dat_ib_post_rdma_write_immed(p.ep_a, 1, &local, cookie(1), &remote, 5, DEFAULT),
		  DAT_LENGTH_ERROR);
	EXPECT_NOTHING(p.a.request_evd);
	/* Nothing is written: there need not be a remote range. */
	OK(recv_nothing(p.ep_b, 9));
	OK(dat_ib_post_rdma_write_immed(p.ep_a, 0, NULL, cookie(1), NULL, 5, DEFAULT));
	EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_RDMA_WRITE_IMMED, DAT_IB_RDMA_WRITE_IMMED);
	EXPECT_EXTENDED(p.b.recv_evd, 9, DAT_IB_DTO_RECV_IMMED, DAT_IB_RDMA_WRITE_IMMED_DATA);
	down();
}

static void write_immed__refused(void)
{
	DAT_EVENT event;

	up_for(DAT_IB_ATTR_IMMED_DATA, NULL);
	OK(recv_nothing(p.ep_b, 9));
	mb.remote ^= 0x100;
	OK(write_immed(0, 0, 8, 1, 5, DEFAULT));
	event = EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_RDMA_WRITE_IMMED,
				DAT_IB_RDMA_WRITE_IMMED);
	CHECK_EQ(status_of(&event), DAT_DTO_ERR_REMOTE_ACCESS);
	/* Adapters may have taken it. */
	if (is_exact())
		EXPECT_DTO(p.b.recv_evd, 9, DAT_DTO_ERR_FLUSHED);
	both_broken();
	down();
}

static const struct tap_test tests[] = {
	T(write_immed, takes_a_receive),
	T(write_immed, in_order_with_sends),
	T(write_immed, waits_for_a_receive),
	T(write_immed, solicited),
	T(write_immed, arguments),
	T(write_immed, refused),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
