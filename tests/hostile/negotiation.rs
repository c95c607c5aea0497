//! Every rule of the set-up of a connection (RFC 5044 section 7.1, RFC 6581), broken by the peer that
//! asks and by the peer that answers.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use dat_core::testing::device::soft::iwarp::mpa::Kind;
use dat_core::testing::device::soft::iwarp::wire::*;
use dat_core::testing::device::*;

use crate::iwarp::*;
use crate::poll::completion;
use crate::rows::{self, Row};
use crate::soft::PATIENCE;
use crate::victim::{Host, Region, Victim};

/// The bytes of a frame, from its fields. `private` includes the four bytes of RFC 6581, and
/// `length` is what the frame states about it.
fn frame_of(key: &[u8; 16], flags: u8, revision: u8, length: usize, private: &[u8]) -> Vec<u8> {
    let mut bytes = key.to_vec();
    bytes.extend([flags, revision]);
    bytes.extend((length as u16).to_be_bytes());
    bytes.extend(private);
    bytes
}

fn request(flags: u8, revision: u8, private: &[u8]) -> Vec<u8> {
    frame_of(&KEY_REQUEST, flags, revision, private.len(), private)
}

fn reply(flags: u8, revision: u8, private: &[u8]) -> Vec<u8> {
    frame_of(&KEY_REPLY, flags, revision, private.len(), private)
}

/// The words of RFC 6581: IRD with the flags A and B, ORD with C and D.
fn words(ird: u16, ord: u16) -> Vec<u8> {
    [ird.to_be_bytes(), ord.to_be_bytes()].concat()
}

/// Flags of a frame: CRCs, and the words of RFC 6581.
const CRC: u8 = 0x40;
const ENHANCED: u8 = 0x50;
/// Peer-to-peer in the word IRD; the first message in IRD (an empty FPDU) and ORD (a Write, a Read).
const A: u16 = 0x8000;
const B: u16 = 0x4000;
const C: u16 = 0x8000;
const D: u16 = 0x4000;

/// What a responder does with a request.
enum Outcome {
    /// Ends the connection without an answer; the consumer learns of nothing.
    Closed,
    /// Delivers the request, and refuses it when the consumer accepts.
    Refused,
    /// Delivers it with as many bytes of private data, and answers with these bytes.
    Accepted(usize, Vec<u8>),
}

/// Requests: name, section, what is sent, the bytes, the outcome.
type Request = (&'static str, &'static str, &'static str, Vec<u8>, Outcome);

fn requests() -> Vec<Request> {
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
        (
            "request-key-first",
            "5044 7.1.1",
            "a request with a wrong first byte",
            wrong_key(0),
            Closed,
        ),
        (
            "request-key-last",
            "5044 7.1.1",
            "a request with a wrong last byte of the key",
            wrong_key(15),
            Closed,
        ),
        (
            "request-key-reply",
            "5044 7.1.1",
            "the key of a reply",
            reply(ENHANCED, 2, &words(A | 4, C | 4)),
            Closed,
        ),
        (
            "request-not-mpa",
            "5044 7.1.1",
            "another protocol",
            b"GET / HTTP/1.0\r\n\r\n".to_vec(),
            Closed,
        ),
        (
            "request-torn",
            "5044 7.1.2",
            "half a request, then the end of the stream",
            with(A | 4, C | 4)[..23].to_vec(),
            Closed,
        ),
        (
            "request-nothing",
            "5044 7.1.2",
            "nothing but the end of the stream",
            Vec::new(),
            Closed,
        ),
        (
            "request-revision-0",
            "5044 7.1.1, 6581 6",
            "revision 0",
            request(CRC, 0, b""),
            Closed,
        ),
        (
            "request-revision-3",
            "5044 7.1.1, 6581 6",
            "revision 3",
            request(ENHANCED, 3, &words(A | 4, C | 4)),
            Closed,
        ),
        (
            "request-revision-255",
            "5044 7.1.1, 6581 6",
            "revision 255",
            request(ENHANCED, 255, &words(A | 4, C | 4)),
            Closed,
        ),
        (
            "request-private-513",
            "5044 7.1.1",
            "513 bytes of private data",
            long(513),
            Closed,
        ),
        (
            "request-private-65535",
            "5044 7.1.1",
            "65535 bytes of private data",
            long(0xffff),
            Closed,
        ),
        (
            "request-private-short",
            "5044 7.1.1",
            "less private data than stated, then the end of the stream",
            frame_of(&KEY_REQUEST, CRC, 2, 512, &[7; 100]),
            Closed,
        ),
        (
            "request-words-none",
            "6581 6",
            "the flag for the words of RFC 6581 and no words",
            request(ENHANCED, 2, b""),
            Closed,
        ),
        (
            "request-words-half",
            "6581 6",
            "the flag and three bytes",
            request(ENHANCED, 2, &[0x80, 4, 0x80]),
            Closed,
        ),
        (
            "request-markers",
            "5044 7.1.1",
            "a request for markers, which the library has not",
            request(ENHANCED | 0x80, 2, &words(A | 4, C | 4)),
            Refused,
        ),
        (
            "request-reject-flag",
            "5044 7.1.1",
            "the flag of a rejection in a request, which is ignored",
            request(ENHANCED | 0x20, 2, &words(A | 4, C | 4)),
            yes(A | 4, C | 4),
        ),
        (
            "request-reserved-flags",
            "5044 7.1.1",
            "all reserved flags, which are ignored",
            request(ENHANCED | 0x0f, 2, &words(A | 4, C | 4)),
            yes(A | 4, C | 4),
        ),
        (
            "request-no-crc",
            "5044 7.1.1",
            "a request without CRCs; the library wants them",
            request(0x10, 2, &words(A | 4, C | 4)),
            yes(A | 4, C | 4),
        ),
        (
            "request-words-revision-1",
            "6581 6",
            "the flag for the words with revision 1, where it is reserved",
            request(ENHANCED, 1, &words(A | 4, C | 4)),
            Accepted(4, reply(CRC, 1, b"")),
        ),
        (
            "request-no-words",
            "6581 6",
            "revision 2 without the words",
            request(CRC, 2, b"hi"),
            Accepted(2, reply(CRC, 2, b"")),
        ),
        (
            "request-private-512",
            "5044 7.1.1",
            "512 bytes of private data, the words among them",
            request(ENHANCED, 2, &[&words(A | 4, C | 4)[..], &[7; 508]].concat()),
            Accepted(508, reply(ENHANCED, 2, &words(A | 4, C | 4))),
        ),
        (
            "request-depths-0",
            "6581 9.1",
            "IRD and ORD 0",
            with(A, C),
            yes(A, C),
        ),
        (
            "request-depths-3fff",
            "6581 9.1",
            "IRD and ORD 0x3fff: not negotiated",
            with(A | 0x3fff, C | 0x3fff),
            yes(A | 0x3fff, C | 0x3fff),
        ),
        (
            "request-depths-3ffe",
            "6581 9.1",
            "IRD and ORD 0x3ffe",
            with(A | 0x3ffe, C | 0x3ffe),
            yes(A | 4, C | 4),
        ),
        (
            "request-rtr-none",
            "6581 9.2",
            "peer-to-peer without a kind of first message",
            with(A | 4, 4),
            yes(A | 4, C | 4),
        ),
        (
            "request-rtr-all",
            "6581 9.2",
            "all kinds of first message",
            with(A | B | 4, C | D | 4),
            yes(A | 4, C | 4),
        ),
        (
            "request-rtr-fpdu",
            "6581 9.2",
            "an empty FPDU as the first message",
            with(A | B | 4, 4),
            yes(A | B | 4, 4),
        ),
        (
            "request-rtr-read",
            "6581 9.2",
            "a Read as the first message",
            with(A | 4, D | 4),
            yes(A | 4, D | 4),
        ),
        (
            "request-rtr-without-a",
            "6581 9.2",
            "kinds of first message without peer-to-peer",
            with(B | 4, C | D | 4),
            yes(4, 4),
        ),
        (
            "request-fpdu-behind",
            "5044 7.1.2",
            "an FPDU right behind the request; it is processed after the reply",
            behind,
            yes(A | 4, C | 4),
        ),
    ]
}

fn run_request(host: &Host, (name, _, _, bytes, outcome): &Request) {
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
                Some([ird, _, ord, _]) if ird & 0x80 != 0 && ord & 0x40 != 0 => read(1, 0, 0, 0),
                _ => ready_to_receive(),
            };
            if *name != "request-fpdu-behind" {
                write_all(&mut peer, &first);
            }
            check_works(host, &victim, &mut peer, name);
        }
    }
}

/// The connection is established, and the peer sends a message over it.
fn check_works(host: &Host, victim: &Victim, peer: &mut TcpStream, name: &str) {
    let event = victim.events.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(event, CmEvent::Established { .. }),
        "{name}: {event:?}"
    );
    let wr = RecvWr {
        wr_id: 1,
        sges: &[host.arena.sge(Region::Local, 0, 64)],
        flags: WrFlags::empty(),
    };
    victim.qp.post_recv(&wr).unwrap();
    write_all(peer, &untagged(send(1), b"works"));
    let received = completion(&host.device, &victim.cq);
    assert_eq!(
        (received.status, received.byte_len),
        (WcStatus::Success, 5),
        "{name}"
    );
}

#[test]
fn every_rule_for_requests() {
    let host = Host::new("127.0.0.1 path=tcp");
    let requests = requests();
    for request in &requests {
        run_request(&host, request);
        host.check_honest();
    }
    let rows: Vec<Row> = requests
        .iter()
        .map(|(name, section, sends, _, outcome)| Row {
            name,
            section,
            sends,
            answer: match outcome {
                Outcome::Closed => "the end of the stream; no event".into(),
                Outcome::Refused => "a reply that rejects; `ACCEPT_COMPLETION_ERROR`".into(),
                Outcome::Accepted(_, bytes) => match bytes.get(20..24) {
                    Some([a, b, c, d]) => {
                        format!("a reply with IRD {a:02x}{b:02x}, ORD {c:02x}{d:02x}")
                    }
                    _ => "a reply without words of RFC 6581".into(),
                },
            },
        })
        .collect();
    rows::check_document("Requests", &rows.iter().collect::<Vec<_>>());
}

/// What an initiator does with a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// `NON_PEER_REJECTED`, and the end of the stream.
    Closed,
    /// The same after a Terminate with this code of MPA.
    Terminate(u8),
    /// `PEER_REJECTED` with as many bytes of private data.
    Rejected(usize),
    /// Another attempt with revision 1.
    Again,
    /// Established; the first message is a Write, or a Read.
    Write,
    Read,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Closed => f.write_str("the end of the stream; `NON_PEER_REJECTED`"),
            Verdict::Terminate(code) => write!(f, "Terminate 2/0/{code:02x}; `NON_PEER_REJECTED`"),
            Verdict::Rejected(_) => f.write_str("`PEER_REJECTED`"),
            Verdict::Again => f.write_str("another attempt with revision 1"),
            Verdict::Write => f.write_str("established; the first message is a Write"),
            Verdict::Read => f.write_str("established; the first message is a Read"),
        }
    }
}

type Reply = (&'static str, &'static str, &'static str, Vec<u8>, Verdict);

fn replies() -> Vec<Reply> {
    use Verdict::{Again, Closed, Read, Rejected, Terminate, Write};
    let with = |ird, ord| reply(ENHANCED, 2, &words(ird, ord));
    let mut wrong_key = with(A | 4, C | 4);
    wrong_key[8] ^= 0x20;
    let mut behind = with(A | 4, C | 4);
    behind.extend(untagged(send(1), b"early"));
    vec![
        (
            "reply-key",
            "5044 7.1.1",
            "a wrong byte of the key",
            wrong_key,
            Closed,
        ),
        (
            "reply-key-request",
            "5044 7.1.1",
            "the key of a request",
            request(ENHANCED, 2, &words(A | 4, C | 4)),
            Closed,
        ),
        (
            "reply-torn",
            "5044 7.1.2",
            "half a reply, then the end of the stream",
            with(A | 4, C | 4)[..21].to_vec(),
            Closed,
        ),
        (
            "reply-nothing",
            "5044 7.1.2",
            "nothing but the end of the stream",
            Vec::new(),
            Closed,
        ),
        (
            "reply-revision-0",
            "5044 7.1.1, 6581 6",
            "revision 0",
            reply(CRC, 0, b""),
            Closed,
        ),
        (
            "reply-revision-3",
            "5044 7.1.1, 6581 6",
            "revision 3",
            reply(ENHANCED, 3, &words(A | 4, C | 4)),
            Closed,
        ),
        (
            "reply-revision-1",
            "6581 6",
            "revision 1 to a request of revision 2",
            reply(CRC, 1, b""),
            Again,
        ),
        (
            "reply-private-513",
            "5044 7.1.1",
            "513 bytes of private data",
            frame_of(&KEY_REPLY, ENHANCED, 2, 513, &[0; 600]),
            Closed,
        ),
        (
            "reply-private-short",
            "5044 7.1.1",
            "less private data than stated, then the end of the stream",
            frame_of(&KEY_REPLY, ENHANCED, 2, 512, &[0; 100]),
            Closed,
        ),
        (
            "reply-markers",
            "5044 7.1.1",
            "markers, which the library has not",
            reply(ENHANCED | 0x80, 2, &words(A | 4, C | 4)),
            Terminate(4),
        ),
        (
            "reply-words-none",
            "6581 6",
            "no words of RFC 6581 to a request with them",
            reply(CRC, 2, b"hi"),
            Terminate(4),
        ),
        (
            "reply-words-half",
            "6581 6",
            "the flag and three bytes",
            reply(ENHANCED, 2, &[0x80, 4, 0x80]),
            Closed,
        ),
        (
            "reply-ord-5",
            "6581 9.1",
            "an ORD above the IRD of the request",
            with(A | 4, C | 5),
            Terminate(6),
        ),
        (
            "reply-ord-3ffe",
            "6581 9.1",
            "ORD 0x3ffe",
            with(A | 4, C | 0x3ffe),
            Terminate(6),
        ),
        (
            "reply-ord-3fff",
            "6581 9.1",
            "ORD 0x3fff: not negotiated",
            with(A | 4, C | 0x3fff),
            Write,
        ),
        (
            "reply-ird-0",
            "6581 9.1",
            "IRD 0: the library may not read",
            with(A, C),
            Write,
        ),
        (
            "reply-ird-3fff",
            "6581 9.1",
            "IRD 0x3fff: not negotiated",
            with(A | 0x3fff, C),
            Write,
        ),
        (
            "reply-rtr-none",
            "6581 9.2",
            "no kind of first message",
            with(A | 4, 4),
            Terminate(7),
        ),
        (
            "reply-rtr-fpdu",
            "6581 9.2",
            "an empty FPDU, which was not offered",
            with(A | B | 4, 4),
            Terminate(7),
        ),
        (
            "reply-rtr-read",
            "6581 9.2",
            "a Read as the first message",
            with(A | 4, D | 4),
            Read,
        ),
        (
            "reply-rtr-all",
            "6581 9.2",
            "all kinds of first message",
            with(A | B | 4, C | D | 4),
            Write,
        ),
        (
            "reply-reserved-flags",
            "5044 7.1.1",
            "all reserved flags, which are ignored",
            reply(ENHANCED | 0x0f, 2, &words(A | 4, C | 4)),
            Write,
        ),
        (
            "reply-no-crc",
            "5044 7.1.1",
            "no CRCs, which the library wants",
            reply(0x10, 2, &words(A | 4, C | 4)),
            Write,
        ),
        (
            "reply-reject",
            "5044 7.1.1",
            "a rejection with private data",
            reply(ENHANCED | 0x20, 2, &[&words(0, 0)[..], b"no"].concat()),
            Rejected(2),
        ),
        (
            "reply-reject-no-words",
            "6581 6",
            "a rejection without the words",
            reply(ENHANCED | 0x20, 2, b""),
            Rejected(0),
        ),
        (
            "reply-reject-all-flags",
            "5044 7.1.1",
            "a rejection with every flag and depth",
            reply(0xff, 2, &words(0xffff, 0xffff)),
            Rejected(0),
        ),
        (
            "reply-fpdu-behind",
            "5044 7.1.2",
            "an FPDU right behind the reply; it is processed after the first message",
            behind,
            Write,
        ),
    ]
}

fn run_reply(host: &Host, (name, _, _, bytes, verdict): &Reply) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = u64::from(listener.local_addr().unwrap().port());
    let victim = host.victim();
    let to = host.device.address();
    host.device
        .connect(&victim.qp, to, port, Some(PATIENCE), b"hello")
        .unwrap();
    let accept = || {
        let peer = listener.accept().unwrap().0;
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer
    };
    let mut peer = accept();
    let mut asked = Vec::new();
    receive_frame(&mut peer, Kind::Request, &mut asked).unwrap();
    let expected = request(
        ENHANCED,
        2,
        &[&words(A | 4, C | D | 4)[..], b"hello"].concat(),
    );
    assert_eq!(asked, expected, "{name}");
    let (first, second) = bytes.split_at(bytes.len() / 2);
    write_all(&mut peer, first);
    write_all(&mut peer, second);
    let event = || victim.events.recv_timeout(PATIENCE).unwrap();
    match *verdict {
        Verdict::Closed => {
            let _ = peer.shutdown(Shutdown::Write);
            assert_eq!(event(), CmEvent::NonPeerRejected, "{name}");
            assert!(read_to_end(&mut peer).0.is_empty(), "{name}");
        }
        Verdict::Terminate(code) => {
            assert_eq!(event(), CmEvent::NonPeerRejected, "{name}");
            let (found, _) = read_to_end(&mut peer);
            assert_eq!(found, terminate((2, 0, code), 0, &[]), "{name}");
        }
        Verdict::Rejected(len) => match event() {
            CmEvent::PeerRejected { private_data } => assert_eq!(private_data.len(), len, "{name}"),
            event => panic!("{name}: {event:?}"),
        },
        Verdict::Again => {
            let mut peer = accept();
            let mut asked = Vec::new();
            receive_frame(&mut peer, Kind::Request, &mut asked).unwrap();
            assert_eq!(asked, request(CRC, 1, b"hello"), "{name}");
            write_all(&mut peer, &reply(CRC, 1, b""));
            check_works(host, &victim, &mut peer, name);
        }
        Verdict::Write | Verdict::Read => {
            if *name == "reply-fpdu-behind" {
                let event = event();
                assert!(
                    matches!(event, CmEvent::Established { .. }),
                    "{name}: {event:?}"
                );
                let wr = RecvWr {
                    wr_id: 1,
                    sges: &[host.arena.sge(Region::Local, 0, 64)],
                    flags: WrFlags::empty(),
                };
                victim.qp.post_recv(&wr).unwrap();
                assert_eq!(completion(&host.device, &victim.cq).byte_len, 5, "{name}");
                return;
            }
            check_works(host, &victim, &mut peer, name);
            let mut first = [0; 2];
            std::io::Read::read_exact(&mut peer, &mut first).unwrap();
            // The length of a tagged and that of a Read Request.
            let expected = if *verdict == Verdict::Read { 46 } else { 14 };
            assert_eq!(first, [0, expected], "{name}");
            if *verdict == Verdict::Read {
                // The answer to that read has no bytes.
                write_all(&mut peer, &tagged(OP_READ_RESPONSE, 0, 0, b"x"));
                assert_eq!(event(), CmEvent::Broken, "{name}");
            }
            if *name == "reply-ird-0" {
                let wr = SendWr {
                    wr_id: 2,
                    op: SendOp::RdmaRead {
                        remote: Remote { addr: 1, rkey: 1 },
                        len: 8,
                    },
                    sges: &[host.arena.sge(Region::Local, 0, 8)],
                    flags: WrFlags::empty(),
                };
                victim.qp.post_send(&wr).unwrap();
                let failed = completion(&host.device, &victim.cq);
                assert_eq!(failed.status, WcStatus::LocalQpOperation, "{name}");
            }
        }
    }
    if !matches!(verdict, Verdict::Again) {
        listener.set_nonblocking(true).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(listener.accept().is_err(), "{name}: another attempt");
    }
}

#[test]
fn every_rule_for_replies() {
    let host = Host::new("127.0.0.1 path=tcp");
    let replies = replies();
    for reply in &replies {
        run_reply(&host, reply);
        host.check_honest();
    }
    let rows: Vec<Row> = replies
        .iter()
        .map(|(name, section, sends, _, verdict)| Row {
            name,
            section,
            sends,
            answer: verdict.to_string(),
        })
        .collect();
    rows::check_document("Replies", &rows.iter().collect::<Vec<_>>());
}
