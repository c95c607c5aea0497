//! The registry's functions, condition by condition of their specification, with a scripted
//! provider.

use std::ffi::{CString, c_int};
use std::ptr;

use super::fake::{SCRIPT, SOFT, VERBS, calls, entry, registry, registry_of, setup, table};
use super::*;
use crate::abi::common::{DAT_CLOSE_ABRUPT_FLAG, DAT_INSUFFICIENT_RESOURCES};
use crate::abi::{v1, v2};

/// Opens `name` 2.0; the result and the handle.
fn open(registry: &Registry, name: &str, thread_safe: bool) -> (Result<DAT_RETURN>, usize) {
    let name = CString::new(name).unwrap();
    let mut ia = ptr::without_provenance_mut(0xdead);
    let mut evd = ptr::null_mut();
    // SAFETY: all pointers are of locals.
    let result = unsafe { registry.open(name.as_ptr(), 8, &mut evd, &mut ia, 2, 0, thread_safe) };
    (result, ia.addr())
}

fn close(registry: &Registry, ia: usize) -> Result<DAT_RETURN> {
    // SAFETY: no other thread is in a call on the IA.
    unsafe { registry.close(ptr::without_provenance_mut(ia), DAT_CLOSE_ABRUPT_FLAG) }
}

static WITH_VERBS: [Builtin; 2] = [SOFT, VERBS];

const NOT_REGISTERED: Error = dynamic::NOT_REGISTERED;
const UNTOUCHED: usize = 0xdead;

#[test]
fn arguments_of_open() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    let mut ia = ptr::null_mut();
    let long = CString::new("n".repeat(256)).unwrap();
    for name in [ptr::null(), long.as_ptr()] {
        // SAFETY: a NULL or a C string; `ia` is a local.
        let result = unsafe { registry.open(name, 8, ptr::null_mut(), &mut ia, 2, 0, false) };
        assert_eq!(result, Err(Error::arg(Subtype::Arg1)));
    }
    let name = c"a".as_ptr();
    // SAFETY: a C string and NULL.
    let result = unsafe { registry.open(name, 8, ptr::null_mut(), ptr::null_mut(), 2, 0, false) };
    assert_eq!(result, Err(Error::handle(Subtype::HandleIa)));
    assert_eq!(calls(), [""; 0]);
}

#[test]
fn keys_are_compared_exactly() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    let mut ia = ptr::null_mut();
    for (name, major, minor) in [(c"b", 2, 0), (c"a", 2, 1), (c"a", 1, 2), (c"A", 2, 0)] {
        // SAFETY: a C string and a local.
        let result = unsafe {
            registry.open(
                name.as_ptr(),
                8,
                ptr::null_mut(),
                &mut ia,
                major,
                minor,
                true,
            )
        };
        assert_eq!(result, Err(NOT_REGISTERED));
    }
    assert_eq!(calls(), [""; 0]);
}

#[test]
fn one_init_for_many_opens_and_one_fini_at_the_end() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    let (result, first) = open(&registry, "a", true);
    assert_eq!((result, first), (Ok(DAT_SUCCESS), 1));
    let (_, second) = open(&registry, "a", true);
    assert_eq!(second, 2);
    assert!(registry.opens.foreign());
    assert_eq!(close(&registry, first), Ok(DAT_SUCCESS));
    assert_eq!(
        close(&registry, first),
        Err(Error::handle(Subtype::HandleIa))
    );
    assert_eq!(close(&registry, second), Ok(DAT_SUCCESS));
    assert_eq!(
        calls(),
        [
            "init `a' u2.0 threadsafe lo",
            "open a 8 false",
            "open a 8 false",
            "query",
            "close 0x1000 0",
            "query",
            "close 0x1000 0",
            "fini `a' u2.0 threadsafe",
        ]
    );
    assert!(!registry.opens.foreign());
    assert_eq!(open(&registry, "a", true).1, 1);
    assert_eq!(calls()[0], "init `a' u2.0 threadsafe lo");
}

#[test]
fn providers_of_ours_answer_for_both_values_of_thread_safety() {
    let registry = registry(&[("a", "builtin:soft", "nonthreadsafe")]);
    for thread_safe in [false, true] {
        let (result, ia) = open(&registry, "a", thread_safe);
        assert_eq!(result, Ok(DAT_SUCCESS));
        assert_eq!(close(&registry, ia), Ok(DAT_SUCCESS));
    }
    assert_eq!(calls()[4], "fini `a' u2.0 nonthreadsafe");
    assert_eq!(registry.statics.keys().count(), 1);
}

#[test]
fn a_failed_open_leaves_nothing_behind() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    let of_provider = 0x8003_abcd;
    SCRIPT.with(|script| script.open_result.set(of_provider));
    assert_eq!(open(&registry, "a", true), (Ok(of_provider), UNTOUCHED));
    assert_eq!(calls().last().unwrap(), "fini `a' u2.0 threadsafe");
    SCRIPT.with(|script| {
        script.open_result.set(DAT_SUCCESS);
        script.handle.set(0);
    });
    let (result, ia) = open(&registry, "a", true);
    assert_eq!((result, ia), (Err(Kind::InternalError.into()), UNTOUCHED));
    assert_eq!(calls().last().unwrap(), "fini `a' u2.0 threadsafe");
    assert!(!registry.opens.foreign());
}

#[test]
fn a_refused_close_changes_nothing() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    let (_, ia) = open(&registry, "a", true);
    calls();
    SCRIPT.with(|script| script.query_result.set(0x8004_0000));
    assert_eq!(close(&registry, ia), Ok(0x8004_0000));
    assert_eq!(calls(), ["query"]);
    SCRIPT.with(|script| {
        script.query_result.set(DAT_SUCCESS);
        script.close_result.set(0x8007_0050);
    });
    assert_eq!(close(&registry, ia), Ok(0x8007_0050));
    assert_eq!(calls(), ["query", "close 0x1000 0"]);
    SCRIPT.with(|script| script.close_result.set(DAT_SUCCESS));
    assert_eq!(close(&registry, ia), Ok(DAT_SUCCESS));
    assert_eq!(calls().last().unwrap(), "fini `a' u2.0 threadsafe");
}

#[test]
fn a_provider_that_does_not_register_is_not_found() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    SCRIPT.with(|script| script.skip_add.set(true));
    assert_eq!(open(&registry, "a", true), (Err(NOT_REGISTERED), UNTOUCHED));
    let expected = ["init `a' u2.0 threadsafe lo", "fini `a' u2.0 threadsafe"];
    assert_eq!(calls(), expected);
}

#[test]
fn a_registration_left_behind_goes_with_its_provider() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    SCRIPT.with(|script| script.skip_remove.set(true));
    let (_, ia) = open(&registry, "a", true);
    assert_eq!(close(&registry, ia), Ok(DAT_SUCCESS));
    assert_eq!(registry.dynamic.get(&entry(LINE).key), None);
    assert_eq!(open(&registry, "a", true).0, Ok(DAT_SUCCESS));
}

const LINE: &str = "a u2.0 threadsafe default builtin:soft v.1.0 lo \"\"";

#[test]
fn a_name_that_the_program_registered_itself() {
    let registry = registry(&[]);
    let info = entry(LINE).key.to_info();
    // SAFETY: a leaked table and a local.
    assert_eq!(unsafe { registry.add_provider(table(), &info) }, Ok(()));
    let (result, ia) = open(&registry, "a", true);
    assert_eq!((result, ia), (Ok(DAT_SUCCESS), 1));
    // SAFETY: as above.
    let remove = || unsafe { registry.remove_provider(table(), &info) };
    assert_eq!(remove(), Err(Kind::ProviderInUse.into()));
    assert_eq!(close(&registry, ia), Ok(DAT_SUCCESS));
    assert_eq!(remove(), Ok(()));
    assert_eq!(calls(), ["open a 8 false", "query", "close 0x1000 0"]);
}

#[test]
fn the_program_s_registration_survives_the_entry_s_provider() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    let info = entry(LINE).key.to_info();
    SCRIPT.with(|script| script.skip_remove.set(true));
    // SAFETY: a leaked table and a local.
    assert_eq!(unsafe { registry.add_provider(table(), &info) }, Ok(()));
    let (_, ia) = open(&registry, "a", true);
    assert_eq!(close(&registry, ia), Ok(DAT_SUCCESS));
    assert!(registry.dynamic.get(&entry(LINE).key).is_some());
}

#[test]
fn calls_from_inside_init_are_refused() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    open(&registry, "a", true).0.unwrap();
    let refused = SCRIPT.with(|script| script.reenter.get());
    assert_eq!(refused, Some(Kind::InvalidState.into()));
}

#[test]
fn the_first_usable_entry_of_a_chain_serves() {
    let registry = registry(&[
        ("a", "/no/such/library.so", "threadsafe"),
        ("a", "builtin:none", "threadsafe"),
        ("a", "builtin:soft", "threadsafe"),
        ("a", "/never/tried.so", "threadsafe"),
    ]);
    assert_eq!(open(&registry, "a", true).0, Ok(DAT_SUCCESS));
    assert_eq!(registry.statics.keys().count(), 1);
}

#[test]
fn entries_of_the_other_thread_safety_come_last() {
    let registry = registry(&[
        ("a", "builtin:soft", "threadsafe"),
        ("a", "/no/such/library.so", "nonthreadsafe"),
        ("b", "/no/such/library.so", "threadsafe"),
    ]);
    assert_eq!(open(&registry, "a", false).0, Ok(DAT_SUCCESS));
    assert_eq!(calls()[0], "init `a' u2.0 nonthreadsafe lo");
    assert_eq!(open(&registry, "b", false).0, Err(NOT_REGISTERED));
}

#[test]
fn openfabrics_libraries_that_are_not_installed() {
    let entries = [("a", "/no/such/libdaplofa.so.2", "nonthreadsafe")];
    let registry_without = registry(&entries);
    assert_eq!(open(&registry_without, "a", false).0, Err(NOT_REGISTERED));
    let setup = Setup {
        version: Version::V2,
        builtins: &WITH_VERBS,
    };
    let registry = registry_of(setup, &entries);
    for thread_safe in [false, true] {
        let (result, ia) = open(&registry, "a", thread_safe);
        assert_eq!(result, Ok(DAT_SUCCESS));
        assert_eq!(close(&registry, ia), Ok(DAT_SUCCESS));
    }
    assert_eq!(calls()[0], "init `a' u2.0 nonthreadsafe lo");
}

#[test]
fn builtin_providers_speak_one_version() {
    let line = LINE.replace("u2.0", "u1.2");
    let registry = Registry::new(setup(Version::V2), vec![entry(&line)]).unwrap();
    let mut ia = ptr::null_mut();
    // SAFETY: a C string and a local.
    let result = unsafe { registry.open(c"a".as_ptr(), 8, ptr::null_mut(), &mut ia, 1, 2, true) };
    assert_eq!(result, Err(NOT_REGISTERED));
    assert_eq!(calls(), [""; 0]);
}

#[test]
fn relaxed_ordering_prefix_in_1_2_only() {
    for (version, api, result) in [
        (Version::V1, (1, 2), Ok(DAT_SUCCESS)),
        (Version::V2, (2, 0), Err(NOT_REGISTERED)),
    ] {
        let line = LINE.replace("u2.0", &format!("u{}.{}", api.0, api.1));
        let registry = Registry::new(setup(version), vec![entry(&line)]).unwrap();
        SCRIPT.with(|script| script.registry.set(&registry));
        let mut ia = ptr::null_mut();
        let name = c"RO_AWARE_a".as_ptr();
        // SAFETY: a C string and a local. The 2.0 table serves 1.2 here as well: only the
        // first functions are called, and they agree.
        let opened =
            unsafe { registry.open(name, 8, ptr::null_mut(), &mut ia, api.0, api.1, false) };
        assert_eq!(opened, result);
    }
    assert_eq!(calls(), ["init `a' u1.2 nonthreadsafe lo", "open a 8 true"]);
}

#[test]
fn registration_arguments() {
    let registry = registry(&[]);
    let info = entry(LINE).key.to_info();
    let mut endless = info;
    endless.ia_name = [1; 256];
    // SAFETY: NULL, a leaked table, or locals.
    unsafe {
        let (arg1, arg2) = (Error::arg(Subtype::Arg1), Error::arg(Subtype::Arg2));
        assert_eq!(registry.add_provider(ptr::null(), &info), Err(arg1));
        assert_eq!(registry.add_provider(table(), ptr::null()), Err(arg2));
        assert_eq!(registry.add_provider(table(), &endless), Err(arg2));
        assert_eq!(registry.add_provider(ptr::null(), ptr::null()), Err(arg1));
        assert_eq!(registry.remove_provider(ptr::null(), &info), Err(arg1));
        assert_eq!(registry.remove_provider(table(), ptr::null()), Err(arg2));
        assert_eq!(
            registry.remove_provider(table(), &info),
            Err(NOT_REGISTERED)
        );
        assert_eq!(registry.add_provider(table(), &info), Ok(()));
        let again = registry.add_provider(table(), &info);
        assert_eq!(again, Err(Kind::ProviderAlreadyRegistered.into()));
        // The table of a removal need only not be NULL.
        let other = ptr::without_provenance(1);
        assert_eq!(registry.remove_provider(other, &info), Ok(()));
    }
}

/// `dat_registry_list_providers` with a count that starts at -7.
fn list(
    registry: &Registry,
    max: c_int,
    slots: &mut [*mut DAT_PROVIDER_INFO],
) -> (Result<()>, c_int) {
    let mut count = -7;
    // SAFETY: no test asks for more than it has slots for, or there are fewer entries.
    let result = unsafe { registry.list_providers(max, &mut count, slots.as_mut_ptr()) };
    (result, count)
}

#[test]
fn listing_row_by_row() {
    let registry = registry(&[
        ("a", "builtin:soft", "threadsafe"),
        ("b", "lib.so", "nonthreadsafe"),
        ("a", "lib.so", "threadsafe"),
        ("a", "lib.so", "nonthreadsafe"),
    ]);
    let blank = entry(&LINE.replace("a u2.0", "blank u9.9")).key.to_info();
    let mut infos = [blank; 5];
    let mut slots = infos.each_mut().map(ptr::from_mut);
    let key = |info: &DAT_PROVIDER_INFO| {
        // SAFETY: a reference.
        unsafe { Key::from_info(info) }.unwrap().to_string()
    };

    // SAFETY: NULL is allowed.
    let result = unsafe { registry.list_providers(5, ptr::null_mut(), slots.as_mut_ptr()) };
    assert_eq!(result, Err(Error::arg(Subtype::Arg2)));
    assert_eq!(
        list(&registry, 0, &mut slots),
        (Err(Error::arg(Subtype::Arg1)), 3)
    );
    for (max, code, expected) in [
        (0, Subtype::Arg1, 3),
        (5, Subtype::Arg3, 3),
        (-1, Subtype::Arg1, 3),
    ] {
        let mut count = -7;
        // SAFETY: a NULL list is allowed.
        let result = unsafe { registry.list_providers(max, &mut count, ptr::null_mut()) };
        assert_eq!((result, count), (Err(Error::arg(code)), expected));
    }
    assert_eq!(
        list(&registry, -1, &mut slots),
        (Err(Error::arg(Subtype::Arg1)), 3)
    );
    assert_eq!(list(&registry, 5, &mut slots), (Ok(()), 3));
    assert_eq!(
        infos.each_ref().map(key)[..4],
        [
            "`a' u2.0 threadsafe",
            "`b' u2.0 nonthreadsafe",
            "`a' u2.0 nonthreadsafe",
            "`blank' u9.9 threadsafe",
        ]
    );
    let mut infos = [blank; 5];
    let mut slots = infos.each_mut().map(ptr::from_mut);
    assert_eq!(list(&registry, 2, &mut slots), (Ok(()), 2));
    assert_eq!(key(&infos[2]), "`blank' u9.9 threadsafe");
    let mut infos = [blank; 5];
    let mut slots = infos.each_mut().map(ptr::from_mut);
    slots[1] = ptr::null_mut();
    assert_eq!(
        list(&registry, 5, &mut slots),
        (Err(Error::arg(Subtype::Arg3)), 3)
    );
    assert_eq!(key(&infos[0]), "`a' u2.0 threadsafe");
    assert_eq!(key(&infos[2]), "`blank' u9.9 threadsafe");
}

#[test]
fn listing_an_empty_registry() {
    let registry = registry(&[]);
    let mut slots = [ptr::null_mut()];
    assert_eq!(list(&registry, 1, &mut slots), (Ok(()), 0));
    assert_eq!(
        list(&registry, 0, &mut slots),
        (Err(Error::arg(Subtype::Arg1)), 0)
    );
}

#[test]
fn explicit_registrations_are_not_listed() {
    let registry = registry(&[]);
    let info = entry(LINE).key.to_info();
    // SAFETY: a leaked table and a local.
    unsafe { registry.add_provider(table(), &info) }.unwrap();
    assert_eq!(list(&registry, 1, &mut [ptr::null_mut()]), (Ok(()), 0));
}

#[test]
fn extensions_are_noticed() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    open(&registry, "a", true).0.unwrap();
    assert!(!registry.extensions.load(Ordering::Relaxed));
    SCRIPT.with(|script| script.extension.set(v2::DAT_EXTENSION_IB));
    let (_, ia) = open(&registry, "a", true);
    assert!(registry.extensions.load(Ordering::Relaxed));
    close(&registry, ia).unwrap();
    assert!(registry.extensions.load(Ordering::Relaxed));
    // A provider without a library has no function for extension calls without an IA.
    let error = registry.extension_open(c"a").unwrap_err();
    assert_eq!(error, Kind::NotImplemented.into());
    registry.extension_close(c"a");
    assert_eq!(registry.extension_open(c"b").unwrap_err(), NOT_REGISTERED);
}

#[test]
fn tables_of_both_versions_begin_alike() {
    // The tests above use one table for both versions, which this justifies.
    assert_eq!(
        std::mem::offset_of!(v1::DAT_PROVIDER, ia_close_func),
        std::mem::offset_of!(v2::DAT_PROVIDER, ia_close_func)
    );
}

const UNOPENABLE: DAT_RETURN = DAT_INSUFFICIENT_RESOURCES;

#[test]
fn an_entry_for_every_name_serves_what_no_entry_has() {
    let registry = registry(&[
        ("a", "builtin:soft", "threadsafe"),
        ("*", "builtin:soft", "threadsafe"),
    ]);
    let (result, ia) = open(&registry, "ofa-v2-mlx4_0-1u", false);
    assert_eq!(result, Ok(DAT_SUCCESS));
    let key = "`ofa-v2-mlx4_0-1u' u2.0 nonthreadsafe";
    assert_eq!(
        calls(),
        [&format!("init {key} lo"), "open ofa-v2-mlx4_0-1u 8 false",]
    );
    assert_eq!(close(&registry, ia), Ok(DAT_SUCCESS));
    calls();
    // Not of another version, and not in the list.
    let mut ia = ptr::null_mut();
    let name = c"b".as_ptr();
    // SAFETY: a C string and a local.
    let result = unsafe { registry.open(name, 8, ptr::null_mut(), &mut ia, 1, 2, true) };
    assert_eq!(result, Err(NOT_REGISTERED));
    assert_eq!(registry.statics.keys().count(), 1);
    assert_eq!(registry.statics.is_of_builtin(c"b"), Some(true));
}

#[test]
fn an_entry_for_every_name_serves_what_cannot_be_loaded() {
    let registry = registry(&[
        ("a", "/no/such/library.so", "threadsafe"),
        ("*", "builtin:soft", "threadsafe"),
    ]);
    assert_eq!(open(&registry, "a", true).0, Ok(DAT_SUCCESS));
    assert_eq!(calls(), ["init `a' u2.0 threadsafe lo", "open a 8 false"]);
}

#[test]
fn an_entry_for_every_name_serves_what_cannot_be_opened() {
    let entries = [
        ("a", "builtin:verbs", "threadsafe"),
        ("*", "builtin:soft", "threadsafe"),
    ];
    let setup = Setup {
        builtins: &WITH_VERBS,
        ..setup(Version::V2)
    };
    let registry = registry_of(setup, &entries);
    // Both providers of these tests are one: the second attempt has the same result, and is the last. Each finds the EVD
    // that the program has given.
    SCRIPT.with(|script| {
        script.open_result.set(UNOPENABLE);
        script.writes_evd.set(true);
    });
    assert_eq!(open(&registry, "a", true).0, Ok(UNOPENABLE));
    let once = [
        "init `a' u2.0 threadsafe lo",
        "open a 8 false",
        "fini `a' u2.0 threadsafe",
    ];
    assert_eq!(calls(), [once, once].concat());
    // The entry that could not be opened is not tried again.
    SCRIPT.with(|script| script.open_result.set(DAT_SUCCESS));
    assert_eq!(open(&registry, "a", true).0, Ok(DAT_SUCCESS));
    assert_eq!(calls(), once[..2]);
}

#[test]
fn wrong_arguments_are_no_reason_to_look_further() {
    let registry = registry(&[
        ("a", "builtin:soft", "threadsafe"),
        ("*", "builtin:soft", "threadsafe"),
    ]);
    let wrong = Error::arg(Subtype::Arg2).code(Version::V2);
    SCRIPT.with(|script| script.open_result.set(wrong));
    assert_eq!(open(&registry, "a", true).0, Ok(wrong));
    assert_eq!(calls().len(), 3);
}

#[test]
fn without_such_an_entry_a_failure_is_final() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    SCRIPT.with(|script| script.open_result.set(UNOPENABLE));
    assert_eq!(open(&registry, "a", true).0, Ok(UNOPENABLE));
    assert_eq!(calls().len(), 3);
    assert_eq!(open(&registry, "b", true).0, Err(NOT_REGISTERED));
}

/// A program that tries one name after the other gives each call the same variable.
#[test]
fn a_failure_leaves_the_evd_of_the_program() {
    let registry = registry(&[("a", "builtin:soft", "threadsafe")]);
    for (result, handle, expected) in [
        (UNOPENABLE, 0x1000, Ok(UNOPENABLE)),
        // No provider may do so.
        (DAT_SUCCESS, 0, Err(Kind::InternalError.into())),
    ] {
        SCRIPT.with(|script| {
            script.open_result.set(result);
            script.handle.set(handle);
            script.writes_evd.set(true);
        });
        for given in [0, 0x77] {
            let mut evd = ptr::without_provenance_mut(given);
            let mut ia = ptr::without_provenance_mut(UNTOUCHED);
            // SAFETY: all pointers are of locals.
            let opened = unsafe { registry.open(c"a".as_ptr(), 8, &mut evd, &mut ia, 2, 0, true) };
            assert_eq!(opened, expected);
            assert_eq!((evd.addr(), ia.addr()), (given, UNTOUCHED));
        }
    }
}

#[test]
fn the_variable_adds_an_entry_for_every_name() {
    for (value, added) in [
        (None, 0),
        (Some(""), 0),
        (Some("off"), 0),
        (Some("soft"), 1),
        (Some("yes"), 0),
    ] {
        let mut entries = Vec::new();
        let value = value.map(std::ffi::OsStr::new);
        config::add_fallback(&setup(Version::V2), value, &mut entries).unwrap();
        assert_eq!(entries.len(), added, "{value:?}");
        assert!(entries.iter().all(|entry| entry.is_for_every_name()));
    }
}
