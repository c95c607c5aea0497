//! `dat_evd_wait`: one thread at a time waits for a number of events, then takes the first.

use std::mem::MaybeUninit;
use std::ops::DerefMut;
use std::time::Duration;

use super::dequeue::ToEvent;
use super::{Evd, NO_CQ, OVERFLOWED, State, WAITER};
use crate::abi::common::*;
use crate::abi::v2::{DCNT_EVD_WAIT_BLOCKED, DCNT_EVD_WAIT_NOTIFY};
use crate::cancel::Cancelled;
use crate::dapl::abi::Abi;
use crate::dapl::types::Event;
use crate::dapl::wait_queue::Wake;
use crate::delay;
use crate::device::{ByCopy, Completion, CompletionQueue, Device};
use crate::error::{Error, Kind, Result, Subtype};
use crate::handle::pin::pin;
use crate::handle::{Guard, Held};
use crate::kernel::Instant;
use crate::reserve;
use crate::sync::relax;

/// In how many rounds a waiter that was released is waited for: about a second, unless the kernel has other threads
/// run meanwhile.
const MAX_LEAVING: u32 = 20_000;

impl<D: Device> Evd<D> {
    /// The fast path of [`Evd::wait`]: one event is wanted, and a completion is there. Writes the event, and
    /// gives the number of those that are left.
    #[inline(always)]
    pub(super) fn wait_ready<A: Abi>(
        &self,
        threshold: DAT_COUNT,
        handle: DAT_EVD_HANDLE,
        out: &mut MaybeUninit<A::Event>,
        guard: &Guard,
    ) -> Option<usize> {
        if threshold != 1 {
            return None;
        }
        match self.state.own(guard.thread()) {
            Some(state) => self.take_ready::<A>(state, handle, out, guard),
            None => self.take_ready_shared::<A>(handle, out, guard),
        }
    }

    /// [`Evd::take_ready`] in a thread that is not the owner of the lock.
    #[inline(never)]
    fn take_ready_shared<A: Abi>(
        &self,
        handle: DAT_EVD_HANDLE,
        out: &mut MaybeUninit<A::Event>,
        guard: &Guard,
    ) -> Option<usize> {
        self.take_ready::<A>(self.state.lock_as(guard.thread()), handle, out, guard)
    }

    /// [`Evd::wait_ready`] with the state locked.
    #[inline(always)]
    fn take_ready<A: Abi>(
        &self,
        mut state: impl DerefMut<Target = State<D>>,
        handle: DAT_EVD_HANDLE,
        out: &mut MaybeUninit<A::Event>,
        guard: &Guard,
    ) -> Option<usize> {
        if !state.waitable | state.has(WAITER | NO_CQ) || !state.queue.is_empty() {
            return None;
        }
        // SAFETY: just tested.
        let cq = unsafe { self.polled() };
        let first = cq.poll_in(guard, ToEvent::<A> { handle, out })?;
        // Mostly there is no other.
        let more = match cq.poll_in(guard, ByCopy) {
            None => 0,
            Some(second) => self.count_others(&mut state, second, guard),
        };
        state.srq_buffers.count(first);
        Some(more)
    }

    /// Moves the completions behind the first to the queue of events, which is empty, and gives their number.
    #[inline(never)]
    fn count_others(&self, state: &mut State<D>, second: Completion, guard: &Guard) -> usize {
        // From its beginning again, in memory that is in the cache.
        state.queue.clear();
        state.queue.push_back(Event::Completion(second));
        self.drain(state, guard);
        state.queue.len()
    }

    /// Waits until `threshold` events are queued and takes the first. The number says how many
    /// events are left; with a timeout it is how many there were.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER` for a threshold below 1 or beyond the queue,
    /// `DAT_INVALID_STATE` for an EVD that is unwaitable or has a waiter, and to the letter of
    /// the man page for a threshold above 1 where endpoints control notification;
    /// `DAT_TIMEOUT_EXPIRED`; `DAT_ABORT` when the IA closes meanwhile, `DAT_INTERRUPTED_CALL`
    /// when a signal handler ran. [`Cancelled`] when the thread was; the EVD has no waiter then.
    ///
    /// The caller is [waiting](crate::cancel::Waiting).
    // Out of line, so that `evd_wait` needs no stack frame of this size, and fewer saved
    // registers, where `wait_ready` finds a completion.
    #[inline(never)]
    pub(super) fn wait(
        &self,
        timeout: Option<Duration>,
        threshold: DAT_COUNT,
    ) -> std::result::Result<(Result<Event>, usize), Cancelled> {
        // Programs that only post and wait make no other call that completes the reserve.
        reserve::fill();
        let mut state = self.lock_for_wait();
        let threshold = match self.check_wait(&state, threshold) {
            Ok(threshold) => threshold,
            Err(error) => return Ok((Err(error), 0)),
        };
        if let Some(event) = self.ready(&mut state, threshold, &pin()) {
            return Ok((Ok(event), state.queue.len()));
        }
        state.set_waiter(threshold);
        // Where consumers control notification, only a notification ends the wait, and polling
        // does not show which events notify. The lock is held until the queue is armed: a thread
        // that learns that this one waits finds that only a notification ends that.
        let controlled = state.streams.are_controlled();
        let held = (controlled && timeout != Some(Duration::ZERO)).then_some(state);
        let begun = Instant::now();
        let deadline = timeout.map(|t| begun + t);
        let device = &self.base.ia.device;
        let spin = if controlled {
            Duration::ZERO
        } else {
            self.spin_policy.spin(device.spin())
        };
        let found = if spin.is_zero() {
            if timeout == Some(Duration::ZERO) {
                device.progress();
            }
            None
        } else {
            self.spin(threshold, begun + timeout.map_or(spin, |t| t.min(spin)))
        };
        if found.is_none() {
            self.count(DCNT_EVD_WAIT_BLOCKED);
        }
        let result = match found {
            Some(event) => {
                self.spin_policy.succeeded();
                Ok(Ok(event))
            }
            None => {
                delay::point("evd.sleep");
                let state = held.unwrap_or_else(|| self.state.lock());
                let result = self.sleep(state, threshold, deadline);
                self.spin_policy.slept(spin, device.spin(), begun.elapsed());
                result
            }
        };
        delay::point("evd.waited");
        let mut state = self.state.lock();
        let signalled = state.signalled;
        state.set_waiter(0);
        self.arm(&state);
        // Completions that arrived before the arming trigger no CNO, so they are counted.
        self.drain(&mut state, &pin());
        let mut result = result;
        if let Ok(Err(error)) = result {
            let ended = match error.kind() {
                Kind::TimeoutExpired => true,
                Kind::InterruptedCall => signalled,
                _ => false,
            };
            // Enough events have come since this thread looked last. Programs that have got no event
            // go on to wait for the CNO, which those events have not triggered.
            if ended && state.queue.len() >= threshold {
                result = Ok(state.pop().ok_or(error));
            }
        }
        let count = state.queue.len();
        let counted = match &result {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => error.kind() != Kind::InvalidState,
            Err(Cancelled) => false,
        };
        if !counted && count > 0 {
            // This thread takes none of them, and no count is returned.
            self.trigger(state);
        }
        Ok((result?, count))
    }

    /// The state, once a waiter that was released has left, if the EVD is waitable again. That takes no longer
    /// than the thread needs for a processor.
    fn lock_for_wait(&self) -> Held<'_, State<D>> {
        let mut round = 0;
        loop {
            let state = self.state.lock();
            let leaves = state.has(WAITER) && state.evicted && state.waitable;
            if !leaves || round == MAX_LEAVING {
                return state;
            }
            drop(state);
            relax(round);
            round += 1;
        }
    }

    fn check_wait(&self, state: &State<D>, threshold: DAT_COUNT) -> Result<usize> {
        let threshold = usize::try_from(threshold)
            .ok()
            .filter(|n| (1..=state.qlen).contains(n))
            .ok_or(Error::arg(Subtype::Arg3))?;
        if state.closed {
            return Err(Error::handle(Subtype::HandleEvdRequest));
        }
        if !state.waitable {
            return Err(Error::state(Subtype::StateEvdUnwaitable));
        }
        if state.has(WAITER) {
            return Err(Error::state(Subtype::StateEvdWaiter));
        }
        // By the other rules a notifying completion ends the wait if enough events are there then.
        let pages = self.base.ia.rules.are_pages();
        if threshold > 1 && pages && state.streams.are_controlled() {
            return Err(Error::state(Subtype::StateEvdConfigNotify));
        }
        if state.has(OVERFLOWED) && state.queue.is_empty() {
            return Err(Kind::InvalidState.into());
        }
        Ok(threshold)
    }

    /// The first event, if `threshold` of them are queued.
    fn ready(&self, state: &mut State<D>, threshold: usize, guard: &Guard) -> Option<Event> {
        self.drain(state, guard);
        if state.queue.len() < threshold {
            return None;
        }
        state.pop()
    }

    /// Polls for events in this thread until `end`.
    fn spin(&self, threshold: usize, end: Instant) -> Option<Event> {
        let device = &self.base.ia.device;
        loop {
            device.progress();
            let mut state = self.state.lock();
            if state.evicted {
                return None;
            }
            if let Some(event) = self.ready(&mut state, threshold, &pin()) {
                return Some(event);
            }
            if state.closed || Instant::now() >= end {
                return None;
            }
            drop(state);
            std::hint::spin_loop();
        }
    }

    /// Arms the queue and sleeps until `threshold` events are there, or the deadline is.
    fn sleep(
        &self,
        mut state: Held<'_, State<D>>,
        threshold: usize,
        deadline: Option<Instant>,
    ) -> std::result::Result<Result<Event>, Cancelled> {
        let device = &*self.base.ia.device;
        loop {
            // Events are for dat_evd_dequeue from then on.
            if state.evicted {
                return Ok(Err(Kind::InvalidState.into()));
            }
            state.signalled = false;
            self.arm(&state);
            // Completions that arrived before the arming do not signal.
            if let Some(event) = self.ready(&mut state, threshold, &pin()) {
                return Ok(Ok(event));
            }
            if state.closed {
                return Ok(Err(Kind::Abort.into()));
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Ok(Err(Kind::TimeoutExpired.into()));
            }
            while !state.signalled {
                match self.wait_queue.wait(device, &mut state, deadline) {
                    Wake::Woken => self.count(DCNT_EVD_WAIT_NOTIFY),
                    Wake::TimedOut => break,
                    Wake::Interrupted if state.signalled => break,
                    Wake::Interrupted => return Ok(Err(Kind::InterruptedCall.into())),
                    Wake::Cancelled => return Err(Cancelled),
                }
            }
        }
    }
}
