//! Peers made by hand that break the rules of atomic operations and immediate data.

use super::extended_peers::*;
use super::raw::{fpdu_bytes, send_header, tagged};
use super::*;
use crate::device::soft::iwarp::extensions::{AtomicRequest, AtomicResponse, Immediate};
use crate::device::soft::iwarp::fpdu::Header;
use crate::device::soft::iwarp::rdmap::{ReadRequest, Segment};
use crate::device::soft::iwarp::wire::*;

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
