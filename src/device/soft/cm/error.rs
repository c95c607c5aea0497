//! Why no connection was made, in words for the user.

use std::fmt;

use rustix::io::Errno;

use super::pending::REQUEST_TIMEOUT;
use crate::device::connection_log::{Cause, NoListener, PEER_GONE, REJECTED};
use crate::device::soft::iwarp::wire::WireError;
use crate::device::soft::qp::PairError;
use crate::device::soft::transport::shm::ShmRefusal;

/// Why there is no shared memory with the process that listens on a port. `None` means that no
/// process of the same user offers shared memory there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShmUnavailable(pub Option<ShmRefusal>);

impl fmt::Display for ShmUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("no process of the same user offers it"),
            Some(why) => why.fmt(f),
        }
    }
}

/// Why no connection was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectError {
    /// No port of this qualifier has a listener for the qualifier.
    NoListener(u64),
    /// A process of this host listens on this port, but shares no memory with this process, and no
    /// other path is allowed.
    NotShared(u16, ShmUnavailable),
    /// A process of this host listens on this port, but shares no memory with this process. The
    /// connection goes over TCP.
    NotOffered(u16, ShmUnavailable),
    /// An error of the system.
    System(Errno),
    /// The peer has ended the transport connection without a reply.
    NoReply,
    /// What arrived from the peer is no reply.
    Reply(WireError),
    /// What arrived at a listening port is no request.
    Request(WireError),
    /// The parameters of the two ends contradict each other.
    Negotiation(WireError),
    /// The peer does not say where it receives datagrams.
    NoDatagrams,
    /// The consumer of the peer has rejected the request.
    Rejected,
    /// The listener has dropped the request.
    Dropped,
    /// The endpoint that was to accept has another connection.
    NotFree,
    /// The peer has withdrawn its request, or is gone.
    PeerGone,
    /// No request arrived in time on a connection to a listening port.
    NoRequest,
    /// A peer has ended the transport connection before its request had arrived whole.
    HalfRequest,
    /// More connections to the ports of this process have sent no whole request than may have a
    /// descriptor; with the number of those that were dropped for this since the last entry.
    TooManyPending(u64),
    /// The listener was closed.
    Closed,
}

impl From<PairError> for ConnectError {
    fn from(error: PairError) -> ConnectError {
        match error {
            PairError::PeerGone => ConnectError::PeerGone,
            PairError::NotFree => ConnectError::NotFree,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::NoListener(qual) => NoListener(*qual).fmt(f),
            ConnectError::NotShared(port, why) => write!(
                f,
                "a peer listens on port {port}, but shares no memory with this process \
                 ({why}): it must be of the same user and must not have path=tcp"
            ),
            ConnectError::NotOffered(port, why) => write!(f, "port {port}: {why}"),
            ConnectError::System(error) => error.fmt(f),
            ConnectError::NoReply => {
                f.write_str("the peer has ended the connection without an answer")
            }
            ConnectError::Reply(error) => {
                write!(f, "protocol violation: the answer of the peer: {error}")
            }
            ConnectError::Request(error) => write!(f, "protocol violation: {error}"),
            ConnectError::Negotiation(error) => {
                write!(f, "the two ends cannot agree on parameters: {error}")
            }
            ConnectError::NoDatagrams => {
                f.write_str("the peer does not say where it receives datagrams")
            }
            ConnectError::Rejected => f.write_str(REJECTED),
            ConnectError::Dropped => f.write_str(
                "refused by the listener of the peer: its queue is full, or it is being closed",
            ),
            ConnectError::NotFree => {
                f.write_str("the endpoint that was to accept has another connection")
            }
            ConnectError::PeerGone => f.write_str(PEER_GONE),
            ConnectError::NoRequest => {
                write!(f, "no request within {} s", REQUEST_TIMEOUT.as_secs())
            }
            ConnectError::HalfRequest => {
                f.write_str("the peer has ended the connection before its request was whole")
            }
            ConnectError::TooManyPending(before) => write!(
                f,
                "too many connections to this process have sent no whole request: the oldest give \
                 way ({before} since the last entry like this, of which there is one a minute)"
            ),
            ConnectError::Closed => f.write_str("the listener was closed"),
        }
    }
}

impl Cause for ConnectError {
    fn is_misconfiguration(&self) -> bool {
        matches!(self, ConnectError::NotShared(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wrong_configuration_is_always_logged() {
        assert!(ConnectError::NotShared(1, ShmUnavailable(None)).is_misconfiguration());
        assert!(!ConnectError::NoListener(1).is_misconfiguration());
        assert!(!ConnectError::System(Errno::NETUNREACH).is_misconfiguration());
    }
}
