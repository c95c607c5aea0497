//! The IA names that our provider serves: the parameters that an IA is opened with, and the
//! function table that its handles lead to.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;

use super::async_events::AsyncEvds;
use crate::device::Device;
use crate::lock::Mutex;
use crate::process::PerProcess;

/// What an IA name means to our provider.
#[derive(Clone)]
pub struct Instance {
    /// The field `ia_params` of the entry of `dat.conf`.
    pub params: String,
    /// The place of that entry, for messages.
    pub origin: String,
    /// Whether `is_thread_safe` of the provider attributes is true. The provider always is; but
    /// OpenFabrics' library closes an IA by an entry that says what the attribute says.
    pub says_thread_safe: bool,
    /// The function tables.
    pub tables: Tables,
    /// The async EVDs of the open instances of the IA.
    pub async_evds: Arc<AsyncEvds>,
}

/// The function tables of an IA name; both live as long as the process.
#[derive(Clone, Copy)]
pub struct Tables {
    /// The one of the name, and of its IAs.
    pub plain: *const c_void,
    /// That of IAs whose counters are on.
    pub counting: *const c_void,
}

// SAFETY: a function table is constant data that every thread may read; the rest is Send.
unsafe impl Send for Instance {}

/// Every IA name that our provider was ever initialised for. Entries are never removed: a table is
/// small, names are few, and a name that is initialised again gets the same table. A name is that of
/// the device that the table is for ([`Device::NAME`]) and that of the IA.
static INSTANCES: PerProcess<Mutex<BTreeMap<Named, Instance>>> = PerProcess::new(Mutex::default);

type Named = (&'static str, CString);

/// The parameters and the table of an IA name, if it was [entered](enter) for this device.
pub fn instance<D: Device>(name: &CStr) -> Option<Instance> {
    let instances = INSTANCES.lock();
    instances.get(&(D::NAME, name.to_owned())).cloned()
}

/// The entry of an IA name.
pub struct Entry {
    /// See [`Instance`].
    pub params: String,
    /// See [`Instance`].
    pub origin: String,
    /// See [`Instance`].
    pub says_thread_safe: bool,
}

/// Enters an IA name with its entry, and gives its function table. `make` makes that for a name which is
/// new; the characters of the name that it gets live as long as the process.
pub fn enter<D: Device>(
    name: &CStr,
    entry: Entry,
    make: impl FnOnce(*const c_char) -> Tables,
) -> Option<*const c_void> {
    let Entry {
        params,
        origin,
        says_thread_safe,
    } = entry;
    let mut instances = INSTANCES.lock();
    let name = (D::NAME, name.to_owned());
    if let Some(instance) = instances.get_mut(&name) {
        instance.params = params;
        instance.origin = origin;
        instance.says_thread_safe = says_thread_safe;
        return Some(instance.tables.plain);
    }
    // The name moves, its characters on the heap do not.
    let tables = make(name.1.as_ptr());
    let instance = Instance {
        params,
        origin,
        says_thread_safe,
        tables,
        async_evds: Arc::default(),
    };
    instances.insert(name, instance);
    Some(tables.plain)
}
