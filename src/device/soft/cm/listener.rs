//! Listeners, and how a connection qualifier leads to one: see [`qualifier`](crate::device::qualifier).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::acceptor::{Asked, Port};
use super::failure::Trouble;
use super::socket;
use crate::device::qualifier::{candidates, claim, needs_header};
use crate::device::soft::Soft;
use crate::device::soft::params::Path;
use crate::device::soft::qp::Qp;
use crate::device::soft::transport::shm;
use crate::device::{CmEvent, ConnectionRequest, DeviceError, ListenHandler};

/// A listener, as those see it who have a request for it.
pub(crate) struct Listening {
    qual: u64,
    /// The address it is bound to; all if `None`.
    address: Option<IpAddr>,
    open: AtomicBool,
    handler: Arc<dyn ListenHandler<Soft>>,
}

impl Listening {
    /// Gives a request to the consumer, or refuses it if the listener is gone.
    pub fn hand_over(&self, request: ConnRequest) {
        if self.open.load(Ordering::Acquire) {
            self.handler.request(request);
        }
    }

    fn answers(&self, address: IpAddr) -> bool {
        self.address.is_none_or(|own| own == address)
    }
}

/// All listeners of the process by qualifier: what is found here is reached without TCP.
static LISTENERS: LazyLock<Mutex<HashMap<u64, Vec<Arc<Listening>>>>> =
    LazyLock::new(Mutex::default);

/// The listener of this process for a qualifier at one of its addresses.
pub(crate) fn find(address: IpAddr, qual: u64) -> Option<Arc<Listening>> {
    let address = address.to_canonical();
    let all = LISTENERS.lock();
    let found = all.get(&qual)?.iter().find(|l| l.answers(address));
    found.cloned()
}

/// The open ports of a device.
#[derive(Default)]
pub(crate) struct Ports {
    open: Mutex<HashMap<u16, Arc<Port>>>,
}

/// A listener. Dropping it stops listening.
pub struct Listener {
    listening: Arc<Listening>,
    port: u16,
    device: Arc<Soft>,
    /// A name in the system that keeps others from a wide qualifier.
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
        let mut ports = self.device.ports.open.lock();
        let unused = ports.get(&self.port).is_some_and(|port| {
            let mut quals = port.quals.lock();
            quals.remove(&this.qual);
            quals.is_empty()
        });
        let port = if unused {
            ports.remove(&self.port)
        } else {
            None
        };
        drop(ports);
        if let Some(port) = port {
            port.close();
        }
    }
}

/// See [`Device::listen`](crate::device::Device::listen). Qualifier 0 is refused with
/// [`DeviceError::BadAddress`].
pub(crate) fn listen(
    device: &Arc<Soft>,
    qual: u64,
    backlog: u32,
    handler: Arc<dyn ListenHandler<Soft>>,
) -> Result<Listener, DeviceError> {
    if qual == 0 {
        return Err(DeviceError::BadAddress);
    }
    device.engine.start()?;
    let address = device.params.bound.then(|| device.params.address.ip());
    let mut all = LISTENERS.lock();
    let overlaps = |l: &Arc<Listening>| match (l.address, address) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    if all.get(&qual).is_some_and(|same| same.iter().any(overlaps)) {
        return Err(DeviceError::QualInUse);
    }
    let claim = claim(qual, address)?;
    let listening = Arc::new(Listening {
        qual,
        address,
        open: AtomicBool::new(true),
        handler,
    });
    let mut ports = device.ports.open.lock();
    let port = candidates(qual)
        .find_map(|number| match ports.get(&number) {
            Some(port) => {
                port.quals.lock().insert(qual, listening.clone());
                Some(Ok(number))
            }
            None => match open_port(device, number, backlog) {
                Err(DeviceError::QualInUse) => None,
                Err(error) => Some(Err(error)),
                Ok((_, port)) => {
                    port.quals.lock().insert(qual, listening.clone());
                    ports.insert(number, port);
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
    backlog: u32,
    handler: Arc<dyn ListenHandler<Soft>>,
) -> Result<(Listener, u64), DeviceError> {
    device.engine.start()?;
    let mut all = LISTENERS.lock();
    let mut ports = device.ports.open.lock();
    let (number, port) = open_port(device, 0, backlog).map_err(|error| match error {
        DeviceError::QualInUse => DeviceError::QualUnavailable,
        error => error,
    })?;
    let qual = u64::from(number);
    let listening = Arc::new(Listening {
        qual,
        address: device.params.bound.then(|| device.params.address.ip()),
        open: AtomicBool::new(true),
        handler,
    });
    port.quals.lock().insert(qual, listening.clone());
    ports.insert(number, port);
    all.entry(qual).or_default().push(listening.clone());
    drop(ports);
    let listener = Listener {
        listening,
        port: number,
        device: device.clone(),
        _claim: None,
    };
    Ok((listener, qual))
}

/// Opens a port, any if `number` is 0.
fn open_port(
    device: &Arc<Soft>,
    number: u16,
    backlog: u32,
) -> Result<(u16, Arc<Port>), DeviceError> {
    let socket = if device.params.bound {
        let mut address = device.params.address;
        address.set_port(number);
        bind(address)?
    } else {
        // Without IPv6 in the kernel there is no such socket.
        match bind((Ipv6Addr::UNSPECIFIED, number).into()) {
            Err(DeviceError::BadAddress) => bind((Ipv4Addr::UNSPECIFIED, number).into())?,
            result => result?,
        }
    };
    let bound = rustix::net::getsockname(&socket).map_err(|_| DeviceError::Resources)?;
    let bound = SocketAddr::try_from(bound).map_err(|_| DeviceError::Resources)?;
    let port = bound.port();
    // Before anybody can connect, so that all of this host take the same path. Somebody else may
    // have the name; then there is TCP.
    let door = match device.params.path {
        Path::Auto | Path::Shm => {
            let own = device.params.bound.then(|| device.params.address.ip());
            shm::listen(own, port).ok()
        }
        Path::Tcp => None,
    };
    // Connections are taken at once, and it is their requests that wait for the consumer. A
    // short queue in the kernel would only make connectors wait that come at the same time.
    let backlog = backlog.clamp(1024, 65536) as i32;
    rustix::net::listen(&socket, backlog).map_err(bind_error)?;
    Ok((port, Port::new(device, socket, door, port)?))
}

fn bind(address: SocketAddr) -> Result<OwnedFd, DeviceError> {
    let socket = socket::tcp(address.is_ipv6()).map_err(bind_error)?;
    let unspecified = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    sockopt::set_socket_reuseaddr(&socket, true).map_err(bind_error)?;
    if unspecified {
        sockopt::set_ipv6_v6only(&socket, false).map_err(bind_error)?;
    }
    rustix::net::bind(&socket, &address).map_err(bind_error)?;
    Ok(socket)
}

fn bind_error(error: Errno) -> DeviceError {
    match error {
        Errno::ADDRINUSE => DeviceError::QualInUse,
        Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::INVAL => DeviceError::BadAddress,
        _ => DeviceError::Resources,
    }
}

/// Where a request came from, and where the answer goes.
pub(crate) enum Origin {
    /// A queue pair of this process, at its n-th attempt.
    Loop {
        /// The queue pair that connects.
        active: Weak<Qp>,
        /// Its attempt.
        attempt: u64,
    },
    /// A TCP connection.
    Tcp(Asked),
}

/// A connection request.
pub struct ConnRequest {
    /// Taken by the answer.
    pub(crate) origin: Option<Origin>,
    /// The qualifier it came to.
    pub(crate) qual: u64,
    pub(crate) private_data: Box<[u8]>,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) rd_in: Option<u32>,
    pub(crate) rd_out: Option<u32>,
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

    fn peer_rd_in(&self) -> Option<u32> {
        self.rd_in
    }

    fn peer_rd_out(&self) -> Option<u32> {
        self.rd_out
    }
}

impl Drop for ConnRequest {
    fn drop(&mut self) {
        crate::device::soft::cm::refuse(self, CmEvent::NonPeerRejected, &Trouble::Dropped);
    }
}
