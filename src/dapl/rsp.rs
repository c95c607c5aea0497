//! Reserved service points: `dat_rsp_create`, `dat_rsp_query`, `dat_rsp_free`.

use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use super::abi::Abi;
use super::boundary::{answer_query, boundary, creation, non_null};
use super::ep::{Ep, RequestAddrs};
use super::evd::{Evd, Queued};
use super::ia::{Child, Ia, ServicePoint, lookup_ia};
use super::object::{Base, dat_object, lookup, lookup_opt, publish, unpublish};
use super::service::{Arrival, Listening, Qual, Upcall, listen};
use crate::abi::common::*;
use crate::device::{ConnectionRequest, Device, ListenHandler};
use crate::error::{Error, Result, Subtype};

/// A reserved service point: takes exactly one connection request, for a reserved endpoint.
#[repr(align(64))]
pub struct Rsp<D: Device> {
    base: Base<D>,
    conn_qual: u64,
    /// The EVD for the event of the request.
    evd: Arc<Evd<D>>,
    state: Mutex<State<D>>,
}

struct State<D: Device> {
    /// The reserved endpoint; `None` if the provider is to make one for the request.
    ep: Option<Arc<Ep<D>>>,
    /// A request has arrived.
    request_arrived: bool,
    /// The request has the reserved endpoint, which the RSP has nothing more to do with.
    ep_taken: bool,
    /// `None` once the RSP is freed.
    listening: Option<Listening<D>>,
}

dat_object!(Rsp, Rsp, HandleRsp);

impl<D: Device> Child for Rsp<D> {
    fn destroy(&self) {
        let _ = self.free();
    }
}

impl<D: Device> ListenHandler<D> for Rsp<D> {
    fn request(&self, request: D::ConnRequest) {
        // A request that is given back is dropped, which refuses the peer.
        let _ = self.take(request);
    }
}

impl<D: Device> ServicePoint<D> for Rsp<D> {
    fn take(&self, request: D::ConnRequest) -> std::result::Result<(), D::ConnRequest> {
        // The request of an RSP is for a connection.
        if request.is_for_datagrams() {
            return Err(request);
        }
        let reserved = {
            let mut state = self.state.lock();
            if state.request_arrived || state.listening.is_none() {
                return Err(request);
            }
            state.request_arrived = true;
            state.ep.clone()
        };
        self.arrived(request, reserved);
        Ok(())
    }
}

impl<D: Device> Rsp<D> {
    /// The one request that the RSP takes has arrived, for the reserved endpoint or one that the
    /// provider makes.
    fn arrived(&self, request: D::ConnRequest, reserved: Option<Arc<Ep<D>>>) {
        let ia = &self.base.ia;
        let addrs = RequestAddrs::of(&request);
        let ep = match &reserved {
            Some(ep) => ep.clone(),
            None => {
                let Ok(ep) = Ep::create_tentative(ia, &addrs) else {
                    return self.await_another();
                };
                ep
            }
        };
        let (evd, sp) = (&self.evd, self.handle());
        let Some(arrival) = Arrival::new(ia, evd, sp, self.conn_qual, request, Some(ep)) else {
            return self.await_another();
        };
        // Under the lock: the RSP is freed before the request has the endpoint, or when the event is
        // there.
        let mut state = self.state.lock();
        let taken = state.listening.is_some()
            && reserved.is_none_or(|ep| ep.take_request(ia, &addrs).is_ok());
        state.ep_taken = taken;
        let queued = match taken {
            true => arrival.queue(),
            false => Queued::Closed,
        };
        drop(state);
        arrival.report(queued);
        if queued == Queued::Full {
            self.await_another();
        }
    }

    /// The request was refused, as there was no room for its event, or no memory. The next one may be taken.
    fn await_another(&self) {
        let mut state = self.state.lock();
        if state.listening.is_none() {
            return;
        }
        // The endpoint may have been the program's for a moment, and may be in use.
        let (from, to) = (DAT_EP_STATE_UNCONNECTED, DAT_EP_STATE_RESERVED);
        let is_reserved = state
            .ep
            .as_ref()
            .is_none_or(|ep| ep.state() == to || ep.change_state(&self.base.ia, from, to).is_ok());
        state.ep_taken &= !is_reserved;
        state.request_arrived = !is_reserved;
    }

    fn create(
        ia: &Arc<Ia<D>>,
        conn_qual: u64,
        ep: Option<Arc<Ep<D>>>,
        evd: DAT_EVD_HANDLE,
    ) -> Result<Arc<Self>> {
        if let Some(ep) = &ep {
            // It could not accept the one request that arrives.
            if ep.is_for_datagrams() {
                return Err(Error::handle(Subtype::HandleEp));
            }
            ep.change_state(ia, DAT_EP_STATE_UNCONNECTED, DAT_EP_STATE_RESERVED)?;
        }
        let upcall = Upcall::new();
        let (listening, _, evd) = listen(ia, Qual::This(conn_qual), evd, &upcall)
            .inspect_err(|_| give_back(ia, ep.as_deref()))?;
        let rsp = Arc::new(Rsp {
            base: Base::new(ia.clone()),
            conn_qual,
            evd,
            state: Mutex::new(State {
                ep,
                request_arrived: false,
                ep_taken: false,
                listening: Some(listening),
            }),
        });
        publish(&rsp).inspect_err(|_| {
            rsp.stop();
        })?;
        let point: Weak<Self> = Arc::downgrade(&rsp);
        ia.add_service_point(conn_qual, rsp.handle(), point);
        upcall.open(&rsp);
        Ok(rsp)
    }

    /// Stops listening and gives the endpoint back, unless a request took it. `false` if that
    /// has happened before.
    fn stop(&self) -> bool {
        let ia = &self.base.ia;
        let mut state = self.state.lock();
        let Some(listening) = state.listening.take() else {
            return false;
        };
        let ep = state.ep.take().filter(|_| !state.ep_taken);
        drop(state);
        drop(listening);
        give_back(ia, ep.as_deref());
        true
    }

    fn free(&self) -> Result<()> {
        if !self.stop() {
            return Err(Error::handle(Subtype::HandleRsp));
        }
        let ia = &self.base.ia;
        ia.remove_service_point(self.conn_qual, self.handle());
        unpublish(self);
        Ok(())
    }
}

/// The endpoint is no longer reserved.
fn give_back<D: Device>(ia: &Arc<Ia<D>>, ep: Option<&Ep<D>>) {
    if let Some(ep) = ep {
        let _ = ep.change_state(ia, DAT_EP_STATE_RESERVED, DAT_EP_STATE_UNCONNECTED);
    }
}

/// `dat_rsp_create`.
///
/// # Safety
/// `rsp_handle` is NULL or points to memory for a handle.
pub unsafe extern "C" fn rsp_create<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    conn_qual: DAT_CONN_QUAL,
    ep_handle: DAT_EP_HANDLE,
    evd_handle: DAT_EVD_HANDLE,
    rsp_handle: *mut DAT_RSP_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        let ep: Option<Arc<Ep<D>>> = lookup_opt(ep_handle, Subtype::HandleEp)?;
        non_null(rsp_handle, Subtype::Arg5)?;
        let rsp = Rsp::create(&ia, conn_qual, ep, evd_handle)?;
        // SAFETY: not NULL.
        unsafe { rsp_handle.write(rsp.handle().0) };
        Ok(())
    })
}

/// `dat_rsp_query`.
///
/// # Safety
/// `rsp_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn rsp_query<A: Abi, D: Device>(
    rsp_handle: DAT_RSP_HANDLE,
    mask: DAT_RSP_PARAM_MASK,
    rsp_param: *mut DAT_RSP_PARAM,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let rsp: Arc<Rsp<D>> = lookup(rsp_handle)?;
        let read = || {
            let ep = rsp.state.lock().ep.as_ref().map(|ep| ep.handle().0);
            Ok(DAT_RSP_PARAM {
                ia_handle: rsp.base.ia.handle().0,
                conn_qual: rsp.conn_qual,
                evd_handle: rsp.evd.handle().0,
                ep_handle: ep.unwrap_or(DAT_HANDLE_NULL),
            })
        };
        // SAFETY: the caller's promise.
        unsafe { answer_query(mask.into(), DAT_RSP_FIELD_ALL.into(), rsp_param, read) }
    })
}

/// `dat_rsp_free`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn rsp_free<A: Abi, D: Device>(rsp_handle: DAT_RSP_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Rsp<D>>(rsp_handle)?.free())
}
