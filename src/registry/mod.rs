//! The registry: from the name of an interface adapter to the provider that serves it.
//!
//! * The *static* registry holds the entries of `dat.conf` ([`config`], [`parse`]) and loads
//!   providers for them ([`statics`], [`load`]).
//! * The *dynamic* registry holds the tables that providers have registered ([`dynamic`]).
//! * [`ia`] has the open IAs.
//!
//! Built-in providers are used like loaded ones: their init function registers a provider table,
//! and the registry calls them only through that table.
//!
//! The registry is set up at the first call that needs it; `DAT_OVERRIDE` and the configuration
//! are read then, and not again. (OpenFabrics' libraries read them when they are loaded. Here a
//! program may still set the variable before its first call.)
//!
//! # Locks
//!
//! There is one for each of the three. None is held while a provider opens, queries or closes an
//! IA. The lock of the static registry is held while a provider is loaded, initialised and
//! finished: in these functions the provider may add and remove registrations, while calls that
//! need the static registry return `DAT_INVALID_STATE`.

mod builtin;
pub mod config;
pub mod dynamic;
#[cfg(test)]
mod fake;
pub mod ia;
pub mod inspect;
pub mod key;
pub mod load;
mod override_file;
pub mod parse;
mod process;
mod related;
mod replaced;
pub mod statics;
mod table;

pub use builtin::{Adapters, Builtin, BuiltinEntry, BuiltinIa, Setup};
pub use process::*;

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::Mutex;

use crate::abi::common::{
    DAT_CLOSE_FLAGS, DAT_COUNT, DAT_EVD_HANDLE, DAT_IA_HANDLE, DAT_INVALID_HANDLE,
    DAT_INVALID_PARAMETER, DAT_PROVIDER_INFO, DAT_RETURN, DAT_SUCCESS, DAT_TYPE_MASK,
};
use crate::abi::v2::DAPL_EXTENSIONS_FUNC;
use crate::error::{Error, Kind, Result, Subtype, Version};
use crate::log_sink::{CONSUMER_API, PROVIDER_API};
use crate::reserve;
use config::Entry;
use dynamic::Dynamic;
use ia::{Opens, Reference};
use key::Key;
use statics::Static;
use table::Table;

/// Prefix of an IA name by which illumos programs declare that they support relaxed ordering of DMA
/// writes.
const RO_AWARE: &[u8] = b"RO_AWARE_";

/// A registry.
pub struct Registry {
    version: Version,
    statics: Static,
    dynamic: Dynamic,
    opens: Opens,
    /// Whether an IA with an extension was ever open; never cleared.
    extensions: AtomicBool,
    /// The uses that [`extension_open`](Registry::extension_open) has counted.
    extension_references: Mutex<Vec<Reference>>,
}

impl Registry {
    /// A registry of these entries.
    ///
    /// # Errors
    ///
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn new(setup: Setup, entries: Vec<Entry>) -> Result<Registry> {
        Ok(Registry {
            version: setup.version,
            statics: Static::new(setup, entries)?,
            dynamic: Dynamic::default(),
            opens: Opens::default(),
            extensions: AtomicBool::new(false),
            extension_references: Mutex::default(),
        })
    }

    /// Takes all locks, which nothing changes then; or none, if another thread holds one.
    fn try_lock_all(&self) -> bool {
        let guards = (
            self.statics.try_lock(),
            self.dynamic.try_lock(),
            self.opens.try_lock(),
            self.extension_references.try_lock(),
        );
        let (Some(statics), Some(dynamic), Some(opens), Some(references)) = guards else {
            return false;
        };
        std::mem::forget((statics, dynamic, opens, references));
        true
    }

    /// Releases all locks.
    ///
    /// # Safety
    /// This thread, or its parent, has taken them by [`Registry::try_lock_all`].
    unsafe fn unlock_all(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.statics.force_unlock();
            self.dynamic.force_unlock();
            self.opens.force_unlock();
            self.extension_references.force_unlock();
        }
    }

    /// In a forked child: the IAs of the built-in providers are the parent's. The providers begin
    /// anew. Loaded providers, and the handles of their IAs, stay as they are.
    fn forget_builtins(&self) {
        self.opens.forget_ours();
        self.statics.forget_builtins(&self.dynamic);
    }

    /// `dat_ia_openv`. `Ok` is the result of the provider's open function, unchanged: a
    /// provider may have codes of its own. Only with success is `*ia` written, and `*evd` is what it was otherwise.
    ///
    /// The IA name is looked up exactly as given, with version and thread safety; in DAT 1.2
    /// without the prefix `RO_AWARE_`.
    ///
    /// # Errors
    ///
    /// `DAT_INSUFFICIENT_RESOURCES` when there is no memory;
    /// `DAT_INVALID_PARAMETER` (1) for a name that is NULL or longer than 255 bytes;
    /// `DAT_INVALID_HANDLE` (IA) for a NULL `ia`; `DAT_PROVIDER_NOT_FOUND`; `DAT_INVALID_STATE`
    /// from inside a provider's init or fini function.
    ///
    /// # Safety
    ///
    /// `name` is NULL or valid for reads up to its NUL; `ia` is NULL or valid for a write;
    /// `evd` is as the provider requires.
    #[allow(clippy::too_many_arguments)] // those of `dat_ia_openv`
    pub unsafe fn open(
        &self,
        name: *const c_char,
        qlen: DAT_COUNT,
        evd: *mut DAT_EVD_HANDLE,
        ia: *mut DAT_IA_HANDLE,
        major: u32,
        minor: u32,
        thread_safe: bool,
    ) -> Result<DAT_RETURN> {
        // SAFETY: the caller's promise.
        let mut name = unsafe { ia_name(name) }.ok_or(Error::arg(Subtype::Arg1))?;
        if ia.is_null() {
            return Err(Error::handle(Subtype::HandleIa));
        }
        if self.version == Version::V1 && name.to_bytes().starts_with(RO_AWARE) {
            name = &name[RO_AWARE.len()..];
        }
        reserve::check()?;
        let key = Key {
            name: name.to_owned(),
            major,
            minor,
            thread_safe,
        };
        // SAFETY: NULL or valid for a read, as the provider requires.
        let given = unsafe { evd.as_ref() }.copied();
        let (mut reference, handle) = loop {
            let reference = self.acquire(&key)?;
            let table = reference.table;
            log::debug!(target: CONSUMER_API, "open an IA of {key}");
            // SAFETY: the registration that was just counted keeps the table; the arguments are
            // the caller's, and providers only read the name.
            let opened = unsafe { table.open(name.as_ptr().cast_mut(), qlen, evd) };
            let failure = match opened {
                Ok((DAT_SUCCESS, handle)) if !handle.is_null() => break (reference, handle),
                failure => failure,
            };
            let wrong_arguments = failure.is_ok_and(|(code, _)| {
                matches!(
                    code & DAT_TYPE_MASK,
                    DAT_INVALID_PARAMETER | DAT_INVALID_HANDLE
                )
            });
            let again = !wrong_arguments && self.statics.give_up(&key);
            self.release(&reference);
            // The provider may have written an EVD that it has destroyed again. The next provider would take it for one
            // that is given, and so would the next call of a program that tries one name after the other.
            // SAFETY: NULL or valid for a read, as the provider requires.
            let left = unsafe { evd.as_ref() }.copied();
            if let Some(given) = given.filter(|_| left != given) {
                // SAFETY: not NULL, and the provider has just written there.
                unsafe { evd.write(given) };
            }
            if again {
                continue;
            }
            if !wrong_arguments {
                self.statics.advise(&key);
            }
            let (code, _) = failure?;
            return match code {
                DAT_SUCCESS => Err(Kind::InternalError.into()),
                code => Ok(code),
            };
        };
        self.opened(&mut reference);
        let table = reference.table;
        // SAFETY: the provider has just given the handle.
        if self.version == Version::V2 && unsafe { table.extension_supported(handle) } {
            self.extensions.store(true, Ordering::Relaxed);
        }
        let public = self.opens.insert(handle, reference);
        // SAFETY: not NULL, so valid for a write, as the caller promises.
        unsafe { ia.write(public) };
        Ok(DAT_SUCCESS)
    }

    /// `dat_ia_close`. `Ok` is the result of the provider; the handle remains valid if that is not
    /// success. The provider checks the flags. While one thread closes an IA, a close of the same
    /// handle by another is refused.
    ///
    /// # Errors
    ///
    /// `DAT_INVALID_HANDLE` (IA).
    ///
    /// # Safety
    ///
    /// If the IA is of a loaded provider, no other thread is in a call on it, unless that
    /// provider allows it.
    pub unsafe fn close(&self, ia: DAT_IA_HANDLE, flags: DAT_CLOSE_FLAGS) -> Result<DAT_RETURN> {
        let unknown = Error::handle(Subtype::HandleIa);
        let (handle, reference) = self.opens.begin_close(ia).ok_or(unknown)?;
        let table = reference.table;
        // SAFETY: the reference keeps the table, and the handle is open.
        let result = match unsafe { table.check(self.version, handle) } {
            // SAFETY: as above; this thread alone closes it.
            DAT_SUCCESS => unsafe { table.close(handle, flags) },
            refused => Ok(refused),
        };
        let closed = result == Ok(DAT_SUCCESS);
        self.opens.end_close(ia, closed);
        if closed {
            log::debug!(target: CONSUMER_API, "closed an IA of {}", reference.key);
            self.release(&reference);
        }
        result
    }

    /// Counts a use of a key in both registries; loads its provider if necessary.
    fn acquire(&self, key: &Key) -> Result<Reference> {
        // A name that the program registered itself needs no entry, so a failure here matters only
        // if the second step fails as well.
        let in_static = self.statics.open(key, &self.dynamic);
        match self.dynamic.acquire(key) {
            Ok(table) => Ok(Reference {
                key: key.clone(),
                table,
                in_static: in_static.is_ok(),
                opened: false,
            }),
            Err(error) => {
                in_static?;
                // The provider has removed its registration while its library is loaded.
                self.statics.close(key, false, &self.dynamic)?;
                Err(error)
            }
        }
    }

    /// The IA for which [`acquire`](Registry::acquire) has counted a use is open.
    fn opened(&self, reference: &mut Reference) {
        reference.opened = true;
        if reference.in_static {
            self.statics.opened(&reference.key);
        }
    }

    /// Ends a use that [`acquire`](Registry::acquire) has counted.
    fn release(&self, reference: &Reference) {
        self.dynamic.release(&reference.key);
        if reference.in_static
            && let Err(error) = self
                .statics
                .close(&reference.key, reference.opened, &self.dynamic)
        {
            log::warn!("close of {}: {error}", reference.key);
        }
    }

    /// `dat_registry_add_provider`. The table is kept by reference.
    ///
    /// # Errors
    ///
    /// `DAT_INVALID_PARAMETER` for a NULL table (1), a NULL info or one whose name has no end
    /// (2); `DAT_PROVIDER_ALREADY_REGISTERED`.
    ///
    /// # Safety
    ///
    /// `info` is NULL or valid for a read. `table` is NULL or a provider table of this
    /// version that lives until it is removed.
    pub unsafe fn add_provider(
        &self,
        table: *const c_void,
        info: *const DAT_PROVIDER_INFO,
    ) -> Result<()> {
        let table = Table::new(table).ok_or(Error::arg(Subtype::Arg1))?;
        // SAFETY: the caller's promise.
        let key = unsafe { key_of(info) }?;
        reserve::check()?;
        log::debug!(target: PROVIDER_API, "add {key}");
        self.dynamic.add(key, table)
    }

    /// `dat_registry_remove_provider`. The key alone counts; `table` must not be NULL.
    ///
    /// # Errors
    ///
    /// `DAT_INVALID_PARAMETER` as for [`add_provider`](Registry::add_provider);
    /// `DAT_PROVIDER_IN_USE` while IAs are open; `DAT_PROVIDER_NOT_FOUND`.
    ///
    /// # Safety
    ///
    /// `info` is NULL or valid for a read.
    pub unsafe fn remove_provider(
        &self,
        table: *const c_void,
        info: *const DAT_PROVIDER_INFO,
    ) -> Result<()> {
        if table.is_null() {
            return Err(Error::arg(Subtype::Arg1));
        }
        // SAFETY: the caller's promise.
        let key = unsafe { key_of(info) }?;
        log::debug!(target: PROVIDER_API, "remove {key}");
        self.dynamic.remove(&key)
    }

    /// `dat_registry_list_providers`: the keys of the static registry, in file order, as many
    /// as there is room for.
    ///
    /// # Errors
    ///
    /// `DAT_INVALID_PARAMETER`: (2) for a NULL `count`; (1) for a `max` below 1; (3) for a NULL list
    /// or a NULL pointer in it, with the earlier ones filled. `*count` is the number of entries then.
    ///
    /// # Safety
    ///
    /// `count` is NULL or valid for a write; `list` is NULL or an array of `max` pointers, each
    /// NULL or valid for a write.
    pub unsafe fn list_providers(
        &self,
        max: DAT_COUNT,
        count: *mut DAT_COUNT,
        list: *mut *mut DAT_PROVIDER_INFO,
    ) -> Result<()> {
        let number = |n: usize| DAT_COUNT::try_from(n).unwrap_or(DAT_COUNT::MAX);
        // SAFETY (of the writes to `count` below): not NULL, and the caller's promise.
        if count.is_null() {
            return Err(Error::arg(Subtype::Arg2));
        }
        let refused = |arg| {
            // SAFETY: see above.
            unsafe { count.write(number(self.statics.keys().count())) };
            Err(Error::arg(arg))
        };
        let Some(room) = usize::try_from(max).ok().filter(|room| *room > 0) else {
            return refused(Subtype::Arg1);
        };
        if list.is_null() {
            return refused(Subtype::Arg3);
        }
        let mut written = 0;
        for (index, key) in self.statics.keys().take(room).enumerate() {
            // SAFETY: `index` is below `max`, the length of the array.
            let slot = unsafe { list.add(index).read() };
            if slot.is_null() {
                return refused(Subtype::Arg3);
            }
            // SAFETY: not NULL, so valid for a write, as the caller promises.
            unsafe { slot.write(key.to_info()) };
            written = index + 1;
        }
        // SAFETY: see above.
        unsafe { count.write(number(written)) };
        Ok(())
    }

    /// Loads the provider of an IA name of DAT 2.0, and finds the function of its library for
    /// extension calls that need no open IA (`dapl_extensions`). The use that this counts ends with
    /// [`extension_close`](Registry::extension_close).
    ///
    /// # Errors
    ///
    /// `DAT_PROVIDER_NOT_FOUND`; `DAT_NOT_IMPLEMENTED` if the provider has no such function.
    pub fn extension_open(&self, name: &CStr) -> Result<DAPL_EXTENSIONS_FUNC> {
        reserve::check()?;
        self.extension_references.lock().try_reserve(1)?;
        let mut reference = self.acquire(&extension_key(name))?;
        let Some(function) = self.statics.extensions(&reference.key) else {
            self.release(&reference);
            return Err(Kind::NotImplemented.into());
        };
        self.opened(&mut reference);
        self.extensions.store(true, Ordering::Relaxed);
        self.extension_references.lock().push(reference);
        Ok(function)
    }

    /// Ends one use that [`extension_open`](Registry::extension_open) has counted, if there is one.
    pub fn extension_close(&self, name: &CStr) {
        let key = extension_key(name);
        let mut references = self.extension_references.lock();
        let index = references.iter().position(|held| held.key == key);
        let reference = index.map(|index| references.swap_remove(index));
        drop(references);
        if let Some(reference) = reference {
            self.release(&reference);
        }
    }
}

/// The key of the provider for extension calls.
fn extension_key(name: &CStr) -> Key {
    Key {
        name: name.to_owned(),
        major: 2,
        minor: 0,
        thread_safe: false,
    }
}

/// The name from a caller, unless it is NULL or too long.
///
/// # Safety
///
/// `name` is NULL or valid for reads up to its NUL for `'a`.
unsafe fn ia_name<'a>(name: *const c_char) -> Option<&'a CStr> {
    if name.is_null() {
        return None;
    }
    // SAFETY: not NULL; the caller's promise.
    unsafe { key::bounded(name) }
}

/// The key from a provider.
///
/// # Safety
///
/// `info` is NULL or valid for a read.
unsafe fn key_of(info: *const DAT_PROVIDER_INFO) -> Result<Key> {
    let bad = Error::arg(Subtype::Arg2);
    if info.is_null() {
        return Err(bad);
    }
    // SAFETY: not NULL; the caller's promise.
    unsafe { Key::from_info(info) }.ok_or(bad)
}

#[cfg(test)]
mod tests;
