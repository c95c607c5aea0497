//! The end that takes an offered message.

use std::ops::Range;

use super::source::Source;
use super::{TAIL, Taking};
use crate::delay;
use crate::device::soft::mem::copy::{self, Cursor};
use crate::device::soft::mem::key_table;
use crate::device::soft::qp::deliver;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Receive;
use crate::device::soft::transport::shm::close_reason::CloseReason;
use crate::device::soft::transport::shm::cma::{CopyError, Direction};
use crate::device::soft::transport::shm::conn::ShmConn;
use crate::device::soft::transport::shm::copy_waits;
use crate::device::soft::transport::shm::doorbell::WakeOn;
use crate::device::soft::transport::shm::offer::{Rest, SecondHalf, Stage};
use crate::device::soft::transport::shm::one_sided::{CopiedBy, Copy, CopyRefusal};
use crate::device::soft::transport::shm::remote_keys::RemoteAddress;
use crate::device::soft::transport::shm::ring::{CellFlags, Piece, Violation};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{Access, Remote, Sge, WcStatus};
use crate::handle::{Guard, pin};

/// The second half begins at a multiple of so many bytes.
const HALF_ALIGN: u64 = 4096;
/// How often the receiver checks at once for the sender's half of a message: so many times, and once
/// more for each so many bytes.
const CHECKS: u64 = 64;
const BYTES_A_CHECK: u64 = 512;

/// Why an offered message is not in its receive.
enum Untaken {
    /// The sender copies its half still, or its memory moves.
    Later,
    /// The sender has ended the connection: nothing of the message may be used.
    Void,
    /// The memory of the sender cannot be read.
    Unreadable,
    /// The receive is too short, or cannot be written, and fails with this status.
    Unfit(WcStatus),
    /// The key to invalidate is not one.
    BadKey,
    /// The connection ends.
    Down(CloseReason),
}

impl From<Violation> for Untaken {
    fn from(violation: Violation) -> Untaken {
        Untaken::Down(violation.into())
    }
}

impl From<CopyRefusal> for Untaken {
    fn from(refusal: CopyRefusal) -> Untaken {
        match refusal {
            CopyRefusal::Phase(_) | CopyRefusal::Void => Untaken::Void,
            CopyRefusal::Key | CopyRefusal::Failed(CopyError::Remote) => Untaken::Unreadable,
            CopyRefusal::Failed(CopyError::Moving) => Untaken::Later,
            CopyRefusal::Failed(CopyError::Local) => Untaken::Unfit(WcStatus::LocalProtection),
            CopyRefusal::Failed(CopyError::PeerExited) => Untaken::Down(CloseReason::Lost),
        }
    }
}

impl ShmConn {
    /// Whether there is something to do for the offer in the next cell.
    pub(in super::super) fn can_take(&self) -> bool {
        let stage = || self.segment.rx_offer().stage(self.rx.consumer.next_cell());
        match self.rx.taking {
            Taking::NotBegun => true,
            Taking::Begun { copied, middle } if copied < middle => {
                !self.segment.peer().has_moving_pages()
            }
            Taking::Begun { .. } => stage() != Ok(Stage::Helping),
            Taking::Void => false,
        }
    }

    /// Takes the message that is offered in the next cell, for the receive at the head of the queue.
    /// False if the message has to wait, or will never be there.
    #[inline(never)]
    pub(in super::super) fn take_offer(
        &mut self,
        piece: &Piece,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<bool, CloseReason> {
        if !self.can_take() {
            return Ok(false);
        }
        let Some((receive, sges)) = me.rq.front() else {
            return Ok(false);
        };
        let receive = *receive;
        // SAFETY: the payload is as long as the piece.
        let read = |from: *const u8| unsafe { Source::read(from, piece.len) };
        let consumer = &self.rx.consumer;
        let source = consumer.payload(self.segment.rx_ring(), piece, read);
        let source = source.ok_or(CloseReason::Fault)?;
        let number = consumer.next_cell();
        let mut placed = self.place(number, &source, &receive, sges, me, guard);
        if let (Ok(_), Some(rkey)) = (&placed, self.rx.invalidate)
            && key_table::invalidate(rkey, me.id.scope(), guard).is_err()
        {
            placed = Err(Untaken::BadKey);
        }
        let offer = self.segment.rx_offer();
        let (from, last) = match placed {
            Ok(from) => (from, Stage::Taken),
            Err(Untaken::Later) => return Ok(false),
            Err(Untaken::Down(reason)) => return Err(reason),
            Err(Untaken::Void) => (Stage::Withdrawn, Stage::Withdrawn),
            Err(Untaken::Unreadable) => (self.reclaim(number)?, Stage::Unreadable),
            Err(Untaken::Unfit(_)) => (self.reclaim(number)?, Stage::Unfit),
            Err(Untaken::BadKey) => (self.reclaim(number)?, Stage::BadKey),
        };
        if !offer.change(number, from, last) {
            placed = Err(Untaken::Void);
        }
        self.notify_peer(WakeOn::ROOM);
        match placed {
            Ok(_) => {}
            // The sender ends the connection, or has ended it.
            Err(Untaken::Void | Untaken::Unreadable) => {
                self.rx.taking = Taking::Void;
                return Ok(false);
            }
            Err(Untaken::Unfit(status)) => {
                me.fail_recv(status, up);
                return Err(CloseReason::Fault);
            }
            Err(_) => return Err(CloseReason::Fault),
        }
        self.rx.taking = Taking::NotBegun;
        self.rx.consumer.advance(piece);
        self.rx.consumer.publish(self.segment.rx_ring());
        let solicited = piece.flags.contains(CellFlags::SOLICITED);
        let (len, invalidated) = (source.len as u32, self.rx.invalidate.take());
        me.rq.advance();
        let op = deliver::received(invalidated);
        let (status, thread) = (WcStatus::Success, pin::thread());
        me.complete_recv(&receive, status, len, solicited, op, thread, up);
        Ok(true)
    }

    /// Copies a message to its receive, as far as the sender does not help, its last bytes last. Returns the stage of
    /// the offer, once the message is complete.
    fn place(
        &mut self,
        number: u64,
        source: &Source,
        receive: &Receive,
        target: &[Sge],
        me: &QpState,
        guard: &Guard,
    ) -> Result<Stage, Untaken> {
        if source.len > u64::from(receive.len) {
            return Err(Untaken::Unfit(WcStatus::LocalLength));
        }
        if me
            .check_receive(receive, target, source.len, guard)
            .is_err()
        {
            return Err(Untaken::Unfit(WcStatus::LocalProtection));
        }
        let stage = self.place_body(number, source, target, me)?;
        // SAFETY: the segments of the receive were checked in this read-side section, and hold all of the message.
        let stored = unsafe {
            let to = Cursor::at(target, source.body_len());
            copy::scatter(source.tail.as_ptr(), TAIL, to)
        };
        stored.map_err(|_| Untaken::Unfit(WcStatus::LocalProtection))?;
        Ok(stage)
    }

    /// The part of [`ShmConn::place`] without the last bytes. The receive is long enough.
    fn place_body(
        &mut self,
        number: u64,
        source: &Source,
        target: &[Sge],
        me: &QpState,
    ) -> Result<Stage, Untaken> {
        let len = source.body_len();
        let (copied, middle) = match self.rx.taking {
            Taking::Begun { copied, middle } => (copied, middle),
            _ => {
                let offer = self.segment.rx_offer();
                let half = second_half(len, target, me);
                let begun = match half {
                    Some(half) => offer.open(number, half),
                    None => offer.change(number, Stage::Offered, Stage::Own),
                };
                if !begun {
                    return Err(Untaken::Void);
                }
                let middle = half.map_or(len, |half| half.offset);
                delay::point("shm.open");
                (0, middle)
            }
        };
        self.pull(source, copied..middle, target)?;
        for _ in 0..CHECKS + len / BYTES_A_CHECK {
            match self.segment.rx_offer().rest(number)? {
                Rest::Copy => {
                    self.pull(source, middle..len, target)?;
                    return Ok(Stage::Own);
                }
                Rest::Copied(stage) => return Ok(stage),
                Rest::Awaited => std::hint::spin_loop(),
                Rest::Void => return Err(Untaken::Void),
            }
        }
        let copied = middle;
        self.rx.taking = Taking::Begun { copied, middle };
        Err(Untaken::Later)
    }

    /// Copies these bytes of a message out of the memory of the sender, which may move: then the rest is to be copied
    /// later.
    fn pull(&mut self, source: &Source, bytes: Range<u64>, target: &[Sge]) -> Result<(), Untaken> {
        let mut begin = 0;
        for segment in source.segments() {
            let end = begin + u64::from(segment.len);
            let part = bytes.start.max(begin)..bytes.end.min(end);
            if part.start < part.end {
                let addr = segment.addr.checked_add(part.start - begin);
                let len = part.end - part.start;
                let mut copy = Copy {
                    way: Direction::Read,
                    local: Cursor::at(target, part.start),
                    remote: Remote {
                        addr: addr.ok_or(Untaken::Unreadable)?,
                        rkey: segment.lkey,
                    },
                    kind: RemoteAddress::InMemory,
                    len,
                    need: Access::LOCAL_READ,
                };
                // SAFETY: the segments of the receive were checked in this read-side section, and
                // hold all of the message.
                let by = unsafe { copy.make(&self.segment, &mut self.tx.sections, || true) };
                if let Err(CopyRefusal::Failed(CopyError::Moving)) = by {
                    let (copied, middle) = (part.end - copy.len, bytes.end);
                    self.rx.taking = Taking::Begun { copied, middle };
                    self.check_move_later();
                }
                if by? == CopiedBy::Kernel {
                    self.kernel_has_copied(segment.lkey, len);
                }
            }
            begin = end;
        }
        Ok(())
    }

    /// The message cannot be taken: the sender does not copy any part of it from now on. Returns the
    /// stage of the offer.
    fn reclaim(&self, number: u64) -> Result<Stage, CloseReason> {
        let offer = self.segment.rx_offer();
        let mut is_late = false;
        loop {
            match offer.stage(number)? {
                stage if stage == Stage::Own || stage.is_last() => return Ok(stage),
                Stage::Helping if is_late => return Ok(Stage::Helping),
                Stage::Helping => {
                    copy_waits::wait_for_peer(self.segment.segment());
                    is_late = true;
                }
                stage => {
                    offer.change(number, stage, Stage::Own);
                }
            }
        }
    }

    /// The connection ends: what is outstanding has an end that both ends agree on, and the peer
    /// writes to no receive any more.
    pub(in super::super) fn end_bulk(&mut self, me: &mut QpState, up: &mut Upcalls) {
        self.withdraw(me, up);
        if let Taking::Begun { .. } = self.rx.taking {
            let number = self.rx.consumer.next_cell();
            let offer = self.segment.rx_offer();
            let mut stages = [Stage::Open, Stage::Helping].into_iter();
            if stages.any(|stage| offer.change(number, stage, Stage::Withdrawn)) {
                copy_waits::wait_for_peer(self.segment.segment());
            }
        }
        self.rx.taking = Taking::Void;
    }
}

/// What the sender may copy of so many bytes of a message. `None` if it cannot: its place is not in
/// one segment, or its key is one of another protection domain.
fn second_half(len: u64, target: &[Sge], me: &QpState) -> Option<SecondHalf> {
    let [only] = target else {
        return None;
    };
    let offset = (len / 2).next_multiple_of(HALF_ALIGN);
    let at = Remote {
        addr: only.addr + offset,
        rkey: only.lkey,
    };
    let reachable = me.id.recv_pd == me.id.pd && offset < len;
    reachable.then_some(SecondHalf { offset, at })
}
