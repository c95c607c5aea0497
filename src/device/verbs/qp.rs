//! Queue pairs, as the consumer has them: they last, connections come and go.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::cq::{Cq, Withheld};
use super::hw::Hw;
use super::id::CmId;
use super::mr::{Pd, Seen};
use super::srq::Srq;
use super::{Verbs, end, post};
use crate::device::attempt::{Attempt, Phase};
use crate::device::connection_log::{self, Cause, GIVEN_UP, Identity, LogEntry, Outcome, Path};
use crate::device::events::EventQueue;
use crate::device::{
    CmEvent, DeviceError, PostError, QpAttr, QpHandler, QpParts, QueuePair, RecvWr, SendWr, Sge,
};
use crate::handle::{Biased, Guard};

/// What a queue pair is put together from.
#[derive(Clone)]
pub(super) struct Parts {
    pub pd: Arc<Pd>,
    /// `None` where nobody is to hear of completions, as in [`QpParts`].
    pub send_cq: Option<Arc<Cq>>,
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
    pub attempt: Attempt,
    pub id: Option<Arc<CmId>>,
    pub addrs: Option<(SocketAddr, SocketAddr)>,
    /// The connection qualifier, for the log.
    pub qual: u64,
    /// What the active side still needs to make the connection.
    pub dial: Option<super::dial::Dial>,
    /// The end was asked for here.
    pub local_end: bool,
    /// iWARP: the peer was told of the graceful end at this time.
    pub told: Option<Instant>,
    /// Where receives wait until the consumer was told of the connection.
    pub withheld: Option<Withheld>,
}

/// The send queue.
pub(super) struct Sq {
    pub hw: Option<Arc<Hw>>,
    /// There is, or was, a connection.
    pub up: bool,
    pub ended: bool,
    /// Requests since the last that completes visibly to the device.
    pub run: u32,
    pub seen: Seen,
}

/// The receive queue.
pub(super) struct Rq {
    pub hw: Option<Arc<Hw>>,
    pub ended: bool,
    /// What was posted before the connection, to post it again if the queue pair is modified.
    /// Nothing once a connection is being made.
    pub early: Option<Vec<Early>>,
}

/// A receive posted before the connection.
pub(super) struct Early {
    pub wr_id: u64,
    pub sges: Box<[Sge]>,
    pub flags: crate::device::WrFlags,
}

/// A queue pair.
pub struct Qp {
    pub(super) me: Weak<Qp>,
    pub(super) device: Arc<Verbs>,
    pub(super) events: EventQueue,
    pub(super) parts: Mutex<(Parts, QpAttr)>,
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
            me: me.clone(),
            device: device.clone(),
            events: EventQueue::new(handler),
            parts: Mutex::new((parts, *attr)),
            state: Mutex::new(State {
                attempt: Attempt::new(),
                id: None,
                addrs: None,
                qual: 0,
                dial: None,
                local_end: false,
                told: None,
                withheld: None,
            }),
            sq: Biased::new(Sq {
                hw: None,
                up: false,
                ended: false,
                run: 0,
                seen: Seen::default(),
            }),
            rq: Biased::new(Rq {
                hw: None,
                ended: false,
                early: Some(Vec::new()),
            }),
        });
        qp.renew()?;
        Ok(qp)
    }

    /// What the log calls a connection in this state.
    pub(super) fn name(&self, state: &State) -> Identity<'_> {
        Identity {
            endpoint: Some(self.parts.lock().1.context),
            addrs: state.addrs,
            qual: state.qual,
            path: Path::Device(&self.device.attr.adapter_name),
        }
    }

    /// What the log says of the end of a connection, or of an attempt, that was in phase
    /// `before`, if that is one in error.
    pub(super) fn report(
        &self,
        state: &State,
        before: Phase,
        event: &CmEvent,
        cause: &dyn Cause,
    ) -> Option<LogEntry> {
        let connecting = before == Phase::Connecting;
        let outcome = Outcome::of(event, connecting).filter(|_| before.is_live())?;
        LogEntry::new(|| self.name(state), outcome, cause)
    }

    /// The protection domain.
    pub(super) fn pd(&self) -> Arc<Pd> {
        self.parts.lock().0.pd.clone()
    }

    /// The queue pair of the device that there is now.
    pub(super) fn hw(&self) -> Option<Arc<Hw>> {
        self.rq.lock().hw.clone()
    }

    /// Makes a fresh queue pair of the device, if there is none.
    pub(super) fn renew(&self) -> Result<Arc<Hw>, DeviceError> {
        if let Some(hw) = self.hw() {
            return Ok(hw);
        }
        let (parts, attr) = self.parts.lock().clone();
        let hw = Hw::new(&self.device, &self.me, &parts, &attr)?;
        self.install(&hw);
        Ok(hw)
    }

    /// The device is about to receive on a connection that the consumer was not told of: what
    /// completes waits until then. Without effect if the attempt is over.
    pub(super) fn withhold(&self) {
        let mut state = self.state.lock();
        let Some(hw) = self.hw() else { return };
        let wanted = state.attempt.phase == Phase::Connecting && state.withheld.is_none();
        // Nobody hears of those that have no queue of the consumer's.
        if wanted && hw.recv_cq.unheard.is_none() {
            state.withheld = Some(Cq::withhold(&hw.recv_cq, hw.context));
        }
    }

    fn install(&self, hw: &Arc<Hw>) {
        let mut sq = self.sq.lock();
        let mut rq = self.rq.lock();
        sq.hw = Some(hw.clone());
        sq.up = false;
        sq.ended = false;
        sq.run = 0;
        sq.seen = Seen::default();
        rq.hw = Some(hw.clone());
        rq.ended = false;
        rq.early = Some(Vec::new());
    }

    /// Takes the queue pair of the device away from the posts; they are answered by us from now
    /// on. `with` runs before the next of them.
    pub(super) fn remove(&self, with: impl FnOnce(&Arc<Hw>)) -> Option<Arc<Hw>> {
        let mut sq = self.sq.lock();
        let mut rq = self.rq.lock();
        sq.ended = true;
        rq.ended = true;
        rq.early = None;
        rq.hw = None;
        let hw = sq.hw.take()?;
        with(&hw);
        Some(hw)
    }

    /// Removes the completions that are queued; gives how many of them are of buffers of a
    /// shared queue.
    fn purge(&self) -> u32 {
        let (parts, attr) = &*self.parts.lock();
        let cqs = [&parts.send_cq, &parts.recv_cq].into_iter().flatten();
        cqs.map(|cq| cq.purge(attr.context)).sum()
    }

    /// See [`Device::modify_qp`](crate::device::Device::modify_qp).
    pub(super) fn modify(
        &self,
        parts: &QpParts<'_, Verbs>,
        attr: &QpAttr,
    ) -> Result<(), DeviceError> {
        check(&self.device, attr)?;
        let state = self.state.lock();
        if state.attempt.phase != Phase::Idle {
            return Err(DeviceError::Unsupported);
        }
        let parts = Parts::of(parts);
        let hw = Hw::new(&self.device, &self.me, &parts, attr)?;
        let early = self.rq.lock().early.take().unwrap_or_default();
        let reposted = early.iter().try_for_each(|early| {
            let wr = RecvWr {
                wr_id: early.wr_id,
                sges: &early.sges,
                flags: early.flags,
            };
            post::recv(&hw, &wr)
        });
        if reposted.is_err() {
            self.rq.lock().early = Some(early);
            hw.close();
            hw.retire(false);
            return Err(DeviceError::Limit);
        }
        let old = self.hw();
        self.install(&hw);
        self.rq.lock().early = Some(early);
        *self.parts.lock() = (parts, *attr);
        drop(state);
        if let Some(old) = old {
            old.close();
            old.retire(false);
        }
        Ok(())
    }
}

fn check(device: &Verbs, attr: &QpAttr) -> Result<(), DeviceError> {
    let limits = &device.attr;
    let wr = attr.max_send_wr.max(attr.max_recv_wr);
    let sge = attr.max_send_sge.max(attr.max_recv_sge);
    if wr > limits.max_qp_wr
        || sge > limits.max_sge
        || attr.max_rd_in > limits.max_rd_in
        || attr.max_rd_out > limits.max_rd_out
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

    fn disconnect(&self, graceful: bool) {
        let mut state = self.state.lock();
        match state.attempt.phase {
            Phase::Connected if graceful => {
                state.attempt.phase = Phase::Closing;
                state.local_end = true;
                drop(state);
                self.close_soon();
            }
            Phase::Connecting | Phase::Connected | Phase::Closing => {
                state.local_end = true;
                drop(state);
                self.end(CmEvent::Disconnected, &GIVEN_UP);
            }
            _ => {}
        }
    }

    fn reset(&self) {
        let mut state = self.state.lock();
        if state.attempt.phase != Phase::Ended {
            return;
        }
        state.attempt.reset();
        let id = state.id.take();
        state.addrs = None;
        // A device that cannot make one now is asked again when it is needed.
        if self.renew().is_err() {
            log::warn!("no new queue pair for a reset endpoint yet");
        }
        drop(state);
        drop(id);
        self.events.clear();
        self.purge();
    }

    fn destroy(&self) -> u32 {
        self.events.close();
        let mut state = self.state.lock();
        let before = state.attempt.destroy();
        if before == Phase::Destroyed {
            return 0;
        }
        let id = state.id.take();
        state.dial = None;
        let withheld = state.withheld.take();
        let line = self.report(&state, before, &CmEvent::Disconnected, &GIVEN_UP);
        drop(state);
        drop(withheld);
        connection_log::write(line);
        if let Some(hw) = self.remove(|_| ()) {
            hw.stop();
            if let Some(id) = id.as_ref().filter(|id| !id.is_waiting()) {
                self.hang_up(id);
            }
            // Buffers of a shared queue have to be accounted for.
            if hw.srq.is_some() && before != Phase::Idle {
                end::collect(&hw);
            }
            hw.close_with(id.as_ref());
            hw.retire(false);
        }
        drop(id);
        self.purge()
    }

    fn send_outstanding(&self) -> u32 {
        self.hw().map_or(0, |hw| {
            hw.send_cq.reap();
            hw.send.len()
        })
    }

    fn recv_outstanding(&self) -> u32 {
        self.hw().map_or(0, |hw| {
            hw.recv_cq.reap();
            hw.recv.len()
        })
    }

    fn set_recv_watermarks(&self, soft: Option<u32>, hard: Option<u32>) -> Result<(), DeviceError> {
        // How many buffers of a shared queue a queue pair holds is known to the device alone.
        match (soft, hard) {
            (None, None) => Ok(()),
            _ => Err(DeviceError::Unsupported),
        }
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
