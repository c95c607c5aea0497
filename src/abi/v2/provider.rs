//! The provider table of DAT 2.0 and the function types that only it has.

use super::*;
use std::ffi::{c_char, c_void};

/// The provider's function for `dat_cno_fd_create`.
pub type DAT_CNO_FD_CREATE_FUNC = Option<
    unsafe extern "C" fn(
        ia_handle: DAT_IA_HANDLE,
        fd: *mut DAT_FD,
        cno_handle: *mut DAT_CNO_HANDLE,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_cno_query`.
pub type DAT_CNO_QUERY_FUNC = Option<
    unsafe extern "C" fn(
        cno_handle: DAT_CNO_HANDLE,
        cno_param_mask: DAT_CNO_PARAM_MASK,
        cno_param: *mut DAT_CNO_PARAM,
    ) -> DAT_RETURN,
>;

/// Slot `cno_trigger_func` of [`DAT_PROVIDER`].
pub type DAT_CNO_TRIGGER_FUNC = Option<
    unsafe extern "C" fn(cno_handle: DAT_CNO_HANDLE, evd_handle: *mut DAT_EVD_HANDLE) -> DAT_RETURN,
>;

/// The provider's function for `dat_cr_reject`.
pub type DAT_CR_REJECT_FUNC = Option<
    unsafe extern "C" fn(
        cr_handle: DAT_CR_HANDLE,
        private_data_size: DAT_COUNT,
        private_data: DAT_PVOID,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_csp_create`.
pub type DAT_CSP_CREATE_FUNC = Option<
    unsafe extern "C" fn(
        ia_handle: DAT_IA_HANDLE,
        comm: *mut DAT_COMM,
        address: DAT_IA_ADDRESS_PTR,
        evd_handle: DAT_EVD_HANDLE,
        csp_handle: *mut DAT_CSP_HANDLE,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_csp_free`.
pub type DAT_CSP_FREE_FUNC = Option<unsafe extern "C" fn(csp_handle: DAT_CSP_HANDLE) -> DAT_RETURN>;

/// The provider's function for `dat_csp_query`.
pub type DAT_CSP_QUERY_FUNC = Option<
    unsafe extern "C" fn(
        csp_handle: DAT_CSP_HANDLE,
        csp_param_mask: DAT_CSP_PARAM_MASK,
        csp_param: *mut DAT_CSP_PARAM,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ep_common_connect`.
pub type DAT_EP_COMMON_CONNECT_FUNC = Option<
    unsafe extern "C" fn(
        ep_handle: DAT_EP_HANDLE,
        remote_ia_address: DAT_IA_ADDRESS_PTR,
        timeout: DAT_TIMEOUT,
        private_data_size: DAT_COUNT,
        private_data: DAT_PVOID,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ep_create`.
pub type DAT_EP_CREATE_FUNC = Option<
    unsafe extern "C" fn(
        ia_handle: DAT_IA_HANDLE,
        pz_handle: DAT_PZ_HANDLE,
        recv_completion_evd_handle: DAT_EVD_HANDLE,
        request_completion_evd_handle: DAT_EVD_HANDLE,
        connect_evd_handle: DAT_EVD_HANDLE,
        ep_attributes: *const DAT_EP_ATTR,
        ep_handle: *mut DAT_EP_HANDLE,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ep_create_with_srq`.
pub type DAT_EP_CREATE_WITH_SRQ_FUNC = Option<
    unsafe extern "C" fn(
        ia_handle: DAT_IA_HANDLE,
        pz_handle: DAT_PZ_HANDLE,
        recv_evd_handle: DAT_EVD_HANDLE,
        request_evd_handle: DAT_EVD_HANDLE,
        connect_evd_handle: DAT_EVD_HANDLE,
        srq_handle: DAT_SRQ_HANDLE,
        ep_attributes: *const DAT_EP_ATTR,
        ep_handle: *mut DAT_EP_HANDLE,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ep_modify`.
pub type DAT_EP_MODIFY_FUNC = Option<
    unsafe extern "C" fn(
        ep_handle: DAT_EP_HANDLE,
        ep_param_mask: DAT_EP_PARAM_MASK,
        ep_param: *const DAT_EP_PARAM,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ep_post_rdma_read`.
pub type DAT_EP_POST_RDMA_READ_FUNC = Option<
    unsafe extern "C" fn(
        ep_handle: DAT_EP_HANDLE,
        num_segments: DAT_COUNT,
        local_iov: *mut DAT_LMR_TRIPLET,
        user_cookie: DAT_DTO_COOKIE,
        remote_iov: *const DAT_RMR_TRIPLET,
        completion_flags: DAT_COMPLETION_FLAGS,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ep_post_rdma_read_to_rmr`.
pub type DAT_EP_POST_RDMA_READ_TO_RMR_FUNC = Option<
    unsafe extern "C" fn(
        ep_handle: DAT_EP_HANDLE,
        local_iov: *const DAT_RMR_TRIPLET,
        user_cookie: DAT_DTO_COOKIE,
        remote_iov: *const DAT_RMR_TRIPLET,
        completion_flags: DAT_COMPLETION_FLAGS,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ep_post_rdma_write`.
pub type DAT_EP_POST_RDMA_WRITE_FUNC = Option<
    unsafe extern "C" fn(
        ep_handle: DAT_EP_HANDLE,
        num_segments: DAT_COUNT,
        local_iov: *mut DAT_LMR_TRIPLET,
        user_cookie: DAT_DTO_COOKIE,
        remote_iov: *const DAT_RMR_TRIPLET,
        completion_flags: DAT_COMPLETION_FLAGS,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ep_post_recv`.
pub type DAT_EP_POST_RECV_FUNC = Option<
    unsafe extern "C" fn(
        ep_handle: DAT_EP_HANDLE,
        num_segments: DAT_COUNT,
        local_iov: *mut DAT_LMR_TRIPLET,
        user_cookie: DAT_DTO_COOKIE,
        completion_flags: DAT_COMPLETION_FLAGS,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ep_post_send`.
pub type DAT_EP_POST_SEND_FUNC = Option<
    unsafe extern "C" fn(
        ep_handle: DAT_EP_HANDLE,
        num_segments: DAT_COUNT,
        local_iov: *mut DAT_LMR_TRIPLET,
        user_cookie: DAT_DTO_COOKIE,
        completion_flags: DAT_COMPLETION_FLAGS,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ep_post_send_with_invalidate`.
pub type DAT_EP_POST_SEND_WITH_INVALIDATE_FUNC = Option<
    unsafe extern "C" fn(
        ep_handle: DAT_EP_HANDLE,
        num_segments: DAT_COUNT,
        local_iov: *mut DAT_LMR_TRIPLET,
        user_cookie: DAT_DTO_COOKIE,
        completion_flags: DAT_COMPLETION_FLAGS,
        invalidate_flag: DAT_BOOLEAN,
        rmr_context: DAT_RMR_CONTEXT,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ep_query`.
pub type DAT_EP_QUERY_FUNC = Option<
    unsafe extern "C" fn(
        ep_handle: DAT_EP_HANDLE,
        ep_param_mask: DAT_EP_PARAM_MASK,
        ep_param: *mut DAT_EP_PARAM,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_evd_dequeue`.
pub type DAT_EVD_DEQUEUE_FUNC =
    Option<unsafe extern "C" fn(evd_handle: DAT_EVD_HANDLE, event: *mut DAT_EVENT) -> DAT_RETURN>;

/// The provider's function for `dat_evd_post_se`.
pub type DAT_EVD_POST_SE_FUNC =
    Option<unsafe extern "C" fn(evd_handle: DAT_EVD_HANDLE, event: *const DAT_EVENT) -> DAT_RETURN>;

/// The provider's function for `dat_evd_wait`.
pub type DAT_EVD_WAIT_FUNC = Option<
    unsafe extern "C-unwind" fn(
        evd_handle: DAT_EVD_HANDLE,
        timeout: DAT_TIMEOUT,
        threshold: DAT_COUNT,
        event: *mut DAT_EVENT,
        n_more_events: *mut DAT_COUNT,
    ) -> DAT_RETURN,
>;

/// `dapl_extensions` of a provider library: extended operations on the name of an IA, which is not
/// open. The list has the arguments behind the name.
pub type DAPL_EXTENSIONS_FUNC =
    unsafe extern "C" fn(DAT_NAME_PTR, DAT_EXTENDED_OP, *mut c_void) -> DAT_RETURN;
/// The provider's function for `dat_extension_op`.
pub type DAT_HANDLE_EXTENDEDOP_FUNC = Option<
    unsafe extern "C" fn(
        handle: DAT_HANDLE,
        extended_op: DAT_EXTENDED_OP,
        argument_list: *mut c_void,
    ) -> DAT_RETURN,
>;

/// Slot `ia_ha_related_func` of [`DAT_PROVIDER`].
pub type DAT_IA_HA_RELATED_FUNC = Option<
    unsafe extern "C" fn(
        ia_handle: DAT_IA_HANDLE,
        provider: DAT_NAME_PTR,
        answer: *mut DAT_BOOLEAN,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_ia_query`.
pub type DAT_IA_QUERY_FUNC = Option<
    unsafe extern "C" fn(
        ia_handle: DAT_IA_HANDLE,
        async_evd_handle: *mut DAT_EVD_HANDLE,
        ia_attr_mask: DAT_IA_ATTR_MASK,
        ia_attr: *mut DAT_IA_ATTR,
        provider_attr_mask: DAT_PROVIDER_ATTR_MASK,
        provider_attr: *mut DAT_PROVIDER_ATTR,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_lmr_create`.
pub type DAT_LMR_CREATE_FUNC = Option<
    unsafe extern "C" fn(
        ia_handle: DAT_IA_HANDLE,
        mem_type: DAT_MEM_TYPE,
        region_description: DAT_REGION_DESCRIPTION,
        length: DAT_VLEN,
        pz_handle: DAT_PZ_HANDLE,
        privileges: DAT_MEM_PRIV_FLAGS,
        va_type: DAT_VA_TYPE,
        lmr_handle: *mut DAT_LMR_HANDLE,
        lmr_context: *mut DAT_LMR_CONTEXT,
        rmr_context: *mut DAT_RMR_CONTEXT,
        registered_length: *mut DAT_VLEN,
        registered_address: *mut DAT_VADDR,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_lmr_query`.
pub type DAT_LMR_QUERY_FUNC = Option<
    unsafe extern "C" fn(
        lmr_handle: DAT_LMR_HANDLE,
        lmr_param_mask: DAT_LMR_PARAM_MASK,
        lmr_param: *mut DAT_LMR_PARAM,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_lmr_sync_rdma_read`.
pub type DAT_LMR_SYNC_RDMA_READ_FUNC = Option<
    unsafe extern "C" fn(
        ia_handle: DAT_IA_HANDLE,
        local_segments: *const DAT_LMR_TRIPLET,
        num_segments: DAT_VLEN,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_lmr_sync_rdma_write`.
pub type DAT_LMR_SYNC_RDMA_WRITE_FUNC = Option<
    unsafe extern "C" fn(
        ia_handle: DAT_IA_HANDLE,
        local_segments: *const DAT_LMR_TRIPLET,
        num_segments: DAT_VLEN,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_rmr_bind`.
pub type DAT_RMR_BIND_FUNC = Option<
    unsafe extern "C" fn(
        rmr_handle: DAT_RMR_HANDLE,
        lmr_handle: DAT_LMR_HANDLE,
        lmr_triplet: *const DAT_LMR_TRIPLET,
        mem_priv: DAT_MEM_PRIV_FLAGS,
        va_type: DAT_VA_TYPE,
        ep_handle: DAT_EP_HANDLE,
        user_cookie: DAT_RMR_COOKIE,
        completion_flags: DAT_COMPLETION_FLAGS,
        context: *mut DAT_RMR_CONTEXT,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_rmr_create_for_ep`.
pub type DAT_RMR_CREATE_FOR_EP_FUNC = Option<
    unsafe extern "C" fn(pz_handle: DAT_PZ_HANDLE, rmr_handle: *mut DAT_RMR_HANDLE) -> DAT_RETURN,
>;

/// The provider's function for `dat_rmr_query`.
pub type DAT_RMR_QUERY_FUNC = Option<
    unsafe extern "C" fn(
        rmr_handle: DAT_RMR_HANDLE,
        rmr_param_mask: DAT_RMR_PARAM_MASK,
        rmr_param: *mut DAT_RMR_PARAM,
    ) -> DAT_RETURN,
>;

/// The provider's function for `dat_srq_post_recv`.
pub type DAT_SRQ_POST_RECV_FUNC = Option<
    unsafe extern "C" fn(
        srq_handle: DAT_SRQ_HANDLE,
        num_segments: DAT_COUNT,
        local_iov: *mut DAT_LMR_TRIPLET,
        user_cookie: DAT_DTO_COOKIE,
    ) -> DAT_RETURN,
>;

/// Function table of a provider; the first word of each of its objects points to it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DAT_PROVIDER {
    pub device_name: *const c_char,
    pub extension: DAT_PVOID,
    pub ia_open_func: DAT_IA_OPEN_FUNC,
    pub ia_query_func: DAT_IA_QUERY_FUNC,
    pub ia_close_func: DAT_IA_CLOSE_FUNC,
    pub set_consumer_context_func: DAT_SET_CONSUMER_CONTEXT_FUNC,
    pub get_consumer_context_func: DAT_GET_CONSUMER_CONTEXT_FUNC,
    pub get_handle_type_func: DAT_GET_HANDLE_TYPE_FUNC,
    pub cno_create_func: DAT_CNO_CREATE_FUNC,
    pub cno_modify_agent_func: DAT_CNO_MODIFY_AGENT_FUNC,
    pub cno_query_func: DAT_CNO_QUERY_FUNC,
    pub cno_free_func: DAT_CNO_FREE_FUNC,
    pub cno_wait_func: DAT_CNO_WAIT_FUNC,
    pub cr_query_func: DAT_CR_QUERY_FUNC,
    pub cr_accept_func: DAT_CR_ACCEPT_FUNC,
    pub cr_reject_func: DAT_CR_REJECT_FUNC,
    pub cr_handoff_func: DAT_CR_HANDOFF_FUNC,
    pub evd_create_func: DAT_EVD_CREATE_FUNC,
    pub evd_query_func: DAT_EVD_QUERY_FUNC,
    pub evd_modify_cno_func: DAT_EVD_MODIFY_CNO_FUNC,
    pub evd_enable_func: DAT_EVD_ENABLE_FUNC,
    pub evd_disable_func: DAT_EVD_DISABLE_FUNC,
    pub evd_wait_func: DAT_EVD_WAIT_FUNC,
    pub evd_resize_func: DAT_EVD_RESIZE_FUNC,
    pub evd_post_se_func: DAT_EVD_POST_SE_FUNC,
    pub evd_dequeue_func: DAT_EVD_DEQUEUE_FUNC,
    pub evd_free_func: DAT_EVD_FREE_FUNC,
    pub ep_create_func: DAT_EP_CREATE_FUNC,
    pub ep_query_func: DAT_EP_QUERY_FUNC,
    pub ep_modify_func: DAT_EP_MODIFY_FUNC,
    pub ep_connect_func: DAT_EP_CONNECT_FUNC,
    pub ep_dup_connect_func: DAT_EP_DUP_CONNECT_FUNC,
    pub ep_disconnect_func: DAT_EP_DISCONNECT_FUNC,
    pub ep_post_send_func: DAT_EP_POST_SEND_FUNC,
    pub ep_post_recv_func: DAT_EP_POST_RECV_FUNC,
    pub ep_post_rdma_read_func: DAT_EP_POST_RDMA_READ_FUNC,
    pub ep_post_rdma_write_func: DAT_EP_POST_RDMA_WRITE_FUNC,
    pub ep_get_status_func: DAT_EP_GET_STATUS_FUNC,
    pub ep_free_func: DAT_EP_FREE_FUNC,
    pub lmr_create_func: DAT_LMR_CREATE_FUNC,
    pub lmr_query_func: DAT_LMR_QUERY_FUNC,
    pub lmr_free_func: DAT_LMR_FREE_FUNC,
    pub rmr_create_func: DAT_RMR_CREATE_FUNC,
    pub rmr_query_func: DAT_RMR_QUERY_FUNC,
    pub rmr_bind_func: DAT_RMR_BIND_FUNC,
    pub rmr_free_func: DAT_RMR_FREE_FUNC,
    pub psp_create_func: DAT_PSP_CREATE_FUNC,
    pub psp_query_func: DAT_PSP_QUERY_FUNC,
    pub psp_free_func: DAT_PSP_FREE_FUNC,
    pub rsp_create_func: DAT_RSP_CREATE_FUNC,
    pub rsp_query_func: DAT_RSP_QUERY_FUNC,
    pub rsp_free_func: DAT_RSP_FREE_FUNC,
    pub pz_create_func: DAT_PZ_CREATE_FUNC,
    pub pz_query_func: DAT_PZ_QUERY_FUNC,
    pub pz_free_func: DAT_PZ_FREE_FUNC,
    pub psp_create_any_func: DAT_PSP_CREATE_ANY_FUNC,
    pub ep_reset_func: DAT_EP_RESET_FUNC,
    pub evd_set_unwaitable_func: DAT_EVD_SET_UNWAITABLE_FUNC,
    pub evd_clear_unwaitable_func: DAT_EVD_CLEAR_UNWAITABLE_FUNC,
    pub lmr_sync_rdma_read_func: DAT_LMR_SYNC_RDMA_READ_FUNC,
    pub lmr_sync_rdma_write_func: DAT_LMR_SYNC_RDMA_WRITE_FUNC,
    pub ep_create_with_srq_func: DAT_EP_CREATE_WITH_SRQ_FUNC,
    pub ep_recv_query_func: DAT_EP_RECV_QUERY_FUNC,
    pub ep_set_watermark_func: DAT_EP_SET_WATERMARK_FUNC,
    pub srq_create_func: DAT_SRQ_CREATE_FUNC,
    pub srq_free_func: DAT_SRQ_FREE_FUNC,
    pub srq_post_recv_func: DAT_SRQ_POST_RECV_FUNC,
    pub srq_query_func: DAT_SRQ_QUERY_FUNC,
    pub srq_resize_func: DAT_SRQ_RESIZE_FUNC,
    pub srq_set_lw_func: DAT_SRQ_SET_LW_FUNC,
    pub csp_create_func: DAT_CSP_CREATE_FUNC,
    pub csp_query_func: DAT_CSP_QUERY_FUNC,
    pub csp_free_func: DAT_CSP_FREE_FUNC,
    pub ep_common_connect_func: DAT_EP_COMMON_CONNECT_FUNC,
    pub rmr_create_for_ep_func: DAT_RMR_CREATE_FOR_EP_FUNC,
    pub ep_post_send_with_invalidate_func: DAT_EP_POST_SEND_WITH_INVALIDATE_FUNC,
    pub ep_post_rdma_read_to_rmr_func: DAT_EP_POST_RDMA_READ_TO_RMR_FUNC,
    pub cno_fd_create_func: DAT_CNO_FD_CREATE_FUNC,
    pub cno_trigger_func: DAT_CNO_TRIGGER_FUNC,
    pub ia_ha_related_func: DAT_IA_HA_RELATED_FUNC,
    pub handle_extendedop_func: DAT_HANDLE_EXTENDEDOP_FUNC,
}
