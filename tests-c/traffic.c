/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "traffic.h"
#include "random.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

/* The registered memory of a process. Peers write to target and read from source, which never
 * changes. */
struct memory {
	char requests[REQUESTS][MOST];
	char receives[RECEIVES][MOST];
	char target[MOST];
	uint64_t source[MOST / 8];
};

struct rig rig;
DAT_EVD_HANDLE dto_evd;
static struct memory *memory;

/* 8 bytes to a mebibyte; small ones as often as large ones. */
static size_t any_size(void)
{
	size_t end = (size_t)16 << below(17);

	return end / 2 + below(end / 2 + 1);
}

/* --- requests and receives ------------------------------------------------------------------ */

static const uint64_t RECEIVE = (uint64_t)1 << 63;

/* The word at a place of a message, of the source or of the target. */
static uint64_t pattern(uint64_t number, size_t i)
{
	return (number + 1) * 0x9e3779b97f4a7c15u + i * 0x2545f4914f6cdd1du;
}

enum { SOURCE = 0, TARGET = 1, MESSAGES = 2 };

/* Words of a pattern from word `from` on; the last one may be in part. */
static void put_pattern(char *at, size_t size, uint64_t number, size_t from)
{
	for (size_t i = 0; i < size; i += 8) {
		uint64_t word = pattern(number, from + i / 8);

		memcpy(at + i, &word, size - i < 8 ? size - i : 8);
	}
}

static void verify(struct traffic *t, const char *at, size_t size, uint64_t number, size_t from)
{
	for (size_t i = 0; i < size; i += 8) {
		uint64_t word = pattern(number, from + i / 8);

		if (memcmp(at + i, &word, size - i < 8 ? size - i : 8) == 0)
			continue;
		tap_fail(__FILE__, __LINE__, "byte %zu of %zu is not what was sent", i, size);
		tap_bail();
	}
	t->verified += size;
}

void verify_target(void)
{
	for (size_t i = 0; i < MOST; i += 8) {
		uint64_t word = pattern(TARGET, i / 8), is;

		memcpy(&is, memory->target + i, 8);
		if (is == word || is == 0)
			continue;
		/* The end of a write may be within a word. */
		for (size_t j = 0; j < 8; j++) {
			char byte = memory->target[i + j];

			REQUIRE(byte == 0 || byte == ((const char *)&word)[j]);
		}
	}
}

static void post_receive(struct traffic *t)
{
	char *at = memory->receives[t->offered % RECEIVES];
	DAT_LMR_TRIPLET iov = dx_local(t->local, at, MOST);

	OK(dat_ep_post_recv(t->ep, 1, &iov, cookie(RECEIVE | t->offered),
			    DAT_COMPLETION_DEFAULT_FLAG));
	t->offered++;
}

static void post_request(struct traffic *t)
{
	struct request *r = &t->requests[t->requested % REQUESTS];
	char *at = memory->requests[t->requested % REQUESTS];
	DAT_LMR_TRIPLET iov;
	DAT_RMR_TRIPLET remote;
	DAT_CONTEXT number = cookie(t->requested);
	size_t offset;

	r->kind = (enum kind)below(KINDS);
	r->size = any_size();
	r->from = below((MOST - r->size) / 8 + 1);
	offset = (r->kind == READ ? offsetof(struct memory, source) :
				    offsetof(struct memory, target)) +
		 r->from * 8;
	iov = dx_local(t->local, at, r->size);
	remote = dx_remote(t->theirs.key, (void *)(uintptr_t)(t->theirs.at + offset), r->size);
	t->requested++;
	switch (r->kind) {
	case SEND:
		put_pattern(at, r->size, MESSAGES + t->sent, 0);
		t->sent++;
		OK(dat_ep_post_send(t->ep, 1, &iov, number, DAT_COMPLETION_DEFAULT_FLAG));
		break;
	case WRITE:
		put_pattern(at, r->size, TARGET, r->from);
		OK(dat_ep_post_rdma_write(t->ep, 1, &iov, number, &remote,
					  DAT_COMPLETION_DEFAULT_FLAG));
		break;
	default:
		OK(dat_ep_post_rdma_read(t->ep, 1, &iov, number, &remote,
					 DAT_COMPLETION_DEFAULT_FLAG));
	}
}

void register_memory(struct traffic *t, size_t size)
{
	DAT_REGION_DESCRIPTION region;
	DAT_VADDR address;
	DAT_VLEN length;

	memset(&region, 0, sizeof region);
	region.for_va = memory;
	t->ours.at = (uintptr_t)memory;
	OK(dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, region, size, rig.pz, DAT_MEM_PRIV_ALL_FLAG,
			 &t->lmr, &t->local, &t->ours.key, &length, &address));
}

void set_up(struct traffic *t, bool polls)
{
	DAT_EP_ATTR attr = ep_attr(&rig);

	memset(t, 0, sizeof *t);
	t->polls = polls;
	register_memory(t, sizeof *memory);
	OK(dat_ep_create(rig.ia, rig.pz, dto_evd, dto_evd, rig.connect_evd, &attr, &t->ep));
	for (int i = 0; i < RECEIVES; i++)
		post_receive(t);
}

static void learn(struct traffic *t, const void *private_data, DAT_COUNT size)
{
	REQUIRE(size >= (DAT_COUNT)sizeof t->theirs);
	memcpy(&t->theirs, private_data, sizeof t->theirs);
}

void connect_to(struct traffic *t, DAT_CONN_QUAL qualifier)
{
	DAT_CONNECTION_EVENT_DATA event;

	OK(dat_ep_connect(t->ep, rig.attr.ia_address_ptr, qualifier, SOON, sizeof t->ours, &t->ours,
			  DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	event = EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			.event_data.connect_event_data;
	learn(t, event.private_data, event.private_data_size);
}

void accept_one(struct traffic *t)
{
	DAT_CR_HANDLE cr = await_request(&rig);
	DAT_CR_PARAM param;

	OK(dat_cr_query(cr, DAT_CR_FIELD_ALL, &param));
	learn(t, param.private_data, param.private_data_size);
	OK(dat_cr_accept(cr, t->ep, sizeof t->ours, &t->ours));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
}

static void check_request(struct traffic *t)
{
	const struct request *r = &t->requests[t->done % REQUESTS];

	if (r->kind == READ)
		verify(t, memory->requests[t->done % REQUESTS], r->size, SOURCE, r->from);
}

static void check_message(struct traffic *t, size_t size)
{
	REQUIRE(size >= 8 && size <= MOST);
	verify(t, memory->receives[t->received % RECEIVES], size, MESSAGES + t->received, 0);
}

static void take(struct traffic *t, const DAT_EVENT *event)
{
	const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event->event_data.dto_completion_event_data;
	bool receive = dto->user_cookie.as_64 & RECEIVE;
	uint64_t *next = receive ? &t->received : &t->done;
	bool success = dto->status == DAT_DTO_SUCCESS;

	REQUIRE(event->event_number == DAT_DTO_COMPLETION_EVENT);
	REQUIRE(dto->ep_handle == t->ep);
	if ((dto->user_cookie.as_64 & ~RECEIVE) != *next ||
	    *next == (receive ? t->offered : t->requested) ||
	    (!success && dto->status != DAT_DTO_ERR_FLUSHED) || (success && t->over)) {
		tap_fail(__FILE__, __LINE__,
			 "%s %" PRIu64 " with status %d where %" PRIu64 " was due%s",
			 receive ? "receive" : "request",
			 (uint64_t)dto->user_cookie.as_64 & ~RECEIVE, (int)dto->status, *next,
			 t->over ? ", flushed" : "");
		tap_bail();
	}
	if (!success)
		t->over = true;
	else if (receive)
		check_message(t, dto->transfered_length);
	else
		check_request(t);
	++*next;
	t->moved += success;
	if (receive && !t->over)
		post_receive(t);
}

void take_one(struct traffic *t)
{
	DAT_EVENT event;
	DAT_COUNT more;
	DAT_RETURN ret;
	unsigned long long begun;

	if (!t->polls) {
		OK(dat_evd_wait(dto_evd, BOUND, 1, &event, &more));
		take(t, &event);
		return;
	}
	begun = now_us();
	while (DAT_GET_TYPE(ret = dat_evd_dequeue(dto_evd, &event)) == DAT_QUEUE_EMPTY)
		REQUIRE(now_us() - begun < BOUND);
	OK(ret);
	take(t, &event);
}

void run_until_flushed(struct traffic *t)
{
	while (!t->over) {
		while (t->requested - t->done < REQUESTS)
			post_request(t);
		take_one(t);
	}
}

void begin_traffic(void)
{
	rig_up(&rig);
	dto_evd = make_evd(rig.ia, 64, DAT_EVD_DTO_FLAG);
	memory = mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	REQUIRE(memory != MAP_FAILED);
	put_pattern((char *)memory->source, sizeof memory->source, SOURCE, 0);
}
