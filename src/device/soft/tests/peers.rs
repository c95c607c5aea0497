//! Peers on the other end of a socket that are not ours, or behave as if they were not.

use std::net::TcpListener;

use super::raw::*;
use super::*;
use crate::device::soft::iwarp::fpdu::Header;
use crate::device::soft::iwarp::mpa::{FRAME_MAX, Kind};
use crate::device::soft::iwarp::rdmap::{ReadRequest, Segment};
use crate::device::soft::iwarp::terminate::{self, TERMINATE_FPDU_MAX};
use crate::device::soft::iwarp::wire::*;

/// A passive end must not speak first: that is for the initiator.
#[test]
fn a_peer_of_revision_1() {
    let (mut raw, b) = initiator(1);
    assert_eq!(b.event(), established(b""));
    b.fill(0, b"from us");
    b.post(1, SendOp::Send, &[b.sge(0, 7)]).unwrap();
    b.recv(2, &[b.sge(100, 7)]).unwrap();
    assert_eq!(b.qp.send_outstanding(), 1);
    raw.fpdu(&send_header(1, 0, true, 5), b"hello");
    assert_eq!(b.received().byte_len, 5);
    assert_eq!(b.bytes(100, 5), b"hello");
    assert_eq!(b.sent_as(), (1, WcStatus::Success));
    let (segment, payload) = raw.segment().unwrap();
    assert!(matches!(
        segment,
        Segment::Send {
            msn: 1,
            mo: 0,
            last: true,
            ..
        }
    ));
    assert_eq!(payload, b"from us");
    drop(raw);
    assert_eq!(b.event(), CmEvent::Disconnected);
}

#[test]
fn established_with_the_first_message_and_not_before() {
    let (mut raw, b) = initiator(2);
    assert_eq!(b.post(1, SendOp::Send, &[]), Err(PostError::NotConnected));
    raw.send(&rtr()[..7]);
    b.no_event();
    raw.send(&rtr()[7..]);
    assert_eq!(b.event(), established(b""));
    b.post(1, SendOp::Send, &[]).unwrap();
    assert_eq!(b.sent_as(), (1, WcStatus::Success));
}

#[test]
fn an_accepted_peer_that_vanishes() {
    let (raw, b) = initiator(2);
    b.recv(1, &[]).unwrap();
    drop(raw);
    assert_eq!(b.event(), CmEvent::AcceptError);
    assert_eq!(b.received_as(), (1, WcStatus::Flushed));
}

/// Peers that cannot even ask leave no trace, and do not keep others out.
#[test]
fn requests_that_are_none() {
    let device = device();
    let (server, qual) = Server::any(&device);
    let silent = Raw::connect(qual);
    let mut wrong_revision = LOCAL.request(2, b"");
    wrong_revision.revision = 3;
    let mut markers = LOCAL.request(2, b"");
    markers.markers = true;
    for bytes in [
        &b"GET / HTTP/1.0\r\n\r\n"[..],
        &[0; 600],
        b"MPA ID Rep Frame",
    ] {
        let mut raw = Raw::connect(qual);
        raw.send(bytes);
        assert!(!raw.more());
    }
    let mut raw = Raw::connect(qual);
    raw.frame(&wrong_revision);
    assert!(!raw.more());
    // Half a request, and then nothing more.
    let mut raw = Raw::connect(qual);
    raw.send(b"MPA ID Req Fra");
    drop(raw);
    // One whose terms cannot be met is refused when it is accepted.
    let mut raw = Raw::connect(qual);
    raw.frame(&markers);
    let b = End::new(&device, attr());
    device.accept(server.next(), &b.qp, b"").unwrap();
    assert_eq!(b.event(), CmEvent::AcceptError);
    b.qp.reset();
    assert_eq!(
        raw.receive_frame(Kind::Reply, |reply| reply.reject),
        Some(true)
    );
    // In pieces, and right.
    let mut bytes = [0; FRAME_MAX];
    let request = LOCAL.request(2, b"slowly");
    let mut raw = Raw::connect(qual);
    for byte in request.encode(&mut bytes).unwrap() {
        raw.send(&[*byte]);
    }
    let request = server.next();
    assert_eq!(request.private_data(), b"slowly");
    device.reject(request, b"sorry");
    let received = raw.receive_frame(Kind::Reply, |reply| {
        assert_eq!(reply.private_data, b"sorry");
        reply.reject
    });
    assert_eq!(received, Some(true));
    assert!(!raw.more());
    assert!(server.requests.try_recv().is_err());
    drop(silent);
}

/// Connections without a request displace each other, and no others: not one whose request waits
/// for the consumer.
#[test]
fn a_flood_of_silence() {
    alone("peers::a_flood_of_silence", silence);
}

fn silence() {
    let device = device();
    let (server, qual) = Server::any(&device);
    let mut waiting = Raw::connect(qual);
    waiting.frame(&LOCAL.request(2, b"first"));
    let request = server.next();
    assert_eq!(request.private_data(), b"first");
    let mut silent: Vec<Raw> = (0..101).map(|_| Raw::connect(qual)).collect();
    assert!(!silent[0].more());
    silent[100].frame(&LOCAL.request(2, b"me"));
    assert_eq!(server.next().private_data(), b"me");
    device.reject(request, b"later");
    let received = waiting.receive_frame(Kind::Reply, |reply| reply.private_data == b"later");
    assert_eq!(received, Some(true));
}

/// Each wrong key costs a connection, and soon a delay before the next one; peers at other addresses
/// have none.
#[test]
fn who_guesses_keys_is_slowed_down() {
    const GUESSER: [u8; 4] = [127, 0, 0, 2];
    let device = device();
    let (server, qual) = Server::any(&device);
    let b = End::new(&device, attr());
    let mut delayed = Duration::ZERO;
    for guess in 1..=24 {
        let mut raw = Raw::connect_from(GUESSER, qual);
        let begin = Instant::now();
        raw.frame(&LOCAL.request(2, b"guess"));
        device.accept(server.next(), &b.qp, b"").unwrap();
        delayed = begin.elapsed();
        assert_eq!(
            raw.receive_frame(Kind::Reply, |reply| reply.reject),
            Some(false)
        );
        raw.send(&rtr());
        assert_eq!(b.event(), established(b""));
        raw.fpdu(&tagged(OP_WRITE, guess, b.buffer as u64, 1), b"x");
        assert_eq!(b.event(), CmEvent::Broken);
        b.qp.reset();
    }
    assert!(delayed >= Duration::from_millis(600), "{delayed:?}");
    let mut guesser = Raw::connect_from(GUESSER, qual);
    let mut other = Raw::connect_from([127, 0, 0, 3], qual);
    let mut is_overtaken = || {
        guesser.frame(&LOCAL.request(2, b"guesser"));
        other.frame(&LOCAL.request(2, b"other"));
        let (first, second) = (server.next(), server.next());
        assert!([&b"other"[..], b"guesser"].contains(&second.private_data()));
        let is_overtaken = first.private_data() == b"other";
        guesser = Raw::connect_from(GUESSER, qual);
        other = Raw::connect_from([127, 0, 0, 3], qual);
        is_overtaken
    };
    // This thread may get no processor for as long as the delay is.
    assert!((0..5).any(|_| is_overtaken()));
}

#[test]
fn a_wide_qualifier_that_is_not_ours() {
    let device = device();
    let (server, qual) = Server::any(&device);
    let mut private = b"libdatQ\0".to_vec();
    private.extend_from_slice(&(7u64 << 35).to_be_bytes());
    let mut raw = Raw::connect(qual);
    raw.frame(&LOCAL.request(2, &private));
    private[7] = 2;
    let received = raw.receive_frame(Kind::Reply, |reply| {
        assert_eq!(reply.private_data, private);
        reply.reject
    });
    assert_eq!(received, Some(true));
    assert!(server.requests.try_recv().is_err());
}

/// What the peer's end of the stream says about the connection.
#[test]
fn ways_to_end() {
    let outstanding = |b: &End| {
        b.recv(1, &[b.sge(0, 100)]).unwrap();
        let remote = Remote { addr: 1, rkey: 1 };
        let op = SendOp::RdmaRead { remote, len: 1 };
        b.post(2, op, &[b.sge(0, 1)]).unwrap();
    };
    let flushed = |b: &End| {
        assert_eq!(b.received_as(), (1, WcStatus::Flushed));
        assert_eq!(b.sent_as(), (2, WcStatus::Flushed));
        b.idle();
    };
    // In order.
    let (raw, b) = connected();
    outstanding(&b);
    raw.socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(b.event(), CmEvent::Disconnected);
    flushed(&b);
    // In the middle of an FPDU.
    let (mut raw, b) = connected();
    outstanding(&b);
    raw.send(&fpdu_bytes(&send_header(1, 0, true, 50), &[1; 50])[..33]);
    raw.socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(b.event(), CmEvent::Broken);
    flushed(&b);
    // By a reset.
    let (raw, b) = connected();
    outstanding(&b);
    let off = Some(Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&raw.socket, off).unwrap();
    drop(raw);
    assert_eq!(b.event(), CmEvent::Broken);
    flushed(&b);
}

/// Messages that arrived before the end are delivered, also to receives that are posted after it.
#[test]
fn the_end_waits_for_late_receives() {
    let (mut raw, b) = connected();
    raw.fpdu(&send_header(1, 0, true, 3), b"one");
    raw.fpdu(&send_header(2, 0, true, 3), b"two");
    drop(raw);
    std::thread::sleep(Duration::from_millis(20));
    b.no_event();
    b.recv(1, &[b.sge(0, 10)]).unwrap();
    assert_eq!(b.received_as(), (1, WcStatus::Success));
    b.recv(2, &[b.sge(10, 10)]).unwrap();
    assert_eq!(b.received_as(), (2, WcStatus::Success));
    assert_eq!(
        (b.bytes(0, 3), b.bytes(10, 3)),
        (b"one".to_vec(), b"two".to_vec())
    );
    assert_eq!(b.event(), CmEvent::Disconnected);
}

/// The same with more than the receiver keeps: the rest is still in the socket.
#[test]
fn the_end_waits_for_many_late_receives() {
    let (mut raw, b) = connected();
    let message = pattern(60_000, 0);
    for msn in 1..=10 {
        raw.fpdu(&send_header(msn, 0, true, message.len()), &message);
    }
    drop(raw);
    std::thread::sleep(Duration::from_millis(20));
    b.no_event();
    for i in 0..10 {
        b.recv(i, &[b.sge(0, message.len())]).unwrap();
        assert_eq!(b.received_as(), (i, WcStatus::Success));
        assert!(b.bytes(0, message.len()) == message);
        b.fill(0, &vec![0; message.len()]);
    }
    assert_eq!(b.event(), CmEvent::Disconnected);
}

/// The connection of a consumer that never posts receives breaks after a while.
#[test]
fn the_end_does_not_wait_for_ever() {
    let device = Soft::open("127.0.0.1 path=tcp linger=1").unwrap();
    let b = End::new(&device, attr());
    let mut raw = raw::initiate(&b, 2);
    raw.send(&rtr());
    assert_eq!(b.event(), established(b""));
    raw.fpdu(&send_header(1, 0, true, 3), b"one");
    drop(raw);
    assert_eq!(b.event(), CmEvent::Broken);
}

/// Every violation is answered with its Terminate and breaks the connection.
#[test]
fn violations() {
    let read = |msn, len| {
        let request = ReadRequest {
            sink_stag: 1,
            sink_to: 0,
            size: len,
            source_stag: 2,
            source_to: 3,
        };
        let mut bytes = [0; READ_REQUEST_HDR];
        request.encode(msn, &mut bytes);
        fpdu_bytes(&bytes, b"")
    };
    let mut bad_crc = fpdu_bytes(&send_header(1, 0, true, 4), b"data");
    *bad_crc.last_mut().unwrap() ^= 1;
    let mut bad_opcode = send_header(1, 0, true, 0);
    bad_opcode[3] |= 0x0f;
    let flood: Vec<u8> = (1..20).flat_map(|msn| read(msn, 0)).collect();
    let write = tagged(OP_WRITE, 0x1234_5678, 99, 4);
    let response = tagged(OP_READ_RESPONSE, 1, 0, 0);
    let cases = [
        (vec![0, 1, 0, 0, 0, 0, 0, 0], WireError::MPA_FRAMING),
        (fpdu_bytes(&[0, 0], b""), WireError::MPA_FRAMING),
        (bad_crc, WireError::MPA_CRC),
        (fpdu_bytes(&bad_opcode, b""), WireError::RDMAP_OPCODE),
        (
            fpdu_bytes(&send_header(2, 0, true, 0), b""),
            WireError::DDP_MSN,
        ),
        (
            fpdu_bytes(&send_header(1, 5, true, 0), b""),
            WireError::DDP_MO,
        ),
        (
            fpdu_bytes(&send_header(1, 0, true, 9), &[0; 9]),
            WireError::DDP_TOO_LONG,
        ),
        (
            fpdu_bytes(&write, b"data"),
            WireError::DDP_TAGGED_INVALID_STAG,
        ),
        (
            fpdu_bytes(&response, b""),
            WireError::DDP_TAGGED_INVALID_STAG,
        ),
        (read(2, 0), WireError::DDP_MSN),
        (read(1, 1), WireError::RDMAP_INVALID_STAG),
        (flood, WireError::DDP_NO_BUFFER),
    ];
    for (bytes, error) in cases {
        let (mut raw, b) = connected();
        b.recv(1, &[b.sge(0, 8)]).unwrap();
        raw.send(&bytes);
        let found = raw.terminate();
        assert_eq!(found.error, error);
        assert_eq!(b.event(), CmEvent::Broken);
        let (id, status) = b.received_as();
        let expected = if error == WireError::DDP_TOO_LONG {
            WcStatus::LocalLength
        } else {
            WcStatus::Flushed
        };
        assert_eq!((id, status), (1, expected));
        if error == WireError::RDMAP_INVALID_STAG {
            // It says which of the reads it was.
            let Some(Header::Untagged(header)) = found.header else {
                panic!("{found:?}");
            };
            assert_eq!((header.qn, header.msn), (QN_READ_REQUEST, 1));
        }
    }
}

#[test]
fn answers_that_were_not_asked_for() {
    for wrong in 0..4 {
        let (mut raw, a) = responder();
        let remote = Remote {
            addr: 1000,
            rkey: 9,
        };
        let op = SendOp::RdmaRead { remote, len: 8 };
        a.post(1, op, &[a.sge(0, 8)]).unwrap();
        a.post(2, op, &[a.sge(8, 8)]).unwrap();
        let (segment, payload) = raw.segment().unwrap();
        assert_eq!(segment, Segment::ReadRequest { msn: 1 });
        let request = ReadRequest::parse(&payload).unwrap();
        assert_eq!(
            (request.source_stag, request.source_to, request.size),
            (9, 1000, 8)
        );
        let (stag, to) = (request.sink_stag, request.sink_to);
        let header = |stag, to, len| tagged(OP_READ_RESPONSE, stag, to, len);
        match wrong {
            0 => raw.fpdu(&header(stag ^ 1, to, 8), &[1; 8]),
            1 => raw.fpdu(&header(stag, to + 1, 8), &[1; 8]),
            2 => raw.fpdu(&header(stag, to, 9), &[1; 9]),
            _ => raw.fpdu(&header(stag, to, 7), &[1; 7]),
        }
        assert_eq!(a.sent_as(), (1, WcStatus::BadResponse));
        assert_eq!(a.sent_as(), (2, WcStatus::Flushed));
        assert_eq!(a.event(), CmEvent::Broken);
        assert_eq!(a.bytes(0, 16), [0; 16]);
        raw.terminate();
    }
}

/// A Terminate names the request that it is about.
#[test]
fn the_peer_terminates() {
    let (mut raw, a) = responder();
    let remote = Remote {
        addr: 1000,
        rkey: 9,
    };
    let op = SendOp::RdmaRead { remote, len: 8 };
    for i in 1..4 {
        a.post(i, op, &[a.sge(0, 8)]).unwrap();
    }
    let mut second = [0; READ_REQUEST_HDR];
    for msn in 1..3 {
        let (_, payload) = raw.segment().unwrap();
        let request = ReadRequest::parse(&payload).unwrap();
        request.encode(msn, &mut second);
    }
    let mut bytes = [0; TERMINATE_FPDU_MAX];
    let bytes = terminate::encode(WireError::RDMAP_BOUNDS, &second, true, &mut bytes);
    raw.send(bytes);
    assert_eq!(a.sent_as(), (1, WcStatus::Flushed));
    assert_eq!(a.sent_as(), (2, WcStatus::RemoteAccess));
    assert_eq!(a.sent_as(), (3, WcStatus::Flushed));
    assert_eq!(a.event(), CmEvent::Broken);
}

/// A peer that reads nothing does not hold up anything but its own connection.
#[test]
fn a_peer_that_does_not_read() {
    let (raw, a) = responder();
    for i in 0..16 {
        a.post(i, SendOp::Send, &[a.sge(0, BUFFER)]).unwrap();
    }
    let whole = Net {
        active: a.device.clone(),
        passive: a.device.clone(),
        loopback: false,
    };
    let (c, d) = whole.pair();
    d.recv(1, &[]).unwrap();
    c.post(1, SendOp::Send, &[]).unwrap();
    assert_eq!(d.received_as(), (1, WcStatus::Success));
    a.qp.disconnect(false);
    assert_eq!(a.event(), CmEvent::Disconnected);
    let ends: Vec<(u64, WcStatus)> = (0..16).map(|_| a.sent_as()).collect();
    assert!(ends.iter().map(|(id, _)| *id).eq(0..16));
    assert_eq!(ends[15].1, WcStatus::Flushed);
    drop(raw);
}

/// Memory that goes away under requests which wait for the socket.
#[test]
fn memory_that_went_away_before_it_was_sent() {
    let (mut raw, mut a) = responder();
    for i in 0..16 {
        a.post(i, SendOp::Send, &[a.sge(0, BUFFER)]).unwrap();
    }
    a.mr = None;
    // What was sent is whole, and the reason for the end follows.
    assert_eq!(raw.terminate().error, WireError::RDMAP_CATASTROPHIC);
    let results: Vec<WcStatus> = (0..16).map(|_| a.sent().status).collect();
    let failed = results
        .iter()
        .position(|s| *s != WcStatus::Success)
        .unwrap();
    assert_eq!(results[failed], WcStatus::LocalProtection);
    assert!(
        results[failed + 1..]
            .iter()
            .all(|s| *s == WcStatus::Flushed)
    );
    assert_eq!(a.event(), CmEvent::Broken);
}

/// Segments of any size, as other implementations cut them.
#[test]
fn small_segments() {
    let (mut raw, b) = connected();
    let data = pattern(1000, 0);
    b.recv(1, &[b.sge(0, 500), b.sge(600, 600)]).unwrap();
    let mut stream = Vec::new();
    for (i, piece) in data.chunks(7).enumerate() {
        let (mo, last) = (i as u32 * 7, i as u32 * 7 + 7 >= 1000);
        stream.extend(fpdu_bytes(&send_header(1, mo, last, piece.len()), piece));
    }
    for piece in stream.chunks(333) {
        raw.send(piece);
    }
    assert_eq!(b.received().byte_len, 1000);
    let got = [b.bytes(0, 500), b.bytes(600, 500)].concat();
    assert_eq!(got, data);
}

/// Servers that are no iWARP responders.
#[test]
fn connecting_to_something_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let qual = u64::from(listener.local_addr().unwrap().port());
    let a = End::new(&device(), attr());
    for answer in [&b"SSH-2.0-whatever\r\n"[..], b"", b"MPA ID Rep Fr"] {
        a.connect(qual, b"").unwrap();
        let mut raw = Raw::new(listener.accept().unwrap().0);
        raw.receive_frame(Kind::Request, |_| ()).unwrap();
        raw.send(answer);
        drop(raw);
        assert_eq!(a.event(), CmEvent::NonPeerRejected);
        a.qp.reset();
    }
    // Silence.
    let to = "127.0.0.1:0".parse().unwrap();
    let limit = Some(Duration::from_secs(1));
    a.device.connect(&a.qp, to, qual, limit, b"").unwrap();
    let mut raw = Raw::new(listener.accept().unwrap().0);
    raw.receive_frame(Kind::Request, |_| ()).unwrap();
    assert_eq!(a.event(), CmEvent::TimedOut);
    assert!(!raw.more());
    a.qp.reset();
    // Terms that cannot be met.
    a.connect(qual, b"").unwrap();
    let mut raw = Raw::new(listener.accept().unwrap().0);
    let mut bytes = [0; FRAME_MAX];
    let reply = raw.receive_frame(Kind::Request, |request| {
        let (mut reply, _) = request.answer(&LOCAL, b"").unwrap();
        reply.enhanced.as_mut().unwrap().ord = 100;
        reply.encode(&mut bytes).unwrap().to_vec()
    });
    raw.send(&reply.unwrap());
    assert_eq!(raw.terminate().error, WireError::MPA_IRD);
    assert_eq!(a.event(), CmEvent::NonPeerRejected);
}

/// A responder that only knows revision 1 is asked again in its own tongue.
#[test]
fn a_responder_of_revision_1() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let qual = u64::from(listener.local_addr().unwrap().port());
    let a = End::new(&device(), attr());
    a.connect(qual, b"hello").unwrap();
    let mut bytes = [0; FRAME_MAX];
    let mut answer = |raw: &mut Raw, revision| {
        let reply = raw.receive_frame(Kind::Request, |request| {
            assert_eq!(request.revision, revision);
            let mut old = *request;
            (old.revision, old.enhanced) = (1, None);
            let (reply, _) = old.answer(&LOCAL, b"old").unwrap();
            reply.encode(&mut bytes).unwrap().to_vec()
        });
        raw.send(&reply.unwrap());
    };
    let mut raw = Raw::new(listener.accept().unwrap().0);
    answer(&mut raw, 2);
    let mut raw = Raw::new(listener.accept().unwrap().0);
    answer(&mut raw, 1);
    assert_eq!(a.event(), established(b"old"));
    a.post(1, SendOp::Send, &[]).unwrap();
    assert_eq!(a.sent_as(), (1, WcStatus::Success));
    let (first, _) = raw.segment().unwrap();
    assert!(matches!(first, Segment::Send { msn: 1, .. }));
}

#[test]
fn there_and_elsewhere() {
    let a = End::new(&device(), attr());
    let bad = |to: &str| {
        let to = to.parse().unwrap();
        a.device.connect(&a.qp, to, 9, None, b"")
    };
    assert_eq!(bad("0.0.0.0:1"), Err(DeviceError::BadAddress));
    assert_eq!(bad("224.0.0.1:1"), Err(DeviceError::BadAddress));
    // The device is bound to the loopback address, which leads to no other host.
    let elsewhere = "192.0.2.77:0".parse().unwrap();
    a.device.connect(&a.qp, elsewhere, 9, None, b"").unwrap();
    assert_eq!(a.event(), CmEvent::Unreachable);
}
