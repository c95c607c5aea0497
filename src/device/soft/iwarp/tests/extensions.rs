//! Atomic Operations and Immediate Data.

use super::super::extensions::{AtomicRequest, AtomicResponse, Immediate};
use super::super::fpdu::{Control, Header, Tagged, Untagged, peek};
use super::super::fpdu::{Layout, Peek};
use super::super::rdmap::Segment;
use super::super::sequence::{RxSequence, TxSequence};
use super::super::wire::*;
use super::hex;
use crate::device::{AtomicOp, Remote};

const ADD: AtomicRequest = AtomicRequest {
    identifier: 0x8000_0007,
    word: Remote {
        addr: 0x3132_3334_3536_3738,
        rkey: 0x0e0f_1011,
    },
    op: AtomicOp::FetchAdd {
        add: 0x0102_0304_0506_0708,
    },
};
const SWAP: AtomicRequest = AtomicRequest {
    op: AtomicOp::CompareSwap {
        compare: 0x1112_1314_1516_1718,
        swap: 0x2122_2324_2526_2728,
    },
    ..ADD
};

/// The header of a message of ours, and its payload.
fn parts(bytes: &[u8]) -> (Header, &[u8]) {
    let Ok(Peek::Layout(Layout {
        header: Some(header),
        header_len,
        payload_len,
        ..
    })) = peek(bytes)
    else {
        panic!("no header");
    };
    assert_eq!(header_len + payload_len, bytes.len());
    (header, &bytes[header_len..])
}

fn classified(bytes: &[u8]) -> Segment {
    let (header, payload) = parts(bytes);
    Segment::classify_all(&header, payload.len()).expect("our own message")
}

#[test]
fn golden_messages() {
    let add = hex("0046 41 4a 00000000 00000001 00000005 00000000
         00000000 80000007 0e0f1011 3132333435363738
         0102030405060708 0000000000000000 0000000000000000 0000000000000000");
    assert_eq!(ADD.encode(5)[..], add);
    let swap = hex("0046 41 4a 00000000 00000001 00000006 00000000
         00000002 80000007 0e0f1011 3132333435363738
         2122232425262728 ffffffffffffffff 1112131415161718 ffffffffffffffff");
    assert_eq!(SWAP.encode(6)[..], swap);
    let response = AtomicResponse {
        identifier: 0x8000_0007,
        before: 0x0102_0304_0506_0708,
    };
    let expected = hex("001e 41 4b 00000000 00000003 00000009 00000000
         80000007 0102030405060708");
    assert_eq!(response.encode(9)[..], expected);
    // The 4 bytes of the consumer are in the order of memory.
    let data = Immediate {
        imm: u32::from_ne_bytes([1, 2, 3, 4]),
        written: 0x0506_0708,
    };
    let expected = hex("001a 41 48 00000000 00000000 00000002 00000000 01020304 05060708");
    assert_eq!(data.encode(2, false, false)[..], expected);
    let expected = hex("001a 41 69 00000000 00000000 00000002 00000000 01020304 05060708");
    assert_eq!(data.encode(2, true, true)[..], expected);
}

#[test]
fn what_is_encoded_is_found() {
    for request in [ADD, SWAP] {
        let bytes = request.encode(5);
        assert_eq!(classified(&bytes), Segment::AtomicRequest { msn: 5 });
        assert_eq!(AtomicRequest::parse(parts(&bytes).1), Ok(request));
    }
    let response = AtomicResponse {
        identifier: 1,
        before: u64::MAX - 1,
    };
    let bytes = response.encode(5);
    assert_eq!(classified(&bytes), Segment::AtomicResponse { msn: 5 });
    assert_eq!(AtomicResponse::parse(parts(&bytes).1), Ok(response));
    for solicited in [false, true] {
        let data = Immediate {
            imm: 0x1234_5678,
            written: u32::MAX,
        };
        let bytes = data.encode(5, solicited, false);
        let expected = Segment::Immediate { msn: 5, solicited };
        assert_eq!(classified(&bytes), expected);
        assert_eq!(Immediate::parse(parts(&bytes).1), Ok(data));
    }
}

/// To an end that has not agreed on them they are nothing.
#[test]
fn ends_that_have_not_agreed() {
    for opcode in OP_IMMEDIATE..=OP_ATOMIC_RESPONSE {
        let header = untagged(opcode, true, 0, 0);
        for classify in [Segment::classify, Segment::classify_extended] {
            assert_eq!(classify(&header, 8), Err(WireError::RDMAP_OPCODE));
        }
    }
    let control = Control::new(OP_WRITE, true).with_immediate(true);
    let (stag, to) = (1, 2);
    let header = Header::Tagged(Tagged { control, stag, to });
    for (classify, immediate) in [
        (Segment::classify as fn(&Header, usize) -> _, false),
        (Segment::classify_extended, false),
        (Segment::classify_all, true),
    ] {
        let expected = Segment::Write {
            stag,
            to,
            last: true,
            immediate,
        };
        assert_eq!(classify(&header, 8), Ok(expected));
    }
}

fn untagged(opcode: u8, last: bool, qn: u32, mo: u32) -> Header {
    Header::Untagged(Untagged {
        control: Control::new(opcode, last),
        invalidate: 0,
        qn,
        msn: 1,
        mo,
    })
}

#[test]
fn rules_of_the_headers() {
    for (opcode, queue, len) in [
        (OP_IMMEDIATE, 0, 8),
        (OP_IMMEDIATE_SE, 0, 8),
        (OP_ATOMIC_REQUEST, 1, 52),
        (OP_ATOMIC_RESPONSE, 3, 12),
    ] {
        let classify = |last, qn, mo, len| {
            let header = untagged(opcode, last, qn, mo);
            Segment::classify_all(&header, len)
        };
        assert!(classify(true, queue, 0, len).is_ok());
        for qn in (0..5).filter(|qn| *qn != queue) {
            assert_eq!(classify(true, qn, 0, len), Err(WireError::DDP_QN));
        }
        assert_eq!(classify(true, queue, 1, len), Err(WireError::DDP_MO));
        let too_long = Err(WireError::DDP_TOO_LONG);
        assert_eq!(classify(false, queue, 0, len), too_long);
        assert_eq!(classify(true, queue, 0, len + 1), too_long);
        let Header::Untagged(mut header) = untagged(opcode, true, queue, 0) else {
            unreachable!();
        };
        header.control.rdmap ^= 0xc0;
        let found = Segment::classify_all(&Header::Untagged(header), len);
        assert_eq!(found, Err(WireError::RDMAP_VERSION));
        header.control.ddp ^= 0x03;
        let found = Segment::classify_all(&Header::Untagged(header), len);
        assert_eq!(found, Err(WireError::DDP_UNTAGGED_VERSION));
        // They are no tagged messages.
        let tagged = Tagged {
            control: Control::new(opcode, true),
            stag: 0,
            to: 0,
        };
        let found = Segment::classify_all(&Header::Tagged(tagged), len);
        assert_eq!(found, Err(WireError::RDMAP_OPCODE));
    }
}

#[test]
fn bad_values() {
    let cut = Err(WireError::RDMAP_STREAM);
    let bytes = SWAP.encode(1);
    let payload = &bytes[UNTAGGED_HDR..];
    assert_eq!(AtomicRequest::parse(&payload[1..]), cut);
    assert_eq!(AtomicRequest::parse(&[]), cut);
    let changed = |request: AtomicRequest, at: usize, to: u8| {
        let mut bytes = request.encode(1);
        bytes[UNTAGGED_HDR + at] = to;
        AtomicRequest::parse(&bytes[UNTAGGED_HDR..])
    };
    let refused = Err(WireError::RDMAP_OPERATION);
    // Other operations, and masks of those on a part of the word.
    for operation in (0..16).filter(|operation| ![0, 2].contains(operation)) {
        assert_eq!(changed(ADD, 3, operation), refused);
    }
    for at in [28, 35] {
        assert_eq!(changed(ADD, at, 1), refused);
    }
    for at in [28, 35, 44, 51] {
        assert_eq!(changed(SWAP, at, 0xfe), refused);
    }
    // Reserved bits, and what the operation has no use for.
    assert_eq!(changed(SWAP, 0, 0xff), Ok(SWAP));
    assert_eq!(changed(SWAP, 3, 0xf2), Ok(SWAP));
    for at in 36..52 {
        assert_eq!(changed(ADD, at, 0xff), Ok(ADD));
    }
    for len in (0..16).filter(|len| *len != 12) {
        let found = AtomicResponse::parse(&[0; 16][..len]);
        assert_eq!(found, Err(WireError::RDMAP_STREAM));
    }
    for len in (0..16).filter(|len| *len != 8) {
        let found = Immediate::parse(&[0; 16][..len]);
        assert_eq!(found, Err(WireError::RDMAP_STREAM));
    }
}

fn write(immediate: bool, last: bool) -> Segment {
    Segment::Write {
        stag: 1,
        to: 2,
        last,
        immediate,
    }
}

fn immediate(msn: u32) -> Segment {
    let solicited = false;
    Segment::Immediate { msn, solicited }
}

#[test]
fn numbers() {
    let (mut tx, mut rx) = (TxSequence::new(), RxSequence::new());
    for n in 0..3 {
        let msn = tx.next_send();
        assert_eq!(rx.accept(&immediate(msn), 8), Ok(()));
        assert_eq!(rx.accept(&immediate(msn), 8), Err(WireError::DDP_MSN));
        let msn = tx.next_read();
        let request = match n {
            1 => Segment::ReadRequest { msn },
            _ => Segment::AtomicRequest { msn },
        };
        assert_eq!(rx.accept(&request, 52), Ok(()));
        assert_eq!(rx.accept(&request, 52), Err(WireError::DDP_MSN));
        let msn = tx.next_atomic_response();
        let response = Segment::AtomicResponse { msn };
        assert_eq!(rx.accept(&response, 12), Ok(()));
        assert_eq!(rx.accept(&response, 12), Err(WireError::DDP_MSN));
    }
    let first = Segment::Send {
        msn: 4,
        mo: 0,
        last: false,
        solicited: false,
        invalidate: None,
    };
    assert_eq!(rx.accept(&first, 8), Ok(()));
    assert_eq!(rx.accept(&immediate(4), 8), Err(WireError::RDMAP_OPCODE));
}

/// Between an RDMA Write and its Immediate Data no other request comes; answers do.
#[test]
fn what_belongs_together() {
    let mut rx = RxSequence::new();
    assert_eq!(rx.accept(&write(true, false), 100), Ok(()));
    let open = rx;
    let others = [
        immediate(1),
        write(false, true),
        Segment::ReadRequest { msn: 1 },
        Segment::AtomicRequest { msn: 1 },
    ];
    for other in others {
        assert_eq!(rx.accept(&other, 1), Err(WireError::RDMAP_OPCODE));
        assert_eq!(rx, open);
    }
    assert_eq!(rx.accept(&Segment::AtomicResponse { msn: 1 }, 12), Ok(()));
    assert_eq!(rx.accept(&Segment::Acknowledge { msn: 1 }, 0), Ok(()));
    assert_eq!(rx.accept(&write(true, true), 11), Ok(()));
    let more = rx.accept(&write(true, true), 1);
    assert_eq!(more, Err(WireError::RDMAP_OPCODE));
    assert_eq!(rx.accept(&immediate(1), 8), Ok(()));
    let wrong = rx.clone().end_write(110);
    assert_eq!(wrong, Err(WireError::RDMAP_STREAM));
    assert_eq!(rx.end_write(111), Ok(()));
    assert_eq!(rx.accept(&write(false, true), 1), Ok(()));
    // Without an RDMA Write there are no bytes.
    assert_eq!(rx.accept(&immediate(2), 8), Ok(()));
    assert_eq!(rx.clone().end_write(0), Ok(()));
    assert_eq!(rx.end_write(1), Err(WireError::RDMAP_STREAM));
    // More than the message can say.
    for _ in 0..65537 {
        assert_eq!(rx.accept(&write(true, false), 65535), Ok(()));
    }
    let beyond = rx.accept(&write(true, false), 1);
    assert_eq!(beyond, Err(WireError::RDMAP_STREAM));
}
