//! Why a connection through shared memory ends.

use std::fmt;

use super::ring::Violation;
use crate::device::WcStatus;
use crate::device::connection_log::Cause;
use crate::device::soft::transport::close_timers::LATE;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Down {
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
impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Down::Closed => f.write_str("the peer has ended it"),
            Down::Lost => f.write_str("the peer has broken it, or is gone"),
            Down::Late => f.write_str(LATE),
            Down::Fault => f.write_str("protocol violation, or a message that fits no receive"),
            Down::Request(status) | Down::Executed(status) => {
                write!(f, "a request of this end failed: {status}")
            }
        }
    }
}

impl Cause for Down {}

impl From<Violation> for Down {
    fn from(_: Violation) -> Self {
        Down::Fault
    }
}
