use proptest::prelude::*;

use super::super::fpdu::{Control, Decoded, Header, Tagged, Untagged, decode, seal};
use super::super::rdmap::{ReadRequest, Segment, send_opcode};
use super::super::sequence::{RxSequence, TxSequence};
use super::super::wire::{
    FPDU_TRAILER_MAX, OP_ATOMIC_REQUEST, OP_IMMEDIATE, OP_READ_REQUEST, OP_SEND,
    OP_SEND_INVALIDATE, OP_TERMINATE, OP_WRITE, READ_REQUEST_HDR, READ_REQUEST_LEN, WireError,
};
use super::{fixed, hex};

fn untagged(opcode: u8, last: bool, qn: u32, msn: u32, mo: u32) -> Header {
    let control = Control::new(opcode, last);
    Header::Untagged(Untagged {
        control,
        invalidate: 0x55,
        qn,
        msn,
        mo,
    })
}

/// All 65536 pairs of control bytes, each judged as the RFCs do, reserved bits ignored.
#[test]
fn every_control_byte() {
    for (ddp, rdmap) in (0..=u8::MAX).flat_map(|ddp| (0..=u8::MAX).map(move |r| (ddp, r))) {
        let control = Control { ddp, rdmap };
        let is_tagged = ddp >= 0x80;
        let opcode = rdmap & 0xf;
        let header = if is_tagged {
            Header::Tagged(Tagged {
                control,
                stag: 1,
                to: 2,
            })
        } else {
            let qn = [0, 1, 0, 0, 0, 0, 0, 2][usize::from(opcode & 7)];
            Header::Untagged(Untagged {
                control,
                invalidate: 3,
                qn,
                msn: 4,
                mo: 0,
            })
        };
        let last = ddp & 0x40 != 0;
        let expected = match (is_tagged, ddp & 3, rdmap >> 6, opcode) {
            (true, 0 | 2 | 3, _, _) => Err(WireError::DDP_TAGGED_VERSION),
            (false, 0 | 2 | 3, _, _) => Err(WireError::DDP_UNTAGGED_VERSION),
            (_, _, 0 | 2 | 3, _) => Err(WireError::RDMAP_VERSION),
            (true, _, _, 0) => Ok(Segment::Write {
                stag: 1,
                to: 2,
                last,
                immediate: false,
            }),
            (true, _, _, 2) => Ok(Segment::ReadResponse {
                stag: 1,
                to: 2,
                last,
            }),
            (false, _, _, 3..=6) => Ok(Segment::Send {
                msn: 4,
                mo: 0,
                last,
                solicited: opcode == 5 || opcode == 6,
                invalidate: if opcode == 4 || opcode == 6 {
                    Some(3)
                } else {
                    None
                },
            }),
            (false, _, _, 1 | 7) if !last => Err(WireError::DDP_TOO_LONG),
            (false, _, _, 1) => Ok(Segment::ReadRequest { msn: 4 }),
            (false, _, _, 7) => Ok(Segment::Terminate { msn: 4 }),
            _ => Err(WireError::RDMAP_OPCODE),
        };
        let found = Segment::classify(&header, READ_REQUEST_LEN);
        assert_eq!(found, expected, "ddp {ddp:02x} rdmap {rdmap:02x}");
    }
}

#[test]
fn queue_must_fit_the_opcode() {
    for (opcode, queue) in [(OP_SEND, 0), (OP_READ_REQUEST, 1), (OP_TERMINATE, 2)] {
        for qn in [0, 1, 2, 3, u32::MAX] {
            let found = Segment::classify(&untagged(opcode, true, qn, 1, 0), 28);
            if qn == queue {
                assert!(found.is_ok());
            } else {
                assert_eq!(found, Err(WireError::DDP_QN), "opcode {opcode} queue {qn}");
            }
        }
    }
    for opcode in [OP_IMMEDIATE, OP_ATOMIC_REQUEST] {
        let found = Segment::classify(&untagged(opcode, true, 0, 1, 0), 8);
        assert_eq!(found, Err(WireError::RDMAP_OPCODE));
    }
}

#[test]
fn offsets_do_not_wrap() {
    let write = |to| {
        let control = Control::new(OP_WRITE, true);
        Segment::classify(
            &Header::Tagged(Tagged {
                control,
                stag: 1,
                to,
            }),
            16,
        )
    };
    assert!(write(u64::MAX - 16).is_ok());
    assert_eq!(write(u64::MAX - 15), Err(WireError::DDP_TAGGED_TO_WRAP));
    let send = |mo| Segment::classify(&untagged(OP_SEND, true, 0, 1, mo), 16);
    assert!(send(u32::MAX - 16).is_ok());
    assert_eq!(send(u32::MAX - 15), Err(WireError::DDP_MO));
}

#[test]
fn single_segment_messages() {
    for (opcode, queue) in [(OP_READ_REQUEST, 1), (OP_TERMINATE, 2)] {
        let found = Segment::classify(&untagged(opcode, true, queue, 1, 4), 28);
        assert_eq!(found, Err(WireError::DDP_MO));
        let found = Segment::classify(&untagged(opcode, false, queue, 1, 0), 28);
        assert_eq!(found, Err(WireError::DDP_TOO_LONG));
    }
    let found = Segment::classify(&untagged(OP_READ_REQUEST, true, 1, 1, 0), 29);
    assert_eq!(found, Err(WireError::DDP_TOO_LONG));
    assert!(Segment::classify(&untagged(OP_TERMINATE, true, 2, 1, 0), 29).is_ok());
}

const REQUEST: ReadRequest = ReadRequest {
    sink_stag: 0x0a0b_0c0d,
    sink_to: 0x2021_2223_2425_2627,
    size: 4096,
    source_stag: 0x0e0f_1011,
    source_to: 0x3132_3334_3536_3738,
};

#[test]
fn read_request_bytes() {
    let bytes = hex("002e 41 41 00000000 00000001 00000001 00000000
         0a0b0c0d 2021222324252627 00001000 0e0f1011 3132333435363738");
    let mut out = [0; READ_REQUEST_HDR];
    REQUEST.encode(1, &mut out);
    assert_eq!(out[..], bytes);
    let mut end = [0; FPDU_TRAILER_MAX];
    let frame = [&bytes[..], seal(true, &out, [], &mut end)].concat();
    let Ok(Decoded::Fpdu(fpdu)) = decode(&frame, true) else {
        panic!("not decoded");
    };
    let header = fpdu.header.expect("not empty");
    let segment = Segment::classify(&header, fpdu.payload.len());
    assert_eq!(segment, Ok(Segment::ReadRequest { msn: 1 }));
    assert_eq!(ReadRequest::parse(fpdu.payload), Ok(REQUEST));
}

#[test]
fn read_request_errors() {
    let mut out = [0; READ_REQUEST_HDR];
    let wrap = ReadRequest {
        source_to: u64::MAX - 4095,
        ..REQUEST
    };
    wrap.encode(1, &mut out);
    assert_eq!(
        ReadRequest::parse(&out[20..]),
        Err(WireError::RDMAP_TO_WRAP)
    );
    assert_eq!(ReadRequest::parse(&out[21..]), Err(WireError::RDMAP_STREAM));
    let fits = ReadRequest {
        source_to: u64::MAX - 4096,
        ..REQUEST
    };
    fits.encode(1, &mut out);
    assert_eq!(ReadRequest::parse(&out[20..]), Ok(fits));
}

fn send(msn: u32, mo: u32, last: bool) -> Segment {
    Segment::Send {
        msn,
        mo,
        last,
        solicited: false,
        invalidate: None,
    }
}

#[test]
fn sends_in_order() {
    let mut rx = RxSequence::new();
    assert!(rx.at_message_start());
    assert_eq!(rx.accept(&send(1, 0, false), 100), Ok(()));
    assert!(!rx.at_message_start());
    // Other queues and tagged segments may come in between.
    assert_eq!(rx.accept(&Segment::ReadRequest { msn: 1 }, 28), Ok(()));
    assert_eq!(
        rx.accept(
            &Segment::Write {
                stag: 1,
                to: 0,
                last: true,
                immediate: false
            },
            9
        ),
        Ok(())
    );
    assert_eq!(rx.accept(&send(1, 100, false), 0), Ok(()));
    assert_eq!(rx.accept(&send(1, 100, true), 50), Ok(()));
    assert!(rx.at_message_start());
    assert_eq!(rx.accept(&send(2, 0, true), 0), Ok(()));
    assert_eq!(rx.accept(&Segment::ReadRequest { msn: 2 }, 28), Ok(()));
    assert_eq!(rx.accept(&send(3, 0, true), 1), Ok(()));
    assert_eq!(rx.accept(&Segment::Terminate { msn: 1 }, 4), Ok(()));
}

#[test]
fn a_first_segment_without_payload_opens_the_message() {
    let mut rx = RxSequence::new();
    assert_eq!(rx.accept(&send(1, 0, false), 0), Ok(()));
    assert!(!rx.at_message_start());
    let other = Segment::Send {
        msn: 1,
        mo: 0,
        last: true,
        solicited: true,
        invalidate: None,
    };
    assert_eq!(rx.accept(&other, 4), Err(WireError::RDMAP_OPCODE));
    assert_eq!(rx.accept(&send(1, 0, true), 4), Ok(()));
}

#[test]
fn violations_of_order() {
    let mut open = RxSequence::new();
    open.accept(&send(1, 0, false), 100).expect("first segment");
    let changed = Segment::Send {
        msn: 1,
        mo: 100,
        last: true,
        solicited: false,
        invalidate: Some(1),
    };
    for (segment, error) in [
        (send(2, 0, true), WireError::DDP_MSN),
        (send(0, 100, true), WireError::DDP_MSN),
        (send(1, 0, true), WireError::DDP_MO),
        (send(1, 101, true), WireError::DDP_MO),
        (changed, WireError::RDMAP_OPCODE),
        (Segment::ReadRequest { msn: 0 }, WireError::DDP_MSN),
        (Segment::ReadRequest { msn: 2 }, WireError::DDP_MSN),
        (Segment::Terminate { msn: 2 }, WireError::DDP_MSN),
    ] {
        let mut rx = open;
        assert_eq!(rx.accept(&segment, 1), Err(error), "{segment:?}");
        // A refused segment changes nothing.
        assert_eq!(rx, open);
    }
}

#[test]
fn sequence_numbers_given_out() {
    let mut tx = TxSequence::new();
    assert_eq!([tx.next_send(), tx.next_send(), tx.next_read()], [1, 2, 1]);
    assert_eq!([tx.next_read(), tx.next_send()], [2, 3]);
}

#[test]
fn send_opcodes() {
    assert_eq!(send_opcode(false, false), OP_SEND);
    assert_eq!(send_opcode(false, true), OP_SEND_INVALIDATE);
    for (solicited, invalidates) in [(true, false), (true, true)] {
        let header = untagged(send_opcode(solicited, invalidates), true, 0, 1, 0);
        let invalidate = invalidates.then_some(0x55);
        let expected = Segment::Send {
            msn: 1,
            mo: 0,
            last: true,
            solicited,
            invalidate,
        };
        assert_eq!(Segment::classify(&header, 0), Ok(expected));
    }
}

proptest! {
    #![proptest_config(fixed())]

    /// What one side numbers, the other accepts, however messages are cut into segments.
    #[test]
    fn both_sides_agree(messages in prop::collection::vec(
        prop_oneof![
            Just(None),
            prop::collection::vec(0u32..70_000, 1..5).prop_map(Some),
        ],
        0..40,
    )) {
        let (mut tx, mut rx) = (TxSequence::new(), RxSequence::new());
        for message in messages {
            let Some(segments) = message else {
                let msn = tx.next_read();
                prop_assert_eq!(rx.accept(&Segment::ReadRequest { msn }, 28), Ok(()));
                continue;
            };
            let (msn, mut mo) = (tx.next_send(), 0);
            for (index, len) in segments.iter().enumerate() {
                let last = index + 1 == segments.len();
                prop_assert_eq!(rx.accept(&send(msn, mo, last), *len as usize), Ok(()));
                mo += len;
            }
            prop_assert!(rx.at_message_start());
        }
    }

    #[test]
    fn read_requests_round_trip(
        sink_stag: u32, sink_to: u64, size: u32, source_stag: u32, source_to: u64, msn: u32,
    ) {
        let request = ReadRequest { sink_stag, sink_to, size, source_stag, source_to };
        let mut out = [0; READ_REQUEST_HDR];
        request.encode(msn, &mut out);
        let parsed = ReadRequest::parse(&out[20..]);
        if source_to.checked_add(size.into()).is_some() {
            prop_assert_eq!(parsed, Ok(request));
        } else {
            prop_assert_eq!(parsed, Err(WireError::RDMAP_TO_WRAP));
        }
    }
}
