//! Functions for which DAT 2.0 has slots, but which OpenFabrics' providers do not implement either.
//! The library does not export them; only a libdat of another vendor that loads our provider calls
//! them. OpenFabrics' providers return `DAT_MODEL_NOT_SUPPORTED` too.

use super::abi::Abi;
use crate::abi::v2::*;
use crate::error::{Error, Kind};

fn unsupported<A: Abi>() -> DAT_RETURN {
    Error::from(Kind::ModelNotSupported).code(A::VERSION)
}

/// `dat_rmr_create_for_ep`: the windows of our devices belong to a protection zone.
///
/// # Safety
/// The arguments are not used.
pub unsafe extern "C" fn rmr_create_for_ep<A: Abi>(
    _pz_handle: DAT_PZ_HANDLE,
    _rmr_handle: *mut DAT_RMR_HANDLE,
) -> DAT_RETURN {
    unsupported::<A>()
}

/// `dat_ep_post_rdma_read_to_rmr`.
///
/// # Safety
/// The arguments are not used.
pub unsafe extern "C" fn ep_post_rdma_read_to_rmr<A: Abi>(
    _ep_handle: DAT_EP_HANDLE,
    _local_iov: *const DAT_RMR_TRIPLET,
    _user_cookie: DAT_DTO_COOKIE,
    _remote_iov: *const DAT_RMR_TRIPLET,
    _completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    unsupported::<A>()
}

/// The slot behind the macro `DAT_IA_HA_RELATED`: there is no high availability.
///
/// # Safety
/// The arguments are not used.
pub unsafe extern "C" fn ia_ha_related<A: Abi>(
    _ia_handle: DAT_IA_HANDLE,
    _provider: DAT_NAME_PTR,
    _answer: *mut DAT_BOOLEAN,
) -> DAT_RETURN {
    unsupported::<A>()
}
