/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Registered memory that the program unmaps or protects. A device has the pages pinned, and its
 * transfers go on; the soft provider mostly finds no memory. A transfer that needs the memory ends with
 * the error of memory that is not registered, and its connection breaks. The process lives, its
 * other connections work, and everything can be freed.
 */
#include "common.h"
#include "moved.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	PAGE = 4096,
	/* Bytes registered at each end, and the pages in the middle that are withdrawn. */
	SIZE = 1 << 20,
	HOLE = SIZE / 2,
	HOLE_LEN = 4 * PAGE,
};

enum operation { SEND, WRITE, READ };
enum how { UNMAP, NO_ACCESS, READ_ONLY };

static struct pair p;
static struct mem ma, mb;
/* A second connection of the same two IAs, with memory of its own. */
static DAT_EP_HANDLE other_a, other_b;
static struct mem other_ma, other_mb;

/* Memory of its own mapping, registered. */
static struct mem map_mem(const struct rig *rig)
{
	DAT_REGION_DESCRIPTION region;
	DAT_VADDR address;
	DAT_VLEN length;
	struct mem mem = { .size = SIZE };

	mem.at = map_apart(SIZE);
	memset(&region, 0, sizeof region);
	region.for_va = mem.at;
	OK(dx_lmr_create(rig->ia, DAT_MEM_TYPE_VIRTUAL, region, SIZE, rig->pz,
			 DAT_MEM_PRIV_ALL_FLAG, &mem.lmr, &mem.local, &mem.remote, &length,
			 &address));
	return mem;
}

/* The IAs, and the second connection. */
static void up(void)
{
	pair_up(&p, NULL);
	other_a = p.ep_a;
	other_b = p.ep_b;
	other_ma = make_mem(&p.a, PAGE, DAT_MEM_PRIV_ALL_FLAG);
	other_mb = make_mem(&p.b, PAGE, DAT_MEM_PRIV_ALL_FLAG);
	fill(other_ma.at, PAGE, 3);
}

/* A connection that may break, and its memory. */
static void connect_anew(void)
{
	p.ep_a = make_ep(&p.a, NULL);
	p.ep_b = make_ep(&p.b, NULL);
	connect_eps(&p.a, p.ep_a, &p.b, p.ep_b);
	ma = map_mem(&p.a);
	mb = map_mem(&p.b);
	fill(ma.at, SIZE, 1);
	fill(mb.at, SIZE, 2);
}

static void withdraw(char *at, enum how how)
{
	switch (how) {
	case UNMAP:
		REQUIRE(munmap(at, HOLE_LEN) == 0);
		break;
	case NO_ACCESS:
		REQUIRE(mprotect(at, HOLE_LEN, PROT_NONE) == 0);
		break;
	case READ_ONLY:
		REQUIRE(mprotect(at, HOLE_LEN, PROT_READ) == 0);
		break;
	}
}

/* Frees the connection, which has broken or not, and its memory. */
static void free_it(void)
{
	if (ep_state(p.ep_a) == DAT_EP_STATE_CONNECTED) {
		OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
		EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
		EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	}
	OK(dat_ep_free(p.ep_a));
	OK(dat_ep_free(p.ep_b));
	OK(dat_lmr_free(ma.lmr));
	OK(dat_lmr_free(mb.lmr));
	munmap(ma.at, SIZE);
	munmap(mb.at, SIZE);
}

static void down(void)
{
	free_mem(&other_ma);
	free_mem(&other_mb);
	pair_down(&p);
}

/* The next completion on the EVD, which has to be that of this cookie. */
static DAT_DTO_COMPLETION_STATUS status_of(DAT_EVD_HANDLE evd, DAT_UINT64 value)
{
	DAT_EVENT event = EXPECT(evd, DAT_DTO_COMPLETION_EVENT);
	DAT_DTO_COMPLETION_EVENT_DATA dto = event.event_data.dto_completion_event_data;

	CHECK_EQ(dto.user_cookie.as_64, value);
	return dto.status;
}

/* Both ends of the first connection learn that it is broken. */
static void both_broken(void)
{
	CHECK(EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_BROKEN)
		      .event_data.connect_event_data.ep_handle == p.ep_a);
	CHECK(EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_BROKEN)
		      .event_data.connect_event_data.ep_handle == p.ep_b);
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_DISCONNECTED);
	CHECK_EQ(ep_state(p.ep_b), DAT_EP_STATE_DISCONNECTED);
}

/* Data flow over the second connection. */
static void other_works(void)
{
	DAT_LMR_TRIPLET from = dx_local(other_ma.local, other_ma.at, 64);
	DAT_LMR_TRIPLET to = dx_local(other_mb.local, other_mb.at, 64);
	DAT_RMR_TRIPLET remote = dx_remote(other_mb.remote, other_mb.at + 64, 64);

	OK(dat_ep_post_recv(other_b, 1, &to, cookie(70), DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_rdma_write(other_a, 1, &from, cookie(71), &remote,
				  DAT_COMPLETION_DEFAULT_FLAG));
	OK(dat_ep_post_send(other_a, 1, &from, cookie(72), DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(p.a.request_evd, 71, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.a.request_evd, 72, DAT_DTO_SUCCESS);
	EXPECT_DTO(p.b.recv_evd, 70, DAT_DTO_SUCCESS);
	CHECK(filled(other_mb.at, 64, 3));
	CHECK(filled(other_mb.at + 64, 64, 3));
	CHECK_EQ(ep_state(other_a), DAT_EP_STATE_CONNECTED);
	CHECK_EQ(ep_state(other_b), DAT_EP_STATE_CONNECTED);
}

/* What was posted last: the offset in both memories, the bytes, and the number of segments. */
static struct {
	size_t at, len;
	DAT_COUNT count;
} posted;

/* One operation of end a over `len` bytes at the same offset of both memories, in segments of at
 * most so many bytes, and for a send a receive. */
static void post(enum operation operation, size_t at, size_t len, size_t segment)
{
	DAT_LMR_TRIPLET local[4], to[4];
	DAT_RMR_TRIPLET remote = dx_remote(mb.remote, mb.at + at, len);
	DAT_COUNT count = 0, most = 4;

	if (operation == READ && p.a.attr.max_iov_segments_per_rdma_read < most)
		most = p.a.attr.max_iov_segments_per_rdma_read;
	for (size_t done = 0; done < len; count++) {
		size_t n = count == most - 1 || len - done < segment ? len - done : segment;

		local[count] = dx_local(ma.local, ma.at + at + done, n);
		to[count] = dx_local(mb.local, mb.at + at + done, n);
		done += n;
	}
	posted.at = at;
	posted.len = len;
	posted.count = count;
	switch (operation) {
	case SEND:
		OK(dat_ep_post_recv(p.ep_b, count, to, cookie(9), DAT_COMPLETION_DEFAULT_FLAG));
		OK(dat_ep_post_send(p.ep_a, count, local, cookie(1), DAT_COMPLETION_DEFAULT_FLAG));
		break;
	case WRITE:
		OK(dat_ep_post_rdma_write(p.ep_a, count, local, cookie(1), &remote,
					  DAT_COMPLETION_DEFAULT_FLAG));
		break;
	case READ:
		OK(dat_ep_post_rdma_read(p.ep_a, count, local, cookie(1), &remote,
					 DAT_COMPLETION_DEFAULT_FLAG));
		break;
	}
}

/* Every shape of one transfer with memory of `where` withdrawn; `judge` says how the transfer has
 * to end. */
static void each_shape(enum operation operation, bool at_target, enum how how, void (*judge)(void))
{
	/* Offset, length, and the most bytes of a segment but the last. */
	static const size_t shapes[][3] = {
		{ HOLE + PAGE, 8, 8 },	   { HOLE + 1, 1, 1 },
		{ HOLE - 4, 8, 8 },	   { HOLE + HOLE_LEN - 5, 13, 13 },
		{ HOLE - 100, 160, 160 },  { HOLE + HOLE_LEN - 100, 200, 200 },
		{ HOLE - 20, 40, 8 },	   { HOLE - 1000, 2000, 2000 },
		{ HOLE - 100, PAGE, 50 },  { HOLE - 40 * PAGE - 1, 44 * PAGE, 44 * PAGE },
		{ 1, SIZE - 2, SIZE },	   { 0, SIZE, SIZE / 4 },
		{ 3, HOLE, SIZE / 8 + 1 },
	};

	up();
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		connect_anew();
		withdraw((at_target ? mb.at : ma.at) + HOLE, how);
		post(operation, shapes[i][0], shapes[i][1], shapes[i][2]);
		judge();
		other_works();
		free_it();
	}
	down();
}

/* --- how they end --------------------------------------------------------------------------- */

static void request_succeeds(void)
{
	CHECK_EQ(status_of(p.a.request_evd, 1), DAT_DTO_SUCCESS);
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
}

static void send_succeeds(void)
{
	request_succeeds();
	CHECK_EQ(status_of(p.b.recv_evd, 9), DAT_DTO_SUCCESS);
}

/* Whether the device has the pages, whatever the program does to its mapping. */
static bool pages_are_pinned(void)
{
	return !is_exact();
}

static void fails_locally(void)
{
	if (pages_are_pinned()) {
		request_succeeds();
		return;
	}
	CHECK_EQ(status_of(p.a.request_evd, 1), DAT_DTO_ERR_LOCAL_PROTECTION);
	both_broken();
}

/* Through the file, as below, only a long message goes. */
static void send_fails_locally(void)
{
	if (pages_are_pinned()) {
		send_succeeds();
		return;
	}
	if (moves_memory(tap_ia)) {
		DAT_DTO_COMPLETION_STATUS sent = status_of(p.a.request_evd, 1);

		if (sent == DAT_DTO_SUCCESS) {
			CHECK_EQ(status_of(p.b.recv_evd, 9), DAT_DTO_SUCCESS);
			CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
			return;
		}
		CHECK_EQ(sent, DAT_DTO_ERR_LOCAL_PROTECTION);
		both_broken();
	} else {
		fails_locally();
	}
	CHECK_EQ(status_of(p.b.recv_evd, 9), DAT_DTO_ERR_FLUSHED);
}

/* The message cannot be placed. Through shared memory its send may have completed before that. */
static void receive_fails(void)
{
	DAT_DTO_COMPLETION_STATUS sent, received;

	if (pages_are_pinned()) {
		send_succeeds();
		return;
	}
	received = status_of(p.b.recv_evd, 9);
	sent = status_of(p.a.request_evd, 1);
	/* The sender has written to the file, as below. */
	if (moves_memory(tap_ia) && received == DAT_DTO_SUCCESS) {
		CHECK_EQ(sent, DAT_DTO_SUCCESS);
		return;
	}
	CHECK_EQ(received, DAT_DTO_ERR_LOCAL_PROTECTION);
	if (sends_are_delivered())
		CHECK_EQ(sent, DAT_DTO_ERR_REMOTE_RESPONDER);
	else
		CHECK(sent == DAT_DTO_SUCCESS || sent == DAT_DTO_ERR_FLUSHED ||
		      sent == DAT_DTO_ERR_REMOTE_RESPONDER);
	both_broken();
}

/* What peers map is a file, which is there whatever the program does to its own mapping; the data
 * go there as they go to pages that are pinned. */
static bool succeeds_in_the_file(void)
{
	if (!moves_memory(tap_ia) && !pages_are_pinned())
		return false;
	request_succeeds();
	return true;
}

static void write_is_refused(void)
{
	if (succeeds_in_the_file())
		return;
	EXPECT_WRITE_REFUSED(p.a.request_evd, 1);
	both_broken();
}

static void read_is_refused(void)
{
	if (succeeds_in_the_file())
		return;
	CHECK_EQ(status_of(p.a.request_evd, 1), DAT_DTO_ERR_REMOTE_ACCESS);
	both_broken();
}

/* A read of one segment of up to a page, through shared memory, may be by the file of the process, in
 * which pages are there whatever their protection. It is of pages as a card reads them then. */
static void read_without_access(void)
{
	DAT_DTO_COMPLETION_STATUS status;

	if (strcmp(tap_ia, "soft-shm") || posted.count > 1 || posted.len > PAGE) {
		read_is_refused();
		return;
	}
	status = status_of(p.a.request_evd, 1);
	if (status == DAT_DTO_SUCCESS) {
		CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
		REQUIRE(mprotect(mb.at + HOLE, HOLE_LEN, PROT_READ | PROT_WRITE) == 0);
		CHECK(memcmp(ma.at + posted.at, mb.at + posted.at, posted.len) == 0);
	} else {
		CHECK_EQ(status, DAT_DTO_ERR_REMOTE_ACCESS);
		both_broken();
	}
}

/* --- sends ---------------------------------------------------------------------------------- */

static void send__from_unmapped(void)
{
	each_shape(SEND, false, UNMAP, send_fails_locally);
}

static void send__from_no_access(void)
{
	each_shape(SEND, false, NO_ACCESS, send_fails_locally);
}

static void send__from_read_only(void)
{
	each_shape(SEND, false, READ_ONLY, send_succeeds);
}

static void send__to_unmapped(void)
{
	each_shape(SEND, true, UNMAP, receive_fails);
}

static void send__to_no_access(void)
{
	each_shape(SEND, true, NO_ACCESS, receive_fails);
}

static void send__to_read_only(void)
{
	each_shape(SEND, true, READ_ONLY, receive_fails);
}

/* --- RDMA writes ---------------------------------------------------------------------------- */

static void write__from_unmapped(void)
{
	each_shape(WRITE, false, UNMAP, fails_locally);
}

static void write__from_no_access(void)
{
	each_shape(WRITE, false, NO_ACCESS, fails_locally);
}

static void write__from_read_only(void)
{
	each_shape(WRITE, false, READ_ONLY, request_succeeds);
}

static void write__to_unmapped(void)
{
	each_shape(WRITE, true, UNMAP, write_is_refused);
}

static void write__to_no_access(void)
{
	each_shape(WRITE, true, NO_ACCESS, write_is_refused);
}

static void write__to_read_only(void)
{
	each_shape(WRITE, true, READ_ONLY, write_is_refused);
}

/* --- RDMA reads ----------------------------------------------------------------------------- */

static void read__from_unmapped(void)
{
	each_shape(READ, true, UNMAP, read_is_refused);
}

static void read__from_no_access(void)
{
	each_shape(READ, true, NO_ACCESS, read_without_access);
}

static void read__from_read_only(void)
{
	each_shape(READ, true, READ_ONLY, request_succeeds);
}

static void read__to_unmapped(void)
{
	each_shape(READ, false, UNMAP, fails_locally);
}

static void read__to_no_access(void)
{
	each_shape(READ, false, NO_ACCESS, fails_locally);
}

static void read__to_read_only(void)
{
	each_shape(READ, false, READ_ONLY, fails_locally);
}

/* --- memory that is withdrawn while it is used ------------------------------------------------ */

static atomic_bool done;

/* Withdraws the memory and gives it back, again and again. */
static void *toggle(void *at)
{
	while (!atomic_load(&done)) {
		mprotect(at, HOLE_LEN, PROT_NONE);
		mprotect(at, HOLE_LEN, PROT_READ | PROT_WRITE);
	}
	return NULL;
}

/* Transfers while another thread withdraws and restores the memory: each ends in success or
 * breaks its connection. */
static void amid(enum operation operation, bool at_target)
{
	enum { ROUNDS = 20, ROUNDS_OF_VALGRIND = 2, TRANSFERS = 8 };
	int rounds = getenv("VALGRIND") ? ROUNDS_OF_VALGRIND : ROUNDS;

	up();
	for (int round = 0; round < rounds; round++) {
		DAT_DTO_COMPLETION_STATUS status = DAT_DTO_SUCCESS;
		pthread_t thread;

		connect_anew();
		atomic_store(&done, false);
		REQUIRE(pthread_create(&thread, NULL, toggle, (at_target ? mb.at : ma.at) + HOLE) ==
			0);
		for (int i = 0; i < TRANSFERS && status == DAT_DTO_SUCCESS; i++) {
			post(operation, 5, SIZE - 77, SIZE / 4);
			status = status_of(p.a.request_evd, 1);
			if (operation == SEND) {
				DAT_DTO_COMPLETION_STATUS received = status_of(p.b.recv_evd, 9);

				if (status == DAT_DTO_SUCCESS)
					status = received;
			}
		}
		atomic_store(&done, true);
		REQUIRE(pthread_join(thread, NULL) == 0);
		if (status != DAT_DTO_SUCCESS)
			both_broken();
		other_works();
		free_it();
	}
	down();
}

static void send__from_memory_amid_transfers(void)
{
	amid(SEND, false);
}

static void send__to_memory_amid_transfers(void)
{
	amid(SEND, true);
}

static void write__from_memory_amid_transfers(void)
{
	amid(WRITE, false);
}

static void read__from_memory_amid_transfers(void)
{
	amid(READ, true);
}

static void read__to_memory_amid_transfers(void)
{
	amid(READ, false);
}

/* --- files ---------------------------------------------------------------------------------- */

/* The file that is mapped at the memory loses its end: accesses are bus errors. */
static void file__truncated(void)
{
	DAT_REGION_DESCRIPTION region;
	DAT_VADDR address;
	DAT_VLEN length;
	FILE *file = tmpfile();

	REQUIRE(file && ftruncate(fileno(file), SIZE) == 0);
	up();
	for (int at_target = 0; at_target < 2; at_target++) {
		struct mem *mem;
		const struct rig *rig;

		connect_anew();
		REQUIRE(ftruncate(fileno(file), SIZE) == 0);
		mem = at_target ? &mb : &ma;
		rig = at_target ? &p.b : &p.a;
		OK(dat_lmr_free(mem->lmr));
		REQUIRE(mmap(mem->at, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			     fileno(file), 0) == mem->at);
		memset(&region, 0, sizeof region);
		region.for_va = mem->at;
		OK(dx_lmr_create(rig->ia, DAT_MEM_TYPE_VIRTUAL, region, SIZE, rig->pz,
				 DAT_MEM_PRIV_ALL_FLAG, &mem->lmr, &mem->local, &mem->remote,
				 &length, &address));
		REQUIRE(ftruncate(fileno(file), HOLE) == 0);
		post(SEND, 100, SIZE - 200, SIZE);
		if (at_target)
			receive_fails();
		else
			send_fails_locally();
		other_works();
		free_it();
	}
	down();
	fclose(file);
}

static const struct tap_test tests[] = {
	T(send, from_unmapped),
	T(send, from_no_access),
	T(send, from_read_only),
	T(send, to_unmapped),
	T(send, to_no_access),
	T(send, to_read_only),
	T(write, from_unmapped),
	T(write, from_no_access),
	T(write, from_read_only),
	T(write, to_unmapped),
	T(write, to_no_access),
	T(write, to_read_only),
	T(read, from_unmapped),
	T(read, from_no_access),
	T(read, from_read_only),
	T(read, to_unmapped),
	T(read, to_no_access),
	T(read, to_read_only),
	T(send, from_memory_amid_transfers),
	T(send, to_memory_amid_transfers),
	T(write, from_memory_amid_transfers),
	T(read, from_memory_amid_transfers),
	T(read, to_memory_amid_transfers),
	T(file, truncated),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
