//! `dat_ep_post_recv`.

use std::mem::MaybeUninit;
use std::slice::from_ref;

use super::Ep;
use super::post::{ep_of, is_usual, segment_of};
use crate::abi::common::*;
use crate::dapl::abi::Abi;
use crate::dapl::boundary::{begun_section, end_plainly, section};
use crate::dapl::work_request::{Segments, post_error};
use crate::device::{Device, QueuePair, RecvWr, Sge, WrFlags};
use crate::error::{Error, Result, Subtype};
use crate::handle::{self, Guard, Section, pin};

/// `dat_ep_post_recv`: possible in every state; after the end of a connection it is flushed.
///
/// # Safety
/// `local_iov` is NULL or points to `num_segments` triplets.
#[inline(never)]
pub unsafe extern "C" fn ep_post_recv<A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let (count, iov, flags) = (num_segments, local_iov, completion_flags);
    // As `evd_dequeue`: without a frame.
    if D::PLAIN_CALLS {
        let Some(guard) = pin::pin_plainly() else {
            // SAFETY: the caller's promise.
            return unsafe {
                receive_whole::<A, D, KNOWN>(ep_handle, count, iov, user_cookie, flags)
            };
        };
        if !is_usual(count, iov, flags) {
            // SAFETY: the caller's promise.
            return unsafe {
                receive_pinned::<A, D, KNOWN>(ep_handle, count, iov, user_cookie, flags, guard)
            };
        }
        // SAFETY: the caller's promise; there is one segment.
        if unsafe { receive_plainly::<A, D, KNOWN>(&guard, ep_handle, iov, user_cookie) } {
            return end_plainly::<A>(guard);
        }
        // The numbers, so that the arguments need not be kept.
        // SAFETY: the caller's promise.
        return unsafe { receive_pinned::<A, D, KNOWN>(ep_handle, 1, iov, user_cookie, 0, guard) };
    }
    section::<A>(|guard| {
        // SAFETY: the caller's promise.
        unsafe { receive_in::<A, D, KNOWN>(guard, ep_handle, (count, iov), user_cookie, flags) }
    })
}

/// Posts a receive without flags by [`QueuePair::post_recv_plainly`]; false if it is not posted so.
///
/// # Safety
/// `iov` points to its only segment; for the handle as [`handle::get_as`].
#[inline(always)]
unsafe fn receive_plainly<A: Abi, D: Device, const KNOWN: bool>(
    guard: &Guard,
    ep_handle: DAT_EP_HANDLE,
    iov: *const A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
) -> bool {
    // SAFETY: the caller's promise.
    let ep = unsafe { handle::get_as::<Ep<D>, _, KNOWN>(ep_handle, guard, || ()) };
    if let Ok(ep) = ep
        && let Some(qp) = ep.open.receives(guard)
        // SAFETY: the caller's promise.
        && let Ok(segment) = A::sge(unsafe { &*iov })
    {
        // SAFETY: every bit pattern is a valid integer.
        return qp.post_recv_plainly(segment, unsafe { user_cookie.as_64 }, guard);
    }
    false
}

/// [`ep_post_recv`] from its beginning on.
///
/// # Safety
/// As [`ep_post_recv`].
#[cold]
#[inline(never)]
unsafe extern "C" fn receive_whole<A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    section::<A>(|guard| {
        // SAFETY: the caller's promise.
        unsafe { receive_in::<A, D, KNOWN>(guard, ep_handle, (count, iov), user_cookie, flags) }
    })
}

/// [`ep_post_recv`] in a section that has begun already.
///
/// # Safety
/// As [`ep_post_recv`].
#[inline(never)]
unsafe extern "C" fn receive_pinned<A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
    guard: Section,
) -> DAT_RETURN {
    begun_section::<A>(guard, |guard| {
        // SAFETY: the caller's promise.
        unsafe { receive_in::<A, D, KNOWN>(guard, ep_handle, (count, iov), user_cookie, flags) }
    })
}

/// What [`ep_post_recv`] does in a section.
///
/// # Safety
/// As [`ep_post_recv`].
#[inline(always)]
unsafe fn receive_in<A: Abi, D: Device, const KNOWN: bool>(
    guard: &Guard,
    ep_handle: DAT_EP_HANDLE,
    (num_segments, local_iov): (DAT_COUNT, *mut A::LmrTriplet),
    user_cookie: DAT_DTO_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let ep = unsafe { ep_of::<D, KNOWN>(ep_handle, guard) }?;
    // SAFETY: every bit pattern is a valid integer.
    let wr_id = unsafe { user_cookie.as_64 };
    if is_usual(num_segments, local_iov, completion_flags)
        && let Some(qp) = ep.open.receives(guard)
    {
        let mut copy = MaybeUninit::uninit();
        // SAFETY: the caller's promise.
        let segment = segment_of::<A, D>(unsafe { &*local_iov }, &mut copy)?;
        return post_receive(qp, guard, from_ref(segment), wr_id, WrFlags::empty());
    }
    let iov = (num_segments, local_iov.cast_const());
    // SAFETY: the caller's promise.
    unsafe { receive_segments::<A, D>(ep, guard, iov, wr_id, completion_flags) }
}

/// [`post_receive`] with any number of segments, if the endpoint takes it.
///
/// # Safety
/// As [`ep_post_recv`].
#[inline(never)]
unsafe fn receive_segments<A: Abi, D: Device>(
    ep: &Ep<D>,
    guard: &Guard,
    (count, iov): (DAT_COUNT, *const A::LmrTriplet),
    wr_id: u64,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> Result<()> {
    let mut segments = Segments::new();
    // SAFETY: the caller's promise.
    let (sges, _) = unsafe { segments.read::<A>(count, iov) }?;
    let (config, qp) = ep.config(guard)?;
    if config.has_srq {
        return Err(Error::state(Subtype::StateSrqInUse));
    }
    let (allowed, arg) = (DAT_COMPLETION_UNSIGNALLED_FLAG, Subtype::Arg5);
    let flags = config.recv_flags.check(completion_flags, allowed, arg)?;
    post_receive(&**qp, guard, sges, wr_id, flags)
}

#[inline(always)]
fn post_receive<Q: QueuePair>(
    qp: &Q,
    guard: &Guard,
    sges: &[Sge],
    wr_id: u64,
    flags: WrFlags,
) -> Result<()> {
    qp.post_recv_in(&RecvWr { wr_id, sges, flags }, guard)
        .map_err(|e| post_error(e, false))
}
