//! What the segment of an FPDU does, once it has arrived.

use super::close_reason::CloseReason;
use super::conn::TcpConn;
use super::rx_direct::Payload;
use super::rx_place::{deliver, write};
use super::stash::{Purpose, is_supplied};
use crate::device::soft::iwarp::acknowledge::{self, Acknowledge, Note};
use crate::device::soft::iwarp::fpdu::Header;
use crate::device::soft::iwarp::rdmap::Segment;
use crate::device::soft::iwarp::terminate::Terminate;
use crate::device::soft::iwarp::wire::{OP_WRITE, WireError};
use crate::device::soft::qp::deliver::Placement;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::upcalls::Upcalls;
use crate::handle::Guard;

/// What became of an FPDU.
pub(super) enum Taken {
    /// It is used.
    Yes,
    /// It is used, and was the last of a message or of an answer.
    Whole,
    /// It has to wait; it is not used.
    Pause,
}

impl TcpConn {
    /// What a segment is, and what it acknowledges of our requests.
    #[inline]
    pub(super) fn classify(
        &mut self,
        header: &Header,
        len: usize,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> Result<Segment, CloseReason> {
        let violation = |error| CloseReason::Protocol(error, None);
        if !self.acks.agreed {
            return Segment::classify(header, len).map_err(violation);
        }
        let segment = match self.extensions {
            true => Segment::classify_all(header, len),
            false => Segment::classify_extended(header, len),
        };
        let segment = match segment {
            Ok(segment) => segment,
            Err(error) => return Err(self.misfit(header, error, me, up)),
        };
        if let Some(count) = acknowledge::count_in(header) {
            self.acks.acknowledge(count, me, up)?;
        }
        self.acks.asked |= header.control().asks();
        Ok(segment)
    }

    /// Why the connection ends by what is no segment. An RDMA write whose addresses wrap around is one, which
    /// is refused as one outside of its region is.
    #[cold]
    #[inline(never)]
    fn misfit(
        &mut self,
        header: &Header,
        error: WireError,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> CloseReason {
        let violation = CloseReason::Protocol(error, None);
        if error != WireError::DDP_TAGGED_TO_WRAP || header.control().opcode() != OP_WRITE {
            return violation;
        }
        let counted = match acknowledge::count_in(header) {
            Some(count) => self.acks.acknowledge(count, me, up),
            None => Ok(()),
        };
        match counted.and_then(|()| self.request_arrived(false, Err(violation))) {
            Ok(()) => CloseReason::Protocol(error, None),
            Err(reason) => reason,
        }
    }

    /// Uses a segment, which begins an FPDU.
    pub(super) fn take(
        &mut self,
        segment: &Segment,
        fpdu: &[u8],
        payload: Payload<'_>,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<Taken, CloseReason> {
        let waits = self.waits_in_order(segment);
        let bytes = payload.bytes();
        if self.rx.is_full() && (waits || matches!(segment, Segment::Send { .. })) {
            return Ok(Taken::Pause);
        }
        if self.acks.peer_ended && segment.is_request() {
            return Err(CloseReason::Protocol(WireError::RDMAP_STREAM, None));
        }
        let sequence = &mut self.rx.sequence;
        sequence
            .accept(segment, payload.len())
            .map_err(|error| CloseReason::Protocol(error, None))?;
        match *segment {
            Segment::Write {
                stag,
                to,
                last,
                immediate,
            } => {
                let used = if waits {
                    self.stash(Purpose::Write { stag, to }, fpdu, bytes)
                } else {
                    write(stag, to, bytes, me, guard)
                };
                self.request_arrived(last && !immediate, used)?;
            }
            Segment::ReadResponse { stag, to, last } => {
                self.read_response(stag, to, last, payload, me, guard, up)?;
                if last {
                    return Ok(Taken::Whole);
                }
            }
            Segment::Send {
                mo,
                last,
                solicited,
                invalidate,
                ..
            } => {
                let part = Placement {
                    offset: mo,
                    last,
                    solicited,
                    invalidate,
                };
                if me.receiving && self.rx.stash.is_empty() && is_supplied(me, up)? {
                    if last {
                        self.answer_reads(me, guard, up)?;
                    }
                    let delivered = deliver(part, payload, me, guard, up);
                    self.request_arrived(last, delivered)?;
                    if last {
                        return Ok(Taken::Whole);
                    }
                } else {
                    let stashed = self.stash(Purpose::Send(part), fpdu, bytes);
                    self.request_arrived(last, stashed)?;
                }
            }
            Segment::ReadRequest { msn } => {
                self.read_request(msn, waits, fpdu, bytes, me, guard)?;
            }
            Segment::Immediate { solicited, .. } => {
                return self.immediate(solicited, fpdu, bytes, me, guard, up);
            }
            Segment::AtomicRequest { .. } => {
                self.atomic_request(waits, fpdu, bytes, me, guard, up)?;
            }
            Segment::AtomicResponse { .. } => {
                self.atomic_response(bytes, me, guard, up)?;
                return Ok(Taken::Whole);
            }
            Segment::Acknowledge { .. } => {
                let note = Acknowledge::parse_note(bytes)
                    .map_err(|error| CloseReason::Protocol(error, None))?;
                match note {
                    None => {}
                    Some(Note::Ended) => self.peer_has_ended(me),
                    Some(Note::Refused(number)) => self.acks.refuse(number)?,
                }
            }
            Segment::Terminate { .. } => {
                let terminate = Terminate::parse(bytes).map_err(|_| CloseReason::Lost)?;
                if terminate.error != WireError::RDMAP_ABORTED || !self.is_established() {
                    return Err(CloseReason::Terminated(terminate));
                }
                // The peer's consumer has ended the connection: nothing waits any longer.
                self.rx.abort();
            }
        }
        Ok(Taken::Yes)
    }

    /// A segment of a request of the peer has arrived, the last one if `whole`, with that result.
    pub(super) fn request_arrived(
        &mut self,
        whole: bool,
        result: Result<(), CloseReason>,
    ) -> Result<(), CloseReason> {
        if result.is_err() {
            self.count_finished();
            self.acks.failed = Some(self.acks.arrived);
        } else if std::mem::take(&mut self.awaits_ready) {
            // A ready-to-receive message is not counted.
        } else {
            self.acks.segment_arrived(whole);
        }
        result
    }
}
