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

/// Where a thread may be interrupted by the barrier that the kernel runs for another thread
/// (`membarrier(2)`). Of interest to the models only.
#[cfg(not(loom))]
pub(crate) mod barrier {
    /// Stores and loads begin whose order the barrier of another thread ensures.
    #[inline(always)]
    pub fn begin() {}

    /// The barrier may run here.
    #[inline(always)]
    pub fn point() {}

    /// They end.
    #[inline(always)]
    pub fn end() {}
}

/// A model of `membarrier(2)`: every thread executes a fence wherever it is. A thread that is between
/// [`begin`](barrier::begin) and [`end`](barrier::end) executes the fence at its next
/// [`point`](barrier::point), which the caller waits for; the end of the others is ordered before
/// the barrier, and the barrier before their next beginning.
#[cfg(loom)]
pub mod barrier {
    use std::cell::Cell;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use loom::sync::atomic::{AtomicU32, Ordering, fence};

    /// Set in a process whose models have the barrier. In others readers execute fences.
    pub static MODELLED: AtomicBool = AtomicBool::new(false);

    /// The barriers and the threads.
    #[derive(Default)]
    struct State {
        /// Number of barriers so far.
        barriers: u64,
        threads: Vec<Thread>,
        /// Threads that wait for others to execute a fence.
        waiting: Vec<loom::thread::Thread>,
    }

    #[derive(Default)]
    struct Thread {
        /// How many times `begin` was called without an `end`.
        depth: u32,
        /// Number of the last barrier for which the thread has executed a fence.
        seen: u64,
    }

    loom::lazy_static! {
        /// loom does not see these accesses, so that they order nothing.
        static ref STATE: Mutex<State> = Mutex::default();
        /// loom tries the orders of these accesses. Nobody needs the value.
        static ref ORDER: AtomicU32 = AtomicU32::new(0);
    }

    loom::thread_local! {
        /// The index in `threads`.
        static INDEX: Cell<Option<usize>> = Cell::new(None);
    }

    fn with<R>(f: impl FnOnce(&mut State, usize) -> R) -> R {
        let mut state = STATE.lock().expect("a panic in a thread ends the model");
        let index = INDEX.with(|index| {
            index.get().unwrap_or_else(|| {
                let new = state.threads.len();
                index.set(Some(new));
                state.threads.push(Thread::default());
                new
            })
        });
        f(&mut state, index)
    }

    /// Executes a fence if there was a barrier since the last one. The thread cannot be interrupted
    /// between that and what follows.
    fn fence_if_due(order: Ordering) {
        ORDER.fetch_add(1, order);
        let due = with(|state, me| {
            std::mem::replace(&mut state.threads[me].seen, state.barriers) != state.barriers
        });
        if due {
            fence(Ordering::SeqCst);
            let waiting = with(|state, _| std::mem::take(&mut state.waiting));
            waiting.iter().for_each(loom::thread::Thread::unpark);
        }
    }

    /// Stores and loads begin whose order the barrier of another thread ensures.
    pub fn begin() {
        if MODELLED.load(Relaxed) {
            fence_if_due(Ordering::Relaxed);
            with(|state, me| state.threads[me].depth += 1);
        }
    }

    /// The barrier may run here.
    pub fn point() {
        if MODELLED.load(Relaxed) {
            fence_if_due(Ordering::Relaxed);
        }
    }

    /// They end.
    pub fn end() {
        if MODELLED.load(Relaxed) {
            fence_if_due(Ordering::Release);
            with(|state, me| state.threads[me].depth -= 1);
        }
    }

    /// The barrier of all threads.
    pub fn run() {
        ORDER.fetch_add(1, Ordering::AcqRel);
        let number = with(|state, me| {
            state.barriers += 1;
            // Whoever waits in the system call has executed a fence.
            state.threads[me].seen = u64::MAX;
            state.barriers
        });
        let is_missing = |thread: &Thread| thread.depth != 0 && thread.seen < number;
        while with(|state, _| {
            let missing = state.threads.iter().any(is_missing);
            if missing {
                state.waiting.push(loom::thread::current());
            }
            missing
        }) {
            loom::thread::park();
        }
        with(|state, me| state.threads[me].seen = state.barriers);
        fence(Ordering::SeqCst);
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
