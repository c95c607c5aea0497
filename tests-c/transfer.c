/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "transfer.h"

struct pair p;
struct mem ma, mb;

void up_with(const DAT_EP_ATTR *attr)
{
	pair_up(&p, attr);
	ma = make_mem(&p.a, SIZE, DAT_MEM_PRIV_ALL_FLAG);
	mb = make_mem(&p.b, SIZE, DAT_MEM_PRIV_ALL_FLAG);
}

void up(void)
{
	up_with(NULL);
}

void down(void)
{
	pair_down(&p);
}

DAT_EP_ATTR usual_attr(void)
{
	struct rig rig;
	DAT_EP_ATTR attr;

	rig_up(&rig);
	attr = ep_attr(&rig);
	rig_down(&rig);
	return attr;
}

DAT_RETURN a_sends(size_t at, size_t size, DAT_UINT64 value, DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET iov = dx_local(ma.local, ma.at + at, size);

	return dat_ep_post_send(p.ep_a, 1, &iov, cookie(value), flags);
}

DAT_RETURN b_receives(size_t at, size_t size, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET iov = dx_local(mb.local, mb.at + at, size);

	return dat_ep_post_recv(p.ep_b, 1, &iov, cookie(value), DAT_COMPLETION_DEFAULT_FLAG);
}

DAT_RETURN a_writes(size_t from, size_t to, size_t size, DAT_UINT64 value,
		    DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET iov = dx_local(ma.local, ma.at + from, size);
	DAT_RMR_TRIPLET remote = dx_remote(mb.remote, mb.at + to, size);

	return dat_ep_post_rdma_write(p.ep_a, 1, &iov, cookie(value), &remote, flags);
}

DAT_RETURN a_reads(size_t to, size_t from, size_t size, DAT_UINT64 value,
		   DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET iov = dx_local(ma.local, ma.at + to, size);
	DAT_RMR_TRIPLET remote = dx_remote(mb.remote, mb.at + from, size);

	return dat_ep_post_rdma_read(p.ep_a, 1, &iov, cookie(value), &remote, flags);
}
