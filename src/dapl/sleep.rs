//! Where threads block: in the device, which may serve itself there, or on a futex.
//!
//! A condition variable of the standard kind hides signals from its caller; the API wants to
//! report them (`DAT_INTERRUPTED_CALL`).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::MutexGuard;

use crate::device::Device;
pub use crate::device::Wake;
use crate::handle::Held;

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
    /// Threads that sleep on it or are about to, other than in the device.
    sleeping: AtomicU32,
}

impl Sleepers {
    /// Lets go of the lock, sleeps, and takes the lock again. A notification that came after
    /// the lock was let go is not missed.
    pub fn sleep(
        &self,
        device: &impl Device,
        lock: &mut impl Unlock,
        deadline: Option<Instant>,
    ) -> Wake {
        let sequence = self.sequence.load(Ordering::Relaxed);
        lock.unlocked(|| {
            if let Some(wake) = device.block(&self.sequence, sequence, deadline) {
                return wake;
            }
            // Before the kernel compares the sequence; the notifier does it the other way round.
            self.sleeping.fetch_add(1, Ordering::SeqCst);
            let wake = self.block(sequence, deadline);
            self.sleeping.fetch_sub(1, Ordering::Relaxed);
            wake
        })
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
    pub fn notify_one(&self, device: &impl Device) {
        self.notify(device, 1);
    }

    /// Wakes all sleepers. The lock is held.
    pub fn notify_all(&self, device: &impl Device) {
        self.notify(device, i32::MAX);
    }

    fn notify(&self, device: &impl Device, count: i32) {
        self.sequence.fetch_add(1, Ordering::SeqCst);
        // One that serves in this very thread sees it without being woken.
        let woken = device.unblock(&self.sequence);
        if (woken && count == 1) || self.sleeping.load(Ordering::SeqCst) == 0 {
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
    use crate::device::soft::Soft;
    use parking_lot::Mutex;
    use std::time::Duration;

    /// One of them sleeps in the device.
    #[test]
    fn notified_threads_wake() {
        const SLEEPERS: u32 = 3;
        let device = Soft::open("127.0.0.1").unwrap();
        let shared = (Mutex::new(0), Sleepers::default());
        let (tokens, sleepers) = &shared;
        for one_by_one in [true, false] {
            std::thread::scope(|s| {
                for _ in 0..SLEEPERS {
                    s.spawn(|| {
                        let mut tokens = tokens.lock();
                        while *tokens == 0 {
                            let wake = sleepers.sleep(&*device, &mut tokens, None);
                            assert_ne!(wake, Wake::TimedOut);
                        }
                        *tokens -= 1;
                    });
                }
                std::thread::sleep(Duration::from_millis(5));
                let mut tokens = tokens.lock();
                *tokens = SLEEPERS;
                if one_by_one {
                    (0..SLEEPERS).for_each(|_| sleepers.notify_one(&*device));
                } else {
                    sleepers.notify_all(&*device);
                }
            });
        }
    }

    #[test]
    fn a_deadline_ends_the_sleep() {
        let device = Soft::open("127.0.0.1").unwrap();
        let sleepers = Sleepers::default();
        let sleep = || {
            let lock = Mutex::new(());
            let start = Instant::now();
            let deadline = start + Duration::from_millis(20);
            let mut guard = lock.lock();
            while sleepers.sleep(&*device, &mut guard, Some(deadline)) != Wake::TimedOut {}
            assert!(start.elapsed() >= Duration::from_millis(20));
        };
        std::thread::scope(|s| {
            s.spawn(sleep);
            s.spawn(sleep);
        });
    }
}
