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
