//! Why a connection through shared memory ends.

use std::fmt;

use super::ring::Violation;
use crate::device::connection_log::Cause;
use crate::device::soft::qp::state::LATE_RECV;
use crate::device::soft::transport::lifecycle;
use crate::device::{CmEvent, WcStatus};

/// Why the local end ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CloseReason {
    /// The peer has ended the connection, gracefully or at once.
    Closed,
    /// The peer has broken the connection, or its process has exited.
    Lost,
    /// The connection was ended gracefully, and its last messages were not received in time.
    Late,
    /// The peer has violated the protocol, or has sent a message that does not fit the receive.
    Fault,
    /// The oldest queued request of the local end has failed with this status.
    Request(WcStatus),
    /// A request that was executed in the post itself has failed with this status.
    Executed(WcStatus),
}

/// The text for the log.
impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Closed => f.write_str("the peer has ended it"),
            CloseReason::Lost => f.write_str("the peer has broken it, or is gone"),
            CloseReason::Late => f.write_str(LATE_RECV),
            CloseReason::Fault => {
                f.write_str("protocol violation, or a message that fits no receive")
            }
            CloseReason::Request(status) | CloseReason::Executed(status) => {
                write!(f, "a request of this end failed: {status}")
            }
        }
    }
}

impl Cause for CloseReason {}

impl lifecycle::CloseReason for CloseReason {
    fn event(&self) -> CmEvent {
        match self {
            CloseReason::Closed => CmEvent::Disconnected,
            _ => CmEvent::Broken,
        }
    }
}

impl From<Violation> for CloseReason {
    fn from(_: Violation) -> Self {
        CloseReason::Fault
    }
}
