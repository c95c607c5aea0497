//! `libdat.so.1`: the symbols of DAT 1.2. No logic: see [`mod@dat_core::entry`].

use dat_core::setup::DAT_1_2 as SETUP;

mod registry_level {
    //! The functions that the registry answers.

    use std::ffi::c_char;

    use dat_core::abi::v1::*;

    dat_core::registry_level! { V1, "DAT_1.2", crate::SETUP }
}

mod dispatch {
    //! The functions that go to a provider.

    use dat_core::abi::v1::*;

    dat_core::dispatch_common! { V1, "DAT_1.2" }

    dat_core::dispatch! { V1, "DAT_1.2";
        dat_cr_reject(cr_handle: DAT_CR_HANDLE) => HandleCr, cr_reject_func;
        dat_lmr_create(
            ia_handle: DAT_IA_HANDLE,
            mem_type: DAT_MEM_TYPE,
            region_description: DAT_REGION_DESCRIPTION,
            length: DAT_VLEN,
            pz_handle: DAT_PZ_HANDLE,
            privileges: DAT_MEM_PRIV_FLAGS,
            lmr_handle: *mut DAT_LMR_HANDLE,
            lmr_context: *mut DAT_LMR_CONTEXT,
            rmr_context: *mut DAT_RMR_CONTEXT,
            registered_length: *mut DAT_VLEN,
            registered_address: *mut DAT_VADDR,
        ) => HandleIa, lmr_create_func;
        dat_rmr_bind(
            rmr_handle: DAT_RMR_HANDLE,
            lmr_triplet: *const DAT_LMR_TRIPLET,
            mem_priv: DAT_MEM_PRIV_FLAGS,
            ep_handle: DAT_EP_HANDLE,
            user_cookie: DAT_RMR_COOKIE,
            completion_flags: DAT_COMPLETION_FLAGS,
            context: *mut DAT_RMR_CONTEXT,
        ) => HandleRmr, rmr_bind_func;
    }
}
