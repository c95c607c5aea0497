//! The stream of a whole connection over TCP: segments of any kind, right and wrong, in any pieces.
//! The same bytes in other pieces give the same completions, the same end, the same Terminate and
//! the same memory; and nothing but the regions changes.

use std::cell::OnceCell;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use dat_core::testing::device::soft::iwarp::fpdu::{self, Control, Decoded, Tagged, Untagged};
use dat_core::testing::device::soft::iwarp::rdmap::{ReadRequest, Segment};
use dat_core::testing::device::soft::iwarp::wire::*;
use dat_core::testing::device::*;

use super::input::Input;
use super::{completions, event, until, write_pieces};
use crate::iwarp::{OFFER, fpdus, read_to_end, receive_read_request, sealed};
use crate::victim::{Arena, Host, REGION, Region, Victim};

/// Segments of a stream at most.
const SEGMENTS: usize = 24;
/// Receives of a connection, each of so many bytes.
const RECEIVES: usize = 8;
const RECEIVE: usize = 24;
/// Reads of the peer that a stream may have: so many may wait for their answers at a time.
const READS: u32 = 4;

const REGIONS: [Region; 6] = [
    Region::All,
    Region::Readable,
    Region::Writable,
    Region::Local,
    Region::Foreign,
    Region::Stale,
];

/// What an input decides.
struct Plan<'a> {
    /// Whether FPDUs have CRCs.
    crc: bool,
    /// Whether the stream begins with the first message.
    first: bool,
    /// Reads of the library that wait for answers.
    reads: usize,
    /// Receives that are posted before the stream arrives. The others are posted at its end.
    receives: usize,
    /// The lengths of the pieces.
    cuts: &'a [u8],
    /// What the stream is made from.
    segments: &'a [u8],
}

/// A key to be invalidated, of a window that exists for one connection.
struct Disposable {
    _bytes: Box<[u8]>,
    _region: dat_core::testing::device::soft::Mr,
    _window: Arc<dat_core::testing::device::soft::Mw>,
    key: u32,
}

/// What the peer and the program see of a connection.
#[derive(Debug)]
struct Outcome {
    events: Vec<CmEvent>,
    /// Identifier, status, operation and length of what was not flushed.
    completions: Vec<(u64, WcStatus, String, u32)>,
    memory: Vec<u8>,
    /// The Terminate without its CRC, if there is one.
    terminate: Option<Vec<u8>>,
    /// The headers of the Read Responses.
    responses: Vec<Vec<u8>>,
    /// Whether receives were posted while the stream was read.
    late: bool,
}

/// Where the next untagged messages belong.
struct Sequence {
    send: u32,
    mo: u32,
    /// The kind of the Send that goes on.
    opcode: u8,
    /// Where the FPDUs with the key of the disposable window begin.
    keys: Vec<usize>,
    read: u32,
    /// Bytes of the current response that were sent, and its read.
    answered: u32,
    answering: usize,
}

/// Puts the stream of a plan together.
fn stream(plan: &Plan<'_>, arena: &Arena, sinks: &[u32], disposable: u32) -> Vec<u8> {
    let mut input = Input(plan.segments);
    let mut bytes = Vec::new();
    let mut at = Sequence {
        send: 1,
        mo: 0,
        opcode: OP_SEND,
        keys: Vec::new(),
        read: 1,
        answered: 0,
        answering: 0,
    };
    for _ in 0..SEGMENTS {
        let Some(kind) = input.next() else {
            break;
        };
        let begin = bytes.len();
        // Most segments are right, so that there is something before a fault.
        let choice = match kind % 16 {
            11..=13 if at.answering >= sinks.len() && input.byte() < 0xf0 => 0,
            14 | 15 if input.byte() < 0xe0 => 0,
            choice => choice,
        };
        match choice {
            0..=4 => send(plan, &mut input, &mut at, kind, disposable, &mut bytes),
            5..=8 => {
                let (stag, to, len) = target(&mut input, arena, Region::Writable);
                tagged(plan, &mut input, OP_WRITE, (stag, to), len, &mut bytes);
            }
            9 | 10 => {
                let (stag, to, len) = target(&mut input, arena, Region::Readable);
                let request = ReadRequest {
                    sink_stag: 0x5151,
                    sink_to: 0x6161,
                    size: input.field32(len as u32),
                    source_stag: stag,
                    source_to: to,
                };
                let mut header = [0; READ_REQUEST_HDR];
                request.encode(input.field32(at.read), &mut header);
                at.read += 1;
                damage(&mut input, &mut header);
                bytes.extend(sealed(plan.crc, &header, &[]));
            }
            11..=13 => response(plan, &mut input, &mut at, sinks, &mut bytes),
            15 if kind & 0x10 == 0 => {
                let payload = input.take(usize::from(kind / 16));
                let control = Control::new(OP_TERMINATE, true);
                let header = Untagged {
                    control,
                    invalidate: 0,
                    qn: input.field32(QN_TERMINATE),
                    msn: input.field32(1),
                    mo: input.field32(0),
                };
                untagged(plan, &mut input, header, payload, &mut bytes);
            }
            14 if kind & 0x10 == 0 => bytes.extend(sealed(plan.crc, &[0, 0], &[])),
            _ => bytes.extend(input.take(usize::from(kind))),
        }
        // A bit of it is changed after the CRC was made.
        if input.byte() == 0xff && bytes.len() > begin {
            let bit = usize::from(input.byte()) * 8 + usize::from(kind % 8);
            let at = begin + bit / 8 % (bytes.len() - begin);
            bytes[at] ^= 1 << (bit % 8);
        }
    }
    hide_misplaced(&at.keys, &mut bytes, plan.crc);
    end_at_reads(&mut bytes, plan.crc, arena);
    bytes
}

/// Overwrites each key whose FPDU no receiver finds where it was written, because the length of one
/// before it is wrong: the key is another in each run, and would be data, or a length.
fn hide_misplaced(keys: &[usize], stream: &mut [u8], crc: bool) {
    let mut at = 0;
    for &begin in keys {
        while at < begin {
            at += match fpdu::decode(&stream[at..], crc) {
                Ok(Decoded::Fpdu(fpdu)) => fpdu.consumed,
                _ => stream.len(),
            };
        }
        if at != begin {
            stream[begin + 4..begin + 8].fill(0);
        }
    }
}

/// Changes a byte of a header.
fn damage(input: &mut Input<'_>, header: &mut [u8]) {
    if input.byte() == 0xfe {
        let at = usize::from(input.byte()) % header.len();
        header[at] = input.byte();
    }
}

fn payload(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(7) ^ seed).collect()
}

fn untagged(
    plan: &Plan<'_>,
    input: &mut Input<'_>,
    header: Untagged,
    payload: &[u8],
    to: &mut Vec<u8>,
) {
    let mut bytes = [0; UNTAGGED_HDR];
    header.encode(payload.len(), &mut bytes).unwrap();
    damage(input, &mut bytes);
    to.extend(sealed(plan.crc, &bytes, payload));
}

fn tagged(
    plan: &Plan<'_>,
    input: &mut Input<'_>,
    opcode: u8,
    (stag, to): (u32, u64),
    len: usize,
    bytes: &mut Vec<u8>,
) {
    let control = Control::new(opcode, input.byte() % 4 != 3);
    let mut header = [0; TAGGED_HDR];
    Tagged { control, stag, to }
        .encode(len, &mut header)
        .unwrap();
    damage(input, &mut header);
    bytes.extend(sealed(plan.crc, &header, &payload(len, stag as u8)));
}

/// A segment of a Send of any kind.
fn send(
    plan: &Plan<'_>,
    input: &mut Input<'_>,
    at: &mut Sequence,
    kind: u8,
    disposable: u32,
    bytes: &mut Vec<u8>,
) {
    let last = kind & 0x10 == 0;
    if at.mo == 0 || input.byte() >= 0xf0 {
        at.opcode = match kind >> 4 {
            0..=9 => OP_SEND,
            10..=14 => OP_SEND_SE,
            _ => OP_SEND_INVALIDATE,
        };
    }
    let opcode = at.opcode;
    let len = match input.byte() {
        // Long messages fill what may wait for receives.
        0xff => 60_000,
        odd @ 0xf0.. => RECEIVE - 8 + usize::from(odd % 16),
        len => usize::from(len) % (RECEIVE + 1 - (at.mo as usize).min(RECEIVE)),
    };
    let header = Untagged {
        control: Control::new(opcode, last),
        invalidate: input.field32(disposable),
        qn: input.field32(QN_SEND),
        msn: input.field32(at.send),
        mo: input.field32(at.mo),
    };
    at.keys.push(bytes.len());
    untagged(plan, input, header, &payload(len, kind), bytes);
    if last {
        (at.send, at.mo) = (at.send.wrapping_add(1), 0);
    } else {
        at.mo = at.mo.wrapping_add(len as u32);
    }
}

/// A key, an address and a length, mostly inside of one region.
fn target(input: &mut Input<'_>, arena: &Arena, usual: Region) -> (u32, u64, usize) {
    let region = match input.byte() {
        odd @ 0xe0.. => REGIONS[usize::from(odd) % REGIONS.len()],
        choice if choice % 2 == 0 => usual,
        _ => Region::All,
    };
    let offset = u64::from(input.byte());
    let len = usize::from(input.byte()) % 40;
    let room = REGION.saturating_sub(offset as usize);
    let len = if input.byte() >= 0xe0 {
        len
    } else {
        len.min(room)
    };
    let stag = input.field32(arena.key(region));
    (stag, input.field(arena.at(region) + offset), len)
}

/// A segment of the answer to a read of the library.
fn response(
    plan: &Plan<'_>,
    input: &mut Input<'_>,
    at: &mut Sequence,
    sinks: &[u32],
    bytes: &mut Vec<u8>,
) {
    let left = 8 - at.answered.min(8);
    let sink = sinks.get(at.answering).copied().unwrap_or(1 << 31);
    let len = match input.byte() {
        n @ 0..=0x7f => u32::from(n % 9).min(left),
        n @ 0xf0.. => u32::from(n % 12),
        _ => left,
    };
    let last = len == left || input.byte() == 0xff;
    let header = Tagged {
        control: Control::new(OP_READ_RESPONSE, last),
        stag: input.field32(sink),
        to: input.field(at.answered.into()),
    };
    let mut out = [0; TAGGED_HDR];
    header.encode(len as usize, &mut out).unwrap();
    damage(input, &mut out);
    bytes.extend(sealed(plan.crc, &out, &payload(len as usize, 0x66)));
    at.answered += len;
    if last {
        (at.answered, at.answering) = (0, at.answering + 1);
    }
}

/// Ends the stream behind a read of the peer that fails, and before one too many: when they are
/// noticed depends on when the answers can be sent, not on the bytes alone.
fn end_at_reads(stream: &mut Vec<u8>, crc: bool, arena: &Arena) {
    let mut at = 0;
    let mut reads = 0;
    while let Ok(Decoded::Fpdu(fpdu)) = fpdu::decode(&stream[at..], crc) {
        let segment = fpdu
            .header
            .map(|h| Segment::classify(&h, fpdu.payload.len()));
        if let Some(Ok(Segment::ReadRequest { .. })) = segment {
            let Ok(request) = ReadRequest::parse(fpdu.payload) else {
                return;
            };
            let fits = |region: &Region| {
                let offset = request.source_to.wrapping_sub(arena.at(*region));
                request.source_stag == arena.key(*region)
                    && offset <= REGION as u64
                    && u64::from(request.size) <= REGION as u64 - offset
            };
            let valid = request.size == 0 || [Region::All, Region::Readable].iter().any(fits);
            reads += 1;
            if reads > READS {
                stream.truncate(at);
                return;
            }
            if !valid {
                stream.truncate(at + fpdu.consumed);
                return;
            }
        }
        at += fpdu.consumed;
    }
}

fn receive(host: &Host, victim: &Victim, number: usize) {
    victim.receive(&host.arena, number as u64, number * RECEIVE, RECEIVE);
}

/// Posts reads of 8 bytes to the end of the local region, and returns their steering tags.
fn post_reads(host: &Host, victim: &Victim, peer: &mut TcpStream, count: usize) -> Vec<u32> {
    for number in 0..count {
        victim.read(&host.arena, 100 + number as u64, 200 + 8 * number);
    }
    (0..count).map(|_| receive_read_request(peer)).collect()
}

/// Runs a connection whose stream is cut like that.
fn run(host: &Host, plan: &Plan<'_>, cuts: &[u8]) -> Outcome {
    host.arena.fill();
    let disposable = disposable(host);
    let offer = dat_core::testing::device::soft::iwarp::mpa::Local {
        crc: plan.crc,
        ..OFFER
    };
    let (mut peer, victim) = host.accepted(&offer);
    let mut events = Vec::new();
    let mut sinks = Vec::new();
    (0..plan.receives).for_each(|number| receive(host, &victim, number));
    if !plan.first {
        let first = sealed(plan.crc, &first_header(), &[]);
        crate::iwarp::write_all(&mut peer, &first);
        events.push(event(host, &victim));
        sinks = post_reads(host, &victim, &mut peer, plan.reads);
    }
    let bytes = stream(plan, &host.arena, &sinks, disposable.key);
    write_pieces(host, &mut peer, &Input::cut(&bytes, cuts));
    let _ = peer.shutdown(Shutdown::Write);
    (plan.receives..RECEIVES).for_each(|number| receive(host, &victim, number));
    let mut found = Vec::new();
    // The receives of messages that are too many have no memory.
    let mut number = RECEIVES;
    until(host, "the end", || {
        found.extend(completions(&victim));
        if victim.qp.recv_outstanding() == 0 {
            let wr = RecvWr {
                wr_id: number as u64,
                sges: &[],
                flags: WrFlags::empty(),
            };
            number += 1;
            victim.qp.post_recv(&wr).unwrap();
        }
        let event = victim.events.try_recv().ok()?;
        events.push(event);
        let last = events.last();
        (!matches!(last, Some(CmEvent::Established { .. }))).then_some(())
    });
    found.extend(completions(&victim));
    let (answers, _) = read_to_end(&mut peer);
    let answers = fpdus(&answers, plan.crc);
    let is = |opcode: u8| move |fpdu: &&&[u8]| fpdu.len() > 3 && fpdu[3] & 0xf == opcode;
    // The key of the disposable window, or what is left of it, is another in each run: bytes 4 to 8 of
    // a header of a Send, which is behind the header of the Terminate.
    let without_key = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let header = UNTAGGED_HDR + 4;
        if bytes
            .get(header + 2)
            .is_some_and(|ddp| ddp & DDP_TAGGED == 0)
        {
            bytes[header + 4..header + 8].fill(0xdd);
        }
        bytes
    };
    Outcome {
        events,
        completions: found
            .iter()
            .filter(|c| c.status != WcStatus::Flushed)
            .map(|c| {
                let op = match c.op {
                    WcOp::RecvInvalidate { rkey } if rkey == disposable.key => "invalidated".into(),
                    op => format!("{op:?}"),
                };
                let len = if c.status == WcStatus::Success {
                    c.byte_len
                } else {
                    0
                };
                (c.wr_id, c.status, op, len)
            })
            .collect(),
        memory: host.arena.contents(),
        terminate: answers
            .iter()
            .find(is(OP_TERMINATE))
            .map(|bytes| without_key(&bytes[..bytes.len() - FPDU_CRC])),
        responses: answers
            .iter()
            .filter(is(OP_READ_RESPONSE))
            .map(|bytes| bytes[..TAGGED_HDR].to_vec())
            .collect(),
        late: plan.receives < RECEIVES || number > RECEIVES,
    }
}

fn first_header() -> [u8; TAGGED_HDR] {
    let mut header = [0; TAGGED_HDR];
    let control = Control::new(OP_WRITE, true);
    let (stag, to) = (0, 0);
    Tagged { control, stag, to }.encode(0, &mut header).unwrap();
    header
}

fn disposable(host: &Host) -> Disposable {
    let bytes = vec![0u8; 64].into_boxed_slice();
    let at = bytes.as_ptr() as u64;
    let region = host.register(at, 64);
    let (window, key) = host.window(&region, at, 64);
    Disposable {
        _bytes: bytes,
        _region: region,
        _window: window,
        key,
    }
}

/// Nothing but the memory that is open to the peer, the receives and the sinks differs.
fn check_guards(outcome: &Outcome) {
    let mut expected = Arena::pattern();
    let mut found = outcome.memory.clone();
    for region in [Region::All, Region::Writable, Region::Local] {
        let at = Arena::offset(region);
        let len = if region == Region::Local { 232 } else { REGION };
        expected[at..at + len].fill(0);
        found[at..at + len].fill(0);
    }
    assert!(
        found == expected,
        "memory outside of the regions has changed"
    );
}

fn check_same(a: &Outcome, b: &Outcome) {
    assert_eq!(a.events, b.events);
    // Messages that wait for receives are lost when the connection breaks behind them: what is first,
    // the receives or the end, is not in the bytes.
    if (a.late || b.late) && a.events.last() != Some(&CmEvent::Disconnected) {
        return;
    }
    // Receives that are posted late complete late, but reads do not wait for them.
    let queue = |outcome: &Outcome, reads: bool| {
        let of_queue = |c: &&(u64, WcStatus, String, u32)| (c.2 == "RdmaRead") == reads;
        outcome
            .completions
            .iter()
            .filter(of_queue)
            .cloned()
            .collect::<Vec<_>>()
    };
    if !(a.late || b.late) {
        assert_eq!(a.completions, b.completions);
    }
    for reads in [false, true] {
        assert_eq!(queue(a, reads), queue(b, reads));
    }
    assert_eq!(a.terminate, b.terminate);
    let differs = a.memory.iter().zip(&b.memory).position(|(a, b)| a != b);
    assert_eq!(differs, None, "the memory");
    // Responses that were not sent when the connection ends are not sent at all.
    let common = a.responses.len().min(b.responses.len());
    assert_eq!(a.responses[..common], b.responses[..common]);
    if a.events.last() == Some(&CmEvent::Disconnected) {
        assert_eq!(a.responses.len(), b.responses.len());
    }
}

thread_local! {
    static HOST: OnceCell<[Host; 2]> = const { OnceCell::new() };
}

/// Runs an input.
pub fn tcp_stream(data: &[u8]) {
    let mut input = Input(data);
    let mode = input.byte();
    let cuts = input.byte();
    let cuts = input.take(usize::from(cuts % 16));
    let first = mode & 2 != 0;
    let plan = Plan {
        crc: mode & 1 == 0,
        first,
        reads: if first { 0 } else { usize::from(mode >> 2 & 3) },
        receives: match mode >> 4 {
            late @ 0..=7 => late.into(),
            _ => RECEIVES,
        },
        cuts,
        segments: input.0,
    };
    HOST.with(|hosts| {
        let [with_crc, without] = hosts
            .get_or_init(|| ["127.0.0.1 path=tcp", "127.0.0.1 path=tcp crc=off"].map(Host::new));
        let host = if plan.crc { with_crc } else { without };
        let whole = run(host, &plan, &[]);
        check_guards(&whole);
        let cut = run(host, &plan, plan.cuts);
        check_same(&whole, &cut);
    });
}
