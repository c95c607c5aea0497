//! `dat-perf` as a user runs it, with the libraries of this tree: on the soft provider, in one
//! process and in two.

#[allow(dead_code)] // other tests need the rest of it
#[path = "../../tests/common/libs.rs"]
mod libs;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// Every operation, quickly, with all data checked.
const ALL: [&str; 8] = ["-s", "1,8,100,64K", "-n", "50", "--warm-up", "4", "-w", "8"];

/// A command with a configuration that has the soft provider on the loopback interface.
fn dat_perf(test: &str) -> Command {
    for profile in libs::profiles() {
        libs::directory(profile);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_dat-perf"));
    command.env("DAT_OVERRIDE", config(test));
    command
}

fn config(test: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("dat-perf-{test}.conf"));
    fs::write(
        &path,
        "soft u2.0 threadsafe default builtin:soft v.1.0 \"127.0.0.1\" \"\"\n\
         tcp  u2.0 threadsafe default builtin:soft v.1.0 \"127.0.0.1 path=tcp\" \"\"\n",
    )
    .unwrap();
    path
}

/// The rows of a JSON report.
fn results(output: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["program"], "dat-perf");
    report["results"].as_array().unwrap().clone()
}

/// Whether a report has all that [`ALL`] asks for.
fn complete(rows: &[Value]) {
    // Three tests with three operations, and write-poll, which needs whole words.
    assert_eq!(rows.len(), 4 * 3 + 2 + 4 * 3 + 3 * 4);
    for row in rows {
        let figure = match row["test"].as_str() {
            Some("latency") => &row["latency_us"]["p99.9"],
            _ => &row["messages_per_second"],
        };
        assert!(figure.as_f64().is_some_and(|value| value > 0.0), "{row}");
    }
}

/// A server that is killed at the end of its test, unless it has ended.
struct Server(Child, String);

impl Server {
    fn start(test: &str, arguments: &[&str]) -> Server {
        let mut command = dat_perf(test);
        command.args(["--server", "-q", "0"]).args(arguments);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        // Its later words go where ours go.
        thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| eprintln!("{line}"))
        });
        let qualifier = first.rsplit(' ').next().unwrap().to_owned();
        assert!(first.contains("(127.0.0.1)"), "{first}");
        Server(child, qualifier)
    }

    fn client(&self, test: &str, arguments: &[&str]) -> Command {
        let mut command = dat_perf(test);
        command.args(["--client", "127.0.0.1", "-q", &self.1]);
        command.args(arguments);
        command
    }

    /// Waits for the end of a server that serves one client.
    fn end(mut self) {
        assert_eq!(ended(&mut self.0, 10), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn one_process() {
    for ia in ["soft", "tcp"] {
        let mut command = dat_perf("one");
        command.args(["--loopback", "--verify", "--json", "-i", ia]);
        complete(&results(&command.args(ALL).output().unwrap()));
    }
}

#[test]
fn two_processes() {
    for ia in ["soft", "tcp"] {
        let server = Server::start("two", &["--once", "-i", ia]);
        let mut client = server.client("two", &["--verify", "--json", "-i", ia]);
        complete(&results(&client.args(ALL).output().unwrap()));
        server.end();
    }
}

#[test]
fn data_that_is_touched() {
    let server = Server::start("touched", &["--once"]);
    let mut client = server.client("touched", &["--touch", "--json"]);
    let output = client.args(ALL).output().unwrap();
    complete(&results(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["data"], "touched");
    server.end();
}

#[test]
fn many_endpoints_and_waiting() {
    let server = Server::start("many", &[]);
    for extra in [
        &["--wait"][..],
        &["--passive"],
        &["--wait=server", "--pause", "100"],
    ] {
        let mut client = server.client("many", &["-e", "5", "--verify", "--json"]);
        let output = client.args(ALL).args(extra).output().unwrap();
        complete(&results(&output));
    }
}

/// The first endpoint has a latency while the others have a throughput.
#[test]
fn one_endpoint_beside_streams() {
    for ia in ["soft", "tcp"] {
        let server = Server::start("fairness", &["--once", "-i", ia]);
        let mut client = server.client("fairness", &["-t", "fairness", "-e", "3", "-i", ia]);
        client.args(["-s", "8,64K", "-n", "200", "-w", "8", "--verify", "--json"]);
        let rows = results(&client.output().unwrap());
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert!(row["latency_us"]["p50"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["bytes_per_second"].as_f64().unwrap() > 0.0, "{row}");
        }
        server.end();
    }
}

#[test]
fn endpoints_in_a_random_order() {
    let server = Server::start("random", &["--once"]);
    let mut client = server.client("random", &["-e", "20", "--random", "--verify", "--json"]);
    let output = client.args(ALL).output().unwrap();
    complete(&results(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["random"], true);
    server.end();
}

#[test]
fn memory_that_is_registered_for_each_operation() {
    for ia in ["soft", "tcp"] {
        let server = Server::start("register", &["--once", "-i", ia]);
        let mut client = server.client("register", &["--register", "-o", "send", "-i", ia]);
        let output = client.args(ALL).args(["--verify", "--json"]).output();
        let output = output.unwrap();
        // Three tests with four sizes.
        assert_eq!(results(&output).len(), 12);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["registered"], "each");
        server.end();
    }
}

#[test]
fn a_table_without_json() {
    let mut command = dat_perf("table");
    command.args(["--loopback", "-t", "latency", "-o", "send", "-s", "4K"]);
    let output = command.args(["-n", "10"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with("latency    send             4K          10 "),
        "{text}"
    );
}

#[test]
fn the_path_and_the_peer() {
    let quick = ["-t", "latency", "-o", "send", "-s", "8", "-n", "10"];
    let report = |command: &mut Command| -> Value {
        let output = command.args(quick).arg("--json").output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for (ia, path) in [("soft", "loopback"), ("tcp", "TCP")] {
        let report = report(dat_perf("link").args(["--loopback", "-e", "3", "-i", ia]));
        assert_eq!(report["path"], path);
        assert_eq!(report["peer"], "127.0.0.1");
    }
    let server = Server::start("link", &["-i", "tcp"]);
    let report = report(&mut server.client("link", &["-i", "tcp"]));
    assert_eq!(report["path"], "TCP");
    assert_eq!(report["peer"], "127.0.0.1");
    let mut client = server.client("link", &["-i", "tcp"]);
    let output = client.args(quick).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("IA tcp, path TCP, peer 127.0.0.1\n"),
        "{text}"
    );
    // Who wants nothing to be shown gets nothing.
    let mut mute = dat_perf("link");
    mute.env("DAT_COUNTERS", "off").arg("--loopback");
    let output = mute.args(quick).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("IA soft, path unknown, peer unknown\n"),
        "{text}"
    );
}

/// A measurement of two seconds.
const LONG: [&str; 11] = [
    "--loopback",
    "-t",
    "latency",
    "-o",
    "send",
    "-s",
    "8",
    "-n",
    "20",
    "--pause",
    "100000",
];

#[test]
fn progress_is_for_terminals() {
    let mut piped = dat_perf("progress");
    let piped = piped
        .args(LONG)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut ours, mut theirs) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: places for the two descriptors.
    let made = unsafe {
        libc::openpty(
            &mut ours,
            &mut theirs,
            none,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    assert_eq!(made, 0);
    // SAFETY: new descriptors, which are ours.
    let (mut ours, theirs) = unsafe { (fs::File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    let mut shown = dat_perf("progress");
    shown.args(LONG).stdout(Stdio::piped()).stderr(theirs);
    let child = shown.spawn().unwrap();
    // With the command goes our copy of its end of the terminal.
    drop(shown);
    let mut text = Vec::new();
    // The end of a terminal is an error.
    let _ = ours.read_to_end(&mut text);
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("1 of 1: latency send 8: "), "{text:?}");
    assert!(text.contains(" of about 2 s"), "{text:?}");
    assert!(text.ends_with("\r\x1b[K"), "{text:?}");
    for output in [child.wait_with_output(), piped.wait_with_output()] {
        let output = output.unwrap();
        assert!(output.status.success());
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(out.lines().last().unwrap().starts_with("latency    send"));
        assert!(!out.contains(['\x1b', '\r']), "{out:?}");
        assert!(output.stderr.is_empty());
    }
}

/// A client that has work for hours, in a measurement.
fn busy_client(server: &Server, arguments: &[&str]) -> Child {
    let mut command = server.client("interrupt", &["--time", "3600"]);
    command.args(arguments);
    // Whoever runs the tests in the background may have it ignored.
    let heard = || {
        // SAFETY: a system call, which may be made between fork and exec.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: as above.
    unsafe { command.pre_exec(heard) };
    let client = command.stdout(Stdio::null()).spawn().unwrap();
    // Once the client catches the signal, and a while after.
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", client.id())).unwrap();
        let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
        caught & 1 << (libc::SIGINT - 1) != 0
    };
    let begun = std::time::Instant::now();
    while !catches() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(500));
    client
}

fn interrupt(child: &Child) {
    // SAFETY: a child of ours that has not been waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
}

/// The exit status of a program that ends within some seconds.
fn ended(child: &mut Child, seconds: u32) -> Option<i32> {
    for _ in 0..20 * seconds {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("the program has not ended");
}

/// While messages arrive all the time, too, in each loop.
#[test]
fn an_interrupt_ends_the_client_and_not_the_server() {
    let server = Server::start("interrupt", &[]);
    for measurement in [
        ["-t", "latency", "-o", "send"],
        ["-t", "latency", "-o", "write"],
        ["-t", "latency", "-o", "write-poll"],
        ["-t", "bandwidth", "-o", "send"],
        ["-t", "rate", "-o", "write"],
    ] {
        let mut client = busy_client(&server, &measurement);
        interrupt(&client);
        assert_eq!(ended(&mut client, 60), Some(130), "{measurement:?}");
    }
    let mut next = server.client("interrupt", &["--json", "-n", "5", "-s", "8"]);
    assert!(!results(&next.output().unwrap()).is_empty());
}

#[test]
fn an_interrupt_ends_the_server_that_a_client_keeps_busy() {
    for measurement in [
        ["-t", "latency", "-o", "send"],
        ["-t", "latency", "-o", "write"],
        ["-t", "latency", "-o", "write-poll"],
        ["-t", "bandwidth", "-o", "send"],
    ] {
        let mut server = Server::start("interrupted", &[]);
        let mut client = busy_client(&server, &measurement);
        interrupt(&server.0);
        assert_eq!(ended(&mut client, 60), Some(1), "{measurement:?}");
        assert_eq!(ended(&mut server.0, 60), Some(130), "{measurement:?}");
    }
}

#[test]
fn mistakes_have_a_message_and_a_status() {
    let said = |arguments: &[&str], status| {
        let output = dat_perf("mistakes").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = said(&["--loopback", "-i", "nobody"], 1);
    assert!(
        text.starts_with("dat-perf: no interface adapter is called \"nobody\""),
        "{text}"
    );
    // Nobody listens on the port of "discard".
    let text = said(&["--client", "127.0.0.1", "-q", "9"], 1);
    assert!(
        text.contains("127.0.0.1, qualifier 9: no connection: connection refused"),
        "{text}"
    );
    let text = said(&["--loopback", "-t", "rate", "-o", "write-poll"], 1);
    assert!(text.contains("nothing to measure"), "{text}");
    let text = said(&["--loopback", "-t", "fairness", "-e", "2"], 1);
    assert!(
        text.contains("fairness needs several endpoints, and a server"),
        "{text}"
    );
    let text = said(&["--loopback", "--register"], 1);
    assert!(
        text.contains("with one endpoint and -o send only"),
        "{text}"
    );
    for wrong in [
        &[][..],
        &["--server", "--loopback"],
        &["--loopback", "-s", "0"],
        &["--loopback", "-n", "18446744073709551615"],
        &["--loopback", "-n", "1000000000001"],
    ] {
        said(wrong, 2);
    }
}

/// A full disk is an error; a pipe whose reader has seen enough is none.
#[test]
fn standard_output_that_takes_nothing() {
    for form in [&[][..], &["--json"]] {
        for full in [true, false] {
            let mut command = dat_perf("output");
            command
                .args(["--loopback", "-t", "latency", "-n", "10"])
                .args(form);
            if full {
                command.stdout(fs::File::create("/dev/full").unwrap());
            } else {
                let (reader, writer) = std::io::pipe().unwrap();
                drop(reader);
                command.stdout(writer);
            }
            let output = command.stderr(Stdio::piped()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(i32::from(full)), "{said}");
            assert_eq!(said.contains("No space left"), full, "{said}");
        }
    }
}
