//! `dat_extension_op`: calls of operations that a provider has beyond DAT 2.0.
//!
//! It is variadic in C. Stable Rust cannot define such a function, and a provider's function
//! takes the arguments as a `va_list`; so a few instructions per architecture save the argument
//! registers as the platform's C ABI lays them out, and the rest is [`extension::operation`].

use dat_core::abi::v2::*;
use dat_core::abi::va_list::VaList;
use dat_core::entry::extension;
use dat_core::entry::traced;
use dat_core::error::Version;
use dat_core::registry;
use dat_core::trace;

dat_core::symbol_version!(dat_extension_op, "DAT_2.0");

// System V ABI for x86-64, "Variable Argument Lists": the register save area holds rdi, rsi, rdx,
// rcx, r8, r9 and xmm0 to xmm7 (al: how many of these, at most); the list itself is
// gp_offset, fp_offset, overflow_arg_area, reg_save_area. The two named arguments are in rdi and
// rsi, so reading begins at offset 16.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".globl dat_extension_op",
    ".type dat_extension_op,@function",
    "dat_extension_op:",
    ".cfi_startproc",
    "sub rsp, 216", // 24 va_list, 8 unused, 176 save area, 8 to align the stack
    ".cfi_def_cfa_offset 224",
    "mov [rsp + 48], rdx",
    "mov [rsp + 56], rcx",
    "mov [rsp + 64], r8",
    "mov [rsp + 72], r9",
    "test al, al",
    "je 2f",
    "movaps [rsp + 80], xmm0",
    "movaps [rsp + 96], xmm1",
    "movaps [rsp + 112], xmm2",
    "movaps [rsp + 128], xmm3",
    "movaps [rsp + 144], xmm4",
    "movaps [rsp + 160], xmm5",
    "movaps [rsp + 176], xmm6",
    "movaps [rsp + 192], xmm7",
    "2:",
    "mov dword ptr [rsp], 16",
    "mov dword ptr [rsp + 4], 48",
    "lea rax, [rsp + 224]",
    "mov [rsp + 8], rax",
    "lea rax, [rsp + 32]",
    "mov [rsp + 16], rax",
    "mov rdx, rsp",
    "call {handler}",
    "add rsp, 216",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size dat_extension_op, . - dat_extension_op",
    handler = sym extension_op,
);

// Procedure Call Standard for the Arm 64-bit Architecture, appendix "Variable argument lists": the
// list is stack, gr_top, vr_top, gr_offs, vr_offs; the save areas end at gr_top and vr_top, and
// the offsets, negative, say where in them reading begins. A list is passed by reference.
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".text",
    ".p2align 2",
    ".globl dat_extension_op",
    ".type dat_extension_op,%function",
    "dat_extension_op:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-224]!", // 16 frame record, 32 va_list, 48 x2-x7, 128 q0-q7
    ".cfi_def_cfa_offset 224",
    ".cfi_offset x29, -224",
    ".cfi_offset x30, -216",
    "mov x29, sp",
    "stp x2, x3, [sp, #48]",
    "stp x4, x5, [sp, #64]",
    "stp x6, x7, [sp, #80]",
    "stp q0, q1, [sp, #96]",
    "stp q2, q3, [sp, #128]",
    "stp q4, q5, [sp, #160]",
    "stp q6, q7, [sp, #192]",
    "add x9, sp, #224",
    "str x9, [sp, #16]", // stack
    "add x10, sp, #96",
    "stp x10, x9, [sp, #24]", // gr_top, vr_top
    "mov w9, #-48",
    "mov w10, #-128",
    "stp w9, w10, [sp, #40]", // gr_offs, vr_offs
    "add x2, sp, #16",
    "bl {handler}",
    "ldp x29, x30, [sp], #224",
    ".cfi_restore x29",
    ".cfi_restore x30",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_endproc",
    ".size dat_extension_op, . - dat_extension_op",
    handler = sym extension_op,
);

// System V ABI for the Intel386: all arguments are on the stack, one behind the other, and the list is the address
// of the next.
#[cfg(target_arch = "x86")]
core::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".globl dat_extension_op",
    ".type dat_extension_op,@function",
    "dat_extension_op:",
    ".cfi_startproc",
    "push ebp",
    ".cfi_def_cfa_offset 8",
    ".cfi_offset ebp, -8",
    "mov ebp, esp",
    ".cfi_def_cfa_register ebp",
    "sub esp, 24",
    "and esp, -16", // as the functions of Rust need it (on_any_stack)
    "lea eax, [ebp + 16]",
    "mov dword ptr [ebp - 4], eax", // va_list
    "lea eax, [ebp - 4]",
    "mov dword ptr [esp + 8], eax",
    "mov eax, dword ptr [ebp + 12]",
    "mov dword ptr [esp + 4], eax",
    "mov eax, dword ptr [ebp + 8]",
    "mov dword ptr [esp], eax",
    "call {handler}",
    "leave",
    ".cfi_def_cfa esp, 4",
    "ret",
    ".cfi_endproc",
    ".size dat_extension_op, . - dat_extension_op",
    handler = sym extension_op,
);

// ELFv2 ABI for 64-bit POWER, "Variable Argument Lists": the list is the address of the next argument. The caller of a
// variadic function has room for all arguments in its frame, from 32 bytes above the stack pointer on, which has those
// on the stack already; r5 to r10 are added here. r12 is the address of the function, when it comes from elsewhere.
#[cfg(target_arch = "powerpc64")]
core::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".globl dat_extension_op",
    ".type dat_extension_op,@function",
    "dat_extension_op:",
    ".cfi_startproc",
    "2:",
    "addis 2, 12, .TOC. - 2b@ha",
    "addi 2, 2, .TOC. - 2b@l",
    ".localentry dat_extension_op, . - dat_extension_op",
    "mflr 0",
    "std 0, 16(1)",
    ".cfi_offset lr, 16",
    "std 5, 48(1)",
    "std 6, 56(1)",
    "std 7, 64(1)",
    "std 8, 72(1)",
    "std 9, 80(1)",
    "std 10, 88(1)",
    "addi 5, 1, 48",
    "stdu 1, -48(1)", // 32 for the functions that are called, 8 va_list, 8 unused
    ".cfi_def_cfa_offset 48",
    "std 5, 32(1)",
    "addi 5, 1, 32",
    "bl {handler}",
    "nop",
    "addi 1, 1, 48",
    ".cfi_def_cfa_offset 0",
    "ld 0, 16(1)",
    "mtlr 0",
    ".cfi_restore lr",
    "blr",
    ".cfi_endproc",
    ".size dat_extension_op, . - dat_extension_op",
    handler = sym extension_op,
);

// ELF ABI for s390x, "Variable argument lists": the list is gpr, fpr, overflow_arg_area, reg_save_area. The save area is
// that of the caller's frame: r2 to r15 from 16 bytes above the stack pointer on, and f0, f2, f4 and f6 behind them;
// arguments on the stack are above. The two named arguments are in r2 and r3, so reading begins at number 2.
#[cfg(target_arch = "s390x")]
core::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".globl dat_extension_op",
    ".type dat_extension_op,@function",
    "dat_extension_op:",
    ".cfi_startproc",
    "stmg %r4, %r15, 32(%r15)",
    ".cfi_offset %r14, -48",
    ".cfi_offset %r15, -40",
    "std %f0, 128(%r15)",
    "std %f2, 136(%r15)",
    "std %f4, 144(%r15)",
    "std %f6, 152(%r15)",
    "lgr %r1, %r15",
    "aghi %r15, -192", // 160 for the functions that are called, 32 va_list
    ".cfi_def_cfa_offset 352",
    "mvghi 160(%r15), 2",      // gpr
    "mvghi 168(%r15), 0",      // fpr
    "stg %r1, 184(%r15)",      // reg_save_area
    "aghi %r1, 160",
    "stg %r1, 176(%r15)",      // overflow_arg_area
    "la %r4, 160(%r15)",
    "brasl %r14, {handler}",
    "lmg %r14, %r15, 304(%r15)",
    ".cfi_restore %r14",
    ".cfi_restore %r15",
    ".cfi_def_cfa_offset 160",
    "br %r14",
    ".cfi_endproc",
    ".size dat_extension_op, . - dat_extension_op",
    handler = sym extension_op,
);

// Calling convention of RISC-V, LP64: the list is the address of the next argument, and those in registers, a2 to a7, are
// saved below those on the stack.
#[cfg(target_arch = "riscv64")]
core::arch::global_asm!(
    ".text",
    ".p2align 2",
    ".globl dat_extension_op",
    ".type dat_extension_op,@function",
    "dat_extension_op:",
    ".cfi_startproc",
    "addi sp, sp, -64", // 8 va_list, 8 ra, 48 a2-a7
    ".cfi_def_cfa_offset 64",
    "sd ra, 8(sp)",
    ".cfi_offset ra, -56",
    "sd a2, 16(sp)",
    "sd a3, 24(sp)",
    "sd a4, 32(sp)",
    "sd a5, 40(sp)",
    "sd a6, 48(sp)",
    "sd a7, 56(sp)",
    "addi a2, sp, 16",
    "sd a2, 0(sp)",
    "mv a2, sp",
    "call {handler}",
    "ld ra, 8(sp)",
    ".cfi_restore ra",
    "addi sp, sp, 64",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_endproc",
    ".size dat_extension_op, . - dat_extension_op",
    handler = sym extension_op,
);

/// What the shim calls: the named arguments, and the others as a list.
unsafe extern "C" fn extension_op(
    handle: DAT_HANDLE,
    op: DAT_EXTENDED_OP,
    arguments: *mut VaList,
) -> DAT_RETURN {
    static FUNCTION: trace::Function = trace::Function::new("dat_extension_op");
    registry::setup(&crate::SETUP);
    traced(
        Version::V2,
        &FUNCTION,
        // SAFETY: as below.
        || unsafe { trace::extension::arguments(handle, op, &*arguments) },
        || {
            // SAFETY: only the shim has the list; the rest as the caller of
            // `dat_extension_op` promises.
            unsafe { extension::operation(handle, op, &mut *arguments) }
        },
    )
}
