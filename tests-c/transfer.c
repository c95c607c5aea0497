/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "transfer.h"

struct pair p;
struct mem ma, mb;

static void memory_up(void)
{
	ma = make_mem(&p.a, SIZE, DAT_MEM_PRIV_ALL_FLAG);
	mb = make_mem(&p.b, SIZE, DAT_MEM_PRIV_ALL_FLAG);
}

void rigs_up(void)
{
	rig_up(&p.a);
	rig_up(&p.b);
	memory_up();
}

void up_with(const DAT_EP_ATTR *attr)
{
	pair_up(&p, attr);
	memory_up();
}

void up(void)
{
	up_with(NULL);
}

DAT_RMR_HANDLE up_to_bind(void)
{
	DAT_RMR_HANDLE rmr;

	rig_up(&p.a);
	rig_up(&p.b);
	p.b.request_evd = make_evd(p.b.ia, 64, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG);
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, NULL);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	ma = make_mem(&p.a, SIZE, DAT_MEM_PRIV_ALL_FLAG);
	mb = make_mem(&p.b, SIZE, DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
	OK(dat_rmr_create(p.b.pz, &rmr));
	return rmr;
}

void down(void)
{
	pair_down(&p);
}

void both_broken(void)
{
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_DISCONNECTED);
	CHECK_EQ(ep_state(p.ep_b), DAT_EP_STATE_DISCONNECTED);
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

DAT_COUNT a_sends_all_it_can(DAT_UINT64 value)
{
	DAT_RETURN ret = DAT_SUCCESS;
	DAT_EP_PARAM param;
	DAT_COUNT taken = 0;

	OK(dat_ep_query(p.ep_a, DAT_EP_FIELD_ALL, &param));
	while (taken < 1000 &&
	       (ret = a_sends(0, SIZE, value, DAT_COMPLETION_DEFAULT_FLAG)) == DAT_SUCCESS)
		taken++;
	CHECK_RET(ret, DAT_INSUFFICIENT_RESOURCES);
	CHECK(taken >= param.ep_attr.max_request_dtos);
	return taken;
}
