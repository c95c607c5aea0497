//! Connections with coalesced sends: requests that wait a little, so that one system call takes
//! many.
//!
//! A consumer that polls, or is about to block, flushes all coalesced sends first. A consumer that
//! posts to one connection after the other flushes the oldest of them. For a consumer that makes
//! no call the thread of the engine flushes: while requests are being coalesced the thread checks
//! at an interval, and flushes those that were there at the check before. So a request waits
//! for two intervals at most, and the thread does not interfere with a consumer that is posting.
//!
//! Each check interrupts a consumer that has its processor for itself, for some ten microseconds. So the
//! interval becomes longer while checks find that a consumer flushes what it posts by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::kernel::Instant;
use crate::lock::Mutex;

use crate::device::soft::upcalls::{Coalescer, Upcalls};

/// Interval of the checks of the thread, at first.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_micros(150);
/// Checks in a row that have found nothing to flush, after which the interval is doubled.
const VAIN_CHECKS: u32 = 4;
/// How often it is doubled at most.
const DOUBLINGS: u32 = 3;
/// Connections that coalesce at a time. A consumer that has gone on to others has probably
/// finished with the first.
const MAX_COALESCERS: usize = 4;

#[derive(Default)]
struct State {
    /// The connections, the oldest first, each with the check number at which it was added.
    list: Vec<(u32, Arc<dyn Coalescer>)>,
    /// Number of checks of the thread, modulo 2^32.
    check: u32,
    /// Whether a connection was added since the last check.
    added: bool,
    /// Checks in a row that have found nothing to flush, since the checks were started.
    vain: u32,
    /// When the next check is due; `None` if the checks have stopped.
    next_check: Option<Instant>,
}

impl State {
    /// The time until the next check.
    fn interval(&self) -> Duration {
        FLUSH_INTERVAL * (1 << (self.vain / VAIN_CHECKS).min(DOUBLINGS))
    }
}

/// The connections of an engine with coalesced sends.
#[derive(Default)]
pub(crate) struct CoalescedSends {
    /// The connections, and the checks of the thread.
    state: Mutex<State>,
    /// Length of the list, to be read without the lock.
    len: AtomicUsize,
}

impl CoalescedSends {
    /// Adds a connection that is not in the list; one that has to leave the list for that goes
    /// to `up`. True if the checks have stopped and have to be started.
    pub fn add(&self, coalescer: Arc<dyn Coalescer>, now: Instant, up: &mut Upcalls) -> bool {
        let mut state = self.state.lock();
        if state.list.len() >= MAX_COALESCERS {
            up.send(state.list.remove(0).1);
        }
        let check = state.check;
        state.list.push((check, coalescer));
        state.added = true;
        self.len.store(state.list.len(), Ordering::Release);
        let starts = state.next_check.is_none();
        if starts {
            state.next_check = Some(now + FLUSH_INTERVAL);
        }
        starts
    }

    /// Number of connections.
    #[cfg(dat_sim)]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether no connection has coalesced requests.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Sends all coalesced requests.
    #[inline]
    pub fn flush(&self) {
        if !self.is_empty() {
            self.flush_all();
        }
    }

    fn flush_all(&self) {
        let mut up = Upcalls::default();
        // Not until the list is empty: other threads may add connections all the time.
        for _ in 0..self.len.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            let Some((_, coalescer)) = state.list.pop() else {
                break;
            };
            self.len.store(state.list.len(), Ordering::Release);
            drop(state);
            coalescer.send_coalesced(false, &mut up);
        }
        up.run();
    }

    /// The time until the next check; `None` if the checks have stopped.
    pub fn until_flush(&self) -> Option<Duration> {
        let next = self.state.lock().next_check?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// A check of the thread, if it is due: sends what was coalesced before the last check.
    /// Returns the time until the next check; `None` if the checks stop.
    pub fn flush_old(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        let due = state.next_check?;
        let now = Instant::now();
        if now < due {
            return Some(due - now);
        }
        let check = state.check;
        let old: Vec<_> = state.list.extract_if(.., |(c, _)| *c != check).collect();
        self.len.store(state.list.len(), Ordering::Release);
        let goes_on = state.added || !state.list.is_empty();
        state.added = false;
        state.vain = match goes_on && old.is_empty() {
            true => state.vain.saturating_add(1),
            false => 0,
        };
        state.check = check.wrapping_add(1);
        let interval = state.interval();
        state.next_check = goes_on.then(|| now + interval);
        drop(state);
        if !old.is_empty() {
            let mut up = Upcalls::default();
            for (_, coalescer) in old {
                coalescer.send_coalesced(true, &mut up);
            }
            up.run();
        }
        goes_on.then_some(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Count {
        fn sent(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl Coalescer for Count {
        fn send_coalesced(&self, _late: bool, _up: &mut Upcalls) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The next check of the thread, when it is due.
    fn check(coalesced: &CoalescedSends) -> Option<Duration> {
        while let Some(due) = coalesced.state.lock().next_check
            && Instant::now() < due
        {}
        coalesced.flush_old()
    }

    fn add(coalesced: &CoalescedSends, count: &Arc<Count>) -> bool {
        let mut up = Upcalls::default();
        let starts = coalesced.add(count.clone(), Instant::now(), &mut up);
        up.run();
        starts
    }

    #[test]
    fn a_flush_sends_each_once() {
        let coalesced = CoalescedSends::default();
        let counts: [Arc<Count>; 3] = Default::default();
        for (i, count) in counts.iter().enumerate() {
            // The checks start once.
            assert_eq!(add(&coalesced, count), i == 0);
        }
        coalesced.flush();
        coalesced.flush();
        assert!(counts.iter().all(|count| count.sent() == 1));
    }

    #[test]
    fn the_oldest_makes_room() {
        let coalesced = CoalescedSends::default();
        let counts: [Arc<Count>; MAX_COALESCERS + 2] = Default::default();
        for count in &counts {
            add(&coalesced, count);
        }
        let sent = counts.each_ref().map(|count| count.sent());
        assert!(sent[..2].iter().all(|n| *n == 1));
        assert!(sent[2..].iter().all(|n| *n == 0));
    }

    #[test]
    fn a_check_sends_what_was_there_at_the_last_one_and_then_checks_stop() {
        let coalesced = CoalescedSends::default();
        assert_eq!(coalesced.flush_old(), None);
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        assert!(add(&coalesced, &first));
        assert!(check(&coalesced).is_some());
        assert_eq!(first.sent(), 0);
        assert!(!add(&coalesced, &second));
        assert!(check(&coalesced).is_some());
        assert_eq!((first.sent(), second.sent()), (1, 0));
        while check(&coalesced).is_some() {}
        assert_eq!((first.sent(), second.sent()), (1, 1));
        assert!(add(&coalesced, &first));
    }

    #[test]
    fn checks_become_rarer_while_consumers_flush() {
        let coalesced = CoalescedSends::default();
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let mut intervals = Vec::new();
        for _ in 0..VAIN_CHECKS * (DOUBLINGS + 2) {
            coalesced.flush();
            add(&coalesced, &first);
            intervals.extend(check(&coalesced));
        }
        assert_eq!(intervals[0], FLUSH_INTERVAL);
        assert!(intervals.is_sorted());
        let longest = FLUSH_INTERVAL * (1 << DOUBLINGS);
        assert_eq!(intervals.last(), Some(&longest));
        // A consumer that stays away once has them frequent again.
        add(&coalesced, &second);
        assert_eq!(check(&coalesced), Some(FLUSH_INTERVAL));
    }
}
