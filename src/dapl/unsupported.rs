//! What DAT 2.0 has a slot for and no provider of OpenFabrics implements: they return
//! `DAT_MODEL_NOT_SUPPORTED`, and so does ours. The library does not export it; only a libdat of another
//! vendor that loads our provider calls it.

use super::abi::Abi;
use crate::abi::v2::*;
use crate::error::{Error, Kind};

fn unsupported<A: Abi>() -> DAT_RETURN {
    Error::from(Kind::ModelNotSupported).code(A::VERSION)
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
