//! The dynamic registry: the providers that are registered now, by their own init functions or by
//! the program, with the number of IAs open on each.

use std::collections::BTreeMap;
use std::ffi::CStr;

use crate::lock::Mutex;

use super::key::Key;
use super::table::Table;
use crate::error::{Error, Kind, Result, Subtype};
use crate::log_sink::DYNAMIC_REGISTRY;

/// The only error of a look-up: the name is not registered.
pub(super) const NOT_REGISTERED: Error =
    Error::new(Kind::ProviderNotFound, Subtype::NameNotRegistered);

/// A registration.
struct Registration {
    table: Table,
    /// How many IAs are open on it.
    open: usize,
}

/// The registry, with a lock of its own, since provider init functions register here while the lock
/// of the static registry is held.
#[derive(Default)]
pub struct Dynamic {
    registrations: Mutex<BTreeMap<Key, Registration>>,
}

impl Dynamic {
    /// Takes the lock, unless another thread holds it.
    pub fn try_lock(&self) -> Option<impl Sized> {
        self.registrations.try_lock()
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The result of [`Dynamic::try_lock`] was forgotten.
    pub unsafe fn force_unlock(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.registrations.force_unlock() };
    }

    /// Whether a table is registered under an IA name.
    pub fn has_name(&self, name: &CStr) -> bool {
        let registrations = self.registrations.lock();
        registrations.keys().any(|key| *key.name == *name)
    }

    /// Registers a table.
    ///
    /// # Errors
    ///
    /// `DAT_PROVIDER_ALREADY_REGISTERED` if the key is there.
    pub fn add(&self, key: Key, table: Table) -> Result<()> {
        log::debug!(target: DYNAMIC_REGISTRY, "add {key}");
        let mut registrations = self.registrations.lock();
        if registrations.contains_key(&key) {
            return Err(Kind::ProviderAlreadyRegistered.into());
        }
        registrations.insert(key, Registration { table, open: 0 });
        Ok(())
    }

    /// Removes a registration.
    ///
    /// # Errors
    ///
    /// `DAT_PROVIDER_IN_USE` while IAs are open on it; `DAT_PROVIDER_NOT_FOUND` if the key is
    /// not there.
    pub fn remove(&self, key: &Key) -> Result<()> {
        log::debug!(target: DYNAMIC_REGISTRY, "remove {key}");
        let mut registrations = self.registrations.lock();
        match registrations.get(key) {
            None => Err(NOT_REGISTERED),
            Some(registration) if registration.open > 0 => Err(Kind::ProviderInUse.into()),
            Some(_) => {
                registrations.remove(key);
                Ok(())
            }
        }
    }

    /// The table that is registered under a key.
    pub fn get(&self, key: &Key) -> Option<Table> {
        Some(self.registrations.lock().get(key)?.table)
    }

    /// Counts one more open IA; the table to open it with.
    ///
    /// # Errors
    ///
    /// `DAT_PROVIDER_NOT_FOUND`.
    pub fn acquire(&self, key: &Key) -> Result<Table> {
        let mut registrations = self.registrations.lock();
        let registration = registrations.get_mut(key).ok_or(NOT_REGISTERED)?;
        registration.open += 1;
        log::debug!(target: DYNAMIC_REGISTRY, "open {key}, now {}", registration.open);
        Ok(registration.table)
    }

    /// Ends a use that [`acquire`](Dynamic::acquire) has counted.
    pub fn release(&self, key: &Key) {
        if let Some(registration) = self.registrations.lock().get_mut(key) {
            registration.open = registration.open.saturating_sub(1);
            log::debug!(target: DYNAMIC_REGISTRY, "close {key}, now {}", registration.open);
        }
    }

    /// Removes a registration that its provider has not removed, if it still is for that table.
    pub fn remove_stale(&self, key: &Key, table: Table) {
        let mut registrations = self.registrations.lock();
        if registrations.get(key).is_some_and(|r| r.table == table) {
            registrations.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(minor: u32, thread_safe: bool) -> Key {
        Key {
            name: c"a".to_owned(),
            major: 2,
            minor,
            thread_safe,
        }
    }

    fn table(address: usize) -> Table {
        Table::new(std::ptr::without_provenance(address)).unwrap()
    }

    #[test]
    fn the_same_key_only_once() {
        let dynamic = Dynamic::default();
        assert_eq!(dynamic.add(key(0, false), table(8)), Ok(()));
        let again = dynamic.add(key(0, false), table(16));
        assert_eq!(again, Err(Kind::ProviderAlreadyRegistered.into()));
        assert_eq!(dynamic.get(&key(0, false)), Some(table(8)));
        assert_eq!(dynamic.add(key(1, false), table(16)), Ok(()));
        assert_eq!(dynamic.add(key(0, true), table(24)), Ok(()));
        assert_eq!(dynamic.get(&key(0, true)), Some(table(24)));
    }

    #[test]
    fn remove_unknown_used_and_unused() {
        let dynamic = Dynamic::default();
        let key = key(0, false);
        assert_eq!(dynamic.remove(&key), Err(NOT_REGISTERED));
        dynamic.add(key.clone(), table(8)).unwrap();
        assert_eq!(dynamic.acquire(&key), Ok(table(8)));
        assert_eq!(dynamic.acquire(&key), Ok(table(8)));
        dynamic.release(&key);
        assert_eq!(dynamic.remove(&key), Err(Kind::ProviderInUse.into()));
        dynamic.release(&key);
        assert_eq!(dynamic.remove(&key), Ok(()));
        assert_eq!(dynamic.acquire(&key), Err(NOT_REGISTERED));
    }

    #[test]
    fn remove_stale_spares_the_table_of_another() {
        let dynamic = Dynamic::default();
        dynamic.add(key(0, false), table(8)).unwrap();
        dynamic.remove_stale(&key(0, false), table(16));
        assert!(dynamic.get(&key(0, false)).is_some());
        dynamic.remove_stale(&key(0, false), table(8));
        assert!(dynamic.get(&key(0, false)).is_none());
    }
}
