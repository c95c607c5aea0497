/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_rmr_create_for_ep and dat_ep_post_rdma_read_to_rmr. DAT 2.0 only. Side b binds, side a is the peer who
 * uses the keys; beside their connection there is another one of the same protection zones. */
#include "transfer.h"

#include <string.h>

#define READ DAT_MEM_PRIV_REMOTE_READ_FLAG
#define WRITE DAT_MEM_PRIV_REMOTE_WRITE_FLAG
#define USUAL DAT_COMPLETION_DEFAULT_FLAG

static DAT_RMR_HANDLE rmr;
/* The other connection. */
static DAT_EP_HANDLE other_a, other_b;

static void rmr_up(void)
{
	OK(dat_rmr_free(up_to_bind()));
	OK(dat_rmr_create_for_ep(p.b.pz, &rmr));
	other_a = make_ep(&p.a, NULL);
	other_b = make_ep(&p.b, NULL);
	connect_eps(&p.a, other_a, &p.b, other_b);
}

/* Binds 1000 bytes at an offset in mb. */
static DAT_RMR_CONTEXT opened(DAT_EP_HANDLE ep, size_t at, DAT_MEM_PRIV_FLAGS privileges)
{
	DAT_LMR_TRIPLET range = dx_local(mb.local, mb.at + at, 1000);
	DAT_RMR_CONTEXT key = 0;

	OK(dat_rmr_bind(rmr, mb.lmr, &range, privileges, DAT_VA_TYPE_VA, ep, cookie(7), USUAL,
			&key));
	EXPECT(p.b.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	return key;
}

/* Writes 1000 bytes of ma with a key. */
static void writes(DAT_EP_HANDLE ep, DAT_RMR_CONTEXT key, size_t to,
		   DAT_DTO_COMPLETION_STATUS status)
{
	DAT_LMR_TRIPLET local = dx_local(ma.local, ma.at, 1000);
	DAT_RMR_TRIPLET remote = dx_remote(key, mb.at + to, 1000);

	OK(dat_ep_post_rdma_write(ep, 1, &local, cookie(3), &remote, USUAL));
	EXPECT_DTO(p.a.request_evd, 3, status);
}

/* A write that side b refuses ends the connection. */
static void refused(DAT_EP_HANDLE ep_a, DAT_EP_HANDLE ep_b, DAT_RMR_CONTEXT key, size_t to)
{
	DAT_EVENT event;

	writes(ep_a, key, to, DAT_DTO_ERR_REMOTE_ACCESS);
	event = EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	CHECK(event.event_data.connect_event_data.ep_handle == ep_a);
	event = EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	CHECK(event.event_data.connect_event_data.ep_handle == ep_b);
}

static void rmr_for_ep__is_an_rmr(void)
{
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;
	DAT_RMR_PARAM param;

	rmr_up();
	OK(dat_get_handle_type(rmr, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_RMR);
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK(param.pz_handle == p.b.pz);
	CHECK_EQ(param.rmr_scope, DAT_RMR_SCOPE_EP);
	OK(dat_rmr_free(rmr));
	CHECK_RET(dat_rmr_free(rmr), DAT_INVALID_HANDLE);
	down();
}

static void rmr_for_ep__arguments(void)
{
	struct rig rig;

	rig_up(&rig);
	CHECK_RET(dat_rmr_create_for_ep(rig.ia, &rmr), DAT_INVALID_HANDLE);
	CHECK_RET(dat_rmr_create_for_ep(DAT_HANDLE_NULL, &rmr), DAT_INVALID_HANDLE);
	CHECK_RET(dat_rmr_create_for_ep(rig.pz, NULL), DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static void rmr_for_ep__open_to_its_peer(void)
{
	DAT_RMR_CONTEXT key;

	rmr_up();
	fill(ma.at, 1000, 5);
	key = opened(p.ep_b, 3000, WRITE);
	writes(p.ep_a, key, 3000, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at + 3000, 1000, 5));
	down();
}

static void rmr_for_ep__closed_to_others(void)
{
	DAT_RMR_CONTEXT key;

	rmr_up();
	fill(ma.at, 1000, 6);
	key = opened(p.ep_b, 3000, WRITE);
	refused(other_a, other_b, key, 3000);
	for (int i = 0; i < 1000; i++)
		CHECK_EQ(mb.at[3000 + i], 0);
	/* Its own peer does not notice. */
	writes(p.ep_a, key, 3000, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at + 3000, 1000, 6));
	down();
}

/* It belongs to the endpoint of the last bind. */
static void rmr_for_ep__moves(void)
{
	DAT_RMR_CONTEXT first, second;

	rmr_up();
	fill(ma.at, 1000, 7);
	first = opened(p.ep_b, 3000, WRITE);
	second = opened(other_b, 3000, WRITE);
	CHECK(first != second);
	writes(other_a, second, 3000, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at + 3000, 1000, 7));
	refused(p.ep_a, p.ep_b, second, 3000);
	down();
}

static void rmr_for_ep__invalidated_by_the_peer(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_CONTEXT key;

	rmr_up();
	key = opened(p.ep_b, 3000, WRITE);
	local = dx_local(ma.local, ma.at, 10);
	OK(b_receives(0, 10, 1));
	OK(dat_ep_post_send_with_invalidate(p.ep_a, 1, &local, cookie(2), USUAL, DAT_TRUE, key));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	refused(p.ep_a, p.ep_b, key, 3000);
	down();
}

/* Side b reads `size` bytes from side a into a window of its own. */
static DAT_RETURN read_to(DAT_EP_HANDLE ep, DAT_RMR_CONTEXT key, size_t to, size_t room,
			  size_t size)
{
	DAT_RMR_TRIPLET local = dx_remote(key, mb.at + to, room);
	DAT_RMR_TRIPLET remote = dx_remote(ma.remote, ma.at, size);

	return dat_ep_post_rdma_read_to_rmr(ep, &local, cookie(9), &remote, USUAL);
}

static void read_to_rmr__fills(void)
{
	DAT_DTO_COMPLETION_EVENT_DATA data;
	DAT_RMR_CONTEXT key;

	rmr_up();
	fill(ma.at, 900, 8);
	key = opened(p.ep_b, 3000, WRITE);
	OK(read_to(p.ep_b, key, 3050, 950, 900));
	data = EXPECT_DTO(p.b.request_evd, 9, DAT_DTO_SUCCESS);
	CHECK(data.ep_handle == p.ep_b);
	CHECK_EQ(data.operation, DAT_DTO_RDMA_READ);
	CHECK_EQ(data.transfered_length, 900);
	CHECK(filled(mb.at + 3050, 900, 8));
	CHECK_EQ(mb.at[3049], 0);
	CHECK_EQ(mb.at[3950], 0);
	down();
}

/* The windows of all endpoints, too. */
static void read_to_rmr__of_any_window(void)
{
	DAT_LMR_TRIPLET range;
	DAT_RMR_CONTEXT key = 0;
	DAT_RMR_HANDLE usual;

	rmr_up();
	range = dx_local(mb.local, mb.at, 1000);
	OK(dat_rmr_create(p.b.pz, &usual));
	OK(dat_rmr_bind(usual, mb.lmr, &range, WRITE, DAT_VA_TYPE_VA, p.ep_b, cookie(1), USUAL,
			&key));
	EXPECT(p.b.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	fill(ma.at, 1000, 9);
	OK(read_to(p.ep_b, key, 0, 1000, 1000));
	EXPECT_DTO(p.b.request_evd, 9, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, 1000, 9));
	OK(dat_rmr_free(usual));
	CHECK_RET(read_to(p.ep_b, key, 0, 1000, 1000), DAT_PRIVILEGES_VIOLATION);
	down();
}

static void read_to_rmr__arguments(void)
{
	DAT_RMR_TRIPLET remote, local;
	DAT_RMR_CONTEXT key, read_only;

	rmr_up();
	key = opened(p.ep_b, 3000, WRITE);
	local = dx_remote(key, mb.at + 3000, 1000);
	remote = dx_remote(ma.remote, ma.at, 1000);
	CHECK_RET(dat_ep_post_rdma_read_to_rmr(DAT_HANDLE_NULL, &local, cookie(1), &remote, USUAL),
		  DAT_INVALID_HANDLE);
	CHECK_RET(dat_ep_post_rdma_read_to_rmr(p.ep_b, NULL, cookie(1), &remote, USUAL),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_rdma_read_to_rmr(p.ep_b, &local, cookie(1), NULL, USUAL),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_rdma_read_to_rmr(p.ep_b, &local, cookie(1), &remote,
					       (DAT_COMPLETION_FLAGS)0x4000),
		  DAT_INVALID_PARAMETER);
	/* A range that is not in the window. */
	CHECK_RET(read_to(p.ep_b, key, 2999, 1000, 1000), DAT_INVALID_PARAMETER);
	CHECK_RET(read_to(p.ep_b, key, 3001, 1000, 1000), DAT_INVALID_PARAMETER);
	/* More than there is room for. */
	CHECK_RET(read_to(p.ep_b, key, 3000, 999, 1000), DAT_LENGTH_ERROR);
	/* What is no window, and the window of another endpoint. */
	CHECK_RET(read_to(p.ep_b, key ^ 0x5500, 3000, 1000, 1000), DAT_PRIVILEGES_VIOLATION);
	CHECK_RET(read_to(other_b, key, 3000, 1000, 1000), DAT_PROTECTION_VIOLATION);
	/* A window that cannot be written, and one that has another key. */
	read_only = opened(p.ep_b, 3000, READ);
	CHECK_RET(read_to(p.ep_b, read_only, 3000, 1000, 1000), DAT_PRIVILEGES_VIOLATION);
	CHECK_RET(read_to(p.ep_b, key, 3000, 1000, 1000), DAT_PRIVILEGES_VIOLATION);
	EXPECT_NOTHING(p.b.request_evd);
	down();
}

static const struct tap_test tests[] = {
	T(rmr_for_ep, is_an_rmr),
	T(rmr_for_ep, arguments),
	T(rmr_for_ep, open_to_its_peer),
	T(rmr_for_ep, closed_to_others),
	T(rmr_for_ep, moves),
	T(rmr_for_ep, invalidated_by_the_peer),
	T(read_to_rmr, fills),
	T(read_to_rmr, of_any_window),
	T(read_to_rmr, arguments),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
