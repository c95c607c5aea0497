/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "two_ends.h"

struct rig a, b;
DAT_EP_HANDLE ep_a, ep_b;
DAT_CONN_QUAL qualifier;
DAT_PSP_HANDLE psp;

void points_up(void)
{
	rig_up(&a);
	rig_up(&b);
	ep_a = make_ep(&a, NULL);
	ep_b = make_ep(&b, NULL);
}

void ends_up(void)
{
	points_up();
	psp = listen_any(&b, &qualifier);
}

void ends_down(void)
{
	rig_down(&a);
	rig_down(&b);
}

void established(void)
{
	EXPECT(a.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	EXPECT(b.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
}
