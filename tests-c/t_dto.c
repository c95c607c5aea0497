/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The arguments of the posts, as the pages describe them: lists of segments, cookies, and from where
 * and when a post can be made. Flags are in t_flags, wrong arguments in t_post and t_access. */
#include "transfer.h"

#include <stdatomic.h>
#include <string.h>

/* --- cookies ---------------------------------------------------------------------------------- */

/* Any value may be a cookie, and a cookie may be there several times. */
static const DAT_UINT64 values[] = { 0, ~(DAT_UINT64)0, (DAT_UINT64)1 << 63, 0x100000000, 7, 7, 0 };
enum { VALUES = sizeof values / sizeof *values };

static void cookies_arrive(DAT_EVD_HANDLE evd)
{
	for (int i = 0; i < VALUES; i++)
		EXPECT_DTO(evd, values[i], DAT_DTO_SUCCESS);
	EXPECT_NOTHING(evd);
}

static void cookie__of_sends_and_receives(void)
{
	up();
	for (int i = 0; i < VALUES; i++)
		OK(b_receives((size_t)i * 8, 8, values[i]));
	for (int i = 0; i < VALUES; i++)
		OK(a_sends(0, 8, values[i], DAT_COMPLETION_DEFAULT_FLAG));
	cookies_arrive(p.b.recv_evd);
	cookies_arrive(p.a.request_evd);
	down();
}

static void cookie__of_rdma(void)
{
	up();
	for (int i = 0; i < VALUES; i++)
		OK(a_writes(0, 0, 8, values[i], DAT_COMPLETION_DEFAULT_FLAG));
	cookies_arrive(p.a.request_evd);
	for (int i = 0; i < VALUES; i++)
		OK(a_reads(0, 0, 8, values[i], DAT_COMPLETION_DEFAULT_FLAG));
	cookies_arrive(p.a.request_evd);
	down();
}

static void cookie__of_binds(void)
{
	DAT_RMR_HANDLE rmr = up_to_bind();
	DAT_LMR_TRIPLET range = dx_local(mb.local, mb.at, 8);
	DAT_RMR_CONTEXT key;

	for (int i = 0; i < VALUES; i++)
		OK(dx_rmr_bind(rmr, mb.lmr, &range, DAT_MEM_PRIV_REMOTE_READ_FLAG, p.ep_b,
			       cookie(values[i]), DAT_COMPLETION_DEFAULT_FLAG, &key));
	for (int i = 0; i < VALUES; i++)
		CHECK_EQ(EXPECT(p.b.request_evd, DAT_RMR_BIND_COMPLETION_EVENT)
				 .event_data.rmr_completion_event_data.user_cookie.as_64,
			 values[i]);
	down();
}

static void cookie__of_what_is_flushed(void)
{
	up();
	for (int i = 0; i < VALUES; i++)
		OK(b_receives(0, 8, values[i]));
	OK(dat_ep_disconnect(p.ep_b, DAT_CLOSE_ABRUPT_FLAG));
	for (int i = 0; i < VALUES; i++)
		EXPECT_DTO(p.b.recv_evd, values[i], DAT_DTO_ERR_FLUSHED);
	EXPECT_NOTHING(p.b.recv_evd);
	down();
}

/* --- lists of segments ------------------------------------------------------------------------ */

enum { UNTOUCHED = 0x5a, PARTS = 4, PART = 100 };

/* Segments of growing size, the later ones at lower addresses, with room in between. */
static size_t part_size(int i)
{
	return (size_t)(i + 1) * 10;
}

static char *part_at(const struct mem *mem, int i)
{
	return mem->at + (size_t)(PARTS - i) * PART;
}

static void make_parts(DAT_LMR_TRIPLET *parts, const struct mem *mem)
{
	memset(mem->at, UNTOUCHED, (PARTS + 2) * PART);
	for (int i = 0; i < PARTS; i++)
		parts[i] = dx_local(mem->local, part_at(mem, i), part_size(i));
}

/* The first `size` bytes of the message are in the segments in their order, and nothing else is
 * changed. */
static void check_parts(const struct mem *mem, const char *message, size_t size)
{
	char want[(PARTS + 2) * PART];

	memset(want, UNTOUCHED, sizeof want);
	for (int i = 0; i < PARTS && size > 0; i++) {
		size_t here = part_size(i) < size ? part_size(i) : size;

		memcpy(want + (part_at(mem, i) - mem->at), message, here);
		message += here;
		size -= here;
	}
	CHECK(memcmp(mem->at, want, sizeof want) == 0);
}

/* Messages that end within a segment, with one, or with the last. */
static const size_t sizes[] = { 0, 1, 10, 25, 30, 31, 99, 100 };
enum { SIZES = sizeof sizes / sizeof *sizes };

static void segments__are_filled_in_order(void)
{
	DAT_LMR_TRIPLET parts[PARTS];

	up();
	for (int i = 0; i < SIZES; i++) {
		fill(ma.at, sizes[i], (unsigned)i);
		make_parts(parts, &mb);
		OK(dat_ep_post_recv(p.ep_b, PARTS, parts, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
		OK(a_sends(0, sizes[i], 2, DAT_COMPLETION_DEFAULT_FLAG));
		CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS).transfered_length, sizes[i]);
		EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
		check_parts(&mb, ma.at, sizes[i]);
	}
	down();
}

static void segments__of_a_read_are_filled_in_order(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_LMR_TRIPLET parts[PARTS];
	DAT_RMR_TRIPLET remote;

	attr.max_rdma_read_iov = PARTS;
	up_with(&attr);
	for (int i = 0; i < SIZES; i++) {
		fill(mb.at, sizes[i], (unsigned)i);
		make_parts(parts, &ma);
		remote = dx_remote(mb.remote, mb.at, sizes[i]);
		OK(dat_ep_post_rdma_read(p.ep_a, PARTS, parts, cookie(1), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG));
		CHECK_EQ(EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS).transfered_length,
			 sizes[i]);
		check_parts(&ma, mb.at, sizes[i]);
	}
	down();
}

/* What is sent or written is all that the segments have, in their order. */
static void segments__are_taken_in_order(void)
{
	DAT_LMR_TRIPLET parts[PARTS];
	DAT_RMR_TRIPLET remote;
	char want[100], *at = want;

	up();
	make_parts(parts, &ma);
	for (int i = 0; i < PARTS; i++) {
		fill(part_at(&ma, i), part_size(i), (unsigned)i);
		memcpy(at, part_at(&ma, i), part_size(i));
		at += part_size(i);
	}
	OK(b_receives(0, 1000, 1));
	OK(dat_ep_post_send(p.ep_a, PARTS, parts, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_EQ(EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS).transfered_length, sizeof want);
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS).transfered_length, sizeof want);
	CHECK(memcmp(mb.at, want, sizeof want) == 0);
	CHECK_EQ(mb.at[sizeof want], 0);
	remote = dx_remote(mb.remote, mb.at + 5000, sizeof want);
	OK(b_receives(0, 1000, 3));
	OK(dat_ep_post_rdma_write(p.ep_a, PARTS, parts, cookie(4), &remote,
				  DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_EQ(EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS).transfered_length, sizeof want);
	OK(a_sends(0, 0, 5, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 3, DAT_DTO_SUCCESS);
	CHECK(memcmp(mb.at + 5000, want, sizeof want) == 0);
	CHECK_EQ(mb.at[4999], 0);
	CHECK_EQ(mb.at[5000 + sizeof want], 0);
	down();
}

/* A message without bytes needs no segment, and no list. */
static void segments__of_nothing(void)
{
	up();
	OK(dat_ep_post_recv(p.ep_b, 0, NULL, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_send(p.ep_a, 0, NULL, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS).transfered_length, 0);
	CHECK_EQ(EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS).transfered_length, 0);
	down();
}

/* A receive without segments is too small for a message with bytes. */
static void segments__of_nothing_are_too_small(void)
{
	up();
	OK(dat_ep_post_recv(p.ep_b, 0, NULL, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	OK(a_sends(0, 1, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_ERR_LOCAL_LENGTH);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	down();
}

/* As many segments as the endpoint has room for, and one more. */
static void segments__one_too_many(void)
{
	enum { MOST = 64 };
	DAT_LMR_TRIPLET iov[MOST];
	DAT_RMR_TRIPLET remote;
	DAT_EP_PARAM param;
	DAT_COUNT sent, received, written, read;

	up();
	for (int i = 0; i < MOST; i++)
		iov[i] = dx_local(ma.local, ma.at, 1);
	OK(dat_ep_query(p.ep_a, DAT_EP_FIELD_ALL, &param));
	sent = param.ep_attr.max_request_iov;
	received = param.ep_attr.max_recv_iov;
	written = param.ep_attr.max_rdma_write_iov;
	read = param.ep_attr.max_rdma_read_iov;
	REQUIRE(sent < MOST && received < MOST && written < MOST && read < MOST);
	remote = dx_remote(mb.remote, mb.at, MOST);
	CHECK_CODE(dat_ep_post_recv(p.ep_a, received + 1, iov, cookie(1),
				    DAT_COMPLETION_DEFAULT_FLAG),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_ep_post_send(p.ep_a, sent + 1, iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_ep_post_rdma_write(p.ep_a, written + 1, iov, cookie(1), &remote,
					  DAT_COMPLETION_DEFAULT_FLAG),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	remote = dx_remote(mb.remote, mb.at, 1);
	CHECK_CODE(dat_ep_post_rdma_read(p.ep_a, read + 1, iov, cookie(1), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_ep_post_rdma_write(p.ep_a, -1, iov, cookie(1), &remote,
					  DAT_COMPLETION_DEFAULT_FLAG),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_ep_post_rdma_read(p.ep_a, -1, iov, cookie(1), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	OK(dat_ep_post_recv(p.ep_a, received, iov, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_rdma_read(p.ep_a, read, iov, cookie(3), &remote,
				 DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	remote = dx_remote(mb.remote, mb.at, (size_t)written);
	OK(dat_ep_post_rdma_write(p.ep_a, written, iov, cookie(4), &remote,
				  DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	OK(b_receives(0, 100, 5));
	OK(dat_ep_post_send(p.ep_a, sent, iov, cookie(6), DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 5, DAT_DTO_SUCCESS).transfered_length, sent);
	down();
}

/* --- whose the list is ------------------------------------------------------------------------ */

/* The lists are the consumer's again when the post returns, also if the request cannot be carried out
 * yet: a send that finds no receive holds up those behind it. */
static void segments__are_the_consumers_after_the_post(void)
{
	enum { HALF = 5000 };
	DAT_LMR_TRIPLET iov[2], none[2];
	DAT_RMR_TRIPLET remote;

	up();
	CHECK_EQ(p.a.provider.iov_ownership_on_return, DAT_IOV_CONSUMER);
	memset(none, 0xff, sizeof none);
	fill(ma.at, 2 * HALF, 1);
	fill(mb.at + 500000, HALF, 2);
	OK(a_sends(0, 0, 1, DAT_COMPLETION_DEFAULT_FLAG));
	iov[0] = dx_local(ma.local, ma.at, HALF);
	iov[1] = dx_local(ma.local, ma.at + HALF, HALF);
	remote = dx_remote(mb.remote, mb.at + 300000, 2 * HALF);
	OK(dat_ep_post_rdma_write(p.ep_a, 2, iov, cookie(2), &remote, DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_send(p.ep_a, 2, iov, cookie(3), DAT_COMPLETION_DEFAULT_FLAG));
	memcpy(iov, none, sizeof iov);
	iov[0] = dx_local(ma.local, ma.at + 100000, HALF);
	remote = dx_remote(mb.remote, mb.at + 500000, HALF);
	OK(dat_ep_post_rdma_read(p.ep_a, 1, iov, cookie(4), &remote, DAT_COMPLETION_DEFAULT_FLAG));
	memcpy(iov, none, sizeof iov);
	memset(&remote, 0xff, sizeof remote);
	OK(b_receives(0, 8, 5));
	iov[0] = dx_local(mb.local, mb.at + 100000, HALF);
	iov[1] = dx_local(mb.local, mb.at + 100000 + HALF, HALF);
	OK(dat_ep_post_recv(p.ep_b, 2, iov, cookie(6), DAT_COMPLETION_DEFAULT_FLAG));
	memcpy(iov, none, sizeof iov);
	for (DAT_UINT64 i = 1; i <= 4; i++)
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
	for (DAT_UINT64 i = 5; i <= 6; i++)
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at + 300000, 2 * HALF, 1));
	CHECK(filled(mb.at + 100000, 2 * HALF, 1));
	CHECK(filled(ma.at + 100000, HALF, 2));
	down();
}

/* --- when and from where ---------------------------------------------------------------------- */

/* Receives can be posted before there is a connection, and take its messages in their order. */
static void recv__before_the_connection(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_LMR_TRIPLET iov;

	rigs_up();
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, NULL);
	fill(mb.at + 500000, 300, 4);
	for (DAT_UINT64 i = 0; i < 3; i++) {
		iov = dx_local(ma.local, ma.at + i * 100, 100);
		if (i < 2)
			OK(dat_ep_post_recv(p.ep_a, 1, &iov, cookie(i),
					    DAT_COMPLETION_DEFAULT_FLAG));
	}
	(void)listen_any(&p.b, &qualifier);
	OK(try_connect(p.ep_a, &p.b, qualifier, SOON));
	/* And while it is made. */
	OK(dat_ep_post_recv(p.ep_a, 1, &iov, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_NOTHING(p.a.recv_evd);
	OK(dat_cr_accept(await_request(&p.b), p.ep_b, 0, NULL));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	for (DAT_UINT64 i = 0; i < 3; i++) {
		iov = dx_local(mb.local, mb.at + 500000 + i * 100, 100);
		OK(dat_ep_post_send(p.ep_b, 1, &iov, cookie(10 + i), DAT_COMPLETION_DEFAULT_FLAG));
	}
	for (DAT_UINT64 i = 0; i < 3; i++)
		EXPECT_DTO(p.a.recv_evd, i, DAT_DTO_SUCCESS);
	CHECK(filled(ma.at, 300, 4));
	down();
}

static atomic_int upcalls;

/* Called for the first completion: posts one operation of each kind. */
static void post_all(DAT_PVOID unused, DAT_EVD_HANDLE evd)
{
	(void)unused;
	(void)evd;
	if (atomic_fetch_add(&upcalls, 1) > 0)
		return;
	CHECK_RET(b_receives(0, 8, 2), DAT_SUCCESS);
	CHECK_RET(a_sends(0, 8, 2, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
	CHECK_RET(a_writes(0, 1000, 8, 3, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
	CHECK_RET(a_reads(2000, 1000, 8, 4, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
	/* Nor does one wait that can be carried out later. */
	CHECK_RET(a_sends(0, 8, 5, DAT_COMPLETION_DEFAULT_FLAG), DAT_SUCCESS);
}

static void post__in_an_upcall(void)
{
	DAT_OS_WAIT_PROXY_AGENT agent = { NULL, post_all };
	unsigned long long end;
	DAT_CNO_HANDLE cno;

	up();
	fill(ma.at, 8, 3);
	OK(dat_cno_create(p.a.ia, agent, &cno));
	OK(dat_evd_modify_cno(p.a.request_evd, cno));
	OK(a_writes(0, 0, 8, 1, DAT_COMPLETION_DEFAULT_FLAG));
	end = now_us() + SOON;
	while (atomic_load(&upcalls) == 0 && now_us() < end)
		pause_us(1000);
	CHECK(atomic_load(&upcalls) > 0);
	for (DAT_UINT64 i = 1; i <= 4; i++)
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_SUCCESS);
	OK(b_receives(0, 8, 6));
	EXPECT_DTO(p.b.recv_evd, 6, DAT_DTO_SUCCESS);
	CHECK(filled(ma.at + 2000, 8, 3));
	down();
}

/* --- reads ------------------------------------------------------------------------------------ */

/* More reads than the target has said to take at a time wait: the connection goes on. */
static void read__depths_that_differ(void)
{
	enum { COUNT = 12, BYTES = 20000 };
	DAT_EP_ATTR attr = usual_attr();

	rigs_up();
	attr.max_rdma_read_out =
		p.a.attr.max_rdma_read_per_ep_out < 4 ? p.a.attr.max_rdma_read_per_ep_out : 4;
	p.ep_a = make_ep(&p.a, &attr);
	attr.max_rdma_read_in = attr.max_rdma_read_out = 1;
	p.ep_b = make_ep(&p.b, &attr);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	fill(mb.at, COUNT * BYTES, 6);
	for (DAT_UINT64 i = 0; i < COUNT; i++)
		OK(a_reads(i * BYTES, i * BYTES, BYTES, i, DAT_COMPLETION_DEFAULT_FLAG));
	for (DAT_UINT64 i = 0; i < COUNT; i++)
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
	CHECK(filled(ma.at, COUNT * BYTES, 6));
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
	down();
}

/* A write behind the fence takes what the read before it has fetched. */
static void write__fence(void)
{
	enum { BYTES = 50000 };

	up();
	for (unsigned round = 1; round <= 50; round++) {
		fill(mb.at, BYTES, round);
		memset(ma.at, 0, BYTES);
		OK(b_receives(900000, 8, 9));
		OK(a_reads(0, 0, BYTES, 1, DAT_COMPLETION_DEFAULT_FLAG));
		OK(a_writes(0, 500000, BYTES, 2, DAT_COMPLETION_BARRIER_FENCE_FLAG));
		OK(a_sends(0, 8, 3, DAT_COMPLETION_DEFAULT_FLAG));
		for (DAT_UINT64 i = 1; i <= 3; i++)
			EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, 9, DAT_DTO_SUCCESS);
		REQUIRE(filled(mb.at + 500000, BYTES, round));
	}
	down();
}

static const struct tap_test tests[] = {
	T(cookie, of_sends_and_receives),
	T(cookie, of_rdma),
	T(cookie, of_binds),
	T(cookie, of_what_is_flushed),
	T(segments, are_filled_in_order),
	T(segments, of_a_read_are_filled_in_order),
	T(segments, are_taken_in_order),
	T(segments, of_nothing),
	T(segments, of_nothing_are_too_small),
	T(segments, one_too_many),
	T(segments, are_the_consumers_after_the_post),
	T(recv, before_the_connection),
	T(post, in_an_upcall),
	T(read, depths_that_differ),
	T(write, fence),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
