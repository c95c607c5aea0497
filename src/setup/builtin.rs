//! Our provider as the registry sees it: `dat_provider_init`, `dat_provider_fini`, and what
//! `dat-info` asks for.
//!
//! The registry treats it like a provider library that it loaded: the init function registers a
//! table under the name of the IA, the fini function removes that registration.

use std::ffi::{CStr, c_char};

use crate::abi::common::DAT_PROVIDER_INFO;
use crate::dapl::boundary::boundary;
use crate::dapl::table::{self, ProviderTable};
use crate::dapl::{provider, rules};
use crate::device::Device;
use crate::registry::{self, Builtin, BuiltinIa};

/// `dat_provider_init`.
///
/// # Safety
/// `info` points to the key of the entry, `instance_data` to its parameters.
unsafe extern "C" fn init<A: ProviderTable, D: Device>(
    info: *const DAT_PROVIDER_INFO,
    instance_data: *const c_char,
) {
    boundary::<A>(|| {
        // SAFETY: the caller's promise; the name of a key is terminated.
        let name = unsafe { CStr::from_ptr((*info).ia_name.as_ptr()) };
        // SAFETY: the caller's promise.
        let params = unsafe { CStr::from_ptr(instance_data) };
        let params = params.to_string_lossy().into_owned();
        let Some(table) = provider::enter::<D>(name, params, table::leak::<A, D>) else {
            return Ok(());
        };
        // SAFETY: the table lives as long as the process, `info` is the caller's.
        unsafe { registry::add_provider(table, info) }
    });
}

/// `dat_provider_fini`.
///
/// # Safety
/// `info` points to the key that init was given.
unsafe extern "C" fn fini<A: ProviderTable, D: Device>(info: *const DAT_PROVIDER_INFO) {
    boundary::<A>(|| {
        // SAFETY: the caller's promise; the name of a key is terminated.
        let name = unsafe { CStr::from_ptr((*info).ia_name.as_ptr()) };
        match provider::instance::<D>(name) {
            // SAFETY: as for `add_provider`.
            Some(instance) => unsafe { registry::remove_provider(instance.table, info) },
            None => Ok(()),
        }
    });
}

fn probe<D: Device>(params: &str) -> Result<String, String> {
    rules::open::<D>(params).map(|(device, _)| device.address().ip().to_string())
}

fn discover<D: Device>() -> Vec<BuiltinIa> {
    D::discover()
        .into_iter()
        .map(|(name, params)| BuiltinIa { name, params })
        .collect()
}

/// The provider for a device, as a library hands it to its registry.
pub const fn builtin<A: ProviderTable, D: Device>() -> Builtin {
    Builtin {
        name: D::NAME,
        init: init::<A, D>,
        fini: fini::<A, D>,
        probe: probe::<D>,
        discover: discover::<D>,
    }
}
