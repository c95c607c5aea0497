//! A ring of the shared-memory transport whose peer writes anything into it, at any moment: what the
//! consumer and the producer of this end read and write is inside the ring.

#![no_main]

use dat_core::testing::device::soft::transport::shm::ring::{
    Assembly, CELLS, CellFlags, Consumer, DATA_LEN, Kind, MAX_CHUNK, MAX_INLINE, Producer, Ring,
};

/// Bytes of the two counters before the cells, and of a cell.
const COUNTERS: usize = 128;
const CELL: usize = 64;

/// The ring, and what the peer does with its memory.
struct Peer<'a>(&'a Ring);

impl Peer<'_> {
    /// Stores a word at a multiple of 8.
    fn store(&self, at: usize, word: u64) {
        assert!(at + 8 <= size_of::<Ring>());
        let base = std::ptr::from_ref(self.0).cast::<u64>().cast_mut();
        // SAFETY: inside the ring, which is made of atomics and cells, and no reference to a value
        // that changes exists.
        unsafe { base.byte_add(at).write_volatile(word) };
    }

    /// Whether these bytes are inside the ring.
    fn has(&self, at: *const u8, len: usize) -> bool {
        let start = std::ptr::from_ref(self.0).addr();
        at.addr() >= start && at.addr() + len <= start + size_of::<Ring>()
    }
}

/// The input, word by word.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }
}

/// Bytes of the longest message that is received whole.
const LONGEST: usize = 5000;

/// One step; `None` when the input or the connection is at its end.
fn step(
    input: &mut Input<'_>,
    peer: &Peer<'_>,
    consumer: &mut Consumer,
    assembly: &mut Assembly,
    producer: &mut Producer,
) -> Option<()> {
    let ring = peer.0;
    match input.byte()? % 8 {
        // The next cell, filled or nearly so.
        0 | 1 => {
            let number = consumer.next_cell();
            let header = input.word()? & !0xffff_ffff | (number + 1) & 0xffff_ffff;
            peer.store(COUNTERS + number as usize % CELLS * CELL, header);
        }
        // Anything anywhere.
        2 => {
            let at = input.word()? as usize % (size_of::<Ring>() / 8) * 8;
            peer.store(at, input.word()?);
        }
        // Counters that may be right.
        3 => {
            let word = input.word()?;
            peer.store(0, word & 0xff);
            peer.store(8, (word >> 8 & 0xfff) * 64);
        }
        4 => {
            if let Some(piece) = consumer.peek(ring).ok()? {
                let most = if piece.kind.has_data() {
                    MAX_CHUNK
                } else {
                    MAX_INLINE
                };
                assert!(piece.len <= most);
                assert!(consumer.payload(ring, &piece, |from| peer.has(from, piece.len)));
                assert!(consumer.in_cell(ring, |from| peer.has(from, MAX_INLINE)));
                consumer.advance(&piece);
                consumer.publish(ring);
            }
        }
        5 => {
            if let Some((message, _)) = assembly.take(consumer, ring).ok()? {
                assert!(message.len() <= LONGEST);
                consumer.publish(ring);
            }
        }
        6 => {
            let message = vec![0x55; input.word()? as usize % (LONGEST + 1)];
            producer.push_whole(ring, CellFlags::empty(), &message).ok()?;
        }
        _ => {
            let wanted = input.word()? as usize % (2 * DATA_LEN) + 1;
            if !producer.has_cell(ring).ok()? {
                return Some(());
            }
            let (kind, len) = if wanted <= MAX_INLINE {
                (Kind::Inline, wanted)
            } else {
                (Kind::Bulk, producer.chunk(ring, wanted).ok()?)
            };
            if len > 0 {
                assert!(len <= wanted.min(MAX_CHUNK));
                let filled = producer.push(ring, kind, CellFlags::LAST, len, |to| {
                    if peer.has(to, len) { Ok(()) } else { Err(()) }
                });
                assert_eq!(filled, Ok(()));
            }
        }
    }
    Some(())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let ring = Ring::new();
    let (mut consumer, mut producer) = (Consumer::default(), Producer::default());
    let mut assembly = Assembly::new(0, LONGEST);
    let mut input = Input(data);
    while step(&mut input, &Peer(&ring), &mut consumer, &mut assembly, &mut producer).is_some() {}
});
