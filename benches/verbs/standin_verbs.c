/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libibverbs.so.1 with one device, "standin0", that does nothing: a request is complete when it
 * is posted. No byte moves, nothing is checked, no system call is made. What a post and a poll
 * cost on it is what the layers above them cost.
 *
 * A queue pair knows its peer, in the same process, by the number that it gets on the way to
 * RTR. A send takes the peer's oldest receive; without one the send is lost.
 *
 * One thread at a time posts and polls.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_query_port
#undef ibv_reg_mr

/* A channel or a context is read at one end of a pipe; we write at the other. */
struct channel {
	struct ibv_comp_channel base;
	int write_end;
};

struct context {
	struct ibv_context base;
	int async_write_end;
};

struct cq {
	struct ibv_cq base;
	uint32_t head, tail, mask;
	bool armed;
	struct ibv_wc *ring;
};

/* Receives that wait for a message: what their completion says. */
struct receives {
	uint32_t head, tail, mask;
	uint64_t *wr_id;
};

struct srq {
	struct ibv_srq base;
	struct receives receives;
};

struct qp {
	struct ibv_qp base;
	struct qp *peer;
	struct receives own, *receives;
	struct ibv_qp_cap cap;
	bool signal_all;
};

enum { MAX_QP = 1 << 12 };
static struct qp *qps[MAX_QP];
static uint32_t last_qp = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct ibv_device device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
	.name = "standin0",
	.dev_name = "uverbs0",
};

static uint32_t power_of_two(uint32_t at_least)
{
	uint32_t n = 1;

	while (n < at_least)
		n *= 2;
	return n;
}

static uint32_t next_key(void)
{
	static _Atomic uint32_t key = 1;

	return ++key << 8;
}

/* --- the fast path ------------------------------------------------------------------------ */

static void tell(struct cq *cq)
{
	cq->armed = false;
	if (cq->base.channel) {
		struct channel *channel = (struct channel *)cq->base.channel;
		struct ibv_cq *which = &cq->base;

		if (write(channel->write_end, &which, sizeof which) < 0)
			abort();
	}
}

static inline void complete(struct ibv_cq *ibcq, uint64_t wr_id, enum ibv_wc_status status,
			    enum ibv_wc_opcode opcode, uint32_t length, uint32_t qp_num)
{
	struct cq *cq = (struct cq *)ibcq;
	struct ibv_wc *wc = &cq->ring[cq->tail & cq->mask];

	wc->wr_id = wr_id;
	wc->status = status;
	wc->opcode = opcode;
	wc->byte_len = length;
	wc->qp_num = qp_num;
	wc->wc_flags = 0;
	__atomic_store_n(&cq->tail, cq->tail + 1, __ATOMIC_RELEASE);
	if (__builtin_expect(cq->armed, 0))
		tell(cq);
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
	}
	return n;
}

static int req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	(void)solicited_only;
	((struct cq *)ibcq)->armed = true;
	return 0;
}

static enum ibv_wc_opcode opcode_of(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_BIND_MW:
		return IBV_WC_BIND_MW;
	default:
		return IBV_WC_SEND;
	}
}

static int post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct qp *qp = (struct qp *)ibqp;
	enum ibv_wc_status status = IBV_WC_SUCCESS;

	if (__builtin_expect(ibqp->state != IBV_QPS_RTS, 0)) {
		if (ibqp->state != IBV_QPS_ERR) {
			*bad = wr;
			return EINVAL;
		}
		status = IBV_WC_WR_FLUSH_ERR;
	}
	for (; wr; wr = wr->next) {
		enum ibv_wc_opcode opcode = opcode_of(wr->opcode);
		uint32_t length = 0;

		for (int i = 0; i < wr->num_sge; i++)
			length += wr->sg_list[i].length;
		if (opcode == IBV_WC_SEND && status == IBV_WC_SUCCESS) {
			struct receives *to = qp->peer->receives;

			if (to->head != to->tail) {
				uint64_t wr_id = to->wr_id[to->head++ & to->mask];

				complete(qp->peer->base.recv_cq, wr_id, status, IBV_WC_RECV,
					 length, qp->peer->base.qp_num);
			}
		}
		if (wr->send_flags & IBV_SEND_SIGNALED || qp->signal_all ||
		    status != IBV_WC_SUCCESS)
			complete(ibqp->send_cq, wr->wr_id, status, opcode, length, ibqp->qp_num);
	}
	return 0;
}

static int receive(struct receives *to, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (; wr; wr = wr->next) {
		if (to->tail - to->head > to->mask) {
			*bad = wr;
			return ENOMEM;
		}
		to->wr_id[to->tail++ & to->mask] = wr->wr_id;
	}
	return 0;
}

static void flush(struct qp *qp)
{
	struct receives *r = &qp->own;

	while (r->head != r->tail)
		complete(qp->base.recv_cq, r->wr_id[r->head++ & r->mask], IBV_WC_WR_FLUSH_ERR,
			 IBV_WC_RECV, 0, qp->base.qp_num);
}

static int post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct qp *qp = (struct qp *)ibqp;
	int error = receive(&qp->own, wr, bad);

	if (__builtin_expect(ibqp->state == IBV_QPS_ERR, 0))
		flush(qp);
	return error;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return receive(&((struct srq *)srq)->receives, wr, bad);
}

/* --- the device --------------------------------------------------------------------------- */

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof *list);

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
	context->base.num_comp_vectors = 1;
	context->base.ops.poll_cq = poll_cq;
	context->base.ops.req_notify_cq = req_notify_cq;
	context->base.ops.post_send = post_send;
	context->base.ops.post_recv = post_recv;
	context->base.ops.post_srq_recv = post_srq_recv;
	return &context->base;
}

int ibv_close_device(struct ibv_context *context)
{
	close(context->async_fd);
	close(((struct context *)context)->async_write_end);
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
		.vendor_id = 0x1234,
		.max_qp = MAX_QP,
		.max_qp_wr = 1 << 14,
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

/* Nothing ever happens to the device. */
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	return read(context->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

/* --- objects ------------------------------------------------------------------------------ */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);

	if (pd)
		pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof *mr);

	(void)access;
	if (mr) {
		mr->context = pd->context;
		mr->pd = pd;
		mr->addr = addr;
		mr->length = length;
		mr->lkey = mr->rkey = next_key();
	}
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	(void)pd;
	(void)attr;
	errno = EOPNOTSUPP;
	return NULL;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	(void)ah;
	return EINVAL;
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
	return &channel->base;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	close(((struct channel *)channel)->write_end);
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
	struct cq *cq = calloc(1, sizeof *cq);
	uint32_t size = power_of_two(entries);

	(void)vector;
	if (!cq || !(cq->ring = calloc(size, sizeof *cq->ring))) {
		free(cq);
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
	free(cq);
	return 0;
}

static bool make_room(struct receives *receives, uint32_t count)
{
	uint32_t size = power_of_two(count);

	receives->mask = size - 1;
	receives->wr_id = calloc(size, sizeof *receives->wr_id);
	return receives->wr_id;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct srq *srq = calloc(1, sizeof *srq);

	if (!srq || !make_room(&srq->receives, attr->attr.max_wr)) {
		free(srq);
		return NULL;
	}
	srq->base.context = pd->context;
	srq->base.srq_context = attr->srq_context;
	srq->base.pd = pd;
	return &srq->base;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	(void)srq;
	(void)attr;
	return mask & IBV_SRQ_MAX_WR ? ENOSYS : 0;
}

/* Asked only after a change of the length, which there is not. */
int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	(void)srq;
	(void)attr;
	return ENOSYS;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	free(((struct srq *)srq)->receives.wr_id);
	free(srq);
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct qp *qp = calloc(1, sizeof *qp);

	if (!qp || !make_room(&qp->own, attr->cap.max_recv_wr)) {
		free(qp);
		return NULL;
	}
	qp->base.context = pd->context;
	qp->base.qp_context = attr->qp_context;
	qp->base.pd = pd;
	qp->base.send_cq = attr->send_cq;
	qp->base.recv_cq = attr->recv_cq;
	qp->base.srq = attr->srq;
	qp->base.state = IBV_QPS_RESET;
	qp->base.qp_type = attr->qp_type;
	qp->receives = attr->srq ? &((struct srq *)attr->srq)->receives : &qp->own;
	qp->cap = attr->cap;
	qp->signal_all = attr->sq_sig_all;
	pthread_mutex_lock(&lock);
	do
		last_qp = last_qp % (MAX_QP - 1) + 1;
	while (qps[last_qp]);
	qp->base.qp_num = last_qp;
	qps[last_qp] = qp;
	pthread_mutex_unlock(&lock);
	return &qp->base;
}

int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	struct qp *qp = (struct qp *)ibqp;

	if (mask & IBV_QP_DEST_QPN) {
		if (attr->dest_qp_num >= MAX_QP || !qps[attr->dest_qp_num])
			return EINVAL;
		qp->peer = qps[attr->dest_qp_num];
	}
	if (mask & IBV_QP_STATE) {
		if (attr->qp_state == IBV_QPS_RTS && !qp->peer)
			return EINVAL;
		ibqp->state = attr->qp_state;
		if (attr->qp_state == IBV_QPS_ERR)
			flush(qp);
	}
	return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		 struct ibv_qp_init_attr *init)
{
	(void)mask;
	memset(attr, 0, sizeof *attr);
	memset(init, 0, sizeof *init);
	attr->qp_state = attr->cur_qp_state = qp->state;
	attr->cap = init->cap = ((struct qp *)qp)->cap;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	struct qp *qp = (struct qp *)ibqp;

	pthread_mutex_lock(&lock);
	qps[ibqp->qp_num] = NULL;
	for (int i = 0; i < MAX_QP; i++)
		if (qps[i] && qps[i]->peer == qp) {
			qps[i]->peer = NULL;
			qps[i]->base.state = IBV_QPS_ERR;
		}
	pthread_mutex_unlock(&lock);
	free(qp->own.wr_id);
	free(qp);
	return 0;
}
