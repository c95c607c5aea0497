//! What a device does not remember of a work request: the consumer's number, the operation, the
//! length. One ring per send queue and per receive queue.
//!
//! The poster writes a slot under the lock of its queue, whoever polls the completion reads it
//! without. Queues complete in order, so a completion also retires all that was posted before it
//! without one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::table::MAX_SLOTS;
use crate::device::{WcOp, WrFlags};

/// What a slot says of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Posted {
    /// The consumer's number.
    pub wr_id: u64,
    /// Bind 1 | reported by the device 1 | flags 8 | kind 8 | bytes of all segments 32
    info: u64,
}

/// Which operation a slot is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    Send,
    Write,
    Read,
    Bind,
    Recv,
}

impl Kind {
    /// As in completions; those of binds have a context besides.
    #[inline]
    pub fn op(self) -> WcOp {
        match self {
            Kind::Send => WcOp::Send,
            Kind::Write => WcOp::RdmaWrite,
            Kind::Read => WcOp::RdmaRead,
            Kind::Bind => WcOp::Bind { context: 0 },
            Kind::Recv => WcOp::Recv,
        }
    }
}

impl Posted {
    const FLAGS: u32 = 40;
    const SIGNAL: u64 = 1 << 48;
    /// A bind, or silent.
    const SPECIAL: u64 = Self::BIND | (WrFlags::UNSIGNALED.bits() as u64) << Self::FLAGS;
    const BIND: u64 = 1 << 49;

    #[inline]
    pub fn new(wr_id: u64, len: u32, kind: Kind, flags: WrFlags) -> Posted {
        let bind = if kind == Kind::Bind { Self::BIND } else { 0 };
        let flags = u64::from(flags.bits()) << Self::FLAGS;
        Posted {
            wr_id,
            info: u64::from(len) | (kind as u64) << 32 | flags | bind,
        }
    }

    /// Bytes of all segments.
    #[inline]
    pub fn len(&self) -> u32 {
        self.info as u32
    }

    /// Which operation.
    #[inline]
    pub fn kind(&self) -> Kind {
        match (self.info >> 32) as u8 {
            0 => Kind::Send,
            1 => Kind::Write,
            2 => Kind::Read,
            3 => Kind::Bind,
            _ => Kind::Recv,
        }
    }

    #[inline]
    fn has(&self, flag: WrFlags) -> bool {
        self.info & u64::from(flag.bits()) << Self::FLAGS != 0
    }

    /// Neither silent nor a bind: its completion is the consumer's, and no other.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.info & Self::SPECIAL == 0
    }

    /// Its success is not reported.
    #[inline]
    pub fn silent(&self) -> bool {
        self.has(WrFlags::UNSIGNALED)
    }

    /// Its success does not notify.
    #[inline]
    pub fn quiet(&self) -> bool {
        self.has(WrFlags::QUIET)
    }

    /// The device reports its success.
    #[inline]
    pub fn signal(&self) -> bool {
        self.info & Self::SIGNAL != 0
    }

    /// The same, of which the device reports the success if `signal` says so.
    #[inline]
    pub fn with_signal(self, signal: bool) -> Posted {
        let info = self.info | if signal { Self::SIGNAL } else { 0 };
        Posted { info, ..self }
    }
}

#[derive(Default)]
struct Slot {
    wr_id: AtomicU64,
    info: AtomicU64,
}

/// See the module.
pub(super) struct Ring {
    slots: Box<[Slot]>,
    limit: u32,
    /// Posted so far.
    tail: AtomicU32,
    /// Retired so far.
    head: AtomicU32,
}

impl Ring {
    /// For `limit` requests at a time.
    pub fn new(limit: u32) -> Ring {
        let limit = limit.min(MAX_SLOTS / 2);
        let size = limit.max(1).next_power_of_two();
        Ring {
            slots: (0..size).map(|_| Slot::default()).collect(),
            limit,
            tail: AtomicU32::new(0),
            head: AtomicU32::new(0),
        }
    }

    #[inline]
    fn mask(&self) -> u32 {
        self.slots.len() as u32 - 1
    }

    #[inline]
    fn place(&self, slot: u32) -> &Slot {
        // SAFETY: the number of slots is a power of two, so the mask leaves the number of one.
        unsafe { self.slots.get_unchecked((slot & self.mask()) as usize) }
    }

    /// Requests at a time.
    #[inline]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Posted and not retired.
    #[inline]
    pub fn len(&self) -> u32 {
        let head = self.head.load(Ordering::Acquire);
        self.tail.load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Writes the next slot, and takes it into account: before the device gets the request,
    /// since it may complete at once; [`Ring::pop`] takes it back. Gives the number of the slot,
    /// `None` if there is no room. The lock of the queue is held.
    #[inline(always)]
    pub fn push(&self, posted: Posted) -> Option<u32> {
        let tail = self.tail.load(Ordering::Relaxed);
        if tail.wrapping_sub(self.head.load(Ordering::Acquire)) >= self.limit {
            return None;
        }
        let slot = tail & self.mask();
        let place = self.place(slot);
        place.wr_id.store(posted.wr_id, Ordering::Relaxed);
        place.info.store(posted.info, Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
        Some(slot)
    }

    /// The device has not taken the request.
    pub fn pop(&self) {
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail.store(tail.wrapping_sub(1), Ordering::Release);
    }

    /// What a slot says.
    #[inline]
    pub fn posted(&self, slot: u32) -> Posted {
        // What was written before the push is seen after this.
        let _ = self.tail.load(Ordering::Acquire);
        let place = self.place(slot);
        Posted {
            wr_id: place.wr_id.load(Ordering::Relaxed),
            info: place.info.load(Ordering::Relaxed),
        }
    }

    /// How many slots are older than this one.
    #[inline]
    fn before(&self, slot: u32) -> u32 {
        let head = self.head.load(Ordering::Relaxed);
        slot.wrapping_sub(head) & self.mask()
    }

    /// Whether a slot is outstanding.
    pub fn holds(&self, slot: u32) -> bool {
        self.before(slot) < self.len()
    }

    /// Retires a slot, and those before it.
    #[inline(always)]
    pub fn retire(&self, slot: u32) -> Posted {
        let posted = self.posted(slot);
        let head = self.head.load(Ordering::Relaxed);
        let passed = slot.wrapping_sub(head) & self.mask();
        self.head
            .store(head.wrapping_add(passed + 1), Ordering::Release);
        posted
    }

    /// The oldest outstanding, if there is one.
    pub fn oldest(&self) -> Option<(u32, Posted)> {
        if self.len() == 0 {
            return None;
        }
        let slot = self.head.load(Ordering::Relaxed) & self.mask();
        Some((slot, self.posted(slot)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(wr_id: u64) -> Posted {
        Posted::new(wr_id, 5, Kind::Read, WrFlags::QUIET)
    }

    #[test]
    fn a_completion_retires_what_is_before_it() {
        let ring = Ring::new(3);
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
    fn what_is_taken_back_does_not_count() {
        let ring = Ring::new(1);
        ring.push(posted(1)).unwrap();
        ring.pop();
        assert_eq!(ring.len(), 0);
        let silent = Posted::new(2, u32::MAX, Kind::Recv, WrFlags::UNSIGNALED);
        let slot = ring.push(silent).unwrap();
        assert_eq!(ring.retire(slot), silent);
    }
}
