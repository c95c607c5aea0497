//! Calls that go through the table of a loaded provider, proved from C: a provider library that
//! records what reaches it, and programs that are linked with our libraries like any consumer.

#[path = "common/libs.rs"]
mod libs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libs::{DAT_1_2, DAT_2_0, Library, Profile};

/// Where the C sources are.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests-c/provider");

/// Compiles with the C compiler of this machine, with our headers, for the library's version.
fn cc(library: &Library) -> Command {
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-g", "-O1"])
        .args(["-Wall", "-Wextra", "-Werror"])
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include"));
    if library.version == "2.0" {
        cc.arg("-DDAT2");
    }
    cc
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Builds the provider and one program, and runs the program, with a registry that has two IAs
/// of the provider.
fn check(library: &Library, program: &str) {
    for profile in libs::profiles() {
        check_in(profile, library, program);
    }
}

fn check_in(profile: Profile, library: &Library, program: &str) {
    let libraries = libs::directory(profile);
    let dir = libraries.join(library.version).join(program);
    fs::create_dir_all(&dir).expect("inside the target directory");

    let provider = dir.join("libfake.so");
    run(cc(library)
        .args(["-shared", "-fPIC", "-fvisibility=hidden", "-o"])
        .arg(&provider)
        .arg(source("fake.c")));
    let binary = dir.join(program);
    run(cc(library)
        .arg("-o")
        .arg(&binary)
        .arg(source(&format!("{program}.c")))
        .args([source("../tap.c"), source("../moved.c")])
        .arg(format!("-L{}", libraries.display()))
        .arg(format!("-l:{}", library.file))
        .arg("-ldl"));

    let entry = |name: &str, params: &str| {
        let version = library.version;
        let provider = provider.display();
        format!("{name} u{version} nonthreadsafe default {provider} fake.1.0 {params:?} \"\"\n")
    };
    let conf = dir.join("dat.conf");
    let entries = entry("fake", "") + &entry("fake_extensions", "extensions");
    fs::write(&conf, entries).expect("inside the target directory");

    let mut command = Command::new(binary);
    command
        .env("LD_LIBRARY_PATH", &libraries)
        .env("DAT_OVERRIDE", &conf)
        .env_remove("DAT_TRACE");
    run(&mut command);

    // The same while the calls are traced, of some functions with their arguments, most of which are
    // addresses of nothing.
    let trace = dir.join("trace");
    command.env("DAT_TRACE_FILE", &trace);
    let _ = fs::remove_file(&trace);
    run(command.env("DAT_TRACE", "summary"));
    let table = fs::read_to_string(&trace).expect("text");
    for function in functions(program) {
        let called = table.contains(&format!("  dat_{function}\n"));
        // Of DAT 2.0 are some that the library of DAT 1.2 does not have.
        let exported = library.version == "2.0" || !OF_2_0.contains(&function.as_str());
        assert_eq!(called, exported, "{function}");
    }
    if program == "dispatch" {
        let _ = fs::remove_file(&trace);
        command.args(["fake", "ep_modify.dispatch", "ep_post_send.dispatch"]);
        run(command.env("DAT_TRACE", "calls"));
        let trace = fs::read_to_string(&trace).expect("text");
        for function in [" dat_ep_modify(", " dat_ep_post_send("] {
            let calls = trace.lines().filter(|line| line.contains(function));
            let (calls, whole) = calls.fold((0, 0), |(calls, whole), line| {
                let is_whole = line.contains(") = ") && line.ends_with(" us");
                (calls + 1, whole + u32::from(is_whole))
            });
            assert!(
                calls > 0 && whole == calls,
                "{function}: {whole} of {calls}"
            );
        }
    }
}

/// Functions that only DAT 2.0 has.
const OF_2_0: &[&str] = &[
    "cno_fd_create",
    "cno_trigger",
    "csp_create",
    "csp_free",
    "csp_query",
    "ep_common_connect",
    "ep_post_rdma_read_to_rmr",
    "ep_post_send_with_invalidate",
    "rmr_create_for_ep",
];

/// The functions that a program calls, without `dat_`.
fn functions(program: &str) -> Vec<String> {
    if program == "extension" {
        return vec!["extension_op".to_owned()];
    }
    let list = fs::read_to_string(source("functions.def")).expect("a source");
    let names = list.lines().filter_map(|line| {
        let (number, rest) = line.strip_prefix('F')?.split_once('(')?;
        number.parse::<u32>().ok()?;
        Some(rest.split([',', ')']).next()?.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.dedup();
    names
}

fn source(name: &str) -> PathBuf {
    Path::new(SOURCES).join(name)
}

#[test]
fn every_function_of_1_2_reaches_its_slot() {
    check(&DAT_1_2, "dispatch");
}

#[test]
fn every_function_of_2_0_reaches_its_slot() {
    check(&DAT_2_0, "dispatch");
}

#[test]
fn extension_operations_pass_their_arguments_on() {
    check(&DAT_2_0, "extension");
}
