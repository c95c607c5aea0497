//! What the engine of the device knows of a connection: it is told when the socket is ready, and
//! consumers that poll look at the rings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::close_reason::Down;
use super::conn::{Pipe, Take, came, service};
use super::ring::Consumer;
use super::segment::{NOTHING, Wire};
use crate::device::soft::engine::poll_set::{Found, Manner, Polled};
use crate::device::soft::engine::rounds::LastTurn;
use crate::device::soft::engine::{EventFlags, Scratch, Source};
use crate::device::soft::qp::Seat;
use crate::device::soft::qp::ops::{Link, View};
use crate::device::soft::qp::state::Side;
use crate::device::soft::upcalls::Upcalls;
use crate::handle::Guard;
use crate::handle::pin::pin;

/// What the engine knows of a pipe.
pub(crate) struct Line {
    /// Of the queue pair, which leaves it only without a connection. To find it here takes no
    /// reference to the queue pair.
    pub seat: Arc<Seat>,
    pub wire: Arc<Wire>,
    pub last_turn: LastTurn,
}

impl Line {
    /// Runs `f` under the lock of the queue pair if that has this connection still.
    #[inline]
    pub fn with(&self, guard: &Guard, f: impl FnOnce(&mut View<'_>)) {
        if let Some(mut v) = self.seat.lock(guard).view()
            && matches!(v.link, Link::Shm(pipe) if Arc::ptr_eq(pipe.wire.wire(), &self.wire))
        {
            f(&mut v);
        }
    }

    /// Something has come. Apart: a look finds nothing, nearly always.
    #[inline(never)]
    fn came<const ALL: bool>(&self, guard: &Guard, up: &mut Upcalls) {
        self.with(guard, |v| came::<ALL>(v, up));
    }

    #[inline]
    fn service(
        &self,
        take: Take,
        guard: &Guard,
        up: &mut Upcalls,
        work: impl FnOnce(&mut Pipe, (&mut Side, &mut Upcalls)) -> Result<(), Down>,
    ) {
        self.with(guard, |v| service(take, v.me, v.link, v.guard, up, work));
    }
}

impl Source for Line {
    fn ready(self: Arc<Self>, events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        self.service(Take::Nothing, &pin(), up, |pipe, (me, up)| {
            pipe.ready(events, me, up)
        });
    }
}

impl Polled for Line {
    #[inline]
    fn poll(&self, guard: &Guard, up: &mut Upcalls) -> bool {
        let next = self.wire.next.load(Ordering::Relaxed);
        let ring = self.wire.incoming();
        Consumer::fetch(ring, self.wire.next_bytes.load(Ordering::Relaxed));
        let full = next != NOTHING && Consumer::is_full(ring, next);
        let busy = full || self.wire.blocked.load(Ordering::Relaxed);
        if busy {
            self.came::<true>(guard, up);
        }
        busy
    }

    #[inline]
    fn look(&self) -> Found {
        let next = self.wire.next.load(Ordering::Relaxed);
        let ring = self.wire.incoming();
        Consumer::fetch(ring, self.wire.next_bytes.load(Ordering::Relaxed));
        if next != NOTHING && Consumer::is_full(ring, next) {
            Found::Message
        } else if self.wire.blocked.load(Ordering::Relaxed) {
            Found::Blocked
        } else {
            Found::Nothing
        }
    }

    fn take(&self, all: bool, guard: &Guard, up: &mut Upcalls) {
        if all {
            self.came::<true>(guard, up);
        } else {
            self.came::<false>(guard, up);
        }
    }

    fn last_turn(&self) -> &LastTurn {
        &self.last_turn
    }

    fn serve(&self, guard: &Guard, up: &mut Upcalls) {
        self.service(Take::One, guard, up, |_, _| Ok(()));
    }

    fn set_manner(&self, manner: Manner, up: &mut Upcalls) {
        self.service(Take::Nothing, &pin(), up, |pipe, _| {
            pipe.set_manner(manner);
            Ok(())
        });
    }
}
