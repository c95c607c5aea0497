//! `dat_ep_post_recv`.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::slice::from_ref;

use super::Ep;
use super::plain_post::{self, PlainCall};
use super::post::{ep_of, is_usual, segment_of};
use crate::abi::common::*;
use crate::dapl::abi::Abi;
use crate::dapl::work_request::{Segments, post_error};
use crate::device::{Device, PlainPost, PostError, QueuePair, RecvWr, Sge, WrFlags};
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
            return post_receive(ep, qp, guard, from_ref(segment), wr_id, WrFlags::empty());
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
    post_receive(ep, &**qp, guard, sges, wr_id, flags)
}

#[inline(always)]
fn post_receive<D: Device>(
    ep: &Ep<D>,
    qp: &D::Qp,
    guard: &Guard,
    sges: &[Sge],
    wr_id: u64,
    flags: WrFlags,
) -> Result<()> {
    let wr = RecvWr { wr_id, sges, flags };
    qp.post_recv_in(&wr, guard)
        .or_else(|error| refused(ep, qp, guard, black_box(wr), error))
}

/// A receive that the device refuses: one for its keys is posted all the same, if the rules have it so.
#[cold]
#[inline(never)]
fn refused<D: Device>(
    ep: &Ep<D>,
    qp: &D::Qp,
    guard: &Guard,
    wr: RecvWr<'_>,
    error: PostError,
) -> Result<()> {
    ep.base
        .ia
        .rules
        .receive_again(wr, error, |wr| qp.post_recv_in(wr, guard))
        .map_err(|e| post_error(e, false))
}
