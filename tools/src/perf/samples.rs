//! The times of single operations, and what is said of them.

use std::time::{Duration, Instant};

/// A look at the clock costs about 20 ns, which the mean contains. Operations are timed in groups so that
/// this stays below this part of a group's time: less than what is to be told apart.
const CLOCK: Duration = Duration::from_nanos(20);
const CLOCK_SHARE: u32 = 200;
/// The most operations of a group: percentiles of larger groups say little.
const GROUP_MAX: u64 = 64;
/// As many samples are kept at most; an evenly spaced part of a longer run.
const KEPT_MAX: u64 = 1 << 20;

/// How many operations to time together, if one takes `each`.
pub fn group(each: Duration) -> u64 {
    let wanted = (CLOCK * CLOCK_SHARE).as_nanos();
    let group = wanted.div_ceil(each.as_nanos().max(1));
    u64::try_from(group)
        .unwrap_or(GROUP_MAX)
        .clamp(1, GROUP_MAX)
}

/// Takes the times of a loop.
pub struct Stopwatch {
    group: u64,
    in_group: u64,
    keep_each: u64,
    groups: u64,
    started: Instant,
    last: Instant,
    /// Nanoseconds of groups.
    groups_ns: Vec<u64>,
    /// Time that does not count.
    paused: Duration,
}

impl Stopwatch {
    /// Starts now. There will be `count` operations.
    pub fn start(group: u64, count: u64) -> Stopwatch {
        let groups = count / group.max(1) + 1;
        let keep_each = groups.div_ceil(KEPT_MAX);
        let mut groups_ns = vec![0; (groups / keep_each + 1) as usize];
        groups_ns.clear();
        let now = Instant::now();
        Stopwatch {
            group: group.max(1),
            in_group: 0,
            keep_each,
            groups: 0,
            started: now,
            last: now,
            groups_ns,
            paused: Duration::ZERO,
        }
    }

    /// An operation has ended; whether it is the last one of a group: time to see to the rest of the world.
    #[inline(always)]
    pub fn lap(&mut self) -> bool {
        self.in_group += 1;
        let ended = self.in_group == self.group;
        if ended {
            self.sample();
        }
        ended
    }

    /// A group of operations has ended. Cold, so that the compiler keeps the call out of the way of the loop.
    #[cold]
    #[inline(never)]
    fn sample(&mut self) {
        self.in_group = 0;
        let now = Instant::now();
        if self.groups.is_multiple_of(self.keep_each) {
            self.groups_ns.push((now - self.last).as_nanos() as u64);
        }
        self.groups += 1;
        self.last = now;
    }

    /// A pause, which does not count.
    #[cold]
    #[inline(never)]
    pub fn pause(&mut self, pause: Duration) {
        self.without(|| std::thread::sleep(pause));
    }

    /// Time that does not count: from the last lap to the end of `pause`.
    pub fn without(&mut self, pause: impl FnOnce()) {
        let before = Instant::now();
        pause();
        self.last = Instant::now();
        self.paused += self.last - before;
    }

    /// Ends the loop.
    pub fn stop(self) -> Times {
        Times {
            total: self.started.elapsed() - self.paused,
            group: self.group,
            groups_ns: self.groups_ns,
        }
    }
}

/// The times of a loop.
pub struct Times {
    /// From start to stop.
    pub total: Duration,
    /// How many operations each sample spans.
    pub group: u64,
    groups_ns: Vec<u64>,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Latency {
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Times {
    /// Of operations that were timed one by one, in nanoseconds, while something else took `total`.
    pub fn single(total: Duration, each_ns: Vec<u64>) -> Times {
        Times {
            total,
            group: 1,
            groups_ns: each_ns,
        }
    }

    /// How many samples there are.
    pub fn samples(&self) -> u64 {
        self.groups_ns.len() as u64
    }

    /// Of `count` operations of which each took `trips` times the latency.
    pub fn latency(mut self, count: u64, trips: u32) -> Latency {
        self.groups_ns.sort_unstable();
        let each = |ns: u64| ns as f64 / 1e3 / self.group as f64 / f64::from(trips);
        let at = |share: f64| each(percentile(&self.groups_ns, share));
        Latency {
            mean: self.total.as_nanos() as f64 / 1e3 / count.max(1) as f64 / f64::from(trips),
            min: at(0.0),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        }
    }
}

/// The smallest of the sorted values that `share` of them do not exceed; 0 without values.
fn percentile(sorted: &[u64], share: f64) -> u64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<u64> = (1..=1000).collect();
        assert_eq!(percentile(&values, 0.0), 1);
        assert_eq!(percentile(&values, 0.5), 500);
        assert_eq!(percentile(&values, 0.99), 990);
        assert_eq!(percentile(&values, 0.999), 999);
        assert_eq!(percentile(&values, 1.0), 1000);
        assert_eq!(percentile(&[7], 0.5), 7);
        assert_eq!(percentile(&[], 0.5), 0);
    }

    #[test]
    fn half_a_round_trip_of_a_group() {
        let times = Times {
            total: Duration::from_micros(80),
            group: 4,
            groups_ns: vec![40_000, 16_000, 24_000],
        };
        let latency = times.latency(10, 2);
        assert_eq!(latency.mean, 4.0);
        assert_eq!((latency.min, latency.p50, latency.max), (2.0, 3.0, 5.0));
    }

    #[test]
    fn slow_operations_are_timed_one_by_one() {
        assert_eq!(group(Duration::from_micros(4)), 1);
        assert_eq!(group(Duration::from_micros(1)), 4);
        assert_eq!(group(Duration::from_nanos(100)), 40);
        assert_eq!(group(Duration::ZERO), GROUP_MAX);
    }

    #[test]
    fn long_runs_keep_a_part() {
        let mut watch = Stopwatch::start(1, 4 * KEPT_MAX);
        for _ in 0..100 {
            watch.lap();
        }
        assert_eq!(watch.stop().groups_ns.len(), 20);
    }
}
