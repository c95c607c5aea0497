//! A reference that many threads read without a lock while one replaces it.

use std::ptr::null_mut;
use std::sync::Arc;

use super::pin::{self, Guard};
use crate::sync::atomic::{AtomicPtr, Ordering};

/// Holds an `Arc` or nothing. Readers borrow it inside a section of [`pin`].
pub struct Shared<T: Send + Sync + 'static> {
    current: AtomicPtr<T>,
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Without a value.
    pub fn empty() -> Self {
        Shared {
            current: AtomicPtr::new(null_mut()),
        }
    }

    /// The current value; valid for the section, even if it is replaced meanwhile.
    #[inline]
    pub fn get<'g>(&self, _guard: &'g Guard) -> Option<&'g T> {
        // SAFETY: null or from `Arc::into_raw`; `set` and `drop` defer the drop of the value until
        // the section ends.
        unsafe { self.current.load(Ordering::Acquire).as_ref() }
    }

    /// The current value, as a reference of the caller's own.
    pub fn get_shared(&self) -> Option<Arc<T>> {
        let guard = pin::pin();
        self.get(&guard).map(|t| {
            // SAFETY: points into an `Arc` that is alive for the section.
            unsafe {
                Arc::increment_strong_count(t);
                Arc::from_raw(t)
            }
        })
    }

    /// Replaces the value; the old reference is dropped when no section can access it any more.
    pub fn set(&self, new: Option<Arc<T>>) {
        let new = new.map_or(null_mut(), |t| Arc::into_raw(t).cast_mut());
        let old = self.current.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: from `Arc::into_raw`, and just removed from the cell.
            let old = unsafe { Arc::from_raw(old) };
            pin::retire(move || drop(old));
        }
    }
}

impl<T: Send + Sync + 'static> Drop for Shared<T> {
    fn drop(&mut self) {
        // Deferred: a reference from `get` is valid for the section, not only for the cell's life.
        self.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_values_live_until_the_section_ends() {
        let cell = Shared::empty();
        assert!(cell.get_shared().is_none());
        let first = Arc::new(1);
        cell.set(Some(first.clone()));
        let guard = pin::pin();
        let seen = cell.get(&guard).unwrap();
        cell.set(Some(Arc::new(2)));
        assert_eq!(*seen, 1);
        assert_eq!(Arc::strong_count(&first), 2);
        drop(guard);
        assert_eq!(*cell.get_shared().unwrap(), 2);
    }

    #[test]
    fn a_borrowed_value_outlives_the_cell() {
        let cell = Shared::empty();
        let held = Arc::new(1);
        cell.set(Some(held.clone()));
        let guard = pin::pin();
        let seen = cell.get(&guard).unwrap();
        drop(cell);
        assert_eq!((*seen, Arc::strong_count(&held)), (1, 2));
        drop(guard);
    }
}
