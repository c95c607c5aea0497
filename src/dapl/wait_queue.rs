//! A wait queue: threads block in the device, which may do its own work there, or on a futex.
//!
//! The usual condition variables hide signals from the caller; the API has to report them
//! (`DAT_INTERRUPTED_CALL`).

use std::sync::atomic::{AtomicU32, Ordering};

use crate::cancel::{self, Cancelled};
use crate::delay;
use crate::device::Device;
pub use crate::device::Wake;
use crate::handle::Held;
use crate::kernel::Instant;
use crate::lock::MutexGuard;

/// A held lock that can be released for a time.
pub trait Unlock {
    /// Releases the lock while `f` runs.
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

/// Threads wait here until another thread notifies them. Waiters and notifiers hold the same lock
/// while they check and change the condition.
#[derive(Default)]
pub struct WaitQueue {
    /// The futex: incremented by every notification.
    sequence: AtomicU32,
    /// Threads that wait on the futex or are about to; those in the device are not counted.
    blocked: AtomicU32,
}

impl WaitQueue {
    /// Releases the lock, waits, and takes the lock again. A notification after the release is not
    /// missed.
    pub fn wait(
        &self,
        device: &impl Device,
        lock: &mut impl Unlock,
        deadline: Option<Instant>,
    ) -> Wake {
        let sequence = self.sequence.load(Ordering::Relaxed);
        lock.unlocked(|| {
            delay::point("wait.block");
            if let Some(wake) = device.block(&self.sequence, sequence, deadline) {
                return wake;
            }
            // Before the kernel compares the sequence. A notifier changes the sequence first, and reads
            // this count then.
            self.blocked.fetch_add(1, Ordering::SeqCst);
            let wake = self.block(sequence, deadline);
            self.blocked.fetch_sub(1, Ordering::Relaxed);
            wake
        })
    }

    fn block(&self, sequence: u32, deadline: Option<Instant>) -> Wake {
        let timeout = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let timeout = timeout.map(|t| libc::timespec {
            // As much as any processor's type holds.
            tv_sec: t.as_secs().min(i32::MAX as u64) as _,
            tv_nsec: t.subsec_nanos() as libc::c_long,
        });
        let timeout = timeout
            .as_ref()
            .map_or(std::ptr::null(), std::ptr::from_ref);
        let arguments = [
            self.sequence.as_ptr().expose_provenance(),
            (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize,
            sequence as usize,
            timeout.expose_provenance(),
            0,
            0,
        ];
        const INTERRUPTED: isize = -(libc::EINTR as isize);
        const TIMED_OUT: isize = -(libc::ETIMEDOUT as isize);
        // SAFETY: the futex and the timeout live during the call.
        match unsafe { cancel::sleep(libc::SYS_futex, arguments) } {
            Err(Cancelled) => Wake::Cancelled,
            Ok(INTERRUPTED) => Wake::Interrupted,
            Ok(TIMED_OUT) => Wake::TimedOut,
            Ok(_) => Wake::Woken,
        }
    }

    /// Wakes one waiter. The lock is held, so that no thread is between its check of the condition
    /// and its wait.
    pub fn notify_one(&self, device: &impl Device) {
        self.notify(device, 1);
    }

    /// Wakes all waiters. The lock is held.
    pub fn notify_all(&self, device: &impl Device) {
        self.notify(device, i32::MAX);
    }

    fn notify(&self, device: &impl Device, count: i32) {
        self.sequence.fetch_add(1, Ordering::SeqCst);
        // A thread that waits in the device is woken by the device.
        let woken = device.unblock(&self.sequence);
        if (woken && count == 1) || self.blocked.load(Ordering::SeqCst) == 0 {
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
    use crate::lock::Mutex;
    use std::time::Duration;

    /// One of the threads waits in the device.
    #[test]
    fn notified_threads_wake() {
        const THREADS: u32 = 3;
        let device = Soft::open("127.0.0.1").unwrap();
        let shared = (Mutex::new(0), WaitQueue::default());
        let (tokens, queue) = &shared;
        for one_by_one in [true, false] {
            std::thread::scope(|s| {
                for _ in 0..THREADS {
                    s.spawn(|| {
                        let mut tokens = tokens.lock();
                        while *tokens == 0 {
                            let wake = queue.wait(&*device, &mut tokens, None);
                            assert_ne!(wake, Wake::TimedOut);
                        }
                        *tokens -= 1;
                    });
                }
                std::thread::sleep(Duration::from_millis(5));
                let mut tokens = tokens.lock();
                *tokens = THREADS;
                if one_by_one {
                    (0..THREADS).for_each(|_| queue.notify_one(&*device));
                } else {
                    queue.notify_all(&*device);
                }
            });
        }
    }

    #[test]
    fn a_deadline_ends_the_wait() {
        let device = Soft::open("127.0.0.1").unwrap();
        let queue = WaitQueue::default();
        let sleep = || {
            let lock = Mutex::new(());
            let start = Instant::now();
            let deadline = start + Duration::from_millis(20);
            let mut guard = lock.lock();
            while queue.wait(&*device, &mut guard, Some(deadline)) != Wake::TimedOut {}
            assert!(start.elapsed() >= Duration::from_millis(20));
        };
        std::thread::scope(|s| {
            s.spawn(sleep);
            s.spawn(sleep);
        });
    }
}
