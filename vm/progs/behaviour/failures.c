/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Transfers that fail, and what becomes of the connection. */
#include "behaviour.h"

#include <string.h>

/* The end of a connection whose peer has failed: OpenFabrics' library tells that the connection broke, or that the
 * peer has disconnected, whatever it notices first. */
static void print_end_of_a(void)
{
	DAT_EVENT event;

	if (!take_event(a.connect, SOON, &event))
		print("a.connect: no event");
	else if (event.event_number != DAT_CONNECTION_EVENT_BROKEN &&
		 event.event_number != DAT_CONNECTION_EVENT_DISCONNECTED)
		print("a.connect: %s", event_name(event.event_number));
	else
		print("a.connect: the end");
}

static void print_rest(void)
{
	EVENT(b.connect);
	NO_EVENT(a.connect);
	NO_EVENT(b.connect);
	NO_EVENT(async);
	STATE(a);
	STATE(b);
}

/* A transfer to or from memory of b that is not to be had, with a request behind it and a receive on each side. */
static void fails(DAT_RETURN (*post)(struct side *, const struct side *, size_t, uint64_t,
				     DAT_COMPLETION_FLAGS),
		  DAT_RMR_CONTEXT key, size_t length)
{
	struct side target = b;

	target.remote = key;
	CALL(post_recv(&a, 0, 100, 1));
	CALL(post_recv(&b, 0, 100, 2));
	CALL(post(&a, &target, length, 3, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.request);
	EVENT(a.recv);
	EVENT(b.recv);
	EVENT(a.connect);
	print_rest();
}

static void write_with_an_unknown_key(void)
{
	open_connection(NULL);
	fails(post_write, b.remote ^ 0x5500, 100);
}

static void read_with_an_unknown_key(void)
{
	open_connection(NULL);
	fails(post_read, b.remote ^ 0x5500, 100);
}

/* The key of another region of b's memory, with these privileges. */
static DAT_RMR_CONTEXT key_of_a_region(DAT_VLEN length, DAT_MEM_PRIV_FLAGS privileges)
{
	struct side target = b;

	register_memory(&target, length, privileges);
	return target.remote;
}

static void write_without_privilege(void)
{
	open_connection(NULL);
	fails(post_write,
	      key_of_a_region(4096, DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG),
	      100);
}

static void read_without_privilege(void)
{
	open_connection(NULL);
	fails(post_read,
	      key_of_a_region(4096, DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG |
					    DAT_MEM_PRIV_REMOTE_WRITE_FLAG),
	      100);
}

static void write_beyond_the_region(void)
{
	open_connection(NULL);
	fails(post_write, key_of_a_region(4096, DAT_MEM_PRIV_ALL_FLAG), 8192);
}

static void read_beyond_the_region(void)
{
	open_connection(NULL);
	fails(post_read, key_of_a_region(4096, DAT_MEM_PRIV_ALL_FLAG), 8192);
}

static void requests_behind_a_failure(void)
{
	struct side target;

	open_connection(NULL);
	target = b;
	target.remote ^= 0x5500;
	CALL(post_recv(&b, 0, 100, 1));
	CALL(post_read(&a, &target, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(post_send(&a, 100, 3, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(post_send(&a, 100, 4, DAT_COMPLETION_SUPPRESS_FLAG));
	EVENT(a.request);
	EVENT(a.request);
	EVENT(a.request);
	EVENT(b.recv);
	EVENT(a.connect);
	print_rest();
	CALL(dat_ep_reset(a.ep));
	CALL(dat_ep_reset(b.ep));
	connect_sides();
	STATE(a);
}

static void suppressed_failure(void)
{
	struct side target;

	open_connection(NULL);
	target = b;
	target.remote ^= 0x5500;
	CALL(post_write(&a, &target, 100, 1, DAT_COMPLETION_SUPPRESS_FLAG));
	EVENT(a.request);
	EVENT(a.connect);
	print_rest();
}

static void message_longer_than_the_receive(void)
{
	open_connection(NULL);
	CALL(post_recv(&b, 0, 50, 1));
	CALL(post_recv(&b, 0, 100, 2));
	CALL(post_send(&a, 100, 3, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	EVENT(b.recv);
	EVENT(a.request);
	print_end_of_a();
	print_rest();
}

static void message_longer_than_agreed(void)
{
	DAT_EP_ATTR attr = usual_attributes();

	attr.max_message_size = attr.max_rdma_size = 1000;
	open_connection(&attr);
	CALL(post_recv(&b, 0, 4096, 1));
	CALL(post_send(&a, 2000, 2, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(post_write(&a, &b, 2000, 3, DAT_COMPLETION_DEFAULT_FLAG));
	(void)print_event("a.request", a.request, NEVER, NULL);
	(void)print_event("a.request", a.request, NEVER, NULL);
	STATE(a);
}

static void send_of_memory_outside_the_region(void)
{
	DAT_LMR_TRIPLET part;

	open_connection(NULL);
	CALL(post_recv(&b, 0, 4096, 1));
	part = local_part(&a, SIDE_BYTES - 50, 100);
	CALL(dat_ep_post_send(a.ep, 1, &part, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.request);
	STATE(a);
}

static void send_with_an_unknown_key(void)
{
	DAT_LMR_TRIPLET part;

	open_connection(NULL);
	CALL(post_recv(&b, 0, 4096, 1));
	part = local_part(&a, 0, 100);
	part.lmr_context ^= 0x5500;
	CALL(dat_ep_post_send(a.ep, 1, &part, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.request);
	STATE(a);
}

static void receive_with_an_unknown_key(void)
{
	DAT_LMR_TRIPLET part;

	open_connection(NULL);
	part = local_part(&b, 0, 100);
	part.lmr_context ^= 0x5500;
	CALL(dat_ep_post_recv(b.ep, 1, &part, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	CALL(post_send(&a, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	EVENT(a.request);
	print_end_of_a();
	print_rest();
}

static void receive_into_memory_that_is_read_only(void)
{
	struct side target;
	DAT_LMR_TRIPLET part;

	open_connection(NULL);
	target = b;
	register_memory(&target, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG);
	part = local_part(&target, 0, 100);
	CALL(dat_ep_post_recv(b.ep, 1, &part, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	(void)print_event("b.recv", b.recv, NEVER, NULL);
	STATE(b);
}

static void completions_beyond_the_length(void)
{
	DAT_EP_ATTR attr = usual_attributes();
	DAT_EVD_HANDLE small;
	DAT_EVD_PARAM param;

	attr.max_recv_dtos = attr.max_request_dtos = 16;
	open_sides(&attr);
	listen_on_any();
	NEED(dat_ep_free(b.ep));
	small = make_evd("small", 2, DAT_EVD_DTO_FLAG);
	memset(&param, 0, sizeof param);
	CALL(dat_evd_query(small, DAT_EVD_FIELD_ALL, &param));
	CALL(dat_ep_create(ia, pz, small, b.request, b.connect, &attr, &b.ep));
	name_handle("b.ep", b.ep);
	connect_sides();
	for (unsigned i = 1; i <= 4; i++)
		NEED(post_recv(&b, 0, 100, i));
	for (unsigned i = 1; i <= 4; i++)
		NEED(post_send(&a, 100, i, DAT_COMPLETION_DEFAULT_FLAG));
	for (unsigned i = 1; i <= 4; i++)
		EVENT(a.request);
	pause_ms(200);
	for (unsigned i = 1; i <= 4; i++)
		EVENT(small);
	NO_EVENT(async);
	STATE(b);
}

const struct scenario failures[] = {
	{ "write_with_an_unknown_key", write_with_an_unknown_key },
	{ "read_with_an_unknown_key", read_with_an_unknown_key },
	{ "write_without_privilege", write_without_privilege },
	{ "read_without_privilege", read_without_privilege },
	{ "write_beyond_the_region", write_beyond_the_region },
	{ "read_beyond_the_region", read_beyond_the_region },
	{ "requests_behind_a_failure", requests_behind_a_failure },
	{ "suppressed_failure", suppressed_failure },
	{ "message_longer_than_the_receive", message_longer_than_the_receive },
	{ "message_longer_than_agreed", message_longer_than_agreed },
	{ "send_of_memory_outside_the_region", send_of_memory_outside_the_region },
	{ "send_with_an_unknown_key", send_with_an_unknown_key },
	{ "receive_with_an_unknown_key", receive_with_an_unknown_key },
	{ "receive_into_memory_that_is_read_only", receive_into_memory_that_is_read_only },
	{ "completions_beyond_the_length", completions_beyond_the_length },
	{ NULL, NULL },
};
