/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One source for both versions of the API. DAT 2.0 (compiled with -DDAT2) has more arguments
 * in dat_cr_reject, dat_lmr_create and dat_rmr_bind, other segment structures and another CNO
 * parameter structure; what the tests need of these is spelled dx_* here.
 */
#ifndef DAT_COMPAT_H
#define DAT_COMPAT_H

#ifdef DAT2
#include <dat2/udat.h>
#else
#include <dat/udat.h>
#endif

#include <stdint.h>

#ifdef DAT2
#define DX_MAJOR 2
#define DX_MINOR 0
#else
#define DX_MAJOR 1
#define DX_MINOR 2
#endif

static inline DAT_RETURN dx_cr_reject(DAT_CR_HANDLE cr)
{
#ifdef DAT2
	return dat_cr_reject(cr, 0, NULL);
#else
	return dat_cr_reject(cr);
#endif
}

static inline DAT_RETURN dx_lmr_create(DAT_IA_HANDLE ia, DAT_MEM_TYPE type,
				       DAT_REGION_DESCRIPTION region, DAT_VLEN length,
				       DAT_PZ_HANDLE pz, DAT_MEM_PRIV_FLAGS privileges,
				       DAT_LMR_HANDLE *lmr, DAT_LMR_CONTEXT *lmr_context,
				       DAT_RMR_CONTEXT *rmr_context, DAT_VLEN *registered_length,
				       DAT_VADDR *registered_address)
{
#ifdef DAT2
	return dat_lmr_create(ia, type, region, length, pz, privileges, DAT_VA_TYPE_VA, lmr,
			      lmr_context, rmr_context, registered_length, registered_address);
#else
	return dat_lmr_create(ia, type, region, length, pz, privileges, lmr, lmr_context,
			      rmr_context, registered_length, registered_address);
#endif
}

static inline DAT_RETURN dx_rmr_bind(DAT_RMR_HANDLE rmr, DAT_LMR_HANDLE lmr,
				     const DAT_LMR_TRIPLET *triplet, DAT_MEM_PRIV_FLAGS privileges,
				     DAT_EP_HANDLE ep, DAT_RMR_COOKIE cookie,
				     DAT_COMPLETION_FLAGS flags, DAT_RMR_CONTEXT *context)
{
#ifdef DAT2
	return dat_rmr_bind(rmr, lmr, triplet, privileges, DAT_VA_TYPE_VA, ep, cookie, flags,
			    context);
#else
	(void)lmr;
	return dat_rmr_bind(rmr, triplet, privileges, ep, cookie, flags, context);
#endif
}

/* A local segment. */
static inline DAT_LMR_TRIPLET dx_local(DAT_LMR_CONTEXT context, const void *addr, size_t len)
{
	DAT_LMR_TRIPLET t = { 0 };

	t.lmr_context = context;
	t.virtual_address = (DAT_VADDR)(uintptr_t)addr;
#ifdef DAT2
	t.segment_length = (DAT_SEG_LENGTH)len;
#else
	t.segment_length = len;
#endif
	return t;
}

/* A remote range. */
static inline DAT_RMR_TRIPLET dx_remote(DAT_RMR_CONTEXT context, const void *addr, size_t len)
{
	DAT_RMR_TRIPLET t = { 0 };

	t.rmr_context = context;
#ifdef DAT2
	t.virtual_address = (DAT_VADDR)(uintptr_t)addr;
	t.segment_length = (DAT_SEG_LENGTH)len;
#else
	t.target_address = (DAT_VADDR)(uintptr_t)addr;
	t.segment_length = len;
#endif
	return t;
}

/* The wait proxy agent a CNO query returned. */
static inline DAT_OS_WAIT_PROXY_AGENT dx_agent(const DAT_CNO_PARAM *param)
{
#ifdef DAT2
	return param->proxy.agent;
#else
	return param->agent;
#endif
}

#endif
