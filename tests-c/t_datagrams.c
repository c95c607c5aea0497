/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Datagrams: dat_ib_post_send_ud, and receives of endpoints with the service type UD. DAT 2.0 only. */
#include "datagrams.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT DAT_COMPLETION_DEFAULT_FLAG

/* Where a's endpoint finds b's, and the reverse. */
static struct outcome to_b, to_a;

static void up(void)
{
	datagrams_up();
	exchange(da.ep, db.ep, &to_b, &to_a);
}

static void datagram__arrives_behind_its_header(void)
{
	static const size_t sizes[] = { 0, 1, 8, 100, 999, 1000 };

	up();
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		fill(da.mem.at, sizes[i], (unsigned)i);
		memset(db.mem.at + HEADER, 0x77, 2000);
		OK(receive_at(&db, 0, 1000, i));
		OK(send_from(&da, 0, sizes[i], 100 + i, &to_b, DEFAULT));
		EXPECT_SENT(da.rig.request_evd, 100 + i);
		CHECK(EXPECT_RECEIVED(db.rig.recv_evd, i, sizes[i]) == db.ep);
		CHECK(filled(db.mem.at + HEADER, sizes[i], (unsigned)i));
		CHECK_EQ(db.mem.at[HEADER + sizes[i]], 0x77);
	}
	datagrams_down();
}

static void datagram__in_both_directions(void)
{
	up();
	for (DAT_UINT64 i = 0; i < 50; i++) {
		OK(receive_at(&db, 0, 100, i));
		OK(send_from(&da, 0, 100, i, &to_b, DEFAULT));
		EXPECT_RECEIVED(db.rig.recv_evd, i, 100);
		EXPECT_SENT(da.rig.request_evd, i);
		OK(receive_at(&da, 0, 50, i));
		OK(send_from(&db, 0, 50, i, &to_a, DEFAULT));
		EXPECT_RECEIVED(da.rig.recv_evd, i, 50);
		EXPECT_SENT(db.rig.request_evd, i);
	}
	datagrams_down();
}

static void datagram__from_several_segments(void)
{
	DAT_LMR_TRIPLET parts[2], into[2];

	up();
	if (da.rig.attr.max_iov_segments_per_dto < 2)
		tap_unsupported("two segments");
	fill(da.mem.at, 300, 7);
	parts[0] = dx_local(da.mem.local, da.mem.at, 100);
	parts[1] = dx_local(da.mem.local, da.mem.at + 100, 200);
	into[0] = dx_local(db.mem.local, db.mem.at, HEADER);
	into[1] = dx_local(db.mem.local, db.mem.at + 1000, 500);
	OK(dat_ep_post_recv(db.ep, 2, into, cookie(5), DEFAULT));
	OK(dat_ib_post_send_ud(da.ep, 2, parts, &to_b.to, cookie(6), DEFAULT));
	EXPECT_RECEIVED(db.rig.recv_evd, 5, 300);
	CHECK(filled(db.mem.at + 1000, 300, 7));
	EXPECT_SENT(da.rig.request_evd, 6);
	datagrams_down();
}

/* A datagram without a receive is lost, and nothing else is. */
static void datagram__without_a_receive(void)
{
	up();
	OK(send_from(&da, 0, 10, 1, &to_b, DEFAULT));
	EXPECT_SENT(da.rig.request_evd, 1);
	settle_datagrams();
	OK(receive_at(&db, 0, 100, 2));
	OK(receive_at(&db, 0, 100, 3));
	OK(send_from(&da, 0, 20, 4, &to_b, DEFAULT));
	EXPECT_RECEIVED(db.rig.recv_evd, 2, 20);
	EXPECT_NOTHING(db.rig.recv_evd);
	datagrams_down();
}

/* One endpoint sends to several; an address handle is good for all endpoints of its interface adapter. */
static void datagram__to_several(void)
{
	struct outcome other, back;

	up();
	struct end third = db;

	third.ep = make_datagram_ep(&db.rig);
	exchange(da.ep, third.ep, &other, &back);
	CHECK(other.to.qpn != to_b.to.qpn);
	OK(receive_at(&db, 0, 100, 1));
	OK(receive_at(&third, 1000, 100, 2));
	OK(send_from(&da, 0, 10, 3, &to_b, DAT_COMPLETION_SUPPRESS_FLAG));
	CHECK(EXPECT_RECEIVED(db.rig.recv_evd, 1, 10) == db.ep);
	OK(send_from(&da, 0, 20, 4, &other, DAT_COMPLETION_SUPPRESS_FLAG));
	CHECK(EXPECT_RECEIVED(db.rig.recv_evd, 2, 20) == third.ep);
	OK(receive_at(&third, 1000, 100, 5));
	to_b.to.qpn = other.to.qpn;
	OK(send_from(&da, 0, 30, 6, &to_b, DAT_COMPLETION_SUPPRESS_FLAG));
	CHECK(EXPECT_RECEIVED(db.rig.recv_evd, 5, 30) == third.ep);
	EXPECT_NOTHING(da.rig.request_evd);
	datagrams_down();
}

static void datagram__to_itself(void)
{
	struct outcome self, back;

	datagrams_up();
	OK(dat_psp_free(datagrams_psp));
	datagrams_psp = listen_any(&da.rig, &datagrams_qual);
	OK(dat_ep_connect(da.ep, da.rig.attr.ia_address_ptr, datagrams_qual, SOON, 0, NULL,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	OK(dat_cr_accept(EXPECT(da.rig.cr_evd, (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_REQUEST_EVENT)
				 .event_data.cr_arrival_event_data.cr_handle,
			 da.ep, 0, NULL));
	/* Either may come first. */
	for (int i = 0; i < 2; i++) {
		DAT_EVENT event = EXPECT(da.rig.connect_evd,
					 (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED);
		DAT_IB_EXTENSION_EVENT_DATA data;

		memcpy(&data, event.event_extension_data, sizeof data);
		*(data.type == DAT_IB_UD_REMOTE_AH ? &self : &back) =
			(struct outcome){ .ep = da.ep, .to = data.remote_ah };
	}
	CHECK_EQ(self.to.qpn, back.to.qpn);
	OK(receive_at(&da, 1000, 100, 1));
	OK(send_from(&da, 0, 10, 2, &self, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_RECEIVED(da.rig.recv_evd, 1, 10);
	datagrams_down();
}

/* A thread that waits for an event of side b. */
static atomic_bool woken;

static void *wait_for_one(void *argument)
{
	DAT_EVENT *event = argument;
	DAT_COUNT more;

	CHECK_RET(dat_evd_wait(db.rig.recv_evd, SOON, 1, event, &more), DAT_SUCCESS);
	woken = true;
	return NULL;
}

static void datagram__solicited(void)
{
	DAT_EP_ATTR attr;
	DAT_EVENT event;
	pthread_t thread;

	datagrams_up();
	/* Only a solicited one wakes. */
	attr = datagram_attr(&db.rig);
	attr.recv_completion_flags = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
	OK(dat_ep_free(db.ep));
	db.ep = make_ep(&db.rig, &attr);
	exchange(da.ep, db.ep, &to_b, &to_a);
	OK(receive_at(&db, 0, 100, 1));
	OK(receive_at(&db, 1000, 100, 2));
	REQUIRE(!pthread_create(&thread, NULL, wait_for_one, &event));
	await_waiter(db.rig.recv_evd);
	OK(send_from(&da, 0, 10, 3, &to_b, DEFAULT));
	EXPECT_SENT(da.rig.request_evd, 3);
	pause_us(NEVER);
	CHECK(!woken);
	OK(send_from(&da, 0, 10, 4, &to_b, DAT_COMPLETION_SOLICITED_WAIT_FLAG));
	pthread_join(thread, NULL);
	CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, 1);
	EXPECT_RECEIVED(db.rig.recv_evd, 2, 10);
	datagrams_down();
}

static void datagram__arguments(void)
{
	DAT_LMR_TRIPLET local;
	DAT_EP_HANDLE plain;
	DAT_PZ_HANDLE other_pz;
	struct outcome wrong;
	struct mem mem;

	up();
	local = dx_local(da.mem.local, da.mem.at, 100);
	CHECK_CODE(dat_ib_post_send_ud(da.ep, 1, &local, NULL, cookie(1), DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
	wrong = to_b;
	wrong.to.ah = (void *)&wrong;
	CHECK_CODE(send_from(&da, 0, 10, 1, &wrong, DEFAULT), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG4);
	wrong.to.ah = NULL;
	CHECK_CODE(send_from(&da, 0, 10, 1, &wrong, DEFAULT), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG4);
	CHECK_CODE(dat_ib_post_send_ud(da.ep, -1, &local, &to_b.to, cookie(1), DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_ib_post_send_ud(da.ep, 1, NULL, &to_b.to, cookie(1), DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
	/* Beyond every packet. */
	CHECK_RET(send_from(&da, 0, 32 * 1024, 1, &to_b, DEFAULT), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ib_post_send_ud(DAT_HANDLE_NULL, 1, &local, &to_b.to, cookie(1), DEFAULT),
		  DAT_INVALID_HANDLE);
	plain = make_ep(&da.rig, NULL);
	CHECK_RET(dat_ib_post_send_ud(plain, 1, &local, &to_b.to, cookie(1), DEFAULT),
		  DAT_MODEL_NOT_SUPPORTED);
	mem = make_mem(&da.rig, 4096, DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
	local = dx_local(mem.local ^ 0x5555, mem.at, 100);
	CHECK_RET(dat_ib_post_send_ud(da.ep, 1, &local, &to_b.to, cookie(1), DEFAULT),
		  DAT_PRIVILEGES_VIOLATION);
	OK(dat_pz_create(da.rig.ia, &other_pz));
	free_mem(&mem);
	mem = make_mem_in(da.rig.ia, other_pz, 4096, DAT_MEM_PRIV_ALL_FLAG);
	local = dx_local(mem.local, mem.at, 100);
	CHECK_RET(dat_ib_post_send_ud(da.ep, 1, &local, &to_b.to, cookie(1), DEFAULT),
		  DAT_PROTECTION_VIOLATION);
	/* Without an address handle nothing is sent. */
	CHECK_RET(dat_ep_post_send(da.ep, 0, NULL, cookie(1), DEFAULT), DAT_INVALID_STATE);
	EXPECT_NOTHING(da.rig.request_evd);
	OK(receive_at(&db, 0, 100, 1));
	EXPECT_NOTHING(db.rig.recv_evd);
	datagrams_down();
}

static void endpoint__attributes(void)
{
	DAT_EP_HANDLE ep = DAT_HANDLE_NULL;
	DAT_EP_PARAM param;
	DAT_EP_ATTR attr;

	datagrams_up();
	OK(dat_ep_query(da.ep, DAT_EP_FIELD_ALL, &param));
	CHECK_EQ(param.ep_attr.service_type, (DAT_SERVICE_TYPE)DAT_IB_SERVICE_TYPE_UD);
	CHECK_EQ(param.ep_state, DAT_EP_STATE_UNCONNECTED);
	/* The service of an endpoint does not change. */
	param.ep_attr.service_type = DAT_SERVICE_TYPE_RC;
	CHECK_RET(dat_ep_modify(da.ep, DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE, &param),
		  DAT_INVALID_PARAMETER);
	param.ep_attr.max_message_size = 500;
	OK(dat_ep_modify(da.ep, DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, &param));
	attr = datagram_attr(&da.rig);
	attr.max_message_size = 64 * 1024;
	CHECK_RET(dat_ep_create(da.rig.ia, da.rig.pz, da.rig.recv_evd, da.rig.request_evd,
				da.rig.connect_evd, &attr, &ep),
		  DAT_INVALID_PARAMETER);
	attr = datagram_attr(&da.rig);
	attr.service_type = (DAT_SERVICE_TYPE)(DAT_IB_SERVICE_TYPE_UD + 1);
	CHECK_RET(dat_ep_create(da.rig.ia, da.rig.pz, da.rig.recv_evd, da.rig.request_evd,
				da.rig.connect_evd, &attr, &ep),
		  DAT_MODEL_NOT_SUPPORTED);
	CHECK_RET(dat_ep_disconnect(da.ep, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_STATE);
	OK(dat_ep_reset(da.ep));
	exchange(da.ep, db.ep, &to_b, &to_a);
	OK(receive_at(&db, 0, 100, 1));
	OK(send_from(&da, 0, 100, 2, &to_b, DEFAULT));
	EXPECT_RECEIVED(db.rig.recv_evd, 1, 100);
	datagrams_down();
}

/* An endpoint that is freed takes its receives with it, and what is sent to it is lost. */
static void endpoint__freed(void)
{
	up();
	OK(receive_at(&db, 0, 100, 1));
	OK(dat_ep_free(db.ep));
	EXPECT_NOTHING(db.rig.recv_evd);
	OK(send_from(&da, 0, 100, 2, &to_b, DEFAULT));
	EXPECT_SENT(da.rig.request_evd, 2);
	EXPECT_NOTHING(db.rig.recv_evd);
	datagrams_down();
}

/* Receives of an SRQ. */
static void endpoint__with_srq(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 8,
				  .max_recv_iov = 1,
				  .low_watermark = DAT_SRQ_LW_DEFAULT };
	DAT_EP_ATTR attr;
	DAT_LMR_TRIPLET local;
	DAT_SRQ_HANDLE srq;

	datagrams_up();
	if (db.rig.attr.max_srqs == 0)
		tap_unsupported("SRQs");
	OK(dat_srq_create(db.rig.ia, db.rig.pz, &srq_attr, &srq));
	OK(dat_ep_free(db.ep));
	attr = datagram_attr(&db.rig);
	OK(dat_ep_create_with_srq(db.rig.ia, db.rig.pz, db.rig.recv_evd, db.rig.request_evd,
				  db.rig.connect_evd, srq, &attr, &db.ep));
	exchange(da.ep, db.ep, &to_b, &to_a);
	/* Lost. */
	OK(send_from(&da, 0, 10, 1, &to_b, DAT_COMPLETION_SUPPRESS_FLAG));
	settle_datagrams();
	for (DAT_UINT64 i = 1; i <= 3; i++) {
		local = dx_local(db.mem.local, db.mem.at + 1000 * i, HEADER + 100);
		OK(dat_srq_post_recv(srq, 1, &local, cookie(i)));
	}
	/* There is no connection for a hard mark to end. */
	CHECK_RET(dat_ep_set_watermark(db.ep, DAT_WATERMARK_INFINITE, 0), DAT_MODEL_NOT_SUPPORTED);
	for (DAT_UINT64 i = 1; i <= 3; i++) {
		OK(send_from(&da, 0, 10 * i, i, &to_b, DAT_COMPLETION_SUPPRESS_FLAG));
		EXPECT_RECEIVED(db.rig.recv_evd, i, 10 * i);
	}
	OK(dat_ep_free(db.ep));
	OK(dat_srq_free(srq));
	datagrams_down();
}

/* More than the memory and the sockets on the way hold: what is lost is lost, and nothing else is. */
static void datagram__more_than_there_is_room_for(void)
{
	DAT_UINT64 sent = 0;

	up();
	for (DAT_UINT64 i = 0; i < 2000; i++) {
		/* Without room in the system a send is refused. */
		if (send_from(&da, 0, 1000, i, &to_b, DEFAULT) != DAT_SUCCESS)
			continue;
		EXPECT_SENT(da.rig.request_evd, i);
		sent++;
	}
	CHECK(sent > 0);
	settle_datagrams();
	OK(receive_at(&db, 0, 100, 1));
	OK(send_from(&da, 0, 50, 2, &to_b, DEFAULT));
	EXPECT_RECEIVED(db.rig.recv_evd, 1, 50);
	datagrams_down();
}

static const struct tap_test tests[] = {
	T(datagram, arrives_behind_its_header),
	T(datagram, in_both_directions),
	T(datagram, from_several_segments),
	T(datagram, without_a_receive),
	T(datagram, to_several),
	T(datagram, to_itself),
	T(datagram, solicited),
	T(datagram, arguments),
	T(datagram, more_than_there_is_room_for),
	T(endpoint, attributes),
	T(endpoint, freed),
	T(endpoint, with_srq),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
