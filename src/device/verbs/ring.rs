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
    /// Bytes of all segments.
    pub len: u32,
    /// Which operation.
    pub kind: Kind,
    /// Its success is not reported.
    pub silent: bool,
    /// Its success does not notify.
    pub quiet: bool,
    /// The device reports its success.
    pub signal: bool,
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
    pub fn new(wr_id: u64, len: u32, kind: Kind, flags: WrFlags) -> Posted {
        Posted {
            wr_id,
            len,
            kind,
            silent: flags.contains(WrFlags::UNSIGNALED),
            quiet: flags.contains(WrFlags::QUIET),
            signal: true,
        }
    }

    fn pack(&self) -> u64 {
        let flags = u64::from(self.silent) << 40
            | u64::from(self.quiet) << 41
            | u64::from(self.signal) << 42;
        u64::from(self.len) | (self.kind as u64) << 32 | flags
    }

    fn unpack(wr_id: u64, info: u64) -> Posted {
        Posted {
            wr_id,
            len: info as u32,
            kind: match (info >> 32) as u8 {
                0 => Kind::Send,
                1 => Kind::Write,
                2 => Kind::Read,
                3 => Kind::Bind,
                _ => Kind::Recv,
            },
            silent: info >> 40 & 1 != 0,
            quiet: info >> 41 & 1 != 0,
            signal: info >> 42 & 1 != 0,
        }
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

    fn mask(&self) -> u32 {
        self.slots.len() as u32 - 1
    }

    /// Requests at a time.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Posted and not retired.
    #[inline]
    pub fn len(&self) -> u32 {
        let head = self.head.load(Ordering::Acquire);
        self.tail.load(Ordering::Acquire).wrapping_sub(head)
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Writes the next slot and gives its number; the lock of the queue is held and there is
    /// room. It counts from [`Ring::push`] on.
    #[inline]
    pub fn write(&self, posted: &Posted) -> u32 {
        let slot = self.tail.load(Ordering::Relaxed) & self.mask();
        let place = &self.slots[slot as usize];
        place.wr_id.store(posted.wr_id, Ordering::Relaxed);
        place.info.store(posted.pack(), Ordering::Relaxed);
        slot
    }

    /// Takes the slot just written into account. Before the device gets the request, since it
    /// may complete at once; [`Ring::pop`] takes it back.
    #[inline]
    pub fn push(&self) {
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
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
        let place = &self.slots[(slot & self.mask()) as usize];
        Posted::unpack(
            place.wr_id.load(Ordering::Relaxed),
            place.info.load(Ordering::Relaxed),
        )
    }

    /// How many slots are older than this one.
    fn before(&self, slot: u32) -> u32 {
        let head = self.head.load(Ordering::Relaxed);
        slot.wrapping_sub(head) & self.mask()
    }

    /// Whether a slot is outstanding.
    pub fn holds(&self, slot: u32) -> bool {
        self.before(slot) < self.len()
    }

    /// Retires a slot, and those before it.
    #[inline]
    pub fn retire(&self, slot: u32) -> Posted {
        let posted = self.posted(slot);
        let head = self.head.load(Ordering::Relaxed);
        let passed = self.before(slot);
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
                .map(|i| {
                    assert!(!ring.is_full());
                    let slot = ring.write(&posted(round * 10 + i));
                    ring.push();
                    slot
                })
                .collect();
            assert!(ring.is_full());
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
        ring.write(&posted(1));
        ring.push();
        ring.pop();
        assert_eq!(ring.len(), 0);
        let silent = Posted::new(2, u32::MAX, Kind::Recv, WrFlags::UNSIGNALED);
        let slot = ring.write(&silent);
        ring.push();
        assert_eq!(ring.retire(slot), silent);
    }
}
