//! The registry with provider libraries written in C, and what it says on standard error.

#[path = "registry/process.rs"]
mod process;

use std::ffi::{CStr, CString, c_char, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use dat_core::abi::common::{DAT_CLOSE_GRACEFUL_FLAG, DAT_PROVIDER_INFO, DAT_SUCCESS};
use dat_core::error::{Error, Kind, Result, Subtype, Version};
use dat_core::registry::{self, Registry, Setup, config};

/// A library without providers of its own.
const SETUP: Setup = Setup {
    version: Version::V2,
    builtins: &[],
};
const NOT_REGISTERED: Error = Error::new(Kind::ProviderNotFound, Subtype::NameNotRegistered);

/// A directory that goes away at the end of its test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("dat-reg-{}-{count}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Dir(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Compiles a file of tests/registry (or an empty one) to a shared library.
    fn library(&self, source: Option<&str>, name: &str) -> String {
        let path = self.0.join(name);
        let source = match source {
            Some(file) => Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/registry")
                .join(file),
            None => self.file("empty.c", "int nothing;\n"),
        };
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&path, &source])
            .status()
            .unwrap();
        assert!(status.success());
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The registry that the provider library registers with; that of the process if it is null.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C" fn add(table: *const c_void, info: *const DAT_PROVIDER_INFO) -> u32 {
    // SAFETY: null, or a test has set it, and is in a call of it.
    let registry = unsafe { REGISTRY.load(Ordering::Acquire).as_ref() };
    // SAFETY: the arguments are those of the provider.
    code(unsafe {
        match registry {
            Some(registry) => registry.add_provider(table, info),
            None => registry::add_provider(table, info),
        }
    })
}

unsafe extern "C" fn remove(table: *const c_void, info: *const DAT_PROVIDER_INFO) -> u32 {
    // SAFETY: null, or a test has set it, and is in a call of it.
    let registry = unsafe { REGISTRY.load(Ordering::Acquire).as_ref() };
    // SAFETY: the arguments are those of the provider.
    code(unsafe {
        match registry {
            Some(registry) => registry.remove_provider(table, info),
            None => registry::remove_provider(table, info),
        }
    })
}

fn code(result: Result<()>) -> u32 {
    result.map_or_else(|error| error.code(Version::V2), |()| DAT_SUCCESS)
}

/// The library that stands for `libdat2.so.2`; one test at a time uses it.
struct Host {
    notes: unsafe extern "C" fn() -> *const c_char,
    _turn: MutexGuard<'static, ()>,
}

impl Host {
    fn get() -> Host {
        static TURN: Mutex<()> = Mutex::new(());
        static HANDLE: OnceLock<usize> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(|poison| poison.into_inner());
        let handle = *HANDLE.get_or_init(|| {
            let dir = Dir::new();
            let path = CString::new(dir.library(Some("host.c"), "libhost.so")).unwrap();
            // SAFETY: a library with no constructors.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            assert!(!handle.is_null());
            type Slot = unsafe extern "C" fn(*const c_void, *const DAT_PROVIDER_INFO) -> u32;
            let slots: [(&CStr, Slot); 2] = [(c"host_add", add), (c"host_remove", remove)];
            for (name, function) in slots {
                // SAFETY: an open handle; the two names are variables of type `Slot`.
                unsafe {
                    let slot = libc::dlsym(handle, name.as_ptr()).cast::<Slot>();
                    assert!(!slot.is_null());
                    slot.write(function);
                }
            }
            handle.addr()
        });
        let handle = ptr::with_exposed_provenance_mut::<c_void>(handle);
        // SAFETY: an open handle and a function of the type of the field.
        let notes = unsafe {
            let notes = libc::dlsym(handle, c"host_notes".as_ptr());
            assert!(!notes.is_null());
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(notes)
        };
        let host = Host { notes, _turn: turn };
        // What the test before has left.
        host.notes();
        host
    }

    /// A registry of the lines of a configuration file.
    fn registry(&self, dir: &Dir, lines: &str) -> Box<Registry> {
        let file = dir.file("dat.conf", lines);
        let entries = config::entries(&SETUP, Some(file.as_os_str()), &[""]);
        let registry = Box::new(Registry::new(SETUP, entries.unwrap()).unwrap());
        REGISTRY.store(ptr::from_ref(&*registry).cast_mut(), Ordering::Release);
        registry
    }

    /// What the providers were asked since the last look.
    fn notes(&self) -> String {
        // SAFETY: gives a C string; the turn keeps other threads away.
        let notes = unsafe { CStr::from_ptr((self.notes)()) };
        notes.to_str().unwrap().to_owned()
    }
}

fn line(name: &str, safety: &str, library: &str) -> String {
    format!("{name} u2.0 {safety} default {library} test.1.0 \"eth0 1\" \"\"\n")
}

fn open(registry: &Registry, name: &CStr, thread_safe: bool) -> Result<usize> {
    let mut ia = ptr::null_mut();
    let mut evd = ptr::null_mut();
    // SAFETY: a C string and locals.
    let opened = unsafe { registry.open(name.as_ptr(), 8, &mut evd, &mut ia, 2, 0, thread_safe) };
    assert_eq!(opened?, DAT_SUCCESS);
    Ok(ia.addr())
}

fn close(registry: &Registry, ia: usize) {
    // SAFETY: no other thread uses the IA.
    let closed =
        unsafe { registry.close(ptr::without_provenance_mut(ia), DAT_CLOSE_GRACEFUL_FLAG) };
    assert_eq!(closed, Ok(DAT_SUCCESS));
}

#[test]
fn a_provider_is_initialised_per_entry_and_again_after_the_last_close() {
    let (host, dir) = (Host::get(), Dir::new());
    let library = dir.library(Some("provider.c"), "libprovider.so");
    let lines = line("a", "nonthreadsafe", &library) + &line("b", "threadsafe", &library);
    let registry = host.registry(&dir, &lines);
    // Foreign providers answer for what their entry says, and are not even loaded for anything else.
    assert_eq!(open(&registry, c"a", true), Err(NOT_REGISTERED));
    assert_eq!(host.notes(), "");
    assert_eq!(open(&registry, c"a", false), Ok(1));
    assert_eq!(host.notes(), "init a eth0 1;open a -;");
    assert_eq!(open(&registry, c"a", false), Ok(2));
    assert_eq!(host.notes(), "open a -;");
    assert_eq!(open(&registry, c"b", true), Ok(3));
    assert_eq!(host.notes(), "init b eth0 1;open b -;");
    close(&registry, 1);
    assert_eq!(host.notes(), "close ia graceful;");
    close(&registry, 2);
    assert_eq!(host.notes(), "close ia graceful;fini a -;");
    close(&registry, 3);
    assert_eq!(host.notes(), "close ia graceful;fini b -;");
    assert_eq!(open(&registry, c"b", true), Ok(1));
    close(&registry, 1);
    assert_eq!(
        host.notes(),
        "init b eth0 1;open b -;close ia graceful;fini b -;"
    );
}

/// OpenFabrics' providers do not wait longer for their thread than until it says that it ends.
#[test]
fn a_thread_that_returns_after_fini_finds_its_code() {
    let (host, dir) = (Host::get(), Dir::new());
    let library = dir.library(Some("provider.c"), "libprovider.so");
    let lines = line("a", "nonthreadsafe", &library).replace("eth0 1", "late");
    let registry = host.registry(&dir, &lines);
    let ia = open(&registry, c"a", false).unwrap();
    close(&registry, ia);
    let mut notes = host.notes();
    while !notes.ends_with("thread - -;") {
        std::thread::yield_now();
        notes += &host.notes();
    }
    assert_eq!(
        notes,
        "init a late;open a -;close ia graceful;fini a -;thread - -;"
    );
}

/// That of OpenFabrics crashes when it is finished after an init function that has failed.
#[test]
fn a_provider_that_registers_nothing_is_not_finished() {
    let (host, dir) = (Host::get(), Dir::new());
    let library = dir.library(Some("provider.c"), "libprovider.so");
    let lines = line("a", "nonthreadsafe", &library).replace("eth0 1", "fail");
    let registry = host.registry(&dir, &(lines + &line("a", "nonthreadsafe", &library)));
    // The next entry serves.
    let ia = open(&registry, c"a", false).unwrap();
    assert_eq!(host.notes(), "init a fail;init a eth0 1;open a -;");
    close(&registry, ia);
    assert_eq!(host.notes(), "close ia graceful;fini a -;");
}

#[test]
fn the_next_entry_serves_when_a_library_is_no_provider() {
    let (host, dir) = (Host::get(), Dir::new());
    let empty = dir.library(None, "libempty.so");
    let library = dir.library(Some("provider.c"), "libprovider.so");
    let lines = line("a", "threadsafe", &empty) + &line("a", "threadsafe", &library);
    let registry = host.registry(&dir, &lines);
    for _ in 0..2 {
        assert_eq!(open(&registry, c"a", true), Ok(1));
        close(&registry, 1);
        assert!(host.notes().starts_with("init a eth0 1;open a -;"));
    }
}

#[test]
fn a_library_of_openfabrics_that_is_installed_is_loaded() {
    let (host, dir) = (Host::get(), Dir::new());
    let library = dir.library(Some("provider.c"), "libdaplofa.so.2");
    let registry = host.registry(&dir, &line("a", "nonthreadsafe", &library));
    assert_eq!(open(&registry, c"a", true), Err(NOT_REGISTERED));
    assert_eq!(host.notes(), "unload - -;");
    let ia = open(&registry, c"a", false).unwrap();
    assert_eq!(host.notes(), "init a eth0 1;open a -;");
    close(&registry, ia);
}

#[test]
fn a_query_of_extensions_keeps_the_provider_of_its_own_name() {
    let (host, dir) = (Host::get(), Dir::new());
    let library = dir.library(Some("provider.c"), "libprovider.so");
    let lines = line("a", "nonthreadsafe", &library) + &line("b", "nonthreadsafe", &library);
    let registry = host.registry(&dir, &lines);
    for name in [c"a", c"b", c"b"] {
        registry.extension_open(name).unwrap();
    }
    assert_eq!(host.notes(), "init a eth0 1;init b eth0 1;");
    registry.extension_close(c"b");
    assert_eq!(host.notes(), "");
    registry.extension_close(c"b");
    assert_eq!(host.notes(), "fini b -;");
    // None of that name is left.
    registry.extension_close(c"b");
    assert_eq!(host.notes(), "");
    registry.extension_close(c"a");
    assert_eq!(host.notes(), "fini a -;");
}
