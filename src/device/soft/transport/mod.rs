//! How a connected queue pair reaches its peer: within the process ([`loopback`]), through memory
//! that both processes map ([`shm`]), or as iWARP over a TCP socket ([`tcp`]); and how a queue pair
//! for datagrams reaches its peers ([`datagram`]).
//!
//! This file is the one place that knows which kind of connection a queue pair has. A transport
//! returns why a connection ends; the connection is ended here.

pub(crate) mod close_timers;
pub(super) mod coalesce;
pub mod datagram;
pub(super) mod lifecycle;
pub(crate) mod loopback;
pub mod shm;
mod targets;
pub(crate) mod tcp;

use std::hint::black_box;
use std::sync::Arc;

use self::datagram::DatagramEnd;
use self::lifecycle::Connection;
use self::shm::{AccessGrant, Budget, ShmConn};
use self::targets::{PollTarget, TcpSource};
use self::tcp::TcpConn;
use super::engine::{Backlog, Watch};
use super::event_order::SetupGuard;
use super::iwarp::mpa::Agreed;
use super::qp;
use super::qp::link::{Outcome, Pending, Transport};
use super::qp::state::QpState;
use super::qp::work_queue::Transfer;
use super::socket;
use super::upcalls::Upcalls;
use crate::device::connection_log::Path;
use crate::device::{DatagramWr, DeviceError, PostError, Remote, Sge, WcStatus};
use crate::handle::Guard;

/// A queue pair of this device.
pub type Qp = qp::Qp<Link>;
type QpPlace = qp::place::QpPlace<Link>;
type LockedQp<'a> = qp::place::LockedQp<'a, Link>;

/// How the queue pair, or the pair, of a lock domain reaches its peer.
// With a number of its own for the kind, which every post compares: otherwise the kind would have to be
// calculated from a member of `Pending`.
#[repr(u8)]
#[derive(Default)]
pub enum Link {
    /// Not at all.
    #[default]
    None,
    /// An attempt to connect. Dropping it gives the attempt up.
    Pending(Pending),
    /// The two queue pairs of the domain are connected, and not both receive yet: requests wait.
    Opening,
    /// The two queue pairs of the domain are connected.
    Loop,
    /// A connection through shared memory.
    Shm(Box<ShmConn>),
    /// A connection over TCP.
    Tcp(Box<TcpConn>),
    /// No connection: the queue pair is one for datagrams.
    Datagrams(Arc<DatagramEnd>),
}

/// A connection that is set up, but for the queue pair.
pub(crate) struct SetUp {
    /// The socket of the set-up.
    pub watch: Watch,
    /// What both ends have agreed on.
    pub agreed: Agreed,
    /// The memory that both ends share; without it the connection uses the socket.
    pub grant: Option<AccessGrant>,
    /// Whether this end has asked for the connection.
    pub initiator: bool,
    /// What the socket has not taken yet of the reply, over TCP.
    pub unsent: Vec<u8>,
    /// The private data for the consumer, empty at the end that has accepted.
    pub private_data: Box<[u8]>,
    /// Keeps ends of other connections from being delivered before this beginning.
    pub order: SetupGuard,
}

/// An attempt has led to a connection, unless the queue pair is no longer at that attempt.
pub(crate) fn connect(qp: &Arc<Qp>, attempt: u64, setup: SetUp, up: &mut Upcalls) {
    let pending = qp.with(|locked| {
        let me = &mut *locked.me;
        if !me.attempt.is_connecting(attempt) {
            return Link::None;
        }
        let pending = std::mem::take(locked.link);
        let SetUp { watch, agreed, .. } = setup;
        if let (Some(local), Some(remote)) = (socket::local(&watch), socket::remote(&watch)) {
            me.addrs = Some((local, remote));
        }
        me.ord = u32::from(agreed.ord);
        let events = (setup.private_data, setup.order);
        if let Some(grant) = setup.grant {
            me.path = Path::SharedMemory;
            let target = Arc::new(PollTarget::new(qp.place(), grant.segment().clone()));
            let mut conn = ShmConn::new(watch, grant, target, qp.device.params.linger);
            conn.start(setup.initiator, me, events, up);
            *locked.link = Link::Shm(Box::new(conn));
            let watch = |conn: &mut ShmConn, me: &mut _, up: &mut _| {
                conn.watch_socket(me, locked.guard, up)
            };
            locked.link.on_shm(me, up, watch);
        } else {
            me.path = Path::Tcp;
            socket::limit_set_up(&watch, None);
            let target = Arc::new(TcpSource::new(qp.place()));
            let first = me.sq.tail();
            let mut conn = TcpConn::new(watch, target, &agreed, setup.initiator, first, &qp.device);
            conn.tx.put(&setup.unsent);
            conn.start(me, events, up);
            *locked.link = Link::Tcp(Box::new(conn));
            let advance =
                |conn: &mut TcpConn, me: &mut _, up: &mut _| conn.advance(me, locked.guard, up);
            locked.link.on_tcp(me, up, advance);
        }
        pending
    });
    drop(pending);
}

/// Makes a new queue pair one for datagrams.
///
/// # Errors
/// [`DeviceError::Resources`].
pub(crate) fn open_datagrams(qp: &Arc<Qp>) -> Result<(), DeviceError> {
    let end = DatagramEnd::open(qp)?;
    qp.with(|locked| *locked.link = Link::Datagrams(end));
    Ok(())
}

/// What a queue pair for datagrams has instead of a connection.
pub(crate) fn datagram_end(qp: &Qp) -> Option<Arc<DatagramEnd>> {
    qp.with(|locked| match locked.link {
        Link::Datagrams(end) => Some(end.clone()),
        _ => None,
    })
}

/// See [`Device::post_datagram`](crate::device::Device::post_datagram).
pub(crate) fn post_datagram(qp: &Qp, wr: &DatagramWr<'_>) -> Result<(), PostError> {
    let end = datagram_end(qp).ok_or(PostError::Unsupported)?;
    datagram::post(qp, &end, wr)
}

impl Link {
    #[inline]
    fn shm(&mut self) -> Option<&mut ShmConn> {
        match self {
            Link::Shm(conn) => Some(conn),
            _ => None,
        }
    }

    fn tcp(&mut self) -> Option<&mut TcpConn> {
        match self {
            Link::Tcp(conn) => Some(conn),
            _ => None,
        }
    }

    /// Works on the connection, if it is one through shared memory, and ends it if that fails.
    #[inline]
    fn on_shm<R: Default>(
        &mut self,
        me: &mut QpState,
        up: &mut Upcalls,
        work: impl FnOnce(&mut ShmConn, &mut QpState, &mut Upcalls) -> Result<R, shm::CloseReason>,
    ) -> R {
        let Link::Shm(conn) = self else {
            return R::default();
        };
        match work(conn, me, up) {
            Ok(result) => result,
            Err(reason) => {
                self.end_shm(reason, me, up);
                R::default()
            }
        }
    }

    /// Works on the connection, if it is one over TCP, and ends it if that fails.
    #[inline]
    fn on_tcp<R: Default>(
        &mut self,
        me: &mut QpState,
        up: &mut Upcalls,
        work: impl FnOnce(&mut TcpConn, &mut QpState, &mut Upcalls) -> Result<R, tcp::CloseReason>,
    ) -> R {
        let Link::Tcp(conn) = self else {
            return R::default();
        };
        match work(conn, me, up) {
            Ok(result) => result,
            Err(reason) => {
                self.end_tcp(reason, me, up);
                R::default()
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn end_tcp(&mut self, reason: tcp::CloseReason, me: &mut QpState, up: &mut Upcalls) {
        if let Link::Tcp(conn) = std::mem::take(self) {
            lifecycle::end(*conn, reason, me, up);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_shm(&mut self, reason: shm::CloseReason, me: &mut QpState, up: &mut Upcalls) {
        if let Link::Shm(conn) = std::mem::take(self) {
            lifecycle::end(*conn, reason, me, up);
        }
    }
}

impl Transport for Link {
    fn pending(attempt: Pending) -> Link {
        Link::Pending(attempt)
    }

    fn loopback() -> Link {
        Link::Opening
    }

    fn is_loopback(&self) -> bool {
        matches!(self, Link::Opening | Link::Loop)
    }

    fn pending_path(&self) -> Option<Path<'static>> {
        match self {
            Link::Pending(pending) => Some(pending.connector.as_ref()?.path()),
            _ => None,
        }
    }

    fn has_extensions(&self) -> bool {
        match self {
            Link::Tcp(conn) => conn.extensions,
            _ => true,
        }
    }

    #[inline(always)]
    fn execute(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        transfer: &Transfer<'_>,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Outcome {
        match (self, peer) {
            (Link::Loop, Some(peer)) => loopback::execute(me, peer, transfer, guard, up),
            // A copy, so that the transfer above need not be in memory.
            (Link::Shm(conn), _) => conn.execute_now(me, &black_box(*transfer)),
            _ => Outcome::Wait,
        }
    }

    #[inline(always)]
    fn direct_peer<'a>(&self, peer: Option<&'a mut QpState>) -> Option<&'a mut QpState> {
        match self {
            Link::Loop => peer,
            _ => None,
        }
    }

    #[inline(always)]
    fn copies_writes(&self) -> bool {
        match self {
            Link::Shm(conn) => conn.copies_writes(),
            _ => false,
        }
    }

    #[inline(always)]
    unsafe fn write_plainly(&mut self, to: Remote, from: &Sge) -> bool {
        match self {
            // SAFETY: the caller's promise.
            Link::Shm(conn) => unsafe { conn.write_plainly(to, from) },
            _ => false,
        }
    }

    fn execution_failed(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        status: WcStatus,
        up: &mut Upcalls,
    ) {
        match peer {
            Some(peer) => loopback::fail(me, peer, status, up),
            None => self.on_shm(me, up, |_, _, _| Err(shm::CloseReason::Executed(status))),
        }
    }

    #[cold]
    fn not_queued(&mut self, me: &mut QpState, up: &mut Upcalls) {
        self.on_shm(me, up, |conn, _, _| conn.not_queued());
    }

    fn posted_send(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        guard: &Guard,
        up: &mut Upcalls,
    ) {
        match self {
            Link::None | Link::Pending(_) | Link::Opening | Link::Datagrams(_) => {}
            Link::Loop => {
                if let Some(peer) = peer {
                    loopback::posted_send(me, peer, guard, up);
                }
            }
            Link::Shm(_) => self.on_shm(me, up, |conn, me, up| conn.posted_send(me, guard, up)),
            Link::Tcp(_) => self.on_tcp(me, up, |conn, me, up| conn.posted_send(me, guard, up)),
        }
    }

    #[inline(always)]
    fn wants_receive(&self, peer: Option<&QpState>) -> bool {
        match (self, peer) {
            (Link::Loop, Some(peer)) => !peer.sq.is_empty(),
            (Link::Shm(conn), _) => conn.is_starved(),
            (Link::Tcp(_), _) => true,
            _ => false,
        }
    }

    fn posted_recv(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        guard: &Guard,
        up: &mut Upcalls,
    ) {
        match self {
            Link::None | Link::Pending(_) | Link::Opening | Link::Datagrams(_) => {}
            Link::Loop => {
                if let Some(peer) = peer.filter(|peer| !peer.sq.is_empty()) {
                    loopback::pump(peer, me, guard, up);
                }
            }
            Link::Shm(conn) => {
                if conn.is_starved() {
                    self.on_shm(me, up, |conn, me, up| conn.run(Budget::All, me, guard, up));
                }
            }
            Link::Tcp(conn) => {
                if conn.is_starved(me) {
                    self.on_tcp(me, up, |conn, me, up| conn.posted_recv(me, guard, up));
                }
            }
        }
    }

    fn start_receiving(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        guard: &Guard,
        up: &mut Upcalls,
    ) -> Option<Arc<dyn Backlog>> {
        match (&mut *self, peer) {
            (Link::Opening, Some(peer)) if peer.receiving => {
                *self = Link::Loop;
                loopback::pump(peer, me, guard, up);
                loopback::pump(me, peer, guard, up);
            }
            (Link::Shm(_), _) => self.on_shm(me, up, |conn, me, up| {
                conn.open();
                conn.run(Budget::Nothing, me, guard, up)
            }),
            (Link::Tcp(_), _) => {
                return self.on_tcp(me, up, |conn, me, up| conn.start_receiving(me, guard, up));
            }
            _ => {}
        }
        None
    }

    fn closing(
        &mut self,
        me: &mut QpState,
        peer: Option<&mut QpState>,
        guard: &Guard,
        up: &mut Upcalls,
    ) {
        match self {
            Link::None | Link::Pending(_) | Link::Opening | Link::Datagrams(_) => {}
            Link::Loop => {
                if let Some(peer) = peer {
                    loopback::pump(me, peer, guard, up);
                }
            }
            Link::Shm(_) => self.on_shm(me, up, |conn, me, up| {
                conn.send_posted(me, guard, up)?;
                conn.run(Budget::Nothing, me, guard, up)
            }),
            Link::Tcp(_) => self.on_tcp(me, up, |conn, me, up| conn.advance(me, guard, up)),
        }
    }

    fn quiesce(&mut self, me: &mut QpState, guard: &Guard, up: &mut Upcalls) {
        self.on_tcp(me, up, |conn, me, up| conn.flush_coalesced(me, guard, up));
        self.on_shm(me, up, |conn, me, up| conn.send_posted(me, guard, up));
        if let Link::Shm(conn) = self {
            conn.quiesce(me, up);
            // Before the consumer has the event of the end, behind which the program may exit.
            conn.abort();
        }
    }

    fn abort(self) {
        match self {
            Link::None | Link::Pending(_) | Link::Opening | Link::Loop | Link::Datagrams(_) => {}
            // The peer was told by `quiesce`.
            Link::Shm(_) => {}
            Link::Tcp(conn) => conn.abort(),
        }
    }
}
