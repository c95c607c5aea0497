//! One entry of a key table: a region or a window, and what its key opens.
//!
//! The [table of this process](super::key_table) and its copy that peers of the same host read
//! consist of the same entries, so that both are checked alike.

use super::key_table::Fault;
use super::scope::Scope;
use crate::device::Access;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Set in [`KeyEntry::access`] of a region that is to be moved to where peers may map it, once they
/// have used it so much that the move pays.
const PROMOTABLE: u32 = 1 << 31;

/// Set in [`KeyEntry::access`] for [`Origin::Range`] and for [`Origin::Region`]. A library of a peer
/// that does not know these bits takes the addresses for those of memory, and refuses them.
const FROM_RANGE: u32 = 1 << 30;
const FROM_REGION: u32 = 1 << 29;
/// The bits of a range whose addresses are not those of memory.
const COUNTED: u32 = FROM_RANGE | FROM_REGION;

/// From where the addresses count by which local segments and peers name the bytes of a key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Origin {
    /// They are addresses of memory.
    #[default]
    Memory,
    /// From the first byte of the range.
    Range,
    /// From the first byte of the region that a window is bound to.
    Region,
}

impl Origin {
    fn bits(self) -> u32 {
        match self {
            Origin::Memory => 0,
            Origin::Range => FROM_RANGE,
            Origin::Region => FROM_REGION,
        }
    }

    fn from_bits(bits: u32) -> Origin {
        match bits & COUNTED {
            0 => Origin::Memory,
            FROM_REGION => Origin::Region,
            _ => Origin::Range,
        }
    }
}

/// A region or a window. The other fields belong to `key` while a read-side section sees that key
/// in the entry: they are written before the key is published, and again only after all sections
/// that saw the key have ended. Meanwhile rights are only taken away ([`KeyEntry::restrict`]), and
/// the part that peers may map only grows ([`KeyEntry::extend_mapped`]). An entry of zeros is empty.
#[repr(C, align(64))]
#[derive(Default, Debug)]
pub struct KeyEntry {
    /// The key that is valid, or 0.
    key: AtomicU32,
    /// The rights: bits of [`Access`]; [`PROMOTABLE`], [`FROM_RANGE`], [`FROM_REGION`].
    access: AtomicU32,
    /// The protection domain.
    pd: AtomicU32,
    /// The key of the region that a window is bound to; 0 in a region.
    region: AtomicU32,
    /// Address of the first byte of the range in memory.
    addr: AtomicU64,
    /// Number of bytes of the range.
    len: AtomicU64,
    /// The number of this use of an entry of the table: keys are used again, these numbers are not.
    serial: AtomicU64,
    /// The serial of the region that a window is bound to; 0 in a region.
    region_serial: AtomicU64,
    /// Address of the first byte that peers may map.
    mapped_start: AtomicU64,
    /// Address behind the last byte that peers may map.
    mapped_end: AtomicU64,
}

/// A part of a region whose bytes are in a file that peers may map, each at the offset that is
/// its address.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MappedRange {
    /// Address of the first byte.
    pub start: u64,
    /// Address behind the last byte; not above `start` if the range is empty.
    pub end: u64,
}

impl MappedRange {
    /// Whether peers may map nothing.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Whether peers may map so many bytes from `at` on.
    #[inline(always)]
    pub fn holds(self, at: u64, len: u64) -> bool {
        at >= self.start && self.end.checked_sub(at).is_some_and(|room| room >= len)
    }
}

/// What an entry holds besides its key.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    /// Protection domain; in a window for one queue pair alone the number of that.
    pub pd: u32,
    /// Address of the first byte of the range in memory.
    pub addr: u64,
    /// Number of bytes of the range.
    pub len: u64,
    /// From where addresses count.
    pub origin: Origin,
    /// The rights.
    pub access: Access,
    /// Whether a region is to be moved to where peers may map it, once they have used it enough.
    pub promotable: bool,
    /// Number of this use of an entry.
    pub serial: u64,
    /// Key and serial of the region that a window is bound to; zeros in a region.
    pub region: (u32, u64),
    /// What peers may map of the range.
    pub mapped: MappedRange,
}

impl KeyEntry {
    /// Fills an entry that no section sees.
    pub fn fill(&self, contents: &Contents) {
        self.pd.store(contents.pd, Ordering::Relaxed);
        self.addr.store(contents.addr, Ordering::Relaxed);
        self.len.store(contents.len, Ordering::Relaxed);
        let promotable = if contents.promotable { PROMOTABLE } else { 0 };
        let access = contents.access.bits() | contents.origin.bits() | promotable;
        self.access.store(access, Ordering::Relaxed);
        self.serial.store(contents.serial, Ordering::Relaxed);
        self.region.store(contents.region.0, Ordering::Relaxed);
        self.region_serial
            .store(contents.region.1, Ordering::Relaxed);
        self.mapped_start
            .store(contents.mapped.start, Ordering::Relaxed);
        self.mapped_end
            .store(contents.mapped.end, Ordering::Relaxed);
    }

    /// What the entry holds, for the owner of the table.
    pub fn contents(&self) -> Contents {
        Contents {
            pd: self.pd.load(Ordering::Relaxed),
            addr: self.addr.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            origin: self.origin(),
            access: Access::from_bits_truncate(self.access.load(Ordering::Relaxed)),
            promotable: self.is_promotable(),
            serial: self.serial.load(Ordering::Relaxed),
            region: (
                self.region.load(Ordering::Relaxed),
                self.region_serial.load(Ordering::Relaxed),
            ),
            mapped: self.mapped_range(),
        }
    }

    /// What peers may map of the range.
    #[inline]
    pub fn mapped_range(&self) -> MappedRange {
        // Acquire: an end that `extend_mapped` has written has its start, and the bytes up to it are
        // in the file.
        let end = self.mapped_end.load(Ordering::Acquire);
        let start = self.mapped_start.load(Ordering::Relaxed);
        MappedRange { start, end }
    }

    /// Extends the part of the range that peers may map to `mapped`, unless that is the smaller one.
    /// Both begin alike. The key may be in use.
    pub fn extend_mapped(&self, mapped: MappedRange) {
        if mapped.end > self.mapped_end.load(Ordering::Relaxed) {
            self.mapped_start.store(mapped.start, Ordering::Relaxed);
            self.mapped_end.store(mapped.end, Ordering::Release);
        }
    }

    /// Whether the region is to be moved to where peers may map it, once they have used it enough.
    pub fn is_promotable(&self) -> bool {
        self.access.load(Ordering::Relaxed) & PROMOTABLE != 0
    }

    /// The region stays where it is, however much peers use it.
    pub fn keep_private(&self) {
        self.access.fetch_and(!PROMOTABLE, Ordering::Relaxed);
    }

    /// Makes the key valid; 0 makes the entry invalid for sections that begin later.
    pub fn set_key(&self, key: u32) {
        self.key.store(key, Ordering::Release);
    }

    /// The key that is valid, or 0.
    pub fn key(&self) -> u32 {
        self.key.load(Ordering::Acquire)
    }

    /// Whether that key, not 0, is the valid one.
    #[inline(always)]
    pub fn is(&self, key: u32) -> bool {
        key != 0 && self.key() == key
    }

    /// Number of this use of the entry.
    pub fn serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// Whether this is a region, not a window.
    pub fn is_region(&self) -> bool {
        self.region.load(Ordering::Relaxed) == 0
    }

    /// The key of the region that a window is bound to; 0 in a region.
    pub fn region_key(&self) -> u32 {
        self.region.load(Ordering::Relaxed)
    }

    /// Address of the first byte of the range in memory.
    pub fn start(&self) -> u64 {
        self.addr.load(Ordering::Relaxed)
    }

    /// Number of bytes of the range.
    pub fn size(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Protection domain, or the queue pair that a window is for.
    pub fn pd(&self) -> u32 {
        self.pd.load(Ordering::Relaxed)
    }

    /// Takes rights away; returns those that the entry had.
    pub fn restrict(&self, rights: Access) -> Access {
        let before = self.access.fetch_and(!rights.bits(), Ordering::AcqRel);
        Access::from_bits_truncate(before)
    }

    /// From where addresses count.
    fn origin(&self) -> Origin {
        Origin::from_bits(self.access.load(Ordering::Relaxed))
    }

    /// Whether the range of memory is inside the one of the entry.
    #[inline(always)]
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        let offset = addr.wrapping_sub(self.addr.load(Ordering::Relaxed));
        let room = self.len.load(Ordering::Relaxed).checked_sub(offset);
        room.is_some_and(|room| len <= room)
    }

    /// Checks that the entry, found by its key in this section, opens the range of memory for `need`.
    /// `lookup` finds the entry of another key of the table.
    #[inline(always)]
    pub fn check<'a>(
        &self,
        scope: Scope,
        addr: u64,
        len: u64,
        need: Access,
        lookup: impl FnOnce(u32) -> Option<&'a KeyEntry>,
    ) -> Result<(), Fault> {
        if !scope.has(self.pd()) {
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

    /// [`KeyEntry::check`] for a range as a local segment or a peer names it. Returns the address of its
    /// first byte in memory.
    #[inline(always)]
    pub fn resolve<'a>(
        &self,
        scope: Scope,
        addr: u64,
        len: u64,
        need: Access,
        lookup: impl FnOnce(u32) -> Option<&'a KeyEntry>,
    ) -> Result<u64, Fault> {
        if !scope.has(self.pd()) {
            return Err(Fault::Domain);
        }
        // One comparison for the rights and for the kind of addresses.
        let asked = need.bits() | COUNTED;
        let is_plain = self.access.load(Ordering::Relaxed) & asked == need.bits();
        if !self.contains(addr, len) || !is_plain {
            return self.resolve_counted(addr, len, need, lookup);
        }
        if !self.is_region() {
            self.check_window(lookup)?;
        }
        Ok(addr)
    }

    /// [`KeyEntry::resolve`] for addresses that are not those of memory, and for what is refused.
    #[cold]
    #[inline(never)]
    fn resolve_counted<'a>(
        &self,
        addr: u64,
        len: u64,
        need: Access,
        lookup: impl FnOnce(u32) -> Option<&'a KeyEntry>,
    ) -> Result<u64, Fault> {
        let region = match self.is_region() {
            true => None,
            false => Some(self.window_region(lookup)),
        };
        let origin = match (self.origin(), region) {
            (Origin::Memory, _) => 0,
            (Origin::Range, _) => self.addr.load(Ordering::Relaxed),
            (Origin::Region, Some(Ok(region))) => region.addr.load(Ordering::Relaxed),
            (Origin::Region, _) => return Err(Fault::Key),
        };
        let at = origin.checked_add(addr).ok_or(Fault::Bounds)?;
        if !self.contains(at, len) {
            return Err(Fault::Bounds);
        }
        if !Access::from_bits_truncate(self.access.load(Ordering::Relaxed)).contains(need) {
            return Err(Fault::Access);
        }
        region.transpose()?;
        Ok(at)
    }

    /// Checks that the region of a window is still registered. A function of its own, to keep
    /// [`KeyEntry::check`] short.
    #[inline(never)]
    fn check_window<'a>(
        &self,
        lookup: impl FnOnce(u32) -> Option<&'a KeyEntry>,
    ) -> Result<(), Fault> {
        self.window_region(lookup).map(|_| ())
    }

    /// The entry of the region of a window.
    #[inline]
    fn window_region<'a>(
        &self,
        lookup: impl FnOnce(u32) -> Option<&'a KeyEntry>,
    ) -> Result<&'a KeyEntry, Fault> {
        let serial = self.region_serial.load(Ordering::Relaxed);
        let region = lookup(self.region.load(Ordering::Relaxed));
        region
            .filter(|entry| entry.serial() == serial)
            .ok_or(Fault::Key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(serial: u64, region: (u32, u64)) -> KeyEntry {
        entry_from(Origin::Memory, serial, region)
    }

    fn entry_from(origin: Origin, serial: u64, region: (u32, u64)) -> KeyEntry {
        let entry = KeyEntry::default();
        entry.fill(&Contents {
            pd: 1,
            addr: 0x1000,
            len: 16,
            origin,
            access: Access::REMOTE_READ,
            promotable: false,
            serial,
            region,
            mapped: MappedRange::default(),
        });
        entry
    }

    /// Keys are random: another region may have got that of one that is gone.
    #[test]
    fn a_window_is_of_its_region_and_not_of_another_with_the_same_key() {
        let (scope, need) = (Scope::of_pd(1), Access::REMOTE_READ);
        let window = entry(9, (5, 7));
        for (serial, expected) in [(7, Ok(0x1000)), (8, Err(Fault::Key))] {
            let region = entry(serial, (0, 0));
            let lookup = |key| (key == 5).then_some(&region);
            assert_eq!(window.resolve(scope, 0x1000, 16, need, lookup), expected);
            let checked = window.check(scope, 0x1000, 16, need, lookup);
            assert_eq!(checked, expected.map(|_| ()));
        }
    }

    #[test]
    fn no_window_opens_memory_of_a_region_that_is_gone() {
        let (scope, need) = (Scope::of_pd(1), Access::REMOTE_READ);
        for (origin, addr) in [
            (Origin::Memory, 0x1000),
            (Origin::Range, 0),
            (Origin::Region, 0),
        ] {
            let window = entry_from(origin, 9, (5, 7));
            let region = entry(7, (0, 0));
            let there = window.resolve(scope, addr, 16, need, |_| Some(&region));
            assert_eq!(there, Ok(0x1000), "{origin:?}");
            let gone = window.resolve(scope, addr, 16, need, |_| None);
            assert_eq!(gone, Err(Fault::Key), "{origin:?}");
        }
    }

    #[test]
    fn a_mapped_range_holds_what_ends_with_it() {
        let range = MappedRange {
            start: 0x1000,
            end: 0x2000,
        };
        for (at, len) in [(0x1000, 0x1000), (0x1fff, 1), (0x2000, 0)] {
            assert!(range.holds(at, len), "{at:#x}");
        }
        for (at, len) in [(0xfff, 1), (0x1000, 0x1001), (0x2000, 1), (u64::MAX, 1)] {
            assert!(!range.holds(at, len), "{at:#x}");
        }
    }

    /// More pages of a region may have moved than a thread knows that tells of fewer.
    #[test]
    fn a_mapped_range_only_grows() {
        let entry = entry(1, (0, 0));
        for (end, expected) in [(0x1800, 0x1800), (0x1400, 0x1800), (0x2000, 0x2000)] {
            entry.extend_mapped(MappedRange { start: 0x1000, end });
            assert_eq!(entry.mapped_range().end, expected);
        }
    }
}
