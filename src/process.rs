//! What fork(2) does to the state of a process.
//!
//! A forked child has a copy of all memory, but only the thread that has forked. A lock that another
//! thread held is held for ever, and what it guards may be half changed. What the memory describes,
//! connections and shared memory, belongs to the parent. So a child takes nothing over:
//!
//! * [`PerProcess`] is a value that each process makes for itself. The child leaves that of its
//!   parent alone, and never frees it.
//! * [`in_child`] has a function called in each child, for state that every call uses and that
//!   therefore has a fixed place.
//! * [`Across`] is for the few states that a child does take over. Their locks are taken before the
//!   fork, so that no other thread is in the middle of a change.
//!
//! The handlers of `fork` (`pthread_atfork(3)`) are installed when the library is loaded, before
//! there are threads that could fork meanwhile. A child that is made without the handlers (by
//! `_Fork(3)` or by the system call itself) may call nothing but what a signal handler may, by the
//! rules of POSIX, until it executes another program; handles are invalid there too.

use std::ops::Deref;
#[cfg(dat_sim)]
use std::ptr::NonNull;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use crate::any_stack::called_by_c;
use crate::lock::{self, Mutex};

/// How many forks there are between this process and the one that has loaded the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A value that each process makes for itself, when it first needs the value. Several threads may
/// make it at the same time; one of the values is used.
pub(crate) struct PerProcess<T: 'static> {
    /// The value, which is never freed; null before the first one.
    #[cfg_attr(
        dat_sim,
        expect(dead_code, reason = "each simulated process has its own")
    )]
    current: AtomicPtr<Made<T>>,
    make: fn() -> T,
}

/// A value, and [`GENERATION`] of the process that has made the value.
#[cfg_attr(
    dat_sim,
    expect(dead_code, reason = "each simulated process has its own")
)]
struct Made<T> {
    generation: u32,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// A value that `make` makes.
    pub const fn new(make: fn() -> T) -> PerProcess<T> {
        PerProcess {
            current: AtomicPtr::new(null_mut()),
            make,
        }
    }

    /// The value of this process, if it has one.
    #[cfg(not(dat_sim))]
    #[inline]
    pub fn made(&self) -> Option<&'static T> {
        // SAFETY: null, or a value that is never freed.
        let made = unsafe { self.current.load(Ordering::Acquire).as_ref() }?;
        (made.generation == GENERATION.load(Ordering::Relaxed)).then_some(&made.value)
    }

    /// The value of this process.
    #[inline]
    pub fn get(&self) -> &'static T {
        self.made().unwrap_or_else(|| self.make())
    }

    #[cfg(not(dat_sim))]
    #[cold]
    fn make(&self) -> &'static T {
        let before = self.current.load(Ordering::Acquire);
        let new = Box::into_raw(Box::new(Made {
            generation: GENERATION.load(Ordering::Relaxed),
            value: (self.make)(),
        }));
        let (to, from) = (Ordering::AcqRel, Ordering::Acquire);
        if let Some(value) = self.made() {
            // SAFETY: from `into_raw`, and nothing else has the pointer.
            drop(unsafe { Box::from_raw(new) });
            return value;
        }
        match self.current.compare_exchange(before, new, to, from) {
            // SAFETY: never freed from now on.
            Ok(_) => unsafe { &(*new).value },
            Err(made) => {
                // SAFETY: as above; and the value of another thread of this process, never freed.
                unsafe {
                    drop(Box::from_raw(new));
                    &(*made).value
                }
            }
        }
    }
}

#[cfg(dat_sim)]
impl<T: Send + Sync> PerProcess<T> {
    /// The value of the simulated process, if it has one.
    pub fn made(&self) -> Option<&'static T> {
        let value = simulated::value(std::ptr::from_ref(self).addr())?;
        // SAFETY: made below, by the same static, and there until the process has ended.
        Some(unsafe { value.cast().as_ref() })
    }

    fn make(&self) -> &'static T {
        let value = Box::leak(Box::new((self.make)()));
        // SAFETY: from the box, and dropped once.
        let drop = |value: NonNull<()>| unsafe { drop(Box::from_raw(value.cast::<T>().as_ptr())) };
        let at = std::ptr::from_ref(self).addr();
        simulated::add(at, NonNull::from(&*value).cast(), drop);
        value
    }
}

impl<T: Send + Sync> Deref for PerProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.get()
    }
}

/// What the processes of a simulation have, which are all in one thread.
#[cfg(dat_sim)]
pub mod simulated {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::ptr::NonNull;

    use crate::kernel;

    /// A value of a [`PerProcess`](super::PerProcess), and what drops the value.
    type Value = (NonNull<()>, fn(NonNull<()>));

    thread_local! {
        /// The values, by the identifier of the process and the address of the static.
        static VALUES: RefCell<BTreeMap<(u32, usize), Value>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// The value of a static in the process that runs.
    pub(super) fn value(at: usize) -> Option<NonNull<()>> {
        let key = (kernel::process_id(), at);
        VALUES.with(|values| Some(values.borrow().get(&key)?.0))
    }

    /// Adds the value of a static in the process that runs.
    pub(super) fn add(at: usize, value: NonNull<()>, drop: fn(NonNull<()>)) {
        let key = (kernel::process_id(), at);
        VALUES.with(|values| values.borrow_mut().insert(key, (value, drop)));
    }

    /// The process that runs has ended: drops its values.
    ///
    /// # Safety
    /// Nothing refers to them any more.
    pub unsafe fn end_process() {
        let process = kernel::process_id();
        loop {
            let first = |values: &mut BTreeMap<(u32, usize), Value>| {
                let (key, _) = values.range((process, 0)..=(process, usize::MAX)).next()?;
                let key = *key;
                values.remove(&key)
            };
            let Some((value, drop)) = VALUES.with(|values| first(&mut values.borrow_mut())) else {
                return;
            };
            drop(value);
        }
    }
}

/// The most functions of [`in_child`], and the most states of [`across`].
const MOST: usize = 16;

/// A list that only grows, and whose entries are there once.
struct List<T>([AtomicPtr<T>; MOST]);

impl<T> List<T> {
    const fn new() -> List<T> {
        List([const { AtomicPtr::new(null_mut()) }; MOST])
    }

    fn add(&self, entry: *mut T) {
        // Without a reference the linker may leave out the object file of the static.
        std::hint::black_box(&INSTALL);
        let (to, from) = (Ordering::AcqRel, Ordering::Acquire);
        for place in &self.0 {
            match place.compare_exchange(null_mut(), entry, to, from) {
                Err(other) if other != entry => {}
                _ => return,
            }
        }
        debug_assert!(false, "more than there are places for");
    }

    fn all(&self) -> impl DoubleEndedIterator<Item = *mut T> {
        let places = self.0.iter();
        places
            .map(|place| place.load(Ordering::Acquire))
            .filter(|entry| !entry.is_null())
    }
}

static IN_CHILD: List<fn()> = List::new();

/// Has `f` called in every child that is forked from now on, by its only thread, before `fork`
/// returns there. To be called before any lock is taken that `f` is to release.
pub(crate) fn in_child(f: &'static fn()) {
    IN_CHILD.add(std::ptr::from_ref(f).cast_mut());
}

/// A state that a child takes over from its parent.
pub(crate) trait Across: Sync {
    /// Takes all locks, or none and returns false if another thread holds one.
    fn try_lock(&self) -> bool;
    /// In the parent: releases all locks.
    ///
    /// # Safety
    /// This thread has taken them by [`Across::try_lock`].
    unsafe fn unlock(&self);
    /// In the child: releases all locks.
    ///
    /// # Safety
    /// There is no other thread, and the parent of this one has taken them by [`Across::try_lock`].
    unsafe fn unlock_in_child(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.unlock() };
    }
    /// Whether the fork waits as long as it takes for the locks.
    fn is_essential(&self) -> bool {
        false
    }
    /// In a child for which the locks could not be taken: forgets what there is, and releases all
    /// locks.
    ///
    /// # Safety
    /// There is no other thread, and this one uses nothing of the state.
    unsafe fn reset(&self);
}

/// A mutex whose value a child takes over. Where another thread holds the mutex the child begins with the default.
impl<T: Default + Send> Across for Mutex<T> {
    fn try_lock(&self) -> bool {
        Mutex::try_lock(self).map(std::mem::forget).is_some()
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.force_unlock() };
    }

    unsafe fn reset(&self) {
        // SAFETY: the caller's promise.
        unsafe { lock::reset(self, T::default()) };
    }
}

/// A reference to a state and who holds its locks for a fork.
pub(crate) struct AcrossEntry {
    state: &'static dyn Across,
    /// The thread that forks and holds the locks for that, by the address of its descriptor; 0 if
    /// there is none. Several threads may fork at the same time.
    locked_by: AtomicUsize,
    /// Threads take the locks while they hold those of other states.
    innermost: bool,
    /// No fork is under way that does not know of the entry.
    in_force: AtomicBool,
}

impl AcrossEntry {
    /// For [`across`].
    pub const fn new(state: &'static dyn Across) -> AcrossEntry {
        AcrossEntry {
            state,
            locked_by: AtomicUsize::new(0),
            innermost: false,
            in_force: AtomicBool::new(false),
        }
    }

    /// For [`across`], of a state whose locks threads take while they hold those of other states. A fork takes them
    /// last: otherwise it would wait for a thread that waits for the fork.
    pub const fn innermost(state: &'static dyn Across) -> AcrossEntry {
        AcrossEntry {
            innermost: true,
            ..AcrossEntry::new(state)
        }
    }
}

static ACROSS: List<AcrossEntry> = List::new();

/// Threads that are in `fork`.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How long a state waits for forks that do not know of it. Who needs the state may hold a lock for which the
/// same fork waits.
const STATE_WAITS: Duration = Duration::from_millis(250);

/// The interval at which a thread looks for what it waits for.
const INTERVAL: Duration = Duration::from_micros(100);

/// Has every child take over a state. To be called before each use of the state.
#[inline]
pub(crate) fn across(entry: &'static AcrossEntry) {
    if !entry.in_force.load(Ordering::Acquire) {
        begin_across(entry);
    }
}

#[cold]
fn begin_across(entry: &'static AcrossEntry) {
    ACROSS.add(std::ptr::from_ref(entry).cast_mut());
    // Either a fork finds the entry (`before_fork`), or this finds the fork.
    fence(Ordering::SeqCst);
    let begun = Instant::now();
    while FORKS.load(Ordering::Acquire) > 0 && begun.elapsed() < STATE_WAITS {
        crate::sync::sleep(INTERVAL);
    }
    entry.in_force.store(true, Ordering::Release);
}

/// All states, in the order in which their locks are taken.
fn all_across() -> impl DoubleEndedIterator<Item = &'static AcrossEntry> {
    let entries = |innermost| {
        // SAFETY: from the static reference of `across`.
        let entries = ACROSS.all().map(|entry| unsafe { &*entry });
        entries.filter(move |entry: &&AcrossEntry| entry.innermost == innermost)
    };
    entries(false).chain(entries(true))
}

/// How long a fork waits for the locks of a state. Their holders need much less; but a signal handler that forks
/// may have interrupted the holder, and a library that another thread loads may take any time. The
/// child begins anew then.
const FORK_WAITS: Duration = Duration::from_millis(500);

fn this_thread() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() as usize }
}

extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    for entry in all_across() {
        let begun = Instant::now();
        let mut locked = entry.state.try_lock();
        while !locked && (entry.state.is_essential() || begun.elapsed() < FORK_WAITS) {
            crate::sync::sleep(INTERVAL);
            locked = entry.state.try_lock();
        }
        if locked {
            entry.locked_by.store(this_thread(), Ordering::Relaxed);
        }
    }
}

extern "C" fn in_parent() {
    for entry in all_across().rev() {
        if entry.locked_by.load(Ordering::Relaxed) == this_thread() {
            entry.locked_by.store(0, Ordering::Relaxed);
            // SAFETY: `before_fork` has locked it in this thread.
            unsafe { entry.state.unlock() };
        }
    }
    FORKS.fetch_sub(1, Ordering::Release);
}

extern "C" fn begin_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    FORKS.store(0, Ordering::Relaxed);
    for entry in all_across().rev() {
        // SAFETY: `before_fork` has locked it in this thread, or there is no other thread.
        unsafe {
            match entry.locked_by.swap(0, Ordering::Relaxed) == this_thread() {
                true => entry.state.unlock_in_child(),
                false => entry.state.reset(),
            }
        }
    }
    for f in IN_CHILD.all() {
        // SAFETY: from the static reference of `in_child`.
        unsafe { (*f)() };
    }
}

extern "C" fn install() {
    // SAFETY: the three handlers may be called whenever a process may fork.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

called_by_c! {
    at_load => install;
    prepare => before_fork;
    parent => in_parent;
    child => begin_child;
}

/// Called when the library is loaded.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
static INSTALL: extern "C" fn() = at_load;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The right to fork. A fork waits only for a while for what another thread holds: a test that holds something,
    /// so that its own fork does not get it, has this right first.
    pub(crate) struct Forks(
        #[expect(dead_code, reason = "held")] std::sync::MutexGuard<'static, ()>,
    );

    impl Forks {
        pub(crate) fn of_this_test() -> Forks {
            static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
            Forks(ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner()))
        }
    }

    /// The exit status of a child that runs `f`: [`WELL`] if that is true.
    pub(crate) fn status_of_child(f: impl FnOnce() -> bool) -> i32 {
        status_of_child_of(&Forks::of_this_test(), f)
    }

    /// As [`status_of_child`].
    pub(crate) fn status_of_child_of(_: &Forks, f: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child calls `f` and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a child that hangs dies of the signal, and does not return otherwise.
            unsafe {
                libc::alarm(20);
                libc::_exit(if f() { 7 } else { 8 });
            }
        }
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status
    }

    pub(crate) const WELL: i32 = 7 << 8;

    #[test]
    fn a_child_makes_its_own_value() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new(|| Mutex::new(1));
        assert!(VALUE.made().is_none());
        let mut held = VALUE.lock();
        *held = 2;
        let first: *const _ = VALUE.get();
        // The lock is held in the copy of the child.
        let status = status_of_child(|| {
            let fresh = VALUE.made().is_none() && *VALUE.lock() == 1;
            fresh && !std::ptr::eq(VALUE.get(), first)
        });
        assert_eq!(status, WELL);
        drop(held);
        assert_eq!(*VALUE.lock(), 2);
    }

    #[test]
    fn threads_agree_on_a_value() {
        static VALUE: PerProcess<u64> = PerProcess::new(|| 3);
        let addresses: Vec<usize> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4)
                .map(|_| s.spawn(|| std::ptr::from_ref(VALUE.get()).addr()))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(addresses.iter().all(|address| *address == addresses[0]));
    }

    #[test]
    fn a_fork_takes_the_locks_of_innermost_states_last() {
        /// Remembers the order in which the locks were taken by the thread of the test.
        struct Ordered(AtomicUsize);
        static THREAD: AtomicUsize = AtomicUsize::new(0);
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        impl Across for Ordered {
            fn try_lock(&self) -> bool {
                if THREAD.load(Ordering::Relaxed) == this_thread() {
                    let before = TAKEN.fetch_add(1, Ordering::Relaxed);
                    self.0.store(before + 1, Ordering::Relaxed);
                }
                true
            }

            unsafe fn unlock(&self) {}

            unsafe fn reset(&self) {}
        }
        static OUTER: Ordered = Ordered(AtomicUsize::new(0));
        static INNER: Ordered = Ordered(AtomicUsize::new(0));
        static OUTER_ENTRY: AcrossEntry = AcrossEntry::new(&OUTER);
        static INNER_ENTRY: AcrossEntry = AcrossEntry::innermost(&INNER);
        across(&INNER_ENTRY);
        across(&OUTER_ENTRY);
        THREAD.store(this_thread(), Ordering::Relaxed);
        assert_eq!(status_of_child(|| true), WELL);
        let order = [&OUTER, &INNER].map(|state| state.0.load(Ordering::Relaxed));
        assert_eq!(order, [1, 2]);
    }

    #[test]
    fn a_state_that_a_fork_does_not_know_is_not_used_during_the_fork() {
        /// Threads that have the state in use.
        struct Uses(AtomicUsize);
        impl Across for Uses {
            fn try_lock(&self) -> bool {
                true
            }

            unsafe fn unlock(&self) {}

            unsafe fn reset(&self) {}
        }
        /// Its lock takes time in the fork of the test, after those of all states of which the fork knew.
        struct Last(AtomicUsize);
        impl Across for Last {
            fn try_lock(&self) -> bool {
                if self.0.load(Ordering::Relaxed) == this_thread() {
                    FORK_IS_UNDER_WAY.store(true, Ordering::Release);
                    let begun = Instant::now();
                    while USES.0.load(Ordering::Relaxed) == 0 && begun.elapsed() < STATE_WAITS / 4 {
                        crate::sync::sleep(INTERVAL);
                    }
                }
                true
            }

            unsafe fn unlock(&self) {}

            unsafe fn reset(&self) {}
        }
        static FORK_IS_UNDER_WAY: AtomicBool = AtomicBool::new(false);
        static USES: Uses = Uses(AtomicUsize::new(0));
        static USES_ENTRY: AcrossEntry = AcrossEntry::new(&USES);
        static LAST: Last = Last(AtomicUsize::new(0));
        static LAST_ENTRY: AcrossEntry = AcrossEntry::innermost(&LAST);
        across(&LAST_ENTRY);
        LAST.0.store(this_thread(), Ordering::Relaxed);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !FORK_IS_UNDER_WAY.load(Ordering::Acquire) {
                    crate::sync::sleep(INTERVAL);
                }
                across(&USES_ENTRY);
                USES.0.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(
                status_of_child(|| USES.0.load(Ordering::Relaxed) == 0),
                WELL
            );
            LAST.0.store(0, Ordering::Relaxed);
        });
        assert_eq!(USES.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_state_that_is_taken_over_is_never_half_changed() {
        static STATE: Mutex<u32> = Mutex::new(5);
        static ENTRY: AcrossEntry = AcrossEntry::new(&STATE);
        across(&ENTRY);
        assert_eq!(status_of_child(|| *STATE.lock() == 5), WELL);
        // The lock is not to be had: the child begins anew.
        let forks = Forks::of_this_test();
        let held = STATE.lock();
        let status = status_of_child_of(&forks, || *STATE.lock() == 0);
        assert_eq!(status, WELL);
        drop(held);
        assert_eq!(*STATE.lock(), 5);
    }
}
