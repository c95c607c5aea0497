/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "srq.h"

#include <string.h>

DAT_SRQ_HANDLE srq;

DAT_RETURN create_srq(const struct rig *rig, DAT_COUNT dtos, DAT_COUNT iov, DAT_COUNT mark,
		      DAT_SRQ_HANDLE *handle)
{
	DAT_SRQ_ATTR attr = { dtos, iov, mark };

	return dat_srq_create(rig->ia, rig->pz, &attr, handle);
}

DAT_EP_HANDLE make_srq_ep(const struct rig *rig, const DAT_EP_ATTR *attr)
{
	DAT_EP_ATTR usual = ep_attr(rig);
	DAT_EP_HANDLE ep;

	OK(dat_ep_create_with_srq(rig->ia, rig->pz, rig->recv_evd, rig->request_evd,
				  rig->connect_evd, srq, attr ? attr : &usual, &ep));
	return ep;
}

void queue_up(void)
{
	rigs_up();
	OK(create_srq(&p.b, ROOM, 2, DAT_SRQ_LW_DEFAULT, &srq));
}

void srq_up_with(DAT_COMPLETION_FLAGS flags)
{
	DAT_EP_ATTR attr;

	queue_up();
	attr = ep_attr(&p.b);
	attr.recv_completion_flags = flags;
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_srq_ep(&p.b, &attr);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
}

void srq_up(void)
{
	srq_up_with(DAT_COMPLETION_DEFAULT_FLAG);
}

DAT_RETURN post_srq(DAT_UINT64 number)
{
	DAT_LMR_TRIPLET iov = dx_local(mb.local, mb.at + 100 * number, 100);

	return dat_srq_post_recv(srq, 1, &iov, cookie(number));
}

DAT_SRQ_PARAM query_srq(void)
{
	DAT_SRQ_PARAM param;

	memset(&param, 0xff, sizeof param);
	OK(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &param));
	return param;
}

void check_counts(DAT_COUNT available, DAT_COUNT outstanding)
{
	DAT_SRQ_PARAM param = query_srq();

	CHECK_EQ(param.available_dto_count, available);
	CHECK_EQ(param.outstanding_dto_count, outstanding);
}

void await_available(DAT_COUNT count)
{
	while (query_srq().available_dto_count != count)
		pause_us(500);
}

void expect_async(const struct rig *rig, DAT_EVENT_NUMBER number, DAT_HANDLE object,
		  DAT_COUNT reason)
{
	DAT_ASYNCH_ERROR_EVENT_DATA error;

	error = EXPECT(rig->async_evd, number).event_data.asynch_error_event_data;
	CHECK(error.dat_handle == object);
	CHECK_EQ(error.reason, reason);
}
