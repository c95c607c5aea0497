//! One direction of a connection: a ring of cells, each a cache line, and a ring of bytes for
//! what does not fit them.
//!
//! A cell begins with a word that says that it is full, what it holds and how much, followed by
//! a small payload: a short message is one line that goes from core to core. Longer ones go
//! through the bytes in chunks, which the words of their cells announce. The consumer says in
//! two counters how far it has come; the producer looks at them only when it runs out of room.
//!
//! The other side is not to be trusted: a word or a counter is read once, and then judged.

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Cells of a ring.
pub const CELLS: usize = if cfg!(loom) { 2 } else { 128 };
/// Bytes that fit a cell.
pub const MAX_INLINE: usize = 56;
/// Bytes are given out in units of a cache line.
const BLOCK: usize = 64;
/// Those units.
const BLOCKS: usize = if cfg!(loom) { 2 } else { 768 };
/// Bytes of a ring.
pub const DATA: usize = BLOCK * BLOCKS;
/// Bytes that one cell announces at most: the consumer copies one chunk while the producer
/// copies the next.
pub const CHUNK: usize = if cfg!(loom) { BLOCK } else { 16 * 1024 };
/// With less room than this a long message waits for more.
const WORTHWHILE: usize = if cfg!(loom) { 1 } else { 4096 };

/// Marks of the way from a full ring to an empty one: see [`Consumer::publish`].
const CELLS_MARK: u64 = (CELLS as u64).div_ceil(4);
const DATA_MARK: u64 = (DATA as u64).div_ceil(4);
/// A producer waits for bytes only if more are in use than lie between two marks.
const _: () = assert!(cfg!(loom) || DATA - WORTHWHILE - BLOCK > 2 * DATA_MARK as usize);

/// The other side does not keep to the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation;

/// What a cell holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Payload of a message, in the cell.
    Inline = 1,
    /// Payload of a message, next in the bytes.
    Bulk = 2,
    /// The key that the message which follows takes away, in the cell.
    Invalidate = 3,
}

bitflags::bitflags! {
    /// What else there is to a cell.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct CellFlags: u8 {
        /// The last of its message.
        const LAST = 0x01;
        /// The message is solicited.
        const SOLICITED = 0x02;
    }
}

/// The word of a cell: low 32 bits its number plus one, then length, kind and marks.
fn word(number: u64, kind: Kind, marks: CellFlags, len: usize) -> u64 {
    u64::from(full(number))
        | (len as u64) << 32
        | u64::from(kind as u8) << 48
        | u64::from(marks.bits()) << 56
}

fn full(number: u64) -> u32 {
    (number as u32).wrapping_add(1)
}

/// See the module.
#[repr(C, align(64))]
struct Cell {
    word: AtomicU64,
    body: UnsafeCell<[u8; MAX_INLINE]>,
}

#[repr(C, align(64))]
struct Block(UnsafeCell<[u8; BLOCK]>);

/// How far the consumer has come. Lines of its own: neighbours are prefetched in pairs.
#[repr(C, align(128))]
struct Heads {
    cells: AtomicU64,
    bytes: AtomicU64,
}

/// The shared part of a ring. All zero is an empty one.
#[repr(C, align(128))]
pub struct Ring {
    heads: Heads,
    cells: [Cell; CELLS],
    data: [Block; BLOCKS],
}

// SAFETY: the protocol gives every cell and block to one side at a time; that it does is what
// the models check.
unsafe impl Sync for Ring {}

impl Ring {
    /// An empty one, for tests.
    pub fn new() -> Box<Ring> {
        Box::new(Ring {
            heads: Heads {
                cells: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
            },
            cells: std::array::from_fn(|_| Cell {
                word: AtomicU64::new(0),
                body: UnsafeCell::new([0; MAX_INLINE]),
            }),
            data: std::array::from_fn(|_| Block(UnsafeCell::new([0; BLOCK]))),
        })
    }

    fn cell(&self, number: u64) -> &Cell {
        &self.cells[number as usize % CELLS]
    }

    /// The bytes from `at` on, to be written.
    fn data_mut<R>(&self, at: u64, f: impl FnOnce(*mut u8) -> R) -> R {
        let offset = (at % DATA as u64) as usize;
        if cfg!(loom) {
            self.data[offset / BLOCK].0.with_mut(|p| f(p.cast()))
        } else {
            // From the base, so that the pointer is good for more than one block.
            let base = self.data.as_ptr().cast::<u8>().cast_mut();
            // SAFETY: inside the ring. What is behind an `UnsafeCell` may be written.
            f(unsafe { base.add(offset) })
        }
    }

    /// The bytes from `at` on, to be read.
    fn data<R>(&self, at: u64, f: impl FnOnce(*const u8) -> R) -> R {
        let offset = (at % DATA as u64) as usize;
        if cfg!(loom) {
            self.data[offset / BLOCK].0.with(|p| f(p.cast()))
        } else {
            // SAFETY: inside the ring.
            f(unsafe { self.data.as_ptr().cast::<u8>().add(offset) })
        }
    }
}

/// How far ahead of its use a line is fetched: the consumer has read it, and to get it back from
/// there takes longer than to fill some others.
const AHEAD: u64 = 8;

/// Fetches a line that will be written.
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

fn padded(len: usize) -> u64 {
    len.next_multiple_of(BLOCK) as u64
}

/// The filling end.
#[derive(Debug, Default)]
pub struct Producer {
    /// Cells and bytes that were filled, ever.
    cells: u64,
    bytes: u64,
    /// How far the consumer was when we last looked.
    seen_cells: u64,
    seen_bytes: u64,
}

impl Producer {
    /// Reads how far the consumer has come.
    #[inline(never)]
    fn look(&mut self, ring: &Ring) -> Result<(), Violation> {
        let cells = ring.heads.cells.load(Ordering::Acquire);
        let bytes = ring.heads.bytes.load(Ordering::Acquire);
        let sane = |now: u64, seen: u64, end: u64| now >= seen && now <= end;
        // Bytes are used in blocks: what is free is whole ones.
        let whole = bytes.is_multiple_of(BLOCK as u64);
        let sane = whole
            && sane(cells, self.seen_cells, self.cells)
            && sane(bytes, self.seen_bytes, self.bytes);
        if !sane {
            return Err(Violation);
        }
        (self.seen_cells, self.seen_bytes) = (cells, bytes);
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
        self.look(ring)?;
        Ok(self.has_cell_cached())
    }

    /// Whether a cell was free at the last look.
    #[inline]
    pub fn has_cell_cached(&self) -> bool {
        self.cells - self.seen_cells < CELLS as u64
    }

    /// Whether at the last look there was room for a chunk of so many bytes, more than a cell holds.
    #[inline]
    pub fn has_chunk_cached(&self, wanted: usize) -> bool {
        let to_the_end = DATA - (self.bytes % DATA as u64) as usize;
        let free = DATA - (self.bytes - self.seen_bytes) as usize;
        wanted <= CHUNK.min(to_the_end).min(free)
    }

    /// How many of `wanted` bytes a chunk can have now; 0 if it is better to wait.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn chunk(&mut self, ring: &Ring, wanted: usize) -> Result<usize, Violation> {
        let wanted = wanted.min(CHUNK);
        let to_the_end = DATA - (self.bytes % DATA as u64) as usize;
        let least = wanted.min(WORTHWHILE).min(to_the_end);
        let free = |p: &Self| DATA - (p.bytes - p.seen_bytes) as usize;
        if free(self) < wanted {
            self.look(ring)?;
        }
        let n = wanted.min(free(self)).min(to_the_end);
        Ok(if n < least { 0 } else { n })
    }

    /// Fills the next cell, which is free. `fill` writes `len` bytes: not more than
    /// [`MAX_INLINE`], or for [`Kind::Bulk`] than [`Producer::chunk`] has said.
    #[inline]
    pub fn push(
        &mut self,
        ring: &Ring,
        kind: Kind,
        marks: CellFlags,
        len: usize,
        fill: impl FnOnce(*mut u8),
    ) {
        match kind {
            Kind::Bulk => ring.data_mut(self.bytes, fill),
            _ => ring.cell(self.cells).body.with_mut(|p| fill(p.cast())),
        }
        self.publish(ring, kind, marks, len);
    }

    /// Where the payload of the next cell goes, to be filled as with [`Producer::push`] before
    /// [`Producer::publish`].
    #[inline(always)]
    pub fn payload(&self, ring: &Ring, kind: Kind) -> *mut u8 {
        match kind {
            Kind::Bulk => ring.data_mut(self.bytes, |to| to),
            _ => ring.cell(self.cells).body.with_mut(|p| p.cast()),
        }
    }

    /// The next cell is filled.
    #[inline(always)]
    pub fn publish(&mut self, ring: &Ring, kind: Kind, marks: CellFlags, len: usize) {
        let cell = ring.cell(self.cells);
        if kind == Kind::Bulk {
            self.bytes += padded(len);
            let ahead = (self.bytes / BLOCK as u64 + AHEAD) as usize % BLOCKS;
            prefetch(&ring.data[ahead]);
        }
        let word = word(self.cells, kind, marks, len);
        cell.word.store(word, Ordering::Release);
        self.cells += 1;
        prefetch(ring.cell(self.cells + AHEAD));
    }
}

/// What the next cell holds.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// What it is.
    pub kind: Kind,
    /// What else there is to it.
    pub flags: CellFlags,
    /// Bytes of it.
    pub len: usize,
}

/// The emptying end.
#[derive(Debug, Default)]
pub struct Consumer {
    cells: u64,
    bytes: u64,
    /// The marks that come next: then a sleeping producer is looked for.
    marks: (u64, u64),
}

impl Piece {
    /// Whether it is a message of its own, if no other has begun.
    #[inline]
    pub fn is_whole_message(&self) -> bool {
        self.kind != Kind::Invalidate && self.flags.contains(CellFlags::LAST)
    }
}

impl Consumer {
    /// Number of the cell that comes next.
    pub fn next_cell(&self) -> u64 {
        self.cells
    }

    /// Where the bytes of the next chunk begin.
    pub fn next_data(&self) -> u64 {
        self.bytes
    }

    /// Fetches the first bytes from there on, while the cell is looked at that may announce them:
    /// they come together then, not one after the other.
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

    /// Whether the cell of that number is full, for a look without a lock.
    #[inline]
    pub fn is_filled(ring: &Ring, number: u64) -> bool {
        ring.cell(number).word.load(Ordering::Relaxed) as u32 == full(number)
    }

    /// What the next cell holds; `None` if it is not full.
    ///
    /// # Errors
    /// [`Violation`] if it is something that cannot be.
    #[inline]
    pub fn peek(&self, ring: &Ring) -> Result<Option<Piece>, Violation> {
        let word = ring.cell(self.cells).word.load(Ordering::Acquire);
        if word as u32 != full(self.cells) {
            return Ok(None);
        }
        let len = usize::from((word >> 32) as u16);
        let kind = match (word >> 48) as u8 {
            1 => Kind::Inline,
            2 => Kind::Bulk,
            3 => Kind::Invalidate,
            _ => return Err(Violation),
        };
        let flags = CellFlags::from_bits((word >> 56) as u8).ok_or(Violation)?;
        let to_the_end = DATA - (self.bytes % DATA as u64) as usize;
        let sane = match kind {
            // Only the end of a message may be empty: what comes for ever must need buffers.
            Kind::Inline => len <= MAX_INLINE && (len > 0 || flags.contains(CellFlags::LAST)),
            Kind::Bulk => len > 0 && len <= CHUNK && len <= to_the_end,
            Kind::Invalidate => len == 4,
        };
        if !sane {
            return Err(Violation);
        }
        Ok(Some(Piece { kind, flags, len }))
    }

    /// Gives the payload of a piece that [`Consumer::peek`] has just found to `f`.
    #[inline]
    pub fn payload<R>(&self, ring: &Ring, piece: &Piece, f: impl FnOnce(*const u8) -> R) -> R {
        if piece.kind == Kind::Bulk {
            ring.data(self.bytes, f)
        } else {
            ring.cell(self.cells).body.with(|p| f(p.cast()))
        }
    }

    /// That piece is used.
    #[inline]
    pub fn advance(&mut self, piece: &Piece) {
        self.cells += 1;
        if piece.kind == Kind::Bulk {
            self.bytes += padded(piece.len);
        }
    }

    /// Tells the producer how far we have come. True if one that sleeps for want of room has to
    /// be looked for: not every time, but several times on the way from a full ring to an empty
    /// one, of which the last leaves room for everything that can be waited for.
    #[inline]
    pub fn publish(&mut self, ring: &Ring) -> bool {
        ring.heads.bytes.store(self.bytes, Ordering::Release);
        ring.heads.cells.store(self.cells, Ordering::Release);
        let passed = self.cells >= self.marks.0 || self.bytes >= self.marks.1;
        if passed {
            self.marks.0 = (self.cells / CELLS_MARK + 1) * CELLS_MARK;
            self.marks.1 = (self.bytes / DATA_MARK + 1) * DATA_MARK;
        }
        passed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NONE: CellFlags = CellFlags::empty();

    fn push(p: &mut Producer, ring: &Ring, kind: Kind, bytes: &[u8]) {
        p.push(ring, kind, NONE, bytes.len(), |to| {
            // SAFETY: there is room for it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        });
    }

    fn pop(c: &mut Consumer, ring: &Ring) -> Option<Vec<u8>> {
        let piece = c.peek(ring).unwrap()?;
        let bytes = c.payload(ring, &piece, |from| {
            // SAFETY: as long as the piece.
            unsafe { std::slice::from_raw_parts(from, piece.len) }.to_vec()
        });
        c.advance(&piece);
        Some(bytes)
    }

    #[test]
    fn what_is_pushed_comes_out_in_order() {
        let ring = Ring::new();
        let (mut p, mut c) = (Producer::default(), Consumer::default());
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        let mut full = false;
        for round in 0..3000usize {
            let bytes = vec![round as u8; 1 + round * 37 % 9000];
            if !p.has_cell(&ring).unwrap() {
                full = true;
            } else if bytes.len() <= MAX_INLINE {
                push(&mut p, &ring, Kind::Inline, &bytes);
                sent.push(bytes);
            } else {
                let n = p.chunk(&ring, bytes.len()).unwrap();
                assert!(n <= bytes.len());
                if n > 0 {
                    push(&mut p, &ring, Kind::Bulk, &bytes[..n]);
                    sent.push(bytes[..n].to_vec());
                } else {
                    full = true;
                }
            }
            if round % 50 > 20 {
                got.extend(pop(&mut c, &ring));
                got.extend(pop(&mut c, &ring));
                c.publish(&ring);
            }
        }
        got.extend(std::iter::from_fn(|| pop(&mut c, &ring)));
        assert!(full);
        assert!(sent == got);
        c.publish(&ring);
        assert!(!c.publish(&ring));
        assert_eq!(p.chunk(&ring, 1), Ok(1));
    }

    #[test]
    fn lies_are_found_out() {
        let ring = Ring::new();
        let (mut p, c) = (Producer::default(), Consumer::default());
        for bad in [
            word(0, Kind::Inline, NONE, MAX_INLINE + 1),
            word(0, Kind::Inline, NONE, 0),
            word(0, Kind::Bulk, NONE, 0),
            word(0, Kind::Bulk, NONE, CHUNK + 1),
            word(0, Kind::Invalidate, NONE, 5),
            word(0, Kind::Inline, CellFlags::from_bits_retain(0x80), 1),
            u64::from(full(0)),
        ] {
            ring.cells[0].word.store(bad, Ordering::Relaxed);
            assert_eq!(c.peek(&ring).map(|_| ()), Err(Violation));
        }
        let at_the_end = Consumer {
            bytes: (DATA - BLOCK) as u64,
            ..Consumer::default()
        };
        let beyond = word(0, Kind::Bulk, NONE, BLOCK + 1);
        ring.cells[0].word.store(beyond, Ordering::Relaxed);
        assert_eq!(at_the_end.peek(&ring).map(|_| ()), Err(Violation));
        // A consumer that has used what was never filled.
        ring.heads.cells.store(1, Ordering::Relaxed);
        p.seen_cells = 0;
        assert_eq!(p.look(&ring), Err(Violation));
        ring.heads.cells.store(0, Ordering::Relaxed);
        ring.heads.bytes.store(64, Ordering::Relaxed);
        assert_eq!(p.look(&ring), Err(Violation));
        // Half a block.
        p.bytes = 640;
        assert_eq!(p.look(&ring), Ok(()));
        ring.heads.bytes.store(100, Ordering::Relaxed);
        assert_eq!(p.look(&ring), Err(Violation));
    }
}
