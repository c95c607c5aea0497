/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How connections end, and what follows. */
#include "behaviour.h"

#include <string.h>

static void print_both(void)
{
	EVENT(a.connect);
	EVENT(b.connect);
	NO_EVENT(a.connect);
	NO_EVENT(b.connect);
	STATE(a);
	STATE(b);
}

static void graceful(void)
{
	open_connection(NULL);
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_GRACEFUL_FLAG));
	print_both();
}

static void abrupt(void)
{
	open_connection(NULL);
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	print_both();
}

static void by_the_acceptor(void)
{
	open_connection(NULL);
	CALL(dat_ep_disconnect(b.ep, DAT_CLOSE_GRACEFUL_FLAG));
	print_both();
}

static void by_both(void)
{
	open_connection(NULL);
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	CALL(dat_ep_disconnect(b.ep, DAT_CLOSE_ABRUPT_FLAG));
	print_both();
}

static void twice(void)
{
	open_connection(NULL);
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	EVENT(a.connect);
	EVENT(b.connect);
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	CALL(dat_ep_disconnect(b.ep, DAT_CLOSE_GRACEFUL_FLAG));
	NO_EVENT(a.connect);
	NO_EVENT(b.connect);
	CALL(dat_ep_disconnect(a.ep, (DAT_CLOSE_FLAGS)77));
}

static void with_receives(void)
{
	open_connection(NULL);
	CALL(post_recv(&a, 0, 100, 1));
	CALL(post_recv(&a, 100, 100, 2));
	CALL(post_recv(&b, 0, 100, 3));
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	EVENT(a.connect);
	EVENT(b.connect);
	EVENT(a.recv);
	EVENT(a.recv);
	EVENT(b.recv);
	NO_EVENT(a.recv);
	STATE(a);
	STATE(b);
}

static void posts_afterwards(void)
{
	open_connection(NULL);
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	EVENT(a.connect);
	EVENT(b.connect);
	CALL(post_recv(&a, 0, 100, 1));
	CALL(post_send(&a, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(post_write(&a, &b, 100, 3, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(post_read(&a, &b, 100, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.recv);
	EVENT(a.request);
	EVENT(a.request);
	EVENT(a.request);
	STATE(a);
}

static void posts_by_the_other(void)
{
	open_connection(NULL);
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	EVENT(b.connect);
	CALL(post_recv(&b, 0, 100, 1));
	CALL(post_send(&b, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	EVENT(b.request);
}

static void connected_again(void)
{
	open_connection(NULL);
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	EVENT(a.connect);
	EVENT(b.connect);
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	CALL(dat_ep_reset(a.ep));
	CALL(dat_ep_reset(b.ep));
	STATE(a);
	STATE(b);
	connect_sides();
	CALL(post_recv(&b, 0, 100, 1));
	CALL(post_send(&a, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	EVENT(a.request);
	CALL(dat_ep_reset(a.ep));
	STATE(a);
}

static void freed(void)
{
	open_connection(NULL);
	CALL(post_recv(&a, 0, 100, 1));
	CALL(dat_ep_free(a.ep));
	EVENT(b.connect);
	STATE(b);
	NO_EVENT(a.connect);
	NO_EVENT(a.recv);
	CALL(dat_evd_free(a.recv));
	CALL(dat_evd_free(a.connect));
}

static void freed_with_events(void)
{
	open_connection(NULL);
	CALL(post_recv(&b, 0, 100, 1));
	CALL(post_send(&a, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	/* Both completions are there when the endpoints go. */
	pause_ms(300);
	CALL(dat_ep_free(b.ep));
	EVENT(a.connect);
	CALL(dat_ep_free(a.ep));
	NO_EVENT(a.request);
	NO_EVENT(b.recv);
}

static void evds_freed_with_events(void)
{
	open_connection(NULL);
	CALL(post_recv(&a, 0, 100, 1));
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	EVENT(b.connect);
	pause_ms(300);
	CALL(dat_ep_free(a.ep));
	CALL(dat_evd_free(a.connect));
	CALL(dat_evd_free(a.recv));
	CALL(dat_evd_free(a.request));
}

static void ia_closed(void)
{
	DAT_IA_HANDLE other;
	DAT_EVD_HANDLE other_async = DAT_HANDLE_NULL;
	DAT_EVENT event;

	/* b and the listener are in an IA of their own. */
	open_all();
	make_side(&b, "b", NULL);
	listen_on_any();
	other = ia;
	NEED(dat_ia_open(ia_name, 8, &other_async, &ia));
	NEED(dat_pz_create(ia, &pz));
	make_side(&a, "a", NULL);
	connect_sides();
	CALL(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG));
	CALL(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
	EVENT(b.connect);
	STATE(b);
	print("%s", print_event("b.connect", b.connect, NEVER, &event) ? "another" : "no other");
	CALL(dat_ia_close(other, DAT_CLOSE_ABRUPT_FLAG));
}

static void with_sends_without_receive(void)
{
	open_connection(NULL);
	CALL(post_send(&a, 100, 1, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(post_send(&a, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	EVENT(a.connect);
	EVENT(b.connect);
	EVENT(a.request);
	EVENT(a.request);
	STATE(a);
}

static void graceful_behind_sends(void)
{
	open_connection(NULL);
	for (unsigned i = 1; i <= 4; i++)
		NEED(post_recv(&b, i * 4096, 4096, i));
	for (unsigned i = 1; i <= 4; i++)
		CALL(post_send(&a, 4096, i, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_GRACEFUL_FLAG));
	for (int i = 0; i < 4; i++)
		EVENT(a.request);
	for (int i = 0; i < 4; i++)
		EVENT(b.recv);
	EVENT(a.connect);
	EVENT(b.connect);
}

static void listener_freed_while_connected(void)
{
	open_connection(NULL);
	CALL(dat_psp_free(psp));
	NO_EVENT(a.connect);
	STATE(a);
	CALL(post_recv(&b, 0, 100, 1));
	CALL(post_send(&a, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	CALL(dat_evd_free(requests));
	CALL(dat_ep_disconnect(b.ep, DAT_CLOSE_ABRUPT_FLAG));
	print_both();
}

static void queries_while_connected(void)
{
	DAT_EP_PARAM param;

	open_connection(NULL);
	memset(&param, 0, sizeof param);
	param.ep_attr = usual_attributes();
	param.ep_attr.max_message_size = 128;
	param.pz_handle = pz;
	CALL(dat_ep_modify(a.ep, DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, &param));
	CALL(dat_ep_modify(a.ep, DAT_EP_FIELD_PZ_HANDLE, &param));
	CALL(dat_ep_query(a.ep, DAT_EP_FIELD_ALL, &param));
	print("max_message_size %#llx, %s", (unsigned long long)param.ep_attr.max_message_size,
	      state_name(param.ep_state));
	CALL(dat_evd_free(a.connect));
	CALL(dat_pz_free(pz));
	CALL(dat_lmr_free(a.lmr));
}

const struct scenario endings[] = {
	{ "graceful", graceful },
	{ "abrupt", abrupt },
	{ "by_the_acceptor", by_the_acceptor },
	{ "by_both", by_both },
	{ "twice", twice },
	{ "with_receives", with_receives },
	{ "posts_afterwards", posts_afterwards },
	{ "posts_by_the_other", posts_by_the_other },
	{ "connected_again", connected_again },
	{ "freed", freed },
	{ "freed_with_events", freed_with_events },
	{ "evds_freed_with_events", evds_freed_with_events },
	{ "ia_closed", ia_closed },
	{ "with_sends_without_receive", with_sends_without_receive },
	{ "graceful_behind_sends", graceful_behind_sends },
	{ "listener_freed_while_connected", listener_freed_while_connected },
	{ "queries_while_connected", queries_while_connected },
	{ NULL, NULL },
};
