//! A biased lock: it costs the thread that takes it most of the time two plain stores.
//!
//! Most endpoints and event dispatchers are used by one thread, and by another only when a
//! connection begins or ends. A thread that takes a lock many times in a row becomes its owner.
//! The owner marks the lock busy, without a fence, and checks that it still is the owner. Any
//! other thread revokes the ownership first: it clears the owner, has the kernel run a barrier in
//! every thread, and waits until the lock is not busy. After that the lock is an ordinary mutex,
//! until that same thread has again taken it many times in a row; each revocation doubles how
//! many. No other thread ever becomes the owner: the first may have been stopped between its check
//! and its critical section, and would then undo the busy mark of its successor.
//!
//! The barrier is that of [`pin`], and so is its cost: microseconds, where a mutex costs two
//! atomic operations each time. Where there is no such barrier the lock remains a mutex.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::pin::{self, Thread};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, barrier, relax};

/// How many times in a row a thread takes the lock before it owns it the first time: enough to
/// make up for the cost of a revocation.
const FIRST_THRESHOLD: u32 = if cfg!(loom) { 1 } else { 256 };
/// The most that revocations raise that number to.
const MAX_THRESHOLD: u32 = 1 << 24;

/// A biased lock and its value; see the module.
pub struct Biased<T> {
    /// [`Thread::id`] of the owner; 0 if there is none. Set by that thread, and cleared by others,
    /// while they hold `bias`.
    owner: AtomicUsize,
    /// The owner holds the lock.
    busy: AtomicBool,
    /// The lock of all threads but the owner.
    bias: Mutex<Bias>,
    value: UnsafeCell<T>,
}

/// Which threads have taken the lock.
struct Bias {
    /// The thread that took it last, as [`Thread::id`].
    last: usize,
    /// How many times in a row that thread took it.
    streak: u32,
    /// The streak from which on that thread becomes the owner.
    threshold: u32,
    /// The only thread that can be the owner, because it was before; 0 if none was.
    sole_owner: usize,
}

// SAFETY: one thread at a time accesses the value.
unsafe impl<T: Send> Send for Biased<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Biased<T> {}

/// The value, while the lock is held.
pub struct Held<'a, T> {
    lock: &'a Biased<T>,
    /// The mutex, unless the lock is held by the owner.
    bias: Option<MutexGuard<'a, Bias>>,
    /// The thread that took the lock releases it.
    _not_send: PhantomData<*const ()>,
}

impl<T> Biased<T> {
    /// Unlocked, without an owner.
    pub fn new(value: T) -> Self {
        Biased {
            owner: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            bias: Mutex::new(Bias {
                last: 0,
                streak: 0,
                threshold: FIRST_THRESHOLD,
                sole_owner: 0,
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        self.lock_as(pin::thread())
    }

    /// [`Biased::lock`] for a caller that has the running thread already.
    #[inline(always)]
    pub fn lock_as(&self, me: Thread) -> Held<'_, T> {
        // An owner that holds the lock already waits for itself below, as with any lock.
        if self.owner.load(Ordering::Relaxed) == me.id() && !self.busy.load(Ordering::Relaxed) {
            barrier::begin();
            self.busy.store(true, Ordering::Relaxed);
            // A thread that revokes the ownership either sees the mark, or is seen by the check.
            pin::light_barrier();
            if self.owner.load(Ordering::Relaxed) == me.id() {
                return self.held(None);
            }
            self.release_owned();
        }
        self.lock_shared(me)
    }

    #[inline]
    fn held<'a>(&'a self, bias: Option<MutexGuard<'a, Bias>>) -> Held<'a, T> {
        Held {
            lock: self,
            bias,
            _not_send: PhantomData,
        }
    }

    #[inline(never)]
    fn lock_shared(&self, me: Thread) -> Held<'_, T> {
        let mut bias = self.bias.lock();
        if self.owner.load(Ordering::Relaxed) != 0 {
            self.owner.store(0, Ordering::Relaxed);
            pin::heavy_barrier();
            if pin::fences_needed() {
                // A system call filter forbids the barrier since. The stores of the owner leave its
                // store buffer long before the sleep ends.
                crate::sync::sleep(Duration::from_millis(1));
            }
            let mut round = 0;
            while self.busy.load(Ordering::Acquire) {
                relax(round);
                round = round.saturating_add(1);
            }
            bias.threshold = (bias.threshold * 2).min(MAX_THRESHOLD);
        }
        if bias.last != me.id() {
            bias.last = me.id();
            bias.streak = 0;
        }
        bias.streak = bias.streak.saturating_add(1);
        self.held(Some(bias))
    }
}

impl<T> Held<'_, T> {
    #[inline(always)]
    fn release(&mut self) {
        match self.bias.take() {
            None => self.lock.release_owned(),
            Some(bias) => self.lock.release_shared(bias),
        }
    }

    /// Releases the lock while `f` runs.
    pub fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        struct Again<'a, 'b, T>(&'a mut Held<'b, T>);
        impl<T> Drop for Again<'_, '_, T> {
            fn drop(&mut self) {
                let mut new = self.0.lock.lock();
                self.0.bias = new.bias.take();
                // The old guard continues with the lock of the new one.
                std::mem::forget(new);
            }
        }
        self.release();
        let _again = Again(self);
        f()
    }
}

impl<T> Biased<T> {
    #[inline(always)]
    fn release_owned(&self) {
        barrier::point();
        self.busy.store(false, Ordering::Release);
        barrier::end();
    }

    #[inline(never)]
    fn release_shared(&self, mut bias: MutexGuard<'_, Bias>) {
        let may = bias.sole_owner == 0 || bias.sole_owner == bias.last;
        if bias.streak >= bias.threshold && may && !pin::fences_needed() {
            bias.sole_owner = bias.last;
            // Valid from the next time on; this time the mutex is held.
            self.owner.store(bias.last, Ordering::Relaxed);
        }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and this is the only way to it.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const OFTEN: u32 = FIRST_THRESHOLD + 1;

    fn owned(lock: &Biased<u64>) -> bool {
        lock.owner.load(Ordering::Relaxed) == pin::thread().id()
    }

    /// Without the barrier of the kernel it is a mutex, and there is nothing else to see.
    fn is_a_mutex() -> bool {
        let lock = Biased::new(0);
        (0..OFTEN).for_each(|_| drop(lock.lock()));
        assert_eq!(owned(&lock), !pin::fences_needed());
        pin::fences_needed()
    }

    #[test]
    fn it_becomes_the_threads_own_and_is_taken_away() {
        if is_a_mutex() {
            return;
        }
        let lock = Biased::new(0u64);
        (0..OFTEN).for_each(|_| *lock.lock() += 1);
        assert!(owned(&lock));
        (0..OFTEN).for_each(|_| *lock.lock() += 1);
        std::thread::scope(|s| s.spawn(|| *lock.lock() += 1).join().unwrap());
        assert!(!owned(&lock));
        // It takes longer from now on.
        (0..OFTEN).for_each(|_| *lock.lock() += 1);
        assert!(!owned(&lock));
        (0..OFTEN).for_each(|_| *lock.lock() += 1);
        assert!(owned(&lock));
        assert_eq!(*lock.lock(), u64::from(4 * OFTEN) + 1);
    }

    #[test]
    fn who_takes_it_away_waits_for_the_owner() {
        if is_a_mutex() {
            return;
        }
        let lock = Biased::new(0u64);
        (0..OFTEN).for_each(|_| drop(lock.lock()));
        std::thread::scope(|s| {
            let mut held = lock.lock();
            assert!(held.bias.is_none());
            let other = s.spawn(|| *lock.lock());
            std::thread::sleep(Duration::from_millis(20));
            *held = 7;
            drop(held);
            assert_eq!(other.join().unwrap(), 7);
        });
    }

    #[test]
    fn others_get_it_while_it_is_let_go() {
        if is_a_mutex() {
            return;
        }
        let lock = Biased::new(0u64);
        (0..OFTEN).for_each(|_| drop(lock.lock()));
        for first_as_owner in [true, false] {
            let mut held = lock.lock();
            assert_eq!(held.bias.is_none(), first_as_owner);
            held.unlocked(|| std::thread::scope(|s| drop(s.spawn(|| *lock.lock() += 1))));
            *held += 1;
        }
        assert_eq!(*lock.lock(), 4);
    }

    #[test]
    fn one_at_a_time() {
        let lock = Biased::new(0u64);
        std::thread::scope(|s| {
            for run in [3 * OFTEN, 7, 1, 5 * OFTEN] {
                let lock = &lock;
                s.spawn(move || {
                    for _ in 0..20_000 / run + 1 {
                        for _ in 0..run {
                            let mut held = lock.lock();
                            let seen = *held;
                            *held = std::hint::black_box(seen) + 1;
                        }
                        std::thread::yield_now();
                    }
                });
            }
        });
        let expected: u32 = [3 * OFTEN, 7, 1, 5 * OFTEN]
            .map(|run| (20_000 / run + 1) * run)
            .iter()
            .sum();
        assert_eq!(*lock.lock(), u64::from(expected));
    }
}
