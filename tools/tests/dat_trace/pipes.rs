//! Traces into named pipes: whoever reads one has the whole trace, and whoever does not keeps no program
//! from going on.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// What only a program reaches that waits for ever.
const LIMIT: Duration = Duration::from_secs(60);

fn pipe(folder: &Folder) -> PathBuf {
    let path = folder.path("pipe");
    let status = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(status.success());
    path
}

/// Someone who has the pipe open, and reads when he likes.
fn reader(pipe: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    options.open(pipe).unwrap()
}

/// Runs a command that must come to an end.
fn run(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{:?} hangs", command.get_program());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// A traced program, whose trace goes to a file without dat-trace.
fn by_variables(folder: &Folder, what: &str, file: &Path) -> Command {
    let mut command = Command::new(program(folder, &DAT_2_0));
    command
        .arg(what)
        .env("DAT_OVERRIDE", folder.path("dat.conf"))
        .env("DAT_TRACE", "calls")
        .env("DAT_TRACE_FILE", file);
    command
}

/// What is said once about a trace that cannot be written.
fn said(output: &Output, file: &Path) -> String {
    let said = text(&output.stderr);
    let (file, lines) = (file.display(), said.lines().count());
    let start = format!("libdat: the trace cannot be written to {file} (DAT_TRACE_FILE): ");
    assert!(lines == 1 && said.starts_with(&start), "{said}");
    said[start.len()..].trim_end().to_owned()
}

#[test]
fn a_reader_has_the_whole_trace() {
    let folder = Folder::new("reader");
    let pipe = pipe(&folder);
    let reads = thread::spawn({
        let pipe = pipe.clone();
        // Waits for the first writer, and has the end when there is none.
        move || fs::read_to_string(pipe).unwrap()
    });
    let mut command = dat_trace(&folder);
    command.arg("-o").arg(&pipe);
    let output = run(command.arg(program(&folder, &DAT_2_0)).arg("threads"));
    assert_eq!(text(&output.stderr), "");
    let (_, table) = lines(&reads.join().unwrap());
    assert_eq!(in_table(&table, "dat_evd_free", CALLS), 200, "{table}");
    assert!(!table.contains("could not be written"), "{table}");
}

#[test]
fn a_pipe_that_nobody_reads_is_not_waited_for() {
    let folder = Folder::new("nobody");
    let pipe = pipe(&folder);
    let output = run(&mut by_variables(&folder, "connection", &pipe));
    assert_eq!(said(&output, &pipe), "nobody reads this pipe");
}

#[test]
fn a_reader_that_leaves_is_no_harm() {
    let folder = Folder::new("leaves");
    let pipe = pipe(&folder);
    let reads = thread::spawn({
        let pipe = pipe.clone();
        move || File::open(pipe).unwrap().read_exact(&mut [0]).unwrap()
    });
    let mut command = dat_trace(&folder);
    command.arg("-o").arg(&pipe);
    let output = run(command.arg(program(&folder, &DAT_2_0)).arg("connection"));
    reads.join().unwrap();
    let why = said(&output, &pipe);
    assert!(["nobody reads this pipe", "Broken pipe (os error 32)"].contains(&&*why));
}

#[test]
fn a_reader_that_stops_is_waited_for_once() {
    let folder = Folder::new("stops");
    let pipe = pipe(&folder);
    let reader = reader(&pipe);
    // Full after some lines.
    // SAFETY: a number for the pipe of a descriptor of ours.
    assert!(unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) } > 0);
    let output = run(&mut by_variables(&folder, "connection", &pipe));
    assert_eq!(said(&output, &pipe), "its reader takes nothing");
}

/// The lines of a reader that is slow, but goes on, are all there.
#[test]
fn a_slow_reader_has_the_whole_trace() {
    let folder = Folder::new("slow");
    let pipe = pipe(&folder);
    // SAFETY: as above.
    let full = |file: &File| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
    let mut reader = reader(&pipe);
    assert!(full(&reader) > 0);
    let writer = OpenOptions::new().write(true).open(&pipe).unwrap();
    let reads = thread::spawn(move || {
        let (mut trace, mut part) = (Vec::new(), [0; 1000]);
        loop {
            match reader.read(&mut part) {
                Ok(0) => return String::from_utf8(trace).unwrap(),
                Ok(len) => trace.write_all(&part[..len]).unwrap(),
                Err(_) => {}
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    let output = run(&mut by_variables(&folder, "threads", &pipe));
    assert_eq!(text(&output.stderr), "");
    drop(writer);
    let (lines, table) = lines(&reads.join().unwrap());
    assert!(lines.len() > 400, "{lines:?}");
    assert_eq!(in_table(&table, "dat_evd_free", CALLS), 200, "{table}");
}
