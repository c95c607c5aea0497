//! Posts of requests: `dat_ep_post_send`, `dat_ep_post_rdma_read`, and what they have in common with others.
//!
//! The posts take no lock and allocate nothing; all state that they need is read inside one section.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::slice::from_ref;
use std::sync::Arc;

use super::Ep;
use super::config::Config;
use super::connect::state_error;
use super::plain_post::{self, PlainCall};
use crate::abi::common::*;
use crate::dapl::abi::Abi;
use crate::dapl::boundary::{non_null, section};
use crate::dapl::work_request::{REQUEST_FLAGS, Segments, post_error};
use crate::delay;
use crate::device::{Device, PlainPost, QueuePair, SendOp, SendWr, Sge, WrFlags};
use crate::error::{Error, Kind, Result, Subtype};
use crate::handle::{self, ANY, Guard};

impl<D: Device> Ep<D> {
    #[inline]
    pub(in crate::dapl) fn config<'g>(
        &self,
        guard: &'g Guard,
    ) -> Result<(&'g Config<D>, &'g Arc<D::Qp>)> {
        let config = self
            .config
            .get(guard)
            .ok_or(Error::handle(Subtype::HandleEp))?;
        let qp = config
            .qp
            .as_ref()
            .ok_or(Error::state(Subtype::StateEpNotready))?;
        Ok((config, qp))
    }

    /// Requests are for connected endpoints; after the end of a connection they are flushed.
    #[inline]
    pub(in crate::dapl) fn check_request_state(&self) -> Result<()> {
        match self.state() {
            DAT_EP_STATE_CONNECTED | DAT_EP_STATE_DISCONNECTED => Ok(()),
            state => Err(state_error(self.base.ia.rules.refused_state(state))),
        }
    }
}

/// The endpoint of a handle.
///
/// # Safety
/// As [`handle::get_as`].
#[inline(always)]
pub(super) unsafe fn ep_of<D: Device, const KNOWN: bool>(
    handle: DAT_EP_HANDLE,
    guard: &Guard,
) -> Result<&Ep<D>> {
    // SAFETY: the caller's promise.
    unsafe {
        handle::get_as::<_, _, KNOWN>(handle, guard, || Error::rare_handle(Subtype::HandleEp))
    }
}

/// A request without its segments.
pub(super) struct Request<F> {
    pub user_cookie: DAT_DTO_COOKIE,
    pub completion_flags: DAT_COMPLETION_FLAGS,
    /// The flags that the operation may have, and the argument that they are.
    pub allowed: (DAT_COMPLETION_FLAGS, Subtype),
    /// Makes the operation for a number of bytes.
    pub op: F,
}

impl<F: FnOnce(u64) -> Result<SendOp>> Request<F> {
    /// Posts the request. `find` gives the queue pair that takes it, and its flags.
    #[inline(always)]
    fn post<'q, Q: QueuePair + 'q>(
        self,
        guard: &Guard,
        sges: &[Sge],
        total: u64,
        find: impl FnOnce() -> Result<(&'q Q, WrFlags)>,
    ) -> Result<()> {
        let op = (self.op)(total)?;
        let (qp, flags) = find()?;
        let wr = SendWr {
            // SAFETY: every bit pattern is a valid integer.
            wr_id: unsafe { self.user_cookie.as_64 },
            op,
            sges,
            flags,
        };
        let reads = !op.fetches();
        delay::point("ep.post");
        qp.post_send_in(&wr, guard)
            .map_err(|e| post_error(e, reads))
    }

    /// [`Request::post`] with its completion flags, if the endpoint takes it.
    #[inline(always)]
    fn post_flagged<D: Device>(
        self,
        ep: &Ep<D>,
        guard: &Guard,
        sges: &[Sge],
        total: u64,
    ) -> Result<()> {
        let ((allowed, arg), given) = (self.allowed, self.completion_flags);
        self.post(guard, sges, total, || {
            let (config, qp) = ep.config(guard)?;
            let flags = config.request_flags.check(given, allowed, arg)?;
            ep.check_request_state()?;
            Ok((&**qp, flags))
        })
    }

    /// [`Request::post_flagged`] with any number of segments.
    ///
    /// # Safety
    /// As [`post_request`].
    #[inline(never)]
    unsafe fn post_segments<A: Abi, D: Device>(
        self,
        ep: &Ep<D>,
        guard: &Guard,
        count: DAT_COUNT,
        iov: *const A::LmrTriplet,
    ) -> Result<()> {
        let mut segments = Segments::new();
        // SAFETY: the caller's promise.
        let (sges, total) = unsafe { segments.read::<A>(count, iov) }?;
        self.post_flagged(ep, guard, sges, total)
    }
}

/// Whether a request or a receive has one segment, whose triplet is aligned, and no flags, as nearly all have.
#[inline(always)]
pub(super) fn is_usual<T>(count: DAT_COUNT, iov: *const T, flags: DAT_COMPLETION_FLAGS) -> bool {
    let misaligned = iov.addr() as u32 & (align_of::<T>() as u32 - 1);
    // One test for three conditions.
    (count ^ 1) as u32 | flags | misaligned == 0 && !iov.is_null()
}

/// The segment of a triplet: where that is, if the ABI and the device allow it, or a copy.
#[inline(always)]
pub(super) fn segment_of<'a, A: Abi, D: Device>(
    triplet: &'a A::LmrTriplet,
    copy: &'a mut MaybeUninit<Sge>,
) -> Result<&'a Sge> {
    match A::sge_in_place(triplet) {
        Some(segment) if D::SEGMENTS_IN_PLACE => Ok(segment),
        _ => Ok(copy.write(A::sge(triplet)?)),
    }
}

/// Posts a request with its local segments.
///
/// # Safety
/// `iov` is NULL or points to `count` triplets if `count` is positive; for the handle as [`handle::get_as`].
#[inline(always)]
pub(super) unsafe fn post_request<A: Abi, D: Device, const KNOWN: bool>(
    guard: &Guard,
    ep_handle: DAT_EP_HANDLE,
    (count, iov): (DAT_COUNT, *const A::LmrTriplet),
    request: Request<impl FnOnce(u64) -> Result<SendOp>>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let ep = unsafe { ep_of::<D, KNOWN>(ep_handle, guard) }?;
    // The usual case. Code for one segment has no loops, and code for no flags no tests for them.
    if is_usual(count, iov, request.completion_flags)
        && let Some(qp) = ep.open.requests(guard)
    {
        let mut copy = MaybeUninit::uninit();
        // SAFETY: the caller's promise.
        let segment = segment_of::<A, D>(unsafe { &*iov }, &mut copy)?;
        let (sges, total) = (from_ref(segment), segment.len.into());
        return request.post(guard, sges, total, || Ok((qp, WrFlags::empty())));
    }
    // A copy, so that the request need not be in memory in the usual case.
    // SAFETY: the caller's promise.
    unsafe { black_box(request).post_segments::<A, D>(ep, guard, count, iov) }
}

/// `dat_ep_post_send`.
///
/// # Safety
/// `local_iov` is NULL or points to `num_segments` triplets; for the handle as [`handle::get_as`].
#[inline(never)]
pub unsafe extern "C" fn ep_post_send<A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    let iov = (num_segments, local_iov);
    // SAFETY: the caller's promise.
    unsafe {
        plain_post::call::<Message, A, D, KNOWN>(ep_handle, iov, user_cookie, (), completion_flags)
    }
}

/// The posts of [`ep_post_send`].
struct Message;

impl<A: Abi, D: Device> PlainCall<A, D> for Message {
    type To = ();

    #[inline(always)]
    unsafe fn post_plainly(
        ep: &Ep<D>,
        segment: Sge,
        wr_id: u64,
        _to: (),
        guard: &Guard,
    ) -> PlainPost {
        let Some(qp) = ep.open.requests(guard) else {
            return PlainPost::Otherwise;
        };
        delay::point("ep.post");
        // SAFETY: the caller's promise.
        unsafe { qp.post_send_plainly(segment, wr_id, guard) }
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
        let allowed = REQUEST_FLAGS | DAT_COMPLETION_SOLICITED_WAIT_FLAG;
        let request = Request {
            user_cookie,
            completion_flags,
            allowed: (allowed, Subtype::Arg5),
            op: |_| Ok(SendOp::Send),
        };
        // SAFETY: the caller's promise.
        unsafe { post_request::<A, D, KNOWN>(guard, ep_handle, (count, iov), request) }
    }
}

/// `dat_ep_post_send_with_invalidate` of DAT 2.0: with `invalidate_flag` the peer's
/// `rmr_context` is invalid before the message is received.
///
/// # Safety
/// `local_iov` is NULL or points to `num_segments` triplets.
#[inline(never)]
pub unsafe extern "C" fn ep_post_send_with_invalidate<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    completion_flags: DAT_COMPLETION_FLAGS,
    invalidate_flag: DAT_BOOLEAN,
    rmr_context: DAT_RMR_CONTEXT,
) -> DAT_RETURN {
    let allowed = REQUEST_FLAGS | DAT_COMPLETION_SOLICITED_WAIT_FLAG;
    let op = match invalidate_flag {
        DAT_FALSE => SendOp::Send,
        _ => SendOp::SendInvalidate { rkey: rmr_context },
    };
    section::<A>(|guard| {
        // SAFETY: the caller's promise.
        unsafe {
            post_request::<A, D, ANY>(
                guard,
                ep_handle,
                (num_segments, local_iov),
                Request {
                    user_cookie,
                    completion_flags,
                    allowed: (allowed, Subtype::Arg5),
                    op: |_| Ok(op),
                },
            )
        }
    })
}

/// `dat_ep_post_rdma_read`: as many bytes as the remote segment has.
///
/// # Safety
/// `local_iov` is NULL or points to `num_segments` triplets, `remote_iov` is NULL or points to
/// one.
#[inline(never)]
pub unsafe extern "C" fn ep_post_rdma_read<A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const A::RmrTriplet,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    section::<A>(|guard| {
        // SAFETY: the caller's promise.
        unsafe {
            post_request::<A, D, KNOWN>(
                guard,
                ep_handle,
                (num_segments, local_iov),
                Request {
                    user_cookie,
                    completion_flags,
                    allowed: (REQUEST_FLAGS, Subtype::Arg6),
                    op: |total| read::<A>(remote_iov, total, Subtype::Arg5),
                },
            )
        }
    })
}

/// An RDMA read of the remote segment into `total` bytes; `arg` is the argument that the remote segment is.
///
/// # Errors
/// `DAT_INVALID_PARAMETER` for NULL, `DAT_LENGTH_ERROR` for too few bytes.
///
/// # Safety
/// `remote_iov` is NULL or points to a triplet.
#[inline(always)]
unsafe fn read<A: Abi>(
    remote_iov: *const A::RmrTriplet,
    total: u64,
    arg: Subtype,
) -> Result<SendOp> {
    non_null(remote_iov, arg)?;
    // SAFETY: not NULL.
    let (remote, length) = A::remote(&unsafe { remote_iov.read_unaligned() });
    match u32::try_from(length) {
        Ok(len) if length <= total => Ok(SendOp::RdmaRead { remote, len }),
        _ => Err(Kind::LengthError.into()),
    }
}

/// `dat_ep_post_rdma_read_to_rmr`, with the local segment that its first triplet stands for.
///
/// # Safety
/// `remote_iov` is NULL or points to a triplet.
pub unsafe fn post_read_into<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    local: Sge,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const A::RmrTriplet,
    completion_flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    section::<A>(|guard| {
        // SAFETY: nothing is promised of the handle.
        let ep = unsafe { ep_of::<D, ANY>(ep_handle, guard) }?;
        let request = Request {
            user_cookie,
            completion_flags,
            allowed: (REQUEST_FLAGS, Subtype::Arg5),
            // SAFETY: the caller's promise.
            op: |total| unsafe { read::<A>(remote_iov, total, Subtype::Arg4) },
        };
        request.post_flagged(ep, guard, &[local], local.len.into())
    })
}
