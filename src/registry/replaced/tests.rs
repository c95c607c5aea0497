//! Which libraries are replaced, and what the entries of real files give.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;

use super::super::config::{self, Origin};
use super::super::fake::{SCRIPT, SOFT, VERBS, calls};
use super::super::{Builtin, BuiltinEntry, Registry, Setup};
use super::*;
use crate::abi::common::{DAT_RETURN, DAT_SUCCESS};
use crate::error::{Result, Version};

#[test]
fn libraries_with_a_connection_manager_of_their_own() {
    for name in [
        c"libdaploscm.so.2",
        c"/usr/lib64/libdaplucm.so.1",
        c"libdaplomcm.so",
    ] {
        assert!(note(name).is_some(), "{name:?}");
    }
    for name in [
        c"libdaplofa.so.2",
        c"libdaplcma.so.1",
        c"libdapl.so",
        c"udapl_tavor.so.1",
    ] {
        assert_eq!(note(name), None, "{name:?}");
    }
}

#[test]
fn names_that_are_replaced() {
    for name in [
        c"libdaplofa.so.2",
        c"libdaploscm.so.2",
        c"libdaploucm.so.2",
        c"libdaplomcm.so.2",
        c"libdaplcma.so.1",
        c"libdaplscm.so.1",
        c"libdaplucm.so.1",
        c"libdapl_openib_cma.so",
        c"/usr/lib64/libdapl.so",
        c"/usr/lib64/libdaplofa.so",
        c"libdaplofa.so.2.0.0",
        c"udapl_tavor.so.1",
        c"/usr/lib/amd64/udapl_tavor.so.1",
    ] {
        assert!(is_replaced(name), "{name:?}");
    }
    for name in [
        c"",
        c"libdaplofa",
        c"libdaplofa.so2",
        c"xlibdaplofa.so.2",
        c"libdapl-soft.so.2",
        c"libdaplx.so",
        c"libdaplofa.so.2/libother.so",
        c"libudapl_tavor.so.1",
        c"udapl_tavor",
        c"builtin:verbs",
    ] {
        assert!(!is_replaced(name), "{name:?}");
    }
}

#[test]
fn names_of_interfaces() {
    for (solaris, linux) in [
        (c"ibd0", c"ib0"),
        (c"ibd31", c"ib31"),
        (c"pffff.ibp0", c"ib0"),
        (c"pFFFF.ibp2", c"ib2"),
        (c"p8001.ibp0", c"ib0.8001"),
        (c"p1.ibp3", c"ib3.0001"),
        // These stand for themselves.
        (c"ib0", c"ib0"),
        (c"ibd", c"ibd"),
        (c"ibdx", c"ibdx"),
        (c"p.ibp0", c"p.ibp0"),
        (c"p18001.ibp0", c"p18001.ibp0"),
        (c"p8001.ibp", c"p8001.ibp"),
        (c"\xff", c"\xff"),
    ] {
        assert_eq!(&*linux_interface(solaris), linux, "{solaris:?}");
    }
}

thread_local! {
    /// The providers that were initialised, with their parameters.
    static STARTED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn started() -> Vec<String> {
    calls();
    STARTED.take()
}

fn start(provider: &str, entry: &BuiltinEntry<'_>) {
    let params = entry.params.to_string_lossy();
    STARTED.with_borrow_mut(|started| started.push(format!("{provider} {params}")));
    (SOFT.init)(entry);
}

static PROVIDERS: [Builtin; 2] = [
    Builtin {
        init: |entry| start("soft", entry),
        ..SOFT
    },
    Builtin {
        init: |entry| start("verbs", entry),
        ..VERBS
    },
];

fn registry(setup: Setup, entries: Vec<Entry>) -> Box<Registry> {
    let registry = Box::new(Registry::new(setup, entries).unwrap());
    SCRIPT.with(|script| script.registry.set(&raw const *registry));
    registry
}

/// Opens an IA as a program of that version does.
fn open(registry: &Registry, name: &CStr, version: (u32, u32)) -> Result<DAT_RETURN> {
    let (mut ia, mut evd) = (ptr::null_mut(), ptr::null_mut());
    let (major, minor) = version;
    // SAFETY: a C string and locals.
    unsafe { registry.open(name.as_ptr(), 8, &mut evd, &mut ia, major, minor, false) }
}

/// The files, with their lines: the entry and what it gives.
fn files() -> Vec<(PathBuf, Vec<(String, String)>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/registry/files");
    let mut paths: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension() == Some(OsStr::new("conf")))
        .collect();
    paths.sort();
    let lines = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| {
                let (entry, gives) = line.split_once("  #= ").unwrap();
                (entry.to_owned(), gives.to_owned())
            })
            .collect()
    };
    paths
        .iter()
        .map(|path| (path.clone(), lines(path)))
        .collect()
}

/// The entry of a line, as where the library that it names is not installed.
fn not_installed(mut entry: Entry) -> Entry {
    if let Target::Library(library) = &entry.target {
        let library = library.to_str().unwrap();
        let file = library.rsplit('/').next().unwrap();
        entry.target = Target::Library(CString::new(format!("/no/such/directory/{file}")).unwrap());
    }
    entry
}

/// Whether the table of `gives` has an entry for programs of these libraries.
fn is_installed(gives: &str) -> bool {
    !gives.starts_with("fault ") && gives != "nondefault" && gives != "kernel"
}

#[test]
fn every_line_of_real_files_is_an_entry_or_a_fault() {
    let files = files();
    assert_eq!(files.len(), 10);
    for (path, lines) in files {
        for (line, gives) in &lines {
            let parsed: Vec<_> = super::super::parse::parse(line.as_bytes()).collect();
            let [(1, parsed)] = &parsed[..] else {
                panic!("{path:?}: {line}");
            };
            match (parsed, gives.strip_prefix("fault ")) {
                (Ok(entry), None) => {
                    assert_eq!(entry.installed(), is_installed(gives), "{line}");
                    assert_eq!(entry.user, gives != "kernel");
                }
                (Err(fault), Some(text)) => assert_eq!(fault.to_string(), text),
                _ => panic!("{path:?}: {line}: {parsed:?}"),
            }
        }
        // And the registry has them all, by their lines; the text behind the entries is a comment.
        let setup = Setup {
            version: Version::V2,
            builtins: &PROVIDERS,
        };
        let entries = config::entries(&setup, Some(path.as_os_str()), &[""]).unwrap();
        let found = entries.iter().map(|entry| match &entry.origin {
            Origin::File(_, line) => *line,
            origin => panic!("{origin}"),
        });
        let expected = (1..)
            .zip(&lines)
            .filter(|(_, (_, gives))| is_installed(gives));
        let expected: Vec<_> = expected.map(|(number, _)| number).collect();
        assert_eq!(found.collect::<Vec<_>>(), expected, "{path:?}");
    }
}

/// Each entry of the files, with the version of the library that a program with it uses.
fn each_entry(mut check: impl FnMut(Version, (u32, u32), Entry, &str)) {
    for (path, lines) in files() {
        for (line, gives) in lines.iter().filter(|(_, gives)| is_installed(gives)) {
            let entry = not_installed(super::super::fake::entry(line));
            let library = match entry.key.major {
                1 => Version::V1,
                _ => Version::V2,
            };
            assert!(!gives.is_empty(), "{path:?}");
            check(library, config::api_version(library), entry, gives);
        }
    }
}

#[test]
fn entries_of_real_files_are_served_by_verbs_or_refused() {
    let mut served = 0;
    each_entry(|library, version, entry, gives| {
        let name = entry.key.name.clone();
        let setup = Setup {
            version: library,
            builtins: &PROVIDERS,
        };
        let registry = registry(setup, vec![entry]);
        let result = open(&registry, &name, version);
        if gives.starts_with("verbs ") {
            assert_eq!(result, Ok(DAT_SUCCESS), "{name:?}");
            let started = started();
            assert_eq!(started.len(), 1, "{name:?}");
            // Blanks at the end of the parameters do not matter.
            assert_eq!(started[0].trim_end(), gives, "{name:?}");
            served += 1;
        } else {
            assert!(["library", "version"].contains(&gives), "{gives}");
            assert!(result.is_err(), "{name:?}");
            assert_eq!(started(), [""; 0], "{name:?}");
        }
    });
    assert!(served > 40, "{served}");
}

/// Without a verbs provider; that the fallback also serves what a provider cannot open is in the tests of
/// the registry.
#[test]
fn the_fallback_serves_all_entries_of_real_files() {
    each_entry(|library, version, entry, _| {
        let name = entry.key.name.clone();
        let setup = Setup {
            version: library,
            builtins: &PROVIDERS[..1],
        };
        let mut entries = vec![entry];
        config::add_fallback(&setup, Some(OsStr::new("soft")), &mut entries).unwrap();
        let registry = registry(setup, entries);
        assert_eq!(open(&registry, &name, version), Ok(DAT_SUCCESS), "{name:?}");
        assert_eq!(started(), ["soft "], "{name:?}");
    });
}
