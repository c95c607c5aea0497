//! What the children do: connections that come to nothing, or break.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use dat_core::testing::device::soft::{ConnRequest, Cq, Listener, Pd, Qp, Soft};
use dat_core::testing::device::*;

use super::soft::{PATIENCE, Quiet, Requests, attr, queue_pair_with};
use super::{ACTIVE, PASSIVE};

struct End {
    device: Arc<Soft>,
    pd: Pd,
    _cq: Arc<Cq>,
    qp: Arc<Qp>,
    events: Receiver<CmEvent>,
}

impl End {
    fn new(params: &str, handle: u64) -> End {
        End::with(params, &attr(handle, 1))
    }

    /// An end for datagrams.
    fn datagrams(params: &str, handle: u64) -> End {
        let attr = QpAttr {
            datagrams: true,
            ..attr(handle, 1)
        };
        End::with(params, &attr)
    }

    fn with(params: &str, attr: &QpAttr) -> End {
        let device = Soft::open(params).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(100, Arc::new(Quiet)).unwrap();
        let (qp, events) = queue_pair_with(&device, &pd, &cq, attr);
        End {
            device,
            pd,
            _cq: cq,
            qp,
            events,
        }
    }

    fn listen(&self) -> (Listener, u16, Receiver<ConnRequest>) {
        let (tx, requests) = channel();
        let (listener, qual) = self.device.listen_any(Arc::new(Requests(tx))).unwrap();
        (listener, qual as u16, requests)
    }

    fn connect_to(&self, address: &str, port: u16, timeout: Duration) {
        let to: SocketAddr = address.parse().unwrap();
        self.device
            .connect(&self.qp, to, u64::from(port), Some(timeout), b"")
            .unwrap();
    }

    fn connect(&self, port: u16) {
        self.connect_to("127.0.0.1:0", port, PATIENCE);
    }

    fn accept(&self, request: ConnRequest) {
        self.device.accept(request, &self.qp, b"").unwrap();
    }

    fn event(&self) -> CmEvent {
        self.events.recv_timeout(PATIENCE).unwrap()
    }

    fn is_resolved(&self) {
        let event = self.event();
        assert!(matches!(event, CmEvent::Resolved(_)), "{event:?}");
    }

    /// Accepts all requests until the one who started this process ends it.
    fn serve(self) {
        let (_listener, port, requests) = self.listen();
        println!("\nport {port}");
        std::thread::spawn(move || {
            for request in requests {
                self.accept(request);
            }
        });
        wait();
    }

    fn is_up(&self) {
        let event = self.event();
        assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
    }
}

/// An end that connects, and one that listens.
fn ends(params: &str) -> (End, End) {
    (End::new(params, ACTIVE), End::new(params, PASSIVE))
}

/// Two ends that are connected.
fn pair(params: &str) -> (End, End) {
    let (active, passive) = ends(params);
    let (_listener, port, requests) = passive.listen();
    active.connect(port);
    passive.accept(requests.recv_timeout(PATIENCE).unwrap());
    active.is_up();
    passive.is_up();
    (active, passive)
}

/// The request of `active`, which has taken it back then.
fn stale(active: &End, requests: &Receiver<ConnRequest>, free: bool) -> ConnRequest {
    let request = requests.recv_timeout(PATIENCE).unwrap();
    if free {
        active.qp.destroy();
    } else {
        active.qp.disconnect(false);
        assert_eq!(active.event(), CmEvent::Disconnected);
    }
    request
}

/// Posts a request of so many bytes, in memory that stays registered.
fn post(end: &End, op: SendOp, len: usize) {
    let addr = vec![0u8; len].leak().as_ptr() as u64;
    let mr = end
        .device
        .reg_mr(&end.pd, addr, len as u64, Access::LOCAL_READ)
        .unwrap();
    let sge = Sge {
        addr,
        len: len as u32,
        lkey: mr.lkey(),
    };
    std::mem::forget(mr);
    let wr = SendWr {
        wr_id: 1,
        op,
        sges: &[sge],
        flags: WrFlags::empty(),
    };
    end.qp.post_send(&wr).unwrap();
}

/// No memory of the peer.
const NOWHERE: Remote = Remote {
    addr: 4096,
    rkey: 0xdead_beef,
};

/// Waits for a line on standard input.
fn wait() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

pub fn run(name: &str, params: &str, port: u16) {
    match name {
        "connect" => {
            let active = End::new(params, ACTIVE);
            active.connect(port);
            assert_eq!(active.event(), CmEvent::NonPeerRejected);
        }
        // A wide qualifier whose lower half is the port.
        "connect-wide" => {
            let active = End::new(params, ACTIVE);
            let to: SocketAddr = "127.0.0.1:0".parse().unwrap();
            let port = u64::from(port);
            let sought = Sought {
                qual: u64::from(std::process::id()) << 32 | port,
                otherwise: Some(port),
            };
            let connected = active
                .device
                .connect(&active.qp, to, sought, Some(PATIENCE), b"");
            connected.unwrap();
            assert_eq!(active.event(), CmEvent::NonPeerRejected);
        }
        "unreachable" => {
            let active = End::new(params, ACTIVE);
            active.connect_to("255.255.255.255:0", port, PATIENCE);
            assert_eq!(active.event(), CmEvent::Unreachable);
        }
        "reject" => {
            let (active, passive) = ends(params);
            let (_listener, port, requests) = passive.listen();
            active.connect(port);
            let request = requests.recv_timeout(PATIENCE).unwrap();
            passive.device.reject(request, b"");
            let event = active.event();
            assert!(matches!(event, CmEvent::PeerRejected { .. }), "{event:?}");
        }
        "drop" => {
            let (active, passive) = ends(params);
            let (_listener, port, requests) = passive.listen();
            active.connect(port);
            drop(requests.recv_timeout(PATIENCE).unwrap());
            assert_eq!(active.event(), CmEvent::NonPeerRejected);
        }
        "silence" => {
            let (active, passive) = ends(params);
            let (_listener, port, requests) = passive.listen();
            active.connect_to("127.0.0.1:0", port, Duration::from_secs(2));
            let request = requests.recv_timeout(PATIENCE).unwrap();
            assert_eq!(active.event(), CmEvent::TimedOut);
            drop(request);
        }
        "gone" | "freed" => {
            let (active, passive) = ends(params);
            let (_listener, port, requests) = passive.listen();
            active.connect(port);
            passive.accept(stale(&active, &requests, name == "freed"));
            assert_eq!(passive.event(), CmEvent::AcceptError);
        }
        "break" => {
            let (active, passive) = pair(params);
            post(&active, SendOp::RdmaWrite(NOWHERE), 64);
            assert_eq!(active.event(), CmEvent::Broken);
            assert_eq!(passive.event(), CmEvent::Broken);
        }
        "both" => {
            let (active, passive) = pair(params);
            active.qp.disconnect(true);
            assert_eq!(active.event(), CmEvent::Disconnected);
            assert_eq!(passive.event(), CmEvent::Disconnected);
        }
        "up" => {
            let active = End::new(params, ACTIVE);
            active.connect(port);
            active.is_up();
        }
        "outlive" => {
            let active = End::new(params, ACTIVE);
            active.connect(port);
            active.is_up();
            println!("\nup");
            // The peer is stopped then, and reads nothing of this.
            wait();
            post(&active, SendOp::Send, 1 << 16);
            println!("\nsent");
            assert_eq!(active.event(), CmEvent::Broken);
        }
        "peer" => End::new(params, PASSIVE).serve(),
        "datagram-peer" => End::datagrams(params, PASSIVE).serve(),
        "resolve" => {
            let active = End::datagrams(params, ACTIVE);
            active.connect(port);
            active.is_resolved();
        }
        "resolve-here" => {
            let active = End::datagrams(params, ACTIVE);
            let passive = End::datagrams(params, PASSIVE);
            let (_listener, port, requests) = passive.listen();
            active.connect(port);
            passive.accept(requests.recv_timeout(PATIENCE).unwrap());
            active.is_resolved();
            passive.is_resolved();
        }
        "wrong-answer" => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let active = End::new(params, ACTIVE);
            active.connect(port);
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
            assert_eq!(active.event(), CmEvent::NonPeerRejected);
        }
        "wrong-request" => {
            let passive = End::new(params, PASSIVE);
            let (_listener, port, _requests) = passive.listen();
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            // The device hangs up, and has said why then.
            let _ = stream.read(&mut [0]);
        }
        other => panic!("no scenario {other}"),
    }
}
