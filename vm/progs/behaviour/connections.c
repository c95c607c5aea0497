/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How connections begin. */
#include "behaviour.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

static void print_address(const char *what, DAT_IA_ADDRESS_PTR at)
{
	const struct sockaddr_in *in = (const void *)at;

	if (!at)
		print("%s: NULL", what);
	else if (at->sa_family != AF_INET)
		print("%s: family %d", what, at->sa_family);
	else
		print("%s: %s", what,
		      in->sin_addr.s_addr == ((const struct sockaddr_in *)(void *)own_address())
						     ->sin_addr.s_addr ?
			      "that of the IA" :
			      "another");
}

static void print_ends(const char *name, DAT_EP_HANDLE ep)
{
	DAT_EP_PARAM param;

	memset(&param, 0, sizeof param);
	NEED(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	print("%s", name);
	print_address("  local address", param.local_ia_address_ptr);
	print_address("  remote address", param.remote_ia_address_ptr);
	print("  ports: local %s, remote %s", param.local_port_qual ? "set" : "0",
	      param.remote_port_qual == qualifier ? "the qualifier" :
	      param.remote_port_qual		  ? "set" :
						    "0");
}

static void print_request(void)
{
	DAT_CR_PARAM param;

	memset(&param, 0, sizeof param);
	CALL(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	print_address("remote address", param.remote_ia_address_ptr);
	print("remote port %s, %d bytes of private data, ep %s",
	      param.remote_port_qual ? "set" : "0", param.private_data_size,
	      handle_name(param.local_ep_handle));
	if (param.private_data_size > 0 && param.private_data)
		print("that begin with \"%.8s\"", (const char *)param.private_data);
}

static void connection(void)
{
	open_listener(NULL);
	print_ends("a before", a.ep);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	await_request();
	STATE(a);
	STATE(b);
	CALL(dat_cr_accept(cr, b.ep, 0, NULL));
	EVENT(a.connect);
	EVENT(b.connect);
	STATE(a);
	STATE(b);
	print_ends("a", a.ep);
	print_ends("b", b.ep);
}

static void connection_request(void)
{
	DAT_EVENT event;

	open_listener(NULL);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 6, "hello"));
	if (!print_event("requests", requests, SOON, &event))
		return;
	cr = event.event_data.cr_arrival_event_data.cr_handle;
	print_request();
	CALL(dat_cr_query(cr, DAT_CR_FIELD_ALL, NULL));
	CALL(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	CALL(dat_cr_accept(cr, pz, 0, NULL));
	CALL(dat_cr_accept(cr, b.ep, 0, NULL));
	EVENT(b.connect);
}

static void private_data(DAT_COUNT size)
{
	static char data[1024];

	memset(data, 'x', sizeof data);
	open_listener(NULL);
	if (CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, size, data)) != DAT_SUCCESS)
		return;
	await_request();
	print_request();
	memset(data, 'y', sizeof data);
	CALL(dat_cr_accept(cr, b.ep, size, data));
	EVENT(a.connect);
	EVENT(b.connect);
}

static void private_data_of_1(void)
{
	private_data(1);
}

static void private_data_of_50(void)
{
	private_data(50);
}

static void private_data_of_64(void)
{
	private_data(64);
}

static void private_data_too_long(void)
{
	open_listener(NULL);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 1000, a.memory));
	STATE(a);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, -1, a.memory));
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 10, NULL));
	STATE(a);
}

static void rejected(void)
{
	open_listener(NULL);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	await_request();
	CALL(dat_cr_reject(cr, 0, NULL));
	EVENT(a.connect);
	STATE(a);
	CALL(dat_ep_reset(a.ep));
	STATE(a);
	connect_sides();
	STATE(a);
}

static void rejected_with_private_data(void)
{
	open_listener(NULL);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	await_request();
	CALL(dat_cr_reject(cr, 3, "no"));
	EVENT(a.connect);
}

static void rejected_again_without_reset(void)
{
	open_listener(NULL);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	await_request();
	CALL(dat_cr_reject(cr, 0, NULL));
	EVENT(a.connect);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	STATE(a);
}

static void nobody_listens(void)
{
	open_listener(NULL);
	CALL(connect_to(a.ep, 20200, DAT_TIMEOUT_INFINITE, 0, NULL));
	EVENT(a.connect);
	STATE(a);
	CALL(dat_ep_reset(a.ep));
	STATE(a);
}

static void nobody_listens_with_receives(void)
{
	open_listener(NULL);
	CALL(post_recv(&a, 0, 100, 1));
	CALL(connect_to(a.ep, 20200, DAT_TIMEOUT_INFINITE, 0, NULL));
	EVENT(a.connect);
	EVENT(a.recv);
	STATE(a);
	CALL(dat_ep_reset(a.ep));
	STATE(a);
	connect_sides();
	STATE(a);
}

static void address_of_nobody(void)
{
	struct sockaddr_in nobody;

	open_sides(NULL);
	memcpy(&nobody, own_address(), sizeof nobody);
	nobody.sin_addr.s_addr = htonl(ntohl(nobody.sin_addr.s_addr) | 0xee);
	CALL(dat_ep_connect(a.ep, (DAT_IA_ADDRESS_PTR)&nobody, 20200, DAT_TIMEOUT_INFINITE, 0, NULL,
			    DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	STATE(a);
	if (print_event("a.connect", a.connect, 10000, NULL))
		STATE(a);
}

static void nobody_answers(void)
{
	open_listener(NULL);
	CALL(connect_to(a.ep, qualifier, 500000, 0, NULL));
	await_request();
	(void)print_event("a.connect", a.connect, SOON, NULL);
	STATE(a);
	CALL(dat_cr_accept(cr, b.ep, 0, NULL));
	EVENT(b.connect);
	STATE(b);
}

static void disconnected_before_the_answer(void)
{
	open_listener(NULL);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	await_request();
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	EVENT(a.connect);
	STATE(a);
}

static void freed_before_the_answer(void)
{
	open_listener(NULL);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	await_request();
	CALL(dat_ep_free(a.ep));
	NO_EVENT(a.connect);
	CALL(dat_cr_reject(cr, 0, NULL));
}

static void connect_arguments(void)
{
	open_listener(NULL);
	CALL(dat_ep_connect(a.ep, NULL, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL,
			    DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	CALL(dat_ep_connect(a.ep, own_address(), qualifier, 0, 0, NULL, DAT_QOS_BEST_EFFORT,
			    DAT_CONNECT_DEFAULT_FLAG));
	STATE(a);
	CALL(dat_ep_connect(DAT_HANDLE_NULL, own_address(), qualifier, DAT_TIMEOUT_INFINITE, 0,
			    NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
}

static void connect_flags(void)
{
	open_listener(NULL);
	CALL(dat_ep_connect(a.ep, own_address(), qualifier, DAT_TIMEOUT_INFINITE, 0, NULL,
			    DAT_QOS_LOW_LATENCY, DAT_CONNECT_DEFAULT_FLAG));
	STATE(a);
	CALL(dat_ep_connect(b.ep, own_address(), qualifier, DAT_TIMEOUT_INFINITE, 0, NULL,
			    DAT_QOS_BEST_EFFORT, (DAT_CONNECT_FLAGS)0x10));
	STATE(b);
}

static void connected_twice(void)
{
	open_connection(NULL);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	CALL(connect_to(b.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	STATE(a);
}

static void accepted_by_an_endpoint_in_use(void)
{
	struct side c;

	open_connection(NULL);
	make_side(&c, "c", NULL);
	CALL(connect_to(c.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	await_request();
	CALL(dat_cr_accept(cr, b.ep, 0, NULL));
	CALL(dat_cr_reject(cr, 0, NULL));
	(void)print_event("c.connect", c.connect, SOON, NULL);
}

static void accepted_twice(void)
{
	struct side c;

	open_listener(NULL);
	make_side(&c, "c", NULL);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	await_request();
	CALL(dat_cr_accept(cr, b.ep, 0, NULL));
	EVENT(b.connect);
	CALL(dat_cr_accept(cr, c.ep, 0, NULL));
	CALL(dat_cr_reject(cr, 0, NULL));
	STATE(b);
}

static void listener_freed_before_the_answer(void)
{
	open_listener(NULL);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	await_request();
	CALL(dat_psp_free(psp));
	CALL(dat_cr_accept(cr, b.ep, 0, NULL));
	EVENT(a.connect);
	EVENT(b.connect);
}

static void duplicated(void)
{
	struct side c, d;

	open_connection(NULL);
	make_side(&c, "c", NULL);
	make_side(&d, "d", NULL);
	CALL(dat_ep_dup_connect(c.ep, a.ep, DAT_TIMEOUT_INFINITE, 0, NULL, DAT_QOS_BEST_EFFORT));
	await_request();
	CALL(dat_cr_accept(cr, d.ep, 0, NULL));
	EVENT(c.connect);
	EVENT(d.connect);
	CALL(dat_ep_dup_connect(c.ep, d.ep, DAT_TIMEOUT_INFINITE, 0, NULL, DAT_QOS_BEST_EFFORT));
}

static void reserved(void)
{
	DAT_RSP_HANDLE rsp;
	DAT_EVENT event;

	open_sides(NULL);
	qualifier = 20300;
	if (CALL(dat_rsp_create(ia, qualifier, b.ep, requests, &rsp)) != DAT_SUCCESS)
		return;
	name_handle("rsp", rsp);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	if (!print_event("requests", requests, SOON, &event))
		return;
	cr = event.event_data.cr_arrival_event_data.cr_handle;
	STATE(b);
	CALL(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	EVENT(a.connect);
	EVENT(b.connect);
	STATE(b);
}

const struct scenario connections[] = {
	{ "connection", connection },
	{ "connection_request", connection_request },
	{ "private_data_of_1", private_data_of_1 },
	{ "private_data_of_50", private_data_of_50 },
	{ "private_data_of_64", private_data_of_64 },
	{ "private_data_too_long", private_data_too_long },
	{ "rejected", rejected },
	{ "rejected_with_private_data", rejected_with_private_data },
	{ "rejected_again_without_reset", rejected_again_without_reset },
	{ "nobody_listens", nobody_listens },
	{ "nobody_listens_with_receives", nobody_listens_with_receives },
	{ "address_of_nobody", address_of_nobody },
	{ "nobody_answers", nobody_answers },
	{ "disconnected_before_the_answer", disconnected_before_the_answer },
	{ "freed_before_the_answer", freed_before_the_answer },
	{ "connect_arguments", connect_arguments },
	{ "connect_flags", connect_flags },
	{ "connected_twice", connected_twice },
	{ "accepted_by_an_endpoint_in_use", accepted_by_an_endpoint_in_use },
	{ "accepted_twice", accepted_twice },
	{ "listener_freed_before_the_answer", listener_freed_before_the_answer },
	{ "duplicated", duplicated },
	{ "reserved", reserved },
	{ NULL, NULL },
};
