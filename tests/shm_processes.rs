//! Which path two processes of one host take, and what the other notices when one dies. The
//! test program starts itself again as the server.

#[path = "common/soft.rs"]
mod soft;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use dat_core::device::soft::{Cq, Mr, Pd, Qp, Soft};
use dat_core::device::*;

use soft::{Quiet, Requests, queue_pair};

const PATIENCE: Duration = Duration::from_secs(20);
const ROLE: &str = "LIBDAT_TEST_SERVER";

/// A queue pair with a buffer.
struct End {
    device: Arc<Soft>,
    _pd: Pd,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    events: Receiver<CmEvent>,
    mr: Mr,
    buffer: &'static mut [u8],
}

impl End {
    fn new(device: &Arc<Soft>) -> End {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(100, Arc::new(Quiet)).unwrap();
        let (qp, events) = queue_pair(device, &pd, &cq, 1);
        let buffer = vec![0u8; 1 << 20].leak();
        let (addr, len) = (buffer.as_ptr() as u64, buffer.len() as u64);
        let mr = device.reg_mr(&pd, addr, len, Access::all()).unwrap();
        End {
            device: device.clone(),
            _pd: pd,
            cq,
            qp,
            events,
            mr,
            buffer,
        }
    }

    fn sge(&self, len: u32) -> Sge {
        Sge {
            addr: self.buffer.as_ptr() as u64,
            len,
            lkey: self.mr.lkey(),
        }
    }

    fn recv(&self, len: u32) {
        let (sges, flags) = (&[self.sge(len)][..], WrFlags::empty());
        let wr_id = 1;
        self.qp.post_recv(&RecvWr { wr_id, sges, flags }).unwrap();
    }

    fn post(&self, op: SendOp, len: u32) {
        let (sges, flags) = (&[self.sge(len)][..], WrFlags::empty());
        let wr_id = 2;
        self.qp
            .post_send(&SendWr {
                wr_id,
                op,
                sges,
                flags,
            })
            .unwrap();
    }

    fn completion(&self) -> Completion {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(completion) = self.cq.poll() {
                return completion;
            }
            self.device.progress();
            assert!(Instant::now() < end, "no completion");
            std::thread::yield_now();
        }
    }

    fn event(&self) -> CmEvent {
        self.events.recv_timeout(PATIENCE).unwrap()
    }
}

/// How many connections of this process go through shared memory.
fn shared_memories() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|l| l.contains("memfd:libdat-wire"))
        .count()
}

/// The server: prints its qualifier, its address and its key, echoes one message, and lives until
/// its standard input ends.
#[test]
fn server() {
    let Ok(params) = std::env::var(ROLE) else {
        return;
    };
    if std::env::var_os("LIBDAT_TEST_CLOSED").is_some() {
        // SAFETY: nothing is touched.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    }
    let device = Soft::open(&params).unwrap();
    let (tx, requests) = channel();
    let (_listener, qual) = device.listen_any(4, Arc::new(Requests(tx))).unwrap();
    let end = End::new(&device);
    println!(
        "\nqual {qual} {} {}",
        end.buffer.as_ptr() as u64,
        end.mr.rkey()
    );
    let request = requests.recv_timeout(PATIENCE).unwrap();
    assert_eq!(request.private_data(), b"hello");
    end.recv(100);
    device.accept(request, &end.qp, b"welcome").unwrap();
    assert!(matches!(end.event(), CmEvent::Established { .. }));
    let got = end.completion();
    assert_eq!(got.status, WcStatus::Success);
    end.post(SendOp::Send, got.byte_len);
    assert_eq!(end.completion().status, WcStatus::Success);
    let word = AtomicU32::new(0);
    std::thread::scope(|s| {
        // A consumer that blocks until the end.
        s.spawn(|| while device.block(&word, 0, None) != Some(Wake::Woken) {});
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        word.store(1, Ordering::SeqCst);
        device.unblock(&word);
    });
}

struct Server {
    child: Child,
    input: Option<ChildStdin>,
    /// It complains if nobody hears it.
    _output: BufReader<ChildStdout>,
    qual: u64,
    remote: Remote,
}

impl Server {
    fn start(params: &str, prepare: impl FnOnce(&mut Command)) -> Server {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "server", "--nocapture", "--test-threads=1"])
            .env(ROLE, params)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let numbers: Vec<u64> = loop {
            let mut line = String::new();
            let n = output.read_line(&mut line).unwrap();
            assert!(n > 0, "the server does not say where it is");
            if let Some(rest) = line.strip_prefix("qual ") {
                break rest
                    .split_whitespace()
                    .map(|n| n.parse().unwrap())
                    .collect();
            }
        };
        Server {
            child,
            input,
            _output: output,
            qual: numbers[0],
            remote: Remote {
                addr: numbers[1],
                rkey: numbers[2] as u32,
            },
        }
    }

    fn connect(&self, device: &Arc<Soft>) -> End {
        let end = End::new(device);
        end.buffer[..5].copy_from_slice(b"there");
        end.recv(100);
        let to: SocketAddr = "127.0.0.1:0".parse().unwrap();
        device
            .connect(&end.qp, to, self.qual, Some(PATIENCE), b"hello")
            .unwrap();
        let private_data = b"welcome"[..].into();
        assert_eq!(end.event(), CmEvent::Established { private_data });
        end.post(SendOp::Send, 5);
        for _ in 0..2 {
            assert_eq!(end.completion().status, WcStatus::Success);
        }
        // The target does nothing for this one.
        let remote = self.remote;
        end.buffer[..5].fill(0);
        end.post(SendOp::RdmaRead { remote, len: 5 }, 5);
        assert_eq!(end.completion().status, WcStatus::Success);
        assert_eq!(&end.buffer[..5], b"there");
        end
    }

    /// Ends in order.
    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Connects and says whether that was through shared memory.
fn shares(params: &str, server: &str, prepare: impl FnOnce(&mut Command)) -> bool {
    let device = Soft::open(params).unwrap();
    let server = Server::start(server, prepare);
    let before = shared_memories();
    let end = server.connect(&device);
    let shares = shared_memories() > before;
    server.end();
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
        let process = server.child.id();
        std::thread::sleep(Duration::from_millis(200));
        let before = switches(process);
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(switches(process) - before, 0, "{path}");
        server.end();
        end.qp.destroy();
    }
}

/// Where the kernel says no there is TCP, and the programs notice nothing.
#[test]
fn another_user() {
    let _alone = alone();
    if !is_root() {
        return;
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
        return;
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
    std::thread::sleep(Duration::from_millis(100));
    let before = sleeps(server.child.id());
    std::thread::sleep(Duration::from_millis(300));
    assert!(sleeps(server.child.id()) - before <= 3);
    // It wakes up for what comes then.
    let remote = server.remote;
    end.post(SendOp::RdmaWrite(remote), 5);
    assert_eq!(end.completion().status, WcStatus::Success);
    server.end();
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
        server.child.kill().unwrap();
        server.child.wait().unwrap();
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
    server.end();
    end.event();
    drop(other);
}
