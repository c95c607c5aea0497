/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Listeners, connections, and connected pairs of endpoints. */
#include "common.h"

#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

DAT_PSP_HANDLE listen_any(const struct rig *rig, DAT_CONN_QUAL *qualifier)
{
	DAT_PSP_HANDLE psp = DAT_HANDLE_NULL;

	*qualifier = 0;
	OK(dat_psp_create_any(rig->ia, qualifier, rig->cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	REQUIRE(psp != DAT_HANDLE_NULL && *qualifier != 0);
	return psp;
}

DAT_CONN_QUAL free_qualifier(const struct rig *rig)
{
	/* Ports below those that the kernel gives to connections and to dat_psp_create_any. */
	enum { FIRST = 20000, COUNT = 10000 };
	static unsigned tried;
	DAT_PSP_HANDLE psp = DAT_HANDLE_NULL;
	DAT_CONN_QUAL qualifier;
	DAT_RETURN ret;

	do {
		REQUIRE(tried < COUNT);
		qualifier = FIRST + ((unsigned)getpid() + tried++) % COUNT;
		ret = dat_psp_create(rig->ia, qualifier, rig->cr_evd, DAT_PSP_CONSUMER_FLAG, &psp);
	} while (DAT_GET_TYPE(ret) == DAT_CONN_QUAL_IN_USE);
	OK(ret);
	OK(dat_psp_free(psp));
	return qualifier;
}

void configure_ep(const struct rig *rig, DAT_EP_HANDLE ep)
{
	DAT_EP_PARAM param;

	memset(&param, 0, sizeof param);
	param.pz_handle = rig->pz;
	param.recv_evd_handle = rig->recv_evd;
	param.request_evd_handle = rig->request_evd;
	param.connect_evd_handle = rig->connect_evd;
	OK(dat_ep_modify(ep,
			 DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE |
				 DAT_EP_FIELD_REQUEST_EVD_HANDLE | DAT_EP_FIELD_CONNECT_EVD_HANDLE,
			 &param));
}

DAT_RETURN try_connect(DAT_EP_HANDLE ep, const struct rig *to, DAT_CONN_QUAL qualifier,
		       DAT_TIMEOUT timeout)
{
	return dat_ep_connect(ep, to->attr.ia_address_ptr, qualifier, timeout, 0, NULL,
			      DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG);
}

bool same_host(const struct sockaddr *one, const struct sockaddr *other)
{
	const struct sockaddr_in *v4 = (const void *)one, *other_v4 = (const void *)other;
	const struct sockaddr_in6 *v6 = (const void *)one, *other_v6 = (const void *)other;

	if (!one || !other || one->sa_family != other->sa_family)
		return false;
	if (one->sa_family == AF_INET)
		return v4->sin_addr.s_addr == other_v4->sin_addr.s_addr;
	return memcmp(&v6->sin6_addr, &other_v6->sin6_addr, sizeof v6->sin6_addr) == 0;
}

DAT_CR_HANDLE await_request(const struct rig *rig)
{
	DAT_EVENT event = EXPECT(rig->cr_evd, DAT_CONNECTION_REQUEST_EVENT);

	return event.event_data.cr_arrival_event_data.cr_handle;
}

void connect_by(const struct rig *a, DAT_EP_HANDLE ep_a, const struct rig *b, DAT_EP_HANDLE ep_b,
		DAT_CONN_QUAL qualifier)
{
	OK(try_connect(ep_a, b, qualifier, SOON));
	OK(dat_cr_accept(await_request(b), ep_b, 0, NULL));
	EXPECT(a->connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b->connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
}

DAT_EVENT_NUMBER await_end(const struct rig *rig)
{
	DAT_EVENT event;
	DAT_COUNT more;

	OK(dat_evd_wait(rig->connect_evd, SOON, 1, &event, &more));
	if (event.event_number == DAT_CONNECTION_EVENT_ESTABLISHED)
		OK(dat_evd_wait(rig->connect_evd, SOON, 1, &event, &more));
	return event.event_number;
}

void connect_eps(const struct rig *a, DAT_EP_HANDLE ep_a, const struct rig *b, DAT_EP_HANDLE ep_b)
{
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp = listen_any(b, &qualifier);

	connect_by(a, ep_a, b, ep_b, qualifier);
	OK(dat_psp_free(psp));
}

void pair_up(struct pair *pair, const DAT_EP_ATTR *attr)
{
	rig_up(&pair->a);
	rig_up(&pair->b);
	pair->ep_a = make_ep(&pair->a, attr);
	pair->ep_b = make_ep(&pair->b, attr);
	connect_eps(&pair->a, pair->ep_a, &pair->b, pair->ep_b);
}

void pair_down(struct pair *pair)
{
	rig_down(&pair->a);
	rig_down(&pair->b);
}
