//! `dat-trace` as a user runs it, on a C program for both versions of the API
//! (`tests/trace/program.c`), which prints what the trace has to show.

#[allow(dead_code)] // other tests need the rest of it
#[path = "../../../tests/common/libs.rs"]
mod libs;

mod connection;
mod lines;
mod pipes;
mod program;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use libs::{DAT_1_2, DAT_2_0, Library};

/// The files of a test, which go away at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("dat-trace-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let entry =
            |version| format!("a u{version} threadsafe default builtin:soft v.1.0 \"lo\" \"\"\n");
        fs::write(path.join("dat.conf"), entry("1.2") + &entry("2.0")).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cc(arguments: &[&str]) {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(compiler).args(arguments).status().unwrap();
    assert!(status.success(), "cc {arguments:?}");
}

/// The program for a version, in a folder.
fn program(folder: &Folder, library: &Library) -> PathBuf {
    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let profile = libs::profiles()[0];
    let dir = libs::directory(profile);
    let program = folder.path(library.soname);
    let flag = if library.version == "2.0" {
        "-DDAT2"
    } else {
        "-DDAT1"
    };
    cc(&[
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Werror",
        "-pthread",
        flag,
        &format!("-I{ROOT}/include"),
        &format!("-I{ROOT}/tests-c"),
        &format!("{ROOT}/tests/trace/program.c"),
        "-o",
        program.to_str().unwrap(),
        // Such that LD_LIBRARY_PATH comes first.
        "-Wl,--enable-new-dtags",
        &format!("-Wl,-rpath,{}", dir.display()),
        dir.join(library.file).to_str().unwrap(),
    ]);
    program
}

fn dat_trace(folder: &Folder) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dat-trace"));
    command
        .env("DAT_OVERRIDE", folder.path("dat.conf"))
        .env_remove("DAT_DBG_TYPE")
        .env_remove("DAT_TRACE_FILE")
        .env_remove("LD_LIBRARY_PATH");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What the program has printed, by name.
fn printed(output: &Output) -> HashMap<String, String> {
    let text = text(&output.stdout);
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// A line of a trace.
#[derive(Debug)]
struct Line {
    process: String,
    thread: String,
    /// What follows: the call.
    call: String,
}

/// The lines of a trace, which are in the form of a line, and the table at its end.
fn lines(trace: &str) -> (Vec<Line>, String) {
    let at = trace
        .find(" DAT calls of process ")
        .map(|at| trace[..at].rfind('\n').map_or(0, |at| at + 1));
    let (calls, table) = trace.split_at(at.unwrap_or(trace.len()));
    let parsed = calls.lines().map(|line| {
        let mut parts = line.splitn(3, ' ');
        let (time, who, call) = (parts.next(), parts.next(), parts.next());
        let form: String = time
            .unwrap_or_default()
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(form, "00:00:00.000000", "{line}");
        let (process, thread) = who.and_then(|who| who.split_once('/')).expect(line);
        Line {
            process: process.to_owned(),
            thread: thread.to_owned(),
            call: call.expect(line).to_owned(),
        }
    });
    (parsed.collect(), table.to_owned())
}

/// The call without its duration, which is one.
fn without_time(call: &str) -> &str {
    let Some((call, time)) = call.rsplit_once(", ") else {
        return call;
    };
    let time = time
        .strip_suffix(" us")
        .and_then(|time| time.parse::<f64>().ok());
    assert!(time.is_some_and(|time| time > 0.0), "{call}");
    call
}

/// The calls of a trace that begin so, without their times.
fn calls<'a>(lines: &'a [Line], start: &str) -> Vec<&'a str> {
    let calls = lines.iter().map(|line| &line.call);
    let calls = calls.filter(|call| call.starts_with(start) && call.ends_with(" us"));
    calls.map(|call| without_time(call)).collect()
}

/// Traces the program; its output, and the trace.
fn traced(folder: &Folder, library: &Library, what: &str) -> (Output, String) {
    let file = folder.path("trace");
    let output = dat_trace(folder)
        .arg("-o")
        .arg(&file)
        .arg(program(folder, library))
        .arg(what)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    (output, fs::read_to_string(file).unwrap())
}

/// A number of a table, by function and column.
fn in_table(table: &str, function: &str, column: usize) -> u64 {
    let row = table
        .lines()
        .find(|line| line.ends_with(&format!("  {function}")));
    let row = row.unwrap_or_else(|| panic!("{function} is not in {table}"));
    row.split_whitespace().nth(column).unwrap().parse().unwrap()
}
const CALLS: usize = 4;
const ERRORS: usize = 5;
const EMPTY: usize = 6;
