//! Threads that poll and find nothing, on a machine with more threads than processors.
//!
//! A thread that calls `dat_evd_dequeue` in a loop takes the processor of the one that it waits for, if
//! that is not on another processor: for the milliseconds of a time slice. So a thread that has polled
//! in vain for long offers its processor to others (`sched_yield(2)`). Where nobody else wants the
//! processor that returns at once, and is done less and less often. Where others have run since the last
//! time it is done soon again: what the thread waits for is more likely to come from them than from a
//! processor of their own.

use crate::handle::pin::Thread;

/// Polls in vain between two offers: the fewest, and the most.
const LEAST: i32 = 64;
const MOST: i32 = 1 << 14;

/// A poll of an EVD has found nothing. Called without locks and outside of sections. `polls` is how many
/// short polls it has taken the time of.
#[inline]
pub(super) fn polled_in_vain(thread: Thread, polls: i32) {
    if thread.patience().is_over(polls) {
        offer_processor(thread);
    }
}

#[cold]
#[inline(never)]
fn offer_processor(thread: Thread) {
    rustix::thread::sched_yield();
    let patience = thread.patience();
    let switches = switches();
    // Since the last offer, this one included.
    patience.begin(match patience.note(switches) != switches {
        true => LEAST,
        false => (patience.length() * 2).clamp(LEAST, MOST),
    });
}

/// How often another thread has run in place of the calling one, that wanted to go on. To take the time of
/// an offer instead would not show those that run briefly, as one does that answers a message.
fn switches() -> i64 {
    // SAFETY: all zeros are a valid value, and the call fills it in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::pin;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Two threads on one processor give it to each other, each for less than a microsecond.
    #[test]
    fn an_offer_that_was_accepted_is_made_again_soon() {
        let processor = rustix::thread::sched_getcpu();
        let stay = || {
            let mut only = rustix::thread::CpuSet::new();
            only.set(processor);
            rustix::thread::sched_setaffinity(None, &only).unwrap();
        };
        let ended = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                stay();
                while !ended.load(Ordering::Relaxed) {
                    rustix::thread::sched_yield();
                }
            });
            let offers = s.spawn(|| {
                stay();
                let thread = pin::thread();
                thread.patience().begin(MOST);
                (0..100_000).any(|_| {
                    offer_processor(thread);
                    thread.patience().length() == LEAST
                })
            });
            let accepted = offers.join();
            ended.store(true, Ordering::Relaxed);
            assert!(accepted.unwrap());
        });
    }
}
