//! The exported symbols: the macros that make them, and the check that they have in common.
//!
//! An entry point finds the provider of its handle ([`resolve`]), takes the function from that
//! provider's table and calls it. `libdat` and `libdat2` have lists of their symbols, from which
//! [`dispatch!`](crate::dispatch) and [`entry!`](macro@crate::entry) make the functions. Every one
//! of them
//!
//! * is bound to the version node of its library (`dat_ep_create@@DAT_2.0`);
//! * keeps `errno` as it was ([`guard`]);
//! * turns a panic into `DAT_INTERNAL_ERROR`. The functions of the built-in providers do both
//!   themselves, since other libraries call them too; a call of them is only a check and a jump;
//! * is traced if the user asks for that ([`trace`]);
//! * returns `DAT_NOT_IMPLEMENTED` where a provider has left a slot of its table empty.

pub mod extension;
mod list;

/// For the macros of this module, which other crates use.
#[doc(hidden)]
pub use crate::handle::{Tables, dispatched_table_of};

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::Errno;
use crate::error::{Error, Kind, Result, Subtype, Version};
use crate::trace::{self, Argument, Function};
use crate::{cancel, handle, registry, reserve, thread_sanitizer};

/// The target of a call.
#[derive(Clone, Copy, Debug)]
pub struct Target<T> {
    /// The table of the provider of the handle.
    pub table: *const T,
    /// The handle as the provider has it: an IA handle of a loaded provider is an index for the
    /// consumer and a pointer for the provider.
    pub handle: *mut c_void,
}

/// Finds the provider of a handle; `DAT_INVALID_HANDLE` with `subtype` if it is not a handle.
///
/// The subtype, which names the kind of handle that the function takes, also determines how a value
/// that is not in the arena is interpreted: `HandleIa` as an index only, `Handle1` (any object) as
/// an index or pointer, all others as a pointer. Pointers are only dereferenced while a loaded
/// provider has an open IA.
///
/// # Safety
/// While a loaded provider has an open IA, `handle` is NULL, a handle of the arena (valid or not), or
/// a handle from such a provider. `T` is the provider table of the library's version.
#[inline]
pub unsafe fn resolve<T>(handle: *mut c_void, subtype: Subtype) -> Result<Target<T>> {
    match handle::table_of(handle) {
        Some(table) => Ok(Target {
            table: table.cast(),
            handle,
        }),
        // SAFETY: as promised by the caller.
        None => unsafe { resolve_foreign(handle, subtype) }.map(|(table, handle)| Target {
            table: table.cast(),
            handle,
        }),
    }
}

/// [`resolve`] for a value that is not a valid handle of the arena: the table and the handle.
///
/// # Safety
/// As [`resolve`].
#[inline(never)]
unsafe fn resolve_foreign(
    handle: *mut c_void,
    subtype: Subtype,
) -> Result<(*const c_void, *mut c_void)> {
    let none = Error::handle(subtype);
    if !registry::foreign_open() {
        return Err(none);
    }
    let pointer = match subtype {
        Subtype::HandleIa => registry::ia_pointer(handle),
        Subtype::Handle1 => registry::ia_pointer(handle).or(Some(handle)),
        _ => Some(handle),
    };
    let pointer = pointer.ok_or(none)?;
    // SAFETY: the caller's promise, or a pointer from the provider itself.
    let table = unsafe { table_at(pointer) }.ok_or(none)?;
    Ok((table, pointer))
}

/// The provider table of an object of a loaded provider.
///
/// # Safety
///
/// `object` is NULL, a handle of the arena (valid or not), or points to an object whose first word is
/// the address of a provider table.
unsafe fn table_at(object: *mut c_void) -> Option<*const c_void> {
    if !may_be_pointer(object) || handle::is_ours(object) {
        return None;
    }
    // SAFETY: the caller's promise; of the three only the object remains.
    let table = unsafe { *object.cast::<*const c_void>() };
    may_be_pointer(table).then_some(table)
}

/// Whether a value can be the address of a C object that contains pointers. NULL, small numbers (an
/// IA index where an object is expected) and unaligned addresses cannot.
fn may_be_pointer(value: *const c_void) -> bool {
    const LOWEST_PAGE: usize = 4096;
    value.addr() >= LOWEST_PAGE && value.addr().is_multiple_of(align_of::<*const c_void>())
}

/// The error of a call whose slot in the provider's table is empty.
pub const EMPTY_SLOT: Error = Error::new(Kind::NotImplemented, Subtype::None);

/// The value of `errno`, while another library may change it.
pub struct KeptErrno(Errno);

impl KeptErrno {
    /// Saves the value.
    #[inline]
    pub fn begin() -> KeptErrno {
        KeptErrno(Errno::save())
    }

    /// Sets `errno` to the value.
    #[inline]
    pub fn end(self) {
        self.0.restore();
    }
}

/// Runs the part of an entry point that finds what to call: a panic becomes `DAT_INTERNAL_ERROR`, an
/// error becomes its code.
///
/// # Errors
/// The code for the caller.
#[inline]
pub fn find<T>(version: Version, call: impl FnOnce() -> Result<T>) -> std::result::Result<T, u32> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(found) => found.map_err(|error| error.code(version)),
        Err(_) => Err(Error::from(Kind::InternalError).code(version)),
    }
}

/// Runs an entry point: `errno` keeps its value, a panic becomes `DAT_INTERNAL_ERROR`, an error
/// becomes its code, and a cancellation of the thread stays pending.
#[inline]
pub fn guard(version: Version, call: impl FnOnce() -> Result<u32>) -> u32 {
    let _disabled = cancel::Disabled::begin();
    let errno = KeptErrno::begin();
    // Without memory for it the call goes on, and sees for itself if it needs some.
    reserve::fill();
    let code = find(version, call).unwrap_or_else(|code| code);
    errno.end();
    code
}

/// Runs the part of an entry point that is not a call by a function table: ThreadSanitizer, if it checks the program,
/// does not look at that. What calls by function tables order, those tell it.
#[inline]
pub fn overlooked<T>(call: impl FnOnce() -> T) -> T {
    thread_sanitizer::overlooked(call)
}

/// [`guard`] for an exported function, which is traced. The arguments are made if there is a trace.
#[inline]
pub fn traced<A: AsRef<[Argument]>>(
    version: Version,
    function: &'static Function,
    arguments: impl FnOnce() -> A,
    call: impl FnOnce() -> Result<u32>,
) -> u32 {
    guard(version, || {
        if !trace::on() {
            return call();
        }
        let arguments = arguments();
        let begun = trace::begin(function, version, arguments.as_ref());
        let code = find(version, call).unwrap_or_else(|code| code);
        trace::end(begun, code, arguments.as_ref());
        Ok(code)
    })
}

/// The arguments of an exported function, for the trace.
#[doc(hidden)]
#[macro_export]
macro_rules! traced_arguments {
    ($($arg:ident: $type:ty),*) => {
        [$($crate::trace::Argument::new(
            ::core::stringify!($arg),
            ::core::stringify!($type),
            $arg,
        )),*]
    };
}

/// Binds an exported function to the version node of its library.
///
/// The directive has to be in the object file of the definition, so the macro is used in the module
/// of the function.
#[macro_export]
macro_rules! symbol_version {
    ($name:ident, $node:literal) => {
        ::core::arch::global_asm!(::core::concat!(
            ".symver ",
            ::core::stringify!($name),
            ",",
            ::core::stringify!($name),
            "@@",
            $node
        ));
    };
}

/// Makes exported functions that the library implements itself.
///
/// `entry! { V2, "DAT_2.0"; dat_name(arg: Type, ...) { body } ... }`: the body, which may use `?`,
/// has the type `error::Result<DAT_RETURN>`.
#[macro_export]
macro_rules! entry {
    ($version:ident, $node:literal; $(
        $(#[$attr:meta])*
        $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block
    )*) => {$(
        $crate::symbol_version!($name, $node);
        $crate::on_any_stack!($name($($type),*));

        $(#[$attr])*
        ///
        /// # Safety
        /// As documented in the man page of the function: pointers are NULL or point to values of
        /// their C types, for the time that the page requires.
        #[cfg_attr(not(target_arch = "x86"), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> DAT_RETURN {
            static FUNCTION: $crate::trace::Function =
                $crate::trace::Function::new(::core::stringify!($name));
            $crate::entry::traced(
                $crate::error::Version::$version,
                &FUNCTION,
                || $crate::traced_arguments!($($arg: $type),*),
                || $crate::entry::overlooked(|| $body),
            )
        }
    )*};
}

/// Makes exported functions that call the provider of their first argument.
///
/// `dispatch! { V2, "DAT_2.0"; dat_name(handle: Type, ...) => HandleKind, slot_of_the_table; }`.
/// The types, and the provider table `DAT_PROVIDER`, are those that the calling module has in
/// scope: `abi::v1` or `abi::v2`.
#[macro_export]
macro_rules! dispatch {
    ($version:ident, $node:literal; $(
        $name:ident($handle:ident: $handle_type:ty $(, $arg:ident: $type:ty)* $(,)?)
            => $subtype:ident, $slot:ident;
    )*) => {$(
        $crate::symbol_version!($name, $node);
        $crate::on_any_stack!($name($handle_type $(, $type)*));

        #[doc = ::core::concat!("The C function `", ::core::stringify!($name), "`.")]
        ///
        /// # Safety
        /// As [`resolve`]($crate::entry::resolve) for the handle; for the other arguments as the man
        /// page of the function documents.
        #[cfg_attr(not(target_arch = "x86"), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($handle: $handle_type $(, $arg: $type)*) -> DAT_RETURN {
            // For values that are not valid handles of the arena, and for all while there is a trace.
            // Out of line, so that a call of a built-in provider, which keeps `errno` and catches
            // panics itself, is a check and a jump.
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn other($handle: $handle_type $(, $arg: $type)*) -> DAT_RETURN {
                static FUNCTION: $crate::trace::Function =
                    $crate::trace::Function::new(::core::stringify!($name));
                let errno = $crate::entry::KeptErrno::begin();
                let arguments = || {
                    $crate::traced_arguments!($handle: $handle_type $(, $arg: $type)*)
                };
                let traced = $crate::trace::on().then(|| {
                    let version = $crate::error::Version::$version;
                    $crate::trace::begin(&FUNCTION, version, &arguments())
                });
                let found = $crate::entry::find($crate::error::Version::$version, || {
                    // SAFETY: the caller's promise.
                    let target = unsafe {
                        $crate::entry::resolve::<DAT_PROVIDER>(
                            $handle,
                            $crate::error::Subtype::$subtype,
                        )
                    }?;
                    // SAFETY: `resolve` returns a table of this version, which is valid at least as
                    // long as the IA of the handle is open.
                    let function = unsafe { (*target.table).$slot }
                        .ok_or($crate::entry::EMPTY_SLOT)?;
                    Ok((function, target.handle))
                });
                let code = match found {
                    // Outside of what catches panics: a provider may have points of cancellation. There is
                    // nothing to be dropped here then.
                    // SAFETY: the arguments are those of the function by the type of the slot.
                    Ok((function, handle)) => unsafe { function(handle $(, $arg)*) },
                    Err(code) => code,
                };
                if let Some(traced) = traced {
                    $crate::trace::end(traced, code, &arguments());
                }
                errno.end();
                code
            }
            if let Some(tables) = $crate::entry::dispatched_table_of($handle) {
                // SAFETY: the tables of a handle of the arena are of this version and valid as long as
                // the process runs, and none of their slots is empty; the arguments are those of the
                // function by the type of the slot.
                return unsafe {
                    let tables = &*tables.cast::<$crate::entry::Tables<DAT_PROVIDER>>();
                    let function = tables.exported.$slot.unwrap_unchecked();
                    function($handle $(, $arg)*)
                };
            }
            // SAFETY: as for this function.
            unsafe { other($handle $(, $arg)*) }
        }
    )*};
}

#[cfg(test)]
mod tests;
