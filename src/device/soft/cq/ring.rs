//! The completions of a queue: a ring whose memory is reserved when its capacity is set.
//!
//! The queues of adapters have room for one less than a power of two completions, whatever was asked for, and there
//! are programs that need more than they ask for and have never seen an overflow. So has this one, but begins to use
//! all its memory only when it is needed: less memory stays in the caches of a processor.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::device::{Completion, DeviceError};

/// Which completions a ring has. Changed with the lock of the ring held, and read by all.
#[derive(Default)]
pub(crate) struct Numbers {
    /// Number of the oldest completion. Numbers count up modulo 2^64.
    head: AtomicUsize,
    /// Number of the next completion.
    tail: AtomicUsize,
}

impl Numbers {
    /// Number of completions.
    #[inline(always)]
    pub fn len(&self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        self.tail.load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Whether there is no completion.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.oldest().is_none()
    }

    /// Number of the oldest completion, if there is one.
    #[inline(always)]
    pub fn oldest(&self) -> Option<usize> {
        let head = self.head.load(Ordering::Relaxed);
        (self.tail.load(Ordering::Acquire) != head).then_some(head)
    }
}

/// A ring of completions. Its [`Numbers`] are beside it, since they are read without its lock.
pub(crate) struct CompletionRing {
    /// The completions by the lower bits of their numbers. The length is a power of two, at least 1.
    slots: Vec<MaybeUninit<Completion>>,
    /// One less than the slots in use, which are all or the first half.
    mask: usize,
    /// The number at which the next push looks how many completions were removed: those before it have room.
    stop: usize,
}

impl CompletionRing {
    /// Empty, with room for so many at first, and for `longest` in the end, at most twice as many.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn new(capacity: usize, longest: usize) -> Result<Self, DeviceError> {
        let room = longest.next_power_of_two();
        let mut slots = Vec::new();
        slots
            .try_reserve_exact(room)
            .map_err(|_| DeviceError::Resources)?;
        // SAFETY: the slots are reserved, and may be uninitialised.
        unsafe { slots.set_len(room) };
        Ok(CompletionRing {
            slots,
            mask: capacity.next_power_of_two() - 1,
            stop: 0,
        })
    }

    /// Uses all slots from now on.
    #[cold]
    pub fn widen(&mut self, numbers: &Numbers) {
        let mask = self.slots.len() - 1;
        let head = numbers.head.load(Ordering::Relaxed);
        for number in (0..numbers.len()).map(|n| head.wrapping_add(n)) {
            // No completion is in the other half.
            self.slots[number & mask] = self.slots[number & self.mask];
        }
        self.mask = mask;
    }

    /// The slot of a number.
    #[inline(always)]
    fn slot(&mut self, number: usize) -> &mut MaybeUninit<Completion> {
        // SAFETY: the mask leaves the index of a slot.
        unsafe { self.slots.get_unchecked_mut(number & self.mask) }
    }

    /// Adds a completion; false if there are `capacity` of them. That is not more than the ring has room for.
    #[inline(always)]
    pub fn push(&mut self, numbers: &Numbers, completion: Completion, capacity: usize) -> bool {
        let tail = numbers.tail.load(Ordering::Relaxed);
        if tail == self.stop && !self.has_room(numbers, capacity) {
            return false;
        }
        self.append(numbers, tail, completion);
        true
    }

    /// Whether there are less than `capacity` completions. In line, as a call would cost the usual
    /// case more.
    #[inline(always)]
    fn has_room(&mut self, numbers: &Numbers, capacity: usize) -> bool {
        self.stop = numbers.head.load(Ordering::Relaxed).wrapping_add(capacity);
        numbers.tail.load(Ordering::Relaxed) != self.stop
    }

    /// Adds a completion, for which there is room, behind the number `tail`.
    #[inline(always)]
    fn append(&mut self, numbers: &Numbers, tail: usize, completion: Completion) {
        self.slot(tail).write(completion);
        numbers.tail.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// Removes the oldest completion.
    #[inline(always)]
    pub fn pop(&mut self, numbers: &Numbers) -> Option<&Completion> {
        let oldest = numbers.oldest()?;
        // SAFETY: the lock is held, so that is the oldest one still.
        Some(unsafe { self.take(numbers, oldest) })
    }

    /// Removes the oldest completion, whose number the caller has.
    ///
    /// # Safety
    /// That is the number of the oldest completion, and there is one.
    #[inline(always)]
    pub unsafe fn take(&mut self, numbers: &Numbers, oldest: usize) -> &Completion {
        numbers
            .head
            .store(oldest.wrapping_add(1), Ordering::Relaxed);
        // SAFETY: the completions between head and tail were written.
        unsafe { self.slot(oldest).assume_init_ref() }
    }

    /// The completion of a number.
    ///
    /// # Safety
    /// There is one with that number.
    #[inline(always)]
    pub unsafe fn at(&mut self, number: usize) -> &Completion {
        // SAFETY: the completions between head and tail were written.
        unsafe { self.slot(number).assume_init_ref() }
    }

    /// Keeps the completions for which `f` is true, in their order; asks it for the newest first.
    ///
    /// They move towards the newest: polls read the numbers without the lock, and are not to find the ring empty, nor
    /// is a number to have room that had none.
    pub fn retain(&mut self, numbers: &Numbers, mut f: impl FnMut(&Completion) -> bool) {
        let mut first = numbers.tail.load(Ordering::Relaxed);
        let newest = first.wrapping_sub(1);
        for number in (0..numbers.len()).map(|n| newest.wrapping_sub(n)) {
            // SAFETY: between head and tail.
            let completion = *unsafe { self.at(number) };
            if f(&completion) {
                first = first.wrapping_sub(1);
                self.slot(first).write(completion);
            }
        }
        numbers.head.store(first, Ordering::Relaxed);
    }

    /// Sets the capacity, which is not below the length, and the longest one. The memory is reserved all at once, so
    /// that no completion is lost for want of memory; the kernel gives the pages only when they
    /// are used.
    ///
    /// # Errors
    /// [`DeviceError::Resources`]; nothing has changed then.
    pub fn resize(
        &mut self,
        numbers: &Numbers,
        capacity: usize,
        longest: usize,
    ) -> Result<(), DeviceError> {
        let mut new = CompletionRing::new(capacity, longest)?;
        let head = numbers.head.load(Ordering::Relaxed);
        for number in (0..numbers.len()).map(|n| head.wrapping_add(n)) {
            *new.slot(number) = *self.slot(number);
        }
        new.stop = numbers.tail.load(Ordering::Relaxed);
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
        let (mut entries, numbers) = (CompletionRing::new(0, 0).unwrap(), Numbers::default());
        assert!(entries.pop(&numbers).is_none());
        let (mut pushed, mut popped) = (0, 0);
        for capacity in [3, 100, 7, 1, 40] {
            entries.resize(&numbers, capacity, capacity).unwrap();
            for round in 0..50 {
                while entries.push(&numbers, completion(pushed), capacity) {
                    pushed += 1;
                }
                assert_eq!(numbers.len(), capacity);
                let left = if round == 49 { 1 } else { capacity / 3 };
                while numbers.len() > left {
                    assert_eq!(entries.pop(&numbers).unwrap().wr_id, popped);
                    popped += 1;
                }
            }
        }
        assert_eq!((numbers.len() as u64, popped + 1), (1, pushed));
        assert!(!numbers.is_empty() && entries.pop(&numbers).is_some() && numbers.is_empty());
    }

    /// Wherever in the ring the oldest one is when it begins to use all its memory.
    #[test]
    fn in_order_beyond_what_was_asked_for() {
        for (capacity, longest) in [(1, 1), (4, 7), (5, 7), (7, 7), (8, 15), (8, 8)] {
            for before in 0..20 {
                let mut entries = CompletionRing::new(capacity, longest).unwrap();
                let numbers = Numbers::default();
                for n in 0..before {
                    assert!(entries.push(&numbers, completion(n), capacity));
                    assert_eq!(entries.pop(&numbers).unwrap().wr_id, n);
                }
                let fill = |entries: &mut CompletionRing, room| {
                    let next = before + numbers.len() as u64;
                    (next..)
                        .take_while(|n| entries.push(&numbers, completion(*n), room))
                        .count()
                };
                assert_eq!(fill(&mut entries, capacity), capacity);
                entries.widen(&numbers);
                assert_eq!(fill(&mut entries, longest), longest - capacity);
                let left = std::iter::from_fn(|| Some(entries.pop(&numbers)?.wr_id));
                assert!(left.eq(before..before + longest as u64));
            }
        }
    }

    /// While some are removed, a poll without the lock finds those that stay.
    #[test]
    fn what_stays_is_there_all_the_time() {
        let (mut entries, numbers) = (CompletionRing::new(4, 4).unwrap(), Numbers::default());
        for kept in 1..=3 {
            assert!((0..3).all(|n| entries.push(&numbers, completion(n), 4)));
            entries.retain(&numbers, |c| {
                assert!(!numbers.is_empty());
                c.wr_id < kept
            });
            assert_eq!(numbers.len() as u64, kept);
            while entries.pop(&numbers).is_some() {}
        }
    }

    /// Completions that stay when others are removed take up their room.
    #[test]
    fn room_after_retain() {
        for kept in 0..=3 {
            let (mut entries, numbers) = (CompletionRing::new(4, 4).unwrap(), Numbers::default());
            assert!((0..3).all(|n| entries.push(&numbers, completion(n), 4)));
            entries.retain(&numbers, |c| c.wr_id >= 3 - kept);
            let more = (3..).take_while(|&n| entries.push(&numbers, completion(n), 4));
            assert_eq!(more.count() as u64, 4 - kept);
            let left = std::iter::from_fn(|| Some(entries.pop(&numbers)?.wr_id));
            assert!(left.eq(3 - kept..7 - kept));
        }
    }

    #[test]
    fn retain_removes_those_of_one_context() {
        let (mut entries, numbers) = (CompletionRing::new(10, 10).unwrap(), Numbers::default());
        assert!((0..9).all(|n| entries.push(&numbers, completion(n), 10)));
        entries.retain(&numbers, |c| c.context == 1);
        let left = std::iter::from_fn(|| Some(entries.pop(&numbers)?.wr_id));
        assert_eq!(left.collect::<Vec<_>>(), [1, 3, 5, 7]);
    }
}
