//! Completion queues whose completions are discarded.
//!
//! A work queue without a completion queue of the consumer has one of its own, which only this
//! device polls. It has room for all requests that can be outstanding, so completions may stay in
//! it: it is emptied when a post finds the work queue full, and when the device notifies of a
//! failure, which ends the connection.

use std::sync::{Arc, OnceLock, Weak};

use crate::lock::Mutex;

use super::Verbs;
use super::cq::Cq;
use crate::device::{CompletionQueue, CqHandler, DeviceError};

/// Called when a request has failed.
struct DiscardHandler(OnceLock<Weak<Cq>>);

impl CqHandler for DiscardHandler {
    fn notify(&self) {
        if let Some(cq) = self.0.get().and_then(Weak::upgrade) {
            // A completion that arrives between the two calls notifies again or is discarded.
            cq.arm();
            cq.discard_all();
        }
    }

    // The queue has room for all requests that can be outstanding.
    fn overflow(&self) {}
}

impl Cq {
    /// A completion queue for a work queue of so many requests, whose completions are discarded.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Resources`].
    pub(super) fn discarding(device: &Arc<Verbs>, requests: u32) -> Result<Arc<Cq>, DeviceError> {
        let handler = Arc::new(DiscardHandler(OnceLock::new()));
        let entries = requests.max(1);
        let cq = Cq::make(device, entries, handler.clone(), Some(Mutex::new(())))?;
        let _ = handler.0.set(Arc::downgrade(&cq));
        Ok(cq)
    }

    /// Whether only solicited completions of a work queue are to notify. Of completions that are
    /// discarded only the failures matter, and devices notify of failures as of solicited
    /// completions; rxe does not.
    pub(super) fn notifies_solicited(&self, solicited_only: bool) -> bool {
        match self.discard {
            Some(_) => !self.device.checks_segments,
            None => solicited_only,
        }
    }

    /// Takes all completions, if they are to be discarded.
    pub(super) fn discard_all(&self) {
        if let Some(discarding) = &self.discard {
            // Slots are retired by one thread at a time.
            let _discarding = discarding.lock();
            while self.poll().is_some() {}
        }
    }
}
