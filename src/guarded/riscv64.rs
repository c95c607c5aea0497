//! The instructions for 64-bit RISC-V.
//!
//! Each function returns 0, or what the handler puts into `a0` after a fault: the address. Nothing
//! but the program counter, the stack pointer, the return address and `a0` is relied on after a
//! fault.
//!
//! All loads and stores are aligned. Others may be emulated by the kernel or by the firmware: that takes long, and the
//! kernel says of a fault at which instruction it was, not at which address. So bytes at any other address are loaded as
//! the one or two aligned words that have them. Such a word may begin before the bytes and end behind them, on the same
//! page.

use std::arch::{asm, naked_asm};

use super::table::{guarded_asm, guarded_stores, table_entry};

/// See [`super::copy_words`].
///
/// # Safety
/// As [`super::copy_words`].
#[inline(always)]
pub unsafe fn words(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise; a fault has an entry in the table. Of 9 to 16 bytes 16 are whole words.
    unsafe {
        if !(to.addr() | from.addr() | len).is_multiple_of(8) {
            return copy(to, from, len);
        }
        guarded_asm!(
            "a0",
            [
                "ld {first}, 0({from})",
                "ld {last}, 8({from})",
                "sd {first}, 0({to})",
                "sd {last}, 8({to})",
            ],
            from = in(reg) from,
            to = in(reg) to,
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
        if !(to.addr() | from.addr()).is_multiple_of(8) {
            return copy(to, from, 8);
        }
        guarded_asm!(
            "a0",
            [
                "ld {word}, 0({from})",
                "sd {word}, 0({to})",
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
    let word_of = |byte: *const u8| byte.map_addr(|at| at & !7);
    // SAFETY: the caller's promise; a fault has an entry in the table.
    unsafe {
        guarded_asm!(
            "a0",
            [
                // As in `load`, by which `copy` does it.
                "ld {low}, 0({low})",
                "ld {high}, 0({high})",
                "srl {low}, {low}, {shift}",
                "not {shift}, {shift}",
                "slli {high}, {high}, 1",
                "sll {high}, {high}, {shift}",
                "or {low}, {low}, {high}",
                "fence rw, w",
                "sd {low}, 0({to})",
            ],
            low = inout(reg) word_of(from) => _,
            high = inout(reg) word_of(from.wrapping_add(7)) => _,
            shift = inout(reg) from.addr() % 8 * 8 => _,
            to = in(reg) to,
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
            "amoadd.d.aqrl {before}, {add}, ({at})",
            "3:",
            "4:",
            table_entry!(),
            at = in(reg) at,
            add = in(reg) add,
            before = lateout(reg) before,
            inout("a0") 0usize => fault,
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
            "lr.d.aqrl {before}, ({at})",
            "bne {before}, {compare}, 3f",
            "sc.d.rl {failed}, {swap}, ({at})",
            "bnez {failed}, 2b",
            "3:",
            "4:",
            table_entry!(),
            at = in(reg) at,
            compare = in(reg) compare,
            swap = in(reg) swap,
            before = out(reg) before,
            failed = out(reg) _,
            inout("a0") 0usize => fault,
            options(nostack),
        );
    }
    (fault, before)
}

guarded_stores! {
    "a0", reg;
    store_8(u64, reg): ["fence rw, w", "sd {value}, 0({to})"];
    store_4(u32, reg): ["fence rw, w", "sw {value}, 0({to})"];
    store_2(u16, reg): ["fence rw, w", "sh {value}, 0({to})"];
    store_1(u8, reg): ["fence rw, w", "sb {value}, 0({to})"];
}

/// Loads so many bytes, 8 at most, from `a1` into the low ones of `t3`; changes `t4` and `t5`. The word of the first byte
/// is shifted down to it. The word of the last byte is shifted up by the rest of 64 bits, in two steps: if the bytes begin
/// with their word, that is all 64, and shifts take the low six bits of a number.
macro_rules! load {
    ($bytes:literal) => {
        concat!(
            "addi t4, a1, ",
            $bytes,
            " - 1
            andi t3, a1, -8
            andi t4, t4, -8
            ld t3, 0(t3)
            ld t4, 0(t4)
            slli t5, a1, 3
            srl t3, t3, t5
            not t5, t5
            slli t4, t4, 1
            sll t4, t4, t5
            or t3, t3, t4"
        )
    };
}

/// Copies 1, 2 or 4 bytes, if the register has the bit of this number and so many are left: behind `a1` and `a3`, or in
/// front of them. The register is `a3` to come to a multiple of 8, and then `a2`.
macro_rules! piece {
    (up, $bits:literal, $bytes:literal, $store:literal) => {
        concat!(
            piece!($bits, $bytes),
            load!($bytes),
            "\n",
            $store,
            " t3, 0(a3)\n",
            step!("", $bytes),
            "9:"
        )
    };
    (down, $bits:literal, $bytes:literal, $store:literal) => {
        concat!(
            piece!($bits, $bytes),
            step!("-", $bytes),
            load!($bytes),
            "\n",
            $store,
            " t3, 0(a3)\n",
            "9:"
        )
    };
    ($bits:literal, $bytes:literal) => {
        concat!(
            "andi t0, ",
            $bits,
            ", ",
            $bytes,
            "
            beqz t0, 9f
            sltiu t0, a2, ",
            $bytes,
            "
            bnez t0, 9f
            "
        )
    };
}

/// Goes on by so many bytes, with the sign `-` down.
macro_rules! step {
    ($sign:literal, $bytes:literal) => {
        concat!(
            "addi a1, a1, ",
            $sign,
            $bytes,
            "
            addi a3, a3, ",
            $sign,
            $bytes,
            "
            addi a2, a2, -",
            $bytes,
            "
            "
        )
    };
}

/// Copies: the bytes up to a multiple of 8 of the target, words, and the rest, so that an aligned number is stored in
/// one piece. If the target begins inside the source, it does the same from the end down; else the last byte is stored
/// last.
///
/// # Safety
/// As [`super::copy`].
#[unsafe(naked)]
pub unsafe extern "C" fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // a3: to, a1: from, a2: how much is left.
    naked_asm!(
        "mv a3, a0",
        "li a0, 0",
        "li t6, 8",
        "2:",
        "sub t0, a3, a1",
        "bltu t0, a2, 30f",
        piece!(up, "a3", "1", "sb"),
        piece!(up, "a3", "2", "sh"),
        piece!(up, "a3", "4", "sw"),
        "bltu a2, t6, 27f",
        "andi t0, a1, 7",
        "bnez t0, 25f",
        "li a6, 64",
        "bltu a2, a6, 24f",
        "23:",
        "ld t0, 0(a1)",
        "ld t1, 8(a1)",
        "ld t2, 16(a1)",
        "ld t3, 24(a1)",
        "ld t4, 32(a1)",
        "ld t5, 40(a1)",
        "ld a4, 48(a1)",
        "ld a5, 56(a1)",
        "sd t0, 0(a3)",
        "sd t1, 8(a3)",
        "sd t2, 16(a3)",
        "sd t3, 24(a3)",
        "sd t4, 32(a3)",
        "sd t5, 40(a3)",
        "sd a4, 48(a3)",
        "sd a5, 56(a3)",
        step!("", "64"),
        "bgeu a2, a6, 23b",
        "bltu a2, t6, 27f",
        "24:",
        "ld t0, 0(a1)",
        "sd t0, 0(a3)",
        step!("", "8"),
        "bgeu a2, t6, 24b",
        "j 27f",
        // Each word of the source is loaded once. t1: its address, t2: the word, t3: the next one, of which some bytes
        // are copied with it; t4 and t5: by how many bits the two are shifted.
        "25:",
        "andi t1, a1, -8",
        "slli t4, a1, 3",
        "neg t5, t4",
        "ld t2, 0(t1)",
        "26:",
        "ld t3, 8(t1)",
        "addi t1, t1, 8",
        "srl t2, t2, t4",
        "sll a4, t3, t5",
        "or t2, t2, a4",
        "sd t2, 0(a3)",
        "mv t2, t3",
        step!("", "8"),
        "bgeu a2, t6, 26b",
        "27:",
        piece!(up, "a2", "4", "sw"),
        piece!(up, "a2", "2", "sh"),
        piece!(up, "a2", "1", "sb"),
        "ret",
        "30:",
        "add a1, a1, a2",
        "add a3, a3, a2",
        piece!(down, "a3", "1", "sb"),
        piece!(down, "a3", "2", "sh"),
        piece!(down, "a3", "4", "sw"),
        "bltu a2, t6, 32f",
        "31:",
        step!("-", "8"),
        load!("8"),
        "sd t3, 0(a3)",
        "bgeu a2, t6, 31b",
        "32:",
        piece!(down, "a2", "4", "sw"),
        piece!(down, "a2", "2", "sh"),
        piece!(down, "a2", "1", "sb"),
        "3:",
        "4:",
        "ret",
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
        "mv a2, a0",
        "li a0, 0",
        "add a1, a2, a1",
        "lui a3, 0xfffff", // -4096
        "2:",
        "lbu a4, 0(a2)",
        "and a2, a2, a3",
        "sub a2, a2, a3",
        "bltu a2, a1, 2b",
        "3:",
        "4:",
        "ret",
        table_entry!(),
    )
}
