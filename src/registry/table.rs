//! The provider table in the registry: the part that DAT 1.2 and 2.0 share.

use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};
use std::ptr::{self, NonNull};

use crate::abi::common::{
    DAT_CLOSE_FLAGS, DAT_COUNT, DAT_EVD_HANDLE, DAT_IA_CLOSE_FUNC, DAT_IA_HANDLE, DAT_IA_OPEN_FUNC,
    DAT_NAME_PTR, DAT_PVOID, DAT_RETURN,
};
use crate::abi::{v1, v2};
use crate::error::{Error, Kind, Result, Version};

/// `ia_query_func` with untyped structures, as they differ between the versions.
type Query = unsafe extern "C" fn(
    DAT_IA_HANDLE,
    *mut DAT_EVD_HANDLE,
    u64,
    *mut c_void,
    u64,
    *mut c_void,
) -> DAT_RETURN;

/// The first fields of `DAT_PROVIDER`, equal in both versions.
#[repr(C)]
struct Head {
    device_name: *const std::ffi::c_char,
    extension: DAT_PVOID,
    ia_open: DAT_IA_OPEN_FUNC,
    ia_query: Option<Query>,
    ia_close: DAT_IA_CLOSE_FUNC,
}

const _: () = {
    assert!(offset_of!(Head, ia_open) == offset_of!(v1::DAT_PROVIDER, ia_open_func));
    assert!(offset_of!(Head, ia_query) == offset_of!(v1::DAT_PROVIDER, ia_query_func));
    assert!(offset_of!(Head, ia_close) == offset_of!(v1::DAT_PROVIDER, ia_close_func));
    assert!(offset_of!(Head, ia_open) == offset_of!(v2::DAT_PROVIDER, ia_open_func));
    assert!(offset_of!(Head, ia_query) == offset_of!(v2::DAT_PROVIDER, ia_query_func));
    assert!(offset_of!(Head, ia_close) == offset_of!(v2::DAT_PROVIDER, ia_close_func));
};

/// A registered provider table. It must live until its registration is removed: the table is
/// kept by reference, as documented in dat_registry_add_provider(3DAT).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table(NonNull<Head>);

// SAFETY: a table is constant data of the provider; the registry may call its functions in any
// thread. (For a provider that is not thread-safe, it is the consumer that serialises the calls.)
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// The table at an address; `None` for NULL.
    pub fn new(table: *const c_void) -> Option<Table> {
        NonNull::new(table.cast_mut().cast()).map(Table)
    }

    /// Calls `ia_open_func`; its result and the handle, if it gave one.
    ///
    /// # Safety
    ///
    /// The table is valid; the arguments are as `dat_ia_open` wants them.
    pub unsafe fn open(
        self,
        name: DAT_NAME_PTR,
        qlen: DAT_COUNT,
        evd: *mut DAT_EVD_HANDLE,
    ) -> Result<(DAT_RETURN, DAT_IA_HANDLE)> {
        // SAFETY: valid, as the caller promises.
        let open = unsafe { self.0.as_ref() }.ia_open;
        let open = open.ok_or(Error::from(Kind::NotImplemented))?;
        let mut handle = ptr::null_mut();
        // SAFETY: the caller's promise on the arguments; `handle` is a local.
        let code = unsafe { open(name, qlen, evd, &mut handle) };
        Ok((code, handle))
    }

    /// Calls `ia_query_func` for the provider attributes, by which a close checks whether the handle
    /// is still valid for the provider. Without that function the handle counts as valid.
    ///
    /// # Safety
    ///
    /// The table is valid and of `version`; `ia` is a handle that it gave and has not closed.
    pub unsafe fn check(self, version: Version, ia: DAT_IA_HANDLE) -> DAT_RETURN {
        let mut v1 = MaybeUninit::<v1::DAT_PROVIDER_ATTR>::zeroed();
        let mut v2 = MaybeUninit::<v2::DAT_PROVIDER_ATTR>::zeroed();
        let (mask, attributes) = match version {
            Version::V1 => (v1::DAT_PROVIDER_FIELD_ALL, v1.as_mut_ptr().cast()),
            Version::V2 => (v2::DAT_PROVIDER_FIELD_ALL, v2.as_mut_ptr().cast()),
        };
        // SAFETY: valid, as the caller promises.
        match unsafe { self.0.as_ref() }.ia_query {
            // SAFETY: `attributes` is of the type of the version, and lives during the call.
            Some(query) => unsafe {
                query(ia, ptr::null_mut(), 0, ptr::null_mut(), mask, attributes)
            },
            None => 0,
        }
    }

    /// Whether a 2.0 IA has an extension, by its attributes.
    ///
    /// # Safety
    ///
    /// The table is valid and of DAT 2.0; `ia` is a handle that it gave and has not closed.
    pub unsafe fn extension_supported(self, ia: DAT_IA_HANDLE) -> bool {
        let mut attributes = MaybeUninit::<v2::DAT_IA_ATTR>::zeroed();
        let (mask, out) = (v2::DAT_IA_ALL, attributes.as_mut_ptr());
        // SAFETY: valid, as the caller promises.
        let Some(query) = (unsafe { self.0.as_ref() }).ia_query else {
            return false;
        };
        // SAFETY: `out` is of the 2.0 type and lives during the call; no provider attributes are
        // requested.
        let code = unsafe { query(ia, ptr::null_mut(), mask, out.cast(), 0, ptr::null_mut()) };
        // SAFETY: `out` was zeroed, which is a value of the field, and may have been written.
        code == 0 && unsafe { (*out).extension_supported } != v2::DAT_EXTENSION_NONE
    }

    /// Calls `ia_close_func`.
    ///
    /// # Safety
    ///
    /// The table is valid; `ia` is a handle that it gave and has not closed.
    pub unsafe fn close(self, ia: DAT_IA_HANDLE, flags: DAT_CLOSE_FLAGS) -> Result<DAT_RETURN> {
        // SAFETY: valid, as the caller promises.
        let close = unsafe { self.0.as_ref() }.ia_close;
        let close = close.ok_or(Error::from(Kind::NotImplemented))?;
        // SAFETY: the caller's promise.
        Ok(unsafe { close(ia, flags) })
    }
}
