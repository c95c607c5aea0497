//! Whether consumers poll, and how long they are left alone before that is checked again.
//!
//! A check interrupts a consumer that has its processor for itself, which costs it tens of microseconds in a
//! virtual machine. Where consumers share their processors with other programs the thread has to notice
//! soon that one of them does not run: it takes over meanwhile. Such a consumer misses a check whenever
//! the others have their time slices, so checks become rare only after many that have all found polls.
//!
//! What costs most of a check is the interrupt of its timer. The clock of the scheduler interrupts each
//! processor that is busy anyway, some hundred times a second: rare checks are made at one of these times.

use std::time::Duration;

/// How long consumers are left alone at first.
pub(super) const POLL_CHECK: Duration = Duration::from_millis(1);
/// How long they are left alone at most once they poll steadily.
const STEADY_CHECK: Duration = Duration::from_millis(4);
/// How much sooner a check may be made then, when the processor is interrupted.
const STEADY_SLACK: Duration = Duration::from_millis(2);
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

    /// Whether consumers poll steadily.
    fn is_steady(&self) -> bool {
        self.found > STEADY
    }

    /// How long consumers are left alone until the next check, at most.
    pub fn pause(&self) -> Duration {
        match self.is_steady() {
            true => STEADY_CHECK,
            false => POLL_CHECK,
        }
    }

    /// How much sooner the check may be made.
    pub fn slack(&self) -> Duration {
        match self.is_steady() {
            true => STEADY_SLACK,
            false => Duration::ZERO,
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
            assert_eq!((watch.pause(), watch.slack()), (POLL_CHECK, Duration::ZERO));
        }
        assert!(watch.check(STEADY + 1));
        assert_eq!((watch.pause(), watch.slack()), (STEADY_CHECK, STEADY_SLACK));
        assert!(!watch.check(STEADY + 1));
        assert_eq!(watch.pause(), POLL_CHECK);
        assert!(watch.check(0));
        assert_eq!(watch.pause(), POLL_CHECK);
    }
}
