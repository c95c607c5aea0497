//! In which order connections are served whose completions may go to one queue.
//!
//! A consumer of several connections expects their completions in about the order in which the
//! messages were sent: at least not one that was sent when another had completed before that
//! other. The connections come over rings or sockets of their own, which say nothing of it. So
//! they are served in rounds, in each of which a connection brings one message at most, the least
//! recently served one first; and before a round all are looked at once more, so that whatever
//! had completed before one of its messages was sent takes part. One thread at a time serves.

use std::sync::atomic::{AtomicU64, Ordering};

/// Rounds after which a connection brings all it has: who serves is to come to an end.
pub(crate) const ROUNDS: usize = 64;

/// When a connection was served last, on the clock of all that are served together.
#[derive(Debug, Default)]
pub(crate) struct LastServed(AtomicU64);

impl LastServed {
    /// The reading of the clock then; 0 if the connection was never served.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts turns.
#[derive(Debug, Default)]
pub(crate) struct ServiceClock(AtomicU64);

impl ServiceClock {
    /// A connection is served now. Threads that serve at the same time may get the same reading.
    #[inline]
    pub fn note(&self, turn: &LastServed) {
        let now = self.0.load(Ordering::Relaxed).wrapping_add(1);
        self.0.store(now, Ordering::Relaxed);
        turn.0.store(now, Ordering::Relaxed);
    }
}
