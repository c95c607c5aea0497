//! What the key table and memory regions call to make memory reachable for peers.

use super::{exported_keys, mapped};
use crate::device::Access;
use crate::device::soft::mem::export::{Exporter, Register};
use crate::device::soft::mem::key_entry::KeyEntry;
use crate::device::soft::mem::key_table::Region;

/// Exports keys through [`exported_keys`] and memory through [`mapped`].
pub(crate) struct ShmExporter;

impl Exporter for ShmExporter {
    fn make_room(&self, slots: u32) -> bool {
        exported_keys::make_room(slots)
    }

    fn publish(&self, key: u32, entry: &KeyEntry) {
        exported_keys::publish(key, entry);
    }

    fn revoke(&self, key: u32, entry: &KeyEntry) {
        exported_keys::revoke(key, entry);
    }

    fn restrict(&self, key: u32, entry: &KeyEntry, rights: Access) -> Access {
        exported_keys::restrict(key, entry, rights)
    }

    fn share(&self, addr: u64, len: u64, register: Register<'_>) -> Option<Region> {
        mapped::register(addr, len, register)
    }

    fn wait_for_moves(&self) {
        mapped::wait_for_moves();
    }

    fn unshare(&self, addr: u64, len: u64) {
        mapped::release(addr, len);
    }
}
