//! rdma-core across a fork.
//!
//! Its libraries have locks and lists for the whole process, and no handlers of `fork`. In a child that is
//! forked while another thread holds such a lock, nobody ever releases it: the first call there that needs
//! the lock, of an IA that the child opens, would never return. So every call of the libraries that may take
//! one of them is a [`LibraryUse`], and a fork waits until there is none, for half a second at most. Were
//! there some all the time, the child leaves the libraries alone ([`is_usable`]).
//!
//! The locks are these:
//!
//! * that of librdmacm for its devices and identifiers: what makes, binds, resolves and destroys identifiers, and
//!   what reads events;
//! * that of librdmacm for its questions to the daemon `ibacm`: what resolves a route, each time where that daemon
//!   runs and once where it does not;
//! * that of libibverbs for its list of devices;
//! * that of libibverbs for the memory which children do not get (`ibv_fork_init`): what registers memory, makes or
//!   destroys a queue, and what changes a queue pair where the driver maps a page then;
//! * those of libnl for its sockets and caches: what lists devices or makes an address handle.
//!
//! Posts, polls, notifications, and what asks the connection manager of the kernel for something else take none.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::descriptor::OccupiedStreams;
use crate::process::{self, Across, AcrossEntry};
use crate::sync::sleep;

/// How long a call is put off while the process forks. Its thread may hold another lock for which the same fork
/// waits.
const MAX_WAIT: Duration = Duration::from_millis(250);
/// How long the process waits for the end of calls under way until it tries again.
const MAX_CALL: Duration = Duration::from_millis(50);
/// The interval at which the one looks for the other.
const INTERVAL: Duration = Duration::from_micros(100);

/// Calls under way.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// The process is about to fork.
static FORKING: AtomicBool = AtomicBool::new(false);
/// This process was forked in the middle of a call of another thread.
static UNUSABLE: AtomicBool = AtomicBool::new(false);

static ENTRY: AcrossEntry = AcrossEntry::new(&Calls);

struct Calls;

impl Across for Calls {
    fn try_lock(&self) -> bool {
        if FORKING.swap(true, Ordering::SeqCst) {
            return false;
        }
        // New calls are put off meanwhile: among many short ones there is a moment without any only then.
        let mut waited = Duration::ZERO;
        while CALLS.load(Ordering::SeqCst) > 0 {
            if waited >= MAX_CALL {
                FORKING.store(false, Ordering::Release);
                return false;
            }
            sleep(INTERVAL);
            waited += INTERVAL;
        }
        true
    }

    unsafe fn unlock(&self) {
        FORKING.store(false, Ordering::Release);
    }

    unsafe fn unlock_in_child(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.reset() };
    }

    unsafe fn reset(&self) {
        // One that has waited long enough may have begun, and one may have ended in time.
        if CALLS.swap(0, Ordering::Relaxed) > 0 {
            UNUSABLE.store(true, Ordering::Relaxed);
        }
        FORKING.store(false, Ordering::Relaxed);
    }
}

/// A call of the libraries, or several, until the drop: the process does not fork meanwhile. Calls that block
/// for long take no lock of the libraries while they do, and are none.
pub(super) struct LibraryUse(());

impl LibraryUse {
    /// A call begins.
    pub fn begin() -> LibraryUse {
        process::across(&ENTRY);
        CALLS.fetch_add(1, Ordering::SeqCst);
        if FORKING.load(Ordering::SeqCst) {
            put_off();
        }
        LibraryUse(())
    }

    /// A call begins that may open descriptors, some of which the libraries keep for good: none gets the number of a
    /// standard stream.
    pub fn begin_opening() -> (OccupiedStreams, LibraryUse) {
        let library_use = LibraryUse::begin();
        (OccupiedStreams::begin(), library_use)
    }
}

impl Drop for LibraryUse {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::Release);
    }
}

/// Waits for the end of a fork, with the call not begun.
#[cold]
fn put_off() {
    let mut waited = Duration::ZERO;
    while FORKING.load(Ordering::SeqCst) && waited < MAX_WAIT {
        CALLS.fetch_sub(1, Ordering::Release);
        sleep(INTERVAL);
        waited += INTERVAL;
        CALLS.fetch_add(1, Ordering::SeqCst);
    }
}

/// Whether the libraries can be used in this process.
pub(super) fn is_usable() -> bool {
    !UNUSABLE.load(Ordering::Relaxed)
}

#[cfg(all(test, not(loom), not(dat_sim)))]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::process::tests::{Forks, WELL, status_of_child, status_of_child_of};

    /// The forks of this test alone matter, since no other one uses the libraries.
    #[test]
    fn a_child_is_not_in_the_middle_of_a_call() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let _use = LibraryUse::begin();
                        sleep(INTERVAL);
                    }
                });
            }
            let in_child = || is_usable() && CALLS.load(Ordering::Relaxed) == 0;
            let statuses: Vec<i32> = (0..20).map(|_| status_of_child(in_child)).collect();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(statuses, [WELL; 20]);
        });
        // A call that lasts longer than the fork waits.
        let forks = Forks::of_this_test();
        let (begun, done) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|s| {
            s.spawn(|| {
                let _use = LibraryUse::begin();
                begun.wait();
                done.wait();
            });
            begun.wait();
            let status = status_of_child_of(&forks, || {
                // A call of the child itself is not put off.
                let _use = LibraryUse::begin();
                !is_usable()
            });
            done.wait();
            assert_eq!(status, WELL);
        });
        assert!(is_usable());
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);
    }
}
