//! The calls of the data path for IAs whose counters are on: each calls the function that does the work
//! and counts when that has succeeded. Those functions are never inlined: each stays the piece of code that
//! it is without counters.

use std::ffi::c_void;

use crate::abi::v2::*;
use crate::abi::va_list::VaList;
use crate::dapl::abi::V2;
use crate::dapl::counters::{Counters, EP_FAILED, EP_FLUSHED};
use crate::dapl::ep::{self, Ep};
use crate::dapl::evd::{self, Evd};
use crate::dapl::{extension, rmr};
use crate::device::Device;
use crate::handle::{self, pin};

/// Replaces the functions of the data path in a function table by those that count.
pub fn count<D: Device>(table: DAT_PROVIDER) -> DAT_PROVIDER {
    DAT_PROVIDER {
        evd_wait_func: Some(evd_wait::<D>),
        evd_dequeue_func: Some(evd_dequeue::<D>),
        ep_post_send_func: Some(ep_post_send::<D>),
        ep_post_send_with_invalidate_func: Some(ep_post_send_with_invalidate::<D>),
        ep_post_recv_func: Some(ep_post_recv::<D>),
        ep_post_rdma_read_func: Some(ep_post_rdma_read::<D>),
        ep_post_rdma_read_to_rmr_func: Some(ep_post_rdma_read_to_rmr::<D>),
        ep_post_rdma_write_func: Some(ep_post_rdma_write::<D>),
        handle_extendedop_func: Some(handle_extendedop::<D>),
        ..table
    }
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
unsafe fn posted<D: Device>(
    code: DAT_RETURN,
    ep: DAT_EP_HANDLE,
    counter: DAT_EP_COUNTERS,
    (count, iov): (DAT_COUNT, *const DAT_LMR_TRIPLET),
) -> DAT_RETURN {
    if code == DAT_SUCCESS {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the caller's promise; read as the post does, in any alignment.
        let length = |i: usize| unsafe { iov.add(i).read_unaligned() }.segment_length;
        let bytes: u64 = (0..count).map(|i| u64::from(length(i))).sum();
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
unsafe extern "C" fn ep_post_send<D: Device>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe {
        let code =
            ep::ep_post_send::<V2, D>(ep_handle, num_segments, local_iov, user_cookie, flags);
        posted::<D>(
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
        posted::<D>(
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
unsafe extern "C" fn ep_post_recv<D: Device>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe {
        let code =
            ep::ep_post_recv::<V2, D>(ep_handle, num_segments, local_iov, user_cookie, flags);
        posted::<D>(
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
unsafe extern "C" fn ep_post_rdma_read<D: Device>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const DAT_RMR_TRIPLET,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe {
        let code = ep::ep_post_rdma_read::<V2, D>(
            ep_handle,
            num_segments,
            local_iov,
            user_cookie,
            remote_iov,
            flags,
        );
        posted::<D>(
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
unsafe extern "C" fn ep_post_rdma_write<D: Device>(
    ep_handle: DAT_EP_HANDLE,
    num_segments: DAT_COUNT,
    local_iov: *mut DAT_LMR_TRIPLET,
    user_cookie: DAT_DTO_COOKIE,
    remote_iov: *const DAT_RMR_TRIPLET,
    flags: DAT_COMPLETION_FLAGS,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    unsafe {
        let code = ep::ep_post_rdma_write::<V2, D>(
            ep_handle,
            num_segments,
            local_iov,
            user_cookie,
            remote_iov,
            flags,
        );
        posted::<D>(
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
        let mut arguments = (*argument_list.cast::<VaList>()).clone();
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
                posted::<D>(code, handle, counter, segments)
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
unsafe extern "C-unwind" fn evd_wait<D: Device>(
    evd_handle: DAT_EVD_HANDLE,
    wait: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    event: *mut DAT_EVENT,
    n_more_events: *mut DAT_COUNT,
) -> DAT_RETURN {
    of_evd::<D>(evd_handle, |counters| counters.add(DCNT_EVD_WAIT, 1));
    // SAFETY: the caller's promise. Nothing is held that a cancellation would leave.
    let code = unsafe { evd::evd_wait::<V2, D>(evd_handle, wait, threshold, event, n_more_events) };
    if code == DAT_SUCCESS {
        // SAFETY: an event was written.
        received::<D>(unsafe { &*event });
    }
    code
}

/// `dat_evd_dequeue`.
///
/// # Safety
/// As [`evd::evd_dequeue`].
unsafe extern "C" fn evd_dequeue<D: Device>(
    evd_handle: DAT_EVD_HANDLE,
    event: *mut DAT_EVENT,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    let code = unsafe { evd::evd_dequeue::<V2, D>(evd_handle, event) };
    let found = code == DAT_SUCCESS;
    // SAFETY: an event was written.
    let polled = !found || is_completion(unsafe { &*event });
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
    if found {
        // SAFETY: an event was written.
        received::<D>(unsafe { &*event });
    }
    code
}

/// Whether the event is the completion of a request or a receive.
fn is_completion(event: &DAT_EVENT) -> bool {
    matches!(
        event.event_number,
        DAT_DTO_COMPLETION_EVENT | DAT_IB_DTO_EVENT
    )
}

/// Counts what an endpoint has received, or that a request or receive of it has failed, if the event says so.
fn received<D: Device>(event: &DAT_EVENT) {
    if !is_completion(event) {
        return;
    }
    // SAFETY: the member of a completion.
    let data = unsafe { event.event_data.dto_completion_event_data };
    match data.status {
        DAT_DTO_SUCCESS => {}
        DAT_DTO_ERR_FLUSHED => {
            return of_ep::<D>(data.ep_handle, |counters| counters.add(EP_FLUSHED, 1));
        }
        _ => return of_ep::<D>(data.ep_handle, |counters| counters.add(EP_FAILED, 1)),
    }
    let counter = match data.operation {
        DAT_DTO_RECEIVE | DAT_DTO_RECEIVE_WITH_INVALIDATE => DCNT_EP_RECV,
        DAT_IB_DTO_RECV_UD | DAT_IB_DTO_RECV_UD_IMMED => DCNT_EP_RECV_UD,
        DAT_IB_DTO_RECV_MSG_IMMED => DCNT_EP_RECV_IMM,
        DAT_IB_DTO_RECV_IMMED => DCNT_EP_RECV_RDMA_IMM,
        _ => return,
    };
    of_ep::<D>(data.ep_handle, |counters| {
        counters.add(counter, 1);
        counters.add(counter + 1, data.transfered_length.into());
    });
}
