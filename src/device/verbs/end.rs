//! How connections end: whoever is told of it finds everything that was outstanding in the
//! completion queues, done or flushed.
//!
//! The device is told to flush, its completions are collected until nothing is left, and then
//! its queue pair goes. What a device does not flush in time is flushed by us.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cq::{Cq, Hold};
use super::hw::Hw;
use super::id::CmId;
use super::qp::Qp;
use super::service::Job;
use crate::device::attempt::Phase;
use crate::device::connection_log::{Cause, IN_ORDER};
use crate::device::events::QpEvent;
use crate::device::{CmEvent, WcStatus};

/// How long the device may take to flush.
const FLUSH: Duration = Duration::from_millis(500);
/// How long it may take to be done with the buffers of a shared queue that it holds: nobody
/// tells.
const SETTLE: Duration = Duration::from_millis(2);
/// How long a peer may take to agree to the end of an iWARP connection.
const AGREE: Duration = Duration::from_secs(3);

/// The device has completed a request with an error.
struct RequestFailed(WcStatus);

impl fmt::Display for RequestFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a request of this end failed: {}", self.0)
    }
}

impl Cause for RequestFailed {}

/// The completion queues of a queue pair, each once.
fn queues(hw: &Hw) -> impl Iterator<Item = &Arc<Cq>> {
    let second = (!Arc::ptr_eq(&hw.send_cq, &hw.recv_cq)).then_some(&hw.recv_cq);
    std::iter::once(&hw.send_cq).chain(second)
}

impl Qp {
    /// Ends the connection, or the attempt to make one, unless that is under way. The caller
    /// holds no lock and is in no read-side section.
    pub(super) fn end(&self, event: CmEvent, cause: &dyn Cause) {
        let mut state = self.state.lock();
        let before = state.attempt.phase;
        if !before.is_live() {
            return;
        }
        state.attempt.phase = Phase::Ending;
        state.dial = None;
        let withheld = state.withheld.take();
        let local = state.local_end;
        let connecting = before == Phase::Connecting;
        // Destroying the identifier takes an attempt back.
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
            if !connecting && let Some(id) = &id {
                self.hang_up(id);
            }
            let cqs: Vec<&Arc<Cq>> = queues(&hw).collect();
            let holds: Vec<Hold<'_>> = cqs.iter().map(|cq| cq.hold()).collect();
            if !connecting {
                drain(&hw, &holds);
            }
            self.remove(|hw| {
                hw.close_with(id.as_ref());
                for hold in &holds {
                    hold.collect();
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
        let mut state = self.state.lock();
        if state.attempt.phase == Phase::Ending {
            state.attempt.phase = Phase::Ended;
        }
        let (event, cause): (_, &dyn Cause) = match (event, &failure) {
            // The end that a failure makes the peer come to may show first.
            (CmEvent::Disconnected, Some(failure)) if !local => (CmEvent::Broken, failure),
            (CmEvent::Broken, Some(failure)) => (CmEvent::Broken, failure),
            (event, _) => (event, cause),
        };
        if let Some(line) = self.report(&state, before, &event, cause) {
            self.events.push(QpEvent::Log(line));
        }
        self.events.push(QpEvent::Connection(event));
        drop(state);
        self.events.deliver();
    }

    /// Tells the peer that the connection is over.
    pub(super) fn hang_up(&self, id: &CmId) {
        // SAFETY: the id is valid. An error means that the peer knows already.
        unsafe { (self.device.adapter.lib.rdma_disconnect)(id.raw) };
    }

    /// Ends the connection when the requests that are queued are done.
    pub(super) fn close_soon(&self) {
        if !self.try_close() {
            self.device.adapter.jobs.add(Job::Closing(self.me.clone()));
        }
    }

    /// Looks whether a connection that is closing can end; `true` if there is nothing to wait
    /// for any more.
    pub(super) fn try_close(&self) -> bool {
        let state = self.state.lock();
        if state.attempt.phase != Phase::Closing {
            return true;
        }
        let (told, id) = (state.told, state.id.clone());
        drop(state);
        let (Some(hw), Some(id)) = (self.hw(), id) else {
            self.end(CmEvent::Disconnected, &IN_ORDER);
            return true;
        };
        match told {
            Some(when) if when.elapsed() < AGREE => return false,
            Some(_) => {}
            None => {
                hw.send_cq.collect_and_notify();
                if hw.send.len() > 0 {
                    return false;
                }
                if self.device.iwarp {
                    // What is queued in TCP goes before the end, which the peer confirms.
                    self.state.lock().told = Some(Instant::now());
                    self.hang_up(&id);
                    return false;
                }
            }
        }
        self.end(CmEvent::Disconnected, &IN_ORDER);
        true
    }
}

/// Collects the completions of a queue pair that was stopped, into our own queue.
pub(super) fn collect(hw: &Hw) {
    let cqs: Vec<&Arc<Cq>> = queues(hw).collect();
    let holds: Vec<Hold<'_>> = cqs.iter().map(|cq| cq.hold()).collect();
    drain(hw, &holds);
}

/// Collects the completions of a queue pair that flushes.
fn drain(hw: &Hw, holds: &[Hold<'_>]) {
    let start = Instant::now();
    let least = if hw.srq.is_some() {
        SETTLE
    } else {
        Duration::ZERO
    };
    let mut pause = Duration::from_micros(10);
    loop {
        for hold in holds {
            hold.collect();
        }
        let time = start.elapsed();
        let done = hw.send.len() == 0 && hw.recv.len() == 0;
        if (done && time >= least) || time >= FLUSH {
            return;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}
