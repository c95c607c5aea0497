//! What two connected processes share: two rings and a few words of each side.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use rustix::io::Errno;

use super::doorbell::Doorbell;
use super::memfd::{SharedMemory, Writers};
use super::peer::Peer;
use super::remote_keys::CopyGuard;
use super::ring::{Consumer, Ring};
use crate::device::soft::engine::ready_bitmap::BitmapPlace;

/// Where a side is in the life of a connection. What it says last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum EndPhase {
    /// Not connected yet.
    Fresh = 0,
    /// Its memory may be reached.
    Open = 1,
    /// It sends nothing more. What it has sent is to be received still.
    Closed = 2,
    /// It has ended the connection because something was wrong.
    Broken = 3,
    /// Its consumer has ended the connection at once.
    Aborted = 4,
}

/// The words of one side; it alone writes them, but for the bell.
#[repr(C, align(128))]
pub(crate) struct EndState {
    state: AtomicU32,
    /// The protection domain of its queue pair.
    pd: AtomicU32,
    /// Where it wants to be marked.
    slot: AtomicU32,
    pub doorbell: Doorbell,
    /// Its visits to the other side's memory.
    pub visits: CopyGuard,
}

impl EndState {
    /// What the side says of itself. Something else than a state is as good as broken.
    #[inline]
    pub fn state(&self) -> EndPhase {
        match self.state.load(Ordering::SeqCst) {
            0 => EndPhase::Fresh,
            1 => EndPhase::Open,
            2 => EndPhase::Closed,
            4 => EndPhase::Aborted,
            _ => EndPhase::Broken,
        }
    }

    pub fn set_state(&self, state: EndPhase) {
        self.state.store(state as u32, Ordering::SeqCst);
    }

    pub fn pd(&self) -> u32 {
        self.pd.load(Ordering::Relaxed)
    }

    pub fn set_pd(&self, pd: u32) {
        self.pd.store(pd, Ordering::Relaxed);
    }

    /// Where the other side is to mark, after a barrier, that it has done something.
    #[inline]
    pub fn slot(&self) -> BitmapPlace {
        BitmapPlace(self.slot.load(Ordering::Acquire))
    }

    /// What was done before and not marked is to be looked at after this.
    pub fn set_slot(&self, slot: BitmapPlace) {
        self.slot.swap(slot.0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// The shared memory of a connection. All zero is the beginning.
#[repr(C)]
struct Shared {
    halves: [EndState; 2],
    /// Each is filled by the side of its number.
    rings: [Ring; 2],
}

const LEN: usize = size_of::<Shared>().next_multiple_of(4096);

/// One end of it.
pub(crate) struct SharedSegment {
    /// What the pointers point into.
    #[cfg_attr(not(test), expect(dead_code, reason = "held to stay mapped"))]
    memory: SharedMemory,
    ours: NonNull<EndState>,
    theirs: NonNull<EndState>,
    out: NonNull<Ring>,
    incoming: NonNull<Ring>,
    peer: Arc<Peer>,
    /// The cell that is waited for, or [`NOTHING`], for a look without the lock of the queue
    /// pair.
    pub next: AtomicU64,
    /// Where its bytes will be, if it has some.
    pub next_bytes: AtomicU64,
    /// A request waits for room, likewise.
    pub blocked: AtomicBool,
    /// The peer has been in our memory for longer than anybody waits.
    pub given_up: AtomicBool,
}

// SAFETY: all that the pointers point to is made for several threads, and is there as long as the
// memory is.
unsafe impl Send for SharedSegment {}
// SAFETY: as above.
unsafe impl Sync for SharedSegment {}

/// No cell.
pub(crate) const NOTHING: u64 = u64::MAX;

/// The memory of a connection whose peer is not known yet.
pub(super) struct NewSegment(SharedMemory);

impl NewSegment {
    /// Makes the memory, and the file to be given to the peer.
    pub fn create() -> Result<(OwnedFd, NewSegment), Errno> {
        let (fd, memory) = SharedMemory::create(c"libdat-wire", LEN, Writers::All)?;
        Ok((fd, NewSegment(memory)))
    }

    /// Of the file that a peer has given.
    pub fn open(fd: &OwnedFd) -> Result<NewSegment, Errno> {
        SharedMemory::open(fd, LEN, true).map(NewSegment)
    }

    fn shared(&self) -> &Shared {
        // SAFETY: made of atomics and cells, and mapped to be written.
        unsafe { self.0.as_ref() }
    }

    /// Puts the end together. `side` is 0 for who connects, 1 for who accepts.
    pub fn with(self, peer: Arc<Peer>, side: usize) -> Arc<SharedSegment> {
        let shared = self.shared();
        let (ours, theirs) = (&shared.halves[side], &shared.halves[1 - side]);
        let (out, incoming) = (&shared.rings[side], &shared.rings[1 - side]);
        Arc::new(SharedSegment {
            ours: ours.into(),
            theirs: theirs.into(),
            out: out.into(),
            incoming: incoming.into(),
            memory: self.0,
            peer,
            next: AtomicU64::new(NOTHING),
            next_bytes: AtomicU64::new(0),
            blocked: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        })
    }
}

#[cfg(test)]
impl SharedSegment {
    /// Overwrites all that is shared: with noise, or with noise in which some words are right.
    pub fn scribble(&self, seed: u64) {
        // SAFETY: atomics, over the same memory.
        let words = unsafe { self.memory.as_slice::<AtomicU64>() };
        let mut state = seed;
        for (i, word) in words.iter().enumerate() {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let noise = state >> 20 ^ state;
            let small = (noise & 0xff) << 48 | (noise >> 8 & 3) << 32 | 1;
            word.store(
                match seed % 4 {
                    // A first cell, with kinds and lengths at random.
                    0 if i % 8 == 0 => small & 0x03ff_ffff_ffff_ffff,
                    1 if i % 8 == 0 => noise & 0x0303_ffff_0000_0000 | 1,
                    2 => noise & 0x3f,
                    _ => noise,
                },
                Ordering::Relaxed,
            );
        }
        // A visit that does not end is a matter of its own.
        for half in [self.ours(), self.theirs()] {
            drop(half.visits.enter(&mut 0));
        }
    }
}

impl SharedSegment {
    /// What is waited for from now on.
    #[inline]
    pub(crate) fn expect(&self, consumer: &Consumer) {
        self.next.store(consumer.next(), Ordering::Relaxed);
        self.next_bytes
            .store(consumer.next_bytes(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    #[inline]
    pub fn ours(&self) -> &EndState {
        // SAFETY: in the memory, and only ever shared.
        unsafe { self.ours.as_ref() }
    }

    #[inline]
    pub fn theirs(&self) -> &EndState {
        // SAFETY: as above.
        unsafe { self.theirs.as_ref() }
    }

    /// The ring that we fill.
    #[inline]
    pub(crate) fn out(&self) -> &Ring {
        // SAFETY: as above.
        unsafe { self.out.as_ref() }
    }

    /// The ring that the peer fills.
    #[inline]
    pub(super) fn incoming(&self) -> &Ring {
        // SAFETY: as above.
        unsafe { self.incoming.as_ref() }
    }
}
