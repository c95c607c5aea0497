//! `libdat2.so.2`: the symbols of DAT 2.0. No logic: see [`mod@dat_core::entry`].

mod extension;

use dat_core::setup::DAT_2_0 as SETUP;

mod registry_level {
    //! The functions that the registry answers.

    use std::ffi::c_char;

    use dat_core::abi::v2::*;

    dat_core::registry_level! { V2, "DAT_2.0", crate::SETUP }
}

mod added {
    //! Functions that DAT 2.0 declares and no other library exports: in a version node of their own.

    use dat_core::abi::v2::*;

    dat_core::entry! { V2, "LIBDAT_2.0";
        /// Whether two IAs back each other up.
        dat_registry_providers_related(
            name1: DAT_NAME_PTR,
            name2: DAT_NAME_PTR,
            answer: *mut DAT_HA_RELATIONSHIP,
        ) {
            dat_core::registry::setup(&crate::SETUP);
            // SAFETY: the caller's promise.
            unsafe { dat_core::registry::providers_related(name1, name2, answer) }
                .map(|()| DAT_SUCCESS)
        }
    }

    dat_core::dispatch! { V2, "LIBDAT_2.0";
        dat_cno_fd_create(
            ia_handle: DAT_IA_HANDLE,
            fd: *mut DAT_FD,
            cno_handle: *mut DAT_CNO_HANDLE,
        ) => HandleIa, cno_fd_create_func;
        dat_cno_trigger(
            cno_handle: DAT_CNO_HANDLE,
            evd_handle: *mut DAT_EVD_HANDLE,
        ) => HandleCno, cno_trigger_func;
        dat_csp_create(
            ia_handle: DAT_IA_HANDLE,
            comm: *mut DAT_COMM,
            address: DAT_IA_ADDRESS_PTR,
            evd_handle: DAT_EVD_HANDLE,
            csp_handle: *mut DAT_CSP_HANDLE,
        ) => HandleIa, csp_create_func;
        dat_csp_free(csp_handle: DAT_CSP_HANDLE) => HandleCsp, csp_free_func;
        dat_csp_query(
            csp_handle: DAT_CSP_HANDLE,
            csp_param_mask: DAT_CSP_PARAM_MASK,
            csp_param: *mut DAT_CSP_PARAM,
        ) => HandleCsp, csp_query_func;
        dat_ep_common_connect(
            ep_handle: DAT_EP_HANDLE,
            remote_ia_address: DAT_IA_ADDRESS_PTR,
            timeout: DAT_TIMEOUT,
            private_data_size: DAT_COUNT,
            private_data: DAT_PVOID,
        ) => HandleEp, ep_common_connect_func;
        dat_ep_post_rdma_read_to_rmr(
            ep_handle: DAT_EP_HANDLE,
            local_iov: *const DAT_RMR_TRIPLET,
            user_cookie: DAT_DTO_COOKIE,
            remote_iov: *const DAT_RMR_TRIPLET,
            completion_flags: DAT_COMPLETION_FLAGS,
        ) => HandleEp, ep_post_rdma_read_to_rmr_func;
        dat_ep_post_send_with_invalidate(
            ep_handle: DAT_EP_HANDLE,
            num_segments: DAT_COUNT,
            local_iov: *mut DAT_LMR_TRIPLET,
            user_cookie: DAT_DTO_COOKIE,
            completion_flags: DAT_COMPLETION_FLAGS,
            invalidate_flag: DAT_BOOLEAN,
            rmr_context: DAT_RMR_CONTEXT,
        ) => HandleEp, ep_post_send_with_invalidate_func;
        dat_rmr_create_for_ep(
            pz_handle: DAT_PZ_HANDLE,
            rmr_handle: *mut DAT_RMR_HANDLE,
        ) => HandlePz, rmr_create_for_ep_func;
    }
}

mod dispatch {
    //! The functions that go to a provider.

    use dat_core::abi::v2::*;

    dat_core::dispatch_common! { V2, "DAT_2.0" }

    dat_core::dispatch! { V2, "DAT_2.0";
        dat_cr_reject(
            cr_handle: DAT_CR_HANDLE,
            private_data_size: DAT_COUNT,
            private_data: DAT_PVOID,
        ) => HandleCr, cr_reject_func;
        dat_lmr_create(
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
        ) => HandleIa, lmr_create_func;
        dat_rmr_bind(
            rmr_handle: DAT_RMR_HANDLE,
            lmr_handle: DAT_LMR_HANDLE,
            lmr_triplet: *const DAT_LMR_TRIPLET,
            mem_priv: DAT_MEM_PRIV_FLAGS,
            va_type: DAT_VA_TYPE,
            ep_handle: DAT_EP_HANDLE,
            user_cookie: DAT_RMR_COOKIE,
            completion_flags: DAT_COMPLETION_FLAGS,
            context: *mut DAT_RMR_CONTEXT,
        ) => HandleRmr, rmr_bind_func;
    }
}
