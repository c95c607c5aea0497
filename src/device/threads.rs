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

/// Calls `f`, which may get this thread the signal `SIGXFSZ`: a file would be larger than
/// `RLIMIT_FSIZE` allows. The error says as much, and where the program has no handler the signal
/// would end the process.
pub(super) fn without_sigxfsz<R>(f: impl FnOnce() -> R) -> R {
    let _quiet = Quiet::begin();
    let mut only = MaybeUninit::uninit();
    let mut pending = MaybeUninit::uninit();
    // SAFETY: both are filled before they are used, and the signal exists.
    let (only, earlier) = unsafe {
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), libc::SIGXFSZ);
        libc::sigpending(pending.as_mut_ptr());
        (
            only.assume_init(),
            libc::sigismember(pending.as_ptr(), libc::SIGXFSZ) == 1,
        )
    };
    let result = f();
    // One that was there before is the program's. There are never two.
    if !earlier {
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: a set and a time; nobody wants to know more of the signal.
        unsafe { libc::sigtimedwait(&only, std::ptr::null_mut(), &now) };
    }
    result
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
    Builder::new().name(name.into()).spawn(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raise() {
        // SAFETY: sends this thread a signal.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGXFSZ) };
    }

    fn is_pending() -> bool {
        let mut pending = MaybeUninit::uninit();
        // SAFETY: filled before it is used.
        unsafe {
            libc::sigpending(pending.as_mut_ptr());
            libc::sigismember(pending.as_ptr(), libc::SIGXFSZ) == 1
        }
    }

    #[test]
    fn a_signal_of_ours_is_gone_and_one_of_the_program_stays() {
        // It would have ended the process.
        assert_eq!(without_sigxfsz(|| (raise(), 7).1), 7);
        let quiet = Quiet::begin();
        raise();
        without_sigxfsz(raise);
        assert!(is_pending());
        let mut signal = MaybeUninit::uninit();
        // SAFETY: a set that is filled before it is used, and the signal exists.
        unsafe {
            libc::sigemptyset(signal.as_mut_ptr());
            libc::sigaddset(signal.as_mut_ptr(), libc::SIGXFSZ);
            libc::sigwait(signal.as_ptr(), &mut 0);
        }
        assert!(!is_pending());
        drop(quiet);
    }
}
