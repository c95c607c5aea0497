//! Queue pairs.
//!
//! The state of a queue pair ([`QpState`]) is at a [`QpPlace`] and guarded by the lock of that
//! place. How a connected queue pair reaches its peer is a matter of its link ([`Transport`]).

pub(crate) mod cache_lines;
mod completion;
mod connect;
pub(crate) mod deliver;
pub(crate) mod link;
mod ops;
pub(crate) mod place;
pub(crate) mod srq;
pub(crate) mod state;
pub(super) mod work_queue;

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

pub(crate) use self::connect::PairError;
use self::link::Transport;
use self::place::{LockDomain, LockedQp, QpPlace};
use self::srq::{SrqWaiter, Turn};
use self::state::{Identity, QpState};
use super::device::Soft;
use super::mem::region::Mr;
use super::mem::window::Mw;
use super::upcalls::Upcalls;
use crate::delay;
use crate::device::attempt::Phase;
use crate::device::connection_log::{self, GIVEN_UP, Path};
use crate::device::events::EventQueue;
use crate::device::{
    BindWr, CmEvent, Device, DeviceError, PlainPost, PostError, QpAttr, QueuePair, RecvWr, Remote,
    SendOp, SendWr, Sge,
};
use crate::handle::pin::pin;
use crate::handle::{Guard, Shared};

/// A queue pair, with links of the kind `L`.
pub struct Qp<L: Transport> {
    me: Weak<Qp<L>>,
    pub(crate) device: Arc<Soft>,
    pub(crate) events: Arc<EventQueue>,
    /// Where its state is at the moment; always set.
    place: Shared<QpPlace<L>>,
}

impl<L: Transport> Qp<L> {
    pub(crate) fn new(device: &Arc<Soft>, id: Identity) -> Arc<Qp<L>> {
        Arc::new_cyclic(|me: &Weak<Qp<L>>| {
            let qp = Qp {
                me: me.clone(),
                device: device.clone(),
                events: id.events.clone(),
                place: Shared::empty(),
            };
            let domain = LockDomain::new();
            let owner: Weak<dyn SrqWaiter> = me.clone();
            domain.state.lock().states[0] = Some(Box::new(QpState::new(Arc::new(id), owner)));
            qp.place.set(Some(QpPlace::new(Arc::new(domain), 0, false)));
            qp
        })
    }

    /// What it was made with.
    pub(crate) fn attr(&self) -> QpAttr {
        self.with(|locked| locked.me.id.attr)
    }

    /// See [`Device::modify_qp`].
    pub(crate) fn modify(&self, id: Identity) -> Result<(), DeviceError> {
        self.with(|locked| locked.me.modify(Arc::new(id)))
    }

    /// See [`Device::post_bind`].
    pub(crate) fn post_bind<D: Device<Mr = Mr, Mw = Mw>>(
        &self,
        wr: &BindWr<'_, D>,
    ) -> Result<u32, PostError> {
        let mut up = Upcalls::default();
        let result = self.with(|locked| locked.post_bind(wr, &mut up));
        up.run();
        result
    }

    /// Runs `f` under the lock.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut LockedQp<'_, L>) -> R) -> R {
        self.with_in(&pin(), f)
    }

    /// [`Qp::with`] in a section of the caller.
    #[inline]
    fn with_in<R>(&self, guard: &Guard, f: impl FnOnce(&mut LockedQp<'_, L>) -> R) -> R {
        loop {
            // `None` if the queue pair has moved while this thread waited for the lock.
            if let Some(mut locked) = self.present_place(guard).lock(guard).locked() {
                return f(&mut locked);
            }
        }
    }

    /// A post by a thread that is not the owner of the lock.
    #[inline(never)]
    fn post_send_shared(&self, wr: &SendWr<'_>, guard: &Guard) -> Result<(), PostError> {
        let mut up = Upcalls::default();
        let result = self.with_in(guard, |locked| locked.post_send(wr, &mut up));
        delay::point("qp.posted");
        up.run();
        result
    }

    /// A receive by a thread that is not the owner of the lock.
    #[inline(never)]
    fn post_recv_shared(&self, wr: &RecvWr<'_>, guard: &Guard) -> Result<(), PostError> {
        let mut up = Upcalls::default();
        let result = self.with_in(guard, |locked| locked.post_recv(wr, &mut up));
        delay::point("qp.posted");
        up.run();
        result
    }

    /// Its present place.
    #[inline(always)]
    fn present_place<'a>(&self, guard: &'a Guard) -> &'a QpPlace<L> {
        let Some(place) = self.place.get(guard) else {
            unreachable!("a queue pair has a place from its creation on");
        };
        place
    }

    /// Its present place, which does not change as long as a connection lasts.
    pub(crate) fn place(&self) -> Arc<QpPlace<L>> {
        let Some(place) = self.place.get_shared() else {
            unreachable!("a queue pair has a place from its creation on");
        };
        place
    }
}

impl<L: Transport> SrqWaiter for Qp<L> {
    fn grant(&self, up: &mut Upcalls) -> bool {
        self.with(|locked| {
            if locked.me.turn != Turn::Waits {
                return false;
            }
            locked.me.turn = Turn::Granted;
            locked.receives_posted(up);
            let taken = locked.me.turn != Turn::Granted;
            if !taken {
                locked.me.turn = Turn::Out;
            }
            taken
        })
    }
}

impl<L: Transport> QueuePair for Qp<L> {
    // Inlined into callers that know the number of segments and the operation, for which most of
    // the code is not needed.
    #[inline(always)]
    fn post_send_in(&self, wr: &SendWr<'_>, guard: &Guard) -> Result<(), PostError> {
        let place = self.present_place(guard);
        place.lines.fetch();
        if let Some(mut state) = place.own(guard)
            && let Some(mut locked) = state.locked()
        {
            let mut up = Upcalls::default();
            let result = locked.post_send(wr, &mut up);
            if let SendOp::RdmaWrite(_) = wr.op {
                place.note_write(locked.link.copies_writes());
            }
            drop(state);
            delay::point("qp.posted");
            up.run();
            return result;
        }
        // A copy, so that the operation above need not be in memory.
        self.post_send_shared(&black_box(*wr), guard)
    }

    #[inline(always)]
    fn post_recv_in(&self, wr: &RecvWr<'_>, guard: &Guard) -> Result<(), PostError> {
        if let Some(mut state) = self.present_place(guard).own(guard)
            && let Some(mut locked) = state.locked()
        {
            let mut up = Upcalls::default();
            let result = locked.post_recv(wr, &mut up);
            drop(state);
            delay::point("qp.posted");
            up.run();
            return result;
        }
        self.post_recv_shared(&black_box(*wr), guard)
    }

    #[inline(always)]
    unsafe fn post_send_plainly(&self, segment: Sge, wr_id: u64, guard: &Guard) -> PlainPost {
        // Seen without the lock, so that an attempt in vain costs little.
        let Some(place) = self.place.get(guard).filter(|place| place.paired) else {
            return PlainPost::NotHere;
        };
        place.lines.fetch();
        // SAFETY: the caller's promise.
        let Some(mut state) = (unsafe { place.own_unmarked(guard) }) else {
            return PlainPost::Otherwise;
        };
        let Some(mut locked) = state.locked() else {
            return PlainPost::Otherwise;
        };
        // SAFETY: the caller's promise; the lock taken here is of the outer level.
        let Some(up) = (unsafe { locked.post_send_plainly(segment, wr_id) }) else {
            return PlainPost::Otherwise;
        };
        drop(state);
        delay::point("qp.posted");
        up.run_rarely();
        PlainPost::Posted
    }

    #[inline(always)]
    unsafe fn post_write_plainly(
        &self,
        segment: Sge,
        remote: Remote,
        wr_id: u64,
        guard: &Guard,
    ) -> PlainPost {
        // Written out as `post_send_plainly` is: what the two have in common, in a function that takes a closure, made a
        // message over loopback 5 ns of 46 slower.
        let here = |place: &&QpPlace<L>| !place.paired && place.writes_are_copies();
        let Some(place) = self.place.get(guard).filter(here) else {
            return PlainPost::NotHere;
        };
        place.lines.fetch();
        // SAFETY: the caller's promise.
        let Some(mut state) = (unsafe { place.own_unmarked(guard) }) else {
            return PlainPost::Otherwise;
        };
        let Some(mut locked) = state.locked() else {
            return PlainPost::Otherwise;
        };
        // SAFETY: the caller's promise; the lock taken here is of the outer level.
        let Some(up) = (unsafe { locked.post_write_plainly(segment, remote, wr_id) }) else {
            place.note_write(false);
            return PlainPost::NotHere;
        };
        drop(state);
        delay::point("qp.posted");
        up.run_rarely();
        PlainPost::Posted
    }

    #[inline(always)]
    unsafe fn post_recv_plainly(&self, segment: Sge, wr_id: u64, guard: &Guard) -> PlainPost {
        let Some(place) = self.place.get(guard) else {
            return PlainPost::Otherwise;
        };
        // SAFETY: the caller's promise.
        let Some(mut state) = (unsafe { place.own_unmarked(guard) }) else {
            return PlainPost::Otherwise;
        };
        let Some(mut locked) = state.locked() else {
            return PlainPost::Otherwise;
        };
        let posted = locked.post_recv_plainly(segment, wr_id);
        drop(state);
        if posted == PlainPost::Posted {
            delay::point("qp.posted");
        }
        posted
    }

    fn start_receiving(&self) {
        delay::point("qp.receive");
        let mut up = Upcalls::default();
        let backlog = self.with(|locked| locked.start_receiving(&mut up));
        self.device.engine.serve_new(backlog, &mut up);
        up.run();
    }

    fn attempt(&self) -> u64 {
        self.with(|locked| locked.me.attempt.number())
    }

    fn disconnect_attempt(&self, attempt: u64, graceful: bool) {
        let mut up = Upcalls::default();
        let (link, lingers) = self.with(|locked| {
            if !locked.me.attempt.is_current(attempt) {
                return Default::default();
            }
            let link = locked.disconnect(graceful, &mut up);
            (
                link,
                locked.is_lingering().then_some(locked.me.attempt.number()),
            )
        });
        delay::point("qp.disconnected");
        link.abort();
        if let (Some(attempt), Some(qp)) = (lingers, self.me.upgrade()) {
            qp.limit_linger(attempt);
        }
        up.run();
    }

    fn reset(&self) -> u32 {
        if self.with(|locked| locked.me.attempt.phase != Phase::Ended) {
            return 0;
        }
        self.leave();
        self.with(|locked| {
            locked.me.clear();
            locked.me.attempt.reset();
        });
        self.events.clear();
        self.purge() as u32
    }

    fn destroy(&self) -> u32 {
        self.events.close();
        let mut up = Upcalls::default();
        let (link, taken, line) = self.with(|locked| {
            let taken = locked.me.id.srq.as_ref().map_or(0, |_| locked.me.rq.len());
            locked.note_path();
            let connecting = locked.me.attempt.phase == Phase::Connecting;
            let line = connecting.then(|| locked.me.report(&CmEvent::Disconnected, &GIVEN_UP));
            locked.link.quiesce(locked.me, locked.guard, &mut up);
            locked.me.clear();
            locked.me.attempt.destroy();
            (locked.detach(&mut up), taken, line.flatten())
        });
        link.abort();
        connection_log::write(line);
        up.run();
        (taken + self.purge()) as u32
    }

    fn send_outstanding(&self) -> u32 {
        self.with(|locked| locked.me.sq.len() as u32)
    }

    fn recv_outstanding(&self) -> u32 {
        self.with(|locked| locked.me.rq.len() as u32)
    }

    fn set_recv_watermarks(&self, soft: Option<u32>, hard: Option<u32>) -> Result<(), DeviceError> {
        let mut up = Upcalls::default();
        let link = self.with(|locked| {
            if locked.me.id.srq.is_none() {
                return Err(DeviceError::Unsupported);
            }
            if locked.me.set_watermarks(soft, hard, &mut up) {
                return Ok(L::default());
            }
            let cause = "it holds more receives of the shared queue than its hard high watermark";
            locked.note_path();
            locked.link.quiesce(locked.me, locked.guard, &mut up);
            locked.me.end(CmEvent::Broken, &cause, &mut up);
            Ok(locked.detach(&mut up))
        })?;
        link.abort();
        up.run();
        Ok(())
    }

    fn path(&self) -> Option<String> {
        let path = self.with(|locked| {
            locked.note_path();
            locked.me.path
        });
        (path != Path::Undecided).then(|| path.to_string())
    }

    fn addrs(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.with(|locked| locked.me.addrs)
    }
}

impl<L: Transport> Qp<L> {
    /// Removes its completions; gives how many were of buffers of a shared receive queue.
    fn purge(&self) -> usize {
        let id = self.with(|locked| locked.me.id.clone());
        let cqs = [&id.send_cq, &id.recv_cq].into_iter().flatten();
        cqs.map(|cq| cq.remove(id.attr.context)).sum()
    }
}

impl<L: Transport> Drop for Qp<L> {
    fn drop(&mut self) {
        if self.with(|locked| locked.me.attempt.phase != Phase::Destroyed) {
            self.destroy();
        }
        self.device.counts.qp.fetch_sub(1, Ordering::Relaxed);
    }
}
