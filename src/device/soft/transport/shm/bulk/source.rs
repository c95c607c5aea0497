//! What the cell of an offer has.

use super::{ENTRY, MOST_SEGMENTS, TAIL};
use crate::device::Sge;
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::qp::state::MAX_MESSAGE;
use crate::device::soft::qp::work_queue::Transfer;
use crate::guarded::CopyFault;

/// What the cell of an offer says of the message.
pub(super) struct Source {
    segments: [Sge; MOST_SEGMENTS],
    count: usize,
    /// Bytes of the message.
    pub len: u64,
    /// The last bytes of the message.
    pub tail: [u8; TAIL],
}

impl Source {
    /// Reads the cell of an offer. `None` if the peer has violated the protocol.
    ///
    /// # Safety
    /// `len` bytes at `from` may be read.
    pub unsafe fn read(from: *const u8, len: usize) -> Option<Source> {
        let mut source = Source {
            segments: [Sge::NONE; MOST_SEGMENTS],
            count: len / ENTRY,
            len: 0,
            // SAFETY: the last of the `len` bytes.
            tail: unsafe { from.wrapping_add(len - TAIL).cast::<[u8; TAIL]>().read() },
        };
        for (i, segment) in source.segments[..source.count].iter_mut().enumerate() {
            let at = from.wrapping_add(i * ENTRY).cast::<[u64; 2]>();
            // SAFETY: inside the cell, at any alignment.
            let [addr, rest] = unsafe { at.read_unaligned() };
            *segment = Sge {
                addr,
                len: rest as u32,
                lkey: (rest >> 32) as u32,
            };
            source.len += u64::from(segment.len);
        }
        let lengths = TAIL as u64 + 1..=u64::from(MAX_MESSAGE);
        lengths.contains(&source.len).then_some(source)
    }

    /// Bytes of the message without those that are in the cell.
    pub fn body_len(&self) -> u64 {
        self.len - TAIL as u64
    }

    /// The segments of the message.
    pub fn segments(&self) -> &[Sge] {
        &self.segments[..self.count]
    }

    /// Writes the cell of an offer of a message, of [`ENTRY`] bytes for each segment and [`TAIL`] more. Returns how
    /// many that are.
    ///
    /// # Errors
    /// The memory of the message cannot be read.
    ///
    /// # Safety
    /// As many bytes at `to` may be written, and the message is in registered memory for as long as the section
    /// lasts.
    pub unsafe fn write(transfer: &Transfer<'_>, to: *mut u8) -> Result<usize, CopyFault> {
        let segments = transfer.sges;
        for (i, segment) in segments.iter().enumerate() {
            let rest = u64::from(segment.len) | u64::from(segment.lkey) << 32;
            let at = to.wrapping_add(i * ENTRY).cast::<[u64; 2]>();
            // SAFETY: inside the cell, at any alignment.
            unsafe { at.write_unaligned([segment.addr, rest]) };
        }
        let (len, body_len) = (
            segments.len() * ENTRY,
            u64::from(transfer.len) - TAIL as u64,
        );
        // SAFETY: the caller's promise; long messages alone are offered.
        unsafe { copy::gather(Cursor::at(segments, body_len), to.wrapping_add(len), TAIL) }?;
        Ok(len + TAIL)
    }
}
