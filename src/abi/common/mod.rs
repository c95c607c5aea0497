//! What DAT 1.2 and DAT 2.0 have in common: types of equal layout, constants of equal value.

#![allow(non_camel_case_types)] // the names are those of the C headers
#![allow(missing_docs)] // fields and constants are described by the man pages under the same names

mod consts;
mod func;
mod masks;
mod status;

use std::ffi::{c_char, c_int, c_ulonglong, c_void};

pub use consts::*;
pub use func::*;
pub use masks::*;
pub use status::*;

/// Unsigned 32-bit integer.
pub type DAT_UINT32 = u32;
/// Unsigned 64-bit integer.
pub type DAT_UINT64 = u64;
/// The widest unsigned integer of the platform.
pub type DAT_UVERYLONG = c_ulonglong;
/// Untyped pointer.
pub type DAT_PVOID = *mut c_void;
/// Signed count of things.
pub type DAT_COUNT = c_int;
/// Physical address, unused by uDAPL consumers.
pub type DAT_PADDR = DAT_UINT64;
/// Set of `DAT_PROVIDER_FIELD_*`.
pub type DAT_PROVIDER_ATTR_MASK = DAT_UINT64;
/// Return code: class in the two top bits, type in 0x3fff0000, subtype in 0xffff.
pub type DAT_RETURN = DAT_UINT32;
/// NUL-terminated IA name.
pub type DAT_NAME_PTR = *mut c_char;
/// Timeout in microseconds.
pub type DAT_TIMEOUT = DAT_UINT32;
/// Handle of any DAT object.
pub type DAT_HANDLE = DAT_PVOID;
/// Connection request.
pub type DAT_CR_HANDLE = DAT_HANDLE;
/// Endpoint.
pub type DAT_EP_HANDLE = DAT_HANDLE;
/// Event dispatcher.
pub type DAT_EVD_HANDLE = DAT_HANDLE;
/// Interface adapter.
pub type DAT_IA_HANDLE = DAT_HANDLE;
/// Local memory region.
pub type DAT_LMR_HANDLE = DAT_HANDLE;
/// Public service point.
pub type DAT_PSP_HANDLE = DAT_HANDLE;
/// Protection zone.
pub type DAT_PZ_HANDLE = DAT_HANDLE;
/// Remote memory region.
pub type DAT_RMR_HANDLE = DAT_HANDLE;
/// Reserved service point.
pub type DAT_RSP_HANDLE = DAT_HANDLE;
/// Shared receive queue.
pub type DAT_SRQ_HANDLE = DAT_HANDLE;
/// Address of an IA.
pub type DAT_IA_ADDRESS_PTR = *mut DAT_SOCK_ADDR;
/// Connection qualifier of a service point.
pub type DAT_CONN_QUAL = DAT_UINT64;
/// Port of one end of a connection.
pub type DAT_PORT_QUAL = DAT_UINT64;
/// Local access key of an LMR.
pub type DAT_LMR_CONTEXT = DAT_UINT32;
/// Remote access key of an LMR or RMR.
pub type DAT_RMR_CONTEXT = DAT_UINT32;
/// Length in bytes.
pub type DAT_VLEN = DAT_UINT64;
/// Virtual address.
pub type DAT_VADDR = DAT_UINT64;
/// Set of `DAT_IA_FIELD_*`.
pub type DAT_IA_ATTR_MASK = DAT_UINT64;
/// Set of `DAT_EP_FIELD_*`.
pub type DAT_EP_PARAM_MASK = DAT_UINT64;
/// Consumer notification object.
pub type DAT_CNO_HANDLE = DAT_HANDLE;
/// Identifier of shared memory, chosen by the processes that share it.
pub type DAT_LMR_COOKIE = *mut [c_char; DAT_LMR_COOKIE_SIZE];
/// Socket address, either family.
pub type DAT_SOCK_ADDR = libc::sockaddr;
/// IPv6 socket address.
pub type DAT_SOCK_ADDR6 = libc::sockaddr_in6;
/// Cookie of a data transfer, returned in its completion.
pub type DAT_DTO_COOKIE = DAT_CONTEXT;
/// Cookie of an RMR bind, returned in its completion.
pub type DAT_RMR_COOKIE = DAT_CONTEXT;
/// Status of an RMR bind: the codes of data transfers.
pub type DAT_RMR_BIND_COMPLETION_STATUS = DAT_DTO_COMPLETION_STATUS;

/// Attribute of a provider, IA or endpoint as a pair of strings.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_NAMED_ATTR {
    pub name: *const c_char,
    pub value: *const c_char,
}

/// Eight bytes that belong to the consumer.
#[repr(C)]
#[derive(Clone, Copy)]
pub union DAT_CONTEXT {
    pub as_ptr: DAT_PVOID,
    pub as_64: DAT_UINT64,
    pub as_index: DAT_UVERYLONG,
}

/// Parameters of an EVD (`dat_evd_query`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_EVD_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub evd_qlen: DAT_COUNT,
    pub evd_state: DAT_EVD_STATE,
    pub cno_handle: DAT_CNO_HANDLE,
    pub evd_flags: DAT_EVD_FLAGS,
}

/// Attributes of a shared receive queue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_SRQ_ATTR {
    pub max_recv_dtos: DAT_COUNT,
    pub max_recv_iov: DAT_COUNT,
    pub low_watermark: DAT_COUNT,
}

/// Parameters of a shared receive queue (`dat_srq_query`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_SRQ_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub srq_state: DAT_SRQ_STATE,
    pub pz_handle: DAT_PZ_HANDLE,
    pub max_recv_dtos: DAT_COUNT,
    pub max_recv_iov: DAT_COUNT,
    pub low_watermark: DAT_COUNT,
    pub available_dto_count: DAT_COUNT,
    pub outstanding_dto_count: DAT_COUNT,
}

/// Parameters of a protection zone (`dat_pz_query`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_PZ_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
}

/// Parameters of a public service point (`dat_psp_query`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_PSP_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub conn_qual: DAT_CONN_QUAL,
    pub evd_handle: DAT_EVD_HANDLE,
    pub psp_flags: DAT_PSP_FLAGS,
}

/// Parameters of a reserved service point (`dat_rsp_query`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_RSP_PARAM {
    pub ia_handle: DAT_IA_HANDLE,
    pub conn_qual: DAT_CONN_QUAL,
    pub evd_handle: DAT_EVD_HANDLE,
    pub ep_handle: DAT_EP_HANDLE,
}

/// Parameters of a connection request (`dat_cr_query`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_CR_PARAM {
    pub remote_ia_address_ptr: DAT_IA_ADDRESS_PTR,
    pub remote_port_qual: DAT_PORT_QUAL,
    pub private_data_size: DAT_COUNT,
    pub private_data: DAT_PVOID,
    pub local_ep_handle: DAT_EP_HANDLE,
}

/// Payload of `DAT_RMR_BIND_COMPLETION_EVENT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DAT_RMR_BIND_COMPLETION_EVENT_DATA {
    pub rmr_handle: DAT_RMR_HANDLE,
    pub user_cookie: DAT_RMR_COOKIE,
    pub status: DAT_DTO_COMPLETION_STATUS,
}

/// Payload of the `DAT_CONNECTION_EVENT_*` events.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_CONNECTION_EVENT_DATA {
    pub ep_handle: DAT_EP_HANDLE,
    pub private_data_size: DAT_COUNT,
    pub private_data: DAT_PVOID,
}

/// Payload of the `DAT_ASYNC_ERROR_*` events.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_ASYNCH_ERROR_EVENT_DATA {
    pub dat_handle: DAT_HANDLE,
    pub reason: DAT_COUNT,
}

/// Payload of `DAT_SOFTWARE_EVENT`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_SOFTWARE_EVENT_DATA {
    pub pointer: DAT_PVOID,
}

/// Key of a provider in the registry.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_PROVIDER_INFO {
    pub ia_name: [c_char; DAT_NAME_MAX_LENGTH],
    pub dapl_version_major: DAT_UINT32,
    pub dapl_version_minor: DAT_UINT32,
    pub is_thread_safe: DAT_BOOLEAN,
}

/// Callback of a CNO.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_OS_WAIT_PROXY_AGENT {
    pub instance_data: DAT_PVOID,
    pub proxy_agent_func: DAT_AGENT_FUNC,
}

/// Shared memory to register.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_SHARED_MEMORY {
    pub virtual_address: DAT_PVOID,
    pub shared_memory_id: DAT_LMR_COOKIE,
}

/// Memory to register; the memory type determines the valid member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union DAT_REGION_DESCRIPTION {
    pub for_va: DAT_PVOID,
    pub for_lmr_handle: DAT_LMR_HANDLE,
    pub for_shared_memory: DAT_SHARED_MEMORY,
}
