//! How a side that sleeps is woken, and one that does not is left alone.

use crate::sync::atomic::{AtomicU32, Ordering, fence};

bitflags::bitflags! {
    /// What a side that sleeps wants to be woken for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct WakeOn: u32 {
        /// A cell was filled.
        const CELLS = 0x01;
        /// There is room again.
        const ROOM = 0x02;
    }
}

/// A sequentially consistent fence.
#[inline]
fn barrier() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, dat_tsan))))]
    // SAFETY: changes nothing. A locked instruction orders all that `mfence` does of ordinary
    // memory, in half the time.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, dat_tsan)))))]
    fence(Ordering::SeqCst);
}

/// With what a side says that it sleeps. It says so first and looks once more then; the other
/// side does what it does first and looks at this then. So one of them sees the other.
#[repr(C, align(128))]
pub struct Doorbell(AtomicU32);

impl Doorbell {
    /// Nobody sleeps.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Doorbell {
        Doorbell(AtomicU32::new(0))
    }

    /// We are going to sleep unless a look after this finds something.
    #[inline]
    pub fn arm(&self, wants: WakeOn) {
        // What is armed since before the last look is as good as new.
        if self.0.load(Ordering::Relaxed) != wants.bits() {
            self.0.swap(wants.bits(), Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// We are awake.
    #[inline]
    pub fn disarm(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Something happened: true if the owner of the bell has to be woken by the caller.
    #[inline]
    pub fn is_due(&self, what: WakeOn) -> bool {
        barrier();
        self.0.load(Ordering::Relaxed) & what.bits() != 0 && self.0.swap(0, Ordering::SeqCst) != 0
    }
}
