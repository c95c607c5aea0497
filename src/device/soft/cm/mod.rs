//! Setting up connections: listen, connect, accept, reject.
//!
//! ```text
//! connecting end                                listening end
//! connect                                       listen: listener, with an acceptor per port
//! connector: socket, handshake over shm  ---->  pending: a connection without a whole request
//!            request                     ---->  request: waits for the consumer's answer
//!            reply                       <----  accept, or reject
//! ```
//!
//! Within a process [`connect`] hands the request to the listener, and [`accept`] joins the two
//! queue pairs. The same exchange, without a connection at its end, tells a queue pair for datagrams where a peer
//! receives them ([`resolve`]).

pub(super) mod acceptor;
pub(crate) mod connector;
pub(crate) mod error;
mod incomplete;
mod initiator;
pub(crate) mod listener;
mod local_port;
mod pending;
mod request;
mod resolve;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use self::connector::{Connector, Plan};
use self::error::ConnectError;
use self::initiator::QpAttempt;
use self::listener::{ConnRequest, Listening};
use self::request::{Origin, SocketOrigin};
use super::device::Soft;
use super::engine::{EventFlags, Timer, Watch};
use super::iwarp::mpa::{Local, PRIVATE_MAX, Rtr};
use super::params::Path;
use super::socket;
use super::transport::datagram::wire;
use super::transport::shm::{AccessGrant, Purpose, ShmRefusal};
use super::transport::{self, Qp, SetUp};
use super::upcalls::Upcalls;
use crate::delay;
use crate::device::connection_log::{self, Cause, Identity, LogEntry, NoAnswer, Step};
use crate::device::local_address::is_own_address;
use crate::device::netif;
use crate::device::qualifier::{self, QualHeader, Sought};
use crate::device::{CmEvent, DeviceError};

/// Bytes of private data of the consumer, each way. An MPA frame holds 512 bytes; 4 are for the
/// read depths (RFC 6581), 16 for a wide qualifier.
pub(super) const MAX_PRIVATE: usize = PRIVATE_MAX - qualifier::HEADER_LEN;

/// The same for a request or an answer that says where datagrams are received.
pub(super) const MAX_DATAGRAM_PRIVATE: usize = MAX_PRIVATE - wire::END_LEN;

/// Why there is no shared memory with a peer whose socket the engine cannot watch.
const UNWATCHED: ShmRefusal = ShmRefusal::new("its socket cannot be watched");

/// How the two ends of a connection between processes reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transport {
    /// Shared memory, after a handshake over a local socket.
    Shm,
    /// iWARP over TCP.
    Tcp,
}

impl Transport {
    /// The path, for the log.
    fn path(self) -> connection_log::Path<'static> {
        match self {
            Transport::Shm => connection_log::Path::SharedMemory,
            Transport::Tcp => connection_log::Path::Tcp,
        }
    }
}

/// Watches the socket of a peer on this host for the next message of the handshake. While the
/// peer is being verified it sends nothing, and its socket is not watched.
fn watch_handshake(watch: &mut Watch, verifying: bool) -> Result<(), ShmRefusal> {
    let events = if verifying {
        EventFlags::empty()
    } else {
        EventFlags::IN
    };
    watch.set(events).map_err(|_| UNWATCHED)
}

/// Checks the length of private data.
fn check_private_data(private_data: &[u8]) -> Result<(), DeviceError> {
    match private_data.len() <= MAX_PRIVATE {
        true => Ok(()),
        false => Err(DeviceError::Limit),
    }
}

/// See [`Device::connect`](crate::device::Device::connect). Qualifier 0 names nothing and is
/// refused with [`DeviceError::BadAddress`]; a queue pair that is connected, or about to be,
/// with [`DeviceError::Unsupported`].
pub(crate) fn connect(
    device: &Arc<Soft>,
    qp: &Arc<Qp>,
    remote: SocketAddr,
    sought: Sought,
    timeout: Option<Duration>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    let qual = sought.qual;
    qualifier::check(qual)?;
    let remote = netif::peer_address(remote, device.params.address)?;
    check_private_data(private_data)?;
    device.engine.start()?;
    let port = u16::try_from(qual).unwrap_or(0);
    let mut addrs = (device.params.address, netif::at_port(remote, port));
    let loopback = device.params.path == Path::Auto && is_own_address(remote);
    let listening = loopback.then(|| listener::find(remote, qual)).flatten();
    if let Some(end) = transport::datagram_end(qp) {
        let transports = match listening {
            // Within the process no memory is to be shared.
            Some(_) => &[Transport::Tcp],
            None => transports(device.params.path, remote),
        };
        let to = (remote, sought, transports);
        return resolve::ask(qp, &end, to, timeout, private_data);
    }
    if let Some(listening) = listening {
        addrs.0.set_port(local_port::next());
        let attempt = qp.begin(Some(addrs), qual, connection_log::Path::Loopback)?;
        let timer = limit_attempt(qp, attempt, timeout);
        qp.holds(attempt, timer, None);
        request_loopback(qp, attempt, listening, addrs, qual, private_data);
        return Ok(());
    }
    let socket = Connector::socket(remote)?;
    let attempt = qp.begin(Some(addrs), qual, connection_log::Path::Undecided)?;
    let timer = limit_attempt(qp, attempt, timeout);
    let attr = qp.attr();
    let plan = Plan {
        endpoint: attr.context,
        target: remote,
        sought,
        timeout,
        transports: transports(device.params.path, remote),
        purpose: Purpose::Connection,
        private_data,
        depths: (attr.max_rd_in as u16, attr.max_rd_out as u16),
    };
    let initiator = Box::new(QpAttempt {
        qp: Arc::downgrade(qp),
        number: attempt,
    });
    let connector = Connector::new(device, initiator, &plan, socket);
    qp.holds(attempt, timer, Some(connector.clone()));
    let mut up = Upcalls::default();
    connector.advance(&mut up);
    up.run();
    Ok(())
}

/// The transports by which a listener that is not in this process is tried, in this order.
fn transports(path: Path, target: SocketAddr) -> &'static [Transport] {
    match path {
        Path::Tcp => &[Transport::Tcp],
        _ if !is_own_address(target) => &[Transport::Tcp],
        Path::Auto => &[Transport::Shm, Transport::Tcp],
        Path::Shm => &[Transport::Shm],
    }
}

/// Ends an attempt after `timeout`, unless the timer is dropped before.
fn limit_attempt(qp: &Arc<Qp>, attempt: u64, timeout: Option<Duration>) -> Option<Timer> {
    timeout.map(|timeout| {
        let weak = Arc::downgrade(qp);
        qp.device.engine.timer(timeout, move |up| {
            if let Some(qp) = weak.upgrade() {
                qp.give_up(attempt, CmEvent::TimedOut, &NoAnswer(timeout), up);
            }
        })
    })
}

/// Hands a request to a listener of this process.
fn request_loopback(
    qp: &Arc<Qp>,
    attempt: u64,
    listening: Arc<Listening>,
    (local, remote): (SocketAddr, SocketAddr),
    qual: u64,
    private_data: &[u8],
) {
    let attr = qp.attr();
    let path = connection_log::Path::Loopback;
    let identity = || Identity {
        endpoint: Some(attr.context),
        addrs: Some((local, remote)),
        qual,
        path,
    };
    connection_log::write(LogEntry::step(identity, Step::RequestSent));
    let request = ConnRequest {
        origin: Some(Origin::Loopback {
            active: Arc::downgrade(qp),
            attempt,
        }),
        qual,
        path,
        private_data: private_data.into(),
        local: remote,
        remote: local,
        datagrams: None,
        rd_in: Some(attr.max_rd_in),
        rd_out: Some(attr.max_rd_out),
    };
    request.log(None, Step::RequestArrived);
    let mut up = Upcalls::default();
    up.request(listening, request);
    up.run();
}

/// See [`Device::accept`](crate::device::Device::accept).
pub(crate) fn accept(
    mut request: ConnRequest,
    qp: &Arc<Qp>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    check_private_data(private_data)?;
    let mut up = Upcalls::default();
    if let Some(end) = transport::datagram_end(qp) {
        return resolve::answer(request, qp, &end, private_data);
    }
    if request.datagrams.is_some() {
        return Err(DeviceError::Unsupported);
    }
    let result = match request.origin.take() {
        Some(Origin::Socket(origin)) => accept_socket(&request, origin, qp, private_data, &mut up),
        Some(Origin::Loopback { active, attempt }) => match active.upgrade() {
            Some(active) => {
                let ends = (&*active, attempt);
                accept_loopback(&request, ends, qp, private_data, &mut up)
            }
            None => fail_accept(&request, qp, &ConnectError::PeerGone, &mut up),
        },
        None => fail_accept(&request, qp, &ConnectError::PeerGone, &mut up),
    };
    up.run();
    result
}

/// Accepts a request of a queue pair of this process, `active` at its attempt with that number.
fn accept_loopback(
    request: &ConnRequest,
    (active, attempt): (&Qp, u64),
    qp: &Arc<Qp>,
    private_data: &[u8],
    up: &mut Upcalls,
) -> Result<(), DeviceError> {
    // Addresses as the connecting end has them.
    let addrs = (request.remote, request.local);
    match Qp::pair(active, attempt, qp, addrs, request.qual, private_data, up) {
        Ok(()) => {
            log_accepted(request, qp);
            Ok(())
        }
        Err(error) => {
            let failure = ConnectError::from(error);
            active.give_up(attempt, CmEvent::NonPeerRejected, &failure, up);
            fail_accept(request, qp, &failure, up)
        }
    }
}

/// Accepts a request that arrived on a socket, unless the peer is gone.
fn accept_socket(
    request: &ConnRequest,
    origin: SocketOrigin,
    qp: &Arc<Qp>,
    private_data: &[u8],
    up: &mut Upcalls,
) -> Result<(), DeviceError> {
    let attr = qp.attr();
    let local = Local {
        crc: qp.device.params.crc,
        ird: attr.max_rd_in as u16,
        ord: attr.max_rd_out as u16,
        rtr: Rtr::all(),
        acknowledge: qp.device.params.acknowledge,
        extensions: qp.device.params.acknowledge,
    };
    let private_data = qualifier::add_header(QualHeader::Reply, request.qual, private_data);
    let attempt = qp.begin(Some(request.addrs()), request.qual, request.path)?;
    let order = origin.watch.event_order().begin();
    let scope = qp.with(|locked| locked.me.id.scope());
    let grant = origin
        .segment
        .clone()
        .map(|segment| AccessGrant::new(segment, scope));
    let failure = match origin.frame.answer(&local, &private_data) {
        Ok((reply, agreed)) => {
            let unsent = match socket::is_open(&origin.watch) {
                true => origin.reply(&reply),
                false => None,
            };
            // Nothing but doorbells follows on a local socket, which has room for the reply.
            match unsent.filter(|unsent| unsent.is_empty() || grant.is_none()) {
                Some(unsent) => {
                    log_accepted(request, qp);
                    delay::point("cm.replied");
                    let setup = SetUp {
                        watch: origin.watch,
                        agreed,
                        grant,
                        initiator: false,
                        unsent,
                        private_data: Box::default(),
                        order,
                    };
                    transport::connect(qp, attempt, setup, up);
                    return Ok(());
                }
                None => ConnectError::PeerGone,
            }
        }
        Err(error) => {
            // Nothing that the consumer can do anything about.
            origin.reject(request.qual, b"");
            ConnectError::Negotiation(error)
        }
    };
    qp.withdraw(attempt);
    fail_accept(request, qp, &failure, up)
}

/// Ends the attempt to accept a request whose peer was gone before it could have a reply: the
/// consumer is notified as if the peer had gone a moment later.
fn fail_accept(
    request: &ConnRequest,
    qp: &Qp,
    cause: &dyn Cause,
    up: &mut Upcalls,
) -> Result<(), DeviceError> {
    let attempt = qp.begin(Some(request.addrs()), request.qual, request.path)?;
    qp.give_up(attempt, CmEvent::AcceptError, cause, up);
    Ok(())
}

fn log_accepted(request: &ConnRequest, qp: &Qp) {
    request.log(Some(qp.attr().context), Step::RequestAccepted);
}

/// See [`Device::reject`](crate::device::Device::reject). Private data beyond the maximum is
/// cut off.
pub(crate) fn reject(request: ConnRequest, private_data: &[u8]) {
    request.reject(private_data);
}
