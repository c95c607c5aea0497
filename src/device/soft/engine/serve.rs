//! How what has arrived is served: the sockets of a batch of events are read, and the messages that they had are
//! delivered, all under the engine lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::batch::EpollBatch;
use super::rounds::ROUNDS;
use super::scratch::Scratch;
use super::timers::ZERO_TIME;
use super::{Inner, TIMER};
use crate::cancel::Disabled;
use crate::delay;
use crate::device::soft::upcalls::Upcalls;
use crate::lock::MutexGuard;
use crate::reserve;

impl Inner {
    /// Takes the engine lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, Scratch> {
        self.scratch.lock()
    }

    /// Takes the engine lock unless another thread has it.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Scratch>> {
        self.scratch.try_lock()
    }

    /// Whether connections over TCP are served in [rounds](super::rounds), because there are several. Another one may be
    /// made at any time: what was sent after one of its messages is read after the answer to this has changed.
    #[inline]
    pub(super) fn serves_in_rounds(&self) -> bool {
        self.tcp_conns.load(Ordering::Relaxed) > 1
    }

    /// Takes the engine lock and serves the events.
    pub(super) fn serve(self: &Arc<Self>, batch: &EpollBatch) {
        self.announce();
        self.serve_announced(batch, self.lock());
    }

    /// Whoever has the engine lock knows from now on that events were taken which are not served.
    pub(super) fn announce(&self) {
        self.unserved_batches.fetch_add(1, Ordering::SeqCst);
        delay::point("engine.serve");
    }

    /// Serves events that were announced.
    pub(super) fn serve_announced(
        self: &Arc<Self>,
        batch: &EpollBatch,
        mut scratch: MutexGuard<'_, Scratch>,
    ) {
        self.unserved_batches.fetch_sub(1, Ordering::SeqCst);
        let up = self.serve_locked(batch, &mut scratch);
        self.finish(scratch, up);
    }

    /// Serves the events under the engine lock.
    pub(super) fn serve_locked(
        self: &Arc<Self>,
        batch: &EpollBatch,
        scratch: &mut Scratch,
    ) -> Upcalls {
        let mut up = Upcalls::default();
        self.read(batch, scratch, &mut up);
        self.deliver(scratch, &mut up);
        self.arrange(self.poll_set.after_service(&mut up));
        up
    }

    /// Calls the sources of the events.
    fn read(&self, batch: &EpollBatch, scratch: &mut Scratch, up: &mut Upcalls) {
        // The sources may have any point of cancellation.
        let _disabled = (batch.len() > 0).then(Disabled::begin);
        scratch.timer_expired |= batch.contains(TIMER);
        // Sources that make something check for themselves whether there is memory.
        reserve::fill();
        for event in batch.iter() {
            let source = self.sources.lock().get(event.data.u64());
            if let Some(source) = source {
                scratch.note_ready(&source, batch.len() == 1, up);
                source.ready(event.flags, scratch, up);
            }
        }
    }

    /// Delivers messages that were read and are not delivered, in [rounds](super::rounds).
    pub(super) fn deliver(self: &Arc<Self>, scratch: &mut Scratch, up: &mut Upcalls) {
        for _ in 0..ROUNDS {
            if scratch.backlog.is_empty() {
                return;
            }
            let mut turns = std::mem::take(&mut scratch.backlog);
            let in_rounds = self.serves_in_rounds();
            if in_rounds {
                let mut batch = EpollBatch::new();
                // A connection with a backlog is not read again, so that this loop ends.
                while batch.fill(self.epoll(), Some(&ZERO_TIME)).is_ok() && batch.len() > 0 {
                    self.read(&batch, scratch, up);
                    if scratch.backlog.is_empty() {
                        break;
                    }
                    if turns.try_reserve(scratch.backlog.len()).is_err() {
                        // The others have their turn after these.
                        break;
                    }
                    turns.append(&mut scratch.backlog);
                }
                if self.unserved_batches.load(Ordering::SeqCst) > 0 {
                    // Another thread is about to read messages that may have to be delivered
                    // first. That thread delivers these as well.
                    let others = std::mem::replace(&mut scratch.backlog, turns);
                    for connection in others {
                        scratch.defer(connection, up);
                    }
                    return;
                }
                turns.sort_by_key(|connection| connection.last_served().get());
            }
            for connection in turns {
                if connection.deliver(!in_rounds, &scratch.clock, up) {
                    scratch.defer(connection, up);
                }
            }
        }
        if !scratch.backlog.is_empty() {
            self.serve_again();
        }
    }

    /// Releases the engine lock, makes the upcalls and runs the timers that have expired.
    pub(super) fn finish(&self, mut scratch: MutexGuard<'_, Scratch>, up: Upcalls) {
        let timer_expired = std::mem::take(&mut scratch.timer_expired);
        drop(scratch);
        delay::point("engine.finish");
        if timer_expired {
            self.timers.arm_before(&up);
        }
        up.run();
        if timer_expired {
            let _disabled = Disabled::begin();
            self.timers.run();
        }
    }
}
