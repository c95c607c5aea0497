/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * DAT 2.0 at user level: the one header that a program includes.
 */

#ifndef DAT2_UDAT_H
#define DAT2_UDAT_H

#ifdef DAT_UDAT_H
#error "a program includes <dat/udat.h> for DAT 1.2 or <dat2/udat.h> for DAT 2.0, not both"
#else

#include <dat2/dat_platform_specific.h>
#include <dat2/udat_config.h>

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
    DAT_MEM_TYPE_SHARED_VIRTUAL = 2
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
    DAT_HANDLE_TYPE_SRQ = 10,
    DAT_HANDLE_TYPE_CSP = 11,
    DAT_HANDLE_TYPE_EXTENSION_BASE = 12
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

/* Fields of DAT_LMR_PARAM. */
typedef enum dat_lmr_param_mask {
    DAT_LMR_FIELD_IA_HANDLE = 1,
    DAT_LMR_FIELD_MEM_TYPE = 2,
    DAT_LMR_FIELD_REGION_DESC = 4,
    DAT_LMR_FIELD_LENGTH = 8,
    DAT_LMR_FIELD_PZ_HANDLE = 0x10,
    DAT_LMR_FIELD_MEM_PRIV = 0x20,
    DAT_LMR_FIELD_VA_TYPE = 0x40,
    DAT_LMR_FIELD_LMR_CONTEXT = 0x80,
    DAT_LMR_FIELD_RMR_CONTEXT = 0x100,
    DAT_LMR_FIELD_REGISTERED_SIZE = 0x200,
    DAT_LMR_FIELD_REGISTERED_ADDRESS = 0x400,
    DAT_LMR_FIELD_ALL = 0x7ff
} DAT_LMR_PARAM_MASK;

typedef struct dat_evd_param DAT_EVD_PARAM;
typedef struct dat_lmr_param DAT_LMR_PARAM;
typedef struct dat_provider_attr DAT_PROVIDER_ATTR;
typedef struct dat_ia_attr DAT_IA_ATTR;

#ifdef __cplusplus
}
#endif

#include <dat2/dat.h>
#include <dat2/udat_vendor_specific.h>

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

/* What a CNO wakes besides its waiter. */
typedef enum dat_proxy_type {
    DAT_PROXY_TYPE_NONE = 0,
    DAT_PROXY_TYPE_AGENT = 1,
    DAT_PROXY_TYPE_FD = 2
} DAT_PROXY_TYPE;

/* Parameters of a CNO (dat_cno_query). */
typedef struct dat_cno_param {
    DAT_IA_HANDLE ia_handle;
    DAT_PROXY_TYPE proxy_type;
    union {
        DAT_OS_WAIT_PROXY_AGENT agent;
        DAT_FD fd;
        DAT_PVOID none;
    } proxy;
} DAT_CNO_PARAM;

/* Fields of DAT_CNO_PARAM. */
typedef enum dat_cno_param_mask {
    DAT_CNO_FIELD_IA_HANDLE = 1,
    DAT_CNO_FIELD_PROXY_TYPE = 2,
    DAT_CNO_FIELD_PROXY = 3,
    DAT_CNO_FIELD_ALL = 4
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
    DAT_VA_TYPE va_type;
    DAT_LMR_CONTEXT lmr_context;
    DAT_RMR_CONTEXT rmr_context;
    DAT_VLEN registered_size;
    DAT_VADDR registered_address;
};

/*
 * Interface adapters
 */

/* What an IA is and can do (dat_ia_query). */
struct dat_ia_attr {
    char adapter_name[DAT_NAME_MAX_LENGTH];
    char vendor_name[DAT_NAME_MAX_LENGTH];
    DAT_UINT32 hardware_version_major;
    DAT_UINT32 hardware_version_minor;
    DAT_UINT32 firmware_version_major;
    DAT_UINT32 firmware_version_minor;
    DAT_IA_ADDRESS_PTR ia_address_ptr; /* where peers connect to */
    DAT_COUNT max_eps;
    DAT_COUNT max_dto_per_ep;           /* requests, and receives, of an endpoint */
    DAT_COUNT max_rdma_read_per_ep_in;  /* at a time */
    DAT_COUNT max_rdma_read_per_ep_out; /* at a time */
    DAT_COUNT max_evds;
    DAT_COUNT max_evd_qlen;             /* events of an EVD */
    DAT_COUNT max_iov_segments_per_dto; /* of a send or receive */
    DAT_COUNT max_lmrs;
    DAT_SEG_LENGTH max_lmr_block_size; /* bytes of a region */
    DAT_VADDR max_lmr_virtual_address;
    DAT_COUNT max_pzs;
    DAT_SEG_LENGTH max_message_size; /* bytes */
    DAT_SEG_LENGTH max_rdma_size;    /* bytes */
    DAT_COUNT max_rmrs;
    DAT_VADDR max_rmr_target_address;
    DAT_COUNT max_srqs;
    DAT_COUNT max_ep_per_srq;
    DAT_COUNT max_recv_per_srq; /* buffers of a shared queue */
    DAT_COUNT max_iov_segments_per_rdma_read;
    DAT_COUNT max_iov_segments_per_rdma_write;
    DAT_COUNT max_rdma_read_in;
    DAT_COUNT max_rdma_read_out;
    DAT_BOOLEAN max_rdma_read_per_ep_in_guaranteed;
    DAT_BOOLEAN max_rdma_read_per_ep_out_guaranteed;
    DAT_BOOLEAN zb_supported;
    DAT_EXTENSION extension_supported;
    DAT_COUNT extension_version;
    DAT_COUNT num_transport_attr;
    DAT_NAMED_ATTR *transport_attr;
    DAT_COUNT num_vendor_attr;
    DAT_NAMED_ATTR *vendor_attr;
};

/* Members of DAT_IA_ATTR that only the user level has, and those that follow them. */
#define DAT_IA_FIELD_IA_EXTENSION UINT64_C(0x100000000)
#define DAT_IA_FIELD_IA_EXTENSION_VERSION UINT64_C(0x200000000)
#define DAT_IA_FIELD_IA_NUM_TRANSPORT_ATTR UINT64_C(0x400000000)
#define DAT_IA_FIELD_IA_TRANSPORT_ATTR UINT64_C(0x800000000)
#define DAT_IA_FIELD_IA_NUM_VENDOR_ATTR UINT64_C(0x1000000000)
#define DAT_IA_FIELD_IA_VENDOR_ATTR UINT64_C(0x2000000000)
#define DAT_IA_FIELD_ALL UINT64_C(0x3fffffffff)

/*
 * Providers
 */

/* Whether protection zones are shared. */
typedef enum dat_pz_support {
    DAT_PZ_UNIQUE = 0,
    DAT_PZ_SHAREABLE = 1
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
    DAT_BOOLEAN rdma_read_lmr_rmr_context_exposure;
    DAT_RMR_SCOPE rmr_scope_supported;
    DAT_BOOLEAN is_signal_safe;
    DAT_BOOLEAN ha_supported;
    DAT_HA_LB ha_loadbalancing;
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
#define DAT_PROVIDER_FIELD_RDMA_READ_LMR_RMR_CONTEXT_EXPOSURE UINT64_C(0x1000000)
#define DAT_PROVIDER_FIELD_RMR_SCOPE_SUPPORTED UINT64_C(0x2000000)
#define DAT_PROVIDER_FIELD_IS_SIGNAL_SAFE UINT64_C(0x4000000)
#define DAT_PROVIDER_FIELD_HA_SUPPORTED UINT64_C(0x8000000)
#define DAT_PROVIDER_FIELD_HA_LB UINT64_C(0x10000000)
#define DAT_PROVIDER_FIELD_NUM_PROVIDER_SPECIFIC_ATTR UINT64_C(0x20000000)
#define DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR UINT64_C(0x40000000)
#define DAT_PROVIDER_FIELD_ALL UINT64_C(0x7fffffff)
#define DAT_PROVIDER_FIELD_NONE UINT64_C(0x0)

/*
 * Functions, each of which has a manual page. They return DAT_SUCCESS or a code of dat_error.h. Of
 * those that DAT 2.0 declares, these are in this library and in no other; for #ifdef.
 */
#define LIBDAT_HAS_CNO_FD 1               /* dat_cno_fd_create, dat_cno_trigger */
#define LIBDAT_HAS_COMMON_CONNECT 1       /* dat_csp_*, dat_ep_common_connect */
#define LIBDAT_HAS_PROVIDERS_RELATED 1    /* dat_registry_providers_related */
#define LIBDAT_HAS_RMR_FOR_EP 1           /* dat_rmr_create_for_ep, dat_ep_post_rdma_read_to_rmr */
#define LIBDAT_HAS_SEND_WITH_INVALIDATE 1 /* dat_ep_post_send_with_invalidate */
#define LIBDAT_HAS_ZERO_BASED 1           /* DAT_VA_TYPE_ZB in dat_lmr_create, dat_rmr_bind */

/*
 * Makes a CNO; an agent, if any, is called for each event. The agent is called with its
 * instance_data and the EVD; DAT_OS_WAIT_PROXY_AGENT_NULL: no agent.
 */
DAT_EXPORT DAT_RETURN dat_cno_create(
    IN DAT_IA_HANDLE ia_handle, IN DAT_OS_WAIT_PROXY_AGENT agent,
    OUT DAT_CNO_HANDLE *cno_handle);

/*
 * Makes a CNO that signals through a file descriptor, which is closed with the CNO. The
 * descriptor belongs to the library; nothing is to be read from it.
 */
DAT_EXPORT DAT_RETURN dat_cno_fd_create(
    IN DAT_IA_HANDLE ia_handle, OUT DAT_FD *fd, OUT DAT_CNO_HANDLE *cno_handle);

/* Frees a CNO that no EVD uses and nobody waits on. */
DAT_EXPORT DAT_RETURN dat_cno_free(IN DAT_CNO_HANDLE cno_handle);

/* Replaces the agent of a CNO. */
DAT_EXPORT DAT_RETURN dat_cno_modify_agent(
    IN DAT_CNO_HANDLE cno_handle, IN DAT_OS_WAIT_PROXY_AGENT agent);

/* Reads the parameters of a CNO. */
DAT_EXPORT DAT_RETURN dat_cno_query(
    IN DAT_CNO_HANDLE cno_handle, IN DAT_CNO_PARAM_MASK cno_param_mask,
    OUT DAT_CNO_PARAM *cno_param);

/* Takes the EVD that woke a CNO, without waiting. */
DAT_EXPORT DAT_RETURN dat_cno_trigger(
    IN DAT_CNO_HANDLE cno_handle, OUT DAT_EVD_HANDLE *evd_handle);

/*
 * Waits until an EVD of the CNO has an event. Timeout in microseconds: 0 polls,
 * DAT_TIMEOUT_INFINITE has no end. A NULL EVD: the CNO has none any more.
 */
DAT_EXPORT DAT_RETURN dat_cno_wait(
    IN DAT_CNO_HANDLE cno_handle, IN DAT_TIMEOUT timeout, OUT DAT_EVD_HANDLE *evd_handle);

/* Lets consumers wait on an EVD again. */
DAT_EXPORT DAT_RETURN dat_evd_clear_unwaitable(IN DAT_EVD_HANDLE evd_handle);

/*
 * Makes an EVD. The flags are the kinds of events that may come to it, and may be combined;
 * cno_handle may be DAT_HANDLE_NULL.
 */
DAT_EXPORT DAT_RETURN dat_evd_create(
    IN DAT_IA_HANDLE ia_handle, IN DAT_COUNT evd_min_qlen, IN DAT_CNO_HANDLE cno_handle,
    IN DAT_EVD_FLAGS evd_flags, OUT DAT_EVD_HANDLE *evd_handle);

/* Stops an EVD from waking its CNO. Threads may wait on it all the same. */
DAT_EXPORT DAT_RETURN dat_evd_disable(IN DAT_EVD_HANDLE evd_handle);

/* Lets an EVD wake its CNO. */
DAT_EXPORT DAT_RETURN dat_evd_enable(IN DAT_EVD_HANDLE evd_handle);

/* Moves an EVD to another CNO. cno_handle may be DAT_HANDLE_NULL. */
DAT_EXPORT DAT_RETURN dat_evd_modify_cno(
    IN DAT_EVD_HANDLE evd_handle, IN DAT_CNO_HANDLE cno_handle);

/* Stops consumers from waiting on an EVD, and wakes the one that does. */
DAT_EXPORT DAT_RETURN dat_evd_set_unwaitable(IN DAT_EVD_HANDLE evd_handle);

/*
 * Waits for events and takes the first. Timeout in microseconds: 0 polls, DAT_TIMEOUT_INFINITE
 * has no end. It returns when there are threshold events, at least 1; n_more_events tells how
 * many are left.
 */
DAT_EXPORT DAT_RETURN dat_evd_wait(
    IN DAT_EVD_HANDLE evd_handle, IN DAT_TIMEOUT timeout, IN DAT_COUNT threshold,
    OUT DAT_EVENT *event, OUT DAT_COUNT *n_more_events);

/*
 * Registers memory. The description has the member that mem_type says. All results but the handle
 * may be NULL; rmr_context is 0 without remote privileges.
 */
DAT_EXPORT DAT_RETURN dat_lmr_create(
    IN DAT_IA_HANDLE ia_handle, IN DAT_MEM_TYPE mem_type,
    IN DAT_REGION_DESCRIPTION region_description, IN DAT_VLEN length,
    IN DAT_PZ_HANDLE pz_handle, IN DAT_MEM_PRIV_FLAGS privileges, IN DAT_VA_TYPE va_type,
    OUT DAT_LMR_HANDLE *lmr_handle, OUT DAT_LMR_CONTEXT *lmr_context,
    OUT DAT_RMR_CONTEXT *rmr_context, OUT DAT_VLEN *registered_length,
    OUT DAT_VADDR *registered_address);

/* Reads the parameters of an LMR. */
DAT_EXPORT DAT_RETURN dat_lmr_query(
    IN DAT_LMR_HANDLE lmr_handle, IN DAT_LMR_PARAM_MASK lmr_param_mask,
    OUT DAT_LMR_PARAM *lmr_param);

#ifdef __cplusplus
}
#endif

#endif

#endif
