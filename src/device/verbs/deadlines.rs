//! Entries that are due at a time, most of which are over long before: attempts to connect.

use std::collections::BTreeMap;
use std::time::Instant;

/// The fewest entries among which it is worthwhile to look for those that are over.
const FEW: usize = 64;

/// See the module.
pub(super) struct Deadlines<T> {
    /// By the time and a number that makes the key unique.
    entries: BTreeMap<(Instant, u64), T>,
    /// The last of those numbers.
    last: u64,
    /// How many entries there are when those that are over are removed: twice as many as were left the last
    /// time. So they cost memory for a while only, and each entry is looked at a few times.
    sweep_at: usize,
}

impl<T> Deadlines<T> {
    pub fn new() -> Deadlines<T> {
        Deadlines {
            entries: BTreeMap::new(),
            last: 0,
            sweep_at: FEW,
        }
    }

    /// Adds an entry. `is_needed` tells those that are over.
    pub fn insert(&mut self, when: Instant, entry: T, is_needed: impl Fn(&T) -> bool) {
        if self.entries.len() >= self.sweep_at {
            self.entries.retain(|_, entry| is_needed(entry));
            self.sweep_at = (2 * self.entries.len()).max(FEW);
        }
        self.last += 1;
        self.entries.insert((when, self.last), entry);
    }

    /// When the next one is due.
    pub fn first(&self) -> Option<Instant> {
        let ((when, _), _) = self.entries.first_key_value()?;
        Some(*when)
    }

    /// Takes the first entry, if it is due by then.
    pub fn take_until(&mut self, when: Instant) -> Option<T> {
        let first = self.entries.first_entry()?;
        (first.key().0 <= when).then(|| first.remove())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn entries_are_due_in_their_order() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut deadlines = Deadlines::new();
        for (when, entry) in [(later, 3), (now, 1), (now, 2)] {
            deadlines.insert(when, entry, |_| true);
        }
        assert_eq!(deadlines.first(), Some(now));
        assert_eq!(deadlines.take_until(now), Some(1));
        assert_eq!(deadlines.take_until(now), Some(2));
        assert_eq!(deadlines.take_until(now), None);
        assert_eq!(deadlines.take_until(later), Some(3));
        assert_eq!(deadlines.first(), None);
    }

    #[test]
    fn those_that_are_over_do_not_add_up() {
        let when = Instant::now() + Duration::from_secs(3600);
        let mut deadlines = Deadlines::new();
        for n in 0..100_000 {
            // The last hundred alone are not over.
            deadlines.insert(when, n, |entry| entry + 100 > n);
            assert!(deadlines.entries.len() <= 2 * (100 + FEW));
        }
        let left: Vec<i32> = std::iter::from_fn(|| deadlines.take_until(when)).collect();
        assert!(left.ends_with(&(99_900..100_000).collect::<Vec<_>>()));
    }
}
