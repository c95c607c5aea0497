//! Connection requests: `dat_cr_query`, `dat_cr_accept`, `dat_cr_reject`.

use std::sync::Arc;

use parking_lot::Mutex;

use super::abi::Abi;
use super::ep::Ep;
use super::ia::Ia;
use super::object::{
    Base, DatObject, HandleType, boundary, check_mask, device_error, lookup, non_null,
    private_data, publish, tag, unpublish,
};
use super::types::{CAddress, Handle};
use crate::abi::common::*;
use crate::device::{ConnectionRequest, Device};
use crate::error::{Error, Result, Subtype};
use crate::handle::{self, Object};

/// A request that waits for the consumer; it dies in accept or reject.
#[repr(align(64))]
pub struct Cr<D: Device> {
    base: Base<D>,
    remote_address: CAddress,
    remote_port: u64,
    private_data: Box<[u8]>,
    /// `None` once it is answered.
    request: Mutex<Option<D::ConnRequest>>,
}

// SAFETY: `tag` is injective; aligned to 64.
unsafe impl<D: Device> Object for Cr<D> {
    const TAG: usize = tag(HandleType::Cr, D::INDEX);
}

impl<D: Device> DatObject<D> for Cr<D> {
    const TYPE: HandleType = HandleType::Cr;
    const INVALID: Subtype = Subtype::HandleCr;
    fn base(&self) -> &Base<D> {
        &self.base
    }
}

impl<D: Device> Cr<D> {
    /// Makes the object of a request that has arrived.
    ///
    /// # Errors
    /// Those of [`publish`].
    pub(super) fn create(ia: &Arc<Ia<D>>, request: D::ConnRequest) -> Result<Arc<Self>> {
        let remote = request.remote_addr();
        let cr = Arc::new(Cr {
            base: Base::new(ia.clone()),
            remote_address: CAddress::new(remote),
            remote_port: remote.port().into(),
            private_data: request.private_data().into(),
            request: Mutex::new(Some(request)),
        });
        publish(&cr)?;
        Ok(cr)
    }

    /// The handle.
    pub fn handle(&self) -> Handle {
        self.base.handle()
    }

    /// Takes the request out; whoever gets it answers it.
    fn claim(&self) -> Result<D::ConnRequest> {
        self.request
            .lock()
            .take()
            .ok_or(Error::handle(Subtype::HandleCr))
    }

    fn accept(&self, ep: &Arc<Ep<D>>, data: &[u8]) -> Result<()> {
        let qp = ep.begin_accept(&self.base.ia)?;
        // From here on the endpoint waits for the outcome; a failure puts it back.
        let request = match self.claim() {
            Ok(request) => request,
            Err(error) => {
                ep.undo_accept();
                return Err(error);
            }
        };
        let accepted = self.base.ia.device.accept(request, &qp, data);
        unpublish(self);
        accepted.map_err(|e| {
            ep.undo_accept();
            device_error(e, Subtype::ResourceTep)
        })
    }

    fn reject(&self, data: &[u8]) -> Result<()> {
        let request = self.claim()?;
        unpublish(self);
        self.base.ia.device.reject(request, data);
        Ok(())
    }

    /// Takes the object down, when its IA closes or its event found no place: the peer is
    /// refused.
    pub(super) fn destroy(&self) {
        drop(self.request.lock().take());
        unpublish(self);
    }
}

/// `dat_cr_query`.
///
/// # Safety
/// `cr_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn cr_query<A: Abi, D: Device>(
    cr_handle: DAT_CR_HANDLE,
    mask: DAT_CR_PARAM_MASK,
    cr_param: *mut DAT_CR_PARAM,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let cr: Arc<Cr<D>> = lookup(cr_handle)?;
        check_mask(mask.into(), DAT_CR_FIELD_ALL.into(), Subtype::Arg2)?;
        non_null(cr_param, Subtype::Arg3)?;
        let param = DAT_CR_PARAM {
            remote_ia_address_ptr: cr.remote_address.as_ptr(),
            remote_port_qual: cr.remote_port,
            private_data_size: cr.private_data.len() as DAT_COUNT,
            private_data: cr.private_data.as_ptr().cast_mut().cast(),
            local_ep_handle: DAT_HANDLE_NULL,
        };
        // SAFETY: not NULL.
        unsafe { cr_param.write(param) };
        Ok(())
    })
}

/// `dat_cr_accept`. The private data may be that of the request itself.
///
/// # Safety
/// `data` points to `size` bytes if `size` is positive.
pub unsafe extern "C" fn cr_accept<A: Abi, D: Device>(
    cr_handle: DAT_CR_HANDLE,
    ep_handle: DAT_EP_HANDLE,
    size: DAT_COUNT,
    data: DAT_PVOID,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let cr: Arc<Cr<D>> = lookup(cr_handle)?;
        let max = cr.base.ia.device.attr().max_private_data;
        // SAFETY: the caller's promise.
        let data = unsafe { private_data(size, data, max, Subtype::Arg3, Subtype::Arg4) }?;
        // No request of ours brings an endpoint, so NULL names none.
        let ep: Arc<Ep<D>> =
            handle::get_shared(ep_handle).ok_or(Error::handle(Subtype::HandleEp))?;
        cr.accept(&ep, data)
    })
}

/// `dat_cr_reject` of DAT 2.0, with private data for the peer.
///
/// # Safety
/// `data` points to `size` bytes if `size` is positive.
pub unsafe extern "C" fn cr_reject<A: Abi, D: Device>(
    cr_handle: DAT_CR_HANDLE,
    size: DAT_COUNT,
    data: DAT_PVOID,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let cr: Arc<Cr<D>> = lookup(cr_handle)?;
        let max = cr.base.ia.device.attr().max_private_data;
        // SAFETY: the caller's promise.
        let data = unsafe { private_data(size, data, max, Subtype::Arg2, Subtype::Arg3) }?;
        cr.reject(data)
    })
}

/// `dat_cr_reject` of DAT 1.2.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn cr_reject_plain<A: Abi, D: Device>(
    cr_handle: DAT_CR_HANDLE,
) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Cr<D>>(cr_handle)?.reject(&[]))
}
