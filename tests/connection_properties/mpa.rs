//! The set-up of a connection over TCP (RFC 5044 section 7.1, RFC 6581): a request or a reply made of
//! right and wrong fields, with anything behind it, in any pieces. The same bytes in other pieces have
//! the same answer and the same end, and a request reaches the program if, and only if, it is one.

use std::cell::OnceCell;
use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};

use dat_core::testing::device::soft::iwarp::fpdu::{self, Decoded};
use dat_core::testing::device::soft::iwarp::mpa::{self, Failure, Kind, Local, Parsed, Rtr};
use dat_core::testing::device::soft::iwarp::wire::*;
use dat_core::testing::device::*;

use super::input::Input;
use super::{event, until, write_pieces};
use crate::iwarp::{dial, fpdus, read_to_end, receive_frame};
use crate::soft::PATIENCE;
use crate::victim::Host;

/// What a listener offers: as [`crate::soft::queue_pair`] makes them.
const OURS: Local = Local {
    crc: true,
    ird: 4,
    ord: 4,
    rtr: Rtr::all(),
    acknowledge: true,
    extensions: true,
};

/// What an input decides.
struct Plan<'a> {
    /// The frame, and what is behind it.
    bytes: Vec<u8>,
    /// Whether the program refuses the request.
    refuse: bool,
    cuts: &'a [u8],
}

/// A frame with fields that are mostly right, and anything behind it.
fn frame(kind: Kind, input: &mut Input<'_>) -> Vec<u8> {
    let mut key = match kind {
        Kind::Request => KEY_REQUEST,
        Kind::Reply => KEY_REPLY,
    };
    match input.byte() {
        // No frame at all.
        0xff => return input.take(600).to_vec(),
        0xfe => key[usize::from(input.byte() % 16)] = input.byte(),
        _ => {}
    }
    let flags = match input.byte() {
        n @ 0..=0x7f => MPA_CRC | MPA_ENHANCED | n & 0xf & n >> 3,
        n => n,
    };
    let revision = input.field(2) as u8;
    let mut private = Vec::new();
    if flags & MPA_ENHANCED != 0 {
        let ird = input.field(u64::from(ENHANCED_PEER_TO_PEER | 4)) as u16;
        let ord = input.field(u64::from(ENHANCED_RTR_WRITE | 4)) as u16;
        private.extend(ird.to_be_bytes());
        private.extend(ord.to_be_bytes());
    }
    let len = match input.byte() {
        0xff => 508,
        0xfe => 509,
        len => usize::from(len / 8),
    };
    private.extend(input.take(len));
    if input.byte() >= 0xf0 {
        private.resize(private.len() + len, 0x11);
    }
    let len = input.field(private.len() as u64) as u16;
    let mut bytes = key.to_vec();
    bytes.extend([flags, revision]);
    bytes.extend(len.to_be_bytes());
    bytes.extend(private);
    match input.byte() {
        0xff => bytes.truncate(usize::from(input.byte())),
        0xe0.. => bytes.extend(input.take(300)),
        0xc0..=0xdf => bytes.extend(crate::iwarp::ready_to_receive()),
        _ => {}
    }
    bytes
}

/// What a connection ends with.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    /// The private data and read depths of the request, if it was delivered.
    request: Option<(Vec<u8>, Option<u32>, Option<u32>)>,
    /// All that the library has sent, but for acknowledgements, which depend on the time.
    sent: Vec<u8>,
    events: Vec<CmEvent>,
}

/// The stream of the library up to its end.
fn rest(peer: &mut TcpStream, sent: &mut Vec<u8>) {
    sent.extend(read_to_end(peer).0);
}

/// FPDUs without those that are acknowledgements.
fn without_acknowledgements(stream: &[u8]) -> Vec<u8> {
    let is_other = |fpdu: &&[u8]| {
        let Ok(Decoded::Fpdu(fpdu)) = fpdu::decode(fpdu, true) else {
            panic!("no FPDU: {fpdu:02x?}");
        };
        let control = fpdu.header.map(|header| header.control());
        control.is_none_or(|control| control.opcode() != OP_ACKNOWLEDGE)
    };
    let others: Vec<&[u8]> = fpdus(stream, true).into_iter().filter(is_other).collect();
    others.concat()
}

/// A peer that asks.
fn ask(host: &Host, plan: &Plan<'_>, cuts: &[u8]) -> Outcome {
    let mut outcome = Outcome {
        request: None,
        sent: Vec::new(),
        events: Vec::new(),
    };
    let parsed = mpa::parse(Kind::Request, &plan.bytes);
    if let Ok(Parsed::Frame(frame, _)) = parsed
        && frame.private_data.starts_with(b"libdat")
    {
        // Perhaps for another listener, by the header of a wide qualifier.
        return outcome;
    }
    let mut peer = dial(host.port);
    write_pieces(host, &mut peer, &Input::cut(&plan.bytes, cuts));
    let Ok(Parsed::Frame(frame, _)) = parsed else {
        if parsed.is_ok() {
            peer.shutdown(Shutdown::Write).unwrap();
        }
        rest(&mut peer, &mut outcome.sent);
        assert!(
            host.requests.try_recv().is_err(),
            "a request out of {parsed:?}"
        );
        assert!(outcome.sent.is_empty(), "an answer to {parsed:?}");
        return outcome;
    };
    let request = until(host, "the request", || host.requests.try_recv().ok());
    assert_eq!(request.private_data(), frame.private_data);
    let (rd_in, rd_out) = (request.peer_rd_in(), request.peer_rd_out());
    outcome.request = Some((request.private_data().to_vec(), rd_in, rd_out));
    if plan.refuse {
        host.device.reject(request, b"no");
        let _ = peer.shutdown(Shutdown::Write);
        rest(&mut peer, &mut outcome.sent);
        return outcome;
    }
    let victim = host.victim();
    host.device.accept(request, &victim.qp, b"yes").unwrap();
    let answer = frame.answer(&OURS, b"yes");
    if let Ok((reply, _)) = &answer {
        let mut bytes = Vec::new();
        receive_frame(&mut peer, Kind::Reply, &mut bytes).unwrap();
        let Ok(Parsed::Frame(found, _)) = mpa::parse(Kind::Reply, &bytes) else {
            panic!("no reply");
        };
        assert_eq!(found, *reply);
        outcome.sent = bytes;
    }
    let _ = peer.shutdown(Shutdown::Write);
    loop {
        let event = event(host, &victim);
        outcome.events.push(event);
        if !matches!(outcome.events.last(), Some(CmEvent::Established { .. })) {
            break;
        }
    }
    assert!(answer.is_ok() || outcome.events == [CmEvent::AcceptError]);
    let mut stream = Vec::new();
    rest(&mut peer, &mut stream);
    if answer.is_ok_and(|(_, agreed)| agreed.acknowledge) {
        stream = without_acknowledgements(&stream);
    }
    outcome.sent.extend(stream);
    outcome
}

/// A peer that answers.
fn answer(host: &Host, plan: &Plan<'_>, cuts: &[u8]) -> Outcome {
    let mut outcome = Outcome {
        request: None,
        sent: Vec::new(),
        events: Vec::new(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = u64::from(listener.local_addr().unwrap().port());
    let victim = host.victim();
    let to = host.device.address();
    let connected = host
        .device
        .connect(&victim.qp, to, port, Some(PATIENCE), b"hello");
    connected.unwrap();
    let mut peer = listener.accept().unwrap().0;
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.set_nodelay(true).unwrap();
    receive_frame(&mut peer, Kind::Request, &mut Vec::new()).unwrap();
    write_pieces(host, &mut peer, &Input::cut(&plan.bytes, cuts));
    let asked = Local {
        rtr: Rtr::WRITE | Rtr::READ,
        ..OURS
    };
    let parsed = mpa::parse(Kind::Reply, &plan.bytes);
    let concluded = match parsed {
        Ok(Parsed::Frame(frame, _)) => Some(asked.conclude(2, &frame)),
        _ => None,
    };
    if matches!(concluded, Some(Err(Failure::Revision1))) {
        // The second attempt finds no one.
        drop(listener.accept());
        drop(listener);
    } else if matches!(parsed, Ok(Parsed::NeedMore(_))) {
        peer.shutdown(Shutdown::Write).unwrap();
    }
    let first = event(host, &victim);
    let expected = match &concluded {
        Some(Ok(_)) => matches!(first, CmEvent::Established { .. }),
        Some(Err(Failure::Rejected)) => matches!(first, CmEvent::PeerRejected { .. }),
        _ => first == CmEvent::NonPeerRejected,
    };
    assert!(expected, "{first:?} after {concluded:?}");
    let up = matches!(first, CmEvent::Established { .. });
    outcome.events.push(first);
    if up {
        // What a connected end sends first, before the peer ends the stream.
        let mut first = [0; 20];
        peer.read_exact(&mut first).unwrap();
        outcome.sent.extend(first);
        let _ = peer.shutdown(Shutdown::Write);
        outcome.events.push(event(host, &victim));
    }
    let _ = peer.shutdown(Shutdown::Write);
    rest(&mut peer, &mut outcome.sent);
    if concluded.is_some_and(|agreed| agreed.is_ok_and(|agreed| agreed.acknowledge)) {
        outcome.sent = without_acknowledgements(&outcome.sent);
    }
    outcome
}

thread_local! {
    static HOST: OnceCell<Host> = const { OnceCell::new() };
}

/// Runs one end against a plan.
type Run = fn(&Host, &Plan<'_>, &[u8]) -> Outcome;

/// Runs an input.
pub fn mpa_handshake(data: &[u8]) {
    let mut input = Input(data);
    let mode = input.byte();
    let cuts = input.byte();
    let cuts = input.take(usize::from(cuts % 16));
    let (kind, run): (Kind, Run) = match mode & 1 {
        0 => (Kind::Request, ask),
        _ => (Kind::Reply, answer),
    };
    let plan = Plan {
        bytes: frame(kind, &mut input),
        refuse: mode & 2 != 0,
        cuts,
    };
    HOST.with(|host| {
        let host = host.get_or_init(|| Host::new("127.0.0.1 path=tcp"));
        let whole = run(host, &plan, &[]);
        let cut = run(host, &plan, plan.cuts);
        assert_eq!(whole, cut);
    });
}
