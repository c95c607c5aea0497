use proptest::prelude::*;

use super::super::crc::Crc;
use super::super::fpdu::{
    Control, Decoded, Header, MULPDU_MAX, MULPDU_MIN, Peek, Tagged, Untagged, check_trailer,
    decode, mulpdu, padding, peek, seal, tagged_payload, trailer, untagged_payload,
};
use super::super::wire::{
    FPDU_TRAILER_MAX, OP_READ_RESPONSE, OP_SEND, OP_SEND_SE_INVALIDATE, OP_WRITE, QN_SEND,
    TAGGED_HDR, ULPDU_MAX, UNTAGGED_HDR, WireError,
};
use super::{fixed, hex};

fn frame(header: Header, crc: bool, payload: &[&[u8]]) -> Vec<u8> {
    let len = payload.iter().map(|slice| slice.len()).sum();
    let mut bytes = match header {
        Header::Tagged(header) => {
            let mut out = [0; TAGGED_HDR];
            header.encode(len, &mut out).expect("fits");
            out.to_vec()
        }
        Header::Untagged(header) => {
            let mut out = [0; UNTAGGED_HDR];
            header.encode(len, &mut out).expect("fits");
            out.to_vec()
        }
    };
    let mut end = [0; FPDU_TRAILER_MAX];
    let end = seal(crc, &bytes, payload.iter().copied(), &mut end);
    payload
        .iter()
        .for_each(|slice| bytes.extend_from_slice(slice));
    bytes.extend_from_slice(end);
    bytes
}

fn tagged(opcode: u8, last: bool, stag: u32, to: u64) -> Header {
    Header::Tagged(Tagged {
        control: Control::new(opcode, last),
        stag,
        to,
    })
}

fn send(opcode: u8, last: bool, invalidate: u32, msn: u32, mo: u32) -> Header {
    let control = Control::new(opcode, last);
    Header::Untagged(Untagged {
        control,
        invalidate,
        qn: QN_SEND,
        msn,
        mo,
    })
}

/// Header, payload and whole FPDU with CRC.
fn golden() -> Vec<(Header, &'static [u8], Vec<u8>)> {
    vec![
        (
            tagged(OP_WRITE, true, 0x0102_0304, 0x1112_1314_1516_1718),
            b"hello",
            hex("0013 c1 40 01020304 1112131415161718  68656c6c6f  000000 fbc19168"),
        ),
        (
            tagged(OP_READ_RESPONSE, true, 0x0a0b_0c0d, 0x2021_2223_2425_2627),
            b"",
            hex("000e c1 42 0a0b0c0d 2021222324252627  6fb07600"),
        ),
        (
            send(OP_SEND_SE_INVALIDATE, true, 0xdead_beef, 7, 0x400),
            b"data",
            hex("0016 41 46 deadbeef 00000000 00000007 00000400  64617461  b03998a4"),
        ),
        (
            send(OP_SEND, false, 0, 7, 0),
            b"abc",
            hex("0015 01 43 00000000 00000000 00000007 00000000  616263  00 d1ea02db"),
        ),
    ]
}

#[test]
fn golden_bytes_encode() {
    for (header, payload, bytes) in golden() {
        assert_eq!(frame(header, true, &[payload]), bytes);
        // Without CRCs the field is there, and zero.
        let mut without = bytes.clone();
        let end = without.len() - 4;
        without[end..].fill(0);
        assert_eq!(frame(header, false, &[payload]), without);
    }
}

#[test]
fn golden_bytes_decode() {
    for (header, payload, bytes) in golden() {
        let Ok(Decoded::Fpdu(fpdu)) = decode(&bytes, true) else {
            panic!("not decoded: {bytes:02x?}");
        };
        assert_eq!(fpdu.header, Some(header));
        assert_eq!(fpdu.payload, payload);
        assert_eq!(fpdu.consumed, bytes.len());
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    for (_, _, bytes) in golden() {
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // A changed length may ask for more, or not be possible at all.
            match decode(&bad, true) {
                Ok(Decoded::NeedMore(_)) => assert!(bit < 24),
                Err(WireError::MPA_FRAMING) => assert!(bit < 24),
                other => assert_eq!(other, Err(WireError::MPA_CRC)),
            }
        }
    }
}

#[test]
fn crc_off_looks_at_nothing_behind_the_payload() {
    let mut bytes = golden().remove(0).2;
    let end = bytes.len() - 7;
    bytes[end..].fill(0x55);
    assert!(matches!(decode(&bytes, false), Ok(Decoded::Fpdu(_))));
    assert_eq!(decode(&bytes, true), Err(WireError::MPA_CRC));
}

#[test]
fn empty_fpdu() {
    let bytes = hex("0000 0000 c74b6748");
    let Ok(Decoded::Fpdu(fpdu)) = decode(&bytes, true) else {
        panic!("not decoded");
    };
    assert_eq!(
        (fpdu.header, fpdu.payload, fpdu.consumed),
        (None, &[][..], 8)
    );
    let mut end = [0; FPDU_TRAILER_MAX];
    assert_eq!(seal(true, &[0, 0], [], &mut end), &bytes[2..]);
}

#[test]
fn lengths_too_short_for_the_header() {
    for (ddp, shortest) in [(0xc1, 14), (0x41, 18)] {
        for ulpdu in 1..=18u8 {
            let mut bytes = [0; 64];
            (bytes[1], bytes[2]) = (ulpdu, ddp);
            assert_eq!(
                decode(&bytes, false).is_ok(),
                ulpdu >= shortest,
                "{ddp:x} {ulpdu}"
            );
        }
    }
}

#[test]
fn needs_are_exact_for_a_byte_at_a_time() {
    let (_, _, bytes) = golden().remove(2);
    let mut have = 0;
    let mut asked = Vec::new();
    while let Decoded::NeedMore(more) = decode(&bytes[..have], true).expect("valid prefix") {
        asked.push(more);
        have += more;
    }
    // Length, T bit, rest of the header, the rest.
    assert_eq!(asked, [2, 1, 17, 8]);
    assert_eq!(have, bytes.len());
}

#[test]
fn direct_placement() {
    let (header, payload, bytes) = golden().remove(0);
    let Ok(Peek::Layout(layout)) = peek(&bytes[..TAGGED_HDR]) else {
        panic!("header not recognised");
    };
    assert_eq!(layout.header, Some(header));
    assert_eq!(
        (layout.header_len, layout.payload_len, layout.trailer_len),
        (16, 5, 7)
    );
    assert_eq!(layout.total(), bytes.len());
    let mut crc = Crc::new();
    crc.update(&bytes[..layout.header_len]);
    payload.chunks(2).for_each(|chunk| crc.update(chunk));
    let end = &bytes[layout.header_len + layout.payload_len..];
    assert_eq!(check_trailer(end, crc), Ok(()));
    crc.update(b"!");
    assert_eq!(check_trailer(end, crc), Err(WireError::MPA_CRC));
    assert_eq!(check_trailer(&end[..3], crc), Err(WireError::MPA_CRC));
}

#[test]
fn longest_segments() {
    let mut out = [0; TAGGED_HDR];
    let header = Tagged {
        control: Control::new(OP_WRITE, true),
        stag: 1,
        to: 0,
    };
    let most = tagged_payload(ULPDU_MAX);
    assert_eq!(most, 65521);
    assert_eq!(header.encode(most, &mut out), Ok(()));
    assert_eq!(out[..2], [0xff, 0xff]);
    for len in [most + 1, usize::MAX] {
        assert_eq!(header.encode(len, &mut out), Err(WireError::MPA_FRAMING));
    }
    let mut out = [0; UNTAGGED_HDR];
    let control = Control::new(OP_SEND, true);
    let header = Untagged {
        control,
        invalidate: 0,
        qn: 0,
        msn: 1,
        mo: 0,
    };
    let most = untagged_payload(ULPDU_MAX);
    assert_eq!(most, 65517);
    assert_eq!(header.encode(most, &mut out), Ok(()));
    assert_eq!(
        header.encode(most + 1, &mut out),
        Err(WireError::MPA_FRAMING)
    );
}

#[test]
fn mulpdu_fills_tcp_segments() {
    // Ethernet, with and without time stamps, jumbo frames.
    assert_eq!(
        [mulpdu(1460), mulpdu(1448), mulpdu(8948)],
        [1454, 1442, 8942]
    );
    assert_eq!([mulpdu(0), mulpdu(usize::MAX)], [MULPDU_MIN, MULPDU_MAX]);
    for emss in 140..9000 {
        let body = 2 + mulpdu(emss);
        assert_eq!(padding(body), 0);
        assert!((emss - 3..=emss).contains(&(body + 4)), "{emss}");
    }
    assert_eq!(padding(2 + MULPDU_MAX), 0);
}

fn any_header() -> impl Strategy<Value = Header> {
    prop_oneof![
        (any::<u8>(), any::<u8>(), any::<u32>(), any::<u64>()).prop_map(
            |(ddp, rdmap, stag, to)| {
                let control = Control {
                    ddp: ddp & 0x7f,
                    rdmap,
                };
                Header::Tagged(Tagged { control, stag, to })
            }
        ),
        (any::<u8>(), any::<u8>(), any::<[u32; 4]>()).prop_map(|(ddp, rdmap, words)| {
            let control = Control {
                ddp: ddp & 0x7f,
                rdmap,
            };
            let [invalidate, qn, msn, mo] = words;
            Header::Untagged(Untagged {
                control,
                invalidate,
                qn,
                msn,
                mo,
            })
        }),
    ]
}

proptest! {
    #![proptest_config(fixed())]

    #[test]
    fn round_trip(
        header in any_header(),
        payload in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..4),
        crc: bool,
        behind in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let slices: Vec<&[u8]> = payload.iter().map(Vec::as_slice).collect();
        let mut bytes = frame(header, crc, &slices);
        let total = bytes.len();
        prop_assert_eq!(total % 4, 0);
        for have in 0..total {
            match decode(&bytes[..have], crc) {
                Ok(Decoded::NeedMore(more)) => prop_assert!(more > 0 && have + more <= total),
                other => prop_assert!(false, "{:?} with {} of {} bytes", other, have, total),
            }
        }
        bytes.extend(behind);
        let Ok(Decoded::Fpdu(fpdu)) = decode(&bytes, crc) else {
            return Err(TestCaseError::fail("not decoded"));
        };
        prop_assert_eq!(fpdu.header, Some(header));
        prop_assert_eq!(fpdu.payload, payload.concat());
        prop_assert_eq!(fpdu.consumed, total);
    }

    #[test]
    fn trailer_of_a_running_crc_is_that_of_seal(body in prop::collection::vec(any::<u8>(), 16..99)) {
        let (header, payload) = body.split_at(16);
        let (mut one, mut two) = ([0; FPDU_TRAILER_MAX], [0; FPDU_TRAILER_MAX]);
        let mut crc = Crc::new();
        crc.update(&body);
        prop_assert_eq!(
            seal(true, header, [payload], &mut one),
            trailer(body.len(), Some(crc), &mut two)
        );
    }
}
