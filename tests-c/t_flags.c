/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Completion flags: as attributes of an endpoint, of each operation, and what may share an EVD. What
 * notifies is in t_notify; suppression and the basics of UNSIGNALLED are in t_post. */
#include "flags.h"
#include "transfer.h"

/* An endpoint with these flags on these EVDs. */
static DAT_RETURN create(const struct rig *rig, DAT_EVD_HANDLE recv_evd,
			 DAT_COMPLETION_FLAGS recv_flags, DAT_EVD_HANDLE request_evd,
			 DAT_COMPLETION_FLAGS request_flags)
{
	DAT_EP_ATTR attr = ep_attr(rig);
	DAT_EP_HANDLE ep;

	attr.recv_completion_flags = recv_flags;
	attr.request_completion_flags = request_flags;
	return dat_ep_create(rig->ia, rig->pz, recv_evd, request_evd, rig->connect_evd, &attr, &ep);
}

static DAT_EVD_HANDLE dto_evd(const struct rig *rig)
{
	return make_evd(rig->ia, 16, DAT_EVD_DTO_FLAG);
}

static DAT_EVD_STATE config_of(DAT_EVD_HANDLE evd)
{
	DAT_EVD_PARAM param;

	OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
	return (DAT_EVD_STATE)(param.evd_state & DAT_EVD_STATE_CONFIG_THRESHOLD);
}

/* --- attributes ------------------------------------------------------------------------------- */

static void attribute__recv_flags(void)
{
	const DAT_COMPLETION_FLAGS good[] = { DEFAULT, UNSIGNALLED, SOLICITED, THRESHOLD };
	const DAT_COMPLETION_FLAGS bad[] = { SUPPRESS, FENCE, (DAT_COMPLETION_FLAGS)0x20 };
	struct rig rig;

	rig_up(&rig);
	for (int i = 0; i < 4; i++)
		CHECK_RET(create(&rig, dto_evd(&rig), good[i], rig.request_evd, DEFAULT),
			  DAT_SUCCESS);
	for (int i = 0; i < 3; i++)
		CHECK_RET(create(&rig, dto_evd(&rig), bad[i], rig.request_evd, DEFAULT),
			  DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static void attribute__request_flags(void)
{
	const DAT_COMPLETION_FLAGS good[] = { DEFAULT, UNSIGNALLED, THRESHOLD };
	struct rig rig;

	rig_up(&rig);
	for (int i = 0; i < 3; i++)
		CHECK_RET(create(&rig, rig.recv_evd, DEFAULT, dto_evd(&rig), good[i]), DAT_SUCCESS);
	CHECK_RET(create(&rig, rig.recv_evd, DEFAULT, dto_evd(&rig), (DAT_COMPLETION_FLAGS)0x20),
		  DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static void attribute__shows_in_the_evd(void)
{
	struct rig rig;
	DAT_EVD_HANDLE notify, solicited, threshold;
	DAT_EP_HANDLE ep;
	DAT_EP_ATTR attr;

	rig_up(&rig);
	notify = dto_evd(&rig);
	solicited = dto_evd(&rig);
	threshold = dto_evd(&rig);
	OK(create(&rig, rig.recv_evd, DEFAULT, notify, UNSIGNALLED));
	CHECK_EQ(config_of(notify), DAT_EVD_STATE_CONFIG_NOTIFY);
	OK(create(&rig, solicited, SOLICITED, rig.request_evd, DEFAULT));
	CHECK_EQ(config_of(solicited), DAT_EVD_STATE_CONFIG_SOLICITED);
	attr = ep_attr(&rig);
	attr.recv_completion_flags = THRESHOLD;
	OK(dat_ep_create(rig.ia, rig.pz, threshold, rig.request_evd, rig.connect_evd, &attr, &ep));
	CHECK_EQ(config_of(threshold), DAT_EVD_STATE_CONFIG_THRESHOLD);
	/* It goes with the endpoint. */
	OK(dat_ep_free(ep));
	CHECK_EQ(config_of(threshold), 0);
	rig_down(&rig);
}

static void attribute__threshold_governs_the_waiter(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_EVENT event;
	DAT_COUNT more = -1;

	attr.request_completion_flags = THRESHOLD;
	up_with(&attr);
	OK(a_writes(0, 0, 8, 1, DEFAULT));
	OK(a_writes(0, 0, 8, 2, DEFAULT));
	CHECK_RET(dat_evd_wait(p.a.request_evd, NEVER, 3, &event, &more), DAT_TIMEOUT_EXPIRED);
	CHECK_EQ(more, 2);
	OK(a_writes(0, 0, 8, 3, DEFAULT));
	CHECK_RET(dat_evd_wait(p.a.request_evd, SOON, 3, &event, &more), DAT_SUCCESS);
	CHECK_EQ(event.event_data.dto_completion_event_data.user_cookie.as_64, 1);
	CHECK_EQ(more, 2);
	down();
}

/* --- what may share an EVD ---------------------------------------------------------------------- */

static void sharing__unsignalled(void)
{
	struct rig rig;
	DAT_EVD_HANDLE evd;

	rig_up(&rig);
	evd = dto_evd(&rig);
	OK(create(&rig, rig.recv_evd, DEFAULT, evd, UNSIGNALLED));
	CHECK_RET(create(&rig, rig.recv_evd, DEFAULT, evd, DEFAULT), DAT_INVALID_PARAMETER);
	CHECK_RET(create(&rig, evd, DEFAULT, rig.request_evd, DEFAULT), DAT_INVALID_PARAMETER);
	CHECK_RET(create(&rig, rig.recv_evd, DEFAULT, evd, UNSIGNALLED), DAT_SUCCESS);
	/* Nor the other way round. */
	evd = dto_evd(&rig);
	OK(create(&rig, rig.recv_evd, DEFAULT, evd, DEFAULT));
	CHECK_RET(create(&rig, rig.recv_evd, DEFAULT, evd, UNSIGNALLED), DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static void sharing__solicited(void)
{
	struct rig rig;
	DAT_EVD_HANDLE evd;

	rig_up(&rig);
	evd = dto_evd(&rig);
	OK(create(&rig, evd, SOLICITED, rig.request_evd, DEFAULT));
	CHECK_RET(create(&rig, evd, DEFAULT, rig.request_evd, DEFAULT), DAT_INVALID_PARAMETER);
	CHECK_RET(create(&rig, rig.recv_evd, DEFAULT, evd, DEFAULT), DAT_INVALID_PARAMETER);
	CHECK_RET(create(&rig, evd, SOLICITED, rig.request_evd, DEFAULT), DAT_SUCCESS);
	/* Receives and requests of one endpoint on one EVD. */
	evd = dto_evd(&rig);
	CHECK_RET(create(&rig, evd, SOLICITED, evd, DEFAULT), DAT_INVALID_PARAMETER);
	/* Nor with further flags, nor with requests of a like name. */
	evd = dto_evd(&rig);
	OK(create(&rig, evd, SOLICITED, rig.request_evd, DEFAULT));
	CHECK_RET(create(&rig, evd, SOLICITED | THRESHOLD, rig.request_evd, DEFAULT),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(create(&rig, rig.recv_evd, DEFAULT, evd, SOLICITED), DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

/* The completions of an EVD have the same flags. */
static void sharing__threshold(void)
{
	struct rig rig;
	DAT_EVD_HANDLE evd;

	rig_up(&rig);
	evd = dto_evd(&rig);
	OK(create(&rig, evd, THRESHOLD, rig.request_evd, DEFAULT));
	CHECK_RET(create(&rig, evd, DEFAULT, rig.request_evd, DEFAULT), DAT_INVALID_PARAMETER);
	CHECK_RET(create(&rig, rig.recv_evd, DEFAULT, evd, DEFAULT), DAT_INVALID_PARAMETER);
	CHECK_RET(create(&rig, rig.recv_evd, DEFAULT, evd, UNSIGNALLED), DAT_INVALID_PARAMETER);
	CHECK_RET(create(&rig, evd, THRESHOLD, evd, THRESHOLD), DAT_SUCCESS);
	/* What requests may be without the attribute is no difference. */
	CHECK_RET(create(&rig, rig.recv_evd, DEFAULT, evd, THRESHOLD | SUPPRESS | FENCE),
		  DAT_SUCCESS);
	/* Nor the other way round. */
	evd = dto_evd(&rig);
	OK(create(&rig, rig.recv_evd, DEFAULT, evd, DEFAULT));
	CHECK_RET(create(&rig, evd, THRESHOLD, rig.request_evd, DEFAULT), DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

/* Requests for connections, in an EVD with completions. */
static void sharing__with_requests(void)
{
	const DAT_COMPLETION_FLAGS good[] = { DEFAULT, THRESHOLD };
	const DAT_COMPLETION_FLAGS bad[] = { UNSIGNALLED, SOLICITED };
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp;
	struct rig rig;

	rig_up(&rig);
	REQUIRE(rig.provider.evd_stream_merging_supported[1][2]);
	for (int i = 0; i < 2; i++) {
		DAT_EVD_HANDLE evd = make_evd(rig.ia, 16, DAT_EVD_DTO_FLAG | DAT_EVD_CR_FLAG);

		OK(create(&rig, evd, bad[i], rig.request_evd, DEFAULT));
		CHECK_RET(dat_psp_create_any(rig.ia, &qualifier, evd, DAT_PSP_CONSUMER_FLAG, &psp),
			  DAT_INVALID_PARAMETER);
		evd = make_evd(rig.ia, 16, DAT_EVD_DTO_FLAG | DAT_EVD_CR_FLAG);
		OK(dat_psp_create_any(rig.ia, &qualifier, evd, DAT_PSP_CONSUMER_FLAG, &psp));
		CHECK_RET(create(&rig, evd, bad[i], rig.request_evd, DEFAULT),
			  DAT_INVALID_PARAMETER);
		CHECK_RET(create(&rig, evd, good[i], rig.request_evd, DEFAULT), DAT_SUCCESS);
	}
	rig_down(&rig);
}

static void sharing__with_other_streams(void)
{
	struct rig rig;
	DAT_EVD_HANDLE evd;
	DAT_EP_ATTR attr;
	DAT_EP_HANDLE ep;

	/* Connection events and completions in one EVD. */
	rig_up(&rig);
	REQUIRE(rig.provider.evd_stream_merging_supported[2][3]);
	evd = make_evd(rig.ia, 16, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG);
	attr = ep_attr(&rig);
	attr.request_completion_flags = UNSIGNALLED;
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.recv_evd, evd, evd, &attr, &ep),
		  DAT_INVALID_PARAMETER);
	attr.request_completion_flags = THRESHOLD;
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.recv_evd, evd, evd, &attr, &ep), DAT_SUCCESS);
	evd = make_evd(rig.ia, 16, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG);
	attr.request_completion_flags = DEFAULT;
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, evd, evd, evd, &attr, &ep), DAT_SUCCESS);
	rig_down(&rig);
}

/* --- flags of operations ------------------------------------------------------------------------- */

static void operation__send_flags(void)
{
	DAT_EP_ATTR attr = usual_attr();

	attr.request_completion_flags = UNSIGNALLED;
	up_with(&attr);
	for (DAT_UINT64 flags = 0; flags < 16; flags++) {
		OK(b_receives(0, 8, flags));
		CHECK_RET(a_sends(0, 8, flags, (DAT_COMPLETION_FLAGS)flags), DAT_SUCCESS);
		EXPECT_DTO(p.b.recv_evd, flags, DAT_DTO_SUCCESS);
	}
	CHECK_RET(a_sends(0, 8, 1, THRESHOLD), DAT_INVALID_PARAMETER);
	down();
}

static void operation__rdma_flags(void)
{
	DAT_EP_ATTR attr = usual_attr();

	attr.request_completion_flags = UNSIGNALLED;
	up_with(&attr);
	for (unsigned i = 0; i < 16; i++) {
		DAT_COMPLETION_FLAGS flags = (DAT_COMPLETION_FLAGS)i;
		DAT_RETURN want = i & SOLICITED ? DAT_INVALID_PARAMETER : DAT_SUCCESS;

		CHECK_RET(a_writes(0, 0, 8, i, flags), want);
		CHECK_RET(a_reads(0, 0, 8, i, flags), want);
		/* Retires what was suppressed. */
		OK(a_writes(0, 0, 8, 99, DEFAULT));
		for (int signalled = i & (SUPPRESS | SOLICITED) ? 0 : 2; signalled > 0; signalled--)
			EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
		EXPECT_DTO(p.a.request_evd, 99, DAT_DTO_SUCCESS);
	}
	CHECK_RET(a_writes(0, 0, 8, 1, THRESHOLD), DAT_INVALID_PARAMETER);
	CHECK_RET(a_reads(0, 0, 8, 1, THRESHOLD), DAT_INVALID_PARAMETER);
	down();
}

static void operation__recv_flags(void)
{
	const DAT_COMPLETION_FLAGS bad[] = { SUPPRESS, SOLICITED, FENCE, THRESHOLD };
	DAT_EP_ATTR attr = usual_attr();
	DAT_LMR_TRIPLET none = { 0 };

	attr.recv_completion_flags = UNSIGNALLED;
	up_with(&attr);
	for (int i = 0; i < 4; i++)
		CHECK_RET(dat_ep_post_recv(p.ep_b, 0, &none, cookie(1), bad[i]),
			  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_post_recv(p.ep_b, 0, &none, cookie(1), UNSIGNALLED), DAT_SUCCESS);
	CHECK_RET(dat_ep_post_recv(p.ep_b, 0, &none, cookie(2), DEFAULT), DAT_SUCCESS);
	down();
}

static const struct tap_test tests[] = {
	T(attribute, recv_flags),
	T(attribute, request_flags),
	T(attribute, shows_in_the_evd),
	T(attribute, threshold_governs_the_waiter),
	T(sharing, unsignalled),
	T(sharing, solicited),
	T(sharing, threshold),
	T(sharing, with_requests),
	T(sharing, with_other_streams),
	T(operation, send_flags),
	T(operation, rdma_flags),
	T(operation, recv_flags),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
