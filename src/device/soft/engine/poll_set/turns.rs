//! Serving the connections that have something, each in its turn.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use crate::device::soft::engine::poll_set::{CHUNK, Entry, FEW, PollResult, PollSet, WORDS};
use crate::device::soft::engine::rounds::ROUNDS;
use crate::device::soft::transport::shm::ReadyBitmap;
use crate::device::soft::upcalls::Upcalls;
use crate::handle::Guard;

thread_local! {
    /// The memory for a round of many, used again by every call of a thread.
    static TURNS: Cell<Vec<(u64, usize)>> = const { Cell::new(Vec::new()) };
}

impl PollSet {
    /// Serves few of them in [rounds](crate::device::soft::engine::rounds).
    #[inline(never)]
    pub(super) fn take_few(&self, few: &[Entry], guard: &Guard, up: &mut Upcalls) {
        let look = || {
            let lines = few.iter().enumerate();
            lines.fold(0u32, |found, (i, line)| {
                found | u32::from(line.peek() == PollResult::Message) << i
            })
        };
        for line in few.iter().filter(|line| line.peek() == PollResult::Blocked) {
            line.deliver(false, guard, up);
        }
        let mut turns = [(0, 0); FEW];
        for round in 0..=ROUNDS {
            let mut found = look();
            loop {
                let before = std::mem::replace(&mut found, look());
                if found == before {
                    break;
                }
            }
            let mut len = 0;
            for (i, line) in few.iter().enumerate().filter(|(i, _)| found >> i & 1 != 0) {
                turns[len] = (line.last_served().get(), i);
                len += 1;
            }
            if len == 0 {
                return;
            }
            turns[..len].sort_unstable();
            for &(_, i) in &turns[..len] {
                self.clock.note(few[i].last_served());
                few[i].deliver(round == ROUNDS, guard, up);
            }
        }
    }

    /// Adds the marks that are there; false if no connection is marked that was not.
    fn collect(bitmap: &ReadyBitmap, marked: &mut [u64]) -> bool {
        let words = marked.iter_mut().enumerate();
        words.fold(false, |new, (word, all)| {
            let before = *all;
            *all |= bitmap.ready_bits().take(word);
            new | (*all != before)
        })
    }

    /// Serves those that are marked, and those of the chunk `lost` that have something, in
    /// [rounds](crate::device::soft::engine::rounds).
    #[inline(never)]
    pub(super) fn take_ready(
        &self,
        bitmap: &ReadyBitmap,
        lost: Option<usize>,
        guard: &Guard,
        up: &mut Upcalls,
    ) {
        let words = self.words.load(Ordering::Relaxed);
        let mut marked = [0u64; WORDS];
        let chunk = lost.and_then(|word| Some((word, self.chunks[word].get(guard)?)));
        if let Some((word, chunk)) = chunk {
            for (bit, line) in chunk.iter().enumerate() {
                let found = line
                    .as_ref()
                    .is_some_and(|l| l.peek() != PollResult::Nothing);
                marked[word] |= u64::from(found) << bit;
            }
        }
        let mut turns: Vec<(u64, usize)> = TURNS.try_with(Cell::take).unwrap_or_default();
        for round in 0..=ROUNDS {
            while Self::collect(bitmap, &mut marked[..words]) {}
            let line = |place: usize| {
                let chunk = self.chunks[place / CHUNK].get(guard)?;
                chunk[place % CHUNK].as_ref()
            };
            turns.clear();
            for (word, ready_bits) in marked[..words].iter_mut().enumerate() {
                let mut left = std::mem::take(ready_bits);
                while left != 0 {
                    let place = word * CHUNK + left.trailing_zeros() as usize;
                    left &= left - 1;
                    if let Some(line) = line(place) {
                        turns.push((line.last_served().get(), place));
                    }
                }
            }
            if turns.is_empty() {
                break;
            }
            turns.sort_unstable();
            for &(_, place) in &turns {
                let Some(line) = line(place) else {
                    continue;
                };
                self.clock.note(line.last_served());
                if round == ROUNDS {
                    line.deliver(true, guard, up);
                    continue;
                }
                line.serve(guard, up);
                if line.peek() == PollResult::Message {
                    marked[place / CHUNK] |= 1 << (place % CHUNK);
                }
            }
        }
        let _ = TURNS.try_with(|cell| cell.set(turns));
    }
}
