//! The order in which connections begin and end.
//!
//! A peer that waits until all its connections are established before it ends the first one
//! causes events here in that order. What the peer sends arrives over as many sockets, though,
//! and those are served in any order, by more than one thread. So the end of a connection is
//! reported only when the connections that were being set up when the end was observed are
//! established, and reported to the consumer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::kernel::Instant;
use crate::lock::Mutex;

/// How long the report of an end is put off at most: a peer may be slow, or have died, between
/// the reply that it was sent and the message that establishes the connection.
const MAX_DELAY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// The number of the next set-up.
    next: u64,
    /// Numbers of the set-ups that go on.
    pending: BTreeSet<u64>,
}

/// The order in which the connections of an engine begin and end.
#[derive(Default)]
pub(crate) struct EventOrder {
    /// The set-ups.
    state: Mutex<State>,
}

/// A connection is being set up, until this guard is dropped.
pub(crate) struct SetupGuard {
    /// The engine's order.
    order: Arc<EventOrder>,
    /// The number of the set-up.
    number: u64,
}

/// An end of a connection that was observed.
pub(crate) struct ObservedEnd {
    /// The number of the first set-up that begins later.
    next: u64,
    /// When the end was observed.
    at: Instant,
}

impl EventOrder {
    /// Begins the set-up of a connection, which the next reply to the peer may establish.
    pub fn begin(self: &Arc<Self>) -> SetupGuard {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.pending.insert(number);
        let order = self.clone();
        SetupGuard { order, number }
    }

    /// Notes that a connection has ended.
    pub fn observe_end(&self) -> ObservedEnd {
        ObservedEnd {
            next: self.state.lock().next,
            at: Instant::now(),
        }
    }

    /// Whether the end may be reported now.
    pub fn may_report(&self, end: &ObservedEnd) -> bool {
        let first = self.state.lock().pending.first().copied();
        first.is_none_or(|first| first >= end.next) || end.at.elapsed() >= MAX_DELAY
    }
}

impl Drop for SetupGuard {
    fn drop(&mut self) {
        self.order.state.lock().pending.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_waits_for_the_set_ups_before_it() {
        let order = Arc::new(EventOrder::default());
        let (first, second) = (order.begin(), order.begin());
        let end = order.observe_end();
        let later = order.begin();
        assert!(!order.may_report(&end));
        drop(first);
        assert!(!order.may_report(&end));
        drop(second);
        assert!(order.may_report(&end));
        drop(later);
        assert!(order.may_report(&order.observe_end()));
    }

    #[test]
    fn an_end_waits_for_a_limited_time() {
        let order = Arc::new(EventOrder::default());
        let _never = order.begin();
        let end = order.observe_end();
        while !order.may_report(&end) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(end.at.elapsed() >= MAX_DELAY);
    }
}
