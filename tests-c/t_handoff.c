/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_cr_handoff(3DAT). End a connects, end b listens. */
#include "service.h"

#include <string.h>

static void cr_handoff__to_another_point(void)
{
	DAT_CONN_QUAL first, second;
	DAT_CR_HANDLE cr;
	DAT_CR_PARAM param;
	DAT_CR_ARRIVAL_EVENT_DATA data;
	char text[] = "take me there";

	points_up();
	listen_any(&b, &first);
	psp = listen_any(&b, &second);
	OK(dat_ep_connect(ep_a, b.attr.ia_address_ptr, first, SOON, sizeof text, text,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	cr = await_request(&b);
	CHECK_RET(dat_cr_handoff(cr, second), DAT_SUCCESS);
	CHECK_CODE(dat_cr_handoff(cr, second), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_CR);
	CHECK_RET(dat_cr_accept(cr, ep_b, 0, NULL), DAT_INVALID_HANDLE);
	CHECK_RET(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param), DAT_INVALID_HANDLE);
	CHECK_RET(dx_cr_reject(cr), DAT_INVALID_HANDLE);
	data = EXPECT(b.cr_evd, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data;
	CHECK(data.sp_handle.psp_handle == psp);
	CHECK_EQ(data.conn_qual, second);
	OK(dat_cr_query(data.cr_handle, DAT_CR_FIELD_ALL, &param));
	REQUIRE(param.private_data_size >= (DAT_COUNT)sizeof text);
	CHECK(memcmp(param.private_data, text, sizeof text) == 0);
	OK(dat_cr_accept(data.cr_handle, ep_b, 0, NULL));
	established();
	talk(ep_b);
	ends_down();
}

static void cr_handoff__to_a_reserved_point(void)
{
	DAT_CONN_QUAL first, second;
	DAT_CR_HANDLE cr;

	points_up();
	listen_any(&b, &first);
	second = free_qualifier(&b);
	reserve(second, ep_b);
	OK(try_connect(ep_a, &b, first, SOON));
	OK(dat_cr_handoff(await_request(&b), second));
	cr = await_request(&b);
	CHECK(endpoint_of(cr) == ep_b);
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
	OK(dat_cr_accept(cr, DAT_HANDLE_NULL, 0, NULL));
	established();
	talk(ep_b);
	ends_down();
}

/* The endpoint of the first point is free again. */
static void cr_handoff__from_a_reserved_point(void)
{
	DAT_CONN_QUAL first, second;
	DAT_CR_HANDLE cr;

	points_up();
	first = free_qualifier(&b);
	reserve(first, ep_b);
	listen_any(&b, &second);
	OK(try_connect(ep_a, &b, first, SOON));
	OK(dat_cr_handoff(await_request(&b), second));
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_UNCONNECTED);
	cr = await_request(&b);
	CHECK(endpoint_of(cr) == DAT_HANDLE_NULL);
	OK(dat_cr_accept(cr, ep_b, 0, NULL));
	established();
	ends_down();
}

static void cr_handoff__arguments(void)
{
	DAT_CONN_QUAL nobody;
	DAT_CR_HANDLE cr;

	points_up();
	nobody = free_qualifier(&b);
	listen_any(&b, &qualifier);
	CHECK_CODE(dat_cr_handoff(DAT_HANDLE_NULL, qualifier), DAT_INVALID_HANDLE,
		   DAT_INVALID_HANDLE_CR);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	if (nobody != qualifier)
		CHECK_RET(dat_cr_handoff(cr, nobody), DAT_INVALID_PARAMETER);
	CHECK_CODE(dat_cr_handoff(cr, 0), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	/* Refused, so the request is still here. */
	OK(dat_cr_accept(cr, ep_b, 0, NULL));
	established();
	ends_down();
}

/* A reserved service point that had its request takes no other. The call is refused, and the request
 * stays with its consumer. */
static void cr_handoff__to_a_reserved_point_that_had_its_request(void)
{
	DAT_CONN_QUAL reserved;
	DAT_EP_HANDLE second;
	DAT_CR_HANDLE cr, first;
	DAT_CR_PARAM param;

	points_up();
	listen_any(&b, &qualifier);
	reserved = free_qualifier(&b);
	reserve(reserved, ep_b);
	second = make_ep(&a, NULL);
	OK(try_connect(second, &b, reserved, SOON));
	first = await_request(&b);
	OK(try_connect(ep_a, &b, qualifier, SOON));
	cr = await_request(&b);
	CHECK_CODE(dat_cr_handoff(cr, reserved), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	/* That of the point itself, too. */
	CHECK_CODE(dat_cr_handoff(first, reserved), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	EXPECT_NOTHING(a.connect_evd);
	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	CHECK_EQ(ep_state(ep_b), DAT_EP_STATE_PASSIVE_CONNECTION_PENDING);
	OK(dat_cr_accept(first, DAT_HANDLE_NULL, 0, NULL));
	established();
	/* After its connection as well. */
	CHECK_CODE(dat_cr_handoff(cr, reserved), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	OK(dat_cr_accept(cr, make_ep(&b, NULL), 0, NULL));
	established();
	ends_down();
}

/* The service points are those of the instance that has the request. */
static void cr_handoff__to_a_point_of_another_instance(void)
{
	DAT_CONN_QUAL first, second;
	DAT_CR_HANDLE cr;

	points_up();
	listen_any(&b, &first);
	listen_any(&a, &second);
	OK(try_connect(ep_a, &b, first, SOON));
	cr = await_request(&b);
	CHECK_CODE(dat_cr_handoff(cr, second), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	EXPECT_NOTHING(a.cr_evd);
	OK(dat_cr_accept(cr, ep_b, 0, NULL));
	established();
	ends_down();
}

static const struct tap_test tests[] = {
	T(cr_handoff, to_another_point),
	T(cr_handoff, to_a_reserved_point),
	T(cr_handoff, from_a_reserved_point),
	T(cr_handoff, arguments),
	T(cr_handoff, to_a_reserved_point_that_had_its_request),
	T(cr_handoff, to_a_point_of_another_instance),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
