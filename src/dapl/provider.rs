//! The IA names that our provider serves: the parameters that an IA is opened with, and the
//! function table that its handles lead to.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::device::Device;
use crate::lock::Mutex;
use crate::process::PerProcess;

/// What an IA name means to our provider.
#[derive(Clone)]
pub struct Instance {
    /// The field `ia_params` of the entry of `dat.conf`.
    pub params: String,
    /// The function table; lives as long as the process.
    pub table: *const c_void,
}

struct Named {
    /// [`Device::NAME`] of the device that the table is for.
    device: &'static str,
    name: CString,
    instance: Instance,
}

// SAFETY: a function table is constant data that every thread may read.
unsafe impl Send for Named {}

/// Every IA name that our provider was ever initialised for. Entries are never removed: a table is
/// small, names are few, and a name that is initialised again gets the same table.
static INSTANCES: PerProcess<Mutex<Vec<Named>>> = PerProcess::new(Mutex::default);

/// The parameters and the table of an IA name, if it was [entered](enter) for this device.
pub fn instance<D: Device>(name: &CStr) -> Option<Instance> {
    let instances = INSTANCES.lock();
    let named = instances
        .iter()
        .find(|n| n.device == D::NAME && n.name.as_c_str() == name)?;
    Some(named.instance.clone())
}

/// Enters an IA name with its parameters, and gives its function table. `make` makes that for
/// a name which is new; the characters of the name that it gets live as long as the process.
pub fn enter<D: Device>(
    name: &CStr,
    params: String,
    make: impl FnOnce(*const c_char) -> *const c_void,
) -> Option<*const c_void> {
    let mut instances = INSTANCES.lock();
    let known = instances
        .iter_mut()
        .find(|n| n.device == D::NAME && n.name.as_c_str() == name);
    if let Some(named) = known {
        named.instance.params = params;
        return Some(named.instance.table);
    }
    let name = name.to_owned();
    // The name moves, its characters on the heap do not.
    let table = make(name.as_ptr());
    instances.push(Named {
        device: D::NAME,
        name,
        instance: Instance { params, table },
    });
    Some(table)
}
