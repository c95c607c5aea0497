//! How an initiator uses a key of another process while the owner may revoke the key.
//!
//! The owner publishes its keys in shared memory. An initiator copies in a *copy section*: it
//! writes the number of the section and the key to its own copy guard, looks up the key, copies,
//! and ends the section. The owner first revokes the key, then reads the guard, and waits for the
//! end of the section that it finds there, if that section uses the key. With a full barrier between
//! the two steps on both ends, either the section finds the key revoked, or the owner finds the
//! section.
//!
//! A section is short (one part of a transfer). Consecutive sections have different numbers, and the
//! owner waits for the section that it has found, not for later ones: an initiator that begins one
//! section after the other does not hold up the owner.

use crate::device::Access;
use crate::device::soft::mem::key_entry::{KeyEntry, MappedRange};
use crate::device::soft::mem::key_table::Fault;
use crate::device::soft::mem::scope::Scope;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// The copy guard of an initiator, in shared memory. The lower 32 bits are the number of its copy
/// section, which is odd inside of a section; the upper 32 bits are the key that the section uses.
///
/// Libraries that did not know of the key count sections in all 64 bits: their key reads as 0, which
/// may be any.
#[repr(C, align(128))]
pub struct CopyGuard(AtomicU64);

/// A copy section that was found in a guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundSection(u64);

impl FoundSection {
    /// The key that the section uses; `None` if it may be any.
    pub fn key(self) -> Option<u32> {
        Some((self.0 >> 32) as u32).filter(|key| *key != 0)
    }
}

/// A running copy section. The drop ends it.
pub struct CopySection<'a> {
    guard: &'a CopyGuard,
    /// Number of the section.
    number: u32,
    /// The key that the section may use.
    key: u32,
}

impl CopyGuard {
    /// The guard of an initiator outside of a section.
    #[allow(clippy::new_without_default)]
    pub fn new() -> CopyGuard {
        CopyGuard(AtomicU64::new(0))
    }

    /// Begins a section that uses `key`. `count` is a private variable of the caller that belongs to
    /// this guard.
    #[inline]
    pub fn begin(&self, count: &mut u32, key: u32) -> CopySection<'_> {
        *count = count.wrapping_add(2);
        let number = count.wrapping_sub(1);
        // Release: an owner that reads this number without having read the end of the section
        // before shall have seen the copy of that section all the same.
        let found = u64::from(key) << 32 | u64::from(number);
        self.0.store(found, Ordering::Release);
        fence(Ordering::SeqCst);
        CopySection {
            guard: self,
            number,
            key,
        }
    }

    /// Called by the owner after a revocation: the section that may use the revoked key, unless its
    /// own key says otherwise.
    pub fn running(&self) -> Option<FoundSection> {
        fence(Ordering::SeqCst);
        let found = self.0.load(Ordering::Acquire);
        (found & 1 == 1).then_some(FoundSection(found))
    }

    /// Whether that section has not ended.
    pub fn is_running(&self, section: FoundSection) -> bool {
        self.0.load(Ordering::Acquire) == section.0
    }
}

impl Drop for CopySection<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: an owner that reads the end of the section has seen its copy.
        let ended = u64::from(self.number.wrapping_add(1));
        self.guard.0.store(ended, Ordering::Release);
    }
}

/// Moves the keys of the first `before` entries, which were the whole table, to their slots in a
/// larger one. Both numbers are powers of two.
///
/// An entry is in its new slot before it leaves the old one. An initiator may be reading it in either,
/// and is not waited for.
pub fn spread(entries: &[KeyEntry], before: usize) {
    let moves = |slot: usize| {
        let entry = &entries[slot];
        let (key, new) = (entry.key(), entry.key() as usize & (entries.len() - 1));
        (key != 0 && new != slot).then_some((entry, key, new))
    };
    for (entry, key, new) in (0..before).filter_map(moves) {
        let copy = &entries[new];
        copy.fill(&entry.contents());
        copy.set_key(key);
    }
    for (entry, ..) in (0..before).filter_map(moves) {
        entry.set_key(0);
    }
    // Whoever reads what a later key has in such a slot also finds that the key has changed.
    fence(Ordering::Release);
}

/// What the address of a range of another process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteAddress {
    /// That by which consumers name the range: of an RDMA operation.
    OfKey,
    /// That in the memory of the process, which gave it: of a segment of a message, or of a receive.
    InMemory,
}

/// A range that a key of another process opens.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRange {
    /// What the address is.
    pub kind: RemoteAddress,
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// The keys that another process has published.
#[derive(Clone, Copy)]
pub struct RemoteKeys<'a> {
    /// All entries of the table, each in the slot whose number is the lowest bits of its key. Their
    /// number is a power of two.
    pub entries: &'a [KeyEntry],
}

impl<'a> RemoteKeys<'a> {
    /// One less than the number of slots.
    #[inline(always)]
    fn mask(&self) -> usize {
        self.entries.len().wrapping_sub(1)
    }

    /// The entry in the slot of a key in a table with this mask, if it has that key.
    #[inline(always)]
    fn slot(&self, key: u32, mask: usize) -> Option<&'a KeyEntry> {
        let entry = self.entries.get(key as usize & mask)?;
        entry.is(key).then_some(entry)
    }

    fn entry(&self, key: u32) -> Option<&'a KeyEntry> {
        let mask = self.mask();
        // In a table that is growing the entry may not have moved yet; or have moved since the first
        // of these checks.
        self.slot(key, mask)
            .or_else(|| self.slot(key, mask >> 1))
            .or_else(|| self.slot(key, mask))
    }

    /// Checks that the key of the section permits `need` in the range. Returns the address of its first
    /// byte in the memory of the process, and the part of the region that is in a file which peers may
    /// map. The result stays true until the section ends.
    ///
    /// # Errors
    /// The reason why the key does not permit it.
    #[inline]
    pub fn check(
        &self,
        section: &CopySection<'_>,
        scope: Scope,
        range: RemoteRange,
        need: Access,
    ) -> Result<(u64, MappedRange), Fault> {
        // The table grows once in thousands of registrations, so that the second attempt is not
        // disturbed.
        match self.check_once(section, scope, range, need) {
            Err(_) => self.check_again(section, scope, range, need),
            found => found,
        }
    }

    /// The second attempt of [`RemoteKeys::check`].
    #[cold]
    #[inline(never)]
    fn check_again(
        &self,
        section: &CopySection<'_>,
        scope: Scope,
        range: RemoteRange,
        need: Access,
    ) -> Result<(u64, MappedRange), Fault> {
        self.check_once(section, scope, range, need)
    }

    /// [`RemoteKeys::check`] of an entry that is in its own slot, as nearly all are. The reason of an error may be
    /// that it is not.
    ///
    /// # Errors
    /// As [`RemoteKeys::check`].
    #[inline(always)]
    pub fn check_in_place(
        &self,
        section: &CopySection<'_>,
        scope: Scope,
        range: RemoteRange,
        need: Access,
    ) -> Result<(u64, MappedRange), Fault> {
        let entry = self.slot(section.key, self.mask());
        self.check_entry(entry, section, scope, range, need)
    }

    /// [`RemoteKeys::check`], which a table that grows meanwhile may make fail.
    #[inline(always)]
    fn check_once(
        &self,
        section: &CopySection<'_>,
        scope: Scope,
        range: RemoteRange,
        need: Access,
    ) -> Result<(u64, MappedRange), Fault> {
        self.check_entry(self.entry(section.key), section, scope, range, need)
    }

    /// Checks what was found for the key of the section.
    #[inline(always)]
    fn check_entry(
        &self,
        entry: Option<&'a KeyEntry>,
        section: &CopySection<'_>,
        scope: Scope,
        range: RemoteRange,
        need: Access,
    ) -> Result<(u64, MappedRange), Fault> {
        let entry = entry.ok_or(Fault::Key)?;
        let lookup = |key| self.entry(key);
        let RemoteRange { kind, addr, len } = range;
        let at = match kind {
            RemoteAddress::OfKey => entry.resolve(scope, addr, len, need, lookup)?,
            RemoteAddress::InMemory => {
                entry.check(scope, addr, len, need, lookup)?;
                addr
            }
        };
        let mapped = entry.mapped_range();
        // The entry may have moved meanwhile, because the table has grown, and its slot may be
        // that of another key.
        fence(Ordering::Acquire);
        match entry.is(section.key) {
            true => Ok((at, mapped)),
            false => Err(Fault::Key),
        }
    }

    /// The key and the number of bytes of the region that a key, or its window, opens, if the region may be moved
    /// to where peers map it.
    pub fn promotable(&self, key: u32) -> Option<(u32, u64)> {
        let entry = self.entry(key)?;
        let (key, region) = match entry.region_key() {
            0 => (key, entry),
            region => (region, self.entry(region)?),
        };
        region.is_promotable().then(|| (key, region.size()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that has just grown from 4 entries to 8.
    #[test]
    fn an_entry_is_found_before_and_after_it_has_moved() {
        let entries: [KeyEntry; 8] = Default::default();
        let keys = RemoteKeys { entries: &entries };
        let found = |key: u32| keys.entry(key).map(std::ptr::from_ref);
        let (here, there) = (0x106, 0x206);
        entries[6].set_key(here);
        entries[2].set_key(there);
        assert_eq!(found(here), Some(&raw const entries[6]));
        assert_eq!(found(there), Some(&raw const entries[2]));
        // No slot of this key has it.
        assert_eq!(found(0x306), None);
        entries[5].set_key(0x406);
        assert_eq!(found(0x406), None);
    }
}
