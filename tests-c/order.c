/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "order.h"

void need_threads(const struct rig *rig)
{
	if (!rig->provider.is_thread_safe)
		tap_unsupported("the provider is not thread safe");
}

void order_up(void)
{
	ends_up();
	need_threads(&a);
}

void join(void)
{
	connect_by(&a, ep_a, &b, ep_b, qualifier);
}

DAT_EVENT take(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;

	OK(dat_evd_dequeue(evd, &event));
	return event;
}

void nothing(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;

	CHECK_RET(dat_evd_dequeue(evd, &event), DAT_QUEUE_EMPTY);
}

void silent(const struct rig *rig)
{
	pause_us(20 * 1000);
	nothing(rig->connect_evd);
	nothing(rig->recv_evd);
	nothing(rig->request_evd);
}
