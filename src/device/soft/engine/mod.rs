//! The engine of a device: one epoll instance, timers, and a thread that serves them when no
//! consumer does.
//!
//! Whoever holds the engine lock serves sockets; others stay away. A consumer that polls serves
//! in its own thread ([`Engine::progress`]), and so does one that blocks
//! ([`Engine::block`](crate::device::soft::engine::blocking)). The thread of the engine is for the times in between. Woken
//! by a socket, and seeing that there were polls since it last looked, it steps aside for as
//! long as they go on. Without traffic it sleeps in the kernel for as long as it takes.
//!
//! An established connection is watched for edges, so that the kernel wakes one thread for what
//! comes and not another when that one has looked. Whoever takes an edge has to serve it.

pub(crate) mod blocking;
pub(super) mod coalesced;
pub(super) mod event_order;
pub(crate) mod idle;
pub mod leader;
pub(super) mod poll_set;
pub(crate) mod rounds;
pub(super) mod scratch;
pub(crate) mod source;
pub(super) mod timers;

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use self::blocking::Eventfd;
use self::coalesced::Unsent;
use self::event_order::Handshakes;
use self::leader::{Bell, Seat};
use self::poll_set::PolledSet;
use self::rounds::{LastTurn, ROUNDS};
pub(crate) use self::scratch::{RX, Scratch};
pub(crate) use self::source::Watch;
pub(crate) use self::timers::Timer;
use self::timers::Timers;
use super::upcalls::Upcalls;
use crate::device::{DeviceError, PollOutcome, threads};
use crate::handle::Guard;

pub(crate) use rustix::event::epoll::EventFlags;

/// How long the thread leaves sockets to consumers before it looks whether they still serve.
pub(super) const NAP: Duration = Duration::from_millis(1);
/// Sockets that are asked for at a time.
const BATCH: usize = 64;
/// No wait.
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
/// Events that are not of a source: the bell of the seat, and the clock of the timers.
const BELL: u64 = u64::MAX;
const CLOCK: u64 = u64::MAX - 1;

/// Something that owns a watched socket.
pub(crate) trait Source: Send + Sync {
    /// The socket is ready. Called under the engine lock, never in two threads at once.
    fn ready(self: Arc<Self>, events: EventFlags, scratch: &mut Scratch, up: &mut Upcalls);
    /// Whether it is worth while to try without being told, which is what [`Source::ready`] is
    /// called for then; it says in [`Scratch::came`] whether there was something.
    fn may_be_tried(&self) -> bool {
        false
    }
}

/// A connection that has read messages which are not delivered.
pub(crate) trait Backlog: Send + Sync {
    /// Delivers one of them, or all; false if none is left. Called under the engine lock.
    fn deliver(&self, all: bool, up: &mut Upcalls) -> bool;
    /// When it was served last.
    fn last_turn(&self) -> &LastTurn;
}

/// Events that were taken from the epoll instance, and are to be served.
pub(crate) struct Batch {
    events: [MaybeUninit<epoll::Event>; BATCH],
    len: usize,
}

impl Batch {
    pub fn new() -> Batch {
        Batch {
            events: [const { MaybeUninit::uninit() }; BATCH],
            len: 0,
        }
    }

    /// Takes those that are there, or waits for some.
    pub fn fill(&mut self, epoll: &OwnedFd, timeout: Option<&Timespec>) -> Result<(), Errno> {
        self.len = 0;
        let (ready, _) = epoll::wait(epoll, &mut self.events, timeout)?;
        self.len = ready.len();
        Ok(())
    }

    fn iter(&self) -> impl Iterator<Item = &epoll::Event> {
        // SAFETY: so many were written.
        self.events[..self.len]
            .iter()
            .map(|event| unsafe { event.assume_init_ref() })
    }

    fn contains(&self, token: u64) -> bool {
        self.iter().any(|event| event.data.u64() == token)
    }
}

#[derive(Default)]
pub(crate) struct Sources {
    /// Generation, so that an event of a socket that is gone does not reach its successor.
    slots: Vec<(u32, Option<Arc<dyn Source>>)>,
    free: Vec<u32>,
}

impl Sources {
    pub(crate) fn add(&mut self, source: Arc<dyn Source>) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.1 = Some(source);
        u64::from(slot.0) << 32 | u64::from(index)
    }

    /// Empty slots and those of an engine that has ended have none.
    fn slot(&mut self, token: u64) -> Option<&mut (u32, Option<Arc<dyn Source>>)> {
        let slot = self.slots.get_mut(token as u32 as usize)?;
        (u64::from(slot.0) == token >> 32).then_some(slot)
    }

    pub(crate) fn replace(
        &mut self,
        token: u64,
        source: Arc<dyn Source>,
    ) -> Option<Arc<dyn Source>> {
        self.slot(token)?.1.replace(source)
    }

    pub(crate) fn remove(&mut self, token: u64) -> Option<Arc<dyn Source>> {
        let slot = self.slot(token)?;
        slot.0 = slot.0.wrapping_add(1);
        let source = slot.1.take();
        self.free.push(token as u32);
        source
    }
}

pub(crate) struct Inner {
    pub(super) epoll: OwnedFd,
    /// The place of the consumer that serves while it blocks.
    pub(crate) seat: Seat<Eventfd>,
    /// Counts consumers that have found it taken.
    pub(super) guests: AtomicU32,
    pub(crate) sources: Mutex<Sources>,
    pub(super) timers: Timers,
    /// The engine lock.
    work: Mutex<Scratch>,
    /// Threads that have taken events without the lock, and have not called the sources yet.
    in_hand: AtomicU32,
    /// Connections; without any there is nothing to poll for.
    pub(crate) streams: AtomicUsize,
    /// Connections that are looked at without the kernel.
    pub(crate) polled: PolledSet,
    /// A timer is set that looks whether there are looks; how many there were the last time.
    pub(super) ticking: AtomicBool,
    pub(crate) looks: Mutex<u32>,
    /// Connections that have gathered requests, and whether a timer is set to look at them.
    pub(super) unsent: Unsent,
    pub(super) unsent_looks: AtomicBool,
    /// Counts polls, to show that there are some.
    pub(crate) polls: AtomicU32,
    /// The thread is elsewhere than in the epoll instance.
    pub(crate) away: AtomicBool,
    pub(super) nap: Mutex<()>,
    pub(super) nap_end: Condvar,
    stop: AtomicBool,
    pub(super) handshakes: Arc<Handshakes>,
}

/// See the module.
pub(super) struct Engine {
    pub(crate) inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Without a thread yet.
    pub fn new() -> std::io::Result<Engine> {
        let inner = Inner {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            seat: Seat::new(Eventfd::new()?),
            guests: AtomicU32::new(0),
            sources: Mutex::default(),
            timers: Timers::new()?,
            work: Mutex::default(),
            in_hand: AtomicU32::new(0),
            streams: AtomicUsize::new(0),
            polled: PolledSet::default(),
            ticking: AtomicBool::new(false),
            looks: Mutex::new(0),
            unsent: Unsent::default(),
            unsent_looks: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            away: AtomicBool::new(false),
            nap: Mutex::new(()),
            nap_end: Condvar::new(),
            stop: AtomicBool::new(false),
            handshakes: Arc::default(),
        };
        let data = epoll::EventData::new_u64;
        let edges = EventFlags::IN | EventFlags::ET;
        epoll::add(&inner.epoll, inner.seat.bell(), data(BELL), EventFlags::IN)?;
        epoll::add(&inner.epoll, inner.timers.clock(), data(CLOCK), edges)?;
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
            let inner = self.inner.clone();
            let handle = threads::start("dat-soft", move || {
                ask_for_short_slices();
                inner.run();
            });
            *thread = Some(handle.map_err(|_| DeviceError::Resources)?);
        }
        Ok(())
    }

    /// Shows whether anything of the engine is left.
    #[cfg(test)]
    pub fn witness(&self) -> std::sync::Weak<impl Sized + use<>> {
        Arc::downgrade(&self.inner)
    }

    /// Nothing is served until the result is dropped.
    #[cfg(test)]
    pub fn pause(&self) -> impl Sized + use<'_> {
        self.inner.work.lock()
    }

    #[cfg(test)]
    pub fn is_started(&self) -> bool {
        self.thread.lock().is_some()
    }

    /// Looks at what can be looked at without the kernel, for a consumer that polls.
    #[inline]
    pub fn look(&self, guard: &Guard) -> PollOutcome {
        if self.inner.streams.load(Ordering::Relaxed) != 0 {
            return PollOutcome::NeedsProgress;
        }
        self.inner.polled.look(guard)
    }

    /// Serves sockets if nobody does, and what is looked at without them.
    pub fn progress(&self) {
        let inner = &self.inner;
        if inner.polled.look_around() {
            inner.tick();
        }
        if inner.streams.load(Ordering::Relaxed) == 0 {
            return;
        }
        inner.polls.fetch_add(1, Ordering::Relaxed);
        inner.unsent.send();
        if let Some(mut scratch) = inner.work.try_lock() {
            let mut up = Upcalls::default();
            scratch.in_rounds = inner.has_several();
            if scratch.try_only(&mut up) {
                inner.deliver(&mut scratch, &mut up);
                return inner.finish(scratch, up);
            }
            let mut batch = Batch::new();
            if batch.fill(&inner.epoll, Some(&AT_ONCE)).is_ok() {
                let up = inner.work(&batch, &mut scratch);
                inner.finish(scratch, up);
            }
        }
    }

    /// A connection has started to receive: what it has read already is delivered, and what is in
    /// rings that nobody looks at.
    pub fn serve_new(&self, backlog: Option<Arc<dyn Backlog>>, up: &mut Upcalls) {
        let inner = &self.inner;
        if let Some(backlog) = backlog {
            let mut scratch = inner.work.lock();
            scratch.in_rounds = inner.has_several();
            scratch.backlog.push(backlog);
            inner.deliver(&mut scratch, up);
            inner.finish(scratch, Upcalls::default());
        }
        if inner.polled.served(up) {
            inner.tick();
        }
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

/// Asks the scheduler to run this thread soon and briefly.
///
/// Programs poll memory for RDMA writes with all the cores they have; our thread, which puts the
/// writes there, would wait for the slice of such a program to end. Kernels before 6.12 ignore
/// it.
fn ask_for_short_slices() {
    /// `struct sched_attr` of sched_setattr(2), its first version.
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let mut attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: 0,
        priority: 0,
        // The shortest slice there is, in nanoseconds.
        runtime: 100_000,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the structure is as large as it says, and lives during the calls.
    unsafe {
        // The niceness stays what it is.
        attr.nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        drop(self.inner.nap.lock());
        self.inner.nap_end.notify_one();
        // There is no leader any more that would take it back.
        self.inner.seat.bell().ring();
        if let Some(thread) = self.thread.get_mut().take() {
            // An upcall may have dropped the device: the thread then ends by itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        // Sockets and timers that nobody waits for any more may refer back to the engine.
        let sources = std::mem::take(&mut *self.inner.sources.lock());
        drop(sources);
        self.inner.timers.clear();
    }
}

impl Inner {
    fn run(self: &Arc<Self>) {
        let mut seen = self.polls.load(Ordering::Relaxed);
        let mut batch = Batch::new();
        while !self.stop.load(Ordering::SeqCst) {
            self.away.store(false, Ordering::Relaxed);
            let taken = batch.fill(&self.epoll, None);
            self.away.store(true, Ordering::Relaxed);
            if taken.is_err() {
                continue;
            }
            self.serve(&batch);
            if batch.contains(BELL) {
                // The leader that it rings for needs a processor to hush it.
                self.nap();
            }
            // Consumers that poll serve.
            loop {
                let polls = self.polls.load(Ordering::Relaxed);
                if std::mem::replace(&mut seen, polls) == polls {
                    break;
                }
                self.nap();
            }
        }
        self.away.store(false, Ordering::Relaxed);
    }

    fn nap(&self) {
        let end = Instant::now() + NAP;
        loop {
            self.unsent.tick();
            let mut nap = self.nap.lock();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stop.load(Ordering::SeqCst) {
                return;
            }
            let next = self.unsent.due().map_or(left, |due| due.min(left));
            self.nap_end.wait_for(&mut nap, next);
        }
    }

    /// Serves what was taken.
    pub(crate) fn serve(self: &Arc<Self>, batch: &Batch) {
        self.in_hand.fetch_add(1, Ordering::SeqCst);
        let mut scratch = self.work.lock();
        self.in_hand.fetch_sub(1, Ordering::SeqCst);
        let up = self.work(batch, &mut scratch);
        self.finish(scratch, up);
    }

    /// Whether there is more than one connection over TCP.
    fn has_several(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > 1
    }

    fn work(self: &Arc<Self>, batch: &Batch, scratch: &mut Scratch) -> Upcalls {
        let mut up = Upcalls::default();
        scratch.in_rounds = self.has_several();
        self.read(batch, scratch, &mut up);
        self.deliver(scratch, &mut up);
        if self.polled.served(&mut up) {
            self.tick();
        }
        up
    }

    /// Calls the sources of the events.
    fn read(&self, batch: &Batch, scratch: &mut Scratch, up: &mut Upcalls) {
        scratch.clock |= batch.contains(CLOCK);
        for event in batch.iter() {
            let token = event.data.u64();
            let source = self.sources.lock().slot(token).and_then(|s| s.1.clone());
            if let Some(source) = source {
                scratch.note(&source, batch.len == 1);
                source.ready(event.flags, scratch, up);
            }
        }
    }

    /// Delivers what was read and is not delivered, in [`rounds`].
    fn deliver(&self, scratch: &mut Scratch, up: &mut Upcalls) {
        for round in 0..=ROUNDS {
            if scratch.backlog.is_empty() {
                return;
            }
            let mut turns = std::mem::take(&mut scratch.backlog);
            if scratch.in_rounds {
                let mut batch = Batch::new();
                // One that has a backlog is not read again: so this comes to an end.
                while batch.fill(&self.epoll, Some(&AT_ONCE)).is_ok() && batch.len > 0 {
                    self.read(&batch, scratch, up);
                    if scratch.backlog.is_empty() {
                        break;
                    }
                    turns.append(&mut scratch.backlog);
                }
                if self.in_hand.load(Ordering::SeqCst) > 0 {
                    // What another thread is about to read may come first: it goes on then.
                    scratch.backlog = turns;
                    return;
                }
                turns.sort_by_key(|connection| connection.last_turn().get());
            }
            for connection in turns {
                scratch.turns.note(connection.last_turn());
                if connection.deliver(round == ROUNDS, up) {
                    scratch.backlog.push(connection);
                }
            }
        }
    }

    /// Gives the engine lock back, and does what is done without it.
    fn finish(&self, mut scratch: MutexGuard<'_, Scratch>, up: Upcalls) {
        let clock = std::mem::take(&mut scratch.clock);
        drop(scratch);
        up.run();
        if clock {
            self.timers.run();
        }
    }
}
