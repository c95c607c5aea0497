//! How long FPDUs are: a peer that has not said that it takes longer ones gets such as fit a TCP segment, as cards for
//! iWARP need.

use super::raw::*;
use super::*;
use crate::device::soft::iwarp::fpdu::Header;
use crate::device::soft::iwarp::mpa::{Frame, Kind};
use crate::device::soft::iwarp::rdmap::ReadRequest;
use crate::device::soft::iwarp::wire::*;

/// Most bytes of data in a segment to the peer, as it says in its SYN: Ethernet has room for 1460.
const MSS: usize = 1460;
/// Bytes that each of these operations moves.
const LONG: usize = 20_000;

/// A peer on a path with small segments, and our end.
fn peer(says_long: bool) -> (Raw, End) {
    let b = End::new(&device(), attr());
    let (server, qual) = Server::any(&b.device);
    let port = u16::try_from(qual).unwrap();
    let (family, kind) = (
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
    );
    let socket = rustix::net::socket(family, kind, None).unwrap();
    let mss = MSS as libc::c_int;
    // SAFETY: an integer and its size.
    let set = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&socket),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw const mss).cast(),
            size_of_val(&mss) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    let address = std::net::SocketAddrV4::new([127, 0, 0, 1].into(), port);
    rustix::net::connect(&socket, &address).unwrap();
    let mut raw = Raw::new(socket.into());
    raw.frame(&Frame {
        long_fpdus: says_long,
        ..LOCAL.request(2, b"")
    });
    b.device.accept(server.next(), &b.qp, b"").unwrap();
    let agreed = raw.receive_frame(Kind::Reply, |reply| LOCAL.conclude(2, reply));
    agreed.unwrap().unwrap();
    raw.send(&rtr());
    assert_eq!(b.event(), established(b""));
    (raw, b)
}

/// The sizes of the next FPDUs, with as many bytes of payload as an operation moves.
fn sizes(raw: &mut Raw) -> Vec<usize> {
    let (mut sizes, mut left) = (Vec::new(), LONG);
    while left > 0 {
        let (header, payload) = raw.header().expect("the end");
        let header = match header {
            Header::Tagged(_) => TAGGED_HDR,
            Header::Untagged(_) => UNTAGGED_HDR,
        };
        sizes.push((header + payload.len()).next_multiple_of(4) + FPDU_CRC);
        left -= payload.len();
    }
    sizes
}

/// A Send, an RDMA Write and the answer to a read.
fn operations(says_long: bool) -> [Vec<usize>; 3] {
    let (mut raw, b) = peer(says_long);
    b.post(1, SendOp::Send, &[b.sge(0, LONG)]).unwrap();
    let send = sizes(&mut raw);
    let to = Remote { addr: 0, rkey: 1 };
    b.post(2, SendOp::RdmaWrite(to), &[b.sge(0, LONG)]).unwrap();
    let write = sizes(&mut raw);
    let source = b.remote(0);
    let request = ReadRequest {
        sink_stag: 1,
        sink_to: 0,
        size: LONG as u32,
        source_stag: source.rkey,
        source_to: source.addr,
    };
    let mut bytes = [0; READ_REQUEST_HDR];
    request.encode(1, &mut bytes);
    raw.fpdu(&bytes, b"");
    [send, write, sizes(&mut raw)]
}

#[test]
fn fpdus_fit_a_segment() {
    for sizes in operations(false) {
        let most = *sizes.iter().max().unwrap();
        // The kernel may need some of each segment for options. What is left is filled.
        assert!((MSS - 40..=MSS).contains(&most), "{sizes:?}");
        assert!(sizes.iter().filter(|size| **size == most).count() + 2 >= sizes.len());
    }
}

#[test]
fn a_peer_says_that_it_takes_longer_ones() {
    for sizes in operations(true) {
        assert_eq!(sizes.len(), 1, "{sizes:?}");
    }
}

/// More segments than one system call takes wait behind what fills the socket.
#[test]
fn requests_of_many_segments_that_wait_together() {
    const SEGMENTS: usize = 60;
    const LEN: usize = 40;
    const MESSAGE: usize = SEGMENTS * LEN;
    const COUNT: usize = 30;
    const WRITES: u64 = 32;
    let many = QpAttr {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 64,
        ..attr()
    };
    let net = Net::new("127.0.0.1 path=tcp crc=off");
    let (a, b) = net.pair_with(many, many);
    for i in 0..COUNT {
        a.fill(i * MESSAGE, &[i as u8; MESSAGE]);
        b.recv(i as u64, &[b.sge(i * MESSAGE, MESSAGE)]).unwrap();
    }
    let pause = b.device.engine.pause();
    for i in 0..WRITES {
        let to = SendOp::RdmaWrite(b.remote(0));
        a.post(100 + i, to, &[a.sge(0, BUFFER)]).unwrap();
    }
    for i in 0..COUNT {
        let segments: Vec<Sge> = (0..SEGMENTS)
            .map(|n| a.sge(i * MESSAGE + n * LEN, LEN))
            .collect();
        a.post(i as u64, SendOp::Send, &segments).unwrap();
    }
    drop(pause);
    for i in 0..WRITES {
        assert_eq!(a.sent_as(), (100 + i, WcStatus::Success));
    }
    for i in 0..COUNT {
        assert_eq!(a.sent_as(), (i as u64, WcStatus::Success));
        assert_eq!(b.received_as(), (i as u64, WcStatus::Success));
        assert_eq!(b.bytes(i * MESSAGE, MESSAGE), [i as u8; MESSAGE]);
    }
}
