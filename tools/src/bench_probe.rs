//! `bench-probe`: limits of the machine that `make bench` compares with, and how near two
//! processors are to each other at the moment. Not installed.
//!
//! `bench-probe line A B` prints the nanoseconds that a cache line takes one way between two
//! processors; `wake A B` those from a wake-up on A until the woken thread of B is seen to run;
//! `copy A BYTES` those of a `memcpy` with warm memory, and `vmread A BYTES` those of the
//! kernel's copy between processes.

use std::env;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Figures are medians of so many samples.
const SAMPLES: usize = 21;
/// Round trips of a sample of the cache line.
const TRIPS: u64 = 1000;
/// The woken thread is given so much time to fall asleep.
const ASLEEP: Duration = Duration::from_micros(300);
/// Copies of a sample take about so long.
const COPYING: Duration = Duration::from_micros(500);

/// A word with a cache line, and the one that is fetched with it, to itself.
#[repr(align(128))]
struct Line<T>(T);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().ok();
    let figure = match words.as_slice() {
        ["line", a, b] => number(a).zip(number(b)).and_then(|(a, b)| line(a, b)),
        ["wake", a, b] => number(a).zip(number(b)).and_then(|(a, b)| wake(a, b)),
        ["copy", a, size] => number(a).zip(number(size)).and_then(|(a, n)| copy(a, n)),
        ["vmread", a, size] => number(a).zip(number(size)).and_then(|(a, n)| vmread(a, n)),
        // The other process of `vmread`: it holds memory until its standard input ends.
        ["hold", size] => number(size).and_then(hold),
        _ => None,
    };
    match figure {
        Some(nanoseconds) => {
            println!("{nanoseconds:.1}");
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("usage: bench-probe line|wake A B, bench-probe copy|vmread A BYTES");
            ExitCode::FAILURE
        }
    }
}

/// Ties this thread to a processor.
fn pin(processor: usize) -> Option<()> {
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

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn line(a: usize, b: usize) -> Option<f64> {
    static TURN: Line<AtomicU64> = Line(AtomicU64::new(0));
    let last = 2 * TRIPS * SAMPLES as u64;
    let wait = |turn: u64| {
        while TURN.0.load(Ordering::Acquire) < turn {
            std::hint::spin_loop();
        }
    };
    let other = thread::spawn(move || {
        let pinned = pin(b);
        for turn in (1..last).step_by(2) {
            wait(turn);
            TURN.0.store(turn + 1, Ordering::Release);
        }
        pinned
    });
    let pinned = pin(a);
    let mut values = Vec::new();
    for sample in 0..SAMPLES as u64 {
        let start = Instant::now();
        for trip in 0..TRIPS {
            let turn = 2 * (sample * TRIPS + trip);
            TURN.0.store(turn + 1, Ordering::Release);
            wait(turn + 2);
        }
        values.push(start.elapsed().as_nanos() as f64 / (2 * TRIPS) as f64);
    }
    other.join().ok()??;
    pinned.and(median(values))
}

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) {
    let no_timeout = std::ptr::null::<libc::timespec>();
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, no_timeout) };
}

fn wake(a: usize, b: usize) -> Option<f64> {
    static BELL: Line<AtomicU32> = Line(AtomicU32::new(0));
    static AWAKE: Line<AtomicU32> = Line(AtomicU32::new(0));
    let rounds = 10 * SAMPLES as u32;
    let other = thread::spawn(move || {
        let pinned = pin(b);
        for round in 1..=rounds {
            while BELL.0.load(Ordering::Acquire) < round {
                futex(&BELL.0, libc::FUTEX_WAIT, round - 1);
            }
            AWAKE.0.store(round, Ordering::Release);
        }
        pinned
    });
    let pinned = pin(a);
    let mut values = Vec::new();
    for round in 1..=rounds {
        thread::sleep(ASLEEP);
        let start = Instant::now();
        BELL.0.store(round, Ordering::Release);
        futex(&BELL.0, libc::FUTEX_WAKE, 1);
        while AWAKE.0.load(Ordering::Acquire) < round {
            std::hint::spin_loop();
        }
        values.push(start.elapsed().as_nanos() as f64);
    }
    other.join().ok()??;
    pinned.and(median(values))
}

/// The median time of an operation, many of which are timed together.
fn timed(mut operation: impl FnMut() -> bool) -> Option<f64> {
    let start = Instant::now();
    if !operation() || !operation() {
        return None;
    }
    let each = start.elapsed() / 2;
    let count = (COPYING.as_nanos() / each.as_nanos().max(1)).clamp(1, 100_000);
    let mut values = Vec::new();
    for _ in 0..SAMPLES {
        let start = Instant::now();
        for _ in 0..count {
            operation();
        }
        values.push(start.elapsed().as_nanos() as f64 / count as f64);
    }
    median(values)
}

fn copy(a: usize, size: usize) -> Option<f64> {
    pin(a)?;
    let from = vec![1_u8; size];
    let mut to = vec![2_u8; size];
    timed(|| {
        std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
        true
    })
}

fn hold(size: usize) -> Option<f64> {
    let memory = vec![1_u8; size];
    println!("{}", memory.as_ptr() as usize);
    let mut end = String::new();
    std::io::stdin().read_line(&mut end).ok()?;
    std::hint::black_box(memory);
    // The figure is the other process's to print.
    std::process::exit(0)
}

fn vmread(a: usize, size: usize) -> Option<f64> {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    pin(a)?;
    let mut holder = Command::new(env::current_exe().ok()?)
        .args(["hold", &size.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut said = String::new();
    BufReader::new(holder.stdout.take()?)
        .read_line(&mut said)
        .ok()?;
    let address: usize = said.trim().parse().ok()?;
    let mut to = vec![2_u8; size];
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: size,
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: size,
    };
    let id = holder.id() as libc::pid_t;
    let figure = timed(|| {
        // SAFETY: writes to `to`, within its length; the other process keeps its memory.
        let copied = unsafe { libc::process_vm_readv(id, &local, 1, &remote, 1, 0) };
        copied == size as isize
    });
    drop(holder.stdin.take());
    let _ = holder.wait();
    figure
}
