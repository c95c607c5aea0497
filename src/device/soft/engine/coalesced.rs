//! Connections whose requests were gathered, so that one call to the kernel takes many.
//!
//! Whoever polls, or is about to wait, sends what was gathered before anything else. Who posts to
//! one connection after the other sends for the oldest of them. A consumer that stays away
//! leaves it to the thread of the engine. That looks at a steady pace while requests are being
//! gathered, and sends what was there when it last looked: so a request waits for two of these
//! moments at most, and a consumer that is at it is left alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::device::soft::upcalls::Upcalls;

/// The pace of the thread.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_micros(150);
/// Connections that gather at a time. A consumer that has gone on to others has probably
/// finished with the first.
const MOST: usize = 4;

/// Something that has gathered requests.
pub(crate) trait Coalescer: Send + Sync {
    /// Sends them. It is not in the list any more. `late` says that no consumer came by.
    fn send_coalesced(&self, late: bool, up: &mut Upcalls);
}

#[derive(Default)]
struct State {
    /// With the round in which they came.
    list: Vec<(u32, Arc<dyn Coalescer>)>,
    /// Counts looks of the thread.
    round: u32,
    /// Something came in this round.
    came: bool,
    /// When the thread looks next; `None` if it does not.
    next: Option<Instant>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct CoalescedSends {
    state: Mutex<State>,
    /// Length of the list, for a look without the lock.
    len: AtomicUsize,
}

impl CoalescedSends {
    /// Adds one that is not in the list; `up` gets one that has to leave it. True if the thread
    /// has to be told that it is to look from now on.
    pub fn add(&self, gatherer: Arc<dyn Coalescer>, now: Instant, up: &mut Upcalls) -> bool {
        let mut state = self.state.lock();
        if state.list.len() >= MOST {
            up.send(state.list.remove(0).1);
        }
        let round = state.round;
        state.list.push((round, gatherer));
        state.came = true;
        self.len.store(state.list.len(), Ordering::Release);
        let begins = state.next.is_none();
        if begins {
            state.next = Some(now + FLUSH_INTERVAL);
        }
        begins
    }

    /// Sends what was gathered.
    #[inline]
    pub fn send(&self) {
        if self.len.load(Ordering::Acquire) > 0 {
            self.send_all();
        }
    }

    fn send_all(&self) {
        let mut up = Upcalls::default();
        // Others may add more meanwhile, for ever.
        for _ in 0..self.len.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            let Some((_, gatherer)) = state.list.pop() else {
                break;
            };
            self.len.store(state.list.len(), Ordering::Release);
            drop(state);
            gatherer.send_coalesced(false, &mut up);
        }
        up.run();
    }

    /// How long it is until the next look of the thread.
    pub fn due(&self) -> Option<Duration> {
        let next = self.state.lock().next?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// The thread's look, if it is due. Gives how long it is until the next.
    pub fn tick(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        let due = state.next?;
        let now = Instant::now();
        if now < due {
            return Some(due - now);
        }
        let round = state.round;
        let old: Vec<_> = state.list.extract_if(.., |(r, _)| *r != round).collect();
        self.len.store(state.list.len(), Ordering::Release);
        let goes_on = state.came || !state.list.is_empty();
        state.came = false;
        state.round = round.wrapping_add(1);
        state.next = goes_on.then(|| now + FLUSH_INTERVAL);
        drop(state);
        if !old.is_empty() {
            let mut up = Upcalls::default();
            for (_, gatherer) in old {
                gatherer.send_coalesced(true, &mut up);
            }
            up.run();
        }
        goes_on.then_some(FLUSH_INTERVAL)
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

    /// The next look of the thread, at its time.
    fn look(coalesced: &CoalescedSends) -> Option<Duration> {
        while let Some(due) = coalesced.state.lock().next
            && Instant::now() < due
        {}
        coalesced.tick()
    }

    fn add(coalesced: &CoalescedSends, count: &Arc<Count>) -> bool {
        let mut up = Upcalls::default();
        let begins = coalesced.add(count.clone(), Instant::now(), &mut up);
        up.run();
        begins
    }

    #[test]
    fn a_poll_sends_each_once() {
        let coalesced = CoalescedSends::default();
        let counts: [Arc<Count>; 3] = Default::default();
        for (i, count) in counts.iter().enumerate() {
            // The thread is told once.
            assert_eq!(add(&coalesced, count), i == 0);
        }
        coalesced.send();
        coalesced.send();
        assert!(counts.iter().all(|count| count.sent() == 1));
    }

    #[test]
    fn the_oldest_makes_room() {
        let coalesced = CoalescedSends::default();
        let counts: [Arc<Count>; MOST + 2] = Default::default();
        for count in &counts {
            add(&coalesced, count);
        }
        let sent = counts.each_ref().map(|count| count.sent());
        assert!(sent[..2].iter().all(|n| *n == 1));
        assert!(sent[2..].iter().all(|n| *n == 0));
    }

    #[test]
    fn the_thread_sends_what_has_waited_for_a_round_and_then_stops_to_look() {
        let coalesced = CoalescedSends::default();
        assert_eq!(coalesced.tick(), None);
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        assert!(add(&coalesced, &first));
        assert!(look(&coalesced).is_some());
        assert_eq!(first.sent(), 0);
        assert!(!add(&coalesced, &second));
        assert!(look(&coalesced).is_some());
        assert_eq!((first.sent(), second.sent()), (1, 0));
        while look(&coalesced).is_some() {}
        assert_eq!((first.sent(), second.sent()), (1, 1));
        assert!(add(&coalesced, &first));
    }
}
