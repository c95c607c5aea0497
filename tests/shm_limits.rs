//! Limits on the size of files (`RLIMIT_FSIZE`), which shared memory is made of, and the log may
//! be, and on their number (`RLIMIT_NOFILE`): connections are made all the same, and nobody is killed. The test program starts itself again as the
//! server, and as the one who is limited.

#[path = "common/itself.rs"]
mod itself;
#[path = "common/poll.rs"]
mod poll;
#[path = "common/processes.rs"]
mod processes;
#[path = "common/soft.rs"]
mod soft;

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dat_core::testing::device::soft::Soft;
use dat_core::testing::device::*;

use processes::{End, KEYS, Server, serve, shared_memories};
use soft::PATIENCE;
use soft::Requests;

const ROLE: &str = "LIBDAT_TEST_LIMITED";

#[test]
fn server() {
    serve();
}

fn limit(bytes: u64) -> impl FnMut() -> std::io::Result<()> + Send + Sync + 'static {
    move || {
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: bytes,
        };
        // SAFETY: a system call, which may be made between fork and exec.
        match unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

/// What a limited process does, in a process of its own.
#[test]
fn limited() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    match &*role {
        "connects" => connects(),
        "few descriptors" => connects_with_few_descriptors(),
        "registers" => registers(),
        "logs" => logs(),
        _ => within_the_process(&role),
    }
}

/// [`limited`] in that role with files of at most so many bytes.
fn command(role: &str, bytes: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "limited", "--nocapture", "--test-threads=1"])
        .env(ROLE, role);
    // SAFETY: the closure makes a system call.
    unsafe { command.pre_exec(limit(bytes)) };
    command
}

/// Runs it, and gives what it says.
fn run(role: &str, bytes: u64) -> String {
    let output = command(role, bytes).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.signal(),
        None,
        "{role} with {bytes} bytes: {errors}"
    );
    assert!(
        output.status.success(),
        "{role} with {bytes} bytes: {text}{errors}"
    );
    text
}

fn connects() {
    let server = Server::start("127.0.0.1", |_| ());
    let device = Soft::open("127.0.0.1").unwrap();
    let end = server.connect(&device);
    println!("\nshares {}", shared_memories() > 0);
    server.process.end();
    end.event();
    end.qp.destroy();
}

/// A listener and a connector of one process.
fn within_the_process(params: &str) {
    let device = Soft::open(params).unwrap();
    let (tx, requests) = channel();
    let (_listener, qual) = device.listen_any(Arc::new(Requests(tx))).unwrap();
    let (a, b) = (End::new(&device), End::new(&device));
    let to = "127.0.0.1:0".parse().unwrap();
    device
        .connect(&a.qp, to, qual, Some(PATIENCE), b"")
        .unwrap();
    let request = requests.recv_timeout(PATIENCE).unwrap();
    device.accept(request, &b.qp, b"").unwrap();
    for end in [&a, &b] {
        assert!(matches!(end.event(), CmEvent::Established { .. }));
    }
    b.recv(100);
    a.post(SendOp::Send, 5);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(b.completion().byte_len, 5);
    a.qp.destroy();
    b.qp.destroy();
}

/// The initiator is limited, which makes all files but some of the other side's.
#[test]
fn an_initiator_with_small_files() {
    for (bytes, shares) in [
        (100 << 20, true),
        (1 << 20, true),
        (4096, false),
        (0, false),
    ] {
        let text = run("connects", bytes);
        assert!(
            text.contains(&format!("shares {shares}")),
            "{bytes}: {text}"
        );
    }
}

/// The consumer of the responder hears of no connection that the initiator cannot have for want of descriptors.
#[test]
fn an_initiator_with_few_descriptors() {
    run("few descriptors", 100 << 20);
}

/// Held by the tests that share memory with another process, of which one counts what is shared.
static SHARES: Mutex<()> = Mutex::new(());

fn shares() -> MutexGuard<'static, ()> {
    SHARES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_responder_with_small_files() {
    let _shares = shares();
    let device = Soft::open("127.0.0.1").unwrap();
    for (bytes, shares) in [
        (100 << 20, true),
        (1 << 20, true),
        (4096, false),
        (0, false),
    ] {
        let server = Server::start("127.0.0.1", |command| {
            // SAFETY: the closure makes a system call.
            unsafe { command.pre_exec(limit(bytes)) };
        });
        let before = shared_memories();
        let end = server.connect(&device);
        assert_eq!(shared_memories() > before, shares, "{bytes}");
        server.process.end();
        end.event();
        end.qp.destroy();
    }
}

#[test]
fn within_a_process_with_small_files() {
    for bytes in [100 << 20, 1 << 20, 4096, 0] {
        for path in ["auto", "tcp"] {
            run(&format!("127.0.0.1 path={path} memory=eager"), bytes);
        }
    }
}

/// So many descriptors may be open.
fn limit_descriptors(most: libc::rlim_t) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the system call fills in the limits.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(read, 0);
    limit.rlim_cur = most.min(limit.rlim_max);
    // SAFETY: a system call with limits that live during the call.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(set, 0);
}

/// Connects with so few descriptors left that shared memory is not to be had, and with some more.
fn connects_with_few_descriptors() {
    let mut shared = Vec::new();
    for left in 6..24 {
        let server = Server::start("127.0.0.1", |_| ());
        let device = Soft::open("127.0.0.1").unwrap();
        let before = shared_memories();
        let (free, _) = std::io::pipe().unwrap();
        let free = free.as_raw_fd() as libc::rlim_t;
        limit_descriptors(free + left);
        // Its consumer gets one request, and one connection.
        let end = server.connect(&device);
        limit_descriptors(libc::RLIM_INFINITY);
        shared.push(shared_memories() > before);
        server.process.end();
        end.event();
        end.qp.destroy();
    }
    assert!(!shared[0] && shared[shared.len() - 1], "{shared:?}");
}

/// Registers more than fit the table of keys that peers see.
fn registers() {
    let device = Soft::open("127.0.0.1 path=shm").unwrap();
    let server = Server::start("127.0.0.1 path=shm", |_| ());
    let end = server.connect(&device);
    let pd = device.alloc_pd().unwrap();
    let buffer = [0u8; 64];
    let register = || device.reg_mr(&pd, buffer.as_ptr() as u64, 64, Access::LOCAL_READ);
    let mut regions = Vec::new();
    let error = loop {
        match register() {
            Ok(region) => regions.push(region),
            Err(error) => break error,
        }
    };
    assert_eq!(error, DeviceError::Resources);
    let most = regions.len();
    assert!((1024..1 << 14).contains(&most), "{most}");
    // Those that are given back can be had again, and again.
    for _ in 0..3 {
        regions.truncate(10);
        regions.extend((10..most).map(|_| register().unwrap()));
        assert!(register().is_err());
    }
    // And what there was goes on.
    end.post(
        SendOp::RdmaRead {
            remote: server.remote,
            len: 5,
        },
        5,
    );
    assert_eq!(end.completion().status, WcStatus::Success);
    server.process.end();
    end.event();
    end.qp.destroy();
}

/// Room for the memory of a connection, and for some thousand keys.
#[test]
fn more_keys_than_fit() {
    run("registers", 256 << 10);
}

/// A key of an owner whose table has grown since its peer has first seen it.
#[test]
fn keys_that_came_later() {
    let _shares = shares();
    let params = "127.0.0.1 path=shm";
    let device = Soft::open(params).unwrap();
    let mut server = Server::start(params, |command| {
        command.env(KEYS, "5000");
    });
    let end = server.connect(&device);
    let rkey = server.process.numbers::<u32>("last ")[0];
    let remote = Remote {
        rkey,
        ..server.remote
    };
    end.post(SendOp::RdmaRead { remote, len: 5 }, 5);
    assert_eq!(end.completion().status, WcStatus::Success);
    // Behind all of them is none.
    let rkey = remote.rkey.wrapping_add(1 << 20);
    let remote = Remote { rkey, ..remote };
    end.post(SendOp::RdmaRead { remote, len: 5 }, 5);
    assert_eq!(end.completion().status, WcStatus::RemoteAccess);
    server.process.end();
    end.event();
    end.qp.destroy();
}

/// Says something to a standard error that takes nothing.
fn logs() {
    // SAFETY: as programs have it that are not written in Rust.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    dat_core::testing::log_sink::install();
    log::error!("nobody hears this");
}

/// What is logged does not end the process, wherever it goes.
#[test]
fn a_log_that_takes_nothing() {
    let path = std::env::temp_dir().join(format!("libdat-log-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    let (reader, pipe) = std::io::pipe().unwrap();
    drop(reader);
    for errors in [Stdio::from(file), Stdio::from(pipe)] {
        let mut command = command("logs", 0);
        let status = command
            .stdout(Stdio::null())
            .stderr(errors)
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
    }
    std::fs::remove_file(path).unwrap();
}

/// While a peer registers regions, and its table of keys grows several times, its keys stay valid in
/// each moment.
#[test]
fn keys_stay_valid_while_the_table_grows() {
    let _shares = shares();
    for _ in 0..2 {
        let mut server = Server::start("127.0.0.1", |command| {
            command.env(KEYS, "20000");
        });
        let device = Soft::open("127.0.0.1").unwrap();
        let end = server.connect(&device);
        let remote = server.remote;
        let grown = std::sync::atomic::AtomicBool::new(false);
        let mut reads = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                server.process.numbers::<u32>("last ");
                grown.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            while !grown.load(std::sync::atomic::Ordering::Relaxed) {
                end.post(SendOp::RdmaRead { remote, len: 5 }, 5);
                assert_eq!(end.completion().status, WcStatus::Success);
                reads += 1;
            }
        });
        assert!(reads > 100, "{reads}");
        server.process.end();
        end.event();
        end.qp.destroy();
    }
}
