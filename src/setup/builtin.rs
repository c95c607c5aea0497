//! Our provider as the registry sees it: `dat_provider_init`, `dat_provider_fini`, and what
//! `dat-info` asks for.
//!
//! The registry treats it like a provider library that it loaded: the init function registers a
//! table under the name of the IA, the fini function removes that registration.

use std::ffi::CStr;

use crate::abi::common::DAT_PROVIDER_INFO;
use crate::dapl::boundary::boundary;
use crate::dapl::table::{self, ProviderTable};
use crate::dapl::{parameters, provider};
use crate::device::Device;
use crate::registry::{self, Adapters, Builtin, BuiltinEntry, BuiltinIa};

/// Does what `dat_provider_init` of a provider library does.
fn init<A: ProviderTable, D: Device>(entry: &BuiltinEntry<'_>) {
    boundary::<A>(|| {
        // SAFETY: the name of a key is terminated.
        let name = unsafe { CStr::from_ptr(entry.info.ia_name.as_ptr()) };
        let entered = provider::Entry {
            params: entry.params.to_string_lossy().into_owned(),
            origin: entry.origin.to_string(),
            says_thread_safe: true,
        };
        let Some(table) = provider::enter::<D>(name, entered, table::leak::<A, D>) else {
            return Ok(());
        };
        // SAFETY: the table lives as long as the process, the key during the call.
        unsafe { registry::add_provider(table, entry.info) }
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
            Some(instance) => unsafe { registry::remove_provider(instance.tables.plain, info) },
            None => Ok(()),
        }
    });
}

fn probe<D: Device>(params: &str) -> Result<String, String> {
    parameters::open::<D>(params).map(|(device, _)| device.address().ip().to_string())
}

fn discover<D: Device>() -> Vec<BuiltinIa> {
    D::discover()
        .into_iter()
        .map(|(name, params)| BuiltinIa { name, params })
        .collect()
}

/// The IAs of the provider for a device.
pub const fn adapters<D: Device>() -> Adapters {
    Adapters {
        name: D::NAME,
        probe: probe::<D>,
        discover: discover::<D>,
    }
}

/// The provider for a device, as a library hands it to its registry.
pub const fn builtin<A: ProviderTable, D: Device>() -> Builtin {
    Builtin {
        adapters: adapters::<D>(),
        init: init::<A, D>,
        fini: fini::<A, D>,
        extensions: A::extensions::<D>,
    }
}
