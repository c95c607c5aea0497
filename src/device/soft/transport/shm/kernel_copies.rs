//! How much the kernel has copied from and to each region of a peer, and when the region is to be moved
//! to where peers map it.
//!
//! A move costs as much as some thirty copies by the kernel of all its bytes, and the threads of the
//! owner that use the memory wait meanwhile. So a region moves when peers have spent ten times as
//! long in copies as the move takes: a program that uses a region once never pays for a move, and one
//! that uses the region for ever has lost a tenth of the time before.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of regions of one peer whose copies are counted at a time. A region that is used more takes
/// the place of one that is used less.
const REGIONS: usize = 64;
/// Bytes in one unit of the counts.
const UNIT: u64 = 4096;
/// Bytes that the kernel copies in the time that the system call takes.
const CALL: u64 = 16 << 10;
/// Bytes that move in the time that a move takes however few there are.
const MOVE: u64 = 128 << 10;
/// How often the kernel has copied all the bytes that a move is worth, when the region moves.
const PAYS: u64 = 256;

/// The count of a region.
#[derive(Default)]
struct Count {
    /// The key of the region; 0 if there is none.
    key: AtomicU32,
    /// What the kernel has copied, in units.
    units: AtomicU32,
}

/// The counts. Threads that count at the same time may lose a part, which delays a move.
pub(super) struct KernelCopies(Box<[Count]>);

impl Default for KernelCopies {
    fn default() -> KernelCopies {
        KernelCopies((0..REGIONS).map(|_| Count::default()).collect())
    }
}

impl KernelCopies {
    /// Counts a copy of `len` bytes from or to the region with this key. True if the region, of `size`
    /// bytes, is to move; its count begins anew then.
    pub fn add(&self, key: u32, len: u64, size: u64) -> bool {
        let count = &self.0[key as usize % REGIONS];
        let units = u32::try_from((len.saturating_add(CALL)) / UNIT).unwrap_or(u32::MAX);
        let before = count.units.load(Ordering::Relaxed);
        if count.key.load(Ordering::Relaxed) != key {
            match before.checked_sub(units) {
                Some(left @ 1..) => count.units.store(left, Ordering::Relaxed),
                _ => {
                    count.key.store(key, Ordering::Relaxed);
                    count.units.store(units, Ordering::Relaxed);
                }
            }
            return false;
        }
        let copied = before.saturating_add(units);
        let pays = u64::from(copied) >= size.saturating_add(MOVE) / UNIT * PAYS;
        let left = if pays { 0 } else { copied };
        count.units.store(left, Ordering::Relaxed);
        pays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies of `len` bytes until a region of `size` bytes moves.
    fn copies(counts: &KernelCopies, key: u32, len: u64, size: u64) -> u64 {
        (1..1 << 20)
            .find(|_| counts.add(key, len, size))
            .expect("the region never moves")
    }

    #[test]
    fn a_region_moves_when_that_pays() {
        let counts = KernelCopies::default();
        assert_eq!(copies(&counts, 1, 8, 4096), 256 * 132 / 16 / 4 * 4);
        // The count begins anew.
        assert_eq!(copies(&counts, 1, 8, 4096), 256 * 132 / 16 / 4 * 4);
        let whole = copies(&counts, 2, 1 << 20, 1 << 20);
        assert!((256..300).contains(&whole), "{whole}");
    }

    #[test]
    fn the_region_that_is_used_most_is_counted() {
        let (often, seldom) = (1, 1 + REGIONS as u32);
        let counts = KernelCopies::default();
        for round in 0..1 << 20 {
            if counts.add(often, 8, 4096) {
                return;
            }
            if round % 3 == 0 {
                assert!(!counts.add(seldom, 8, 4096));
            }
        }
        panic!("the region never moves");
    }

    #[test]
    fn numbers_that_do_not_fit() {
        let counts = KernelCopies::default();
        for _ in 0..4 {
            assert!(!counts.add(1, u64::MAX, u64::MAX));
        }
        assert!(counts.add(1, u64::MAX, 0));
    }
}
