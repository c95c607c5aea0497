//! The connections that consumers poll without a system call: those through shared memory.
//!
//! The set is polled or unpolled. While consumers poll, peers send no notification. A consumer
//! that stops polling leaves the connections to the engine's thread: a consumer that blocks makes
//! the set unpolled, and so does a timer when there was no poll for a while. The peers of an
//! unpolled set notify the engine. The thread itself never polls connections on the chance of an
//! arrival.
//!
//! To peek at each of a few connections is cheaper than a ready bitmap, which costs the peers a
//! locked instruction and both ends a cache line more. Of many connections the peers set the bit
//! of those that have an arrival ([`ready_bitmap`](super::ready_bitmap)):
//! then a poll, and a sleep, cost what they do with one connection. A peer that clears the bits of
//! others delays them: while consumers poll, the timer rechecks one chunk of the connections after
//! the other, and all of them once more before the set becomes unpolled.
//!
//! [`members`] is which connections there are, [`turns`] in which order they are served.

mod members;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use crate::lock::Mutex;

use super::ARRIVED_TURNS;
use super::poll_watch::PollWatch;
use super::ready_bitmap::{BITS, BitmapPlace, ReadyBitmap, TakeBitmap, WORDS};
use super::rounds::{LastServed, ServiceClock};
use crate::device::PollOutcome;
use crate::device::soft::upcalls::Upcalls;
use crate::handle::{Guard, Shared, pin::pin};

/// Number of connections up to which each is peeked at.
const FEW: usize = 16;
/// Number of connections of a set. Further ones notify the engine all the time.
const CAPACITY: usize = WORDS * CHUNK;
/// Number of connections whose ready bits share a word.
const CHUNK: usize = BITS as usize;

/// How the peer of a connection notifies us of an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotifyMode {
    /// The peer wakes the engine.
    Doorbell,
    /// The peer does nothing: consumers poll the connection.
    Polled,
    /// The peer sets this bit.
    Bitmap(BitmapPlace),
}

/// What a peek at a connection finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PollResult {
    /// Nothing to do.
    Nothing,
    /// A message has arrived.
    Message,
    /// Requests of the peer that take no receive have arrived, and are executed by [`PollEntry::progress`]. There may
    /// be a message behind them.
    Requests,
    /// No message has arrived, but a request waits for room in the ring to the peer, or a message for its sender.
    Blocked,
}

/// A connection to be polled.
pub(crate) trait PollEntry: Send + Sync {
    /// Polls the only connection of a set: delivers all messages until there is another one; true if something had
    /// arrived.
    fn poll(&self, guard: &Guard, up: &mut Upcalls) -> bool;
    /// The connection is about to be served, as one of many: begins to fetch what that takes.
    fn fetch(&self, guard: &Guard);
    /// What there is to do, read without a lock.
    fn peek(&self) -> PollResult;
    /// Delivers one message, if there is one, and does the other work that is due. False if no message is complete
    /// with that: of a long one a part may have arrived.
    fn deliver(&self, guard: &Guard, up: &mut Upcalls) -> bool;
    /// Does the other work alone, after a peek that has found no message. A later peek finds one: behind requests, or
    /// as another thread may just have been about to let it be seen.
    fn progress(&self, guard: &Guard, up: &mut Upcalls);
    /// When the connection was served last.
    fn last_served(&self) -> &LastServed;
    /// Changes how the peer notifies us. Messages are left for [`PollEntry::deliver`].
    fn set_notify_mode(&self, notify_mode: NotifyMode, up: &mut Upcalls);
}

type Entry = Arc<dyn PollEntry>;
/// The connections whose ready bits share a word, by their bits.
type Chunk = [Option<Entry>; CHUNK];

/// What the caller of a function of a set has to arrange for.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Due {
    /// [`PollSet::check_polls`] is to be called after a while.
    pub check: bool,
    /// [`PollSet::after_service`] is to be called at once, by whichever thread serves the sockets:
    /// messages were left, and no consumer polls.
    pub service: bool,
}

/// The polled connections of an engine.
pub(crate) struct PollSet {
    /// The connections by their places: those of the word `place / CHUNK` in each.
    chunks: [Shared<Chunk>; WORDS],
    /// All connections, if they are at most [`FEW`].
    few: Shared<Vec<Entry>>,
    /// Guards changes of the members. Taken with the lock of a queue pair held.
    members: Mutex<()>,
    /// Number of connections.
    len: AtomicUsize,
    /// Number of chunks up to the last one with a connection.
    chunks_used: AtomicUsize,
    /// Guards changes of `uses_bitmap`, for which `serving` is held too, and `polled`. Queue pairs are locked with it
    /// held.
    mode: Mutex<()>,
    /// Whether peers set ready bits while the set is polled.
    uses_bitmap: AtomicBool,
    /// The ready bitmap, made when it is first needed; `None` if there could be none.
    bitmap: OnceLock<Option<ReadyBitmap>>,
    /// Makes the bitmap.
    take_bitmap: TakeBitmap,
    /// Room for the turns of as many connections as there can be, once there is a bitmap. Taken by
    /// the thread that serves them, which holds `serving`.
    turns: Mutex<turns::Room>,
    /// Whether the set was last made polled, rather than unpolled.
    polled: AtomicBool,
    /// Number of polls, modulo 2^32. Concurrent polls may count as one.
    poll_count: AtomicU32,
    /// Whether [`PollSet::check_polls`] is to be called.
    check_due: AtomicBool,
    /// Number of chunks that were rechecked; modulo those in use, the next one.
    rechecked: AtomicUsize,
    /// The clock of [`PollEntry::last_served`].
    clock: ServiceClock,
    /// Held by the thread that serves more than one connection. Queue pairs are locked with it
    /// held.
    serving: Mutex<()>,
}

/// Whether a set of `len` connections needs the bitmap, which it uses `now` or not.
#[inline]
fn needs_bitmap(len: usize, now: bool) -> bool {
    len > if now { FEW / 2 } else { FEW }
}

impl PollSet {
    /// A set without connections.
    pub(super) fn new(take_bitmap: TakeBitmap) -> PollSet {
        PollSet {
            chunks: std::array::from_fn(|_| Shared::empty()),
            few: Shared::empty(),
            members: Mutex::new(()),
            len: AtomicUsize::new(0),
            chunks_used: AtomicUsize::new(0),
            mode: Mutex::new(()),
            uses_bitmap: AtomicBool::new(false),
            bitmap: OnceLock::new(),
            take_bitmap,
            turns: Mutex::default(),
            polled: AtomicBool::new(false),
            poll_count: AtomicU32::new(0),
            check_due: AtomicBool::new(false),
            rechecked: AtomicUsize::new(0),
            clock: ServiceClock::default(),
            serving: Mutex::new(()),
        }
    }

    #[inline(never)]
    fn bitmap(&self) -> Option<&ReadyBitmap> {
        let make = || {
            *self.turns.lock() = turns::Room::for_all()?;
            (self.take_bitmap)()
        };
        self.bitmap.get_or_init(make).as_ref()
    }

    /// The bitmap if peers set its bits.
    #[inline(always)]
    fn bitmap_in_use(&self) -> Option<&ReadyBitmap> {
        if self.uses_bitmap.load(Ordering::SeqCst) {
            self.bitmap()
        } else {
            None
        }
    }

    /// How the peer of the connection at that place notifies us.
    fn notify_mode(&self, place: usize) -> NotifyMode {
        match self.bitmap_in_use() {
            Some(bitmap) => NotifyMode::Bitmap(bitmap.place(place as u32)),
            None if self.polled.load(Ordering::SeqCst) => NotifyMode::Polled,
            None => NotifyMode::Doorbell,
        }
    }

    /// Polls the connections, for a consumer. [`PollOutcome::NeedsProgress`] if the mode has to be changed as
    /// well: that is for [`PollSet::poll_and_adapt`].
    #[inline]
    pub fn poll(&self, guard: &Guard) -> PollOutcome {
        let len = self.len.load(Ordering::Relaxed);
        if len == 0 {
            return PollOutcome::Nothing;
        }
        if !self.polled.load(Ordering::Relaxed) || self.is_to_adapt(len) {
            return PollOutcome::NeedsProgress;
        }
        let mut up = Upcalls::default();
        let arrived = self.serve_polled(guard, &mut up);
        up.run_after(guard);
        if arrived {
            PollOutcome::Arrived
        } else {
            PollOutcome::Nothing
        }
    }

    /// Polls the connections, for a consumer outside of a read-side section, and changes the mode
    /// if it has to.
    pub(super) fn poll_and_adapt(&self) -> Due {
        let len = self.len.load(Ordering::Relaxed);
        if len == 0 {
            return Due::default();
        }
        if self.is_to_adapt(len) {
            let mut up = Upcalls::default();
            let mode = self.mode.lock();
            self.adapt(&mut up);
            drop(mode);
            up.run();
        }
        let mut up = Upcalls::default();
        self.serve_polled(&pin(), &mut up);
        up.run();
        Due {
            check: !self.polled.load(Ordering::Relaxed) && self.start_polling(),
            service: false,
        }
    }

    /// Whether the set needs the bitmap and does not use it, or the other way round.
    #[inline]
    fn is_to_adapt(&self, len: usize) -> bool {
        let uses_bitmap = self.uses_bitmap.load(Ordering::Relaxed);
        needs_bitmap(len, uses_bitmap) != uses_bitmap
    }

    /// Serves the connections with an arrival, for a consumer that polls; true if there was one. What is
    /// left is for the next poll, or for whoever makes the set unpolled.
    #[inline]
    fn serve_polled(&self, guard: &Guard, up: &mut Upcalls) -> bool {
        // Polls by several threads at once may count as one.
        let poll_count = self.poll_count.load(Ordering::Relaxed);
        self.poll_count
            .store(poll_count.wrapping_add(1), Ordering::Relaxed);
        if let Some(bitmap) = self.bitmap_in_use() {
            let words = self.chunks_used.load(Ordering::Relaxed);
            let ready = bitmap.ready_bits.is_ready(words);
            if ready && let Some(_serving) = self.serving.try_lock() {
                self.serve_ready(bitmap, None, guard, up);
            }
            return ready;
        }
        match self.few.get(guard).map_or(&[][..], |few| few) {
            [] => false,
            [only] => only.poll(guard, up),
            few => {
                let arrived = few.iter().any(|entry| entry.peek() != PollResult::Nothing);
                if arrived && let Some(_serving) = self.serving.try_lock() {
                    self.serve_few(guard, up);
                }
                arrived
            }
        }
    }

    /// Starts or stops to use the bitmap, if the number of connections asks for it. The caller
    /// holds `mode`.
    #[cold]
    fn adapt(&self, up: &mut Upcalls) {
        let uses_bitmap = self.uses_bitmap.load(Ordering::SeqCst);
        let needs_bitmap = needs_bitmap(self.len.load(Ordering::SeqCst), uses_bitmap);
        if needs_bitmap != uses_bitmap {
            // Until all peers notify us in the same way: who serves meanwhile, by bits, would deliver a message of one
            // that sets them before one which was sent earlier by one that does not.
            let _serving = self.serving.lock();
            let members = self.members.lock();
            self.uses_bitmap.store(needs_bitmap, Ordering::SeqCst);
            drop(members);
            self.apply_notify_mode(up);
        }
    }

    /// Has the peers of all connections notify us as they are to, and each connection check once
    /// for what its peer did before. The caller holds `mode`.
    fn apply_notify_mode(&self, up: &mut Upcalls) {
        let polled = self.polled.load(Ordering::SeqCst);
        if let Some(bitmap) = self.bitmap.get().and_then(Option::as_ref) {
            match polled {
                true => bitmap.owner_state.wake(),
                false => bitmap.owner_state.sleep(),
            }
        }
        self.for_each(|place, entry| {
            let notify_mode = self.notify_mode(place);
            entry.set_notify_mode(notify_mode, up);
            self.set_bit(notify_mode);
        });
    }

    /// Sets the ready bit of a connection whose peer has just begun to do so: what arrived before has none.
    fn set_bit(&self, notify_mode: NotifyMode) {
        if let NotifyMode::Bitmap(place) = notify_mode {
            let _polled = self.mark(place);
        }
    }

    /// Makes the set polled. True if the caller has to arrange for [`PollSet::check_polls`].
    #[cold]
    fn start_polling(&self) -> bool {
        let mut up = Upcalls::default();
        let mode = self.mode.lock();
        self.polled.store(true, Ordering::SeqCst);
        match self.bitmap_in_use() {
            Some(bitmap) => bitmap.owner_state.wake(),
            None => self.apply_notify_mode(&mut up),
        }
        drop(mode);
        up.run();
        fence(Ordering::SeqCst);
        // Either a check has seen this poll counted, or this thread sees that no check is due.
        !self.check_due.swap(true, Ordering::SeqCst)
    }

    /// Makes the set unpolled, for a consumer that is about to block.
    pub(super) fn before_block(&self) -> Due {
        let mut due = Due::default();
        if !self.polled.load(Ordering::SeqCst) {
            return due;
        }
        let mut up = Upcalls::default();
        let mode = self.mode.lock();
        if self.polled.swap(false, Ordering::SeqCst) {
            due.service = !self.stop_polling(&mut up);
        }
        drop(mode);
        up.run();
        due
    }

    /// Has peers notify the engine, and serves what has arrived before; false if messages may be left.
    /// The caller holds `mode` and has cleared `polled`.
    fn stop_polling(&self, up: &mut Upcalls) -> bool {
        // Connections may have been added since the last poll.
        self.adapt(up);
        match self.bitmap_in_use() {
            Some(bitmap) => {
                bitmap.owner_state.sleep();
                let _serving = self.serving.lock();
                self.serve_ready(bitmap, None, &pin(), up)
            }
            None => {
                self.apply_notify_mode(up);
                self.serve_all(up)
            }
        }
    }

    /// Serves what has arrived, for a consumer that does not poll but frees memory.
    pub(super) fn serve_arrived(&self, up: &mut Upcalls) -> Due {
        let mut due = Due::default();
        let len = self.len.load(Ordering::Relaxed);
        if len == 0 {
            return due;
        }
        if self.is_to_adapt(len) {
            let _mode = self.mode.lock();
            self.adapt(up);
        }
        for _ in 0..ARRIVED_TURNS {
            let finished = match self.bitmap_in_use() {
                Some(bitmap) => {
                    let _serving = self.serving.lock();
                    self.serve_ready(bitmap, None, &pin(), up)
                }
                None => self.serve_all(up),
            };
            due.service = !finished;
            if finished {
                break;
            }
        }
        due
    }

    /// Serves few connections, for another thread than one of a consumer that polls; false if messages
    /// may be left.
    fn serve_all(&self, up: &mut Upcalls) -> bool {
        let _serving = self.serving.lock();
        self.serve_few(&pin(), up)
    }

    /// Sockets were served, perhaps because a peer has notified the engine. A peer does so once
    /// while the set is unpolled, so the set is made unpolled anew.
    #[inline]
    pub(super) fn after_service(&self, up: &mut Upcalls) -> Due {
        if self.len.load(Ordering::Relaxed) == 0 {
            return Due::default();
        }
        self.serve_unpolled(up)
    }

    /// Serves what has arrived unless the set is polled.
    #[cold]
    fn serve_unpolled(&self, up: &mut Upcalls) -> Due {
        let mut due = Due::default();
        if self.polled.load(Ordering::SeqCst) {
            return due;
        }
        let len = self.len.load(Ordering::Relaxed);
        if !self.uses_bitmap.load(Ordering::SeqCst) && !self.is_to_adapt(len) {
            due.service = !self.serve_all(up);
            return due;
        }
        let _mode = self.mode.lock();
        if !self.polled.load(Ordering::SeqCst) {
            due.service = !self.stop_polling(up);
            due.check = !self.check_due.swap(true, Ordering::SeqCst);
        }
        due
    }

    /// Sets the ready bit of a connection in which messages were left. True if consumers poll, who find that.
    pub fn mark(&self, place: BitmapPlace) -> bool {
        if let (Some(bitmap), Some((_, bit))) = (self.bitmap_in_use(), place.split()) {
            bitmap.ready_bits.set(bit);
        }
        self.polled.load(Ordering::SeqCst)
    }

    /// Whether there is one connection.
    #[inline]
    pub fn has_one(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 1
    }

    /// Whether no consumer polls, and no check for what was left is due.
    #[cfg(test)]
    pub fn is_at_rest(&self) -> bool {
        !self.polled.load(Ordering::SeqCst) && !self.check_due.load(Ordering::SeqCst)
    }

    /// Whether the peers notify us by ready bits.
    pub fn uses_bitmap(&self) -> bool {
        self.uses_bitmap.load(Ordering::Relaxed)
    }

    /// Makes the set unpolled if no consumer has polled since the last check of `watch`. Otherwise
    /// rechecks the next chunk.
    pub(super) fn check_polls(&self, watch: &mut PollWatch, up: &mut Upcalls) -> Due {
        self.check_due.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let poll_count = self.poll_count.load(Ordering::SeqCst);
        let mut finished = true;
        if watch.check(poll_count) {
            self.check_due.store(true, Ordering::SeqCst);
            if self.uses_bitmap.load(Ordering::Relaxed) {
                let words = self.chunks_used.load(Ordering::Relaxed).max(1);
                let word = self.rechecked.fetch_add(1, Ordering::Relaxed) % words;
                // What is left is for the next poll.
                self.recheck_chunk(word, up);
            }
        } else {
            let mode = self.mode.lock();
            self.polled.store(false, Ordering::SeqCst);
            finished = self.stop_polling(up);
            drop(mode);
            if self.uses_bitmap.load(Ordering::Relaxed) {
                for word in 0..self.chunks_used.load(Ordering::Relaxed) {
                    finished &= self.recheck_chunk(word, up);
                }
            }
        }
        Due {
            check: self.check_due.load(Ordering::SeqCst),
            service: !finished,
        }
    }

    /// Serves the connections of a chunk whose ready bits were lost; false if messages may be left.
    fn recheck_chunk(&self, word: usize, up: &mut Upcalls) -> bool {
        let Some(bitmap) = self.bitmap_in_use() else {
            return true;
        };
        let _serving = self.serving.lock();
        self.serve_ready(bitmap, Some(word), &pin(), up)
    }
}
