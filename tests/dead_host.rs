//! A host that is gone without a word: both ends of each connection to it notice, whatever they
//! were doing, and a host that is merely slow is left alone. Two network namespaces are the hosts.

#[path = "common/namespace.rs"]
mod namespace;
#[path = "common/skip.rs"]
mod skip;
#[path = "common/soft.rs"]
mod soft;

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use dat_core::testing::device::soft::{ConnRequest, Cq, Listener, Mr, Pd, Qp, Soft};
use dat_core::testing::device::*;

use soft::{PATIENCE, Quiet, Requests, queue_pair};

/// The `timeout=` of both devices.
const TIMEOUT: Duration = Duration::from_secs(2);
/// When an end has to know that the other is gone: far less than a kernel takes by itself.
const NOTICED: Duration = Duration::from_secs(12);
/// Bytes of each message.
const LEN: usize = 1 << 20;
/// Messages that a queue pair sends.
const MESSAGES: u64 = 8;

/// A host: a network namespace with an interface to the other one.
struct Host {
    /// The namespace.
    namespace: File,
    /// The address of the interface.
    address: &'static str,
    /// The name of the interface.
    interface: &'static str,
    device: Arc<Soft>,
    listener: Listener,
    requests: Receiver<ConnRequest>,
    qual: u64,
}

/// Runs `ip` in the namespace.
fn ip(namespace: &File, arguments: &str) {
    let fd = namespace.as_raw_fd();
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    // SAFETY: a system call, which may be made between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::setns(fd, libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    assert!(command.status().unwrap().success(), "ip {arguments}");
}

impl Host {
    /// Opens the device of the host. The thread is in the namespace.
    fn new(namespace: File, address: &'static str, interface: &'static str) -> Host {
        let seconds = TIMEOUT.as_secs();
        let device = Soft::open(&format!("{address} path=tcp timeout={seconds}")).unwrap();
        let (tx, requests) = channel();
        let (listener, qual) = device.listen_any(Arc::new(Requests(tx))).unwrap();
        Host {
            namespace,
            address,
            interface,
            device,
            listener,
            requests,
            qual,
        }
    }

    fn to(&self) -> SocketAddr {
        SocketAddr::new(self.address.parse().unwrap(), 0)
    }

    /// From now on nothing arrives that this host sends to `other`, and nothing reports that.
    fn send_nowhere(&self, other: &Host) {
        let (address, interface) = (other.address, self.interface);
        let nowhere = "lladdr 02:00:00:00:00:99 nud permanent";
        ip(
            &self.namespace,
            &format!("neigh replace {address} {nowhere} dev {interface}"),
        );
    }
}

/// Two hosts. The first is that of the process.
fn hosts() -> (Host, Host) {
    let own = || File::open("/proc/thread-self/ns/net").unwrap();
    let first = own();
    let (tx, ready) = channel();
    let (go, linked) = channel::<()>();
    let second = std::thread::spawn(move || {
        // SAFETY: a system call that concerns this thread alone.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        tx.send((rustix::thread::gettid(), own())).unwrap();
        linked.recv().unwrap();
        Host::new(own(), "10.77.0.2", "b0")
    });
    let (thread, namespace) = ready.recv().unwrap();
    let thread = thread.as_raw_nonzero();
    let link = format!("link add a0 type veth peer name b0 netns {thread}");
    ip(&first, &link);
    for (namespace, address, interface) in
        [(&first, "10.77.0.1", "a0"), (&namespace, "10.77.0.2", "b0")]
    {
        ip(namespace, "link set lo up");
        ip(namespace, &format!("addr add {address}/24 dev {interface}"));
        ip(namespace, &format!("link set {interface} up"));
    }
    go.send(()).unwrap();
    let second = second.join().unwrap();
    (Host::new(first, "10.77.0.1", "a0"), second)
}

/// A queue pair with a buffer.
struct End {
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    events: Receiver<CmEvent>,
    mr: Mr,
    buffer: &'static [u8],
    _pd: Pd,
}

impl End {
    fn new(device: &Arc<Soft>) -> End {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(100, Arc::new(Quiet)).unwrap();
        let (qp, events) = queue_pair(device, &pd, &cq, 1, 1);
        let buffer = vec![0u8; LEN].leak();
        let (addr, len) = (buffer.as_ptr() as u64, buffer.len() as u64);
        let mr = device.reg_mr(&pd, addr, len, Access::all()).unwrap();
        End {
            cq,
            qp,
            events,
            mr,
            buffer,
            _pd: pd,
        }
    }

    fn sge(&self) -> Sge {
        Sge {
            addr: self.buffer.as_ptr() as u64,
            len: LEN as u32,
            lkey: self.mr.lkey(),
        }
    }

    /// Sends `count` messages.
    fn send(&self, count: u64) {
        for wr_id in 0..count {
            let request = SendWr {
                wr_id,
                op: SendOp::Send,
                sges: &[self.sge()],
                flags: WrFlags::empty(),
            };
            self.qp.post_send(&request).unwrap();
        }
    }

    fn receive(&self, count: u64) {
        for wr_id in 0..count {
            let (sges, flags) = (&[self.sge()][..], WrFlags::empty());
            self.qp.post_recv(&RecvWr { wr_id, sges, flags }).unwrap();
        }
    }

    /// All `count` requests complete.
    fn complete(&self, count: u64) {
        let end = Instant::now() + PATIENCE;
        for _ in 0..count {
            let completion = loop {
                match self.cq.poll() {
                    Some(completion) => break completion,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
                assert!(Instant::now() < end, "no completion");
            };
            assert_eq!(completion.status, WcStatus::Success);
        }
    }

    fn established(&self) {
        let event = self.events.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
    }
}

/// The ends of a connection, at the first host and at the second.
fn pair(a: &Host, b: &Host) -> [End; 2] {
    let ends = [End::new(&a.device), End::new(&b.device)];
    a.device
        .connect(&ends[0].qp, b.to(), b.qual, Some(PATIENCE), b"")
        .unwrap();
    let request = b.requests.recv_timeout(PATIENCE).unwrap();
    b.device.accept(request, &ends[1].qp, b"").unwrap();
    ends.iter().for_each(End::established);
    ends
}

/// The next event of each end, until which it may take [`NOTICED`] from `cut` on.
fn all_end(cut: Instant, expected: &CmEvent, ends: &[(&str, &End)]) {
    let mut missed = Vec::new();
    for (what, end) in ends {
        let left = NOTICED.saturating_sub(cut.elapsed());
        match end.events.recv_timeout(left) {
            Ok(event) => {
                println!("{what}: {event:?} after {:?}", cut.elapsed());
                assert_eq!(&event, expected, "{what}");
            }
            Err(RecvTimeoutError::Timeout) => missed.push(*what),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    assert!(missed.is_empty(), "no event within {NOTICED:?}: {missed:?}");
}

#[test]
fn packets_that_vanish() {
    if !namespace::is_inside("packets_that_vanish") {
        return;
    }
    a_host_is_gone(|a, b| {
        a.send_nowhere(b);
        b.send_nowhere(a);
    });
}

#[test]
fn a_link_that_is_down() {
    if !namespace::is_inside("a_link_that_is_down") {
        return;
    }
    a_host_is_gone(|_, b| ip(&b.namespace, "link set b0 down"));
}

/// Two hosts have connections in all states; one that is slow is left alone, and after `part` has
/// parted the hosts both notice.
fn a_host_is_gone(part: impl FnOnce(&Host, &Host)) {
    let (a, b) = hosts();
    let [
        idle,
        first_sends,
        second_sends,
        both_send,
        slow,
        mutual,
        closed,
        ending,
    ] = [(); 8].map(|()| pair(&a, &b));
    // No receives: the peers' windows are closed for longer than the timeout.
    slow[0].send(MESSAGES);
    closed[0].send(MESSAGES);
    for end in &mutual {
        end.send(MESSAGES);
    }
    std::thread::sleep(3 * TIMEOUT + TIMEOUT / 2);
    for (what, [a, b]) in [
        ("idle", &idle),
        ("slow", &slow),
        ("mutual", &mutual),
        ("closed", &closed),
    ] {
        for end in [a, b] {
            assert_eq!(end.events.try_recv().ok(), None, "{what}");
        }
    }
    slow[1].receive(MESSAGES);
    slow[1].complete(MESSAGES);
    slow[0].complete(MESSAGES);
    // A request that waits for its answer.
    let waiting = End::new(&a.device);
    let far = Some(Duration::from_secs(3600));
    a.device
        .connect(&waiting.qp, b.to(), b.qual, far, b"")
        .unwrap();
    let _request = b.requests.recv_timeout(PATIENCE).unwrap();

    part(&a, &b);
    let cut = Instant::now();
    let connecting = End::new(&a.device);
    a.device
        .connect(&connecting.qp, b.to(), b.qual, far, b"")
        .unwrap();
    first_sends[0].send(1);
    second_sends[1].send(1);
    for end in &both_send {
        end.send(1);
    }
    // The end of the stream is what the peer does not acknowledge.
    ending[0].qp.disconnect(true);
    let ends: Vec<(String, &End)> = [
        ("idle", &idle),
        ("first sends", &first_sends),
        ("second sends", &second_sends),
        ("both send", &both_send),
        ("slow", &slow),
        ("mutual", &mutual),
        ("closed", &closed),
        ("ending", &ending),
    ]
    .into_iter()
    .flat_map(|(what, [a, b])| {
        [
            (format!("{what}, first"), a),
            (format!("{what}, second"), b),
        ]
    })
    .collect();
    let ends: Vec<(&str, &End)> = ends.iter().map(|(what, end)| (&**what, *end)).collect();
    all_end(cut, &CmEvent::Broken, &ends);
    let attempts = [("waiting", &waiting), ("connecting", &connecting)];
    all_end(cut, &CmEvent::Unreachable, &attempts);
    drop((a.listener, b.listener));
}
