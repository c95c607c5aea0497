//! Whether consumers poll, and how long they are left alone before that is checked again.
//!
//! A check interrupts a consumer that has its processor for itself, which costs it tens of microseconds in a
//! virtual machine. Where consumers share their processors with other programs the thread has to notice
//! soon that one of them does not run: it takes over meanwhile. Such a consumer misses a check whenever
//! the others have their time slices, so checks become rare only after many that have all found polls.

use std::time::Duration;

/// How long consumers are left alone at first.
pub(super) const POLL_CHECK: Duration = Duration::from_millis(1);
/// How long they are left alone once they poll steadily.
const STEADY_CHECK: Duration = Duration::from_millis(4);
/// Checks in a row that have found polls, after which consumers poll steadily: several time slices of
/// the scheduler.
const STEADY: u32 = 32;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PollWatch {
    /// The number of polls at the last check.
    polls: u32,
    /// Checks in a row that have found polls.
    found: u32,
}

impl PollWatch {
    /// Whether consumers have polled since the last check: `polls` counts their polls.
    pub fn check(&mut self, polls: u32) -> bool {
        let polled = std::mem::replace(&mut self.polls, polls) != polls;
        self.found = match polled {
            true => self.found.saturating_add(1),
            false => 0,
        };
        polled
    }

    /// How long consumers are left alone until the next check.
    pub fn pause(&self) -> Duration {
        match self.found > STEADY {
            true => STEADY_CHECK,
            false => POLL_CHECK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_check_without_polls_makes_the_next_ones_frequent() {
        let mut watch = PollWatch::default();
        assert!(!watch.check(0));
        for polls in 1..=STEADY {
            assert!(watch.check(polls));
            assert_eq!(watch.pause(), POLL_CHECK);
        }
        assert!(watch.check(STEADY + 1));
        assert_eq!(watch.pause(), STEADY_CHECK);
        assert!(!watch.check(STEADY + 1));
        assert_eq!(watch.pause(), POLL_CHECK);
        assert!(watch.check(0));
        assert_eq!(watch.pause(), POLL_CHECK);
    }
}
