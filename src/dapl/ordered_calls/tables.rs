//! The function tables, slot by slot.

use std::mem::offset_of;

use super::calling::{Kind, calling};
use super::{Functions, OF_ANY_SRQ, evd_dequeue, evd_wait, post, post_software, without_event};
use crate::dapl::abi::{V1, V2};
use crate::thread_sanitizer::{enter, leave, notified};

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
macro_rules! ordered_slots {
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

/// The same with the slots that both versions have.
macro_rules! ordered_table {
    (
        $name:ident, $version:ident, $abi:ident,
        posts: { $($posts:tt)* },
        post: { $($post:tt)* },
        control: { $($control:tt)* },
        memory: { $($memory:tt)* },
        notification: { $($notification:tt)* },
    ) => {
        ordered_slots! {
            $name, $version, $abi,
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
                $($posts)*
            },
            post: {
                $($post)*
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
                $($control)*
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
                $($memory)*
            },
            notification: {
                "C-unwind" cno_wait_func(cno: DAT_CNO_HANDLE, timeout: DAT_TIMEOUT);
                $($notification)*
            },
        }
    };
}

ordered_table! {
    ordered_v1, v1, V1,
    posts: {
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
    post: {},
    control: {},
    memory: {},
    notification: {},
}

ordered_table! {
    ordered_v2, v2, V2,
    posts: {
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
        csp_create_func,
        csp_query_func,
        csp_free_func,
        ep_common_connect_func,
        cno_fd_create_func,
        ia_ha_related_func,
    },
    memory: {
        rmr_create_for_ep_func,
    },
    notification: {
        "C" cno_trigger_func(cno: DAT_CNO_HANDLE);
    },
}
