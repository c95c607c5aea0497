//! The boundary to C: what every function of the provider table begins and ends with, and the
//! checks of arguments that many of them share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::abi::Abi;
use crate::abi::common::*;
use crate::cancel;
use crate::device::DeviceError;
use crate::errno::Errno;
use crate::error::{Error, Kind, Result, Subtype};
use crate::handle::{Guard, Section, pin};
use crate::reserve;

/// Runs the body of a C function: a panic becomes `DAT_INTERNAL_ERROR`, an error its code, `errno`
/// keeps its value, and a cancellation of the thread stays pending.
#[inline]
pub fn boundary<A: Abi>(f: impl FnOnce() -> Result<()>) -> DAT_RETURN {
    let _disabled = cancel::Disabled::begin();
    // Without memory for it the call goes on: what frees something is not to fail.
    reserve::fill();
    caught::<A>(Errno::save(), || {
        let result = f();
        pin::sweep();
        code::<A>(result)
    })
}

/// [`boundary`] for a call that makes something new: an object, a connection, a larger queue.
///
/// # Errors
/// `DAT_INSUFFICIENT_RESOURCES` when there is no memory, before anything has changed.
#[inline]
pub fn creation<A: Abi>(f: impl FnOnce() -> Result<()>) -> DAT_RETURN {
    boundary::<A>(|| {
        reserve::check()?;
        f()
    })
}

/// [`boundary`] for a call that costs too little to have cancellation disabled, and has no point of
/// cancellation (see [`cancel`]), or acts on a cancellation itself. It ends its section by
/// [`Section::end_call`].
#[inline]
pub fn short_boundary<A: Abi>(f: impl FnOnce() -> Result<()>) -> DAT_RETURN {
    short_boundary_of_code::<A>(|| code::<A>(f()))
}

/// [`short_boundary`] for a body that gives its code: where a result is constant the code is then, too.
#[inline]
pub fn short_boundary_of_code<A: Abi>(f: impl FnOnce() -> DAT_RETURN) -> DAT_RETURN {
    caught::<A>(Errno::save_again(), f)
}

/// The code of a result.
#[inline]
pub fn code<A: Abi>(result: Result<()>) -> DAT_RETURN {
    match result {
        Ok(()) => DAT_SUCCESS,
        Err(error) => error.code(A::VERSION),
    }
}

/// Runs the body of a C function that gives its code.
#[inline(always)]
fn caught<A: Abi>(errno: Errno, f: impl FnOnce() -> DAT_RETURN) -> DAT_RETURN {
    let code = catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|_| Error::from(Kind::InternalError).code(A::VERSION));
    errno.restore();
    code
}

/// [`short_boundary`] for a call that looks up handles inside a section.
#[inline]
pub fn section<A: Abi>(f: impl FnOnce(&Guard) -> Result<()>) -> DAT_RETURN {
    caught::<A>(Errno::save_again(), || in_section::<A>(pin::pin(), f))
}

/// [`section`] with a section that has begun, in which nothing but what cannot panic or change `errno` was done.
#[inline]
pub fn begun_section<A: Abi>(guard: Section, f: impl FnOnce(&Guard) -> Result<()>) -> DAT_RETURN {
    caught::<A>(Errno::save_again(), || in_section::<A>(guard, f))
}

#[inline(always)]
fn in_section<A: Abi>(guard: Section, f: impl FnOnce(&Guard) -> Result<()>) -> DAT_RETURN {
    match f(&guard) {
        Ok(()) => {
            guard.end_call();
            DAT_SUCCESS
        }
        Err(error) => failed::<A>(guard, error),
    }
}

/// Runs what leaves `errno` as it is; `None` after a panic.
#[inline(always)]
pub fn caught_plainly<T>(f: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).ok()
}

/// The end of a call that has panicked: gives its code.
#[cold]
#[inline(never)]
pub extern "C" fn panicked<A: Abi>(guard: Section) -> DAT_RETURN {
    caught::<A>(Errno::save_again(), || {
        failed::<A>(guard, Kind::InternalError.into())
    })
}

/// Ends the section of a call that has succeeded without anything that [`caught`] is for.
#[inline(always)]
pub fn end_plainly<A: Abi>(section: Section) -> DAT_RETURN {
    match section.end_plainly() {
        Ok(()) => DAT_SUCCESS,
        Err(section) => end_call::<A>(section),
    }
}

/// The end of a call that has succeeded, with work at the end of its section.
#[cold]
#[inline(never)]
extern "C" fn end_call<A: Abi>(section: Section) -> DAT_RETURN {
    caught::<A>(Errno::save_again(), || {
        section.end_call();
        DAT_SUCCESS
    })
}

/// The end of a call that has failed: gives its code. Out of line, as what succeeds then has no code for
/// what fails.
#[cold]
#[inline(never)]
pub fn failed<A: Abi>(guard: Section, error: Error) -> DAT_RETURN {
    guard.end_call();
    error.code(A::VERSION)
}

/// Writes an OUT argument that may be NULL.
///
/// # Safety
/// `out` is NULL or points to memory for a `T`, in any alignment: it may be a member of a structure that is packed.
pub unsafe fn write_opt<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { out.write_unaligned(value) };
    }
}

/// `DAT_INVALID_PARAMETER` of argument `arg` for a NULL pointer.
pub fn non_null<T>(pointer: *const T, arg: Subtype) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::arg(arg));
    }
    Ok(())
}

/// `DAT_INVALID_PARAMETER` of argument `arg` for bits of a mask that name no field.
pub fn check_mask(mask: u64, all: u64, arg: Subtype) -> Result<()> {
    if mask & !all != 0 {
        return Err(Error::arg(arg));
    }
    Ok(())
}

/// Private data from C: a size, and a pointer that may be NULL when the size is 0.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`: `size_arg` for a negative or too large size, `data_arg` for a NULL
/// pointer with a size.
///
/// # Safety
/// `data` points to `size` bytes if `size` is positive.
pub unsafe fn private_data<'a>(
    size: DAT_COUNT,
    data: DAT_PVOID,
    max: u32,
    size_arg: Subtype,
    data_arg: Subtype,
) -> Result<&'a [u8]> {
    let size = u32::try_from(size).map_err(|_| Error::arg(size_arg))?;
    if size > max {
        return Err(Error::arg(size_arg));
    }
    if size == 0 {
        return Ok(&[]);
    }
    non_null(data, data_arg)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size as usize) })
}

/// The error for a failure of the device; `resource` names the resource that was requested.
pub fn device_error(error: DeviceError, resource: Subtype) -> Error {
    match error {
        DeviceError::Resources | DeviceError::Limit | DeviceError::QualPrivileged => {
            Error::resource(resource)
        }
        DeviceError::BadMemory => Kind::InvalidParameter.into(),
        DeviceError::QualInUse => Kind::ConnQualInUse.into(),
        DeviceError::QualUnavailable => Kind::ConnQualUnavailable.into(),
        DeviceError::BadAddress => Error::new(Kind::InvalidAddress, Subtype::AddressUnsupported),
        DeviceError::Unsupported => Kind::ModelNotSupported.into(),
    }
}

/// A timeout of the API: microseconds or `DAT_TIMEOUT_INFINITE`.
pub fn timeout(timeout: DAT_TIMEOUT) -> Option<Duration> {
    (timeout != DAT_TIMEOUT_INFINITE).then(|| Duration::from_micros(timeout.into()))
}

/// Answers a query, whose mask is argument 2 and whose parameters go to argument 3: checks both
/// and writes what `read` gives.
///
/// # Errors
/// `DAT_INVALID_PARAMETER` for a mask with bits outside of `all` (2) or a NULL pointer (3), and
/// those of `read`.
///
/// # Safety
/// `param` is NULL or points to memory for the parameters.
pub unsafe fn answer_query<T>(
    mask: u64,
    all: u64,
    param: *mut T,
    read: impl FnOnce() -> Result<T>,
) -> Result<()> {
    check_mask(mask, all, Subtype::Arg2)?;
    non_null(param, Subtype::Arg3)?;
    let value = read()?;
    // SAFETY: not NULL, so the caller's promise.
    unsafe { param.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dapl::abi::{V1, V2};

    fn errno() -> &'static mut i32 {
        // SAFETY: this thread's own `errno`; used for one read or write at a time.
        unsafe { &mut *libc::__errno_location() }
    }

    #[test]
    fn the_boundary_keeps_errno_and_panics() {
        *errno() = libc::EXDEV;
        let code = boundary::<V2>(|| {
            *errno() = libc::EDOM;
            Ok(())
        });
        assert_eq!((code, *errno()), (DAT_SUCCESS, libc::EXDEV));
        let code = section::<V2>(|_| {
            *errno() = libc::EDOM;
            Err(Error::arg(Subtype::Arg1))
        });
        assert_eq!((code, *errno()), (0x8006_0025, libc::EXDEV));
        let code = boundary::<V1>(|| {
            *errno() = libc::EDOM;
            panic!("expected by this test")
        });
        assert_eq!((code, *errno()), (0x8004_0000, libc::EXDEV));
    }
}
