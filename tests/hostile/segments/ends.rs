//! The end and the beginning of the messages of a peer (RFC 5040 sections 4.8 and 5.4, RFC 6581 section
//! 9.2): the Terminate that a peer sends, and its first message.

use dat_core::testing::device::soft::iwarp::fpdu::{Control, Untagged};
use dat_core::testing::device::soft::iwarp::wire::*;

use super::Answer::{Ends, GoesOn, Terminate};
use super::{
    Case, Copied, Open, Sent, When, case, legal, only, part, peer_terminate, response, send_with,
    write_to,
};
use crate::iwarp::{read, ready_to_receive, send, tagged, untagged};
use crate::victim::Region;

/// The cases.
pub fn cases() -> Vec<Case> {
    use Copied::{DdpHeader, Nothing};
    let ended_by = |payload: &'static [u8]| {
        move |open: &Open<'_>| Sent {
            before: Vec::new(),
            offending: peer_terminate(1, 0, payload),
            after: [
                untagged(send(1), b"late"),
                write_to(open, Region::All, 0, 4),
            ]
            .concat(),
        }
    };
    vec![
        case(
            "terminate",
            "5040 5.4",
            "a Terminate, then data",
            Ends,
            ended_by(&[0x01, 0x02, 0, 0]),
        ),
        case(
            "terminate-unknown",
            "5040 4.8",
            "a Terminate with an error that is none, then data",
            Ends,
            ended_by(&[0xff, 0xff, 0xff, 0xff]),
        ),
        case(
            "terminate-torn",
            "5040 4.8",
            "a Terminate that promises a header and has none, then data",
            Ends,
            ended_by(&[0x12, 0x02, 0xe0, 0, 0, 0x16, 0x41]),
        ),
        case(
            "terminate-short",
            "5040 4.8",
            "a Terminate of 3 bytes, then data",
            Ends,
            ended_by(&[0x01, 0x02, 0]),
        ),
        case(
            "terminate-empty",
            "5040 4.8",
            "a Terminate of no bytes, then data",
            Ends,
            ended_by(&[]),
        ),
        case(
            "terminate-not-last",
            "5040 5.4",
            "a Terminate in more than one segment",
            Terminate((1, 2, 5), DdpHeader),
            |_| {
                let header = Untagged {
                    qn: QN_TERMINATE,
                    ..send_with(Control::new(OP_TERMINATE, false))
                };
                only(untagged(header, &[0; 4]))
            },
        ),
        case(
            "terminate-in-message",
            "5040 5.4",
            "a Terminate in the midst of a Send, then data",
            Ends,
            |_| Sent {
                before: part(1, 0, false, b"half"),
                offending: peer_terminate(1, 0, &[0x01, 0x02, 0, 0]),
                after: part(1, 4, true, b"rest"),
            },
        ),
        case(
            "terminate-first",
            "5040 5.4",
            "a Terminate as the first message",
            Ends,
            |_| only(peer_terminate(1, 0, &[0x01, 0x02, 0, 0])),
        )
        .when(When::First),
        case(
            "first-crc",
            "5044 4.4, 6581 9.2",
            "a first message with a wrong CRC",
            Terminate((2, 0, 2), Nothing),
            |_| {
                let mut bytes = ready_to_receive();
                bytes[17] ^= 1;
                only(bytes)
            },
        )
        .when(When::First),
        case(
            "first-opcode",
            "5040 7.2",
            "a first message with an opcode that is none",
            Terminate((0, 2, 6), DdpHeader),
            |_| only(tagged(15, 0, 0, b"")),
        )
        .when(When::First),
        case(
            "first-write",
            "5041 7.1",
            "a first message that writes to STag 0",
            Terminate((1, 1, 0), DdpHeader),
            |_| only(tagged(OP_WRITE, 0, 0, b"x")),
        )
        .when(When::First),
        case(
            "first-response",
            "5040 5.2",
            "a first message that is a Read Response",
            Terminate((1, 1, 0), DdpHeader),
            |_| only(response(0, 0, true, b"")),
        )
        .when(When::First),
        case(
            "first-read",
            "6581 9.2",
            "a Read Request as the first message, RDMA Write agreed",
            GoesOn(1),
            |_| legal(read(1, 0, 0, 0)),
        )
        .when(When::First),
        case(
            "first-send",
            "6581 9.2",
            "a Send as the first message, RDMA Write agreed",
            GoesOn(2),
            |_| legal(untagged(send(1), b"hello")),
        )
        .when(When::First),
    ]
}
