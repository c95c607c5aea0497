//! Threads of ours and the program's signals.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::signals::Quiet;

/// What a thread gets for what it did itself. Blocked, they would end the process where the
/// program has a handler that knows what to do.
const FAULTS: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Size of a thread's stack, in bytes. Without one the standard library takes it from the
/// environment (`RUST_MIN_STACK`), which is not for the user of a set-uid program to choose, nor
/// meant for us.
const STACK: usize = 2 << 20;

/// Starts a thread, which never takes a signal that is for the program: those are for threads
/// that the program knows, one of which may be waiting for it.
///
/// # Errors
/// Of the kernel.
pub(crate) fn start<R: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    // The thread begins with the mask of the one that starts it.
    let _quiet = Quiet::with(&FAULTS);
    Builder::new()
        .name(name.into())
        .stack_size(STACK)
        .spawn(body)
}
