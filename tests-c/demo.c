/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "demo.h"

#include <arpa/inet.h>
#include <endian.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct memory *mem;
struct window peer;
DAT_IA_HANDLE ia;
DAT_EP_HANDLE ep;
DAT_EVD_HANDLE recv_evd, request_evd, connect_evd, request_in_evd;
bool blocking;

static DAT_LMR_CONTEXT local_key;
static DAT_RMR_CONTEXT remote_key;

/* --- errors ------------------------------------------------------------------------------- */

void die(const char *fmt, ...)
{
	va_list args;

	fflush(stdout);
	fputs("dat_demo: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

void check(DAT_RETURN ret, const char *call)
{
	const char *major = "?", *minor = "";

	if (ret == DAT_SUCCESS)
		return;
	(void)dat_strerror(ret, &major, &minor);
	die("%s: %s %s (0x%08x)", call, major, minor, (unsigned)ret);
}

/* clang-format off */
const char *event_name(DAT_EVENT_NUMBER number)
{
	switch (number) {
	case DAT_CONNECTION_EVENT_PEER_REJECTED: return "rejected by the peer";
	case DAT_CONNECTION_EVENT_NON_PEER_REJECTED: return "nobody listens there";
	case DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR: return "the client went away";
	case DAT_CONNECTION_EVENT_DISCONNECTED: return "disconnected";
	case DAT_CONNECTION_EVENT_BROKEN: return "broken";
	case DAT_CONNECTION_EVENT_TIMED_OUT: return "timed out";
	case DAT_CONNECTION_EVENT_UNREACHABLE: return "unreachable";
	default: return "unexpected event";
	}
}
/* clang-format on */

/* --- events ------------------------------------------------------------------------------- */

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* The next event of an EVD: polled for, as programs do that want the least latency, or waited
 * for. A connection that ended shows in flushed completions. */
static void next(DAT_EVD_HANDLE evd, DAT_EVENT *event)
{
	DAT_COUNT more;
	DAT_RETURN ret;

	if (blocking) {
		ret = dat_evd_wait(evd, 60 * SECONDS, 1, event, &more);
		check(ret, "dat_evd_wait");
		return;
	}
	while ((ret = dat_evd_dequeue(evd, event)) != DAT_SUCCESS)
		if (DAT_GET_TYPE(ret) != DAT_QUEUE_EMPTY)
			check(ret, "dat_evd_dequeue");
}

uint64_t completion(DAT_EVD_HANDLE evd, const char *what, uint32_t *length)
{
	const DAT_DTO_COMPLETION_EVENT_DATA *dto;
	DAT_EVENT event;

	next(evd, &event);
	if (event.event_number != DAT_DTO_COMPLETION_EVENT)
		die("%s: event 0x%x instead of a completion", what, (unsigned)event.event_number);
	dto = &event.event_data.dto_completion_event_data;
	if (dto->status != DAT_DTO_SUCCESS)
		die("%s ended with status %d%s", what, (int)dto->status,
		    dto->status == DAT_DTO_ERR_FLUSHED ? " (flushed: the peer is gone)" : "");
	if (length)
		*length = (uint32_t)dto->transfered_length;
	return dto->user_cookie.as_64;
}

/* --- operations --------------------------------------------------------------------------- */

static DAT_LMR_TRIPLET segment(const void *addr, size_t length)
{
	DAT_LMR_TRIPLET t = { .lmr_context = local_key,
			      .virtual_address = (uintptr_t)addr,
			      .segment_length = length };
	return t;
}

static DAT_DTO_COOKIE cookie(uint64_t value)
{
	DAT_DTO_COOKIE c = { .as_64 = value };
	return c;
}

void post_recv(uint64_t slot)
{
	DAT_LMR_TRIPLET t = segment(mem->inbox[slot], MAX_SIZE);

	check(dat_ep_post_recv(ep, 1, &t, cookie(slot), DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_recv");
}

void post_send(const void *addr, size_t length)
{
	DAT_LMR_TRIPLET t = segment(addr, length);

	check(dat_ep_post_send(ep, 1, &t, cookie(0), DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_send");
}

void post_write(const void *addr, size_t length, uint64_t target)
{
	DAT_LMR_TRIPLET t = segment(addr, length);
	DAT_RMR_TRIPLET r = { .rmr_context = peer.key,
			      .target_address = target,
			      .segment_length = length };

	check(dat_ep_post_rdma_write(ep, 1, &t, cookie(0), &r, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_rdma_write");
}

void post_read(void *addr, size_t length, uint64_t from)
{
	DAT_LMR_TRIPLET t = segment(addr, length);
	DAT_RMR_TRIPLET r = { .rmr_context = peer.key,
			      .target_address = from,
			      .segment_length = length };

	check(dat_ep_post_rdma_read(ep, 1, &t, cookie(0), &r, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_rdma_read");
}

/* --- set-up ------------------------------------------------------------------------------- */

static DAT_EVD_HANDLE make_evd(DAT_COUNT length, DAT_EVD_FLAGS flags)
{
	DAT_EVD_HANDLE evd;

	check(dat_evd_create(ia, length, DAT_HANDLE_NULL, flags, &evd), "dat_evd_create");
	return evd;
}

void set_up(char *ia_name)
{
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;
	DAT_EP_ATTR attr = { 0 };
	DAT_IA_ATTR limits;
	DAT_REGION_DESCRIPTION region;
	DAT_PZ_HANDLE pz;
	DAT_LMR_HANDLE lmr;
	DAT_VLEN length;
	DAT_VADDR address;
	DAT_RETURN ret = dat_ia_open(ia_name, 8, &async_evd, &ia);

	if (DAT_GET_TYPE(ret) == DAT_PROVIDER_NOT_FOUND)
		die("no interface adapter is called \"%s\"; dat-info lists them", ia_name);
	check(ret, "dat_ia_open");
	check(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &limits, 0, NULL), "dat_ia_query");
	check(dat_pz_create(ia, &pz), "dat_pz_create");

	if (posix_memalign((void **)&mem, 4096, sizeof *mem) != 0)
		die("no memory");
	memset(mem, 0, sizeof *mem);
	region.for_va = mem;
	check(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof *mem, pz,
			     DAT_MEM_PRIV_ALL_FLAG, &lmr, &local_key, &remote_key, &length,
			     &address),
	      "dat_lmr_create");

	recv_evd = make_evd(QUEUE, DAT_EVD_DTO_FLAG);
	request_evd = make_evd(QUEUE, DAT_EVD_DTO_FLAG);
	connect_evd = make_evd(4, DAT_EVD_CONNECTION_FLAG);
	request_in_evd = make_evd(4, DAT_EVD_CR_FLAG);

	attr.service_type = DAT_SERVICE_TYPE_RC;
	attr.max_message_size = MAX_SIZE;
	attr.max_rdma_size = MAX_SIZE;
	attr.qos = DAT_QOS_BEST_EFFORT;
	attr.max_recv_dtos = QUEUE;
	attr.max_request_dtos = QUEUE;
	attr.max_recv_iov = 1;
	attr.max_request_iov = 1;
	attr.max_rdma_read_in =
		limits.max_rdma_read_per_ep_in < READS ? limits.max_rdma_read_per_ep_in : READS;
	attr.max_rdma_read_out =
		limits.max_rdma_read_per_ep_out < READS ? limits.max_rdma_read_per_ep_out : READS;
	attr.max_rdma_read_iov = 1;
	attr.max_rdma_write_iov = 1;
	check(dat_ep_create(ia, pz, recv_evd, request_evd, connect_evd, &attr, &ep),
	      "dat_ep_create");
	for (uint64_t slot = 0; slot < WINDOW; slot++)
		post_recv(slot);
}

struct window our_window(void)
{
	struct window w = { .landing = htobe64((uintptr_t)mem->landing),
			    .source = htobe64((uintptr_t)mem->source),
			    .key = htonl(remote_key),
			    .pad = 0 };
	return w;
}

void learn_window(const void *data, DAT_COUNT size)
{
	/* Some transports pad private data. */
	if (size < (DAT_COUNT)sizeof peer || data == NULL)
		die("the peer is not a dat_demo: %d bytes of private data", (int)size);
	memcpy(&peer, data, sizeof peer);
	peer.landing = be64toh(peer.landing);
	peer.source = be64toh(peer.source);
	peer.key = ntohl(peer.key);
}

void await_connection(DAT_EVENT *event)
{
	DAT_COUNT more;

	check(dat_evd_wait(connect_evd, 30 * SECONDS, 1, event, &more), "dat_evd_wait");
	if (event->event_number != DAT_CONNECTION_EVENT_ESTABLISHED)
		die("no connection: %s", event_name(event->event_number));
}

void tear_down(void)
{
	DAT_EVENT event;
	DAT_COUNT more;

	(void)dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG);
	check(dat_evd_wait(connect_evd, 10 * SECONDS, 1, &event, &more), "dat_evd_wait");
	check(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG), "dat_ia_close");
	free(mem);
}
