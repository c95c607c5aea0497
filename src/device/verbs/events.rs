//! Connection events on their way to the consumer: one by one and in order, whichever threads
//! find them.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::device::{CmEvent, QpHandler, QueuePair};

/// The connection events of a queue pair.
pub(super) struct Events {
    handler: Arc<dyn QpHandler>,
    qp: Weak<dyn QueuePair>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<CmEvent>,
    /// A thread is handing events over; it will see what is added.
    busy: bool,
    /// The queue pair is gone: no further events.
    closed: bool,
}

impl Events {
    pub fn new(handler: Arc<dyn QpHandler>, qp: Weak<dyn QueuePair>) -> Events {
        Events {
            handler,
            qp,
            state: Mutex::default(),
        }
    }

    /// Hands an event over. The caller holds no lock.
    pub fn tell(&self, event: CmEvent) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        state.queue.push_back(event);
        if state.busy {
            return;
        }
        state.busy = true;
        while let Some(event) = state.queue.pop_front() {
            drop(state);
            let established = matches!(event, CmEvent::Established { .. });
            self.handler.connection(event);
            if let (true, Some(qp)) = (established, self.qp.upgrade()) {
                qp.start_receiving();
            }
            state = self.state.lock();
        }
        state.busy = false;
    }

    /// Forgets events that were not handed over.
    pub fn clear(&self) {
        self.state.lock().queue.clear();
    }

    /// Nothing is handed over from now on.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.queue.clear();
    }
}
