//! Polls that are kept away from the device, and the queue that they get completions from meanwhile.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Cq;
use crate::device::Completion;
use crate::device::verbs::wc::completion;
use crate::device::verbs::wr_table::{RECEIVE, slot};
use crate::handle::Guard;
use crate::handle::pin::{self, pin};

#[derive(Default)]
pub(super) struct Queue {
    /// Completions taken from the device or made by this library, and whether they notify.
    pub entries: VecDeque<(Completion, bool)>,
    /// How many [`Hold`] and [`Withheld`] there are.
    holders: u32,
    /// Contexts of queue pairs whose completions are withheld.
    withheld: Vec<u64>,
}

impl Queue {
    /// Index of the oldest completion that is not withheld.
    pub fn next(&self) -> Option<usize> {
        let withheld = |context| self.withheld.contains(&context);
        let mut entries = self.entries.iter();
        entries.position(|(completion, _)| !withheld(completion.context))
    }
}

/// Keeps polls away from the device while it exists.
pub(in crate::device::verbs) struct Hold<'a>(&'a Cq);

/// Keeps the completions of a queue pair from the consumer while it exists. Its drop notifies: the
/// holder has no lock that the handler may wait for.
pub(in crate::device::verbs) struct Withheld {
    cq: Arc<Cq>,
    /// [`QpAttr::context`](crate::device::QpAttr::context) of the queue pair.
    context: u64,
}

impl Cq {
    /// Moves completions of the device to the queue, until that has `enough`.
    pub(super) fn fill(&self, queue: &mut Queue, guard: &Guard, enough: impl Fn(&Queue) -> bool) {
        let mut place = MaybeUninit::uninit();
        while !enough(queue) {
            let Some(wc) = self.poll_raw(&mut place) else {
                return;
            };
            let requests = wc.wr_id & RECEIVE == 0;
            let hw = self.device.adapter.queues.get(wc.wr_id, guard);
            if let Some((hw, order)) = hw.and_then(|hw| Some((hw, hw.order.as_ref()?)))
                && requests
            {
                let slot = slot(wc.wr_id);
                let entry = completion(hw, &hw.send.posted(slot), wc, false);
                let entries = &mut queue.entries;
                let mut order = order.lock();
                order.complete(&hw.send, slot, entry, |entry| entries.push_back(entry));
            } else if let Some(entry) = self.translate(wc, guard) {
                queue.entries.push_back(entry);
            }
        }
    }

    /// Has polls go to the device again, if nothing keeps them away.
    pub(super) fn reopen(&self, queue: &Queue) {
        let free = queue.holders == 0 && queue.entries.is_empty();
        if free && !self.filtered.load(Ordering::Relaxed) {
            self.held.store(false, Ordering::Release);
        }
    }

    /// Keeps polls away from the device. The caller is in no read-side section, and holds no
    /// lock that a poll may wait for.
    pub(in crate::device::verbs) fn hold(&self) -> Hold<'_> {
        self.add_holder(|_| {});
        Hold(self)
    }

    /// Withholds the completions of the queue pair with this context. The caller is in no
    /// read-side section, and holds no lock that a poll may wait for.
    pub(in crate::device::verbs) fn withhold(cq: &Arc<Cq>, context: u64) -> Withheld {
        cq.add_holder(|queue| queue.withheld.push(context));
        let cq = cq.clone();
        Withheld { cq, context }
    }

    /// Keeps polls away from the device, with a change of the queue.
    fn add_holder(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue.lock();
        queue.holders += 1;
        change(&mut queue);
        self.held.store(true, Ordering::Release);
        drop(queue);
        // Polls that did not see that are over after this.
        pin::synchronize();
    }

    /// Undoes [`Cq::add_holder`].
    fn remove_holder(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue.lock();
        queue.holders -= 1;
        change(&mut queue);
        self.reopen(&queue);
    }

    /// Moves the completions of the device to the queue, and notifies. The caller is in no read-side
    /// section, and holds no lock that a poll or the handler may wait for.
    pub(in crate::device::verbs) fn collect_and_notify(&self) {
        self.hold().collect();
        self.notify();
    }

    /// Adds a completion made by this library.
    pub(in crate::device::verbs) fn push(&self, completion: Completion, notifies: bool) {
        let mut queue = self.queue.lock();
        queue.entries.push_back((completion, notifies));
        self.held.store(true, Ordering::Release);
    }

    /// Removes the completions of the queue pair with this context; gives how many of them are
    /// of buffers of a shared receive queue.
    pub(in crate::device::verbs) fn purge(&self, context: u64) -> u32 {
        let mut queue = self.queue.lock();
        let mut from_srq = 0;
        queue.entries.retain(|(completion, _)| {
            let stays = completion.context != context;
            from_srq += u32::from(!stays && completion.from_srq);
            stays
        });
        self.reopen(&queue);
        from_srq
    }
}

impl Hold<'_> {
    /// Moves the completions of the device to the queue; `true` if one in the queue notifies.
    pub fn collect(&self) -> bool {
        let mut queue = self.0.queue.lock();
        let guard = pin();
        self.0.fill(&mut queue, &guard, |_| false);
        queue.entries.iter().any(|entry| entry.1)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.remove_holder(|_| {});
    }
}

impl Drop for Withheld {
    fn drop(&mut self) {
        self.cq.remove_holder(|queue| {
            let at = queue.withheld.iter().position(|c| *c == self.context);
            at.map(|at| queue.withheld.swap_remove(at));
        });
        self.cq.notify();
    }
}
