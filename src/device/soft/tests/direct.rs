//! Long payloads over TCP, which are read from the socket straight to where they belong.

use std::io::Write;

use super::raw::*;
use super::*;
use crate::device::soft::iwarp::rdmap::ReadRequest;
use crate::device::soft::iwarp::wire::*;
use crate::guarded;
use crate::test_pages::TestPages;

/// Bytes of a message that is long.
const LONG: usize = 50_000;

/// Sends bytes in two pieces, the second one when the first has been read.
fn in_two(raw: &mut Raw, end: &End, bytes: &[u8], first: usize) {
    raw.send(&bytes[..first]);
    is_read(raw, end);
    raw.send(&bytes[first..]);
}

/// Waits until the library has read all that was sent.
fn is_read(raw: &Raw, end: &End) {
    until(|| {
        doze(&end.device);
        unread(raw) == 0
    });
}

/// Bytes that have arrived at the socket of the library and were not read, as the system shows.
fn unread(raw: &Raw) -> u32 {
    let port = |address: SocketAddr| format!(":{:04X}", address.port());
    let (ours, theirs) = (raw.socket.local_addr(), raw.socket.peer_addr());
    let (ours, theirs) = (port(ours.unwrap()), port(theirs.unwrap()));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table
        .lines()
        .find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_it = fields[1].ends_with(&theirs) && fields[2].ends_with(&ours);
            let (_, queue) = fields[4].split_once(':')?;
            is_it.then(|| u32::from_str_radix(queue, 16).unwrap())
        })
        .expect("no such connection")
}

/// A message of one segment, and its payload.
fn message(number: u32, len: usize) -> (Vec<u8>, Vec<u8>) {
    let payload = pattern(len, number as u8);
    let bytes = fpdu_bytes(&send_header(number, 0, true, len), &payload);
    (bytes, payload)
}

/// The receive and the connection end like that.
#[track_caller]
fn fails(mut raw: Raw, b: &End, status: WcStatus, error: WireError) {
    assert_eq!(b.received_as(), (1, status));
    assert_eq!(b.event(), CmEvent::Broken);
    assert_eq!(raw.terminate().error, error);
}

#[test]
fn a_message_in_any_two_pieces() {
    let (mut raw, b) = connected();
    // The first piece ends in the header, in the payload, or in the trailer.
    for (i, first) in [
        10, 18, 20, 1000, 40_000, 45_904, 45_905, 50_018, 50_020, 50_023,
    ]
    .into_iter()
    .enumerate()
    {
        let (bytes, payload) = message(i as u32 + 1, LONG);
        let sges: Vec<Sge> = match i % 2 {
            0 => vec![b.sge(0, LONG)],
            _ => (0..4).map(|n| b.sge(n * LONG / 4, LONG / 4)).collect(),
        };
        b.fill(0, &vec![0; LONG]);
        b.recv(i as u64, &sges).unwrap();
        in_two(&mut raw, &b, &bytes, first);
        let received = b.received();
        assert_eq!(
            (received.wr_id, received.status, received.byte_len),
            (i as u64, WcStatus::Success, LONG as u32)
        );
        assert!(b.bytes(0, LONG) == payload, "{first}");
    }
}

/// Messages behind each other, of which each piece ends somewhere else in a message.
#[test]
fn a_stream_in_many_pieces() {
    let (mut raw, b) = connected();
    let mut stream = Vec::new();
    let mut expected = Vec::new();
    for number in 1..=10 {
        let len = [LONG, 100, 30_000, 60_000][number as usize % 4];
        let (bytes, payload) = message(number, len);
        stream.extend(bytes);
        let at = (number as usize - 1) * 65_536;
        b.recv(number.into(), &[b.sge(at, 65_536)]).unwrap();
        expected.push((at, payload));
    }
    for piece in stream.chunks(7919) {
        raw.send(piece);
        is_read(&raw, &b);
    }
    for (at, payload) in expected {
        assert_eq!(b.received().byte_len as usize, payload.len());
        assert!(b.bytes(at, payload.len()) == payload);
    }
}

#[test]
fn a_message_that_was_changed_on_its_way_completes_no_receive() {
    for changed in [4, 500, 49_000, LONG + UNTAGGED_HDR + 2] {
        let (mut raw, b) = connected();
        let (mut bytes, _) = message(1, LONG);
        bytes[changed] ^= 1;
        b.recv(1, &[b.sge(0, LONG)]).unwrap();
        in_two(&mut raw, &b, &bytes, 1000);
        fails(raw, &b, WcStatus::Flushed, WireError::MPA_CRC);
    }
}

/// A header that is wrong in itself ends the connection when its FPDU is whole.
#[test]
fn a_message_with_the_wrong_number() {
    let (mut raw, b) = connected();
    let (bytes, _) = message(2, LONG);
    b.recv(1, &[b.sge(0, LONG)]).unwrap();
    in_two(&mut raw, &b, &bytes, 1000);
    fails(raw, &b, WcStatus::Flushed, WireError::DDP_MSN);
}

#[test]
fn a_message_that_is_too_long_for_its_receive() {
    let (mut raw, b) = connected();
    let (bytes, _) = message(1, LONG);
    b.recv(1, &[b.sge(0, LONG - 1)]).unwrap();
    in_two(&mut raw, &b, &bytes, 1000);
    fails(raw, &b, WcStatus::LocalLength, WireError::DDP_TOO_LONG);
    assert_eq!(b.bytes(0, LONG), vec![0; LONG]);
}

/// An RDMA write is not seen before its checksum is.
#[test]
fn an_rdma_write_arrives_as_a_whole() {
    let (mut raw, b) = connected();
    let payload = pattern(LONG, 1);
    let header = tagged(OP_WRITE, b.key(), b.buffer as u64, LONG);
    let bytes = fpdu_bytes(&header, &payload);
    raw.send(&bytes[..bytes.len() - 1]);
    is_read(&raw, &b);
    assert_eq!(b.bytes(0, LONG), vec![0; LONG]);
    raw.send(&bytes[bytes.len() - 1..]);
    until(|| {
        doze(&b.device);
        b.bytes(0, LONG) == payload
    });
}

/// A response to our read, with one that is not ours in front.
#[test]
fn the_response_to_a_read() {
    for wrong in [false, true] {
        let (mut raw, a) = responder();
        let remote = Remote {
            addr: 1000,
            rkey: 9,
        };
        let len = LONG as u32;
        let op = SendOp::RdmaRead { remote, len };
        a.post(1, op, &[a.sge(0, 20_000), a.sge(20_000, 30_000)])
            .unwrap();
        let (_, payload) = raw.segment().unwrap();
        let request = ReadRequest::parse(&payload).unwrap();
        let payload = pattern(LONG, 3);
        let (stag, to) = (request.sink_stag, request.sink_to + u64::from(wrong));
        let bytes = fpdu_bytes(&tagged(OP_READ_RESPONSE, stag, to, LONG), &payload);
        in_two(&mut raw, &a, &bytes, 25_000);
        if wrong {
            assert_eq!(a.sent_as(), (1, WcStatus::BadResponse));
            assert_eq!(a.bytes(0, LONG), vec![0; LONG]);
        } else {
            assert_eq!(a.sent_as(), (1, WcStatus::Success));
            assert!(a.bytes(0, LONG) == payload);
        }
    }
}

/// Without its receive the rest of a message waits for nothing.
#[test]
fn an_end_in_the_middle() {
    let (mut raw, b) = connected();
    let (bytes, _) = message(1, LONG);
    b.recv(1, &[b.sge(0, LONG)]).unwrap();
    raw.send(&bytes[..30_000]);
    is_read(&raw, &b);
    drop(raw);
    assert_eq!(b.received_as(), (1, WcStatus::Flushed));
    assert_eq!(b.event(), CmEvent::Broken);
}

#[test]
fn a_consumer_that_leaves_in_the_middle() {
    for graceful in [true, false] {
        let (mut raw, b) = connected();
        let (bytes, _) = message(1, LONG);
        b.recv(1, &[b.sge(0, LONG)]).unwrap();
        raw.send(&bytes[..30_000]);
        is_read(&raw, &b);
        b.qp.disconnect(graceful);
        // The library may have closed the socket by now.
        let _ = raw.socket.write_all(&bytes[30_000..]);
        let (number, status) = b.received_as();
        assert_eq!(number, 1);
        assert!(matches!(status, WcStatus::Flushed | WcStatus::Success));
        drop(raw);
        assert_eq!(b.event(), CmEvent::Disconnected);
    }
}

/// Memory that is registered and gone fails its receive, wherever the message is at that time.
#[test]
fn memory_that_is_gone() {
    guarded::install_handlers();
    for gone in [1, 2] {
        let (mut raw, b) = connected();
        let pages = TestPages::new(16);
        let (addr, len) = (pages.addr(0), pages.len());
        let mr = b.device.reg_mr(&b.pd, addr, len as u64, Access::all());
        let mr = mr.unwrap();
        let sge = Sge {
            addr,
            len: len as u32,
            lkey: mr.lkey(),
        };
        b.recv(1, &[sge]).unwrap();
        let (bytes, _) = message(1, LONG);
        if gone == 1 {
            pages.unmap(0..16);
        }
        raw.send(&bytes[..20_000]);
        is_read(&raw, &b);
        if gone == 2 {
            pages.unmap(0..16);
        }
        raw.send(&bytes[20_000..]);
        fails(
            raw,
            &b,
            WcStatus::LocalProtection,
            WireError::DDP_CATASTROPHIC,
        );
    }
}

/// A region that is deregistered while a message arrives in it.
#[test]
fn a_key_that_is_gone() {
    let (mut raw, b) = connected();
    let mr = b
        .device
        .reg_mr(&b.pd, b.buffer as u64, LONG as u64, Access::all())
        .unwrap();
    let lkey = mr.lkey();
    b.recv(
        1,
        &[Sge {
            lkey,
            ..b.sge(0, LONG)
        }],
    )
    .unwrap();
    let (bytes, payload) = message(1, LONG);
    raw.send(&bytes[..20_000]);
    is_read(&raw, &b);
    drop(mr);
    raw.send(&bytes[20_000..]);
    assert_eq!(b.received_as(), (1, WcStatus::LocalProtection));
    assert_eq!(b.event(), CmEvent::Broken);
    // Nothing was written behind the end of the registration.
    let behind = 20_000 - UNTAGGED_HDR;
    assert!(b.bytes(0, behind) == payload[..behind]);
    assert_eq!(b.bytes(behind, LONG - behind), vec![0; LONG - behind]);
}
