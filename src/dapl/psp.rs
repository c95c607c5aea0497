//! Public service points: `dat_psp_create`, `dat_psp_create_any`, `dat_psp_query`,
//! `dat_psp_free`.

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::abi::Abi;
use super::cr::Cr;
use super::evd::{Evd, Stream};
use super::ia::{Ia, lookup_ia};
use super::object::{
    Base, DatObject, HandleType, boundary, check_mask, device_error, lookup, non_null, publish,
    tag, unpublish,
};
use super::types::{Event, Opaque};
use crate::abi::common::*;
use crate::device::{Device, ListenHandler};
use crate::error::{Error, Kind, Result, Subtype};
use crate::handle::{self, Object};

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

/// The listener's way to its service point.
struct Upcall<D: Device>(OnceLock<Weak<Psp<D>>>);

impl<D: Device> ListenHandler<D> for Upcall<D> {
    fn request(&self, request: D::ConnRequest) {
        // Before the service point has its handle, and after it is gone, nobody listens: the
        // request is dropped, which refuses it.
        let Some(psp) = self.0.get().and_then(Weak::upgrade) else {
            return;
        };
        let ia = &psp.base.ia;
        let Ok(cr) = Cr::create(ia, request) else {
            return;
        };
        let event = Event::Request {
            sp: psp.base.handle(),
            local_address: Opaque(ia.address().cast()),
            conn_qual: psp.conn_qual,
            cr: cr.handle(),
        };
        // A full queue is a full backlog.
        if !psp.evd.push(event) {
            cr.destroy();
        }
    }
}

/// Which qualifier to listen on.
enum Qual {
    This(u64),
    Any,
}

impl<D: Device> Psp<D> {
    fn create(
        ia: &Arc<Ia<D>>,
        qual: Qual,
        evd: DAT_EVD_HANDLE,
        flags: DAT_PSP_FLAGS,
    ) -> Result<Arc<Self>> {
        let evd: Arc<Evd<D>> =
            handle::get_shared(evd).ok_or(Error::handle(Subtype::HandleEvdCr))?;
        match flags {
            DAT_PSP_CONSUMER_FLAG => {}
            // The attribute `ep_creator` says so.
            DAT_PSP_PROVIDER_FLAG => return Err(Kind::ModelNotSupported.into()),
            _ => return Err(Error::arg(Subtype::Arg4)),
        }
        if !evd.is_of(ia) {
            return Err(Error::handle(Subtype::HandleEvdCr));
        }
        evd.attach(Stream::Request)?;
        Self::listen(ia, qual, &evd, flags).inspect_err(|_| evd.detach(Stream::Request))
    }

    fn listen(
        ia: &Arc<Ia<D>>,
        qual: Qual,
        evd: &Arc<Evd<D>>,
        flags: DAT_PSP_FLAGS,
    ) -> Result<Arc<Self>> {
        let upcall = Arc::new(Upcall(OnceLock::new()));
        let backlog = u32::try_from(evd.qlen()).unwrap_or(u32::MAX);
        let (listener, conn_qual) = match qual {
            Qual::This(qual) => ia
                .device
                .listen(qual, backlog, upcall.clone())
                .map(|listener| (listener, qual)),
            Qual::Any => ia.device.listen_any(backlog, upcall.clone()),
        }
        .map_err(|e| device_error(e, Subtype::ResourceDevice))?;
        let psp = Arc::new(Psp {
            base: Base::new(ia.clone()),
            conn_qual,
            evd: evd.clone(),
            flags,
            listener: Mutex::new(Some(listener)),
        });
        if let Err(error) = publish(&psp) {
            drop(psp.listener.lock().take());
            return Err(error);
        }
        let _ = upcall.0.set(Arc::downgrade(&psp));
        Ok(psp)
    }

    fn free(&self) -> Result<()> {
        let listener = self.listener.lock().take();
        if listener.is_none() || !unpublish(self) {
            return Err(Error::handle(Subtype::HandlePsp));
        }
        drop(listener);
        self.evd.detach(Stream::Request);
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
