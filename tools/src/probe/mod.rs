//! The measurements of `bench-probe`, by what they measure.

mod buffer;
pub mod copy;
pub mod line;
pub mod tcp;

use std::time::{Duration, Instant};

/// Figures are those of so many samples.
const SAMPLES: usize = 21;
/// What is timed together takes about so long.
const TOGETHER: Duration = Duration::from_micros(500);

/// Ties this thread to a processor.
pub fn pin(processor: usize) -> Option<()> {
    // SAFETY: zeros are the empty set; the macro stays inside it for numbers below its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if processor >= libc::CPU_SETSIZE as usize {
            return None;
        }
        libc::CPU_SET(processor, &mut set);
        (libc::sched_setaffinity(0, size_of_val(&set), &set) == 0).then_some(())
    }
}

/// Nanoseconds of all samples.
pub struct Figures {
    pub median: f64,
    pub mean: f64,
}

/// `None` without a sample.
pub fn figures(mut values: Vec<f64>) -> Option<Figures> {
    values.sort_by(f64::total_cmp);
    Some(Figures {
        median: *values.get(values.len() / 2)?,
        mean: values.iter().sum::<f64>() / values.len() as f64,
    })
}

/// The time of an operation, many of which are timed together.
pub fn timed(mut operation: impl FnMut() -> bool) -> Option<Figures> {
    let start = Instant::now();
    if !operation() || !operation() {
        return None;
    }
    let each = start.elapsed() / 2;
    let count = (TOGETHER.as_nanos() / each.as_nanos().max(1)).clamp(1, 100_000);
    let mut values = Vec::new();
    for _ in 0..SAMPLES {
        let start = Instant::now();
        for _ in 0..count {
            operation();
        }
        values.push(start.elapsed().as_nanos() as f64 / count as f64);
    }
    figures(values)
}

/// How many operations of that length are timed together.
pub fn together(each: Duration) -> usize {
    (TOGETHER.as_nanos() / each.as_nanos().max(1)).clamp(1, 100_000) as usize
}
