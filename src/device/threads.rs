//! Threads of this library, and the signals of the program.
//!
//! They are made by `pthread_create(3)`: a thread of the standard library allocates its handle
//! without the reserve of memory ([`crate::reserve`]), and ends the process if it cannot.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::io;
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::cancel::Disabled;
use crate::signals::SignalsBlocked;
use crate::thread_sanitizer;

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

/// What a thread needs of its stack, in bytes. The default of the system depends on a limit that the user of a
/// set-uid program may choose.
const STACK: usize = 2 << 20;

/// How long the end of a thread is waited for, which takes microseconds where nothing is in its way.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

/// The shortest and the longest interval at which the end of a thread is checked.
const JOIN_CHECK_INTERVALS: (Duration, Duration) =
    (Duration::from_micros(20), Duration::from_millis(1));

/// A thread. It goes on by itself when this is dropped.
#[derive(Debug)]
pub(crate) struct Thread(libc::pthread_t);

// SAFETY: what names a thread, which is a pointer in some C libraries, is good in any thread.
unsafe impl Send for Thread {}
// SAFETY: as above.
unsafe impl Sync for Thread {}

impl Thread {
    /// Waits for its end, if a thread of the program calls this; for [`JOIN_LIMIT`] at most. Otherwise the thread ends
    /// by itself.
    ///
    /// What is dropped last may be dropped by any thread, which may hold a lock that this one waits for. Two threads of
    /// this library could wait for each other, or one for itself.
    pub fn join(self) {
        if !is_ours() {
            // To wait for a thread is a point of cancellation.
            let _disabled = Disabled::begin();
            let _ = self.join_within(JOIN_LIMIT);
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The thread, if it did not end in time.
    fn join_within(self, limit: Duration) -> Result<(), Thread> {
        let end = Instant::now() + limit;
        let thread = ManuallyDrop::new(self);
        // Not by pthread_timedjoin_np(3), whose end is a date: a change of that would make the wait any longer or shorter.
        // pthread_clockjoin_np(3) is of glibc 2.31, and musl has none.
        let (mut interval, longest) = JOIN_CHECK_INTERVALS;
        // SAFETY: neither joined nor detached before.
        while unsafe { libc::pthread_tryjoin_np(thread.0, null_mut()) } != 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ManuallyDrop::into_inner(thread));
            }
            std::thread::sleep(interval.min(left));
            interval = longest.min(interval * 2);
        }
        Ok(())
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: neither joined nor detached before.
        unsafe { libc::pthread_detach(self.0) };
    }
}

/// The attributes of a thread, while there is one to be made.
struct Attributes(libc::pthread_attr_t);

impl Attributes {
    fn new() -> io::Result<Attributes> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: a place for attributes.
        check(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: initialised.
        let mut attributes = Attributes(unsafe { attributes.assume_init() });
        let size = STACK.saturating_add(attributes.taken_by_the_c_library());
        // SAFETY: as above.
        check(unsafe { libc::pthread_attr_setstacksize(&mut attributes.0, size) })?;
        Ok(attributes)
    }

    /// How much of a stack is not for the thread, in bytes: the C library puts the thread-local variables of the
    /// program and its libraries there, which are megabytes in some programs (`threadprivate` of OpenMP).
    fn taken_by_the_c_library(&self) -> usize {
        // SAFETY: a name; a symbol that may be missing, and has this type where it is there.
        let min_stack = unsafe {
            mem::transmute::<
                *mut c_void,
                Option<unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize>,
            >(libc::dlsym(
                libc::RTLD_DEFAULT,
                c"__pthread_get_minstack".as_ptr(),
            ))
        };
        // SAFETY: attributes that are initialised.
        min_stack.map_or(0, |min_stack| unsafe { min_stack(&self.0) })
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised.
        unsafe { libc::pthread_attr_destroy(&mut self.0) };
    }
}

fn check(error: libc::c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// What a thread begins with.
struct Begin<F> {
    /// Its name, of at most 15 bytes.
    name: &'static CStr,
    /// What it runs.
    body: F,
}

thread_local! {
    /// Whether the thread was started here.
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// Whether the running thread is one that [`start`] has started.
pub(crate) fn is_ours() -> bool {
    IS_OURS.get()
}

extern "C" fn begin<F: FnOnce()>(begin: *mut c_void) -> *mut c_void {
    // SAFETY: from `start`, which has given up the box.
    let Begin { name, body } = *unsafe { Box::from_raw(begin.cast::<Begin<F>>()) };
    // SAFETY: a C string. A failure leaves the name of the thread that has made this one.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    IS_OURS.set(true);
    // A panic, which its hook has reported, ends the thread alone.
    let _ = thread_sanitizer::inside(|| catch_unwind(AssertUnwindSafe(body)));
    null_mut()
}

/// Starts a thread, which never takes a signal that is for the program: those are for the threads of
/// the program, one of which may be waiting for the signal.
///
/// # Errors
/// Of the kernel.
pub(crate) fn start<F: FnOnce() + Send + 'static>(
    name: &'static CStr,
    body: F,
) -> io::Result<Thread> {
    let attributes = Attributes::new()?;
    let argument = Box::into_raw(Box::new(Begin { name, body }));
    // The thread begins with the mask of the one that starts it.
    let _blocked = SignalsBlocked::all_but(&FAULTS);
    let mut thread = MaybeUninit::uninit();
    // SAFETY: a place for the identifier, attributes that are initialised, and a function that takes
    // the argument, which may go to another thread.
    let started = unsafe {
        libc::pthread_create(
            thread.as_mut_ptr(),
            &attributes.0,
            begin::<F>,
            argument.cast(),
        )
    };
    if let Err(error) = check(started) {
        // SAFETY: from `into_raw`; there is no thread that has the argument.
        drop(unsafe { Box::from_raw(argument) });
        return Err(error);
    }
    // SAFETY: the thread has been made.
    Ok(Thread(unsafe { thread.assume_init() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    #[test]
    fn a_thread_has_its_name_and_no_signals() {
        let (results, got) = channel();
        let thread = start(c"dat-name", move || {
            let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            let mut mask = MaybeUninit::uninit();
            // SAFETY: filled before it is used.
            let mask = unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
                mask.assume_init()
            };
            // SAFETY: a set of signals.
            let blocked = |signal| unsafe { libc::sigismember(&mask, signal) } == 1;
            let _ = results.send((name, blocked(libc::SIGINT), blocked(libc::SIGSEGV)));
        });
        let thread = thread.unwrap();
        assert_eq!(got.recv().unwrap(), ("dat-name\n".into(), true, false));
        assert!(!is_ours());
        thread.join();
    }

    /// Whoever waits for a thread that waits for the same thread goes on after a while.
    #[test]
    fn a_thread_that_does_not_end_is_not_waited_for() {
        let (go_on, until) = channel::<()>();
        let waiting = move || until.recv().unwrap_or(());
        let thread = start(c"dat-waits", waiting).unwrap();
        let thread = thread.join_within(Duration::from_millis(20)).unwrap_err();
        go_on.send(()).unwrap();
        assert!(thread.join_within(JOIN_LIMIT).is_ok());
    }

    /// A thread of the library does not wait for another one, whose lock it may have.
    #[test]
    fn threads_of_the_library_wait_for_none() {
        let (go_on, until) = channel::<()>();
        let (results, took) = channel();
        let other = start(c"dat-other", move || until.recv().unwrap_or(())).unwrap();
        let joins = move || {
            let begun = Instant::now();
            other.join();
            let _ = results.send(begun.elapsed());
        };
        start(c"dat-joins", joins).unwrap().join();
        assert!(took.recv().unwrap() < JOIN_LIMIT);
        drop(go_on);
    }

    #[test]
    fn a_panic_ends_the_thread_alone() {
        start(c"dat-panic", || panic!("expected by this test"))
            .unwrap()
            .join();
    }
}
