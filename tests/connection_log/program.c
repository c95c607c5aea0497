/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Connects, by the name of an IA, to a port of this host where nobody listens; prints the handle
 * of its endpoint as the log has it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dat2/udat.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call)                                                              \
	do {                                                                  \
		DAT_RETURN code_ = (call);                                    \
		if (code_ != DAT_SUCCESS) {                                   \
			fprintf(stderr, "%s: %#x\n", #call, (unsigned)code_); \
			exit(1);                                              \
		}                                                             \
	} while (0)

int main(int argc, char **argv)
{
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL, evd, dto_evd;
	DAT_IA_HANDLE ia;
	DAT_PZ_HANDLE pz;
	DAT_EP_HANDLE ep;
	DAT_EVENT event;
	DAT_COUNT more;
	struct sockaddr_in address = { .sin_family = AF_INET };

	if (argc != 3)
		return 2;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	OK(dat_ia_open(argv[1], 8, &async_evd, &ia));
	OK(dat_pz_create(ia, &pz));
	OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &evd));
	OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &dto_evd));
	OK(dat_ep_create(ia, pz, dto_evd, dto_evd, evd, NULL, &ep));
	OK(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&address, strtoull(argv[2], NULL, 10), 20000000,
			  0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	OK(dat_evd_wait(evd, DAT_TIMEOUT_INFINITE, 1, &event, &more));
	if (event.event_number != DAT_CONNECTION_EVENT_NON_PEER_REJECTED)
		return 3;
	printf("0x%" PRIxPTR "\n", (uintptr_t)ep);
	OK(dat_ep_free(ep));
	OK(dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG));
	return 0;
}
