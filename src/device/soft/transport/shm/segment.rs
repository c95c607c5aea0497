//! The shared memory of one connection: a ring for each direction, and the state of each end.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use rustix::io::Errno;

use super::atomic_response::AtomicResponse;
use super::doorbell::Doorbell;
use super::memfd::{SharedMemory, Writers};
use super::offer::Offer;
use super::peer::Peer;
use super::remote_keys::CopyGuard;
use super::ring::{Consumer, Ring};
use super::write_claim::WriteClaim;
use crate::descriptor::OwnedFd;
use crate::device::soft::engine::ready_bitmap::BitmapPlace;
use crate::device::soft::mem::scope::Scope;
use crate::device::soft::qp::cache_lines::Place;

/// How far one end of a connection has got, as it reports in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum EndPhase {
    /// Not connected yet.
    Fresh = 0,
    /// Connected: the peer may access the registered memory of this end. With datagrams: this end has the
    /// channel, and there is no such access.
    Open = 1,
    /// Ended gracefully: this end sends nothing more, and the peer receives what is in the ring.
    Closed = 2,
    /// Ended by this end because of an error.
    Broken = 3,
    /// Ended at once by the consumer of this end.
    Aborted = 4,
}

/// The state of one end. Only this end writes it, except for the doorbell, which the peer clears.
#[repr(C, align(128))]
pub(crate) struct EndState {
    /// The [`EndPhase`].
    phase: AtomicU32,
    /// The protection domain of this end's queue pair.
    pd: AtomicU32,
    /// The [`BitmapPlace`] that the peer is to set after it has done something.
    bitmap_place: AtomicU32,
    /// The key of the region of the peer that this end has last used so much that the peer is to move
    /// it to where this end maps it; 0 before the first one.
    promotion: AtomicU32,
    /// The number of this end's queue pair in keys that are open on this connection alone; 0 in an end
    /// that has no such keys.
    qp: AtomicU32,
    /// Armed while this end sleeps.
    pub doorbell: Doorbell,
    /// The copy section in which this end accesses the memory of the peer.
    pub copy_guard: CopyGuard,
}

// Ends of other versions have the same layout.
const _: () = assert!(size_of::<EndState>() == 3 * 128);

impl EndState {
    /// The phase. A value that is no phase counts as [`EndPhase::Broken`].
    #[inline]
    pub fn phase(&self) -> EndPhase {
        match self.phase.load(Ordering::SeqCst) {
            0 => EndPhase::Fresh,
            1 => EndPhase::Open,
            2 => EndPhase::Closed,
            4 => EndPhase::Aborted,
            _ => EndPhase::Broken,
        }
    }

    /// What the other end reads for a message: up to the doorbell.
    fn cache_lines(&self) -> Place {
        Place::up_to(self, &self.doorbell)
    }

    /// Reports the phase of this end.
    pub fn set_phase(&self, phase: EndPhase) {
        self.phase.store(phase as u32, Ordering::SeqCst);
    }

    /// Which keys are open to the peer of this end.
    #[inline]
    pub fn scope(&self) -> Scope {
        Scope {
            pd: self.pd.load(Ordering::Relaxed),
            qp: self.qp.load(Ordering::Relaxed),
        }
    }

    /// To be called before the phase is [`EndPhase::Open`].
    pub fn set_scope(&self, scope: Scope) {
        self.pd.store(scope.pd, Ordering::Relaxed);
        self.qp.store(scope.qp, Ordering::Relaxed);
    }

    /// The key of the region that the peer of this end is to move to where this end maps it; 0 if
    /// there was none.
    #[inline]
    pub fn promotion(&self) -> u32 {
        self.promotion.load(Ordering::Relaxed)
    }

    /// The peer is to move its region with this key to where this end maps it.
    pub fn ask_for_promotion(&self, key: u32) {
        self.promotion.store(key, Ordering::SeqCst);
    }

    /// The bit that the peer of this end is to set, after a barrier, when it has done something.
    #[inline]
    pub fn bitmap_place(&self) -> BitmapPlace {
        BitmapPlace(self.bitmap_place.load(Ordering::Acquire))
    }

    /// Events of before for which the peer has set no bit are found by a poll after this.
    pub fn set_bitmap_place(&self, place: BitmapPlace) {
        self.bitmap_place.swap(place.0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// The layout of the segment. All of it is zero at the beginning.
#[repr(C)]
struct Shared {
    /// The state of the initiator, and that of the responder.
    ends: [EndState; 2],
    /// The ring that the initiator fills, and the one that the responder fills.
    rings: [Ring; 2],
    /// What the initiator offers, and what the responder does.
    offers: [Offer; 2],
    /// The responses to the atomic operations of the initiator, and to those of the responder.
    responses: [AtomicResponse; 2],
    /// The RDMA writes in the ring of the initiator, and those in that of the responder.
    claims: [WriteClaim; 2],
}

/// Size of the segment, in bytes.
const LEN: usize = size_of::<Shared>().next_multiple_of(4096);

/// The segment of a connection, as one end uses it.
pub(crate) struct SharedSegment {
    /// The mapping into which the pointers point.
    #[cfg_attr(not(test), expect(dead_code, reason = "held to stay mapped"))]
    memory: SharedMemory,
    ours: NonNull<EndState>,
    theirs: NonNull<EndState>,
    tx_ring: NonNull<Ring>,
    rx_ring: NonNull<Ring>,
    tx_offer: NonNull<Offer>,
    rx_offer: NonNull<Offer>,
    tx_response: NonNull<AtomicResponse>,
    rx_response: NonNull<AtomicResponse>,
    tx_claim: NonNull<WriteClaim>,
    rx_claim: NonNull<WriteClaim>,
    peer: Arc<Peer>,
    /// Number of the next cell, or [`NO_CELL`] if none is expected: for a poll without
    /// the lock of the queue pair.
    pub next_cell: AtomicU64,
    /// Where the data of that cell begins in the ring, if the cell has some: a count of bytes since
    /// the beginning.
    pub next_data: AtomicU64,
    /// Whether a request waits for room in the ring, or a message for the half that its sender copies: for a poll
    /// without the lock of the queue pair.
    pub send_blocked: AtomicBool,
    /// Whether the peer has been in one copy section for longer than a revocation waits.
    pub peer_stuck: AtomicBool,
}

// SAFETY: all that the pointers point to may be used by several threads, and is mapped as long as
// the mapping exists.
unsafe impl Send for SharedSegment {}
// SAFETY: as above.
unsafe impl Sync for SharedSegment {}

/// No cell is expected.
pub(crate) const NO_CELL: u64 = u64::MAX;

/// The segment of a connection whose peer is not verified yet.
pub(super) struct NewSegment(SharedMemory);

impl NewSegment {
    /// Makes a segment, and returns the file to be sent to the peer.
    pub fn create() -> Result<(OwnedFd, NewSegment), Errno> {
        let (fd, memory) = SharedMemory::create(c"libdat-wire", LEN, Writers::All)?;
        Ok((fd, NewSegment(memory)))
    }

    /// Maps the file that the peer has sent.
    pub fn open(fd: &OwnedFd) -> Result<NewSegment, Errno> {
        SharedMemory::open(fd, LEN, true).map(NewSegment)
    }

    fn shared(&self) -> &Shared {
        // SAFETY: made of atomics and cells, and mapped to be written.
        unsafe { self.0.as_ref() }
    }

    /// The segment as one end uses it. `end` is 0 for the initiator and 1 for the responder.
    pub fn into_segment(self, peer: Arc<Peer>, end: usize) -> Arc<SharedSegment> {
        let shared = self.shared();
        let (ours, theirs) = (&shared.ends[end], &shared.ends[1 - end]);
        let (tx_ring, rx_ring) = (&shared.rings[end], &shared.rings[1 - end]);
        let (tx_offer, rx_offer) = (&shared.offers[end], &shared.offers[1 - end]);
        let (tx_response, rx_response) = (&shared.responses[end], &shared.responses[1 - end]);
        let (tx_claim, rx_claim) = (&shared.claims[end], &shared.claims[1 - end]);
        Arc::new(SharedSegment {
            ours: ours.into(),
            theirs: theirs.into(),
            tx_ring: tx_ring.into(),
            rx_ring: rx_ring.into(),
            tx_offer: tx_offer.into(),
            rx_offer: rx_offer.into(),
            tx_response: tx_response.into(),
            rx_response: rx_response.into(),
            tx_claim: tx_claim.into(),
            rx_claim: rx_claim.into(),
            memory: self.0,
            peer,
            next_cell: AtomicU64::new(NO_CELL),
            next_data: AtomicU64::new(0),
            send_blocked: AtomicBool::new(false),
            peer_stuck: AtomicBool::new(false),
        })
    }
}

#[cfg(test)]
impl SharedSegment {
    /// The words of the segment.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: atomics, over the same memory.
        unsafe { self.memory.as_slice() }
    }

    /// Overwrites the segment: with noise, or with noise in which some words are valid.
    pub fn corrupt(&self, seed: u64) {
        let mut state = seed;
        for (i, word) in self.words().iter().enumerate() {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let noise = state >> 20 ^ state;
            let small = (noise & 0xff) << 48 | (noise >> 8 & 3) << 32 | 1;
            word.store(
                match seed % 4 {
                    // A first cell, with a random kind and length.
                    0 if i % 8 == 0 => small & 0x03ff_ffff_ffff_ffff,
                    1 if i % 8 == 0 => noise & 0x0303_ffff_0000_0000 | 1,
                    2 => noise & 0x3f,
                    _ => noise,
                },
                Ordering::Relaxed,
            );
        }
        // A copy section that does not end has a test of its own.
        for end in [self.ours(), self.theirs()] {
            drop(end.copy_guard.begin(&mut 0, 0));
        }
    }
}

impl SharedSegment {
    /// Sets what polls without the lock of the queue pair expect next.
    #[inline]
    pub(crate) fn set_next(&self, consumer: &Consumer) {
        self.next_cell
            .store(consumer.next_cell(), Ordering::Relaxed);
        self.next_data
            .store(consumer.next_data(), Ordering::Relaxed);
    }

    /// Whether something has arrived, for a poll without the lock of the receiving end.
    #[inline]
    pub(crate) fn has_arrival(&self) -> bool {
        let next = self.next_to_poll();
        next != NO_CELL && Consumer::is_filled(self.rx_ring(), next)
    }

    /// The same; true if that is a [request](super::ring::Kind::is_request), false if it is a message, or a part of one.
    #[inline]
    pub(crate) fn has_request(&self) -> Option<bool> {
        let next = self.next_to_poll();
        if next == NO_CELL {
            return None;
        }
        Consumer::has_request(self.rx_ring(), next)
    }

    /// Number of the next cell, or [`NO_CELL`]. Begins to fetch the data that it may have.
    #[inline]
    fn next_to_poll(&self) -> u64 {
        let next = self.next_cell.load(Ordering::Relaxed);
        Consumer::prefetch(self.rx_ring(), self.next_data.load(Ordering::Relaxed));
        next
    }

    /// Begins to fetch the cell of the next message, and the one behind it: that is looked at to see whether
    /// another message has arrived.
    #[inline]
    pub fn fetch_cells(&self) {
        let next = self.next_cell.load(Ordering::Relaxed);
        Consumer::prefetch_cells(self.rx_ring(), next);
    }

    /// What a message takes of the segment: this, what the peer says about its end, and the counters of
    /// the ring that the peer fills.
    pub fn cache_lines(&self) -> [Place; 3] {
        let theirs = self.theirs();
        let ring = self.rx_ring();
        [Place::of(self), theirs.cache_lines(), ring.cache_lines()]
    }

    /// The process at the other end.
    #[inline]
    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// The state of our end.
    #[inline]
    pub fn ours(&self) -> &EndState {
        // SAFETY: inside the mapping, and only used by shared references.
        unsafe { self.ours.as_ref() }
    }

    /// The state of the peer's end.
    #[inline]
    pub fn theirs(&self) -> &EndState {
        // SAFETY: as above.
        unsafe { self.theirs.as_ref() }
    }

    /// The ring that our end fills.
    #[inline]
    pub(crate) fn tx_ring(&self) -> &Ring {
        // SAFETY: as above.
        unsafe { self.tx_ring.as_ref() }
    }

    /// The ring that the peer fills.
    #[inline]
    pub(crate) fn rx_ring(&self) -> &Ring {
        // SAFETY: as above.
        unsafe { self.rx_ring.as_ref() }
    }

    /// The long message that our end offers.
    #[inline]
    pub(crate) fn tx_offer(&self) -> &Offer {
        // SAFETY: as above.
        unsafe { self.tx_offer.as_ref() }
    }

    /// The long message that the peer offers.
    #[inline]
    pub(crate) fn rx_offer(&self) -> &Offer {
        // SAFETY: as above.
        unsafe { self.rx_offer.as_ref() }
    }

    /// The response to the atomic operation of our end.
    pub(super) fn tx_response(&self) -> &AtomicResponse {
        // SAFETY: as above.
        unsafe { self.tx_response.as_ref() }
    }

    /// The response to the atomic operation of the peer.
    pub(super) fn rx_response(&self) -> &AtomicResponse {
        // SAFETY: as above.
        unsafe { self.rx_response.as_ref() }
    }

    /// Who executes the RDMA writes that our end has put into its ring.
    pub(crate) fn tx_claim(&self) -> &WriteClaim {
        // SAFETY: as above.
        unsafe { self.tx_claim.as_ref() }
    }

    /// Who executes the RDMA writes that the peer has put into its ring.
    pub(crate) fn rx_claim(&self) -> &WriteClaim {
        // SAFETY: as above.
        unsafe { self.rx_claim.as_ref() }
    }
}

/// Where the words of an end are, for tests that write them as a peer can.
#[cfg(test)]
pub(crate) mod layout {
    use std::mem::offset_of;

    use super::{EndState, Shared};

    /// Bytes of the state of an end. The segment begins with both.
    pub const END: usize = size_of::<EndState>();
    /// Offset of the doorbell in the state of an end.
    pub const DOORBELL: usize = offset_of!(EndState, doorbell);
    /// Offset of the offers.
    pub const OFFERS: usize = offset_of!(Shared, offers);
    /// Offset of the responses to atomic operations.
    pub const RESPONSES: usize = offset_of!(Shared, responses);
    /// Offset of the claims of RDMA writes.
    pub const CLAIMS: usize = offset_of!(Shared, claims);
    /// Offset of the copy guard in the state of an end.
    pub const COPY_GUARD: usize = offset_of!(EndState, copy_guard);
}
