//! Messages that are sent whole or not at all, and received whole: those of a sender that does not
//! wait for room.

use super::{
    CELLS, CellFlags, Consumer, DATA_LEN, Kind, MAX_CHUNK, MAX_INLINE, Producer, Ring, Violation,
    padded,
};

/// The bytes of the next part of a message of which `left` bytes are left, if it goes to the data
/// bytes from `at` on.
fn part(at: u64, left: usize) -> usize {
    let to_the_end = DATA_LEN - (at % DATA_LEN as u64) as usize;
    left.min(MAX_CHUNK).min(to_the_end)
}

impl Producer {
    /// Whether a message of so many bytes has room by the counters that were last read.
    fn has_room_cached(&self, len: usize) -> bool {
        let (mut cells, mut end, mut left) = (self.cells, self.bytes, len);
        if len <= MAX_INLINE {
            (cells, left) = (cells + 1, 0);
        }
        while left > 0 {
            let n = part(end, left);
            left -= n;
            end += padded(n);
            cells += 1;
        }
        cells - self.consumed_cells <= CELLS as u64 && end - self.consumed_bytes <= DATA_LEN as u64
    }

    /// Number of cells that the consumer had consumed when the counter was last read.
    pub fn consumed_cells(&self) -> u64 {
        self.consumed_cells
    }

    /// Sends a whole message; false if there is no room for all of it.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn push_whole(
        &mut self,
        ring: &Ring,
        flags: CellFlags,
        message: &[u8],
    ) -> Result<bool, Violation> {
        if !self.has_room_cached(message.len()) {
            self.refresh(ring)?;
            if !self.has_room_cached(message.len()) {
                return Ok(false);
            }
        }
        let (kind, mut left) = match message.len() {
            0..=MAX_INLINE => (Kind::Inline, message),
            _ => (Kind::Bulk, message),
        };
        loop {
            let n = match kind {
                Kind::Bulk => part(self.bytes, left.len()),
                _ => left.len(),
            };
            let (now, later) = left.split_at(n);
            let mut flags = flags;
            flags.set(CellFlags::LAST, later.is_empty());
            // SAFETY: there is room for so many bytes, which are no bytes of the ring.
            let copy = |to: *mut u8| unsafe { now.as_ptr().copy_to_nonoverlapping(to, n) };
            let filled = self.push(ring, kind, flags, n, |to| {
                copy(to);
                Ok::<_, std::convert::Infallible>(())
            });
            let Ok(()) = filled;
            if later.is_empty() {
                return Ok(true);
            }
            left = later;
        }
    }
}

/// A message of which not all parts have arrived.
pub struct Assembly {
    /// Room for the longest message, behind bytes for the user of the message.
    buffer: Box<[u8]>,
    /// Where messages begin in the buffer.
    start: usize,
    /// Where the bytes end that have arrived.
    end: usize,
}

impl Assembly {
    /// For messages of at most `longest` bytes, to be received behind `start` other bytes.
    pub fn new(start: usize, longest: usize) -> Assembly {
        Assembly {
            buffer: vec![0; start + longest].into(),
            start,
            end: start,
        }
    }

    /// Consumes the parts of the next message; the message behind the other bytes and its flags, or
    /// `None` if not all of the message has arrived.
    ///
    /// # Errors
    /// [`Violation`], also for a message that is too long and for what is no part of a message.
    pub fn take(
        &mut self,
        consumer: &mut Consumer,
        ring: &Ring,
    ) -> Result<Option<(&mut [u8], CellFlags)>, Violation> {
        loop {
            let Some(piece) = consumer.peek(ring)? else {
                return Ok(None);
            };
            let room = self.buffer.get_mut(self.end..).unwrap_or_default();
            if !matches!(piece.kind, Kind::Inline | Kind::Bulk) || piece.len > room.len() {
                return Err(Violation);
            }
            // SAFETY: as long as the piece, and there is room. The peer may change the bytes
            // meanwhile, and spoils its own message then.
            consumer.payload(ring, &piece, |from| unsafe {
                from.copy_to_nonoverlapping(room.as_mut_ptr(), piece.len);
            });
            consumer.advance(&piece);
            self.end += piece.len;
            if piece.flags.contains(CellFlags::LAST) {
                let end = std::mem::replace(&mut self.end, self.start);
                return Ok(Some((&mut self.buffer[..end], piece.flags)));
            }
        }
    }
}
