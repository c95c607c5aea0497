//! The engine of a device: one epoll instance, timers, and a thread that serves them when no
//! consumer does.
//!
//! Whoever holds the engine lock serves sockets; others stay away. A consumer that polls serves
//! in its own thread ([`Engine::progress`]). The thread of the engine then keeps out of the
//! way: woken by a socket, and seeing that there were polls since it last looked, it naps for a
//! moment instead, and only serves if nobody else has by then. A consumer that is about to
//! block ends that at once ([`Engine::before_block`]). Without traffic the thread sleeps in the
//! kernel for as long as it takes.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use super::handshakes::Handshakes;
use super::polled::PolledSet;
use super::upcall::Upcalls;
pub(super) use super::watch::{Timer, Watch};
use crate::device::DeviceError;

pub(super) use rustix::event::epoll::EventFlags;

/// How long the thread leaves sockets to consumers that poll.
const NAP: Duration = Duration::from_millis(1);
/// Bytes of the buffer that all sockets are read into.
pub(super) const RX: usize = 512 * 1024;
/// Sockets served in one round.
const BATCH: usize = 64;

/// Something that owns a watched socket.
pub(super) trait Source: Send + Sync {
    /// The socket is ready. Called under the engine lock, never in two threads at once.
    fn ready(self: Arc<Self>, events: EventFlags, scratch: &mut Scratch, up: &mut Upcalls);
}

/// What serving needs and all sockets share.
#[derive(Default)]
pub(super) struct Scratch {
    rx: Vec<u8>,
}

impl Scratch {
    /// Memory for received bytes, there from the first use on.
    pub fn rx(&mut self) -> &mut [u8] {
        if self.rx.is_empty() {
            self.rx = vec![0; RX];
        }
        &mut self.rx
    }
}

pub(super) type Task = Box<dyn FnOnce(&mut Upcalls) + Send>;

#[derive(Default)]
pub(super) struct Timers {
    pub(super) queue: BTreeMap<(Instant, u64), Task>,
    pub(super) next: u64,
}

#[derive(Default)]
pub(super) struct Sources {
    /// Generation, so that an event of a socket that is gone does not reach its successor.
    slots: Vec<(u32, Option<Arc<dyn Source>>)>,
    free: Vec<u32>,
}

impl Sources {
    pub(super) fn add(&mut self, source: Arc<dyn Source>) -> u64 {
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

    pub(super) fn replace(
        &mut self,
        token: u64,
        source: Arc<dyn Source>,
    ) -> Option<Arc<dyn Source>> {
        self.slot(token)?.1.replace(source)
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<Arc<dyn Source>> {
        let slot = self.slot(token)?;
        slot.0 = slot.0.wrapping_add(1);
        let source = slot.1.take();
        self.free.push(token as u32);
        source
    }
}

pub(super) struct Inner {
    pub(super) epoll: OwnedFd,
    /// Wakes the thread, and only the thread: consumers do not look at it.
    wake: OwnedFd,
    pub(super) sources: Mutex<Sources>,
    pub(super) timers: Mutex<Timers>,
    /// The engine lock.
    work: Mutex<Scratch>,
    /// Connections; without any there is nothing to poll for.
    pub(super) streams: AtomicUsize,
    /// Connections that are looked at without the kernel.
    pub(super) polled: PolledSet,
    /// Counts polls, to show that there are some.
    polls: AtomicU32,
    /// A consumer blocks: the thread has to serve.
    blocked: AtomicBool,
    napping: AtomicBool,
    nap: Mutex<()>,
    nap_end: Condvar,
    stop: AtomicBool,
    pub(super) handshakes: Arc<Handshakes>,
}

/// See the module.
pub(super) struct Engine {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Without a thread yet.
    pub fn new() -> std::io::Result<Engine> {
        let inner = Inner {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sources: Mutex::default(),
            timers: Mutex::default(),
            work: Mutex::default(),
            streams: AtomicUsize::new(0),
            polled: PolledSet::default(),
            polls: AtomicU32::new(0),
            blocked: AtomicBool::new(false),
            napping: AtomicBool::new(false),
            nap: Mutex::new(()),
            nap_end: Condvar::new(),
            stop: AtomicBool::new(false),
            handshakes: Arc::default(),
        };
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
            let builder = std::thread::Builder::new().name("dat-soft".into());
            let body = move || {
                ask_for_short_slices();
                inner.run();
            };
            let handle = without_signals(|| builder.spawn(body));
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

    /// Whether there is anything to serve for a consumer that polls.
    #[inline]
    pub fn progresses(&self) -> bool {
        !self.inner.polled.is_empty() || self.inner.streams.load(Ordering::Relaxed) != 0
    }

    /// Serves sockets if nobody does, and what is looked at without them.
    #[inline]
    pub fn progress(&self) {
        let inner = &*self.inner;
        if inner.polled.look() {
            inner.wake();
        }
        if inner.streams.load(Ordering::Relaxed) == 0 {
            return;
        }
        inner.polls.fetch_add(1, Ordering::Relaxed);
        if let Some(mut scratch) = inner.work.try_lock() {
            let up = inner.serve(&mut scratch);
            drop(scratch);
            up.run();
        }
    }

    /// From now on the thread serves.
    pub fn before_block(&self) {
        let inner = &*self.inner;
        inner.polled.sleep();
        inner.blocked.store(true, Ordering::SeqCst);
        if inner.napping.load(Ordering::SeqCst) {
            let _nap = inner.nap.lock();
            inner.nap_end.notify_one();
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

/// Runs `f` with all signals blocked: a thread that it starts never runs a signal handler of
/// the program.
fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: all zero is a valid place for a set, and the sets are valid for the calls.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        self.before_block();
        self.inner.wake();
        if let Some(thread) = self.thread.get_mut().take() {
            // An upcall may have dropped the device: the thread then ends by itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        // Sockets and timers that nobody waits for any more may refer back to the engine.
        let sources = std::mem::take(&mut *self.inner.sources.lock());
        let timers = std::mem::take(&mut *self.inner.timers.lock());
        drop((sources, timers));
    }
}

impl Inner {
    fn run(&self) {
        let mut seen = self.polls.load(Ordering::Relaxed);
        let mut looks = 0;
        let mut tick = None;
        while !self.stop.load(Ordering::SeqCst) {
            let mut timeout = self.run_timers();
            if self.polled.is_ticking() {
                let now = Instant::now();
                let at = *tick.get_or_insert(now + NAP);
                if now >= at {
                    self.polled.tick(&mut looks);
                    tick = None;
                    continue;
                }
                timeout = Some(timeout.unwrap_or(NAP).min(at - now));
            }
            if !self.sleep(timeout) {
                continue;
            }
            let polls = self.polls.load(Ordering::Relaxed);
            let blocked = self.blocked.swap(false, Ordering::SeqCst);
            let left_to_pollers = polls != seen && !blocked;
            seen = polls;
            if left_to_pollers {
                self.nap();
            } else {
                let mut scratch = self.work.lock();
                let up = self.serve(&mut scratch);
                drop(scratch);
                up.run();
            }
        }
    }

    /// Sleeps until something is to do; true if that is a socket.
    fn sleep(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: t.as_secs() as i64,
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        let mut fds = [
            PollFd::new(&self.epoll, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        // An error is an interruption by a signal: look again.
        let _ = poll(&mut fds, timeout.as_ref());
        if fds[1].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
        fds[0].revents().contains(PollFlags::IN)
    }

    fn nap(&self) {
        let mut nap = self.nap.lock();
        self.napping.store(true, Ordering::SeqCst);
        if !self.blocked.load(Ordering::SeqCst) {
            self.nap_end.wait_for(&mut nap, NAP);
        }
        self.napping.store(false, Ordering::SeqCst);
    }

    pub(super) fn wake(&self) {
        // Fails only when the counter is full: then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Runs what is due; returns the time until the next.
    fn run_timers(&self) -> Option<Duration> {
        loop {
            let mut timers = self.timers.lock();
            let first = timers.queue.first_entry()?;
            let now = Instant::now();
            if first.key().0 > now {
                return Some(first.key().0 - now);
            }
            let task = first.remove();
            drop(timers);
            let mut up = Upcalls::default();
            task(&mut up);
            up.run();
        }
    }

    /// One round over the sockets that are ready.
    fn serve(&self, scratch: &mut Scratch) -> Upcalls {
        let mut up = Upcalls::default();
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); BATCH];
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, Some(&zero)) else {
            return up;
        };
        for event in ready {
            let token = event.data.u64();
            let source = self.sources.lock().slot(token).and_then(|s| s.1.clone());
            if let Some(source) = source {
                source.ready(event.flags, scratch, &mut up);
            }
        }
        self.polled.served(&mut up);
        up
    }
}
