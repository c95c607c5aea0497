/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the files of the stand-in for libibverbs.so.1 share. See standin_verbs.c. */
#ifndef STANDIN_H
#define STANDIN_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { MAX_QP = 1 << 12 };

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
	/* When a buffer of its shared receive queue is flushed, in microseconds; 0 for none. */
	unsigned long long flushes_at;
	/* The peer was destroyed: posts find the queue pair in the error state, programs do not. */
	bool peer_is_gone;
};

/*
 * Where something can go wrong, or another thread come in between. A test has ibv_standin_at point to a
 * function of its own, which gets the name of the point; a result other than 0 is the error of the call.
 * There are none without STANDIN_POINTS, so that nothing but the layers above is measured.
 */
extern int (*_Atomic ibv_standin_at)(const char *point);

static inline int at(const char *point)
{
#ifdef STANDIN_POINTS
	int (*const test)(const char *) = ibv_standin_at;

	return test ? test(point) : 0;
#else
	(void)point;
	return 0;
#endif
}

/*
 * Whether the device is one of another kind, by the environment variable STANDIN_DEVICE: "siw", the kernel's
 * software iWARP, or "type 1", a device whose windows are of type 1.
 */
bool standin_is(const char *kind);

/* The device has failed: it does nothing more. */
extern _Atomic bool ibv_standin_failed;
/* Has the device fail: the contexts report it, and then they and their channels have no more events. */
void ibv_standin_fail(void);
void standin_stop_queue_pairs(void);
/* Takes two queue pairs, by their numbers, to RTS, as the kernel does for iWARP; an error if one is gone. */
int ibv_standin_connect_queue_pairs(uint32_t one, uint32_t other);
/* How many queue pairs there are. */
int ibv_standin_queue_pairs(void);
/* How many other objects there are: domains, regions, windows, completion queues, shared receive queues. */
extern _Atomic int ibv_standin_objects;
/*
 * Has the device report an event: of the queue pair of this number, which it stops if the event says so, of the queue
 * that its receives complete in, or of the port of this number.
 */
void ibv_standin_event(enum ibv_event_type type, int number);

/* An event of a queue pair, a completion queue or a shared receive queue. */
void standin_report(struct ibv_context *context, enum ibv_event_type type, void *element);
/* An event of a port, in all contexts. */
void standin_report_port(enum ibv_event_type type, int port);
/* Flushes what a device that takes its time has flushed by now. */
void standin_flush_late(struct ibv_context *context);
/* Completes the send that was kept last, see the point "keep". */
void ibv_standin_complete_kept(void);
/* Has the shared receive queue fail that was made last. */
void ibv_standin_fail_srq(void);

/* Wakes whoever waits on the channel of an armed queue. */
void standin_tell(struct cq *cq);

/* The operations of a context that post. */
int standin_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int standin_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int standin_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* Memory for an object that is counted; NULL, with errno set, if the device is to refuse it at this point. */
static inline void *make_object(const char *point, size_t size)
{
	int error = at(point);
	void *object = error ? NULL : calloc(1, size);

	if (object)
		ibv_standin_objects++;
	else if (error)
		errno = error;
	return object;
}

static inline void free_object(void *object)
{
	ibv_standin_objects--;
	free(object);
}

static inline uint32_t power_of_two(uint32_t at_least)
{
	uint32_t n = 1;

	while (n < at_least)
		n *= 2;
	return n;
}

/* With flags, and the key that is invalidated. */
static inline void complete_with(struct ibv_cq *ibcq, uint64_t wr_id, enum ibv_wc_status status,
				 enum ibv_wc_opcode opcode, uint32_t length, uint32_t qp_num,
				 unsigned flags, uint32_t key)
{
	struct cq *cq = (struct cq *)ibcq;
	struct ibv_wc *wc = &cq->ring[cq->tail & cq->mask];

	wc->wr_id = wr_id;
	wc->status = status;
	wc->opcode = opcode;
	wc->byte_len = length;
	wc->qp_num = qp_num;
	wc->wc_flags = flags;
	wc->invalidated_rkey = key;
	__atomic_store_n(&cq->tail, cq->tail + 1, __ATOMIC_RELEASE);
	if (__builtin_expect(cq->armed, 0))
		standin_tell(cq);
}

static inline void complete(struct ibv_cq *ibcq, uint64_t wr_id, enum ibv_wc_status status,
			    enum ibv_wc_opcode opcode, uint32_t length, uint32_t qp_num)
{
	complete_with(ibcq, wr_id, status, opcode, length, qp_num, 0, 0);
}

#endif
