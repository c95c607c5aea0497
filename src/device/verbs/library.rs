//! rdma-core's libraries, opened at run time: where they are not installed there is no device,
//! and nothing else changes.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::library_use::{self, LibraryUse};
use super::sys::*;
use crate::process::PerProcess;

macro_rules! libraries {
    (
        $($file:literal { $($name:ident($($arg:ty),*) $(-> $ret:ty)?;)* })*
        $(optional $newer_file:literal {
            $($newer:ident($($newer_arg:ty),*) $(-> $newer_ret:ty)?;)*
        })*
    ) => {
        /// The functions we call, under the names of the C libraries. Those that rdma-core has
        /// since a version after 30 are optional.
        pub struct Library {
            $($(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*)*
            $($(pub $newer: Option<unsafe extern "C" fn($($newer_arg),*) $(-> $newer_ret)?>,)*)*
        }

        impl Library {
            fn open() -> Result<Library, String> {
                Ok(Library {
                    $($(
                        // SAFETY: the function of that name has this type.
                        $name: unsafe { function($file, concat!(stringify!($name), "\0")) }?,
                    )*)*
                    $($(
                        // SAFETY: as above.
                        $newer: unsafe {
                            function($newer_file, concat!(stringify!($newer), "\0"))
                        }
                        .ok(),
                    )*)*
                })
            }
        }
    };
}

libraries! {
    c"libibverbs.so.1" {
        ibv_get_device_list(*mut c_int) -> *mut *mut IbvDevice;
        ibv_free_device_list(*mut *mut IbvDevice);
        ibv_open_device(*mut IbvDevice) -> *mut Context;
        ibv_close_device(*mut Context) -> c_int;
        ibv_query_device(*mut Context, *mut DeviceAttr) -> c_int;
        ibv_query_port(*mut Context, u8, *mut PortAttr) -> c_int;
        ibv_get_async_event(*mut Context, *mut AsyncEvent) -> c_int;
        ibv_ack_async_event(*mut AsyncEvent);
        ibv_alloc_pd(*mut Context) -> *mut Pd;
        ibv_dealloc_pd(*mut Pd) -> c_int;
        ibv_reg_mr(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
        ibv_reg_mr_iova(*mut Pd, *mut c_void, usize, u64, c_int) -> *mut Mr;
        ibv_dereg_mr(*mut Mr) -> c_int;
        ibv_create_comp_channel(*mut Context) -> *mut CompChannel;
        ibv_destroy_comp_channel(*mut CompChannel) -> c_int;
        ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        ibv_resize_cq(*mut Cq, c_int) -> c_int;
        ibv_destroy_cq(*mut Cq) -> c_int;
        ibv_get_cq_event(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut Cq, c_uint);
        ibv_create_srq(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
        ibv_modify_srq(*mut Srq, *mut SrqAttr, c_int) -> c_int;
        ibv_query_srq(*mut Srq, *mut SrqAttr) -> c_int;
        ibv_destroy_srq(*mut Srq) -> c_int;
        ibv_create_qp(*mut Pd, *mut QpInitAttr) -> *mut Qp;
        ibv_modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int;
        ibv_query_qp(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
        ibv_destroy_qp(*mut Qp) -> c_int;
        ibv_create_ah(*mut Pd, *mut AhAttr) -> *mut Ah;
        ibv_destroy_ah(*mut Ah) -> c_int;
        ibv_query_gid(*mut Context, u8, c_int, *mut [u64; 2]) -> c_int;
    }
    c"librdmacm.so.1" {
        rdma_create_event_channel() -> *mut EventChannel;
        rdma_destroy_event_channel(*mut EventChannel);
        rdma_create_id(*mut EventChannel, *mut *mut CmId, *mut c_void, c_int) -> c_int;
        rdma_destroy_id(*mut CmId) -> c_int;
        rdma_bind_addr(*mut CmId, *mut libc::sockaddr) -> c_int;
        rdma_resolve_addr(*mut CmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route(*mut CmId, c_int) -> c_int;
        rdma_listen(*mut CmId, c_int) -> c_int;
        rdma_connect(*mut CmId, *mut ConnParam) -> c_int;
        rdma_accept(*mut CmId, *mut ConnParam) -> c_int;
        rdma_reject(*mut CmId, *const c_void, u8) -> c_int;
        rdma_establish(*mut CmId) -> c_int;
        rdma_disconnect(*mut CmId) -> c_int;
        rdma_notify(*mut CmId, c_int) -> c_int;
        rdma_init_qp_attr(*mut CmId, *mut QpAttr, *mut c_int) -> c_int;
        rdma_get_cm_event(*mut EventChannel, *mut *mut CmEvent) -> c_int;
        rdma_ack_cm_event(*mut CmEvent) -> c_int;
        rdma_get_src_port(*mut CmId) -> u16;
    }
    // Version 31.
    optional c"librdmacm.so.1" {
        rdma_reject_ece(*mut CmId, *const c_void, u8) -> c_int;
    }
    // Version 32.
    optional c"libibverbs.so.1" {
        _ibv_query_gid_ex(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    }
}

/// A function of a library. Nothing is ever closed: device drivers have threads and handlers.
///
/// # Safety
/// `F` is the type of a pointer to this function.
unsafe fn function<F: Copy>(file: &CStr, name: &str) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: terminated strings; loading runs the library's constructors, which is its design.
    let symbol = unsafe {
        let library = libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            return Err(last_error());
        }
        libc::dlsym(library, name.as_ptr().cast::<c_char>())
    };
    if symbol.is_null() {
        return Err(last_error());
    }
    // SAFETY: the caller's promise; the size is that of a pointer.
    Ok(unsafe { std::mem::transmute_copy(&symbol) })
}

fn last_error() -> String {
    // SAFETY: null or a string that stays until the next call in this thread.
    let error = unsafe {
        let error = libc::dlerror();
        (!error.is_null()).then(|| CStr::from_ptr(error))
    };
    error.map_or("not found".into(), |e| e.to_string_lossy().into_owned())
}

/// Where the kernel offers its connection manager.
const CM_DEVICE: &str = "/dev/infiniband/rdma_cm";

/// The libraries.
///
/// # Errors
/// Why this machine has no RDMA: for the log.
pub fn library() -> Result<&'static Library, String> {
    static LIBRARY: PerProcess<Result<Library, String>> = PerProcess::new(Library::open);
    // Before the libraries: without the kernel's part they complain on standard error.
    if !std::path::Path::new(CM_DEVICE).exists() {
        return Err(format!(
            "no RDMA in this system: {CM_DEVICE} does not exist"
        ));
    }
    if !library_use::is_usable() {
        return Err("rdma-core was in use when this process was forked".into());
    }
    let _use = LibraryUse::begin_opening();
    LIBRARY
        .get()
        .as_ref()
        .map_err(|why| format!("rdma-core cannot be used: {why}"))
}
