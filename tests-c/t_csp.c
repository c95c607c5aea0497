/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Common service points: dat_csp_create, dat_csp_query, dat_csp_free, dat_ep_common_connect. DAT 2.0 only. */
#include "two_ends.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

static DAT_CSP_HANDLE csp;
/* Where b listens. */
static struct sockaddr_storage at;

/* The address of an IA with a port. */
static struct sockaddr_storage address_of(const struct rig *rig, unsigned port)
{
	const struct sockaddr *own = rig->attr.ia_address_ptr;
	struct sockaddr_storage address = { 0 };

	memcpy(&address, own,
	       own->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) :
					    sizeof(struct sockaddr_in));
	/* The port has the same place in both families. */
	((struct sockaddr_in *)&address)->sin_port = htons((in_port_t)port);
	return address;
}

static unsigned port_of(const void *address)
{
	struct sockaddr_in in;

	memcpy(&in, address, sizeof in);
	return ntohs(in.sin_port);
}

static DAT_COMM comm_of(const struct rig *rig)
{
	return (DAT_COMM){ .domain = rig->attr.ia_address_ptr->sa_family,
			   .type = SOCK_STREAM,
			   .protocol = IPPROTO_TCP };
}

static DAT_RETURN create_at(struct sockaddr_storage *address)
{
	DAT_COMM comm = comm_of(&b);

	csp = DAT_HANDLE_NULL;
	return dat_csp_create(b.ia, &comm, (DAT_IA_ADDRESS_PTR)address, b.cr_evd, &csp);
}

static DAT_RETURN connect_to(DAT_EP_HANDLE ep, struct sockaddr_storage *address)
{
	return dat_ep_common_connect(ep, (DAT_IA_ADDRESS_PTR)address, SOON, 5,
				     (DAT_PVOID)(uintptr_t) "hello");
}

/* Both ends, and b listens at a port that the provider has chosen. */
static void up(void)
{
	DAT_CSP_PARAM param;

	points_up();
	at = address_of(&b, 0);
	OK(create_at(&at));
	OK(dat_csp_query(csp, DAT_CSP_FIELD_ALL, &param));
	at = address_of(&b, port_of(param.address_ptr));
}

/* The request that arrives at the service point. */
static DAT_CR_HANDLE await_request_at(DAT_CSP_HANDLE point)
{
	DAT_EVENT event = EXPECT(b.cr_evd, DAT_CONNECTION_REQUEST_EVENT);
	DAT_CR_ARRIVAL_EVENT_DATA arrival = event.event_data.cr_arrival_event_data;
	DAT_CR_PARAM param;

	CHECK(arrival.sp_handle.csp_handle == point);
	CHECK_EQ(arrival.conn_qual, port_of(&at));
	OK(dat_cr_query(arrival.cr_handle, DAT_CR_FIELD_ALL, &param));
	CHECK((size_t)param.private_data_size >= 5 && !memcmp(param.private_data, "hello", 5));
	return arrival.cr_handle;
}

static void common__connects(void)
{
	DAT_EP_PARAM param;

	up();
	OK(connect_to(ep_a, &at));
	OK(dat_cr_accept(await_request_at(csp), ep_b, 0, NULL));
	established();
	OK(dat_ep_query(ep_a, DAT_EP_FIELD_ALL, &param));
	CHECK_EQ(param.remote_port_qual, port_of(&at));
	CHECK(same_host(param.remote_ia_address_ptr, b.attr.ia_address_ptr));
	OK(recv_nothing(ep_b, 1));
	OK(send_nothing(ep_a, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(a.request_evd, 2, DAT_DTO_SUCCESS);
	ends_down();
}

/* Its port is a connection qualifier, on both sides. */
static void common__and_qualifiers(void)
{
	up();
	OK(dat_ep_connect(ep_a, b.attr.ia_address_ptr, port_of(&at), SOON, 5,
			  (DAT_PVOID)(uintptr_t) "hello", DAT_QOS_BEST_EFFORT,
			  DAT_CONNECT_DEFAULT_FLAG));
	OK(dat_cr_accept(await_request_at(csp), ep_b, 0, NULL));
	established();
	ends_down();
	ends_up();
	at = address_of(&b, (unsigned)qualifier);
	OK(connect_to(ep_a, &at));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	established();
	ends_down();
}

static void common__freed(void)
{
	DAT_CSP_HANDLE old;

	up();
	old = csp;
	OK(dat_csp_free(csp));
	CHECK_CODE(dat_csp_free(old), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CSP);
	OK(connect_to(ep_a, &at));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	EXPECT_NOTHING(b.cr_evd);
	/* The port is free again. */
	OK(create_at(&at));
	CHECK(csp != old);
	ends_down();
}

static void common__arguments(void)
{
	struct sockaddr_storage address;
	DAT_CSP_HANDLE other;
	DAT_COMM comm;

	up();
	comm = comm_of(&b);
	address = address_of(&b, 0);
	CHECK_RET(create_at(&at), DAT_CONN_QUAL_IN_USE);
	CHECK_RET(dat_csp_create(DAT_HANDLE_NULL, &comm, (DAT_IA_ADDRESS_PTR)&address, b.cr_evd,
				 &other),
		  DAT_INVALID_HANDLE);
	CHECK_CODE(dat_csp_create(b.ia, NULL, (DAT_IA_ADDRESS_PTR)&address, b.cr_evd, &other),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_csp_create(b.ia, &comm, NULL, b.cr_evd, &other), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG3);
	CHECK_CODE(dat_csp_create(b.ia, &comm, (DAT_IA_ADDRESS_PTR)&address, b.cr_evd, NULL),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
	CHECK_CODE(dat_csp_create(b.ia, &comm, (DAT_IA_ADDRESS_PTR)&address, b.recv_evd, &other),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EVD_CR);
	comm.type = SOCK_DGRAM;
	CHECK_RET(dat_csp_create(b.ia, &comm, (DAT_IA_ADDRESS_PTR)&address, b.cr_evd, &other),
		  DAT_COMM_NOT_SUPPORTED);
	comm = comm_of(&b);
	comm.domain = AF_UNIX;
	CHECK_RET(dat_csp_create(b.ia, &comm, (DAT_IA_ADDRESS_PTR)&address, b.cr_evd, &other),
		  DAT_COMM_NOT_SUPPORTED);
	comm = comm_of(&b);
	comm.protocol = IPPROTO_SCTP;
	CHECK_RET(dat_csp_create(b.ia, &comm, (DAT_IA_ADDRESS_PTR)&address, b.cr_evd, &other),
		  DAT_COMM_NOT_SUPPORTED);
	/* Of another host. */
	comm = comm_of(&b);
	address = (struct sockaddr_storage){ .ss_family = b.attr.ia_address_ptr->sa_family };
	memset((char *)&address + 4, 0x0a, 20);
	CHECK_RET(dat_csp_create(b.ia, &comm, (DAT_IA_ADDRESS_PTR)&address, b.cr_evd, &other),
		  DAT_INVALID_ADDRESS);
	/* Any address of this one is its own. */
	memset((char *)&address + 4, 0, 20);
	OK(dat_csp_create(b.ia, &comm, (DAT_IA_ADDRESS_PTR)&address, b.cr_evd, &other));
	OK(dat_csp_free(other));
	CHECK_CODE(dat_ep_common_connect(ep_a, NULL, SOON, 0, NULL), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
	CHECK_CODE(dat_ep_common_connect(ep_a, (DAT_IA_ADDRESS_PTR)&at, 0, 0, NULL),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
	CHECK_CODE(dat_ep_common_connect(ep_a, (DAT_IA_ADDRESS_PTR)&at, SOON, -1, NULL),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
	CHECK_CODE(dat_ep_common_connect(ep_a, (DAT_IA_ADDRESS_PTR)&at, SOON, 1, NULL),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
	address = address_of(&b, 0);
	CHECK_RET(connect_to(ep_a, &address), DAT_INVALID_ADDRESS);
	CHECK_RET(connect_to(DAT_HANDLE_NULL, &at), DAT_INVALID_HANDLE);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
	ends_down();
}

static void common__query(void)
{
	DAT_CSP_PARAM param;
	DAT_HANDLE_TYPE type;

	up();
	memset(&param, 0, sizeof param);
	OK(dat_csp_query(csp, DAT_CSP_FIELD_ALL, &param));
	CHECK(param.ia_handle == b.ia && param.evd_handle == b.cr_evd);
	CHECK_EQ(param.comm->type, SOCK_STREAM);
	CHECK_EQ(param.comm->domain, b.attr.ia_address_ptr->sa_family);
	CHECK(same_host(param.address_ptr, b.attr.ia_address_ptr));
	CHECK(port_of(param.address_ptr) >= 1024);
	CHECK_RET(dat_csp_query(csp, DAT_CSP_FIELD_ALL + 1, &param), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_csp_query(csp, DAT_CSP_FIELD_ALL, NULL), DAT_INVALID_PARAMETER);
	CHECK_CODE(dat_csp_query(b.ia, DAT_CSP_FIELD_ALL, &param), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_CSP);
	OK(dat_get_handle_type(csp, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_CSP);
	CHECK_RET(dat_ia_close(b.ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_STATE);

	/* The scope of a link-local address may be left out, and is in the answer. */
	at = address_of(&b, 0);
	if (at.ss_family == AF_INET6)
		((struct sockaddr_in6 *)&at)->sin6_scope_id = 0;
	OK(create_at(&at));
	OK(dat_csp_query(csp, DAT_CSP_FIELD_ALL, &param));
	at = address_of(&b, port_of(param.address_ptr));
	CHECK(!memcmp(param.address_ptr, &at, sizeof at));
	ends_down();
}

/* A request may be handed on to a common service point, and from one. */
static void common__handoff(void)
{
	DAT_CONN_QUAL qual;
	DAT_PSP_HANDLE other;

	up();
	other = listen_any(&b, &qual);
	OK(connect_to(ep_a, &at));
	OK(dat_cr_handoff(await_request_at(csp), qual));
	CHECK(EXPECT(b.cr_evd, DAT_CONNECTION_REQUEST_EVENT)
		      .event_data.cr_arrival_event_data.sp_handle.psp_handle == other);
	ends_down();
	up();
	listen_any(&b, &qual);
	OK(dat_ep_connect(ep_a, b.attr.ia_address_ptr, qual, SOON, 5,
			  (DAT_PVOID)(uintptr_t) "hello", DAT_QOS_BEST_EFFORT,
			  DAT_CONNECT_DEFAULT_FLAG));
	OK(dat_cr_handoff(await_request(&b), port_of(&at)));
	OK(dat_cr_accept(await_request_at(csp), ep_b, 0, NULL));
	established();
	ends_down();
}

static const struct tap_test tests[] = {
	T(common, connects), T(common, and_qualifiers), T(common, freed), T(common, arguments),
	T(common, query),    T(common, handoff),	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
