//! Thread cancellation (`pthread_cancel(3)`).
//!
//! The C library acts on a cancellation by unwinding the thread. That must not go through functions
//! of Rust, which have destructors and catch panics: it would end the process. So no call of the
//! library is a point of cancellation but the two that wait:
//!
//! - Posts and dequeues make their system calls by instructions of their own, which are no points of
//!   cancellation. What they do rarely is done with cancellation [disabled](Disabled).
//! - All other calls run with cancellation disabled.
//! - A call that waits ([`Waiting`]) sleeps in [`sleep`]. There a cancellation is acted upon at once,
//!   and the unwinding is stopped in the same function. The call releases everything on its way back
//!   to its outermost function, which has nothing to be destroyed and goes on with the unwinding
//!   ([`exit`]).
//!
//! The unwinding is stopped where it would call the cleanup handler of that function, before it
//! reaches its caller: the handler continues after the sleep instead of returning, as C programs do
//! that leave a handler by `longjmp(3)`. This is written in assembly for x86, AArch64 and RISC-V;
//! elsewhere a cancellation of a thread that waits stays pending.
//!
//! A cancellation of a thread that sleeps comes by a signal, and the thread may be awake by then. glibc before
//! 2.41 acts on the signal in any point of cancellation, even with cancellation disabled, and a point of
//! cancellation waits for the signal, so that it must not be blocked. The sleep ends with such a point, where
//! the unwinding is still stopped: after that no signal is on its way, and with cancellation disabled none is sent.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::sync::Arc;

use crate::system_call;
use crate::thread_sanitizer;

#[cfg_attr(
    not(all(
        any(
            target_arch = "x86_64",
            target_arch = "x86",
            target_arch = "aarch64",
            target_arch = "riscv64"
        ),
        target_os = "linux",
        not(miri)
    )),
    path = "pending.rs"
)]
mod catching;

#[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
mod aarch64;
#[cfg(all(target_arch = "riscv64", target_os = "linux", not(miri)))]
mod riscv64;
#[cfg(all(target_arch = "x86", target_os = "linux", not(miri)))]
mod x86;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod x86_64;

const ENABLE: c_int = 0;
const DISABLE: c_int = 1;
const DEFERRED: c_int = 0;

// These may unwind, since a cancellation may be acted upon in them.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn pthread_exit(value: *mut c_void) -> !;
}

/// Drops a reference. What is destroyed with the last one may call points of cancellation.
#[inline]
pub(crate) fn drop_reference<T>(reference: Arc<T>) {
    if let Some(last) = Arc::into_inner(reference) {
        let _disabled = Disabled::begin();
        drop(last);
    }
}

/// Cancellation is disabled in this thread until the drop.
pub(crate) struct Disabled {
    /// The state before.
    before: c_int,
}

impl Disabled {
    /// Disables cancellation.
    pub fn begin() -> Disabled {
        let mut before = DISABLE;
        // Miri has threads that cannot be cancelled.
        if !cfg!(miri) {
            // SAFETY: a place for the state.
            unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        }
        Disabled { before }
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        if self.before == DISABLE {
            return;
        }
        let mut old = 0;
        // With the asynchronous type a cancellation would be acted upon here. A thread of that type
        // has the deferred type from now on.
        // SAFETY: places for what there was before.
        unsafe {
            pthread_setcanceltype(DEFERRED, &mut old);
            pthread_setcancelstate(self.before, &mut old);
        }
    }
}

thread_local! {
    /// This thread is in a call that waits, and the program has cancellation enabled.
    static CANCELLABLE: Cell<bool> = const { Cell::new(false) };
}

/// A call that waits: cancellation is disabled but for [`sleep`].
pub(crate) struct Waiting(Disabled);

impl Waiting {
    /// Begins the call, unless the thread was cancelled.
    ///
    /// # Errors
    /// The thread was cancelled.
    pub fn begin() -> Result<Waiting, Cancelled> {
        let waiting = Waiting(Disabled::begin());
        CANCELLABLE.set(waiting.0.before == ENABLE);
        if CANCELLABLE.get() {
            // SAFETY: nothing is called.
            unsafe { catching::run(None) }?;
        }
        Ok(waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        CANCELLABLE.set(false);
    }
}

/// The thread was cancelled: everything is to be released, and [`exit`] to be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cancelled;

/// Goes on with the cancellation of this thread.
///
/// # Safety
/// The thread was [`Cancelled`]. No caller up to the program's own functions has anything to be
/// destroyed, and all may be unwound (`extern "C-unwind"`).
#[cold]
pub(crate) unsafe extern "C-unwind" fn exit() -> ! {
    /// What `pthread_join` gives of a thread that was cancelled.
    const PTHREAD_CANCELED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
    // The functions of the program that the unwinding calls are not the library's.
    thread_sanitizer::leave_all();
    // SAFETY: the caller's promise.
    unsafe { pthread_exit(PTHREAD_CANCELED) }
}

/// A system call with its number and arguments. Gives what the kernel returns: `-errno` for an error.
/// A cancellation of a thread that is [`Waiting`] is acted upon before, while the thread sleeps, or
/// right after; the system call may have had its effect then.
///
/// # Errors
/// The thread was cancelled.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn sleep(number: c_long, arguments: [usize; 6]) -> Result<isize, Cancelled> {
    let mut call = Call {
        number,
        arguments,
        result: 0,
    };
    if CANCELLABLE.get() {
        // SAFETY: the caller's promise.
        unsafe { catching::run(Some(&mut call)) }?;
    } else {
        // SAFETY: the caller's promise.
        unsafe { call.make() };
    }
    Ok(call.result)
}

/// A system call.
#[repr(C)]
struct Call {
    number: c_long,
    arguments: [usize; 6],
    /// What the kernel has returned.
    result: isize,
}

impl Call {
    /// Makes the system call in this thread.
    ///
    /// # Safety
    /// As for the system call.
    #[inline(always)]
    unsafe fn make(&mut self) {
        // SAFETY: the caller's promise.
        self.result = unsafe { system_call::make(self.number, self.arguments) };
    }
}
