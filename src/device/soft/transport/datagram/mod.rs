//! Datagrams: over UDP between processes, by one copy within the process.
//!
//! A device has one UDP port for all its queue pairs ([`port`]). A peer gets the port, its key and the
//! number of a queue pair in an exchange over TCP ([`cm::resolve`](crate::device::soft::cm)); [`wire`]
//! is what both ends send.
//!
//! A datagram is lost if the receiver has no receive, and if the network or the kernel drops it. It is
//! not lost because the kernel of the sender has no room: that is refused when it is posted.

pub(crate) mod port;
pub mod wire;

use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use self::port::{BUFFER_LEN, GAP, Port, Receiver};
use self::wire::{MAX_DATAGRAM, ROUTE_LEN, Route};
use crate::device::attempt::Phase;
use crate::device::soft::device::Soft;
use crate::device::soft::mem::copy;
use crate::device::soft::mem::key_table;
use crate::device::soft::params::Path;
use crate::device::soft::qp::Qp;
use crate::device::soft::qp::link::{Pending, Transport};
use crate::device::soft::qp::state::{Supply, total};
use crate::device::soft::socket;
use crate::device::soft::upcalls::Upcalls;
use crate::device::{
    Access, AddressHandle, DatagramWr, DeviceError, PostError, WcOp, WcStatus, WrFlags,
};
use crate::lock::Mutex;

/// Where a peer receives datagrams.
struct Peer {
    /// The address of its host, and its UDP port.
    address: SocketAddr,
    /// The key of the port, and the number of its queue pair.
    end: wire::End,
    /// The port, if it is one of this process that is reached without the network.
    local: Option<Weak<Port>>,
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
pub(crate) fn address_handle(
    device: &Soft,
    mut address: SocketAddr,
    end: wire::End,
) -> Arc<dyn AddressHandle> {
    address.set_port(end.port);
    let local = match device.params.path {
        Path::Auto => port::find(end.key),
        Path::Shm | Path::Tcp => None,
    };
    Arc::new(Peer {
        address,
        end,
        local,
    })
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
        }
    }

    /// The port of the device.
    #[cfg(test)]
    pub fn port(&self) -> &Port {
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
        key_table::check_all(wr.sges, me.id.pd, Access::LOCAL_READ, locked.guard)?;
        let len = total(wr.sges);
        if len > u64::from(me.id.attr.max_message_size).min(MAX_DATAGRAM as u64) {
            return Err(PostError::TooLong);
        }
        let to = buffer[ROUTE_LEN..].as_mut_ptr();
        // SAFETY: the segments are registered for as long as the section lasts; the buffer has room.
        let copied = unsafe { copy::gather_all(wr.sges, to, len as usize) };
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
        let datagram = &mut buffer[..ROUTE_LEN + len];
        match peer.local.as_ref().map(Weak::upgrade) {
            Some(port) => {
                if let Some(port) = port {
                    port.deliver(&route, end.port.address(), datagram, &mut up);
                }
            }
            None => {
                let header = route.header(&datagram[ROUTE_LEN..]);
                datagram[GAP..ROUTE_LEN].copy_from_slice(&header);
                match end.port.send(peer.address, &datagram[GAP..]) {
                    Err(error) if socket::is_passing(error) => return Err(PostError::QueueFull),
                    // An error of the way, which loses the datagram.
                    Ok(()) | Err(_) => {}
                }
            }
        }
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
            let status = if len as u64 > receive.len {
                WcStatus::LocalLength
            } else if me.check_receive(sges, guard).is_err() {
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
            let op = WcOp::RecvDatagram;
            me.complete_recv(&receive, status, len as u32, solicited, op, up);
        });
    }
}
