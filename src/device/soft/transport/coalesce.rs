//! When a request is sent: at once, or together with those behind it.
//!
//! A call to the kernel costs as much as the handling of dozens of short messages, so messages over TCP
//! that are posted one right after the other should share one, and so should RDMA writes that the kernel
//! copies through shared memory. But nothing is to wait in vain:
//! the consumer may do something else after any post, and expects that what it posted is on its
//! way, as with an adapter that fetches requests by itself. So:
//!
//! * A request that stands alone is sent at once. So are the first of several that come close
//!   behind each other (data and a flag, say), as their consumer may poll for the answer in
//!   memory and make no call.
//! * Of what still follows, requests are coalesced. They are sent when there are enough of them,
//!   when the send queue is full, when something of the connection is sent anyway, and when a
//!   consumer polls and finds nothing, or is about to wait, or posts to many other connections.
//!   After that a burst that follows soon is coalesced from its first request on.
//! * If no consumer polls, the thread of the engine sends them after a moment
//!   ([`coalesced`](crate::device::soft::engine::coalesced)). Then the guess was wrong: many of the next
//!   requests are sent at once, twice as many each time. Through shared memory, where a request that
//!   does not wait is done in less than a microsecond, the guess was wrong too if one request waited
//!   alone until a consumer polled.

use std::time::Duration;

use crate::device::soft::engine::coalesced::FLUSH_INTERVAL;
use crate::kernel::Instant;

/// Requests of a burst that are sent at once.
const FIRST: u32 = 2;
/// A post within this time after the last sending continues a burst.
const CLOSE: Duration = Duration::from_micros(2);
/// The same after coalesced requests were sent: the consumer had completions to handle.
const STEADY: Duration = Duration::from_micros(200);
/// Gathered requests that are sent without waiting for more.
const MOST: u32 = 64;
/// Their bytes.
const ENOUGH: u32 = 16 * 1024;
/// How many requests are sent at once after others have waited in vain, the first time.
const LEAST_OWED: u32 = 64;
/// The same at most, if a request that waits costs little more than one that does not.
pub(super) const MOST_OWED: u32 = 4096;

/// What is to be done with a request that was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is sent, with all before it.
    Send,
    /// It is the first that waits, from the given time on.
    Begin(Instant),
    /// It waits too.
    Join,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CoalescePolicy {
    /// Requests that wait.
    count: u32,
    /// Their bytes.
    bytes: u32,
    /// Since when.
    since: Option<Instant>,
    /// When something was sent last.
    last: Option<Instant>,
    /// Requests of the burst so far that were sent at once.
    run: u32,
    /// Whether the requests that were sent last were coalesced.
    steady: bool,
    /// Requests that are to be sent at once whatever their pace.
    owed: u32,
    /// How many there were the last time.
    penalty: u32,
    /// Whether the engine has the connection in its list of those with coalesced requests.
    is_listed: bool,
}

impl CoalescePolicy {
    /// A request was posted.
    #[inline]
    pub fn posted(&mut self, len: u32, clock: impl FnOnce() -> Instant) -> Verdict {
        if self.count > 0 {
            self.count += 1;
            self.bytes = self.bytes.saturating_add(len);
            return match self.count >= MOST || self.bytes >= ENOUGH {
                true => Verdict::Send,
                false => Verdict::Join,
            };
        }
        if len >= ENOUGH {
            return Verdict::Send;
        }
        if self.owed > 0 {
            self.owed -= 1;
            return Verdict::Send;
        }
        let now = clock();
        let close = if self.steady { STEADY } else { CLOSE };
        if self.last.is_none_or(|last| now - last > close) {
            self.run = 0;
            self.steady = false;
        }
        if self.run < FIRST {
            self.run += 1;
            return Verdict::Send;
        }
        self.count = 1;
        self.bytes = len;
        self.since = Some(now);
        Verdict::Begin(now)
    }

    /// Whether requests wait.
    #[inline]
    pub fn waits(&self) -> bool {
        self.count > 0
    }

    /// All that was posted has been sent.
    #[inline]
    pub fn sent(&mut self, now: Instant) {
        self.last = Some(now);
        if self.count == 0 {
            return;
        }
        self.steady = self.count > 1;
        if !self.steady {
            self.run = 0;
        }
        if self.steady {
            self.penalty /= 2;
        }
        self.count = 0;
        self.bytes = 0;
    }

    /// All that was posted is sent; the time counts only if requests have waited.
    #[inline]
    pub fn flushed(&mut self) {
        if self.waits() {
            self.sent(Instant::now());
        }
    }

    /// A request begins to wait. Whether the connection is to be put into the list of the engine, which
    /// does not have it.
    pub fn enters_list(&mut self) -> bool {
        !std::mem::replace(&mut self.is_listed, true)
    }

    /// The connection has left the list of the engine: whether requests have waited for long. `late`:
    /// see [`Coalescer::send_coalesced`](crate::device::soft::upcalls::Coalescer).
    pub fn left_list(&mut self, late: bool) -> bool {
        self.is_listed = false;
        late && self.is_late(Instant::now())
    }

    /// Coalesces the next burst from its first request on, at whatever pace it comes.
    #[cfg(test)]
    pub fn expect_burst(&mut self, now: Instant) {
        self.last = Some(now + Duration::from_secs(60));
        self.run = FIRST;
        self.steady = true;
        self.owed = 0;
    }

    /// Whether one request waits.
    pub fn is_alone(&self) -> bool {
        self.count == 1
    }

    /// Whether requests have waited for long.
    fn is_late(&self, now: Instant) -> bool {
        let since = self.since.filter(|_| self.waits());
        since.is_some_and(|since| now - since >= FLUSH_INTERVAL)
    }

    /// The requests that were sent last have waited in vain. `most`: see [`MOST_OWED`].
    pub fn was_wrong(&mut self, most: u32) {
        // It was halved if several were sent.
        self.penalty = (self.penalty * 4).clamp(LEAST_OWED, most);
        self.owed = self.penalty;
        self.run = 0;
        self.steady = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection and its time.
    struct Case {
        coalesce: CoalescePolicy,
        now: Instant,
    }

    impl Case {
        fn new() -> Case {
            let (coalesce, now) = (CoalescePolicy::default(), Instant::now());
            Case { coalesce, now }
        }

        fn wait(&mut self, time: Duration) {
            self.now += time;
        }

        /// True if it is sent now.
        fn post(&mut self, len: u32) -> bool {
            let now = self.now;
            let verdict = self.coalesce.posted(len, || now);
            assert_eq!(
                verdict != Verdict::Send,
                self.coalesce.waits() && verdict != Verdict::Send
            );
            if verdict == Verdict::Send {
                self.coalesce.sent(now);
            }
            verdict == Verdict::Send
        }

        fn poll(&mut self) {
            if self.coalesce.waits() {
                self.coalesce.sent(self.now);
            }
        }

        /// Posts until requests are coalesced; gives how many were sent before.
        fn burst(&mut self) -> u32 {
            (0..).find(|_| !self.post(8)).unwrap_or_default()
        }
    }

    #[test]
    fn a_request_that_stands_alone_is_sent_at_once() {
        let mut case = Case::new();
        for _ in 0..100 {
            assert!(case.post(8));
            case.wait(CLOSE * 2);
        }
    }

    #[test]
    fn a_burst_is_gathered_but_for_its_beginning() {
        let mut case = Case::new();
        assert_eq!(case.burst(), FIRST);
        // The first of them is among those that wait.
        for _ in 2..MOST {
            assert!(!case.post(8));
        }
        assert!(case.post(8));
        assert!(!case.coalesce.waits());
        // Behind it too.
        assert!(!case.post(8));
        assert!(!case.post(ENOUGH - 9));
        assert!(case.post(1));
        assert!(case.post(ENOUGH), "nothing is gained with long ones");
    }

    #[test]
    fn bursts_that_follow_each_other_are_gathered_from_the_first_on() {
        let mut case = Case::new();
        case.burst();
        for _ in 0..10 {
            assert!(!case.post(8));
            case.poll();
            case.wait(STEADY / 2);
            assert!(!case.post(8));
        }
        case.post(8);
        case.poll();
        case.wait(STEADY * 2);
        assert_eq!(case.burst(), FIRST);
    }

    #[test]
    fn one_that_was_gathered_alone_ends_the_burst() {
        let mut case = Case::new();
        case.burst();
        case.poll();
        assert!(case.post(8));
    }

    #[test]
    fn who_stays_away_is_served_at_once_ever_longer() {
        let mut case = Case::new();
        let mut expected = FIRST;
        for round in 0..12 {
            assert_eq!(case.burst(), expected);
            case.post(8);
            case.wait(FLUSH_INTERVAL);
            assert!(case.coalesce.is_late(case.now));
            case.poll();
            case.coalesce.was_wrong(MOST_OWED);
            expected = FIRST + (LEAST_OWED << round).min(MOST_OWED);
        }
        // And shorter again when that was once only.
        case.burst();
        case.poll();
        case.wait(STEADY * 2);
        for _ in 0..20 {
            case.burst();
            case.post(8);
            case.poll();
        }
        assert_eq!(case.coalesce.penalty, 0);
    }
}
