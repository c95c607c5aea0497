//! Datagrams: by one copy within the process, through shared memory between the processes of a host, and
//! over UDP.
//!
//! A device has one UDP port for all its queue pairs ([`port`]). A peer gets the port, its key and the
//! number of a queue pair in an exchange that is that of a connection, over TCP or, on the same host, over
//! a local socket ([`cm::resolve`](crate::device::soft::cm)); [`wire`] is what both ends send. The memory
//! that is shared for an exchange over a local socket carries the datagrams of the two ports from then on
//! ([`channel`]).
//!
//! A datagram is lost if the receiver has no receive, and if the network or the kernel drops it. It is
//! not lost because the kernel of the sender has no room: that is refused when it is posted.

pub(crate) mod channel;
pub(crate) mod port;
pub mod wire;

use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use self::channel::{Channel, Sent};
use self::port::{BUFFER_LEN, GAP, Port, Receiver};
use self::wire::{MAX_DATAGRAM, ROUTE_LEN, Route};
use crate::device::attempt::Phase;
use crate::device::connection_log;
use crate::device::soft::device::Soft;
use crate::device::soft::mem::copy;
use crate::device::soft::mem::segments::MemorySegments;
use crate::device::soft::params::Path;
use crate::device::soft::qp::Qp;
use crate::device::soft::qp::link::{Pending, Transport};
use crate::device::soft::qp::state::{Supply, total};
use crate::device::soft::socket;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{
    Access, AddressHandle, DatagramWr, DeviceError, PostError, WcOp, WcStatus, WrFlags,
};
use crate::handle::pin;
use crate::lock::Mutex;

/// Where a peer receives datagrams.
struct Peer {
    /// The address of its host, and its UDP port.
    address: SocketAddr,
    /// The key of the port, and the number of its queue pair.
    end: wire::End,
    way: Way,
}

/// How the port of a peer is reached.
enum Way {
    /// It is one of this process.
    Local(Weak<Port>),
    /// Through shared memory, as long as the channel exists. Then over UDP, if `or_udp`.
    Shared {
        channel: Weak<Channel>,
        or_udp: bool,
    },
    /// Over UDP.
    Udp,
}

impl AddressHandle for Peer {
    fn qp_number(&self) -> u32 {
        self.end.qp_number
    }

    fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Where the peer at this address has said that it receives datagrams; the port of `address` is ignored.
/// `channel` is the one with the port of the peer. Without it, and after its end, datagrams go over UDP if
/// `or_udp`, and are lost if not. Also gives the path, for the log.
pub(crate) fn address_handle(
    device: &Soft,
    mut address: SocketAddr,
    end: wire::End,
    channel: Option<&Arc<Channel>>,
    or_udp: bool,
) -> (Arc<dyn AddressHandle>, connection_log::Path<'static>) {
    address.set_port(end.port);
    let local = match device.params.path {
        Path::Auto => port::find(end.key),
        Path::Shm | Path::Tcp => None,
    };
    let (way, path) = match (local, channel) {
        (Some(port), _) => (Way::Local(port), connection_log::Path::Loopback),
        (None, None) if or_udp => (Way::Udp, connection_log::Path::Udp),
        (None, channel) => {
            let channel = channel.map(Arc::downgrade).unwrap_or_default();
            let way = Way::Shared { channel, or_udp };
            (way, connection_log::Path::SharedMemory)
        }
    };
    (Arc::new(Peer { address, end, way }), path)
}

impl Peer {
    /// Sends a datagram whose payload begins at [`ROUTE_LEN`] of the buffer.
    ///
    /// # Errors
    /// [`PostError::QueueFull`] if the kernel has no room.
    fn send(
        &self,
        port: &Port,
        route: &Route,
        datagram: &mut [u8],
        up: &mut Upcalls,
    ) -> Result<(), PostError> {
        match &self.way {
            Way::Local(to) => {
                if let Some(to) = to.upgrade() {
                    to.deliver(route, port.address(), datagram, up);
                }
                return Ok(());
            }
            Way::Shared { channel, or_udp } => {
                let channel = channel.upgrade();
                if channel.is_some_and(|c| c.send(route, datagram) != Sent::Ended) || !or_udp {
                    return Ok(());
                }
            }
            Way::Udp => {}
        }
        let header = route.header(&datagram[ROUTE_LEN..]);
        datagram[GAP..ROUTE_LEN].copy_from_slice(&header);
        match port.send(self.address, &datagram[GAP..]) {
            Err(error) if socket::is_passing(error) => Err(PostError::QueueFull),
            // An error of the way, which loses the datagram.
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// What a queue pair for datagrams has instead of a connection. Dropping it ends its attempts to resolve
/// peers, and nothing is received any more.
pub struct DatagramEnd {
    /// The port of the device.
    port: Arc<Port>,
    /// The number of the queue pair.
    qp_number: u32,
    attempts: Mutex<Attempts>,
}

/// Attempts to resolve peers.
#[derive(Default)]
struct Attempts {
    /// Those that are under way, by number.
    pending: BTreeMap<u64, Pending>,
    /// Number of the last one.
    last: u64,
}

impl DatagramEnd {
    /// For a queue pair of a device.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn open<L: Transport>(qp: &Arc<Qp<L>>) -> Result<Arc<DatagramEnd>, DeviceError> {
        let port = Port::of(&qp.device)?;
        let receiver: Weak<Qp<L>> = Arc::downgrade(qp);
        let qp_number = port.add(receiver)?;
        Ok(Arc::new(DatagramEnd {
            port,
            qp_number,
            attempts: Mutex::default(),
        }))
    }

    /// What peers are to know.
    pub fn end(&self) -> wire::End {
        wire::End {
            qp_number: self.qp_number,
            port: self.port.number(),
            key: self.port.key(),
            shares: false,
        }
    }

    /// The port of the device.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Begins an attempt to resolve a peer; `make` makes what drives it, from the number of the attempt.
    pub fn begin(&self, make: impl FnOnce(u64) -> Pending) {
        let mut attempts = self.attempts.lock();
        attempts.last += 1;
        let number = attempts.last;
        attempts.pending.insert(number, make(number));
    }

    /// Ends an attempt. What drove it is to be dropped without a lock; `None` if the attempt has ended
    /// before.
    pub fn finish(&self, number: u64) -> Option<Pending> {
        self.attempts.lock().pending.remove(&number)
    }
}

impl Drop for DatagramEnd {
    fn drop(&mut self) {
        self.port.remove(self.qp_number);
    }
}

/// See [`Device::post_datagram`](crate::device::Device::post_datagram).
pub(crate) fn post<L: Transport>(
    qp: &Qp<L>,
    end: &DatagramEnd,
    wr: &DatagramWr<'_>,
) -> Result<(), PostError> {
    let peer: &dyn Any = &**wr.to;
    let Some(peer) = peer.downcast_ref::<Peer>() else {
        return Err(PostError::Unsupported);
    };
    let mut buffer = [0; BUFFER_LEN];
    let (len, copied) = qp.with(|locked| -> Result<_, PostError> {
        let me = &*locked.me;
        if me.attempt.phase == Phase::Destroyed {
            return Err(PostError::NotConnected);
        }
        if wr.sges.len() > me.id.attr.max_send_sge as usize {
            return Err(PostError::TooManySegments);
        }
        let segments = MemorySegments::of(wr.sges, me.id.pd, Access::LOCAL_READ, locked.guard)?;
        let len = total(wr.sges);
        if len > u64::from(me.id.attr.max_message_size).min(MAX_DATAGRAM as u64) {
            return Err(PostError::TooLong);
        }
        let to = buffer[ROUTE_LEN..].as_mut_ptr();
        // SAFETY: the segments are registered for as long as the section lasts; the buffer has room.
        let copied = unsafe { copy::gather_all(segments.all(), to, len as usize) };
        Ok((len as usize, copied.is_ok()))
    })?;
    let mut up = Upcalls::default();
    if copied {
        let route = Route {
            receiver: wr.qp_number,
            sender: end.qp_number,
            key: peer.end.key,
            solicited: wr.flags.contains(WrFlags::SOLICITED),
        };
        peer.send(&end.port, &route, &mut buffer[..ROUTE_LEN + len], &mut up)?;
    }
    let status = match copied {
        true => WcStatus::Success,
        false => WcStatus::LocalProtection,
    };
    qp.with(|locked| {
        if locked.me.attempt.phase != Phase::Destroyed {
            let (id, flags) = (wr.wr_id, wr.flags);
            locked
                .me
                .complete_datagram(id, flags, len as u32, status, &mut up);
        }
    });
    up.run();
    Ok(())
}

impl<L: Transport> Receiver for Qp<L> {
    fn deliver(&self, datagram: &[u8], solicited: bool, up: &mut Upcalls) {
        self.with(|locked| {
            let (me, guard) = (&mut *locked.me, locked.guard);
            if me.attempt.phase == Phase::Destroyed || me.supply(up) != Supply::Ready {
                return;
            }
            let Some((receive, sges)) = me.rq.front() else {
                return;
            };
            let (receive, len) = (*receive, datagram.len());
            let status = if len as u64 > u64::from(receive.len) {
                WcStatus::LocalLength
            } else if me.check_receive(&receive, sges, len as u64, guard).is_err() {
                WcStatus::LocalProtection
            } else {
                let to = copy::Cursor::new(sges);
                // SAFETY: the segments are registered for as long as the section lasts, and have room.
                match unsafe { copy::scatter(datagram.as_ptr(), len, to) } {
                    Ok(()) => WcStatus::Success,
                    Err(_) => WcStatus::LocalProtection,
                }
            };
            if status != WcStatus::Success {
                me.fail_recv(status, up);
                return;
            }
            me.rq.advance();
            let (op, thread) = (WcOp::RecvDatagram, pin::thread());
            me.complete_recv(&receive, status, len as u32, solicited, op, thread, up);
        });
    }
}
