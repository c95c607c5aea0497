//! Bursts of attempts to connect to another process of this host, through shared memory alone. The test program starts
//! itself again as that process.

#[path = "common/itself.rs"]
mod itself;
#[path = "common/soft.rs"]
mod soft;

use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use dat_core::testing::device::soft::Soft;
use dat_core::testing::device::*;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use itself::Itself;
use soft::{PATIENCE, Quiet, Requests, queue_pair};

/// Tells the server how many connections it is to accept.
const COUNT: &str = "LIBDAT_TEST_BURST";
/// Set in processes with the limits of ordinary users.
const LIMITED: &str = "LIBDAT_TEST_BURST_LIMITED";
const PARAMS: &str = "127.0.0.1 path=shm";
/// Longer than a process may keep an attempt from something else that there is to be tried.
const STOPPED: Duration = Duration::from_millis(2500);

/// How many connections there are, in a process that may have fewer descriptors than usual.
fn count() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Two for each, and some for all else.
    3000.min(limit.saturating_sub(300) as usize / 2)
}

/// Gives a process the limits of one of an ordinary user: as many descriptors as are usual, and no capabilities, with which
/// the kernel does not count the files that are under way.
fn limit() -> std::io::Result<()> {
    let (current, maximum) = (Some(1024), Some(1024));
    setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    for capability in 0..64 {
        // Who may not do that has none. It takes effect when another program is executed.
        // SAFETY: a system call without memory.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability) };
    }
    Ok(())
}

#[test]
fn server() {
    let Ok(count) = std::env::var(COUNT) else {
        return;
    };
    dat_core::testing::log_sink::install();
    let device = Soft::open(PARAMS).unwrap();
    let (tx, requests) = channel();
    let (_listener, qual) = device.listen_any(Arc::new(Requests(tx))).unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(100, Arc::new(Quiet)).unwrap();
    println!("\nqual {qual}");
    let accept = |_| {
        let (qp, events) = queue_pair(&device, &pd, &cq, 1, 1);
        let request = requests.recv_timeout(PATIENCE).unwrap();
        device.accept(request, &qp, b"").unwrap();
        (qp, events)
    };
    let _ends: Vec<_> = (0..count.parse().unwrap()).map(accept).collect();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// All connections of a burst are made, although the process at which they are aimed is stopped for a while.
#[test]
fn a_burst_at_a_process_that_is_stopped() {
    burst();
}

/// A burst in a process of its own.
#[test]
fn limited() {
    if std::env::var_os(LIMITED).is_some() {
        burst();
    }
}

/// The files of several bursts of one user are more than the kernel lets be under way.
#[test]
fn bursts_of_an_ordinary_user() {
    let bursts = [(); 6].map(|()| {
        let mut command = itself::command("limited");
        // The log says why an attempt has failed, of either end.
        command.env(LIMITED, "").env("DAT_DBG_TYPE", "2");
        command.stderr(Stdio::piped());
        // SAFETY: the function makes system calls.
        unsafe { command.pre_exec(limit) };
        command.spawn().unwrap()
    });
    for burst in bursts {
        let output = burst.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
    }
}

fn burst() {
    dat_core::testing::log_sink::install();
    let mut command = itself::command("server");
    command.env(COUNT, count().to_string());
    let mut server = Itself::start(command).unwrap();
    let qual = server.numbers::<u64>("qual ")[0];
    let device = Soft::open(PARAMS).unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(100, Arc::new(Quiet)).unwrap();
    let ends: Vec<_> = (0..count())
        .map(|n| queue_pair(&device, &pd, &cq, n as u64, 1))
        .collect();
    let pid = Pid::from_child(&server.child);
    kill_process(pid, Signal::STOP).unwrap();
    let to = "127.0.0.1:0".parse().unwrap();
    for (qp, _) in &ends {
        device
            .connect(qp, to, qual, Some(4 * PATIENCE), b"")
            .unwrap();
    }
    std::thread::sleep(STOPPED);
    kill_process(pid, Signal::CONT).unwrap();
    for (n, (_, events)) in ends.iter().enumerate() {
        let event = events.recv_timeout(4 * PATIENCE).unwrap();
        let private_data = Box::default();
        assert_eq!(event, CmEvent::Established { private_data }, "{n}");
    }
    drop(ends);
    server.end();
}
