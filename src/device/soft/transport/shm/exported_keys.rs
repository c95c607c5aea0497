//! The keys of this process, in shared memory for peers on this host, and the revocation of a key.
//! [`copy_waits`] waits for peers that still use a revoked key.
//!
//! The exported table exists from the first peer on. It is a copy of the table of this process,
//! not the table itself, because a forked child shares the exported memory with its parent, which
//! alone may change it: each process has a table and a copy of its own.
//!
//! The exported table has as many slots as the directory of the keys
//! ([`directory`](crate::device::soft::mem::key_table::slots)), and the entry of a key in the same
//! slot. It grows with the keys in use, because the size of files may be limited (`RLIMIT_FSIZE`). A
//! key for which there is no room in the exported table is not handed out at all ([`make_room`]):
//! peers that use it would be refused for no reason that a user could find.
//!
//! When the table grows, entries move. Peers learn the new size from that of the file, and only if
//! they do not find a key. An entry is in its new slot before it leaves the old one, and a peer
//! notices if that happens while it reads ([`RemoteKeys`](super::remote_keys::RemoteKeys)): nothing
//! waits for peers, which may be stopped.

use std::sync::Arc;

use crate::descriptor::OwnedFd;
use crate::lock::Mutex;
use rustix::io::Errno;

use super::copy_waits::{self, REGION_TIMEOUT, SHORT_TIMEOUT};
use super::memfd::GrowingMemory;
use super::remote_keys;
use crate::device::Access;
use crate::device::soft::mem::key_entry::{KeyEntry, MappedRange};
use crate::device::soft::mem::key_table;
use crate::process::PerProcess;

/// The exported table.
struct ExportedKeys {
    /// The entries.
    memory: GrowingMemory,
    /// The file of the memory, to be sent to peers.
    fd: Arc<OwnedFd>,
}

impl ExportedKeys {
    fn entries(&self) -> &[KeyEntry] {
        // SAFETY: entries are made of atomics.
        unsafe { self.memory.as_slice::<KeyEntry>() }
    }

    /// The slot of a key; `None` if there is none.
    fn slot(&self, key: u32) -> Option<&KeyEntry> {
        let entries = self.entries();
        entries.get(key as usize & entries.len().checked_sub(1)?)
    }

    /// Grows the table to so many slots, a power of two.
    fn grow(&mut self, slots: usize) -> Result<(), Errno> {
        let before = self.entries().len();
        if slots <= before {
            return Ok(());
        }
        self.memory.grow(slots * size_of::<KeyEntry>())?;
        remote_keys::spread(&self.entries()[..slots], before);
        Ok(())
    }
}

/// The exported table, once there was a peer. The lock also orders the changes of a key in both
/// tables.
static EXPORTED: PerProcess<Mutex<Option<ExportedKeys>>> = PerProcess::new(Mutex::default);

/// The largest size of the table, in bytes.
pub(super) const TABLE_LEN: usize = key_table::MAX_SLOTS as usize * size_of::<KeyEntry>();

/// The file of the exported table, to be sent to a peer. Makes the table if there is none.
///
/// # Errors
/// The error of the kernel.
pub(crate) fn file() -> Result<Arc<OwnedFd>, Errno> {
    let mut exported = EXPORTED.lock();
    if let Some(exported) = &*exported {
        return Ok(exported.fd.clone());
    }
    let (fd, memory) = GrowingMemory::create(c"libdat-keys", TABLE_LEN)?;
    let mut new = ExportedKeys {
        memory,
        fd: Arc::new(fd),
    };
    // A thread that makes a larger directory after this finds the exported table, and calls
    // `make_room`.
    new.grow(key_table::slots() as usize)?;
    key_table::for_each_entry(|entry| {
        let key = entry.key();
        if key != 0
            && let Some(copy) = new.slot(key)
        {
            copy.fill(&entry.contents());
            copy.set_key(key);
        }
    });
    let fd = new.fd.clone();
    *exported = Some(new);
    Ok(fd)
}

/// Grows the exported table, if there is one, to so many slots. False if the table cannot grow.
pub(crate) fn make_room(slots: u32) -> bool {
    let mut exported = EXPORTED.lock();
    match &mut *exported {
        Some(exported) => exported.grow(slots as usize).is_ok(),
        _ => true,
    }
}

/// Makes `key` valid for what `entry` holds, in our own table and in the exported one.
pub(crate) fn publish(key: u32, entry: &KeyEntry) {
    let exported = EXPORTED.lock();
    entry.set_key(key);
    if let Some(copy) = exported.as_ref().and_then(|table| table.slot(key)) {
        copy.fill(&entry.contents());
        copy.set_key(key);
    }
}

/// Calls `change` with both entries of a region, and with those of its windows, unless its key has
/// become invalid. False in that case.
fn change_region(key: u32, serial: u64, change: impl Fn(&KeyEntry)) -> bool {
    // No key becomes valid or invalid meanwhile.
    let exported = EXPORTED.lock();
    let mut is_valid = false;
    key_table::for_each_entry(|entry| {
        let contents = entry.contents();
        let own = entry.key();
        let is_region = own == key && entry.is_region() && contents.serial == serial;
        let is_window = own != 0 && contents.region == (key, serial);
        if !is_region && !is_window {
            return;
        }
        is_valid |= is_region;
        change(entry);
        if let Some(copy) = exported.as_ref().and_then(|table| table.slot(own)) {
            change(copy);
        }
    });
    is_valid
}

/// Extends the part of a region, and of its windows, that peers may map. False if the region is not
/// registered any more.
pub(super) fn extend_mapped(key: u32, serial: u64, mapped: MappedRange) -> bool {
    change_region(key, serial, |entry| entry.extend_mapped(mapped))
}

/// The region stays where it is, however much peers use it.
pub(super) fn keep_private(key: u32, serial: u64) {
    change_region(key, serial, KeyEntry::keep_private);
}

/// Makes the key of an entry invalid for accesses that begin later. When this returns no peer
/// accesses the memory by that key any longer; other threads of this process may still do so.
pub(crate) fn revoke(key: u32, entry: &KeyEntry) {
    let exported = EXPORTED.lock();
    entry.set_key(0);
    if let Some(copy) = exported.as_ref().and_then(|table| table.slot(key)) {
        copy.set_key(0);
    }
    drop(exported);
    let timeout = if entry.is_region() {
        REGION_TIMEOUT
    } else {
        SHORT_TIMEOUT
    };
    copy_waits::wait_for_key(key, entry, timeout);
}

/// Removes rights from an entry, and returns the rights it had. When this returns no peer accesses
/// the memory by the removed rights any longer.
pub(crate) fn restrict(key: u32, entry: &KeyEntry, rights: Access) -> Access {
    let exported = EXPORTED.lock();
    let before = entry.restrict(rights);
    if let Some(copy) = exported.as_ref().and_then(|table| table.slot(key)) {
        copy.restrict(rights);
    }
    drop(exported);
    copy_waits::wait_for_key(key, entry, SHORT_TIMEOUT);
    before
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft::mem::key_entry::Origin;
    use crate::device::soft::mem::key_table::{Opening, Region, Reserved};

    /// A promotion shows in both entries of a region and of its windows, and in no other.
    #[test]
    fn a_region_and_its_windows() {
        let opening = Opening {
            pd: 7,
            addr: 4096,
            len: 3 * 4096,
            origin: Origin::Memory,
            access: Access::REMOTE_WRITE,
            promotable: true,
            region: None,
            mapped: MappedRange::default(),
        };
        let [region, other] = [(); 2].map(|()| Region::register(&opening).unwrap());
        let window = Reserved::new(&Opening {
            promotable: false,
            region: Some(region),
            ..opening
        });
        let window = window.unwrap();
        let (key, window) = (window.key(), window.publish());
        // What is registered before is in the table when it is made.
        file().unwrap();
        let serial = key_table::region(region.key).unwrap().serial;
        assert!(key_table::region(key).is_none());
        let own = |key: u32| {
            let mut found = None;
            key_table::for_each_entry(|entry| {
                if entry.key() == key {
                    found = Some(entry.contents());
                }
            });
            found.unwrap()
        };
        let copy = |key: u32| {
            let exported = EXPORTED.lock();
            exported.as_ref().unwrap().slot(key).unwrap().contents()
        };
        for end in [8192, 12288, 8192] {
            let mapped = MappedRange { start: 4096, end };
            assert!(extend_mapped(region.key, serial, mapped));
        }
        keep_private(region.key, serial);
        let mapped = MappedRange {
            start: 4096,
            end: 12288,
        };
        for contents in [own(region.key), copy(region.key), own(key), copy(key)] {
            assert_eq!((contents.mapped, contents.promotable), (mapped, false));
        }
        for contents in [own(other.key), copy(other.key)] {
            assert!(contents.mapped.is_empty() && contents.promotable);
        }
        assert!(!extend_mapped(
            region.key,
            serial + 100,
            MappedRange::default()
        ));
        drop(window);
        region.deregister();
        other.deregister();
        assert!(!extend_mapped(region.key, serial, MappedRange::default()));
    }
}
