//! The cache lines of a connection, so that they are fetched together.
//!
//! The state of a connection is in a dozen places, each found through the one before. While thousands of
//! connections take turns, none of that is in a cache near the processor, and to follow the pointers costs
//! one miss after the other. An address that is noted here is fetched without following them. It is a hint
//! and no more: what lies at an address is never read, so that it may be gone.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Places that are noted at most.
const PLACES: usize = 8;
/// The most cache lines of one place.
const MOST: usize = LINE - 1;

/// Where they are: for each place the address of its first line, with the number of its lines in the low
/// bits; 0 if there are no more.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct CacheLines([AtomicUsize; PLACES]);

/// A place of so many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    at: usize,
    len: usize,
}

impl Place {
    /// All of a value.
    pub fn of<T: ?Sized>(value: &T) -> Place {
        Place {
            at: std::ptr::from_ref(value).addr(),
            len: size_of_val(value),
        }
    }

    /// What lies before a member of a value, and the line in which the member begins.
    pub fn up_to<T, M>(value: &T, member: &M) -> Place {
        let at = std::ptr::from_ref(value).addr();
        let len = std::ptr::from_ref(member).addr() - at + 1;
        Place { at, len }
    }

    /// Begins to fetch its first line.
    #[inline(always)]
    pub fn fetch(self) {
        prefetch(self.at);
    }

    /// As it is noted.
    fn word(self) -> usize {
        let first = self.at - self.at % LINE;
        let lines = (self.at + self.len).saturating_sub(first).div_ceil(LINE);
        first | lines.min(MOST)
    }
}

impl CacheLines {
    /// Notes the places, or as many as can be.
    #[cold]
    pub fn note<const N: usize>(&self, places: [Place; N]) {
        const { assert!(N <= PLACES) };
        let words = places.map(Place::word);
        for (at, slot) in self.0.iter().enumerate() {
            let word = words.get(at).copied().unwrap_or(0);
            slot.store(word, Ordering::Relaxed);
        }
    }

    /// Begins to fetch what is noted.
    #[inline(always)]
    pub fn fetch(&self) {
        if self.0[0].load(Ordering::Relaxed) != 0 {
            self.fetch_noted();
        }
    }

    #[inline(never)]
    fn fetch_noted(&self) {
        for slot in &self.0 {
            let word = slot.load(Ordering::Relaxed);
            let (first, lines) = (word & !(LINE - 1), word % LINE);
            for line in 0..lines {
                prefetch(first + line * LINE);
            }
        }
    }
}

#[inline(always)]
fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: only a hint, which is without effect where there is no memory.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_noted_as_its_lines() {
        let word = |at, len| Place { at, len }.word();
        assert_eq!(word(4096, 64), 4096 | 1);
        assert_eq!(word(4096 + 63, 1), 4096 | 1);
        assert_eq!(word(4096 + 63, 2), 4096 | 2);
        assert_eq!(word(4096 + 8, 120), 4096 | 2);
        assert_eq!(word(4096, 1 << 20), 4096 | 63);
        let lines = CacheLines::default();
        lines.fetch();
        // An address at which there is nothing.
        lines.note([
            Place {
                at: 1 << 30,
                len: 500,
            },
            Place::of(&word),
        ]);
        lines.fetch();
        assert_eq!(lines.0[0].load(Ordering::Relaxed), 1 << 30 | 8);
        assert_eq!(lines.0[2].load(Ordering::Relaxed), 0);
    }
}
