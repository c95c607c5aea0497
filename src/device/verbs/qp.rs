//! Queue pairs as the consumer has them: one has many connections, one after the other.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::cancel;
use crate::lock::Mutex;

use super::active::ActiveConnect;
use super::cq::{Cq, Withheld};
use super::datagram::Exchanges;
use super::hw::Hw;
use super::id::CmId;
use super::mr::{Pd, RegionCache};
use super::preposted::Preposted;
use super::srq::Srq;
use super::{Verbs, post, teardown};
use crate::device::attempt::{Attempt, Phase};
use crate::device::connection_log::{
    self, Cause, GIVEN_UP, Identity, LogEntry, Outcome, Path, Step,
};
use crate::device::events::{EventQueue, QpEvent};
use crate::device::{
    CmEvent, DeviceError, PostError, QpAttr, QpHandler, QpParts, QueuePair, RecvWr, SendOp, SendWr,
};
use crate::handle::{Biased, Guard};

/// What a queue pair is put together from.
#[derive(Clone)]
pub(super) struct Parts {
    pub pd: Arc<Pd>,
    /// For requests; `None` if their completions are discarded, as in [`QpParts`].
    pub send_cq: Option<Arc<Cq>>,
    /// For receives; `None` as above.
    pub recv_cq: Option<Arc<Cq>>,
    pub srq: Option<Arc<Srq>>,
}

impl Parts {
    pub fn of(parts: &QpParts<'_, Verbs>) -> Parts {
        Parts {
            pd: parts.pd.clone(),
            send_cq: parts.send_cq.cloned(),
            recv_cq: parts.recv_cq.cloned(),
            srq: parts.srq.cloned(),
        }
    }
}

/// The state of the connection, or of the attempt to make one.
pub(super) struct State {
    /// Phase of the connection, and number of the attempt.
    pub attempt: Attempt,
    /// The identifier of the connection or of the attempt.
    pub id: Option<Arc<CmId>>,
    /// Local and remote address.
    pub addrs: Option<(SocketAddr, SocketAddr)>,
    /// The connection qualifier, for the log.
    pub qual: u64,
    /// What the active end needs to make the connection; `None` once there is one, and on the
    /// passive end.
    pub active: Option<ActiveConnect>,
    /// The consumer of this end has asked for the end of the connection.
    pub disconnect_requested: bool,
    /// iWARP: when the peer was sent the graceful disconnect.
    pub disconnect_sent: Option<Instant>,
    /// Since when a connection that ends in order has only requests left of which the device reports no
    /// success.
    pub unreported_since: Option<Instant>,
    /// Withholds the completions of receives until the consumer knows of the connection.
    pub withheld: Option<Withheld>,
}

/// The send queue.
pub(super) struct Sq {
    /// The queue pair of the device.
    pub hw: Option<Arc<Hw>>,
    /// The same, once there is, or was, a connection: requests can be posted.
    pub open: Option<Arc<Hw>>,
    /// The connection has ended: requests are flushed.
    pub ended: bool,
    /// Requests posted since the last one of which the device reports the success.
    pub unsignaled_run: u32,
    /// The memory region that a request to be sent inline was last found in.
    pub region_cache: RegionCache,
}

/// The receive queue.
pub(super) struct Rq {
    /// The queue pair of the device.
    pub hw: Option<Arc<Hw>>,
    /// The connection has ended: receives are flushed.
    pub ended: bool,
    /// Receives posted before the connection, to post them again if the queue pair is modified;
    /// `None` once a connection is being made.
    pub preposted: Option<Preposted>,
}

/// The most bytes that operations of a queue pair may have, as in [`QpAttr`]. Posts read them without
/// a lock.
pub(super) struct MaxSizes {
    message: AtomicU32,
    rdma: AtomicU32,
}

impl MaxSizes {
    fn of(attr: &QpAttr) -> MaxSizes {
        MaxSizes {
            message: AtomicU32::new(attr.max_message_size),
            rdma: AtomicU32::new(attr.max_rdma_size),
        }
    }

    pub fn set(&self, attr: &QpAttr) {
        self.message.store(attr.max_message_size, Ordering::Relaxed);
        self.rdma.store(attr.max_rdma_size, Ordering::Relaxed);
    }

    /// Bytes that an operation may have.
    #[inline(always)]
    pub fn of_op(&self, op: &SendOp) -> u32 {
        let size = match op.is_rdma() {
            true => &self.rdma,
            false => &self.message,
        };
        size.load(Ordering::Relaxed)
    }
}

/// A queue pair.
pub struct Qp {
    /// The queue pair itself, for threads that do not keep it alive.
    pub(super) weak: Weak<Qp>,
    pub(super) device: Arc<Verbs>,
    /// Events for the consumer.
    pub(super) events: EventQueue,
    /// The attempts to resolve peers, of a queue pair for datagrams.
    pub(super) exchanges: Option<Exchanges>,
    /// What the queue pair was last made or modified with.
    pub(super) parts: Mutex<(Parts, QpAttr)>,
    pub(super) max_sizes: MaxSizes,
    /// A copy of what the device has, which saves posts a load.
    pub(super) checks_segments: bool,
    pub(super) state: Mutex<State>,
    pub(super) sq: Biased<Sq>,
    pub(super) rq: Biased<Rq>,
}

impl Qp {
    pub(super) fn new(
        device: &Arc<Verbs>,
        parts: &QpParts<'_, Verbs>,
        attr: &QpAttr,
        handler: Arc<dyn QpHandler>,
    ) -> Result<Arc<Qp>, DeviceError> {
        let parts = Parts::of(parts);
        check(device, attr)?;
        let qp = Arc::new_cyclic(|me: &Weak<Qp>| Qp {
            weak: me.clone(),
            device: device.clone(),
            events: EventQueue::new(handler),
            exchanges: attr.datagrams.then(Exchanges::default),
            parts: Mutex::new((parts, *attr)),
            max_sizes: MaxSizes::of(attr),
            checks_segments: device.checks_segments,
            state: Mutex::new(State {
                attempt: Attempt::new(),
                id: None,
                addrs: None,
                qual: 0,
                active: None,
                disconnect_requested: false,
                disconnect_sent: None,
                unreported_since: None,
                withheld: None,
            }),
            sq: Biased::new(Sq {
                hw: None,
                open: None,
                ended: false,
                unsignaled_run: 0,
                region_cache: RegionCache::default(),
            }),
            rq: Biased::new(Rq {
                hw: None,
                ended: false,
                preposted: Some(Preposted::default()),
            }),
        });
        qp.renew()?;
        Ok(qp)
    }

    /// What log entries have of a connection in this state.
    pub(super) fn identity(&self, state: &State) -> Identity<'_> {
        Identity {
            endpoint: Some(self.parts.lock().1.context),
            addrs: state.addrs,
            qual: state.qual,
            path: Path::Device(&self.device.name),
        }
    }

    /// Logs a step of the connection in this state. The caller holds the lock of the state and
    /// delivers the events without it.
    pub(super) fn push_step(&self, state: &State, step: Step) {
        if let Some(entry) = LogEntry::step(|| self.identity(state), step) {
            self.events.push(QpEvent::Log(entry));
        }
    }

    /// Logs a step of the connection. The caller holds no lock.
    pub(super) fn log_step(&self, step: Step) {
        let entry = LogEntry::step(|| self.identity(&self.state.lock()), step);
        connection_log::write(entry);
    }

    /// The log entry for the end of a connection, or of an attempt, that was in phase `before`, if
    /// that end is a failure.
    pub(super) fn failure_entry(
        &self,
        state: &State,
        before: Phase,
        event: &CmEvent,
        cause: &dyn Cause,
    ) -> Option<LogEntry> {
        let connecting = before == Phase::Connecting;
        let outcome = Outcome::of(event, connecting).filter(|_| before.is_live())?;
        LogEntry::new(|| self.identity(state), outcome, cause)
    }

    /// Whether the queue pair sends and receives datagrams, and makes no connections.
    pub(super) fn is_for_datagrams(&self) -> bool {
        self.exchanges.is_some()
    }

    /// The protection domain.
    pub(super) fn pd(&self) -> Arc<Pd> {
        self.parts.lock().0.pd.clone()
    }

    /// The queue pair of the device, unless it was closed.
    pub(super) fn hw(&self) -> Option<Arc<Hw>> {
        self.rq.lock().hw.clone()
    }

    /// Makes a new queue pair of the device, if there is none.
    pub(super) fn renew(&self) -> Result<Arc<Hw>, DeviceError> {
        if let Some(hw) = self.hw() {
            return Ok(hw);
        }
        let (parts, attr) = self.parts.lock().clone();
        let hw = Hw::new(&self.device, &self.weak, &parts, &attr)?;
        self.install(&hw);
        Ok(hw)
    }

    /// Makes the queue pair of the device that could not be made when this one was reset. The caller holds no lock,
    /// and may be in a read-side section.
    pub(super) fn renew_in_section(&self) -> Result<(), DeviceError> {
        // The library makes system calls in which the thread could be cancelled.
        let _disabled = cancel::Disabled::begin();
        // Without waiting: who has the lock may wait for the section to end. It connects the queue pair, resets it
        // or frees it.
        let state = self.state.try_lock().ok_or(DeviceError::Resources)?;
        match state.attempt.phase {
            Phase::Idle => self.renew().map(drop),
            _ => Err(DeviceError::Resources),
        }
    }

    /// The device is about to receive on a connection of which the consumer does not know yet: the
    /// completions are withheld until it does. Without effect if the attempt is over.
    pub(super) fn withhold(&self) {
        let mut state = self.state.lock();
        let Some(hw) = self.hw() else { return };
        let wanted = state.attempt.phase == Phase::Connecting && state.withheld.is_none();
        // Completions that are discarded need not wait.
        if wanted && hw.recv_cq.discard.is_none() {
            state.withheld = Some(Cq::withhold(&hw.recv_cq, hw.context));
        }
    }

    fn install(&self, hw: &Arc<Hw>) {
        let mut sq = self.sq.lock();
        let mut rq = self.rq.lock();
        Self::install_in(&mut sq, &mut rq, hw, Preposted::default());
    }

    /// Has posts go to a queue pair of the device from now on, on which these receives are outstanding.
    pub(super) fn install_in(sq: &mut Sq, rq: &mut Rq, hw: &Arc<Hw>, preposted: Preposted) {
        sq.hw = Some(hw.clone());
        sq.open = None;
        sq.ended = false;
        sq.unsignaled_run = 0;
        sq.region_cache = RegionCache::default();
        rq.hw = Some(hw.clone());
        rq.ended = false;
        rq.preposted = Some(preposted);
    }

    /// Takes the queue pair of the device away from posts, which are flushed from now on. `with`
    /// runs before the next of them.
    pub(super) fn remove(&self, with: impl FnOnce(&Arc<Hw>)) -> Option<Arc<Hw>> {
        let mut sq = self.sq.lock();
        let mut rq = self.rq.lock();
        sq.ended = true;
        rq.ended = true;
        rq.preposted = None;
        rq.hw = None;
        sq.open = None;
        let hw = sq.hw.take()?;
        with(&hw);
        Some(hw)
    }

    /// Nothing that is posted is flushed any more: there is no connection that has ended. The completions of
    /// what was flushed are queued after this.
    fn stop_flushing(&self) {
        self.sq.lock().ended = false;
        self.rq.lock().ended = false;
    }

    /// Calls a function while nothing is posted, if this is still the queue pair of the device.
    pub(super) fn without_posts(&self, hw: &Hw, f: impl FnOnce()) {
        let sq = self.sq.lock();
        let _rq = self.rq.lock();
        if sq.hw.as_deref().is_some_and(|own| std::ptr::eq(own, hw)) {
            f();
        }
    }

    /// Removes the completions that are queued; gives how many of them are of buffers of a
    /// shared receive queue.
    fn purge(&self) -> u32 {
        let (parts, attr) = &*self.parts.lock();
        let cqs = [&parts.send_cq, &parts.recv_cq].into_iter().flatten();
        cqs.map(|cq| cq.purge(attr.context)).sum()
    }
}

/// Whether the device can make a queue pair with these attributes.
pub(super) fn check(device: &Verbs, attr: &QpAttr) -> Result<(), DeviceError> {
    let limits = &device.attr;
    let wr = attr.max_send_wr.max(attr.max_recv_wr);
    let sge = attr.max_send_sge.max(attr.max_recv_sge);
    if wr > limits.max_qp_wr
        || sge > limits.max_sge
        || attr.max_rd_in > limits.max_rd_in
        || attr.max_rd_out > limits.max_rd_out
        || (attr.datagrams && limits.max_datagram == 0)
    {
        return Err(DeviceError::Limit);
    }
    Ok(())
}

impl QueuePair for Qp {
    #[inline(always)]
    fn post_send_in(&self, wr: &SendWr<'_>, guard: &Guard) -> Result<(), PostError> {
        post::post_send(self, wr, guard)
    }

    #[inline(always)]
    fn post_recv_in(&self, wr: &RecvWr<'_>, guard: &Guard) -> Result<(), PostError> {
        post::post_recv(self, wr, guard)
    }

    fn start_receiving(&self) {
        let withheld = self.state.lock().withheld.take();
        drop(withheld);
    }

    fn attempt(&self) -> u64 {
        self.state.lock().attempt.number()
    }

    fn disconnect_attempt(&self, attempt: u64, graceful: bool) {
        let mut state = self.state.lock();
        if !state.attempt.is_current(attempt) {
            return;
        }
        match state.attempt.phase {
            Phase::Connected if graceful => {
                state.attempt.phase = Phase::Closing;
                state.disconnect_requested = true;
                drop(state);
                self.log_step(Step::DisconnectingGracefully);
                self.close_when_drained();
            }
            Phase::Connecting | Phase::Connected | Phase::Closing => {
                state.disconnect_requested = true;
                drop(state);
                self.log_step(Step::Disconnecting);
                self.end_attempt(attempt, CmEvent::Disconnected, &GIVEN_UP);
            }
            _ => {}
        }
    }

    fn reset(&self) -> u32 {
        let mut state = self.state.lock();
        if state.attempt.phase != Phase::Ended {
            return 0;
        }
        state.attempt.reset();
        let id = state.id.take();
        state.addrs = None;
        // If the device cannot make one now, `connect` and `accept` try again.
        if self.renew().is_err() {
            log::warn!(
                "no new queue pair for an endpoint that was reset; connecting it tries again"
            );
            self.stop_flushing();
        }
        drop(state);
        drop(id);
        self.events.clear();
        self.purge()
    }

    fn destroy(&self) -> u32 {
        self.events.close();
        let mut state = self.state.lock();
        let before = state.attempt.destroy();
        if before == Phase::Destroyed {
            return 0;
        }
        let id = state.id.take();
        state.active = None;
        let withheld = state.withheld.take();
        let may_have_received = match before {
            Phase::Idle => false,
            Phase::Connecting => withheld.is_some(),
            _ => true,
        };
        let entry = self.failure_entry(&state, before, &CmEvent::Disconnected, &GIVEN_UP);
        drop(state);
        if let Some(exchanges) = &self.exchanges {
            exchanges.close();
        }
        drop(withheld);
        connection_log::write(entry);
        if let Some(hw) = self.remove(|_| ()) {
            hw.stop();
            if let Some(id) = id.as_ref().filter(|id| !id.is_waiting()) {
                self.send_disconnect(id);
            }
            // The caller is to learn how many buffers of the shared receive queue are lost.
            if hw.srq.is_some() && (may_have_received || self.is_for_datagrams()) {
                teardown::collect(&hw);
            }
            hw.close_with(id.as_ref());
            hw.retire(false);
        }
        drop(id);
        self.stop_flushing();
        self.purge()
    }

    fn send_outstanding(&self) -> u32 {
        self.hw().map_or(0, |hw| {
            hw.send_cq.discard_all();
            hw.send.len()
        })
    }

    fn recv_outstanding(&self) -> u32 {
        self.hw().map_or(0, |hw| {
            hw.recv_cq.discard_all();
            hw.recv.len()
        })
    }

    fn set_recv_watermarks(&self, soft: Option<u32>, hard: Option<u32>) -> Result<(), DeviceError> {
        // Only the device knows how many buffers of a shared receive queue a queue pair holds.
        match (soft, hard) {
            (None, None) => Ok(()),
            _ => Err(DeviceError::Unsupported),
        }
    }

    fn path(&self) -> Option<String> {
        Some(Path::Device(&self.device.name).to_string())
    }

    fn addrs(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.state.lock().addrs
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.destroy();
    }
}
