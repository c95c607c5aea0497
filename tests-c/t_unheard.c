/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Endpoints without EVDs: DAT_HANDLE_NULL in dat_ep_create(3DAT) says that the consumer does not
 * want to hear of completions. What is posted is carried out all the same, the queues have their
 * limits, and errors end the connection. */
#include "flags.h"
#include "transfer.h"

#include <string.h>

/* Which EVDs an endpoint has. */
enum { NEITHER = 0, RECV = 1, REQUEST = 2, BOTH = 3 };

static DAT_EP_HANDLE make(const struct rig *rig, int evds)
{
	DAT_EP_ATTR attr = ep_attr(rig);
	DAT_EP_HANDLE ep = DAT_HANDLE_NULL;

	OK(dat_ep_create(rig->ia, rig->pz, evds & RECV ? rig->recv_evd : DAT_HANDLE_NULL,
			 evds & REQUEST ? rig->request_evd : DAT_HANDLE_NULL, rig->connect_evd,
			 &attr, &ep));
	return ep;
}

/* A connection of an endpoint with the EVDs `a` and one with the EVDs `b`. */
static void up_as(int a, int b)
{
	rigs_up();
	p.ep_a = make(&p.a, a);
	p.ep_b = make(&p.b, b);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
}

/* The byte at `at` becomes `value`: nobody is told when. */
static void await_byte(const char *at, int value)
{
	unsigned long long end = now_us() + SOON;

	while (*(const volatile char *)at != (char)value && now_us() < end)
		pause_us(100);
	CHECK_EQ(*(const volatile char *)at, (char)value);
}

static void nothing_is_told(const struct rig *rig)
{
	EXPECT_NOTHING(rig->recv_evd);
	EXPECT_NOTHING(rig->request_evd);
	EXPECT_NOTHING(rig->async_evd);
}

/* Posts, again as long as the queue is full. */
static void a_surely_sends(size_t at, size_t size, DAT_COMPLETION_FLAGS flags)
{
	unsigned long long end = now_us() + SOON;
	DAT_RETURN ret;

	while (DAT_GET_TYPE(ret = a_sends(at, size, 1, flags)) == DAT_INSUFFICIENT_RESOURCES &&
	       now_us() < end)
		pause_us(100);
	OK(ret);
}

static void b_surely_receives(size_t at, size_t size)
{
	unsigned long long end = now_us() + SOON;
	DAT_RETURN ret;

	while (DAT_GET_TYPE(ret = b_receives(at, size, 1)) == DAT_INSUFFICIENT_RESOURCES &&
	       now_us() < end)
		pause_us(100);
	OK(ret);
}

/* --- data moves --------------------------------------------------------------------------------- */

/* Many times what the queues hold, of messages that carry their number. */
static void more_than_the_queues_hold(int a, int b)
{
	enum { COUNT = 200, LENGTH = 64 };

	up_as(a, b);
	for (int i = 0; i < COUNT; i++) {
		memset(ma.at, i + 1, LENGTH);
		b_surely_receives(0, LENGTH);
		a_surely_sends(0, LENGTH, DEFAULT);
		if (a & REQUEST)
			EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
		if (b & RECV)
			EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
		await_byte(mb.at + LENGTH - 1, i + 1);
	}
	await_idle(p.ep_a);
	await_idle(p.ep_b);
	nothing_is_told(&p.a);
	nothing_is_told(&p.b);
	down();
}

static void post__neither_evd(void)
{
	more_than_the_queues_hold(NEITHER, NEITHER);
}

static void post__receive_evd_alone(void)
{
	more_than_the_queues_hold(RECV, RECV);
}

static void post__request_evd_alone(void)
{
	more_than_the_queues_hold(REQUEST, REQUEST);
}

static void post__both_evds(void)
{
	more_than_the_queues_hold(BOTH, BOTH);
}

static void post__one_end_without(void)
{
	more_than_the_queues_hold(NEITHER, BOTH);
}

static void post__other_end_without(void)
{
	more_than_the_queues_hold(BOTH, NEITHER);
}

/* Without a look at the queue in between. The last request is not suppressed: it frees the places
 * of those before it. */
static void post__a_burst(void)
{
	enum { COUNT = 500, LENGTH = 32 };
	const DAT_COMPLETION_FLAGS flags[] = { DEFAULT, DAT_COMPLETION_SUPPRESS_FLAG };

	up_as(NEITHER, BOTH);
	for (int i = 0; i < COUNT; i++) {
		unsigned long long end = now_us() + SOON;
		DAT_RETURN ret;

		ma.at[i * LENGTH] = (char)(i | 1);
		do
			ret = a_writes((size_t)i * LENGTH, (size_t)i * LENGTH, LENGTH, 1,
				       flags[(i + 1) % 2]);
		while (DAT_GET_TYPE(ret) == DAT_INSUFFICIENT_RESOURCES && now_us() < end);
		OK(ret);
	}
	for (int i = 0; i < COUNT; i++)
		await_byte(mb.at + i * LENGTH, i | 1);
	await_idle(p.ep_a);
	nothing_is_told(&p.a);
	down();
}

static void post__rdma(void)
{
	up_as(NEITHER, NEITHER);
	fill(ma.at, 1000, 3);
	OK(a_writes(0, 5000, 1000, 1, DEFAULT));
	OK(a_reads(9000, 5000, 1000, 2, DEFAULT));
	await_idle(p.ep_a);
	CHECK(filled(mb.at + 5000, 1000, 3));
	CHECK(filled(ma.at + 9000, 1000, 3));
	nothing_is_told(&p.a);
	down();
}

/* The window opens when the bind is done, and what follows waits for that. */
static void post__bind(void)
{
	DAT_LMR_TRIPLET range;
	DAT_RMR_CONTEXT window;
	DAT_RMR_HANDLE rmr;
	DAT_RMR_TRIPLET remote;
	DAT_LMR_TRIPLET iov;

	up_as(BOTH, NEITHER);
	if (DAT_GET_TYPE(dat_rmr_create(p.b.pz, &rmr)) == DAT_MODEL_NOT_SUPPORTED)
		tap_unsupported("no memory windows");
	range = dx_local(mb.local, mb.at, 4096);
	OK(dx_rmr_bind(rmr, mb.lmr, &range, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, p.ep_b, cookie(7),
		       DEFAULT, &window));
	await_idle(p.ep_b);
	ma.at[63] = 9;
	iov = dx_local(ma.local, ma.at, 64);
	remote = dx_remote(window, mb.at, 64);
	OK(dat_ep_post_rdma_write(p.ep_a, 1, &iov, cookie(1), &remote, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	await_byte(mb.at + 63, 9);
	nothing_is_told(&p.b);
	down();
}

/* --- limits ------------------------------------------------------------------------------------- */

static void limit__receives(void)
{
	DAT_EP_PARAM param;
	DAT_COUNT taken = 0;
	DAT_RETURN ret;

	up_as(BOTH, NEITHER);
	OK(dat_ep_query(p.ep_b, DAT_EP_FIELD_ALL, &param));
	while (DAT_GET_TYPE(ret = b_receives(0, 64, 1)) == DAT_SUCCESS && taken < 1000)
		taken++;
	CHECK_RET(ret, DAT_INSUFFICIENT_RESOURCES);
	CHECK(taken >= param.ep_attr.max_recv_dtos);
	/* A receive that is used makes room for one. */
	OK(a_sends(0, 8, 1, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	b_surely_receives(0, 64);
	CHECK_RET(b_receives(0, 64, 1), DAT_INSUFFICIENT_RESOURCES);
	down();
}

static void limit__requests(void)
{
	DAT_COUNT taken;

	up_as(NEITHER, BOTH);
	taken = a_sends_all_it_can(1);
	for (DAT_COUNT i = 0; i < taken; i++) {
		OK(b_receives(0, SIZE, 2));
		EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_SUCCESS);
	}
	await_idle(p.ep_a);
	/* And there is room again. */
	OK(b_receives(0, SIZE, 3));
	OK(a_sends(0, 8, 1, DEFAULT));
	EXPECT_DTO(p.b.recv_evd, 3, DAT_DTO_SUCCESS);
	down();
}

/* --- the end of a connection ---------------------------------------------------------------------- */

/* Afterwards posts are taken and flushed, and nobody is told. */
static void ended(const struct rig *rig, DAT_EP_HANDLE ep)
{
	await_state(ep, DAT_EP_STATE_DISCONNECTED);
	for (int i = 0; i < 100; i++) {
		OK(recv_nothing(ep, 1));
		OK(send_nothing(ep, 1, DEFAULT));
	}
	await_idle(ep);
	nothing_is_told(rig);
}

static void end__failed_request(void)
{
	up_as(NEITHER, BOTH);
	OK(a_writes(0, SIZE, 8, 1, DEFAULT));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	ended(&p.a, p.ep_a);
	down();
}

static void end__failed_receive(void)
{
	up_as(NEITHER, NEITHER);
	OK(b_receives(0, 8, 1));
	OK(a_sends(0, 9, 1, DEFAULT));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	ended(&p.b, p.ep_b);
	ended(&p.a, p.ep_a);
	down();
}

static void end__disconnect(void)
{
	up_as(NEITHER, NEITHER);
	for (int i = 0; i < 4; i++) {
		OK(recv_nothing(p.ep_a, 1));
		OK(recv_nothing(p.ep_b, 1));
	}
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	ended(&p.a, p.ep_a);
	ended(&p.b, p.ep_b);
	down();
}

/* What was posted goes before a graceful end. */
static void end__graceful(void)
{
	up_as(NEITHER, NEITHER);
	fill(ma.at, SIZE, 5);
	for (int i = 0; i < 4; i++)
		OK(a_writes(0, 0, SIZE, 1, DEFAULT));
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK(filled(mb.at, SIZE, 5));
	ended(&p.a, p.ep_a);
	down();
}

/* Once more with the same endpoints. */
static void end__reset(void)
{
	up_as(NEITHER, NEITHER);
	for (int i = 1; i <= 3; i++) {
		memset(ma.at, i, 8);
		OK(b_receives(0, 8, 1));
		OK(a_sends(0, 8, 1, DEFAULT));
		await_byte(mb.at + 7, i);
		OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_GRACEFUL_FLAG));
		EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_ep_reset(p.ep_a));
		OK(dat_ep_reset(p.ep_b));
		connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	}
	nothing_is_told(&p.a);
	OK(dat_ep_free(p.ep_a));
	OK(dat_ep_free(p.ep_b));
	down();
}

/* --- EVDs that come and go ------------------------------------------------------------------------ */

static DAT_RETURN set_evds(const struct rig *rig, DAT_EP_HANDLE ep, int evds)
{
	DAT_EP_PARAM param;

	memset(&param, 0, sizeof param);
	param.recv_evd_handle = evds & RECV ? rig->recv_evd : DAT_HANDLE_NULL;
	param.request_evd_handle = evds & REQUEST ? rig->request_evd : DAT_HANDLE_NULL;
	return dat_ep_modify(ep, DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_REQUEST_EVD_HANDLE,
			     &param);
}

static void modify__evds_given_later(void)
{
	rigs_up();
	p.ep_a = make(&p.a, NEITHER);
	p.ep_b = make(&p.b, NEITHER);
	OK(b_receives(0, 8, 1));
	CHECK_RET(set_evds(&p.a, p.ep_a, BOTH), DAT_SUCCESS);
	CHECK_RET(set_evds(&p.b, p.ep_b, BOTH), DAT_SUCCESS);
	OK(b_receives(8, 8, 2));
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	OK(a_sends(0, 8, 3, DEFAULT));
	OK(a_sends(0, 8, 4, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_SUCCESS);
	down();
}

static void modify__evds_taken_away(void)
{
	rigs_up();
	p.ep_a = make(&p.a, BOTH);
	p.ep_b = make(&p.b, BOTH);
	OK(b_receives(0, 8, 1));
	CHECK_RET(set_evds(&p.a, p.ep_a, NEITHER), DAT_SUCCESS);
	CHECK_RET(set_evds(&p.b, p.ep_b, NEITHER), DAT_SUCCESS);
	/* Nothing feeds them any more. */
	CHECK_RET(dat_evd_free(p.a.request_evd), DAT_SUCCESS);
	p.a.request_evd = make_evd(p.a.ia, 16, DAT_EVD_DTO_FLAG);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	memset(ma.at, 6, 8);
	OK(a_sends(0, 8, 3, DEFAULT));
	await_byte(mb.at + 7, 6);
	await_idle(p.ep_a);
	nothing_is_told(&p.a);
	nothing_is_told(&p.b);
	down();
}

/* --- shared receive queues -------------------------------------------------------------------------- */

enum { ROOM = 8 };

static DAT_SRQ_HANDLE srq;

static void srq_up(DAT_COMPLETION_FLAGS recv_flags)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = ROOM, .max_recv_iov = 1 };
	DAT_EP_ATTR attr;

	rigs_up();
	if (!p.b.provider.srq_supported)
		tap_unsupported("no SRQ");
	OK(dat_srq_create(p.b.ia, p.b.pz, &srq_attr, &srq));
	attr = ep_attr(&p.b);
	attr.recv_completion_flags = recv_flags;
	p.ep_a = make(&p.a, BOTH);
	OK(dat_ep_create_with_srq(p.b.ia, p.b.pz, DAT_HANDLE_NULL, DAT_HANDLE_NULL, p.b.connect_evd,
				  srq, &attr, &p.ep_b));
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
}

static DAT_RETURN post_buffer(void)
{
	DAT_LMR_TRIPLET iov = dx_local(mb.local, mb.at, 64);

	return dat_srq_post_recv(srq, 1, &iov, cookie(1));
}

/* Buffers that are posted and not used up, which becomes this. */
static void await_outstanding(DAT_COUNT count)
{
	unsigned long long end = now_us() + SOON;
	DAT_SRQ_PARAM param;

	do {
		OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
		pause_us(100);
	} while (param.outstanding_dto_count != count && now_us() < end);
	CHECK_EQ(param.outstanding_dto_count, count);
}

static void srq_buffers(DAT_COMPLETION_FLAGS recv_flags)
{
	srq_up(recv_flags);
	for (int i = 1; i <= 10 * ROOM; i++) {
		unsigned long long end = now_us() + SOON;
		DAT_RETURN ret;

		memset(ma.at, i, 64);
		while (DAT_GET_TYPE(ret = post_buffer()) == DAT_INSUFFICIENT_RESOURCES &&
		       now_us() < end)
			pause_us(100);
		OK(ret);
		OK(a_sends(0, 64, 1, DEFAULT));
		EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
		await_byte(mb.at + 63, i);
	}
	await_outstanding(0);
	nothing_is_told(&p.b);
	/* All of its places are free. */
	for (int i = 0; i < ROOM; i++)
		OK(post_buffer());
	await_outstanding(ROOM);
	down();
}

static void srq__buffers_come_back(void)
{
	srq_buffers(DEFAULT);
}

static void srq__solicited_wait(void)
{
	srq_buffers(DAT_COMPLETION_SOLICITED_WAIT_FLAG);
}

static void srq__resized(void)
{
	srq_up(DEFAULT);
	for (int i = 0; i < 4; i++) {
		OK(post_buffer());
		OK(a_sends(0, 64, 1, DEFAULT));
		EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	}
	await_outstanding(0);
	CHECK_RET(dat_srq_resize(srq, 2), DAT_SUCCESS);
	OK(post_buffer());
	OK(post_buffer());
	CHECK_RET(dat_srq_resize(srq, 1), DAT_INVALID_STATE);
	down();
}

static const struct tap_test tests[] = {
	T(post, neither_evd),
	T(post, receive_evd_alone),
	T(post, request_evd_alone),
	T(post, both_evds),
	T(post, one_end_without),
	T(post, other_end_without),
	T(post, a_burst),
	T(post, rdma),
	T(post, bind),
	T(limit, receives),
	T(limit, requests),
	T(end, failed_request),
	T(end, failed_receive),
	T(end, disconnect),
	T(end, graceful),
	T(end, reset),
	T(modify, evds_given_later),
	T(modify, evds_taken_away),
	T(srq, buffers_come_back),
	T(srq, solicited_wait),
	T(srq, resized),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
