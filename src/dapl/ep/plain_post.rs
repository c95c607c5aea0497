//! Posts that begin with an attempt for what nearly all of them do: one segment, no flags, and an endpoint that is
//! ready for them ([`Device::PLAIN_CALLS`]).
//!
//! Nothing is called in such an attempt but at its end, so that no registers are saved, and `errno` is kept only
//! by what is called. An attempt posts all or has changed nothing; the whole post does the rest, in the section that
//! has begun.

use super::Ep;
use super::post::is_usual;
use crate::abi::common::*;
use crate::dapl::abi::Abi;
use crate::dapl::boundary::{begun_section, caught_plainly, end_plainly, panicked, section};
use crate::device::{Device, PlainPost, Sge};
use crate::error::Result;
use crate::handle::{self, Guard, Section, pin};

/// A kind of posts.
pub(super) trait PlainCall<A: Abi, D: Device> {
    /// What the function takes besides: where an RDMA write goes to.
    type To: Copy;

    /// Makes an attempt, by `attempt`; `None` after a panic.
    #[inline(always)]
    fn catch(attempt: impl FnOnce() -> PlainPost) -> Option<PlainPost> {
        caught_plainly(attempt)
    }

    /// Posts one segment without flags, if the endpoint and its queue pair take that without more ado.
    ///
    /// # Safety
    /// The thread holds no biased lock as its owner; for `to` as [`PlainCall::post`].
    unsafe fn post_plainly(
        ep: &Ep<D>,
        segment: Sge,
        wr_id: u64,
        to: Self::To,
        guard: &Guard,
    ) -> PlainPost;

    /// Posts any segments with any flags.
    ///
    /// # Errors
    /// Those of the function of the API.
    ///
    /// # Safety
    /// `iov` is NULL or points to `count` triplets if `count` is positive, `to` is as the function takes it; for the
    /// handle as [`handle::get_as`].
    unsafe fn post<const KNOWN: bool>(
        guard: &Guard,
        ep_handle: DAT_EP_HANDLE,
        iov: (DAT_COUNT, *mut A::LmrTriplet),
        user_cookie: DAT_DTO_COOKIE,
        to: Self::To,
        completion_flags: DAT_COMPLETION_FLAGS,
    ) -> Result<()>;
}

/// A function of the API that posts.
///
/// # Safety
/// As [`PlainCall::post`].
#[inline(always)]
pub(super) unsafe fn call<P: PlainCall<A, D>, A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    (count, iov): (DAT_COUNT, *mut A::LmrTriplet),
    cookie: DAT_DTO_COOKIE,
    to: P::To,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    if !D::PLAIN_CALLS {
        return section::<A>(|guard| {
            // SAFETY: the caller's promise.
            unsafe { P::post::<KNOWN>(guard, ep_handle, (count, iov), cookie, to, flags) }
        });
    }
    let Some(guard) = pin::pin_plainly() else {
        // SAFETY: the caller's promise.
        return unsafe { whole::<P, A, D, KNOWN>(ep_handle, count, iov, cookie, to, flags) };
    };
    if !is_usual(count, iov, flags) {
        // SAFETY: the caller's promise.
        return unsafe {
            rarely::<P, A, D, KNOWN>(ep_handle, count, iov, cookie, to, flags, guard)
        };
    }
    // SAFETY: the caller's promise; there is one segment.
    let posted =
        P::catch(|| unsafe { attempt::<P, A, D, KNOWN>(&guard, ep_handle, iov, cookie, to) });
    match posted {
        Some(PlainPost::Posted) => end_plainly::<A>(guard),
        // The numbers, so that the arguments need not be kept.
        // SAFETY: the caller's promise.
        Some(PlainPost::NotHere) => unsafe {
            pinned::<P, A, D, KNOWN>(ep_handle, 1, iov, cookie, to, 0, guard)
        },
        // SAFETY: the caller's promise.
        Some(PlainPost::Otherwise) => unsafe {
            rarely::<P, A, D, KNOWN>(ep_handle, 1, iov, cookie, to, 0, guard)
        },
        None => panicked::<A>(guard),
    }
}

/// The attempt.
///
/// # Safety
/// `iov` points to its only segment, and `guard` is of [`pin::pin_plainly`]; for `to` and the handle as
/// [`PlainCall::post`].
#[inline(always)]
unsafe fn attempt<P: PlainCall<A, D>, A: Abi, D: Device, const KNOWN: bool>(
    guard: &Guard,
    ep_handle: DAT_EP_HANDLE,
    iov: *const A::LmrTriplet,
    cookie: DAT_DTO_COOKIE,
    to: P::To,
) -> PlainPost {
    // SAFETY: the caller's promise.
    let ep = unsafe { handle::get_as::<Ep<D>, _, KNOWN>(ep_handle, guard, || ()) };
    // The triplet is read after the handle was found good.
    if let Ok(ep) = ep
        // SAFETY: the caller's promise.
        && let Ok(segment) = A::sge(unsafe { &*iov })
    {
        // SAFETY: every bit pattern is a valid integer. `pin_plainly` has found that no lock is held.
        return unsafe { P::post_plainly(ep, segment, cookie.as_64, to, guard) };
    }
    PlainPost::Otherwise
}

/// The function from its beginning on.
///
/// # Safety
/// As [`PlainCall::post`].
#[cold]
#[inline(never)]
unsafe extern "C" fn whole<P: PlainCall<A, D>, A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut A::LmrTriplet,
    cookie: DAT_DTO_COOKIE,
    to: P::To,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    section::<A>(|guard| {
        // SAFETY: the caller's promise.
        unsafe { P::post::<KNOWN>(guard, ep_handle, (count, iov), cookie, to, flags) }
    })
}

/// [`pinned`], for what is rare: the compiler keeps the jumps to it out of the way of the rest.
///
/// # Safety
/// As [`PlainCall::post`].
#[cold]
#[inline(never)]
unsafe extern "C" fn rarely<P: PlainCall<A, D>, A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut A::LmrTriplet,
    cookie: DAT_DTO_COOKIE,
    to: P::To,
    flags: DAT_COMPLETION_FLAGS,
    guard: Section,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe { pinned::<P, A, D, KNOWN>(ep_handle, count, iov, cookie, to, flags, guard) }
}

/// The function in a section that has begun already.
///
/// # Safety
/// As [`PlainCall::post`].
#[inline(never)]
unsafe extern "C" fn pinned<P: PlainCall<A, D>, A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut A::LmrTriplet,
    cookie: DAT_DTO_COOKIE,
    to: P::To,
    flags: DAT_COMPLETION_FLAGS,
    guard: Section,
) -> DAT_RETURN {
    begun_section::<A>(guard, |guard| {
        // SAFETY: the caller's promise.
        unsafe { P::post::<KNOWN>(guard, ep_handle, (count, iov), cookie, to, flags) }
    })
}
