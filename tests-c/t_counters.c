/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ib_query_counters, dat_ib_print_counters, dat_ib_start_counter, dat_ib_stop_counter. DAT 2.0 only. The
 * IA with counters has "-counters" behind the name of the one without. */
#include "extended.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The IA whose counters are off. */
static const char *plain;
/* All counters of an object. */
static DAT_UINT64 ia_counters[DCNT_IA_ALL_COUNTERS];
static DAT_UINT64 ep_counters[DCNT_EP_ALL_COUNTERS];
static DAT_UINT64 evd_counters[DCNT_EVD_ALL_COUNTERS];

static void read_ia(DAT_IA_HANDLE ia)
{
	OK(dat_ib_query_counters(ia, DCNT_IA_ALL_COUNTERS, ia_counters, 0));
}

static void read_ep(DAT_EP_HANDLE ep)
{
	OK(dat_ib_query_counters(ep, DCNT_EP_ALL_COUNTERS, ep_counters, 0));
}

static void read_evd(DAT_EVD_HANDLE evd)
{
	OK(dat_ib_query_counters(evd, DCNT_EVD_ALL_COUNTERS, evd_counters, 0));
}

static void counters__off(void)
{
	const char *with = tap_ia;
	struct rig rig;
	DAT_EP_HANDLE ep;

	tap_ia = plain;
	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	for (DAT_COUNT i = 0; i < rig.provider.num_provider_specific_attr; i++)
		CHECK(strcmp(rig.provider.provider_specific_attr[i].name, DAT_IB_ATTR_COUNTERS));
	CHECK_RET(dat_ib_query_counters(rig.ia, DCNT_IA_ALL_COUNTERS, ia_counters, 0),
		  DAT_NOT_IMPLEMENTED);
	CHECK_RET(dat_ib_query_counters(ep, DCNT_EP_RECV, ep_counters, 0), DAT_NOT_IMPLEMENTED);
	CHECK_RET(dat_ib_query_counters(rig.recv_evd, 0, NULL, 1), DAT_NOT_IMPLEMENTED);
	CHECK_RET(dat_ib_print_counters(ep, 0, 0), DAT_NOT_IMPLEMENTED);
	CHECK_RET(dat_ib_start_counter(rig.ia, DCNT_IA_CM), DAT_NOT_IMPLEMENTED);
	CHECK_RET(dat_ib_stop_counter(rig.ia, DCNT_IA_CM), DAT_NOT_IMPLEMENTED);
	rig_down(&rig);
	tap_ia = with;
}

static void counters__attribute(void)
{
	up();
	CHECK(has(DAT_IB_ATTR_COUNTERS));
	down();
}

static void counters__of_objects(void)
{
	DAT_SRQ_ATTR queue = { 4, 1, DAT_SRQ_LW_DEFAULT };
	DAT_EVD_HANDLE evd;
	DAT_RMR_HANDLE rmr;
	DAT_SRQ_HANDLE srq;
	DAT_PSP_HANDLE psp;
	DAT_PZ_HANDLE pz;
	DAT_CONN_QUAL qual;
	struct mem mem;
	struct rig rig;

	rig_up(&rig);
	read_ia(rig.ia);
	CHECK_EQ(ia_counters[DCNT_IA_PZ_CREATE], 1);
	CHECK(ia_counters[DCNT_IA_EVD_CREATE] >= 4);
	CHECK_EQ(ia_counters[DCNT_IA_EP_CREATE], 0);
	OK(dat_ib_query_counters(rig.ia, DCNT_IA_ALL_COUNTERS, ia_counters, 1));
	OK(dat_pz_create(rig.ia, &pz));
	OK(dat_pz_free(pz));
	CHECK_RET(dat_pz_free(pz), DAT_INVALID_HANDLE);
	evd = make_evd(rig.ia, 4, DAT_EVD_SOFTWARE_FLAG);
	OK(dat_evd_free(evd));
	OK(dat_ep_free(make_ep(&rig, NULL)));
	make_ep(&rig, NULL);
	mem = make_mem(&rig, 4096, DAT_MEM_PRIV_ALL_FLAG);
	OK(dat_lmr_free(mem.lmr));
	if (rig.attr.max_rmrs > 0)
		OK(dat_rmr_create(rig.pz, &rmr));
	OK(dat_psp_create_any(rig.ia, &qual, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	if (rig.attr.max_srqs > 0) {
		OK(dat_srq_create(rig.ia, rig.pz, &queue, &srq));
		OK(dat_srq_free(srq));
	}
	read_ia(rig.ia);
	CHECK_EQ(ia_counters[DCNT_IA_PZ_CREATE], 1);
	CHECK_EQ(ia_counters[DCNT_IA_PZ_FREE], 1);
	CHECK_EQ(ia_counters[DCNT_IA_EVD_CREATE], 1);
	CHECK_EQ(ia_counters[DCNT_IA_EVD_FREE], 1);
	CHECK_EQ(ia_counters[DCNT_IA_EP_CREATE], 2);
	CHECK_EQ(ia_counters[DCNT_IA_EP_FREE], 1);
	CHECK_EQ(ia_counters[DCNT_IA_LMR_CREATE], 1);
	CHECK_EQ(ia_counters[DCNT_IA_LMR_FREE], 1);
	CHECK_EQ(ia_counters[DCNT_IA_RMR_CREATE], rig.attr.max_rmrs > 0);
	CHECK_EQ(ia_counters[DCNT_IA_RMR_FREE], 0);
	CHECK_EQ(ia_counters[DCNT_IA_PSP_CREATE], 1);
	CHECK_EQ(ia_counters[DCNT_IA_PSP_CREATE_ANY], 1);
	CHECK_EQ(ia_counters[DCNT_IA_PSP_FREE], 0);
	CHECK_EQ(ia_counters[DCNT_IA_CM_LISTEN], 1);
	CHECK_EQ(ia_counters[DCNT_IA_SRQ_CREATE], rig.attr.max_srqs > 0);
	CHECK_EQ(ia_counters[DCNT_IA_SRQ_FREE], rig.attr.max_srqs > 0);
	OK(dat_psp_free(psp));
	if (rig.attr.max_rmrs > 0)
		OK(dat_rmr_free(rmr));
	read_ia(rig.ia);
	CHECK_EQ(ia_counters[DCNT_IA_PSP_FREE], 1);
	CHECK_EQ(ia_counters[DCNT_IA_RMR_FREE], rig.attr.max_rmrs > 0);
	rig_down(&rig);
}

static void counters__of_transfers(void)
{
	up();
	for (DAT_UINT64 i = 0; i < 3; i++) {
		OK(b_receives(1000 * i, 1000, i));
		OK(a_sends(0, 100, i, DAT_COMPLETION_DEFAULT_FLAG));
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
	}
	OK(a_writes(0, 0, 5000, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	OK(a_reads(0, 0, 7000, 5, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 5, DAT_DTO_SUCCESS);
	/* What is refused is not counted. */
	CHECK_RET(dat_ep_post_send(p.ep_a, 1, NULL, cookie(6), DAT_COMPLETION_DEFAULT_FLAG),
		  DAT_INVALID_PARAMETER);
	read_ep(p.ep_a);
	CHECK_EQ(ep_counters[DCNT_EP_CONNECT], 1);
	CHECK_EQ(ep_counters[DCNT_EP_POST_SEND], 3);
	CHECK_EQ(ep_counters[DCNT_EP_POST_SEND_DATA], 300);
	CHECK_EQ(ep_counters[DCNT_EP_POST_WRITE], 1);
	CHECK_EQ(ep_counters[DCNT_EP_POST_WRITE_DATA], 5000);
	CHECK_EQ(ep_counters[DCNT_EP_POST_READ], 1);
	CHECK_EQ(ep_counters[DCNT_EP_POST_READ_DATA], 7000);
	CHECK_EQ(ep_counters[DCNT_EP_POST_RECV], 0);
	CHECK_EQ(ep_counters[DCNT_EP_RECV], 0);
	read_ep(p.ep_b);
	CHECK_EQ(ep_counters[DCNT_EP_CONNECT], 0);
	CHECK_EQ(ep_counters[DCNT_EP_POST_SEND], 0);
	CHECK_EQ(ep_counters[DCNT_EP_POST_RECV], 3);
	CHECK_EQ(ep_counters[DCNT_EP_POST_RECV_DATA], 3000);
	CHECK_EQ(ep_counters[DCNT_EP_RECV], 3);
	CHECK_EQ(ep_counters[DCNT_EP_RECV_DATA], 300);
	/* A receive that is flushed has received nothing. */
	OK(b_receives(0, 10, 9));
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT_DTO(p.b.recv_evd, 9, DAT_DTO_ERR_FLUSHED);
	read_ep(p.ep_b);
	CHECK_EQ(ep_counters[DCNT_EP_RECV], 3);
	CHECK_EQ(ep_counters[DCNT_EP_DISCONNECT], 0);
	read_ep(p.ep_a);
	CHECK_EQ(ep_counters[DCNT_EP_DISCONNECT], 1);
	down();
}

static void counters__of_extended_operations(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;

	up_for(DAT_IB_ATTR_IMMED_DATA, NULL);
	local = dx_local(ma.local, ma.at, 200);
	remote = dx_remote(mb.remote, mb.at, 200);
	OK(b_receives(0, 10, 1));
	OK(dat_ib_post_rdma_write_immed(p.ep_a, 1, &local, cookie(1), &remote, 7,
					DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_RDMA_WRITE_IMMED, DAT_IB_RDMA_WRITE_IMMED);
	EXPECT_EXTENDED(p.b.recv_evd, 1, DAT_IB_DTO_RECV_IMMED, DAT_IB_RDMA_WRITE_IMMED_DATA);
	read_ep(p.ep_a);
	CHECK_EQ(ep_counters[DCNT_EP_POST_WRITE_IMM], 1);
	CHECK_EQ(ep_counters[DCNT_EP_POST_WRITE_IMM_DATA], 200);
	CHECK_EQ(ep_counters[DCNT_EP_POST_WRITE], 0);
	read_ep(p.ep_b);
	CHECK_EQ(ep_counters[DCNT_EP_RECV_RDMA_IMM], 1);
	CHECK_EQ(ep_counters[DCNT_EP_RECV_RDMA_IMM_DATA], 200);
	CHECK_EQ(ep_counters[DCNT_EP_RECV], 0);
	down();
}

static void counters__of_waits(void)
{
	DAT_EVENT event;
	DAT_COUNT more;
	struct rig rig;

	rig_up(&rig);
	CHECK_RET(dat_evd_dequeue(rig.recv_evd, &event), DAT_QUEUE_EMPTY);
	CHECK_RET(dat_evd_dequeue(rig.recv_evd, &event), DAT_QUEUE_EMPTY);
	CHECK_RET(dat_evd_wait(rig.recv_evd, 1000, 1, &event, &more), DAT_TIMEOUT_EXPIRED);
	read_evd(rig.recv_evd);
	CHECK_EQ(evd_counters[DCNT_EVD_DEQUEUE], 2);
	CHECK_EQ(evd_counters[DCNT_EVD_DEQUEUE_FOUND], 0);
	CHECK_EQ(evd_counters[DCNT_EVD_DEQUEUE_NOT_FOUND], 2);
	CHECK_EQ(evd_counters[DCNT_EVD_DEQUEUE_POLL], 2);
	CHECK_EQ(evd_counters[DCNT_EVD_DEQUEUE_POLL_FOUND], 0);
	CHECK_EQ(evd_counters[DCNT_EVD_WAIT], 1);
	CHECK_EQ(evd_counters[DCNT_EVD_WAIT_BLOCKED], 1);
	CHECK_EQ(evd_counters[DCNT_EVD_WAIT_NOTIFY], 0);
	rig_down(&rig);
}

static void counters__of_connections(void)
{
	DAT_CR_HANDLE cr;
	DAT_PSP_HANDLE psp;
	DAT_CONN_QUAL qual;

	up();
	read_ia(p.a.ia);
	CHECK_EQ(ia_counters[DCNT_IA_CM_REQ_TX], 1);
	CHECK_EQ(ia_counters[DCNT_IA_CM_REP_RX], 1);
	CHECK_EQ(ia_counters[DCNT_IA_CM_RTU_TX], 1);
	CHECK_EQ(ia_counters[DCNT_IA_CM_ACTIVE_EST], 1);
	CHECK_EQ(ia_counters[DCNT_IA_CM_PASSIVE_EST], 0);
	CHECK_EQ(ia_counters[DCNT_IA_SP_CR], 0);
	read_ia(p.b.ia);
	CHECK_EQ(ia_counters[DCNT_IA_CM_REQ_RX], 1);
	CHECK_EQ(ia_counters[DCNT_IA_CM_REP_TX], 1);
	CHECK_EQ(ia_counters[DCNT_IA_CM_RTU_RX], 1);
	CHECK_EQ(ia_counters[DCNT_IA_CM_PASSIVE_EST], 1);
	CHECK_EQ(ia_counters[DCNT_IA_CM_ACTIVE_EST], 0);
	CHECK_EQ(ia_counters[DCNT_IA_SP_CR], 1);
	CHECK_EQ(ia_counters[DCNT_IA_SP_CR_ACCEPTED], 1);
	CHECK_EQ(ia_counters[DCNT_IA_SP_CR_REJECTED], 0);
	read_evd(p.a.connect_evd);
	CHECK_EQ(evd_counters[DCNT_EVD_CONN_CALLBACK], 1);
	/* While they are stopped nothing is counted; the start begins at 0. */
	OK(dat_ib_stop_counter(p.a.ia, DCNT_IA_CM));
	OK(dat_ib_start_counter(p.b.ia, DCNT_IA_CM));
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	read_ia(p.a.ia);
	CHECK_EQ(ia_counters[DCNT_IA_CM_REQ_TX], 1);
	CHECK_EQ(ia_counters[DCNT_IA_CM_DREQ_TX], 0);
	read_ia(p.b.ia);
	CHECK_EQ(ia_counters[DCNT_IA_CM_PASSIVE_EST], 0);
	CHECK_EQ(ia_counters[DCNT_IA_CM_DREQ_RX], 1);
	/* The others go on. */
	CHECK_EQ(ia_counters[DCNT_IA_SP_CR], 1);
	OK(dat_ib_start_counter(p.a.ia, DCNT_IA_CM));
	/* A request that is rejected. */
	OK(dat_psp_create_any(p.b.ia, &qual, p.b.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	OK(dat_ep_reset(p.ep_a));
	OK(dat_ep_connect(p.ep_a, p.b.attr.ia_address_ptr, qual, SOON, 0, NULL, DAT_QOS_BEST_EFFORT,
			  DAT_CONNECT_DEFAULT_FLAG));
	cr = EXPECT(p.b.cr_evd, DAT_CONNECTION_REQUEST_EVENT)
		     .event_data.cr_arrival_event_data.cr_handle;
	OK(dat_cr_reject(cr, 0, NULL));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_PEER_REJECTED);
	read_ia(p.a.ia);
	CHECK_EQ(ia_counters[DCNT_IA_CM_REQ_TX], 1);
	CHECK_EQ(ia_counters[DCNT_IA_CM_USER_REJ_RX], 1);
	read_ia(p.b.ia);
	CHECK_EQ(ia_counters[DCNT_IA_CM_USER_REJ_TX], 1);
	CHECK_EQ(ia_counters[DCNT_IA_SP_CR_REJECTED], 1);
	CHECK_EQ(ia_counters[DCNT_IA_SP_CR], 2);
	OK(dat_psp_free(psp));
	down();
}

/* Whatever these say of this machine, they can be started, read and stopped. */
static void counters__of_the_hardware(void)
{
	DAT_IA_COUNTER_TYPE groups[] = { DCNT_IA_LNK, DCNT_IA_DIAG };
	struct rig rig;

	rig_up(&rig);
	for (int i = 0; i < 2; i++) {
		OK(dat_ib_start_counter(rig.ia, groups[i]));
		read_ia(rig.ia);
		OK(dat_ib_stop_counter(rig.ia, groups[i]));
		OK(dat_ib_stop_counter(rig.ia, groups[i]));
		read_ia(rig.ia);
	}
	/* Nothing went wrong on the wire meanwhile. */
	for (int i = DCNT_IA_LNK_ERR_RCV; i < DCNT_IA_ALL_COUNTERS; i++)
		if (i != DCNT_IA_LNK_WARN_XMT_WAIT)
			CHECK_EQ(ia_counters[i], 0);
	rig_down(&rig);
}

/* One counter is copied to its place in the array of all. */
static void counters__one(void)
{
	up();
	memset(ep_counters, 0x55, sizeof ep_counters);
	OK(b_receives(0, 70, 0));
	OK(dat_ib_query_counters(p.ep_b, DCNT_EP_POST_RECV_DATA, ep_counters, 1));
	CHECK_EQ(ep_counters[DCNT_EP_POST_RECV_DATA], 70);
	CHECK_EQ(ep_counters[DCNT_EP_POST_RECV_DATA - 1], 0x5555555555555555);
	CHECK_EQ(ep_counters[DCNT_EP_POST_RECV_DATA + 1], 0x5555555555555555);
	/* It is 0 now, and the others are not. */
	read_ep(p.ep_b);
	CHECK_EQ(ep_counters[DCNT_EP_POST_RECV_DATA], 0);
	CHECK_EQ(ep_counters[DCNT_EP_POST_RECV], 1);
	down();
}

static void counters__arguments(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	CHECK_RET(dat_ib_query_counters(ep, DCNT_EP_RECV, NULL, 0), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ib_query_counters(ep, DCNT_EP_ALL_COUNTERS + 1, ep_counters, 0),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ib_query_counters(rig.recv_evd, -1, evd_counters, 0), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ib_query_counters(rig.pz, 0, ep_counters, 0), DAT_INVALID_HANDLE);
	CHECK_RET(dat_ib_print_counters(rig.pz, 0, 0), DAT_INVALID_HANDLE);
	CHECK_RET(dat_ib_print_counters(rig.ia, DCNT_IA_ALL_COUNTERS + 1, 0),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ib_start_counter(rig.ia, DCNT_IA_DIAG + 1), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ib_stop_counter(rig.ia, -1), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ib_start_counter(ep, DCNT_IA_CM), DAT_INVALID_HANDLE);
	OK(dat_ep_free(ep));
	CHECK_RET(dat_ib_query_counters(ep, DCNT_EP_RECV, ep_counters, 0), DAT_INVALID_HANDLE);
	rig_down(&rig);
}

/* Lines on the standard output, between those of the program. */
static void counters__printed(void)
{
	char line[512], end[64];
	struct rig rig;
	int lines = 0, own;
	FILE *out;

	rig_up(&rig);
	make_ep(&rig, NULL);
	REQUIRE((out = tmpfile()) != NULL);
	fflush(stdout);
	REQUIRE((own = dup(1)) >= 0 && dup2(fileno(out), 1) == 1);
	printf("before\n");
	OK(dat_ib_print_counters(rig.ia, DCNT_IA_EP_CREATE, 0));
	OK(dat_ib_print_counters(rig.ia, DCNT_IA_ALL_COUNTERS, 1));
	printf("behind\n");
	fflush(stdout);
	REQUIRE(dup2(own, 1) == 1 && close(own) == 0);
	rewind(out);
	CHECK(fgets(line, sizeof line, out) && !strcmp(line, "before\n"));
	snprintf(end, sizeof end, ":%#x: DCNT_IA_EP_CREATE = 1\n", (unsigned)getpid());
	CHECK(fgets(line, sizeof line, out) && strstr(line, end));
	while (fgets(line, sizeof line, out) && strcmp(line, "behind\n")) {
		CHECK(strstr(line, "DCNT_IA_"));
		lines++;
	}
	CHECK_EQ(lines, DCNT_IA_ALL_COUNTERS);
	CHECK(!strcmp(line, "behind\n"));
	fclose(out);
	read_ia(rig.ia);
	CHECK_EQ(ia_counters[DCNT_IA_EP_CREATE], 0);
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(counters, off),
	T(counters, attribute),
	T(counters, of_objects),
	T(counters, of_transfers),
	T(counters, of_extended_operations),
	T(counters, of_waits),
	T(counters, of_connections),
	T(counters, of_the_hardware),
	T(counters, one),
	T(counters, arguments),
	T(counters, printed),
	TAP_END,
};

int main(int argc, char **argv)
{
	static char name[64];

	plain = argc > 1 ? argv[1] : tap_ia;
	snprintf(name, sizeof name, "%s-counters", plain);
	if (argc > 1)
		argv[1] = name;
	else
		tap_ia = name;
	return tap_main(argc, argv, tests);
}
