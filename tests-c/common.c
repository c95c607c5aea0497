/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "common.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* --- return codes ------------------------------------------------------------------------- */

static const char *code_text(DAT_RETURN code, char *to, size_t size)
{
	const char *major = NULL, *minor = NULL;

	if (dat_strerror(code, &major, &minor) == DAT_SUCCESS && major && minor)
		snprintf(to, size, "0x%08x %s %s", (unsigned)code, major, minor);
	else
		snprintf(to, size, "0x%08x", (unsigned)code);
	return to;
}

bool check_either(const char *file, int line, const char *call, DAT_RETURN got, DAT_RETURN type1,
		  DAT_RETURN type2)
{
	char is[160], want[160];

	if (DAT_GET_TYPE(got) == DAT_GET_TYPE(type1) || DAT_GET_TYPE(got) == DAT_GET_TYPE(type2))
		return true;
	tap_fail(file, line, "%s is %s, not %s", call, code_text(got, is, sizeof is),
		 code_text(type1, want, sizeof want));
	return false;
}

bool check_ret(const char *file, int line, const char *call, DAT_RETURN got, DAT_RETURN type)
{
	return check_either(file, line, call, got, type, type);
}

bool check_code(const char *file, int line, const char *call, DAT_RETURN got, DAT_RETURN type,
		DAT_RETURN subtype)
{
	char is[160], want[160];

	if (DAT_GET_TYPE(got) == DAT_GET_TYPE(type) && DAT_GET_SUBTYPE(got) == subtype)
		return true;
	tap_fail(file, line, "%s is %s, not %s", call, code_text(got, is, sizeof is),
		 code_text(DAT_CLASS_ERROR | type | subtype, want, sizeof want));
	return false;
}

/* --- an IA and what endpoints need -------------------------------------------------------- */

DAT_IA_HANDLE open_ia(DAT_EVD_HANDLE *async_evd)
{
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	OK(dat_ia_open((DAT_NAME_PTR)(uintptr_t)tap_ia, 8, &evd, &ia));
	REQUIRE(ia != DAT_HANDLE_NULL && evd != DAT_HANDLE_NULL);
	if (async_evd)
		*async_evd = evd;
	return ia;
}

DAT_EVD_HANDLE make_evd(DAT_IA_HANDLE ia, DAT_COUNT length, DAT_EVD_FLAGS flags)
{
	DAT_EVD_HANDLE evd = DAT_HANDLE_NULL;

	OK(dat_evd_create(ia, length, DAT_HANDLE_NULL, flags, &evd));
	REQUIRE(evd != DAT_HANDLE_NULL);
	return evd;
}

void rig_up(struct rig *rig)
{
	memset(rig, 0, sizeof *rig);
	rig->ia = open_ia(&rig->async_evd);
	OK(dat_ia_query(rig->ia, NULL, DAT_IA_FIELD_ALL, &rig->attr, DAT_PROVIDER_FIELD_ALL,
			&rig->provider));
	OK(dat_pz_create(rig->ia, &rig->pz));
	REQUIRE(rig->pz != DAT_HANDLE_NULL);
	rig->recv_evd = make_evd(rig->ia, 64, DAT_EVD_DTO_FLAG);
	rig->request_evd = make_evd(rig->ia, 64, DAT_EVD_DTO_FLAG);
	rig->connect_evd = make_evd(rig->ia, 16, DAT_EVD_CONNECTION_FLAG);
	rig->cr_evd = make_evd(rig->ia, 16, DAT_EVD_CR_FLAG);
}

void rig_down(struct rig *rig)
{
	CHECK_RET(dat_ia_close(rig->ia, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
}

void rig_down_unused(const char *file, int line, struct rig *rig)
{
	DAT_EVD_HANDLE evds[] = { rig->recv_evd, rig->request_evd, rig->connect_evd, rig->cr_evd };

	for (size_t i = 0; i < sizeof evds / sizeof *evds; i++)
		check_ret(file, line, "dat_evd_free", dat_evd_free(evds[i]), DAT_SUCCESS);
	check_ret(file, line, "dat_pz_free", dat_pz_free(rig->pz), DAT_SUCCESS);
	check_ret(file, line, "dat_ia_close", dat_ia_close(rig->ia, DAT_CLOSE_GRACEFUL_FLAG),
		  DAT_SUCCESS);
}

static DAT_COUNT at_most(DAT_COUNT limit, DAT_COUNT wish)
{
	return limit < wish ? limit : wish;
}

DAT_EP_ATTR ep_attr(const struct rig *rig)
{
	DAT_EP_ATTR attr;

	memset(&attr, 0, sizeof attr);
	attr.service_type = DAT_SERVICE_TYPE_RC;
	attr.max_message_size = 1 << 20;
	attr.max_rdma_size = 1 << 20;
	attr.qos = DAT_QOS_BEST_EFFORT;
	attr.recv_completion_flags = DAT_COMPLETION_DEFAULT_FLAG;
	attr.request_completion_flags = DAT_COMPLETION_DEFAULT_FLAG;
	attr.max_recv_dtos = 16;
	attr.max_request_dtos = 16;
	attr.max_recv_iov = at_most(rig->attr.max_iov_segments_per_dto, 4);
	attr.max_request_iov = at_most(rig->attr.max_iov_segments_per_dto, 4);
	attr.max_rdma_read_in = at_most(rig->attr.max_rdma_read_per_ep_in, 4);
	attr.max_rdma_read_out = at_most(rig->attr.max_rdma_read_per_ep_out, 4);
	attr.max_rdma_read_iov = at_most(rig->attr.max_iov_segments_per_rdma_read, 4);
	attr.max_rdma_write_iov = at_most(rig->attr.max_iov_segments_per_rdma_write, 4);
	attr.srq_soft_hw = DAT_HW_DEFAULT;
	return attr;
}

DAT_EP_HANDLE make_ep(const struct rig *rig, const DAT_EP_ATTR *attr)
{
	DAT_EP_ATTR usual = ep_attr(rig);
	DAT_EP_HANDLE ep = DAT_HANDLE_NULL;

	OK(dat_ep_create(rig->ia, rig->pz, rig->recv_evd, rig->request_evd, rig->connect_evd,
			 attr ? attr : &usual, &ep));
	REQUIRE(ep != DAT_HANDLE_NULL);
	return ep;
}

DAT_EP_STATE ep_state(DAT_EP_HANDLE ep)
{
	DAT_EP_STATE state = (DAT_EP_STATE)-1;

	OK(dat_ep_get_status(ep, &state, NULL, NULL));
	return state;
}

void await_state(DAT_EP_HANDLE ep, DAT_EP_STATE state)
{
	unsigned long long end = now_us() + SOON;

	while (ep_state(ep) != state && now_us() < end)
		pause_us(1000);
	CHECK_EQ(ep_state(ep), state);
}

void await_idle(DAT_EP_HANDLE ep)
{
	unsigned long long end = now_us() + SOON;
	DAT_BOOLEAN recv = DAT_FALSE, request = DAT_FALSE;

	do {
		OK(dat_ep_get_status(ep, NULL, &recv, &request));
		pause_us(100);
	} while (!(recv && request) && now_us() < end);
	CHECK(recv && request);
}

/* --- memory ------------------------------------------------------------------------------- */

struct mem make_mem_in(DAT_IA_HANDLE ia, DAT_PZ_HANDLE pz, size_t size,
		       DAT_MEM_PRIV_FLAGS privileges)
{
	DAT_REGION_DESCRIPTION region;
	DAT_VADDR address;
	DAT_VLEN length;
	struct mem mem = { .size = size };

	REQUIRE(posix_memalign((void **)&mem.at, 4096, (size + 4095) / 4096 * 4096) == 0);
	memset(mem.at, 0, size);
	memset(&region, 0, sizeof region);
	region.for_va = mem.at;
	OK(dx_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, size, pz, privileges, &mem.lmr,
			 &mem.local, &mem.remote, &length, &address));
	REQUIRE(mem.lmr != DAT_HANDLE_NULL);
	return mem;
}

struct mem make_mem(const struct rig *rig, size_t size, DAT_MEM_PRIV_FLAGS privileges)
{
	return make_mem_in(rig->ia, rig->pz, size, privileges);
}

void free_mem(struct mem *mem)
{
	CHECK_RET(dat_lmr_free(mem->lmr), DAT_SUCCESS);
	free(mem->at);
	memset(mem, 0, sizeof *mem);
}

char *map_apart(size_t size)
{
	enum { GAP = 1 << 20 };
	/* Above an address of 38 bits (30 bits of 32) at which the library may have something. */
	static uintptr_t next = sizeof(void *) == 8 ? (uintptr_t)(1ull << 38) : 0x60000000;
	void *at = mmap((void *)next, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			0);

	REQUIRE(at != MAP_FAILED);
	next += (size / GAP + 2) * GAP;
	return at;
}

static unsigned char byte(size_t i, unsigned seed)
{
	return (unsigned char)((i * 2654435761u + seed * 40503u + (i >> 8)) >> 3);
}

void fill(void *at, size_t size, unsigned seed)
{
	unsigned char *to = at;

	for (size_t i = 0; i < size; i++)
		to[i] = byte(i, seed);
}

bool filled(const void *at, size_t size, unsigned seed)
{
	const unsigned char *from = at;

	for (size_t i = 0; i < size; i++)
		if (from[i] != byte(i, seed))
			return false;
	return true;
}

bool no_private_data(const void *at)
{
	static const char none[256];

	return at && !memcmp(at, none, sizeof none);
}

DAT_CONTEXT cookie(DAT_UINT64 value)
{
	DAT_CONTEXT c;

	c.as_64 = value;
	return c;
}

/* --- events ------------------------------------------------------------------------------- */

/* The events of connections that bring no private data. */
static bool is_without_data(DAT_EVENT_NUMBER number)
{
	switch (number) {
	case DAT_CONNECTION_EVENT_NON_PEER_REJECTED:
	case DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR:
	case DAT_CONNECTION_EVENT_DISCONNECTED:
	case DAT_CONNECTION_EVENT_BROKEN:
	case DAT_CONNECTION_EVENT_TIMED_OUT:
	case DAT_CONNECTION_EVENT_UNREACHABLE:
		return true;
	default:
		return false;
	}
}

/* The next event by a wait or, in a run whose programs poll (EXPECT=poll), by dequeues. */
DAT_RETURN wait_uncancelled(DAT_EVD_HANDLE evd, DAT_EVENT *event)
{
	DAT_COUNT more;
	DAT_RETURN ret = dat_evd_wait(evd, SOON, 1, event, &more);

#ifndef __GLIBC__
	while (DAT_GET_TYPE(ret) == DAT_INTERRUPTED_CALL)
		ret = dat_evd_wait(evd, SOON, 1, event, &more);
#endif
	return ret;
}

static DAT_RETURN next_event(DAT_EVD_HANDLE evd, DAT_EVENT *event)
{
	const char *how = getenv("EXPECT");
	unsigned long long end = now_us() + SOON;
	DAT_RETURN ret;

	if (!how || strcmp(how, "poll") != 0)
		return wait_uncancelled(evd, event);
	while (DAT_GET_TYPE(ret = dat_evd_dequeue(evd, event)) == DAT_QUEUE_EMPTY && now_us() < end)
		sched_yield();
	return ret;
}

DAT_EVENT expect(const char *file, int line, DAT_EVD_HANDLE evd, DAT_EVENT_NUMBER number)
{
	DAT_EVENT event;

	memset(&event, 0, sizeof event);
	if (!check_ret(file, line, "the next event", next_event(evd, &event), DAT_SUCCESS))
		tap_bail();
	if (event.event_number != number) {
		tap_fail(file, line, "event 0x%x instead of 0x%x", (unsigned)event.event_number,
			 (unsigned)number);
		tap_bail();
	}
	if (event.evd_handle != evd)
		tap_fail(file, line, "the event names another EVD");
	if (is_without_data(number) && event.event_data.connect_event_data.private_data_size != 0)
		tap_fail(file, line, "the event has private data");
	return event;
}

void expect_nothing(const char *file, int line, DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;
	DAT_COUNT more;
	DAT_RETURN ret;

	memset(&event, 0, sizeof event);
	ret = dat_evd_wait(evd, NEVER, 1, &event, &more);
	if (ret == DAT_SUCCESS)
		tap_fail(file, line, "event 0x%x where none was due", (unsigned)event.event_number);
	else
		check_ret(file, line, "dat_evd_wait", ret, DAT_TIMEOUT_EXPIRED);
}

DAT_DTO_COMPLETION_EVENT_DATA expect_dto(const char *file, int line, DAT_EVD_HANDLE evd,
					 DAT_UINT64 value, DAT_DTO_COMPLETION_STATUS status)
{
	DAT_EVENT event = expect(file, line, evd, DAT_DTO_COMPLETION_EVENT);
	DAT_DTO_COMPLETION_EVENT_DATA dto = event.event_data.dto_completion_event_data;

	if (dto.user_cookie.as_64 != value || dto.status != status)
		tap_fail(file, line, "completion of cookie %llu with status %d, not %llu with %d",
			 (unsigned long long)dto.user_cookie.as_64, (int)dto.status,
			 (unsigned long long)value, (int)status);
	return dto;
}

bool writes_end_when_sent(void)
{
	return strcmp(tap_ia, "siw") == 0;
}

void expect_write_refused(const char *file, int line, DAT_EVD_HANDLE evd, DAT_UINT64 value)
{
	DAT_EVENT event = expect(file, line, evd, DAT_DTO_COMPLETION_EVENT);
	DAT_DTO_COMPLETION_EVENT_DATA dto = event.event_data.dto_completion_event_data;

	if (dto.user_cookie.as_64 != value)
		tap_fail(file, line, "completion of cookie %llu, not %llu",
			 (unsigned long long)dto.user_cookie.as_64, (unsigned long long)value);
	if (dto.status == DAT_DTO_SUCCESS && writes_end_when_sent())
		return;
	if (dto.status != DAT_DTO_ERR_REMOTE_ACCESS)
		tap_fail(file, line, "status %d of a write that the target refuses",
			 (int)dto.status);
}

/* --- threads ------------------------------------------------------------------------------ */

void await_waiter(DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;
	DAT_RETURN ret;

	while (DAT_GET_TYPE(ret = dat_evd_dequeue(evd, &event)) == DAT_QUEUE_EMPTY)
		pause_us(500);
	REQUIRE_RET(ret, DAT_INVALID_STATE);
}

void await_asleep(const _Atomic pid_t *tid)
{
	int sleeping = 0;

	while (sleeping < 5) {
		char path[64], state = 0;
		FILE *stat;

		snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)*tid);
		stat = *tid ? fopen(path, "r") : NULL;
		if (stat) {
			/* pid (name) state ...; our names have no parentheses. */
			if (fscanf(stat, "%*d %*[^)]) %c", &state) != 1)
				state = 0;
			fclose(stat);
		}
		sleeping = state == 'S' ? sleeping + 1 : 0;
		pause_us(4000);
	}
}

void pause_us(unsigned long us)
{
	struct timespec t = { (time_t)(us / 1000000), (long)(us % 1000000 * 1000) };

	nanosleep(&t, NULL);
}

unsigned long long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (unsigned long long)t.tv_sec * 1000000u + (unsigned long long)t.tv_nsec / 1000u;
}

DAT_EVENT software_event(unsigned number)
{
	DAT_EVENT event;

	memset(&event, 0, sizeof event);
	event.event_number = DAT_SOFTWARE_EVENT;
	event.event_data.software_event_data.pointer = (void *)(uintptr_t)number;
	return event;
}

DAT_RETURN post_software_event(DAT_EVD_HANDLE evd, unsigned number)
{
	DAT_EVENT event = software_event(number);

	return dat_evd_post_se(evd, &event);
}

DAT_RETURN recv_nothing(DAT_EP_HANDLE ep, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET none = { 0 };

	return dat_ep_post_recv(ep, 0, &none, cookie(value), DAT_COMPLETION_DEFAULT_FLAG);
}

DAT_RETURN send_nothing(DAT_EP_HANDLE ep, DAT_UINT64 value, DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET none = { 0 };

	return dat_ep_post_send(ep, 0, &none, cookie(value), flags);
}

bool is_exact(void)
{
	return strncmp(tap_ia, "soft", 4) == 0;
}

bool sends_are_delivered(void)
{
	return strcmp(tap_ia, "soft") == 0 || strcmp(tap_ia, "soft-tcp") == 0;
}
