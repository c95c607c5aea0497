//! Listeners, and how a connection qualifier leads to one.
//!
//! A qualifier up to 65535 is a TCP port. A wider one is spread over a fixed sequence of ports
//! (see [`qualifier`](crate::device::qualifier)), and the listener takes the first that is free.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::delay;
use crate::descriptor::OwnedFd;
use crate::kernel;
use crate::kernel::net::sockopt;
use crate::lock::Mutex;
use rustix::io::Errno;

use super::acceptor::Acceptor;
pub use super::request::ConnRequest;
use crate::device::netif;
use crate::device::qualifier::{candidates, claim, needs_header, substitute};
use crate::device::soft::device::Soft;
use crate::device::soft::params::Path;
use crate::device::soft::socket;
use crate::device::soft::transport::shm;
use crate::device::soft::upcalls::RequestUpcall;
use crate::device::{DeviceError, KERNEL_BACKLOG, ListenHandler};
use crate::process::PerProcess;
use crate::sync::relax;

/// How often a local socket is tried whose name another process has: for some milliseconds.
const LOCAL_NAME_ROUNDS: u32 = 1100;

/// The part of a listener that requests are delivered to.
pub(crate) struct Listening {
    /// The qualifier.
    qual: u64,
    /// The address that the listener is bound to; `None` means all addresses.
    address: Option<SocketAddr>,
    /// Whether the listener accepts requests; `false` once it is closed.
    open: AtomicBool,
    /// The handler of the consumer.
    handler: Arc<dyn ListenHandler<Soft>>,
}

impl RequestUpcall<ConnRequest> for Listening {
    /// Hands a request to the consumer, or drops it if the listener is closed.
    fn deliver(&self, request: ConnRequest) {
        if self.open.load(Ordering::Acquire) {
            delay::point("listener.deliver");
            self.handler.request(request);
        }
    }
}

impl Listening {
    fn new(device: &Soft, qual: u64, handler: Arc<dyn ListenHandler<Soft>>) -> Arc<Listening> {
        Arc::new(Listening {
            qual,
            address: bound_address(device),
            open: AtomicBool::new(true),
            handler,
        })
    }

    fn is_at(&self, address: SocketAddr) -> bool {
        self.address
            .is_none_or(|own| netif::is_same_address(own, address))
    }
}

/// The address that a device binds its listeners to; `None` means all addresses.
fn bound_address(device: &Soft) -> Option<SocketAddr> {
    device.params.bound.then_some(device.params.address)
}

/// All listeners of the process, by qualifier. Queue pairs of the process connect to them through
/// loopback.
static LISTENERS: PerProcess<Mutex<BTreeMap<u64, Vec<Arc<Listening>>>>> =
    PerProcess::new(Mutex::default);

/// The listener of this process for a qualifier at one of its addresses.
pub(crate) fn find(address: SocketAddr, qual: u64) -> Option<Arc<Listening>> {
    let all = LISTENERS.lock();
    let find = |qual| all.get(&qual)?.iter().find(|l| l.is_at(address)).cloned();
    find(qual).or_else(|| find(substitute(qual)?))
}

/// Acceptors by the address of their device and their port.
type Ports = BTreeMap<(usize, u16), Arc<Acceptor>>;

/// The ports that are listened on.
static PORTS: PerProcess<Mutex<Ports>> = PerProcess::new(Mutex::default);

/// The key of a port in [`PORTS`]. Each port is there as long as a [`Listener`] holds its device.
fn port_key(device: &Arc<Soft>, port: u16) -> (usize, u16) {
    (Arc::as_ptr(device).addr(), port)
}

/// A listener. Dropping it stops listening.
pub struct Listener {
    /// The part that requests are delivered to.
    listening: Arc<Listening>,
    /// The port that leads to the qualifier.
    port: u16,
    /// The device that listens.
    device: Arc<Soft>,
    /// Keeps other processes from a wide qualifier.
    _claim: Option<OwnedFd>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let this = &self.listening;
        this.open.store(false, Ordering::Release);
        let mut all = LISTENERS.lock();
        if let Some(same) = all.get_mut(&this.qual) {
            same.retain(|l| !Arc::ptr_eq(l, this));
            if same.is_empty() {
                all.remove(&this.qual);
            }
        }
        let mut ports = PORTS.lock();
        let key = port_key(&self.device, self.port);
        let unused = ports.get(&key).is_some_and(|acceptor| {
            let mut listeners = acceptor.listeners.lock();
            listeners.remove(&this.qual);
            listeners.is_empty()
        });
        let acceptor = if unused { ports.remove(&key) } else { None };
        drop(ports);
        if let Some(acceptor) = acceptor {
            acceptor.close();
        }
    }
}

/// See [`Device::listen`](crate::device::Device::listen). Qualifier 0 is refused with
/// [`DeviceError::BadAddress`].
pub(crate) fn listen(
    device: &Arc<Soft>,
    qual: u64,
    handler: Arc<dyn ListenHandler<Soft>>,
) -> Result<Listener, DeviceError> {
    if qual == 0 {
        return Err(DeviceError::BadAddress);
    }
    device.engine.start()?;
    let address = bound_address(device);
    let mut all = LISTENERS.lock();
    let overlaps = |l: &Arc<Listening>| match (l.address, address) {
        (Some(a), Some(b)) => netif::is_same_address(a, b),
        _ => true,
    };
    if all.get(&qual).is_some_and(|same| same.iter().any(overlaps)) {
        return Err(DeviceError::QualInUse);
    }
    let claim = claim(qual, address)?;
    let listening = Listening::new(device, qual, handler);
    let mut ports = PORTS.lock();
    let port = candidates(qual)
        .find_map(|number| match ports.get(&port_key(device, number)) {
            Some(acceptor) => {
                acceptor.listeners.lock().insert(qual, listening.clone());
                Some(Ok(number))
            }
            None => match open_port(device, number) {
                Err(DeviceError::QualInUse) => None,
                Err(error) => Some(Err(error)),
                Ok(acceptor) => {
                    acceptor.listeners.lock().insert(qual, listening.clone());
                    ports.insert(port_key(device, number), acceptor);
                    Some(Ok(number))
                }
            },
        })
        .unwrap_or(Err(if needs_header(qual) {
            DeviceError::Resources
        } else {
            DeviceError::QualInUse
        }))?;
    drop(ports);
    all.entry(qual).or_default().push(listening.clone());
    Ok(Listener {
        listening,
        port,
        device: device.clone(),
        _claim: claim,
    })
}

/// See [`Device::listen_any`](crate::device::Device::listen_any).
pub(crate) fn listen_any(
    device: &Arc<Soft>,
    handler: Arc<dyn ListenHandler<Soft>>,
) -> Result<(Listener, u64), DeviceError> {
    device.engine.start()?;
    let mut all = LISTENERS.lock();
    let mut ports = PORTS.lock();
    let acceptor = open_port(device, 0).map_err(|error| match error {
        DeviceError::QualInUse => DeviceError::QualUnavailable,
        error => error,
    })?;
    let port = acceptor.port;
    let qual = u64::from(port);
    let listening = Listening::new(device, qual, handler);
    acceptor.listeners.lock().insert(qual, listening.clone());
    ports.insert(port_key(device, port), acceptor);
    all.entry(qual).or_default().push(listening.clone());
    drop(ports);
    let listener = Listener {
        listening,
        port,
        device: device.clone(),
        _claim: None,
    };
    Ok((listener, qual))
}

/// Listens on a port; 0 means any that is free.
fn open_port(device: &Arc<Soft>, number: u16) -> Result<Arc<Acceptor>, DeviceError> {
    let socket = if device.params.bound {
        bind(netif::at_port(device.params.address, number))?
    } else {
        // Without IPv6 in the kernel there is no such socket.
        match bind((Ipv6Addr::UNSPECIFIED, number).into()) {
            Err(DeviceError::BadAddress) => bind((Ipv4Addr::UNSPECIFIED, number).into())?,
            result => result?,
        }
    };
    let bound = kernel::net::getsockname(&socket).map_err(|_| DeviceError::Resources)?;
    let bound = SocketAddr::try_from(bound).map_err(|_| DeviceError::Resources)?;
    let port = bound.port();
    // Before a peer can connect over TCP, so that all processes of this host take the same path.
    let shm_socket = match device.params.path {
        Path::Auto | Path::Shm => local_socket(bound_address(device), port),
        Path::Tcp => None,
    };
    kernel::net::listen(&socket, KERNEL_BACKLOG).map_err(bind_error)?;
    Acceptor::new(device, socket, shm_socket, port)
}

/// The local socket of a port. `None` if there can be none: peers connect over TCP then.
fn local_socket(address: Option<SocketAddr>, port: u16) -> Option<OwnedFd> {
    let mut round = 0;
    loop {
        match shm::listen(address, port) {
            Ok(socket) => return Some(socket),
            // A process that had the port and exits closes the TCP socket first, and this one a moment later.
            Err(Errno::ADDRINUSE) if round < LOCAL_NAME_ROUNDS => relax(round),
            Err(error) => {
                log::warn!(
                    "port {port}: peers on this host connect over TCP, since there is no local socket: {error}"
                );
                return None;
            }
        }
        round += 1;
    }
}

fn bind(address: SocketAddr) -> Result<OwnedFd, DeviceError> {
    let socket = socket::tcp(address.is_ipv6()).map_err(bind_error)?;
    let unspecified = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    sockopt::set_socket_reuseaddr(&socket, true).map_err(bind_error)?;
    if unspecified {
        sockopt::set_ipv6_v6only(&socket, false).map_err(bind_error)?;
    }
    kernel::net::bind(&socket, &address).map_err(bind_error)?;
    Ok(socket)
}

fn bind_error(error: Errno) -> DeviceError {
    match error {
        Errno::ADDRINUSE => DeviceError::QualInUse,
        Errno::ACCESS => DeviceError::QualPrivileged,
        Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::INVAL => DeviceError::BadAddress,
        _ => DeviceError::Resources,
    }
}
