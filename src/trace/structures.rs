//! The structures of the API as tables of their fields.

use crate::abi::{v1, v2};
use crate::error::Version;

/// A field of a structure.
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its type; where that says too little, what the field holds: `TEXT` for an array of characters,
    /// `MATRIX` for one of truth values, `BITS` for a number of flags, `POINTER`.
    pub kind: &'static str,
    /// Where the field begins, in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
}

/// The size of a field, in bytes.
const fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// The fields of a structure, in their order.
macro_rules! fields {
    ($version:ident::$structure:ident: $($name:ident: $kind:ident),* $(,)?) => {{
        const FIELDS: &[Field] = &[$(Field {
            name: stringify!($name),
            kind: stringify!($kind),
            offset: std::mem::offset_of!($version::$structure, $name),
            size: size_of_field::<$version::$structure, _>(|structure| &structure.$name),
        }),*];
        FIELDS
    }};
}

/// The fields of the structure of this name. In each structure that a mask goes with, field number n
/// is that of bit n; `DAT_EP_ATTR` inside of `DAT_EP_PARAM` begins with bit 12.
#[rustfmt::skip]
pub fn of(version: Version, kind: &str) -> Option<&'static [Field]> {
    Some(match (version, kind) {
        (_, "DAT_EVD_PARAM") => fields![v2::DAT_EVD_PARAM:
            ia_handle: DAT_IA_HANDLE, evd_qlen: DAT_COUNT, evd_state: DAT_EVD_STATE,
            cno_handle: DAT_CNO_HANDLE, evd_flags: DAT_EVD_FLAGS
        ],
        (_, "DAT_SRQ_ATTR") => fields![v2::DAT_SRQ_ATTR:
            max_recv_dtos: DAT_COUNT, max_recv_iov: DAT_COUNT, low_watermark: DAT_COUNT
        ],
        (_, "DAT_SRQ_PARAM") => fields![v2::DAT_SRQ_PARAM:
            ia_handle: DAT_IA_HANDLE, srq_state: DAT_SRQ_STATE, pz_handle: DAT_PZ_HANDLE,
            max_recv_dtos: DAT_COUNT, max_recv_iov: DAT_COUNT, low_watermark: DAT_COUNT,
            available_dto_count: DAT_COUNT, outstanding_dto_count: DAT_COUNT
        ],
        (_, "DAT_PZ_PARAM") => fields![v2::DAT_PZ_PARAM:
            ia_handle: DAT_IA_HANDLE
        ],
        (_, "DAT_PSP_PARAM") => fields![v2::DAT_PSP_PARAM:
            ia_handle: DAT_IA_HANDLE, conn_qual: DAT_CONN_QUAL, evd_handle: DAT_EVD_HANDLE,
            psp_flags: DAT_PSP_FLAGS
        ],
        (_, "DAT_RSP_PARAM") => fields![v2::DAT_RSP_PARAM:
            ia_handle: DAT_IA_HANDLE, conn_qual: DAT_CONN_QUAL, evd_handle: DAT_EVD_HANDLE,
            ep_handle: DAT_EP_HANDLE
        ],
        (_, "DAT_CR_PARAM") => fields![v2::DAT_CR_PARAM:
            remote_ia_address_ptr: DAT_IA_ADDRESS_PTR, remote_port_qual: DAT_PORT_QUAL,
            private_data_size: DAT_COUNT, private_data: DAT_PVOID, local_ep_handle: DAT_EP_HANDLE
        ],
        (_, "DAT_PROVIDER_INFO") => fields![v2::DAT_PROVIDER_INFO:
            ia_name: TEXT, dapl_version_major: DAT_UINT32, dapl_version_minor: DAT_UINT32,
            is_thread_safe: DAT_BOOLEAN
        ],
        (_, "DAT_RMR_BIND_COMPLETION_EVENT_DATA") => fields![v2::DAT_RMR_BIND_COMPLETION_EVENT_DATA:
            rmr_handle: DAT_RMR_HANDLE, user_cookie: DAT_RMR_COOKIE,
            status: DAT_DTO_COMPLETION_STATUS
        ],
        (_, "DAT_CONNECTION_EVENT_DATA") => fields![v2::DAT_CONNECTION_EVENT_DATA:
            ep_handle: DAT_EP_HANDLE, private_data_size: DAT_COUNT, private_data: DAT_PVOID
        ],
        (_, "DAT_ASYNCH_ERROR_EVENT_DATA") => fields![v2::DAT_ASYNCH_ERROR_EVENT_DATA:
            dat_handle: DAT_HANDLE, reason: DAT_COUNT
        ],
        (_, "DAT_SOFTWARE_EVENT_DATA") => fields![v2::DAT_SOFTWARE_EVENT_DATA:
            pointer: DAT_PVOID
        ],
        (Version::V1, "DAT_PROVIDER_ATTR") => fields![v1::DAT_PROVIDER_ATTR:
            provider_name: TEXT, provider_version_major: DAT_UINT32,
            provider_version_minor: DAT_UINT32, dapl_version_major: DAT_UINT32,
            dapl_version_minor: DAT_UINT32, lmr_mem_types_supported: BITS,
            iov_ownership_on_return: DAT_IOV_OWNERSHIP, dat_qos_supported: DAT_QOS,
            completion_flags_supported: DAT_COMPLETION_FLAGS, is_thread_safe: DAT_BOOLEAN,
            max_private_data_size: DAT_COUNT, supports_multipath: DAT_BOOLEAN,
            ep_creator: DAT_EP_CREATOR_FOR_PSP, pz_support: DAT_PZ_SUPPORT,
            optimal_buffer_alignment: DAT_UINT32, evd_stream_merging_supported: MATRIX,
            srq_supported: DAT_BOOLEAN, srq_watermarks_supported: DAT_COUNT,
            srq_ep_pz_difference_supported: DAT_BOOLEAN, srq_info_supported: DAT_COUNT,
            ep_recv_info_supported: DAT_COUNT, lmr_sync_req: DAT_BOOLEAN,
            dto_async_return_guaranteed: DAT_BOOLEAN, rdma_write_for_rdma_read_req: DAT_BOOLEAN,
            num_provider_specific_attr: DAT_COUNT, provider_specific_attr: POINTER
        ],
        (Version::V2, "DAT_PROVIDER_ATTR") => fields![v2::DAT_PROVIDER_ATTR:
            provider_name: TEXT, provider_version_major: DAT_UINT32,
            provider_version_minor: DAT_UINT32, dapl_version_major: DAT_UINT32,
            dapl_version_minor: DAT_UINT32, lmr_mem_types_supported: BITS,
            iov_ownership_on_return: DAT_IOV_OWNERSHIP, dat_qos_supported: DAT_QOS,
            completion_flags_supported: DAT_COMPLETION_FLAGS, is_thread_safe: DAT_BOOLEAN,
            max_private_data_size: DAT_COUNT, supports_multipath: DAT_BOOLEAN,
            ep_creator: DAT_EP_CREATOR_FOR_PSP, pz_support: DAT_PZ_SUPPORT,
            optimal_buffer_alignment: DAT_UINT32, evd_stream_merging_supported: MATRIX,
            srq_supported: DAT_BOOLEAN, srq_watermarks_supported: DAT_COUNT,
            srq_ep_pz_difference_supported: DAT_BOOLEAN, srq_info_supported: DAT_COUNT,
            ep_recv_info_supported: DAT_COUNT, lmr_sync_req: DAT_BOOLEAN,
            dto_async_return_guaranteed: DAT_BOOLEAN, rdma_write_for_rdma_read_req: DAT_BOOLEAN,
            rdma_read_lmr_rmr_context_exposure: DAT_BOOLEAN, rmr_scope_supported: DAT_RMR_SCOPE,
            is_signal_safe: DAT_BOOLEAN, ha_supported: DAT_BOOLEAN, ha_loadbalancing: DAT_UINT32,
            num_provider_specific_attr: DAT_COUNT, provider_specific_attr: POINTER
        ],
        (Version::V1, "DAT_LMR_PARAM") => fields![v1::DAT_LMR_PARAM:
            ia_handle: DAT_IA_HANDLE, mem_type: DAT_MEM_TYPE, region_desc: DAT_REGION_DESCRIPTION,
            length: DAT_VLEN, pz_handle: DAT_PZ_HANDLE, mem_priv: DAT_MEM_PRIV_FLAGS,
            lmr_context: DAT_LMR_CONTEXT, rmr_context: DAT_RMR_CONTEXT, registered_size: DAT_VLEN,
            registered_address: DAT_VADDR
        ],
        (Version::V2, "DAT_LMR_PARAM") => fields![v2::DAT_LMR_PARAM:
            ia_handle: DAT_IA_HANDLE, mem_type: DAT_MEM_TYPE, region_desc: DAT_REGION_DESCRIPTION,
            length: DAT_VLEN, pz_handle: DAT_PZ_HANDLE, mem_priv: DAT_MEM_PRIV_FLAGS,
            va_type: DAT_VA_TYPE, lmr_context: DAT_LMR_CONTEXT, rmr_context: DAT_RMR_CONTEXT,
            registered_size: DAT_VLEN, registered_address: DAT_VADDR
        ],
        (Version::V1, "DAT_LMR_TRIPLET") => fields![v1::DAT_LMR_TRIPLET:
            lmr_context: DAT_LMR_CONTEXT, virtual_address: DAT_VADDR, segment_length: DAT_VLEN
        ],
        (Version::V2, "DAT_LMR_TRIPLET") => fields![v2::DAT_LMR_TRIPLET:
            virtual_address: DAT_VADDR, segment_length: DAT_SEG_LENGTH, lmr_context: DAT_LMR_CONTEXT
        ],
        (Version::V1, "DAT_RMR_TRIPLET") => fields![v1::DAT_RMR_TRIPLET:
            rmr_context: DAT_RMR_CONTEXT, target_address: DAT_VADDR, segment_length: DAT_VLEN
        ],
        (Version::V2, "DAT_RMR_TRIPLET") => fields![v2::DAT_RMR_TRIPLET:
            virtual_address: DAT_VADDR, segment_length: DAT_SEG_LENGTH, rmr_context: DAT_RMR_CONTEXT
        ],
        (Version::V1, "DAT_RMR_PARAM") => fields![v1::DAT_RMR_PARAM:
            ia_handle: DAT_IA_HANDLE, pz_handle: DAT_PZ_HANDLE, lmr_triplet: DAT_LMR_TRIPLET,
            mem_priv: DAT_MEM_PRIV_FLAGS, rmr_context: DAT_RMR_CONTEXT
        ],
        (Version::V2, "DAT_RMR_PARAM") => fields![v2::DAT_RMR_PARAM:
            ia_handle: DAT_IA_HANDLE, pz_handle: DAT_PZ_HANDLE, lmr_triplet: DAT_LMR_TRIPLET,
            mem_priv: DAT_MEM_PRIV_FLAGS, rmr_context: DAT_RMR_CONTEXT, rmr_scope: DAT_RMR_SCOPE,
            va_type: DAT_VA_TYPE
        ],
        (Version::V1, "DAT_IA_ATTR") => fields![v1::DAT_IA_ATTR:
            adapter_name: TEXT, vendor_name: TEXT, hardware_version_major: DAT_UINT32,
            hardware_version_minor: DAT_UINT32, firmware_version_major: DAT_UINT32,
            firmware_version_minor: DAT_UINT32, ia_address_ptr: DAT_IA_ADDRESS_PTR,
            max_eps: DAT_COUNT, max_dto_per_ep: DAT_COUNT, max_rdma_read_per_ep_in: DAT_COUNT,
            max_rdma_read_per_ep_out: DAT_COUNT, max_evds: DAT_COUNT, max_evd_qlen: DAT_COUNT,
            max_iov_segments_per_dto: DAT_COUNT, max_lmrs: DAT_COUNT, max_lmr_block_size: DAT_VLEN,
            max_lmr_virtual_address: DAT_VADDR, max_pzs: DAT_COUNT, max_message_size: DAT_VLEN,
            max_rdma_size: DAT_VLEN, max_rmrs: DAT_COUNT, max_rmr_target_address: DAT_VADDR,
            max_srqs: DAT_COUNT, max_ep_per_srq: DAT_COUNT, max_recv_per_srq: DAT_COUNT,
            max_iov_segments_per_rdma_read: DAT_COUNT, max_iov_segments_per_rdma_write: DAT_COUNT,
            max_rdma_read_in: DAT_COUNT, max_rdma_read_out: DAT_COUNT,
            max_rdma_read_per_ep_in_guaranteed: DAT_BOOLEAN,
            max_rdma_read_per_ep_out_guaranteed: DAT_BOOLEAN, num_transport_attr: DAT_COUNT,
            transport_attr: POINTER, num_vendor_attr: DAT_COUNT, vendor_attr: POINTER
        ],
        (Version::V2, "DAT_IA_ATTR") => fields![v2::DAT_IA_ATTR:
            adapter_name: TEXT, vendor_name: TEXT, hardware_version_major: DAT_UINT32,
            hardware_version_minor: DAT_UINT32, firmware_version_major: DAT_UINT32,
            firmware_version_minor: DAT_UINT32, ia_address_ptr: DAT_IA_ADDRESS_PTR,
            max_eps: DAT_COUNT, max_dto_per_ep: DAT_COUNT, max_rdma_read_per_ep_in: DAT_COUNT,
            max_rdma_read_per_ep_out: DAT_COUNT, max_evds: DAT_COUNT, max_evd_qlen: DAT_COUNT,
            max_iov_segments_per_dto: DAT_COUNT, max_lmrs: DAT_COUNT,
            max_lmr_block_size: DAT_SEG_LENGTH, max_lmr_virtual_address: DAT_VADDR,
            max_pzs: DAT_COUNT, max_message_size: DAT_SEG_LENGTH, max_rdma_size: DAT_SEG_LENGTH,
            max_rmrs: DAT_COUNT, max_rmr_target_address: DAT_VADDR, max_srqs: DAT_COUNT,
            max_ep_per_srq: DAT_COUNT, max_recv_per_srq: DAT_COUNT,
            max_iov_segments_per_rdma_read: DAT_COUNT, max_iov_segments_per_rdma_write: DAT_COUNT,
            max_rdma_read_in: DAT_COUNT, max_rdma_read_out: DAT_COUNT,
            max_rdma_read_per_ep_in_guaranteed: DAT_BOOLEAN,
            max_rdma_read_per_ep_out_guaranteed: DAT_BOOLEAN, zb_supported: DAT_BOOLEAN,
            extension_supported: DAT_EXTENSION, extension_version: DAT_COUNT,
            num_transport_attr: DAT_COUNT, transport_attr: POINTER, num_vendor_attr: DAT_COUNT,
            vendor_attr: POINTER
        ],
        (Version::V1, "DAT_EP_ATTR") => fields![v1::DAT_EP_ATTR:
            service_type: DAT_SERVICE_TYPE, max_message_size: DAT_VLEN, max_rdma_size: DAT_VLEN,
            qos: DAT_QOS, recv_completion_flags: DAT_COMPLETION_FLAGS,
            request_completion_flags: DAT_COMPLETION_FLAGS, max_recv_dtos: DAT_COUNT,
            max_request_dtos: DAT_COUNT, max_recv_iov: DAT_COUNT, max_request_iov: DAT_COUNT,
            max_rdma_read_in: DAT_COUNT, max_rdma_read_out: DAT_COUNT, srq_soft_hw: DAT_COUNT,
            max_rdma_read_iov: DAT_COUNT, max_rdma_write_iov: DAT_COUNT,
            ep_transport_specific_count: DAT_COUNT, ep_transport_specific: POINTER,
            ep_provider_specific_count: DAT_COUNT, ep_provider_specific: POINTER
        ],
        (Version::V2, "DAT_EP_ATTR") => fields![v2::DAT_EP_ATTR:
            service_type: DAT_SERVICE_TYPE, max_message_size: DAT_SEG_LENGTH,
            max_rdma_size: DAT_SEG_LENGTH, qos: DAT_QOS,
            recv_completion_flags: DAT_COMPLETION_FLAGS,
            request_completion_flags: DAT_COMPLETION_FLAGS, max_recv_dtos: DAT_COUNT,
            max_request_dtos: DAT_COUNT, max_recv_iov: DAT_COUNT, max_request_iov: DAT_COUNT,
            max_rdma_read_in: DAT_COUNT, max_rdma_read_out: DAT_COUNT, srq_soft_hw: DAT_COUNT,
            max_rdma_read_iov: DAT_COUNT, max_rdma_write_iov: DAT_COUNT,
            ep_transport_specific_count: DAT_COUNT, ep_transport_specific: POINTER,
            ep_provider_specific_count: DAT_COUNT, ep_provider_specific: POINTER
        ],
        (Version::V1, "DAT_EP_PARAM") => fields![v1::DAT_EP_PARAM:
            ia_handle: DAT_IA_HANDLE, ep_state: DAT_EP_STATE,
            local_ia_address_ptr: DAT_IA_ADDRESS_PTR, local_port_qual: DAT_PORT_QUAL,
            remote_ia_address_ptr: DAT_IA_ADDRESS_PTR, remote_port_qual: DAT_PORT_QUAL,
            pz_handle: DAT_PZ_HANDLE, recv_evd_handle: DAT_EVD_HANDLE,
            request_evd_handle: DAT_EVD_HANDLE, connect_evd_handle: DAT_EVD_HANDLE,
            srq_handle: DAT_SRQ_HANDLE, ep_attr: DAT_EP_ATTR
        ],
        (Version::V2, "DAT_EP_PARAM") => fields![v2::DAT_EP_PARAM:
            ia_handle: DAT_IA_HANDLE, ep_state: DAT_EP_STATE, comm: DAT_COMM,
            local_ia_address_ptr: DAT_IA_ADDRESS_PTR, local_port_qual: DAT_PORT_QUAL,
            remote_ia_address_ptr: DAT_IA_ADDRESS_PTR, remote_port_qual: DAT_PORT_QUAL,
            pz_handle: DAT_PZ_HANDLE, recv_evd_handle: DAT_EVD_HANDLE,
            request_evd_handle: DAT_EVD_HANDLE, connect_evd_handle: DAT_EVD_HANDLE,
            srq_handle: DAT_SRQ_HANDLE, ep_attr: DAT_EP_ATTR
        ],
        (Version::V1, "DAT_DTO_COMPLETION_EVENT_DATA") => fields![v1::DAT_DTO_COMPLETION_EVENT_DATA:
            ep_handle: DAT_EP_HANDLE, user_cookie: DAT_DTO_COOKIE,
            status: DAT_DTO_COMPLETION_STATUS, transfered_length: DAT_VLEN
        ],
        (Version::V2, "DAT_DTO_COMPLETION_EVENT_DATA") => fields![v2::DAT_DTO_COMPLETION_EVENT_DATA:
            ep_handle: DAT_EP_HANDLE, user_cookie: DAT_DTO_COOKIE,
            status: DAT_DTO_COMPLETION_STATUS, transfered_length: DAT_SEG_LENGTH,
            operation: DAT_DTOS, rmr_context: DAT_RMR_CONTEXT
        ],
        (Version::V1, "DAT_CR_ARRIVAL_EVENT_DATA") => fields![v1::DAT_CR_ARRIVAL_EVENT_DATA:
            sp_handle: DAT_PSP_HANDLE, local_ia_address_ptr: DAT_IA_ADDRESS_PTR,
            conn_qual: DAT_CONN_QUAL, cr_handle: DAT_CR_HANDLE
        ],
        (Version::V2, "DAT_CR_ARRIVAL_EVENT_DATA") => fields![v2::DAT_CR_ARRIVAL_EVENT_DATA:
            sp_handle: DAT_PSP_HANDLE, local_ia_address_ptr: DAT_IA_ADDRESS_PTR,
            conn_qual: DAT_CONN_QUAL, cr_handle: DAT_CR_HANDLE, truncate_flag: DAT_BOOLEAN
        ],
        (Version::V1, "DAT_CNO_PARAM") => fields![v1::DAT_CNO_PARAM:
            ia_handle: DAT_IA_HANDLE, agent: DAT_OS_WAIT_PROXY_AGENT
        ],
        (Version::V2, "DAT_CNO_PARAM") => fields![v2::DAT_CNO_PARAM:
            ia_handle: DAT_IA_HANDLE, proxy_type: DAT_PROXY_TYPE, proxy: DAT_CNO_PROXY
        ],
        (Version::V2, "DAT_COMM") => fields![v2::DAT_COMM:
            domain: c_int, r#type: c_int, protocol: c_int
        ],
        (Version::V2, "DAT_CSP_PARAM") => fields![v2::DAT_CSP_PARAM:
            ia_handle: DAT_IA_HANDLE, comm: POINTER, address_ptr: DAT_IA_ADDRESS_PTR,
            evd_handle: DAT_EVD_HANDLE
        ],
        (Version::V2, "DAT_IB_EXTENSION_EVENT_DATA") => fields![v2::DAT_IB_EXTENSION_EVENT_DATA:
            r#type: DAT_IB_EXT_TYPE, status: DAT_IB_STATUS, val: DAT_IB_IMMED_DATA
        ],
        (Version::V2, "DAT_IB_ADDR_HANDLE") => fields![v2::DAT_IB_ADDR_HANDLE:
            ah: DAT_HANDLE, qpn: DAT_UINT32, ia_addr: SOCKADDR
        ],
        _ => return None,
    })
}
