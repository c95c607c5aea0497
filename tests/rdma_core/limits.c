/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verbs provider on the stand-in of benches/verbs when the device has no more of something: the call gives the
 * documented code and leaves nothing behind, and the IA goes on. */
#include "stand_in.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int objects(void)
{
	int (*queue_pairs)(void) = (int (*)(void))stand_in("ibv_standin_queue_pairs");

	return *(_Atomic int *)stand_in("ibv_standin_objects") + queue_pairs();
}

/* The point at which the device refuses. */
static const char *_Atomic refused;

static int at_refusal(const char *point)
{
	const char *at = refused;

	return at && !strcmp(point, at) ? ENOMEM : 0;
}

static void refuse(const char *point)
{
	refused = point;
	at_points(at_refusal);
}

/* The call is refused at this point, and then it is not. */
#define REFUSED_AT(point, call, subtype)                                              \
	do {                                                                          \
		int before_ = objects();                                              \
		refuse(point);                                                        \
		CHECK_CODE(call, DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_##subtype); \
		CHECK_EQ(objects(), before_);                                         \
		refuse(NULL);                                                         \
		OK(call);                                                             \
	} while (0)

static void expect_no_objects(void)
{
	/* The thread of an IA may be the last that uses it. */
	for (int i = 0; objects() > 0 && i < 1000; i++)
		pause_us(10 * 1000);
	CHECK_EQ(objects(), 0);
}

static DAT_RETURN create_lmr(const struct rig *rig, void *at, DAT_LMR_HANDLE *lmr)
{
	DAT_REGION_DESCRIPTION region = { .for_va = at };

	return dx_lmr_create(rig->ia, DAT_MEM_TYPE_VIRTUAL, region, 4096, rig->pz,
			     DAT_MEM_PRIV_ALL_FLAG, lmr, NULL, NULL, NULL, NULL);
}

static void create__of_each_object(void)
{
	static char memory[4096];
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_CONN_QUAL qualifier = 0;
	DAT_EP_HANDLE ep, discarding;
	DAT_RMR_HANDLE rmr;
	DAT_SRQ_HANDLE srq;
	DAT_EVD_HANDLE evd;
	DAT_LMR_HANDLE lmr;
	DAT_PSP_HANDLE psp;
	DAT_PZ_HANDLE pz;
	DAT_EP_ATTR attr;
	struct rig rig;

	setenv("STANDIN_DEVICE", "type 1", 1);
	rig_up(&rig);
	attr = ep_attr(&rig);
	REFUSED_AT("alloc_pd", dat_pz_create(rig.ia, &pz), PROTECTION_DOMAIN);
	REFUSED_AT("reg_mr", create_lmr(&rig, memory, &lmr), MEMORY_REGION);
	REFUSED_AT("alloc_mw", dat_rmr_create(rig.pz, &rmr), MEMORY_REGION);
	REFUSED_AT("create_cq", dat_evd_create(rig.ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evd),
		   TEVD);
	REFUSED_AT("create_srq", dat_srq_create(rig.ia, rig.pz, &srq_attr, &srq), SRQ);
	REFUSED_AT("create_qp",
		   dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.request_evd, rig.connect_evd,
				 &attr, &ep),
		   TEP);
	/* The library has completion queues of its own for it. */
	REFUSED_AT("create_cq",
		   dat_ep_create(rig.ia, rig.pz, DAT_HANDLE_NULL, DAT_HANDLE_NULL, rig.connect_evd,
				 &attr, &discarding),
		   TEP);
	REFUSED_AT("create_id",
		   dat_psp_create_any(rig.ia, &qualifier, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		   DEVICE);
	OK(dat_ep_free(discarding));
	OK(dat_ep_free(ep));
	OK(dat_srq_free(srq));
	OK(dat_evd_free(evd));
	OK(dat_rmr_free(rmr));
	OK(dat_lmr_free(lmr));
	OK(dat_pz_free(pz));
	OK(dat_psp_free(psp));
	RIG_DOWN_UNUSED(&rig);
	expect_no_objects();
}

/* A queue that cannot be made longer stays as it is, and so does one that endpoints use: those of this device cannot
 * be resized, and only one that is not used can be exchanged. */
static void evd_resize__that_the_device_refuses(void)
{
	DAT_EVD_PARAM before, after;
	DAT_EVD_HANDLE evd;
	struct pair pair;

	pair_up(&pair, NULL);
	evd = make_evd(pair.a.ia, 8, DAT_EVD_DTO_FLAG);
	OK(dat_evd_query(evd, DAT_EVD_FIELD_EVD_QLEN, &before));
	REFUSED_AT("create_cq", dat_evd_resize(evd, 1000), TEVD);
	OK(dat_evd_query(evd, DAT_EVD_FIELD_EVD_QLEN, &after));
	CHECK(before.evd_qlen < 1000 && after.evd_qlen >= 1000);
	OK(dat_evd_query(pair.b.recv_evd, DAT_EVD_FIELD_EVD_QLEN, &before));
	CHECK_CODE(dat_evd_resize(pair.b.recv_evd, 100 * 1000), DAT_INSUFFICIENT_RESOURCES,
		   DAT_RESOURCE_TEVD);
	OK(dat_evd_query(pair.b.recv_evd, DAT_EVD_FIELD_EVD_QLEN, &after));
	CHECK_EQ(after.evd_qlen, before.evd_qlen);
	CHECK_CODE(dat_evd_resize(evd, pair.a.attr.max_evd_qlen + 1), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
	CHECK_CODE(dat_evd_create(pair.a.ia, pair.a.attr.max_evd_qlen + 1, DAT_HANDLE_NULL,
				  DAT_EVD_DTO_FLAG, &evd),
		   DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_TEVD);
	/* As long as it can be. */
	OK(dat_evd_create(pair.a.ia, pair.a.attr.max_evd_qlen, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG,
			  &evd));
	expect_connected(&pair.a, pair.ep_a, &pair.b, pair.ep_b);
	pair_down(&pair);
	expect_no_objects();
}

/* The device has as many queue pairs as there are: when one is freed there is one for another endpoint. */
static void ep_create__as_many_as_the_device_has(void)
{
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE ep;
	struct pair pair;
	struct rig rig;

	pair_up(&pair, NULL);
	rig_up(&rig);
	attr = ep_attr(&rig);
	for (int i = 0; i < 3; i++) {
		DAT_EP_HANDLE last = make_ep(&rig, NULL);

		refuse("create_qp");
		CHECK_CODE(dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.request_evd,
					 rig.connect_evd, &attr, &ep),
			   DAT_INSUFFICIENT_RESOURCES, DAT_RESOURCE_TEP);
		OK(dat_ep_free(last));
		refuse(NULL);
	}
	RIG_DOWN_UNUSED(&rig);
	expect_connected(&pair.a, pair.ep_a, &pair.b, pair.ep_b);
	pair_down(&pair);
	expect_no_objects();
}

/* An endpoint that is reset needs another queue pair. Without one it takes no receives and does not connect; both work
 * again when there is one. */
static void ep_reset__without_a_queue_pair(void)
{
	DAT_CONN_QUAL qualifier;
	DAT_CR_HANDLE request;
	DAT_EP_HANDLE ep_c;
	struct pair pair;

	pair_up(&pair, NULL);
	listen_any(&pair.b, &qualifier);
	OK(dat_ep_disconnect(pair.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	refuse("create_qp");
	OK(dat_ep_reset(pair.ep_a));
	OK(dat_ep_reset(pair.ep_b));
	CHECK(ep_state(pair.ep_a) == DAT_EP_STATE_UNCONNECTED);
	CHECK_RET(recv_nothing(pair.ep_a, 1), DAT_INSUFFICIENT_RESOURCES);
	CHECK_CODE(try_connect(pair.ep_a, &pair.b, qualifier, SOON), DAT_INSUFFICIENT_RESOURCES,
		   DAT_RESOURCE_TEP);
	CHECK(ep_state(pair.ep_a) == DAT_EP_STATE_UNCONNECTED);
	refuse(NULL);
	/* Who listens posts receives before the request is there. */
	OK(recv_nothing(pair.ep_a, 2));
	ep_c = make_ep(&pair.b, NULL);
	OK(try_connect(ep_c, &pair.b, qualifier, SOON));
	request = await_request(&pair.b);
	refuse("create_qp");
	CHECK_CODE(dat_cr_accept(request, pair.ep_b, 0, NULL), DAT_INSUFFICIENT_RESOURCES,
		   DAT_RESOURCE_TEP);
	CHECK(ep_state(pair.ep_b) == DAT_EP_STATE_UNCONNECTED);
	refuse(NULL);
	/* The request is refused. */
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	OK(recv_nothing(pair.ep_b, 3));
	connect_by(&pair.a, pair.ep_a, &pair.b, pair.ep_b, qualifier);
	OK(send_nothing(pair.ep_a, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(pair.b.recv_evd, 3, DAT_DTO_SUCCESS);
	OK(send_nothing(pair.ep_b, 5, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(pair.a.recv_evd, 2, DAT_DTO_SUCCESS);
	pair_down(&pair);
	expect_no_objects();
}

/* There is no identifier for another connection: the endpoint is as it was, with the receives that were posted. */
static void ep_connect__without_an_identifier(void)
{
	DAT_EP_PARAM param = { .ep_attr.max_recv_dtos = 8 };
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_CONN_QUAL qualifier;
	struct rig a, b;

	rig_up(&a);
	rig_up(&b);
	listen_any(&b, &qualifier);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	OK(recv_nothing(ep_a, 1));
	refuse("create_id");
	CHECK_CODE(try_connect(ep_a, &b, qualifier, SOON), DAT_INSUFFICIENT_RESOURCES,
		   DAT_RESOURCE_TEP);
	CHECK(ep_state(ep_a) == DAT_EP_STATE_UNCONNECTED);
	EXPECT_NOTHING(a.connect_evd);
	refuse(NULL);
	OK(dat_ep_modify(ep_a, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &param));
	connect_by(&a, ep_a, &b, ep_b, qualifier);
	OK(send_nothing(ep_b, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a.recv_evd, 1, DAT_DTO_SUCCESS);
	rig_down(&a);
	rig_down(&b);
	expect_no_objects();
}

static int at_inline(const char *point)
{
	return strcmp(point, "inline") ? 0 : EINVAL;
}

/* A device that has no room for data in its requests takes those of the memory. */
static void ep_create__without_inline_data(void)
{
	struct pair pair;

	rig_up(&pair.a);
	rig_up(&pair.b);
	at_points(at_inline);
	pair.ep_a = make_ep(&pair.a, NULL);
	pair.ep_b = make_ep(&pair.b, NULL);
	connect_eps(&pair.a, pair.ep_a, &pair.b, pair.ep_b);
	expect_connected(&pair.a, pair.ep_a, &pair.b, pair.ep_b);
	pair_down(&pair);
	expect_no_objects();
}

/* There is no window for another bind: what was bound before stays. */
static void rmr_bind__without_a_window(void)
{
	DAT_RMR_CONTEXT context = 0, second = 0;
	DAT_LMR_TRIPLET range;
	DAT_RMR_PARAM param;
	DAT_RMR_HANDLE rmr;
	struct pair pair;
	struct mem mem;

	pair_up(&pair, NULL);
	mem = make_mem(&pair.a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	range = dx_local(mem.local, mem.at, 100);
	OK(dat_rmr_create(pair.a.pz, &rmr));
	OK(dx_rmr_bind(rmr, mem.lmr, &range, DAT_MEM_PRIV_REMOTE_READ_FLAG, pair.ep_a, cookie(1),
		       DAT_COMPLETION_DEFAULT_FLAG, &context));
	EXPECT(pair.a.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	refuse("alloc_mw");
	CHECK_RET(dx_rmr_bind(rmr, mem.lmr, &range, DAT_MEM_PRIV_REMOTE_READ_FLAG, pair.ep_a,
			      cookie(2), DAT_COMPLETION_DEFAULT_FLAG, &second),
		  DAT_INSUFFICIENT_RESOURCES);
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_RMR_CONTEXT, &param));
	CHECK(param.rmr_context == context);
	refuse(NULL);
	OK(dx_rmr_bind(rmr, mem.lmr, &range, DAT_MEM_PRIV_REMOTE_READ_FLAG, pair.ep_a, cookie(3),
		       DAT_COMPLETION_DEFAULT_FLAG, &second));
	EXPECT(pair.a.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	EXPECT_NOTHING(pair.a.request_evd);
	OK(dat_rmr_query(rmr, DAT_RMR_FIELD_RMR_CONTEXT, &param));
	CHECK(param.rmr_context != context);
	pair_down(&pair);
	expect_no_objects();
}

static const struct tap_test tests[] = {
	T(create, of_each_object),
	T(evd_resize, that_the_device_refuses),
	T(ep_create, as_many_as_the_device_has),
	T(ep_reset, without_a_queue_pair),
	T(ep_connect, without_an_identifier),
	T(ep_create, without_inline_data),
	T(rmr_bind, without_a_window),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
