//! Wakes the peer if it sleeps, and costs one load if it does not.
//!
//! An end that is about to sleep arms its doorbell and then polls once more. The other end does
//! its work first and checks the doorbell then. With a full barrier between the two steps on both
//! ends, either the sleeper finds the work or the other end finds the doorbell armed.

use crate::sync::atomic::{AtomicU32, Ordering, fence};

bitflags::bitflags! {
    /// The events for which a sleeping end is woken.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct WakeOn: u32 {
        /// A cell was filled in the ring that the sleeper consumes.
        const CELLS = 0x01;
        /// There is room again in the ring that the sleeper fills.
        const ROOM = 0x02;
    }
}

/// A sequentially consistent fence.
#[inline]
fn barrier() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, dat_tsan))))]
    // SAFETY: changes nothing, in the red zone of the stack. A locked instruction orders all that `mfence`
    // does of ordinary memory, in half the time. It is not at the top of the stack: what the compiler keeps
    // there would be loaded again only once all stores before are done, which the processor else goes on
    // without.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp - 64], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, dat_tsan)))))]
    fence(Ordering::SeqCst);
}

/// The doorbell of one end, in shared memory: the [`WakeOn`] bits for which the end sleeps, or 0
/// while it is awake.
#[repr(C, align(128))]
pub struct Doorbell(AtomicU32);

impl Doorbell {
    /// A doorbell of an end that is awake.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Doorbell {
        Doorbell(AtomicU32::new(0))
    }

    /// Called by the owner before it sleeps. The owner polls once more after this, and sleeps only
    /// if it finds nothing.
    #[inline]
    pub fn arm(&self, wants: WakeOn) {
        // A doorbell that was armed with the same bits before the last poll needs no new barrier.
        if self.0.load(Ordering::Relaxed) != wants.bits() {
            self.0.swap(wants.bits(), Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// Called by the owner when it is awake and polls.
    #[inline]
    pub fn disarm(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether the owner sleeps, or is about to.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Called by the other end after an event. True if the owner sleeps and the caller has to wake
    /// it.
    #[inline]
    pub fn is_due(&self, what: WakeOn) -> bool {
        barrier();
        self.0.load(Ordering::Relaxed) & what.bits() != 0 && self.0.swap(0, Ordering::SeqCst) != 0
    }
}
