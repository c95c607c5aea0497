//! A bitmap in shared memory in which peers note which of many connections have events.
//!
//! A process with few connections polls each of their rings. A process with many connections gives
//! each of them a bit, which the peer sets when it has done something: then a poll reads a few
//! words, and only connections whose bits are set are served. A set bit is only a hint that there
//! may be something. A peer can set the bits of other peers, which costs the owner a poll of
//! these connections, or clear them: therefore the owner polls all connections from time to time.
//!
//! The owner reports that it sleeps in a word that peers only read, with a new number for each
//! sleep. A peer that has set a bit and finds a new number there wakes the owner.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Words of a bitmap.
pub const WORDS: usize = if cfg!(loom) { 1 } else { 64 };
/// Connections of a word.
pub const BITS: u32 = u64::BITS;
/// Connections of a bitmap.
pub const CAPACITY: u32 = WORDS as u32 * BITS;

/// Orders a locked instruction before what follows.
#[inline]
fn ordered() {
    // On x86 the locked instruction is a barrier itself.
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, dat_tsan)))))]
    fence(Ordering::SeqCst);
}

/// Number of the last sleep of a bitmap's owner. It is odd while the owner sleeps.
#[repr(C, align(128))]
pub struct OwnerState(AtomicU32);

impl OwnerState {
    /// The state of an owner that is awake.
    #[allow(clippy::new_without_default)]
    pub fn new() -> OwnerState {
        OwnerState(AtomicU32::new(0))
    }

    /// Called by the owner before it sleeps, or goes back to sleep. The owner checks the bitmap
    /// after this, and sleeps only if no bit is set. For one thread at a time.
    pub fn sleep(&self) {
        let number = self.0.load(Ordering::Relaxed);
        self.0.swap(number.wrapping_add(2) | 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Called by the owner when it is awake and polls. For one thread at a time.
    pub fn wake(&self) {
        let number = self.0.load(Ordering::Relaxed);
        self.0.store(number & !1, Ordering::Relaxed);
    }

    /// Called by a peer after it has set a bit: the number of the owner's sleep, if the owner
    /// sleeps. A peer that has woken the owner at that number need not do so again.
    #[inline]
    pub fn sleep_number(&self) -> Option<u32> {
        let number = self.0.load(Ordering::Relaxed);
        (number % 2 == 1).then_some(number)
    }
}

/// The bits of the owner's connections.
#[repr(C, align(64))]
pub struct ReadyBits([AtomicU64; WORDS]);

impl ReadyBits {
    /// A bitmap in which no bit is set.
    #[allow(clippy::new_without_default)]
    pub fn new() -> ReadyBits {
        ReadyBits(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Called by a peer that has done something, after a barrier: sets the bit of the connection.
    #[inline]
    pub fn set(&self, index: u32) {
        let word = &self.0[(index / BITS) as usize % WORDS];
        let bit = 1 << (index % BITS);
        // The owner has yet to take a bit that is set, and polls the connection after that.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
            ordered();
        }
    }

    /// Whether any bit of a word is set.
    #[inline]
    pub fn is_ready(&self, word: usize) -> bool {
        self.0[word].load(Ordering::Relaxed) != 0
    }

    /// Reads and clears a word. The owner polls the connections of the set bits after this.
    #[inline]
    pub fn take(&self, word: usize) -> u64 {
        if self.0[word].load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let ready_bits = self.0[word].swap(0, Ordering::SeqCst);
        ordered();
        ready_bits
    }
}
