//! The one registry of the process, behind the C functions.
//!
//! Each function gives `DAT_INVALID_STATE` if nothing was [`setup`].

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::{Registry, Setup, config, override_file};
use crate::abi::common::{
    DAT_CLOSE_FLAGS, DAT_COUNT, DAT_EVD_HANDLE, DAT_IA_HANDLE, DAT_PROVIDER_INFO, DAT_RETURN,
};
use crate::abi::v2::{DAPL_EXTENSIONS_FUNC, DAT_HA_RELATIONSHIP};
use crate::error::{Error, Kind, Result, Subtype};
use crate::lock::{self, Mutex};
use crate::process::{self, Across, AcrossEntry};
use crate::{environment, log_sink, reserve};

/// What [`setup`] was given; null before that.
static SETUP: AtomicPtr<Setup> = AtomicPtr::new(null_mut());
/// The registry, which is never freed; null before the first call that needs it.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(null_mut());
/// Held while the registry is made.
static MAKING: Mutex<()> = Mutex::new(());
/// The registry was taken over from the parent of this process, and still has the parent's IAs.
static INHERITED: AtomicBool = AtomicBool::new(false);

/// The registry as a forked child takes it over: with the providers that are loaded.
struct AcrossForks;

static ACROSS_FORKS: AcrossEntry = AcrossEntry::new(&AcrossForks);

impl Across for AcrossForks {
    fn try_lock(&self) -> bool {
        let Some(making) = MAKING.try_lock() else {
            return false;
        };
        if made().is_some_and(|registry| !registry.try_lock_all()) {
            return false;
        }
        std::mem::forget(making);
        true
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(registry) = made() {
                registry.unlock_all();
            }
            MAKING.force_unlock();
        }
    }

    unsafe fn unlock_in_child(&self) {
        INHERITED.store(true, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.unlock() };
    }

    unsafe fn reset(&self) {
        REGISTRY.store(null_mut(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { lock::reset(&MAKING, ()) };
    }
}

/// Sets the version and the providers of the library; later calls have no effect. The cost is
/// negligible, so that every registry-level entry point can begin with it.
pub fn setup(setup: &'static Setup) {
    if SETUP.load(Ordering::Acquire).is_null() {
        let new = std::ptr::from_ref(setup).cast_mut();
        let (to, from) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = SETUP.compare_exchange(null_mut(), new, to, from);
    }
}

/// The registry, if there is one.
fn made() -> Option<&'static Registry> {
    // SAFETY: null, or never freed.
    unsafe { REGISTRY.load(Ordering::Acquire).as_ref() }
}

/// The registry, which is set up here if this is the first call.
fn registry() -> Result<&'static Registry> {
    // SAFETY: null, or from the static reference of `setup`.
    let setup = unsafe { SETUP.load(Ordering::Acquire).as_ref() };
    let setup = setup.ok_or(Error::from(Kind::InvalidState))?;
    if INHERITED.load(Ordering::Acquire) {
        forget_parent();
    }
    made().map_or_else(|| make(setup), Ok)
}

/// The registry of a forked child forgets the IAs of the parent, before any thread of the child uses it.
#[cold]
fn forget_parent() {
    let _making = MAKING.lock();
    if INHERITED.load(Ordering::Relaxed)
        && let Some(registry) = made()
    {
        registry.forget_builtins();
    }
    INHERITED.store(false, Ordering::Release);
}

#[cold]
fn make(setup: &Setup) -> Result<&'static Registry> {
    reserve::check()?;
    process::across(&ACROSS_FORKS);
    let _making = MAKING.lock();
    if let Some(registry) = made() {
        return Ok(registry);
    }
    log_sink::install();
    log_sink::report_panics();
    let file = override_file::path();
    let defaults = config::default_files(setup.version);
    let mut entries = config::entries(setup, file.as_deref(), defaults)?;
    let fallback = environment::variable(config::FALLBACK);
    config::add_fallback(setup, fallback.as_deref(), &mut entries)?;
    let registry = Registry::new(*setup, entries)?;
    let registry: &_ = Box::leak(Box::new(registry));
    REGISTRY.store(std::ptr::from_ref(registry).cast_mut(), Ordering::Release);
    Ok(registry)
}

/// [`Registry::open`].
///
/// # Errors
///
/// As there.
///
/// # Safety
///
/// As there.
#[allow(clippy::too_many_arguments)] // those of `dat_ia_openv`
pub unsafe fn open(
    name: *const c_char,
    qlen: DAT_COUNT,
    evd: *mut DAT_EVD_HANDLE,
    ia: *mut DAT_IA_HANDLE,
    major: u32,
    minor: u32,
    thread_safe: bool,
) -> Result<DAT_RETURN> {
    // SAFETY: the caller's promise.
    unsafe { registry()?.open(name, qlen, evd, ia, major, minor, thread_safe) }
}

/// [`Registry::close`].
///
/// # Errors
///
/// As there.
///
/// # Safety
///
/// As there.
pub unsafe fn close(ia: DAT_IA_HANDLE, flags: DAT_CLOSE_FLAGS) -> Result<DAT_RETURN> {
    // SAFETY: the caller's promise.
    unsafe { registry()?.close(ia, flags) }
}

/// [`Registry::add_provider`].
///
/// # Errors
///
/// As there.
///
/// # Safety
///
/// As there.
pub unsafe fn add_provider(table: *const c_void, info: *const DAT_PROVIDER_INFO) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { registry()?.add_provider(table, info) }
}

/// [`Registry::remove_provider`].
///
/// # Errors
///
/// As there.
///
/// # Safety
///
/// As there.
pub unsafe fn remove_provider(table: *const c_void, info: *const DAT_PROVIDER_INFO) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { registry()?.remove_provider(table, info) }
}

/// [`Registry::list_providers`].
///
/// # Errors
///
/// As there.
///
/// # Safety
///
/// As there.
pub unsafe fn list_providers(
    max: DAT_COUNT,
    count: *mut DAT_COUNT,
    list: *mut *mut DAT_PROVIDER_INFO,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { registry()?.list_providers(max, count, list) }
}

/// [`Registry::providers_related`].
///
/// # Errors
///
/// As there.
///
/// # Safety
///
/// As there.
pub unsafe fn providers_related(
    first: *const c_char,
    second: *const c_char,
    answer: *mut DAT_HA_RELATIONSHIP,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { registry()?.providers_related(first, second, answer) }
}

/// `dats_get_ia_handle`: the provider's handle for an index, the index for a provider's handle, and
/// the handle itself for an IA of a built-in provider.
///
/// # Errors
///
/// `DAT_INVALID_HANDLE` (IA).
pub fn get_ia_handle(handle: *mut c_void) -> Result<*mut c_void> {
    let unknown = Error::handle(Subtype::HandleIa);
    registry()?.opens.translate(handle).ok_or(unknown)
}

/// The provider's own handle of an IA of a loaded provider, from the index that the program has.
/// `None` for all other values; handles of built-in providers need no translation.
pub fn ia_pointer(handle: *mut c_void) -> Option<*mut c_void> {
    made()?.opens.pointer(handle)
}

/// Whether an IA of a loaded provider is open. Only then may a handle that is not in the arena be
/// dereferenced.
pub fn foreign_open() -> bool {
    made().is_some_and(|registry| registry.opens.foreign())
}

/// Whether an IA whose provider has extensions was ever open in this process.
pub fn extensions() -> bool {
    made().is_some_and(|registry| registry.extensions.load(Ordering::Relaxed))
}

/// [`Registry::extension_open`].
///
/// # Errors
///
/// As there.
pub fn extension_open(name: &CStr) -> Result<DAPL_EXTENSIONS_FUNC> {
    registry()?.extension_open(name)
}

/// [`Registry::extension_close`].
pub fn extension_close(name: &CStr) {
    if let Some(registry) = made() {
        registry.extension_close(name);
    }
}
