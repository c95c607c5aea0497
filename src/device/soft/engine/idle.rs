//! Timers for what no event reports: that messages were left undelivered, that consumers have stopped
//! polling, and that coalesced sends were left unsent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Inner;
use super::batch::EpollBatch;
use super::coalesced::FLUSH_INTERVAL;
use super::poll_set::Due;
use super::poll_watch::POLL_CHECK;
use crate::device::soft::upcalls::Upcalls;
use crate::kernel::Instant;

impl Inner {
    /// Sends were coalesced and no flush was due: has them flushed at intervals from now on, by
    /// the thread, even in a pause, or by another thread that the timer wakes.
    #[cold]
    pub(super) fn start_flushing(self: &Arc<Self>) {
        if !self.flush_timer_set.swap(true, Ordering::SeqCst) {
            self.set_flush_timer(FLUSH_INTERVAL);
        }
        self.interrupt_pause();
    }

    fn set_flush_timer(self: &Arc<Self>, delay: Duration) {
        let inner = Arc::downgrade(self);
        let task = move |_: &mut Upcalls| {
            let Some(inner) = inner.upgrade() else {
                return;
            };
            let next = inner.coalesced.flush_old().or_else(|| {
                inner.flush_timer_set.store(false, Ordering::SeqCst);
                // Sends may have been coalesced since, by a thread that has seen the timer set.
                let due = inner.coalesced.until_flush()?;
                (!inner.flush_timer_set.swap(true, Ordering::SeqCst)).then_some(due)
            });
            if let Some(next) = next {
                inner.set_flush_timer(next);
            }
        };
        self.timers.add(delay, Box::new(task));
    }

    /// Has all sockets watched, for a thread that is about to sleep in the epoll instance until `deadline`. False if
    /// the engine lock was not to be had before.
    pub(super) fn watch_all(&self, deadline: Option<Instant>) -> bool {
        let Some(mut scratch) = self.lock_until(deadline) else {
            return false;
        };
        let mut up = Upcalls::default();
        scratch.watch_only(&mut up);
        self.finish(scratch, up);
        true
    }

    /// Arranges for what the poll set needs.
    #[inline]
    pub(super) fn arrange(self: &Arc<Self>, due: Due) {
        self.arrange_after(POLL_CHECK, due);
    }

    /// [`Inner::arrange`], with the check after `delay`.
    #[inline]
    fn arrange_after(self: &Arc<Self>, delay: Duration, due: Due) {
        if due.check {
            self.set_poll_timer(delay);
        }
        if due.service {
            self.serve_again();
        }
    }

    /// Has what was left served by a timer that expires at once: by whichever thread takes its event, once
    /// that thread has seen whether what it waits for has happened.
    #[cold]
    pub(super) fn serve_again(self: &Arc<Self>) {
        if self.service_due.swap(true, Ordering::SeqCst) {
            return;
        }
        let inner = Arc::downgrade(self);
        let task = move |_: &mut Upcalls| {
            if let Some(inner) = inner.upgrade() {
                inner.service_due.store(false, Ordering::SeqCst);
                inner.serve(&EpollBatch::new());
            }
        };
        self.timers.add(Duration::ZERO, Box::new(task));
    }

    /// Has events that this thread has taken, and announced, served by a timer that expires at once.
    #[cold]
    pub(super) fn serve_later(self: &Arc<Self>, batch: EpollBatch) {
        let inner = Arc::downgrade(self);
        let task = move |_: &mut Upcalls| {
            if let Some(inner) = inner.upgrade() {
                inner.serve_announced(&batch, inner.lock());
            }
        };
        self.timers.add(Duration::ZERO, Box::new(task));
        // The event of the timer may be among these.
        self.timers.arm();
    }

    /// Checks after `delay` whether consumers still poll the poll set.
    #[cold]
    fn set_poll_timer(self: &Arc<Self>, delay: Duration) {
        if self.poll_timer_set.swap(true, Ordering::SeqCst) {
            return;
        }
        let inner = Arc::downgrade(self);
        let task = move |up: &mut Upcalls| {
            let Some(inner) = inner.upgrade() else {
                return;
            };
            inner.poll_timer_set.store(false, Ordering::SeqCst);
            let mut watch = inner.poll_watch.lock();
            let due = inner.poll_set.check_polls(&mut watch, up);
            // Each check also serves connections whose ready bits were lost, if there are many.
            let delay = match inner.poll_set.uses_bitmap() {
                true => POLL_CHECK,
                false => watch.pause(),
            };
            drop(watch);
            inner.arrange_after(delay, due);
        };
        self.timers.add(delay, Box::new(task));
    }
}
