//! Acknowledgements, an extension of our own that two ends agree on when they connect: which requests
//! an end has finished. iWARP alone lets a request complete when it is sent, before anybody knows
//! whether the peer accepts it.
//!
//! The requests of an end (Sends, RDMA Writes, Read Requests, Atomic Requests, but no ready-to-receive
//! message) have the numbers 0, 1, 2... in the order of the stream; an RDMA Write and its Immediate Data
//! are one. The peer has finished a Send when the message is in its receive, an RDMA Write when the
//! payload is in memory, Immediate Data when it has a receive, a Read Request when it has arrived, an
//! Atomic Request when it is executed. It acknowledges by a count, modulo 2^32: the number of the oldest request that is not
//! finished.
//!
//! * A Send without Invalidate has the count in the field for the STag to invalidate, which that
//!   message has no use for.
//! * Otherwise an [`Acknowledge`] message, an untagged segment with an opcode and a queue of its own,
//!   has it in the same field. It may have a note as payload.
//!
//! A request whose last segment has the bit [`RDMAP_ASK`](super::wire::RDMAP_ASK) is to be acknowledged
//! at once: the queue of its sender fills.
//!
//! An end of the stream without [`Note::Ended`] or a Terminate before it is that of a peer which was
//! killed.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::fpdu::{self, Control, Header, Untagged};
use super::wire::{
    AcknowledgeWire, FPDU_CRC, FPDU_TRAILER_MAX, NOTE_ENDED, NOTE_REFUSED, OP_ACKNOWLEDGE, OP_SEND,
    OP_SEND_SE, QN_ACKNOWLEDGE, UNTAGGED_HDR, WireError,
};

const NOTE: usize = size_of::<AcknowledgeWire>();
/// Length of the FPDU of an [`Acknowledge`] message with a note, which has no padding.
pub const ACKNOWLEDGE_FPDU_MAX: usize = UNTAGGED_HDR + NOTE + FPDU_CRC;

/// What an acknowledgement says beyond its count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// Its sender has ended the connection gracefully, and sends no further request.
    Ended,
    /// The request with this number failed. A Terminate follows.
    Refused(u32),
}

/// An acknowledgement that is a message of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acknowledge {
    /// Number of the oldest request that is not finished.
    pub count: u32,
    /// What else there is to say.
    pub note: Option<Note>,
}

impl Acknowledge {
    /// The header of the FPDU, with its sequence number.
    pub fn header(&self, msn: u32) -> [u8; UNTAGGED_HDR] {
        let header = Untagged {
            control: Control::new(OP_ACKNOWLEDGE, true),
            invalidate: self.count,
            qn: QN_ACKNOWLEDGE,
            msn,
            mo: 0,
        };
        let mut bytes = [0; UNTAGGED_HDR];
        let len = if self.note.is_some() { NOTE } else { 0 };
        // A note is shorter than the longest payload that a header can describe.
        let _ = header.encode(len, &mut bytes);
        bytes
    }

    /// Builds the whole FPDU; the result lies in `out`.
    pub fn encode<'t>(
        &self,
        msn: u32,
        crc: bool,
        out: &'t mut [u8; ACKNOWLEDGE_FPDU_MAX],
    ) -> &'t [u8] {
        let mut body = UNTAGGED_HDR;
        out[..body].copy_from_slice(&self.header(msn));
        if let Some(note) = self.note {
            let (note, number) = match note {
                Note::Ended => (NOTE_ENDED, 0),
                Note::Refused(number) => (NOTE_REFUSED, number),
            };
            let (note, number) = (U32::new(note), U32::new(number));
            let wire = AcknowledgeWire { note, number };
            out[body..body + NOTE].copy_from_slice(wire.as_bytes());
            body += NOTE;
        }
        let mut trailer = [0; FPDU_TRAILER_MAX];
        let trailer = fpdu::seal(crc, &out[..body], [], &mut trailer);
        out[body..body + trailer.len()].copy_from_slice(trailer);
        &out[..body + trailer.len()]
    }

    /// Reads the note in the payload of an acknowledgement.
    ///
    /// # Errors
    /// [`WireError::RDMAP_STREAM`] if it is none.
    pub fn parse_note(payload: &[u8]) -> Result<Option<Note>, WireError> {
        if payload.is_empty() {
            return Ok(None);
        }
        let wire =
            AcknowledgeWire::read_from_bytes(payload).map_err(|_| WireError::RDMAP_STREAM)?;
        match wire.note.get() {
            NOTE_ENDED => Ok(Some(Note::Ended)),
            NOTE_REFUSED => Ok(Some(Note::Refused(wire.number.get()))),
            _ => Err(WireError::RDMAP_STREAM),
        }
    }
}

/// The count that a segment brings, if both ends have agreed on acknowledgements.
#[inline]
pub fn count_in(header: &Header) -> Option<u32> {
    match header {
        Header::Untagged(header)
            if matches!(
                header.control.opcode(),
                OP_SEND | OP_SEND_SE | OP_ACKNOWLEDGE
            ) =>
        {
            Some(header.invalidate)
        }
        _ => None,
    }
}
