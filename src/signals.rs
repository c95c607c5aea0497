//! Signal masks: keeping signals of the program out of a piece of code, and suppressing signals that
//! system calls of the libraries raise in threads of the program.

use std::mem::MaybeUninit;

use libc::{c_int, sigset_t};

use crate::cancel::Disabled;

/// Blocks signals in this thread until it is dropped, so that no handler of the program runs. Holds
/// the mask of before.
pub(crate) struct SignalsBlocked(sigset_t);

/// A set of these signals.
fn set(signals: &[c_int]) -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: filled before it is used.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

impl SignalsBlocked {
    /// Blocks all signals, even those of faults.
    pub fn all() -> SignalsBlocked {
        SignalsBlocked::all_but(&[])
    }

    /// Blocks all signals except `allowed`.
    pub fn all_but(allowed: &[c_int]) -> SignalsBlocked {
        let mut all = MaybeUninit::uninit();
        // SAFETY: filled before it is used.
        let all = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in allowed {
                libc::sigdelset(all.as_mut_ptr(), *signal);
            }
            all.assume_init()
        };
        SignalsBlocked::block(libc::SIG_SETMASK, &all)
    }

    fn block(how: c_int, signals: &sigset_t) -> SignalsBlocked {
        let mut before = MaybeUninit::uninit();
        // SAFETY: filled before it is used.
        unsafe {
            libc::pthread_sigmask(how, signals, before.as_mut_ptr());
            SignalsBlocked(before.assume_init())
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the mask of before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Calls `f` and discards the signals of these numbers that it raises in this thread. The errors of
/// `f` report the same condition, and a signal without a handler would end the process.
pub(crate) fn suppressing<R>(signals: &[c_int], f: impl FnOnce() -> R) -> R {
    // `sigtimedwait` is a point of cancellation.
    let _disabled = Disabled::begin();
    let blocked = SignalsBlocked::block(libc::SIG_BLOCK, &set(signals));
    let mut pending = MaybeUninit::uninit();
    // SAFETY: filled before it is used.
    let pending = unsafe {
        libc::sigpending(pending.as_mut_ptr());
        pending.assume_init()
    };
    let result = f();
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    for signal in signals {
        // A signal that was pending before is the program's, and `f` cannot have added another: a
        // signal is pending only once.
        // SAFETY: sets, a signal that exists, and a time; the information on the signal is not
        // requested.
        unsafe {
            if libc::sigismember(&pending, *signal) != 1 {
                libc::sigtimedwait(&set(&[*signal]), std::ptr::null_mut(), &now);
            }
        }
    }
    drop(blocked);
    result
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
        let signals = [libc::SIGPIPE, libc::SIGXFSZ];
        // The signal would have ended the process.
        assert_eq!(suppressing(&signals, || (raise(), 7).1), 7);
        let blocked = SignalsBlocked::all();
        raise();
        suppressing(&signals, raise);
        assert!(is_pending());
        // SAFETY: a set, and room for a signal.
        unsafe { libc::sigwait(&set(&[libc::SIGXFSZ]), &mut 0) };
        assert!(!is_pending());
        drop(blocked);
    }
}
