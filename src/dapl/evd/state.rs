//! What the lock of an EVD protects.

use std::collections::VecDeque;
use std::sync::Arc;

use super::srq_buffers::SrqBuffers;
use super::stream_counts::StreamCounts;
use crate::dapl::cno::Cno;
use crate::dapl::types::Event;
use crate::device::Device;
use crate::error::{Error, Kind};

/// The state of an EVD.
pub struct State<D: Device> {
    /// Events of the provider, and completions that arrived before them.
    pub queue: VecDeque<Event>,
    /// How many events `queue` may hold.
    pub qlen: usize,
    /// Events trigger the CNO.
    pub enabled: bool,
    /// Threads may call `dat_evd_wait`.
    pub waitable: bool,
    /// What keeps a thread from taking a completion of the device at once: [`WAITER`], [`OVERFLOWED`],
    /// [`NO_CQ`]. One word, so that a poll makes one test.
    pub exceptions: u32,
    /// The waiter has been notified since it last checked the queue.
    pub signalled: bool,
    /// The EVD has been unwaitable since the waiter came.
    pub evicted: bool,
    /// How many events the waiter waits for; 0 if there is none.
    pub threshold: usize,
    pub cno: Option<Arc<Cno<D>>>,
    /// The streams that feed the EVD.
    pub streams: StreamCounts,
    pub srq_buffers: SrqBuffers,
    /// The log has it that an asynchronous error was lost here.
    pub loss_is_logged: bool,
    /// Freed, or its IA is closed.
    pub closed: bool,
}

/// A thread is in `dat_evd_wait`; it owns the EVD.
pub const WAITER: u32 = 1;
/// An asynchronous error was lost here. There is no EVD to report that to, so waits and dequeues return
/// it.
pub const OVERFLOWED: u32 = 2;
/// The EVD is not made for completions.
pub const NO_CQ: u32 = 4;

impl<D: Device> State<D> {
    /// Of a new EVD, with room for `qlen` events in `queue`.
    pub fn new(
        queue: VecDeque<Event>,
        qlen: usize,
        cno: Option<Arc<Cno<D>>>,
        has_no_cq: bool,
    ) -> State<D> {
        State {
            queue,
            qlen,
            enabled: true,
            waitable: true,
            exceptions: if has_no_cq { NO_CQ } else { 0 },
            signalled: false,
            evicted: false,
            threshold: 0,
            cno,
            streams: StreamCounts::default(),
            srq_buffers: SrqBuffers::default(),
            loss_is_logged: false,
            closed: false,
        }
    }

    /// Why no event could be taken.
    pub fn nothing(&self) -> Error {
        match self.has(OVERFLOWED) {
            true => Kind::InvalidState.into(),
            false => Kind::QueueEmpty.into(),
        }
    }

    /// Takes the oldest event that is queued here.
    pub fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front()?;
        if let Event::Completion(completion) = &event {
            self.srq_buffers.count(completion.into());
        }
        Some(event)
    }

    /// A thread begins to wait for so many events, or ends to (0).
    pub fn set_waiter(&mut self, threshold: usize) {
        self.set(WAITER, threshold > 0);
        self.threshold = threshold;
        self.signalled = false;
        self.evicted = false;
    }

    /// Whether one of these exceptions applies.
    #[inline(always)]
    pub fn has(&self, exceptions: u32) -> bool {
        self.exceptions & exceptions != 0
    }

    /// An exception begins or ceases to apply.
    pub fn set(&mut self, exception: u32, applies: bool) {
        self.exceptions &= !exception;
        if applies {
            self.exceptions |= exception;
        }
    }
}
