//! Tests of the device through its trait: every rule over every path.

mod acknowledge;
mod atomics;
mod blocking;
mod bursts;
mod chaos;
mod connections;
mod data;
mod datagram_channels;
mod datagrams;
mod direct;
mod ends;
mod engine;
mod extended;
mod extended_peers;
mod extended_violations;
mod failures;
mod immediate;
mod many;
#[cfg(not(dat_sim))]
mod own_pages;
mod peers;
mod plain_writes;
mod raw;
mod ready;
mod rejected;
mod ring_writes;
mod ring_writes_of_peers;
mod segments;
mod shared;
mod shm_attempts;
mod shm_copies;
mod shm_offers;
mod shm_order;
mod shm_peer;
#[cfg(not(dat_sim))]
mod shm_waits;
mod shm_words;
mod turns;
mod unread_ends;
mod windows;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::lock::Mutex;

use crate::device::soft::transport::Link;
use crate::device::soft::transport::shm::conn::ShmConn;
use crate::device::soft::{ConnRequest, Cq, Listener, Mr, Pd, Qp, Soft, Srq};
use crate::device::*;

/// Long enough to never pass unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

/// Parameters of all paths that a test can take.
const PATHS: &[&str] = &[
    "127.0.0.1",
    "127.0.0.1 path=shm",
    "127.0.0.1 path=tcp",
    "127.0.0.1 path=tcp crc=off",
    "127.0.0.1 path=tcp completion=sent",
    "::1 path=tcp",
];

/// Runs a test over every path.
fn over_all_paths(test: impl Fn(&Net)) {
    for params in PATHS {
        // There are machines without IPv6.
        let net = Net::new(params);
        if std::net::TcpListener::bind(net.active.address()).is_ok() {
            test(&net);
        }
    }
}

/// Two devices that reach each other.
struct Net {
    active: Arc<Soft>,
    passive: Arc<Soft>,
    /// They are in one process and know it.
    loopback: bool,
}

impl Net {
    fn new(params: &str) -> Net {
        Net {
            active: Soft::open(params).unwrap(),
            passive: Soft::open(params).unwrap(),
            loopback: !params.contains("path="),
        }
    }

    fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// Whether a request that the peer refuses completes with the error.
    fn is_refusal_exact(&self) -> bool {
        self.active.params.acknowledge
    }

    /// Whether there are atomic operations and RDMA writes with immediate data.
    fn has_extensions(&self) -> bool {
        let params = &self.active.params;
        params.path != super::params::Path::Tcp || params.acknowledge
    }

    /// Whether a Send completes when its receive does, and not when it is in a ring.
    fn is_send_delivered(&self) -> bool {
        let params = &self.active.params;
        self.loopback || params.path == super::params::Path::Tcp && params.acknowledge
    }

    /// Two ends, made with default attributes and connected.
    fn pair(&self) -> (End, End) {
        self.pair_with(attr(), attr())
    }

    fn pair_with(&self, active: QpAttr, passive: QpAttr) -> (End, End) {
        let a = End::new(&self.active, active);
        let b = End::new(&self.passive, passive);
        self.join(&a, &b);
        (a, b)
    }

    /// Connects two ends.
    fn join(&self, a: &End, b: &End) {
        let (server, qual) = Server::any(&self.passive);
        a.connect(qual, b"hello").unwrap();
        let request = server.next();
        assert_eq!(request.private_data(), b"hello");
        self.passive.accept(request, &b.qp, b"welcome").unwrap();
        assert_eq!(a.event(), established(b"welcome"));
        assert_eq!(b.event(), established(b""));
    }
}

fn established(private_data: &[u8]) -> CmEvent {
    CmEvent::Established {
        private_data: private_data.into(),
    }
}

fn attr() -> QpAttr {
    QpAttr {
        context: 0,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_message_size: 1 << 30,
        max_rdma_size: 1 << 30,
        max_rd_in: 4,
        max_rd_out: 4,
        recv_solicited_only: false,
        datagrams: false,
    }
}

struct Requests(Sender<ConnRequest>);

impl ListenHandler<Soft> for Requests {
    fn request(&self, request: ConnRequest) {
        // A test that is over drops the request with the channel.
        let _ = self.0.send(request);
    }
}

/// A listener and the requests that it gets.
struct Server {
    listener: Listener,
    requests: Receiver<ConnRequest>,
}

impl Server {
    fn any(device: &Arc<Soft>) -> (Server, u64) {
        let (tx, requests) = channel();
        let (listener, qual) = device.listen_any(Arc::new(Requests(tx))).unwrap();
        assert!((1024..=65535).contains(&qual));
        (Server { listener, requests }, qual)
    }

    fn on(device: &Arc<Soft>, qual: u64) -> Result<Server, DeviceError> {
        let (tx, requests) = channel();
        let listener = device.listen(qual, Arc::new(Requests(tx)))?;
        Ok(Server { listener, requests })
    }

    fn next(&self) -> ConnRequest {
        self.requests.recv_timeout(PATIENCE).unwrap()
    }
}

/// Counts the calls of a completion queue, and wakes who blocks until there is another one.
struct Calls {
    device: Weak<Soft>,
    notified: AtomicU32,
    overflows: AtomicU32,
}

impl Calls {
    fn new(device: &Arc<Soft>) -> Arc<Calls> {
        Arc::new(Calls {
            device: Arc::downgrade(device),
            notified: AtomicU32::new(0),
            overflows: AtomicU32::new(0),
        })
    }
}

impl CqHandler for Calls {
    fn notify(&self) {
        self.notified.fetch_add(1, Ordering::SeqCst);
        if let Some(device) = self.device.upgrade() {
            device.unblock(&self.notified);
        }
    }

    fn overflow(&self) {
        self.overflows.fetch_add(1, Ordering::SeqCst);
    }
}

struct Connection {
    events: Sender<CmEvent>,
    soft_marks: Arc<AtomicU32>,
    /// The handler does not return from an event while a test has this.
    hold: Arc<Mutex<()>>,
}

impl Connection {
    fn new(events: Sender<CmEvent>) -> Arc<Connection> {
        Arc::new(Connection {
            events,
            soft_marks: Arc::default(),
            hold: Arc::default(),
        })
    }
}

impl QpHandler for Connection {
    fn connection(&self, event: CmEvent) {
        let _ = self.events.send(event);
        drop(self.hold.lock());
    }

    fn soft_watermark(&self) {
        self.soft_marks.fetch_add(1, Ordering::SeqCst);
    }
}

const BUFFER: usize = 1 << 20;
/// Both kinds of addresses.
const ADDRESSINGS: [Addressing; 2] = [Addressing::Virtual, Addressing::ZeroBased];

/// A queue pair with all that it needs, and a registered buffer.
struct End {
    device: Arc<Soft>,
    pd: Pd,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    send_calls: Arc<Calls>,
    recv_calls: Arc<Calls>,
    qp: Arc<Qp>,
    events: Receiver<CmEvent>,
    soft_marks: Arc<AtomicU32>,
    hold: Arc<Mutex<()>>,
    mr: Option<Mr>,
    /// Address by which segments and peers name the first byte of the buffer.
    first: u64,
    buffer: *mut u8,
    len: usize,
}

// SAFETY: the buffer belongs to the end, and tests share it with the device alone.
unsafe impl Send for End {}

impl End {
    fn new(device: &Arc<Soft>, attr: QpAttr) -> End {
        Self::with_srq(device, attr, None)
    }

    fn with_srq(device: &Arc<Soft>, attr: QpAttr, srq: Option<&Arc<Srq>>) -> End {
        static CONTEXT: AtomicU32 = AtomicU32::new(1);
        let context = u64::from(CONTEXT.fetch_add(1, Ordering::Relaxed));
        let attr = QpAttr { context, ..attr };
        let pd = device.alloc_pd().unwrap();
        let (send_calls, recv_calls) = (Calls::new(device), Calls::new(device));
        let send_cq = device.create_cq(1000, send_calls.clone()).unwrap();
        let recv_cq = device.create_cq(1000, recv_calls.clone()).unwrap();
        let (tx, events) = channel();
        let handler = Connection::new(tx);
        let (soft_marks, hold) = (handler.soft_marks.clone(), handler.hold.clone());
        let parts = QpParts {
            pd: &pd,
            send_cq: Some(&send_cq),
            recv_cq: Some(&recv_cq),
            srq,
        };
        let qp = device.create_qp(&parts, &attr, handler).unwrap();
        let buffer: &mut [u8] = Box::leak(vec![0u8; BUFFER].into_boxed_slice());
        let (buffer, len) = (buffer.as_mut_ptr(), buffer.len());
        let mr = device
            .reg_mr(&pd, buffer as u64, len as u64, Access::all())
            .unwrap();
        End {
            device: device.clone(),
            pd,
            send_cq,
            recv_cq,
            send_calls,
            recv_calls,
            qp,
            events,
            soft_marks,
            hold,
            mr: Some(mr),
            first: buffer as u64,
            buffer,
            len,
        }
    }

    /// Registers the buffer anew, with addresses of this kind.
    fn register(&mut self, addressing: Addressing) {
        let (at, len, all) = (self.buffer as u64, self.len as u64, Access::all());
        let mr = self
            .device
            .reg_mr_addressed(&self.pd, at, len, all, addressing);
        self.mr = Some(mr.unwrap());
        self.first = match addressing {
            Addressing::Virtual => at,
            Addressing::ZeroBased => 0,
        };
    }

    fn connect(&self, qual: u64, private_data: &[u8]) -> Result<(), DeviceError> {
        // The port of the address means nothing.
        let to = SocketAddr::new(self.device.address().ip(), 9);
        self.device
            .connect(&self.qp, to, qual, Some(PATIENCE), private_data)
    }

    /// Calls `f` with the connection through shared memory.
    fn on_shm<R>(&self, f: impl FnOnce(&mut ShmConn) -> R) -> R {
        self.qp.with(|locked| match locked.link {
            Link::Shm(conn) => f(conn),
            _ => panic!("not connected through shared memory"),
        })
    }

    fn event(&self) -> CmEvent {
        self.events.recv_timeout(PATIENCE).unwrap()
    }

    fn no_event(&self) {
        assert!(self.events.try_recv().is_err());
    }

    fn key(&self) -> u32 {
        self.mr.as_ref().unwrap().lkey()
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge {
            addr: self.first + offset as u64,
            len: len as u32,
            lkey: self.key(),
        }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.first + offset as u64,
            rkey: self.key(),
        }
    }

    fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        // SAFETY: inside the buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.buffer.add(offset), bytes.len());
        }
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        // SAFETY: inside the buffer.
        unsafe { std::slice::from_raw_parts(self.buffer.add(offset), len) }.to_vec()
    }

    fn post(&self, wr_id: u64, op: SendOp, sges: &[Sge]) -> Result<(), PostError> {
        self.post_flags(wr_id, op, sges, WrFlags::empty())
    }

    fn post_flags(
        &self,
        wr_id: u64,
        op: SendOp,
        sges: &[Sge],
        flags: WrFlags,
    ) -> Result<(), PostError> {
        self.qp.post_send(&SendWr {
            wr_id,
            op,
            sges,
            flags,
        })
    }

    fn recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let flags = WrFlags::empty();
        self.qp.post_recv(&RecvWr { wr_id, sges, flags })
    }

    fn sent(&self) -> Completion {
        wait(&self.device, &self.send_cq)
    }

    fn received(&self) -> Completion {
        wait(&self.device, &self.recv_cq)
    }

    /// The next completion of a request, in short.
    fn sent_as(&self) -> (u64, WcStatus) {
        let c = self.sent();
        (c.wr_id, c.status)
    }

    fn received_as(&self) -> (u64, WcStatus) {
        let c = self.received();
        (c.wr_id, c.status)
    }

    /// Nothing is left in the completion queues.
    fn idle(&self) {
        assert_eq!(self.send_cq.poll(), None);
        assert_eq!(self.recv_cq.poll(), None);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.qp.destroy();
        self.mr = None;
        let slice = std::ptr::slice_from_raw_parts_mut(self.buffer, self.len);
        // SAFETY: leaked in `new`; nothing refers to it, and no key opens it any more.
        drop(unsafe { Box::from_raw(slice) });
    }
}

/// The next completion, served by this thread as much as by the device.
fn wait(device: &Arc<Soft>, cq: &Arc<Cq>) -> Completion {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(completion) = cq.poll() {
            return completion;
        }
        device.progress();
        assert!(Instant::now() < end, "no completion");
        std::thread::yield_now();
    }
}

/// A consumer blocks for a moment: from now on the device serves itself.
fn doze(device: &Soft) {
    let there = AtomicU32::new(1);
    let wake = device.block(&there, 0, None);
    assert!(matches!(wake, None | Some(Wake::Woken)));
}

/// Blocks until `word` is not `value` any more, however the device wants it.
fn block(device: &Soft, word: &AtomicU32, value: u32) {
    let deadline = Instant::now() + PATIENCE;
    while word.load(Ordering::SeqCst) == value {
        match device.block(word, value, Some(deadline)) {
            Some(wake) => assert_eq!(wake, Wake::Woken),
            None => until(|| word.load(Ordering::SeqCst) != value),
        }
    }
}

/// Runs a test, which has this name in the module [`tests`](self), in a process of its own: what it does concerns all
/// connections of a process, those of other tests too. It reaches a limit that they share, for instance.
fn alone(name: &str, test: impl FnOnce()) {
    alone_with(&[], name, test);
}

/// [`alone`], with more in the environment of that process.
fn alone_with(environment: &[(&str, &str)], name: &str, test: impl FnOnce()) {
    alone_in(module_path!(), environment, name, test);
}

/// [`alone_with`], of a test that has this name in that module.
pub(in crate::device::soft) fn alone_in(
    module: &str,
    environment: &[(&str, &str)],
    name: &str,
    test: impl FnOnce(),
) {
    const ALONE: &str = "LIBDAT_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let (_, module) = module.split_once("::").unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{module}::{name}"), "--nocapture"]);
    command.envs(environment.iter().copied());
    let output = command.env(ALONE, "1").output().unwrap();
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    for skipped in errors.lines().filter(|line| line.starts_with("skipped: ")) {
        eprintln!("\n{skipped}");
    }
    // A name that no test has is none of success.
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{said}{errors}");
}

/// Waits until something is so.
fn until(what: impl FnMut() -> bool) {
    until_within(PATIENCE, what);
}

/// The same, for so long at most.
fn until_within(limit: Duration, mut what: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !what() {
        assert!(Instant::now() < end, "the condition never held");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// How the request with this number ends if the peer refuses that with the number `bad`.
fn status_beside_refused(n: u64, bad: u64) -> WcStatus {
    match n.cmp(&bad) {
        std::cmp::Ordering::Less => WcStatus::Success,
        std::cmp::Ordering::Equal => WcStatus::RemoteAccess,
        std::cmp::Ordering::Greater => WcStatus::Flushed,
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}
