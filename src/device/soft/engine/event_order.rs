//! Connections that are coming up, and the order of beginnings and ends.
//!
//! A peer that waits until all its connections are up before it ends the first causes events
//! here in that order. What it sends comes over as many sockets, though, and those are served in
//! any order, by more than one thread. So the end of a connection waits until those that were
//! coming up when it was seen are up, and the consumer has been told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long an end waits: a peer may be slow, or gone, between the answer that it got and the
/// message that makes the connection.
const LIMIT: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    next: u64,
    pending: BTreeSet<u64>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct EventOrder {
    state: Mutex<State>,
}

/// A connection that is coming up, until this is dropped.
pub(crate) struct SetupGuard {
    all: Arc<EventOrder>,
    number: u64,
}

/// An end that was seen.
pub(crate) struct ObservedEnd {
    /// The first handshake that is later.
    next: u64,
    at: Instant,
}

impl EventOrder {
    /// The next answer to the peer brings a connection up.
    pub fn begin(self: &Arc<Self>) -> SetupGuard {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.pending.insert(number);
        let all = self.clone();
        SetupGuard { all, number }
    }

    /// A connection has ended.
    pub fn observe_end(&self) -> ObservedEnd {
        ObservedEnd {
            next: self.state.lock().next,
            at: Instant::now(),
        }
    }

    /// Whether the turn of that end has come.
    pub fn may_report(&self, seen: &ObservedEnd) -> bool {
        let first = self.state.lock().pending.first().copied();
        first.is_none_or(|first| first >= seen.next) || seen.at.elapsed() >= LIMIT
    }
}

impl Drop for SetupGuard {
    fn drop(&mut self) {
        self.all.state.lock().pending.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_waits_for_the_handshakes_before_it() {
        let all = Arc::new(EventOrder::default());
        let (first, second) = (all.begin(), all.begin());
        let seen = all.observe_end();
        let later = all.begin();
        assert!(!all.may_report(&seen));
        drop(first);
        assert!(!all.may_report(&seen));
        drop(second);
        assert!(all.may_report(&seen));
        drop(later);
        assert!(all.may_report(&all.observe_end()));
    }

    #[test]
    fn it_waits_for_a_while_only() {
        let all = Arc::new(EventOrder::default());
        let _never = all.begin();
        let seen = all.observe_end();
        while !all.may_report(&seen) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(seen.at.elapsed() >= LIMIT);
    }
}
