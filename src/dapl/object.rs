//! What all objects have in common: a handle, an IA, a consumer context; and the boundary to C.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::abi::Abi;
use super::ia::Ia;
use super::types::Handle;
use crate::abi::common::*;
use crate::device::{Device, DeviceError};
use crate::entry::Errno;
use crate::error::{Error, Kind, Result, Subtype};
use crate::handle::{self, Guard, Object, pin};

/// Kinds of objects, with the numbers of `DAT_HANDLE_TYPE`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
#[allow(missing_docs)] // the names are those of dat_handle_type
pub enum HandleType {
    Cr = DAT_HANDLE_TYPE_CR,
    Ep = DAT_HANDLE_TYPE_EP,
    Evd = DAT_HANDLE_TYPE_EVD,
    Ia = DAT_HANDLE_TYPE_IA,
    Lmr = DAT_HANDLE_TYPE_LMR,
    Psp = DAT_HANDLE_TYPE_PSP,
    Pz = DAT_HANDLE_TYPE_PZ,
    Rmr = DAT_HANDLE_TYPE_RMR,
    Rsp = DAT_HANDLE_TYPE_RSP,
    Cno = DAT_HANDLE_TYPE_CNO,
    Srq = DAT_HANDLE_TYPE_SRQ,
}

/// The handle tag of a kind of object of a device: 12 kinds, up to 5 devices.
pub const fn tag(kind: HandleType, device: usize) -> usize {
    1 + kind as usize + 12 * device
}

/// The part that every object but the IA has.
pub struct Base<D: Device> {
    handle: AtomicPtr<std::ffi::c_void>,
    /// The IA instance the object belongs to.
    pub ia: Arc<Ia<D>>,
    context: AtomicU64,
}

impl<D: Device> Base<D> {
    /// For a new object; [`publish`] gives it its handle.
    pub fn new(ia: Arc<Ia<D>>) -> Self {
        Base {
            handle: AtomicPtr::default(),
            ia,
            context: AtomicU64::new(0),
        }
    }

    /// The handle; null before [`publish`].
    pub fn handle(&self) -> Handle {
        Handle(self.handle.load(Ordering::Relaxed))
    }

    /// The consumer context (`dat_get_consumer_context`), 0 when never set.
    pub fn context(&self) -> &AtomicU64 {
        &self.context
    }
}

/// An object of the provider other than the IA.
pub trait DatObject<D: Device>: Object {
    /// What kind.
    const TYPE: HandleType;
    /// Subtype of `DAT_INVALID_HANDLE` for a bad handle of this kind.
    const INVALID: Subtype;
    /// The common part.
    fn base(&self) -> &Base<D>;
}

/// Gives a new object its handle and enters it with its IA.
///
/// # Errors
/// `DAT_INSUFFICIENT_RESOURCES` when no handle is to be had, `DAT_INVALID_HANDLE` when the IA is
/// being closed.
pub fn publish<D: Device, T: DatObject<D>>(object: &Arc<T>) -> Result<Handle> {
    let base = object.base();
    let handle = handle::insert(base.ia.table(), object.clone())
        .ok_or(Error::resource(Subtype::ResourceMemory))?;
    // The event of a device may look for the handle from now on; C gets it when we return.
    base.handle.store(handle, Ordering::Relaxed);
    if !base.ia.add_child(T::TYPE, Handle(handle)) {
        handle::remove(handle, &**object);
        return Err(Error::handle(Subtype::HandleIa));
    }
    Ok(Handle(handle))
}

/// Takes the handle of an object back. `false` if another thread was faster.
pub fn unpublish<D: Device, T: DatObject<D>>(object: &T) -> bool {
    let base = object.base();
    let handle = base.handle();
    if !handle::remove(handle.0, object) {
        return false;
    }
    base.ia.remove_child(T::TYPE, handle);
    true
}

/// The object of a handle, or `DAT_INVALID_HANDLE` with the subtype of its kind.
pub fn lookup<D: Device, T: DatObject<D>>(handle: DAT_HANDLE) -> Result<Arc<T>> {
    handle::get_shared(handle).ok_or(Error::handle(T::INVALID))
}

/// The same for an argument that may be `DAT_HANDLE_NULL`.
pub fn lookup_opt<D: Device, T: DatObject<D>>(
    handle: DAT_HANDLE,
    invalid: Subtype,
) -> Result<Option<Arc<T>>> {
    if handle.is_null() {
        return Ok(None);
    }
    match handle::get_shared(handle) {
        Some(object) => Ok(Some(object)),
        None => Err(Error::handle(invalid)),
    }
}

/// The boundary to C: no panic crosses it, an error becomes a code, and `errno` stays as it was.
#[inline]
pub fn boundary<A: Abi>(f: impl FnOnce() -> Result<()>) -> DAT_RETURN {
    let errno = Errno::save();
    let call = || {
        let result = f();
        pin::sweep();
        result
    };
    let code = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => DAT_SUCCESS,
        Ok(Err(error)) => error.code(A::VERSION),
        Err(_) => Error::from(Kind::InternalError).code(A::VERSION),
    };
    errno.restore();
    code
}

/// [`boundary`] for a call that looks handles up, in a section.
#[inline]
pub fn section<A: Abi>(f: impl FnOnce(&Guard) -> Result<()>) -> DAT_RETURN {
    boundary::<A>(|| {
        let guard = pin::pin();
        let result = f(&guard);
        // One end of the section for all the ends of the call.
        drop(guard);
        result
    })
}

/// Writes an OUT argument that may be NULL.
///
/// # Safety
/// `out` is NULL or points to memory for a `T`.
pub unsafe fn write_opt<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { out.write(value) };
    }
}

/// Refuses a NULL pointer as `DAT_INVALID_PARAMETER` of argument `arg`.
pub fn non_null<T>(pointer: *const T, arg: Subtype) -> Result<()> {
    if pointer.is_null() {
        return Err(Error::arg(arg));
    }
    Ok(())
}

/// Refuses mask bits that name no field.
pub fn check_mask(mask: u64, all: u64, arg: Subtype) -> Result<()> {
    if mask & !all != 0 {
        return Err(Error::arg(arg));
    }
    Ok(())
}

/// Private data as C gives it: a size and a pointer that may be NULL when the size is 0.
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

/// What a failure of the device means to the caller; `resource` names what was to be made.
pub fn device_error(error: DeviceError, resource: Subtype) -> Error {
    match error {
        DeviceError::Resources | DeviceError::Limit => Error::resource(resource),
        DeviceError::BadMemory => Kind::InvalidParameter.into(),
        DeviceError::QualInUse => Kind::ConnQualInUse.into(),
        DeviceError::QualUnavailable => Kind::ConnQualUnavailable.into(),
        DeviceError::BadAddress => Error::new(Kind::InvalidAddress, Subtype::AddressUnsupported),
        DeviceError::Unsupported => Kind::ModelNotSupported.into(),
    }
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
