/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "common.h"

#ifdef DAT2
#include "datagrams.h"
#include "extended.h"

#include <string.h>

struct end da, db;
DAT_PSP_HANDLE datagrams_psp;
DAT_CONN_QUAL datagrams_qual;

static bool has_datagrams(const struct rig *rig)
{
	const DAT_NAMED_ATTR *named = rig->provider.provider_specific_attr;

	for (DAT_COUNT i = 0; i < rig->provider.num_provider_specific_attr; i++)
		if (!strcmp(named[i].name, DAT_IB_ATTR_UD))
			return !strcmp(named[i].value, "TRUE");
	return false;
}

DAT_EP_ATTR datagram_attr(const struct rig *rig)
{
	DAT_EP_ATTR attr = ep_attr(rig);

	attr.service_type = (DAT_SERVICE_TYPE)DAT_IB_SERVICE_TYPE_UD;
	attr.max_message_size = 1000;
	attr.max_rdma_read_in = 0;
	attr.max_rdma_read_out = 0;
	return attr;
}

DAT_EP_HANDLE make_datagram_ep(const struct rig *rig)
{
	DAT_EP_ATTR attr = datagram_attr(rig);

	return make_ep(rig, &attr);
}

static void end_up(struct end *end)
{
	rig_up(&end->rig);
	if (!has_datagrams(&end->rig))
		tap_unsupported(DAT_IB_ATTR_UD);
	end->ep = make_datagram_ep(&end->rig);
	end->mem = make_mem(&end->rig, 64 * 1024, DAT_MEM_PRIV_ALL_FLAG);
}

void datagrams_up(void)
{
	end_up(&da);
	end_up(&db);
	datagrams_psp = listen_any(&db.rig, &datagrams_qual);
}

void datagrams_down(void)
{
	free_mem(&da.mem);
	free_mem(&db.mem);
	rig_down(&da.rig);
	rig_down(&db.rig);
}

DAT_RETURN ask(DAT_EP_HANDLE ep, DAT_CONN_QUAL to, const char *data, DAT_TIMEOUT timeout)
{
	return dat_ep_connect(ep, db.rig.attr.ia_address_ptr, to, timeout, (DAT_COUNT)strlen(data),
			      (DAT_PVOID)(uintptr_t)data, DAT_QOS_BEST_EFFORT,
			      DAT_CONNECT_DEFAULT_FLAG);
}

DAT_CR_HANDLE await_question(const char *data)
{
	DAT_EVENT event =
		EXPECT(db.rig.cr_evd, (DAT_EVENT_NUMBER)DAT_IB_UD_CONNECTION_REQUEST_EVENT);
	DAT_CR_ARRIVAL_EVENT_DATA arrival = event.event_data.cr_arrival_event_data;
	DAT_IB_EXTENSION_EVENT_DATA extension;
	DAT_CR_PARAM param;

	memcpy(&extension, event.event_extension_data, sizeof extension);
	CHECK_EQ(extension.type, DAT_IB_UD_CONNECT_REQUEST);
	CHECK(arrival.sp_handle.psp_handle == datagrams_psp);
	CHECK_EQ(arrival.conn_qual, datagrams_qual);
	OK(dat_cr_query(arrival.cr_handle, DAT_CR_FIELD_ALL, &param));
	CHECK(same_host(param.remote_ia_address_ptr, da.rig.attr.ia_address_ptr));
	/* Some devices pad the private data with zeros. */
	CHECK((size_t)param.private_data_size >= strlen(data));
	CHECK(!memcmp(param.private_data, data, strlen(data)));
	return arrival.cr_handle;
}

struct outcome expect_outcome(const char *file, int line, DAT_EVD_HANDLE evd,
			      DAT_EVENT_NUMBER number, DAT_IB_EXT_TYPE type)
{
	DAT_EVENT event = expect(file, line, evd, number);
	DAT_CONNECTION_EVENT_DATA connect = event.event_data.connect_event_data;
	DAT_IB_EXTENSION_EVENT_DATA extension;
	struct outcome outcome = { .ep = connect.ep_handle, .size = connect.private_data_size };
	size_t size = (size_t)connect.private_data_size;

	memcpy(&extension, event.event_extension_data, sizeof extension);
	if (extension.type != type)
		tap_fail(file, line, "type %u, not %u", extension.type, type);
	if (size > sizeof outcome.data - 1)
		size = sizeof outcome.data - 1;
	if (size)
		memcpy(outcome.data, connect.private_data, size);
	outcome.to = extension.remote_ah;
	outcome.cm = extension.context.as_ptr;
	return outcome;
}

void exchange(DAT_EP_HANDLE of_a, DAT_EP_HANDLE of_b, struct outcome *at_a, struct outcome *at_b)
{
	DAT_CR_HANDLE cr;

	OK(ask(of_a, datagrams_qual, "question", SOON));
	cr = await_question("question");
	OK(dat_cr_accept(cr, of_b, 6, (DAT_PVOID)(uintptr_t) "answer"));
	*at_a = EXPECT_OUTCOME(da.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
			       DAT_IB_UD_REMOTE_AH);
	*at_b = EXPECT_OUTCOME(db.rig.connect_evd, DAT_IB_UD_CONNECTION_EVENT_ESTABLISHED,
			       DAT_IB_UD_PASSIVE_REMOTE_AH);
	CHECK(at_a->ep == of_a && at_b->ep == of_b);
	/* Each end is told whom the event is about by what the other one has said. */
	CHECK(!strncmp(at_a->data, "answer", 6) && !strncmp(at_b->data, "question", 8));
	CHECK(at_a->to.ah && at_b->to.ah);
}

void give_back(const struct outcome *outcome)
{
	DAT_IB_ADDR_HANDLE to = outcome->to;

	CHECK_RET(dat_ib_ud_cm_free(outcome->ep, outcome->cm), DAT_SUCCESS);
	if (to.ah)
		CHECK_RET(dat_ib_ud_ah_free(outcome->ep, &to), DAT_SUCCESS);
}

DAT_RETURN receive_at(const struct end *end, size_t at, size_t size, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET local = dx_local(end->mem.local, end->mem.at + at, HEADER + size);

	return dat_ep_post_recv(end->ep, 1, &local, cookie(value), DAT_COMPLETION_DEFAULT_FLAG);
}

DAT_RETURN send_from(const struct end *end, size_t at, size_t size, DAT_UINT64 value,
		     const struct outcome *to, DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET local = dx_local(end->mem.local, end->mem.at + at, size);
	DAT_IB_ADDR_HANDLE ah = to->to;

	return dat_ib_post_send_ud(end->ep, 1, &local, &ah, cookie(value), flags);
}

void datagram_arrives(const struct outcome *to, DAT_UINT64 receive)
{
	OK(send_from(&da, 0, 100, 2, to, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_SENT(da.rig.request_evd, 2);
	EXPECT_RECEIVED(db.rig.recv_evd, receive, 100);
}

void expect_sent(const char *file, int line, DAT_EVD_HANDLE evd, DAT_UINT64 value)
{
	DAT_EVENT event =
		expect_extended(file, line, evd, value, DAT_IB_DTO_SEND_UD, DAT_IB_UD_SEND);

	if (status_of(&event) != DAT_DTO_SUCCESS)
		tap_fail(file, line, "status %u", status_of(&event));
}

DAT_EP_HANDLE expect_received(const char *file, int line, DAT_EVD_HANDLE evd, DAT_UINT64 value,
			      size_t size)
{
	DAT_EVENT event =
		expect_extended(file, line, evd, value, DAT_IB_DTO_RECV_UD, DAT_IB_UD_RECV);

	if (status_of(&event) != DAT_DTO_SUCCESS || length_of(&event) != HEADER + size)
		tap_fail(file, line, "status %u, length %llu", status_of(&event),
			 (unsigned long long)length_of(&event));
	return event.event_data.dto_completion_event_data.ep_handle;
}

/* The endpoints of an IA receive in the order in which the datagrams have arrived: so what another
 * endpoint receives was behind all others. It may be lost as well. */
void settle_datagrams(void)
{
	enum { AT = 60 * 1024, AGAIN = 100 * 1000 };
	unsigned long long end = now_us() + SOON;
	struct end marked = db;
	struct outcome to, back;
	DAT_RETURN ret;
	DAT_EVENT event;
	DAT_COUNT more;

	marked.ep = make_datagram_ep(&db.rig);
	exchange(da.ep, marked.ep, &to, &back);
	OK(receive_at(&marked, AT, 8, 0));
	do {
		OK(send_from(&da, AT, 8, 0, &to, DAT_COMPLETION_SUPPRESS_FLAG));
		ret = dat_evd_wait(db.rig.recv_evd, AGAIN, 1, &event, &more);
	} while (DAT_GET_TYPE(ret) == DAT_TIMEOUT_EXPIRED && now_us() < end);
	REQUIRE_RET(ret, DAT_SUCCESS);
	CHECK(event.event_data.dto_completion_event_data.ep_handle == marked.ep);
	give_back(&to);
	give_back(&back);
	OK(dat_ep_free(marked.ep));
}
#endif
