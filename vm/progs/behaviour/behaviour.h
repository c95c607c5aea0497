/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a library does, as text: a scenario makes calls, and prints the code of each, the events that come and
 * the values that can be read. Nothing in the text differs from run to run (handles have names, addresses and
 * keys are not printed), so the texts of two libraries can be compared line by line. */
#ifndef BEHAVIOUR_H
#define BEHAVIOUR_H

#include <dat2/udat.h>

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	SOON = 15000, /* milliseconds to wait for an event that comes */
	NEVER = 1000, /* milliseconds in which an event that must not come would have */
	SIDE_BYTES = 1 << 16, /* memory of a side */
};

struct scenario {
	const char *name;
	void (*run)(void);
};
extern const struct scenario objects[], evds[], endpoints[], connections[], endings[], transfers[],
	failures[], extensions[];

/* --- the text ----------------------------------------------------------------------------- */

/* Makes the call and prints its text and its code. Where the device refuses a post, OpenFabrics' library makes its code
 * of errno, which nobody has set. */
#define CALL(call) (errno = 0, print_call(#call, (call)))
DAT_RETURN print_call(const char *text, DAT_RETURN code);
/* Makes a call that prepares the scenario: its code is no result, and a failure ends the program. */
#define NEED(call) need_call(#call, (call))
void need_call(const char *text, DAT_RETURN code);
void print(const char *format, ...) __attribute__((format(printf, 1, 2)));
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Gives an object the name that stands for its handle in the text. */
void name_handle(const char *name, DAT_HANDLE handle);
/* "NULL", the name, or "unknown". */
const char *handle_name(DAT_HANDLE handle);
const char *state_name(DAT_EP_STATE state);
const char *event_name(DAT_EVENT_NUMBER number);
/* Type and subtype, in memory that the next call changes. */
const char *code_name(DAT_RETURN code);

/* Takes the next event of an EVD; false if none came in so many milliseconds. */
bool take_event(DAT_EVD_HANDLE evd, int milliseconds, DAT_EVENT *event);
/* Prints the next event of an EVD, or that none came in so many milliseconds, and returns whether one came. */
bool print_event(const char *evd_name, DAT_EVD_HANDLE evd, int milliseconds, DAT_EVENT *event);
#define EVENT(evd) ((void)print_event(#evd, (evd), SOON, NULL))
#define NO_EVENT(evd) ((void)print_event(#evd, (evd), NEVER, NULL))
void pause_ms(int milliseconds);

/* --- what most scenarios need ------------------------------------------------------------- */

/* One of the two ends of a connection, both of which are in this process. */
struct side {
	DAT_EVD_HANDLE recv, request, connect;
	DAT_EP_HANDLE ep;
	char *memory;
	DAT_LMR_HANDLE lmr;
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
};

extern DAT_NAME_PTR ia_name;
extern DAT_IA_HANDLE ia;
extern DAT_EVD_HANDLE async, requests;
extern DAT_PZ_HANDLE pz;
extern DAT_PSP_HANDLE psp;
extern DAT_CONN_QUAL qualifier;
extern DAT_CR_HANDLE cr;
/* a connects, b listens. */
extern struct side a, b;

/* Opens the IA, with a protection zone and the EVD of connection requests. */
void open_all(void);
/* The same, and EVDs, registered memory and an endpoint on each side; NULL for usual attributes. */
void open_sides(const DAT_EP_ATTR *attr);
/* The same, and a service point that b listens on. */
void open_listener(const DAT_EP_ATTR *attr);
/* The same, connected: no event is left. */
void open_connection(const DAT_EP_ATTR *attr);
DAT_EVD_HANDLE make_evd(const char *name, DAT_COUNT length, DAT_EVD_FLAGS flags);
void make_side(struct side *side, const char *name, const DAT_EP_ATTR *attr);
/* Registers the first so many bytes of the side's memory. The keys of the side are those of that region then. */
void register_memory(struct side *side, DAT_VLEN length, DAT_MEM_PRIV_FLAGS privileges);
/* A listener on a free qualifier. */
void listen_on_any(void);
/* dat_ep_connect to the IA's own address. */
DAT_RETURN connect_to(DAT_EP_HANDLE ep, DAT_CONN_QUAL to, DAT_TIMEOUT timeout, DAT_COUNT size,
		      const void *private_data);
/* Waits for a connection request, without a line of text. */
void await_request(void);
/* Waits for a connection event of this number, without a line of text. */
void await_connection_event(const struct side *side, DAT_EVENT_NUMBER number);
/* Connects a to b, without a line of text. */
void connect_sides(void);
struct sockaddr *own_address(void);
DAT_EP_ATTR usual_attributes(void);
DAT_SRQ_ATTR usual_srq_attributes(void);

void print_state(const char *name, DAT_EP_HANDLE ep);
#define STATE(side) print_state(#side, (side).ep)
void print_idle(const char *name, DAT_EP_HANDLE ep);
#define IDLE(side) print_idle(#side, (side).ep)

/* --- transfers ---------------------------------------------------------------------------- */

DAT_LMR_TRIPLET local_part(const struct side *side, size_t offset, size_t length);
DAT_RMR_TRIPLET remote_part(const struct side *side, size_t offset, size_t length);
DAT_DTO_COOKIE cookie(uint64_t number);
/* Each posts one operation of one segment that begins at the offset. */
DAT_RETURN post_recv(struct side *side, size_t offset, size_t length, uint64_t number);
DAT_RETURN post_send(struct side *side, size_t length, uint64_t number, DAT_COMPLETION_FLAGS flags);
DAT_RETURN post_write(struct side *from, const struct side *to, size_t length, uint64_t number,
		      DAT_COMPLETION_FLAGS flags);
DAT_RETURN post_read(struct side *to, const struct side *from, size_t length, uint64_t number,
		     DAT_COMPLETION_FLAGS flags);

#endif
