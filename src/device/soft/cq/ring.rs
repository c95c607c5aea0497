//! The completions of a queue: a ring whose memory is reserved when its capacity is set.

use std::mem::MaybeUninit;

use crate::device::{Completion, DeviceError};

/// A ring of completions.
#[derive(Default)]
pub(crate) struct CompletionRing {
    /// The completions by the lower bits of their numbers. The length is 0 or a power of two.
    slots: Vec<MaybeUninit<Completion>>,
    /// Number of the oldest completion. Numbers count up modulo 2^64.
    head: usize,
    /// Number of the next completion.
    tail: usize,
}

impl CompletionRing {
    /// Number of completions.
    #[inline]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    fn index(&self, number: usize) -> usize {
        number & self.slots.len().wrapping_sub(1)
    }

    /// Adds a completion. The caller keeps to the capacity.
    #[inline(always)]
    pub fn push(&mut self, completion: Completion) {
        let index = self.index(self.tail);
        self.slots[index].write(completion);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Removes the oldest completion.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<&Completion> {
        if self.len() == 0 {
            return None;
        }
        let index = self.index(self.head);
        self.head = self.head.wrapping_add(1);
        // SAFETY: the completions between head and tail were written.
        Some(unsafe { self.slots[index].assume_init_ref() })
    }

    /// Keeps the completions for which `f` is true, in their order.
    pub fn retain(&mut self, mut f: impl FnMut(&Completion) -> bool) {
        for _ in 0..self.len() {
            if let Some(completion) = self.pop().copied()
                && f(&completion)
            {
                self.push(completion);
            }
        }
    }

    /// Sets the capacity, which is not below the length. The memory is reserved all at once, so
    /// that no completion is lost for want of memory; the kernel gives the pages only when they
    /// are used.
    ///
    /// # Errors
    /// [`DeviceError::Resources`]; nothing has changed then.
    pub fn resize(&mut self, capacity: usize) -> Result<(), DeviceError> {
        let room = capacity.next_power_of_two();
        let mut new = CompletionRing::default();
        new.slots
            .try_reserve_exact(room)
            .map_err(|_| DeviceError::Resources)?;
        // SAFETY: the slots are reserved, and may be uninitialised.
        unsafe { new.slots.set_len(room) };
        while let Some(completion) = self.pop() {
            new.push(*completion);
        }
        *self = new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{WcOp, WcStatus};

    fn completion(n: u64) -> Completion {
        Completion {
            context: n % 2,
            wr_id: n,
            op: WcOp::Send,
            from_srq: false,
            status: WcStatus::Success,
            byte_len: 0,
        }
    }

    #[test]
    fn in_order_through_changes_of_the_capacity() {
        let mut entries = CompletionRing::default();
        assert!(entries.pop().is_none());
        let (mut pushed, mut popped) = (0, 0);
        for capacity in [3, 100, 7, 1, 40] {
            entries.resize(capacity).unwrap();
            for round in 0..50 {
                while entries.len() < capacity {
                    entries.push(completion(pushed));
                    pushed += 1;
                }
                let left = if round == 49 { 1 } else { capacity / 3 };
                while entries.len() > left {
                    assert_eq!(entries.pop().unwrap().wr_id, popped);
                    popped += 1;
                }
            }
        }
        assert_eq!((entries.len() as u64, popped + 1), (1, pushed));
    }

    #[test]
    fn retain_removes_those_of_one_context() {
        let mut entries = CompletionRing::default();
        entries.resize(10).unwrap();
        (0..9).for_each(|n| entries.push(completion(n)));
        entries.retain(|c| c.context == 1);
        let left = std::iter::from_fn(|| Some(entries.pop()?.wr_id));
        assert_eq!(left.collect::<Vec<_>>(), [1, 3, 5, 7]);
    }
}
