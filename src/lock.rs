//! Locks: a mutex of one word on which waiting threads sleep by futex(2), without any state that
//! mutexes share.
//!
//! A forked child has a copy of every lock, and some are held by threads that the child does not
//! have. Such a lock must not matter to the other locks of the child. Mutexes whose waiting threads are
//! in one table of the process do not have that property: the locks of the table may be held in the
//! child. Mutexes of std have it, but are poisoned by a panic, which ends at the boundary to C here;
//! to check for that costs instructions in every post.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lock_api::{GuardSend, RawMutex, RawMutexTimed};
use rustix::thread::futex;

/// The word of a mutex.
pub struct FutexLock(AtomicU32);

const UNLOCKED: u32 = 0;
const LOCKED: u32 = 1;
/// Locked, and threads may sleep until it is not.
const CONTENDED: u32 = 2;

/// How often a thread checks the lock before it sleeps. Most locks are held for less than the time
/// that falling asleep takes.
const SPINS: u32 = 100;

thread_local! {
    /// How often the thread has slept until a mutex was unlocked, modulo 2^32.
    static SLEEPS: Cell<u32> = const { Cell::new(0) };
}

/// How often the calling thread has slept until a mutex was unlocked, modulo 2^32.
pub fn sleeps() -> u32 {
    SLEEPS.with(Cell::get)
}

impl FutexLock {
    #[cold]
    fn lock_contended(&self) {
        self.lock_contended_until(None);
    }

    /// Locks unless that takes until after `end`.
    fn lock_contended_until(&self, end: Option<Instant>) -> bool {
        let mut state = self.spin();
        if state == UNLOCKED {
            match self.exchange(LOCKED) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        loop {
            // Whoever has slept may not be the only one, and so leaves the lock contended. A thread that was woken
            // tries this before it gives up: no other thread is woken for that unlock.
            if state != CONTENDED && self.0.swap(CONTENDED, Ordering::Acquire) == UNLOCKED {
                return true;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            SLEEPS.with(|sleeps| sleeps.set(sleeps.get().wrapping_add(1)));
            sleep(&self.0, CONTENDED, left);
            state = self.spin();
        }
    }

    /// The state after a while, or as soon as no thread holds the lock or threads sleep.
    fn spin(&self) -> u32 {
        for _ in 0..SPINS {
            let state = self.0.load(Ordering::Relaxed);
            if state != LOCKED {
                return state;
            }
            std::hint::spin_loop();
        }
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    fn exchange(&self, to: u32) -> Result<u32, u32> {
        self.0
            .compare_exchange(UNLOCKED, to, Ordering::Acquire, Ordering::Relaxed)
    }
}

// SAFETY: `LOCKED` or `CONTENDED` from the success of a lock to its unlock, with the orders of a
// lock.
unsafe impl RawMutex for FutexLock {
    #[allow(clippy::declare_interior_mutable_const)] // as the trait has it
    const INIT: Self = FutexLock(AtomicU32::new(UNLOCKED));
    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        if self.exchange(LOCKED).is_err() {
            self.lock_contended();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.exchange(LOCKED).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        if self.0.swap(UNLOCKED, Ordering::Release) == CONTENDED {
            wake(&self.0, 1);
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed) != UNLOCKED
    }
}

// SAFETY: as above, if a function returns true.
unsafe impl RawMutexTimed for FutexLock {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_for(&self, limit: Duration) -> bool {
        self.try_lock() || self.lock_contended_until(Instant::now().checked_add(limit))
    }

    fn try_lock_until(&self, end: Instant) -> bool {
        self.try_lock() || self.lock_contended_until(Some(end))
    }
}

/// Sleeps while the word has the value, for no longer than `limit`; may return at any time.
fn sleep(word: &AtomicU32, value: u32, limit: Option<Duration>) {
    let limit = limit.map(|limit| futex::Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, limit.as_ref());
}

#[cold]
fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, count);
}

/// Gives a mutex another value, without a drop of the one that it has, and unlocks it.
///
/// # Safety
/// There is no other thread, and this one uses no guard of the mutex any more.
pub(crate) unsafe fn reset<T>(mutex: &Mutex<T>, value: T) {
    // SAFETY: the caller's promise.
    unsafe {
        mutex.data_ptr().write(value);
        unlock_abandoned(mutex);
    }
}

/// Unlocks a mutex that a thread holds which this forked child does not have.
///
/// # Safety
/// As for [`reset`].
pub(crate) unsafe fn unlock_abandoned<T>(mutex: &Mutex<T>) {
    if mutex.is_locked() {
        // SAFETY: the caller's promise.
        unsafe { mutex.force_unlock() };
    }
}

/// A thread, for [`ReentrantMutex`].
pub struct ThreadId;

// SAFETY: the C library gives each running thread an address of its own for its descriptor.
unsafe impl lock_api::GetThreadId for ThreadId {
    const INIT: Self = ThreadId;

    fn nonzero_thread_id(&self) -> std::num::NonZeroUsize {
        // SAFETY: no preconditions.
        let this = unsafe { libc::pthread_self() } as usize;
        std::num::NonZeroUsize::new(this).unwrap_or(std::num::NonZeroUsize::MAX)
    }
}

/// A mutex without poison.
pub type Mutex<T> = lock_api::Mutex<FutexLock, T>;
/// The value of a [`Mutex`], while it is locked.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, FutexLock, T>;
/// A mutex that its thread may lock again.
pub type ReentrantMutex<T> = lock_api::ReentrantMutex<FutexLock, ThreadId, T>;

/// Threads that wait, with a mutex unlocked, to be notified.
#[derive(Default)]
pub struct Condvar(AtomicU32);

impl Condvar {
    /// Unlocks the mutex, waits for a notification, but no longer than `limit`, and locks the mutex
    /// again. May return without a notification.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) {
        // Read while the mutex is locked: a notification after that changes the number.
        let notifications = self.0.load(Ordering::Relaxed);
        MutexGuard::unlocked(guard, || sleep(&self.0, notifications, Some(limit)));
    }

    /// Ends the wait of one thread.
    pub fn notify_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        wake(&self.0, 1);
    }

    /// Ends the waits of all threads.
    pub fn notify_all(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        wake(&self.0, i32::MAX as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    #[test]
    fn one_thread_at_a_time() {
        const ROUNDS: u64 = 20_000;
        let count = Mutex::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut count = count.lock();
                        let seen = *count;
                        if seen.is_multiple_of(1000) {
                            std::thread::yield_now();
                        }
                        *count = seen + 1;
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 4 * ROUNDS);
    }

    #[test]
    fn a_thread_that_waits_gets_the_lock() {
        let lock = Mutex::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        std::thread::scope(|s| {
            let waiters: Vec<_> = (0..3).map(|_| s.spawn(|| drop(lock.lock()))).collect();
            std::thread::sleep(Duration::from_millis(20));
            assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
            drop(held);
        });
        assert!(!lock.is_locked());
    }

    #[test]
    fn a_thread_waits_as_long_as_it_is_to() {
        let lock = Mutex::new(0);
        let mut held = lock.lock();
        let limit = Duration::from_millis(20);
        let begun = Instant::now();
        assert!(lock.try_lock_for(limit).is_none());
        assert!(lock.try_lock_until(begun + 2 * limit).is_none());
        assert!(begun.elapsed() >= 2 * limit);
        assert!(lock.try_lock_for(Duration::ZERO).is_none());
        std::thread::scope(|s| {
            let waiter = s.spawn(|| *lock.try_lock_for(Duration::MAX).unwrap());
            std::thread::sleep(limit);
            *held = 1;
            drop(held);
            assert_eq!(waiter.join().unwrap(), 1);
        });
        assert!(lock.try_lock_for(Duration::ZERO).is_some());
    }

    /// Threads that give up beside others that wait for as long as it takes: none of these sleeps for ever.
    #[test]
    fn who_gives_up_takes_no_wake_from_others() {
        const ROUNDS: u32 = 3000;
        let lock = Mutex::new(());
        std::thread::scope(|s| {
            for micros in [0, 0, 1, 20] {
                let lock = &lock;
                s.spawn(move || {
                    for round in 0..ROUNDS {
                        let held = match micros {
                            0 => Some(lock.lock()),
                            _ => lock.try_lock_for(Duration::from_micros(micros)),
                        };
                        if held.is_some() && round % 16 == 0 {
                            std::thread::sleep(Duration::from_micros(20));
                        }
                    }
                });
            }
        });
        assert!(!lock.is_locked());
    }

    #[test]
    fn a_thread_may_lock_its_reentrant_mutex_again() {
        let lock = ReentrantMutex::new(1);
        let first = lock.lock();
        assert_eq!(*lock.lock(), *first);
        std::thread::scope(|s| {
            let other = s.spawn(|| lock.try_lock().is_none());
            assert!(other.join().unwrap());
        });
    }

    #[test]
    fn notified_or_late() {
        let (lock, condvar) = (Mutex::new(()), Condvar::default());
        let begun = Instant::now();
        condvar.wait_for(&mut lock.lock(), Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20));

        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut guard = lock.lock();
                while !done.load(Ordering::Relaxed) {
                    condvar.wait_for(&mut guard, Duration::from_secs(60));
                }
            });
            std::thread::sleep(Duration::from_millis(5));
            drop(lock.lock());
            done.store(true, Ordering::Relaxed);
            drop(lock.lock());
            condvar.notify_one();
        });
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
