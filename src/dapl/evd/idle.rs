//! Threads that poll and find nothing, on a machine with more threads than processors.
//!
//! A thread that calls `dat_evd_dequeue` in a loop takes the processor of the one that it waits for, if
//! that is not on another processor: for the milliseconds of a time slice. So a thread that has polled
//! in vain for long offers its processor to others (`sched_yield(2)`). Where nobody else wants the
//! processor that returns at once, and is done less and less often. Where others have run meanwhile it
//! is done soon again: what the thread waits for is more likely to come from them than from a
//! processor of their own.

use std::time::Duration;

use crate::handle::pin::Thread;
use crate::kernel::Instant;

/// Polls in vain between two offers: the fewest, and the most.
const LEAST: i32 = 64;
const MOST: i32 = 1 << 14;
/// An offer that takes so long was accepted: another thread has run.
const ACCEPTED: Duration = Duration::from_micros(5);

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
    let begun = Instant::now();
    rustix::thread::sched_yield();
    let patience = thread.patience();
    patience.begin(match begun.elapsed() > ACCEPTED {
        true => LEAST,
        false => (patience.length() * 2).clamp(LEAST, MOST),
    });
}
