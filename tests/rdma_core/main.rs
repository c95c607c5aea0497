//! The versions of rdma-core that the verbs provider runs on: with the functions that the library
//! has since version 31, and without them. Both are the stand-in of `benches/verbs`, whose
//! version script decides what programs find.

#[path = "../common/libs.rs"]
mod libs;
#[path = "../common/rdma_core.rs"]
mod rdma_core;
#[path = "../common/skip.rs"]
mod skip;

use std::path::{Path, PathBuf};
use std::process::Command;

use libs::DAT_2_0;

/// What version 31 has brought of that which the provider calls.
const NEW_IN_31: &str = "rdma_reject_ece";

const PEER_REJECTED: u32 = 0x4002;
const NON_PEER_REJECTED: u32 = 0x4003;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{text}{errors}");
    text
}

fn cc() -> Command {
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-pthread", "-g"])
        .args(["-Wall", "-Wextra", "-Werror"]);
    cc
}

/// The two libraries of rdma-core in a directory of their own, without the functions that are
/// hidden.
fn stand_in(dir: &Path, hidden: &[&str]) {
    let build = |file: &str, sources: &[&str], map: &str| {
        let script = dir.join(map);
        let text = std::fs::read_to_string(source("benches/verbs").join(map)).unwrap();
        let local: String = hidden.iter().map(|name| format!("\t{name};\n")).collect();
        assert!(text.contains("local:\n"), "{map}");
        std::fs::write(
            &script,
            text.replace("local:\n", &format!("local:\n{local}")),
        )
        .unwrap();
        run(cc()
            .args(["-DSTANDIN_POINTS", "-fPIC", "-shared", "-o"])
            .arg(dir.join(file))
            .arg(format!("-Wl,-soname,{file}"))
            .arg(format!("-Wl,--version-script={}", script.display()))
            .args(
                sources
                    .iter()
                    .map(|name| source("benches/verbs").join(name)),
            )
            .args((file != "libibverbs.so.1").then(|| dir.join("libibverbs.so.1"))));
    };
    let verbs = ["standin_verbs.c", "standin_qp.c"];
    build("libibverbs.so.1", &verbs, "libibverbs.map");
    build("librdmacm.so.1", &["standin_cm.c"], "librdmacm.map");
    let symbols = run(Command::new("readelf")
        .args(["-W", "--dyn-syms"])
        .arg(dir.join("librdmacm.so.1")));
    assert_eq!(symbols.contains(NEW_IN_31), hidden.is_empty());
    assert!(symbols.contains("rdma_establish"));
}

/// Runs the tests of a program of this directory on rdma-core without these functions. `by_library` is the
/// event of an attempt that no consumer has answered.
fn check(name: &str, program: &str, tests: usize, hidden: &[&str], by_library: u32) {
    if !rdma_core::is_installed() {
        return;
    }
    let libraries = libs::directory(libs::profiles()[0]);
    let dir = libraries.join("rdma-core").join(name);
    std::fs::create_dir_all(&dir).unwrap();
    stand_in(&dir, hidden);
    let source_of_program = source("tests/rdma_core").join(format!("{program}.c"));
    let program = dir.join(program);
    run(cc()
        .args(["-DDAT2", "-rdynamic", "-o"])
        .arg(&program)
        .args([
            format!("-I{}", source("include").display()),
            format!("-I{}", source("tests-c").display()),
        ])
        .arg(source_of_program)
        .arg(source("tests/rdma_core/stand_in.c"))
        .args(
            [
                "tests-c/common.c",
                "tests-c/connection.c",
                "tests-c/tap.c",
                "tests-c/moved.c",
                "benches/verbs/node.c",
            ]
            .map(source),
        )
        .arg(libraries.join(DAT_2_0.file))
        .arg("-ldl"));
    let conf = dir.join("dat.conf");
    let version = DAT_2_0.version;
    let entry =
        format!("verbs u{version} threadsafe default builtin:verbs libdat.1.0 \"lo 0\" \"\"\n");
    std::fs::write(&conf, entry).unwrap();
    let said = run(Command::new(&program)
        .arg("verbs")
        .env("DAT_OVERRIDE", &conf)
        .env("BY_LIBRARY", by_library.to_string())
        .env(
            "LD_LIBRARY_PATH",
            std::env::join_paths([&libraries, &dir]).unwrap(),
        ));
    assert_eq!(said.matches("\nok ").count(), tests, "{said}");
}

#[test]
fn version_31() {
    check("31", "program", 10, &[], NON_PEER_REJECTED);
}

/// The peer takes every rejection for one by the consumer.
#[test]
fn version_30() {
    check("30", "program", 10, &[NEW_IN_31], PEER_REJECTED);
}

/// What happens when something goes wrong.
#[test]
fn faults() {
    check("faults", "faults", 7, &[], NON_PEER_REJECTED);
}

/// What happens when the device fails.
#[test]
fn failure() {
    check("failure", "failure", 4, &[], NON_PEER_REJECTED);
}

/// What happens when the device reports something by itself.
#[test]
fn events() {
    check("events", "events", 9, &[], NON_PEER_REJECTED);
}

/// What happens when the device has no more of something.
#[test]
fn limits() {
    check("limits", "limits", 7, &[], NON_PEER_REJECTED);
}

/// What happens on drivers that do as those of adapters do.
#[test]
fn drivers() {
    check("drivers", "drivers", 5, &[], NON_PEER_REJECTED);
}

/// What happens when another thread comes in between.
#[test]
fn threads() {
    check("threads", "threads", 4, &[], NON_PEER_REJECTED);
}
