//! A connection through shared memory that carries data: what lies between the send and receive
//! queues of a queue pair and the rings.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::kernel;
use crate::kernel::net::{RecvFlags, SendFlags, sockopt};
use rustix::io::Errno;

use super::bulk::Taking;
use super::close_reason::CloseReason;
use super::coalesced_writes::CoalescedWrites;
use super::doorbell::WakeOn;
use super::grant::AccessGrant;
use super::mapped::promotion;
use super::ring::{Consumer, Kind, Producer};
use super::segment::{EndPhase, EndState, NO_CELL};
use super::socket::send_now;
use crate::device::WcStatus;
use crate::device::soft::engine::poll_set::{NotifyMode, PollEntry};
use crate::device::soft::engine::ready_bitmap::BitmapPlace;
use crate::device::soft::engine::{EventFlags, Source, Watch};
use crate::device::soft::event_order::SetupGuard;
use crate::device::soft::qp::link::Outcome;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::qp::work_queue::Transfer;
use crate::device::soft::transport::lifecycle::{Connection, Lifecycle, Overdue, Timed};
use crate::device::soft::upcalls::{Coalescer, Upcalls};
use crate::handle::Guard;

/// A connection as the engine knows it.
pub(crate) trait ShmTarget: Source + PollEntry + Timed + Coalescer {}

/// At least the room that one byte takes in the send buffer of a socket, in bytes.
const BYTE_ROOM: usize = 4096;
/// The most bytes of the doorbell that are left unread.
const MOST_UNREAD: u32 = 64;

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
    /// The response to an atomic operation.
    Response,
    /// The peer's consent to access its memory, which it gives when its consumer has the event of
    /// the connection.
    Consent,
}

/// How many of the messages that have arrived are delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Budget {
    /// None: the poll set delivers them in its turn.
    Nothing,
    /// One message.
    One,
    /// Everything that has a receive.
    All,
}

/// See the module.
pub(crate) struct ShmConn {
    pub(crate) segment: AccessGrant,
    /// The socket over which the connection was made. A byte on it wakes the peer, and its end is
    /// the end of the connection.
    pub(super) watch: Watch,
    pub(super) target: Arc<dyn ShmTarget>,
    lifecycle: Lifecycle,
    /// How the peer notifies this end.
    notify_mode: NotifyMode,
    /// Whether consumers that poll serve the connection: it is in the
    /// [`poll_set`](crate::device::soft::engine::poll_set).
    in_poll_set: bool,
    /// The number of the peer's sleep in which it was woken.
    woken_sleep: Cell<u32>,
    /// Times that the peer rang the doorbell and its byte was left unread.
    unread: u32,
    /// The key of the region that the peer has last asked to be moved to where it maps it.
    promoted: u32,
    /// How often that may be, so that the socket does not fill up.
    max_unread_doorbells: u32,
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    pub(super) writes: CoalescedWrites,
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
    /// Number of the cell in which an atomic operation was requested that has no response yet.
    pub atomic: Option<u64>,
    /// What it waits for.
    pub need: Option<SendWait>,
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
    /// Whether it waits for a receive.
    pub starved: bool,
}

impl ShmConn {
    /// For a connection on which both ends have agreed.
    pub fn new<T: ShmTarget + 'static>(
        watch: Watch,
        segment: AccessGrant,
        target: Arc<T>,
        linger: Duration,
    ) -> ShmConn {
        let room = sockopt::socket_send_buffer_size(&watch).unwrap_or(0);
        ShmConn {
            max_unread_doorbells: ((room / BYTE_ROOM) as u32).min(MOST_UNREAD),
            unread: 0,
            segment,
            watch,
            lifecycle: Lifecycle::new(target.clone(), linger),
            target,
            notify_mode: NotifyMode::Doorbell,
            in_poll_set: false,
            woken_sleep: Cell::new(0),
            promoted: 0,
            tx: Tx::default(),
            rx: Rx::default(),
            writes: CoalescedWrites::default(),
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
        self.ours().set_phase(EndPhase::Open);
        let notify_mode = self.watch.poll_set().add(self.target.clone());
        self.in_poll_set = notify_mode.is_some();
        self.set_notify_mode(notify_mode.unwrap_or(NotifyMode::Doorbell));
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
        self.lifecycle.is_established() && !over && self.notify_mode != NotifyMode::Doorbell
    }

    pub(crate) fn ours(&self) -> &EndState {
        self.segment.ours()
    }

    pub(crate) fn theirs(&self) -> &EndState {
        self.segment.theirs()
    }

    /// Wakes the peer. A socket that is full does already; one that is closed need not.
    #[cold]
    pub(super) fn wake_peer(&self) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = send_now(|| kernel::net::send(&self.watch, &[1], flags));
    }

    /// Notifies the peer in its notify mode: sets its ready bit, or wakes it if it sleeps and waits
    /// for this.
    #[inline(always)]
    pub(crate) fn notify_peer(&self, what: WakeOn) {
        if self.theirs().doorbell.is_due(what) {
            self.wake_peer();
        }
        let slot = self.theirs().bitmap_place();
        if slot != BitmapPlace::NONE {
            self.set_ready_bit(slot);
        }
    }

    /// Marks that there is something, and wakes the peer if that has to be.
    #[inline(never)]
    fn set_ready_bit(&self, slot: BitmapPlace) {
        if let Some(sleep) = self.segment.peer().bitmaps().set(slot)
            && self.woken_sleep.replace(sleep) != sleep
        {
            self.wake_peer();
        }
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
        let take = if self.in_poll_set { take } else { Budget::All };
        let promotion = self.theirs().promotion();
        if promotion != self.promoted && promotion::request(promotion, self.ours().scope().pd) {
            self.promoted = promotion;
        }
        loop {
            // Before the ring is read: what the peer has sent before its phase changed is there.
            let theirs = self.theirs().phase();
            self.over = self.ended || !matches!(theirs, EndPhase::Fresh | EndPhase::Open);
            if self.lifecycle.is_established() {
                if me.receiving && take != Budget::Nothing {
                    self.drain(take, me, guard, up)?;
                }
                if !self.lifecycle.is_closed() {
                    self.pump(me, guard, up)?;
                }
            }
            let left = self.has_message(me.receiving)?;
            self.settle(me, theirs, left)?;
            if left || self.notify_mode != NotifyMode::Doorbell {
                return Ok(());
            }
            let mut wants = WakeOn::CELLS;
            wants.set(WakeOn::ROOM, self.tx.need.is_some());
            self.ours().doorbell.arm(wants);
            if !self.has_work(take, me.receiving)? {
                return Ok(());
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
    /// of the peer before the ring was read, in which messages are `left` or not.
    fn settle(
        &mut self,
        me: &mut QpState,
        theirs: EndPhase,
        left: bool,
    ) -> Result<(), CloseReason> {
        if self.segment.peer_stuck.load(Ordering::Relaxed) {
            return Err(CloseReason::Lost);
        }
        // Not before this end is open: its phases follow each other.
        if self.lifecycle.closes(me, &self.watch, me.receiving) {
            self.ours().set_phase(EndPhase::Closed);
            self.wake_peer();
        }
        // Messages that were sent before the end are delivered first.
        if !left
            && (me.receiving || !self.lifecycle.is_established())
            && let Some(down) = self.end(theirs)
            && self.lifecycle.peer_end_is_due(&self.watch)
        {
            return Err(down);
        }
        if self.rx.starved || !self.lifecycle.is_established() || !me.receiving {
            self.segment.next_cell.store(NO_CELL, Ordering::Relaxed);
        } else {
            self.segment.set_next(&self.rx.consumer);
        }
        let blocked = self.tx.need.is_some();
        self.segment.send_blocked.store(blocked, Ordering::Relaxed);
        Ok(())
    }

    /// What the peer does from now on when it has something. PollOutcome at the rings after this.
    pub(crate) fn set_notify_mode(&mut self, notify_mode: NotifyMode) {
        let slot = match notify_mode {
            NotifyMode::Bitmap(slot) => slot,
            NotifyMode::Doorbell | NotifyMode::Polled => BitmapPlace::NONE,
        };
        if slot != self.ours().bitmap_place() {
            self.ours().set_bitmap_place(slot);
        }
        self.notify_mode = notify_mode;
        if notify_mode != NotifyMode::Doorbell {
            self.ours().doorbell.disarm();
        }
    }

    /// The socket is ready: the peer rang the doorbell, or the socket has ended.
    pub fn ready(
        &mut self,
        events: EventFlags,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let ends = events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        // The byte carries no data, and epoll reports the next one in any case.
        if self.lifecycle.is_established() && !ends && self.unread < self.max_unread_doorbells {
            self.unread += 1;
            return Ok(());
        }
        self.unread = 0;
        let mut bytes = [0u8; 256];
        loop {
            match kernel::net::recv(&self.watch, &mut bytes, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Ok((_, n)) if n > 0 => {
                    self.lifecycle.message_arrived(me, up);
                    if n < bytes.len() && !ends {
                        return Ok(());
                    }
                }
                // A socket that the peer has closed with bytes unread returns an error.
                _ => {
                    self.ended = true;
                    return self
                        .watch
                        .set(EventFlags::empty())
                        .map_err(|_| CloseReason::Lost);
                }
            }
        }
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

    /// Messages have arrived: delivers one, or all. There is a short way for most of them.
    #[inline]
    pub fn messages_arrived<const ALL: bool>(
        &mut self,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        if self.take_whole::<ALL>(me, guard, up) {
            return Ok(());
        }
        let budget = if ALL { Budget::All } else { Budget::One };
        self.run(budget, me, guard, up)
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
        self.end_bulk(me, up);
    }

    fn close(self, reason: CloseReason) {
        self.ours().set_phase(match reason {
            CloseReason::Closed => EndPhase::Closed,
            _ => EndPhase::Broken,
        });
    }
}
