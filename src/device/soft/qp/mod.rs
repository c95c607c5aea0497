//! Queue pairs.
//!
//! The state of a queue pair ([`QpState`]) sits in a [`LockDomain`] and is guarded by its lock. A queue
//! pair alone, or with its peer in another process, has a lane of its own; two queue pairs that
//! are connected within the process share one, so that one lock covers a transfer. Where a
//! queue pair sits ([`QpPlace`]) changes when it is connected or reset.

pub(crate) mod deliver;
pub(crate) mod ops;
pub(crate) mod srq;
pub(crate) mod state;
pub(super) mod work_queue;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use self::ops::{Link, LockedQp, Pending};
use self::srq::Turn;
use self::state::{Identity, Phase, QpState};
use super::Soft;
use super::cm::connector::Connector;
use super::cm::error::ConnectError;
use super::engine::event_order::SetupGuard;
use super::engine::{Timer, Watch};
use super::iwarp::mpa::Agreed;
use super::socket;
use super::transport::shm::{AccessGrant, ShmConn};
use super::transport::tcp::{self, TcpConn};
use super::upcalls::{Events, Upcalls};
use crate::device::report::{self, Cause, GIVEN_UP, Line, Outcome, Path};
use crate::device::{BindWr, CmEvent, DeviceError, PostError, QpAttr, QueuePair, RecvWr, SendWr};
use crate::handle::pin::pin;
use crate::handle::{Biased, Guard, Held, Shared};

/// What the lock of a lane guards.
#[derive(Default)]
pub(super) struct DomainState {
    states: [Option<Box<QpState>>; 2],
    pub link: Link,
}

/// See the module.
pub(super) struct LockDomain {
    state: Biased<DomainState>,
}

impl LockDomain {
    /// Empty.
    fn new() -> LockDomain {
        LockDomain {
            state: Biased::new(DomainState::default()),
        }
    }
}

/// Where a queue pair sits.
pub(crate) struct QpPlace {
    domain: Arc<LockDomain>,
    index: usize,
}

impl QpPlace {
    /// Takes the lock.
    #[inline(always)]
    pub fn lock<'a>(&'a self, guard: &'a Guard) -> DomainLock<'a> {
        DomainLock {
            state: self.domain.state.lock_as(guard.thread()),
            index: self.index,
            guard,
        }
    }
}

/// The lock of a queue pair, or of a seat that it has left.
pub(crate) struct DomainLock<'a> {
    state: Held<'a, DomainState>,
    index: usize,
    guard: &'a Guard,
}

impl DomainLock<'_> {
    /// What the lock guards; nothing if the queue pair has left.
    #[inline(always)]
    pub fn view(&mut self) -> Option<LockedQp<'_>> {
        let DomainState { states, link } = &mut *self.state;
        let [a, b] = states;
        let (me, peer) = if self.index == 0 { (a, b) } else { (b, a) };
        Some(LockedQp {
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
    place: Shared<QpPlace>,
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
                place: Shared::empty(),
            };
            let domain = LockDomain::new();
            domain.state.lock().states[0] = Some(Box::new(QpState::new(Arc::new(id), me.clone())));
            qp.place.set(Some(Arc::new(QpPlace {
                domain: Arc::new(domain),
                index: 0,
            })));
            qp
        })
    }

    /// What it was made with.
    pub(crate) fn attr(&self) -> QpAttr {
        self.with(|locked| locked.me.id.attr)
    }

    /// See [`Device::modify_qp`](crate::device::Device::modify_qp).
    pub(crate) fn modify(&self, id: Identity) -> Result<(), DeviceError> {
        self.with(|locked| locked.me.modify(Arc::new(id)))
    }

    /// See [`Device::post_bind`](crate::device::Device::post_bind).
    pub(crate) fn post_bind(&self, wr: &BindWr<'_, Soft>) -> Result<u32, PostError> {
        let mut up = Upcalls::default();
        let result = self.with(|locked| locked.post_bind(wr, &mut up));
        up.run();
        result
    }

    /// A buffer of the shared receive queue is kept for this queue pair: true if it is taken.
    pub(super) fn take_turn(&self, up: &mut Upcalls) -> bool {
        self.with(|locked| {
            if locked.me.turn != Turn::Waits {
                return false;
            }
            locked.me.turn = Turn::Granted;
            locked.receives_arrived(up);
            let taken = locked.me.turn != Turn::Granted;
            if !taken {
                locked.me.turn = Turn::Out;
            }
            taken
        })
    }

    /// Runs `f` under the lock.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut LockedQp<'_>) -> R) -> R {
        let guard = pin();
        loop {
            // Without a view it was moved while we waited: look for the new seat.
            if let Some(mut locked) = self.lock(&guard).view() {
                return f(&mut locked);
            }
        }
    }

    /// Takes the lock of where it sits at the moment.
    #[inline(always)]
    fn lock<'a>(&self, guard: &'a Guard) -> DomainLock<'a> {
        let Some(place) = self.place.get(guard) else {
            unreachable!("a queue pair has a seat from its creation on");
        };
        place.lock(guard)
    }

    /// Where it sits; as long as a connection lasts that is the same.
    fn place(&self) -> Arc<QpPlace> {
        let Some(place) = self.place.get_shared() else {
            unreachable!("a queue pair has a seat from its creation on");
        };
        place
    }

    /// Moves to a place in a new lane, if `check` agrees.
    fn move_to(
        &self,
        domain: &Arc<LockDomain>,
        state: &mut DomainState,
        index: usize,
        check: impl FnOnce(&QpState) -> bool,
    ) -> bool {
        let guard = pin();
        loop {
            let Some(place) = self.place.get(&guard) else {
                return false;
            };
            let mut old = place.domain.state.lock();
            let Some(side) = old.states[place.index].take() else {
                continue;
            };
            if !check(&side) {
                old.states[place.index] = Some(side);
                return false;
            }
            // What the old lane still held of an attempt goes with it.
            let link = std::mem::take(&mut old.link);
            state.states[index] = Some(side);
            self.place.set(Some(Arc::new(QpPlace {
                domain: domain.clone(),
                index,
            })));
            drop(old);
            drop(link);
            return true;
        }
    }

    /// Moves to a lane of its own.
    fn leave(&self) {
        let domain = Arc::new(LockDomain::new());
        let mut state = domain.state.lock();
        self.move_to(&domain, &mut state, 0, |_| true);
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
    ) -> Result<(), ConnectError> {
        let _pairing = PAIRING.lock();
        let domain = Arc::new(LockDomain::new());
        let mut state = domain.state.lock();
        let waits = |s: &QpState| s.phase == Phase::Connecting && s.attempt == attempt;
        let free = |s: &QpState| matches!(s.phase, Phase::Idle | Phase::Ended);
        if !active.move_to(&domain, &mut state, 0, waits) {
            return Err(ConnectError::PeerGone);
        }
        if !passive.move_to(&domain, &mut state, 1, free) {
            drop(state);
            active.leave();
            return Err(ConnectError::NotFree);
        }
        state.link = Link::Opening;
        let [Some(a), Some(p)] = &mut state.states else {
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
        if self.with(|locked| locked.me.phase == Phase::Ended) {
            self.leave();
        }
        self.with(|locked| {
            if !matches!(locked.me.phase, Phase::Idle | Phase::Ended) {
                return Err(DeviceError::Unsupported);
            }
            locked.me.phase = Phase::Connecting;
            locked.me.attempt += 1;
            locked.me.addrs = addrs;
            (locked.me.qual, locked.me.path) = (qual, path);
            Ok(locked.me.attempt)
        })
    }

    /// Takes an attempt back, of which nobody has heard yet.
    pub(crate) fn withdraw(&self, attempt: u64) {
        self.with(|locked| {
            if locked.me.phase == Phase::Connecting && locked.me.attempt == attempt {
                locked.me.phase = Phase::Idle;
            }
        });
    }

    /// Keeps what drives and limits an attempt, while it goes on.
    pub(crate) fn holds(
        &self,
        attempt: u64,
        timer: Option<Timer>,
        connector: Option<Arc<Connector>>,
    ) {
        let pending = Pending {
            _timer: timer,
            connector,
        };
        let over = self.with(|locked| {
            if locked.me.phase == Phase::Connecting && locked.me.attempt == attempt {
                std::mem::replace(locked.link, Link::Pending(pending))
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
        segment: Option<AccessGrant>,
        initiator: bool,
        receiving: (Box<[u8]>, SetupGuard),
        up: &mut Upcalls,
    ) {
        let pending = self.with(|locked| {
            if locked.me.phase != Phase::Connecting || locked.me.attempt != attempt {
                return Link::None;
            }
            let pending = std::mem::take(locked.link);
            if let (Some(local), Some(remote)) = (socket::local(&watch), socket::remote(&watch)) {
                locked.me.addrs = Some((local, remote));
            }
            locked.me.ord = u32::from(agreed.ord);
            let linger = self.device.params.linger;
            locked.me.path = Path::Tcp;
            if let Some(segment) = segment {
                locked.me.path = Path::SharedMemory;
                let conn = ShmConn::new(watch, segment, self.place(), linger);
                conn.start(
                    initiator,
                    locked.me,
                    locked.link,
                    receiving,
                    locked.guard,
                    up,
                );
                return pending;
            }
            let first = locked.me.sq.tail();
            TcpConn::new(watch, self, agreed, initiator, first, linger).start(
                locked.me,
                locked.link,
                receiving,
                locked.guard,
                up,
            );
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
                    qp.with(|locked| {
                        if locked.me.attempt == attempt && locked.lingers() {
                            locked.break_loopback(up);
                        }
                    });
                }
            });
        let unused = self.with(|locked| {
            if locked.me.attempt == attempt && locked.lingers() {
                locked.me.linger.replace(timer)
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
        let link = self.with(|locked| {
            if locked.me.phase != Phase::Connecting || locked.me.attempt != attempt {
                return Link::None;
            }
            locked.note_path();
            locked.me.end(event, cause, up);
            std::mem::take(locked.link)
        });
        drop(link);
    }

    /// Tells the log of an attempt that has taken a way which it need not have taken.
    pub(super) fn log_detour(&self, attempt: u64, cause: &dyn Cause) {
        let line = self.with(|locked| {
            locked.note_path();
            let current = locked.me.phase == Phase::Connecting && locked.me.attempt == attempt;
            current.then(|| Line::new(|| locked.me.name(), Outcome::Detour, cause))
        });
        report::write(line.flatten());
    }
}

/// Drops what is left of a connection that the consumer has ended at once; the peer is told so.
fn abort(link: Link) {
    match link {
        Link::Shm(conn) => conn.abort(),
        Link::Tcp(conn) => tcp::abort(*conn),
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
            if let Some(mut locked) = seated.view() {
                let result = locked.post_send(wr, &mut up);
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
            if let Some(mut locked) = seated.view() {
                let result = locked.post_recv(wr, &mut up);
                drop(seated);
                up.run();
                return result;
            }
        }
    }

    fn start_receiving(&self) {
        let mut up = Upcalls::default();
        let backlog = self.with(|locked| locked.start_receiving(&mut up));
        self.device.engine.serve_new(backlog, &mut up);
        up.run();
    }

    fn disconnect(&self, graceful: bool) {
        let mut up = Upcalls::default();
        let (link, lingers) = self.with(|locked| {
            let link = locked.disconnect(graceful, &mut up);
            (link, locked.lingers().then_some(locked.me.attempt))
        });
        abort(link);
        if let (Some(attempt), Some(qp)) = (lingers, self.me.upgrade()) {
            qp.limit_linger(attempt);
        }
        up.run();
    }

    fn reset(&self) {
        if self.with(|locked| locked.me.phase != Phase::Ended) {
            return;
        }
        self.leave();
        self.with(|locked| locked.me.clear(Phase::Idle));
        self.events.clear();
        self.purge();
    }

    fn destroy(&self) -> u32 {
        self.events.close();
        let mut up = Upcalls::default();
        let (link, taken, line) = self.with(|locked| {
            let taken = locked.me.id.srq.as_ref().map_or(0, |_| locked.me.rq.len());
            locked.note_path();
            let connecting = locked.me.phase == Phase::Connecting;
            let line = connecting.then(|| locked.me.report(&CmEvent::Disconnected, &GIVEN_UP));
            tcp::send_coalesced(locked.me, locked.link, locked.guard, &mut up);
            locked.me.clear(Phase::Gone);
            (locked.detach(&mut up), taken, line.flatten())
        });
        abort(link);
        report::write(line);
        up.run();
        (taken + self.purge()) as u32
    }

    fn send_outstanding(&self) -> u32 {
        self.with(|locked| locked.me.sq.len() as u32)
    }

    fn recv_outstanding(&self) -> u32 {
        self.with(|locked| locked.me.rq.len() as u32)
    }

    fn set_recv_watermarks(&self, soft: Option<u32>, hard: Option<u32>) -> Result<(), DeviceError> {
        let mut up = Upcalls::default();
        let link = self.with(|locked| {
            if locked.me.id.srq.is_none() {
                return Err(DeviceError::Unsupported);
            }
            if locked.me.set_marks(soft, hard, &mut up) {
                return Ok(Link::None);
            }
            let cause = "it holds more receives of the shared queue than its hard high watermark";
            locked.note_path();
            locked.me.end(CmEvent::Broken, &cause, &mut up);
            Ok(locked.detach(&mut up))
        })?;
        abort(link);
        up.run();
        Ok(())
    }

    fn addrs(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.with(|locked| locked.me.addrs)
    }
}

impl Qp {
    /// Removes its completions; gives how many were of buffers of a shared receive queue.
    fn purge(&self) -> usize {
        let id = self.with(|locked| locked.me.id.clone());
        let cqs = [&id.send_cq, &id.recv_cq].into_iter().flatten();
        cqs.map(|cq| cq.remove(id.attr.context)).sum()
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.with(|locked| locked.me.phase != Phase::Gone) {
            self.destroy();
        }
        self.device.counts.qp.fetch_sub(1, Ordering::Relaxed);
    }
}
