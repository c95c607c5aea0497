//! Completion queues for what nobody wants to hear of.
//!
//! A queue of a queue pair that the consumer has given no completion queue has one of its own,
//! which we poll alone. There is room in it for all requests that can be outstanding, so it needs
//! no care while they complete: it is emptied when a post finds the queue full, and when the
//! device tells that something has failed, which ends the connection.

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::Verbs;
use super::cq::Cq;
use crate::device::{CompletionQueue, CqHandler, DeviceError};

/// Called when something has failed.
struct Reaper(OnceLock<Weak<Cq>>);

impl CqHandler for Reaper {
    fn notify(&self) {
        if let Some(cq) = self.0.get().and_then(Weak::upgrade) {
            // What comes meanwhile is either told or taken.
            cq.arm();
            cq.reap();
        }
    }

    // There is room for all that can be outstanding.
    fn overflow(&self) {}
}

impl Cq {
    /// For a queue of so many work requests whose completions nobody wants.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Resources`].
    pub(super) fn unheard(device: &Arc<Verbs>, requests: u32) -> Result<Arc<Cq>, DeviceError> {
        let reaper = Arc::new(Reaper(OnceLock::new()));
        let entries = requests.max(1);
        let cq = Cq::make(device, entries, reaper.clone(), Some(Mutex::new(())))?;
        let _ = reaper.0.set(Arc::downgrade(&cq));
        Ok(cq)
    }

    /// Whether only solicited completions of a queue of a queue pair are to notify. Of those that
    /// are nobody's we want to know the failures alone, and devices tell of these like of the
    /// solicited ones; rxe does not.
    pub(super) fn hears_solicited(&self, solicited_only: bool) -> bool {
        match self.unheard {
            Some(_) => !self.device.vague,
            None => solicited_only,
        }
    }

    /// Takes all completions there are, if they are nobody's.
    pub(super) fn reap(&self) {
        if let Some(reaping) = &self.unheard {
            // Slots are retired by one thread at a time.
            let _reaping = reaping.lock();
            while self.poll().is_some() {}
        }
    }
}
