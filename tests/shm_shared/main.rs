//! Registered memory that moves to where peers can map it (`memory=eager`, `memory=shared`), and all
//! that a program may do to it meanwhile.
//!
//! In one process, whose two ends reach each other as two processes do; and in two, where one
//! dies.

mod crowd;
mod ends;
mod family;
mod held;
#[path = "../common/itself.rs"]
mod itself;
mod locked;
mod places;
#[path = "../common/poll.rs"]
mod poll;
mod promotion;
#[path = "../common/skip.rs"]
mod skip;
#[path = "../common/soft.rs"]
mod soft;
mod stopped;
mod two;

use std::sync::{LazyLock, Mutex, MutexGuard};

/// Set for a process in which memory stays private, and which is to run the tests all the same.
const PRIVATE: &str = "LIBDAT_TEST_PRIVATE";

/// The tests poll what the whole process shares: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// The turn of a test in which memory moves. Where none can move the test is skipped: `None`.
fn alone() -> Option<MutexGuard<'static, ()>> {
    if !is_possible() && std::env::var_os(PRIVATE).is_none() {
        skip::skip("userfaultfd of Linux 6.8 is not there, or not permitted: no memory moves");
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(|e| e.into_inner()))
}

/// Whether memory moves in this process: the kernel has what is needed, lets this process use it,
/// and lets its files be as large as its address space.
fn is_possible() -> bool {
    static POSSIBLE: LazyLock<bool> =
        LazyLock::new(|| held::Gate::open().is_some() && !two::has_small_files());
    *POSSIBLE
}
