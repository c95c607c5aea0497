//! One direction of a connection: a ring of cells, each a cache line, and a ring of data bytes for
//! payload that does not fit a cell.
//!
//! A cell begins with a header word, which marks the cell as filled and has the kind and length of
//! the payload. A short payload follows in the cell: a short message is one cache line that moves
//! from core to core. A longer message goes through the data bytes in chunks, each with the header
//! of a cell. The consumer publishes in two counters how many cells and bytes it has consumed; the
//! producer reads them only when it runs out of room.
//!
//! The peer is not trusted: a header or counter is read once and then checked.

mod whole;

use crate::device::soft::qp::cache_lines::Place;
use crate::guarded::fetches_nothing;
use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU64, Ordering};

pub use self::whole::Assembly;

/// Bytes of the cell of an atomic operation: address, key and kind, and two operands.
pub const REQUEST_LEN: usize = 32;
/// Bytes of the cell of immediate data: the number, and the bytes that were written.
pub const IMMEDIATE_LEN: usize = 8;
/// Cells of a ring.
pub const CELLS: usize = if cfg!(loom) { 2 } else { 128 };
/// The most payload in a cell, in bytes.
pub const MAX_INLINE: usize = 56;
/// Data bytes are allocated in blocks of a cache line, of so many bytes.
const BLOCK: usize = 64;
/// Blocks of a ring.
const BLOCKS: usize = if cfg!(loom) { 2 } else { 768 };
/// Data bytes of a ring.
pub const DATA_LEN: usize = BLOCK * BLOCKS;
/// The most bytes of a chunk: the consumer copies one chunk while the producer copies the next.
pub const MAX_CHUNK: usize = if cfg!(loom) { BLOCK } else { 16 * 1024 };
/// With room for fewer bytes than this a long message waits for more.
const MIN_CHUNK: usize = if cfg!(loom) { 1 } else { 4096 };

/// The consumer checks for a producer that waits for room each time it has consumed so many cells,
/// or so many bytes: see [`Consumer::publish`].
const CELLS_STEP: u64 = (CELLS as u64).div_ceil(4);
const DATA_STEP: u64 = (DATA_LEN as u64).div_ceil(4);
// A producer waits for bytes only if more are in use than two steps.
const _: () = assert!(cfg!(loom) || DATA_LEN - MIN_CHUNK - BLOCK > 2 * DATA_STEP as usize);

/// The peer has violated the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation;

/// What the payload of a cell is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A part of a message, which is in the cell.
    Inline = 1,
    /// A part of a message, which is next in the data bytes.
    Bulk = 2,
    /// The key that the next message invalidates, which is in the cell.
    Invalidate = 3,
    /// Where all of a message is in the memory of the sender ([`offer`](super::offer)), which is in
    /// the cell.
    Offer = 4,
    /// An atomic operation for the consumer to execute, which is in the cell.
    Atomic = 5,
    /// The number that follows an RDMA write with immediate data, which is in the cell.
    Immediate = 6,
}

bitflags::bitflags! {
    /// Further properties of a cell.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct CellFlags: u8 {
        /// The cell has the last part of a message.
        const LAST = 0x01;
        /// The message has the solicited event flag.
        const SOLICITED = 0x02;
    }
}

/// The header of a filled cell: the number of the cell plus one in the low 32 bits, the length in
/// 16, the kind in 8, and the flags in 8.
fn header(number: u64, kind: Kind, flags: CellFlags, len: usize) -> u64 {
    u64::from(filled(number))
        | (len as u64) << 32
        | u64::from(kind as u8) << 48
        | u64::from(flags.bits()) << 56
}

/// The low 32 bits of the header, once the cell of that number is filled.
fn filled(number: u64) -> u32 {
    (number as u32).wrapping_add(1)
}

/// A cell of the ring.
#[repr(C, align(64))]
struct Cell {
    /// See [`header`].
    header: AtomicU64,
    /// The payload of a short part.
    payload: UnsafeCell<[u8; MAX_INLINE]>,
}

/// A block of data bytes.
#[repr(C, align(64))]
struct Block(UnsafeCell<[u8; BLOCK]>);

/// What the consumer has consumed. In two cache lines of its own: the processor prefetches lines in
/// pairs.
#[repr(C, align(128))]
struct Consumed {
    /// Cells, since the beginning.
    cells: AtomicU64,
    /// Data bytes in whole blocks, since the beginning.
    bytes: AtomicU64,
}

/// A ring, in shared memory. All of it is zero while nothing was sent.
#[repr(C, align(128))]
pub struct Ring {
    consumed: Consumed,
    cells: [Cell; CELLS],
    data: [Block; BLOCKS],
}

// SAFETY: the protocol gives every cell and block to one end at a time, which the loom models
// check.
unsafe impl Sync for Ring {}

impl Ring {
    /// An empty ring, for tests.
    pub fn new() -> Box<Ring> {
        Box::new(Ring {
            consumed: Consumed {
                cells: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
            },
            cells: std::array::from_fn(|_| Cell {
                header: AtomicU64::new(0),
                payload: UnsafeCell::new([0; MAX_INLINE]),
            }),
            data: std::array::from_fn(|_| Block(UnsafeCell::new([0; BLOCK]))),
        })
    }

    /// The counters of the consumer.
    pub(crate) fn cache_lines(&self) -> Place {
        Place::of(&self.consumed.cells)
    }

    /// The cell of that number, counted since the beginning.
    fn cell(&self, number: u64) -> &Cell {
        &self.cells[number as usize % CELLS]
    }

    /// Calls `f` with the address of data byte `at`, counted since the beginning, to be written.
    fn data_mut<R>(&self, at: u64, f: impl FnOnce(*mut u8) -> R) -> R {
        let offset = (at % DATA_LEN as u64) as usize;
        if cfg!(loom) {
            self.data[offset / BLOCK].0.with_mut(|p| f(p.cast()))
        } else {
            // Derived from all blocks, so that the pointer may be used for more than one.
            let base = self.data.as_ptr().cast::<u8>().cast_mut();
            // SAFETY: inside the ring. The blocks are `UnsafeCell`s, which may be written.
            f(unsafe { base.add(offset) })
        }
    }

    /// Calls `f` with the address of data byte `at`, to be read.
    fn data<R>(&self, at: u64, f: impl FnOnce(*const u8) -> R) -> R {
        let offset = (at % DATA_LEN as u64) as usize;
        if cfg!(loom) {
            self.data[offset / BLOCK].0.with(|p| f(p.cast()))
        } else {
            // SAFETY: inside the ring.
            f(unsafe { self.data.as_ptr().cast::<u8>().add(offset) })
        }
    }
}

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

/// Data bytes that a chunk uses, in whole blocks.
fn padded(len: usize) -> u64 {
    len.next_multiple_of(BLOCK) as u64
}

/// The private state of the end that fills a ring.
#[derive(Debug, Default)]
pub struct Producer {
    /// Cells that were filled since the beginning.
    cells: u64,
    /// Data bytes that were filled since the beginning, in whole blocks.
    bytes: u64,
    /// Cells that the consumer had consumed when the counter was last read.
    consumed_cells: u64,
    /// Data bytes that the consumer had consumed when the counter was last read.
    consumed_bytes: u64,
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
    fn refresh(&mut self, ring: &Ring) -> Result<(), Violation> {
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

    /// Fills the next cell, which is free. `fill` writes `len` bytes: at most [`MAX_INLINE`], or for
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
        match kind {
            Kind::Bulk => ring.data_mut(self.bytes, fill),
            _ => ring.cell(self.cells).payload.with_mut(|p| fill(p.cast())),
        }?;
        self.publish(ring, kind, flags, len);
        Ok(())
    }

    /// The address for the payload of the next cell, which is to be filled as in
    /// [`Producer::push`] before [`Producer::publish`].
    #[inline(always)]
    pub fn payload(&self, ring: &Ring, kind: Kind) -> *mut u8 {
        match kind {
            Kind::Bulk => ring.data_mut(self.bytes, |to| to),
            _ => ring.cell(self.cells).payload.with_mut(|p| p.cast()),
        }
    }

    /// Marks the next cell as filled.
    #[inline(always)]
    pub fn publish(&mut self, ring: &Ring, kind: Kind, flags: CellFlags, len: usize) {
        let cell = ring.cell(self.cells);
        if kind == Kind::Bulk {
            self.bytes += padded(len);
        }
        let header = header(self.cells, kind, flags, len);
        cell.header.store(header, Ordering::Release);
        self.cells += 1;
        self.unanswered = self.unanswered.wrapping_add(1);
        if kind == Kind::Bulk {
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

/// A filled cell.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// What the payload is.
    pub kind: Kind,
    /// Further properties.
    pub flags: CellFlags,
    /// Bytes of the payload.
    pub len: usize,
}

/// The private state of the end that empties a ring.
#[derive(Debug, Default)]
pub struct Consumer {
    /// Cells that were consumed since the beginning.
    cells: u64,
    /// Data bytes that were consumed since the beginning, in whole blocks.
    bytes: u64,
    /// The counts of cells and bytes at which the consumer next checks for a producer that waits.
    next_check: (u64, u64),
}

impl Piece {
    /// Whether the cell has all of a message, provided that no message is received in part.
    #[inline]
    pub fn is_whole_message(&self) -> bool {
        matches!(self.kind, Kind::Inline | Kind::Bulk) && self.flags.contains(CellFlags::LAST)
    }
}

impl Consumer {
    /// Number of the next cell.
    pub fn next_cell(&self) -> u64 {
        self.cells
    }

    /// Number of the data byte at which the next chunk begins.
    pub fn next_data(&self) -> u64 {
        self.bytes
    }

    /// Prefetches the data bytes at `at`, while the header of the cell is read to which they may
    /// belong: then the two cache lines are fetched together, not one after the other.
    #[inline]
    pub fn prefetch(ring: &Ring, at: u64) {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        // SAFETY: only a hint, at an address of ours.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let block = &ring.data[at as usize / BLOCK % BLOCKS];
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(block).cast());
        }
        #[cfg(not(all(target_arch = "x86_64", not(loom))))]
        let _ = (ring, at);
    }

    /// Prefetches the cell of that number, and the next one.
    #[inline]
    pub fn prefetch_cells(ring: &Ring, number: u64) {
        for number in [number, number.wrapping_add(1)] {
            Place::of(ring.cell(number)).fetch();
        }
    }

    /// Whether the cell of that number is filled: for a poll without a lock.
    #[inline]
    pub fn is_filled(ring: &Ring, number: u64) -> bool {
        ring.cell(number).header.load(Ordering::Relaxed) as u32 == filled(number)
    }

    /// The next cell; `None` if it is not filled.
    ///
    /// # Errors
    /// [`Violation`] if its header is not valid.
    #[inline]
    pub fn peek(&self, ring: &Ring) -> Result<Option<Piece>, Violation> {
        let header = ring.cell(self.cells).header.load(Ordering::Acquire);
        if header as u32 != filled(self.cells) {
            return Ok(None);
        }
        let len = usize::from((header >> 32) as u16);
        let kind = match (header >> 48) as u8 {
            1 => Kind::Inline,
            2 => Kind::Bulk,
            3 => Kind::Invalidate,
            4 => Kind::Offer,
            5 => Kind::Atomic,
            6 => Kind::Immediate,
            _ => return Err(Violation),
        };
        let flags = CellFlags::from_bits((header >> 56) as u8).ok_or(Violation)?;
        let to_the_end = DATA_LEN - (self.bytes % DATA_LEN as u64) as usize;
        let is_valid = match kind {
            // Only the last part of a message may be empty: a peer that sends for ever must use up
            // receives.
            Kind::Inline => len <= MAX_INLINE && (len > 0 || flags.contains(CellFlags::LAST)),
            Kind::Bulk => len > 0 && len <= MAX_CHUNK && len <= to_the_end,
            Kind::Invalidate => len == 4,
            Kind::Atomic => len == REQUEST_LEN && flags == CellFlags::LAST,
            Kind::Immediate => len == IMMEDIATE_LEN && flags.contains(CellFlags::LAST),
            Kind::Offer => {
                len > 0 && len <= MAX_INLINE && len % 16 == 0 && flags.contains(CellFlags::LAST)
            }
        };
        if !is_valid {
            return Err(Violation);
        }
        Ok(Some(Piece { kind, flags, len }))
    }

    /// Calls `f` with the payload of the cell that [`Consumer::peek`] has just returned.
    #[inline]
    pub fn payload<R>(&self, ring: &Ring, piece: &Piece, f: impl FnOnce(*const u8) -> R) -> R {
        if piece.kind == Kind::Bulk {
            ring.data(self.bytes, f)
        } else {
            ring.cell(self.cells).payload.with(|p| f(p.cast()))
        }
    }

    /// Consumes that cell.
    #[inline]
    pub fn advance(&mut self, piece: &Piece) {
        self.cells += 1;
        if piece.kind == Kind::Bulk {
            self.bytes += padded(piece.len);
        }
    }

    /// Publishes the counters for the producer. True if the caller has to check for a producer that
    /// sleeps because it waits for room: not every time, but several times between a full ring and
    /// an empty one, and the last time when there is enough room for any message that waits.
    #[inline]
    pub fn publish(&mut self, ring: &Ring) -> bool {
        ring.consumed.bytes.store(self.bytes, Ordering::Release);
        ring.consumed.cells.store(self.cells, Ordering::Release);
        let passed = self.cells >= self.next_check.0 || self.bytes >= self.next_check.1;
        if passed {
            self.next_check.0 = (self.cells / CELLS_STEP + 1) * CELLS_STEP;
            self.next_check.1 = (self.bytes / DATA_STEP + 1) * DATA_STEP;
        }
        passed
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
