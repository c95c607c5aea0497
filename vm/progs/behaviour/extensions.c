/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The InfiniBand extensions: RDMA writes with immediate data, and atomic operations. */
#include "behaviour.h"

#include <dat2/dat_ib_extensions.h>
#include <string.h>

/* Prints the next event, and what the extension has in it. */
static void print_extended(const char *evd_name, DAT_EVD_HANDLE evd)
{
	DAT_EVENT event;
	const DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;
	DAT_IB_EXTENSION_EVENT_DATA data;

	if (!print_event(evd_name, evd, SOON, &event))
		return;
	memcpy(&data, event.event_extension_data, sizeof data);
	print("  %s, cookie %u, status %u, %u bytes, operation %#x, type %d, status %d",
	      handle_name(dto->ep_handle), (unsigned)dto->user_cookie.as_64, dto->status,
	      (unsigned)dto->transfered_length, dto->operation, data.type, data.status);
	if (data.type == DAT_IB_RDMA_WRITE_IMMED_DATA || data.type == DAT_IB_RECV_IMMED_DATA)
		print("  immediate data %#x", data.val.immed.data);
}
#define EXTENDED(evd) print_extended(#evd, evd)

static DAT_RETURN write_immediate(size_t length, uint64_t number, DAT_COMPLETION_FLAGS flags)
{
	DAT_LMR_TRIPLET part = local_part(&a, 0, length);
	DAT_RMR_TRIPLET target = remote_part(&b, 4096, length);

	return dat_ib_post_rdma_write_immed(a.ep, 1, &part, cookie(number), &target, 0x12345678,
					    flags);
}

static void immediate_data(void)
{
	open_connection(NULL);
	memset(a.memory, 'a', SIDE_BYTES);
	CALL(post_recv(&b, 0, 100, 1));
	CALL(write_immediate(1000, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXTENDED(b.recv);
	EXTENDED(a.request);
	print("written: %d, the receive: %d",
	      b.memory[4096] == 'a' && b.memory[5095] == 'a' && !b.memory[5096], b.memory[0]);
}

static void immediate_data_without_bytes(void)
{
	open_connection(NULL);
	CALL(post_recv(&b, 0, 100, 1));
	CALL(write_immediate(0, 2, DAT_COMPLETION_DEFAULT_FLAG));
	EXTENDED(b.recv);
	EXTENDED(a.request);
}

static void immediate_data_suppressed(void)
{
	open_connection(NULL);
	CALL(post_recv(&b, 0, 100, 1));
	CALL(post_recv(&b, 0, 100, 2));
	CALL(write_immediate(100, 3, DAT_COMPLETION_SUPPRESS_FLAG));
	CALL(post_send(&a, 100, 4, DAT_COMPLETION_DEFAULT_FLAG));
	EXTENDED(b.recv);
	EVENT(b.recv);
	EVENT(a.request);
	NO_EVENT(a.request);
}

/* All privileges, that of atomic operations included. */
#define ATOMIC (DAT_MEM_PRIV_ALL_FLAG | (DAT_MEM_PRIV_FLAGS)DAT_IB_MEM_PRIV_REMOTE_ATOMIC)

/* Eight bytes of b for atomic operations. */
static DAT_RMR_TRIPLET atomic_target(DAT_MEM_PRIV_FLAGS privileges)
{
	struct side target = b;

	register_memory(&target, 4096, privileges);
	return remote_part(&target, 0, 8);
}

static void print_values(void)
{
	uint64_t here, there;

	memcpy(&here, a.memory, sizeof here);
	memcpy(&there, b.memory, sizeof there);
	print("a has %llu, b has %llu", (unsigned long long)here, (unsigned long long)there);
}

static void atomic_operations(void)
{
	DAT_LMR_TRIPLET part;
	DAT_RMR_TRIPLET target;

	open_connection(NULL);
	part = local_part(&a, 0, 8);
	target = atomic_target(ATOMIC);
	CALL(dat_ib_post_fetch_and_add(a.ep, 5, &part, cookie(1), &target,
				       DAT_COMPLETION_DEFAULT_FLAG));
	EXTENDED(a.request);
	print_values();
	CALL(dat_ib_post_cmp_and_swap(a.ep, 5, 70, &part, cookie(2), &target,
				      DAT_COMPLETION_DEFAULT_FLAG));
	EXTENDED(a.request);
	print_values();
	CALL(dat_ib_post_cmp_and_swap(a.ep, 5, 90, &part, cookie(3), &target,
				      DAT_COMPLETION_DEFAULT_FLAG));
	EXTENDED(a.request);
	print_values();
}

static void atomic_operation_without_privilege(void)
{
	DAT_LMR_TRIPLET part;
	DAT_RMR_TRIPLET target;

	open_connection(NULL);
	part = local_part(&a, 0, 8);
	target = atomic_target(DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG |
			       DAT_MEM_PRIV_REMOTE_READ_FLAG);
	CALL(dat_ib_post_fetch_and_add(a.ep, 5, &part, cookie(1), &target,
				       DAT_COMPLETION_DEFAULT_FLAG));
	EVENT(a.request);
	EVENT(a.connect);
	print_values();
}

static void atomic_operation_that_is_not_aligned(void)
{
	DAT_LMR_TRIPLET part;
	DAT_RMR_TRIPLET target;

	open_connection(NULL);
	part = local_part(&a, 0, 8);
	target = atomic_target(ATOMIC);
	target.virtual_address += 4;
	if (CALL(dat_ib_post_fetch_and_add(a.ep, 5, &part, cookie(1), &target,
					   DAT_COMPLETION_DEFAULT_FLAG)) != DAT_SUCCESS)
		return;
	EVENT(a.request);
	EVENT(a.connect);
}

static void extended_operations_without_a_connection(void)
{
	DAT_LMR_TRIPLET part;
	DAT_RMR_TRIPLET target;

	open_sides(NULL);
	part = local_part(&a, 0, 8);
	target = remote_part(&b, 0, 8);
	CALL(write_immediate(8, 1, DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_ib_post_fetch_and_add(a.ep, 5, &part, cookie(2), &target,
				       DAT_COMPLETION_DEFAULT_FLAG));
	CALL(dat_extension_op(a.ep, (DAT_EXTENDED_OP)999));
}

const struct scenario extensions[] = {
	{ "immediate_data", immediate_data },
	{ "immediate_data_without_bytes", immediate_data_without_bytes },
	{ "immediate_data_suppressed", immediate_data_suppressed },
	{ "atomic_operations", atomic_operations },
	{ "atomic_operation_without_privilege", atomic_operation_without_privilege },
	{ "atomic_operation_that_is_not_aligned", atomic_operation_that_is_not_aligned },
	{ "extended_operations_without_a_connection", extended_operations_without_a_connection },
	{ NULL, NULL },
};
