//! The calling thread's `errno`, which calls of ours leave as it is.

use std::ffi::c_int;

/// Where `errno` lives.
type Place = place::Place;

/// What `errno` was.
pub(crate) struct Errno {
    place: Place,
    value: c_int,
}

impl Errno {
    #[inline(always)]
    pub fn save() -> Self {
        let place = Place::find();
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

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod place {
    use std::arch::asm;
    use std::ffi::c_int;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// How far from the thread pointer, which is the same in every thread: the C library is
    /// there from the start, and what it has for each thread lies beside the thread pointer. To
    /// ask it each time is a call. 0 before it was asked.
    static DISTANCE: AtomicUsize = AtomicUsize::new(0);

    #[derive(Clone, Copy)]
    pub struct Place(usize);

    impl Place {
        #[inline(always)]
        pub fn find() -> Place {
            match DISTANCE.load(Ordering::Relaxed) {
                0 => ask(),
                distance => Place(distance),
            }
        }

        #[inline(always)]
        pub fn load(self) -> c_int {
            let value;
            // SAFETY: the thread's own `errno`.
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
            // SAFETY: the thread's own `errno`.
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
    fn ask() -> Place {
        let thread: usize;
        // SAFETY: the first word behind the thread pointer is its own address.
        unsafe {
            asm!(
                "mov {thread}, qword ptr fs:[0]",
                thread = out(reg) thread,
                options(nostack, readonly, preserves_flags),
            );
        }
        // SAFETY: no preconditions.
        let place = unsafe { libc::__errno_location() };
        let distance = place.addr().wrapping_sub(thread);
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
        /// Found once for a call, as that costs the most.
        #[inline]
        pub fn find() -> Place {
            // SAFETY: no preconditions.
            Place(unsafe { libc::__errno_location() })
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
    fn it_is_the_threads_own() {
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
