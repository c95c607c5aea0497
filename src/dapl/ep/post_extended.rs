//! Posts by `dat_extension_op`: atomic operations, and RDMA writes with immediate data.
//!
//! The macros of `dat_ib_extensions.h` make the calls. Where an argument is wrong the code has its number
//! in the macro.

use super::post::{Request, post_request};
use crate::abi::common::*;
use crate::abi::va_list::VaList;
use crate::dapl::abi::Abi;
use crate::dapl::boundary::{non_null, section};
use crate::dapl::work_request::REQUEST_FLAGS;
use crate::device::{ATOMIC_LEN, AtomicOp, Device, Remote, SendOp};
use crate::error::{Error, Kind, Result, Subtype};
use crate::handle::ANY;

/// The range of a remote triplet, if that has room for `len` bytes. `arg` is its argument.
///
/// # Safety
/// `iov` is NULL or points to a triplet.
unsafe fn remote<A: Abi>(iov: *const A::RmrTriplet, len: u64, arg: Subtype) -> Result<Remote> {
    non_null(iov, arg)?;
    // SAFETY: not NULL.
    let (remote, room) = A::remote(&unsafe { iov.read_unaligned() });
    match room >= len {
        true => Ok(remote),
        false => Err(Kind::LengthError.into()),
    }
}

/// An atomic operation, whose arguments from the local triplet on are in the list.
///
/// # Safety
/// As [`fetch_and_add`].
unsafe fn post_atomic<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    op: AtomicOp,
    arguments: &mut VaList,
    (remote_arg, flags_arg): (Subtype, Subtype),
) -> DAT_RETURN {
    // SAFETY: the caller's promise: the arguments of the macro, in this order.
    let (local_iov, cookie, remote_iov, flags) = unsafe {
        (
            arguments.pointer::<A::LmrTriplet>(),
            arguments.word(),
            arguments.pointer::<A::RmrTriplet>(),
            arguments.int(),
        )
    };
    let make = |total: u64| {
        // SAFETY: the caller's promise.
        let remote = unsafe { remote::<A>(remote_iov, ATOMIC_LEN.into(), remote_arg) }?;
        if total < u64::from(ATOMIC_LEN) {
            return Err(Kind::LengthError.into());
        }
        Ok(SendOp::Atomic { remote, op })
    };
    section::<A>(|guard| {
        let request = Request {
            user_cookie: DAT_DTO_COOKIE { as_64: cookie },
            completion_flags: flags,
            allowed: (REQUEST_FLAGS, flags_arg),
            op: make,
        };
        // SAFETY: the caller's promise.
        unsafe { post_request::<A, D, ANY>(guard, ep_handle, (1, local_iov), request) }
    })
}

/// `dat_ib_post_fetch_and_add`.
///
/// # Safety
/// The list has the arguments of the macro, after the endpoint. The triplets are NULL or point to one.
pub unsafe fn fetch_and_add<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    arguments: &mut VaList,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe {
        let add = arguments.word();
        let op = AtomicOp::FetchAdd { add };
        post_atomic::<A, D>(ep_handle, op, arguments, (Subtype::Arg5, Subtype::Arg6))
    }
}

/// `dat_ib_post_cmp_and_swap`.
///
/// # Safety
/// As [`fetch_and_add`].
pub unsafe fn compare_and_swap<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    arguments: &mut VaList,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    let code = unsafe {
        let (compare, swap) = (arguments.word(), arguments.word());
        let op = AtomicOp::CompareSwap { compare, swap };
        post_atomic::<A, D>(ep_handle, op, arguments, (Subtype::Arg6, Subtype::Arg7))
    };
    // The local triplet, which is the third argument of all other posts.
    match code == Error::arg(Subtype::Arg3).code(A::VERSION) {
        true => Error::arg(Subtype::Arg4).code(A::VERSION),
        false => code,
    }
}

/// `dat_ib_post_rdma_write_immed`. The remote triplet may be NULL if nothing is written.
///
/// # Safety
/// The list has the arguments of the macro, after the endpoint. The local triplets are NULL or as many as
/// their number says; the remote one is NULL or points to one.
pub unsafe fn rdma_write_immediate<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    arguments: &mut VaList,
) -> DAT_RETURN {
    // SAFETY: the caller's promise: the arguments of the macro, in this order.
    let (count, local_iov, cookie, remote_iov, imm, flags) = unsafe {
        (
            arguments.int() as DAT_COUNT,
            arguments.pointer::<A::LmrTriplet>(),
            arguments.word(),
            arguments.pointer::<A::RmrTriplet>(),
            arguments.int(),
            arguments.int(),
        )
    };
    let make = |total: u64| {
        let remote = match remote_iov.is_null() && total == 0 {
            true => Remote { addr: 0, rkey: 0 },
            // SAFETY: the caller's promise.
            false => unsafe { remote::<A>(remote_iov, total, Subtype::Arg5) }?,
        };
        Ok(SendOp::RdmaWriteImm { remote, imm })
    };
    let allowed = REQUEST_FLAGS | DAT_COMPLETION_SOLICITED_WAIT_FLAG;
    section::<A>(|guard| {
        let request = Request {
            user_cookie: DAT_DTO_COOKIE { as_64: cookie },
            completion_flags: flags,
            allowed: (allowed, Subtype::Arg7),
            op: make,
        };
        // SAFETY: the caller's promise.
        unsafe { post_request::<A, D, ANY>(guard, ep_handle, (count, local_iov), request) }
    })
}
