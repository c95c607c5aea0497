//! `dat_evd_dequeue`.

use std::mem::MaybeUninit;

use super::{Buffer, Evd, State, WAITER, idle};
use crate::abi::common::*;
use crate::cancel;
use crate::dapl::abi::Abi;
use crate::dapl::boundary::{code, end_plainly, failed, short_boundary_of_code};
use crate::device::{
    Completion, CompletionQueue, Device, PlainPoll, PlainTaker, PollOutcome, Taker, WcOp,
};
use crate::error::{Error, Kind, Result, Subtype};
use crate::handle::{self, Guard, Section, pin};

/// Polls without a system call that take the time of one in which the device makes progress.
const PROGRESS: i32 = 4;

/// `dat_evd_dequeue`.
///
/// # Safety
/// `event` is NULL or points to memory for an event; for the handle as [`handle::get_as`].
#[inline(never)]
pub unsafe extern "C" fn evd_dequeue<A: Abi, D: Device, const KNOWN: bool>(
    evd_handle: DAT_EVD_HANDLE,
    event: *mut A::Event,
) -> DAT_RETURN {
    // A plain completion first. Nothing here changes `errno` or panics, and each call is the last thing that is
    // done, so that there is no frame.
    if D::PLAIN_CALLS {
        let Some(guard) = pin::pin_plainly() else {
            // SAFETY: the caller's promise.
            return unsafe { dequeue_whole::<A, D, KNOWN>(evd_handle, event) };
        };
        // SAFETY: the caller's promise.
        let evd = unsafe { handle::get_as::<Evd<D>, _, KNOWN>(evd_handle, &guard, || ()) };
        if let Ok(evd) = evd
            && !event.is_null()
        {
            // SAFETY: not NULL; `MaybeUninit` needs only the memory.
            let out = unsafe { &mut *event.cast::<MaybeUninit<A::Event>>() };
            // SAFETY: `pin_plainly` has found that no lock is held.
            match unsafe { evd.take_plainly::<A>(evd_handle, out, &guard) } {
                PlainPoll::Taken => return end_plainly::<A>(guard),
                PlainPoll::Nothing => {
                    let evd = std::ptr::from_ref(evd);
                    // SAFETY: reached in the section, and not NULL.
                    return unsafe { dequeue_later::<A, D>(evd_handle, event, evd, guard) };
                }
                PlainPoll::Otherwise => {}
            }
        }
        // SAFETY: the caller's promise.
        return unsafe { dequeue_pinned::<A, D, KNOWN>(evd_handle, event, guard) };
    }
    // SAFETY: the caller's promise.
    short_boundary_of_code::<A>(|| unsafe {
        dequeue_in::<A, D, KNOWN>(evd_handle, event, pin::pin())
    })
}

/// [`evd_dequeue`] from its beginning on.
///
/// # Safety
/// As [`evd_dequeue`].
#[cold]
#[inline(never)]
unsafe extern "C" fn dequeue_whole<A: Abi, D: Device, const KNOWN: bool>(
    evd_handle: DAT_EVD_HANDLE,
    event: *mut A::Event,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    short_boundary_of_code::<A>(|| unsafe {
        dequeue_in::<A, D, KNOWN>(evd_handle, event, pin::pin())
    })
}

/// [`evd_dequeue`] in a section that has begun already. Cold, so that the compiler keeps the jumps to it out of the
/// way of the rest.
///
/// # Safety
/// As [`evd_dequeue`].
#[cold]
#[inline(never)]
unsafe extern "C" fn dequeue_pinned<A: Abi, D: Device, const KNOWN: bool>(
    evd_handle: DAT_EVD_HANDLE,
    event: *mut A::Event,
    guard: Section,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    short_boundary_of_code::<A>(|| unsafe { dequeue_in::<A, D, KNOWN>(evd_handle, event, guard) })
}

/// [`evd_dequeue`] of an EVD that has no event at the moment, in a section that has begun already.
///
/// # Safety
/// `event` points to memory for an event; `evd` is the EVD of the handle, reached in the section.
#[inline(never)]
unsafe extern "C" fn dequeue_later<A: Abi, D: Device>(
    evd_handle: DAT_EVD_HANDLE,
    event: *mut A::Event,
    evd: *const Evd<D>,
    guard: Section,
) -> DAT_RETURN {
    short_boundary_of_code::<A>(|| {
        // SAFETY: the caller's promises; `MaybeUninit` needs only the memory.
        unsafe {
            let out = &mut *event.cast::<MaybeUninit<A::Event>>();
            dequeue_arriving::<A, D>(evd, evd_handle, out, guard)
        }
    })
}

/// What [`evd_dequeue`] does in a section, which it ends: gives its code.
///
/// # Safety
/// As [`evd_dequeue`].
#[inline(always)]
unsafe fn dequeue_in<A: Abi, D: Device, const KNOWN: bool>(
    evd_handle: DAT_EVD_HANDLE,
    event: *mut A::Event,
    guard: Section,
) -> DAT_RETURN {
    // SAFETY: the caller's promise.
    let evd = match unsafe { evd_of::<D, KNOWN>(evd_handle, &guard) } {
        Ok(evd) if !event.is_null() => evd,
        Ok(_) => return failed::<A>(guard, Error::arg(Subtype::Arg2)),
        Err(error) => return failed::<A>(guard, error),
    };
    // SAFETY: not NULL; `MaybeUninit` needs only the memory.
    let out = unsafe { &mut *event.cast::<MaybeUninit<A::Event>>() };
    match evd.take_completion::<A>(evd_handle, out, &guard) {
        Taken::Completion => {
            guard.end_call();
            return DAT_SUCCESS;
        }
        Taken::Nothing => {}
        Taken::Otherwise => {
            let result = evd.dequeue::<A>(evd_handle, out, &guard);
            if !result.is_err_and(Error::is_queue_empty) {
                guard.end_call();
                return code::<A>(result);
            }
        }
    }
    let evd = std::ptr::from_ref(evd);
    // SAFETY: reached in the section.
    unsafe { dequeue_arriving::<A, D>(evd, evd_handle, out, guard) }
}

/// What [`evd_dequeue`] does after there was no event: it looks whether one arrives now. It ends the section, and
/// gives the code of the call.
///
/// # Safety
/// `evd` was reached in the section.
#[inline(always)]
unsafe fn dequeue_arriving<A: Abi, D: Device>(
    evd: *const Evd<D>,
    evd_handle: DAT_EVD_HANDLE,
    out: &mut MaybeUninit<A::Event>,
    guard: Section,
) -> DAT_RETURN {
    // SAFETY: it stays as long as the section lasts. Not used after that.
    let evd = unsafe { &*evd };
    match evd.base.ia.device.poll_events(&guard) {
        PollOutcome::Arrived => {
            let result = evd.dequeue::<A>(evd_handle, out, &guard);
            guard.end_call();
            code::<A>(result)
        }
        PollOutcome::Nothing => {
            let thread = guard.thread();
            guard.end_call();
            idle::polled_in_vain(thread, 1);
            Error::from(Kind::QueueEmpty).code(A::VERSION)
        }
        PollOutcome::NeedsProgress => {
            // The device may call back into the consumer's code, which may block.
            let evd = handle::share(evd);
            guard.end_call();
            let result = evd.dequeue_outside::<A>(evd_handle, out);
            cancel::drop_reference(evd);
            code::<A>(result)
        }
    }
}

/// What became of an attempt to take a completion.
enum Taken {
    /// It is taken.
    Completion,
    /// There is none.
    Nothing,
    /// An event has to be taken in another way, if there is one.
    Otherwise,
}

/// Makes a completion an event of an EVD.
pub(super) struct ToEvent<'a, A: Abi> {
    /// The EVD.
    pub handle: DAT_EVD_HANDLE,
    /// Where the event is written.
    pub out: &'a mut MaybeUninit<A::Event>,
}

impl<A: Abi> Taker for ToEvent<'_, A> {
    type Taken = Buffer;
    #[inline(always)]
    fn take(self, completion: &Completion) -> Buffer {
        A::completion(completion, self.handle, self.out);
        completion.into()
    }
}

impl<A: Abi> PlainTaker for ToEvent<'_, A> {
    #[inline(always)]
    fn take_plain(self, op: WcOp, completion: &Completion) {
        // The cookie is loaded by itself: one load of two members would wait until their stores have left the store
        // buffer of the processor.
        // SAFETY: a member of a structure that is borrowed.
        let wr_id = unsafe { (&raw const completion.wr_id).read_volatile() };
        // With this operation the compiler sees that code for others is not needed.
        let completion = Completion {
            op,
            wr_id,
            ..*completion
        };
        A::completion(&completion, self.handle, self.out);
    }
}

/// The EVD of a handle.
///
/// # Safety
/// As [`handle::get_as`].
#[inline(always)]
pub(super) unsafe fn evd_of<D: Device, const KNOWN: bool>(
    handle: DAT_EVD_HANDLE,
    guard: &Guard,
) -> Result<&Evd<D>> {
    let error = || Error::rare_handle(Subtype::HandleEvdRequest);
    // SAFETY: the caller's promise.
    unsafe { handle::get_as::<_, _, KNOWN>(handle, guard, error) }
}

impl<D: Device> Evd<D> {
    /// The queue of the device, if its oldest completion is the next event of the EVD, whose state is given, and no
    /// thread waits for that.
    #[inline(always)]
    fn completions(&self, state: &State<D>) -> Option<&D::Cq> {
        if state.exceptions != 0 || !state.queue.is_empty() {
            return None;
        }
        // SAFETY: there is no exception, and so a queue.
        Some(unsafe { self.polled() })
    }

    /// Takes the oldest event if that is a completion in the queue of the device, no thread waits for it,
    /// and the calling thread is the one that mostly uses the EVD. This is how nearly all events are
    /// taken; [`Evd::dequeue`] is for the others.
    #[inline(always)]
    fn take_completion<A: Abi>(
        &self,
        handle: DAT_EVD_HANDLE,
        out: &mut MaybeUninit<A::Event>,
        guard: &Guard,
    ) -> Taken {
        let Some(state) = self.state.own(guard.thread()) else {
            return Taken::Otherwise;
        };
        let Some(cq) = self.completions(&state) else {
            return Taken::Otherwise;
        };
        match cq.poll_in(guard, ToEvent::<A> { handle, out }) {
            Some(taken) => {
                state.srq_buffers.count(taken);
                Taken::Completion
            }
            None => Taken::Nothing,
        }
    }

    /// [`Evd::take_completion`] without any call, for a completion of which an event can be made so.
    ///
    /// # Safety
    /// The thread holds no biased lock as its owner.
    #[inline(always)]
    unsafe fn take_plainly<A: Abi>(
        &self,
        handle: DAT_EVD_HANDLE,
        out: &mut MaybeUninit<A::Event>,
        guard: &Guard,
    ) -> PlainPoll {
        // SAFETY: the caller's promise.
        let Some(state) = (unsafe { self.state.own_unmarked(guard.thread()) }) else {
            return PlainPoll::Otherwise;
        };
        let Some(cq) = self.completions(&state) else {
            return PlainPoll::Otherwise;
        };
        // SAFETY: the caller's promise; the lock of an EVD is of the outer level.
        unsafe { cq.poll_plainly(guard, ToEvent::<A> { handle, out }) }
    }

    /// Takes the oldest event, if no thread waits for it.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE` for an EVD that has a waiter or has lost an event; `DAT_QUEUE_EMPTY`.
    #[inline(never)]
    fn dequeue<A: Abi>(
        &self,
        handle: DAT_EVD_HANDLE,
        out: &mut MaybeUninit<A::Event>,
        guard: &Guard,
    ) -> Result<()> {
        let mut state = self.state.lock_as(guard.thread());
        // A waiter that `dat_evd_set_unwaitable` has released takes no events, but may not have left yet.
        if state.has(WAITER) && !state.evicted {
            return Err(Error::state(Subtype::StateEvdWaiter));
        }
        if let Some(event) = state.pop() {
            drop(state);
            self.write_event::<A>(&event, handle, out);
            return Ok(());
        }
        let Some(cq) = &self.cq else {
            return Err(state.nothing());
        };
        let Some(taken) = cq.poll_in(guard, ToEvent::<A> { handle, out }) else {
            return Err(state.nothing());
        };
        state.srq_buffers.count(taken);
        Ok(())
    }

    /// [`Evd::dequeue`] after the device has made progress in this thread.
    #[inline(never)]
    fn dequeue_outside<A: Abi>(
        &self,
        handle: DAT_EVD_HANDLE,
        out: &mut MaybeUninit<A::Event>,
    ) -> Result<()> {
        self.base.ia.device.progress();
        let result = self.dequeue::<A>(handle, out, &pin::pin());
        if result.is_err_and(Error::is_queue_empty) {
            idle::polled_in_vain(pin::thread(), PROGRESS);
        }
        result
    }
}
