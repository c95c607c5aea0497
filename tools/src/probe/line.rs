//! What one thread writes until a thread of another processor sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Figures, SAMPLES, figures, pin, together};

/// Round trips of a sample of the cache line.
const TRIPS: u64 = 1000;
/// The woken thread is given so much time to fall asleep.
const ASLEEP: Duration = Duration::from_micros(300);
/// Wake-ups before those that count: as many as `dat-perf` makes with such pauses before it measures. In a
/// virtual machine those of the first 20 to 50 milliseconds are faster than all later ones.
const WAKES_BEFORE: u32 = 333;

/// A word with a cache line, and the one that is fetched with it, to itself.
#[repr(align(128))]
struct Line<T>(T);

/// A cache line, one way.
pub fn line(a: usize, b: usize) -> Option<Figures> {
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
    pinned.and(figures(values))
}

/// Memory into which one thread copies and which another one polls: the message, and its number behind
/// it.
struct Inbox {
    words: Box<[AtomicU64]>,
}

impl Inbox {
    fn new(size: usize) -> Inbox {
        let words = (0..size.div_ceil(8).max(1)).map(|_| AtomicU64::new(0));
        Inbox {
            words: words.collect(),
        }
    }

    /// Copies a message with its number in the last word.
    fn put(&self, message: &[u64], number: u64) {
        let (last, words) = self.words.split_last().unwrap_or_else(|| unreachable!());
        // SAFETY: the other thread reads nothing but the last word, and `message` is as long.
        unsafe {
            let to = words.as_ptr().cast::<u64>().cast_mut();
            to.copy_from_nonoverlapping(std::hint::black_box(message.as_ptr()), words.len());
        }
        last.store(number, Ordering::Release);
    }

    /// Waits for the message with that number.
    fn wait(&self, number: u64) {
        let last = &self.words[self.words.len() - 1];
        while last.load(Ordering::Acquire) < number {
            std::hint::spin_loop();
        }
    }
}

/// A message of so many bytes that is copied into memory which a thread of the other processor polls,
/// one way.
pub fn exchange(a: usize, b: usize, size: usize) -> Option<Figures> {
    let inboxes = Arc::new([Inbox::new(size), Inbox::new(size)]);
    let message = vec![1_u64; size.div_ceil(8).max(1)];
    // A copy of 100 bytes takes some nanoseconds more than the cache line.
    let trips = together(Duration::from_nanos(200 + size as u64 / 10)) as u64;
    let last = trips * SAMPLES as u64;
    let other = {
        let (inboxes, message) = (inboxes.clone(), message.clone());
        thread::spawn(move || {
            let pinned = pin(b);
            for number in 1..=last {
                inboxes[1].wait(number);
                inboxes[0].put(&message, number);
            }
            pinned
        })
    };
    let pinned = pin(a);
    let mut values = Vec::new();
    let mut number = 0;
    while number < last {
        let start = Instant::now();
        for _ in 0..trips {
            number += 1;
            inboxes[1].put(&message, number);
            inboxes[0].wait(number);
        }
        values.push(start.elapsed().as_nanos() as f64 / (2 * trips) as f64);
    }
    other.join().ok()??;
    pinned.and(figures(values))
}

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) {
    let no_timeout = std::ptr::null::<libc::timespec>();
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, no_timeout) };
}

/// From a wake-up until the thread that slept is seen to run.
pub fn wake(a: usize, b: usize) -> Option<Figures> {
    static BELL: Line<AtomicU32> = Line(AtomicU32::new(0));
    static AWAKE: Line<AtomicU32> = Line(AtomicU32::new(0));
    let rounds = WAKES_BEFORE + 10 * SAMPLES as u32;
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
        let took = start.elapsed();
        if round > WAKES_BEFORE {
            values.push(took.as_nanos() as f64);
        }
    }
    other.join().ok()??;
    pinned.and(figures(values))
}
