//! What is done once sections have ended: objects are freed that nothing can reach any more, and calls are made
//! that are not to be made inside a section.

use super::barriers::heavy_barrier;
use super::record::{oldest_section, own_section};
use super::{EPOCH_WORD, GARBAGE, GARBAGE_LEFT, Garbage, Retired, SPECIAL, next_epoch};
use crate::cancel::Disabled;
use crate::sync::atomic::Ordering;
use crate::sync::relax;

/// How often [`collect`] checks whether sections have ended before it leaves the objects that they
/// may access to the next one, or to [`sweep`]. Few, since the caller may hold a lock that a
/// section waits for.
const COLLECT_ROUNDS: u32 = if cfg!(loom) { 1 } else { 100 };

/// Waits until every section that was running has ended. Objects that the caller made unreachable
/// before are then out of use.
///
/// # Panics
/// Inside a section of the same thread, which would wait for itself.
pub fn synchronize() {
    assert!(own_section().is_none(), "synchronize() inside a section");
    let epoch = next_epoch();
    heavy_barrier();
    let mut rounds = 0u32;
    while oldest_section() <= epoch {
        relax(rounds);
        rounds = rounds.saturating_add(1);
    }
}

/// Runs `free` once every section that is running now has ended: at once if there is none or all
/// of them end soon, otherwise in the next thread that retires an object or [sweeps](sweep).
pub fn retire(free: impl FnOnce() + Send + 'static) {
    let epoch = next_epoch();
    let retired = Box::new(Retired {
        epoch,
        free: Box::new(free),
        older: None,
    });
    GARBAGE.lock().push(retired);
    match own_section() {
        Some(record) => {
            record.collect_at_end.set(true);
            record.add_work();
        }
        None => collect(),
    }
}

/// Runs `f` outside of any section of this thread: at once, or when the section ends. For calls
/// of the consumer's code, which may block.
pub fn outside(f: impl FnOnce() + 'static) {
    match own_section() {
        Some(record) => {
            record.deferred.borrow_mut().push(Box::new(f));
            record.add_work();
        }
        None => f(),
    }
}

/// Frees the retired objects that no section can access any more.
#[cold]
pub(super) fn collect() {
    // What is freed may have any point of cancellation.
    let _disabled = Disabled::begin();
    // Read before the barrier: objects that other threads retire after it may be accessible to
    // sections that began after the barrier.
    let limit = EPOCH_WORD.load(Ordering::SeqCst) & !SPECIAL;
    heavy_barrier();
    for round in 0..COLLECT_ROUNDS {
        if free_before(oldest_section().min(limit), limit) {
            return;
        }
        relax(round);
    }
}

/// Frees retired objects that sections of other threads kept from being freed, if those have ended.
/// Called at the end of a call, where no lock is held; without it objects would wait for the next
/// that is retired, which may never happen.
#[inline]
pub fn sweep() {
    if EPOCH_WORD.load(Ordering::Relaxed) & GARBAGE_LEFT != 0 {
        sweep_garbage();
    }
}

#[cold]
#[inline(never)]
fn sweep_garbage() {
    if own_section().is_some() {
        return;
    }
    let oldest = oldest_section();
    let is_free = |retired: &Retired| retired.epoch < oldest;
    if GARBAGE.lock().iter().any(is_free) {
        collect();
    }
}

/// Frees the objects retired in epochs before `oldest`. `true` if none retired before `limit`
/// remains.
fn free_before(oldest: u64, limit: u64) -> bool {
    let mut free = Garbage::EMPTY;
    let mut done = true;
    let mut garbage = GARBAGE.lock();
    let mut all = std::mem::replace(&mut *garbage, Garbage::EMPTY).reversed();
    while let Some(retired) = all.pop() {
        if retired.epoch >= oldest {
            done &= retired.epoch >= limit;
            garbage.push(retired);
        } else {
            free.push(retired);
        }
    }
    if garbage.is_empty() {
        EPOCH_WORD.fetch_and(!GARBAGE_LEFT, Ordering::Relaxed);
    } else {
        EPOCH_WORD.fetch_or(GARBAGE_LEFT, Ordering::Relaxed);
    }
    drop(garbage);
    // Without the lock, as this may retire more objects.
    let mut free = free.reversed();
    while let Some(retired) = free.pop() {
        (retired.free)();
    }
    done
}
