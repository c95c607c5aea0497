//! The instructions for 64-bit ARM.
//!
//! Each function returns 0, or what the handler puts into `x0` after a fault: the address. Nothing
//! but the program counter, the stack pointer, the link register and `x0` is relied on after a
//! fault.

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
            "x0",
            [
                "ldr {first}, [{from}]",
                "ldr {last}, [{last_from}]",
                "str {first}, [{to}]",
                "str {last}, [{last_to}]",
            ],
            from = in(reg) from,
            to = in(reg) to,
            last_from = in(reg) last_from,
            last_to = in(reg) last_to,
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
            "x0",
            [
                "ldr {word}, [{from}]",
                "str {word}, [{to}]",
            ],
            from = in(reg) from,
            to = in(reg) to,
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
            "x0",
            [
                "ldr {word}, [{from}]",
                "stlr {word}, [{to}]",
            ],
            from = in(reg) from,
            to = in(reg) to,
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
            "2:",
            "ldaxr {before}, [{at}]",
            "add {new}, {before}, {add}",
            "stlxr {failed:w}, {new}, [{at}]",
            "cbnz {failed:w}, 2b",
            "3:",
            "dmb ish",
            "4:",
            table_entry!(),
            at = in(reg) at,
            add = in(reg) add,
            before = out(reg) before,
            new = out(reg) _,
            failed = out(reg) _,
            inout("x0") 0usize => fault,
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
            "2:",
            "ldaxr {before}, [{at}]",
            "cmp {before}, {compare}",
            "b.ne 3f",
            "stlxr {failed:w}, {swap}, [{at}]",
            "cbnz {failed:w}, 2b",
            "3:",
            "dmb ish",
            "4:",
            table_entry!(),
            at = in(reg) at,
            compare = in(reg) compare,
            swap = in(reg) swap,
            before = out(reg) before,
            failed = out(reg) _,
            inout("x0") 0usize => fault,
            options(nostack),
        );
    }
    (fault, before)
}

guarded_stores! {
    "x0", reg;
    store_8(u64, reg): ["stlr {value:x}, [{to}]"];
    store_4(u32, reg): ["stlr {value:w}, [{to}]"];
    store_2(u16, reg): ["stlrh {value:w}, [{to}]"];
    store_1(u8, reg): ["stlrb {value:w}, [{to}]"];
}

/// Copies. Up to 128 bytes all loads are before the first store. Of more the bytes at both ends are
/// loaded before the loop and stored after it, those of the end last; the loop runs down if the target
/// is inside the source. The last byte is stored once.
///
/// # Safety
/// As [`super::copy`].
#[unsafe(naked)]
pub unsafe extern "C" fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    naked_asm!(
        "mov x3, x0",
        "mov x0, #0",
        "add x4, x1, x2",
        "add x5, x3, x2",
        "2:",
        "cmp x2, #128",
        "b.hi 26f",
        "cmp x2, #32",
        "b.hi 24f",
        "cmp x2, #16",
        "b.hs 23f",
        "cmp x2, #8",
        "b.hs 22f",
        "cmp x2, #4",
        "b.hs 20f",
        "cmp x2, #2",
        "b.lo 21f",
        // From here on the two stores are one if they are of the same bytes.
        "ldrh w6, [x1]",
        "ldrb w7, [x4, #-1]",
        "strh w6, [x3]",
        "b.eq 4f",
        "strb w7, [x5, #-1]",
        "ret",
        "21:",
        "cbz x2, 4f",
        "ldrb w6, [x1]",
        "strb w6, [x3]",
        "ret",
        "20:",
        "ldr w6, [x1]",
        "ldr w7, [x4, #-4]",
        "str w6, [x3]",
        "b.eq 4f",
        "str w7, [x5, #-4]",
        "ret",
        "22:",
        "ldr x6, [x1]",
        "ldr x7, [x4, #-8]",
        "str x6, [x3]",
        "b.eq 4f",
        "str x7, [x5, #-8]",
        "ret",
        "23:",
        "ldr q0, [x1]",
        "ldr q1, [x4, #-16]",
        "str q0, [x3]",
        "b.eq 4f",
        "str q1, [x5, #-16]",
        "ret",
        "24:",
        "cmp x2, #64",
        "b.hi 25f",
        "ldp q0, q1, [x1]",
        "ldp q2, q3, [x4, #-32]",
        "stp q0, q1, [x3]",
        "stp q2, q3, [x5, #-32]",
        "ret",
        "25:",
        "ldp q0, q1, [x1]",
        "ldp q2, q3, [x1, #32]",
        "ldp q4, q5, [x4, #-64]",
        "ldp q6, q7, [x4, #-32]",
        "stp q0, q1, [x3]",
        "stp q2, q3, [x3, #32]",
        "stp q4, q5, [x5, #-64]",
        "stp q6, q7, [x5, #-32]",
        "ret",
        "26:",
        "sub x6, x3, x1",
        "cmp x6, x2",
        "b.lo 28f",
        "ldr q16, [x1]",
        "ldp q17, q18, [x4, #-64]",
        "ldp q19, q20, [x4, #-32]",
        "sub x8, x5, #64",
        "and x6, x3, #15",
        "mov x7, #16",
        "sub x6, x7, x6",
        "add x1, x1, x6",
        "add x6, x3, x6",
        ".p2align 4",
        "27:",
        "ldp q0, q1, [x1]",
        "ldp q2, q3, [x1, #32]",
        "add x1, x1, #64",
        "stp q0, q1, [x6]",
        "stp q2, q3, [x6, #32]",
        "add x6, x6, #64",
        "cmp x6, x8",
        "b.lo 27b",
        "str q16, [x3]",
        "stp q17, q18, [x8]",
        "stp q19, q20, [x8, #32]",
        "ret",
        "28:",
        "ldr q16, [x4, #-16]",
        "ldp q17, q18, [x1]",
        "ldp q19, q20, [x1, #32]",
        "add x8, x3, #64",
        "and x6, x5, #15",
        "sub x4, x4, x6",
        "sub x6, x5, x6",
        ".p2align 4",
        "29:",
        "ldp q0, q1, [x4, #-32]",
        "ldp q2, q3, [x4, #-64]",
        "sub x4, x4, #64",
        "stp q0, q1, [x6, #-32]",
        "stp q2, q3, [x6, #-64]",
        "sub x6, x6, #64",
        "cmp x6, x8",
        "b.hi 29b",
        "stp q17, q18, [x3]",
        "stp q19, q20, [x3, #32]",
        "str q16, [x5, #-16]",
        "3:",
        "4:",
        "ret",
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
        "mov x3, x0",
        "mov x0, #0",
        "add x1, x3, x1",
        "2:",
        "ldrb w4, [x3]",
        "and x3, x3, #-4096",
        "add x3, x3, #4096",
        "cmp x3, x1",
        "b.lo 2b",
        "3:",
        "4:",
        "ret",
        table_entry!(),
    )
}
