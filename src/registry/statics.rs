//! The static registry: the entries of the configuration, and the providers that are loaded
//! for them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::lock::ReentrantMutex;

use super::config::{Entry, FALLBACK, Target, api_version};
use super::dynamic::{Dynamic, NOT_REGISTERED};
use super::key::Key;
use super::load::{Fini, Library, LoadError};
use super::table::Table;
use super::{Builtin, BuiltinEntry, Setup, replaced};
use crate::abi::v2::DAPL_EXTENSIONS_FUNC;
use crate::environment;
use crate::error::{Error, Kind, Result};
use crate::log_sink::STATIC_REGISTRY;
use crate::reserve;

/// The built-in provider that replaces libraries of others.
pub(super) const VERBS: &str = "verbs";

/// An entry of the configuration.
struct Listed {
    entry: Entry,
    /// No entry before it has its key.
    is_first: bool,
    /// Its failure to load has been logged.
    reported: AtomicBool,
    /// It is an entry for every name, and the log has it that it serves others.
    announced: AtomicBool,
    /// An IA of it could not be opened, and an entry for every name serves it.
    given_up: AtomicBool,
}

/// A provider that is loaded under some key.
struct Loaded {
    /// How many IAs are open or being opened.
    count: usize,
    /// How many of these are being opened.
    opening: usize,
    /// The number of its entry.
    entry: usize,
    fini: Fini,
    /// Its function for extension calls that need no open IA.
    extensions: Option<DAPL_EXTENSIONS_FUNC>,
    /// The table that the provider registered in its init function.
    registered: Option<Table>,
    /// The library; `None` for a built-in provider.
    library: Option<Library>,
}

impl Loaded {
    /// Whether no IA is open, but those that are being opened may be.
    fn is_untried(&self) -> bool {
        self.count == self.opening
    }
}

/// The code of the provider of an entry.
enum Code {
    Builtin(&'static Builtin),
    Library(Library),
}

/// Why an entry cannot be used.
enum Unusable {
    /// An error, which is logged.
    Error(String),
    /// A library that has a replacement is not installed and this build has no replacement, which is the case
    /// for most entries of a distribution's `dat.conf`.
    Absent(String),
    /// The provider has not registered the name of the IA, which is logged.
    Unregistered,
    /// The provider of the entry has the other value of thread safety.
    OtherSafety,
}

/// The static registry. Entries never change. The loaded providers are protected by a lock that is
/// held while a provider is loaded, initialised and finished; calls from these functions into this
/// registry return `DAT_INVALID_STATE`.
pub struct Static {
    setup: Setup,
    entries: Vec<Listed>,
    loaded: ReentrantMutex<RefCell<BTreeMap<Key, Loaded>>>,
    /// The log has it that there is a provider for names that no entry can serve.
    advised: AtomicBool,
}

impl Static {
    /// A registry of these entries, nothing loaded.
    ///
    /// # Errors
    ///
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn new(setup: Setup, entries: Vec<Entry>) -> Result<Static> {
        let mut seen = HashSet::new();
        seen.try_reserve(entries.len())?;
        let mut first = Vec::new();
        first.try_reserve_exact(entries.len())?;
        first.extend(entries.iter().map(|entry| seen.insert(&entry.key)));
        let mut listed = Vec::new();
        listed.try_reserve_exact(entries.len())?;
        let pairs = entries.into_iter().zip(first);
        listed.extend(pairs.map(|(entry, is_first)| Listed {
            entry,
            is_first,
            reported: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        }));
        Ok(Static {
            setup,
            entries: listed,
            loaded: ReentrantMutex::default(),
            advised: AtomicBool::new(false),
        })
    }

    /// Takes the lock, unless another thread holds it.
    pub fn try_lock(&self) -> Option<impl Sized> {
        self.loaded.try_lock()
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The result of [`Static::try_lock`] was forgotten.
    pub unsafe fn force_unlock(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.loaded.force_unlock() };
    }

    /// Forgets that built-in providers are in use, with what they have registered.
    pub fn forget_builtins(&self, dynamic: &Dynamic) {
        let guard = self.loaded.lock();
        // In a call from a provider's init or fini function, in which the process was forked.
        let Ok(mut loaded) = guard.try_borrow_mut() else {
            return;
        };
        loaded.retain(|key, loaded| {
            // The threads that were opening IAs are the parent's.
            loaded.count -= loaded.opening;
            loaded.opening = 0;
            let is_builtin = loaded.library.is_none();
            if is_builtin && let Some(table) = loaded.registered {
                dynamic.remove_stale(key, table);
            }
            !is_builtin
        });
    }

    /// Whether the entries of an IA name are those of a built-in provider; `None` if there are none.
    pub fn is_of_builtin(&self, name: &CStr) -> Option<bool> {
        let named = |listed: &Listed| *listed.entry.key.name == *name;
        let has_its_own = self.entries.iter().any(named);
        let entries = self.entries.iter().filter(|listed| match has_its_own {
            true => named(listed),
            false => listed.entry.is_for_every_name(),
        });
        let mut entries = entries.peekable();
        entries.peek()?;
        Some(entries.all(|listed| matches!(listed.entry.target, Target::Builtin(_))))
    }

    /// Every key once, in the order of the entries. An entry for every name has none.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        let entries = self.entries.iter();
        let first = entries.filter(|listed| listed.is_first && !listed.entry.is_for_every_name());
        first.map(|listed| &listed.entry.key)
    }

    /// The provider of a key, of which the caller has counted a use, could not open the IA. Whether an entry
    /// for every name is to try it: the entry of that provider is not used any more then, unless another
    /// thread that is opening the IA at the moment succeeds. The caller ends its use first.
    pub fn give_up(&self, key: &Key) -> bool {
        let guard = self.loaded.lock();
        let Ok(map) = guard.try_borrow() else {
            return false;
        };
        let Some(loaded) = map.get(key).filter(|loaded| loaded.is_untried()) else {
            return false;
        };
        let listed = &self.entries[loaded.entry];
        let mut entries = self.entries.iter();
        if listed.entry.is_for_every_name() || !entries.any(|other| other.entry.serves_any(key)) {
            return false;
        }
        if !listed.given_up.swap(true, Ordering::Relaxed) {
            log::error!(
                "{}: {}: {key} cannot be opened",
                listed.entry.origin,
                listed.entry.target
            );
        }
        true
    }

    /// An IA of a key could not be opened. Tells the user once how to run the program all the same, if
    /// there are entries of the key, whose failures have been logged, and none for every name.
    pub fn advise(&self, key: &Key) {
        let mut entries = self.entries.iter().map(|listed| &listed.entry);
        let other = key.with_other_safety();
        if !entries
            .clone()
            .any(|entry| entry.key == *key || entry.key == other)
            || entries.any(|entry| entry.serves_any(key))
            || environment::is_secure()
            || !reserve::fill()
            || self.advised.swap(true, Ordering::Relaxed)
        {
            return;
        }
        log::error!(
            "{FALLBACK}=soft in the environment lets builtin:soft serve what no entry can serve"
        );
    }

    /// Counts one more use of the provider of a key; the first loads and initialises it. Of
    /// several entries with the key, the first whose provider loads and registers is used. The IA is being
    /// opened until [`opened`](Static::opened) or [`close`](Static::close).
    ///
    /// Waits while the provider has been given up and other threads are in an attempt to open an IA of it.
    ///
    /// # Errors
    ///
    /// `DAT_PROVIDER_NOT_FOUND` if no entry has the key or none is usable;
    /// `DAT_INSUFFICIENT_RESOURCES` when there is no memory; `DAT_INVALID_STATE` from inside a provider's init or fini function.
    pub fn open(&self, key: &Key, dynamic: &Dynamic) -> Result<()> {
        /// How often a thread that waits looks: the attempts of others take as long as their providers like.
        const LOOKS: Duration = Duration::from_millis(1);
        let guard = loop {
            let guard = self.loaded.lock();
            let leaving = |loaded: &Loaded| {
                let given_up = &self.entries[loaded.entry].given_up;
                loaded.count > 0 && loaded.is_untried() && given_up.load(Ordering::Relaxed)
            };
            if !guard
                .try_borrow()
                .is_ok_and(|map| map.get(key).is_some_and(leaving))
            {
                break guard;
            }
            drop(guard);
            crate::sync::sleep(LOOKS);
        };
        let mut loaded = guard.try_borrow_mut().map_err(|_| reentered())?;
        if let Some(loaded) = loaded.get_mut(key) {
            loaded.count += 1;
            loaded.opening += 1;
            log::debug!(target: STATIC_REGISTRY, "open {key}, now {}", loaded.count);
            return Ok(());
        }
        let Some(provider) = self.load(key, dynamic) else {
            // Without memory a provider registers nothing.
            reserve::check()?;
            return Err(NOT_REGISTERED);
        };
        loaded.insert(key.clone(), provider);
        Ok(())
    }

    /// An IA for which [`open`](Static::open) has counted a use is open.
    pub fn opened(&self, key: &Key) {
        let guard = self.loaded.lock();
        if let Ok(mut map) = guard.try_borrow_mut()
            && let Some(loaded) = map.get_mut(key)
        {
            loaded.opening = loaded.opening.saturating_sub(1);
        }
    }

    /// Ends a use that [`open`](Static::open) has counted, of an IA that was `opened` or could not be. The last
    /// one finishes the provider; its library stays loaded ([`Library::keep_loaded`]).
    ///
    /// # Errors
    ///
    /// `DAT_PROVIDER_NOT_FOUND` if the key is not open; `DAT_INVALID_STATE` as for `open`.
    pub fn close(&self, key: &Key, opened: bool, dynamic: &Dynamic) -> Result<()> {
        let guard = self.loaded.lock();
        let mut map = guard.try_borrow_mut().map_err(|_| reentered())?;
        let loaded = map.get_mut(key).ok_or(NOT_REGISTERED)?;
        // A child that was forked by a provider while that opened an IA has forgotten the use.
        loaded.count = loaded.count.saturating_sub(1);
        if !opened {
            loaded.opening = loaded.opening.saturating_sub(1);
        }
        log::debug!(target: STATIC_REGISTRY, "close {key}, now {}", loaded.count);
        if loaded.count == 0
            && let Some(loaded) = map.remove(key)
        {
            finish(key, loaded, dynamic);
        }
        Ok(())
    }

    /// The function for extension calls of the provider that is loaded for a key.
    pub fn extensions(&self, key: &Key) -> Option<DAPL_EXTENSIONS_FUNC> {
        let guard = self.loaded.lock();
        let loaded = guard.try_borrow().ok()?;
        loaded.get(key)?.extensions
    }

    /// Loads the provider of a key from the first usable entry.
    fn load(&self, key: &Key, dynamic: &Dynamic) -> Option<Loaded> {
        let mut unloadable = false;
        let loaded = self.candidates(key).find_map(|(number, listed)| {
            let entry = &listed.entry;
            let failure = match self.code(entry, key) {
                Ok(code) => match start(code, key, (number, entry), dynamic) {
                    Some(loaded) => {
                        if entry.is_for_every_name()
                            && !listed.announced.swap(true, Ordering::Relaxed)
                        {
                            log::error!(
                                "{}: {} serves {key}, and other names that no entry can serve",
                                entry.origin,
                                entry.target
                            );
                        }
                        log::debug!(target: STATIC_REGISTRY, "load {key} from {}", entry.target);
                        return Some(loaded);
                    }
                    None => Unusable::Unregistered,
                },
                Err(failure) => failure,
            };
            let why = match failure {
                Unusable::Error(why) => {
                    unloadable = true;
                    why
                }
                Unusable::Unregistered => "the provider has not registered this IA name".into(),
                Unusable::Absent(why) => {
                    log::debug!("{}: {}: {why}", entry.origin, entry.target);
                    return None;
                }
                Unusable::OtherSafety => return None,
            };
            if reserve::fill() && !listed.reported.swap(true, Ordering::Relaxed) {
                log::error!("{}: {}: {why}", entry.origin, entry.target);
            }
            None
        });
        if loaded.is_none() && unloadable {
            self.advise(key);
        }
        loaded
    }

    /// The entries that may serve a key, in order, with their numbers: those that have it, then those with
    /// the other value of thread safety that a built-in provider may serve, then those for every name.
    fn candidates<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = (usize, &'a Listed)> {
        let other = key.with_other_safety();
        let same = |(_, listed): &(usize, &Listed)| listed.entry.key == *key;
        let ours = move |(_, listed): &(usize, &Listed)| {
            listed.entry.key == other && listed.entry.target.may_be_builtin()
        };
        let any = |(_, listed): &(usize, &Listed)| listed.entry.serves_any(key);
        let entries = self.entries.iter().enumerate();
        let named = entries.clone().filter(same);
        let all = named
            .chain(entries.clone().filter(ours))
            .chain(entries.filter(any));
        all.filter(|(_, listed)| !listed.given_up.load(Ordering::Relaxed))
    }

    /// The code of an entry that is to be used under `key`.
    fn code(&self, entry: &Entry, key: &Key) -> std::result::Result<Code, Unusable> {
        let library = match &entry.target {
            Target::Builtin(name) => return self.builtin(name, key),
            Target::Library(library) => library,
        };
        match Library::load(library) {
            Ok(library) if entry.key == *key || entry.serves_any(key) => Ok(Code::Library(library)),
            Ok(_) => Err(Unusable::OtherSafety),
            Err(LoadError::NotInstalled(_)) if replaced::is_replaced(library) => {
                let code = self.builtin(VERBS, key).map_err(|_| {
                    Unusable::Absent("not installed, and this build has no verbs provider".into())
                })?;
                let note = replaced::note(library);
                let (comma, note) = note.map_or(("", ""), |note| (", ", note));
                log::info!(
                    "{}: {}: not installed, builtin:{VERBS} serves {key}{comma}{note}",
                    entry.origin,
                    entry.target
                );
                Ok(code)
            }
            Err(error) => Err(Unusable::Error(error.into_text())),
        }
    }

    /// A built-in provider by name, for a key of the version that it supports.
    fn builtin(&self, name: &str, key: &Key) -> std::result::Result<Code, Unusable> {
        let (major, minor) = api_version(self.setup.version);
        if (key.major, key.minor) != (major, minor) {
            let why = format!("this library has it for DAT {major}.{minor} only");
            return Err(Unusable::Error(why));
        }
        self.setup
            .builtin(name)
            .map(Code::Builtin)
            .ok_or_else(|| Unusable::Error("this build has no such provider".into()))
    }
}

/// The error for a call from inside a provider's init or fini function.
fn reentered() -> Error {
    Kind::InvalidState.into()
}

/// Runs a provider's init function. If the key is not registered after that the result is `None`.
fn start(
    code: Code,
    key: &Key,
    (number, entry): (usize, &Entry),
    dynamic: &Dynamic,
) -> Option<Loaded> {
    let before = dynamic.get(key);
    let info = key.to_info();
    let (fini, extensions, library) = match code {
        Code::Builtin(builtin) => {
            (builtin.init)(&BuiltinEntry {
                info: &info,
                params: &replaced::parameters(entry, &key.name),
                origin: &entry.origin,
            });
            (builtin.fini, (builtin.extensions)(), None)
        }
        Code::Library(library) => {
            // SAFETY: the init function of a provider, which is loaded, with a key and its
            // parameters that live during the call.
            unsafe { (library.init)(&info, entry.ia_params.as_ptr()) };
            let extensions = library.symbol(c"dapl_extensions").map(|symbol| {
                // SAFETY: the name is reserved for a function of this type in a provider library.
                unsafe { transmute::<NonNull<c_void>, DAPL_EXTENSIONS_FUNC>(symbol) }
            });
            (library.fini, extensions, Some(library))
        }
    };
    let after = dynamic.get(key);
    let loaded = Loaded {
        count: 1,
        opening: 1,
        entry: number,
        fini,
        extensions,
        // A registration that the program made itself before is not the provider's.
        registered: after.filter(|_| before.is_none()),
        library,
    };
    if after.is_some() {
        return Some(loaded);
    }
    match loaded.library {
        // Its init function has failed, and what it has made is not known: OpenFabrics' libraries crash in
        // their fini function then. Their own registry does not call that either.
        Some(library) => library.keep_loaded(),
        None => finish(key, loaded, dynamic),
    }
    None
}

/// Runs a provider's fini function.
fn finish(key: &Key, loaded: Loaded, dynamic: &Dynamic) {
    let info = key.to_info();
    // SAFETY: the fini function of a provider that is loaded, once for its init.
    unsafe { (loaded.fini)(&info) };
    if let Some(table) = loaded.registered {
        // After fini the table must not be used any more.
        dynamic.remove_stale(key, table);
    }
    if let Some(library) = loaded.library {
        library.keep_loaded();
    }
    log::debug!(target: STATIC_REGISTRY, "finished {key}");
}

#[cfg(test)]
mod tests;
