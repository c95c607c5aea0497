/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the four post functions have in common: completion flags, arguments, states, full
 * queues. */
#include "transfer.h"

#include <stddef.h>
#include <string.h>

/* --- completion flags ------------------------------------------------------------------------ */

static void completion__suppressed(void)
{
	up();
	for (int i = 0; i < 4; i++)
		OK(b_receives(0, 10, 100));
	OK(a_sends(0, 10, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(a_writes(0, 0, 10, 2, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(a_reads(0, 0, 10, 3, DAT_COMPLETION_SUPPRESS_FLAG));
	OK(a_sends(0, 10, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(p.a.request_evd);
	/* The receiver hears of each. */
	EXPECT_DTO(p.b.recv_evd, 100, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 100, DAT_DTO_SUCCESS);
	down();
}

static void completion__suppressed_for_long(void)
{
	/* A signalled request now and then retires those before it. */
	up();
	for (DAT_UINT64 i = 0; i < 500; i++) {
		bool last = i % 10 == 9;

		OK(a_writes(0, 0, 100, i,
			    last ? DAT_COMPLETION_DEFAULT_FLAG : DAT_COMPLETION_SUPPRESS_FLAG));
		if (last)
			EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
	}
	down();
}

static void completion__flags_not_for_this_operation(void)
{
	DAT_LMR_TRIPLET none = { 0 };

	up();
	/* UNSIGNALLED needs the attribute. */
	CHECK_RET(a_sends(0, 10, 1, DAT_COMPLETION_UNSIGNALLED_FLAG), DAT_INVALID_PARAMETER);
	CHECK_RET(a_writes(0, 0, 10, 1, DAT_COMPLETION_UNSIGNALLED_FLAG), DAT_INVALID_PARAMETER);
	CHECK_RET(a_reads(0, 0, 10, 1, DAT_COMPLETION_UNSIGNALLED_FLAG), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_recv(p.ep_b, 0, &none, cookie(1), DAT_COMPLETION_UNSIGNALLED_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_recv(p.ep_b, 0, &none, cookie(1), DAT_COMPLETION_SUPPRESS_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(a_sends(0, 10, 1, (DAT_COMPLETION_FLAGS)0x4000), DAT_INVALID_PARAMETER);
	CHECK_RET(a_writes(0, 0, 10, 1, (DAT_COMPLETION_FLAGS)0x4000), DAT_INVALID_PARAMETER);
	CHECK_RET(a_reads(0, 0, 10, 1, (DAT_COMPLETION_FLAGS)0x4000), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_recv(p.ep_b, 0, &none, cookie(1), (DAT_COMPLETION_FLAGS)0x4000),
		  DAT_INVALID_PARAMETER);
	EXPECT_NOTHING(p.a.request_evd);
	down();
}

static void completion__unsignalled_does_not_trigger_the_cno(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_CNO_HANDLE cno;
	DAT_EVD_HANDLE from;
	DAT_EVENT event;

	attr.request_completion_flags = DAT_COMPLETION_UNSIGNALLED_FLAG;
	up_with(&attr);
	OK(dat_cno_create(p.a.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(p.a.request_evd, cno));
	OK(a_writes(0, 0, 10, 1, DAT_COMPLETION_UNSIGNALLED_FLAG));
	await_idle(p.ep_a);
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	CHECK_RET(dat_evd_dequeue(p.a.request_evd, &event), DAT_SUCCESS);
	OK(a_writes(0, 0, 10, 2, DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == p.a.request_evd);
	down();
}

static void completion__solicited_wait(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_CNO_HANDLE cno;
	DAT_EVD_HANDLE from;
	DAT_EVENT event;

	attr.recv_completion_flags = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
	up_with(&attr);
	OK(dat_cno_create(p.b.ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(p.b.recv_evd, cno));
	OK(b_receives(0, 10, 1));
	OK(b_receives(0, 10, 2));
	OK(a_sends(0, 10, 3, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
	OK(a_sends(0, 10, 4, DAT_COMPLETION_SOLICITED_WAIT_FLAG));
	CHECK_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == p.b.recv_evd);
	for (DAT_UINT64 i = 1; i <= 2; i++) {
		OK(dat_evd_dequeue(p.b.recv_evd, &event));
		CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, i);
	}
	down();
}

/* --- arguments and states --------------------------------------------------------------------- */

static void post__segment_counts(void)
{
	DAT_LMR_TRIPLET iov[64];
	DAT_RMR_TRIPLET remote;

	up();
	for (int i = 0; i < 64; i++)
		iov[i] = dx_local(ma.local, ma.at, 1);
	remote = dx_remote(mb.remote, mb.at, 64);
	CHECK_RET(dat_ep_post_send(p.ep_a, -1, iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_send(p.ep_a, 64, iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_send(p.ep_a, 1, NULL, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_recv(p.ep_a, -1, iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_recv(p.ep_a, 64, iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_recv(p.ep_a, 1, NULL, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_rdma_write(p.ep_a, 64, iov, cookie(1), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_rdma_write(p.ep_a, 1, iov, cookie(1), NULL,
					 DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_rdma_read(p.ep_a, 64, iov, cookie(1), &remote,
					DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_rdma_read(p.ep_a, 1, iov, cookie(1), NULL,
					DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	EXPECT_NOTHING(p.a.request_evd);
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
	down();
}

static void post__unconnected(void)
{
	struct rig rig;
	struct mem mem;
	DAT_EP_HANDLE ep;
	DAT_LMR_TRIPLET iov;
	DAT_RMR_TRIPLET remote;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	mem = make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG);
	iov = dx_local(mem.local, mem.at, 8);
	remote = dx_remote(mem.remote, mem.at, 8);
	CHECK_RET(dat_ep_post_send(ep, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_STATE);
	CHECK_RET(dat_ep_post_rdma_write(ep, 1, &iov, cookie(1), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_STATE);
	CHECK_RET(dat_ep_post_rdma_read(ep, 1, &iov, cookie(1), &remote,
					DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_STATE);
	CHECK_RET(dat_ep_post_recv(ep, 1, &iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_SUCCESS);
	EXPECT_NOTHING(rig.recv_evd);
	rig_down(&rig);
}

static void post_recv__queue_full(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;
	DAT_LMR_TRIPLET none = { 0 };

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	for (DAT_COUNT i = 0; i < param.ep_attr.max_recv_dtos; i++)
		OK(dat_ep_post_recv(ep, 0, &none, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_RET(dat_ep_post_recv(ep, 0, &none, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INSUFFICIENT_RESOURCES);
	rig_down(&rig);
}

static void post_send__queue_full(void)
{
	DAT_BOOLEAN recv_idle = DAT_FALSE, request_idle = DAT_TRUE;
	DAT_COUNT taken;

	up();
	taken = a_sends_all_it_can(1);
	OK(dat_ep_get_status(p.ep_a, NULL, &recv_idle, &request_idle));
	CHECK_EQ(recv_idle, DAT_TRUE);
	CHECK_EQ(request_idle, DAT_FALSE);
	/* What was taken is carried out. */
	for (DAT_COUNT i = 0; i < taken; i++) {
		OK(b_receives(0, SIZE, 2));
		EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	}
	OK(dat_ep_get_status(p.ep_a, NULL, NULL, &request_idle));
	CHECK_EQ(request_idle, DAT_TRUE);
	OK(dat_ep_get_status(p.ep_b, NULL, &recv_idle, NULL));
	CHECK_EQ(recv_idle, DAT_TRUE);
	down();
}

/* A send that finds no receive holds up what comes behind it. */
static void fill_queue_behind_a_send(DAT_RETURN (*post)(size_t, size_t, size_t, DAT_UINT64,
							DAT_COMPLETION_FLAGS))
{
	DAT_COUNT taken = 0;
	DAT_RETURN ret = DAT_SUCCESS;

	up();
	OK(b_receives(0, SIZE, 1));
	OK(a_sends(0, SIZE, 0, DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_sends(0, SIZE, 0, DAT_COMPLETION_DEFAULT_FLAG));
	while (taken < 1000 &&
	       (ret = post(0, 0, SIZE, 2, DAT_COMPLETION_DEFAULT_FLAG)) == DAT_SUCCESS)
		taken++;
	CHECK_RET(ret, DAT_INSUFFICIENT_RESOURCES);
	OK(b_receives(0, SIZE, 1));
	EXPECT_DTO(p.a.request_evd, 0, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 0, DAT_DTO_SUCCESS);
	/* What was taken is carried out, and then there is room again. */
	for (; taken > 0; taken--)
		EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK_RET(post(0, 0, SIZE, 3, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	down();
}

static void post_rdma_write__queue_full(void)
{
	fill_queue_behind_a_send(a_writes);
}

static void post_rdma_read__queue_full(void)
{
	fill_queue_behind_a_send(a_reads);
}

static void post__as_many_segments_as_the_endpoint_has(void)
{
	enum { MOST = 64 };
	DAT_EP_ATTR attr = usual_attr();
	DAT_LMR_TRIPLET iov[MOST];
	DAT_RMR_TRIPLET remote;
	DAT_COUNT count;
	struct rig rig;

	rig_up(&rig);
	count = rig.attr.max_iov_segments_per_dto < MOST ? rig.attr.max_iov_segments_per_dto : MOST;
	attr.max_recv_iov = count;
	attr.max_request_iov = count;
	attr.max_rdma_write_iov = rig.attr.max_iov_segments_per_rdma_write < count ?
					  rig.attr.max_iov_segments_per_rdma_write :
					  count;
	rig_down(&rig);
	up_with(&attr);
	fill(ma.at, (size_t)count * 10, 5);
	for (DAT_COUNT i = 0; i < count; i++)
		iov[i] = dx_local(mb.local, mb.at + i * 10, 10);
	OK(dat_ep_post_recv(p.ep_b, count, iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	for (DAT_COUNT i = 0; i < count; i++)
		iov[i] = dx_local(ma.local, ma.at + i * 10, 10);
	OK(dat_ep_post_send(p.ep_a, count, iov, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, (size_t)count * 10, 5));
	remote = dx_remote(mb.remote, mb.at + 1000, (size_t)attr.max_rdma_write_iov * 10);
	OK(dat_ep_post_rdma_write(p.ep_a, attr.max_rdma_write_iov, iov, cookie(3), &remote,
				  DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	down();
}

static void evd__overflow_raises_an_async_event(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_EVD_PARAM param;
	DAT_ASYNCH_ERROR_EVENT_DATA error;

	attr.max_request_dtos = 1000;
	up_with(&attr);
	OK(dat_evd_query(p.a.request_evd, DAT_EVD_FIELD_ALL, &param));
	REQUIRE(param.evd_qlen < 1000);
	for (DAT_COUNT i = 0; i <= param.evd_qlen; i++)
		OK(a_writes(0, 0, 1, 1, DAT_COMPLETION_DEFAULT_FLAG));
	error = EXPECT(p.a.async_evd, DAT_ASYNC_ERROR_EVD_OVERFLOW)
			.event_data.asynch_error_event_data;
	CHECK(error.dat_handle == p.a.request_evd);
	CHECK_EQ(error.reason, DAT_EVD_OVERFLOW_ERROR);
	down();
}

/* --- the sizes that the endpoint was made for --------------------------------------------------- */

/* Side a may send 1000 bytes, and write or read 2000. */
static void up_with_sizes(void)
{
	DAT_EP_ATTR attr = usual_attr();

	attr.max_message_size = 1000;
	attr.max_rdma_size = 2000;
	rigs_up();
	p.ep_a = make_ep(&p.a, &attr);
	p.ep_b = make_ep(&p.b, NULL);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
}

static void post_send__beyond_the_size_of_the_endpoint(void)
{
	DAT_LMR_TRIPLET two[2];

	up_with_sizes();
	OK(b_receives(0, 5000, 1));
	CHECK_RET(a_sends(0, 1001, 2, DAT_COMPLETION_DEFAULT_FLAG), DAT_INVALID_PARAMETER);
	two[0] = dx_local(ma.local, ma.at, 600);
	two[1] = dx_local(ma.local, ma.at + 600, 401);
	CHECK_RET(dat_ep_post_send(p.ep_a, 2, two, cookie(2), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	/* Refused, so the connection is as before. */
	two[1] = dx_local(ma.local, ma.at + 600, 400);
	CHECK_RET(dat_ep_post_send(p.ep_a, 2, two, cookie(3), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_SUCCESS);
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS).transfered_length, 1000);
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(p.a.request_evd);
	/* What the endpoint receives may be longer: the peer has a limit of its own. */
	two[0] = dx_local(ma.local, ma.at, 5000);
	two[1] = dx_local(mb.local, mb.at, 1001);
	OK(dat_ep_post_recv(p.ep_a, 1, &two[0], cookie(4), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_send(p.ep_b, 1, &two[1], cookie(5), DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_EQ(EXPECT_DTO(p.a.recv_evd, 4, DAT_DTO_SUCCESS).transfered_length, 1001);
	down();
}

static void post_rdma__beyond_the_size_of_the_endpoint(void)
{
	up_with_sizes();
	CHECK_RET(a_writes(0, 0, 2001, 1, DAT_COMPLETION_DEFAULT_FLAG), DAT_INVALID_PARAMETER);
	CHECK_RET(a_reads(0, 0, 2001, 2, DAT_COMPLETION_DEFAULT_FLAG), DAT_INVALID_PARAMETER);
	CHECK_RET(a_writes(0, 0, 2000, 3, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	CHECK_RET(a_reads(0, 0, 2000, 4, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(p.a.request_evd);
	/* Also when the request would be flushed. */
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_RET(a_writes(0, 0, 2001, 5, DAT_COMPLETION_DEFAULT_FLAG), DAT_INVALID_PARAMETER);
	down();
}

/* Other sizes by dat_ep_modify. */
static void post_send__sizes_that_were_changed(void)
{
	DAT_EP_PARAM param = { 0 };
	DAT_EP_HANDLE ep;

	up_with_sizes();
	ep = make_ep(&p.a, NULL);
	param.ep_attr.max_message_size = 10;
	param.ep_attr.max_rdma_size = 20;
	OK(dat_ep_modify(ep,
			 DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE | DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE,
			 &param));
	p.ep_b = make_ep(&p.b, NULL);
	connect_eps(&p.a, ep, &p.b, p.ep_b);
	p.ep_a = ep;
	OK(b_receives(0, 5000, 1));
	CHECK_RET(a_sends(0, 11, 2, DAT_COMPLETION_DEFAULT_FLAG), DAT_INVALID_PARAMETER);
	CHECK_RET(a_sends(0, 10, 3, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	CHECK_RET(a_writes(0, 0, 21, 4, DAT_COMPLETION_DEFAULT_FLAG), DAT_INVALID_PARAMETER);
	CHECK_RET(a_writes(0, 0, 20, 5, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
	down();
}

/* Programs keep triplets in structures that are packed. */
static void post__triplets_that_are_not_aligned(void)
{
	struct __attribute__((packed)) triplets {
		DAT_UINT32 before;
		DAT_LMR_TRIPLET from, into, part[2];
		DAT_RMR_TRIPLET at;
	} packed;
	char *const base = (char *)&packed;
	DAT_LMR_TRIPLET *const from = (void *)(base + offsetof(struct triplets, from));
	DAT_LMR_TRIPLET *const into = (void *)(base + offsetof(struct triplets, into));
	DAT_LMR_TRIPLET *const part = (void *)(base + offsetof(struct triplets, part));
	DAT_RMR_TRIPLET *const at = (void *)(base + offsetof(struct triplets, at));

	up();
	packed.from = dx_local(ma.local, ma.at, 100);
	packed.into = dx_local(mb.local, mb.at, 100);
	packed.part[0] = dx_local(ma.local, ma.at, 40);
	packed.part[1] = dx_local(ma.local, ma.at + 40, 60);
	packed.at = dx_remote(mb.remote, mb.at + 200, 100);
	fill(ma.at, 100, 1);
	for (DAT_COUNT parts = 1; parts <= 2; parts++) {
		DAT_LMR_TRIPLET *local = parts == 1 ? from : part;
		const DAT_COMPLETION_FLAGS flags = DAT_COMPLETION_DEFAULT_FLAG;

		memset(mb.at, 0, 400);
		OK(dat_ep_post_recv(p.ep_b, 1, into, cookie(1), flags));
		OK(dat_ep_post_send(p.ep_a, parts, local, cookie(2), flags));
		EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
		CHECK(filled(mb.at, 100, 1));
		OK(dat_ep_post_rdma_write(p.ep_a, parts, local, cookie(3), at, flags));
		EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
		CHECK(filled(mb.at + 200, 100, 1));
		memset(ma.at, 0, 100);
		OK(dat_ep_post_rdma_read(p.ep_a, parts, local, cookie(4), at, flags));
		EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
		CHECK(filled(ma.at, 100, 1));
	}
	down();
}

static const struct tap_test tests[] = {
	T(completion, suppressed),
	T(completion, suppressed_for_long),
	T(completion, flags_not_for_this_operation),
	T(completion, unsignalled_does_not_trigger_the_cno),
	T(completion, solicited_wait),
	T(post, segment_counts),
	T(post, unconnected),
	T(post_recv, queue_full),
	T(post_send, queue_full),
	T(post_rdma_write, queue_full),
	T(post_rdma_read, queue_full),
	T(post, as_many_segments_as_the_endpoint_has),
	T(evd, overflow_raises_an_async_event),
	T(post_send, beyond_the_size_of_the_endpoint),
	T(post_rdma, beyond_the_size_of_the_endpoint),
	T(post_send, sizes_that_were_changed),
	T(post, triplets_that_are_not_aligned),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
