//! One entry of a table of keys: a region or a window, and what it opens.
//!
//! The same in our own table ([`keys`](crate::device::soft::mem::key_table)) and in the one that peers of the same host
//! look at ([`shm`](crate::device::soft::transport::shm)), so that both judge alike.

use super::key_table::Fault;
use crate::device::Access;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bits of a key that name a slot.
pub const INDEX_MASK: u32 = 0x00ff_ffff;

/// The slot that a key names, in a table whose keys are salted so.
#[inline]
pub fn index(key: u32, salt: u32) -> u32 {
    (key >> 8).wrapping_sub(salt) & INDEX_MASK
}

/// A region or a window. The other fields are those of `key` while a section sees it there:
/// they are written before the key is published, and again only after all sections that saw it
/// ended. All zero is an empty one.
#[repr(C, align(64))]
#[derive(Default)]
pub struct KeyEntry {
    /// The key that is valid, or 0.
    key: AtomicU32,
    access: AtomicU32,
    pd: AtomicU32,
    /// The key of the region that a window is bound to; 0 in a region.
    region: AtomicU32,
    addr: AtomicU64,
    len: AtomicU64,
    /// Tells this use of the slot from all others: keys come back, numbers do not.
    serial: AtomicU64,
    /// The serial of that region.
    region_serial: AtomicU64,
    /// The part that peers may map.
    mapped_start: AtomicU64,
    mapped_end: AtomicU64,
}

/// A part of a region whose bytes are in a file that peers may map, each at the offset that is
/// its address: see [`shm`](crate::device::soft::transport::shm).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MappedRange {
    /// Its first byte.
    pub start: u64,
    /// Behind its last one; not above the start if there is none.
    pub end: u64,
}

/// What a slot is filled with.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    /// Protection domain.
    pub pd: u32,
    /// Start of the range.
    pub addr: u64,
    /// Bytes of the range.
    pub len: u64,
    /// What it allows.
    pub access: Access,
    /// Number of this use of the slot.
    pub serial: u64,
    /// Of a window: key and serial of the region behind it; zeros in a region.
    pub region: (u32, u64),
    /// What peers may map of it.
    pub mapped: MappedRange,
}

impl KeyEntry {
    /// Fills a slot that no section sees.
    pub fn fill(&self, contents: &Contents) {
        self.pd.store(contents.pd, Ordering::Relaxed);
        self.addr.store(contents.addr, Ordering::Relaxed);
        self.len.store(contents.len, Ordering::Relaxed);
        self.access.store(contents.access.bits(), Ordering::Relaxed);
        self.serial.store(contents.serial, Ordering::Relaxed);
        self.region.store(contents.region.0, Ordering::Relaxed);
        self.region_serial
            .store(contents.region.1, Ordering::Relaxed);
        self.mapped_start
            .store(contents.mapped.start, Ordering::Relaxed);
        self.mapped_end
            .store(contents.mapped.end, Ordering::Relaxed);
    }

    /// What it is filled with, as the owner of the table sees it.
    pub fn contents(&self) -> Contents {
        Contents {
            pd: self.pd.load(Ordering::Relaxed),
            addr: self.addr.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            access: Access::from_bits_truncate(self.access.load(Ordering::Relaxed)),
            serial: self.serial.load(Ordering::Relaxed),
            region: (
                self.region.load(Ordering::Relaxed),
                self.region_serial.load(Ordering::Relaxed),
            ),
            mapped: self.mapped_range(),
        }
    }

    /// What peers may map of it.
    #[inline]
    pub fn mapped_range(&self) -> MappedRange {
        MappedRange {
            start: self.mapped_start.load(Ordering::Relaxed),
            end: self.mapped_end.load(Ordering::Relaxed),
        }
    }

    /// The key opens what the slot holds from now on; 0 shuts it for sections that begin later.
    pub fn set_key(&self, key: u32) {
        self.key.store(key, Ordering::Release);
    }

    /// The key that is valid.
    pub fn key(&self) -> u32 {
        self.key.load(Ordering::Acquire)
    }

    /// Whether this is the slot of that key now.
    #[inline(always)]
    pub fn is(&self, key: u32) -> bool {
        key != 0 && self.key() == key
    }

    /// Number of this use of the slot.
    pub fn serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// Whether this is a region, not a window.
    pub fn is_region(&self) -> bool {
        self.region.load(Ordering::Relaxed) == 0
    }

    /// Protection domain.
    pub fn pd(&self) -> u32 {
        self.pd.load(Ordering::Relaxed)
    }

    /// Takes rights away; gives those it had.
    pub fn restrict(&self, rights: Access) -> Access {
        let before = self.access.fetch_and(!rights.bits(), Ordering::AcqRel);
        Access::from_bits_truncate(before)
    }

    /// Whether the range is inside.
    #[inline(always)]
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        let offset = addr.wrapping_sub(self.addr.load(Ordering::Relaxed));
        let room = self.len.load(Ordering::Relaxed).checked_sub(offset);
        room.is_some_and(|room| len <= room)
    }

    /// Whether the slot, found under its key in this section, opens the range for `need`.
    /// `lookup` finds the slot of another key of the table.
    #[inline(always)]
    pub fn check<'a>(
        &self,
        pd: u32,
        addr: u64,
        len: u64,
        need: Access,
        lookup: impl FnOnce(u32) -> Option<&'a KeyEntry>,
    ) -> Result<(), Fault> {
        if self.pd() != pd {
            return Err(Fault::Domain);
        }
        if !self.contains(addr, len) {
            return Err(Fault::Bounds);
        }
        if !Access::from_bits_truncate(self.access.load(Ordering::Relaxed)).contains(need) {
            return Err(Fault::Access);
        }
        if self.is_region() {
            return Ok(());
        }
        self.check_window(lookup)
    }

    /// A window whose region is gone opens nothing. Apart, to keep the rest short.
    #[inline(never)]
    fn check_window<'a>(
        &self,
        lookup: impl FnOnce(u32) -> Option<&'a KeyEntry>,
    ) -> Result<(), Fault> {
        let serial = self.region_serial.load(Ordering::Relaxed);
        let region = lookup(self.region.load(Ordering::Relaxed));
        if region.is_none_or(|slot| slot.serial() != serial) {
            return Err(Fault::Key);
        }
        Ok(())
    }
}
