//! Connections that are rejected.

use std::io::{ErrorKind, Write};

use super::raw::{LOCAL, Raw, device};
use super::*;
use crate::device::soft::iwarp::mpa::Kind;

/// Peers that are rejected and keep their sockets open take few descriptors: ours close for others.
#[test]
fn a_flood_of_rejected_peers() {
    const PEERS: usize = 40;
    let device = device();
    let (server, qual) = Server::any(&device);
    let mut peers: Vec<Raw> = (0..PEERS)
        .map(|_| {
            let mut raw = Raw::connect(qual);
            raw.frame(&LOCAL.request(2, b"?"));
            device.reject(server.next(), b"no");
            let reply = raw.receive_frame(Kind::Reply, |reply| reply.private_data == b"no");
            assert_eq!(reply, Some(true));
            raw
        })
        .collect();
    let begin = Instant::now();
    // A socket that is open takes what the peer sends.
    let error = loop {
        match peers[0].socket.write_all(b"more") {
            Ok(()) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => break error.kind(),
        }
        assert!(begin.elapsed() < Duration::from_secs(3));
    };
    assert!(matches!(
        error,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    ));
}
