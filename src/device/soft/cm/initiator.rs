//! Who asks for a connection: what a [`Connector`](super::connector::Connector) reports to.

use std::sync::{Arc, Weak};

use super::error::ConnectError;
use crate::device::CmEvent;
use crate::device::connection_log::LogEntry;
use crate::device::soft::engine::Watch;
use crate::device::soft::iwarp::mpa::Agreed;
use crate::device::soft::transport::shm::{AccessGrant, SharedSegment};
use crate::device::soft::transport::{self, Qp, SetUp};
use crate::device::soft::upcalls::Upcalls;

/// Learns what becomes of an attempt to connect. One of [`Initiator::failed`] and
/// [`Initiator::accepted`] is called, once; the connector holds no lock then.
pub(super) trait Initiator: Send + Sync {
    /// A line for the log. The connector holds its lock.
    fn log(&self, line: LogEntry, up: &mut Upcalls);
    /// The attempt has this port at its end.
    fn set_local_port(&self, port: u16);
    /// There is no connection.
    fn failed(&self, event: CmEvent, failure: &ConnectError, up: &mut Upcalls);
    /// The peer has accepted.
    fn accepted(&self, accepted: Accepted, up: &mut Upcalls);
}

/// An attempt whose request the peer has accepted.
pub(super) struct Accepted {
    /// The socket.
    pub watch: Watch,
    /// What both ends have agreed on.
    pub agreed: Agreed,
    /// Private data of the peer.
    pub private_data: Box<[u8]>,
    /// The memory that is shared with the peer; `None` over TCP.
    pub segment: Option<Arc<SharedSegment>>,
    /// Why the peer is reached over TCP, if it is on this host.
    pub detour: Option<ConnectError>,
}

/// An attempt of a queue pair.
pub(super) struct QpAttempt {
    /// The queue pair.
    pub qp: Weak<Qp>,
    /// The number of its attempt.
    pub number: u64,
}

impl Initiator for QpAttempt {
    fn log(&self, line: LogEntry, up: &mut Upcalls) {
        if let Some(qp) = self.qp.upgrade() {
            up.log(&qp.events, Some(line));
        }
    }

    fn set_local_port(&self, port: u16) {
        if let Some(qp) = self.qp.upgrade() {
            qp.set_local_port(self.number, port);
        }
    }

    fn failed(&self, event: CmEvent, failure: &ConnectError, up: &mut Upcalls) {
        if let Some(qp) = self.qp.upgrade() {
            qp.give_up(self.number, event, failure, up);
        }
    }

    fn accepted(&self, accepted: Accepted, up: &mut Upcalls) {
        let Some(qp) = self.qp.upgrade() else {
            return;
        };
        if let Some(why) = &accepted.detour {
            qp.log_detour(self.number, why);
        }
        let scope = || qp.with(|locked| locked.me.id.scope());
        let setup = SetUp {
            order: accepted.watch.event_order().begin(),
            watch: accepted.watch,
            agreed: accepted.agreed,
            grant: accepted
                .segment
                .map(|segment| AccessGrant::new(segment, scope())),
            initiator: true,
            unsent: Vec::new(),
            private_data: accepted.private_data,
        };
        transport::connect(&qp, self.number, setup, up);
    }
}
