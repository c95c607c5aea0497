//! Peers that open connections and send next to nothing: they take no descriptors from the program,
//! and others are served meanwhile. The test program starts itself again as the server, which may
//! have few descriptors.

#[path = "common/itself.rs"]
mod itself;
#[path = "common/skip.rs"]
mod skip;
#[path = "common/soft.rs"]
mod soft;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dat_core::testing::device::soft::{ConnRequest, Qp, Soft};
use dat_core::testing::device::*;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, setrlimit, waitpid,
};

use itself::Itself;
use soft::{PATIENCE, Quiet, Requests, queue_pair};

/// The parameters of the device of the server.
const SERVER: &str = "LIBDAT_TEST_HALF_OPEN";
/// Descriptors that the server may have.
const DESCRIPTORS: u64 = 256;
/// Slow peers at a time.
const SLOW: usize = 1500;
/// As many as the server has without a request at a time.
const MOST_SILENT: usize = DESCRIPTORS as usize / 4;
/// A request of MPA, revision 1.
const REQUEST: &[u8; 20] = b"MPA ID Req Frame\x40\x01\x00\x00";
/// Files that the program of the server opens meanwhile.
const FILES: usize = 100;
/// How long a connection of a peer in order may take to be established.
const REASONABLE: Duration = Duration::from_secs(10);

fn set_descriptors(current: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(current);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

/// Opens files until `most` are open, or no descriptor is left.
fn open_files(most: usize) -> Vec<File> {
    (0..most)
        .map_while(|_| File::open("/dev/null").ok())
        .collect()
}

/// The processor time of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The server: accepts every request, and does what its standard input asks for.
#[test]
fn server() {
    let Ok(params) = std::env::var(SERVER) else {
        return;
    };
    set_descriptors(DESCRIPTORS);
    let device = Soft::open(&params).unwrap();
    let (tx, requests) = channel::<ConnRequest>();
    let (_listener, qual) = device.listen_any(Arc::new(Requests(tx))).unwrap();
    println!("\nqual {qual}");
    let accepting = device.clone();
    std::thread::spawn(move || {
        let pd = accepting.alloc_pd().unwrap();
        let cq = accepting.create_cq(100, Arc::new(Quiet)).unwrap();
        let mut ends = Vec::new();
        for request in requests {
            let end = queue_pair(&accepting, &pd, &cq, 1, 1);
            accepting.accept(request, &end.0, b"").unwrap();
            ends.push(end);
        }
    });
    let mut held = Vec::new();
    for line in std::io::stdin().lines() {
        let answer = match line.unwrap().as_str() {
            "open" => open_files(FILES).len(),
            "hold" => {
                held = open_files(usize::MAX);
                held.len()
            }
            "release" => std::mem::take(&mut held).len(),
            "time" => processor_time().as_millis() as usize,
            other => panic!("{other}"),
        };
        println!("\nanswer {answer}");
    }
}

struct Server {
    process: Itself,
    qual: u64,
}

impl Server {
    fn start(params: &str) -> Server {
        let mut command = itself::command("server");
        command.env(SERVER, params);
        let mut process = Itself::start(command).unwrap();
        let qual = process.numbers("qual ")[0];
        Server { process, qual }
    }

    fn ask(&mut self, what: &str) -> u64 {
        self.process.send(what);
        self.process.numbers("answer ")[0]
    }
}

/// How slow peers reach the server.
#[derive(Clone, Copy)]
enum Way {
    Tcp,
    LocalSocket,
}

/// A connection that is under way; `None` if the server has no room for it.
fn connect(way: Way, port: u16) -> Option<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let family = match way {
        Way::Tcp => AddressFamily::INET,
        Way::LocalSocket => AddressFamily::UNIX,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap();
    let connected = match way {
        Way::Tcp => {
            let to = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, port);
            rustix::net::connect(&socket, &to)
        }
        Way::LocalSocket => {
            let name = format!("libdat/{port}@127.0.0.1");
            let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            rustix::net::connect(&socket, &name)
        }
    };
    match connected {
        Ok(()) | Err(Errno::INPROGRESS) => Some(socket),
        Err(_) => None,
    }
}

/// Peers that send the first bytes of a request, one a second, and connect again when they are
/// dropped.
struct SlowPeers {
    stop: Arc<AtomicBool>,
    /// Connections so far.
    connections: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl SlowPeers {
    fn start(way: Way, qual: u64) -> SlowPeers {
        let stop = Arc::new(AtomicBool::new(false));
        let connections = Arc::new(AtomicUsize::new(0));
        let (ended, count) = (stop.clone(), connections.clone());
        let port = qual as u16;
        let thread = std::thread::spawn(move || {
            let mut peers: Vec<Option<(OwnedFd, usize)>> = (0..SLOW).map(|_| None).collect();
            while !ended.load(Ordering::Relaxed) {
                for peer in &mut peers {
                    if peer.is_none() {
                        *peer = connect(way, port).map(|socket| (socket, 0));
                        count.fetch_add(usize::from(peer.is_some()), Ordering::Relaxed);
                    }
                    let Some((socket, sent)) = peer else {
                        continue;
                    };
                    // Not even the key of the request is whole.
                    let byte = &b"MPA ID Req Fram"[*sent % 15..][..1];
                    let byte = match way {
                        Way::Tcp if *sent < 15 => byte,
                        _ => b"",
                    };
                    match rustix::net::send(&*socket, byte, SendFlags::NOSIGNAL) {
                        Ok(n) => *sent += n,
                        Err(Errno::AGAIN | Errno::NOTCONN) => {}
                        Err(_) => *peer = None,
                    }
                    let mut end = [0; 1];
                    if peer.as_ref().is_some_and(|(socket, _)| {
                        matches!(
                            rustix::net::recv(socket, &mut end, rustix::net::RecvFlags::empty()),
                            Ok((_, 0)) | Err(Errno::CONNRESET)
                        )
                    }) {
                        *peer = None;
                    }
                }
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        let slow = SlowPeers {
            stop,
            connections,
            thread: Some(thread),
        };
        let end = Instant::now() + PATIENCE;
        while slow.connections.load(Ordering::Relaxed) < SLOW / 2 {
            assert!(Instant::now() < end, "the slow peers cannot connect");
            std::thread::sleep(Duration::from_millis(10));
        }
        slow
    }
}

impl Drop for SlowPeers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Connects to the server; the time until the connection is established.
fn established(device: &Arc<Soft>, qual: u64) -> (Arc<Qp>, Duration) {
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(100, Arc::new(Quiet)).unwrap();
    let (qp, events) = queue_pair(device, &pd, &cq, 1, 1);
    let begin = Instant::now();
    let to = "127.0.0.1:0".parse().unwrap();
    device
        .connect(&qp, to, qual, Some(REASONABLE), b"")
        .unwrap();
    let event = events.recv_timeout(PATIENCE).unwrap();
    let time = begin.elapsed();
    assert!(
        matches!(event, CmEvent::Established { .. }),
        "{event:?} after {time:?}"
    );
    (qp, time)
}

/// Raises the number of descriptors of this process to what the slow peers need.
fn has_descriptors() -> bool {
    let needed = SLOW as u64 * 2 + 500;
    let most = getrlimit(Resource::Nofile).maximum;
    if most.is_some_and(|most| most < needed) {
        skip::skip(&format!("the limit of descriptors is below {needed}"));
        return false;
    }
    set_descriptors(needed);
    true
}

fn slow_peers_leave_room(way: Way, params: &str) {
    if !has_descriptors() {
        return;
    }
    let mut server = Server::start(params);
    let slow = SlowPeers::start(way, server.qual);
    let device = Soft::open(params).unwrap();
    let before = server.ask("time");
    let begin = Instant::now();
    let mut ends = Vec::new();
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(500));
        let (end, time) = established(&device, server.qual);
        println!("established after {time:?}");
        ends.push(end);
        assert_eq!(server.ask("open"), FILES as u64);
    }
    let (used, passed) = (server.ask("time") - before, begin.elapsed());
    println!("{used} ms of {passed:?}");
    drop(slow);
}

#[test]
fn slow_peers_over_tcp() {
    slow_peers_leave_room(Way::Tcp, "127.0.0.1 path=tcp");
}

#[test]
fn slow_peers_at_the_local_socket() {
    slow_peers_leave_room(Way::LocalSocket, "127.0.0.1");
}

/// A request that has arrived while the server had no processor is read, however many connections wait whose peers send
/// nothing: its peer is not the slow one.
#[test]
fn a_request_that_arrived_while_the_server_was_stopped() {
    let server = Server::start("127.0.0.1 path=tcp");
    let port = server.qual as u16;
    let pid = Pid::from_raw(server.process.child.id() as i32).unwrap();
    let mut request = connected(port);
    // As many as may wait, of which the first is the oldest; the others are there when it is to be dropped.
    let _silent: Vec<TcpStream> = (1..MOST_SILENT).map(|_| connected(port)).collect();
    // The server has them, and they are old enough to be dropped.
    std::thread::sleep(Duration::from_millis(300));
    kill_process(pid, Signal::STOP).unwrap();
    waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    // The server finds these before the request.
    let _more = [(); 8].map(|()| connected(port));
    request.write_all(REQUEST).unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    let mut reply = [0; 16];
    request.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"MPA ID Rep Frame");
}

/// A connection to a port of this host.
fn connected(port: u16) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// A program that has no descriptor left: connections wait, without a processor for that, and are
/// made when there are descriptors again.
#[test]
fn a_program_without_descriptors() {
    let mut server = Server::start("127.0.0.1 path=tcp");
    let device = Soft::open("127.0.0.1 path=tcp").unwrap();
    assert!(server.ask("hold") > 100);
    let qual = server.qual;
    let connecting = std::thread::spawn(move || established(&device, qual));
    let before = server.ask("time");
    std::thread::sleep(Duration::from_secs(2));
    let used = server.ask("time") - before;
    assert!(used < 500, "{used} ms of 2 s");
    assert!(!connecting.is_finished());
    server.ask("release");
    connecting.join().unwrap();
}
