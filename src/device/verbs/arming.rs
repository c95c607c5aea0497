//! What the consumer of a completion queue has asked for, and what the device was asked for because of
//! it.
//!
//! A consumer that arms the queue and sleeps must not be overlooked. It arms the queue and then looks:
//! whether the device was asked already, whether a work queue completes here, and, with its next poll,
//! whether there is a completion. Who changes one of these looks afterwards whether the queue is
//! armed. The two may do so at the same time, and a processor may do a load before an earlier store of
//! its own: then neither would see what the other did. So each of them has a fence between the two,
//! [`barrier`], and one at least sees the other.
//!
//! That the device was asked is noted when it was: who reads the note polls and sleeps. The device may
//! have answered by then, so that the note would never be true. So answers are counted, and the note is
//! made only if there was none since before the device was asked. Without the note it is asked once more
//! than needed.
//!
//! `tests/loom/arming.rs` checks both.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The device was asked for no notification.
const NONE: u64 = 0;
/// The device was asked to notify of the next solicited completion.
pub const SOLICITED: u64 = 1;
/// The device was asked to notify of the next completion.
pub const ALL: u64 = 2;

/// The bits of `requested` that say what the device was asked for.
const KIND: u64 = 3;
/// One answer in the count of them.
const ANSWER: u64 = KIND + 1;

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
    /// The completions of which the device was asked to notify, and has not yet, and above that the number
    /// of answers so far.
    requested: AtomicU64,
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
            requested: AtomicU64::new(NONE),
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

    /// Calls `ask`, which asks the device for such a notification, unless it was asked already and has not
    /// answered.
    pub fn request(&self, kind: u64, ask: impl FnOnce()) {
        let before = self.requested.load(Ordering::Acquire);
        if before & KIND >= kind {
            return;
        }
        ask();
        let after = before & !KIND | kind;
        // Another thread may have asked as well, for less perhaps: then the device is asked again.
        let _ = self
            .requested
            .compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The device has answered what it was asked for, or never will. The caller looks afterwards
    /// whether the queue is armed.
    pub fn answered(&self) {
        let mut before = self.requested.load(Ordering::Relaxed);
        while let Err(now) = self.requested.compare_exchange_weak(
            before,
            (before & !KIND).wrapping_add(ANSWER),
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            before = now;
        }
    }
}
