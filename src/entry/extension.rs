//! `dat_extension_op` of DAT 2.0, called by the shim that makes a list of its arguments.
//!
//! Most operations call the provider of the handle, like any function. Two kinds do not need an open
//! IA: one that queries a provider library by the name of an IA (`DAT_OPEN_EXTENSION_BASE`, which
//! `dat_ib_open_query` has), and the one that ends such a query.

use std::ffi::{CStr, CString, c_char};

use crate::lock::Mutex;

use super::{EMPTY_SLOT, Target, resolve, table_at};
use crate::abi::v2::{
    DAT_CLOSE_EXTENSION_BASE, DAT_EXTENDED_OP, DAT_HANDLE, DAT_OPEN_EXTENSION_BASE, DAT_PROVIDER,
    DAT_RETURN, DAT_SUCCESS,
};
use crate::abi::va_list::VaList;
use crate::error::{Error, Kind, Result, Subtype};
use crate::process::PerProcess;
use crate::{handle, registry};

/// The IA names of the queries that are open. Each is a use of its provider library.
static QUERIES: PerProcess<Mutex<Vec<CString>>> = PerProcess::new(Mutex::default);

/// `dat_extension_op`. `Ok` is the provider's result.
///
/// # Errors
///
/// `DAT_NOT_IMPLEMENTED` for any handle while no IA with extensions was ever open, and where the
/// provider has no extensions; `DAT_INVALID_HANDLE` for no handle (1; IA for the end of a query);
/// for an IA name that is NULL `DAT_INVALID_HANDLE` with the subtype of argument 3, for one that
/// is too long `DAT_INVALID_PARAMETER` (1).
///
/// # Safety
///
/// As [`resolve`]; the list has the arguments of the operation.
pub unsafe fn operation(
    handle: DAT_HANDLE,
    op: DAT_EXTENDED_OP,
    arguments: &mut VaList,
) -> Result<DAT_RETURN> {
    if !handle.is_null() && !registry::extensions() {
        return Err(EMPTY_SLOT);
    }
    // SAFETY: the caller's promise, in all three.
    unsafe {
        if op & DAT_OPEN_EXTENSION_BASE != 0 {
            open_query(op, arguments)
        } else if op & DAT_CLOSE_EXTENSION_BASE != 0 {
            close_query(handle, op, arguments)
        } else {
            let target = resolve::<DAT_PROVIDER>(handle, Subtype::Handle1)?;
            call(target, op, arguments)
        }
    }
}

/// Calls the provider for the operation.
///
/// # Safety
///
/// `target` is from [`resolve`]; the list has the arguments of the operation.
unsafe fn call(
    target: Target<DAT_PROVIDER>,
    op: DAT_EXTENDED_OP,
    arguments: &mut VaList,
) -> Result<DAT_RETURN> {
    // SAFETY: a table of DAT 2.0, alive as long as the IA is open.
    let function = unsafe { (*target.table).handle_extendedop_func }.ok_or(EMPTY_SLOT)?;
    // SAFETY: the arguments are those of the slot; the list is a `va_list` of C.
    Ok(unsafe { function(target.handle, op, arguments.passed()) })
}

/// Queries the library of an IA name, which is the first argument of the list. If that succeeds the
/// library stays loaded until [`close_query`].
///
/// # Safety
///
/// The list begins with a pointer that is NULL or a C string, followed by the arguments of the
/// operation.
unsafe fn open_query(op: DAT_EXTENDED_OP, arguments: &mut VaList) -> Result<DAT_RETURN> {
    // SAFETY: the caller's promise.
    let name = unsafe { arguments.pointer::<c_char>() };
    if name.is_null() {
        return Err(Error::new(Kind::InvalidHandle, Subtype::Arg3));
    }
    // SAFETY: not NULL, so a C string.
    let name = unsafe { registry::key::bounded(name) }.ok_or(Error::arg(Subtype::Arg1))?;
    let function = registry::extension_open(name)?;
    let list = arguments.passed();
    // SAFETY: the registry keeps the library loaded; the list is a `va_list` of C, whose next
    // argument is the one after the name.
    let code = unsafe { function(name.as_ptr().cast_mut(), op, list) };
    match code {
        DAT_SUCCESS => QUERIES.lock().push(name.to_owned()),
        _ => registry::extension_close(name),
    }
    Ok(code)
}

/// Ends a query: the handle is the pointer that the library has returned for the query.
///
/// # Safety
///
/// As [`operation`]; a pointer that is not a handle of the arena is from a provider library that is
/// still loaded.
unsafe fn close_query(
    handle: DAT_HANDLE,
    op: DAT_EXTENDED_OP,
    arguments: &mut VaList,
) -> Result<DAT_RETURN> {
    let table = match handle::table_of(handle) {
        // Pointers are only dereferenced while a provider library may have returned some.
        None if registry::foreign_open() || !QUERIES.lock().is_empty() => {
            // SAFETY: the caller's promise.
            unsafe { table_at(handle) }
        }
        ours => ours,
    };
    let table = table.ok_or(Error::handle(Subtype::HandleIa))?;
    let table = table.cast::<DAT_PROVIDER>();
    // SAFETY: a table of DAT 2.0; the rest is the caller's promise.
    let code = unsafe { call(Target { table, handle }, op, arguments) }?;
    if code == DAT_SUCCESS {
        // SAFETY: the library is still loaded; `device_name` is NULL or a C string.
        unsafe { end_query((*table).device_name) };
    }
    Ok(code)
}

/// Ends the use of the library of a query, if there is a query of that name.
///
/// # Safety
///
/// `name` is NULL or a C string.
unsafe fn end_query(name: *const c_char) {
    if name.is_null() {
        return;
    }
    // SAFETY: not NULL, so a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let mut queries = QUERIES.lock();
    if let Some(index) = queries.iter().position(|open| open.as_c_str() == name) {
        let name = queries.swap_remove(index);
        drop(queries);
        registry::extension_close(&name);
    }
}
