//! Copies of any length, as the processor makes them fastest.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::arch::{is_x86_feature_detected, naked_asm};

use crate::guarded::table::table_entry;

/// From this length on `rep movsb` is the fastest copy, on processors that have a fast one: it
/// fetches no lines that it overwrites wholly. Below, it takes longer to begin than that saves. The C
/// library begins at the same length where vectors have 512 bits.
const REP_MIN: usize = 8192;

/// The same of a copy for a peer, on processors where a short one begins fast as well.
const PEER_REP_MIN: usize = 2048;

/// The longest copy of [`copy_short`].
const SHORT: usize = 128;

/// Bytes at the end of a copy with `rep movsb` that are stored after all others, and leave the rest whole cache
/// lines if the copy is.
const TAIL: usize = 64;

/// See [`crate::guarded::copy`].
///
/// # Safety
/// As [`crate::guarded::copy`].
#[inline(always)]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        if len <= SHORT {
            copy_short(to, from, len)
        } else {
            copy_long(to, from, len)
        }
    }
}

/// See [`crate::guarded::copy_for_peer`].
///
/// # Safety
/// As [`crate::guarded::copy`].
#[inline(always)]
pub unsafe fn copy_for_peer(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise, and the processor has the instruction.
    unsafe {
        if fetches_nothing(len) && is_rep_good(to, from, len) {
            copy_rep(to, from, len)
        } else {
            copy(to, from, len)
        }
    }
}

/// See [`crate::guarded::fetches_nothing`].
#[inline(always)]
pub fn fetches_nothing(len: usize) -> bool {
    len >= PEER_REP_MIN && has_fast_short_rep()
}

/// Whether the processor begins a short `rep movsb` fast (FSRM).
#[inline(never)]
fn has_fast_short_rep() -> bool {
    use std::sync::atomic::{AtomicU8, Ordering};
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANSWER.load(Ordering::Relaxed) {
        UNKNOWN => {
            // Leaf 7, EDX bit 4.
            #[allow(unused_unsafe)] // The two are safe to call in later versions of Rust.
            // SAFETY: each x86-64 processor has the instruction.
            let has = unsafe { __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & 1 << 4 != 0 };
            ANSWER.store(if has { YES } else { NO }, Ordering::Relaxed);
            has
        }
        answer => answer == YES,
    }
}

/// Copies more than [`SHORT`] bytes, as well as the processor can.
///
/// # Safety
/// As [`crate::guarded::copy`].
#[inline(never)]
unsafe fn copy_long(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise, and the processor has the instructions.
    unsafe {
        if !is_x86_feature_detected!("avx") {
            copy_sse(to, from, len)
        } else if len >= REP_MIN && is_rep_good(to, from, len) {
            // The instruction stores in any order.
            let rest = len - TAIL;
            match copy_rep(to, from, rest) {
                0 => copy_short(to.wrapping_add(rest), from.wrapping_add(rest), TAIL),
                fault => fault,
            }
        } else {
            copy_avx(to, from, len)
        }
    }
}

/// Whether to copy with `rep movsb`.
fn is_rep_good(to: *mut u8, from: *const u8, len: usize) -> bool {
    /// A target so many bytes behind the source, but for whole pages, is slow to copy to: the
    /// processor takes a load of the source for one that depends on the stores.
    const ALIASING: usize = 256;
    let apart = to.addr().abs_diff(from.addr()) >= len;
    let ahead = to.addr().wrapping_sub(from.addr()) % 4096;
    apart && !(1..ALIASING).contains(&ahead) && is_x86_feature_detected!("ermsb")
}

/// Copies at most [`SHORT`] bytes; all loads are before the first store. The last byte is stored once, after the others.
///
/// # Safety
/// As [`crate::guarded::copy`].
#[unsafe(naked)]
unsafe extern "sysv64" fn copy_short(to: *mut u8, from: *const u8, len: usize) -> usize {
    naked_asm!(
        "xor eax, eax",
        "2:",
        "cmp edx, 32",
        "ja 24f",
        "cmp edx, 16",
        "jae 23f",
        "cmp edx, 8",
        "jae 22f",
        "cmp edx, 4",
        "jae 20f",
        "cmp edx, 2",
        "jb 21f",
        // From here on the two stores are one if they are of the same bytes.
        "movzx ecx, word ptr [rsi]",
        "movzx r8d, byte ptr [rsi + rdx - 1]",
        "mov word ptr [rdi], cx",
        "je 4f",
        "mov byte ptr [rdi + rdx - 1], r8b",
        "ret",
        "21:",
        "test edx, edx",
        "je 4f",
        "movzx ecx, byte ptr [rsi]",
        "mov byte ptr [rdi], cl",
        "ret",
        "20:",
        "mov ecx, dword ptr [rsi]",
        "mov r8d, dword ptr [rsi + rdx - 4]",
        "mov dword ptr [rdi], ecx",
        "je 4f",
        "mov dword ptr [rdi + rdx - 4], r8d",
        "ret",
        "22:",
        "mov rcx, qword ptr [rsi]",
        "mov r8, qword ptr [rsi + rdx - 8]",
        "mov qword ptr [rdi], rcx",
        "je 4f",
        "mov qword ptr [rdi + rdx - 8], r8",
        "ret",
        "23:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "je 4f",
        "movups [rdi + rdx - 16], xmm1",
        "ret",
        "24:",
        "cmp edx, 64",
        "ja 25f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + rdx - 32]",
        "movups xmm3, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + rdx - 32], xmm2",
        "movups [rdi + rdx - 16], xmm3",
        "ret",
        "25:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups xmm4, [rsi + rdx - 64]",
        "movups xmm5, [rsi + rdx - 48]",
        "movups xmm6, [rsi + rdx - 32]",
        "movups xmm7, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "movups [rdi + rdx - 64], xmm4",
        "movups [rdi + rdx - 48], xmm5",
        "movups [rdi + rdx - 32], xmm6",
        "movups [rdi + rdx - 16], xmm7",
        "3:",
        "4:",
        "ret",
        table_entry!(),
    )
}

/// Copies more than 64 bytes in registers of 16 bytes.
///
/// The bytes at both ends, which need not be aligned, are loaded before the loop and stored after
/// it, those of the end last. The loop runs down if the target is inside the source.
///
/// # Safety
/// As [`crate::guarded::copy`].
#[unsafe(naked)]
unsafe extern "sysv64" fn copy_sse(to: *mut u8, from: *const u8, len: usize) -> usize {
    naked_asm!(
        "xor eax, eax",
        "mov rcx, rdi",
        "sub rcx, rsi",
        "2:",
        "cmp rcx, rdx",
        "jb 22f",
        "movups xmm4, [rsi]",
        "movups xmm5, [rsi + rdx - 64]",
        "movups xmm6, [rsi + rdx - 48]",
        "movups xmm7, [rsi + rdx - 32]",
        "movups xmm8, [rsi + rdx - 16]",
        "mov r10, rdi",
        "lea r8, [rdi + rdx - 64]",
        "mov rcx, rdi",
        "and ecx, 15",
        "sub rcx, 16",
        "sub rsi, rcx",
        "sub rdi, rcx",
        "cmp rdi, r8",
        "jae 25f",
        ".p2align 5",
        "20:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "add rsi, 64",
        "movaps [rdi], xmm0",
        "movaps [rdi + 16], xmm1",
        "movaps [rdi + 32], xmm2",
        "movaps [rdi + 48], xmm3",
        "add rdi, 64",
        "cmp rdi, r8",
        "jb 20b",
        "25:",
        "movups [r10], xmm4",
        "movups [r8], xmm5",
        "movups [r8 + 16], xmm6",
        "movups [r8 + 32], xmm7",
        "movups [r8 + 48], xmm8",
        "ret",
        "22:",
        "movups xmm4, [rsi + rdx - 16]",
        "movups xmm5, [rsi]",
        "movups xmm6, [rsi + 16]",
        "movups xmm7, [rsi + 32]",
        "movups xmm8, [rsi + 48]",
        "lea r8, [rdi + 64]",
        "lea r9, [rdi + rdx]",
        "lea r11, [rsi + rdx]",
        "mov r10, r9",
        "mov rcx, r9",
        "and ecx, 15",
        "sub r9, rcx",
        "sub r11, rcx",
        "cmp r9, r8",
        "jbe 24f",
        ".p2align 5",
        "23:",
        "movups xmm0, [r11 - 16]",
        "movups xmm1, [r11 - 32]",
        "movups xmm2, [r11 - 48]",
        "movups xmm3, [r11 - 64]",
        "sub r11, 64",
        "movaps [r9 - 16], xmm0",
        "movaps [r9 - 32], xmm1",
        "movaps [r9 - 48], xmm2",
        "movaps [r9 - 64], xmm3",
        "sub r9, 64",
        "cmp r9, r8",
        "ja 23b",
        "24:",
        "movups [rdi], xmm5",
        "movups [rdi + 16], xmm6",
        "movups [rdi + 32], xmm7",
        "movups [rdi + 48], xmm8",
        "movups [r10 - 16], xmm4",
        "3:",
        "4:",
        "ret",
        table_entry!(),
    )
}

/// Copies 128 bytes or more in registers of 32 bytes, as [`copy_sse`] does.
///
/// # Safety
/// As [`crate::guarded::copy`]; the processor has AVX.
#[unsafe(naked)]
unsafe extern "sysv64" fn copy_avx(to: *mut u8, from: *const u8, len: usize) -> usize {
    naked_asm!(
        "xor eax, eax",
        "mov rcx, rdi",
        "sub rcx, rsi",
        "2:",
        "cmp rcx, rdx",
        "jb 22f",
        "vmovdqu ymm4, [rsi]",
        "vmovdqu ymm5, [rsi + rdx - 128]",
        "vmovdqu ymm6, [rsi + rdx - 96]",
        "vmovdqu ymm7, [rsi + rdx - 64]",
        "vmovdqu ymm8, [rsi + rdx - 32]",
        "mov r10, rdi",
        "lea r8, [rdi + rdx - 128]",
        "mov rcx, rdi",
        "and ecx, 31",
        "sub rcx, 32",
        "sub rsi, rcx",
        "sub rdi, rcx",
        "cmp rdi, r8",
        "jae 25f",
        ".p2align 5",
        "20:",
        "vmovdqu ymm0, [rsi]",
        "vmovdqu ymm1, [rsi + 32]",
        "vmovdqu ymm2, [rsi + 64]",
        "vmovdqu ymm3, [rsi + 96]",
        "sub rsi, -128",
        "vmovdqa [rdi], ymm0",
        "vmovdqa [rdi + 32], ymm1",
        "vmovdqa [rdi + 64], ymm2",
        "vmovdqa [rdi + 96], ymm3",
        "sub rdi, -128",
        "cmp rdi, r8",
        "jb 20b",
        "25:",
        "vmovdqu [r10], ymm4",
        "vmovdqu [r8], ymm5",
        "vmovdqu [r8 + 32], ymm6",
        "vmovdqu [r8 + 64], ymm7",
        "vmovdqu [r8 + 96], ymm8",
        "vzeroupper",
        "ret",
        "22:",
        "vmovdqu ymm4, [rsi + rdx - 32]",
        "vmovdqu ymm5, [rsi]",
        "vmovdqu ymm6, [rsi + 32]",
        "vmovdqu ymm7, [rsi + 64]",
        "vmovdqu ymm8, [rsi + 96]",
        "lea r8, [rdi + 128]",
        "lea r9, [rdi + rdx]",
        "lea r11, [rsi + rdx]",
        "mov r10, r9",
        "mov rcx, r9",
        "and ecx, 31",
        "sub r9, rcx",
        "sub r11, rcx",
        "cmp r9, r8",
        "jbe 24f",
        ".p2align 5",
        "23:",
        "vmovdqu ymm0, [r11 - 32]",
        "vmovdqu ymm1, [r11 - 64]",
        "vmovdqu ymm2, [r11 - 96]",
        "vmovdqu ymm3, [r11 - 128]",
        "add r11, -128",
        "vmovdqa [r9 - 32], ymm0",
        "vmovdqa [r9 - 64], ymm1",
        "vmovdqa [r9 - 96], ymm2",
        "vmovdqa [r9 - 128], ymm3",
        "add r9, -128",
        "cmp r9, r8",
        "ja 23b",
        "24:",
        "vmovdqu [rdi], ymm5",
        "vmovdqu [rdi + 32], ymm6",
        "vmovdqu [rdi + 64], ymm7",
        "vmovdqu [rdi + 96], ymm8",
        "vmovdqu [r10 - 32], ymm4",
        "3:",
        "4:",
        "vzeroupper",
        "ret",
        table_entry!(),
    )
}

/// Copies 64 bytes or more with `rep movsb`, from an aligned target address on; the ranges do not
/// overlap. Later stores are not visible before those of the instruction.
///
/// # Safety
/// As [`crate::guarded::copy`].
#[unsafe(naked)]
unsafe extern "sysv64" fn copy_rep(to: *mut u8, from: *const u8, len: usize) -> usize {
    naked_asm!(
        "xor eax, eax",
        "2:",
        "mov rcx, rdi",
        "and ecx, 63",
        "jz 20f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "mov r10, rdi",
        "sub rcx, 64",
        "sub rsi, rcx",
        "sub rdi, rcx",
        "add rcx, rdx",
        "rep movsb",
        "movups [r10], xmm0",
        "movups [r10 + 16], xmm1",
        "movups [r10 + 32], xmm2",
        "movups [r10 + 48], xmm3",
        "ret",
        "20:",
        "mov rcx, rdx",
        "rep movsb",
        "3:",
        "4:",
        "ret",
        table_entry!(),
    )
}

/// A function that copies.
#[cfg(test)]
type Way = unsafe extern "sysv64" fn(*mut u8, *const u8, usize) -> usize;

/// The ways of a copy of more than [`SHORT`] bytes, and whether the ranges may overlap.
#[cfg(test)]
pub fn long_ways() -> Vec<(Way, bool)> {
    let mut ways: Vec<(Way, bool)> = vec![(copy_sse, true), (copy_rep, false)];
    if is_x86_feature_detected!("avx") {
        ways.push((copy_avx, true));
    }
    ways
}
