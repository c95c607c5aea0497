/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* peer.h on uDAPL 2.0. WHERE is the name of the IA. */
#include "peer.h"

#include <dat2/udat.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* DAT_IB_DTO_EVENT of OpenFabrics' extensions. */
#define IB_EXTENSION_EVENT 0x40000

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;
static DAT_EVD_HANDLE async_evd, dto_evd, connection_evd, request_evd;
static DAT_PSP_HANDLE psp;
static DAT_CR_HANDLE request;
static DAT_EP_HANDLE ep;
static DAT_LMR_CONTEXT context;
static DAT_IA_ATTR limits;
static DAT_PROVIDER_ATTR provider;
static struct sockaddr_storage remote;
static uint16_t remote_port;
static bool over;

static void check(const char *call, DAT_RETURN code)
{
	const char *major = "?", *minor = "?";

	if (code == DAT_SUCCESS)
		return;
	(void)dat_strerror(code, &major, &minor);
	die("%s: %#x %s %s", call, (unsigned)code, major, minor);
}
#define OK(call) check(#call, call)

static DAT_EVD_HANDLE make_evd(DAT_EVD_FLAGS flags)
{
	DAT_EVD_HANDLE evd;

	OK(dat_evd_create(ia, 4 * DEPTH, DAT_HANDLE_NULL, flags, &evd));
	return evd;
}

void open_device(const char *where)
{
	OK(dat_ia_open((DAT_NAME_PTR)(uintptr_t)where, 8, &async_evd, &ia));
	OK(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &limits, DAT_PROVIDER_FIELD_ALL, &provider));
	OK(dat_pz_create(ia, &pz));
	dto_evd = make_evd(DAT_EVD_DTO_FLAG);
	connection_evd = make_evd(DAT_EVD_CONNECTION_FLAG);
	request_evd = make_evd(DAT_EVD_CR_FLAG);
}

void close_device(void)
{
	OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
}

/* --- connecting --------------------------------------------------------------------------- */

/* PEER_SLICE is set for libraries in which a wait may sleep on although its event has come: to
 * so many milliseconds, after which we wait anew. */
static bool wait_for(DAT_EVD_HANDLE evd, DAT_EVENT *event, int milliseconds)
{
	const char *text = getenv("PEER_SLICE");
	int slice = text ? atoi(text) : milliseconds;

	for (int left = milliseconds; left > 0; left -= slice) {
		DAT_COUNT more;
		DAT_RETURN code = dat_evd_wait(evd, (DAT_TIMEOUT)slice * 1000, 1, event, &more);

		if (DAT_GET_TYPE(code) != DAT_TIMEOUT_EXPIRED) {
			check("dat_evd_wait", code);
			return true;
		}
	}
	return false;
}

void listen_on(uint16_t port)
{
	OK(dat_psp_create(ia, port, request_evd, DAT_PSP_CONSUMER_FLAG, &psp));
}

static size_t take(void *to, size_t room, const void *from, DAT_COUNT length)
{
	size_t size = length < 0 ? 0 : (size_t)length;

	if (size > room)
		size = room;
	if (size > 0)
		memcpy(to, from, size);
	return size;
}

size_t get_request(void *private_data, size_t room)
{
	DAT_EVENT event;
	DAT_CR_PARAM param;

	if (!wait_for(request_evd, &event, PATIENCE))
		die("no connection request");
	request = event.event_data.cr_arrival_event_data.cr_handle;
	OK(dat_cr_query(request, DAT_CR_FIELD_ALL, &param));
	return take(private_data, room, param.private_data, param.private_data_size);
}

struct window make_endpoint(const char *host, uint16_t port, void *memory, size_t length)
{
	DAT_REGION_DESCRIPTION region = { .for_va = memory };
	DAT_LMR_HANDLE lmr;
	DAT_RMR_CONTEXT key;
	DAT_VLEN registered;
	DAT_VADDR address;
	DAT_EP_ATTR attr;

	memset(&attr, 0, sizeof attr);
	attr.service_type = DAT_SERVICE_TYPE_RC;
	attr.max_message_size = attr.max_rdma_size = 1 << 20;
	attr.qos = DAT_QOS_BEST_EFFORT;
	attr.recv_completion_flags = attr.request_completion_flags = DAT_COMPLETION_DEFAULT_FLAG;
	attr.max_recv_dtos = attr.max_request_dtos = DEPTH;
	attr.max_recv_iov = 1;
	attr.max_request_iov = attr.max_rdma_write_iov = 2;
	attr.max_rdma_read_iov = 1;
	attr.max_rdma_read_in = attr.max_rdma_read_out = READ_DEPTH;
	OK(dat_ep_create(ia, pz, dto_evd, dto_evd, connection_evd, &attr, &ep));
	OK(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, length, pz, DAT_MEM_PRIV_ALL_FLAG,
			  DAT_VA_TYPE_VA, &lmr, &context, &key, &registered, &address));
	if (host) {
		struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;

		if (getaddrinfo(host, NULL, &hints, &found))
			die("no host %s", host);
		memcpy(&remote, found->ai_addr, found->ai_addrlen);
		freeaddrinfo(found);
		remote_port = port;
	}
	return (struct window){ address, key, (uint32_t)length };
}

/* Waits for the outcome of connecting. */
static DAT_EVENT_NUMBER outcome(DAT_EVENT *event)
{
	if (!wait_for(connection_evd, event, PATIENCE))
		die("no connection event");
	return event->event_number;
}

void accept_request(const void *private_data, size_t length)
{
	DAT_EVENT event;

	OK(dat_cr_accept(request, ep, (DAT_COUNT)length, (DAT_PVOID)(uintptr_t)private_data));
	if (outcome(&event) != DAT_CONNECTION_EVENT_ESTABLISHED)
		die("connection event %#x after accept", (unsigned)event.event_number);
}

void reject_request(const void *private_data, size_t length)
{
	OK(dat_cr_reject(request, (DAT_COUNT)length, (DAT_PVOID)(uintptr_t)private_data));
}

enum answer connect_endpoint(const void *private_data, size_t length, void *answer, size_t room,
			     size_t *answer_length)
{
	DAT_CONNECTION_EVENT_DATA *data;
	DAT_EVENT event;
	DAT_EVENT_NUMBER number;

	OK(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&remote, remote_port, PATIENCE * 1000,
			  (DAT_COUNT)length, (DAT_PVOID)(uintptr_t)private_data,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	number = outcome(&event);
	data = &event.event_data.connect_event_data;
	*answer_length = take(answer, room, data->private_data, data->private_data_size);
	switch (number) {
	case DAT_CONNECTION_EVENT_ESTABLISHED:
		return ACCEPTED;
	case DAT_CONNECTION_EVENT_PEER_REJECTED:
	case DAT_CONNECTION_EVENT_NON_PEER_REJECTED:
		return REJECTED;
	default:
		printf("connection event %#x\n", (unsigned)number);
		return UNREACHABLE;
	}
}

void disconnect(void)
{
	OK(dat_ep_disconnect(ep, DAT_CLOSE_ABRUPT_FLAG));
}

bool flushes_all(void)
{
	return strncmp(provider.provider_name, "libdat", 6) == 0;
}

bool disconnected(int milliseconds)
{
	DAT_EVENT event;

	if (!over) {
		if (!wait_for(connection_evd, &event, milliseconds))
			return false;
		if (event.event_number != DAT_CONNECTION_EVENT_DISCONNECTED &&
		    event.event_number != DAT_CONNECTION_EVENT_BROKEN)
			die("connection event %#x", (unsigned)event.event_number);
		over = true;
	}
	return true;
}

/* --- data --------------------------------------------------------------------------------- */

static DAT_COUNT segments(DAT_LMR_TRIPLET *to, const void *from, uint32_t length, bool split)
{
	uint32_t first = split ? length / 3 : length;

	memset(to, 0, 2 * sizeof *to);
	to[0].lmr_context = to[1].lmr_context = context;
	to[0].virtual_address = (uintptr_t)from;
	to[0].segment_length = first;
	to[1].virtual_address = (uintptr_t)from + first;
	to[1].segment_length = length - first;
	return split ? 2 : 1;
}

static DAT_RMR_TRIPLET target(uint64_t address, uint32_t key, uint32_t length)
{
	DAT_RMR_TRIPLET there;

	memset(&there, 0, sizeof there);
	there.rmr_context = key;
	there.virtual_address = address;
	there.segment_length = length;
	return there;
}

static DAT_DTO_COOKIE cookie(enum kind kind)
{
	DAT_DTO_COOKIE cookie = { .as_64 = kind };

	return cookie;
}

void post_receive(void *at, uint32_t length)
{
	DAT_LMR_TRIPLET here[2];

	OK(dat_ep_post_recv(ep, segments(here, at, length, false), here, cookie(RECEIVE),
			    DAT_COMPLETION_DEFAULT_FLAG));
}

void post_send(const void *from, uint32_t length, bool split)
{
	DAT_LMR_TRIPLET here[2];

	OK(dat_ep_post_send(ep, segments(here, from, length, split), here, cookie(SEND),
			    DAT_COMPLETION_DEFAULT_FLAG));
}

void post_write(const void *from, uint32_t length, uint64_t to, uint32_t key, bool split)
{
	DAT_LMR_TRIPLET here[2];
	DAT_RMR_TRIPLET there = target(to, key, length);

	OK(dat_ep_post_rdma_write(ep, segments(here, from, length, split), here, cookie(WRITE),
				  &there, DAT_COMPLETION_DEFAULT_FLAG));
}

void post_read(void *at, uint32_t length, uint64_t from, uint32_t key)
{
	DAT_LMR_TRIPLET here[2];
	DAT_RMR_TRIPLET there = target(from, key, length);

	OK(dat_ep_post_rdma_read(ep, segments(here, at, length, false), here, cookie(READ), &there,
				 DAT_COMPLETION_DEFAULT_FLAG));
}

bool next_completion(struct completion *completion, int milliseconds)
{
	DAT_DTO_COMPLETION_EVENT_DATA *data;
	DAT_EVENT event;

	if (!wait_for(dto_evd, &event, milliseconds))
		return false;
	/* rxe leaves the flags of a flushed completion as they were, and OpenFabrics' library then
	 * takes it for one with immediate data: another number, the same contents. */
	if (event.event_number != DAT_DTO_COMPLETION_EVENT &&
	    event.event_number != IB_EXTENSION_EVENT)
		die("event %#x", (unsigned)event.event_number);
	data = &event.event_data.dto_completion_event_data;
	completion->kind = (enum kind)data->user_cookie.as_64;
	completion->length = (uint32_t)data->transfered_length;
	completion->outcome = data->status == DAT_DTO_SUCCESS	  ? DONE :
			      data->status == DAT_DTO_ERR_FLUSHED ? FLUSHED :
								    FAILED;
	if (completion->outcome == FAILED)
		printf("status %u\n", (unsigned)data->status);
	return true;
}
