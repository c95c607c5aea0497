/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_extension_op: atomic operations and RDMA writes with immediate data, as the macros of
 * dat_ib_extensions.h post them. DAT 2.0 only. */
#include "transfer.h"

#include <dat2/dat_ib_extensions.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define ATOMIC ((DAT_MEM_PRIV_FLAGS)(DAT_MEM_PRIV_ALL_FLAG | DAT_IB_MEM_PRIV_REMOTE_ATOMIC))
#define DEFAULT DAT_COMPLETION_DEFAULT_FLAG

enum {
	/* Where side a has the results. */
	RESULT = 64,
	/* The numbers of operations that are not known, and of the collectives. */
	UNKNOWN_OP = 30,
	FIRST_COLLECTIVE = DAT_IB_COLLECTIVE_CREATE_MEMBER_OP,
	LAST_COLLECTIVE = DAT_IB_COLLECTIVE_BARRIER_OP,
};

/* Memory of side b that peers may change by atomic operations. */
static struct mem words;

static bool has(const char *name)
{
	for (DAT_COUNT i = 0; i < p.a.provider.num_provider_specific_attr; i++)
		if (!strcmp(p.a.provider.provider_specific_attr[i].name, name))
			return true;
	return false;
}

/* A connection of a device that has the operations of this name. */
static void up_for(const char *name)
{
	up();
	if (!has(name))
		tap_unsupported(name);
	words = make_mem(&p.b, 4096, ATOMIC);
}

static DAT_UINT64 *word_at(size_t offset)
{
	return (DAT_UINT64 *)(void *)(words.at + offset);
}

static DAT_UINT64 result(void)
{
	DAT_UINT64 value;

	memcpy(&value, ma.at + RESULT, sizeof value);
	return value;
}

static DAT_RETURN fetch_add(size_t offset, DAT_UINT64 add, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET local = dx_local(ma.local, ma.at + RESULT, 8);
	DAT_RMR_TRIPLET remote = dx_remote(words.remote, words.at + offset, 8);

	return dat_ib_post_fetch_and_add(p.ep_a, add, &local, cookie(value), &remote, DEFAULT);
}

static DAT_RETURN cmp_swap(size_t offset, DAT_UINT64 compare, DAT_UINT64 swap, DAT_UINT64 value)
{
	DAT_LMR_TRIPLET local = dx_local(ma.local, ma.at + RESULT, 8);
	DAT_RMR_TRIPLET remote = dx_remote(words.remote, words.at + offset, 8);

	return dat_ib_post_cmp_and_swap(p.ep_a, compare, swap, &local, cookie(value), &remote,
					DEFAULT);
}

static DAT_RETURN write_immed(size_t from, size_t to, size_t size, DAT_UINT64 value,
			      DAT_UINT32 data, DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET local = dx_local(ma.local, ma.at + from, size);
	DAT_RMR_TRIPLET remote = dx_remote(mb.remote, mb.at + to, size);

	return dat_ib_post_rdma_write_immed(p.ep_a, 1, &local, cookie(value), &remote, data, flags);
}

/* The next event, which is the completion of an extended operation. */
#define EXPECT_EXTENDED(evd, value, op, type) \
	expect_extended(__FILE__, __LINE__, (evd), (value), (op), (type))
static DAT_EVENT expect_extended(const char *file, int line, DAT_EVD_HANDLE evd, DAT_UINT64 value,
				 DAT_UINT32 op, DAT_IB_EXT_TYPE type)
{
	DAT_EVENT event = expect(file, line, evd, (DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT);
	DAT_DTO_COMPLETION_EVENT_DATA dto = event.event_data.dto_completion_event_data;
	DAT_IB_EXTENSION_EVENT_DATA data;

	memcpy(&data, event.event_extension_data, sizeof data);
	if (dto.user_cookie.as_64 != value)
		tap_fail(file, line, "completion of cookie %llu, not %llu",
			 (unsigned long long)dto.user_cookie.as_64, (unsigned long long)value);
	if ((DAT_UINT32)dto.operation != op || data.type != type)
		tap_fail(file, line, "operation %u and type %u, not %u and %u", dto.operation,
			 data.type, op, type);
	/* As in the events of OpenFabrics' providers. */
	if ((DAT_UINT32)data.status != (DAT_UINT32)dto.status || event.evd_handle != evd)
		tap_fail(file, line, "status %u, not %u", data.status, dto.status);
	return event;
}

static DAT_DTO_COMPLETION_STATUS status_of(const DAT_EVENT *event)
{
	return event->event_data.dto_completion_event_data.status;
}

static DAT_VLEN length_of(const DAT_EVENT *event)
{
	return event->event_data.dto_completion_event_data.transfered_length;
}

static DAT_UINT32 immed_of(const DAT_EVENT *event)
{
	DAT_IB_EXTENSION_EVENT_DATA data;

	memcpy(&data, event->event_extension_data, sizeof data);
	return data.val.immed.data;
}

static DAT_DTO_COMPLETION_STATUS added(DAT_UINT64 value)
{
	DAT_EVENT event =
		EXPECT_EXTENDED(p.a.request_evd, value, DAT_IB_DTO_FETCH_ADD, DAT_IB_FETCH_AND_ADD);

	return status_of(&event);
}

static DAT_DTO_COMPLETION_STATUS swapped(DAT_UINT64 value)
{
	DAT_EVENT event =
		EXPECT_EXTENDED(p.a.request_evd, value, DAT_IB_DTO_CMP_SWAP, DAT_IB_CMP_AND_SWAP);

	return status_of(&event);
}

/* --- what there is -------------------------------------------------------------------------- */

static void query__says_what_there_is(void)
{
	static const char *const names[] = { DAT_IB_ATTR_FETCH_AND_ADD, DAT_IB_ATTR_CMP_AND_SWAP,
					     DAT_IB_ATTR_IMMED_DATA };

	up();
	CHECK_EQ(p.a.attr.extension_supported, DAT_EXTENSION_IB);
	CHECK_EQ(p.a.attr.extension_version, DAT_IB_EXTENSION_VERSION);
	/* Atomic operations come together. */
	CHECK_EQ(has(names[0]), has(names[1]));
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		for (DAT_COUNT j = 0; j < p.a.provider.num_provider_specific_attr; j++)
			if (!strcmp(p.a.provider.provider_specific_attr[j].name, names[i]))
				CHECK(!strcmp(p.a.provider.provider_specific_attr[j].value,
					      "TRUE"));
	down();
}

static DAT_RETURN open_query(DAT_NAME_PTR name, DAT_IA_HANDLE *ia, DAT_IA_ATTR *attr,
			     DAT_PROVIDER_ATTR *provider)
{
	return dat_ib_open_query(name, ia, DAT_IA_FIELD_ALL, attr, DAT_PROVIDER_FIELD_ALL,
				 provider);
}

static void open_query__gives_the_attributes(void)
{
	static char name[256];
	DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
	DAT_IA_ATTR attr;
	DAT_PROVIDER_ATTR provider;
	struct rig rig;

	/* Before any IA was open. */
	snprintf(name, sizeof name, "%s", tap_ia);
	OK(open_query(name, &ia, &attr, &provider));
	CHECK(ia != DAT_HANDLE_NULL);
	rig_up(&rig);
	CHECK(!strcmp(attr.adapter_name, rig.attr.adapter_name));
	CHECK_EQ(attr.max_eps, rig.attr.max_eps);
	CHECK_EQ(attr.extension_supported, DAT_EXTENSION_IB);
	CHECK_EQ(attr.num_transport_attr, rig.attr.num_transport_attr);
	CHECK(!strcmp(provider.provider_name, rig.provider.provider_name));
	CHECK_EQ(provider.num_provider_specific_attr, rig.provider.num_provider_specific_attr);
	rig_down(&rig);
	OK(dat_ib_close_query(ia));
	CHECK_RET(dat_ib_close_query(ia), DAT_INVALID_HANDLE);
	/* Either of the two is enough. */
	memset(&attr, 0, sizeof attr);
	OK(dat_ib_open_query(name, &ia, DAT_IA_FIELD_ALL, &attr, 0, NULL));
	CHECK_EQ(attr.extension_version, DAT_IB_EXTENSION_VERSION);
	OK(dat_ib_close_query(ia));
	OK(dat_ib_open_query(name, &ia, 0, NULL, DAT_PROVIDER_FIELD_ALL, &provider));
	OK(dat_ib_close_query(ia));
}

static void open_query__arguments(void)
{
	static char name[256], unknown[] = "no-such-ia";
	DAT_IA_HANDLE ia;
	DAT_IA_ATTR attr;
	DAT_PROVIDER_ATTR provider;

	snprintf(name, sizeof name, "%s", tap_ia);
	CHECK_RET(open_query(NULL, &ia, &attr, &provider), DAT_INVALID_HANDLE);
	CHECK_RET(open_query(unknown, &ia, &attr, &provider), DAT_PROVIDER_NOT_FOUND);
	CHECK_CODE(open_query(name, NULL, &attr, &provider), DAT_INVALID_PARAMETER,
		   DAT_INVALID_ARG2);
	CHECK_CODE(open_query(name, &ia, NULL, NULL), DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
	CHECK_CODE(open_query(name, &ia, NULL, &provider), DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
	CHECK_CODE(open_query(name, &ia, &attr, NULL), DAT_INVALID_PARAMETER, DAT_INVALID_ARG6);
	CHECK_RET(dat_ib_close_query(DAT_HANDLE_NULL), DAT_INVALID_HANDLE);
	CHECK_RET(dat_ib_close_query((DAT_IA_HANDLE)&attr), DAT_INVALID_HANDLE);
}

static void operation__unknown(void)
{
	up();
	CHECK_RET(dat_extension_op(p.ep_a, UNKNOWN_OP), DAT_NOT_IMPLEMENTED);
	CHECK_RET(dat_extension_op(p.ep_a, -1 & 0xfff), DAT_NOT_IMPLEMENTED);
	for (int op = FIRST_COLLECTIVE; op <= LAST_COLLECTIVE; op++)
		CHECK_RET(dat_extension_op(p.ep_a, op, 0, 0, 0, 0, 0, 0), DAT_NOT_IMPLEMENTED);
	CHECK_EQ(ep_state(p.ep_a), DAT_EP_STATE_CONNECTED);
	down();
}

/* --- atomic operations ---------------------------------------------------------------------- */

static void fetch_and_add__adds(void)
{
	up_for(DAT_IB_ATTR_FETCH_AND_ADD);
	*word_at(0) = 0x10;
	OK(fetch_add(0, 0x100, 1));
	CHECK_EQ(added(1), DAT_DTO_SUCCESS);
	CHECK_EQ(result(), 0x10);
	CHECK_EQ(*word_at(0), 0x110);
	/* Modulo 2^64. */
	OK(fetch_add(0, ~(DAT_UINT64)0, 2));
	CHECK_EQ(added(2), DAT_DTO_SUCCESS);
	CHECK_EQ(result(), 0x110);
	CHECK_EQ(*word_at(0), 0x10f);
	CHECK_EQ(*word_at(8), 0);
	down();
}

static void cmp_and_swap__swaps_what_is_equal(void)
{
	up_for(DAT_IB_ATTR_CMP_AND_SWAP);
	*word_at(8) = 0x12345;
	OK(cmp_swap(8, 0x654321, 0x6789a, 1));
	CHECK_EQ(swapped(1), DAT_DTO_SUCCESS);
	CHECK_EQ(result(), 0x12345);
	CHECK_EQ(*word_at(8), 0x12345);
	OK(cmp_swap(8, 0x12345, 0x9876500000000, 2));
	CHECK_EQ(swapped(2), DAT_DTO_SUCCESS);
	CHECK_EQ(result(), 0x12345);
	CHECK_EQ(*word_at(8), 0x9876500000000);
	down();
}

static void atomics__transfer_eight_bytes(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;
	DAT_EVENT event;

	/* Longer segments are no error: the word is at their beginning. */
	up_for(DAT_IB_ATTR_FETCH_AND_ADD);
	memset(ma.at + RESULT, 0xee, 64);
	local = dx_local(ma.local, ma.at + RESULT, 64);
	remote = dx_remote(words.remote, words.at, 4096);
	OK(dat_ib_post_fetch_and_add(p.ep_a, 1, &local, cookie(1), &remote, DEFAULT));
	event = EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_FETCH_ADD, DAT_IB_FETCH_AND_ADD);
	CHECK_EQ(length_of(&event), 8);
	CHECK(event.event_data.dto_completion_event_data.ep_handle == p.ep_a);
	CHECK_EQ(result(), 0);
	CHECK_EQ((unsigned char)ma.at[RESULT + 8], 0xee);
	CHECK_EQ(*word_at(0), 1);
	down();
}

static void atomics__arguments(void)
{
	DAT_LMR_TRIPLET local, strange;
	DAT_RMR_TRIPLET remote;
	DAT_EP_HANDLE ep;

	up_for(DAT_IB_ATTR_FETCH_AND_ADD);
	local = dx_local(ma.local, ma.at, 8);
	remote = dx_remote(words.remote, words.at, 8);
	CHECK_CODE(dat_ib_post_fetch_and_add(p.ep_a, 1, NULL, cookie(1), &remote, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
	CHECK_CODE(dat_ib_post_fetch_and_add(p.ep_a, 1, &local, cookie(1), NULL, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
	CHECK_CODE(dat_ib_post_cmp_and_swap(p.ep_a, 1, 2, NULL, cookie(1), &remote, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
	CHECK_CODE(dat_ib_post_cmp_and_swap(p.ep_a, 1, 2, &local, cookie(1), NULL, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG6);
	strange = dx_local(ma.local, ma.at, 7);
	CHECK_RET(dat_ib_post_fetch_and_add(p.ep_a, 1, &strange, cookie(1), &remote, DEFAULT),
		  DAT_LENGTH_ERROR);
	remote = dx_remote(words.remote, words.at, 7);
	CHECK_RET(dat_ib_post_fetch_and_add(p.ep_a, 1, &local, cookie(1), &remote, DEFAULT),
		  DAT_LENGTH_ERROR);
	remote = dx_remote(words.remote, words.at, 8);
	strange = dx_local(ma.local + 0x10000, ma.at, 8);
	CHECK_RET(dat_ib_post_fetch_and_add(p.ep_a, 1, &strange, cookie(1), &remote, DEFAULT),
		  DAT_PRIVILEGES_VIOLATION);
	CHECK_RET(dat_ib_post_fetch_and_add(p.a.pz, 1, &local, cookie(1), &remote, DEFAULT),
		  DAT_INVALID_HANDLE);
	ep = make_ep(&p.a, NULL);
	CHECK_RET(dat_ib_post_fetch_and_add(ep, 1, &local, cookie(1), &remote, DEFAULT),
		  DAT_INVALID_STATE);
	OK(dat_ep_free(ep));
	EXPECT_NOTHING(p.a.request_evd);
	CHECK_EQ(*word_at(0), 0);
	down();
}

static void atomics__flags(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;

	up_for(DAT_IB_ATTR_FETCH_AND_ADD);
	local = dx_local(ma.local, ma.at + RESULT, 8);
	remote = dx_remote(words.remote, words.at, 8);
	for (DAT_UINT64 i = 1; i <= 3; i++)
		OK(dat_ib_post_fetch_and_add(p.ep_a, 1, &local, cookie(i), &remote,
					     DAT_COMPLETION_SUPPRESS_FLAG));
	/* The fence waits for them. */
	OK(dat_ib_post_cmp_and_swap(p.ep_a, 3, 40, &local, cookie(4), &remote,
				    DAT_COMPLETION_BARRIER_FENCE_FLAG));
	CHECK_EQ(swapped(4), DAT_DTO_SUCCESS);
	CHECK_EQ(result(), 3);
	CHECK_EQ(*word_at(0), 40);
	EXPECT_NOTHING(p.a.request_evd);
	down();
}

/* What the target refuses: the connection ends. */
static void refused(void (*spoil)(DAT_RMR_TRIPLET *), DAT_DTO_COMPLETION_STATUS status)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;
	DAT_RETURN ret;

	up_for(DAT_IB_ATTR_FETCH_AND_ADD);
	local = dx_local(ma.local, ma.at + RESULT, 8);
	remote = dx_remote(words.remote, words.at, 8);
	spoil(&remote);
	ret = dat_ib_post_fetch_and_add(p.ep_a, 1, &local, cookie(1), &remote, DEFAULT);
	/* A device may notice an address that is not aligned at once. */
	if (!is_exact() && status == DAT_DTO_ERR_REMOTE_RESPONDER && ret != DAT_SUCCESS) {
		CHECK_RET(ret, DAT_INVALID_PARAMETER);
		down();
		return;
	}
	OK(ret);
	CHECK_EQ(added(1), status);
	both_broken();
	CHECK_EQ(*word_at(0), 0);
	down();
}

static void other_key(DAT_RMR_TRIPLET *remote)
{
	remote->rmr_context ^= 0x100;
}

/* Memory that is open to all but atomic operations. */
static void other_privileges(DAT_RMR_TRIPLET *remote)
{
	*remote = dx_remote(mb.remote, mb.at, 8);
}

static void behind(DAT_RMR_TRIPLET *remote)
{
	remote->virtual_address += 4096;
}

static void misaligned(DAT_RMR_TRIPLET *remote)
{
	remote->virtual_address += 4;
}

static void atomics__wrong_key(void)
{
	refused(other_key, DAT_DTO_ERR_REMOTE_ACCESS);
}

static void atomics__without_the_privilege(void)
{
	refused(other_privileges, DAT_DTO_ERR_REMOTE_ACCESS);
}

static void atomics__outside_of_the_region(void)
{
	refused(behind, DAT_DTO_ERR_REMOTE_ACCESS);
}

static void atomics__misaligned(void)
{
	refused(misaligned, DAT_DTO_ERR_REMOTE_RESPONDER);
}

/* Additions by the peer and by the program itself. */
enum { ADDITIONS = 2000 };

static void *add_locally(void *argument)
{
	_Atomic DAT_UINT64 *word = argument;

	for (int i = 0; i < ADDITIONS; i++)
		atomic_fetch_add(word, 1);
	return NULL;
}

static void atomics__and_those_of_the_processor(void)
{
	pthread_t thread;

	up_for(DAT_IB_ATTR_FETCH_AND_ADD);
	/* An adapter is atomic for itself alone. */
	if (!is_exact())
		tap_skip("a promise of the soft provider");
	REQUIRE(!pthread_create(&thread, NULL, add_locally, word_at(0)));
	for (DAT_UINT64 i = 0; i < ADDITIONS; i++) {
		OK(fetch_add(0, 1, i));
		REQUIRE(added(i) == DAT_DTO_SUCCESS);
	}
	pthread_join(thread, NULL);
	CHECK_EQ(*word_at(0), 2 * ADDITIONS);
	down();
}

static void atomics__after_the_end(void)
{
	up_for(DAT_IB_ATTR_FETCH_AND_ADD);
	OK(dat_ep_disconnect(p.ep_a, DAT_CLOSE_ABRUPT_FLAG));
	await_state(p.ep_a, DAT_EP_STATE_DISCONNECTED);
	OK(fetch_add(0, 1, 1));
	CHECK_EQ(added(1), DAT_DTO_ERR_FLUSHED);
	OK(cmp_swap(0, 1, 2, 2));
	CHECK_EQ(swapped(2), DAT_DTO_ERR_FLUSHED);
	down();
}

/* --- RDMA write with immediate data --------------------------------------------------------- */

static void write_immed__takes_a_receive(void)
{
	DAT_EVENT event;

	up_for(DAT_IB_ATTR_IMMED_DATA);
	fill(ma.at, 1000, 3);
	memset(mb.at + 8000, 0x77, 100);
	OK(b_receives(8000, 100, 9));
	OK(write_immed(0, 10, 1000, 1, 0x11223344, DEFAULT));
	event = EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_RDMA_WRITE_IMMED,
				DAT_IB_RDMA_WRITE_IMMED);
	CHECK_EQ(status_of(&event), DAT_DTO_SUCCESS);
	CHECK_EQ(length_of(&event), 1000);
	event = EXPECT_EXTENDED(p.b.recv_evd, 9, DAT_IB_DTO_RECV_IMMED,
				DAT_IB_RDMA_WRITE_IMMED_DATA);
	CHECK_EQ(status_of(&event), DAT_DTO_SUCCESS);
	CHECK_EQ(length_of(&event), 1000);
	CHECK_EQ(immed_of(&event), 0x11223344);
	CHECK(event.event_data.dto_completion_event_data.ep_handle == p.ep_b);
	CHECK(filled(mb.at + 10, 1000, 3));
	/* Nothing is in the receive. */
	for (int i = 0; i < 100; i++)
		CHECK_EQ(mb.at[8000 + i], 0x77);
	down();
}

static void write_immed__in_order_with_sends(void)
{
	DAT_EVENT event;

	up_for(DAT_IB_ATTR_IMMED_DATA);
	for (DAT_UINT64 i = 1; i <= 3; i++)
		OK(b_receives(8000, 100, i));
	OK(a_sends(0, 50, 1, DEFAULT));
	OK(write_immed(0, 0, 0, 2, ~(DAT_UINT32)0, DEFAULT));
	OK(a_sends(0, 60, 3, DEFAULT));
	EXPECT_DTO(p.a.request_evd, 1, DAT_DTO_SUCCESS);
	EXPECT_EXTENDED(p.a.request_evd, 2, DAT_IB_DTO_RDMA_WRITE_IMMED, DAT_IB_RDMA_WRITE_IMMED);
	EXPECT_DTO(p.a.request_evd, 3, DAT_DTO_SUCCESS);
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 1, DAT_DTO_SUCCESS).transfered_length, 50);
	event = EXPECT_EXTENDED(p.b.recv_evd, 2, DAT_IB_DTO_RECV_IMMED,
				DAT_IB_RDMA_WRITE_IMMED_DATA);
	CHECK_EQ(length_of(&event), 0);
	CHECK_EQ(immed_of(&event), ~(DAT_UINT32)0);
	CHECK_EQ(EXPECT_DTO(p.b.recv_evd, 3, DAT_DTO_SUCCESS).transfered_length, 60);
	down();
}

static void write_immed__waits_for_a_receive(void)
{
	DAT_EVENT event;

	up_for(DAT_IB_ATTR_IMMED_DATA);
	fill(ma.at, 100000, 5);
	OK(write_immed(0, 1, 100000, 1, 5, DEFAULT));
	EXPECT_NOTHING(p.b.recv_evd);
	OK(recv_nothing(p.ep_b, 9));
	event = EXPECT_EXTENDED(p.b.recv_evd, 9, DAT_IB_DTO_RECV_IMMED,
				DAT_IB_RDMA_WRITE_IMMED_DATA);
	CHECK_EQ(length_of(&event), 100000);
	CHECK(filled(mb.at + 1, 100000, 5));
	event = EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_RDMA_WRITE_IMMED,
				DAT_IB_RDMA_WRITE_IMMED);
	CHECK_EQ(status_of(&event), DAT_DTO_SUCCESS);
	down();
}

/* A thread that waits for an event of side b. */
static atomic_bool woken;

static void *wait_for_one(void *argument)
{
	DAT_EVENT *event = argument;
	DAT_COUNT more;

	CHECK_RET(dat_evd_wait(p.b.recv_evd, SOON, 1, event, &more), DAT_SUCCESS);
	woken = true;
	return NULL;
}

static void write_immed__solicited(void)
{
	DAT_EP_ATTR attr = usual_attr();
	DAT_EVENT event;
	pthread_t thread;

	/* Only a solicited one wakes. */
	attr.recv_completion_flags = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
	up_with(&attr);
	if (!has(DAT_IB_ATTR_IMMED_DATA))
		tap_unsupported(DAT_IB_ATTR_IMMED_DATA);
	OK(recv_nothing(p.ep_b, 1));
	OK(recv_nothing(p.ep_b, 2));
	REQUIRE(!pthread_create(&thread, NULL, wait_for_one, &event));
	await_waiter(p.b.recv_evd);
	OK(write_immed(0, 0, 8, 1, 1, DEFAULT));
	EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_RDMA_WRITE_IMMED, DAT_IB_RDMA_WRITE_IMMED);
	pause_us(NEVER);
	CHECK(!woken);
	OK(write_immed(0, 0, 8, 2, 2, DAT_COMPLETION_SOLICITED_WAIT_FLAG));
	pthread_join(thread, NULL);
	CHECK_EQ(event.event_number, (DAT_EVENT_NUMBER)DAT_IB_DTO_EVENT);
	CHECK_EQ(immed_of(&event), 1);
	EXPECT_EXTENDED(p.b.recv_evd, 2, DAT_IB_DTO_RECV_IMMED, DAT_IB_RDMA_WRITE_IMMED_DATA);
	EXPECT_EXTENDED(p.a.request_evd, 2, DAT_IB_DTO_RDMA_WRITE_IMMED, DAT_IB_RDMA_WRITE_IMMED);
	down();
}

static void write_immed__arguments(void)
{
	DAT_LMR_TRIPLET local;
	DAT_RMR_TRIPLET remote;

	up_for(DAT_IB_ATTR_IMMED_DATA);
	local = dx_local(ma.local, ma.at, 8);
	remote = dx_remote(mb.remote, mb.at, 7);
	CHECK_CODE(dat_ib_post_rdma_write_immed(p.ep_a, -1, &local, cookie(1), &remote, 5, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG2);
	CHECK_CODE(dat_ib_post_rdma_write_immed(p.ep_a, 1, NULL, cookie(1), &remote, 5, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
	CHECK_CODE(dat_ib_post_rdma_write_immed(p.ep_a, 1, &local, cookie(1), NULL, 5, DEFAULT),
		   DAT_INVALID_PARAMETER, DAT_INVALID_ARG5);
	CHECK_RET(dat_ib_post_rdma_write_immed(p.ep_a, 1, &local, cookie(1), &remote, 5, DEFAULT),
		  DAT_LENGTH_ERROR);
	EXPECT_NOTHING(p.a.request_evd);
	/* Nothing is written: there need not be a remote range. */
	OK(recv_nothing(p.ep_b, 9));
	OK(dat_ib_post_rdma_write_immed(p.ep_a, 0, NULL, cookie(1), NULL, 5, DEFAULT));
	EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_RDMA_WRITE_IMMED, DAT_IB_RDMA_WRITE_IMMED);
	EXPECT_EXTENDED(p.b.recv_evd, 9, DAT_IB_DTO_RECV_IMMED, DAT_IB_RDMA_WRITE_IMMED_DATA);
	down();
}

static void write_immed__refused(void)
{
	DAT_EVENT event;

	up_for(DAT_IB_ATTR_IMMED_DATA);
	OK(recv_nothing(p.ep_b, 9));
	mb.remote ^= 0x100;
	OK(write_immed(0, 0, 8, 1, 5, DEFAULT));
	event = EXPECT_EXTENDED(p.a.request_evd, 1, DAT_IB_DTO_RDMA_WRITE_IMMED,
				DAT_IB_RDMA_WRITE_IMMED);
	CHECK_EQ(status_of(&event), DAT_DTO_ERR_REMOTE_ACCESS);
	/* Adapters may have taken it. */
	if (is_exact())
		EXPECT_DTO(p.b.recv_evd, 9, DAT_DTO_ERR_FLUSHED);
	both_broken();
	down();
}

static const struct tap_test tests[] = {
	T(query, says_what_there_is),
	T(open_query, gives_the_attributes),
	T(open_query, arguments),
	T(operation, unknown),
	T(fetch_and_add, adds),
	T(cmp_and_swap, swaps_what_is_equal),
	T(atomics, transfer_eight_bytes),
	T(atomics, arguments),
	T(atomics, flags),
	T(atomics, wrong_key),
	T(atomics, without_the_privilege),
	T(atomics, outside_of_the_region),
	T(atomics, misaligned),
	T(atomics, and_those_of_the_processor),
	T(atomics, after_the_end),
	T(write_immed, takes_a_receive),
	T(write_immed, in_order_with_sends),
	T(write_immed, waits_for_a_receive),
	T(write_immed, solicited),
	T(write_immed, arguments),
	T(write_immed, refused),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
