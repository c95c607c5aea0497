/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * DAT 1.2 at user level: the one header that a program includes.
 */

#ifndef DAT_UDAT_H
#define DAT_UDAT_H

#ifdef DAT2_UDAT_H
#error "a program includes <dat/udat.h> for DAT 1.2 or <dat2/udat.h> for DAT 2.0, not both"
#else

#include <dat/dat_platform_specific.h>
#include <dat/udat_config.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Types that dat.h needs; the structures are defined below.
 */

typedef DAT_UINT64 DAT_PROVIDER_ATTR_MASK; /* Set of DAT_PROVIDER_FIELD_*. */

/* What the region description of an LMR describes. */
typedef enum dat_mem_type {
    DAT_MEM_TYPE_VIRTUAL = 0,
    DAT_MEM_TYPE_LMR = 1,
    DAT_MEM_TYPE_SHARED_VIRTUAL = 2,
    DAT_MEM_TYPE_SO_VIRTUAL = 3 /* of illumos */
} DAT_MEM_TYPE;

/* Kind of object behind a handle. */
typedef enum dat_handle_type {
    DAT_HANDLE_TYPE_CR = 0,
    DAT_HANDLE_TYPE_EP = 1,
    DAT_HANDLE_TYPE_EVD = 2,
    DAT_HANDLE_TYPE_IA = 3,
    DAT_HANDLE_TYPE_LMR = 4,
    DAT_HANDLE_TYPE_PSP = 5,
    DAT_HANDLE_TYPE_PZ = 6,
    DAT_HANDLE_TYPE_RMR = 7,
    DAT_HANDLE_TYPE_RSP = 8,
    DAT_HANDLE_TYPE_CNO = 9,
    DAT_HANDLE_TYPE_SRQ = 10
} DAT_HANDLE_TYPE;

/* State bits of an EVD. */
typedef enum dat_evd_state {
    DAT_EVD_STATE_ENABLED = 1,
    DAT_EVD_STATE_DISABLED = 2,
    DAT_EVD_STATE_WAITABLE = 4,
    DAT_EVD_STATE_UNWAITABLE = 8,
    DAT_EVD_STATE_CONFIG_NOTIFY = 0x10,
    DAT_EVD_STATE_CONFIG_SOLICITED = 0x20,
    DAT_EVD_STATE_CONFIG_THRESHOLD = 0x30
} DAT_EVD_STATE;

/* Fields of DAT_EVD_PARAM. */
typedef enum dat_evd_param_mask {
    DAT_EVD_FIELD_IA_HANDLE = 1,
    DAT_EVD_FIELD_EVD_QLEN = 2,
    DAT_EVD_FIELD_EVD_STATE = 4,
    DAT_EVD_FIELD_CNO = 8,
    DAT_EVD_FIELD_EVD_FLAGS = 0x10,
    DAT_EVD_FIELD_ALL = 0x1f
} DAT_EVD_PARAM_MASK;

typedef struct dat_evd_param DAT_EVD_PARAM;
typedef struct dat_lmr_param DAT_LMR_PARAM;
typedef struct dat_provider_attr DAT_PROVIDER_ATTR;

#ifdef __cplusplus
}
#endif

#include <dat/dat.h>
#include <dat/udat_vendor_specific.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Consumer notification objects
 */

typedef DAT_HANDLE DAT_CNO_HANDLE; /* Consumer notification object. */

/* Function that a CNO calls. */
typedef void (*DAT_AGENT_FUNC)(IN DAT_PVOID instance_data, IN DAT_EVD_HANDLE evd_handle);

/* Callback of a CNO. */
typedef struct dat_os_wait_proxy_agent {
    DAT_PVOID instance_data;
    DAT_AGENT_FUNC proxy_agent_func;
} DAT_OS_WAIT_PROXY_AGENT;

/* No agent. In C90 and C++98 such a value is an extension of the compiler. */
#if defined(__cplusplus) && __cplusplus >= 201103L
#define DAT_OS_WAIT_PROXY_AGENT_NULL (DAT_OS_WAIT_PROXY_AGENT{NULL, NULL})
#else
#define DAT_OS_WAIT_PROXY_AGENT_NULL (__extension__(DAT_OS_WAIT_PROXY_AGENT){NULL, NULL})
#endif

/* Parameters of a CNO (dat_cno_query). */
typedef struct dat_cno_param {
    DAT_IA_HANDLE ia_handle;
    DAT_OS_WAIT_PROXY_AGENT agent;
} DAT_CNO_PARAM;

/* Fields of DAT_CNO_PARAM. */
typedef enum dat_cno_param_mask {
    DAT_CNO_FIELD_IA_HANDLE = 1,
    DAT_CNO_FIELD_AGENT = 2,
    DAT_CNO_FIELD_ALL = 3
} DAT_CNO_PARAM_MASK;

/*
 * Event dispatchers
 */

/* What dat_ia_openv takes for the asynchronous EVD. */
#define DAT_EVD_ASYNC_EXISTS ((DAT_EVD_HANDLE)0x1)
#define DAT_EVD_OUT_OF_SCOPE ((DAT_EVD_HANDLE)0x2)

/* Parameters of an EVD (dat_evd_query). */
struct dat_evd_param {
    DAT_IA_HANDLE ia_handle;
    DAT_COUNT evd_qlen;
    DAT_EVD_STATE evd_state;
    DAT_CNO_HANDLE cno_handle;
    DAT_EVD_FLAGS evd_flags;
};

/*
 * Local memory regions
 */

#define DAT_LMR_COOKIE_SIZE 40

/* Identifier of shared memory, chosen by the processes that share it. */
typedef char (*DAT_LMR_COOKIE)[DAT_LMR_COOKIE_SIZE];

/* Shared memory to register. */
typedef struct dat_shared_memory {
    DAT_PVOID virtual_address;
    DAT_LMR_COOKIE shared_memory_id;
} DAT_SHARED_MEMORY;

/* Memory to register; the memory type says which member holds. */
typedef union dat_region_description {
    DAT_PVOID for_va;
    DAT_LMR_HANDLE for_lmr_handle;
    DAT_SHARED_MEMORY for_shared_memory;
} DAT_REGION_DESCRIPTION;

/* Parameters of an LMR (dat_lmr_query). */
struct dat_lmr_param {
    DAT_IA_HANDLE ia_handle;
    DAT_MEM_TYPE mem_type;
    DAT_REGION_DESCRIPTION region_desc;
    DAT_VLEN length;
    DAT_PZ_HANDLE pz_handle;
    DAT_MEM_PRIV_FLAGS mem_priv;
    DAT_LMR_CONTEXT lmr_context;
    DAT_RMR_CONTEXT rmr_context;
    DAT_VLEN registered_size;
    DAT_VADDR registered_address;
};

/*
 * Providers
 */

/* Whether protection zones are shared. */
typedef enum dat_pz_support {
    DAT_PZ_UNIQUE = 0,
    DAT_PZ_SHAREABLE = 1,
    DAT_PZ_SAME = 1 /* of illumos */
} DAT_PZ_SUPPORT;

/* What a provider supports (dat_ia_query). */
struct dat_provider_attr {
    char provider_name[DAT_NAME_MAX_LENGTH];
    DAT_UINT32 provider_version_major;
    DAT_UINT32 provider_version_minor;
    DAT_UINT32 dapl_version_major;
    DAT_UINT32 dapl_version_minor;
    DAT_MEM_TYPE lmr_mem_types_supported;
    DAT_IOV_OWNERSHIP iov_ownership_on_return; /* whose a list of segments is after a post */
    DAT_QOS dat_qos_supported;
    DAT_COMPLETION_FLAGS completion_flags_supported;
    DAT_BOOLEAN is_thread_safe;
    DAT_COUNT max_private_data_size; /* bytes each way */
    DAT_BOOLEAN supports_multipath;
    DAT_EP_CREATOR_FOR_PSP ep_creator;
    DAT_PZ_SUPPORT pz_support;
    DAT_UINT32 optimal_buffer_alignment; /* bytes */
#ifndef __cplusplus /* a const member would cost the class its default constructor */
    const
#endif
    DAT_BOOLEAN evd_stream_merging_supported[6][6]; /* which kinds of events merge */
    DAT_BOOLEAN srq_supported;
    DAT_COUNT srq_watermarks_supported;
    DAT_BOOLEAN srq_ep_pz_difference_supported; /* whether zones of queue and endpoint may differ */
    DAT_COUNT srq_info_supported;
    DAT_COUNT ep_recv_info_supported;
    DAT_BOOLEAN lmr_sync_req; /* whether dat_lmr_sync_* are needed */
    DAT_BOOLEAN dto_async_return_guaranteed;
    DAT_BOOLEAN rdma_write_for_rdma_read_req;
    DAT_COUNT num_provider_specific_attr;
    DAT_NAMED_ATTR *provider_specific_attr;
};

/* Members of DAT_PROVIDER_ATTR. */
#define DAT_PROVIDER_FIELD_PROVIDER_NAME UINT64_C(0x1)
#define DAT_PROVIDER_FIELD_PROVIDER_VERSION_MAJOR UINT64_C(0x2)
#define DAT_PROVIDER_FIELD_PROVIDER_VERSION_MINOR UINT64_C(0x4)
#define DAT_PROVIDER_FIELD_DAPL_VERSION_MAJOR UINT64_C(0x8)
#define DAT_PROVIDER_FIELD_DAPL_VERSION_MINOR UINT64_C(0x10)
#define DAT_PROVIDER_FIELD_LMR_MEM_TYPE_SUPPORTED UINT64_C(0x20)
#define DAT_PROVIDER_FIELD_IOV_OWNERSHIP UINT64_C(0x40)
#define DAT_PROVIDER_FIELD_DAT_QOS_SUPPORTED UINT64_C(0x80)
#define DAT_PROVIDER_FIELD_COMPLETION_FLAGS_SUPPORTED UINT64_C(0x100)
#define DAT_PROVIDER_FIELD_IS_THREAD_SAFE UINT64_C(0x200)
#define DAT_PROVIDER_FIELD_MAX_PRIVATE_DATA_SIZE UINT64_C(0x400)
#define DAT_PROVIDER_FIELD_SUPPORTS_MULTIPATH UINT64_C(0x800)
#define DAT_PROVIDER_FIELD_EP_CREATOR UINT64_C(0x1000)
#define DAT_PROVIDER_FIELD_PZ_SUPPORT UINT64_C(0x2000)
#define DAT_PROVIDER_FIELD_OPTIMAL_BUFFER_ALIGNMENT UINT64_C(0x4000)
#define DAT_PROVIDER_FIELD_EVD_STREAM_MERGING_SUPPORTED UINT64_C(0x8000)
#define DAT_PROVIDER_FIELD_SRQ_SUPPORTED UINT64_C(0x10000)
#define DAT_PROVIDER_FIELD_SRQ_WATERMARKS_SUPPORTED UINT64_C(0x20000)
#define DAT_PROVIDER_FIELD_SRQ_EP_PZ_DIFFERENCE_SUPPORTED UINT64_C(0x40000)
#define DAT_PROVIDER_FIELD_SRQ_INFO_SUPPORTED UINT64_C(0x80000)
#define DAT_PROVIDER_FIELD_EP_RECV_INFO_SUPPORTED UINT64_C(0x100000)
#define DAT_PROVIDER_FIELD_LMR_SYNC_REQ UINT64_C(0x200000)
#define DAT_PROVIDER_FIELD_DTO_ASYNC_RETURN_GUARANTEED UINT64_C(0x400000)
#define DAT_PROVIDER_FIELD_RDMA_WRITE_FOR_RDMA_READ_REQ UINT64_C(0x800000)
#define DAT_PROVIDER_FIELD_NUM_PROVIDER_SPECIFIC_ATTR UINT64_C(0x1000000)
#define DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR UINT64_C(0x2000000)
#define DAT_PROVIDER_FIELD_ALL UINT64_C(0x3ffffff)
#define DAT_PROVIDER_FIELD_NONE UINT64_C(0x0)

/*
 * Functions, each of which has a manual page. They return DAT_SUCCESS or a code of dat_error.h.
 */

/*
 * Makes a CNO; an agent, if any, is called for each event. The agent is called with its
 * instance_data and the EVD; DAT_OS_WAIT_PROXY_AGENT_NULL: no agent.
 */
extern DAT_RETURN dat_cno_create(
    IN DAT_IA_HANDLE ia_handle, IN DAT_OS_WAIT_PROXY_AGENT agent,
    OUT DAT_CNO_HANDLE *cno_handle);

/* Frees a CNO that no EVD uses and nobody waits on. */
extern DAT_RETURN dat_cno_free(IN DAT_CNO_HANDLE cno_handle);

/* Replaces the agent of a CNO. */
extern DAT_RETURN dat_cno_modify_agent(
    IN DAT_CNO_HANDLE cno_handle, IN DAT_OS_WAIT_PROXY_AGENT agent);

/* Reads the parameters of a CNO. */
extern DAT_RETURN dat_cno_query(
    IN DAT_CNO_HANDLE cno_handle, IN DAT_CNO_PARAM_MASK cno_param_mask,
    OUT DAT_CNO_PARAM *cno_param);

/*
 * Waits until an EVD of the CNO has an event. Timeout in microseconds: 0 polls,
 * DAT_TIMEOUT_INFINITE has no end. A NULL EVD: the CNO has none any more.
 */
extern DAT_RETURN dat_cno_wait(
    IN DAT_CNO_HANDLE cno_handle, IN DAT_TIMEOUT timeout, OUT DAT_EVD_HANDLE *evd_handle);

/* Lets consumers wait on an EVD again. */
extern DAT_RETURN dat_evd_clear_unwaitable(IN DAT_EVD_HANDLE evd_handle);

/*
 * Makes an EVD. The flags are the kinds of events that may come to it, and may be combined;
 * cno_handle may be DAT_HANDLE_NULL.
 */
extern DAT_RETURN dat_evd_create(
    IN DAT_IA_HANDLE ia_handle, IN DAT_COUNT evd_min_qlen, IN DAT_CNO_HANDLE cno_handle,
    IN DAT_EVD_FLAGS evd_flags, OUT DAT_EVD_HANDLE *evd_handle);

/* Stops an EVD from waking its CNO. Threads may wait on it all the same. */
extern DAT_RETURN dat_evd_disable(IN DAT_EVD_HANDLE evd_handle);

/* Lets an EVD wake its CNO. */
extern DAT_RETURN dat_evd_enable(IN DAT_EVD_HANDLE evd_handle);

/* Moves an EVD to another CNO. cno_handle may be DAT_HANDLE_NULL. */
extern DAT_RETURN dat_evd_modify_cno(
    IN DAT_EVD_HANDLE evd_handle, IN DAT_CNO_HANDLE cno_handle);

/* Stops consumers from waiting on an EVD, and wakes the one that does. */
extern DAT_RETURN dat_evd_set_unwaitable(IN DAT_EVD_HANDLE evd_handle);

/*
 * Waits for events and takes the first. Timeout in microseconds: 0 polls, DAT_TIMEOUT_INFINITE
 * has no end. It returns when there are threshold events, at least 1; n_more_events tells how
 * many are left.
 */
extern DAT_RETURN dat_evd_wait(
    IN DAT_EVD_HANDLE evd_handle, IN DAT_TIMEOUT timeout, IN DAT_COUNT threshold,
    OUT DAT_EVENT *event, OUT DAT_COUNT *n_more_events);

/*
 * Registers memory. The description has the member that mem_type says. All results but the handle
 * may be NULL; rmr_context is 0 without remote privileges.
 */
extern DAT_RETURN dat_lmr_create(
    IN DAT_IA_HANDLE ia_handle, IN DAT_MEM_TYPE mem_type,
    IN DAT_REGION_DESCRIPTION region_description, IN DAT_VLEN length,
    IN DAT_PZ_HANDLE pz_handle, IN DAT_MEM_PRIV_FLAGS privileges,
    OUT DAT_LMR_HANDLE *lmr_handle, OUT DAT_LMR_CONTEXT *lmr_context,
    OUT DAT_RMR_CONTEXT *rmr_context, OUT DAT_VLEN *registered_length,
    OUT DAT_VADDR *registered_address);

#ifdef __cplusplus
}
#endif

#endif

#endif
