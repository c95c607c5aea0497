//! How a function table is filled.

/// A function table: fields, functions of a `Device` named `D` in their slots, and what another table has in the
/// others. The functions are for callers with any stack; those of a table that know their handles (`$known`) are for the
/// exported functions, which have aligned the stack.
macro_rules! function_table {
    ($known:ident, $table:path {
        $($field:ident: $value:expr,)*
    } {
        $($slot:ident: $function:path,)*
    } $(..$rest:expr)?) => {
        $table {
            $($field: $value,)*
            $($slot: $crate::dapl::function_table::slot!($known, $table, $slot: $function),)*
            $(..$rest)?
        }
    };
}
pub(crate) use function_table;

/// What goes into a slot of a [`function_table`].
#[cfg(target_arch = "x86")]
macro_rules! slot {
    ($known:ident, $table:path, $slot:ident: $function:path) => {{
        #[unsafe(naked)]
        #[allow(clippy::extra_unused_type_parameters, reason = "one function is that of all devices")]
        unsafe extern "C" fn aligning<D: $crate::device::Device, const KNOWN: bool>() {
            ::core::arch::naked_asm!(
                $crate::aligning_call!(),
                function = sym $function,
                words = const $crate::any_stack::words_of_slot(|table: &$table| &table.$slot),
            )
        }
        match $known {
            $crate::handle::SLOT => Some($function),
            // SAFETY: the code passes what it is called with on to `$function`, which the slot is for.
            $crate::handle::ANY => unsafe {
                $crate::any_stack::Slot::of_code(aligning::<D, $known> as *const ())
            },
        }
    }};
}

/// What goes into a slot of a [`function_table`].
#[cfg(not(target_arch = "x86"))]
macro_rules! slot {
    ($known:ident, $table:path, $slot:ident: $function:path) => {
        Some($function)
    };
}
pub(crate) use slot;
