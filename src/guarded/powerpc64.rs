//! The instructions for 64-bit POWER, little-endian (ELFv2).
//!
//! Each function returns 0, or what the handler puts into `r3` after a fault: the address. Nothing
//! but the program counter, the stack pointer, the TOC pointer, the link register and `r3` is relied
//! on after a fault.

use std::arch::{asm, naked_asm};

use super::table::{guarded_asm, guarded_stores, table_entry};

/// See [`super::copy_words`].
///
/// # Safety
/// As [`super::copy_words`].
#[inline(always)]
pub unsafe fn words(to: *mut u8, from: *const u8, len: usize) -> usize {
    let (last_from, last_to) = (from.wrapping_add(len - 8), to.wrapping_add(len - 8));
    // SAFETY: the caller's promise; a fault has an entry in the table.
    unsafe {
        guarded_asm!(
            "r3",
            [
                "ld {first}, 0({from})",
                "ld {last}, 0({last_from})",
                "std {first}, 0({to})",
                "std {last}, 0({last_to})",
            ],
            from = in(reg_nonzero) from,
            to = in(reg_nonzero) to,
            last_from = in(reg_nonzero) last_from,
            last_to = in(reg_nonzero) last_to,
            first = out(reg) _,
            last = out(reg) _,
        )
    }
}

/// See [`super::copy_words`]: eight bytes.
///
/// # Safety
/// As [`super::copy_words`].
#[inline(always)]
pub unsafe fn word(to: *mut u8, from: *const u8) -> usize {
    // SAFETY: the caller's promise; a fault has an entry in the table.
    unsafe {
        guarded_asm!(
            "r3",
            [
                "ld {word}, 0({from})",
                "std {word}, 0({to})",
            ],
            from = in(reg_nonzero) from,
            to = in(reg_nonzero) to,
            word = out(reg) _,
        )
    }
}

/// See [`super::copy_aligned_word`].
///
/// # Safety
/// As [`super::copy_aligned_word`].
#[inline(always)]
pub unsafe fn aligned_word(to: *mut u8, from: *const u8) -> usize {
    // SAFETY: the caller's promise; a fault has an entry in the table.
    unsafe {
        guarded_asm!(
            "r3",
            [
                "ld {word}, 0({from})",
                "lwsync",
                "std {word}, 0({to})",
            ],
            from = in(reg_nonzero) from,
            to = in(reg_nonzero) to,
            word = out(reg) _,
        )
    }
}

/// See [`super::fetch_add`]: the address of the fault or 0, and the word as it was before.
///
/// # Safety
/// As [`super::fetch_add`].
pub unsafe fn fetch_add(at: *mut u8, add: u64) -> (usize, u64) {
    let (fault, before): (usize, u64);
    // SAFETY: the caller's promise; a fault has an entry in the table.
    unsafe {
        asm!(
            "sync",
            "2:",
            "ldarx {before}, 0, {at}",
            "add {new}, {before}, {add}",
            "stdcx. {new}, 0, {at}",
            "bne- 2b",
            "3:",
            "sync",
            "4:",
            table_entry!(),
            at = in(reg) at,
            add = in(reg) add,
            before = out(reg) before,
            new = out(reg) _,
            inout("r3") 0usize => fault,
            out("cr0") _,
            options(nostack),
        );
    }
    (fault, before)
}

/// See [`super::compare_swap`]: the address of the fault or 0, and the word as it was before.
///
/// # Safety
/// As [`super::compare_swap`].
pub unsafe fn compare_swap(at: *mut u8, compare: u64, swap: u64) -> (usize, u64) {
    let (fault, before): (usize, u64);
    // SAFETY: the caller's promise; a fault has an entry in the table.
    unsafe {
        asm!(
            "sync",
            "2:",
            "ldarx {before}, 0, {at}",
            "cmpd {before}, {compare}",
            "bne- 3f",
            "stdcx. {swap}, 0, {at}",
            "bne- 2b",
            "3:",
            "sync",
            "4:",
            table_entry!(),
            at = in(reg) at,
            compare = in(reg) compare,
            swap = in(reg) swap,
            before = out(reg) before,
            inout("r3") 0usize => fault,
            out("cr0") _,
            options(nostack),
        );
    }
    (fault, before)
}

guarded_stores! {
    "r3", reg_nonzero;
    store_8(u64, reg): ["lwsync", "std {value}, 0({to})"];
    store_4(u32, reg): ["lwsync", "stw {value}, 0({to})"];
    store_2(u16, reg): ["lwsync", "sth {value}, 0({to})"];
    store_1(u8, reg): ["lwsync", "stb {value}, 0({to})"];
}

/// Copies. Up to 64 bytes all loads are before the first store. Of more the 64 bytes at the end are loaded before
/// the loop and stored after it; if the target is inside the source, those at the beginning, and the loop runs down.
/// The last byte is stored once.
///
/// # Safety
/// As [`super::copy`].
#[unsafe(naked)]
pub unsafe extern "C" fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    naked_asm!(
        "mr 6, 3",
        "li 3, 0",
        "add 7, 4, 5",
        "add 8, 6, 5",
        // Distances from the registers above, for the instructions that take no constant.
        "li 9, 16",
        "li 10, -32",
        "li 11, -16",
        "2:",
        "cmpldi 5, 64",
        "bgt 25f",
        "cmpldi 5, 32",
        "bgt 24f",
        "cmpldi 5, 16",
        "bge 23f",
        "cmpldi 5, 8",
        "bge 22f",
        "cmpldi 5, 4",
        "bge 20f",
        "cmpldi 5, 2",
        "blt 21f",
        // From here on the two stores are one if they are of the same bytes.
        "lhz 9, 0(4)",
        "lbz 10, -1(7)",
        "sth 9, 0(6)",
        "beq 4f",
        "stb 10, -1(8)",
        "blr",
        "21:",
        "cmpldi 5, 0",
        "beq 4f",
        "lbz 9, 0(4)",
        "stb 9, 0(6)",
        "blr",
        "20:",
        "lwz 9, 0(4)",
        "lwz 10, -4(7)",
        "stw 9, 0(6)",
        "beq 4f",
        "stw 10, -4(8)",
        "blr",
        "22:",
        "ld 9, 0(4)",
        "ld 10, -8(7)",
        "std 9, 0(6)",
        "beq 4f",
        "std 10, -8(8)",
        "blr",
        "23:",
        "lxvd2x 0, 0, 4",
        "lxvd2x 1, 7, 11",
        "stxvd2x 0, 0, 6",
        "beq 4f",
        "stxvd2x 1, 8, 11",
        "blr",
        "24:",
        "lxvd2x 0, 0, 4",
        "lxvd2x 1, 4, 9",
        "lxvd2x 2, 7, 10",
        "lxvd2x 3, 7, 11",
        "stxvd2x 0, 0, 6",
        "stxvd2x 1, 6, 9",
        "stxvd2x 2, 8, 10",
        "stxvd2x 3, 8, 11",
        "blr",
        "25:",
        "li 10, 32",
        "li 11, 48",
        "addi 7, 7, -64",
        "addi 8, 8, -64",
        "sub 12, 6, 4",
        "cmpld 12, 5",
        "blt 27f",
        "lxvd2x 4, 0, 7",
        "lxvd2x 5, 7, 9",
        "lxvd2x 6, 7, 10",
        "lxvd2x 7, 7, 11",
        ".p2align 4",
        "26:",
        "lxvd2x 0, 0, 4",
        "lxvd2x 1, 4, 9",
        "lxvd2x 2, 4, 10",
        "lxvd2x 3, 4, 11",
        "addi 4, 4, 64",
        "stxvd2x 0, 0, 6",
        "stxvd2x 1, 6, 9",
        "stxvd2x 2, 6, 10",
        "stxvd2x 3, 6, 11",
        "addi 6, 6, 64",
        "cmpld 6, 8",
        "blt 26b",
        "stxvd2x 4, 0, 8",
        "stxvd2x 5, 8, 9",
        "stxvd2x 6, 8, 10",
        "stxvd2x 7, 8, 11",
        "blr",
        "27:",
        "lxvd2x 4, 0, 4",
        "lxvd2x 5, 4, 9",
        "lxvd2x 6, 4, 10",
        "lxvd2x 7, 4, 11",
        ".p2align 4",
        "28:",
        "lxvd2x 0, 0, 7",
        "lxvd2x 1, 7, 9",
        "lxvd2x 2, 7, 10",
        "lxvd2x 3, 7, 11",
        "addi 7, 7, -64",
        "stxvd2x 0, 0, 8",
        "stxvd2x 1, 8, 9",
        "stxvd2x 2, 8, 10",
        "stxvd2x 3, 8, 11",
        "addi 8, 8, -64",
        "cmpld 8, 6",
        "bgt 28b",
        "stxvd2x 4, 0, 6",
        "stxvd2x 5, 6, 9",
        "stxvd2x 6, 6, 10",
        "stxvd2x 7, 6, 11",
        "3:",
        "4:",
        "blr",
        table_entry!(),
    )
}

/// Reads a byte of each page of a range of at least one byte. A page has 4096 bytes or a multiple.
///
/// # Safety
/// None; as the other functions.
#[unsafe(naked)]
pub unsafe extern "C" fn read_pages(at: *const u8, len: usize) -> usize {
    naked_asm!(
        "mr 5, 3",
        "li 3, 0",
        "add 4, 5, 4",
        "2:",
        "lbz 6, 0(5)",
        "rldicr 5, 5, 0, 51",
        "addi 5, 5, 4096",
        "cmpld 5, 4",
        "blt 2b",
        "3:",
        "4:",
        "blr",
        table_entry!(),
    )
}
