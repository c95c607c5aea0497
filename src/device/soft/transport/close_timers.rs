//! How long a connection may take to begin or to end, and when the observed end of a peer takes
//! effect.

use std::time::Duration;

use crate::device::soft::engine::{Timer, Watch};
use crate::device::soft::event_order::ObservedEnd;
use crate::device::soft::upcalls::Upcalls;

/// How long the peer may take with the ready-to-receive message after an accept.
pub(super) const RTR_TIMEOUT: Duration = Duration::from_secs(30);
/// How soon an end of the peer that does not take effect yet is checked again.
const RECHECK: Duration = Duration::from_micros(500);

/// See the module.
#[derive(Default)]
pub(crate) struct CloseTimers {
    /// Ends the connection.
    limit: Option<Timer>,
    /// The end of the peer, once it was observed.
    seen: Option<ObservedEnd>,
    /// Checks again whether that takes effect.
    again: Option<Timer>,
}

impl CloseTimers {
    /// Calls `end` after `delay`, unless the limit is cancelled before. The first limit counts.
    pub fn limit(
        &mut self,
        watch: &Watch,
        delay: Duration,
        end: impl FnOnce(&mut Upcalls) + Send + 'static,
    ) {
        self.limit.get_or_insert_with(|| watch.timer(delay, end));
    }

    /// There is no limit any longer.
    pub fn cancel_limit(&mut self) {
        self.limit = None;
    }

    /// Whether the end of the peer takes effect; otherwise `recheck` is called soon.
    pub fn is_over(
        &mut self,
        watch: &Watch,
        recheck: impl FnOnce(&mut Upcalls) + Send + 'static,
    ) -> bool {
        let event_order = watch.event_order();
        let seen = self.seen.get_or_insert_with(|| event_order.observe_end());
        if event_order.may_report(seen) {
            return true;
        }
        self.again = Some(watch.timer(RECHECK, recheck));
        false
    }
}
