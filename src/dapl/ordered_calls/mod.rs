//! The function tables in a program that ThreadSanitizer checks: each function tells the checker what the call orders,
//! and that what happens meanwhile happens in the library ([`crate::thread_sanitizer`]). Whoever calls a provider goes
//! through its table: the exported functions, registry libraries of others, and programs that follow a handle
//! themselves. Without the checker no handle leads here.
//!
//! A race of the program is found if nothing orders the two accesses. So a call that takes up too little makes a
//! false report, and one that takes up too much hides a race. What is ordered:
//!
//! | who takes it up | what |
//! |---|---|
//! | the completion of a send, an RDMA write or a bind | the post of that request, by endpoint and cookie |
//! | that of a receive | the post of the receive, by endpoint, or shared receive queue, and cookie |
//! | a software event | its `dat_evd_post_se`, by EVD and pointer |
//! | a receive, an RDMA read or an atomic operation | all earlier posts of the process, and calls that set up, change, query or end something |
//! | a completion with an error, any other event | the same |
//! | a call that sets up, changes, queries or ends something | the same |
//! | `dat_cno_wait`, `dat_cno_trigger`, an agent | the same, and the software events of the EVD |
//! | `dat_evd_wait` for several events, a wait or a dequeue that fails | the same, and that a thread waits on the EVD |
//! | a dequeue or a wait without an event, a registration of memory | nothing |
//!
//! What arrives at one endpoint may answer what another one has sent: by way of any other process, in which DAT orders
//! it as well. Nobody in this process sees that. So what brings information from elsewhere takes up all that was
//! given away in the process, as the checker itself has it for sockets. What brings no information but that one request
//! has ended is told apart from other requests: programs mostly have the address of a structure as the cookie.
//!
//! Not ordered is what a program concludes from the memory of an RDMA write without a call of DAT, and that a receive was
//! posted, since a send has completed.

mod calling;

use std::ffi::c_void;
use std::mem::offset_of;

use self::calling::{Kind, calling};
use super::abi::{Abi, Observed, Observer, V1, V2};
use super::types::Event;
use crate::abi::common::*;
use crate::device::{Completion, WcOp, WcStatus};
use crate::thread_sanitizer::{Key, acquire, enter, leave, notified, of_evd, release};

/// The functions that do the work.
pub trait Functions: 'static {
    /// The version.
    type Abi: Abi;
    /// `DAT_PROVIDER` of the version.
    type Table: 'static;

    /// All of them.
    fn table() -> Self::Table;

    /// `dat_evd_wait`, for an ABI with an observer.
    ///
    /// # Safety
    /// As [`evd_wait`](super::evd::evd_wait).
    unsafe extern "C-unwind" fn evd_wait<A: Abi>(
        evd_handle: DAT_EVD_HANDLE,
        wait: DAT_TIMEOUT,
        threshold: DAT_COUNT,
        event: *mut A::Event,
        n_more_events: *mut DAT_COUNT,
    ) -> DAT_RETURN;

    /// `dat_evd_dequeue`, for an ABI with an observer.
    ///
    /// # Safety
    /// As [`evd_dequeue`](super::evd::evd_dequeue).
    unsafe extern "C" fn evd_dequeue<A: Abi>(
        evd_handle: DAT_EVD_HANDLE,
        event: *mut A::Event,
    ) -> DAT_RETURN;
}

/// Takes up what has caused the events that the program gets.
struct Order;

impl Observer for Order {
    fn completion(completion: &Completion) {
        let handle = match completion.from_srq {
            true => OF_ANY_SRQ,
            false => std::ptr::with_exposed_provenance_mut(completion.context as usize),
        };
        acquire(Key::of(handle, completion.wr_id));
        let plain = matches!(
            completion.op,
            WcOp::Send | WcOp::RdmaWrite | WcOp::Bind { .. }
        );
        if !plain || completion.status != WcStatus::Success {
            acquire(Key::process());
        }
    }

    fn event(event: &Event, evd: DAT_EVD_HANDLE) {
        match event {
            Event::Software(pointer) => acquire(Key::of(evd, of_pointer(pointer.0))),
            _ => acquire(Key::process()),
        }
    }
}

/// The ABI `A` for EVDs whose events take up what has caused them.
type Ordering<A> = Observed<A, Order>;

/// Takes up what may have made a call for an event fail, or nothing if there just was none.
fn without_event(evd: DAT_EVD_HANDLE, code: DAT_RETURN) {
    let kind = code & DAT_TYPE_MASK;
    if !matches!(
        kind,
        DAT_SUCCESS | DAT_QUEUE_EMPTY | DAT_TIMEOUT_EXPIRED | DAT_INTERRUPTED_CALL
    ) {
        acquire(of_evd(evd));
        acquire(Key::process());
    }
}

/// `dat_evd_wait`.
///
/// # Safety
/// As [`evd_wait`](super::evd::evd_wait).
unsafe extern "C-unwind" fn evd_wait<F: Functions>(
    evd_handle: DAT_EVD_HANDLE,
    wait: DAT_TIMEOUT,
    threshold: DAT_COUNT,
    event: *mut <F::Abi as Abi>::Event,
    n_more_events: *mut DAT_COUNT,
) -> DAT_RETURN {
    // For who learns that a thread waits.
    release(of_evd(evd_handle));
    enter();
    // SAFETY: the caller's promise. Nothing is held that a cancellation would leave.
    let code = unsafe {
        F::evd_wait::<Ordering<F::Abi>>(evd_handle, wait, threshold, event, n_more_events)
    };
    leave();
    if code == DAT_SUCCESS && threshold > 1 {
        // As many events are there, of which this is the first.
        notified(evd_handle);
    }
    without_event(evd_handle, code);
    code
}

/// `dat_evd_dequeue`.
///
/// # Safety
/// As [`evd_dequeue`](super::evd::evd_dequeue).
unsafe extern "C" fn evd_dequeue<F: Functions>(
    evd_handle: DAT_EVD_HANDLE,
    event: *mut <F::Abi as Abi>::Event,
) -> DAT_RETURN {
    enter();
    // SAFETY: the caller's promise.
    let code = unsafe { F::evd_dequeue::<Ordering<F::Abi>>(evd_handle, event) };
    leave();
    without_event(evd_handle, code);
    code
}

fn of_pointer(pointer: *mut c_void) -> u64 {
    pointer.addr() as u64
}

/// Gives away a software event.
///
/// # Safety
/// The event is NULL or points to one.
unsafe fn post_software<A: Abi>(evd: DAT_EVD_HANDLE, event: *const A::Event) {
    release(of_evd(evd));
    // SAFETY: the caller's promise.
    if let Some(event) = unsafe { event.as_ref() } {
        let (_, pointer) = A::software_event(event);
        release(Key::of(evd, of_pointer(pointer)));
    }
}

/// Gives away a post.
fn post(handle: *mut c_void, cookie: DAT_CONTEXT) {
    // SAFETY: all members of the union are of this length, or shorter; programs leave the rest as it is.
    release(Key::of(handle, unsafe { cookie.as_64 }));
    release(Key::process());
}

/// A call that sets up, changes, queries or ends something.
struct Control;

impl Kind for Control {
    const GIVES: bool = true;
    const TAKES: bool = true;
}

/// A post whose cookie is not looked for.
struct Post;

impl Kind for Post {
    const GIVES: bool = true;
    const TAKES: bool = false;
}

/// A call that says nothing of what other threads have done: for memory, which programs register between transfers, or
/// for what never changes.
struct Memory;

impl Kind for Memory {
    const GIVES: bool = false;
    const TAKES: bool = false;
}

/// Makes the function that gives the table of a version. All slots are named, so that none is forgotten.
macro_rules! ordered_table {
    (
        $name:ident, $version:ident, $abi:ident,
        posts: { $($post:ident($($arg:ident: $type:ty),*) of $handle:expr, $cookie:ident;)* },
        post: { $($other:ident,)* },
        control: { $($control:ident,)* },
        memory: { $($memory:ident,)* },
        notification: { $($convention:literal $notification:ident($($argument:ident: $argument_type:ty),*);)* },
    ) => {
        /// The table of this version whose functions tell the checker what those of another table do.
        pub fn $name<F>(table: crate::abi::$version::DAT_PROVIDER) -> crate::abi::$version::DAT_PROVIDER
        where
            F: Functions<Abi = $abi, Table = crate::abi::$version::DAT_PROVIDER>,
        {
            use crate::abi::$version::*;

            $(
                /// # Safety
                /// As the function that does the work.
                unsafe extern "C" fn $post<F>($($arg: $type),*) -> DAT_RETURN
                where
                    F: Functions<Abi = $abi, Table = DAT_PROVIDER>,
                {
                    post($handle, $cookie);
                    enter();
                    // SAFETY: no slot of a table of ours is empty; the caller's promise.
                    let code = unsafe { F::table().$post.unwrap_unchecked()($($arg),*) };
                    leave();
                    code
                }
            )*
            $(
                /// # Safety
                /// As the function that does the work.
                unsafe extern $convention fn $notification<F>(
                    $($argument: $argument_type,)*
                    evd_handle: *mut DAT_EVD_HANDLE,
                ) -> DAT_RETURN
                where
                    F: Functions<Abi = $abi, Table = DAT_PROVIDER>,
                {
                    enter();
                    // SAFETY: no slot of a table of ours is empty; the caller's promise. Nothing is held that a
                    // cancellation would leave.
                    let code = unsafe {
                        F::table().$notification.unwrap_unchecked()($($argument,)* evd_handle)
                    };
                    leave();
                    if code == DAT_SUCCESS {
                        // SAFETY: the EVD was written.
                        notified(unsafe { evd_handle.read() });
                    }
                    without_event(DAT_HANDLE_NULL, code);
                    code
                }
            )*

            /// # Safety
            /// As the function that does the work.
            unsafe extern "C" fn evd_post_se<F>(
                evd_handle: DAT_EVD_HANDLE,
                event: *const DAT_EVENT,
            ) -> DAT_RETURN
            where
                F: Functions<Abi = $abi, Table = DAT_PROVIDER>,
            {
                enter();
                // SAFETY: the caller's promise; no slot of a table of ours is empty.
                let code = unsafe {
                    post_software::<$abi>(evd_handle, event);
                    F::table().evd_post_se_func.unwrap_unchecked()(evd_handle, event)
                };
                leave();
                code
            }

            DAT_PROVIDER {
                device_name: table.device_name,
                extension: table.extension,
                evd_wait_func: Some(evd_wait::<F>),
                evd_dequeue_func: Some(evd_dequeue::<F>),
                evd_post_se_func: Some(evd_post_se::<F>),
                $($post: Some($post::<F>),)*
                $($notification: Some($notification::<F>),)*
                $($other: calling::<F, Post, _, { offset_of!(DAT_PROVIDER, $other) }>(table.$other),)*
                $($control: calling::<F, Control, _, { offset_of!(DAT_PROVIDER, $control) }>(table.$control),)*
                $($memory: calling::<F, Memory, _, { offset_of!(DAT_PROVIDER, $memory) }>(table.$memory),)*
            }
        }
    };
}

/// The object of receives that were posted to shared receive queues: an event does not say which queue it was.
const OF_ANY_SRQ: DAT_HANDLE = DAT_HANDLE_NULL;

ordered_table! {
    ordered_v1, v1, V1,
    posts: {
        ep_post_send_func(
            ep: DAT_EP_HANDLE,
            segments: DAT_COUNT,
            iov: *mut DAT_LMR_TRIPLET,
            cookie: DAT_DTO_COOKIE,
            flags: DAT_COMPLETION_FLAGS
        ) of ep, cookie;
        ep_post_recv_func(
            ep: DAT_EP_HANDLE,
            segments: DAT_COUNT,
            iov: *mut DAT_LMR_TRIPLET,
            cookie: DAT_DTO_COOKIE,
            flags: DAT_COMPLETION_FLAGS
        ) of ep, cookie;
        srq_post_recv_func(
            srq: DAT_SRQ_HANDLE,
            segments: DAT_COUNT,
            iov: *mut DAT_LMR_TRIPLET,
            cookie: DAT_DTO_COOKIE
        ) of OF_ANY_SRQ, cookie;
        ep_post_rdma_read_func(
            ep: DAT_EP_HANDLE,
            segments: DAT_COUNT,
            iov: *mut DAT_LMR_TRIPLET,
            cookie: DAT_DTO_COOKIE,
            remote: *const DAT_RMR_TRIPLET,
            flags: DAT_COMPLETION_FLAGS
        ) of ep, cookie;
        ep_post_rdma_write_func(
            ep: DAT_EP_HANDLE,
            segments: DAT_COUNT,
            iov: *mut DAT_LMR_TRIPLET,
            cookie: DAT_DTO_COOKIE,
            remote: *const DAT_RMR_TRIPLET,
            flags: DAT_COMPLETION_FLAGS
        ) of ep, cookie;
        rmr_bind_func(
            rmr: DAT_RMR_HANDLE,
            triplet: *const DAT_LMR_TRIPLET,
            privileges: DAT_MEM_PRIV_FLAGS,
            ep: DAT_EP_HANDLE,
            cookie: DAT_RMR_COOKIE,
            flags: DAT_COMPLETION_FLAGS,
            context: *mut DAT_RMR_CONTEXT
        ) of ep, cookie;
    },
    post: {
    },
    control: {
        ia_open_func,
        ia_close_func,
        set_consumer_context_func,
        get_consumer_context_func,
        cno_create_func,
        cno_modify_agent_func,
        cno_query_func,
        cno_free_func,
        cr_query_func,
        cr_accept_func,
        cr_reject_func,
        cr_handoff_func,
        evd_create_func,
        evd_query_func,
        evd_modify_cno_func,
        evd_enable_func,
        evd_disable_func,
        evd_resize_func,
        evd_free_func,
        ep_create_func,
        ep_query_func,
        ep_modify_func,
        ep_connect_func,
        ep_dup_connect_func,
        ep_disconnect_func,
        ep_get_status_func,
        ep_free_func,
        rmr_free_func,
        psp_create_func,
        psp_query_func,
        psp_free_func,
        rsp_create_func,
        rsp_query_func,
        rsp_free_func,
        psp_create_any_func,
        ep_reset_func,
        evd_set_unwaitable_func,
        evd_clear_unwaitable_func,
        ep_create_with_srq_func,
        ep_recv_query_func,
        ep_set_watermark_func,
        srq_create_func,
        srq_free_func,
        srq_query_func,
        srq_resize_func,
        srq_set_lw_func,
    },
    memory: {
        ia_query_func,
        get_handle_type_func,
        lmr_create_func,
        lmr_query_func,
        lmr_free_func,
        rmr_create_func,
        rmr_query_func,
        pz_create_func,
        pz_query_func,
        pz_free_func,
        lmr_sync_rdma_read_func,
        lmr_sync_rdma_write_func,
    },
    notification: {
        "C-unwind" cno_wait_func(cno: DAT_CNO_HANDLE, timeout: DAT_TIMEOUT);
    },
}

ordered_table! {
    ordered_v2, v2, V2,
    posts: {
        ep_post_send_func(
            ep: DAT_EP_HANDLE,
            segments: DAT_COUNT,
            iov: *mut DAT_LMR_TRIPLET,
            cookie: DAT_DTO_COOKIE,
            flags: DAT_COMPLETION_FLAGS
        ) of ep, cookie;
        ep_post_recv_func(
            ep: DAT_EP_HANDLE,
            segments: DAT_COUNT,
            iov: *mut DAT_LMR_TRIPLET,
            cookie: DAT_DTO_COOKIE,
            flags: DAT_COMPLETION_FLAGS
        ) of ep, cookie;
        srq_post_recv_func(
            srq: DAT_SRQ_HANDLE,
            segments: DAT_COUNT,
            iov: *mut DAT_LMR_TRIPLET,
            cookie: DAT_DTO_COOKIE
        ) of OF_ANY_SRQ, cookie;
        ep_post_rdma_read_func(
            ep: DAT_EP_HANDLE,
            segments: DAT_COUNT,
            iov: *mut DAT_LMR_TRIPLET,
            cookie: DAT_DTO_COOKIE,
            remote: *const DAT_RMR_TRIPLET,
            flags: DAT_COMPLETION_FLAGS
        ) of ep, cookie;
        ep_post_rdma_write_func(
            ep: DAT_EP_HANDLE,
            segments: DAT_COUNT,
            iov: *mut DAT_LMR_TRIPLET,
            cookie: DAT_DTO_COOKIE,
            remote: *const DAT_RMR_TRIPLET,
            flags: DAT_COMPLETION_FLAGS
        ) of ep, cookie;
        rmr_bind_func(
            rmr: DAT_RMR_HANDLE,
            lmr: DAT_LMR_HANDLE,
            triplet: *const DAT_LMR_TRIPLET,
            privileges: DAT_MEM_PRIV_FLAGS,
            va_type: DAT_VA_TYPE,
            ep: DAT_EP_HANDLE,
            cookie: DAT_RMR_COOKIE,
            flags: DAT_COMPLETION_FLAGS,
            context: *mut DAT_RMR_CONTEXT
        ) of ep, cookie;
        ep_post_send_with_invalidate_func(
            ep: DAT_EP_HANDLE,
            segments: DAT_COUNT,
            iov: *mut DAT_LMR_TRIPLET,
            cookie: DAT_DTO_COOKIE,
            flags: DAT_COMPLETION_FLAGS,
            invalidate: DAT_BOOLEAN,
            context: DAT_RMR_CONTEXT
        ) of ep, cookie;
        ep_post_rdma_read_to_rmr_func(
            ep: DAT_EP_HANDLE,
            iov: *const DAT_RMR_TRIPLET,
            cookie: DAT_DTO_COOKIE,
            remote: *const DAT_RMR_TRIPLET,
            flags: DAT_COMPLETION_FLAGS
        ) of ep, cookie;
    },
    post: {
        handle_extendedop_func,
    },
    control: {
        ia_open_func,
        ia_close_func,
        set_consumer_context_func,
        get_consumer_context_func,
        cno_create_func,
        cno_modify_agent_func,
        cno_query_func,
        cno_free_func,
        cr_query_func,
        cr_accept_func,
        cr_reject_func,
        cr_handoff_func,
        evd_create_func,
        evd_query_func,
        evd_modify_cno_func,
        evd_enable_func,
        evd_disable_func,
        evd_resize_func,
        evd_free_func,
        ep_create_func,
        ep_query_func,
        ep_modify_func,
        ep_connect_func,
        ep_dup_connect_func,
        ep_disconnect_func,
        ep_get_status_func,
        ep_free_func,
        rmr_free_func,
        psp_create_func,
        psp_query_func,
        psp_free_func,
        rsp_create_func,
        rsp_query_func,
        rsp_free_func,
        psp_create_any_func,
        ep_reset_func,
        evd_set_unwaitable_func,
        evd_clear_unwaitable_func,
        ep_create_with_srq_func,
        ep_recv_query_func,
        ep_set_watermark_func,
        srq_create_func,
        srq_free_func,
        srq_query_func,
        srq_resize_func,
        srq_set_lw_func,
        csp_create_func,
        csp_query_func,
        csp_free_func,
        ep_common_connect_func,
        cno_fd_create_func,
        ia_ha_related_func,
    },
    memory: {
        ia_query_func,
        get_handle_type_func,
        lmr_create_func,
        lmr_query_func,
        lmr_free_func,
        rmr_create_func,
        rmr_query_func,
        pz_create_func,
        pz_query_func,
        pz_free_func,
        lmr_sync_rdma_read_func,
        lmr_sync_rdma_write_func,
        rmr_create_for_ep_func,
    },
    notification: {
        "C-unwind" cno_wait_func(cno: DAT_CNO_HANDLE, timeout: DAT_TIMEOUT);
        "C" cno_trigger_func(cno: DAT_CNO_HANDLE);
    },
}
