//! `dat_ep_post_rdma_write`.

use super::Ep;
use super::plain_post::{self, PlainCall};
use super::post::{Request, post_request};
use crate::abi::common::*;
use crate::dapl::abi::Abi;
use crate::dapl::boundary::non_null;
use crate::dapl::work_request::REQUEST_FLAGS;
use crate::delay;
use crate::device::{Device, PlainPost, QueuePair, Remote, SendOp, Sge};
use crate::error::{Kind, Result, Subtype};
use crate::handle::Guard;

/// `dat_ep_post_rdma_write`.
///
/// # Safety
/// `local_iov` is NULL or points to `num_segments` triplets, `remote_iov` is NULL or points to
/// one.
#[inline(never)]
pub unsafe extern "C" fn ep_post_rdma_write<A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const A::RmrTriplet,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let iov = (num_segments, local_iov);
    // SAFETY: the caller's promise.
    unsafe {
        plain_post::call::<RdmaWrite, A, D, KNOWN>(
            ep_handle,
            iov,
            user_cookie,
            remote_iov,
            completion_flags,
        )
    }
}

/// The posts of [`ep_post_rdma_write`].
struct RdmaWrite;

/// Where a write of so many bytes goes to.
///
/// # Errors
/// `DAT_INVALID_PARAMETER` for NULL, `DAT_LENGTH_ERROR` for a range that is too short.
///
/// # Safety
/// `iov` is NULL or points to a triplet.
#[inline(always)]
unsafe fn target<A: Abi>(iov: *const A::RmrTriplet, total: u64) -> Result<Remote> {
    non_null(iov, Subtype::Arg5)?;
    // SAFETY: not NULL.
    let (remote, room) = A::remote(&unsafe { iov.read_unaligned() });
    if room < total {
        return Err(Kind::LengthError.into());
    }
    Ok(remote)
}

impl<A: Abi, D: Device> PlainCall<A, D> for RdmaWrite {
    type To = *const A::RmrTriplet;

    #[inline(always)]
    unsafe fn post_plainly(
        ep: &Ep<D>,
        segment: Sge,
        wr_id: u64,
        to: *const A::RmrTriplet,
        guard: &Guard,
    ) -> PlainPost {
        let Some(qp) = ep.open.requests(guard) else {
            return PlainPost::Otherwise;
        };
        // SAFETY: the caller's promise.
        let Ok(remote) = (unsafe { target::<A>(to, segment.len.into()) }) else {
            return PlainPost::Otherwise;
        };
        delay::point("ep.post");
        // SAFETY: the caller's promise.
        unsafe { qp.post_write_plainly(segment, remote, wr_id, guard) }
    }

    #[inline(always)]
    unsafe fn post<const KNOWN: bool>(
        guard: &Guard,
        ep_handle: DAT_EP_HANDLE,
        (count, iov): (DAT_COUNT, *mut A::LmrTriplet),
        user_cookie: DAT_DTO_COOKIE,
        to: *const A::RmrTriplet,
        completion_flags: DAT_COMPLETION_FLAGS,
    ) -> Result<()> {
        let request = Request {
            user_cookie,
            completion_flags,
            allowed: (REQUEST_FLAGS, Subtype::Arg6),
            // SAFETY: the caller's promise.
            op: |total: u64| Ok(SendOp::RdmaWrite(unsafe { target::<A>(to, total) }?)),
        };
        // SAFETY: the caller's promise.
        unsafe { post_request::<A, D, KNOWN>(guard, ep_handle, (count, iov), request) }
    }
}
