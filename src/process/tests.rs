//! Tests of what a fork does, and what other tests need to fork.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Instant;

use super::across::{INTERVAL, STATE_WAITS, this_thread};
use super::*;
use crate::lock::Mutex;

/// The right to fork. A fork waits only for a while for what another thread holds: a test that holds something,
/// so that its own fork does not get it, has this right first.
pub(crate) struct Forks(#[expect(dead_code, reason = "held")] std::sync::MutexGuard<'static, ()>);

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

/// From now on the process, which is a child of this one, may open no descriptor.
pub(crate) fn allow_no_descriptor() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: limits that live during the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) }, 0);
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
