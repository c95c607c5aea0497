/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Shared receive queues: dat_srq_create(3DAT), _query, _post_recv, _free,
 * dat_ep_create_with_srq(3DAT). Sizes and watermarks are in t_srq_marks. End b has the queue. */
#include "srq.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* --- dat_srq_create, dat_srq_query, dat_srq_free ----------------------------------------------- */

static void srq_create__and_query(void)
{
	DAT_SRQ_PARAM param;
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;

	rig_up(&p.b);
	CHECK(p.b.attr.max_srqs > 0);
	CHECK(p.b.attr.max_recv_per_srq > 0);
	CHECK(p.b.provider.srq_supported);
	OK(create_srq(&p.b, ROOM, 2, DAT_SRQ_LW_DEFAULT, &srq));
	OK(dat_get_handle_type(srq, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_SRQ);
	param = query_srq();
	CHECK(param.ia_handle == p.b.ia);
	CHECK(param.pz_handle == p.b.pz);
	CHECK_EQ(param.srq_state, DAT_SRQ_STATE_OPERATIONAL);
	CHECK(param.max_recv_dtos >= ROOM);
	CHECK(param.max_recv_iov >= 2);
	CHECK_EQ(param.low_watermark, DAT_SRQ_LW_DEFAULT);
	check_counts(0, 0);
	CHECK_RET(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_srq_query(srq, (DAT_SRQ_PARAM_MASK)0x40000, &param), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_pz_free(p.b.pz), DAT_INVALID_STATE);
	CHECK_RET(dat_srq_free(srq), DAT_SUCCESS);
	CHECK_CODE(dat_srq_free(srq), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_SRQ);
	CHECK_RET(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param), DAT_INVALID_HANDLE);
	CHECK_RET(dat_pz_free(p.b.pz), DAT_SUCCESS);
	rig_down(&p.b);
}

static void srq_create__arguments(void)
{
	DAT_SRQ_ATTR attr = { ROOM, 2, DAT_SRQ_LW_DEFAULT };
	DAT_IA_ATTR *ia;

	rig_up(&p.b);
	ia = &p.b.attr;
	CHECK_RET(create_srq(&p.b, 0, 2, DAT_SRQ_LW_DEFAULT, &srq), DAT_INVALID_PARAMETER);
	CHECK_RET(create_srq(&p.b, -1, 2, DAT_SRQ_LW_DEFAULT, &srq), DAT_INVALID_PARAMETER);
	CHECK_RET(create_srq(&p.b, ROOM, -1, DAT_SRQ_LW_DEFAULT, &srq), DAT_INVALID_PARAMETER);
	CHECK_RET(create_srq(&p.b, ROOM, 2, 1, &srq), DAT_INVALID_PARAMETER);
	CHECK_RET(create_srq(&p.b, ia->max_recv_per_srq + 1, 2, DAT_SRQ_LW_DEFAULT, &srq),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(create_srq(&p.b, ROOM, ia->max_iov_segments_per_dto + 1, DAT_SRQ_LW_DEFAULT,
			     &srq),
		  DAT_INVALID_PARAMETER);
	CHECK_CODE(dat_srq_create(DAT_HANDLE_NULL, p.b.pz, &attr, &srq), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_IA);
	CHECK_CODE(dat_srq_create(p.b.ia, p.b.recv_evd, &attr, &srq), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_PZ);
	CHECK_RET(dat_srq_create(p.b.ia, p.b.pz, NULL, &srq), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_srq_create(p.b.ia, p.b.pz, &attr, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(create_srq(&p.b, ia->max_recv_per_srq, 2, DAT_SRQ_LW_DEFAULT, &srq), DAT_SUCCESS);
	rig_down(&p.b);
}

/* Buffers that no endpoint has taken do not keep the queue; their memory is free with it. */
static void srq_free__with_buffers(void)
{
	queue_up();
	for (DAT_UINT64 i = 0; i < 3; i++)
		OK(post_srq(i));
	CHECK_RET(dat_srq_free(srq), DAT_SUCCESS);
	CHECK_CODE(dat_srq_free(srq), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_SRQ);
	CHECK_RET(dat_srq_post_recv(srq, 0, NULL, cookie(1)), DAT_INVALID_HANDLE);
	EXPECT_NOTHING(p.b.recv_evd);
	CHECK_RET(dat_lmr_free(mb.lmr), DAT_SUCCESS);
	CHECK_RET(dat_pz_free(p.b.pz), DAT_SUCCESS);
	down();
}

/* --- dat_ep_create_with_srq ---------------------------------------------------------------------- */

static void ep_create_with_srq__uses_it_for_life(void)
{
	DAT_EP_PARAM param;

	queue_up();
	p.ep_b = make_srq_ep(&p.b, NULL);
	OK(dat_ep_query(p.ep_b, DAT_EP_FIELD_ALL, &param));
	CHECK(param.srq_handle == srq);
	CHECK_EQ(ep_state(p.ep_b), DAT_EP_STATE_UNCONNECTED);
	CHECK_CODE(b_receives(0, 10, 1), DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE);
	CHECK_CODE(dat_srq_free(srq), DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE);
	param.srq_handle = DAT_HANDLE_NULL;
	CHECK_RET(dat_ep_modify(p.ep_b, DAT_EP_FIELD_SRQ_HANDLE, &param), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_free(p.ep_b), DAT_SUCCESS);
	CHECK_RET(dat_srq_free(srq), DAT_SUCCESS);
	rig_down(&p.b);
}

static void ep_create_with_srq__arguments(void)
{
	const struct rig *b = &p.b;
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE ep;
	DAT_PZ_HANDLE pz;
	DAT_RETURN ret;

	queue_up();
	attr = ep_attr(b);
	CHECK_CODE(dat_ep_create_with_srq(b->ia, b->pz, b->recv_evd, b->request_evd, b->connect_evd,
					  DAT_HANDLE_NULL, &attr, &ep),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_SRQ);
	CHECK_CODE(dat_ep_create_with_srq(b->ia, b->recv_evd, b->recv_evd, b->request_evd,
					  b->connect_evd, srq, &attr, &ep),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ);
	CHECK_RET(dat_ep_create_with_srq(b->ia, b->pz, b->recv_evd, b->request_evd, b->connect_evd,
					 srq, NULL, &ep),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_create_with_srq(b->ia, b->pz, b->recv_evd, b->request_evd, b->connect_evd,
					 srq, &attr, NULL),
		  DAT_INVALID_PARAMETER);
	/* An SRQ of another IA instance. */
	CHECK_RET(dat_ep_create_with_srq(p.a.ia, p.a.pz, p.a.recv_evd, p.a.request_evd,
					 p.a.connect_evd, srq, &attr, &ep),
		  b->provider.srq_ep_pz_difference_supported ? DAT_INVALID_HANDLE :
							       DAT_INVALID_PARAMETER);
	/* The same where no zone is given that could differ. */
	CHECK_CODE(dat_ep_create_with_srq(p.a.ia, DAT_HANDLE_NULL, p.a.recv_evd, p.a.request_evd,
					  p.a.connect_evd, srq, &attr, &ep),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_SRQ);
	OK(dat_pz_create(b->ia, &pz));
	ret = dat_ep_create_with_srq(b->ia, pz, b->recv_evd, b->request_evd, b->connect_evd, srq,
				     &attr, &ep);
	CHECK_RET(ret,
		  b->provider.srq_ep_pz_difference_supported ? DAT_SUCCESS : DAT_INVALID_PARAMETER);
	down();
}

/* The endpoint has the attributes that were asked for: as many requests at least, everything else
 * exactly. How many segments a receive has is the queue's matter, whatever the attribute says. */
static void ep_create_with_srq__attributes(void)
{
	static const DAT_COUNT ignored[] = { 0, -1, INT_MAX };
	DAT_EP_PARAM param;
	DAT_EP_ATTR attr;
	DAT_LMR_TRIPLET iov[2];

	queue_up();
	p.ep_a = make_ep(&p.a, NULL);
	attr = ep_attr(&p.b);
	attr.max_recv_dtos = 7;
	attr.max_message_size = 300;
	attr.max_rdma_size = 500;
	attr.max_rdma_read_in = 1;
	attr.max_rdma_read_out = 0;
	for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
		attr.max_recv_iov = ignored[i];
		p.ep_b = make_srq_ep(&p.b, &attr);
	}
	OK(dat_ep_query(p.ep_b, DAT_EP_FIELD_ALL, &param));
	CHECK(param.ep_attr.max_request_dtos >= attr.max_request_dtos);
	CHECK(param.ep_attr.max_request_iov >= attr.max_request_iov);
	CHECK_EQ(param.ep_attr.max_recv_dtos, 7);
	CHECK_EQ(param.ep_attr.max_message_size, 300);
	CHECK_EQ(param.ep_attr.max_rdma_size, 500);
	CHECK_EQ(param.ep_attr.max_rdma_read_in, 1);
	CHECK_EQ(param.ep_attr.max_rdma_read_out, 0);
	CHECK_EQ(param.ep_attr.srq_soft_hw, attr.srq_soft_hw);
	CHECK_EQ(param.ep_attr.qos, attr.qos);
	CHECK_EQ(param.ep_attr.recv_completion_flags, attr.recv_completion_flags);
	CHECK_EQ(param.ep_attr.request_completion_flags, attr.request_completion_flags);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	iov[0] = dx_local(mb.local, mb.at, 40);
	iov[1] = dx_local(mb.local, mb.at + 100, 40);
	OK(dat_srq_post_recv(srq, 2, iov, cookie(1)));
	fill(ma.at, 80, 3);
	OK(a_sends(0, 80, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	memmove(mb.at + 40, mb.at + 100, 40);
	CHECK(filled(mb.at, 80, 3));
	down();
}

/* What the IA does not have is refused, and no endpoint is made. */
static void ep_create_with_srq__attributes_beyond_the_ia(void)
{
	DAT_EP_ATTR usual, attr;
	DAT_EP_HANDLE ep;

	queue_up();
	usual = ep_attr(&p.b);
#define REFUSED(member, value)                                                                  \
	do {                                                                                    \
		attr = usual;                                                                   \
		attr.member = (value);                                                          \
		CHECK_RET(dat_ep_create_with_srq(p.b.ia, p.b.pz, p.b.recv_evd, p.b.request_evd, \
						 p.b.connect_evd, srq, &attr, &ep),             \
			  DAT_INVALID_PARAMETER);                                               \
	} while (0)
	REFUSED(max_rdma_read_iov, p.b.attr.max_iov_segments_per_rdma_read + 1);
	REFUSED(max_rdma_write_iov, p.b.attr.max_iov_segments_per_rdma_write + 1);
	REFUSED(max_request_iov, p.b.attr.max_iov_segments_per_dto + 1);
	REFUSED(max_request_dtos, p.b.attr.max_dto_per_ep + 1);
	REFUSED(max_request_dtos, -1);
	REFUSED(max_rdma_read_in, p.b.attr.max_rdma_read_per_ep_in + 1);
	REFUSED(max_rdma_read_out, p.b.attr.max_rdma_read_per_ep_out + 1);
#undef REFUSED
	CHECK_RET(dat_srq_free(srq), DAT_SUCCESS);
	down();
}

/* Zone and EVDs may come later; the zone is that of the queue, where the two must not differ. */
static void ep_create_with_srq__the_rest_is_given_later(void)
{
	const DAT_EP_PARAM_MASK rest =
		DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_CONNECT_EVD_HANDLE;
	DAT_EP_PARAM param = { 0 };
	DAT_CONN_QUAL qualifier;
	DAT_EP_ATTR attr;
	DAT_RETURN ret;

	queue_up();
	p.ep_a = make_ep(&p.a, NULL);
	attr = ep_attr(&p.b);
	OK(dat_ep_create_with_srq(p.b.ia, DAT_HANDLE_NULL, DAT_HANDLE_NULL, DAT_HANDLE_NULL,
				  DAT_HANDLE_NULL, srq, &attr, &p.ep_b));
	CHECK_EQ(ep_state(p.ep_b), DAT_EP_STATE_UNCONNECTED);
	(void)listen_any(&p.a, &qualifier);
	CHECK_RET(try_connect(p.ep_b, &p.a, qualifier, SOON), DAT_INVALID_HANDLE);
	if (!p.b.provider.srq_ep_pz_difference_supported) {
		OK(dat_pz_create(p.b.ia, &param.pz_handle));
		ret = dat_ep_modify(p.ep_b, DAT_EP_FIELD_PZ_HANDLE, &param);
		CHECK_RET(ret, DAT_INVALID_PARAMETER);
		/* The endpoint does not use that zone. */
		CHECK_RET(dat_pz_free(param.pz_handle), DAT_SUCCESS);
	}
	param.pz_handle = p.b.pz;
	param.recv_evd_handle = p.b.recv_evd;
	param.connect_evd_handle = p.b.connect_evd;
	OK(dat_ep_modify(p.ep_b, DAT_EP_FIELD_PZ_HANDLE | rest, &param));
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	OK(post_srq(1));
	OK(a_sends(0, 10, 2, DAT_COMPLETION_DEFAULT_FLAG));
	CHECK(EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS).ep_handle == p.ep_b);
	check_counts(0, 0);
	/* Its requests are carried out without an EVD for them. */
	OK(recv_nothing(p.ep_a, 3));
	OK(send_nothing(p.ep_b, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.recv_evd, 3, DAT_DTO_SUCCESS);
	down();
}

/* Receives that nobody is told of are the consumer's again when they are done. */
static void check_unreported(void)
{
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	for (DAT_UINT64 i = 0; i < 2 * ROOM; i++) {
		OK(post_srq(i % ROOM));
		fill(ma.at, 100, (unsigned)i);
		OK(a_sends(0, 100, i, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		while (query_srq().outstanding_dto_count > 0)
			pause_us(500);
		CHECK(filled(mb.at + 100 * (i % ROOM), 100, (unsigned)i));
	}
	check_counts(0, 0);
	EXPECT_NOTHING(p.b.recv_evd);
	down();
}

static void ep_create_with_srq__without_a_receive_evd(void)
{
	DAT_EP_ATTR attr;

	queue_up();
	p.ep_a = make_ep(&p.a, NULL);
	attr = ep_attr(&p.b);
	OK(dat_ep_create_with_srq(p.b.ia, p.b.pz, DAT_HANDLE_NULL, p.b.request_evd, p.b.connect_evd,
				  srq, &attr, &p.ep_b));
	check_unreported();
}

static void ep_create_with_srq__the_receive_evd_is_taken_away(void)
{
	DAT_EP_PARAM param = { 0 };

	queue_up();
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_srq_ep(&p.b, NULL);
	param.recv_evd_handle = DAT_HANDLE_NULL;
	OK(dat_ep_modify(p.ep_b, DAT_EP_FIELD_RECV_EVD_HANDLE, &param));
	check_unreported();
}

/* --- receiving -------------------------------------------------------------------------------------- */

static void srq_post_recv__arguments(void)
{
	DAT_LMR_TRIPLET iov[3];
	struct mem other;
	DAT_PZ_HANDLE pz;

	queue_up();
	iov[0] = iov[1] = iov[2] = dx_local(mb.local, mb.at, 10);
	CHECK_CODE(dat_srq_post_recv(DAT_HANDLE_NULL, 1, iov, cookie(1)), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_SRQ);
	CHECK_RET(dat_srq_post_recv(srq, -1, iov, cookie(1)), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_srq_post_recv(srq, 3, iov, cookie(1)), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_srq_post_recv(srq, 1, NULL, cookie(1)), DAT_INVALID_PARAMETER);
	iov[0] = dx_local(mb.local, mb.at + SIZE - 5, 10);
	CHECK_RET(dat_srq_post_recv(srq, 1, iov, cookie(1)), DAT_INVALID_PARAMETER);
	other = make_mem(&p.b, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG);
	iov[0] = dx_local(other.local, other.at, 10);
	CHECK_RET(dat_srq_post_recv(srq, 1, iov, cookie(1)), DAT_PRIVILEGES_VIOLATION);
	OK(dat_pz_create(p.b.ia, &pz));
	other = make_mem_in(p.b.ia, pz, 4096, DAT_MEM_PRIV_ALL_FLAG);
	iov[0] = dx_local(other.local, other.at, 10);
	CHECK_RET(dat_srq_post_recv(srq, 1, iov, cookie(1)), DAT_PROTECTION_VIOLATION);
	check_counts(0, 0);
	CHECK_RET(dat_srq_post_recv(srq, 0, NULL, cookie(1)), DAT_SUCCESS);
	for (DAT_UINT64 i = 1; i < ROOM; i++)
		CHECK_RET(post_srq(i), DAT_SUCCESS);
	check_counts(ROOM, ROOM);
	CHECK_RET(post_srq(1), DAT_INSUFFICIENT_RESOURCES);
	check_counts(ROOM, ROOM);
	down();
}

static void srq_query__counts(void)
{
	srq_up();
	for (DAT_UINT64 i = 0; i < 3; i++)
		OK(post_srq(i));
	check_counts(3, 3);
	fill(ma.at, 100, 4);
	OK(a_sends(0, 100, 9, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 9, DAT_DTO_SUCCESS);
	/* Taken, but the consumer has not seen it yet. */
	await_available(2);
	check_counts(2, 3);
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 0, DAT_DTO_SUCCESS).transfered_length, 100);
	check_counts(2, 2);
	CHECK(filled(mb.at, 100, 4));
	down();
}

static void srq__serves_all_its_endpoints(void)
{
	DAT_EP_HANDLE ep_a[3], ep_b[3];
	DAT_DTO_COMPLETION_EVENT_DATA data;

	queue_up();
	for (int i = 0; i < 3; i++) {
		ep_a[i] = make_ep(&p.a, NULL);
		ep_b[i] = make_srq_ep(&p.b, NULL);
		connect_eps(&p.a, ep_a[i], &p.b, ep_b[i]);
	}
	for (DAT_UINT64 i = 0; i < ROOM; i++) {
		size_t from = i % 3;

		OK(post_srq(i));
		fill(ma.at, 100, (unsigned)i);
		p.ep_a = ep_a[from];
		OK(a_sends(0, 100, i, DAT_COMPLETION_DEFAULT_FLAG));
		data = EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
		CHECK(data.ep_handle == ep_b[from]);
		CHECK(filled(mb.at + 100 * i, 100, (unsigned)i));
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
	}
	check_counts(0, 0);
	down();
}

/* Like an empty receive queue: the message waits. */
static void srq__empty(void)
{
	srq_up();
	for (DAT_UINT64 i = 0; i < 5; i++)
		OK(a_sends(100 * i, 100, i, DAT_COMPLETION_SUPPRESS_FLAG));
	EXPECT_NOTHING(p.b.recv_evd);
	for (DAT_UINT64 i = 0; i < 5; i++) {
		OK(post_srq(i));
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
	}
	EXPECT_NOTHING(p.b.recv_evd);
	check_counts(0, 0);
	down();
}

/* Buffers that no endpoint has taken stay, and so does the bond with the endpoint. */
static void srq__outlives_a_connection(void)
{
	srq_up();
	OK(post_srq(0));
	OK(post_srq(1));
	OK(dat_ep_disconnect(p.ep_b, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_NOTHING(p.b.recv_evd);
	/* Programs that want the queue back wait for this. */
	expect_async(&p.b, DAT_ASYNC_ERROR_EP_BROKEN, p.ep_b, DAT_EP_TRANSFER_TO_ERROR);
	check_counts(2, 2);
	OK(dat_ep_reset(p.ep_a));
	OK(dat_ep_reset(p.ep_b));
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	OK(a_sends(0, 100, 5, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 0, DAT_DTO_SUCCESS);
	check_counts(1, 1);
	/* What an endpoint has not handed over goes with it. */
	OK(a_sends(0, 100, 6, DAT_COMPLETION_DEFAULT_FLAG));
	await_available(0);
	CHECK_RET(dat_ep_free(p.ep_b), DAT_SUCCESS);
	check_counts(0, 0);
	CHECK_RET(dat_srq_free(srq), DAT_SUCCESS);
	down();
}

/* A reset takes the completions that were not dequeued; their buffers are the consumer's again. */
static void srq__reset_of_an_endpoint(void)
{
	srq_up();
	OK(post_srq(0));
	OK(post_srq(1));
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	await_available(1);
	check_counts(1, 2);
	OK(dat_ep_disconnect(p.ep_b, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	expect_async(&p.b, DAT_ASYNC_ERROR_EP_BROKEN, p.ep_b, DAT_EP_TRANSFER_TO_ERROR);
	OK(dat_ep_reset(p.ep_b));
	check_counts(1, 1);
	EXPECT_NOTHING(p.b.recv_evd);
	/* There is room for as many as the queue holds. */
	for (DAT_UINT64 i = 1; i < ROOM; i++)
		OK(post_srq(i));
	CHECK_RET(post_srq(0), DAT_INSUFFICIENT_RESOURCES);
	check_counts(ROOM, ROOM);
	down();
}

/* So does a free, of completions, too, that a wait has counted already. */
static void srq__free_of_an_endpoint(void)
{
	DAT_EVENT event;
	DAT_COUNT more;

	srq_up();
	for (DAT_UINT64 i = 0; i < 3; i++)
		OK(post_srq(i));
	for (DAT_UINT64 i = 0; i < 2; i++)
		OK(a_sends(0, 10, i, DAT_COMPLETION_SUPPRESS_FLAG));
	do {
		CHECK_RET(dat_evd_wait(p.b.recv_evd, NEVER, 3, &event, &more), DAT_TIMEOUT_EXPIRED);
	} while (more < 2);
	check_counts(1, 3);
	OK(dat_ep_free(p.ep_b));
	check_counts(1, 1);
	EXPECT_NOTHING(p.b.recv_evd);
	for (DAT_UINT64 i = 1; i < ROOM; i++)
		OK(post_srq(i));
	check_counts(ROOM, ROOM);
	down();
}

static atomic_bool polling;

static void *polls(void *arg)
{
	DAT_EVENT event;

	while (polling)
		dat_evd_dequeue(p.b.recv_evd, &event);
	return arg;
}

/* A completion that a thread takes while its endpoint is freed counts once. */
static void srq__freed_beside_a_poller(void)
{
	enum { ROUNDS = 20, BUFFERS = 6 };
	pthread_t thread;

	queue_up();
	if (!p.b.provider.is_thread_safe)
		tap_unsupported("the provider is not thread safe");
	p.ep_a = make_ep(&p.a, NULL);
	polling = true;
	REQUIRE(pthread_create(&thread, NULL, polls, NULL) == 0);
	for (int i = 0; i < ROUNDS; i++) {
		p.ep_b = make_srq_ep(&p.b, NULL);
		connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
		for (DAT_UINT64 number = 0; number < BUFFERS; number++)
			OK(post_srq(number));
		for (DAT_UINT64 number = 0; number < BUFFERS; number++)
			OK(a_sends(0, 10, number, DAT_COMPLETION_SUPPRESS_FLAG));
		await_available(0);
		OK(dat_ep_free(p.ep_b));
		EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		OK(dat_ep_reset(p.ep_a));
		check_counts(0, 0);
	}
	polling = false;
	REQUIRE(pthread_join(thread, NULL) == 0);
	down();
}

/* Triggered by the completions of receives at end b. */
static DAT_CNO_HANDLE watch_receives(void)
{
	DAT_CNO_HANDLE cno;

	OK(dat_cno_create(p.b.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(p.b.recv_evd, cno));
	return cno;
}

static void check_each_notifies(void)
{
	DAT_CNO_HANDLE cno = watch_receives();
	DAT_EVD_HANDLE from;

	for (DAT_UINT64 i = 0; i < 3; i++) {
		OK(post_srq(i));
		OK(a_sends(0, 10, 3, DAT_COMPLETION_DEFAULT_FLAG));
		CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
		CHECK(from == p.b.recv_evd);
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
	}
}

/* Without other flags of the endpoint each of its completions notifies. */
static void srq__completions_notify(void)
{
	srq_up();
	check_each_notifies();
	down();
}

/* Nor can it have its receives unsignalled: buffers of a queue have no flags. */
static void srq__unsignalled(void)
{
	srq_up_with(DAT_COMPLETION_UNSIGNALLED_FLAG);
	check_each_notifies();
	down();
}

static void srq__solicited_wait(void)
{
	DAT_CNO_HANDLE cno;
	DAT_EVD_HANDLE from;

	srq_up_with(DAT_COMPLETION_SOLICITED_WAIT_FLAG);
	cno = watch_receives();
	OK(post_srq(0));
	OK(post_srq(1));
	OK(a_sends(0, 10, 3, DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	OK(a_sends(0, 10, 4, DAT_COMPLETION_SOLICITED_WAIT_FLAG));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == p.b.recv_evd);
	down();
}

static const struct tap_test tests[] = {
	T(srq_create, and_query),
	T(srq_create, arguments),
	T(srq_free, with_buffers),
	T(ep_create_with_srq, uses_it_for_life),
	T(ep_create_with_srq, arguments),
	T(ep_create_with_srq, attributes),
	T(ep_create_with_srq, attributes_beyond_the_ia),
	T(ep_create_with_srq, the_rest_is_given_later),
	T(ep_create_with_srq, without_a_receive_evd),
	T(ep_create_with_srq, the_receive_evd_is_taken_away),
	T(srq_post_recv, arguments),
	T(srq_query, counts),
	T(srq, serves_all_its_endpoints),
	T(srq, empty),
	T(srq, outlives_a_connection),
	T(srq, completions_notify),
	T(srq, solicited_wait),
	T(srq, unsignalled),
	T(srq, reset_of_an_endpoint),
	T(srq, free_of_an_endpoint),
	T(srq, freed_beside_a_poller),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
