/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "zero_based.h"

#ifdef DAT2
#include <stdlib.h>
#include <string.h>

struct mem za, zb;

enum { PAGE = 4096 };

size_t usual_skew(void)
{
	/* Adapters translate whole pages. */
	return is_exact() ? 24 : 0;
}

DAT_RETURN register_zero_based(const struct rig *rig, void *at, size_t size,
			       DAT_MEM_PRIV_FLAGS privileges, struct mem *mem)
{
	DAT_REGION_DESCRIPTION region;

	memset(&region, 0, sizeof region);
	region.for_va = at;
	mem->at = at;
	mem->size = size;
	return dat_lmr_create(rig->ia, DAT_MEM_TYPE_VIRTUAL, region, size, rig->pz, privileges,
			      DAT_VA_TYPE_ZB, &mem->lmr, &mem->local, &mem->remote, NULL, NULL);
}

struct mem make_zero_based(const struct rig *rig, size_t skew, size_t size,
			   DAT_MEM_PRIV_FLAGS privileges)
{
	size_t whole = (size + 3 * PAGE) / PAGE * PAGE;
	char *at = aligned_alloc(PAGE, whole);
	struct mem mem;

	REQUIRE(at != NULL);
	memset(at, 0, whole);
	OK(register_zero_based(rig, at + PAGE + skew, size, privileges, &mem));
	return mem;
}

bool is_untouched_around(const struct mem *mem)
{
	for (int i = 1; i <= 64; i++)
		if (mem->at[-i] || mem->at[mem->size + (size_t)i - 1])
			return false;
	return true;
}

static void memory_up(DAT_MEM_PRIV_FLAGS of_b)
{
	if (!p.a.attr.zb_supported)
		tap_unsupported("zero-based addresses");
	za = make_zero_based(&p.a, usual_skew(), SIZE, DAT_MEM_PRIV_ALL_FLAG);
	zb = make_zero_based(&p.b, usual_skew(), SIZE, of_b);
}

void zero_based_up(void)
{
	up();
	memory_up(DAT_MEM_PRIV_ALL_FLAG);
}

DAT_RMR_HANDLE zero_based_up_to_bind(void)
{
	DAT_RMR_HANDLE rmr = up_to_bind();

	memory_up(DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG);
	return rmr;
}

DAT_LMR_TRIPLET local_at(DAT_LMR_CONTEXT context, DAT_VADDR address, size_t size)
{
	return dx_local(context, (const void *)(uintptr_t)address, size);
}

DAT_RMR_TRIPLET remote_at(DAT_RMR_CONTEXT context, DAT_VADDR address, size_t size)
{
	return dx_remote(context, (const void *)(uintptr_t)address, size);
}

DAT_VADDR wrong_address(int which, DAT_VADDR at, DAT_VADDR size)
{
	const DAT_VADDR wrong[WRONG_ADDRESSES] = {
		/* One byte is behind the end; all are. */
		size - 15,
		size,
		/* Those of the memory, at its beginning and inside. */
		at,
		at + size / 2,
		/* They wrap around: by themselves, with the address of the memory, and to the byte before
		 * the first one. */
		(DAT_VADDR)-8,
		(DAT_VADDR)-at,
		(DAT_VADDR)-1,
	};

	return wrong[which];
}
#endif
