//! A scripted provider for the tests of the registry.
//!
//! Its init function gets its registry from a thread-local pointer, as C passes none; so every test
//! has a registry of its own.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use super::config::{Entry, Origin, Target};
use super::key::Key;
use super::{Adapters, Builtin, BuiltinEntry, BuiltinIa, Registry, Setup, parse};
use crate::abi::common::{
    DAT_CLOSE_FLAGS, DAT_EVD_HANDLE, DAT_IA_HANDLE, DAT_NAME_PTR, DAT_PROVIDER_INFO, DAT_RETURN,
    DAT_SUCCESS,
};
use crate::abi::v2;
use crate::error::{Error, Version};

/// The calls of a provider of these tests, and the results that it is to return.
#[derive(Default)]
pub struct Script {
    pub registry: Cell<*const Registry>,
    /// Every call, in order.
    calls: RefCell<Vec<String>>,
    /// Results of the next calls of the three functions.
    pub open_result: Cell<DAT_RETURN>,
    pub query_result: Cell<DAT_RETURN>,
    pub close_result: Cell<DAT_RETURN>,
    /// The IA handle that the next open gives.
    pub handle: Cell<usize>,
    /// The next opens give an asynchronous EVD, whether they fail or not.
    pub writes_evd: Cell<bool>,
    /// `extension_supported` of the 2.0 attributes.
    pub extension: Cell<u32>,
    /// The init function does not register.
    pub skip_add: Cell<bool>,
    /// The fini function does not remove.
    pub skip_remove: Cell<bool>,
    /// The init function calls back into the static registry.
    pub reenter: Cell<Option<Error>>,
}

thread_local! {
    pub static SCRIPT: Script = Script { handle: Cell::new(0x1000), ..Script::default() };
}

fn note(call: impl Into<String>) {
    SCRIPT.with(|script| script.calls.borrow_mut().push(call.into()));
}

/// The calls since the last call of this function.
pub fn calls() -> Vec<String> {
    SCRIPT.with(|script| script.calls.take())
}

unsafe extern "C" fn ia_open(
    name: DAT_NAME_PTR,
    qlen: c_int,
    evd: *mut DAT_EVD_HANDLE,
    ia: *mut DAT_IA_HANDLE,
) -> DAT_RETURN {
    // SAFETY: the registry passes a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    note(format!("open {name} {qlen} {}", evd.is_null()));
    SCRIPT.with(|script| {
        if !evd.is_null() && script.writes_evd.get() {
            // SAFETY: not NULL, so valid for a read and a write.
            let given = unsafe { evd.replace(ptr::without_provenance_mut(script.handle.get())) };
            if !given.is_null() {
                note("an EVD is given");
            }
        }
        // SAFETY: the registry passes a valid pointer.
        unsafe { ia.write(ptr::without_provenance_mut(script.handle.get())) };
        script.open_result.get()
    })
}

unsafe extern "C" fn ia_query_v2(
    _ia: DAT_IA_HANDLE,
    _evd: *mut DAT_EVD_HANDLE,
    ia_mask: u64,
    ia_attr: *mut v2::DAT_IA_ATTR,
    provider_mask: u64,
    provider_attr: *mut v2::DAT_PROVIDER_ATTR,
) -> DAT_RETURN {
    SCRIPT.with(|script| {
        if ia_mask != 0 {
            // SAFETY: the registry passes a valid pointer with the mask.
            unsafe { (*ia_attr).extension_supported = script.extension.get() };
            return DAT_SUCCESS;
        }
        assert_eq!(provider_mask, v2::DAT_PROVIDER_FIELD_ALL);
        assert!(!provider_attr.is_null());
        note("query");
        script.query_result.get()
    })
}

unsafe extern "C" fn ia_close(ia: DAT_IA_HANDLE, flags: DAT_CLOSE_FLAGS) -> DAT_RETURN {
    note(format!("close {:#x} {flags}", ia.addr()));
    SCRIPT.with(|script| script.close_result.get())
}

/// A 2.0 table with the three functions that the registry calls.
pub fn table() -> *const c_void {
    thread_local! {
        static TABLE: &'static v2::DAT_PROVIDER = {
            // SAFETY: every field is a pointer or an optional function: zero is "none".
            let mut table: v2::DAT_PROVIDER = unsafe { MaybeUninit::zeroed().assume_init() };
            table.device_name = c"test".as_ptr();
            table.ia_open_func = Some(ia_open);
            table.ia_query_func = Some(ia_query_v2);
            table.ia_close_func = Some(ia_close);
            Box::leak(Box::new(table))
        };
    }
    TABLE.with(|table| ptr::from_ref(*table).cast())
}

fn init(entry: &BuiltinEntry<'_>) {
    let info = ptr::from_ref(entry.info);
    // SAFETY: the registry passes a key.
    let key = unsafe { Key::from_info(info) }.unwrap();
    note(format!("init {key} {}", entry.params.to_string_lossy()));
    SCRIPT.with(|script| {
        // SAFETY: the test keeps its registry alive.
        let registry = unsafe { &*script.registry.get() };
        if let Err(error) = registry.statics.open(&key, &registry.dynamic) {
            script.reenter.set(Some(error));
        }
        if !script.skip_add.get() {
            // SAFETY: the table is leaked; the key is as given.
            let _ = unsafe { registry.add_provider(table(), info) };
        }
    });
}

unsafe extern "C" fn fini(info: *const DAT_PROVIDER_INFO) {
    // SAFETY: the registry passes a key.
    note(format!("fini {}", unsafe { Key::from_info(info) }.unwrap()));
    SCRIPT.with(|script| {
        if !script.skip_remove.get() {
            // SAFETY: the test keeps its registry alive; the key is as given.
            let _ = unsafe { (*script.registry.get()).remove_provider(table(), info) };
        }
    });
}

fn probe(params: &str) -> std::result::Result<String, String> {
    match params {
        "bad" => Err("no netdev bad".into()),
        params => Ok(format!("address of {params}")),
    }
}

fn discover() -> Vec<BuiltinIa> {
    vec![BuiltinIa {
        name: "soft".into(),
        params: String::new(),
    }]
}

pub const SOFT: Builtin = Builtin {
    adapters: Adapters {
        name: "soft",
        probe,
        discover,
    },
    init,
    fini,
    extensions: || None,
};
/// The same under the name of the verbs provider.
pub const VERBS: Builtin = Builtin {
    adapters: Adapters {
        name: "verbs",
        ..SOFT.adapters
    },
    ..SOFT
};
pub static BUILTINS: [Builtin; 1] = [SOFT];
/// A setup with the soft provider of these tests.
pub fn setup(version: Version) -> Setup {
    Setup {
        version,
        builtins: &BUILTINS,
    }
}

/// The entry of a line.
pub fn entry(line: &str) -> Entry {
    let line = parse::parse(line.as_bytes()).next().unwrap().1.unwrap();
    let library = line.library.to_str().unwrap();
    Entry {
        target: match library.strip_prefix("builtin:") {
            Some(name) => Target::Builtin(name.into()),
            None => Target::Library(line.library),
        },
        key: Key {
            name: line.name,
            major: line.major,
            minor: line.minor,
            thread_safe: line.thread_safe,
        },
        ia_params: line.ia_params,
        origin: Origin::File("test".into(), 1),
    }
}

/// A 2.0 registry with entries `NAME LIBRARY SAFETY`.
pub fn registry_of(setup: Setup, entries: &[(&str, &str, &str)]) -> Box<Registry> {
    let entries = entries.iter().map(|(name, library, safety)| {
        entry(&format!(
            "{name} u2.0 {safety} default {library} v.1.0 lo \"\""
        ))
    });
    let registry = Box::new(Registry::new(setup, entries.collect()).unwrap());
    SCRIPT.with(|script| script.registry.set(&*registry));
    registry
}

pub fn registry(entries: &[(&str, &str, &str)]) -> Box<Registry> {
    registry_of(setup(Version::V2), entries)
}
