//! Completion queues.

pub(crate) mod ring;

use std::hint::black_box;
use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use self::ring::{CompletionRing, Numbers};
use super::upcalls::{CqUpcalls, Upcalls};
use crate::device::{
    Completion, CompletionQueue, CqHandler, DeviceError, PlainPoll, PlainTaker, Taker,
};
use crate::errno;
use crate::handle::pin::Thread;
use crate::handle::{Biased, Guard, INNER};

/// Entries of one queue at most.
pub(super) const MAX_CQE: u32 = 1 << 20;

struct Queue {
    /// The completions.
    entries: CompletionRing,
    /// Number of completions for which there is room now: what the consumer has asked for, or the [`longest`].
    capacity: usize,
    /// Whether the next completion that notifies calls the handler.
    armed: bool,
}

/// A completion queue.
pub struct Cq {
    /// The completions, biased to the thread that polls them.
    queue: Biased<Queue, INNER>,
    /// Which completions `queue` has.
    numbers: Numbers,
    /// What the consumer is notified through.
    handler: Arc<dyn CqHandler>,
    /// Number of completion queues of the device, this one included.
    count: Arc<AtomicU32>,
}

impl Cq {
    /// A queue that `count` has counted already.
    pub(crate) fn new(
        entries: u32,
        handler: Arc<dyn CqHandler>,
        count: Arc<AtomicU32>,
    ) -> Result<Arc<Cq>, DeviceError> {
        let queue = match CompletionRing::new(0, 0) {
            Ok(entries) => Queue {
                entries,
                capacity: 0,
                armed: false,
            },
            Err(error) => {
                count.fetch_sub(1, Ordering::Relaxed);
                return Err(error);
            }
        };
        let cq = Cq {
            queue: Biased::new(queue),
            numbers: Numbers::default(),
            handler,
            count,
        };
        cq.resize(entries)?;
        Ok(Arc::new(cq))
    }

    /// Queues a completion. `notifies` says whether the consumer has asked to be notified of it, which is
    /// of interest only while the queue is armed; the notification goes to `up`. `thread` is the running one.
    #[inline(always)]
    pub(crate) fn push(
        self: &Arc<Self>,
        completion: Completion,
        notifies: impl FnOnce() -> bool,
        thread: Thread,
        up: &mut Upcalls,
    ) {
        let cq: &Cq = self;
        match cq.queue.own(thread) {
            Some(queue) => cq.push_to(queue, completion, notifies, self, up),
            // A copy, so that the completion above need not be in memory but for its slot.
            None => self.push_shared(&black_box(completion), notifies(), up),
        }
    }

    /// [`Cq::push`] that leaves `errno` as it is; gives `up` with what is to be called.
    ///
    /// # Safety
    /// The thread, which is the running one, holds no lock of the inner level as its owner.
    #[inline(always)]
    pub(crate) unsafe fn push_plainly(
        self: &Arc<Self>,
        completion: Completion,
        notifies: impl FnOnce() -> bool,
        thread: Thread,
        up: Upcalls,
    ) -> Upcalls {
        // SAFETY: the caller's promise.
        if let Some(mut queue) = unsafe { self.queue.own_unmarked(thread) } {
            let Queue {
                entries,
                capacity,
                armed,
                ..
            } = &mut *queue;
            if !*armed && entries.push(&self.numbers, completion, *capacity) {
                return up;
            }
        }
        self.push_rarely(&black_box(completion), notifies(), up)
    }

    /// [`Cq::push_plainly`] where that is not all.
    #[cold]
    #[inline(never)]
    fn push_rarely(
        self: &Arc<Self>,
        completion: &Completion,
        notifies: bool,
        up: Upcalls,
    ) -> Upcalls {
        errno::kept(|| {
            let mut up = up;
            self.push_shared(completion, notifies, &mut up);
            up
        })
    }

    /// [`Cq::push`] in a thread that is not the owner of the lock.
    #[inline(never)]
    fn push_shared(self: &Arc<Self>, completion: &Completion, notifies: bool, up: &mut Upcalls) {
        self.push_to(self.queue.lock(), *completion, || notifies, self, up);
    }

    /// [`Cq::push`] with the queue locked. `me` is a reference to the same queue.
    #[inline(always)]
    fn push_to(
        &self,
        mut queue: impl DerefMut<Target = Queue>,
        completion: Completion,
        notifies: impl FnOnce() -> bool,
        me: &Arc<Self>,
        up: &mut Upcalls,
    ) {
        let Queue {
            entries, capacity, ..
        } = &mut *queue;
        let is_queued = entries.push(&self.numbers, completion, *capacity)
            || self.push_beyond(&mut queue, &black_box(completion));
        if !is_queued {
            drop(queue);
            up.overflow(me);
            return;
        }
        if queue.armed && notifies() {
            queue.armed = false;
            drop(queue);
            up.notify(me);
        }
    }

    /// [`CompletionRing::push`] where there are as many as the consumer has asked for; false if there is no room.
    #[cold]
    #[inline(never)]
    fn push_beyond(&self, queue: &mut Queue, completion: &Completion) -> bool {
        let room = longest(queue.capacity);
        if queue.capacity < room {
            queue.entries.widen(&self.numbers);
            queue.capacity = room;
        }
        queue.entries.push(&self.numbers, *completion, room)
    }

    /// Takes the oldest completion.
    #[inline(always)]
    fn pop<T: Taker>(&self, queue: &mut Queue, taker: T) -> Option<T::Taken> {
        let oldest = queue.entries.pop(&self.numbers)?;
        Some(taker.take(oldest))
    }

    /// [`Cq::pop`] in a thread that is not the owner of the lock.
    #[inline(never)]
    fn pop_shared<T: Taker>(&self, guard: &Guard, taker: T) -> Option<T::Taken> {
        self.pop(&mut self.queue.lock_as(guard.thread()), taker)
    }

    /// Removes the completions of a queue pair; returns how many of them were of buffers of a
    /// shared receive queue.
    pub(crate) fn remove(&self, context: u64) -> usize {
        let mut queue = self.queue.lock();
        let mut from_srq = 0;
        queue.entries.retain(&self.numbers, |c| {
            let removed = c.context == context;
            from_srq += usize::from(removed && c.from_srq);
            !removed
        });
        from_srq
    }
}

impl CqUpcalls for Cq {
    fn notify(&self) {
        self.handler.notify();
    }

    fn overflow(&self) {
        self.handler.overflow();
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CompletionQueue for Cq {
    #[inline(always)]
    fn poll_in<T: Taker>(&self, guard: &Guard, taker: T) -> Option<T::Taken> {
        let oldest = self.numbers.oldest()?;
        let Some(mut queue) = self.queue.own(guard.thread()) else {
            return self.pop_shared(guard, taker);
        };
        // SAFETY: no thread but the owner has had the lock since this one became the owner, which was before the
        // number was read: so it is that of the oldest completion still.
        let oldest = unsafe { queue.entries.take(&self.numbers, oldest) };
        Some(taker.take(oldest))
    }

    #[inline(always)]
    unsafe fn poll_plainly<T: PlainTaker>(&self, guard: &Guard, taker: T) -> PlainPoll {
        let Some(oldest) = self.numbers.oldest() else {
            return PlainPoll::Nothing;
        };
        // SAFETY: the caller's promise.
        let Some(mut queue) = (unsafe { self.queue.own_unmarked(guard.thread()) }) else {
            return PlainPoll::Otherwise;
        };
        // SAFETY: as in `poll_in`.
        let completion = unsafe { queue.entries.at(oldest) };
        let Some(op) = completion.op.plain().filter(|_| !completion.from_srq) else {
            return PlainPoll::Otherwise;
        };
        // SAFETY: as above.
        let completion = unsafe { queue.entries.take(&self.numbers, oldest) };
        taker.take_plain(op, completion);
        PlainPoll::Taken
    }

    fn arm(&self) {
        self.queue.lock().armed = true;
    }

    fn disarm(&self) {
        self.queue.lock().armed = false;
    }

    fn queued(&self) -> Option<u32> {
        Some(self.numbers.len() as u32)
    }

    fn capacity(&self) -> u32 {
        longest(self.queue.lock().capacity) as u32
    }

    fn resize(&self, entries: u32) -> Result<(), DeviceError> {
        let mut queue = self.queue.lock();
        let capacity = entries as usize;
        if entries > MAX_CQE || capacity < self.numbers.len() {
            return Err(DeviceError::Limit);
        }
        queue
            .entries
            .resize(&self.numbers, capacity, longest(capacity))?;
        queue.capacity = capacity;
        Ok(())
    }
}

/// How many completions a queue of that length has room for in the end. It is its own longest length.
fn longest(capacity: usize) -> usize {
    let rounded = (capacity + 1).next_power_of_two() - 1;
    rounded.min(MAX_CQE as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{WcOp, WcStatus};
    use crate::handle::pin;

    struct Ignored;

    impl CqHandler for Ignored {
        fn notify(&self) {}
        fn overflow(&self) {}
    }

    #[test]
    fn removal_counts_the_receives_of_the_queue_pair_alone() {
        let cq = Cq::new(8, Arc::new(Ignored), Arc::default()).unwrap();
        let mut up = Upcalls::default();
        for (context, from_srq) in [(1, true), (1, false), (2, true), (1, true), (2, false)] {
            let completion = Completion {
                context,
                wr_id: 0,
                op: WcOp::Recv,
                from_srq,
                status: WcStatus::Success,
                byte_len: 0,
            };
            cq.push(completion, || false, pin::thread(), &mut up);
        }
        assert_eq!(cq.remove(1), 2);
        assert_eq!(cq.remove(1), 0);
        assert_eq!(cq.remove(2), 1);
        assert!(cq.numbers.is_empty());
    }

    #[test]
    fn only_plain_completions_are_taken_plainly() {
        struct Op<'a>(&'a mut Option<WcOp>);
        impl PlainTaker for Op<'_> {
            fn take_plain(self, op: WcOp, completion: &Completion) {
                assert_eq!(op, completion.op);
                *self.0 = Some(op);
            }
        }
        let cq = Cq::new(8, Arc::new(Ignored), Arc::default()).unwrap();
        let completion = |op, from_srq| Completion {
            context: 1,
            wr_id: 2,
            op,
            from_srq,
            status: WcStatus::Success,
            byte_len: 3,
        };
        let mut up = Upcalls::default();
        let mut push = |completion| cq.push(completion, || false, pin::thread(), &mut up);
        // Only the owner of the lock takes them so.
        for _ in 0..300 {
            drop(cq.queue.lock());
        }
        let owned = cq.queue.own(pin::thread()).is_some();
        let guard = pin::pin();
        let poll = || {
            let mut op = None;
            // SAFETY: no lock is held.
            match unsafe { cq.poll_plainly(&guard, Op(&mut op)) } {
                PlainPoll::Taken => op,
                PlainPoll::Nothing => {
                    assert!(cq.numbers.is_empty());
                    None
                }
                PlainPoll::Otherwise => {
                    assert!(!cq.numbers.is_empty());
                    None
                }
            }
        };
        assert_eq!(poll(), None);
        push(completion(WcOp::Recv, false));
        push(completion(WcOp::Recv, true));
        push(completion(WcOp::Bind { context: 4 }, false));
        push(completion(WcOp::RdmaRead, false));
        if !owned {
            return;
        }
        assert_eq!(poll(), Some(WcOp::Recv));
        for _ in 0..2 {
            assert_eq!(poll(), None);
            assert!(cq.poll().is_some());
        }
        assert_eq!((poll(), poll()), (Some(WcOp::RdmaRead), None));
    }
}
