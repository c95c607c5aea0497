//! What only a network of its own shows: ports that are all taken.

#[path = "common/namespace.rs"]
mod namespace;
#[path = "common/skip.rs"]
mod skip;
#[path = "common/soft.rs"]
mod soft;

use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use dat_core::testing::device::soft::Soft;
use dat_core::testing::device::*;

use soft::{PATIENCE, Quiet, Requests, queue_pair};

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
        .connect(&active, to, PORT.into(), Some(PATIENCE), b"")
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
