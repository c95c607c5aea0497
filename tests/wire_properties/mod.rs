//! What must hold for any bytes that a peer may send: shared by `tests/fuzz_wire.rs`, which
//! runs it on random bytes in every test run, and the targets in `fuzz/`, which search.

use dat_core::testing::device::soft::iwarp::acknowledge::{
    self, ACKNOWLEDGE_FPDU_MAX, Acknowledge, Note,
};
use dat_core::testing::device::soft::iwarp::extensions::{
    AtomicRequest, AtomicResponse, Immediate,
};
use dat_core::testing::device::soft::iwarp::fpdu::{self, Decoded, Fpdu, Header, Peek};
use dat_core::testing::device::soft::iwarp::mpa::{
    DEPTH_MAX, FRAME_MAX, Failure, Frame, Kind, Local, Parsed, Rtr, parse,
};
use dat_core::testing::device::soft::iwarp::rdmap::{ReadRequest, Segment};
use dat_core::testing::device::soft::iwarp::sequence::RxSequence;
use dat_core::testing::device::soft::iwarp::terminate::{TERMINATE_FPDU_MAX, Terminate, encode};
use dat_core::testing::device::soft::iwarp::wire::{
    FPDU_CRC, FPDU_TRAILER_MAX, READ_REQUEST_HDR, TAGGED_HDR, UNTAGGED_HDR, WireError,
};

/// Any bytes as a request and as a reply.
pub fn mpa_frame(data: &[u8]) {
    let local = Local {
        crc: data.len().is_multiple_of(2),
        ird: 16,
        ord: 16,
        rtr: Rtr::WRITE | Rtr::READ,
        acknowledge: true,
        extensions: true,
    };
    for kind in [Kind::Request, Kind::Reply] {
        match parse(kind, data) {
            Ok(Parsed::Frame(frame, consumed)) => {
                assert!(consumed <= data.len().min(FRAME_MAX));
                frame_holds(&frame);
                incremental(kind, &data[..consumed]);
                match kind {
                    Kind::Request => request_holds(&frame, &local),
                    Kind::Reply => reply_holds(&frame, &local),
                }
            }
            Ok(Parsed::NeedMore(more)) => {
                assert!(more > 0 && data.len() + more <= FRAME_MAX);
            }
            Err(error) => assert_eq!(error, WireError::MPA_NEGOTIATION),
        }
    }
}

fn frame_holds(frame: &Frame<'_>) {
    let mut out = [0; FRAME_MAX];
    let bytes = frame.encode(&mut out).expect("a parsed frame fits");
    assert_eq!(
        parse(frame.kind, bytes),
        Ok(Parsed::Frame(*frame, bytes.len()))
    );
}

fn incremental(kind: Kind, frame: &[u8]) {
    let mut have = 0;
    while let Ok(Parsed::NeedMore(more)) = parse(kind, &frame[..have]) {
        have += more;
        assert!(more > 0 && have <= frame.len());
    }
    assert_eq!(have, frame.len());
}

/// Whatever we answer, a peer that asked like us can conclude.
fn request_holds(request: &Frame<'_>, local: &Local) {
    assert!(request.rejection(b"no").reject);
    let Ok((reply, agreed)) = request.answer(local, b"yes") else {
        return;
    };
    frame_holds(&reply);
    assert!(!request.markers && !reply.reject);
    assert_eq!(agreed.crc, request.crc || local.crc);
    assert!(agreed.ird <= local.ird && agreed.ord <= local.ord);
    let theirs = request.enhanced;
    assert_eq!(agreed.rtr.is_some(), theirs.is_some_and(|e| e.peer_to_peer));
    let peer = Local {
        crc: request.crc,
        ird: theirs.map_or(1, |e| e.ird.min(DEPTH_MAX)),
        ord: theirs.map_or(1, |e| e.ord.min(DEPTH_MAX)),
        rtr: agreed.rtr.unwrap_or_default(),
        acknowledge: agreed.acknowledge,
        extensions: agreed.extensions,
    };
    let revision = if theirs.is_some() { 2 } else { 1 };
    let there = peer
        .conclude(revision, &reply)
        .expect("an answer to conclude");
    assert_eq!(
        (there.crc, there.rtr, there.acknowledge, there.extensions),
        (
            agreed.crc,
            agreed.rtr,
            agreed.acknowledge,
            agreed.extensions
        )
    );
}

fn reply_holds(reply: &Frame<'_>, local: &Local) {
    for revision in [1, 2] {
        match local.conclude(revision, reply) {
            Ok(agreed) => {
                assert!(!reply.reject && !reply.markers);
                assert!(agreed.ird <= local.ird && agreed.ord <= local.ord);
                assert_eq!(agreed.rtr.is_some(), revision == 2);
            }
            Err(Failure::Rejected) => assert!(reply.reject),
            Err(Failure::Revision1) => assert!(reply.revision < revision),
            Err(Failure::Error(error)) => assert!(WireError::NAMED.iter().any(|e| e.0 == error)),
        }
    }
}

/// Any bytes as the stream of a connection. The first byte says whether CRCs are on.
/// Returns how many FPDUs were good.
pub fn fpdu_stream(data: &[u8]) -> usize {
    let Some((&mode, mut rest)) = data.split_first() else {
        return 0;
    };
    let crc = mode & 1 != 0;
    let mut rx = RxSequence::new();
    let mut good = 0;
    loop {
        match fpdu::decode(rest, crc) {
            Ok(Decoded::Fpdu(fpdu)) => {
                let bytes = &rest[..fpdu.consumed];
                fpdu_holds(&fpdu, bytes, crc);
                rest = &rest[fpdu.consumed..];
                let judged = match &fpdu.header {
                    Some(header) => segment_holds(header, fpdu.payload, &mut rx),
                    None => Ok(()),
                };
                if let Err(error) = judged {
                    terminate_holds(error, bytes, crc);
                    return good;
                }
                good += 1;
            }
            Ok(Decoded::NeedMore(more)) => {
                assert!(more > 0 && rest.len() + more <= 0x1_0008);
                return good;
            }
            Err(error) => {
                terminate_holds(error, rest, crc);
                return good;
            }
        }
    }
}

/// The header encodes to what it was decoded from, and every way to decode agrees.
fn fpdu_holds(fpdu: &Fpdu<'_>, bytes: &[u8], crc: bool) {
    let Ok(Peek::Layout(layout)) = fpdu::peek(bytes) else {
        panic!("decoded, but without a header");
    };
    assert_eq!(
        (layout.header, layout.payload_len, layout.total()),
        (fpdu.header, fpdu.payload.len(), fpdu.consumed)
    );
    assert_eq!(fpdu.consumed % 4, 0);
    let mut tagged = [0; TAGGED_HDR];
    let mut untagged = [0; UNTAGGED_HDR];
    let header: &[u8] = match fpdu.header {
        None => &[0, 0],
        Some(Header::Tagged(header)) => {
            header
                .encode(fpdu.payload.len(), &mut tagged)
                .expect("fits");
            &tagged
        }
        Some(Header::Untagged(header)) => {
            header
                .encode(fpdu.payload.len(), &mut untagged)
                .expect("fits");
            &untagged
        }
    };
    assert_eq!(header, &bytes[..layout.header_len]);
    assert_eq!(
        fpdu.payload,
        &bytes[layout.header_len..][..layout.payload_len]
    );
    if crc {
        let mut running = dat_core::testing::device::soft::iwarp::crc::Crc::new();
        running.update(header);
        running.update(fpdu.payload);
        let end = &bytes[layout.header_len + layout.payload_len..];
        assert_eq!(fpdu::check_trailer(end, running), Ok(()));
        let mut trailer = [0; FPDU_TRAILER_MAX];
        let sealed = fpdu::seal(true, header, [fpdu.payload], &mut trailer);
        assert_eq!(sealed.len(), end.len());
    }
}

fn segment_holds(header: &Header, payload: &[u8], rx: &mut RxSequence) -> Result<(), WireError> {
    let segment = Segment::classify_all(header, payload.len())?;
    rx.accept(&segment, payload.len())?;
    match segment {
        Segment::Write { to, .. } | Segment::ReadResponse { to, .. } => {
            assert!(to.checked_add(payload.len() as u64).is_some());
        }
        Segment::Send { mo, .. } => assert!(mo.checked_add(payload.len() as u32).is_some()),
        Segment::ReadRequest { msn } => {
            let request = ReadRequest::parse(payload)?;
            let mut out = [0; READ_REQUEST_HDR];
            request.encode(msn, &mut out);
            assert_eq!(&out[UNTAGGED_HDR..], payload);
        }
        Segment::AtomicRequest { msn } => {
            let request = AtomicRequest::parse(payload)?;
            assert_eq!(
                AtomicRequest::parse(&request.encode(msn)[UNTAGGED_HDR..]),
                Ok(request)
            );
        }
        Segment::AtomicResponse { msn } => {
            let response = AtomicResponse::parse(payload)?;
            assert_eq!(&response.encode(msn)[UNTAGGED_HDR..], payload);
        }
        Segment::Immediate { msn, solicited } => {
            let immediate = Immediate::parse(payload)?;
            let bytes = immediate.encode(msn, solicited, false);
            assert_eq!(&bytes[UNTAGGED_HDR..], payload);
            rx.end_write(immediate.written)?;
        }
        Segment::Terminate { .. } => {
            Terminate::parse(payload)?;
        }
        Segment::Acknowledge { msn } => {
            let note = Acknowledge::parse_note(payload)?;
            let count = acknowledge::count_in(header).expect("an acknowledgement has a count");
            let mut out = [0; ACKNOWLEDGE_FPDU_MAX];
            let bytes = Acknowledge { count, note }.encode(msn, false, &mut out);
            assert_eq!(bytes.len(), UNTAGGED_HDR + payload.len() + FPDU_CRC);
            if note != Some(Note::Ended) {
                assert_eq!(&bytes[UNTAGGED_HDR..][..payload.len()], payload);
            }
        }
    }
    Ok(())
}

/// Any error can be reported, about any bytes, and is read back as what it is.
fn terminate_holds(error: WireError, offending: &[u8], crc: bool) {
    let mut out = [0; TERMINATE_FPDU_MAX];
    let bytes = encode(error, offending, crc, &mut out);
    let Ok(Decoded::Fpdu(fpdu)) = fpdu::decode(bytes, crc) else {
        panic!("our own Terminate does not decode");
    };
    assert_eq!(fpdu.consumed, bytes.len());
    let header = fpdu.header.expect("not empty");
    let segment = Segment::classify(&header, fpdu.payload.len());
    assert_eq!(segment, Ok(Segment::Terminate { msn: 1 }));
    let found = Terminate::parse(fpdu.payload).expect("complete");
    assert_eq!(found.error, error);
    if let (Some(header), Ok(Peek::Layout(layout))) = (found.header, fpdu::peek(offending)) {
        assert_eq!(Some(header), layout.header);
    }
}
