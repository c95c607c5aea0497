use super::super::fpdu::{Decoded, Header, Peek, decode, peek};
use super::super::rdmap::Segment;
use super::super::sequence::RxSequence;
use super::super::terminate::{TERMINATE_FPDU_MAX, Terminate, encode};
use super::super::wire::{LAYER_DDP, LAYER_LLP, LAYER_RDMAP, WireError};
use super::hex;

const READ_REQUEST: &str = "002e 41 41 00000000 00000001 00000001 00000000
    0a0b0c0d 2021222324252627 00001000 0e0f1011 3031323334353637";
const WRITE: &str = "0013 c1 40 01020304 1112131415161718 68656c6c6f 000000 fbc19168";
const SEND: &str = "0016 41 46 deadbeef 00000000 00000007 00000400 64617461 b03998a4";

fn built(error: WireError, offending: &[u8]) -> Vec<u8> {
    encode(error, offending, true, &mut [0; TERMINATE_FPDU_MAX]).to_vec()
}

fn received(bytes: &[u8]) -> Terminate {
    let Ok(Decoded::Fpdu(fpdu)) = decode(bytes, true) else {
        panic!("not decoded: {bytes:02x?}");
    };
    assert_eq!(fpdu.consumed, bytes.len());
    let header = fpdu.header.expect("not empty");
    let segment = Segment::classify(&header, fpdu.payload.len()).expect("valid");
    assert_eq!(segment, Segment::Terminate { msn: 1 });
    RxSequence::new()
        .accept(&segment, fpdu.payload.len())
        .expect("in sequence");
    Terminate::parse(fpdu.payload).expect("complete")
}

fn header_of(bytes: &[u8]) -> Option<Header> {
    match peek(bytes) {
        Ok(Peek::Layout(layout)) => layout.header,
        other => panic!("{other:?}"),
    }
}

#[test]
fn golden_bytes() {
    let read = hex(READ_REQUEST);
    let expected = [
        &hex("0046 41 47 00000000 00000002 00000001 00000000 01 02 e0 00")[..],
        &read,
        &hex("453a15e9"),
    ]
    .concat();
    assert_eq!(built(WireError::RDMAP_ACCESS, &read), expected);
    let expected = hex("0016 41 47 00000000 00000002 00000001 00000000 20 02 00 00  7fe42585");
    assert_eq!(built(WireError::MPA_CRC, &hex(SEND)), expected);
}

/// What is repeated of the offending FPDU, for each kind of error.
#[test]
fn required_content() {
    let (read, write, send) = (hex(READ_REQUEST), hex(WRITE), hex(SEND));
    for (error, offending, repeated, bits) in [
        (WireError::RDMAP_BOUNDS, &read, 48, 0xe0),
        (WireError::RDMAP_STREAM, &read, 48, 0xe0),
        (WireError::RDMAP_CANNOT_INVALIDATE, &send, 20, 0xc0),
        (WireError::RDMAP_OPCODE, &write, 16, 0xc0),
        (WireError::RDMAP_CATASTROPHIC, &read, 0, 0),
        (WireError::DDP_MSN, &read, 20, 0xc0),
        (WireError::DDP_NO_BUFFER, &send, 20, 0xc0),
        (WireError::DDP_TAGGED_BOUNDS, &write, 16, 0xc0),
        (WireError::DDP_TAGGED_VERSION, &write, 0, 0),
        (WireError::DDP_UNTAGGED_VERSION, &send, 0, 0),
        (WireError::DDP_CATASTROPHIC, &send, 0, 0),
        (WireError::MPA_FRAMING, &send, 0, 0),
    ] {
        let bytes = built(error, offending);
        assert_eq!(bytes[22], bits, "{error}");
        assert_eq!(bytes.len(), 20 + 4 + repeated + 4, "{error}");
        assert_eq!(bytes[24..24 + repeated], offending[..repeated], "{error}");
        let header = header_of(offending).filter(|_| repeated > 0);
        let offending = if offending == &read {
            offending
        } else {
            &offending[..20]
        };
        assert_eq!(received(&bytes), Terminate { error, header }, "{error}");
        // As much as the header is enough, and less is left out.
        assert_eq!(built(error, offending), bytes, "{error}");
        let cut = built(error, &offending[..15]);
        assert_eq!(
            received(&cut),
            Terminate {
                error,
                header: None
            },
            "{error}"
        );
    }
}

#[test]
fn short_read_request_is_not_read_over_its_end() {
    // 27 bytes of request, then bytes of something else.
    let mut bytes = hex(READ_REQUEST);
    bytes[1] -= 1;
    let sent = built(WireError::RDMAP_STREAM, &bytes);
    assert_eq!(sent[22], 0xc0);
    assert_eq!(sent.len(), 20 + 4 + 20 + 4);
}

#[test]
fn every_error_comes_back() {
    for &(error, text) in WireError::NAMED {
        let found = received(&built(error, &[]));
        assert_eq!(
            found,
            Terminate {
                error,
                header: None
            }
        );
        assert!(error.to_string().starts_with(text));
    }
}

#[test]
fn errors_have_the_numbers_of_the_registry() {
    let number = |e: WireError| (e.layer, e.etype, e.code);
    assert_eq!(
        number(WireError::RDMAP_CANNOT_INVALIDATE),
        (LAYER_RDMAP, 1, 9)
    );
    assert_eq!(number(WireError::RDMAP_OPCODE), (LAYER_RDMAP, 2, 6));
    assert_eq!(
        number(WireError::DDP_TAGGED_STAG_NOT_ASSOCIATED),
        (LAYER_DDP, 1, 2)
    );
    assert_eq!(number(WireError::DDP_TOO_LONG), (LAYER_DDP, 2, 5));
    assert_eq!(number(WireError::MPA_RTR), (LAYER_LLP, 0, 7));
    let mut all: Vec<_> = WireError::NAMED.iter().map(|(e, _)| number(*e)).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), WireError::NAMED.len());
    let unknown = WireError {
        layer: 3,
        etype: 1,
        code: 0xab,
    };
    assert_eq!(unknown.to_string(), "unknown error (3/1/ab)");
}

/// siw on little-endian hosts: nibbles exchanged, flags at the other end of their byte.
#[test]
fn siw_layout() {
    let send = hex(SEND);
    let with_header = [&hex("21 02 03 00")[..], &send[..20]].concat();
    let expected = Terminate {
        error: WireError::DDP_NO_BUFFER,
        header: header_of(&send),
    };
    assert_eq!(Terminate::parse(&with_header), Ok(expected));
    let bare = |bytes| Terminate::parse(&hex(bytes)).map(|found| found.error);
    assert_eq!(bare("02 02 00 00"), Ok(WireError::MPA_CRC));
    assert_eq!(bare("20 02 00 00"), Ok(WireError::MPA_CRC));
    assert_eq!(bare("02 06 00 00"), Ok(WireError::RDMAP_OPCODE));
}

/// RFC 5040 section 4.8: the D bit says whether the header of a DDP segment is repeated.
#[test]
fn the_header_is_there_if_the_bits_say_so() {
    let write = hex(WRITE);
    for (bits, header) in [
        (0x00, None),
        (0x80, None),
        (0x40, header_of(&write)),
        (0xc0, header_of(&write)),
    ] {
        let payload = [&[0x12, 0x02, bits, 0][..], &write].concat();
        let found = Terminate::parse(&payload).expect("complete");
        assert_eq!(found.header, header, "{bits:02x}");
    }
}

#[test]
fn cut_short() {
    for len in 0..4 {
        assert_eq!(
            Terminate::parse(&[0; 4][..len]),
            Err(WireError::RDMAP_STREAM)
        );
    }
    // The bits promise a header that is not there.
    let found = Terminate::parse(&hex("12 02 e0 00 0016 41")).expect("first word");
    assert_eq!(found.header, None);
}
