//! Queues of untagged segments (RFC 5041 section 5): queue numbers, message numbers, offsets, and the
//! lengths of messages.

use dat_core::testing::device::soft::iwarp::fpdu::{Control, Untagged};
use dat_core::testing::device::soft::iwarp::rdmap::ReadRequest;
use dat_core::testing::device::soft::iwarp::wire::*;

use super::Answer::{GoesOn, Terminate};
use super::{Case, Copied, Open, When, case, legal, only, part, peer_terminate, send_with, then};
use crate::iwarp::{send, untagged};
use crate::victim::Region;

/// The header of a Read Request, the last segment of its message.
fn read_header(msn: u32) -> Untagged {
    Untagged {
        control: Control::new(OP_READ_REQUEST, true),
        invalidate: 0,
        qn: QN_READ_REQUEST,
        msn,
        mo: 0,
    }
}

/// An untagged segment with any header and the first `len` bytes of a right Read Request, or more
/// than it has.
fn read_as(header: Untagged, open: &Open<'_>, len: usize) -> Vec<u8> {
    let (source_stag, source_to) = open.place(Region::Readable);
    let request = ReadRequest {
        sink_stag: 1,
        sink_to: 2,
        size: 8,
        source_stag,
        source_to,
    };
    let mut bytes = [0; READ_REQUEST_HDR];
    request.encode(1, &mut bytes);
    let mut payload = bytes[UNTAGGED_HDR..].to_vec();
    payload.resize(len, 0);
    untagged(header, &payload)
}

/// The cases.
pub fn cases() -> Vec<Case> {
    use Copied::DdpHeader;
    let qn = Terminate((1, 2, 1), DdpHeader);
    let msn = Terminate((1, 2, 3), DdpHeader);
    let mo = Terminate((1, 2, 4), DdpHeader);
    let too_long = Terminate((1, 2, 5), DdpHeader);
    let kind = Terminate((0, 2, 6), DdpHeader);
    let short = Terminate((0, 2, 7), DdpHeader);
    let send_as = |header: Untagged| move |_: &Open<'_>| only(untagged(header, b"data"));
    let send_to = |qn: u32| send_as(Untagged { qn, ..send(1) });
    let send_msn = |msn: u32| send_as(send(msn));
    // The first part of the first Send, and another part, which has the fault.
    let parts = |first: &'static [u8], msn: u32, mo: u32, second: &'static [u8]| {
        move |_: &Open<'_>| then(part(1, 0, false, first), part(msn, mo, true, second))
    };
    let kinds = |first: u8, second: u8, invalidates: u32| {
        move |open: &Open<'_>| {
            let invalidate = open.arena.key(Region::All);
            let first = Untagged {
                invalidate,
                ..send_with(Control::new(first, false))
            };
            let second = Untagged {
                invalidate: invalidate ^ invalidates,
                mo: 4,
                ..send_with(Control::new(second, true))
            };
            then(untagged(first, b"data"), untagged(second, b"more"))
        }
    };
    let request =
        |header: Untagged, len: usize| move |open: &Open<'_>| only(read_as(header, open, len));
    vec![
        case(
            "qn-send-1",
            "5040 4.2, 5041 7.1",
            "a Send on queue 1",
            qn,
            send_to(1),
        ),
        case(
            "qn-send-2",
            "5040 4.2, 5041 7.1",
            "a Send on queue 2",
            qn,
            send_to(2),
        ),
        case(
            "qn-send-3",
            "5041 4.3, 7.1",
            "a Send on queue 3, which does not exist",
            qn,
            send_to(3),
        ),
        case(
            "qn-send-max",
            "5041 4.3, 7.1",
            "a Send on the highest queue number",
            qn,
            send_to(u32::MAX),
        ),
        case(
            "qn-request-0",
            "5040 4.2",
            "a Read Request on queue 0",
            qn,
            request(
                Untagged {
                    qn: 0,
                    ..read_header(1)
                },
                READ_REQUEST_LEN,
            ),
        ),
        case(
            "qn-terminate-0",
            "5040 4.2",
            "a Terminate on queue 0",
            qn,
            |_| {
                let header = send_with(Control::new(OP_TERMINATE, true));
                only(untagged(header, &[0; 4]))
            },
        ),
        case(
            "msn-0",
            "5041 5.1, 7.1",
            "a Send with number 0",
            msn,
            send_msn(0),
        ),
        case(
            "msn-skipped",
            "5041 5.1, 7.1",
            "a Send with number 2 first",
            msn,
            send_msn(2),
        ),
        case(
            "msn-max",
            "5041 5.1, 7.1",
            "a Send with the highest number",
            msn,
            send_msn(u32::MAX),
        ),
        case(
            "msn-repeated",
            "5041 5.1, 7.1",
            "the number of the Send before",
            msn,
            |_| then(untagged(send(1), b"one"), untagged(send(1), b"two")),
        ),
        case(
            "msn-in-message",
            "5041 5.1, 5.2",
            "the next number in the midst of a message",
            msn,
            parts(b"one", 2, 3, b"two"),
        ),
        case(
            "msn-request",
            "5041 5.1, 7.1",
            "a Read Request with number 2 first",
            msn,
            request(read_header(2), READ_REQUEST_LEN),
        ),
        case(
            "msn-terminate",
            "5041 5.1, 5040 5.4",
            "a Terminate with number 2",
            msn,
            |_| only(peer_terminate(2, 0, &[0; 4])),
        ),
        case(
            "mo-first",
            "5041 5.2, 7.1",
            "an offset in the first segment of a message",
            mo,
            |_| only(part(1, 5, true, b"data")),
        ),
        case(
            "mo-gap",
            "5041 5.2, 7.1",
            "an offset that leaves out a byte",
            mo,
            parts(b"one", 1, 4, b"two"),
        ),
        case(
            "mo-back",
            "5041 5.2, 7.1",
            "an offset that repeats a byte",
            mo,
            parts(b"one", 1, 2, b"two"),
        ),
        case(
            "mo-wrap",
            "5041 5.2, 7.1",
            "an offset that wraps with the payload",
            mo,
            |_| only(part(1, u32::MAX - 1, true, b"data")),
        ),
        case(
            "mo-request",
            "5041 5.2",
            "a Read Request with an offset",
            mo,
            request(
                Untagged {
                    mo: 1,
                    ..read_header(1)
                },
                READ_REQUEST_LEN,
            ),
        ),
        case(
            "mo-terminate",
            "5041 5.2",
            "a Terminate with an offset",
            mo,
            |_| only(peer_terminate(1, 4, &[0; 4])),
        ),
        case(
            "send-too-long",
            "5041 7.1",
            "a Send of a byte more than the receive holds",
            too_long,
            |_| only(untagged(send(1), &[0xee; 65])),
        ),
        case(
            "send-too-long-late",
            "5041 7.1",
            "the same before a receive is posted",
            too_long,
            |_| only(untagged(send(1), &[0xee; 65])),
        )
        .when(When::Late),
        case(
            "send-parts-too-long",
            "5041 7.1",
            "the same in two segments",
            too_long,
            parts(&[0xee; 64], 1, 64, b"x"),
        ),
        case(
            "request-not-last",
            "5040 5.2",
            "a Read Request in more than one segment",
            too_long,
            request(
                Untagged {
                    control: Control::new(OP_READ_REQUEST, false),
                    ..read_header(1)
                },
                READ_REQUEST_LEN,
            ),
        ),
        case(
            "request-too-long",
            "5040 4.4",
            "a Read Request of 29 bytes",
            too_long,
            request(read_header(1), READ_REQUEST_LEN + 1),
        ),
        case(
            "request-too-short",
            "5040 4.4",
            "a Read Request of 27 bytes",
            short,
            request(read_header(1), READ_REQUEST_LEN - 1),
        ),
        case(
            "request-empty",
            "5040 4.4",
            "a Read Request without its header",
            short,
            request(read_header(1), 0),
        ),
        case(
            "send-kind-changes",
            "5040 5.3",
            "segments of one Send, the second solicited",
            kind,
            kinds(OP_SEND, OP_SEND_SE, 0),
        ),
        case(
            "send-invalidate-appears",
            "5040 5.3",
            "segments of one Send, the second with an STag to invalidate",
            kind,
            kinds(OP_SEND, OP_SEND_INVALIDATE, 0),
        ),
        case(
            "send-invalidate-changes",
            "5040 5.3",
            "segments of one Send with different STags to invalidate",
            kind,
            kinds(OP_SEND_INVALIDATE, OP_SEND_INVALIDATE, 1),
        ),
        case(
            "send-parts-empty",
            "5041 5.2",
            "segments of a Send without payload",
            GoesOn(2),
            |_| {
                let empty = part(1, 0, false, b"").repeat(100);
                legal([empty, part(1, 0, true, b"end")].concat())
            },
        ),
    ]
}
