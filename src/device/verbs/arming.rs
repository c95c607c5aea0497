//! What the consumer of a completion queue has asked for, and what the device was asked for because of
//! it.
//!
//! A consumer that arms the queue and sleeps must not be overlooked. It arms the queue and then looks:
//! whether the device was asked already, whether a work queue completes here, and, with its next poll,
//! whether there is a completion. Who changes one of these looks afterwards whether the queue is
//! armed. The two may do so at the same time, and a processor may do a load before an earlier store of
//! its own: then neither would see what the other did. So each of them has a fence between the two,
//! [`barrier`], and one at least sees the other. `tests/loom/arming.rs` checks it.

use crate::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};

/// The device was asked for no notification.
const NONE: u8 = 0;
/// The device was asked to notify of the next solicited completion.
pub const SOLICITED: u8 = 1;
/// The device was asked to notify of the next completion.
pub const ALL: u8 = 2;

/// Stands between arming the queue and looking what there is, and between changing what there is and
/// looking whether the queue is armed: see the module. Each pairs with that of the other side.
fn barrier() {
    fence(Ordering::SeqCst);
}

/// See the module.
#[derive(Debug)]
pub struct Arming {
    /// The consumer has armed the queue.
    armed: AtomicBool,
    /// The completions of which the device was asked to notify, and has not yet.
    requested: AtomicU8,
}

impl Default for Arming {
    fn default() -> Self {
        Self::new()
    }
}

impl Arming {
    /// Of a queue that is not armed.
    pub fn new() -> Arming {
        Arming {
            armed: AtomicBool::new(false),
            requested: AtomicU8::new(NONE),
        }
    }

    /// Arms the queue. The caller looks afterwards what there is.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::Release);
        barrier();
    }

    /// Undoes [`Arming::arm`].
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Release);
    }

    /// Whether the queue is armed. The caller has changed what there is.
    pub fn is_armed(&self) -> bool {
        barrier();
        self.armed.load(Ordering::Acquire)
    }

    /// Disarms the queue, to notify the consumer; `false` if it is not armed. The caller has changed
    /// what there is.
    pub fn take(&self) -> bool {
        barrier();
        self.armed.swap(false, Ordering::AcqRel)
    }

    /// Whether the device is to be asked for such a notification: an earlier request that it has not
    /// answered may include this one.
    pub fn request(&self, kind: u8) -> bool {
        self.requested.fetch_max(kind, Ordering::AcqRel) < kind
    }

    /// The device has answered what it was asked for, or never will. The caller looks afterwards
    /// whether the queue is armed.
    pub fn answered(&self) {
        self.requested.store(NONE, Ordering::Release);
    }
}
