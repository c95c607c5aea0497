//! Long messages that are not copied into the ring: offering them, taking them and helping with
//! their second half ([`offer`](super::offer)).

use std::ops::Range;

use super::choice::Way;
use super::close_reason::CloseReason;
use super::cma::{CopyError, Direction};
use super::conn::{SendWait, ShmConn};
use super::copy_waits;
use super::doorbell::WakeOn;
use super::mapped::{promotion, registry};
use super::offer::{Rest, SecondHalf, Stage};
use super::one_sided::{CopiedBy, Copy, CopyRefusal};
use super::remote_keys::RemoteAddress;
use super::ring::{CellFlags, Kind, MAX_INLINE, Piece, Violation};
use crate::delay;
use crate::device::soft::mem::copy::Cursor;
use crate::device::soft::mem::key_table;
use crate::device::soft::qp::deliver;
use crate::device::soft::qp::link::Outcome;
use crate::device::soft::qp::state::{MAX_MESSAGE, QpState};
use crate::device::soft::qp::work_queue::{Receive, Transfer};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{Access, Remote, Sge, WcStatus, WrFlags};
use crate::handle::{Guard, pin};

/// The shortest message that is offered, in bytes. Shorter ones are copied into the ring: two copies
/// take less time than a system call does. For some longer ones that is [measured](super::choice).
pub(super) const OFFER_MIN: u32 = 16 * 1024;
/// Bytes of a segment in the cell of an offer: address, length and key.
const ENTRY: usize = 16;
/// The most segments of a message that is offered.
const MOST_SEGMENTS: usize = MAX_INLINE / ENTRY;
/// The second half begins at a multiple of so many bytes.
const HALF_ALIGN: u64 = 4096;
/// How often the receiver checks at once for the sender's half of a message: so many times, and once
/// more for each so many bytes.
const CHECKS: u64 = 64;
const BYTES_A_CHECK: u64 = 512;

/// What the receiver knows of the offer in the next cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Taking {
    /// Nothing was done with it, or there is none.
    #[default]
    NotBegun,
    /// All but the second half, which begins at that byte, is copied; the sender copies the rest.
    Helped(u64),
    /// The offer is over without a message. The connection ends.
    Void,
}

/// The segments of an offer.
struct Source {
    segments: [Sge; MOST_SEGMENTS],
    count: usize,
    len: u64,
}

impl Source {
    /// Reads the cell of an offer. `None` if the peer has violated the protocol.
    ///
    /// # Safety
    /// `len` bytes at `from` may be read.
    unsafe fn read(from: *const u8, len: usize) -> Option<Source> {
        let mut source = Source {
            segments: [Sge::NONE; MOST_SEGMENTS],
            count: len / ENTRY,
            len: 0,
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
        (1..=u64::from(MAX_MESSAGE))
            .contains(&source.len)
            .then_some(source)
    }

    /// Writes the cell of an offer, of [`ENTRY`] bytes for each segment.
    ///
    /// # Safety
    /// As many bytes at `to` may be written.
    unsafe fn write(segments: &[Sge], to: *mut u8) {
        for (i, segment) in segments.iter().enumerate() {
            let rest = u64::from(segment.len) | u64::from(segment.lkey) << 32;
            let at = to.wrapping_add(i * ENTRY).cast::<[u64; 2]>();
            // SAFETY: inside the cell, at any alignment.
            unsafe { at.write_unaligned([segment.addr, rest]) };
        }
    }
}

/// Why an offered message is not in its receive.
enum Untaken {
    /// The sender copies its half still.
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
            CopyRefusal::Failed(CopyError::Local) => Untaken::Unfit(WcStatus::LocalProtection),
            CopyRefusal::Failed(CopyError::PeerExited) => Untaken::Down(CloseReason::Lost),
        }
    }
}

// The sender.
impl ShmConn {
    /// Whether a message is offered, while the peer may access our memory, rather than copied into
    /// the ring.
    #[inline]
    pub(super) fn may_offer(&mut self, transfer: &Transfer<'_>) -> bool {
        let fits = transfer.len >= OFFER_MIN && transfer.sges.len() <= MOST_SEGMENTS;
        if !fits || self.tx.sent > 0 {
            return false;
        }
        let way = match self.tx.choice.way() {
            Some(way) => way,
            None => self.choose_way(transfer),
        };
        way == Way::Offer
    }

    /// Chooses the way of a long message.
    fn choose_way(&mut self, transfer: &Transfer<'_>) -> Way {
        let has_file = registry::current().is_some();
        let is_mapped = |segment: &Sge| key_table::is_mapped(segment.lkey);
        let is_mapped = has_file && transfer.sges.iter().all(is_mapped);
        let way = self.tx.choice.choose(transfer.len, is_mapped);
        if has_file && way == Way::Ring {
            // The receiver counts what is offered. Through the ring it does not know the region.
            for segment in transfer.sges {
                promotion::count(segment.lkey, segment.len.into());
            }
        }
        way
    }

    /// Offers a message; there is room for a cell, and the peer may access our memory.
    pub(super) fn offer(&mut self, transfer: &Transfer<'_>) {
        let mut marks = CellFlags::LAST;
        let solicited = transfer.flags.contains(WrFlags::SOLICITED);
        marks.set(CellFlags::SOLICITED, solicited);
        let (tx, ring) = (&mut self.tx, self.segment.tx_ring());
        let number = tx.producer.next_cell();
        self.segment.tx_offer().make(number);
        let len = transfer.sges.len() * ENTRY;
        // SAFETY: the cell is free, and holds more.
        unsafe { Source::write(transfer.sges, tx.producer.payload(ring, Kind::Offer)) };
        tx.producer.publish(ring, Kind::Offer, marks, len);
        tx.offer = Some(number);
        tx.need = Some(SendWait::Taken);
    }

    /// How far the message is that was offered in that cell; helps with it.
    pub(super) fn offered(
        &mut self,
        number: u64,
        transfer: &Transfer<'_>,
    ) -> Result<Outcome, CloseReason> {
        let outcome = match self.segment.tx_offer().stage(number)? {
            Stage::Open => {
                self.help(number, transfer)?;
                return Ok(Outcome::Wait);
            }
            Stage::Taken => Outcome::Done,
            Stage::Unreadable => Outcome::Failed(WcStatus::LocalProtection),
            Stage::Unfit => Outcome::Failed(WcStatus::RemoteOperation),
            Stage::BadKey => Outcome::Failed(WcStatus::RemoteAccess),
            _ => return Ok(Outcome::Wait),
        };
        self.tx.offer = None;
        Ok(outcome)
    }

    /// Copies the second half of a message to its receive, unless the receiver does that.
    fn help(&mut self, number: u64, transfer: &Transfer<'_>) -> Result<(), Violation> {
        let (segment, offer) = (&*self.segment, self.segment.tx_offer());
        let half = offer.second_half();
        let len = u64::from(transfer.len).checked_sub(half.offset);
        let len = len.filter(|len| *len > 0).ok_or(Violation)?;
        let copy = Copy {
            way: Direction::Write,
            local: Cursor::at(transfer.sges, half.offset),
            remote: half.at,
            kind: RemoteAddress::InMemory,
            len,
            need: Access::LOCAL_WRITE,
        };
        let mut is_claimed = false;
        let claim = || {
            if is_claimed {
                return offer.stage(number) == Ok(Stage::Helping);
            }
            is_claimed = offer.change(number, Stage::Open, Stage::Helping);
            delay::point("shm.claimed");
            is_claimed
        };
        // SAFETY: the segments were checked in this read-side section, and hold as much.
        let copied = unsafe { copy.make(segment, &mut self.tx.sections, claim) };
        if matches!(copied, Ok(CopiedBy::Kernel)) {
            self.kernel_has_copied(half.at.rkey, len);
        }
        let helped = match copied {
            Ok(_) => Stage::Helped,
            Err(_) => Stage::Declined,
        };
        if is_claimed && offer.change(number, Stage::Helping, helped) {
            self.notify_peer(WakeOn::CELLS);
        }
        Ok(())
    }

    /// Gives up a long message that is outstanding; its request completes if the peer was faster.
    fn withdraw(&mut self, me: &mut QpState, up: &mut Upcalls) {
        if self.tx.filled.is_some()
            && self.tx.is_delivered(&self.segment) == Ok(true)
            && let Some(request) = me.sq.pop()
        {
            self.tx.filled = None;
            me.complete(&request, WcStatus::Success, up);
        }
        let Some(number) = self.tx.offer.take() else {
            return;
        };
        let status = match self.segment.tx_offer().withdraw(number) {
            Ok(Stage::Taken) => WcStatus::Success,
            Ok(Stage::Unreadable) => WcStatus::LocalProtection,
            Ok(Stage::Unfit) => WcStatus::RemoteOperation,
            Ok(Stage::BadKey) => WcStatus::RemoteAccess,
            _ => return,
        };
        if let Some(request) = me.sq.pop() {
            me.complete(&request, status, up);
        }
    }
}

// The receiver.
impl ShmConn {
    /// Whether there is something to do for the offer in the next cell.
    pub(super) fn can_take(&self) -> bool {
        let stage = || self.segment.rx_offer().stage(self.rx.consumer.next_cell());
        match self.rx.taking {
            Taking::NotBegun => true,
            Taking::Helped(_) => stage() != Ok(Stage::Helping),
            Taking::Void => false,
        }
    }

    /// Takes the message that is offered in the next cell, for the receive at the head of the queue.
    /// False if the message has to wait, or will never be there.
    #[inline(never)]
    pub(super) fn take_offer(
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

    /// Copies a message to its receive, as far as the sender does not help. Returns the stage of the
    /// offer, once the message is complete.
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
        let middle = match self.rx.taking {
            Taking::Helped(middle) => middle,
            _ => {
                let offer = self.segment.rx_offer();
                let half = second_half(source.len, target, me);
                let begun = match half {
                    Some(half) => offer.open(number, half),
                    None => offer.change(number, Stage::Offered, Stage::Own),
                };
                if !begun {
                    return Err(Untaken::Void);
                }
                let middle = half.map_or(source.len, |half| half.offset);
                delay::point("shm.open");
                self.pull(source, 0..middle, target)?;
                middle
            }
        };
        for _ in 0..CHECKS + source.len / BYTES_A_CHECK {
            match self.segment.rx_offer().rest(number)? {
                Rest::Copy => {
                    self.pull(source, middle..source.len, target)?;
                    return Ok(Stage::Own);
                }
                Rest::Copied(stage) => return Ok(stage),
                Rest::Awaited => std::hint::spin_loop(),
                Rest::Void => return Err(Untaken::Void),
            }
        }
        self.rx.taking = Taking::Helped(middle);
        Err(Untaken::Later)
    }

    /// Copies these bytes of a message out of the memory of the sender.
    fn pull(&mut self, source: &Source, bytes: Range<u64>, target: &[Sge]) -> Result<(), Untaken> {
        let mut begin = 0;
        for segment in &source.segments[..source.count] {
            let end = begin + u64::from(segment.len);
            let part = bytes.start.max(begin)..bytes.end.min(end);
            if part.start < part.end {
                let addr = segment.addr.checked_add(part.start - begin);
                let len = part.end - part.start;
                let copy = Copy {
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
                let by = unsafe { copy.make(&self.segment, &mut self.tx.sections, || true) }?;
                if by == CopiedBy::Kernel {
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
    pub(super) fn end_bulk(&mut self, me: &mut QpState, up: &mut Upcalls) {
        self.withdraw(me, up);
        if let Taking::Helped(_) = self.rx.taking {
            let number = self.rx.consumer.next_cell();
            let offer = self.segment.rx_offer();
            if offer.change(number, Stage::Helping, Stage::Withdrawn) {
                copy_waits::wait_for_peer(self.segment.segment());
            }
        }
        self.rx.taking = Taking::Void;
    }
}

/// What the sender may copy of a message of so many bytes. `None` if it cannot: its place is not in
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
