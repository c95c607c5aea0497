//! Reserved service points: `dat_rsp_create`, `dat_rsp_query`, `dat_rsp_free`.

use std::sync::Arc;

use parking_lot::Mutex;

use super::abi::Abi;
use super::ep::{Ep, Parts};
use super::evd::{Evd, Stream};
use super::ia::{Ia, lookup_ia};
use super::object::{
    Base, DatObject, HandleType, boundary, check_mask, lookup, lookup_opt, non_null, publish, tag,
    unpublish,
};
use super::service::{Qual, ServicePoint, Upcall, listen, report, request_evd};
use crate::abi::common::*;
use crate::device::Device;
use crate::error::{Error, Result, Subtype};
use crate::handle::Object;

/// A place that exactly one connection request arrives at, for a reserved endpoint.
#[repr(align(64))]
pub struct Rsp<D: Device> {
    base: Base<D>,
    conn_qual: u64,
    evd: Arc<Evd<D>>,
    state: Mutex<State<D>>,
}

struct State<D: Device> {
    /// The endpoint that waits; taken by the request. `None` also when the provider makes it.
    ep: Option<Arc<Ep<D>>>,
    /// A request has come.
    spent: bool,
    /// `None` once freed.
    listener: Option<D::Listener>,
}

// SAFETY: `tag` is injective; aligned to 64.
unsafe impl<D: Device> Object for Rsp<D> {
    const TAG: usize = tag(HandleType::Rsp, D::INDEX);
}

impl<D: Device> DatObject<D> for Rsp<D> {
    const TYPE: HandleType = HandleType::Rsp;
    const INVALID: Subtype = Subtype::HandleRsp;
    fn base(&self) -> &Base<D> {
        &self.base
    }
}

impl<D: Device> ServicePoint<D> for Rsp<D> {
    fn arrive(&self, request: D::ConnRequest) {
        let ia = &self.base.ia;
        let ep = {
            let mut state = self.state.lock();
            if state.spent || state.listener.is_none() {
                return;
            }
            state.spent = true;
            state.ep.clone()
        };
        let ep = match ep {
            Some(ep) => ep
                .change_state(
                    ia,
                    DAT_EP_STATE_RESERVED,
                    DAT_EP_STATE_PASSIVE_CONNECTION_PENDING,
                )
                .map(|()| ep),
            None => Ep::create(
                ia,
                Parts::NONE,
                None,
                DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING,
            ),
        };
        let Ok(ep) = ep else { return };
        let sp = self.base.handle();
        report(ia, &self.evd, sp, self.conn_qual, request, Some(ep));
    }
}

impl<D: Device> Rsp<D> {
    fn create(
        ia: &Arc<Ia<D>>,
        conn_qual: u64,
        ep: Option<Arc<Ep<D>>>,
        evd: DAT_EVD_HANDLE,
    ) -> Result<Arc<Self>> {
        if let Some(ep) = &ep {
            ep.change_state(ia, DAT_EP_STATE_UNCONNECTED, DAT_EP_STATE_RESERVED)?;
        }
        let release = |ep: &Option<Arc<Ep<D>>>| {
            if let Some(ep) = ep {
                let _ = ep.change_state(ia, DAT_EP_STATE_RESERVED, DAT_EP_STATE_UNCONNECTED);
            }
        };
        let evd = request_evd(ia, evd).inspect_err(|_| release(&ep))?;
        let upcall = Upcall::new();
        let listener = listen(ia, Qual::This(conn_qual), &evd, &upcall);
        let (listener, _) = listener.inspect_err(|_| {
            evd.detach(Stream::Request);
            release(&ep);
        })?;
        let rsp = Arc::new(Rsp {
            base: Base::new(ia.clone()),
            conn_qual,
            evd,
            state: Mutex::new(State {
                ep,
                spent: false,
                listener: Some(listener),
            }),
        });
        publish(&rsp).inspect_err(|_| {
            rsp.stop();
        })?;
        ia.add_service_point(conn_qual, rsp.base.handle());
        upcall.open(&rsp);
        Ok(rsp)
    }

    /// Stops listening and gives the endpoint back, unless a request took it. `false` if that
    /// has happened before.
    fn stop(&self) -> bool {
        let ia = &self.base.ia;
        let mut state = self.state.lock();
        let Some(listener) = state.listener.take() else {
            return false;
        };
        let ep = state.ep.take();
        drop(state);
        drop(listener);
        if let Some(ep) = ep {
            let _ = ep.change_state(ia, DAT_EP_STATE_RESERVED, DAT_EP_STATE_UNCONNECTED);
        }
        self.evd.detach(Stream::Request);
        true
    }

    fn free(&self) -> Result<()> {
        if !self.stop() {
            return Err(Error::handle(Subtype::HandleRsp));
        }
        let handle = self.base.handle();
        self.base.ia.remove_service_point(self.conn_qual, handle);
        unpublish(self);
        Ok(())
    }

    /// Takes the object down when its IA closes.
    pub(super) fn destroy(&self) {
        let _ = self.free();
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
    boundary::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        let ep: Option<Arc<Ep<D>>> = lookup_opt(ep_handle, Subtype::HandleEp)?;
        non_null(rsp_handle, Subtype::Arg5)?;
        let rsp = Rsp::create(&ia, conn_qual, ep, evd_handle)?;
        // SAFETY: not NULL.
        unsafe { rsp_handle.write(rsp.base.handle().0) };
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
        check_mask(mask.into(), DAT_RSP_FIELD_ALL.into(), Subtype::Arg2)?;
        non_null(rsp_param, Subtype::Arg3)?;
        let ep = rsp.state.lock().ep.as_ref().map(|ep| ep.handle().0);
        let param = DAT_RSP_PARAM {
            ia_handle: rsp.base.ia.handle().0,
            conn_qual: rsp.conn_qual,
            evd_handle: rsp.evd.handle().0,
            ep_handle: ep.unwrap_or(DAT_HANDLE_NULL),
        };
        // SAFETY: not NULL.
        unsafe { rsp_param.write(param) };
        Ok(())
    })
}

/// `dat_rsp_free`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn rsp_free<A: Abi, D: Device>(rsp_handle: DAT_RSP_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Rsp<D>>(rsp_handle)?.free())
}
