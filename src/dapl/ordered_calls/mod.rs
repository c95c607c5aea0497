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
mod tables;

use std::ffi::c_void;

pub use self::tables::{ordered_v1, ordered_v2};
use super::abi::{Abi, Observed, Observer};
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
    fn evd_wait<A: Abi>() -> EvdWait<A::Event>;

    /// `dat_evd_dequeue`, for an ABI with an observer.
    fn evd_dequeue<A: Abi>() -> EvdDequeue<A::Event>;
}

/// The type of `dat_evd_wait`, with that of an event.
pub type EvdWait<E> = unsafe extern "C-unwind" fn(
    DAT_EVD_HANDLE,
    DAT_TIMEOUT,
    DAT_COUNT,
    *mut E,
    *mut DAT_COUNT,
) -> DAT_RETURN;
/// The type of `dat_evd_dequeue`.
pub type EvdDequeue<E> = unsafe extern "C" fn(DAT_EVD_HANDLE, *mut E) -> DAT_RETURN;

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
        F::evd_wait::<Ordering<F::Abi>>()(evd_handle, wait, threshold, event, n_more_events)
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
    let code = unsafe { F::evd_dequeue::<Ordering<F::Abi>>()(evd_handle, event) };
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

/// The object of receives that were posted to shared receive queues: an event does not say which queue it was.
const OF_ANY_SRQ: DAT_HANDLE = DAT_HANDLE_NULL;

/// Gives away a post.
fn post(handle: *mut c_void, cookie: DAT_CONTEXT) {
    // SAFETY: all members of the union are of this length, or shorter; programs leave the rest as it is.
    release(Key::of(handle, unsafe { cookie.as_64 }));
    release(Key::process());
}
