//! The sum of few bytes, by the instruction that sums a word.

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

/// With more bytes it takes longer than folding.
pub(super) const MOST: usize = 256;

#[inline]
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("sse4.2")
}

#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) fn update(state: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks();
    let add = |state, word: &[u8; 8]| _mm_crc32_u64(state, u64::from_le_bytes(*word));
    let state = words.iter().fold(u64::from(state), add) as u32;
    let add = |state, byte: &u8| _mm_crc32_u8(state, *byte);
    rest.iter().fold(state, add)
}
