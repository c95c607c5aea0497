//! `dat-top` as a user runs it, with programs on the libraries of this tree: dat-perf, which has
//! endpoints and moves data. What exactly is counted is tested by `tests-c/t_figures.c`.

#[allow(dead_code)] // other tests need the rest of it
#[path = "../../tests/common/libs.rs"]
mod libs;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

fn config(test: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("dat-top-{test}.conf"));
    fs::write(
        &path,
        "soft u2.0 threadsafe default builtin:soft v.1.0 \"127.0.0.1 path=shm\" \"\"\n\
         tcp  u2.0 threadsafe default builtin:soft v.1.0 \"127.0.0.1 path=tcp\" \"\"\n\
         mute u2.0 threadsafe default builtin:soft v.1.0 \"127.0.0.1\" \"\"\n\
         count u2.0 threadsafe default builtin:soft v.1.0 \"127.0.0.1 counters=on\" \"\"\n",
    )
    .unwrap();
    path
}

/// A process that is killed at the end of its test.
struct Program(Child);

impl Program {
    /// dat-perf, with this value of `DAT_COUNTERS`.
    fn dat_perf(test: &str, counters: Option<&str>, arguments: &[&str]) -> Program {
        for profile in libs::profiles() {
            libs::directory(profile);
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_dat-perf"));
        command.env("DAT_OVERRIDE", config(test)).args(arguments);
        command.env_remove("DAT_COUNTERS");
        command.envs(counters.map(|value| ("DAT_COUNTERS", value)));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        Program(command.spawn().unwrap())
    }

    fn id(&self) -> String {
        self.0.id().to_string()
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a process of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, and a client that sends messages to it.
struct Traffic {
    server: Program,
    client: Program,
}

impl Traffic {
    fn start(test: &str, ia: &str, counters: Option<&str>) -> Traffic {
        let arguments = ["--server", "-q", "0", "-i", ia];
        let mut server = Program::dat_perf(test, counters, &arguments);
        let mut lines = BufReader::new(server.0.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| eprintln!("{line}"))
        });
        let qualifier = first.rsplit(' ').next().unwrap();
        let mut arguments = vec!["--client", "127.0.0.1", "-q", qualifier, "-i", ia];
        arguments.extend([
            "-t",
            "latency",
            "-o",
            "send",
            "-s",
            "100",
            "-n",
            "100000000",
        ]);
        arguments.extend(["--pause", "1000", "--warm-up", "4"]);
        let client = Program::dat_perf(test, counters, &arguments);
        Traffic { server, client }
    }

    /// The first endpoint of the server, as soon as it has received messages or `enough` says so.
    fn endpoint(&self, enough: impl Fn(&Value) -> bool) -> Value {
        loop {
            let output = dat_top(&["--once", "--json", "-p", &self.server.id()]);
            let ias = processes(&output)[0]["ias"].clone();
            let endpoint = &ias[0]["endpoints"][0];
            if enough(endpoint) {
                return endpoint.clone();
            }
        }
    }
}

fn dat_top(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dat-top"));
    command.args(arguments).output().unwrap()
}

/// A dat-top that goes on.
fn watch(arguments: &[&str]) -> (Program, BufReader<ChildStdout>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dat-top"));
    let command = command.args(arguments).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (Program(child), out)
}

fn processes(output: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    all["processes"].as_array().unwrap().clone()
}

/// The next line with one of these words, in which the other words of the test are.
fn line_with(out: &mut impl BufRead, word: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(out.read_line(&mut line).unwrap() > 0, "no {word}");
        if line.contains(word) {
            return line;
        }
    }
}

#[test]
fn what_a_process_shows() {
    for (ia, counters, path) in [
        ("soft", Some("on"), "shared memory"),
        ("tcp", Some("on"), "TCP"),
        ("count", None, "shared memory"),
    ] {
        let traffic = Traffic::start("shows", ia, counters);
        let received = |endpoint: &Value| endpoint["counters"]["DCNT_EP_RECV"].as_u64();
        let endpoint = traffic.endpoint(|endpoint| received(endpoint) > Some(100));
        assert_eq!(endpoint["state"], "CONNECTED");
        assert_eq!(endpoint["path"], path);
        assert!(endpoint["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
        // All processes are more than this one; the client is among them.
        let client = || {
            let mut all = processes(&dat_top(&["--once", "--json"])).into_iter();
            all.find(|process| process["pid"] == traffic.client.0.id())
                .unwrap()
        };
        // On a busy machine it may answer too late.
        let mut clients = std::iter::repeat_with(client).take(20);
        let client = clients.find(|client| client["state"] == "running").unwrap();
        assert_eq!(client["program"], "dat-perf");
        assert_eq!(client["ias"][0]["name"], ia);
    }
}

#[test]
fn states_without_counters() {
    let traffic = Traffic::start("states", "tcp", Some("states"));
    let endpoint = traffic.endpoint(|endpoint| endpoint["state"] == "CONNECTED");
    assert!(endpoint["counters"].is_null());
    let output = dat_top(&["--once", "-p", &traffic.server.id()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("counters off, 1 endpoints"), "{text}");
    let row = text
        .lines()
        .find(|line| line.contains("CONNECTED"))
        .unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[2], "TCP");
    assert_eq!(cells[6..], ["-"; 9]);
}

#[test]
fn rates_until_nobody_reads() {
    let traffic = Traffic::start("rates", "tcp", Some("on"));
    traffic.endpoint(|endpoint| endpoint["state"] == "CONNECTED");
    let (mut top, mut out) = watch(&["-p", &traffic.server.id(), "-d", "0.2"]);
    let heads = line_with(&mut out, "ENDPOINT");
    let column = |name: &str| heads.split_whitespace().position(|head| head == name);
    let (rate, bytes) = (column("RECV/s").unwrap(), column("IN/s").unwrap());
    loop {
        let row = line_with(&mut out, "CONNECTED");
        let cells: Vec<&str> = row.split_whitespace().collect();
        // The first reading has none before.
        let Ok(rate) = cells[rate].parse::<f64>() else {
            assert_eq!(cells[rate], "-");
            continue;
        };
        if rate == 0.0 {
            continue;
        }
        // A pause of a millisecond is between two messages, and this end may be interrupted while it is read.
        assert!(rate <= 10_000.0, "{row}");
        assert_ne!(cells[bytes], "0");
        break;
    }
    drop(out);
    assert!(top.0.wait().unwrap().success());
}

#[test]
fn a_process_that_is_stopped_and_ends() {
    let mut traffic = Traffic::start("stopped", "tcp", Some("states"));
    traffic.endpoint(|endpoint| endpoint["state"] == "CONNECTED");
    let id = traffic.server.id();
    let (mut top, mut out) = watch(&["-p", &id, "-d", "0.1", "--json"]);
    traffic.server.signal(libc::SIGSTOP);
    line_with(&mut out, r#""state":"stopped""#);
    let once = dat_top(&["--once", "-p", &id]);
    let text = String::from_utf8(once.stdout).unwrap();
    assert_eq!(text, format!("{id} dat-perf, stopped\n"));
    traffic.server.signal(libc::SIGCONT);
    line_with(&mut out, r#""state":"running""#);
    traffic.server.0.kill().unwrap();
    traffic.server.0.wait().unwrap();
    assert!(top.0.wait().unwrap().success());
}

#[test]
fn processes_that_show_nothing() {
    let why = |id: &str| {
        let output = dat_top(&["--once", "-p", id]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    let own = std::process::id().to_string();
    assert!(why(&own).contains("offers no figures"));
    assert!(why("4194305").contains("there is no process"));
    // dat-perf asks for states unless the user has said something else.
    let mut silent = Program::dat_perf("mute", Some("off"), &["--server", "-q", "0", "-i", "mute"]);
    let said = BufReader::new(silent.0.stderr.take().unwrap());
    assert!(said.lines().next().is_some(), "its IA is open");
    assert!(why(&silent.id()).contains("offers no figures"));
    let output = dat_top(&["-d", "0"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_full_disk_is_an_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dat-top"));
    command.arg("--once").stderr(Stdio::piped());
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("No space left"), "{said}");
}

/// Both ends of a terminal.
fn terminal() -> (File, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    let none = null_mut();
    // SAFETY: places for the two descriptors.
    let made = unsafe { libc::openpty(&mut ours, &mut theirs, none, null_mut(), null_mut()) };
    assert_eq!(made, 0);
    // SAFETY: new descriptors, which are ours.
    unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

/// Whether lines are edited by the terminal, as they were before.
fn edits_lines(terminal: &OwnedFd) -> bool {
    let mut mode = MaybeUninit::<libc::termios>::uninit();
    // SAFETY: a place for the mode, which is filled.
    let mode = unsafe {
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), mode.as_mut_ptr()), 0);
        mode.assume_init()
    };
    mode.c_lflag & (libc::ICANON | libc::ECHO) == libc::ICANON | libc::ECHO
}

#[test]
fn keys_end_it_on_a_terminal() {
    for key in [b"q", b"\x03"] {
        let (mut ours, theirs) = terminal();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dat-top"));
        command.stdin(theirs.try_clone().unwrap());
        command.stdout(theirs.try_clone().unwrap());
        // SAFETY: system calls alone, for the terminal at standard input to send signals.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let mut top = Program(command.args(["-d", "60"]).spawn().unwrap());
        let mut shown = Vec::new();
        // The end of what is drawn.
        while !shown.ends_with(b"\x1b[J") {
            let mut some = [0; 256];
            let count = ours.read(&mut some).unwrap();
            shown.extend(&some[..count]);
        }
        assert!(!edits_lines(&theirs));
        ours.write_all(key).unwrap();
        assert!(top.0.wait().unwrap().success());
        assert!(edits_lines(&theirs));
    }
}

/// A pipe that is full.
fn full_pipe() -> (io::PipeReader, io::PipeWriter) {
    let (reader, writer) = io::pipe().unwrap();
    let flags = |flags: libc::c_int| {
        // SAFETY: a number, for a descriptor of ours.
        let set = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags) };
        assert_eq!(set, 0);
    };
    flags(libc::O_NONBLOCK);
    while (&writer).write(&[b'x'; 4096]).is_ok() {}
    flags(0);
    (reader, writer)
}

#[test]
fn a_signal_ends_it_while_its_reader_takes_nothing() {
    let (reader, writer) = full_pipe();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dat-top"));
    command.args(["--json", "-d", "60"]).stdout(writer);
    let mut top = Program(command.spawn().unwrap());
    drop(command);
    let status = format!("/proc/{}/status", top.id());
    let blocked = || {
        let status = fs::read_to_string(&status).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(mask.unwrap().trim(), 16).unwrap()
    };
    // Before that the signal would end any program.
    while blocked() & 1 << (libc::SIGTERM - 1) == 0 {
        thread::yield_now();
    }
    top.signal(libc::SIGTERM);
    let begun = Instant::now();
    let ended = loop {
        match top.0.try_wait().unwrap() {
            None if begun.elapsed() < Duration::from_secs(20) => thread::yield_now(),
            ended => break ended,
        }
    };
    assert!(ended.expect("it goes on").success());
    drop(reader);
}
