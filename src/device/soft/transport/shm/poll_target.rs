//! What the engine of the device knows of a connection: it is told when the socket is ready, and
//! consumers that poll look at the rings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::close_reason::CloseReason;
use super::conn::{Budget, ShmConn, is_peer_done, service};
use super::ring::Consumer;
use super::segment::{NOTHING, SharedSegment};
use crate::device::soft::engine::poll_set::{NotifyMode, PollEntry, PollResult};
use crate::device::soft::engine::rounds::LastServed;
use crate::device::soft::engine::{EventFlags, Scratch, Source};
use crate::device::soft::qp::QpPlace;
use crate::device::soft::qp::ops::{Link, LockedQp};
use crate::device::soft::qp::state::QpState;
use crate::device::soft::upcalls::Upcalls;
use crate::handle::Guard;
use crate::handle::pin::pin;

/// What the engine knows of a pipe.
pub(crate) struct PollTarget {
    /// Of the queue pair, which leaves it only without a connection. To find it here takes no
    /// reference to the queue pair.
    pub place: Arc<QpPlace>,
    pub segment: Arc<SharedSegment>,
    pub last_served: LastServed,
}

impl PollTarget {
    /// Runs `f` under the lock of the queue pair if that has this connection still.
    #[inline]
    pub fn with(&self, guard: &Guard, f: impl FnOnce(&mut LockedQp<'_>)) {
        if let Some(mut locked) = self.place.lock(guard).view()
            && matches!(locked.link, Link::Shm(conn) if Arc::ptr_eq(conn.segment.segment(), &self.segment))
        {
            f(&mut locked);
        }
    }

    /// Something has come. Apart: a look finds nothing, nearly always.
    #[inline(never)]
    fn is_peer_done<const ALL: bool>(&self, guard: &Guard, up: &mut Upcalls) {
        self.with(guard, |locked| is_peer_done::<ALL>(locked, up));
    }

    #[inline]
    fn service(
        &self,
        take: Budget,
        guard: &Guard,
        up: &mut Upcalls,
        work: impl FnOnce(&mut ShmConn, (&mut QpState, &mut Upcalls)) -> Result<(), CloseReason>,
    ) {
        self.with(guard, |locked| {
            service(take, locked.me, locked.link, locked.guard, up, work)
        });
    }
}

impl Source for PollTarget {
    fn ready(self: Arc<Self>, events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        self.service(Budget::Nothing, &pin(), up, |conn, (me, up)| {
            conn.ready(events, me, up)
        });
    }
}

impl PollEntry for PollTarget {
    #[inline]
    fn poll(&self, guard: &Guard, up: &mut Upcalls) -> bool {
        let next = self.segment.next.load(Ordering::Relaxed);
        let ring = self.segment.incoming();
        Consumer::fetch(ring, self.segment.next_bytes.load(Ordering::Relaxed));
        let full = next != NOTHING && Consumer::is_full(ring, next);
        let busy = full || self.segment.blocked.load(Ordering::Relaxed);
        if busy {
            self.is_peer_done::<true>(guard, up);
        }
        busy
    }

    #[inline]
    fn peek(&self) -> PollResult {
        let next = self.segment.next.load(Ordering::Relaxed);
        let ring = self.segment.incoming();
        Consumer::fetch(ring, self.segment.next_bytes.load(Ordering::Relaxed));
        if next != NOTHING && Consumer::is_full(ring, next) {
            PollResult::Message
        } else if self.segment.blocked.load(Ordering::Relaxed) {
            PollResult::Blocked
        } else {
            PollResult::Nothing
        }
    }

    fn deliver(&self, all: bool, guard: &Guard, up: &mut Upcalls) {
        if all {
            self.is_peer_done::<true>(guard, up);
        } else {
            self.is_peer_done::<false>(guard, up);
        }
    }

    fn last_served(&self) -> &LastServed {
        &self.last_served
    }

    fn serve(&self, guard: &Guard, up: &mut Upcalls) {
        self.service(Budget::One, guard, up, |_, _| Ok(()));
    }

    fn set_notify_mode(&self, notify_mode: NotifyMode, up: &mut Upcalls) {
        self.service(Budget::Nothing, &pin(), up, |conn, _| {
            conn.set_notify_mode(notify_mode);
            Ok(())
        });
    }
}
