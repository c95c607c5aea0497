//! Whether a thread in `dat_evd_wait` polls for a short time before it sleeps.
//!
//! Polling pays if the event arrives meanwhile, as it saves a sleep and a wake-up. Otherwise the
//! time is lost, and a peer that needs the same processor is kept from sending. So a poll without
//! an event is followed by waits that sleep at once, twice as many each time. Of these only waits
//! that turn out to be short count.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The most short waits between two polls.
const MAX_REQUIRED: u32 = 1024;

/// The state of the policy that the module describes. Used by one thread at a time, the one that
/// waits.
pub(super) struct SpinPolicy {
    /// How many short waits are required before the next poll.
    required: AtomicU32,
    /// How many short waits there were since the last poll.
    short: AtomicU32,
}

impl Default for SpinPolicy {
    fn default() -> Self {
        SpinPolicy {
            required: AtomicU32::new(1),
            short: AtomicU32::new(1),
        }
    }
}

impl SpinPolicy {
    /// How long to poll now: `limit` or not at all.
    pub fn spin(&self, limit: Duration) -> Duration {
        let worth = self.short.load(Ordering::Relaxed) >= self.required.load(Ordering::Relaxed);
        if worth { limit } else { Duration::ZERO }
    }

    /// An event arrived during the poll.
    pub fn succeeded(&self) {
        let required = self.required.load(Ordering::Relaxed);
        self.required
            .store((required / 2).max(1), Ordering::Relaxed);
    }

    /// The thread slept, after a poll of `spin`, which is at most `limit`. The wait took `took`.
    pub fn slept(&self, spin: Duration, limit: Duration, took: Duration) {
        if !spin.is_zero() {
            let required = self.required.load(Ordering::Relaxed);
            self.required
                .store((required * 2).min(MAX_REQUIRED), Ordering::Relaxed);
            self.short.store(0, Ordering::Relaxed);
        } else if took < 2 * limit {
            // A wake-up costs about as much time as `limit`, and is part of the wait.
            let short = self.short.load(Ordering::Relaxed);
            self.short
                .store((short + 1).min(MAX_REQUIRED), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(30);
    const SHORT: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_millis(1);

    /// Simulates `count` waits whose event arrives after `took`; how many of them polled.
    fn waits(spin_policy: &SpinPolicy, count: usize, took: Duration) -> usize {
        let wait = || {
            let spin = spin_policy.spin(LIMIT);
            if took < spin {
                spin_policy.succeeded();
            } else {
                spin_policy.slept(spin, LIMIT, took);
            }
            !spin.is_zero()
        };
        (0..count).filter(|_| wait()).count()
    }

    #[test]
    fn short_waits_always_poll() {
        assert_eq!(waits(&SpinPolicy::default(), 1000, SHORT), 1000);
    }

    #[test]
    fn long_waits_sleep_at_once() {
        assert_eq!(waits(&SpinPolicy::default(), 1000, LONG), 1);
    }

    #[test]
    fn polls_without_an_event_become_rare() {
        let spin_policy = SpinPolicy::default();
        assert!(waits(&spin_policy, 10_000, LIMIT) < 20);
        // And frequent again when they succeed.
        assert!(waits(&spin_policy, 10_000, SHORT) > 9000);
    }

    #[test]
    fn a_limit_of_zero() {
        let spin_policy = SpinPolicy::default();
        for _ in 0..10 {
            assert!(spin_policy.spin(Duration::ZERO).is_zero());
            spin_policy.slept(Duration::ZERO, Duration::ZERO, SHORT);
        }
    }
}
