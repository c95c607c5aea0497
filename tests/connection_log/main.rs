//! What `DAT_DBG_TYPE` 0x02 says of connections that could not be made, or broke, and 0x40 of the
//! steps of setting them up: one line each, with every field, and nothing of it when nobody asked.
//! The test program starts itself again, so that each scenario has a log and standard error of its
//! own.

#[path = "../common/libs.rs"]
mod libs;
mod scenarios;
#[path = "../common/soft.rs"]
mod soft;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::net::{AddressFamily, SocketType};

/// Tells a child what to do, and with which `ia_params`.
const SCENARIO: &str = "LIBDAT_TEST_SCENARIO";
const PARAMS: &str = "LIBDAT_TEST_PARAMS";
/// Where the peer of a child listens.
const PORT: &str = "LIBDAT_TEST_PORT";

/// The handles of the endpoints of a scenario.
const ACTIVE: u64 = 0x5eed_0001;
const PASSIVE: u64 = 0x5eed_0002;

const LOOPBACK: &str = "127.0.0.1";
const SHM: &str = "127.0.0.1 path=shm";
const TCP: &str = "127.0.0.1 path=tcp";

/// What the log calls the path that these parameters lead to, with both ends in one process.
fn path(params: &str) -> &'static str {
    match params {
        SHM => "shared memory",
        TCP => "TCP",
        _ => "loopback",
    }
}

/// Does what the environment says, in a child.
#[test]
fn child() {
    if let Ok(name) = std::env::var(SCENARIO) {
        dat_core::testing::log_sink::install();
        let params = std::env::var(PARAMS).unwrap();
        let port = std::env::var(PORT).map_or(0, |port| port.parse().unwrap());
        scenarios::run(&name, &params, port);
    }
}

fn start(name: &str, params: &str, port: u16) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(SCENARIO, name)
        .env(PARAMS, params)
        .env(PORT, port.to_string())
        .env_remove("DAT_DBG_TYPE")
        .env_remove("DAT_DBG_DEST");
    command
}

/// Runs a scenario; the lines of its standard error.
fn said(name: &str, params: &str, port: u16, types: Option<&str>) -> Vec<String> {
    let mut command = start(name, params, port);
    if let Some(types) = types {
        command.env("DAT_DBG_TYPE", types);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{name}, {params}: {output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("libdat"));
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// A peer in another process, which accepts connections, or requests for datagrams.
struct Peer {
    child: Child,
    _input: ChildStdin,
    port: u16,
}

impl Peer {
    fn start(params: &str) -> Peer {
        Peer::start_as("peer", params)
    }

    fn start_as(scenario: &str, params: &str) -> Peer {
        let mut child = start(scenario, params, 0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("port ").map(|port| port.parse().unwrap()))
            .expect("the peer says where it listens");
        Peer {
            child,
            _input: input,
            port,
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens on, and nobody else gets, until the socket is closed.
fn dead_port() -> (rustix::fd::OwnedFd, u16) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    rustix::net::bind(&socket, &any).unwrap();
    let name = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    (socket, name.port())
}

/// A line of the log in its parts.
#[derive(PartialEq, Eq, Debug)]
struct Line<'a> {
    endpoint: &'a str,
    local: &'a str,
    remote: &'a str,
    qual: &'a str,
    path: &'a str,
    text: &'a str,
}

/// A line without the time, process and thread, which it has unless it is an error that is written
/// without anyone asking.
fn without_stamp(line: &str) -> &str {
    let Some((stamp, rest)) = line
        .split_once(": ")
        .filter(|_| line.starts_with(|c: char| c.is_ascii_digit()))
    else {
        return line;
    };
    let digits = |c: char| if c.is_ascii_digit() { '0' } else { c };
    let (time, who) = stamp.split_once(' ').expect(line);
    assert_eq!(
        time.chars().map(digits).collect::<String>(),
        "00:00:00.000000",
        "{line}"
    );
    let (process, thread) = who.split_once('/').expect(line);
    assert!(
        process.parse::<u32>().is_ok() && thread.parse::<u32>().is_ok(),
        "{line}"
    );
    rest
}

fn parse(line: &str) -> Line<'_> {
    let parts = || {
        let rest = without_stamp(line.strip_prefix("libdat: ")?);
        let (endpoint, rest) = rest.split_once(", local ")?;
        let (local, rest) = rest.split_once(", remote ")?;
        let (remote, rest) = rest.split_once(", qualifier ")?;
        let (qual, rest) = rest.split_once(", path ")?;
        let (path, text) = rest.split_once(": ")?;
        Some(Line {
            endpoint,
            local,
            remote,
            qual,
            path,
            text,
        })
    };
    parts().unwrap_or_else(|| panic!("not the form of a line about a connection: {line:?}"))
}

/// Runs a scenario with the log and without it. With it there is one line of the endpoint, with
/// this path and text; `PORT` in the text is the port of the qualifier. Without it there is none.
fn expect(name: &str, params: &str, port: u16, wanted: &[(u64, &str, &str)]) {
    assert_eq!(
        said(name, params, port, None),
        [""; 0],
        "{name}, {params}, nobody asked"
    );
    let lines = said(name, params, port, Some("0x02"));
    check(&lines, name, params, wanted);
}

fn check(lines: &[String], name: &str, params: &str, wanted: &[(u64, &str, &str)]) {
    assert_eq!(lines.len(), wanted.len(), "{name}, {params}: {lines:?}");
    for (endpoint, path, text) in wanted {
        let endpoint = format!("endpoint {endpoint:#x}");
        let of_it: Vec<Line<'_>> = lines
            .iter()
            .map(|line| parse(line))
            .filter(|line| line.endpoint == endpoint)
            .collect();
        let [line] = &of_it[..] else {
            panic!("{name}, {params}: not one line of {endpoint}: {lines:?}");
        };
        let host = |address: &str| address.split(':').next().map(str::to_owned);
        assert_eq!(host(line.local).as_deref(), Some("127.0.0.1"), "{line:?}");
        let remote = if name == "unreachable" {
            "255.255.255.255"
        } else {
            "127.0.0.1"
        };
        assert_eq!(host(line.remote).as_deref(), Some(remote), "{line:?}");
        assert!(line.qual.parse::<u16>().is_ok_and(|q| q > 0), "{line:?}");
        assert_eq!(line.path, *path, "{name}, {params}: {line:?}");
        let text = text.replace("PORT", line.qual);
        assert_eq!(line.text, text, "{name}, {params}");
    }
}

#[test]
fn nobody_listens() {
    let (_socket, port) = dead_port();
    let text = "not connected: no listener on port PORT";
    for (params, path) in [(LOOPBACK, "TCP"), (SHM, "shared memory"), (TCP, "TCP")] {
        expect("connect", params, port, &[(ACTIVE, path, text)]);
    }
}

#[test]
fn rejected_by_the_consumer() {
    let text = "not connected: rejected by the consumer of the peer";
    for params in [LOOPBACK, SHM, TCP] {
        expect("reject", params, 0, &[(ACTIVE, path(params), text)]);
    }
}

#[test]
fn dropped_by_the_listener() {
    let here = "not connected: refused by the listener of the peer: its queue is full, or it is \
                being closed";
    let away = "not connected: the peer has ended the connection without an answer";
    for (params, text) in [(LOOPBACK, here), (SHM, away), (TCP, away)] {
        expect("drop", params, 0, &[(ACTIVE, path(params), text)]);
    }
}

#[test]
fn no_answer_in_time() {
    let text = "not connected: no answer within 2 s";
    std::thread::scope(|s| {
        for params in [LOOPBACK, SHM, TCP] {
            s.spawn(move || expect("silence", params, 0, &[(ACTIVE, path(params), text)]));
        }
    });
}

#[test]
fn unreachable() {
    let text = "not connected: Network is unreachable (os error 101)";
    for params in [LOOPBACK, SHM, TCP] {
        expect("unreachable", params, 4711, &[(ACTIVE, "TCP", text)]);
    }
}

#[test]
fn accepted_when_the_peer_was_gone() {
    let given_up = "not connected: given up by the consumer of this end";
    let gone = "not accepted: the peer has given up, or is gone";
    for params in [LOOPBACK, SHM, TCP] {
        let path = path(params);
        let lines = [(ACTIVE, path, given_up), (PASSIVE, path, gone)];
        expect("gone", params, 0, &lines);
        // An endpoint that is freed gives up, too.
        expect("freed", params, 0, &lines);
    }
}

#[test]
fn connections_that_break() {
    let ours =
        "connection broken: a request of this end failed: the memory of the peer is not open to it";
    let theirs =
        "connection broken: a request of the peer failed: the memory of the peer is not open to it";
    expect(
        "break",
        LOOPBACK,
        0,
        &[(ACTIVE, "loopback", ours), (PASSIVE, "loopback", theirs)],
    );
    for params in [SHM, TCP] {
        let lines = said("break", params, 0, Some("0x02"));
        assert_eq!(lines.len(), 2, "{lines:?}");
        for line in &lines {
            let line = parse(line);
            assert_eq!(line.path, path(params), "{line:?}");
            assert!(line.text.starts_with("connection broken: "), "{line:?}");
        }
        assert_eq!(said("break", params, 0, None), [""; 0]);
    }
}

#[test]
fn a_peer_that_is_killed() {
    for (params, text) in [
        (SHM, "connection broken: the peer has broken it, or is gone"),
        (
            TCP,
            "connection broken: the peer or the way to it is gone: Connection reset by peer \
             (os error 104)",
        ),
    ] {
        for types in [None, Some("0x02")] {
            let peer = Peer::start(params);
            let mut command = start("outlive", params, peer.port);
            if let Some(types) = types {
                command.env("DAT_DBG_TYPE", types);
            }
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap() == "up"));
            // Its death takes what it has not read, so that TCP says more than that it is over.
            let pid = rustix::process::Pid::from_child(&peer.child);
            rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED).unwrap();
            let mut input = child.stdin.take().unwrap();
            input.write_all(b"\n").unwrap();
            assert!(lines.any(|line| line.unwrap() == "sent"));
            drop(peer);
            let rest: Vec<_> = lines.collect();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}, {rest:?}");
            let text_of = String::from_utf8(output.stderr).unwrap();
            let said: Vec<String> = text_of.lines().map(str::to_owned).collect();
            match types {
                None => assert_eq!(said, [""; 0]),
                Some(_) => check(&said, "outlive", params, &[(ACTIVE, path(params), text)]),
            }
        }
    }
}

#[test]
fn shared_memory_that_the_peer_does_not_offer() {
    let peer = Peer::start(TCP);
    let refused = "not connected: a peer listens on port PORT, but shares no memory with this \
                   process (no process of the same user offers it): it must be of the same user and \
                   must not have path=tcp";
    // Nothing will change until somebody changes the configuration: that is said unasked.
    for types in [None, Some("0x02")] {
        let lines = said("connect", SHM, peer.port, types);
        let wanted = [(ACTIVE, "shared memory", refused)];
        check(&lines, "connect", SHM, &wanted);
    }
    drop(peer);
    let detour = "shared memory refused, TCP taken instead: port PORT: no process of the \
                  same user offers it";
    for types in [None, Some("0x02")] {
        let peer = Peer::start(TCP);
        let lines = said("up", LOOPBACK, peer.port, types);
        let wanted = [(ACTIVE, "TCP", detour)];
        check(&lines, "up", LOOPBACK, &wanted[..types.map_or(0, |_| 1)]);
    }
}

/// Whoever listens on a port that belongs to a wide qualifier need not be a peer.
#[test]
fn another_program_at_a_port_of_a_wide_qualifier() {
    let program = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = program.local_addr().unwrap().port();
    assert_eq!(said("connect-wide", SHM, port, None), [""; 0]);
    let lines = said("connect-wide", SHM, port, Some("0x02"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = parse(&lines[0]);
    assert_eq!(
        line.text, "not connected: no listener for the qualifier",
        "{lines:?}"
    );
}

/// The lines say how datagrams reach the peer, and why they go over UDP to one on the same host.
#[test]
fn the_way_of_datagrams() {
    let resolved = "peer of datagrams resolved";
    let paths = |lines: &[String]| {
        let lines = lines.iter().map(|line| parse(line));
        let of_them = lines.filter(|line| line.text == resolved);
        let paths: Vec<String> = of_them.map(|line| line.path.to_owned()).collect();
        paths
    };
    for (params, way) in [(LOOPBACK, "loopback"), (SHM, "shared memory"), (TCP, "UDP")] {
        let lines = said("resolve-here", params, 0, Some("0x40"));
        assert_eq!(paths(&lines), [way, way], "{params}: {lines:?}");
        assert_eq!(said("resolve-here", params, 0, Some("0x02")), [""; 0]);
    }
    for (params, way) in [(SHM, "shared memory"), (TCP, "UDP")] {
        let peer = Peer::start_as("datagram-peer", params);
        let lines = said("resolve", LOOPBACK, peer.port, Some("0x40"));
        assert_eq!(paths(&lines), [way], "{params}: {lines:?}");
        let lines = said("resolve", LOOPBACK, peer.port, Some("0x02"));
        let detour = "shared memory refused, UDP taken instead: port PORT: no process of the same \
                      user offers it";
        let wanted = [(ACTIVE, "UDP", detour)];
        let count = usize::from(params == TCP);
        check(&lines, "resolve", LOOPBACK, &wanted[..count]);
    }
}

#[test]
fn answers_and_requests_that_are_none() {
    let text = "not connected: protocol violation: the answer of the peer: invalid MPA request or \
                reply frame (2/0/04)";
    expect("wrong-answer", TCP, 0, &[(ACTIVE, "TCP", text)]);
    assert_eq!(said("wrong-request", TCP, 0, None), [""; 0]);
    let lines = said("wrong-request", TCP, 0, Some("0x02"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = parse(&lines[0]);
    assert_eq!((line.endpoint, line.path), ("no endpoint", "TCP"));
    assert_eq!(
        line.text,
        "not accepted: protocol violation: invalid MPA request or reply frame (2/0/04)"
    );
}

/// Runs a scenario with 0x40. The listening end and the connecting end have these steps, each in
/// this order; a line without an endpoint is one of the listening end, which has none yet.
fn expect_steps(name: &str, params: &str, active: &[&str], passive: &[(Option<u64>, &str)]) {
    let lines = said(name, params, 0, Some("0x40"));
    let lines: Vec<Line<'_>> = lines.iter().map(|line| parse(line)).collect();
    let handle = |endpoint: Option<u64>| match endpoint {
        Some(endpoint) => format!("endpoint {endpoint:#x}"),
        None => "no endpoint".to_owned(),
    };
    let connecting = handle(Some(ACTIVE));
    let (ours, theirs): (Vec<&Line<'_>>, Vec<&Line<'_>>) =
        lines.iter().partition(|line| line.endpoint == connecting);
    let steps: Vec<&str> = ours.iter().map(|line| line.text).collect();
    assert_eq!(steps, active, "{name}, {params}: {lines:?}");
    let steps: Vec<(String, &str)> = theirs
        .iter()
        .map(|line| (line.endpoint.to_owned(), line.text))
        .collect();
    let wanted: Vec<(String, &str)> = passive
        .iter()
        .map(|(endpoint, text)| (handle(*endpoint), *text))
        .collect();
    assert_eq!(steps, wanted, "{name}, {params}: {lines:?}");
    let qual = lines[0].qual;
    for line in &lines {
        assert_eq!((line.path, line.qual), (path(params), qual), "{line:?}");
        for address in [line.local, line.remote] {
            assert_eq!(address.split(':').next(), Some("127.0.0.1"), "{line:?}");
        }
    }
    // Where a request goes, and where it arrives.
    let listening = format!("127.0.0.1:{qual}");
    assert_eq!(
        (ours[0].remote, theirs[0].local),
        (&*listening, &*listening)
    );
}

#[test]
fn steps_of_a_connection() {
    for params in [LOOPBACK, SHM, TCP] {
        assert_eq!(said("both", params, 0, Some("0x02")), [""; 0], "{params}");
        let passive = [
            (None, "request arrived"),
            (Some(PASSIVE), "request accepted"),
            (Some(PASSIVE), "connected"),
            (Some(PASSIVE), "connection ended"),
        ];
        let active = [
            "request sent",
            "connected",
            "disconnecting gracefully",
            "connection ended",
        ];
        expect_steps("both", params, &active, &passive);
    }
}

#[test]
fn steps_of_requests_that_are_not_accepted() {
    let dropped = "request dropped: the queue of the listener is full, or it is being closed";
    for (name, end) in [("reject", "request rejected"), ("drop", dropped)] {
        for params in [LOOPBACK, SHM, TCP] {
            let passive = [(None, "request arrived"), (None, end)];
            expect_steps(name, params, &["request sent"], &passive);
        }
    }
}

/// The endpoint of the log is the handle that the program has.
#[test]
fn a_program_finds_its_endpoint() {
    let library = &libs::DAT_2_0;
    let (_socket, port) = dead_port();
    for profile in libs::profiles() {
        let dir = libs::directory(profile);
        let program = dir.join(format!("connection-log-{}", std::process::id()));
        let compiled = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror"])
            .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include"))
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/connection_log/program.c"
            ))
            .arg("-o")
            .arg(&program)
            .arg(format!("-Wl,-rpath,{}", dir.display()))
            .arg(dir.join(library.file))
            .status()
            .unwrap();
        assert!(compiled.success());
        assert_eq!(library.version, "2.0");
        let config = program.with_extension("conf");
        let entry = format!("a u2.0 threadsafe default builtin:soft libdat.1.0 \"{TCP}\" \"\"\n");
        std::fs::write(&config, entry).unwrap();
        let run = |types: &str| {
            let output = Command::new(&program)
                .args(["a", &port.to_string()])
                .env("DAT_OVERRIDE", &config)
                .env("DAT_DBG_TYPE", types)
                .env_remove("DAT_DBG_DEST")
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (text(output.stdout), text(output.stderr))
        };
        assert_eq!(run("1").1, "");
        let (handle, log) = run("2");
        let endpoint = format!("endpoint {}", handle.trim_end());
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 1, "{log}");
        assert_eq!(parse(lines[0]).endpoint, endpoint);
        for file in [program, config] {
            let _ = std::fs::remove_file(file);
        }
    }
}
