//! Ranges of memory for one system call.

use std::mem::MaybeUninit;

use super::copy::Cursor;

/// Up to `N` ranges of memory.
pub(crate) struct Ranges<const N: usize> {
    ranges: [MaybeUninit<libc::iovec>; N],
    count: usize,
}

impl<const N: usize> Ranges<N> {
    /// No ranges.
    #[inline]
    pub fn new() -> Ranges<N> {
        Ranges {
            ranges: [const { MaybeUninit::uninit() }; N],
            count: 0,
        }
    }

    /// Number of ranges.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether there is no room for one more.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.count == N
    }

    /// Removes all ranges behind the first `count`, of which there are as many.
    #[inline]
    pub fn truncate(&mut self, count: usize) {
        debug_assert!(count <= self.count);
        self.count = count;
    }

    /// Adds a range. There is room for it.
    #[inline]
    pub fn push(&mut self, at: *mut u8, len: usize) {
        self.ranges[self.count].write(iovec(at, len));
        self.count += 1;
    }

    /// Adds a range, to the last one if that ends where this one begins. There is room for it.
    #[inline]
    pub fn push_adjoining(&mut self, at: *mut u8, len: usize) {
        if let Some(last) = self.count.checked_sub(1) {
            // SAFETY: so many were written.
            let last = unsafe { self.ranges[last].assume_init_mut() };
            if last.iov_base.wrapping_byte_add(last.iov_len) == at.cast() {
                last.iov_len += len;
                return;
            }
        }
        self.push(at, len);
    }

    /// Adds the segments of `len` bytes from the cursor on, as far as there is room for them and one range
    /// more, and returns the number of bytes. If these are all, and more than `tail` are in the last
    /// segment, its last `tail` bytes are a range of their own, unless that is 0.
    #[inline]
    pub fn push_segments(&mut self, mut from: Cursor<'_>, len: u64, tail: u64) -> u64 {
        let mut bytes = 0;
        while self.count + 1 < N
            && let Some((at, n)) = from.take(len - bytes)
        {
            bytes += n;
            let tail = if bytes == len && n > tail { tail } else { 0 };
            let bulk = (n - tail) as usize;
            self.push(at, bulk);
            if tail > 0 {
                self.push(at.wrapping_add(bulk), tail as usize);
            }
        }
        bytes
    }

    /// The ranges.
    #[inline]
    pub fn all(&self) -> &[libc::iovec] {
        let written: *const [MaybeUninit<libc::iovec>] = &self.ranges[..self.count];
        // SAFETY: so many were written, and are borrowed as long as `self`.
        unsafe { &*(written as *const [libc::iovec]) }
    }
}

/// A range for the kernel.
#[inline]
pub(crate) fn iovec(at: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: at.cast(),
        iov_len: len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Sge;

    #[test]
    fn ranges_that_adjoin_are_one() {
        let mut ranges = Ranges::<4>::new();
        for (at, len) in [
            (100, 8),
            (108, 16),
            (124, 0),
            (124, 1),
            (126, 2),
            (100, 8),
            (92, 8),
        ] {
            ranges.push_adjoining(std::ptr::without_provenance_mut(at), len);
        }
        let found = ranges.all().iter();
        let found: Vec<_> = found
            .map(|range| (range.iov_base.addr(), range.iov_len))
            .collect();
        assert_eq!(found, [(100, 25), (126, 2), (100, 8), (92, 8)]);
    }

    /// The ranges of the segments, as their places in the memory.
    fn ranges(segments: &[(u64, u32)], len: u64, tail: u64) -> (u64, Vec<(u64, usize)>) {
        let sge = |&(addr, len): &(u64, u32)| Sge { addr, len, lkey: 0 };
        let sges: Vec<Sge> = segments.iter().map(sge).collect();
        let mut ranges = Ranges::<4>::new();
        let bytes = ranges.push_segments(Cursor::new(&sges), len, tail);
        let all = ranges.all().iter();
        (
            bytes,
            all.map(|r| (r.iov_base.addr() as u64, r.iov_len)).collect(),
        )
    }

    #[test]
    fn the_tail_is_a_range_of_its_own_if_the_segment_has_more() {
        let at = 4096;
        assert_eq!(ranges(&[(at, 9)], 9, 8), (9, vec![(at, 1), (at + 1, 8)]));
        // No range is empty.
        assert_eq!(ranges(&[(at, 8)], 8, 8), (8, vec![(at, 8)]));
        assert_eq!(ranges(&[(at, 7)], 7, 8), (7, vec![(at, 7)]));
        assert_eq!(ranges(&[(at, 9)], 9, 0), (9, vec![(at, 9)]));
        // The rest of the bytes is somewhere else.
        assert_eq!(ranges(&[(at, 9)], 10, 8), (9, vec![(at, 9)]));
    }

    #[test]
    fn room_for_one_range_more_is_left() {
        let segments = [(4096, 9), (8192, 9), (12288, 9), (16384, 9)];
        let three = vec![(4096, 9), (8192, 9), (12288, 9)];
        assert_eq!(ranges(&segments, 36, 8), (27, three));
        let four = vec![(4096, 9), (8192, 9), (12288, 1), (12289, 8)];
        assert_eq!(ranges(&segments, 27, 8), (27, four));
    }
}
