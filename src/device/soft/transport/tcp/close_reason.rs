//! Why a connection over TCP ends.

use std::fmt;
use std::time::Duration;

use rustix::io::Errno;

use crate::device::connection_log::Cause;
use crate::device::soft::iwarp::terminate::Terminate;
use crate::device::soft::iwarp::wire::{READ_REQUEST_HDR, WireError};
use crate::device::soft::mem::key_table::Fault;
use crate::device::soft::qp::state::LATE_RECV;
use crate::device::soft::transport::close_timers::RTR_TIMEOUT;
use crate::device::soft::transport::lifecycle;
use crate::device::{CmEvent, WcStatus};

/// See the module.
pub(crate) enum CloseReason {
    /// The peer ended it in order.
    Closed,
    /// The transport failed, or the peer vanished.
    Lost,
    /// The transport failed with this error of the system.
    Socket(Errno),
    /// The first message of a peer that was accepted did not arrive in time.
    Silent,
    /// The host of the peer has answered nothing for that long.
    Unresponsive(Duration),
    /// Messages of a connection that was ended gracefully were not received in time.
    Late,
    /// The peer violated the protocol, or asked for what it may not have; with the header of the
    /// offending message.
    Protocol(WireError, Option<[u8; READ_REQUEST_HDR]>),
    /// There is no memory for what has arrived, or is to be sent.
    NoMemory,
    /// A request of ours failed.
    Request(u64, WcStatus),
    /// The peer has answered the read of ours with that number wrongly; with what is wrong and the
    /// header of the response.
    Response(u64, WireError, Option<[u8; READ_REQUEST_HDR]>),
    /// The peer has sent a Terminate message.
    Terminated(Terminate),
}

impl CloseReason {
    /// The same with the header of the FPDU that the peer did wrong with, if that is why.
    pub fn about(self, fpdu: &[u8]) -> CloseReason {
        match self {
            CloseReason::Protocol(error, None) => {
                CloseReason::Protocol(error, Some(header_of(fpdu)))
            }
            CloseReason::Response(number, error, None) => {
                CloseReason::Response(number, error, Some(header_of(fpdu)))
            }
            why => why,
        }
    }
}

/// The beginning of an FPDU, which has its header.
pub(super) fn header_of<const LEN: usize>(fpdu: &[u8]) -> [u8; LEN] {
    let mut header = [0; LEN];
    let n = fpdu.len().min(LEN);
    header[..n].copy_from_slice(&fpdu[..n]);
    header
}

/// For the log.
impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Closed => f.write_str("the peer has ended it"),
            CloseReason::Lost => f.write_str("the peer or the way to it is gone"),
            CloseReason::Socket(error) => write!(f, "the peer or the way to it is gone: {error}"),
            CloseReason::Silent => write!(
                f,
                "the peer sent nothing within {} s",
                RTR_TIMEOUT.as_secs()
            ),
            CloseReason::Unresponsive(timeout) => write!(
                f,
                "the peer or the way to it is gone: no answer for {} s",
                timeout.as_secs()
            ),
            CloseReason::Late => f.write_str(LATE_RECV),
            CloseReason::Protocol(error, None) => write!(f, "protocol violation: {error}"),
            CloseReason::Protocol(error, Some(header)) => {
                write!(
                    f,
                    "protocol violation: {error}; its header is {header:02x?}"
                )
            }
            CloseReason::NoMemory => f.write_str("this process has no memory for it"),
            CloseReason::Request(_, status) => write!(f, "a request of this end failed: {status}"),
            CloseReason::Response(_, error, _) => {
                write!(f, "the response of the peer to a read is invalid: {error}")
            }
            CloseReason::Terminated(terminate) => {
                write!(f, "the peer says: {}", terminate.error)?;
                match &terminate.header {
                    Some(header) => write!(f, "; it is about {header:?}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl CloseReason {
    /// Whether the peer has used a key that is not valid, or not on this connection.
    pub fn is_bad_key(&self) -> bool {
        matches!(
            self,
            CloseReason::Protocol(
                WireError::RDMAP_INVALID_STAG
                    | WireError::RDMAP_STAG_NOT_ASSOCIATED
                    | WireError::RDMAP_CANNOT_INVALIDATE
                    | WireError::DDP_TAGGED_INVALID_STAG
                    | WireError::DDP_TAGGED_STAG_NOT_ASSOCIATED,
                _
            )
        )
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

/// The protocol error for a key that does not give access.
pub(super) fn wire_fault(fault: Fault) -> WireError {
    match fault {
        Fault::Key => WireError::RDMAP_INVALID_STAG,
        Fault::Bounds => WireError::RDMAP_BOUNDS,
        Fault::Access => WireError::RDMAP_ACCESS,
        Fault::Domain => WireError::RDMAP_STAG_NOT_ASSOCIATED,
    }
}
