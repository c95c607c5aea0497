//! Local memory regions: `dat_lmr_create`, `dat_lmr_query`, `dat_lmr_sync_*`.

use std::sync::Arc;

use crate::lock::Mutex;

use super::abi::Abi;
use super::boundary::{answer_query, boundary, creation, device_error, non_null, write_opt};
use super::ia::{Child, Ia, lookup_ia};
use super::object::{Base, dat_object, lookup, publish, unpublish};
use super::pz::{Pz, PzUse};
use super::types::{LmrParam, LmrRange, access};
use crate::abi::{common::*, v2};
use crate::device::{Access, Addressing, Device, MemoryRegion};
use crate::error::{Error, Kind, Result, Subtype, Version};
use crate::handle;

/// `DAT_MEM_TYPE_SO_VIRTUAL` of illumos: strongly ordered, which ours always is.
const MEM_TYPE_SO_VIRTUAL: DAT_MEM_TYPE = 3;

/// A registered memory region.
#[repr(align(64))]
pub struct Lmr<D: Device> {
    base: Base<D>,
    mem_type: DAT_MEM_TYPE,
    region: Region,
    /// What the addresses of its bytes are.
    addressing: Addressing,
    /// Address of the first byte in memory.
    address: u64,
    /// Number of bytes.
    length: u64,
    privileges: DAT_MEM_PRIV_FLAGS,
    access: Access,
    lmr_context: u32,
    rmr_context: u32,
    /// The registration and what it uses; `None` once the LMR is freed.
    registration: Mutex<Option<Registration<D>>>,
    /// The handle of the protection zone.
    pz: DAT_PZ_HANDLE,
}

struct Registration<D: Device> {
    mr: D::Mr,
    /// RMRs bound to the region.
    bound: usize,
    _pz: PzUse<D>,
}

/// The use of a region by a bound RMR. Dropping it ends the use.
pub struct LmrUse<D: Device>(Arc<Lmr<D>>);

impl<D: Device> LmrUse<D> {
    /// Begins a use.
    ///
    /// # Errors
    /// `DAT_INVALID_HANDLE` when the region is freed.
    pub fn begin(lmr: Arc<Lmr<D>>) -> Result<Self> {
        match &mut *lmr.registration.lock() {
            Some(registration) => registration.bound += 1,
            None => return Err(Error::handle(Subtype::HandleLmr)),
        }
        Ok(LmrUse(lmr))
    }

    /// Calls `f` with the device's region, which remains registered meanwhile.
    pub fn with<R>(&self, f: impl FnOnce(&D::Mr) -> R) -> Option<R> {
        self.0.registration.lock().as_ref().map(|r| f(&r.mr))
    }
}

impl<D: Device> Drop for LmrUse<D> {
    fn drop(&mut self) {
        if let Some(registration) = &mut *self.0.registration.lock() {
            registration.bound -= 1;
        }
    }
}

/// The description the region was made from, for `dat_lmr_query`.
struct Region(DAT_REGION_DESCRIPTION);

// SAFETY: pointers of the consumer that are handed back, never followed; the device's part is
// Send and Sync.
unsafe impl<D: Device> Send for Lmr<D> {}
// SAFETY: as above.
unsafe impl<D: Device> Sync for Lmr<D> {}

dat_object!(Lmr, Lmr, HandleLmr);

impl<D: Device> Child for Lmr<D> {
    fn destroy(&self) {
        let registration = self.registration.lock().take();
        unpublish(self);
        drop(registration);
    }
}

impl<D: Device> Lmr<D> {
    fn create<A: Abi>(
        ia: &Arc<Ia<D>>,
        mem_type: DAT_MEM_TYPE,
        region: DAT_REGION_DESCRIPTION,
        length: u64,
        pz: &Arc<Pz<D>>,
        privileges: DAT_MEM_PRIV_FLAGS,
        addressing: Addressing,
    ) -> Result<Arc<Self>> {
        check_addressing(ia, addressing)?;
        let (address, length) = match mem_type {
            DAT_MEM_TYPE_VIRTUAL | MEM_TYPE_SO_VIRTUAL => {
                // SAFETY: every bit pattern is a valid pointer value; it is not followed.
                (unsafe { region.for_va }.expose_provenance() as u64, length)
            }
            DAT_MEM_TYPE_LMR => {
                // SAFETY: as above.
                let source = lookup::<D, Lmr<D>>(unsafe { region.for_lmr_handle })?;
                if source.registration.lock().is_none() {
                    return Err(Error::handle(Subtype::HandleLmr));
                }
                (source.address, source.length)
            }
            // Every sharer registers its own mapping of the memory, with keys of its own: the
            // cookie, which lets an adapter share a translation table, changes nothing here.
            DAT_MEM_TYPE_SHARED_VIRTUAL => {
                // SAFETY: as above.
                let shared = unsafe { region.for_shared_memory };
                non_null(shared.shared_memory_id, Subtype::Arg3)?;
                (shared.virtual_address.expose_provenance() as u64, length)
            }
            _ => return Err(Error::arg(Subtype::Arg2)),
        };
        if length == 0 {
            // The man page of 1.2 names only the argument; programs written to 2.0 compare with
            // the code for lengths.
            return Err(match A::VERSION {
                Version::V1 => Error::arg(Subtype::Arg4),
                Version::V2 => Kind::LengthError.into(),
            });
        }
        if address.checked_add(length).is_none() {
            return Err(Error::arg(Subtype::Arg4));
        }
        let access = ia
            .rules
            .local_access(access(privileges, A::VERSION, Subtype::Arg6)?);
        let in_pz = pz.enter(ia)?;
        let mr = ia
            .device
            .reg_mr_addressed(&in_pz.pd, address, length, access, addressing)
            .map_err(|e| device_error(e, Subtype::ResourceMemoryRegion))?;
        let lmr = Arc::new(Lmr {
            base: Base::new(ia.clone()),
            mem_type,
            region: Region(region),
            addressing,
            address,
            length,
            privileges,
            access,
            lmr_context: mr.lkey(),
            rmr_context: mr.rkey(),
            pz: pz.handle().0,
            registration: Mutex::new(Some(Registration {
                mr,
                bound: 0,
                _pz: in_pz,
            })),
        });
        publish(&lmr)?;
        ia.add_lmr(lmr.lmr_context, lmr.handle());
        Ok(lmr)
    }

    /// The region of an IA instance with this context.
    pub fn of_context(ia: &Ia<D>, context: u32) -> Option<Arc<Self>> {
        handle::get_shared(ia.lmr(context)?.0)
    }

    /// The handle of its protection zone.
    pub fn pz(&self) -> DAT_PZ_HANDLE {
        self.pz
    }

    /// The access that the region allows.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The address by which segments name the first byte.
    fn first_address(&self) -> u64 {
        match self.addressing {
            Addressing::Virtual => self.address,
            Addressing::ZeroBased => 0,
        }
    }

    /// Whether the range is of this region and lies inside it.
    pub fn covers(&self, range: &LmrRange) -> bool {
        let offset = range.addr.wrapping_sub(self.first_address());
        let room = self.length.checked_sub(offset);
        range.lmr_context == self.lmr_context && room.is_some_and(|room| range.len <= room)
    }

    /// The context of the region.
    pub fn context(&self) -> u32 {
        self.lmr_context
    }

    /// Whether an RMR uses the region.
    pub fn is_bound(&self) -> bool {
        let held = self.registration.lock();
        held.as_ref()
            .is_some_and(|registration| registration.bound > 0)
    }

    /// Deregisters the region, which no RMR uses.
    pub fn free(&self) -> Result<()> {
        let mut held = self.registration.lock();
        match &*held {
            Some(registration) if registration.bound > 0 => {
                return Err(Error::state(Subtype::StateLmrInUse));
            }
            Some(_) => {}
            None => return Err(Error::handle(Subtype::HandleLmr)),
        }
        // Deregistration may wait for accesses in progress; the lock is not held meanwhile.
        let registration = held.take();
        drop(held);
        self.base.ia.remove_lmr(self.lmr_context);
        unpublish(self);
        drop(registration);
        Ok(())
    }
}

/// What the addresses of a region or window of this type are.
///
/// # Errors
/// `DAT_INVALID_PARAMETER` of `arg` for a type that does not exist.
pub(super) fn addressing(va_type: v2::DAT_VA_TYPE, arg: Subtype) -> Result<Addressing> {
    match va_type {
        v2::DAT_VA_TYPE_VA => Ok(Addressing::Virtual),
        v2::DAT_VA_TYPE_ZB => Ok(Addressing::ZeroBased),
        _ => Err(Error::arg(arg)),
    }
}

/// Whether an IA has regions and windows with such addresses.
///
/// # Errors
/// `DAT_MODEL_NOT_SUPPORTED` if its attribute `zb_supported` is false and they are zero-based.
pub(super) fn check_addressing<D: Device>(ia: &Ia<D>, addressing: Addressing) -> Result<()> {
    match addressing {
        Addressing::ZeroBased if !ia.device.attr().zero_based => {
            Err(Kind::ModelNotSupported.into())
        }
        _ => Ok(()),
    }
}

/// `dat_lmr_create` of DAT 1.2, which knows virtual addresses only.
///
/// # Safety
/// The pointers are NULL or as the man page says.
pub unsafe extern "C" fn lmr_create<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    mem_type: DAT_MEM_TYPE,
    region_description: DAT_REGION_DESCRIPTION,
    length: DAT_VLEN,
    pz_handle: DAT_PZ_HANDLE,
    privileges: DAT_MEM_PRIV_FLAGS,
    lmr_handle: *mut DAT_LMR_HANDLE,
    lmr_context: *mut DAT_LMR_CONTEXT,
    rmr_context: *mut DAT_RMR_CONTEXT,
    registered_length: *mut DAT_VLEN,
    registered_address: *mut DAT_VADDR,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe {
        lmr_create_with_va_type::<A, D>(
            ia_handle,
            mem_type,
            region_description,
            length,
            pz_handle,
            privileges,
            v2::DAT_VA_TYPE_VA,
            lmr_handle,
            lmr_context,
            rmr_context,
            registered_length,
            registered_address,
        )
    }
}

/// `dat_lmr_create` of DAT 2.0, which says how the region is addressed. All OUT arguments but
/// the handle may be NULL.
///
/// # Safety
/// The pointers are NULL or as the man page says.
pub unsafe extern "C" fn lmr_create_with_va_type<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    mem_type: DAT_MEM_TYPE,
    region_description: DAT_REGION_DESCRIPTION,
    length: DAT_VLEN,
    pz_handle: DAT_PZ_HANDLE,
    privileges: DAT_MEM_PRIV_FLAGS,
    va_type: v2::DAT_VA_TYPE,
    lmr_handle: *mut DAT_LMR_HANDLE,
    lmr_context: *mut DAT_LMR_CONTEXT,
    rmr_context: *mut DAT_RMR_CONTEXT,
    registered_length: *mut DAT_VLEN,
    registered_address: *mut DAT_VADDR,
) -> DAT_RETURN {
    creation::<A>(|| {
        let addressing = addressing(va_type, Subtype::Arg7)?;
        let ia = lookup_ia::<D>(ia_handle)?;
        let pz: Arc<Pz<D>> = lookup(pz_handle)?;
        non_null(lmr_handle, Subtype::Arg7)?;
        let region = region_description;
        let lmr = Lmr::create::<A>(&ia, mem_type, region, length, &pz, privileges, addressing)?;
        // SAFETY: the caller's promise; the handle is not NULL.
        unsafe {
            lmr_handle.write(lmr.handle().0);
            write_opt(lmr_context, lmr.lmr_context);
            write_opt(rmr_context, lmr.rmr_context);
            write_opt(registered_length, lmr.length);
            write_opt(registered_address, lmr.first_address());
        }
        Ok(())
    })
}

/// `dat_lmr_query`.
///
/// # Safety
/// `lmr_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn lmr_query<A: Abi, D: Device>(
    lmr_handle: DAT_LMR_HANDLE,
    mask: DAT_LMR_PARAM_MASK,
    lmr_param: *mut A::LmrParam,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let lmr: Arc<Lmr<D>> = lookup(lmr_handle)?;
        let read = || {
            Ok(A::lmr_param(&LmrParam {
                ia: lmr.base.ia.handle().0,
                mem_type: lmr.mem_type,
                region: lmr.region.0,
                length: lmr.length,
                pz: lmr.pz,
                privileges: lmr.privileges,
                lmr_context: lmr.lmr_context,
                rmr_context: lmr.rmr_context,
                registered_address: lmr.first_address(),
                addressing: lmr.addressing,
            }))
        };
        // SAFETY: the caller's promise.
        unsafe { answer_query(mask.into(), A::LMR_FIELDS.into(), lmr_param, read) }
    })
}

/// `dat_lmr_sync_rdma_read` and `dat_lmr_sync_rdma_write`.
///
/// The provider attribute `lmr_sync_req` is false: memory is coherent, and the calls only check
/// their arguments.
///
/// # Safety
/// `local_segments` is NULL or points to `num_segments` triplets.
pub unsafe extern "C" fn lmr_sync<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    local_segments: *const A::LmrTriplet,
    num_segments: DAT_VLEN,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        if num_segments == 0 {
            return Ok(());
        }
        non_null(local_segments, Subtype::Arg2)?;
        let count = usize::try_from(num_segments).map_err(|_| Error::arg(Subtype::Arg3))?;
        for i in 0..count {
            // SAFETY: the caller's promise; C does not promise alignment.
            let triplet = unsafe { local_segments.add(i).read_unaligned() };
            let range = A::lmr_range(&triplet);
            let lmr = Lmr::of_context(&ia, range.lmr_context);
            if !lmr.is_some_and(|lmr| lmr.covers(&range)) {
                return Err(Error::arg(Subtype::Arg2));
            }
        }
        // Stores of this thread become visible before any later message to the peer.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    })
}
