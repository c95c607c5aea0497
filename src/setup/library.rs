//! Our providers as libraries of their own: for a registry library that is not ours, which loads them by
//! an entry of its `dat.conf` as those of any vendor.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use crate::abi::common::*;
use crate::dapl::boundary::boundary;
use crate::dapl::provider;
use crate::dapl::table::{self, ProviderTable};
use crate::device::Device;
use crate::error::Version;
use crate::log_sink;

/// `dat_registry_add_provider` and `dat_registry_remove_provider`.
type Register = unsafe extern "C" fn(*const c_void, *const DAT_PROVIDER_INFO) -> DAT_RETURN;

/// The symbol of that version in a scope of the loader, or null.
///
/// # Safety
/// The scope is one of the loader.
unsafe fn find(scope: *mut c_void, name: &CStr, version: &CStr) -> *mut c_void {
    #[cfg(not(target_env = "musl"))]
    // SAFETY: C strings; the caller's promise.
    unsafe {
        libc::dlvsym(scope, name.as_ptr(), version.as_ptr())
    }
    // The loader of musl knows no versions.
    #[cfg(target_env = "musl")]
    // SAFETY: as above.
    unsafe {
        let _ = version;
        libc::dlsym(scope, name.as_ptr())
    }
}

/// The function of the registry library that has loaded this one. Other libraries of DAT in the process
/// have functions of the same names, for the other version.
fn registry_function(version: Version, name: &CStr) -> Option<Register> {
    let (library, nodes): (_, &[&CStr]) = match version {
        Version::V1 => (c"libdat.so.1", &[c"DAT_1.2", c"DAT_1.1"]),
        Version::V2 => (c"libdat2.so.2", &[c"DAT_2.0"]),
    };
    // SAFETY: a C string; the library is not loaded by this, and the handle lives as long as the process.
    let loaded = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    let scopes = [loaded, libc::RTLD_DEFAULT];
    let scopes = scopes.into_iter().filter(|scope| {
        // The default scope is NULL, which is no library that is loaded.
        *scope == libc::RTLD_DEFAULT || !scope.is_null()
    });
    let found = scopes.into_iter().find_map(|scope| {
        nodes.iter().find_map(|node| {
            // SAFETY: C strings, and a scope of the loader.
            NonNull::new(unsafe { find(scope, name, node) })
        })
    });
    // SAFETY: the name is that of a function of this type.
    found.map(|symbol| unsafe { std::mem::transmute::<NonNull<c_void>, Register>(symbol) })
}

/// `dat_provider_init`.
///
/// # Safety
/// `info` points to the key of an entry, `params` is NULL or the parameters of the entry.
pub unsafe fn init<A: ProviderTable, D: Device>(
    info: *const DAT_PROVIDER_INFO,
    params: *const c_char,
) {
    boundary::<A>(|| {
        log_sink::install();
        log_sink::report_panics();
        // SAFETY: the caller's promise; the name of a key is terminated.
        let name = unsafe { CStr::from_ptr((*info).ia_name.as_ptr()) };
        let params = match params.is_null() {
            true => String::new(),
            // SAFETY: the caller's promise.
            false => unsafe { CStr::from_ptr(params) }
                .to_string_lossy()
                .into_owned(),
        };
        let origin = format!("the {} provider", D::NAME);
        // SAFETY: the caller's promise.
        let says_thread_safe = unsafe { (*info).is_thread_safe } != DAT_FALSE;
        let Some(add) = registry_function(A::VERSION, c"dat_registry_add_provider") else {
            log::error!("{origin}: no registry library of DAT has loaded it");
            return Ok(());
        };
        let entry = provider::Entry {
            params,
            origin,
            says_thread_safe,
        };
        if let Some(table) = provider::enter::<D>(name, entry, table::leak::<A, D>) {
            // SAFETY: the table lives as long as the process, the key during the call.
            let code = unsafe { add(table, info) };
            if code != DAT_SUCCESS {
                log::error!("{}: not registered: {code:#x}", name.to_string_lossy());
            }
        }
        Ok(())
    });
}

/// `dat_provider_fini`.
///
/// # Safety
/// `info` points to the key that [`init`] was given.
pub unsafe fn fini<A: ProviderTable, D: Device>(info: *const DAT_PROVIDER_INFO) {
    boundary::<A>(|| {
        // SAFETY: the caller's promise; the name of a key is terminated.
        let name = unsafe { CStr::from_ptr((*info).ia_name.as_ptr()) };
        let remove = registry_function(A::VERSION, c"dat_registry_remove_provider");
        if let (Some(instance), Some(remove)) = (provider::instance::<D>(name), remove) {
            // SAFETY: as for `add`.
            unsafe { remove(instance.tables.plain, info) };
        }
        Ok(())
    });
}

/// Defines the entry points of a provider library: for a version of the ABI (`V1`, `V2`) and a device
/// (`Soft`, `Verbs`).
#[macro_export]
macro_rules! provider_library {
    (V1, $device:ident) => {
        $crate::provider_library! { @entry_points V1, $device }
    };
    (V2, $device:ident) => {
        $crate::provider_library! { @entry_points V2, $device }

        $crate::exported_plainly! {
            /// `dapl_extensions`: extended operations on the name of an IA.
            ///
            /// # Safety
            /// As [`extensions`]($crate::dapl::extension::extensions).
            fn dapl_extensions(
                name: $crate::abi::v2::DAT_NAME_PTR,
                extended_op: $crate::abi::v2::DAT_EXTENDED_OP,
                argument_list: *mut ::std::ffi::c_void,
            ) -> $crate::abi::v2::DAT_RETURN {
                use $crate::setup::library::{V2, $device, extensions};
                // SAFETY: the caller's promise.
                unsafe { extensions::<V2, $device>(name, extended_op, argument_list) }
            }
        }
    };
    (@entry_points $abi:ident, $device:ident) => {
        $crate::exported_plainly! {
            /// Registers the provider under the name of an entry.
            ///
            /// # Safety
            /// As [`init`]($crate::setup::library::init).
            fn dat_provider_init(
                info: *const $crate::abi::common::DAT_PROVIDER_INFO,
                params: *const ::std::ffi::c_char,
            ) {
                use $crate::setup::library::{init, $abi, $device};
                // SAFETY: the caller's promise.
                unsafe { init::<$abi, $device>(info, params) }
            }

            /// Removes that registration.
            ///
            /// # Safety
            /// As [`fini`]($crate::setup::library::fini).
            fn dat_provider_fini(info: *const $crate::abi::common::DAT_PROVIDER_INFO) {
                use $crate::setup::library::{fini, $abi, $device};
                // SAFETY: the caller's promise.
                unsafe { fini::<$abi, $device>(info) }
            }
        }
    };
}

pub use crate::dapl::abi::{V1, V2};
pub use crate::dapl::extension::extensions;
pub use crate::device::soft::Soft;
pub use crate::device::verbs::Verbs;
