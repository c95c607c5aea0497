//! The instructions for 32-bit x86, with SSE2.
//!
//! Each function returns 0, or what the handler puts into `eax` after a fault: the address. Nothing
//! but the program counter, the stack pointer and `eax` is relied on after a fault, since valgrind
//! keeps no other register up to date.

use std::arch::naked_asm;

use super::table::{guarded_asm, guarded_stores, table_entry};

/// See [`super::copy_words`].
///
/// # Safety
/// As [`super::copy_words`].
#[inline(always)]
pub unsafe fn words(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise; a fault has an entry in the table.
    unsafe {
        guarded_asm!(
            "eax",
            [
                "movq {first}, qword ptr [{from}]",
                "movq {last}, qword ptr [{from} + {len} - 8]",
                "movq qword ptr [{to}], {first}",
                "movq qword ptr [{to} + {len} - 8], {last}",
            ],
            from = in(reg) from,
            to = in(reg) to,
            len = in(reg) len,
            first = out(xmm_reg) _,
            last = out(xmm_reg) _,
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
    // before an earlier one, and one of eight aligned bytes is never seen in parts.
    unsafe {
        guarded_asm!(
            "eax",
            [
                "movq {word}, qword ptr [{from}]",
                "movq qword ptr [{to}], {word}",
            ],
            from = in(reg) from,
            to = in(reg) to,
            word = out(xmm_reg) _,
        )
    }
}

guarded_stores! {
    // A store is never visible before an earlier one.
    "eax", reg;
    store_8(u64, xmm_reg): ["movq qword ptr [{to}], {value}"];
    store_4(u32, reg): ["mov dword ptr [{to}], {value:e}"];
    store_2(u16, reg): ["mov word ptr [{to}], {value:x}"];
    store_1(u8, reg_byte): ["mov byte ptr [{to}], {value}"];
}

/// See [`super::fetch_add`]: the address of the fault or 0, and the word as it was before.
///
/// # Safety
/// As [`super::fetch_add`].
pub unsafe fn fetch_add(at: *mut u8, add: u64) -> (usize, u64) {
    let mut expected = 0;
    loop {
        // SAFETY: the caller's promise.
        let (fault, before) = unsafe { compare_swap(at, expected, expected.wrapping_add(add)) };
        if fault != 0 || before == expected {
            return (fault, before);
        }
        expected = before;
    }
}

/// See [`super::compare_swap`]: the address of the fault or 0, and the word as it was before.
///
/// # Safety
/// As [`super::compare_swap`].
pub unsafe fn compare_swap(at: *mut u8, compare: u64, swap: u64) -> (usize, u64) {
    let mut words = [compare, swap];
    // SAFETY: the caller's promise.
    let fault = unsafe { exchange(at, &mut words) };
    (fault, words[0])
}

/// Replaces the word at an address by the second of `words` if it is the first, which becomes what it was.
///
/// # Safety
/// As [`super::compare_swap`].
#[unsafe(naked)]
unsafe extern "C" fn exchange(at: *mut u8, words: &mut [u64; 2]) -> usize {
    naked_asm!(
        "push ebx",
        "push esi",
        "push edi",
        "mov edi, dword ptr [esp + 16]",
        "mov esi, dword ptr [esp + 20]",
        "mov eax, dword ptr [esi]",
        "mov edx, dword ptr [esi + 4]",
        "mov ebx, dword ptr [esi + 8]",
        "mov ecx, dword ptr [esi + 12]",
        "2:",
        "lock cmpxchg8b qword ptr [edi]",
        "3:",
        "mov dword ptr [esi], eax",
        "mov dword ptr [esi + 4], edx",
        "xor eax, eax",
        "4:",
        "pop edi",
        "pop esi",
        "pop ebx",
        "ret",
        table_entry!(),
    )
}

/// Copies. Up to 64 bytes all loads are before the first store. Of more the bytes at both ends are
/// loaded before the loop and stored after it, those of the end last; the loop runs down if the target
/// is inside the source. The last byte is stored once.
///
/// # Safety
/// As [`super::copy`].
#[unsafe(naked)]
pub unsafe extern "C" fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    naked_asm!(
        "push ebx",
        "push esi",
        "push edi",
        "mov edi, dword ptr [esp + 16]",
        "mov esi, dword ptr [esp + 20]",
        "mov ecx, dword ptr [esp + 24]",
        "2:",
        "cmp ecx, 64",
        "ja 26f",
        "cmp ecx, 32",
        "ja 25f",
        "cmp ecx, 16",
        "jae 24f",
        "cmp ecx, 8",
        "jae 23f",
        "cmp ecx, 4",
        "jae 22f",
        "cmp ecx, 2",
        "jb 21f",
        // From here on the two stores are one if they are of the same bytes.
        "movzx edx, word ptr [esi]",
        "movzx ebx, byte ptr [esi + ecx - 1]",
        "mov word ptr [edi], dx",
        "je 3f",
        "mov byte ptr [edi + ecx - 1], bl",
        "jmp 3f",
        "21:",
        "test ecx, ecx",
        "je 3f",
        "movzx edx, byte ptr [esi]",
        "mov byte ptr [edi], dl",
        "jmp 3f",
        "22:",
        "mov edx, dword ptr [esi]",
        "mov ebx, dword ptr [esi + ecx - 4]",
        "mov dword ptr [edi], edx",
        "je 3f",
        "mov dword ptr [edi + ecx - 4], ebx",
        "jmp 3f",
        "23:",
        "movq xmm0, qword ptr [esi]",
        "movq xmm1, qword ptr [esi + ecx - 8]",
        "movq qword ptr [edi], xmm0",
        "je 3f",
        "movq qword ptr [edi + ecx - 8], xmm1",
        "jmp 3f",
        "24:",
        "movdqu xmm0, xmmword ptr [esi]",
        "movdqu xmm1, xmmword ptr [esi + ecx - 16]",
        "movdqu xmmword ptr [edi], xmm0",
        "je 3f",
        "movdqu xmmword ptr [edi + ecx - 16], xmm1",
        "jmp 3f",
        "25:",
        "movdqu xmm0, xmmword ptr [esi]",
        "movdqu xmm1, xmmword ptr [esi + 16]",
        "movdqu xmm2, xmmword ptr [esi + ecx - 32]",
        "movdqu xmm3, xmmword ptr [esi + ecx - 16]",
        "movdqu xmmword ptr [edi], xmm0",
        "movdqu xmmword ptr [edi + 16], xmm1",
        "movdqu xmmword ptr [edi + ecx - 32], xmm2",
        "movdqu xmmword ptr [edi + ecx - 16], xmm3",
        "jmp 3f",
        "26:",
        "mov edx, edi",
        "sub edx, esi",
        "cmp edx, ecx",
        "jb 28f",
        "movdqu xmm5, xmmword ptr [esi]",
        "movdqu xmm6, xmmword ptr [esi + ecx - 32]",
        "movdqu xmm7, xmmword ptr [esi + ecx - 16]",
        "lea ecx, [edi + ecx - 32]",
        "mov ebx, edi",
        "mov edx, 16",
        "and edi, 15",
        "sub edx, edi",
        "add esi, edx",
        "lea edi, [ebx + edx]",
        ".p2align 4",
        "27:",
        "movdqu xmm0, xmmword ptr [esi]",
        "movdqu xmm1, xmmword ptr [esi + 16]",
        "add esi, 32",
        "movdqa xmmword ptr [edi], xmm0",
        "movdqa xmmword ptr [edi + 16], xmm1",
        "add edi, 32",
        "cmp edi, ecx",
        "jb 27b",
        "movdqu xmmword ptr [ebx], xmm5",
        "movdqu xmmword ptr [ecx], xmm6",
        "movdqu xmmword ptr [ecx + 16], xmm7",
        "jmp 3f",
        "28:",
        "movdqu xmm5, xmmword ptr [esi]",
        "movdqu xmm6, xmmword ptr [esi + 16]",
        "movdqu xmm7, xmmword ptr [esi + ecx - 16]",
        "add esi, ecx",
        "lea ebx, [edi + 32]",
        "add ecx, edi",
        "mov edx, ecx",
        "and edx, 15",
        "sub esi, edx",
        "sub edx, ecx",
        "neg edx",
        ".p2align 4",
        "29:",
        "movdqu xmm0, xmmword ptr [esi - 16]",
        "movdqu xmm1, xmmword ptr [esi - 32]",
        "sub esi, 32",
        "movdqa xmmword ptr [edx - 16], xmm0",
        "movdqa xmmword ptr [edx - 32], xmm1",
        "sub edx, 32",
        "cmp edx, ebx",
        "ja 29b",
        "movdqu xmmword ptr [edi], xmm5",
        "movdqu xmmword ptr [edi + 16], xmm6",
        "movdqu xmmword ptr [ecx - 16], xmm7",
        "3:",
        "xor eax, eax",
        "4:",
        "pop edi",
        "pop esi",
        "pop ebx",
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
        "mov edx, dword ptr [esp + 4]",
        "mov ecx, dword ptr [esp + 8]",
        "add ecx, edx",
        "2:",
        "movzx eax, byte ptr [edx]",
        "and edx, -4096",
        "add edx, 4096",
        "cmp edx, ecx",
        "jb 2b",
        "3:",
        "xor eax, eax",
        "4:",
        "ret",
        table_entry!(),
    )
}
