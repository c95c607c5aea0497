//! Copies between buffers of consumers.
//!
//! All addresses are those of registered memory, checked by the caller; the memory belongs to
//! the consumer, whose other threads may read it at any time, and may unmap or protect it at any
//! time. A copy of memory that is not there fails ([`guarded`]); a part of it may be made then.

use crate::device::Sge;
use crate::guarded::{self, CopyFault};

/// Bytes at the end of an RDMA write that become visible after all others.
pub const TAIL: usize = 16;

/// Copies; the ranges may overlap.
///
/// # Errors
/// The side that cannot be accessed.
///
/// # Safety
/// The ranges are memory of which `len` bytes may be read, and changed, respectively, as far as it
/// is there.
#[inline(always)]
pub unsafe fn plain(from: *const u8, to: *mut u8, len: usize) -> Result<(), CopyFault> {
    // SAFETY: the caller's promise.
    unsafe {
        // One or two words, the most frequent messages, are not worth a call.
        if (8..=16).contains(&len) {
            guarded::copy_words(from, to, len)
        } else {
            guarded::copy(from, to, len)
        }
    }
}

/// Copies what has arrived into a receive, or what was read, so that the last byte becomes visible last: programs
/// wait for it by polling that byte, as for an RDMA write.
///
/// # Errors
/// As [`plain`].
///
/// # Safety
/// As [`plain`].
#[inline(always)]
pub unsafe fn arrived(from: *const u8, to: *mut u8, len: usize) -> Result<(), CopyFault> {
    // SAFETY: the caller's promise.
    unsafe {
        match guarded::STORES_IN_ORDER {
            true => plain(from, to, len),
            false => tail_last(from, to, len),
        }
    }
}

/// Copies so that the last bytes become visible last, in ascending order: programs wait for an
/// RDMA write by polling the end of its target.
///
/// # Errors
/// As [`plain`].
///
/// # Safety
/// As [`plain`].
#[inline]
pub unsafe fn tail_last(from: *const u8, to: *mut u8, len: usize) -> Result<(), CopyFault> {
    if len == 8 && to.addr().is_multiple_of(8) {
        // SAFETY: the caller's promise.
        return unsafe { guarded::copy_aligned_word(from, to) };
    }
    let tail_len = len.min(TAIL);
    let bulk = len - tail_len;
    let mut tail = [0u8; TAIL];
    let (tail_from, tail_to) = (from.wrapping_add(bulk), to.wrapping_add(bulk));
    // SAFETY: all inside the two ranges. The tail is taken first: with ranges that overlap the
    // copy of the rest may overwrite it.
    unsafe {
        if tail_len == TAIL && tail_to.addr().is_multiple_of(8) {
            guarded::copy_words(tail_from, tail.as_mut_ptr(), TAIL)?;
            plain(from, to, bulk)?;
            let (first, last) = tail.split_at(8);
            guarded::store(tail_to, first)?;
            return guarded::store(tail_to.wrapping_add(8), last);
        }
        plain(tail_from, tail.as_mut_ptr(), tail_len)?;
        plain(from, to, bulk)?;
        store_ascending(tail_to, &tail[..tail_len])
    }
}

/// Stores in pieces as large as alignment allows, so that an aligned word at the end appears
/// at once, and each after all stores before it.
///
/// # Errors
/// The memory cannot be written.
///
/// # Safety
/// `to` may be changed for the length of `bytes`.
unsafe fn store_ascending(mut to: *mut u8, mut bytes: &[u8]) -> Result<(), CopyFault> {
    while !bytes.is_empty() {
        let aligned = 1usize << (to.addr().trailing_zeros().min(3));
        let n = if aligned <= bytes.len() {
            aligned
        } else {
            1 << bytes.len().ilog2()
        };
        let (piece, rest) = bytes.split_at(n);
        // SAFETY: `n` bytes at `to` may be changed, and `to` is aligned to `n`.
        unsafe { guarded::store(to, piece) }?;
        to = to.wrapping_add(n);
        bytes = rest;
    }
    Ok(())
}

/// A position in a list of segments.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    /// The segment of the position, and those behind it.
    rest: &'a [Sge],
    /// Bytes of the first of them that lie before the position.
    done: u32,
}

impl<'a> Cursor<'a> {
    /// At the start of `sges`.
    pub fn new(sges: &'a [Sge]) -> Self {
        Cursor {
            rest: sges,
            done: 0,
        }
    }

    /// `skip` bytes behind the start.
    pub fn at(sges: &'a [Sge], skip: u64) -> Self {
        let mut cursor = Self::new(sges);
        cursor.advance(skip);
        cursor
    }

    /// The address of the position, if the next `len` bytes are in its segment.
    #[inline]
    pub fn whole(&self, len: u64) -> Option<*mut u8> {
        let first = self.rest.first()?;
        let left = u64::from(first.len - self.done);
        (len <= left).then(|| (first.addr + u64::from(self.done)) as *mut u8)
    }

    /// Advances the position by `n` bytes.
    #[inline]
    pub fn advance(&mut self, n: u64) {
        let mut left = n;
        while let Some((_, n)) = self.take(left) {
            left -= n;
        }
    }

    /// Returns the next contiguous piece, of at most `max` bytes, and advances behind it; `None` at
    /// the end, and for a `max` of 0.
    #[inline]
    pub fn take(&mut self, max: u64) -> Option<(*mut u8, u64)> {
        loop {
            let first = self.rest.first()?;
            let left = u64::from(first.len - self.done);
            if left == 0 {
                self.rest = &self.rest[1..];
                self.done = 0;
                continue;
            }
            let n = left.min(max);
            if n == 0 {
                return None;
            }
            let at = (first.addr + u64::from(self.done)) as *mut u8;
            self.done += n as u32;
            return Some((at, n));
        }
    }
}

/// Copies `len` bytes from segments to segments, both at least that long.
///
/// # Errors
/// As [`plain`].
///
/// # Safety
/// As [`plain`], for the pieces passed.
#[inline(never)]
pub unsafe fn segments(
    mut from: Cursor<'_>,
    mut to: Cursor<'_>,
    len: u64,
) -> Result<(), CopyFault> {
    let mut left = len;
    let mut source = None;
    while left > 0 {
        let Some((src, have)) = source.take().or_else(|| from.take(left)) else {
            break;
        };
        let Some((dst, n)) = to.take(have.min(left)) else {
            break;
        };
        // SAFETY: `n` is not more than either piece.
        unsafe { arrived(src, dst, n as usize) }?;
        if n < have {
            source = Some((src.wrapping_add(n as usize), have - n));
        }
        left -= n;
    }
    Ok(())
}

/// [`segments`] from the beginning of both lists, which mostly have one segment each.
///
/// # Errors
/// As [`plain`].
///
/// # Safety
/// As [`segments`].
#[inline(always)]
pub unsafe fn between(from: &[Sge], to: &[Sge], len: u32) -> Result<(), CopyFault> {
    // SAFETY: the caller's promise.
    unsafe {
        match (from, to) {
            ([from], [to]) => arrived(from.addr as *const u8, to.addr as *mut u8, len as usize),
            _ => segments(Cursor::new(from), Cursor::new(to), len.into()),
        }
    }
}

/// Copies segments to one range, the last bytes last.
///
/// # Errors
/// As [`plain`].
///
/// # Safety
/// As [`plain`]; the segments hold at least `len` bytes.
#[inline]
pub unsafe fn gather_tail_last(
    mut from: Cursor<'_>,
    mut to: *mut u8,
    len: u64,
) -> Result<(), CopyFault> {
    let mut left = len;
    while let Some((src, n)) = from.take(left) {
        left -= n;
        // SAFETY: `n` bytes of both are inside what the caller promised.
        unsafe {
            if left == 0 {
                tail_last(src, to, n as usize)?;
            } else {
                plain(src, to, n as usize)?;
            }
        }
        to = to.wrapping_add(n as usize);
    }
    Ok(())
}

/// Copies `len` bytes to segments that hold at least as much.
///
/// # Errors
/// As [`plain`].
///
/// # Safety
/// As [`plain`].
#[inline]
pub unsafe fn scatter(
    mut from: *const u8,
    len: usize,
    mut to: Cursor<'_>,
) -> Result<(), CopyFault> {
    let mut left = len as u64;
    while let Some((dst, n)) = to.take(left) {
        // SAFETY: `n` is not more than either has.
        unsafe { arrived(from, dst, n as usize) }?;
        from = from.wrapping_add(n as usize);
        left -= n;
    }
    Ok(())
}

/// [`gather`] from the beginning of a list, which mostly has one segment.
///
/// # Errors
/// As [`plain`].
///
/// # Safety
/// As [`gather`].
#[inline(always)]
pub unsafe fn gather_all(from: &[Sge], to: *mut u8, len: usize) -> Result<(), CopyFault> {
    // SAFETY: the caller's promise.
    unsafe {
        match from {
            [only] => plain(only.addr as *const u8, to, len),
            _ => gather(Cursor::new(from), to, len).map(|_| ()),
        }
    }
}

/// [`gather_all`] into memory that a peer has read on another processor.
///
/// # Errors
/// As [`plain`].
///
/// # Safety
/// As [`gather`].
#[inline(always)]
pub unsafe fn gather_for_peer(from: &[Sge], to: *mut u8, len: usize) -> Result<(), CopyFault> {
    match from {
        // SAFETY: the caller's promise.
        [only] if guarded::fetches_nothing(len) => unsafe {
            guarded::copy_for_peer(only.addr as *const u8, to, len)
        },
        // SAFETY: the caller's promise.
        _ => unsafe { gather_all(from, to, len) },
    }
}

/// Copies `len` bytes from segments that hold at least as much to one range, in any order.
/// Returns the position behind the bytes.
///
/// # Errors
/// As [`plain`].
///
/// # Safety
/// As [`plain`].
#[inline(never)]
pub unsafe fn gather<'a>(
    mut from: Cursor<'a>,
    mut to: *mut u8,
    len: usize,
) -> Result<Cursor<'a>, CopyFault> {
    let mut left = len as u64;
    while let Some((src, n)) = from.take(left) {
        // SAFETY: `n` is not more than either has.
        unsafe { plain(src, to, n as usize) }?;
        to = to.wrapping_add(n as usize);
        left -= n;
    }
    Ok(from)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn pattern(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 31 + 7) as u8).collect()
    }

    #[test]
    fn every_length_and_alignment_arrives() {
        let src = pattern(64);
        for offset in 0..9 {
            for len in 0..40 {
                let mut dst = vec![0u8; 64];
                // SAFETY: both vectors hold more.
                let copied =
                    unsafe { tail_last(src.as_ptr().add(3), dst.as_mut_ptr().add(offset), len) };
                assert_eq!(copied, Ok(()));
                assert_eq!(dst[offset..offset + len], src[3..3 + len]);
                assert!(
                    dst[..offset]
                        .iter()
                        .chain(&dst[offset + len..])
                        .all(|b| *b == 0)
                );
            }
        }
    }

    #[test]
    fn overlapping_ranges_are_moved() {
        for (from, to) in [(0, 5), (5, 0), (0, 40), (40, 0), (7, 7)] {
            let mut buf = pattern(200);
            let expected = buf[from..from + 100].to_vec();
            let p = buf.as_mut_ptr();
            // SAFETY: inside the vector.
            let copied = unsafe { tail_last(p.add(from), p.add(to), 100) };
            assert_eq!(copied, Ok(()));
            assert_eq!(buf[to..to + 100], expected[..]);
        }
    }

    /// Segments of these lengths, one behind the other.
    pub fn cut(base: &mut [u8], lens: &[usize]) -> Vec<Sge> {
        let mut at = base.as_mut_ptr() as u64;
        lens.iter()
            .map(|len| {
                let sge = Sge {
                    addr: at,
                    len: *len as u32,
                    lkey: 0,
                };
                at += *len as u64;
                sge
            })
            .collect()
    }

    #[test]
    fn segments_of_any_shape() {
        let mut src = pattern(100);
        for from in [&[100][..], &[1, 0, 9, 90], &[50, 50], &[0, 0, 99, 1]] {
            for to in [&[100][..], &[33, 33, 34], &[0, 7, 0, 93]] {
                let mut dst = vec![0u8; 100];
                let (f, t) = (cut(&mut src, from), cut(&mut dst, to));
                // SAFETY: the segments lie in the two vectors.
                let copied = unsafe { segments(Cursor::new(&f), Cursor::new(&t), 100) };
                assert_eq!(copied, Ok(()));
                assert_eq!(dst, src);
                let mut dst = vec![0u8; 100];
                // SAFETY: as above; 90 bytes are there behind the first 10.
                let copied = unsafe { gather_tail_last(Cursor::at(&f, 10), dst.as_mut_ptr(), 90) };
                assert_eq!(copied, Ok(()));
                assert_eq!(dst[..90], src[10..]);
                assert!(dst[90..].iter().all(|b| *b == 0));
            }
        }
    }
}
