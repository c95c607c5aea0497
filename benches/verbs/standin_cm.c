/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * librdmacm.so.1 for the device of standin_verbs.c: every address leads to it, and connections
 * are made within the process. Events travel as pointers through a pipe.
 *
 * Identifiers are never given back: an event may still be on its way to one.
 */
#include "standin.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct event_channel {
	struct rdma_event_channel base;
	int write_end;
};

struct id {
	struct rdma_cm_id base;
	struct id *peer;
	uint32_t qp_num;
	uint32_t peer_qp_num;
	/* RDMA reads that may be outstanding. */
	uint8_t reads;
	bool listens, connected, gone;
	/* The peer has not answered the request, as a test wants it. */
	bool asks;
	struct id *next;
};

struct event {
	struct rdma_cm_event base;
	unsigned char data[256];
};

static struct id *ids;
static uint16_t last_port = 20000;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int fail(int error)
{
	errno = error;
	return -1;
}

static struct ibv_context *context(void)
{
	static struct ibv_context *context;
	int count;

	if (!context)
		context = ibv_open_device(ibv_get_device_list(&count)[0]);
	return context;
}

static uint16_t *port_of(struct sockaddr *address)
{
	return address->sa_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port :
						&((struct sockaddr_in *)address)->sin_port;
}

static void copy_address(void *to, const struct sockaddr *from)
{
	size_t size = from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) :
						    sizeof(struct sockaddr_in);

	memcpy(to, from, size);
}

/* --- events ------------------------------------------------------------------------------- */

static void tell(struct id *id, struct id *listener, enum rdma_cm_event_type type, int status,
		 const struct rdma_conn_param *param)
{
	struct event *event = calloc(1, sizeof *event);
	struct event_channel *channel = (struct event_channel *)id->base.channel;

	if (!event)
		abort();
	event->base.id = &id->base;
	event->base.listen_id = listener ? &listener->base : NULL;
	event->base.event = type;
	event->base.status = status;
	if (param) {
		struct rdma_conn_param *conn = &event->base.param.conn;

		*conn = *param;
		/* What one side initiates the other responds to. */
		conn->responder_resources = param->initiator_depth;
		conn->initiator_depth = param->responder_resources;
		conn->private_data = NULL;
		if (param->private_data_len) {
			memcpy(event->data, param->private_data, param->private_data_len);
			conn->private_data = event->data;
		}
	}
	if (write(channel->write_end, &event, sizeof event) < 0)
		abort();
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct event_channel *channel = calloc(1, sizeof *channel);
	int ends[2];

	if (!channel || pipe2(ends, O_CLOEXEC)) {
		free(channel);
		return NULL;
	}
	channel->base.fd = ends[0];
	channel->write_end = ends[1];
	return &channel->base;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	close(channel->fd);
	close(((struct event_channel *)channel)->write_end);
	free(channel);
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **out)
{
	struct event *event;

	for (;;) {
		if (read(channel->fd, &event, sizeof event) != sizeof event)
			return -1;
		if (!((struct id *)event->base.id)->gone)
			break;
		free(event);
	}
	*out = &event->base;
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	free(event);
	return 0;
}

/* --- identifiers -------------------------------------------------------------------------- */

static struct id *make_id(struct rdma_event_channel *channel, void *user, enum rdma_port_space ps)
{
	struct id *id = calloc(1, sizeof *id);

	if (!id)
		abort();
	id->base.channel = channel;
	id->base.context = user;
	id->base.ps = ps;
	id->base.qp_type = IBV_QPT_RC;
	pthread_mutex_lock(&lock);
	id->next = ids;
	ids = id;
	pthread_mutex_unlock(&lock);
	return id;
}

/* Any address will do. */
static void place(struct id *id)
{
	id->base.verbs = context();
	id->base.port_num = 1;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *user,
		   enum rdma_port_space ps)
{
	int error = at("create_id");

	if (error)
		return fail(error);
	*out = &make_id(channel, user, ps)->base;
	return 0;
}

int rdma_destroy_id(struct rdma_cm_id *cm_id)
{
	struct id *id = (struct id *)cm_id;

	/* The kernel would wait for the answer of the peer. */
	if (id->asks)
		at("blocks");
	rdma_disconnect(cm_id);
	id->gone = true;
	id->listens = false;
	if (id->peer)
		id->peer->peer = NULL;
	return 0;
}

static struct id *listener_at(uint16_t port)
{
	struct id *id;

	pthread_mutex_lock(&lock);
	for (id = ids; id; id = id->next)
		if (id->listens && *port_of(&id->base.route.addr.src_addr) == port)
			break;
	pthread_mutex_unlock(&lock);
	return id;
}

int rdma_bind_addr(struct rdma_cm_id *cm_id, struct sockaddr *address)
{
	struct id *id = (struct id *)cm_id;
	uint16_t *port;

	if (*port_of(address) && listener_at(*port_of(address)))
		return fail(EADDRINUSE);
	copy_address(&cm_id->route.addr.src_storage, address);
	port = port_of(&cm_id->route.addr.src_addr);
	if (!*port)
		*port = htons(last_port++);
	place(id);
	return 0;
}

int rdma_listen(struct rdma_cm_id *cm_id, int backlog)
{
	(void)backlog;
	if (listener_at(*port_of(&cm_id->route.addr.src_addr)))
		return fail(EADDRINUSE);
	((struct id *)cm_id)->listens = true;
	return 0;
}

__be16 rdma_get_src_port(struct rdma_cm_id *cm_id)
{
	return *port_of(&cm_id->route.addr.src_addr);
}

__be16 rdma_get_dst_port(struct rdma_cm_id *cm_id)
{
	return *port_of(&cm_id->route.addr.dst_addr);
}

int rdma_set_option(struct rdma_cm_id *cm_id, int level, int name, void *value, size_t size)
{
	(void)cm_id;
	(void)level;
	(void)name;
	(void)value;
	(void)size;
	return 0;
}

int rdma_resolve_addr(struct rdma_cm_id *cm_id, struct sockaddr *src, struct sockaddr *dst,
		      int timeout)
{
	struct id *id = (struct id *)cm_id;

	(void)timeout;
	if (src)
		copy_address(&cm_id->route.addr.src_storage, src);
	else if (!cm_id->verbs)
		copy_address(&cm_id->route.addr.src_storage, dst);
	copy_address(&cm_id->route.addr.dst_storage, dst);
	place(id);
	tell(id, NULL, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL);
	return 0;
}

/* The library has a lock here for the whole process, under which it asks a daemon for the route. */
int rdma_resolve_route(struct rdma_cm_id *cm_id, int timeout)
{
	static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

	(void)timeout;
	pthread_mutex_lock(&asking);
	at("resolve_route");
	pthread_mutex_unlock(&asking);
	tell((struct id *)cm_id, NULL, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL);
	return 0;
}

/* --- queue pairs -------------------------------------------------------------------------- */

static bool is_iwarp(struct rdma_cm_id *cm_id)
{
	return cm_id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
}

int rdma_init_qp_attr(struct rdma_cm_id *cm_id, struct ibv_qp_attr *attr, int *mask)
{
	*mask = IBV_QP_STATE;
	/* Those that the kernel changes itself. */
	if (is_iwarp(cm_id) && attr->qp_state != IBV_QPS_INIT) {
		*mask = 0;
		return 0;
	}
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		attr->port_num = 1;
		*mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
		break;
	case IBV_QPS_RTR:
		attr->dest_qp_num = ((struct id *)cm_id)->peer_qp_num;
		*mask |= IBV_QP_DEST_QPN;
		break;
	case IBV_QPS_RTS:
		attr->max_rd_atomic = ((struct id *)cm_id)->reads;
		*mask |= IBV_QP_MAX_QP_RD_ATOMIC;
		break;
	default:
		break;
	}
	return 0;
}

static int advance(struct rdma_cm_id *cm_id, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int mask;

	rdma_init_qp_attr(cm_id, &attr, &mask);
	return ibv_modify_qp(cm_id->qp, &attr, mask);
}

static int make_ready(struct rdma_cm_id *cm_id)
{
	int error = advance(cm_id, IBV_QPS_RTR);

	return error ? error : advance(cm_id, IBV_QPS_RTS);
}

int rdma_create_qp(struct rdma_cm_id *cm_id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	cm_id->qp = ibv_create_qp(pd, attr);
	if (!cm_id->qp)
		return -1;
	cm_id->pd = pd;
	return advance(cm_id, IBV_QPS_INIT);
}

void rdma_destroy_qp(struct rdma_cm_id *cm_id)
{
	if (cm_id->qp)
		ibv_destroy_qp(cm_id->qp);
	cm_id->qp = NULL;
}

/* --- connections -------------------------------------------------------------------------- */

static uint32_t number(struct rdma_cm_id *cm_id, const struct rdma_conn_param *param)
{
	return cm_id->qp ? cm_id->qp->qp_num : param->qp_num;
}

int rdma_connect(struct rdma_cm_id *cm_id, struct rdma_conn_param *param)
{
	struct id *id = (struct id *)cm_id, *listener, *other;

	id->qp_num = number(cm_id, param);
	id->reads = param->initiator_depth;
	id->asks = at("connect");
	if (id->asks)
		return 0;
	/* A question about datagrams has its answer without a listener. */
	if (cm_id->ps == RDMA_PS_UDP) {
		tell(id, NULL, RDMA_CM_EVENT_ESTABLISHED, 0, NULL);
		return 0;
	}
	listener = listener_at(rdma_get_dst_port(cm_id));
	if (!listener) {
		tell(id, NULL, RDMA_CM_EVENT_REJECTED, 8 /* no such service */, NULL);
		return 0;
	}
	other = make_id(listener->base.channel, listener->base.context, listener->base.ps);
	place(other);
	other->base.route.addr.src_storage = cm_id->route.addr.dst_storage;
	other->base.route.addr.dst_storage = cm_id->route.addr.src_storage;
	other->peer = id;
	other->peer_qp_num = id->qp_num;
	id->peer = other;
	tell(other, listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0, param);
	return 0;
}

/* The limit of the kernel has passed for each request without an answer. */
void rdma_standin_time_out(void)
{
	for (struct id *id = ids; id; id = id->next)
		if (id->asks) {
			id->asks = false;
			tell(id, NULL, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, NULL);
		}
}

static void established(struct id *id, struct rdma_conn_param *param)
{
	id->connected = true;
	tell(id, NULL, RDMA_CM_EVENT_ESTABLISHED, 0, param);
}

int rdma_accept(struct rdma_cm_id *cm_id, struct rdma_conn_param *param)
{
	struct id *id = (struct id *)cm_id, *peer = id->peer;

	if (!peer)
		return fail(ECONNRESET);
	id->qp_num = number(cm_id, param);
	peer->peer_qp_num = id->qp_num;
	id->reads = param->initiator_depth;
	if (peer->reads > param->responder_resources)
		peer->reads = param->responder_resources;
	if (is_iwarp(cm_id)) {
		if (ibv_standin_connect_queue_pairs(id->qp_num, peer->qp_num))
			return fail(EINVAL);
		established(id, NULL);
		established(peer, param);
		return 0;
	}
	if (cm_id->qp && make_ready(cm_id))
		return fail(EINVAL);
	if (!peer->base.qp) {
		/* The program takes its queue pair to RTS itself, then calls rdma_establish. */
		tell(peer, NULL, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, param);
		return 0;
	}
	if (make_ready(&peer->base))
		return fail(EINVAL);
	established(id, NULL);
	established(peer, param);
	return 0;
}

int rdma_establish(struct rdma_cm_id *cm_id)
{
	struct id *id = (struct id *)cm_id;

	if (!id->peer)
		return fail(ECONNRESET);
	id->connected = true;
	if (!at("establish"))
		established(id->peer, NULL);
	return 0;
}

static int reject(struct rdma_cm_id *cm_id, const void *data, uint8_t size, int reason)
{
	struct rdma_conn_param param = { .private_data = data, .private_data_len = size };
	struct id *peer = ((struct id *)cm_id)->peer;

	if (peer)
		tell(peer, NULL, RDMA_CM_EVENT_REJECTED, reason, &param);
	return 0;
}

int rdma_reject(struct rdma_cm_id *cm_id, const void *data, uint8_t size)
{
	return reject(cm_id, data, size, 28 /* by the consumer */);
}

int rdma_reject_ece(struct rdma_cm_id *cm_id, const void *data, uint8_t size)
{
	return reject(cm_id, data, size, 35 /* vendor option not supported */);
}

static void end(struct id *id)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (!id || !id->connected)
		return;
	id->connected = false;
	if (id->base.qp)
		ibv_modify_qp(id->base.qp, &attr, IBV_QP_STATE);
	tell(id, NULL, RDMA_CM_EVENT_DISCONNECTED, 0, NULL);
}

int rdma_disconnect(struct rdma_cm_id *cm_id)
{
	if (ibv_standin_failed)
		return fail(EIO);
	end((struct id *)cm_id);
	end(((struct id *)cm_id)->peer);
	return 0;
}

/* A message has arrived: the peer has established the connection, though its last message is lost. */
int rdma_notify(struct rdma_cm_id *cm_id, enum ibv_event_type event)
{
	struct id *id = (struct id *)cm_id;

	if (event == IBV_EVENT_COMM_EST && !id->connected && id->peer && id->peer->connected)
		established(id, NULL);
	return 0;
}
