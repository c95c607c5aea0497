//! The end of connections: when the consumer is notified of it, everything that was outstanding is
//! in the completion queues, executed or flushed.
//!
//! The device flushes, its completions are collected until nothing is left, and then its queue pair
//! is destroyed. Requests that a device does not flush in time are flushed here.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::cq::{Cq, Hold};
use super::hw::Hw;
use super::id::CmId;
use super::post::post_marker;
use super::qp::{Qp, State};
use super::service::Job;
use crate::delay;
use crate::device::attempt::Phase;
use crate::device::connection_log::{Cause, IN_ORDER, Step};
use crate::device::events::QpEvent;
use crate::device::{CmEvent, WcStatus};
use crate::lock::MutexGuard;

/// How long the device may take to flush.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a device that does not report its last one may take to complete the buffers of a shared receive
/// queue that it holds: how many those are is not known.
const SRQ_FLUSH_TIME: Duration = Duration::from_millis(2);
/// How long the device may take to flush requests of which it does not report the success: the others
/// may be done.
const UNREPORTED_FLUSH_TIME: Duration = Duration::from_millis(10);
/// How long such requests, if none is behind them, may take until a connection that ends in order ends: with
/// what is sent again. A [marker](post_marker) behind them tells earlier.
const UNREPORTED_TIME: Duration = Duration::from_millis(500);
/// How long a peer may take to confirm the end of an iWARP connection.
const PEER_CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The device has completed a request with an error.
struct RequestFailed(WcStatus);

impl fmt::Display for RequestFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a request of this end failed: {}", self.0)
    }
}

impl Cause for RequestFailed {}

/// The completion queues of a queue pair, each once.
pub(super) fn queues(hw: &Hw) -> impl Iterator<Item = &Arc<Cq>> {
    let second = (!Arc::ptr_eq(&hw.send_cq, &hw.recv_cq)).then_some(&hw.recv_cq);
    std::iter::once(&hw.send_cq).chain(second)
}

impl Qp {
    /// Ends the connection, or the attempt to make one, because of a failure of the queue pair of the device with
    /// this [`token`](Hw::token). If another has replaced it, the connection has ended already, and the one that may
    /// be there now has nothing to do with it.
    pub(super) fn fail_on(&self, token: u64, cause: &dyn Cause) {
        let state = self.state.lock();
        // That of a live attempt is replaced only after the attempt has ended, which takes this lock:
        // what is found here stays true.
        let own = self.rq.lock().hw.as_ref().map(|hw| hw.token);
        if own == Some(token) {
            self.fail_locked(state, cause);
        }
    }

    /// Ends the connection, or the attempt to make one, because of a failure of this end. As [`Qp::end_locked`].
    pub(super) fn fail_locked(&self, state: MutexGuard<'_, State>, cause: &dyn Cause) {
        let event = match state.attempt.phase {
            Phase::Connecting if state.active.is_some() => CmEvent::NonPeerRejected,
            Phase::Connecting => CmEvent::AcceptError,
            _ => CmEvent::Broken,
        };
        self.end_locked(state, event, cause);
    }

    /// Ends the connection, or the attempt to make one, unless that is under way. The caller has found out which it
    /// is with the lock of the state, which it hands over: without it the consumer may end that connection, reset the
    /// endpoint and begin another one. The caller holds no other lock and is in no read-side section.
    pub(super) fn end_locked(
        &self,
        mut state: MutexGuard<'_, State>,
        event: CmEvent,
        cause: &dyn Cause,
    ) {
        let before = state.attempt.phase;
        if !before.is_live() {
            return;
        }
        state.attempt.phase = Phase::Ending;
        state.active = None;
        let withheld = state.withheld.take();
        // Before the consumer knows of a connection, the device may have received on it already.
        let may_have_received = withheld.is_some();
        let requested = state.disconnect_requested;
        let unreported_done = before == Phase::Closing
            && event == CmEvent::Disconnected
            && state.have_unreported_had_their_time();
        let connecting = before == Phase::Connecting;
        // Destroying the identifier of an attempt ends the attempt.
        let id = if connecting {
            state.id.take()
        } else {
            state.id.clone()
        };
        drop(state);
        drop(withheld);
        let mut failure = None;
        if let Some(hw) = self.hw() {
            hw.stop();
            delay::point("verbs.stopped");
            if !connecting && let Some(id) = &id {
                self.send_disconnect(id);
            }
            let cqs: Vec<&Arc<Cq>> = queues(&hw).collect();
            let holds: Vec<Hold<'_>> = cqs.iter().map(|cq| cq.hold()).collect();
            // What is lost with the queue pair of the device is flushed below, but for the buffers of a
            // shared receive queue: which of them the device has taken, only its completions say.
            if !connecting || (may_have_received && hw.srq.is_some()) {
                drain(&hw, &holds);
            }
            self.remove(|hw| {
                hw.close_with(id.as_ref());
                for hold in &holds {
                    hold.collect();
                }
                if unreported_done {
                    hw.retire_unreported();
                }
                hw.retire(true);
            });
            drop(holds);
            failure = hw.failure().map(RequestFailed);
            for cq in cqs {
                cq.notify();
            }
        }
        drop(id);
        delay::point("verbs.flushed");
        let mut state = self.state.lock();
        if state.attempt.phase == Phase::Ending {
            state.attempt.phase = Phase::Ended;
        }
        let (event, cause): (_, &dyn Cause) = match (event, &failure) {
            // The disconnect with which the peer reacts to a failure may arrive first.
            (CmEvent::Disconnected, Some(failure)) if !requested => (CmEvent::Broken, failure),
            (CmEvent::Broken, Some(failure)) => (CmEvent::Broken, failure),
            (event, _) => (event, cause),
        };
        match self.failure_entry(&state, before, &event, cause) {
            Some(entry) => self.events.push(QpEvent::Log(entry)),
            None if event == CmEvent::Disconnected && !connecting => {
                self.push_step(&state, Step::Disconnected);
            }
            None => {}
        }
        self.events.push(QpEvent::Connection(event));
        drop(state);
        self.events.deliver();
    }

    /// Sends the peer a disconnect.
    pub(super) fn send_disconnect(&self, id: &CmId) {
        // SAFETY: the id is valid. An error means that the connection has ended.
        unsafe { (self.device.adapter.lib.rdma_disconnect)(id.raw) };
    }

    /// Ends the connection when the requests that are queued are done.
    pub(super) fn close_when_drained(&self) {
        if !self.try_close() {
            self.device
                .adapter
                .jobs
                .add(Job::Closing(self.weak.clone()));
        }
    }

    /// Ends a connection that is closing, if it can end; `false` if the caller is to try again.
    pub(super) fn try_close(&self) -> bool {
        let state = self.state.lock();
        if state.attempt.phase != Phase::Closing {
            return true;
        }
        let (sent, id) = (state.disconnect_sent, state.id.clone());
        let attempt = state.attempt.number();
        drop(state);
        let (Some(hw), Some(id)) = (self.hw(), id) else {
            self.end_attempt(attempt, CmEvent::Disconnected, &IN_ORDER);
            return true;
        };
        match sent {
            Some(when) if when.elapsed() < PEER_CLOSE_TIMEOUT => return false,
            Some(_) => {}
            None => {
                hw.send_cq.collect_and_notify();
                if !self.is_sent(&hw) {
                    return false;
                }
                if self.device.iwarp {
                    // The peer gets what is queued in TCP first, and then confirms the end.
                    let mut state = self.state.lock();
                    if !state.attempt.is_current(attempt) {
                        return true;
                    }
                    state.disconnect_sent = Some(Instant::now());
                    drop(state);
                    self.send_disconnect(&id);
                    return false;
                }
            }
        }
        self.end_attempt(attempt, CmEvent::Disconnected, &IN_ORDER);
        true
    }

    /// Whether all requests are done. Those at the end whose success the device does not report have
    /// their time, unless a marker behind them can tell.
    fn is_sent(&self, hw: &Hw) -> bool {
        if hw.send.len() == 0 {
            return true;
        }
        let mut state = self.state.lock();
        if !hw.send.is_unreported() {
            state.unreported_since = None;
            return false;
        }
        let is_first = state.unreported_since.is_none();
        state.unreported_since.get_or_insert_with(Instant::now);
        let done = state.have_unreported_had_their_time();
        drop(state);
        if is_first {
            post_marker(self, hw);
        }
        done
    }
}

impl State {
    /// Whether the requests at the end whose success the device does not report are taken for done.
    fn have_unreported_had_their_time(&self) -> bool {
        let since = self.unreported_since;
        since.is_some_and(|since| since.elapsed() >= UNREPORTED_TIME)
    }
}

/// Moves the completions of a queue pair that was stopped to the queues of this library.
pub(super) fn collect(hw: &Hw) {
    let cqs: Vec<&Arc<Cq>> = queues(hw).collect();
    let holds: Vec<Hold<'_>> = cqs.iter().map(|cq| cq.hold()).collect();
    drain(hw, &holds);
}

/// Collects the completions of a queue pair that flushes, unless the device has failed: it flushes nothing.
pub(super) fn drain(hw: &Hw, holds: &[Hold<'_>]) {
    let start = Instant::now();
    let adapter = &hw.device.adapter;
    let mut pause = Duration::from_micros(10);
    loop {
        // First: what completes with the last buffer is collected afterwards.
        let least = match &hw.srq {
            None => Duration::ZERO,
            Some(_) => {
                adapter.read_device_events();
                match adapter.is_done_with_srq(hw.token) {
                    true => Duration::ZERO,
                    false if adapter.reports_last_buffer.load(Ordering::Relaxed) => FLUSH_TIMEOUT,
                    false => SRQ_FLUSH_TIME,
                }
            }
        };
        for hold in holds {
            hold.collect();
        }
        let time = start.elapsed();
        // The consumer of a queue pair for datagrams waits for what became of its buffers only.
        let sent = hw.attr.datagrams
            || hw.send.len() == 0
            || hw.send.is_unreported() && time >= UNREPORTED_FLUSH_TIME;
        let done = sent && hw.recv.len() == 0;
        // Another thread may find out meanwhile that the device has failed.
        let failed = adapter.has_failed();
        if failed || (done && time >= least) || time >= FLUSH_TIMEOUT {
            if !failed && least > Duration::ZERO {
                adapter.reports_last_buffer.store(false, Ordering::Relaxed);
            }
            return;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}
