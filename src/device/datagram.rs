//! Datagrams: messages that need no connection, and that may be lost, doubled or overtaken.
//!
//! A queue pair for datagrams finds out where a peer receives them by [`Device::connect`], and lets a
//! peer find out by [`Device::accept`]; both may be called for any number of peers.
//!
//! [`Device::connect`]: super::Device::connect
//! [`Device::accept`]: super::Device::accept

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Sge, WrFlags};

/// Bytes in front of each datagram in its receive: the place of the global route header of InfiniBand
/// (InfiniBand architecture, 8.3).
pub const DATAGRAM_HEADER_LEN: u32 = 40;

/// Where a peer receives datagrams, in the form of the device that has resolved it.
pub trait AddressHandle: Any + Send + Sync {
    /// Number of the queue pair that was resolved. The number of another one of the same interface
    /// adapter may be used in its place.
    fn qp_number(&self) -> u32;
    /// The address of the interface adapter of the peer.
    fn address(&self) -> SocketAddr;
}

/// The answer to the question where a peer receives datagrams.
#[derive(Clone)]
pub struct Resolved {
    /// Where the peer receives them.
    pub to: Arc<dyn AddressHandle>,
    /// Private data of the accept; at the end that has accepted, that of the request, by which a program knows
    /// whom the event is about.
    pub private_data: Box<[u8]>,
    /// Whether this end has accepted a request of the peer.
    pub accepted: bool,
}

impl PartialEq for Resolved {
    fn eq(&self, other: &Resolved) -> bool {
        Arc::ptr_eq(&self.to, &other.to)
            && self.private_data == other.private_data
            && self.accepted == other.accepted
    }
}

impl Eq for Resolved {}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolved")
            .field("qp_number", &self.to.qp_number())
            .field("address", &self.to.address())
            .field("private_data", &self.private_data)
            .field("accepted", &self.accepted)
            .finish()
    }
}

/// A datagram to send.
#[derive(Clone, Copy)]
pub struct DatagramWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where to.
    pub to: &'a Arc<dyn AddressHandle>,
    /// Number of the queue pair of the peer.
    pub qp_number: u32,
    /// Local segments, in order. The array may be reused when the post returns.
    pub sges: &'a [Sge],
    /// Behaviour.
    pub flags: WrFlags,
}
