//! FPDUs (RFC 5044): lengths, CRCs, markers and padding that break a rule.

use dat_core::testing::device::soft::iwarp::crc::Crc;
use dat_core::testing::device::soft::iwarp::wire::*;

use super::Answer::{GoesOn, Terminate};
use super::{Case, Copied, Open, When, case, legal, only};
use crate::iwarp::{sealed, send, untagged};

/// The cases.
pub fn cases() -> Vec<Case> {
    use Copied::Nothing;
    let framing = Terminate((2, 0, 3), Nothing);
    let crc = Terminate((2, 0, 2), Nothing);
    let flip = |at: fn(usize) -> usize| {
        move |_: &Open<'_>| {
            let mut bytes = untagged(send(1), b"hello");
            let at = at(bytes.len());
            bytes[at] ^= 0x10;
            only(bytes)
        }
    };
    vec![
        case(
            "fpdu-empty",
            "5044 4.1, 6581 9.2",
            "an FPDU of length 0 that is no agreed first message",
            framing,
            |_| only(sealed(true, &[0, 0], &[])),
        ),
        case(
            "fpdu-empty-first",
            "6581 9.2",
            "an FPDU of length 0 as the first message, RDMA Write agreed",
            framing,
            |_| only(sealed(true, &[0, 0], &[])),
        )
        .when(When::First),
        case(
            "fpdu-too-short-tagged",
            "5044 4.1, 5041 4.2",
            "a length that holds no tagged header",
            framing,
            |_| {
                only(vec![
                    0, 13, 0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                ])
            },
        ),
        case(
            "fpdu-too-short-untagged",
            "5044 4.1, 5041 4.3",
            "a length that holds no untagged header",
            framing,
            |_| {
                only(vec![
                    0, 17, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
                ])
            },
        ),
        case(
            "fpdu-length-1",
            "5044 4.1",
            "a length of 1",
            framing,
            |_| only(vec![0, 1, 0x41, 0, 0, 0, 0, 0]),
        ),
        case(
            "crc-header",
            "5044 4.4",
            "a bit of the header changed",
            crc,
            flip(|_| 14),
        ),
        case(
            "crc-payload",
            "5044 4.4",
            "a bit of the payload changed",
            crc,
            flip(|_| 21),
        ),
        case(
            "crc-padding",
            "5044 4.4",
            "a bit of the padding changed",
            crc,
            flip(|len| len - 5),
        ),
        case(
            "crc-field",
            "5044 4.4",
            "a bit of the CRC changed",
            crc,
            flip(|len| len - 1),
        ),
        case(
            "crc-zero",
            "5044 4.4",
            "a CRC of zero although CRCs are in use",
            crc,
            |_| {
                let mut bytes = untagged(send(1), b"hello");
                let len = bytes.len();
                bytes[len - 4..].fill(0);
                only(bytes)
            },
        ),
        case(
            "marker",
            "5044 4.3",
            "a marker although none were negotiated",
            crc,
            |_| only([vec![0; 4], untagged(send(1), b"hello")].concat()),
        ),
        case(
            "padding-not-zero",
            "5044 4.1",
            "padding that is not zero, with its CRC",
            GoesOn(2),
            |_| {
                let mut header = [0; UNTAGGED_HDR];
                send(1).encode(5, &mut header).unwrap();
                let mut body = [&header[..], b"hello", &[1, 2, 3]].concat();
                let mut crc = Crc::new();
                crc.update(&body);
                body.extend(crc.finish());
                legal(body)
            },
        ),
    ]
}
