//! Setting up connections: connect, accept, reject.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Soft;
use super::listen::{self, ConnRequest, Listening, Origin};
use super::params::{Path, is_own_address};
use super::qp::{Link, Qp};
use super::side::Phase;
use super::upcall::Upcalls;
use crate::device::{CmEvent, DeviceError};

/// Private data of the consumer, each way. An MPA frame holds 512 bytes; 4 are for the read
/// depths (RFC 6581), 16 for a wide qualifier.
pub(super) const MAX_PRIVATE: usize = 512 - 4 - 16;

/// See [`Device::connect`](crate::device::Device::connect). Qualifier 0 names nothing and is
/// refused with [`DeviceError::BadAddress`]; a queue pair that is connected, or about to be,
/// with [`DeviceError::Unsupported`].
pub(super) fn connect(
    device: &Arc<Soft>,
    qp: &Arc<Qp>,
    remote: SocketAddr,
    qual: u64,
    timeout: Option<Duration>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    let ip = remote.ip();
    if qual == 0 || ip.is_multicast() || ip.is_unspecified() {
        return Err(DeviceError::BadAddress);
    }
    if private_data.len() > MAX_PRIVATE {
        return Err(DeviceError::Limit);
    }
    device.engine.start()?;
    let port = u16::try_from(qual).unwrap_or(0);
    let target = SocketAddr::new(ip, port);
    let attempt = qp.begin(Some((device.params.address, target)))?;
    let timer = timeout.map(|timeout| {
        let qp = Arc::downgrade(qp);
        device.engine.timer(timeout, move |up| {
            if let Some(qp) = qp.upgrade() {
                qp.give_up(attempt, CmEvent::TimedOut, up);
            }
        })
    });
    qp.with(|v| {
        if v.me.phase == Phase::Connecting && v.me.attempt == attempt {
            *v.link = Link::Pending(timer);
        }
    });
    let here = device.params.path == Path::Auto && is_own_address(ip);
    let mut up = Upcalls::default();
    match here.then(|| listen::find(ip, qual)).flatten() {
        Some(listening) => request_here(qp, attempt, listening, target, private_data, &mut up),
        None => qp.give_up(attempt, CmEvent::NonPeerRejected, &mut up),
    }
    up.defer(device);
    Ok(())
}

/// A request to a listener of this process.
fn request_here(
    qp: &Arc<Qp>,
    attempt: u64,
    listening: Arc<Listening>,
    target: SocketAddr,
    private_data: &[u8],
    up: &mut Upcalls,
) {
    let request = ConnRequest {
        origin: Some(Origin::Loop {
            active: Arc::downgrade(qp),
            attempt,
        }),
        device: qp.device.clone(),
        private_data: private_data.into(),
        local: target,
        remote: qp.device.params.address,
        rd_in: Some(qp.id.attr.max_rd_in),
        rd_out: Some(qp.id.attr.max_rd_out),
    };
    up.request(listening, request);
}

/// See [`Device::accept`](crate::device::Device::accept).
pub(super) fn accept(
    mut request: ConnRequest,
    qp: &Arc<Qp>,
    private_data: &[u8],
) -> Result<(), DeviceError> {
    if private_data.len() > MAX_PRIVATE {
        return Err(DeviceError::Limit);
    }
    let mut up = Upcalls::default();
    match request.origin.take() {
        None => Err(DeviceError::RequestGone),
        Some(Origin::Loop { active, attempt }) => {
            let active = active.upgrade().ok_or(DeviceError::RequestGone)?;
            let addrs = (request.remote, request.local);
            let done = Qp::pair(&active, attempt, qp, addrs, private_data, &mut up);
            if !done {
                active.give_up(attempt, CmEvent::NonPeerRejected, &mut up);
            }
            up.defer(&qp.device);
            if done {
                Ok(())
            } else {
                Err(DeviceError::RequestGone)
            }
        }
    }
}

/// See [`Device::reject`](crate::device::Device::reject). Private data beyond the maximum is
/// cut off.
pub(super) fn reject(mut request: ConnRequest, private_data: &[u8]) {
    let private_data = private_data[..private_data.len().min(MAX_PRIVATE)].into();
    refuse(&mut request, CmEvent::PeerRejected { private_data });
}

/// Answers a request, unless it was answered, so that its sender sees `event`.
pub(super) fn refuse(request: &mut ConnRequest, event: CmEvent) {
    match request.origin.take() {
        None => {}
        Some(Origin::Loop { active, attempt }) => {
            if let Some(active) = active.upgrade() {
                let mut up = Upcalls::default();
                active.give_up(attempt, event, &mut up);
                up.defer(&request.device);
            }
        }
    }
}
