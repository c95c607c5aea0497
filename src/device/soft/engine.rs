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
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use super::upcall::Upcalls;
use crate::device::DeviceError;

pub(super) use rustix::event::epoll::EventFlags;

/// How long the thread leaves sockets to consumers that poll.
const NAP: Duration = Duration::from_millis(1);
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
    /// For received bytes; grows to its size with the first connection.
    pub rx: Vec<u8>,
}

type Task = Box<dyn FnOnce(&mut Upcalls) + Send>;

#[derive(Default)]
struct Timers {
    queue: BTreeMap<(Instant, u64), Task>,
    next: u64,
}

#[derive(Default)]
struct Sources {
    /// Generation, so that an event of a socket that is gone does not reach its successor.
    slots: Vec<(u32, Option<Arc<dyn Source>>)>,
    free: Vec<u32>,
}

struct Inner {
    epoll: OwnedFd,
    /// Wakes the thread, and only the thread: consumers do not look at it.
    wake: OwnedFd,
    sources: Mutex<Sources>,
    timers: Mutex<Timers>,
    deferred: Mutex<Upcalls>,
    has_deferred: AtomicBool,
    /// The engine lock.
    work: Mutex<Scratch>,
    /// Connections; without any there is nothing to poll for.
    streams: AtomicUsize,
    /// Counts polls, to show that there are some.
    polls: AtomicU32,
    /// A consumer blocks: the thread has to serve.
    blocked: AtomicBool,
    napping: AtomicBool,
    nap: Mutex<()>,
    nap_end: Condvar,
    stop: AtomicBool,
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
            deferred: Mutex::default(),
            has_deferred: AtomicBool::new(false),
            work: Mutex::default(),
            streams: AtomicUsize::new(0),
            polls: AtomicU32::new(0),
            blocked: AtomicBool::new(false),
            napping: AtomicBool::new(false),
            nap: Mutex::new(()),
            nap_end: Condvar::new(),
            stop: AtomicBool::new(false),
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
            let handle = builder
                .spawn(move || inner.run())
                .map_err(|_| DeviceError::Resources)?;
            *thread = Some(handle);
        }
        Ok(())
    }

    /// Serves sockets if nobody does.
    pub fn progress(&self) {
        let inner = &*self.inner;
        if inner.has_deferred.load(Ordering::Acquire) {
            inner.run_deferred();
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
        inner.blocked.store(true, Ordering::SeqCst);
        if inner.napping.load(Ordering::SeqCst) {
            let _nap = inner.nap.lock();
            inner.nap_end.notify_one();
        }
    }

    /// Leaves calls to the thread, or to the next consumer that polls.
    pub fn defer(&self, up: Upcalls) {
        self.inner.deferred.lock().append(up);
        self.inner.has_deferred.store(true, Ordering::Release);
        self.inner.wake();
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
        let token = {
            let mut sources = self.inner.sources.lock();
            let index = match sources.free.pop() {
                Some(index) => index,
                None => {
                    sources.slots.push((0, None));
                    sources.slots.len() as u32 - 1
                }
            };
            let slot = &mut sources.slots[index as usize];
            slot.1 = Some(source);
            u64::from(slot.0) << 32 | u64::from(index)
        };
        let mut watch = Watch {
            inner: self.inner.clone(),
            fd,
            token,
            events: EventFlags::empty(),
            added: false,
            stream: false,
        };
        watch.set(events)?;
        Ok(watch)
    }

    /// Runs `task` after `delay`, unless the result is dropped before.
    pub fn timer(
        &self,
        delay: Duration,
        task: impl FnOnce(&mut Upcalls) + Send + 'static,
    ) -> Timer {
        let now = Instant::now();
        // An instant that cannot be expressed is never.
        let at = now
            .checked_add(delay)
            .unwrap_or_else(|| now + Duration::from_secs(1 << 31));
        let mut timers = self.inner.timers.lock();
        let key = (at, timers.next);
        timers.next += 1;
        timers.queue.insert(key, Box::new(task));
        let first = timers
            .queue
            .first_key_value()
            .is_some_and(|(k, _)| *k == key);
        drop(timers);
        if first {
            self.inner.wake();
        }
        Timer {
            inner: self.inner.clone(),
            key,
        }
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
        while !self.stop.load(Ordering::SeqCst) {
            self.run_deferred();
            let timeout = self.run_timers();
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

    fn wake(&self) {
        // Fails only when the counter is full: then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    #[cold]
    fn run_deferred(&self) {
        let up = {
            let mut deferred = self.deferred.lock();
            self.has_deferred.store(false, Ordering::Release);
            std::mem::take(&mut *deferred)
        };
        up.run();
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
            let source = {
                let sources = self.sources.lock();
                let slot = sources.slots.get(token as u32 as usize);
                slot.filter(|s| u64::from(s.0) == token >> 32)
                    .and_then(|s| s.1.clone())
            };
            if let Some(source) = source {
                source.ready(event.flags, scratch, &mut up);
            }
        }
        up
    }
}

/// A socket that the engine watches. Dropping it closes the socket.
pub(super) struct Watch {
    inner: Arc<Inner>,
    fd: OwnedFd,
    token: u64,
    events: EventFlags,
    added: bool,
    stream: bool,
}

impl Watch {
    /// Watches for `events` from now on. None at all takes even errors and hang-ups away.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn set(&mut self, events: EventFlags) -> Result<(), DeviceError> {
        if self.events == events {
            return Ok(());
        }
        let data = epoll::EventData::new_u64(self.token);
        let epoll_fd = &self.inner.epoll;
        let done = match (self.added, events.is_empty()) {
            (_, true) => epoll::delete(epoll_fd, &self.fd),
            (false, _) => epoll::add(epoll_fd, &self.fd, data, events),
            (true, _) => epoll::modify(epoll_fd, &self.fd, data, events),
        };
        done.map_err(|_| DeviceError::Resources)?;
        self.added = !events.is_empty();
        self.events = events;
        Ok(())
    }

    /// Replaces the source that is told.
    pub fn redirect(&self, source: Arc<dyn Source>) {
        let mut sources = self.inner.sources.lock();
        // Only an engine that has ended has no such slot any more.
        let slot = sources.slots.get_mut(self.token as u32 as usize);
        let old = slot.and_then(|slot| slot.1.replace(source));
        drop(sources);
        drop(old);
    }

    /// Counts the socket as one that is worth polling for.
    pub fn count_as_stream(&mut self) {
        if !self.stream {
            self.stream = true;
            self.inner.streams.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.added {
            let _ = epoll::delete(&self.inner.epoll, &self.fd);
        }
        if self.stream {
            self.inner.streams.fetch_sub(1, Ordering::Relaxed);
        }
        let mut sources = self.inner.sources.lock();
        let index = self.token as u32;
        let Some(slot) = sources.slots.get_mut(index as usize) else {
            return;
        };
        slot.0 = slot.0.wrapping_add(1);
        let source = slot.1.take();
        sources.free.push(index);
        drop(sources);
        drop(source);
    }
}

/// A timer that was set. Dropping it stops it.
pub(super) struct Timer {
    inner: Arc<Inner>,
    key: (Instant, u64),
}

impl Drop for Timer {
    fn drop(&mut self) {
        let task = self.inner.timers.lock().queue.remove(&self.key);
        drop(task);
    }
}
