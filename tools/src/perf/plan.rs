//! Which measurements a run consists of.

use std::time::Duration;

use super::failure::{Result, error};
use super::inbox::Slots;
use super::options::Options;
use super::order::{Op, Order, Test};
use super::run::Pace;

/// Bytes that a warm-up moves at most, so that it ends soon with large operations.
const WARM_BYTES: u64 = 64 << 20;
/// The fewest operations that are measured at once, also where they take longer than was asked for.
const COUNT_MIN: u64 = 4;
/// The most operations that are measured at once.
const COUNT_MAX: u64 = 50_000_000;
/// The most memory of an end, in bytes.
const MEMORY_MAX: usize = match size_of::<usize>() {
    4 => 1 << 30,
    _ => (4u64 << 30) as usize,
};

/// A measurement of the plan, without its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// What is measured.
    pub test: Test,
    /// How the data moves.
    pub op: Op,
    /// Bytes of an operation.
    pub size: u32,
}

/// All that is to be measured.
pub struct Plan {
    /// The measurements, in their order.
    pub items: Vec<Item>,
    /// Bytes of an area of memory that is enough for each.
    pub area: usize,
    /// The largest window.
    pub window: u16,
}

/// Sizes unless some are asked for.
const SIZES: [u32; 8] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20];

impl Plan {
    /// What the options ask for.
    ///
    /// # Errors
    ///
    /// If nothing is left of it, or it would take too much memory.
    pub fn new(options: &Options, limit: u32) -> Result<Plan> {
        let mut items = Vec::new();
        for &test in &options.test {
            for &op in &options.op {
                let sizes = match (&options.size, test) {
                    (Some(sizes), _) => sizes.0.as_slice(),
                    (None, Test::Rate) => &SIZES[..1],
                    (None, _) => &SIZES,
                };
                for &size in sizes {
                    // Only a dialogue can be polled for in memory, by its last whole word.
                    let in_memory = op == Op::WritePoll;
                    if test == Test::Fairness && op != Op::Send {
                        continue;
                    }
                    if in_memory && (test != Test::Latency || !size.is_multiple_of(8)) {
                        continue;
                    }
                    items.push(Item { test, op, size });
                }
            }
        }
        let fairness = |item: &Item| item.test == Test::Fairness;
        if items.iter().any(fairness) && (options.endpoints < 2 || options.loopback) {
            return error("fairness needs several endpoints, and a server");
        }
        let sends = items.iter().all(|item| item.op == Op::Send);
        if options.register && (options.endpoints > 1 || !sends) {
            return error(
                "memory is registered for each operation with one endpoint and -o send only",
            );
        }
        if items.is_empty() {
            return error(
                "nothing to measure: write-poll is a latency of sizes that are multiples of 8",
            );
        }
        if let Some(item) = items.iter().find(|item| item.size > limit) {
            return error(format!(
                "{} bytes are more than this IA moves at once ({limit})",
                item.size
            ));
        }
        let orders = items
            .iter()
            .map(|item| order(options, item, window(options, item), 1));
        let area = orders.map(|order| Slots::new(&order).area(options.endpoints.into()));
        let area = area.max().unwrap_or(0).max(4096);
        if area > MEMORY_MAX / 3 {
            return error(
                "this takes too much memory: a smaller window or fewer endpoints, please",
            );
        }
        Ok(Plan {
            items,
            area,
            window: options.window,
        })
    }
}

/// The window for an item, if the link allows it.
pub fn window(options: &Options, item: &Item) -> u32 {
    match item.test {
        Test::Latency => 1,
        _ => options.window.into(),
    }
}

/// Endpoints whose operations are counted: with [`Test::Fairness`] those that have streams.
pub fn measured(options: &Options, item: &Item) -> u64 {
    match item.test {
        Test::Fairness => u64::from(options.endpoints) - 1,
        _ => options.endpoints.into(),
    }
}

/// How many operations show how long one takes: a run of so many, and then one of so many, each at a
/// time.
pub const PROBES: (u32, u32) = (1, 3);

/// What a slow link leaves of a window and of a warm-up where one more operation takes `each`, so that
/// a measurement is not much longer than was asked for.
pub fn within_time(options: &Options, item: &Item, each: Duration) -> (u32, u64) {
    let endpoints = u64::from(options.endpoints);
    let possible = options.time / each.as_secs_f64().max(1e-9) / endpoints as f64;
    let possible = possible as u64;
    let window = u64::from(window(options, item)).min((possible / 2).max(2)) as u32;
    let warm_up = warm_up(options, item).min((possible / 4).max(window.into()));
    (window, warm_up)
}

/// The order for an item.
pub fn order(options: &Options, item: &Item, window: u32, count: u64) -> Order {
    let window = match item.test {
        Test::Latency => 1,
        _ => window.min(options.window.into()),
    };
    let window64 = u64::from(window);
    Order {
        test: item.test,
        op: item.op,
        data: options.data(),
        passive: options.passive && !item.op.two_sided(),
        wait: options.wait.is_some(),
        size: item.size,
        window,
        // Whole windows: the receiver of a stream acknowledges each.
        count: count.div_ceil(window64) * window64,
    }
}

/// Operations of each endpoint to warm up with.
pub fn warm_up(options: &Options, item: &Item) -> u64 {
    let bytes = (WARM_BYTES / u64::from(item.size).max(1)).max(8);
    let endpoints = u64::from(options.endpoints);
    let pauses = match options.pause {
        0 => u64::MAX,
        pause => (100_000 / pause).max(4),
    };
    (options.warm_up.min(bytes).min(pauses) / endpoints).max(2)
}

/// Operations of each endpoint to measure, if one takes `each`.
pub fn count(options: &Options, each: Duration) -> u64 {
    let endpoints = u64::from(options.endpoints);
    if let Some(count) = options.count {
        return (count / endpoints).max(1);
    }
    let each = each.as_secs_f64() + options.pause as f64 / 1e6;
    let count = (options.time / each.max(1e-9)).round();
    ((count as u64).clamp(COUNT_MIN, COUNT_MAX) / endpoints).max(1)
}

/// How long an operation takes in the long run, if it `usually` takes so long, one at a time, and `total` of them
/// took `all`, until they had arrived. Writes that complete as soon as the socket has taken them usually
/// take next to nothing, and now and then the time of many.
pub fn lasting(options: &Options, usual: Duration, all: Duration, total: u64) -> Duration {
    let each = all.div_f64(total.max(1) as f64);
    let each = each.saturating_sub(Duration::from_micros(options.pause));
    match each > usual * 2 && all > LONG {
        true => each,
        false => usual,
    }
}

/// A warm-up that takes longer is not made of what the two ends tell each other before and after.
const LONG: Duration = Duration::from_millis(20);

/// How the loop goes.
pub fn pace(options: &Options, group: u64) -> Pace {
    Pace {
        group: if options.pause > 0 { 1 } else { group },
        pause: Duration::from_micros(options.pause),
        burst: u32::from(options.burst.unwrap_or(options.window / 2).max(1)),
        random: options.random,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn options(arguments: &[&str]) -> Options {
        let given = ["dat-perf", "--loopback"].iter().chain(arguments);
        Options::try_parse_from(given).unwrap()
    }

    #[test]
    fn what_cannot_be_measured_is_left_out() {
        let all = ["-t", "latency,rate", "-o", "send,write-poll", "-s", "4,8"];
        let plan = Plan::new(&options(&all), u32::MAX).unwrap();
        let names: Vec<_> = plan
            .items
            .iter()
            .map(|item| (item.test.name(), item.op.name(), item.size))
            .collect();
        let expected = [
            ("latency", "send", 4),
            ("latency", "send", 8),
            ("latency", "write-poll", 8),
            ("rate", "send", 4),
            ("rate", "send", 8),
        ];
        assert_eq!(names, expected);
        let nothing = ["-t", "rate", "-o", "write-poll"];
        assert!(Plan::new(&options(&nothing), u32::MAX).is_err());
        assert!(Plan::new(&options(&["-s", "8K"]), 4096).is_err());
    }

    #[test]
    fn counts_are_whole_windows() {
        let options = options(&["-w", "64"]);
        let item = |test| Item {
            test,
            op: Op::Send,
            size: 8,
        };
        assert_eq!(order(&options, &item(Test::Rate), 64, 65).count, 128);
        assert_eq!(order(&options, &item(Test::Rate), 10, 65).count, 70);
        assert_eq!(order(&options, &item(Test::Latency), 64, 65).count, 65);
    }

    #[test]
    fn slow_links_get_short_windows() {
        let options = options(&["--time", "0.5", "-w", "64"]);
        let item = |test, size| Item {
            test,
            op: Op::Send,
            size,
        };
        let large = item(Test::Bandwidth, 4 << 20);
        // 100 Mbit/s, 10 Gbit/s, and a fast one.
        assert_eq!(
            within_time(&options, &large, Duration::from_millis(335)),
            (2, 2)
        );
        let (window, warm_up) = within_time(&options, &large, Duration::from_micros(3350));
        assert_eq!((window, warm_up), (64, 16));
        assert_eq!(within_time(&options, &large, Duration::ZERO).0, 64);
        let short = item(Test::Latency, 8);
        assert_eq!(
            within_time(&options, &short, Duration::from_millis(100)),
            (1, 1)
        );
    }

    #[test]
    fn writes_take_what_their_arrival_takes() {
        let options = options(&[]);
        let of = |usual, all| {
            lasting(
                &options,
                Duration::from_micros(usual),
                Duration::from_micros(all),
                100,
            )
        };
        assert_eq!(of(10, 10_000_000), Duration::from_millis(100));
        // One slow operation, and what is said before the first one.
        assert_eq!(of(1000, 150_000), Duration::from_millis(1));
        assert_eq!(of(1, 15_000), Duration::from_micros(1));
    }

    #[test]
    fn a_measurement_takes_the_time_that_is_asked_for() {
        let timed = options(&["--time", "2"]);
        assert_eq!(count(&timed, Duration::from_micros(10)), 200_000);
        assert_eq!(count(&timed, Duration::from_secs(10)), 4);
        let many = options(&["--count", "1000", "--endpoints", "10"]);
        assert_eq!(count(&many, Duration::ZERO), 100);
    }
}
