//! Ready bitmaps, in which peers set the bits of those of many connections that have an arrival.
//!
//! An engine with few connections peeks at each of their rings. An engine with many gives each
//! connection a bit, so that a poll reads a few words, and serves the connections whose bits are
//! set. A bit is no more than a hint. Any peer can also set the bits of other connections, which
//! costs the owner a service in vain, or clear them: the owner therefore rechecks all
//! connections from time to time.
//!
//! An owner that sleeps announces that in a word that peers only read, with a number that is a
//! different one for each sleep. A peer that reads a new number after setting a bit wakes the
//! owner.
//!
//! The bitmaps are in memory that peers map. The transport makes that memory and hands the
//! bitmaps to the engine ([`TakeBitmap`]).

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Words of a bitmap.
pub const WORDS: usize = if cfg!(loom) { 1 } else { 256 };
/// Words of a cache line.
pub const LINE_WORDS: usize = if cfg!(loom) { 1 } else { 8 };
/// Bits of a word.
pub const BITS: u32 = u64::BITS;
/// Bits of a bitmap.
pub const CAPACITY: u32 = WORDS as u32 * BITS;
/// Bitmaps of a process.
pub(crate) const BITMAPS: usize = 32;

/// Orders a locked instruction before what follows.
#[inline]
fn ordered() {
    // On x86 the instruction is a barrier itself.
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, dat_tsan)))))]
    fence(Ordering::SeqCst);
}

/// Whether the owner of a bitmap sleeps: a number that is odd while it does.
#[repr(C, align(128))]
pub struct OwnerState(AtomicU32);

impl OwnerState {
    /// Of an owner that polls.
    #[allow(clippy::new_without_default)]
    pub fn new() -> OwnerState {
        OwnerState(AtomicU32::new(0))
    }

    /// Announces that the owner is about to sleep, or to go on sleeping, unless a poll after this
    /// call finds a bit. Called by one thread at a time.
    pub fn sleep(&self) {
        let number = self.0.load(Ordering::Relaxed);
        self.0.swap(number.wrapping_add(2) | 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Announces that the owner polls. Called by one thread at a time.
    pub fn wake(&self) {
        let number = self.0.load(Ordering::Relaxed);
        self.0.store(number & !1, Ordering::Relaxed);
    }

    /// For a peer that has set a bit: the number of the owner's sleep, if the owner sleeps. A
    /// peer that has woken the owner at that number need not do so again.
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
    /// All clear.
    #[allow(clippy::new_without_default)]
    pub fn new() -> ReadyBits {
        ReadyBits(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Sets the bit at a place, for a peer that has had a barrier since its last message.
    #[inline]
    pub fn set(&self, place: u32) {
        let word = &self.0[(place / BITS) as usize % WORDS];
        let bit = 1 << (place % BITS);
        // The owner takes a bit that is set, and polls the connection, after this.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
            ordered();
        }
    }

    /// Whether any bit is set of a cache line of words.
    #[inline]
    fn is_line_ready(line: &[AtomicU64]) -> bool {
        // Without a branch for each word: nearly always none is set.
        let any = line
            .iter()
            .fold(0, |any, word| any | word.load(Ordering::Relaxed));
        any != 0
    }

    /// Whether any bit is set of the cache lines that the first `words` words begin in.
    #[inline]
    pub fn is_ready(&self, words: usize) -> bool {
        let mut lines = self.0[..words.next_multiple_of(LINE_WORDS)].chunks_exact(LINE_WORDS);
        lines.any(Self::is_line_ready)
    }

    /// Takes the bits of the cache lines that the first `words` words begin in; `f` gets each word with
    /// bits, and its bits. The owner polls their connections after this.
    #[inline]
    pub fn take_all(&self, words: usize, mut f: impl FnMut(usize, u64)) {
        let lines = self.0[..words.next_multiple_of(LINE_WORDS)].chunks_exact(LINE_WORDS);
        for (number, line) in lines.enumerate() {
            if Self::is_line_ready(line) {
                for word in number * LINE_WORDS..(number + 1) * LINE_WORDS {
                    let bits = self.take(word);
                    if bits != 0 {
                        f(word, bits);
                    }
                }
            }
        }
    }

    /// Returns the bits of a word and clears them. The owner polls their connections after this.
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

/// A bit of a bitmap of some process, as it is advertised to a peer. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BitmapPlace(pub u32);

impl BitmapPlace {
    pub const NONE: BitmapPlace = BitmapPlace(0);

    fn new(bitmap: usize, place: u32) -> BitmapPlace {
        BitmapPlace(1 + bitmap as u32 * CAPACITY + place)
    }

    /// The number of the bitmap and the place of the bit, if both are possible.
    #[inline]
    pub fn split(self) -> Option<(usize, u32)> {
        let number = self.0.checked_sub(1)?;
        let bitmap = (number / CAPACITY) as usize;
        (bitmap < BITMAPS).then_some((bitmap, number % CAPACITY))
    }
}

/// Makes a bitmap that no engine uses, in the mode of an owner that polls; `None` if there can be
/// none.
pub(crate) type TakeBitmap = fn() -> Option<ReadyBitmap>;

/// A bitmap of this process. Its drop gives the bitmap back.
pub(crate) struct ReadyBitmap {
    /// Whether the engine sleeps. Peers read this.
    pub owner_state: &'static OwnerState,
    /// The bits of the engine's connections. Peers set these.
    pub ready_bits: &'static ReadyBits,
    /// The number of the bitmap in this process.
    pub number: usize,
    /// Gives the bitmap with a number back.
    pub release: fn(usize),
}

impl ReadyBitmap {
    /// The bit at a place, as it is advertised to a peer.
    pub fn place(&self, place: u32) -> BitmapPlace {
        BitmapPlace::new(self.number, place)
    }
}

impl Drop for ReadyBitmap {
    fn drop(&mut self) {
        (self.release)(self.number);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_taken_once() {
        let ready = ReadyBits::new();
        let places = [0, 63, 64, 511, 512, 4095, 4096, 10_000, CAPACITY - 1];
        places.iter().for_each(|&place| ready.set(place));
        let mut left = places.to_vec();
        // Of a cache line all words are taken, whichever of them is the last that is asked for.
        for (words, end) in [(1, 512), (9, 1024), (WORDS, CAPACITY)] {
            assert!(ready.is_ready(words));
            let mut taken = Vec::new();
            ready.take_all(words, |word, bits| {
                let bits = (0..BITS).filter(|bit| bits >> bit & 1 == 1);
                taken.extend(bits.map(|bit| word as u32 * BITS + bit));
            });
            let expected: Vec<_> = left.extract_if(.., |place| *place < end).collect();
            assert_eq!(taken, expected);
            assert!(!ready.is_ready(words));
        }
    }
}
