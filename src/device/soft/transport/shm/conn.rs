//! A connection through shared memory that carries data: what lies between the send and receive
//! queues of a queue pair and the rings.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::close_reason::Down;
use super::doorbell::Wants;
use super::grant::Opened;
use super::poll_target::Line;
use super::ready_bitmap_file::Slot;
use super::ring::{Consumer, Producer};
use super::segment::{Half, NOTHING, State};
use crate::device::soft::engine::event_order::Handshake;
use crate::device::soft::engine::poll_set::{Manner, Polled};
use crate::device::soft::engine::rounds::LastTurn;
use crate::device::soft::engine::{EventFlags, Watch};
use crate::device::soft::qp::Seat;
use crate::device::soft::qp::ops::{Link, View};
use crate::device::soft::qp::state::{Phase, Side};
use crate::device::soft::qp::work_queue::Transfer;
use crate::device::soft::transport::close_timers::{Ending, HANDSHAKE};
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
pub(crate) enum Need {
    Cell,
    /// Room for a chunk of so many bytes.
    Bytes(usize),
    /// The peer's consent to reach its memory, which it gives when its consumer was told of the
    /// connection.
    Consent,
}

/// How much of what has come goes to the consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Take {
    /// Nothing: whoever looks at the connections in turn will take it.
    Nothing,
    /// One message.
    One,
    /// Everything that has a receive.
    All,
}

/// See the module.
pub(crate) struct Pipe {
    pub(crate) wire: Opened,
    /// The socket over which the connection was made. Now a byte on it wakes the peer, and its
    /// end is the end of the connection.
    watch: Watch,
    line: Arc<Line>,
    /// We accepted, and the connection is not established before the first byte has come.
    waits: Option<Handshake>,
    /// How we hear of the peer.
    manner: Manner,
    /// Others look whether something has come: see [`PolledSet`](crate::device::soft::engine::poll_set).
    listed: bool,
    /// The sleep of the peer in which we have rung.
    rung: Cell<u32>,
    /// Times that the peer rang and the bytes were left unread, and how many there may be before
    /// the socket is full.
    unread: u32,
    patience: u32,
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
    ending: Ending,
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
    pub need: Option<Need>,
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

impl Pipe {
    /// For a connection that was agreed on.
    pub fn new(watch: Watch, wire: Opened, seat: Arc<Seat>, linger: Duration) -> Pipe {
        let line = Line {
            seat,
            wire: wire.wire().clone(),
            last_turn: LastTurn::default(),
        };
        let room = sockopt::socket_send_buffer_size(&watch).unwrap_or(0);
        Pipe {
            patience: ((room / BYTE_ROOM) as u32).min(MOST_UNREAD),
            unread: 0,
            wire,
            watch,
            line: Arc::new(line),
            waits: None,
            manner: Manner::Asleep,
            listed: false,
            rung: Cell::new(0),
            tx: Tx::default(),
            rx: Rx::default(),
            ended: false,
            over: false,
            closed: false,
            linger,
            ending: Ending::default(),
        }
    }

    /// Puts it to work. `me` is connecting.
    pub fn start(
        mut self,
        initiator: bool,
        me: &mut Side,
        link: &mut Link,
        (private_data, handshake): (Box<[u8]>, Handshake),
        guard: &Guard,
        up: &mut Upcalls,
    ) {
        self.watch.redirect(self.line.clone());
        if initiator {
            self.ring();
            me.establish(private_data, Some(handshake), up);
        } else {
            self.waits = Some(handshake);
            self.limit(HANDSHAKE, Down::Lost);
        }
        *link = Link::Shm(Box::new(self));
        service(Take::Nothing, me, link, guard, up, |pipe, _| {
            let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
            pipe.watch.set(events).map_err(|_| Down::Lost)
        });
    }

    /// The consumer was told of the connection: the peer may reach our memory, and consumers that
    /// poll look at the ring.
    fn open(&mut self) {
        self.ours().set_state(State::Open);
        let manner = self.watch.polled().add(self.line.clone());
        self.listed = manner.is_some();
        self.set_manner(manner.unwrap_or(Manner::Asleep));
        self.tell(Wants::ROOM);
    }

    /// Whether a message waits for a receive.
    #[inline]
    pub fn is_starved(&self) -> bool {
        self.rx.starved
    }

    /// Whether it is connected, as far as is known, and consumers see to it.
    #[inline]
    pub(super) fn is_awake(&self) -> bool {
        let over = self.over || self.wire.given_up.load(Ordering::Relaxed);
        self.waits.is_none() && !over && self.manner != Manner::Asleep
    }

    pub(crate) fn ours(&self) -> &Half {
        self.wire.ours()
    }

    pub(crate) fn theirs(&self) -> &Half {
        self.wire.theirs()
    }

    /// Wakes the peer. A socket that is full does already; one that is closed need not.
    #[cold]
    fn ring(&self) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = rustix::net::send(&self.watch, &[1], flags);
    }

    /// Wakes the peer if it sleeps and wants to know.
    #[inline(always)]
    pub(crate) fn tell(&self, what: Wants) {
        if self.theirs().bell.is_due(what) {
            self.ring();
        }
        let slot = self.theirs().slot();
        if slot != Slot::NONE {
            self.mark(slot);
        }
    }

    /// Marks that there is something, and wakes the peer if that has to be.
    #[inline(never)]
    fn mark(&self, slot: Slot) {
        if let Some(sleep) = self.wire.peer().boards().mark(slot)
            && self.rung.replace(sleep) != sleep
        {
            self.ring();
        }
    }

    /// Ends the connection with `down` after a while, unless it has gone on by then.
    fn limit(&mut self, delay: Duration, down: Down) {
        let line = self.line.clone();
        self.ending.limit(&self.watch, delay, move |up| {
            line.with(&pin(), |v| take_down(v.me, v.link, down, up));
        });
    }

    /// The consumer ends the connection at once.
    pub fn abort(&self) {
        self.ours().set_state(State::Aborted);
    }

    /// Whether the end of the connection takes effect; otherwise it is looked at again.
    fn is_over(&mut self) -> bool {
        // Not up itself: nobody waits for this end, and others wait for this beginning.
        if self.waits.is_some() {
            return true;
        }
        let line = self.line.clone();
        let look = move |up: &mut Upcalls| line.take(true, &pin(), up);
        self.ending.is_over(&self.watch, look)
    }

    /// Does all that can be done, but for messages that are not to be taken, and goes to sleep if
    /// no consumer polls and nothing is left.
    fn run(
        &mut self,
        take: Take,
        me: &mut Side,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Result<(), Down> {
        let take = if self.listed { take } else { Take::All };
        loop {
            // Before the ring: what the peer sent before it said so is there.
            let theirs = self.theirs().state();
            self.over = self.ended || !matches!(theirs, State::Fresh | State::Open);
            if self.waits.is_none() {
                if me.told && take != Take::Nothing {
                    self.drain(take, me, guard, up)?;
                }
                if !self.closed {
                    self.pump(me, guard, up)?;
                }
            }
            let left = self.has_message(me.told)?;
            self.settle(me, theirs, left)?;
            if left || self.manner != Manner::Asleep {
                return Ok(());
            }
            let mut wants = Wants::CELLS;
            wants.set(Wants::ROOM, self.tx.need.is_some());
            self.ours().bell.arm(wants);
            if !self.has_work(take, me.told)? {
                return Ok(());
            }
        }
    }

    /// Whether there is a message that could be taken.
    fn has_message(&self, told: bool) -> Result<bool, Down> {
        let ready = self.waits.is_none() && told && !self.rx.starved;
        Ok(ready && self.rx.consumer.peek(self.wire.incoming())?.is_some())
    }

    /// Whether something came while we went to sleep that is to be done now.
    fn has_work(&mut self, take: Take, told: bool) -> Result<bool, Down> {
        if self.waits.is_some() {
            return Ok(false);
        }
        let came = take == Take::All && self.has_message(told)?;
        Ok(came || !self.closed && self.tx.has_room(&self.wire)?)
    }

    /// How the connection ends, if the peer has ended it.
    fn end(&mut self, theirs: State) -> Option<Down> {
        match theirs {
            State::Aborted => Some(Down::Closed),
            State::Broken => Some(Down::Lost),
            // Messages wait for receives, unless our consumer has ended the connection too.
            State::Closed if self.rx.starved && !self.closed => {
                self.limit(self.linger, Down::Late);
                None
            }
            State::Closed => Some(Down::Closed),
            State::Fresh | State::Open => self.ended.then_some(Down::Lost),
        }
    }

    /// Draws the conclusions from what has changed. `theirs` is what the peer said before the
    /// ring was looked at, in which messages are `left` or not.
    fn settle(&mut self, me: &mut Side, theirs: State, left: bool) -> Result<(), Down> {
        if self.wire.given_up.load(Ordering::Relaxed) {
            return Err(Down::Lost);
        }
        if me.phase == Phase::Closing {
            self.limit(self.linger, Down::Late);
            // Not before our side is open: the word says one after the other.
            if me.told && me.close_at == Some(me.sq.head()) && !self.closed {
                self.closed = true;
                self.ours().set_state(State::Closed);
                self.ring();
            }
        }
        // What came before the end is to be delivered first.
        if !left
            && (me.told || self.waits.is_some())
            && let Some(down) = self.end(theirs)
            && self.is_over()
        {
            return Err(down);
        }
        if self.rx.starved || self.waits.is_some() || !me.told {
            self.wire.next.store(NOTHING, Ordering::Relaxed);
        } else {
            self.wire.expect(&self.rx.consumer);
        }
        let blocked = self.tx.need.is_some();
        self.wire.blocked.store(blocked, Ordering::Relaxed);
        Ok(())
    }

    /// What the peer does from now on when it has something. Look at the rings after this.
    pub(crate) fn set_manner(&mut self, manner: Manner) {
        let slot = match manner {
            Manner::Marked(slot) => slot,
            Manner::Asleep | Manner::Seen => Slot::NONE,
        };
        if slot != self.ours().slot() {
            self.ours().set_slot(slot);
        }
        self.manner = manner;
        if manner != Manner::Asleep {
            self.ours().bell.disarm();
        }
    }

    /// The socket is ready: somebody rang, or it has ended.
    pub(crate) fn ready(
        &mut self,
        events: EventFlags,
        me: &mut Side,
        up: &mut Upcalls,
    ) -> Result<(), Down> {
        let ends = events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        // That it rang is all there is to a byte; the watch tells of the next one in any case.
        if self.waits.is_none() && !ends && self.unread < self.patience {
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
                    if let Some(handshake) = self.waits.take() {
                        self.ending.gone_on();
                        me.establish(Box::default(), Some(handshake), up);
                    }
                    if n < bytes.len() && !ends {
                        return Ok(());
                    }
                }
                // A socket that was closed with bells unread says so as an error.
                _ => {
                    self.ended = true;
                    return self.watch.set(EventFlags::empty()).map_err(|_| Down::Lost);
                }
            }
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // Whoever has found the line before finds nothing there.
        self.wire.next.store(NOTHING, Ordering::Relaxed);
        self.wire.blocked.store(false, Ordering::Relaxed);
        let line: Arc<dyn Polled> = self.line.clone();
        self.watch.polled().remove(&line);
    }
}

/// Works on the pipe of `link`, then does what can be done, and ends the connection if that is
/// how it goes.
pub(crate) fn service(
    take: Take,
    me: &mut Side,
    link: &mut Link,
    guard: &Guard,
    up: &mut Upcalls,
    work: impl FnOnce(&mut Pipe, (&mut Side, &mut Upcalls)) -> Result<(), Down>,
) {
    let Link::Shm(pipe) = link else {
        return;
    };
    let result = work(pipe, (me, up)).and_then(|()| pipe.run(take, me, guard, up));
    if let Err(down) = result {
        take_down(me, link, down, up);
    }
}

/// Executes a request that was just posted and is the only one. If it waits, it is not, or not
/// wholly, executed.
#[inline(always)]
pub(crate) fn execute(me: &Side, pipe: &mut Pipe, transfer: &Transfer<'_>) -> Outcome {
    if pipe.closed {
        return Outcome::Wait;
    }
    // Whatever an error was shows once more.
    pipe.execute(me, transfer).unwrap_or(Outcome::Wait)
}

/// A request that was executed at once has failed: the connection is broken.
pub(crate) fn fail(me: &mut Side, link: &mut Link, status: WcStatus, up: &mut Upcalls) {
    take_down(me, link, Down::Executed(status), up);
}

/// Something came: for most of it there is a short way.
#[inline]
pub(crate) fn came<const ALL: bool>(v: &mut View<'_>, up: &mut Upcalls) {
    if let Link::Shm(pipe) = v.link
        && pipe.take_whole::<ALL>(v.me, v.guard, up)
    {
        return;
    }
    let take = if ALL { Take::All } else { Take::One };
    service(take, v.me, v.link, v.guard, up, |_, _| Ok(()));
}

/// A request that was executed in part cannot be queued: there is no way on.
#[cold]
pub(crate) fn tear(me: &mut Side, link: &mut Link, up: &mut Upcalls) {
    if matches!(link, Link::Shm(pipe) if pipe.tx.sent > 0 || pipe.tx.announced) {
        take_down(me, link, Down::Fault, up);
    }
}

/// A request was posted, or a graceful end.
pub(crate) fn posted_send(me: &mut Side, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    service(Take::Nothing, me, link, guard, up, |_, _| Ok(()));
}

/// The consumer was told of the connection.
pub(crate) fn start_receiving(me: &mut Side, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    service(Take::Nothing, me, link, guard, up, |pipe, _| {
        pipe.open();
        Ok(())
    });
}

/// A receive was posted.
pub(crate) fn posted_recv(me: &mut Side, link: &mut Link, guard: &Guard, up: &mut Upcalls) {
    if matches!(link, Link::Shm(pipe) if pipe.rx.starved) {
        service(Take::All, me, link, guard, up, |_, _| Ok(()));
    }
}

/// Ends the connection.
fn take_down(me: &mut Side, link: &mut Link, down: Down, up: &mut Upcalls) {
    let Link::Shm(pipe) = std::mem::take(link) else {
        return;
    };
    let (event, state) = match down {
        Down::Closed => (CmEvent::Disconnected, State::Closed),
        Down::Lost | Down::Late | Down::Fault | Down::Executed(_) => {
            (CmEvent::Broken, State::Broken)
        }
        Down::Request(status) => {
            me.fail_request(me.sq.head(), status, up);
            (CmEvent::Broken, State::Broken)
        }
    };
    let event = if pipe.waits.is_some() {
        CmEvent::AcceptError
    } else {
        event
    };
    me.end(event, &down, up);
    pipe.ours().set_state(state);
}
