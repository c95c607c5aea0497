//! The end that offers a message, and helps with its second half.

use super::source::Source;
use super::{MOST_SEGMENTS, OFFER_MIN, TAIL};
use crate::delay;
use crate::device::soft::mem::copy::Cursor;
use crate::device::soft::mem::key_table;
use crate::device::soft::qp::link::Outcome;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Transfer;
use crate::device::soft::transport::shm::choice::Way;
use crate::device::soft::transport::shm::close_reason::CloseReason;
use crate::device::soft::transport::shm::cma::Direction;
use crate::device::soft::transport::shm::conn::{SendWait, ShmConn};
use crate::device::soft::transport::shm::doorbell::WakeOn;
use crate::device::soft::transport::shm::mapped::{promotion, registry};
use crate::device::soft::transport::shm::offer::Stage;
use crate::device::soft::transport::shm::one_sided::{CopiedBy, Copy};
use crate::device::soft::transport::shm::remote_keys::RemoteAddress;
use crate::device::soft::transport::shm::ring::{CellFlags, Kind, Violation};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{Access, Sge, WcStatus, WrFlags};
use crate::guarded::CopyFault;

impl ShmConn {
    /// Whether a message is offered, while the peer may access our memory, rather than copied into
    /// the ring.
    #[inline]
    pub(in super::super) fn may_offer(&mut self, transfer: &Transfer<'_>) -> bool {
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
    pub(in super::super) fn offer(&mut self, transfer: &Transfer<'_>) -> Result<(), CopyFault> {
        let mut marks = CellFlags::LAST;
        let solicited = transfer.flags.contains(WrFlags::SOLICITED);
        marks.set(CellFlags::SOLICITED, solicited);
        let (tx, ring) = (&mut self.tx, self.segment.tx_ring());
        let number = tx.producer.next_cell();
        // SAFETY: the cell is free, and holds as much; the segments were checked in this read-side section.
        let len = unsafe { Source::write(transfer, tx.producer.payload(ring, Kind::Offer)) }?;
        self.segment.tx_offer().make(number);
        tx.producer.publish(ring, Kind::Offer, marks, len);
        tx.offer = Some(number);
        tx.need = Some(SendWait::Taken);
        Ok(())
    }

    /// How far the message is that was offered in that cell; helps with it.
    pub(in super::super) fn offered(
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
        let len = (u64::from(transfer.len) - TAIL as u64).checked_sub(half.offset);
        let len = len.filter(|len| *len > 0).ok_or(Violation)?;
        let mut copy = Copy {
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
    pub(super) fn withdraw(&mut self, me: &mut QpState, up: &mut Upcalls) {
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
