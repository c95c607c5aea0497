//! The types by which the lock-free parts share data between threads: std's atomics and plain
//! statics, or loom's if the crate is built with `--cfg loom` for the models in `tests/loom_*.rs`,
//! so that the models run the code that ships.

#[cfg(not(loom))]
mod platform {
    pub use crate::lock::{Mutex, MutexGuard};
    pub use std::sync::atomic;

    /// Memory that one thread at a time accesses, as a protocol of its users guarantees.
    #[repr(transparent)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// With an initial value.
        pub const fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer for reading.
        #[inline]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer for writing.
        #[inline]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// A plain static.
    macro_rules! shared_static {
        ($($(#[$attr:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
            $($(#[$attr])* static $name: $type = $value;)*
        };
    }
    pub(crate) use shared_static;

    /// A thread's own value.
    macro_rules! local_static {
        ($($(#[$attr:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
            std::thread_local! { $($(#[$attr])* static $name: $type = const { $value };)* }
        };
    }
    pub(crate) use local_static;

    /// Sleeps, or less long if a signal handler runs. Not a point at which a thread is cancelled,
    /// unlike the functions of the C library.
    pub fn sleep(time: std::time::Duration) {
        let time = rustix::thread::Timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let _ = rustix::thread::nanosleep(&time);
    }

    /// One round of waiting for another thread: it spins at first, then yields the processor, then
    /// sleeps.
    pub fn relax(round: u32) {
        match round {
            0..=64 => std::hint::spin_loop(),
            65..=1024 => std::thread::yield_now(),
            _ => sleep(std::time::Duration::from_micros(50)),
        }
    }
}

#[cfg(loom)]
mod platform {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::{MutexGuard, atomic};

    /// A thread's own value, initialised again in each execution of a model.
    macro_rules! local_static {
        ($($(#[$attr:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
            loom::thread_local! { $($(#[$attr])* static $name: $type = $value;)* }
        };
    }
    pub(crate) use local_static;

    /// A static, initialised again in each execution of a model.
    macro_rules! shared_static {
        ($($(#[$attr:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
            loom::lazy_static! { $($(#[$attr])* static ref $name: $type = $value;)* }
        };
    }
    pub(crate) use shared_static;

    /// loom's mutex with the interface of `lock::Mutex`.
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// Unlocked.
        pub fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("a panic in a thread ends the model")
        }
    }

    /// Sleeps.
    pub fn sleep(time: std::time::Duration) {
        std::thread::sleep(time);
    }

    /// Lets another thread of the model run.
    pub fn relax(_round: u32) {
        loom::thread::yield_now();
    }
}

pub(crate) use platform::*;
