//! The assembly of [`super::catching`] for 32-bit x86. The arguments of `body` are below the buffer, so that the C
//! library calls the handler a frame later, when it is about to unwind the caller's caller. What was in the registers
//! is where it was.

use std::arch::global_asm;

use super::catching::{_pthread_cleanup_pop, CleanupBuffer};

global_asm!(
    ".pushsection .text.libdat_cancel,\"ax\",@progbits",
    ".p2align 4",
    ".globl libdat_cancel_catch",
    ".hidden libdat_cancel_catch",
    ".type libdat_cancel_catch,@function",
    "libdat_cancel_catch:",
    ".cfi_startproc",
    "push ebp",
    ".cfi_def_cfa_offset 8",
    ".cfi_offset ebp, -8",
    "mov ebp, esp",
    ".cfi_def_cfa_register ebp",
    "push ebx",
    ".cfi_offset ebx, -12",
    "push esi",
    ".cfi_offset esi, -16",
    "push edi",
    ".cfi_offset edi, -20",
    "sub esp, 16",
    "mov eax, esp",
    "push eax",
    "push eax",
    "push dword ptr [ebp + 12]",
    "call dword ptr [ebp + 8]",
    "add esp, 12",
    "xor eax, eax",
    "jmp 2f",
    // After a landing the C library still has the buffer in its list.
    "3:",
    "mov eax, esp",
    "sub esp, 8",
    "push eax",
    "call {forget}",
    "add esp, 12",
    "mov eax, 1",
    "2:",
    "add esp, 16",
    "pop edi",
    "pop esi",
    "pop ebx",
    "pop ebp",
    ".cfi_def_cfa esp, 4",
    "ret",
    ".cfi_endproc",
    ".size libdat_cancel_catch, . - libdat_cancel_catch",
    ".p2align 4",
    ".globl libdat_cancel_landed",
    ".hidden libdat_cancel_landed",
    ".type libdat_cancel_landed,@function",
    "libdat_cancel_landed:",
    ".cfi_startproc",
    "mov esp, dword ptr [esp + 4]",
    "lea ebp, [esp + 28]",
    "jmp 3b",
    ".cfi_endproc",
    ".size libdat_cancel_landed, . - libdat_cancel_landed",
    ".popsection",
    forget = sym forget,
);

/// Takes a buffer out of the list of the C library. The functions of a shared library are called by way of a register
/// for its address, which the assembly does not have.
unsafe extern "C-unwind" fn forget(buffer: *mut CleanupBuffer) {
    // SAFETY: the newest buffer of this thread.
    unsafe { _pthread_cleanup_pop(buffer, 0) };
}
