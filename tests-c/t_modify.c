/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_ep_modify(3DAT). Which states allow what is in t_state. */
#include "flags.h"
#include "transfer.h"

#include <string.h>

static void ep_modify__evds_and_zone(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;
	DAT_PZ_HANDLE pz;
	DAT_EVD_HANDLE evd;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	OK(dat_pz_create(rig.ia, &pz));
	evd = make_evd(rig.ia, 64, DAT_EVD_DTO_FLAG);
	memset(&param, 0, sizeof param);
	param.pz_handle = pz;
	param.request_evd_handle = evd;
	CHECK_RET(dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_REQUEST_EVD_HANDLE,
				&param),
		  DAT_SUCCESS);
	memset(&param, 0, sizeof param);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	CHECK(param.pz_handle == pz);
	CHECK(param.request_evd_handle == evd);
	CHECK(param.recv_evd_handle == rig.recv_evd);
	/* The references moved with them. */
	CHECK_RET(dat_pz_free(rig.pz), DAT_SUCCESS);
	CHECK_RET(dat_pz_free(pz), DAT_INVALID_STATE);
	CHECK_RET(dat_evd_free(rig.request_evd), DAT_SUCCESS);
	CHECK_RET(dat_evd_free(evd), DAT_INVALID_STATE);
	rig_down(&rig);
}

static void ep_modify__attributes(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	memset(&param, 0, sizeof param);
	param.ep_attr.max_request_dtos = 40;
	param.ep_attr.request_completion_flags = DAT_COMPLETION_UNSIGNALLED_FLAG;
	CHECK_RET(dat_ep_modify(ep,
				DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS |
					DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS,
				&param),
		  DAT_SUCCESS);
	memset(&param, 0, sizeof param);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	CHECK(param.ep_attr.max_request_dtos >= 40);
	CHECK_EQ(param.ep_attr.request_completion_flags, DAT_COMPLETION_UNSIGNALLED_FLAG);
	rig_down(&rig);
}

static void ep_modify__refused(void)
{
	struct pair pair;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;

	pair_up(&pair, NULL);
	ep = make_ep(&pair.a, NULL);
	memset(&param, 0, sizeof param);
	CHECK_RET(dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, NULL),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_modify(ep, (DAT_EP_PARAM_MASK)1 << 62, &param), DAT_INVALID_PARAMETER);
	param.pz_handle = pair.a.recv_evd;
	CHECK_CODE(dat_ep_modify(ep, DAT_EP_FIELD_PZ_HANDLE, &param), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_PZ);
	param.ep_attr.max_recv_dtos = 8;
	CHECK_RET(dat_ep_modify(pair.ep_a, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &param),
		  DAT_INVALID_STATE);
	param.pz_handle = pair.a.pz;
	CHECK_RET(dat_ep_modify(pair.ep_a, DAT_EP_FIELD_PZ_HANDLE, &param), DAT_INVALID_STATE);
	pair_down(&pair);
}

/* What the provider and the IA decide, and attributes that no adapter here has, with the values that the
 * endpoint has. */
static void ep_modify__fields_that_are_not_the_consumers(void)
{
	static const DAT_EP_PARAM_MASK fixed[] = {
		DAT_EP_FIELD_IA_HANDLE,
		DAT_EP_FIELD_EP_STATE,
		DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR,
		DAT_EP_FIELD_LOCAL_PORT_QUAL,
		DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR,
		DAT_EP_FIELD_REMOTE_PORT_QUAL,
		DAT_EP_FIELD_SRQ_HANDLE,
		DAT_EP_FIELD_EP_ATTR_NUM_TRANSPORT_ATTR,
		DAT_EP_FIELD_EP_ATTR_TRANSPORT_SPECIFIC_ATTR,
		DAT_EP_FIELD_EP_ATTR_NUM_PROVIDER_ATTR,
		DAT_EP_FIELD_EP_ATTR_PROVIDER_SPECIFIC_ATTR,
#ifdef DAT2
		DAT_EP_FIELD_COMM,
#endif
	};
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
		CHECK_RET(dat_ep_modify(ep, fixed[i], &param), DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

/* Values that dat_ep_create refuses too; all of a call or nothing of it. */
static void ep_modify__values(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;
	const DAT_EP_PARAM_MASK both =
		DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS | DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	param.ep_attr.max_recv_dtos = 20;
	param.ep_attr.max_request_dtos = -1;
	CHECK_RET(dat_ep_modify(ep, both, &param), DAT_INVALID_PARAMETER);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	CHECK_EQ(param.ep_attr.max_recv_dtos, ep_attr(&rig).max_recv_dtos);
	param.ep_attr.recv_completion_flags = DAT_COMPLETION_SUPPRESS_FLAG;
	CHECK_RET(dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, &param),
		  DAT_INVALID_PARAMETER);
	param.ep_attr.max_message_size = rig.attr.max_message_size + 1;
	CHECK_RET(dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE, &param),
		  DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static void ep_modify__recv_flags_before_the_first_receive(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param;
	DAT_LMR_TRIPLET none = { 0 };

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	memset(&param, 0, sizeof param);
	param.ep_attr.recv_completion_flags = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
	OK(dat_ep_post_recv(ep, 0, &none, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
	CHECK_RET(dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, &param),
		  DAT_INVALID_STATE);
	rig_down(&rig);
}

/* What else changes, and flags that stay as they are, are no matter of the receives. */
static void ep_modify__under_a_receive(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EP_ATTR attr;
	DAT_EP_PARAM param;

	rig_up(&rig);
	attr = ep_attr(&rig);
	attr.recv_completion_flags = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
	ep = make_ep(&rig, &attr);
	OK(recv_nothing(ep, 1));
	memset(&param, 0, sizeof param);
	param.ep_attr.max_request_dtos = attr.max_request_dtos + 1;
	CHECK_RET(dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS, &param), DAT_SUCCESS);
	param.ep_attr.recv_completion_flags = attr.recv_completion_flags;
	CHECK_RET(dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, &param),
		  DAT_SUCCESS);
	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	CHECK_EQ(param.ep_attr.max_request_dtos, attr.max_request_dtos + 1);
	CHECK_EQ(param.ep_attr.recv_completion_flags, attr.recv_completion_flags);
	rig_down(&rig);
}

/* A receive that is posted already keeps the memory of the old zone: a message for it fails. */
static void ep_modify__zone_under_a_receive(void)
{
	DAT_EP_PARAM param;

	rig_up(&p.a);
	rig_up(&p.b);
	ma = make_mem(&p.a, SIZE, DAT_MEM_PRIV_ALL_FLAG);
	mb = make_mem(&p.b, SIZE, DAT_MEM_PRIV_ALL_FLAG);
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, NULL);
	OK(b_receives(0, 8, 1));
	memset(&param, 0, sizeof param);
	OK(dat_pz_create(p.b.ia, &param.pz_handle));
	OK(dat_ep_modify(p.ep_b, DAT_EP_FIELD_PZ_HANDLE, &param));
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	fill(ma.at, 8, 1);
	OK(a_sends(0, 8, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_ERR_LOCAL_PROTECTION);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN);
	for (int i = 0; i < 8; i++)
		CHECK_EQ(mb.at[i], 0);
	down();
}

/* --- the result of the whole call counts ------------------------------------------------------ */

static const DAT_EP_PARAM_MASK BOTH_FLAGS =
	DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS | DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS;
static const DAT_EP_PARAM_MASK BOTH_EVDS =
	DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_REQUEST_EVD_HANDLE;

/* An endpoint with these flags for receives and requests. */
static DAT_EP_HANDLE ep_on(const struct rig *rig, DAT_EVD_HANDLE recv_evd,
			   DAT_COMPLETION_FLAGS recv_flags, DAT_EVD_HANDLE request_evd,
			   DAT_COMPLETION_FLAGS request_flags)
{
	DAT_EP_ATTR attr = ep_attr(rig);
	DAT_EP_HANDLE ep = DAT_HANDLE_NULL;

	attr.recv_completion_flags = recv_flags;
	attr.request_completion_flags = request_flags;
	OK(dat_ep_create(rig->ia, rig->pz, recv_evd, request_evd, rig->connect_evd, &attr, &ep));
	return ep;
}

/* The flags of both directions, changed in one call. */
static DAT_RETURN set_flags(DAT_EP_HANDLE ep, DAT_COMPLETION_FLAGS recv_flags,
			    DAT_COMPLETION_FLAGS request_flags)
{
	DAT_EP_PARAM param = { 0 };

	param.ep_attr.recv_completion_flags = recv_flags;
	param.ep_attr.request_completion_flags = request_flags;
	return dat_ep_modify(ep, BOTH_FLAGS, &param);
}

static void check_flags(DAT_EP_HANDLE ep, DAT_COMPLETION_FLAGS recv_flags,
			DAT_COMPLETION_FLAGS request_flags)
{
	DAT_EP_PARAM param = { 0 };

	OK(dat_ep_query(ep, DAT_EP_FIELD_ALL, &param));
	CHECK_EQ(param.ep_attr.recv_completion_flags, recv_flags);
	CHECK_EQ(param.ep_attr.request_completion_flags, request_flags);
}

static void ep_modify__both_flags_of_one_evd(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param = { 0 };

	rig_up(&rig);
	ep = ep_on(&rig, rig.recv_evd, DEFAULT, rig.recv_evd, DEFAULT);
	CHECK_RET(set_flags(ep, UNSIGNALLED, UNSIGNALLED), DAT_SUCCESS);
	check_flags(ep, UNSIGNALLED, UNSIGNALLED);
	CHECK_RET(set_flags(ep, THRESHOLD, THRESHOLD), DAT_SUCCESS);
	/* One of the two would differ from the other. */
	param.ep_attr.request_completion_flags = UNSIGNALLED;
	CHECK_RET(dat_ep_modify(ep, DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS, &param),
		  DAT_INVALID_PARAMETER);
	check_flags(ep, THRESHOLD, THRESHOLD);
	CHECK_RET(set_flags(ep, DEFAULT, DEFAULT), DAT_SUCCESS);
	/* The EVD has nothing left of the changes. */
	OK(dat_ep_free(ep_on(&rig, rig.recv_evd, DEFAULT, rig.recv_evd, DEFAULT)));
	OK(dat_ep_free(ep));
	CHECK_RET(dat_evd_free(rig.recv_evd), DAT_SUCCESS);
	rig_down(&rig);
}

static void ep_modify__evds_swapped(void)
{
	DAT_EP_PARAM param = { 0 };
	DAT_EVD_HANDLE recv_evd, request_evd;

	rigs_up();
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = ep_on(&p.b, p.b.recv_evd, UNSIGNALLED, p.b.request_evd, DEFAULT);
	recv_evd = param.recv_evd_handle = p.b.request_evd;
	request_evd = param.request_evd_handle = p.b.recv_evd;
	CHECK_RET(dat_ep_modify(p.ep_b, BOTH_EVDS, &param), DAT_SUCCESS);
	OK(b_receives(0, 8, 1));
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	OK(a_sends(0, 8, 2, DEFAULT));
	EXPECT_DTO(recv_evd, 1, DAT_DTO_SUCCESS);
	OK(recv_nothing(p.ep_a, 3));
	OK(send_nothing(p.ep_b, 4, DEFAULT));
	EXPECT_DTO(request_evd, 4, DAT_DTO_SUCCESS);
	down();
}

static void ep_modify__same_evd_with_other_flags(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep;
	DAT_EP_PARAM param = { 0 };
	DAT_EVD_HANDLE evd;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	param.recv_evd_handle = rig.recv_evd;
	param.request_evd_handle = rig.request_evd;
	param.ep_attr.recv_completion_flags = SOLICITED;
	param.ep_attr.request_completion_flags = UNSIGNALLED;
	CHECK_RET(dat_ep_modify(ep, BOTH_EVDS | BOTH_FLAGS, &param), DAT_SUCCESS);
	check_flags(ep, SOLICITED, UNSIGNALLED);
	/* Both to one EVD, with the flags for that. */
	evd = make_evd(rig.ia, 16, DAT_EVD_DTO_FLAG | DAT_EVD_CONNECTION_FLAG);
	param.recv_evd_handle = param.request_evd_handle = param.connect_evd_handle = evd;
	CHECK_RET(dat_ep_modify(ep, BOTH_EVDS, &param), DAT_INVALID_PARAMETER);
	param.ep_attr.recv_completion_flags = param.ep_attr.request_completion_flags = THRESHOLD;
	CHECK_RET(dat_ep_modify(ep, BOTH_EVDS | BOTH_FLAGS | DAT_EP_FIELD_CONNECT_EVD_HANDLE,
				&param),
		  DAT_SUCCESS);
	/* Connection events leave the EVD, and the flags change to what they did not allow. */
	param.connect_evd_handle = rig.connect_evd;
	param.ep_attr.recv_completion_flags = param.ep_attr.request_completion_flags = UNSIGNALLED;
	CHECK_RET(dat_ep_modify(ep, BOTH_FLAGS, &param), DAT_INVALID_PARAMETER);
	CHECK_RET(dat_ep_modify(ep, BOTH_FLAGS | DAT_EP_FIELD_CONNECT_EVD_HANDLE, &param),
		  DAT_SUCCESS);
	OK(dat_ep_free(ep));
	CHECK_RET(dat_evd_free(evd), DAT_SUCCESS);
	CHECK_RET(dat_evd_free(rig.connect_evd), DAT_SUCCESS);
	rig_down(&rig);
}

/* Refused for one EVD: the other has what it had. */
static void ep_modify__all_or_nothing(void)
{
	struct rig rig;
	DAT_EP_HANDLE ep, other;
	DAT_EP_ATTR attr;

	rig_up(&rig);
	ep = make_ep(&rig, NULL);
	other = ep_on(&rig, DAT_HANDLE_NULL, DEFAULT, rig.request_evd, DEFAULT);
	CHECK_RET(set_flags(ep, UNSIGNALLED, UNSIGNALLED), DAT_INVALID_PARAMETER);
	check_flags(ep, DEFAULT, DEFAULT);
	attr = ep_attr(&rig);
	attr.recv_completion_flags = UNSIGNALLED;
	CHECK_RET(dat_ep_create(rig.ia, rig.pz, rig.recv_evd, DAT_HANDLE_NULL, rig.connect_evd,
				&attr, &other),
		  DAT_INVALID_PARAMETER);
	OK(dat_ep_free(ep_on(&rig, rig.recv_evd, DEFAULT, rig.request_evd, DEFAULT)));
	rig_down(&rig);
}

/* A mask without a field changes nothing, which every state allows. */
static void ep_modify__of_nothing(void)
{
	DAT_EP_PARAM param;

	up();
	memset(&param, 0xff, sizeof param);
	CHECK_RET(dat_ep_modify(p.ep_a, 0, &param), DAT_SUCCESS);
	OK(b_receives(0, 8, 1));
	OK(a_sends(0, 8, 2, DEFAULT));
	EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS);
	OK(dat_ep_disconnect(p.ep_b, DAT_CLOSE_ABRUPT_FLAG));
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	CHECK_RET(dat_ep_modify(p.ep_b, 0, &param), DAT_SUCCESS);
	down();
}

static const struct tap_test tests[] = {
	T(ep_modify, evds_and_zone),
	T(ep_modify, attributes),
	T(ep_modify, refused),
	T(ep_modify, fields_that_are_not_the_consumers),
	T(ep_modify, values),
	T(ep_modify, recv_flags_before_the_first_receive),
	T(ep_modify, under_a_receive),
	T(ep_modify, zone_under_a_receive),
	T(ep_modify, both_flags_of_one_evd),
	T(ep_modify, evds_swapped),
	T(ep_modify, same_evd_with_other_flags),
	T(ep_modify, all_or_nothing),
	T(ep_modify, of_nothing),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
