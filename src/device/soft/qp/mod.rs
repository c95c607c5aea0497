//! Queue pairs.
//!
//! The state of a queue pair ([`Side`]) sits in a [`Lane`] and is guarded by its lock. A queue
//! pair alone, or with its peer in another process, has a lane of its own; two queue pairs that
//! are connected within the process share one, so that one lock covers a transfer. Where a
//! queue pair sits ([`Seat`]) changes when it is connected or reset.

pub(crate) mod deliver;
pub(crate) mod ops;
pub(crate) mod srq;
pub(crate) mod state;
pub(super) mod work_queue;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use self::ops::{Link, Pending, View};
use self::srq::Turn;
use self::state::{Identity, Phase, Side};
use super::Soft;
use super::cm::connector::Dial;
use super::cm::failure::Trouble;
use super::cm::socket;
use super::engine::event_order::Handshake;
use super::engine::{Timer, Watch};
use super::iwarp::mpa::Agreed;
use super::transport::shm::{Opened, Pipe};
use super::transport::tcp::{self, Stream};
use super::upcalls::{Events, Upcalls};
use crate::device::connection_log::{self, Cause, GIVEN_UP, LogEntry, Outcome, Path};
use crate::device::{BindWr, CmEvent, DeviceError, PostError, QpAttr, QueuePair, RecvWr, SendWr};
use crate::handle::pin::pin;
use crate::handle::{Biased, Guard, Held, Shared};

/// What the lock of a lane guards.
#[derive(Default)]
pub(super) struct LaneState {
    sides: [Option<Box<Side>>; 2],
    pub link: Link,
}

/// See the module.
pub(super) struct Lane {
    state: Biased<LaneState>,
}

impl Lane {
    /// Empty.
    fn new() -> Lane {
        Lane {
            state: Biased::new(LaneState::default()),
        }
    }
}

/// Where a queue pair sits.
pub(crate) struct Seat {
    lane: Arc<Lane>,
    index: usize,
}

impl Seat {
    /// Takes the lock.
    #[inline(always)]
    pub fn lock<'a>(&'a self, guard: &'a Guard) -> Seated<'a> {
        Seated {
            state: self.lane.state.lock_as(guard.thread()),
            index: self.index,
            guard,
        }
    }
}

/// The lock of a queue pair, or of a seat that it has left.
pub(crate) struct Seated<'a> {
    state: Held<'a, LaneState>,
    index: usize,
    guard: &'a Guard,
}

impl Seated<'_> {
    /// What the lock guards; nothing if the queue pair has left.
    #[inline(always)]
    pub fn view(&mut self) -> Option<View<'_>> {
        let LaneState { sides, link } = &mut *self.state;
        let [a, b] = sides;
        let (me, peer) = if self.index == 0 { (a, b) } else { (b, a) };
        Some(View {
            me: me.as_deref_mut()?,
            peer: peer.as_deref_mut(),
            link,
            guard: self.guard,
        })
    }
}

/// A queue pair.
pub struct Qp {
    me: Weak<Qp>,
    pub(crate) device: Arc<Soft>,
    pub(crate) events: Arc<Events>,
    seat: Shared<Seat>,
}

/// Pairing takes more than one lock; one thread at a time does.
static PAIRING: Mutex<()> = Mutex::new(());

impl Qp {
    pub(crate) fn new(device: &Arc<Soft>, id: Identity) -> Arc<Qp> {
        Arc::new_cyclic(|me| {
            let qp = Qp {
                me: me.clone(),
                device: device.clone(),
                events: id.events.clone(),
                seat: Shared::empty(),
            };
            let lane = Lane::new();
            lane.state.lock().sides[0] = Some(Box::new(Side::new(Arc::new(id), me.clone())));
            qp.seat.set(Some(Arc::new(Seat {
                lane: Arc::new(lane),
                index: 0,
            })));
            qp
        })
    }

    /// What it was made with.
    pub(crate) fn attr(&self) -> QpAttr {
        self.with(|v| v.me.id.attr)
    }

    /// See [`Device::modify_qp`](crate::device::Device::modify_qp).
    pub(crate) fn modify(&self, id: Identity) -> Result<(), DeviceError> {
        self.with(|v| v.me.modify(Arc::new(id)))
    }

    /// See [`Device::post_bind`](crate::device::Device::post_bind).
    pub(crate) fn post_bind(&self, wr: &BindWr<'_, Soft>) -> Result<u32, PostError> {
        let mut up = Upcalls::default();
        let result = self.with(|v| v.post_bind(wr, &mut up));
        up.run();
        result
    }

    /// A buffer of the shared receive queue is kept for this queue pair: true if it is taken.
    pub(super) fn take_turn(&self, up: &mut Upcalls) -> bool {
        self.with(|v| {
            if v.me.turn != Turn::Waits {
                return false;
            }
            v.me.turn = Turn::Granted;
            v.receives_came(up);
            let taken = v.me.turn != Turn::Granted;
            if !taken {
                v.me.turn = Turn::Out;
            }
            taken
        })
    }

    /// Runs `f` under the lock.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut View<'_>) -> R) -> R {
        let guard = pin();
        loop {
            // Without a view it was moved while we waited: look for the new seat.
            if let Some(mut v) = self.lock(&guard).view() {
                return f(&mut v);
            }
        }
    }

    /// Takes the lock of where it sits at the moment.
    #[inline(always)]
    fn lock<'a>(&self, guard: &'a Guard) -> Seated<'a> {
        let Some(seat) = self.seat.get(guard) else {
            unreachable!("a queue pair has a seat from its creation on");
        };
        seat.lock(guard)
    }

    /// Where it sits; as long as a connection lasts that is the same.
    fn seat(&self) -> Arc<Seat> {
        let Some(seat) = self.seat.get_shared() else {
            unreachable!("a queue pair has a seat from its creation on");
        };
        seat
    }

    /// Moves to a place in a new lane, if `check` agrees.
    fn take_seat(
        &self,
        lane: &Arc<Lane>,
        state: &mut LaneState,
        index: usize,
        check: impl FnOnce(&Side) -> bool,
    ) -> bool {
        let guard = pin();
        loop {
            let Some(seat) = self.seat.get(&guard) else {
                return false;
            };
            let mut old = seat.lane.state.lock();
            let Some(side) = old.sides[seat.index].take() else {
                continue;
            };
            if !check(&side) {
                old.sides[seat.index] = Some(side);
                return false;
            }
            // What the old lane still held of an attempt goes with it.
            let link = std::mem::take(&mut old.link);
            state.sides[index] = Some(side);
            self.seat.set(Some(Arc::new(Seat {
                lane: lane.clone(),
                index,
            })));
            drop(old);
            drop(link);
            return true;
        }
    }

    /// Moves to a lane of its own.
    fn leave(&self) {
        let lane = Arc::new(Lane::new());
        let mut state = lane.state.lock();
        self.take_seat(&lane, &mut state, 0, |_| true);
    }

    /// Connects two queue pairs of the process: `active`, if it is still at the given attempt,
    /// and `passive`. False if one of them is not ready for it.
    pub(crate) fn pair(
        active: &Qp,
        attempt: u64,
        passive: &Qp,
        addrs: (SocketAddr, SocketAddr),
        qual: u64,
        private_data: &[u8],
        up: &mut Upcalls,
    ) -> Result<(), Trouble> {
        let _pairing = PAIRING.lock();
        let lane = Arc::new(Lane::new());
        let mut state = lane.state.lock();
        let waits = |s: &Side| s.phase == Phase::Connecting && s.attempt == attempt;
        let free = |s: &Side| matches!(s.phase, Phase::Idle | Phase::Ended);
        if !active.take_seat(&lane, &mut state, 0, waits) {
            return Err(Trouble::PeerGone);
        }
        if !passive.take_seat(&lane, &mut state, 1, free) {
            drop(state);
            active.leave();
            return Err(Trouble::NotFree);
        }
        state.link = Link::Opening;
        let [Some(a), Some(p)] = &mut state.sides else {
            unreachable!("both sides have just been put there");
        };
        p.attempt += 1;
        p.addrs = Some((addrs.1, addrs.0));
        (p.qual, p.path) = (qual, Path::Loopback);
        a.ord = a.id.attr.max_rd_out.min(p.id.attr.max_rd_in);
        p.ord = p.id.attr.max_rd_out.min(a.id.attr.max_rd_in);
        a.establish(private_data.into(), None, up);
        p.establish(Box::default(), None, up);
        Ok(())
    }

    /// Begins an attempt to connect; returns its number.
    pub(crate) fn begin(
        &self,
        addrs: Option<(SocketAddr, SocketAddr)>,
        qual: u64,
        path: Path<'static>,
    ) -> Result<u64, DeviceError> {
        if self.with(|v| v.me.phase == Phase::Ended) {
            self.leave();
        }
        self.with(|v| {
            if !matches!(v.me.phase, Phase::Idle | Phase::Ended) {
                return Err(DeviceError::Unsupported);
            }
            v.me.phase = Phase::Connecting;
            v.me.attempt += 1;
            v.me.addrs = addrs;
            (v.me.qual, v.me.path) = (qual, path);
            Ok(v.me.attempt)
        })
    }

    /// Takes an attempt back, of which nobody has heard yet.
    pub(crate) fn withdraw(&self, attempt: u64) {
        self.with(|v| {
            if v.me.phase == Phase::Connecting && v.me.attempt == attempt {
                v.me.phase = Phase::Idle;
            }
        });
    }

    /// Keeps what drives and limits an attempt, while it goes on.
    pub(crate) fn holds(&self, attempt: u64, timer: Option<Timer>, dial: Option<Arc<Dial>>) {
        let pending = Pending {
            _timer: timer,
            dial,
        };
        let over = self.with(|v| {
            if v.me.phase == Phase::Connecting && v.me.attempt == attempt {
                std::mem::replace(v.link, Link::Pending(pending))
            } else {
                Link::Pending(pending)
            }
        });
        drop(over);
    }

    /// An attempt has led to a connection: through shared memory if there is a wire, otherwise
    /// over TCP.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn attach(
        self: &Arc<Self>,
        attempt: u64,
        watch: Watch,
        agreed: &Agreed,
        wire: Option<Opened>,
        initiator: bool,
        told: (Box<[u8]>, Handshake),
        up: &mut Upcalls,
    ) {
        let pending = self.with(|v| {
            if v.me.phase != Phase::Connecting || v.me.attempt != attempt {
                return Link::None;
            }
            let pending = std::mem::take(v.link);
            if let (Some(local), Some(remote)) = (socket::local(&watch), socket::remote(&watch)) {
                v.me.addrs = Some((local, remote));
            }
            v.me.ord = u32::from(agreed.ord);
            let linger = self.device.params.linger;
            v.me.path = Path::Tcp;
            if let Some(wire) = wire {
                v.me.path = Path::SharedMemory;
                let pipe = Pipe::new(watch, wire, self.seat(), linger);
                pipe.start(initiator, v.me, v.link, told, v.guard, up);
                return pending;
            }
            let first = v.me.sq.tail();
            Stream::new(watch, self, agreed, initiator, first, linger)
                .start(v.me, v.link, told, v.guard, up);
            pending
        });
        drop(pending);
    }

    /// A graceful end over loopback waits for receives of the peer, for a time.
    fn limit_linger(self: &Arc<Self>, attempt: u64) {
        let qp = Arc::downgrade(self);
        let timer = self
            .device
            .engine
            .timer(self.device.params.linger, move |up| {
                if let Some(qp) = qp.upgrade() {
                    qp.with(|v| {
                        if v.me.attempt == attempt && v.lingers() {
                            v.break_loopback(up);
                        }
                    });
                }
            });
        let unused = self.with(|v| {
            if v.me.attempt == attempt && v.lingers() {
                v.me.linger.replace(timer)
            } else {
                Some(timer)
            }
        });
        drop(unused);
    }

    /// Ends an attempt to connect, if it is still going on.
    pub(crate) fn give_up(
        &self,
        attempt: u64,
        event: CmEvent,
        cause: &dyn Cause,
        up: &mut Upcalls,
    ) {
        let link = self.with(|v| {
            if v.me.phase != Phase::Connecting || v.me.attempt != attempt {
                return Link::None;
            }
            v.note_path();
            v.me.end(event, cause, up);
            std::mem::take(v.link)
        });
        drop(link);
    }

    /// Tells the log of an attempt that has taken a way which it need not have taken.
    pub(super) fn took_detour(&self, attempt: u64, cause: &dyn Cause) {
        let line = self.with(|v| {
            v.note_path();
            let current = v.me.phase == Phase::Connecting && v.me.attempt == attempt;
            current.then(|| LogEntry::new(|| v.me.name(), Outcome::Detour, cause))
        });
        connection_log::write(line.flatten());
    }
}

/// Drops what is left of a connection that the consumer has ended at once; the peer is told so.
fn abort(link: Link) {
    match link {
        Link::Shm(pipe) => pipe.abort(),
        Link::Tcp(stream) => tcp::abort(*stream),
        _ => {}
    }
}

impl QueuePair for Qp {
    // With the number of segments and the operation that the caller knows: most of the rest goes
    // away then.
    #[inline(always)]
    fn post_send_in(&self, wr: &SendWr<'_>, guard: &Guard) -> Result<(), PostError> {
        let mut up = Upcalls::default();
        loop {
            let mut seated = self.lock(guard);
            if let Some(mut v) = seated.view() {
                let result = v.post_send(wr, &mut up);
                drop(seated);
                up.run();
                return result;
            }
        }
    }

    #[inline(always)]
    fn post_recv_in(&self, wr: &RecvWr<'_>, guard: &Guard) -> Result<(), PostError> {
        let mut up = Upcalls::default();
        loop {
            let mut seated = self.lock(guard);
            if let Some(mut v) = seated.view() {
                let result = v.post_recv(wr, &mut up);
                drop(seated);
                up.run();
                return result;
            }
        }
    }

    fn start_receiving(&self) {
        let mut up = Upcalls::default();
        let backlog = self.with(|v| v.start_receiving(&mut up));
        self.device.engine.serve_new(backlog, &mut up);
        up.run();
    }

    fn disconnect(&self, graceful: bool) {
        let mut up = Upcalls::default();
        let (link, lingers) = self.with(|v| {
            let link = v.disconnect(graceful, &mut up);
            (link, v.lingers().then_some(v.me.attempt))
        });
        abort(link);
        if let (Some(attempt), Some(qp)) = (lingers, self.me.upgrade()) {
            qp.limit_linger(attempt);
        }
        up.run();
    }

    fn reset(&self) {
        if self.with(|v| v.me.phase != Phase::Ended) {
            return;
        }
        self.leave();
        self.with(|v| v.me.clear(Phase::Idle));
        self.events.clear();
        self.purge();
    }

    fn destroy(&self) -> u32 {
        self.events.close();
        let mut up = Upcalls::default();
        let (link, taken, line) = self.with(|v| {
            let taken = v.me.id.srq.as_ref().map_or(0, |_| v.me.rq.len());
            v.note_path();
            let connecting = v.me.phase == Phase::Connecting;
            let line = connecting.then(|| v.me.report(&CmEvent::Disconnected, &GIVEN_UP));
            tcp::send_gathered(v.me, v.link, v.guard, &mut up);
            v.me.clear(Phase::Gone);
            (v.detach(&mut up), taken, line.flatten())
        });
        abort(link);
        connection_log::write(line);
        up.run();
        (taken + self.purge()) as u32
    }

    fn send_outstanding(&self) -> u32 {
        self.with(|v| v.me.sq.len() as u32)
    }

    fn recv_outstanding(&self) -> u32 {
        self.with(|v| v.me.rq.len() as u32)
    }

    fn set_recv_watermarks(&self, soft: Option<u32>, hard: Option<u32>) -> Result<(), DeviceError> {
        let mut up = Upcalls::default();
        let link = self.with(|v| {
            if v.me.id.srq.is_none() {
                return Err(DeviceError::Unsupported);
            }
            if v.me.set_marks(soft, hard, &mut up) {
                return Ok(Link::None);
            }
            let cause = "it holds more receives of the shared queue than its hard high watermark";
            v.note_path();
            v.me.end(CmEvent::Broken, &cause, &mut up);
            Ok(v.detach(&mut up))
        })?;
        abort(link);
        up.run();
        Ok(())
    }

    fn addrs(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.with(|v| v.me.addrs)
    }
}

impl Qp {
    /// Removes its completions; gives how many were of buffers of a shared receive queue.
    fn purge(&self) -> usize {
        let id = self.with(|v| v.me.id.clone());
        let cqs = [&id.send_cq, &id.recv_cq].into_iter().flatten();
        cqs.map(|cq| cq.remove(id.attr.context)).sum()
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.with(|v| v.me.phase != Phase::Gone) {
            self.destroy();
        }
        self.device.counts.qp.fetch_sub(1, Ordering::Relaxed);
    }
}
