//! Two threads that open an IA at the same time, whose provider refuses.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize};
use std::sync::{Barrier, LazyLock};

use super::super::Registry;
use super::super::fake::{SOFT, VERBS, entry};
use super::*;
use crate::abi::common::{
    DAT_EVD_HANDLE, DAT_IA_HANDLE, DAT_INSUFFICIENT_RESOURCES, DAT_NAME_PTR, DAT_PROVIDER_INFO,
    DAT_RETURN, DAT_SUCCESS,
};
use crate::abi::v2;
use crate::error::Version;

/// The registry of the test, which is never freed.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());
/// How often each provider was called to open an IA.
static REFUSED: AtomicUsize = AtomicUsize::new(0);
static SERVED: AtomicUsize = AtomicUsize::new(0);

/// Refuses, the first two threads only when both are here.
unsafe extern "C" fn refuse(
    _name: DAT_NAME_PTR,
    _qlen: c_int,
    _evd: *mut DAT_EVD_HANDLE,
    _ia: *mut DAT_IA_HANDLE,
) -> DAT_RETURN {
    static BOTH: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));
    if REFUSED.fetch_add(1, Ordering::Relaxed) < 2 {
        BOTH.wait();
    }
    DAT_INSUFFICIENT_RESOURCES
}

unsafe extern "C" fn serve(
    _name: DAT_NAME_PTR,
    _qlen: c_int,
    _evd: *mut DAT_EVD_HANDLE,
    ia: *mut DAT_IA_HANDLE,
) -> DAT_RETURN {
    let number = SERVED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the registry passes a valid pointer.
    unsafe { ia.write(ptr::without_provenance_mut(0x1000 + 8 * number)) };
    DAT_SUCCESS
}

type Open = unsafe extern "C" fn(
    DAT_NAME_PTR,
    c_int,
    *mut DAT_EVD_HANDLE,
    *mut DAT_IA_HANDLE,
) -> DAT_RETURN;

fn table(open: Open) -> *const v2::DAT_PROVIDER {
    // SAFETY: every field is a pointer or an optional function: zero is "none".
    let mut table: v2::DAT_PROVIDER = unsafe { MaybeUninit::zeroed().assume_init() };
    table.ia_open_func = Some(open);
    Box::leak(Box::new(table))
}

fn add(open: Open, entry: &BuiltinEntry<'_>) {
    // SAFETY: never freed; the table is leaked, the key is as given.
    let added = unsafe {
        let registry = &*REGISTRY.load(Ordering::Relaxed);
        registry.add_provider(table(open).cast::<c_void>(), entry.info)
    };
    added.unwrap();
}

unsafe extern "C" fn fini(_info: *const DAT_PROVIDER_INFO) {}

static BUILTINS: [Builtin; 2] = [
    Builtin {
        init: |entry| add(refuse, entry),
        fini,
        ..VERBS
    },
    Builtin {
        init: |entry| add(serve, entry),
        fini,
        ..SOFT
    },
];

fn open(name: &CStr) -> std::result::Result<DAT_RETURN, Error> {
    let (mut ia, mut evd) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: never freed; a C string and two locals.
    unsafe {
        let registry = &*REGISTRY.load(Ordering::Relaxed);
        registry.open(name.as_ptr(), 8, &mut evd, &mut ia, 2, 0, true)
    }
}

#[test]
fn an_entry_for_every_name_serves_all_threads_whose_provider_refuses() {
    let lines = [
        r#"a u2.0 threadsafe default builtin:verbs v.1.0 "" """#,
        r#"* u2.0 threadsafe default builtin:soft v.1.0 "" """#,
    ];
    let setup = Setup {
        version: Version::V2,
        builtins: &BUILTINS,
    };
    let registry = Registry::new(setup, lines.map(entry).into()).unwrap();
    REGISTRY.store(Box::leak(Box::new(registry)), Ordering::Relaxed);
    std::thread::scope(|s| {
        let threads = [(); 2].map(|()| s.spawn(|| open(c"a")));
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Ok(DAT_SUCCESS));
        }
    });
    // None has tried the entry again that the other one had given up.
    assert_eq!(REFUSED.load(Ordering::Relaxed), 2);
    assert_eq!(SERVED.load(Ordering::Relaxed), 2);
    assert_eq!(open(c"a"), Ok(DAT_SUCCESS));
    assert_eq!(REFUSED.load(Ordering::Relaxed), 2);
}
