/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* PROGRAM list: the names of the scenarios. PROGRAM IA SCENARIO: runs one, and prints what happens. */
#include "behaviour.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct scenario *const groups[] = { objects, evds,	     endpoints, connections,
						 endings, transfers, failures,	extensions };
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* --- names -------------------------------------------------------------------------------- */

struct name {
	unsigned value;
	const char *text;
};
#define NAME(value)                       \
	{                                 \
		(unsigned)(value), #value \
	}

static const struct name codes[] = {
	NAME(DAT_SUCCESS),
	NAME(DAT_ABORT),
	NAME(DAT_CONN_QUAL_IN_USE),
	NAME(DAT_INSUFFICIENT_RESOURCES),
	NAME(DAT_INTERNAL_ERROR),
	NAME(DAT_INVALID_HANDLE),
	NAME(DAT_INVALID_PARAMETER),
	NAME(DAT_INVALID_STATE),
	NAME(DAT_LENGTH_ERROR),
	NAME(DAT_MODEL_NOT_SUPPORTED),
	NAME(DAT_PROVIDER_NOT_FOUND),
	NAME(DAT_PRIVILEGES_VIOLATION),
	NAME(DAT_PROTECTION_VIOLATION),
	NAME(DAT_QUEUE_EMPTY),
	NAME(DAT_QUEUE_FULL),
	NAME(DAT_TIMEOUT_EXPIRED),
	NAME(DAT_PROVIDER_ALREADY_REGISTERED),
	NAME(DAT_PROVIDER_IN_USE),
	NAME(DAT_INVALID_ADDRESS),
	NAME(DAT_INTERRUPTED_CALL),
	NAME(DAT_CONN_QUAL_UNAVAILABLE),
	NAME(DAT_RESERVED_LMR),
	NAME(DAT_PORT_IN_USE),
	NAME(DAT_COMM_NOT_SUPPORTED),
	NAME(DAT_NOT_IMPLEMENTED),
};

static const struct name events[] = {
	NAME(DAT_DTO_COMPLETION_EVENT),
	NAME(DAT_RMR_BIND_COMPLETION_EVENT),
	NAME(DAT_CONNECTION_REQUEST_EVENT),
	NAME(DAT_CONNECTION_EVENT_ESTABLISHED),
	NAME(DAT_CONNECTION_EVENT_PEER_REJECTED),
	NAME(DAT_CONNECTION_EVENT_NON_PEER_REJECTED),
	NAME(DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR),
	NAME(DAT_CONNECTION_EVENT_DISCONNECTED),
	NAME(DAT_CONNECTION_EVENT_BROKEN),
	NAME(DAT_CONNECTION_EVENT_TIMED_OUT),
	NAME(DAT_CONNECTION_EVENT_UNREACHABLE),
	NAME(DAT_ASYNC_ERROR_EVD_OVERFLOW),
	NAME(DAT_ASYNC_ERROR_IA_CATASTROPHIC),
	NAME(DAT_ASYNC_ERROR_EP_BROKEN),
	NAME(DAT_ASYNC_ERROR_TIMED_OUT),
	NAME(DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR),
	NAME(DAT_SOFTWARE_EVENT),
	NAME(DAT_IB_EXTENSION_RANGE_BASE),
};

static const struct name statuses[] = {
	NAME(DAT_DTO_SUCCESS),
	NAME(DAT_DTO_ERR_FLUSHED),
	NAME(DAT_DTO_ERR_LOCAL_LENGTH),
	NAME(DAT_DTO_ERR_LOCAL_EP),
	NAME(DAT_DTO_ERR_LOCAL_PROTECTION),
	NAME(DAT_DTO_ERR_BAD_RESPONSE),
	NAME(DAT_DTO_ERR_REMOTE_ACCESS),
	NAME(DAT_DTO_ERR_REMOTE_RESPONDER),
	NAME(DAT_DTO_ERR_TRANSPORT),
	NAME(DAT_DTO_ERR_RECEIVER_NOT_READY),
	NAME(DAT_DTO_ERR_PARTIAL_PACKET),
	NAME(DAT_RMR_OPERATION_FAILED),
	NAME(DAT_DTO_ERR_LOCAL_MM_ERROR),
};

static const struct name states[] = {
	NAME(DAT_EP_STATE_UNCONNECTED),
	NAME(DAT_EP_STATE_RESERVED),
	NAME(DAT_EP_STATE_UNCONFIGURED_UNCONNECTED),
	NAME(DAT_EP_STATE_UNCONFIGURED_RESERVED),
	NAME(DAT_EP_STATE_PASSIVE_CONNECTION_PENDING),
	NAME(DAT_EP_STATE_UNCONFIGURED_PASSIVE),
	NAME(DAT_EP_STATE_ACTIVE_CONNECTION_PENDING),
	NAME(DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING),
	NAME(DAT_EP_STATE_UNCONFIGURED_TENTATIVE),
	NAME(DAT_EP_STATE_CONNECTED),
	NAME(DAT_EP_STATE_DISCONNECT_PENDING),
	NAME(DAT_EP_STATE_DISCONNECTED),
	NAME(DAT_EP_STATE_COMPLETION_PENDING),
};

static const char *hex(unsigned value)
{
	static char number[4][16];
	static unsigned next;
	char *text = number[next++ % COUNT(number)];
	snprintf(text, sizeof number[0], "%#x", value);
	return text;
}

static const char *find(const struct name *names, size_t count, unsigned value)
{
	for (size_t i = 0; i < count; i++)
		if (names[i].value == value)
			return names[i].text;
	return hex(value);
}
#define FIND(names, value) find(names, COUNT(names), (unsigned)(value))

const char *state_name(DAT_EP_STATE state)
{
	return FIND(states, state) + strlen("DAT_EP_STATE_");
}

const char *event_name(DAT_EVENT_NUMBER number)
{
	return FIND(events, number);
}

static struct {
	char name[24];
	DAT_HANDLE handle;
} handles[64];
static size_t handle_count;

void name_handle(const char *name, DAT_HANDLE handle)
{
	if (handle_count == COUNT(handles))
		fail("too many named handles");
	snprintf(handles[handle_count].name, sizeof handles[0].name, "%s", name);
	handles[handle_count++].handle = handle;
}

const char *handle_name(DAT_HANDLE handle)
{
	if (handle == DAT_HANDLE_NULL)
		return "NULL";
	/* The last one: a handle may be given to a new object. */
	for (size_t i = handle_count; i > 0; i--)
		if (handles[i - 1].handle == handle)
			return handles[i - 1].name;
	return "unknown";
}

/* --- the text ----------------------------------------------------------------------------- */

void print(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("scenario ends: ");
	vprintf(format, args);
	putchar('\n');
	va_end(args);
	exit(1);
}

const char *code_name(DAT_RETURN code)
{
	static char text[80];
	unsigned subtype = DAT_GET_SUBTYPE(code);

	snprintf(text, sizeof text, "%s%s%s", FIND(codes, DAT_GET_TYPE(code)), subtype ? " " : "",
		 subtype ? hex(subtype) : "");
	return text;
}

DAT_RETURN print_call(const char *text, DAT_RETURN code)
{
	print("%s = %s", text, code_name(code));
	return code;
}

void need_call(const char *text, DAT_RETURN code)
{
	if (code != DAT_SUCCESS)
		fail("%s = %s", text, code_name(code));
}

void pause_ms(int milliseconds)
{
	struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000L };

	nanosleep(&time, NULL);
}

/* By polling: in OpenFabrics' library a wait may sleep on although its event has come. */
bool take_event(DAT_EVD_HANDLE evd, int milliseconds, DAT_EVENT *event)
{
	struct timespec now, start;

	memset(event, 0, sizeof *event);
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (;;) {
		DAT_RETURN code = dat_evd_dequeue(evd, event);

		if (code == DAT_SUCCESS)
			return true;
		if (DAT_GET_TYPE(code) != DAT_QUEUE_EMPTY)
			fail("dat_evd_dequeue = %s", code_name(code));
		clock_gettime(CLOCK_MONOTONIC, &now);
		if ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 >
		    milliseconds)
			return false;
		pause_ms(1);
	}
}

static void print_private_data(DAT_COUNT size, const char *data)
{
	printf(", %d bytes of private data", (int)size);
	if (size > 0 && data && *data)
		printf(" that begin with \"%.*s\"", size < 8 ? (int)size : 8, data);
}

static void print_payload(const DAT_EVENT *event)
{
	const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event->event_data.dto_completion_event_data;
	const DAT_RMR_BIND_COMPLETION_EVENT_DATA *bind =
		&event->event_data.rmr_completion_event_data;
	const DAT_CR_ARRIVAL_EVENT_DATA *arrival = &event->event_data.cr_arrival_event_data;
	const DAT_CONNECTION_EVENT_DATA *connect = &event->event_data.connect_event_data;

	switch (event->event_number & 0xff000) {
	case 0:
		printf(": %s, cookie %u, %s", handle_name(dto->ep_handle),
		       (unsigned)dto->user_cookie.as_64, FIND(statuses, dto->status));
		if (dto->status == DAT_DTO_SUCCESS)
			printf(", %u bytes", (unsigned)dto->transfered_length);
		break;
	case 0x1000:
		printf(": %s, cookie %u, %s", handle_name(bind->rmr_handle),
		       (unsigned)bind->user_cookie.as_64, FIND(statuses, bind->status));
		break;
	case 0x2000:
		printf(": %s, qualifier %s, address %s, truncate_flag %d",
		       handle_name(arrival->sp_handle.psp_handle),
		       arrival->conn_qual == qualifier ? "as listened on" : "another",
		       arrival->local_ia_address_ptr ? "there" : "NULL",
		       arrival->truncate_flag != DAT_FALSE);
		break;
	case 0x4000:
		printf(": %s", handle_name(connect->ep_handle));
		print_private_data(connect->private_data_size, connect->private_data);
		break;
	case 0x8000:
		printf(": %s, reason %d",
		       handle_name(event->event_data.asynch_error_event_data.dat_handle),
		       (int)event->event_data.asynch_error_event_data.reason);
		break;
	case 0x10000:
		printf(": pointer %u",
		       (unsigned)(uintptr_t)event->event_data.software_event_data.pointer);
		break;
	default:
		break;
	}
}

bool print_event(const char *evd_name, DAT_EVD_HANDLE evd, int milliseconds, DAT_EVENT *event)
{
	DAT_EVENT own;

	if (!event)
		event = &own;
	if (!take_event(evd, milliseconds, event)) {
		print("%s: no event", evd_name);
		return false;
	}
	printf("%s: %s%s", evd_name, event_name(event->event_number),
	       event->evd_handle == evd ? "" : " with another evd_handle");
	print_payload(event);
	putchar('\n');
	return true;
}

void print_state(const char *name, DAT_EP_HANDLE ep)
{
	DAT_EP_STATE state;
	DAT_RETURN code = dat_ep_get_status(ep, &state, NULL, NULL);

	if (code != DAT_SUCCESS)
		print("state of %s: %s", name, code_name(code));
	else
		print("state of %s: %s", name, state_name(state));
}

void print_idle(const char *name, DAT_EP_HANDLE ep)
{
	DAT_EP_STATE state;
	DAT_BOOLEAN recv_idle, request_idle;

	NEED(dat_ep_get_status(ep, &state, &recv_idle, &request_idle));
	print("%s: recv_idle %d, request_idle %d", name, recv_idle != DAT_FALSE,
	      request_idle != DAT_FALSE);
}

/* --- the program -------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < COUNT(groups); i++)
		for (const struct scenario *scenario = groups[i]; scenario->name; scenario++) {
			if (argc == 2 && !strcmp(argv[1], "list")) {
				print("%s", scenario->name);
			} else if (argc == 3 && !strcmp(argv[2], scenario->name)) {
				ia_name = argv[1];
				scenario->run();
				print("end");
				/* Threads of the library may be at work. */
				_Exit(0);
			}
		}
	return argc == 2 ? 0 : 2;
}
