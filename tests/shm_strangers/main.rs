//! Processes that the kernel keeps out of our memory, and that want to share memory with us all
//! the same: they have the name of a port, or connect to one. The test program starts itself again
//! as the server, and as the stranger, which speaks the protocol by hand.

mod by_hand;
#[path = "../common/itself.rs"]
mod itself;
#[path = "../common/poll.rs"]
mod poll;
#[path = "../common/processes.rs"]
mod processes;
#[path = "../common/shm_peer.rs"]
mod shm_peer;
#[path = "../common/skip.rs"]
mod skip;
#[path = "../common/soft.rs"]
mod soft;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use dat_core::testing::device::soft::Soft;
use dat_core::testing::device::*;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use by_hand::{Version, answer, ask, ask_from_tar_pit, ask_with, relay};
use itself::Itself;
use processes::{End, Server, serve, shared_memories};
use shm_peer::{name, sizes};
use soft::PATIENCE;

const ROLE: &str = "LIBDAT_TEST_STRANGER";

#[test]
fn server() {
    serve();
}

/// The stranger. It prints that it is ready, and at the end how many descriptors it has got and
/// the error of the kernel.
#[test]
fn stranger() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    let port = words[1].parse().unwrap();
    if words[0] == "delays" {
        let sockets = ask_from_tar_pit(port, 4);
        println!(
            "\nready\ngot {} 0",
            sockets.map_or(0, |sockets| sockets.len())
        );
        loop {
            std::thread::park();
        }
    }
    let listener = words[0]
        .ne("asks")
        .then(|| UnixListener::bind_addr(&name(port)).unwrap());
    println!("\nready");
    let accept = || listener.as_ref().unwrap().accept().unwrap().0;
    let (files, refused) = match words[0] {
        "asks" => ask(
            port,
            if words[2] == "2" {
                Version::Two
            } else {
                Version::Four
            },
        ),
        "answers" => answer(&accept()),
        "relays" => {
            let to = UnixStream::connect_addr(&name(words[2].parse().unwrap())).unwrap();
            (relay(&accept(), &to), None)
        }
        _ => {
            // Accepts and sends nothing, until it is ended.
            let sockets: Vec<UnixStream> = (0..).map(|_| accept()).take(100).collect();
            drop(sockets);
            return;
        }
    };
    println!(
        "\ngot {} {}",
        files.len(),
        refused.map_or(0, Errno::raw_os_error)
    );
    if words[0] == "answers" {
        // The library tries again for a while, and learns less then.
        loop {
            drop(accept());
        }
    }
}

struct Stranger(Itself);

impl Stranger {
    /// Starts one that the kernel keeps out: in a user namespace of its own. `None` if there
    /// can be no such thing.
    fn start(role: &str) -> Option<Stranger> {
        let mut command = itself::command("stranger");
        command.env(ROLE, role);
        // The kernel does not let one in another namespace delay others like that, but it lets it
        // have file systems, which can.
        let apart = !role.starts_with("delays");
        // SAFETY: a system call, which may be made between fork and exec.
        unsafe {
            command.pre_exec(move || {
                match libc::unshare(if apart { libc::CLONE_NEWUSER } else { 0 }) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            })
        };
        let mut stranger = match Itself::start(command) {
            Ok(process) => Stranger(process),
            Err(error) => {
                skip::skip(&format!("no user namespaces: {error}"));
                return None;
            }
        };
        stranger.0.line_of("ready");
        Some(stranger)
    }

    /// Number of descriptors, and the error number of reading our memory.
    fn got(&mut self) -> (usize, i32) {
        let numbers = self.0.numbers::<i32>("got");
        (numbers[0] as usize, numbers[1])
    }
}

/// The tests count what the whole process shares: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// What was logged of shared memory that there is not.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keeper;

impl log::Log for Keeper {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let line = record.args().to_string();
        if line.contains("shared memory refused") || line.contains("shares no memory") {
            LOG.lock().unwrap().push(line);
        }
    }
    fn flush(&self) {}
}

/// From now on what is logged is kept.
fn keep_log() {
    static KEEPER: Keeper = Keeper;
    if log::set_logger(&KEEPER).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
    LOG.lock().unwrap().clear();
}

/// What was kept is one line, with the ends of the connection and that reason.
fn was_logged(port: u64, why: &str) {
    let lines = LOG.lock().unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let remote = format!("remote 127.0.0.1:{port}, qualifier {port}, path ");
    assert!(
        lines[0].contains(&remote) && lines[0].contains(why),
        "{lines:?}"
    );
}

/// Connects where a stranger has the name of the port: over TCP.
fn connects_over_tcp(server: Server) {
    let before = shared_memories();
    let device = Soft::open("127.0.0.1").unwrap();
    let end = server.connect(&device);
    assert_eq!(shared_memories(), before);
    server.process.end();
    end.event();
    end.qp.destroy();
}

/// Connects where there is nothing but shared memory, and that with a stranger.
fn is_refused(port: u64) {
    let device = Soft::open("127.0.0.1 path=shm").unwrap();
    let end = End::new(&device);
    let to = "127.0.0.1:0".parse().unwrap();
    device
        .connect(&end.qp, to, port, Some(PATIENCE), b"")
        .unwrap();
    assert_eq!(end.event(), CmEvent::NonPeerRejected);
    end.qp.destroy();
}

/// A process in another user namespace has the name of the port, and sends all that it can send:
/// it gets nothing, and the connection is made as if it was not there.
#[test]
fn one_that_has_the_name() {
    let _alone = alone();
    for path in ["auto", "shm"] {
        let server = Server::start("127.0.0.1 path=tcp", |_| ());
        let port = server.qual;
        let Some(mut stranger) = Stranger::start(&format!("answers {port}")) else {
            return;
        };
        keep_log();
        match path {
            "auto" => connects_over_tcp(server),
            _ => is_refused(port),
        }
        assert_eq!(stranger.got(), (0, libc::EPERM));
        was_logged(port, "the peer may not access the memory of this process");
    }
}

/// One that passes our messages on to a process that we would share memory with.
#[test]
fn one_in_the_middle() {
    let _alone = alone();
    let server = Server::start("127.0.0.1 path=tcp", |_| ());
    let other = Server::start("127.0.0.1 path=shm", |_| ());
    let role = format!("relays {} {}", server.qual, other.qual);
    let Some(mut stranger) = Stranger::start(&role) else {
        return;
    };
    connects_over_tcp(server);
    assert_eq!(stranger.got(), (0, 0));
}

/// One that sends nothing keeps a connection waiting for a moment only.
#[test]
fn one_that_is_silent() {
    let _alone = alone();
    for path in ["auto", "shm"] {
        let server = Server::start("127.0.0.1 path=tcp", |_| ());
        let port = server.qual;
        let Some(_stranger) = Stranger::start(&format!("listens {port}")) else {
            return;
        };
        keep_log();
        let begun = Instant::now();
        match path {
            "auto" => connects_over_tcp(server),
            _ => is_refused(port),
        }
        assert!(begun.elapsed() < PATIENCE / 2);
        was_logged(
            port,
            "the process that holds the name of the port does not answer",
        );
    }
}

/// A process in another user namespace connects to our port.
#[test]
fn one_that_asks() {
    let _alone = alone();
    let server = Server::start("127.0.0.1 path=shm", |_| ());
    let port = server.qual;
    for (version, error) in [(2, 0), (3, libc::EPERM)] {
        let Some(mut stranger) = Stranger::start(&format!("asks {port} {version}")) else {
            return;
        };
        assert_eq!(stranger.got(), (0, error), "version {version}");
    }
    // Others are served.
    let device = Soft::open("127.0.0.1 path=shm").unwrap();
    let end = server.connect(&device);
    server.process.end();
    end.event();
    end.qp.destroy();
}

/// One that has us read where it takes for ever delays no other.
#[test]
fn one_that_takes_its_time() {
    let _alone = alone();
    let server = Server::start("127.0.0.1 path=shm", |_| ());
    let role = format!("delays {}", server.qual);
    let Some(mut stranger) = Stranger::start(&role) else {
        return;
    };
    if stranger.got().0 == 0 {
        return skip::skip("userfaultfd is not permitted");
    }
    let device = Soft::open("127.0.0.1 path=shm").unwrap();
    let end = server.connect(&device);
    drop(stranger);
    server.process.end();
    end.event();
    end.qp.destroy();
}

/// Whether the file can be mapped to be written, through this descriptor.
fn is_writable(file: impl AsFd) -> bool {
    let null = std::ptr::null_mut();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses; it stays.
    unsafe { rustix::mm::mmap(null, 4096, protection, MapFlags::SHARED, file, 0) }.is_ok()
}

/// Whether it can be mapped to be written in any way that the one who has the descriptor has.
fn can_be_written(file: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let _ = rustix::fs::fchmod(file, Mode::from(0o777));
    let again = rustix::fs::open(path, OFlags::RDWR, Mode::empty());
    let bytes = [1];
    is_writable(file)
        || rustix::io::pwrite(file, &bytes, 0).is_ok()
        || again
            .is_ok_and(|file| is_writable(&file) || rustix::io::pwrite(&file, &bytes, 0).is_ok())
}

/// What a peer gets that the kernel lets in: no more rights than it needs.
#[test]
fn a_peer_gets_what_it_needs() {
    let _alone = alone();
    let server = Server::start("127.0.0.1 path=shm", |_| ());
    let files = [Version::Two, Version::Four].map(|version| ask(server.qual, version).0);
    let mut rights: Vec<(String, bool)> = files
        .iter()
        .flatten()
        .map(|file| {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let name = std::fs::read_link(path).unwrap();
            let name = name.to_string_lossy().replace(" (deleted)", "");
            (name, can_be_written(file))
        })
        .collect();
    rights.sort();
    let expected = [("keys", false), ("ready", true), ("states", false)];
    let expected = expected.map(|(name, can)| (format!("/memfd:libdat-{name}"), can));
    assert_eq!(rights, expected);
}

/// A peer that the kernel lets in, and whose files are not what they should be, gets none.
#[test]
fn a_peer_with_other_files() {
    let _alone = alone();
    let server = Server::start("127.0.0.1 path=shm", |_| ());
    let mut wrong = vec![
        vec![],
        sizes()[..3].to_vec(),
        [&sizes()[..], &[4096; 2]].concat(),
    ];
    for place in [0, 2, 3] {
        let mut files = sizes().to_vec();
        files[place] += 4096;
        wrong.push(files);
    }
    for files in wrong {
        let (files, refused) = ask_with(server.qual, Version::Four, &files);
        assert_eq!((files.len(), refused), (0, None));
    }
    let (files, _) = ask(server.qual, Version::Four);
    assert_eq!(files.len(), 3);
}
