//! The two shared libraries as ELF files: SONAME, version node, exported symbols, dependencies,
//! and whether programs built against OpenFabrics' library bind to ours.
//!
//! With `DAT_CHECK_RELEASE=1` the release build is checked too, where link-time optimisation
//! could lose a version. With `DAT_CHECK_DTEST=1` the programs of Debian's dapl2-utils have to be
//! installed; without it their test is skipped where they are not.

#[path = "common/libs.rs"]
mod libs;
#[path = "common/skip.rs"]
mod skip;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use libs::{DAT_1_2, DAT_2_0, Library};

/// Programs of dapl2-utils: every binary of Debian that imports from libdat2.
const PROGRAMS: [&str; 5] = ["dtest", "dtestx", "dtestcm", "dtestsrq", "dapltest"];

/// What a library may need: the C library, and the unwinder of rustc's standard library.
const NEEDED: [&str; 8] = [
    "libc.so.6",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
    "ld64.so.2", // ppc64le
    "ld64.so.1", // s390x
    "ld-linux-riscv64-lp64d.so.1",
    "libm.so.6",
];

/// The functions that the original libraries export, a line each, and how many there are.
fn symbols(library: &Library) -> (&'static str, usize) {
    match library.version {
        "1.2" => (include_str!("../abi/symbols-1.2.txt"), 73),
        _ => (include_str!("../abi/symbols-2.0.txt"), 74),
    }
}

/// The version node of functions that other libraries declare and do not export, and these functions, a
/// line each.
fn added(library: &Library) -> Option<(&'static str, &'static str)> {
    match library.version {
        "1.2" => None,
        _ => Some(("LIBDAT_2.0", include_str!("../abi/added-2.0.txt"))),
    }
}

/// Runs a program and gives its standard output and error, however it exits.
fn output(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text
}

fn readelf(option: &str, file: &Path) -> String {
    output(Command::new("readelf").args(["-W", option]).arg(file))
}

/// The values of a kind of entry in the dynamic section, which readelf prints in brackets.
fn dynamic<'a>(section: &'a str, kind: &str) -> BTreeSet<&'a str> {
    let lines = section
        .lines()
        .filter(|line| line.contains(&format!("({kind})")));
    lines
        .filter_map(|line| line.split_once('[')?.1.strip_suffix(']'))
        .collect()
}

/// The dynamic symbols of a library with their versions, those for whose kind of binding and section
/// `is_wanted` is true.
fn symbols_of(file: &Path, is_wanted: impl Fn(&str, &str) -> bool) -> BTreeSet<String> {
    let table = readelf("--dyn-syms", file);
    // Num: Value Size Type Bind Vis Ndx Name
    let rows = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.len() >= 8 && row[0].ends_with(':') && row[0] != "Num:")
        .filter(|row| is_wanted(row[4], row[6]))
        .map(|row| row[7].to_owned())
        .collect()
}

/// The symbols that a library defines for others.
fn exported(file: &Path) -> BTreeSet<String> {
    symbols_of(file, |_, section| section != "UND")
}

/// The symbols that a library has to find in others.
fn imported(file: &Path) -> BTreeSet<String> {
    symbols_of(file, |binding, section| {
        binding == "GLOBAL" && section == "UND"
    })
}

/// Functions that are older than their versions: glibc 2.32 to 2.34 moved them to `libc.so.6`, or made
/// functions of what were macros.
const MOVED: [&str; 7] = [
    "pthread_",
    "_pthread_",
    "dl",
    "stat64",
    "fstat64",
    "lstat64",
    "fstatat64",
];

fn each(check: impl Fn(&Library, &Path)) {
    for profile in libs::profiles() {
        for library in [DAT_1_2, DAT_2_0] {
            check(&library, &libs::directory(profile).join(library.soname));
        }
    }
}

#[test]
fn exports_are_the_checked_in_list_and_nothing_else() {
    each(|library, file| {
        let (list, count) = symbols(library);
        let wanted: BTreeSet<_> = list
            .lines()
            .map(|name| format!("{name}@@DAT_{}", library.version))
            .collect();
        assert_eq!(wanted.len(), count, "{}", library.soname);
        let added = added(library).map(|(node, list)| {
            let names = list.lines().map(move |name| format!("{name}@@{node}"));
            names.collect::<BTreeSet<_>>()
        });
        let wanted = &wanted | &added.unwrap_or_default();
        let found = exported(file);
        let missing: Vec<_> = wanted.difference(&found).collect();
        let extra: Vec<_> = found.difference(&wanted).collect();
        assert!(missing.is_empty(), "{file:?} lacks {missing:?}");
        assert!(extra.is_empty(), "{file:?} also exports {extra:?}");
    });
}

#[test]
fn soname_and_dependencies() {
    each(|library, file| {
        let section = readelf("--dynamic", file);
        assert_eq!(
            dynamic(&section, "SONAME"),
            BTreeSet::from([library.soname]),
            "{file:?}"
        );
        let unexpected: Vec<_> = dynamic(&section, "NEEDED")
            .into_iter()
            .filter(|name| !NEEDED.contains(name))
            .collect();
        assert!(unexpected.is_empty(), "{file:?} needs {unexpected:?}");
        assert!(section.contains("BIND_NOW"), "{file:?} binds lazily");
        // The program may hold the address of our handler of faults.
        assert!(section.contains("NODELETE"), "{file:?} can be unmapped");
    });
}

/// Distributions of clusters are old: rustc's standard library is for glibc 2.17 and later, and so is the library.
#[test]
fn the_c_library_may_be_old() {
    const OLDEST: u32 = 17;
    each(|_, file| {
        let imported = imported(file);
        assert!(imported.contains("malloc@GLIBC_2.2.5") || cfg!(not(target_arch = "x86_64")));
        let new: Vec<_> = imported
            .iter()
            .filter(|symbol| {
                let version = symbol.split_once("@GLIBC_2.").map(|(_, minor)| {
                    let minor = minor.split('.').next().unwrap_or(minor);
                    minor.parse::<u32>().unwrap()
                });
                version.is_some_and(|minor| minor > OLDEST)
                    && !MOVED.iter().any(|name| symbol.starts_with(name))
            })
            .collect();
        assert!(new.is_empty(), "{file:?} needs {new:?}");
    });
}

#[test]
fn version_nodes() {
    each(|library, file| {
        let versions = readelf("--version-info", file);
        let definitions = versions
            .split("section '.gnu.version")
            .find(|part| part.starts_with("_d'"))
            .unwrap_or_else(|| panic!("{file:?} defines no versions"));
        let names: Vec<_> = definitions
            .lines()
            .filter_map(|line| line.split_once("Name: "))
            .map(|(_, name)| name.trim())
            .collect();
        let node = format!("DAT_{}", library.version);
        let added = added(library).map(|(node, _)| node);
        let wanted = [library.soname, &node].into_iter().chain(added);
        assert_eq!(names, wanted.collect::<Vec<_>>(), "{file:?}");
    });
}

#[test]
fn programs_of_others_bind_every_symbol() {
    let path = |name: &str| Path::new("/usr/bin").join(name);
    if let Some(missing) = PROGRAMS.into_iter().find(|name| !path(name).exists()) {
        let why = format!("{missing} is not installed (package dapl2-utils)");
        assert!(!libs::demanded("DAT_CHECK_DTEST"), "{why}");
        return skip::skip(&why);
    }
    for profile in libs::profiles() {
        let dir = libs::directory(profile);
        for name in PROGRAMS {
            let program = path(name);
            let report = output(
                Command::new("ldd")
                    .arg("-r")
                    .arg(&program)
                    .env("LD_LIBRARY_PATH", &dir),
            );
            let ours = format!("{} => {}", DAT_2_0.soname, dir.display());
            assert!(
                report.contains(&ours),
                "{name} did not find {ours}:\n{report}"
            );
            assert!(!report.contains("undefined symbol"), "{name}:\n{report}");
            assert!(!report.contains("not found"), "{name}:\n{report}");

            // An option without its argument: the program starts, and prints how to use it.
            let report = output(
                Command::new(&program)
                    .arg("-h")
                    .env("LD_LIBRARY_PATH", &dir)
                    .env("LD_BIND_NOW", "1"),
            );
            assert!(
                report.to_lowercase().contains("usage"),
                "{name} did not start:\n{report}"
            );
        }
    }
}
