//! The destructors of thread-local variables, where the C library keeps no list of them: in musl.
//!
//! Without such a list the standard library makes its own, from memory that it asks the C library for, and ends the
//! process if there is none. This list has memory from the [reserve](crate::reserve). The standard library takes it
//! for that of the C library, by the name of its function, which is hidden: no other library of the program sees it.

use std::arch::global_asm;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// The instruction that goes on with another function.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {add}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {add}"
    };
}

global_asm!(
    ".pushsection .text.libdat_thread_destructors,\"ax\",@progbits",
    ".p2align 4",
    ".globl __cxa_thread_atexit_impl",
    ".hidden __cxa_thread_atexit_impl",
    ".type __cxa_thread_atexit_impl,%function",
    "__cxa_thread_atexit_impl:",
    jump!(),
    ".size __cxa_thread_atexit_impl, . - __cxa_thread_atexit_impl",
    ".popsection",
    add = sym add,
);

/// A variable that is to be destroyed, and the one that was made before.
struct Entry {
    destroy: unsafe extern "C" fn(*mut c_void),
    variable: *mut c_void,
    next: *mut Entry,
}

thread_local! {
    /// The variables of this thread, the last one first.
    static ENTRIES: Cell<*mut Entry> = const { Cell::new(null_mut()) };
}

/// The key whose destructor the C library calls at the end of a thread; [`NONE`] before there is one.
static KEY: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = u32::MAX;

/// The key. `None` if the program has made as many as there can be.
fn key() -> Option<libc::pthread_key_t> {
    let known = KEY.load(Ordering::Relaxed);
    if known != NONE {
        return Some(known);
    }
    let mut new = 0;
    // SAFETY: a place for the key, and a function that is there as long as the process.
    if unsafe { libc::pthread_key_create(&mut new, Some(destroy_all)) } != 0 {
        return None;
    }
    let (set, unset) = (Ordering::Relaxed, Ordering::Relaxed);
    match KEY.compare_exchange(NONE, new, set, unset) {
        Ok(_) => Some(new),
        Err(other) => {
            // SAFETY: made above, and in no use.
            unsafe { libc::pthread_key_delete(new) };
            Some(other)
        }
    }
}

/// Has `destroy` called with `variable` at the end of this thread. The library is never unloaded, so that its handle
/// is of no use. Without a key nothing is destroyed.
extern "C" fn add(
    destroy: unsafe extern "C" fn(*mut c_void),
    variable: *mut c_void,
    _library: *mut c_void,
) -> c_int {
    if let Some(key) = key() {
        let next = ENTRIES.get();
        ENTRIES.set(Box::into_raw(Box::new(Entry {
            destroy,
            variable,
            next,
        })));
        // SAFETY: a key of ours; any value but NULL has the destructor called.
        unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(1)) };
    }
    0
}

unsafe extern "C" fn destroy_all(_: *mut c_void) {
    while !ENTRIES.get().is_null() {
        // SAFETY: from `add`, and taken out of the list.
        let entry = unsafe { Box::from_raw(ENTRIES.get()) };
        ENTRIES.set(entry.next);
        // SAFETY: as the standard library asked for, once, in the thread of the variable.
        unsafe { (entry.destroy)(entry.variable) };
    }
}

/// Has this file linked, in which nothing has a name that the crate mentions elsewhere.
#[used]
static LINKED: extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, *mut c_void) -> c_int =
    add;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    static DESTROYED: AtomicUsize = AtomicUsize::new(0);

    struct Counted(usize);

    impl Drop for Counted {
        fn drop(&mut self) {
            // The last one that was made comes first.
            let before = DESTROYED.fetch_add(1, Ordering::Relaxed);
            assert_eq!(before, self.0);
        }
    }

    thread_local! {
        static FIRST: Counted = const { Counted(1) };
        static SECOND: Counted = const { Counted(0) };
    }

    #[test]
    fn variables_are_destroyed_in_reverse_order() {
        std::thread::spawn(|| {
            let before = ENTRIES.get();
            FIRST.with(|_| {});
            assert_ne!(
                ENTRIES.get(),
                before,
                "the list is that of the standard library"
            );
            SECOND.with(|_| {});
        })
        .join()
        .unwrap();
        assert_eq!(DESTROYED.load(Ordering::Relaxed), 2);
    }
}
