/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The operations of overhead_dat.c in verbs alone: what the device itself costs. */
#include "measure.h"

#include <infiniband/verbs.h>

static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_qp *active, *passive;
static struct ibv_mr *mr;
static char memory[MEMORY];

static struct ibv_qp *make_qp(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.cap = { DEPTH, DEPTH, 1, 1, 64 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	CHECK(qp);
	return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .dest_qp_num = peer->qp_num };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

static void set_up(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_pd *pd;

	CHECK(list && list[0]);
	CHECK((context = ibv_open_device(list[0])));
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((mr = ibv_reg_mr(pd, memory, MEMORY, IBV_ACCESS_LOCAL_WRITE)));
	CHECK((send_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0)));
	CHECK((recv_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0)));
	active = make_qp(pd);
	passive = make_qp(pd);
	connect_to(active, passive);
	connect_to(passive, active);
}

static void post_request(enum ibv_wr_opcode opcode, uint64_t number)
{
	struct ibv_sge sge = { (uintptr_t)memory, SIZE, mr->lkey };
	struct ibv_send_wr wr, *bad;

	wr.wr_id = number;
	wr.next = NULL;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = opcode;
	wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(active, &wr, &bad) == 0);
}

static void post_receive(uint64_t number)
{
	struct ibv_sge sge = { (uintptr_t)memory, SIZE, mr->lkey };
	struct ibv_recv_wr wr = { number, NULL, &sge, 1 }, *bad;

	CHECK(ibv_post_recv(passive, &wr, &bad) == 0);
}

static void take(struct ibv_cq *cq, uint64_t number)
{
	struct ibv_wc wc;

	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == number);
}

static void run_write(long n)
{
	for (long i = 0; i < n; i++) {
		post_request(IBV_WR_RDMA_WRITE, i);
		take(send_cq, i);
	}
}

static void run_send(long n)
{
	for (long i = 0; i < n; i++) {
		post_receive(i);
		post_request(IBV_WR_SEND, i);
		take(send_cq, i);
		take(recv_cq, i);
	}
}

static void run_empty(long n)
{
	struct ibv_wc wc;

	for (long i = 0; i < n; i++)
		CHECK(ibv_poll_cq(recv_cq, 1, &wc) == 0);
}

const struct operation operations[] = {
	{ "write", run_write },
	{ "send", run_send },
	{ "empty", run_empty },
	{ "wait", run_write },
};

int main(int argc, char **argv)
{
	set_up();
	return measure(argc, argv);
}
