/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Public service points: dat_psp_create(3DAT), dat_psp_create_any(3DAT), _query, _free. */
#include "common.h"

#include <string.h>

static DAT_RETURN create(const struct rig *rig, DAT_CONN_QUAL qualifier, DAT_PSP_HANDLE *psp)
{
	return dat_psp_create(rig->ia, qualifier, rig->cr_evd, DAT_PSP_CONSUMER_FLAG, psp);
}

/* What a query gives of a listener without endpoints. */
static void check_query(const struct rig *rig, DAT_PSP_HANDLE psp, DAT_CONN_QUAL qualifier)
{
	DAT_PSP_PARAM param;

	memset(&param, 0xff, sizeof param);
	OK(dat_psp_query(psp, DAT_PSP_FIELD_ALL, &param));
	CHECK(param.ia_handle == rig->ia);
	CHECK_EQ(param.conn_qual, qualifier);
	CHECK(param.evd_handle == rig->cr_evd);
	CHECK_EQ(param.psp_flags, DAT_PSP_CONSUMER_FLAG);
}

static void psp_create__and_query(void)
{
	struct rig rig;
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp = DAT_HANDLE_NULL;
	DAT_PSP_PARAM param;
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;

	rig_up(&rig);
	qualifier = free_qualifier(&rig);
	OK(create(&rig, qualifier, &psp));
	check_query(&rig, psp, qualifier);
	OK(dat_get_handle_type(psp, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_PSP);
	CHECK_RET(dat_psp_query(psp, DAT_PSP_FIELD_ALL, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_psp_query(psp, (DAT_PSP_PARAM_MASK)0x40000, &param), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_psp_free(psp), DAT_SUCCESS);
	CHECK_RET(dat_psp_free(psp), DAT_INVALID_HANDLE);
	rig_down(&rig);
}

static void psp_create__qualifier_in_use(void)
{
	struct rig rig, other;
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp, second;

	rig_up(&rig);
	rig_up(&other);
	psp = listen_any(&rig, &qualifier);
	CHECK_RET(create(&rig, qualifier, &second), DAT_CONN_QUAL_IN_USE);
	CHECK_RET(create(&other, qualifier, &second), DAT_CONN_QUAL_IN_USE);
	/* Free again at once. */
	CHECK_RET(dat_psp_free(psp), DAT_SUCCESS);
	CHECK_RET(create(&other, qualifier, &second), DAT_SUCCESS);
	rig_down(&rig);
	rig_down(&other);
}

static void psp_create__qualifier_free_again_after_connections(void)
{
	struct pair pair;
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp;
	DAT_EP_HANDLE ep_a, ep_b;

	pair_up(&pair, NULL);
	ep_a = make_ep(&pair.a, NULL);
	ep_b = make_ep(&pair.b, NULL);
	psp = listen_any(&pair.b, &qualifier);
	OK(try_connect(ep_a, &pair.b, qualifier, SOON));
	OK(dat_cr_accept(await_request(&pair.b), ep_b, 0, NULL));
	EXPECT(pair.a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(pair.b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	OK(dat_psp_free(psp));
	CHECK_RET(create(&pair.b, qualifier, &psp), DAT_SUCCESS);
	pair_down(&pair);
}

static void psp_create__arguments(void)
{
	struct rig rig;
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp;

	rig_up(&rig);
	qualifier = free_qualifier(&rig);
	CHECK_RET(create(&rig, qualifier, NULL), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_psp_create(rig.ia, qualifier, rig.cr_evd, (DAT_PSP_FLAGS)7, &psp),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_psp_create(rig.ia, qualifier, rig.recv_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		  DAT_INVALID_HANDLE);
	CHECK_RET(dat_psp_create(rig.ia, qualifier, DAT_HANDLE_NULL, DAT_PSP_CONSUMER_FLAG, &psp),
		  DAT_INVALID_HANDLE);
	CHECK_RET(dat_psp_create(rig.ia, qualifier, rig.pz, DAT_PSP_CONSUMER_FLAG, &psp),
		  DAT_INVALID_HANDLE);
	CHECK_CODE(dat_psp_create(DAT_HANDLE_NULL, qualifier, rig.cr_evd, DAT_PSP_CONSUMER_FLAG,
				  &psp),
		   DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA);
	/* 0 names nothing. */
	CHECK_CODE(create(&rig, 0, &psp), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	/* None of these took the qualifier. */
	CHECK_RET(create(&rig, qualifier, &psp), DAT_SUCCESS);
	rig_down(&rig);
}

static void psp_create__provider_flag(void)
{
	struct rig rig;
	DAT_PSP_HANDLE psp;
	DAT_PSP_PARAM param;
	DAT_RETURN ret;

	rig_up(&rig);
	ret = dat_psp_create(rig.ia, free_qualifier(&rig), rig.cr_evd, DAT_PSP_PROVIDER_FLAG, &psp);
	if (rig.provider.ep_creator == DAT_PSP_CREATES_EP_NEVER) {
		CHECK_RET(ret, DAT_MODEL_NOT_SUPPORTED);
	} else {
		CHECK_RET(ret, DAT_SUCCESS);
		OK(dat_psp_query(psp, DAT_PSP_FIELD_ALL, &param));
		CHECK_EQ(param.psp_flags, DAT_PSP_PROVIDER_FLAG);
	}
	rig_down(&rig);
}

static void psp_create_any__qualifiers(void)
{
	struct rig rig;
	DAT_CONN_QUAL first, second;

	rig_up(&rig);
	listen_any(&rig, &first);
	listen_any(&rig, &second);
	/* Not privileged, and a TCP port: programs keep it in one. */
	CHECK(first >= 1024);
	CHECK(first <= 65535);
	CHECK(second >= 1024);
	CHECK(second <= 65535);
	CHECK(first != second);
	rig_down(&rig);
}

/* What was not given is in the query, too. */
static void psp_create_any__and_query(void)
{
	struct rig rig;
	DAT_CONN_QUAL qualifier = 0;
	DAT_PSP_HANDLE psp;

	rig_up(&rig);
	psp = listen_any(&rig, &qualifier);
	check_query(&rig, psp, qualifier);
	rig_down(&rig);
}

static void psp_create_any__arguments(void)
{
	struct rig rig;
	DAT_CONN_QUAL qualifier;
	DAT_PSP_HANDLE psp;

	rig_up(&rig);
	CHECK_RET(dat_psp_create_any(rig.ia, NULL, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, &psp),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_psp_create_any(rig.ia, &qualifier, rig.cr_evd, DAT_PSP_CONSUMER_FLAG, NULL),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_psp_create_any(rig.ia, &qualifier, rig.cr_evd, (DAT_PSP_FLAGS)7, &psp),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_psp_create_any(rig.ia, &qualifier, rig.connect_evd, DAT_PSP_CONSUMER_FLAG,
				     &psp),
		  DAT_INVALID_HANDLE);
	rig_down(&rig);
}

static void psp_create__wide_qualifiers(void)
{
	/* As MPI libraries make them; the low halves are alike on purpose. */
	static const DAT_CONN_QUAL wide[] = {
		(DAT_CONN_QUAL)1 << 35 | 7, (DAT_CONN_QUAL)2 << 35 | 7,
		(DAT_CONN_QUAL)3 << 35 | 7, 0x100000000 + 7,
		0xfffffffffffffffe,
	};
	enum { COUNT = sizeof wide / sizeof *wide };
	struct rig a, b;
	DAT_PSP_HANDLE psp[COUNT];

	rig_up(&a);
	rig_up(&b);
	for (int i = 0; i < COUNT; i++)
		OK(create(&b, wide[i], &psp[i]));
	for (int i = 0; i < COUNT; i++) {
		DAT_PSP_HANDLE again;

		CHECK_RET(create(&b, wide[i], &again), DAT_CONN_QUAL_IN_USE);
	}
	for (int i = COUNT - 1; i >= 0; i--) {
		DAT_EP_HANDLE ep_a = make_ep(&a, NULL), ep_b = make_ep(&b, NULL);
		DAT_CR_ARRIVAL_EVENT_DATA request;

		OK(try_connect(ep_a, &b, wide[i], SOON));
		request = EXPECT(b.cr_evd, DAT_CONNECTION_REQUEST_EVENT)
				  .event_data.cr_arrival_event_data;
		CHECK_EQ(request.conn_qual, wide[i]);
		CHECK(request.sp_handle.psp_handle == psp[i]);
		OK(dat_cr_accept(request.cr_handle, ep_b, 0, NULL));
		EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	}
	OK(dat_psp_free(psp[1]));
	OK(try_connect(make_ep(&a, NULL), &b, wide[1], SOON));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	rig_down(&a);
	rig_down(&b);
}

static void psp_free__nobody_listens_any_more(void)
{
	struct rig a, b;
	DAT_CONN_QUAL qualifier;
	DAT_EP_HANDLE ep;

	rig_up(&a);
	rig_up(&b);
	ep = make_ep(&a, NULL);
	qualifier = free_qualifier(&b);
	OK(try_connect(ep, &b, qualifier, SOON));
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_NON_PEER_REJECTED);
	CHECK_EQ(ep_state(ep), DAT_EP_STATE_DISCONNECTED);
	EXPECT_NOTHING(b.cr_evd);
	rig_down(&a);
	rig_down(&b);
}

static void psp_free__requests_stay_valid(void)
{
	struct rig a, b;
	DAT_CONN_QUAL qualifier;
	DAT_EP_HANDLE ep_a, ep_b;
	DAT_PSP_HANDLE psp;
	DAT_CR_HANDLE cr;

	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
	psp = listen_any(&b, &qualifier);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	OK(dat_psp_free(psp));
	OK(dat_evd_free(b.cr_evd));
	CHECK_RET(dat_cr_accept(cr, ep_b, 0, NULL), DAT_SUCCESS);
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	rig_down(&a);
	rig_down(&b);
}

static const struct tap_test tests[] = {
	T(psp_create, and_query),
	T(psp_create, qualifier_in_use),
	T(psp_create, qualifier_free_again_after_connections),
	T(psp_create, arguments),
	T(psp_create, provider_flag),
	T(psp_create_any, qualifiers),
	T(psp_create_any, arguments),
	T(psp_create, wide_qualifiers),
	T(psp_free, nobody_listens_any_more),
	T(psp_free, requests_stay_valid),
	T(psp_create_any, and_query),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
