//! Remote memory regions: `dat_rmr_create`, `dat_rmr_bind`, `dat_rmr_query`, `dat_rmr_free`; `dat_lmr_free`,
//! which asks the windows.

mod binding;

use std::sync::Arc;

use crate::lock::Mutex;

use self::binding::{Binding, Bindings};
use super::abi::Abi;
use super::boundary::{
    answer_query, boundary, creation, device_error, non_null, short_boundary, write_opt,
};
use super::ep::{self, Ep};
use super::ia::Child;
use super::lmr::{Lmr, LmrUse, addressing, check_addressing};
use super::object::{Base, DatObject, dat_object, lookup, publish, unpublish};
use super::pz::{Pz, PzUse};
use super::types::{HandleType, LmrRange, RmrParam, access};
use super::work_request::{REQUEST_FLAGS, post_error};
use crate::abi::{common::*, v2};
use crate::device::{
    Access, Addressing, BindWr, Device, MemoryWindow, Sge, WindowOpening, WindowScope,
};
use crate::error::{Error, Kind, Result, Subtype, Version};
use crate::handle::pin;

/// A memory window: a range of an LMR that peers may access, under a key that changes with every
/// bind.
#[repr(align(64))]
pub struct Rmr<D: Device> {
    base: Base<D>,
    /// The handle of the protection zone.
    pz: DAT_PZ_HANDLE,
    /// Who may use the window.
    scope: WindowScope,
    /// The device's memory window.
    window: Arc<D::Mw>,
    /// `None` once the RMR is freed.
    state: Mutex<Option<State<D>>>,
}

struct State<D: Device> {
    bindings: Bindings<D>,
    _pz: PzUse<D>,
}

// SAFETY: the handle of the protection zone is handed back, never followed; the rest is Send
// and Sync.
unsafe impl<D: Device> Send for Rmr<D> {}
// SAFETY: as above.
unsafe impl<D: Device> Sync for Rmr<D> {}

dat_object!(Rmr, Rmr, HandleRmr);

impl<D: Device> Child for Rmr<D> {
    fn destroy(&self) {
        let _ = self.free();
    }
}

/// The arguments of `dat_rmr_bind` that both versions have.
struct Bind {
    version: Version,
    range: LmrRange,
    addressing: Addressing,
    privileges: DAT_MEM_PRIV_FLAGS,
    ep: DAT_EP_HANDLE,
    cookie: u64,
    completion_flags: DAT_COMPLETION_FLAGS,
    /// Numbers of the arguments for errors: they differ between the versions.
    range_arg: Subtype,
    privileges_arg: Subtype,
    flags_arg: Subtype,
}

impl<D: Device> Rmr<D> {
    fn create(pz: &Arc<Pz<D>>, scope: WindowScope) -> Result<Arc<Self>> {
        let ia = pz.ia();
        if ia.device.attr().max_mw == 0 {
            return Err(Kind::ModelNotSupported.into());
        }
        let in_pz = pz.enter(ia)?;
        let window = ia
            .device
            .alloc_mw(&in_pz.pd, scope)
            .map_err(|e| device_error(e, Subtype::ResourceMemoryRegion))?;
        let rmr = Arc::new(Rmr {
            base: Base::new(ia.clone()),
            pz: pz.handle().0,
            scope,
            window,
            state: Mutex::new(Some(State {
                bindings: Bindings::default(),
                _pz: in_pz,
            })),
        });
        publish(&rmr)?;
        Ok(rmr)
    }

    /// Queues the bind on the endpoint; gives the new context.
    fn bind(&self, lmr: Option<Arc<Lmr<D>>>, bind: &Bind) -> Result<u32> {
        let ep: Arc<Ep<D>> = lookup(bind.ep)?;
        check_addressing(&self.base.ia, bind.addressing)?;
        let unbind = bind.range.len == 0;
        let access = access(bind.privileges, bind.version, bind.privileges_arg)?;
        let lmr = match lmr {
            Some(lmr) if !unbind => Some(lmr),
            None if !unbind => return Err(Error::arg(bind.range_arg)),
            _ => None,
        };
        if ep.pz() != Some(self.pz) || lmr.as_ref().is_some_and(|lmr| lmr.pz() != self.pz) {
            return Err(Kind::ProtectionViolation.into());
        }
        if let Some(lmr) = &lmr {
            if !lmr.covers(&bind.range) {
                return Err(Error::arg(bind.range_arg));
            }
            check_privileges(access, lmr)?;
        }
        // The section outlives the lock, because its end may call the consumer's code.
        let guard = pin::pin();
        let mut state = self.state.lock();
        let state = state.as_mut().ok_or(Error::handle(Subtype::HandleRmr))?;
        state.bindings.settle(&*self.window);
        state.bindings.reserve()?;
        let lmr_use = lmr.clone().map(LmrUse::begin).transpose()?;
        let (config, qp) = ep.config(&guard)?;
        if config.refuses_binds {
            return Err(Error::handle(Subtype::HandleEvdRequest));
        }
        let wr_flags =
            config
                .request_flags
                .check(bind.completion_flags, REQUEST_FLAGS, bind.flags_arg)?;
        ep.check_request_state()?;
        let post = |region: Option<&D::Mr>| {
            let wr = BindWr {
                wr_id: bind.cookie,
                context: self.handle().0.expose_provenance() as u64,
                window: &self.window,
                region,
                addr: bind.range.addr,
                len: bind.range.len,
                addressing: bind.addressing,
                access,
                flags: wr_flags,
            };
            D::post_bind(qp, &wr).map_err(|e| post_error(e, true))
        };
        let rmr_context = match &lmr_use {
            Some(lmr) => lmr
                .with(|mr| post(Some(mr)))
                .ok_or(Error::handle(Subtype::HandleLmr))??,
            None => post(None)?,
        };
        // After the end of a connection the bind is flushed, and the old binding remains, as a
        // device tells that knows what its windows are bound to.
        if ep.is_connected() || self.window.opening() != WindowOpening::Unknown {
            state.bindings.posted(lmr.map(|lmr| Binding {
                range: bind.range,
                addressing: bind.addressing,
                privileges: bind.privileges,
                rmr_context,
                ep: ep.handle(),
                lmr,
                lmr_use,
            }));
        }
        Ok(rmr_context)
    }

    /// The local segment for a range of the window with this context: that of its LMR. `ep` is the endpoint
    /// that fills the range.
    ///
    /// # Errors
    /// `DAT_PROTECTION_VIOLATION` for an endpoint that may not use the window, `DAT_PRIVILEGES_VIOLATION` for
    /// a window that may not be written, `DAT_INVALID_PARAMETER` for a range outside of it.
    fn sink(&self, rmr_context: u32, addr: u64, len: u64, ep: &Ep<D>) -> Result<Option<Sge>> {
        let mut state = self.state.lock();
        let binding = self.settled(&mut state);
        let Some(binding) = binding.filter(|binding| binding.rmr_context == rmr_context) else {
            return Ok(None);
        };
        let elsewhere = self.scope == WindowScope::QueuePair && binding.ep != ep.handle();
        if elsewhere || ep.pz() != Some(self.pz) {
            return Err(Error::new(
                Kind::ProtectionViolation,
                Subtype::ProtectionRead,
            ));
        }
        if binding.privileges & DAT_MEM_PRIV_REMOTE_WRITE_FLAG == 0 {
            return Err(Error::new(
                Kind::PrivilegesViolation,
                Subtype::PrivilegesRead,
            ));
        }
        let offset = match binding.addressing {
            Addressing::Virtual => addr.checked_sub(binding.range.addr),
            Addressing::ZeroBased => Some(addr),
        };
        let inside = offset.filter(|offset| {
            let room = binding.range.len.checked_sub(*offset);
            room.is_some_and(|room| len <= room)
        });
        match (inside, u32::try_from(len)) {
            (Some(offset), Ok(bytes)) => Ok(Some(Sge {
                addr: binding.range.addr + offset,
                len: bytes,
                lkey: binding.lmr.context(),
            })),
            _ => Err(Error::arg(Subtype::Arg2)),
        }
    }

    /// What the window is bound to, as far as that is known.
    fn settled<'a>(&self, state: &'a mut Option<State<D>>) -> Option<&'a Binding<D>> {
        let state = state.as_mut()?;
        state.bindings.settle(&*self.window);
        state.bindings.last()
    }

    fn free(&self) -> Result<()> {
        let state = self.state.lock().take();
        if state.is_none() || !unpublish(self) {
            return Err(Error::handle(Subtype::HandleRmr));
        }
        self.window.close();
        Ok(())
    }
}

/// A window allows peers no more than its region allows locally: RDMA reads need local read,
/// RDMA writes and atomic operations local write.
fn check_privileges<D: Device>(access: Access, lmr: &Lmr<D>) -> Result<()> {
    let local = lmr.access();
    let missing = |remote, local_need| access.contains(remote) && !local.contains(local_need);
    let subtype = if missing(Access::REMOTE_READ, Access::LOCAL_READ) {
        Subtype::PrivilegesRdmaRead
    } else if missing(Access::REMOTE_WRITE, Access::LOCAL_WRITE)
        || missing(Access::REMOTE_ATOMIC, Access::LOCAL_WRITE)
    {
        Subtype::PrivilegesRdmaWrite
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::PrivilegesViolation, subtype))
}

/// `dat_rmr_create`.
///
/// # Safety
/// `rmr_handle` is NULL or points to memory for a handle.
pub unsafe extern "C" fn rmr_create<A: Abi, D: Device>(
    pz_handle: DAT_PZ_HANDLE,
    rmr_handle: *mut DAT_RMR_HANDLE,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe { create::<A, D>(pz_handle, WindowScope::Domain, rmr_handle) }
}

/// `dat_rmr_create_for_ep` of DAT 2.0: a window that only the peer of the endpoint may use on which it is
/// bound.
///
/// # Safety
/// As [`rmr_create`].
pub unsafe extern "C" fn rmr_create_for_ep<A: Abi, D: Device>(
    pz_handle: DAT_PZ_HANDLE,
    rmr_handle: *mut DAT_RMR_HANDLE,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe { create::<A, D>(pz_handle, WindowScope::QueuePair, rmr_handle) }
}

/// Makes an RMR for a consumer.
///
/// # Safety
/// As [`rmr_create`].
unsafe fn create<A: Abi, D: Device>(
    pz_handle: DAT_PZ_HANDLE,
    scope: WindowScope,
    rmr_handle: *mut DAT_RMR_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let pz: Arc<Pz<D>> = lookup(pz_handle)?;
        non_null(rmr_handle, Subtype::Arg2)?;
        let rmr = Rmr::create(&pz, scope)?;
        // SAFETY: not NULL.
        unsafe { rmr_handle.write(rmr.handle().0) };
        Ok(())
    })
}

/// `dat_rmr_bind` of DAT 1.2: the LMR is found by the context in the triplet.
///
/// # Safety
/// `lmr_triplet` is NULL or points to a triplet, `context` to memory for a context.
pub unsafe extern "C" fn rmr_bind<A: Abi, D: Device>(
    rmr_handle: DAT_RMR_HANDLE,
    lmr_triplet: *const A::LmrTriplet,
    mem_priv: DAT_MEM_PRIV_FLAGS,
    ep_handle: DAT_EP_HANDLE,
    user_cookie: DAT_RMR_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
    context: *mut DAT_RMR_CONTEXT,
) -> DAT_RETURN {
    short_boundary::<A>(|| {
        let rmr: Arc<Rmr<D>> = lookup(rmr_handle)?;
        non_null(lmr_triplet, Subtype::Arg2)?;
        // SAFETY: not NULL. C does not promise alignment.
        let range = A::lmr_range(&unsafe { lmr_triplet.read_unaligned() });
        let lmr = Lmr::of_context(&rmr.base.ia, range.lmr_context);
        let new = rmr.bind(
            lmr,
            &Bind {
                version: A::VERSION,
                range,
                addressing: Addressing::Virtual,
                privileges: mem_priv,
                ep: ep_handle,
                // SAFETY: every bit pattern is a valid integer.
                cookie: unsafe { user_cookie.as_64 },
                completion_flags,
                range_arg: Subtype::Arg2,
                privileges_arg: Subtype::Arg3,
                flags_arg: Subtype::Arg6,
            },
        )?;
        // SAFETY: NULL or valid, says the caller.
        unsafe { write_opt(context, new) };
        Ok(())
    })
}

/// `dat_rmr_bind` of DAT 2.0, which names the LMR and the kind of addresses.
///
/// # Safety
/// `lmr_triplet` is NULL or points to a triplet, `context` to memory for a context.
pub unsafe extern "C" fn rmr_bind_lmr<A: Abi, D: Device>(
    rmr_handle: DAT_RMR_HANDLE,
    lmr_handle: DAT_LMR_HANDLE,
    lmr_triplet: *const A::LmrTriplet,
    mem_priv: DAT_MEM_PRIV_FLAGS,
    va_type: v2::DAT_VA_TYPE,
    ep_handle: DAT_EP_HANDLE,
    user_cookie: DAT_RMR_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
    context: *mut DAT_RMR_CONTEXT,
) -> DAT_RETURN {
    short_boundary::<A>(|| {
        let rmr: Arc<Rmr<D>> = lookup(rmr_handle)?;
        non_null(lmr_triplet, Subtype::Arg3)?;
        // SAFETY: not NULL. C does not promise alignment.
        let range = A::lmr_range(&unsafe { lmr_triplet.read_unaligned() });
        // An unbind needs no LMR.
        let lmr = if lmr_handle.is_null() && range.len == 0 {
            None
        } else {
            Some(lookup::<D, Lmr<D>>(lmr_handle)?)
        };
        let addressing = addressing(va_type, Subtype::Arg5)?;
        let new = rmr.bind(
            lmr,
            &Bind {
                version: A::VERSION,
                range,
                addressing,
                privileges: mem_priv,
                ep: ep_handle,
                // SAFETY: every bit pattern is a valid integer.
                cookie: unsafe { user_cookie.as_64 },
                completion_flags,
                range_arg: Subtype::Arg3,
                privileges_arg: Subtype::Arg4,
                flags_arg: Subtype::Arg8,
            },
        )?;
        // SAFETY: NULL or valid, says the caller.
        unsafe { write_opt(context, new) };
        Ok(())
    })
}

/// `dat_rmr_query`; the range and the context read as zero while the window is not bound.
///
/// # Safety
/// `rmr_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn rmr_query<A: Abi, D: Device>(
    rmr_handle: DAT_RMR_HANDLE,
    mask: DAT_RMR_PARAM_MASK,
    rmr_param: *mut A::RmrParam,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let rmr: Arc<Rmr<D>> = lookup(rmr_handle)?;
        let read = || {
            let mut state = rmr.state.lock();
            let binding = rmr.settled(&mut state);
            Ok(A::rmr_param(&RmrParam {
                ia: rmr.base.ia.handle().0,
                pz: rmr.pz,
                scope: rmr.scope,
                range: binding.map_or(LmrRange::NONE, |b| b.range),
                addressing: binding.map_or(Addressing::Virtual, |b| b.addressing),
                privileges: binding.map_or(DAT_MEM_PRIV_NONE_FLAG, |b| b.privileges),
                rmr_context: binding.map_or(0, |b| b.rmr_context),
            }))
        };
        // SAFETY: the caller's promise.
        unsafe { answer_query(mask.into(), A::RMR_FIELDS.into(), rmr_param, read) }
    })
}

/// `dat_rmr_free`; a bound window is unbound.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn rmr_free<A: Abi, D: Device>(rmr_handle: DAT_RMR_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Rmr<D>>(rmr_handle)?.free())
}

/// `dat_lmr_free`. A region that no window is open on is free, whatever the program knows of that: a peer may
/// have closed a window, and a bind may have been flushed.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn lmr_free<A: Abi, D: Device>(lmr_handle: DAT_LMR_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| {
        let lmr: Arc<Lmr<D>> = lookup(lmr_handle)?;
        // The memory may be that of receives whose messages have arrived.
        lmr.base().ia.device.place_arrived();
        let freed = lmr.free();
        if freed.is_ok() || !lmr.is_bound() {
            return freed;
        }
        for handle in lmr.base().ia.objects(HandleType::Rmr) {
            if let Ok(rmr) = lookup::<D, Rmr<D>>(handle.0) {
                rmr.settled(&mut rmr.state.lock());
            }
        }
        lmr.free()
    })
}

/// `dat_ep_post_rdma_read_to_rmr` of DAT 2.0: an RDMA read into a range of a window, which names it by the
/// context that peers have.
///
/// # Safety
/// The triplets are NULL or point to one each.
pub unsafe extern "C" fn ep_post_rdma_read_to_rmr<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    local_iov: *const A::RmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const A::RmrTriplet,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let find = || -> Result<Sge> {
        let ep: Arc<Ep<D>> = lookup(ep_handle)?;
        non_null(local_iov, Subtype::Arg2)?;
        // SAFETY: not NULL.
        let (to, len) = A::remote(&unsafe { local_iov.read_unaligned() });
        let ia = &ep.base().ia;
        for handle in ia.objects(HandleType::Rmr) {
            let Ok(rmr) = lookup::<D, Rmr<D>>(handle.0) else {
                continue;
            };
            if let Some(sge) = rmr.sink(to.rkey, to.addr, len, &ep)? {
                return Ok(sge);
            }
        }
        // As for the context of an LMR that is none.
        Err(Error::new(
            Kind::PrivilegesViolation,
            Subtype::PrivilegesRead,
        ))
    };
    // The search takes locks, which the post does not.
    let mut local = Err(Kind::InternalError.into());
    let code = boundary::<A>(|| {
        local = find();
        local.map(|_| ())
    });
    match local {
        // SAFETY: the caller's promise, for the remote triplet.
        Ok(sge) => unsafe {
            ep::post_read_into::<A, D>(ep_handle, sge, user_cookie, remote_iov, completion_flags)
        },
        Err(_) => code,
    }
}
