//! Copying and summing in one pass, in wide registers.
//!
//! A block that is multiplied with a power of x, modulo the polynomial, may be added to one that
//! many bits behind it: the CRC stays what it was ("Fast CRC Computation for Generic Polynomials
//! Using PCLMULQDQ Instruction", Intel 2009). So a message is folded to a block of the same CRC.

use std::arch::naked_asm;

use crate::guarded::table::table_entry;

/// Bytes of a block: four registers of 512 bits, or eight of 256.
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
const NEAR: i64 = power(BLOCK as u32 * 8 + 32);
const FAR: i64 = power(BLOCK as u32 * 8 - 32);

/// Copies and folds bytes from the second argument to the first. The third is how many there are: blocks, at
/// least two. Then come the state of the sum, [`NEAR`] and [`FAR`], and where to put what all folds to.
/// Returns 0, or the address of a fault.
///
/// # Safety
/// As [`copy`], of a processor that has the instructions.
pub(super) type Fold =
    unsafe extern "sysv64" fn(*mut u8, *const u8, usize, u32, &[i64; 2], &mut [u8; BLOCK]) -> usize;

/// The fastest function that the processor has the instructions for.
#[inline]
pub(super) fn fold() -> Option<Fold> {
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq") {
        Some(fold_512)
    } else if has_256() {
        Some(fold_256)
    } else {
        None
    }
}

#[inline]
fn has_256() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vpclmulqdq")
}

/// Copies whole blocks; returns what they fold to, `state` included, and how many bytes that
/// were. `None` if one of the sides is not there.
///
/// # Safety
/// As [`Crc::copy`](super::Crc::copy); `len` is [`MIN`] or more, and the processor has the
/// instructions of `fold`.
pub(super) unsafe fn copy(
    fold: Fold,
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

/// A [`Fold`] for registers of 512 bits. The registers zmm0 to zmm3 have what the blocks fold to.
///
/// # Safety
/// See [`Fold`].
#[unsafe(naked)]
unsafe extern "sysv64" fn fold_512(
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

/// Bytes of a block from an offset on: copies them, and adds them to what a register has, which moves by a
/// block. The last two registers are for what is on the way.
#[rustfmt::skip]
macro_rules! fold_register {
    ($offset:literal, $register:literal, $bytes:literal, $product:literal) => {
        concat!(
            "vmovdqu ", $bytes, ", [rsi + ", $offset, "]\n",
            "vpclmulqdq ", $product, ", ", $register, ", ymm8, 0x00\n",
            "vpclmulqdq ", $register, ", ", $register, ", ymm8, 0x11\n",
            "vmovdqu [rdi + ", $offset, "], ", $bytes, "\n",
            "vpxor ", $product, ", ", $product, ", ", $bytes, "\n",
            "vpxor ", $register, ", ", $register, ", ", $product,
        )
    };
}

/// Bytes of the first block from an offset on: copies them, and keeps them in a register.
#[rustfmt::skip]
macro_rules! load_register {
    ($offset:literal, $register:literal) => {
        concat!(
            "vmovdqu ", $register, ", [rsi + ", $offset, "]\n",
            "vmovdqu [rdi + ", $offset, "], ", $register,
        )
    };
}

/// A [`Fold`] for registers of 256 bits. The registers ymm0 to ymm7 have what the blocks fold to.
///
/// # Safety
/// See [`Fold`].
#[unsafe(naked)]
unsafe extern "sysv64" fn fold_256(
    to: *mut u8,
    from: *const u8,
    len: usize,
    state: u32,
    keys: &[i64; 2],
    folded: &mut [u8; BLOCK],
) -> usize {
    naked_asm!(
        "xor eax, eax",
        "vbroadcasti128 ymm8, xmmword ptr [r8]",
        "vmovd xmm9, ecx",
        "lea r10, [rsi + rdx]",
        "2:",
        load_register!("0", "ymm0"),
        load_register!("32", "ymm1"),
        load_register!("64", "ymm2"),
        load_register!("96", "ymm3"),
        load_register!("128", "ymm4"),
        load_register!("160", "ymm5"),
        load_register!("192", "ymm6"),
        load_register!("224", "ymm7"),
        "vpxor ymm0, ymm0, ymm9",
        ".p2align 5",
        "20:",
        "add rsi, 256",
        "add rdi, 256",
        fold_register!("0", "ymm0", "ymm9", "ymm10"),
        fold_register!("32", "ymm1", "ymm11", "ymm12"),
        fold_register!("64", "ymm2", "ymm13", "ymm14"),
        fold_register!("96", "ymm3", "ymm9", "ymm10"),
        fold_register!("128", "ymm4", "ymm11", "ymm12"),
        fold_register!("160", "ymm5", "ymm13", "ymm14"),
        fold_register!("192", "ymm6", "ymm9", "ymm10"),
        fold_register!("224", "ymm7", "ymm11", "ymm12"),
        "lea rcx, [rsi + 256]",
        "cmp rcx, r10",
        "jb 20b",
        "3:",
        "vmovdqu [r9 + 0], ymm0",
        "vmovdqu [r9 + 32], ymm1",
        "vmovdqu [r9 + 64], ymm2",
        "vmovdqu [r9 + 96], ymm3",
        "vmovdqu [r9 + 128], ymm4",
        "vmovdqu [r9 + 160], ymm5",
        "vmovdqu [r9 + 192], ymm6",
        "vmovdqu [r9 + 224], ymm7",
        "4:",
        "vzeroupper",
        "ret",
        table_entry!(),
    )
}

/// The functions that the processor has the instructions for.
#[cfg(test)]
pub(super) fn all() -> Vec<Fold> {
    let wide = fold();
    let narrow = has_256().then_some(fold_256 as Fold);
    wide.into_iter().chain(narrow).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::soft::iwarp::crc::Crc;
    use crate::guarded;

    #[test]
    fn each_function_copies_and_sums() {
        let data: Vec<u8> = (0..20_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for fold in all() {
            for len in (MIN..3000).chain([16_383, 16_384, 19_991]) {
                let from = &data[len % 9..][..len];
                let mut to = vec![0xee; len + 2];
                // SAFETY: there is room for all behind the first byte.
                let copied =
                    unsafe { copy(fold, from.as_ptr(), to.as_mut_ptr().add(1), len, u32::MAX) };
                let (folded, done) = copied.unwrap();
                assert_eq!(done, len / BLOCK * BLOCK);
                assert_eq!(to[1..=done], from[..done]);
                assert!([to[0], to[done + 1]].iter().all(|byte| *byte == 0xee));
                let (mut sum, mut expected) = (Crc(0), Crc::new());
                sum.update(&folded);
                expected.update(&from[..done]);
                assert_eq!(sum, expected, "{len}");
            }
        }
    }

    #[test]
    fn each_function_notices_memory_that_is_not_there() {
        guarded::install_handlers();
        let mut there = vec![1u8; 16 * BLOCK];
        let nowhere = std::ptr::without_provenance_mut(64);
        for fold in all() {
            // SAFETY: memory of the test, or none.
            unsafe {
                let at = there.as_mut_ptr();
                assert!(copy(fold, nowhere, at, MIN, 0).is_none());
                assert!(copy(fold, at, nowhere, MIN, 0).is_none());
            }
        }
    }
}
