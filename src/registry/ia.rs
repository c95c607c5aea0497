//! Open interface adapters, and the translation of their handles.
//!
//! The IA handle of a built-in provider is a handle of the arena, whose validity can be checked;
//! programs get it unchanged. That of a loaded provider is a bare pointer; programs get a small
//! index instead, the lowest free one from 1 on, as from OpenFabrics' libraries. The entry points
//! translate the index back ([`Opens::pointer`]).

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lock::Mutex;

use super::key::Key;
use super::table::Table;
use crate::handle;

/// The uses of an open IA in the two registries.
#[derive(Clone, Debug)]
pub struct Reference {
    /// The key it was opened with.
    pub key: Key,
    /// The provider's table.
    pub table: Table,
    /// Whether an entry of the static registry is in use, or only a registration that the program
    /// made itself.
    pub in_static: bool,
    /// Whether the IA is open, and not only being opened.
    pub opened: bool,
}

/// An open IA.
struct Open {
    /// The provider's own handle.
    pointer: usize,
    reference: Reference,
    /// A close is in progress.
    closing: bool,
}

/// The open IAs of all providers.
#[derive(Default)]
pub struct Opens {
    tables: Mutex<Tables>,
    /// How many IAs of loaded providers are open.
    foreign: AtomicUsize,
}

#[derive(Default)]
struct Tables {
    /// IAs of loaded providers, by index.
    indexed: BTreeMap<usize, Open>,
    /// IAs of built-in providers, by handle.
    ours: BTreeMap<usize, Open>,
}

impl Tables {
    fn get(&mut self, handle: usize) -> Option<&mut Open> {
        let indexed = self.indexed.get_mut(&handle);
        indexed.or_else(|| self.ours.get_mut(&handle))
    }
}

impl Opens {
    /// Takes the lock, unless another thread holds it.
    pub fn try_lock(&self) -> Option<impl Sized> {
        self.tables.try_lock()
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The result of [`Opens::try_lock`] was forgotten.
    pub unsafe fn force_unlock(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.tables.force_unlock() };
    }

    /// Forgets the IAs of built-in providers.
    pub fn forget_ours(&self) {
        self.tables.lock().ours.clear();
    }

    /// Enters an IA that a provider has opened; gives the handle for the program.
    pub fn insert(&self, ia: *mut c_void, reference: Reference) -> *mut c_void {
        let pointer = ia.expose_provenance();
        let open = Open {
            pointer,
            reference,
            closing: false,
        };
        let mut tables = self.tables.lock();
        if handle::is_ours(ia) {
            tables.ours.insert(pointer, open);
            return ia;
        }
        self.foreign.fetch_add(1, Ordering::Relaxed);
        let mut used = tables.indexed.keys().copied();
        let free = (1..).find(|index| used.next() != Some(*index));
        let index = free.unwrap_or(usize::MAX);
        tables.indexed.insert(index, open);
        ptr::without_provenance_mut(index)
    }

    /// Begins to close an IA; gives the provider's handle and the uses. While a close is in progress
    /// a second one does not find the handle, so that a provider gets one close at a time.
    pub fn begin_close(&self, handle: *mut c_void) -> Option<(*mut c_void, Reference)> {
        let mut tables = self.tables.lock();
        let open = tables.get(handle.addr()).filter(|open| !open.closing)?;
        open.closing = true;
        let pointer = ptr::with_exposed_provenance_mut(open.pointer);
        Some((pointer, open.reference.clone()))
    }

    /// Ends a close: the IA is `closed`, or remains open as the provider has refused.
    pub fn end_close(&self, handle: *mut c_void, closed: bool) {
        let mut tables = self.tables.lock();
        if !closed {
            if let Some(open) = tables.get(handle.addr()) {
                open.closing = false;
            }
            return;
        }
        if tables.ours.remove(&handle.addr()).is_none()
            && tables.indexed.remove(&handle.addr()).is_some()
        {
            self.foreign.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The provider's own handle for the index of an IA.
    pub fn pointer(&self, handle: *mut c_void) -> Option<*mut c_void> {
        let tables = self.tables.lock();
        let open = tables.indexed.get(&handle.addr())?;
        Some(ptr::with_exposed_provenance_mut(open.pointer))
    }

    /// `dats_get_ia_handle`: the provider's handle for an index, the index for a provider's handle,
    /// and the handle itself for an IA of a built-in provider.
    pub fn translate(&self, handle: *mut c_void) -> Option<*mut c_void> {
        if let Some(pointer) = self.pointer(handle) {
            return Some(pointer);
        }
        let tables = self.tables.lock();
        if tables.ours.contains_key(&handle.addr()) {
            return Some(handle);
        }
        let mut indexed = tables.indexed.iter();
        let (index, _) = indexed.find(|(_, open)| open.pointer == handle.addr())?;
        Some(ptr::without_provenance_mut(*index))
    }

    /// Whether an IA of a loaded provider is open: only then can a handle be a bare pointer.
    pub fn foreign(&self) -> bool {
        self.foreign.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference() -> Reference {
        Reference {
            key: Key {
                name: c"a".to_owned(),
                major: 2,
                minor: 0,
                thread_safe: false,
            },
            table: Table::new(ptr::without_provenance(8)).unwrap(),
            opened: false,
            in_static: true,
        }
    }

    fn at(address: usize) -> *mut c_void {
        ptr::without_provenance_mut(address)
    }

    #[test]
    fn the_lowest_free_index_is_used() {
        let opens = Opens::default();
        assert!(!opens.foreign());
        for index in 1..=100 {
            assert_eq!(opens.insert(at(0x1000 * index), reference()), at(index));
        }
        assert!(opens.foreign());
        for index in [7, 3] {
            assert!(opens.begin_close(at(index)).is_some());
            opens.end_close(at(index), true);
        }
        assert_eq!(opens.insert(at(0x10), reference()), at(3));
        assert_eq!(opens.insert(at(0x20), reference()), at(7));
        assert_eq!(opens.insert(at(0x30), reference()), at(101));
    }

    #[test]
    fn translation_both_ways() {
        let opens = Opens::default();
        opens.insert(at(0x1000), reference());
        opens.insert(at(0x2000), reference());
        assert_eq!(opens.pointer(at(2)), Some(at(0x2000)));
        assert_eq!(opens.translate(at(2)), Some(at(0x2000)));
        assert_eq!(opens.translate(at(0x1000)), Some(at(1)));
        for unknown in [0, 3, 0x3000, usize::MAX] {
            assert_eq!(opens.pointer(at(unknown)), None);
            assert_eq!(opens.translate(at(unknown)), None);
            assert!(opens.begin_close(at(unknown)).is_none());
        }
        assert_eq!(opens.pointer(at(0x1000)), None);
    }

    #[test]
    fn one_close_at_a_time() {
        let opens = Opens::default();
        let handle = opens.insert(at(0x1000), reference());
        assert_eq!(opens.begin_close(handle).unwrap().0, at(0x1000));
        assert!(opens.begin_close(handle).is_none());
        opens.end_close(handle, false);
        assert!(opens.begin_close(handle).is_some());
        opens.end_close(handle, true);
        assert!(opens.begin_close(handle).is_none());
        assert!(!opens.foreign());
    }
}
