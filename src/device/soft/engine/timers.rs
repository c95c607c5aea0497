//! The timers of an engine. One timer of the kernel, which the epoll instance watches, expires
//! with the first of them; the thread that serves the sockets then runs the tasks that are due.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::descriptor::{self, OwnedFd};
use crate::kernel::Instant;
use crate::kernel::event::Timespec;
use crate::kernel::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use crate::lock::Mutex;

use super::Inner;
use crate::device::soft::upcalls::Upcalls;

/// The time zero, as a timeout of a call that must not wait, and as no interval.
pub(crate) const ZERO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A time as the kernel takes it.
pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// What a timer runs.
pub(super) type Task = Box<dyn FnOnce(&mut Upcalls) + Send>;

/// When a task is due, and its number.
type Key = (Instant, u64);

#[derive(Default)]
struct Queue {
    /// The tasks, the next one first.
    tasks: BTreeMap<Key, Task>,
    /// The number of the next task that is added.
    next_number: u64,
}

/// The timers of an engine.
pub(super) struct Timers {
    /// What is to run, and when.
    queue: Mutex<Queue>,
    /// The timer of the kernel.
    fd: OwnedFd,
}

impl Timers {
    /// Without a task.
    pub fn new() -> std::io::Result<Timers> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Timers {
            queue: Mutex::default(),
            fd: descriptor::open(|| timerfd_create(TimerfdClockId::Monotonic, flags))?,
        })
    }

    /// The timer of the kernel, to be watched with edge-triggered events: it is never read.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Runs `task` after `delay`.
    pub fn add(&self, delay: Duration, task: Task) -> Key {
        let now = Instant::now();
        // A delay that no instant can express is as good as a very long one.
        let at = now
            .checked_add(delay)
            .unwrap_or_else(|| now + Duration::from_secs(1 << 31));
        let mut queue = self.queue.lock();
        let key = (at, queue.next_number);
        queue.next_number += 1;
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

    /// Removes a task; `None` if it has run or runs.
    fn take(&self, key: Key) -> Option<Task> {
        self.queue.lock().tasks.remove(&key)
    }

    /// Number of tasks.
    #[cfg(dat_sim)]
    pub fn len(&self) -> usize {
        self.queue.lock().tasks.len()
    }

    /// Drops all tasks, which may refer back to the engine.
    pub fn clear(&self) {
        let queue = std::mem::take(&mut *self.queue.lock());
        drop(queue);
    }

    /// Runs the tasks that are due now. One that a task adds, even if due at once, is for the next time.
    pub fn run(&self) {
        let now = Instant::now();
        loop {
            let mut queue = self.queue.lock();
            let Some(first) = queue.tasks.first_entry() else {
                return;
            };
            let at = first.key().0;
            if at > now {
                self.set(at.saturating_duration_since(Instant::now()));
                return;
            }
            let task = first.remove();
            drop(queue);
            let mut up = Upcalls::default();
            task(&mut up);
            self.arm_before(&up);
            up.run();
        }
    }

    /// The upcalls are made next, which may block: the timers that are left are for other threads meanwhile, or for
    /// this one where it waits in an upcall.
    pub fn arm_before(&self, up: &Upcalls) {
        if !up.is_empty() {
            self.arm();
        }
    }

    /// Has the kernel's timer expire with the first task, also where it has expired and its event was not served.
    pub fn arm(&self) {
        let queue = self.queue.lock();
        if let Some(((at, _), _)) = queue.tasks.first_key_value() {
            self.set(at.saturating_duration_since(Instant::now()));
        }
    }

    /// Has the kernel's timer expire after `delay`. Called under the lock, so that the last call
    /// is the one for the first task.
    fn set(&self, delay: Duration) {
        // A time of zero would stop the timer.
        let delay = delay.max(Duration::from_nanos(1));
        let value = Itimerspec {
            it_interval: ZERO_TIME,
            it_value: timespec(delay),
        };
        // The call fails for no value that `value` can have.
        let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &value);
    }
}

/// A timer that was set. Dropping the timer stops it.
pub(crate) struct Timer {
    /// The engine.
    inner: Arc<Inner>,
    /// The key of the task in the queue.
    key: Key,
}

impl Timer {
    pub(super) fn new(inner: &Arc<Inner>, delay: Duration, task: Task) -> Timer {
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
