//! Registered memory that moves to where peers can map it (`memory=shared`), and all that a
//! program may do to it meanwhile.
//!
//! In one process, whose two ends reach each other as two processes do; and in two, where one
//! dies.

mod crowd;
mod ends;
mod family;
mod held;
mod places;
#[path = "../common/soft.rs"]
mod soft;
mod two;

use std::sync::{LazyLock, Mutex, MutexGuard};

/// The tests look at what the whole process shares: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Whether the kernel has what is needed, and lets this process use it.
fn is_possible() -> bool {
    static POSSIBLE: LazyLock<bool> = LazyLock::new(|| held::Gate::open().is_some());
    if !*POSSIBLE {
        eprintln!("userfaultfd of Linux 6.8 is not there, or not permitted: nothing moves here");
    }
    *POSSIBLE
}
