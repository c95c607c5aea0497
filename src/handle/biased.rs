//! A lock that costs the thread that takes it all the time two plain stores.
//!
//! Most endpoints and event dispatchers are used by one thread, and by another only when a
//! connection begins or ends. A lock that one thread takes many times in a row becomes that
//! thread's: it marks itself busy, without a fence, and looks whether the lock is still its own.
//! Any other thread takes the lock away first: it says so, has the kernel run a barrier in every
//! thread, and waits until the owner is not busy. After that the lock is an ordinary mutex, until
//! that same thread has again taken it many times in a row; each time it is taken away that takes
//! twice as many. It never becomes another thread's: the first may have been stopped after it saw
//! that the lock was its own, and would then undo the mark of its successor.
//!
//! The barrier is that of [`pin`], and so are its costs: microseconds, where a mutex costs two
//! atomic operations each time. Where there is no such barrier the lock stays a mutex.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::pin::{self, Thread};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, relax};

/// How many times in a row a thread takes the lock before it is its own: so many that what it
/// costs to take it away again is made up for.
const PATIENCE: u32 = if cfg!(loom) { 1 } else { 256 };
const MOST_PATIENCE: u32 = 1 << 24;

/// See the module.
pub struct Biased<T> {
    /// The thread whose lock it is; 0 if it is nobody's. Set by that thread, and taken back by
    /// others, under `rest`.
    owner: AtomicUsize,
    /// The owner holds the lock.
    busy: AtomicBool,
    /// The lock of all who are not the owner.
    rest: Mutex<Bias>,
    value: UnsafeCell<T>,
}

/// Who took the lock.
struct Bias {
    last: usize,
    /// How many times in a row.
    run: u32,
    patience: u32,
    /// The thread that was the owner once, and nobody else can be; 0 if nobody was.
    only: usize,
}

// SAFETY: one thread at a time gets at the value.
unsafe impl<T: Send> Send for Biased<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Biased<T> {}

/// The value, while the lock is held.
pub struct Held<'a, T> {
    lock: &'a Biased<T>,
    /// Not as the owner.
    rest: Option<MutexGuard<'a, Bias>>,
    /// Whoever took it lets it go.
    _not_send: PhantomData<*const ()>,
}

impl<T> Biased<T> {
    /// Unlocked, and nobody's.
    pub fn new(value: T) -> Self {
        Biased {
            owner: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            rest: Mutex::new(Bias {
                last: 0,
                run: 0,
                patience: PATIENCE,
                only: 0,
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        self.lock_as(pin::thread())
    }

    /// Waits for the lock; for a caller that knows already which thread it is.
    #[inline(always)]
    pub fn lock_as(&self, me: Thread) -> Held<'_, T> {
        // Whoever is busy already would wait for itself, as with any lock.
        if self.owner.load(Ordering::Relaxed) == me.id() && !self.busy.load(Ordering::Relaxed) {
            self.busy.store(true, Ordering::Relaxed);
            // Whoever takes the lock away either sees the mark or is seen here.
            pin::light_barrier();
            if self.owner.load(Ordering::Relaxed) == me.id() {
                return self.held(None);
            }
            self.busy.store(false, Ordering::Release);
        }
        self.lock_shared(me)
    }

    #[inline]
    fn held<'a>(&'a self, rest: Option<MutexGuard<'a, Bias>>) -> Held<'a, T> {
        Held {
            lock: self,
            rest,
            _not_send: PhantomData,
        }
    }

    #[inline(never)]
    fn lock_shared(&self, me: Thread) -> Held<'_, T> {
        let mut bias = self.rest.lock();
        if self.owner.load(Ordering::Relaxed) != 0 {
            self.owner.store(0, Ordering::Relaxed);
            pin::heavy_barrier();
            if pin::fences_needed() {
                // The barrier was taken from us since. What the owner did leaves its store buffer
                // long before this is over.
                std::thread::sleep(Duration::from_millis(1));
            }
            let mut round = 0;
            while self.busy.load(Ordering::Acquire) {
                relax(round);
                round = round.saturating_add(1);
            }
            bias.patience = (bias.patience * 2).min(MOST_PATIENCE);
        }
        if bias.last != me.id() {
            bias.last = me.id();
            bias.run = 0;
        }
        bias.run = bias.run.saturating_add(1);
        self.held(Some(bias))
    }
}

impl<T> Held<'_, T> {
    #[inline(always)]
    fn release(&mut self) {
        match self.rest.take() {
            None => self.lock.busy.store(false, Ordering::Release),
            Some(bias) => self.lock.release_shared(bias),
        }
    }

    /// Lets go of the lock while `f` runs.
    pub fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        struct Again<'a, 'b, T>(&'a mut Held<'b, T>);
        impl<T> Drop for Again<'_, '_, T> {
            fn drop(&mut self) {
                let mut new = self.0.lock.lock();
                self.0.rest = new.rest.take();
                // It goes on as the old one.
                std::mem::forget(new);
            }
        }
        self.release();
        let _again = Again(self);
        f()
    }
}

impl<T> Biased<T> {
    #[inline(never)]
    fn release_shared(&self, mut bias: MutexGuard<'_, Bias>) {
        let may = bias.only == 0 || bias.only == bias.last;
        if bias.run >= bias.patience && may && !pin::fences_needed() {
            bias.only = bias.last;
            // From the next time on; the lock of the rest is still held.
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

    const OFTEN: u32 = PATIENCE + 1;

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
            assert!(held.rest.is_none());
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
            assert_eq!(held.rest.is_none(), first_as_owner);
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
