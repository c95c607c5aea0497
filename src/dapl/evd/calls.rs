//! The C functions of EVDs.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::Evd;
use super::dequeue::evd_of;
use crate::abi::common::*;
use crate::cancel::{self, Cancelled, Waiting};
use crate::dapl::abi::Abi;
use crate::dapl::boundary::{
    answer_query, boundary, creation, device_error, non_null, short_boundary, timeout,
};
use crate::dapl::cno::{AgentCall, Cno};
use crate::dapl::ia::lookup_ia;
use crate::dapl::object::{lookup, lookup_opt};
use crate::dapl::resolution::Resolution;
use crate::dapl::types::{Event, Extension, Opaque};
use crate::device::{CompletionQueue, Device, DeviceError};
use crate::error::{Error, Kind, Result, Subtype};
use crate::handle::{self, pin};

/// `dat_evd_create`.
///
/// # Safety
/// `evd_handle` is NULL or points to memory for a handle.
pub unsafe extern "C" fn evd_create<A: Abi, D: Device>(
    ia_handle: DAT_IA_HANDLE,
    evd_min_qlen: DAT_COUNT,
    cno_handle: DAT_CNO_HANDLE,
    evd_flags: DAT_EVD_FLAGS,
    evd_handle: *mut DAT_EVD_HANDLE,
) -> DAT_RETURN {
    creation::<A>(|| {
        let ia = lookup_ia::<D>(ia_handle)?;
        let cno: Option<Arc<Cno<D>>> = lookup_opt(cno_handle, Subtype::HandleCno)?;
        non_null(evd_handle, Subtype::Arg5)?;
        if evd_flags == 0 || evd_flags & !A::EVD_FLAGS != 0 {
            return Err(Error::arg(Subtype::Arg4));
        }
        let evd = Evd::create(&ia, evd_min_qlen, cno, evd_flags)?;
        // SAFETY: not NULL.
        unsafe { evd_handle.write(evd.handle().0) };
        Ok(())
    })
}

/// `dat_evd_query`.
///
/// # Safety
/// `evd_param` is NULL or points to memory for the parameters.
pub unsafe extern "C" fn evd_query<A: Abi, D: Device>(
    evd_handle: DAT_EVD_HANDLE,
    mask: DAT_EVD_PARAM_MASK,
    evd_param: *mut DAT_EVD_PARAM,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let evd: Arc<Evd<D>> = lookup(evd_handle)?;
        let read = || Ok(evd.param());
        // SAFETY: the caller's promise.
        unsafe { answer_query(mask.into(), DAT_EVD_FIELD_ALL.into(), evd_param, read) }
    })
}

/// `dat_evd_modify_cno`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn evd_modify_cno<A: Abi, D: Device>(
    evd_handle: DAT_EVD_HANDLE,
    cno_handle: DAT_CNO_HANDLE,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let evd: Arc<Evd<D>> = lookup(evd_handle)?;
        let cno: Option<Arc<Cno<D>>> = lookup_opt(cno_handle, Subtype::HandleCno)?;
        evd.modify_cno(cno)
    })
}

/// `dat_evd_enable`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn evd_enable<A: Abi, D: Device>(evd_handle: DAT_EVD_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| {
        lookup::<D, Evd<D>>(evd_handle)?.set_enabled(true);
        Ok(())
    })
}

/// `dat_evd_disable`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn evd_disable<A: Abi, D: Device>(evd_handle: DAT_EVD_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| {
        lookup::<D, Evd<D>>(evd_handle)?.set_enabled(false);
        Ok(())
    })
}

/// `dat_evd_set_unwaitable`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn evd_set_unwaitable<A: Abi, D: Device>(
    evd_handle: DAT_EVD_HANDLE,
) -> DAT_RETURN {
    boundary::<A>(|| {
        lookup::<D, Evd<D>>(evd_handle)?.set_waitable(false);
        Ok(())
    })
}

/// `dat_evd_clear_unwaitable`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn evd_clear_unwaitable<A: Abi, D: Device>(
    evd_handle: DAT_EVD_HANDLE,
) -> DAT_RETURN {
    boundary::<A>(|| {
        lookup::<D, Evd<D>>(evd_handle)?.set_waitable(true);
        Ok(())
    })
}

/// `dat_evd_resize`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn evd_resize<A: Abi, D: Device>(
    evd_handle: DAT_EVD_HANDLE,
    evd_min_qlen: DAT_COUNT,
) -> DAT_RETURN {
    creation::<A>(|| lookup::<D, Evd<D>>(evd_handle)?.resize(evd_min_qlen))
}

/// `dat_evd_wait`.
///
/// # Safety
/// The pointers are NULL or point to memory for an event and a count; for the handle as
/// [`handle::get_as`].
#[inline(never)]
pub unsafe extern "C-unwind" fn evd_wait<A: Abi, D: Device, const KNOWN: bool>(
    evd_handle: DAT_EVD_HANDLE,
    wait: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    event: *mut A::Event,
    n_more_events: *mut DAT_COUNT,
) -> DAT_RETURN {
    let mut cancelled = false;
    let code = short_boundary::<A>(|| {
        // SAFETY: not NULL, see below; `MaybeUninit` needs only the memory.
        let out = || unsafe { &mut *event.cast::<MaybeUninit<A::Event>>() };
        // SAFETY: not NULL, see below.
        let write_more = |more: usize| unsafe {
            n_more_events.write(DAT_COUNT::try_from(more).unwrap_or(DAT_COUNT::MAX));
        };
        let guard = pin::pin();
        // SAFETY: the caller's promise.
        let evd = unsafe { evd_of::<D, KNOWN>(evd_handle, &guard) }?;
        non_null(event, Subtype::Arg4)?;
        non_null(n_more_events, Subtype::Arg5)?;
        if let Some(more) = evd.wait_ready::<A>(threshold, evd_handle, out(), &guard) {
            guard.end_call();
            write_more(more);
            return Ok(());
        }
        // A wait may block, and a section that lasts would delay the frees of other threads.
        let evd = handle::share(evd);
        guard.end_call();
        let Ok(_waiting) = Waiting::begin() else {
            cancelled = true;
            return Ok(());
        };
        let result = evd.wait(timeout(wait), threshold).map(|(result, more)| {
            write_more(more);
            evd.write_event::<A>(&result?, evd_handle, out());
            Ok(())
        });
        // If the IA was closed meanwhile, all that it had may go with this reference.
        cancel::drop_reference(evd);
        result.unwrap_or_else(|Cancelled| {
            cancelled = true;
            Ok(())
        })
    });
    if cancelled {
        // SAFETY: all that this call had is destroyed, and its callers in the library, which have
        // nothing, may be unwound.
        unsafe { cancel::exit() };
    }
    code
}

/// `dat_evd_post_se`.
///
/// # Safety
/// `event` is NULL or points to an event.
pub unsafe extern "C" fn evd_post_se<A: Abi, D: Device>(
    evd_handle: DAT_EVD_HANDLE,
    event: *const A::Event,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let evd: Arc<Evd<D>> = lookup(evd_handle)?;
        if evd.flags & DAT_EVD_SOFTWARE_FLAG == 0 {
            return Err(Error::arg(Subtype::Arg1));
        }
        non_null(event, Subtype::Arg2)?;
        // SAFETY: not NULL.
        let (number, pointer) = A::software_event(unsafe { &*event });
        if number != DAT_SOFTWARE_EVENT {
            return Err(Error::arg(Subtype::Arg2));
        }
        evd.post_software(Event::Software(Opaque(pointer)))
    })
}

/// `dat_evd_free`.
///
/// # Safety
/// No pointers; any handle value is safe.
pub unsafe extern "C" fn evd_free<A: Abi, D: Device>(evd_handle: DAT_EVD_HANDLE) -> DAT_RETURN {
    boundary::<A>(|| lookup::<D, Evd<D>>(evd_handle)?.free())
}

impl<D: Device> Evd<D> {
    fn param(&self) -> DAT_EVD_PARAM {
        let state = self.state.lock();
        let mut bits = if state.enabled {
            DAT_EVD_STATE_ENABLED
        } else {
            DAT_EVD_STATE_DISABLED
        };
        bits |= if state.waitable {
            DAT_EVD_STATE_WAITABLE
        } else {
            DAT_EVD_STATE_UNWAITABLE
        };
        bits |= state.streams.config();
        let cno = state.cno.as_ref().map(|cno| cno.handle().0);
        DAT_EVD_PARAM {
            ia_handle: self.base.ia.handle().0,
            evd_qlen: DAT_COUNT::try_from(state.qlen).unwrap_or(DAT_COUNT::MAX),
            evd_state: bits,
            cno_handle: cno.unwrap_or(DAT_HANDLE_NULL),
            evd_flags: self.flags,
        }
    }

    fn modify_cno(&self, cno: Option<Arc<Cno<D>>>) -> Result<()> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::handle(Subtype::HandleEvdRequest));
        }
        // A trigger of the CNO that the EVD has already is remembered.
        if state.cno.as_ref().map(Arc::as_ptr) == cno.as_ref().map(Arc::as_ptr) {
            return Ok(());
        }
        if let Some(cno) = &cno {
            cno.attach(&self.base.ia)?;
        }
        let old = std::mem::replace(&mut state.cno, cno);
        self.arm(&state);
        let mut call = AgentCall::NONE;
        // A trigger of the old CNO that no thread was told of would be lost with the events that made it.
        if old.as_ref().is_some_and(|old| old.withdraw(self.handle())) {
            self.drain(&mut state, &pin::pin());
            if let Some(cno) = state.cno.as_ref().filter(|_| !state.queue.is_empty()) {
                call = cno.trigger(self.handle());
            }
        }
        drop(state);
        if let Some(old) = old {
            old.detach(self.handle());
        }
        call.make();
        Ok(())
    }

    fn set_enabled(&self, enabled: bool) {
        let mut state = self.state.lock();
        state.enabled = enabled;
        self.arm(&state);
    }

    fn set_waitable(&self, waitable: bool) {
        let mut state = self.state.lock();
        state.waitable = waitable;
        if !waitable {
            // Remembered: the EVD may be waitable again before the waiter runs.
            state.evicted = true;
            self.signal(&mut state);
        }
    }

    fn resize(&self, qlen: DAT_COUNT) -> Result<()> {
        let qlen = Self::check_length(&self.base.ia, qlen)?.ok_or(Error::arg(Subtype::Arg2))?;
        let mut state = self.state.lock();
        self.drain(&mut state, &pin::pin());
        if state.queue.len().max(state.threshold) > qlen as usize {
            return Err(Kind::InvalidState.into());
        }
        let queued = state.queue.len();
        state.queue.try_reserve_exact(qlen as usize - queued)?;
        if let Some(cq) = &self.cq {
            cq.resize(qlen).map_err(|e| match e {
                DeviceError::Limit => Kind::InvalidState.into(),
                e => device_error(e, Subtype::ResourceTevd),
            })?;
        }
        // The device may have made room for more than that, which is used if there is memory for it.
        let held = self.cq.as_ref().map_or(qlen, |cq| cq.capacity()) as usize;
        let _ = state.queue.try_reserve_exact(held.saturating_sub(queued));
        state.qlen = held.min(state.queue.capacity());
        Ok(())
    }

    /// Writes an event that leaves the EVD as C sees it.
    pub(super) fn write_event<A: Abi>(
        &self,
        event: &Event,
        handle: DAT_EVD_HANDLE,
        out: &mut MaybeUninit<A::Event>,
    ) {
        match *event {
            Event::Resolution {
                number,
                ep,
                resolution,
            } => {
                let (event, extension) = Resolution::<D>::deliver(resolution, number, ep);
                A::event(&event, handle, out);
                if let Some(extension) = extension {
                    A::extend(out, &extension);
                }
            }
            Event::Request {
                datagrams: true, ..
            } => {
                A::event(event, handle, out);
                A::extend(out, &Extension::REQUEST);
            }
            _ => A::event(event, handle, out),
        }
    }

    fn post_software(&self, event: Event) -> Result<()> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::handle(Subtype::HandleEvdRequest));
        }
        if !self.enqueue(&mut state, event) {
            return Err(Kind::QueueFull.into());
        }
        self.notify(state);
        Ok(())
    }
}
