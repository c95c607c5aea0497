//! Calls from stacks of any alignment.
//!
//! The System V ABI for the Intel386 aligns the stack to four bytes, and what was not compiled by gcc kept to that. Rust
//! relies on 16 bytes, as gcc does by now. So whatever a program may call on 32-bit x86, itself or by way of the C library
//! (`fork`, `dlopen`, `exit`), aligns the stack first.

/// Exports a function of Rust. A call from an aligned stack goes on in the function; another one is made once more, on
/// an aligned stack.
#[cfg(target_arch = "x86")]
#[doc(hidden)]
#[macro_export]
macro_rules! on_any_stack {
    ($name:ident($($type:ty),*)) => {
        ::core::arch::global_asm!(
            ".text",
            ".p2align 4",
            ::core::concat!(".globl ", ::core::stringify!($name)),
            ::core::concat!(".type ", ::core::stringify!($name), ",@function"),
            ::core::concat!(::core::stringify!($name), ":"),
            ".cfi_startproc",
            "lea eax, [esp + 4]",
            "test al, 15",
            "je {function}",
            "push ebp",
            ".cfi_def_cfa_offset 8",
            ".cfi_offset ebp, -8",
            "mov ebp, esp",
            ".cfi_def_cfa_register ebp",
            "sub esp, 4 * {words}",
            "and esp, -16",
            ".set libdat_argument, 0",
            ".rept {words}",
            "mov eax, dword ptr [ebp + 8 + libdat_argument]",
            "mov dword ptr [esp + libdat_argument], eax",
            ".set libdat_argument, libdat_argument + 4",
            ".endr",
            "call {function}",
            "leave",
            ".cfi_def_cfa esp, 4",
            "ret",
            ".cfi_endproc",
            ::core::concat!(".size ", ::core::stringify!($name), ", . - ", ::core::stringify!($name)),
            function = sym $name,
            words = const 0 $(+ ::core::mem::size_of::<$type>().div_ceil(4))*,
        );
    };
}

/// The function is exported as it is: the ABI has the alignment that Rust relies on.
#[cfg(not(target_arch = "x86"))]
#[doc(hidden)]
#[macro_export]
macro_rules! on_any_stack {
    ($($function:tt)*) => {};
}

/// Makes functions without arguments that the C library calls, in the thread and on the stack of the program:
/// `called_by_c! { at_load => note; }` is the function `at_load` for C, which calls `extern "C" fn note()`.
macro_rules! called_by_c {
    ($($name:ident => $function:ident;)*) => {$(
        #[cfg(target_arch = "x86")]
        #[unsafe(naked)]
        extern "C" fn $name() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "push ebp",
                ".cfi_def_cfa_offset 8",
                ".cfi_offset ebp, -8",
                "mov ebp, esp",
                ".cfi_def_cfa_register ebp",
                "and esp, -16",
                "call {function}",
                "leave",
                ".cfi_def_cfa esp, 4",
                "ret",
                ".cfi_endproc",
                function = sym $function,
            )
        }
        #[cfg(not(target_arch = "x86"))]
        extern "C" fn $name() {
            $function();
        }
    )*};
}
pub(crate) use called_by_c;
