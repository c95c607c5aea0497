//! Values that each process makes for itself.

use std::ops::Deref;
#[cfg(dat_sim)]
use std::ptr::NonNull;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
#[cfg(not(dat_sim))]
use std::sync::atomic::Ordering;

#[cfg(not(dat_sim))]
use super::GENERATION;

/// A value that each process makes for itself, when it first needs the value. Several threads may
/// make it at the same time; one of the values is used.
pub(crate) struct PerProcess<T: 'static> {
    /// The value, which is never freed; null before the first one.
    #[cfg_attr(
        dat_sim,
        expect(dead_code, reason = "each simulated process has its own")
    )]
    current: AtomicPtr<Made<T>>,
    make: fn() -> T,
}

/// A value, and [`GENERATION`] of the process that has made the value.
#[cfg_attr(
    dat_sim,
    expect(dead_code, reason = "each simulated process has its own")
)]
struct Made<T> {
    generation: u32,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// A value that `make` makes.
    pub const fn new(make: fn() -> T) -> PerProcess<T> {
        PerProcess {
            current: AtomicPtr::new(null_mut()),
            make,
        }
    }

    /// The value of this process, if it has one.
    #[cfg(not(dat_sim))]
    #[inline]
    pub fn made(&self) -> Option<&'static T> {
        // SAFETY: null, or a value that is never freed.
        let made = unsafe { self.current.load(Ordering::Acquire).as_ref() }?;
        (made.generation == GENERATION.load(Ordering::Relaxed)).then_some(&made.value)
    }

    /// The value of this process.
    #[inline]
    pub fn get(&self) -> &'static T {
        self.made().unwrap_or_else(|| self.make())
    }

    #[cfg(not(dat_sim))]
    #[cold]
    fn make(&self) -> &'static T {
        let before = self.current.load(Ordering::Acquire);
        let new = Box::into_raw(Box::new(Made {
            generation: GENERATION.load(Ordering::Relaxed),
            value: (self.make)(),
        }));
        let (to, from) = (Ordering::AcqRel, Ordering::Acquire);
        if let Some(value) = self.made() {
            // SAFETY: from `into_raw`, and nothing else has the pointer.
            drop(unsafe { Box::from_raw(new) });
            return value;
        }
        match self.current.compare_exchange(before, new, to, from) {
            // SAFETY: never freed from now on.
            Ok(_) => unsafe { &(*new).value },
            Err(made) => {
                // SAFETY: as above; and the value of another thread of this process, never freed.
                unsafe {
                    drop(Box::from_raw(new));
                    &(*made).value
                }
            }
        }
    }
}

#[cfg(dat_sim)]
impl<T: Send + Sync> PerProcess<T> {
    /// The value of the simulated process, if it has one.
    pub fn made(&self) -> Option<&'static T> {
        let value = simulated::value(std::ptr::from_ref(self).addr())?;
        // SAFETY: made below, by the same static, and there until the process has ended.
        Some(unsafe { value.cast().as_ref() })
    }

    fn make(&self) -> &'static T {
        let value = Box::leak(Box::new((self.make)()));
        // SAFETY: from the box, and dropped once.
        let drop = |value: NonNull<()>| unsafe { drop(Box::from_raw(value.cast::<T>().as_ptr())) };
        let at = std::ptr::from_ref(self).addr();
        simulated::add(at, NonNull::from(&*value).cast(), drop);
        value
    }
}

impl<T: Send + Sync> Deref for PerProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.get()
    }
}

/// What the processes of a simulation have, which are all in one thread.
#[cfg(dat_sim)]
pub mod simulated {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::ptr::NonNull;

    use crate::kernel;

    /// A value of a [`PerProcess`](super::PerProcess), and what drops the value.
    type Value = (NonNull<()>, fn(NonNull<()>));

    thread_local! {
        /// The values, by the identifier of the process and the address of the static.
        static VALUES: RefCell<BTreeMap<(u32, usize), Value>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// The value of a static in the process that runs.
    pub(super) fn value(at: usize) -> Option<NonNull<()>> {
        let key = (kernel::process_id(), at);
        VALUES.with(|values| Some(values.borrow().get(&key)?.0))
    }

    /// Adds the value of a static in the process that runs.
    pub(super) fn add(at: usize, value: NonNull<()>, drop: fn(NonNull<()>)) {
        let key = (kernel::process_id(), at);
        VALUES.with(|values| values.borrow_mut().insert(key, (value, drop)));
    }

    /// The process that runs has ended: drops its values.
    ///
    /// # Safety
    /// Nothing refers to them any more.
    pub unsafe fn end_process() {
        let process = kernel::process_id();
        loop {
            let first = |values: &mut BTreeMap<(u32, usize), Value>| {
                let (key, _) = values.range((process, 0)..=(process, usize::MAX)).next()?;
                let key = *key;
                values.remove(&key)
            };
            let Some((value, drop)) = VALUES.with(|values| first(&mut values.borrow_mut())) else {
                return;
            };
            drop(value);
        }
    }
}
