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

pub(super) fn initiator() -> (Raw, End) {
    initiator_of(&ABLE)
}

/// An FPDU that is all header.
pub(super) fn whole(header: &[u8]) -> Vec<u8> {
    fpdu_bytes(header, &[])
}

pub(super) fn add(b: &End, msn: u32, offset: usize) -> AtomicRequest {
    AtomicRequest {
        identifier: 70 + msn,
        word: b.remote(offset),
        op: AtomicOp::FetchAdd { add: 1 },
    }
}

/// The same as an FPDU.
pub(super) fn add_fpdu(b: &End, msn: u32, offset: usize) -> Vec<u8> {
    whole(&add(b, msn, offset).encode(msn))
}

pub(super) fn immediate(msn: u32, written: u32) -> Vec<u8> {
    whole(&Immediate { imm: 9, written }.encode(msn, false, false))
}

/// A segment of an RDMA write that immediate data belongs to.
pub(super) fn write(b: &End, last: bool, payload: &[u8]) -> Vec<u8> {
    let header = Tagged {
        control: Control::new(OP_WRITE, last).with_immediate(true),
        stag: b.key(),
        to: b.remote(0).addr,
    };
    let mut bytes = [0; TAGGED_HDR];
    header.encode(payload.len(), &mut bytes).unwrap();
    fpdu_bytes(&bytes, payload)
}

pub(super) fn read(b: &End, msn: u32, size: u32) -> Vec<u8> {
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
pub(super) fn answers(raw: &mut Raw, msn: u32, identifier: u32, before: u64) {
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

pub(super) fn tagged_write(b: &End) -> Vec<u8> {
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
