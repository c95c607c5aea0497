//! Which path two processes of one host take, and what the other notices when one dies. The
//! test program starts itself again as the server.

#[path = "common/itself.rs"]
mod itself;
#[path = "common/poll.rs"]
mod poll;
#[path = "common/processes.rs"]
mod processes;
#[path = "common/skip.rs"]
mod skip;
#[path = "common/soft.rs"]
mod soft;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use dat_core::testing::device::soft::Soft;
use dat_core::testing::device::*;

use processes::{Server, serve, shared_memories};

#[test]
fn server() {
    serve();
}

/// Connects and says whether that was through shared memory.
fn shares(params: &str, server: &str, prepare: impl FnOnce(&mut Command)) -> bool {
    let device = Soft::open(params).unwrap();
    let server = Server::start(server, prepare);
    let before = shared_memories();
    let end = server.connect(&device);
    let shares = shared_memories() > before;
    server.process.end();
    assert!(matches!(
        end.event(),
        CmEvent::Disconnected | CmEvent::Broken
    ));
    end.qp.destroy();
    shares
}

fn is_root() -> bool {
    // SAFETY: always works.
    unsafe { libc::geteuid() == 0 }
}

/// How often the threads of a process have been switched to.
fn switches(process: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of = |task: std::io::Result<std::fs::DirEntry>| -> u64 {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let counts = status.lines().filter(|l| l.contains("ctxt_switches"));
        counts
            .map(|l| l.rsplit('\t').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    tasks.map(of).sum()
}

/// The tests count what the whole process shares: one at a time.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

#[test]
fn the_parameter_decides() {
    let _alone = alone();
    assert!(shares("127.0.0.1 path=shm", "127.0.0.1 path=shm", |_| ()));
    assert!(shares("path=shm", "path=shm", |_| ()));
    assert!(shares("127.0.0.1", "127.0.0.1", |_| ()));
    assert!(shares("127.0.0.1 path=shm", "127.0.0.1", |_| ()));
    assert!(!shares("127.0.0.1 path=tcp", "127.0.0.1 path=shm", |_| ()));
    assert!(!shares("127.0.0.1", "127.0.0.1 path=tcp", |_| ()));
}

/// A process that waits costs nothing, once there were no polls for a while.
#[test]
fn nothing_happens_while_nothing_happens() {
    let _alone = alone();
    for path in ["path=shm", "path=tcp"] {
        let params = format!("127.0.0.1 {path}");
        let device = Soft::open(&params).unwrap();
        let server = Server::start(&params, |_| ());
        let end = server.connect(&device);
        let process = server.process.child.id();
        // What was begun before may take a while on a busy machine.
        let is_quiet = || {
            std::thread::sleep(Duration::from_millis(200));
            let before = switches(process);
            std::thread::sleep(Duration::from_secs(1));
            switches(process) == before
        };
        assert!((0..10).any(|_| is_quiet()), "{path}");
        server.process.end();
        end.qp.destroy();
    }
}

/// Where the kernel says no there is TCP, and the programs notice nothing.
#[test]
fn another_user() {
    let _alone = alone();
    if !is_root() {
        return skip::skip("not root");
    }
    let other = |command: &mut Command| {
        command.uid(65534).gid(65534);
    };
    assert!(!shares("127.0.0.1", "127.0.0.1", other));
}

/// A process identifier of another namespace means nothing here.
#[test]
fn another_process_namespace() {
    let _alone = alone();
    if !is_root() {
        return skip::skip("not root");
    }
    let apart = |command: &mut Command| {
        // SAFETY: a system call, which may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // The server is a child of this one then, in the new namespace.
                if libc::unshare(libc::CLONE_NEWPID) != 0 {
                    return Ok(());
                }
                match libc::fork() {
                    0 => Ok(()),
                    child => {
                        // Whoever spawned us waits for the end of a pipe.
                        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
                        let mut status = 0;
                        libc::waitpid(child, &mut status, 0);
                        libc::_exit(libc::WEXITSTATUS(status))
                    }
                }
            })
        };
    };
    // From inside we would see nobody; from outside we see it, but it does not see us.
    assert!(!shares("127.0.0.1", "127.0.0.1", apart));
}

/// How often the threads of a process have gone to sleep.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|task| {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let count = status
                .lines()
                .find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
            count.unwrap().trim().parse::<u64>().unwrap()
        })
        .sum()
}

/// A connection on which nothing happens costs nothing: no thread looks at it from time to time.
#[test]
fn idle_connections_sleep() {
    let _alone = alone();
    let params = "127.0.0.1 path=shm";
    let device = Soft::open(params).unwrap();
    let server = Server::start(params, |_| ());
    let end = server.connect(&device);
    let is_quiet = || {
        std::thread::sleep(Duration::from_millis(100));
        let before = sleeps(server.process.child.id());
        std::thread::sleep(Duration::from_millis(300));
        sleeps(server.process.child.id()) - before <= 3
    };
    assert!((0..10).any(|_| is_quiet()));
    // It wakes up for what comes then.
    let remote = server.remote;
    end.post(SendOp::RdmaWrite(remote), 5);
    assert_eq!(end.completion().status, WcStatus::Success);
    server.process.end();
}

/// Killed, not ended: the other side learns of it, also when it is idle.
#[test]
fn a_peer_that_is_killed() {
    let _alone = alone();
    for path in ["path=shm", "path=tcp"] {
        let params = format!("127.0.0.1 {path}");
        let device = Soft::open(&params).unwrap();
        let mut server = Server::start(&params, |_| ());
        let end = server.connect(&device);
        end.recv(100);
        server.process.kill();
        assert!(matches!(
            end.event(),
            CmEvent::Disconnected | CmEvent::Broken
        ));
        assert_eq!(end.completion().status, WcStatus::Flushed);
        // And nothing holds up its memory.
        drop(end.mr);
    }
}

/// Somebody else has the name of the port.
#[test]
fn a_name_that_is_taken() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let _alone = alone();
    let device = Soft::open("127.0.0.1").unwrap();
    let server = Server::start("127.0.0.1 path=tcp", |_| ());
    let name = format!("libdat/{}@127.0.0.1", server.qual);
    let name = SocketAddr::from_abstract_name(name).unwrap();
    let squatter = UnixListener::bind_addr(&name).unwrap();
    let other = std::thread::spawn(move || {
        if let Ok((mut socket, _)) = squatter.accept() {
            let _ = socket.write_all(&[0x5a; 72]);
        }
    });
    let before = shared_memories();
    let end = server.connect(&device);
    assert_eq!(shared_memories(), before);
    server.process.end();
    end.event();
    drop(other);
}

/// Connects to the local socket of a port until there is no room for another connection.
fn fill_queue(port: u64) {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let name = format!("libdat/{port}@127.0.0.1");
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    loop {
        let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(unix, stream, flags, None).unwrap();
        match rustix::net::connect(&socket, &name) {
            // It stays in the queue.
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether a connection to a server goes through shared memory that has no room for one at the moment.
fn shares_with_a_busy_server() -> bool {
    let device = Soft::open("127.0.0.1").unwrap();
    let server = Server::start("127.0.0.1", |_| ());
    let pid = server.process.child.id() as i32;
    let signal = move |signal| {
        // SAFETY: a process of ours that was not waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    };
    signal(libc::SIGSTOP);
    fill_queue(server.qual);
    let goes_on = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        signal(libc::SIGCONT);
    });
    let before = shared_memories();
    let end = server.connect(&device);
    let shares = shared_memories() > before;
    goes_on.join().unwrap();
    server.process.end();
    end.event();
    end.qp.destroy();
    shares
}

/// Many connect at once, more than the kernel keeps until they are accepted.
#[test]
fn a_queue_that_is_full_for_a_moment() {
    let _alone = alone();
    // A machine that is busy itself may take longer than an attempt waits.
    assert!((0..5).any(|_| shares_with_a_busy_server()));
}
