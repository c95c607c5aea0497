//! The end that empties a ring.

use super::{
    BLOCK, BLOCKS, CELLS_STEP, CellFlags, DATA_LEN, DATA_STEP, IMMEDIATE_LEN, Kind, MAX_CHUNK,
    MAX_INLINE, REQUEST_LEN, Ring, TARGET_LEN, Violation, filled, padded,
};
use crate::device::soft::qp::cache_lines::Place;
use crate::sync::atomic::Ordering;

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

impl Piece {
    /// Whether the cell has all of a message, provided that no message is received in part.
    #[inline]
    pub fn is_whole_message(&self) -> bool {
        matches!(self.kind, Kind::Inline | Kind::Bulk) && self.flags.contains(CellFlags::LAST)
    }
}

/// The private state of the end that empties a ring.
#[derive(Debug, Default)]
pub struct Consumer {
    /// Cells that were consumed since the beginning.
    pub(super) cells: u64,
    /// Data bytes that were consumed since the beginning, in whole blocks.
    pub(super) bytes: u64,
    /// The counts of cells and bytes at which the consumer next checks for a producer that waits.
    pub(super) next_check: (u64, u64),
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
        Place::of(&ring.data[at as usize / BLOCK % BLOCKS]).fetch();
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
        Self::header(ring, number).is_some()
    }

    /// Whether the cell of that number, which is filled, has a [request](Kind::is_request); `None` if it is not
    /// filled. For a poll without a lock.
    #[inline]
    pub fn has_request(ring: &Ring, number: u64) -> Option<bool> {
        const WRITE: u8 = Kind::Write as u8;
        const LONG_WRITE: u8 = Kind::LongWrite as u8;
        const ATOMIC: u8 = Kind::Atomic as u8;
        let kind = (Self::header(ring, number)? >> 48) as u8;
        Some(matches!(kind, WRITE | LONG_WRITE | ATOMIC))
    }

    /// The header of the cell of that number, if it is filled.
    #[inline]
    fn header(ring: &Ring, number: u64) -> Option<u64> {
        let header = ring.cell(number).header.load(Ordering::Relaxed);
        (header as u32 == filled(number)).then_some(header)
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
            7 => Kind::Write,
            8 => Kind::LongWrite,
            _ => return Err(Violation),
        };
        let flags = CellFlags::from_bits((header >> 56) as u8).ok_or(Violation)?;
        let to_the_end = DATA_LEN - (self.bytes % DATA_LEN as u64) as usize;
        let is_valid = match kind {
            // Only the last part of a message may be empty: a peer that sends for ever must use up
            // receives.
            Kind::Inline => len <= MAX_INLINE && (len > 0 || flags.contains(CellFlags::LAST)),
            Kind::Bulk | Kind::LongWrite => len > 0 && len <= MAX_CHUNK && len <= to_the_end,
            Kind::Invalidate => len == 4,
            Kind::Atomic => len == REQUEST_LEN && flags == CellFlags::LAST,
            Kind::Immediate => len == IMMEDIATE_LEN && flags.contains(CellFlags::LAST),
            Kind::Write => (TARGET_LEN..=MAX_INLINE).contains(&len),
            Kind::Offer => {
                len > 16 && len <= MAX_INLINE && len % 16 == 8 && flags.contains(CellFlags::LAST)
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
        if piece.kind.has_data() {
            ring.data(self.bytes, f)
        } else {
            self.in_cell(ring, f)
        }
    }

    /// Calls `f` with what that cell itself has.
    #[inline]
    pub fn in_cell<R>(&self, ring: &Ring, f: impl FnOnce(*const u8) -> R) -> R {
        ring.cell(self.cells).payload.with(|p| f(p.cast()))
    }

    /// Consumes that cell.
    #[inline]
    pub fn advance(&mut self, piece: &Piece) {
        self.cells += 1;
        if piece.kind.has_data() {
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
