/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What an endpoint allows in each of its states. */
#ifndef STATE_H
#define STATE_H

#include "two_ends.h"

/* Calls that some states allow. */
enum {
	CONNECT = 1,
	DISCONNECT = 2,
	RESET = 4,
	REQUESTS = 8,
	RESERVE = 16,
	FREE = 32,
	MODIFY = 64,
	ZONE = 128
};

/* The endpoint, of end a, has this state. All that is not among `allowed` is refused by the name of
 * the state and changes nothing; what any state allows works. Its EVD for requests takes binds. */
void check_state(DAT_EP_HANDLE ep, DAT_EP_STATE state, DAT_RETURN subtype, int allowed);

#endif
