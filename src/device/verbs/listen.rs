//! Listeners and connection requests.
//!
//! A qualifier up to 65535 is a port of rdma_cm. A wider one is spread over a few ports and
//! named in the private data, in the same way as over TCP (see the soft device).

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::Verbs;
use super::adapter::{Target, check};
use super::connect::News;
use super::id::CmId;
use crate::device::netif::at_port;
use crate::device::qualifier::{self, QualHeader, candidates, claim, needs_header};
use crate::device::{ConnectionRequest, DeviceError, ListenHandler};

/// A listener, as requests find it.
pub(super) struct Listening {
    qual: u64,
    device: Weak<Verbs>,
    handler: Arc<dyn ListenHandler<Verbs>>,
}

/// A listener. Dropping it stops listening.
pub struct Listener {
    /// Before the rest: no request comes after it is gone.
    _id: CmId,
    _listening: Arc<Listening>,
    /// A name in the system that keeps others from a wide qualifier.
    _claim: Option<OwnedFd>,
}

/// Whether a request still has its peer.
pub(super) struct Pending(AtomicBool);

impl Pending {
    /// The peer has given up.
    pub fn gone(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A connection request.
pub struct ConnRequest {
    /// Taken by the answer.
    id: Option<CmId>,
    pending: Arc<Pending>,
    /// The qualifier it came to.
    pub(super) qual: u64,
    private_data: Box<[u8]>,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) rd_in: u8,
    pub(super) rd_out: u8,
    _device: Arc<Verbs>,
}

impl ConnRequest {
    /// The identifier, for the answer.
    pub(super) fn take(&mut self) -> Option<CmId> {
        self.id.take()
    }

    /// Whether the peer has given up.
    pub(super) fn is_gone(&self) -> bool {
        self.pending.0.load(Ordering::Acquire)
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

    fn peer_rd_in(&self) -> Option<u32> {
        Some(self.rd_in.into())
    }

    fn peer_rd_out(&self) -> Option<u32> {
        Some(self.rd_out.into())
    }
}

impl Drop for ConnRequest {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            id.reject(&[], false);
        }
    }
}

/// A request has come. Called by the service thread.
pub(super) fn on_request(listening: &Weak<Listening>, news: News) {
    let Some(id) = news.request else { return };
    let found = listening.upgrade();
    let Some((listening, device)) = found.and_then(|l| {
        let device = l.device.upgrade()?;
        Some((l, device))
    }) else {
        id.reject(&[], false);
        return;
    };
    let private_data = if needs_header(listening.qual) {
        match qualifier::split_header(&news.private_data) {
            Some((QualHeader::Request, qual, data)) if qual == listening.qual => data.into(),
            other => {
                // It wants another qualifier that led to the same port.
                let answer = other.map_or(Vec::new(), |(_, qual, _)| {
                    qualifier::add_header(QualHeader::NotMine, qual, &[])
                });
                id.reject(&answer, !answer.is_empty());
                return;
            }
        }
    } else {
        news.private_data
    };
    let (Some(local), Some(remote)) = id.addrs() else {
        return;
    };
    let pending = Arc::new(Pending(AtomicBool::new(false)));
    let target = Target::Request(Arc::downgrade(&pending));
    device.adapter.redirect(id.token, target);
    listening.handler.request(ConnRequest {
        id: Some(id),
        pending,
        qual: listening.qual,
        private_data,
        local,
        remote,
        rd_in: news.rd_in,
        rd_out: news.rd_out,
        _device: device.clone(),
    });
}

/// See [`Device::reject`](crate::device::Device::reject). Private data beyond the maximum is
/// cut off.
pub(super) fn reject(device: &Verbs, mut request: ConnRequest, private_data: &[u8]) {
    let mut data = qualifier::add_header(QualHeader::Reply, request.qual, private_data);
    data.truncate(device.max_private);
    if let Some(id) = request.take() {
        id.reject(&data, true);
    }
}

/// Listens at one port.
fn open(
    device: &Arc<Verbs>,
    port: u16,
    backlog: u32,
    listening: &Arc<Listening>,
) -> Result<CmId, DeviceError> {
    let id = CmId::new(&device.adapter, Target::Listener(Arc::downgrade(listening)))?;
    let backlog = backlog.clamp(1024, 65536) as i32;
    id.bind(at_port(device.address, port))
        // SAFETY: the id is valid.
        .and_then(|()| check(unsafe { (device.adapter.lib.rdma_listen)(id.raw, backlog) }))
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => DeviceError::QualInUse,
            Some(libc::EADDRNOTAVAIL | libc::ENODEV) => DeviceError::BadAddress,
            _ => DeviceError::Resources,
        })?;
    Ok(id)
}

fn new(
    device: &Arc<Verbs>,
    qual: u64,
    handler: Arc<dyn ListenHandler<Verbs>>,
) -> Result<Arc<Listening>, DeviceError> {
    if !device.start_service() {
        return Err(DeviceError::Resources);
    }
    Ok(Arc::new(Listening {
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
    backlog: u32,
    handler: Arc<dyn ListenHandler<Verbs>>,
) -> Result<Listener, DeviceError> {
    qualifier::check(qual)?;
    let listening = new(device, qual, handler)?;
    let claim = claim(qual, Some(device.address.ip()))?;
    let mut last = DeviceError::QualInUse;
    for port in candidates(qual) {
        match open(device, port, backlog, &listening) {
            Ok(id) => {
                return Ok(Listener {
                    _id: id,
                    _listening: listening,
                    _claim: claim,
                });
            }
            Err(error) => last = error,
        }
        if last != DeviceError::QualInUse {
            break;
        }
    }
    Err(match last {
        // Others have its ports, but not the qualifier.
        DeviceError::QualInUse if needs_header(qual) => DeviceError::Resources,
        error => error,
    })
}

/// See [`Device::listen_any`](crate::device::Device::listen_any).
pub(super) fn listen_any(
    device: &Arc<Verbs>,
    backlog: u32,
    handler: Arc<dyn ListenHandler<Verbs>>,
) -> Result<(Listener, u64), DeviceError> {
    let listening = new(device, 1, handler)?;
    let id = open(device, 0, backlog, &listening).map_err(|error| match error {
        DeviceError::QualInUse => DeviceError::QualUnavailable,
        error => error,
    })?;
    // SAFETY: the id is valid.
    let port = u16::from_be(unsafe { (device.adapter.lib.rdma_get_src_port)(id.raw) });
    let listener = Listener {
        _id: id,
        _listening: listening,
        _claim: None,
    };
    Ok((listener, port.into()))
}
