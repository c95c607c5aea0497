//! The part of a work request that its completion needs and the device does not keep: the number
//! of the consumer, the operation, the length. There is one ring for each send queue and each
//! receive queue.
//!
//! A slot is written by the thread that posts, under the lock of the queue, and read without the
//! lock by the thread that polls the completion. Queues complete in order, so a completion also
//! retires the earlier requests that have none.

use std::collections::TryReserveError;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::wr_table::MAX_SLOTS;
use crate::device::{WcOp, WrFlags};

/// A request that was posted, as a slot has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PostedWr {
    /// The number that the consumer has given the request.
    pub wr_id: u64,
    /// Marker 1 | datagram 1 | reported by the device 1 | flags 8 | kind 8 | bytes of all segments 32
    info: u64,
}

/// The operation of a request. In the order of [`WcOp`], so that a completion needs no table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    Send,
    Write,
    Read,
    Recv,
    Bind,
    WriteImm,
    FetchAdd,
    CompareSwap,
}

impl Kind {
    /// The operation of the completion; that of a bind gets its context later.
    #[inline]
    pub fn op(self) -> WcOp {
        match self {
            Kind::Send => WcOp::Send,
            Kind::Write => WcOp::RdmaWrite,
            Kind::Read => WcOp::RdmaRead,
            Kind::WriteImm => WcOp::RdmaWriteImm,
            Kind::FetchAdd => WcOp::FetchAdd,
            Kind::CompareSwap => WcOp::CompareSwap,
            Kind::Bind => WcOp::Bind { context: 0 },
            Kind::Recv => WcOp::Recv,
        }
    }

    /// Whether the operation fetches memory of the peer.
    #[inline]
    pub fn fetches(self) -> bool {
        matches!(self, Kind::Read | Kind::FetchAdd | Kind::CompareSwap)
    }
}

impl PostedWr {
    const FLAGS: u32 = 40;
    const SIGNAL: u64 = 1 << 48;
    /// Set for a datagram, an unsignaled request, and every [`Kind`] behind [`Kind::Recv`].
    const SPECIAL: u64 =
        4 << 32 | Self::DATAGRAM | (WrFlags::UNSIGNALED.bits() as u64) << Self::FLAGS;
    const DATAGRAM: u64 = 1 << 49;
    const MARKER: u64 = 1 << 50;

    #[inline]
    pub fn new(wr_id: u64, len: u32, kind: Kind, flags: WrFlags) -> PostedWr {
        let flags = u64::from(flags.bits()) << Self::FLAGS;
        PostedWr {
            wr_id,
            info: u64::from(len) | (kind as u64) << 32 | flags,
        }
    }

    /// Bytes of all segments.
    #[inline]
    pub fn len(&self) -> u32 {
        self.info as u32
    }

    /// The operation.
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.info >> 32 & 7 {
            0 => Kind::Send,
            1 => Kind::Write,
            2 => Kind::Read,
            3 => Kind::Recv,
            4 => Kind::Bind,
            5 => Kind::WriteImm,
            6 => Kind::FetchAdd,
            _ => Kind::CompareSwap,
        }
    }

    #[inline]
    fn has(&self, flag: WrFlags) -> bool {
        self.info & u64::from(flag.bits()) << Self::FLAGS != 0
    }

    /// The same request, which sends a datagram.
    pub fn as_datagram(self) -> PostedWr {
        let info = self.info | Self::DATAGRAM;
        PostedWr { info, ..self }
    }

    /// Whether the request sends a datagram.
    #[inline]
    pub fn is_datagram(&self) -> bool {
        self.info & Self::DATAGRAM != 0
    }

    /// The same request, which is one of the library's own: see [`marker`](super::post::post_marker).
    pub fn as_marker(self) -> PostedWr {
        let info = self.info | Self::MARKER;
        PostedWr { info, ..self }
    }

    /// Whether the request is one of the library's own, of which the consumer gets no completion.
    #[inline]
    pub fn is_marker(&self) -> bool {
        self.info & Self::MARKER != 0
    }

    /// The operation, if the completion of a success goes to the consumer as it is: the request is a send, a
    /// write, a read or a receive, has no datagram and is not unsignaled.
    #[inline(always)]
    pub fn plain_op(&self) -> Option<WcOp> {
        // Without those that `SPECIAL` excludes, so that the number of the kind is that of the operation.
        (self.info & Self::SPECIAL == 0).then_some(match self.info >> 32 & 3 {
            0 => WcOp::Send,
            1 => WcOp::RdmaWrite,
            2 => WcOp::RdmaRead,
            _ => WcOp::Recv,
        })
    }

    /// Whether the consumer gets no completion of a success.
    #[inline]
    pub fn unsignaled(&self) -> bool {
        self.has(WrFlags::UNSIGNALED)
    }

    /// Whether the completion of a success does not notify.
    #[inline]
    pub fn quiet(&self) -> bool {
        self.has(WrFlags::QUIET)
    }

    /// Whether the device reports a success.
    #[inline]
    pub fn signal(&self) -> bool {
        self.info & Self::SIGNAL != 0
    }

    /// The same request, of which the device reports a success if `signal` is set.
    #[inline]
    pub fn with_signal(self, signal: bool) -> PostedWr {
        let info = self.info | if signal { Self::SIGNAL } else { 0 };
        PostedWr { info, ..self }
    }
}

#[derive(Default)]
struct Slot {
    wr_id: AtomicU64,
    info: AtomicU64,
}

/// See the module.
pub(super) struct WrRing {
    /// A power of two.
    slots: Box<[Slot]>,
    /// One less than the number of slots.
    mask: u32,
    /// Requests that may be outstanding.
    limit: u32,
    /// See [`WrRing::datagram_mark`].
    datagram_mark: u32,
    /// The number of requests posted at which the next push looks how many are retired: those before it
    /// have room. Only for who posts.
    stop: AtomicU32,
    /// Number of requests posted so far.
    tail: AtomicU32,
    /// Number of requests retired so far.
    head: AtomicU32,
}

impl WrRing {
    /// A ring for `limit` outstanding requests.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(limit: u32) -> Result<WrRing, TryReserveError> {
        let limit = limit.min(MAX_SLOTS / 2);
        let size = limit.max(1).next_power_of_two();
        let mut slots = Vec::new();
        slots.try_reserve_exact(size as usize)?;
        slots.resize_with(size as usize, Slot::default);
        Ok(WrRing {
            slots: slots.into_boxed_slice(),
            mask: size - 1,
            limit,
            datagram_mark: 0,
            stop: AtomicU32::new(limit),
            tail: AtomicU32::new(0),
            head: AtomicU32::new(0),
        })
    }

    /// The same ring, for a receive queue of datagrams if `datagrams` is set.
    pub fn with_datagrams(self, datagrams: bool) -> WrRing {
        WrRing {
            datagram_mark: datagrams.into(),
            ..self
        }
    }

    /// 1 if datagrams are received, else 0: polls test it together with the flags of a completion. It is
    /// here, in memory that they read anyway.
    #[inline(always)]
    pub fn datagram_mark(&self) -> u32 {
        self.datagram_mark
    }

    #[inline]
    fn place(&self, slot: u32) -> &Slot {
        // SAFETY: the mask leaves the number of a slot.
        unsafe { self.slots.get_unchecked((slot & self.mask) as usize) }
    }

    /// Requests that may be outstanding.
    #[inline]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Requests that are outstanding.
    #[inline]
    pub fn len(&self) -> u32 {
        let head = self.head.load(Ordering::Acquire);
        self.tail.load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Writes the next slot and counts the request as outstanding, before the device gets it, since
    /// it may complete at once; [`WrRing::pop`] undoes that. Gives the number of the slot, `None` if
    /// the ring is full. The caller holds the lock of the queue.
    #[inline(always)]
    pub fn push(&self, posted: PostedWr) -> Option<u32> {
        let tail = self.tail.load(Ordering::Relaxed);
        if tail == self.stop.load(Ordering::Relaxed) && !self.has_room(tail) {
            return None;
        }
        let slot = tail & self.mask;
        let place = self.place(slot);
        place.wr_id.store(posted.wr_id, Ordering::Relaxed);
        place.info.store(posted.info, Ordering::Release);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
        Some(slot)
    }

    /// Whether there is room for another request behind `tail`. In line, as a call would cost the usual
    /// case more.
    #[inline(always)]
    fn has_room(&self, tail: u32) -> bool {
        // Acquire: polls have read the slots of the requests that are retired.
        let stop = self.head.load(Ordering::Acquire).wrapping_add(self.limit);
        self.stop.store(stop, Ordering::Relaxed);
        tail != stop
    }

    /// The device has not taken the request.
    pub fn pop(&self) {
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail.store(tail.wrapping_sub(1), Ordering::Release);
    }

    /// The request in a slot.
    #[inline]
    pub fn posted(&self, slot: u32) -> PostedWr {
        let place = self.place(slot);
        // First: what the push has written before is seen after this.
        let info = place.info.load(Ordering::Acquire);
        let wr_id = place.wr_id.load(Ordering::Relaxed);
        PostedWr { wr_id, info }
    }

    /// The number of outstanding requests that are older than that of a slot.
    #[inline]
    fn before(&self, slot: u32) -> u32 {
        let head = self.head.load(Ordering::Relaxed);
        slot.wrapping_sub(head) & self.mask
    }

    /// Whether the request of a slot is outstanding.
    pub fn holds(&self, slot: u32) -> bool {
        self.before(slot) < self.len()
    }

    /// Retires the request of a slot and all that are older; gives the request.
    #[inline]
    pub fn retire(&self, slot: u32) -> PostedWr {
        let posted = self.posted(slot);
        self.retire_to(slot);
        posted
    }

    /// [`WrRing::retire`] for a caller that has the request.
    #[inline(always)]
    pub fn retire_to(&self, slot: u32) {
        let head = self.head.load(Ordering::Relaxed);
        let passed = slot.wrapping_sub(head) & self.mask;
        self.head
            .store(head.wrapping_add(passed + 1), Ordering::Release);
    }

    /// The outstanding requests, the oldest first.
    pub fn outstanding(&self) -> impl Iterator<Item = PostedWr> {
        // The head first: a request that is retired meanwhile may be taken for outstanding, and none is left out.
        let head = self.head.load(Ordering::Acquire);
        let count = self.tail.load(Ordering::Acquire).wrapping_sub(head);
        (0..count).map(move |n| self.posted(head.wrapping_add(n) & self.mask))
    }

    /// Whether the device reports the success of none of the outstanding requests: they may be done.
    pub fn is_unreported(&self) -> bool {
        self.outstanding().all(|posted| !posted.signal())
    }

    /// The oldest outstanding request and its slot, if there is one.
    pub fn oldest(&self) -> Option<(u32, PostedWr)> {
        if self.len() == 0 {
            return None;
        }
        let slot = self.head.load(Ordering::Relaxed) & self.mask;
        Some((slot, self.posted(slot)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(wr_id: u64) -> PostedWr {
        PostedWr::new(wr_id, 5, Kind::Read, WrFlags::QUIET)
    }

    #[test]
    fn a_completion_retires_all_earlier_requests() {
        let ring = WrRing::new(3).unwrap();
        for round in 0..10 {
            let slots: Vec<_> = (0..3)
                .map(|i| ring.push(posted(round * 10 + i)).unwrap())
                .collect();
            assert_eq!(ring.push(posted(0)), None);
            assert_eq!(ring.retire(slots[1]), posted(round * 10 + 1));
            assert_eq!(ring.len(), 1);
            assert!(!ring.holds(slots[1]) && ring.holds(slots[2]));
            assert_eq!(ring.oldest(), Some((slots[2], posted(round * 10 + 2))));
            ring.retire(slots[2]);
            assert_eq!(ring.oldest(), None);
        }
    }

    #[test]
    fn what_the_device_does_not_report() {
        let ring = WrRing::new(4).unwrap();
        let push = |signal| ring.push(posted(1).with_signal(signal)).unwrap();
        assert!(ring.is_unreported());
        push(false);
        assert!(ring.is_unreported());
        let signaled = push(true);
        push(false);
        assert!(!ring.is_unreported());
        ring.retire(signaled);
        assert!(ring.len() == 1 && ring.is_unreported());
    }

    #[test]
    fn the_operation_is_kept() {
        let operations = [
            (Kind::Send, WcOp::Send),
            (Kind::Write, WcOp::RdmaWrite),
            (Kind::Read, WcOp::RdmaRead),
            (Kind::Bind, WcOp::Bind { context: 0 }),
            (Kind::Recv, WcOp::Recv),
            (Kind::WriteImm, WcOp::RdmaWriteImm),
            (Kind::FetchAdd, WcOp::FetchAdd),
            (Kind::CompareSwap, WcOp::CompareSwap),
        ];
        for (kind, op) in operations {
            let posted = PostedWr::new(1, 8, kind, WrFlags::all()).with_signal(true);
            assert_eq!((posted.kind(), posted.kind().op()), (kind, op));
            assert_eq!(posted.plain_op(), None, "it is unsignaled");
            let plain = PostedWr::new(1, 8, kind, WrFlags::QUIET).with_signal(true);
            let has_details = kind as u8 > Kind::Recv as u8;
            assert_eq!(plain.plain_op(), (!has_details).then_some(op), "{kind:?}");
            let fetching = [WcOp::RdmaRead, WcOp::FetchAdd, WcOp::CompareSwap];
            assert_eq!(kind.fetches(), fetching.contains(&op), "{kind:?}");
        }
    }

    #[test]
    fn datagrams_are_told_from_other_sends() {
        let send = PostedWr::new(1, 8, Kind::Send, WrFlags::empty());
        assert!(send.plain_op().is_some() && !send.is_datagram());
        let datagram = send.as_datagram().with_signal(true);
        assert!(datagram.is_datagram() && datagram.plain_op().is_none() && datagram.signal());
        assert_eq!((datagram.kind(), datagram.len()), (Kind::Send, 8));
    }

    #[test]
    fn a_marker_is_no_plain_request() {
        let write = PostedWr::new(0, 0, Kind::Write, WrFlags::UNSIGNALED);
        assert!(!write.is_marker());
        let marker = write.as_marker().with_signal(true);
        assert!(marker.is_marker() && marker.signal() && marker.unsignaled());
        assert_eq!((marker.kind(), marker.plain_op()), (Kind::Write, None));
        let ring = WrRing::new(2).unwrap();
        ring.push(write).unwrap();
        ring.push(marker).unwrap();
        assert_eq!(ring.outstanding().collect::<Vec<_>>(), [write, marker]);
    }

    #[test]
    fn a_request_that_was_not_posted_does_not_count() {
        let ring = WrRing::new(1).unwrap();
        ring.push(posted(1)).unwrap();
        ring.pop();
        assert_eq!(ring.len(), 0);
        let unsignaled = PostedWr::new(2, u32::MAX, Kind::Recv, WrFlags::UNSIGNALED);
        let slot = ring.push(unsignaled).unwrap();
        assert_eq!(ring.retire(slot), unsignaled);
    }
}
