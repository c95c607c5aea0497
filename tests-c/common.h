/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the C tests share: checks of return codes, an open IA with what an endpoint needs, a
 * connected pair of endpoints, registered memory. */
#ifndef COMMON_H
#define COMMON_H

#include "dat_compat.h"
#include "tap.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/types.h>

/* Microseconds to wait for what must come, for what must not, a time limit that has to pass
 * although the peer mostly hears of the attempt before, and what a call may take that waits for nobody:
 * long for a loaded machine, short for a peer or a kernel that is waited for. */
enum {
	SOON = 20 * 1000 * 1000,
	NEVER = 50 * 1000,
	SHORTLY = 500 * 1000,
	AT_ONCE = 15 * 1000 * 1000
};

/* --- return codes ------------------------------------------------------------------------- */

/* A call gives this type of code (DAT_SUCCESS or another one), whatever its subtype. */
#define CHECK_RET(call, type) ((void)check_ret(__FILE__, __LINE__, #call, (call), (type)))
/* The same, and without it the rest of the test makes no sense. */
#define REQUIRE_RET(call, type)                                            \
	do {                                                               \
		if (!check_ret(__FILE__, __LINE__, #call, (call), (type))) \
			tap_bail();                                        \
	} while (0)
#define OK(call) REQUIRE_RET(call, DAT_SUCCESS)
/* Type and subtype. */
#define CHECK_CODE(call, type, subtype) \
	((void)check_code(__FILE__, __LINE__, #call, (call), (type), (subtype)))
/* One of two types, where the man page leaves the choice. */
#define CHECK_EITHER(call, type1, type2) \
	((void)check_either(__FILE__, __LINE__, #call, (call), (type1), (type2)))

bool check_ret(const char *file, int line, const char *call, DAT_RETURN got, DAT_RETURN type);
bool check_code(const char *file, int line, const char *call, DAT_RETURN got, DAT_RETURN type,
		DAT_RETURN subtype);
bool check_either(const char *file, int line, const char *call, DAT_RETURN got, DAT_RETURN type1,
		  DAT_RETURN type2);

/* --- an IA and what endpoints need -------------------------------------------------------- */

struct rig {
	DAT_IA_HANDLE ia;
	DAT_EVD_HANDLE async_evd;
	DAT_PZ_HANDLE pz;
	DAT_EVD_HANDLE recv_evd, request_evd, connect_evd, cr_evd;
	DAT_IA_ATTR attr;
	DAT_PROVIDER_ATTR provider;
};

/* Opens the IA under test. */
DAT_IA_HANDLE open_ia(DAT_EVD_HANDLE *async_evd);
/* Opens the IA and creates a protection zone and the four EVDs. */
void rig_up(struct rig *rig);
/* Closes the IA and all that is in it. */
void rig_down(struct rig *rig);
/* The same where nothing else may use the objects of the rig, and nothing else may be in the IA: each
 * object can be freed, and then the IA is closed gracefully. */
#define RIG_DOWN_UNUSED(rig) rig_down_unused(__FILE__, __LINE__, (rig))
void rig_down_unused(const char *file, int line, struct rig *rig);
/* An EVD that the test needs. */
DAT_EVD_HANDLE make_evd(DAT_IA_HANDLE ia, DAT_COUNT length, DAT_EVD_FLAGS flags);
/* Attributes that every provider can satisfy: 16 operations of 4 segments each way, 1 MiB. */
DAT_EP_ATTR ep_attr(const struct rig *rig);
/* An endpoint on the rig's EVDs; NULL for the attributes above. */
DAT_EP_HANDLE make_ep(const struct rig *rig, const DAT_EP_ATTR *attr);
DAT_EP_STATE ep_state(DAT_EP_HANDLE ep);
/* Waits until the endpoint has this state. */
void await_state(DAT_EP_HANDLE ep, DAT_EP_STATE state);
/* Waits, without an event, until all that was posted to the endpoint is done. */
void await_idle(DAT_EP_HANDLE ep);

/* --- memory ------------------------------------------------------------------------------- */

struct mem {
	char *at;
	size_t size;
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
};

/* Page-aligned zeroed memory, registered. */
struct mem make_mem(const struct rig *rig, size_t size, DAT_MEM_PRIV_FLAGS privileges);
struct mem make_mem_in(DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, size_t size,
		       DAT_MEM_PRIV_FLAGS privileges);
void free_mem(struct mem *mem);
/*
 * New pages, to be unmapped in part: at an address that the system would not choose, so that no other
 * thread, as one of the library, gets memory where pages are unmapped.
 */
char *map_apart(size_t size);
/* Bytes that tell the places and the runs apart. */
void fill(void *at, size_t size, unsigned seed);
bool filled(const void *at, size_t size, unsigned seed);
/* Whether as many bytes of private data as programs read without a look at the size are there, and zero. */
bool no_private_data(const void *at);

DAT_CONTEXT cookie(DAT_UINT64 value);

/* --- events ------------------------------------------------------------------------------- */

/* The next event, which has to be this one. */
#define EXPECT(evd, number) expect(__FILE__, __LINE__, (evd), (number))
/* No event comes. */
#define EXPECT_NOTHING(evd) expect_nothing(__FILE__, __LINE__, (evd))
/* The next event is the completion of this cookie with this status. */
#define EXPECT_DTO(evd, value, status) expect_dto(__FILE__, __LINE__, (evd), (value), (status))

/* The next event is the completion of an RDMA write with this cookie that the target has refused. */
#define EXPECT_WRITE_REFUSED(evd, value) expect_write_refused(__FILE__, __LINE__, (evd), (value))

/* On an iWARP device an RDMA write may be done when it has been sent: iWARP has no answer to writes. One
 * that the target refuses ends the connection, but may have completed with success before. */
bool writes_end_when_sent(void);
/* dat_evd_wait up to the next event, by a thread that has cancellation disabled. A cancellation does not interrupt the
 * wait, but in musl, which sends its signal to such a thread, too. */
DAT_RETURN wait_uncancelled(DAT_EVD_HANDLE evd, DAT_EVENT *event);
void expect_write_refused(const char *file, int line, DAT_EVD_HANDLE evd, DAT_UINT64 value);
DAT_EVENT expect(const char *file, int line, DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number);
void expect_nothing(const char *file, int line, DAT_EVD_HANDLE evd);
DAT_DTO_COMPLETION_EVENT_DATA expect_dto(const char *file, int line, DAT_EVD_HANDLE evd,
					 DAT_UINT64 value, DAT_DTO_COMPLETION_STATUS status);

/* --- connections -------------------------------------------------------------------------- */

/* A listener on a free qualifier. */
DAT_PSP_HANDLE listen_any(const struct rig *rig, DAT_CONN_QUAL *qualifier);
/* A qualifier that was free a moment ago, and that no connection and no listen_any() takes meanwhile. */
DAT_CONN_QUAL free_qualifier(const struct rig *rig);
/* Gives an endpoint of the provider's making what it needs. */
void configure_ep(const struct rig *rig, DAT_EP_HANDLE ep);
/* dat_ep_connect to the IA of `to`, without private data. */
DAT_RETURN try_connect(DAT_EP_HANDLE ep, const struct rig *to, DAT_CONN_QUAL qualifier,
		       DAT_TIMEOUT timeout);
/* Whether two addresses are the same but for their ports; NULL is none. */
bool same_host(const struct sockaddr *one, const struct sockaddr *other);
/* The connection request that arrives. */
DAT_CR_HANDLE await_request(const struct rig *rig);

/* Connects two endpoints of two rigs by this qualifier, which `b` listens on. */
void connect_by(const struct rig *a, DAT_EP_HANDLE ep_a, const struct rig *b, DAT_EP_HANDLE ep_b,
		DAT_CONN_QUAL qualifier);
/* The last event of an attempt to connect: of its failure, or of the end of the connection. */
DAT_EVENT_NUMBER await_end(const struct rig *rig);

/* Two connected endpoints: a connected, b listened. Each on an IA instance of its own. */
struct pair {
	struct rig a, b;
	DAT_EP_HANDLE ep_a, ep_b;
};

/* Attributes for both ends; NULL for those of ep_attr(). */
void pair_up(struct pair *pair, const DAT_EP_ATTR *attr);
/* Connects two endpoints of two rigs by a qualifier of their own. */
void connect_eps(const struct rig *a, DAT_EP_HANDLE ep_a, const struct rig *b, DAT_EP_HANDLE ep_b);
void pair_down(struct pair *pair);

/* --- a second process --------------------------------------------------------------------- */

/* The program once more, as "PROGRAM IA --peer ROLE ARGUMENT". It writes one line when it is
 * ready, and ends when its standard input does. */
struct peer {
	pid_t pid;
	int input;
	FILE *output;
	char line[64];
};

/* In place of tap_main, for a program that is its own peer; argument is never NULL. */
int peer_main(int argc, char **argv, const struct tap_test *tests,
	      void (*be_peer)(const char *role, const char *argument));
/* In the peer: waits for the end of its standard input. */
void await_end_of_input(void);
/* Starts the peer and reads its line; the argument may be NULL. */
struct peer start_peer(const char *role, const char *argument);
/* The qualifier that the line is. */
DAT_CONN_QUAL peer_qualifier(const struct peer *peer);
void kill_peer(struct peer *peer);
/* Ends the peer and takes over what it found wrong. */
void end_peer(struct peer *peer);
/* Stops the peer (its process makes no step), and lets it go on. */
void stop_peer(const struct peer *peer);
void continue_peer(const struct peer *peer);

/* --- threads ------------------------------------------------------------------------------ */

/* Waits, without a limit of its own, until another thread waits on this empty EVD. */
void await_waiter(DAT_EVD_HANDLE evd);
/* Waits until the thread whose id *tid becomes sleeps: for waits that nothing else shows. */
void await_asleep(const _Atomic pid_t *tid);
void pause_us(unsigned long us);
/* Microseconds of the monotonic clock. */
unsigned long long now_us(void);

/* Whether completions, and the event of a killed peer, mean what dat.conf(5) states of the soft provider,
 * over each of its paths. */
bool is_exact(void);
/* Whether a short send of the soft provider completes when the message is in its receive: through shared
 * memory it completes when the message is in the ring of the peer. */
bool sends_are_delivered(void);

/* A software event whose pointer carries a number, and its posting. */
DAT_EVENT software_event(unsigned number);
DAT_RETURN post_software_event(DAT_EVD_HANDLE evd, unsigned number);

/* Each posts one operation without a segment. */
DAT_RETURN recv_nothing(DAT_EP_HANDLE ep, DAT_UINT64 value);
DAT_RETURN send_nothing(DAT_EP_HANDLE ep, DAT_UINT64 value, DAT_COMPLETION_FLAGS flags);

#endif
