//! Where a peer receives datagrams: asked and answered by the exchange that makes connections.
//!
//! Both ends put what the other is to know in front of their private data
//! ([`wire::End`]). The exchange goes over TCP, and its connection ends with the reply; or with a process
//! of this host, if the path of the device allows it, over a local socket, after the two processes have
//! shared memory as they do for a connection. The end that answers says whether that memory is to carry
//! datagrams, which it is unless both ports have such memory already. A peer of a version without
//! that refuses the handshake and is asked over TCP.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::connector::{Connector, Plan};
use super::error::{ConnectError, ShmUnavailable};
use super::initiator::{Accepted, Initiator};
use super::request::{ConnRequest, Origin, SocketOrigin};
use super::{MAX_DATAGRAM_PRIVATE, Transport, log_accepted};
use crate::device::connection_log::{Cause, Identity, LogEntry, NoAnswer, Outcome, Path, Step};
use crate::device::local_address::is_own_address;
use crate::device::qualifier::{self, QualHeader, Sought};
use crate::device::soft::engine::{Timer, Watch};
use crate::device::soft::iwarp::mpa::{FRAME_MAX, Local, Rtr};
use crate::device::soft::params;
use crate::device::soft::qp::link::Pending;
use crate::device::soft::transport::Qp;
use crate::device::soft::transport::datagram::channel::Channel;
use crate::device::soft::transport::datagram::{DatagramEnd, address_handle, wire};
use crate::device::soft::transport::shm::{Purpose, SharedSegment, ShmRefusal};
use crate::device::soft::transport::tcp::linger::{End, linger};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{CmEvent, ConnectionRequest, DeviceError, Resolved};

/// The question of a queue pair for a peer.
struct Question {
    /// The queue pair.
    qp: Weak<Qp>,
    /// What the queue pair has for datagrams.
    end: Weak<DatagramEnd>,
    /// The number of the attempt.
    number: u64,
    /// The address of the peer.
    remote: SocketAddr,
    /// The qualifier, for the log.
    qual: u64,
}

impl Question {
    /// Ends the attempt, unless it has ended before, and reports `event`. `path` is the one that the
    /// attempt has come to, if that is not the one that was tried last.
    fn finish(
        &self,
        event: CmEvent,
        cause: Option<&dyn Cause>,
        path: Option<Path<'_>>,
        up: &mut Upcalls,
    ) {
        let pending = self.end.upgrade().and_then(|end| end.finish(self.number));
        let Some(pending) = pending else {
            return;
        };
        let tried = pending.connector.as_ref().map(|connector| connector.path());
        let path = path.or(tried).unwrap_or(Path::Undecided);
        drop(pending);
        if let Some(qp) = self.qp.upgrade() {
            let identity = || identity(&qp, self.remote, self.qual, path);
            if let Some(cause) = cause {
                let outcome = Outcome::of(&event, true).unwrap_or(Outcome::DatagramDetour);
                up.log(&qp.events, LogEntry::new(identity, outcome, cause));
            }
            if let CmEvent::Resolved(_) = event {
                up.log(&qp.events, LogEntry::step(identity, Step::Resolved));
            }
            up.event(&qp.events, event);
        }
    }
}

/// An exchange of a queue pair, for the log.
fn identity<'a>(qp: &Qp, remote: SocketAddr, qual: u64, path: Path<'a>) -> Identity<'a> {
    Identity {
        endpoint: Some(qp.attr().context),
        addrs: Some((qp.device.params.address, remote)),
        qual,
        path,
    }
}

/// The channel to a peer with which the memory `segment` is shared, made now if that is to carry
/// datagrams.
fn channel(
    end: &DatagramEnd,
    (remote, peer): (SocketAddr, wire::End),
    (watch, segment): (Watch, Arc<SharedSegment>),
    up: &mut Upcalls,
) -> Option<Arc<Channel>> {
    let port = end.port();
    if !peer.shares {
        return port.channels().find(segment.peer(), peer.key, |_| true);
    }
    let channel = Channel::new(port, (remote.ip(), peer.key), watch, segment).ok()?;
    port.channels().add(&channel);
    channel.start(up);
    Some(channel)
}

/// Why memory that was shared carries no datagrams.
const NO_CHANNEL: ShmRefusal =
    ShmRefusal::new("the memory that is shared with it can carry no more datagrams");

impl Initiator for Question {
    fn log(&self, line: LogEntry, up: &mut Upcalls) {
        if let Some(qp) = self.qp.upgrade() {
            up.log(&qp.events, Some(line));
        }
    }

    fn set_local_port(&self, _port: u16) {}

    fn failed(&self, event: CmEvent, failure: &ConnectError, up: &mut Upcalls) {
        self.finish(event, Some(failure), None, up);
    }

    fn accepted(&self, accepted: Accepted, up: &mut Upcalls) {
        let Some(qp) = self.qp.upgrade() else {
            return;
        };
        let Accepted {
            watch,
            segment,
            detour,
            private_data,
            ..
        } = accepted;
        let Some((peer, private_data)) = wire::End::split_from(&private_data) else {
            let cause = ConnectError::NoDatagrams;
            self.finish(CmEvent::NonPeerRejected, Some(&cause), None, up);
            return;
        };
        let end = self.end.upgrade();
        let channel = end
            .zip(segment)
            .and_then(|(end, segment)| channel(&end, (self.remote, peer), (watch, segment), up));
        let or_udp = may_use_udp(&qp, self.remote);
        if channel.is_none() && !or_udp {
            let port = u16::try_from(self.qual).unwrap_or(0);
            let cause = ConnectError::NotShared(port, ShmUnavailable(Some(NO_CHANNEL)));
            self.finish(CmEvent::NonPeerRejected, Some(&cause), None, up);
            return;
        }
        let (to, path) = address_handle(&qp.device, self.remote, peer, channel.as_ref(), or_udp);
        let resolved = Resolved {
            to,
            private_data: private_data.into(),
            accepted: false,
        };
        let cause = detour.as_ref().filter(|_| path == Path::Udp);
        let cause = cause.map(|cause| cause as &dyn Cause);
        self.finish(CmEvent::Resolved(resolved), cause, Some(path), up);
    }
}

/// Whether datagrams to a peer may go over UDP, as far as the peer has nothing to say.
fn may_use_udp(qp: &Qp, remote: SocketAddr) -> bool {
    qp.device.params.path != params::Path::Shm || !is_own_address(remote)
}

/// Checks the length of private data.
fn check_private_data(private_data: &[u8]) -> Result<(), DeviceError> {
    match private_data.len() <= MAX_DATAGRAM_PRIVATE {
        true => Ok(()),
        false => Err(DeviceError::Limit),
    }
}

/// Asks the consumer that listens for what is sought at `remote`, by one of these transports. The answer is an
/// event of the queue pair.
///
/// # Errors
/// [`DeviceError::Limit`] for private data that is too long, [`DeviceError::Resources`].
pub(super) fn ask(
    qp: &Arc<Qp>,
    end: &Arc<DatagramEnd>,
    (remote, sought, transports): (SocketAddr, Sought, &'static [Transport]),
    timeout: Option<Duration>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    check_private_data(private_data)?;
    let socket = Connector::socket(remote)?;
    let private_data = end.end().add_to(private_data);
    let plan = Plan {
        endpoint: qp.attr().context,
        target: remote,
        sought,
        timeout,
        transports,
        purpose: Purpose::Datagrams,
        private_data: &private_data,
        depths: (0, 0),
    };
    let question = |number| Question {
        qp: Arc::downgrade(qp),
        end: Arc::downgrade(end),
        number,
        remote,
        qual: sought.qual,
    };
    let mut connector = None;
    end.begin(|number| {
        let new = Connector::new(&qp.device, Box::new(question(number)), &plan, socket);
        connector = Some(new.clone());
        Pending {
            _timer: timeout.map(|timeout| limit(qp, question(number), timeout)),
            connector: Some(new),
        }
    });
    if let Some(connector) = connector {
        let mut up = Upcalls::default();
        connector.advance(&mut up);
        up.run();
    }
    Ok(())
}

/// Ends an attempt after `timeout`, unless the timer is dropped before.
fn limit(qp: &Arc<Qp>, question: Question, timeout: Duration) -> Timer {
    qp.device.engine.timer(timeout, move |up| {
        question.finish(CmEvent::TimedOut, Some(&NoAnswer(timeout)), None, up);
    })
}

/// Answers the request of a peer, and reports where the peer receives datagrams.
///
/// # Errors
/// [`DeviceError::Unsupported`] if the request is for a connection, [`DeviceError::Limit`] for private data
/// that is too long.
pub(super) fn answer(
    mut request: ConnRequest,
    qp: &Arc<Qp>,
    end: &DatagramEnd,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    check_private_data(private_data)?;
    let Some(peer) = request.datagrams else {
        return Err(DeviceError::Unsupported);
    };
    let Some(Origin::Socket(origin)) = request.origin.take() else {
        return Err(DeviceError::Unsupported);
    };
    log_accepted(&request, qp);
    let mut up = Upcalls::default();
    let or_udp = origin.segment.is_none() || may_use_udp(qp, request.remote);
    let channel = send_answer(origin, &request, (qp, end), peer, private_data, &mut up);
    let (to, path) = address_handle(&qp.device, request.remote, peer, channel.as_ref(), or_udp);
    let resolved = Resolved {
        to,
        private_data: request.private_data().into(),
        accepted: true,
    };
    let identity = || identity(qp, request.remote, request.qual, path);
    up.log(&qp.events, LogEntry::step(identity, Step::Resolved));
    up.event(&qp.events, CmEvent::Resolved(resolved));
    up.run();
    Ok(())
}

/// Sends the answer to `peer`; gives the channel with its port, if there is one. A peer that is gone meanwhile
/// does not get the answer, which is as if it went a moment later.
fn send_answer(
    origin: SocketOrigin,
    request: &ConnRequest,
    (qp, end): (&Qp, &DatagramEnd),
    mut peer: wire::End,
    private_data: &[u8],
    up: &mut Upcalls,
) -> Option<Arc<Channel>> {
    let port = end.port();
    // One that the peer has as well: of several questions at a time it may get this answer first.
    let existing = origin.segment.as_ref().and_then(|segment| {
        let known = Channel::is_known_to_peer;
        port.channels().find(segment.peer(), peer.key, known)
    });
    let mut own = end.end();
    own.shares = existing.is_none()
        && (origin.segment.as_ref())
            .is_some_and(|segment| port.channels().has_room(segment.peer()));
    // This end decides.
    peer.shares = own.shares;
    let local = Local {
        crc: qp.device.params.crc,
        ird: 0,
        ord: 0,
        rtr: Rtr::all(),
        acknowledge: false,
        extensions: false,
    };
    let private_data = own.add_to(private_data);
    let private_data = qualifier::add_header(QualHeader::Reply, request.qual, &private_data);
    let (reply, _) = origin.frame.answer(&local, &private_data).ok()?;
    if !own.shares {
        let mut bytes = [0; FRAME_MAX];
        let bytes = reply.encode(&mut bytes).ok()?.to_vec();
        linger(origin.watch, bytes, End::Unestablished);
        return existing;
    }
    // The socket has room for a first message.
    origin.reply(&reply).filter(Vec::is_empty)?;
    channel(
        end,
        (request.remote, peer),
        (origin.watch, origin.segment?),
        up,
    )
}
