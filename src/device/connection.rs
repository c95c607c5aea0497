//! What happens to the connection of a queue pair, and the requests of peers for one.

use std::net::SocketAddr;

use super::{Device, Resolved};

/// What happened to the connection of a queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CmEvent {
    /// Data can flow. Active end: with the private data of the accept; passive end: empty.
    Established {
        /// Private data of the peer.
        private_data: Box<[u8]>,
    },
    /// The remote consumer rejected the request.
    PeerRejected {
        /// Private data of the reject.
        private_data: Box<[u8]>,
    },
    /// There is no listener, or something other than the consumer refused.
    NonPeerRejected,
    /// The remote host cannot be reached.
    Unreachable,
    /// The time given to [`Device::connect`] passed.
    TimedOut,
    /// Accepted, but the connection could not be completed (passive end).
    AcceptError,
    /// Orderly end, by either end. Everything outstanding has been flushed.
    Disconnected,
    /// The transport failed or a request failed. Everything outstanding has been flushed.
    Broken,
    /// Only of queue pairs for datagrams: where the peer receives them.
    Resolved(Resolved),
}

/// Receives the connection requests of a listener. Implemented by PSP and RSP.
pub trait ListenHandler<D: Device>: Send + Sync {
    /// A connection request arrived. Dropping the request rejects it as
    /// [`CmEvent::NonPeerRejected`].
    fn request(&self, request: D::ConnRequest);
}

/// A connection request that waits for accept or reject. Dropping it refuses the peer.
pub trait ConnectionRequest: Send + Sync {
    /// Private data of the connecting consumer.
    fn private_data(&self) -> &[u8];
    /// Address of the peer.
    fn remote_addr(&self) -> SocketAddr;
    /// Local address at which the request arrived.
    fn local_addr(&self) -> SocketAddr;
    /// The qualifier that the peer connects to.
    fn conn_qual(&self) -> u64;
    /// RDMA reads the peer answers at a time, where the transport carries it.
    fn peer_rd_in(&self) -> Option<u32>;
    /// RDMA reads the peer wants to have outstanding, where the transport carries it.
    fn peer_rd_out(&self) -> Option<u32>;
    /// Whether the peer asks where datagrams are received, rather than for a connection.
    fn is_for_datagrams(&self) -> bool;
}
