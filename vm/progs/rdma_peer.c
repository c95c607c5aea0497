/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* peer.h on librdmacm alone, in its synchronous manner: what a program looks like that knows
 * nothing of DAT. WHERE is the local address. */
#include "peer.h"

#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *local;
static struct rdma_cm_id *listener, *id;
static struct ibv_mr *region;
static bool over;

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void open_device(const char *where)
{
	local = where;
}

static struct ibv_qp_init_attr qp_attr(void)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };

	attr.cap.max_send_wr = attr.cap.max_recv_wr = DEPTH;
	attr.cap.max_send_sge = 2;
	attr.cap.max_recv_sge = 1;
	return attr;
}

static struct rdma_cm_id *make_id(const char *host, uint16_t port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;
	struct rdma_addrinfo *source = NULL;
	struct ibv_qp_init_attr attr = qp_attr();
	struct rdma_cm_id *made;
	char service[8];

	snprintf(service, sizeof service, "%u", port);
	if (!(flags & RAI_PASSIVE)) {
		struct rdma_addrinfo here = { .ai_flags = RAI_PASSIVE,
					      .ai_port_space = RDMA_PS_TCP };

		if (rdma_getaddrinfo(local, NULL, &here, &source))
			die("rdma_getaddrinfo %s: %s", local, strerror(errno));
		hints.ai_src_addr = source->ai_src_addr;
		hints.ai_src_len = source->ai_src_len;
	}
	if (rdma_getaddrinfo(host, service, &hints, &found))
		die("rdma_getaddrinfo %s: %s", host, strerror(errno));
	if (rdma_create_ep(&made, found, NULL, &attr))
		die("rdma_create_ep: %s", strerror(errno));
	rdma_freeaddrinfo(found);
	if (source)
		rdma_freeaddrinfo(source);
	return made;
}

/* --- connecting --------------------------------------------------------------------------- */

void listen_on(uint16_t port)
{
	listener = make_id(local, port, RAI_PASSIVE);
	if (rdma_listen(listener, 4))
		die("rdma_listen: %s", strerror(errno));
}

static size_t take_private_data(void *to, size_t room)
{
	size_t length = 0;

	if (id->event && id->event->param.conn.private_data) {
		length = id->event->param.conn.private_data_len;
		if (length > room)
			length = room;
		memcpy(to, id->event->param.conn.private_data, length);
	}
	return length;
}

size_t get_request(void *private_data, size_t room)
{
	if (rdma_get_request(listener, &id))
		die("rdma_get_request: %s", strerror(errno));
	return take_private_data(private_data, room);
}

struct window make_endpoint(const char *host, uint16_t port, void *memory, size_t length)
{
	if (host)
		id = make_id(host, port, 0);
	region = ibv_reg_mr(id->pd, memory, length,
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
				    IBV_ACCESS_REMOTE_WRITE);
	if (!region)
		die("ibv_reg_mr: %s", strerror(errno));
	return (struct window){ (uintptr_t)memory, region->rkey, (uint32_t)length };
}

static struct rdma_conn_param conn_param(const void *private_data, size_t length)
{
	struct rdma_conn_param param = { .private_data = private_data,
					 .private_data_len = (uint8_t)length,
					 .responder_resources = READ_DEPTH,
					 .initiator_depth = READ_DEPTH,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };

	return param;
}

void accept_request(const void *private_data, size_t length)
{
	struct rdma_conn_param param = conn_param(private_data, length);

	if (rdma_accept(id, &param))
		die("rdma_accept: %s", strerror(errno));
}

void reject_request(const void *private_data, size_t length)
{
	if (rdma_reject(id, private_data, (uint8_t)length))
		die("rdma_reject: %s", strerror(errno));
}

enum answer connect_endpoint(const void *private_data, size_t length, void *answer, size_t room,
			     size_t *answer_length)
{
	struct rdma_conn_param param = conn_param(private_data, length);
	int status = rdma_connect(id, &param);

	*answer_length = take_private_data(answer, room);
	if (!status)
		return ACCEPTED;
	printf("%s, event %s\n", strerror(errno),
	       id->event ? rdma_event_str(id->event->event) : "none");
	return id->event && id->event->event == RDMA_CM_EVENT_REJECTED ? REJECTED : UNREACHABLE;
}

void disconnect(void)
{
	/* In the synchronous manner it waits for the event, and takes it. */
	if (!over && rdma_disconnect(id) == 0)
		over = true;
}

bool flushes_all(void)
{
	return id->verbs->device->transport_type != IBV_TRANSPORT_IWARP;
}

bool disconnected(int milliseconds)
{
	int64_t end = now_ms() + milliseconds;
	struct rdma_cm_event *event;

	while (!over) {
		struct pollfd ready = { .fd = id->channel->fd, .events = POLLIN };
		int64_t left = end - now_ms();

		if (left <= 0 || poll(&ready, 1, (int)left) <= 0)
			return false;
		if (rdma_get_cm_event(id->channel, &event))
			die("rdma_get_cm_event: %s", strerror(errno));
		over = event->event == RDMA_CM_EVENT_DISCONNECTED;
		rdma_ack_cm_event(event);
	}
	/* A queue pair flushes in the error state, which InfiniBand's does not enter by itself. */
	(void)ibv_modify_qp(id->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE);
	return true;
}

void close_device(void)
{
	/* The listener last: its request is an event that the id holds. */
	if (id)
		rdma_destroy_ep(id);
	if (listener)
		rdma_destroy_ep(listener);
}

/* --- data --------------------------------------------------------------------------------- */

static void *context(enum kind kind)
{
	return (void *)(uintptr_t)kind;
}

static unsigned segments(struct ibv_sge *to, const void *from, uint32_t length, bool split)
{
	uint32_t first = split ? length / 3 : length;

	to[0] = (struct ibv_sge){ (uintptr_t)from, first, region->lkey };
	to[1] = (struct ibv_sge){ (uintptr_t)from + first, length - first, region->lkey };
	return split ? 2 : 1;
}

void post_receive(void *at, uint32_t length)
{
	if (rdma_post_recv(id, context(RECEIVE), at, length, region))
		die("rdma_post_recv: %s", strerror(errno));
}

void post_send(const void *from, uint32_t length, bool split)
{
	struct ibv_sge sge[2];
	unsigned count = segments(sge, from, length, split);

	if (rdma_post_sendv(id, context(SEND), sge, (int)count, 0))
		die("rdma_post_sendv: %s", strerror(errno));
}

void post_write(const void *from, uint32_t length, uint64_t to, uint32_t key, bool split)
{
	struct ibv_sge sge[2];
	unsigned count = segments(sge, from, length, split);

	if (rdma_post_writev(id, context(WRITE), sge, (int)count, 0, to, key))
		die("rdma_post_writev: %s", strerror(errno));
}

void post_read(void *at, uint32_t length, uint64_t from, uint32_t key)
{
	if (rdma_post_read(id, context(READ), at, length, region, 0, from, key))
		die("rdma_post_read: %s", strerror(errno));
}

bool next_completion(struct completion *completion, int milliseconds)
{
	int64_t end = now_ms() + milliseconds;
	struct timespec nap = { 0, 200000 };
	struct ibv_wc wc;

	while (ibv_poll_cq(id->send_cq, 1, &wc) < 1 && ibv_poll_cq(id->recv_cq, 1, &wc) < 1) {
		if (now_ms() > end)
			return false;
		nanosleep(&nap, NULL);
	}
	completion->kind = (enum kind)wc.wr_id;
	completion->length = wc.byte_len;
	completion->outcome = wc.status == IBV_WC_SUCCESS      ? DONE :
			      wc.status == IBV_WC_WR_FLUSH_ERR ? FLUSHED :
								 FAILED;
	if (completion->outcome == FAILED)
		printf("status %d\n", wc.status);
	return true;
}
