//! Why an attempt to connect came to nothing, in words for the user.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};

use rustix::io::Errno;

use super::acceptor::PATIENCE;
use crate::device::connection_log::{Cause, NoListener, PEER_GONE, REJECTED};
use crate::device::soft::iwarp::wire::WireError;
use crate::device::soft::transport::shm::Why;

/// Why there is no shared memory with whoever has a port; no reason is that no process of the same
/// user offers it there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal(pub Option<Why>);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("nobody of the same user offers it"),
            Some(why) => why.fmt(f),
        }
    }
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// No answer came from any port of this qualifier.
    NobodyListens(u64),
    /// A peer of this host listens on this port, but not for shared memory with this process, and
    /// there may be no other way.
    NotShared(u16, Refusal),
    /// A peer of this host listens on this port, but not for shared memory with this process.
    NotOffered(u16, Refusal),
    /// The system's word for it.
    System(Errno),
    /// The peer has ended the transport connection and said nothing.
    NoWord,
    /// What the peer answered is no reply.
    Reply(WireError),
    /// What came to a port of ours is no request.
    Request(WireError),
    /// The replies, requests and parameters of both sides do not go together.
    Terms(WireError),
    /// The peer's consumer has refused.
    Rejected,
    /// The listener has dropped the request.
    Dropped,
    /// The endpoint that was to accept is used for something else.
    NotFree,
    /// The peer has taken its request back, or is gone.
    PeerGone,
    /// A peer that had connected did not say in time what it wanted.
    NoRequest,
    /// A peer ended the transport connection before it had said what it wanted.
    HalfRequest,
    /// More peers than a port has room for have not said what they want.
    Crowd,
    /// The listener is gone.
    Closed,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::NobodyListens(qual) => return NoListener(*qual).fmt(f),
            Trouble::NotShared(port, why) => {
                return write!(
                    f,
                    "a peer listens on port {port}, but shares no memory with this process \
                     ({why}): it must be of the same user and must not have path=tcp"
                );
            }
            Trouble::NotOffered(port, why) => return write!(f, "port {port}: {why}"),
            Trouble::System(error) => return error.fmt(f),
            Trouble::Reply(error) => {
                return write!(f, "protocol violation: the answer of the peer: {error}");
            }
            Trouble::NoRequest => {
                return write!(f, "no request came within {} s", PATIENCE.as_secs());
            }
            Trouble::Request(error) => return write!(f, "protocol violation: {error}"),
            Trouble::Terms(error) => {
                return write!(f, "the two ends cannot agree on terms: {error}");
            }
            _ => {}
        }
        f.write_str(match self {
            Trouble::NoWord => "the peer has ended the connection without an answer",
            Trouble::Rejected => REJECTED,
            Trouble::Dropped => {
                "refused by the listener of the peer: its queue is full, or it is being closed"
            }
            Trouble::NotFree => "the endpoint that was to accept has another connection",
            Trouble::PeerGone => PEER_GONE,
            Trouble::HalfRequest => {
                "the peer has ended the connection before its request was whole"
            }
            Trouble::Crowd => "too many connections wait with no request",
            _ => "the listener was closed",
        })
    }
}

impl Cause for Trouble {
    fn is_misconfiguration(&self) -> bool {
        matches!(self, Trouble::NotShared(..))
    }
}

/// Whether a TCP socket of this network namespace listens on the port, as far as the system
/// tells. Nobody notices the question.
pub(super) fn is_listened_on(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| File::open(path).ok())
        .any(|file| has_listener(BufReader::new(file), port))
}

/// Looks for a listener in a table of the system. Its lines begin with a heading; those of
/// listeners come before all others.
fn has_listener(table: impl BufRead, port: u16) -> bool {
    const LISTEN: &str = "0A";
    table
        .lines()
        .skip(1)
        .map_while(Result::ok)
        .map_while(|line| {
            let mut fields = line.split_whitespace();
            let local = fields.nth(1)?;
            let (_, number) = local.rsplit_once(':')?;
            let state = fields.nth(1)?;
            (state == LISTEN).then(|| u16::from_str_radix(number, 16).ok())
        })
        .any(|number| number == Some(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found() {
        let table = "  sl  local_address rem_address   st tx_queue\n   \
             0: 0100007F:1267 00000000:0000 0A 00000000:00000000\n   \
             1: 0100007F:1268 00000000:0000 0A 00000000:00000000\n   \
             2: 0100007F:1269 0100007F:1267 01 00000000:00000000\n";
        let has = |port| has_listener(table.as_bytes(), port);
        assert!(has(0x1267) && has(0x1268));
        assert!(!has(0x1269) && !has(1));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(is_listened_on(listener.local_addr().unwrap().port()));
    }

    #[test]
    fn only_what_stays_wrong_is_said_without_asking() {
        assert!(Trouble::NotShared(1, Refusal(None)).is_misconfiguration());
        assert!(!Trouble::NobodyListens(1).is_misconfiguration());
        assert!(!Trouble::System(Errno::NETUNREACH).is_misconfiguration());
    }
}
