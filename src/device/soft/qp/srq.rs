//! Shared receive queues.
//!
//! A queue pair takes a buffer when a message for it arrives. If there is none the queue pair
//! waits: buffers go to the waiting queue pairs in the order in which they began to wait, and a
//! queue pair that does not wait takes only what is left over. The thread that posts a buffer
//! serves the waiting queue pairs without the lock of the queue: that lock is taken inside those
//! of queue pairs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use super::work_queue::{Receive, WorkQueue};
use crate::device::soft::mem::segments::{self, MemorySegments};
use crate::device::soft::upcalls::{SrqUpcalls, Upcalls};
use crate::device::{
    Access, DeviceError, PostError, QueuePair, RecvWr, SharedReceiveQueue, SrqHandler,
};
use crate::handle::{Section, pin};

/// Shared receive queues of one device.
pub(crate) const MAX_SRQ: u32 = 1 << 16;
/// Buffers of one.
pub(crate) const MAX_SRQ_WR: u32 = 1 << 20;

struct State {
    ring: WorkQueue<Receive>,
    /// One call is due when fewer buffers are left; 0 if none is.
    limit: u32,
    /// Queue pairs with messages but without buffers, the one that waits longest first.
    waiting: VecDeque<Weak<dyn SrqWaiter>>,
    /// Buffers that are kept for queue pairs to which they were granted.
    granted: usize,
}

/// A shared receive queue.
pub struct Srq {
    pub(crate) pd: u32,
    pub(crate) max_sge: u32,
    state: Mutex<State>,
    handler: Arc<dyn SrqHandler>,
    /// Counts the shared receive queues of the device.
    count: Arc<AtomicU32>,
}

/// Whether a queue pair waits for buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Turn {
    /// Does not wait.
    #[default]
    Out,
    /// Waits.
    Waits,
    /// A buffer is kept for it.
    Granted,
}

/// A queue pair that waits for buffers.
pub(crate) trait SrqWaiter: QueuePair {
    /// A buffer is kept for the queue pair: true if the queue pair has taken it.
    fn grant(&self, up: &mut Upcalls) -> bool;
}

impl Srq {
    /// A queue that `count` counts already.
    pub(crate) fn new(
        pd: u32,
        max_wr: u32,
        max_sge: u32,
        handler: Arc<dyn SrqHandler>,
        count: Arc<AtomicU32>,
    ) -> Arc<Srq> {
        Arc::new(Srq {
            pd,
            max_sge,
            state: Mutex::new(State {
                ring: WorkQueue::new(max_wr, max_sge),
                limit: 0,
                waiting: VecDeque::new(),
                granted: 0,
            }),
            handler,
            count,
        })
    }

    /// Moves the oldest buffer to `to`, the receives of queue pair `qp`, which waits from
    /// then on if there is none for it.
    ///
    /// # Errors
    /// See [`WorkQueue::push`]; the buffer stays then.
    pub(crate) fn take(
        self: &Arc<Self>,
        qp: &Weak<dyn SrqWaiter>,
        turn: &mut Turn,
        to: &mut WorkQueue<Receive>,
        up: &mut Upcalls,
    ) -> Result<bool, PostError> {
        let mut guarded = self.state.lock();
        let state = &mut *guarded;
        let promised = match turn {
            Turn::Granted => 0,
            _ => state.granted + state.waiting.len(),
        };
        let buffer = state.ring.front().filter(|_| state.ring.len() > promised);
        let Some((receive, sges)) = buffer else {
            if *turn == Turn::Out {
                let reserved = state.waiting.try_reserve(1);
                reserved.map_err(|_| PostError::QueueFull)?;
                *turn = Turn::Waits;
                state.waiting.push_back(qp.clone());
            }
            return Ok(false);
        };
        to.push(*receive, sges)?;
        state.ring.pop();
        if *turn == Turn::Granted {
            *turn = Turn::Out;
            state.granted -= 1;
        }
        if state.ring.len() < state.limit as usize {
            state.limit = 0;
            drop(guarded);
            up.limit(self);
        }
        Ok(true)
    }

    /// How many queue pairs wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// A queue pair waits no longer.
    pub(crate) fn forget(&self, qp: &Weak<dyn SrqWaiter>) {
        self.state.lock().waiting.retain(|w| !w.ptr_eq(qp));
    }

    /// Grants buffers to the waiting queue pairs, as far as there are some.
    fn serve(&self, up: &mut Upcalls) {
        loop {
            let mut state = self.state.lock();
            if state.ring.len() <= state.granted {
                return;
            }
            let Some(qp) = state.waiting.pop_front() else {
                return;
            };
            state.granted += 1;
            drop(state);
            let taken = qp.upgrade().is_some_and(|qp| qp.grant(up));
            if !taken {
                self.state.lock().granted -= 1;
            }
        }
    }
}

impl Srq {
    /// A receive whose segments are not named by addresses of memory, or not open.
    #[cold]
    #[inline(never)]
    fn post_elsewhere(&self, wr: &RecvWr<'_>, guard: Section) -> Result<(), PostError> {
        let segments = MemorySegments::of_receive(wr, self.pd, &guard)?;
        drop(guard);
        let sges = segments.all();
        self.post_admitted(&RecvWr { sges, ..*wr })
    }

    /// A receive whose segments are open memory.
    #[inline(always)]
    fn post_admitted(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let mut state = self.state.lock();
        state.ring.push(Receive::of(wr), wr.sges)?;
        let awaited = !state.waiting.is_empty();
        drop(state);
        if awaited {
            let mut up = Upcalls::default();
            self.serve(&mut up);
            up.run();
        }
        Ok(())
    }
}

impl SrqUpcalls for Srq {
    fn limit(&self) {
        self.handler.limit();
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SharedReceiveQueue for Srq {
    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostError::TooManySegments);
        }
        let guard = pin::pin();
        if !segments::are_in_memory(wr.sges, self.pd, Access::LOCAL_WRITE, &guard) {
            return self.post_elsewhere(wr, guard);
        }
        drop(guard);
        self.post_admitted(wr)
    }

    fn resize(&self, max_wr: u32) -> Result<(), DeviceError> {
        if max_wr > MAX_SRQ_WR {
            return Err(DeviceError::Limit);
        }
        self.state.lock().ring.reshape(max_wr, self.max_sge)
    }

    fn arm_limit(&self, limit: u32) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let reached = state.ring.len() < limit as usize;
        state.limit = if reached { 0 } else { limit };
        drop(state);
        if reached {
            self.handler.limit();
        }
        Ok(())
    }

    fn available(&self) -> Option<u32> {
        Some(self.state.lock().ring.len() as u32)
    }
}
