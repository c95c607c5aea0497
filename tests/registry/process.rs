//! The registry of a process: each test starts itself a second time, because that registry reads its
//! configuration once.

use std::ffi::CStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::sync::Barrier;

use dat_core::abi::common::DAT_PROVIDER_INFO;
use dat_core::error::{Error, Kind, Subtype, Version};
use dat_core::registry::{self, Adapters, Builtin, Setup, config, inspect};

use super::{Dir, Host, NOT_REGISTERED, SETUP, line};

/// Set in the child processes.
const CHILD: &str = "DAT_TEST_REGISTRY_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// What a child does: it counts the entries of the registry and tries to open an IA twice.
fn child() {
    registry::setup(&SETUP);
    let mut count = -1;
    // SAFETY: a local; NULL is allowed.
    let listed = unsafe { registry::list_providers(0, &mut count, ptr::null_mut()) };
    assert_eq!(listed, Err(Error::arg(Subtype::Arg1)));
    eprintln!("{count} entries");
    for _ in 0..2 {
        let mut ia = ptr::null_mut();
        // SAFETY: a C string and a local.
        let opened =
            unsafe { registry::open(c"a".as_ptr(), 8, ptr::null_mut(), &mut ia, 2, 0, true) };
        assert_eq!(opened, Err(NOT_REGISTERED));
    }
}

/// Runs the child of a test with a configuration file; the lines of its standard error.
fn run(test: &str, file: &Path, environment: &[(&str, &str)]) -> Vec<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("process::{test}"), "--nocapture"])
        .env(CHILD, "1")
        .env("DAT_OVERRIDE", file)
        .env_remove("DAT_DBG_TYPE")
        .env_remove("DAT_DBG_DEST")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("libdat"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    stderr.lines().map(str::to_owned).collect()
}

#[test]
fn faults_are_said_once_with_file_and_line() {
    const NAME: &str = "faults_are_said_once_with_file_and_line";
    if is_child() {
        return child();
    }
    let dir = Dir::new();
    let text = format!(
        "# a comment\n{}nonsense\nb u2 threadsafe default l v.1.0 \"\" \"\"\nc \"open\n{}",
        line("a", "threadsafe", "/no/such/lib.so"),
        line("d", "threadsafe", "lib.so"),
    );
    let file = dir.file("dat.conf", &text);
    let name = file.to_str().unwrap();
    let said = run(NAME, &file, &[]);
    assert_eq!(
        said[..4],
        [
            format!("libdat: {name}:3: only 1 of the 8 fields of an entry; the line is ignored"),
            format!(
                "libdat: {name}:4: field 2 (API version) is not of the form u2.0; \
                 the line is ignored"
            ),
            format!("libdat: {name}:5: a quote is not closed; the line is ignored"),
            "2 entries".to_owned(),
        ]
    );
    let load = format!("libdat: {name}:2: /no/such/lib.so: ");
    assert!(said[4].starts_with(&load), "{said:?}");
    let advice = "libdat: DAT_FALLBACK=soft in the environment lets builtin:soft serve what no \
                  entry can serve";
    assert_eq!(said[5..], [advice]);
}

#[test]
fn parameters_in_the_wrong_field_are_said() {
    const NAME: &str = "parameters_in_the_wrong_field_are_said";
    if is_child() {
        return child();
    }
    let dir = Dir::new();
    let entry = |name, library, platform| {
        format!("{name} u2.0 threadsafe default {library} v.1.0 \"\" {platform}\n")
    };
    let text = entry("b", "builtin:soft", "\"path=tcp crc=off\"")
        + &entry("c", "builtin:soft", "\" \"")
        // As Solaris has it.
        + &entry("d", "udapl_tavor.so.1", "driver_name=tavor");
    let file = dir.file("dat.conf", &text);
    let name = file.to_str().unwrap();
    let said = run(NAME, &file, &[]);
    assert_eq!(
        said[..2],
        [
            format!(
                "libdat: {name}:1: field 8 (platform parameters) is ignored; \
                 parameters of builtin:soft are in field 7"
            ),
            "3 entries".to_owned(),
        ],
        "{said:?}"
    );
}

#[test]
fn of_many_faults_the_first_hundred_are_said_and_the_others_counted() {
    const NAME: &str = "of_many_faults_the_first_hundred_are_said_and_the_others_counted";
    if is_child() {
        return child();
    }
    let dir = Dir::new();
    for (faults, more) in [(100, None), (101, Some(1)), (103, Some(3))] {
        let file = dir.file("dat.conf", &"nonsense\n".repeat(faults));
        let name = file.to_str().unwrap();
        let said = run(NAME, &file, &[]);
        let (first, last) = said.split_at(100);
        for (index, fault) in first.iter().enumerate() {
            let place = format!("libdat: {name}:{}: ", index + 1);
            assert!(fault.starts_with(&place), "{fault}");
        }
        let counted =
            more.map(|more| format!("libdat: {name}: {more} more faults are not reported"));
        let counted = counted.into_iter().chain(["0 entries".to_owned()]);
        assert_eq!(last, counted.collect::<Vec<_>>());
    }
}

#[test]
fn an_override_that_is_not_there() {
    const NAME: &str = "an_override_that_is_not_there";
    if is_child() {
        return child();
    }
    let dir = Dir::new();
    let said = run(NAME, &dir.0.join("none"), &[]);
    let name = dir.0.join("none");
    let name = name.to_str().unwrap();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].starts_with(&format!("libdat: {name}: ")),
        "{said:?}"
    );
    assert_eq!(said[1], "0 entries");
}

/// `DAT_TEST_REGISTRY_CHILD` is the directory of the files here.
#[test]
fn a_default_file_that_is_there_and_cannot_be_read_is_reported() {
    const NAME: &str = "a_default_file_that_is_there_and_cannot_be_read_is_reported";
    if let Some(dir) = std::env::var_os(CHILD) {
        child();
        let dir = Path::new(&dir);
        let absent = [dir.join("none"), dir.join("file").join("below")];
        for files in [&absent[..], &[dir.to_owned()]] {
            assert_eq!(config::entries(&SETUP, None, files), Ok(vec![]));
            eprintln!("read");
        }
        return;
    }
    let dir = Dir::new();
    dir.file("file", "");
    let name = dir.0.to_str().unwrap();
    let said = run(NAME, Path::new("/dev/null"), &[(CHILD, name)]);
    let fault = format!("libdat: {name}: it is a directory, not a regular file");
    assert_eq!(said, ["0 entries", "read", &fault, "read"]);
}

#[test]
fn a_good_file_is_read_in_silence_unless_asked() {
    const NAME: &str = "a_good_file_is_read_in_silence_unless_asked";
    if is_child() {
        return child();
    }
    let dir = Dir::new();
    // Absent libraries of OpenFabrics are normal: distributions list a dozen.
    let file = dir.file(
        "dat.conf",
        &line("a", "nonthreadsafe", "/no/libdaplofa.so.2"),
    );
    assert_eq!(run(NAME, &file, &[]), ["1 entries"]);
    let said = run(NAME, &file, &[("DAT_DBG_TYPE", "0xff")]);
    let entry = format!(
        ": {}:1: `a' u2.0 nonthreadsafe is /no/libdaplofa.so.2",
        file.to_str().unwrap()
    );
    assert!(said.iter().any(|line| line.ends_with(&entry)), "{said:?}");
    assert!(said.iter().any(|line| line.contains("not installed")));
    assert_eq!(
        run(
            NAME,
            &file,
            &[("DAT_DBG_TYPE", "0xff"), ("DAT_DBG_DEST", "0")]
        ),
        ["1 entries"]
    );
}

#[test]
fn values_of_the_log_variables_that_are_not_known_are_named_once() {
    const NAME: &str = "values_of_the_log_variables_that_are_not_known_are_named_once";
    if is_child() {
        return child();
    }
    let dir = Dir::new();
    let file = dir.file("dat.conf", &line("a", "nonthreadsafe", "libc.so.6"));
    let said = run(
        NAME,
        &file,
        &[("DAT_DBG_TYPE", "all"), ("DAT_DBG_DEST", "8")],
    );
    assert_eq!(said.len(), 3, "{said:?}");
    let starts = [
        "libdat: DAT_DBG_TYPE=all: not a number; known are 0x01 errors, ",
        "libdat: DAT_DBG_DEST=8: the bits 0x8 are not known; known are 0 nowhere, ",
        "1 entries",
    ];
    for (line, start) in said.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn an_inspection_reads_what_the_registry_would() {
    const NAME: &str = "an_inspection_reads_what_the_registry_would";
    if is_child() {
        for report in inspect::reports(&SETUP).unwrap() {
            let (key, state) = (report.entry.key, report.state.is_ok());
            eprintln!("{key} {} {state}", report.provider);
        }
        return;
    }
    let dir = Dir::new();
    let lines = line("a", "threadsafe", "/no/lib.so") + &line("b", "nonthreadsafe", "libc.so.6");
    let file = dir.file("dat.conf", &lines);
    let expected = [
        "`a' u2.0 threadsafe /no/lib.so false",
        "`b' u2.0 nonthreadsafe libc.so.6 false",
    ];
    assert_eq!(run(NAME, &file, &[]), expected);
}

#[test]
fn the_registry_of_the_process_counts_queries_of_extensions() {
    const NAME: &str = "the_registry_of_the_process_counts_queries_of_extensions";
    if is_child() {
        let host = Host::get();
        registry::setup(&SETUP);
        assert!(!registry::extensions());
        registry::extension_open(c"a").unwrap();
        assert!(registry::extensions());
        assert_eq!(host.notes(), "init a eth0 1;");
        registry::extension_close(c"a");
        eprintln!("{}", host.notes());
        return;
    }
    let dir = Dir::new();
    let library = dir.library(Some("provider.c"), "libprovider.so");
    let file = dir.file("dat.conf", &line("a", "nonthreadsafe", &library));
    assert_eq!(run(NAME, &file, &[]), ["fini a -;"]);
}

/// Lets this process have so many bytes more of memory, and no limit again when it is dropped.
struct LittleMemory(libc::rlimit);

impl LittleMemory {
    fn new(bytes: u64) -> LittleMemory {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let (_, data) = status.split_once("VmData:").unwrap();
        let data: u64 = data.split_whitespace().next().unwrap().parse().unwrap();
        // SAFETY: a structure of numbers, and a place for it.
        let before = unsafe {
            let mut before = std::mem::zeroed();
            assert_eq!(libc::getrlimit(libc::RLIMIT_DATA, &mut before), 0);
            before
        };
        LittleMemory::set(libc::rlimit {
            rlim_cur: (data * 1024 + bytes) as libc::rlim_t,
            ..before
        });
        LittleMemory(before)
    }

    fn set(limit: libc::rlimit) {
        // SAFETY: a local.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) }, 0);
    }
}

impl Drop for LittleMemory {
    fn drop(&mut self) {
        LittleMemory::set(self.0);
    }
}

#[test]
fn a_file_that_there_is_no_memory_for_is_an_error() {
    const NAME: &str = "a_file_that_there_is_no_memory_for_is_an_error";
    if let Some(file) = std::env::var_os(CHILD) {
        let defaults = [Path::new(&file)];
        let entries = || {
            [
                config::entries(&SETUP, Some(&file), &[""]),
                config::entries(&SETUP, None, &defaults),
            ]
        };
        let little = LittleMemory::new(256 << 10);
        let without = entries();
        drop(little);
        let expected = Error::new(Kind::InsufficientResources, Subtype::ResourceMemory);
        assert_eq!(without, [Err(expected), Err(expected)]);
        for found in entries() {
            eprintln!("{} entries", found.unwrap().len());
        }
        return;
    }
    let dir = Dir::new();
    let lines = line("a", "threadsafe", "lib.so") + &"\n".repeat(1_000_000);
    let file = dir.file("dat.conf", &lines);
    let name = file.to_str().unwrap();
    let said = run(NAME, Path::new("/dev/null"), &[(CHILD, name)]);
    assert_eq!(said, ["1 entries"; 2]);
}

/// Reached by the init function of [`SLOW`] when it begins, and before it ends.
static BEGINS: Barrier = Barrier::new(2);
static ENDS: Barrier = Barrier::new(2);

/// A library whose provider registers nothing, and takes as long for that as the test wants.
static SLOW: Setup = Setup {
    version: Version::V2,
    builtins: &[Builtin {
        adapters: Adapters {
            name: "slow",
            probe: |_| Ok(String::new()),
            discover: Vec::new,
        },
        init: |_| {
            BEGINS.wait();
            ENDS.wait();
        },
        fini: nothing,
        extensions: || None,
    }],
};

unsafe extern "C" fn nothing(_info: *const DAT_PROVIDER_INFO) {}

/// A thread that is in an init function may be there for any time, and a forked child does not have it.
#[test]
fn a_fork_beside_an_init_function_leaves_the_child_a_registry_of_its_own() {
    const NAME: &str = "a_fork_beside_an_init_function_leaves_the_child_a_registry_of_its_own";
    if is_child() {
        registry::setup(&SLOW);
        let fails = |name: &CStr| {
            let mut ia = ptr::null_mut();
            // SAFETY: a C string and a local.
            let opened =
                unsafe { registry::open(name.as_ptr(), 8, ptr::null_mut(), &mut ia, 2, 0, true) };
            opened == Err(NOT_REGISTERED)
        };
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| fails(c"a"));
            BEGINS.wait();
            // SAFETY: the child calls the registry, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: a child that hangs dies of the signal, and does not return otherwise.
                unsafe {
                    libc::alarm(20);
                    libc::_exit(if fails(c"b") { 7 } else { 8 });
                }
            }
            let mut status = 0;
            // SAFETY: our own child, and a place for its status.
            let ended = unsafe { libc::waitpid(child, &mut status, 0) };
            ENDS.wait();
            assert_eq!(ended, child);
            assert!(opener.join().unwrap() && fails(c"b"));
            eprintln!("{status:#x}");
        });
        return;
    }
    let dir = Dir::new();
    let file = dir.file("dat.conf", &line("a", "threadsafe", "builtin:slow"));
    let said = run(NAME, &file, &[]);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].ends_with("the provider has not registered this IA name"));
    assert_eq!(said[1], "0x700");
}
