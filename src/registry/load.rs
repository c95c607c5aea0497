//! Provider libraries of other vendors.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use crate::abi::common::DAT_PROVIDER_INFO;
use crate::environment;

/// `dat_provider_init` of a provider.
pub type Init = unsafe extern "C" fn(*const DAT_PROVIDER_INFO, *const c_char);
/// `dat_provider_fini` of a provider.
pub type Fini = unsafe extern "C" fn(*const DAT_PROVIDER_INFO);

/// Why a library is not usable, with a text for the user.
#[derive(PartialEq, Eq, Debug)]
pub enum LoadError {
    /// There is no such file.
    NotInstalled(String),
    /// The file exists, but cannot be loaded or is not a provider library.
    Broken(String),
}

impl LoadError {
    /// The text, which is usually that of the dynamic loader.
    pub fn into_text(self) -> String {
        match self {
            LoadError::NotInstalled(text) | LoadError::Broken(text) => text,
        }
    }
}

/// A loaded provider library. Dropping it unloads it; see [`keep_loaded`](Library::keep_loaded).
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
        // Closes the library again if an entry point is missing.
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

    /// Keeps the library loaded for the rest of the process, as is necessary once its init function
    /// has run. A provider that ends a thread, in its fini function or in the destructor of the
    /// library, may wait only until the thread *announces* its end, as OpenFabrics' do. The thread
    /// then still has to return through code of the library, and an unloaded library would crash
    /// the process. Providers cope with a library that stays loaded: where several entries name it,
    /// it is initialised and finished several times without being unloaded.
    pub fn keep_loaded(self) {
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

/// Whether a library exists and can be loaded, without a call of its init function.
pub fn probe(path: &CStr) -> Result<(), LoadError> {
    let handle = open(path, libc::RTLD_LAZY | libc::RTLD_LOCAL)?;
    let _close = Close(handle);
    entry_point(handle, c"dat_provider_init")?;
    entry_point(handle, c"dat_provider_fini")?;
    Ok(())
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
        return Err(LoadError::Broken("the library field is empty".into()));
    }
    if environment::is_secure() && depends_on_directory(path) {
        let why = "a relative path is not followed in a program with more rights than its user";
        return Err(LoadError::Broken(why.into()));
    }
    // SAFETY: a C string. The constructors of the library run; the configuration is trusted to name
    // a provider library.
    let handle = unsafe { libc::dlopen(path.as_ptr(), mode) };
    NonNull::new(handle).ok_or_else(|| {
        let message = last_error();
        if missing(path, &message) {
            LoadError::NotInstalled(message)
        } else {
            LoadError::Broken(message)
        }
    })
}

/// Whether the file of a path depends on the working directory. That of a bare name does not: the
/// loader searches its own directories for it.
fn depends_on_directory(path: &CStr) -> bool {
    let path = path.to_bytes();
    path.contains(&b'/') && path[0] != b'/'
}

/// Whether the loader failed because the file itself does not exist. In the message a library that
/// was found has the path where it is, and a missing dependency has its own name; so if the
/// message begins with the bare name as given, the library was not found. (The rest of the message
/// depends on the locale.) That of musl has the name as given behind some words, the error of the kernel, and, for a
/// dependency, which library needs it.
fn missing(path: &CStr, message: &str) -> bool {
    let path = path.to_string_lossy();
    if path.contains('/') {
        return !std::path::Path::new(&*path).exists();
    }
    let of_musl = message.strip_prefix("Error loading shared library ");
    let reason = of_musl.unwrap_or(message).strip_prefix(&*path);
    let Some(reason) = reason.and_then(|rest| rest.strip_prefix(':')) else {
        return false;
    };
    let absent = std::io::Error::from_raw_os_error(libc::ENOENT).to_string();
    of_musl.is_none() || absent.starts_with(reason.trim_start())
}

fn entry_point(handle: NonNull<c_void>, name: &CStr) -> Result<NonNull<c_void>, LoadError> {
    symbol(handle, name).ok_or_else(|| {
        let name = name.to_string_lossy();
        LoadError::Broken(format!("not a provider library: it does not export {name}"))
    })
}

fn symbol(handle: NonNull<c_void>, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: an open handle and a C string.
    NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) })
}

/// The loader's message for the last failure of this thread.
fn last_error() -> String {
    // SAFETY: `dlerror` has no preconditions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".into();
    }
    // SAFETY: not NULL, so a C string that is valid until the next call of this thread.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn messages_of_loaders() {
        let path = c"liba.so";
        for (message, is_missing) in [
            (
                "liba.so: cannot open shared object file: No such file or directory",
                true,
            ),
            ("/lib/liba.so: invalid ELF header", false),
            (
                "libb.so: cannot open shared object file: No such file or directory",
                false,
            ),
            (
                "Error loading shared library liba.so: No such file or directory",
                true,
            ),
            (
                "Error loading shared library liba.so: Exec format error",
                false,
            ),
            (
                "Error loading shared library libb.so: No such file or directory (needed by /lib/liba.so)",
                false,
            ),
            (
                "Error loading shared library liba.so: No such file or directory (needed by liba.so)",
                false,
            ),
        ] {
            assert_eq!(missing(path, message), is_missing, "{message}");
        }
    }

    #[test]
    fn missing_broken_and_foreign_libraries() {
        for path in [
            c"libno-such-provider.so.7",
            c"/no/such/dir/lib.so",
            // A program without more rights than its user follows it.
            c"./no-such-provider.so",
        ] {
            let error = Library::load(path).unwrap_err();
            assert!(matches!(error, LoadError::NotInstalled(_)), "{error:?}");
            assert_eq!(probe(path).unwrap_err(), error);
        }
        // A file that is not a library, a library that is not a provider, and no name.
        let libc = match cfg!(target_env = "musl") {
            true => c"libc.so",
            false => c"libc.so.6",
        };
        for path in [c"/etc/passwd", libc, c""] {
            let error = Library::load(path).unwrap_err();
            assert!(matches!(error, LoadError::Broken(_)), "{error:?}");
        }
    }
}
