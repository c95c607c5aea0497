/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A user of one version of the API (-DDAT2), of which a program has both. */
#include "end.h"
#include "dat_compat.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define OK(call)                                                              \
	do {                                                                  \
		DAT_RETURN code_ = (call);                                    \
		if (code_ != DAT_SUCCESS) {                                   \
			fprintf(stderr, "%s: %#x\n", #call, (unsigned)code_); \
			exit(1);                                              \
		}                                                             \
	} while (0)

enum { SIZE = 4096 };

static DAT_IA_HANDLE ia;
static DAT_PZ_HANDLE pz;

static void up(void)
{
	DAT_EVD_HANDLE async_evd = DAT_HANDLE_NULL;

	OK(dat_ia_open("a", 8, &async_evd, &ia));
	OK(dat_pz_create(ia, &pz));
}

static DAT_LMR_HANDLE make_lmr(void *at, DAT_LMR_CONTEXT *context)
{
	DAT_REGION_DESCRIPTION region = { .for_va = at };
	DAT_RMR_CONTEXT remote;
	DAT_LMR_HANDLE lmr;
	DAT_VADDR address;
	DAT_VLEN length;

	OK(dx_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, SIZE, pz,
			 DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG, &lmr,
			 context, &remote, &length, &address));
	return lmr;
}

static void register_memory(void)
{
	static char memory[SIZE];
	DAT_LMR_CONTEXT context;

	OK(dat_lmr_free(make_lmr(memory, &context)));
}

static DAT_EVD_HANDLE make_evd(DAT_EVD_FLAGS flags)
{
	DAT_EVD_HANDLE evd;

	OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, flags, &evd));
	return evd;
}

static DAT_EVENT wait_for(DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number)
{
	DAT_EVENT event;
	DAT_COUNT more;

	OK(dat_evd_wait(evd, 20000000, 1, &event, &more));
	if (event.event_number != number) {
		fprintf(stderr, "event %#x\n", (unsigned)event.event_number);
		exit(1);
	}
	return event;
}

static void send_unmapped(void)
{
	DAT_EVD_HANDLE cr_evd = make_evd(DAT_EVD_CR_FLAG);
	DAT_EVD_HANDLE conn_evd = make_evd(DAT_EVD_CONNECTION_FLAG);
	DAT_EVD_HANDLE peer_conn_evd = make_evd(DAT_EVD_CONNECTION_FLAG);
	DAT_EVD_HANDLE dto_evd = make_evd(DAT_EVD_DTO_FLAG);
	DAT_EVD_HANDLE recv_evd = make_evd(DAT_EVD_DTO_FLAG);
	struct sockaddr_in address = { .sin_family = AF_INET };
	DAT_DTO_COOKIE cookie = { .as_64 = 1 };
	static char memory[SIZE];
	DAT_LMR_CONTEXT here, there;
	DAT_LMR_TRIPLET segment;
	DAT_CONN_QUAL qualifier;
	DAT_EP_HANDLE ep, peer;
	DAT_PSP_HANDLE psp;
	DAT_EVENT event;
	void *gone;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	OK(dat_psp_create_any(ia, &qualifier, cr_evd, DAT_PSP_CONSUMER_FLAG, &psp));
	OK(dat_ep_create(ia, pz, DAT_HANDLE_NULL, dto_evd, conn_evd, NULL, &ep));
	OK(dat_ep_create(ia, pz, recv_evd, DAT_HANDLE_NULL, peer_conn_evd, NULL, &peer));
	OK(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&address, qualifier, 20000000, 0, NULL,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	event = wait_for(cr_evd, DAT_CONNECTION_REQUEST_EVENT);
	OK(dat_cr_accept(event.event_data.cr_arrival_event_data.cr_handle, peer, 0, NULL));
	wait_for(conn_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	wait_for(peer_conn_evd, DAT_CONNECTION_EVENT_ESTABLISHED);

	make_lmr(memory, &there);
	segment = dx_local(there, memory, SIZE);
	OK(dat_ep_post_recv(peer, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
	gone = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (gone == MAP_FAILED)
		exit(1);
	make_lmr(gone, &here);
	/* Nobody else has this address: other memory may be in a hole soon. */
	if (mprotect(gone, SIZE, PROT_NONE))
		exit(1);
	segment = dx_local(here, gone, SIZE);
	OK(dat_ep_post_send(ep, 1, &segment, cookie, DAT_COMPLETION_DEFAULT_FLAG));
	event = wait_for(dto_evd, DAT_DTO_COMPLETION_EVENT);
	if (event.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS) {
		fprintf(stderr, "what is not there was sent\n");
		exit(1);
	}
}

#ifdef DAT2
const struct end end_2
#else
const struct end end_1
#endif
	= { up, register_memory, send_unmapped };
