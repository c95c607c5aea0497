//! The calling thread's `errno`, which the functions of the libraries do not change.

use std::ffi::c_int;

/// The place of `errno`.
type Place = place::Place;

/// The saved value of `errno`.
pub(crate) struct Errno {
    place: Place,
    value: c_int,
}

impl Errno {
    #[inline(always)]
    pub fn save() -> Self {
        Errno::at(Place::find())
    }

    /// [`Errno::save`] in the functions of objects, which exist only after a call of that: a function that
    /// is called before has an invalid handle, and changes no `errno`. This saves a test.
    #[inline(always)]
    pub fn save_again() -> Self {
        Errno::at(Place::found())
    }

    #[inline(always)]
    fn at(place: Place) -> Self {
        Errno {
            value: place.load(),
            place,
        }
    }

    #[inline(always)]
    pub fn restore(self) {
        self.place.store(self.value);
    }
}

/// Calls `f`, whatever that does to `errno`. For what a call of the data path does rarely, if all else that it does
/// leaves `errno` as it is.
#[cold]
#[inline(always)]
pub(crate) fn kept<R>(f: impl FnOnce() -> R) -> R {
    let errno = Errno::save_again();
    let result = f();
    errno.restore();
    result
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod place {
    use std::arch::asm;
    use std::ffi::c_int;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::system_call::thread_pointer;

    /// The distance of `errno` from the thread pointer, in bytes; 0 before it is determined. The
    /// distance is the same in every thread, because the C library is loaded at the start of the
    /// program, and its thread-local data is in the static TLS block. A call of
    /// `__errno_location` each time would cost more.
    static DISTANCE: AtomicUsize = AtomicUsize::new(0);

    #[derive(Clone, Copy)]
    pub struct Place(usize);

    impl Place {
        #[inline(always)]
        pub fn find() -> Place {
            match DISTANCE.load(Ordering::Relaxed) {
                0 => determine(),
                distance => Place(distance),
            }
        }

        /// [`Place::find`] after it has been called once. Before that, it is the first word at the thread
        /// pointer, which nothing changes: to read it and to write the same is allowed.
        #[inline(always)]
        pub fn found() -> Place {
            Place(DISTANCE.load(Ordering::Relaxed))
        }

        #[inline(always)]
        pub fn load(self) -> c_int {
            let value;
            // SAFETY: the thread's own `errno`, or the word that is in the same place in every thread.
            unsafe {
                asm!(
                    "mov {value:e}, dword ptr fs:[{distance}]",
                    value = lateout(reg) value,
                    distance = in(reg) self.0,
                    options(nostack, readonly, preserves_flags),
                );
            }
            value
        }

        #[inline(always)]
        pub fn store(self, value: c_int) {
            // SAFETY: as above; the value is what was read there.
            unsafe {
                asm!(
                    "mov dword ptr fs:[{distance}], {value:e}",
                    value = in(reg) value,
                    distance = in(reg) self.0,
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn determine() -> Place {
        // SAFETY: no preconditions.
        let place = unsafe { libc::__errno_location() };
        let distance = place.addr().wrapping_sub(thread_pointer());
        DISTANCE.store(distance, Ordering::Relaxed);
        Place(distance)
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
mod place {
    use std::ffi::c_int;

    #[derive(Clone, Copy)]
    pub struct Place(*mut c_int);

    impl Place {
        /// Called once for each call of the API, as this costs more than the accesses.
        #[inline]
        pub fn find() -> Place {
            // SAFETY: no preconditions.
            Place(unsafe { libc::__errno_location() })
        }

        #[inline]
        pub fn found() -> Place {
            Place::find()
        }

        #[inline]
        pub fn load(self) -> c_int {
            // SAFETY: the thread's own `errno`, and the same thread.
            unsafe { *self.0 }
        }

        #[inline]
        pub fn store(self, value: c_int) {
            // SAFETY: as above.
            unsafe { *self.0 = value }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_its_own() {
        let check = |first: c_int| {
            // SAFETY: the thread's own `errno`.
            let errno = || unsafe { libc::__errno_location() };
            // SAFETY: as above.
            unsafe { *errno() = first };
            let saved = Errno::save();
            // SAFETY: as above.
            unsafe { *errno() = libc::EDOM };
            saved.restore();
            // SAFETY: as above.
            assert_eq!(unsafe { *errno() }, first);
        };
        check(libc::EXDEV);
        std::thread::scope(|s| {
            for value in 1..8 {
                s.spawn(move || (0..1000).for_each(|_| check(value)));
            }
        });
    }
}
