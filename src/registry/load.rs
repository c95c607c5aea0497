//! Provider libraries of other vendors.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use crate::abi::common::DAT_PROVIDER_INFO;
use crate::environment;

/// `dat_provider_init` of a provider.
pub type Init = unsafe extern "C" fn(*const DAT_PROVIDER_INFO, *const c_char);
/// `dat_provider_fini` of a provider.
pub type Fini = unsafe extern "C" fn(*const DAT_PROVIDER_INFO);

/// OpenFabrics' provider libraries, up to `.so`: those of DAT 2.0 (with "o") and of 1.2.
const OPENFABRICS: [&[u8]; 7] = [
    b"libdaplofa",
    b"libdaploscm",
    b"libdaploucm",
    b"libdaplomcm",
    b"libdaplcma",
    b"libdaplscm",
    b"libdaplucm",
];

/// Why a library is not usable; the text says more.
#[derive(PartialEq, Eq, Debug)]
pub enum LoadError {
    /// There is no such file.
    NotInstalled(String),
    /// It is there, and does not load or is no provider library.
    Broken(String),
}

impl LoadError {
    /// What the loader said.
    pub fn into_text(self) -> String {
        match self {
            LoadError::NotInstalled(text) | LoadError::Broken(text) => text,
        }
    }
}

/// A loaded provider library; dropped, it is unloaded, unless it is to [`stay`](Library::stay).
#[derive(Debug)]
pub struct Library {
    handle: NonNull<c_void>,
    /// Its init function.
    pub init: Init,
    /// Its fini function.
    pub fini: Fini,
}

// SAFETY: a `dlopen` handle and the functions behind it belong to the process, not to a thread.
unsafe impl Send for Library {}

impl Library {
    /// Loads a provider library into the global scope, with all symbols bound, and finds its
    /// two entry points. A bare name follows the search path of the loader.
    pub fn load(path: &CStr) -> Result<Library, LoadError> {
        let handle = open(path, libc::RTLD_NOW | libc::RTLD_GLOBAL)?;
        // What follows closes it again if an entry point is missing.
        let close = Close(handle);
        let (init, fini) = (
            entry_point(handle, c"dat_provider_init")?,
            entry_point(handle, c"dat_provider_fini")?,
        );
        std::mem::forget(close);
        // SAFETY: the two names are reserved for functions of these types in a provider
        // library, and a function pointer is as large as an object pointer.
        let (init, fini) = unsafe {
            (
                std::mem::transmute::<NonNull<c_void>, Init>(init),
                std::mem::transmute::<NonNull<c_void>, Fini>(fini),
            )
        };
        Ok(Library { handle, init, fini })
    }

    /// Leaves the library loaded for as long as the process runs, as every library must be whose
    /// init function has run. A provider that ends a thread, from its fini function or from the
    /// library's destructor, may wait only until the thread *says* that it ends: OpenFabrics' do.
    /// The thread has yet to return through code of the library then, and if that is gone, the
    /// process dies. To be loaded again changes nothing for a provider: where several entries
    /// name its library, it is initialised and finished while the library stays anyway.
    pub fn stay(self) {
        std::mem::forget(self);
    }

    /// The address of another symbol of the library.
    pub fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        symbol(self.handle, name)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        drop(Close(self.handle));
    }
}

/// Whether a library is there and loads, without running anything of the provider's API.
pub fn probe(path: &CStr) -> Result<(), LoadError> {
    let handle = open(path, libc::RTLD_LAZY | libc::RTLD_LOCAL)?;
    let _close = Close(handle);
    entry_point(handle, c"dat_provider_init")?;
    entry_point(handle, c"dat_provider_fini")?;
    Ok(())
}

/// Whether `library` names a provider library of OpenFabrics, with whatever directory and
/// version suffix.
pub fn is_openfabrics(library: &CStr) -> bool {
    let file = library.to_bytes().rsplit(|&byte| byte == b'/').next();
    file.is_some_and(|file| {
        OPENFABRICS.iter().any(|name| {
            file.strip_prefix(*name)
                .and_then(|rest| rest.strip_prefix(b".so"))
                .is_some_and(|version| matches!(version.first(), None | Some(b'.')))
        })
    })
}

/// Closes a handle of `dlopen` when dropped.
struct Close(NonNull<c_void>);

impl Drop for Close {
    fn drop(&mut self) {
        // SAFETY: the handle came from `dlopen` and is closed once.
        unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

fn open(path: &CStr, mode: c_int) -> Result<NonNull<c_void>, LoadError> {
    if path.is_empty() {
        // To `dlopen` this is the program itself.
        return Err(LoadError::Broken("the library has no name".into()));
    }
    if environment::is_secure() && depends_on_directory(path) {
        let why = "a relative path is not followed in a program with more rights than its user";
        return Err(LoadError::Broken(why.into()));
    }
    // SAFETY: a C string. The constructors of the library run; a configuration that names it
    // is trusted to name a provider library.
    let handle = unsafe { libc::dlopen(path.as_ptr(), mode) };
    NonNull::new(handle).ok_or_else(|| {
        let said = last_error();
        if missing(path, &said) {
            LoadError::NotInstalled(said)
        } else {
            LoadError::Broken(said)
        }
    })
}

/// Whether it depends on the working directory which file a path leads to. A bare name does not:
/// the loader searches its own directories for that.
fn depends_on_directory(path: &CStr) -> bool {
    let path = path.to_bytes();
    path.contains(&b'/') && path[0] != b'/'
}

/// Whether the loader failed because the file itself is not there. A library that was found is
/// named by the path where it was, a missing dependency by its own name; so a message that
/// begins with a bare name as given means that the search found nothing. (The rest of the
/// message depends on the locale.)
fn missing(path: &CStr, said: &str) -> bool {
    let path = path.to_string_lossy();
    if path.contains('/') {
        !std::path::Path::new(&*path).exists()
    } else {
        said.strip_prefix(&*path)
            .is_some_and(|rest| rest.starts_with(':'))
    }
}

fn entry_point(handle: NonNull<c_void>, name: &CStr) -> Result<NonNull<c_void>, LoadError> {
    symbol(handle, name).ok_or_else(|| {
        let name = name.to_string_lossy();
        LoadError::Broken(format!("no provider library: it has no {name}"))
    })
}

fn symbol(handle: NonNull<c_void>, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: an open handle and a C string.
    NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) })
}

/// What the loader says of the last failure of this thread.
fn last_error() -> String {
    // SAFETY: `dlerror` has no preconditions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".into();
    }
    // SAFETY: not NULL, so a C string that stays until the next call of this thread.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openfabrics_names() {
        for name in [
            c"libdaplofa.so.2",
            c"libdaploscm.so.2",
            c"libdaploucm.so.2",
            c"libdaplomcm.so.2",
            c"libdaplcma.so.1",
            c"libdaplscm.so.1",
            c"libdaplucm.so.1",
            c"/usr/lib64/libdaplofa.so",
            c"libdaplofa.so.2.0.0",
        ] {
            assert!(is_openfabrics(name), "{name:?}");
        }
        for name in [
            c"",
            c"libdaplofa",
            c"libdaplofa.so2",
            c"xlibdaplofa.so.2",
            c"libdaplofa.so.2/libother.so",
            c"builtin:verbs",
        ] {
            assert!(!is_openfabrics(name), "{name:?}");
        }
    }

    #[test]
    fn paths_that_depend_on_the_working_directory() {
        for path in [
            c"./lib.so",
            c"../lib.so",
            c"plugins/lib.so",
            c"$ORIGIN/lib.so",
        ] {
            assert!(depends_on_directory(path), "{path:?}");
        }
        for path in [c"", c"lib.so", c"/lib.so", c"/usr/lib/../lib.so"] {
            assert!(!depends_on_directory(path), "{path:?}");
        }
    }

    #[test]
    fn missing_broken_and_foreign_libraries() {
        for path in [c"libno-such-provider.so.7", c"/no/such/dir/lib.so"] {
            let error = Library::load(path).unwrap_err();
            assert!(matches!(error, LoadError::NotInstalled(_)), "{error:?}");
            assert_eq!(probe(path).unwrap_err(), error);
        }
        // There, but no library; a library, but no provider; no name at all.
        for path in [c"/etc/passwd", c"libc.so.6", c""] {
            let error = Library::load(path).unwrap_err();
            assert!(matches!(error, LoadError::Broken(_)), "{error:?}");
        }
    }
}
