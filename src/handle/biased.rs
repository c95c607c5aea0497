//! A biased lock: it costs the thread that takes it most of the time two plain stores.
//!
//! Most endpoints and event dispatchers are used by one thread, and by another only when a
//! connection begins or ends. A thread that takes a lock many times in a row becomes its owner.
//! The owner marks the lock busy, without a fence, and checks that it still is the owner. Any
//! other thread revokes the ownership first: it clears the owner, has the kernel run a barrier in
//! every thread, and waits until the lock is not busy. After that the lock is an ordinary mutex,
//! until a thread has again taken it many times in a row; each revocation soon after doubles how many.
//!
//! A thread that was the owner may have been stopped between its check and its critical section,
//! and sets and clears its busy mark whenever it continues. Each owner therefore has a mark of its
//! own until it takes the lock as a mutex, because it is at no other place then, or ends. While all
//! marks are given out no other thread becomes the owner.
//!
//! The barrier is that of [`pin`], and so is its cost: microseconds, where a mutex costs two
//! atomic operations each time. Where there is no such barrier the lock remains a mutex.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use super::pin::{self, SharedThread, Thread};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, barrier, relax};

/// How many times in a row a thread takes the lock before it owns it the first time: enough to
/// make up for the cost of a revocation.
const FIRST_THRESHOLD: u32 = if cfg!(loom) { 1 } else { 256 };
/// The most that revocations raise that number to.
const MAX_THRESHOLD: u32 = 1 << 24;
/// An ownership that lasted as long as this has made up for any revocation.
const LONG: Duration = Duration::from_millis(10);

/// Threads that can have a busy mark at the same time: two that take turns, and two that have done
/// what they had to do, such as the one that made the connection.
const MARKS: usize = 4;
const _: () = assert!(Thread::ID_STEP.is_multiple_of(MARKS));

/// A biased lock and its value; see the module.
pub struct Biased<T> {
    /// [`Thread::id`] of the owner plus the index of its mark in `busy`; 0 if there is no owner. Set
    /// by that thread, and cleared by others, while they hold `bias`.
    owner: AtomicUsize,
    /// By mark: the thread that has the mark holds the lock as its owner.
    busy: [AtomicBool; MARKS],
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
    /// By mark: the thread that has it.
    marks: [Option<SharedThread>; MARKS],
}

impl Bias {
    /// The ownership was revoked.
    fn revoked(&mut self) {
        // The runs of a model must not depend on the time.
        let lasted = self.since.filter(|_| !cfg!(loom)).map(|t| t.elapsed());
        self.threshold = match lasted {
            Some(lasted) if lasted >= LONG => FIRST_THRESHOLD,
            _ => (self.threshold * 2).min(MAX_THRESHOLD),
        };
    }

    /// The mark of a thread that becomes the owner, unless all are given out.
    fn take_mark(&mut self, thread: SharedThread) -> Option<usize> {
        let is_free = |mark: &Option<SharedThread>| mark.is_none_or(SharedThread::has_ended);
        let mark = self.marks.iter().position(is_free)?;
        self.marks[mark] = Some(thread);
        Some(mark)
    }

    /// A thread that is not the owner has taken the mutex: its mark is free.
    fn give_back_mark(&mut self, thread: Thread) {
        for mark in &mut self.marks {
            if mark.is_some_and(|has| has.id() == thread.id()) {
                *mark = None;
            }
        }
    }
}

// SAFETY: one thread at a time accesses the value.
unsafe impl<T: Send> Send for Biased<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Biased<T> {}

/// The value, while the lock is held.
pub struct Held<'a, T> {
    lock: &'a Biased<T>,
    /// `None` while [`Held::unlocked`] has released it.
    by: Option<By<'a>>,
    /// The thread that took the lock releases it.
    _not_send: PhantomData<*const ()>,
}

/// How a lock is held.
enum By<'a> {
    /// By its owner, whose mark this is.
    Owner(&'a AtomicBool),
    /// By any thread, with the mutex.
    Mutex(MutexGuard<'a, Bias>),
}

impl<T> Biased<T> {
    /// Unlocked, without an owner.
    pub fn new(value: T) -> Self {
        Biased {
            owner: AtomicUsize::new(0),
            busy: std::array::from_fn(|_| AtomicBool::new(false)),
            bias: Mutex::new(Bias {
                last: None,
                streak: 0,
                threshold: FIRST_THRESHOLD,
                since: None,
                marks: [None; MARKS],
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
        let owner = self.owner.load(Ordering::Relaxed);
        // If this thread is the owner, the difference is the index of its mark. An owner that holds
        // the lock already waits for itself below, as with any lock.
        if let Some(busy) = self.busy.get(owner.wrapping_sub(me.id()))
            && !busy.load(Ordering::Relaxed)
        {
            barrier::begin();
            busy.store(true, Ordering::Relaxed);
            // A thread that revokes the ownership either sees the mark, or is seen by the check.
            pin::light_barrier();
            if self.owner.load(Ordering::Relaxed) == owner {
                return self.held(By::Owner(busy));
            }
            release_owned(busy);
        }
        self.lock_shared(me)
    }

    #[inline]
    fn held<'a>(&'a self, by: By<'a>) -> Held<'a, T> {
        Held {
            lock: self,
            by: Some(by),
            _not_send: PhantomData,
        }
    }

    #[inline(never)]
    fn lock_shared(&self, me: Thread) -> Held<'_, T> {
        let mut bias = self.bias.lock();
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != 0 {
            self.owner.store(0, Ordering::Relaxed);
            pin::heavy_barrier();
            if pin::fences_needed() {
                // A system call filter forbids the barrier since. The stores of the owner leave its
                // store buffer long before the sleep ends.
                crate::sync::sleep(Duration::from_millis(1));
            }
            let mut round = 0;
            while self.busy[owner % MARKS].load(Ordering::Acquire) {
                relax(round);
                round = round.saturating_add(1);
            }
            bias.revoked();
        }
        if bias.last.is_none_or(|last| last.id() != me.id()) {
            bias.last = Some(me.shared());
            bias.streak = 0;
            bias.give_back_mark(me);
        }
        bias.streak = bias.streak.saturating_add(1);
        self.held(By::Mutex(bias))
    }
}

impl<T> Held<'_, T> {
    #[inline(always)]
    fn release(&mut self) {
        match self.by.take() {
            Some(By::Owner(busy)) => release_owned(busy),
            Some(By::Mutex(bias)) => self.lock.release_shared(bias),
            None => {}
        }
    }

    /// Releases the lock while `f` runs.
    pub fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        struct Again<'a, 'b, T>(&'a mut Held<'b, T>);
        impl<T> Drop for Again<'_, '_, T> {
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
fn release_owned(busy: &AtomicBool) {
    barrier::point();
    busy.store(false, Ordering::Release);
    barrier::end();
}

impl<T> Biased<T> {
    #[inline(never)]
    fn release_shared(&self, mut bias: MutexGuard<'_, Bias>) {
        if bias.streak >= bias.threshold
            && !pin::fences_needed()
            && let Some(thread) = bias.last
            && let Some(mark) = bias.take_mark(thread)
        {
            bias.since = Some(Instant::now());
            // Valid from the next time on; this time the mutex is held.
            self.owner.store(thread.id() + mark, Ordering::Relaxed);
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
        let owner = lock.owner.load(Ordering::Relaxed);
        owner != 0 && owner - owner % MARKS == pin::thread().id()
    }

    fn is_owners(held: &Held<'_, u64>) -> bool {
        matches!(held.by, Some(By::Owner(_)))
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
        lock.bias.lock().since = None;
        std::thread::scope(|s| s.spawn(|| *lock.lock() += 1).join().unwrap());
        assert!(!owned(&lock));
        // It takes longer from now on.
        (0..OFTEN).for_each(|_| *lock.lock() += 1);
        assert!(!owned(&lock));
        (0..OFTEN).for_each(|_| *lock.lock() += 1);
        assert!(owned(&lock));
        // And no longer than the first time after a long ownership.
        lock.bias.lock().since = Instant::now().checked_sub(LONG);
        std::thread::scope(|s| s.spawn(|| *lock.lock() += 1).join().unwrap());
        (0..OFTEN).for_each(|_| *lock.lock() += 1);
        assert!(owned(&lock));
        assert_eq!(*lock.lock(), u64::from(5 * OFTEN) + 2);
    }

    #[test]
    fn it_becomes_that_of_the_thread_that_uses_it_now() {
        if is_a_mutex() {
            return;
        }
        let lock = Biased::new(0u64);
        (0..OFTEN).for_each(|_| drop(lock.lock()));
        // More threads than there are marks, each after the one before has ended.
        for round in 1..=2 * MARKS as u32 {
            let often = (FIRST_THRESHOLD << round) + 1;
            std::thread::scope(|s| {
                s.spawn(|| {
                    (0..often).for_each(|_| drop(lock.lock()));
                    assert!(owned(&lock), "round {round}");
                });
            });
        }
    }

    #[test]
    fn a_mark_is_given_back_with_the_mutex() {
        if is_a_mutex() {
            return;
        }
        let lock = Biased::new(0u64);
        std::thread::scope(|s| {
            // Threads that take the lock as often as they are asked to, and answer whether it is
            // their own then.
            let threads: Vec<_> = (0..=MARKS)
                .map(|_| {
                    let (ask, asked) = std::sync::mpsc::channel::<u32>();
                    let (answer, answered) = std::sync::mpsc::channel();
                    let lock = &lock;
                    s.spawn(move || {
                        for times in asked {
                            (0..times).for_each(|_| drop(lock.lock()));
                            answer.send(owned(lock)).unwrap();
                        }
                    });
                    (ask, answered)
                })
                .collect();
            let owns_after = |thread: usize, times: u32| {
                threads[thread].0.send(times).unwrap();
                threads[thread].1.recv().unwrap()
            };
            let often = |revocations: usize| (FIRST_THRESHOLD << revocations) + 1;
            for thread in 0..MARKS {
                assert!(owns_after(thread, often(thread)));
            }
            assert!(
                !owns_after(MARKS, 2 * often(MARKS)),
                "there is no mark left"
            );
            assert!(!owns_after(0, 1));
            assert!(owns_after(MARKS, often(MARKS)));
        });
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
            assert!(is_owners(&held));
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
            assert_eq!(is_owners(&held), first_as_owner);
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
