//! `dat_ia_open`: makes an instance of an IA together with its asynchronous EVD.

use std::ffi::CStr;
use std::sync::{Arc, Weak};

use super::abi::Abi;
use super::boundary::{creation, non_null};
use super::evd::{Evd, Stream};
use super::figures;
use super::ia::Ia;
use super::object::lookup_opt;
use super::parameters;
use super::provider::{self, Instance};
use crate::abi::common::*;
use crate::device::{Device, DeviceHandler};
use crate::error::{Error, Result, Subtype};

/// Least length of an asynchronous EVD, in events. Programs ask for a minimum with rare errors in
/// mind, but every endpoint with an SRQ reports here when it has drained.
const MIN_ASYNC_QLEN: DAT_COUNT = 1024;

/// Opens the device of an IA, and makes an instance without an asynchronous EVD, for `dat_ib_open_query` or for use. Gives
/// whether its figures are to be shown to readers.
///
/// # Errors
/// `DAT_INSUFFICIENT_RESOURCES`; why the device cannot be opened is logged.
pub(super) fn create<D: Device>(
    name: &CStr,
    instance: Instance,
    for_query: bool,
) -> Result<(Arc<Ia<D>>, bool)> {
    let (device, parameters) = parameters::open::<D>(&instance.params).map_err(|why| {
        log::error!("{}: {}: {why}", instance.origin, name.to_string_lossy());
        Error::resource(Subtype::ResourceDevice)
    })?;
    let ia = Ia::create(name, for_query, device, parameters, instance)?;
    Ok((ia, parameters.shown))
}

/// The handler of the device.
struct Upcall<D: Device>(Weak<Ia<D>>);

impl<D: Device> DeviceHandler for Upcall<D> {
    fn failed(&self) {
        if let Some(ia) = self.0.upgrade() {
            let number = DAT_ASYNC_ERROR_IA_CATASTROPHIC;
            ia.async_event(number, ia.handle(), DAT_IA_CATASTROPHIC_ERROR);
        }
    }
}

/// `dat_ia_open`, the provider's part.
///
/// # Safety
/// The pointers are NULL or as the man page says.
pub unsafe extern "C" fn ia_open<A: Abi, D: Device>(
    name: DAT_NAME_PTR,
    async_evd_min_qlen: DAT_COUNT,
    async_evd_handle: *mut DAT_EVD_HANDLE,
    ia_handle: *mut DAT_IA_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        non_null(name, Subtype::Arg1)?;
        non_null(async_evd_handle, Subtype::Arg3)?;
        non_null(ia_handle, Subtype::Arg4)?;
        // SAFETY: not NULL, and the man page says that it is a string.
        let name = unsafe { CStr::from_ptr(name) };
        let instance = provider::instance::<D>(name).ok_or(Error::arg(Subtype::Arg1))?;
        // SAFETY: not NULL.
        let given = unsafe { async_evd_handle.read() };
        // DAT_EVD_ASYNC_EXISTS and DAT_EVD_OUT_OF_SCOPE stand for an EVD elsewhere. This instance has no
        // async EVD then; those of the other instances receive its errors.
        let elsewhere = given == DAT_EVD_ASYNC_EXISTS || given == DAT_EVD_OUT_OF_SCOPE;
        let given: Option<Arc<Evd<D>>> = if elsewhere {
            None
        } else {
            lookup_opt(given, Subtype::HandleEvdAsync)?
        };
        if given.is_none() && !elsewhere && async_evd_min_qlen <= 0 {
            return Err(Error::arg(Subtype::Arg2));
        }
        let (ia, shown) = create::<D>(name, instance, false)?;
        let attached = match given {
            Some(evd) => evd.attach(Stream::Async).map(|()| Some((evd, false))),
            None if elsewhere => Ok(None),
            None => Evd::create(
                &ia,
                async_evd_min_qlen.max(MIN_ASYNC_QLEN),
                None,
                DAT_EVD_ASYNC_FLAG,
            )
            .and_then(|evd| evd.attach(Stream::Async).map(|()| Some((evd, true)))),
        };
        let attached = match attached {
            Ok(attached) => attached,
            Err(error) => {
                let _ = ia.close(false);
                return Err(error);
            }
        };
        if let Some((evd, owned)) = attached {
            // SAFETY: not NULL.
            unsafe { async_evd_handle.write(evd.handle().0) };
            ia.set_async_evd(evd, owned);
        }
        ia.device.set_handler(Arc::new(Upcall(Arc::downgrade(&ia))));
        if shown {
            figures::offer::<A, D>(&ia);
        }
        // SAFETY: not NULL.
        unsafe { ia_handle.write(ia.handle().0) };
        Ok(())
    })
}
