/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ep_post_send_with_invalidate: the peer closes a window. DAT 2.0 only. Side b binds, side a is the peer who uses
 * the keys. */
#include "windows.h"

#include <dat2/udat_redirection.h>
#include <string.h>

/* Side a invalidates a key with a message. */
static DAT_DTO_COMPLETION_STATUS invalidated(DAT_RMR_CONTEXT key)
{
	DAT_LMR_TRIPLET out = dx_local(ma.local, ma.at, 10);

	OK(b_receives(500, 10, 1));
	OK(DAT_EP_POST_SEND_WITH_INVALIDATE(p.ep_a, 1, &out, cookie(2), DAT_COMPLETION_DEFAULT_FLAG,
					    DAT_TRUE, key));
	return EXPECT(p.b.recv_evd, DAT_DTO_COMPLETION_EVENT)
		.event_data.dto_completion_event_data.status;
}

/* The window is closed: it needs no other bind, and its region can be freed. */
static void rmr_invalidate__closes_the_window(void)
{
	DAT_RMR_PARAM param;
	struct mem mem;
	DAT_RMR_CONTEXT key = 0;

	rmr_up();
	mem = make_mem(&p.b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	OK(bind_mem(&mem, 0, 100, BOTH, 3, DAT_COMPLETION_DEFAULT_FLAG, &key));
	expect_bind(3, DAT_RMR_BIND_SUCCESS);
	CHECK_CODE(dat_lmr_free(mem.lmr), DAT_INVALID_STATE, DAT_INVALID_STATE_LMR_IN_USE);
	CHECK_EQ(invalidated(key), DAT_DTO_SUCCESS);
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK_EQ(param.rmr_context, 0);
	CHECK_EQ(param.mem_priv, DAT_MEM_PRIV_NONE_FLAG);
	CHECK_EQ(param.lmr_triplet.segment_length, 0);
	free_mem(&mem);
	down();
}

/* The key of a region is open to all peers of the zone: none of them can take it from the others. */
static void rmr_invalidate__not_a_region(void)
{
	DAT_EP_HANDLE other_a, other_b;
	struct mem mem;
	DAT_LMR_TRIPLET in;
	DAT_RMR_TRIPLET remote;

	rmr_up();
	mem = make_mem(&p.b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	other_a = make_ep(&p.a, NULL);
	other_b = make_ep(&p.b, NULL);
	connect_eps(&p.a, other_a, &p.b, other_b);
	CHECK(invalidated(mem.remote) != DAT_DTO_SUCCESS);
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	EXPECT(p.a.request_evd, DAT_DTO_COMPLETION_EVENT);
	in = dx_local(ma.local, ma.at, 100);
	remote = dx_remote(mem.remote, mem.at, 100);
	OK(dat_ep_post_rdma_read(other_a, 1, &in, cookie(4), &remote, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	free_mem(&mem);
	down();
}

static void rmr_invalidate__by_the_peer(void)
{
	DAT_RMR_CONTEXT key;
	DAT_LMR_TRIPLET out;

	rmr_up();
	key = bound(0, 100, BOTH);
	OK(b_receives(500, 10, 1));
	out = dx_local(ma.local, ma.at, 10);
	OK(DAT_EP_POST_SEND_WITH_INVALIDATE(p.ep_a, 1, &out, cookie(2), DAT_COMPLETION_DEFAULT_FLAG,
					    DAT_TRUE, key));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	/* It can be bound again. */
	OK(read_with(bound(0, 100, BOTH), 0, 100, 3));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	refused(key, 0, 100);
	down();
}

static const struct tap_test tests[] = {
	T(rmr_invalidate, by_the_peer),
	T(rmr_invalidate, closes_the_window),
	T(rmr_invalidate, not_a_region),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
