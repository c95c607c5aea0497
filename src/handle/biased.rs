//! A biased lock: it costs the thread that takes it most of the time two plain stores.
//!
//! Most endpoints and event dispatchers are used by one thread, and by another only when a
//! connection begins or ends. A thread that takes a lock many times in a row becomes its owner.
//! The owner names the lock in a mark of its own ([`Thread::mark`]), without a fence, and checks that it
//! still is the owner. Any other thread revokes the ownership first: it clears the owner, has the
//! kernel run a barrier in every thread, and waits until the mark of the owner does not name the lock.
//! After that the lock is an ordinary mutex, until a thread has again taken it many times in a row;
//! each revocation soon after doubles how many.
//!
//! A thread has a mark for each level of nesting. A lock is of one level, and a thread that holds
//! one of that level as its owner takes another as a mutex.
//!
//! The barrier is that of [`pin`], and so is its cost: microseconds, where a mutex costs two
//! atomic operations each time. Where there is no such barrier the lock remains a mutex.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use super::pin::{self, SharedThread, Thread};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, barrier, relax};

/// How many times in a row a thread takes the lock before it owns it the first time: enough to
/// make up for the cost of a revocation. Once in a model, and in a build for tests of order: programs of tests take
/// a lock a few times.
const FIRST_THRESHOLD: u32 = if cfg!(any(loom, dat_order)) { 1 } else { 256 };
/// The most that revocations raise that number to.
const MAX_THRESHOLD: u32 = 1 << 24;
/// An ownership that lasted as long as this has made up for a revocation that had to wait for the owner.
const MADE_UP_FOR_WAIT: Duration = Duration::from_millis(10);
/// The same of a revocation without that: for a barrier alone. Shorter than the time from one visit of a thread that
/// looks after a connection each few milliseconds to the next: its visits would raise the threshold so far otherwise
/// that no thread reaches it between two of them.
const MADE_UP_FOR_BARRIER: Duration = Duration::from_millis(2);

/// The level of locks that are taken while no other biased lock is held, nearly always.
pub const OUTER: usize = 0;
/// The level of locks that are taken while one of the outer level is held.
pub const INNER: usize = 1;

/// A biased lock of a level, and its value; see the module.
///
/// Processors take a load for one of what was just stored if the addresses are the same but for the number of the
/// page, and repeat it. The load of the owner follows the store of the mark each time. So owners are at multiples of
/// 16 bytes, and marks in the middle between two of them.
#[repr(C, align(16))]
pub struct Biased<T, const LEVEL: usize = OUTER> {
    /// [`Thread::id`] of the owner; 0 if there is none. Set by that thread, and cleared by others, while
    /// they hold `bias`.
    owner: AtomicUsize,
    /// The lock of all threads but the owner.
    bias: Mutex<Bias>,
    value: UnsafeCell<T>,
}

/// Which threads have taken the lock.
struct Bias {
    /// The thread that took it last.
    last: Option<SharedThread>,
    /// How many times in a row that thread took it.
    streak: u32,
    /// The streak from which on that thread becomes the owner.
    threshold: u32,
    /// When the last owner became the owner.
    since: Option<Instant>,
}

impl Bias {
    /// The ownership was revoked; `waited` if the owner held the lock.
    fn revoked(&mut self, waited: bool) {
        let made_up = if waited {
            MADE_UP_FOR_WAIT
        } else {
            MADE_UP_FOR_BARRIER
        };
        // The runs of a model must not depend on the time.
        let lasted = self.since.filter(|_| !cfg!(loom)).map(|t| t.elapsed());
        self.threshold = match lasted {
            Some(lasted) if lasted >= made_up => FIRST_THRESHOLD,
            _ => (self.threshold * 2).min(MAX_THRESHOLD),
        };
    }
}

// SAFETY: one thread at a time accesses the value.
unsafe impl<T: Send, const LEVEL: usize> Send for Biased<T, LEVEL> {}
// SAFETY: as above.
unsafe impl<T: Send, const LEVEL: usize> Sync for Biased<T, LEVEL> {}

/// The value, while the lock is held by its owner.
pub struct Owned<'a, T, const LEVEL: usize = OUTER> {
    lock: &'a Biased<T, LEVEL>,
    /// The mark of the owner.
    mark: &'static AtomicUsize,
    /// The thread that took the lock releases it.
    _not_send: PhantomData<*const ()>,
}

/// The value, while the lock is held by any thread.
pub struct Held<'a, T, const LEVEL: usize = OUTER> {
    lock: &'a Biased<T, LEVEL>,
    /// `None` while [`Held::unlocked`] has released it.
    by: Option<By<'a, T, LEVEL>>,
    /// The thread that took the lock releases it.
    _not_send: PhantomData<*const ()>,
}

/// How a lock is held.
enum By<'a, T, const LEVEL: usize> {
    /// By its owner.
    Owner(Owned<'a, T, LEVEL>),
    /// By any thread, with the mutex.
    Mutex(MutexGuard<'a, Bias>),
}

impl<T, const LEVEL: usize> Biased<T, LEVEL> {
    /// Unlocked, without an owner.
    pub fn new(value: T) -> Self {
        Biased {
            owner: AtomicUsize::new(0),
            bias: Mutex::new(Bias {
                last: None,
                streak: 0,
                threshold: FIRST_THRESHOLD,
                since: None,
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// What the mark of an owner that holds the lock has.
    #[inline(always)]
    fn name(&self) -> usize {
        std::ptr::from_ref(&self.owner).addr()
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Held<'_, T, LEVEL> {
        self.lock_as(pin::thread())
    }

    /// Takes the lock as its owner; `None` if the thread is not the owner, or holds another lock of the
    /// level. Code for this way alone is much shorter than code for both ways.
    #[inline(always)]
    pub fn own(&self, me: Thread) -> Option<Owned<'_, T, LEVEL>> {
        if me.mark(LEVEL).load(Ordering::Relaxed) != 0 {
            return None;
        }
        // SAFETY: just tested.
        unsafe { self.own_unmarked(me) }
    }

    /// [`Biased::own`] for a thread of which is known that it holds no lock of the level as its owner.
    ///
    /// # Safety
    /// The thread holds none.
    #[inline(always)]
    pub unsafe fn own_unmarked(&self, me: Thread) -> Option<Owned<'_, T, LEVEL>> {
        // Before the load of the owner: of two equal numbers the compiler goes on with the older one, which is in a
        // register anyway.
        let id = me.id();
        let mark = me.mark(LEVEL);
        barrier::begin();
        mark.store(self.name(), Ordering::Relaxed);
        // A thread that revokes the ownership either sees the mark, or is seen by the check.
        pin::light_barrier();
        if self.owner.load(Ordering::Relaxed) != id {
            release_owned(mark);
            return None;
        }
        Some(Owned {
            lock: self,
            mark,
            _not_send: PhantomData,
        })
    }

    /// [`Biased::lock`] for a caller that has the running thread already.
    #[inline(always)]
    pub fn lock_as(&self, me: Thread) -> Held<'_, T, LEVEL> {
        match self.own(me) {
            Some(owned) => self.held(By::Owner(owned)),
            None => self.lock_shared(me),
        }
    }

    #[inline(always)]
    fn held<'a>(&'a self, by: By<'a, T, LEVEL>) -> Held<'a, T, LEVEL> {
        Held {
            lock: self,
            by: Some(by),
            _not_send: PhantomData,
        }
    }

    #[inline(never)]
    fn lock_shared(&self, me: Thread) -> Held<'_, T, LEVEL> {
        let mut bias = self.bias.lock();
        // Whoever is the owner has taken the mutex last.
        if self.owner.load(Ordering::Relaxed) != 0
            && let Some(owner) = bias.last
        {
            self.owner.store(0, Ordering::Relaxed);
            pin::heavy_barrier();
            if pin::fences_needed() {
                // A system call filter forbids the barrier since. The stores of the owner leave its
                // store buffer long before the sleep ends.
                crate::sync::sleep(Duration::from_millis(1));
            }
            // If this thread is the owner and holds the lock already, it waits for itself, as with any
            // lock.
            let mut round = 0;
            while owner.mark(LEVEL).load(Ordering::Acquire) == self.name() {
                relax(round);
                round = round.saturating_add(1);
            }
            bias.revoked(round > 0);
        }
        if bias.last.is_none_or(|last| last.id() != me.id()) {
            bias.last = Some(me.shared());
            bias.streak = 0;
        }
        bias.streak = bias.streak.saturating_add(1);
        self.held(By::Mutex(bias))
    }
}

impl<T, const LEVEL: usize> Held<'_, T, LEVEL> {
    #[inline(always)]
    fn release(&mut self) {
        match self.by.take() {
            Some(By::Mutex(bias)) => self.lock.release_shared(bias),
            Some(By::Owner(owned)) => drop(owned),
            None => {}
        }
    }

    /// Releases the lock while `f` runs.
    pub fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        struct Again<'a, 'b, T, const LEVEL: usize>(&'a mut Held<'b, T, LEVEL>);
        impl<T, const LEVEL: usize> Drop for Again<'_, '_, T, LEVEL> {
            fn drop(&mut self) {
                let mut new = self.0.lock.lock();
                // The old guard continues with the lock of the new one.
                self.0.by = new.by.take();
            }
        }
        self.release();
        let _again = Again(self);
        f()
    }
}

#[inline(always)]
fn release_owned(mark: &AtomicUsize) {
    barrier::point();
    mark.store(0, Ordering::Release);
    barrier::end();
}

impl<T, const LEVEL: usize> Biased<T, LEVEL> {
    #[inline(never)]
    fn release_shared(&self, mut bias: MutexGuard<'_, Bias>) {
        if bias.streak >= bias.threshold
            && !pin::fences_needed()
            && let Some(thread) = bias.last
        {
            bias.since = Some(Instant::now());
            // Valid from the next time on; this time the mutex is held.
            self.owner.store(thread.id(), Ordering::Relaxed);
        }
    }
}

impl<T, const LEVEL: usize> Deref for Owned<'_, T, LEVEL> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, const LEVEL: usize> DerefMut for Owned<'_, T, LEVEL> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and this is the only way to it.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, const LEVEL: usize> Drop for Owned<'_, T, LEVEL> {
    #[inline(always)]
    fn drop(&mut self) {
        release_owned(self.mark);
    }
}

impl<T, const LEVEL: usize> Deref for Held<'_, T, LEVEL> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, const LEVEL: usize> DerefMut for Held<'_, T, LEVEL> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and this is the only way to it.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, const LEVEL: usize> Drop for Held<'_, T, LEVEL> {
    #[inline(always)]
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
