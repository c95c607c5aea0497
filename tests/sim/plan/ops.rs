//! The requests of a connection.

use dat_core::testing::device::WrFlags;

use super::super::memory::EMPTY_WORD;
use super::super::rng::Rng;
use super::{EndPlan, Kind, Op, Receive};

/// How much is transferred.
pub(super) struct Size {
    /// The longest message.
    pub most: u64,
    /// One in so many ends has very many requests; 0 for none.
    pub bulk: u64,
    /// Whether there are atomic operations, and writes with immediate data.
    pub extended: bool,
}

/// The length of a message.
fn length(rng: &mut Rng, most: u64) -> usize {
    let n = rng.below(100);
    let len = match n {
        0..10 => 0,
        10..70 => rng.range(1, 64),
        70..88 => rng.range(65, 700),
        88..96 => rng.range(700, 4000),
        96..99 => rng.range(4000, 20_000),
        _ => rng.range(20_000, 300_000),
    };
    len.min(most) as usize
}

/// Adds the requests of an end, and the receives of the other one that they need.
pub(super) fn ops(rng: &mut Rng, ends: &mut [EndPlan; 2], from: usize, faulty: bool, size: &Size) {
    let count = match rng.below(20) {
        0..14 => rng.below(4),
        14..19 => rng.below(8),
        _ => rng.below(40),
    };
    let count = match rng.one_in(size.bulk) {
        true => rng.below(300),
        false => count,
    };
    let most = size.most;
    let (own, peer) = {
        let [a, b] = ends;
        if from == 0 { (a, b) } else { (b, a) }
    };
    if own.has_window {
        own.ops.push(Op {
            kind: Kind::Bind,
            len: 0,
            flags: WrFlags::empty(),
            parts: 0,
            window: false,
            bad_key: false,
        });
    }
    let kinds = if size.extended { 14 } else { 10 };
    let (mut word, mut before) = (None, EMPTY_WORD);
    for _ in 0..count {
        let mut len = length(rng, most);
        let key = rng.next();
        let kind = match rng.below(kinds) {
            0..6 => {
                let number = peer.receives.len();
                let room = len + rng.pick(&[0, 0, 5]);
                peer.receives.push(Receive {
                    slot: peer.memory.add(room, None),
                    parts: rng.range(1, 3) as usize,
                    message: key,
                    len,
                    imm: None,
                });
                let from = own.memory.add(len, Some(key));
                Kind::Send { from, number }
            }
            6..8 => Kind::Write {
                from: own.memory.add(len, Some(key)),
                peer_slot: peer.memory.add(len, None),
            },
            10..12 => {
                let number = peer.receives.len();
                let room = rng.pick(&[0, 5, 40]);
                peer.receives.push(Receive {
                    slot: peer.memory.add(room, None),
                    parts: rng.range(1, 3) as usize,
                    message: key,
                    len,
                    imm: Some(key as u32),
                });
                Kind::WriteImm {
                    from: own.memory.add(len, Some(key)),
                    peer_slot: peer.memory.add(len, None),
                    number,
                }
            }
            _ if peer.rd_in == 0 || own.rd_out == 0 => continue,
            12.. => {
                len = 8;
                let peer_slot = *word.get_or_insert_with(|| peer.memory.add_word());
                let kind = Kind::Atomic {
                    to: own.memory.add(len, None),
                    peer_slot,
                    before,
                    swaps: rng.percent(50),
                };
                before = before.wrapping_add(1);
                kind
            }
            _ => Kind::Read {
                to: own.memory.add(len, None),
                peer_slot: peer.memory.add(len, Some(key)),
            },
        };
        let mut flags = WrFlags::empty();
        flags.set(WrFlags::UNSIGNALED, rng.percent(15));
        flags.set(WrFlags::FENCE, rng.percent(10));
        flags.set(WrFlags::SOLICITED, rng.percent(10));
        own.ops.push(Op {
            kind,
            len,
            flags,
            parts: rng.range(1, 3) as usize,
            window: peer.has_window && rng.percent(50),
            bad_key: faulty && len > 0 && rng.percent(15),
        });
    }
}
