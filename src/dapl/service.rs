//! What public and reserved service points have in common: a listener, and the report of a
//! request that arrives.

use std::sync::{Arc, OnceLock, Weak};

use super::boundary::device_error;
use super::cr::Cr;
use super::ep::Ep;
use super::evd::{Evd, EvdUse, Queued, Stream};
use super::ia::Ia;
use super::types::{Event, Handle, Opaque};
use crate::abi::common::{DAT_EVD_HANDLE, DAT_IA_ADDRESS_PTR};
use crate::abi::v2::{DCNT_IA_CM_AH_REQ_RX, DCNT_IA_CM_LISTEN, DCNT_IA_CM_REQ_RX, DCNT_IA_SP_CR};
use crate::delay;
use crate::device::{Device, DeviceError, ListenHandler, qualifier};
use crate::error::{Error, Result, Subtype};
use crate::handle;
use crate::lock::Mutex;
use crate::reserve;

/// The most requests that are kept for a service point which has no handle yet.
const MOST_EARLY: usize = 64;

/// The handler of a listener: passes requests to its service point.
pub(super) struct Upcall<D: Device, T> {
    /// The service point, once it has its handle.
    point: OnceLock<Weak<T>>,
    /// Requests that have arrived before: a peer may have waited for the listener.
    early: Mutex<Vec<D::ConnRequest>>,
}

impl<D: Device, T: ListenHandler<D>> Upcall<D, T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Upcall {
            point: OnceLock::new(),
            early: Mutex::new(Vec::new()),
        })
    }

    /// The service point has its handle: it gets the requests that have arrived, and those that will.
    pub(super) fn open(&self, point: &Arc<T>) {
        delay::point("service.open");
        let mut early = self.early.lock();
        let _ = self.point.set(Arc::downgrade(point));
        let requests = std::mem::take(&mut *early);
        drop(early);
        for request in requests {
            point.request(request);
        }
    }

    /// Keeps a request for [`Upcall::open`]; gives back one that is not to be kept.
    #[cold]
    fn keep(&self, request: D::ConnRequest) -> Option<D::ConnRequest> {
        let mut early = self.early.lock();
        let is_kept =
            self.point.get().is_none() && early.len() < MOST_EARLY && early.try_reserve(1).is_ok();
        if !is_kept {
            return Some(request);
        }
        early.push(request);
        None
    }
}

impl<D: Device, T: ListenHandler<D>> ListenHandler<D> for Upcall<D, T> {
    fn request(&self, request: D::ConnRequest) {
        // A request that arrives after the service point is freed is dropped, which refuses it as if there were
        // no listener. So is one for which there is no memory.
        if !reserve::fill() {
            return;
        }
        let request = match self.point.get() {
            Some(_) => Some(request),
            None => self.keep(request),
        };
        if let Some(request) = request
            && let Some(point) = self.point.get().and_then(Weak::upgrade)
        {
            point.request(request);
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

/// A listener whose requests go to an EVD. Dropping it stops listening.
pub(super) struct Listening<D: Device> {
    // In this order: when the stream ends, no request arrives any more.
    _listener: D::Listener,
    _stream: EvdUse<D>,
}

/// Listens for a qualifier. Consumers need no privilege for any of them: where the process may not open the
/// port of this one, the listener has another.
fn listen_for<D: Device, T: ListenHandler<D> + 'static>(
    device: &Arc<D>,
    qual: u64,
    upcall: &Arc<Upcall<D, T>>,
) -> std::result::Result<D::Listener, DeviceError> {
    let result = device.listen(qual, upcall.clone());
    match (result, qualifier::substitute(qual)) {
        (Err(DeviceError::QualPrivileged), Some(other)) => device.listen(other, upcall.clone()),
        (result, _) => result,
    }
}

/// Begins to listen; the queue of the EVD is the backlog. Gives the qualifier and the EVD too.
///
/// # Errors
/// `DAT_INVALID_PARAMETER` for qualifier 0, which names nothing, `DAT_INVALID_HANDLE` for an EVD that
/// is of another IA or takes no requests, and those of the device.
pub(super) fn listen<D: Device, T: ListenHandler<D> + 'static>(
    ia: &Arc<Ia<D>>,
    qual: Qual,
    evd: DAT_EVD_HANDLE,
    upcall: &Arc<Upcall<D, T>>,
) -> Result<(Listening<D>, u64, Arc<Evd<D>>)> {
    if matches!(qual, Qual::This(0)) {
        return Err(Error::arg(Subtype::Arg2));
    }
    let invalid = Error::handle(Stream::Request.invalid());
    let evd: Arc<Evd<D>> = handle::get_shared(evd).ok_or(invalid)?;
    let stream = EvdUse::begin(ia, evd.clone(), Stream::Request)?;
    let device = &ia.device;
    let (listener, qual) = match qual {
        Qual::This(qual) => listen_for(device, qual, upcall).map(|listener| (listener, qual)),
        Qual::Any => device.listen_any(upcall.clone()),
    }
    .map_err(|e| device_error(e, Subtype::ResourceDevice))?;
    ia.count(DCNT_IA_CM_LISTEN);
    let listening = Listening {
        _listener: listener,
        _stream: stream,
    };
    Ok((listening, qual, evd))
}

/// A request that has arrived at a service point.
pub(super) struct Arrival<'a, D: Device> {
    /// The EVD of the service point.
    evd: &'a Evd<D>,
    /// The request.
    cr: Arc<Cr<D>>,
    /// The service point.
    sp: Handle,
    /// The qualifier that the service point listens on.
    conn_qual: u64,
    /// The address of the IA.
    local_address: DAT_IA_ADDRESS_PTR,
}

impl<'a, D: Device> Arrival<'a, D> {
    /// Makes the CR of a request; `ep` is the endpoint of the request. `None` if that cannot be
    /// made, which refuses the request.
    pub(super) fn new(
        ia: &Arc<Ia<D>>,
        evd: &'a Evd<D>,
        sp: Handle,
        conn_qual: u64,
        request: D::ConnRequest,
        ep: Option<Arc<Ep<D>>>,
    ) -> Option<Self> {
        let cr = Cr::create(ia, request, ep).ok()?;
        ia.count(DCNT_IA_SP_CR);
        ia.count(match cr.is_for_datagrams() {
            true => DCNT_IA_CM_AH_REQ_RX,
            false => DCNT_IA_CM_REQ_RX,
        });
        delay::point("service.report");
        Some(Arrival {
            evd,
            cr,
            sp,
            conn_qual,
            local_address: ia.address(),
        })
    }

    /// Queues the event. The caller holds the lock of the service point, which is not freed: so no
    /// event of a freed service point is queued.
    pub(super) fn queue(&self) -> Queued {
        self.evd.queue(Event::Request {
            sp: self.sp,
            local_address: Opaque(self.local_address.cast()),
            conn_qual: self.conn_qual,
            cr: self.cr.handle(),
            datagrams: self.cr.is_for_datagrams(),
        })
    }

    /// Notifies the consumer of the event, or refuses the request if there is none. A full queue is
    /// a full backlog. The caller holds no lock.
    pub(super) fn report(self, queued: Queued) {
        self.evd.report(queued);
        if queued != Queued::Yes {
            self.cr.withdraw(queued == Queued::Closed);
        }
    }
}
