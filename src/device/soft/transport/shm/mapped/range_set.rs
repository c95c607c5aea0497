//! A set of addresses.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of addresses: the start and end of ranges that neither touch nor overlap.
#[derive(Default)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    /// Adds the addresses of a range.
    pub fn insert(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        while let Some((&from, &to)) = self.0.range(..=end).next_back()
            && to >= start
        {
            start = start.min(from);
            end = end.max(to);
            self.0.remove(&from);
        }
        if start < end {
            self.0.insert(start, end);
        }
    }

    /// Removes the addresses of a range.
    pub fn remove(&mut self, range: &Range<u64>) {
        for part in self.intersection(range) {
            let found = self.0.range(..=part.start).next_back();
            let Some((&from, &to)) = found else {
                continue;
            };
            self.0.remove(&from);
            if from < part.start {
                self.0.insert(from, part.start);
            }
            if part.end < to {
                self.0.insert(part.end, to);
            }
        }
    }

    /// The parts of a range that are in the set, in their order.
    pub fn intersection(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut found: Vec<_> = self
            .0
            .range(..range.end)
            .rev()
            .map(|(&from, &to)| from.max(range.start)..to.min(range.end))
            .take_while(|part| part.start < part.end)
            .collect();
        found.reverse();
        found
    }

    /// Whether all addresses of a range are in the set.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        self.intersection(range) == [range.clone()]
    }

    /// Whether no address of a range is in the set.
    pub fn is_disjoint(&self, range: &Range<u64>) -> bool {
        self.intersection(range).is_empty()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All ranges, in their order.
    pub fn all(&self) -> Vec<Range<u64>> {
        self.intersection(&(0..u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_as_a_set_of_numbers() {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let (mut ranges, mut numbers) = (RangeSet::default(), [false; 64]);
        for _ in 0..20_000 {
            let start = random(64);
            let range = start..start + random(65 - start);
            let slots = range.start as usize..range.end as usize;
            if random(2) == 0 {
                ranges.insert(range.clone());
                numbers[slots.clone()].fill(true);
            } else {
                ranges.remove(&range);
                numbers[slots.clone()].fill(false);
            }
            let all = ranges.all();
            for (n, &is_in) in numbers.iter().enumerate() {
                assert_eq!(all.iter().any(|r| r.contains(&(n as u64))), is_in);
            }
            // Neither empty nor next to each other.
            assert!(all.iter().all(|r| r.start < r.end));
            assert!(all.windows(2).all(|w| w[0].end < w[1].start));
            let start = random(63);
            let probe = start..start + 1 + random(64 - start);
            let slots = &numbers[probe.start as usize..probe.end as usize];
            assert_eq!(ranges.contains(&probe), slots.iter().all(|&b| b));
            assert_eq!(ranges.is_disjoint(&probe), !slots.iter().any(|&b| b));
        }
    }
}
