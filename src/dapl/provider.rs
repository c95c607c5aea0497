//! Our provider as the registry sees it: `dat_provider_init`, `dat_provider_fini`, and the
//! function tables.
//!
//! The registry treats it like a provider library that it loaded: an init function registers a
//! table under the name of the IA, a fini function takes it back.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;

use super::abi::Abi;
use super::object::boundary;
use super::rules;
use crate::abi::common::*;
use crate::device::Device;
use crate::registry::{self, Builtin, BuiltinIa};

/// A function table: constant once made.
pub struct Table<T>(pub T);

// SAFETY: function pointers, and a name that lives as long as the process.
unsafe impl<T> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Table<T> {}

/// What an IA name means to our provider.
#[derive(Clone)]
pub struct Instance {
    /// `ia_params` of the entry.
    pub params: String,
    /// The function table; lives as long as the process.
    pub table: *const c_void,
}

struct Named {
    /// Which device the table is for.
    device: &'static str,
    name: CString,
    instance: Instance,
}

// SAFETY: the table is a `Table`, which is Send and Sync.
unsafe impl Send for Named {}

/// Every IA name our provider was ever initialised for. Entries stay: a table is small, names
/// are few, and a name that is opened again gets its table again.
static INSTANCES: Mutex<Vec<Named>> = Mutex::new(Vec::new());

/// What the provider was told of an IA name.
pub fn instance<A: Abi, D: Device>(name: &CStr) -> Option<Instance> {
    let instances = INSTANCES.lock().ok()?;
    let named = instances
        .iter()
        .find(|n| n.device == D::NAME && n.name.as_c_str() == name)?;
    Some(named.instance.clone())
}

/// Enters an IA name with its parameters; gives its table.
fn enter<A: Abi, D: Device>(name: &CStr, params: String) -> Option<*const c_void> {
    let mut instances = INSTANCES.lock().ok()?;
    let known = instances
        .iter_mut()
        .find(|n| n.device == D::NAME && n.name.as_c_str() == name);
    if let Some(named) = known {
        named.instance.params = params;
        return Some(named.instance.table);
    }
    let name = name.to_owned();
    // The name moves, the characters it points to stay.
    let table = Box::new(A::provider::<D>(name.as_ptr()));
    let table: *const c_void = std::ptr::from_ref(Box::leak(table)).cast();
    instances.push(Named {
        device: D::NAME,
        name,
        instance: Instance { params, table },
    });
    Some(table)
}

/// `dat_provider_init`.
///
/// # Safety
/// `info` points to the key of the entry, `instance_data` to its parameters.
unsafe extern "C" fn init<A: Abi, D: Device>(
    info: *const DAT_PROVIDER_INFO,
    instance_data: *const c_char,
) {
    boundary::<A>(|| {
        // SAFETY: the caller's promise; the name of a key is terminated.
        let name = unsafe { CStr::from_ptr((*info).ia_name.as_ptr()) };
        // SAFETY: the caller's promise.
        let params = unsafe { CStr::from_ptr(instance_data) };
        let Some(table) = enter::<A, D>(name, params.to_string_lossy().into_owned()) else {
            return Ok(());
        };
        // SAFETY: the table lives for ever, `info` is the caller's.
        unsafe { registry::add_provider(table, info) }
    });
}

/// `dat_provider_fini`.
///
/// # Safety
/// `info` points to the key that init was given.
unsafe extern "C" fn fini<A: Abi, D: Device>(info: *const DAT_PROVIDER_INFO) {
    boundary::<A>(|| {
        // SAFETY: the caller's promise; the name of a key is terminated.
        let name = unsafe { CStr::from_ptr((*info).ia_name.as_ptr()) };
        match instance::<A, D>(name) {
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
pub const fn builtin<A: Abi, D: Device>() -> Builtin {
    Builtin {
        name: D::NAME,
        init: init::<A, D>,
        fini: fini::<A, D>,
        probe: probe::<D>,
        discover: discover::<D>,
    }
}
