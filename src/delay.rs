//! Points at which a test delays a thread, to show that no order of events depends on which thread
//! is faster.
//!
//! [`point`] is nothing at all, unless the crate is built with `--cfg dat_order` (`make order-bin`).
//! Then `DAT_DELAY=POINT[:MICROSECONDS[:TIMES]]` names the point at which threads sleep, every
//! second time on average, and `DAT_DELAY_LOG` a file to which the first process that sleeps there
//! appends the name. `scripts/order.sh` takes the names from the calls in the sources.

/// A thread is here: between a change and its event, before a call to a handler, between two steps
/// of a call of the program. The caller may hold locks that all other threads can wait for.
#[cfg(not(dat_order))]
#[inline(always)]
pub(crate) fn point(_name: &'static str) {}

#[cfg(dat_order)]
pub(crate) use delayed::point;

#[cfg(dat_order)]
mod delayed {
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// What `DAT_DELAY` says.
    struct Plan {
        /// The name of the point.
        point: String,
        /// How long a thread sleeps there.
        time: Duration,
        /// How many times threads sleep there, in all.
        times: u64,
        /// How often a thread has been there.
        passes: AtomicU64,
        /// How often a thread has slept there.
        sleeps: AtomicU64,
    }

    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();

    impl Plan {
        /// The plan of this process; a number that cannot be read ends the process, since the
        /// tests would show nothing.
        fn read() -> Option<Plan> {
            let value = std::env::var("DAT_DELAY").ok()?;
            let mut fields = value.split(':');
            let point = fields.next()?.to_owned();
            let mut number = |default| match fields.next() {
                None => default,
                Some(field) => field.parse().unwrap_or_else(|_| {
                    eprintln!("DAT_DELAY={value}: {field} is no number");
                    std::process::abort()
                }),
            };
            Some(Plan {
                point,
                time: Duration::from_micros(number(2000)),
                times: number(300),
                passes: AtomicU64::new(0),
                sleeps: AtomicU64::new(0),
            })
        }

        /// Whether the thread that is at the point for the given time sleeps: for every second
        /// number, in an order without a pattern that a test could follow.
        fn chooses(pass: u64) -> bool {
            let mut bits = pass.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (bits >> 40) & 1 == 0
        }
    }

    /// Appends the name of the point to the log.
    fn log(point: &str) {
        let Some(path) = std::env::var_os("DAT_DELAY_LOG") else {
            return;
        };
        let file = std::fs::File::options()
            .append(true)
            .create(true)
            .open(path);
        if let Ok(mut file) = file {
            let _ = file.write_all(format!("{point}\n").as_bytes());
        }
    }

    pub(crate) fn point(name: &'static str) {
        let Some(plan) = PLAN.get_or_init(Plan::read) else {
            return;
        };
        if plan.point != name || !Plan::chooses(plan.passes.fetch_add(1, Ordering::Relaxed)) {
            return;
        }
        let before = plan.sleeps.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            log(name);
        }
        if before < plan.times {
            crate::sync::sleep(plan.time);
        }
    }
}
