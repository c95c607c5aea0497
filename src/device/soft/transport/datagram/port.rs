//! The UDP port of a device, which all its queue pairs for datagrams share.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock, Weak};

use rustix::io::Errno;

use super::channel::Channels;
use super::wire::{HEADER_LEN, MAX_DATAGRAM, ROUTE_LEN, Route, route_header};
use crate::device::DeviceError;
use crate::device::netif;
use crate::device::random::random;
use crate::device::soft::device::Soft;
use crate::device::soft::engine::{EventFlags, Scratch, Source, Watch};
use crate::device::soft::socket;
use crate::device::soft::upcalls::Upcalls;
use crate::kernel;
use crate::kernel::net::{SendFlags, sockopt};
use crate::lock::Mutex;
use crate::process::PerProcess;

/// Bytes that the kernel is asked to keep of what was not received yet.
const SOCKET_BUFFER: usize = 1 << 20;
/// Datagrams that are received before other sockets have their turn.
const MAX_BATCH: usize = 64;
/// Numbers of queue pairs have 24 bits, as those of InfiniBand.
const QP_NUMBERS: u32 = 1 << 24;
/// Where a datagram begins in its buffer: the header of the wire is received where the receive has the
/// other header, so that the payload is behind both.
pub(super) const GAP: usize = ROUTE_LEN - HEADER_LEN;
/// Bytes of a buffer for a datagram of any length.
pub(super) const BUFFER_LEN: usize = ROUTE_LEN + MAX_DATAGRAM;

/// A queue pair that receives datagrams.
pub trait Receiver: Send + Sync {
    /// A datagram has arrived, with the header of the receive in front. It is dropped if there is no
    /// receive.
    fn deliver(&self, datagram: &[u8], solicited: bool, up: &mut Upcalls);
}

/// The port of a device.
pub struct Port {
    /// The number of the port.
    number: u16,
    /// The key that datagrams to this port have.
    key: u64,
    /// Whether the socket has addresses of IPv6, in which those of IPv4 are mapped.
    ipv6: bool,
    /// The address of the interface adapter.
    address: IpAddr,
    /// Holds the socket; set when the port is made.
    watch: OnceLock<Watch>,
    receivers: Mutex<Receivers>,
    /// The ports of other processes that share memory with this one.
    channels: Channels,
}

#[derive(Default)]
struct Receivers {
    /// The queue pairs by their numbers.
    by_number: BTreeMap<u32, Weak<dyn Receiver>>,
    /// The number that was given out last.
    last: u32,
}

/// The ports of the process by their keys.
static PORTS: PerProcess<Mutex<BTreeMap<u64, OpenPort>>> = PerProcess::new(Mutex::default);

/// A port as the process knows it.
struct OpenPort {
    /// Its device. No other device gets that address while this is here, not even when the device is gone and a thread
    /// that delivers a datagram still has the port.
    device: Weak<Soft>,
    port: Weak<Port>,
}

/// The port of this process with that key.
pub(super) fn find(key: u64) -> Option<Weak<Port>> {
    let ports = PORTS.lock();
    Some(ports.get(&key)?.port.clone())
}

/// Binds a socket to a free port; gives whether it has addresses of IPv6.
fn bind(device: &Soft) -> Result<(crate::descriptor::OwnedFd, bool), Errno> {
    let at = |address: SocketAddr| {
        let fd = socket::udp(address.is_ipv6())?;
        if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            sockopt::set_ipv6_v6only(&fd, false)?;
        }
        kernel::net::bind(&fd, &address)?;
        Ok((fd, address.is_ipv6()))
    };
    if device.params.bound {
        return at(netif::at_port(device.params.address, 0));
    }
    // Without IPv6 in the kernel there is no such socket.
    at((Ipv6Addr::UNSPECIFIED, 0).into()).or_else(|_: Errno| at((Ipv4Addr::UNSPECIFIED, 0).into()))
}

impl Port {
    /// The port of a device, which is made for its first queue pair.
    ///
    /// # Errors
    /// [`DeviceError::Resources`].
    pub fn of(device: &Arc<Soft>) -> Result<Arc<Port>, DeviceError> {
        let weak = Arc::downgrade(device);
        let mut ports = PORTS.lock();
        let mut own = ports.values().filter(|open| open.device.ptr_eq(&weak));
        if let Some(port) = own.find_map(|open| open.port.upgrade()) {
            return Ok(port);
        }
        let port = Port::open(device)?;
        let open = OpenPort {
            device: weak,
            port: Arc::downgrade(&port),
        };
        ports.insert(port.key, open);
        Ok(port)
    }

    fn open(device: &Arc<Soft>) -> Result<Arc<Port>, DeviceError> {
        let resources = |_| DeviceError::Resources;
        device.engine.start()?;
        let (fd, ipv6) = bind(device).map_err(resources)?;
        let option = (libc::SOL_SOCKET, libc::SO_RCVBUF);
        kernel::set_int(&fd, option.0, option.1, SOCKET_BUFFER as libc::c_int);
        let bound = socket::local(&fd).ok_or(DeviceError::Resources)?;
        let port = Arc::new(Port {
            number: bound.port(),
            key: random().map_err(resources)?,
            ipv6,
            address: device.params.address.ip(),
            watch: OnceLock::new(),
            receivers: Mutex::new(Receivers {
                by_number: BTreeMap::new(),
                last: random().map_err(resources)? as u32 % QP_NUMBERS,
            }),
            channels: Channels::default(),
        });
        let source = Arc::new(PortSource(Arc::downgrade(&port)));
        let watch = device.engine.watch(fd, EventFlags::IN, source)?;
        let _ = port.watch.set(watch);
        Ok(port)
    }

    /// The number of the port.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The key that datagrams to this port have.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The address of the interface adapter.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The ports of other processes that share memory with this one.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Adds a queue pair, and gives its number.
    ///
    /// # Errors
    /// [`DeviceError::Resources`] if all numbers are taken.
    pub fn add(&self, receiver: Weak<dyn Receiver>) -> Result<u32, DeviceError> {
        let mut receivers = self.receivers.lock();
        let Receivers { by_number, last } = &mut *receivers;
        for _ in 0..QP_NUMBERS {
            *last = (*last + 1) % QP_NUMBERS;
            // 0 and 1 are the queue pairs of the management of InfiniBand.
            if *last > 1 && !by_number.contains_key(last) {
                by_number.insert(*last, receiver);
                return Ok(*last);
            }
        }
        Err(DeviceError::Resources)
    }

    /// Removes a queue pair.
    pub fn remove(&self, number: u32) {
        self.receivers.lock().by_number.remove(&number);
    }

    /// Number of queue pairs.
    #[cfg(test)]
    pub fn receivers(&self) -> usize {
        self.receivers.lock().by_number.len()
    }

    /// Delivers a datagram from `from`, whose payload begins at [`ROUTE_LEN`] of the buffer.
    pub fn deliver(&self, route: &Route, from: IpAddr, buffer: &mut [u8], up: &mut Upcalls) {
        let receiver = self
            .receivers
            .lock()
            .by_number
            .get(&route.receiver)
            .cloned();
        if let Some(receiver) = receiver.as_ref().and_then(Weak::upgrade) {
            let len = buffer.len() - ROUTE_LEN;
            buffer[..ROUTE_LEN].copy_from_slice(&route_header(len, from, self.address));
            receiver.deliver(buffer, route.solicited, up);
        }
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// Of the system.
    pub fn send(&self, to: SocketAddr, datagram: &[u8]) -> Result<(), Errno> {
        let to = match to {
            SocketAddr::V4(v4) if self.ipv6 => {
                SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()))
            }
            to => to,
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let watch = self.watch.get().ok_or(Errno::BADF)?;
        // Consumers that poll read the socket from now on. Before that the thread of the engine does.
        watch.count_as_tcp_conn();
        kernel::net::sendto(watch, datagram, flags, &to).map(|_| ())
    }

    /// Receives what has arrived.
    fn receive(&self, scratch: &mut Scratch, up: &mut Upcalls) {
        // One byte more, to tell a datagram that is too long.
        let mut buffer = [0; BUFFER_LEN + 1];
        for _ in 0..MAX_BATCH {
            let Some(watch) = self.watch.get() else {
                return;
            };
            match socket::receive_datagram(watch, &mut buffer[GAP..]) {
                Ok((n, from)) => {
                    scratch.received = true;
                    let Some((route, len)) = Route::parse(&buffer[GAP..GAP + n]) else {
                        continue;
                    };
                    if let Some(from) = from.filter(|_| route.key == self.key) {
                        watch.count_as_tcp_conn();
                        self.deliver(&route, from.ip(), &mut buffer[..ROUTE_LEN + len], up);
                    }
                }
                // That an earlier datagram was not taken somewhere.
                Err(Errno::CONNREFUSED) => {}
                Err(_) => return,
            }
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // One that could not be watched was never among them, and is dropped with the lock held.
        if self.watch.get().is_some() {
            PORTS.lock().remove(&self.key);
        }
    }
}

/// Reports to the port that datagrams have arrived.
struct PortSource(Weak<Port>);

impl Source for PortSource {
    fn ready(self: Arc<Self>, _events: EventFlags, scratch: &mut Scratch, up: &mut Upcalls) {
        if let Some(port) = self.0.upgrade() {
            port.receive(scratch, up);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    /// A thread that delivers a datagram may have the port of a device that is gone.
    #[test]
    fn a_new_device_has_a_port_of_its_own() {
        let mut held = Vec::new();
        for _ in 0..50 {
            let device = Soft::open("127.0.0.1").unwrap();
            let port = Port::of(&device).unwrap();
            assert!(Arc::ptr_eq(&Port::of(&device).unwrap(), &port));
            assert!(held.iter().all(|other| !Arc::ptr_eq(other, &port)));
            held.push(port);
            // The next device may get the memory of this one.
            drop(device);
        }
    }

    /// [`Port::of`] drops it with the lock held.
    #[test]
    fn a_port_that_was_not_watched_is_dropped_by_itself() {
        let port = Port {
            number: 0,
            key: 0,
            ipv6: false,
            address: Ipv4Addr::LOCALHOST.into(),
            watch: OnceLock::new(),
            receivers: Mutex::new(Receivers {
                by_number: BTreeMap::new(),
                last: 0,
            }),
            channels: Channels::default(),
        };
        let (dropped, was_dropped) = std::sync::mpsc::channel();
        // A thread of its own, as this one would wait for itself for ever.
        std::thread::spawn(move || {
            let ports = PORTS.lock();
            drop(port);
            drop(ports);
            dropped.send(())
        });
        let soon = std::time::Duration::from_secs(20);
        assert!(was_dropped.recv_timeout(soon).is_ok());
    }
}
