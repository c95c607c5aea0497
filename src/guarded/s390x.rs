//! The instructions for z/Architecture.
//!
//! Each function returns 0, or what the handler puts into `r2` after a fault: the address of the page. Nothing but
//! the program counter, the stack pointer, the return address and `r2` is relied on after a fault.
//!
//! The stores of a processor are seen by others in their order.

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
            "r2",
            [
                "lg {first}, 0({from})",
                "lg {last}, 0({last_from})",
                "stg {first}, 0({to})",
                "stg {last}, 0({last_to})",
            ],
            from = in(reg_addr) from,
            to = in(reg_addr) to,
            last_from = in(reg_addr) last_from,
            last_to = in(reg_addr) last_to,
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
            "r2",
            [
                "lg {word}, 0({from})",
                "stg {word}, 0({to})",
            ],
            from = in(reg_addr) from,
            to = in(reg_addr) to,
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
    // SAFETY: the caller's promise. To an aligned address it is one store.
    unsafe { word(to, from) }
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
            "lg {before}, 0({at})",
            "5:",
            "lgr {new}, {before}",
            "agr {new}, {add}",
            "csg {before}, {new}, 0({at})",
            "jl 5b",
            "3:",
            "4:",
            table_entry!(),
            at = in(reg_addr) at,
            add = in(reg) add,
            before = out(reg) before,
            new = out(reg) _,
            inout("r2") 0usize => fault,
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
            "csg {before}, {swap}, 0({at})",
            "3:",
            "4:",
            table_entry!(),
            at = in(reg_addr) at,
            swap = in(reg) swap,
            before = inout(reg) compare => before,
            inout("r2") 0usize => fault,
            options(nostack),
        );
    }
    (fault, before)
}

guarded_stores! {
    "r2", reg_addr;
    store_8(u64, reg): ["stg {value}, 0({to})"];
    store_4(u32, reg): ["st {value}, 0({to})"];
    store_2(u16, reg): ["sth {value}, 0({to})"];
    store_1(u8, reg): ["stc {value}, 0({to})"];
}

/// Copies. Up to 32 bytes all loads are before the first store. Of more the 32 bytes at the end are loaded before
/// the loop and stored after it; if the target is inside the source, those at the beginning, and the loop runs down.
/// The last byte is stored once.
///
/// # Safety
/// As [`super::copy`].
#[unsafe(naked)]
pub unsafe extern "C" fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // r1: to, r3: from, r4: len, r5: the end of from, then how much is left; the words are in floating-point registers.
    naked_asm!(
        "lgr %r1, %r2",
        "lghi %r2, 0",
        "2:",
        "clgfi %r4, 32",
        "jh 25f",
        "clgfi %r4, 16",
        "jh 24f",
        "clgfi %r4, 8",
        "jhe 23f",
        "clgfi %r4, 4",
        "jhe 22f",
        "clgfi %r4, 2",
        "jl 21f",
        // From here on the two stores are one if they are of the same bytes.
        "llgh %r0, 0(%r3)",
        "llgc %r3, -1(%r4, %r3)",
        "sth %r0, 0(%r1)",
        "je 4f",
        "stcy %r3, -1(%r4, %r1)",
        "br %r14",
        "21:",
        "clgfi %r4, 0",
        "je 4f",
        "llgc %r0, 0(%r3)",
        "stc %r0, 0(%r1)",
        "br %r14",
        "22:",
        "l %r0, 0(%r3)",
        "ly %r3, -4(%r4, %r3)",
        "st %r0, 0(%r1)",
        "je 4f",
        "sty %r3, -4(%r4, %r1)",
        "br %r14",
        "23:",
        "lg %r0, 0(%r3)",
        "lg %r3, -8(%r4, %r3)",
        "stg %r0, 0(%r1)",
        "je 4f",
        "stg %r3, -8(%r4, %r1)",
        "br %r14",
        "24:",
        "ld %f0, 0(%r3)",
        "ld %f1, 8(%r3)",
        "ldy %f2, -16(%r4, %r3)",
        "ldy %f3, -8(%r4, %r3)",
        "std %f0, 0(%r1)",
        "std %f1, 8(%r1)",
        "stdy %f2, -16(%r4, %r1)",
        "stdy %f3, -8(%r4, %r1)",
        "br %r14",
        "25:",
        "lgr %r5, %r1",
        "sgr %r5, %r3",
        "clgr %r5, %r4",
        "jl 27f",
        "ldy %f4, -32(%r4, %r3)",
        "ldy %f5, -24(%r4, %r3)",
        "ldy %f6, -16(%r4, %r3)",
        "ldy %f7, -8(%r4, %r3)",
        // r5: where the last 32 bytes go.
        "lay %r5, -32(%r4, %r1)",
        "26:",
        "ld %f0, 0(%r3)",
        "ld %f1, 8(%r3)",
        "ld %f2, 16(%r3)",
        "ld %f3, 24(%r3)",
        "la %r3, 32(%r3)",
        "std %f0, 0(%r1)",
        "std %f1, 8(%r1)",
        "std %f2, 16(%r1)",
        "std %f3, 24(%r1)",
        "la %r1, 32(%r1)",
        "clgr %r1, %r5",
        "jl 26b",
        "std %f4, 0(%r5)",
        "std %f5, 8(%r5)",
        "std %f6, 16(%r5)",
        "std %f7, 24(%r5)",
        "br %r14",
        "27:",
        "ld %f4, 0(%r3)",
        "ld %f5, 8(%r3)",
        "ld %f6, 16(%r3)",
        "ld %f7, 24(%r3)",
        // r4: how much is left.
        "28:",
        "ldy %f0, -32(%r4, %r3)",
        "ldy %f1, -24(%r4, %r3)",
        "ldy %f2, -16(%r4, %r3)",
        "ldy %f3, -8(%r4, %r3)",
        "stdy %f0, -32(%r4, %r1)",
        "stdy %f1, -24(%r4, %r1)",
        "stdy %f2, -16(%r4, %r1)",
        "stdy %f3, -8(%r4, %r1)",
        "aghi %r4, -32",
        "clgfi %r4, 32",
        "jh 28b",
        "std %f4, 0(%r1)",
        "std %f5, 8(%r1)",
        "std %f6, 16(%r1)",
        "std %f7, 24(%r1)",
        "3:",
        "4:",
        "br %r14",
        table_entry!(),
    )
}

/// Reads a byte of each page of a range of at least one byte.
///
/// # Safety
/// None; as the other functions.
#[unsafe(naked)]
pub unsafe extern "C" fn read_pages(at: *const u8, len: usize) -> usize {
    naked_asm!(
        "lgr %r1, %r2",
        "lghi %r2, 0",
        "agr %r3, %r1",
        "2:",
        "llgc %r0, 0(%r1)",
        "nill %r1, 0xf000",
        "aghi %r1, 4096",
        "clgr %r1, %r3",
        "jl 2b",
        "3:",
        "4:",
        "br %r14",
        table_entry!(),
    )
}
