//! Functions of a table that tell the checker what they order, and call those of another table: one for each slot, made
//! of the type of the slot.

use std::ptr;

use super::Functions;
use crate::abi::common::DAT_RETURN;
use crate::thread_sanitizer::{Key, acquire, enter, leave, release};

/// What a call orders.
pub(super) trait Kind: 'static {
    /// Whether others may take up what was done before it.
    const GIVES: bool;
    /// Whether it may say something of what others have done.
    const TAKES: bool;
}

/// The type of a function in a slot.
pub(super) trait Pointer: Copy {
    /// The function that calls the one which has this offset in the table of `F`.
    fn calling<F: Functions, K: Kind, const OFFSET: usize>() -> Self;
}

/// What is in a slot: the function that calls the one in the slot of the table of `F`.
pub(super) fn calling<F: Functions, K: Kind, P: Pointer, const OFFSET: usize>(
    slot: Option<P>,
) -> Option<P> {
    slot.map(|_| P::calling::<F, K, OFFSET>())
}

/// The function with an offset in the table of `F`.
///
/// # Safety
/// That of a slot of this type, which is not empty.
unsafe fn function<F: Functions, P: Pointer>(offset: usize) -> P {
    let table = F::table();
    // SAFETY: the caller's promise. A pointer and an optional pointer are the same in memory.
    unsafe { ptr::from_ref(&table).byte_add(offset).cast::<P>().read() }
}

/// For functions of that many arguments.
macro_rules! pointer {
    ($($arg:ident)*) => {
        impl<$($arg),*> Pointer for unsafe extern "C" fn($($arg),*) -> DAT_RETURN {
            fn calling<F: Functions, K: Kind, const OFFSET: usize>() -> Self {
                /// # Safety
                /// As the function in the slot.
                #[allow(non_snake_case, reason = "named as their types")]
                unsafe extern "C" fn call<F: Functions, K: Kind, const OFFSET: usize, $($arg),*>(
                    $($arg: $arg),*
                ) -> DAT_RETURN {
                    if K::GIVES {
                        release(Key::process());
                    }
                    enter();
                    // SAFETY: the offset is that of a slot of this type (`calling`); the caller's promise.
                    let code = unsafe {
                        function::<F, unsafe extern "C" fn($($arg),*) -> DAT_RETURN>(OFFSET)($($arg),*)
                    };
                    leave();
                    if K::TAKES {
                        acquire(Key::process());
                    }
                    code
                }
                call::<F, K, OFFSET, $($arg),*>
            }
        }
    };
}

/// For functions of all numbers of arguments up to those that are given.
macro_rules! pointers {
    ($first:ident $($arg:ident)*) => {
        pointer!($first $($arg)*);
        pointers!($($arg)*);
    };
    () => {};
}

pointers!(A B C D E G H I J L M N);
