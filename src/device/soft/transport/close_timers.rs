//! How long a connection may take to go on or to end, and when the end that was seen takes
//! effect.

use std::time::Duration;

use crate::device::soft::engine::event_order::ObservedEnd;
use crate::device::soft::engine::{Timer, Watch};
use crate::device::soft::upcalls::Upcalls;

/// How long the peer may take with the ready-to-receive message after an accept.
pub(super) const RTR_TIMEOUT: Duration = Duration::from_secs(30);
/// Why a connection is broken whose messages were not received within `linger`.
pub(crate) const LATE_RECV: &str =
    "after a graceful disconnect, messages were not received in time";
/// How soon an end that waits for its turn is looked at again.
const RECHECK: Duration = Duration::from_micros(500);

/// See the module.
#[derive(Default)]
pub(crate) struct CloseTimers {
    limit: Option<Timer>,
    /// The end of the peer was seen, and waits for its turn.
    seen: Option<ObservedEnd>,
    again: Option<Timer>,
}

impl CloseTimers {
    /// Has the connection ended, by `end`, after `delay`, unless it has gone on by then. The
    /// first limit counts.
    pub fn limit(
        &mut self,
        watch: &Watch,
        delay: Duration,
        end: impl FnOnce(&mut Upcalls) + Send + 'static,
    ) {
        self.limit.get_or_insert_with(|| watch.timer(delay, end));
    }

    /// The connection goes on: there is no limit any longer.
    pub fn cancel_limit(&mut self) {
        self.limit = None;
    }

    /// Whether the end of the peer takes effect; otherwise `look` looks at it again soon.
    pub fn is_over(
        &mut self,
        watch: &Watch,
        look: impl FnOnce(&mut Upcalls) + Send + 'static,
    ) -> bool {
        let event_order = watch.event_order();
        let seen = self.seen.get_or_insert_with(|| event_order.observe_end());
        if event_order.may_report(seen) {
            return true;
        }
        self.again = Some(watch.timer(RECHECK, look));
        false
    }
}
