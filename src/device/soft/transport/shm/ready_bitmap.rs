//! Where peers mark which of many connections has something.
//!
//! Who has few connections looks at each of their rings. Who has many asks the peers for marks:
//! a bit for each connection, so that a look is one at a few words, and only connections that
//! are marked are visited. A mark is no more than a hint to look. Any peer can set the marks of
//! others as well, which costs the owner a visit, or clear them: the owner therefore looks at
//! everything from time to time.
//!
//! An owner that sleeps says so in a word that peers only read, with a number that is another
//! one each time; who finds a new one there after a mark wakes the owner.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Words of marks.
pub const WORDS: usize = if cfg!(loom) { 1 } else { 64 };
/// Connections in a word.
pub const BITS: u32 = u64::BITS;
/// Connections of a board.
pub const CAPACITY: u32 = WORDS as u32 * BITS;

/// Orders a locked instruction before what follows.
#[inline]
fn ordered() {
    // On x86 it is a barrier itself.
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, dat_tsan)))))]
    fence(Ordering::SeqCst);
}

/// What the owner says: odd while it sleeps.
#[repr(C, align(128))]
pub struct OwnerState(AtomicU32);

impl OwnerState {
    /// It looks at its marks.
    #[allow(clippy::new_without_default)]
    pub fn new() -> OwnerState {
        OwnerState(AtomicU32::new(0))
    }

    /// The owner is going to sleep, or goes on sleeping, unless a look after this finds a mark.
    /// One thread at a time.
    pub fn sleep(&self) {
        let number = self.0.load(Ordering::Relaxed);
        self.0.swap(number.wrapping_add(2) | 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The owner looks. Likewise.
    pub fn wake(&self) {
        let number = self.0.load(Ordering::Relaxed);
        self.0.store(number & !1, Ordering::Relaxed);
    }

    /// For a peer that has marked: the number of the owner's sleep, if it sleeps. Who has rung
    /// at that number need not ring again.
    #[inline]
    pub fn sleep_number(&self) -> Option<u32> {
        let number = self.0.load(Ordering::Relaxed);
        (number % 2 == 1).then_some(number)
    }
}

/// The marks of the owner's connections.
#[repr(C, align(64))]
pub struct ReadyBits([AtomicU64; WORDS]);

impl ReadyBits {
    /// None.
    #[allow(clippy::new_without_default)]
    pub fn new() -> ReadyBits {
        ReadyBits(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// A peer has something at that place. There was a barrier since it has.
    #[inline]
    pub fn set(&self, place: u32) {
        let word = &self.0[(place / BITS) as usize % WORDS];
        let bit = 1 << (place % BITS);
        // One that is there will be taken, and what there is be looked at, after this.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
            ordered();
        }
    }

    /// Whether there are marks in a word.
    #[inline]
    pub fn is_ready(&self, word: usize) -> bool {
        self.0[word].load(Ordering::Relaxed) != 0
    }

    /// Takes the marks of a word. What was marked is to be looked at after this.
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
