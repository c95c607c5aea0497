//! The table of the keys of memory regions and windows.
//!
//! There is one table for the whole process, so that a key means the same to all its devices.
//!
//! A key is a random number of 32 bits, drawn for each registration and each bind by the generator
//! of the system: who knows keys, however many, knows nothing about others, those before and after
//! them, of other processes or of a forked child. That is the only protection of memory from a peer
//! whose protection zone it shares. The [directory](super::directory) finds the entry of a key.
//!
//! A lookup takes no lock: it happens inside a read-side section ([`pin`]). After a key was made
//! invalid, its entry, and the memory that it opened, are used for something else only when all
//! sections have ended.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::directory::{CurrentDirectory, OwnedDirectory};
use super::export::exporter;
use super::key_entry::{Contents, KeyEntry, MappedRange, Origin};
use super::scope::Scope;
use crate::device::random::random;
use crate::device::{Access, PostError, Sge};
use crate::handle::Guard;
use crate::handle::pin;
use crate::lock::{self, Mutex, MutexGuard};
use crate::process;

/// Number of regions of the whole process at most; there are as many keys again for windows.
pub(crate) const MAX_MR: u32 = MAX_KEYS / 2;
/// Number of keys at most.
const MAX_KEYS: u32 = 1 << 21;
/// Number of slots at most.
pub(crate) const MAX_SLOTS: u32 = 2 * MAX_KEYS;
/// Number of slots that are made for the first key.
const MIN_SLOTS: u32 = 256;
/// Number of entries that are allocated at a time.
const CHUNK: usize = 64;

/// Why a key does not open a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No such key.
    Key,
    /// The range is not inside the region.
    Bounds,
    /// The region does not grant the access.
    Access,
    /// The region belongs to another protection domain.
    Domain,
}

impl From<Fault> for PostError {
    // Not inlined: the match would become a jump table that a success passes through as well.
    #[cold]
    #[inline(never)]
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Key => PostError::Key,
            Fault::Bounds => PostError::Bounds,
            Fault::Access => PostError::Access,
            Fault::Domain => PostError::Protection,
        }
    }
}

/// A reference to the entry of a region or window, valid until its key is deregistered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// The key.
    pub key: u32,
    /// The number of the use of the entry.
    serial: u64,
    /// The entry, which may be used for something else once the key is deregistered.
    entry: &'static KeyEntry,
}

impl Region {
    fn entry(self) -> Option<&'static KeyEntry> {
        let valid = self.entry.is(self.key) && self.entry.serial() == self.serial;
        valid.then_some(self.entry)
    }

    /// Registers a region; `None` if no key is left.
    pub fn register(opening: &Opening) -> Option<Region> {
        let region = TABLE.reserve(opening)?;
        exporter().publish(region.key, region.entry);
        Some(region)
    }

    /// Deregisters the region, once: when this returns no section and no peer uses it any more.
    pub fn deregister(self) {
        revoke(self.key, self.entry);
        pin::synchronize();
        TABLE.release(self.key, self.entry);
    }

    /// What peers may map of the region.
    pub fn mapped_range(self) -> MappedRange {
        self.entry().map(KeyEntry::mapped_range).unwrap_or_default()
    }

    /// Whether the region is still registered.
    pub fn is_alive(self, _guard: &Guard) -> bool {
        self.entry().is_some()
    }
}

/// What changes when keys are made and given up.
struct Free {
    /// Entries without a key.
    entries: Vec<&'static KeyEntry>,
    /// Number of entries that there are, with a key or without.
    made: usize,
    /// The keys, valid or not yet or no longer, by their slots; 0 in a free slot.
    taken: Vec<u32>,
    /// Number of keys in `taken`.
    count: u32,
    /// The serial that was given out last.
    last_serial: u64,
}

struct Table {
    /// Where the entries of keys are.
    directory: CurrentDirectory,
    /// What changes when keys are made and given up. Directories are replaced under this lock.
    free: Mutex<Free>,
    /// Number of slots of the directory, or of the one that is about to replace it. Changed under
    /// the lock of `free`.
    slots: AtomicU32,
}

/// In a forked child: its parent's regions and windows are not memory of its own IAs. The entries
/// stay where they are, and are not used any more.
static FORGET_KEYS: fn() = || {
    TABLE.directory.forget();
    TABLE.slots.store(0, Ordering::Relaxed);
    // SAFETY: this is the only thread, and it is in no function of this module.
    unsafe { lock::reset(&TABLE.free, Free::new()) };
};

static TABLE: Table = Table {
    directory: CurrentDirectory::empty(),
    free: Mutex::new(Free::new()),
    slots: AtomicU32::new(0),
};

/// Number of times that a key became invalid, plus 1. Changed after the key and before the wait for sections.
static REVOCATIONS: AtomicU64 = AtomicU64::new(1);

/// A number that changes whenever a key becomes invalid. A check of local segments holds for as long as the
/// number is the one that was read before the check: a section that reads the same number is one that the
/// revocation of any key since waits for. Never 0.
#[inline(always)]
pub(crate) fn revocations(_guard: &Guard) -> u64 {
    REVOCATIONS.load(Ordering::Acquire)
}

/// Makes a key invalid for sections that begin later.
fn revoke(key: u32, entry: &KeyEntry) {
    exporter().revoke(key, entry);
    REVOCATIONS.fetch_add(1, Ordering::Release);
}

impl Free {
    /// Without a key.
    const fn new() -> Free {
        Free {
            entries: Vec::new(),
            made: 0,
            taken: Vec::new(),
            count: 0,
            last_serial: 0,
        }
    }

    /// The slot of a key.
    fn slot(&mut self, key: u32) -> &mut u32 {
        let mask = self.taken.len() - 1;
        &mut self.taken[key as usize & mask]
    }

    /// Draws a key whose slot is free; `None` if the system gives no random numbers. At least a
    /// quarter of the slots is free.
    fn draw_key(&mut self) -> Option<u32> {
        loop {
            let number = random().ok()?;
            for key in [number as u32, (number >> 32) as u32] {
                if key != 0 && *self.slot(key) == 0 {
                    return Some(key);
                }
            }
        }
    }

    /// Takes an entry without a key; `None` if there is no memory for one.
    fn take_entry(&mut self) -> Option<&'static KeyEntry> {
        if self.entries.is_empty() {
            let mut chunk: Vec<KeyEntry> = Vec::new();
            chunk.try_reserve_exact(CHUNK).ok()?;
            // For all entries, so that a key can always be given up.
            self.entries.try_reserve(self.made + CHUNK).ok()?;
            chunk.resize_with(CHUNK, KeyEntry::default);
            self.made += CHUNK;
            self.entries.extend(&*chunk.leak());
        }
        self.entries.pop()
    }
}

/// What a key opens.
pub(crate) struct Opening {
    /// The protection domain.
    pub pd: u32,
    /// Address of the first byte in memory.
    pub addr: u64,
    /// Number of bytes.
    pub len: u64,
    /// From where addresses count.
    pub origin: Origin,
    /// The rights.
    pub access: Access,
    /// Whether a region is to be moved to where peers may map it, once they have used it enough.
    pub promotable: bool,
    /// The region that a window is bound to; `None` for a region.
    pub region: Option<Region>,
    /// What peers may map of the range.
    pub mapped: MappedRange,
}

impl Table {
    /// The entry of a valid key, in a read-side section.
    #[inline(always)]
    fn entry(&self, key: u32) -> Option<&'static KeyEntry> {
        let entry = self.directory.find(key)?;
        entry.is(key).then_some(entry)
    }

    fn lock_free(&self) -> MutexGuard<'_, Free> {
        if self.slots.load(Ordering::Relaxed) == 0 {
            process::in_child(&FORGET_KEYS);
        }
        self.free.lock()
    }

    /// Makes a key for an entry that it fills. The key is valid once it is published.
    fn reserve(&self, opening: &Opening) -> Option<Region> {
        let mut free = self.lock_free();
        let old = self.make_room(&mut free)?;
        let drawn = free.draw_key();
        let entry = drawn.and_then(|_| free.take_entry());
        if let (Some(key), Some(entry)) = (drawn, entry) {
            free.last_serial += 1;
            let serial = free.last_serial;
            entry.fill(&Contents {
                pd: opening.pd,
                addr: opening.addr,
                len: opening.len,
                origin: opening.origin,
                access: opening.access,
                promotable: opening.promotable,
                serial,
                region: opening.region.map_or((0, 0), |r| (r.key, r.serial)),
                mapped: opening.mapped,
            });
            free.count += 1;
            *free.slot(key) = key;
            self.directory.set(key, Some(entry));
            drop(free);
            retire(old);
            return Some(Region { key, serial, entry });
        }
        drop(free);
        retire(old);
        None
    }

    /// Makes room for one more key: replaces the directory if more than three quarters of it were
    /// taken then. Returns the directory that was replaced. `None` if there can be no more keys, or
    /// the copy that peers read has no room for them.
    fn make_room(&self, free: &mut Free) -> Option<Option<OwnedDirectory>> {
        if free.count == MAX_KEYS {
            return None;
        }
        let slots = self.slots.load(Ordering::Relaxed);
        if free.count < slots / 4 * 3 {
            return Some(None);
        }
        let more = (slots * 2).max(MIN_SLOTS);
        let mut taken = Vec::new();
        taken.try_reserve_exact(more as usize).ok()?;
        taken.resize(more as usize, 0);
        let mut directory = OwnedDirectory::new(more)?;
        // Before the call, so that a copy which is made for peers meanwhile has as many slots.
        self.slots.store(more, Ordering::Relaxed);
        if !exporter().make_room(more) {
            self.slots.store(slots, Ordering::Relaxed);
            return None;
        }
        let keys = std::mem::replace(&mut free.taken, taken);
        for key in keys.into_iter().filter(|key| *key != 0) {
            // The lock of `free` keeps the directory that this reads.
            if let Some(entry) = self.directory.find(key) {
                directory.set(key, entry);
            }
            *free.slot(key) = key;
        }
        Some(self.directory.replace(directory))
    }

    /// Gives up a key that is not valid and that no section sees.
    fn release(&self, key: u32, entry: &'static KeyEntry) {
        let mut free = self.lock_free();
        self.directory.set(key, None);
        *free.slot(key) = 0;
        free.count -= 1;
        free.entries.push(entry);
    }
}

/// Frees a directory when all sections have ended.
fn retire<D: Send + 'static>(old: Option<D>) {
    if let Some(old) = old {
        pin::retire(move || drop(old));
    }
}

/// A key that is not valid yet. Dropping it releases the key.
#[derive(Debug)]
pub(crate) struct Reserved(Region);

impl Reserved {
    /// Reserves a key for a range of a region; `None` if no key is left.
    pub fn new(opening: &Opening) -> Option<Reserved> {
        TABLE.reserve(opening).map(Reserved)
    }

    /// The key.
    pub fn key(&self) -> u32 {
        self.0.key
    }

    /// Makes the key valid.
    pub fn publish(self) -> WindowKey {
        let region = self.0;
        std::mem::forget(self);
        exporter().publish(region.key, region.entry);
        WindowKey(region)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        TABLE.release(self.0.key, self.0.entry);
    }
}

/// The key of a window that is bound. Dropping it makes the key invalid for sections that begin
/// later, and waits for no section: the drop may happen inside one.
#[derive(Debug)]
pub(crate) struct WindowKey(Region);

impl WindowKey {
    /// The key.
    pub fn key(&self) -> u32 {
        self.0.key
    }

    /// Whether the key still has these rights: a peer that invalidates it takes them.
    pub fn has(&self, rights: Access) -> bool {
        self.0.entry.contents().access.contains(rights)
    }
}

impl Drop for WindowKey {
    fn drop(&mut self) {
        let Region { key, entry, .. } = self.0;
        revoke(key, entry);
        pin::retire(move || TABLE.release(key, entry));
    }
}

/// Checks that `key` opens `len` bytes of memory at `addr` for `need`. The result holds until the section
/// ends. A range of no bytes needs no key.
#[inline(always)]
pub(crate) fn check(
    key: u32,
    scope: Scope,
    addr: u64,
    len: u64,
    need: Access,
    _guard: &Guard,
) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    let entry = TABLE.entry(key).ok_or(Fault::Key)?;
    entry.check(scope, addr, len, need, |key| TABLE.entry(key))
}

/// [`check`] for a range as a local segment or a peer names it. Returns the address of its first byte in
/// memory.
#[inline(always)]
pub(crate) fn resolve(
    key: u32,
    scope: Scope,
    addr: u64,
    len: u64,
    need: Access,
    _guard: &Guard,
) -> Result<u64, Fault> {
    if len == 0 {
        return Ok(addr);
    }
    let entry = TABLE.entry(key).ok_or(Fault::Key)?;
    entry.resolve(scope, addr, len, need, |key| TABLE.entry(key))
}

/// The entry of a valid key.
pub(super) fn entry(key: u32, _guard: &Guard) -> Option<&'static KeyEntry> {
    TABLE.entry(key)
}

/// Whether `window` is, or was last, the key of a window that is bound to the region with that key
/// and serial.
pub(crate) fn is_window_of(window: u32, region: u32, region_serial: u64) -> bool {
    let _guard = pin::pin();
    let entry = TABLE.directory.find(window).map(KeyEntry::contents);
    entry.is_some_and(|entry| entry.region == (region, region_serial))
}

/// Whether a key opens some of these bytes of memory, or has opened them and is about to be released.
pub(crate) fn opens_any(key: u32, bytes: &std::ops::Range<u64>) -> bool {
    let _guard = pin::pin();
    let found = TABLE.directory.find(key);
    found.is_some_and(|entry| {
        let (own, start) = (entry.key(), entry.start());
        // Not that of another key in the same slot.
        (own == key || own == 0)
            && start < bytes.end
            && bytes.start < start.saturating_add(entry.size())
    })
}

/// Calls `f` for every entry that has a key, valid or not.
pub(crate) fn for_each_entry(f: impl FnMut(&'static KeyEntry)) {
    let _guard = pin::pin();
    TABLE.directory.for_each(f);
}

/// What the valid key of a region opens; `None` if there is no such region.
pub(crate) fn region(key: u32) -> Option<Contents> {
    let _guard = pin::pin();
    let entry = TABLE.entry(key).filter(|entry| entry.is_region())?;
    Some(entry.contents())
}

/// Whether a key is that of a region, or of a window, which peers may map.
pub(crate) fn is_mapped(key: u32) -> bool {
    let _guard = pin::pin();
    let entry = TABLE.entry(key);
    entry.is_some_and(|entry| !entry.mapped_range().is_empty())
}

/// Number of slots of the directory: the lowest bits of a key are the number of its slot, and no
/// two keys have the same. A power of two, or 0 before the first key.
pub(crate) fn slots() -> u32 {
    TABLE.slots.load(Ordering::Relaxed)
}

/// [`check`] for every segment of a list: one that waits in a queue, whose addresses are those of
/// memory.
#[inline(always)]
pub(crate) fn check_all(sges: &[Sge], pd: u32, need: Access, guard: &Guard) -> Result<(), Fault> {
    let scope = Scope::of_pd(pd);
    let check = |s: &Sge| check(s.lkey, scope, s.addr, u64::from(s.len), need, guard);
    match sges {
        // Nearly always a single segment, which needs no loop.
        [only] => check(only),
        sges => sges.iter().try_for_each(check),
    }
}

/// Takes remote access from a window, for a peer that invalidates its key. That of a region is no peer's to
/// take: a region is open to all peers of its domain, and could not be opened again.
pub(crate) fn invalidate(key: u32, scope: Scope, _guard: &Guard) -> Result<(), Fault> {
    let entry = TABLE.entry(key).ok_or(Fault::Key)?;
    if !scope.has(entry.pd()) {
        return Err(Fault::Domain);
    }
    if entry.is_region() {
        return Err(Fault::Access);
    }
    let remote = Access::REMOTE;
    let before = exporter().restrict(key, entry, remote);
    if !before.intersects(remote) {
        return Err(Fault::Access);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
