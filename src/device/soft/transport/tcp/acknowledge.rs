//! Acknowledgements between two ends of ours ([`iwarp::acknowledge`]): what this end has heard of its
//! own requests, and what it owes the peer.
//!
//! A request of ours completes when it is acknowledged, a read when its response is there, so that
//! what the peer refuses completes with the error, as over loopback. A peer that does not know
//! acknowledgements gets none, and requests to it complete when they are sent.
//!
//! An acknowledgement goes with what is sent anyway. Otherwise it is sent when this end finds nothing
//! more to do ([`engine::acknowledgements`]), at the latest after a moment; and at once when the peer
//! asks, whose queue fills, when there are many, or when this end has sent nothing else for a while.
//!
//! [`iwarp::acknowledge`]: crate::device::soft::iwarp::acknowledge
//! [`engine::acknowledgements`]: crate::device::soft::engine::acknowledgements

use super::close_reason::CloseReason;
use crate::device::attempt::Phase;
use crate::device::soft::iwarp::acknowledge::{ACKNOWLEDGE_FPDU_MAX, Acknowledge, Note};
use crate::device::soft::iwarp::wire::WireError;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Op;
use crate::device::soft::upcalls::Upcalls;
use crate::handle::Guard;
use crate::kernel;

use super::conn::TcpConn;
use super::tx::Tx;
use super::tx_frame::Counting;

/// How often an end asks for an acknowledgement while it sends as many requests as its queue holds, and
/// none of them is acknowledged.
const ASKS: usize = 2;
/// The most requests of the peer that are acknowledged at once although it does not ask.
const FEW: u32 = 3;

/// Number of requests of the peer that are acknowledged at once, although it does not ask and more of
/// its messages are to be delivered: it goes on meanwhile. An acknowledgement costs as much as some of
/// the requests.
const MANY: u32 = 32;

/// Acknowledgements in a row that nothing else was sent with, after which they are sent at once: this
/// end does not answer messages with messages.
const ALONE: u32 = 2;

/// See the module. Counts are modulo 2^32.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    /// Whether both ends have agreed on acknowledgements.
    pub agreed: bool,
    /// Number of requests of ours that are sent.
    sent: u32,
    /// Number of them that the peer has acknowledged.
    acknowledged: u32,
    /// Number of those sent and not acknowledged that have completed all the same.
    assumed: u32,
    /// Number in the send queue of the oldest request that is neither acknowledged nor assumed.
    next: u64,
    /// The request of ours that the peer has refused.
    pub refused: Option<u64>,
    /// Whether the consumer of the peer has ended the connection gracefully.
    pub peer_ended: bool,
    /// Number of requests of the peer that have arrived whole.
    pub arrived: u32,
    /// Number of the oldest request of the peer that is not finished.
    pub finished: u32,
    /// What of `finished` the peer has been sent.
    reported: u32,
    /// Whether the peer has asked for an acknowledgement since then.
    pub asked: bool,
    /// Whether an acknowledgement is to be sent even if nothing else is.
    forced: bool,
    /// Number of acknowledgements that were sent since anything else was.
    alone: u32,
    /// Whether there are messages of the peer that were read and not delivered.
    pub backlog: bool,
    /// The request of the peer that has failed here, and ends the connection.
    pub failed: Option<u32>,
}

/// Marks the request with this number in the send queue as executed, unless it is a read or an atomic
/// operation, which its response ends.
fn finish(number: u64, me: &mut QpState) {
    if let Some(request) = me.sq.get_mut(number)
        && !matches!(request.op, Op::Transfer(op) if op.fetches())
    {
        request.done = true;
    }
}

impl Acks {
    /// `first` is the number of the first request of the connection.
    pub fn new(agreed: bool, first: u64) -> Acks {
        Acks {
            agreed,
            next: first,
            ..Acks::default()
        }
    }

    /// Number of our requests that are sent and not acknowledged.
    fn outstanding(&self) -> u32 {
        self.sent.wrapping_sub(self.acknowledged)
    }

    /// Whether requests of ours wait for an acknowledgement.
    pub fn awaits(&self) -> bool {
        self.outstanding() > self.assumed
    }

    /// A request of ours is sent.
    #[inline]
    pub fn request_sent(&mut self, number: u64, me: &mut QpState) {
        if self.agreed {
            self.sent = self.sent.wrapping_add(1);
        } else {
            finish(number, me);
        }
    }

    /// A bind, which is not sent, was executed; all before it have completed.
    pub fn bound(&mut self) {
        self.next += 1;
    }

    /// The peer has finished so many requests in all.
    ///
    /// # Errors
    /// So many were not sent, or more were acknowledged before.
    #[inline]
    pub fn acknowledge(
        &mut self,
        count: u32,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let new = count.wrapping_sub(self.acknowledged);
        if new == 0 {
            return Ok(());
        }
        if new > self.outstanding() {
            return Err(CloseReason::Protocol(WireError::RDMAP_STREAM, None));
        }
        self.acknowledged = count;
        let assumed = new.min(self.assumed);
        self.assumed -= assumed;
        self.complete(new - assumed, me, up);
        Ok(())
    }

    /// Acknowledgements cannot be read, since messages of the peer wait for receives in front of them:
    /// what is sent completes without them. Otherwise two consumers that post a receive after a send
    /// has completed could wait for each other for ever.
    #[cold]
    pub fn assume(&mut self, me: &mut QpState, up: &mut Upcalls) {
        let new = self.outstanding() - self.assumed;
        self.assumed += new;
        self.complete(new, me, up);
    }

    /// Completes so many of the oldest requests, in so far as no response ends them.
    fn complete(&mut self, count: u32, me: &mut QpState, up: &mut Upcalls) {
        for _ in 0..count {
            finish(self.next, me);
            self.next += 1;
        }
        me.retire(up);
    }

    /// The peer has refused the request of ours with this number of the stream.
    ///
    /// # Errors
    /// It is neither sent nor being sent, or was acknowledged before.
    pub fn refuse(&mut self, number: u32) -> Result<(), CloseReason> {
        let behind = number.wrapping_sub(self.acknowledged);
        if behind > self.outstanding() {
            return Err(CloseReason::Protocol(WireError::RDMAP_STREAM, None));
        }
        let behind = behind.checked_sub(self.assumed);
        self.refused = behind.map(|behind| self.next + u64::from(behind));
        Ok(())
    }

    /// What the requests that are sent now say.
    #[inline]
    pub fn counting(&self, me: &QpState) -> Counting {
        let interval = match self.agreed {
            true => (me.sq.limit() / ASKS) as u64,
            false => u64::MAX,
        };
        Counting {
            count: self.finished,
            interval,
            oldest: me.sq.head(),
        }
    }

    /// A segment of a request of the peer has arrived, the last one if `whole`.
    #[inline]
    pub fn segment_arrived(&mut self, whole: bool) {
        self.arrived = self.arrived.wrapping_add(whole.into());
    }

    /// Whether the peer does not know yet of all that is finished.
    #[inline]
    pub fn owes(&self) -> bool {
        self.agreed && self.finished != self.reported
    }

    /// Whether that is to be sent now.
    #[inline]
    pub fn is_due(&self) -> bool {
        if !self.owes() {
            return false;
        }
        let unreported = self.finished.wrapping_sub(self.reported);
        let alone = self.alone >= ALONE && unreported <= FEW;
        self.forced || (self.asked || alone) && !self.backlog || unreported >= MANY
    }

    /// What is owed is to be sent even if nothing else is.
    pub fn force(&mut self) {
        self.forced = true;
    }

    /// A request or a response of this end is sent.
    #[inline]
    pub fn other_sent(&mut self) {
        self.alone = 0;
    }

    /// An acknowledgement is sent that is a message of its own.
    pub fn acknowledged_alone(&mut self) {
        self.alone = self.alone.saturating_add(1);
    }

    /// The count is sent.
    #[inline]
    pub fn reported(&mut self) {
        self.reported = self.finished;
        self.asked = false;
        self.forced = false;
    }

    /// Has an acknowledgement with a note sent before anything else.
    fn put(&mut self, note: Option<Note>, crc: bool, tx: &mut Tx) {
        let count = self.finished;
        let mut bytes = [0; ACKNOWLEDGE_FPDU_MAX];
        let msn = tx.number_acknowledgement();
        tx.put(Acknowledge { count, note }.encode(msn, crc, &mut bytes));
        self.reported();
    }

    /// Notifies the peer that our consumer has ended the connection.
    pub fn put_end(&mut self, crc: bool, tx: &mut Tx) {
        self.put(Some(Note::Ended), crc, tx);
    }

    /// The last acknowledgement, in front of a Terminate.
    pub fn put_last(&mut self, crc: bool, tx: &mut Tx) {
        if self.agreed && (self.failed.is_some() || self.owes()) {
            self.put(self.failed.map(Note::Refused), crc, tx);
        }
    }
}

impl TcpConn {
    /// Counts the requests of the peer that are finished.
    #[inline]
    pub(super) fn count_finished(&mut self) {
        if self.acks.failed.is_none() {
            let waiting = self.rx.oldest_waiting();
            self.acks.finished = waiting.unwrap_or(self.acks.arrived);
            self.acks.backlog = self.rx.backlog;
        }
    }

    /// After all was sent that can be: makes sure that what is owed is sent some time, and that
    /// requests complete whose acknowledgements cannot be read.
    #[inline]
    pub(super) fn settle_acknowledgements(&mut self, me: &mut QpState, up: &mut Upcalls) {
        if self.rx.paused && self.acks.awaits() {
            self.acks.assume(me, up);
        }
        // A full socket becomes ready when it has room again.
        let owes = self.acks.owes() && !self.tx.blocked;
        self.watch.set_owes_acknowledgement(owes);
        if owes && !self.acknowledgement_listed {
            self.acknowledgement_listed = true;
            self.watch.schedule_acknowledgement(self.target.clone());
        }
    }

    /// The engine has the connection no longer in its list of those that may owe an acknowledgement,
    /// which is sent.
    pub fn left_acknowledgement_list(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        self.acknowledgement_listed = false;
        if self.acks.owes() {
            self.acks.force();
            self.advance(me, guard, up)?;
        }
        Ok(())
    }

    /// The connection is about to end: answers the reads that are before the request of the peer which
    /// has failed, as far as the socket takes the responses.
    ///
    /// # Errors
    /// Such a read fails itself, which is the reason of the end then.
    #[cold]
    pub(super) fn answer_earlier_reads(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        if !self.acks.agreed || self.acks.failed.is_none() || self.tx.responses.is_empty() {
            return Ok(());
        }
        self.tx.stopped = true;
        self.tx
            .transmit(me, &mut self.watch, &mut self.acks, self.crc, guard, up)
            .inspect_err(|_| self.acks.failed = None)
    }

    /// The consumer of the peer has ended the connection gracefully.
    pub(super) fn peer_has_ended(&mut self, me: &QpState) {
        self.acks.peer_ended = true;
        // What is sent already is acknowledged, or the peer ends its stream.
        self.tx.stopped = me.attempt.phase != Phase::Closing;
        self.lifecycle.limit_linger(&self.watch);
    }

    /// Whether the consumer of the peer has ended the connection gracefully, and none of our requests
    /// waits for the peer.
    pub(super) fn has_peer_finished(&self) -> bool {
        self.acks.peer_ended && !self.acks.awaits() && self.tx.reads.is_empty()
    }

    /// Whether the stream of the peer has ended as it does when its process is killed.
    pub(super) fn is_peer_killed(&self) -> bool {
        let in_order = self.acks.peer_ended || self.rx.aborted || self.lifecycle.is_closed();
        self.acks.agreed && self.rx.ended && !in_order
    }

    /// A graceful end takes effect: no further request is sent. Over a connection with
    /// acknowledgements the stream goes on, for those that the peer is owed.
    pub(super) fn end_requests(&mut self) -> Result<(), CloseReason> {
        if self.acks.agreed && !self.acks.peer_ended {
            self.acks.put_end(self.crc, &mut self.tx);
            self.tx.send_pending(&self.watch)?;
            self.liveness
                .written(self.tx.writes, &self.watch, &self.target);
        } else {
            self.end_stream();
        }
        Ok(())
    }

    /// Ends our stream: nothing more is sent.
    pub(super) fn end_stream(&mut self) {
        if self.tx.closed || self.tx.has_pending() {
            return;
        }
        self.tx.closed = true;
        let _ = kernel::net::shutdown(&self.watch, kernel::net::Shutdown::Write);
        self.liveness.sent(&self.watch, &self.target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_due_when_it_is_asked_for_or_of_many_requests() {
        let mut acks = Acks::new(true, 0);
        acks.finished = MANY - 1;
        assert!(acks.owes() && !acks.is_due());
        // The peer goes on while messages are delivered.
        acks.backlog = true;
        acks.asked = true;
        assert!(!acks.is_due());
        acks.backlog = false;
        assert!(acks.is_due());
        acks.backlog = true;
        acks.asked = false;
        acks.finished = MANY;
        assert!(acks.is_due());
        acks.reported();
        assert!(!acks.owes() && !acks.is_due());
        acks.finished += 1;
        assert!(!acks.is_due());
        acks.force();
        assert!(acks.is_due());
    }

    /// The one that follows those which were sent may have arrived in part.
    #[test]
    fn a_refused_request_is_one_that_was_begun() {
        let mut acks = Acks {
            sent: 3,
            acknowledged: 1,
            ..Acks::new(true, 10)
        };
        for (number, refused) in [(1, 10), (2, 11), (3, 12)] {
            assert!(acks.refuse(number).is_ok());
            assert_eq!(acks.refused, Some(refused));
        }
        for number in [0, 4, u32::MAX] {
            assert!(acks.refuse(number).is_err(), "{number}");
        }
    }
}
