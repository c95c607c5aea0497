//! The timers of an engine. One timer of the kernel, which the epoll instance watches, runs out
//! with the first of them; whoever serves the sockets then runs what is due.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::Inner;
use crate::device::soft::upcalls::Upcalls;

/// What a timer does.
pub(super) type Task = Box<dyn FnOnce(&mut Upcalls) + Send>;

type Key = (Instant, u64);

#[derive(Default)]
struct Queue {
    tasks: BTreeMap<Key, Task>,
    next: u64,
}

/// See the module.
pub(crate) struct Timers {
    queue: Mutex<Queue>,
    clock: OwnedFd,
}

impl Timers {
    pub fn new() -> std::io::Result<Timers> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Timers {
            queue: Mutex::default(),
            clock: timerfd_create(TimerfdClockId::Monotonic, flags)?,
        })
    }

    /// What the epoll instance is to watch, for edges: nobody reads it.
    pub fn clock(&self) -> &OwnedFd {
        &self.clock
    }

    /// Runs `task` after `delay`.
    pub fn add(&self, delay: Duration, task: Task) -> Key {
        let now = Instant::now();
        // An instant that cannot be expressed is never.
        let at = now
            .checked_add(delay)
            .unwrap_or_else(|| now + Duration::from_secs(1 << 31));
        let mut queue = self.queue.lock();
        let key = (at, queue.next);
        queue.next += 1;
        queue.tasks.insert(key, task);
        if queue
            .tasks
            .first_key_value()
            .is_some_and(|(k, _)| *k == key)
        {
            self.set(at - now);
        }
        key
    }

    fn take(&self, key: Key) -> Option<Task> {
        self.queue.lock().tasks.remove(&key)
    }

    /// Forgets all tasks. They may refer back to the engine.
    pub fn clear(&self) {
        let queue = std::mem::take(&mut *self.queue.lock());
        drop(queue);
    }

    /// Runs what is due.
    pub fn run(&self) {
        loop {
            let mut queue = self.queue.lock();
            let Some(first) = queue.tasks.first_entry() else {
                return;
            };
            let (at, now) = (first.key().0, Instant::now());
            if at > now {
                self.set(at - now);
                return;
            }
            let task = first.remove();
            drop(queue);
            let mut up = Upcalls::default();
            task(&mut up);
            up.run();
        }
    }

    /// Lets the kernel's timer run out after `delay`. Under the lock, so that the last one is
    /// that of the first task.
    fn set(&self, delay: Duration) {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let delay = delay.max(Duration::from_nanos(1));
        let value = Itimerspec {
            it_interval: zero,
            it_value: Timespec {
                tv_sec: delay.as_secs() as i64,
                tv_nsec: delay.subsec_nanos().into(),
            },
        };
        // Fails for no value that this can have.
        let _ = timerfd_settime(&self.clock, TimerfdTimerFlags::empty(), &value);
    }
}

/// A timer that was set. Dropping it stops it.
pub(crate) struct Timer {
    inner: Arc<Inner>,
    key: Key,
}

impl Timer {
    pub(crate) fn new(inner: &Arc<Inner>, delay: Duration, task: Task) -> Timer {
        Timer {
            inner: inner.clone(),
            key: inner.timers.add(delay, task),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let task = self.inner.timers.take(self.key);
        drop(task);
    }
}
