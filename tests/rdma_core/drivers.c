/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verbs provider on the stand-in of benches/verbs when that does as drivers of adapters do, and those of
 * rdma_rxe and siw do not. */
#include "stand_in.h"

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

static const struct tap_test tests[] = {
	T(ep_post, without_segments),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
