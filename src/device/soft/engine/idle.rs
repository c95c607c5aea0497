//! Timers with which an engine sees to what nobody tells it of: consumers that stop polling, and
//! requests that were gathered and left.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::coalesced::FLUSH_INTERVAL;
use crate::device::soft::engine::{Inner, NAP};
use crate::device::soft::upcalls::Upcalls;

impl Inner {
    /// Requests were gathered: somebody is to look at them from now on. That is the thread,
    /// even if it naps, or whoever else is woken by the clock.
    #[cold]
    pub(super) fn wake_for_unsent(self: &Arc<Self>) {
        if !self.unsent_looks.swap(true, Ordering::SeqCst) {
            self.look_for_unsent(FLUSH_INTERVAL);
        }
        drop(self.nap.lock());
        self.nap_end.notify_one();
    }

    fn look_for_unsent(self: &Arc<Self>, delay: Duration) {
        let inner = Arc::downgrade(self);
        let task = move |_: &mut Upcalls| {
            let Some(inner) = inner.upgrade() else {
                return;
            };
            let next = inner.coalesced.tick().or_else(|| {
                inner.unsent_looks.store(false, Ordering::SeqCst);
                // Some may have come since, and have seen that we look.
                let due = inner.coalesced.due()?;
                (!inner.unsent_looks.swap(true, Ordering::SeqCst)).then_some(due)
            });
            if let Some(next) = next {
                inner.look_for_unsent(next);
            }
        };
        self.timers.add(delay, Box::new(task));
    }

    /// Looks in a while whether consumers still poll.
    #[cold]
    pub(super) fn tick(self: &Arc<Self>) {
        if self.ticking.swap(true, Ordering::SeqCst) {
            return;
        }
        let inner = Arc::downgrade(self);
        let task = move |_: &mut Upcalls| {
            let Some(inner) = inner.upgrade() else {
                return;
            };
            inner.ticking.store(false, Ordering::SeqCst);
            inner.poll_set.tick(&mut inner.looks.lock());
            if inner.poll_set.is_ticking() {
                inner.tick();
            }
        };
        self.timers.add(NAP, Box::new(task));
    }
}
