/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ep_connect(3DAT), dat_ep_dup_connect(3DAT). */
#include "two_ends.h"

#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

/* --- dat_ep_connect ------------------------------------------------------------------------- */

static void ep_connect__zeros(void)
{
	ends_up();
	CHECK_RET(try_connect(ep_a, &b, qualifier, 0), DAT_INVALID_PARAMETER);
	/* Qualifier 0 names nothing. */
	CHECK_CODE(try_connect(ep_a, &b, 0, SOON), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
	ends_down();
}

static void ep_connect__address_null(void)
{
	ends_up();
	CHECK_CODE(dat_ep_connect(ep_a, NULL, qualifier, SOON, 0, NULL, DAT_QOS_BEST_EFFORT,
				  DAT_CONNECT_DEFAULT_FLAG),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
	ends_down();
}

static void ep_connect__address_family_unknown(void)
{
	struct sockaddr strange = { .sa_family = 213 };

	ends_up();
	CHECK_RET(dat_ep_connect(ep_a, (DAT_IA_ADDRESS_PTR)&strange, qualifier, SOON, 0, NULL,
				 DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
		  DAT_INVALID_ADDRESS);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
	ends_down();
}

static void ep_connect__address_of_no_host(void)
{
	struct sockaddr_in many = { .sin_family = AF_INET };

	ends_up();
	many.sin_addr.s_addr = htonl(0xe0000001);
	CHECK_RET(dat_ep_connect(ep_a, (DAT_IA_ADDRESS_PTR)&many, qualifier, SOON, 0, NULL,
				 DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
		  DAT_INVALID_ADDRESS);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
	EXPECT_NOTHING(a.connect_evd);
	ends_down();
}

static void ep_connect__host_unreachable(void)
{
	const struct sockaddr_in *own;
	struct sockaddr_in far = { .sin_family = AF_INET };
	DAT_CONNECTION_EVENT_DATA event;

	ends_up();
	own = (const struct sockaddr_in *)(const void *)a.attr.ia_address_ptr;
	if (own->sin_family != AF_INET || ntohl(own->sin_addr.s_addr) >> 24 != 127)
		tap_unsupported(
			"only from the loopback interface it is sure that no host is reached");
	/* An address for documentation. */
	far.sin_addr.s_addr = htonl(0xc0000201);
	OK(recv_nothing(ep_a, 4));
	OK(dat_ep_connect(ep_a, (DAT_IA_ADDRESS_PTR)&far, qualifier, SOON, 0, NULL,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_UNREACHABLE)
			.event_data.connect_event_data;
	CHECK(event.ep_handle == ep_a);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
	EXPECT_DTO(a.recv_evd, 4, DAT_DTO_ERR_FLUSHED);
	ends_down();
}

static void ep_connect__model_not_offered(void)
{
	ends_up();
	if (!(a.provider.dat_qos_supported & DAT_QOS_PREMIUM))
		CHECK_RET(dat_ep_connect(ep_a, b.attr.ia_address_ptr, qualifier, SOON, 0, NULL,
					 DAT_QOS_PREMIUM, DAT_CONNECT_DEFAULT_FLAG),
			  DAT_MODEL_NOT_SUPPORTED);
	if (!a.provider.supports_multipath)
		CHECK_RET(dat_ep_connect(ep_a, b.attr.ia_address_ptr, qualifier, SOON, 0, NULL,
					 DAT_QOS_BEST_EFFORT, DAT_CONNECT_MULTIPATH_FLAG),
			  DAT_MODEL_NOT_SUPPORTED);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
	ends_down();
}

static void ep_connect__port_in_the_address_is_ignored(void)
{
	struct sockaddr_storage address;

	ends_up();
	memset(&address, 0, sizeof address);
	if (b.attr.ia_address_ptr->sa_family == AF_INET6) {
		memcpy(&address, b.attr.ia_address_ptr, sizeof(struct sockaddr_in6));
		((struct sockaddr_in6 *)&address)->sin6_port = htons(9);
	} else {
		memcpy(&address, b.attr.ia_address_ptr, sizeof(struct sockaddr_in));
		((struct sockaddr_in *)&address)->sin_port = htons(9);
	}
	OK(dat_ep_connect(ep_a, (DAT_IA_ADDRESS_PTR)&address, qualifier, SOON, 0, NULL,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	/* The library has its copy. */
	memset(&address, 0xff, sizeof address);
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	ends_down();
}

static void ep_connect__private_data_arguments(void)
{
	char data[8] = { 0 };

	ends_up();
	CHECK_RET(dat_ep_connect(ep_a, b.attr.ia_address_ptr, qualifier, SOON, 8, NULL,
				 DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_connect(ep_a, b.attr.ia_address_ptr, qualifier, SOON, -8, data,
				 DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
	ends_down();
}

static void ep_connect__flags_unknown(void)
{
	ends_up();
	CHECK_RET(dat_ep_connect(ep_a, b.attr.ia_address_ptr, qualifier, SOON, 0, NULL,
				 DAT_QOS_BEST_EFFORT, (DAT_CONNECT_FLAGS)0x4000),
		  DAT_MODEL_NOT_SUPPORTED);
	CHECK_RET(dat_ep_connect(ep_a, b.attr.ia_address_ptr, qualifier, SOON, 0, NULL,
				 (DAT_QOS)0x4000, DAT_CONNECT_DEFAULT_FLAG),
		  DAT_MODEL_NOT_SUPPORTED);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_UNCONNECTED);
	ends_down();
}

static void ep_connect__without_a_connect_evd(void)
{
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE ep;

	ends_up();
	attr = ep_attr(&a);
	OK(dat_ep_create(a.ia, a.pz, a.recv_evd, a.request_evd, DAT_HANDLE_NULL, &attr, &ep));
	CHECK_CODE(try_connect(ep, &b, qualifier, SOON), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_EVD_CONN);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_UNCONNECTED);
	ends_down();
}

static void ep_connect__in_another_state(void)
{
	ends_up();
	OK(try_connect(ep_a, &b, qualifier, SOON));
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
	CHECK_RET(try_connect(ep_a, &b, qualifier, SOON), DAT_INVALID_STATE);
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	CHECK_RET(try_connect(ep_a, &b, qualifier, SOON), DAT_INVALID_STATE);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	CHECK_RET(try_connect(ep_b, &a, qualifier, SOON), DAT_INVALID_STATE);
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_RET(try_connect(ep_a, &b, qualifier, SOON), DAT_INVALID_STATE);
	ends_down();
}

static void ep_connect__nobody_listens(void)
{
	DAT_CONNECTION_EVENT_DATA event;
	DAT_PSP_HANDLE passive;
	DAT_CONN_QUAL unused;

	ends_up();
	passive = listen_any(&b, &unused);
	OK(dat_psp_free(passive));
	OK(recv_nothing(ep_a, 4));
	OK(try_connect(ep_a, &b, unused, SOON));
	event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED)
			.event_data.connect_event_data;
	CHECK(event.ep_handle == ep_a);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
	EXPECT_DTO(a.recv_evd, 4, DAT_DTO_ERR_FLUSHED);
	ends_down();
}

static void ep_connect__times_out(void)
{
	unsigned long long begin, took;

	/* The request is never answered. */
	ends_up();
	begin = now_us();
	OK(try_connect(ep_a, &b, qualifier, SHORTLY));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_TIMED_OUT);
	took = now_us() - begin;
	CHECK(took >= SHORTLY);
	CHECK(took < SHORTLY + AT_ONCE);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_DISCONNECTED);
	ends_down();
}

/* A TCP port of this host that answers no further connection, as if a firewall were there. */
struct silent {
	int listener, last;
	DAT_CONN_QUAL port;
};

static struct silent make_silent(const struct sockaddr *host)
{
	struct sockaddr_storage at = { 0 };
	struct sockaddr *name = (struct sockaddr *)(void *)&at;
	socklen_t size = host->sa_family == AF_INET ? sizeof(struct sockaddr_in) :
						      sizeof(struct sockaddr_in6);
	struct silent silent;

	memcpy(&at, host, size);
	/* The port is at the same place in both. */
	((struct sockaddr_in *)(void *)&at)->sin_port = 0;
	silent.listener = socket(host->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	silent.last = socket(host->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	REQUIRE(silent.listener >= 0 && silent.last >= 0);
	REQUIRE(bind(silent.listener, name, size) == 0 && listen(silent.listener, 0) == 0);
	REQUIRE(getsockname(silent.listener, name, &size) == 0);
	/* The one that waits to be accepted is all that it holds. */
	REQUIRE(connect(silent.last, name, size) == 0);
	silent.port = ntohs(((struct sockaddr_in *)(void *)&at)->sin_port);
	return silent;
}

static void ep_connect__to_a_silent_port(void)
{
	enum { TIMED, GIVEN_UP, FREED, LEFT, COUNT };
	DAT_EP_HANDLE ep[COUNT];
	DAT_EP_ATTR attr;
	DAT_EVD_HANDLE evd;
	DAT_EVENT event;
	DAT_COUNT more;
	struct silent silent;
	unsigned long long begin;

	ends_up();
	silent = make_silent((const struct sockaddr *)a.attr.ia_address_ptr);
	evd = make_evd(a.ia, COUNT, DAT_EVD_CONNECTION_FLAG);
	attr = ep_attr(&a);
	for (int i = 0; i < COUNT; i++)
		OK(dat_ep_create(a.ia, a.pz, a.recv_evd, a.request_evd, evd, &attr, &ep[i]));
	begin = now_us();
	for (int i = 0; i < COUNT; i++)
		OK(try_connect(ep[i], &a, silent.port, i == TIMED ? SHORTLY : 2 * SOON));
	OK(dat_evd_wait(evd, SOON, 1, &event, &more));
	if (event.event_number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED &&
	    (now_us() - begin < SHORTLY || strncmp(tap_ia, "soft-sh", 7) == 0))
		tap_skip("the provider does not connect by TCP");
	CHECK_EQ(event.event_number, DAT_CONNECTION_EVENT_TIMED_OUT);
	CHECK(now_us() - begin >= SHORTLY);
	/* Nobody waits with them: neither others with the same queues nor whoever has had enough. */
	connect_eps(&a, ep_a, &b, ep_b);
	OK(dat_ep_disconnect(ep[GIVEN_UP], DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	OK(dat_ep_reset(ep[GIVEN_UP]));
	OK(try_connect(ep[GIVEN_UP], &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), make_ep(&b, NULL), 0, NULL));
	EXPECT(evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	OK(dat_ep_free(ep[FREED]));
	CHECK_EQ(ep_state(ep[LEFT]), DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
	ends_down();
	CHECK(now_us() - begin < SHORTLY + AT_ONCE);
	close(silent.last);
	close(silent.listener);
}

static void ep_connect__many_at_once(void)
{
	enum { COUNT = 12 };
	DAT_EP_HANDLE active[COUNT];

	ends_up();
	for (int i = 0; i < COUNT; i++) {
		active[i] = make_ep(&a, NULL);
		OK(try_connect(active[i], &b, qualifier, SOON));
	}
	for (int i = 0; i < COUNT; i++)
		OK(dat_cr_accept(await_request(&b), make_ep(&b, NULL), 0, NULL));
	for (int i = 0; i < COUNT; i++) {
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	}
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ(ep_state(active[i]), DAT_EP_STATE_CONNECTED);
	ends_down();
}

static void ep_connect__within_one_ia(void)
{
	DAT_EP_HANDLE other;

	ends_up();
	other = make_ep(&b, NULL);
	OK(try_connect(other, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	OK(recv_nothing(ep_b, 1));
	OK(send_nothing(other, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(b.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(b.recv_evd, 1, DAT_DTO_SUCCESS);
	ends_down();
}

static void ep_connect__private_data_stays_until_reset(void)
{
	DAT_CONNECTION_EVENT_DATA event;
	char data[48];

	ends_up();
	fill(data, sizeof data, 3);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, sizeof data, data));
	event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			.event_data.connect_event_data;
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	REQUIRE(event.private_data_size >= (DAT_COUNT)sizeof data);
	CHECK(filled(event.private_data, sizeof data, 3));
	OK(dat_ep_reset(ep_a));
	ends_down();
}

static void ep_connect__answered_without_private_data(void)
{
	DAT_CONNECTION_EVENT_DATA event;

	ends_up();
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	event = EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			.event_data.connect_event_data;
	CHECK(no_private_data(event.private_data));
	/* Nothing is ever there for the end that has accepted. */
	event = EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			.event_data.connect_event_data;
	CHECK(event.private_data == NULL);
	CHECK_EQ(event.private_data_size, 0);
	ends_down();
}

/* --- dat_ep_dup_connect --------------------------------------------------------------------- */

static void ep_dup_connect__to_the_same_peer(void)
{
	DAT_EP_HANDLE dup_a, dup_b;
	DAT_CR_ARRIVAL_EVENT_DATA request;

	ends_up();
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	dup_a = make_ep(&a, NULL);
	dup_b = make_ep(&b, NULL);
	OK(dat_ep_dup_connect(dup_a, ep_a, SOON, 0, NULL, DAT_QOS_BEST_EFFORT));
	request = EXPECT(b.cr_evd, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data;
	CHECK_EQ(request.conn_qual, qualifier);
	OK(dat_cr_accept(request.cr_handle, dup_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	CHECK_EQ(ep_state(dup_a), DAT_EP_STATE_CONNECTED);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_CONNECTED);
	ends_down();
}

static void ep_dup_connect__refused(void)
{
	DAT_EP_HANDLE other;

	ends_up();
	other = make_ep(&a, NULL);
	CHECK_RET(dat_ep_dup_connect(other, ep_a, SOON, 0, NULL, DAT_QOS_BEST_EFFORT),
		  DAT_INVALID_STATE);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	CHECK_RET(dat_ep_dup_connect(other, ep_a, 0, 0, NULL, DAT_QOS_BEST_EFFORT),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_dup_connect(ep_a, ep_a, SOON, 0, NULL, DAT_QOS_BEST_EFFORT),
		  DAT_INVALID_STATE);
	CHECK_RET(dat_ep_dup_connect(other, DAT_HANDLE_NULL, SOON, 0, NULL, DAT_QOS_BEST_EFFORT),
		  DAT_INVALID_HANDLE);
	CHECK_EQ(ep_state(other), DAT_EP_STATE_UNCONNECTED);
	ends_down();
}

/* The end that has accepted has connected to no address, and after the end of a connection there is no
 * peer. */
static void ep_dup_connect__without_a_peer(void)
{
	DAT_EP_HANDLE other_a, other_b;

	ends_up();
	other_a = make_ep(&a, NULL);
	other_b = make_ep(&b, NULL);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	established();
	CHECK_RET(dat_ep_dup_connect(other_b, ep_b, SOON, 0, NULL, DAT_QOS_BEST_EFFORT),
		  DAT_INVALID_PARAMETER);
	OK(dat_ep_disconnect(ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_RET(dat_ep_dup_connect(other_a, ep_a, SOON, 0, NULL, DAT_QOS_BEST_EFFORT),
		  DAT_INVALID_STATE);
	CHECK_RET(dat_ep_dup_connect(other_b, ep_b, SOON, 0, NULL, DAT_QOS_BEST_EFFORT),
		  DAT_INVALID_STATE);
	CHECK_EQ(ep_state(other_a), DAT_EP_STATE_UNCONNECTED);
	CHECK_EQ(ep_state(other_b), DAT_EP_STATE_UNCONNECTED);
	ends_down();
}

static void ep_dup_connect__arguments(void)
{
	DAT_EP_HANDLE other;
	char data[8] = { 0 };

	ends_up();
	other = make_ep(&a, NULL);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	CHECK_RET(dat_ep_dup_connect(other, ep_a, SOON, 8, NULL, DAT_QOS_BEST_EFFORT),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_dup_connect(other, ep_a, SOON, -8, data, DAT_QOS_BEST_EFFORT),
		  DAT_INVALID_PARAMETER);
	if (!(a.provider.dat_qos_supported & DAT_QOS_PREMIUM))
		CHECK_RET(dat_ep_dup_connect(other, ep_a, SOON, 0, NULL, DAT_QOS_PREMIUM),
			  DAT_MODEL_NOT_SUPPORTED);
	CHECK_EQ(ep_state(other), DAT_EP_STATE_UNCONNECTED);
	ends_down();
}

static void ep_dup_connect__private_data_and_rejection(void)
{
	DAT_EP_HANDLE other;
	DAT_CR_HANDLE cr;
	DAT_CR_PARAM param;
	char data[48];

	ends_up();
	other = make_ep(&a, NULL);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&b), ep_b, 0, NULL));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	fill(data, sizeof data, 2);
	OK(dat_ep_dup_connect(other, ep_a, SOON, sizeof data, data, DAT_QOS_BEST_EFFORT));
	CHECK_EQ(ep_state(other), DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
	cr = await_request(&b);
	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	REQUIRE(param.private_data_size >= (DAT_COUNT)sizeof data);
	CHECK(filled(param.private_data, sizeof data, 2));
	OK(dx_cr_reject(cr));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	CHECK_EQ(ep_state(other), DAT_EP_STATE_DISCONNECTED);
	CHECK_EQ(ep_state(ep_a), DAT_EP_STATE_CONNECTED);
	ends_down();
}

static const struct tap_test tests[] = {
	T(ep_connect, zeros),
	T(ep_connect, address_null),
	T(ep_connect, address_family_unknown),
	T(ep_connect, address_of_no_host),
	T(ep_connect, host_unreachable),
	T(ep_connect, model_not_offered),
	T(ep_connect, port_in_the_address_is_ignored),
	T(ep_connect, private_data_arguments),
	T(ep_connect, flags_unknown),
	T(ep_connect, without_a_connect_evd),
	T(ep_connect, in_another_state),
	T(ep_connect, nobody_listens),
	T(ep_connect, times_out),
	T(ep_connect, to_a_silent_port),
	T(ep_connect, many_at_once),
	T(ep_connect, within_one_ia),
	T(ep_connect, private_data_stays_until_reset),
	T(ep_connect, answered_without_private_data),
	T(ep_dup_connect, to_the_same_peer),
	T(ep_dup_connect, without_a_peer),
	T(ep_dup_connect, arguments),
	T(ep_dup_connect, private_data_and_rejection),
	T(ep_dup_connect, refused),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
