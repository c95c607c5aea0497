//! The two barriers that order a thread with the one that removes an object: the light one of the many costs
//! nothing, as the heavy one of the other has the kernel run a barrier on their processors.

use std::sync::atomic::{AtomicBool, compiler_fence};
use std::time::Duration;

use super::{EPOCH_WORD, FENCED};
use crate::sync::atomic::{Ordering, fence};
use crate::sync::barrier;

/// How long after [`FENCED`] was set every thread has noticed, and has executed a fence or emptied its store buffer.
const NOTICE: Duration = Duration::from_millis(1);

/// Whether [`FENCED`] was set while sections were running, and [`NOTICE`] has not passed since.
static IN_TRANSITION: AtomicBool = AtomicBool::new(false);

/// Whether readers have to execute a fence.
#[inline]
fn is_fenced() -> bool {
    EPOCH_WORD.load(Ordering::Relaxed) & FENCED != 0
}

/// Pairs with [`heavy_barrier`] in another thread: either that thread sees the stores of this
/// thread before the light barrier, or this thread sees the stores of that thread before the heavy
/// one. Sufficient unless [`fences_needed`].
#[inline]
pub(in crate::handle) fn light_barrier() {
    if cfg!(loom) && is_fenced() {
        fence(Ordering::SeqCst);
    } else {
        // The processor may still order a store after later loads; the barrier that the kernel runs
        // for the other thread prevents that.
        compiler_fence(Ordering::SeqCst);
        barrier::point();
    }
}

/// Whether [`light_barrier`] is not enough.
pub(crate) fn fences_needed() -> bool {
    !cfg!(loom) && is_fenced()
}

/// Finds out whether the kernel runs barriers, before the first section.
pub(super) fn prepare_barriers() {
    match register_membarrier() {
        true => EPOCH_WORD.fetch_and(!FENCED, Ordering::SeqCst),
        false => EPOCH_WORD.fetch_or(FENCED, Ordering::SeqCst),
    };
    // A thread that still finds the fence needed in `heavy_barrier` runs no barrier: sections of
    // this thread see what that thread has stored before.
    fence(Ordering::SeqCst);
}

fn register_membarrier() -> bool {
    // ThreadSanitizer does not model membarrier, and would report accesses that it orders.
    !cfg!(dat_tsan) && membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

#[cfg(not(loom))]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call accesses no memory of the process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(loom)]
fn membarrier(command: libc::c_int) -> bool {
    let modelled = barrier::MODELLED.load(std::sync::atomic::Ordering::Relaxed);
    if modelled && command == libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED {
        barrier::run();
    }
    modelled
}

/// After this every section, and every thread that runs [`light_barrier`], either is seen by the
/// caller or sees the stores of the caller before.
pub(in crate::handle) fn heavy_barrier() {
    fence(Ordering::SeqCst);
    if EPOCH_WORD.load(Ordering::Acquire) & FENCED != 0 {
        if IN_TRANSITION.load(Ordering::Acquire) {
            crate::sync::sleep(NOTICE);
        }
        return;
    }
    if membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        // In a forked child: the registration is not inherited by all kernels.
        || (register_membarrier() && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
    {
        return;
    }
    // A system call filter was installed since. Readers use fences from now on; the stores of those
    // that have not noticed yet leave their store buffers long before the sleep ends.
    IN_TRANSITION.store(true, Ordering::Relaxed);
    EPOCH_WORD.fetch_or(FENCED, Ordering::SeqCst);
    crate::sync::sleep(NOTICE);
    IN_TRANSITION.store(false, Ordering::Release);
}
