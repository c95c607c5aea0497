//! The protocol between the owner of memory and an initiator that reaches into it.
//!
//! The owner publishes its keys in shared memory. An initiator copies in a *visit*: it says in
//! a word of its own that it is inside, looks the key up, copies, and says that it is outside.
//! The owner shuts a key first and looks at that word then, and waits for the end of a visit
//! that it finds. So either the visit sees that the key is shut, or the owner sees the visit.
//!
//! A visit is short (one piece of a transfer), and each has a number of its own: the owner waits
//! for the visit it has seen, not for an initiator that comes back again and again.

use crate::device::Access;
use crate::device::soft::mem::key_entry::{KeyEntry, MappedRange, index};
use crate::device::soft::mem::key_table::Fault;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// The word of an initiator: the number of its visit, odd inside.
#[repr(C, align(128))]
pub struct CopyGuard(AtomicU64);

/// A visit that goes on. Its drop ends it.
pub struct CopySection<'a> {
    word: &'a CopyGuard,
    number: u64,
}

impl CopyGuard {
    /// No visit yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> CopyGuard {
        CopyGuard(AtomicU64::new(0))
    }

    /// Begins a visit. `count` is the caller's own, and goes with the word.
    #[inline]
    pub fn enter(&self, count: &mut u64) -> CopySection<'_> {
        *count = count.wrapping_add(2);
        let number = count.wrapping_sub(1);
        // Release: an owner that sees this visit and not the end of the one before shall have
        // seen that one's copy all the same.
        self.0.store(number, Ordering::Release);
        fence(Ordering::SeqCst);
        CopySection { word: self, number }
    }

    /// The owner has shut something: the visit that may not know it yet.
    pub fn seen(&self) -> Option<u64> {
        fence(Ordering::SeqCst);
        let number = self.0.load(Ordering::Acquire);
        (number & 1 == 1).then_some(number)
    }

    /// Whether that visit goes on.
    pub fn is_inside(&self, number: u64) -> bool {
        self.0.load(Ordering::Acquire) == number
    }
}

impl Drop for CopySection<'_> {
    #[inline]
    fn drop(&mut self) {
        // What was copied is there before the owner sees that we are gone.
        self.word
            .0
            .store(self.number.wrapping_add(1), Ordering::Release);
    }
}

/// Keys that a process has published, as an initiator sees them.
#[derive(Clone, Copy)]
pub struct RemoteKeys<'a> {
    /// All slots.
    pub slots: &'a [KeyEntry],
    /// See [`index`].
    pub salt: u32,
}

impl<'a> RemoteKeys<'a> {
    fn slot(&self, key: u32) -> Option<&'a KeyEntry> {
        let slot = self.slots.get(index(key, self.salt) as usize)?;
        slot.is(key).then_some(slot)
    }

    /// Whether `key` opens the range for `need`, and what of the region may be mapped. What is
    /// true stays true during the visit.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub fn check(
        &self,
        _visit: &CopySection<'_>,
        key: u32,
        pd: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<MappedRange, Fault> {
        let slot = self.slot(key).ok_or(Fault::Key)?;
        slot.check(pd, addr, len, need, |key| self.slot(key))?;
        Ok(slot.mapped_range())
    }
}
