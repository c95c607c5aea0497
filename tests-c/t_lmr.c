/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* dat_lmr_create(3DAT), dat_lmr_free(3DAT). What keys allow and refuse is tested in t_access. */
#include "transfer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Of whole pages, which adapters translate. */
static char buffer[3 * 4096] __attribute__((aligned(4096)));

static DAT_REGION_DESCRIPTION at(void *address)
{
	DAT_REGION_DESCRIPTION region;

	memset(&region, 0, sizeof region);
	region.for_va = address;
	return region;
}

/* Registers with everything but these three as usual. */
static DAT_RETURN reg(const struct rig *rig, void *address, DAT_VLEN length,
		      DAT_MEM_PRIV_FLAGS privileges, struct mem *mem)
{
	DAT_VLEN reg_length;
	DAT_VADDR reg_address;

	memset(mem, 0, sizeof *mem);
	return dx_lmr_create(rig->ia, DAT_MEM_TYPE_VIRTUAL, at(address), length, rig->pz,
			     privileges, &mem->lmr, &mem->local, &mem->remote, &reg_length,
			     &reg_address);
}

/* --- dat_lmr_create ------------------------------------------------------------------------ */

static void lmr_create__registers_memory(void)
{
	struct rig rig;
	DAT_LMR_HANDLE lmr = DAT_HANDLE_NULL;
	DAT_LMR_CONTEXT local = 0;
	DAT_RMR_CONTEXT remote = 0;
	DAT_VLEN length = 0;
	DAT_VADDR address = ~(DAT_VADDR)0;
	DAT_HANDLE_TYPE type = DAT_HANDLE_TYPE_CR;

	rig_up(&rig);
	OK(dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, at(buffer + 100), 5000, rig.pz,
			 DAT_MEM_PRIV_ALL_FLAG, &lmr, &local, &remote, &length, &address));
	CHECK(lmr != DAT_HANDLE_NULL);
	CHECK(remote != 0);
	/* At least what was asked for is covered. */
	CHECK(address <= (uintptr_t)(buffer + 100));
	CHECK(address + length >= (uintptr_t)(buffer + 5100));
	OK(dat_get_handle_type(lmr, &type));
	CHECK_EQ(type, DAT_HANDLE_TYPE_LMR);
	CHECK_RET(dat_lmr_free(lmr), DAT_SUCCESS);
	rig_down(&rig);
}

static void lmr_create__remote_key_needs_remote_privilege(void)
{
	struct rig rig;
	struct mem mem;

	rig_up(&rig);
	OK(reg(&rig, buffer, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG,
	       &mem));
	CHECK_EQ(mem.remote, 0);
	OK(dat_lmr_free(mem.lmr));
	OK(reg(&rig, buffer, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG,
	       &mem));
	CHECK(mem.remote != 0);
	OK(dat_lmr_free(mem.lmr));
	rig_down(&rig);
}

static void lmr_create__optional_results(void)
{
	struct rig rig;
	DAT_LMR_HANDLE lmr = DAT_HANDLE_NULL;

	rig_up(&rig);
	CHECK_RET(dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, at(buffer), 4096, rig.pz,
				DAT_MEM_PRIV_ALL_FLAG, &lmr, NULL, NULL, NULL, NULL),
		  DAT_SUCCESS);
	CHECK(lmr != DAT_HANDLE_NULL);
	CHECK_RET(dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, at(buffer), 4096, rig.pz,
				DAT_MEM_PRIV_ALL_FLAG, NULL, NULL, NULL, NULL, NULL),
		  DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static void lmr_create__length_zero(void)
{
	struct rig rig;
	struct mem mem;

	rig_up(&rig);
#ifdef DAT2
	CHECK_RET(reg(&rig, buffer, 0, DAT_MEM_PRIV_ALL_FLAG, &mem), DAT_LENGTH_ERROR);
#else
	CHECK_RET(reg(&rig, buffer, 0, DAT_MEM_PRIV_ALL_FLAG, &mem), DAT_INVALID_PARAMETER);
#endif
	rig_down(&rig);
}

static void lmr_create__memory_not_there(void)
{
	struct rig rig;
	struct mem mem;
	char *hole = map_apart(2 * 4096);

	rig_up(&rig);
	REQUIRE(munmap(hole + 4096, 4096) == 0);
	CHECK_RET(reg(&rig, hole + 4096, 4096, DAT_MEM_PRIV_ALL_FLAG, &mem), DAT_INVALID_PARAMETER);
	CHECK_RET(reg(&rig, hole + 4095, 2, DAT_MEM_PRIV_ALL_FLAG, &mem), DAT_INVALID_PARAMETER);
	CHECK_RET(reg(&rig, NULL, 4096, DAT_MEM_PRIV_ALL_FLAG, &mem), DAT_INVALID_PARAMETER);
	CHECK_RET(reg(&rig, hole, 4096, DAT_MEM_PRIV_ALL_FLAG, &mem), DAT_SUCCESS);
	rig_down(&rig);
}

static void lmr_create__range_wraps_around(void)
{
	struct rig rig;
	struct mem mem;

	rig_up(&rig);
	CHECK_RET(reg(&rig, buffer, ~(DAT_VLEN)0, DAT_MEM_PRIV_ALL_FLAG, &mem),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(reg(&rig, buffer, ~(DAT_VLEN)0 - (uintptr_t)buffer + 1, DAT_MEM_PRIV_ALL_FLAG,
		      &mem),
		  DAT_INVALID_PARAMETER);
	CHECK_RET(reg(&rig, (void *)(uintptr_t)-16, 64, DAT_MEM_PRIV_ALL_FLAG, &mem),
		  DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

static void lmr_create__type_unknown(void)
{
	struct rig rig;
	DAT_LMR_HANDLE lmr;

	rig_up(&rig);
	CHECK_RET(dx_lmr_create(rig.ia, (DAT_MEM_TYPE)0x7777, at(buffer), 4096, rig.pz,
				DAT_MEM_PRIV_ALL_FLAG, &lmr, NULL, NULL, NULL, NULL),
		  DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

#ifdef DAT2
static void lmr_create__zero_based(void)
{
	struct rig rig;
	DAT_LMR_HANDLE lmr;
	DAT_RETURN ret;

	rig_up(&rig);
	ret = dat_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, at(buffer), 4096, rig.pz,
			     DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_ZB, &lmr, NULL, NULL, NULL, NULL);
	CHECK_RET(ret, rig.attr.zb_supported ? DAT_SUCCESS : DAT_MODEL_NOT_SUPPORTED);
	CHECK_RET(dat_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, at(buffer), 4096, rig.pz,
				 DAT_MEM_PRIV_ALL_FLAG, (DAT_VA_TYPE)7, &lmr, NULL, NULL, NULL,
				 NULL),
		  DAT_INVALID_PARAMETER);
	rig_down(&rig);
}
#else
static void lmr_create__strongly_ordered(void)
{
	struct rig rig;
	DAT_LMR_HANDLE lmr = DAT_HANDLE_NULL;
	DAT_LMR_PARAM param;

	rig_up(&rig);
	OK(dx_lmr_create(rig.ia, DAT_MEM_TYPE_SO_VIRTUAL, at(buffer), 4096, rig.pz,
			 DAT_MEM_PRIV_ALL_FLAG, &lmr, NULL, NULL, NULL, NULL));
	OK(dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, &param));
	CHECK_EQ(param.mem_type, DAT_MEM_TYPE_SO_VIRTUAL);
	CHECK(param.region_desc.for_va == buffer);
	rig_down(&rig);
}
#endif

#ifdef DAT2
enum { EXTENSIONS = 0x40 };
#else
enum { EXTENSIONS = 0 };
#endif

static void lmr_create__privileges_unknown(void)
{
	struct rig rig;
	struct mem mem;

	rig_up(&rig);
	/* 0x100 is a privilege of illumos, 0x40 one of the extensions of 2.0. */
	for (unsigned bit = 0x4; bit <= 0x40000000; bit <<= 1)
		if (!(bit & (DAT_MEM_PRIV_ALL_FLAG | 0x100 | EXTENSIONS)))
			CHECK_CODE(reg(&rig, buffer, 4096,
				       (DAT_MEM_PRIV_FLAGS)(DAT_MEM_PRIV_ALL_FLAG | bit), &mem),
				   DAT_INVALID_PARAMETER, DAT_INVALID_ARG6);
	rig_down(&rig);
}

static void lmr_create__zone_invalid(void)
{
	struct rig rig;
	DAT_LMR_HANDLE lmr;

	rig_up(&rig);
	CHECK_RET(dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, at(buffer), 4096, DAT_HANDLE_NULL,
				DAT_MEM_PRIV_ALL_FLAG, &lmr, NULL, NULL, NULL, NULL),
		  DAT_INVALID_HANDLE);
	CHECK_RET(dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, at(buffer), 4096, rig.recv_evd,
				DAT_MEM_PRIV_ALL_FLAG, &lmr, NULL, NULL, NULL, NULL),
		  DAT_INVALID_HANDLE);
	rig_down(&rig);
}

static void lmr_create__same_memory_twice(void)
{
	struct rig rig;
	struct mem first, second;

	rig_up(&rig);
	OK(reg(&rig, buffer, 4096, DAT_MEM_PRIV_ALL_FLAG, &first));
	OK(reg(&rig, buffer, 4096, DAT_MEM_PRIV_ALL_FLAG, &second));
	CHECK(first.lmr != second.lmr);
	CHECK(first.local != second.local);
	CHECK(first.remote != second.remote);
	rig_down(&rig);
}

static void lmr_create__keys_are_not_reused_at_once(void)
{
	struct rig rig;
	struct mem first, second;

	rig_up(&rig);
	OK(reg(&rig, buffer, 4096, DAT_MEM_PRIV_ALL_FLAG, &first));
	OK(dat_lmr_free(first.lmr));
	OK(reg(&rig, buffer, 4096, DAT_MEM_PRIV_ALL_FLAG, &second));
	CHECK(first.remote != second.remote);
	rig_down(&rig);
}

static void lmr_create__from_an_lmr(void)
{
	struct rig rig;
	struct mem first;
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE lmr = DAT_HANDLE_NULL;
	DAT_RMR_CONTEXT remote = 1;
	DAT_VLEN length = 0;
	DAT_VADDR address = 0;
	DAT_PZ_HANDLE other;

	rig_up(&rig);
	OK(dat_pz_create(rig.ia, &other));
	OK(reg(&rig, buffer, 4096, DAT_MEM_PRIV_ALL_FLAG, &first));
	memset(&region, 0, sizeof region);
	region.for_lmr_handle = first.lmr;
	OK(dx_lmr_create(rig.ia, DAT_MEM_TYPE_LMR, region, 0, other, DAT_MEM_PRIV_LOCAL_READ_FLAG,
			 &lmr, NULL, &remote, &length, &address));
	CHECK_EQ(remote, 0);
	CHECK(address <= (uintptr_t)buffer);
	CHECK(address + length >= (uintptr_t)buffer + 4096);
	/* Each of the two can go first. */
	CHECK_RET(dat_lmr_free(first.lmr), DAT_SUCCESS);
	CHECK_RET(dat_lmr_free(lmr), DAT_SUCCESS);
	region.for_lmr_handle = first.lmr;
	CHECK_RET(dx_lmr_create(rig.ia, DAT_MEM_TYPE_LMR, region, 0, other,
				DAT_MEM_PRIV_LOCAL_READ_FLAG, &lmr, NULL, NULL, NULL, NULL),
		  DAT_INVALID_HANDLE);
	rig_down(&rig);
}

/* --- dat_lmr_free -------------------------------------------------------------------------- */

static void *frees(void *lmr)
{
	CHECK_RET(dat_lmr_free(lmr), DAT_SUCCESS);
	return NULL;
}

/* By a thread whose stack is in that memory, as those of programs with stacks of their own are. */
static void lmr_free__from_a_stack_in_it(void)
{
	enum { POOL = 16 << 20, STACK = 1 << 20 };
	pthread_attr_t attr;
	pthread_t thread;
	struct rig rig;
	struct mem mem;
	char *pool;

	rig_up(&rig);
	pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(pool != MAP_FAILED);
	fill(pool, POOL / 2, 1);
	OK(reg(&rig, pool, POOL, DAT_MEM_PRIV_ALL_FLAG, &mem));
	REQUIRE(pthread_attr_init(&attr) == 0);
	REQUIRE(pthread_attr_setstack(&attr, pool + POOL / 2, STACK) == 0);
	REQUIRE(pthread_create(&thread, &attr, frees, mem.lmr) == 0);
	REQUIRE(pthread_join(thread, NULL) == 0);
	pthread_attr_destroy(&attr);
	CHECK(filled(pool, POOL / 2, 1));
	/* The memory can be used as before. */
	memset(pool, 2, POOL);
	OK(reg(&rig, pool, POOL, DAT_MEM_PRIV_ALL_FLAG, &mem));
	OK(dat_lmr_free(mem.lmr));
	munmap(pool, POOL);
	rig_down(&rig);
}

static void lmr_free__leaves_the_memory(void)
{
	struct rig rig;
	struct mem mem;

	rig_up(&rig);
	mem = make_mem(&rig, 8192, DAT_MEM_PRIV_ALL_FLAG);
	fill(mem.at, mem.size, 7);
	CHECK_RET(dat_lmr_free(mem.lmr), DAT_SUCCESS);
	CHECK(filled(mem.at, mem.size, 7));
	CHECK_RET(dat_lmr_free(mem.lmr), DAT_INVALID_HANDLE);
	free(mem.at);
	rig_down(&rig);
}

static void lmr_free__after_the_memory_is_gone(void)
{
	struct rig rig;
	struct mem mem;
	void *map = map_apart(65536);

	rig_up(&rig);
	OK(reg(&rig, map, 65536, DAT_MEM_PRIV_ALL_FLAG, &mem));
	REQUIRE(munmap(map, 65536) == 0);
	CHECK_RET(dat_lmr_free(mem.lmr), DAT_SUCCESS);
	rig_down(&rig);
}

/* An adapter places a message by itself as it arrives: what has arrived is in its receive, whose memory may be freed. */
static void lmr_free__of_receives_that_have_their_messages(void)
{
	enum { MESSAGES = 8, LENGTH = 100 };

	up();
	fill(ma.at, MESSAGES * LENGTH, 7);
	for (size_t i = 0; i < MESSAGES; i++)
		OK(b_receives(i * LENGTH, LENGTH, 100 + i));
	/* A consumer that polls, and does not while the messages arrive. */
	EXPECT_NOTHING(p.b.recv_evd);
	for (size_t i = 0; i < MESSAGES; i++)
		OK(a_sends(i * LENGTH, LENGTH, i, DAT_COMPLETION_DEFAULT_FLAG));
	for (size_t i = 0; i < MESSAGES; i++)
		EXPECT_DTO(p.a.request_evd, i, DAT_DTO_SUCCESS);
	OK(dat_lmr_free(mb.lmr));
	for (size_t i = 0; i < MESSAGES; i++)
		EXPECT_DTO(p.b.recv_evd, 100 + i, DAT_DTO_SUCCESS);
	CHECK(filled(mb.at, MESSAGES * LENGTH, 7));
	/* The connection is as it was. */
	OK(dat_ep_disconnect(p.ep_b, DAT_CLOSE_GRACEFUL_FLAG));
	EXPECT(p.a.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	EXPECT(p.b.connect_evd, DAT_CONNECTION_EVENT_DISCONNECTED);
	down();
}

static const struct tap_test tests[] = {
	T(lmr_create, registers_memory),
	T(lmr_create, remote_key_needs_remote_privilege),
	T(lmr_create, optional_results),
	T(lmr_create, length_zero),
	T(lmr_create, memory_not_there),
	T(lmr_create, range_wraps_around),
	T(lmr_create, type_unknown),
#ifdef DAT2
	T(lmr_create, zero_based),
#else
	T(lmr_create, strongly_ordered),
#endif
	T(lmr_create, privileges_unknown),
	T(lmr_create, zone_invalid),
	T(lmr_create, same_memory_twice),
	T(lmr_create, keys_are_not_reused_at_once),
	T(lmr_create, from_an_lmr),
	T(lmr_free, from_a_stack_in_it),
	T(lmr_free, leaves_the_memory),
	T(lmr_free, after_the_memory_is_gone),
	T(lmr_free, of_receives_that_have_their_messages),
	TAP_END,
};

int main(int argc, char **argv)
{
	return tap_main(argc, argv, tests);
}
