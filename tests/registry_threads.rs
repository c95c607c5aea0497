//! Many threads that open and close the same interface adapter: the provider is initialised
//! and finished in pairs, and no two IAs that are open have one handle.

use std::collections::HashSet;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

use dat_core::abi::common::{
    DAT_CLOSE_ABRUPT_FLAG, DAT_CLOSE_FLAGS, DAT_EVD_HANDLE, DAT_IA_HANDLE, DAT_NAME_PTR,
    DAT_PROVIDER_INFO, DAT_RETURN, DAT_SUCCESS,
};
use dat_core::abi::v2::DAT_PROVIDER;
use dat_core::error::{Error, Subtype, Version};
use dat_core::registry::{Adapters, Builtin, BuiltinEntry, BuiltinIa, Registry, Setup, config};

const THREADS: usize = 8;
const ROUNDS: usize = 300;

static BUILTINS: [Builtin; 1] = [Builtin {
    adapters: Adapters {
        name: "soft",
        probe: |_| Ok(String::new()),
        discover: || {
            vec![BuiltinIa {
                name: "soft".into(),
                params: String::new(),
            }]
        },
    },
    init,
    fini,
    extensions: || None,
}];

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    let setup = Setup {
        version: Version::V2,
        builtins: &BUILTINS,
    };
    let entries = config::entries(&setup, None, &["/no/such/dat.conf"]);
    Registry::new(setup, entries.unwrap()).unwrap()
});

/// A provider table; constant once made.
struct Table(DAT_PROVIDER);

// SAFETY: function pointers, and pointers that are NULL.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    // SAFETY: every field is a pointer or an optional function: zero is "none".
    let mut table: DAT_PROVIDER = unsafe { MaybeUninit::zeroed().assume_init() };
    table.ia_open_func = Some(ia_open);
    table.ia_close_func = Some(ia_close);
    Table(table)
});

/// How often the provider was initialised less how often it was finished: 0 or 1 for a key.
static ALIVE: AtomicUsize = AtomicUsize::new(0);
static INITS: AtomicUsize = AtomicUsize::new(0);
/// IAs open at the provider.
static OPEN: AtomicUsize = AtomicUsize::new(0);

fn init(entry: &BuiltinEntry<'_>) {
    let info = entry.info;
    assert_eq!(ALIVE.fetch_add(1, Ordering::SeqCst), 0);
    INITS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the table is a static, the key the registry's.
    let added = unsafe { REGISTRY.add_provider(ptr::from_ref(&TABLE.0).cast(), info) };
    assert_eq!(added, Ok(()));
}

unsafe extern "C" fn fini(info: *const DAT_PROVIDER_INFO) {
    assert_eq!(OPEN.load(Ordering::SeqCst), 0);
    assert_eq!(ALIVE.fetch_sub(1, Ordering::SeqCst), 1);
    // SAFETY: as in `init`.
    let removed = unsafe { REGISTRY.remove_provider(ptr::from_ref(&TABLE.0).cast(), info) };
    assert_eq!(removed, Ok(()));
}

unsafe extern "C" fn ia_open(
    _name: DAT_NAME_PTR,
    _qlen: c_int,
    _evd: *mut DAT_EVD_HANDLE,
    ia: *mut DAT_IA_HANDLE,
) -> DAT_RETURN {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    assert_eq!(ALIVE.load(Ordering::SeqCst), 1);
    OPEN.fetch_add(1, Ordering::SeqCst);
    let address = 0x1_0000 * NEXT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the registry passes a valid pointer.
    unsafe { ia.write(ptr::without_provenance_mut(address)) };
    DAT_SUCCESS
}

unsafe extern "C" fn ia_close(_ia: DAT_IA_HANDLE, _flags: DAT_CLOSE_FLAGS) -> DAT_RETURN {
    assert_eq!(ALIVE.load(Ordering::SeqCst), 1);
    OPEN.fetch_sub(1, Ordering::SeqCst);
    DAT_SUCCESS
}

#[test]
fn opens_and_closes_in_parallel() {
    let open_now = Mutex::new(HashSet::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let (mut ia, mut evd) = (ptr::null_mut(), ptr::null_mut());
                    let name = c"soft".as_ptr();
                    // SAFETY: a C string and locals.
                    let opened = unsafe { REGISTRY.open(name, 8, &mut evd, &mut ia, 2, 0, false) };
                    assert_eq!(opened, Ok(DAT_SUCCESS));
                    assert!(open_now.lock().unwrap().insert(ia.addr()));
                    assert!(open_now.lock().unwrap().remove(&ia.addr()));
                    // SAFETY: this thread alone has the handle.
                    let closed = unsafe { REGISTRY.close(ia, DAT_CLOSE_ABRUPT_FLAG) };
                    assert_eq!(closed, Ok(DAT_SUCCESS));
                }
            });
        }
    });
    assert_eq!(ALIVE.load(Ordering::SeqCst), 0);
    assert_eq!(OPEN.load(Ordering::SeqCst), 0);
    assert!((1..=THREADS * ROUNDS).contains(&INITS.load(Ordering::SeqCst)));
    // SAFETY: nothing is open, so it is refused.
    let closed = unsafe { REGISTRY.close(ptr::without_provenance_mut(1), DAT_CLOSE_ABRUPT_FLAG) };
    assert_eq!(closed, Err(Error::handle(Subtype::HandleIa)));
}
