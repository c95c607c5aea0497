/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What programs do against the letter of the man pages, and every library that they were built
 * on accepts: the table of dat.conf(5), without rules=pages. The IA is that of the test with
 * "-programs" behind its name. */
#include "flags.h"
#include "transfer.h"

#include <string.h>

/* One EVD for requests and receives, of both sides. */
static DAT_EVD_HANDLE evd_a, evd_b;

/* A connection whose two ends have one EVD each, with the streams `flags` besides completions. */
static void up_on_one_evd(DAT_COMPLETION_FLAGS recv_flags, DAT_COMPLETION_FLAGS request_flags,
			  DAT_EVD_FLAGS flags)
{
	struct rig *rigs[] = { &p.a, &p.b };
	DAT_EVD_HANDLE *evds[] = { &evd_a, &evd_b };
	DAT_EP_HANDLE *eps[] = { &p.ep_a, &p.ep_b };

	for (int i = 0; i < 2; i++) {
		DAT_EP_ATTR attr;

		rig_up(rigs[i]);
		attr = ep_attr(rigs[i]);
		attr.recv_completion_flags = recv_flags;
		attr.request_completion_flags = request_flags;
		*evds[i] = make_evd(rigs[i]->ia, 64, DAT_EVD_DTO_FLAG | flags);
		if (flags & DAT_EVD_CONNECTION_FLAG)
			rigs[i]->connect_evd = *evds[i];
		OK(dat_ep_create(rigs[i]->ia, rigs[i]->pz, *evds[i], *evds[i], rigs[i]->connect_evd,
				 &attr, eps[i]));
	}
	ma = make_mem(&p.a, SIZE, DAT_MEM_PRIV_ALL_FLAG);
	mb = make_mem(&p.b, SIZE, DAT_MEM_PRIV_ALL_FLAG);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
}

static DAT_CNO_HANDLE watch(const struct rig *rig, DAT_EVD_HANDLE evd)
{
	DAT_CNO_HANDLE cno;

	OK(dat_cno_create(rig->ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	OK(dat_evd_modify_cno(evd, cno));
	return cno;
}

static void told(DAT_CNO_HANDLE cno, DAT_EVD_HANDLE evd)
{
	DAT_EVD_HANDLE from;

	REQUIRE_RET(dat_cno_wait(cno, SOON, &from), DAT_SUCCESS);
	CHECK(from == evd);
}

static void not_told(DAT_CNO_HANDLE cno)
{
	DAT_EVD_HANDLE from;

	CHECK_RET(dat_cno_wait(cno, NEVER, &from), DAT_QUEUE_EMPTY);
}

/* The next event is there, and is this completion. */
static void take(DAT_EVD_HANDLE evd, DAT_UINT64 value)
{
	unsigned long long end = now_us() + SOON;
	DAT_EVENT event;
	DAT_RETURN ret;

	while (DAT_GET_TYPE(ret = dat_evd_dequeue(evd, &event)) == DAT_QUEUE_EMPTY &&
	       now_us() < end)
		pause_us(100);
	OK(ret);
	CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, value);
	CHECK_EQ(event.event_data.dto_completion_event_data.status, DAT_DTO_SUCCESS);
}

static DAT_EVD_STATE config_of(DAT_EVD_HANDLE evd)
{
	DAT_EVD_PARAM param;

	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	return (DAT_EVD_STATE)(param.evd_state & DAT_EVD_STATE_CONFIG_THRESHOLD);
}

/* --- streams that share an EVD -------------------------------------------------------------------- */

/* Requests that need not notify and receives that do, as MPI libraries have them. */
static void sharing__unsignalled_requests_with_receives(void)
{
	DAT_CNO_HANDLE cno;

	up_on_one_evd(DEFAULT, UNSIGNALLED, 0);
	CHECK_EQ(config_of(evd_a), DAT_EVD_STATE_CONFIG_NOTIFY);
	cno = watch(&p.a, evd_a);
	/* A completion that is not to notify does not. */
	OK(a_writes(0, 0, 8, 1, UNSIGNALLED));
	not_told(cno);
	take(evd_a, 1);
	/* One that is to does. */
	OK(a_writes(0, 0, 8, 2, DEFAULT));
	told(cno, evd_a);
	take(evd_a, 2);
	/* Receives do. */
	OK(recv_nothing(p.ep_a, 3));
	OK(send_nothing(p.ep_b, 4, DEFAULT));
	told(cno, evd_a);
	take(evd_a, 3);
	down();
}

/* The same with a thread that waits. */
static void sharing__unsignalled_requests_with_receives_wait(void)
{
	DAT_EVENT event;
	DAT_COUNT more;

	up_on_one_evd(DEFAULT, UNSIGNALLED, 0);
	for (DAT_UINT64 i = 0; i < 50; i++) {
		OK(recv_nothing(p.ep_b, i));
		OK(send_nothing(p.ep_a, 100 + i, UNSIGNALLED));
		EXPECT_DTO(evd_b, i, DAT_DTO_SUCCESS);
		OK(recv_nothing(p.ep_a, 200 + i));
		OK(send_nothing(p.ep_b, 300 + i, DEFAULT));
		EXPECT_DTO(evd_b, 300 + i, DAT_DTO_SUCCESS);
		/* The receive wakes, behind the request that did not. */
		OK(dat_evd_wait(evd_a, SOON, 1, &event, &more));
		CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, 100 + i);
		take(evd_a, 200 + i);
	}
	down();
}

static void sharing__solicited_receives_with_requests(void)
{
	DAT_CNO_HANDLE cno;

	up_on_one_evd(SOLICITED, DEFAULT, 0);
	CHECK_EQ(config_of(evd_b), DAT_EVD_STATE_CONFIG_SOLICITED);
	cno = watch(&p.b, evd_b);
	OK(recv_nothing(p.ep_b, 1));
	OK(recv_nothing(p.ep_b, 2));
	OK(recv_nothing(p.ep_a, 5));
	OK(send_nothing(p.ep_a, 3, SOLICITED));
	told(cno, evd_b);
	take(evd_b, 1);
	OK(send_nothing(p.ep_b, 4, DEFAULT));
	told(cno, evd_b);
	take(evd_b, 4);
	down();
}

static void sharing__solicited_receives_that_are_not(void)
{
	DAT_CNO_HANDLE cno;

	up_on_one_evd(SOLICITED, UNSIGNALLED, 0);
	cno = watch(&p.b, evd_b);
	OK(recv_nothing(p.ep_b, 1));
	OK(send_nothing(p.ep_a, 2, DEFAULT));
	take(evd_a, 2);
	not_told(cno);
	take(evd_b, 1);
	down();
}

static void sharing__with_connection_events(void)
{
	DAT_CNO_HANDLE cno;

	up_on_one_evd(DEFAULT, UNSIGNALLED, DAT_EVD_CONNECTION_FLAG);
	cno = watch(&p.a, evd_a);
	OK(a_writes(0, 0, 8, 1, UNSIGNALLED));
	not_told(cno);
	OK(dat_ep_disconnect(p.ep_b, DAT_CLOSE_ABRUPT_FLAG));
	told(cno, evd_a);
	take(evd_a, 1);
	EXPECT(evd_a, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(evd_b, DAT_CONNECTION_EVENT_DISCONNECTED);
	down();
}

static void sharing__with_software_events(void)
{
	DAT_CNO_HANDLE cno;

	up_on_one_evd(SOLICITED, UNSIGNALLED, DAT_EVD_SOFTWARE_FLAG);
	cno = watch(&p.a, evd_a);
	OK(a_writes(0, 0, 8, 1, UNSIGNALLED));
	not_told(cno);
	OK(post_software_event(evd_a, 0));
	told(cno, evd_a);
	take(evd_a, 1);
	EXPECT(evd_a, DAT_SOFTWARE_EVENT);
	down();
}

/* Endpoints of all kinds, and one whose flags change. */
static void sharing__endpoints_of_all_kinds(void)
{
	const DAT_COMPLETION_FLAGS recv[] = { DEFAULT, SOLICITED, THRESHOLD };
	const DAT_COMPLETION_FLAGS request[] = { UNSIGNALLED, DEFAULT, THRESHOLD };
	DAT_EP_HANDLE eps[9], *next = eps;
	DAT_EVD_HANDLE evd;
	DAT_EP_PARAM param;
	DAT_EP_ATTR attr;
	struct rig rig;

	rig_up(&rig);
	evd = make_evd(rig.ia, 64, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG | DAT_EVD_CR_FLAG);
	attr = ep_attr(&rig);
	for (int i = 0; i < 3; i++)
		for (int j = 0; j < 3; j++) {
			attr.recv_completion_flags = recv[i];
			attr.request_completion_flags = request[j];
			REQUIRE_RET(dat_ep_create(rig.ia, rig.pz, evd, evd, evd, &attr, next++),
				    DAT_SUCCESS);
		}
	memset(&param, 0, sizeof param);
	param.ep_attr.recv_completion_flags = SOLICITED;
	CHECK_RET(dat_ep_modify(eps[0], DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, &param),
		  DAT_SUCCESS);
	while (next > eps)
		OK(dat_ep_free(*--next));
	CHECK_EQ(config_of(evd), 0);
	CHECK_RET(dat_evd_free(evd), DAT_SUCCESS);
	rig_down(&rig);
}

/* dat_evd_wait counts all events; those that notify end the wait. */
static void sharing__threshold(void)
{
	DAT_EVENT event;
	DAT_COUNT more = -1;

	up_on_one_evd(DEFAULT, UNSIGNALLED, 0);
	OK(a_writes(0, 0, 8, 1, UNSIGNALLED));
	OK(a_writes(0, 0, 8, 2, DEFAULT));
	CHECK_RET(dat_evd_wait(evd_a, NEVER, 3, &event, &more), DAT_TIMEOUT_EXPIRED);
	CHECK_EQ(more, 2);
	OK(a_writes(0, 0, 8, 3, DEFAULT));
	CHECK_RET(dat_evd_wait(evd_a, SOON, 3, &event, &more), DAT_SUCCESS);
	CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, 1);
	CHECK_EQ(more, 2);
	down();
}

/* --- completion flags of operations ---------------------------------------------------------------- */

/* UNSIGNALLED on endpoints made without it means nothing: the completion notifies. */
static void post__unsignalled_not_configured(void)
{
	DAT_LMR_TRIPLET none = { 0 };
	DAT_CNO_HANDLE cno;

	up();
	cno = watch(&p.a, p.a.request_evd);
	CHECK_RET(a_writes(0, 0, 8, 1, UNSIGNALLED), DAT_SUCCESS);
	told(cno, p.a.request_evd);
	take(p.a.request_evd, 1);
	CHECK_RET(a_reads(0, 0, 8, 2, UNSIGNALLED), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK_RET(dat_ep_post_recv(p.ep_b, 0, &none, cookie(3), UNSIGNALLED), DAT_SUCCESS);
	CHECK_RET(send_nothing(p.ep_a, 4, UNSIGNALLED), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 4, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 3, DAT_DTO_SUCCESS);
	down();
}

/* Flags that an operation does not have are passed over. */
static void post__flags_of_other_operations(void)
{
	const DAT_COMPLETION_FLAGS flags[] = { SUPPRESS, SOLICITED, FENCE, THRESHOLD,
					       (DAT_COMPLETION_FLAGS)0x4000 };
	DAT_LMR_TRIPLET none = { 0 };

	up();
	for (DAT_UINT64 i = 0; i < 5; i++) {
		CHECK_RET(dat_ep_post_recv(p.ep_b, 0, &none, cookie(i), flags[i]), DAT_SUCCESS);
		CHECK_RET(send_nothing(p.ep_a, 10 + i, THRESHOLD), DAT_SUCCESS);
		EXPECT_DTO(p.a.request_evd, 10 + i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, i, DAT_DTO_SUCCESS);
	}
	CHECK_RET(a_writes(0, 0, 8, 1, (DAT_COMPLETION_FLAGS)(SOLICITED | THRESHOLD)), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	CHECK_RET(a_reads(0, 0, 8, 2, SOLICITED), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	down();
}

static void post__flags_of_a_bind(void)
{
	DAT_RMR_CONTEXT window;
	DAT_LMR_TRIPLET range;
	DAT_RMR_HANDLE rmr;
	DAT_EVENT event;

	up();
	if (DAT_GET_TYPE(dat_rmr_create(p.a.pz, &rmr)) == DAT_MODEL_NOT_SUPPORTED)
		tap_unsupported("no memory windows");
	range = dx_local(ma.local, ma.at, 4096);
	CHECK_RET(dx_rmr_bind(rmr, ma.lmr, &range, DAT_MEM_PRIV_REMOTE_READ_FLAG, p.ep_a, cookie(1),
			      UNSIGNALLED, &window),
		  DAT_SUCCESS);
	event = EXPECT(p.a.request_evd, DAT_RMR_BIND_COMPLETION_EVENT);
	CHECK_EQ(event.event_data.rmr_completion_event_data.user_cookie.as_64, 1);
	down();
}

/* --- attributes of endpoints ------------------------------------------------------------------------- */

/* The attributes of an endpoint made with these. */
static DAT_EP_ATTR made_with(const struct rig *rig, DAT_EP_ATTR attr)
{
	DAT_EP_PARAM param;
	DAT_EP_HANDLE ep;

	OK(dat_ep_create(rig->ia, rig->pz, rig->recv_evd, rig->request_evd, rig->connect_evd, &attr,
			 &ep));
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	OK(dat_ep_free(ep));
	return param.ep_attr;
}

/* 2 GiB, InfiniBand's limit, which programs ask for as a constant. */
static void attribute__sizes(void)
{
	const DAT_VLEN most = (DAT_VLEN)1 << 31;
	struct rig rig;
	DAT_EP_ATTR attr, got;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	attr = ep_attr(&rig);
	attr.max_message_size = most;
	attr.max_rdma_size = most;
	got = made_with(&rig, attr);
	CHECK_EQ(got.max_message_size,
		 rig.attr.max_message_size < most ? rig.attr.max_message_size : most);
	CHECK_EQ(got.max_rdma_size, rig.attr.max_rdma_size < most ? rig.attr.max_rdma_size : most);
	/* What no adapter has is refused. */
	attr.max_message_size = most + 1;
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.request_evd, rig.connect_evd,
				&attr, &ep),
		  DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

/* Attributes that existing libraries do not read, as a program leaves them that does not set
 * them; and completion flags without a meaning. */
static void attribute__not_set(void)
{
	struct rig rig;
	DAT_EP_ATTR attr, got;

	rig_up(&rig);
	attr = ep_attr(&rig);
	attr.service_type = (DAT_SERVICE_TYPE)0;
	attr.qos = (DAT_QOS)0x5a5a;
	attr.max_rdma_read_iov = 0x5a5a5a5a;
	attr.max_rdma_write_iov = -0x5a5a5a5a;
	attr.srq_soft_hw = -0x5a5a5a5a;
	attr.request_completion_flags = (DAT_COMPLETION_FLAGS)0x20;
	attr.recv_completion_flags = FENCE;
	got = made_with(&rig, attr);
	CHECK_EQ(got.service_type, DAT_SERVICE_TYPE_RC);
	CHECK_EQ(got.qos, DAT_QOS_BEST_EFFORT);
	CHECK_EQ(got.max_rdma_read_iov, rig.attr.max_iov_segments_per_rdma_read);
	CHECK_EQ(got.max_rdma_write_iov, 0);
	CHECK_EQ(got.request_completion_flags, DEFAULT);
	CHECK_EQ(got.recv_completion_flags, DEFAULT);
	/* What the libraries check is checked. */
	attr.recv_completion_flags = SUPPRESS;
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.recv_evd, rig.request_evd, rig.connect_evd,
				&attr, &p.ep_a),
		  DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static void attribute__modified(void)
{
	const DAT_VLEN most = (DAT_VLEN)1 << 31;
	struct rig rig;
	DAT_EP_PARAM param;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	memset(&param, 0, sizeof param);
	param.ep_attr.max_message_size = most;
	param.ep_attr.qos = (DAT_QOS)0x5a5a;
	CHECK_RET(dat_ep_modify(ep,
				DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE | DAT_EP_FIELD_EP_ATTR_QOS,
				&param),
		  DAT_SUCCESS);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	CHECK(param.ep_attr.max_message_size <= rig.attr.max_message_size);
	rig_down(&rig);
}

/* A watermark of 0, as programs leave what they do not know of, is none. */
static void srq__no_mark_given(void)
{
	DAT_SRQ_ATTR srq_attr = { .max_recv_dtos = 4, .max_recv_iov = 1 };
	DAT_LMR_TRIPLET iov;
	DAT_SRQ_HANDLE srq;
	DAT_EP_ATTR attr;

	rig_up(&p.a);
	rig_up(&p.b);
	if (!p.b.provider.srq_supported)
		tap_unsupported("no SRQ");
	attr = ep_attr(&p.b);
	attr.srq_soft_hw = 0;
	/* What Solaris' library asks for. */
	attr.max_recv_dtos = DAT_HW_DEFAULT;
	OK(dat_srq_create(p.b.ia, p.b.pz, &srq_attr, &srq));
	OK(dat_ep_create_with_srq(p.b.ia, p.b.pz, p.b.recv_evd, p.b.request_evd, p.b.connect_evd,
				  srq, &attr, &p.ep_b));
	p.ep_a = make_ep(&p.a, NULL);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	mb = make_mem(&p.b, 64, DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
	iov = dx_local(mb.local, mb.at, 64);
	OK(dat_srq_post_recv(srq, 1, &iov, cookie(1)));
	OK(send_nothing(p.ep_a, 2, DEFAULT));
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_NOTHING(p.b.async_evd);
	down();
}

/* --- memory --------------------------------------------------------------------------------------------- */

static void sends_and_writes_from(DAT_MEM_PRIV_FLAGS privileges)
{
	DAT_LMR_TRIPLET iov;
	DAT_RMR_TRIPLET remote;

	up();
	free_mem(&ma);
	ma = make_mem(&p.a, 4096, privileges);
	fill(ma.at, 4096, 4);
	OK(b_receives(0, 4096, 1));
	iov = dx_local(ma.local, ma.at, 4096);
	CHECK_RET(dat_ep_post_send(p.ep_a, 1, &iov, cookie(2), DEFAULT), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, 4096, 4));
	remote = dx_remote(mb.remote, mb.at + 4096, 4096);
	CHECK_RET(dat_ep_post_rdma_write(p.ep_a, 1, &iov, cookie(3), &remote, DEFAULT),
		  DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	/* A message says that what was written before it is there. */
	OK(recv_nothing(p.ep_b, 4));
	OK(send_nothing(p.ep_a, 5, DEFAULT));
	EXPECT_DTO(p.b.recv_evd, 4, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at + 4096, 4096, 4));
	free_mem(&ma);
	free_mem(&mb);
	down();
}

static void memory__local_write_alone(void)
{
	sends_and_writes_from(DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
}

/* What peers may do, or nothing, was asked for. */
static void memory__remote_privileges_alone(void)
{
	sends_and_writes_from(DAT_MEM_PRIV_REMOTE_READ_FLAG);
	sends_and_writes_from(DAT_MEM_PRIV_NONE_FLAG);
}

/* Messages and RDMA beyond the sizes of the endpoint, up to those of the IA. */
static void post__beyond_the_size_of_the_endpoint(void)
{
	DAT_EP_ATTR attr = usual_attr();

	attr.max_message_size = 0;
	attr.max_rdma_size = 0;
	up_with(&attr);
	OK(b_receives(0, 5000, 1));
	CHECK_RET(a_sends(0, 5000, 2, DEFAULT), DAT_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK_RET(a_writes(0, 0, 5000, 3, DEFAULT), DAT_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	down();
}

/* Completions of binds in an EVD that was made for those of transfers alone. */
static void post__binds_with_an_evd_for_transfers(void)
{
	DAT_RMR_HANDLE rmr;
	DAT_RMR_CONTEXT key = 0;
	DAT_LMR_TRIPLET range;

	up();
	if (DAT_GET_TYPE(dat_rmr_create(p.b.pz, &rmr)) == DAT_MODEL_NOT_SUPPORTED)
		tap_unsupported("no memory windows");
	range = dx_local(mb.local, mb.at, 100);
	CHECK_RET(dx_rmr_bind(rmr, mb.lmr, &range, DAT_MEM_PRIV_REMOTE_READ_FLAG, p.ep_b, cookie(1),
			      DEFAULT, &key),
		  DAT_SUCCESS);
	CHECK_EQ(EXPECT(p.b.request_evd, DAT_RMR_BIND_COMPLETION_EVENT)
			 .event_data.rmr_completion_event_data.user_cookie.as_64,
		 1);
	down();
}

/* Requests that an endpoint does not take: their refusal is that of one without a connection, whatever the state. */
static void post__refused_while_connecting(void)
{
	DAT_EP_HANDLE ep;
	DAT_CONN_QUAL qualifier;

	rig_up(&p.a);
	rig_up(&p.b);
	ep = make_ep(&p.a, NULL);
	listen_any(&p.b, &qualifier);
	OK(try_connect(ep, &p.b, qualifier, SOON));
	await_request(&p.b);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_ACTIVE_CONNECTION_PENDING);
	CHECK_CODE(send_nothing(ep, 1, DEFAULT), DAT_INVALID_STATE,
		   DAT_INVALID_STATE_EP_UNCONNECTED);
	rig_down(&p.a);
	rig_down(&p.b);
}

static const struct tap_test tests[] = {
	T(sharing, unsignalled_requests_with_receives),
	T(sharing, unsignalled_requests_with_receives_wait),
	T(sharing, solicited_receives_with_requests),
	T(sharing, solicited_receives_that_are_not),
	T(sharing, with_connection_events),
	T(sharing, with_software_events),
	T(sharing, endpoints_of_all_kinds),
	T(sharing, threshold),
	T(post, unsignalled_not_configured),
	T(post, flags_of_other_operations),
	T(post, flags_of_a_bind),
	T(post, beyond_the_size_of_the_endpoint),
	T(post, binds_with_an_evd_for_transfers),
	T(post, refused_while_connecting),
	T(attribute, sizes),
	T(attribute, not_set),
	T(attribute, modified),
	T(srq, no_mark_given),
	T(memory, local_write_alone),
	T(memory, remote_privileges_alone),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main_programs(argc, argv, tests);
}
