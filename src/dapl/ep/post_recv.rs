//! `dat_ep_post_recv`.

use std::mem::MaybeUninit;
use std::slice::from_ref;

use super::Ep;
use super::plain_post::{self, PlainCall};
use super::post::{ep_of, is_usual, segment_of};
use crate::abi::common::*;
use crate::dapl::abi::Abi;
use crate::dapl::work_request::{Segments, post_error};
use crate::device::{Device, PlainPost, QueuePair, RecvWr, Sge, WrFlags};
use crate::error::{Error, Result, Subtype};
use crate::handle::Guard;

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
    let iov = (num_segments, local_iov);
    // SAFETY: the caller's promise.
    unsafe {
        plain_post::call::<Buffer, A, D, KNOWN>(ep_handle, iov, user_cookie, (), completion_flags)
    }
}

/// The posts of [`ep_post_recv`].
struct Buffer;

impl<A: Abi, D: Device> PlainCall<A, D> for Buffer {
    type To = ();

    /// Nothing in the attempt panics.
    #[inline(always)]
    fn catch(attempt: impl FnOnce() -> PlainPost) -> Option<PlainPost> {
        Some(attempt())
    }

    #[inline(always)]
    unsafe fn post_plainly(
        ep: &Ep<D>,
        segment: Sge,
        wr_id: u64,
        _to: (),
        guard: &Guard,
    ) -> PlainPost {
        let Some(qp) = ep.open.receives(guard) else {
            return PlainPost::Otherwise;
        };
        // SAFETY: the caller's promise.
        unsafe { qp.post_recv_plainly(segment, wr_id, guard) }
    }

    #[inline(always)]
    unsafe fn post<const KNOWN: bool>(
        guard: &Guard,
        ep_handle: DAT_EP_HANDLE,
        (count, iov): (DAT_COUNT, *mut A::LmrTriplet),
        user_cookie: DAT_DTO_COOKIE,
        _to: (),
        completion_flags: DAT_COMPLETION_FLAGS,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let ep = unsafe { ep_of::<D, KNOWN>(ep_handle, guard) }?;
        // SAFETY: every bit pattern is a valid integer.
        let wr_id = unsafe { user_cookie.as_64 };
        if is_usual(count, iov, completion_flags)
            && let Some(qp) = ep.open.receives(guard)
        {
            let mut copy = MaybeUninit::uninit();
            // SAFETY: the caller's promise.
            let segment = segment_of::<A, D>(unsafe { &*iov }, &mut copy)?;
            return post_receive(qp, guard, from_ref(segment), wr_id, WrFlags::empty());
        }
        let iov = (count, iov.cast_const());
        // SAFETY: the caller's promise.
        unsafe { receive_segments::<A, D>(ep, guard, iov, wr_id, completion_flags) }
    }
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
