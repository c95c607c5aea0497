/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The target of RDMA executes another program: its peer writes nothing to the memory of that, and reads nothing of it.
 * The target is a process of its own, "t_exec IA --peer target", which executes this program once more, as
 * "t_exec IA --peer image". This program is not position-independent, so that the memory of the two is at the same
 * address.
 */
#include "common.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	ROUNDS = 20,
	/* Longer than what goes through a ring, so that the kernel copies it. */
	LENGTH = 8200,
	DEPTH = 12,
	/* Microseconds that the new program looks at its memory. */
	LOOKS = 30 * 1000,
};

/* What the target registers, and the new program does not. */
static char memory[DEPTH][2 * LENGTH];

/* Private data: the key of the memory. */
struct window {
	uint64_t at;
	uint64_t key;
};

/* --- the target -------------------------------------------------------------------------------- */

static void be_image(void)
{
	unsigned long long end = now_us() + LOOKS;
	bool changed = false;

	do {
		for (size_t i = 0; i < sizeof memory; i++)
			changed |= ((volatile char *)memory)[i] != 0;
	} while (now_us() < end);
	puts(changed ? "changed" : "as it was");
	fflush(stdout);
}

static void be_target(const char *argument)
{
	DAT_REGION_DESCRIPTION region;
	DAT_CONN_QUAL qualifier;
	DAT_LMR_CONTEXT local;
	DAT_RMR_CONTEXT remote;
	DAT_LMR_HANDLE lmr;
	struct window window = { 0, 0 };
	struct rig rig;
	DAT_EP_HANDLE ep;

	rig_up(&rig);
	/* Of what it writes the peer knows each byte. */
	memset(memory, 'r', sizeof memory);
	region.for_va = memory;
	OK(dx_lmr_create(rig.ia, DAT_MEM_TYPE_VIRTUAL, region, sizeof memory, rig.pz,
			 DAT_MEM_PRIV_ALL_FLAG, &lmr, &local, &remote, NULL, NULL));
	window.at = (uintptr_t)memory;
	window.key = remote;
	listen_any(&rig, &qualifier);
	printf("%" PRIu64 "\n", (uint64_t)qualifier);
	fflush(stdout);
	ep = make_ep(&rig, NULL);
	OK(dat_cr_accept(await_request(&rig), ep, sizeof window, &window));
	EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
	pause_us(strtoul(argument, NULL, 10));
	execl(program_invocation_name, program_invocation_name, tap_ia, "--peer", "image",
	      (char *)NULL);
	_exit(127);
}

static void be_peer(const char *role, const char *argument)
{
	if (strcmp(role, "image") == 0)
		be_image();
	else
		be_target(argument);
}

/* --- its peer ---------------------------------------------------------------------------------- */

static struct rig rig;
static struct mem mem;
static struct window theirs;
static DAT_EP_HANDLE ep;
static bool reads;

static DAT_RETURN post(DAT_UINT64 number)
{
	DAT_LMR_TRIPLET iov = dx_local(mem.local, mem.at + number * LENGTH, LENGTH);
	DAT_RMR_TRIPLET to = dx_remote((DAT_RMR_CONTEXT)theirs.key,
				       (char *)(uintptr_t)theirs.at + number * 2 * LENGTH, LENGTH);

	if (reads)
		return dat_ep_post_rdma_read(ep, 1, &iov, cookie(number), &to,
					     DAT_COMPLETION_DEFAULT_FLAG);
	return dat_ep_post_rdma_write(ep, 1, &iov, cookie(number), &to,
				      DAT_COMPLETION_DEFAULT_FLAG);
}

/* What was read is of the program that has registered it. */
static void check_read(DAT_UINT64 number)
{
	const char *at = mem.at + number * LENGTH;

	REQUIRE(at[0] == 'r' && memcmp(at, at + 1, LENGTH - 1) == 0);
}

/* Keeps requests outstanding until the connection has ended. */
static void use_the_memory(void)
{
	unsigned outstanding = 0;
	DAT_UINT64 next = 0;
	bool over = false;

	while (!over || outstanding > 0) {
		DAT_EVENT event;
		DAT_DTO_COMPLETION_EVENT_DATA *dto = &event.event_data.dto_completion_event_data;

		while (!over && outstanding < DEPTH) {
			DAT_RETURN ret = post(next);

			if (ret != DAT_SUCCESS) {
				CHECK_RET(ret, DAT_INVALID_STATE);
				over = true;
				break;
			}
			next = (next + 1) % DEPTH;
			outstanding++;
		}
		if (dat_evd_dequeue(rig.request_evd, &event) != DAT_SUCCESS)
			continue;
		outstanding--;
		if (dto->status != DAT_DTO_SUCCESS) {
			CHECK_EQ(dto->status, DAT_DTO_ERR_FLUSHED);
			over = true;
		} else if (reads) {
			check_read(dto->user_cookie.as_64);
		}
	}
}

static void meets_the_next_program(bool by_reads)
{
	const char *valgrind = getenv("VALGRIND");

	if (valgrind && *valgrind)
		tap_skip("valgrind executes programs in its own way");
	rig_up(&rig);
	mem = make_mem(&rig, DEPTH * LENGTH, DAT_MEM_PRIV_ALL_FLAG);
	memset(mem.at, 'w', DEPTH * LENGTH);
	reads = by_reads;
	for (int i = 0; i < ROUNDS; i++) {
		char argument[16], line[32] = "";
		struct peer peer;
		DAT_EVENT event;
		DAT_CONNECTION_EVENT_DATA *data;

		snprintf(argument, sizeof argument, "%d", 500 + 200 * i);
		peer = start_peer("target", argument);
		ep = make_ep(&rig, NULL);
		OK(try_connect(ep, &rig, peer_qualifier(&peer), SOON));
		event = EXPECT(rig.connect_evd, DAT_CONNECTION_EVENT_ESTABLISHED);
		data = &event.event_data.connect_event_data;
		REQUIRE(data->private_data_size >= (DAT_COUNT)sizeof theirs);
		memcpy(&theirs, data->private_data, sizeof theirs);
		use_the_memory();
		await_end(&rig);
		REQUIRE(fgets(line, sizeof line, peer.output) != NULL);
		CHECK(strcmp(line, "as it was\n") == 0);
		end_peer(&peer);
		OK(dat_ep_free(ep));
	}
	free_mem(&mem);
	rig_down(&rig);
}

static void exec__under_writes(void)
{
	meets_the_next_program(false);
}

static void exec__under_reads(void)
{
	meets_the_next_program(true);
}

static const struct tap_test tests[] = {
	T(exec, under_writes),
	T(exec, under_reads),
	TAP_END,
};

int main(int argc, char **argv)
{
	return peer_main(argc, argv, tests, be_peer);
}
