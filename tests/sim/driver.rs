//! Runs the seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio, exit};
use std::sync::Mutex;
use std::time::Instant;

use super::plan::Transport;
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

/// The names of the transports in the environment, in `seeds` and in reports.
const TRANSPORTS: [(&str, Transport); 2] = [("tcp", Transport::Tcp), ("shm", Transport::Shm)];

/// The transport of a name.
fn transport(name: &str) -> Transport {
    let found = TRANSPORTS.iter().find(|(other, _)| *other == name);
    let Some((_, transport)) = found else {
        eprintln!("{name} is no transport: tcp or shm");
        exit(2);
    };
    *transport
}

/// The transports that are simulated.
fn transports() -> Vec<Transport> {
    match std::env::var("SIM_PATH") {
        Ok(name) => vec![transport(&name)],
        Err(_) => TRANSPORTS.map(|(_, transport)| transport).to_vec(),
    }
}

/// Seeds of runs that have found something once.
const REGRESSIONS: &str = include_str!("seeds");

/// The runs of [`REGRESSIONS`].
fn regressions() -> impl Iterator<Item = (Transport, u64)> {
    REGRESSIONS.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let transport = transport(words.next()?);
        let seed = words.next()?.parse().expect("a seed in tests/sim/seeds");
        Some((transport, seed))
    })
}

/// Runs a seed; a panic of the library is a failure as any other.
fn run_caught(seed: u64, transport: Transport, trace: bool) -> Result<Counts, String> {
    let result = catch_unwind(AssertUnwindSafe(|| run(seed, transport, trace)));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).into()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// How a run is repeated.
fn command(seed: u64, transport: Transport) -> String {
    let found = TRANSPORTS.iter().find(|(_, other)| *other == transport);
    let (name, _) = found.expect("every transport has a name");
    format!("SIM_PATH={name} SIM_SEED={seed} make sim")
}

fn report(seed: u64, transport: Transport, error: &str) {
    println!("not ok - seed {seed}, {transport:?}: {error}");
    let command = command(seed, transport);
    println!("# {command} runs it alone and prints what happens");
}

/// What the handler of [`libc::SIGALRM`] writes.
static LATE: Mutex<String> = Mutex::new(String::new());

/// A run has no end: reports it, and ends the process.
extern "C" fn late(_signal: libc::c_int) {
    // The thread holds the lock for no longer than it takes to change the text.
    if let Ok(text) = LATE.try_lock() {
        // SAFETY: the bytes are there, and the call may be made in a handler.
        unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
    }
    // SAFETY: ends the process, from wherever it is.
    unsafe { libc::_exit(1) };
}

/// Ends the process if the run takes longer than a minute.
fn limit_time(seed: u64, transport: Transport) {
    let command = command(seed, transport);
    *LATE.lock().unwrap() = format!("not ok - no end after a minute: {command}\n");
    // SAFETY: the handler calls nothing that may not be called in one.
    unsafe {
        libc::signal(libc::SIGALRM, late as *const () as libc::sighandler_t);
        libc::alarm(60);
    }
}

/// Runs one seed and prints what happens.
fn run_alone(seed: u64) {
    for transport in transports() {
        match run_caught(seed, transport, true) {
            Ok(_) => println!("ok - seed {seed}, {transport:?}"),
            Err(error) => {
                report(seed, transport, &error);
                exit(1);
            }
        }
    }
}

/// Prints what has happened in all runs over a transport.
fn summarize(transport: Transport, sum: &Counts) {
    println!(
        "# {transport:?}: {} runs, {} connections' ends established, {} requests, {} of them \
         succeeded with {} bytes, {} connections with a failure, {} shared segments, {} system \
         calls, {} steps, {:.1} s",
        sum.runs,
        sum.established,
        sum.requests,
        sum.succeeded,
        sum.bytes,
        sum.tainted,
        sum.segments,
        sum.calls,
        sum.steps,
        sum.time.as_secs_f64()
    );
}

pub fn main() {
    // A buffer for sockets is half a megabyte, for each device of each run: from the kernel, which
    // has pages of zeros only for what is used.
    // SAFETY: a parameter of the allocator.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 256 * 1024) };
    if let Some(seed) = number("SIM_SEED") {
        return run_alone(seed);
    }
    let runs = number("SIM_RUNS").unwrap_or(1_000_000);
    let first = number("SIM_FIRST").unwrap_or(0);
    let jobs = number("SIM_JOBS").unwrap_or(1).max(1);
    if jobs > 1 {
        return share(first, runs, jobs);
    }
    let (mut sums, mut failed) = ([Counts::default(); TRANSPORTS.len()], 0u64);
    let most = number("SIM_FAILURES").unwrap_or(5);
    let transports = transports();
    // The process that has the first seeds runs these as well.
    let known = regressions().filter(|(transport, _)| first == 0 && transports.contains(transport));
    let all = (first..first + runs).flat_map(|seed| {
        let each = transports.iter();
        each.map(move |transport| (*transport, seed))
    });
    for (transport, seed) in known.chain(all) {
        limit_time(seed, transport);
        let begun = Instant::now();
        match run_caught(seed, transport, false) {
            Ok(counts) => {
                let sum = &mut sums[transport as usize];
                *sum += counts;
                sum.time += begun.elapsed();
            }
            Err(error) => {
                report(seed, transport, &error);
                failed += 1;
                // After a panic the library may be in any state.
                if failed >= most || error.starts_with("panic") {
                    break;
                }
            }
        }
    }
    println!("# seeds {first} to {}", first + runs - 1);
    for transport in transports {
        summarize(transport, &sums[transport as usize]);
    }
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
