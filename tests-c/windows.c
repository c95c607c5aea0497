/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "windows.h"

DAT_RMR_HANDLE rmr;

void rmr_up(void)
{
	rmr = up_to_bind();
}

DAT_RETURN bind_mem(const struct mem *mem, size_t at, size_t size, DAT_MEM_PRIV_FLAGS privileges,
		    DAT_UINT64 value, DAT_COMPLETION_FLAGS flags, DAT_RMR_CONTEXT *key)
{
	DAT_LMR_TRIPLET range = dx_local(mem->local, mem->at + at, size);

	return dx_rmr_bind(rmr, mem->lmr, &range, privileges, p.ep_b, cookie(value), flags, key);
}

void expect_bind(DAT_UINT64 value, DAT_RMR_BIND_COMPLETION_STATUS status)
{
	DAT_RMR_BIND_COMPLETION_EVENT_DATA data;

	data = EXPECT(p.b.request_evd, DAT_RMR_BIND_COMPLETION_EVENT)
		       .event_data.rmr_completion_event_data;
	CHECK(data.rmr_handle == rmr);
	CHECK_EQ(data.user_cookie.as_64, value);
	CHECK_EQ(data.status, status);
}

DAT_RMR_CONTEXT bound(size_t at, size_t size, DAT_MEM_PRIV_FLAGS privileges)
{
	DAT_RMR_CONTEXT key = 0;

	OK(bind_mem(&mb, at, size, privileges, 7, DAT_COMPLETION_DEFAULT_FLAG, &key));
	expect_bind(7, DAT_RMR_BIND_SUCCESS);
	return key;
}

DAT_RETURN write_with(DAT_RMR_CONTEXT key, size_t to, size_t size, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET iov = dx_local(ma.local, ma.at, size);
	DAT_RMR_TRIPLET remote = dx_remote(key, mb.at + to, size);

	return dat_ep_post_rdma_write(p.ep_a, 1, &iov, cookie(value), &remote,
				      DAT_COMPLETION_DEFAULT_FLAG);
}

DAT_RETURN read_with(DAT_RMR_CONTEXT key, size_t from, size_t size, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET iov = dx_local(ma.local, ma.at + SIZE / 2, size);
	DAT_RMR_TRIPLET remote = dx_remote(key, mb.at + from, size);

	return dat_ep_post_rdma_read(p.ep_a, 1, &iov, cookie(value), &remote,
				     DAT_COMPLETION_DEFAULT_FLAG);
}

void refused(DAT_RMR_CONTEXT key, size_t from, size_t size)
{
	OK(read_with(key, from, size, 66));
	EXPECT_DTO(p.a.request_evd, 66, DAT_DTO_ERR_REMOTE_ACCESS);
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
}
