/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Queue pairs and shared receive queues of the stand-in. See standin_verbs.c. */
#include "standin.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct qp *qps[MAX_QP];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* --- posts -------------------------------------------------------------------------------- */

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

static void stop(struct qp *qp);

/* A send that the device has not carried out yet, as a test wants it. */
static struct qp *kept;
static uint64_t kept_wr_id;

void ibv_standin_complete_kept(void)
{
	complete(kept->base.send_cq, kept_wr_id, IBV_WC_SUCCESS, IBV_WC_SEND, 0, kept->base.qp_num);
}

int standin_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct qp *qp = (struct qp *)ibqp;
	enum ibv_wc_status status = IBV_WC_SUCCESS, failed = IBV_WC_SUCCESS;

	if (__builtin_expect(ibqp->state != IBV_QPS_RTS, 0)) {
		if (ibqp->state != IBV_QPS_ERR && ibqp->state != IBV_QPS_SQE) {
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
		/* As drivers do that write the first segment into every request. */
		if (wr->num_sge == 0 && at("first_segment"))
			length += ((volatile struct ibv_sge *)wr->sg_list)->length;
		if (wr->opcode == IBV_WR_RDMA_WRITE && wr->num_sge == 0 && at("write_nothing"))
			status = at("write_refused") ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_WR_FLUSH_ERR;
		if (opcode == IBV_WC_SEND && status == IBV_WC_SUCCESS)
			failed = status = at("send");
		if (opcode == IBV_WC_SEND && status == IBV_WC_SUCCESS && at("keep")) {
			kept = qp;
			kept_wr_id = wr->wr_id;
			continue;
		}
		if (opcode == IBV_WC_SEND && status == IBV_WC_SUCCESS) {
			struct receives *to = qp->peer->receives;

			if (to->head != to->tail) {
				uint64_t wr_id = to->wr_id[to->head++ & to->mask];

				if (wr->opcode == IBV_WR_SEND_WITH_INV)
					complete_with(qp->peer->base.recv_cq, wr_id, status,
						      IBV_WC_RECV, length, qp->peer->base.qp_num,
						      IBV_WC_WITH_INV, wr->invalidate_rkey);
				else
					complete(qp->peer->base.recv_cq, wr_id, status, IBV_WC_RECV,
						 length, qp->peer->base.qp_num);
			}
		}
		if (wr->send_flags & IBV_SEND_SIGNALED || qp->signal_all ||
		    status != IBV_WC_SUCCESS) {
			at("complete");
			complete(ibqp->send_cq, wr->wr_id, status, opcode, length, ibqp->qp_num);
		}
		if (__builtin_expect(failed != IBV_WC_SUCCESS, 0)) {
			if (ibqp->qp_type == IBV_QPT_UD)
				ibqp->state = IBV_QPS_SQE;
			else
				stop(qp);
			status = IBV_WC_WR_FLUSH_ERR;
			failed = IBV_WC_SUCCESS;
		}
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

static unsigned long long now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

/* The device has taken a buffer of a shared receive queue for a queue pair that is stopped: some time later it
 * completes it, and reports that it was the last one. */
static void flush_srq(struct qp *qp)
{
	if (at("flush_srq"))
		qp->flushes_at = now_us() + 30 * 1000;
}

/* Takes a queue pair to the error state. */
static void stop(struct qp *qp)
{
	qp->base.state = IBV_QPS_ERR;
	flush(qp);
	if (qp->base.srq)
		flush_srq(qp);
}

/* Not in a thread of its own, whose delay by other programs would be that of a device. */
void standin_flush_late(struct ibv_context *context)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MAX_QP; i++) {
		struct qp *qp = qps[i];
		struct receives *r = qp ? qp->receives : NULL;

		if (!qp || qp->base.context != context || !qp->flushes_at ||
		    now_us() < qp->flushes_at)
			continue;
		qp->flushes_at = 0;
		if (r->head != r->tail)
			complete(qp->base.recv_cq, r->wr_id[r->head++ & r->mask],
				 IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, 0, qp->base.qp_num);
		standin_report(context, IBV_EVENT_QP_LAST_WQE_REACHED, &qp->base);
	}
	pthread_mutex_unlock(&lock);
}

int standin_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct qp *qp = (struct qp *)ibqp;
	int error = at("post_recv");

	if (!error)
		error = receive(&qp->own, wr, bad);
	if (__builtin_expect(ibqp->state == IBV_QPS_ERR, 0))
		flush(qp);
	return error;
}

int standin_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return receive(&((struct srq *)srq)->receives, wr, bad);
}

/* --- objects ------------------------------------------------------------------------------ */

static bool make_room(struct receives *receives, uint32_t count)
{
	uint32_t size = power_of_two(count);

	receives->mask = size - 1;
	receives->wr_id = calloc(size, sizeof *receives->wr_id);
	return receives->wr_id;
}

static struct ibv_srq *last_srq;

void ibv_standin_fail_srq(void)
{
	standin_report(last_srq->context, IBV_EVENT_SRQ_ERR, last_srq);
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct srq *srq = make_object("create_srq", sizeof *srq);

	if (!srq)
		return NULL;
	if (!make_room(&srq->receives, attr->attr.max_wr)) {
		free_object(srq);
		return NULL;
	}
	srq->base.context = pd->context;
	srq->base.srq_context = attr->srq_context;
	srq->base.pd = pd;
	last_srq = &srq->base;
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
	free_object(srq);
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	int error = ibv_standin_failed ? EIO : at("create_qp");
	struct qp *qp;

	if (!error && attr->cap.max_inline_data > 0)
		error = at("inline");
	qp = error ? NULL : calloc(1, sizeof *qp);
	if (error)
		errno = error;
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
	/* What is sent without a connection arrives where it was sent. */
	if (attr->qp_type == IBV_QPT_UD)
		qp->peer = qp;
	/* A number is used again as soon as it is free. */
	pthread_mutex_lock(&lock);
	qp->base.qp_num = 2;
	while (qps[qp->base.qp_num])
		qp->base.qp_num++;
	qps[qp->base.qp_num] = qp;
	pthread_mutex_unlock(&lock);
	return &qp->base;
}

int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	struct qp *qp = (struct qp *)ibqp;

	if (ibv_standin_failed)
		return EIO;
	if (mask & IBV_QP_DEST_QPN) {
		if (attr->dest_qp_num >= MAX_QP || !qps[attr->dest_qp_num])
			return EINVAL;
		qp->peer = qps[attr->dest_qp_num];
	}
	if (mask & IBV_QP_STATE) {
		if (attr->qp_state == IBV_QPS_RTS && !qp->peer && ibqp->qp_type == IBV_QPT_RC)
			return EINVAL;
		if (attr->qp_state == IBV_QPS_RTS && ibqp->state == IBV_QPS_ERR)
			return EINVAL;
		/* As the kernel's mlx5 and mlx4, which do not know that the device has left RTS by itself. */
		if (attr->qp_state == IBV_QPS_RTS && ibqp->state == IBV_QPS_SQE &&
		    !(mask & IBV_QP_CUR_STATE && attr->cur_qp_state == IBV_QPS_SQE))
			return EINVAL;
		ibqp->state = attr->qp_state;
		qp->peer_is_gone = false;
		if (attr->qp_state == IBV_QPS_ERR)
			stop(qp);
	}
	return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		 struct ibv_qp_init_attr *init)
{
	(void)mask;
	memset(attr, 0, sizeof *attr);
	memset(init, 0, sizeof *init);
	attr->qp_state = ((struct qp *)qp)->peer_is_gone ? IBV_QPS_RTS : qp->state;
	attr->cur_qp_state = attr->qp_state;
	attr->cap = init->cap = ((struct qp *)qp)->cap;
	return 0;
}

/* As drivers do: the completions that were not polled are no more than entries without a request. */
static void forget(struct ibv_cq *ibcq, uint32_t qp_num)
{
	struct cq *cq = (struct cq *)ibcq;

	for (uint32_t i = cq->head; i != cq->tail; i++)
		if (cq->ring[i & cq->mask].qp_num == qp_num)
			cq->ring[i & cq->mask].wr_id = 0;
}

int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	struct qp *qp = (struct qp *)ibqp;

	forget(ibqp->send_cq, ibqp->qp_num);
	forget(ibqp->recv_cq, ibqp->qp_num);
	pthread_mutex_lock(&lock);
	qps[ibqp->qp_num] = NULL;
	for (int i = 0; i < MAX_QP; i++)
		if (qps[i] && qps[i]->peer == qp) {
			qps[i]->peer = NULL;
			qps[i]->peer_is_gone = qps[i]->base.state != IBV_QPS_ERR;
			qps[i]->base.state = IBV_QPS_ERR;
		}
	pthread_mutex_unlock(&lock);
	free(qp->own.wr_id);
	free(qp);
	at("destroyed_qp");
	return 0;
}

/* Nothing that is outstanding completes. */
void standin_stop_queue_pairs(void)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MAX_QP; i++)
		if (qps[i])
			qps[i]->base.state = IBV_QPS_UNKNOWN;
	pthread_mutex_unlock(&lock);
}

void ibv_standin_event(enum ibv_event_type type, int number)
{
	struct ibv_qp *qp = qps[number] ? &qps[number]->base : NULL;

	switch (type) {
	case IBV_EVENT_CQ_ERR:
		standin_report(qp->context, type, qp->recv_cq);
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		stop(qps[number]);
		/* Fall through. */
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
		standin_report(qp->context, type, qp);
		break;
	default:
		standin_report_port(type, number);
	}
}

int ibv_standin_connect_queue_pairs(uint32_t one, uint32_t other)
{
	struct qp *ends[2] = { NULL, NULL };

	pthread_mutex_lock(&lock);
	if (one < MAX_QP && other < MAX_QP) {
		ends[0] = qps[one];
		ends[1] = qps[other];
	}
	for (int i = 0; ends[0] && ends[1] && i < 2; i++) {
		ends[i]->peer = ends[1 - i];
		ends[i]->base.state = IBV_QPS_RTS;
	}
	pthread_mutex_unlock(&lock);
	return ends[0] && ends[1] ? 0 : EINVAL;
}

int ibv_standin_queue_pairs(void)
{
	int count = 0;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < MAX_QP; i++)
		count += qps[i] != NULL;
	pthread_mutex_unlock(&lock);
	return count;
}
