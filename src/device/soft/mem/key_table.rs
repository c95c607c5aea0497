//! The table of the keys of memory regions and windows.
//!
//! There is one table for the whole process, so that a key means the same to all its devices.
//! A lookup takes no lock: it happens inside a read-side section ([`pin`]). After a key was made
//! invalid, its entry, and the memory that it opened, are used for something else only when all
//! sections have ended.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::lock::{self, Mutex, MutexGuard};
use crate::process;

use super::export::exporter;
use super::key_entry::{Contents, INDEX_MASK, KeyEntry, MappedRange, index};
use crate::device::{Access, PostError, Sge};
use crate::handle::Guard;
use crate::handle::pin;

/// Number of regions of the whole process at most; there are as many keys again for windows.
pub(crate) const MAX_MR: u32 = MAX_KEYS / 2;
/// Number of entries of a segment of the table.
const SEGMENT_LEN: u32 = 1 << SEGMENT_BITS;
/// Bits of an index that are the index in a segment.
const SEGMENT_BITS: u32 = 10;
/// Number of segments of the table at most.
const SEGMENTS: usize = 1 << 11;
/// Number of entries of the table at most.
pub(crate) const MAX_KEYS: u32 = SEGMENTS as u32 * SEGMENT_LEN;
/// Number of released entries from which on the oldest of them is used again before a new one.
const MIN_RELEASED: usize = 1024;

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
}

impl Region {
    fn entry(self) -> Option<&'static KeyEntry> {
        let entry = TABLE.entry(self.key)?;
        (entry.serial() == self.serial).then_some(entry)
    }

    /// Registers a region; `None` if no key is left.
    pub fn register(opening: &Opening) -> Option<Region> {
        let region = TABLE.reserve(opening)?;
        TABLE.publish(region.key);
        Some(region)
    }

    /// Deregisters the region, once: when this returns no section and no peer uses it any more.
    pub fn deregister(self) {
        TABLE.revoke(self.key);
        pin::synchronize();
        TABLE.release(self.key);
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

/// The entries that are free.
struct Free {
    /// Indices of the entries that were released, the oldest first, so that a key is used again as
    /// late as possible, each with the generation of its last key.
    released: VecDeque<(u32, u8)>,
    /// The serial that was given out last.
    last_serial: u64,
}

type Segment = [KeyEntry; SEGMENT_LEN as usize];

struct Table {
    /// The segments, each null until it is first needed, and never freed.
    segments: [AtomicPtr<Segment>; SEGMENTS],
    /// The entries that are free.
    free: Mutex<Free>,
    /// Number of entries, from the first on, that were used before. Changed under the lock of
    /// `free`.
    used: AtomicU32,
    /// What is added to an index to make a key: random, so that a key of another process, or of
    /// an earlier run, opens nothing here. 0 before the first key.
    salt: AtomicU32,
}

/// In a forked child: its parent's regions and windows are not memory of its own IAs. The entries
/// stay where they are, and are not used any more.
static FORGET_KEYS: fn() = || {
    for segment in &TABLE.segments {
        segment.store(null_mut(), Ordering::Relaxed);
    }
    TABLE.used.store(0, Ordering::Relaxed);
    TABLE.salt.store(0, Ordering::Relaxed);
    let last_serial = 0;
    let released = VecDeque::new();
    // SAFETY: this is the only thread, and it is in no function of this module.
    unsafe {
        lock::reset(
            &TABLE.free,
            Free {
                released,
                last_serial,
            },
        )
    };
};

static TABLE: Table = Table {
    segments: [const { AtomicPtr::new(null_mut()) }; SEGMENTS],
    free: Mutex::new(Free {
        released: VecDeque::new(),
        last_serial: 0,
    }),
    used: AtomicU32::new(0),
    salt: AtomicU32::new(0),
};

/// What a key opens.
pub(crate) struct Opening {
    /// The protection domain.
    pub pd: u32,
    /// Address of the first byte.
    pub addr: u64,
    /// Number of bytes.
    pub len: u64,
    /// The rights.
    pub access: Access,
    /// The region that a window is bound to; `None` for a region.
    pub region: Option<Region>,
    /// What peers may map of the range.
    pub mapped: MappedRange,
}

impl Table {
    #[inline(always)]
    fn index(&self, key: u32) -> u32 {
        index(key, self.salt.load(Ordering::Relaxed))
    }

    fn lock_free(&self) -> MutexGuard<'_, Free> {
        if self.salt.load(Ordering::Relaxed) == 0 {
            process::in_child(&FORGET_KEYS);
        }
        self.free.lock()
    }

    fn salt(&self) -> u32 {
        self.salt_in(&self.lock_free())
    }

    /// The salt, which is chosen by the first call, under the lock.
    fn salt_in(&self, _free: &Free) -> u32 {
        if self.salt.load(Ordering::Relaxed) == 0 {
            let salt = RandomState::new().hash_one(0u8) as u32;
            self.salt.store(salt.max(1), Ordering::Relaxed);
        }
        self.salt.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn segment(&self, number: usize) -> Option<&Segment> {
        let segment = self.segments.get(number)?.load(Ordering::Acquire);
        // SAFETY: null, or a segment that lives as long as the process.
        unsafe { segment.as_ref() }
    }

    /// The entry that a key names, whether the key is valid or not.
    #[inline(always)]
    fn named_entry(&self, key: u32) -> Option<&KeyEntry> {
        let index = self.index(key);
        let segment = self.segment((index >> SEGMENT_BITS) as usize)?;
        Some(&segment[(index % SEGMENT_LEN) as usize])
    }

    /// The entry of a valid key.
    #[inline(always)]
    fn entry(&self, key: u32) -> Option<&KeyEntry> {
        let entry = self.named_entry(key)?;
        entry.is(key).then_some(entry)
    }

    /// Takes a free entry and fills it. Its key is valid from [`Table::publish`] on.
    fn reserve(&self, opening: &Opening) -> Option<Region> {
        let mut free = self.lock_free();
        let salt = self.salt_in(&free);
        let unused = (free.released.len() < MIN_RELEASED).then(|| self.take_unused(&free));
        let (index, generation) = match unused.flatten() {
            Some(index) => (index, RandomState::new().hash_one(index) as u8),
            None => free.released.pop_front()?,
        };
        free.last_serial += 1;
        let serial = free.last_serial;
        let number = (index >> SEGMENT_BITS) as usize;
        let segment = self.segment(number).unwrap_or_else(|| {
            let segment: Box<[KeyEntry]> = (0..SEGMENT_LEN).map(|_| KeyEntry::default()).collect();
            let Ok(segment) = <Box<Segment>>::try_from(segment) else {
                unreachable!("it has just been made as long");
            };
            let segment = Box::leak(segment);
            self.segments[number].store(segment, Ordering::Release);
            segment
        });
        drop(free);
        // 1 to 255: a key is never 0.
        let generation = generation % u8::MAX + 1;
        let key = (index.wrapping_add(salt) & INDEX_MASK) << 8 | u32::from(generation);
        let entry = &segment[(index % SEGMENT_LEN) as usize];
        entry.fill(&Contents {
            pd: opening.pd,
            addr: opening.addr,
            len: opening.len,
            access: opening.access,
            serial,
            region: opening.region.map_or((0, 0), |r| (r.key, r.serial)),
            mapped: opening.mapped,
        });
        Some(Region { key, serial })
    }

    /// Takes an entry that was never used, and for which the copy that peers read has room.
    fn take_unused(&self, _free: &Free) -> Option<u32> {
        let index = self.used.load(Ordering::Relaxed);
        if index == MAX_KEYS {
            return None;
        }
        // Before the call, so that a copy which is made for peers meanwhile has room for the entry.
        self.used.store(index + 1, Ordering::Relaxed);
        if !exporter().make_room(index) {
            self.used.store(index, Ordering::Relaxed);
            return None;
        }
        Some(index)
    }

    /// Makes a reserved key valid.
    fn publish(&self, key: u32) {
        if let Some(entry) = self.named_entry(key) {
            exporter().publish(self.index(key), key, entry);
        }
    }

    /// Makes a key invalid for sections that begin later. When this returns no peer of this host
    /// uses the key.
    fn revoke(&self, key: u32) {
        if let Some(entry) = self.entry(key) {
            exporter().revoke(self.index(key), entry);
        }
    }

    /// All entries that ever had a key, with their indices.
    fn entries(&self) -> impl Iterator<Item = (u32, &KeyEntry)> {
        let segments = (0..SEGMENTS).map_while(|number| self.segment(number));
        (0..).zip(segments.flatten())
    }

    /// Releases the entry of a key that no section sees.
    fn release(&self, key: u32) {
        let index = self.index(key);
        self.free.lock().released.push_back((index, key as u8));
    }
}

/// A key that is not valid yet. Dropping it releases the key.
#[derive(Debug)]
pub(crate) struct Reserved(u32);

impl Reserved {
    /// Reserves a key for a range of a region; `None` if no key is left.
    pub fn new(opening: &Opening) -> Option<Reserved> {
        Some(Reserved(TABLE.reserve(opening)?.key))
    }

    /// The key.
    pub fn key(&self) -> u32 {
        self.0
    }

    /// Makes the key valid.
    pub fn publish(self) -> WindowKey {
        let key = self.0;
        std::mem::forget(self);
        TABLE.publish(key);
        WindowKey(key)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        TABLE.release(self.0);
    }
}

/// The key of a window that is bound. Dropping it makes the key invalid for sections that begin
/// later, and waits for no section: the drop may happen inside one.
#[derive(Debug)]
pub(crate) struct WindowKey(u32);

impl Drop for WindowKey {
    fn drop(&mut self) {
        let key = self.0;
        TABLE.revoke(key);
        pin::retire(move || TABLE.release(key));
    }
}

/// Checks that `key` opens `len` bytes at `addr` for `need`. The result holds until the section
/// ends. A range of no bytes needs no key.
#[inline(always)]
pub(crate) fn check(
    key: u32,
    pd: u32,
    addr: u64,
    len: u64,
    need: Access,
    _guard: &Guard,
) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    let entry = TABLE.entry(key).ok_or(Fault::Key)?;
    entry.check(pd, addr, len, need, |key| TABLE.entry(key))
}

/// Whether `window` is, or was last, the key of a window that is bound to the region with that key
/// and serial.
pub(crate) fn is_window_of(window: u32, region: u32, region_serial: u64) -> bool {
    let entry = TABLE.named_entry(window).map(KeyEntry::contents);
    entry.is_some_and(|entry| entry.region == (region, region_serial))
}

/// Calls `f` for every entry that ever had a key, with its index.
pub(crate) fn for_each_entry(f: impl FnMut((u32, &KeyEntry))) {
    TABLE.entries().for_each(f);
}

/// Number of entries, from the first on, that were used before.
pub(crate) fn used_entries() -> u32 {
    TABLE.used.load(Ordering::Relaxed)
}

/// The salt of the keys: see [`index`].
pub(crate) fn salt() -> u32 {
    TABLE.salt()
}

/// Whether the range is inside the region of the key, in any protection domain.
pub(crate) fn covers(sge: &Sge) -> bool {
    let _guard = pin::pin();
    let entry = TABLE.entry(sge.lkey);
    entry.is_some_and(|entry| entry.is_region() && entry.contains(sge.addr, sge.len.into()))
}

/// [`check`] for every segment of a list.
#[inline(always)]
pub(crate) fn check_all(sges: &[Sge], pd: u32, need: Access, guard: &Guard) -> Result<(), Fault> {
    let check = |s: &Sge| check(s.lkey, pd, s.addr, u64::from(s.len), need, guard);
    match sges {
        // Nearly always a single segment, which needs no loop.
        [only] => check(only),
        sges => sges.iter().try_for_each(check),
    }
}

/// Takes remote access from a region or a window, for a peer that invalidates its key.
pub(crate) fn invalidate(key: u32, pd: u32, _guard: &Guard) -> Result<(), Fault> {
    let entry = TABLE.entry(key).ok_or(Fault::Key)?;
    if entry.pd() != pd {
        return Err(Fault::Domain);
    }
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let before = exporter().restrict(TABLE.index(key), entry, remote);
    if !before.intersects(remote) {
        return Err(Fault::Access);
    }
    Ok(())
}
