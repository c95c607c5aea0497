//! Serving the connections that have an arrival, in [rounds](crate::device::soft::engine::rounds).

use std::ptr;
use std::sync::atomic::Ordering;

use super::{CAPACITY, CHUNK, Entry, FEW, PollResult, PollSet, WORDS};
use crate::device::soft::engine::ready_bitmap::ReadyBitmap;
use crate::device::soft::engine::rounds::ROUNDS;
use crate::device::soft::upcalls::Upcalls;
use crate::handle::Guard;

/// Number of connections from which on what a connection needs is not in a cache near the processor when
/// its turn comes.
const FETCH_FROM: usize = 512;

/// When a connection was served last, and its place.
type Turn = (u64, usize);

/// What the thread that serves connections with ready bits needs.
#[derive(Default)]
pub(super) struct Room {
    /// Who has a turn in this round.
    turns: Vec<Turn>,
    /// Who has one in the next round, as far as that is known.
    next: Vec<Turn>,
    /// A bit for each connection that is in the list which is being filled.
    listed: Vec<u64>,
}

impl Room {
    /// For as many connections as there can be. `None` if there is no memory.
    pub fn for_all() -> Option<Room> {
        let mut room = Room::default();
        for turns in [&mut room.turns, &mut room.next] {
            turns.try_reserve_exact(CAPACITY).ok()?;
        }
        room.listed.try_reserve_exact(WORDS).ok()?;
        room.listed.resize(WORDS, 0);
        Some(room)
    }

    /// Notes that a connection has its turn: from now on it may be listed for the next round.
    #[inline]
    fn begin(&mut self, place: usize) {
        self.listed[place / CHUNK] &= !(1 << (place % CHUNK));
    }

    /// Lists a connection for the next round.
    #[inline]
    fn again(&mut self, entry: &Entry, place: usize) {
        self.listed[place / CHUNK] |= 1 << (place % CHUNK);
        self.next.push((entry.last_served().get(), place));
    }

    /// Takes a connection that was listed for this round off the list.
    #[inline]
    fn drop_turn(&mut self, turn: usize) {
        let (_, place) = self.turns.swap_remove(turn);
        self.begin(place);
    }
}

/// What a connection has behind the requests that were found. They have no turn in a round, which would then go to the
/// message of another connection that was sent after the one behind them.
#[cold]
fn behind_requests(entry: &Entry, guard: &Guard, up: &mut Upcalls) -> PollResult {
    entry.progress(guard, up);
    entry.peek()
}

impl PollSet {
    /// Serves those connections of the set that have an arrival, while they are few; false if messages may be left.
    ///
    /// Also a single one in rounds: a message that arrives while it is served is found by the peek after
    /// that, and by nothing else where its peer was told to notify us before.
    #[inline(never)]
    pub(super) fn serve_few(&self, guard: &Guard, up: &mut Upcalls) -> bool {
        let few = self.few.get(guard).map_or(&[][..], |few| few);
        for entry in few.iter().filter(|e| e.peek() == PollResult::Blocked) {
            entry.progress(guard, up);
        }
        for _ in 0..ROUNDS {
            let Some(few) = self.few.get(guard) else {
                // Connections were added, so that bits are to be used.
                return false;
            };
            let mut ready = 0u64;
            let mut has_requests = false;
            loop {
                let before = ready;
                for (bit, entry) in few.iter().enumerate() {
                    match entry.peek() {
                        PollResult::Message => ready |= 1 << bit,
                        PollResult::Requests => match behind_requests(entry, guard, up) {
                            PollResult::Message => ready |= 1 << bit,
                            PollResult::Requests => has_requests = true,
                            PollResult::Blocked | PollResult::Nothing => {}
                        },
                        PollResult::Blocked | PollResult::Nothing => {}
                    }
                }
                if ready == before {
                    break;
                }
            }
            if !self.few.get(guard).is_some_and(|now| ptr::eq(now, few)) {
                // A connection that was added meanwhile may have a message which was sent before those that were found.
                continue;
            }
            let (mut turns, mut len) = ([(0, 0); FEW], 0);
            for (place, entry) in few.iter().enumerate() {
                if ready & 1 << place != 0 {
                    turns[len] = (entry.last_served().get(), place);
                    len += 1;
                }
            }
            if len == 0 {
                return !has_requests;
            }
            turns[..len].sort_unstable();
            for &(_, place) in &turns[..len] {
                if few[place].deliver(guard, up) {
                    self.clock.note(few[place].last_served());
                }
                // The peeks before the next round find what is left.
            }
        }
        false
    }

    /// The connection at a place.
    #[inline]
    fn entry<'a>(&'a self, place: usize, guard: &'a Guard) -> Option<&'a Entry> {
        let chunk = self.chunks[place / CHUNK].get(guard)?;
        chunk[place % CHUNK].as_ref()
    }

    /// Lists those of the connections of a word, of which `bits` are meant, that are not listed.
    #[inline]
    fn list(&self, room: &mut Room, word: usize, bits: u64, guard: &Guard) {
        let mut new = bits & !room.listed[word];
        while new != 0 {
            let bit = new & new.wrapping_neg();
            new &= !bit;
            let place = word * CHUNK + bit.trailing_zeros() as usize;
            if let Some(entry) = self.entry(place, guard) {
                room.listed[word] |= bit;
                if self.len.load(Ordering::Relaxed) >= FETCH_FROM {
                    entry.fetch(guard);
                }
                room.turns.push((entry.last_served().get(), place));
            }
        }
    }

    /// Leaves those of the connections that are listed from this turn on in the list that have a message.
    ///
    /// A bit may be set for something else, or for a message that was delivered before the peer has set it. Such a
    /// connection would deliver what arrives while others are served, which may have been sent after a message that
    /// no bit of this round is for.
    #[inline]
    fn keep_those_with_messages(
        &self,
        room: &mut Room,
        from: usize,
        guard: &Guard,
        up: &mut Upcalls,
    ) {
        let mut turn = from;
        while let Some(&(_, place)) = room.turns.get(turn) {
            let entry = self.entry(place, guard);
            let has_message = |entry: &Entry| entry.peek() == PollResult::Message;
            let stays = entry.is_some_and(|entry| {
                has_message(entry) || {
                    entry.progress(guard, up);
                    has_message(entry)
                }
            });
            match stays {
                true => turn += 1,
                false => room.drop_turn(turn),
            }
        }
    }

    /// Serves the connections whose ready bits are set, and those of the chunk `lost` that have
    /// an arrival; false if messages may be left. The bits of their connections are set then.
    #[inline(never)]
    pub(super) fn serve_ready(
        &self,
        bitmap: &ReadyBitmap,
        lost: Option<usize>,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> bool {
        let mut room = std::mem::take(&mut *self.turns.lock());
        let chunk = lost.and_then(|word| Some((word, self.chunks[word].get(guard)?)));
        if let Some((word, chunk)) = chunk {
            let bits = chunk.iter().enumerate().fold(0, |bits, (bit, entry)| {
                let arrived = entry
                    .as_ref()
                    .is_some_and(|e| e.peek() != PollResult::Nothing);
                bits | u64::from(arrived) << bit
            });
            self.list(&mut room, word, bits, guard);
            self.keep_those_with_messages(&mut room, 0, guard, up);
        }
        for _ in 0..ROUNDS {
            // The last pass is behind the peek at each message of the round. A bit that is set again and again,
            // without a message, is no reason for another one.
            loop {
                let listed = room.turns.len();
                // Connections may have been added since the last pass.
                let words = self.chunks_used.load(Ordering::Relaxed);
                let ready = |word, bits| self.list(&mut room, word, bits, guard);
                bitmap.ready_bits.take_all(words, ready);
                self.keep_those_with_messages(&mut room, listed, guard, up);
                if room.turns.len() == listed {
                    break;
                }
            }
            room.turns.sort_unstable();
            for turn in 0..room.turns.len() {
                let (_, place) = room.turns[turn];
                room.begin(place);
                let Some(entry) = self.entry(place, guard) else {
                    continue;
                };
                if entry.deliver(guard, up) {
                    self.clock.note(entry.last_served());
                }
                // The peer does not set the bit again for a message that was there.
                match entry.peek() {
                    PollResult::Message => room.again(entry, place),
                    PollResult::Requests => match behind_requests(entry, guard, up) {
                        PollResult::Message | PollResult::Requests => room.again(entry, place),
                        PollResult::Blocked | PollResult::Nothing => {}
                    },
                    PollResult::Blocked | PollResult::Nothing => {}
                }
            }
            room.turns.clear();
            std::mem::swap(&mut room.turns, &mut room.next);
            // What arrives from now on is for the next poll.
            if room.turns.is_empty() {
                break;
            }
        }
        let finished = room.turns.is_empty();
        for turn in 0..room.turns.len() {
            let (_, place) = room.turns[turn];
            room.begin(place);
            bitmap.ready_bits.set(place as u32);
        }
        room.turns.clear();
        *self.turns.lock() = room;
        finished
    }
}
