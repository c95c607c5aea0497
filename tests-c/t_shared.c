/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that is registered more than once: an LMR made from another, and memory that two
 * processes share. The peer "t_shared IA --peer share FD" maps the file FD, registers it as
 * shared, writes "QUALIFIER" to standard output and accepts one connection; its private data
 * are the address and the key of its registration.
 */
#include "common.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LENGTH = 65536 };

struct window {
	uint64_t at;
	uint32_t key;
	uint32_t pad;
};

/* The cookie that every process names the memory by. */
static char shared_id[DAT_LMR_COOKIE_SIZE] = "the memory of t_shared";

static char *map(int fd)
{
	char *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	REQUIRE(at != MAP_FAILED);
	return at;
}

static DAT_REGION_DESCRIPTION shared(void *at)
{
	DAT_REGION_DESCRIPTION region;

	memset(&region, 0, sizeof region);
	region.for_shared_memory.virtual_address = at;
	region.for_shared_memory.shared_memory_id = &shared_id;
	return region;
}

static struct mem register_shared(const struct rig *rig, char *at)
{
	struct mem mem = { .at = at, .size = LENGTH };

	OK(dx_lmr_create(rig->ia, DAT_MEM_TYPE_SHARED_VIRTUAL, shared(at), LENGTH, rig->pz,
			 DAT_MEM_PRIV_ALL_FLAG, &mem.lmr, &mem.local, &mem.remote, NULL, NULL));
	return mem;
}

static void be_peer(const char *role, const char *argument)
{
	struct rig rig;
	struct mem mem;
	struct window window;
	DAT_CONN_QUAL qualifier;

	(void)role;
	rig_up(&rig);
	mem = register_shared(&rig, map(atoi(argument)));
	window = (struct window){ (uintptr_t)mem.at, mem.remote, 0 };
	listen_any(&rig, &qualifier);
	printf("%" PRIu64 "\n", (uint64_t)qualifier);
	fflush(stdout);
	OK(dat_cr_accept(await_request(&rig), make_ep(&rig, NULL), sizeof window, &window));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	await_end_of_input();
	CHECK_RET(dat_lmr_free(mem.lmr), DAT_SUCCESS);
	rig_down(&rig);
}

static void lmr_shared__by_two_processes(void)
{
	struct rig rig;
	struct mem mem;
	struct peer peer;
	struct window window;
	DAT_CONNECTION_EVENT_DATA event;
	DAT_EP_HANDLE ep;
	DAT_LMR_TRIPLET iov;
	DAT_RMR_TRIPLET remote;
	char text[16], *at;
	int fd = memfd_create("t_shared", 0);

	REQUIRE(fd >= 0 && ftruncate(fd, LENGTH) == 0);
	at = map(fd);
	rig_up(&rig);
	mem = register_shared(&rig, at);
	snprintf(text, sizeof text, "%d", fd);
	peer = start_peer("share", text);
	ep = make_ep(&rig, NULL);
	OK(try_connect(ep, &rig, peer_qualifier(&peer), SOON));
	event = EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED)
			.event_data.connect_event_data;
	REQUIRE(event.private_data_size >= (DAT_COUNT)sizeof window);
	memcpy(&window, event.private_data, sizeof window);
	/* What goes from one half to the peer's other half shows in our mapping of it. */
	fill(at, LENGTH / 2, 1);
	iov = dx_local(mem.local, at, LENGTH / 2);
	remote = dx_remote(window.key, (void *)(uintptr_t)(window.at + LENGTH / 2), LENGTH / 2);
	OK(dat_ep_post_rdma_write(ep, 1, &iov, cookie(1), &remote, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(rig.request_evd, 1, DAT_DTO_SUCCESS);
	/* A read behind it has seen the write. */
	iov = dx_local(mem.local, at, 8);
	remote = dx_remote(window.key, (void *)(uintptr_t)window.at, 8);
	OK(dat_ep_post_rdma_read(ep, 1, &iov, cookie(2), &remote, DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(rig.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK(filled(at + LENGTH / 2, LENGTH / 2, 1));
	end_peer(&peer);
	/* The registration of one outlives that of the other. */
	CHECK_RET(dat_lmr_free(mem.lmr), DAT_SUCCESS);
	rig_down(&rig);
}

static void lmr_shared__query(void)
{
	struct rig rig;
	struct mem mem;
	DAT_LMR_PARAM param;
	int fd = memfd_create("t_shared", 0);

	REQUIRE(fd >= 0 && ftruncate(fd, LENGTH) == 0);
	rig_up(&rig);
	mem = register_shared(&rig, map(fd));
	memset(&param, 0xff, sizeof param);
	OK(dat_lmr_query(mem.lmr, DAT_LMR_FIELD_ALL, &param));
	CHECK_EQ(param.mem_type, DAT_MEM_TYPE_SHARED_VIRTUAL);
	CHECK(param.region_desc.for_shared_memory.virtual_address == mem.at);
	CHECK_EQ(param.length, LENGTH);
	rig_down(&rig);
}

static void lmr_shared__without_a_cookie(void)
{
	struct rig rig;
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_HANDLE lmr;
	static char memory[4096];

	rig_up(&rig);
	region = shared(memory);
	region.for_shared_memory.shared_memory_id = NULL;
	CHECK_RET(dx_lmr_create(rig.ia, DAT_MEM_TYPE_SHARED_VIRTUAL, region, 4096, rig.pz,
				DAT_MEM_PRIV_ALL_FLAG, &lmr, NULL, NULL, NULL, NULL),
		  DAT_INVALID_PARAMETER);
	rig_down(&rig);
}

/* --- an LMR from an LMR ------------------------------------------------------------------------- */

static void lmr_of_lmr__in_another_zone(void)
{
	struct pair pair;
	struct mem first, target, back;
	DAT_PZ_HANDLE zone;
	DAT_LMR_HANDLE second = DAT_HANDLE_NULL;
	DAT_LMR_CONTEXT local = 0;
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_TRIPLET iov;
	DAT_RMR_TRIPLET remote;

	/* The memory is in a zone that the endpoint is not in, until it is registered again. */
	pair_up(&pair, NULL);
	target = make_mem(&pair.b, 4096, DAT_MEM_PRIV_ALL_FLAG);
	OK(dat_pz_create(pair.a.ia, &zone));
	first = make_mem_in(pair.a.ia, zone, 4096, DAT_MEM_PRIV_ALL_FLAG);
	fill(first.at, 4096, 3);
	memset(&region, 0, sizeof region);
	region.for_lmr_handle = first.lmr;
	/* The length is ignored. */
	OK(dx_lmr_create(pair.a.ia, DAT_MEM_TYPE_LMR, region, 17, pair.a.pz,
			 DAT_MEM_PRIV_LOCAL_READ_FLAG, &second, &local, NULL, NULL, NULL));
	iov = dx_local(local, first.at, 4096);
	remote = dx_remote(target.remote, target.at, 4096);
	OK(dat_ep_post_rdma_write(pair.ep_a, 1, &iov, cookie(1), &remote,
				  DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(pair.a.request_evd, 1, DAT_DTO_SUCCESS);
	/* A read behind the write has seen it. */
	back = make_mem(&pair.a, 4096, DAT_MEM_PRIV_ALL_FLAG);
	iov = dx_local(back.local, back.at, 4096);
	OK(dat_ep_post_rdma_read(pair.ep_a, 1, &iov, cookie(2), &remote,
				 DAT_COMPLETION_DEFAULT_FLAG));
	EXPECT_DTO(pair.a.request_evd, 2, DAT_DTO_SUCCESS);
	CHECK(filled(back.at, 4096, 3));
	OK(dat_lmr_free(second));
	CHECK_RET(dat_pz_free(zone), DAT_INVALID_STATE);
	free_mem(&first);
	CHECK_RET(dat_pz_free(zone), DAT_SUCCESS);
	pair_down(&pair);
}

static void lmr_of_lmr__own_privileges(void)
{
	struct rig rig;
	struct mem first;
	DAT_LMR_HANDLE second = DAT_HANDLE_NULL;
	DAT_RMR_CONTEXT remote = 0;
	DAT_REGION_DESCRIPTION region;
	DAT_LMR_PARAM param;

	rig_up(&rig);
	first = make_mem(&rig, 4096, DAT_MEM_PRIV_LOCAL_READ_FLAG);
	CHECK_EQ(first.remote, 0);
	memset(&region, 0, sizeof region);
	region.for_lmr_handle = first.lmr;
	OK(dx_lmr_create(rig.ia, DAT_MEM_TYPE_LMR, region, 0, rig.pz, DAT_MEM_PRIV_ALL_FLAG,
			 &second, NULL, &remote, NULL, NULL));
	CHECK(remote != 0);
	OK(dat_lmr_query(second, DAT_LMR_FIELD_ALL, &param));
	CHECK_EQ(param.mem_type, DAT_MEM_TYPE_LMR);
	CHECK_EQ(param.mem_priv, DAT_MEM_PRIV_ALL_FLAG);
	OK(dat_lmr_query(first.lmr, DAT_LMR_FIELD_ALL, &param));
	CHECK_EQ(param.mem_priv, DAT_MEM_PRIV_LOCAL_READ_FLAG);
	rig_down(&rig);
}

static const struct tap_test tests[] = {
	T(lmr_shared, by_two_processes), T(lmr_shared, query),
	T(lmr_shared, without_a_cookie), T(lmr_of_lmr, in_another_zone),
	T(lmr_of_lmr, own_privileges),	 TAP_END,
};

int main(int argc, char **argv)
{
	return peer_main(argc, argv, tests, be_peer);
}
