use proptest::prelude::*;

use super::super::mpa::{
    Agreed, DEPTH_MAX, DEPTH_UNNEGOTIATED, Enhanced, FRAME_MAX, Failure, Frame, Kind, Local,
    PRIVATE_MAX, Parsed, Rtr, parse,
};
use super::super::wire::{MPA_EXTENSIONS, WireError};
use super::{fixed, hex};

const REQUEST_KEY: &str = "4d504120494420526571204672616d65";
const REPLY_KEY: &str = "4d504120494420526570204672616d65";

const PLAIN: Local = Local {
    crc: false,
    ird: 4,
    ord: 8,
    rtr: Rtr::empty(),
    acknowledge: false,
    extensions: false,
};
const PEER: Local = Local {
    crc: true,
    ird: 32,
    ord: 16,
    rtr: Rtr::WRITE.union(Rtr::READ),
    acknowledge: false,
    extensions: false,
};

fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    frame.encode(&mut [0; FRAME_MAX]).expect("fits").to_vec()
}

fn parsed(kind: Kind, bytes: &[u8]) -> Frame<'_> {
    match parse(kind, bytes) {
        Ok(Parsed::Frame(frame, consumed)) if consumed == bytes.len() => frame,
        other => panic!("{other:?}"),
    }
}

fn enhanced(ird: u16, ord: u16, peer_to_peer: bool, rtr: Rtr) -> Enhanced {
    Enhanced {
        ird,
        ord,
        peer_to_peer,
        rtr,
    }
}

#[test]
fn golden_requests() {
    let one = hex(&format!("{REQUEST_KEY} 40 01 0004 70696e67"));
    let request = Local { crc: true, ..PLAIN }.request(1, b"ping");
    assert_eq!(bytes(&request), one);
    assert_eq!(parsed(Kind::Request, &one), request);

    let two = hex(&format!("{REQUEST_KEY} 50 02 0006 8020 c010 6869"));
    let request = PEER.request(2, b"hi");
    assert_eq!(bytes(&request), two);
    assert_eq!(parsed(Kind::Request, &two), request);
    assert_eq!(
        request.enhanced,
        Some(enhanced(32, 16, true, Rtr::WRITE | Rtr::READ))
    );

    // As siw sends by default: revision 2, no CRC, not peer-to-peer.
    let siw = hex(&format!("{REQUEST_KEY} 10 02 0004 0004 0008"));
    assert_eq!(parsed(Kind::Request, &siw), PLAIN.request(2, &[]));
}

#[test]
fn golden_replies() {
    let request = PEER.request(2, b"hi");
    let (reply, agreed) = request
        .answer(
            &Local {
                rtr: Rtr::all(),
                ..PLAIN
            },
            b"yes",
        )
        .expect("ok");
    let expected = hex(&format!("{REPLY_KEY} 50 02 0007 8004 8008 796573"));
    assert_eq!(bytes(&reply), expected);
    assert_eq!(
        agreed,
        Agreed {
            crc: true,
            ird: 4,
            ord: 8,
            rtr: Some(Rtr::WRITE),
            acknowledge: false,
            extensions: false,
            long_fpdus: false
        }
    );
    let concluded = PEER.conclude(2, &parsed(Kind::Reply, &expected));
    assert_eq!(
        concluded,
        Ok(Agreed {
            crc: true,
            ird: 32,
            ord: 4,
            rtr: Some(Rtr::WRITE),
            acknowledge: false,
            extensions: false,
            long_fpdus: false
        })
    );

    let refusal = hex(&format!("{REPLY_KEY} 70 02 0006 0000 0000 6e6f"));
    assert_eq!(bytes(&request.rejection(b"no")), refusal);
    let reply = parsed(Kind::Reply, &refusal);
    assert_eq!(reply.private_data, b"no");
    assert_eq!(PEER.conclude(2, &reply), Err(Failure::Rejected));

    let refusal = hex(&format!("{REPLY_KEY} 20 01 0002 6e6f"));
    assert_eq!(bytes(&PLAIN.request(1, &[]).rejection(b"no")), refusal);
}

#[test]
fn crc_if_either_side_asks() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let initiator = Local { crc: ours, ..PLAIN };
        let responder = Local {
            crc: theirs,
            ..PLAIN
        };
        for revision in [1, 2] {
            let request = initiator.request(revision, &[]);
            let (reply, there) = request.answer(&responder, &[]).expect("accepted");
            let here = initiator.conclude(revision, &reply).expect("accepted");
            assert_eq!((here.crc, there.crc), (ours || theirs, ours || theirs));
        }
    }
    // A reply that does not repeat our wish does not take it back.
    let reply = Frame {
        kind: Kind::Reply,
        ..PLAIN.request(1, &[])
    };
    let crc = Local { crc: true, ..PLAIN };
    assert!(crc.conclude(1, &reply).expect("accepted").crc);
}

/// Both ends have to know acknowledgements. An end that answers with the bits of the request, as
/// Linux siw does, does not.
#[test]
fn acknowledgements() {
    let able = |acknowledge| Local {
        acknowledge,
        ..PEER
    };
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let request = able(ours).request(2, &[]);
        let asked = bytes(&request);
        assert_eq!(asked[16], if ours { 0x54 } else { 0x50 });
        let (reply, there) = request.answer(&able(theirs), &[]).expect("accepted");
        let answered = bytes(&reply);
        assert_eq!(answered[16], if ours && theirs { 0x52 } else { 0x50 });
        let reply = parsed(Kind::Reply, &answered);
        let here = able(ours).conclude(2, &reply).expect("accepted");
        assert_eq!(here.acknowledge, ours && theirs);
        assert_eq!(there.acknowledge, ours && theirs);

        let mut mirrored = answered;
        mirrored[16] = asked[16];
        let reply = parsed(Kind::Reply, &mirrored);
        let here = able(ours).conclude(2, &reply).expect("accepted");
        assert!(!here.acknowledge);
        mirrored[16] |= 0x0f;
        let reply = parsed(Kind::Reply, &mirrored);
        let here = able(ours).conclude(2, &reply).expect("accepted");
        assert!(!here.acknowledge);
    }
    assert!(!able(true).request(1, &[]).acknowledge);
    let without = Frame {
        enhanced: None,
        ..able(true).request(2, &[])
    };
    let (_, agreed) = without.answer(&able(true), &[]).expect("accepted");
    assert!(!agreed.acknowledge);
}

/// Both ends have to know the operations of RFC 7306, and acknowledgements. An end that knows only
/// acknowledgements, or answers with the bits of the request, does not notice.
#[test]
fn extensions() {
    let able = |extensions| Local {
        acknowledge: true,
        extensions,
        ..PEER
    };
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let asked = bytes(&able(ours).request(2, &[]));
        assert_eq!(asked[16], if ours { 0x5c } else { 0x54 });
        let request = parsed(Kind::Request, &asked);
        let (reply, there) = request.answer(&able(theirs), &[]).expect("accepted");
        let answered = bytes(&reply);
        assert_eq!(answered[16], if ours && theirs { 0x5a } else { 0x52 });
        let reply = parsed(Kind::Reply, &answered);
        let here = able(ours).conclude(2, &reply).expect("accepted");
        assert!(here.acknowledge && there.acknowledge);
        assert_eq!(here.extensions, ours && theirs);
        assert_eq!(there.extensions, ours && theirs);

        // What was not asked for is not agreed on.
        let mut offered = answered;
        offered[16] |= MPA_EXTENSIONS;
        let reply = parsed(Kind::Reply, &offered);
        let here = able(ours).conclude(2, &reply).expect("accepted");
        assert_eq!(here.extensions, ours);
        offered[16] = asked[16];
        let reply = parsed(Kind::Reply, &offered);
        let here = able(ours).conclude(2, &reply).expect("accepted");
        assert!(!here.extensions && !here.acknowledge);
    }
    // Alone the bit is that of Linux siw.
    let mut asked = bytes(&able(true).request(2, &[]));
    asked[16] = 0x58;
    assert!(!parsed(Kind::Request, &asked).extensions);
    let without = Local {
        acknowledge: false,
        ..able(true)
    };
    assert_eq!(bytes(&without.request(2, &[]))[16], 0x50);
    assert_eq!(bytes(&able(true).request(1, &[]))[16], 0x40);
}

#[test]
fn depths() {
    let initiator = Local {
        ird: 3,
        ord: 100,
        ..PLAIN
    };
    let (reply, there) = initiator
        .request(2, &[])
        .answer(&PLAIN, &[])
        .expect("accepted");
    assert_eq!((there.ird, there.ord), (4, 3));
    assert_eq!(reply.enhanced, Some(enhanced(4, 3, false, Rtr::empty())));
    let here = initiator.conclude(2, &reply).expect("accepted");
    assert_eq!((here.ird, here.ord), (3, 4));

    let greedy = Frame {
        enhanced: Some(enhanced(4, 4, false, Rtr::empty())),
        ..reply
    };
    let error = Failure::Error(WireError::MPA_IRD);
    assert_eq!(initiator.conclude(2, &greedy), Err(error));

    // Revision 1 says nothing about depths.
    let (reply, there) = initiator
        .request(1, &[])
        .answer(&PLAIN, &[])
        .expect("accepted");
    assert_eq!((there.ird, there.ord), (4, 8));
    let here = initiator.conclude(1, &reply).expect("accepted");
    assert_eq!((here.ird, here.ord), (3, 100));
}

#[test]
fn depths_left_to_the_consumers() {
    let open = enhanced(DEPTH_UNNEGOTIATED, DEPTH_UNNEGOTIATED, false, Rtr::empty());
    let request = Frame {
        enhanced: Some(open),
        ..PLAIN.request(2, &[])
    };
    let (reply, agreed) = request.answer(&PLAIN, &[]).expect("accepted");
    assert_eq!(reply.enhanced, Some(open));
    assert_eq!((agreed.ird, agreed.ord), (PLAIN.ird, PLAIN.ord));
    let here = PLAIN.conclude(2, &reply).expect("accepted");
    assert_eq!((here.ird, here.ord), (PLAIN.ird, PLAIN.ord));
    // Our own wishes never read as that.
    let request = Local {
        ird: u16::MAX,
        ord: u16::MAX,
        ..PLAIN
    }
    .request(2, &[]);
    let owner_state = request.enhanced.expect("revision 2");
    assert_eq!((owner_state.ird, owner_state.ord), (DEPTH_MAX, DEPTH_MAX));
}

#[test]
fn ready_to_receive() {
    for (offered, known, expected) in [
        (Rtr::all(), Rtr::all(), Ok(Some(Rtr::WRITE))),
        (Rtr::READ | Rtr::FPDU, Rtr::all(), Ok(Some(Rtr::READ))),
        (Rtr::all(), Rtr::FPDU, Ok(Some(Rtr::FPDU))),
        (Rtr::empty(), Rtr::all(), Ok(None)),
        (Rtr::READ, Rtr::WRITE, Err(WireError::MPA_RTR)),
    ] {
        let initiator = Local {
            rtr: offered,
            ..PLAIN
        };
        let request = initiator.request(2, &[]);
        let answer = request.answer(
            &Local {
                rtr: known,
                ..PLAIN
            },
            &[],
        );
        assert_eq!(
            answer.map(|(_, agreed)| agreed.rtr),
            expected,
            "{offered:?} {known:?}"
        );
        if let Ok((reply, _)) = answer {
            assert_eq!(
                initiator.conclude(2, &reply).map(|agreed| agreed.rtr),
                Ok(expected.unwrap())
            );
        }
    }
    // Peer-to-peer without a choice: we propose a Write.
    let vague = Some(enhanced(1, 1, true, Rtr::empty()));
    let (reply, agreed) = Frame {
        enhanced: vague,
        ..PLAIN.request(2, &[])
    }
    .answer(&PEER, &[])
    .expect("accepted");
    assert_eq!(agreed.rtr, Some(Rtr::WRITE));
    // A responder that ignores the matter, and one that answers with all it knows.
    let reply_with = |rtr| Frame {
        enhanced: Some(enhanced(1, 1, true, rtr)),
        ..reply
    };
    let error = Failure::Error(WireError::MPA_RTR);
    assert_eq!(PEER.conclude(2, &reply_with(Rtr::FPDU)), Err(error));
    let several = PEER.conclude(2, &reply_with(Rtr::all())).expect("accepted");
    assert_eq!(several.rtr, Some(Rtr::WRITE));
}

#[test]
fn markers_are_refused() {
    let request = Frame {
        markers: true,
        ..PLAIN.request(2, &[])
    };
    assert_eq!(request.answer(&PLAIN, &[]), Err(WireError::MPA_NEGOTIATION));
    let refusal = request.rejection(&[]);
    assert!(refusal.reject && !refusal.markers);
    let (reply, _) = PLAIN.request(2, &[]).answer(&PLAIN, &[]).expect("accepted");
    let reply = Frame {
        markers: true,
        ..reply
    };
    let error = Failure::Error(WireError::MPA_NEGOTIATION);
    assert_eq!(PLAIN.conclude(2, &reply), Err(error));
}

#[test]
fn revisions() {
    let (old, _) = PLAIN.request(1, &[]).answer(&PLAIN, &[]).expect("accepted");
    assert_eq!(PLAIN.conclude(2, &old), Err(Failure::Revision1));
    let bare = Frame { revision: 2, ..old };
    let error = Failure::Error(WireError::MPA_NEGOTIATION);
    assert_eq!(PLAIN.conclude(2, &bare), Err(error));
    for (revision, valid) in [(0, false), (1, true), (2, true), (3, false), (255, false)] {
        let mut frame = bytes(&PLAIN.request(1, &[]));
        frame[17] = revision;
        assert_eq!(parse(Kind::Request, &frame).is_ok(), valid, "{revision}");
    }
    // In revision 1 the bit of the enhanced header is reserved, and ignored like the others.
    let frame = hex(&format!("{REQUEST_KEY} 1f 01 0005 8020c01000"));
    assert_eq!(
        parsed(Kind::Request, &frame).private_data,
        hex("8020c01000")
    );
}

#[test]
fn malformed_frames() {
    let bad = |kind, text: &str| {
        assert_eq!(
            parse(kind, &hex(text)),
            Err(WireError::MPA_NEGOTIATION),
            "{text}"
        );
    };
    bad(Kind::Reply, REQUEST_KEY);
    bad(Kind::Request, REPLY_KEY);
    bad(Kind::Request, "47");
    bad(Kind::Request, &format!("{REQUEST_KEY} 00 01 0201"));
    // Too short for the enhanced header, unless it is siw's refusal of just that.
    bad(Kind::Request, &format!("{REQUEST_KEY} 30 02 0003 000000"));
    bad(Kind::Reply, &format!("{REPLY_KEY} 10 02 0000"));
    let refusal = hex(&format!("{REPLY_KEY} 30 02 0000"));
    assert!(parsed(Kind::Reply, &refusal).reject);
    // Requests cannot reject: the bit is reserved there.
    let request = hex(&format!("{REQUEST_KEY} 20 01 0000"));
    assert!(!parsed(Kind::Request, &request).reject);
}

#[test]
fn most_private_data() {
    let data = [7; PRIVATE_MAX + 5];
    let largest = PLAIN.request(2, &data[..PRIVATE_MAX]);
    assert_eq!(bytes(&largest).len(), FRAME_MAX);
    assert_eq!(parsed(Kind::Request, &bytes(&largest)), largest);
    let encode = |frame: Frame<'_>| frame.encode(&mut [0; FRAME_MAX]).map(<[u8]>::len);
    let error = Err(WireError::MPA_NEGOTIATION);
    assert_eq!(encode(PLAIN.request(2, &data[..PRIVATE_MAX + 1])), error);
    assert_eq!(
        encode(PLAIN.request(1, &data[..PRIVATE_MAX + 4])),
        Ok(FRAME_MAX)
    );
    assert_eq!(encode(PLAIN.request(1, &data)), error);
}

proptest! {
    #![proptest_config(fixed())]

    #[test]
    fn frames_round_trip_and_arrive_in_pieces(
        request: bool, crc: bool, markers: bool, reject: bool, with: bool, p2p: bool,
        depths: [u16; 2], rtr in 0u8..8, acknowledge: bool, extensions: bool, long: bool,
        data in prop::collection::vec(any::<u8>(), 0..=PRIVATE_MAX),
        behind in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let (kind, reject) =
            if request { (Kind::Request, false) } else { (Kind::Reply, reject) };
        let [ird, ord] = depths.map(|depth| depth & DEPTH_UNNEGOTIATED);
        let enhanced = with.then(|| enhanced(ird, ord, p2p, Rtr::from_bits_truncate(rtr)));
        let revision = if with { 2 } else { 1 };
        let (private_data, extensions) = (&data[..], acknowledge && extensions);
        let frame = Frame {
            kind, revision, markers, crc, reject, acknowledge, extensions, enhanced, private_data,
            long_fpdus: acknowledge || long,
        };
        let mut stream = bytes(&frame);
        let total = stream.len();
        stream.extend(behind);
        prop_assert_eq!(parse(kind, &stream), Ok(Parsed::Frame(frame, total)));
        let (mut have, mut steps) = (0, 0);
        while let Ok(Parsed::NeedMore(more)) = parse(kind, &stream[..have]) {
            prop_assert!(more > 0 && have + more <= total);
            (have, steps) = (have + more, steps + 1);
        }
        prop_assert_eq!(have, total);
        prop_assert!(steps <= 2);
        // Wherever the stream was cut, the next frame or FPDU is left in the socket.
        for have in 0..total {
            match parse(kind, &stream[..have]) {
                Ok(Parsed::NeedMore(more)) => prop_assert!(more > 0 && have + more <= total),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
