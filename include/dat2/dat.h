/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * DAT 2.0: what user level and kernel level have in common.
 *
 * Programs include <dat2/udat.h>. This file needs types of that one, so it lets udat.h include it
 * at the right place.
 */

#ifndef DAT2_UDAT_H

#include <dat2/udat.h>

#else

#ifndef DAT2_DAT_H
#define DAT2_DAT_H

#include <dat2/dat_error.h>
#include <dat2/dat_platform_specific.h>
#include <dat2/dat_vendor_specific.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Basic types
 */

#define DAT_NAME_MAX_LENGTH 256

typedef char *DAT_NAME_PTR;                /* NUL-terminated IA name. */
typedef DAT_UINT32 DAT_HA_LB;              /* How an IA spreads load over paths. */
typedef DAT_UINT32 DAT_TIMEOUT;            /* Timeout in microseconds. */
typedef DAT_PVOID DAT_HANDLE;              /* Handle of any DAT object. */
typedef DAT_HANDLE DAT_CR_HANDLE;          /* Connection request. */
typedef DAT_HANDLE DAT_EP_HANDLE;          /* Endpoint. */
typedef DAT_HANDLE DAT_EVD_HANDLE;         /* Event dispatcher. */
typedef DAT_HANDLE DAT_IA_HANDLE;          /* Interface adapter. */
typedef DAT_HANDLE DAT_LMR_HANDLE;         /* Local memory region. */
typedef DAT_HANDLE DAT_PSP_HANDLE;         /* Public service point. */
typedef DAT_HANDLE DAT_PZ_HANDLE;          /* Protection zone. */
typedef DAT_HANDLE DAT_RMR_HANDLE;         /* Remote memory region. */
typedef DAT_HANDLE DAT_RSP_HANDLE;         /* Reserved service point. */
typedef DAT_HANDLE DAT_SRQ_HANDLE;         /* Shared receive queue. */
typedef DAT_HANDLE DAT_CSP_HANDLE;         /* Common service point. */
typedef DAT_SOCK_ADDR *DAT_IA_ADDRESS_PTR; /* Address of an IA. */
typedef DAT_UINT64 DAT_CONN_QUAL;          /* Connection qualifier of a service point. */
typedef DAT_UINT64 DAT_PORT_QUAL;          /* Port of one end of a connection. */
typedef DAT_UINT32 DAT_LMR_CONTEXT;        /* Local access key of an LMR. */
typedef DAT_UINT32 DAT_RMR_CONTEXT;        /* Remote access key of an LMR or RMR. */
typedef DAT_UINT64 DAT_VLEN;               /* Length in bytes. */
typedef DAT_UINT64 DAT_VADDR;              /* Virtual address. */
typedef DAT_UINT32 DAT_SEG_LENGTH;         /* Length of a segment in bytes. */
typedef DAT_UINT64 DAT_IA_ATTR_MASK;       /* Set of DAT_IA_FIELD_*. */
typedef DAT_UINT64 DAT_EP_PARAM_MASK;      /* Set of DAT_EP_FIELD_*. */
typedef int DAT_EXTENDED_OP;               /* Number of an extended operation. */

#define DAT_TIMEOUT_INFINITE ((DAT_TIMEOUT)~0U)
#define DAT_HANDLE_NULL ((DAT_HANDLE)NULL)

#define DAT_HA_LB_NONE ((DAT_HA_LB)0)
#define DAT_HA_LB_INTERCOMM ((DAT_HA_LB)1)
#define DAT_HA_LB_INTRACOMM ((DAT_HA_LB)2)

/* Truth value. */
typedef enum dat_boolean {
    DAT_FALSE = 0,
    DAT_TRUE = 1
} DAT_BOOLEAN;

/* Attribute of a provider, IA or endpoint as a pair of strings. */
typedef struct dat_named_attr {
    const char *name;
    const char *value;
} DAT_NAMED_ATTR;

/* Eight bytes that belong to the consumer. */
typedef union dat_context {
    DAT_PVOID as_ptr;
    DAT_UINT64 as_64;
    DAT_UVERYLONG as_index;
} DAT_CONTEXT;

typedef DAT_CONTEXT DAT_DTO_COOKIE; /* Cookie of a data transfer, returned in its completion. */
typedef DAT_CONTEXT DAT_RMR_COOKIE; /* Cookie of an RMR bind, returned in its completion. */

/*
 * Flags
 */

/* How a posted operation completes. Which flags an operation may have is in its manual page. */
typedef enum dat_completion_flags {
    DAT_COMPLETION_DEFAULT_FLAG = 0,
    DAT_COMPLETION_SUPPRESS_FLAG = 1,
    DAT_COMPLETION_SOLICITED_WAIT_FLAG = 2,
    DAT_COMPLETION_UNSIGNALLED_FLAG = 4,
    DAT_COMPLETION_BARRIER_FENCE_FLAG = 8,
    DAT_COMPLETION_EVD_THRESHOLD_FLAG = 0x10,
    DAT_COMPLETION_LMR_INVALIDATE_FENCE_FLAG = 0x20
} DAT_COMPLETION_FLAGS;

/* Operation that a completion belongs to. */
typedef enum dat_dtos {
    DAT_DTO_SEND = 0,
    DAT_DTO_RDMA_WRITE = 1,
    DAT_DTO_RDMA_READ = 2,
    DAT_DTO_RECEIVE = 3,
    DAT_DTO_RECEIVE_WITH_INVALIDATE = 4,
    DAT_DTO_BIND_MW = 5,
    DAT_DTO_LMR_FMR = 6,
    DAT_DTO_LMR_INVALIDATE = 7,
    DAT_DTO_EXTENSION_BASE = 8
} DAT_DTOS;

/* Quality of service asked for. */
typedef enum dat_qos {
    DAT_QOS_BEST_EFFORT = 0,
    DAT_QOS_HIGH_THROUGHPUT = 1,
    DAT_QOS_LOW_LATENCY = 2,
    DAT_QOS_ECONOMY = 4,
    DAT_QOS_PREMIUM = 8
} DAT_QOS;

/* Flags of dat_ep_connect. */
typedef enum dat_connect_flags {
    DAT_CONNECT_DEFAULT_FLAG = 0,
    DAT_CONNECT_MULTIPATH_FLAG = 1,
    DAT_CONNECT_MULTIPATH_REQUIRED_FLAG = 2
} DAT_CONNECT_FLAGS;

#define DAT_CONNECT_MULTIPATH_REQUESTED_FLAG DAT_CONNECT_MULTIPATH_FLAG

/* Flags of dat_ia_close and dat_ep_disconnect. */
typedef enum dat_close_flags {
    DAT_CLOSE_ABRUPT_FLAG = 0,
    DAT_CLOSE_GRACEFUL_FLAG = 1
} DAT_CLOSE_FLAGS;

#define DAT_CLOSE_DEFAULT DAT_CLOSE_ABRUPT_FLAG

/* Event streams that feed an EVD: any of them may be combined. */
typedef enum dat_evd_flags {
    DAT_EVD_SOFTWARE_FLAG = 1,
    DAT_EVD_CR_FLAG = 0x10,
    DAT_EVD_DTO_FLAG = 0x20,
    DAT_EVD_CONNECTION_FLAG = 0x40,
    DAT_EVD_RMR_BIND_FLAG = 0x80,
    DAT_EVD_ASYNC_FLAG = 0x100,
    DAT_EVD_DEFAULT_FLAG = 0x1f0,
    DAT_EVD_EXTENSION_BASE = 0x200
} DAT_EVD_FLAGS;

/* Who creates the endpoint of a connection request. */
typedef enum dat_psp_flags {
    DAT_PSP_CONSUMER_FLAG = 0,
    DAT_PSP_PROVIDER_FLAG = 1
} DAT_PSP_FLAGS;

/* Access rights to memory, any of which may be combined. */
typedef enum dat_mem_priv_flags {
    DAT_MEM_PRIV_NONE_FLAG = 0,
    DAT_MEM_PRIV_LOCAL_READ_FLAG = 1,
    DAT_MEM_PRIV_REMOTE_READ_FLAG = 2,
    DAT_MEM_PRIV_LOCAL_WRITE_FLAG = 0x10,
    DAT_MEM_PRIV_REMOTE_WRITE_FLAG = 0x20,
    DAT_MEM_PRIV_ALL_FLAG = 0x33,
    DAT_MEM_PRIV_EXTENSION_BASE = 0x40
} DAT_MEM_PRIV_FLAGS;

#define DAT_MEM_PRIV_READ_FLAG (DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG)
#define DAT_MEM_PRIV_WRITE_FLAG (DAT_MEM_PRIV_LOCAL_WRITE_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG)

/* Addressing of a region: virtual or from zero. */
typedef enum dat_va_type {
    DAT_VA_TYPE_VA = 0,
    DAT_VA_TYPE_ZB = 1
} DAT_VA_TYPE;

/* Where an RMR context is valid. */
typedef enum dat_rmr_scope {
    DAT_RMR_SCOPE_EP = 0,
    DAT_RMR_SCOPE_PZ = 1,
    DAT_RMR_SCOPE_ANY = 2
} DAT_RMR_SCOPE;

/*
 * Memory
 */

/* Local buffer segment. */
typedef struct dat_lmr_triplet {
    DAT_VADDR virtual_address;
    DAT_SEG_LENGTH segment_length; /* bytes */
    DAT_LMR_CONTEXT lmr_context;   /* of dat_lmr_create */
} DAT_LMR_TRIPLET;

/* Remote buffer segment. */
typedef struct dat_rmr_triplet {
    DAT_VADDR virtual_address;
    DAT_SEG_LENGTH segment_length; /* bytes */
    DAT_RMR_CONTEXT rmr_context;   /* of dat_lmr_create or dat_rmr_bind of the peer */
} DAT_RMR_TRIPLET;

/* Parameters of an RMR (dat_rmr_query). */
typedef struct dat_rmr_param {
    DAT_IA_HANDLE ia_handle;
    DAT_PZ_HANDLE pz_handle;
    DAT_LMR_TRIPLET lmr_triplet;
    DAT_MEM_PRIV_FLAGS mem_priv;
    DAT_RMR_CONTEXT rmr_context;
    DAT_RMR_SCOPE rmr_scope;
    DAT_VA_TYPE va_type;
} DAT_RMR_PARAM;

/* Fields of DAT_RMR_PARAM. */
typedef enum dat_rmr_param_mask {
    DAT_RMR_FIELD_IA_HANDLE = 1,
    DAT_RMR_FIELD_PZ_HANDLE = 2,
    DAT_RMR_FIELD_LMR_TRIPLET = 4,
    DAT_RMR_FIELD_MEM_PRIV = 8,
    DAT_RMR_FIELD_RMR_CONTEXT = 0x10,
    DAT_RMR_FIELD_RMR_SCOPE = 0x20,
    DAT_RMR_FIELD_VA_TYPE = 0x40,
    DAT_RMR_FIELD_ALL = 0x7f
} DAT_RMR_PARAM_MASK;

/*
 * Interface adapters
 */

/* Whose an IOV is after a post returned. */
typedef enum dat_iov_ownership {
    DAT_IOV_CONSUMER = 0,
    DAT_IOV_PROVIDER_NOMOD = 1,
    DAT_IOV_PROVIDER_MOD = 2
} DAT_IOV_OWNERSHIP;

/* Whether a provider makes endpoints for connection requests. */
typedef enum dat_ep_creator_for_psp {
    DAT_PSP_CREATES_EP_NEVER = 0,
    DAT_PSP_CREATES_EP_IFASKED = 1,
    DAT_PSP_CREATES_EP_ALWAYS = 2
} DAT_EP_CREATOR_FOR_PSP;

/* Family of extensions. */
typedef enum dat_extension {
    DAT_EXTENSION_NONE = 0,
    DAT_EXTENSION_IB = 1,
    DAT_EXTENSION_IW = 2
} DAT_EXTENSION;

#define DAT_IB_EXTENSION 1
#define DAT_IW_EXTENSION 2
#define DAT_OPEN_EXTENSION_BASE 0x1000
#define DAT_CLOSE_EXTENSION_BASE 0x2000

/*
 * Names of older versions. The second is the mask bit of the first; the headers that programs know
 * define it in a way that does not compile.
 */
#define max_rdma_read_per_ep max_rdma_read_per_ep_in
#define DAT_IA_FIELD_IA_MAX_DTO_PER_OP DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN
#define max_mtu_size max_message_size
#define DAT_IA_FIELD_IA_MAX_MTU_SIZE DAT_IA_FIELD_IA_MAX_MESSAGE_SIZE

/* Members of DAT_IA_ATTR. */
#define DAT_IA_FIELD_IA_ADAPTER_NAME UINT64_C(0x1)
#define DAT_IA_FIELD_IA_VENDOR_NAME UINT64_C(0x2)
#define DAT_IA_FIELD_IA_HARDWARE_MAJOR_VERSION UINT64_C(0x4)
#define DAT_IA_FIELD_IA_HARDWARE_MINOR_VERSION UINT64_C(0x8)
#define DAT_IA_FIELD_IA_FIRMWARE_MAJOR_VERSION UINT64_C(0x10)
#define DAT_IA_FIELD_IA_FIRMWARE_MINOR_VERSION UINT64_C(0x20)
#define DAT_IA_FIELD_IA_ADDRESS_PTR UINT64_C(0x40)
#define DAT_IA_FIELD_IA_MAX_EPS UINT64_C(0x80)
#define DAT_IA_FIELD_IA_MAX_DTO_PER_EP UINT64_C(0x100)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN UINT64_C(0x200)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT UINT64_C(0x400)
#define DAT_IA_FIELD_IA_MAX_EVDS UINT64_C(0x800)
#define DAT_IA_FIELD_IA_MAX_EVD_QLEN UINT64_C(0x1000)
#define DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_DTO UINT64_C(0x2000)
#define DAT_IA_FIELD_IA_MAX_LMRS UINT64_C(0x4000)
#define DAT_IA_FIELD_IA_MAX_LMR_BLOCK_SIZE UINT64_C(0x8000)
#define DAT_IA_FIELD_IA_MAX_LMR_VIRTUAL_ADDRESS UINT64_C(0x10000)
#define DAT_IA_FIELD_IA_MAX_PZS UINT64_C(0x20000)
#define DAT_IA_FIELD_IA_MAX_MESSAGE_SIZE UINT64_C(0x40000)
#define DAT_IA_FIELD_IA_MAX_RDMA_SIZE UINT64_C(0x80000)
#define DAT_IA_FIELD_IA_MAX_RMRS UINT64_C(0x100000)
#define DAT_IA_FIELD_IA_MAX_RMR_TARGET_ADDRESS UINT64_C(0x200000)
#define DAT_IA_FIELD_IA_MAX_SRQS UINT64_C(0x400000)
#define DAT_IA_FIELD_IA_MAX_EP_PER_SRQ UINT64_C(0x800000)
#define DAT_IA_FIELD_IA_MAX_RECV_PER_SRQ UINT64_C(0x1000000)
#define DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_READ UINT64_C(0x2000000)
#define DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_WRITE UINT64_C(0x4000000)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_IN UINT64_C(0x8000000)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_OUT UINT64_C(0x10000000)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN_GUARANTEED UINT64_C(0x20000000)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT_GUARANTEED UINT64_C(0x40000000)
#define DAT_IA_FIELD_IA_ZB_SUPPORTED UINT64_C(0x80000000)
#define DAT_IA_FIELD_IA_EXTENSIONS_SUPPORTED UINT64_C(0x100000000)
#define DAT_IA_ALL DAT_IA_FIELD_ALL
#define DAT_IA_FIELD_NONE UINT64_C(0x0)

/*
 * Endpoints
 */

/* Service of an endpoint. */
typedef enum dat_service_type {
    DAT_SERVICE_TYPE_RC = 0,
    DAT_SERVICE_TYPE_EXTENSION_BASE = 1
} DAT_SERVICE_TYPE;

/* Attributes of an endpoint. */
typedef struct dat_ep_attr {
    DAT_SERVICE_TYPE service_type;
    DAT_SEG_LENGTH max_message_size; /* bytes of a message */
    DAT_SEG_LENGTH max_rdma_size;    /* bytes of an RDMA operation */
    DAT_QOS qos;
    DAT_COMPLETION_FLAGS recv_completion_flags;    /* UNSIGNALLED, SOLICITED_WAIT, EVD_THRESHOLD */
    DAT_COMPLETION_FLAGS request_completion_flags; /* UNSIGNALLED, EVD_THRESHOLD */
    DAT_COUNT max_recv_dtos;                       /* receives outstanding */
    DAT_COUNT max_request_dtos;                    /* requests outstanding */
    DAT_COUNT max_recv_iov;                        /* segments of a receive */
    DAT_COUNT max_request_iov;                     /* segments of a send */
    DAT_COUNT max_rdma_read_in;                    /* reads of the peer at a time */
    DAT_COUNT max_rdma_read_out;                   /* reads of this endpoint at a time */
    DAT_COUNT srq_soft_hw;                         /* soft watermark, or DAT_HW_DEFAULT for none */
    DAT_COUNT max_rdma_read_iov;                   /* local segments of a read */
    DAT_COUNT max_rdma_write_iov;                  /* local segments of a write */
    DAT_COUNT ep_transport_specific_count;
    DAT_NAMED_ATTR *ep_transport_specific;
    DAT_COUNT ep_provider_specific_count;
    DAT_NAMED_ATTR *ep_provider_specific;
} DAT_EP_ATTR;

/* State of an endpoint. */
typedef enum dat_ep_state {
    DAT_EP_STATE_UNCONNECTED = 0,
    DAT_EP_STATE_UNCONFIGURED_UNCONNECTED = 1,
    DAT_EP_STATE_RESERVED = 2,
    DAT_EP_STATE_UNCONFIGURED_RESERVED = 3,
    DAT_EP_STATE_PASSIVE_CONNECTION_PENDING = 4,
    DAT_EP_STATE_UNCONFIGURED_PASSIVE = 5,
    DAT_EP_STATE_ACTIVE_CONNECTION_PENDING = 6,
    DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING = 7,
    DAT_EP_STATE_UNCONFIGURED_TENTATIVE = 8,
    DAT_EP_STATE_CONNECTED = 9,
    DAT_EP_STATE_DISCONNECT_PENDING = 10,
    DAT_EP_STATE_DISCONNECTED = 11,
    DAT_EP_STATE_COMPLETION_PENDING = 12,
    DAT_EP_STATE_CONNECTED_SINGLE_PATH = 13,
    DAT_EP_STATE_CONNECTED_MULTI_PATH = 14
} DAT_EP_STATE;

#define DAT_EP_STATE_ERROR DAT_EP_STATE_DISCONNECTED

/* Parameters of an endpoint (dat_ep_query, dat_ep_modify). */
typedef struct dat_ep_param {
    DAT_IA_HANDLE ia_handle;
    DAT_EP_STATE ep_state;
    DAT_COMM comm;
    DAT_IA_ADDRESS_PTR local_ia_address_ptr;
    DAT_PORT_QUAL local_port_qual;
    DAT_IA_ADDRESS_PTR remote_ia_address_ptr;
    DAT_PORT_QUAL remote_port_qual;
    DAT_PZ_HANDLE pz_handle;
    DAT_EVD_HANDLE recv_evd_handle;
    DAT_EVD_HANDLE request_evd_handle;
    DAT_EVD_HANDLE connect_evd_handle;
    DAT_SRQ_HANDLE srq_handle;
    DAT_EP_ATTR ep_attr;
} DAT_EP_PARAM;

/* Members of DAT_EP_PARAM. */
#define DAT_EP_FIELD_IA_HANDLE UINT64_C(0x1)
#define DAT_EP_FIELD_EP_STATE UINT64_C(0x2)
#define DAT_EP_FIELD_COMM UINT64_C(0x4)
#define DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR UINT64_C(0x8)
#define DAT_EP_FIELD_LOCAL_PORT_QUAL UINT64_C(0x10)
#define DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR UINT64_C(0x20)
#define DAT_EP_FIELD_REMOTE_PORT_QUAL UINT64_C(0x40)
#define DAT_EP_FIELD_PZ_HANDLE UINT64_C(0x80)
#define DAT_EP_FIELD_RECV_EVD_HANDLE UINT64_C(0x100)
#define DAT_EP_FIELD_REQUEST_EVD_HANDLE UINT64_C(0x200)
#define DAT_EP_FIELD_CONNECT_EVD_HANDLE UINT64_C(0x400)
#define DAT_EP_FIELD_SRQ_HANDLE UINT64_C(0x800)
#define DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE UINT64_C(0x1000)
#define DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE UINT64_C(0x2000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE UINT64_C(0x4000)
#define DAT_EP_FIELD_EP_ATTR_QOS UINT64_C(0x8000)
#define DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS UINT64_C(0x10000)
#define DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS UINT64_C(0x20000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS UINT64_C(0x40000)
#define DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS UINT64_C(0x80000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV UINT64_C(0x100000)
#define DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV UINT64_C(0x200000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN UINT64_C(0x400000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT UINT64_C(0x800000)
#define DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW UINT64_C(0x1000000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV UINT64_C(0x2000000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV UINT64_C(0x4000000)
#define DAT_EP_FIELD_EP_ATTR_NUM_TRANSPORT_ATTR UINT64_C(0x8000000)
#define DAT_EP_FIELD_EP_ATTR_TRANSPORT_SPECIFIC_ATTR UINT64_C(0x10000000)
#define DAT_EP_FIELD_EP_ATTR_NUM_PROVIDER_ATTR UINT64_C(0x20000000)
#define DAT_EP_FIELD_EP_ATTR_PROVIDER_SPECIFIC_ATTR UINT64_C(0x40000000)
#define DAT_EP_FIELD_EP_ATTR_ALL UINT64_C(0x7ffff000)
#define DAT_EP_FIELD_ALL UINT64_C(0x7fffffff)

/*
 * Shared receive queues
 */

#define DAT_WATERMARK_INFINITE ((DAT_COUNT)-1)
#define DAT_HW_DEFAULT DAT_WATERMARK_INFINITE
#define DAT_SRQ_LW_DEFAULT 0
#define DAT_VALUE_UNKNOWN ((DAT_COUNT)-2)

/* Attributes of a shared receive queue. */
typedef struct dat_srq_attr {
    DAT_COUNT max_recv_dtos; /* buffers, at least */
    DAT_COUNT max_recv_iov;  /* segments of a buffer, at least */
    DAT_COUNT low_watermark; /* 0 when the queue is made */
} DAT_SRQ_ATTR;

/* State of a shared receive queue. */
typedef enum dat_srq_state {
    DAT_SRQ_STATE_ERROR = 0,
    DAT_SRQ_STATE_OPERATIONAL = 1,
    DAT_SRQ_STATE_SHUTDOWN = 2
} DAT_SRQ_STATE;

/* Parameters of a shared receive queue (dat_srq_query). */
typedef struct dat_srq_param {
    DAT_IA_HANDLE ia_handle;
    DAT_SRQ_STATE srq_state;
    DAT_PZ_HANDLE pz_handle;
    DAT_COUNT max_recv_dtos;
    DAT_COUNT max_recv_iov;
    DAT_COUNT low_watermark;
    DAT_COUNT available_dto_count;
    DAT_COUNT outstanding_dto_count;
} DAT_SRQ_PARAM;

/* Fields of DAT_SRQ_PARAM. */
typedef enum dat_srq_param_mask {
    DAT_SRQ_FIELD_IA_HANDLE = 1,
    DAT_SRQ_FIELD_SRQ_STATE = 2,
    DAT_SRQ_FIELD_PZ_HANDLE = 4,
    DAT_SRQ_FIELD_MAX_RECV_DTO = 8,
    DAT_SRQ_FIELD_MAX_RECV_IOV = 0x10,
    DAT_SRQ_FIELD_LOW_WATERMARK = 0x20,
    DAT_SRQ_FIELD_AVAILABLE_DTO_COUNT = 0x40,
    DAT_SRQ_FIELD_OUTSTANDING_DTO_COUNT = 0x80,
    DAT_SRQ_FIELD_ALL = 0xff
} DAT_SRQ_PARAM_MASK;

/*
 * Protection zones, service points and connection requests
 */

/* Parameters of a protection zone (dat_pz_query). */
typedef struct dat_pz_param {
    DAT_IA_HANDLE ia_handle;
} DAT_PZ_PARAM;

/* Fields of DAT_PZ_PARAM. */
typedef enum dat_pz_param_mask {
    DAT_PZ_FIELD_IA_HANDLE = 1,
    DAT_PZ_FIELD_ALL = 1
} DAT_PZ_PARAM_MASK;

/* Parameters of a public service point (dat_psp_query). */
typedef struct dat_psp_param {
    DAT_IA_HANDLE ia_handle;
    DAT_CONN_QUAL conn_qual;
    DAT_EVD_HANDLE evd_handle;
    DAT_PSP_FLAGS psp_flags;
} DAT_PSP_PARAM;

/* Fields of DAT_PSP_PARAM. */
typedef enum dat_psp_param_mask {
    DAT_PSP_FIELD_IA_HANDLE = 1,
    DAT_PSP_FIELD_CONN_QUAL = 2,
    DAT_PSP_FIELD_EVD_HANDLE = 4,
    DAT_PSP_FIELD_PSP_FLAGS = 8,
    DAT_PSP_FIELD_ALL = 0xf
} DAT_PSP_PARAM_MASK;

/* Parameters of a reserved service point (dat_rsp_query). */
typedef struct dat_rsp_param {
    DAT_IA_HANDLE ia_handle;
    DAT_CONN_QUAL conn_qual;
    DAT_EVD_HANDLE evd_handle;
    DAT_EP_HANDLE ep_handle;
} DAT_RSP_PARAM;

/* Fields of DAT_RSP_PARAM. */
typedef enum dat_rsp_param_mask {
    DAT_RSP_FIELD_IA_HANDLE = 1,
    DAT_RSP_FIELD_CONN_QUAL = 2,
    DAT_RSP_FIELD_EVD_HANDLE = 4,
    DAT_RSP_FIELD_EP_HANDLE = 8,
    DAT_RSP_FIELD_ALL = 0xf
} DAT_RSP_PARAM_MASK;

/* Parameters of a common service point (dat_csp_query). */
typedef struct dat_csp_param {
    DAT_IA_HANDLE ia_handle;
    DAT_COMM *comm;
    DAT_IA_ADDRESS_PTR address_ptr;
    DAT_EVD_HANDLE evd_handle;
} DAT_CSP_PARAM;

/* Fields of DAT_CSP_PARAM. */
typedef enum dat_csp_param_mask {
    DAT_CSP_FIELD_IA_HANDLE = 1,
    DAT_CSP_FIELD_COMM = 2,
    DAT_CSP_FIELD_IA_ADDRESS = 4,
    DAT_CSP_FIELD_EVD_HANDLE = 8,
    DAT_CSP_FIELD_ALL = 0xf
} DAT_CSP_PARAM_MASK;

/* Parameters of a connection request (dat_cr_query). */
typedef struct dat_cr_param {
    DAT_IA_ADDRESS_PTR remote_ia_address_ptr;
    DAT_PORT_QUAL remote_port_qual;
    DAT_COUNT private_data_size;   /* bytes; transports may pad them */
    DAT_PVOID private_data;        /* good until the request is answered */
    DAT_EP_HANDLE local_ep_handle; /* the endpoint that the request brings, or DAT_HANDLE_NULL */
} DAT_CR_PARAM;

/* Fields of DAT_CR_PARAM. */
typedef enum dat_cr_param_mask {
    DAT_CR_FIELD_REMOTE_IA_ADDRESS_PTR = 1,
    DAT_CR_FIELD_REMOTE_PORT_QUAL = 2,
    DAT_CR_FIELD_PRIVATE_DATA_SIZE = 4,
    DAT_CR_FIELD_PRIVATE_DATA = 8,
    DAT_CR_FIELD_LOCAL_EP_HANDLE = 0x10,
    DAT_CR_FIELD_ALL = 0x1f
} DAT_CR_PARAM_MASK;

/*
 * Events
 */

/* Outcome of a data transfer. */
typedef enum dat_dto_completion_status {
    DAT_DTO_SUCCESS = 0,
    DAT_DTO_ERR_FLUSHED = 1,
    DAT_DTO_ERR_LOCAL_LENGTH = 2,
    DAT_DTO_ERR_LOCAL_EP = 3,
    DAT_DTO_ERR_LOCAL_PROTECTION = 4,
    DAT_DTO_ERR_BAD_RESPONSE = 5,
    DAT_DTO_ERR_REMOTE_ACCESS = 6,
    DAT_DTO_ERR_REMOTE_RESPONDER = 7,
    DAT_DTO_ERR_TRANSPORT = 8,
    DAT_DTO_ERR_RECEIVER_NOT_READY = 9,
    DAT_DTO_ERR_PARTIAL_PACKET = 10,
    DAT_RMR_OPERATION_FAILED = 11,
    DAT_DTO_ERR_LOCAL_MM_ERROR = 12
} DAT_DTO_COMPLETION_STATUS;

/* Names of older versions. */
#define DAT_DTO_LENGTH_ERROR DAT_DTO_ERR_LOCAL_LENGTH
#define DAT_DTO_FAILURE DAT_DTO_ERR_FLUSHED

/* Status of an RMR bind: the codes of data transfers. */
typedef DAT_DTO_COMPLETION_STATUS DAT_RMR_BIND_COMPLETION_STATUS;

#define DAT_RMR_BIND_SUCCESS DAT_DTO_SUCCESS
#define DAT_RMR_BIND_FAILURE DAT_DTO_ERR_FLUSHED

/* Payload of DAT_DTO_COMPLETION_EVENT. */
typedef struct dat_dto_completion_event_data {
    DAT_EP_HANDLE ep_handle;
    DAT_DTO_COOKIE user_cookie; /* as posted */
    DAT_DTO_COMPLETION_STATUS status;
    DAT_SEG_LENGTH transfered_length; /* bytes */
    DAT_DTOS operation;
    DAT_RMR_CONTEXT rmr_context;
} DAT_DTO_COMPLETION_EVENT_DATA;

/* Payload of DAT_RMR_BIND_COMPLETION_EVENT. */
typedef struct dat_rmr_bind_completion_event_data {
    DAT_RMR_HANDLE rmr_handle;
    DAT_RMR_COOKIE user_cookie;
    DAT_DTO_COMPLETION_STATUS status;
} DAT_RMR_BIND_COMPLETION_EVENT_DATA;

/* Service point that a connection request arrived at. */
typedef union dat_sp_handle {
    DAT_RSP_HANDLE rsp_handle;
    DAT_PSP_HANDLE psp_handle;
    DAT_CSP_HANDLE csp_handle;
} DAT_SP_HANDLE;

/* Payload of DAT_CONNECTION_REQUEST_EVENT. */
typedef struct dat_cr_arrival_event_data {
    DAT_SP_HANDLE sp_handle;
    DAT_IA_ADDRESS_PTR local_ia_address_ptr;
    DAT_CONN_QUAL conn_qual;
    DAT_CR_HANDLE cr_handle; /* good until accept, reject or handoff */
    DAT_BOOLEAN truncate_flag;
} DAT_CR_ARRIVAL_EVENT_DATA;

/* Payload of the DAT_CONNECTION_EVENT_* events. */
typedef struct dat_connection_event_data {
    DAT_EP_HANDLE ep_handle;
    DAT_COUNT private_data_size; /* bytes; transports may pad them */
    DAT_PVOID private_data;      /* good until the endpoint is reset or freed */
} DAT_CONNECTION_EVENT_DATA;

/* Payload of the DAT_ASYNC_ERROR_* events. */
typedef struct dat_asynch_error_event_data {
    DAT_HANDLE dat_handle; /* the object */
    DAT_COUNT reason;      /* of the kind of object */
} DAT_ASYNCH_ERROR_EVENT_DATA;

/* Asynchronous error of an IA. */
typedef enum ia_async_error_reason {
    DAT_IA_CATASTROPHIC_ERROR = 0,
    DAT_IA_OTHER_ERROR = 1
} DAT_IA_ASYNC_ERROR_REASON;

/* Asynchronous error of an endpoint. */
typedef enum ep_async_error_reason {
    DAT_EP_TRANSFER_TO_ERROR = 0,
    DAT_EP_OTHER_ERROR = 1,
    DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT = 2
} DAT_EP_ASYNC_ERROR_REASON;

/* Asynchronous error of an EVD. */
typedef enum evd_async_error_reason {
    DAT_EVD_OVERFLOW_ERROR = 0,
    DAT_EVD_OTHER_ERROR = 1
} DAT_EVD_ASYNC_ERROR_REASON;

/* Asynchronous error of a shared receive queue. */
typedef enum srq_async_error_reason {
    DAT_SRQ_TRANSFER_TO_ERROR = 0,
    DAT_SRQ_OTHER_ERROR = 1,
    DAT_SRQ_LOW_WATERMARK_EVENT = 2
} DAT_SRQ_ASYNC_ERROR_REASON;

/* Asynchronous error of an LMR. */
typedef enum lmr_async_error_reason {
    DAT_LMR_OTHER_ERROR = 0
} DAT_LMR_ASYNC_ERROR_REASON;

/* Asynchronous error of an RMR. */
typedef enum rmr_async_error_reason {
    DAT_RMR_OTHER_ERROR = 0
} DAT_RMR_ASYNC_ERROR_REASON;

/* Asynchronous error of a protection zone. */
typedef enum pz_async_error_reason {
    DAT_PZ_OTHER_ERROR = 0
} DAT_PZ_ASYNC_ERROR_REASON;

/* Payload of DAT_SOFTWARE_EVENT. */
typedef struct dat_software_event_data {
    DAT_PVOID pointer; /* as posted */
} DAT_SOFTWARE_EVENT_DATA;

/* Kind of an event. */
typedef enum dat_event_number {
    DAT_DTO_COMPLETION_EVENT = 0x00001,
    DAT_RMR_BIND_COMPLETION_EVENT = 0x01001,
    DAT_CONNECTION_REQUEST_EVENT = 0x02001,
    DAT_CONNECTION_EVENT_ESTABLISHED = 0x04001,
    DAT_CONNECTION_EVENT_PEER_REJECTED = 0x04002,
    DAT_CONNECTION_EVENT_NON_PEER_REJECTED = 0x04003,
    DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR = 0x04004,
    DAT_CONNECTION_EVENT_DISCONNECTED = 0x04005,
    DAT_CONNECTION_EVENT_BROKEN = 0x04006,
    DAT_CONNECTION_EVENT_TIMED_OUT = 0x04007,
    DAT_CONNECTION_EVENT_UNREACHABLE = 0x04008,
    DAT_ASYNC_ERROR_EVD_OVERFLOW = 0x08001,
    DAT_ASYNC_ERROR_IA_CATASTROPHIC = 0x08002,
    DAT_ASYNC_ERROR_EP_BROKEN = 0x08003,
    DAT_ASYNC_ERROR_TIMED_OUT = 0x08004,
    DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR = 0x08005,
    DAT_HA_DOWN_TO_1 = 0x08101,
    DAT_HA_UP_TO_MULTI_PATH = 0x08102,
    DAT_SOFTWARE_EVENT = 0x10001,
    DAT_EXTENSION_EVENT = 0x20000,
    DAT_IB_EXTENSION_RANGE_BASE = 0x40000,
    DAT_IW_EXTENSION_RANGE_BASE = 0x80000
} DAT_EVENT_NUMBER;

/* Payload of an event; the event number says which. */
typedef union dat_event_data {
    DAT_DTO_COMPLETION_EVENT_DATA dto_completion_event_data;
    DAT_RMR_BIND_COMPLETION_EVENT_DATA rmr_completion_event_data;
    DAT_CR_ARRIVAL_EVENT_DATA cr_arrival_event_data;
    DAT_CONNECTION_EVENT_DATA connect_event_data;
    DAT_ASYNCH_ERROR_EVENT_DATA asynch_error_event_data;
    DAT_SOFTWARE_EVENT_DATA software_event_data;
} DAT_EVENT_DATA;

/* Event, as dequeued from an EVD. */
typedef struct dat_event {
    DAT_EVENT_NUMBER event_number;
    DAT_EVD_HANDLE evd_handle;
    DAT_EVENT_DATA event_data;
    DAT_UINT64 event_extension_data[8];
} DAT_EVENT;

/*
 * The registry
 */

/* Key of a provider in the registry. */
typedef struct dat_provider_info {
    char ia_name[DAT_NAME_MAX_LENGTH];
    DAT_UINT32 dapl_version_major;
    DAT_UINT32 dapl_version_minor;
    DAT_BOOLEAN is_thread_safe;
} DAT_PROVIDER_INFO;

/*
 * Functions, each of which has a manual page. They return DAT_SUCCESS or a code of dat_error.h.
 */

/* Opens an IA for the version of DAT that the program was compiled for. */
#define dat_ia_open(name, qlen, async_evd, ia)                                                    \
    dat_ia_openv((name), (qlen), (async_evd), (ia), DAT_VERSION_MAJOR, DAT_VERSION_MINOR,         \
                 DAT_THREADSAFE)

/*
 * Opens an IA; dat_ia_open supplies the last three arguments. *async_event_handle is
 * DAT_HANDLE_NULL for a new EVD of async_event_qlen events, an EVD that exists, or
 * DAT_EVD_ASYNC_EXISTS.
 */
DAT_EXPORT DAT_RETURN dat_ia_openv(
    IN const DAT_NAME_PTR name, IN DAT_COUNT async_event_qlen,
    INOUT DAT_EVD_HANDLE *async_event_handle, OUT DAT_IA_HANDLE *ia_handle,
    IN DAT_UINT32 dapl_major, IN DAT_UINT32 dapl_minor, IN DAT_BOOLEAN thread_safety);

/* Closes an IA. Graceful: refused while there are objects; abrupt: they are freed. */
DAT_EXPORT DAT_RETURN dat_ia_close(IN DAT_IA_HANDLE ia_handle, IN DAT_CLOSE_FLAGS ia_flags);

/*
 * Reads the attributes of an IA and of its provider. Pointers in the attributes are good until
 * the IA is closed. Each OUT argument may be NULL if its mask is 0.
 */
DAT_EXPORT DAT_RETURN dat_ia_query(
    IN DAT_IA_HANDLE ia_handle, OUT DAT_EVD_HANDLE *async_evd_handle,
    IN DAT_IA_ATTR_MASK ia_attr_mask, OUT DAT_IA_ATTR *ia_attr,
    IN DAT_PROVIDER_ATTR_MASK provider_attr_mask, OUT DAT_PROVIDER_ATTR *provider_attr);

/* Reads the context of an object. It is 0 if none was set. */
DAT_EXPORT DAT_RETURN dat_get_consumer_context(
    IN DAT_HANDLE dat_handle, OUT DAT_CONTEXT *context);

/* Tells the kind of an object. */
DAT_EXPORT DAT_RETURN dat_get_handle_type(IN DAT_HANDLE dat_handle, OUT DAT_HANDLE_TYPE *type);

/* Sets the context of an object. The library does not look at it. */
DAT_EXPORT DAT_RETURN dat_set_consumer_context(
    IN DAT_HANDLE dat_handle, IN DAT_CONTEXT context);

/*
 * Accepts a connection request. The call ends the request, unless it is refused. ep_handle is
 * DAT_HANDLE_NULL where the request brings its endpoint. The private data are copied.
 */
DAT_EXPORT DAT_RETURN dat_cr_accept(
    IN DAT_CR_HANDLE cr_handle, IN DAT_EP_HANDLE ep_handle, IN DAT_COUNT private_data_size,
    IN const DAT_PVOID private_data);

/*
 * Passes a connection request to another qualifier. The handle is good for nothing afterwards,
 * unless the call fails.
 */
DAT_EXPORT DAT_RETURN dat_cr_handoff(IN DAT_CR_HANDLE cr_handle, IN DAT_CONN_QUAL handoff);

/*
 * Reads the parameters of a connection request. Private data are good until the request is
 * answered.
 */
DAT_EXPORT DAT_RETURN dat_cr_query(
    IN DAT_CR_HANDLE cr_handle, IN DAT_CR_PARAM_MASK cr_param_mask, OUT DAT_CR_PARAM *cr_param);

/* Rejects a connection request. The call ends the request. */
DAT_EXPORT DAT_RETURN dat_cr_reject(
    IN DAT_CR_HANDLE cr_handle, IN DAT_COUNT private_data_size, IN const DAT_PVOID private_data);

/* Takes the next event, without waiting. DAT_QUEUE_EMPTY comes without the class of errors. */
DAT_EXPORT DAT_RETURN dat_evd_dequeue(IN DAT_EVD_HANDLE evd_handle, OUT DAT_EVENT *event);

/* Frees an EVD that nothing feeds. Events that are in it are lost. */
DAT_EXPORT DAT_RETURN dat_evd_free(IN DAT_EVD_HANDLE evd_handle);

/* Posts a software event. The pointer of the event is passed on as it is. */
DAT_EXPORT DAT_RETURN dat_evd_post_se(IN DAT_EVD_HANDLE evd_handle, IN const DAT_EVENT *event);

/* Reads the parameters of an EVD. */
DAT_EXPORT DAT_RETURN dat_evd_query(
    IN DAT_EVD_HANDLE evd_handle, IN DAT_EVD_PARAM_MASK evd_param_mask,
    OUT DAT_EVD_PARAM *evd_param);

/* Changes how many events an EVD holds. */
DAT_EXPORT DAT_RETURN dat_evd_resize(IN DAT_EVD_HANDLE evd_handle, IN DAT_COUNT evd_min_qlen);

/* Connects to a common service point. Timeout and private data as in dat_ep_connect. */
DAT_EXPORT DAT_RETURN dat_ep_common_connect(
    IN DAT_EP_HANDLE ep_handle, IN DAT_IA_ADDRESS_PTR remote_ia_address,
    IN DAT_TIMEOUT timeout, IN DAT_COUNT private_data_size, IN const DAT_PVOID private_data);

/*
 * Connects to a service point. The port in the address does not count. Timeout in microseconds,
 * at least 1, or DAT_TIMEOUT_INFINITE. The private data are copied.
 */
DAT_EXPORT DAT_RETURN dat_ep_connect(
    IN DAT_EP_HANDLE ep_handle, IN DAT_IA_ADDRESS_PTR remote_ia_address,
    IN DAT_CONN_QUAL remote_conn_qual, IN DAT_TIMEOUT timeout, IN DAT_COUNT private_data_size,
    IN const DAT_PVOID private_data, IN DAT_QOS quality_of_service,
    IN DAT_CONNECT_FLAGS connect_flags);

/*
 * Makes an endpoint. The zone and the EVD of connections may be DAT_HANDLE_NULL until
 * dat_ep_modify; without an EVD completions are not reported. The attributes are minimums; NULL:
 * the provider chooses them.
 */
DAT_EXPORT DAT_RETURN dat_ep_create(
    IN DAT_IA_HANDLE ia_handle, IN DAT_PZ_HANDLE pz_handle,
    IN DAT_EVD_HANDLE recv_completion_evd_handle,
    IN DAT_EVD_HANDLE request_completion_evd_handle, IN DAT_EVD_HANDLE connect_evd_handle,
    IN const DAT_EP_ATTR *ep_attributes, OUT DAT_EP_HANDLE *ep_handle);

/*
 * Makes an endpoint that takes its receives from a shared queue. The zone and the EVDs as in
 * dat_ep_create; the attributes may not be NULL.
 */
DAT_EXPORT DAT_RETURN dat_ep_create_with_srq(
    IN DAT_IA_HANDLE ia_handle, IN DAT_PZ_HANDLE pz_handle, IN DAT_EVD_HANDLE recv_evd_handle,
    IN DAT_EVD_HANDLE request_evd_handle, IN DAT_EVD_HANDLE connect_evd_handle,
    IN DAT_SRQ_HANDLE srq_handle, IN const DAT_EP_ATTR *ep_attributes,
    OUT DAT_EP_HANDLE *ep_handle);

/*
 * Ends a connection or its establishment. Graceful: requests are done first; abrupt: everything
 * is flushed.
 */
DAT_EXPORT DAT_RETURN dat_ep_disconnect(
    IN DAT_EP_HANDLE ep_handle, IN DAT_CLOSE_FLAGS close_flags);

/* Connects to where another endpoint is connected. */
DAT_EXPORT DAT_RETURN dat_ep_dup_connect(
    IN DAT_EP_HANDLE ep_handle, IN DAT_EP_HANDLE ep_dup_handle, IN DAT_TIMEOUT timeout,
    IN DAT_COUNT private_data_size, IN const DAT_PVOID private_data,
    IN DAT_QOS quality_of_service);

/* Frees an endpoint. Its events are taken out of its EVDs. */
DAT_EXPORT DAT_RETURN dat_ep_free(IN DAT_EP_HANDLE ep_handle);

/* Reads the state of an endpoint and whether it is idle. Each result may be NULL. */
DAT_EXPORT DAT_RETURN dat_ep_get_status(
    IN DAT_EP_HANDLE ep_handle, OUT DAT_EP_STATE *ep_state, OUT DAT_BOOLEAN *recv_idle,
    OUT DAT_BOOLEAN *request_idle);

/*
 * Changes parameters of an endpoint. The mask says which members of ep_param count; all of them
 * change, or none.
 */
DAT_EXPORT DAT_RETURN dat_ep_modify(
    IN DAT_EP_HANDLE ep_handle, IN DAT_EP_PARAM_MASK ep_param_mask,
    IN const DAT_EP_PARAM *ep_param);

/* Posts an RDMA read into LMRs. All of remote_iov is read; the local segments may hold more. */
DAT_EXPORT DAT_RETURN dat_ep_post_rdma_read(
    IN DAT_EP_HANDLE ep_handle, IN DAT_COUNT num_segments, IN DAT_LMR_TRIPLET *local_iov,
    IN DAT_DTO_COOKIE user_cookie, IN const DAT_RMR_TRIPLET *remote_iov,
    IN DAT_COMPLETION_FLAGS completion_flags);

/* Posts an RDMA read into an RMR. */
DAT_EXPORT DAT_RETURN dat_ep_post_rdma_read_to_rmr(
    IN DAT_EP_HANDLE ep_handle, IN const DAT_RMR_TRIPLET *local_iov,
    IN DAT_DTO_COOKIE user_cookie, IN const DAT_RMR_TRIPLET *remote_iov,
    IN DAT_COMPLETION_FLAGS completion_flags);

/* Posts an RDMA write. remote_iov may be longer than the data. */
DAT_EXPORT DAT_RETURN dat_ep_post_rdma_write(
    IN DAT_EP_HANDLE ep_handle, IN DAT_COUNT num_segments, IN DAT_LMR_TRIPLET *local_iov,
    IN DAT_DTO_COOKIE user_cookie, IN const DAT_RMR_TRIPLET *remote_iov,
    IN DAT_COMPLETION_FLAGS completion_flags);

/*
 * Posts a receive. The memory is not the caller's until the completion; the list is as soon as
 * the call returns.
 */
DAT_EXPORT DAT_RETURN dat_ep_post_recv(
    IN DAT_EP_HANDLE ep_handle, IN DAT_COUNT num_segments, IN DAT_LMR_TRIPLET *local_iov,
    IN DAT_DTO_COOKIE user_cookie, IN DAT_COMPLETION_FLAGS completion_flags);

/*
 * Posts a send. The memory must not change until the completion; the list is the caller's as soon
 * as the call returns.
 */
DAT_EXPORT DAT_RETURN dat_ep_post_send(
    IN DAT_EP_HANDLE ep_handle, IN DAT_COUNT num_segments, IN DAT_LMR_TRIPLET *local_iov,
    IN DAT_DTO_COOKIE user_cookie, IN DAT_COMPLETION_FLAGS completion_flags);

/* Posts a send that invalidates an RMR of the peer. */
DAT_EXPORT DAT_RETURN dat_ep_post_send_with_invalidate(
    IN DAT_EP_HANDLE ep_handle, IN DAT_COUNT num_segments, IN DAT_LMR_TRIPLET *local_iov,
    IN DAT_DTO_COOKIE user_cookie, IN DAT_COMPLETION_FLAGS completion_flags,
    IN DAT_BOOLEAN invalidate_flag, IN DAT_RMR_CONTEXT rmr_context);

/* Reads the parameters of an endpoint. Pointers are to memory of the library. */
DAT_EXPORT DAT_RETURN dat_ep_query(
    IN DAT_EP_HANDLE ep_handle, IN DAT_EP_PARAM_MASK ep_param_mask, OUT DAT_EP_PARAM *ep_param);

/*
 * Counts the receive buffers that an endpoint took from its shared queue. Each count may be NULL.
 */
DAT_EXPORT DAT_RETURN dat_ep_recv_query(
    IN DAT_EP_HANDLE ep_handle, OUT DAT_COUNT *nbufs_allocated, OUT DAT_COUNT *bufs_alloc_span);

/*
 * Makes a disconnected endpoint connectable again. Events of the old connection that were not read
 * may be lost.
 */
DAT_EXPORT DAT_RETURN dat_ep_reset(IN DAT_EP_HANDLE ep_handle);

/*
 * Bounds the receive buffers that an endpoint takes from its shared queue.
 * DAT_WATERMARK_INFINITE: no mark.
 */
DAT_EXPORT DAT_RETURN dat_ep_set_watermark(
    IN DAT_EP_HANDLE ep_handle, IN DAT_COUNT soft_high_watermark,
    IN DAT_COUNT hard_high_watermark);

/* Deregisters memory. No window may be bound to it. */
DAT_EXPORT DAT_RETURN dat_lmr_free(IN DAT_LMR_HANDLE lmr_handle);

/* Makes local writes visible to RDMA reads of the peer. */
DAT_EXPORT DAT_RETURN dat_lmr_sync_rdma_read(
    IN DAT_IA_HANDLE ia_handle, IN const DAT_LMR_TRIPLET *local_segments,
    IN DAT_VLEN num_segments);

/* Makes RDMA writes of the peer visible locally. */
DAT_EXPORT DAT_RETURN dat_lmr_sync_rdma_write(
    IN DAT_IA_HANDLE ia_handle, IN const DAT_LMR_TRIPLET *local_segments,
    IN DAT_VLEN num_segments);

/*
 * Opens a range of an LMR to the peer, or closes it. A length of 0 closes the window. context
 * gets the new key and may be NULL.
 */
DAT_EXPORT DAT_RETURN dat_rmr_bind(
    IN DAT_RMR_HANDLE rmr_handle, IN DAT_LMR_HANDLE lmr_handle,
    IN const DAT_LMR_TRIPLET *lmr_triplet, IN DAT_MEM_PRIV_FLAGS mem_priv,
    IN DAT_VA_TYPE va_type, IN DAT_EP_HANDLE ep_handle, IN DAT_RMR_COOKIE user_cookie,
    IN DAT_COMPLETION_FLAGS completion_flags, OUT DAT_RMR_CONTEXT *context);

/* Makes an RMR. */
DAT_EXPORT DAT_RETURN dat_rmr_create(
    IN DAT_PZ_HANDLE pz_handle, OUT DAT_RMR_HANDLE *rmr_handle);

/* Makes an RMR that one endpoint can use. */
DAT_EXPORT DAT_RETURN dat_rmr_create_for_ep(
    IN DAT_PZ_HANDLE pz_handle, OUT DAT_RMR_HANDLE *rmr_handle);

/* Frees an RMR. It is closed first. */
DAT_EXPORT DAT_RETURN dat_rmr_free(IN DAT_RMR_HANDLE rmr_handle);

/* Reads the parameters of an RMR. */
DAT_EXPORT DAT_RETURN dat_rmr_query(
    IN DAT_RMR_HANDLE rmr_handle, IN DAT_RMR_PARAM_MASK rmr_param_mask,
    OUT DAT_RMR_PARAM *rmr_param);

/* Listens on a common service point. Port 0 in the address: one that is free. */
DAT_EXPORT DAT_RETURN dat_csp_create(
    IN DAT_IA_HANDLE ia_handle, IN DAT_COMM *comm, IN DAT_IA_ADDRESS_PTR address,
    IN DAT_EVD_HANDLE evd_handle, OUT DAT_CSP_HANDLE *csp_handle);

/* Stops listening on a common service point. */
DAT_EXPORT DAT_RETURN dat_csp_free(IN DAT_CSP_HANDLE csp_handle);

/* Reads the parameters of a common service point. */
DAT_EXPORT DAT_RETURN dat_csp_query(
    IN DAT_CSP_HANDLE csp_handle, IN DAT_CSP_PARAM_MASK csp_param_mask,
    OUT DAT_CSP_PARAM *csp_param);

/*
 * Listens on a connection qualifier. evd_handle is for DAT_EVD_CR_FLAG; its queue is the backlog.
 * conn_qual is not 0.
 */
DAT_EXPORT DAT_RETURN dat_psp_create(
    IN DAT_IA_HANDLE ia_handle, IN DAT_CONN_QUAL conn_qual, IN DAT_EVD_HANDLE evd_handle,
    IN DAT_PSP_FLAGS psp_flags, OUT DAT_PSP_HANDLE *psp_handle);

/* Listens on a connection qualifier that the provider picks. */
DAT_EXPORT DAT_RETURN dat_psp_create_any(
    IN DAT_IA_HANDLE ia_handle, OUT DAT_CONN_QUAL *conn_qual, IN DAT_EVD_HANDLE evd_handle,
    IN DAT_PSP_FLAGS psp_flags, OUT DAT_PSP_HANDLE *psp_handle);

/* Stops listening. Requests that have arrived stay. */
DAT_EXPORT DAT_RETURN dat_psp_free(IN DAT_PSP_HANDLE psp_handle);

/* Reads the parameters of a public service point. */
DAT_EXPORT DAT_RETURN dat_psp_query(
    IN DAT_PSP_HANDLE psp_handle, IN DAT_PSP_PARAM_MASK psp_param_mask,
    OUT DAT_PSP_PARAM *psp_param);

/*
 * Listens for one connection, for a given endpoint. ep_handle may be DAT_HANDLE_NULL: the
 * provider makes the endpoint.
 */
DAT_EXPORT DAT_RETURN dat_rsp_create(
    IN DAT_IA_HANDLE ia_handle, IN DAT_CONN_QUAL conn_qual, IN DAT_EP_HANDLE ep_handle,
    IN DAT_EVD_HANDLE evd_handle, OUT DAT_RSP_HANDLE *rsp_handle);

/* Frees a reserved service point. */
DAT_EXPORT DAT_RETURN dat_rsp_free(IN DAT_RSP_HANDLE rsp_handle);

/* Reads the parameters of a reserved service point. */
DAT_EXPORT DAT_RETURN dat_rsp_query(
    IN DAT_RSP_HANDLE rsp_handle, IN DAT_RSP_PARAM_MASK rsp_param_mask,
    OUT DAT_RSP_PARAM *rsp_param);

/* Makes a protection zone. */
DAT_EXPORT DAT_RETURN dat_pz_create(IN DAT_IA_HANDLE ia_handle, OUT DAT_PZ_HANDLE *pz_handle);

/* Frees a protection zone that nothing uses. */
DAT_EXPORT DAT_RETURN dat_pz_free(IN DAT_PZ_HANDLE pz_handle);

/* Reads the parameters of a protection zone. */
DAT_EXPORT DAT_RETURN dat_pz_query(
    IN DAT_PZ_HANDLE pz_handle, IN DAT_PZ_PARAM_MASK pz_param_mask, OUT DAT_PZ_PARAM *pz_param);

/* Makes a shared receive queue. */
DAT_EXPORT DAT_RETURN dat_srq_create(
    IN DAT_IA_HANDLE ia_handle, IN DAT_PZ_HANDLE pz_handle, IN DAT_SRQ_ATTR *srq_attr,
    OUT DAT_SRQ_HANDLE *srq_handle);

/* Frees a shared receive queue that no endpoint uses. */
DAT_EXPORT DAT_RETURN dat_srq_free(IN DAT_SRQ_HANDLE srq_handle);

/* Posts a receive to a shared queue. The memory is not the caller's until the completion. */
DAT_EXPORT DAT_RETURN dat_srq_post_recv(
    IN DAT_SRQ_HANDLE srq_handle, IN DAT_COUNT num_segments, IN DAT_LMR_TRIPLET *local_iov,
    IN DAT_DTO_COOKIE user_cookie);

/* Reads the parameters of a shared receive queue. */
DAT_EXPORT DAT_RETURN dat_srq_query(
    IN DAT_SRQ_HANDLE srq_handle, IN DAT_SRQ_PARAM_MASK srq_param_mask,
    OUT DAT_SRQ_PARAM *srq_param);

/* Changes how many receives a shared queue holds. */
DAT_EXPORT DAT_RETURN dat_srq_resize(
    IN DAT_SRQ_HANDLE srq_handle, IN DAT_COUNT srq_max_recv_dto);

/* Sets the low watermark of a shared receive queue. An event comes once for each call. */
DAT_EXPORT DAT_RETURN dat_srq_set_lw(IN DAT_SRQ_HANDLE srq_handle, IN DAT_COUNT low_watermark);

/* Runs an extended operation; the dat_ib_* macros call it. */
DAT_EXPORT DAT_RETURN dat_extension_op(IN DAT_HANDLE handle, IN DAT_EXTENDED_OP ext_op, ...);

/*
 * Lists the IAs that can be opened. The list has max_to_return pointers to memory of the caller.
 */
DAT_EXPORT DAT_RETURN dat_registry_list_providers(
    IN DAT_COUNT max_to_return, OUT DAT_COUNT *entries_returned,
    OUT DAT_PROVIDER_INFO **dat_provider_list);

/* Names the type and subtype of a return code. Either message may be NULL. */
DAT_EXPORT DAT_RETURN dat_strerror(
    IN DAT_RETURN value, OUT const char **major_message, OUT const char **minor_message);

#ifdef __cplusplus
}
#endif

#endif

#endif
