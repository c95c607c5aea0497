//! `dat_ia_query`: the attributes of an IA and of its provider.

use std::ptr::null_mut;

use super::abi::Abi;
use super::boundary::{boundary, check_mask, non_null, write_opt};
use super::ia::{Ia, lookup_ia};
use super::named_attributes::{PORT_STATUS_NAME, has_extensions};
use super::types::IaAttr;
use crate::abi::common::*;
use crate::device::Device;
use crate::error::{Result, Subtype};

/// Where a query of an IA writes its attributes: NULL where none are asked for.
pub(super) struct AttributesOut<A: Abi> {
    ia: *mut A::IaAttr,
    provider: *mut A::ProviderAttr,
}

impl<A: Abi> AttributesOut<A> {
    /// Checks the arguments 3 to 6 of a query.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER`.
    pub fn new(
        (ia_mask, ia): (DAT_IA_ATTR_MASK, *mut A::IaAttr),
        (provider_mask, provider): (DAT_PROVIDER_ATTR_MASK, *mut A::ProviderAttr),
    ) -> Result<Self> {
        check_mask(ia_mask, A::IA_FIELDS, Subtype::Arg3)?;
        let ia = match ia_mask {
            0 => null_mut(),
            _ => non_null(ia, Subtype::Arg4).map(|()| ia)?,
        };
        let provider = match provider_mask {
            0 => null_mut(),
            _ => non_null(provider, Subtype::Arg6).map(|()| provider)?,
        };
        Ok(AttributesOut { ia, provider })
    }

    /// Writes what is asked for.
    ///
    /// # Safety
    /// The pointers are NULL or point to memory for the attributes.
    pub unsafe fn write<D: Device>(self, ia: &Ia<D>) {
        if !self.ia.is_null() {
            let device = ia.device.attr();
            let attr = A::ia_attr(&IaAttr {
                extensions: has_extensions(device, ia.counters.is_some()),
                name: &ia.name,
                device,
                address: ia.address(),
                transport: ia.transport_attr.list(),
            });
            // SAFETY: the caller's promise.
            unsafe { self.ia.write(attr) };
        }
        if !self.provider.is_null() {
            let name = format!("libdat-{}", D::NAME);
            ia.provider_attr
                .set(PORT_STATUS_NAME, ia.device.port_state());
            let attr = A::provider_attr(
                &name,
                ia.device.attr(),
                ia.provider_attr.list(),
                ia.says_thread_safe,
            );
            // SAFETY: the caller's promise.
            unsafe { self.provider.write(attr) };
        }
    }
}

/// `dat_ia_query`. The registry calls it with a NULL `async_evd_handle`.
///
/// # Safety
/// The pointers are NULL or as the man page says.
pub unsafe extern "C" fn ia_query<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    async_evd_handle: *mut DAT_EVD_HANDLE,
    ia_attr_mask: DAT_IA_ATTR_MASK,
    ia_attr: *mut A::IaAttr,
    provider_attr_mask: DAT_PROVIDER_ATTR_MASK,
    provider_attr: *mut A::ProviderAttr,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        let attributes =
            AttributesOut::<A>::new((ia_attr_mask, ia_attr), (provider_attr_mask, provider_attr))?;
        let evd = ia.async_evd().map_or(DAT_HANDLE_NULL, |evd| evd.0);
        // SAFETY: NULL or valid, says the caller.
        unsafe {
            write_opt(async_evd_handle, evd);
            attributes.write(&ia);
        }
        Ok(())
    })
}
