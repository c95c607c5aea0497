//! The log entries about connections, in one form for all devices:
//!
//! ```text
//! endpoint 0x7f3a5c0010a0, local 10.0.0.1, remote 10.0.0.2:4711, qualifier 4711, path TCP: not connected: no listener on port 4711
//! ```
//!
//! There are two kinds: one entry for each failure ([`Outcome`]), and one for each step in which a
//! connection is made and ended ([`Step`]). An entry is formatted only if the log takes it. It is
//! written with no lock held, and before the consumer gets the event that it is about.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use log::Level;

use super::{CmEvent, qualifier};
use crate::log_sink::CONNECTIONS;

/// How the two ends of a connection reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Path<'a> {
    /// Not chosen yet.
    Undecided,
    /// Both ends are in this process.
    Loopback,
    /// Memory that two processes of the host share.
    SharedMemory,
    /// iWARP over TCP.
    Tcp,
    /// Datagrams over UDP.
    Udp,
    /// The RDMA device of this name.
    Device(&'a str),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Undecided => "not chosen",
            Path::Loopback => "loopback",
            Path::SharedMemory => "shared memory",
            Path::Tcp => "TCP",
            Path::Udp => "UDP",
            Path::Device(name) => name,
        })
    }
}

/// Which connection, or attempt to make one, an entry is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    /// The handle of the endpoint: [`QpAttr::context`](super::QpAttr::context). A request that
    /// was never handed to the consumer has none.
    pub endpoint: Option<u64>,
    /// Local and remote address; port 0 is one that is not known.
    pub addrs: Option<(SocketAddr, SocketAddr)>,
    /// The connection qualifier.
    pub qual: u64,
    /// How the two ends reach each other.
    pub path: Path<'a>,
}

/// An address, without a port that is not known.
struct Address(Option<SocketAddr>);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("unknown"),
            Some(address) if address.port() == 0 => address.ip().fmt(f),
            Some(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.endpoint {
            Some(endpoint) => write!(f, "endpoint {endpoint:#x}")?,
            None => f.write_str("no endpoint")?,
        }
        let (local, remote) = (self.addrs.map(|a| a.0), self.addrs.map(|a| a.1));
        write!(
            f,
            ", local {}, remote {}, qualifier {}, path {}",
            Address(local),
            Address(remote),
            qualifier::named(self.qual),
            self.path
        )
    }
}

/// How an attempt failed, or a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// An attempt of the active end has failed.
    NotConnected,
    /// A request was not accepted, or its sender had given up.
    NotAccepted,
    /// A connection ended in error.
    Broken,
    /// The peer is on this host, and the connection is made over TCP all the same.
    Detour,
    /// The peer is on this host, and datagrams to it go over UDP all the same.
    DatagramDetour,
}

impl Outcome {
    /// The failure that an event stands for which ends a connection, or an attempt to make one;
    /// `None` if the event is no failure.
    pub fn of(event: &CmEvent, connecting: bool) -> Option<Outcome> {
        match event {
            CmEvent::Established { .. } | CmEvent::Resolved(_) => None,
            CmEvent::AcceptError => Some(Outcome::NotAccepted),
            _ if connecting => Some(Outcome::NotConnected),
            CmEvent::Disconnected => None,
            _ => Some(Outcome::Broken),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::NotConnected => "not connected",
            Outcome::NotAccepted => "not accepted",
            Outcome::Broken => "connection broken",
            Outcome::Detour => "shared memory refused, TCP taken instead",
            Outcome::DatagramDetour => "shared memory refused, UDP taken instead",
        })
    }
}

/// A step in which a connection is made or ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The connection manager resolves the remote address to a device.
    ResolvingAddress,
    /// The address is resolved; the connection manager resolves the route.
    AddressResolved,
    /// The route is resolved.
    RouteResolved,
    /// The active end has sent its request.
    RequestSent,
    /// A request arrived at a listener.
    RequestArrived,
    /// The consumer of this end has accepted a request.
    RequestAccepted,
    /// The consumer of this end has rejected a request.
    RequestRejected,
    /// A request was refused without the consumer's doing.
    RequestDropped,
    /// The peer has accepted the request of this end.
    ReplyArrived,
    /// The request of this end was rejected, by the consumer of the peer or without.
    RejectArrived,
    /// Data can flow.
    Connected,
    /// Datagrams can be sent to the peer.
    Resolved,
    /// The consumer of this end disconnects, after the requests that are queued.
    DisconnectingGracefully,
    /// The consumer of this end disconnects at once.
    Disconnecting,
    /// The peer has disconnected.
    DisconnectArrived,
    /// The connection has ended without an error.
    Disconnected,
    /// Another event of the connection manager.
    OtherEvent,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::ResolvingAddress => "resolving the address",
            Step::AddressResolved => "address resolved, resolving the route",
            Step::RouteResolved => "route resolved",
            Step::RequestSent => "request sent",
            Step::RequestArrived => "request arrived",
            Step::RequestAccepted => "request accepted",
            Step::RequestRejected => "request rejected",
            Step::RequestDropped => "request dropped",
            Step::ReplyArrived => "request accepted by the peer",
            Step::RejectArrived => "request rejected by the peer",
            Step::Connected => "connected",
            Step::Resolved => "peer of datagrams resolved",
            Step::DisconnectingGracefully => "disconnecting gracefully",
            Step::Disconnecting => "disconnecting abruptly",
            Step::DisconnectArrived => "disconnected by the peer",
            Step::Disconnected => "connection ended",
            Step::OtherEvent => "connection manager",
        })
    }
}

/// Why something happened, in words for the user.
pub(crate) trait Cause: fmt::Display {
    /// The configuration is at fault and stays so: the entry is an error, which is always logged.
    fn is_misconfiguration(&self) -> bool {
        false
    }
}

impl Cause for &str {}
impl Cause for fmt::Arguments<'_> {}

/// The time given to an attempt has passed.
pub(crate) struct NoAnswer(pub Duration);

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no answer within ")?;
        match (self.0.as_secs(), self.0.subsec_micros()) {
            (secs, 0) if secs > 0 => write!(f, "{secs} s"),
            (_, micros) if micros % 1000 == 0 => write!(f, "{} ms", self.0.as_millis()),
            _ => write!(f, "{} us", self.0.as_micros()),
        }
    }
}

impl Cause for NoAnswer {}

/// There is no listener for this qualifier.
pub(crate) struct NoListener(pub u64);

impl fmt::Display for NoListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u16::try_from(qualifier::named(self.0)) {
            Ok(port) => write!(f, "no listener on port {port}"),
            Err(_) => f.write_str("no listener for the qualifier"),
        }
    }
}

impl Cause for NoListener {}

/// Why a connection has ended that an end has ended as it should: no entry has this text.
pub(crate) const IN_ORDER: &str = "ended in order";
/// Why an attempt ended that the consumer has given up.
pub(crate) const GIVEN_UP: &str = "given up by the consumer of this end";
/// Why a request was not accepted whose sender did not wait.
pub(crate) const PEER_GONE: &str = "the peer has given up, or is gone";
/// Why an attempt ended that the consumer of the peer has rejected.
pub(crate) const REJECTED: &str = "rejected by the consumer of the peer";

/// An entry for the log.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct LogEntry {
    level: Level,
    text: String,
}

impl LogEntry {
    /// The entry of a failure, if the log takes it.
    pub fn new<'a>(
        identity: impl FnOnce() -> Identity<'a>,
        outcome: Outcome,
        cause: &dyn Cause,
    ) -> Option<LogEntry> {
        let level = if cause.is_misconfiguration() {
            Level::Error
        } else {
            Level::Info
        };
        log::log_enabled!(level).then(|| LogEntry {
            level,
            text: format!("{}: {outcome}: {cause}", identity()),
        })
    }

    /// The entry of a step, if the log takes it.
    pub fn step<'a>(identity: impl FnOnce() -> Identity<'a>, step: Step) -> Option<LogEntry> {
        let level = Level::Debug;
        log::log_enabled!(target: CONNECTIONS, level).then(|| LogEntry {
            level,
            text: format!("{}: {step}", identity()),
        })
    }

    /// The same with a detail, such as the name of an event.
    pub fn step_with<'a>(
        identity: impl FnOnce() -> Identity<'a>,
        step: Step,
        detail: &dyn fmt::Display,
    ) -> Option<LogEntry> {
        let mut entry = LogEntry::step(identity, step)?;
        entry.text += &format!(": {detail}");
        Some(entry)
    }

    /// Writes the entry. The caller holds no lock that a post takes.
    pub fn write(self) {
        let LogEntry { level, text } = self;
        if level == Level::Debug {
            log::debug!(target: CONNECTIONS, "{text}");
        } else {
            log::log!(level, "{text}");
        }
    }
}

/// Writes an entry, if the log takes it. The caller holds no lock that a post takes.
pub(crate) fn write(entry: Option<LogEntry>) {
    if let Some(entry) = entry {
        entry.write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity<'static> {
        Identity {
            endpoint: Some(0x7f00_1234),
            addrs: Some((
                "10.0.0.1:0".parse().unwrap(),
                "[fe80::1]:4711".parse().unwrap(),
            )),
            qual: 4711,
            path: Path::Tcp,
        }
    }

    #[test]
    fn an_identity_has_all_fields() {
        assert_eq!(
            identity().to_string(),
            "endpoint 0x7f001234, local 10.0.0.1, remote [fe80::1]:4711, qualifier 4711, path TCP"
        );
        let device = Identity {
            path: Path::Device("mlx5_0"),
            ..identity()
        };
        assert!(device.to_string().ends_with(", path mlx5_0"));
        let unknown = Identity {
            endpoint: None,
            addrs: None,
            ..identity()
        };
        assert_eq!(
            unknown.to_string(),
            "no endpoint, local unknown, remote unknown, qualifier 4711, path TCP"
        );
    }

    #[test]
    fn a_qualifier_is_a_port_if_it_can_be() {
        assert_eq!(NoListener(4711).to_string(), "no listener on port 4711");
        let wide = NoListener(0x10000).to_string();
        assert_eq!(wide, "no listener for the qualifier");
    }

    #[test]
    fn ends_without_error_are_no_failures() {
        assert_eq!(Outcome::of(&CmEvent::Disconnected, false), None);
        for (event, connecting, outcome) in [
            (CmEvent::Disconnected, true, Outcome::NotConnected),
            (CmEvent::Unreachable, true, Outcome::NotConnected),
            (CmEvent::AcceptError, true, Outcome::NotAccepted),
            (CmEvent::Broken, false, Outcome::Broken),
        ] {
            assert_eq!(Outcome::of(&event, connecting), Some(outcome));
        }
    }

    #[test]
    fn times_have_the_unit_they_need() {
        for (time, text) in [
            (Duration::from_secs(3), "no answer within 3 s"),
            (Duration::from_millis(250), "no answer within 250 ms"),
            (Duration::from_millis(1500), "no answer within 1500 ms"),
            (Duration::from_micros(70), "no answer within 70 us"),
            (Duration::ZERO, "no answer within 0 ms"),
        ] {
            assert_eq!(NoAnswer(time).to_string(), text);
        }
    }

    /// Unit tests run without `DAT_DBG_TYPE`.
    #[test]
    fn nothing_is_formatted_for_a_log_that_is_off() {
        let never = || -> Identity<'static> { unreachable!("the log is off") };
        assert_eq!(LogEntry::new(never, Outcome::Broken, &GIVEN_UP), None);
        assert_eq!(LogEntry::step(never, Step::Connected), None);
        assert_eq!(LogEntry::step_with(never, Step::OtherEvent, &"x"), None);
    }
}
