//! The keys of this process, in shared memory for peers on this host, and the revocation of a key.
//! [`copy_waits`] waits for peers that still use a revoked key.
//!
//! The exported table exists from the first peer on. It is a copy of the table of this process,
//! not the table itself, because a forked child shares the exported memory with its parent, which
//! alone may change it: each process has a table and a copy of its own.
//!
//! The exported table is as large as the keys in use need, and grows with them, because the size
//! of files may be limited (`RLIMIT_FSIZE`). A key for which there is no room in the exported
//! table is not handed out at all ([`make_room`]): peers that use it would be refused for no
//! reason that a user could find.

use std::sync::Arc;

use crate::descriptor::OwnedFd;
use crate::lock::Mutex;
use rustix::io::Errno;

use super::copy_waits::{self, REGION_TIMEOUT, SHORT_TIMEOUT};
use super::memfd::GrowingMemory;
use crate::device::Access;
use crate::device::soft::mem::key_entry::KeyEntry;
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

    /// The entry with that index; `None` if there is none.
    fn entry(&self, index: u32) -> Option<&KeyEntry> {
        self.entries().get(index as usize)
    }

    /// Grows the table to at least `count` entries.
    fn grow(&mut self, count: usize) -> Result<(), Errno> {
        if count <= self.entries().len() {
            return Ok(());
        }
        let len = count * size_of::<KeyEntry>();
        self.memory
            .grow(len.next_multiple_of(GROW_STEP).min(TABLE_LEN))
    }
}

/// The exported table, once there was a peer. The lock also orders the changes of a key in both
/// tables.
static EXPORTED: PerProcess<Mutex<Option<ExportedKeys>>> = PerProcess::new(Mutex::default);

/// The largest size of the table, in bytes.
pub(super) const TABLE_LEN: usize = key_table::MAX_KEYS as usize * size_of::<KeyEntry>();

/// The table grows by a multiple of so many bytes.
const GROW_STEP: usize = 16 << 10;

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
    // A thread that takes an entry after this finds the exported table, and calls `make_room`.
    new.grow(key_table::used_entries() as usize)?;
    key_table::for_each_entry(|(index, entry)| {
        if entry.key() != 0
            && let Some(copy) = new.entry(index)
        {
            copy.fill(&entry.contents());
            copy.set_key(entry.key());
        }
    });
    let fd = new.fd.clone();
    *exported = Some(new);
    Ok(fd)
}

/// Grows the exported table, if there is one, so that it has an entry with that index. False if
/// the table cannot grow.
pub(crate) fn make_room(index: u32) -> bool {
    let mut exported = EXPORTED.lock();
    match &mut *exported {
        Some(exported) => exported.grow(index as usize + 1).is_ok(),
        _ => true,
    }
}

/// Makes `key` valid for what `entry` holds, in our own table and in the exported one.
pub(crate) fn publish(index: u32, key: u32, entry: &KeyEntry) {
    let exported = EXPORTED.lock();
    entry.set_key(key);
    if let Some(copy) = exported.as_ref().and_then(|table| table.entry(index)) {
        copy.fill(&entry.contents());
        copy.set_key(key);
    }
}

/// Makes the key of an entry invalid for accesses that begin later. When this returns no peer
/// accesses the memory by that key any longer; other threads of this process may still do so.
pub(crate) fn revoke(index: u32, entry: &KeyEntry) {
    let exported = EXPORTED.lock();
    let key = entry.key();
    entry.set_key(0);
    if let Some(copy) = exported.as_ref().and_then(|table| table.entry(index)) {
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
pub(crate) fn restrict(index: u32, entry: &KeyEntry, rights: Access) -> Access {
    let exported = EXPORTED.lock();
    let before = entry.restrict(rights);
    if let Some(copy) = exported.as_ref().and_then(|table| table.entry(index)) {
        copy.restrict(rights);
    }
    drop(exported);
    copy_waits::wait_for_key(entry.key(), entry, SHORT_TIMEOUT);
    before
}
