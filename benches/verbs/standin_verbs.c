/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libibverbs.so.1 with one device, "standin0", that does nothing: a request is complete when it
 * is posted. No byte moves, nothing is checked but whether registered memory can be written, and
 * posts and polls make no system call. What a post and a poll cost on it is what the layers above
 * them cost.
 *
 * A queue pair knows its peer, in the same process, by the number that it gets on the way to
 * RTR. A send takes the peer's oldest receive; without one the send is lost.
 *
 * One thread at a time posts and polls. Queue pairs and what is posted to them are in
 * standin_qp.c.
 */
#include "standin.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

static struct ibv_device device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
	.name = "standin0",
	.dev_name = "uverbs0",
};

static uint32_t next_key(void)
{
	static _Atomic uint32_t key = 1;

	return ++key << 8;
}

bool standin_is(const char *kind)
{
	const char *is = getenv("STANDIN_DEVICE");

	return is && !strcmp(is, kind);
}

int (*_Atomic ibv_standin_at)(const char *point);
_Atomic bool ibv_standin_failed;
_Atomic int ibv_standin_objects;

/* Where events are written. */
static struct source {
	int *write_end;
	bool is_async;
} sources[64];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add_source(int *write_end, bool is_async)
{
	int i = 0;

	pthread_mutex_lock(&lock);
	while (sources[i].write_end)
		if (++i == sizeof sources / sizeof *sources)
			abort();
	sources[i] = (struct source){ write_end, is_async };
	pthread_mutex_unlock(&lock);
}

static void close_source(int *write_end)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
		if (sources[i].write_end == write_end)
			sources[i].write_end = NULL;
	if (*write_end >= 0)
		close(*write_end);
	pthread_mutex_unlock(&lock);
}

void ibv_standin_fail(void)
{
	struct ibv_async_event event = { .event_type = IBV_EVENT_DEVICE_FATAL };

	ibv_standin_failed = true;
	standin_stop_queue_pairs();
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
		if (!sources[i].write_end)
			continue;
		if (sources[i].is_async && write(*sources[i].write_end, &event, sizeof event) < 0)
			abort();
		close(*sources[i].write_end);
		*sources[i].write_end = -1;
	}
	pthread_mutex_unlock(&lock);
}

void standin_report(struct ibv_context *context, enum ibv_event_type type, void *element)
{
	struct ibv_async_event event = { .event_type = type, .element.qp = element };

	if (write(((struct context *)context)->async_write_end, &event, sizeof event) < 0)
		abort();
}

void standin_report_port(enum ibv_event_type type, int port)
{
	struct ibv_async_event event = { .event_type = type };

	/* The kernel leaves the rest of the place undefined. */
	memset(&event.element, 0xff, sizeof event.element);
	event.element.port_num = port;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
		if (sources[i].write_end && sources[i].is_async &&
		    write(*sources[i].write_end, &event, sizeof event) < 0)
			abort();
	pthread_mutex_unlock(&lock);
}

void standin_tell(struct cq *cq)
{
	cq->armed = false;
	if (cq->base.channel && !ibv_standin_failed) {
		struct channel *channel = (struct channel *)cq->base.channel;
		struct ibv_cq *which = &cq->base;

		if (write(channel->write_end, &which, sizeof which) < 0)
			abort();
	}
}

static int poll_cq(struct ibv_cq *ibcq, int count, struct ibv_wc *wc)
{
	struct cq *cq = (struct cq *)ibcq;
	int n = 0;

	/* Member by member, as drivers do: a copy of the whole would wait for the members that
	 * complete() has just written. */
	for (; n < count && cq->head != __atomic_load_n(&cq->tail, __ATOMIC_ACQUIRE); n++) {
		const volatile struct ibv_wc *from = &cq->ring[cq->head++ & cq->mask];

		wc[n].wr_id = from->wr_id;
		wc[n].status = from->status;
		wc[n].opcode = from->opcode;
		wc[n].byte_len = from->byte_len;
		wc[n].qp_num = from->qp_num;
		wc[n].wc_flags = from->wc_flags;
		if (__builtin_expect(from->wc_flags & IBV_WC_WITH_INV, 0))
			wc[n].invalidated_rkey = from->invalidated_rkey;
	}
	return n;
}

static int req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	(void)solicited_only;
	((struct cq *)ibcq)->armed = true;
	return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = make_object("alloc_mw", sizeof *mw);

	if (mw) {
		mw->context = pd->context;
		mw->pd = pd;
		mw->type = type;
		mw->rkey = next_key();
	}
	return mw;
}

static int dealloc_mw(struct ibv_mw *mw)
{
	at("dealloc_mw");
	free_object(mw);
	return 0;
}

static int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = { .wr_id = bind->wr_id,
				  .opcode = IBV_WR_BIND_MW,
				  .send_flags = bind->send_flags };
	struct ibv_send_wr *bad;
	int error = standin_post_send(qp, &wr, &bad);

	if (!error)
		mw->rkey = next_key();
	return error;
}

/* --- the device --------------------------------------------------------------------------- */

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof *list);

	if (standin_is("siw")) {
		device.node_type = IBV_NODE_RNIC;
		device.transport_type = IBV_TRANSPORT_IWARP;
	}
	if (list)
		list[0] = &device;
	if (count)
		*count = list ? 1 : 0;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *which)
{
	return which->name;
}

__be64 ibv_get_device_guid(struct ibv_device *which)
{
	(void)which;
	return 1;
}

struct ibv_context *ibv_open_device(struct ibv_device *which)
{
	struct context *context = calloc(1, sizeof *context);
	int ends[2];

	if (!context || pipe2(ends, O_CLOEXEC)) {
		free(context);
		return NULL;
	}
	context->base.device = which;
	context->base.cmd_fd = -1;
	context->base.async_fd = ends[0];
	context->async_write_end = ends[1];
	add_source(&context->async_write_end, true);
	context->base.num_comp_vectors = 1;
	context->base.ops.alloc_mw = alloc_mw;
	context->base.ops.dealloc_mw = dealloc_mw;
	context->base.ops.bind_mw = bind_mw;
	context->base.ops.poll_cq = poll_cq;
	context->base.ops.req_notify_cq = req_notify_cq;
	context->base.ops.post_send = standin_post_send;
	context->base.ops.post_recv = standin_post_recv;
	context->base.ops.post_srq_recv = standin_post_srq_recv;
	return &context->base;
}

int ibv_close_device(struct ibv_context *context)
{
	close(context->async_fd);
	close_source(&((struct context *)context)->async_write_end);
	free(context);
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	*attr = (struct ibv_device_attr){
		.fw_ver = "0",
		.max_mr_size = UINT64_MAX,
		.page_size_cap = 4096,
		.vendor_id = standin_is("siw") ? 0x626d74 : 0x1234,
		.max_qp = MAX_QP,
		.max_qp_wr = 1 << 14,
		.device_cap_flags = standin_is("type 1") ? IBV_DEVICE_MEM_WINDOW :
							   IBV_DEVICE_MEM_WINDOW_TYPE_2B,
		.max_mw = 1 << 16,
		.max_sge = 16,
		.max_sge_rd = 16,
		.max_cq = 1 << 12,
		.max_cqe = 1 << 20,
		.max_mr = 1 << 16,
		.max_pd = 1 << 12,
		.max_qp_rd_atom = 16,
		.max_res_rd_atom = 1 << 16,
		.max_qp_init_rd_atom = 16,
		.max_srq = 1 << 12,
		.max_srq_wr = 1 << 14,
		.max_srq_sge = 16,
		.max_pkeys = 1,
		.local_ca_ack_delay = 15,
		.phys_port_cnt = 1,
	};
	return 0;
}

/* The structure that programs hand over is the public one up to port_cap_flags2. */
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out)
{
	struct ibv_port_attr *attr = (struct ibv_port_attr *)out;

	(void)context;
	(void)port;
	attr->state = IBV_PORT_ACTIVE;
	attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
	attr->gid_tbl_len = 1;
	attr->max_msg_sz = 1u << 31;
	attr->pkey_tbl_len = 1;
	attr->lid = 1;
	attr->active_width = 2;
	attr->active_speed = 16;
	attr->phys_state = 5;
	attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	(void)context;
	(void)port;
	(void)index;
	memset(gid, 0, sizeof *gid);
	gid->raw[15] = 1;
	return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	(void)context;
	(void)port;
	(void)index;
	*pkey = 0xffff;
	return 0;
}

/* Nothing ever happens to the device, unless a test has it fail. */
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	standin_flush_late(context);
	return read(context->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

/* --- objects ------------------------------------------------------------------------------ */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = make_object("alloc_pd", sizeof *pd);

	if (pd)
		pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free_object(pd);
	return 0;
}

/* Whether the byte can be written: the kernel is asked to write to it what is there. */
static bool is_writable(void *at)
{
	int ends[2];
	bool writable;

	if (pipe2(ends, O_CLOEXEC))
		return false;
	writable = write(ends[1], at, 1) == 1 && read(ends[0], at, 1) == 1;
	close(ends[0]);
	close(ends[1]);
	return writable;
}

/* As the kernel, which takes the right to bind windows for one to write. The first byte stands for
 * all. */
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	int written = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC |
		      IBV_ACCESS_MW_BIND;
	struct ibv_mr *mr;

	if (access & written && length > 0 && !is_writable(addr)) {
		errno = EFAULT;
		return NULL;
	}
	mr = make_object("reg_mr", sizeof *mr);
	if (mr) {
		mr->context = pd->context;
		mr->pd = pd;
		mr->addr = addr;
		mr->length = length;
		mr->lkey = mr->rkey = next_key();
	}
	return mr;
}

/* No request of the device reaches memory, so that the addresses of peers do not matter. */
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			       int access)
{
	(void)iova;
	return ibv_reg_mr(pd, addr, length, access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free_object(mr);
	return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah = make_object("create_ah", sizeof *ah);

	(void)attr;
	if (ah) {
		ah->context = pd->context;
		ah->pd = pd;
	}
	return ah;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	free_object(ah);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct channel *channel = calloc(1, sizeof *channel);
	int ends[2];

	if (!channel || pipe2(ends, O_CLOEXEC)) {
		free(channel);
		return NULL;
	}
	channel->base.context = context;
	channel->base.fd = ends[0];
	channel->write_end = ends[1];
	add_source(&channel->write_end, false);
	return &channel->base;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	close_source(&((struct channel *)channel)->write_end);
	free(channel);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
	if (read(channel->fd, cq, sizeof *cq) != sizeof *cq)
		return -1;
	*context = (*cq)->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	(void)cq;
	(void)count;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context,
			     struct ibv_comp_channel *channel, int vector)
{
	struct cq *cq = make_object("create_cq", sizeof *cq);
	uint32_t size = power_of_two(entries);

	(void)vector;
	if (!cq)
		return NULL;
	if (!(cq->ring = calloc(size, sizeof *cq->ring))) {
		free_object(cq);
		return NULL;
	}
	cq->base.context = context;
	cq->base.channel = channel;
	cq->base.cq_context = cq_context;
	cq->base.cqe = size;
	cq->mask = size - 1;
	return &cq->base;
}

int ibv_resize_cq(struct ibv_cq *cq, int entries)
{
	return entries <= cq->cqe ? 0 : ENOSYS;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(((struct cq *)cq)->ring);
	free_object(cq);
	return 0;
}
