//! The calls of the data path for IAs whose counters are on: each calls the function that does the work
//! and counts when that has succeeded. Those functions are never inlined: each stays the piece of code that
//! it is without counters. Completions are counted where they become events, by an ABI of its own
//! ([`Counting`]).

use std::ffi::c_void;
use std::marker::PhantomData;

use crate::abi::v1;
use crate::abi::v2::*;
use crate::abi::va_list::VaList;
use crate::dapl::abi::{Abi, Observed, Observer, V1, V2};
use crate::dapl::counters::{Counters, EP_FAILED, EP_FLUSHED};
use crate::dapl::ep::{self, Ep};
use crate::dapl::evd::{self, Evd};
use crate::dapl::function_table::function_table;
use crate::dapl::{extension, rmr};
use crate::device::{Completion, Device, WcOp, WcStatus};
use crate::handle::{self, ANY, pin};

/// Replaces the functions of the data path in a function table of DAT 1.2 by those that count.
pub fn count_v1<D: Device>(table: v1::DAT_PROVIDER) -> v1::DAT_PROVIDER {
    function_table! { ANY, v1::DAT_PROVIDER {} {
        evd_wait_func: evd_wait::<V1, D>,
        evd_dequeue_func: evd_dequeue::<V1, D>,
        ep_post_send_func: ep_post_send::<V1, D>,
        ep_post_recv_func: ep_post_recv::<V1, D>,
        ep_post_rdma_read_func: ep_post_rdma_read::<V1, D>,
        ep_post_rdma_write_func: ep_post_rdma_write::<V1, D>,
    } ..table }
}

/// The same for DAT 2.0.
pub fn count_v2<D: Device>(table: DAT_PROVIDER) -> DAT_PROVIDER {
    function_table! { ANY, DAT_PROVIDER {} {
        evd_wait_func: evd_wait::<V2, D>,
        evd_dequeue_func: evd_dequeue::<V2, D>,
        ep_post_send_func: ep_post_send::<V2, D>,
        ep_post_send_with_invalidate_func: ep_post_send_with_invalidate::<D>,
        ep_post_recv_func: ep_post_recv::<V2, D>,
        ep_post_rdma_read_func: ep_post_rdma_read::<V2, D>,
        ep_post_rdma_read_to_rmr_func: ep_post_rdma_read_to_rmr::<D>,
        ep_post_rdma_write_func: ep_post_rdma_write::<V2, D>,
        handle_extendedop_func: handle_extendedop::<D>,
    } ..table }
}

/// Counts for an endpoint, unless it is freed.
fn of_ep<D: Device>(ep: DAT_EP_HANDLE, count: impl FnOnce(&Counters)) {
    let guard = pin::pin();
    if let Some(counters) = handle::get::<Ep<D>>(ep, &guard).and_then(Ep::counters) {
        count(counters);
    }
}

/// Counts for an EVD, unless it is freed.
fn of_evd<D: Device>(evd: DAT_EVD_HANDLE, count: impl FnOnce(&Counters)) {
    let guard = pin::pin();
    if let Some(counters) = handle::get::<Evd<D>>(evd, &guard).and_then(Evd::counters) {
        count(counters);
    }
}

/// Counts a post that has given `code`, and the bytes of its segments in the counter behind.
///
/// # Safety
/// If the post has succeeded, `iov` points to `count` triplets.
unsafe fn posted<A: Abi, D: Device>(
    code: DAT_RETURN,
    ep: DAT_EP_HANDLE,
    counter: DAT_EP_COUNTERS,
    (count, iov): (DAT_COUNT, *const A::LmrTriplet),
) -> DAT_RETURN {
    if code == DAT_SUCCESS {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the caller's promise; read as the post does, in any alignment.
        let triplet = |i: usize| unsafe { iov.add(i).read_unaligned() };
        let bytes: u64 = (0..count).map(|i| A::lmr_range(&triplet(i)).len).sum();
        of_ep::<D>(ep, |counters| {
            counters.add(counter, 1);
            counters.add(counter + 1, bytes);
        });
    }
    code
}

/// `dat_ep_post_send`.
///
/// # Safety
/// As [`ep::ep_post_send`].
unsafe extern "C" fn ep_post_send<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe {
        let code =
            ep::ep_post_send::<A, D, ANY>(ep_handle, num_segments, local_iov, user_cookie, flags);
        posted::<A, D>(
            code,
            ep_handle,
            DCNT_EP_POST_SEND,
            (num_segments, local_iov),
        )
    }
}

/// `dat_ep_post_send_with_invalidate`.
///
/// # Safety
/// As [`ep::ep_post_send_with_invalidate`].
unsafe extern "C" fn ep_post_send_with_invalidate<D: Device>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
    invalidate_flag: DAT_BOOLEAN,
    rmr_context: DAT_RMR_CONTEXT,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe {
        let code = ep::ep_post_send_with_invalidate::<V2, D>(
            ep_handle,
            num_segments,
            local_iov,
            user_cookie,
            flags,
            invalidate_flag,
            rmr_context,
        );
        posted::<V2, D>(
            code,
            ep_handle,
            DCNT_EP_POST_SEND,
            (num_segments, local_iov),
        )
    }
}

/// `dat_ep_post_recv`.
///
/// # Safety
/// As [`ep::ep_post_recv`].
unsafe extern "C" fn ep_post_recv<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe {
        let code =
            ep::ep_post_recv::<A, D, ANY>(ep_handle, num_segments, local_iov, user_cookie, flags);
        posted::<A, D>(
            code,
            ep_handle,
            DCNT_EP_POST_RECV,
            (num_segments, local_iov),
        )
    }
}

/// `dat_ep_post_rdma_read`.
///
/// # Safety
/// As [`ep::ep_post_rdma_read`].
unsafe extern "C" fn ep_post_rdma_read<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const A::RmrTriplet,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe {
        let code = ep::ep_post_rdma_read::<A, D, ANY>(
            ep_handle,
            num_segments,
            local_iov,
            user_cookie,
            remote_iov,
            flags,
        );
        posted::<A, D>(
            code,
            ep_handle,
            DCNT_EP_POST_READ,
            (num_segments, local_iov),
        )
    }
}

/// `dat_ep_post_rdma_read_to_rmr`.
///
/// # Safety
/// As [`rmr::ep_post_rdma_read_to_rmr`].
unsafe extern "C" fn ep_post_rdma_read_to_rmr<D: Device>(
    ep_handle: DAT_EP_HANDLE,
    local_iov: *const DAT_RMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const DAT_RMR_TRIPLET,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    let code = unsafe {
        rmr::ep_post_rdma_read_to_rmr::<V2, D>(ep_handle, local_iov, user_cookie, remote_iov, flags)
    };
    if code == DAT_SUCCESS {
        // SAFETY: the post has read the triplet.
        let bytes = unsafe { local_iov.read_unaligned() }.segment_length;
        of_ep::<D>(ep_handle, |counters| {
            counters.add(DCNT_EP_POST_READ, 1);
            counters.add(DCNT_EP_POST_READ_DATA, bytes.into());
        });
    }
    code
}

/// `dat_ep_post_rdma_write`.
///
/// # Safety
/// As [`ep::ep_post_rdma_write`].
unsafe extern "C" fn ep_post_rdma_write<A: Abi, D: Device>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut A::LmrTriplet,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const A::RmrTriplet,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe {
        let code = ep::ep_post_rdma_write::<A, D, ANY>(
            ep_handle,
            num_segments,
            local_iov,
            user_cookie,
            remote_iov,
            flags,
        );
        posted::<A, D>(
            code,
            ep_handle,
            DCNT_EP_POST_WRITE,
            (num_segments, local_iov),
        )
    }
}

/// `dat_extension_op`.
///
/// # Safety
/// As [`extension::handle_extendedop`].
unsafe extern "C" fn handle_extendedop<D: Device>(
    handle: DAT_HANDLE,
    extended_op: DAT_EXTENDED_OP,
    argument_list: *mut c_void,
) -> DAT_RETURN {
    // SAFETY: the caller's promise. The arguments are read twice, from the list and from a copy.
    unsafe {
        let mut arguments = VaList::received(argument_list);
        let code = extension::handle_extendedop::<V2, D>(handle, extended_op, argument_list);
        match extended_op as DAT_IB_OP {
            DAT_IB_RDMA_WRITE_IMMED_OP | DAT_IB_UD_SEND_OP => {
                let counter = match extended_op as DAT_IB_OP {
                    DAT_IB_UD_SEND_OP => DCNT_EP_POST_SEND_UD,
                    _ => DCNT_EP_POST_WRITE_IMM,
                };
                let segments = (
                    arguments.int() as DAT_COUNT,
                    arguments.pointer::<DAT_LMR_TRIPLET>().cast_const(),
                );
                posted::<V2, D>(code, handle, counter, segments)
            }
            op @ (DAT_IB_FETCH_AND_ADD_OP | DAT_IB_CMP_AND_SWAP_OP) => {
                let counter = match op {
                    DAT_IB_CMP_AND_SWAP_OP => DCNT_EP_POST_CMP_SWAP,
                    _ => DCNT_EP_POST_FETCH_ADD,
                };
                if code == DAT_SUCCESS {
                    of_ep::<D>(handle, |counters| counters.add(counter, 1));
                }
                code
            }
            _ => code,
        }
    }
}

/// `dat_evd_wait`.
///
/// # Safety
/// As [`evd::evd_wait`].
pub(super) unsafe extern "C-unwind" fn evd_wait<A: Abi, D: Device>(
    evd_handle: DAT_EVD_HANDLE,
    wait: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    event: *mut A::Event,
    n_more_events: *mut DAT_COUNT,
) -> DAT_RETURN {
    of_evd::<D>(evd_handle, |counters| counters.add(DCNT_EVD_WAIT, 1));
    // SAFETY: the caller's promise. Nothing is held that a cancellation would leave.
    unsafe {
        evd::evd_wait::<Counting<A, D>, D, ANY>(evd_handle, wait, threshold, event, n_more_events)
    }
}

/// `dat_evd_dequeue`.
///
/// # Safety
/// As [`evd::evd_dequeue`].
pub(super) unsafe extern "C" fn evd_dequeue<A: Abi, D: Device>(
    evd_handle: DAT_EVD_HANDLE,
    event: *mut A::Event,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    let code = unsafe { evd::evd_dequeue::<Counting<A, D>, D, ANY>(evd_handle, event) };
    let found = code == DAT_SUCCESS;
    // SAFETY: an event was written.
    let polled = !found || is_completion(A::event_number(unsafe { &*event }));
    of_evd::<D>(evd_handle, |counters| {
        counters.add(DCNT_EVD_DEQUEUE, 1);
        counters.add(
            match found {
                true => DCNT_EVD_DEQUEUE_FOUND,
                false => DCNT_EVD_DEQUEUE_NOT_FOUND,
            },
            1,
        );
        counters.add(DCNT_EVD_DEQUEUE_POLL, polled.into());
        counters.add(DCNT_EVD_DEQUEUE_POLL_FOUND, (polled && found).into());
    });
    code
}

/// Whether an event of this number is the completion of a request or a receive.
fn is_completion(number: DAT_EVENT_NUMBER) -> bool {
    matches!(number, DAT_DTO_COMPLETION_EVENT | DAT_IB_DTO_EVENT)
}

/// Counts what an endpoint has received, or that a request or receive of it has failed, when the program takes the
/// event. Binds are not counted.
struct Count<D>(PhantomData<fn() -> D>);

/// The ABI `A` for EVDs whose completions are counted.
type Counting<A, D> = Observed<A, Count<D>>;

impl<D: Device> Observer for Count<D> {
    fn completion(completion: &Completion) {
        completed::<D>(completion);
    }
}

/// See [`Count`].
fn completed<D: Device>(completion: &Completion) {
    let (counter, bytes) = match (completion.status, completion.op) {
        (_, WcOp::Bind { .. }) => return,
        (WcStatus::Success, WcOp::Recv | WcOp::RecvInvalidate { .. }) => (DCNT_EP_RECV, true),
        (WcStatus::Success, WcOp::RecvDatagram) => (DCNT_EP_RECV_UD, true),
        (WcStatus::Success, WcOp::RecvImm { .. }) => (DCNT_EP_RECV_IMM, true),
        (WcStatus::Success, WcOp::RecvRdmaImm { .. }) => (DCNT_EP_RECV_RDMA_IMM, true),
        (WcStatus::Success, _) => return,
        (WcStatus::Flushed, _) => (EP_FLUSHED, false),
        (_, _) => (EP_FAILED, false),
    };
    let ep = std::ptr::with_exposed_provenance_mut(completion.context as usize);
    of_ep::<D>(ep, |counters| {
        counters.add(counter, 1);
        if bytes {
            counters.add(counter + 1, completion.byte_len.into());
        }
    });
}
