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

mod across;
mod per_process;
#[cfg(test)]
pub(crate) mod tests;

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

pub(crate) use self::across::{Across, AcrossEntry, across};
pub(crate) use self::per_process::PerProcess;
#[cfg(dat_sim)]
pub use self::per_process::simulated;
use crate::any_stack::called_by_c;

/// How many forks there are between this process and the one that has loaded the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The most functions of [`in_child`], and the most states of [`across()`].
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

extern "C" fn before_fork() {
    across::lock_all();
}

extern "C" fn in_parent() {
    across::unlock_all();
}

extern "C" fn begin_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    across::unlock_all_in_child();
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
