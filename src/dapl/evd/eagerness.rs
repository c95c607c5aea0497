//! Whether a thread in `dat_evd_wait` looks for events for a moment before it sleeps.
//!
//! It is worth while if the event comes meanwhile: then a sleep and a wake-up are saved. If it
//! does not, the time is lost, and a peer that needs the same processor is kept from sending. So
//! a look in vain is followed by waits that sleep at once, twice as many each time; only waits
//! that turn out to be short count.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The most waits between two looks.
const MOST: u32 = 1024;

/// See the module. Used by one thread at a time, the one that waits.
pub(super) struct Eagerness {
    /// Short waits there have to be before the next look.
    wanted: AtomicU32,
    /// Those that there were.
    short: AtomicU32,
}

impl Default for Eagerness {
    fn default() -> Self {
        Eagerness {
            wanted: AtomicU32::new(1),
            short: AtomicU32::new(1),
        }
    }
}

impl Eagerness {
    /// How long to look now, at most `limit`.
    pub fn spin(&self, limit: Duration) -> Duration {
        let worth = self.short.load(Ordering::Relaxed) >= self.wanted.load(Ordering::Relaxed);
        if worth { limit } else { Duration::ZERO }
    }

    /// The event came while we looked.
    pub fn was_right(&self) {
        let wanted = self.wanted.load(Ordering::Relaxed);
        self.wanted.store((wanted / 2).max(1), Ordering::Relaxed);
    }

    /// We slept, after a look for `spin` of at most `limit`; the wait took `took`.
    pub fn slept(&self, spin: Duration, limit: Duration, took: Duration) {
        if !spin.is_zero() {
            let wanted = self.wanted.load(Ordering::Relaxed);
            self.wanted.store((wanted * 2).min(MOST), Ordering::Relaxed);
            self.short.store(0, Ordering::Relaxed);
        } else if took < 2 * limit {
            // What a wake-up costs is about as long as is worth looking for.
            let short = self.short.load(Ordering::Relaxed);
            self.short.store((short + 1).min(MOST), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(30);
    const SHORT: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_millis(1);

    /// Waits that would have taken so long if one had looked; how many times it did.
    fn waits(eagerness: &Eagerness, count: usize, took: Duration) -> usize {
        let look = || {
            let spin = eagerness.spin(LIMIT);
            if took < spin {
                eagerness.was_right();
            } else {
                eagerness.slept(spin, LIMIT, took);
            }
            !spin.is_zero()
        };
        (0..count).filter(|_| look()).count()
    }

    #[test]
    fn while_it_is_worth_while() {
        assert_eq!(waits(&Eagerness::default(), 1000, SHORT), 1000);
    }

    #[test]
    fn long_waits_sleep_at_once() {
        assert_eq!(waits(&Eagerness::default(), 1000, LONG), 1);
    }

    #[test]
    fn looks_in_vain_become_rare() {
        let eagerness = Eagerness::default();
        assert!(waits(&eagerness, 10_000, LIMIT) < 20);
        // And common again.
        assert!(waits(&eagerness, 10_000, SHORT) > 9000);
    }

    #[test]
    fn a_limit_of_nothing() {
        let eagerness = Eagerness::default();
        for _ in 0..10 {
            assert!(eagerness.spin(Duration::ZERO).is_zero());
            eagerness.slept(Duration::ZERO, Duration::ZERO, SHORT);
        }
    }
}
