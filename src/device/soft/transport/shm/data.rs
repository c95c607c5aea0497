//! The data path: requests into the rings or straight into the peer's memory, and messages out of
//! the rings.

use std::hint::black_box;

use super::bulk::OFFER_MIN;
use super::close_reason::CloseReason;
use super::cma::Direction;
use super::conn::{Budget, SendWait, ShmConn, Tx};
use super::doorbell::WakeOn;
use super::offer::Stage;
use super::ring::{CellFlags, Kind, MAX_INLINE, Piece, Violation};
use super::segment::{EndPhase, SharedSegment};
use crate::device::attempt::Phase;
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::qp::deliver::{self, Placement};
use crate::device::soft::qp::link::{Outcome, execute_oldest};
use crate::device::soft::qp::state::{QpState, Supply};
use crate::device::soft::qp::work_queue::Transfer;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{SendOp, WcStatus, WrFlags};
use crate::guarded::CopyFault;
use crate::handle::Guard;

/// Why a message cannot go into the ring.
enum SendError {
    /// Its memory cannot be read.
    Memory,
    /// The connection ends.
    Connection(CloseReason),
}

impl From<CopyFault> for SendError {
    fn from(fault: CopyFault) -> SendError {
        match fault {
            CopyFault::Source => SendError::Memory,
            // The ring cannot be written: the system has no memory for its pages.
            CopyFault::Target => SendError::Connection(CloseReason::Lost),
        }
    }
}

impl From<Violation> for SendError {
    fn from(violation: Violation) -> SendError {
        SendError::Connection(violation.into())
    }
}

impl Tx {
    /// What is in the ring of the oldest request.
    fn progress(&self) -> (u32, bool, Option<u64>) {
        (self.sent, self.announced, self.offer)
    }

    /// Whether the message that is in the ring as a whole, if there is one, is in its receive.
    pub fn is_delivered(&mut self, segment: &SharedSegment) -> Result<bool, Violation> {
        match self.filled {
            Some(number) => self.producer.has_consumed(segment.tx_ring(), number),
            None => Ok(true),
        }
    }

    /// Whether the oldest request waits no longer.
    pub fn has_room(&mut self, segment: &SharedSegment) -> Result<bool, Violation> {
        let ring = segment.tx_ring();
        match self.need {
            None => Ok(false),
            Some(SendWait::Cell) => self.producer.has_cell(ring),
            Some(SendWait::Bytes(n)) => Ok(self.producer.chunk(ring, n)? > 0),
            Some(SendWait::Opening) => Ok(segment.ours().phase() != EndPhase::Fresh),
            Some(SendWait::Taken) => match self.offer {
                // A message that the peer has withdrawn waits for the end of the connection or of the peer itself.
                Some(number) => {
                    let stage = segment.tx_offer().stage(number)?;
                    Ok(stage.is_last() && stage != Stage::Withdrawn)
                }
                None => Ok(true),
            },
            Some(SendWait::Delivery) => self.is_delivered(segment),
            Some(SendWait::Writes) => match self.writes.awaited_cell() {
                Some(number) => self.producer.has_consumed(ring, number + 1),
                None => Ok(true),
            },
            Some(SendWait::Response) => match self.atomic {
                Some(number) => Ok(segment.tx_response().get(number)?.is_some()),
                None => Ok(true),
            },
            Some(SendWait::Consent) => Ok(segment.theirs().phase() != EndPhase::Fresh),
            Some(SendWait::Move) => Ok(!segment.peer().has_moving_pages()),
        }
    }
}

impl ShmConn {
    /// Executes a transfer of `me`, from where it had to wait if it has begun. The keys of
    /// the local segments were checked in the same read-side section.
    #[inline(always)]
    pub(crate) fn execute(
        &mut self,
        me: &QpState,
        transfer: &Transfer<'_>,
    ) -> Result<Outcome, CloseReason> {
        let Transfer { op, sges, len, .. } = *transfer;
        match op {
            SendOp::Send if self.send_short(transfer) => Ok(Outcome::Done),
            SendOp::Send => self.send(black_box(*transfer), None),
            SendOp::SendInvalidate { rkey } => self.send(black_box(*transfer), Some(rkey)),
            SendOp::RdmaWrite(to) => self.write(me, to, len, sges),
            op if op.fetches() && me.ord == 0 => Ok(Outcome::Failed(WcStatus::LocalQpOperation)),
            SendOp::RdmaRead { remote, .. } => self.reach(Direction::Read, remote, len, sges),
            SendOp::RdmaWriteImm { remote, imm } => self.write_immediate(transfer, remote, imm),
            SendOp::Atomic { remote, op } => self.atomic(transfer, remote, op),
        }
    }

    /// Executes a send that takes no more than a cell and a chunk, if they are known to be free.
    /// False if that is not so, or its memory cannot be read; nothing has happened then.
    #[inline(always)]
    fn send_short(&mut self, transfer: &Transfer<'_>) -> bool {
        let (tx, n) = (&mut self.tx, transfer.len as usize);
        if tx.sent > 0 || !tx.producer.has_cell_cached() {
            return false;
        }
        let kind = if n <= MAX_INLINE {
            Kind::Inline
        } else if n < OFFER_MIN as usize && tx.producer.has_chunk_cached(n) {
            Kind::Bulk
        } else {
            return false;
        };
        let mut marks = CellFlags::LAST;
        let solicited = transfer.flags.contains(WrFlags::SOLICITED);
        marks.set(CellFlags::SOLICITED, solicited);
        let ring = self.segment.tx_ring();
        // SAFETY: from registered memory, for as long as the section lasts, into a place that
        // holds as much.
        let copied =
            unsafe { copy::gather_for_peer(transfer.sges, tx.producer.payload(ring, kind), n) };
        // The long way returns the error.
        if copied.is_err() {
            return false;
        }
        tx.producer.publish(ring, kind, marks, n);
        tx.need = None;
        self.notify_peer(WakeOn::CELLS);
        true
    }

    #[inline(never)]
    fn send(
        &mut self,
        transfer: Transfer<'_>,
        invalidate: Option<u32>,
    ) -> Result<Outcome, CloseReason> {
        if let Some(number) = self.tx.offer {
            let outcome = self.offered(number, &transfer)?;
            if outcome != Outcome::Done {
                return Ok(outcome);
            }
        } else if self.tx.filled.is_some() {
            if !self.tx.is_delivered(&self.segment)? {
                return Ok(Outcome::Wait);
            }
        } else {
            let before = self.tx.progress();
            let done = match self.fill(&transfer, invalidate) {
                Err(SendError::Memory) => return Ok(Outcome::Failed(WcStatus::LocalProtection)),
                Err(SendError::Connection(reason)) => return Err(reason),
                Ok(done) => done,
            };
            if done || before != self.tx.progress() {
                self.notify_peer(WakeOn::CELLS);
            }
            if !done {
                return Ok(Outcome::Wait);
            }
            // As one that is offered, a long message is sent when it is in its receive.
            if transfer.len >= OFFER_MIN {
                self.tx.filled = Some(self.tx.producer.next_cell());
                self.tx.need = Some(SendWait::Delivery);
                return Ok(Outcome::Wait);
            }
        }
        self.tx.choice.sent(transfer.len);
        self.tx.filled = None;
        self.tx.sent = 0;
        self.tx.announced = false;
        self.tx.need = None;
        Ok(Outcome::Done)
    }

    /// Fills cells; true if that was the message. An offer is not.
    #[inline]
    fn fill(
        &mut self,
        transfer: &Transfer<'_>,
        invalidate: Option<u32>,
    ) -> Result<bool, SendError> {
        let mut marks = CellFlags::empty();
        marks.set(
            CellFlags::SOLICITED,
            transfer.flags.contains(WrFlags::SOLICITED),
        );
        if let Some(rkey) = invalidate
            && !self.tx.announced
        {
            if !self.tx.producer.has_cell(self.segment.tx_ring())? {
                self.tx.need = Some(SendWait::Cell);
                return Ok(false);
            }
            let fill = |to: *mut u8| {
                // SAFETY: a cell holds more, at any alignment.
                unsafe { to.cast::<u32>().write_unaligned(rkey) };
                Ok::<_, SendError>(())
            };
            let (tx, ring) = (&mut self.tx, self.segment.tx_ring());
            tx.producer
                .push(ring, Kind::Invalidate, CellFlags::empty(), 4, fill)?;
            tx.announced = true;
        }
        loop {
            let (tx, ring) = (&mut self.tx, self.segment.tx_ring());
            if !tx.producer.has_cell(ring)? {
                tx.need = Some(SendWait::Cell);
                return Ok(false);
            }
            if self.may_offer(transfer) {
                match self.ours().phase() {
                    EndPhase::Fresh => {
                        self.tx.need = Some(SendWait::Opening);
                        return Ok(false);
                    }
                    EndPhase::Open => {
                        self.offer(transfer)?;
                        return Ok(false);
                    }
                    // The peer may not access our memory any longer.
                    _ => {}
                }
            }
            let (tx, ring) = (&mut self.tx, self.segment.tx_ring());
            let left = (transfer.len - tx.sent) as usize;
            let (kind, n) = if left <= MAX_INLINE {
                (Kind::Inline, left)
            } else {
                (Kind::Bulk, tx.producer.chunk(ring, left)?)
            };
            if n == 0 && left > 0 {
                tx.need = Some(SendWait::Bytes(left));
                return Ok(false);
            }
            let last = n == left;
            marks.set(CellFlags::LAST, last);
            let from = Cursor::at(transfer.sges, u64::from(tx.sent));
            tx.producer.push(ring, kind, marks, n, |to| {
                // SAFETY: from registered memory, for as long as the section lasts, into room
                // that was asked for.
                unsafe { copy::gather(from, to, n) }.map(|_| ())
            })?;
            if last {
                return Ok(true);
            }
            tx.sent += n as u32;
            // The peer takes this while we copy the next.
            self.notify_peer(WakeOn::CELLS);
        }
    }

    /// Executes what is queued until a request has to wait.
    pub(crate) fn pump(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        self.writes.policy.flushed();
        loop {
            if !self.complete_writes(me, up)? {
                return Ok(());
            }
            if self.put_writes_into_ring(me, guard, up)? {
                continue;
            }
            for _ in 0..self.write_several(me, guard) {
                if let Some(request) = me.sq.pop() {
                    me.complete(&request, WcStatus::Success, up);
                }
            }
            let executed = execute_oldest(me, guard, |me, transfer| self.execute(me, transfer))?;
            let Some((request, outcome)) = executed else {
                // A request that waited may have been made together with others, or was not queued.
                self.tx.need = None;
                return Ok(());
            };
            match outcome {
                Outcome::Wait => {
                    if self.tx.need == Some(SendWait::Move) {
                        self.check_move_later();
                    }
                    return Ok(());
                }
                Outcome::Done => {
                    me.sq.pop();
                    me.complete(&request, WcStatus::Success, up);
                }
                Outcome::Failed(status) => return Err(CloseReason::Request(status)),
            }
        }
    }

    /// Delivers messages, or one, that are whole and have receives of one segment, if there is
    /// nothing else to do: nearly always. False if something is left that takes
    /// [`ShmConn::run`].
    #[inline]
    pub(super) fn take_whole<const ALL: bool>(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> bool {
        if !self.is_plain(me) {
            return false;
        }
        loop {
            let ring = self.segment.rx_ring();
            let piece = match self.rx.consumer.peek(ring) {
                Ok(Some(piece)) if piece.is_whole_message() => piece,
                Ok(None) => break,
                _ => return false,
            };
            if ALL && !self.is_alone() {
                return false;
            }
            let rx = &mut self.rx;
            let solicited = piece.flags.contains(CellFlags::SOLICITED);
            let taken = rx.consumer.payload(ring, &piece, |from| {
                // SAFETY: as in `drain`.
                unsafe { deliver::deliver_whole(from, piece.len, solicited, me, guard, up) }
            });
            if !taken {
                return false;
            }
            rx.consumer.advance(&piece);
            if rx.consumer.publish(ring) || piece.len >= OFFER_MIN as usize {
                self.notify_peer(WakeOn::ROOM);
            }
            if !ALL {
                break;
            }
        }
        self.segment.set_next(&self.rx.consumer);
        self.tx.producer.answered();
        true
    }

    /// Whether there is nothing to do but to deliver whole messages.
    #[inline]
    fn is_plain(&self, me: &QpState) -> bool {
        me.attempt.phase == Phase::Connected
            && me.sq.is_empty()
            && self.rx.offset == 0
            && self.rx.invalidate.is_none()
            && self.is_awake()
    }

    /// Consumes the next cell.
    #[inline]
    pub(super) fn consume(&mut self, piece: &Piece) {
        self.consume_awaited(piece, false);
    }

    /// [`ShmConn::consume`]; whether the sender waits for just that.
    #[inline]
    fn consume_awaited(&mut self, piece: &Piece, is_awaited: bool) {
        self.rx.consumer.advance(piece);
        self.tx.producer.answered();
        if self.rx.consumer.publish(self.segment.rx_ring()) || is_awaited {
            self.notify_peer(WakeOn::ROOM);
        }
    }

    /// Delivers the messages that have arrived, as far as there are receives, or one of them.
    pub(crate) fn drain(
        &mut self,
        take: Budget,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        self.rx.starved = false;
        while me.is_up() {
            let ring = self.segment.rx_ring();
            let Some(piece) = self.rx.consumer.peek(ring)? else {
                break;
            };
            if take == Budget::All && !self.is_alone() {
                break;
            }
            let rx = &mut self.rx;
            if piece.kind == Kind::Invalidate {
                rx.check_between_messages()?;
                // SAFETY: the piece has four bytes, at any alignment.
                let read = |from: *const u8| unsafe { from.cast::<u32>().read_unaligned() };
                rx.invalidate = Some(rx.consumer.payload(ring, &piece, read));
                self.consume(&piece);
                continue;
            }
            if piece.kind.is_request() {
                self.execute_request(piece, me, guard)?;
                // A peer may send any number of those, so that others have their turn.
                break;
            }
            match me.supply(up) {
                Supply::Ready => {}
                Supply::Empty => {
                    rx.starved = true;
                    break;
                }
                Supply::Excess => return Err(CloseReason::Fault),
            }
            if piece.kind == Kind::Immediate {
                rx.check_between_messages()?;
                self.take_immediate(&piece, me, up)?;
                if take == Budget::One {
                    break;
                }
                continue;
            }
            if piece.kind == Kind::Offer {
                if self.rx.offset != 0 {
                    return Err(CloseReason::Fault);
                }
                if !self.take_offer(&piece, me, guard, up)? || take == Budget::One {
                    break;
                }
                continue;
            }
            let part = Placement {
                offset: rx.offset,
                last: piece.flags.contains(CellFlags::LAST),
                solicited: piece.flags.contains(CellFlags::SOLICITED),
                invalidate: rx.invalidate,
            };
            let placed = rx.consumer.payload(ring, &piece, |from| {
                // SAFETY: as long as the piece, and the place registered for as long as the section
                // lasts. The peer may change the bytes meanwhile, and spoils its own message then.
                let place = |to: Cursor<'_>| unsafe { copy::scatter(from, piece.len, to) };
                deliver::deliver(part, piece.len, place, me, guard, up)
            });
            if placed.is_err() {
                return Err(CloseReason::Fault);
            }
            let is_long = part.offset as usize + piece.len >= OFFER_MIN as usize;
            if part.last {
                rx.offset = 0;
                rx.invalidate = None;
            } else {
                // Not beyond the receive, which is not longer than a message can be.
                rx.offset = rx
                    .offset
                    .checked_add(piece.len as u32)
                    .ok_or(CloseReason::Fault)?;
            }
            self.consume_awaited(&piece, part.last && is_long);
            if part.last && take == Budget::One {
                break;
            }
        }
        Ok(())
    }
}
