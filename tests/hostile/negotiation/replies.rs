//! Replies: what the library does with the answer of a peer that it has asked for a connection.

use std::net::{Shutdown, TcpListener};
use std::time::Duration;

use dat_core::testing::device::soft::iwarp::mpa::Kind;
use dat_core::testing::device::soft::iwarp::wire::*;
use dat_core::testing::device::*;

use super::{A, B, C, CRC, Case, D, ENHANCED, case, check_works, frame_of, reply, request, words};
use crate::driver::Rule;
use crate::iwarp::{read_to_end, receive_frame, send, tagged, terminate, untagged, write_all};
use crate::poll::completion;
use crate::rows::Row;
use crate::soft::PATIENCE;
use crate::victim::Host;

/// What an initiator does with a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
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

/// The cases.
pub fn cases() -> Vec<Case<Verdict>> {
    use Verdict::{Again, Closed, Read, Rejected, Terminate, Write};
    let with = |ird, ord| reply(ENHANCED, 2, &words(ird, ord));
    let mut wrong_key = with(A | 4, C | 4);
    wrong_key[8] ^= 0x20;
    let mut behind = with(A | 4, C | 4);
    behind.extend(untagged(send(1), b"early"));
    vec![
        case(
            "reply-key",
            "5044 7.1.1",
            "a wrong byte of the key",
            wrong_key,
            Closed,
        ),
        case(
            "reply-key-request",
            "5044 7.1.1",
            "the key of a request",
            request(ENHANCED, 2, &words(A | 4, C | 4)),
            Closed,
        ),
        case(
            "reply-torn",
            "5044 7.1.2",
            "half a reply, then the end of the stream",
            with(A | 4, C | 4)[..21].to_vec(),
            Closed,
        ),
        case(
            "reply-nothing",
            "5044 7.1.2",
            "nothing but the end of the stream",
            Vec::new(),
            Closed,
        ),
        case(
            "reply-revision-0",
            "5044 7.1.1, 6581 6",
            "revision 0",
            reply(CRC, 0, b""),
            Closed,
        ),
        case(
            "reply-revision-3",
            "5044 7.1.1, 6581 6",
            "revision 3",
            reply(ENHANCED, 3, &words(A | 4, C | 4)),
            Closed,
        ),
        case(
            "reply-revision-1",
            "6581 6",
            "revision 1 to a request of revision 2",
            reply(CRC, 1, b""),
            Again,
        ),
        case(
            "reply-private-513",
            "5044 7.1.1",
            "513 bytes of private data",
            frame_of(&KEY_REPLY, ENHANCED, 2, 513, &[0; 600]),
            Closed,
        ),
        case(
            "reply-private-short",
            "5044 7.1.1",
            "less private data than stated, then the end of the stream",
            frame_of(&KEY_REPLY, ENHANCED, 2, 512, &[0; 100]),
            Closed,
        ),
        case(
            "reply-markers",
            "5044 7.1.1",
            "markers, which the library has not",
            reply(ENHANCED | 0x80, 2, &words(A | 4, C | 4)),
            Terminate(4),
        ),
        case(
            "reply-words-none",
            "6581 6",
            "no words of RFC 6581 to a request with them",
            reply(CRC, 2, b"hi"),
            Terminate(4),
        ),
        case(
            "reply-words-half",
            "6581 6",
            "the flag and three bytes",
            reply(ENHANCED, 2, &[0x80, 4, 0x80]),
            Closed,
        ),
        case(
            "reply-ord-5",
            "6581 9.1",
            "an ORD above the IRD of the request",
            with(A | 4, C | 5),
            Terminate(6),
        ),
        case(
            "reply-ord-3ffe",
            "6581 9.1",
            "ORD 0x3ffe",
            with(A | 4, C | 0x3ffe),
            Terminate(6),
        ),
        case(
            "reply-ord-3fff",
            "6581 9.1",
            "ORD 0x3fff: not negotiated",
            with(A | 4, C | 0x3fff),
            Write,
        ),
        case(
            "reply-ird-0",
            "6581 9.1",
            "IRD 0: the library may not read",
            with(A, C),
            Write,
        ),
        case(
            "reply-ird-3fff",
            "6581 9.1",
            "IRD 0x3fff: not negotiated",
            with(A | 0x3fff, C),
            Write,
        ),
        case(
            "reply-rtr-none",
            "6581 9.2",
            "no kind of first message",
            with(A | 4, 4),
            Terminate(7),
        ),
        case(
            "reply-rtr-fpdu",
            "6581 9.2",
            "an empty FPDU, which was not offered",
            with(A | B | 4, 4),
            Terminate(7),
        ),
        case(
            "reply-rtr-read",
            "6581 9.2",
            "a Read as the first message",
            with(A | 4, D | 4),
            Read,
        ),
        case(
            "reply-rtr-all",
            "6581 9.2",
            "all kinds of first message",
            with(A | B | 4, C | D | 4),
            Write,
        ),
        case(
            "reply-flags-mirrored",
            "5044 7.1.1",
            "the reserved flags of the request, as Linux siw does: nothing of ours is agreed",
            reply(
                ENHANCED | MPA_ACKNOWLEDGE_OFFER | MPA_EXTENSIONS,
                2,
                &words(A | 4, C | 4),
            ),
            Write,
        ),
        case(
            "reply-reserved-flags",
            "5044 7.1.1",
            "all reserved flags, which are ignored",
            reply(ENHANCED | 0x0f, 2, &words(A | 4, C | 4)),
            Write,
        ),
        case(
            "reply-no-crc",
            "5044 7.1.1",
            "no CRCs, which the library wants",
            reply(0x10, 2, &words(A | 4, C | 4)),
            Write,
        ),
        case(
            "reply-reject",
            "5044 7.1.1",
            "a rejection with private data",
            reply(ENHANCED | 0x20, 2, &[&words(0, 0)[..], b"no"].concat()),
            Rejected(2),
        ),
        case(
            "reply-reject-no-words",
            "6581 6",
            "a rejection without the words",
            reply(ENHANCED | 0x20, 2, b""),
            Rejected(0),
        ),
        case(
            "reply-reject-all-flags",
            "5044 7.1.1",
            "a rejection with every flag and depth",
            reply(0xff, 2, &words(0xffff, 0xffff)),
            Rejected(0),
        ),
        case(
            "reply-fpdu-behind",
            "5044 7.1.2",
            "an FPDU right behind the reply; it is processed after the first message",
            behind,
            Write,
        ),
    ]
}

impl Rule for Case<Verdict> {
    fn row(&self) -> &Row {
        &self.row
    }

    fn run(&self, host: &Host) {
        let Case {
            row: Row { name, .. },
            bytes,
            answer: verdict,
        } = self;
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
            ENHANCED | MPA_ACKNOWLEDGE_OFFER | MPA_EXTENSIONS,
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
                CmEvent::PeerRejected { private_data } => {
                    assert_eq!(private_data.len(), len, "{name}")
                }
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
                    victim.receive(&host.arena, 1, 0, 64);
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
                    victim.read(&host.arena, 2, 0);
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
}
