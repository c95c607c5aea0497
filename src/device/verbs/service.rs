//! The service thread of an IA, which handles the events of the device and of the connection
//! manager. It sleeps while there are none.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::delay;
use crate::lock::Mutex;

use super::adapter::{Adapter, Target};
use super::cm_event::CmEventData;
use super::deadlines::Deadlines;
use super::device_event::DeviceEvent;
use super::library_use::LibraryUse;
use super::qp::Qp;
use super::sources::{COMPLETIONS, CONNECTIONS, DEVICE, Sources, WAKE};
use super::{connect, datagram, listen, sys};
use crate::device::connection_log::Cause;
use crate::device::threads;
use crate::device::waker::Waker;

/// The shortest and the longest interval at which connections that are closing are checked.
const CLOSE_CHECK_INTERVALS: (Duration, Duration) =
    (Duration::from_micros(500), Duration::from_millis(20));

/// Work for the thread.
pub(super) enum Job {
    /// A request of the queue pair has failed, on its queue pair of the device with this
    /// [`token`](super::hw::Hw::token).
    Failed(Weak<Qp>, u64),
    /// The connection of the queue pair ends when the requests that are queued are done.
    Closing(Weak<Qp>),
    /// An attempt of the queue pair, by its number, ends at this time; the duration is that from
    /// its beginning.
    Deadline(Instant, Weak<Qp>, u64, Duration),
}

/// Work for the thread, and what wakes it.
pub(super) struct Jobs {
    waker: Waker,
    list: Mutex<Vec<Job>>,
    /// The thread is to end.
    stop: AtomicBool,
    /// The thread was started.
    started: Mutex<bool>,
}

impl Jobs {
    pub fn new() -> Result<Jobs, String> {
        Ok(Jobs {
            waker: Waker::new(WAKE.into()).map_err(|e| format!("no eventfd: {e}"))?,
            list: Mutex::default(),
            stop: AtomicBool::new(false),
            started: Mutex::new(false),
        })
    }

    /// Hands work to the thread.
    pub fn add(&self, job: Job) {
        self.list.lock().push(job);
        self.wake();
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// What wakes the thread.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

/// Starts the thread, if it does not run.
pub(super) fn start(adapter: &Arc<Adapter>) -> bool {
    let mut started = adapter.jobs.started.lock();
    if !*started {
        let result = Sources::new(adapter).and_then(|sources| {
            let mut service = Service {
                adapter: adapter.clone(),
                closing: Vec::new(),
                deadlines: Deadlines::new(),
                sources,
            };
            threads::start(c"dat-verbs", move || service.run())
        });
        if let Err(error) = &result {
            log::error!("no thread for an RDMA device: {error}");
        }
        *started = result.is_ok();
    }
    *started
}

/// A queue pair whose connection is closing.
struct Closing {
    qp: Weak<Qp>,
    since: Instant,
}

impl Closing {
    /// The time until it is to be checked again: a part of that for which it has been closing, since what has taken
    /// long may take long.
    fn interval(&self) -> Duration {
        let (shortest, longest) = CLOSE_CHECK_INTERVALS;
        (self.since.elapsed() / 8).clamp(shortest, longest)
    }
}

struct Service {
    adapter: Arc<Adapter>,
    closing: Vec<Closing>,
    /// Attempts with a time limit: the queue pair, the number of the attempt, and the duration of the limit.
    deadlines: Deadlines<(Weak<Qp>, u64, Duration)>,
    sources: Sources,
}

/// What the log has of a device that has failed by itself, and of one that was removed.
const HAS_FAILED: &str = "has failed";
const WAS_REMOVED: &str = "was removed";

/// The queue pair of the device with this [`token`](super::hw::Hw::token) has failed: its connection ends, or it goes
/// on if it is for datagrams.
fn queue_pair_failed(qp: &Weak<Qp>, token: u64, cause: &dyn Cause) {
    if let Some(qp) = qp.upgrade() {
        qp.fail_on(token, cause);
        datagram::go_on(&qp);
    }
}

impl Service {
    fn run(&mut self) {
        while !self.is_over() {
            let (ready, ended) = self.sleep();
            if ready & WAKE != 0 {
                self.adapter.jobs.waker.clear();
            }
            if ready & COMPLETIONS != 0 {
                self.completion_events();
            }
            if ready & DEVICE != 0 {
                self.adapter.read_device_events();
            }
            // Others have read some.
            while let Some(event) = self.adapter.take_device_event() {
                self.device_event(event);
            }
            if ready & CONNECTIONS != 0 {
                self.connection_events();
            }
            if ended & !WAKE != 0 {
                self.device_is_gone(WAS_REMOVED, &"the device was removed");
            }
            self.jobs();
            self.expire();
            self.closing
                .retain(|closing| closing.qp.upgrade().is_some_and(|qp| !qp.try_close()));
        }
    }

    /// Whether the IA is closed, and nothing is left of it that an event is to end.
    fn is_over(&self) -> bool {
        self.adapter.jobs.stop.load(Ordering::Acquire) && self.adapter.unanswered.is_empty()
    }

    /// Waits for events. Gives the sources that have some, and those that have no more from now on.
    fn sleep(&mut self) -> (u32, u32) {
        let deadline = self.deadlines.first();
        let deadline = deadline.map(|when| when.saturating_duration_since(Instant::now()));
        let checks = self.closing.iter().map(Closing::interval);
        let limit = checks.chain(deadline).min();
        self.sources.wait(&self.adapter.jobs.waker, limit)
    }

    fn completion_events(&self) {
        let lib = self.adapter.lib;
        loop {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel is open; places for the results are valid.
            if unsafe { (lib.ibv_get_cq_event)(self.adapter.comp_channel, &mut cq, &mut context) }
                != 0
            {
                return;
            }
            // SAFETY: the queue is not destroyed before its events are acknowledged.
            unsafe { (lib.ibv_ack_cq_events)(cq, 1) };
            if let Some(Target::Cq(cq)) = self.adapter.target(context)
                && let Some(cq) = cq.upgrade()
            {
                delay::point("verbs.cq_event");
                cq.on_event();
            }
        }
    }

    fn device_event(&self, event: DeviceEvent) {
        let DeviceEvent {
            kind,
            token,
            target,
        } = event;
        match (kind.event, target) {
            (sys::EVENT_DEVICE_FATAL, _) => {
                self.device_is_gone(HAS_FAILED, &"the device has failed");
            }
            (sys::EVENT_CQ_ERR, Some(Target::Cq(cq))) => {
                if let Some(cq) = cq.upgrade() {
                    cq.on_overflow();
                }
            }
            (
                sys::EVENT_QP_FATAL | sys::EVENT_QP_REQ_ERR | sys::EVENT_QP_ACCESS_ERR,
                Some(Target::Qp(qp)),
            ) => {
                let cause = match kind.event {
                    sys::EVENT_QP_FATAL => "the device reports a fatal error of the endpoint",
                    sys::EVENT_QP_REQ_ERR => "the device reports an invalid request",
                    _ => "the device reports an access violation",
                };
                queue_pair_failed(&qp, token, &cause);
            }
            (sys::EVENT_COMM_EST, Some(Target::Qp(qp))) => {
                if let Some(qp) = qp.upgrade() {
                    connect::on_early_data(&qp);
                }
            }
            (sys::EVENT_SRQ_LIMIT_REACHED, Some(Target::Srq(srq))) => {
                if let Some(srq) = srq.upgrade() {
                    srq.on_limit();
                }
            }
            (sys::EVENT_SRQ_ERR, Some(Target::Srq(srq))) => {
                let device = &self.adapter.name;
                log::error!("a shared receive queue of the RDMA device {device} has failed");
                if let Some(srq) = srq.upgrade() {
                    srq.on_failure();
                }
            }
            _ => kind.log(&self.adapter),
        }
    }

    fn connection_events(&self) {
        let lib = self.adapter.lib;
        loop {
            let mut event = null_mut();
            let library_use = LibraryUse::begin_opening();
            // SAFETY: the channel is open, the place for the event valid.
            if unsafe { (lib.rdma_get_cm_event)(self.adapter.cm_channel, &mut event) } != 0 {
                return;
            }
            drop(library_use);
            // SAFETY: the event and its ids are valid until it is acknowledged.
            let data = unsafe { CmEventData::read(&self.adapter, &*event) };
            // SAFETY: as above, and nothing of it is used after this.
            unsafe { (lib.rdma_ack_cm_event)(event) };
            delay::point("verbs.cm_event");
            if data.kind.event == sys::CM_DEVICE_REMOVAL {
                self.device_is_gone(WAS_REMOVED, &data.kind);
            }
            // An event about a request that was sent is its answer.
            self.adapter.unanswered.answered(data.token);
            match data.target.clone() {
                Some(Target::Conn(qp, attempt)) => {
                    if let Some(qp) = qp.upgrade() {
                        connect::on_event(&qp, attempt, data);
                    }
                }
                Some(Target::Listener(listening)) => listen::on_request(&listening, data),
                Some(Target::Request(request)) => {
                    if let Some(request) = request.upgrade() {
                        request.set_withdrawn();
                    }
                }
                _ => {}
            }
        }
    }

    /// The device has failed or was removed, which is logged once: everything ends that there is on it. Not
    /// all of it gets an event of its own.
    fn device_is_gone(&self, what: &str, cause: &dyn Cause) {
        if !self.adapter.set_failed() {
            return;
        }
        log::error!("the RDMA device {} {what}", self.adapter.name);
        for qp in self.adapter.queue_pairs() {
            qp.fail_locked(qp.state.lock(), cause);
            datagram::go_on(&qp);
        }
        if let Some(handler) = self.adapter.handler.get() {
            handler.failed();
        }
    }

    fn jobs(&mut self) {
        let jobs = std::mem::take(&mut *self.adapter.jobs.list.lock());
        for job in jobs {
            match job {
                Job::Failed(qp, token) => {
                    queue_pair_failed(&qp, token, &"a request of this end failed");
                }
                Job::Closing(qp) => self.closing.push(Closing {
                    qp,
                    since: Instant::now(),
                }),
                Job::Deadline(when, qp, attempt, timeout) => {
                    let entry = (qp, attempt, timeout);
                    let is_made = |(qp, attempt, _): &(Weak<Qp>, u64, Duration)| {
                        let qp = qp.upgrade();
                        qp.is_some_and(|qp| connect::is_being_made(&qp, *attempt))
                    };
                    self.deadlines.insert(when, entry, is_made);
                }
            }
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while let Some((qp, attempt, timeout)) = self.deadlines.take_until(now) {
            if let Some(qp) = qp.upgrade() {
                connect::expire(&qp, attempt, timeout);
            }
        }
    }
}
