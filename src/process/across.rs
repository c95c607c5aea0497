//! States that a child takes over from its parent, with their locks.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use super::List;
use crate::lock::{self, Mutex};

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
pub(super) const STATE_WAITS: Duration = Duration::from_millis(250);

/// The interval at which a thread looks for what it waits for.
pub(super) const INTERVAL: Duration = Duration::from_micros(100);

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
    // Either a fork finds the entry (`lock_all`), or this finds the fork.
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

/// The thread that calls, as a number.
pub(super) fn this_thread() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() as usize }
}

/// Takes the locks of all states.
pub(super) fn lock_all() {
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

/// In the parent: releases the locks that [`lock_all`] has taken.
pub(super) fn unlock_all() {
    for entry in all_across().rev() {
        if entry.locked_by.load(Ordering::Relaxed) == this_thread() {
            entry.locked_by.store(0, Ordering::Relaxed);
            // SAFETY: `lock_all` has locked it in this thread.
            unsafe { entry.state.unlock() };
        }
    }
    FORKS.fetch_sub(1, Ordering::Release);
}

/// In the child: releases the locks of all states, or has a state begin anew whose locks the fork did not get.
pub(super) fn unlock_all_in_child() {
    FORKS.store(0, Ordering::Relaxed);
    for entry in all_across().rev() {
        // SAFETY: `lock_all` has locked it in this thread, or there is no other thread.
        unsafe {
            match entry.locked_by.swap(0, Ordering::Relaxed) == this_thread() {
                true => entry.state.unlock_in_child(),
                false => entry.state.reset(),
            }
        }
    }
}
