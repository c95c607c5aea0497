//! Copying and summing in one pass, with both instructions that sum: one part of the message is folded as
//! in [`wide`](super::wide), and meanwhile the rest is summed by words, in six chains.
//!
//! On an AMD Zen 5 a multiplication of any width takes the unit for two cycles, 256 bytes 16 of them. The
//! instruction for words waits three cycles for its result, and two of them begin in each cycle, so that the
//! other 192 bytes are summed in the same time.

use std::arch::x86_64::{
    __cpuid, _mm_clmulepi64_si128, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi32_si128,
    _mm_cvtsi128_si64,
};
use std::arch::{is_x86_feature_detected, naked_asm};
use std::sync::atomic::{AtomicU8, Ordering};

use super::wide::{BLOCK, FAR, NEAR};
use super::{Crc, Own};
use crate::guarded::table_entry;

/// Parts that are summed by words.
const CHAINS: usize = 6;
/// Bytes of each that are summed while a block is folded.
const STRIDE: usize = 32;
/// Bytes of a turn.
const TURN: usize = BLOCK + CHAINS * STRIDE;
/// With less, what it takes to put the parts together is more than what is won.
pub(super) const MIN: usize = 8 * 1024;

/// Whether the processor sums words beside its multiplications, and has the instructions of
/// [`wide`](super::wide). Elsewhere a chain would be what is waited for.
#[inline]
pub(super) fn is_worth_it() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            let yes = super::wide::is_there() && has_instructions() && is_zen_5();
            KNOWN.store(1 + u8::from(yes), Ordering::Relaxed);
            yes
        }
        known => known == 2,
    }
}

/// Whether the processor can do it at all.
pub(super) fn has_instructions() -> bool {
    is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")
}

/// Whether it is of AMD, and at least of the family of Zen 5.
fn is_zen_5() -> bool {
    let vendor = __cpuid(0);
    let family = __cpuid(1).eax;
    let (base, more) = (family >> 8 & 0xf, family >> 20 & 0xff);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    name.as_flattened() == b"AuthenticAMD" && base + more >= 0x1a
}

/// The parts of a message, as the instructions find and leave them.
#[repr(C)]
struct Parts {
    /// What the folded part comes to.
    folded: [u8; BLOCK],
    /// The sums of the others.
    sums: [u64; CHAINS],
}

/// Copies as many bytes as are whole turns and a block; returns their sum, behind what `state` is the sum
/// of, and how many they were. `None` if one of the sides is not there.
///
/// # Safety
/// As [`Crc::copy`]; `len` is at least a block and a turn, and the processor has the
/// instructions.
pub(super) unsafe fn copy(
    from: *const u8,
    to: *mut u8,
    len: usize,
    own: Own,
    state: u32,
) -> Option<(u32, usize)> {
    let turns = (len - BLOCK) / TURN;
    let (folded, each) = (BLOCK + turns * BLOCK, turns * STRIDE);
    let mut parts = Parts {
        folded: [0; BLOCK],
        sums: [0; CHAINS],
    };
    let keys = [NEAR, FAR];
    let run = match own {
        Own::Source => from_own,
        Own::Target => to_own,
    };
    // SAFETY: the caller's promise; the parts are not longer than `len` bytes.
    let fault = unsafe { run(to, from, folded, each, &keys, &mut parts, state) };
    if fault != 0 {
        return None;
    }
    let mut sum = Crc(0);
    sum.update(&parts.folded);
    // SAFETY: the caller's promise.
    let sum = unsafe { join(sum.0, &parts.sums, each) };
    Some((sum, folded + CHAINS * each))
}

/// The sum of bytes of which `sum` is that of the first ones, and `sums` those of pieces of `each` bytes
/// behind them, every one as if it were alone.
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn join(sum: u32, sums: &[u64; CHAINS], each: usize) -> u32 {
    // What is 33 short is made up for by the product, which is one bit off, and by the reduction.
    let behind = power(each as u64 * 8 - 33);
    sums.iter().fold(sum, |sum, &next| {
        let product = multiply(sum, behind);
        _mm_crc32_u64(0, product) as u32 ^ next as u32
    })
}

/// The product of two polynomials.
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn multiply(a: u32, b: u32) -> u64 {
    let (a, b) = (_mm_cvtsi32_si128(a as i32), _mm_cvtsi32_si128(b as i32));
    _mm_cvtsi128_si64(_mm_clmulepi64_si128(a, b, 0)) as u64
}

/// x to the power of `n` modulo the polynomial, with its bits reversed. Each step squares what there is,
/// which is reduced by summing it: that multiplies with x to the power of 32, and takes one bit of `n`.
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn power(mut n: u64) -> u32 {
    // The steps, last one first, and a mark behind them.
    let mut steps = !1u64;
    while n > 191 {
        steps = (steps << 1) + (n & 1);
        n = (n >> 1) - 16;
    }
    steps = !steps;
    let mut value = 0x8000_0000u32 >> (n & 31);
    for _ in 0..n >> 5 {
        value = _mm_crc32_u32(value, 0);
    }
    loop {
        let doubled = steps & 1;
        steps >>= 1;
        if steps == 0 {
            return value;
        }
        let square = multiply(value, value);
        value = _mm_crc32_u64(0, square << doubled) as u32;
    }
}

/// The instructions: copies and folds `folded` bytes, at least two blocks, and behind them copies and sums
/// six pieces of `each` bytes, a multiple of 32. Which side the words are summed of is the difference.
macro_rules! instructions {
    ($name:ident, $first:tt, $second:tt) => {
        /// Returns 0, or the address of a fault.
        ///
        /// # Safety
        /// As [`copy`].
        #[unsafe(naked)]
        unsafe extern "sysv64" fn $name(
            to: *mut u8,
            from: *const u8,
            folded: usize,
            each: usize,
            keys: &[i64; 2],
            parts: &mut Parts,
            state: u32,
        ) -> usize {
            naked_asm!(
                "vbroadcasti32x4 zmm16, xmmword ptr [r8]",
                "vmovd xmm17, dword ptr [rsp + 8]",
                "push rbx",
                "push rbp",
                "push r12",
                "push r13",
                "push r14",
                "push r9",
                // The last block that is folded, the first piece and the second one. The third and the
                // fourth are twice `each` behind these, and the last two four times.
                "lea r14, [rsi + rdx - 256]",
                "lea r10, [rsi + rdx]",
                "lea r11, [r10 + rcx]",
                "lea r12, [rdi + rdx]",
                "lea r13, [r12 + rcx]",
                "mov rdx, rcx",
                "xor eax, eax",
                "xor ebx, ebx",
                "xor ecx, ecx",
                "xor ebp, ebp",
                "xor r8d, r8d",
                "xor r9d, r9d",
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
                "vmovdqu ymm4, [r10]",
                "vmovdqu ymm5, [r11]",
                "vmovdqu ymm6, [r10 + 2*rdx]",
                "vmovdqu ymm7, [r11 + 2*rdx]",
                "vmovdqu ymm8, [r10 + 4*rdx]",
                "vmovdqu ymm9, [r11 + 4*rdx]",
                "vmovdqu [r12], ymm4",
                "vmovdqu [r13], ymm5",
                "vmovdqu [r12 + 2*rdx], ymm6",
                "vmovdqu [r13 + 2*rdx], ymm7",
                "vmovdqu [r12 + 4*rdx], ymm8",
                "vmovdqu [r13 + 4*rdx], ymm9",
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
                instructions!(word $first, $second, ""),
                instructions!(word $first, $second, " + 8"),
                instructions!(word $first, $second, " + 16"),
                instructions!(word $first, $second, " + 24"),
                // The sum of the three.
                "vpternlogq zmm0, zmm24, zmm20, 0x96",
                "vpternlogq zmm1, zmm25, zmm21, 0x96",
                "vpternlogq zmm2, zmm26, zmm22, 0x96",
                "vpternlogq zmm3, zmm27, zmm23, 0x96",
                "add r10, 32",
                "add r11, 32",
                "add r12, 32",
                "add r13, 32",
                "cmp rsi, r14",
                "jb 20b",
                "3:",
                "pop r14",
                "vmovdqu64 [r14], zmm0",
                "vmovdqu64 [r14 + 64], zmm1",
                "vmovdqu64 [r14 + 128], zmm2",
                "vmovdqu64 [r14 + 192], zmm3",
                "mov [r14 + 256], rax",
                "mov [r14 + 264], rbx",
                "mov [r14 + 272], rcx",
                "mov [r14 + 280], rbp",
                "mov [r14 + 288], r8",
                "mov [r14 + 296], r9",
                "xor eax, eax",
                "push r14",
                "4:",
                "pop r14",
                "pop r14",
                "pop r13",
                "pop r12",
                "pop rbp",
                "pop rbx",
                "vzeroupper",
                "ret",
                table_entry!(),
            )
        }
    };
    (word $first:tt, $second:tt, $offset:tt) => {
        concat!(
            "crc32 rax, qword ptr [", $first, $offset, "]\n",
            "crc32 rbx, qword ptr [", $second, $offset, "]\n",
            "crc32 rcx, qword ptr [", $first, " + 2*rdx", $offset, "]\n",
            "crc32 rbp, qword ptr [", $second, " + 2*rdx", $offset, "]\n",
            "crc32 r8, qword ptr [", $first, " + 4*rdx", $offset, "]\n",
            "crc32 r9, qword ptr [", $second, " + 4*rdx", $offset, "]"
        )
    };
}

instructions!(from_own, "r10", "r11");
instructions!(to_own, "r12", "r13");

#[cfg(test)]
mod tests {
    use super::*;

    /// On every processor that has the instructions, whether it is worth it there or not.
    #[test]
    fn the_parts_make_the_sum_of_the_whole() {
        if !super::super::wide::is_there() || !has_instructions() {
            return;
        }
        let data: Vec<u8> = (0..70_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        // From the shortest loop of the instructions on.
        for len in (BLOCK + TURN..3000)
            .chain(MIN..MIN + 2 * TURN)
            .chain([69_999])
        {
            for own in [Own::Source, Own::Target] {
                let mut to = vec![0xee; len];
                // SAFETY: there are so many bytes on both sides.
                let copied = unsafe { copy(data.as_ptr(), to.as_mut_ptr(), len, own, 7) };
                let (sum, done) = copied.unwrap();
                let mut expected = Crc(7);
                expected.update(&data[..done]);
                assert_eq!(Crc(sum), expected, "{len}");
                assert!(len - done < TURN);
                assert_eq!(to[..done], data[..done]);
                assert!(to[done..].iter().all(|&byte| byte == 0xee));
            }
        }
    }
}
