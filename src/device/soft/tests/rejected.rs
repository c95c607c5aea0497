//! Connections that are rejected, and those that end with an answer.

use std::io::{ErrorKind, Write};

use super::raw::{LOCAL, Raw, device};
use super::*;
use crate::device::soft::iwarp::mpa::Kind;
use crate::device::soft::transport::datagram::wire;

/// The sockets of peers that keep theirs open, each after an exchange, take few descriptors: ours close for
/// others.
fn ours_close_for_others(exchange: impl Fn() -> Raw) {
    const PEERS: usize = 40;
    let mut peers: Vec<Raw> = (0..PEERS).map(|_| exchange()).collect();
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

#[test]
fn a_flood_of_rejected_peers() {
    let device = device();
    let (server, qual) = Server::any(&device);
    ours_close_for_others(|| {
        let mut raw = Raw::connect(qual);
        raw.frame(&LOCAL.request(2, b"?"));
        device.reject(server.next(), b"no");
        let reply = raw.receive_frame(Kind::Reply, |reply| reply.private_data == b"no");
        assert_eq!(reply, Some(true));
        raw
    });
}

#[test]
fn a_flood_of_questions_for_datagrams() {
    let b = datagrams::end(&device());
    let (server, qual) = Server::any(&b.device);
    let own = wire::End {
        qp_number: 7,
        port: 9,
        key: 1,
        shares: false,
    };
    ours_close_for_others(|| {
        let mut raw = Raw::connect(qual);
        raw.frame(&LOCAL.request(2, &own.add_to(b"?")));
        b.device.accept(server.next(), &b.qp, b"yes").unwrap();
        let answer = |private_data: &[u8]| wire::End::split_from(private_data).is_some();
        let reply = raw.receive_frame(Kind::Reply, |reply| answer(reply.private_data));
        assert_eq!(reply, Some(true));
        assert!(b.resolved().accepted);
        raw
    });
}
