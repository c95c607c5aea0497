//! Event dispatchers: the queues that consumers take events from.
//!
//! An EVD has up to two sources: the completion queue of the device, polled directly, and a
//! queue of its own for events that the provider itself reports (connections, requests,
//! asynchronous errors, software events). Before an event is appended to the latter, the
//! completions that are there are moved to it, so that all events are in the order of arrival.

mod calls;
mod dequeue;
mod errors;
mod figures;
mod idle;
mod spin;
mod srq_buffers;
mod state;
mod stream;
mod stream_counts;
mod wait;

pub use calls::*;
pub use dequeue::*;
pub use stream::Stream;
pub(super) use stream::{EvdUse, Feed, StreamChange};

use std::collections::VecDeque;
use std::ptr::null;
use std::sync::{Arc, OnceLock, Weak};

use self::spin::SpinPolicy;
use self::srq_buffers::Buffer;
use self::state::{NO_CQ, OVERFLOWED, State, WAITER};
use super::boundary::device_error;
use super::cno::Cno;
use super::counters::Counters;
use super::ia::{Child, Ia};
use super::object::{Base, DatObject, dat_object, publish, unpublish};
use super::outstanding::Outstanding;
use super::private_data::PrivateData;
use super::rules::Rules;
use super::types::{Event, Handle, HandleType, Opaque};
use super::wait_queue::WaitQueue;
use crate::abi::common::*;
use crate::abi::v2::{
    DAT_EVD_COUNTERS, DCNT_EVD_ALL_COUNTERS, DCNT_EVD_CONN_CALLBACK, DCNT_EVD_DTO_CALLBACK,
};
use crate::delay;
use crate::device::{ByCopy, CompletionQueue, CqHandler, Device};
use crate::error::{Error, Result, Subtype};
use crate::figures::Json;
use crate::handle::pin::pin;
use crate::handle::{Biased, Guard, Held};

/// Flags of the streams of the completion queue.
const CQ_FLAGS: DAT_EVD_FLAGS = DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG;

/// An event dispatcher.
#[repr(align(64))]
pub struct Evd<D: Device> {
    base: Base<D>,
    flags: DAT_EVD_FLAGS,
    /// The device's completion queue, if the EVD is made for completions.
    cq: Option<Arc<D::Cq>>,
    /// That queue for the polls, which find it with one load.
    polled: Polled<D::Cq>,
    state: Biased<State<D>>,
    /// The counters, if those of the IA are on.
    counters: Option<Counters>,
    /// Wakes the thread in `dat_evd_wait`.
    wait_queue: WaitQueue,
    /// Whether that thread polls for events before it sleeps.
    spin_policy: SpinPolicy,
}

/// The completion queue of an EVD, by its address.
struct Polled<C>(*const C);

// SAFETY: as a reference to the queue, which all threads may have.
unsafe impl<C: Sync> Send for Polled<C> {}
// SAFETY: as above.
unsafe impl<C: Sync> Sync for Polled<C> {}

/// What became of an event of the provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Queued {
    /// It is queued.
    Yes,
    /// It is lost, since the queue is full.
    Full,
    /// The EVD is freed.
    Closed,
}

// Without knowing what an EVD was wanted for, OpenFabrics' libraries name this subtype.
dat_object!(Evd, Evd, HandleEvdRequest);

impl<D: Device> Child for Evd<D> {
    // A waiter returns `DAT_ABORT`.
    fn destroy(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.signal(&mut state);
        drop(state);
        self.release_cno();
        unpublish(self);
    }

    fn figures(&self, json: &mut Json) {
        self.write_figures(json);
    }
}

/// The handler of the completion queue: passes upcalls to its EVD.
struct Upcall<D: Device>(OnceLock<Weak<Evd<D>>>);

impl<D: Device> Upcall<D> {
    fn evd(&self) -> Option<Arc<Evd<D>>> {
        self.0.get()?.upgrade()
    }
}

impl<D: Device> CqHandler for Upcall<D> {
    fn notify(&self) {
        if let Some(evd) = self.evd() {
            evd.count(DCNT_EVD_DTO_CALLBACK);
            let state = evd.state.lock();
            // Armed again before the notification, so that no completion is missed in between.
            evd.arm(&state);
            evd.notify(state);
        }
    }

    fn overflow(&self) {
        if let Some(evd) = self.evd() {
            evd.report_overflow();
        }
    }
}

impl<D: Device> Evd<D> {
    /// Makes an EVD; see `dat_evd_create`. It holds as many events as its completion queue has
    /// room for, which may be more than `qlen`.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER` for a length below 1, `DAT_INSUFFICIENT_RESOURCES` for a length beyond
    /// the device's limit.
    pub fn create(
        ia: &Arc<Ia<D>>,
        qlen: DAT_COUNT,
        cno: Option<Arc<Cno<D>>>,
        flags: DAT_EVD_FLAGS,
    ) -> Result<Arc<Self>> {
        let qlen = Self::check_length(ia, qlen)?.ok_or(Error::resource(Subtype::ResourceTevd))?;
        let upcall = Arc::new(Upcall(OnceLock::new()));
        let cq = if flags & CQ_FLAGS != 0 {
            let cq = ia
                .device
                .create_cq(qlen, upcall.clone())
                .map_err(|e| device_error(e, Subtype::ResourceTevd))?;
            Some(cq)
        } else {
            None
        };
        let held = cq.as_ref().map_or(qlen, |cq| cq.capacity()) as usize;
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(held)?;
        if let Some(cno) = &cno {
            cno.attach(ia)?;
        }
        let evd = Arc::new(Evd {
            base: Base::new(ia.clone()),
            flags,
            polled: Polled(cq.as_ref().map_or(null(), Arc::as_ptr)),
            state: Biased::new(State::new(queue, held, cno, cq.is_none())),
            cq,
            counters: ia.new_counters(DCNT_EVD_ALL_COUNTERS),
            wait_queue: WaitQueue::default(),
            spin_policy: SpinPolicy::default(),
        });
        let _ = upcall.0.set(Arc::downgrade(&evd));
        evd.arm(&evd.state.lock());
        if let Err(error) = publish(&evd) {
            evd.release_cno();
            return Err(error);
        }
        Ok(evd)
    }

    /// The length as a number of entries, `None` if it is beyond the device's limit.
    fn check_length(ia: &Ia<D>, qlen: DAT_COUNT) -> Result<Option<u32>> {
        match u32::try_from(qlen) {
            Ok(0) | Err(_) => Err(Error::arg(Subtype::Arg2)),
            Ok(n) => Ok((n <= ia.device.attr().max_cqe).then_some(n)),
        }
    }

    /// The completion queue for a poll.
    ///
    /// # Safety
    /// The EVD is made for completions: [`NO_CQ`] does not apply.
    #[inline(always)]
    unsafe fn polled(&self) -> &D::Cq {
        // SAFETY: not null by the caller's promise; `cq` keeps the queue alive as long as the EVD.
        unsafe { &*self.polled.0 }
    }

    /// The completion queue, if the EVD is made for completions.
    pub fn cq(&self) -> Option<&Arc<D::Cq>> {
        self.cq.as_ref()
    }

    /// Whether the EVD is made for completions of binds.
    pub fn takes_binds(&self) -> bool {
        self.flags & DAT_EVD_RMR_BIND_FLAG != 0
    }

    /// Whether the EVD belongs to this IA instance.
    pub fn is_of(&self, ia: &Arc<Ia<D>>) -> bool {
        Arc::ptr_eq(&self.base.ia, ia)
    }

    /// A stream begins to feed the EVD.
    ///
    /// # Errors
    /// `DAT_INVALID_HANDLE` when the EVD is not made for such a stream or is being freed, and those
    /// of [`replace`](stream_counts::StreamCounts::replace).
    pub fn attach(&self, stream: Stream) -> Result<()> {
        self.replace(&[], &[stream])
    }

    /// A stream no longer feeds the EVD.
    pub fn detach(&self, stream: Stream) {
        self.restore(&[stream], &[]);
    }

    /// Other streams feed the EVD in place of some of those that do.
    ///
    /// # Errors
    /// As [`Evd::attach`], for the streams that begin; nothing has changed then.
    fn replace(&self, from: &[Stream], to: &[Stream]) -> Result<()> {
        let mut state = self.state.lock();
        for stream in to {
            let (flag, invalid) = stream.needs();
            if state.closed || self.flags & flag == 0 {
                return Err(Error::handle(invalid));
            }
        }
        state.streams.replace(from, to, self.base.ia.rules)
    }

    /// The same for streams that fed the EVD before, which no rule forbids.
    fn restore(&self, from: &[Stream], to: &[Stream]) {
        let mut state = self.state.lock();
        let restored = state.streams.replace(from, to, Rules::Programs);
        debug_assert!(restored.is_ok(), "these rules allow all streams");
    }

    /// An endpoint with an SRQ, whose buffers are counted there, begins to receive into the EVD.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn begin_srq(&self, ep: Handle, outstanding: &Outstanding) -> Result<()> {
        self.state.lock().srq_buffers.enter(ep, outstanding)
    }

    /// The EVD has no completion of such an endpoint any more, and gets none.
    pub fn end_srq(&self, ep: Handle) {
        self.state.lock().srq_buffers.leave(ep);
    }

    /// The counters, if those of the IA are on.
    pub fn counters(&self) -> Option<&Counters> {
        self.counters.as_ref()
    }

    /// Counts one more of something, if counters are on.
    fn count(&self, counter: DAT_EVD_COUNTERS) {
        if let Some(counters) = &self.counters {
            counters.add(counter, 1);
        }
    }

    /// Queues an event of the provider. The caller may hold the lock of the object that the event is
    /// about: a dequeue finds the event, but no thread is woken for it before [`Evd::report`].
    pub fn queue(&self, event: Event) -> Queued {
        if matches!(event, Event::Connection { .. } | Event::Request { .. }) {
            self.count(DCNT_EVD_CONN_CALLBACK);
        }
        let mut state = self.state.lock();
        if state.closed {
            Queued::Closed
        } else if self.enqueue(&mut state, event) {
            Queued::Yes
        } else {
            Queued::Full
        }
    }

    /// Notifies the waiter or the CNO of an event that was queued; reports one that was lost as
    /// `DAT_ASYNC_ERROR_EVD_OVERFLOW`. The caller holds no lock.
    pub fn report(&self, queued: Queued) {
        delay::point("evd.queued");
        match queued {
            Queued::Yes => self.notify(self.state.lock()),
            Queued::Full => self.report_overflow(),
            Queued::Closed => {}
        }
    }

    /// Notifies the waiter, or else the CNO, of an event that was queued.
    fn notify(&self, mut state: Held<'_, State<D>>) {
        self.signal(&mut state);
        self.trigger(state);
    }

    /// Appends an event after the completions that arrived before it; `false` if there is no room.
    fn enqueue(&self, state: &mut State<D>, event: Event) -> bool {
        self.drain(state, &pin());
        if state.queue.len() >= state.qlen {
            return false;
        }
        state.queue.push_back(event);
        true
    }

    /// Moves completions from the device's queue to the queue of events.
    fn drain(&self, state: &mut State<D>, guard: &Guard) {
        if let Some(cq) = &self.cq {
            if state.queue.is_empty() {
                // From its beginning again, in memory that is in the cache.
                state.queue.clear();
            }
            while state.queue.len() < state.qlen {
                let Some(completion) = cq.poll_in(guard, ByCopy) else {
                    break;
                };
                state.queue.push_back(Event::Completion(completion));
            }
        }
    }

    /// Wakes the waiter, which then checks the queue.
    fn signal(&self, state: &mut State<D>) {
        if state.has(WAITER) {
            state.signalled = true;
            self.wait_queue.notify_one(&*self.base.ia.device);
        }
    }

    /// Triggers the CNO unless a waiter has the EVD or it is disabled.
    fn trigger(&self, state: Held<'_, State<D>>) {
        if state.has(WAITER) || !state.enabled {
            return;
        }
        if let Some(cno) = &state.cno {
            delay::point("evd.trigger");
            // Under the lock, so that no EVD that was freed, or has another CNO since, triggers.
            let call = cno.trigger(self.handle());
            drop(state);
            call.make();
        }
    }

    /// Arms the completion queue if there is a waiter or a CNO to notify, and disarms it otherwise.
    fn arm(&self, state: &State<D>) {
        if let Some(cq) = &self.cq {
            if state.has(WAITER) || (state.enabled && state.cno.is_some()) {
                cq.arm();
            } else {
                cq.disarm();
            }
        }
    }

    /// Removes the events of an endpoint, of whose completions the completion queue has none any
    /// more. Gives the number of completions of buffers of an SRQ among them.
    pub fn purge(&self, of: Handle) -> usize {
        let context = of.0.addr() as u64;
        let mut from_srq = 0;
        let mut state = self.state.lock();
        state.queue.retain(|event| match event {
            Event::Completion(completion) if completion.context == context => {
                from_srq += usize::from(completion.from_srq);
                false
            }
            Event::Connection { ep, .. } | Event::Resolution { ep, .. } => *ep != of,
            _ => true,
        });
        from_srq
    }

    /// Keeps the events of an endpoint that is about to be reset: takes them from the completion queue, where the
    /// device would remove them, and has nothing point to the private data, which are about to go.
    pub fn keep(&self, of: Handle) {
        let mut state = self.state.lock();
        self.drain(&mut state, &pin());
        for event in &mut state.queue {
            if let Event::Connection {
                ep,
                private_data,
                private_data_size,
                ..
            } = event
                && *ep == of
                && !private_data.0.is_null()
            {
                *private_data = Opaque(PrivateData::gone());
                *private_data_size = 0;
            }
        }
    }

    fn release_cno(&self) {
        let cno = self.state.lock().cno.take();
        if let Some(cno) = cno {
            cno.detach(self.handle());
        }
    }

    fn free(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::handle(Self::INVALID));
        }
        if !state.streams.is_empty() || state.has(WAITER) {
            return Err(Error::state(Subtype::StateEvdInUse));
        }
        state.closed = true;
        let unread = std::mem::take(&mut state.queue);
        drop(state);
        delay::point("evd.free");
        self.release_cno();
        unpublish(self);
        self.refuse_requests(unread);
        Ok(())
    }

    /// The events of a freed EVD are lost. A connection request that the consumer has not read can be
    /// answered by nothing else, so its peer is refused.
    fn refuse_requests(&self, unread: VecDeque<Event>) {
        for event in unread {
            if let Event::Request { cr, .. } = event
                && let Some(cr) = self.base.ia.child(HandleType::Cr, cr)
            {
                cr.destroy();
            }
        }
    }
}
