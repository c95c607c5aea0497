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

mod consumer;
mod producer;
mod whole;

use crate::device::soft::qp::cache_lines::Place;
use crate::sync::UnsafeCell;
use crate::sync::atomic::AtomicU64;

pub use self::consumer::{Consumer, Piece};
pub use self::producer::Producer;
pub use self::whole::Assembly;

/// Bytes of the cell of an atomic operation: address, key and kind, and two operands.
pub const REQUEST_LEN: usize = 32;
/// Bytes of the cell of immediate data: the number, and the bytes that were written.
pub const IMMEDIATE_LEN: usize = 8;
/// Bytes in front of the data in the cell of an RDMA write: address and key.
pub const TARGET_LEN: usize = 16;
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
    /// An RDMA write for the consumer to execute, which is in the cell with its data.
    Write = 7,
    /// The same with its data next in the data bytes. The length is that of the data.
    LongWrite = 8,
}

impl Kind {
    /// Whether the cell has an RDMA write.
    #[inline(always)]
    pub fn is_write(self) -> bool {
        matches!(self, Kind::Write | Kind::LongWrite)
    }

    /// Whether the cell has something that the consumer executes, which takes no receive.
    #[inline(always)]
    pub fn is_request(self) -> bool {
        self.is_write() || self == Kind::Atomic
    }

    /// Whether the payload is in the data bytes.
    #[inline(always)]
    pub fn has_data(self) -> bool {
        matches!(self, Kind::Bulk | Kind::LongWrite)
    }
}

bitflags::bitflags! {
    /// Further properties of a cell.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct CellFlags: u8 {
        /// The cell has the last part of a message.
        const LAST = 0x01;
        /// The message has the solicited event flag.
        const SOLICITED = 0x02;
        /// The RDMA write is the first of those that are [taken](super::write_claim) at once.
        const FIRST = 0x04;
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

/// Data bytes that a chunk uses, in whole blocks.
fn padded(len: usize) -> u64 {
    len.next_multiple_of(BLOCK) as u64
}

#[cfg(all(test, not(loom)))]
mod tests;
