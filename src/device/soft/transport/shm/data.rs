//! Requests into the rings or straight into the peer's memory, and messages out of the rings.

use std::hint::black_box;

use super::close_reason::Down;
use super::cma::{Failure, Way};
use super::conn::{Need, Pipe, Take, Tx};
use super::doorbell::Wants;
use super::ring::{BODY, Kind, Marks, Violation};
use super::segment::{State, Wire};
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::mem::key_table;
use crate::device::soft::qp::deliver::{self, Part};
use crate::device::soft::qp::state::{Phase, Side, Supply, local_access};
use crate::device::soft::qp::work_queue::{Op, Transfer};
use crate::device::soft::transport::loopback::Outcome;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{Access, Remote, SendOp, Sge, WcStatus, WrFlags};
use crate::handle::Guard;

/// Bytes of a visit to the peer's memory: who deregisters memory waits for the end of one.
const VISIT: u64 = 1 << 20;

impl Tx {
    /// Whether what the oldest request waits for has come.
    pub fn has_room(&mut self, wire: &Wire) -> Result<bool, Violation> {
        let ring = wire.out();
        match self.need {
            None => Ok(false),
            Some(Need::Cell) => self.producer.has_cell(ring),
            Some(Need::Bytes(n)) => Ok(self.producer.chunk(ring, n)? > 0),
            Some(Need::Consent) => Ok(wire.theirs().state() != State::Fresh),
        }
    }
}

impl Pipe {
    /// Executes a transfer of `me`, which goes on where it was when it had to wait. The keys of
    /// the local segments were checked in the same read-side section.
    #[inline(always)]
    pub(crate) fn execute(&mut self, me: &Side, transfer: &Transfer<'_>) -> Result<Outcome, Down> {
        let Transfer { op, sges, len, .. } = *transfer;
        match op {
            SendOp::Send if self.send_short(transfer) => Ok(Outcome::Done),
            SendOp::Send => self.send(black_box(*transfer), None),
            SendOp::SendInvalidate { rkey } => self.send(black_box(*transfer), Some(rkey)),
            SendOp::RdmaWrite(to) => self.reach(Way::Write, to, len, sges),
            SendOp::RdmaRead { .. } if me.ord == 0 => {
                Ok(Outcome::Failed(WcStatus::LocalQpOperation))
            }
            SendOp::RdmaRead { remote, .. } => self.reach(Way::Read, remote, len, sges),
        }
    }

    /// Executes a send that takes no more than a cell and a chunk, if they are known to be free.
    /// False if that is not so.
    #[inline(always)]
    fn send_short(&mut self, transfer: &Transfer<'_>) -> bool {
        let (tx, n) = (&mut self.tx, transfer.len as usize);
        if tx.sent > 0 || !tx.producer.knows_cell() {
            return false;
        }
        let kind = if n <= BODY {
            Kind::Inline
        } else if tx.producer.knows_chunk(n) {
            Kind::Bulk
        } else {
            return false;
        };
        let mut marks = Marks::LAST;
        let solicited = transfer.flags.contains(WrFlags::SOLICITED);
        marks.set(Marks::SOLICITED, solicited);
        let ring = self.wire.out();
        // SAFETY: from registered memory, for as long as the section lasts, into a place that
        // holds as much.
        unsafe { copy::gather_all(transfer.sges, tx.producer.place(ring, kind), n) };
        tx.producer.publish(ring, kind, marks, n);
        tx.need = None;
        self.tell(Wants::CELLS);
        true
    }

    #[inline(never)]
    fn send(&mut self, transfer: Transfer<'_>, invalidate: Option<u32>) -> Result<Outcome, Down> {
        let begun = (self.tx.sent, self.tx.announced);
        let done = self.fill(&transfer, invalidate)?;
        if done || begun != (self.tx.sent, self.tx.announced) {
            self.tell(Wants::CELLS);
        }
        if !done {
            return Ok(Outcome::Wait);
        }
        self.tx.sent = 0;
        self.tx.announced = false;
        self.tx.need = None;
        Ok(Outcome::Done)
    }

    /// Fills cells; true if that was the message.
    #[inline]
    fn fill(&mut self, transfer: &Transfer<'_>, invalidate: Option<u32>) -> Result<bool, Down> {
        let mut marks = Marks::empty();
        marks.set(
            Marks::SOLICITED,
            transfer.flags.contains(WrFlags::SOLICITED),
        );
        if let Some(rkey) = invalidate
            && !self.tx.announced
        {
            if !self.tx.producer.has_cell(self.wire.out())? {
                self.tx.need = Some(Need::Cell);
                return Ok(false);
            }
            let fill = |to: *mut u8| {
                // SAFETY: a cell holds more, at any alignment.
                unsafe { to.cast::<u32>().write_unaligned(rkey) }
            };
            let (tx, ring) = (&mut self.tx, self.wire.out());
            tx.producer
                .push(ring, Kind::Invalidate, Marks::empty(), 4, fill);
            tx.announced = true;
        }
        loop {
            let (tx, ring) = (&mut self.tx, self.wire.out());
            if !tx.producer.has_cell(ring)? {
                tx.need = Some(Need::Cell);
                return Ok(false);
            }
            let left = (transfer.len - tx.sent) as usize;
            let (kind, n) = if left <= BODY {
                (Kind::Inline, left)
            } else {
                (Kind::Bulk, tx.producer.chunk(ring, left)?)
            };
            if n == 0 && left > 0 {
                tx.need = Some(Need::Bytes(left));
                return Ok(false);
            }
            let last = n == left;
            marks.set(Marks::LAST, last);
            let from = Cursor::at(transfer.sges, u64::from(tx.sent));
            tx.producer.push(ring, kind, marks, n, |to| {
                // SAFETY: from registered memory, for as long as the section lasts, into room
                // that was asked for.
                unsafe { copy::gather(from, to, n) };
            });
            if last {
                return Ok(true);
            }
            tx.sent += n as u32;
            // The peer takes this while we copy the next.
            self.tell(Wants::CELLS);
        }
    }

    /// Copies between our segments and the memory of the peer.
    #[inline(never)]
    fn reach(&mut self, way: Way, remote: Remote, len: u32, sges: &[Sge]) -> Result<Outcome, Down> {
        let need = match way {
            Way::Write => Access::REMOTE_WRITE,
            Way::Read => Access::REMOTE_READ,
        };
        self.tx.need = None;
        let wire = &*self.wire;
        let (theirs, peer) = (wire.theirs(), wire.peer());
        let (len, pd) = (u64::from(len), theirs.pd());
        let mut done = 0;
        while done < len {
            let n = (len - done).min(VISIT);
            let Some(addr) = remote.addr.checked_add(done) else {
                return Ok(Outcome::Failed(WcStatus::RemoteAccess));
            };
            let visit = wire.ours().visits.enter(&mut self.tx.visits);
            match theirs.state() {
                State::Open => {}
                State::Fresh => {
                    self.tx.need = Some(Need::Consent);
                    return Ok(Outcome::Wait);
                }
                // The end is on its way to us.
                State::Closed | State::Broken | State::Aborted => return Ok(Outcome::Wait),
            }
            let table = peer.table();
            let Ok(run) = table.check(&visit, remote.rkey, pd, addr, n, need) else {
                return Ok(Outcome::Failed(WcStatus::RemoteAccess));
            };
            // SAFETY: the local segments are registered, for as long as the section lasts, and
            // hold `len` bytes.
            let copied = unsafe { peer.copy(way, Cursor::at(sges, done), addr, n, run) };
            match copied {
                Ok(()) => done += n,
                Err(Failure::Memory) => return Ok(Outcome::Failed(WcStatus::RemoteAccess)),
                Err(Failure::Gone) => return Err(Down::Lost),
            }
        }
        Ok(Outcome::Done)
    }

    /// Executes what is queued, as far as it goes.
    pub(crate) fn pump(
        &mut self,
        me: &mut Side,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), Down> {
        while me.is_up() && me.close_at != Some(me.sq.head()) {
            let Some((request, sges)) = me.sq.front() else {
                return Ok(());
            };
            let request = *request;
            let outcome = match &request.op {
                Op::Bind { .. } => match me.bind(guard) {
                    WcStatus::Success => Outcome::Done,
                    status => Outcome::Failed(status),
                },
                Op::Transfer(op) => {
                    if key_table::check_all(sges, me.id.pd, local_access(op), guard).is_err() {
                        Outcome::Failed(WcStatus::LocalProtection)
                    } else {
                        self.execute(me, &request.transfer(*op, sges))?
                    }
                }
            };
            match outcome {
                Outcome::Wait => return Ok(()),
                Outcome::Done => {
                    me.sq.pop();
                    me.complete(&request, WcStatus::Success, up);
                }
                Outcome::Failed(status) => return Err(Down::Request(status)),
            }
        }
        Ok(())
    }

    /// Takes messages, or one of them, that came whole for receives of one segment, if there is nothing else to
    /// do: nearly always. False if there is something left that takes [`Pipe::drain`] and the rest.
    #[inline]
    pub(super) fn take_whole<const ALL: bool>(
        &mut self,
        me: &mut Side,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> bool {
        if !self.is_plain(me) {
            return false;
        }
        loop {
            let (rx, ring) = (&mut self.rx, self.wire.incoming());
            let piece = match rx.consumer.peek(ring) {
                Ok(Some(piece)) if piece.is_whole() => piece,
                Ok(None) => break,
                _ => return false,
            };
            let solicited = piece.marks.contains(Marks::SOLICITED);
            let taken = rx.consumer.payload(ring, &piece, |from| {
                // SAFETY: as in `drain`.
                unsafe { deliver::deliver_whole(from, piece.len, solicited, me, guard, up) }
            });
            if !taken {
                return false;
            }
            rx.consumer.advance(&piece);
            if rx.consumer.publish(ring) {
                self.tell(Wants::ROOM);
            }
            if !ALL {
                break;
            }
        }
        self.wire.expect(&self.rx.consumer);
        true
    }

    /// Whether there is nothing but messages to be looked after.
    #[inline]
    fn is_plain(&self, me: &Side) -> bool {
        me.phase == Phase::Connected
            && me.sq.is_empty()
            && self.rx.offset == 0
            && self.rx.invalidate.is_none()
            && self.is_awake()
    }

    /// Takes what has come, as far as there are receives, or one message of it.
    pub(crate) fn drain(
        &mut self,
        take: Take,
        me: &mut Side,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), Down> {
        self.rx.starved = false;
        while me.is_up() {
            let (rx, ring) = (&mut self.rx, self.wire.incoming());
            let Some(piece) = rx.consumer.peek(ring)? else {
                break;
            };
            if piece.kind == Kind::Invalidate {
                if rx.invalidate.is_some() || rx.offset != 0 {
                    return Err(Down::Fault);
                }
                // SAFETY: the piece has four bytes, at any alignment.
                let read = |from: *const u8| unsafe { from.cast::<u32>().read_unaligned() };
                rx.invalidate = Some(rx.consumer.payload(ring, &piece, read));
                rx.consumer.advance(&piece);
                if rx.consumer.publish(ring) {
                    self.tell(Wants::ROOM);
                }
                continue;
            }
            match me.supply(up) {
                Supply::Ready => {}
                Supply::Empty => {
                    rx.starved = true;
                    break;
                }
                Supply::Excess => return Err(Down::Fault),
            }
            let part = Part {
                offset: rx.offset,
                last: piece.marks.contains(Marks::LAST),
                solicited: piece.marks.contains(Marks::SOLICITED),
                invalidate: rx.invalidate,
            };
            let placed = rx.consumer.payload(ring, &piece, |from| {
                // SAFETY: as long as the piece. The peer may change the bytes meanwhile, and
                // spoils its own message then.
                unsafe { deliver::deliver(part, from, piece.len, me, guard, up) }
            });
            if placed.is_err() {
                return Err(Down::Fault);
            }
            rx.consumer.advance(&piece);
            if part.last {
                rx.offset = 0;
                rx.invalidate = None;
            } else {
                // Not beyond the receive, which is not longer than a message can be.
                rx.offset = rx.offset.checked_add(piece.len as u32).ok_or(Down::Fault)?;
            }
            if rx.consumer.publish(ring) {
                self.tell(Wants::ROOM);
            }
            if part.last && take == Take::One {
                break;
            }
        }
        Ok(())
    }
}
