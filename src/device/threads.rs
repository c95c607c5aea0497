//! Threads of this library, and the signals of the program.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::signals::SignalsBlocked;

/// Signals that the kernel sends a thread for a fault of that thread. If they were blocked, the kernel
/// would end the process even if the program has a handler for them.
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
/// meant for this library.
const STACK: usize = 2 << 20;

/// Starts a thread, which never takes a signal that is for the program: those are for the threads of
/// the program, one of which may be waiting for the signal.
///
/// # Errors
/// Of the kernel.
pub(crate) fn start<R: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    // The thread begins with the mask of the one that starts it.
    let _blocked = SignalsBlocked::all_but(&FAULTS);
    Builder::new()
        .name(name.into())
        .stack_size(STACK)
        .spawn(body)
}
