//! The keys of the process, which are those of memory regions and of windows, and what they
//! open.
//!
//! The table is one for the whole process, so that a key means the same to every device of it.
//! A lookup takes no lock: it happens inside a read-side section ([`pin`]),
//! and a key that goes away waits for all sections before its slot, or the memory behind it,
//! is used for anything else.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use parking_lot::Mutex;

use super::key_entry::{Contents, INDEX_MASK, KeyEntry, MappedRange, index};
use crate::device::soft::transport::shm::exported_keys;
use crate::device::{Access, PostError, Sge};
use crate::handle::Guard;
use crate::handle::pin;

/// Regions of the whole process; there are as many keys again for windows.
pub(crate) const MAX_MR: u32 = MAX_KEYS / 2;
const SEGMENT_LEN: u32 = 1 << SEGMENT_BITS;
const SEGMENT_BITS: u32 = 10;
const SEGMENTS: usize = 1 << 11;
pub(crate) const MAX_KEYS: u32 = SEGMENTS as u32 * SEGMENT_LEN;
/// Slots that rest before the first of them is used again.
const RESTING: usize = 1024;

/// Why a key does not open a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No such key.
    Key,
    /// The range is not inside the region.
    Bounds,
    /// The region does not allow it.
    Access,
    /// The region belongs to another protection domain.
    Domain,
}

impl From<Fault> for PostError {
    // Apart: otherwise it becomes a jump table that a success goes through as well.
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

/// A region, as a window refers to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub key: u32,
    serial: u64,
}

impl Region {
    fn slot(self) -> Option<&'static KeyEntry> {
        let slot = TABLE.slot(self.key)?;
        (slot.serial() == self.serial).then_some(slot)
    }

    /// Takes a key into use; `None` if none is left.
    pub fn register(opening: &Opening) -> Option<Region> {
        let region = TABLE.reserve(opening)?;
        TABLE.publish(region.key);
        Some(region)
    }

    /// Gives the key up, once: when this returns nobody uses the region any more.
    pub fn deregister(self) {
        TABLE.revoke(self.key);
        pin::synchronize();
        TABLE.release(self.key);
    }

    /// What peers may map of it.
    pub fn mapped_range(self) -> MappedRange {
        self.slot().map(KeyEntry::mapped_range).unwrap_or_default()
    }

    /// Whether the region is still registered.
    pub fn is_alive(self, _guard: &Guard) -> bool {
        self.slot().is_some()
    }
}

/// Slots that wait for use, oldest first, so that a key comes back as late as possible.
struct Free {
    /// Index and the generation it had last.
    used: VecDeque<(u32, u8)>,
    /// Slots given out so far.
    last_serial: u64,
}

type Segment = [KeyEntry; SEGMENT_LEN as usize];

struct Table {
    /// Null, or made once and there for ever.
    segments: [AtomicPtr<Segment>; SEGMENTS],
    free: Mutex<Free>,
    /// Slots below were given out before. Changes under the lock.
    fresh: AtomicU32,
    /// What is added to an index in a key: keys are not the same in every process, so that one
    /// of another process, or of an earlier run, opens nothing here. 0 before the first key.
    salt: AtomicU32,
}

static TABLE: Table = Table {
    segments: [const { AtomicPtr::new(null_mut()) }; SEGMENTS],
    free: Mutex::new(Free {
        used: VecDeque::new(),
        last_serial: 0,
    }),
    fresh: AtomicU32::new(0),
    salt: AtomicU32::new(0),
};

/// What a key opens.
pub(crate) struct Opening {
    pub pd: u32,
    pub addr: u64,
    pub len: u64,
    pub access: Access,
    /// Of a window: the region behind it.
    pub region: Option<Region>,
    /// What peers may map of it.
    pub mapped: MappedRange,
}

impl Table {
    #[inline(always)]
    fn index(&self, key: u32) -> u32 {
        index(key, self.salt.load(Ordering::Relaxed))
    }

    fn salt(&self) -> u32 {
        self.salt_in(&self.free.lock())
    }

    /// Chosen once, under the lock.
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

    /// The slot that a key names, valid or not.
    #[inline(always)]
    fn place(&self, key: u32) -> Option<&KeyEntry> {
        let index = self.index(key);
        let segment = self.segment((index >> SEGMENT_BITS) as usize)?;
        Some(&segment[(index % SEGMENT_LEN) as usize])
    }

    #[inline(always)]
    fn slot(&self, key: u32) -> Option<&KeyEntry> {
        let slot = self.place(key)?;
        slot.is(key).then_some(slot)
    }

    /// Takes a slot, whose key opens nothing before [`Table::publish`].
    fn reserve(&self, opening: &Opening) -> Option<Region> {
        let mut free = self.free.lock();
        let salt = self.salt_in(&free);
        let fresh = (free.used.len() < RESTING).then(|| self.fresh_slot(&free));
        let (index, generation) = match fresh.flatten() {
            Some(index) => (index, RandomState::new().hash_one(index) as u8),
            None => free.used.pop_front()?,
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
        let slot = &segment[(index % SEGMENT_LEN) as usize];
        slot.fill(&Contents {
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

    /// A slot that nobody had before, and that peers can be shown.
    fn fresh_slot(&self, _free: &Free) -> Option<u32> {
        let index = self.fresh.load(Ordering::Relaxed);
        if index == MAX_KEYS {
            return None;
        }
        // First, so that a table which is made for peers meanwhile has room for it.
        self.fresh.store(index + 1, Ordering::Relaxed);
        if !exported_keys::make_room(index) {
            self.fresh.store(index, Ordering::Relaxed);
            return None;
        }
        Some(index)
    }

    fn publish(&self, key: u32) {
        if let Some(slot) = self.place(key) {
            exported_keys::open(self.index(key), key, slot);
        }
    }

    /// No section that begins from now on sees the key, and no peer of this host uses it.
    fn revoke(&self, key: u32) {
        if let Some(slot) = self.slot(key) {
            exported_keys::shut(self.index(key), slot);
        }
    }

    /// All slots that ever had a key.
    fn slots(&self) -> impl Iterator<Item = (u32, &KeyEntry)> {
        let segments = (0..SEGMENTS).map_while(|number| self.segment(number));
        (0..).zip(segments.flatten())
    }

    /// Gives the slot of a key back that no section sees.
    fn release(&self, key: u32) {
        let index = self.index(key);
        self.free.lock().used.push_back((index, key as u8));
    }
}

/// A key that opens nothing yet. Its drop gives it up.
#[derive(Debug)]
pub(crate) struct Reserved(u32);

impl Reserved {
    /// For a range of a region; `None` if no key is left.
    pub fn new(opening: &Opening) -> Option<Reserved> {
        Some(Reserved(TABLE.reserve(opening)?.key))
    }

    /// The key.
    pub fn key(&self) -> u32 {
        self.0
    }

    /// The key opens what it was made for from now on.
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

/// The key of a window that is open. Its drop closes it for everybody whose section begins
/// later, and waits for nobody: it may happen inside a section.
#[derive(Debug)]
pub(crate) struct WindowKey(u32);

impl Drop for WindowKey {
    fn drop(&mut self) {
        let key = self.0;
        TABLE.revoke(key);
        pin::retire(move || TABLE.release(key));
    }
}

/// Checks that `key` opens `len` bytes at `addr` for `need`. What is true stays true until the
/// section ends. A range of no bytes needs no key.
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
    let slot = TABLE.slot(key).ok_or(Fault::Key)?;
    slot.check(pd, addr, len, need, |key| TABLE.slot(key))
}

/// Calls `f` for every slot that ever had a key, with its number.
pub(crate) fn for_each_entry(f: impl FnMut((u32, &KeyEntry))) {
    TABLE.slots().for_each(f);
}

/// How many slots, from the first on, have been given out.
pub(crate) fn used_entries() -> u32 {
    TABLE.fresh.load(Ordering::Relaxed)
}

/// What the table is addressed with: see [`index`].
pub(crate) fn salt() -> u32 {
    TABLE.salt()
}

/// Whether the range is inside the region of the key, of whatever protection domain.
pub(crate) fn covers(sge: &Sge) -> bool {
    let _guard = pin::pin();
    let slot = TABLE.slot(sge.lkey);
    slot.is_some_and(|slot| slot.is_region() && slot.contains(sge.addr, sge.len.into()))
}

/// [`check`] for every segment of a list.
#[inline(always)]
pub(crate) fn check_all(sges: &[Sge], pd: u32, need: Access, guard: &Guard) -> Result<(), Fault> {
    let check = |s: &Sge| check(s.lkey, pd, s.addr, u64::from(s.len), need, guard);
    match sges {
        // Nearly always, and then there is no loop.
        [only] => check(only),
        sges => sges.iter().try_for_each(check),
    }
}

/// Takes remote access from a region or a window, in the name of a peer.
pub(crate) fn invalidate(key: u32, pd: u32, _guard: &Guard) -> Result<(), Fault> {
    let slot = TABLE.slot(key).ok_or(Fault::Key)?;
    if slot.pd() != pd {
        return Err(Fault::Domain);
    }
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
    if !exported_keys::restrict(TABLE.index(key), slot, remote).intersects(remote) {
        return Err(Fault::Access);
    }
    Ok(())
}
