//! A short random run over the iWARP parsers, the same in every run. `fuzz/` holds the
//! targets that search longer.

#[path = "common/random.rs"]
mod random;
mod wire_properties;

use dat_core::testing::device::soft::iwarp::extensions::{
    AtomicRequest, AtomicResponse, Immediate,
};
use dat_core::testing::device::soft::iwarp::fpdu::{Control, Tagged, Untagged, seal};
use dat_core::testing::device::soft::iwarp::mpa::{FRAME_MAX, Frame, Kind, Local, Rtr};
use dat_core::testing::device::soft::iwarp::rdmap::{ReadRequest, send_opcode};
use dat_core::testing::device::soft::iwarp::sequence::TxSequence;
use dat_core::testing::device::soft::iwarp::wire::{
    FPDU_TRAILER_MAX, OP_READ_RESPONSE, OP_WRITE, QN_SEND, READ_REQUEST_HDR, TAGGED_HDR,
    UNTAGGED_HDR,
};
use dat_core::testing::device::{AtomicOp, Remote};

use random::Random;

/// Any bytes, fewer than a limit.
fn bytes(random: &mut Random, limit: usize) -> Vec<u8> {
    let len = random.below(limit);
    (0..len).map(|_| random.next() as u8).collect()
}

/// Flips bits, cuts, repeats and overwrites, a few times.
fn damage(random: &mut Random, data: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        let (at, to) = (random.below(data.len() + 1), random.below(data.len() + 1));
        match random.below(5) {
            0 => data.truncate(at),
            1 => {
                let piece = data[at.min(to)..at.max(to)].to_vec();
                data.splice(at..at, piece);
            }
            2 => data.iter_mut().skip(at).take(2).for_each(|b| *b = 0xff),
            _ => {
                if let Some(byte) = data.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
}

fn frame(random: &mut Random) -> Vec<u8> {
    let local = Local {
        crc: random.below(2) == 0,
        ird: random.next() as u16,
        ord: random.next() as u16,
        rtr: Rtr::from_bits_truncate(random.next() as u8),
        acknowledge: random.below(2) == 0,
        extensions: random.below(2) == 0,
    };
    let data = bytes(random, 64);
    let request = local.request(1 + random.below(2) as u8, &data);
    let reply = Frame {
        kind: Kind::Reply,
        reject: random.below(4) == 0,
        ..request
    };
    let frame = if random.below(2) == 0 { request } else { reply };
    frame.encode(&mut [0; FRAME_MAX]).expect("fits").to_vec()
}

#[test]
fn negotiation() {
    let mut random = Random(0x6d70_6121);
    for _ in 0..150_000 {
        let mut data = frame(&mut random);
        wire_properties::mpa_frame(&data);
        damage(&mut random, &mut data);
        wire_properties::mpa_frame(&data);
    }
    for _ in 0..100_000 {
        wire_properties::mpa_frame(&bytes(&mut random, 100));
    }
}

fn append(stream: &mut Vec<u8>, crc: bool, header: &[u8], payload: &[u8]) {
    stream.extend_from_slice(header);
    stream.extend_from_slice(payload);
    stream.extend_from_slice(seal(crc, header, [payload], &mut [0; FPDU_TRAILER_MAX]));
}

/// A valid stream, after the byte that is the CRC mode of [`wire_properties::fpdu_stream`],
/// and how many FPDUs it has.
fn stream(random: &mut Random) -> (Vec<u8>, usize) {
    let crc = random.below(2) == 1;
    let mut stream = vec![u8::from(crc)];
    let mut tx = TxSequence::new();
    let mut count = 0;
    for _ in 0..random.below(6) {
        match random.below(7) {
            0 => {
                let (msn, opcode) = (tx.next_send(), send_opcode(count % 2 == 0, count % 3 == 0));
                let message = bytes(random, 400);
                let cut = random.below(message.len() + 1);
                for (mo, last) in [(0, false), (cut, true)] {
                    let payload = if last {
                        &message[cut..]
                    } else {
                        &message[..cut]
                    };
                    let control = Control::new(opcode, last);
                    let mo = mo as u32;
                    let header = Untagged {
                        control,
                        invalidate: 9,
                        qn: QN_SEND,
                        msn,
                        mo,
                    };
                    let mut out = [0; UNTAGGED_HDR];
                    header.encode(payload.len(), &mut out).expect("fits");
                    append(&mut stream, crc, &out, payload);
                }
                count += 2;
            }
            1 => {
                let request = ReadRequest {
                    sink_stag: random.next() as u32,
                    sink_to: random.next(),
                    size: random.next() as u32,
                    source_stag: random.next() as u32,
                    source_to: random.next() >> 1,
                };
                let mut out = [0; READ_REQUEST_HDR];
                request.encode(tx.next_read(), &mut out);
                append(&mut stream, crc, &out, &[]);
                count += 1;
            }
            4 => {
                let op = match random.below(2) {
                    0 => AtomicOp::FetchAdd { add: random.next() },
                    _ => AtomicOp::CompareSwap {
                        compare: random.next(),
                        swap: random.next(),
                    },
                };
                let (addr, rkey) = (random.next(), random.next() as u32);
                let request = AtomicRequest {
                    identifier: random.next() as u32,
                    word: Remote { addr, rkey },
                    op,
                };
                append(&mut stream, crc, &request.encode(tx.next_read()), &[]);
                count += 1;
            }
            5 => {
                let response = AtomicResponse {
                    identifier: random.next() as u32,
                    before: random.next(),
                };
                let msn = tx.next_atomic_response();
                append(&mut stream, crc, &response.encode(msn), &[]);
                count += 1;
            }
            6 => {
                let mut written = 0;
                for last in [false, true].into_iter().skip(random.below(3)) {
                    let control = Control::new(OP_WRITE, last).with_immediate(true);
                    let (stag, to) = (random.next() as u32, random.next() >> 1);
                    let payload = bytes(random, 400);
                    let mut out = [0; TAGGED_HDR];
                    Tagged { control, stag, to }
                        .encode(payload.len(), &mut out)
                        .expect("fits");
                    append(&mut stream, crc, &out, &payload);
                    written += payload.len() as u32;
                    count += 1;
                }
                let imm = random.next() as u32;
                let header = Immediate { imm, written }.encode(tx.next_send(), false, false);
                append(&mut stream, crc, &header, &[]);
                count += 1;
            }
            op => {
                let opcode = if op == 2 { OP_WRITE } else { OP_READ_RESPONSE };
                let control = Control::new(opcode, random.below(2) == 0);
                let (stag, to) = (random.next() as u32, random.next() >> 1);
                let payload = bytes(random, 400);
                let mut out = [0; TAGGED_HDR];
                Tagged { control, stag, to }
                    .encode(payload.len(), &mut out)
                    .expect("fits");
                append(&mut stream, crc, &out, &payload);
                count += 1;
            }
        }
    }
    (stream, count)
}

#[test]
fn segments() {
    let mut random = Random(0x6664_7075);
    for _ in 0..60_000 {
        let (mut data, count) = stream(&mut random);
        assert_eq!(wire_properties::fpdu_stream(&data), count);
        damage(&mut random, &mut data);
        wire_properties::fpdu_stream(&data);
    }
    for _ in 0..100_000 {
        wire_properties::fpdu_stream(&bytes(&mut random, 100));
    }
}
