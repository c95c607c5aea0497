//! Others use the memory while it moves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dat_core::testing::device::*;

use super::ends::*;
use super::{alone, is_possible};

/// How long a contest takes, and how often memory moves at least.
const CONTEST: Duration = Duration::from_secs(2);
const ROUNDS: u64 = 30;

fn word(memory: &Memory, index: usize) -> &AtomicU64 {
    // SAFETY: inside the mapping, which lives longer, and aligned.
    unsafe { AtomicU64::from_ptr(memory.at(index * 8).cast()) }
}

/// Registers and deregisters for a while, parts or all of it.
fn churn(end: &End, memory: &Memory, stop: &AtomicBool) {
    let (mut rounds, start) = (0, Instant::now());
    while start.elapsed() < CONTEST || rounds < ROUNDS {
        let (at, len) = match rounds % 3 {
            0 => (0, memory.len()),
            1 => (page() / 2, memory.len() / 2),
            _ => (memory.len() / 4, memory.len() / 2),
        };
        let mr = end.register(memory.addr() + at as u64, len);
        let middle = memory.addr() + (at + len / 2) as u64;
        assert_eq!(is_shared(middle), is_possible());
        drop(mr);
        assert!(!is_shared(middle));
        rounds += 1;
    }
    stop.store(true, Ordering::Release);
}

/// Threads that count, each in words of its own all over the memory: each finds what it has
/// stored last, and at the end all is there.
#[test]
fn no_store_is_lost() {
    let Some(_alone) = alone() else {
        return;
    };
    let (_, b) = pair();
    let memory = Memory::new(64 * page());
    let stop = AtomicBool::new(false);
    let words = memory.len() / 8;
    let counts = thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|me| {
                let (memory, stop) = (&memory, &stop);
                scope.spawn(move || {
                    let mut count = 0u64;
                    while !stop.load(Ordering::Acquire) {
                        for index in (me..words).step_by(3) {
                            let word = word(memory, index);
                            assert_eq!(word.load(Ordering::Relaxed), count);
                            word.store(count + 1, Ordering::Relaxed);
                        }
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        churn(&b, &memory, &stop);
        let counts: Vec<u64> = writers.into_iter().map(|w| w.join().unwrap()).collect();
        counts
    });
    for index in 0..words {
        assert_eq!(
            word(&memory, index).load(Ordering::Relaxed),
            counts[index % 3]
        );
    }
    assert!(counts.iter().all(|c| *c > 0));
}

/// The same by atomic additions of all threads to the same words.
#[test]
fn no_addition_is_lost() {
    let Some(_alone) = alone() else {
        return;
    };
    let (_, b) = pair();
    let memory = Memory::new(16 * page());
    let stop = AtomicBool::new(false);
    let words = memory.len() / 8;
    let rounds: u64 = thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut rounds = 0;
                    while !stop.load(Ordering::Acquire) {
                        (0..words)
                            .for_each(|i| _ = word(&memory, i).fetch_add(1, Ordering::Relaxed));
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        churn(&b, &memory, &stop);
        writers.into_iter().map(|w| w.join().unwrap()).sum()
    });
    assert!((0..words).all(|i| word(&memory, i).load(Ordering::Relaxed) == rounds));
}

/// System calls that write to the memory or read it neither fail nor lose anything.
#[test]
fn system_calls_wait_as_well() {
    let Some(_alone) = alone() else {
        return;
    };
    let (_, b) = pair();
    let memory = Memory::new(32 * page());
    let stop = AtomicBool::new(false);
    let mut ends = [0; 2];
    // SAFETY: a place for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let size = 16 * page() as isize;
    thread::scope(|scope| {
        let (memory, stop) = (&memory, &stop);
        let writer = scope.spawn(move || {
            let mut round = 0u8;
            let mut text = vec![0u8; size as usize];
            while !stop.load(Ordering::Acquire) {
                round = round.wrapping_add(1);
                text.fill(round);
                let at = memory.at(8 * page());
                // SAFETY: all of it is memory of ours; the pipe has as much room.
                unsafe {
                    assert_eq!(libc::write(ends[1], text.as_ptr().cast(), text.len()), size);
                    assert_eq!(libc::read(ends[0], at.cast(), size as usize), size);
                    // And out of it again.
                    assert_eq!(libc::write(ends[1], at.cast(), size as usize), size);
                    assert_eq!(
                        libc::read(ends[0], text.as_mut_ptr().cast(), text.len()),
                        size
                    );
                }
                assert!(text.iter().all(|b| *b == round));
                assert!(memory.get(8 * page(), size as usize) == text);
            }
        });
        churn(&b, memory, stop);
        writer.join().unwrap();
    });
    // SAFETY: our own descriptors.
    ends.iter().for_each(|fd| unsafe { _ = libc::close(*fd) });
}

/// A peer writes to memory of a region while other regions of the same pages come and go, so
/// that the kernel copies for it, or the memory is mapped, by turns.
#[test]
fn peers_lose_nothing_either() {
    let Some(_alone) = alone() else {
        return;
    };
    let (a, b) = pair();
    let p = page();
    let memory = Memory::new(8 * p);
    let stop = AtomicBool::new(false);
    // Of whole pages, and of less than a page in each of two.
    let (whole, part) = (
        b.register(memory.addr() + 2 * p as u64, 2 * p),
        b.register(memory.addr() + (5 * p + p / 2) as u64, p),
    );
    let places = [
        (2 * p, &whole),
        (3 * p, &whole),
        (5 * p + p / 2, &part),
        (6 * p, &part),
    ];
    thread::scope(|scope| {
        let (memory, stop) = (&memory, &stop);
        let (end, churned) = (&b, memory);
        let other = scope.spawn(move || churn_around(end, churned, stop));
        let mut value = 0u64;
        while !stop.load(Ordering::Acquire) {
            value += 1;
            for (at, mr) in &places {
                let (addr, rkey) = (memory.addr() + *at as u64, mr.rkey());
                let remote = Remote { addr, rkey };
                assert_eq!(a.write(&value.to_ne_bytes(), remote), WcStatus::Success);
                assert_eq!(word(memory, at / 8).load(Ordering::Relaxed), value);
                assert_eq!(a.read(remote, 8), value.to_ne_bytes());
            }
        }
        other.join().unwrap();
        assert!(value > 0);
    });
}

/// As [`churn`], of memory some of which others have registered.
fn churn_around(end: &End, memory: &Memory, stop: &AtomicBool) {
    let (mut rounds, start) = (0, Instant::now());
    while start.elapsed() < CONTEST || rounds < ROUNDS {
        rounds += 1;
        let mr = end.register(memory.addr(), memory.len());
        assert_eq!(is_shared(memory.addr() + page() as u64), is_possible());
        drop(mr);
    }
    stop.store(true, Ordering::Release);
}

/// Signal handlers of the thread that registers may use the memory.
#[test]
fn signals_of_the_thread_itself() {
    static PLACE: AtomicU64 = AtomicU64::new(0);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    extern "C" fn touch(_: libc::c_int) {
        let place = PLACE.load(Ordering::Relaxed) as *mut u64;
        if place.is_null() {
            return;
        }
        // SAFETY: a word of the memory, for as long as the test lasts.
        let word = unsafe { AtomicU64::from_ptr(place) };
        word.fetch_add(1, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
    let Some(_alone) = alone() else {
        return;
    };
    let (_, b) = pair();
    let memory = Memory::new(1024 * page());
    let stop = AtomicBool::new(false);
    PLACE.store(memory.at(512 * page()) as u64, Ordering::Relaxed);
    // SAFETY: the handler does what handlers may.
    let me = unsafe {
        libc::signal(libc::SIGUSR1, touch as *const () as libc::sighandler_t);
        libc::pthread_self()
    };
    thread::scope(|scope| {
        let (sender, done) = (&stop, &stop);
        scope.spawn(move || {
            while !sender.load(Ordering::Acquire) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                thread::sleep(Duration::from_micros(20));
            }
        });
        churn(&b, &memory, done);
    });
    PLACE.store(0, Ordering::Relaxed);
    let count = word(&memory, 512 * page() / 8).load(Ordering::Relaxed);
    assert_eq!(count, COUNT.load(Ordering::Relaxed));
    assert!(count > 0);
}
