//! A connection request that waits for the consumer's answer.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use crate::kernel;
use crate::kernel::net::SendFlags;

use super::MAX_PRIVATE;
use super::error::ConnectError;
use crate::device::connection_log::{self, Cause, Identity, LogEntry, Path, Step};
use crate::device::qualifier::{self, QualHeader};
use crate::device::soft::engine::Watch;
use crate::device::soft::iwarp::mpa::{FRAME_MAX, Frame};
use crate::device::soft::socket;
use crate::device::soft::transport::Qp;
use crate::device::soft::transport::datagram::wire;
use crate::device::soft::transport::shm::{self, SharedSegment};
use crate::device::soft::transport::tcp::linger::{End, linger};
use crate::device::soft::upcalls::Upcalls;
use crate::device::{CmEvent, ConnectionRequest};

/// Where a request is from, and where the answer goes.
pub(crate) enum Origin {
    /// A queue pair of this process.
    Loopback {
        /// The queue pair that connects.
        active: Weak<Qp>,
        /// The number of its attempt.
        attempt: u64,
    },
    /// A TCP connection, or a local socket of a process of this host.
    Socket(SocketOrigin),
}

/// The socket that a request arrived on.
pub(crate) struct SocketOrigin {
    /// Holds the socket.
    pub watch: Watch,
    /// The request frame, without its private data.
    pub frame: Frame<'static>,
    /// The memory that is shared with a process of this host; `None` over TCP.
    pub segment: Option<Arc<SharedSegment>>,
}

/// A connection request.
pub struct ConnRequest {
    /// Where the request is from; `None` once the request has been answered.
    pub(super) origin: Option<Origin>,
    /// The qualifier that the peer wants to connect to.
    pub(super) qual: u64,
    /// The path between the two ends.
    pub(super) path: Path<'static>,
    /// The private data of the peer's consumer.
    pub(super) private_data: Box<[u8]>,
    /// The address that the peer has connected to.
    pub(super) local: SocketAddr,
    /// The address of the peer; port 0 is one that is not known.
    pub(super) remote: SocketAddr,
    /// Where the peer receives datagrams, if it asks for that of this end rather than for a connection.
    pub(super) datagrams: Option<wire::End>,
    /// The number of RDMA Reads of this end that the peer can hold; `None` if not stated.
    pub(super) rd_in: Option<u32>,
    /// The number of RDMA Reads that the peer wants outstanding; `None` if not stated.
    pub(super) rd_out: Option<u32>,
}

impl ConnRequest {
    /// Local and remote address.
    pub(super) fn addrs(&self) -> (SocketAddr, SocketAddr) {
        (self.local, self.remote)
    }

    /// Logs a step of setting up the connection. The caller holds no lock that a post takes.
    pub(super) fn log(&self, endpoint: Option<u64>, step: Step) {
        connection_log::write(LogEntry::step(|| self.identity(endpoint), step));
    }

    fn identity(&self, endpoint: Option<u64>) -> Identity<'static> {
        Identity {
            endpoint,
            addrs: Some(self.addrs()),
            qual: self.qual,
            path: self.path,
        }
    }

    /// Rejects the request in the name of the consumer. Private data beyond the maximum is cut
    /// off.
    pub(super) fn reject(mut self, private_data: &[u8]) {
        let private_data = &private_data[..private_data.len().min(MAX_PRIVATE)];
        let Some(origin) = self.origin.take() else {
            return;
        };
        self.log(None, Step::RequestRejected);
        match origin {
            Origin::Loopback { active, attempt } => {
                let private_data = private_data.into();
                let event = CmEvent::PeerRejected { private_data };
                end_attempt(&active, attempt, event, &ConnectError::Rejected);
            }
            Origin::Socket(origin) => origin.reject(self.qual, private_data),
        }
    }
}

/// Ends the attempt of a queue pair of this process, if that is still waiting for an answer.
fn end_attempt(active: &Weak<Qp>, attempt: u64, event: CmEvent, cause: &dyn Cause) {
    if let Some(active) = active.upgrade() {
        let mut up = Upcalls::default();
        active.give_up(attempt, event, cause, &mut up);
        up.run();
    }
}

impl Drop for ConnRequest {
    /// A request without an answer is refused, but not in the name of the consumer: a socket is
    /// closed without a reply.
    fn drop(&mut self) {
        let Some(origin) = self.origin.take() else {
            return;
        };
        let cause = "the queue of the listener is full, or it is being closed";
        let identity = || self.identity(None);
        connection_log::write(LogEntry::step_with(identity, Step::RequestDropped, &cause));
        if let Origin::Loopback { active, attempt } = origin {
            let event = CmEvent::NonPeerRejected;
            end_attempt(&active, attempt, event, &ConnectError::Dropped);
        }
    }
}

impl SocketOrigin {
    /// Sends a reply; gives what the socket has not taken of it, which is to be sent later. `None`
    /// if the socket takes nothing any more.
    pub fn reply(&self, frame: &Frame<'_>) -> Option<Vec<u8>> {
        let mut bytes = [0; FRAME_MAX];
        let bytes = frame.encode(&mut bytes).ok()?;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let send = || kernel::net::send(&self.watch, bytes, flags);
        let sent = match &self.segment {
            // Nothing but doorbells follows on a local socket, so that nothing is left for later.
            Some(_) => shm::send_now(send),
            None => send(),
        };
        let sent = match sent {
            Ok(n) => n,
            Err(error) if socket::is_passing(error) => 0,
            Err(_) => return None,
        };
        Some(bytes[sent..].to_vec())
    }

    /// Sends a rejection by the consumer that listens for the qualifier, and ends the connection.
    pub fn reject(self, qual: u64, private_data: &[u8]) {
        let private_data = qualifier::add_header(QualHeader::Reply, qual, private_data);
        send_rejection(self.watch, &self.frame, &private_data);
    }
}

/// Sends a rejection of the request `frame`, and ends the connection.
pub(super) fn send_rejection(watch: Watch, frame: &Frame<'_>, private_data: &[u8]) {
    let mut bytes = [0; FRAME_MAX];
    if let Ok(bytes) = frame.rejection(private_data).encode(&mut bytes) {
        linger(watch, bytes.to_vec(), End::Unestablished);
    }
}

impl ConnectionRequest for ConnRequest {
    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn remote_addr(&self) -> SocketAddr {
        self.remote
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn conn_qual(&self) -> u64 {
        self.qual
    }

    fn peer_rd_in(&self) -> Option<u32> {
        self.rd_in
    }

    fn peer_rd_out(&self) -> Option<u32> {
        self.rd_out
    }

    fn is_for_datagrams(&self) -> bool {
        self.datagrams.is_some()
    }
}
