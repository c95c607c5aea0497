//! How registered memory is made reachable for the peers of this host.
//!
//! Peers read a copy of the key table, and map registered memory. Both are made by the transport,
//! which is above this folder: it hands down an [`Exporter`]. Nothing here is called by a check of
//! a key or by a copy.

use std::sync::OnceLock;

use super::key_entry::{KeyEntry, MappedRange};
use super::key_table::Region;
use crate::device::Access;

/// Registers memory of which peers may map a range; `None` if no key is left.
pub(crate) type Register<'a> = &'a mut dyn FnMut(MappedRange) -> Option<Region>;

/// Makes registered memory reachable for the peers of this host.
pub(crate) trait Exporter: Sync {
    /// Makes the copy that peers read as large as a directory of so many slots; false if the copy
    /// cannot grow.
    fn make_room(&self, slots: u32) -> bool;
    /// Makes `key` valid in its entry and in the copy.
    fn publish(&self, key: u32, entry: &KeyEntry);
    /// Makes the key of an entry invalid, also in the copy. When this returns no peer uses the
    /// key any more; other threads of this process may.
    fn revoke(&self, key: u32, entry: &KeyEntry);
    /// Takes rights from an entry and from the copy; returns those that the entry had. When this
    /// returns no peer uses these rights any more.
    fn restrict(&self, key: u32, entry: &KeyEntry, rights: Access) -> Access;
    /// Moves what can be moved of a range to where peers may map it, and registers the range.
    fn share(&self, addr: u64, len: u64, register: Register<'_>) -> Option<Region>;
    /// A range was registered without [`Exporter::share`]: waits for moves of memory that began
    /// before.
    fn wait_for_moves(&self);
    /// A range is not registered any more: moves back what no other region has.
    fn unshare(&self, addr: u64, len: u64);
}

/// What there is before an exporter is set, for memory that no peer reaches.
struct Unexported;

impl Exporter for Unexported {
    fn make_room(&self, _slots: u32) -> bool {
        true
    }

    fn publish(&self, key: u32, entry: &KeyEntry) {
        entry.set_key(key);
    }

    fn revoke(&self, _key: u32, entry: &KeyEntry) {
        entry.set_key(0);
    }

    fn restrict(&self, _key: u32, entry: &KeyEntry, rights: Access) -> Access {
        entry.restrict(rights)
    }

    fn share(&self, _addr: u64, _len: u64, register: Register<'_>) -> Option<Region> {
        register(MappedRange::default())
    }

    fn wait_for_moves(&self) {}

    fn unshare(&self, _addr: u64, _len: u64) {}
}

/// The exporter of the process, once it is set.
static EXPORTER: OnceLock<&dyn Exporter> = OnceLock::new();

/// Sets the exporter of the process. Every device does so before memory can be registered with
/// it, and all set the same one.
pub(crate) fn set_exporter(exporter: &'static dyn Exporter) {
    let _ = EXPORTER.set(exporter);
}

/// The exporter of the process.
pub(super) fn exporter() -> &'static dyn Exporter {
    EXPORTER.get().copied().unwrap_or(&Unexported)
}
