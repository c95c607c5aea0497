//! Completion queues.

pub(crate) mod ring;

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use self::ring::CompletionRing;
use super::upcalls::{CqUpcalls, Upcalls};
use crate::device::{Completion, CompletionQueue, CqHandler, DeviceError};
use crate::handle::{Biased, Guard};

/// Entries of one queue.
pub(super) const MAX_CQE: u32 = 1 << 20;

struct Ring {
    entries: CompletionRing,
    capacity: usize,
    armed: bool,
}

/// A completion queue.
pub struct Cq {
    ring: Biased<Ring>,
    /// Length of the ring, for a look without the lock.
    len: AtomicUsize,
    handler: Arc<dyn CqHandler>,
    /// Queues of the device, to give back.
    count: Arc<AtomicU32>,
}

impl Cq {
    /// `count` has counted it already.
    pub(crate) fn new(
        entries: u32,
        handler: Arc<dyn CqHandler>,
        count: Arc<AtomicU32>,
    ) -> Result<Arc<Cq>, DeviceError> {
        let cq = Cq {
            ring: Biased::new(Ring {
                entries: CompletionRing::default(),
                capacity: 0,
                armed: false,
            }),
            len: AtomicUsize::new(0),
            handler,
            count,
        };
        cq.resize(entries)?;
        Ok(Arc::new(cq))
    }

    /// Queues a completion. `notifies` says whether it is one that the consumer wants to be
    /// woken for; whom to tell goes to `up`.
    #[inline(always)]
    pub(crate) fn push(self: &Arc<Self>, completion: Completion, notifies: bool, up: &mut Upcalls) {
        let mut ring = self.ring.lock();
        if ring.entries.len() >= ring.capacity {
            drop(ring);
            up.overflow(self);
            return;
        }
        ring.entries.push(completion);
        self.len.store(ring.entries.len(), Ordering::Release);
        if notifies && ring.armed {
            ring.armed = false;
            drop(ring);
            up.notify(self);
        }
    }

    /// Removes the completions of a queue pair; gives how many were of buffers of a shared
    /// receive queue.
    pub(crate) fn remove(&self, context: u64) -> usize {
        let mut ring = self.ring.lock();
        let mut from_srq = 0;
        ring.entries.retain(|c| {
            let goes = c.context == context;
            from_srq += usize::from(goes && c.from_srq);
            !goes
        });
        self.len.store(ring.entries.len(), Ordering::Release);
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
    fn poll_in<'a>(
        &self,
        place: &'a mut MaybeUninit<Completion>,
        guard: &Guard,
    ) -> Option<&'a mut Completion> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut ring = self.ring.lock_as(guard.thread());
        let taken = ring.entries.pop().map(|taken| place.write(*taken));
        self.len.store(ring.entries.len(), Ordering::Release);
        taken
    }

    fn arm(&self) {
        self.ring.lock().armed = true;
    }

    fn disarm(&self) {
        self.ring.lock().armed = false;
    }

    fn capacity(&self) -> u32 {
        self.ring.lock().capacity as u32
    }

    fn resize(&self, entries: u32) -> Result<(), DeviceError> {
        let mut ring = self.ring.lock();
        let capacity = entries as usize;
        if entries > MAX_CQE || capacity < ring.entries.len() {
            return Err(DeviceError::Limit);
        }
        ring.entries.resize(capacity)?;
        ring.capacity = capacity;
        Ok(())
    }
}
