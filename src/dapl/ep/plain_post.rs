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
use crate::dapl::boundary::{begun_section, end_plainly, panicked, section};
use crate::device::{Device, Sge};
use crate::error::Result;
use crate::handle::{self, Guard, Section, pin};

/// A kind of posts.
pub(super) trait PlainPost<A: Abi, D: Device> {
    /// Makes an attempt, by `attempt`, which is true if all is posted; `None` after a panic.
    fn catch(attempt: impl FnOnce() -> bool) -> Option<bool>;

    /// Posts one segment without flags, if the endpoint and its queue pair take that without more ado. False,
    /// with which nothing has changed, does not say that it is refused.
    fn post_plainly(ep: &Ep<D>, segment: Sge, wr_id: u64, guard: &Guard) -> bool;

    /// Posts any segments with any flags.
    ///
    /// # Errors
    /// Those of the function of the API.
    ///
    /// # Safety
    /// `iov` is NULL or points to `count` triplets if `count` is positive; for the handle as [`handle::get_as`].
    unsafe fn post<const KNOWN: bool>(
        guard: &Guard,
        ep_handle: DAT_EP_HANDLE,
        iov: (DAT_COUNT, *mut A::LmrTriplet),
        user_cookie: DAT_DTO_COOKIE,
        completion_flags: DAT_COMPLETION_FLAGS,
    ) -> Result<()>;
}

/// A function of the API that posts.
///
/// # Safety
/// As [`PlainPost::post`].
#[inline(always)]
pub(super) unsafe fn call<P: PlainPost<A, D>, A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    (count, iov): (DAT_COUNT, *mut A::LmrTriplet),
    cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    if !D::PLAIN_CALLS {
        return section::<A>(|guard| {
            // SAFETY: the caller's promise.
            unsafe { P::post::<KNOWN>(guard, ep_handle, (count, iov), cookie, flags) }
        });
    }
    let Some(guard) = pin::pin_plainly() else {
        // SAFETY: the caller's promise.
        return unsafe { whole::<P, A, D, KNOWN>(ep_handle, count, iov, cookie, flags) };
    };
    if !is_usual(count, iov, flags) {
        // SAFETY: the caller's promise.
        return unsafe { pinned::<P, A, D, KNOWN>(ep_handle, count, iov, cookie, flags, guard) };
    }
    // SAFETY: the caller's promise; there is one segment.
    let posted = P::catch(|| unsafe { attempt::<P, A, D, KNOWN>(&guard, ep_handle, iov, cookie) });
    match posted {
        Some(true) => end_plainly::<A>(guard),
        // The numbers, so that the arguments need not be kept.
        // SAFETY: the caller's promise.
        Some(false) => unsafe { pinned::<P, A, D, KNOWN>(ep_handle, 1, iov, cookie, 0, guard) },
        None => panicked::<A>(guard),
    }
}

/// The attempt; false if nothing is posted so.
///
/// # Safety
/// `iov` points to its only segment; for the handle as [`handle::get_as`].
#[inline(always)]
unsafe fn attempt<P: PlainPost<A, D>, A: Abi, D: Device, const KNOWN: bool>(
    guard: &Guard,
    ep_handle: DAT_EP_HANDLE,
    iov: *const A::LmrTriplet,
    cookie: DAT_DTO_COOKIE,
) -> bool {
    // SAFETY: the caller's promise.
    let ep = unsafe { handle::get_as::<Ep<D>, _, KNOWN>(ep_handle, guard, || ()) };
    // The triplet is read after the handle was found good.
    if let Ok(ep) = ep
        // SAFETY: the caller's promise.
        && let Ok(segment) = A::sge(unsafe { &*iov })
    {
        // SAFETY: every bit pattern is a valid integer.
        return P::post_plainly(ep, segment, unsafe { cookie.as_64 }, guard);
    }
    false
}

/// The function from its beginning on.
///
/// # Safety
/// As [`PlainPost::post`].
#[cold]
#[inline(never)]
unsafe extern "C" fn whole<P: PlainPost<A, D>, A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut A::LmrTriplet,
    cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    section::<A>(|guard| {
        // SAFETY: the caller's promise.
        unsafe { P::post::<KNOWN>(guard, ep_handle, (count, iov), cookie, flags) }
    })
}

/// The function in a section that has begun already.
///
/// # Safety
/// As [`PlainPost::post`].
#[inline(never)]
unsafe extern "C" fn pinned<P: PlainPost<A, D>, A: Abi, D: Device, const KNOWN: bool>(
    ep_handle: DAT_EP_HANDLE,
    count: DAT_COUNT,
    iov: *mut A::LmrTriplet,
    cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
    guard: Section,
) -> DAT_RETURN {
    begun_section::<A>(guard, |guard| {
        // SAFETY: the caller's promise.
        unsafe { P::post::<KNOWN>(guard, ep_handle, (count, iov), cookie, flags) }
    })
}
