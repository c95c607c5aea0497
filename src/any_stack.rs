//! Calls from stacks of any alignment.
//!
//! The System V ABI for the Intel386 aligns the stack to four bytes, and what was not compiled by gcc kept to that. Rust
//! relies on 16 bytes, as gcc does by now. So whatever a program may call on 32-bit x86, itself or by way of the C library
//! (`fork`, `dlopen`, `exit`), aligns the stack first.

/// What a function for any stack does, as assembly: from an aligned stack it goes on in `{function}`; otherwise it calls
/// that once more, on an aligned stack, with the `{words}` words of its arguments.
#[cfg(target_arch = "x86")]
#[doc(hidden)]
#[macro_export]
macro_rules! aligning_call {
    () => {
        ".cfi_startproc
        lea eax, [esp + 4]
        test al, 15
        je {function}
        push ebp
        .cfi_def_cfa_offset 8
        .cfi_offset ebp, -8
        mov ebp, esp
        .cfi_def_cfa_register ebp
        sub esp, 4 * {words}
        and esp, -16
        .set libdat_argument, 0
        .rept {words}
        mov eax, dword ptr [ebp + 8 + libdat_argument]
        mov dword ptr [esp + libdat_argument], eax
        .set libdat_argument, libdat_argument + 4
        .endr
        call {function}
        leave
        .cfi_def_cfa esp, 4
        ret
        .cfi_endproc"
    };
}

/// The words of the stack that arguments of these types take.
#[cfg(target_arch = "x86")]
#[doc(hidden)]
#[macro_export]
macro_rules! argument_words {
    ($($type:ty),*) => { 0 $(+ ::core::mem::size_of::<$type>().div_ceil(4))* };
}

/// Exports a function of Rust for callers with any stack, under its name. A library with versions of symbols needs it
/// in the object file of the function.
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
            $crate::aligning_call!(),
            ::core::concat!(".size ", ::core::stringify!($name), ", . - ", ::core::stringify!($name)),
            function = sym $name,
            words = const $crate::argument_words!($($type),*),
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

/// Makes functions that a library without versions of symbols exports for callers with any stack.
#[doc(hidden)]
#[macro_export]
macro_rules! exported_plainly {
    ($(
        $(#[$attr:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        #[cfg(not(target_arch = "x86"))]
        $(#[$attr])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? $body

        #[cfg(target_arch = "x86")]
        const _: () = {
            unsafe extern "C" fn function($($arg: $type),*) $(-> $result)? $body

            $(#[$attr])*
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? {
                ::core::arch::naked_asm!(
                    $crate::aligning_call!(),
                    function = sym function,
                    words = const $crate::argument_words!($($type),*),
                )
            }
        };
    )*};
}

/// A slot of a function table.
#[cfg(target_arch = "x86")]
pub(crate) trait Slot {
    /// The words of the stack that the arguments take.
    const WORDS: usize;

    /// A slot that has the code at this address.
    ///
    /// # Safety
    /// The code takes and gives what a function of the slot does.
    unsafe fn of_code(code: *const ()) -> Self;
}

/// Slots of functions of C with so many parameters, and with one less, and so on.
#[cfg(target_arch = "x86")]
macro_rules! slots_of_functions {
    ($($first:ident $($rest:ident)*)?) => {
        slots_of_functions! { "C" $($first $($rest)*)? }
        slots_of_functions! { "C-unwind" $($first $($rest)*)? }
        $(slots_of_functions! { $($rest)* })?
    };
    ($abi:literal $($type:ident)*) => {
        impl<Code $(, $type)*> Slot for Option<unsafe extern $abi fn($($type),*) -> Code> {
            const WORDS: usize = $crate::argument_words!($($type),*);

            unsafe fn of_code(code: *const ()) -> Self {
                // SAFETY: the caller's promise; the address of code is not NULL.
                Some(unsafe {
                    std::mem::transmute::<*const (), unsafe extern $abi fn($($type),*) -> Code>(code)
                })
            }
        }
    };
}
#[cfg(target_arch = "x86")]
slots_of_functions! { A B C D E F G H I J K L }

/// The words of the arguments of a slot.
#[cfg(target_arch = "x86")]
pub(crate) const fn words_of_slot<Table, Function: Slot>(_: fn(&Table) -> &Function) -> usize {
    Function::WORDS
}
