//! The order in which connections are served whose completions may go to one queue.
//!
//! A consumer of several connections expects their completions in about the order in which the
//! messages were sent: at least, a message that was sent after another one had completed does not
//! complete before that other one. The connections use separate rings or sockets, which do not
//! show that order. So connections are served in rounds. In a round each connection delivers one
//! message at most, the one first whose last message is the longest ago; and before each round all
//! connections are polled once more, so that whatever had completed before one of the messages
//! of the round was sent takes part in the round. What takes no receive has no turn, and is executed then: a message
//! may be behind it. One thread at a time serves.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of rounds after which the thread that serves ends, though messages may be left: they are for the
/// next service, so that the order is kept.
pub(crate) const ROUNDS: usize = 64;

/// When a connection has delivered its last message, on the clock of all that are served together. A part of a
/// message does not count: with that the message would come after one of a later step.
#[derive(Debug, Default)]
pub(crate) struct LastServed(AtomicU64);

impl LastServed {
    /// The reading of the clock; 0 if the connection was never served.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A clock that counts how often a connection was served.
#[derive(Debug, Default)]
pub(crate) struct ServiceClock(AtomicU64);

impl ServiceClock {
    /// Notes that a connection is served now. Threads that serve at the same time may get the
    /// same reading.
    #[inline]
    pub fn note(&self, last_served: &LastServed) {
        let now = self.0.load(Ordering::Relaxed).wrapping_add(1);
        self.0.store(now, Ordering::Relaxed);
        last_served.0.store(now, Ordering::Relaxed);
    }
}
