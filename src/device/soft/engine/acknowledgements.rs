//! Connections that may owe their peers an acknowledgement.
//!
//! What is sent to the peer anyway takes the acknowledgement along. Otherwise it is sent when a
//! consumer has polled [`IDLE_POLLS`] times and found nothing, or is about to wait, and when the thread
//! of the engine has served. A consumer that does none of these after it has received delays it up to
//! [`MAX_DELAY`].
//!
//! That limit is a timer of the kernel, unless consumers poll and the thread pauses: then it is the
//! thread that notices the time, and the next poll that sends, so that a consumer which polls is not
//! interrupted by the timer.
//!
//! A connection that owes nothing any more stays in the list until the next check, so that two ends
//! which answer each other do not enter and leave it with each message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::time::Duration;

use super::Inner;
use crate::device::soft::upcalls::Upcalls;
use crate::lock::Mutex;

/// How long an acknowledgement may wait.
const MAX_DELAY: Duration = Duration::from_millis(4);
/// Polls in a row that find nothing, after which acknowledgements are sent: a peer that streams
/// requests sends the next ones sooner than that, and asks when its queue fills.
const IDLE_POLLS: u32 = 8;

/// A connection that may owe its peer an acknowledgement.
pub(crate) trait Acknowledger: Send + Sync {
    /// Sends the acknowledgement, if it is owed still. The engine has the connection no longer in its
    /// list. Takes the lock of the queue pair.
    fn acknowledge(&self, up: &mut Upcalls);
}

/// The connections of an engine that may owe an acknowledgement.
#[derive(Default)]
pub(crate) struct Acknowledgements {
    /// The connections.
    list: Mutex<Vec<Arc<dyn Acknowledger>>>,
    /// Number of connections that owe one.
    owing: AtomicUsize,
    /// Polls in a row that have found nothing while an acknowledgement was owed.
    idle_polls: AtomicU32,
    /// Whether a timer is set that empties the list.
    timer_set: AtomicBool,
    /// Whether the thread of the engine pauses, because consumers poll. No timer is set then.
    left_to_polls: AtomicBool,
    /// Whether the next poll is to send what is owed.
    overdue: AtomicBool,
}

impl Acknowledgements {
    /// One connection more owes an acknowledgement, or one less.
    pub fn count(&self, owes: bool) {
        if owes {
            self.owing.fetch_add(1, Ordering::Relaxed);
        } else {
            self.owing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Number of connections in the list.
    #[cfg(dat_sim)]
    pub fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// Sends all acknowledgements that are owed.
    #[inline]
    pub fn flush(&self) {
        if self.owing.load(Ordering::Relaxed) > 0 {
            self.flush_all();
        }
    }

    /// A consumer has polled, and found nothing if `idle`: sends what is owed after some such polls.
    #[inline]
    pub fn polled(&self, idle: bool) {
        if self.owing.load(Ordering::Relaxed) == 0 {
            return;
        }
        if self.overdue.load(Ordering::Relaxed) {
            self.overdue.store(false, Ordering::Relaxed);
            self.flush_all();
            return;
        }
        // An approximation, if several threads poll.
        let polls = match idle {
            true => self.idle_polls.load(Ordering::Relaxed) + 1,
            false => 0,
        };
        self.idle_polls.store(polls % IDLE_POLLS, Ordering::Relaxed);
        if polls == IDLE_POLLS {
            self.flush_all();
        }
    }

    /// The thread of the engine is about to pause, for no longer than [`MAX_DELAY`], because consumers
    /// poll: the next poll sends what is owed.
    pub fn leave_to_polls(&self) {
        self.left_to_polls.store(true, Ordering::SeqCst);
        let owing = self.owing.load(Ordering::Relaxed) > 0;
        self.overdue.store(owing, Ordering::Relaxed);
    }

    /// The thread of the engine pauses no longer. Empties the list, so that a connection which comes to
    /// owe something enters it, and has the timer set.
    pub fn take_from_polls(&self) {
        if self.left_to_polls.swap(false, Ordering::SeqCst) {
            self.flush_all();
        }
    }

    /// Empties the list.
    #[cold]
    fn flush_all(&self) {
        let list = std::mem::take(&mut *self.list.lock());
        let mut up = Upcalls::default();
        for connection in list {
            connection.acknowledge(&mut up);
        }
        up.run();
    }
}

impl Inner {
    /// Adds a connection that is not in the list.
    #[cold]
    pub(super) fn schedule_acknowledgement(self: &Arc<Self>, connection: Arc<dyn Acknowledger>) {
        self.acknowledgements.list.lock().push(connection);
        // Either the thread, which has the list after it has stopped to pause, finds the connection in it,
        // or this thread sees that a timer is needed.
        fence(Ordering::SeqCst);
        if self.acknowledgements.left_to_polls.load(Ordering::SeqCst)
            || self.acknowledgements.timer_set.swap(true, Ordering::SeqCst)
        {
            return;
        }
        let inner = Arc::downgrade(self);
        let task = move |_: &mut Upcalls| {
            if let Some(inner) = inner.upgrade() {
                inner
                    .acknowledgements
                    .timer_set
                    .store(false, Ordering::SeqCst);
                inner.acknowledgements.flush_all();
            }
        };
        self.timers.add(MAX_DELAY, Box::new(task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Acknowledger for Count {
        fn acknowledge(&self, _up: &mut Upcalls) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_owed_when_a_pause_begins_is_sent_by_the_next_poll() {
        let (acknowledgements, count) = (Acknowledgements::default(), Arc::new(Count::default()));
        let sent = || count.0.load(Ordering::Relaxed);
        acknowledgements.list.lock().push(count.clone());
        acknowledgements.leave_to_polls();
        acknowledgements.count(true);
        acknowledgements.polled(false);
        assert_eq!(sent(), 0);
        acknowledgements.leave_to_polls();
        acknowledgements.polled(false);
        assert_eq!(sent(), 1);
        acknowledgements.polled(false);
        assert_eq!(sent(), 1);
    }

    #[test]
    fn the_end_of_the_pauses_empties_the_list() {
        let (acknowledgements, count) = (Acknowledgements::default(), Arc::new(Count::default()));
        acknowledgements.list.lock().push(count.clone());
        acknowledgements.take_from_polls();
        assert_eq!(acknowledgements.list.lock().len(), 1);
        acknowledgements.leave_to_polls();
        acknowledgements.take_from_polls();
        assert!(acknowledgements.list.lock().is_empty());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
