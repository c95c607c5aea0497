//! Datagrams, and what strangers send to their port.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};

use super::*;
use crate::device::soft::iwarp::mpa::{FRAME_MAX, Kind, Local, Parsed, Rtr, parse};
use crate::device::soft::transport;
use crate::device::soft::transport::datagram::wire::{self, HEADER_LEN, MAX_DATAGRAM, Route};
use crate::device::{AddressHandle, DATAGRAM_HEADER_LEN, DatagramWr, Resolved};
use crate::test_pages::TestPages;

const HEADER: usize = DATAGRAM_HEADER_LEN as usize;

/// Over the network of the kernel, within the process, and through shared memory.
const PATHS: [&str; 3] = ["127.0.0.1 path=tcp", "127.0.0.1", "127.0.0.1 path=shm"];

pub(super) fn end(device: &Arc<Soft>) -> End {
    let attr = QpAttr {
        datagrams: true,
        ..attr()
    };
    End::new(device, attr)
}

impl End {
    pub(super) fn resolved(&self) -> Resolved {
        match self.event() {
            CmEvent::Resolved(resolved) => resolved,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn send_to(&self, to: &Arc<dyn AddressHandle>, len: usize) -> Result<(), PostError> {
        let wr = DatagramWr {
            wr_id: len as u64,
            to,
            qp_number: to.qp_number(),
            sges: &[self.sge(0, len)],
            flags: WrFlags::empty(),
        };
        Soft::post_datagram(&self.qp, &wr)
    }

    /// What a peer is to know.
    pub(super) fn end(&self) -> wire::End {
        transport::datagram_end(&self.qp).unwrap().end()
    }
}

/// `a` learns where `b` receives.
pub(super) fn resolve(a: &End, b: &End) -> Arc<dyn AddressHandle> {
    let (server, qual) = Server::any(&b.device);
    a.connect(qual, b"hello").unwrap();
    let request = server.next();
    assert!(request.is_for_datagrams());
    assert_eq!(request.private_data(), b"hello");
    b.device.accept(request, &b.qp, b"welcome").unwrap();
    let (at_a, at_b) = (a.resolved(), b.resolved());
    assert_eq!(
        (&*at_a.private_data, at_a.accepted),
        (&b"welcome"[..], false)
    );
    assert_eq!((&*at_b.private_data, at_b.accepted), (&b"hello"[..], true));
    assert_eq!(at_a.to.qp_number(), b.end().qp_number);
    assert_eq!(at_b.to.qp_number(), a.end().qp_number);
    assert_eq!(at_a.to.address().ip(), b.device.address().ip());
    at_a.to
}

/// A datagram of a stranger who knows an end.
fn datagram(end: wire::End, payload: &[u8]) -> Vec<u8> {
    let route = Route {
        receiver: end.qp_number,
        sender: 7,
        key: end.key,
        solicited: false,
    };
    [&route.header(payload)[..], payload].concat()
}

/// Two ends, and where the second receives.
fn pair(params: &str) -> (End, End, Arc<dyn AddressHandle>) {
    let (a, b) = (
        end(&Soft::open(params).unwrap()),
        end(&Soft::open(params).unwrap()),
    );
    let to = resolve(&a, &b);
    (a, b, to)
}

#[test]
fn the_longest_datagram() {
    for params in PATHS {
        let (a, b, to) = pair(params);
        let bytes = pattern(MAX_DATAGRAM, 3);
        a.fill(0, &bytes);
        b.recv(1, &[b.sge(0, HEADER + MAX_DATAGRAM)]).unwrap();
        a.send_to(&to, MAX_DATAGRAM).unwrap();
        let received = b.received();
        assert_eq!(received.op, WcOp::RecvDatagram);
        assert_eq!(received.byte_len as usize, HEADER + MAX_DATAGRAM);
        assert_eq!(b.bytes(HEADER, MAX_DATAGRAM), bytes);
        let sent = a.sent();
        assert_eq!(
            (sent.op, sent.status),
            (WcOp::SendDatagram, WcStatus::Success)
        );
        assert_eq!(a.send_to(&to, MAX_DATAGRAM + 1), Err(PostError::TooLong));
        // The header names the sender and the receiver.
        let (from, address) = (a.device.address().ip(), b.device.address().ip());
        assert_eq!(
            b.bytes(0, HEADER),
            wire::route_header(MAX_DATAGRAM, from, address)
        );
        assert_eq!((a.qp.send_outstanding(), b.qp.recv_outstanding()), (0, 0));
    }
}

#[test]
fn a_datagram_that_is_longer_than_its_receive() {
    for params in PATHS {
        let (a, b, to) = pair(params);
        b.recv(1, &[b.sge(0, HEADER + 99)]).unwrap();
        b.recv(2, &[b.sge(0, HEADER + 100)]).unwrap();
        for _ in 0..2 {
            a.send_to(&to, 100).unwrap();
        }
        assert_eq!(b.received_as(), (1, WcStatus::LocalLength));
        assert_eq!(b.received_as(), (2, WcStatus::Success));
        b.no_event();
    }
}

/// Memory of the sender, and of a receive, that is not there any more.
#[test]
fn memory_that_is_gone() {
    let gone = |end: &End| {
        let page = TestPages::new(1);
        let (addr, len) = (page.addr(0), page.len() as u64);
        let mr = end
            .device
            .reg_mr(&end.pd, addr, len, Access::all())
            .unwrap();
        let sge = Sge {
            addr,
            len: 1000,
            lkey: mr.lkey(),
        };
        // The pages are unmapped here, by their drop.
        (mr, sge)
    };
    for params in PATHS {
        let (a, b, to) = pair(params);
        let (_mr, sge) = gone(&a);
        let wr = DatagramWr {
            wr_id: 1,
            to: &to,
            qp_number: to.qp_number(),
            sges: &[sge],
            flags: WrFlags::empty(),
        };
        Soft::post_datagram(&a.qp, &wr).unwrap();
        assert_eq!(a.sent_as(), (1, WcStatus::LocalProtection));
        let (_mr, sge) = gone(&b);
        b.recv(2, &[sge]).unwrap();
        a.send_to(&to, 100).unwrap();
        assert_eq!(b.received_as(), (2, WcStatus::LocalProtection));
        b.recv(3, &[b.sge(0, 1000)]).unwrap();
        a.send_to(&to, 100).unwrap();
        assert_eq!(b.received_as(), (3, WcStatus::Success));
    }
}

/// What is not a datagram for a queue pair of the port is dropped.
#[test]
fn strangers() {
    let (a, b, to) = pair("127.0.0.1 path=tcp");
    let end = b.end();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = ("127.0.0.1", end.port);
    let right = datagram(end, b"right");
    let other_key = wire::End {
        key: end.key ^ 1,
        ..end
    };
    let other_number = wire::End {
        qp_number: end.qp_number ^ 1,
        ..end
    };
    let mut wrong = vec![
        Vec::new(),
        vec![0; 1],
        vec![0xff; HEADER_LEN],
        right[..HEADER_LEN].to_vec(),
        right[..right.len() - 1].to_vec(),
        datagram(other_key, b"wrong"),
        datagram(other_number, b"wrong"),
        datagram(end, &[0; MAX_DATAGRAM + 1]),
        vec![0x55; 60_000],
    ];
    for at in 0..right.len() {
        let mut bytes = right.clone();
        bytes[at] ^= 0x20;
        wrong.push(bytes);
    }
    b.recv(1, &[b.sge(0, 1000)]).unwrap();
    for bytes in &wrong {
        stranger.send_to(bytes, port).unwrap();
    }
    // Who knows the end is no stranger.
    stranger.send_to(&right, port).unwrap();
    assert_eq!(b.received_as(), (1, WcStatus::Success));
    assert_eq!(b.bytes(HEADER, 5), b"right");
    b.recv(2, &[b.sge(0, 1000)]).unwrap();
    a.send_to(&to, 3).unwrap();
    assert_eq!(b.received().byte_len as usize, HEADER + 3);
    b.idle();
}

/// More than the kernel, and the receiver, can hold.
#[test]
fn a_flood() {
    let (a, b, to) = pair("127.0.0.1 path=tcp");
    for i in 0..2000 {
        // Refused, when the kernel has no room, or sent.
        let _ = a.send_to(&to, i);
        while a.send_cq.poll().is_some() {}
    }
    let end = Instant::now() + PATIENCE;
    b.recv(1, &[b.sge(0, HEADER + MAX_DATAGRAM)]).unwrap();
    b.recv(2, &[b.sge(0, HEADER + MAX_DATAGRAM)]).unwrap();
    while b.qp.recv_outstanding() > 0 {
        let _ = a.send_to(&to, 10);
        while a.send_cq.poll().is_some() {}
        b.device.progress();
        assert!(Instant::now() < end);
    }
    assert_eq!(b.received_as(), (1, WcStatus::Success));
}

/// The port is there as long as a queue pair uses it, and a number as long as its queue pair.
#[test]
fn queue_pairs_share_a_port() {
    let device = Soft::open("127.0.0.1 path=tcp").unwrap();
    let (first, second) = (end(&device), end(&device));
    let (one, other) = (first.end(), second.end());
    assert_eq!((one.port, one.key), (other.port, other.key));
    assert_ne!(one.qp_number, other.qp_number);
    assert_ne!(end(&Soft::open("127.0.0.1").unwrap()).end().key, one.key);
    let is_free = || UdpSocket::bind(("127.0.0.1", one.port)).is_ok();
    drop(first);
    assert!(!is_free());
    // To a queue pair that is gone.
    let a = end(&device);
    let to = resolve(&a, &second);
    drop(second);
    let receivers = transport::datagram_end(&a.qp).unwrap().port().receivers();
    assert_eq!(receivers, 1);
    a.send_to(&to, 10).unwrap();
    assert_eq!(a.sent_as(), (10, WcStatus::Success));
    drop(a);
    until(is_free);
}

#[test]
fn the_two_kinds_of_queue_pairs() {
    let device = Soft::open("127.0.0.1").unwrap();
    let (a, b) = (end(&device), end(&device));
    let (plain_a, plain_b) = (End::new(&device, attr()), End::new(&device, attr()));
    let to = resolve(&a, &b);
    assert_eq!(plain_a.send_to(&to, 1), Err(PostError::Unsupported));
    let send = a.post(1, SendOp::Send, &[a.sge(0, 1)]);
    assert_eq!(send, Err(PostError::NotConnected));
    let (server, qual) = Server::any(&device);
    a.connect(qual, b"").unwrap();
    let accepted = device.accept(server.next(), &plain_b.qp, b"");
    assert_eq!(accepted, Err(DeviceError::Unsupported));
    // The request was dropped, which refuses it.
    assert_eq!(a.event(), CmEvent::NonPeerRejected);
    plain_a.connect(qual, b"").unwrap();
    let accepted = device.accept(server.next(), &b.qp, b"");
    assert_eq!(accepted, Err(DeviceError::Unsupported));
    assert_eq!(plain_a.event(), CmEvent::NonPeerRejected);
    let long = vec![0; device.attr().max_datagram_private_data as usize + 1];
    assert_eq!(a.connect(qual, &long), Err(DeviceError::Limit));
    a.connect(qual, &long[1..]).unwrap();
    assert_eq!(server.next().private_data(), &long[1..]);
}

/// A listener of another implementation accepts what it takes for a connection.
#[test]
fn a_peer_without_datagrams() {
    let device = Soft::open("127.0.0.1").unwrap();
    let a = end(&device);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let qual = listener.local_addr().unwrap().port();
    a.connect(qual.into(), b"").unwrap();
    let (mut socket, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    let request = loop {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
        if let Ok(Parsed::Frame(frame, _)) = parse(Kind::Request, &bytes) {
            break frame;
        }
    };
    let local = Local {
        crc: true,
        ird: 0,
        ord: 0,
        rtr: Rtr::all(),
        acknowledge: false,
        extensions: false,
    };
    let mut out = [0; FRAME_MAX];
    let (reply, _) = request.answer(&local, b"welcome").unwrap();
    socket.write_all(reply.encode(&mut out).unwrap()).unwrap();
    assert_eq!(a.event(), CmEvent::NonPeerRejected);
    // The connection ends.
    until(|| !matches!(socket.read(&mut [0; 100]), Ok(1..)));
}

/// A queue pair that is destroyed gives up what it has asked for.
#[test]
fn questions_of_a_queue_pair_that_is_destroyed() {
    let device = Soft::open("127.0.0.1").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let qual = listener.local_addr().unwrap().port();
    let a = end(&device);
    let mut sockets = Vec::new();
    for _ in 0..3 {
        a.connect(qual.into(), b"").unwrap();
        sockets.push(listener.accept().unwrap().0);
    }
    a.qp.destroy();
    for mut socket in sockets {
        let mut bytes = Vec::new();
        // Its end, behind the request; or a reset.
        let _ = socket.read_to_end(&mut bytes);
    }
    a.no_event();
}
