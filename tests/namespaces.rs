//! What only a network of its own shows: ports that are all taken, and link-local addresses, which two
//! interfaces may both have.

#[path = "common/namespace.rs"]
mod namespace;
#[path = "common/poll.rs"]
mod poll;
#[path = "common/skip.rs"]
mod skip;
#[path = "common/soft.rs"]
mod soft;

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use dat_core::testing::device::soft::{ConnRequest, Listener, Mr, Pd, Qp, Soft};
use dat_core::testing::device::*;

use poll::completion;
use soft::{PATIENCE, Quiet, Requests, attr, queue_pair, queue_pair_with};

/// A port that a test listens on.
const PORT: u16 = 5000;

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// An attempt to connect while all local ports are taken, the only one of which is free a moment later.
/// Whether that led to a connection.
fn connects_to_a_port_that_gets_free() -> bool {
    let device = Soft::open("127.0.0.1 path=tcp").unwrap();
    let (tx, requests) = channel();
    let _listener = device.listen(PORT.into(), Arc::new(Requests(tx))).unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(10, Arc::new(Quiet)).unwrap();
    let [(active, events), (passive, _events)] =
        [1, 2].map(|i| queue_pair(&device, &pd, &cq, i, 1));
    let holder = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
    let to = device.address();
    device
        .connect(&active, to, u64::from(PORT), Some(PATIENCE), b"")
        .unwrap();
    // A reset, so that the port is not kept for a minute.
    rustix::net::sockopt::set_socket_linger(&holder, Some(Duration::ZERO)).unwrap();
    drop(holder);
    let request = requests.recv_timeout(Duration::from_secs(2));
    if let Ok(request) = request {
        device.accept(request, &passive, b"").unwrap();
    }
    let event = events.recv_timeout(PATIENCE).unwrap();
    active.destroy();
    passive.destroy();
    println!("{event:?}");
    matches!(event, CmEvent::Established { .. })
}

#[test]
fn local_ports_that_are_all_taken_are_waited_for() {
    if !namespace::is_inside("local_ports_that_are_all_taken_are_waited_for") {
        return;
    }
    ip("link set lo up");
    let range = "/proc/sys/net/ipv4/ip_local_port_range";
    if let Err(error) = std::fs::write(range, "40000 40000") {
        return skip::skip(&format!("{range}: {error}"));
    }
    // The attempt takes a quarter of a second at most, and this thread may get no processor for as long.
    assert!((0..5).any(|_| connects_to_a_port_that_gets_free()));
}

/// Interfaces with an address that both have.
const INTERFACES: [&str; 2] = ["a0", "b0"];

/// Whether this process has [`INTERFACES`], in a namespace of its own. If not, runs the test of this name there.
fn has_interfaces(test: &str) -> bool {
    if !namespace::is_inside(test) {
        return false;
    }
    if !std::path::Path::new("/proc/sys/net/ipv6").exists() {
        skip::skip("the kernel has no IPv6");
        return false;
    }
    ip("link set lo up");
    ip("link add a0 type veth peer name b0");
    for interface in INTERFACES {
        ip(&format!("link set {interface} up"));
        ip(&format!("addr add fe80::1/64 dev {interface} nodad"));
    }
    true
}

/// The number of the interface that an address belongs to.
fn scope(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(address) => panic!("{address}"),
    }
}

fn listen(device: &Arc<Soft>, qual: u64) -> (Listener, Receiver<ConnRequest>) {
    let (tx, requests) = channel();
    let listener = device.listen(qual, Arc::new(Requests(tx))).unwrap();
    (listener, requests)
}

/// The listeners of a qualifier at the same address of two interfaces are two.
#[test]
fn listeners_at_one_address_of_two_interfaces() {
    if !has_interfaces("listeners_at_one_address_of_two_interfaces") {
        return;
    }
    for path in ["", "path=shm", "path=tcp"] {
        let devices = INTERFACES.map(|name| Soft::open(&format!("fe80::1%{name} {path}")).unwrap());
        for qual in [PORT.into(), 0x1234_5678_9abc] {
            let listeners = [&devices[0], &devices[1]].map(|device| listen(device, qual));
            for (device, (_, requests)) in devices.iter().zip(&listeners) {
                let pd = device.alloc_pd().unwrap();
                let cq = device.create_cq(10, Arc::new(Quiet)).unwrap();
                let [(active, events), (passive, _events)] =
                    [1, 2].map(|i| queue_pair(device, &pd, &cq, i, 1));
                let own = device.address();
                device
                    .connect(&active, own, qual, Some(PATIENCE), b"")
                    .unwrap();
                let request = requests.recv_timeout(PATIENCE).unwrap();
                let ends = [request.local_addr(), request.remote_addr()];
                assert_eq!(ends.map(scope), [scope(own); 2], "{path}");
                device.accept(request, &passive, b"").unwrap();
                let event = events.recv_timeout(PATIENCE).unwrap();
                assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
                active.destroy();
                passive.destroy();
            }
            // The others of that address have got none.
            assert!(
                listeners
                    .iter()
                    .all(|(_, requests)| requests.try_recv().is_err())
            );
        }
    }
}

/// An endpoint for datagrams, with memory.
struct DatagramEnd {
    device: Arc<Soft>,
    cq: Arc<dat_core::testing::device::soft::Cq>,
    qp: Arc<Qp>,
    events: Receiver<CmEvent>,
    buffer: &'static [u8],
    mr: Mr,
    _pd: Pd,
}

impl DatagramEnd {
    fn new(params: &str) -> DatagramEnd {
        let device = Soft::open(params).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(10, Arc::new(Quiet)).unwrap();
        let attr = QpAttr {
            datagrams: true,
            ..attr(1, 1)
        };
        let (qp, events) = queue_pair_with(&device, &pd, &cq, &attr);
        let buffer = vec![7; 4096].leak();
        let (addr, len) = (buffer.as_ptr() as u64, buffer.len() as u64);
        let mr = device.reg_mr(&pd, addr, len, Access::all()).unwrap();
        DatagramEnd {
            device,
            cq,
            qp,
            events,
            buffer,
            mr,
            _pd: pd,
        }
    }

    fn sge(&self, len: u32) -> Sge {
        Sge {
            addr: self.buffer.as_ptr() as u64,
            len,
            lkey: self.mr.lkey(),
        }
    }

    fn resolved(&self) -> Arc<dyn AddressHandle> {
        match self.events.recv_timeout(PATIENCE).unwrap() {
            CmEvent::Resolved(resolved) => resolved.to,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a datagram to `to`, which is where `other` receives.
    fn send(&self, to: &Arc<dyn AddressHandle>, other: &DatagramEnd) {
        let flags = WrFlags::empty();
        let sges = &[other.sge(4096)];
        let wr_id = 1;
        other.qp.post_recv(&RecvWr { wr_id, sges, flags }).unwrap();
        let wr = DatagramWr {
            wr_id,
            to,
            qp_number: to.qp_number(),
            sges: &[self.sge(100)],
            flags,
        };
        Soft::post_datagram(&self.qp, &wr).unwrap();
        for end in [self, other] {
            let completion = completion(&end.device, &end.cq);
            assert_eq!(completion.status, WcStatus::Success);
        }
    }
}

#[test]
fn datagrams_between_link_local_addresses() {
    if !has_interfaces("datagrams_between_link_local_addresses") {
        return;
    }
    ip("addr add fe80::2/64 dev b0 nodad");
    for path in ["", "path=shm", "path=tcp"] {
        let params = format!("fe80::2%b0 {path}");
        let [a, b] = [(); 2].map(|()| DatagramEnd::new(&params));
        let (_listener, requests) = listen(&b.device, PORT.into());
        let own = a.device.address();
        let to = b.device.address();
        a.device
            .connect(&a.qp, to, u64::from(PORT), Some(PATIENCE), b"")
            .unwrap();
        let request = requests.recv_timeout(PATIENCE).unwrap();
        b.device.accept(request, &b.qp, b"").unwrap();
        let (to_b, to_a) = (a.resolved(), b.resolved());
        let scopes = [to_b.address(), to_a.address()].map(scope);
        assert_eq!(scopes, [scope(own); 2], "{path}");
        a.send(&to_b, &b);
        b.send(&to_a, &a);
        a.qp.destroy();
        b.qp.destroy();
    }
}
