/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Transfers that succeed, and how their completions are told. */
#include "behaviour.h"

#include <string.h>

static void messages(void)
{
	open_connection(NULL);
	CALL(post_recv(&b, 0, 4096, 1));
	STATE(b);
	CALL(post_send(&a, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	EVENT(a.request);
	STATE(a);
	STATE(b);
	/* As long as the receive. */
	CALL(post_recv(&b, 0, 4096, 3));
	CALL(post_send(&a, 4096, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	EVENT(a.request);
	/* The other way. */
	CALL(post_recv(&a, 0, 4096, 5));
	CALL(post_send(&b, 7, 6, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.recv);
	EVENT(b.request);
}

static void idle_endpoints(void)
{
	open_connection(NULL);
	IDLE(a);
	CALL(post_recv(&a, 0, 100, 1));
	IDLE(a);
	CALL(post_send(&a, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	IDLE(a);
	CALL(post_recv(&b, 0, 100, 3));
	EVENT(a.request);
	IDLE(a);
}

static void messages_without_data(void)
{
	open_connection(NULL);
	CALL(dat_ep_post_recv(b.ep, 0, NULL, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ep_post_send(a.ep, 0, NULL, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	EVENT(a.request);
	CALL(post_recv(&b, 0, 100, 3));
	CALL(post_send(&a, 0, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	EVENT(a.request);
}

static void sends_before_the_receive(void)
{
	open_connection(NULL);
	CALL(post_send(&a, 100, 1, DAT_COMPLETION_DEFAULT_FLAG));
	pause_ms(200);
	CALL(post_recv(&b, 0, 100, 2));
	EVENT(b.recv);
	EVENT(a.request);
	STATE(a);
}

static void receives_before_the_connection(void)
{
	open_listener(NULL);
	CALL(post_recv(&a, 0, 100, 1));
	CALL(post_recv(&b, 0, 100, 2));
	connect_sides();
	CALL(post_send(&a, 100, 3, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(post_send(&b, 100, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.recv);
	EVENT(b.recv);
}

static void writes_and_reads(void)
{
	open_connection(NULL);
	memset(a.memory, 'a', SIDE_BYTES);
	CALL(post_write(&a, &b, 4096, 1, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.request);
	print("b has %c%c", b.memory[0], b.memory[4095]);
	NO_EVENT(b.recv);
	CALL(post_read(&b, &a, 4096, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.request);
	CALL(post_write(&a, &b, 0, 3, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.request);
	CALL(post_read(&a, &b, 0, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.request);
}

/* The whole of a completion, the operation included. */
static void operations(void)
{
	DAT_EVENT event;

	open_connection(NULL);
	NEED(post_recv(&b, 0, 4096, 1));
	NEED(post_send(&a, 100, 2, DAT_COMPLETION_DEFAULT_FLAG));
	if (print_event("b.recv", b.recv, SOON, &event))
		print("operation %d", event.event_data.dto_completion_event_data.operation);
	if (print_event("a.request", a.request, SOON, &event))
		print("operation %d", event.event_data.dto_completion_event_data.operation);
	NEED(post_write(&a, &b, 100, 3, DAT_COMPLETION_DEFAULT_FLAG));
	if (print_event("a.request", a.request, SOON, &event))
		print("operation %d", event.event_data.dto_completion_event_data.operation);
	NEED(post_read(&a, &b, 100, 4, DAT_COMPLETION_DEFAULT_FLAG));
	if (print_event("a.request", a.request, SOON, &event))
		print("operation %d", event.event_data.dto_completion_event_data.operation);
}

static void segments(void)
{
	DAT_LMR_TRIPLET parts[2];
	DAT_RMR_TRIPLET there;

	open_connection(NULL);
	memset(a.memory, 'a', SIDE_BYTES);
	parts[0] = local_part(&b, 0, 10);
	parts[1] = local_part(&b, 1000, 90);
	CALL(dat_ep_post_recv(b.ep, 2, parts, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	parts[0] = local_part(&a, 0, 50);
	parts[1] = local_part(&a, 2000, 20);
	CALL(dat_ep_post_send(a.ep, 2, parts, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	EVENT(a.request);
	print("written: %d %d", b.memory[9] == 'a' && !b.memory[10],
	      b.memory[1059] == 'a' && !b.memory[1060]);
	there = remote_part(&b, 5000, 70);
	CALL(dat_ep_post_rdma_write(a.ep, 2, parts, cookie(3), &there,
				    DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.request);
	print("written: %d", b.memory[5069] == 'a' && !b.memory[5070]);
	/* More remote memory than the local segments fill. */
	there = remote_part(&b, 6000, 500);
	CALL(dat_ep_post_rdma_write(a.ep, 1, parts, cookie(4), &there,
				    DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.request);
	/* Less. */
	there = remote_part(&b, 7000, 5);
	CALL(dat_ep_post_rdma_write(a.ep, 1, parts, cookie(5), &there,
				    DAT_COMPLETION_DEFAULT_FLAG));
	there = remote_part(&b, 7000, 5);
	CALL(dat_ep_post_rdma_read(a.ep, 1, parts, cookie(6), &there, DAT_COMPLETION_DEFAULT_FLAG));
	STATE(a);
}

static void suppressed(void)
{
	open_connection(NULL);
	CALL(post_recv(&b, 0, 100, 1));
	CALL(post_recv(&b, 100, 100, 2));
	CALL(post_send(&a, 100, 3, DAT_COMPLETION_SUPPRESS_FLAG));
	CALL(post_send(&a, 100, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	EVENT(b.recv);
	EVENT(a.request);
	NO_EVENT(a.request);
	CALL(post_write(&a, &b, 100, 5, DAT_COMPLETION_SUPPRESS_FLAG));
	NO_EVENT(a.request);
	pause_ms(100);
	STATE(a);
}

static void flags_of_requests(void)
{
	open_connection(NULL);
	for (unsigned i = 0; i < 6; i++)
		NEED(post_recv(&b, i * 100, 100, i));
	CALL(post_send(&a, 100, 1, DAT_COMPLETION_SOLICITED_WAIT_FLAG));
	EVENT(a.request);
	CALL(post_send(&a, 100, 2, DAT_COMPLETION_BARRIER_FENCE_FLAG));
	EVENT(a.request);
	CALL(post_send(&a, 100, 3, DAT_COMPLETION_UNSIGNALLED_FLAG));
	CALL(post_send(&a, 100, 4, DAT_COMPLETION_EVD_THRESHOLD_FLAG));
	CALL(post_write(&a, &b, 100, 5, DAT_COMPLETION_SOLICITED_WAIT_FLAG));
	EVENT(a.request);
	CALL(post_read(&a, &b, 100, 6, DAT_COMPLETION_BARRIER_FENCE_FLAG));
	EVENT(a.request);
}

static void flags_of_receives(void)
{
	DAT_LMR_TRIPLET part;

	open_connection(NULL);
	part = local_part(&b, 0, 100);
	CALL(dat_ep_post_recv(b.ep, 1, &part, cookie(1), DAT_COMPLETION_SUPPRESS_FLAG));
	CALL(dat_ep_post_recv(b.ep, 1, &part, cookie(2), DAT_COMPLETION_UNSIGNALLED_FLAG));
	CALL(dat_ep_post_recv(b.ep, 1, &part, cookie(3), DAT_COMPLETION_SOLICITED_WAIT_FLAG));
	CALL(dat_ep_post_recv(b.ep, 1, &part, cookie(4), DAT_COMPLETION_BARRIER_FENCE_FLAG));
}

static void waits_for_transfers(void)
{
	DAT_EVENT event;
	DAT_COUNT more = -1;

	open_connection(NULL);
	for (unsigned i = 0; i < 4; i++)
		NEED(post_recv(&b, i * 100, 100, i));
	CALL(dat_evd_wait(b.recv, 10000, 1, &event, &more));
	for (unsigned i = 0; i < 4; i++)
		NEED(post_send(&a, 100, i, DAT_COMPLETION_DEFAULT_FLAG));
	pause_ms(300);
	CALL(dat_evd_wait(b.recv, 10000000, 1, &event, &more));
	print("cookie %u, %d more",
	      (unsigned)event.event_data.dto_completion_event_data.user_cookie.as_64, (int)more);
	CALL(dat_evd_wait(b.recv, 10000000, 2, &event, &more));
	CALL(dat_evd_set_unwaitable(b.recv));
	CALL(dat_evd_wait(b.recv, 10000, 1, &event, &more));
}

static void cno_of_transfers(void)
{
	DAT_CNO_HANDLE cno;
	DAT_EVD_HANDLE triggered = DAT_HANDLE_NULL;

	open_connection(NULL);
	NEED(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	CALL(dat_evd_modify_cno(b.recv, cno));
	CALL(post_recv(&b, 0, 100, 1));
	CALL(dat_cno_wait(cno, 10000, &triggered));
	CALL(post_send(&a, 100, 2, DAT_COMPLETION_SOLICITED_WAIT_FLAG));
	pause_ms(300);
	CALL(dat_cno_wait(cno, 10000000, &triggered));
	print("evd %s", handle_name(triggered));
	EVENT(b.recv);
	CALL(dat_cno_wait(cno, 10000, &triggered));
}

static void cno_of_connections(void)
{
	DAT_CNO_HANDLE cno;
	DAT_EVD_HANDLE triggered = DAT_HANDLE_NULL;

	open_listener(NULL);
	NEED(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	CALL(dat_evd_modify_cno(requests, cno));
	CALL(dat_evd_modify_cno(a.connect, cno));
	CALL(connect_to(a.ep, qualifier, DAT_TIMEOUT_INFINITE, 0, NULL));
	CALL(dat_cno_wait(cno, 10000000, &triggered));
	print("evd %s", handle_name(triggered));
	await_request();
	CALL(dat_cr_accept(cr, b.ep, 0, NULL));
	CALL(dat_cno_wait(cno, 10000000, &triggered));
	print("evd %s", handle_name(triggered));
	EVENT(a.connect);
}

static void windows_of_memory(void)
{
	DAT_LMR_TRIPLET part;
	DAT_RMR_TRIPLET there;
	DAT_RMR_CONTEXT key = 0;
	DAT_RMR_HANDLE rmr;

	open_connection(NULL);
	if (CALL(dat_rmr_create(pz, &rmr)) != DAT_SUCCESS)
		return;
	name_handle("rmr", rmr);
	part = local_part(&b, 0, 4096);
	(void)print_call("dat_rmr_bind",
			 dat_rmr_bind(rmr, b.lmr, &part, DAT_MEM_PRIV_REMOTE_WRITE_FLAG,
				      DAT_VA_TYPE_VA, b.ep, cookie(1), DAT_COMPLETION_DEFAULT_FLAG,
				      &key));
	EVENT(b.request);
	part = local_part(&a, 0, 100);
	there = remote_part(&b, 0, 100);
	there.rmr_context = key;
	CALL(dat_ep_post_rdma_write(a.ep, 1, &part, cookie(2), &there,
				    DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.request);
	CALL(dat_lmr_free(b.lmr));
	CALL(dat_rmr_free(rmr));
	CALL(dat_lmr_free(b.lmr));
}

static void as_many_as_agreed(void)
{
	DAT_RETURN code;

	open_connection(NULL);
	for (unsigned i = 1; i <= 8; i++)
		NEED(post_recv(&b, 0, 100, i));
	code = post_recv(&b, 0, 100, 9);
	(void)print_call("post_recv of one more than max_recv_dtos", code);
	for (unsigned i = 1; i <= 8; i++)
		NEED(post_send(&a, 100, i, DAT_COMPLETION_DEFAULT_FLAG));
	for (unsigned i = 1; i <= 8; i++)
		EVENT(b.recv);
	for (unsigned i = 1; i <= 8; i++)
		EVENT(a.request);
}

static void messages_through_a_shared_queue(void)
{
	DAT_SRQ_ATTR attr = usual_srq_attributes();
	DAT_EP_ATTR ep_attr = usual_attributes();
	DAT_LMR_TRIPLET part;
	DAT_SRQ_HANDLE srq;

	open_listener(NULL);
	NEED(dat_srq_create(ia, pz, &attr, &srq));
	name_handle("srq", srq);
	NEED(dat_ep_free(b.ep));
	NEED(dat_ep_create_with_srq(ia, pz, b.recv, b.request, b.connect, srq, &ep_attr, &b.ep));
	name_handle("b.ep", b.ep);
	part = local_part(&b, 0, 100);
	CALL(dat_srq_post_recv(srq, 1, &part, cookie(1)));
	CALL(dat_srq_post_recv(srq, 1, &part, cookie(2)));
	connect_sides();
	CALL(post_send(&a, 60, 3, DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(b.recv);
	CALL(dat_ep_disconnect(a.ep, DAT_CLOSE_ABRUPT_FLAG));
	EVENT(b.connect);
	NO_EVENT(b.recv);
	CALL(dat_ep_free(b.ep));
	CALL(dat_srq_free(srq));
}

const struct scenario transfers[] = {
	{ "messages", messages },
	{ "idle_endpoints", idle_endpoints },
	{ "messages_without_data", messages_without_data },
	{ "sends_before_the_receive", sends_before_the_receive },
	{ "receives_before_the_connection", receives_before_the_connection },
	{ "writes_and_reads", writes_and_reads },
	{ "operations", operations },
	{ "segments", segments },
	{ "suppressed", suppressed },
	{ "flags_of_requests", flags_of_requests },
	{ "flags_of_receives", flags_of_receives },
	{ "waits_for_transfers", waits_for_transfers },
	{ "cno_of_transfers", cno_of_transfers },
	{ "cno_of_connections", cno_of_connections },
	{ "windows_of_memory", windows_of_memory },
	{ "as_many_as_agreed", as_many_as_agreed },
	{ "messages_through_a_shared_queue", messages_through_a_shared_queue },
	{ NULL, NULL },
};
