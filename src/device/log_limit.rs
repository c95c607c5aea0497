//! Limits how often something that peers can cause at will is logged.

use std::time::Duration;

use crate::kernel::Instant;
use crate::lock::Mutex;
use crate::process::PerProcess;

/// How long nothing of a kind is logged after an entry.
const PAUSE: Duration = Duration::from_secs(60);

/// The limit for one kind of entries: one in a minute.
pub(crate) struct LogLimit(PerProcess<Mutex<State>>);

#[derive(Default)]
struct State {
    /// When the last entry was logged; `None` before the first.
    last: Option<Instant>,
    /// Number of entries since then that were not logged.
    suppressed: u64,
}

impl LogLimit {
    /// A limit that allows an entry now.
    pub const fn new() -> LogLimit {
        LogLimit(PerProcess::new(Mutex::default))
    }

    /// Whether an entry may be logged now; if so, how many were not since the one before.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.last.is_some_and(|last| now < last + PAUSE) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_of_a_minute_is_logged() {
        static LIMIT: LogLimit = LogLimit::new();
        let limit = &LIMIT;
        let now = Instant::now();
        assert_eq!(limit.admit_at(now), Some(0));
        assert_eq!(limit.admit_at(now), None);
        assert_eq!(limit.admit_at(now + PAUSE / 2), None);
        assert_eq!(limit.admit_at(now + PAUSE), Some(2));
        assert_eq!(limit.admit_at(now + PAUSE), None);
    }
}
