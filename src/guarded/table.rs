//! How guarded instructions are written down: assembly with its entry in the table of the handler.

/// The table entry for the instructions from label 2 to label 3, which go on at label 4 after a
/// fault, or at the one that is named.
macro_rules! table_entry {
    () => {
        $crate::guarded::table::table_entry!("4b")
    };
    ($resume:literal) => {
        concat!(
            ".pushsection libdat_guarded, \"aR\", %progbits
            .balign 4
            .long 2b - ., 3b - ., ",
            $resume,
            " - .
            .popsection"
        )
    };
}
pub(crate) use table_entry;

/// `asm!` of guarded instructions, followed by its operands: 0, or what the handler puts into the
/// named register after a fault: the address. The instructions use no stack and keep the flags.
macro_rules! guarded_asm {
    ($fault:tt, [$($instruction:expr),+ $(,)?], $($operands:tt)*) => {{
        let fault: usize;
        ::std::arch::asm!(
            "2:",
            $($instruction,)+
            "3:",
            "4:",
            $crate::guarded::table::table_entry!(),
            $($operands)*
            inout($fault) 0usize => fault,
            options(nostack, preserves_flags),
        );
        fault
    }};
}
pub(crate) use guarded_asm;

/// The functions of a processor that store a number, for [`store`](super::store): the register in which a fault is
/// reported, the class of registers for the address, and of each function the type of the number, the class of
/// registers for it, and the instructions, which store it after all earlier stores.
macro_rules! guarded_stores {
    (
        $fault:tt, $address:ident;
        $($name:ident($type:ty, $number:ident): $instructions:tt;)+
    ) => {$(
        /// See [`super::store`].
        ///
        /// # Safety
        /// As [`super::store`].
        #[inline]
        pub unsafe fn $name(to: *mut u8, value: $type) -> usize {
            // SAFETY: the caller's promise; a fault has an entry in the table.
            unsafe {
                $crate::guarded::table::guarded_asm!(
                    $fault,
                    $instructions,
                    to = in($address) to,
                    value = in($number) value,
                )
            }
        }
    )+};
}
pub(crate) use guarded_stores;
