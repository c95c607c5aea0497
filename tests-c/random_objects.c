/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "random_objects.h"
#include "random.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum {
	/* Handles of each kind that are remembered; more take the places of others. */
	REMEMBERED = 24,
	QUALIFIERS = 8,
};

const struct rig *random_rig;
char *random_memory;
static DAT_HANDLE _Atomic handles[KINDS][REMEMBERED];
static atomic_uint contexts[REMEMBERED];
static DAT_CONN_QUAL qualifiers[QUALIFIERS];

DAT_HANDLE any_handle(enum kind kind)
{
	if (rarely(40))
		kind = (enum kind)below(KINDS);
	if (rarely(100))
		return (DAT_HANDLE)(uintptr_t)any();
	if (rarely(60))
		return DAT_HANDLE_NULL;
	return atomic_load(&handles[kind][below(REMEMBERED)]);
}

void remember(enum kind kind, DAT_RETURN ret, DAT_HANDLE made)
{
	if (ret == DAT_SUCCESS)
		atomic_store(&handles[kind][below(REMEMBERED)], made);
}

void remember_context(DAT_RETURN ret, uint32_t context)
{
	if (ret == DAT_SUCCESS)
		atomic_store(&contexts[below(REMEMBERED)], context);
}

uint32_t any_context(void)
{
	return rarely(30) ? (uint32_t)any() : atomic_load(&contexts[below(REMEMBERED)]);
}

DAT_EVD_HANDLE any_evd(DAT_EVD_HANDLE fitting)
{
	return rarely(6) ? any_handle(EVD) : fitting;
}

DAT_PZ_HANDLE any_pz(void)
{
	return rarely(8) ? any_handle(PZ) : random_rig->pz;
}

DAT_CONN_QUAL any_qualifier(void)
{
	return rarely(40) ? (DAT_CONN_QUAL)any() | (DAT_CONN_QUAL)1 << 40 :
			    qualifiers[below(QUALIFIERS)];
}

void begin_objects(const struct rig *rig)
{
	random_rig = rig;
	if (!random_memory) {
		random_memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		REQUIRE(random_memory != MAP_FAILED);
	}
	memset((void *)handles, 0, sizeof handles);
	for (int i = 0; i < REMEMBERED; i++) {
		atomic_store(&handles[IA][i], rig->ia);
		atomic_store(&handles[PZ][i], rig->pz);
		if (i % 4 == 0)
			atomic_store(&handles[EVD][i], i % 8 ? rig->connect_evd : rig->cr_evd);
		if (i % 4 == 1)
			atomic_store(&handles[EVD][i],
				     i % 8 == 1 ? rig->recv_evd : rig->request_evd);
	}
	for (int i = 0; i < QUALIFIERS; i++) {
		DAT_PSP_HANDLE psp = listen_any(rig, &qualifiers[i]);

		if (i % 2)
			OK(dat_psp_free(psp));
		else
			atomic_store(&handles[PSP][i], psp);
	}
}
