//! Where threads block: a futex behind a lock.
//!
//! A condition variable of the standard kind hides signals from its caller; the API wants to
//! report them (`DAT_INTERRUPTED_CALL`).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::MutexGuard;

use crate::handle::Held;

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Woken, or for no reason: look again.
    Woken,
    /// The deadline passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// A lock that is held, and can be let go for a while.
pub trait Unlock {
    /// Lets go of the lock while `f` runs.
    fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R;
}

impl<T> Unlock for MutexGuard<'_, T> {
    fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        MutexGuard::unlocked(self, f)
    }
}

impl<T> Unlock for Held<'_, T> {
    fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        Held::unlocked(self, f)
    }
}

/// Threads sleep here until somebody notifies them. Both sides hold the same lock while they
/// decide.
#[derive(Default)]
pub struct Sleepers {
    /// Changes with every notification.
    sequence: AtomicU32,
    /// Threads that sleep or are about to.
    sleeping: AtomicU32,
}

impl Sleepers {
    /// Lets go of the lock, sleeps, and takes the lock again. A notification that came after
    /// the lock was let go is not missed.
    pub fn sleep(&self, lock: &mut impl Unlock, deadline: Option<Instant>) -> Wake {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sleeping.fetch_add(1, Ordering::Relaxed);
        let wake = lock.unlocked(|| self.block(sequence, deadline));
        self.sleeping.fetch_sub(1, Ordering::Relaxed);
        wake
    }

    fn block(&self, sequence: u32, deadline: Option<Instant>) -> Wake {
        let timeout = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let timeout = timeout.map(|t| libc::timespec {
            tv_sec: t.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        // SAFETY: the futex and the timeout live during the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.sequence.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                sequence,
                timeout
                    .as_ref()
                    .map_or(std::ptr::null(), std::ptr::from_ref),
            )
        };
        if result == 0 {
            return Wake::Woken;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => Wake::Interrupted,
            Some(libc::ETIMEDOUT) => Wake::TimedOut,
            _ => Wake::Woken,
        }
    }

    /// Wakes one sleeper. The lock is held, so that nobody is between deciding and sleeping.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes all sleepers. The lock is held.
    pub fn notify_all(&self) {
        self.notify(i32::MAX);
    }

    fn notify(&self, count: i32) {
        self.sequence.fetch_add(1, Ordering::Relaxed);
        if self.sleeping.load(Ordering::Relaxed) == 0 {
            return;
        }
        // SAFETY: the futex lives during the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.sequence.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                count,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_notified_thread_wakes() {
        let shared = Arc::new((Mutex::new(false), Sleepers::default()));
        let other = shared.clone();
        let thread = std::thread::spawn(move || {
            let mut ready = other.0.lock();
            while !*ready {
                assert_ne!(other.1.sleep(&mut ready, None), Wake::TimedOut);
            }
        });
        std::thread::sleep(Duration::from_millis(5));
        let mut ready = shared.0.lock();
        *ready = true;
        shared.1.notify_all();
        drop(ready);
        thread.join().unwrap();
    }

    #[test]
    fn a_deadline_ends_the_sleep() {
        let lock = Mutex::new(());
        let start = Instant::now();
        let deadline = start + Duration::from_millis(20);
        let sleepers = Sleepers::default();
        let mut guard = lock.lock();
        while sleepers.sleep(&mut guard, Some(deadline)) != Wake::TimedOut {}
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
}
