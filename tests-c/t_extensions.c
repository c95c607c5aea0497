/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_extension_op: what there is, and queries of IAs that are not open. DAT 2.0 only. */
#include "extended.h"

#include <stdio.h>
#include <string.h>

enum {
	/* The numbers of operations that are not known, and of the collectives. */
	UNKNOWN_OP = 30,
	FIRST_COLLECTIVE = DAT_IB_COLLECTIVE_CREATE_MEMBER_OP,
	LAST_COLLECTIVE = DAT_IB_COLLECTIVE_BARRIER_OP,
};

static void query__says_what_there_is(void)
{
	up();
	CHECK_EQ(p.a.attr.extension_supported, has(DAT_IB_ATTR_FETCH_AND_ADD) ||
							       has(DAT_IB_ATTR_IMMED_DATA) ||
							       has(DAT_IB_ATTR_UD) ?
						       DAT_EXTENSION_IB :
						       DAT_EXTENSION_NONE);
	CHECK_EQ(has("DAT_EXTENSION_INTERFACE"), p.a.attr.extension_supported == DAT_EXTENSION_IB);
	CHECK_EQ(p.a.attr.extension_version, DAT_IB_EXTENSION_VERSION);
	/* Atomic operations come together. */
	CHECK_EQ(has(DAT_IB_ATTR_FETCH_AND_ADD), has(DAT_IB_ATTR_CMP_AND_SWAP));
	down();
}

static DAT_RETURN open_query(DAT_NAME_PTR name, DAT_IA_HANDLE *ia, DAT_IA_ATTR *attr,
			     DAT_PROVIDER_ATTR *provider)
{
	return dat_ib_open_query(name, ia, DAT_IA_FIELD_ALL, attr, DAT_PROVIDER_FIELD_ALL,
				 provider);
}

static void open_query__gives_the_attributes(void)
{
	static char name[256];
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
	DAT_IA_ATTR attr;
	DAT_PROVIDER_ATTR provider;
	struct rig rig;

	/* Before any IA was open. */
	snprintf(name, sizeof name, "%s", tap_ia);
	OK(open_query(name, &ia, &attr, &provider));
	CHECK(ia != DAT_HANDLE_NULL);
	rig_up(&rig);
	CHECK(!strcmp(attr.adapter_name, rig.attr.adapter_name));
	CHECK_EQ(attr.max_eps, rig.attr.max_eps);
	CHECK_EQ(attr.extension_supported, rig.attr.extension_supported);
	CHECK_EQ(attr.num_transport_attr, rig.attr.num_transport_attr);
	CHECK(!strcmp(provider.provider_name, rig.provider.provider_name));
	CHECK_EQ(provider.num_provider_specific_attr, rig.provider.num_provider_specific_attr);
	rig_down(&rig);
	OK(dat_ib_close_query(ia));
	CHECK_RET(dat_ib_close_query(ia), DAT_INVALID_HANDLE);
	/* Either of the two is enough. */
	memset(&attr, 0, sizeof attr);
	OK(dat_ib_open_query(name, &ia, DAT_IA_FIELD_ALL, &attr, 0, NULL));
	CHECK_EQ(attr.extension_version, DAT_IB_EXTENSION_VERSION);
	OK(dat_ib_close_query(ia));
	OK(dat_ib_open_query(name, &ia, 0, NULL, DAT_PROVIDER_FIELD_ALL, &provider));
	OK(dat_ib_close_query(ia));
}

static void open_query__arguments(void)
{
	static char name[256], unknown[] = "no-such-ia";
	DAT_IA_HANDLE ia;
	DAT_IA_ATTR attr;
	DAT_PROVIDER_ATTR provider;

	snprintf(name, sizeof name, "%s", tap_ia);
	CHECK_RET(open_query(NULL, &ia, &attr, &provider), DAT_INVALID_HANDLE);
	CHECK_RET(open_query(unknown, &ia, &attr, &provider), DAT_PROVIDER_NOT_FOUND);
	CHECK_CODE(open_query(name, NULL, &attr, &provider), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
	CHECK_CODE(open_query(name, &ia, NULL, NULL), DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
	CHECK_CODE(open_query(name, &ia, NULL, &provider), DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
	CHECK_CODE(open_query(name, &ia, &attr, NULL), DAT_INVALID_PARAMETER, DAT_INVALID_ARG6);
	CHECK_RET(dat_ib_close_query(DAT_HANDLE_NULL), DAT_INVALID_HANDLE);
	CHECK_RET(dat_ib_close_query((DAT_IA_HANDLE)&attr), DAT_INVALID_HANDLE);
}

/* An IA that is open is closed by dat_ia_close, and an end of a query does not change it. */
static void close_query__of_an_open_ia(void)
{
	struct rig rig;
	DAT_EP_PARAM param;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	if (rig.attr.extension_supported == DAT_EXTENSION_NONE)
		tap_unsupported("extensions of an IA that is open");
	CHECK_RET(dat_ib_close_query(rig.ia), DAT_INVALID_HANDLE);
	ep = make_ep(&rig, NULL);
	OK(dat_ep_query(ep, DAT_EP_FIELD_IA_HANDLE, &param));
	CHECK_RET(dat_ib_close_query(param.ia_handle), DAT_INVALID_HANDLE);
	OK(dat_ep_query(ep, DAT_EP_FIELD_IA_HANDLE, &param));
	rig_down(&rig);
}

static void operation__unknown(void)
{
	up();
	CHECK_RET(dat_extension_op(p.ep_a, UNKNOWN_OP), DAT_NOT_IMPLEMENTED);
	CHECK_RET(dat_extension_op(p.ep_a, -1 & 0xfff), DAT_NOT_IMPLEMENTED);
	for (int op = FIRST_COLLECTIVE; op <= LAST_COLLECTIVE; op++)
		CHECK_RET(dat_extension_op(p.ep_a, op, 0, 0, 0, 0, 0, 0), DAT_NOT_IMPLEMENTED);
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
	down();
}

static const struct tap_test tests[] = {
	T(query, says_what_there_is), T(open_query, gives_the_attributes),
	T(open_query, arguments),     T(close_query, of_an_open_ia),
	T(operation, unknown),	      TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
