/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Where registered memory is: private to the program, or with memory=eager in a file that peers
 * map. The whole suite runs on both kinds of IA; here each proves that it is of its kind. */
#include "moved.h"
#include "transfer.h"

#include <stdlib.h>

enum { PAGE = 4096, PAGES = 8 };

static void moved__registered_memory(void)
{
	struct rig rig;
	struct mem mem;

	rig_up(&rig);
	mem = make_mem(&rig, PAGES * PAGE, DAT_MEM_PRIV_ALL_FLAG);
	for (int i = 0; i < PAGES; i++)
		CHECK_EQ(is_moved(mem.at + i * PAGE), moves_memory(tap_ia));
	CHECK_RET(dat_lmr_free(mem.lmr), DAT_SUCCESS);
	CHECK(!is_moved(mem.at));
	free(mem.at);
	rig_down(&rig);
}

/* A peer writes to the memory where it is by then. */
static void moved__data(void)
{
	up();
	CHECK_EQ(is_moved(mb.at), moves_memory(tap_ia));
	fill(ma.at, SIZE, 1);
	OK(recv_nothing(p.ep_b, 3));
	OK(a_writes(0, 0, SIZE, 1, DAT_COMPLETION_DEFAULT_FLAG));
	OK(send_nothing(p.ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 3, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, SIZE, 1));
	CHECK_EQ(is_moved(mb.at), moves_memory(tap_ia));
	down();
}

static const struct tap_test tests[] = {
	T(moved, registered_memory),
	T(moved, data),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
