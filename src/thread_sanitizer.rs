//! ThreadSanitizer: what the library tells the checker in a program that was compiled with `-fsanitize=thread`.
//!
//! The library itself is not compiled so. Of its code the checker sees the functions of the C library that it
//! intercepts, and neither the atomic operations nor the system calls that order them. So it is told two things:
//!
//! * what happens inside of the library is none of its business ([`enter`], [`leave`]): neither what the functions of
//!   the C library read and write there, nor what they order, as those of sockets do for all threads that use any. It
//!   is the business of the program what that does in a function that the library calls ([`outside`]);
//! * what the API orders: a call gives something away ([`release`]), and another call, of any thread, takes
//!   it up ([`acquire`]). Which calls these are is the matter of `dapl::ordered_calls`.
//!
//! The functions of the checker are in the program or in a library that is loaded with it. Where they are not, none
//! of this is ever called: the function tables are others then.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// The functions of the checker.
#[derive(Clone, Copy)]
pub struct Checker {
    acquire: Order,
    release: Order,
    ignore_reads: Annotation,
    ignore_writes: Annotation,
    ignore_sync: Annotation,
    see_reads: Annotation,
    see_writes: Annotation,
    see_sync: Annotation,
}

/// Of the address of what is ordered.
type Order = unsafe extern "C" fn(*mut c_void);

/// Of a place in the source.
type Annotation = unsafe extern "C" fn(*const c_char, c_int);

/// Where the functions are. They are found once for all; a child of a fork has the same.
static FOUND: [AtomicPtr<c_void>; NAMES.len()] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; NAMES.len()];
const NAMES: [&CStr; 8] = [
    c"__tsan_acquire",
    c"__tsan_release",
    // The functions __tsan_ignore_thread_begin and _end are hidden in the library of clang 14.
    c"AnnotateIgnoreReadsBegin",
    c"AnnotateIgnoreWritesBegin",
    c"AnnotateIgnoreSyncBegin",
    c"AnnotateIgnoreReadsEnd",
    c"AnnotateIgnoreWritesEnd",
    c"AnnotateIgnoreSyncEnd",
];

/// Whether they are there.
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const ABSENT: u8 = 1;
const PRESENT: u8 = 2;

impl Checker {
    /// The checker of this process, if there is one.
    #[inline]
    pub fn get() -> Option<Checker> {
        match STATE.load(Ordering::Acquire) {
            ABSENT => None,
            PRESENT => Some(Self::found()),
            _ => Self::find(),
        }
    }

    /// Looks for the functions. Two threads that do so find the same.
    #[cold]
    fn find() -> Option<Checker> {
        // Where the library itself is compiled for the checker, there is nothing to tell, and all to be checked.
        let present = !cfg!(dat_tsan)
            && NAMES.iter().zip(&FOUND).all(|(name, found)| {
                // SAFETY: a C string. The default scope is what the program was loaded with: nothing is loaded by this, and
                // it is the same in a set-uid program.
                let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
                found.store(function, Ordering::Relaxed);
                !function.is_null()
            });
        STATE.store(if present { PRESENT } else { ABSENT }, Ordering::Release);
        present.then(Self::found)
    }

    fn found() -> Checker {
        let [
            acquire,
            release,
            reads,
            writes,
            sync,
            reads_end,
            writes_end,
            sync_end,
        ] = FOUND
            .each_ref()
            .map(|function| function.load(Ordering::Relaxed));
        // SAFETY: functions of these types by their names, and not null.
        unsafe {
            Checker {
                acquire: mem::transmute::<*mut c_void, Order>(acquire),
                release: mem::transmute::<*mut c_void, Order>(release),
                ignore_reads: mem::transmute::<*mut c_void, Annotation>(reads),
                ignore_writes: mem::transmute::<*mut c_void, Annotation>(writes),
                ignore_sync: mem::transmute::<*mut c_void, Annotation>(sync),
                see_reads: mem::transmute::<*mut c_void, Annotation>(reads_end),
                see_writes: mem::transmute::<*mut c_void, Annotation>(writes_end),
                see_sync: mem::transmute::<*mut c_void, Annotation>(sync_end),
            }
        }
    }

    /// Has the checker overlook what this thread reads and writes.
    fn ignore_memory(self) {
        // SAFETY: a C string, and no other preconditions.
        unsafe {
            (self.ignore_reads)(PLACE.as_ptr(), 0);
            (self.ignore_writes)(PLACE.as_ptr(), 0);
        }
    }

    /// Ends what [`Checker::ignore_memory`] has begun.
    fn see_memory(self) {
        // SAFETY: as above; once for each beginning.
        unsafe {
            (self.see_writes)(PLACE.as_ptr(), 0);
            (self.see_reads)(PLACE.as_ptr(), 0);
        }
    }

    /// Has the checker overlook what this thread orders, too.
    fn ignore(self) {
        self.ignore_memory();
        // SAFETY: as above.
        unsafe { (self.ignore_sync)(PLACE.as_ptr(), 0) };
    }

    /// Ends what [`Checker::ignore`] has begun.
    fn see(self) {
        // SAFETY: as above; once for each beginning.
        unsafe { (self.see_sync)(PLACE.as_ptr(), 0) };
        self.see_memory();
    }
}

/// Where that is, for the checker, which does not show it.
const PLACE: &CStr = c"libdat";

/// What is given away and taken up. The checker knows it by an address, which it does not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(*mut c_void);

/// How many keys there are beside that of the process. Two things that get the same hide a race now and then.
const KEYS: usize = 1 << 16;

/// Their addresses. This memory is never touched, so that it is none.
static ADDRESSES: [AtomicU8; KEYS] = [const { AtomicU8::new(0) }; KEYS];

impl Key {
    /// What any call of any library of DAT in the process may have to do with: an address that all of them know.
    pub fn process() -> Key {
        Key(FOUND[0].load(Ordering::Relaxed))
    }

    /// Something of an object.
    pub fn of(handle: *mut c_void, value: u64) -> Key {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let handle = (handle.addr() as u64).wrapping_mul(ODD);
        let mixed = (handle.rotate_left(32) ^ value).wrapping_mul(ODD);
        // The highest bits depend on all others.
        let key = (mixed >> (u64::BITS - KEYS.trailing_zeros())) as usize;
        Key((&raw const ADDRESSES[key]).cast_mut().cast())
    }
}

/// What this thread has done up to now is done for whoever takes up the key later.
pub fn release(key: Key) {
    order(key, |checker| checker.release);
}

/// What other threads have done until they gave away the key is done for this one.
pub fn acquire(key: Key) {
    order(key, |checker| checker.acquire);
}

fn order(key: Key, how: fn(&Checker) -> Order) {
    let Some(checker) = Checker::get() else {
        return;
    };
    let inside = DEPTH.get() > 0;
    // SAFETY: C strings, once for each other; an address in the memory of the process.
    unsafe {
        if inside {
            (checker.see_sync)(PLACE.as_ptr(), 0);
        }
        how(&checker)(key.0);
        if inside {
            (checker.ignore_sync)(PLACE.as_ptr(), 0);
        }
    }
}

/// What an EVD has that a notification does not tell apart: its software events, and who waits for it.
pub fn of_evd(evd: *mut c_void) -> Key {
    // A pointer that is all ones is hardly that of a software event, and would do no harm.
    Key::of(evd, u64::MAX)
}

/// Takes up what has triggered a CNO: the EVD is given, or NULL.
pub fn notified(evd: *mut c_void) {
    acquire(of_evd(evd));
    acquire(Key::process());
}

/// Has a function of the program called that was given for notifications of a CNO.
pub fn call_agent(evd: *mut c_void, agent: impl FnOnce()) {
    outside(|| {
        notified(evd);
        agent();
        // For who frees what the agent uses: the calls that end its use wait for it.
        release(Key::process());
    });
}

thread_local! {
    /// How many calls of the library this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// From now on this thread is in the library.
pub fn enter() {
    let Some(checker) = Checker::get() else {
        return;
    };
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    if depth == 0 {
        checker.ignore();
    }
}

/// The end of what [`enter`] has begun.
pub fn leave() {
    let Some(checker) = Checker::get() else {
        return;
    };
    let depth = DEPTH.get();
    DEPTH.set(depth.saturating_sub(1));
    if depth == 1 {
        checker.see();
    }
}

/// Runs something in the library.
pub fn inside<T>(f: impl FnOnce() -> T) -> T {
    struct Entered;
    impl Drop for Entered {
        fn drop(&mut self) {
            leave();
        }
    }
    enter();
    let _entered = Entered;
    f()
}

/// Runs something in the library that calls other libraries of DAT, which tell the checker themselves what they order:
/// it overlooks memory alone.
pub fn overlooked<T>(f: impl FnOnce() -> T) -> T {
    struct Overlooked(Option<Checker>);
    impl Drop for Overlooked {
        fn drop(&mut self) {
            if let Some(checker) = self.0 {
                checker.see_memory();
            }
        }
    }
    let checker = Checker::get();
    if let Some(checker) = checker {
        checker.ignore_memory();
    }
    let _overlooked = Overlooked(checker);
    f()
}

/// Runs a function of the program that the library calls.
pub fn outside<T>(f: impl FnOnce() -> T) -> T {
    let depth = leave_all();
    let result = f();
    if let Some(checker) = Checker::get().filter(|_| depth > 0) {
        DEPTH.set(depth);
        checker.ignore();
    }
    result
}

/// Leaves all calls of the library, as the unwinding of a thread that is cancelled does. Gives how many.
pub fn leave_all() -> u32 {
    let Some(checker) = Checker::get() else {
        return 0;
    };
    let depth = DEPTH.replace(0);
    if depth > 0 {
        checker.see();
    }
    depth
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of different objects and values are different, but for few.
    #[test]
    fn keys_are_told_apart() {
        let mut seen = std::collections::BTreeSet::new();
        for object in 1..=16usize {
            for value in 0..64u64 {
                let handle = std::ptr::without_provenance_mut(0x7f00_0000 + 64 * object);
                assert_eq!(Key::of(handle, value), Key::of(handle, value));
                seen.insert(Key::of(handle, value).0.addr());
            }
        }
        assert!(
            seen.len() > 1024 - 32,
            "{} keys for 1024 things",
            seen.len()
        );
    }

    /// This program has no checker: nothing of this has an effect.
    #[test]
    fn without_a_checker_nothing_is_told() {
        assert!(Checker::get().is_none());
        enter();
        assert_eq!(DEPTH.get(), 0);
        leave();
        release(Key::of(std::ptr::null_mut(), 1));
        acquire(Key::of(std::ptr::null_mut(), 1));
        assert_eq!(outside(|| inside(|| 3)), 3);
        assert_eq!(leave_all(), 0);
    }
}
