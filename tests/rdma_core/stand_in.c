/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "stand_in.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

void *stand_in(const char *name)
{
	bool is_cm = !strncmp(name, "rdma_", 5);
	void *library =
		dlopen(is_cm ? "librdmacm.so.1" : "libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *found = library ? dlsym(library, name) : NULL;

	REQUIRE(found);
	return found;
}

void at_points(int (*function)(const char *point))
{
	int (*_Atomic *at)(const char *) = stand_in("ibv_standin_at");

	*at = function;
}

DAT_EP_HANDLE ep_with_srq(const struct rig *rig, DAT_SRQ_HANDLE srq)
{
	DAT_EP_ATTR attr = ep_attr(rig);
	DAT_EP_HANDLE ep;

	OK(dat_ep_create_with_srq(rig->ia, rig->pz, rig->recv_evd, rig->request_evd,
				  rig->connect_evd, srq, &attr, &ep));
	return ep;
}

static int at_establish(const char *point)
{
	return !strcmp(point, "establish");
}

void connect_one_end(const struct rig *a, DAT_EP_HANDLE ep_a, const struct rig *b,
		     DAT_EP_HANDLE ep_b, DAT_CONN_QUAL qualifier)
{
	at_points(at_establish);
	OK(try_connect(ep_a, b, qualifier, SOON));
	OK(dat_cr_accept(await_request(b), ep_b, 0, NULL));
	EXPECT(a->connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
}

void expect_connected(const struct rig *a, DAT_EP_HANDLE ep_a, const struct rig *b,
		      DAT_EP_HANDLE ep_b)
{
	OK(recv_nothing(ep_b, 100));
	OK(send_nothing(ep_a, 200, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(a->request_evd, 200, DAT_DTO_SUCCESS);
	EXPECT_DTO(b->recv_evd, 100, DAT_DTO_SUCCESS);
}
