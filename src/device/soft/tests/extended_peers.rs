//! Peers made by hand that speak of atomic operations and immediate data, rightly or not.

use super::raw::{self, Raw, fpdu_bytes, initiator_of, send_header, tagged};
use super::*;
use crate::device::soft::iwarp::acknowledge::{ACKNOWLEDGE_FPDU_MAX, Acknowledge};
use crate::device::soft::iwarp::extensions::{AtomicRequest, AtomicResponse, Immediate};
use crate::device::soft::iwarp::fpdu::{Control, Header, Tagged};
use crate::device::soft::iwarp::mpa::Local;
use crate::device::soft::iwarp::rdmap::{ReadRequest, Segment};
use crate::device::soft::iwarp::wire::*;

/// What an end of ours offers.
const ABLE: Local = Local {
    acknowledge: true,
    extensions: true,
    ..raw::LOCAL
};

fn initiator() -> (Raw, End) {
    initiator_of(&ABLE)
}

/// An FPDU that is all header.
fn whole(header: &[u8]) -> Vec<u8> {
    fpdu_bytes(header, &[])
}

fn add(b: &End, msn: u32, offset: usize) -> AtomicRequest {
    AtomicRequest {
        identifier: 70 + msn,
        word: b.remote(offset),
        op: AtomicOp::FetchAdd { add: 1 },
    }
}

/// The same as an FPDU.
fn add_fpdu(b: &End, msn: u32, offset: usize) -> Vec<u8> {
    whole(&add(b, msn, offset).encode(msn))
}

fn immediate(msn: u32, written: u32) -> Vec<u8> {
    whole(&Immediate { imm: 9, written }.encode(msn, false, false))
}

/// A segment of an RDMA write that immediate data belongs to.
fn write(b: &End, last: bool, payload: &[u8]) -> Vec<u8> {
    let header = Tagged {
        control: Control::new(OP_WRITE, last).with_immediate(true),
        stag: b.key(),
        to: b.remote(0).addr,
    };
    let mut bytes = [0; TAGGED_HDR];
    header.encode(payload.len(), &mut bytes).unwrap();
    fpdu_bytes(&bytes, payload)
}

fn read(b: &End, msn: u32, size: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: 1,
        sink_to: 0,
        size,
        source_stag: b.key(),
        source_to: b.remote(0).addr,
    };
    let mut bytes = [0; READ_REQUEST_HDR];
    request.encode(msn, &mut bytes);
    whole(&bytes)
}

/// The next answer is that of an atomic operation.
#[track_caller]
fn answers(raw: &mut Raw, msn: u32, identifier: u32, before: u64) {
    let (segment, payload) = raw.any().unwrap();
    assert_eq!(segment, Segment::AtomicResponse { msn });
    let expected = AtomicResponse { identifier, before };
    assert_eq!(AtomicResponse::parse(&payload), Ok(expected));
}

#[test]
fn what_is_sent() {
    let (mut raw, b) = initiator();
    let remote = Remote { addr: 800, rkey: 9 };
    let op = AtomicOp::CompareSwap {
        compare: 3,
        swap: 4,
    };
    b.post(1, SendOp::Atomic { remote, op }, &[b.sge(0, 8)])
        .unwrap();
    let (segment, payload) = raw.any().unwrap();
    assert_eq!(segment, Segment::AtomicRequest { msn: 1 });
    let request = AtomicRequest::parse(&payload).unwrap();
    assert_eq!((request.word, request.op), (remote, op));

    let imm = u32::from_ne_bytes([1, 2, 3, 4]);
    let write = SendOp::RdmaWriteImm { remote, imm };
    b.post(2, write, &[b.sge(0, 70_000)]).unwrap();
    b.post_flags(3, write, &[], WrFlags::SOLICITED).unwrap();
    let mut written = 0;
    loop {
        let (segment, payload) = raw.any().unwrap();
        let Segment::Write {
            stag,
            to,
            last,
            immediate,
        } = segment
        else {
            panic!("{segment:?}");
        };
        assert_eq!((stag, to, immediate), (9, 800 + written, true));
        written += payload.len() as u64;
        if last {
            break;
        }
    }
    assert_eq!(written, 70_000);
    for (msn, solicited, written) in [(1, false, [0, 1, 0x11, 0x70]), (2, true, [0; 4])] {
        let (segment, payload) = raw.any().unwrap();
        assert_eq!(segment, Segment::Immediate { msn, solicited });
        assert_eq!(payload, [[1, 2, 3, 4], written].concat());
    }

    // The result is in the order of the network, and a write with its immediate data is one request.
    let response = AtomicResponse {
        identifier: request.identifier,
        before: 0x0102_0304_0506_0708,
    };
    raw.send(&whole(&response.encode(1)));
    assert_eq!(b.sent_as(), (1, WcStatus::Success));
    assert_eq!(b.word(0), 0x0102_0304_0506_0708);
    for (count, id) in [(2, 2), (3, 3)] {
        std::thread::sleep(Duration::from_millis(5));
        b.device.progress();
        assert_eq!(b.send_cq.poll(), None);
        let mut bytes = [0; ACKNOWLEDGE_FPDU_MAX];
        let note = None;
        raw.send(Acknowledge { count, note }.encode(count - 1, true, &mut bytes));
        assert_eq!(b.sent_as(), (id, WcStatus::Success));
    }
}

/// Requests are counted as the peer counts them.
#[test]
fn what_is_acknowledged() {
    let (mut raw, b) = initiator();
    b.recv(0, &[]).unwrap();
    let mut expect = |bytes: &[u8], expected: u32| {
        raw.send(bytes);
        loop {
            let (header, payload) = raw.header().unwrap();
            let segment = Segment::classify_all(&header, payload.len()).unwrap();
            let (Header::Untagged(untagged), true) =
                (header, matches!(segment, Segment::Acknowledge { .. }))
            else {
                continue;
            };
            assert!(untagged.invalidate <= expected);
            if untagged.invalidate == expected {
                break;
            }
        }
    };
    expect(&add_fpdu(&b, 1, 0), 1);
    let parts = [write(&b, false, &[1; 4]), write(&b, true, &[1; 4])].concat();
    expect(&[parts, immediate(1, 8)].concat(), 2);
    expect(&tagged_write(&b), 3);
    // This one waits for its receive.
    let waits = [
        write(&b, true, &[1; 4]),
        immediate(2, 4),
        add_fpdu(&b, 2, 0),
    ];
    raw.send(&waits.concat());
    std::thread::sleep(Duration::from_millis(20));
    b.recv(1, &[]).unwrap();
    let (mut count, mut answered) = (3, false);
    while count < 5 || !answered {
        let (header, payload) = raw.header().unwrap();
        match Segment::classify_all(&header, payload.len()).unwrap() {
            Segment::Acknowledge { .. } => {
                let Header::Untagged(header) = header else {
                    unreachable!();
                };
                count = header.invalidate;
                assert!(count <= 5);
            }
            segment => {
                assert_eq!(segment, Segment::AtomicResponse { msn: 2 });
                answered = true;
            }
        }
    }
}

fn tagged_write(b: &End) -> Vec<u8> {
    fpdu_bytes(&tagged(OP_WRITE, b.key(), b.remote(0).addr, 8), &[1; 8])
}

/// An operation is executed once, however long its response waits for the socket, and once the peer has
/// its request on the way.
#[test]
fn a_peer_that_reads_its_answers_late() {
    let (mut raw, b) = initiator();
    let long = BUFFER as u32 - 8;
    raw.send(&read(&b, 1, long));
    for msn in 2..5 {
        raw.send(&add_fpdu(&b, msn, BUFFER - 8));
    }
    until(|| {
        doze(&b.device);
        b.word(BUFFER - 8) == 3
    });
    let mut left = long as usize;
    while left > 0 {
        let (segment, payload) = raw.any().unwrap();
        assert!(matches!(segment, Segment::ReadResponse { .. }));
        left -= payload.len();
    }
    for n in 0..3 {
        answers(&mut raw, n + 1, 72 + n, n.into());
    }
    assert_eq!(b.word(BUFFER - 8), 3);
}

/// An end that knows acknowledgements alone, or nothing of ours.
#[test]
fn peers_without_these_operations() {
    let without = Local {
        extensions: false,
        ..ABLE
    };
    for local in [without, raw::LOCAL] {
        let (mut raw, b) = initiator_of(&local);
        let (remote, imm) = (b.remote(0), 1);
        let op = AtomicOp::FetchAdd { add: 1 };
        for op in [
            SendOp::Atomic { remote, op },
            SendOp::RdmaWriteImm { remote, imm },
        ] {
            let refused = Err(PostError::Unsupported);
            assert_eq!(b.post(1, op, &[b.sge(0, 8)]), refused);
        }
        b.recv(1, &[b.sge(0, 8)]).unwrap();
        raw.fpdu(&send_header(1, 0, true, 2), b"ok");
        assert_eq!(b.received_as(), (1, WcStatus::Success));
        // The bit for immediate data is one that is ignored.
        raw.send(&write(&b, true, &[1; 8]));
        until(|| {
            doze(&b.device);
            b.bytes(0, 8) == [1; 8]
        });
        for bytes in [
            immediate(2, 8),
            add_fpdu(&b, 1, 0),
            whole(
                &AtomicResponse {
                    identifier: 1,
                    before: 1,
                }
                .encode(1),
            ),
        ] {
            let (mut raw, b) = initiator_of(&local);
            raw.send(&bytes);
            assert_eq!(raw.terminate().error, WireError::RDMAP_OPCODE);
            assert_eq!(b.event(), CmEvent::Broken);
        }
    }
}

/// Every violation is answered with its Terminate, and has no effect.
#[test]
fn violations() {
    let changed = |b: &End, at: usize, to: u8| {
        let mut bytes = add(b, 1, 0).encode(1);
        bytes[at] = to;
        whole(&bytes)
    };
    let cut = |header: &[u8], len: usize| {
        let mut bytes = header[..header.len() - len].to_vec();
        bytes[1] -= len as u8;
        whole(&bytes)
    };
    let long = |header: &[u8]| {
        let mut bytes = [header, &[0; 4]].concat();
        bytes[1] += 4;
        whole(&bytes)
    };
    type Case = (&'static str, Vec<u8>, WireError);
    let cases = |b: &End| -> Vec<Case> {
        let swap = AtomicRequest {
            op: AtomicOp::CompareSwap {
                compare: 0,
                swap: 1,
            },
            ..add(b, 1, 0)
        };
        let mut masked = swap.encode(1);
        masked[UNTAGGED_HDR + 51] = 0;
        let imm = Immediate { imm: 1, written: 0 }.encode(1, false, false);
        let send = fpdu_bytes(&send_header(1, 0, false, 2), &[0; 2]);
        let part = || write(b, false, &[1; 4]);
        let behind = |first: Vec<u8>, rest: Vec<u8>| [first, rest].concat();
        let response = AtomicResponse {
            identifier: 1,
            before: 1,
        };
        vec![
            ("number", whole(&add(b, 2, 0).encode(2)), WireError::DDP_MSN),
            ("queue", changed(b, 11, 0), WireError::DDP_QN),
            ("offset", changed(b, 19, 1), WireError::DDP_MO),
            ("not last", changed(b, 2, 0x01), WireError::DDP_TOO_LONG),
            (
                "operation",
                changed(b, UNTAGGED_HDR + 3, 1),
                WireError::RDMAP_OPERATION,
            ),
            (
                "mask",
                changed(b, UNTAGGED_HDR + 28, 0x80),
                WireError::RDMAP_OPERATION,
            ),
            ("compare mask", whole(&masked), WireError::RDMAP_OPERATION),
            (
                "cut",
                cut(&add(b, 1, 0).encode(1), 8),
                WireError::RDMAP_STREAM,
            ),
            (
                "long",
                long(&add(b, 1, 0).encode(1)),
                WireError::DDP_TOO_LONG,
            ),
            (
                "response",
                whole(&response.encode(1)),
                WireError::DDP_NO_BUFFER,
            ),
            (
                "response number",
                whole(&response.encode(2)),
                WireError::DDP_MSN,
            ),
            ("immediate number", immediate(2, 0), WireError::DDP_MSN),
            ("immediate cut", cut(&imm, 4), WireError::RDMAP_STREAM),
            ("immediate long", long(&imm), WireError::DDP_TOO_LONG),
            ("written nothing", immediate(1, 1), WireError::RDMAP_STREAM),
            (
                "written more",
                behind(write(b, true, &[1; 4]), immediate(1, 5)),
                WireError::RDMAP_STREAM,
            ),
            (
                "written less",
                behind(write(b, true, &[1; 4]), immediate(1, 0)),
                WireError::RDMAP_STREAM,
            ),
            (
                "in a write",
                behind(part(), immediate(1, 4)),
                WireError::RDMAP_OPCODE,
            ),
            (
                "in a message",
                behind(send, immediate(1, 0)),
                WireError::RDMAP_OPCODE,
            ),
            (
                "write between",
                behind(part(), tagged_write(b)),
                WireError::RDMAP_OPCODE,
            ),
            (
                "send between",
                behind(
                    write(b, true, &[1; 4]),
                    fpdu_bytes(&send_header(1, 0, true, 2), &[0; 2]),
                ),
                WireError::RDMAP_OPCODE,
            ),
            (
                "atomic operation between",
                behind(write(b, true, &[1; 4]), add_fpdu(b, 1, 0)),
                WireError::RDMAP_OPCODE,
            ),
        ]
    };
    let names: Vec<_> = {
        let (_raw, b) = initiator();
        cases(&b).into_iter().map(|(name, ..)| name).collect()
    };
    for (n, name) in names.into_iter().enumerate() {
        let (mut raw, b) = initiator();
        let (_, bytes, error) = cases(&b).swap_remove(n);
        b.recv(1, &[b.sge(500, 8)]).unwrap();
        b.set_word(BUFFER - 8, 5);
        raw.send(&bytes);
        assert_eq!(raw.terminate().error, error, "{name}");
        assert_eq!(b.event(), CmEvent::Broken);
        assert_eq!(b.received_as(), (1, WcStatus::Flushed), "{name}");
        assert!([0, 0x0101_0101].contains(&b.word(0)), "{name}");
        assert_eq!(b.word(BUFFER - 8), 5);
    }
}

/// More than may wait for their answers.
#[test]
fn too_many_atomic_operations() {
    let (mut raw, b) = initiator();
    // They wait behind this message.
    raw.send(&fpdu_bytes(&send_header(1, 0, true, 2), &[0; 2]));
    let flood: Vec<u8> = (1..6).flat_map(|msn| add_fpdu(&b, msn, 0)).collect();
    raw.send(&flood);
    assert_eq!(raw.terminate().error, WireError::DDP_NO_BUFFER);
    assert_eq!(b.event(), CmEvent::Broken);
    assert_eq!(b.word(0), 0);
}

/// The request is named in the Terminate, by its number.
#[test]
fn what_a_refusal_says() {
    for (offset, error) in [
        (4, WireError::RDMAP_OPERATION),
        (BUFFER, WireError::RDMAP_BOUNDS),
    ] {
        let (mut raw, b) = initiator();
        raw.send(&add_fpdu(&b, 1, 0));
        raw.send(&add_fpdu(&b, 2, offset));
        raw.send(&add_fpdu(&b, 3, 0));
        answers(&mut raw, 1, 71, 0);
        let found = raw.terminate();
        assert_eq!(found.error, error);
        let Some(Header::Untagged(header)) = found.header else {
            panic!("{found:?}");
        };
        assert_eq!((header.qn, header.msn), (QN_READ_REQUEST, 2));
        assert_eq!(header.control.opcode(), OP_ATOMIC_REQUEST);
        assert_eq!(b.event(), CmEvent::Broken);
        assert_eq!(b.word(0), 1);
    }
}

/// Answers that are not those to our oldest request.
#[test]
fn wrong_answers() {
    for wrong in 0..7 {
        let (mut raw, b) = initiator();
        let remote = Remote { addr: 800, rkey: 9 };
        let atomic = SendOp::Atomic {
            remote,
            op: AtomicOp::FetchAdd { add: 1 },
        };
        let read = SendOp::RdmaRead { remote, len: 8 };
        let (first, second) = match wrong {
            5 => (read, atomic),
            _ => (atomic, read),
        };
        b.post(1, first, &[b.sge(0, 8)]).unwrap();
        b.post(2, second, &[b.sge(8, 8)]).unwrap();
        let (segment, payload) = raw.any().unwrap();
        let identifier = match segment {
            Segment::AtomicRequest { .. } => AtomicRequest::parse(&payload).unwrap().identifier,
            _ => ReadRequest::parse(&payload).unwrap().sink_stag,
        };
        let before = 1;
        let response = AtomicResponse { identifier, before };
        let other = AtomicResponse {
            identifier: identifier + 1,
            before,
        };
        let right = response.encode(1);
        let (bytes, error) = match wrong {
            0 => (whole(&other.encode(1)), WireError::RDMAP_STREAM),
            1 => (
                fpdu_bytes(&tagged(OP_READ_RESPONSE, identifier, 0, 8), &[1; 8]),
                WireError::DDP_TAGGED_INVALID_STAG,
            ),
            2 => (
                fpdu_bytes(&tagged(OP_READ_RESPONSE, identifier, 0, 0), &[]),
                WireError::DDP_TAGGED_INVALID_STAG,
            ),
            3 => {
                let mut cut = right[..right.len() - 4].to_vec();
                cut[1] -= 4;
                (whole(&cut), WireError::RDMAP_STREAM)
            }
            4 => {
                let mut long = [&right[..], &[0; 4]].concat();
                long[1] += 4;
                (whole(&long), WireError::DDP_TOO_LONG)
            }
            // To the read.
            5 => (whole(&right), WireError::RDMAP_STREAM),
            _ => (
                [whole(&right), whole(&response.encode(2))].concat(),
                WireError::RDMAP_STREAM,
            ),
        };
        raw.send(&bytes);
        assert_eq!(raw.terminate().error, error, "{wrong}");
        assert_eq!(b.event(), CmEvent::Broken);
        let statuses = [b.sent_as(), b.sent_as()];
        let expected = match wrong {
            4 => [(1, WcStatus::Flushed), (2, WcStatus::Flushed)],
            6 => [(1, WcStatus::Success), (2, WcStatus::BadResponse)],
            _ => [(1, WcStatus::BadResponse), (2, WcStatus::Flushed)],
        };
        assert_eq!(statuses, expected, "{wrong}");
        let word = if wrong == 6 { 1 } else { 0 };
        assert_eq!((b.word(0), b.word(8)), (word, 0));
    }
}

/// The memory for the result is withdrawn before the response arrives.
#[test]
fn a_result_without_a_place() {
    let (mut raw, mut b) = initiator();
    let remote = Remote { addr: 800, rkey: 9 };
    let op = AtomicOp::FetchAdd { add: 1 };
    b.post(1, SendOp::Atomic { remote, op }, &[b.sge(0, 8)])
        .unwrap();
    let (_, payload) = raw.any().unwrap();
    let identifier = AtomicRequest::parse(&payload).unwrap().identifier;
    b.mr = None;
    let response = AtomicResponse {
        identifier,
        before: 1,
    };
    raw.send(&whole(&response.encode(1)));
    assert_eq!(b.sent_as(), (1, WcStatus::LocalProtection));
    assert_eq!(b.event(), CmEvent::Broken);
    assert_eq!(b.word(0), 0);
}

/// Immediate data without a receive waits up to a limit, and then in the socket.
#[test]
fn a_flood_of_immediate_data() {
    use std::io::{ErrorKind, Write};
    const MOST: u32 = 1_500_000;
    let (mut raw, b) = initiator();
    let limit = Some(Duration::from_millis(300));
    raw.socket.set_write_timeout(limit).unwrap();
    let mut sent = 0;
    let error = loop {
        let many: Vec<u8> = (1..=1000).flat_map(|n| immediate(sent + n, 0)).collect();
        match raw.socket.write_all(&many) {
            Ok(()) => sent += 1000,
            Err(error) => break error.kind(),
        }
        b.device.progress();
        assert!(sent < MOST, "the library reads on and on");
    };
    assert!(matches!(error, ErrorKind::WouldBlock | ErrorKind::TimedOut));
    for id in 0..5000 {
        b.recv(id, &[]).unwrap();
        let c = b.received();
        assert_eq!((c.wr_id, c.op), (id, WcOp::RecvRdmaImm { imm: 9 }));
    }
    b.no_event();
}
