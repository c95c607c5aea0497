//! What public and reserved service points have in common: a listener, and what becomes of a
//! request that arrives.

use std::sync::{Arc, OnceLock, Weak};

use super::cr::Cr;
use super::ep::Ep;
use super::evd::{Evd, Stream};
use super::ia::Ia;
use super::object::device_error;
use super::psp::Psp;
use super::rsp::Rsp;
use super::types::{Event, Handle, Opaque};
use crate::device::{Device, ListenHandler};
use crate::error::{Error, Result, Subtype};
use crate::handle;

/// A service point, as its listener sees it.
pub(super) trait ServicePoint<D: Device>: Send + Sync + 'static {
    /// A request arrived. One that is dropped is refused as if nobody listened.
    fn arrive(&self, request: D::ConnRequest);
}

/// The listener's way to its service point.
pub(super) struct Upcall<T>(OnceLock<Weak<T>>);

impl<T> Upcall<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Upcall(OnceLock::new()))
    }

    /// The service point has its handle: requests may come.
    pub(super) fn open(&self, point: &Arc<T>) {
        let _ = self.0.set(Arc::downgrade(point));
    }
}

impl<D: Device, T: ServicePoint<D>> ListenHandler<D> for Upcall<T> {
    fn request(&self, request: D::ConnRequest) {
        // Before the service point has its handle, and after it is gone, nobody listens.
        if let Some(point) = self.0.get().and_then(Weak::upgrade) {
            point.arrive(request);
        }
    }
}

/// Which qualifier to listen on.
pub(super) enum Qual {
    /// The consumer's choice.
    This(u64),
    /// The device's choice.
    Any,
}

/// Begins to listen; the EVD's length is the backlog.
pub(super) fn listen<D: Device, T: ServicePoint<D>>(
    ia: &Arc<Ia<D>>,
    qual: Qual,
    evd: &Evd<D>,
    upcall: &Arc<Upcall<T>>,
) -> Result<(D::Listener, u64)> {
    let backlog = u32::try_from(evd.qlen()).unwrap_or(u32::MAX);
    let device = &ia.device;
    match qual {
        Qual::This(qual) => device
            .listen(qual, backlog, upcall.clone())
            .map(|listener| (listener, qual)),
        Qual::Any => device.listen_any(backlog, upcall.clone()),
    }
    .map_err(|e| device_error(e, Subtype::ResourceDevice))
}

/// The EVD that a service point is to report to, its stream begun.
pub(super) fn request_evd<D: Device>(
    ia: &Arc<Ia<D>>,
    evd: crate::abi::common::DAT_EVD_HANDLE,
) -> Result<Arc<Evd<D>>> {
    let invalid = Error::handle(Subtype::HandleEvdCr);
    let evd: Arc<Evd<D>> = handle::get_shared(evd).ok_or(invalid)?;
    if !evd.is_of(ia) {
        return Err(invalid);
    }
    evd.attach(Stream::Request)?;
    Ok(evd)
}

/// Makes the CR of a request and reports it; `ep` is the endpoint the request brings. `false`
/// if there was no room: the request is refused.
pub(super) fn report<D: Device>(
    ia: &Arc<Ia<D>>,
    evd: &Evd<D>,
    sp: Handle,
    conn_qual: u64,
    request: D::ConnRequest,
    ep: Option<Arc<Ep<D>>>,
) -> bool {
    let Ok(cr) = Cr::create(ia, request, ep) else {
        return false;
    };
    let event = Event::Request {
        sp,
        local_address: Opaque(ia.address().cast()),
        conn_qual,
        cr: cr.handle(),
    };
    // A full queue is a full backlog.
    let room = evd.push(event);
    if !room {
        cr.withdraw();
    }
    room
}

/// Gives a request to another service point of the IA; the request comes back if there is none.
pub(super) fn hand_over<D: Device>(
    ia: &Ia<D>,
    conn_qual: u64,
    request: D::ConnRequest,
) -> std::result::Result<(), D::ConnRequest> {
    let Some(point) = ia.service_point(conn_qual) else {
        return Err(request);
    };
    if let Some(psp) = handle::get_shared::<Psp<D>>(point.0) {
        psp.arrive(request);
    } else if let Some(rsp) = handle::get_shared::<Rsp<D>>(point.0) {
        rsp.arrive(request);
    } else {
        return Err(request);
    }
    Ok(())
}
