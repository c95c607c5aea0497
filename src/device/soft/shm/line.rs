//! What the engine of the device knows of a connection: it is told when the socket is ready, and
//! consumers that poll look at the rings.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::pipe::{Down, Pipe, service};
use super::ring::Consumer;
use super::wire::{NOTHING, Wire};
use crate::device::soft::engine::{EventFlags, Scratch, Source};
use crate::device::soft::polled::{Manner, Polled};
use crate::device::soft::qp::Qp;
use crate::device::soft::side::Side;
use crate::device::soft::upcall::Upcalls;
use crate::device::soft::view::Link;

/// What the engine knows of a pipe.
pub(super) struct Line {
    pub qp: Weak<Qp>,
    pub wire: Arc<Wire>,
}

impl Line {
    fn service(
        &self,
        up: &mut Upcalls,
        work: impl FnOnce(&mut Pipe, (&mut Side, &mut Upcalls)) -> Result<(), Down>,
    ) {
        if let Some(qp) = self.qp.upgrade() {
            qp.with(|v| {
                // The queue pair may have another connection by now.
                if matches!(v.link, Link::Shm(pipe) if Arc::ptr_eq(pipe.wire.wire(), &self.wire)) {
                    service(v.me, v.link, v.guard, up, work);
                }
            });
        }
    }
}

impl Source for Line {
    fn ready(self: Arc<Self>, events: EventFlags, _scratch: &mut Scratch, up: &mut Upcalls) {
        self.service(up, |pipe, (me, up)| pipe.ready(events, me, up));
    }
}

impl Polled for Line {
    #[inline]
    fn poll(&self, up: &mut Upcalls) {
        let next = self.wire.next.load(Ordering::Relaxed);
        let came = next != NOTHING && Consumer::is_full(self.wire.incoming(), next);
        if came || self.wire.blocked.load(Ordering::Relaxed) {
            self.serve(up);
        }
    }

    fn serve(&self, up: &mut Upcalls) {
        self.service(up, |_, _| Ok(()));
    }

    fn set_manner(&self, manner: Manner, up: &mut Upcalls) {
        self.service(up, |pipe, _| {
            pipe.set_manner(manner);
            Ok(())
        });
    }
}
