//! Calls that take a handle of any kind: `dat_set_consumer_context`,
//! `dat_get_consumer_context`, `dat_get_handle_type`.

use std::sync::atomic::{AtomicU64, Ordering};

use super::abi::Abi;
use super::boundary::{boundary, non_null};
use super::cno::Cno;
use super::cr::Cr;
use super::csp::Csp;
use super::ep::Ep;
use super::evd::Evd;
use super::ia::Ia;
use super::lmr::Lmr;
use super::object::DatObject;
use super::psp::Psp;
use super::pz::Pz;
use super::rmr::Rmr;
use super::rsp::Rsp;
use super::srq::Srq;
use super::types::HandleType;
use crate::abi::common::*;
use crate::device::Device;
use crate::error::{Error, Result, Subtype};
use crate::handle::{self, Guard, pin};

/// An object of any kind, as these calls need it.
struct Any<'g> {
    kind: HandleType,
    context: &'g AtomicU64,
}

fn any<D: Device>(handle: DAT_HANDLE, guard: &Guard) -> Result<Any<'_>> {
    fn of<D: Device, T: DatObject<D>>(handle: DAT_HANDLE, guard: &Guard) -> Option<Any<'_>> {
        let object: &T = handle::get(handle, guard)?;
        Some(Any {
            kind: T::TYPE,
            context: object.base().context(),
        })
    }
    let ia = || {
        let ia: &Ia<D> = handle::get(handle, guard)?;
        Some(Any {
            kind: HandleType::Ia,
            context: ia.context(),
        })
    };
    of::<D, Ep<D>>(handle, guard)
        .or_else(|| of::<D, Evd<D>>(handle, guard))
        .or_else(ia)
        .or_else(|| of::<D, Lmr<D>>(handle, guard))
        .or_else(|| of::<D, Pz<D>>(handle, guard))
        .or_else(|| of::<D, Psp<D>>(handle, guard))
        .or_else(|| of::<D, Cr<D>>(handle, guard))
        .or_else(|| of::<D, Cno<D>>(handle, guard))
        .or_else(|| of::<D, Rmr<D>>(handle, guard))
        .or_else(|| of::<D, Srq<D>>(handle, guard))
        .or_else(|| of::<D, Rsp<D>>(handle, guard))
        .or_else(|| of::<D, Csp<D>>(handle, guard))
        .ok_or(Error::handle(Subtype::Handle1))
}

/// `dat_set_consumer_context`.
///
/// # Safety
/// No pointers that are followed; any handle value is safe.
pub unsafe extern "C" fn set_consumer_context<A: Abi, D: Device>(
    dat_handle: DAT_HANDLE,
    context: DAT_CONTEXT,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let guard = pin::pin();
        // SAFETY: every bit pattern is a valid integer.
        let value = unsafe { context.as_64 };
        any::<D>(dat_handle, &guard)?
            .context
            .store(value, Ordering::Relaxed);
        Ok(())
    })
}

/// `dat_get_consumer_context`; a context never set reads as zero.
///
/// # Safety
/// `context` is NULL or points to memory for a context.
pub unsafe extern "C" fn get_consumer_context<A: Abi, D: Device>(
    dat_handle: DAT_HANDLE,
    context: *mut DAT_CONTEXT,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let guard = pin::pin();
        let object = any::<D>(dat_handle, &guard)?;
        non_null(context, Subtype::Arg2)?;
        let value = DAT_CONTEXT {
            as_64: object.context.load(Ordering::Relaxed),
        };
        // SAFETY: not NULL.
        unsafe { context.write(value) };
        Ok(())
    })
}

/// `dat_get_handle_type`.
///
/// # Safety
/// `handle_type` is NULL or points to memory for a type.
pub unsafe extern "C" fn get_handle_type<A: Abi, D: Device>(
    dat_handle: DAT_HANDLE,
    handle_type: *mut DAT_HANDLE_TYPE,
) -> DAT_RETURN {
    boundary::<A>(|| {
        let guard = pin::pin();
        let object = any::<D>(dat_handle, &guard)?;
        non_null(handle_type, Subtype::Arg2)?;
        // SAFETY: not NULL.
        unsafe { handle_type.write(object.kind as DAT_HANDLE_TYPE) };
        Ok(())
    })
}
