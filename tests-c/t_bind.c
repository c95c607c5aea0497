/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_rmr_bind(3DAT): where its completions go, and how large a window may be. What a bind does is in
 * t_rmr. Side b binds, side a is the peer who uses the keys. */
#include "flags.h"
#include "transfer.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const DAT_MEM_PRIV_FLAGS REMOTE =
	DAT_MEM_PRIV_REMOTE_READ_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG;

static void bound(DAT_EVD_HANDLE evd, DAT_UINT64 value)
{
	DAT_RMR_BIND_COMPLETION_EVENT_DATA data;

	data = EXPECT(evd, DAT_RMR_BIND_COMPLETION_EVENT).event_data.rmr_completion_event_data;
	CHECK_EQ(data.user_cookie.as_64, value);
	CHECK_EQ(data.status, DAT_RMR_BIND_SUCCESS);
}

/* --- the EVD ------------------------------------------------------------------------------------- */

/* An EVD takes only completions that it was made for. */
static void rmr_bind__needs_an_evd_for_binds(void)
{
	DAT_RMR_HANDLE rmr;
	DAT_RMR_CONTEXT key = 0;
	DAT_LMR_TRIPLET range, nothing = { 0 };
	DAT_EP_PARAM param = { 0 };
	DAT_EP_HANDLE ep;

	up();
	OK(dat_rmr_create(p.b.pz, &rmr));
	range = dx_local(mb.local, mb.at, 100);
	CHECK_CODE(dx_rmr_bind(rmr, mb.lmr, &range, REMOTE, p.ep_b, cookie(1), DEFAULT, &key),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_REQUEST);
	CHECK_CODE(dx_rmr_bind(rmr, mb.lmr, &nothing, REMOTE, p.ep_b, cookie(1), SUPPRESS, &key),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_REQUEST);
	/* Nothing was bound or queued. */
	CHECK_RET(dat_lmr_free(mb.lmr), DAT_SUCCESS);
	EXPECT_NOTHING(p.b.request_evd);
	mb = make_mem(&p.b, SIZE, DAT_MEM_PRIV_ALL_FLAG);
	range = dx_local(mb.local, mb.at, 100);
	/* The EVD that the endpoint has at the time of the bind counts. */
	ep = make_ep(&p.b, NULL);
	param.request_evd_handle = make_evd(p.b.ia, 16, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG);
	OK(dat_ep_modify(ep, DAT_EP_FIELD_REQUEST_EVD_HANDLE, &param));
	connect_eps(&p.a, make_ep(&p.a, NULL), &p.b, ep);
	CHECK_RET(dx_rmr_bind(rmr, mb.lmr, &range, REMOTE, ep, cookie(2), DEFAULT, &key),
		  DAT_SUCCESS);
	bound(param.request_evd_handle, 2);
	down();
}

/* --- the size ------------------------------------------------------------------------------------ */

/* Of addresses of 32 bits there are not so many. */
#if !defined DAT2 && UINTPTR_MAX > UINT32_MAX
/* A file of a few pages, so many times one behind the other: all pages of registered memory are made
 * present. 4 GiB are no multiple of the file, so that an address without its upper bits is another
 * page. */
enum { PIECE = 12 << 20, PIECES = 430 };

static char *map_pieces(void)
{
	int fd = memfd_create("t_bind", MFD_CLOEXEC);
	char *at = mmap(NULL, (size_t)PIECES * PIECE, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	REQUIRE(fd >= 0 && ftruncate(fd, PIECE) == 0 && at != MAP_FAILED);
	for (size_t i = 0; i < PIECES; i++)
		REQUIRE(mmap(at + i * PIECE, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			     fd, 0) != MAP_FAILED);
	close(fd);
	return at;
}

/* Segments of DAT 2.0 have 32 bits. */
static void rmr_bind__more_than_4_gib(void)
{
	const DAT_VLEN most = (DAT_VLEN)PIECES * PIECE;
	const DAT_VLEN far = ((DAT_VLEN)4 << 30) + 4096;
	DAT_REGION_DESCRIPTION region;
	DAT_VLEN length;
	DAT_VADDR address;
	DAT_RMR_PARAM param;
	DAT_RMR_HANDLE rmr;
	DAT_RMR_CONTEXT key = 0, no_key;
	DAT_LMR_TRIPLET range, local;
	DAT_RMR_TRIPLET remote;
	struct mem big = { 0 };

	rmr = up_to_bind();
	if (strstr(p.b.provider.provider_name, "verbs"))
		tap_skip("an adapter has all registered memory pinned");
	/* Shared, so that memory=eager leaves it where it is. */
	big.at = map_pieces();
	region.for_va = big.at;
	OK(dx_lmr_create(p.b.ia, DAT_MEM_TYPE_VIRTUAL, region, most, p.b.pz,
			 DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &big.lmr,
			 &big.local, &no_key, &length, &address));
	CHECK(length >= most);
	range = dx_local(big.local, big.at, most);
	range.segment_length++;
	CHECK_RET(dx_rmr_bind(rmr, big.lmr, &range, REMOTE, p.ep_b, cookie(1), DEFAULT, &key),
		  DAT_INVALID_PARAMETER);
	range.segment_length--;
	OK(dx_rmr_bind(rmr, big.lmr, &range, REMOTE, p.ep_b, cookie(1), DEFAULT, &key));
	bound(p.b.request_evd, 1);
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &param));
	CHECK_EQ(param.lmr_triplet.segment_length, most);
	CHECK(param.lmr_triplet.virtual_address == (DAT_VADDR)(uintptr_t)big.at);
	/* The peer writes, and reads, beyond 4 GiB. */
	fill(ma.at, 100, 3);
	local = dx_local(ma.local, ma.at, 100);
	remote = dx_remote(key, big.at + far, 100);
	OK(dat_ep_post_rdma_write(p.ep_a, 1, &local, cookie(2), &remote, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	local = dx_local(ma.local, ma.at + 4096, 100);
	OK(dat_ep_post_rdma_read(p.ep_a, 1, &local, cookie(3), &remote, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	CHECK(filled(big.at + far, 100, 3));
	CHECK(filled(ma.at + 4096, 100, 3));
	CHECK_EQ(big.at[0], 0);
	/* No receive is as long. */
	CHECK_RET(dat_ep_post_recv(p.ep_b, 1, &range, cookie(5), DEFAULT), DAT_INVALID_PARAMETER);
	/* So far, and no further. */
	CHECK_RET(dat_lmr_sync_rdma_read(p.b.ia, &range, 1), DAT_SUCCESS);
	CHECK_RET(dat_lmr_sync_rdma_write(p.b.ia, &range, 1), DAT_SUCCESS);
	range.segment_length++;
	CHECK_RET(dat_lmr_sync_rdma_read(p.b.ia, &range, 1), DAT_INVALID_PARAMETER);
	remote = dx_remote(key, big.at + most - 99, 100);
	OK(dat_ep_post_rdma_read(p.ep_a, 1, &local, cookie(4), &remote, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_ERR_REMOTE_ACCESS);
	down();
	munmap(big.at, most);
}
#endif

static const struct tap_test tests[] = {
	T(rmr_bind, needs_an_evd_for_binds),
#if !defined DAT2 && UINTPTR_MAX > UINT32_MAX
	T(rmr_bind, more_than_4_gib),
#endif
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
