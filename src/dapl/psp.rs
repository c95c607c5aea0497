//! Public service points: `dat_psp_create`, `dat_psp_create_any`, `dat_psp_query`,
//! `dat_psp_free`.

use std::sync::{Arc, Weak};

use crate::lock::Mutex;

use super::abi::Abi;
use super::boundary::{answer_query, boundary, creation, non_null};
use super::ep::{Ep, RequestAddrs};
use super::evd::{Evd, Queued};
use super::ia::{Child, Ia, ServicePoint, lookup_ia};
use super::object::{Base, dat_object, lookup, publish, unpublish};
use super::service::{Arrival, Listening, Qual, Upcall, listen};
use crate::abi::common::*;
use crate::abi::v2::DCNT_IA_PSP_CREATE_ANY;
use crate::device::{ConnectionRequest, Device, ListenHandler};
use crate::error::{Error, Result, Subtype};

/// A public service point: connection requests arrive at it until it is freed.
#[repr(align(64))]
pub struct Psp<D: Device> {
    base: Base<D>,
    conn_qual: u64,
    /// The EVD for the events of requests.
    evd: Arc<Evd<D>>,
    flags: DAT_PSP_FLAGS,
    /// Whether it takes requests for where datagrams are received.
    datagrams: bool,
    /// `None` once the PSP is freed.
    listening: Mutex<Option<Listening<D>>>,
}

dat_object!(Psp, Psp, HandlePsp);

impl<D: Device> Child for Psp<D> {
    fn destroy(&self) {
        let _ = self.free();
    }
}

impl<D: Device> ListenHandler<D> for Psp<D> {
    fn request(&self, request: D::ConnRequest) {
        // A request that is dropped is refused.
        if request.is_for_datagrams() && !self.datagrams {
            return;
        }
        let ia = &self.base.ia;
        let ep = match self.flags {
            DAT_PSP_PROVIDER_FLAG => {
                let Ok(ep) = Ep::create_tentative(ia, &RequestAddrs::of(&request)) else {
                    return;
                };
                Some(ep)
            }
            _ => None,
        };
        let (evd, sp) = (&self.evd, self.handle());
        let Some(arrival) = Arrival::new(ia, evd, sp, self.conn_qual, request, ep) else {
            return;
        };
        let queued = match &*self.listening.lock() {
            Some(_) => arrival.queue(),
            None => Queued::Closed,
        };
        arrival.report(queued);
    }
}

impl<D: Device> ServicePoint<D> for Psp<D> {
    fn take(&self, request: D::ConnRequest) -> std::result::Result<(), D::ConnRequest> {
        if request.is_for_datagrams() && !self.datagrams {
            return Err(request);
        }
        self.request(request);
        Ok(())
    }
}

impl<D: Device> Psp<D> {
    fn create<A: Abi>(
        ia: &Arc<Ia<D>>,
        qual: Qual,
        evd: DAT_EVD_HANDLE,
        flags: DAT_PSP_FLAGS,
    ) -> Result<Arc<Self>> {
        if !matches!(flags, DAT_PSP_CONSUMER_FLAG | DAT_PSP_PROVIDER_FLAG) {
            return Err(Error::arg(Subtype::Arg4));
        }
        let upcall = Upcall::new();
        let any = matches!(qual, Qual::Any);
        let (listening, conn_qual, evd) = listen(ia, qual, evd, &upcall)?;
        let psp = Arc::new(Psp {
            base: Base::new(ia.clone()),
            conn_qual,
            evd,
            flags,
            // An endpoint that the provider makes is one for connections.
            datagrams: A::DATAGRAMS && flags == DAT_PSP_CONSUMER_FLAG,
            listening: Mutex::new(Some(listening)),
        });
        publish(&psp).inspect_err(|_| {
            psp.stop();
        })?;
        if any {
            ia.count(DCNT_IA_PSP_CREATE_ANY);
        }
        let point: Weak<Self> = Arc::downgrade(&psp);
        ia.add_service_point(conn_qual, psp.handle(), point);
        upcall.open(&psp);
        Ok(psp)
    }

    /// Stops listening. `false` if that has happened before.
    fn stop(&self) -> bool {
        let listening = self.listening.lock().take();
        listening.is_some()
    }

    fn free(&self) -> Result<()> {
        if !self.stop() {
            return Err(Error::handle(Subtype::HandlePsp));
        }
        let ia = &self.base.ia;
        ia.remove_service_point(self.conn_qual, self.handle());
        unpublish(self);
        Ok(())
    }
}

/// `dat_psp_create`.
///
/// # Safety
/// `psp_handle` is NULL or points to memory for a handle.
pub unsafe extern "C" fn psp_create<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    conn_qual: DAT_CONN_QUAL,
    evd_handle: DAT_EVD_HANDLE,
    psp_flags: DAT_PSP_FLAGS,
    psp_handle: *mut DAT_PSP_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        non_null(psp_handle, Subtype::Arg5)?;
        let psp = Psp::create::<A>(&ia, Qual::This(conn_qual), evd_handle, psp_flags)?;
        // SAFETY: not NULL.
        unsafe { psp_handle.write(psp.handle().0) };
        Ok(())
    })
}

/// `dat_psp_create_any`.
///
/// # Safety
/// `conn_qual` and `psp_handle` are NULL or point to memory for their values.
pub unsafe extern "C" fn psp_create_any<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    conn_qual: *mut DAT_CONN_QUAL,
    evd_handle: DAT_EVD_HANDLE,
    psp_flags: DAT_PSP_FLAGS,
    psp_handle: *mut DAT_PSP_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        non_null(conn_qual, Subtype::Arg2)?;
        non_null(psp_handle, Subtype::Arg5)?;
        let psp = Psp::create::<A>(&ia, Qual::Any, evd_handle, psp_flags)?;
        // SAFETY: neither is NULL.
        unsafe {
            conn_qual.write(psp.conn_qual);
            psp_handle.write(psp.handle().0);
        }
        Ok(())
    })
}

/// `dat_psp_query`.
///
/// # Safety
/// `psp_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn psp_query<A: Abi, D: Device>(
    psp_handle: DAT_PSP_HANDLE,
    mask: DAT_PSP_PARAM_MASK,
    psp_param: *mut DAT_PSP_PARAM,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let psp: Arc<Psp<D>> = lookup(psp_handle)?;
        let read = || {
            Ok(DAT_PSP_PARAM {
                ia_handle: psp.base.ia.handle().0,
                conn_qual: psp.conn_qual,
                evd_handle: psp.evd.handle().0,
                psp_flags: psp.flags,
            })
        };
        // SAFETY: the caller's promise.
        unsafe { answer_query(mask.into(), DAT_PSP_FIELD_ALL.into(), psp_param, read) }
    })
}

/// `dat_psp_free`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn psp_free<A: Abi, D: Device>(psp_handle: DAT_PSP_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Psp<D>>(psp_handle)?.free())
}
