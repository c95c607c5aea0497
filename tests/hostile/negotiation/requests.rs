//! Requests: what the library answers to a peer that asks for a connection.

use std::net::Shutdown;

use dat_core::testing::device::soft::iwarp::mpa::Kind;
use dat_core::testing::device::soft::iwarp::wire::*;
use dat_core::testing::device::*;

use super::{A, B, C, CRC, Case, D, ENHANCED, case, check_works, frame_of, reply, request, words};
use crate::driver::Rule;
use crate::iwarp::{dial, read, read_to_end, ready_to_receive, receive_frame, sealed, write_all};
use crate::rows::Row;
use crate::soft::PATIENCE;
use crate::victim::Host;

/// What a responder does with a request.
pub enum Outcome {
    /// Ends the connection without an answer; the consumer learns of nothing.
    Closed,
    /// Delivers the request, and refuses it when the consumer accepts.
    Refused,
    /// Delivers it with as many bytes of private data, and answers with these bytes.
    Accepted(usize, Vec<u8>),
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Closed => f.write_str("the end of the stream; no event"),
            Outcome::Refused => f.write_str("a reply that rejects; `ACCEPT_COMPLETION_ERROR`"),
            Outcome::Accepted(_, bytes) => match bytes.get(20..24) {
                Some([a, b, c, d]) => {
                    write!(f, "a reply with IRD {a:02x}{b:02x}, ORD {c:02x}{d:02x}")
                }
                _ => f.write_str("a reply without words of RFC 6581"),
            },
        }
    }
}

/// The cases.
pub fn cases() -> Vec<Case<Outcome>> {
    use Outcome::{Accepted, Closed, Refused};
    let wrong_key = |at: usize| {
        let mut bytes = request(ENHANCED, 2, &words(A | 4, C | 4));
        bytes[at] ^= 0x20;
        bytes
    };
    let with = |ird, ord| request(ENHANCED, 2, &words(ird, ord));
    let yes = |ird, ord| Accepted(0, reply(ENHANCED, 2, &words(ird, ord)));
    let long = |length| frame_of(&KEY_REQUEST, CRC, 2, length, &[7; 600]);
    let mut behind = with(A | 4, C | 4);
    behind.extend(ready_to_receive());
    vec![
        case(
            "request-key-first",
            "5044 7.1.1",
            "a request with a wrong first byte",
            wrong_key(0),
            Closed,
        ),
        case(
            "request-key-last",
            "5044 7.1.1",
            "a request with a wrong last byte of the key",
            wrong_key(15),
            Closed,
        ),
        case(
            "request-key-reply",
            "5044 7.1.1",
            "the key of a reply",
            reply(ENHANCED, 2, &words(A | 4, C | 4)),
            Closed,
        ),
        case(
            "request-not-mpa",
            "5044 7.1.1",
            "another protocol",
            b"GET / HTTP/1.0\r\n\r\n".to_vec(),
            Closed,
        ),
        case(
            "request-torn",
            "5044 7.1.2",
            "half a request, then the end of the stream",
            with(A | 4, C | 4)[..23].to_vec(),
            Closed,
        ),
        case(
            "request-nothing",
            "5044 7.1.2",
            "nothing but the end of the stream",
            Vec::new(),
            Closed,
        ),
        case(
            "request-revision-0",
            "5044 7.1.1, 6581 6",
            "revision 0",
            request(CRC, 0, b""),
            Closed,
        ),
        case(
            "request-revision-3",
            "5044 7.1.1, 6581 6",
            "revision 3",
            request(ENHANCED, 3, &words(A | 4, C | 4)),
            Closed,
        ),
        case(
            "request-revision-255",
            "5044 7.1.1, 6581 6",
            "revision 255",
            request(ENHANCED, 255, &words(A | 4, C | 4)),
            Closed,
        ),
        case(
            "request-private-513",
            "5044 7.1.1",
            "513 bytes of private data",
            long(513),
            Closed,
        ),
        case(
            "request-private-65535",
            "5044 7.1.1",
            "65535 bytes of private data",
            long(0xffff),
            Closed,
        ),
        case(
            "request-private-short",
            "5044 7.1.1",
            "less private data than stated, then the end of the stream",
            frame_of(&KEY_REQUEST, CRC, 2, 512, &[7; 100]),
            Closed,
        ),
        case(
            "request-words-none",
            "6581 6",
            "the flag for the words of RFC 6581 and no words",
            request(ENHANCED, 2, b""),
            Closed,
        ),
        case(
            "request-words-half",
            "6581 6",
            "the flag and three bytes",
            request(ENHANCED, 2, &[0x80, 4, 0x80]),
            Closed,
        ),
        case(
            "request-markers",
            "5044 7.1.1",
            "a request for markers, which the library has not",
            request(ENHANCED | 0x80, 2, &words(A | 4, C | 4)),
            Refused,
        ),
        case(
            "request-reject-flag",
            "5044 7.1.1",
            "the flag of a rejection in a request, which is ignored",
            request(ENHANCED | 0x20, 2, &words(A | 4, C | 4)),
            yes(A | 4, C | 4),
        ),
        case(
            "request-reserved-flags",
            "5044 7.1.1",
            "all reserved flags, which are ignored",
            request(ENHANCED | 0x0f, 2, &words(A | 4, C | 4)),
            yes(A | 4, C | 4),
        ),
        case(
            "request-no-crc",
            "5044 7.1.1",
            "a request without CRCs; the library wants them",
            request(0x10, 2, &words(A | 4, C | 4)),
            yes(A | 4, C | 4),
        ),
        case(
            "request-words-revision-1",
            "6581 6",
            "the flag for the words with revision 1, where it is reserved",
            request(ENHANCED, 1, &words(A | 4, C | 4)),
            Accepted(4, reply(CRC, 1, b"")),
        ),
        case(
            "request-no-words",
            "6581 6",
            "revision 2 without the words",
            request(CRC, 2, b"hi"),
            Accepted(2, reply(CRC, 2, b"")),
        ),
        case(
            "request-private-512",
            "5044 7.1.1",
            "512 bytes of private data, the words among them",
            request(ENHANCED, 2, &[&words(A | 4, C | 4)[..], &[7; 508]].concat()),
            Accepted(508, reply(ENHANCED, 2, &words(A | 4, C | 4))),
        ),
        case(
            "request-depths-0",
            "6581 9.1",
            "IRD and ORD 0",
            with(A, C),
            yes(A, C),
        ),
        case(
            "request-depths-3fff",
            "6581 9.1",
            "IRD and ORD 0x3fff: not negotiated",
            with(A | 0x3fff, C | 0x3fff),
            yes(A | 0x3fff, C | 0x3fff),
        ),
        case(
            "request-depths-3ffe",
            "6581 9.1",
            "IRD and ORD 0x3ffe",
            with(A | 0x3ffe, C | 0x3ffe),
            yes(A | 4, C | 4),
        ),
        case(
            "request-rtr-none",
            "6581 9.2",
            "peer-to-peer without a kind of first message",
            with(A | 4, 4),
            yes(A | 4, C | 4),
        ),
        case(
            "request-rtr-all",
            "6581 9.2",
            "all kinds of first message",
            with(A | B | 4, C | D | 4),
            yes(A | 4, C | 4),
        ),
        case(
            "request-rtr-fpdu",
            "6581 9.2",
            "an empty FPDU as the first message",
            with(A | B | 4, 4),
            yes(A | B | 4, 4),
        ),
        case(
            "request-rtr-read",
            "6581 9.2",
            "a Read as the first message",
            with(A | 4, D | 4),
            yes(A | 4, D | 4),
        ),
        case(
            "request-rtr-without-a",
            "6581 9.2",
            "kinds of first message without peer-to-peer",
            with(B | 4, C | D | 4),
            yes(4, 4),
        ),
        case(
            "request-fpdu-behind",
            "5044 7.1.2",
            "an FPDU right behind the request; it is processed after the reply",
            behind,
            yes(A | 4, C | 4),
        ),
    ]
}

impl Rule for Case<Outcome> {
    fn row(&self) -> &Row {
        &self.row
    }

    fn run(&self, host: &Host) {
        let Case {
            row: Row { name, .. },
            bytes,
            answer: outcome,
        } = self;
        let mut peer = dial(host.port);
        // In two pieces.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        write_all(&mut peer, first);
        write_all(&mut peer, second);
        match outcome {
            Outcome::Closed => {
                let _ = peer.shutdown(Shutdown::Write);
                let (answer, _) = read_to_end(&mut peer);
                assert!(answer.is_empty(), "{name}: {answer:02x?}");
                assert!(host.requests.try_recv().is_err(), "{name}");
            }
            Outcome::Refused => {
                let victim = host.victim();
                let request = host.requests.recv_timeout(PATIENCE).unwrap();
                host.device.accept(request, &victim.qp, b"").unwrap();
                let event = victim.events.recv_timeout(PATIENCE).unwrap();
                assert_eq!(event, CmEvent::AcceptError, "{name}");
                let (answer, _) = read_to_end(&mut peer);
                assert_eq!(answer, reply(ENHANCED | 0x20, 2, &words(0, 0)), "{name}");
            }
            Outcome::Accepted(private, expected) => {
                let victim = host.victim();
                let request = host.requests.recv_timeout(PATIENCE).unwrap();
                assert_eq!(request.private_data().len(), *private, "{name}");
                host.device.accept(request, &victim.qp, b"").unwrap();
                let mut answer = Vec::new();
                receive_frame(&mut peer, Kind::Reply, &mut answer).unwrap();
                assert_eq!(answer, *expected, "{name}");
                // And the connection works, with the first message that was agreed.
                let first = match expected.get(20..24) {
                    Some([ird, ..]) if ird & 0x40 != 0 => sealed(true, &[0, 0], &[]),
                    Some([ird, _, ord, _]) if ird & 0x80 != 0 && ord & 0x40 != 0 => {
                        read(1, 0, 0, 0)
                    }
                    _ => ready_to_receive(),
                };
                if *name != "request-fpdu-behind" {
                    write_all(&mut peer, &first);
                }
                check_works(host, &victim, &mut peer, name);
            }
        }
    }
}
