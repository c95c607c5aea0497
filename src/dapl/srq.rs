//! Shared receive queues: `dat_srq_create`, `dat_srq_post_recv`, `dat_srq_query`,
//! `dat_srq_resize`, `dat_srq_set_lw`, `dat_srq_free`.

use std::sync::{Arc, OnceLock, Weak};

use crate::lock::{Mutex, MutexGuard};

use super::abi::Abi;
use super::boundary::{answer_query, boundary, creation, device_error, non_null, short_boundary};
use super::ia::{Child, Ia, lookup_ia};
use super::object::{Base, dat_object, lookup, publish, unpublish};
use super::outstanding::Outstanding;
use super::pz::{Pz, PzUse};
use super::types::Handle;
use super::work_request::{Segments, post_error};
use crate::abi::common::*;
use crate::delay;
use crate::device::{
    CompletionQueue, CqHandler, Device, DeviceError, PostError, RecvWr, SharedReceiveQueue,
    SrqHandler, WrFlags,
};
use crate::error::{Error, Kind, Result, Subtype};
use crate::figures::Json;
use crate::handle::{self, pin};

/// A shared receive queue: buffers for any of the endpoints made with it.
#[repr(align(64))]
pub struct Srq<D: Device> {
    base: Base<D>,
    /// The device's queue.
    srq: Arc<D::Srq>,
    /// The completion queue for receives of endpoints without an EVD for receives. It is made
    /// for the first of them; its completions are only counted.
    unreported: OnceLock<Arc<D::Cq>>,
    /// Held while completions are taken from `unreported`.
    draining: Mutex<()>,
    /// The handle of the protection zone.
    pz: DAT_PZ_HANDLE,
    max_recv_iov: DAT_COUNT,
    /// Buffers posted whose completions the consumer has not taken from an EVD yet.
    outstanding: Outstanding,
    state: Mutex<State<D>>,
}

struct State<D: Device> {
    max_recv_dtos: DAT_COUNT,
    low_watermark: DAT_COUNT,
    /// Endpoints made with the SRQ; `None` once it is freed.
    users: Option<usize>,
    pz: Option<PzUse<D>>,
}

// SAFETY: the handle of the protection zone is handed back, never followed; the rest is Send
// and Sync.
unsafe impl<D: Device> Send for Srq<D> {}
// SAFETY: as above.
unsafe impl<D: Device> Sync for Srq<D> {}

dat_object!(Srq, Srq, HandleSrq);

impl<D: Device> Child for Srq<D> {
    fn destroy(&self) {
        self.release(self.state.lock());
    }

    fn figures(&self, json: &mut Json) {
        let state = self.state.lock();
        let (max, users) = (state.max_recv_dtos, state.users);
        drop(state);
        let count = |n: DAT_COUNT| u64::try_from(n).ok();
        json.number_or_null("receives", self.srq.available());
        json.number_or_null("max_receives", count(max));
        // Buffers whose completions the program has not taken, those that wait for messages among them.
        json.number_or_null("outstanding", count(self.outstanding.get()));
        json.number_or_null("endpoints", users.map(|users| users as u64));
    }
}

/// The handler of the device's queue.
struct Upcall<D: Device>(OnceLock<Weak<Srq<D>>>);

impl<D: Device> Upcall<D> {
    /// Reports an asynchronous error. There is no event number for an SRQ; the reason tells them apart.
    fn report(&self, reason: DAT_SRQ_ASYNC_ERROR_REASON) {
        if let Some(srq) = self.0.get().and_then(Weak::upgrade) {
            let number = DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR;
            srq.base.ia.async_event(number, srq.handle(), reason);
        }
    }
}

impl<D: Device> SrqHandler for Upcall<D> {
    fn limit(&self) {
        self.report(DAT_SRQ_LOW_WATERMARK_EVENT);
    }

    fn failed(&self) {
        self.report(DAT_SRQ_TRANSFER_TO_ERROR);
    }
}

/// The handler of the completion queue [`Srq::unreported`].
struct Unreported<D: Device>(Weak<Srq<D>>);

impl<D: Device> CqHandler for Unreported<D> {
    fn notify(&self) {
        if let Some(srq) = self.0.upgrade() {
            if let Some(cq) = srq.unreported.get() {
                // A completion that arrives meanwhile either notifies again or is taken below.
                cq.arm();
            }
            srq.drain();
        }
    }

    fn overflow(&self) {
        if let Some(srq) = self.0.upgrade() {
            srq.outstanding.retire(1);
        }
    }
}

/// The use of an SRQ by an endpoint. Dropping it ends the use.
pub struct SrqUse<D: Device>(Arc<Srq<D>>);

impl<D: Device> SrqUse<D> {
    /// The handle.
    pub fn handle(&self) -> Handle {
        self.0.handle()
    }

    /// Accepts the protection zone of an endpoint with the SRQ, if it has one.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER` of argument `arg` for another zone than that of the SRQ: the provider
    /// attribute `srq_ep_pz_difference_supported` is false.
    pub fn check_zone(&self, pz: Option<&Pz<D>>, arg: Subtype) -> Result<()> {
        self.0.check_zone(pz, arg)
    }

    /// The device's queue.
    pub fn device(&self) -> &Arc<D::Srq> {
        &self.0.srq
    }

    /// The number of buffers whose completions the consumer has not taken.
    pub fn outstanding(&self) -> &Outstanding {
        &self.0.outstanding
    }

    /// Makes the completion queue for endpoints without an EVD for receives.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn prepare_unreported(&self) -> Result<()> {
        self.0.prepare_unreported()
    }

    /// That completion queue, if it is made.
    pub fn unreported(&self) -> Option<&Arc<D::Cq>> {
        self.0.unreported.get()
    }
}

impl<D: Device> Drop for SrqUse<D> {
    fn drop(&mut self) {
        if let Some(users) = &mut self.0.state.lock().users {
            *users -= 1;
        }
    }
}

impl<D: Device> Srq<D> {
    fn create(ia: &Arc<Ia<D>>, pz: &Arc<Pz<D>>, attr: &DAT_SRQ_ATTR) -> Result<Arc<Self>> {
        let limits = ia.device.attr();
        if limits.max_srq == 0 {
            return Err(Kind::ModelNotSupported.into());
        }
        let invalid = Error::arg(Subtype::Arg3);
        let count =
            |n: DAT_COUNT, max: u32| u32::try_from(n).ok().filter(|n| *n <= max).ok_or(invalid);
        let max_wr = count(attr.max_recv_dtos, limits.max_srq_wr)?;
        let max_sge = count(attr.max_recv_iov, limits.max_sge)?;
        if max_wr == 0 || attr.low_watermark != DAT_SRQ_LW_DEFAULT {
            return Err(invalid);
        }
        let in_pz = pz.enter(ia)?;
        let upcall = Arc::new(Upcall(OnceLock::new()));
        let srq = ia
            .device
            .create_srq(&in_pz.pd, max_wr, max_sge, upcall.clone())
            .map_err(|e| device_error(e, Subtype::ResourceSrq))?;
        let srq = Arc::new(Srq {
            base: Base::new(ia.clone()),
            srq,
            unreported: OnceLock::new(),
            draining: Mutex::new(()),
            pz: pz.handle().0,
            max_recv_iov: attr.max_recv_iov,
            outstanding: Outstanding::default(),
            state: Mutex::new(State {
                max_recv_dtos: attr.max_recv_dtos,
                low_watermark: DAT_SRQ_LW_DEFAULT,
                users: Some(0),
                pz: Some(in_pz),
            }),
        });
        let _ = upcall.0.set(Arc::downgrade(&srq));
        publish(&srq)?;
        Ok(srq)
    }

    /// [`SrqUse::check_zone`] before the use.
    ///
    /// # Errors
    /// As there.
    pub fn check_zone(&self, pz: Option<&Pz<D>>, arg: Subtype) -> Result<()> {
        match pz {
            Some(pz) if pz.handle().0 != self.pz => Err(Error::arg(arg)),
            _ => Ok(()),
        }
    }

    /// An endpoint of the same IA begins to use the SRQ.
    ///
    /// # Errors
    /// `DAT_INVALID_HANDLE` when the SRQ is being freed or belongs to another IA.
    pub fn enter(self: Arc<Self>, ia: &Arc<Ia<D>>) -> Result<SrqUse<D>> {
        let mut state = self.state.lock();
        match &mut state.users {
            Some(n) if Arc::ptr_eq(&self.base.ia, ia) => *n += 1,
            _ => return Err(Error::handle(Subtype::HandleSrq)),
        }
        drop(state);
        Ok(SrqUse(self))
    }

    fn prepare_unreported(self: &Arc<Self>) -> Result<()> {
        let state = self.state.lock();
        if self.unreported.get().is_some() {
            return Ok(());
        }
        // Every buffer may complete before the first completion is taken.
        let entries = u32::try_from(state.max_recv_dtos).unwrap_or(1);
        let handler = Arc::new(Unreported(Arc::downgrade(self)));
        let cq = self
            .base
            .ia
            .device
            .create_cq(entries, handler)
            .map_err(|e| device_error(e, Subtype::ResourceSrq))?;
        cq.arm();
        let _ = self.unreported.set(cq);
        Ok(())
    }

    /// Takes the completions of `unreported`: their buffers are the consumer's again.
    fn drain(&self) {
        let Some(cq) = self.unreported.get() else {
            return;
        };
        let _draining = self.draining.lock();
        while let Some(completion) = cq.poll() {
            self.outstanding.retire(usize::from(completion.from_srq));
        }
    }

    fn post(&self, wr: &RecvWr<'_>) -> std::result::Result<(), PostError> {
        let rules = self.base.ia.rules;
        self.post_checked(wr)
            .or_else(|error| rules.receive_again(*wr, error, |wr| self.post_checked(wr)))
    }

    fn post_checked(&self, wr: &RecvWr<'_>) -> std::result::Result<(), PostError> {
        match self.srq.post_recv(wr) {
            // The queue may be full only because the completions have not been taken.
            Err(PostError::QueueFull) if self.unreported.get().is_some() => {
                self.drain();
                self.srq.post_recv(wr)
            }
            result => result,
        }
    }

    fn resize(&self, max: DAT_COUNT) -> Result<()> {
        let wanted = u32::try_from(max)
            .ok()
            .filter(|n| *n > 0 && *n <= self.base.ia.device.attr().max_srq_wr)
            .ok_or(Error::arg(Subtype::Arg2))?;
        self.drain();
        let mut state = self.state.lock();
        if max < self.outstanding.get() || max < state.low_watermark {
            return Err(Kind::InvalidState.into());
        }
        if let Some(cq) = self.unreported.get().filter(|cq| cq.capacity() < wanted) {
            cq.resize(wanted)
                .map_err(|e| device_error(e, Subtype::ResourceSrq))?;
        }
        self.srq.resize(wanted).map_err(|e| match e {
            DeviceError::Limit => Kind::InvalidState.into(),
            e => device_error(e, Subtype::ResourceSrq),
        })?;
        state.max_recv_dtos = max;
        Ok(())
    }

    fn set_low_watermark(&self, mark: DAT_COUNT) -> Result<()> {
        let mut state = self.state.lock();
        let limit = u32::try_from(mark)
            .ok()
            .filter(|_| mark <= state.max_recv_dtos)
            .ok_or(Error::arg(Subtype::Arg2))?;
        let before = std::mem::replace(&mut state.low_watermark, mark);
        drop(state);
        // Without the lock: the mark may be reported at once.
        self.srq.arm_limit(limit).map_err(|e| {
            self.state.lock().low_watermark = before;
            device_error(e, Subtype::ResourceSrq)
        })
    }

    fn free(&self) -> Result<()> {
        let state = self.state.lock();
        match state.users {
            Some(0) => {}
            Some(_) => return Err(Error::state(Subtype::StateSrqInUse)),
            None => return Err(Error::handle(Subtype::HandleSrq)),
        }
        self.release(state);
        Ok(())
    }

    fn release(&self, mut state: MutexGuard<'_, State<D>>) {
        state.users = None;
        let pz = state.pz.take();
        drop(state);
        unpublish(self);
        drop(pz);
    }
}

/// `dat_srq_create`.
///
/// # Safety
/// `srq_attr` is NULL or points to attributes, `srq_handle` to memory for a handle.
pub unsafe extern "C" fn srq_create<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    pz_handle: DAT_PZ_HANDLE,
    srq_attr: *mut DAT_SRQ_ATTR,
    srq_handle: *mut DAT_SRQ_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        let pz: Arc<Pz<D>> = lookup(pz_handle)?;
        non_null(srq_attr, Subtype::Arg3)?;
        non_null(srq_handle, Subtype::Arg4)?;
        // SAFETY: not NULL.
        let srq = Srq::create(&ia, &pz, unsafe { &*srq_attr })?;
        // SAFETY: not NULL.
        unsafe { srq_handle.write(srq.handle().0) };
        Ok(())
    })
}

/// `dat_srq_post_recv`.
///
/// # Safety
/// `local_iov` is NULL or points to `num_segments` triplets.
pub unsafe extern "C" fn srq_post_recv<A: Abi, D: Device>(
    srq_handle: DAT_SRQ_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
) -> DAT_RETURN {
    short_boundary::<A>(|| {
        let guard = pin::pin();
        let srq: &Srq<D> =
            handle::get(srq_handle, &guard).ok_or(Error::handle(Subtype::HandleSrq))?;
        let mut segments = Segments::new();
        // SAFETY: the caller's promise.
        let (sges, _) = unsafe { segments.read::<A>(num_segments, local_iov) }?;
        let wr = RecvWr {
            // SAFETY: every bit pattern is a valid integer.
            wr_id: unsafe { user_cookie.as_64 },
            sges,
            flags: WrFlags::empty(),
        };
        // Counted first, as the buffer may complete before the post returns.
        srq.outstanding.add();
        delay::point("srq.post");
        srq.post(&wr).map_err(|e| {
            srq.outstanding.retire(1);
            post_error(e, false)
        })
    })
}

/// `dat_srq_query`.
///
/// # Safety
/// `srq_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn srq_query<A: Abi, D: Device>(
    srq_handle: DAT_SRQ_HANDLE,
    mask: DAT_SRQ_PARAM_MASK,
    srq_param: *mut DAT_SRQ_PARAM,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let srq: Arc<Srq<D>> = lookup(srq_handle)?;
        let read = || {
            let available = srq.srq.available();
            srq.drain();
            let state = srq.state.lock();
            Ok(DAT_SRQ_PARAM {
                ia_handle: srq.base.ia.handle().0,
                srq_state: A::SRQ_OPERATIONAL,
                pz_handle: srq.pz,
                max_recv_dtos: state.max_recv_dtos,
                max_recv_iov: srq.max_recv_iov,
                low_watermark: state.low_watermark,
                available_dto_count: available.map_or(DAT_VALUE_UNKNOWN, |n| n as DAT_COUNT),
                outstanding_dto_count: srq.outstanding.get(),
            })
        };
        // SAFETY: the caller's promise.
        unsafe { answer_query(mask.into(), DAT_SRQ_FIELD_ALL.into(), srq_param, read) }
    })
}

/// `dat_srq_resize`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn srq_resize<A: Abi, D: Device>(
    srq_handle: DAT_SRQ_HANDLE,
    srq_max_recv_dto: DAT_COUNT,
) -> DAT_RETURN {
    creation::<A>(|| lookup::<D, Srq<D>>(srq_handle)?.resize(srq_max_recv_dto))
}

/// `dat_srq_set_lw`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn srq_set_lw<A: Abi, D: Device>(
    srq_handle: DAT_SRQ_HANDLE,
    low_watermark: DAT_COUNT,
) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Srq<D>>(srq_handle)?.set_low_watermark(low_watermark))
}

/// `dat_srq_free`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn srq_free<A: Abi, D: Device>(srq_handle: DAT_SRQ_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Srq<D>>(srq_handle)?.free())
}
