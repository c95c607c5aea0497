//! What polling consumers look at directly: connections through shared memory.
//!
//! A connection is awake or asleep. While consumers poll, all are awake and their peers wake
//! nobody. Who stops polling leaves them to the thread: a consumer that blocks puts them to
//! sleep, and the thread does so when there was no poll for a while. A peer wakes the thread of
//! those that sleep. The thread itself never looks at connections on the chance that something
//! has come.
//!
//! A look at each of a few connections is cheaper than marks, which cost the peers a locked
//! instruction and both sides a cache line more. Of many connections peers mark those that have
//! something ([`board`](crate::device::soft::transport::shm::ready_bitmap)): then a look, and a sleep, cost what they do with
//! one. A peer that spoils the marks of others delays them: the thread goes through all
//! connections bit by bit while consumers poll, and once more before it leaves them alone.

pub(crate) mod turns;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::rounds::{LastTurn, TurnClock};
use crate::device::PollOutcome;
use crate::device::soft::transport::shm::ready_bitmap::{BITS, WORDS};
use crate::device::soft::transport::shm::{Board, Slot};
use crate::device::soft::upcalls::Upcalls;
use crate::handle::{Guard, Shared, pin::pin};

/// Connections that are looked at one by one.
const FEW: usize = 16;
/// Connections of a board. Others sleep all the time.
const MOST: usize = WORDS * CHUNK;
/// Connections that share a word of marks.
const CHUNK: usize = BITS as usize;

/// How a connection hears of its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// The peer wakes the thread.
    Asleep,
    /// Consumers look at it.
    Seen,
    /// The peer marks it.
    Marked(Slot),
}

/// What a look at a connection finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    Nothing,
    /// A message.
    Message,
    /// A request waits for room, and nothing else.
    Blocked,
}

/// Something to look at.
pub(crate) trait Polled: Send + Sync {
    /// Takes all messages if it is the only one: true if something had come.
    fn poll(&self, guard: &Guard, up: &mut Upcalls) -> bool;
    /// Looks, without a lock.
    fn look(&self) -> Found;
    /// Takes one message, or all, if there is one, and does what else there is to do.
    fn take(&self, all: bool, guard: &Guard, up: &mut Upcalls);
    /// The same where nothing else may be left undone: it may be about to wait for what has come.
    fn serve(&self, guard: &Guard, up: &mut Upcalls);
    /// When it was served last.
    fn last_turn(&self) -> &LastTurn;
    /// It hears of its peer like that from now on. Messages are left for [`Polled::take`].
    fn set_manner(&self, manner: Manner, up: &mut Upcalls);
}

type Line = Arc<dyn Polled>;
/// Those of a word of marks, by their bits.
type Chunk = [Option<Line>; CHUNK];

/// See the module.
pub(crate) struct PolledSet {
    /// By their places.
    chunks: [Shared<Chunk>; WORDS],
    /// All of them, if they are few.
    few: Shared<Vec<Line>>,
    /// Guards changes of who is there. Taken with the lock of a queue pair held.
    change: Mutex<()>,
    len: AtomicUsize,
    /// Chunks that are in use.
    words: AtomicUsize,
    /// Guards changes of what follows. Queue pairs are locked with it held.
    turn: Mutex<()>,
    /// They are marked.
    many: AtomicBool,
    board: OnceLock<Option<Board>>,
    /// They have been made so last.
    awake: AtomicBool,
    /// Counts polls.
    looks: AtomicU32,
    /// The thread looks whether there are polls.
    ticking: AtomicBool,
    /// The chunk that the thread goes through next.
    next: AtomicUsize,
    clock: TurnClock,
    /// Who serves more than one of them has this. Queue pairs are locked with it held.
    serving: Mutex<()>,
}

impl Default for PolledSet {
    fn default() -> Self {
        PolledSet {
            chunks: std::array::from_fn(|_| Shared::empty()),
            few: Shared::empty(),
            change: Mutex::new(()),
            len: AtomicUsize::new(0),
            words: AtomicUsize::new(0),
            turn: Mutex::new(()),
            many: AtomicBool::new(false),
            board: OnceLock::new(),
            awake: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            ticking: AtomicBool::new(false),
            next: AtomicUsize::new(0),
            clock: TurnClock::default(),
            serving: Mutex::new(()),
        }
    }
}

/// Whether so many are to be marked, who are marked now or not.
#[inline]
fn is_many(len: usize, now: bool) -> bool {
    len > if now { FEW / 2 } else { FEW }
}

/// Where there is room in a chunk, or how much of it is used.
fn position(chunk: Option<&Chunk>, f: impl Fn(&Option<Line>) -> bool) -> Option<usize> {
    match chunk {
        Some(chunk) => chunk.iter().position(f),
        None => f(&None).then_some(0),
    }
}

impl PolledSet {
    /// Looks at one more. Gives how it is to hear of its peer: whoever changes that for the
    /// others from now on does so for this one. `None` if there is no room for it here.
    pub fn add(&self, line: Line) -> Option<Manner> {
        let _change = self.change.lock();
        let len = self.len.load(Ordering::Relaxed);
        if len >= MOST || len >= FEW && self.board().is_none() {
            return None;
        }
        let guard = pin();
        let places = self.chunks.iter().map(|chunk| chunk.get(&guard));
        let mut free = places.enumerate().filter_map(|(word, chunk)| {
            let bit = position(chunk, Option::is_none)?;
            Some((word, bit))
        });
        let (word, bit) = free.next()?;
        drop(guard);
        self.put(word, bit, Some(line));
        self.count(len + 1);
        Some(self.manner(word * CHUNK + bit))
    }

    pub fn remove(&self, line: &Line) {
        let _change = self.change.lock();
        let guard = pin();
        let mut chunks = self.chunks.iter().enumerate();
        let found = chunks.find_map(|(word, chunk)| {
            let is_it = |other: &Option<Line>| matches!(other, Some(o) if Arc::ptr_eq(o, line));
            Some((word, position(chunk.get(&guard), is_it)?))
        });
        drop(guard);
        if let Some((word, bit)) = found {
            self.put(word, bit, None);
            self.count(self.len.load(Ordering::Relaxed) - 1);
        }
    }

    fn put(&self, word: usize, bit: usize, line: Option<Line>) {
        let old = self.chunks[word].get_shared();
        let mut chunk = old.map_or_else(|| [const { None }; CHUNK], |old| (*old).clone());
        chunk[bit] = line;
        let used = chunk.iter().any(Option::is_some);
        self.chunks[word].set(used.then(|| Arc::new(chunk)));
    }

    /// Takes note of how many there are.
    fn count(&self, len: usize) {
        let guard = pin();
        let last = self.chunks.iter().rposition(|c| c.get(&guard).is_some());
        let words = last.map_or(0, |word| word + 1);
        drop(guard);
        self.words.store(words, Ordering::SeqCst);
        let few = (len <= FEW).then(|| Arc::new(self.all().into_iter().map(|(_, l)| l).collect()));
        self.few.set(few);
        self.len.store(len, Ordering::SeqCst);
    }

    /// All of them, with their places.
    fn all(&self) -> Vec<(usize, Line)> {
        let guard = pin();
        let chunks = self.chunks.iter().map(|chunk| chunk.get(&guard));
        let lines = chunks.enumerate().flat_map(|(word, chunk)| {
            let lines = chunk.into_iter().flatten().enumerate();
            lines.filter_map(move |(bit, line)| Some((word * CHUNK + bit, line.clone()?)))
        });
        lines.collect()
    }

    #[inline(never)]
    fn board(&self) -> Option<&Board> {
        self.board.get_or_init(Board::take).as_ref()
    }

    #[inline(always)]
    fn marked(&self) -> Option<&Board> {
        if self.many.load(Ordering::SeqCst) {
            self.board()
        } else {
            None
        }
    }

    /// How the one at that place hears of its peer.
    fn manner(&self, place: usize) -> Manner {
        match self.marked() {
            Some(board) => Manner::Marked(board.slot(place as u32)),
            None if self.awake.load(Ordering::SeqCst) => Manner::Seen,
            None => Manner::Asleep,
        }
    }

    /// A consumer polls. Where something else is to be changed as well it takes
    /// [`PolledSet::look_around`].
    #[inline]
    pub fn look(&self, guard: &Guard) -> PollOutcome {
        let len = self.len.load(Ordering::Relaxed);
        if len == 0 {
            return PollOutcome::Nothing;
        }
        if !self.awake.load(Ordering::Relaxed) || self.is_to_adapt(len) {
            return PollOutcome::NeedsProgress;
        }
        let mut up = Upcalls::default();
        let came = self.serve(guard, &mut up);
        up.run_after(guard);
        if came {
            PollOutcome::Arrived
        } else {
            PollOutcome::Nothing
        }
    }

    /// The same outside of a section. True if [`PolledSet::tick`] has to be seen to, which finds
    /// when the polls end.
    pub fn look_around(&self) -> bool {
        let len = self.len.load(Ordering::Relaxed);
        if len == 0 {
            return false;
        }
        if self.is_to_adapt(len) {
            let mut up = Upcalls::default();
            let turn = self.turn.lock();
            self.adapt(&mut up);
            drop(turn);
            up.run();
        }
        let mut up = Upcalls::default();
        self.serve(&pin(), &mut up);
        up.run();
        !self.awake.load(Ordering::Relaxed) && self.wake()
    }

    /// Whether there are many now and were not, or the other way round.
    #[inline]
    fn is_to_adapt(&self, len: usize) -> bool {
        let many = self.many.load(Ordering::Relaxed);
        is_many(len, many) != many
    }

    /// Looks at all of them, for a consumer; true if something had come.
    #[inline]
    fn serve(&self, guard: &Guard, up: &mut Upcalls) -> bool {
        // Not more than one of several threads need count.
        let looks = self.looks.load(Ordering::Relaxed);
        self.looks.store(looks.wrapping_add(1), Ordering::Relaxed);
        if let Some(board) = self.marked() {
            let words = self.words.load(Ordering::Relaxed);
            let marked = (0..words).any(|word| board.marks().is_marked(word));
            if marked && let Some(_serving) = self.serving.try_lock() {
                self.take_marks(board, None, guard, up);
            }
            return marked;
        }
        match self.few.get(guard).map_or(&[][..], |few| few) {
            [] => false,
            [only] => only.poll(guard, up),
            few => {
                let found = few.iter().any(|line| line.look() != Found::Nothing);
                if found && let Some(_serving) = self.serving.try_lock() {
                    self.take_few(few, guard, up);
                }
                found
            }
        }
    }

    /// Changes between few and many. The caller has the turn.
    #[cold]
    fn adapt(&self, up: &mut Upcalls) {
        let many = self.many.load(Ordering::SeqCst);
        let wanted = is_many(self.len.load(Ordering::SeqCst), many);
        if wanted != many {
            let change = self.change.lock();
            self.many.store(wanted, Ordering::SeqCst);
            drop(change);
            self.tell(up);
        }
    }

    /// Sees to it that all hear of their peers as they should, and have looked since. The
    /// caller has the turn.
    fn tell(&self, up: &mut Upcalls) {
        let awake = self.awake.load(Ordering::SeqCst);
        if let Some(board) = self.board.get().and_then(Option::as_ref) {
            match awake {
                true => board.said().wake(),
                false => board.said().sleep(),
            }
        }
        for (place, line) in self.all() {
            line.set_manner(self.manner(place), up);
        }
    }

    #[cold]
    fn wake(&self) -> bool {
        let mut up = Upcalls::default();
        let turn = self.turn.lock();
        self.awake.store(true, Ordering::SeqCst);
        match self.marked() {
            Some(board) => board.said().wake(),
            None => self.tell(&mut up),
        }
        drop(turn);
        up.run();
        fence(Ordering::SeqCst);
        // Either a tick has seen our look, or we see that there is none to come.
        !self.ticking.swap(true, Ordering::SeqCst)
    }

    /// A consumer is about to block.
    pub fn sleep(&self) {
        if !self.awake.load(Ordering::SeqCst) {
            return;
        }
        let mut up = Upcalls::default();
        let turn = self.turn.lock();
        if self.awake.swap(false, Ordering::SeqCst) {
            self.fall_asleep(&mut up);
        }
        drop(turn);
        up.run();
    }

    /// From now on peers wake the thread. The caller has the turn.
    fn fall_asleep(&self, up: &mut Upcalls) {
        match self.marked() {
            Some(board) => {
                board.said().sleep();
                let _serving = self.serving.lock();
                self.take_marks(board, None, &pin(), up);
            }
            None => {
                self.tell(up);
                self.take_all(up);
            }
        }
    }

    /// Serves those that have something, for others than consumers that poll.
    fn take_all(&self, up: &mut Upcalls) {
        let _serving = self.serving.lock();
        let guard = pin();
        if let Some(few) = self.few.get(&guard) {
            self.take_few(few, &guard, up);
        }
    }

    /// Sockets were served, perhaps because a peer rang: it does so once in a sleep, so that
    /// another sleep begins. True if [`PolledSet::tick`] has to be seen to, as for a look.
    #[inline]
    pub fn served(&self, up: &mut Upcalls) -> bool {
        if self.len.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.serve_asleep(up)
    }

    /// Serves those that have something, unless consumers poll. True as above.
    #[cold]
    pub fn serve_asleep(&self, up: &mut Upcalls) -> bool {
        if self.awake.load(Ordering::SeqCst) {
            return false;
        }
        let len = self.len.load(Ordering::Relaxed);
        if !self.many.load(Ordering::SeqCst) && !self.is_to_adapt(len) {
            self.take_all(up);
            return false;
        }
        let _turn = self.turn.lock();
        self.adapt(up);
        if self.awake.load(Ordering::SeqCst) {
            return false;
        }
        self.fall_asleep(up);
        !self.ticking.swap(true, Ordering::SeqCst)
    }

    /// Whether [`PolledSet::tick`] is to be called from time to time.
    pub fn is_ticking(&self) -> bool {
        self.ticking.load(Ordering::SeqCst)
    }

    /// Time has passed since the last call; `seen` is of that. All sleep if nobody has polled.
    pub fn tick(&self, seen: &mut u32) {
        self.ticking.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut up = Upcalls::default();
        let looks = self.looks.load(Ordering::SeqCst);
        if looks != *seen {
            *seen = looks;
            self.ticking.store(true, Ordering::SeqCst);
            if self.many.load(Ordering::Relaxed) {
                let words = self.words.load(Ordering::Relaxed).max(1);
                let word = self.next.fetch_add(1, Ordering::Relaxed) % words;
                self.go_through(word, &mut up);
            }
        } else {
            let turn = self.turn.lock();
            self.awake.store(false, Ordering::SeqCst);
            self.fall_asleep(&mut up);
            drop(turn);
            if self.many.load(Ordering::Relaxed) {
                let words = 0..self.words.load(Ordering::Relaxed);
                words.for_each(|word| self.go_through(word, &mut up));
            }
        }
        up.run();
    }

    /// Looks whether marks of a chunk were lost.
    fn go_through(&self, word: usize, up: &mut Upcalls) {
        if let Some(board) = self.marked() {
            let _serving = self.serving.lock();
            self.take_marks(board, Some(word), &pin(), up);
        }
    }
}
