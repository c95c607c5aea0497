//! Copying and summing in one pass, in registers of 512 bits.
//!
//! A block that is multiplied with a power of x, modulo the polynomial, may be added to one that
//! many bits behind it: the CRC stays what it was ("Fast CRC Computation for Generic Polynomials
//! Using PCLMULQDQ Instruction", Intel 2009). So a message is folded to a block of the same CRC.

use std::arch::{is_x86_feature_detected, naked_asm};

use crate::guarded::table_entry;

/// Bytes of a block: four registers.
pub(super) const BLOCK: usize = 256;
/// Less is not worth it.
pub(super) const MIN: usize = 4 * BLOCK;

/// x to the power of `n` modulo the polynomial, with its bits reversed as everything here,
/// and in the place where a product of two reversed factors comes out right.
const fn power(n: u32) -> i64 {
    let (mut value, mut i) = (1u32, 0);
    while i < n {
        let carry = value >> 31;
        value = (value << 1) ^ (carry * 0x1edc_6f41);
        i += 1;
    }
    (value.reverse_bits() as i64) << 1
}

/// For the two halves of 128 bits that move by a block.
pub(super) const NEAR: i64 = power(BLOCK as u32 * 8 + 32);
pub(super) const FAR: i64 = power(BLOCK as u32 * 8 - 32);

pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
}

/// Copies whole blocks; returns what they fold to, `state` included, and how many bytes that
/// were. `None` if one of the sides is not there.
///
/// # Safety
/// As [`Crc::copy`](super::Crc::copy); `len` is [`MIN`] or more, and the processor has the
/// instructions.
pub(super) unsafe fn copy(
    from: *const u8,
    to: *mut u8,
    len: usize,
    state: u32,
) -> Option<([u8; BLOCK], usize)> {
    let keys = [NEAR, FAR];
    let mut folded = [0; BLOCK];
    let done = len / BLOCK * BLOCK;
    // SAFETY: the caller's promise.
    match unsafe { fold(to, from, done, state, &keys, &mut folded) } {
        0 => Some((folded, done)),
        _ => None,
    }
}

/// Copies and folds `len` bytes, which are blocks, at least two. The registers zmm0 to zmm3
/// have what the blocks fold to. Returns 0, or the address of a fault.
///
/// # Safety
/// As [`copy`].
#[unsafe(naked)]
unsafe extern "sysv64" fn fold(
    to: *mut u8,
    from: *const u8,
    len: usize,
    state: u32,
    keys: &[i64; 2],
    folded: &mut [u8; BLOCK],
) -> usize {
    naked_asm!(
        "xor eax, eax",
        "vbroadcasti32x4 zmm16, xmmword ptr [r8]",
        "vmovd xmm17, ecx",
        "lea r10, [rsi + rdx]",
        "2:",
        "vmovdqu64 zmm0, [rsi]",
        "vmovdqu64 zmm1, [rsi + 64]",
        "vmovdqu64 zmm2, [rsi + 128]",
        "vmovdqu64 zmm3, [rsi + 192]",
        "vmovdqu64 [rdi], zmm0",
        "vmovdqu64 [rdi + 64], zmm1",
        "vmovdqu64 [rdi + 128], zmm2",
        "vmovdqu64 [rdi + 192], zmm3",
        "vpxorq zmm0, zmm0, zmm17",
        ".p2align 5",
        "20:",
        "add rsi, 256",
        "add rdi, 256",
        "vmovdqu64 zmm20, [rsi]",
        "vmovdqu64 zmm21, [rsi + 64]",
        "vmovdqu64 zmm22, [rsi + 128]",
        "vmovdqu64 zmm23, [rsi + 192]",
        "vpclmulqdq zmm24, zmm0, zmm16, 0x00",
        "vpclmulqdq zmm25, zmm1, zmm16, 0x00",
        "vpclmulqdq zmm26, zmm2, zmm16, 0x00",
        "vpclmulqdq zmm27, zmm3, zmm16, 0x00",
        "vpclmulqdq zmm0, zmm0, zmm16, 0x11",
        "vpclmulqdq zmm1, zmm1, zmm16, 0x11",
        "vpclmulqdq zmm2, zmm2, zmm16, 0x11",
        "vpclmulqdq zmm3, zmm3, zmm16, 0x11",
        "vmovdqu64 [rdi], zmm20",
        "vmovdqu64 [rdi + 64], zmm21",
        "vmovdqu64 [rdi + 128], zmm22",
        "vmovdqu64 [rdi + 192], zmm23",
        // The sum of the three.
        "vpternlogq zmm0, zmm24, zmm20, 0x96",
        "vpternlogq zmm1, zmm25, zmm21, 0x96",
        "vpternlogq zmm2, zmm26, zmm22, 0x96",
        "vpternlogq zmm3, zmm27, zmm23, 0x96",
        "lea rcx, [rsi + 256]",
        "cmp rcx, r10",
        "jb 20b",
        "3:",
        "vmovdqu64 [r9], zmm0",
        "vmovdqu64 [r9 + 64], zmm1",
        "vmovdqu64 [r9 + 128], zmm2",
        "vmovdqu64 [r9 + 192], zmm3",
        "4:",
        "vzeroupper",
        "ret",
        table_entry!(),
    )
}
