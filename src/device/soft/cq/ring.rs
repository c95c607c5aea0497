//! The completions of a queue: a ring whose room is there from the start.

use std::mem::MaybeUninit;

use crate::device::{Completion, DeviceError};

/// See the module.
#[derive(Default)]
pub(crate) struct CompletionRing {
    /// None, or a power of two.
    slots: Vec<MaybeUninit<Completion>>,
    /// Number of the oldest entry, and of the next one. They count up for ever.
    head: usize,
    tail: usize,
}

impl CompletionRing {
    #[inline]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    fn index(&self, number: usize) -> usize {
        number & self.slots.len().wrapping_sub(1)
    }

    /// Adds an entry. There is room for it: the caller keeps to what was asked for.
    #[inline(always)]
    pub fn push(&mut self, completion: Completion) {
        let index = self.index(self.tail);
        self.slots[index].write(completion);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Takes the oldest entry out.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<&Completion> {
        if self.len() == 0 {
            return None;
        }
        let index = self.index(self.head);
        self.head = self.head.wrapping_add(1);
        // SAFETY: what lies between head and tail was written.
        Some(unsafe { self.slots[index].assume_init_ref() })
    }

    /// Keeps those for which `f` is true, in their order.
    pub fn retain(&mut self, mut f: impl FnMut(&Completion) -> bool) {
        for _ in 0..self.len() {
            if let Some(completion) = self.pop().copied()
                && f(&completion)
            {
                self.push(completion);
            }
        }
    }

    /// Makes room for so many, which are not fewer than there are: all at once, so that no
    /// completion is lost for want of memory; the kernel gives the pages only when they are used.
    ///
    /// # Errors
    /// [`DeviceError::Resources`]; nothing has changed then.
    pub fn resize(&mut self, capacity: usize) -> Result<(), DeviceError> {
        let room = capacity.next_power_of_two();
        let mut new = CompletionRing::default();
        new.slots
            .try_reserve_exact(room)
            .map_err(|_| DeviceError::Resources)?;
        // SAFETY: reserved, and nothing is asked of them.
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
    fn in_order_through_changes_of_the_room() {
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
    fn those_of_one_context_go() {
        let mut entries = CompletionRing::default();
        entries.resize(10).unwrap();
        (0..9).for_each(|n| entries.push(completion(n)));
        entries.retain(|c| c.context == 1);
        let left = std::iter::from_fn(|| Some(entries.pop()?.wr_id));
        assert_eq!(left.collect::<Vec<_>>(), [1, 3, 5, 7]);
    }
}
