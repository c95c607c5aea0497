//! Protection zones: `dat_pz_create`, `dat_pz_query`, `dat_pz_free`.

use std::sync::Arc;

use crate::lock::Mutex;

use super::abi::Abi;
use super::boundary::{answer_query, boundary, creation, device_error, non_null};
use super::ia::{Child, Ia, lookup_ia};
use super::object::{Base, dat_object, lookup, publish, unpublish};
use super::types::Handle;
use crate::abi::common::*;
use crate::device::Device;
use crate::error::{Error, Result, Subtype};

/// A protection zone: endpoints can access only the memory of their own zone.
#[repr(align(64))]
pub struct Pz<D: Device> {
    base: Base<D>,
    /// The device's protection domain.
    pub pd: D::Pd,
    /// Uses by endpoints, LMRs, RMRs and SRQs; `None` once the PZ is freed.
    users: Mutex<Option<usize>>,
}

dat_object!(Pz, Pz, HandlePz);

impl<D: Device> Child for Pz<D> {
    fn destroy(&self) {
        *self.users.lock() = None;
        unpublish(self);
    }
}

/// A use of a protection zone. Dropping it ends the use.
pub struct PzUse<D: Device>(Arc<Pz<D>>);

impl<D: Device> std::ops::Deref for PzUse<D> {
    type Target = Pz<D>;
    fn deref(&self) -> &Pz<D> {
        &self.0
    }
}

impl<D: Device> Drop for PzUse<D> {
    fn drop(&mut self) {
        if let Some(users) = &mut *self.0.users.lock() {
            *users -= 1;
        }
    }
}

impl<D: Device> Pz<D> {
    fn create(ia: &Arc<Ia<D>>) -> Result<Handle> {
        let pd = ia
            .device
            .alloc_pd()
            .map_err(|e| device_error(e, Subtype::ResourceProtectionDomain))?;
        publish(&Arc::new(Pz {
            base: Base::new(ia.clone()),
            pd,
            users: Mutex::new(Some(0)),
        }))
    }

    /// The IA it belongs to.
    pub fn ia(&self) -> &Arc<Ia<D>> {
        &self.base.ia
    }

    /// Begins a use, for an object of the same IA.
    ///
    /// # Errors
    /// `DAT_INVALID_HANDLE` when the PZ is being freed or belongs to another IA.
    pub fn enter(self: &Arc<Self>, ia: &Arc<Ia<D>>) -> Result<PzUse<D>> {
        let mut users = self.users.lock();
        match &mut *users {
            Some(n) if Arc::ptr_eq(&self.base.ia, ia) => {
                *n += 1;
                drop(users);
                Ok(PzUse(self.clone()))
            }
            _ => Err(Error::handle(Subtype::HandlePz)),
        }
    }

    fn free(&self) -> Result<()> {
        let mut users = self.users.lock();
        match *users {
            Some(0) => {}
            Some(_) => return Err(Error::state(Subtype::StatePzInUse)),
            None => return Err(Error::handle(Subtype::HandlePz)),
        }
        *users = None;
        drop(users);
        unpublish(self);
        Ok(())
    }
}

/// `dat_pz_create`.
///
/// # Safety
/// `pz_handle` is NULL or points to memory for a handle.
pub unsafe extern "C" fn pz_create<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    pz_handle: *mut DAT_PZ_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        non_null(pz_handle, Subtype::Arg2)?;
        let handle = Pz::create(&ia)?;
        // SAFETY: not NULL.
        unsafe { pz_handle.write(handle.0) };
        Ok(())
    })
}

/// `dat_pz_query`.
///
/// # Safety
/// `pz_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn pz_query<A: Abi, D: Device>(
    pz_handle: DAT_PZ_HANDLE,
    mask: DAT_PZ_PARAM_MASK,
    pz_param: *mut DAT_PZ_PARAM,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let pz: Arc<Pz<D>> = lookup(pz_handle)?;
        let read = || {
            Ok(DAT_PZ_PARAM {
                ia_handle: pz.base.ia.handle().0,
            })
        };
        // SAFETY: the caller's promise.
        unsafe { answer_query(mask.into(), DAT_PZ_FIELD_ALL.into(), pz_param, read) }
    })
}

/// `dat_pz_free`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn pz_free<A: Abi, D: Device>(pz_handle: DAT_PZ_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Pz<D>>(pz_handle)?.free())
}
