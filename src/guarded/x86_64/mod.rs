//! The instructions for x86-64.
//!
//! Each function returns 0, or what the handler puts into `rax` after a fault: the address. Nothing
//! but the program counter, the stack pointer and `rax` is relied on after a fault, since valgrind
//! keeps no other register up to date.

mod copies;

use std::arch::{asm, naked_asm};

use super::table::{guarded_asm, guarded_stores, table_entry};

#[cfg(test)]
pub use self::copies::long_ways;
pub use self::copies::{copy, copy_for_peer, fetches_nothing};

/// See [`super::copy_words`].
///
/// # Safety
/// As [`super::copy_words`].
#[inline(always)]
pub unsafe fn words(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise; a fault has an entry in the table.
    unsafe {
        guarded_asm!(
            "rax",
            [
                "mov {first}, qword ptr [{from}]",
                "mov {last}, qword ptr [{from} + {len} - 8]",
                "mov qword ptr [{to}], {first}",
                "mov qword ptr [{to} + {len} - 8], {last}",
            ],
            from = in(reg) from,
            to = in(reg) to,
            len = in(reg) len,
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
    // SAFETY: the caller's promise. The instructions take any address.
    unsafe { aligned_word(to, from) }
}

/// See [`super::copy_aligned_word`].
///
/// # Safety
/// As [`super::copy_aligned_word`].
#[inline(always)]
pub unsafe fn aligned_word(to: *mut u8, from: *const u8) -> usize {
    // SAFETY: the caller's promise; a fault has an entry in the table. A store is never visible
    // before an earlier one.
    unsafe {
        guarded_asm!(
            "rax",
            [
                "mov {word}, qword ptr [{from}]",
                "mov qword ptr [{to}], {word}",
            ],
            from = in(reg) from,
            to = in(reg) to,
            word = out(reg) _,
        )
    }
}

guarded_stores! {
    // A store is never visible before an earlier one.
    "rax", reg;
    store_8(u64, reg): ["mov qword ptr [{to}], {value}"];
    store_4(u32, reg): ["mov dword ptr [{to}], {value:e}"];
    store_2(u16, reg): ["mov word ptr [{to}], {value:x}"];
    store_1(u8, reg_byte): ["mov byte ptr [{to}], {value}"];
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
            "lock xadd qword ptr [{at}], {word}",
            "3:",
            "4:",
            table_entry!(),
            at = in(reg) at,
            word = inout(reg) add => before,
            inout("rax") 0usize => fault,
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
    // SAFETY: the caller's promise; a fault has an entry in the table. The instruction has the word
    // in `rax`, where a fault is reported.
    unsafe {
        asm!(
            "2:",
            "lock cmpxchg qword ptr [{at}], {swap}",
            "3:",
            "mov {before}, rax",
            "xor eax, eax",
            "4:",
            table_entry!(),
            at = in(reg) at,
            swap = in(reg) swap,
            before = out(reg) before,
            inout("rax") compare => fault,
            options(nostack),
        );
    }
    (fault, before)
}

/// Whether the first and the last byte of a range of at least one byte can be read. A part of posts, so that it needs
/// no register but `rax`, and nothing is tested where all is as usual.
///
/// # Safety
/// None; as the other functions.
#[inline(always)]
pub unsafe fn are_ends_readable(at: *const u8, len: usize) -> bool {
    // SAFETY: nothing is written; a fault has an entry in the table, and goes on at the block.
    unsafe {
        asm!(
            "2:",
            "cmp byte ptr [rax], 0",
            "cmp byte ptr [rax + {len} - 1], 0",
            "3:",
            table_entry!("{fault}"),
            len = in(reg) len,
            fault = label { return false },
            inout("rax") at => _,
            options(nostack, readonly),
        );
    }
    true
}

/// Reads a byte of each page of a range of at least one byte.
///
/// # Safety
/// None; as the other functions.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn read_pages(at: *const u8, len: usize) -> usize {
    naked_asm!(
        "xor eax, eax",
        "add rsi, rdi",
        "2:",
        "movzx ecx, byte ptr [rdi]",
        "and rdi, -4096",
        "add rdi, 4096",
        "cmp rdi, rsi",
        "jb 2b",
        "3:",
        "4:",
        "ret",
        table_entry!(),
    )
}
