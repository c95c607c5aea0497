//! A connection through shared memory that carries data: what lies between the send and receive
//! queues of a queue pair and the rings.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::bulk::Taking;
use super::choice::Choice;
use super::close_reason::CloseReason;
use super::coalesced_writes::CoalescedWrites;
use super::doorbell::WakeOn;
use super::grant::AccessGrant;
use super::mapped::promotion;
use super::notify::{self, Notified, PeerNotifier};
use super::ring::{Consumer, Kind, Producer};
use super::ring_writes::{RingWrites, Taken};
use super::segment::{EndPhase, EndState, NO_CELL};
use crate::device::WcStatus;
use crate::device::soft::engine::poll_set::{NotifyMode, PollEntry};
use crate::device::soft::engine::{EventFlags, Source, Timer, Watch};
use crate::device::soft::event_order::SetupGuard;
use crate::device::soft::qp::link::Outcome;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Transfer;
use crate::device::soft::transport::lifecycle::{Connection, Lifecycle, Overdue, Timed};
use crate::device::soft::upcalls::{Coalescer, Upcalls};
use crate::handle::Guard;

/// A connection as the engine knows it.
pub(crate) trait ShmTarget: Source + PollEntry + Timed + Coalescer {}

/// What a message waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendWait {
    Cell,
    /// Room for a chunk of so many bytes.
    Bytes(usize),
    /// Our consent to access our memory, of a message that is to be offered: the thread that gives
    /// our consumer the event of the connection is about to give it.
    Opening,
    /// The receive of a message that was offered.
    Taken,
    /// The receive of a long message that is in the ring.
    Delivery,
    /// The response to an atomic operation.
    Response,
    /// The peer, which executes RDMA writes.
    Writes,
    /// The peer's consent to access its memory, which it gives when its consumer has the event of
    /// the connection.
    Consent,
    /// Memory of the peer, which moves at the moment.
    Move,
}

/// How many of the messages that have arrived are delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Budget {
    /// None: the poll set delivers them in its turn.
    Nothing,
    /// None either, but requests in front of them are executed.
    Requests,
    /// One message.
    One,
    /// Everything that has a receive, if [no other connection](ShmConn::is_alone) is to have a turn between.
    All,
}

/// See the module.
pub(crate) struct ShmConn {
    pub(crate) segment: AccessGrant,
    /// The socket over which the connection was made. A byte on it wakes the peer, and its end is
    /// the end of the connection.
    pub(super) watch: Watch,
    pub(super) target: Arc<dyn ShmTarget>,
    pub(super) lifecycle: Lifecycle,
    notified: Notified,
    notifier: PeerNotifier,
    /// The key of the region that the peer has last asked to be moved to where it maps it.
    promoted: u32,
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    pub(super) writes: CoalescedWrites,
    /// Has messages taken that were left, if the connection is in no poll set.
    later: Option<Timer>,
    /// Has the connection served again that waits for memory of the peer which moves.
    pub(super) move_check: Option<Timer>,
    /// Whether the socket has ended: the peer has released the connection, or has died.
    ended: bool,
    /// Whether the socket has ended, or the peer's [`EndPhase`] says that it ends the connection.
    over: bool,
}

/// The sending half.
#[derive(Default)]
pub(crate) struct Tx {
    pub producer: Producer,
    /// Bytes of the oldest request that are in the ring already.
    pub sent: u32,
    /// Whether the key that it invalidates is in the ring already.
    pub announced: bool,
    /// Number of the cell in which its message was offered.
    pub offer: Option<u64>,
    /// Whether messages are offered.
    pub choice: Choice,
    /// Number of the cell behind its message, which is long and is in the ring as a whole.
    pub filled: Option<u64>,
    /// Number of the cell in which an atomic operation was requested that has no response yet.
    pub atomic: Option<u64>,
    /// Short RDMA writes in the ring.
    pub writes: RingWrites,
    /// What it waits for.
    pub need: Option<SendWait>,
    /// Bytes of the oldest request, an RDMA operation, that were copied before memory of the peer moved.
    pub reached: u64,
    /// Number of the last access to the peer's memory.
    pub sections: u32,
}

/// The receiving half.
#[derive(Default)]
pub(crate) struct Rx {
    pub consumer: Consumer,
    /// Bytes of the current message that were delivered.
    pub offset: u32,
    /// The key that it invalidates.
    pub invalidate: Option<u32>,
    /// What was done with the offer in the next cell.
    pub taking: Taking,
    /// What is done with the RDMA writes in the next cells.
    pub writes: Taken,
    /// Whether it waits for a receive.
    pub starved: bool,
}

impl Rx {
    /// What takes no part in a message is next in the ring.
    ///
    /// # Errors
    /// [`CloseReason::Fault`] in the middle of a message, or between the key that it invalidates and the message.
    pub fn check_between_messages(&self) -> Result<(), CloseReason> {
        match self.invalidate.is_some() || self.offset != 0 {
            true => Err(CloseReason::Fault),
            false => Ok(()),
        }
    }
}

impl ShmConn {
    /// For a connection on which both ends have agreed.
    pub fn new<T: ShmTarget + 'static>(
        watch: Watch,
        segment: AccessGrant,
        target: Arc<T>,
        linger: Duration,
    ) -> ShmConn {
        ShmConn {
            notified: Notified::new(&watch),
            notifier: PeerNotifier::default(),
            segment,
            watch,
            lifecycle: Lifecycle::new(target.clone(), linger),
            target,
            promoted: 0,
            tx: Tx::default(),
            rx: Rx::default(),
            writes: CoalescedWrites::default(),
            later: None,
            move_check: None,
            ended: false,
            over: false,
        }
    }

    /// Begins. `me` is connecting. The caller calls [`ShmConn::watch_socket`] once the connection
    /// is that of the queue pair.
    pub fn start(
        &mut self,
        initiator: bool,
        me: &mut QpState,
        setup: (Box<[u8]>, SetupGuard),
        up: &mut Upcalls,
    ) {
        self.watch.redirect(self.target.clone());
        if initiator {
            self.wake_peer();
        }
        self.lifecycle.start(initiator, me, &self.watch, setup, up);
    }

    /// From now on the doorbell of the peer and the end of its socket are noticed.
    pub fn watch_socket(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        self.watch.set(events).map_err(|_| CloseReason::Lost)?;
        self.run(Budget::Nothing, me, guard, up)
    }

    /// The consumer has the event of the connection: the peer may access our memory, and consumers
    /// that poll check the ring.
    pub fn open(&mut self) {
        // The consumer may have ended the connection already, which the peer knows then.
        if !self.lifecycle.is_closed() {
            self.ours().set_phase(EndPhase::Open);
        }
        let entry = self.target.clone();
        self.notified
            .join_poll_set(&self.segment, &self.watch, entry);
        self.notify_peer(WakeOn::ROOM);
    }

    /// Whether a message waits for a receive.
    #[inline]
    pub fn is_starved(&self) -> bool {
        self.rx.starved
    }

    /// Whether it is connected, as far as is known, and consumers poll it.
    #[inline]
    pub(super) fn is_awake(&self) -> bool {
        let over = self.over || self.segment.peer_stuck.load(Ordering::Relaxed);
        self.lifecycle.is_established() && !over && self.notified.mode() != NotifyMode::Doorbell
    }

    /// Whether consumers poll no other connection through shared memory. Another one may be made at any time: what was sent
    /// after one of its messages is found in the ring after the answer to this has changed.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        !self.notified.in_poll_set() || self.watch.poll_set().has_one()
    }

    pub(crate) fn ours(&self) -> &EndState {
        self.segment.ours()
    }

    pub(crate) fn theirs(&self) -> &EndState {
        self.segment.theirs()
    }

    /// Wakes the peer.
    pub(super) fn wake_peer(&self) {
        notify::wake(&self.watch);
    }

    /// Notifies the peer in its notify mode.
    #[inline(always)]
    pub(crate) fn notify_peer(&self, what: WakeOn) {
        self.notifier.notify(&self.segment, &self.watch, what);
    }

    /// The consumer ends the connection at once.
    pub fn abort(&self) {
        self.ours().set_phase(EndPhase::Aborted);
    }

    /// Does all that can be done, messages within the budget, and arms the doorbell if no consumer
    /// polls and nothing is left.
    pub fn run(
        &mut self,
        take: Budget,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let take = match self.notified.in_poll_set() {
            true => take,
            false => Budget::All,
        };
        let promotion = self.theirs().promotion();
        if promotion != self.promoted && promotion::request(promotion, self.ours().scope().pd) {
            self.promoted = promotion;
        }
        loop {
            // Before the ring is read: what the peer has sent before its phase changed is there.
            let theirs = self.theirs().phase();
            self.over = self.ended || !matches!(theirs, EndPhase::Fresh | EndPhase::Open);
            if self.lifecycle.is_established() {
                match take {
                    Budget::One | Budget::All if me.receiving => self.drain(take, me, guard, up)?,
                    Budget::Requests if me.receiving => self.execute_requests(me, guard)?,
                    _ => {}
                }
                if !self.lifecycle.is_closed() {
                    self.pump(me, guard, up)?;
                }
            }
            let left = self.has_message(me.receiving)?;
            let awaits_half = self.settle(me, theirs, left)?;
            if left || self.notified.mode() != NotifyMode::Doorbell {
                if left && take == Budget::All {
                    self.serve_again();
                }
                return Ok(());
            }
            let mut wants = WakeOn::CELLS;
            wants.set(WakeOn::ROOM, self.tx.need.is_some());
            self.ours().doorbell.arm(wants);
            let has_half = awaits_half && self.can_take();
            if !has_half && !self.has_work(take, me.receiving)? {
                return Ok(());
            }
        }
    }

    /// Has messages taken that a service of all has left: it ends after requests that take no receive, of which a peer
    /// may send any number.
    #[cold]
    fn serve_again(&mut self) {
        match self.notified.mode() {
            // Consumers that poll find them.
            NotifyMode::Polled => {}
            NotifyMode::Bitmap(place) if self.watch.poll_set().mark(place) => {}
            NotifyMode::Bitmap(_) => self.watch.serve_again(),
            NotifyMode::Doorbell if self.notified.in_poll_set() => self.watch.serve_again(),
            NotifyMode::Doorbell => {
                let target = self.target.clone();
                let recheck = move |up: &mut Upcalls| target.recheck(up);
                self.later = Some(self.watch.timer(Duration::ZERO, recheck));
            }
        }
    }

    /// Whether there is a message that could be taken.
    fn has_message(&self, receiving: bool) -> Result<bool, CloseReason> {
        let ready = self.lifecycle.is_established() && receiving && !self.rx.starved;
        if !ready {
            return Ok(false);
        }
        let next = self.rx.consumer.peek(self.segment.rx_ring())?;
        Ok(next.is_some_and(|piece| piece.kind != Kind::Offer || self.can_take()))
    }

    /// Whether something has arrived meanwhile that is to be done now.
    fn has_work(&mut self, take: Budget, receiving: bool) -> Result<bool, CloseReason> {
        if !self.lifecycle.is_established() {
            return Ok(false);
        }
        let is_peer_done = take == Budget::All && self.has_message(receiving)?;
        Ok(is_peer_done || !self.lifecycle.is_closed() && self.tx.has_room(&self.segment)?)
    }

    /// How the connection ends, if the peer has ended it.
    fn end(&mut self, theirs: EndPhase) -> Option<CloseReason> {
        match theirs {
            EndPhase::Aborted => Some(CloseReason::Closed),
            EndPhase::Broken => Some(CloseReason::Lost),
            // Messages wait for receives, unless our consumer has ended the connection too.
            EndPhase::Closed if self.rx.starved && !self.lifecycle.is_closed() => {
                self.lifecycle.limit_linger(&self.watch);
                None
            }
            EndPhase::Closed => Some(CloseReason::Closed),
            EndPhase::Fresh | EndPhase::Open => self.ended.then_some(CloseReason::Lost),
        }
    }

    /// Acts on what has changed: ends, and what polls check without the lock. `theirs` is the phase
    /// of the peer before the ring was read, in which messages are `left` or not. True if the next message waits for
    /// its sender, which copies half of it and notifies this end then.
    fn settle(
        &mut self,
        me: &mut QpState,
        theirs: EndPhase,
        left: bool,
    ) -> Result<bool, CloseReason> {
        if self.segment.peer_stuck.load(Ordering::Relaxed) {
            return Err(CloseReason::Lost);
        }
        // Perhaps before this end is open: the program may exit before the thread goes on that opens it.
        if self.lifecycle.closes(me, &self.watch, true) {
            self.ours().set_phase(EndPhase::Closed);
            self.wake_peer();
        }
        // Messages that were sent before the end are delivered first. What establishes this end is on the socket, which
        // may not have been read when the peer has sent messages and ended the connection.
        let may_end = match self.lifecycle.is_established() {
            true => me.receiving && !left,
            false => self.ended,
        };
        if may_end
            && let Some(down) = self.end(theirs)
            && self.lifecycle.peer_end_is_due(&self.watch)
        {
            return Err(down);
        }
        let can_take = self.can_take();
        if self.rx.starved || !can_take || !self.lifecycle.is_established() || !me.receiving {
            self.segment.next_cell.store(NO_CELL, Ordering::Relaxed);
        } else {
            self.segment.set_next(&self.rx.consumer);
        }
        // As for room, consumers that poll look whether the sender is done. Until then the message counts as none that
        // has arrived, which would be served again and again.
        let awaits_half = !can_take && self.rx.taking != Taking::Void;
        let blocked = self.tx.need.is_some() || awaits_half;
        self.segment.send_blocked.store(blocked, Ordering::Relaxed);
        Ok(awaits_half)
    }

    /// What the peer does from now on when it has something. Poll the rings after this.
    pub(crate) fn set_notify_mode(&mut self, notify_mode: NotifyMode) {
        self.notified.set_mode(&self.segment, notify_mode);
    }

    /// The socket is ready: the peer rang the doorbell, or the socket has ended.
    pub fn ready(
        &mut self,
        events: EventFlags,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let ends = events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let may_wait = self.lifecycle.is_established();
        let read = self.notified.read_doorbells(&self.watch, ends, may_wait);
        if read.any {
            self.lifecycle.message_arrived(me, up);
        }
        if read.ended {
            self.ended = true;
            let unwatched = self.watch.set(EventFlags::empty());
            return unwatched.map_err(|_| CloseReason::Lost);
        }
        Ok(())
    }
}

impl Drop for ShmConn {
    fn drop(&mut self) {
        // A thread that has found the connection in the poll set before finds nothing to do.
        self.segment.next_cell.store(NO_CELL, Ordering::Relaxed);
        self.segment.send_blocked.store(false, Ordering::Relaxed);
        let target: Arc<dyn PollEntry> = self.target.clone();
        self.watch.poll_set().remove(&target);
    }
}

impl ShmConn {
    /// Executes a request that was just posted, while none is queued before it. A request that
    /// waits is not executed, or not wholly.
    #[inline(always)]
    pub fn execute_now(&mut self, me: &QpState, transfer: &Transfer<'_>) -> Outcome {
        if self.lifecycle.is_closed() {
            return Outcome::Wait;
        }
        if self.writes.by_kernel && self.writes_later(transfer) {
            return Outcome::Wait;
        }
        // The error of a connection that is over shows again when the queue is worked on.
        self.execute(me, transfer).unwrap_or(Outcome::Wait)
    }

    /// Messages have arrived: delivers one, or all; true if one is complete. There is a short way for most of them.
    #[inline]
    pub fn messages_arrived<const ALL: bool>(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<bool, CloseReason> {
        if self.take_whole::<ALL>(me, guard, up) {
            return Ok(true);
        }
        let (budget, oldest) = (if ALL { Budget::All } else { Budget::One }, me.rq.head());
        self.run(budget, me, guard, up)?;
        Ok(me.rq.head() != oldest)
    }
}

impl Connection for ShmConn {
    type Reason = CloseReason;

    fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    fn overdue(what: Overdue) -> CloseReason {
        match what {
            Overdue::FirstMessage => CloseReason::Lost,
            Overdue::Receives => CloseReason::Late,
        }
    }

    fn failed_request(&self, me: &QpState, reason: &CloseReason) -> Option<(u64, WcStatus)> {
        match reason {
            CloseReason::Request(status) => Some((me.sq.head(), *status)),
            _ => None,
        }
    }

    fn quiesce(&mut self, me: &mut QpState, up: &mut Upcalls) {
        self.end_writes(me, up);
        self.end_bulk(me, up);
    }

    fn close(self, reason: &CloseReason) {
        self.ours().set_phase(match reason {
            CloseReason::Closed => EndPhase::Closed,
            _ => EndPhase::Broken,
        });
    }
}
