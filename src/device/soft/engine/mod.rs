//! The engine of a device: an epoll instance, timers, and a thread that serves both when no
//! consumer does.
//!
//! The engine lock decides who serves the sockets; a thread that does not get it leaves them
//! alone. A consumer that polls serves in its own thread ([`Engine::progress`]), and so does one
//! that blocks ([`Engine::block`](blocking)). The thread of the engine ([`thread`]) serves in the
//! times between. If a socket wakes the thread and consumers have polled since it last checked,
//! it pauses for as long as they go on polling. Without traffic it sleeps in the kernel.
//!
//! An established connection is watched with edge-triggered events, so that the kernel wakes one
//! thread for each arrival, and none for data that another thread has read. A thread that has
//! taken such an event has to serve it.
//!
//! The only socket that has been ready for long is read without asking the epoll instance first. While the
//! thread pauses and no consumer blocks, nothing sleeps in there, and that socket leaves it: an arrival for
//! a watched socket takes both ends some tenths of a microsecond.

pub(crate) mod acknowledgements;
mod batch;
pub(crate) mod blocking;
pub(crate) mod coalesced;
mod idle;
pub mod leader;
pub(crate) mod poll_set;
mod poll_watch;
pub mod presence;
pub mod ready_bitmap;
pub(crate) mod rounds;
mod scratch;
mod serve;
mod sources;
mod thread;
mod timers;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use crate::descriptor::OwnedFd;
use crate::kernel::event::epoll;
use crate::lock::{Condvar, Mutex};

use self::acknowledgements::Acknowledgements;
pub(crate) use self::acknowledgements::Acknowledger;
use self::batch::EpollBatch;
use self::coalesced::CoalescedSends;
use self::leader::LeaderSlot;
use self::poll_set::PollSet;
use self::poll_watch::PollWatch;
use self::presence::Presence;
use self::ready_bitmap::TakeBitmap;
use self::rounds::{LastServed, ServiceClock};
pub(crate) use self::scratch::{RX_BUFFER_LEN, Scratch};
use self::sources::Sources;
use self::timers::Timers;
pub(crate) use self::timers::{Timer, ZERO_TIME};
pub(crate) use self::watch::Watch;
use super::event_order::EventOrder;
use super::upcalls::Upcalls;
use crate::device::waker::Waker;
use crate::device::{DeviceError, PollOutcome};
use crate::handle::Guard;

pub(crate) use crate::kernel::event::epoll::EventFlags;

/// Turns in which what has arrived is placed before memory is deregistered, at most: a ring is empty before.
const ARRIVED_TURNS: u32 = 8;
/// The token of the event that wakes the leader.
const LEADER_WAKE: u64 = u64::MAX;
/// The token of the event that a timer has expired.
const TIMER: u64 = u64::MAX - 1;

/// Something that owns a watched socket.
pub(crate) trait Source: Send + Sync {
    /// The socket is ready. Called under the engine lock, never by two threads at once.
    fn ready(self: Arc<Self>, events: EventFlags, scratch: &mut Scratch, up: &mut Upcalls);
    /// Whether [`Source::ready`] may also be called on the chance that the socket is readable;
    /// the call then reports in [`Scratch::received`] whether it was.
    fn is_pollable(&self) -> bool {
        false
    }
    /// Consumers read the socket without asking the epoll instance, and nothing sleeps in that: it need
    /// not be in there. Each arrival for a socket of an epoll instance moves cache lines between the
    /// processors of both ends.
    fn leave_to_polls(&self, _up: &mut Upcalls) {}
    /// The socket is to be in the epoll instance again.
    fn take_from_polls(&self, _up: &mut Upcalls) {}
}

/// A connection that has read messages which are not delivered.
pub(crate) trait Backlog: Send + Sync {
    /// Delivers one of the messages, or `all`, and notes on the clock that the connection was served if
    /// one was complete; false if none is left. Called under the engine lock.
    fn deliver(&self, all: bool, clock: &ServiceClock, up: &mut Upcalls) -> bool;
    /// When the connection was served last.
    fn last_served(&self) -> &LastServed;
}

/// The part of an engine that its thread, its watched sockets and its timers share.
pub(crate) struct Inner {
    /// The slot of the consumer that serves while it blocks. Its waker has the epoll instance with the watched sockets
    /// and the timers.
    leader: LeaderSlot<Waker>,
    /// Number of times that a consumer was about to block and found another one leading.
    contenders: AtomicU32,
    /// The owners of the watched sockets.
    sources: Mutex<Sources>,
    /// The timers.
    timers: Timers,
    /// The engine lock, and what the thread that serves needs.
    scratch: Mutex<Scratch>,
    /// Number of threads that have taken events and wait for the engine lock to serve them.
    unserved_batches: AtomicU32,
    /// Number of connections over TCP. Without any, a poll makes no system call.
    tcp_conns: AtomicUsize,
    /// The connections that consumers poll without a system call.
    poll_set: PollSet,
    /// Whether a timer is set that serves once more.
    service_due: AtomicBool,
    /// Whether a timer is set that checks whether consumers still poll the poll set.
    poll_timer_set: AtomicBool,
    /// Number of polls of the poll set when that timer last expired.
    poll_watch: Mutex<PollWatch>,
    /// The connections with coalesced sends.
    coalesced: CoalescedSends,
    /// The connections that may owe an acknowledgement.
    acknowledgements: Acknowledgements,
    /// Whether a timer is set that flushes coalesced sends.
    flush_timer_set: AtomicBool,
    /// Number of polls that have served sockets, modulo 2^32.
    polls: AtomicU32,
    /// Whether the thread is elsewhere than in a wait for events.
    thread_busy: AtomicBool,
    /// Held by the thread while it decides to wait for `pause_end`.
    pause: Mutex<()>,
    /// Ends a pause of the thread early.
    pause_end: Condvar,
    /// The thread is to end.
    stop: AtomicBool,
    /// What the thread shows peers.
    presence: Option<Presence>,
    /// The thread has begun, and has done that.
    presence_shown: AtomicBool,
    /// The order in which connections begin and end.
    event_order: Arc<EventOrder>,
}

/// Numbers of what an engine has.
#[cfg(dat_sim)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remains {
    /// Timers that are set.
    pub timers: usize,
    /// Watched sockets.
    pub sources: usize,
    /// Connections with messages that were read and not delivered.
    pub backlog: usize,
    /// Connections over TCP.
    pub tcp_conns: usize,
    /// Connections with coalesced sends.
    pub coalesced: usize,
    /// Connections that may owe an acknowledgement.
    pub acknowledgements: usize,
}

impl Inner {
    /// The epoll instance.
    fn epoll(&self) -> &OwnedFd {
        self.leader.waker().epoll()
    }
}

/// The engine of a device.
pub(super) struct Engine {
    /// What the engine shares with its thread, sockets and timers.
    inner: Arc<Inner>,
    /// The thread, once it was started.
    thread: Mutex<Option<thread::Running>>,
}

impl Engine {
    /// An engine whose thread is not started. `take_bitmap` makes the ready bitmap of the
    /// connections, when there are many; `presence` is for the thread, if there may be peers in other processes of this
    /// host.
    pub fn new(take_bitmap: TakeBitmap, presence: Option<Presence>) -> std::io::Result<Engine> {
        let scratch = Scratch::new().map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        let inner = Inner {
            leader: LeaderSlot::new(Waker::new(LEADER_WAKE)?),
            contenders: AtomicU32::new(0),
            sources: Mutex::default(),
            timers: Timers::new()?,
            scratch: Mutex::new(scratch),
            unserved_batches: AtomicU32::new(0),
            tcp_conns: AtomicUsize::new(0),
            poll_set: PollSet::new(take_bitmap),
            service_due: AtomicBool::new(false),
            poll_timer_set: AtomicBool::new(false),
            poll_watch: Mutex::default(),
            coalesced: CoalescedSends::default(),
            acknowledgements: Acknowledgements::default(),
            flush_timer_set: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            thread_busy: AtomicBool::new(false),
            pause: Mutex::new(()),
            pause_end: Condvar::default(),
            stop: AtomicBool::new(false),
            presence,
            presence_shown: AtomicBool::new(false),
            event_order: Arc::default(),
        };
        let data = epoll::EventData::new_u64(TIMER);
        let edges = EventFlags::IN | EventFlags::ET;
        epoll::add(inner.epoll(), inner.timers.fd(), data, edges)?;
        Ok(Engine {
            inner: Arc::new(inner),
            thread: Mutex::new(None),
        })
    }

    /// Starts the thread unless it runs.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn start(&self) -> Result<(), DeviceError> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let started = thread::Running::start(&self.inner);
            *thread = Some(started.map_err(|_| DeviceError::Resources)?);
        }
        Ok(())
    }

    /// What is left in the engine.
    #[cfg(dat_sim)]
    pub fn remains(&self) -> Remains {
        let inner = &self.inner;
        Remains {
            timers: inner.timers.len(),
            sources: inner.sources.lock().len(),
            backlog: inner.scratch.lock().backlog.len(),
            tcp_conns: inner.tcp_conns.load(Ordering::Relaxed),
            coalesced: inner.coalesced.len(),
            acknowledgements: inner.acknowledgements.len(),
        }
    }

    /// What the thread does when it is woken, once.
    #[cfg(dat_sim)]
    pub fn serve_once(&self) {
        self.inner.serve_once();
    }

    /// A reference that shows whether anything of the engine is left.
    #[cfg(test)]
    pub fn witness(&self) -> std::sync::Weak<impl Sized + use<>> {
        Arc::downgrade(&self.inner)
    }

    /// Nothing is served until the result is dropped.
    #[cfg(test)]
    pub fn pause(&self) -> impl Sized + use<'_> {
        self.inner.scratch.lock()
    }

    /// Reads the socket that was the only ready one last, as a consumer that polls does which is put to sleep before
    /// that, so that something else happens meanwhile.
    #[cfg(test)]
    pub fn read_only_after(&self, meanwhile: impl FnOnce()) {
        let inner = &self.inner;
        let mut scratch = inner.lock();
        meanwhile();
        let mut up = Upcalls::default();
        scratch.read_only(&mut up);
        inner.deliver(&mut scratch, &mut up);
        inner.finish(scratch, up);
    }

    /// See [`PollSet`].
    #[cfg(test)]
    pub fn poll_set_is_at_rest(&self) -> bool {
        self.inner.poll_set.is_at_rest()
    }

    /// Checks for coalesced sends, as the thread does.
    #[cfg(test)]
    pub fn check_coalesced(&self) {
        self.inner.coalesced.flush_old();
    }

    /// Whether a socket was left to the polls.
    #[cfg(test)]
    pub fn has_left_to_polls(&self) -> bool {
        self.inner.scratch.lock().only_left
    }

    /// Whether the thread was started.
    #[cfg(test)]
    pub fn is_started(&self) -> bool {
        self.thread.lock().is_some()
    }

    /// Polls the connections that need no system call, for a consumer that polls.
    #[inline]
    pub fn poll(&self, guard: &Guard) -> PollOutcome {
        let inner = &self.inner;
        if inner.tcp_conns.load(Ordering::Relaxed) != 0 || !inner.coalesced.is_empty() {
            return PollOutcome::NeedsProgress;
        }
        inner.poll_set.poll(guard)
    }

    /// Polls the connections that need no system call, and serves the sockets unless another
    /// thread does.
    pub fn progress(&self) {
        let inner = &self.inner;
        inner.arrange(inner.poll_set.poll_and_adapt());
        inner.coalesced.flush();
        if inner.tcp_conns.load(Ordering::Relaxed) == 0 {
            return;
        }
        inner.polls.fetch_add(1, Ordering::Relaxed);
        if let Some(mut scratch) = inner.try_lock() {
            let mut up = Upcalls::default();
            let may_leave = || !inner.leader.is_taken() && !inner.serves_in_rounds();
            if scratch.try_only(may_leave, &mut up) {
                let idle = !scratch.received;
                inner.deliver(&mut scratch, &mut up);
                inner.finish(scratch, up);
                inner.acknowledgements.polled(idle);
                return;
            }
            let mut batch = EpollBatch::new();
            if batch.fill(inner.epoll(), Some(&ZERO_TIME)).is_ok() {
                let up = inner.serve_locked(&batch, &mut scratch);
                inner.finish(scratch, up);
                inner.acknowledgements.polled(batch.len() == 0);
            }
        }
    }

    /// Delivers what has arrived before this call, as far as there are receives. What peers send on meanwhile is
    /// delivered for [`ARRIVED_TURNS`] turns.
    pub fn place_arrived(&self) {
        let inner = &self.inner;
        let mut up = Upcalls::default();
        let due = inner.poll_set.serve_arrived(&mut up);
        up.run();
        inner.arrange(due);
        if inner.tcp_conns.load(Ordering::Relaxed) == 0 {
            return;
        }
        for _ in 0..ARRIVED_TURNS {
            let mut scratch = inner.lock();
            let mut up = Upcalls::default();
            scratch.read_left_to_polls(&mut up);
            let mut batch = EpollBatch::new();
            // What cannot be asked for has not arrived.
            let _ = batch.fill(inner.epoll(), Some(&ZERO_TIME));
            let served = inner.serve_locked(&batch, &mut scratch);
            let is_all = batch.len() == 0 && scratch.backlog.is_empty();
            inner.finish(scratch, served);
            up.run();
            if is_all {
                return;
            }
        }
    }

    /// A connection has started to receive: delivers the messages that it has read before, and
    /// those in rings that no consumer polls.
    pub fn serve_new(&self, backlog: Option<Arc<dyn Backlog>>, up: &mut Upcalls) {
        let inner = &self.inner;
        if let Some(backlog) = backlog {
            let mut scratch = inner.lock();
            scratch.defer(backlog, up);
            inner.deliver(&mut scratch, up);
            inner.finish(scratch, Upcalls::default());
        }
        inner.arrange(inner.poll_set.after_service(up));
    }

    /// Watches a socket until the result is dropped.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn watch(
        &self,
        fd: OwnedFd,
        events: EventFlags,
        source: Arc<dyn Source>,
    ) -> Result<Watch, DeviceError> {
        Watch::new(&self.inner, fd, events, source)
    }

    /// Runs `task` after `delay`, unless the result is dropped before.
    pub fn timer(
        &self,
        delay: Duration,
        task: impl FnOnce(&mut Upcalls) + Send + 'static,
    ) -> Timer {
        Timer::new(&self.inner, delay, Box::new(task))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        self.inner.interrupt_pause();
        // No leader is left that would clear the event.
        self.inner.leader.waker().wake();
        if let Some(thread) = self.thread.get_mut().take() {
            thread.join();
        }
        // Sources and timers that were not dropped may refer back to the engine.
        let sources = std::mem::take(&mut *self.inner.sources.lock());
        drop(sources);
        self.inner.timers.clear();
    }
}
