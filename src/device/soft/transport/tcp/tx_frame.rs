//! What is sent: the FPDU that comes next of a request or of a read response, and the position
//! behind it.

use crate::device::soft::iwarp::extensions::{AtomicRequest, AtomicResponse, Immediate};
use crate::device::soft::iwarp::fpdu::{
    Control, Tagged, Untagged, mulpdu, tagged_payload, untagged_payload,
};
use crate::device::soft::iwarp::rdmap::{ReadRequest, send_opcode};
use crate::device::soft::iwarp::sequence::TxSequence;
use crate::device::soft::iwarp::wire::{
    OP_READ_RESPONSE, OP_WRITE, QN_SEND, READ_REQUEST_HDR, TAGGED_HDR, UNTAGGED_HDR,
};
use crate::device::soft::mem::copy::Cursor;
use crate::device::soft::mem::key_table;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Request;
use crate::device::{Access, SendOp, Sge, WrFlags};
use crate::handle::Guard;

use super::batch::{FrameError, SendBatch};
use super::close_reason::{CloseReason, wire_fault};

/// Payload of a full segment: near the 64 KiB that an FPDU can have, and a multiple of what
/// copies like. TCP cuts it to the size of the path.
pub(super) const SEGMENT: u32 = 63 * 1024;
/// Payload of a segment when there is no memory for a full one: a part of the reserve.
const SHORT_SEGMENT: u32 = 1024;

/// The longest payloads of segments, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Longest {
    /// Of RDMA Writes and Read Responses, whose header is shorter.
    tagged: u32,
    /// Of Sends.
    untagged: u32,
}

impl Longest {
    /// For a peer that takes FPDUs longer than TCP segments.
    pub const FULL: Longest = Longest {
        tagged: SEGMENT,
        untagged: SEGMENT,
    };

    /// For FPDUs that fit TCP segments of `emss` bytes.
    pub fn fitting(emss: usize) -> Longest {
        let ulpdu = mulpdu(emss);
        Longest {
            tagged: (tagged_payload(ulpdu) as u32).min(SEGMENT),
            untagged: (untagged_payload(ulpdu) as u32).min(SEGMENT),
        }
    }

    /// Without memory for those.
    pub fn shortened(self) -> Longest {
        Longest {
            tagged: self.tagged.min(SHORT_SEGMENT),
            untagged: self.untagged.min(SHORT_SEGMENT),
        }
    }

    /// Of a request.
    #[inline]
    pub fn of(self, op: &SendOp) -> u32 {
        match op {
            SendOp::RdmaWrite(_) | SendOp::RdmaWriteImm { .. } => self.tagged,
            _ => self.untagged,
        }
    }
}

/// How many times as long a full segment is as a last one that is short: 4032 bytes.
const SHORT_LAST: u32 = 16;

/// What the peer is to be answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// The memory that it reads.
    Read(Response),
    /// The result of an atomic operation, which is executed.
    Atomic(AtomicResponse),
}

/// A read of the peer that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub msn: u32,
    pub request: ReadRequest,
}

impl Response {
    /// The address in memory of so many bytes from an offset on, which the peer may read.
    ///
    /// # Errors
    /// Why not.
    pub fn source(
        &self,
        offset: u32,
        len: u32,
        me: &QpState,
        guard: &Guard,
    ) -> Result<u64, CloseReason> {
        key_table::resolve(
            self.request.source_stag,
            me.id.scope(),
            self.request.source_to.wrapping_add(u64::from(offset)),
            u64::from(len),
            Access::REMOTE_READ,
            guard,
        )
        .map_err(|fault| self.failed(fault))
    }

    fn failed(&self, fault: key_table::Fault) -> CloseReason {
        // The Terminate message names the read of the peer that has failed.
        let mut offending = [0; READ_REQUEST_HDR];
        self.request.encode(self.msn, &mut offending);
        CloseReason::Protocol(wire_fault(fault), Some(offending))
    }
}

/// How far the requests are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// The request that is sent next, or being sent.
    pub request: u64,
    /// Bytes of it that are sent, and its sequence number, once it is begun. An RDMA write with
    /// immediate data may have all its bytes sent, and the data not.
    pub begun: Option<(u32, u32)>,
    /// Responses sent, of those that wait.
    pub answered: usize,
    /// Bytes of the next one that are sent, once it is begun.
    pub answering: Option<u32>,
    /// Reads and atomic operations that are not answered.
    pub reads: u32,
    /// Whether a response is sent before the next request.
    pub response_first: bool,
    pub sequence: TxSequence,
    /// The request behind the last one that has asked for an acknowledgement.
    pub asked: u64,
}

/// A request that moves data, and its segments.
pub(super) type Transfer<'a> = (&'a Request, &'a SendOp, &'a [Sge]);

/// What requests say of acknowledgements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counting {
    /// Number of requests of the peer that are finished.
    pub count: u32,
    /// Number of requests after which one asks for an acknowledgement.
    pub interval: u64,
    /// The oldest request that has not completed.
    pub oldest: u64,
}

impl Counting {
    /// Whether the request with this number asks for an acknowledgement, if that before `asked` was the
    /// last one to do so. A queue that the answers of the peer empty needs none.
    #[inline]
    fn asks(&self, number: u64, asked: u64) -> bool {
        number - asked >= self.interval && number + 1 - self.oldest >= self.interval
    }
}

/// What the last byte of an FPDU finishes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Finishes {
    Nothing,
    Request(u64),
    Read(u64, u32),
    Response,
    Acknowledgement,
}

/// Payload of the next segment of a message of which `left` bytes are not sent, at most `most`. The peer
/// works on the last segment but one while the last one is built and sent. With a checksum the last one is
/// short, if the other has room: little is left to do when it arrives. Without one these two are about equal:
/// a long payload is read in place, and a short segment would cost the peer as many calls as a long one.
fn segment_len(left: u32, most: u32, crc: bool) -> u32 {
    if left <= most {
        left
    } else if left >= 2 * most {
        most
    } else if crc {
        (left - most / SHORT_LAST).min(most) & !3
    } else {
        left.div_ceil(2).next_multiple_of(4)
    }
}

/// The next FPDU of a request, with at most as much payload as `longest` says. A Send that invalidates nothing
/// has the count of `acks` in that field.
///
/// # Errors
/// Its memory cannot be read, or there is none for the FPDU.
pub(super) fn transfer(
    batch: &mut SendBatch,
    at: &mut Position,
    (request, op, sges): Transfer<'_>,
    acks: Counting,
    (longest, crc): (Longest, bool),
) -> Result<Finishes, FrameError> {
    let number = at.request;
    let (offset, msn) = at.begun.unwrap_or((0, 0));
    let len = segment_len(request.len - offset, longest.of(op), crc);
    let last = offset + len == request.len;
    let payload = Cursor::at(sges, u64::from(offset));
    at.response_first = true;
    let asks = last && acks.asks(number, at.asked);
    let msn = match *op {
        SendOp::Send | SendOp::SendInvalidate { .. } => {
            let msn = match at.begun {
                Some(_) => msn,
                None => at.sequence.next_send(),
            };
            let invalidate = match *op {
                SendOp::SendInvalidate { rkey } => Some(rkey),
                _ => None,
            };
            let solicited = request.flags.contains(WrFlags::SOLICITED);
            let header = Untagged {
                control: Control::new(send_opcode(solicited, invalidate.is_some()), last)
                    .asking(asks),
                invalidate: invalidate.unwrap_or(acks.count),
                qn: QN_SEND,
                msn,
                mo: offset,
            };
            let mut bytes = [0; UNTAGGED_HDR];
            // A segment is shorter than the longest that a header can describe.
            let _ = header.encode(len as usize, &mut bytes);
            batch.frame(&bytes, payload, len, crc)?;
            msn
        }
        SendOp::RdmaWrite(to) => {
            let header = Tagged {
                control: Control::new(OP_WRITE, last).asking(asks),
                stag: to.rkey,
                to: to.addr.wrapping_add(u64::from(offset)),
            };
            tagged(batch, header, payload, len, crc)?;
            0
        }
        SendOp::RdmaRead { remote, len } => {
            let read = ReadRequest {
                sink_stag: sink(number),
                sink_to: 0,
                size: len,
                source_stag: remote.rkey,
                source_to: remote.addr,
            };
            let mut bytes = [0; READ_REQUEST_HDR];
            let msn = at.sequence.next_read();
            read.encode(msn, &mut bytes);
            batch.frame(&bytes, Cursor::new(&[]), 0, crc)?;
            at.reads += 1;
            at.request += 1;
            return Ok(Finishes::Read(number, msn));
        }
        SendOp::Atomic { remote, op } => {
            let atomic = AtomicRequest {
                identifier: sink(number),
                word: remote,
                op,
            };
            let msn = at.sequence.next_read();
            batch.frame(&atomic.encode(msn), Cursor::new(&[]), 0, crc)?;
            at.reads += 1;
            at.request += 1;
            return Ok(Finishes::Read(number, msn));
        }
        SendOp::RdmaWriteImm { imm, .. } if offset == request.len => {
            let data = Immediate {
                imm,
                written: request.len,
            };
            let solicited = request.flags.contains(WrFlags::SOLICITED);
            let bytes = data.encode(at.sequence.next_send(), solicited, asks);
            batch.frame(&bytes, Cursor::new(&[]), 0, crc)?;
            0
        }
        SendOp::RdmaWriteImm { remote, .. } => {
            let header = Tagged {
                control: Control::new(OP_WRITE, last).with_immediate(true),
                stag: remote.rkey,
                to: remote.addr.wrapping_add(u64::from(offset)),
            };
            tagged(batch, header, payload, len, crc)?;
            at.begun = Some((offset + len, 0));
            return Ok(Finishes::Nothing);
        }
    };
    if last {
        at.begun = None;
        at.request += 1;
        if asks {
            at.asked = at.request;
        }
        Ok(Finishes::Request(number))
    } else {
        at.begun = Some((offset + len, msn));
        Ok(Finishes::Nothing)
    }
}

/// A tagged FPDU with `len` bytes of `payload`.
///
/// # Errors
/// The payload cannot be read, or there is no memory for the FPDU.
fn tagged(
    batch: &mut SendBatch,
    header: Tagged,
    payload: Cursor<'_>,
    len: u32,
    crc: bool,
) -> Result<(), FrameError> {
    let mut bytes = [0; TAGGED_HDR];
    // A segment is shorter than the longest that a header can describe.
    let _ = header.encode(len as usize, &mut bytes);
    batch.frame(&bytes, payload, len, crc)
}

/// The steering tag under which the response to a read of ours arrives, or the identifier of an atomic
/// operation: any number does, as long
/// as answers to different reads differ.
pub(crate) fn sink(number: u64) -> u32 {
    number as u32 | 1 << 31
}

/// The next FPDU of an answer, with at most as much payload as `longest` says.
pub(super) fn answer(
    batch: &mut SendBatch,
    at: &mut Position,
    answer: &Answer,
    me: &QpState,
    (longest, crc): (Longest, bool),
    guard: &Guard,
) -> Result<Finishes, CloseReason> {
    match answer {
        Answer::Read(response) => {
            read_response(batch, at, response, me, (longest.tagged, crc), guard)
        }
        Answer::Atomic(response) => {
            let bytes = response.encode(at.sequence.next_atomic_response());
            let built = batch.frame(&bytes, Cursor::new(&[]), 0, crc);
            built.map_err(|_| CloseReason::NoMemory)?;
            at.response_first = false;
            at.answered += 1;
            Ok(Finishes::Response)
        }
    }
}

/// The next FPDU of the response to a read.
fn read_response(
    batch: &mut SendBatch,
    at: &mut Position,
    response: &Response,
    me: &QpState,
    (most, crc): (u32, bool),
    guard: &Guard,
) -> Result<Finishes, CloseReason> {
    let read = &response.request;
    let offset = at.answering.unwrap_or(0);
    let len = segment_len(read.size - offset, most, crc);
    let last = offset + len == read.size;
    let source = Sge {
        addr: response.source(offset, len, me, guard)?,
        len,
        lkey: read.source_stag,
    };
    let header = Tagged {
        control: Control::new(OP_READ_RESPONSE, last),
        stag: read.sink_stag,
        to: read.sink_to.wrapping_add(u64::from(offset)),
    };
    tagged(batch, header, Cursor::new(&[source]), len, crc).map_err(|error| match error {
        FrameError::Unreadable => response.failed(key_table::Fault::Access),
        FrameError::NoMemory => CloseReason::NoMemory,
    })?;
    at.response_first = false;
    if last {
        at.answering = None;
        at.answered += 1;
        Ok(Finishes::Response)
    } else {
        at.answering = Some(offset + len);
        Ok(Finishes::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requests among the first `count` that ask, if the queue has at most `most` of them.
    fn asking(count: u64, most: u64, interval: u64) -> Vec<u64> {
        let mut asked = 0;
        let asks = |number: &u64| {
            let oldest = (number + 1).saturating_sub(most);
            let acks = Counting {
                count: 0,
                interval,
                oldest,
            };
            let asks = acks.asks(*number, asked);
            if asks {
                asked = number + 1;
            }
            asks
        };
        (0..count).filter(asks).collect()
    }

    /// The payloads of the segments of a message.
    fn segments(len: u32, most: u32, crc: bool) -> Vec<u32> {
        let mut left = len;
        let mut all = Vec::new();
        while left > 0 {
            let next = segment_len(left, most, crc);
            all.push(next);
            left -= next;
        }
        all
    }

    #[test]
    fn the_last_segment_is_short_if_there_are_checksums() {
        let kib = 1024;
        assert_eq!(segments(64 * kib, SEGMENT, true), [61_504, 4032]);
        assert_eq!(segments(64 * kib, SEGMENT, false), [32 * kib, 32 * kib]);
        assert_eq!(segments(96 * kib, SEGMENT, true), [63 * kib, 33 * kib]);
        assert_eq!(segments(63 * kib, SEGMENT, true), [63 * kib]);
        let mut mib = vec![63 * kib; 16];
        mib.push(16 * kib);
        assert_eq!(segments(1024 * kib, SEGMENT, true), mib);
    }

    #[test]
    fn segments_have_the_message_between_them() {
        for (most, crc) in [(SEGMENT, true), (SEGMENT, false), (SHORT_SEGMENT, true)] {
            for len in (1..9)
                .chain(most - 9..most + 9)
                .chain(2 * most - 9..2 * most + 9)
            {
                let all = segments(len, most, crc);
                assert_eq!(all.iter().sum::<u32>(), len);
                assert!(all.iter().all(|&n| n > 0 && n <= most), "{all:?}");
                let (_, cut) = all.split_last().unwrap();
                assert!(cut.iter().all(|n| n % 4 == 0), "{all:?}");
            }
        }
    }

    #[test]
    fn requests_ask_while_half_of_the_queue_waits() {
        // Each is answered before the next one.
        assert_eq!(asking(100, 1, 4), []);
        assert_eq!(asking(100, 3, 4), []);
        assert_eq!(asking(20, 4, 4), [4, 9, 14, 19]);
        // No queue is full without one that asks.
        assert_eq!(asking(8, 8, 4), [4]);
        assert_eq!(asking(3, 1, 0), [0, 1, 2]);
    }
}
