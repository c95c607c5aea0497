/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Receives with segments of an earlier one behind what they use, whose region is gone (dat.conf(5),
 * without rules=pages): Intel MPI posts such ones when it receives a message over datagrams a second
 * time. The IA is that of the test with "-programs" behind its name. */
#include "transfer.h"
#ifdef DAT2
#include "datagrams.h"
#endif

#include <stdlib.h>

/* Two segments: so many bytes of `mem`, and some of a region that was freed. */
static DAT_RETURN receives(DAT_EP_HANDLE ep, const struct rig *rig, const struct mem *mem,
			   size_t size, DAT_UINT64 value)
{
	struct mem gone = make_mem(rig, 4096, DAT_MEM_PRIV_ALL_FLAG);
	DAT_LMR_TRIPLET iov[] = {
		dx_local(mem->local, mem->at, size),
		dx_local(gone.local, gone.at, 2048),
	};

	OK(dat_lmr_free(gone.lmr));
	free(gone.at);
	return dat_ep_post_recv(ep, 2, iov, cookie(value), DAT_COMPLETION_DEFAULT_FLAG);
}

/* A message of side a that is in the first segment. */
static void arrives(size_t size, DAT_UINT64 value, unsigned seed)
{
	fill(ma.at, size, seed);
	OK(a_sends(0, size, 100 + value, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, value, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 100 + value, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, size, seed));
}

static const size_t lengths[] = { 0, 60, 100, 20000, 300000 };

/* The bytes in front of the segment that is left over, of the receive for the message of this number. */
static size_t room(size_t i)
{
	return lengths[i] > 100 ? lengths[i] : 100;
}

static void leftover__behind_the_message(void)
{
	up();
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		OK(receives(p.ep_b, &p.b, &mb, room(i), i));
		arrives(lengths[i], i, (unsigned)i + 1);
	}
	down();
}

/* The receive is posted when the message is there. */
static void leftover__behind_a_message_that_waits(void)
{
	up();
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		fill(ma.at, lengths[i], (unsigned)i + 7);
		OK(a_sends(0, lengths[i], 150 + i, DAT_COMPLETION_DEFAULT_FLAG));
		OK(receives(p.ep_b, &p.b, &mb, room(i), 50 + i));
		EXPECT_DTO(p.b.recv_evd, 50 + i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.a.request_evd, 150 + i, DAT_DTO_SUCCESS);
		CHECK(filled(mb.at, lengths[i], (unsigned)i + 7));
	}
	down();
}

/* Several segments that are used, in front of the one that is not. */
static void leftover__behind_others(void)
{
	struct mem gone;
	DAT_LMR_TRIPLET iov[3];

	up();
	gone = make_mem(&p.b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	iov[0] = dx_local(mb.local, mb.at, 50);
	iov[1] = dx_local(mb.local, mb.at + 50, 100);
	iov[2] = dx_local(gone.local, gone.at, 100);
	OK(dat_lmr_free(gone.lmr));
	free(gone.at);
	OK(dat_ep_post_recv(p.ep_b, 3, iov, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	arrives(150, 1, 9);
	down();
}

/* The message comes to it. */
static void leftover__in_the_message(void)
{
	static const size_t sizes[] = { 101, 60000 };

	if (!is_exact())
		tap_unsupported("what a device makes of it is its own");
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		up();
		OK(receives(p.ep_b, &p.b, &mb, sizes[i] - 1, 1));
		OK(a_sends(0, sizes[i], 2, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_ERR_LOCAL_PROTECTION);
		both_broken();
		free_mem(&ma);
		free_mem(&mb);
		down();
	}
}

/* Posted before there is a connection, and after its end. */
static void leftover__without_a_connection(void)
{
	rigs_up();
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, NULL);
	OK(receives(p.ep_b, &p.b, &mb, 100, 1));
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	arrives(100, 1, 5);
	OK(receives(p.ep_b, &p.b, &mb, 100, 2));
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 2, DAT_DTO_ERR_FLUSHED);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	OK(receives(p.ep_b, &p.b, &mb, 100, 3));
	EXPECT_DTO(p.b.recv_evd, 3, DAT_DTO_ERR_FLUSHED);
	down();
}

static void leftover__in_an_srq(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 2 };
	DAT_LMR_TRIPLET iov[2];
	DAT_SRQ_HANDLE srq;
	DAT_EP_ATTR attr;
	struct mem gone;

	rigs_up();
	attr = ep_attr(&p.b);
	if (!p.b.provider.srq_supported)
		tap_unsupported("no SRQ");
	OK(dat_srq_create(p.b.ia, p.b.pz, &srq_attr, &srq));
	OK(dat_ep_create_with_srq(p.b.ia, p.b.pz, p.b.recv_evd, p.b.request_evd, p.b.connect_evd,
				  srq, &attr, &p.ep_b));
	p.ep_a = make_ep(&p.a, NULL);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	gone = make_mem(&p.b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	iov[0] = dx_local(mb.local, mb.at, 100);
	iov[1] = dx_local(gone.local, gone.at, 100);
	OK(dat_lmr_free(gone.lmr));
	free(gone.at);
	OK(dat_srq_post_recv(srq, 2, iov, cookie(1)));
	arrives(100, 1, 3);
	down();
}

#ifdef DAT2
static void leftover__of_datagrams(void)
{
	struct outcome at_a, at_b;

	datagrams_up();
	exchange(da.ep, db.ep, &at_a, &at_b);
	OK(receives(db.ep, &db.rig, &db.mem, HEADER + 100, 1));
	datagram_arrives(&at_a, 1);
	give_back(&at_a);
	give_back(&at_b);
	datagrams_down();
}
#endif

static const struct tap_test tests[] = {
	T(leftover, behind_the_message),
	T(leftover, behind_a_message_that_waits),
	T(leftover, behind_others),
	T(leftover, in_the_message),
	T(leftover, without_a_connection),
	T(leftover, in_an_srq),
#ifdef DAT2
	T(leftover, of_datagrams),
#endif
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main_programs(argc, argv, tests);
}
