//! Serving the connections that have an arrival, in [rounds](crate::device::soft::engine::rounds).

use std::sync::atomic::Ordering;

use super::{CHUNK, Entry, FEW, PollResult, PollSet, WORDS};
use crate::device::soft::engine::ready_bitmap::ReadyBitmap;
use crate::device::soft::engine::rounds::ROUNDS;
use crate::device::soft::upcalls::Upcalls;
use crate::handle::Guard;

/// When a connection was served last, and its place.
pub(super) type Turn = (u64, usize);

impl PollSet {
    /// Serves those of a few connections that have an arrival.
    #[inline(never)]
    pub(super) fn serve_few(&self, few: &[Entry], guard: &Guard, up: &mut Upcalls) {
        for entry in few.iter().filter(|e| e.peek() == PollResult::Blocked) {
            entry.deliver(false, guard, up);
        }
        let arrivals = |_| {
            let entries = few.iter().enumerate();
            entries.fold(0, |ready, (bit, entry)| {
                ready | u64::from(entry.peek() == PollResult::Message) << bit
            })
        };
        let entry = |place: usize| few.get(place);
        let deliver = |entry: &Entry, all, up: &mut Upcalls| {
            entry.deliver(all, guard, up);
            // The peeks before the next round find what is left.
            false
        };
        self.serve_in_rounds(&mut [0], &mut [(0, 0); FEW], arrivals, entry, deliver, up);
    }

    /// Serves the connections whose ready bits are set, and those of the chunk `lost` that have
    /// an arrival.
    #[inline(never)]
    pub(super) fn serve_ready(
        &self,
        bitmap: &ReadyBitmap,
        lost: Option<usize>,
        guard: &Guard,
        up: &mut Upcalls,
    ) {
        let words = self.chunks_used.load(Ordering::Relaxed);
        let mut ready = [0u64; WORDS];
        let chunk = lost.and_then(|word| Some((word, self.chunks[word].get(guard)?)));
        if let Some((word, chunk)) = chunk {
            for (bit, entry) in chunk.iter().enumerate() {
                let arrived = entry
                    .as_ref()
                    .is_some_and(|e| e.peek() != PollResult::Nothing);
                ready[word] |= u64::from(arrived) << bit;
            }
        }
        let mut turns = std::mem::take(&mut *self.turns.lock());
        if turns.len() < words * CHUNK {
            turns.resize(words * CHUNK, (0, 0));
        }
        let arrivals = |word| bitmap.ready_bits.take(word);
        let entry = |place: usize| {
            let chunk = self.chunks[place / CHUNK].get(guard)?;
            chunk[place % CHUNK].as_ref()
        };
        let deliver = |entry: &Entry, all, up: &mut Upcalls| {
            if all {
                entry.deliver(true, guard, up);
                return false;
            }
            entry.serve(guard, up);
            // The peer does not set the bit again for a message that was there.
            entry.peek() == PollResult::Message
        };
        self.serve_in_rounds(
            &mut ready[..words],
            &mut turns,
            arrivals,
            entry,
            deliver,
            up,
        );
        *self.turns.lock() = turns;
    }

    /// Serves connections until none has an arrival.
    ///
    /// `ready` has a bit for each place, set for the connections to be served in any case, and
    /// `turns` room for as many. `arrivals` gives the bits of a word whose connections have an
    /// arrival, `entry` the connection at a place. `deliver` delivers one message, or all; true
    /// if the connection is to take part in the next round.
    #[inline(always)]
    fn serve_in_rounds<'a>(
        &self,
        ready: &mut [u64],
        turns: &mut [Turn],
        arrivals: impl Fn(usize) -> u64,
        entry: impl Fn(usize) -> Option<&'a Entry>,
        deliver: impl Fn(&Entry, bool, &mut Upcalls) -> bool,
        up: &mut Upcalls,
    ) {
        for round in 0..=ROUNDS {
            while collect(ready, &arrivals) {}
            let mut len = 0;
            for (word, bits) in ready.iter_mut().enumerate() {
                let mut left = std::mem::take(bits);
                while left != 0 {
                    let place = word * CHUNK + left.trailing_zeros() as usize;
                    left &= left - 1;
                    if let Some(entry) = entry(place) {
                        turns[len] = (entry.last_served().get(), place);
                        len += 1;
                    }
                }
            }
            if len == 0 {
                return;
            }
            turns[..len].sort_unstable();
            for &(_, place) in &turns[..len] {
                let Some(entry) = entry(place) else {
                    continue;
                };
                self.clock.note(entry.last_served());
                if deliver(entry, round == ROUNDS, up) {
                    ready[place / CHUNK] |= 1 << (place % CHUNK);
                }
            }
        }
    }
}

/// Adds the bits of the connections with an arrival; false if all of them were set before.
#[inline(always)]
fn collect(ready: &mut [u64], arrivals: impl Fn(usize) -> u64) -> bool {
    let words = ready.iter_mut().enumerate();
    words.fold(false, |new, (word, bits)| {
        let before = *bits;
        *bits |= arrivals(word);
        new | (*bits != before)
    })
}
