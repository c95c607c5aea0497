//! The events that a device reports by itself, of its objects and of its own.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use super::adapter::{Adapter, Target};
use super::sys;

/// An event of the device, with the object that it is for.
pub(super) struct DeviceEvent {
    /// `sys::EVENT_*`.
    pub kind: c_int,
    /// The number by which the event names its object.
    pub token: u64,
    pub target: Option<Target>,
}

/// Reads the next event: its kind and the number by which it names its object.
pub(super) fn read(adapter: &Adapter) -> Option<(c_int, u64)> {
    let mut event = MaybeUninit::<sys::AsyncEvent>::zeroed();
    // SAFETY: the context is open, the place for the event valid; all zero is too.
    unsafe {
        if (adapter.lib.ibv_get_async_event)(adapter.ctx, event.as_mut_ptr()) != 0 {
            return None;
        }
        let event = event.assume_init_mut();
        let context = context_of(event);
        (adapter.lib.ibv_ack_async_event)(event);
        Some((event.event_type, context.addr() as u64))
    }
}

/// The number by which an event names its object.
///
/// # Safety
/// The event was just read and is not acknowledged.
unsafe fn context_of(event: &sys::AsyncEvent) -> *mut std::ffi::c_void {
    let element = event.element;
    // SAFETY: the element is of the kind that the type says, and valid until the event is
    // acknowledged.
    unsafe {
        match event.event_type {
            sys::EVENT_CQ_ERR => (*element.cast::<sys::Cq>()).cq_context,
            sys::EVENT_QP_FATAL
            | sys::EVENT_QP_REQ_ERR
            | sys::EVENT_QP_ACCESS_ERR
            | sys::EVENT_COMM_EST
            | sys::EVENT_QP_LAST_WQE_REACHED => (*element.cast::<sys::Qp>()).qp_context,
            sys::EVENT_SRQ_ERR | sys::EVENT_SRQ_LIMIT_REACHED => {
                (*element.cast::<sys::Srq>()).srq_context
            }
            _ => null_mut(),
        }
    }
}
