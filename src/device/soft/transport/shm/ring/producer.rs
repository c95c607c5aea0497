//! The end that fills a ring.

use super::{
    BLOCK, BLOCKS, CELLS, CellFlags, DATA_LEN, Kind, MAX_CHUNK, MIN_CHUNK, Ring, Violation, header,
    padded,
};
use crate::guarded::fetches_nothing;
use crate::sync::atomic::Ordering;

/// The producer prefetches the cache line that it will write after so many others: the line is in
/// the cache of the consumer's core, and to fetch it from there takes longer than to fill some
/// lines.
const PREFETCH_AHEAD: u64 = 8;
/// The same once more in a burst, because the consumer's processor, which reads line after line, may have fetched
/// the line meanwhile. While the two ends take turns that would cost more than it saves: the consumer polls the
/// lines before this one.
const PREFETCH_AGAIN: u64 = 3;
/// A burst is more cells than this without an answer.
const BURST: u32 = 3;
/// From this length of a chunk on, in bytes, the producer prefetches the blocks of the next chunk at once. The
/// first block of a shorter one the consumer, which polls for that chunk, would take back.
const PREFETCH_NEXT: usize = 256;
/// The longest chunk whose successor is prefetched, in bytes.
const PREFETCH_MOST: usize = 4096;

/// Prefetches a cache line that will be written.
#[inline]
fn prefetch<T>(line: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: only a hint, at an address of ours.
    unsafe {
        let at = std::ptr::from_ref(line);
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = line;
}

/// The private state of the end that fills a ring.
#[derive(Debug, Default)]
pub struct Producer {
    /// Cells that were filled since the beginning.
    pub(super) cells: u64,
    /// Data bytes that were filled since the beginning, in whole blocks.
    pub(super) bytes: u64,
    /// Cells that the consumer had consumed when the counter was last read.
    pub(super) consumed_cells: u64,
    /// Data bytes that the consumer had consumed when the counter was last read.
    pub(super) consumed_bytes: u64,
    /// Cells that were filled since the other end has answered, modulo 2^32.
    unanswered: u32,
}

impl Producer {
    /// The other end has sent something as well.
    #[inline(always)]
    pub fn answered(&mut self) {
        self.unanswered = 0;
    }

    /// Number of the next cell.
    pub fn next_cell(&self) -> u64 {
        self.cells
    }

    /// Reads the counters of the consumer.
    #[inline(never)]
    pub(super) fn refresh(&mut self, ring: &Ring) -> Result<(), Violation> {
        let cells = ring.consumed.cells.load(Ordering::Acquire);
        let bytes = ring.consumed.bytes.load(Ordering::Acquire);
        let is_valid = |now: u64, before: u64, end: u64| now >= before && now <= end;
        // Bytes are consumed in whole blocks.
        let whole = bytes.is_multiple_of(BLOCK as u64);
        let is_valid = whole
            && is_valid(cells, self.consumed_cells, self.cells)
            && is_valid(bytes, self.consumed_bytes, self.bytes);
        if !is_valid {
            return Err(Violation);
        }
        (self.consumed_cells, self.consumed_bytes) = (cells, bytes);
        Ok(())
    }

    /// Whether a cell is free.
    ///
    /// # Errors
    /// [`Violation`].
    #[inline]
    pub fn has_cell(&mut self, ring: &Ring) -> Result<bool, Violation> {
        if self.has_cell_cached() {
            return Ok(true);
        }
        self.refresh(ring)?;
        Ok(self.has_cell_cached())
    }

    /// Whether the consumer has consumed all cells before that number.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn has_consumed(&mut self, ring: &Ring, number: u64) -> Result<bool, Violation> {
        if self.consumed_cells < number {
            self.refresh(ring)?;
        }
        Ok(self.consumed_cells >= number)
    }

    /// How many cells the consumer has consumed.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn consumed(&mut self, ring: &Ring) -> Result<u64, Violation> {
        self.refresh(ring)?;
        Ok(self.consumed_cells)
    }

    /// Whether a cell is free by the counters that were last read.
    #[inline]
    pub fn has_cell_cached(&self) -> bool {
        self.cells - self.consumed_cells < CELLS as u64
    }

    /// Whether there is room for a chunk of so many bytes by the counters that were last read. Only
    /// for more bytes than fit a cell.
    #[inline]
    pub fn has_chunk_cached(&self, wanted: usize) -> bool {
        let to_the_end = DATA_LEN - (self.bytes % DATA_LEN as u64) as usize;
        let free = DATA_LEN - (self.bytes - self.consumed_bytes) as usize;
        wanted <= MAX_CHUNK.min(to_the_end).min(free)
    }

    /// The size in bytes of a chunk for a message of which `wanted` bytes are left; 0 if the message
    /// has to wait for room.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn chunk(&mut self, ring: &Ring, wanted: usize) -> Result<usize, Violation> {
        let wanted = wanted.min(MAX_CHUNK);
        let to_the_end = DATA_LEN - (self.bytes % DATA_LEN as u64) as usize;
        let least = wanted.min(MIN_CHUNK).min(to_the_end);
        let free = |p: &Self| DATA_LEN - (p.bytes - p.consumed_bytes) as usize;
        if free(self) < wanted {
            self.refresh(ring)?;
        }
        let n = wanted.min(free(self)).min(to_the_end);
        Ok(if n < least { 0 } else { n })
    }

    /// Fills the next cell, which is free. `fill` writes `len` bytes: at most [`MAX_INLINE`](super::MAX_INLINE), or for
    /// [`Kind::Bulk`] the result of [`Producer::chunk`].
    ///
    /// # Errors
    /// Of `fill`; the cell is free as before.
    #[inline]
    pub fn push<E>(
        &mut self,
        ring: &Ring,
        kind: Kind,
        flags: CellFlags,
        len: usize,
        fill: impl FnOnce(*mut u8) -> Result<(), E>,
    ) -> Result<(), E> {
        if kind.has_data() {
            ring.data_mut(self.bytes, fill)
        } else {
            ring.cell(self.cells).payload.with_mut(|p| fill(p.cast()))
        }?;
        self.publish(ring, kind, flags, len);
        Ok(())
    }

    /// The address for the payload of the next cell, which is to be filled as in
    /// [`Producer::push`] before [`Producer::publish`].
    #[inline(always)]
    pub fn payload(&self, ring: &Ring, kind: Kind) -> *mut u8 {
        match kind.has_data() {
            true => ring.data_mut(self.bytes, |to| to),
            false => self.in_cell(ring),
        }
    }

    /// The address of what the next cell itself holds.
    #[inline(always)]
    pub fn in_cell(&self, ring: &Ring) -> *mut u8 {
        ring.cell(self.cells).payload.with_mut(|p| p.cast())
    }

    /// Marks the next cell as filled.
    #[inline(always)]
    pub fn publish(&mut self, ring: &Ring, kind: Kind, flags: CellFlags, len: usize) {
        let cell = ring.cell(self.cells);
        if kind.has_data() {
            self.bytes += padded(len);
        }
        let header = header(self.cells, kind, flags, len);
        cell.header.store(header, Ordering::Release);
        self.cells += 1;
        self.unanswered = self.unanswered.wrapping_add(1);
        if kind.has_data() {
            self.prefetch_data(ring, len);
        }
        self.prefetch_ahead(|ahead| ring.cell(self.cells + ahead));
    }

    /// Prefetches what is to be written after some more lines; `line` is the one behind so many.
    #[inline(always)]
    fn prefetch_ahead<'a, T: 'a>(&self, line: impl Fn(u64) -> &'a T) {
        prefetch(line(PREFETCH_AHEAD));
        if self.unanswered > BURST {
            prefetch(line(PREFETCH_AGAIN));
        }
    }

    /// Prefetches the blocks of the next chunk: after one chunk another of its length is likely.
    /// Not blocks that the consumer still has to read, nor where the copy fetches none itself.
    #[inline(always)]
    fn prefetch_data(&self, ring: &Ring, len: usize) {
        if len < PREFETCH_NEXT {
            let next = self.bytes / BLOCK as u64;
            self.prefetch_ahead(|ahead| &ring.data[(next + ahead) as usize % BLOCKS]);
        } else if len <= PREFETCH_MOST && !fetches_nothing(len) && self.has_chunk_cached(len) {
            let first = self.bytes as usize / BLOCK % BLOCKS;
            for block in &ring.data[first..first + len.div_ceil(BLOCK)] {
                prefetch(block);
            }
        }
    }
}
