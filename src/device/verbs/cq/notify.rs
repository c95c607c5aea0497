//! Notifications: which completions the device is asked to notify of, and when the consumer is.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Cq;
use crate::device::CompletionQueue;
use crate::device::verbs::arming::{ALL, SOLICITED};
use crate::handle::pin::pin;

impl Cq {
    /// A work queue begins to complete here.
    pub(in crate::device::verbs) fn attach(&self, solicited_only: bool) {
        let solicited_only = self.notifies_solicited(solicited_only);
        // Under the lock, so that the queue of the device is not replaced meanwhile.
        let queue = self.queue.lock();
        self.users(solicited_only).fetch_add(1, Ordering::Relaxed);
        drop(queue);
        if self.discard.is_some() {
            self.arm();
        } else if self.arming.is_armed() {
            self.request_notify();
        }
    }

    /// A work queue completes here no more.
    pub(in crate::device::verbs) fn detach(&self, solicited_only: bool) {
        let solicited_only = self.notifies_solicited(solicited_only);
        self.users(solicited_only).fetch_sub(1, Ordering::Relaxed);
    }

    /// The count of such work queues.
    pub(super) fn users(&self, solicited_only: bool) -> &AtomicU32 {
        if solicited_only {
            &self.solicited
        } else {
            &self.unsolicited
        }
    }

    /// A request is about to be posted whose completion must not notify.
    #[inline]
    pub(in crate::device::verbs) fn filter_notifications(&self) {
        if !self.filtered.load(Ordering::Relaxed) {
            self.filtered.store(true, Ordering::Relaxed);
            self.held.store(true, Ordering::Release);
        }
    }

    /// Notifies the consumer if the queue is armed and holds a completion that notifies.
    pub(in crate::device::verbs) fn notify(&self) {
        let found = self.queue.lock().entries.iter().any(|entry| entry.1);
        if found && self.arming.take() {
            self.handler.notify();
        }
    }

    /// The device notifies of a completion. Called by the service thread.
    pub(in crate::device::verbs) fn on_event(&self) {
        self.arming.answered();
        if !self.arming.is_armed() {
            return;
        }
        if self.filtered.load(Ordering::Relaxed) && self.discard.is_none() {
            let hold = self.hold();
            if !hold.collect() {
                self.request_notify();
                // The device does not notify of completions that arrived before.
                hold.collect();
            }
            drop(hold);
            self.notify();
        } else if self.arming.take() {
            self.handler.notify();
        }
    }

    /// The device reports that completions were lost. Called by the service thread.
    pub(in crate::device::verbs) fn on_overflow(&self) {
        self.handler.overflow();
    }

    /// Asks the device to notify of the next completion.
    pub(super) fn request_notify(&self) {
        let solicited = self.solicited.load(Ordering::Relaxed);
        let kind = match self.unsolicited.load(Ordering::Relaxed) {
            // Nothing completes here; `attach` asks.
            0 if solicited == 0 => return,
            0 if !self.device.siw => SOLICITED,
            _ => ALL,
        };
        self.arming.request(kind, || {
            // The queue of the device may be replaced meanwhile.
            let _guard = pin();
            // SAFETY: the queue is valid for the section.
            unsafe { (self.ops.req_notify_cq)(self.raw(), (kind == SOLICITED).into()) };
        });
    }
}
