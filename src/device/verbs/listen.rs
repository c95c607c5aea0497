//! Listeners and connection requests.
//!
//! A qualifier that is no port is treated as over TCP: see [`qualifier`].

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::Verbs;
use super::adapter::Target;
use super::cm_event::CmEventData;
use super::datagram::wire::End;
use super::id::CmId;
use super::sys;
use crate::descriptor::OwnedFd;
use crate::device::connection_log::{self, Identity, LogEntry, Path, Step};
use crate::device::netif::at_port;
use crate::device::qualifier::{self, QualHeader, candidates, claim, needs_header};
use crate::device::{ConnectionRequest, DeviceError, KERNEL_BACKLOG, ListenHandler};

/// How many ports that the kernel has chosen are tried until one is free for datagrams too. Exchanges under
/// way have ports of their own.
const PORT_ATTEMPTS: usize = 8;

/// What the service thread needs of a listener when a request arrives.
pub(super) struct ListenerState {
    /// The connection qualifier; `None` if it is the port that the kernel has chosen.
    qual: Option<u64>,
    device: Weak<Verbs>,
    handler: Arc<dyn ListenHandler<Verbs>>,
}

/// A listener. Dropping it stops listening.
pub struct Listener {
    /// The identifiers that listen; dropped first, so that no request arrives afterwards.
    _ids: Ids,
    _state: Arc<ListenerState>,
    /// A name in the system that keeps other processes from a qualifier that is no port.
    _claim: Option<OwnedFd>,
}

/// The identifiers of a listener, at the same port of two port spaces.
struct Ids {
    /// For connections.
    connections: CmId,
    /// For datagrams, unless the device or the kernel has none.
    _datagrams: Option<CmId>,
    /// Another program listens at the port for datagrams.
    is_shared: bool,
}

/// Whether the sender of a request that was not answered has given up.
pub(super) struct RequestState {
    withdrawn: AtomicBool,
}

impl RequestState {
    /// The sender of the request has given up.
    pub fn set_withdrawn(&self) {
        self.withdrawn.store(true, Ordering::Release);
    }
}

/// A connection request.
pub struct ConnRequest {
    /// The identifier of the connection; taken by the answer.
    id: Option<CmId>,
    state: Arc<RequestState>,
    /// The qualifier of the listener.
    pub(super) qual: u64,
    private_data: Box<[u8]>,
    /// Where the peer receives datagrams, if it asks where this end does.
    pub(super) datagrams: Option<End>,
    /// Local address.
    pub(super) local: SocketAddr,
    /// Address of the peer.
    pub(super) remote: SocketAddr,
    /// RDMA reads that the peer answers at a time.
    pub(super) rd_in: u8,
    /// RDMA reads that the peer wants to have outstanding.
    pub(super) rd_out: u8,
    device: Arc<Verbs>,
}

impl ConnRequest {
    /// The identifier, for the answer.
    pub(super) fn take(&mut self) -> Option<CmId> {
        self.id.take()
    }

    /// Whether the sender has given up.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.state.withdrawn.load(Ordering::Acquire)
    }

    /// Rejects the request without the consumer's doing; `id` is its identifier. The kernel would do so in the name of
    /// the consumer.
    pub(super) fn refuse(&self, id: &CmId) {
        self.log(Step::RequestDropped);
        id.reject(&[], false);
    }

    fn log(&self, step: Step) {
        log_step(&self.device, self.qual, self.local, self.remote, step);
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
        Some(self.rd_in.into())
    }

    fn peer_rd_out(&self) -> Option<u32> {
        Some(self.rd_out.into())
    }

    fn is_for_datagrams(&self) -> bool {
        self.datagrams.is_some()
    }
}

impl Drop for ConnRequest {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.refuse(&id);
        }
    }
}

/// Logs a step of a request that has no endpoint.
fn log_step(device: &Verbs, qual: u64, local: SocketAddr, remote: SocketAddr, step: Step) {
    let identity = || Identity {
        endpoint: None,
        addrs: Some((local, remote)),
        qual,
        path: Path::Device(&device.name),
    };
    connection_log::write(LogEntry::step(identity, step));
}

/// A request arrived at a listener. Called by the service thread.
pub(super) fn on_request(listener: &Weak<ListenerState>, event: CmEventData) {
    let Some(id) = event.request else { return };
    let found = listener.upgrade();
    let Some((listener, device)) = found.and_then(|l| {
        let device = l.device.upgrade()?;
        Some((l, device))
    }) else {
        id.reject(&[], false);
        return;
    };
    let (Some(local), Some(remote)) = id.addrs() else {
        return;
    };
    let own_qual = listener.qual.unwrap_or(local.port().into());
    let log = |step| log_step(&device, own_qual, local, remote, step);
    log(Step::RequestArrived);
    let private_data = if needs_header(own_qual) {
        match qualifier::split_header(&event.private_data) {
            Some((QualHeader::Request, qual, data)) if qual == own_qual => data.into(),
            other => {
                // The request is for another qualifier that leads to the same port.
                let answer = other.map_or(Vec::new(), |(_, qual, _)| {
                    qualifier::add_header(QualHeader::NotMine, qual, &[])
                });
                log(Step::RequestDropped);
                id.reject(&answer, !answer.is_empty());
                return;
            }
        }
    } else {
        event.private_data
    };
    let (datagrams, private_data) = if event.for_datagrams {
        match End::split_from(&private_data) {
            Some((end, data)) => (Some(end), data.into()),
            // The sender is not of this library, and does not say where it is to be reached.
            None => {
                log(Step::RequestDropped);
                id.reject(&[], false);
                return;
            }
        }
    } else {
        (None, private_data)
    };
    let state = Arc::new(RequestState {
        withdrawn: AtomicBool::new(false),
    });
    let target = Target::Request(Arc::downgrade(&state));
    device.adapter.retarget(id.token, target);
    listener.handler.request(ConnRequest {
        id: Some(id),
        state,
        qual: own_qual,
        private_data,
        datagrams,
        local,
        remote,
        rd_in: event.rd_in,
        rd_out: event.rd_out,
        device: device.clone(),
    });
}

/// See [`Device::reject`](crate::device::Device::reject). Private data beyond the maximum is
/// cut off.
pub(super) fn reject(device: &Verbs, mut request: ConnRequest, private_data: &[u8]) {
    let data = if request.is_for_datagrams() {
        let max = device.attr.max_datagram_private_data as usize;
        let private_data = End::NONE.add_to(&private_data[..private_data.len().min(max)]);
        qualifier::add_header(QualHeader::Reply, request.qual, &private_data)
    } else {
        let max = device.attr.max_private_data as usize;
        let private_data = &private_data[..private_data.len().min(max)];
        qualifier::add_header(QualHeader::Reply, request.qual, private_data)
    };
    if let Some(id) = request.take() {
        request.log(Step::RequestRejected);
        id.reject(&data, true);
    }
}

/// Listens at one port of a port space.
fn open(
    device: &Arc<Verbs>,
    port_space: c_int,
    port: u16,
    state: &Arc<ListenerState>,
) -> Result<CmId, DeviceError> {
    let target = Target::Listener(Arc::downgrade(state));
    let id = CmId::new(&device.adapter, port_space, target)?;
    id.bind(at_port(device.address, port))
        .and_then(|()| id.listen(KERNEL_BACKLOG))
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => DeviceError::QualInUse,
            Some(libc::EACCES) => DeviceError::QualPrivileged,
            Some(libc::EADDRNOTAVAIL | libc::ENODEV) => DeviceError::BadAddress,
            _ => DeviceError::Resources,
        })?;
    Ok(id)
}

impl Ids {
    /// Listens at one port, 0 for one that the kernel chooses. What keeps requests for datagrams from
    /// arriving is no error.
    fn open(
        device: &Arc<Verbs>,
        port: u16,
        state: &Arc<ListenerState>,
    ) -> Result<Ids, DeviceError> {
        let connections = open(device, sys::PS_TCP, port, state)?;
        let port = connections.port();
        let datagrams = match device.attr.max_datagram {
            0 => Err(DeviceError::Unsupported),
            _ => open(device, sys::PS_UDP, port, state),
        };
        Ok(Ids {
            connections,
            is_shared: matches!(datagrams, Err(DeviceError::QualInUse)),
            _datagrams: datagrams.ok(),
        })
    }

    /// Listens at the first of these ports that no other program has, for datagrams either if there is
    /// such a port.
    fn open_first(
        device: &Arc<Verbs>,
        ports: impl Iterator<Item = u16>,
        state: &Arc<ListenerState>,
    ) -> Result<Ids, DeviceError> {
        let mut result = Err(DeviceError::QualInUse);
        for port in ports {
            match Ids::open(device, port, state) {
                Ok(ids) if !ids.is_shared => return Ok(ids),
                Ok(ids) => result = result.or(Ok(ids)),
                Err(DeviceError::QualInUse) => {}
                Err(error) => return result.map_err(|_: DeviceError| error),
            }
        }
        result
    }
}

fn new(
    device: &Arc<Verbs>,
    qual: Option<u64>,
    handler: Arc<dyn ListenHandler<Verbs>>,
) -> Result<Arc<ListenerState>, DeviceError> {
    if !device.start_service() {
        return Err(DeviceError::Resources);
    }
    Ok(Arc::new(ListenerState {
        qual,
        device: Arc::downgrade(device),
        handler,
    }))
}

/// See [`Device::listen`](crate::device::Device::listen). Qualifier 0 is refused with
/// [`DeviceError::BadAddress`].
pub(super) fn listen(
    device: &Arc<Verbs>,
    qual: u64,
    handler: Arc<dyn ListenHandler<Verbs>>,
) -> Result<Listener, DeviceError> {
    qualifier::check(qual)?;
    let state = new(device, Some(qual), handler)?;
    let claim = claim(qual, Some(device.address))?;
    let ids = Ids::open_first(device, candidates(qual), &state).map_err(|error| match error {
        // Other programs listen on its ports, but not for the qualifier.
        DeviceError::QualInUse if needs_header(qual) => DeviceError::Resources,
        error => error,
    })?;
    Ok(Listener {
        _ids: ids,
        _state: state,
        _claim: claim,
    })
}

/// See [`Device::listen_any`](crate::device::Device::listen_any).
pub(super) fn listen_any(
    device: &Arc<Verbs>,
    handler: Arc<dyn ListenHandler<Verbs>>,
) -> Result<(Listener, u64), DeviceError> {
    let state = new(device, None, handler)?;
    // The kernel chooses a port that is free for connections, and each time another one.
    let ports = [0; PORT_ATTEMPTS].into_iter();
    let ids = Ids::open_first(device, ports, &state).map_err(|error| match error {
        DeviceError::QualInUse => DeviceError::QualUnavailable,
        error => error,
    })?;
    let port = ids.connections.port();
    let listener = Listener {
        _ids: ids,
        _state: state,
        _claim: None,
    };
    Ok((listener, port.into()))
}
