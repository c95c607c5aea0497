//! The pages of a process that move between its private memory and its memory file at this moment
//! ([`mapped`](mod@super::mapped)), as its peers see them.
//!
//! Pages are missing or write-protected while they move. The kernel would have a peer that copies from or to them wait
//! for this process, which may be stopped, with all that the thread of the peer has to do. So the owner announces
//! the pages, and then waits for the [copy sections](super::remote_keys) that may have begun before; peers look in their
//! sections whether what the kernel is to copy moves, and copy it later. With a full barrier between the two steps on
//! both ends, either the peer finds the pages announced, or the owner finds the section.
//!
//! What a peer has mapped does not move under it, so that nothing is asked there.

use std::ops::Range;

use crate::sync::atomic::{AtomicU64, Ordering};

/// The pages, in memory that peers read. All zero while none move, and in a process whose library does not say so.
#[repr(C, align(128))]
pub struct MovingPages {
    /// Address of the first byte.
    start: AtomicU64,
    /// Address behind the last byte; 0 while no pages move.
    end: AtomicU64,
}

impl MovingPages {
    /// None move.
    #[allow(clippy::new_without_default)]
    pub fn new() -> MovingPages {
        MovingPages {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
        }
    }

    /// Announces pages, until the drop of what is returned. Called by the owner, one thread at a time.
    pub fn announce(&self, pages: &Range<u64>) -> Announced<'_> {
        self.start.store(pages.start, Ordering::Relaxed);
        // Release: with this end there is this start, or a later one.
        self.end.store(pages.end, Ordering::Release);
        Announced(self)
    }

    /// Called by a peer in a copy section: whether some of these bytes move. If not, the owner waits for the section
    /// before they do.
    #[inline]
    pub fn has(&self, at: u64, len: u64) -> bool {
        // Acquire: once no pages move, what the owner has changed on the way is there.
        let end = self.end.load(Ordering::Acquire);
        at < end && self.start.load(Ordering::Relaxed) < at.saturating_add(len)
    }

    /// Whether any pages move.
    pub fn has_any(&self) -> bool {
        self.end.load(Ordering::Acquire) != 0
    }
}

/// Pages that are announced.
pub struct Announced<'a>(&'a MovingPages);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_the_pages_moves() {
        let moving = MovingPages::new();
        assert!(!moving.has(0, u64::MAX) && !moving.has_any());
        let announced = moving.announce(&(8192..16384));
        assert!(moving.has_any());
        for (at, len) in [
            (8192, 1),
            (16383, 1),
            (0, 8193),
            (0, u64::MAX),
            (10000, u64::MAX),
        ] {
            assert!(moving.has(at, len), "{at} {len}");
        }
        for (at, len) in [(0, 8192), (16384, 1), (u64::MAX, u64::MAX), (100, 0)] {
            assert!(!moving.has(at, len), "{at} {len}");
        }
        drop(announced);
        assert!(!moving.has(8192, 1) && !moving.has_any());
    }
}
