//! Public service points: `dat_psp_create`, `dat_psp_create_any`, `dat_psp_query`,
//! `dat_psp_free`.

use std::sync::Arc;

use parking_lot::Mutex;

use super::abi::Abi;
use super::ep::{Ep, Parts};
use super::evd::{Evd, Stream};
use super::ia::{Ia, lookup_ia};
use super::object::{
    Base, DatObject, HandleType, boundary, check_mask, lookup, non_null, publish, tag, unpublish,
};
use super::service::{Qual, ServicePoint, Upcall, listen, report, request_evd};
use crate::abi::common::*;
use crate::device::Device;
use crate::error::{Error, Result, Subtype};
use crate::handle::Object;

/// A place that connection requests arrive at, until it is freed.
#[repr(align(64))]
pub struct Psp<D: Device> {
    base: Base<D>,
    conn_qual: u64,
    evd: Arc<Evd<D>>,
    flags: DAT_PSP_FLAGS,
    /// `None` once freed.
    listener: Mutex<Option<D::Listener>>,
}

// SAFETY: `tag` is injective; aligned to 64.
unsafe impl<D: Device> Object for Psp<D> {
    const TAG: usize = tag(HandleType::Psp, D::INDEX);
}

impl<D: Device> DatObject<D> for Psp<D> {
    const TYPE: HandleType = HandleType::Psp;
    const INVALID: Subtype = Subtype::HandlePsp;
    fn base(&self) -> &Base<D> {
        &self.base
    }
}

impl<D: Device> ServicePoint<D> for Psp<D> {
    fn arrive(&self, request: D::ConnRequest) {
        let ia = &self.base.ia;
        let ep = match self.flags {
            DAT_PSP_PROVIDER_FLAG => {
                let state = DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING;
                let Ok(ep) = Ep::create(ia, Parts::NONE, None, state) else {
                    return;
                };
                Some(ep)
            }
            _ => None,
        };
        let sp = self.base.handle();
        report(ia, &self.evd, sp, self.conn_qual, request, ep);
    }
}

impl<D: Device> Psp<D> {
    fn create(
        ia: &Arc<Ia<D>>,
        qual: Qual,
        evd: DAT_EVD_HANDLE,
        flags: DAT_PSP_FLAGS,
    ) -> Result<Arc<Self>> {
        if !matches!(flags, DAT_PSP_CONSUMER_FLAG | DAT_PSP_PROVIDER_FLAG) {
            return Err(Error::arg(Subtype::Arg4));
        }
        let evd = request_evd(ia, evd)?;
        let upcall = Upcall::new();
        let listener = listen(ia, qual, &evd, &upcall);
        let (listener, conn_qual) = listener.inspect_err(|_| evd.detach(Stream::Request))?;
        let psp = Arc::new(Psp {
            base: Base::new(ia.clone()),
            conn_qual,
            evd,
            flags,
            listener: Mutex::new(Some(listener)),
        });
        publish(&psp).inspect_err(|_| {
            psp.stop();
        })?;
        ia.add_service_point(conn_qual, psp.base.handle());
        upcall.open(&psp);
        Ok(psp)
    }

    /// Stops listening. `false` if that has happened before.
    fn stop(&self) -> bool {
        let Some(listener) = self.listener.lock().take() else {
            return false;
        };
        drop(listener);
        self.evd.detach(Stream::Request);
        true
    }

    fn free(&self) -> Result<()> {
        if !self.stop() {
            return Err(Error::handle(Subtype::HandlePsp));
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
    boundary::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        non_null(psp_handle, Subtype::Arg5)?;
        let psp = Psp::create(&ia, Qual::This(conn_qual), evd_handle, psp_flags)?;
        // SAFETY: not NULL.
        unsafe { psp_handle.write(psp.base.handle().0) };
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
    boundary::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        non_null(conn_qual, Subtype::Arg2)?;
        non_null(psp_handle, Subtype::Arg5)?;
        let psp = Psp::create(&ia, Qual::Any, evd_handle, psp_flags)?;
        // SAFETY: neither is NULL.
        unsafe {
            conn_qual.write(psp.conn_qual);
            psp_handle.write(psp.base.handle().0);
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
        check_mask(mask.into(), DAT_PSP_FIELD_ALL.into(), Subtype::Arg2)?;
        non_null(psp_param, Subtype::Arg3)?;
        let param = DAT_PSP_PARAM {
            ia_handle: psp.base.ia.handle().0,
            conn_qual: psp.conn_qual,
            evd_handle: psp.evd.handle().0,
            psp_flags: psp.flags,
        };
        // SAFETY: not NULL.
        unsafe { psp_param.write(param) };
        Ok(())
    })
}

/// `dat_psp_free`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn psp_free<A: Abi, D: Device>(psp_handle: DAT_PSP_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Psp<D>>(psp_handle)?.free())
}
