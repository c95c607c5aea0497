//! Whether a process still executes the program that has registered the memory which its peers copy.
//!
//! `execve(2)` gives a process other memory under the same identifier, and closes the sockets by which peers notice
//! that afterwards. Meanwhile the kernel would copy to the memory of the new program what was meant for the old one. So
//! a thread of the library holds a robust mutex in memory that peers read. Before a process gets its new memory the
//! kernel ends all its threads but one, and marks what they hold (`get_robust_list(2)`). A peer that reads the mark copies
//! nothing more, and takes nothing that it has copied.
//!
//! The look at the mark and the call that copies are one step ([`crate::marked_call`]).

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::soft::engine::presence::Presence;

use super::cma::Mark;
use super::ready_bitmap_file;

/// Whether there is a robust mutex whose futex is known.
const SUPPORTED: bool = cfg!(all(
    any(target_env = "gnu", target_env = "musl"),
    not(miri),
    not(dat_sim)
));

/// Which word of a mutex is the futex: the first one, but in musl that is the type.
const FUTEX: u32 = cfg!(target_env = "musl") as u32;

/// What the kernel adds to the word of a mutex whose owner has ended (`FUTEX_OWNER_DIED`).
const OWNER_DIED: u32 = 0x4000_0000;

/// The memory of the mutex, in cache lines of its own, and which word of that is the futex: a peer may have another C
/// library.
#[repr(C, align(128))]
pub(super) struct PresenceMutex([AtomicU32; 31], AtomicU32);

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= size_of::<[AtomicU32; 31]>());

thread_local! {
    /// Whether this thread holds the mutex.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// What the threads of engines call.
pub(crate) const PRESENCE: Presence = Presence { show, end };

impl PresenceMutex {
    fn as_ptr(&self) -> *mut libc::pthread_mutex_t {
        self.0.as_ptr().cast_mut().cast()
    }

    #[inline(always)]
    fn futex(&self) -> &AtomicU32 {
        // One of two: who owns the memory may write anything there.
        &self.0[self.1.load(Ordering::Relaxed) as usize & 1]
    }

    /// The mark.
    ///
    /// # Safety
    /// The memory stays mapped as long as the mark is used.
    pub unsafe fn mark(&self) -> Mark {
        // SAFETY: the caller's promise.
        unsafe { Mark::new(self.futex(), OWNER_DIED) }
    }

    /// Whether a thread has ended that held the mutex: the program is gone.
    #[inline(always)]
    pub fn is_marked(&self) -> bool {
        self.futex().load(Ordering::Acquire) & OWNER_DIED != 0
    }

    /// Makes the mutex, in new memory of this process. Without one nobody holds it.
    pub fn init(&self) {
        if !SUPPORTED {
            return;
        }
        self.1.store(FUTEX, Ordering::Relaxed);
        let mut attributes = std::mem::MaybeUninit::uninit();
        // SAFETY: places for attributes and a mutex, which nobody uses yet.
        unsafe {
            if libc::pthread_mutexattr_init(attributes.as_mut_ptr()) != 0 {
                return;
            }
            let shared = libc::PTHREAD_PROCESS_SHARED;
            libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), shared);
            libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.as_ptr(), attributes.as_ptr());
            libc::pthread_mutexattr_destroy(attributes.as_mut_ptr());
        }
    }
}

/// See [`Presence::show`].
fn show() {
    if HOLDS.get() || !SUPPORTED {
        return;
    }
    let Ok(mutex) = ready_bitmap_file::own_presence() else {
        return;
    };
    // Mostly another thread holds the mutex.
    if mutex.futex().load(Ordering::Relaxed) != 0 {
        return;
    }
    // SAFETY: initialised, and there for ever.
    let held = unsafe { libc::pthread_mutex_trylock(mutex.as_ptr()) == 0 };
    HOLDS.set(held);
}

/// See [`Presence::end`].
fn end() {
    if HOLDS.replace(false)
        && let Ok(mutex) = ready_bitmap_file::own_presence()
    {
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(mutex.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutex() -> PresenceMutex {
        let mutex = PresenceMutex(Default::default(), AtomicU32::new(0));
        mutex.init();
        mutex
    }

    #[test]
    fn a_thread_that_ends_without_a_word_leaves_the_mark() {
        let mutex = mutex();
        assert!(!mutex.is_marked());
        // SAFETY: initialised.
        let lock = || unsafe { libc::pthread_mutex_trylock(mutex.as_ptr()) };
        std::thread::scope(|s| {
            let thread = s.spawn(|| {
                assert_eq!(lock(), 0);
                assert!(!mutex.is_marked());
                // SAFETY: held by this thread.
                unsafe { libc::pthread_mutex_unlock(mutex.as_ptr()) };
                assert!(!mutex.is_marked());
                assert_eq!(lock(), 0);
            });
            // The end of the scope waits for the closure alone.
            thread.join().unwrap();
        });
        assert!(mutex.is_marked());
    }
}
