//! A connection through shared memory that carries data: what lies between the send and receive
//! queues of a queue pair and the rings.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::close_reason::CloseReason;
use super::doorbell::WakeOn;
use super::grant::AccessGrant;
use super::poll_target::PollTarget;
use super::ring::{Consumer, Producer};
use super::segment::{EndPhase, EndState, NOTHING};
use crate::device::soft::engine::event_order::SetupGuard;
use crate::device::soft::engine::poll_set::{NotifyMode, PollEntry};
use crate::device::soft::engine::ready_bitmap::BitmapPlace;
use crate::device::soft::engine::rounds::LastServed;
use crate::device::soft::engine::{EventFlags, Watch};
use crate::device::soft::qp::QpPlace;
use crate::device::soft::qp::ops::{Link, LockedQp};
use crate::device::soft::qp::state::{Phase, QpState};
use crate::device::soft::qp::work_queue::Transfer;
use crate::device::soft::transport::close_timers::{CloseTimers, RTR_TIMEOUT};
use crate::device::soft::transport::loopback::Outcome;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{CmEvent, WcStatus};
use crate::handle::Guard;
use crate::handle::pin::pin;

/// A byte in a socket takes less room than that.
const BYTE_ROOM: usize = 4096;
/// The most bytes that are left unread.
const MOST_UNREAD: u32 = 64;

/// What a message waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendWait {
    Cell,
    /// Room for a chunk of so many bytes.
    Bytes(usize),
    /// The peer's consent to reach its memory, which it gives when its consumer was told of the
    /// connection.
    Consent,
}

/// How much of what has come goes to the consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Budget {
    /// Nothing: whoever looks at the connections in turn will take it.
    Nothing,
    /// One message.
    One,
    /// Everything that has a receive.
    All,
}

/// See the module.
pub(crate) struct ShmConn {
    pub(crate) segment: AccessGrant,
    /// The socket over which the connection was made. Now a byte on it wakes the peer, and its
    /// end is the end of the connection.
    watch: Watch,
    target: Arc<PollTarget>,
    /// We accepted, and the connection is not established before the first byte has come.
    awaiting_rtr: Option<SetupGuard>,
    /// How we hear of the peer.
    notify_mode: NotifyMode,
    /// Others look whether something has come: see [`PollSet`](crate::device::soft::engine::poll_set).
    in_poll_set: bool,
    /// The sleep of the peer in which we have rung.
    woken_sleep: Cell<u32>,
    /// Times that the peer rang and the bytes were left unread, and how many there may be before
    /// the socket is full.
    unread: u32,
    max_unread_doorbells: u32,
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    /// The socket has ended: the peer has let go of the connection, or has died.
    ended: bool,
    /// That, or the peer has said that it ends the connection.
    over: bool,
    /// We have ended the connection gracefully and send nothing more.
    closed: bool,
    /// How long the peer may take then to receive what was sent.
    linger: Duration,
    ending: CloseTimers,
}

/// The sending half.
#[derive(Default)]
pub(crate) struct Tx {
    pub producer: Producer,
    /// Bytes of the oldest request that are in the ring.
    pub sent: u32,
    /// The key that it takes away is.
    pub announced: bool,
    /// It waits.
    pub need: Option<SendWait>,
    /// Counts visits to the peer's memory.
    pub visits: u64,
}

/// The receiving half.
#[derive(Default)]
pub(crate) struct Rx {
    pub consumer: Consumer,
    /// Bytes that have come of the message.
    pub offset: u32,
    /// The key that it takes away.
    pub invalidate: Option<u32>,
    /// It has no receive.
    pub starved: bool,
}

impl ShmConn {
    /// For a connection that was agreed on.
    pub fn new(
        watch: Watch,
        segment: AccessGrant,
        place: Arc<QpPlace>,
        linger: Duration,
    ) -> ShmConn {
        let target = PollTarget {
            place,
            segment: segment.segment().clone(),
            last_served: LastServed::default(),
        };
        let room = sockopt::socket_send_buffer_size(&watch).unwrap_or(0);
        ShmConn {
            max_unread_doorbells: ((room / BYTE_ROOM) as u32).min(MOST_UNREAD),
            unread: 0,
            segment,
            watch,
            target: Arc::new(target),
            awaiting_rtr: None,
            notify_mode: NotifyMode::Doorbell,
            in_poll_set: false,
            woken_sleep: Cell::new(0),
            tx: Tx::default(),
            rx: Rx::default(),
            ended: false,
            over: false,
            closed: false,
            linger,
            ending: CloseTimers::default(),
        }
    }

    /// Puts it to work. `me` is connecting.
    pub fn start(
        mut self,
        initiator: bool,
        me: &mut QpState,
        link: &mut Link,
        (private_data, handshake): (Box<[u8]>, SetupGuard),
        guard: &Guard,
        up: &mut Upcalls,
    ) {
        self.watch.redirect(self.target.clone());
        if initiator {
            self.ring();
            me.establish(private_data, Some(handshake), up);
        } else {
            self.awaiting_rtr = Some(handshake);
            self.limit(RTR_TIMEOUT, CloseReason::Lost);
        }
        *link = Link::Shm(Box::new(self));
        service(Budget::Nothing, me, link, guard, up, |conn, _| {
            let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
            conn.watch.set(events).map_err(|_| CloseReason::Lost)
        });
    }

    /// The consumer was told of the connection: the peer may reach our memory, and consumers that
    /// poll look at the ring.
    fn open(&mut self) {
        self.ours().set_state(EndPhase::Open);
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

    /// Whether it is connected, as far as is known, and consumers see to it.
    #[inline]
    pub(super) fn is_awake(&self) -> bool {
        let over = self.over || self.segment.given_up.load(Ordering::Relaxed);
        self.awaiting_rtr.is_none() && !over && self.notify_mode != NotifyMode::Doorbell
    }

    pub(crate) fn ours(&self) -> &EndState {
        self.segment.ours()
    }

    pub(crate) fn theirs(&self) -> &EndState {
        self.segment.theirs()
    }

    /// Wakes the peer. A socket that is full does already; one that is closed need not.
    #[cold]
    fn ring(&self) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = rustix::net::send(&self.watch, &[1], flags);
    }

    /// Wakes the peer if it sleeps and wants to know.
    #[inline(always)]
    pub(crate) fn notify_peer(&self, what: WakeOn) {
        if self.theirs().doorbell.is_due(what) {
            self.ring();
        }
        let slot = self.theirs().slot();
        if slot != BitmapPlace::NONE {
            self.mark(slot);
        }
    }

    /// Marks that there is something, and wakes the peer if that has to be.
    #[inline(never)]
    fn mark(&self, slot: BitmapPlace) {
        if let Some(sleep) = self.segment.peer().bitmaps().mark(slot)
            && self.woken_sleep.replace(sleep) != sleep
        {
            self.ring();
        }
    }

    /// Ends the connection with `down` after a while, unless it has gone on by then.
    fn limit(&mut self, delay: Duration, down: CloseReason) {
        let target = self.target.clone();
        self.ending.limit(&self.watch, delay, move |up| {
            target.with(&pin(), |locked| take_down(locked.me, locked.link, down, up));
        });
    }

    /// The consumer ends the connection at once.
    pub fn abort(&self) {
        self.ours().set_state(EndPhase::Aborted);
    }

    /// Whether the end of the connection takes effect; otherwise it is looked at again.
    fn is_over(&mut self) -> bool {
        // Not up itself: nobody waits for this end, and others wait for this beginning.
        if self.awaiting_rtr.is_some() {
            return true;
        }
        let target = self.target.clone();
        let look = move |up: &mut Upcalls| target.deliver(true, &pin(), up);
        self.ending.is_over(&self.watch, look)
    }

    /// Does all that can be done, but for messages that are not to be taken, and goes to sleep if
    /// no consumer polls and nothing is left.
    fn run(
        &mut self,
        take: Budget,
        me: &mut QpState,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let take = if self.in_poll_set { take } else { Budget::All };
        loop {
            // Before the ring: what the peer sent before it said so is there.
            let theirs = self.theirs().state();
            self.over = self.ended || !matches!(theirs, EndPhase::Fresh | EndPhase::Open);
            if self.awaiting_rtr.is_none() {
                if me.receiving && take != Budget::Nothing {
                    self.drain(take, me, guard, up)?;
                }
                if !self.closed {
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
        let ready = self.awaiting_rtr.is_none() && receiving && !self.rx.starved;
        Ok(ready && self.rx.consumer.peek(self.segment.incoming())?.is_some())
    }

    /// Whether something came while we went to sleep that is to be done now.
    fn has_work(&mut self, take: Budget, receiving: bool) -> Result<bool, CloseReason> {
        if self.awaiting_rtr.is_some() {
            return Ok(false);
        }
        let is_peer_done = take == Budget::All && self.has_message(receiving)?;
        Ok(is_peer_done || !self.closed && self.tx.has_room(&self.segment)?)
    }

    /// How the connection ends, if the peer has ended it.
    fn end(&mut self, theirs: EndPhase) -> Option<CloseReason> {
        match theirs {
            EndPhase::Aborted => Some(CloseReason::Closed),
            EndPhase::Broken => Some(CloseReason::Lost),
            // Messages wait for receives, unless our consumer has ended the connection too.
            EndPhase::Closed if self.rx.starved && !self.closed => {
                self.limit(self.linger, CloseReason::Late);
                None
            }
            EndPhase::Closed => Some(CloseReason::Closed),
            EndPhase::Fresh | EndPhase::Open => self.ended.then_some(CloseReason::Lost),
        }
    }

    /// Draws the conclusions from what has changed. `theirs` is what the peer said before the
    /// ring was looked at, in which messages are `left` or not.
    fn settle(
        &mut self,
        me: &mut QpState,
        theirs: EndPhase,
        left: bool,
    ) -> Result<(), CloseReason> {
        if self.segment.given_up.load(Ordering::Relaxed) {
            return Err(CloseReason::Lost);
        }
        if me.phase == Phase::Closing {
            self.limit(self.linger, CloseReason::Late);
            // Not before our side is open: the word says one after the other.
            if me.receiving && me.close_at == Some(me.sq.head()) && !self.closed {
                self.closed = true;
                self.ours().set_state(EndPhase::Closed);
                self.ring();
            }
        }
        // What came before the end is to be delivered first.
        if !left
            && (me.receiving || self.awaiting_rtr.is_some())
            && let Some(down) = self.end(theirs)
            && self.is_over()
        {
            return Err(down);
        }
        if self.rx.starved || self.awaiting_rtr.is_some() || !me.receiving {
            self.segment.next.store(NOTHING, Ordering::Relaxed);
        } else {
            self.segment.expect(&self.rx.consumer);
        }
        let blocked = self.tx.need.is_some();
        self.segment.blocked.store(blocked, Ordering::Relaxed);
        Ok(())
    }

    /// What the peer does from now on when it has something. Look at the rings after this.
    pub(crate) fn set_notify_mode(&mut self, notify_mode: NotifyMode) {
        let slot = match notify_mode {
            NotifyMode::Bitmap(slot) => slot,
            NotifyMode::Doorbell | NotifyMode::Polled => BitmapPlace::NONE,
        };
        if slot != self.ours().slot() {
            self.ours().set_slot(slot);
        }
        self.notify_mode = notify_mode;
        if notify_mode != NotifyMode::Doorbell {
            self.ours().doorbell.disarm();
        }
    }

    /// The socket is ready: somebody rang, or it has ended.
    pub(crate) fn ready(
        &mut self,
        events: EventFlags,
        me: &mut QpState,
        up: &mut Upcalls,
    ) -> Result<(), CloseReason> {
        let ends = events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        // That it rang is all there is to a byte; the watch tells of the next one in any case.
        if self.awaiting_rtr.is_none() && !ends && self.unread < self.max_unread_doorbells {
            self.unread += 1;
            return Ok(());
        }
        self.unread = 0;
        let mut bytes = [0u8; 256];
        loop {
            match rustix::net::recv(&self.watch, &mut bytes, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Ok((_, n)) if n > 0 => {
                    if let Some(handshake) = self.awaiting_rtr.take() {
                        self.ending.cancel_limit();
                        me.establish(Box::default(), Some(handshake), up);
                    }
                    if n < bytes.len() && !ends {
                        return Ok(());
                    }
                }
                // A socket that was closed with bells unread says so as an error.
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
        // Whoever has found the line before finds nothing there.
        self.segment.next.store(NOTHING, Ordering::Relaxed);
        self.segment.blocked.store(false, Ordering::Relaxed);
        let target: Arc<dyn PollEntry> = self.target.clone();
        self.watch.poll_set().remove(&target);
    }
}

/// Works on the pipe of `link`, then does what can be done, and ends the connection if that is
/// how it goes.
pub(crate) fn service(
    take: Budget,
    me: &mut QpState,
    link: &mut Link,
    guard: &Guard,
    up: &mut Upcalls,
    work: impl FnOnce(&mut ShmConn, (&mut QpState, &mut Upcalls)) -> Result<(), CloseReason>,
) {
    let Link::Shm(conn) = link else {
        return;
    };
    let result = work(conn, (me, up)).and_then(|()| conn.run(take, me, guard, up));
    if let Err(down) = result {
        take_down(me, link, down, up);
    }
}

/// Executes a request that was just posted and is the only one. If it waits, it is not, or not
/// wholly, executed.
#[inline(always)]
pub(crate) fn execute(me: &QpState, conn: &mut ShmConn, transfer: &Transfer<'_>) -> Outcome {
    if conn.closed {
        return Outcome::Wait;
    }
    // Whatever an error was shows once more.
    conn.execute(me, transfer).unwrap_or(Outcome::Wait)
}

/// A request that was executed at once has failed: the connection is broken.
pub(crate) fn fail(me: &mut QpState, link: &mut Link, status: WcStatus, up: &mut Upcalls) {
    take_down(me, link, CloseReason::Executed(status), up);
}

/// Something came: for most of it there is a short way.
#[inline]
pub(crate) fn is_peer_done<const ALL: bool>(locked: &mut LockedQp<'_>, up: &mut Upcalls) {
    if let Link::Shm(conn) = locked.link
        && conn.take_whole::<ALL>(locked.me, locked.guard, up)
    {
        return;
    }
    let take = if ALL { Budget::All } else { Budget::One };
    service(
        take,
        locked.me,
        locked.link,
        locked.guard,
        up,
        |_, _| Ok(()),
    );
}

/// A request that was executed in part cannot be queued: there is no way on.
#[cold]
pub(crate) fn tear(me: &mut QpState, link: &mut Link, up: &mut Upcalls) {
    if matches!(link, Link::Shm(conn) if conn.tx.sent > 0 || conn.tx.announced) {
        take_down(me, link, CloseReason::Fault, up);
    }
}

/// A request was posted, or a graceful end.
pub(crate) fn posted_send(me: &mut QpState, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    service(Budget::Nothing, me, link, guard, up, |_, _| Ok(()));
}

/// The consumer was told of the connection.
pub(crate) fn start_receiving(me: &mut QpState, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    service(Budget::Nothing, me, link, guard, up, |conn, _| {
        conn.open();
        Ok(())
    });
}

/// A receive was posted.
pub(crate) fn posted_recv(me: &mut QpState, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    if matches!(link, Link::Shm(conn) if conn.rx.starved) {
        service(Budget::All, me, link, guard, up, |_, _| Ok(()));
    }
}

/// Ends the connection.
fn take_down(me: &mut QpState, link: &mut Link, down: CloseReason, up: &mut Upcalls) {
    let Link::Shm(conn) = std::mem::take(link) else {
        return;
    };
    let (event, state) = match down {
        CloseReason::Closed => (CmEvent::Disconnected, EndPhase::Closed),
        CloseReason::Lost | CloseReason::Late | CloseReason::Fault | CloseReason::Executed(_) => {
            (CmEvent::Broken, EndPhase::Broken)
        }
        CloseReason::Request(status) => {
            me.fail_request(me.sq.head(), status, up);
            (CmEvent::Broken, EndPhase::Broken)
        }
    };
    let event = if conn.awaiting_rtr.is_some() {
        CmEvent::AcceptError
    } else {
        event
    };
    me.end(event, &down, up);
    conn.ours().set_state(state);
}
