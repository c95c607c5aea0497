//! Connections as the engine knows them: what it calls when a socket is ready, when consumers poll
//! and when timers run out. Each of these takes the lock of the queue pair and works on its
//! connection, if that is still the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::lifecycle::{self, Overdue, Timed};
use super::shm::{Budget, CloseReason as ShmCloseReason, SharedSegment};
use super::shm::{ShmConn, ShmTarget};
use super::tcp::{CloseReason as TcpCloseReason, TcpConn, TcpTarget};
use super::{LockedQp, QpPlace};
use crate::device::soft::engine::poll_set::{NotifyMode, PollEntry, PollResult};
use crate::device::soft::engine::rounds::{LastServed, ServiceClock};
use crate::device::soft::engine::{Acknowledger, Backlog, EventFlags, Scratch, Source};
use crate::device::soft::qp::cache_lines::Place;
use crate::device::soft::qp::state::QpState;
use crate::device::soft::upcalls::{Coalescer, Upcalls};
use crate::handle::Guard;
use crate::handle::pin::pin;

/// A connection through shared memory.
pub(super) struct PollTarget {
    /// The place of the queue pair, which leaves it only without a connection. To find the queue
    /// pair here takes no reference to it.
    place: Arc<QpPlace>,
    segment: Arc<SharedSegment>,
    last_served: LastServed,
    /// Whether the place has been told what the connection is made of.
    lines_noted: AtomicBool,
}

impl PollTarget {
    pub fn new(place: Arc<QpPlace>, segment: Arc<SharedSegment>) -> PollTarget {
        PollTarget {
            place,
            segment,
            last_served: LastServed::default(),
            lines_noted: AtomicBool::new(false),
        }
    }

    /// Tells the place what the connection is made of.
    #[cold]
    fn note_lines(&self, guard: &Guard) {
        self.with(guard, |locked| {
            if let Some(conn) = locked.link.shm() {
                let [segment, theirs, ring] = self.segment.cache_lines();
                let parts = [Place::of(conn), segment, theirs, ring];
                self.place.note_lines(locked.me, parts);
                self.lines_noted.store(true, Ordering::Relaxed);
            }
        });
    }

    /// Runs `f` under the lock of the queue pair if that still has this connection.
    #[inline]
    fn with<R: Default>(&self, guard: &Guard, f: impl FnOnce(&mut LockedQp<'_>) -> R) -> R {
        if let Some(mut locked) = self.place.lock(guard).locked()
            && locked
                .link
                .shm()
                .is_some_and(|conn| Arc::ptr_eq(conn.segment.segment(), &self.segment))
        {
            return f(&mut locked);
        }
        R::default()
    }

    /// Messages have arrived; true if one is complete. Not inlined: a poll finds nothing, nearly always.
    #[inline(never)]
    fn messages_arrived<const ALL: bool>(&self, guard: &Guard, up: &mut Upcalls) -> bool {
        self.service(guard, up, |conn, me, guard, up| {
            conn.messages_arrived::<ALL>(me, guard, up)
        })
    }

    /// Works on the connection.
    #[inline]
    fn service<R: Default>(
        &self,
        guard: &Guard,
        up: &mut Upcalls,
        work: impl FnOnce(&mut ShmConn, &mut QpState, &Guard, &mut Upcalls) -> Result<R, ShmCloseReason>,
    ) -> R {
        self.with(guard, |locked| {
            let guard = locked.guard;
            let work =
                |conn: &mut ShmConn, me: &mut QpState, up: &mut Upcalls| work(conn, me, guard, up);
            locked.link.on_shm(locked.me, up, work)
        })
    }
}

impl ShmTarget for PollTarget {}

impl Coalescer for PollTarget {
    fn send_coalesced(&self, late: bool, up: &mut Upcalls) {
        self.service(&pin(), up, |conn, me, guard, up| {
            conn.left_coalesced_list(late, me, guard, up)
        });
    }
}

impl Source for PollTarget {
    fn ready(self: Arc<Self>, events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        self.service(&pin(), up, |conn, me, guard, up| {
            conn.ready(events, me, up)?;
            conn.run(Budget::Nothing, me, guard, up)
        });
    }
}

impl PollEntry for PollTarget {
    #[inline]
    fn poll(&self, guard: &Guard, up: &mut Upcalls) -> bool {
        let busy = self.segment.has_arrival() || self.segment.send_blocked.load(Ordering::Relaxed);
        if busy {
            self.messages_arrived::<true>(guard, up);
        }
        busy
    }

    fn fetch(&self, guard: &Guard) {
        if self.lines_noted.load(Ordering::Relaxed) {
            self.place.lines.fetch();
            self.segment.fetch_cells();
        } else {
            self.note_lines(guard);
        }
    }

    #[inline]
    fn peek(&self) -> PollResult {
        match self.segment.has_request() {
            Some(false) => PollResult::Message,
            Some(true) => PollResult::Requests,
            None if self.segment.send_blocked.load(Ordering::Relaxed) => PollResult::Blocked,
            None => PollResult::Nothing,
        }
    }

    fn deliver(&self, guard: &Guard, up: &mut Upcalls) -> bool {
        self.messages_arrived::<false>(guard, up)
    }

    #[cold]
    fn progress(&self, guard: &Guard, up: &mut Upcalls) {
        self.service(guard, up, |conn, me, guard, up| {
            conn.run(Budget::Requests, me, guard, up)
        });
    }

    fn last_served(&self) -> &LastServed {
        &self.last_served
    }

    fn set_notify_mode(&self, notify_mode: NotifyMode, up: &mut Upcalls) {
        self.service(&pin(), up, |conn, me, guard, up| {
            conn.set_notify_mode(notify_mode);
            conn.run(Budget::Nothing, me, guard, up)
        });
    }
}

impl Timed for PollTarget {
    fn end_overdue(&self, what: Overdue, up: &mut Upcalls) {
        self.service(&pin(), up, |conn, _, _, _| lifecycle::overdue(conn, what));
    }

    fn recheck(&self, up: &mut Upcalls) {
        self.service(&pin(), up, ShmConn::recheck);
    }
}

/// A connection over TCP.
pub(super) struct TcpSource {
    /// The place of the queue pair, which leaves it only without a connection.
    place: Arc<QpPlace>,
    /// Whether the engine has the connection in its list of those with a backlog.
    queued: AtomicBool,
    last_served: LastServed,
}

impl TcpSource {
    pub fn new(place: Arc<QpPlace>) -> TcpSource {
        TcpSource {
            place,
            queued: AtomicBool::new(false),
            last_served: LastServed::default(),
        }
    }

    /// Works on the connection; true if that leaves a backlog.
    fn service(
        &self,
        up: &mut Upcalls,
        work: impl FnOnce(
            &mut TcpConn,
            &mut QpState,
            &Guard,
            &mut Upcalls,
        ) -> Result<(), TcpCloseReason>,
    ) -> bool {
        let guard = pin();
        let mut lock = self.place.lock(&guard);
        lock.locked().is_some_and(|locked| {
            locked
                .link
                .on_tcp(locked.me, up, |conn, me, up| work(conn, me, &guard, up));
            locked.link.tcp().is_some_and(|conn| conn.has_backlog())
        })
    }
}

impl TcpTarget for TcpSource {
    fn enqueue(self: Arc<Self>) -> Option<Arc<dyn Backlog>> {
        let queued = self.queued.swap(true, Ordering::Relaxed);
        (!queued).then_some(self as Arc<dyn Backlog>)
    }

    fn check_peer(&self, up: &mut Upcalls) {
        self.service(up, |conn, _, _, _| conn.check_peer());
    }
}

impl Source for TcpSource {
    fn ready(self: Arc<Self>, events: EventFlags, scratch: &mut Scratch, up: &mut Upcalls) {
        let mut served = false;
        let backlog = self.service(up, |conn, me, guard, up| {
            conn.ready(events, me, scratch, guard, up)?;
            served = conn.take_served();
            conn.advance(me, guard, up)
        });
        if served {
            scratch.clock.note(&self.last_served);
        }
        if backlog && let Some(connection) = self.enqueue() {
            scratch.defer(connection, up);
        }
    }

    fn is_pollable(&self) -> bool {
        true
    }

    fn leave_to_polls(&self, up: &mut Upcalls) {
        self.service(up, |conn, _, _, _| {
            conn.leave_to_polls();
            Ok(())
        });
    }

    fn take_from_polls(&self, up: &mut Upcalls) {
        self.service(up, |conn, _, _, _| conn.take_from_polls());
    }
}

impl Backlog for TcpSource {
    fn deliver(&self, all: bool, clock: &ServiceClock, up: &mut Upcalls) -> bool {
        let mut served = false;
        let more = self.service(up, |conn, me, guard, up| {
            conn.use_kept(all, me, guard, up)?;
            served = conn.take_served();
            conn.advance(me, guard, up)
        });
        if served {
            clock.note(&self.last_served);
        }
        if !more {
            self.queued.store(false, Ordering::Relaxed);
        }
        more
    }

    fn last_served(&self) -> &LastServed {
        &self.last_served
    }
}

impl Coalescer for TcpSource {
    fn send_coalesced(&self, late: bool, up: &mut Upcalls) {
        self.service(up, |conn, me, guard, up| {
            conn.left_coalesced_list(late, me, guard, up)
        });
    }
}

impl Acknowledger for TcpSource {
    fn acknowledge(&self, up: &mut Upcalls) {
        self.service(up, |conn, me, guard, up| {
            conn.left_acknowledgement_list(me, guard, up)
        });
    }
}

impl Timed for TcpSource {
    fn end_overdue(&self, what: Overdue, up: &mut Upcalls) {
        self.service(up, |conn, _, _, _| lifecycle::overdue(conn, what));
    }

    fn recheck(&self, up: &mut Upcalls) {
        self.service(up, |conn, me, guard, up| conn.advance(me, guard, up));
    }
}
