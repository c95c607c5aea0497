//! Acknowledgements.

use super::super::acknowledge::{ACKNOWLEDGE_FPDU_MAX, Acknowledge, Note, count_in};
use super::super::fpdu::{self, Control, Decoded, Header, Tagged, Untagged};
use super::super::rdmap::Segment;
use super::super::sequence::{RxSequence, TxSequence};
use super::super::wire::*;
use super::hex;

fn encode(count: u32, note: Option<Note>, msn: u32) -> Vec<u8> {
    let mut out = [0; ACKNOWLEDGE_FPDU_MAX];
    let message = Acknowledge { count, note };
    message.encode(msn, false, &mut out).to_vec()
}

#[test]
fn golden_messages() {
    let plain = hex("0012 41 4f 01020304 00000004 00000005 00000000 00000000");
    assert_eq!(encode(0x0102_0304, None, 5), plain);
    let ended = hex("001a 41 4f ffffffff 00000004 00000001 00000000 00000001 00000000 00000000");
    assert_eq!(encode(u32::MAX, Some(Note::Ended), 1), ended);
    let refused = hex("001a 41 4f 00000000 00000004 00000001 00000000 00000002 00000009 00000000");
    assert_eq!(encode(0, Some(Note::Refused(9)), 1), refused);
}

#[test]
fn what_is_encoded_is_found() {
    for crc in [false, true] {
        for note in [None, Some(Note::Ended), Some(Note::Refused(u32::MAX))] {
            let mut out = [0; ACKNOWLEDGE_FPDU_MAX];
            let bytes = Acknowledge { count: 7, note }.encode(3, crc, &mut out);
            let Ok(Decoded::Fpdu(fpdu)) = fpdu::decode(bytes, crc) else {
                panic!("our own acknowledgement does not decode");
            };
            assert_eq!(fpdu.consumed, bytes.len());
            let header = fpdu.header.expect("not empty");
            let segment = Segment::classify_extended(&header, fpdu.payload.len());
            assert_eq!(segment, Ok(Segment::Acknowledge { msn: 3 }));
            assert_eq!(count_in(&header), Some(7));
            assert_eq!(Acknowledge::parse_note(fpdu.payload), Ok(note));
            // To an end that has not agreed on them it is nothing.
            let segment = Segment::classify(&header, fpdu.payload.len());
            assert_eq!(segment, Err(WireError::RDMAP_OPCODE));
        }
    }
    for payload in [&[0; 8][..], &[0, 0, 0, 1], &[0; 12]] {
        let note = Acknowledge::parse_note(payload);
        assert_eq!(note, Err(WireError::RDMAP_STREAM));
    }
}

#[test]
fn rules_of_the_header() {
    let right = Untagged {
        control: Control::new(OP_ACKNOWLEDGE, true),
        invalidate: 0,
        qn: QN_ACKNOWLEDGE,
        msn: 1,
        mo: 0,
    };
    let classified = |header| Segment::classify_extended(&Header::Untagged(header), 0);
    assert!(classified(right).is_ok());
    let wrong = Untagged { qn: 3, ..right };
    assert_eq!(classified(wrong), Err(WireError::DDP_QN));
    let wrong = Untagged { mo: 1, ..right };
    assert_eq!(classified(wrong), Err(WireError::DDP_MO));
    let control = Control::new(OP_ACKNOWLEDGE, false);
    let wrong = Untagged { control, ..right };
    assert_eq!(classified(wrong), Err(WireError::DDP_TOO_LONG));
    let control = Control {
        ddp: 0x42,
        ..right.control
    };
    let wrong = Untagged { control, ..right };
    assert_eq!(classified(wrong), Err(WireError::DDP_UNTAGGED_VERSION));
    let tagged = Tagged {
        control: right.control,
        stag: 0,
        to: 0,
    };
    let found = Segment::classify_extended(&Header::Tagged(tagged), 0);
    assert_eq!(found, Err(WireError::RDMAP_OPCODE));
}

#[test]
fn messages_are_numbered() {
    let mut tx = TxSequence::new();
    let mut rx = RxSequence::new();
    for _ in 0..3 {
        let msn = tx.next_acknowledgement();
        assert_eq!(rx.accept(&Segment::Acknowledge { msn }, 0), Ok(()));
        let again = rx.accept(&Segment::Acknowledge { msn }, 0);
        assert_eq!(again, Err(WireError::DDP_MSN));
    }
}

/// Sends that invalidate have a key in the place of the count.
#[test]
fn which_segments_have_a_count() {
    for opcode in 0..16 {
        let header = Header::Untagged(Untagged {
            control: Control::new(opcode, true),
            invalidate: 8,
            qn: 0,
            msn: 1,
            mo: 0,
        });
        let expected = matches!(opcode, OP_SEND | OP_SEND_SE | OP_ACKNOWLEDGE).then_some(8);
        assert_eq!(count_in(&header), expected, "opcode {opcode}");
    }
}
