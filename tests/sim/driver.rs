//! Runs the seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio, exit};
use std::time::Instant;

use super::run::{Counts, run};

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(number) => Some(number),
        Err(_) => {
            eprintln!("{name}={text} is no number");
            exit(2);
        }
    }
}

/// Runs a seed; a panic of the library is a failure as any other.
fn run_caught(seed: u64, trace: bool) -> Result<Counts, String> {
    let result = catch_unwind(AssertUnwindSafe(|| run(seed, trace)));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).into()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// Seeds of runs that have found something once.
const REGRESSIONS: &str = include_str!("seeds");

fn report(seed: u64, error: &str) {
    println!("not ok - seed {seed}: {error}");
    println!("# SIM_SEED={seed} make sim runs it alone and prints what happens");
}

pub fn main() {
    // A buffer for sockets is half a megabyte, for each device of each run: from the kernel, which
    // has pages of zeros only for what is used.
    // SAFETY: a parameter of the allocator.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 256 * 1024) };
    if let Some(seed) = number("SIM_SEED") {
        match run_caught(seed, true) {
            Ok(_) => println!("ok - seed {seed}"),
            Err(error) => {
                report(seed, &error);
                exit(1);
            }
        }
        return;
    }
    let runs = number("SIM_RUNS").unwrap_or(1_000_000);
    let first = number("SIM_FIRST").unwrap_or(0);
    let jobs = number("SIM_JOBS").unwrap_or(1).max(1);
    if jobs > 1 {
        return share(first, runs, jobs);
    }
    let begun = Instant::now();
    let (mut sum, mut failed) = (Counts::default(), 0u64);
    let most = number("SIM_FAILURES").unwrap_or(5);
    let known = REGRESSIONS.lines().filter_map(|line| {
        let seed = line.split('#').next()?.trim();
        (!seed.is_empty()).then(|| seed.parse().expect("a seed in tests/sim/seeds"))
    });
    // The process that has the first seeds runs these as well.
    let known = known.filter(|_: &u64| first == 0);
    for seed in known.chain(first..first + runs) {
        // SAFETY: ends the process, if a run never ends.
        unsafe { libc::alarm(60) };
        match run_caught(seed, false) {
            Ok(counts) => sum += counts,
            Err(error) => {
                report(seed, &error);
                failed += 1;
                if failed >= most {
                    break;
                }
            }
        }
    }
    println!(
        "# seeds {first} to {}: {} runs, {} connections' ends established, {} requests, {} of them \
         succeeded with {} bytes, {} connections with a failure, {} system calls, {} steps, {:.1} s",
        first + runs - 1,
        sum.runs,
        sum.established,
        sum.requests,
        sum.succeeded,
        sum.bytes,
        sum.tainted,
        sum.calls,
        sum.steps,
        begun.elapsed().as_secs_f64()
    );
    if failed > 0 {
        exit(1);
    }
    println!("ok - seeds {first} to {}", first + runs - 1);
}

/// Shares the seeds among processes: what the library has once in a process, it has in each.
fn share(first: u64, runs: u64, jobs: u64) {
    let program = std::env::current_exe().expect("this program");
    let each = runs.div_ceil(jobs);
    let mut children = Vec::new();
    for job in 0..jobs {
        let from = first + job * each;
        let count = each.min((first + runs).saturating_sub(from));
        if count == 0 {
            continue;
        }
        let child = Command::new(&program)
            .env("SIM_JOBS", "1")
            .env("SIM_FIRST", from.to_string())
            .env("SIM_RUNS", count.to_string())
            .stdin(Stdio::null())
            .spawn()
            .expect("a process of this program");
        children.push(child);
    }
    let mut failed = false;
    for mut child in children {
        failed |= !child.wait().is_ok_and(|status| status.success());
    }
    if failed {
        exit(1);
    }
}
