//! Puts the completions of requests into the order in which they were posted, for a device that does
//! not: the kernel's siw completes RDMA reads after sends and writes that were posted later. What fetches
//! memory of the peer always has a completion of the device there (see `Sq::signals`).

use std::collections::BTreeMap;

use super::ring::WrRing;
use crate::device::{Completion, WcStatus};

/// A completion, and whether it notifies.
pub(super) type Entry = (Completion, bool);

/// Completions that arrived before those of earlier requests, by slot.
#[derive(Default)]
pub(super) struct CompletionOrder(BTreeMap<u32, Entry>);

impl CompletionOrder {
    /// A request has completed: calls `out` for each completion whose earlier requests have all
    /// completed.
    pub fn complete(&mut self, ring: &WrRing, slot: u32, entry: Entry, mut out: impl FnMut(Entry)) {
        if !ring.holds(slot) {
            return;
        }
        self.0.insert(slot, entry);
        while let Some((slot, posted)) = ring.oldest() {
            match self.0.remove(&slot) {
                Some(entry) => {
                    let done = posted.unsignaled() && entry.0.status == WcStatus::Success;
                    if !(done || posted.is_marker()) {
                        out(entry);
                    }
                }
                // A request without a completion is done if a later one has completed.
                None if !posted.signal() && !self.0.is_empty() => {}
                None => return,
            }
            ring.retire(slot);
        }
    }

    /// The completion of a slot that is flushed, if it has arrived.
    pub fn take(&mut self, slot: u32) -> Option<Entry> {
        self.0.remove(&slot)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::{Kind, PostedWr};
    use super::*;
    use crate::device::{WcOp, WrFlags};

    fn post(ring: &WrRing, wr_id: u64, flags: WrFlags, signal: bool) -> u32 {
        let posted = PostedWr::new(wr_id, 0, Kind::Send, flags);
        ring.push(posted.with_signal(signal)).unwrap()
    }

    fn entry(wr_id: u64, status: WcStatus) -> Entry {
        let completion = Completion {
            context: 0,
            wr_id,
            op: WcOp::Send,
            from_srq: false,
            status,
            byte_len: 0,
        };
        (completion, true)
    }

    /// The numbers of the requests that complete.
    fn complete(order: &mut CompletionOrder, ring: &WrRing, slot: u32, wr_id: u64) -> Vec<u64> {
        let mut out = Vec::new();
        let entry = entry(wr_id, WcStatus::Success);
        order.complete(ring, slot, entry, |e| out.push(e.0.wr_id));
        out
    }

    #[test]
    fn completions_wait_for_earlier_requests() {
        let (ring, mut order) = (WrRing::new(4).unwrap(), CompletionOrder::default());
        let none = WrFlags::empty();
        let slots: Vec<u32> = (0..4).map(|i| post(&ring, i, none, true)).collect();
        assert_eq!(complete(&mut order, &ring, slots[1], 1), []);
        assert_eq!(complete(&mut order, &ring, slots[3], 3), []);
        assert_eq!(complete(&mut order, &ring, slots[0], 0), [0, 1]);
        assert_eq!(ring.len(), 2);
        assert_eq!(complete(&mut order, &ring, slots[2], 2), [2, 3]);
        assert_eq!(ring.len(), 0);
        // A completion of a request that is not outstanding is ignored.
        assert_eq!(complete(&mut order, &ring, slots[2], 2), []);
    }

    #[test]
    fn requests_without_a_completion_are_skipped() {
        let (ring, mut order) = (WrRing::new(4).unwrap(), CompletionOrder::default());
        post(&ring, 0, WrFlags::UNSIGNALED, false);
        let read = post(&ring, 1, WrFlags::UNSIGNALED, true);
        post(&ring, 2, WrFlags::UNSIGNALED, false);
        let last = post(&ring, 3, WrFlags::empty(), true);
        assert_eq!(complete(&mut order, &ring, last, 3), []);
        assert_eq!(complete(&mut order, &ring, read, 1), [3]);
        assert_eq!(ring.len(), 0);
    }

    #[test]
    fn markers_do_not_complete() {
        for status in [WcStatus::Success, WcStatus::Flushed] {
            let (ring, mut order) = (WrRing::new(2).unwrap(), CompletionOrder::default());
            post(&ring, 0, WrFlags::UNSIGNALED, false);
            let marker = PostedWr::new(1, 0, Kind::Write, WrFlags::UNSIGNALED).as_marker();
            let slot = ring.push(marker.with_signal(true)).unwrap();
            let mut out = Vec::new();
            order.complete(&ring, slot, entry(1, status), |e| out.push(e.0.wr_id));
            assert_eq!((out, ring.len()), (vec![], 0));
        }
    }

    #[test]
    fn failures_of_unsignaled_requests_complete() {
        let (ring, mut order) = (WrRing::new(2).unwrap(), CompletionOrder::default());
        let slot = post(&ring, 7, WrFlags::UNSIGNALED, false);
        let mut out = Vec::new();
        let entry = entry(7, WcStatus::Flushed);
        order.complete(&ring, slot, entry, |e| out.push(e.0.wr_id));
        assert_eq!(out, [7]);
        assert!(order.take(slot).is_none());
    }
}
