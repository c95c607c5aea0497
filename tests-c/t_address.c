/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The addresses and ports of the two ends of a connection, from dat_ep_query(3DAT) and
 * dat_cr_query(3DAT), in each state: a connects, b listens. */
#include "two_ends.h"

#include <netinet/in.h>
#include <string.h>

static DAT_EP_PARAM query(DAT_EP_HANDLE ep)
{
	DAT_EP_PARAM param;

	memset(&param, 0, sizeof param);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	return param;
}

static DAT_CR_PARAM query_request(DAT_CR_HANDLE cr)
{
	DAT_CR_PARAM param;

	memset(&param, 0, sizeof param);
	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	return param;
}

/* The port in an address, which programs take for that of the peer as they do with sockets. */
static DAT_PORT_QUAL port_of(DAT_IA_ADDRESS_PTR address)
{
	/* At the same place in IPv4 and IPv6. */
	return ntohs(((struct sockaddr_in *)address)->sin_port);
}

/* The end that connects, once its request is there. Gives its port. */
static DAT_PORT_QUAL check_active(DAT_EP_STATE state, DAT_CONN_QUAL to)
{
	DAT_EP_PARAM param = query(ep_a);

	CHECK_EQ(param.ep_state, state);
	CHECK(same_host(param.remote_ia_address_ptr, b.attr.ia_address_ptr));
	CHECK_EQ(param.remote_port_qual, to);
	CHECK_EQ(port_of(param.remote_ia_address_ptr), to > 65535 ? 0 : to);
	CHECK(param.local_port_qual != 0);
	return param.local_port_qual;
}

/* The end that has a request from this port, for the qualifier `to`. */
static void check_passive(DAT_EP_HANDLE ep, DAT_PORT_QUAL from, DAT_CONN_QUAL to)
{
	DAT_EP_PARAM param = query(ep);

	CHECK(same_host(param.remote_ia_address_ptr, a.attr.ia_address_ptr));
	CHECK_EQ(param.remote_port_qual, from);
	CHECK_EQ(port_of(param.remote_ia_address_ptr), from);
	CHECK_EQ(param.local_port_qual, to);
}

/* There is no peer. Programs read the address nevertheless. */
static void check_no_address(const DAT_EP_PARAM *param)
{
	REQUIRE(param->remote_ia_address_ptr != NULL);
	CHECK_EQ(param->remote_ia_address_ptr->sa_family, AF_UNSPEC);
	CHECK_EQ(((struct sockaddr_in *)param->remote_ia_address_ptr)->sin_addr.s_addr, 0);
}

static void check_none(DAT_EP_HANDLE ep)
{
	DAT_EP_PARAM param = query(ep);

	CHECK_EQ(param.ep_state, DAT_EP_STATE_UNCONNECTED);
	check_no_address(&param);
	CHECK_EQ(param.remote_port_qual, 0);
}

/* A request of a, whose port is that in the request. */
static DAT_CR_HANDLE request(DAT_CONN_QUAL to, DAT_PORT_QUAL *from)
{
	DAT_CR_HANDLE cr;
	DAT_CR_PARAM param;

	OK(try_connect(ep_a, &b, to, SOON));
	cr = await_request(&b);
	param = query_request(cr);
	CHECK(same_host(param.remote_ia_address_ptr, a.attr.ia_address_ptr));
	*from = check_active(DAT_EP_STATE_ACTIVE_CONNECTION_PENDING, to);
	CHECK_EQ(param.remote_port_qual, *from);
	CHECK_EQ(port_of(param.remote_ia_address_ptr), *from);
	return cr;
}

/* --- from the request to the reset ------------------------------------------------------------ */

/* One connection to this qualifier. */
static void connect_and_reset(DAT_CONN_QUAL to)
{
	DAT_PORT_QUAL from;
	DAT_CR_HANDLE cr;

	check_none(ep_a);
	check_none(ep_b);
	cr = request(to, &from);
	check_none(ep_b);
	OK(dat_cr_accept(cr, ep_b, 0, NULL));
	/* COMPLETION_PENDING, or CONNECTED already. */
	check_passive(ep_b, from, to);
	established();
	CHECK_EQ(check_active(DAT_EP_STATE_CONNECTED, to), from);
	check_passive(ep_b, from, to);
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	OK(dat_ep_reset(ep_a));
	OK(dat_ep_reset(ep_b));
	check_none(ep_a);
	check_none(ep_b);
}

static void address__of_both_ends(void)
{
	ends_up();
	connect_and_reset(qualifier);
	/* And again, to a qualifier that is no port. */
	qualifier = (qualifier << 32) + 7;
	OK(dat_psp_create(b.ia, qualifier, b.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	connect_and_reset(qualifier);
	ends_down();
}

/* Peers with one address have different ports. */
static void address__distinguishes_peers(void)
{
	DAT_PORT_QUAL first, second;

	ends_up();
	request(qualifier, &first);
	ep_a = make_ep(&a, NULL);
	request(qualifier, &second);
	CHECK(first != second);
	ends_down();
}

/* --- endpoints of a request ------------------------------------------------------------------- */

static void address__of_a_reserved_endpoint(void)
{
	DAT_EP_PARAM reserved;
	DAT_CONN_QUAL to;
	DAT_PORT_QUAL from;
	DAT_RSP_HANDLE rsp;
	DAT_CR_HANDLE cr;
	DAT_IA_ADDRESS_PTR seen;

	ends_up();
	to = free_qualifier(&b);
	OK(dat_rsp_create(b.ia, to, ep_b, b.cr_evd, &rsp));
	reserved = query(ep_b);
	check_no_address(&reserved);
	cr = request(to, &from);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
	check_passive(ep_b, from, to);
	seen = query(ep_b).remote_ia_address_ptr;
	OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	established();
	check_passive(ep_b, from, to);
	/* What the program has a pointer to stays where it is. */
	CHECK(query(ep_b).remote_ia_address_ptr == seen);
	OK(dat_rsp_free(rsp));
	/* Rejected: no peer is left. */
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	to = free_qualifier(&b);
	OK(dat_rsp_create(b.ia, to, ep_b, b.cr_evd, &rsp));
	OK(dx_cr_reject(request(to, &from)));
	check_none(ep_b);
	ends_down();
}

static void address__of_an_endpoint_of_the_provider(void)
{
	DAT_CONN_QUAL to;
	DAT_PORT_QUAL from;
	DAT_EP_HANDLE ep;

	ends_up();
	OK(dat_psp_create_any(b.ia, &to, b.cr_evd, DAT_PSP_PROVIDER_FLAG, &psp));
	ep = query_request(request(to, &from)).local_ep_handle;
	REQUIRE(ep != DAT_HANDLE_NULL);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING);
	check_passive(ep, from, to);
	ends_down();
}

static const struct tap_test tests[] = {
	T(address, of_both_ends),
	T(address, distinguishes_peers),
	T(address, of_a_reserved_endpoint),
	T(address, of_an_endpoint_of_the_provider),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
