/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What uDAPL costs on a device that costs nothing: the operations of measure.h between two
 * endpoints of one process. An ordinary DAT 2.0 program; which library and which provider it
 * runs on is for LD_LIBRARY_PATH and DAT_OVERRIDE to say. The IA is "bench".
 */
#include "measure.h"

#include <dat2/udat.h>
#include <unistd.h>

#define OK(call)                                                                       \
	do {                                                                           \
		DAT_RETURN code = (call);                                              \
		if (__builtin_expect(code != DAT_SUCCESS, 0)) {                        \
			fprintf(stderr, "%s:%d: %s: %#x\n", __FILE__, __LINE__, #call, \
				(unsigned)code);                                       \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

enum { SOON = 10 * 1000 * 1000 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE connect_evd, cr_evd, send_evd, recv_evd;
static DAT_EP_HANDLE active, passive;
static DAT_LMR_CONTEXT local_key;
static DAT_RMR_CONTEXT remote_key;
static _Alignas(4096) char memory[MEMORY];

static DAT_EVD_HANDLE make_evd(DAT_EVD_FLAGS flags)
{
	DAT_EVD_HANDLE evd;

	OK(dat_evd_create(ia, DEPTH, DAT_HANDLE_NULL, flags, &evd));
	return evd;
}

static DAT_EP_HANDLE make_ep(void)
{
	DAT_EP_ATTR attr = {
		.service_type = DAT_SERVICE_TYPE_RC,
		.max_message_size = MEMORY,
		.max_rdma_size = MEMORY,
		.qos = DAT_QOS_BEST_EFFORT,
		.recv_completion_flags = DAT_COMPLETION_DEFAULT_FLAG,
		.request_completion_flags = DAT_COMPLETION_DEFAULT_FLAG,
		.max_recv_dtos = DEPTH,
		.max_request_dtos = DEPTH,
		.max_recv_iov = 1,
		.max_request_iov = 1,
		.max_rdma_read_in = 1,
		.max_rdma_read_out = 1,
		.max_rdma_read_iov = 1,
		.max_rdma_write_iov = 1,
	};
	DAT_EP_HANDLE ep;

	OK(dat_ep_create(ia, pz, recv_evd, send_evd, connect_evd, &attr, &ep));
	return ep;
}

static void register_memory(void)
{
	DAT_REGION_DESCRIPTION region = { .for_va = memory };
	DAT_LMR_HANDLE lmr;
	DAT_VLEN size;
	DAT_VADDR address;

	OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, MEMORY, pz, DAT_MEM_PRIV_ALL_FLAG,
			  DAT_VA_TYPE_VA, &lmr, &local_key, &remote_key, &size, &address));
}

static DAT_EVENT await(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number)
{
	DAT_EVENT event;
	DAT_COUNT more;

	OK(dat_evd_wait(evd, SOON, 1, &event, &more));
	CHECK(event.event_number == number);
	return event;
}

static void set_up(void)
{
	DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
	DAT_IA_ATTR attr;
	DAT_CONN_QUAL qualifier = 4711;
	DAT_PSP_HANDLE psp;
	DAT_EVENT event;

	OK(dat_ia_open("bench", 8, &async, &ia));
	OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &attr, DAT_PROVIDER_FIELD_NONE, NULL));
	OK(dat_pz_create(ia, &pz));
	connect_evd = make_evd(DAT_EVD_CONNECTION_FLAG);
	cr_evd = make_evd(DAT_EVD_CR_FLAG);
	send_evd = make_evd(DAT_EVD_DTO_FLAG);
	recv_evd = make_evd(DAT_EVD_DTO_FLAG);
	active = make_ep();
	passive = make_ep();
	register_memory();
	OK(dat_psp_create(ia, qualifier, cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	OK(dat_ep_connect(active, attr.ia_address_ptr, qualifier, SOON, 0, NULL,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	event = await(cr_evd, DAT_CONNECTION_REQUEST_EVENT);
	OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, passive, 0, NULL));
	await(connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	await(connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
}

static void tear_down(void)
{
	OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
}

static void check_event(const DAT_EVENT *event, DAT_UINT64 number)
{
	const DAT_DTO_COMPLETION_EVENT_DATA *data = &event->event_data.dto_completion_event_data;

	CHECK(event->event_number == DAT_DTO_COMPLETION_EVENT && data->status == DAT_DTO_SUCCESS &&
	      data->user_cookie.as_64 == number && data->transfered_length == SIZE);
}

static void take(DAT_EVD_HANDLE evd, DAT_UINT64 number)
{
	DAT_EVENT event;

	OK(dat_evd_dequeue(evd, &event));
	check_event(&event, number);
}

/* As programs do: filled just before it is posted. */
static DAT_LMR_TRIPLET segment(void)
{
	return (DAT_LMR_TRIPLET){
		.virtual_address = (uintptr_t)memory,
		.segment_length = SIZE,
		.lmr_context = local_key,
	};
}

static void post_write(DAT_UINT64 number)
{
	DAT_LMR_TRIPLET local = segment();
	DAT_RMR_TRIPLET remote = {
		.virtual_address = (uintptr_t)memory,
		.segment_length = SIZE,
		.rmr_context = remote_key,
	};
	DAT_DTO_COOKIE cookie = { .as_64 = number };

	OK(dat_ep_post_rdma_write(active, 1, &local, cookie, &remote, DAT_COMPLETION_DEFAULT_FLAG));
}

static void run_write(long n)
{
	for (long i = 0; i < n; i++) {
		post_write(i);
		take(send_evd, i);
	}
}

static void run_send(long n)
{
	for (long i = 0; i < n; i++) {
		DAT_LMR_TRIPLET into = segment(), from = segment();
		DAT_DTO_COOKIE cookie = { .as_64 = i };

		OK(dat_ep_post_recv(passive, 1, &into, cookie, DAT_COMPLETION_DEFAULT_FLAG));
		OK(dat_ep_post_send(active, 1, &from, cookie, DAT_COMPLETION_DEFAULT_FLAG));
		take(send_evd, i);
		take(recv_evd, i);
	}
}

static void run_empty(long n)
{
	DAT_EVENT event;

	for (long i = 0; i < n; i++)
		CHECK(DAT_GET_TYPE(dat_evd_dequeue(recv_evd, &event)) == DAT_QUEUE_EMPTY);
}

static void run_wait(long n)
{
	DAT_EVENT event;
	DAT_COUNT more;

	for (long i = 0; i < n; i++) {
		post_write(i);
		OK(dat_evd_wait(send_evd, DAT_TIMEOUT_INFINITE, 1, &event, &more));
		check_event(&event, i);
	}
}

const struct operation operations[] = {
	{ "write", run_write },
	{ "send", run_send },
	{ "empty", run_empty },
	{ "wait", run_wait },
};

int main(int argc, char **argv)
{
	int result;

	set_up();
	result = measure(argc, argv);
	tear_down();
	return result;
}
