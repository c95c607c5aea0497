//! Threads of ours and the program's signals.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

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

/// No signal handler of the program runs in this thread until it is dropped.
pub(super) struct Quiet(libc::sigset_t);

impl Quiet {
    /// Not even for a fault.
    pub fn begin() -> Quiet {
        Quiet::with(&[])
    }

    fn with(allowed: &[libc::c_int]) -> Quiet {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both are filled before they are used, and the signals exist.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in allowed {
                libc::sigdelset(all.as_mut_ptr(), *signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Quiet(before.assume_init())
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: the mask of before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Starts a thread, which never takes a signal that is for the program: those are for threads
/// that the program knows, one of which may be waiting for it.
///
/// # Errors
/// Of the kernel.
pub(super) fn start<R: Send + 'static>(
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
