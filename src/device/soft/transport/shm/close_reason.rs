//! Why a connection through shared memory ends.

use std::fmt;

use super::ring::Violation;
use crate::device::report::Cause;
use crate::device::soft::qp::state::LATE_RECV;
use crate::device::soft::transport::lifecycle;
use crate::device::{CmEvent, WcStatus};

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CloseReason {
    /// The peer ended it in order.
    Closed,
    /// The peer broke it, or died.
    Lost,
    /// Messages of a connection that was ended gracefully were not received in time.
    Late,
    /// The peer violated the protocol, or its message found no good receive.
    Fault,
    /// Our oldest request failed.
    Request(WcStatus),
    /// A request that was executed at once failed.
    Executed(WcStatus),
}

/// For the log.
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
