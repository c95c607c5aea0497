//! The life of a connection to another process: how it begins, what limits it, and how it ends.
//! The transports have it in common.

use std::sync::Arc;
use std::time::Duration;

use super::close_timers::{CloseTimers, RTR_TIMEOUT};
use crate::device::attempt::Phase;
use crate::device::connection_log::Cause;
use crate::device::soft::engine::Watch;
use crate::device::soft::event_order::SetupGuard;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{CmEvent, WcStatus};

/// What a connection has waited for in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Overdue {
    /// The first message of a peer that was accepted.
    FirstMessage,
    /// Receives for the messages of a connection that was ended gracefully.
    Receives,
}

/// Why a connection ends.
pub(crate) trait CloseReason: Cause {
    /// What the consumer gets, if the connection was established.
    fn event(&self) -> CmEvent;
}

/// A connection of one of the transports.
pub(crate) trait Connection {
    /// Why it ends.
    type Reason: CloseReason;

    /// Its life.
    fn lifecycle(&self) -> &Lifecycle;
    /// The reason for an end because of `what`.
    fn overdue(what: Overdue) -> Self::Reason;
    /// The request of ours that the reason is about, and its status.
    fn failed_request(&self, me: &QpState, reason: &Self::Reason) -> Option<(u64, WcStatus)>;
    /// The connection ends: what the peer is doing with requests and receives is brought to an end,
    /// before those are flushed.
    fn quiesce(&mut self, _me: &mut QpState, _up: &mut Upcalls) {}
    /// Notifies the peer of the end, and releases the connection.
    fn close(self, reason: &Self::Reason);
}

/// A connection as its timers know it: they take the lock of the queue pair first.
pub(crate) trait Timed: Send + Sync {
    /// Ends the connection, if it is still the one of its queue pair.
    fn end_overdue(&self, what: Overdue, up: &mut Upcalls);
    /// The end of the peer is due: does what there is to do on the connection.
    fn recheck(&self, up: &mut Upcalls);
}

/// See the module.
pub(crate) struct Lifecycle {
    timed: Arc<dyn Timed>,
    /// Set while this end has accepted and the first message of the peer has not arrived: the
    /// connection is established with that message.
    awaited: Option<SetupGuard>,
    /// Whether this end has ended the connection gracefully, and sends nothing more.
    closed: bool,
    /// How long a graceful end waits until what was sent is received.
    linger: Duration,
    timers: CloseTimers,
}

impl Lifecycle {
    pub fn new(timed: Arc<dyn Timed>, linger: Duration) -> Lifecycle {
        Lifecycle {
            timed,
            awaited: None,
            closed: false,
            linger,
            timers: CloseTimers::default(),
        }
    }

    /// Begins: established at once, or with the first message of the peer.
    pub fn start(
        &mut self,
        at_once: bool,
        me: &mut QpState,
        watch: &Watch,
        (private_data, setup): (Box<[u8]>, SetupGuard),
        up: &mut Upcalls,
    ) {
        if at_once {
            me.establish(private_data, Some(setup), up);
        } else {
            self.awaited = Some(setup);
            self.limit(watch, RTR_TIMEOUT, Overdue::FirstMessage);
        }
    }

    /// A message of the peer has arrived.
    pub fn message_arrived(&mut self, me: &mut QpState, up: &mut Upcalls) {
        if let Some(setup) = self.awaited.take() {
            self.timers.cancel_limit();
            me.establish(Box::default(), Some(setup), up);
        }
    }

    /// Whether the connection is established.
    #[inline]
    pub fn is_established(&self) -> bool {
        self.awaited.is_none()
    }

    /// Whether this end has ended the connection gracefully, and sends nothing more.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether a graceful end of the consumer takes effect now, once: `all_sent` says that nothing
    /// which was posted before it is left to send.
    pub fn closes(&mut self, me: &QpState, watch: &Watch, all_sent: bool) -> bool {
        if me.attempt.phase != Phase::Closing {
            return false;
        }
        self.limit_linger(watch);
        let closes = !self.closed && all_sent && me.close_at == Some(me.sq.head());
        self.closed |= closes;
        closes
    }

    /// Limits how long messages may wait for receives after a graceful end.
    pub fn limit_linger(&mut self, watch: &Watch) {
        self.limit(watch, self.linger, Overdue::Receives);
    }

    fn limit(&mut self, watch: &Watch, delay: Duration, what: Overdue) {
        let timed = self.timed.clone();
        let end = move |up: &mut Upcalls| timed.end_overdue(what, up);
        self.timers.limit(watch, delay, end);
    }

    /// Whether the end of the peer takes effect; if not, the connection is checked again soon.
    pub fn peer_end_is_due(&mut self, watch: &Watch) -> bool {
        // The order of beginnings and ends does not wait for a connection that never began.
        if !self.is_established() {
            return true;
        }
        let timed = self.timed.clone();
        self.timers.is_over(watch, move |up| timed.recheck(up))
    }
}

/// The time for `what` is over, unless that has come while the timer waited for the connection.
pub(super) fn overdue<C: Connection>(conn: &C, what: Overdue) -> Result<(), C::Reason> {
    match what {
        Overdue::FirstMessage if conn.lifecycle().is_established() => Ok(()),
        Overdue::FirstMessage | Overdue::Receives => Err(C::overdue(what)),
    }
}

/// Ends a connection that was taken from its queue pair.
pub(super) fn end<C: Connection>(
    mut conn: C,
    reason: C::Reason,
    me: &mut QpState,
    up: &mut Upcalls,
) {
    conn.quiesce(me, up);
    if let Some((number, status)) = conn.failed_request(me, &reason) {
        me.fail_request(number, status, up);
    }
    let event = if conn.lifecycle().is_established() {
        reason.event()
    } else {
        CmEvent::AcceptError
    };
    // The peer is told first: with the event of the end the program may exit.
    conn.close(&reason);
    me.end(event, &reason, up);
}
